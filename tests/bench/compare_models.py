#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps of real models: Weft's compiled plans, torch's DDP over Gloo, and DDP over weft.torch, side by side.

    PYTHONPATH=build/python tests/bench/compare_models.py --python /path/to/venv/bin/python

A side runs as N ranks of its own, the sides one after the other, several times. The table at the end has median seconds
per step, processor seconds per step and rank (which other programs on the machine disturb less), peak memory of a rank
(peak_memory.py), and the ratio of each to Weft's plan. All train the same model from random weights with SGD and momentum
on the same shapes: images of 224 x 224, or 128 words. The interpreter needs the newest torch, torchvision, transformers
and numpy. Side recompute is Weft's plan with --recompute auto and --share of the arena that the other plan needs, or the
least that is possible.

Memory grows with the micro-batch (--batch), time with the samples of all ranks in a step (--global-batch): a rank
accumulates the gradients of GLOBAL / (N * BATCH) micro-batches. ResNet-50 takes 256 images per step: 4 x 32 on each of 2
ranks, 16 x 8 with --batch 8.

Goals, as ratios of DDP over Gloo to Weft on 2 ranks of one thread each: ResNet-50 1.57 (a step of 32 images per rank in
4.0 s where DDP takes 6.3), GPT-2 small 2.19 (9.0 s, 19.7), VGG-16 1.33 (7.0 s, 9.3), BERT-base 1.3; peak memory at most
that of DDP. Defaults need some 10 GiB and half an hour; for a quick look: --batch 4 --global-batch 8 --steps 1 --repeats 1.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PEER = HERE / "peer_torch_models.py"
SIDES = ("weft", "recompute", "ddp_gloo", "ddp_weft")
# Samples per rank and micro-batch, samples of all ranks per step, goal.
MODELS = {"resnet50": (32, 256, 1.57), "bert": (8, 16, 1.3), "gpt2": (8, 16, 2.19), "vgg16": (16, 32, 1.33),
          "vit_b_16": (8, 16, None), "t5": (8, 16, None), "llama": (4, 8, None)}
MEASURES = ("step_s", "step_processor_s", "peak_bytes")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="build directory")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has torch")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[name for name in MODELS if MODELS[name][2]],
                        help="default: those that have a goal")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=["weft", "ddp_gloo", "ddp_weft"])
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("--batch", type=int, help="samples per rank and micro-batch; default: by model")
    parser.add_argument("--global-batch", type=int, help="samples of all ranks per step; default: by model")
    parser.add_argument("--share", type=float, default=0.75, help="side recompute: arena limit, in arenas of side weft; default 0.75")
    parser.add_argument("--steps", type=int, default=5, help="measured steps, after one")
    parser.add_argument("--repeats", type=int, default=2, help="turns of each side")
    parser.add_argument("--exports", type=pathlib.Path, help="folder that keeps the exported models")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--check", action="store_true", help="exit 1 when a goal is missed")
    parser.add_argument("--session", metavar="PLAN", help=argparse.SUPPRESS)
    parser.add_argument("--accumulate", type=int, help=argparse.SUPPRESS)  # with --session
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
    """The JSON that a program prints, as its last line or as the whole of it; (None, why)."""
    try:
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=3600, check=False,
                              env=dict(os.environ, **environment))
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    if done.returncode != 0:
        return None, lines[-1] if lines else f"exit status {done.returncode}"
    return json.loads(lines[-1] if lines[-1].startswith("{") else done.stdout) if lines and "{" in done.stdout else {}, None


