# SPDX-License-Identifier: Apache-2.0
"""The worlds that this process is a rank of (include/weft/context.h): init, finalize, Context, the program's end."""
import atexit
import os
import sys
import threading

from weft import _core
from weft._lazy import library, part_of
from weft._values import integer, text
from weft.errors import WeftStateError


def init(rank=None, size=None, address=None, *, progress=None, device=None):
    """Joins the world as one of its ranks and returns the Context, which is the default one
    from now on.

    Collective: returns when all ranks have called it. Rank, size and where they meet come
    from the launcher (weft run, mpirun, mpiexec, srun, torchrun) or WEFT_RANK,
    WEFT_WORLD_SIZE, WEFT_ADDRESS; arguments go first; with neither it is a world of one.
    address: 'unix:@name' on one host; 'host:port', where rank 0 listens, or
    'file:///shared/path' on several. progress: 'auto', 'inline' (calls make progress) or
    'thread' (a thread does). device: 'cpu', or a device of a plugin, such as 'opencl:0';
    None is the setting WEFT_DEVICE.
    Raises WeftStateError when called twice, ValueError, WeftTimeoutError naming who is
    missing, WeftMismatchError."""
    if is_initialized():
        raise WeftStateError("weft.init() was called before: weft.finalize() first, or make a weft.Context()")
    context = Context(rank, size, address, progress=progress, device=device)
    if _core._default(context) is not None:
        raise WeftStateError("another thread called weft.init() meanwhile")
    return context


def finalize():
    """Leaves the world of weft.init; done at the end of the program anyway. Not collective.
    Groups, streams and sessions of it raise WeftStateError afterwards; init may be called
    again, by all ranks. In a signal handler that runs inside a call of it, the world is
    left when the call has ended and its objects are dropped, or the program ends."""
    context = _core._default(None)
    if context is not None:
        context.close()


def is_initialized():
    """Whether there is a world: after init, before finalize."""
    return _core._default() is not None


@part_of(_core.Context)
class Context:
    """A world beside the one of weft.init: this process is one rank of it. Collective:
    returns when all size ranks have made theirs. address is 'unix:@name' or 'unix:/path'
    on one host, 'host:port' or 'file:///shared/path' on several; what is None is asked of
    the launcher's environment. progress: 'auto', 'inline' or 'thread'. device: 'cpu',
    'opencl:0' and others, as WEFT_DEVICE. Use context.world as group=; leave with close(),
    or `with Context(..) as c`.
    Raises ValueError, WeftTimeoutError (naming who is missing), WeftMismatchError,
    WeftSystemError."""

    def __new__(cls, rank=None, size=None, address=None, *, progress=None, device=None):
        return _joined((), False, rank, size, address, progress, device)

    def shrink(self):
        """After a rank has died: a Context of the ranks that are left, which all of them call.
        Ranks are numbered anew, in their order (members tells which is which). This one keeps
        its error, with its groups and streams: close it. Raises WeftTimeoutError naming ranks
        that live but do not come."""
        return _joined(self, False)

    def grow(self, size, address, /):
        """A Context of size ranks: all of this one, which call it together and keep their
        numbers, and processes that join by Context(rank, size, address) with the same
        WEFT_SECRET. This one goes on working, also when it fails."""
        return _joined(self, True, None, size, address)

    @property
    def launcher(self):
        """What started the ranks: 'arguments', 'environment', 'torchrun', 'pmix', 'pmi-1', 'plain', 'group',
        'alone'."""
        return _core._with(self, library.weft_context_launcher).decode()

    @property
    def members(self):
        """Of each rank the number that its process keeps when the world shrinks or grows; ranks of the first world have
        their own."""
        return _core._with(self, lambda context: [library.weft_context_member(context, rank)
                                                  for rank in range(self.size)])

    @property
    def hosts(self):
        """Number of hosts that the world's ranks are on."""
        return _core._with(self, library.weft_context_host_count)

    def barrier(self):
        """Waits for all ranks of the world: for start and end; weft.barrier is quicker."""
        _core._with(self, library.weft_context_barrier)

    def topology(self, json=False, *, width=0):
        """Describes hosts, cores, caches, cards and links of the world as text, in lines of
        width (0: 100), or as JSON. Collective; all ranks get the same."""
        return library.report(self, library.weft_context_topology, int(bool(json)),
                              integer(width, "width", 2**32 - 1))

    def dump(self, path=..., /):
        """Writes the last calls of this rank as JSON, for weft analyze: to a file, to a folder
        (weft-rank3-HOST-PID.json), or without path to the folder that WEFT_DUMP names."""
        _core._with(self, library.weft_context_dump, None if path is ... else library.path(path, "path"))

    def peer(self, rank, /):
        """How this rank and another one reach each other: a dict of host, host_name, transport
        ('self', 'shm', 'tcp', 'verbs'), reason, bytes_sent, bytes_received, busy_s (counted
        where messages are moved)."""
        rank = integer(rank, "rank", self.size - 1)

        def of(function, structure, names):
            return library.facts(
                library.filled(self, lambda context, out: function(context, rank, out), structure), names)

        return {**of(library.weft_context_peer_info, library.weft_peer_info_t, "host host_name transport reason"),
                **of(library.weft_context_link_stats, library.weft_link_stats_t, "bytes_sent bytes_received busy_s")}

    def __enter__(self):
        _core._with(self, bool)  # an error where it was closed
        return self

    def __exit__(self, *exc):
        self.close()

    def __repr__(self):
        return f"<weft.Context rank {self.rank} of {self.size}, " + (
            "closed>" if self.closed else f"launcher {self.launcher}>")


_PROGRESS = "default", "auto", "inline", "thread"  # by weft_progress_t


def _joined(former, larger, rank=None, size=None, address=None, progress=None, device=None):
    """The Context of a new world, which replaces that of former, a Context or (); None is left to the launcher."""
    rank, size = (-1 if value is None else integer(value, name, 2**31 - 1)
                  for value, name in ((rank, "rank"), (size, "size")))
    if progress is not None and not (isinstance(progress, str) and progress in _PROGRESS):
        raise ValueError(f"unknown progress {progress!r}: expected 'auto', 'inline' or 'thread'")
    if size == 0 or 0 < size <= rank:
        raise ValueError(f"invalid rank {rank} for world size {size}")
    return _core._join(former, larger, rank, size,
                       None if address is None else text(address, "address", "a string", os.fsencode),
                       0 if progress is None else _PROGRESS.index(progress),
                       None if device is None else text(device, "device", "a string"))


# ---- the end of the program ----
def _end(exiting):
    """An exception that ends this rank's program ends the world: others would wait for it in vain."""
    value = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)  # at a prompt an exception ends nothing
    for context in _core._contexts(exiting):
        try:
            if value is not None and not context.closed:
                context.abort(_ended_by(context.rank, value))
            if exiting:
                context.close()
        except BaseException:  # of a signal's handler, at the end of the program
            pass


def _ended_by(rank, value):
    try:
        return f"rank {rank} ended by {value!r}"
    except Exception:
        return "a rank ended by an exception"


try:  # first, as the interpreter waits for threads, and those may wait for other ranks
    threading._register_atexit(_end, False)
except (AttributeError, RuntimeError):
    pass  # Python does not promise it: threads then have until their time-out
atexit.register(_end, True)
_core._main_thread(threading.main_thread().ident)  # where signals' handlers run
os.register_at_fork(after_in_child=lambda: _core._main_thread(threading.get_ident()))
