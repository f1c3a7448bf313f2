#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Weft beside Open MPI, MPICH, torch + Gloo and what the machine allows, in one run.

All programs are run one after the other, several times, so that whatever else the machine does hits all alike;
the table shows medians over the repeats of each program's median, and ratios: time of the peer over time of Weft.
Peers that are not installed are left out.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
OPERATORS = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"]
KIB, MIB = 1 << 10, 1 << 20

# (operator, memory, ranks, from bytes, to bytes, against, at least)
WANTED = [
    ("all_reduce", "registered", 2, 8, 512, "mpi", 1.3),
    ("all_reduce", "registered", 2, 4 * KIB, 4 * KIB, "mpi", 1.7),
    ("all_reduce", "registered", 2, 32 * KIB, 16 * MIB, "mpi", 8.0),
    ("all_reduce", "registered", 2, 64 * MIB, 64 * MIB, "mpi", 5.0),
    ("all_reduce", "registered", 2, 32 * KIB, 64 * MIB, "floor", 1 / 1.3),
    ("all_reduce", "plain", 2, 8, 4 * KIB, "mpi", 1.3),
    ("all_reduce", "plain", 2, 32 * KIB, 2 * MIB, "mpi", 1.0),
    ("all_reduce", "plain", 2, 16 * MIB, 64 * MIB, "mpi", 1.5),
    ("all_reduce", "registered", 2, 8, 4 * KIB, "torch", 100.0),
    ("all_reduce", "registered", 2, 16 * MIB, 16 * MIB, "torch", 10.0),
    ("all_reduce", "registered", 8, 8, 512, "mpi", 2.5),
    ("all_reduce", "registered", 8, 4 * KIB, 32 * KIB, "mpi", 6.0),
    ("all_reduce", "registered", 8, 256 * KIB, 64 * MIB, "mpi", 10.0),
] + [
    row for op in OPERATORS[1:] for row in (
        (op, "registered", 2, 8, 4 * KIB, "mpi", 1.0),
        (op, "plain", 2, 8, 64 * MIB, "mpi", 1.0),
        (op, "registered", 2, 32 * KIB, 64 * MIB, "mpi", 2.0))
]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=os.path.join(ROOT, "build"), help="build directory")
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("--op", choices=OPERATORS, action="append", help="default: all")
    parser.add_argument("--memory", choices=["registered", "adopted", "plain"], action="append",
                        help="default: registered and plain")
    parser.add_argument("--max", type=int, default=64 * MIB, help="largest size in bytes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--timeout", type=int, default=300, help="seconds one program may take")
    parser.add_argument("--python", default="/usr/bin/python3", help="interpreter that has torch")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--check", action="store_true", help="exit 1 when a ratio is below what is wanted")
    return parser.parse_args()


def mpi_command(arguments, library, operator):
    program = os.path.join(arguments.build, "tests", "bench", f"peer_mpi_{library}")
    launcher = shutil.which("mpirun.openmpi" if library == "openmpi" else "mpiexec.hydra")
    if launcher is None or not os.path.exists(program):
        return None
    few = arguments.ranks <= len(os.sched_getaffinity(0))
    if library == "openmpi":
        options = ["--bind-to", "core"] if few else ["--oversubscribe"]
        options += ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return [launcher, *options, "-np", str(arguments.ranks), program, operator, str(arguments.max)]
    if not few:
        return None  # MPICH spins: it does not finish
    return [launcher, "-bind-to", "core", "-n", str(arguments.ranks), program, operator, str(arguments.max)]


def commands(arguments, operator):
    """name -> command of every side that is there."""
    sides = {}
    weft = os.path.join(arguments.build, "weft")
    for memory in arguments.memory or ["registered", "plain"]:
        sides[f"weft {memory}"] = [weft, "bench", operator, "-n", str(arguments.ranks), "--memory", memory,
                                   "--max", str(arguments.max), "--json"]
    for library in ("openmpi", "mpich"):
        command = mpi_command(arguments, library, operator)
        if command:
            sides[library] = command
    if operator == "all_reduce":
        floor = os.path.join(arguments.build, "tests", "bench", "bench_floor_all_reduce")
        if arguments.ranks == 2 and os.path.exists(floor):
            sides["floor"] = [floor, str(arguments.max)]
        probe = [arguments.python, "-c", "import torch.distributed"]
        if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
            sides["torch"] = [arguments.python, os.path.join(HERE, "peer_torch_collectives.py"),
                              "-n", str(arguments.ranks), "--max", str(min(arguments.max, 16 * MIB))]
    return sides


