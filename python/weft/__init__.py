# SPDX-License-Identifier: Apache-2.0
"""Collectives for Python: on numpy arrays, torch tensors and anything else that has memory.

    import weft, numpy as np
    weft.init()                                 # rank and size from the launcher: weft run -n 4 -- python3 script.py
    x = np.full(1024, weft.get_rank(), "float32")
    y = weft.all_reduce(x, op="avg")            # a new array; weft.all_reduce_(x): in place; async_op=True: a Work

The world      init finalize is_initialized get_rank get_world_size new_group Context Group
Collectives    all_reduce all_reduce_ all_gather reduce_scatter broadcast reduce gather scatter all_to_all
               send recv probe barrier batch
Asynchronous   Work Stream Event
Memory         empty zeros register unregister: arrays that peers reach directly
               DeviceArray from_dlpack: arrays in memory of a device (init(device=), empty)
Buckets        Fuser, capture: gradients that appear without a graph, in buckets
Training       compile Plan Session
Errors         WeftError and those below it
Compilers      weft.passes: Weft's passes on another compiler's graph
               library: path of a library that another program loads

`weft.export.export` and `python -m weft.export` write torch modules as ONNX files that train.
`import weft.torch` adds a backend to torch.distributed; `python -m weft.bench` shows what calls cost.
Collectives are C, in weft._core; the rest calls the C library by ctypes. Types of what is C are in __init__.pyi.
"""
import os as _os
from importlib import import_module as _import

try:
    from weft._core import *  # noqa: F401,F403
    from weft._core import __version__  # noqa: F401
    from weft.errors import *  # noqa: F401,F403
    from weft.groups import Group, new_group  # noqa: F401
    from weft.memory import empty, register, unregister, zeros  # noqa: F401
    from weft.world import Context, finalize, init, is_initialized  # noqa: F401
except ModuleNotFoundError as missing:
    if missing.name != "weft._core":
        raise
    raise ImportError(
        f"{__path__[0]} has no built extension: it is the source folder, or Python is older than 3.9; install the "
        "package (pip install .) and start elsewhere, or PYTHONPATH=build/python") from None


# Imported at first use: a millisecond, which a program that only makes calls need not spend.
_LATER = {"Capture": "buckets", "Fuser": "buckets", "capture": "buckets", "Plan": "plans", "compile": "plans",
          "Session": "sessions"}


def __getattr__(name):
    if name not in _LATER:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    globals()[name] = value = getattr(_import(f"weft.{_LATER[name]}"), name)
    return value


def __dir__():
    return sorted(globals().keys() | _LATER)


def library(name):
    """The path of a library of this package that another program loads: mpi (JAX), onnxruntime or tvm."""
    if name not in ("mpi", "onnxruntime", "tvm"):
        raise ValueError(f"weft.library: unknown value {name!r}: expected mpi, onnxruntime or tvm")
    path = _os.path.join(_os.path.dirname(_core.__file__), f"libweft_{name}.so")
    if not _os.path.exists(path):
        raise ImportError(f"weft: {path} does not exist: install the package (pip install .)")
    return path


__all__ = [name for name in __dir__() if name[0] != "_"]
