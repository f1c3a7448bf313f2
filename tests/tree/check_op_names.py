#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that no pass compares names of operators: what a pass needs to know is a fact of the definition (weft_op_facts_t).

In graph/ (but graph/onnx, which maps names of files) and fusion/, a name of an operator may only appear where a node is made
(.op = "Conv", .op_name = "AllReduce") or as an argument of a function that makes one.

usage: check_op_names.py SOURCE_DIR
"""
import pathlib
import re
import sys

FOLDERS = ("graph", "fusion")
EXEMPT = ("graph/onnx/",)
COMPARE = re.compile(r"\b(str\w*cmp|strstr|strchr|memcmp|fnmatch|wefti_name_is)\s*\(")
OF_DEFINITION = re.compile(r"def->(name|domain)\b|\bop_type\b|\bop_name\b|(->|\.)op\b(?!_)")


def operator_names(root: pathlib.Path) -> set:
    """The first string of each row of the definitions: ops/op_defs*.c."""
    names = set()
    for path in (root / "ops").glob("op_defs*.c"):
        text = path.read_text()
        names.update(re.findall(r'\.name = "([A-Z]\w+)",\s*\.since_version', text))
        names.update(re.findall(r'\{?\b[A-Z]+\((?:"[a-z.]*", )?"([A-Z]\w+)",', text))
    return names


def call_text(text: str, begin: int) -> str:
    depth, at = 1, begin
    while depth > 0 and at < len(text):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return text[begin:at - 1]


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    names = operator_names(root)
    if not {"Conv", "AllReduce", "Adam", "Reshape", "MaxPoolMask", "TreeFold"} <= names:
        print(f"the definitions in ops/op_defs*.c were not recognised: {sorted(names)}")
        return 1
    wrong, files = [], 0
    for path in sorted(p for folder in FOLDERS for p in (root / folder).rglob("*.[ch]")):
        relative = path.relative_to(root).as_posix()
        if relative.startswith(EXEMPT):
            continue
        files += 1
        text = path.read_text()
        code = re.sub(r"/\*.*?\*/", lambda c: re.sub(r"[^\n]", " ", c.group()), text, flags=re.S)
        for call in COMPARE.finditer(code):
            arguments = call_text(code, call.end())
            line = code.count("\n", 0, call.start()) + 1
            quoted = set(re.findall(r'"([A-Z]\w+)"', arguments)) & names
            if OF_DEFINITION.search(arguments) or quoted:
                wrong.append(f"{relative}:{line}: {call.group(1)}({' '.join(arguments.split())}): compares an operator's name")
        for row in re.finditer(r'\{\s*"([A-Z]\w+)"', code):  # a table of names
            if row.group(1) in names:
                wrong.append(f'{relative}:{code.count(chr(10), 0, row.start()) + 1}: {{"{row.group(1)}"..: a table of operators')
    for message in wrong:
        print(message)
    if wrong:
        print("state a fact in the definitions (weft_op_facts_t, ops/op_defs*.c) and read it with wefti_op_facts")
    print(f"{files} files, {len(names)} names of operators, {len(wrong)} comparisons")
    return 1 if wrong or files < 50 else 0


if __name__ == "__main__":
    sys.exit(main())
