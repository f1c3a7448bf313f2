# SPDX-License-Identifier: Apache-2.0
"""torch.ops.weft.*: collectives as operators of torch, which torch.compile traces and autograd differentiates.

    torch.ops.weft.all_reduce_(x, "sum", name)          in place
    torch.ops.weft.all_reduce(x, "sum", name)           like x
    torch.ops.weft.all_gather(x, size, name)            (n, ..) -> (size * n, ..)
    torch.ops.weft.reduce_scatter(x, "sum", size, name) (n, ..) -> (n / size, ..)
    torch.ops.weft.all_to_all(x, name)                  (n, ..) -> (n, ..): block r goes to rank r
    torch.ops.weft.all_gather_out(x, size, name, y)     into y, and so on: y has any shape of as many elements

size is that of the group: a compiled function, which torch may load from a file, is of one size. name is that of a torch process group of the backend weft, or what group_name has returned for a weft.Group.

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
    "all_reduce_": "(Tensor(a!) tensor, str reduce_op, str group_name) -> ()",
    "all_reduce": "(Tensor tensor, str reduce_op, str group_name) -> Tensor",
    "all_gather": "(Tensor tensor, int group_size, str group_name) -> Tensor",
    "reduce_scatter": "(Tensor tensor, str reduce_op, int group_size, str group_name) -> Tensor",
    "all_to_all": "(Tensor tensor, str group_name) -> Tensor",
}
# These return nothing, which every torch functionalizes. Overloads would be called all_gather.out, but a call of
# torch.ops.weft.all_gather(.., out=y) tries the other overload first, and its exception costs 5 us.
_OUT = "_out"
_SCHEMAS |= {op + _OUT: schema.replace(") -> Tensor", ", Tensor(a!) out) -> ()")
             for op, schema in _SCHEMAS.items() if schema.endswith("-> Tensor")}


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


# ---- arguments ----
def _split(op, words):
    """(reduction, size, name, out) of an operator's arguments after the tensor; "sum", 0 and None where it has none."""
    words = list(words)
    return (words.pop(0) if "reduce_op" in _SCHEMAS[op] else "sum",
            words.pop(0) if "group_size" in _SCHEMAS[op] else 0, words.pop(0), words.pop(0) if words else None)


def _call(op, x, reduction, size, name, twin=""):
    """The operator, or with twin "_" that without autograd."""
    words = [reduction] if "reduce_op" in _SCHEMAS[op] else []
    words += [size] if "group_size" in _SCHEMAS[op] else []
    return getattr(torch.ops.weft, twin + op)(x, *words, name)


def _plain(op):
    """The operator without out."""
    return op.removesuffix(_OUT)


def _divides(op, x, size):
    """Whether x has rows for all ranks."""
    return op not in ("reduce_scatter", "all_to_all") or (x.dim() > 0 and x.shape[0] % size == 0)


