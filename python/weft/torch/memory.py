# SPDX-License-Identifier: Apache-2.0
"""Tensors on memory that peers reach directly."""
import math

import torch
import weft
from weft.torch.process_group import _weft_group


def empty(*shape, dtype=torch.float32, group=None):
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
