#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps of real models: Weft's compiled plans, torch's DDP over Gloo, and DDP over weft.torch, side by side.

    PYTHONPATH=build/python tests/bench/compare_models.py --python /path/to/venv/bin/python

A side runs as N ranks of its own, the sides one after the other, several times: median seconds per step, processor
seconds per step and rank (which other programs on the machine disturb less), peak memory of a rank (peak_memory.py), and ratios.
All train the same model from random weights with SGD and momentum on the same shapes: images of 224 x 224, or 128
words. The interpreter needs the newest torch, torchvision, transformers and numpy.

Goals, as ratios of DDP over Gloo to Weft on 2 ranks of one thread each: ResNet-50 1.57 (a step of 32 images per rank in
4.0 s where DDP takes 6.3), GPT-2 small 2.19 (9.0 s, 19.7), VGG-16 1.33 (7.0 s, 9.3), BERT-base 1.3; peak memory at most
that of DDP. Defaults need some 16 GiB and many minutes; on a small machine: --batch 4 --accumulate 1 --steps 2.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PEER = HERE / "peer_torch_models.py"
SIDES = ("weft", "ddp_gloo", "ddp_weft")
# Samples per rank and micro-batch, micro-batches per step, goal. 2 ranks train ResNet-50 with 256 images per step.
MODELS = {"resnet50": (32, 4, 1.57), "bert": (8, 1, 1.3), "gpt2": (8, 1, 2.19), "vgg16": (16, 1, 1.33)}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="build directory")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has torch")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("--batch", type=int, help="samples per rank and micro-batch; default: by model")
    parser.add_argument("--accumulate", type=int, help="micro-batches per step; default: by model")
    parser.add_argument("--steps", type=int, default=5, help="measured steps, after one")
    parser.add_argument("--repeats", type=int, default=2, help="turns of each side")
    parser.add_argument("--exports", type=pathlib.Path, help="folder that keeps the exported models")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--check", action="store_true", help="exit 1 when a goal is missed")
    parser.add_argument("--session", metavar="PLAN", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_session(args):
    """One rank of side weft."""
    import numpy as np  # pylint: disable=import-outside-toplevel
    import peak_memory  # pylint: disable=import-outside-toplevel
    import weft  # pylint: disable=import-outside-toplevel

    context = weft.init()
    random = np.random.default_rng(context.rank)
    with weft.Session(args.session) as session:
        inputs = [entry for entry in session.plan.bindings if entry["role"] in ("input", "label")]

        def draw(entry):
            shape = entry["shape"]
            return random.standard_normal(shape, "float32") if "float" in str(entry["dtype"]) or "f32" in str(entry["dtype"]) \
                else random.integers(0, 1000, shape)

        times, processor, loss = [], [], None
        for _ in range(args.steps + 1):
            batches = [[draw(entry) for entry in inputs] for _ in range(args.accumulate)]
            context.barrier()
            begin, used = time.perf_counter(), time.process_time()
            for batch in batches[:-1]:
                session.micro_step(*batch)
            loss = session.step(*batches[-1])
            times.append(time.perf_counter() - begin)
            processor.append(time.process_time() - used)
        peaks = weft.all_gather(np.array([peak_memory.peak_memory()], "int64"))
        if context.rank == 0:
            print(json.dumps({"times_s": times[1:], "processor_s": processor[1:], "peak_bytes": np.ravel(peaks).tolist(),
                              "loss": float(loss)}))


def run(command, **environment):
    """The last line that a program prints, as JSON; (None, why)."""
    try:
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=3600, check=False,
                              env=dict(os.environ, **environment))
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    if done.returncode != 0:
        return None, lines[-1] if lines else f"exit status {done.returncode}"
    return json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}, None