def launch(args, side, model, folder, batch, accumulate):
    start = [args.build / "weft", "run", "-n", args.ranks, "--", args.python]
    sizes = ["--batch", batch, "--accumulate", accumulate, "--steps", args.steps]
    if not side.startswith("ddp_"):
        return run([*start, __file__, "--session", folder / f"{side}.weft", *sizes])
    store = pathlib.Path(tempfile.mkdtemp(dir=folder)) / "store"
    threads = max(1, len(os.sched_getaffinity(0)) // args.ranks)
    return run([*start, PEER, model, *sizes, "--threads", threads, "--backend", side[4:], "--store", store], WEFT_BIND="none",
               OMP_NUM_THREADS=str(threads))


def compile_model(args, model, folder, batch, accumulate):
    """Writes the plans; why the first that is missing could not be made."""
    path = (args.exports or folder) / f"{model}.onnx"
    if not path.exists():
        _, why = run([args.python, PEER, model, "--export", path])
        if why:
            return {"weft": f"export: {why}", "recompute": "no export"}
    command = [args.build / "weft", "compile", path, "-n", args.ranks, "--batch", batch, "--accumulate", accumulate, "--loss", "loss",
               "--optimizer", "momentum", "--lr", 0.01, "--json", "-o"]
    done, why = run([*command, folder / "weft.weft"])
    if why:
        return {"weft": f"compile: {why}", "recompute": "no plan without it"}
    if "recompute" in args.sides:
        command += [folder / "recompute.weft", "--recompute", "auto", "--arena-limit"]
        _, why = run([*command, int(args.share * done["arena_bytes"])])
        least = re.search(r"the plan needs .* \((\d+) bytes\)", why or "")
        if least:
            _, why = run([*command, least[1]])
    return {"recompute": f"compile: {why}"} if why else {}


def compare(args, model):
    batch, samples, goal = args.batch or MODELS[model][0], args.global_batch or MODELS[model][1], MODELS[model][2]
    accumulate = samples // (args.ranks * batch)
    if accumulate * args.ranks * batch != samples:
        sys.exit(f"{model}: {samples} samples per step cannot be divided into micro-batches of {batch} on {args.ranks} ranks")
    result = {"model": model, "ranks": args.ranks, "batch": batch, "accumulate": accumulate, "goal": goal, "sides": {}}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        result["missing"] = missing = compile_model(args, model, folder, batch, accumulate)
        for _ in range(args.repeats):
            for side in args.sides:
                if side in missing:
                    continue
                done, why = launch(args, side, model, folder, batch, accumulate)
                if why:
                    missing[side] = why
                    continue
                into = result["sides"].setdefault(side, {"times_s": [], "processor_s": [], "peak_bytes": 0})
                into["times_s"] += done["times_s"]
                into["processor_s"] += done["processor_s"]
                into["peak_bytes"] = max(into["peak_bytes"], *done["peak_bytes"])
    sides = result["sides"]
    for side in sides.values():
        side["step_s"] = statistics.median(side["times_s"])
        side["step_processor_s"] = statistics.median(side["processor_s"])
        side["ratios"] = {name: side[name] / sides["weft"][name] for name in MEASURES} if "weft" in sides else {}
    result["load"], result["cpus"] = os.getloadavg()[0], len(os.sched_getaffinity(0))
    return result


def is_good(result):
    ratios = result["sides"].get("ddp_gloo", {}).get("ratios")
    return bool(ratios) and ratios["step_s"] >= (result["goal"] or 0) and ratios["peak_bytes"] >= 1


def show(results):
    print(f"{'model':9} {'samples':>8}  {'side':9} {'s/step':>8} {'ratio':>6} {'goal':>5} {'cpu s':>8} {'ratio':>6} {'GiB':>6} {'ratio':>6}")
    for result in results:
        label = f"{result['model']:9} {result['accumulate']:>3} x {result['batch']:2}"
        for name, side in result["sides"].items():
            ratio = {key: f"{side['ratios'][key]:.2f}" if side["ratios"] else "-" for key in MEASURES}
            goal = result["goal"] if name == "ddp_gloo" and result["goal"] else ""
            print(f"{label:18}  {name:9} {side['step_s']:8.2f} {ratio['step_s']:>6} {goal:>5} {side['step_processor_s']:8.2f} "
                  f"{ratio['step_processor_s']:>6} {side['peak_bytes'] / 2**30:6.2f} {ratio['peak_bytes']:>6}")
            label = ""
        for name, why in result["missing"].items():
            print(f"{label:18}  {name:9} skipped: {why}")
    loads = [result["load"] for result in results]
    print(f"{results[0]['ranks']} ranks on {results[0]['cpus']} CPUs, load {min(loads):.1f} to {max(loads):.1f}")


def main():
    args = parse_arguments()
    if args.session:
        return run_session(args)
    if args.exports:
        args.exports.mkdir(parents=True, exist_ok=True)
    results = []
    for model in args.models:
        print(f"{model} ..", file=sys.stderr)
        results.append(compare(args, model))
    if args.json:
        print(json.dumps({"comparison": results}))
    else:
        show(results)
    return 1 if args.check and not all(map(is_good, results)) else 0


if __name__ == "__main__":
    sys.exit(main())
