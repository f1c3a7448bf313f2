# SPDX-License-Identifier: Apache-2.0
"""What comparisons of programs share (compare_jax.py, compare_onnxruntime.py, compare_torch.py, compare_tvm.py): a
program per side, which prints "RESULT " and microseconds by row as JSON; medians over repeats; a table with ratios to Weft; targets."""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import venv

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "support"))
from program import free_port  # noqa: E402,F401


def make_parser(doc, python, needs):
    """python: where below the build directory; needs: the package that it has."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="build directory")
    parser.add_argument("--python", type=pathlib.Path, default=ROOT / "build" / python, help=f"interpreter that has {needs}")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--timeout", type=int, default=300, help="seconds one program may take")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--check", action="store_true", help="exit 1 when something wanted was missed")
    return parser


def run_program(args, side, command, environment):
    """Row -> microseconds of one run."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=args.timeout,
                          env=environment, check=False)
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not results:
        raise RuntimeError(f"{side}: exit status {done.returncode}: {done.stderr.strip()[-500:]}")
    return json.loads(results[0].removeprefix("RESULT "))


def missed_of(medians, wanted):
    """wanted: (row, side) -> least ratio of the side's time to Weft's, or (row, None) -> most microseconds of Weft."""
    for (row, side), limit in wanted.items():
        weft = medians[row]["weft"]
        if side is None and weft > limit:
            yield f"{row}: {weft:.2f} us, wanted at most {limit:g}"
        elif side in medians[row] and medians[row][side] / weft < limit:
            yield f"{row}: {side} takes {medians[row][side] / weft:.2f} times as long, wanted at least {limit:g}"


def make_venv(folder, *packages):
    """The interpreter of a virtual environment there, which is made with the newest packages unless there is one."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=True)
    return python


def compare(args, sides, run, wanted):
    """Runs all sides in turn, args.repeats times, and prints medians. Returns the exit status."""
    seen = {}
    for _ in range(args.repeats):
        for side in sides:
            for row, us in run(args, side).items():
                seen.setdefault(row, {}).setdefault(side, []).append(us)
    return report(args, sides, seen, wanted)


def report(args, sides, seen, wanted):
    """seen: row -> side -> microseconds of all repeats. Prints medians; returns the exit status."""
    medians = {row: {side: statistics.median(values) for side, values in by.items()} for row, by in seen.items()}
    others = [side for side in sides if side not in ("weft", "none")]
    missed = list(missed_of(medians, wanted))
    if args.json:
        print(json.dumps({"rows": medians, "missed": missed}))
    else:
        width = max(20, *map(len, medians))
        print(f"{'us':{width}}" + "".join(f"{side:>12}" for side in sides) + "".join(f"{side + '/weft':>17}" for side in others))
        for row, by in medians.items():
            print(f"{row:{width}}" + "".join(f"{by[side]:12.2f}" if side in by else " " * 12 for side in sides)
                  + "".join(f"{by[side] / by['weft']:17.2f}" if side in by else "" for side in others))
        print("\n".join(f"missed: {line}" for line in missed) or "all targets met")
    return 1 if args.check and missed else 0
