#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One script, unchanged, under `weft run`, Open MPI, MPICH's hydra, torchrun, by hand in four processes, and alone."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import ranks

SCRIPT = pathlib.Path(__file__).resolve().parent / "launched.py"
PYTHON = sys.executable
LINE = re.compile(r"turn (\d+): rank (\d+) of (\d+): OK")


def launcher(name):
    return unittest.skipUnless(shutil.which(name), f"{name} is not installed")


def have_torchrun():
    """torchrun, and a torch that it finds."""
    return shutil.which("torchrun") and subprocess.run(
        ["/usr/bin/python3", "-c", "import torch"], capture_output=True).returncode == 0


class Launchers(unittest.TestCase):
    MPIRUN = ["mpirun.openmpi", "--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="weft-test-"))
        self.addCleanup(shutil.rmtree, self.dir, True)

    def environment(self, **more):
        return ranks.clean_environment(WEFT_CONNECT_TIMEOUT="30", **more)

    def one(self, *command, code=0, env=None):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600,
                              cwd=self.dir, env=env or self.environment())
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def by_hand(self, environments, arguments=None, *options):
        """A process per environment, all at once; returns what all of them said."""
        arguments = arguments or [[]] * len(environments)
        running = [subprocess.Popen([PYTHON, SCRIPT, *map(str, words), *options], env=env, stdout=subprocess.PIPE,
                                    stderr=subprocess.STDOUT, text=True, cwd=self.dir)
                   for env, words in zip(environments, arguments)]
        said = [process.communicate(timeout=600)[0] for process in running]
        self.assertEqual([process.returncode for process in running], [0] * len(running), "".join(said))
        return "".join(said)

    def joined(self, output, size, worlds=1):
        """Each rank of each world, once, and nobody else."""
        found = sorted(tuple(map(int, line)) for line in LINE.findall(output))
        self.assertEqual(found, [(turn, rank, size) for turn in range(worlds) for rank in range(size)], output)

    def test_weft_run(self):
        self.joined(self.one(ranks.WEFT, "run", "-n", 4, "--", PYTHON, SCRIPT).stdout, 4)

    def test_weft_run_two_worlds_in_turn(self):
        self.joined(self.one(ranks.WEFT, "run", "-n", 2, "--", PYTHON, SCRIPT, "--twice").stdout, 2, 2)

    def test_weft_run_on_hosts(self):
        """Two hosts that are this one: ranks of one share memory, the others are connected by TCP."""
        rsh = self.dir / "rsh"
        rsh.write_text('#!/bin/sh\nWEFT_HOST_ID=$1 exec sh -c "$2"\n')
        rsh.chmod(0o755)
        done = self.one(ranks.WEFT, "run", "--hosts", "127.0.0.2:2,127.0.0.3:1", "--engine", "ssh", "--rsh", rsh, "--",
                        PYTHON, SCRIPT)
        self.joined(done.stdout, 3)

    def test_a_rank_that_dies(self):
        done = self.one(ranks.WEFT, "run", "-n", 3, "--", PYTHON, SCRIPT, "--leave", code=128 + 9)
        self.assertIn("rank 1", done.stderr)

    @launcher("mpirun.openmpi")
    def test_open_mpi(self):
        self.joined(self.one(*self.MPIRUN, "-np", 4, PYTHON, SCRIPT).stdout, 4)

    @launcher("mpiexec.hydra")
    def test_hydra(self):
        self.joined(self.one("mpiexec.hydra", "-n", 4, PYTHON, SCRIPT).stdout, 4)

    @unittest.skipUnless(have_torchrun(), "torch is not installed")
    def test_torchrun(self):
        # Debian's torch 1.13 under CPython 3.11 wants to be told where the output of every rank goes.
        output = ",".join(f"{rank}:1" for rank in range(4))
        done = self.one("torchrun", "--nnodes", 1, "--nproc_per_node", 4, "--rdzv_backend", "c10d", "--rdzv_endpoint",
                        "localhost:0", "--rdzv_id", "one", "-r", output, "-t", output, SCRIPT)
        self.joined(done.stdout, 4)

    def test_variables_by_hand(self):
        for address in (f"unix:@weft-test-{os.getpid()}", f"file://{self.dir}/meet"):
            said = self.by_hand([self.environment(WEFT_RANK=str(rank), WEFT_WORLD_SIZE="4", WEFT_ADDRESS=address)
                                 for rank in range(4)])
            self.joined(said, 4)

    def test_arguments_by_hand(self):
        address = f"unix:@weft-test-arguments-{os.getpid()}"
        said = self.by_hand([self.environment()] * 4, [[rank, 4, address] for rank in range(4)])
        self.joined(said, 4)

    def test_arguments_come_before_variables(self):
        address = f"unix:@weft-test-both-{os.getpid()}"
        wrong = self.environment(WEFT_RANK="7", WEFT_WORLD_SIZE="9", WEFT_ADDRESS="unix:@nobody")
        self.joined(self.by_hand([wrong] * 2, [[rank, 2, address] for rank in range(2)]), 2)

    def test_nobody_else_comes(self):
        """A rank that waits for others says for whom, long before it gives up."""
        for rank, said in ((0, r"1 of 2 ranks have not joined at unix:\S+ for \d s: 1\n"),
                           (1, r"rank 1: rank 0 not found at unix:")):
            place = {"WEFT_RANK": str(rank), "WEFT_WORLD_SIZE": "2",
                     "WEFT_ADDRESS": f"unix:@weft-test-few-{os.getpid()}"}
            done = self.one(PYTHON, "-c", "import weft; weft.init()", code=1,
                            env=self.environment(WEFT_LATE="0.3", WEFT_TIMEOUT="1", **place))
            self.assertRegex(done.stderr, f"weft: warn: {said}")
            self.assertRegex(done.stderr, rf"WeftTimeoutError: .* within 1 s; missing ranks: {1 - rank}\n")

    def test_alone(self):
        self.joined(self.one(PYTHON, SCRIPT).stdout, 1)

    def test_half_of_a_place(self):
        done = self.one(PYTHON, SCRIPT, env=self.environment(WEFT_RANK="0"), code=1)
        self.assertIn("but the world size (WEFT_WORLD_SIZE) is not", done.stderr)


if __name__ == "__main__":
    ranks.main()
