#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiled steps of torch: Weft with its planner in Inductor against Gloo with Inductor's defaults, in one run.

    ddp LAYERS x WIDTH       a perceptron of so many layers, two gradients each, on two ranks with one thread, by DDP
    shards LAYERS x WIDTH    the same with parameters in shards, by weft.torch.inductor.fully_shard over both; "hooks" is
                             torch's own fully_shard, whose collectives are not in the compiled graphs

Exposed communication is the time of a step less that of the same compiled step without communication. All of them
alternate in the same processes. "step" is the tenth percentile of all steps, since other programs only add to them,
"cpu" the same of processor time, of both ranks together. Figures are medians over the repeats. On a machine that is
busy with other things only processor time can be compared: there a rank that sleeps in Gloo is preferred to one that
computes, and a step with communication may take less time than one without.

--venv FOLDER makes a virtual environment with the newest torch of PyPI there (several GB), unless there is one.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

import sides
from sides import ROOT

# Kind, layers, width, samples of each rank.
MODELS = (("ddp", 32, 256, 64), ("ddp", 32, 512, 64), ("shards", 32, 256, 64), ("shards", 32, 512, 64))
WANTED = 3.0  # least ratio of Gloo's exposed communication to Weft's, and of processor time added


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="build directory")
    parser.add_argument("--python", type=pathlib.Path, default=pathlib.Path(sys.executable),
                        help="interpreter that has torch 2.15 or later")
    parser.add_argument("--venv", type=pathlib.Path, help="make a virtual environment there and use it")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=30, help="blocks of each kind in a run")
    parser.add_argument("--steps", type=int, default=10, help="steps of a block")
    parser.add_argument("--kind", choices=("ddp", "shards"), help="the models of this kind only")
    parser.add_argument("--timeout", type=int, default=900, help="seconds one program may take")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--check", action="store_true", help="exit 1 when something wanted was missed")
    return parser.parse_args()


def run(args, model):
    """The result of one run."""
    environment = dict(os.environ, PYTHONPATH=str(args.build / "python"), TORCHINDUCTOR_COMPILE_THREADS="1",
                       OMP_NUM_THREADS="1")
    done = subprocess.run([str(args.build / "weft"), "run", "-n", "2", "--", str(args.python),
                           str(ROOT / "tests" / "bench" / "peer_torch_inductor.py"), *map(str, model),
                           str(args.blocks), str(args.steps)],
                          capture_output=True, text=True, timeout=args.timeout, env=environment, check=False)
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not results:
        raise RuntimeError(f"exit status {done.returncode}: {done.stderr.strip()[-1500:]}")
    return json.loads(results[0].removeprefix("RESULT "))


def row_of(runs):
    row = {key: runs[0][key] for key in ("gradients", "bytes", "buckets")}
    row["sides"] = [side for side in ("alone", "hooks_gloo", "hooks_weft", "gloo", "weft") if side in runs[0]]
    for side in row["sides"]:
        row[side] = {key: statistics.median(one[side][key] for one in runs) for key in ("step", "median", "cpu")}
    for side in row["sides"][1:]:
        for name, key in (("exposed", "step"), ("exposed_median", "median"), ("cpu_added", "cpu")):
            row[side][name] = row[side][key] - row["alone"][key]
    return row


def main():
    args = parse_arguments()
    if args.venv is not None:
        args.python = sides.make_venv(args.venv, "torch", "numpy")
    rows, missed = {}, []
    for model in MODELS:
        if args.kind not in (None, model[0]):
            continue
        name = f"{model[0]} {model[1]} x {model[2]}"
        runs = []
        for number in range(args.repeats):
            runs.append(run(args, model))
            print(f"{name}, run {number + 1} of {args.repeats}: {json.dumps(runs[-1])}", file=sys.stderr, flush=True)
        row = rows[name] = row_of(runs)
        for key in ("exposed", "exposed_median", "cpu_added"):
            gloo, own = row["gloo"][key], row["weft"][key]
            row[f"ratio_{key}"] = gloo / own if own > 0 and gloo > 0 else None
            if row[f"ratio_{key}"] is not None and row[f"ratio_{key}"] < WANTED:
                missed.append(f"{name}: {key} of Gloo is {row[f'ratio_{key}']:.1f} times Weft's: wanted {WANTED}")
    if args.json:
        print(json.dumps(rows, indent=1))
    else:
        print(f"{'ms':10}{'':12}{'step':>8}{'exposed':>9}{'median':>9}{'exposed':>9}{'cpu':>8}{'added':>8}")
        for name, row in rows.items():
            print(f"{name}: {row['gradients']} gradients, {row['bytes'] / 1e6:.1f} MB, Weft's buckets {row['buckets']}")
            for side in row["sides"]:
                keys = ("step", "exposed", "median", "exposed_median", "cpu", "cpu_added")
                numbers = [row[side].get(key) for key in keys]
                cells = ["" if number is None else f"{number / 1e3:.2f}" for number in numbers]
                print(f"{'':10}{side:12}{cells[0]:>8}{cells[1]:>9}{cells[2]:>9}{cells[3]:>9}{cells[4]:>8}{cells[5]:>8}")
            ratios = [row[f"ratio_{key}"] for key in ("exposed", "exposed_median", "cpu_added")]
            words = ["not measurable" if ratio is None else f"{ratio:.1f}" for ratio in ratios]
            print(f"{'':10}{'gloo / weft':20}{words[0]:>9}{'':9}{words[1]:>9}{'':8}{words[2]:>8}")
        for line in missed:
            print(f"missed: {line}")
    return 1 if args.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
