# SPDX-License-Identifier: Apache-2.0
"""Weft's compiler passes for a graph that Python describes: include/weft/passes.h, with the same meaning.

    from weft import passes

    view = passes.View.from_lists(
        ops=["matmul", "weft.AllReduce", "matmul", "weft.AllReduce", "update"],
        inputs=[[0], [1], [1], [3], [2, 4]], outputs=[[1], [2], [3], [4], []],
        value_bytes=[4096] * 5, grad_of=[-1, -1, 0, -1, 0], reductions=["avg"] * 5)
    edits, forecast = passes.bucket(view, world=4)
    passes.check(view, edits)

A View is flat: ids are indices, operators are in a topological order. Its arrays are numpy arrays, lists, or any other
buffers of integers; they are copied by each pass. An operator "weft.NAME" is the collective NAME; any other name is an
operator of the host compiler. A pass changes nothing; it returns edits, which the owner of the graph applies.

Invalid views and parameters raise ValueError, TypeError or weft.WeftArgumentError (a ValueError). No function here
communicates, and any thread may call them.
"""
import array
from typing import NamedTuple

from weft import _core

#: Side effects of an operator, for View(effects=); UPDATES: writes inputs, UNKNOWN: a fence for every pass.
PURE, COMMUNICATES, UPDATES, UNKNOWN, RANDOM = 0, 1, 2, 4, 8
_ABSENT = 2**32 - 1
_ORDERS = ("tree", "blocks", "any")


class Insert(NamedTuple):
    """Insert collective op_name of domain weft after value; the value's users read its result."""
    value: int
    op_name: str
    reduction: str
    group: int


class Fuse(NamedTuple):
    """Make one operator of the collectives members (op ids, in this order)."""
    members: tuple
    reason: str


class Order(NamedTuple):
    """Operator before must run before operator after, though no value connects them."""
    before: int
    after: int


class Algorithm(NamedTuple):
    """Algorithms of collective op, or of the fusion that contains it, the fastest first."""
    op: int
    names: tuple


class Split(NamedTuple):
    """Collective op, or the fusion that contains it, runs in parts pieces, cut at units of 64 bytes."""
    op: int
    parts: int
    reason: str


class StartWait(NamedTuple):
    """Collective op may start after start_after (None: at once); wait_before (None: the end) needs its result."""
    op: int
    start_after: "int | None"
    wait_before: "int | None"


class Merge(NamedTuple):
    """Operator removed repeats operator kept."""
    kept: int
    removed: int


class Forecast(NamedTuple):
    """Predicted times of buckets, in picoseconds from the start of the step; see weft_bucket_forecast_t."""
    bucket_count: int
    optimum_count: int
    ready_ps: int
    chosen_ps: int
    optimum_ps: int
    lower_bound_ps: int
    comm_ps: int


class ScheduleCost(NamedTuple):
    """Predicted cost of an order; see weft_schedule_cost_t."""
    finish_ps: int
    exposed_ps: int
    peak_bytes: int
    in_flight: int


class ScheduleReport(NamedTuple):
    """Cost of the view's order and of the edits' order; changed: there are edits."""
    given: ScheduleCost
    chosen: ScheduleCost
    changed: bool


class Cost(NamedTuple):
    """Time of a collective by its size: points (bytes, picoseconds), rising, or else the least of the pieces
    (alpha_ps, beta_ps_per_kib)."""
    points: object = ()
    pieces: object = ()


def _integers(values):
    """A buffer of integers: as it is, or of a (nested) list."""
    if values is None or not isinstance(values, (list, tuple, range)):
        return values
    values = list(values)
    if values and isinstance(values[0], (list, tuple)):
        values = [number for row in values for number in row]
    try:
        return array.array("q", values)
    except OverflowError:
        raise ValueError("an integer is out of range: must fit in 64 bits, with a sign") from None


def _ragged(rows):
    """(begin, ids) of a list per operator."""
    begin, ids = array.array("q", [0]), array.array("q")
    for row in rows:
        ids.extend(row)
        begin.append(len(ids))
    return begin, ids


class View:
    """A graph as passes see it.

    ops: a name per operator; inputs of operator i are the value ids inputs[input_begin[i]:input_begin[i + 1]] (-1:
    absent), and its outputs likewise; value_bytes: payload of each value (0: unknown). Optional: op_names and
    value_names, for messages; effects, groups (0: the world) and reductions per operator; dtypes and grad_of (the
    parameter's value id, or -1) per value; order: ids of the operators that are there, in order of execution; edges:
    pairs of operators of which the first runs before the second.
    """
    __slots__ = ("_flat",)

    def __init__(self, ops, input_begin, inputs, output_begin, outputs, value_bytes, *, op_names=None, value_names=None,
                 effects=None, groups=None, reductions=None, dtypes=None, grad_of=None, order=None, edges=None):
        self._flat = (
            ops, op_names, _integers(effects), _integers(groups), reductions, _integers(input_begin), _integers(inputs),
            _integers(output_begin), _integers(outputs), _integers(value_bytes), value_names, dtypes,
            _integers(grad_of), _integers(order), _integers(edges))

    @classmethod
    def from_lists(cls, ops, inputs, outputs, value_bytes, **optional):
        """The same of a list of inputs and of outputs per operator."""
        return cls(ops, *_ragged(inputs), *_ragged(outputs), value_bytes, **optional)


