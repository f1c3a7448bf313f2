# SPDX-License-Identifier: Apache-2.0
"""weft.Fuser and weft.capture: gradient buckets without a graph (include/weft/fuser.h, capture.h)."""
from __future__ import annotations

from typing import Any

from weft import Stream, _core
from weft._lazy import library
from weft._types import _Op, _Path, _T, _Where, Self
from weft.errors import WeftError, WeftStateError


class Fuser:
    """Reduces gradients of a group in buckets, for callers that only see gradients appear.

        fuser = weft.Fuser()
        for step in steps:
            for name, gradient in backward():       # as each one is computed
                fuser.add(gradient, "avg", name)    # its bucket travels while the next one is computed
            fuser.wait()                            # all gradients are averages now

    Rank 0 decides the buckets in the first step: a bucket ends when the next tensor would make it larger than bytes
    (default: 32 MiB), window seconds after its first tensor (0.005; math.inf: never), at flush() and at wait(). Later
    steps replay these buckets without messages; they add the same names with the same sizes, types and reductions.
    Results have the bits of all_reduce_ of each tensor. stream: a Stream of the fuser's own, best with thread=True,
    which then reduces while this thread computes. Parameters are equal on all ranks, except stream.

    Collective. Raises WeftMismatchError on all ranks if parameters differ, WeftArgumentError. An error of a later step
    breaks the fuser on all ranks. A fuser that is dropped leaves without the other ranks.
    """

    __slots__ = ("_handle", "_group", "_kept", "_added", "_stream", "__weakref__")

    def __init__(self, group: _Where = None, bytes: int | None = None, window: float | None = None,
                 stream: Stream | None = None) -> None:
        group = self._group = _core._group_of(group)
        params = library.weft_fuser_params_t(
            bytes=0 if bytes is None else library.integer(bytes, "bytes", library.FOREVER, 1),
            window_ns=_nanoseconds(window, library.FOREVER))
        kept = self._kept = []  # arrays of the step; release has them, too, as it comes last
        self._added, self._stream = 0, stream

        out = library.ctypes.c_void_p()

        def begin(address, last):
            params.stream = last
            return library.weft_fuser_create(address, library.ctypes.byref(params), library.ctypes.byref(out))

        def release(address, kept=kept):
            library.weft_fuser_leave(address)
            kept.clear()

        library.on_stream(group, stream, begin)
        self._handle = library.own(group, out.value, release, "fuser")

    def _call(self, function):
        """function(address) under the locks of the fuser and of its stream."""
        if self._stream is None:
            return _core._with(self._handle, function)
        return library.on_stream(self._handle, self._stream, lambda address, stream: function(address))

    def add(self, tensor: _T, op: _Op = "sum", name: str | None = None) -> _T:
        """Adds a gradient of this rank; returns it. It must stay untouched until wait() returns.

        name: equal on all ranks, which may add in any order; None: the number of the tensor in this step, for ranks
        that add in one order. A wrong argument (also a name added twice) leaves the fuser usable. Raises
        WeftMismatchError if the first step did not have the name, or had it with another size, type or op.
        """
        address, count, dtype, keeper = _core._memory(tensor, "tensor", True, self._group)
        reduction = _core._reduction(op)
        name = str(self._added) if name is None else name
        name = library.text(name, "name")

        def enter(fuser):
            self._kept.append(keeper)
            library.weft_fuser_add(fuser, address, count, dtype, reduction, name)
            self._added += 1

        self._call(enter)
        return tensor

    def flush(self) -> None:
        """In the first step on rank 0: ends the open buckets. Otherwise only makes progress."""
        self._call(library.weft_fuser_flush)

    def query(self) -> bool:
        """Whether all tensors added so far are reduced; makes progress."""
        return self._call(library.weft_fuser_query) == library.OK

    def wait(self) -> None:
        """Ends the step: waits until all tensors are reduced. Collective; once per step.

        Raises WeftMismatchError on all ranks, naming a rank and a tensor that it did not add.
        """

        def end(fuser):
            library.weft_fuser_wait(fuser)
            self._kept.clear()
            self._added = 0

        self._call(end)

    def reset(self) -> None:
        """Drops the buckets between two steps, on all ranks: the next step chooses new ones for what it adds."""
        self._call(library.weft_fuser_reset)

    def stats(self) -> dict[str, Any]:
        """Counters, a new dict: step_count, tensor_count, bucket_count and largest_bucket_bytes (of a step),
        call_count, reduced_bytes, copied_bytes (so far)."""
        return library.facts(library.filled(self._handle, library.weft_fuser_get_stats, library.weft_fuser_stats_t))

    def destroy(self) -> None:
        """Ends the fuser. Collective, and at once on all ranks; twice is fine."""
        self._handle.end(library.weft_fuser_destroy)
        self._kept.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if exc[0] is None:
            self.destroy()


