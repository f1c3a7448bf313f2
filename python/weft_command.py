# SPDX-License-Identifier: Apache-2.0
"""The command `weft` of a wheel: becomes the program in the package, which is not imported for that."""
import importlib.util
import os
import sys


def main():
    for package in importlib.util.find_spec("weft").submodule_search_locations:
        program = os.path.join(package, "bin", "weft")
        if os.path.exists(program):
            os.execv(program, ["weft", *sys.argv[1:]])
    sys.exit(f"weft: {program} does not exist: install the package (pip install .)")
