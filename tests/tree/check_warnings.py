#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads every source of a configured build folder with its compiler and options, and writes no code: errors and warnings
of the compiler's front end in half of the processor time. What only a code generator refuses is not found.

usage: check_warnings.py BUILD [JOBS]     generated sources that are not there yet are left out
"""
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys


def check(entry):
    """The compiler's output, None if it found nothing."""
    words = shlex.split(entry["command"])
    at = words.index("-o")
    del words[at:at + 2]
    done = subprocess.run([*words, "-fsyntax-only"], cwd=entry["directory"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    return done.stdout if done.returncode else None


def main():
    build = pathlib.Path(sys.argv[1])
    jobs = int(sys.argv[2]) if len(sys.argv) > 2 else os.cpu_count()
    entries = [entry for entry in json.loads((build / "compile_commands.json").read_text())
               if os.path.exists(os.path.join(entry["directory"], entry["file"]))]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        wrong = [text for text in pool.map(check, entries) if text is not None]
    print("".join(wrong), end="")
    print(f"{len(entries)} sources read, {len(wrong)} refused")
    return 1 if wrong or not entries else 0


if __name__ == "__main__":
    sys.exit(main())
