#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Collectives of JAX over Weft, Gloo and MPICH, in one run.

    psum SIZE   a psum of SIZE bytes per rank inside of a compiled loop
    step        a data-parallel step with 64 gradients of 16 KiB, each with its own pmean
    step, operator    the same with one weft.jax.all_reduce for all gradients

Two ranks. The sides run one after the other, several times, so that whatever else the machine does hits all alike;
figures are medians over the repeats, in microseconds.

JAX calls MPICH through MPIwrapper, which neither Debian nor PyPI has. With its sources (github.com/eschnett/MPIwrapper),
libmpich-dev and gfortran:

    cmake -S MPIwrapper -B mpiwrapper -DMPI_C_COMPILER=mpicc.mpich -DMPI_CXX_COMPILER=mpicxx.mpich \\
        -DMPI_Fortran_COMPILER=mpifort.mpich -DMPIEXEC_EXECUTABLE=/usr/bin/mpiexec.hydra && cmake --build mpiwrapper

Without --mpiwrapper MPICH is left out.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "support"))
from program import free_port  # noqa: E402

# (row, side or None): most microseconds of Weft, or least ratio of the side's time to Weft's
WANTED = {("psum 4096", None): 2.0, ("psum 4096", "gloo"): 50.0, ("psum 65536", "mpich"): 2.0,
          ("psum 1048576", "mpich"): 2.0, ("psum 16777216", "mpich"): 2.0}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="build directory")
    parser.add_argument("--python", type=pathlib.Path, default=ROOT / "build" / "jax" / "bin" / "python",
                        help="interpreter that has jax")
    parser.add_argument("--mpiwrapper", help="libmpiwrapper.so for MPICH")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--timeout", type=int, default=300, help="seconds one program may take")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--check", action="store_true", help="exit 1 when something wanted was missed")
    return parser.parse_args()


def run(args, side):
    """Row -> microseconds of one run of a side."""
    launcher = ["mpiexec.hydra", "-n", "2"] if side == "mpich" else [str(args.build / "weft"), "run", "-n", "2", "--"]
    # UCX, under MPICH, does not survive a look at the environment where jaxlib loads it.
    environment = dict(os.environ, PYTHONPATH=str(args.build / "python"), UCX_WARN_UNUSED_ENV_VARS="n")
    done = subprocess.run([*launcher, str(args.python), str(ROOT / "tests" / "bench" / "peer_jax.py"),
                           args.mpiwrapper if side == "mpich" else side, f"localhost:{free_port()}"],
                          capture_output=True, text=True, timeout=args.timeout, env=environment, check=False)
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not results:
        raise RuntimeError(f"{side}: exit status {done.returncode}: {done.stderr.strip()[-500:]}")
    return json.loads(results[0].removeprefix("RESULT "))


def main():
    args = parse_arguments()
    sides = ["weft", "gloo", *(["mpich"] if args.mpiwrapper else [])]
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
        print(f"{'us':16}" + "".join(f"{side:>12}" for side in sides) + "".join(f"{side + '/weft':>14}" for side in sides[1:]))
        for row, by in medians.items():
            print(f"{row:16}" + "".join(f"{by[side]:12.2f}" if side in by else " " * 12 for side in sides)
                  + "".join(f"{by[side] / by['weft']:14.2f}" for side in sides[1:] if side in by))
        print("\n".join(f"missed: {line}" for line in missed) or "all targets met")
    return 1 if args.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
