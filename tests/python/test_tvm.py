#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weft.tvm with the TVM of PyPI, in an environment of its own (build/tvm): collectives, models, errors, failures.

tests/interop/tvm_workers.py is the program, and its workers.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

import ranks

TVM = ranks.SOURCE / "build" / "tvm" / "bin" / "python"
PROGRAM = ranks.SOURCE / "tests" / "interop" / "tvm_workers.py"
PACKAGE = pathlib.Path(ranks.WEFT).parent / "python"

if ranks.SANITIZED:
    print("skipped: under a sanitizer TVM's libraries take too long to load")
    sys.exit(ranks.SKIPPED)
if not TVM.exists() or subprocess.run([TVM, "-c", "import tvm"], capture_output=True, check=False).returncode:
    print(f"skipped: {TVM} has no tvm: scripts/test.sh installs it where PyPI can be reached")
    sys.exit(ranks.SKIPPED)


class Tvm(unittest.TestCase):
    def run_case(self, case, good=True, **env):
        done = subprocess.run([TVM, PROGRAM, case], capture_output=True, text=True, timeout=600, check=False,
                              env=ranks.clean_environment(PYTHONPATH=f"{PACKAGE}:{PROGRAM.parent}", TVM_NUM_THREADS="1", **env))
        if good:
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn(f"{case}: good\n", done.stdout)
        return done

    def test_layout(self):
        """tvm_ffi.h has the layout of the installed headers, and the installed library the functions."""
        code = "import tvm_ffi.libinfo as i; print(i.find_include_path(), i.find_dlpack_include_path(), i.find_libtvm_ffi())"
        tvm, dlpack, library = subprocess.run([TVM, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        done = subprocess.run([compiler, "-std=c11", "-Wall", "-Werror", "-fsyntax-only", f"-I{ranks.SOURCE}", f"-isystem{tvm}",
                               f"-isystem{dlpack}", PROGRAM.parent / "tvm_layout.c"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        listed = set(re.findall(r"X\((TVMFFI\w+)", (ranks.SOURCE / "interop/tvm/tvm_ffi.h").read_text()))
        symbols = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
        self.assertEqual(listed - {line.split()[-1] for line in symbols.stdout.splitlines()}, set())

    def test_threads(self):
        self.run_case("threads")

    def test_processes(self):
        self.run_case("processes")

    def test_sockets(self):
        self.run_case("sockets")

    def test_models(self):
        self.run_case("models")

    def test_errors(self):
        """A wrong argument of worker 1 is an error of both workers, and calls work after it."""
        said = self.run_case("errors").stdout
        self.assertIn("worker -1: RuntimeError: allreduce: no world of Weft: call weft.tvm.init(session)", said)
        collective = ["allreduce: argument 'send': not contiguous: shape (2, 3), strides (1, 2)",
                      "allreduce: argument 'recv': 5 elements, expected 6",
                      "allreduce: argument 'reduce_kind': invalid value 7: expected 0 to 4",
                      "allreduce: arguments 'send' and 'recv': different types: float32 and int32",
                      "allreduce: argument 'recv': not a tensor: type index 0",
                      "allreduce: invalid number of arguments: 3, expected 4",
                      "allreduce: argument 'send': unsupported reduction: sum of 8 bits of DLPack's type code 10",
                      "allgather: argument 'recv': 6 elements, expected 12"]
        alone = [["AllReduce: dtype bool cannot be reduced", "send_to_worker: invalid worker 2 for world size 2",
                  "recv_from_worker: invalid worker -1 for world size 2",
                  f"Send: invalid peer {rank} for rank {rank} of a group of 2 ranks", text]
                 for rank, text in enumerate(("recv_from_prev_group: no previous group: worker 0 is in the first one",
                                              "send_to_next_group: no next group: worker 1 is in the last one"))]
        for rank in range(2):
            lines = [line.removeprefix(f"worker {rank}: ") for line in said.splitlines() if line.startswith(f"worker {rank}:")]
            prefix = "" if rank == 1 else "rank 1: "
            self.assertEqual(lines, [f"ValueError: {prefix}{text}" for text in collective] +
                             [f"ValueError: {text}" for text in alone[rank]])

    def test_dead_worker(self):
        done = self.run_case("dies", good=False)
        self.assertRegex(done.stderr, r"rank 1 \(pid \d+\) died")
        self.assertNotEqual(done.returncode, 0)


if __name__ == "__main__":
    ranks.main()
