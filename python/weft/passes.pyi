# SPDX-License-Identifier: Apache-2.0
# Types of weft.passes; docstrings are in the module itself.
from array import array
from collections.abc import Iterable, Sequence
from os import PathLike
from typing import Any, Final, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

PURE: Final[int]
COMMUNICATES: Final[int]
UPDATES: Final[int]
UNKNOWN: Final[int]
RANDOM: Final[int]

# A buffer of integers of any width, or a list of integers.
_Integers = NDArray[np.integer[Any]] | Buffer | Sequence[int]
_Pairs = NDArray[np.integer[Any]] | Buffer | Sequence[tuple[int, int]]
_Path = str | PathLike[str]

class Insert(NamedTuple):
    value: int
    op_name: str
    reduction: str
    group: int

class Fuse(NamedTuple):
    members: tuple[int, ...]
    reason: str

class Order(NamedTuple):
    before: int
    after: int

class Algorithm(NamedTuple):
    op: int
    names: tuple[str, ...]

class Split(NamedTuple):
    op: int
    parts: int
    reason: str

class StartWait(NamedTuple):
    op: int
    start_after: int | None
    wait_before: int | None

class Merge(NamedTuple):
    kept: int
    removed: int

Edit = Insert | Fuse | Order | Algorithm | Split | StartWait | Merge

class Forecast(NamedTuple):
    bucket_count: int
    optimum_count: int
    ready_ps: int
    chosen_ps: int
    optimum_ps: int
    lower_bound_ps: int
    comm_ps: int

class ScheduleCost(NamedTuple):
    finish_ps: int
    exposed_ps: int
    peak_bytes: int
    in_flight: int

class ScheduleReport(NamedTuple):
    given: ScheduleCost
    chosen: ScheduleCost
    changed: bool

class Cost(NamedTuple):
    points: _Pairs = ...
    pieces: _Pairs = ...

class View:
    def __init__(
        self, ops: Sequence[str], input_begin: _Integers, inputs: _Integers, output_begin: _Integers,
        outputs: _Integers, value_bytes: _Integers, *, op_names: Sequence[str] | None = None,
        value_names: Sequence[str] | None = None, effects: _Integers | None = None, groups: _Integers | None = None,
        reductions: Sequence[str] | None = None, dtypes: Sequence[Any] | None = None, grad_of: _Integers | None = None,
        order: _Integers | None = None, edges: _Pairs | None = None,
    ) -> None: ...
    @classmethod
    def from_lists(
        cls, ops: Sequence[str], inputs: Iterable[Iterable[int]], outputs: Iterable[Iterable[int]],
        value_bytes: _Integers, **optional: Any,
    ) -> Self: ...

def insert_collectives(view: View) -> list[Insert]: ...
def ready_times(view: View, op_ns: _Integers | None = None) -> array[int]: ...
def bucket(
    view: View, policy: str | None = "auto", *, ready_ns: _Integers | None = None, world: int | None = None,
    cost: Cost | None = None, reduce_scatter_cost: Cost | None = None, all_gather_cost: Cost | None = None,
    costs: _Path | None = None,
) -> tuple[list[Fuse | Split], Forecast]: ...
def algorithms(
    view: View, group_sizes: _Integers, *, order: Literal["tree", "any"] = "tree", costs: _Path | None = None,
) -> list[Algorithm]: ...
def order(view: View) -> list[Order]: ...
def start_wait(view: View) -> list[StartWait]: ...
def schedule(
    view: View, op_ns: _Integers, *, kept: _Integers | None = None, to_end: _Integers | None = None,
    in_flight: int = 0, most_live_bytes: int = 0,
) -> tuple[list[Order], ScheduleReport]: ...
def check(view: View, edits: Iterable[Edit]) -> None: ...
