# SPDX-License-Identifier: Apache-2.0
"""The operators of weft.jax: one custom call of XLA per tree of arrays, ordered among each other by a token.

They are collectives of processes, as in MPI: an array is what this process has, under jit or inside of shard_map.
"""
import ctypes
import functools

import jax
import numpy as np
from jax._src import effects, sharding_impls
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

REDUCTIONS = {"sum": 0, "avg": 1, "prod": 2, "min": 3, "max": 4}
# By their numbers in weft/types.h.
KINDS = {"all_reduce": 1, "broadcast": 2, "reduce_scatter": 3, "all_gather": 4, "all_to_all": 8}
NAMES = {number: name for name, number in KINDS.items()}
TRANSPOSED = {"all_reduce": "all_reduce", "reduce_scatter": "all_gather", "all_gather": "reduce_scatter",
              "all_to_all": "all_to_all"}
TYPES = {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16",
         "float32", "float64", "complex64", "complex128"}
TARGET = "weft_collective"


class _Order(effects.Effect):
    def __str__(self):
        return "Weft"


_order = _Order()
for _allowed in (effects.lowerable_effects, effects.ordered_effects, effects.shardable_ordered_effects,
                 effects.control_flow_allowed_effects, effects.custom_derivatives_allowed_effects,
                 effects.remat_allowed_effects):
    _allowed.add_type(_Order)

_collective = Primitive(TARGET)
_collective.multiple_results = True


def register(world):
    """Before the first operator: XLA learns the handler, and the handler its communicator."""
    handle = ctypes.c_size_t()
    world.call("Comm_split", world.world, ctypes.c_int(0), ctypes.c_int(world.rank()), ctypes.byref(handle))
    world.mpi.weft_jax_use(handle)
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(world.mpi.weft_jax_collective), platform="cpu")


def check_world(world, name):
    if jax.process_count() != world.size():
        raise RuntimeError(f"weft.jax.{name}: JAX has {jax.process_count()} processes, Weft's world has {world.size()} ranks: "
                           "start them by weft run, mpirun or srun, and call jax.distributed.initialize() first")


def bind(world, name, tree, op="sum", root=0):
    if op not in REDUCTIONS:
        raise ValueError(f"weft.jax.{name}: invalid value '{op}' for op: expected one of {', '.join(REDUCTIONS)}")
    check_world(world, name)
    if not 0 <= root < world.size():
        raise ValueError(f"weft.jax.{name}: invalid root {root} for world size {world.size()}")
    leaves, structure = jax.tree.flatten(tree)
    out = _collective.bind(*map(jax.numpy.asarray, leaves), kind=KINDS[name], reduction=REDUCTIONS[op], root=root,
                           size=world.size()) if leaves else []
    return jax.tree.unflatten(structure, out)


def _result(aval, kind, reduction, size):
    """The result's type and shape."""
    name, shape = NAMES[kind], aval.shape
    if str(aval.dtype) not in TYPES:
        raise TypeError(f"weft.jax.{name}: unsupported type {aval.dtype}")
    if name.endswith(("reduce", "reduce_scatter")) and (
            aval.dtype == bool or np.issubdtype(aval.dtype, np.complexfloating) and reduction > REDUCTIONS["avg"]):
        raise TypeError(f"weft.jax.{name}: no {list(REDUCTIONS)[reduction]} of {aval.dtype}")
    if name in ("all_gather", "reduce_scatter", "all_to_all"):
        if not shape:
            raise ValueError(f"weft.jax.{name}: a scalar has no first dimension")
        if name != "all_gather" and shape[0] % size:
            raise ValueError(f"weft.jax.{name}: first dimension {shape[0]} is no multiple of world size {size}")
        rows = {"all_gather": shape[0] * size, "reduce_scatter": shape[0] // size, "all_to_all": shape[0]}[name]
        shape = (rows, *shape[1:])
    return aval.update(shape=shape)


@_collective.def_effectful_abstract_eval
def _abstract(*avals, kind, reduction, root, size):
    del root
    return [_result(aval, kind, reduction, size) for aval in avals], {_order}


@functools.cache
def _compiled(**params):
    return jax.jit(lambda *arrays: _collective.bind(*arrays, **params))


@_collective.def_impl
def _run(*arrays, **params):
    return _compiled(**params)(*arrays)


def _lower(ctx, *operands, kind, reduction, root, size):
    del size
    axes = ctx.module_context.axis_context
    if isinstance(axes, sharding_impls.ShardingContext) and axes.num_devices > 1:
        raise NotImplementedError(f"weft.jax.{NAMES[kind]} of an array sharded over several devices: call it inside of "
                                  "jax.shard_map, where an array is what this process has")
    token = ctx.tokens_in.get(_order)
    call = jax.ffi.ffi_lowering(TARGET, has_side_effect=True)
    inner = ctx.replace(avals_in=[jax.core.abstract_token, *ctx.avals_in],
                        avals_out=[jax.core.abstract_token, *ctx.avals_out])
    token, *results = call(inner, token, *operands, kind=np.int64(kind), reduction=np.int64(reduction),
                           root=np.int64(root))
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({_order: token})))
    return results


mlir.register_lowering(_collective, _lower, platform="cpu")


def _bind_some(arrays, zeros, params):
    """The operator on the arrays that are not ad.Zero; zeros makes the results of the others."""
    some = [array for array in arrays if type(array) is not ad.Zero]
    results = iter(_collective.bind(*some, **params) if some else [])
    return [zeros(index) if type(array) is ad.Zero else next(results) for index, array in enumerate(arrays)]


def _linear(kind, reduction):
    name = NAMES[kind]
    if name == "broadcast" or name.endswith(("reduce", "reduce_scatter")) and reduction > REDUCTIONS["avg"]:
        op = "" if name == "broadcast" else f" with op '{list(REDUCTIONS)[reduction]}'"
        raise NotImplementedError(f"weft.jax.{name}{op} has no derivative")


def _jvp(primals, tangents, **params):
    _linear(params["kind"], params["reduction"])
    out = _collective.bind(*primals, **params)
    return out, _bind_some(tangents, lambda index: ad.Zero(jax.typeof(out[index]).to_tangent_aval()), params)


def _transpose(cotangents, *arguments, kind, reduction, root, size):
    """The gradient of the sum of what all processes compute from the results."""
    _linear(kind, reduction)
    name = NAMES[kind]
    params = {"kind": KINDS[TRANSPOSED[name]], "root": root, "size": size,
              "reduction": reduction if name == "all_reduce" else REDUCTIONS["sum"]}
    found = _bind_some(cotangents, lambda index: ad.Zero(arguments[index].aval), params)
    if name == "reduce_scatter" and reduction == REDUCTIONS["avg"]:
        found = [c if type(c) is ad.Zero else c / size for c in found]
    return found


def _batch(arrays, dims, **params):
    name = NAMES[params["kind"]]
    if name in ("all_reduce", "broadcast"):
        return _collective.bind(*arrays, **params), dims
    if any(a.ndim == 1 and d is not None for a, d in zip(arrays, dims)):
        raise ValueError(f"weft.jax.{name}: a scalar has no first dimension")
    # The first dimension is cut or joined; that of the batch is the second one.
    moved = [a if d is None else jax.numpy.moveaxis(a, d, 1) for a, d in zip(arrays, dims)]
    return _collective.bind(*moved, **params), [None if d is None else 1 for d in dims]


ad.primitive_jvps[_collective] = _jvp
ad.primitive_transposes[_collective] = _transpose
batching.primitive_batchers[_collective] = _batch
