#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All-reduces in models of ONNX Runtime: by Weft in one session, or by cutting the model, in one run.

    all-reduce SIZE   a model of two element-wise nodes with an all-reduce of SIZE bytes between them
    token             24 layers of two MLPs, each followed by an all-reduce of 4 KiB

Two ranks with one thread each. Sides: none, the model without all-reduces, which shows what ONNX Runtime itself takes; weft;
gloo and mpi, sessions with torch's Gloo or mpi4py (Open MPI) between them. A side whose package is missing is left out. The
sides run one after the other, several times; figures are medians over the repeats, in microseconds.

    build/venv/bin/python -m pip install mpi4py
"""
import os
import shutil
import subprocess
import sys

from sides import ROOT, compare, free_port, make_parser, run_program

NEEDS = {"none": None, "weft": None, "gloo": "torch", "mpi": "mpi4py.MPI"}
MPIRUN = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
# (row, side): least ratio of the side's time to Weft's
WANTED = {("all-reduce 4096", "gloo"): 10.0, ("all-reduce 4096", "mpi"): 1.5, ("all-reduce 1048576", "gloo"): 3.0,
          ("token", "gloo"): 2.0, ("token", "mpi"): 1.0}


def has(args, side):
    if side == "mpi" and not shutil.which(MPIRUN[0]):
        return False
    return NEEDS[side] is None or subprocess.run([args.python, "-c", f"import {NEEDS[side]}"], capture_output=True,
                                                 check=False).returncode == 0


def run(args, side):
    launcher = MPIRUN if side == "mpi" else [args.build / "weft", "run", "-n", "2", "--"]
    return run_program(args, side, [*launcher, args.python, ROOT / "tests" / "bench" / "peer_onnxruntime.py", side,
                                    f"localhost:{free_port()}"], dict(os.environ, PYTHONPATH=str(args.build / "python")))


def main():
    args = make_parser(__doc__, "venv/bin/python", "onnxruntime and onnx").parse_args()
    return compare(args, [side for side in NEEDS if has(args, side)], run, WANTED)


if __name__ == "__main__":
    sys.exit(main())
