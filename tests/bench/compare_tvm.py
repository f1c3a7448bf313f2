#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All-reduces between two workers of TVM's Disco on CPUs.

    weft        relax.op.ccl.allreduce in a compiled module, workers are processes
    threads     the same, workers are threads
    controller  the program fetches the tensors, adds them and sends the sum back: all that TVM has without Weft
    gloo        a function in Python that calls torch.distributed, called by a compiled module; if --torch has torch

The sides run one after the other, several times, so that whatever else the machine does hits all alike. A figure is the
fastest of 25 runs of up to 200 calls, and of these the median over the repeats, in microseconds.
"""
import os
import pathlib
import sys

from sides import ROOT, compare, make_parser, run_program

SIDES = {"weft": ("weft", "processes"), "threads": ("weft", "threads"), "controller": ("controller", "processes"),
         "gloo": ("gloo", "processes")}
# (row, side or None): most microseconds of Weft, or least ratio of the side's time to Weft's
WANTED = {("allreduce 4096", None): 5.0, ("allreduce 4096", "controller"): 50.0, ("allreduce 4096", "gloo"): 10.0}


def run(args, side):
    program = ROOT / "tests" / "bench" / "peer_tvm.py"
    environment = dict(os.environ, PYTHONPATH=f"{args.build / 'python'}:{program.parent}")
    return run_program(args, side, [args.python, program, *SIDES[side], args.torch], environment)


def main():
    parser = make_parser(__doc__, "tvm/bin/python", "tvm")
    parser.add_argument("--torch", type=pathlib.Path, default="/usr/lib/python3/dist-packages", help="folder that has torch")
    args = parser.parse_args()
    return compare(args, [side for side in SIDES if side != "gloo" or (args.torch / "torch").exists()], run, WANTED)


if __name__ == "__main__":
    sys.exit(main())
