#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the symbols of all object files against the table of folders (FOLDERS in check_includes.py).

An object may use a symbol of ours only if its folder may include the folder of the file that defines the symbol.
Folders above the others (ABOVE) may use all public symbols (weft_*) as well. So no folder links one above it.

In FOLDERS_WITHOUT_UNUSED every function that folders share has a caller, in its own file or elsewhere. A function that
only tests call is in FOR_TESTS. No files of FOLDERS_WITHOUT_CIRCLES use each other in a circle. In the path of one call
(ARCHITECTURE.md), each file uses the next one.

usage: check_links.py NM OBJECTS_FILE

OBJECTS_FILE has the path of an object per line, as CMake names them: <folder>/CMakeFiles/<target>.dir/<source>.o
"""
import pathlib
import re
import subprocess
import sys

from check_includes import ABOVE, FOLDERS, folder_of

FOLDERS_WITHOUT_UNUSED = set(FOLDERS)
FOLDERS_WITHOUT_CIRCLES = ("graph/", "fusion/", "runtime/")
FOR_TESTS = {
    "wefti_graph_from_text",  # graphs as text
    "wefti_schedule_judge_graph",  # the cost of an order, compared with its plan
    "wefti_hub_set_fabric",  # simulated hosts
}


def source_of(path):
    """build/ops/CMakeFiles/weft_ops.dir/algo/ring.c.o -> ops/algo/ring.c"""
    tops = "|".join(sorted({*FOLDERS, "runtime"}, key=len, reverse=True))
    found = re.search(rf"(?:^|/)({tops})/CMakeFiles/[a-z_]+\.dir/(?:\./)?(.*)\.o$", path)
    if not found:
        sys.exit(f"{path}: not a path of an object file")
    return f"{found[1]}/{found[2]}"


def read_symbols(nm, objects):
    """-> symbol: the source that defines it; source: set of the symbols that it uses"""
    listing = subprocess.run([nm, "-A", "-g", *objects], check=True, capture_output=True, text=True).stdout
    defined, used = {}, {source_of(path): set() for path in objects}
    for line in listing.splitlines():
        path, rest = line.rsplit(":", 1)
        kind, name = rest.split()[-2:]
        if kind in "Uwv":
            used[source_of(path)].add(name)
        else:
            defined[name] = source_of(path)
    return defined, used


def may_use(user, symbol, source):
    folder = folder_of(user)
    if folder in ABOVE and symbol.startswith("weft_"):
        return True
    prefixes = [prefix[: prefix.rindex("/") + 1] for prefix in FOLDERS[folder][1]]
    return any(source.startswith(p) and folder_of(p) == folder_of(source) for p in prefixes)


def find_unused(root, defined, used):
    """Functions that nothing calls; nm does not show calls within a file, so its text is searched."""
    called = set().union(FOR_TESTS, *used.values())
    for symbol, source in defined.items():
        if symbol.startswith("wefti_") and symbol not in called and folder_of(source) in FOLDERS_WITHOUT_UNUSED:
            text = re.sub(r"/\*.*?\*/", "", (root / source).read_text(), flags=re.DOTALL)
            if len(re.findall(rf"\b{symbol}\b", text)) == 1:
                yield f"{source}: nothing calls {symbol}; delete it, or add it to FOR_TESTS"


def find_circles(defined, used):
    """Removes files that use no other file until none is left, or those of circles and their users."""
    files = {s for s in used if s.startswith(FOLDERS_WITHOUT_CIRCLES)}
    uses = {file: {defined[s] for s in used[file] if s in defined} & files - {file} for file in files}
    for direction in (uses, {file: {user for user in files if file in uses[user]} for file in files}):
        while leaves := {file for file in files if not direction[file] & files}:
            files -= leaves
    for file in sorted(files):
        yield f"{file}: in a circle with {', '.join(sorted(uses[file] & files))}"


def find_gaps(root, defined, used):
    """The path of one call in ARCHITECTURE.md, step by step."""
    section = (root / "ARCHITECTURE.md").read_text().partition("## The path of one call")[2].partition("## ")[0]
    files = re.findall(r"^\d+\. `(.*\.c)`", section, re.MULTILINE)
    for user, file in zip(files, files[1:]):
        if not any(defined.get(symbol) == file for symbol in used.get(user, ())):
            yield f"ARCHITECTURE.md: {user} does not use {file}"
    if not 2 <= len(files) <= 7:
        yield f"ARCHITECTURE.md: the path of one call has {len(files)} files after the header"


def main() -> int:
    nm, objects_file = sys.argv[1:]
    objects = pathlib.Path(objects_file).read_text().split()
    missing = [path for path in objects if not pathlib.Path(path).exists()]
    if missing:
        sys.exit(f"{missing[0]}: not built; this test needs the whole build")
    defined, used = read_symbols(nm, objects)
    wrong = sorted(find_unused(pathlib.Path(__file__).parents[2], defined, used))
    wrong += find_circles(defined, used)
    wrong += find_gaps(pathlib.Path(__file__).parents[2], defined, used)
    checked = 0
    for source, symbols in sorted(used.items()):
        for symbol in sorted(symbols & defined.keys()):
            checked += 1
            if not may_use(source, symbol, defined[symbol]):
                wrong.append(f"{source}: {folder_of(source)} may not use {symbol} of {defined[symbol]}")
    print("\n".join(wrong) or f"{checked} uses of symbols are as the table says")
    return 1 if wrong or checked < 1000 else 0


if __name__ == "__main__":
    sys.exit(main())
