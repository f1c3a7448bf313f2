#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Weft beside Open MPI, MPICH, torch + Gloo and what the machine allows, in one run.

All programs are run one after the other, several times, so that whatever else the machine does hits all alike;
tables show medians over the repeats of each program's median, and ratios: time of the peer over time of Weft.
Peers that are not installed are left out. At the end: what is wanted, and the worst ratio measured.
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
OTHERS = ("reduce_scatter", "all_gather", "broadcast", "all_to_all")
KIB, MIB = 1 << 10, 1 << 20
RANKS = (2, 8)

# (operators, memory, ranks, from bytes, to bytes, against, at least)
WANTED = [
    (("all_reduce",), "registered", 2, 8, 512, "mpi", 1.3),
    (("all_reduce",), "registered", 2, 4 * KIB, 4 * KIB, "mpi", 1.7),
    (("all_reduce",), "registered", 2, 32 * KIB, 16 * MIB, "mpi", 8.0),
    (("all_reduce",), "registered", 2, 64 * MIB, 64 * MIB, "mpi", 5.0),
    (("all_reduce",), "registered", 2, 32 * KIB, 64 * MIB, "limits", 1 / 1.3),
    (("all_reduce",), "plain", 2, 8, 4 * KIB, "mpi", 1.3),
    (("all_reduce",), "plain", 2, 32 * KIB, 2 * MIB, "mpi", 1.0),
    (("all_reduce",), "plain", 2, 16 * MIB, 64 * MIB, "mpi", 1.5),
    (OTHERS, "registered", 2, 8, 4 * KIB, "mpi", 1.0),
    (OTHERS, "registered", 2, 32 * KIB, 64 * MIB, "mpi", 2.0),
    (OTHERS, "plain", 2, 8, 64 * MIB, "mpi", 1.0),
    (("all_reduce",), "registered", 8, 8, 512, "mpi", 2.5),
    (("all_reduce",), "registered", 8, 4 * KIB, 32 * KIB, "mpi", 6.0),
    (("all_reduce",), "registered", 8, 256 * KIB, 64 * MIB, "mpi", 10.0),
    (("all_reduce",), "registered", 2, 8, 4 * KIB, "torch", 100.0),
    (("all_reduce",), "registered", 2, 16 * MIB, 16 * MIB, "torch", 10.0),
]
PEERS = ("mpi", "torch", "limits", "floor")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=os.path.join(ROOT, "build"), help="build directory")
    parser.add_argument("-n", "--ranks", type=int, action="append", help="default: 2, and 8 for all_reduce")
    parser.add_argument("--op", choices=OPERATORS, action="append", help="default: all")
    parser.add_argument("--memory", choices=["registered", "adopted", "plain"], action="append",
                        help="default: registered and plain")
    parser.add_argument("--max", type=int, default=64 * MIB, help="largest size in bytes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--timeout", type=int, default=300, help="seconds one program may take")
    parser.add_argument("--python", default="/usr/bin/python3", help="interpreter that has torch")
    parser.add_argument("--realtime", action="store_true",
                        help="run everything under SCHED_FIFO, which keeps other programs off the cores")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--check", action="store_true", help="exit 1 when a ratio is below what is wanted")
    return parser.parse_args()


def mpi_command(arguments, library, operator, ranks, most):
    program = os.path.join(arguments.build, "tests", "bench", f"peer_mpi_{library}")
    launcher = shutil.which("mpirun.openmpi" if library == "openmpi" else "mpiexec.hydra")
    if launcher is None or not os.path.exists(program):
        return None
    few = ranks <= len(os.sched_getaffinity(0))
    if library == "openmpi":
        options = ["--bind-to", "core"] if few else ["--oversubscribe"]
        options += ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return [launcher, *options, "-np", str(ranks), program, operator, str(most)]
    if not few:
        return None  # MPICH spins: it does not finish
    return [launcher, "-bind-to", "core", "-n", str(ranks), program, operator, str(most)]


def commands(arguments, operator, ranks):
    """name -> command of every side that is there."""
    sides = {}
    weft = os.path.join(arguments.build, "weft")
    # eight ranks' largest vectors take minutes by MPI, and say what the second largest say
    most = arguments.max if ranks <= 2 else min(arguments.max, 16 * MIB)
    memories = arguments.memory or (["registered", "plain"] if ranks <= 2 else ["registered"])
    for memory in memories:
        sides[f"weft {memory}"] = [weft, "bench", operator, "-n", str(ranks), "--memory", memory,
                                   "--max", str(most), "--json"]
    for library in ("openmpi", "mpich"):
        command = mpi_command(arguments, library, operator, ranks, most)
        if command:
            sides[library] = command
    if operator == "all_reduce" and ranks == 2:
        limits = os.path.join(arguments.build, "tests", "bench", "bench_floor_all_reduce")
        if os.path.exists(limits):
            sides["limits"] = [limits, str(most)]
        probe = [arguments.python, "-c", "import torch.distributed"]
        if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
            sides["torch"] = [arguments.python, os.path.join(HERE, "peer_torch_collectives.py"),
                              "-n", str(ranks), "--max", str(min(most, 16 * MIB))]
    if arguments.realtime:
        sides = {side: ["chrt", "-f", "10", *command] for side, command in sides.items()}
    return sides


