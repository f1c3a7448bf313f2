#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the binary interface of the library with libweft.abi, the list of the last release.

Everything in the list must be as it is there: prototypes, values, sizes and offsets. A struct that begins with struct_size
may grow at its end. The library exports what the headers declare and nothing else. Once the project has a later version
than the list, new functions need a new stanza in include/weft.map.

usage: check_abi.py [--update] SOURCE_DIR CC READELF LIBRARY

--update writes the list: for a release, or for an intended change before the first one.
"""
import pathlib
import platform
import re
import subprocess
import sys
import tempfile

HEAD = "# Binary interface of libweft.so on 64-bit Linux; tests/abi/check_abi.py --update writes this file.\n"


def blocks(text, keyword):
    """(name, body) of every typedef enum or typedef struct with a body, and of every struct that is not typedef'd there."""
    for match in re.finditer(rf"\b{keyword} (\w+) \{{", text):
        end, depth = match.end(), 1
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        name = re.match(r"\s*(\w*)\s*;", text[end:])[1]
        yield name or match[1] + "_t", text[match.end():end - 1]


def fields(body):
    """Names of the fields of a struct."""
    for declaration in filter(str.strip, body.split(";")):
        pointer = re.search(r"\(\*(\w+)\)", declaration)
        names = [pointer[1]] if pointer else re.findall(r"(\w+)\s*(?:\[[^\]]*\]\s*)*(?=,|$)", declaration.strip())
        yield from names


def signature(result, parameters):
    """A function's type on one line, without the names of its parameters."""
    types = [p if p == "void" else re.sub(r"\b\w+((?:\[\w*\])?)$", r"\1", p.strip()).strip() for p in parameters.split(",")]
    return " ".join(f"{result.strip()} ({', '.join(types)})".split())


def read_headers(source, cc):
    """Functions and callbacks with their types, enumerators, structs with fields, and constants of the public headers."""
    raw = "".join(p.read_text() for p in sorted((source / "include/weft").glob("*.h")))
    raw = re.sub(r"/\*.*?\*/", "", raw.replace("\\\n", ""), flags=re.S)
    command = [cc, "-E", "-P", "-std=c99", f"-I{source}/include", f"{source}/include/weft/weft.h"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    functions = {name: signature(result, parameters)
                 for result, name, parameters in re.findall(r"^WEFT_API ([^;]*?)(\w+)\(([^;]*)\);", raw, re.M)}
    callbacks = [f"callback {name} = {signature(result, parameters)}"
                 for result, name, parameters in re.findall(r"^typedef ([^;{]*)\(\*(\w+)\)\(([^;]*)\);", raw, re.M)]
    enums = [(name, value) for name, body in blocks(text, "enum") if name.startswith("weft_")
             for value in re.findall(r"\b(WEFT_\w+)", body)]
    structs = [(name, list(fields(body))) for name, body in blocks(text, "struct") if name.startswith("weft_")]
    constants = [name for name, value in re.findall(r"^#define (WEFT_\w+) +(\S.*)$", raw, re.M)
                 if not re.search(r"_INIT$|_VERSION_|API$|EXTERN_C|^WEFT_NO_", name) and "__attribute__" not in value]
    return functions, callbacks, enums, structs, constants


def measure(source, cc, enums, structs, constants):
    """Lines of the list for values, sizes and offsets, from a program that the compiler builds."""
    lines = ["#include <stddef.h>", "#include <stdio.h>", "#include <weft/weft.h>", "int main(void)", "{"]
    for name, value in enums:
        lines.append(f'printf("enum {name}.{value} = %d\\n", (int){value});')
    for name in constants:
        lines.append(f'printf("constant {name} = %lld\\n", (long long)({name}));')
    for name, members in structs:
        lines.append(f'printf("size {name} = %zu\\n", sizeof({name}));')
        for member in members:
            lines.append(f'printf("field {name}.{member} = %zu, %zu bytes\\n", offsetof({name}, {member}), '
                         f"sizeof((({name} *)0)->{member}));")
    lines += ["return 0;", "}", ""]
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder, "measure")
        program.with_suffix(".c").write_text("\n".join(lines))
        subprocess.run([cc, "-std=c99", f"-I{source}/include", "-o", program, program.with_suffix(".c")], check=True)
        return subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()


def exports(readelf, library):
    """Version of every exported symbol."""
    command = [readelf, "--dyn-syms", "--wide", library]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    symbols = {}
    for line in output.splitlines():
        columns = line.split()
        if len(columns) > 7 and columns[0][:-1].isdigit() and columns[4] != "LOCAL" and columns[6] not in ("UND", "ABS"):
            symbol, _, version = columns[7].partition("@")
            symbols[symbol] = version.lstrip("@") or "no version"
    return symbols


def version_of(text):
    """A version as numbers that compare."""
    return tuple(int(n) for n in text.split("."))


def compare(old, new):
    """Faults of an interface against the list: what the list has must be there unchanged."""
    growing = {key.split(".")[0].replace("field", "size") for key in new if key.endswith(".struct_size")}
    for key, value in old.items():
        if key not in new:
            yield f"{key}: removed"
        elif new[key] != value and not (key in growing and int(new[key]) > int(value)):
            yield f"{key}: was {value}, is {new[key]}"


def check_symbols(functions, symbols, old, version):
    """Faults of the exported symbols against the headers and include/weft.map."""
    for name in sorted(symbols.keys() - functions.keys()):
        yield f"{name}: exported, but no public header declares it"
    for name in sorted(functions.keys() - symbols.keys()):
        yield f"{name}: declared in include/weft, but the library does not export it"
    released = {value.split()[-1] for key, value in old.items() if key.startswith("function ")}
    for name in sorted(functions.keys() & symbols.keys()):
        if version > version_of(old["version"]) and f"function {name}" not in old and symbols[name] in released:
            yield f"{name}: new since {old['version']}: list it in a new stanza of include/weft.map"


def main() -> int:
    arguments = sys.argv[1:]
    update = arguments[:1] == ["--update"]
    source, cc, readelf, library = arguments[update:]
    source = pathlib.Path(source)
    if sys.platform != "linux" or platform.architecture()[0] != "64bit":
        print("skipped: the list is for 64-bit Linux")
        return 77
    functions, callbacks, enums, structs, constants = read_headers(source, cc)
    symbols = exports(readelf, library)
    version = re.search(r"^project\(weft VERSION ([\d.]+)", (source / "CMakeLists.txt").read_text(), re.M)[1]
    lines = [f"version = {version}"]
    lines += [f"function {name} = {text} {symbols.get(name, 'not exported')}" for name, text in sorted(functions.items())]
    lines += sorted(callbacks) + measure(source, cc, enums, structs, constants)
    listed = source / "tests/abi/libweft.abi"
    if update:
        listed.write_text(HEAD + "\n".join(lines) + "\n")
        return 0
    old = dict(line.split(" = ", 1) for line in listed.read_text().splitlines()[1:])
    faults = list(check_symbols(functions, symbols, old, version_of(version)))
    old.pop("version")
    faults += compare(old, dict(line.split(" = ", 1) for line in lines))
    for fault in faults:
        print(fault)
    if faults:
        print("CONTRIBUTING.md, section \"Binary interface\", tells what to do")
    print(f"{len(functions)} functions, {len(structs)} structs, {len(enums)} enumerators, {len(constants)} constants")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
