#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Words per second of a decoder divided over ranks: Weft's plan of a plain export, and torch's DTensor over Gloo.

    PYTHONPATH=build/python tests/bench/compare_tensor_parallel.py --python /path/to/venv/bin/python

A decoder like Llama (peer_tensor_parallel.py) with random weights, of 125 million parameters unless sizes are set, on N
ranks. Phase prefill reads --words words, phase decode one more word after them. Both sides have the same weights and
inputs, and must print the same logits to rounding. They run in turn, several times, each as N ranks of its own with an
equal share of the cores. The table has the median seconds of a step, words per second, processor seconds per step and
rank, peak memory of a rank, and the ratio of each to Weft's plan.

Weft's caches are whole, as inputs and outputs on every rank (fusion/tensor/README.md); with DTensor a rank keeps those of
its heads. The interpreter needs the newest torch, onnxscript and numpy. No goal is set; --check asks that Weft is not
slower.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

from compare_models import ROOT, run

HERE = pathlib.Path(__file__).resolve().parent
PEER = HERE / "peer_tensor_parallel.py"
PHASES, SIDES = ("prefill", "decode"), ("weft", "dtensor")
WORDS, HEAD = 32000, 64  # words that there are, numbers of a head
SIZES = ("width", "hidden", "layers", "kv_heads", "words", "steps")


def add_sizes(parser):
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--kv-heads", type=int, default=4, help=f"of {HEAD} numbers each; a divisor of the heads of queries")
    parser.add_argument("--words", type=int, default=128, help="read by prefill, and in the caches of decode")
    parser.add_argument("--steps", type=int, default=10, help="measured steps of a turn, after two")


def make_inputs(args, phase, ranks=1, rank=0):
    """Words, and for decode whole caches, of which a rank gets its heads: by name, as numpy's arrays."""
    import numpy as np  # pylint: disable=import-outside-toplevel

    random = np.random.default_rng(3)
    inputs = {"tokens": random.integers(0, WORDS, (1, args.words if phase == "prefill" else 1))}
    for i in range(2 * args.layers if phase == "decode" else 0):
        cache = random.standard_normal((1, args.kv_heads, args.words, HEAD), "float32")
        inputs[f"past_{i}"] = np.ascontiguousarray(np.split(cache, ranks, 1)[rank])
    return inputs


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="build directory")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has torch")
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=PHASES)
    add_sizes(parser)
    parser.add_argument("--repeats", type=int, default=3, help="turns of each side")
    parser.add_argument("--bucket", default="one", help="of the plan; default: one, so that one all-gather has the keys of all layers")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--check", action="store_true", help="exit 1 where DTensor is faster")
    parser.add_argument("--session", nargs=2, metavar=("PHASE", "PLAN"), help=argparse.SUPPRESS)
    return parser.parse_args()


def run_session(args):
    """One rank of side weft."""
    import numpy as np  # pylint: disable=import-outside-toplevel
    import peak_memory  # pylint: disable=import-outside-toplevel
    import weft  # pylint: disable=import-outside-toplevel

    context = weft.init()
    phase, plan = args.session
    inputs = make_inputs(args, phase)
    times, processor, outputs = [], [], None
    with weft.Session(plan) as session:
        for _ in range(args.steps + 2):
            context.barrier()
            begin, used = time.perf_counter(), time.process_time()
            outputs = session.step(**inputs)
            times.append(time.perf_counter() - begin)
            processor.append(time.process_time() - used)
        peaks = weft.all_gather(np.array([peak_memory.peak_memory()], "int64"))
        if context.rank == 0:
            print(json.dumps({"times_s": times[2:], "processor_s": processor[2:], "peak_bytes": np.ravel(peaks).tolist(),
                              "logits": np.ravel(outputs["logits"])[:64].tolist()}))


def sizes(args):
    return [text for name in SIZES for text in (f"--{name.replace('_', '-')}", getattr(args, name))]


