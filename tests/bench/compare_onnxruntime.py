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
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "support"))
from program import free_port  # noqa: E402

NEEDS = {"none": None, "weft": None, "gloo": "torch", "mpi": "mpi4py.MPI"}
MPIRUN = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
# (row, side): least ratio of the side's time to Weft's
WANTED = {("all-reduce 4096", "gloo"): 10.0, ("all-reduce 4096", "mpi"): 1.5, ("all-reduce 1048576", "gloo"): 3.0,
          ("token", "gloo"): 2.0, ("token", "mpi"): 1.0}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="build directory")
    parser.add_argument("--python", type=pathlib.Path, default=ROOT / "build" / "venv" / "bin" / "python",
                        help="interpreter that has onnxruntime and onnx")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--timeout", type=int, default=300, help="seconds one program may take")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--check", action="store_true", help="exit 1 when something wanted was missed")
    return parser.parse_args()


def has(args, side):
    if side == "mpi" and not shutil.which(MPIRUN[0]):
        return False
    return NEEDS[side] is None or subprocess.run([args.python, "-c", f"import {NEEDS[side]}"], capture_output=True,
                                                 check=False).returncode == 0


def run(args, side):
    """Row -> microseconds of one run of a side."""
    launcher = MPIRUN if side == "mpi" else [str(args.build / "weft"), "run", "-n", "2", "--"]
    environment = dict(os.environ, PYTHONPATH=str(args.build / "python"))
    done = subprocess.run([*launcher, str(args.python), str(ROOT / "tests" / "bench" / "peer_onnxruntime.py"), side,
                           f"localhost:{free_port()}"],
                          capture_output=True, text=True, timeout=args.timeout, env=environment, check=False)
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not results:
        raise RuntimeError(f"{side}: exit status {done.returncode}: {done.stderr.strip()[-500:]}")
    return json.loads(results[0].removeprefix("RESULT "))


def main():
    args = parse_arguments()
    sides = [side for side in NEEDS if has(args, side)]
    seen = {}
    for _ in range(args.repeats):
        for side in sides:
            for row, us in run(args, side).items():
                seen.setdefault(row, {}).setdefault(side, []).append(us)
    medians = {row: {side: statistics.median(values) for side, values in by.items()} for row, by in seen.items()}
    ratios = {row: {side: by[side] / by["weft"] for side in sides[2:]} for row, by in medians.items()}
    missed = [f"{row}: {side} takes {ratios[row][side]:.2f} times as long, wanted at least {limit:g}"
              for (row, side), limit in WANTED.items() if side in sides and ratios[row][side] < limit]
    if args.json:
        print(json.dumps({"rows": medians, "ratios": ratios, "missed": missed}))
    else:
        print(f"{'us':20}" + "".join(f"{side:>10}" for side in sides) + "".join(f"{side + '/weft':>11}" for side in sides[2:]))
        for row, by in medians.items():
            print(f"{row:20}" + "".join(f"{by[side]:10.1f}" for side in sides)
                  + "".join(f"{ratios[row][side]:11.2f}" for side in sides[2:]))
        print("\n".join(f"missed: {line}" for line in missed) or "all targets met")
    return 1 if args.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