def launch(args, side, model, folder, batch, accumulate):
    tool = args.build / "weft"
    start = [tool, "run", "-n", args.ranks, "--", args.python]
    sizes = ["--batch", batch, "--accumulate", accumulate, "--steps", args.steps]
    if side == "weft":
        return run([*start, __file__, "--session", folder / f"{model}.weft", *sizes])
    store = pathlib.Path(tempfile.mkdtemp(dir=folder)) / "store"
    threads = max(1, len(os.sched_getaffinity(0)) // args.ranks)
    return run([*start, PEER, model, *sizes, "--threads", threads, "--backend", side[4:], "--store", store], WEFT_BIND="none",
               OMP_NUM_THREADS=str(threads))


def compile_model(args, model, folder, batch, accumulate):
    """Seconds of a compilation, or (None, why)."""
    path = (args.exports or folder) / f"{model}.onnx"
    if not path.exists():
        _, why = run([args.python, PEER, model, "--export", path])
        if why:
            return None, f"export: {why}"
    begin = time.perf_counter()
    _, why = run([args.build / "weft", "compile", path, "-o", folder / f"{model}.weft", "-n", args.ranks, "--batch", batch,
                  "--accumulate", accumulate, "--loss", "loss", "--optimizer", "momentum", "--lr", 0.01])
    return (None, f"compile: {why}") if why else (time.perf_counter() - begin, None)


def compare(args, model):
    batch, accumulate, goal = args.batch or MODELS[model][0], args.accumulate or MODELS[model][1], MODELS[model][2]
    result = {"model": model, "ranks": args.ranks, "batch": batch, "accumulate": accumulate, "goal": goal, "sides": {},
              "missing": {}, "ratios": {}}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        result["compile_s"], why = compile_model(args, model, folder, batch, accumulate)
        if why:
            result["missing"]["weft"] = why
        for _ in range(args.repeats):
            for side in args.sides:
                if side in result["missing"]:
                    continue
                done, why = launch(args, side, model, folder, batch, accumulate)
                if why:
                    result["missing"][side] = why
                    continue
                into = result["sides"].setdefault(side, {"times_s": [], "processor_s": [], "peak_bytes": 0})
                into["times_s"] += done["times_s"]
                into["processor_s"] += done["processor_s"]
                into["peak_bytes"] = max(into["peak_bytes"], *done["peak_bytes"])
    for side in result["sides"].values():
        side["step_s"] = statistics.median(side["times_s"])
        side["step_processor_s"] = statistics.median(side["processor_s"])
    sides = result["sides"]
    if "weft" in sides and "ddp_gloo" in sides:
        for name in ("step_s", "step_processor_s", "peak_bytes"):
            result["ratios"][name] = sides["ddp_gloo"][name] / sides["weft"][name]
    result["load"], result["cpus"] = os.getloadavg()[0], len(os.sched_getaffinity(0))
    return result


def show(result):
    compiled = f", compiled in {result['compile_s']:.1f} s" if result["compile_s"] else ""
    print(f"{result['model']}: {result['ranks']} ranks, {result['accumulate']} x {result['batch']} samples per rank and step{compiled}, "
          f"load {result['load']:.1f} on {result['cpus']} CPUs")
    for name, side in result["sides"].items():
        print(f"  {name:9} {side['step_s']:7.2f} s per step   {side['step_processor_s']:7.2f} s of a processor   "
              f"peak {side['peak_bytes'] / 2**30:6.2f} GiB")
    for name, why in result["missing"].items():
        print(f"  {name:9} skipped: {why}")
    if result["ratios"]:
        ratios = result["ratios"]
        print(f"  ddp_gloo / weft: time {ratios['step_s']:.2f} (goal {result['goal']}), processor {ratios['step_processor_s']:.2f}, "
              f"memory {ratios['peak_bytes']:.2f} (goal 1)")


def main():
    args = parse_arguments()
    if args.session:
        return run_session(args)
    if args.exports:
        args.exports.mkdir(parents=True, exist_ok=True)
    results = []
    for model in args.models:
        results.append(compare(args, model))
        if not args.json:
            show(results[-1])
    if args.json:
        print(json.dumps({"comparison": results}))
    good = all(r["ratios"] and r["ratios"]["step_s"] >= r["goal"] and r["ratios"]["peak_bytes"] >= 1 for r in results)
    return 1 if args.check and not good else 0


if __name__ == "__main__":
    sys.exit(main())
