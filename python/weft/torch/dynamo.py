# SPDX-License-Identifier: Apache-2.0
"""torch.compile calls the functions of process groups and does not trace them."""
import contextlib
import importlib.abc
import importlib.util
import sys

_RULES = "torch._dynamo.trace_rules"
# Not operators and sharding, which are there to be traced.
_FILES = ("adoption", "ddp", "group", "layout", "observed", "process_group", "receives", "works")


class _OnImport(importlib.abc.MetaPathFinder):
    """Adds these files to the rules when they are imported: that takes seconds, which most programs do not need."""

    def find_spec(self, name, path, target=None):
        if name != _RULES:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            _add(module)
        spec.loader.exec_module = exec_module
        return spec


def _add(rules):
    with contextlib.suppress(AttributeError):  # another version of torch
        for name in _FILES:
            rules.add(f"weft.torch.{name}")


def install():
    if _RULES in sys.modules:
        _add(sys.modules[_RULES])
    else:
        sys.meta_path.insert(0, _OnImport())
