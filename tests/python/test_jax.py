#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weft.jax with the jax of PyPI, in an environment of its own (build/jax): collectives, launchers, failures, training.

tests/interop/jax_ranks.py is what the ranks run.
"""
import mmap
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import ranks

JAX = ranks.SOURCE / "build" / "jax" / "bin" / "python"
RANKS = ranks.SOURCE / "tests" / "interop" / "jax_ranks.py"
LIBRARY = pathlib.Path(ranks.WEFT).parent / "libweft_mpi.so"
sys.path.append(str(ranks.SOURCE / "tests" / "hosts"))
import namespaces  # noqa: E402

if ranks.SANITIZED:
    print("skipped: under a sanitizer jaxlib's libraries take too long to load")
    sys.exit(ranks.SKIPPED)
if not JAX.exists() or subprocess.run([JAX, "-c", "import jax"], capture_output=True, check=False).returncode:
    print(f"skipped: {JAX} has no jax: scripts/test.sh installs it where PyPI can be reached")
    sys.exit(ranks.SKIPPED)


def environment(**more):
    return ranks.clean_environment(JAX_PLATFORMS="cpu", JAX_DISABLE_MOST_OPTIMIZATIONS="1", **more)


def weft_run(count, *options):
    return [ranks.WEFT, "run", "-n", str(count), *options, "--"]


class Jax(unittest.TestCase):
    def run_ranks(self, launcher, *cases, env=None, good=None):
        """Output of ranks; good: how many report that all went well, None: the ranks fail."""
        done = subprocess.run([*map(str, launcher), str(JAX), str(RANKS), *cases], capture_output=True, text=True,
                              timeout=600, env=environment(**(env or {})), check=False)
        if good is not None:
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(len(re.findall(f"rank \\d of {good}: good", done.stdout)), good, done.stdout)
        return done

    def run_script(self, script, **env):
        return subprocess.run([JAX, "-c", script], capture_output=True, text=True, timeout=600, check=False,
                              env=environment(**env))

    def test_names(self):
        """The library defines what jaxlib looks up, and mpi_names.inc lists it."""
        (jaxlib,) = (ranks.SOURCE / "build" / "jax").glob("lib/python*/site-packages/jaxlib/libjax_common.so")
        with open(jaxlib, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            wanted = {name.decode() for name in re.findall(rb"\0(MPIX?ABI_\w+)(?=\0)", data)}
        listed = {f"{'MPIXABI' if kind == 'DEVICE' else 'MPIABI'}_{name}" for kind, name in re.findall(
            r"^([A-Z]+)\((\w+)\)$", (ranks.SOURCE / "interop/jax/mpi_names.inc").read_text(), re.M)}
        self.assertGreater(len(wanted), 600)
        self.assertEqual(wanted - listed, set(), "jaxlib looks up names that mpi_names.inc lacks")
        self.assertEqual(listed - wanted, set(), "mpi_names.inc has names that jaxlib does not look up")
        symbols = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, check=True)
        self.assertEqual(listed - {line.split()[-1] for line in symbols.stdout.splitlines()}, set())

    def test_two_ranks(self):
        self.run_ranks(weft_run(2), "types", "bucketed", "operators", good=2)

    def test_three_ranks(self):
        mpirun = shutil.which("mpirun.openmpi")
        launcher = [mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "3"] if mpirun else weft_run(3)
        self.run_ranks(launcher, "calls", "bucketed", good=3)

    def test_four_ranks(self):
        hydra = shutil.which("mpiexec.hydra")
        self.run_ranks([hydra, "-n", "4"] if hydra else weft_run(4), "calls", "axes", "train", good=4)

    def test_two_hosts(self):
        if reason := namespaces.why_not():
            self.skipTest(reason)
        with namespaces.Hosts(2) as hosts:
            self.run_ranks(weft_run(2, "--hosts", "h0,h1", "--engine", "ssh", "--rsh", hosts.rsh), "calls", "aside", good=2)

    def test_dead_rank(self):
        done = self.run_ranks(weft_run(3), "dies")
        for rank in (0, 2):
            self.assertRegex(done.stdout, rf"rank {rank} has caught: .*rank 1 \(pid \d+\) died")
        self.assertEqual(done.returncode, 128 + 9)

    def test_late_rank(self):
        """And without weft.jax, by the two variables."""
        with tempfile.TemporaryDirectory() as folder:
            done = self.run_ranks(weft_run(2), "late", env={
                "MPITRAMPOLINE_LIB": str(LIBRARY), "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "mpi", "WEFT_TIMEOUT": "30",
                "WEFT_NO_PYTHON": f"localhost:{ranks.free_port()}", "WEFT_TEST_CAUGHT": f"{folder}/caught"})
        self.assertRegex(done.stdout, r"rank 0 has caught: .*rank 0 waited 30 s in all_reduce .*; late: rank 1")

    def test_other_worlds(self):
        """Two devices per process, then no launcher: all ranks fail at once."""
        for case, text, env in (
                ("refused", "process 1 has rank 1 of 2 where XLA expects rank [23]",
                 {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}),
                ("alone", "JAX has 2 processes, Weft's world has 1 ranks",
                 {"WEFT_NO_PYTHON": f"localhost:{ranks.free_port()}"})):
            with self.subTest(case):
                done = self.run_ranks(weft_run(2), case, env=env)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                for rank in range(2):
                    self.assertRegex(done.stdout, f"rank {rank} has caught: .*{text}")

    def test_refusals(self):
        done = self.run_script("import jaxlib, weft.jax")
        self.assertRegex(done.stderr, "ImportError: weft.jax: jaxlib is loaded already: import weft.jax before jax")
        done = self.run_script("import weft.jax", JAX_CPU_COLLECTIVES_IMPLEMENTATION="gloo")
        self.assertRegex(done.stderr, "ImportError: weft.jax: JAX_CPU_COLLECTIVES_IMPLEMENTATION is set to 'gloo'")


if __name__ == "__main__":
    ranks.main()
