#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicted and measured times of a step: sample models, one and two ranks, default and measured costs.

usage: bench_predictions.py WEFT [RUNS]

Measures a calibration in a temporary folder, then prints one line of JSON per model, number of ranks and
table of costs. Measured times are medians over RUNS (default 5) of the median step and update.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

MODELS = pathlib.Path(__file__).resolve().parents[2] / "samples" / "models"
DATA = "/usr/share/datasets/fashion-mnist"
UPDATES = ("SGD", "Momentum", "Adam")


def profile_option(weft):
    """`weft run` writes a profile with --write-profile, in older versions with --profile."""
    text = subprocess.run([weft, "run", "--help"], capture_output=True, text=True, check=True).stdout
    return "--write-profile" if "--write-profile" in text else "--profile"


def main():
    weft = sys.argv[1]
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        environment = {**os.environ, "XDG_CACHE_HOME": name}
        environment.pop("WEFT_COSTS", None)

        def run(*arguments):
            done = subprocess.run([weft, *map(str, arguments)], env=environment, capture_output=True, text=True,
                                  check=True)
            return done.stdout

        begin = time.monotonic()
        run("tune", "--quick")
        print(json.dumps({"name": "weft tune --quick", "s": round(time.monotonic() - begin, 2)}))
        option = profile_option(weft)
        for model in ("mlp", "lenet"):
            for ranks in (1, 2):
                plans = {}
                for costs in ("default", "measured"):
                    plan = folder / f"{costs}.weft"
                    run("compile", MODELS / f"{model}.onnx", "-o", plan, "--world", ranks, "--batch", 64,
                        *(["--costs", "default"] if costs == "default" else []))
                    plans[costs] = json.loads(run("explain", plan, "--json"))
                steps, updates = [], []
                for _ in range(runs):
                    profile = folder / "profile.json"
                    run("run", folder / "measured.weft", "-n", ranks, "--data", DATA, "--steps", 300, "--no-eval",
                        option, profile)
                    measured = json.loads(profile.read_text())
                    steps.append(measured["step_ns"] * 1e-3)
                    updates.append(sum(k["ns"] for k in measured["kernels"] if k["op"] in UPDATES) * 1e-3)
                step, update = statistics.median(steps), statistics.median(updates)
                for costs, forecast in plans.items():
                    predicted = forecast["predicted_step_us"]
                    print(json.dumps({
                        "name": f"{model}, {ranks} rank{'s' if ranks > 1 else ''}", "costs": costs,
                        "predicted_step_us": round(predicted, 1), "measured_step_us": round(step, 1),
                        "step_ratio": round(predicted / step, 2),
                        "predicted_update_us": round(forecast["update_us"], 1), "measured_update_us": round(update, 1),
                        "update_ratio": round(forecast["update_us"] / update, 2) if update > 0 else None}))


if __name__ == "__main__":
    main()
