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
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIDES = {"weft": ("weft", "processes"), "threads": ("weft", "threads"), "controller": ("controller", "processes"),
         "gloo": ("gloo", "processes")}
# (row, side or None): most microseconds of Weft, or least ratio of the side's time to Weft's
WANTED = {("allreduce 4096", None): 5.0, ("allreduce 4096", "controller"): 50.0, ("allreduce 4096", "gloo"): 10.0}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="build directory")
    parser.add_argument("--python", type=pathlib.Path, default=ROOT / "build" / "tvm" / "bin" / "python",
                        help="interpreter that has tvm")
    parser.add_argument("--torch", type=pathlib.Path, default="/usr/lib/python3/dist-packages", help="folder that has torch")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--timeout", type=int, default=300, help="seconds one program may take")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--check", action="store_true", help="exit 1 when something wanted was missed")
    return parser.parse_args()


def run(args, side):
    """Row -> microseconds of one run of a side."""
    program = ROOT / "tests" / "bench" / "peer_tvm.py"
    environment = dict(os.environ, PYTHONPATH=f"{args.build / 'python'}:{program.parent}")
    done = subprocess.run([str(args.python), str(program), *SIDES[side], str(args.torch)], capture_output=True, text=True,
                          timeout=args.timeout, env=environment, check=False)
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not results:
        raise RuntimeError(f"{side}: exit status {done.returncode}: {done.stderr.strip()[-500:]}")
    return json.loads(results[0].removeprefix("RESULT "))


def main():
    args = parse_arguments()
    sides = [side for side in SIDES if side != "gloo" or (args.torch / "torch").exists()]
    seen = {}
    for _ in range(args.repeats):
        for side in sides:
            for row, us in run(args, side).items():
                seen.setdefault(row, {}).setdefault(side, []).append(us)
    medians = {row: {side: statistics.median(values) for side, values in by.items()} for row, by in seen.items()}
    missed = []
    for (row, side), limit in WANTED.items():
        if side is None and medians[row]["weft"] > limit:
            missed.append(f"{row}: {medians[row]['weft']:.2f} us, wanted at most {limit:g}")
        elif side in sides and medians[row][side] / medians[row]["weft"] < limit:
            missed.append(f"{row}: {side} takes {medians[row][side] / medians[row]['weft']:.2f} times as long, "
                          f"wanted at least {limit:g}")
    if args.json:
        print(json.dumps({"rows": medians, "missed": missed}))
    else:
        print(f"{'us':20}" + "".join(f"{side:>12}" for side in sides) + "".join(f"{side + '/weft':>17}" for side in sides[1:]))
        for row, by in medians.items():
            print(f"{row:20}" + "".join(f"{by[side]:12.2f}" for side in sides)
                  + "".join(f"{by[side] / by['weft']:17.2f}" for side in sides[1:]))
        print("\n".join(f"missed: {line}" for line in missed) or "all targets met")
    return 1 if args.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
