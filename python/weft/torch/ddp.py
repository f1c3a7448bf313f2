# SPDX-License-Identifier: Apache-2.0
"""The hook for DistributedDataParallel: whole buckets, in place, averaged, in memory that peers reach directly."""
import torch
import weft
from weft.torch.process_group import _weft_group
from weft.torch.works import Done

# Buckets that change their memory again and again (several models with one state) are no longer adopted.
_MOVES = 4


class Buckets:
    """State of ddp_hook for one model: the memory of its buckets, adopted when it is first seen.

    group: a process group of backend weft, None: the default one. adopt=False leaves memory as it is.
    Adopted memory is not inherited by forked children (worker processes of a DataLoader must not touch gradients),
    stays allocated until close(), and costs nothing afterwards. close() is called when the group is destroyed.
    """

    def __init__(self, group=None, *, adopt=True):
        self.process_group = _weft_group(group)
        self.adopt = adopt
        self._held = {}  # by index of the bucket: tensor, or None when it could not be adopted
        self._moves = {}
        self._open = []  # (work, future, buffer) of this backward
        if self.process_group.buckets is None:
            self.process_group.buckets = self
        else:
            self.process_group.buckets._others.append(self)
        self._others = []

    def _take(self, index, buffer):
        """Adopts buffer as bucket index's memory. All ranks come to the same decision: they see the same buckets, and
        an address that is held cannot come again."""
        held = self._held.get(index)
        if held is not None and held.data_ptr() == buffer.data_ptr() and held.numel() == buffer.numel():
            return
        moves = self._moves[index] = self._moves.get(index, 0) + 1
        if held is not None:
            weft.unregister(held, self.process_group.weft_context)
            self._held[index] = None
        if moves <= _MOVES and buffer.numel() > 0:
            try:
                weft.register(buffer, self.process_group.weft_context)
                self._held[index] = buffer
            except (weft.WeftNoMemoryError, weft.WeftUnsupportedError):  # on all ranks
                self.adopt = False

    def close(self):
        """Gives the memory back. All ranks do this between the same calls; waits for nobody."""
        held, self._held = self._held, {}
        self.adopt = False
        if not self.process_group.weft_context.closed:
            for tensor in held.values():
                if tensor is not None:
                    weft.unregister(tensor, self.process_group.weft_context)
        for other in self._others:
            other.close()


def ddp_hook(state, bucket):
    """model.register_comm_hook(state, weft.torch.ddp_hook): state is a Buckets, a process group, or None (the default).

    A bucket is all-reduced where it lies, as an average, when it is ready; the last one of a backward pass waits for
    all.
    """
    buckets = state if isinstance(state, Buckets) else _buckets_of(state)
    group = buckets.process_group
    buffer = bucket.buffer()
    future = torch.futures.Future()
    if group.size() == 1:
        future.set_result(buffer)
        return future
    if bucket.index() == 0:
        buckets._open.clear()  # of a backward pass that was given up
    if buffer.layout is torch.strided:
        if buckets.adopt:
            buckets._take(bucket.index(), buffer)
        work = weft.all_reduce_(buffer, "avg", group.weft_group, async_op=True)
    else:
        group.allreduce([buffer]).wait()  # of sparse gradients: all ranks' entries
        buffer = buffer / group.size()
        work = Done()
    buckets._open.append((work, future, buffer))
    if bucket.is_last():
        for one, promised, tensor in buckets._open:
            one.wait()
            promised.set_result(tensor)
        buckets._open.clear()
    return future


def _buckets_of(group):
    group = _weft_group(group)
    return group.buckets if group.buckets is not None else Buckets(group)
