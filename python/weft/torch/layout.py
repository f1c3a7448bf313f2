# SPDX-License-Identifier: Apache-2.0
"""Tensors as torch gives them (lists, any type, strided) to blocks of memory as Weft takes them."""
import torch

NATIVE = frozenset(getattr(torch, name) for name in (
    "float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64") if hasattr(torch, name))


def wire(tensor):
    """The same memory as a type that Weft moves: bool and small floats as uint8, complex as pairs; TypeError for what has
    no such."""
    if tensor.dtype in NATIVE:
        if tensor.layout is not torch.strided:
            raise TypeError(f"weft: unsupported layout {tensor.layout}: expected a dense tensor")
        return tensor
    if tensor.dtype is torch.bool or (tensor.dtype.is_floating_point and tensor.element_size() == 1):
        return tensor.detach().view(torch.uint8)
    if tensor.is_complex():
        return torch.view_as_real(tensor.detach())
    raise TypeError(f"weft: unsupported dtype {tensor.dtype}")


def dense(tensor):
    """tensor, or a copy of it, with its elements one behind the other."""
    tensor = wire(tensor)
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def joined(tensors):
    """One flat tensor over the memory of all, or None when they do not lie one behind the other."""
    first = tensors[0]
    count = first.numel()
    step, at = count * first.element_size(), first.data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != at or tensor.numel() != count or not tensor.is_contiguous():
            return None
        at += step
    try:
        return first.detach().as_strided((count * len(tensors),), (1,), first.storage_offset())
    except RuntimeError:  # neighbours by chance
        return None


def packed(tensors):
    """One flat tensor with the elements of all; a copy unless they lie one behind the other."""
    tensors = [wire(tensor) for tensor in tensors]
    whole = joined(tensors) if len(tensors) > 1 else None
    return whole if whole is not None else torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def room(tensors, like):
    """(whole, finish): where the blocks of tensors are received, one behind the other; finish, unless it is None, puts
    them into their places (called without gradients being recorded)."""
    tensors = [wire(tensor) for tensor in tensors]
    whole = joined(tensors) if len(tensors) > 1 else tensors[0] if tensors[0].is_contiguous() else None
    if whole is not None:
        return whole, None
    shape = tensors[0].shape
    if all(tensor.shape == shape for tensor in tensors):
        whole = torch.empty((len(tensors), *shape), dtype=like.dtype)

        def finish():
            for tensor, block in zip(tensors, whole.unbind(0)):
                tensor.copy_(block)
        return whole, finish
    whole = torch.empty(sum(tensor.numel() for tensor in tensors), dtype=like.dtype)

    def finish():
        at = 0
        for tensor in tensors:
            tensor.copy_(whole[at:at + tensor.numel()].view(tensor.shape))
            at += tensor.numel()
    return whole, finish


def place(tensor):
    """(dense, finish) of one tensor that is read and written."""
    tensor = wire(tensor)
    if tensor.is_contiguous():
        return tensor, None
    copy = tensor.detach().contiguous()
    return copy, lambda: tensor.copy_(copy)


def padded(tensors, rows):
    """A flat tensor of len(tensors) blocks of rows elements each, longer than the tensors."""
    tensors = [wire(tensor) for tensor in tensors]
    whole = torch.zeros((len(tensors), rows), dtype=tensors[0].dtype)
    for i, tensor in enumerate(tensors):
        whole[i, :tensor.numel()] = tensor.detach().reshape(-1)
    return whole.view(-1)