def _run(name, view, *params):
    if not isinstance(view, View):
        raise TypeError(f"view must be a weft.passes.View, not {type(view)}")
    return _core._pass(name, view._flat, params)


def _edit(raw):
    kind, value, op_name, reduction, group, members, op_a, op_b, text, parts = raw
    if kind == 1:
        return Insert(value, op_name, reduction, group)
    if kind == 2:
        return Fuse(members, text or "")
    if kind == 3:
        return Order(op_a, op_b)
    if kind == 4:
        return Algorithm(op_a, tuple(text.split(",")))
    if kind == 5:
        return Split(op_a, parts, text or "")
    if kind == 6:
        return StartWait(op_a, op_b, members[0] if members else None)
    return Merge(op_a, op_b)


def _raw(edit):
    kind, value, name, reduction, group, members, a, b, text, parts = 0, None, None, None, 0, (), None, None, None, 0
    if isinstance(edit, Insert):
        kind, value, name, reduction, group = 1, edit.value, edit.op_name, edit.reduction, edit.group
    elif isinstance(edit, Fuse):
        kind, members, text = 2, edit.members, edit.reason
    elif isinstance(edit, Order):
        kind, a, b = 3, edit.before, edit.after
    elif isinstance(edit, Algorithm):
        kind, a, text = 4, edit.op, ",".join(edit.names)
    elif isinstance(edit, Split):
        kind, a, parts, text = 5, edit.op, edit.parts, edit.reason
    elif isinstance(edit, StartWait):
        kind, a, b = 6, edit.op, edit.start_after
        members = () if edit.wait_before is None else (edit.wait_before,)
    elif isinstance(edit, Merge):
        kind, a, b = 7, edit.kept, edit.removed
    else:
        raise TypeError(f"an edit must be one of weft.passes, not {type(edit)}")
    return kind, value, name, reduction, group, _integers(tuple(members)), a, b, text, parts


def _cost(cost):
    if cost is None:
        return None
    if not isinstance(cost, Cost):
        raise TypeError(f"a cost must be a weft.passes.Cost, not {type(cost)}")
    return _integers(cost.points), _integers(cost.pieces)


def _edits(raw):
    return [_edit(edit) for edit in raw]


def insert_collectives(view):
    """Insert edits: an AllReduce (average) after every value with grad_of that no collective produced."""
    return _edits(_run("insert_collectives", view))


def ready_times(view, op_ns=None):
    """array.array of nanoseconds: the time at which each operator has run, one after the other on a single stream."""
    return array.array("Q", _run("ready_times", view, _integers(op_ns)))


def bucket(view, policy="auto", *, ready_ns=None, world=None, cost=None, reduce_scatter_cost=None,
           all_gather_cost=None, costs=None):
    """(edits, Forecast): Fuse and Split edits of AllReduces of gradients, ReduceScatters and AllGathers.

    policy: as of weft.compile(bucket=). ready_ns: time at which each operator has run (default: all at 0). Costs are
    those of the file costs (`weft tune`) or default ones for world ranks, unless cost is set.
    """
    edits, forecast = _run("bucket", view, policy, _integers(ready_ns), world, _cost(cost), _cost(reduce_scatter_cost),
                           _cost(all_gather_cost), costs)
    return _edits(edits), Forecast(*forecast)


def algorithms(view, group_sizes, *, order="tree", costs=None):
    """Algorithm edits, one per collective. group_sizes: ranks of each group id of the view; order: "tree" or "any"."""
    if order not in _ORDERS:
        raise ValueError(f"order: {order!r} is not one of 'tree', 'any'")
    return _edits(_run("algorithms", view, _integers(group_sizes), _ORDERS.index(order), costs))


def order(view):
    """Order edits: the order of collectives that all ranks keep."""
    return _edits(_run("order", view))


def start_wait(view):
    """StartWait edits: as early and as late as values and edges allow in the view's order."""
    return _edits(_run("start_wait", view))


def schedule(view, op_ns, *, kept=None, to_end=None, in_flight=0, most_live_bytes=0):
    """(edits, ScheduleReport): Order edits of the order that ends earliest within the bounds.

    op_ns: time of each operator, collectives included. kept, to_end: a flag per value: it has memory of its own; it is
    read after the step. in_flight: most collectives under way (0: no bound); most_live_bytes: most bytes of values
    alive (0: as in the view's order).
    """
    edits, given, chosen, changed = _run("schedule", view, _integers(op_ns), _integers(kept), _integers(to_end),
                                         in_flight, most_live_bytes)
    return _edits(edits), ScheduleReport(ScheduleCost(*given), ScheduleCost(*chosen), bool(changed))


def check(view, edits):
    """Raises weft.WeftArgumentError, naming edit and operator, unless edits may be applied to view."""
    _run("check", view, [_raw(edit) for edit in edits])