def run(command, timeout):
    """bytes -> median microseconds."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"exit status {done.returncode}")
    text = done.stdout.strip()
    rows = json.loads(text)["rows"] if text.startswith('{"rows"') else [json.loads(x) for x in text.splitlines()]
    return {row["bytes"]: row["p50_us"] for row in rows}


def measure(arguments, operator):
    """side -> bytes -> median of medians."""
    sides = commands(arguments, operator)
    seen = {side: {} for side in sides}
    for _ in range(arguments.repeats):
        for side, command in sides.items():
            try:
                for size, time in run(command, arguments.timeout).items():
                    seen[side].setdefault(size, []).append(time)
            except (OSError, RuntimeError, subprocess.TimeoutExpired, ValueError) as error:
                print(f"{operator}: {side} left out: {error}", file=sys.stderr)
    return {side: {size: statistics.median(times) for size, times in sizes.items()}
            for side, sizes in seen.items() if sizes}


def peer_time(times, peer, size):
    """mpi: the better of those there are."""
    names = ["openmpi", "mpich"] if peer == "mpi" else [peer]
    found = [times[name][size] for name in names if size in times.get(name, {})]
    return min(found) if found else None


def ratios(arguments, operator, times):
    rows = []
    for side, sizes in times.items():
        if not side.startswith("weft"):
            continue
        memory = side.split()[1]
        for size in sorted(sizes):
            row = {"op": operator, "memory": memory, "ranks": arguments.ranks, "bytes": size,
                   "weft_us": sizes[size], "over": {}, "missed": []}
            for peer in ("mpi", "torch", "floor"):
                time = peer_time(times, peer, size)
                if time is not None:
                    row["over"][peer] = time / sizes[size]
            for op, kind, ranks, low, high, peer, least in WANTED:
                known = "registered" if memory == "adopted" else memory
                if (op, kind, ranks) == (operator, known, arguments.ranks) and low <= size <= high \
                        and peer in row["over"] and row["over"][peer] < least:
                    row["missed"].append(f"{peer} {least:.2g}")
            rows.append(row)
    return rows


def print_table(operator, times, rows):
    sides = [side for side in times if not side.startswith("weft")]
    print(f"\n{operator}, microseconds; ratios are peer over Weft")
    print(f"{'memory':>11} {'bytes':>10} {'weft':>10} " + " ".join(f"{s:>10}" for s in sides)
          + f" {'x mpi':>7} {'x torch':>8} {'x floor':>8}  below what is wanted")
    for row in rows:
        cells = " ".join(f"{times[s].get(row['bytes'], float('nan')):10.2f}" for s in sides)
        over = [row["over"].get(peer) for peer in ("mpi", "torch", "floor")]
        text = " ".join(f"{value:{width}.2f}" if value else " " * width
                        for value, width in zip(over, (7, 8, 8)))
        print(f"{row['memory']:>11} {row['bytes']:>10} {row['weft_us']:10.2f} {cells} {text}  "
              + ", ".join(row["missed"]))


def main():
    arguments = parse_arguments()
    everything = []
    for operator in arguments.op or OPERATORS:
        times = measure(arguments, operator)
        rows = ratios(arguments, operator, times)
        everything += rows
        if not arguments.json:
            print_table(operator, times, rows)
    if arguments.json:
        print(json.dumps({"rows": everything}))
    missed = [row for row in everything if row["missed"]]
    if not arguments.json:
        print(f"\n{len(everything) - len(missed)} of {len(everything)} rows are as wanted; "
              f"load average {os.getloadavg()[0]:.1f}")
    return 1 if arguments.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
