# SPDX-License-Identifier: Apache-2.0
"""A process group's life, and messages. Every group is a world (a weft.Context) of its own."""
import datetime
import sys
import threading
import time

import torch.distributed as dist
import weft
from weft.torch import layout, meeting, observed, works
from weft.torch.adoption import Adoption
from weft.torch.receives import Receives
from weft.torch.works import Done, Work

# Sends and receives have groups of their own, as many as make every pair and direction of a rank independent, up to so
# many.
_PAIR_GROUPS = 14


def _seconds(timeout):
    """Of a timedelta, or seconds; None where torch means the group's own."""
    if isinstance(timeout, (int, float)):
        return timeout
    return timeout.total_seconds() if timeout is not None and timeout >= datetime.timedelta(0) else None


def single(tensors):
    """torch's lists are for several devices of one process."""
    if len(tensors) != 1:
        raise ValueError(f"weft: expected one tensor per call and process, got {len(tensors)}")
    return tensors[0]


def pair_group_of(low, high, size):
    """Number of the group for what goes from low to high; one more is that of the way back.

    Calls of one Weft group follow each other, so a receive that waits would hold up the sends behind it. A round-robin
    tournament gives each pair a day on which both have no other match: one group per day and direction.
    """
    days = size - 1 if size % 2 == 0 else size
    day = 2 * low % days if size % 2 == 0 and high == size - 1 else (low + high) % days
    return 2 * (day % (_PAIR_GROUPS // 2))


class Group(dist.ProcessGroup):
    """What all process groups have, but for the collectives."""

    backend_class = None

    def __init__(self, store, rank, size, timeout):
        if self.backend_class is None:
            super().__init__(rank, size)
        else:
            super().__init__(store, rank, size)
        self.weft_context = meeting.join(store, rank, size, timeout)
        self.weft_group = self.weft_context.world
        everybody = list(range(size))
        days = size - 1 if size % 2 == 0 else size
        self._pairs = [weft.new_group(everybody, self.weft_group)
                       for _ in range(min(2 * days, _PAIR_GROUPS) if size > 1 else 0)]
        self._rank, self._size, self._store, self._timeout = rank, size, store, timeout
        self.works = {}
        self.calls, self.tidy_at = [0], works.TIDY  # the number of calls: C counts, also
        self.lock = threading.RLock()
        self.buckets = None
        self.adoption = Adoption(self.weft_context)
        self._receives = Receives(timeout)
        self._barriers = 0
        self.global_ranks = None  # of the members of a world that has shrunk
        # Whether torch compares all calls of the ranks.
        self.is_checked = (self.backend_class is not None and size > 1 and dist.is_gloo_available()
                           and dist.get_debug_level() == dist.DebugLevel.DETAIL)
        self.as_torch_has_it = observed.register(self, store, timeout)
        works.process_groups.add(self)
        works.kept.append(self.works)
        observed.block_where_callers_wait(self)

    @property
    def issued(self):
        return self.calls[0]

    @issued.setter
    def issued(self, count):
        self.calls[0] = count

    def _refused(self, error):
        """error, which ends the other ranks' call also: this rank cannot make it."""
        self.weft_group.refuse(str(error))
        return error

    # ---- life ----
    def getBackendName(self):
        return "weft"

    def name(self):
        return "weft"

    def getRank(self):
        return self._rank

    def getSize(self):
        return self._size

    # What torch 2 asks of the C++ class, which answers only for groups that it has put together itself.
    _name = _description = ""

    def _set_group_name(self, name):
        self._name = name

    @property
    def group_name(self):
        return self._name

    def getGroupName(self):
        return self._name

    def _set_group_desc(self, description):
        self._description = description

    @property
    def group_desc(self):
        return self._description

    def getGroupDesc(self):
        return self._description

    def _get_backend(self, device):
        return self if self.backend_class is None else super()._get_backend(device)

    supports_coalescing = False
    bound_device_id = None

    def split_group(self, ranks, timeout=None, opts=None, group_name=None, group_desc=None, device_types=None):
        """A group of ranks, all of which call this; None on others."""
        if self._rank not in ranks:
            return None
        group = type(self)(dist.PrefixStore(f"{group_name}/", self._store), ranks.index(self._rank), len(ranks),
                           timeout or self._timeout)
        group._set_group_name(group_name)
        group._set_group_desc(group_desc or "")
        return group

    def shutdown(self, *_):
        """Leaves the group's world: works that are under way end with an error. Not collective."""
        works.process_groups.discard(self)
        self.works.clear()
        works.kept[:] = [kept for kept in works.kept if kept is not self.works]
        self.adoption.close()
        self._pairs = []
        if not self.weft_context.closed:
            self.weft_context.close()

    abort = shutdown

    def __del__(self):
        if "_barriers" in self.__dict__ and not sys.is_finalizing():  # then the world ends anyway
            self.shutdown()

    def progress(self):
        """Calls of this group go on: looking at one makes all of a context do so."""
        for work in list(self.works.values()):
            if not work.is_completed():
                break

    def _set_sequence_number_for_group(self):
        self.issued = 0

    def _get_sequence_number_for_group(self):
        """Calls so far, the same on all ranks that have made the same calls."""
        return self.issued

    # ---- from one to another ----
    def _pair_group(self, sender, receiver):
        if sender == receiver or not (0 <= sender < self._size and 0 <= receiver < self._size):
            raise ValueError(f"weft: invalid send from rank {sender} to rank {receiver} in a group of {self._size} ranks")
        low, high = min(sender, receiver), max(sender, receiver)
        return self._pairs[pair_group_of(low, high, self._size) + (sender > receiver)]

    @observed.observed
    def send(self, tensors, peer, tag=0):
        data = layout.dense(single(tensors))
        group = self._pair_group(self._rank, peer)
        return Work(self, weft.send(data, peer, group, tag=tag, async_op=True), tensors)

    @observed.observed
    def recv(self, tensors, peer, tag=0):
        """Messages between two ranks match by tag, and in order where tags are the same."""
        group = self._pair_group(peer, self._rank)
        data, finish = layout.place(single(tensors))
        work = Work(self, self._receives.receive(data, ((peer, group),), tag), tensors, finish)
        work._source = peer
        return work

    @observed.observed
    def recv_anysource(self, tensors, tag=0):
        data, finish = layout.place(single(tensors))
        groups = [(peer, self._pair_group(peer, self._rank)) for peer in range(self._size) if peer != self._rank]
        handle = self._receives.receive(data, groups, tag)
        work = Work(self, handle, tensors, finish)
        work.source_rank = work._source_rank = lambda: handle.peer
        return work

    # ---- several calls together ----
    def _start_coalescing(self, *_):
        """Calls go out as they come: each is queued, so that no order between them is needed."""

    def _end_coalescing(self, *_):
        self.issued -= 1  # no call
        return Work(self, Done(), [])

    # ---- where is everybody? ----
    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        """A barrier by way of the store. Rank 0 waits for everybody, and who is missing after timeout (all of them, or
        the first) is named on every rank that has come. The words are those that scripts find with Gloo."""
        seconds = _seconds(timeout)
        seconds = self._timeout.total_seconds() if seconds is None else seconds
        self._barriers += 1
        key = f"weft/barrier/{self._barriers}"
        if self._rank != 0:
            self._store.add(f"{key}/{self._rank}", 1)
            came = self._comes(f"{key}/end", time.monotonic() + 2 * seconds)  # rank 0 may have come later by as much
            said = self._store.get(f"{key}/said").decode() if came else "rank 0 is late"
            if said != "ok":
                raise RuntimeError(f"weft: Rank {self._rank} successfully reached monitoredBarrier, but received errors"
                                   f" while waiting for send/recv from rank 0: {said}")
            return
        end, missing = time.monotonic() + seconds, []
        for rank in range(1, self._size):
            if not self._comes(f"{key}/{rank}", end):
                missing.append(rank)
                if not wait_all_ranks:
                    break
        who = ("Rank " if len(missing) == 1 else "Ranks ") + ", ".join(map(str, missing))
        said = f"{who} failed to pass monitoredBarrier: Rank 0 timed out in monitoredBarrier after {seconds} s"
        self._store.set(f"{key}/said", said if missing else "ok")
        self._store.add(f"{key}/end", 1)
        if missing:
            raise RuntimeError(f"weft: {said}")

    def _comes(self, key, end):
        """Whether key is counted up before end. Asks again and again: a wait of torch 1.13's TCPStore that ends by its
        timeout leaves the answer in the connection, for the next question."""
        while self._store.add(key, 0) == 0:
            if time.monotonic() > end:
                return False
            time.sleep(0.005)
        return True

    def _count(self, tensors, what):
        if len(tensors) != self._size:
            raise self._refused(ValueError(f"{len(tensors)} {what} for {self._size} ranks"))
