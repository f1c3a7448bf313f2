# SPDX-License-Identifier: Apache-2.0
"""Tensors on memory that peers reach directly."""
from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
import weft
from weft.torch.process_group import _weft_group


def empty(*shape: int | Sequence[int], dtype: torch.dtype = torch.float32,
          group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """A tensor of zeros in memory that the ranks of a process group (None: the default one) on a host reach directly,
    so that collectives of that group on it need no copies in between.

    Collective over the group: all ranks ask for the same sizes in the same order. The memory is taken from the group's
    own, and given back after the tensor and its views are gone on all ranks.
    """
    if len(shape) == 1 and not isinstance(shape[0], int):
        shape = tuple(shape[0])
    bytes_each = torch.empty((), dtype=dtype).element_size()
    count = math.prod(shape) * bytes_each
    if count == 0:
        return torch.zeros(shape, dtype=dtype)
    memory = weft.zeros((count,), "uint8", _weft_group(group).weft_context)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(shape)


def adopt(*things: torch.Tensor | torch.nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Lets the ranks of a process group (None: the default one) on a host reach the memory of things directly, so that
    collectives of that group on it need no copies in between. things are tensors, and modules: their parameters and
    buffers.

    Contents and addresses stay: the pages below are exchanged for shared ones. Collective over the group: all ranks
    pass as many storages, of any sizes. Those below 16 KiB on all ranks stay as they are, as does what is adopted.
    Nobody, no other thread either, may use the memory during the call. Adopted memory is held until release or the end
    of the group. Forked children do not inherit it and crash when they touch it: worker processes of a DataLoader must
    not use such tensors.
    """
    process_group = _weft_group(group)
    try:
        storages = _storages(things)
    except (TypeError, ValueError) as error:
        raise process_group._refused(error)
    process_group.adoption.take(storages)


def release(*things: torch.Tensor | torch.nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Makes memory that adopt was given private again; contents and addresses stay. Not collective, but other ranks'
    calls that are under way must be done with it."""
    _weft_group(group).adoption.release(_storages(things))


def _storages(things):
    """Tensors of bytes that span the storages of things, each storage once."""
    tensors, found = [], {}
    for thing in things:
        if isinstance(thing, torch.nn.Module):
            tensors += [*thing.parameters(), *thing.buffers()]
        elif isinstance(thing, torch.Tensor):
            tensors.append(thing)
        else:
            raise TypeError(f"expected tensors and modules, not {type(thing).__name__}")
    for tensor in tensors:
        if tensor.layout is not torch.strided or tensor.device.type != "cpu":
            raise ValueError(f"a dense tensor on the CPU was expected: layout {tensor.layout}, device {tensor.device}")
        storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage().untyped()
        if storage.nbytes() > 0:
            found.setdefault(storage.data_ptr(), torch.empty(0, dtype=torch.uint8).set_(storage))
    return list(found.values())
