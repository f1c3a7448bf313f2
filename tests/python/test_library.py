#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What weft/_library.py declares is the library's binary interface, as tests/abi/libweft.abi lists it."""
import ctypes
import re
import unittest
from unittest import mock

import ranks

from weft import _library


class Declarations(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.listed = (ranks.SOURCE / "tests" / "abi" / "libweft.abi").read_text()

    def test_functions(self):
        for name, line in _library.functions.items():
            with self.subTest(line):
                result, parameters = line.split(f"{name}(")
                self.assertRegex(self.listed, rf"(?m)^function {name} = {re.escape(result)}\({re.escape(parameters)} ")
                self.assertEqual(getattr(_library, name).__name__, name)

    def test_structures(self):
        for name in _library.structures:
            with self.subTest(name):
                structure = getattr(_library, name)
                self.assertIn(f"size {name} = {ctypes.sizeof(structure)}\n", self.listed)
                fields = [f"field {name}.{field} = {getattr(structure, field).offset}, "
                          f"{getattr(structure, field).size} bytes" for field, _ in structure._fields_]
                self.assertEqual(fields, re.findall(rf"(?m)^field {name}\..*$", self.listed))

    def test_threads_have_the_same(self):
        """Two types of one name would not be assigned to each other."""
        name, make, others = "weft_link_stats_t", _library._structure, []

        def during(*args):
            if not others:
                others.append(None)
                others[0] = getattr(_library, name)  # as another thread does meanwhile
            return make(*args)

        vars(_library).pop(name, None)
        with mock.patch.object(_library, "_structure", during):
            self.assertIs(getattr(_library, name), others[0])
        self.assertIs(getattr(_library, name), others[0])


if __name__ == "__main__":
    unittest.main()
