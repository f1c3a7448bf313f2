# SPDX-License-Identifier: Apache-2.0
"""weft.jax.bucketed: gradients of a function, averaged in buckets that weft.passes plans from the function's jaxpr.

    trace the function  ->  Program: equations of the jaxpr, calls of jitted functions inlined
    Program             ->  weft.passes.View  ->  buckets
    evaluate Program, with one variadic all-reduce after the last gradient of each bucket is ready

The plan depends on the jaxpr, the policy, the costs and the number of processes only: all processes make the same one.
"""
import functools
import math

import jax
import numpy as np
from jax._src import source_info_util
from jax._src.named_sharding import UnspecifiedValue
from jax.extend import core

from weft import passes
from weft.jax import _operators

# Estimates of compute, for the times at which gradients are ready: as weft_op_predict_ns.
FLOPS_PER_NS, BYTES_PER_NS = 100.0, 10.0
# XLA makes no pass over the data for these, or merges it with the reader.
FREE = {"broadcast_in_dim", "copy", "copy_p", "convert_element_type", "expand_dims", "reshape", "squeeze", "transpose"}
# A complex number is two reals.
VIEW_TYPES = {"complex64": "float32", "complex128": "float64"}


# ---- estimates ----
def _bytes(avals):
    return sum(math.prod(aval.shape) * aval.dtype.itemsize for aval in avals if hasattr(aval, "shape"))


def _flops(eqn):
    """Floating-point operations of a product; None: not a product."""
    if eqn.primitive.name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        shape = eqn.invars[0].aval.shape
        return 2 * math.prod(eqn.outvars[0].aval.shape) * math.prod(shape[i] for i in contracted)
    if eqn.primitive.name == "conv_general_dilated":
        kernel, features = eqn.invars[1].aval.shape, eqn.params["dimension_numbers"].rhs_spec[0]
        return 2 * math.prod(eqn.outvars[0].aval.shape) * math.prod(kernel) // max(kernel[features], 1)
    return None


def _nanoseconds(eqn):
    """Of an equation, and of what it calls. A while loop counts as one iteration."""
    name = eqn.primitive.name
    inner = [sum(map(_nanoseconds, jaxpr.eqns)) for jaxpr in core.jaxprs_in_params(eqn.params)]
    if inner:
        return max(inner) if name == "cond" else sum(inner) * (eqn.params["length"] if name == "scan" else 1)
    if name in FREE:
        return 0
    flops = _flops(eqn)
    if flops is not None:
        return int(flops / FLOPS_PER_NS)
    return int(_bytes(atom.aval for atom in (*eqn.invars, *eqn.outvars)) / BYTES_PER_NS)


# ---- a jaxpr as a list of equations ----
def _is_array(leaf):
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic))


def _may_inline(eqn):
    """Whether the equation is a call of a jitted function without placements or options of its own."""
    params = eqn.params
    return (eqn.primitive.name in ("jit", "pjit") and not params.get("compiler_options_kvs")
            and all(isinstance(s, UnspecifiedValue) for s in (*params["in_shardings"], *params["out_shardings"]))
            and not any(layout is not None for layout in (*params["in_layouts"], *params["out_layouts"])))


class Program:
    """Equations (eqn, ids of the values that it reads, ids of those that it writes); avals and constants by id."""

    def __init__(self, closed):
        self.equations, self.avals, self.constants = [], [], {}
        self.inputs = [self._value(var.aval) for var in closed.jaxpr.invars]
        self.outputs = self._inline(closed, self.inputs)
        for number in self.constants.keys() & set(self.outputs):
            if not _is_array(self.constants[number]):               # a literal may be a number of Python
                self.constants[number] = jax.numpy.asarray(self.constants[number], self.avals[number].dtype)
        self._drop_unused()

    def _value(self, aval):
        self.avals.append(aval)
        return len(self.avals) - 1

    def _constant(self, aval, value):
        number = self._value(aval)
        self.constants[number] = value
        return number

    def _inline(self, closed, inputs):
        """Adds the equations of closed; returns the ids of its outputs."""
        jaxpr = closed.jaxpr
        ids = dict(zip(jaxpr.invars, inputs))
        for var, value in zip(jaxpr.constvars, closed.consts):
            ids[var] = self._constant(var.aval, value)

        def read(atom):
            return self._constant(atom.aval, atom.val) if isinstance(atom, core.Literal) else ids[atom]

        for eqn in jaxpr.eqns:
            reads = [read(atom) for atom in eqn.invars]
            if _may_inline(eqn):
                writes = self._inline(eqn.params["jaxpr"], reads)
            else:
                writes = [self._value(var.aval) for var in eqn.outvars]
                self.equations.append((eqn, reads, writes))
            ids.update(zip(eqn.outvars, writes))
        return [read(atom) for atom in jaxpr.outvars]

    def _drop_unused(self):
        """XLA does not compute what nothing reads, so such equations must not count."""
        used, kept = set(self.outputs), []
        for equation in reversed(self.equations):
            eqn, reads, writes = equation
            if eqn.effects or not used.isdisjoint(writes):
                used.update(reads)
                kept.append(equation)
        self.equations = kept[::-1]

    def ready(self, averaged):
        """Id -> index of the equation that writes it, -1: an argument or a constant. In that order."""
        written = {number: i for i, (_, _, writes) in enumerate(self.equations) for number in writes}
        ready = {number: written.get(number, -1) for number in averaged}
        return dict(sorted(ready.items(), key=lambda item: item[1]))

    def run(self, arrays, buckets, reduce):
        """(values, reduced): by id. buckets: index of the equation after which a bucket runs -> lists of ids."""
        values, reduced = {**self.constants, **dict(zip(self.inputs, arrays))}, {}

        def after(index):
            for bucket in buckets.get(index, ()):
                reduced.update(zip(bucket, reduce([values[number] for number in bucket])))

        after(-1)
        for i, (eqn, reads, writes) in enumerate(self.equations):
            info = eqn.source_info
            stack = source_info_util.current_name_stack() + info.name_stack
            with source_info_util.user_context(info.traceback, name_stack=stack), eqn.ctx.manager:
                results = eqn.primitive.bind(*[values[number] for number in reads],
                                             **eqn.primitive.get_bind_params(eqn.params))
            values.update(zip(writes, results if eqn.primitive.multiple_results else [results]))
            after(i)
        return values, reduced


