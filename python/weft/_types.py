# SPDX-License-Identifier: Apache-2.0
"""Types of parameters, also for those who ask for them when the program runs (typing.get_type_hints)."""
import sys
from os import PathLike
from typing import Any, Literal, TypeVar, Union

from weft import Context, Group

# A tensor: whatever has memory (numpy, torch, array.array, memoryview, DLPack); results are like it.
_T = TypeVar("_T")
_Op = Literal["sum", "avg", "mean", "max", "min", "prod"]
_Path = Union[str, PathLike[str]]
_Where = Union[Context, Group, None]
if sys.version_info >= (3, 11):
    from typing import Self as Self
else:
    Self = Any
