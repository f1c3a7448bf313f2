# SPDX-License-Identifier: Apache-2.0
"""The hook for DistributedDataParallel: whole buckets, in place, averaged, in memory that peers reach directly."""
from typing import Optional, Union

import torch
import torch.distributed as dist
import weft
from weft.torch.process_group import _weft_group
from weft.torch.works import Done


class Buckets:
    """State of ddp_hook for one model.

    group: a process group of backend weft, None: the default one. adopt=False leaves buckets' memory as it is; else it
    is adopted in the third backward pass, and held until the group is destroyed. DDP forms new buckets after the first
    pass, whose buckets are not looked at: remembering them would hold their memory. Forked children do not inherit
    adopted memory: a DataLoader's worker processes must not touch gradients.
    """

    def __init__(self, group: Optional[dist.ProcessGroup] = None, *, adopt: bool = True) -> None:
        self.process_group = _weft_group(group)
        self.adopt = adopt
        self.passes = 0  # backward passes, with this one
        self.open = []  # (work, future, buffer) of this backward pass


# torch compares the hook's types with its own: they must not be texts, as `from __future__ import annotations` makes them.
def ddp_hook(state: Union[Buckets, dist.ProcessGroup, None],
             bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """model.register_comm_hook(state, weft.torch.ddp_hook): state is a Buckets, a process group, or None (the default).

    A bucket is all-reduced where it lies, as an average, when it is ready; the last one of a backward pass waits for
    all. Sparse ones get the entries of all ranks.
    """
    buckets = state if isinstance(state, Buckets) else _buckets_of(state)
    group = buckets.process_group
    buffer = bucket.buffer()
    future = torch.futures.Future()
    if group.size() == 1:
        future.set_result(buffer)
        return future
    if bucket.index() == 0:
        buckets.passes += 1
        buckets.open.clear()  # of a backward pass that was given up
    if buffer.layout is torch.strided:
        if buckets.adopt and buckets.passes > 1:
            group.adoption.see(buffer)
        work = weft.all_reduce_(buffer, "avg", group.weft_group, async_op=True)
    else:
        group.allreduce([buffer]).wait()
        buffer = buffer / group.size()
        work = Done()
    buckets.open.append((work, future, buffer))
    if bucket.is_last():
        for one, promised, tensor in buckets.open:
            one.wait()
            promised.set_result(tensor)
        buckets.open.clear()
    return future


def _buckets_of(group):
    """A group's own, for models that were given none. One backward pass at a time."""
    group = _weft_group(group)
    if group.buckets is None:
        group.buckets = Buckets(group)
    return group.buckets
