# SPDX-License-Identifier: Apache-2.0
"""torch.ops.weft.*: collectives as operators of torch, which torch.compile traces and autograd differentiates.

    torch.ops.weft.all_reduce_(x, "sum", name)          in place
    torch.ops.weft.all_reduce(x, "sum", name)           like x
    torch.ops.weft.all_gather(x, name)                  (n, ..) -> (world * n, ..)
    torch.ops.weft.reduce_scatter(x, "sum", name)       (n, ..) -> (n / world, ..)
    torch.ops.weft.all_to_all(x, name)                  (n, ..) -> (n, ..): block r goes to rank r

name is that of a torch process group of the backend weft, or what group_name has returned for a weft.Group.

Each operator has a twin without autograd, _all_reduce_ and so on. Kernels are those of _core (torch_operators.c) where
torch has the stable interface for them (2.10; with autograd 2.14), and otherwise the functions here.
"""
import torch
import torch.distributed as dist
import weft
from weft import _core
from weft.torch import layout
from weft.torch.process_group import group_of

_names = {}
_WORLD = "weft"                                     # the world of weft.init
_SCHEMAS = {
    "all_reduce_": "(Tensor(a!) self, str reduce_op, str group_name) -> ()",
    "all_reduce": "(Tensor self, str reduce_op, str group_name) -> Tensor",
    "all_gather": "(Tensor self, str group_name) -> Tensor",
    "reduce_scatter": "(Tensor self, str reduce_op, str group_name) -> Tensor",
    "all_to_all": "(Tensor self, str group_name) -> Tensor",
}


# ---- names ----
def group_name(group=None):
    """The name by which operators find group: a torch process group of the backend weft, a weft.Group, or None
    (torch's default group; without one the world of weft.init). A weft.Group is kept until forget(name). Ranks that
    name groups in the same order get the same names."""
    if group is None and not dist.is_initialized():
        return _WORLD
    if not isinstance(group, weft.Group):
        group_of(group)                             # or TypeError
        return dist.distributed_c10d._pg_names[group or dist.distributed_c10d._get_default_group()]
    for name, known in _names.items():
        if known is group:
            return name
    group_name.count += 1
    name = f"{_WORLD}:{group_name.count}"
    _names[name] = group
    return name


group_name.count = 0


def forget(name):
    """name of a weft.Group stands for no group any more."""
    _names.pop(name, None)
    _core._torch_forget(name)


def _find(name):
    """The weft.Group of a name; None: the world of weft.init."""
    if name == _WORLD or name in _names:
        return _names.get(name)
    for group, known in dist.distributed_c10d._pg_names.items():
        if known == name:
            return group_of(group)
    raise ValueError(f"group {name!r} does not exist: expected the name of a torch process group, or one of "
                     "weft.torch.operators.group_name")


def _size(name):
    return weft.get_world_size(_find(name))


# ---- shapes ----
def _divides(op, x, size):
    """Whether x has rows for all ranks."""
    return op not in ("reduce_scatter", "all_to_all") or (x.dim() > 0 and x.shape[0] % size == 0)


