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
import ctypes
from typing import NamedTuple

from weft import _core
from weft import _library as library

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
    begin, ids = [0], []
    for row in rows:
        ids += row
        begin.append(len(ids))
    return _integers(begin), _integers(ids)


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


def _ids(values, name, absent=False):
    found = library.integers(values, name, 2**32 - 2, -1 if absent else 0)
    return [_ABSENT if value < 0 else value for value in found] if absent else found


def _expect(values, name, length):
    if len(values) != length:
        raise ValueError(f"{name} has {len(values)} elements, expected {length}")
    return values


def _find(name, registry=[]):
    """A collective's definition, in the library."""
    if not registry:
        out = ctypes.c_void_p()
        library.weft_registry_create(None, ctypes.byref(out))
        registry.append(out)  # one for the process
    found = library.weft_registry_find_op(registry[0], b"weft", name.encode(), 1)
    if found is None:
        raise ValueError(f"ops: Weft has no operator {name}")
    return library.weft_op_def_t.from_address(found)


class _Described:
    """A View as the library sees it: checked copies. Producers and users always agree with inputs and outputs."""

    def __init__(self, view):
        (ops, op_names, effects, groups, reductions, input_begin, inputs, output_begin, outputs, value_bytes, value_names,
         dtypes, grad_of, order, edges) = view._flat
        self._kept = []
        ops = [library.text(op, "ops").decode() for op in list(ops)]
        count = self.op_count = len(ops)
        op_names = self._names(op_names, "op_names", "op", count)
        inputs, input_begin = self._side(inputs, "inputs", input_begin, "input_begin", count)
        outputs, output_begin = self._side(outputs, "outputs", output_begin, "output_begin", count)
        effects = [0] * count if effects is None else _expect(_ids(effects, "effects"), "effects", count)
        groups = [0] * count if groups is None else _expect(_ids(groups, "groups"), "groups", count)
        definitions = {op: self._definition(op) for op in dict.fromkeys(ops)}
        reductions = [_core._reduction(None if reductions is None else op) for op in
                      ([None] * count if reductions is None else _expect(list(reductions), "reductions", count))]
        value_bytes = library.integers(value_bytes, "value_bytes", 2**52 - 1)
        self.value_count = len(value_bytes)
        value_names = self._names(value_names, "value_names", "value", self.value_count)
        grad_of = ([_ABSENT] * self.value_count if grad_of is None
                   else _expect(_ids(grad_of, "grad_of", True), "grad_of", self.value_count))
        dtypes = ([_core._dtype(None)] * self.value_count if dtypes is None
                  else [_core._dtype(kind) for kind in _expect(list(dtypes), "dtypes", self.value_count)])
        order = list(range(count)) if order is None else _ids(order, "order")
        edges = [] if edges is None else _ids(edges, "edges")
        if len(edges) % 2:
            _expect(edges, "edges", len(edges) + 1)
        producers, users = self._connect(order, inputs, input_begin, outputs, output_begin)
        present = set(order)
        view_ops = (library.weft_view_op_t * count)(*(
            (op_names[i], ctypes.addressof(definitions[op]), definitions[op].effects | effects[i], groups[i],
             input_begin[i], input_begin[i + 1] - input_begin[i], output_begin[i],
             output_begin[i + 1] - output_begin[i], reductions[i], i in present) for i, op in enumerate(ops)))
        flat, values = [], (library.weft_view_value_t * self.value_count)()
        for i in range(self.value_count):
            values[i] = (value_names[i], dtypes[i], value_bytes[i], producers[i], grad_of[i], len(flat), len(users[i]))
            flat += users[i]
        self._kept += [definitions, view_ops, values, op_names, value_names]
        self.view = library.weft_graph_view_t(
            value_count=self.value_count, values=ctypes.addressof(values), op_count=count,
            ops=ctypes.addressof(view_ops), order_count=len(order), order=self.array(order),
            op_inputs=self.array(inputs), op_outputs=self.array(outputs), users=self.array(flat),
            edge_count=len(edges) // 2, edges=self.array(edges))

    def array(self, values, kind=ctypes.c_uint32):
        """The address of a copy of values that lives as long as this object."""
        made = (kind * max(1, len(values)))(*values)
        self._kept.append(made)
        return ctypes.addressof(made)

    def times(self, values, name):
        """The address of a time per operator; None: NULL."""
        if values is None:
            return None
        return self.array(_expect(library.integers(values, name, 10**18), name, self.op_count), ctypes.c_uint64)

    def flags(self, values, name):
        """The address of a flag per value; None: NULL."""
        if values is None:
            return None
        flags = _expect(library.integers(values, name, 255), name, self.value_count)
        return self.array([value != 0 for value in flags], ctypes.c_uint8)

    def cost(self, cost):
        """The address of a Cost; None: NULL."""
        if cost is None:
            return None
        if not isinstance(cost, Cost):
            raise TypeError(f"a cost must be a weft.passes.Cost, not {type(cost)}")
        points, pieces = (self._pairs(getattr(cost, name), f"cost.{name}") for name in ("points", "pieces"))
        for i in range(2, len(points), 2):
            if points[i] <= points[i - 2]:
                raise ValueError(f"cost.points[{i // 2}]: {points[i]} bytes after {points[i - 2]} bytes: must rise")
        made = library.weft_bucket_cost_t(self.array(pieces, ctypes.c_uint64) if pieces else None, len(pieces) // 2,
                                          self.array(points, ctypes.c_uint64) if points else None, len(points) // 2)
        self._kept.append(made)
        return ctypes.addressof(made)

    @staticmethod
    def _pairs(values, name):
        found = library.integers(_integers(values), name, (2**64 - 1) >> 16)
        return _expect(found, name, len(found) + len(found) % 2)

    @staticmethod
    def _names(names, name, kind, count):
        if names is None:
            return [f"{kind} {i}".encode() for i in range(count)]
        return _expect([library.text(text, name) for text in list(names)], name, count)

    @staticmethod
    def _side(ids, name, begin, begin_name, count):
        begin, ids = _expect(_ids(begin, begin_name), begin_name, count + 1), _ids(ids, name, True)
        for i in range(count):
            if begin[i] > begin[i + 1]:
                raise ValueError(f"{begin_name}[{i}]: {begin[i]} is followed by {begin[i + 1]}: must not fall")
        if begin[0] != 0 or begin[count] != len(ids):
            raise ValueError(f"{begin_name} goes from {begin[0]} to {begin[count]}, expected from 0 to {len(ids)}")
        return ids, begin

    @staticmethod
    def _definition(op):
        if op.startswith("weft."):
            return _find(op[5:])
        return library.weft_op_def_t(domain=b"host", name=op.encode(), in_place=(ctypes.c_int8 * 4)(-1, -1, -1, -1))

    def _connect(self, order, inputs, input_begin, outputs, output_begin):
        """The producer of each value and its users in the order of execution."""
        producers, users, seen = [_ABSENT] * self.value_count, [[] for _ in range(self.value_count)], set()
        for i, op in enumerate(order):
            if op >= self.op_count:
                raise ValueError(f"order[{i}]: op {op} does not exist: there are {self.op_count}")
            if op in seen:
                raise ValueError(f"order[{i}]: op {op} is a duplicate")
            seen.add(op)
        for op in sorted(order):
            for value in outputs[output_begin[op]:output_begin[op + 1]]:
                if value != _ABSENT and value >= self.value_count:
                    raise ValueError(f"outputs of op {op}: value {value} does not exist")
                if value != _ABSENT and producers[value] != _ABSENT:
                    raise ValueError(f"outputs of op {op}: value {value} has two producers")
                if value != _ABSENT:
                    producers[value] = op
        for op in order:
            for value in inputs[input_begin[op]:input_begin[op + 1]]:
                if value != _ABSENT and value >= self.value_count:
                    raise ValueError(f"inputs of op {op}: value {value} does not exist")
                if value != _ABSENT:
                    users[value].append(op)
        return producers, users


def _describe(view):
    if not isinstance(view, View):
        raise TypeError(f"view must be a weft.passes.View, not {type(view)}")
    return _Described(view)


def _edits(function, described, *params):
    """The edits of a pass; params are structures, or None."""
    out = ctypes.c_void_p()
    before, after = params[:1], params[1:]
    function(ctypes.byref(described.view), *(param and ctypes.byref(param) for param in before), ctypes.byref(out),
             *map(ctypes.byref, after))
    try:
        return [_edit(library.weft_edit_t.from_address(library.weft_edit_list_get(out, i)))
                for i in range(library.weft_edit_list_count(out))]
    finally:
        library.weft_edit_list_destroy(out)


def _edit(raw):
    members = (ctypes.c_uint32 * raw.member_count).from_address(raw.members)[:] if raw.member_count else []
    text = (raw.text or b"").decode("utf-8", "replace")
    a, b = (None if op == _ABSENT else op for op in (raw.op_a, raw.op_b))
    if raw.kind == 1:
        return Insert(raw.value, raw.op_name.decode(), library.weft_reduction_name(raw.reduction).decode(), raw.group)
    if raw.kind == 2:
        return Fuse(tuple(members), text)
    if raw.kind == 3:
        return Order(a, b)
    if raw.kind == 4:
        return Algorithm(a, tuple(text.split(",")))
    if raw.kind == 5:
        return Split(a, raw.parts, text)
    if raw.kind == 6:
        return StartWait(a, b, members[0] if members else None)
    return Merge(a, b)


def _id(value, name):
    return _ABSENT if value is None else library.integer(value, name, _ABSENT - 1)


def _raw(edit, described):
    members = ()
    if isinstance(edit, Insert):
        fields = dict(kind=1, value=_id(edit.value, "value"), op_name=library.text(edit.op_name, "op_name"),
                      reduction=_core._reduction(edit.reduction), group=library.integer(edit.group, "group", _ABSENT - 1))
    elif isinstance(edit, Fuse):
        fields, members = dict(kind=2, text=library.text(edit.reason, "text")), edit.members
    elif isinstance(edit, Order):
        fields = dict(kind=3, op_a=_id(edit.before, "op"), op_b=_id(edit.after, "op"))
    elif isinstance(edit, Algorithm):
        fields = dict(kind=4, op_a=_id(edit.op, "op"), text=library.text(",".join(edit.names), "text"))
    elif isinstance(edit, Split):
        fields = dict(kind=5, op_a=_id(edit.op, "op"), parts=library.integer(edit.parts, "parts", _ABSENT - 1),
                      text=library.text(edit.reason, "text"))
    elif isinstance(edit, StartWait):
        fields = dict(kind=6, op_a=_id(edit.op, "op"), op_b=_id(edit.start_after, "op"))
        members = () if edit.wait_before is None else (edit.wait_before,)
    elif isinstance(edit, Merge):
        fields = dict(kind=7, op_a=_id(edit.kept, "op"), op_b=_id(edit.removed, "op"))
    else:
        raise TypeError(f"an edit must be one of weft.passes, not {type(edit)}")
    members = _ids(_integers(tuple(members)), "members")
    absent = dict(value=_ABSENT, op_a=_ABSENT, op_b=_ABSENT)
    return library.weft_edit_t(**{**absent, **fields}, members=described.array(members), member_count=len(members))


def insert_collectives(view):
    """Insert edits: an AllReduce (average) after every value with grad_of that no collective produced."""
    return _edits(library.weft_pass_insert_collectives, _describe(view), None)


def ready_times(view, op_ns=None):
    """array.array of nanoseconds: the time at which each operator has run, one after the other on a single stream."""
    described = _describe(view)
    out = (ctypes.c_uint64 * max(1, described.op_count))()
    library.weft_pass_ready_times(ctypes.byref(described.view), described.times(_integers(op_ns), "op_ns"), out)
    return array.array("Q", out[:described.op_count])


def bucket(view, policy="auto", *, ready_ns=None, world=None, cost=None, reduce_scatter_cost=None,
           all_gather_cost=None, costs=None):
    """(edits, Forecast): Fuse and Split edits of AllReduces of gradients, ReduceScatters and AllGathers.

    policy: as of weft.compile(bucket=). ready_ns: time at which each operator has run (default: all at 0). Costs are
    those of the file costs (`weft tune`) or default ones for world ranks, unless cost is set.
    """
    described, forecast = _describe(view), library.weft_bucket_forecast_t()
    params = library.weft_bucket_params_t(
        policy=None if policy is None else library.text(policy, "policy"),
        ready_ns=described.times(_integers(ready_ns), "ready_ns"),
        world_size=0 if world is None else library.integer(world, "world", 65536), cost=described.cost(cost),
        costs_path=library.path(costs, "costs", True), reduce_scatter_cost=described.cost(reduce_scatter_cost),
        all_gather_cost=described.cost(all_gather_cost))
    edits = _edits(library.weft_pass_bucket, described, params, forecast)
    return edits, Forecast(*(getattr(forecast, name) for name in Forecast._fields))


def algorithms(view, group_sizes, *, order="tree", costs=None):
    """Algorithm edits, one per collective. group_sizes: ranks of each group id of the view; order: "tree" or "any"."""
    if order not in _ORDERS:
        raise ValueError(f"order: {order!r} is not one of 'tree', 'any'")
    described, sizes = _describe(view), library.integers(_integers(group_sizes), "group_sizes", 65536)
    params = library.weft_algorithms_params_t(group_sizes=described.array(sizes), group_count=len(sizes),
                                              order=_ORDERS.index(order), costs_path=library.path(costs, "costs", True))
    return _edits(library.weft_pass_algorithms, described, params)


def order(view):
    """Order edits: the order of collectives that all ranks keep."""
    return _edits(library.weft_pass_order, _describe(view), None)


def start_wait(view):
    """StartWait edits: as early and as late as values and edges allow in the view's order."""
    return _edits(library.weft_pass_start_wait, _describe(view), None)


def schedule(view, op_ns, *, kept=None, to_end=None, in_flight=0, most_live_bytes=0):
    """(edits, ScheduleReport): Order edits of the order that ends earliest within the bounds.

    op_ns: time of each operator, collectives included. kept, to_end: a flag per value: it has memory of its own; it is
    read after the step. in_flight: most collectives under way (0: no bound); most_live_bytes: most bytes of values
    alive (0: as in the view's order).
    """
    described, report = _describe(view), library.weft_schedule_report_t()
    params = library.weft_schedule_params_t(
        op_ns=described.times(_integers(op_ns), "op_ns"), kept=described.flags(_integers(kept), "kept"),
        to_end=described.flags(_integers(to_end), "to_end"),
        in_flight=library.integer(in_flight, "in_flight", 2**31 - 1),
        most_live_bytes=library.integer(0 if most_live_bytes is None else most_live_bytes, "most_live_bytes", 2**64 - 1))
    edits = _edits(library.weft_pass_schedule, described, params, report)
    given, chosen = (ScheduleCost(*(getattr(cost, name) for name in ScheduleCost._fields))
                     for cost in (report.given, report.chosen))
    return edits, ScheduleReport(given, chosen, bool(report.changed))


def check(view, edits):
    """Raises weft.WeftArgumentError, naming edit and operator, unless edits may be applied to view."""
    described, out = _describe(view), ctypes.c_void_p()
    library.weft_edit_list_create(None, ctypes.byref(out))
    try:
        for edit in edits:
            library.weft_edit_list_add(out, ctypes.byref(_raw(edit, described)))
        library.weft_edits_check(ctypes.byref(described.view), out)
    finally:
        library.weft_edit_list_destroy(out)
