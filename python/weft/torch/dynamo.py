# SPDX-License-Identifier: Apache-2.0
"""torch.compile calls the functions of process groups and does not trace them."""
import contextlib
import importlib.abc
import importlib.util
import sys

_RULES = {"torch._dynamo.trace_rules", "torch._dynamo.skipfiles"}  # since torch 2.3; before
# Not operators and sharding, which are there to be traced.
_FILES = ("adoption", "ddp", "group", "layout", "observed", "process_group", "receives", "works")


class _OnImport(importlib.abc.MetaPathFinder):
    """Adds these files to the rules when they are imported: that takes seconds, which most programs do not need."""

    def __init__(self):
        self.awaited = _RULES - set(sys.modules)

    def find_spec(self, name, path, target=None):
        if name not in self.awaited:
            return None
        self.awaited.remove(name)
        spec = importlib.util.find_spec(name)
        if spec is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            if _add(module):
                sys.meta_path.remove(self)
        spec.loader.exec_module = exec_module
        return spec


def _add(rules):
    """Whether these are the rules of this version of torch, which take the files."""
    add = getattr(rules, "add", None)
    with contextlib.suppress(AttributeError):  # torch 2.0 takes modules
        for name in _FILES if add is not None else ():
            add(f"weft.torch.{name}")
    return add is not None


def install():
    if not any([_add(sys.modules[name]) for name in _RULES & set(sys.modules)]):
        sys.meta_path.insert(0, _OnImport())
