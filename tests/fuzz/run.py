#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the fuzz programs of a build folder.

    tests/fuzz/run.py [--build BUILD] [--jobs N] [--seconds N] [--runs N] [NAME..]

BUILD is build/fuzz by default. Every program runs for N seconds (60) or N executions, one after the other, or as many at
once as --jobs says. Inputs that reach new code are kept in BUILD/inputs/NAME, where the next run begins; inputs that fail
in BUILD/inputs/NAME.failed. Prints a line per program, and what failed. Exit status 1: something failed."""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import time

MEGABYTES = 4096  # of memory, and of one allocation: more is a finding
HANGS = 900  # seconds: a guard; support_fuzz.c bounds the processor time of an input
MAX_BYTES = 20000  # of an input


def commands(build):
    """The command of every fuzz test, as CTest has it: the program, its options, the folders that it reads."""
    shown = subprocess.run(["ctest", "--test-dir", build, "-L", "fuzz", "--show-only=json-v1"], check=True,
                           capture_output=True, text=True).stdout
    return {test["name"].removeprefix("fuzz_"): test["command"] for test in json.loads(shown)["tests"]
            if "command" in test}


def run(build, name, command, seconds, runs):
    kept, failed = build / "inputs" / name, build / "inputs" / f"{name}.failed"
    for folder in (kept, failed):
        folder.mkdir(parents=True, exist_ok=True)
    folders = [part for part in command[1:] if not part.startswith("-")]
    options = [f"-runs={runs}"] if runs else [f"-max_total_time={seconds}"]
    options += [f"-artifact_prefix={failed}/", f"-rss_limit_mb={MEGABYTES}", f"-timeout={HANGS}", "-print_final_stats=1",
                f"-max_len={MAX_BYTES}"]
    log = build / "inputs" / f"{name}.log"
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
    parser.add_argument("--build", default="build/fuzz", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--runs", type=int)
    args = parser.parse_args()
    build = args.build.resolve()
    known = commands(build)
    chosen = {name: known[name] for name in args.names or known if name in known}
    if not chosen or len(chosen) < len(set(args.names)):
        unknown = " ".join(sorted(set(args.names) - set(known)))
        print(f"unknown fuzz program: {unknown}" if unknown else f"no fuzz programs in {build}", file=sys.stderr)
        return 1
    total, bad = 0, 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        done = {name: pool.submit(run, build, name, command, args.seconds, args.runs) for name, command in chosen.items()}
        for name, result in done.items():
            status, count, seconds, text = result.result()
            total += count
            bad += status != 0
            print(f"{name:14} {count:10} executions {seconds:6.0f} s{'' if status == 0 else '   FAILED'}", flush=True)
            if status != 0:
                lines = [line for line in text.splitlines() if not line.startswith(("#", "\tNEW_FUNC"))]
                print("\n".join(lines[-40:]), flush=True)
    failed = f", {bad} program{'s' if bad > 1 else ''} failed" if bad else ", none failed"
    print(f"{total} executions of {len(chosen)} programs{failed}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
