#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lists all error messages and log lines of the library and the command, for review, and checks their form.

usage: list_messages.py [--check] SOURCE_DIR     --check: prints only what is wrong; exit status 1 if something is
"""
import pathlib
import re
import sys

LIBRARY = ("runtime", "ops", "transport", "graph", "fusion")
CALLS = re.compile(r"\b(wefti_error(?:_errno|_prefix|_field)?|wefti_log|wefti_usage_error)\s*\(")
LITERALS = re.compile(r'"(?:[^"\\]|\\.)*"(?:\s*(?:PRI\w+\s*)?"(?:[^"\\]|\\.)*")*')
# A message names things, in words that an engineer of the field knows.
BANNED = ("nobody", "whoever", "everybody", "somebody", "makes no sense", "means nothing", "stranger", "says it is",
          "turned away", "that there is not", "no number from", "is told")


def arguments(text: str, begin: int) -> str:
    """The text of a call's arguments: from begin, behind its parenthesis, to the one that closes it."""
    depth, at = 1, begin
    while depth > 0 and at < len(text):
        if text[at] == '"':
            at = re.compile(r'"(?:[^"\\\n]|\\.)*"').match(text, at).end()
            continue
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return text[begin:at]


def messages(path: pathlib.Path):
    text = path.read_text()
    for call in CALLS.finditer(text):
        for literal in LITERALS.findall(arguments(text, call.end())):
            joined = re.sub(r'"\s*(?:PRI\w+\s*)?"', "", literal)[1:-1]
            if " " in joined:
                yield text.count("\n", 0, call.start()) + 1, joined


def faults(folder: str, message: str):
    if folder in LIBRARY and re.search(r"(^|[ '`(])--[a-z]", message):
        yield "names a flag of the command: name the field"
    if re.match(r"[A-Z][a-z]+ [a-z]", message) and not re.match(r"(Conv|Gemm|Pad|Softmax|Transpose|Mask)\b", message):
        yield "begins with a capital letter"
    for word in BANNED:
        if word in message:
            yield f"'{word}' is not a word for messages"


def main() -> int:
    check = "--check" in sys.argv[1:]
    root = pathlib.Path(sys.argv[-1])
    count, wrong = 0, 0
    for folder in (*LIBRARY, "tools"):
        for path in sorted((root / folder).rglob("*.c")):
            for line, message in messages(path):
                count += 1
                where = f"{path.relative_to(root)}:{line}: {message}"
                if not check:
                    print(where)
                for fault in faults(folder, message):
                    wrong += 1
                    print(f"{where}\n    {fault}")
    print(f"{count} messages, {wrong} wrong", file=sys.stderr)
    return 1 if wrong or count < 500 else 0


if __name__ == "__main__":
    sys.exit(main())
