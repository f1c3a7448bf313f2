#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Weft from Python beside torch.distributed over Gloo, and beside Weft from C, in one run.

    calls       1,024 float32 per rank, numpy arrays, in place or out=: against Gloo in the same processes
    large       16 MiB all_reduce: ordinary memory, adopted memory, memory of weft.empty
    overhead    what a call from Python costs above the same call from C: in place, making its result, of a torch tensor
    ddp         exposed communication of DDP on backend weft, and with the hook, against backend gloo
    session     an epoch of the MLP by weft.Session against DDP over Gloo

Programs run one after the other, several times, so that whatever else the machine does hits all alike; figures are
medians over the repeats. Parts for which torch is missing are left out. Two ranks, each bound to a core; Gloo's threads
are free to run on any, which is faster.
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
PARTS = ("calls", "large", "overhead", "ddp", "session")
CALLS = (("all_reduce", 4096), ("all_gather", 8192), ("broadcast", 4096), ("reduce_scatter", 4096))
KINDS = {"in place": [], "out of place": ["--new"], "torch tensor": ["--tensor", "torch"]}
AT_LEAST, AT_MOST = "at least", "at most"
# (part, name): which way, how much
WANTED = {
    ("calls", "all_reduce"): (AT_LEAST, 50.0), ("calls", "all_gather"): (AT_LEAST, 50.0),
    ("calls", "broadcast"): (AT_LEAST, 50.0),
    ("large", "plain"): (AT_LEAST, 3.0), ("large", "adopted"): (AT_LEAST, 10.0), ("large", "empty"): (AT_LEAST, 10.0),
    ("overhead", "in place"): (AT_MOST, 0.5), ("overhead", "out of place"): (AT_MOST, 1.0),
    ("overhead", "torch tensor"): (AT_MOST, 1.0),
    ("ddp", "weft"): (AT_LEAST, 5.0), ("ddp", "hook"): (AT_LEAST, 5.0), ("session", "epoch"): (AT_LEAST, 2.9),
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"), help="build directory")
    parser.add_argument("--python", default="/usr/bin/python3", help="interpreter that has numpy and torch")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=468, help="of training, per model and repeat")
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--timeout", type=int, default=300, help="seconds one program may take")
    parser.add_argument("--realtime", action="store_true",
                        help="run everything under SCHED_FIFO, which keeps other programs off the cores")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--check", action="store_true", help="exit 1 when something wanted was missed")
    args = parser.parse_args()
    unknown = [part for part in args.part if part not in PARTS]
    if unknown:
        parser.error(f"no part is called {unknown[0]}; there are {', '.join(PARTS)}")
    args.part = args.part or list(PARTS)
    return args


def environment(args):
    """One thread per rank; torch gets the fastest BLAS that Debian packages, whatever alternatives select."""
    found = glob.glob("/usr/lib/*/openblas-pthread/libblas.so.3")
    path = [os.path.join(args.build, "python"), os.environ.get("PYTHONPATH", "")]
    # programs bind themselves, Gloo's threads excepted
    changed = dict(os.environ, OPENBLAS_NUM_THREADS="1", WEFT_BIND="none",
                   PYTHONPATH=":".join(entry for entry in path if entry))
    if found:
        changed["LD_LIBRARY_PATH"] = ":".join(
            entry for entry in (os.path.dirname(found[0]), os.environ.get("LD_LIBRARY_PATH", "")) if entry)
    return changed


def run(args, command):
    """What a program has printed, as JSON."""
    command = ["chrt", "-f", "10", *command] if args.realtime else command
    done = subprocess.run(command, capture_output=True, text=True, timeout=args.timeout, check=False,
                          env=environment(args))
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise RuntimeError(f"{' '.join(command)}: {lines[-1] if lines else f'exit status {done.returncode}'}")
    return json.loads(done.stdout)


def ranks(args, program, *words):
    return run(args, [os.path.join(args.build, "weft"), "run", "-n", "2", "--", args.python,
                      os.path.join(HERE, program), *words])


def bench(args, *words):
    return run(args, [args.python, "-m", "weft.bench", "--json", *words])["rows"]


def has_torch(args):
    probe = subprocess.run([args.python, "-c", "import torch.distributed"], capture_output=True, check=False)
    return probe.returncode == 0


def calls(args, torch):
    """op -> us by Weft, by C, by Gloo."""
    found = {}
    for op, size in CALLS:
        row, = bench(args, op, "-n", "2", "--min", str(size), "--max", str(size),
                     *(["--torch-gloo"] if torch else []))
        found[op] = {"us": row["p50_us"], "c_us": row["c_p50_us"], "gloo_us": row["gloo_p50_us"],
                     "ratio": row["gloo_p50_us"] / row["p50_us"] if row["gloo_p50_us"] else None}
    return found


def large(args, torch):
    found = {}
    for memory in ("plain", "adopted", "empty"):
        row, = bench(args, "all_reduce", "-n", "2", "--min", "16M", "--max", "16M", "--iterations", "30", "--memory",
                     memory, *(["--torch-gloo"] if torch else []))
        found[memory] = {"us": row["p50_us"], "c_us": row["c_p50_us"], "gloo_us": row["gloo_p50_us"],
                         "ratio": row["gloo_p50_us"] / row["p50_us"] if row["gloo_p50_us"] else None}
    return found


