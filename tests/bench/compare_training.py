#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Floor, Weft and torch DDP + Gloo side by side: median milliseconds per training step.

Runs the three one after the other, and that several times, so that whatever else the machine does hits all
alike. Every side trains on its own with the same model, batch and number of ranks, and reports the median
of single steps; the table shows the median of those medians. The DDP column is left out where torch is missing.
"""
import argparse
import glob
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
WEFT_SIDES = {"weft": (), "sharded": ("--shard-parameters",)}  # sharded parameters have no target
TARGETS = {"mlp": {"over_floor": 1.4, "ddp_over_weft": 5.0}, "lenet": {"ddp_over_weft": 2.0}}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=os.path.join(ROOT, "build"), help="build directory")
    parser.add_argument("--model", choices=sorted(TARGETS), action="append", help="default: all")
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64, help="samples per rank")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--python", default="/usr/bin/python3", help="interpreter that has torch")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    return parser.parse_args()


def environment(side):
    """The peer gets the fastest BLAS that Debian packages, whatever alternatives select; one thread per rank."""
    changed = dict(os.environ, OPENBLAS_NUM_THREADS="1")
    found = glob.glob("/usr/lib/*/openblas-pthread/libblas.so.3")
    if side == "ddp" and found:
        changed["LD_LIBRARY_PATH"] = os.path.dirname(found[0])
    return changed


def run(side, command):
    """A program's output, or its last line, as JSON; (None, why) when it did not work."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False,
                              env=environment(side))
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return None, lines[-1] if lines else f"exit status {done.returncode}"
    text = done.stdout.strip()
    for candidate in (text, text.splitlines()[-1] if text else ""):
        try:
            return json.loads(candidate), None
        except ValueError:
            pass
    return None, "no JSON was printed"


def commands(args, model, directory):
    tool = os.path.join(args.build, "weft")
    onnx = os.path.join(ROOT, "samples", "models", f"{model}.onnx")
    sides = {}
    if model == "mlp" and args.ranks == 2:
        sides["floor"] = [os.path.join(args.build, "tests", "bench", "bench_floor_mlp"), "--steps",
                          str(args.steps), "--batch", str(args.batch), "--data", args.data]
    for side, options in WEFT_SIDES.items():
        plan = os.path.join(directory, f"{model}-{side}.weft")
        made = subprocess.run([tool, "compile", onnx, "-o", plan, "--world", str(args.ranks), "--batch",
                               str(args.batch), *options], capture_output=True, text=True, check=False)
        if made.returncode != 0:
            sys.exit(f"compare_training: weft compile: {made.stderr.strip()}")
        sides[side] = [tool, "run", plan, "-n", str(args.ranks), "--data", args.data, "--steps", str(args.steps),
                       "--json"]
    sides["ddp"] = [args.python, os.path.join(HERE, "peer_torch_ddp.py"), "--model", model, "-n",
                    str(args.ranks), "--steps", str(args.steps), "--batch", str(args.batch), "--data",
                    args.data]
    return sides


def compare(args, model):
    times, details, missing = {}, {}, {}
    with tempfile.TemporaryDirectory() as directory:
        sides = commands(args, model, directory)
        for _ in range(args.repeats):
            for side, command in sides.items():
                if side in missing:
                    continue
                result, why = run(side, command)
                if result is None:
                    missing[side] = why
                    continue
                times.setdefault(side, []).append(result["step_ms_p50"])
                details[side] = {key: result[key] for key in ("blas", "torch", "comm_ms_p50", "compute_ms_p50",
                                                              "exposed_comm_ms_p50", "loss_last", "arena_bytes")
                                 if key in result}
    medians = {side: statistics.median(values) for side, values in times.items() if side not in missing}
    ratios = {}
    if "floor" in medians and "weft" in medians:
        ratios["over_floor"] = medians["weft"] / medians["floor"]
    if "ddp" in medians and "weft" in medians:
        ratios["ddp_over_weft"] = medians["ddp"] / medians["weft"]
    return {"model": model, "ranks": args.ranks, "batch": args.batch, "steps": args.steps,
            "step_ms_p50": times, "median": medians, "ratios": ratios, "targets": TARGETS[model],
            "missing": missing, "details": details, "cpus": len(os.sched_getaffinity(0)),
            "load": os.getloadavg()[0]}


def met(result):
    checks = []
    for name, target in result["targets"].items():
        if name in result["ratios"]:
            value = result["ratios"][name]
            checks.append((name, value, target, value <= target if name == "over_floor" else value >= target))
    return checks


def show(result):
    print(f"{result['model']}: {result['ranks']} ranks, batch {result['batch']} per rank, "
          f"{result['steps']} steps, load {result['load']:.1f} on {result['cpus']} CPUs")
    for side in ("floor", *WEFT_SIDES, "ddp"):
        if side in result["missing"]:
            print(f"  {side:7} skipped: {result['missing'][side]}")
        elif side in result["median"]:
            runs = " ".join(f"{value:9.3f}" for value in result["step_ms_p50"][side])
            note = result["details"][side].get("blas", "")
            note = note if isinstance(note, str) else ", ".join(note)
            print(f"  {side:7} {result['median'][side]:9.3f} ms per step   runs {runs}   {note}")
            if side == "ddp" and "openblas" not in note and "mkl" not in note:
                print("         torch has a slow BLAS: install libopenblas0-pthread for a fair comparison")
    for name, value, target, good in met(result):
        relation = "at most" if name == "over_floor" else "at least"
        print(f"  {name} {value:.2f}, {relation} {target} wanted: {'met' if good else 'MISSED'}")


def main():
    args = parse_arguments()
    results = [compare(args, model) for model in args.model or sorted(TARGETS, reverse=True)]
    if not args.json:
        for result in results:
            show(result)
    print(json.dumps({"comparison": results}))
    bad = [r["model"] for r in results if "weft" in r["missing"] or not all(c[3] for c in met(r))]
    return 1 if args.check and bad else 0


if __name__ == "__main__":
    sys.exit(main())
