#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks every #include against a table of folders: folders depend downwards only.

The table is FOLDERS; docs/generate.py writes ARCHITECTURE.md's from it.

usage: check_includes.py SOURCE_DIR
"""
import pathlib
import re
import sys

# room of the runtime -> what it holds, and the rooms that it may use beside base: those before it
RUNTIME = {
    "flight": ("the flight recorder of a rank",),
    "context": ("a rank: its settings, endpoint and place in the cluster", "flight"),
    "memory": ("memory of devices, memory that peers map", "context"),
    "stream": ("records, streams, events", "context", "memory"),
    "interpreter": ("runs schedules of algorithms, verifies algorithms", "context"),
    "group": ("groups of ranks: channels, faults, links", "context", "memory", "stream", "interpreter"),
    "collective": ("calls of groups, and the algorithm of each",
                   "flight", "context", "memory", "stream", "interpreter", "group"),
    "fuser": ("small calls, fused as they come", "context", "memory", "stream", "group", "collective"),
    "plan": ("sessions: a plan bound to a rank, and its replay", "flight", "context", "stream", "interpreter"),
    "checkpoint": ("checkpoints and snapshots of sessions, safetensors",
                   "context", "memory", "stream", "interpreter", "group", "collective", "plan"),
    "capture": ("captured calls, planned by the compiler", "context", "memory", "stream", "group", "collective"),
}
# folder -> what it holds, and the path prefixes (of root-relative includes) that it may use beside <weft/..>; the longest
# matching folder decides. check_links.py checks the objects' symbols against the same prefixes.
FOLDERS = {
    "include/weft": ("the public API, valid C99 and C++", []),
    "runtime/base": ("status, memory, text, files, settings, futexes, digests", ["runtime/base/"]),
    "runtime/machine": ("machines and clusters as data, hwloc, /sys, binding", ["runtime/base/", "runtime/machine/"]),
    "ops": ("operators, reductions, algorithms, plan format, CPU kernels", ["runtime/base/", "ops/"]),
    "transport": ("shm, tcp, verbs; joining", ["runtime/base/", "runtime/machine/", "transport/"]),
    "graph": ("ONNX in and out, the IR, shapes, gradients", ["runtime/base/", "ops/", "graph/"]),
    "fusion": ("compiler passes, bucket policies, memory plan", [
        "runtime/base/", "runtime/machine/", "ops/", "graph/", "fusion/"]),
    **{f"runtime/{room}": (holds, ["runtime/base/", "runtime/machine/", "ops/", "transport/",
                                   *(f"runtime/{r}/" for r in [*uses, room])])
       for room, (holds, *uses) in RUNTIME.items()},
    "tools": ("the command `weft`", [
        "runtime/base/", "transport/transport.h", "transport/bootstrap/bootstrap.h", "runtime/machine/", "runtime/flight/",
        "ops/algo/", "ops/collective.h", "ops/cost/", "ops/op_facts.h", "ops/signature.h", "ops/plan/explain.h",
        "ops/plan/prove.h", "fusion/simulate/simulate.h", "graph/onnx/onnx.h", "runtime/checkpoint/safetensors.h", "tools/"]),
    "interop": ("libraries that other compilers load", ["interop/"]),
    "devices": ("plugins of devices: libraries that libweft loads", ["devices/"]),
    "python/src": ("the Python extension", ["python/src/"]),
    "samples": ("programs a user might start from", []),
}
# folders above the others: they may call every public function, as a program may
ABOVE = {"runtime/capture", "tools", "interop", "python/src", "samples"}
# libraries that stay in one corner: header prefix -> where it may be included
CORNERS = {
    "onnx.pb-c.h": r"graph/onnx/",
    "plan.pb-c.h": r"ops/plan/",
    "protobuf-c": r"(graph/onnx/|ops/plan/)",
    "hwloc": r"runtime/machine/hwloc[a-z_]*\.c",
    "infiniband": r"transport/verbs/",
    "dnnl": r"ops/compute/onednn_",
    "dnnl.h": r"ops/compute/onednn_",
    "openssl": r"runtime/base/",
    "pmix.h": r"transport/bootstrap/pmix\.c",
    "Python.h": r"python/src/weft_python\.h",
    "CL": r"devices/opencl/",
}


def folder_of(path):
    """The folder of the table that holds a file, the innermost one."""
    return max((folder for folder in FOLDERS if path.startswith(f"{folder}/")), key=len, default=None)


def may_include(folder, path):
    """A prefix that is allowed does not open the folders of the table inside it."""
    return any(path.startswith(p) and folder_of(p) == folder_of(path) for p in FOLDERS[folder][1])


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    wrong = []
    checked = 0
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.[ch]")):
            relative = path.relative_to(root).as_posix()
            if folder_of(relative) != folder:
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                match = re.match(r'\s*#\s*include\s+([<"])([^>"]+)[>"]', line)
                if not match:
                    continue
                checked += 1
                kind, name = match.groups()
                where = f"{relative}:{number}: {name}"
                if kind == '"' and folder == "samples":
                    continue  # samples are standalone programs; <weft/...> is all they may take from us
                if kind == '"' and "/" not in name and not name.endswith(".pb-c.h"):
                    wrong.append(f"{where}: ours are included by path from the root")
                elif kind == '"' and "/" in name and not may_include(folder, name):
                    wrong.append(f"{where}: {folder} may not include this")
                for prefix, place in CORNERS.items():
                    hit = name == prefix or name.startswith(prefix + "/")
                    if hit and not re.match(place, relative):
                        wrong.append(f"{where}: only {place} may include {prefix}")
    print("\n".join(wrong) or f"{checked} includes are as the table says")
    return 1 if wrong or checked < 100 else 0


if __name__ == "__main__":
    sys.exit(main())
