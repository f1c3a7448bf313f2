#!python
# SPDX-License-Identifier: Apache-2.0
"""The command `weft` of a wheel: becomes the program in the package, which is not imported for that."""
import importlib.util
import os
import sys

package = importlib.util.find_spec("weft").submodule_search_locations[0]
program = os.path.join(package, "bin", "weft")
os.execv(program, ["weft", *sys.argv[1:]])