class Capture:
    """A captured sequence of calls that is replayed in buckets: what capture() returns, after its block."""

    __slots__ = ("_group", "_params", "_stream", "_handle", "_kept", "__weakref__")

    def __init__(self, group: _Where = None, bucket: str | None = None, costs: _Path | None = None,
                 stream: Stream | None = None, times: bool = True) -> None:
        self._params = library.weft_capture_params_t(
            bucket=None if bucket is None else library.text(bucket, "bucket"),
            costs_path=library.path(costs, "costs", True), no_times=not times)
        self._group, self._stream, self._handle, self._kept = _core._group_of(group), stream, None, None

    def __enter__(self) -> Self:
        if self._handle is not None or self._kept is not None:
            raise WeftStateError("the capture has begun before: weft.capture() makes another one")

        def begin(address, last):
            self._params.stream = last
            return library.weft_capture_begin(address, library.ctypes.byref(self._params))

        library.on_stream(self._group, self._stream, begin)
        self._kept = []
        _core._keep(self._group, self._kept)
        return self

    def __exit__(self, *exc: object) -> None:
        kind, value = exc[:2]
        kept = self._kept
        _core._keep(self._group, None)
        if kind is not None:
            self._kept = None
            self._drop(kind, value)
            return
        out = library.ctypes.c_void_p()
        _core._with(self._group, library.weft_capture_end, library.ctypes.byref(out))

        def release(address, kept=kept):
            library.weft_capture_leave(address)
            kept.clear()

        self._handle = library.own(self._group, out.value, release, "capture")

    def _drop(self, kind, value):
        """An exception ends the block: the other ranks, which wait at its end, get an error that names it."""
        def quietly(function, *args):
            try:
                _core._with(self._group, function, *args)
            except WeftError:
                pass  # the exception of the block goes on

        if issubclass(kind, Exception):
            why = f"the block of weft.capture ended by {kind.__name__}: {value}".encode("utf-8", "replace")
            quietly(library.weft_group_refuse, library.ERR_ABORTED, why, None)
            quietly(library.weft_capture_end, library.ctypes.byref(library.ctypes.c_void_p()))
        else:
            quietly(library.weft_capture_cancel)

    def _ended(self):
        if self._handle is None:
            raise WeftStateError("the capture has not ended: use it after its block")
        return self._handle

    def launch(self, stream: Stream | None = None) -> None:
        """Replays all calls, on this thread, or as one call ordered in stream. Collective."""
        library.on_stream(self._ended(), stream, library.weft_capture_launch)

    def ready(self, call: int, stream: Stream | None = None) -> None:
        """Marks the data of call (its number, from 0) as ready: now, or once earlier work of stream is done.

        A bucket starts when all its members are ready. Nothing else may use the call's arrays until wait(call). Raises
        WeftArgumentError if there is no such call, WeftStateError if it is ready already.
        """
        library.on_stream(self._ended(), stream, library.weft_capture_ready, library.integer(call, "call", 2**32 - 1))

    def wait(self, call: int | None = None, stream: Stream | None = None) -> None:
        """Waits for call, here or by later work of stream; None: for all calls, which ends the replay.

        Raises WeftStateError if the call cannot run yet, naming one that is not ready.
        """
        if call is not None:
            library.on_stream(self._ended(), stream, library.weft_capture_wait,
                              library.integer(call, "call", 2**32 - 1))
        elif stream is not None:
            raise TypeError("wait: stream requires call")
        else:
            _core._with(self._ended(), library.weft_capture_wait_all)

    @property
    def info(self) -> dict[str, Any]:
        """Facts, a new dict: call_count, bucket_count, run_count, largest_bucket_bytes, buffer_bytes, copied_bytes,
        replays, digest."""
        return library.facts(library.filled(self._ended(), library.weft_capture_get_info, library.weft_capture_info_t))

    def explain(self, json: bool = False) -> Any:
        """Buckets with members, bytes, ready times and the reason for each end: a text for people, or with json a
        dict."""
        return library.explain(self._ended(), library.weft_capture_explain, json)

    def destroy(self) -> None:
        """Ends the capture after its replays. Collective; twice is fine."""
        if self._handle is not None:
            self._handle.end(library.weft_capture_destroy)
            self._kept.clear()


def capture(group: _Where = None, bucket: str | None = None, costs: _Path | None = None, stream: Stream | None = None,
            times: bool = True) -> Capture:
    """Captures the collectives of a group in a `with` block instead of executing them; later steps replay them in
    buckets that the planner chose.

        with weft.capture() as step:
            backward()                  # weft.all_reduce_(gradient, "avg") of each one, in any order that ranks share
        step.launch()                   # each step: all calls at once; or
        step.ready(i), step.wait(i)     # as data appears: i counts the calls of the block

    The block moves no data: its results are meaningless until a replay, which reads and writes the same arrays; the
    Capture keeps them. All collectives may be captured, except send and recv, and streams of calls are ignored. Ranks
    make the same calls in the same order. The planner takes the times between the calls as the times at which data is
    ready, unless times is False; so capture a typical step. bucket, costs: as of compile(). stream: a Stream for the
    buckets that ready() starts.

    Collective at the end of the block, which raises WeftMismatchError on all ranks, naming the call and both sides, if
    ranks captured different calls. An exception in the block drops the capture, and the other ranks get an error that
    names it. Raises WeftStateError if a capture or a batch is open on the group.
    """
    return Capture(group, bucket, costs, stream, times)


def _nanoseconds(seconds, most):
    if seconds is None:
        return 0
    if not isinstance(seconds, (int, float)):
        raise TypeError(f"window must be a number of seconds, not {type(seconds)}")
    if not seconds >= 0:
        raise ValueError(f"window: invalid value {seconds!r}: must be a number of at least 0")
    return int(min(max(1, seconds * 1e9), most))