def _shape(op, x, size):
    """Of op's result."""
    if op == "all_gather":
        return (size * x.shape[0], *x.shape[1:]) if x.dim() > 0 else (size,)
    if op == "reduce_scatter":
        if size < 1 or not _divides(op, x, size):
            raise ValueError(f"tensor has {x.shape[0] if x.dim() > 0 else 1} rows, which {size} ranks cannot divide")
        return (x.shape[0] // size, *x.shape[1:])
    return x.shape


def _meta(op):
    def run(x, *words):
        if op == "all_reduce_":
            return None
        _, size, _, out = _split(op, words)
        made = x.new_empty(_shape(_plain(op), x, size))
        if out is None:
            return made
        if (out.dtype, out.device) != (made.dtype, made.device):
            raise ValueError(f"out is of type {out.dtype} on {out.device}, and the tensor {x.dtype} on {x.device}")
        if out.numel() != made.numel():
            raise ValueError(f"out has {out.numel()} elements, and the result {made.numel()}")
        return None
    return run


# ---- kernels for torch without the stable interface ----
_OF_BOOLS = {"sum": "max", "prod": "min", "product": "min", "max": "max", "min": "min"}


def _as_sent(x, reduction):
    """(tensor, reduction) as weft's functions take them; what has no such form stays, for these to refuse."""
    if x.dtype is torch.bool and reduction in _OF_BOOLS:
        return layout.wire(x), _OF_BOOLS[reduction]
    if x.is_complex() and reduction in ("sum", "avg"):
        return layout.wire(x), reduction
    return x, "prod" if reduction == "product" else reduction


def _kernel(op):
    plain = _plain(op)
    function = getattr(weft, plain)

    def run(x, *words):
        reduction, size, name, out = _split(op, words)
        group = _find(name)
        ranks = weft.get_world_size(group)
        data, reduction = _as_sent(x, reduction)
        packed = data.contiguous()
        more = (reduction, group) if "reduce_op" in _SCHEMAS[op] else (group,)
        if op == "all_reduce_":
            weft.all_reduce_(packed, *more)
            if packed is not data:
                data.copy_(packed)
            return None
        if "group_size" in _SCHEMAS[op] and size != ranks:
            wrong = packed.new_empty(ranks * packed.numel() + 1)
            try:
                function(packed, *more, out=wrong)  # refused, which the other ranks learn
            except ValueError as error:
                raise ValueError(f"group size {size}, but the group has {ranks} ranks") from error
        if not _divides(plain, x, ranks):
            return function(packed, *more)  # which raises, here and on the other ranks
        made = x.new_empty(_shape(plain, x, size) if out is None else out.shape)
        direct = out is not None and (out.is_contiguous() or out.dtype is not x.dtype)  # another type is refused
        into = out if direct else made
        function(packed, *more, out=layout.wire(into) if data is not x else into)
        if out is None:
            return made
        if not direct:
            out.copy_(made)
        return None
    return run


# ---- gradients ----
# Every rank's loss counts: the gradient is that of the sum of all ranks' losses.
_REVERSE = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}


class _InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, *words):
        ctx.words = words
        ctx.mark_dirty(x)
        _call("all_reduce_", x, *words, twin="_")
        return x

    @staticmethod
    def backward(ctx, grad):
        return _call("all_reduce", grad, *ctx.words), None, None, None


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, op, *words):
        ctx.op, ctx.words, ctx.scalar = op, words, x.dim() == 0
        return _call(op, x, *words, twin="_")

    @staticmethod
    def backward(ctx, grad):
        reduction, size, name = ctx.words
        if ctx.op == "reduce_scatter" and reduction == "avg":
            grad = grad / size
        grad = _call(_REVERSE.get(ctx.op, ctx.op), grad, reduction, size, name)
        return grad.reshape(()) if ctx.scalar and ctx.op == "all_gather" else grad, None, None, None, None


def _refused(text, x, name):
    """An error, which the other ranks learn: this rank cannot make its call of the group of that name. Tensors without
    memory, as in tracing, make none."""
    if type(x) in (torch.Tensor, torch.nn.Parameter) and x.device.type == "cpu":
        _core._group_of(_find(name)).refuse(text)
    return RuntimeError(text)


def _record(op, x, reduction, size, name):
    """The call, with its gradient."""
    if op.endswith(_OUT):
        needed = "the tensor" if x.requires_grad else "out"
        raise _refused(f"weft::{op} has no gradient, and {needed} needs one", x, name)
    if reduction not in ("sum", "avg"):
        raise _refused(f"weft::{op}: {reduction} has no gradient; sum and avg have", x, name)
    if op == "all_reduce_":
        return _InPlace.apply(x, reduction, size, name)
    return _Function.apply(x, op, reduction, size, name)


def _autograd(op):
    def run(x, *words):
        reduction, size, name, out = _split(op, words)
        needed = x.requires_grad or (out is not None and out.requires_grad)
        if not needed or not torch.is_grad_enabled():
            return getattr(torch.ops.weft, "_" + op)(x, *words)
        result = _record(op, x, reduction, size, name)
        return None if op == "all_reduce_" else result
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
    falls_through = getattr(torch.library, "fallthrough_kernel", None)
    for op in _SCHEMAS:
        for key in ("AutogradMeta", "AutogradCPU")[:1 if level == 2 else 2]:
            meta_only = key == "AutogradMeta" and falls_through is None
            library.impl(op, _meta(op) if meta_only else _autograd(op), key)
        for name in op, "_" + op:
            library.impl(name, _meta(op), "Meta")
            if level == 0:
                library.impl(name, _kernel(op), "CPU")
        if falls_through is not None:
            library.impl("_" + op, falls_through, "Autograd")
    return library, level


_library, level = _define()
