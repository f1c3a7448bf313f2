# SPDX-License-Identifier: Apache-2.0
"""Arrays whose memory peers reach (include/weft/memory.h): empty, zeros, register, unregister."""
import operator
import sys

from weft import _core
from weft._values import text


def empty(shape, dtype="float32", context=None, *, device=None):
    """A numpy array of zeros on memory that peers reach: collectives on it, or on parts of it, read and write it in
    place, without copies in between.

    Collective over the world of context (a Context, a Group of it, or None: weft.init's): all ranks ask for the same
    number of bytes. dtype may be a name, a numpy type, or torch's, which makes it a tensor. Without numpy it is a
    memoryview. If the context is on a device it is a DeviceArray, and the call is not collective; device, if given,
    must name that device. The memory is taken back when all ranks have dropped their arrays, at the next empty or
    zeros; it stays valid after finalize. A forked child must not touch it.
    Raises TypeError, ValueError, WeftMismatchError, WeftNoMemoryError, WeftStateError."""
    number, dims = _core._dtype(dtype), (shape,) if type(shape) is int else _dims(shape)
    context = _core._context_of(context)
    if device is not None:
        own = _core._device(context)
        if not f"{own}:".encode().startswith(text(device, "device", "a string") + b":"):
            raise ValueError(f"device: {device!r}, the context is on '{own}'")
    tensor = type(dtype) is not str and _is_of_torch(dtype, "dtype")
    memory = _core._allocate(context, number, dims, tensor)
    if not tensor or isinstance(memory, _core.DeviceArray):
        return memory
    import torch
    return torch.empty(dims, dtype=dtype) if 0 in dims else torch.frombuffer(memory, dtype=dtype).reshape(dims)


def zeros(shape, dtype="float32", context=None, *, device=None):
    """The same as empty, whose memory is zeroed."""
    return empty(shape, dtype, context, device=device)


def register(array, context=None):
    """Adopts array's memory in place, so that peers reach it: contents and address stay, and collectives on it or on
    parts of it go without copies in between (but for the partial pages at its ends).

    Collective over the world of context (a Context, a Group of it, or None: weft.init's); sizes may differ. Nobody may
    use the memory during the call, and array is kept until unregister, or until the context is closed. Forked children
    do not inherit its pages.
    Raises TypeError, ValueError, WeftArgumentError (no elements, or registered already), WeftNoMemoryError."""
    context = _core._context_of(context)
    if _is_of_torch(array, "Tensor"):  # whose memory can be replaced (t.data = ..): another tensor on it keeps it
        array = array.detach()
    _core._register(context, array)


def unregister(array, context=None):
    """Makes array's memory private again, contents kept. Not collective: each rank does it when it likes.
    Raises ValueError when it is not registered."""
    _core._unregister(_core._context_of(context), array)


def _dims(shape):
    try:
        count = len(shape)
    except TypeError:
        shape, count = (shape,), 1
    if count > 64:  # of a range of 2^60, say, no tuple is made
        raise ValueError(f"shape has too many dimensions: {count}")
    try:
        return tuple([operator.index(value) for value in shape])
    except TypeError:
        wrong = next((value for value in shape if not hasattr(value, "__index__")), shape)
        raise TypeError(f"shape must be an integer or a sequence of them, not {wrong!r}") from None


def _is_of_torch(value, kind):
    """Whether value is of that type of torch; torch need not be there."""
    return isinstance(value, getattr(sys.modules.get("torch"), kind, ()))
