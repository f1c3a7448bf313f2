#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the parts of the documents that come from the program and from tables of the tree.

usage: docs/generate.py [--check] [--weft build/weft] [PART ..]

    commands      docs/commands.md and docs/man/*.1        from `weft help --json`
    settings      docs/settings.md                         from `weft help --json`
    options       docs/options.md, weft.compile in python/weft/plans.py        from `weft help --json`
    operators     docs/operators.md                        from `weft ops --json`
    pictures      docs/pictures/*.svg                      from docs/pictures/*.txt (docs/pictures/draw.py)
    passes        the table of fusion/README.md            from `weft compile --list-passes --json`
    folders       the tables of ARCHITECTURE.md            from tests/tree/check_includes.py
    collectives   the table of docs/api.md                 from WEFT_COLLECTIVE_MAP (include/weft/types.h)

--check writes nothing, lists what is out of date, and exits with 1 if anything is.
"""
import argparse
import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATE = "2026-11"  # of the manual; changes with a release, not with a build
NOTE = "<!-- Written by docs/generate.py from {}. Do not edit. -->\n"


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wrap(text, indent="", first=None):
    """Lines of at most 100 columns; line breaks of the text stay."""
    lines = []
    for number, line in enumerate(text.rstrip("\n").split("\n")):
        start = first if first is not None and number == 0 else indent
        lines.append(textwrap.fill(line, 100, initial_indent=start, subsequent_indent=indent,
                                   break_long_words=False, break_on_hyphens=False) if line.strip() else "")
    return "\n".join(lines)


def markdown(text):
    """Words such as --option and PLAN.weft are kept from being read as markup."""
    return re.sub(r"(?<![\w`])([<*])", r"\\\1", text)


# ---- commands ----

def option_head(option):
    head = []
    arg = " " + option["arg"] if option.get("arg") else ""
    if option.get("short"):
        head.append("-" + option["short"] + ("" if option.get("long") else arg))
    if option.get("long"):
        head.append("--" + option["long"] + arg)
    return ", ".join(head)


def forms(command):
    return [f"weft {command['name']} {line}".rstrip() for line in (command.get("synopsis") or "").split("\n")]


def commands_page(data):
    out = [NOTE.format("`weft help --json`"), "# Commands\n",
           wrap("The command `weft` has these subcommands. `weft help COMMAND` and `weft COMMAND --help` print what this "
                "page holds; `man weft-COMMAND` has it as well once Weft is installed. `--json` prints a machine-readable "
                "result on standard output."), ""]
    for command in data["commands"]:
        brief = command.get("brief") or command.get("summary", "").split("\n")[0]
        out.append(wrap(f"- [`weft {command['name']}`](#weft-{command['name']}): {brief}", "  ", ""))
    out += ["", "| exit status | meaning |", "|---|---|"]
    out += [f"| {code} | {meaning} |" for code, meaning in data.get("exit_status", {}).items()]
    out += ["", "The environment variables that change settings are in [settings.md](settings.md).", ""]
    for command in data["commands"]:
        out += [f"## weft {command['name']}\n", "```text"]
        for form in forms(command):
            out.append(textwrap.fill(form, 100, subsequent_indent=" " * (6 + len(command["name"])), break_long_words=False,
                                     break_on_hyphens=False))
        out += ["```\n", wrap(markdown(command.get("summary", ""))), ""]
        for option in command["options"]:
            out.append(wrap(f"- `{option_head(option)}`: {markdown(option['help'])}", "  ", ""))
        if command.get("epilogue"):
            out += ["", "```text", command["epilogue"].strip("\n"), "```"]
        out.append("")
    return "\n".join(out).rstrip() + "\n"


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def roff_paragraphs(text):
    return "\n".join(".PP\n" + roff(line) if line.strip() else "" for line in text.strip().split("\n"))


def man_head(title, version):
    return [".\\\" SPDX-License-Identifier: Apache-2.0", ".\\\" Written by docs/generate.py from `weft help --json`. Do not edit.",
            f".TH {title.upper()} 1 \"{DATE}\" \"weft {version}\" \"User Commands\"", ".nh", ".SH NAME"]


def man_exit(data):
    out = [".SH EXIT STATUS"]
    for code, meaning in data.get("exit_status", {}).items():
        out += [".TP", f".B {code}", roff(meaning)]
    return out


def man_page(command, data):
    out = man_head(f"weft-{command['name']}", data["version"])
    out += [roff(f"weft-{command['name']} - {command.get('brief') or command['summary'].splitlines()[0]}"), ".SH SYNOPSIS"]
    for number, form in enumerate(forms(command)):
        out += ([".br"] if number else []) + [".B " + roff(f"weft {command['name']}"), roff(form[len("weft " + command["name"]):].strip())]
    out += [".SH DESCRIPTION", roff_paragraphs(command.get("summary", "")), ".SH OPTIONS"]
    for option in command["options"]:
        out += [".TP", ".B " + roff(option_head(option)), roff(option["help"])]
    if command.get("epilogue"):
        out += [".SH EXAMPLES", ".EX", roff(command["epilogue"].strip("\n")), ".EE"]
    out += man_exit(data)
    others = ["weft"] + ["weft-" + other["name"] for other in data["commands"] if other is not command]
    out += [".SH SEE ALSO", ",\n".join(f".BR {roff(name)} (1)" for name in others).replace(",\n.BR", " ,\n.BR")]
    return "\n".join(line for line in out if line) + "\n"


def man_front(data):
    out = man_head("weft", data["version"])
    out += [roff("weft - collectives as operators of a compute graph"), ".SH SYNOPSIS", ".B weft", "COMMAND [options]", ".br",
            ".B weft help", "[COMMAND]", ".SH DESCRIPTION",
            roff("Weft compiles an ONNX model with its collectives to a plan and replays the plan on every rank."), ".SH COMMANDS"]
    for command in data["commands"]:
        out += [".TP", f".BR {roff('weft-' + command['name'])} (1)", roff(command.get("brief") or command["summary"].splitlines()[0])]
    out += [".SH ENVIRONMENT"]
    for setting in data.get("settings", []):
        out += [".TP", ".B " + roff(setting["name"]), roff(setting_text(setting))]
    out += man_exit(data)
    return "\n".join(out) + "\n"


def setting_text(setting):
    unit = f" [{setting['unit']}]" if setting.get("unit") else ""
    default = f" Default: {setting['default']}." if setting.get("default") else ""
    equal = " Equal on all ranks." if setting.get("equal_on_all_ranks") else ""
    return f"{setting['help']}{unit}.{default}{equal}"


def settings_page(data):
    out = [NOTE.format("`weft help --json`"), "# Settings\n",
           wrap("Environment variables change settings of the library, of the command and of the Python package. `weft info` "
                "prints the value of each. A setting marked *equal on all ranks* is compared when ranks join; a difference is "
                "an error that names both values."), ""]
    for setting in data.get("settings", []):
        equal = ", equal on all ranks" if setting.get("equal_on_all_ranks") else ""
        unit = f" {setting['unit']}" if setting.get("unit") else ""
        default = f"default `{setting['default']}`{unit}" if setting.get("default") else "unset by default" + (f", in{unit}" if unit else "")
        out.append(wrap(f"- `{setting['name']}` ({default}{equal}): {markdown(setting['help'])}", "  ", ""))
    return "\n".join(out) + "\n"


# ---- options of compiling ----

PYTHON_TYPES = {"u32": "int", "i64": "int", "bytes": "int | str", "f64": "float", "text": "str", "path": "_Path", "ops": "_Path",
                "plugins": "_Path | Sequence[_Path]", "shapes": "dict[str, Sequence[int]]"}


def option_facts(option):
    low, high = f"{option['low']:g}", f"{option['high']:.10g}"
    if option["type"] == "f64":
        yield ("0 or more" if option["zero"] else f"above {low}") + (f", below {high}" if option["high"] else "")
    elif option["type"] in ("u32", "i64"):
        yield f"{low} to {high}"
    yield from (fact for fact in ("training", "inference", "recorded") if option[fact])


def options_page(data):
    out = [NOTE.format("`weft help --json`"), "# Options of compiling\n",
           wrap("One table (`weft_compile_option` in `include/weft/compile.h`, the rows in `fusion/options.c`) describes every field of "
                "`weft_compile_params_t`. From it come the options of `weft compile`, `weft check` and `weft run MODEL.onnx`, the "
                "keywords of `weft.compile`, the properties of a compiled graph, the error messages about wrong values and "
                "combinations, and this page."), "",
           wrap("A message of the library names the field. The command adds its option and Python its keyword, where the name "
                "differs. *Recorded*: a compiled graph (`--emit-onnx`) has it as property `weft.NAME`; compiling that graph uses it "
                "and refuses another value."), "", "## Options\n"]
    for option in (option for option in data["compile_options"] if option["name"]):
        head = (option["arg"] if option["positional"] else option_head({"long": option["name"].replace("_", "-"), **option}))
        keyword = "" if option["reported"] else f" `{option['name']}=`,"
        facts = "; ".join(option_facts(option))
        out.append(wrap(f"- `{head}`,{keyword} field `{option['field']}`" + (f" ({facts})" if facts else "") +
                        f": {markdown(option['help'])}", "  ", ""))
    out += ["", "## Fields that only programs set\n"]
    out += [f"- `{option['field']}`: {option['help']}" for option in data["compile_options"] if not option["name"]]
    return "\n".join(out) + "\n"


def compile_section(data):
    """The signature of weft.compile."""
    given, seen = [], set()
    for option in data["compile_options"]:
        name, kind = option["name"], PYTHON_TYPES.get(option["type"], "Any")
        if not name or name in seen or option["reported"]:
            continue
        seen.add(name)
        if option["choices"]:
            kind = "Literal[" + ", ".join(f'"{choice}"' for choice in option["choices"]) + "]"
        if option["list"]:
            kind = "str | Sequence[str]"
        given.append(f"{name}: Any, *" if option["positional"] else f"{name}: bool = False" if option["type"] == "flag"
                     else f"{name}: {kind} | None = None")
    lines, line = [], "   "
    for text in given:
        if len(line) + len(text) + 2 > 120:
            lines.append(line)
            line = "   "
        line += f" {text},"
    return "def compile(\n" + "\n".join(lines + [line]) + "\n) -> Plan:\n    return _compile(locals())\n"


# ---- operators ----

def count_text(low, high):
    if high is None or high < 0 or high >= 255:
        return f"{low} or more"
    return str(low) if low == high else f"{low} to {high}"


def operators_page(data):
    domains = {"": "ONNX (domain `ai.onnx`)", "com.microsoft": "Domain `com.microsoft`", "weft": "Domain `weft`"}
    out = [NOTE.format("`weft ops --json`"), "# Operators\n",
           wrap("Every operator that has a definition. `weft ops` prints the same list, `weft check MODEL.onnx` says which of them "
                "a model uses and what is missing. An operator that is not in this list is declared in a JSON file "
                "([ops/README.md](../ops/README.md)) or registered by a program "
                "([samples/custom_kernel](../samples/custom_kernel/README.md))."), "",
           wrap("Where an operator has several versions, the attributes of the newest one are listed. `weft check` also says "
                "which operators have a kernel."), "",
           wrap("The words in parentheses are facts that passes use: *elementwise*, *view* (the same elements in the same order), "
                "*commutative*, *linear in* an input, *mixes axis* (elements along attribute `axis` meet; *mixes from 2*: in all "
                "dimensions but batch and channels), *in place* (output 0 may overwrite an input), *channels last* (accepts that "
                "layout). `include/weft/registry.h` defines them."), ""]
    names = sorted({op["domain"] for op in data["operators"]}, key=lambda d: (d != "", d))
    for domain in names:
        out += [f"## {domains.get(domain, 'Domain `' + domain + '`')}\n"]
        versions = {}
        for op in data["operators"]:
            if op["domain"] == domain:
                versions.setdefault(op["name"], []).append(op)
        for same in versions.values():
            op = max(same, key=lambda op: op["since_version"])
            since = sorted(op["since_version"] for op in same)
            shown = "version " + str(since[0]) if len(since) == 1 else "versions " + ", ".join(map(str, since))
            facts = [shown if op["domain"] == "" else "",
                     f"{count_text(op['inputs_min'], op['inputs_max'])} in, {count_text(op['outputs_min'], op['outputs_max'])} out",
                     ", ".join(fact.replace("_", " ") for fact in op.get("facts", [])),
                     "linear in " + " and ".join(map(str, op["linear_inputs"])) if op.get("linear_inputs") else "",
                     f"gradient: {op['gradient']}" if op.get("gradient") else "",
                     f"as {op['equivalent']}" if op.get("equivalent") else ""]
            text = f"- `{op['name']}` ({'; '.join(f for f in facts if f)}): {markdown(op['doc'])}"
            out.append(wrap(text, "  ", ""))
            for attr in op.get("attributes", []):
                default = f", default `{attr['default']}`" if attr.get("default") not in (None, "") else ""
                must = ", required" if attr.get("required") else ""
                doc = f": {markdown(attr['doc'])}" if attr.get("doc") else ""
                out.append(wrap(f"  - `{attr['name']}` ({attr['type']}{default}{must}){doc}", "    ", ""))
        out.append("")
    return "\n".join(out).rstrip() + "\n"


# ---- tables of the tree ----

def folders_section():
    table = load(ROOT / "tests" / "tree" / "check_includes.py", "check_includes")
    out = ["| folder | holds | may include |", "|---|---|---|"]
    for folder, (holds, allowed) in table.FOLDERS.items():
        may = ", ".join(f"`{prefix}`" for prefix in allowed) or "the public headers only"
        row = f"| `{folder}` | {holds} | {may} |"
        if len(row) > 100 or folder.startswith("runtime/") and folder != "runtime/base":  # see the lists below
            row = f"| `{folder}` | {holds} | see below |"
        out.append(row)
    rooms = {f"runtime/{room}": uses for room, (_, *uses) in table.RUNTIME.items()}
    for folder, (holds, allowed) in table.FOLDERS.items():
        if folder not in rooms and len(f"| `{folder}` | {holds} | " + ", ".join(f"`{p}`" for p in allowed) + " |") > 100:
            out += ["", wrap(f"`{folder}` may include " + ", ".join(f"`{prefix}`" for prefix in allowed) + ".")]
    out += ["", wrap("Rooms of the runtime may include `runtime/base/`, `runtime/machine/`, `ops/`, `transport/`, themselves, and:"), ""]
    out += ["| room | rooms that it may include |", "|---|---|"]
    out += [f"| `{room}` | {', '.join(uses) or 'none'} |" for room, uses in rooms.items()]
    out += ["", "Libraries stay in one corner each:", "", "| header | included only by |", "|---|---|"]
    for header, place in table.CORNERS.items():
        places = re.sub(r"\[a-z_\]\*|\\", lambda m: "*" if m.group(0).startswith("[") else "", place).strip("()").split("|")
        out.append(f"| `{header}` | " + ", ".join(f"`{p}`" for p in places) + " |")
    return "\n".join(out) + "\n"


def passes_section(data):
    out = ["| pass | runs in | what it does |", "|---|---|---|"]
    out += [f"| `{p['name']}` | {p['runs_in']} | {p['summary']} |" for p in data["passes"]]
    return "\n".join(out) + "\n"


def collective_rows():
    """Rows of WEFT_COLLECTIVE_MAP: function, then extent and holder of both buffers, two flags, names in MPI and NCCL."""
    text = (ROOT / "include" / "weft" / "types.h").read_text().replace("\\\n", "")
    rows = re.findall(r'X\(\w+, \d+, "\w+", "(\w+)", (\w+), (\w+), (\w+), (\w+), \d, (\d), +"([^"]*)"\)', text)
    return [(f"weft_{name}", (send, sender), (recv, receiver), counts == "1", like)
            for name, send, sender, recv, receiver, counts, like in rows]


def collectives_section():
    out = ["| `weft_` | send | recv | in place | like |", "|---|---|---|---|---|"]
    for function, send, recv, counts, like in collective_rows():
        cells = [("root: " if holder == "ROOT" else "") + extent.lower() for extent, holder in (send, recv)]
        if recv[1] == "PEER":
            function, cells, place = "send`, `recv", ["vector", "vector"], "no"
        elif send[0] == "NOTHING" or (counts and send[0] == recv[0]):
            place = "no"
        elif send[0] == recv[0]:
            place = "send == recv"
        else:
            place = "send in recv" if send[0] == "BLOCK" else "recv in send"
        out.append(f"| `{function.removeprefix('weft_')}` | {cells[0]} | {cells[1]} | {place} | {like} |")
    return "\n".join(out) + "\n"


def replace_section(path, name, text):
    open_comment, close_comment = ("# ", "") if path.suffix == ".py" else ("<!-- ", " -->")
    begin, end = (f"{open_comment}{word}: {name}{close_comment}\n" for word in ("generated", "end"))
    page = path.read_text()
    if begin not in page or end not in page:
        raise SystemExit(f"{path}: no section '{name}'")
    head, rest = page.split(begin, 1)
    return head + begin + text + end + rest.split(end, 1)[1]


def ask(weft, *arguments):
    done = subprocess.run([weft, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{weft} {' '.join(arguments)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--weft", default=str(ROOT / "build" / "weft"))
    parser.add_argument("parts", nargs="*")
    arguments = parser.parse_args()
    parts = arguments.parts or ["commands", "settings", "options", "operators", "passes", "pictures", "folders", "collectives"]
    files = {}
    docs = ROOT / "docs"
    if {"commands", "settings", "options"} & set(parts):
        data = ask(arguments.weft, "help", "--json")
    if "commands" in parts:
        files[docs / "commands.md"] = commands_page(data)
        files[docs / "man" / "weft.1"] = man_front(data)
        for command in data["commands"]:
            files[docs / "man" / f"weft-{command['name']}.1"] = man_page(command, data)
        for old in (docs / "man").glob("*.1"):
            if old not in files:
                files[old] = None
    if "settings" in parts:
        files[docs / "settings.md"] = settings_page(data)
    if "options" in parts:
        plans = ROOT / "python" / "weft" / "plans.py"
        files[docs / "options.md"] = options_page(data)
        files[plans] = replace_section(plans, "compile", compile_section(data))
    if "operators" in parts:
        files[docs / "operators.md"] = operators_page(ask(arguments.weft, "ops", "--json"))
    if "passes" in parts:
        path = ROOT / "fusion" / "README.md"
        data = ask(arguments.weft, "compile", "--list-passes", "--json")
        files[path] = replace_section(path, "passes", passes_section(data))
    if "pictures" in parts:
        draw = load(docs / "pictures" / "draw.py", "draw")
        for picture in sorted((docs / "pictures").glob("*.txt")):
            files[picture.with_suffix(".svg")] = draw.draw(picture.read_text())
    if "folders" in parts:
        files[ROOT / "ARCHITECTURE.md"] = replace_section(ROOT / "ARCHITECTURE.md", "folders", folders_section())
    if "collectives" in parts:
        files[docs / "api.md"] = replace_section(docs / "api.md", "collectives", collectives_section())
    stale = []
    for path, text in files.items():
        now = path.read_text() if path.exists() else None
        if now == text:
            continue
        stale.append(path.relative_to(ROOT).as_posix())
        if not arguments.check:
            if text is None:
                path.unlink()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
    for name in stale:
        print(("out of date: " if arguments.check else "wrote ") + name)
    if arguments.check and stale:
        print("run docs/generate.py")
        return 1
    print(f"{len(files)} files are up to date" if not stale else "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