def overhead(args, torch):
    """us above C of an all_reduce of 8 bytes, on two ranks and on one."""
    found = {}
    for kind, words in KINDS.items():
        if kind != "torch tensor" or torch:
            for count in (2, 1):
                row, = bench(args, "all_reduce", "-n", str(count), "--min", "8", "--max", "8", "--iterations", "200",
                             *words)
                found.setdefault(kind, {})["ratio" if count == 2 else "alone_us"] = row["python_us"]
    return found


def ddp(args, folder, number):
    """kind -> step, exposed communication, and Gloo's over Weft's."""
    result = ranks(args, "python_ddp.py", "--steps", str(args.steps), "--data", args.data, "--store",
                   os.path.join(folder, f"store{number}"))
    rows = result["rows"]
    for row in rows.values():
        row["exposed_ms"] = row["step_ms_p50"] - rows["nothing"]["step_ms_p50"]
    for kind in ("weft", "hook"):
        # a step that is not slower than one without communication has some, still
        rows[kind]["ratio"] = rows["gloo"]["exposed_ms"] / max(rows[kind]["exposed_ms"], 0.01)
    rows["blas"] = result["blas"]
    return rows


def session(args, gloo_epochs):
    """The epoch, and Gloo's over it: with those that part ddp has measured, or measured here."""
    model = os.path.join(ROOT, "samples", "models", "mlp.onnx")
    result = ranks(args, "python_session.py", model, "--steps", str(args.steps), "--data", args.data)
    found = {"epoch_s": result["epoch_s"], "step_ms_p50": result["step_ms_p50"]}
    if gloo_epochs:
        found["gloo_epoch_s"] = gloo_epochs[-1]
        found["ratio"] = gloo_epochs[-1] / result["epoch_s"]
    return {"epoch": found}


def gloo_epoch(args, folder, number):
    result = ranks(args, "python_ddp.py", "--only", "gloo", "--steps", str(args.steps), "--data", args.data, "--store",
                   os.path.join(folder, f"alone{number}"))
    return result["rows"]["gloo"]["epoch_s"]


def measure(args, torch):
    """(part, name) -> figure -> values of the repeats."""
    seen = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.repeats):
            parts = {}
            if "calls" in args.part:
                parts["calls"] = calls(args, torch)
            if "large" in args.part:
                parts["large"] = large(args, torch)
            if "overhead" in args.part:
                parts["overhead"] = overhead(args, torch)
            if "ddp" in args.part and torch:
                parts["ddp"] = ddp(args, folder, number)
                seen.setdefault("blas", parts["ddp"].pop("blas"))
            if "session" in args.part:
                parts["session"] = session(args, [gloo_epoch(args, folder, number)] if torch else [])
            for part, rows in parts.items():
                for name, figures in rows.items():
                    for figure, value in figures.items():
                        if value is not None:
                            seen.setdefault((part, name), {}).setdefault(figure, []).append(value)
    return seen


def summary(seen):
    """Rows with medians, and for what is wanted whether it was met."""
    rows = []
    for key, figures in seen.items():
        if key == "blas":
            continue
        medians = {figure: statistics.median(values) for figure, values in figures.items()}
        row = {"part": key[0], "name": key[1], **{figure: round(value, 4) for figure, value in medians.items()}}
        if key in WANTED and "ratio" in medians:
            way, much = WANTED[key]
            row["wanted"] = f"{way} {much:g}"
            row["met"] = medians["ratio"] >= much if way == AT_LEAST else medians["ratio"] <= much
        rows.append(row)
    return rows


def show(rows, blas):
    def gloo(row, text):
        return text.format(**row) if any(name.startswith("gloo") for name in row) else ""

    texts = {
        "calls": lambda r: (f"{r['us']:.2f} us (C {r['c_us']:.2f}), Gloo "
                            + (gloo(r, "{gloo_us:.1f}") or "has none")),
        "large": lambda r: f"{r['us']:.0f} us (C {r['c_us']:.0f})" + gloo(r, ", Gloo {gloo_us:.0f}"),
        "overhead": lambda r: f"{r['alone_us']:.2f} us above C on one rank, on two",
        "ddp": lambda r: f"{r['step_ms_p50']:.2f} ms per step, {r['exposed_ms']:.2f} of it exposed communication",
        "session": lambda r: f"{r['epoch_s']:.2f} s per epoch" + gloo(r, ", DDP + Gloo {gloo_epoch_s:.2f}"),
    }
    for row in rows:
        unit = " us" if row["part"] == "overhead" else "x"
        ratio = f"{row['ratio']:.2f}{unit}" if "ratio" in row else ""
        judged = f"{row['wanted']} wanted: {'met' if row['met'] else 'MISSED'}" if "wanted" in row else ""
        print(f"{row['part']:9} {row['name']:15} {texts[row['part']](row):60} {ratio:>10}  {judged}")
    if blas:
        print(f"torch computes with {', '.join(os.path.basename(os.path.dirname(file)) for file in blas)}; "
              f"load average {os.getloadavg()[0]:.1f}")


def main():
    args = parse_arguments()
    torch = has_torch(args)
    if not torch:
        print(f"compare_python: {args.python} has no torch: without Gloo and DDP", file=sys.stderr)
    seen = measure(args, torch)
    rows = summary(seen)
    if not args.json:
        show(rows, seen.get("blas"))
    else:
        print(json.dumps({"rows": rows, "blas": seen.get("blas"), "load": os.getloadavg()[0]}))
    missed = [row for row in rows if row.get("met") is False]
    return 1 if args.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
