#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the code blocks of all Markdown pages of the tree.

usage: run_blocks.py SOURCE_DIR BINARY_DIR [CC] [-v] [PAGE.md ..]

The language of a fenced block decides, its info string says the rest (attributes: name, or name="value"):

    console   `$ command` lines are run by bash in order, in a scratch folder per page where the source tree is linked and the
              built `weft` is on PATH. The exit status must be 0 (or status="2"). Lines below a command are its output:
              `...` stands for any text, a line of `...` for any lines; decimal fractions and numbers with a unit of
              time or rate are not compared. A command without output lines may print anything.
    c         file="samples/.." : the block is that file without its leading comments; a block with main() is compiled and run as
              two ranks; any other block is compiled inside a function, after the declarations of C_PRELUDE and include=".. ..",
              internal headers.
    python    file=".." as for c; else it is run (alone, a world of one).
    json      is parsed.
    text, cmake, yaml, sh, diff, and blocks without a language (pictures) are not run.

    no-run="reason"   not run: what it needs is not there in CI. Its `weft` commands are still checked.
    needs="NAME .."   skipped where a command (or, with a slash, a file) is missing; a Python module is "python:NAME".
    same              a console block that goes on in the page's scratch folder (the default); fresh: starts another one.

Every `weft COMMAND --option` of any block or inline code must be an option that `weft help --json` lists, and relative links
must lead to files.
"""
import argparse
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

SKIPPED_FOLDERS = {"build", "demo", ".git", "node_modules"}
KNOWN = {"", "console", "c", "python", "json", "text", "cmake", "yaml", "sh", "diff", "onnx", "bash"}
# What fragments of C in pages may use without declaring it.
C_PRELUDE = """#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft/weft.h>
static weft_context_t *context; static weft_group_t *group; static weft_stream_t *stream; static weft_event_t *event;
static weft_session_t *session; static weft_plan_t *plan; static weft_fuser_t *fuser; static weft_capture_t *capture;
static float *x, *grad; static size_t count; static const float *images; static const int64_t *labels;
static size_t image_bytes, label_bytes;
static const weft_allocator_t *allocator; static weft_registry_t *registry; static weft_status_t status;
static void check(weft_status_t status) { if (status < 0) { puts(weft_last_error()); exit(1); } }
"""
TIMEOUT_S = 120


class Block:
    def __init__(self, page, line, info, text):
        self.page, self.line, self.text = page, line, text
        words = info.strip()
        match = re.match(r"[\w+-]*", words)
        self.language = match.group(0)
        self.attributes = {name: value for name, _, value in
                           re.findall(r'([\w-]+)(="([^"]*)")?', words[match.end():])}

    @property
    def place(self):
        return f"{self.page}:{self.line}"


def read_page(path, name):
    """The fenced blocks of a page, and its text without them."""
    blocks, prose, inside, info, start, lines, fence = [], [], False, "", 0, [], ""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = re.match(r"\s*(```+)(.*)$", line)
        if match and not inside:
            inside, fence, info, start, lines = True, match.group(1), match.group(2), number, []
        elif match and inside and match.group(1) == fence and not match.group(2).strip():
            inside = False
            blocks.append(Block(name, start, info, "\n".join(lines) + "\n"))
        elif inside:
            lines.append(line)
        else:
            prose.append((number, line))
    if inside:
        raise SystemExit(f"{name}:{start}: a code block that does not end")
    return blocks, prose


def commands_of(block):
    """(command, expected output lines, line number) of a console block."""
    result = []
    lines = block.text.splitlines()
    i = 0
    while i < len(lines):
        if not lines[i].startswith("$ "):
            raise ValueError(f"{block.page}:{block.line + 1 + i}: output before the first `$ command`")
        number = block.line + 1 + i
        command = lines[i][2:]
        while (command.endswith("\\") or heredoc_open(command)) and i + 1 < len(lines):
            i += 1
            command += "\n" + re.sub(r"^> ", "", lines[i])
        i += 1
        output = []
        while i < len(lines) and not lines[i].startswith("$ "):
            output.append(lines[i])
            i += 1
        result.append((command, output, number))
    return result


def heredoc_open(command):
    match = re.search(r"<<-?\s*'?(\w+)'?", command)
    return bool(match) and not re.search(rf"^{match.group(1)}$", command, re.MULTILINE)


NUMBER = r"(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|nan|inf)"


def pattern_of(line):
    """A line of expected output as a regular expression."""
    line = re.sub(r"\x1b\[[0-9;]*m", "", line.rstrip())
    tokens = re.split(r"(\.\.\.|\s+|" + NUMBER + r"\s*(?:ns|us|ms|s|min|%|[KMGT]i?B(?:/s)?|GB/s|images/s)(?![\w])|\d+\.\d+)", line)
    result = ""
    for token in tokens:
        if token == "...":
            result += ".*"
        elif not token:
            continue
        elif token.isspace():
            result += r"\s+"
        elif re.match(r"^" + NUMBER + r"\s*(?:ns|us|ms|s|min|%|images/s)$", token):
            unit = re.sub(r"^" + NUMBER, "", token).strip()
            result += NUMBER + r"\s*(?:ns|us|ms|s|min)" if unit in ("ns", "us", "ms", "s", "min") else NUMBER + r"\s*" + re.escape(unit)
        elif re.match(r"^\d+\.\d+$", token):
            result += r"\s*" + NUMBER
        else:
            result += re.escape(token)
    return re.compile(result + r"\s*$")


def output_matches(expected, got):
    """Greedy match of expected lines against got; `...` lines skip any number of lines. Returns what is missing, or None."""
    got = [re.sub(r"\x1b\[[0-9;]*m", "", line.split("\r")[-1].rstrip()) for line in got]
    got = [line for line in got if line]
    expected = [line for line in expected if line.strip()]

    def match(e, g):
        while e < len(expected):
            if expected[e].strip() == "...":
                if e + 1 == len(expected):
                    return True
                return any(match(e + 1, k) for k in range(g, len(got)))
            if g == len(got) or not pattern_of(expected[e]).match(got[g]):
                failed[0] = max(failed[0], e)
                return False
            e, g = e + 1, g + 1
        return g == len(got)

    failed = [0]
    if match(0, 0):
        return None
    return expected[failed[0]] if failed[0] < len(expected) else "(end of the output)"


class Options:
    """The commands and options of the built tool, as `weft help --json` lists them."""

    def __init__(self, weft):
        out = subprocess.run([weft, "help", "--json"], capture_output=True, text=True)
        if out.returncode != 0:
            raise SystemExit("run_blocks.py: weft help --json: " + (out.stderr.strip() or f"exit status {out.returncode}"))
        self.commands = {"help": {"--json", "--help", "-h"}}
        for command in json.loads(out.stdout)["commands"]:
            names = {"--help", "-h"}
            for option in command["options"]:
                if option.get("long"):
                    names.add("--" + option["long"].lstrip("-"))
                if option.get("short"):
                    names.add("-" + option["short"].lstrip("-"))
            self.commands[command["name"]] = names

    def faults(self, text):
        """What is wrong with the `weft ..` commands in a piece of text."""
        wrong = []
        text = re.sub(r"\\\n", " ", text)
        for match in re.finditer(r"(?<![\w/.-])weft ([a-z]+)((?:[^`\n|;&)]|)*)", text):
            name, rest = match.groups()
            if name not in self.commands:
                if re.search(r"(^|\s)--?[a-z]", rest):
                    wrong.append(f"weft has no command '{name}'")
                continue
            rest = re.split(r"\s--\s", rest + " ")[0].split("  ")[0]
            for option in re.findall(r"(?<![\w-])(--?[a-z][\w-]*)", rest):
                if option not in self.commands[name] and name != "help":
                    wrong.append(f"weft {name} has no option {option}")
        return wrong


class Runner:
    def __init__(self, source, binary, compiler, verbose):
        self.source, self.binary, self.compiler, self.verbose = source, binary, compiler, verbose
        self.options = Options(binary / "weft")
        self.failures, self.skips = [], []
        self.counts = {}

    def fail(self, place, text):
        self.failures.append(f"{place}: {text}")

    def count(self, kind):
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def environment(self, scratch):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WEFT_", "OMPI_", "PMI"))}
        kept.update(PATH=f"{scratch}/.bin:{kept.get('PATH', '/usr/bin:/bin')}", LC_ALL="C.UTF-8", HOME=str(scratch),
                    XDG_CACHE_HOME=f"{scratch.parent}/.cache", PYTHONPATH=str(self.binary / "python"), TERM="dumb", COLUMNS="100",
                    OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1")
        return kept

    def make_scratch(self, parent):
        scratch = pathlib.Path(tempfile.mkdtemp(dir=parent))
        for entry in self.source.iterdir():
            if entry.name not in SKIPPED_FOLDERS and not entry.name.startswith("build"):
                (scratch / entry.name).symlink_to(entry)
        (scratch / "build").symlink_to(self.binary)
        (scratch / ".bin").mkdir()
        (scratch / ".bin" / "weft").symlink_to(self.binary / "weft")
        python = scratch / ".bin" / "python3"  # the interpreter that runs this, which may be that of a virtual environment
        python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        python.chmod(0o755)
        return scratch

    def missing(self, block):
        for need in block.attributes.get("needs", "").split():
            if need.startswith("python:"):
                found = subprocess.run([sys.executable, "-c", f"import {need[7:]}"], capture_output=True).returncode == 0
            elif "/" in need:
                found = pathlib.Path(need).exists() or (self.source / need).exists()
            else:
                found = shutil.which(need, path="/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin") is not None
            if not found:
                return need
        return None

    def run_console(self, block, scratch):
        try:
            commands = commands_of(block)
        except ValueError as error:
            return self.fail("", str(error).lstrip(": "))
        wanted = int(block.attributes.get("status", "0"))
        for command, expected, line in commands:
            place = f"{block.page}:{line}"
            if self.verbose:
                print(f"{place}: $ {command}", flush=True)
            # A shell per command; `cd` and `export` reach the next one through a file.
            state = f"{scratch}/.state"
            script = (f"set -a; [ -f {state} ] && . {state}\n{command}\nstatus=$?\n"
                      f"{{ export -p; echo \"cd '$PWD'\"; }} >{state}\nexit $status\n")
            try:
                done = subprocess.run(["bash", "-c", script], cwd=scratch, env=self.environment(scratch), text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                      timeout=TIMEOUT_S)
            except subprocess.TimeoutExpired:
                return self.fail(place, f"no end after {TIMEOUT_S} s: {command}")
            self.count("commands")
            if done.returncode != wanted:
                return self.fail(place, f"exit status {done.returncode}, expected {wanted}: {command}\n{done.stdout[-3000:]}")
            if expected:
                miss = output_matches(expected, done.stdout.splitlines())
                if miss is not None:
                    return self.fail(place, f"the output of `{command}` is not as shown, from: {miss}\n--- it printed\n{done.stdout[-4000:]}")

    def compare_file(self, block):
        path = self.source / block.attributes["file"]
        if not path.exists():
            return self.fail(block.place, f"no file {block.attributes['file']}")
        text = re.sub(r"\A(?:\s*/\*.*?\*/\s*\n|#!.*\n|# SPDX.*\n|\"\"\".*?\"\"\"\n|\s*\n)*", "", path.read_text(), flags=re.DOTALL)
        block_text = re.sub(r"\A(?:\s*/\*.*?\*/\s*\n)*", "", block.text, flags=re.DOTALL)
        if "part" in block.attributes:
            squeeze = lambda t: [line.strip() for line in t.splitlines() if line.strip()]
            have, want = squeeze(text), squeeze(block.text)
            if not any(have[i:i + len(want)] == want for i in range(len(have))):
                self.fail(block.place, f"the lines are not in {block.attributes['file']}")
        elif text.strip() != block_text.strip():
            self.fail(block.place, f"differs from {block.attributes['file']}")
        self.count("compared with files")

    def run_c(self, block, scratch):
        if "file" in block.attributes:
            return self.compare_file(block)
        program = re.search(r"\bmain\(", block.text) is not None
        source = scratch / "block.c"
        if program:
            source.write_text(block.text)
        else:
            includes = "".join(re.findall(r"^#include.*\n", block.text, re.MULTILINE))
            body = re.sub(r"^#include.*\n", "", block.text, flags=re.MULTILINE)
            includes += "".join(f'#include "{header}"\n' for header in block.attributes.get("include", "").split())
            end = "fail:" if re.search(r"\bfail\)", body) else ""
            source.write_text(f"{includes}{C_PRELUDE}int main(void)\n{{\n{body}\n{end} return 0;\n}}\n")
        flags = ["-std=c11", "-Wall", "-Werror", "-Wno-unused", "-Wno-maybe-uninitialized", "-D_GNU_SOURCE", f"-I{self.source}/include", f"-I{self.source}"]
        tail = ["-o", scratch / "block", f"-L{self.binary}", "-lweft", f"-Wl,-rpath,{self.binary}"] if program else ["-fsyntax-only"]
        done = subprocess.run([self.compiler, *flags, source, *tail], capture_output=True, text=True)
        self.count("C blocks")
        if done.returncode != 0:
            return self.fail(block.place, f"does not compile\n{done.stderr[-3000:]}")
        if program:
            done = subprocess.run(["weft", "run", "-n", "2", "--", scratch / "block"], cwd=scratch, capture_output=True, text=True,
                                  env=self.environment(scratch), timeout=TIMEOUT_S)
            if done.returncode != 0:
                self.fail(block.place, f"exit status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")

    def run_python(self, block, scratch):
        if "file" in block.attributes:
            return self.compare_file(block)
        self.count("Python blocks")
        compile(block.text, block.place, "exec")
        if not (self.binary / "python" / "weft").exists():
            return self.skips.append(f"{block.place}: the Python package is not built")
        done = subprocess.run([sys.executable, "-c", block.text], cwd=scratch, env=self.environment(scratch), capture_output=True,
                              text=True, timeout=TIMEOUT_S)
        if done.returncode != 0:
            self.fail(block.place, f"exit status {done.returncode}\n{done.stderr[-3000:]}")

    def check_links(self, path, name, prose):
        """Relative links lead to files of the tree."""
        text = "\n".join(line for _, line in prose)
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", text)):
            if not re.match(r"[a-z]+:|#", target) and not (path.parent / target.split("#")[0]).exists():
                self.fail(name, f"a link to nothing: {target}")

    def run_page(self, path, parent):
        name = path.relative_to(self.source).as_posix()
        blocks, prose = read_page(path, name)
        self.check_links(path, name, prose)
        for number, line in prose:
            for code in re.findall(r"`([^`]+)`", line):
                for fault in self.options.faults(code):
                    self.fail(f"{name}:{number}", fault)
        scratch = None
        for block in blocks:
            if block.language not in KNOWN:
                self.fail(block.place, f"unknown language '{block.language}'")
                continue
            # What a command refuses may be shown: its options need not exist.
            shown_wrong = block.attributes.get("status", "0") != "0" or re.search(r"unknown option", block.text)
            for fault in [] if shown_wrong else self.options.faults(block.text):
                self.fail(block.place, fault)
            if block.language == "json" and "no-run" not in block.attributes:
                try:
                    json.loads(block.text)
                except ValueError as error:
                    self.fail(block.place, f"not JSON: {error}")
            run = {"console": self.run_console, "c": self.run_c, "python": self.run_python}.get(block.language)
            if run is None:
                continue
            if "no-run" in block.attributes:
                self.count("not run")
                if not block.attributes["no-run"]:
                    self.fail(block.place, "no-run needs a reason")
                continue
            need = self.missing(block)
            if need:
                self.skips.append(f"{block.place}: {need} is not here")
                continue
            if scratch is None or "fresh" in block.attributes:
                scratch = self.make_scratch(parent)
            try:
                run(block, scratch)
            except subprocess.TimeoutExpired:
                self.fail(block.place, f"no end after {TIMEOUT_S} s")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("compiler", nargs="?", default="cc")
    parser.add_argument("-v", "--verbose", action="store_true")
    parser.add_argument("--page", action="append", default=[])
    arguments = parser.parse_args()
    source, binary = arguments.source.resolve(), arguments.binary.resolve()
    runner = Runner(source, binary, arguments.compiler, arguments.verbose)
    pages = []
    for folder, folders, files in os.walk(source):
        folders[:] = sorted(f for f in folders if f not in SKIPPED_FOLDERS and not f.startswith(("build", ".")))
        pages += [pathlib.Path(folder) / f for f in sorted(files) if f.endswith(".md")]
    if arguments.page:
        pages = [source / page for page in arguments.page]
    with tempfile.TemporaryDirectory(prefix="weft-docs-") as parent:
        # The first compile calibrates the machine and says so; pages show what later ones print.
        warm = runner.make_scratch(parent)
        subprocess.run(["weft", "compile", "samples/models/mlp.onnx", "-o", "warm.weft", "-n", "2", "--batch", "64"], cwd=warm,
                       env=runner.environment(warm), capture_output=True)
        for page in pages:
            runner.run_page(page, parent)
    for skip in runner.skips:
        print("skipped: " + skip)
    for failure in runner.failures:
        print("FAILED: " + failure)
    print(f"{len(pages)} pages, " + ", ".join(f"{n} {kind}" for kind, n in sorted(runner.counts.items())) +
          f"; {len(runner.skips)} skipped, {len(runner.failures)} failed")
    return 1 if runner.failures else 0


if __name__ == "__main__":
    sys.exit(main())