def _shape(op, x, name):
    """Of op's result."""
    size = _size(name)
    if not _divides(op, x, size):
        raise ValueError(f"tensor has {x.shape[0] if x.dim() > 0 else 1} rows, which {size} ranks cannot divide")
    if op == "all_gather":
        return (size * x.shape[0], *x.shape[1:]) if x.dim() > 0 else (size,)
    return (x.shape[0] // size, *x.shape[1:]) if op == "reduce_scatter" else x.shape


def _shapes(op):
    def meta(x, *names):
        return None if op == "all_reduce_" else x.new_empty(_shape(op, x, names[-1]))
    return meta


# ---- kernels for torch without the stable interface ----
_OF_BOOLS = {None: None, "sum": "max", "prod": "min", "product": "min", "max": "max", "min": "min"}


def _as_sent(x, reduction):
    """(tensor, reduction) as weft's functions take them; what has no such form stays, for these to refuse."""
    if x.dtype is torch.bool and reduction in _OF_BOOLS:
        return layout.wire(x), _OF_BOOLS[reduction]
    if x.is_complex() and reduction in (None, "sum", "avg"):
        return layout.wire(x), reduction
    return x, "prod" if reduction == "product" else reduction


def _kernel(op):
    def run(x, *names):
        name, group = names[-1], _find(names[-1])
        data, reduction = _as_sent(x, names[0] if len(names) > 1 else None)
        packed = data.contiguous()
        more = (reduction, group) if reduction is not None else (group,)
        if op == "all_reduce_":
            weft.all_reduce_(packed, *more)
            if packed is not data:
                data.copy_(packed)
            return None
        if not _divides(op, x, _size(name)):
            return getattr(weft, op)(packed, *more)  # which raises, here and on the other ranks
        out = x.new_empty(_shape(op, x, name))
        getattr(weft, op)(packed, *more, out=layout.wire(out) if data is not x else out)
        return out
    return run


# ---- gradients ----
# Every rank's loss counts: the gradient is that of the sum of all ranks' losses.
def _no_gradient(op, reduction):
    return RuntimeError(f"weft::{op}: {reduction} has no gradient; sum and avg have")


class _InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, reduction, name):
        ctx.names = reduction, name
        ctx.mark_dirty(x)
        torch.ops.weft._all_reduce_(x, reduction, name)
        return x

    @staticmethod
    def backward(ctx, grad):
        return torch.ops.weft.all_reduce(grad, *ctx.names), None, None


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, op, reduction, name):
        ctx.names, ctx.scalar = (op, reduction, name), x.dim() == 0
        return _call("_" + op, x, reduction, name)

    @staticmethod
    def backward(ctx, grad):
        op, reduction, name = ctx.names
        if op == "reduce_scatter" and reduction == "avg":
            grad = grad / _size(name)
        reverse = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}.get(op, op)
        grad = _call(reverse, grad, reduction if op == "all_reduce" else "sum", name)
        return grad.reshape(()) if ctx.scalar else grad, None, None, None


def _call(op, x, reduction, name):
    reduces = "reduce_op" in _SCHEMAS[op.lstrip("_")]
    return getattr(torch.ops.weft, op)(x, *((reduction, name) if reduces else (name,)))


def _record(op, x, reduction, name):
    """The call, with its gradient."""
    if reduction not in ("sum", "avg"):
        raise _no_gradient(op, reduction)
    if op == "all_reduce_":
        return _InPlace.apply(x, reduction, name)
    return _Function.apply(x, op, reduction, name)


def _autograd(op):
    below = "_" + op

    def run(x, *names):
        if torch.is_grad_enabled() and x.requires_grad:
            result = _record(op, x, names[0] if len(names) > 1 else "sum", names[-1])
            return None if op == "all_reduce_" else result
        return getattr(torch.ops.weft, below)(x, *names)
    return run


# ---- registration ----
def _define():
    try:
        library = torch.library.Library("weft", "FRAGMENT")
    except ValueError:                              # torch 1
        library = torch.library.Library("weft", "DEF")
    for op, schema in _SCHEMAS.items():
        for name in op, "_" + op:
            library.define(name + schema)
    level = _core._torch_operators(_find, _record, getattr(torch._C, "_increment_version", lambda tensors: None))
    for op in _SCHEMAS:
        for key in ("AutogradMeta", "AutogradCPU")[:1 if level == 2 else 2]:
            library.impl(op, _autograd(op), key)
        for name in op, "_" + op:
            library.impl(name, _shapes(op), "Meta")
            if level == 0:
                library.impl(name, _kernel(op), "CPU")
        if hasattr(torch.library, "fallthrough_kernel"):
            library.impl("_" + op, torch.library.fallthrough_kernel, "Autograd")
    return library, level


_library, level = _define()