def launch(args, side, phase, folder):
    start = [args.build / "weft", "run", "-n", args.ranks, "--", args.python]
    if side == "weft":
        return run([*start, __file__, *sizes(args), "--session", phase, folder / f"{phase}.weft"])
    store = pathlib.Path(tempfile.mkdtemp(dir=folder)) / "store"
    threads = max(1, len(os.sched_getaffinity(0)) // args.ranks)
    return run([*start, PEER, phase, *sizes(args), "--threads", threads, "--store", store], WEFT_BIND="none",
               OMP_NUM_THREADS=str(threads))


def compile_model(args, phase, folder):
    """Writes the plan; why there is none."""
    path = folder / f"{phase}.onnx"
    _, why = run([args.python, PEER, phase, *sizes(args), "--export", path])
    if why:
        return f"export: {why}"
    _, why = run([args.build / "weft", "compile", path, "--infer", "--tensor-parallel", args.ranks, "--bucket", args.bucket, "--json",
                  "-o", folder / f"{phase}.weft"])
    return f"compile: {why}" if why else None


def compare(args, phase):
    result = {"phase": phase, "ranks": args.ranks, "words": args.words, "sides": {}, "missing": {}}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        why = compile_model(args, phase, folder)
        if why:
            result["missing"]["weft"] = why
        for turn in range(args.repeats):
            for side in SIDES if turn % 2 == 0 else SIDES[::-1]:
                if side in result["missing"]:
                    continue
                done, why = launch(args, side, phase, folder)
                if why:
                    result["missing"][side] = why
                    continue
                into = result["sides"].setdefault(side, {"times_s": [], "processor_s": [], "peak_bytes": 0})
                into["times_s"] += done["times_s"]
                into["processor_s"] += done["processor_s"]
                into["peak_bytes"] = max(into["peak_bytes"], *done["peak_bytes"])
                into["logits"] = done["logits"]
                result["torch"] = done.get("torch", result.get("torch"))
    for side in result["sides"].values():
        side["step_s"] = statistics.median(side["times_s"])
        side["step_processor_s"] = statistics.median(side["processor_s"])
        side["words_per_s"] = (args.words if phase == "prefill" else 1) / side["step_s"]
    logits = [side.pop("logits") for side in result["sides"].values()]
    if len(logits) == 2:
        result["largest_difference"] = max(abs(a - b) for a, b in zip(*logits))
        result["largest_logit"] = max(map(abs, logits[0]))
    result["load"], result["cpus"] = os.getloadavg()[0], len(os.sched_getaffinity(0))
    return result


def agrees(result):
    return result.get("largest_difference", 0) <= 1e-3 * result.get("largest_logit", 1)


def ratio(result, measure):
    """Of DTensor to Weft."""
    sides = result["sides"]
    return sides["dtensor"][measure] / sides["weft"][measure] if len(sides) == 2 else None


def show(results):
    print(f"{'phase':8} {'side':8} {'words/s':>8} {'s/step':>8} {'ratio':>6} {'cpu s':>8} {'ratio':>6} {'MiB':>7} {'ratio':>6}")
    for result in results:
        for name, side in result["sides"].items():
            of = {key: f"{ratio(result, key):.2f}" if name == "dtensor" and ratio(result, key) else ""
                  for key in ("step_s", "step_processor_s", "peak_bytes")}
            print(f"{result['phase']:8} {name:8} {side['words_per_s']:8.1f} {side['step_s']:8.4f} {of['step_s']:>6} "
                  f"{side['step_processor_s']:8.4f} {of['step_processor_s']:>6} {side['peak_bytes'] / 2**20:7.0f} {of['peak_bytes']:>6}")
        for name, why in result["missing"].items():
            print(f"{result['phase']:8} {name:8} skipped: {why}")
        if not agrees(result):
            print(f"{result['phase']:8} logits differ by {result['largest_difference']}")
    loads = [result["load"] for result in results]
    print(f"{results[0]['ranks']} ranks on {results[0]['cpus']} CPUs, load {min(loads):.1f} to {max(loads):.1f}, "
          f"torch {results[0].get('torch')}")


def main():
    args = parse_arguments()
    if args.session:
        return run_session(args)
    results = []
    for phase in args.phases:
        print(f"{phase} ..", file=sys.stderr)
        results.append(compare(args, phase))
    if args.json:
        print(json.dumps({"comparison": results}))
    else:
        show(results)
    if not all(map(agrees, results)):
        return 1
    return 1 if args.check and not all((ratio(result, "step_s") or 0) >= 1 for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