# ---- buckets ----
def _plan(program, averaged, world, policy, costs):
    """Index of an equation (-1: before all) -> buckets of ids of values that are averaged after it."""
    sizes = [_bytes([aval]) for aval in program.avals]
    dtypes = ["uint8"] * len(sizes)
    grad_of = [-1] * len(sizes)
    ops, inputs, outputs, op_ns, owner = [], [], [], [], {}
    ready = program.ready(averaged)
    at = {}
    for number, index in ready.items():
        at.setdefault(index, []).append(number)

    def average(number):
        dtype = str(program.avals[number].dtype)
        dtypes[number] = VIEW_TYPES.get(dtype, dtype)
        parameter, result = len(sizes), len(sizes) + 1      # the parameter has only an id
        sizes.extend([sizes[number]] * 2)
        dtypes.extend([dtypes[number]] * 2)
        grad_of.extend([-1, parameter])
        owner[len(ops)] = number
        add("weft.AllReduce", [number], [result], 0)

    def add(name, reads, writes, nanoseconds):
        ops.append(name)
        inputs.append(reads)
        outputs.append(writes)
        op_ns.append(nanoseconds)

    for number in at.get(-1, ()):
        average(number)
    for i, (eqn, reads, writes) in enumerate(program.equations):
        # Effects need no fence: buckets keep their place in the order of the program.
        add(eqn.primitive.name, reads, writes, _nanoseconds(eqn))
        for number in at.get(i, ()):
            average(number)
    view = passes.View.from_lists(ops, inputs, outputs, sizes, dtypes=dtypes, grad_of=grad_of,
                                  reductions=["avg"] * len(ops))
    edits, _ = passes.bucket(view, policy, ready_ns=passes.ready_times(view, op_ns), world=world, costs=costs)
    passes.check(view, edits)
    # A split has no use here: its pieces would be ready together and run one after another, at the cost of copies.
    fused = [edit.members for edit in edits if isinstance(edit, passes.Fuse)]
    alone = sorted(set(owner) - {op for members in fused for op in members})
    buckets = {}
    for members in sorted([*fused, *((op,) for op in alone)], key=max):
        ids = [owner[op] for op in members]
        buckets.setdefault(max(ready[number] for number in ids), []).append(ids)
    return buckets


def check_policy(policy, costs):
    view = passes.View.from_lists(["weft.AllReduce"], [[0]], [[1]], [4, 4], grad_of=[-1, 0])
    passes.bucket(view, "auto" if str(policy).startswith("index") else policy, world=2, costs=costs)


# ---- the function ----
def _wanted(average, result):
    """Per leaf of result whether it is averaged."""
    try:
        return [bool(flag) for flag in jax.tree.leaves(jax.tree.broadcast(average, result))]
    except ValueError as error:
        raise ValueError(f"weft.jax.bucketed: average is not a prefix of the tree that the function returns: {error}"
                         ) from None


def bucketed(get_world, grad_fn, policy, costs, average):
    check_policy(policy, costs)

    @functools.wraps(grad_fn)
    def averaged(*args, **kwargs):
        world = get_world()
        _operators.check_world(world, "bucketed")
        leaves, structure = jax.tree.flatten((args, kwargs))
        arrays = [leaf for leaf in leaves if _is_array(leaf)]
        found = {}

        def flat(*arrays):
            """The leaves that are averaged, then other arrays. The rest may be any objects."""
            rest = iter(arrays)
            args, kwargs = jax.tree.unflatten(structure, [next(rest) if _is_array(leaf) else leaf for leaf in leaves])
            result = grad_fn(*args, **kwargs)
            found["leaves"], found["structure"] = jax.tree.flatten(result)
            # Gradients of integers have no values.
            found["averaged"] = [i for i, (leaf, flag) in enumerate(zip(found["leaves"], _wanted(average, result)))
                                 if flag and getattr(leaf, "dtype", None) != jax.dtypes.float0]
            chosen = set(found["averaged"])
            found["others"] = [i for i, leaf in enumerate(found["leaves"]) if i not in chosen and _is_array(leaf)
                               and leaf.dtype != jax.dtypes.float0]
            return [jax.numpy.asarray(found["leaves"][i]) for i in found["averaged"] + found["others"]]

        program = Program(jax.make_jaxpr(flat)(*arrays))
        count = len(found["averaged"])
        wanted = list(dict.fromkeys(program.outputs[:count]))       # tied ones once
        buckets = _plan(program, wanted, world.size(), policy, costs) if wanted else {}
        reduce = functools.partial(_operators.bind, world, "all_reduce", op="avg")
        values, reduced = program.run(arrays, buckets, reduce)
        out = found["leaves"]
        for i, number in zip(found["averaged"], program.outputs[:count]):
            out[i] = reduced[number]
        for i, number in zip(found["others"], program.outputs[count:]):
            out[i] = values[number]
        return jax.tree.unflatten(found["structure"], out)
    return averaged
