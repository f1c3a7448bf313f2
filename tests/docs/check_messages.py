#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every message that docs/troubleshooting.md quotes in a heading exists in the sources.

usage: check_messages.py SOURCE_DIR

`...` in a heading stands for what a message fills in. What is left between them must appear, in this order, in one string of the
sources: adjacent literals are joined, conversions such as %u end a piece.
"""
import pathlib
import re
import sys

FOLDERS = ["runtime", "ops", "transport", "graph", "fusion", "tools", "python"]
LITERAL = r'"((?:[^"\\\n]|\\.)*)"'


def messages(path):
    """The strings of a C or Python file, adjacent ones joined, conversions replaced by a zero byte."""
    text = path.read_text(errors="replace")
    between = r"(?:\s|PRI[a-zA-Z0-9]+)*" if path.suffix in (".c", ".h") else r"\s*f?"
    for match in re.finditer(LITERAL + rf"(?:{between}{LITERAL})*", text):
        joined = "".join(part.replace('\\"', '"') for part in re.findall(LITERAL, match.group(0)))
        yield re.sub(r"%[-+ #0-9.*]*(?:hh|h|ll|l|z|j|t)?[a-zA-Z]?", "\0", joined)


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    strings = []
    for folder in FOLDERS:
        for path in (root / folder).rglob("*"):
            if path.suffix in (".c", ".h", ".py") and "build" not in path.parts:
                strings += messages(path)
    wrong, count = [], 0
    for number, line in enumerate((root / "docs" / "troubleshooting.md").read_text().splitlines(), 1):
        match = re.match(r"### `([^`]+)`$", line)
        if not match:
            continue
        count += 1
        pieces = [piece.strip(" ,;:()'\"") for piece in match.group(1).split("...")]
        # short connecting words match anything
        pieces = [re.escape(piece) for piece in pieces if len(piece) > 2]
        pattern = re.compile(".*?".join(pieces), re.DOTALL)
        # a message may be put together of several strings: then every long piece must be in one of them
        if any(pattern.search(string) for string in strings):
            continue
        missing = [piece for piece in pieces if not any(re.search(piece, string) for string in strings)]
        if missing or sum(len(piece) > 12 for piece in pieces) == 0:
            wrong.append(f"docs/troubleshooting.md:{number}: no source prints this: {match.group(1)}" +
                         (f" (not found: {', '.join(missing)})" if missing else ""))
    print("\n".join(wrong) or f"{count} messages are in the sources")
    return 1 if wrong or count < 10 else 0


if __name__ == "__main__":
    sys.exit(main())
