#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what Doxygen does not: that the comment of each public function has the parameters of its declaration in their
order and direction, a @return if it returns something, whether it is local, collective or blocking (or its header states
that for all), and, for collectives, the names in MPI and NCCL of WEFT_COLLECTIVE_MAP. The tree uses no name of
weft/deprecated_names.h.

usage: check_comments.py SOURCE_DIR
"""
import importlib.util
import pathlib
import re
import sys

FUNCTION = re.compile(r"/\*\*((?:(?!\*/).)*)\*/\s*WEFT_API ([^;]*?)(\w+)\(([^;]*)\);", re.S)
KIND = re.compile(r"\blocal\b|\bcollective\b|blocking\b|any thread|\bwaits\b|called in build", re.I)


def plain(comment):
    """A comment without its asterisks, on one line."""
    return " ".join(re.sub(r"^\s*\* ?", "", comment, flags=re.M).split())


def direction(parameter):
    """The direction that a declaration implies; None where a comment decides."""
    if "*" not in parameter or re.search(r"\bconst\b[^*]*\*", parameter) and "**" not in parameter:
        return "in"
    return "out" if re.search(r"\*\s*\*?\s*out_\w+$", parameter) else None


def check(function, result, parameters, comment, is_stated):
    """Faults of one comment."""
    declared = [] if parameters.strip() == "void" else [" ".join(p.split()) for p in parameters.split(",")]
    documented = re.findall(r"@param\[([a-z,]+)\] +(\w+)", comment)
    names = [re.search(r"(\w+)(?:\[\w*\])?$", p)[1] for p in declared]
    if [name for _, name in documented] != names:
        yield f"{function}: @param of {', '.join(n for _, n in documented)}; declared are {', '.join(names)}"
    for (given, name), parameter in zip(documented, declared):
        if direction(parameter) not in (None, given):
            yield f"{function}: {name} is [{given}], its declaration implies [{direction(parameter)}]"
    if (result.strip() != "void") != ("@return" in comment):
        yield f"{function}: returns {result.strip()}, @return is {'there' if '@return' in comment else 'missing'}"
    if not is_stated and not KIND.search(comment.split("@param")[0].split("@return")[0]):
        yield f"{function}: neither local, collective, blocking nor \"any thread\""


def read_rows(source):
    """Names in MPI and NCCL by function."""
    spec = importlib.util.spec_from_file_location("generate", source / "docs" / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    return {function: like for function, *_, like in generate.collective_rows()}


def deprecated_names(source):
    """Uses of deprecated names."""
    aliases = source / "include/weft/deprecated_names.h"
    found = re.findall(r"^#define (WEFT_\w+) WEFT_", aliases.read_text(), re.M)
    names = re.compile(r"\b(" + "|".join(found) + r")\b")
    for folder in ("include", "runtime", "ops", "transport", "graph", "fusion", "tools", "python/src", "samples", "tests"):
        for path in sorted((source / folder).rglob("*.[ch]")):
            for name in sorted(set(names.findall(path.read_text()))) if path != aliases else []:
                yield f"{path.relative_to(source)}: {name} is deprecated (include/weft/deprecated_names.h)"


def main() -> int:
    source = pathlib.Path(sys.argv[1])
    rows = read_rows(source)
    faults, count = list(deprecated_names(source)), 0
    for header in sorted((source / "include/weft").glob("*.h")):
        text = header.read_text()
        head = plain(text[:text.index("#ifndef")])
        is_stated = re.search("functions of this header are (local|collective)", head) is not None
        for comment, result, function, parameters in FUNCTION.findall(text):
            count += 1
            comment = plain(comment)
            faults += check(function, result, parameters, comment, is_stated)
            if function in rows and not comment.endswith(f"Equivalent to: {rows[function]}"):
                faults.append(f"{function}: expected \"Equivalent to: {rows[function]}\" (WEFT_COLLECTIVE_MAP)")
        if len(FUNCTION.findall(text)) != len(re.findall(r"^WEFT_API ", text, re.M)):
            faults.append(f"{header.name}: a function has no comment")
    print("\n".join(faults) or f"{count} functions")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
