#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the fuzz programs of a build folder, one after the other.

    tests/fuzz/run.py [--build BUILD] [--seconds N] [--runs N] [NAME..]

BUILD is build/clang by default. Every program runs for N seconds (60) or N executions. Inputs that reach new code are
kept in BUILD/fuzz/NAME, where the next run begins; inputs that fail in BUILD/fuzz/NAME.failed. Prints a line per program,
and what failed. Exit status 1: something failed."""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time

MEGABYTES = 4096  # of memory, and of one allocation: more is a finding
SLOW = 25  # seconds that one input may take


def commands(build):
    """The command of every fuzz test, as CTest has it: the program, its options, the folders that it reads."""
    shown = subprocess.run(["ctest", "--test-dir", build, "-L", "fuzz", "--show-only=json-v1"], check=True,
                           capture_output=True, text=True).stdout
    return {test["name"].removeprefix("fuzz_"): test["command"] for test in json.loads(shown)["tests"]
            if "command" in test}


def run(build, name, command, seconds, runs):
    kept, failed = build / "fuzz" / name, build / "fuzz" / f"{name}.failed"
    for folder in (kept, failed):
        folder.mkdir(parents=True, exist_ok=True)
    folders = [part for part in command[1:] if not part.startswith("-")]
    options = [f"-runs={runs}"] if runs else [f"-max_total_time={seconds}"]
    options += [f"-artifact_prefix={failed}/", f"-rss_limit_mb={MEGABYTES}", f"-timeout={SLOW}", "-print_final_stats=1",
                "-max_len=20000", "-verbosity=1"]
    log = build / "fuzz" / f"{name}.log"
    environment = dict(os.environ, WEFT_CALIBRATE="off")
    began = time.monotonic()
    with open(log, "w") as out:
        status = subprocess.run([command[0], *options, kept, *folders], stdout=out, stderr=subprocess.STDOUT,
                                env=environment).returncode
    text = log.read_text(errors="replace")
    counts = re.findall(r"number_of_executed_units: (\d+)|Done (\d+) runs|^#(\d+)\s", text, re.M)
    count = max((int(number) for found in counts for number in found if number), default=0)
    return status, count, time.monotonic() - began, text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/clang", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--runs", type=int)
    args = parser.parse_args()
    build = args.build.resolve()
    total, bad = 0, 0
    for name, command in commands(build).items():
        if args.names and name not in args.names:
            continue
        status, count, seconds, text = run(build, name, command, args.seconds, args.runs)
        total += count
        bad += status != 0
        print(f"{name:14} {count:10} executions {seconds:6.0f} s{'' if status == 0 else '   FAILED'}", flush=True)
        if status != 0:
            lines = [line for line in text.splitlines() if not line.startswith(("#", "\tNEW_FUNC"))]
            print("\n".join(lines[-40:]), flush=True)
    print(f"{'total':14} {total:10} executions")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
