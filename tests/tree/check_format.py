#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the form of the tree: C files are as clang-format writes them, lines of Markdown end at 100 columns and name
files that exist, shell scripts parse.

usage: check_format.py [--fix] [SOURCE_DIR]     --fix: clang-format rewrites the C files that differ
"""
import argparse
import fnmatch
import os
import pathlib
import re
import shutil
import subprocess
import sys

VERSION = 14  # of clang-format: others break lines elsewhere
COLUMNS = 100
SKIP_FOLDERS = {"build", "demo", ".git", "__pycache__"}
# Not formatted yet. Only ever shortened.
C_EXCEPTIONS: list[str] = []
# Longer lines than COLUMNS. Only ever shortened: a file here that has none is an error.
MARKDOWN_EXCEPTIONS: list[str] = [
    "tools/README.md",
]
# Pages of the past, whose files may be gone.
PATH_EXCEPTIONS = {"CHANGELOG.md"}


def tree(root: pathlib.Path) -> list[str]:
    """The files of the repository; without git all files but builds."""
    listed = subprocess.run(["git", "-c", f"safe.directory={root}", "-C", str(root), "ls-files", "-z"], capture_output=True,
                            text=True, check=False) if shutil.which("git") else None
    if listed is not None and listed.returncode == 0 and listed.stdout:
        return sorted(name for name in listed.stdout.split("\0") if name and (root / name).is_file())
    names = []
    for folder, folders, files in os.walk(root):
        folders[:] = [f for f in folders if f not in SKIP_FOLDERS and not f.startswith("build-")]
        names += [(pathlib.Path(folder) / name).relative_to(root).as_posix() for name in files]
    return sorted(names)


def find_clang_format() -> tuple[str | None, str]:
    """The program, or the reason why there is none."""
    reason = f"clang-format {VERSION} is not installed"
    for name in (f"clang-format-{VERSION}", "clang-format"):
        if shutil.which(name):
            version = subprocess.run([name, "--version"], capture_output=True, text=True, check=True).stdout
            found = re.search(r"version (\d+)", version)
            if found and int(found.group(1)) == VERSION:
                return name, ""
            reason = f"clang-format {VERSION} is needed, {name} is: {version.strip()}"
    return None, reason


def check_c(root: pathlib.Path, names: list[str], program: str, fix: bool) -> list[str]:
    wrong = []
    for start in range(0, len(names), 50):
        part = names[start:start + 50]
        if fix:
            subprocess.run([program, "-i", *part], cwd=root, check=True)
            continue
        result = subprocess.run([program, "--dry-run", "--Werror", *part], cwd=root, capture_output=True, text=True,
                                check=False)
        found = sorted(set(re.findall(r"^([^:\n]+):\d+:\d+: error", result.stderr, re.MULTILINE)))
        if result.returncode != 0 and not found:
            raise SystemExit(result.stderr)
        wrong += [f"{name}: is not as clang-format {VERSION} writes it: run {__file__} --fix" for name in found]
    return wrong


def check_markdown(root: pathlib.Path, names: list[str]) -> list[str]:
    wrong = []
    for name in names:
        lines = (root / name).read_text(encoding="utf-8").splitlines()
        long = [number for number, line in enumerate(lines, 1) if len(line) > COLUMNS]
        if name not in MARKDOWN_EXCEPTIONS:
            wrong += [f"{name}:{number}: {len(lines[number - 1])} columns, at most {COLUMNS}" for number in long]
        elif not long:
            wrong.append(f"{name}: has no line above {COLUMNS} columns: take it out of MARKDOWN_EXCEPTIONS")
    wrong += [f"{name}: is in MARKDOWN_EXCEPTIONS and does not exist" for name in MARKDOWN_EXCEPTIONS if name not in names]
    return wrong


def check_paths(root: pathlib.Path, names: list[str]) -> list[str]:
    """A path in backticks is a file or folder of the tree, or the start of one; a C file is one of some folder. A word in
    capitals is a placeholder."""
    wrong = []
    tops = {name.split("/")[0] for name in names if "/" in name}
    c_files = {name.split("/")[-1] for name in names if name.endswith(".c")}
    for page in (name for name in names if name.endswith(".md") and name not in PATH_EXCEPTIONS):
        folder = f"{pathlib.PurePath(page).parent.as_posix()}/"
        for number, line in enumerate((root / page).read_text(encoding="utf-8").splitlines(), 1):
            wrong += [f"{page}:{number}: no file {name}" for name in re.findall(r"`([a-z0-9_]+\.c)`", line)
                      if name not in c_files]
            for path in re.findall(r"`([a-z0-9_.-]+/[a-z0-9_./*-]*)`", line):
                near = any(name.startswith(folder + path.split("/")[0] + "/") for name in names)
                places = [path] * (path.split("/")[0] in tops) + [folder + path] * near
                if places and not any(fnmatch.fnmatch(name, f"{place}*") for place in places for name in names):
                    wrong.append(f"{page}:{number}: no file {path}")
    return wrong


def check_shell(root: pathlib.Path, names: list[str]) -> list[str]:
    wrong = []
    for name in names:
        with (root / name).open("rb") as file:
            first = file.readline()
        if not (name.endswith(".sh") or re.match(rb"#!.*\b(ba|da)?sh\b", first)):
            continue
        result = subprocess.run(["bash", "-n", name], cwd=root, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            wrong.append(result.stderr.strip())
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("--fix", action="store_true", help="let clang-format rewrite C files")
    options = parser.parse_args()
    root = options.source.resolve()
    names = tree(root)
    c_names = [n for n in names if n.endswith((".c", ".h")) and not n.startswith(tuple(C_EXCEPTIONS))]
    program, reason = find_clang_format()
    wrong = check_c(root, c_names, program, options.fix) if program else []
    wrong += check_markdown(root, [n for n in names if n.endswith(".md")])
    wrong += check_paths(root, names)
    wrong += check_shell(root, names)
    if len(c_names) < 100:
        wrong.append(f"only {len(c_names)} C files found in {root}")
    print("\n".join(wrong) or f"{len(names)} files have the form that they should have")
    if wrong:
        return 1
    if not program:
        print(f"skipped: {reason}; all other checks have passed")
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
