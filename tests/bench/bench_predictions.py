#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicted and measured times of a step on one host: models, numbers of ranks, sources of kernel times.

usage: bench_predictions.py WEFT [RUNS] [--ranks N,N,..] [--model MODEL.onnx:BATCH:DATA]..

Each of RUNS (default 5) rounds takes every model and number of ranks: measures a calibration, runs two ranks with
a profile of kernels, and then that number of ranks, one right after the other, as the speed of a shared machine
changes. Prints one line of JSON per model and number of ranks: the medians over the rounds of the measured step (less
the time in which ranks load their data) and of its ratios, which are predicted / measured: from the calibration
("costs"), from the profile of two ranks ("pair"), which says nothing of one rank, whose kernels have more threads,
and from the profile of the run itself ("own"), where the machine's speed is the same and only the rest is predicted.
Without --model: the sample models.
"""
import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import tempfile

MODELS = pathlib.Path(__file__).resolve().parents[2] / "samples" / "models"
TOGETHER = 8  # steps: where ranks share a core, one may begin the next step before another has ended this one
DATA = "/usr/share/datasets/fashion-mnist"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weft")
    parser.add_argument("runs", type=int, nargs="?", default=5)
    parser.add_argument("--ranks", default="1,2,3,4,8")
    parser.add_argument("--steps", type=int, default=100, help="of a run")
    parser.add_argument("--model", action="append")
    options = parser.parse_args()
    models = [model.split(":") for model in options.model or [f"{MODELS / name}.onnx:64:{DATA}" for name in ("mlp", "lenet")]]
    ranks = [int(number) for number in options.ranks.split(",")]
    rows = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        environment = {**os.environ, "XDG_CACHE_HOME": name}
        environment.pop("WEFT_COSTS", None)

        def run(*arguments):
            done = subprocess.run([options.weft, *map(str, arguments)], env=environment, capture_output=True, text=True,
                                  check=True)
            return done.stdout

        def simulate(plan, *arguments):
            return json.loads(run("simulate", plan, "--costs", costs, *arguments, "--json"))["step_us"]

        def compiled(model, batch, number):
            plan = folder / f"{pathlib.Path(model).stem}.{batch}.{number}.weft"
            if not plan.exists():
                run("compile", model, "-o", plan, "--world", number, "--batch", batch, "--costs", costs)
            return plan

        def measure(plan, number, data, profile):
            run("run", plan, "-n", number, "--data", data, "--steps", options.steps, "--no-eval", "--write-profile", profile,
                "--report", folder / "report")
            times = json.loads((folder / "report" / "run.json").read_text())["ranks"][0]["ms"]
            step = statistics.median(statistics.fmean(times[i:i + TOGETHER]) for i in range(len(times) - TOGETHER)) * 1e3
            return step, statistics.median(times) * 1e3 - json.loads(profile.read_text())["step_ns"] * 1e-3

        costs, pair, profile = (folder / f"{name}.json" for name in ("costs", "pair", "profile"))
        for _ in range(options.runs):
            for model, batch, data in models:
                for number in ranks:
                    run("tune", "--quick", "-o", costs)
                    plan = compiled(model, batch, number)
                    _, loading = measure(compiled(model, batch, 2), 2, data, pair)
                    step, _ = measure(plan, number, data, profile)
                    step -= loading * math.ceil(number / len(os.sched_getaffinity(0)))  # which no plan has
                    by_pair = simulate(plan, "--profile", pair) / step if number > 1 else math.nan
                    rows.setdefault((pathlib.Path(model).stem, number), []).append(
                        (step, simulate(plan) / step, by_pair, simulate(plan, "--profile", profile) / step))
    for (model, number), row in rows.items():
        step, by_costs, by_pair, by_own = map(statistics.median, zip(*row))
        print(json.dumps({"name": f"{model}, {number} rank{'s' if number > 1 else ''}", "measured_us": round(step, 1),
                          "costs_ratio": round(by_costs, 2),
                          "pair_ratio": round(by_pair, 2) if number > 1 else None, "own_ratio": round(by_own, 2)}))


if __name__ == "__main__":
    main()
