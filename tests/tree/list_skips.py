#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lists which tests of the last ctest run were skipped, and why.

usage: list_skips.py TITLE=BUILD_DIR ..

Reads BUILD_DIR/Testing/Temporary/LastTest.log: whole programs (exit status 77), cases of unittest programs and cases of
cmocka programs. Equal reasons are one line.
"""
import pathlib
import re
import sys

UNITTEST = re.compile(r"""skipped (["'])(.*)\1$""")
CMOCKA = re.compile(r"^\[  SKIPPED \] (\w+)$")
CMOCKA_RUN = re.compile(r"^\[ RUN      \] (\w+)$")
REASON = re.compile(r"^(?:skipped|no emulated machine): *(.*)", re.IGNORECASE)


def blocks(log: str):
    """Yields name, lines of output and verdict of every test."""
    for part in re.split(r"^\d+/\d+ Testing: ", log, flags=re.MULTILINE)[1:]:
        name = part.split("\n", 1)[0].strip()
        match = re.search(r"^Output:\n-+\n(.*)^<end of output>\n.*?^-+\n(.*?)$", part,
                          flags=re.MULTILINE | re.DOTALL)
        if match:
            yield name, match.group(1).splitlines(), match.group(2)


def reasons(lines: list[str], verdict: str):
    """Yields a reason for every skip of one test program."""
    last_printed = ""
    running = None  # cmocka lists skipped cases once more at its end
    count = 0
    for line in lines:
        skipped = UNITTEST.search(line)
        if skipped:
            count += 1
            yield skipped.group(2)
        elif CMOCKA_RUN.match(line):
            running = CMOCKA_RUN.match(line).group(1)
            last_printed = ""
        elif CMOCKA.match(line):
            if CMOCKA.match(line).group(1) != running:
                continue
            running = None
            count += 1
            said = REASON.match(last_printed)
            yield said.group(1) if said else last_printed or "no reason printed"
        elif line.strip() and not line.startswith("["):
            last_printed = line.strip()
    if count == 0 and "Skipped" in verdict:
        said = [match.group(1) for match in map(REASON.match, lines) if match]
        yield said[-1] if said else last_printed or "no reason printed"


def main() -> int:
    for argument in sys.argv[1:]:
        title, _, folder = argument.rpartition("=")
        path = pathlib.Path(folder) / "Testing" / "Temporary" / "LastTest.log"
        found: dict[str, dict[str, int]] = {}
        for name, lines, verdict in blocks(path.read_text(errors="replace")):
            for reason in reasons(lines, verdict):
                programs = found.setdefault(reason, {})
                programs[name] = programs.get(name, 0) + 1
        total = sum(sum(programs.values()) for programs in found.values())
        print(f"{title}: {total} skipped" + (":" if total else ""))
        for reason, programs in sorted(found.items()):
            names = ", ".join(f"{name} ({count})" if count > 1 else name for name, count in programs.items())
            print(f"  {reason}: {names}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