def run(command, timeout):
    """Rows with bytes and p50_us; Weft's with floor_us, too."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"exit status {done.returncode}")
    text = done.stdout.strip()
    return json.loads(text)["rows"] if text.startswith('{"rows"') else [json.loads(x) for x in text.splitlines()]


def measure(arguments, operator, ranks):
    """side -> bytes -> median of medians. Weft's own measurement of the machine is the side "floor"."""
    sides = commands(arguments, operator, ranks)
    seen = {}
    for _ in range(arguments.repeats):
        for side, command in sides.items():
            try:
                for row in run(command, arguments.timeout):
                    seen.setdefault(side, {}).setdefault(row["bytes"], []).append(row["p50_us"])
                    if (row.get("floor_us") or 0) > 0:
                        seen.setdefault("floor", {}).setdefault(row["bytes"], []).append(row["floor_us"])
            except (OSError, RuntimeError, subprocess.TimeoutExpired, ValueError) as error:
                print(f"{operator}, {ranks} ranks: {side} left out: {error}", file=sys.stderr)
    return {side: {size: statistics.median(times) for size, times in sizes.items()}
            for side, sizes in seen.items()}


def peer_time(times, peer, size):
    """mpi: the better of those there are."""
    names = ["openmpi", "mpich"] if peer == "mpi" else [peer]
    found = [times[name][size] for name in names if size in times.get(name, {})]
    return min(found) if found else None


def wanted_of(row):
    """The entries of WANTED that speak of this row."""
    memory = "registered" if row["memory"] == "adopted" else row["memory"]
    return [index for index, (ops, kind, ranks, low, high, peer, _) in enumerate(WANTED)
            if row["op"] in ops and (kind, ranks) == (memory, row["ranks"]) and low <= row["bytes"] <= high
            and peer in row["over"]]


def ratios(operator, ranks, times):
    rows = []
    for side, sizes in times.items():
        if not side.startswith("weft"):
            continue
        for size in sorted(sizes):
            row = {"op": operator, "memory": side.split()[1], "ranks": ranks, "bytes": size,
                   "weft_us": sizes[size], "over": {},
                   "peers_us": {name: times[name][size] for name in times if not name.startswith("weft") and size in times[name]}}
            for peer in PEERS:
                time = peer_time(times, peer, size)
                if time is not None:
                    row["over"][peer] = time / sizes[size]
            row["missed"] = [f"{WANTED[i][5]} {WANTED[i][6]:.2g}" for i in wanted_of(row)
                             if row["over"][WANTED[i][5]] < WANTED[i][6]]
            rows.append(row)
    return rows


def print_table(operator, ranks, times, rows):
    sides = [side for side in times if not side.startswith("weft")]
    print(f"\n{operator}, {ranks} ranks, microseconds; ratios are peer over Weft")
    print(f"{'memory':>11} {'bytes':>10} {'weft':>10} " + " ".join(f"{s:>10}" for s in sides)
          + f" {'x mpi':>7} {'x torch':>8} {'x limits':>8} {'x floor':>8}  below what is wanted")
    for row in rows:
        cells = " ".join(f"{times[s].get(row['bytes'], float('nan')):10.2f}" for s in sides)
        over = [row["over"].get(peer) for peer in PEERS]
        text = " ".join(f"{value:{width}.2f}" if value else " " * width
                        for value, width in zip(over, (7, 8, 8, 8)))
        print(f"{row['memory']:>11} {row['bytes']:>10} {row['weft_us']:10.2f} {cells} {text}  "
              + ", ".join(row["missed"]), flush=True)


def size_text(size):
    for unit, scale in (("MiB", MIB), ("KiB", KIB)):
        if size >= scale:
            return f"{size // scale} {unit}"
    return f"{size} B"


def print_summary(rows):
    """What is wanted, one line each, and where it was missed by how much."""
    print("\nwanted (peer over Weft at least)                                                 worst measured")
    for index, (ops, memory, ranks, low, high, peer, least) in enumerate(WANTED):
        seen = [row for row in rows if index in wanted_of(row)]
        for op in ops:
            mine = [row for row in seen if row["op"] == op]
            if not mine:
                continue
            worst = min(mine, key=lambda row: row["over"][peer])
            missed = sorted({size_text(row["bytes"]): row for row in mine if row["over"][peer] < least}.items(),
                            key=lambda item: item[1]["bytes"])
            sizes = size_text(low) if low == high else f"{size_text(low)} to {size_text(high)}"
            text = f"{op}, {ranks} ranks, {memory}, {sizes}, {peer}: {least:.2g}x"
            cell = f"{worst['over'][peer]:.2f}x at {size_text(worst['bytes'])} ({worst['memory']})"
            misses = ", ".join(f"{name} {row['over'][peer]:.2f}x (floor allows "
                               f"{row['over'][peer] / row['over']['floor']:.2f}x)"
                               if "floor" in row["over"] and peer != "limits" else f"{name} {row['over'][peer]:.2f}x"
                               for name, row in missed)
            print(f"{text:<78} {cell:<34} {'missed: ' + misses if missed else 'ok'}")


def main():
    arguments = parse_arguments()
    everything = []
    for ranks in arguments.ranks or RANKS:
        operators = arguments.op or (OPERATORS if ranks == 2 or arguments.ranks else ["all_reduce"])
        for operator in operators:
            times = measure(arguments, operator, ranks)
            rows = ratios(operator, ranks, times)
            everything += rows
            if not arguments.json:
                print_table(operator, ranks, times, rows)
    missed = [row for row in everything if row["missed"]]
    if arguments.json:
        print(json.dumps({"rows": everything}))
    else:
        print_summary(everything)
        print(f"\n{len(everything) - len(missed)} of {len(everything)} rows are as wanted; "
              f"load average {os.getloadavg()[0]:.1f}")
    return 1 if arguments.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
