# SPDX-License-Identifier: Apache-2.0
"""What torch's C++ code sees of a process group: a backend, whose calls torch's profiler records and its checks of
collectives (TORCH_DISTRIBUTED_DEBUG=DETAIL) look at.

    dist.all_reduce --> ProcessGroupWeft.allreduce ------------------------------> Weft     nobody looks
                             |                                                      ^
                             '--> torch's ProcessGroup --> [checks] --> Backend ----'       somebody does

torch's way costs 6 us a call. Versions of torch in which a Backend cannot be written in Python (all before 2.10 or so)
record calls without that way, and check nothing.
"""
import functools
import threading
import weakref

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from weft.torch.works import DONE, kept

# Those that several versions of torch give other names to have the latest one.
_TITLES = {
    "allreduce": "all_reduce", "allreduce_coalesced": "all_reduce", "broadcast": "broadcast", "reduce": "reduce",
    "allgather": "all_gather", "allgather_coalesced": "all_gather", "_allgather_base": "_all_gather_base",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor_coalesced", "gather": "gather",
    "gather_single": "gather", "scatter": "scatter", "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor_coalesced", "alltoall": "all_to_all",
    "alltoall_base": "all_to_all", "barrier": "barrier", "send": "send", "recv": "recv", "recv_anysource": "recvAnySource"}
# Weft's words for torch's reductions, by hash: torch's ReduceOp is its number, and comparing costs several times as much.
WORDS = {hash(getattr(dist.ReduceOp, name)): word for name, word in (
    ("SUM", "sum"), ("AVG", "avg"), ("PRODUCT", "prod"), ("MIN", "min"), ("MAX", "max"))}
_local = threading.local()
_profiled = torch.autograd._profiler_enabled
_enter, _exit = torch.autograd._record_function_with_args_enter, torch.autograd._record_function_with_args_exit


def _has_backends():
    """Whether a c10d.Backend can be written in Python."""
    try:
        c10d.Backend(0, 1)
    except (AttributeError, TypeError):
        return False
    return True


HAS_BACKENDS = _has_backends()


def observed(function):
    """A method of a process group that returns a Work: by way of torch when somebody looks."""
    def method(self, *args, **kwargs):
        if self.is_checked or _profiled():
            return _by_torch(self, function, args, kwargs)
        return function(self, *args, **kwargs)
    functools.update_wrapper(method, function)
    return method


def observed_or_now(now):
    """The same of a method that blocks where its caller waits at once anyway, as the options among its arguments say:
    now of _core makes the call, if it can."""
    def decorate(function):
        method = observed(function)
        method.now = now
        return method
    return decorate


def block_where_callers_wait(group):
    """Puts functions in front of those methods of group, unless torch compares calls or is older than 2.7."""
    if group.is_checked or not hasattr(c10d.AllreduceOptions, "asyncOp"):
        return
    own = group.calls, group.weft_group, WORDS, kept, group.works, _profiled, DONE, weakref.ref(group)
    for name in dir(type(group)):
        method = getattr(type(group), name)
        if hasattr(method, "now"):
            setattr(group, name, functools.partial(method.now, (*own, method)))


def _by_torch(group, function, args, kwargs):
    if group.as_torch_has_it is None:
        return _recorded(group, function, args, kwargs)
    _local.work = None
    made = getattr(group.as_torch_has_it, function.__name__)(*args, **kwargs)
    work, _local.work = _local.work, None
    return made if work is None else work  # torch's does not know whether it is completed


def _recorded(group, function, args, kwargs):
    """Calls function; the profiler sees it from here until its work ends."""
    if not _profiled():
        return function(group, *args, **kwargs)
    record = _enter(f"weft:{_TITLES[function.__name__]}", *_inputs(function.__name__, args))
    try:
        work = function(group, *args, **kwargs)
    except BaseException:
        _exit(record)
        raise
    with group.lock:
        if work._handle is not None:
            work._finish = functools.partial(_end, record, work._finish)
            return work
    _end(record, None)
    return work


def _inputs(name, args):
    """Tensors that a call reads: those of its second argument if the first one has its outputs."""
    from_one = "gather" in name or "scatter" in name or name.startswith("alltoall")
    inputs = args[1 if from_one else 0:][:1]
    while inputs and isinstance(inputs[0], (list, tuple)):
        inputs = inputs[0]
    return [value for value in inputs if isinstance(value, torch.Tensor)]


def _end(record, finish):
    if finish is not None:
        finish()
    if HAS_BACKENDS:  # the profiler takes for asynchronous what ends in another thread; before, it loses that
        thread = threading.Thread(target=_exit, args=(record,))
        thread.start()
        thread.join()
    else:
        _exit(record)


def backend_class(group_class):
    """A c10d.Backend with the methods of group_class; None where torch has no backends written in Python."""
    if not HAS_BACKENDS:
        return None

    class Backend(c10d.Backend):
        # All of them: torch takes a property that is not there for one written in Python, and asks it for ever.
        supports_splitting = True
        supports_coalescing = supports_shrinking = supports_reconfigure = supports_window = False
        _supports_time_estimate = False

        def __init__(self, group, timeout):
            super().__init__(group.getRank(), group.getSize())
            self.group = weakref.ref(group)
            self.timeout = timeout

        @property
        def options(self):
            return c10d.Backend.Options("weft", self.timeout)

        def getBackendName(self):
            return "weft"

        def monitored_barrier(self, opts, wait_all_ranks=False):
            self.group().monitored_barrier(opts.timeout, wait_all_ranks)

        def _set_sequence_number_for_group(self):
            self.group()._set_sequence_number_for_group()

        def _get_sequence_number_for_group(self):
            return self.group()._get_sequence_number_for_group()

    def calling(function):
        def method(self, *args):
            _local.work = _recorded(self.group(), function, args, {})
            return _local.work
        return method
    for name in dir(group_class):
        function = getattr(getattr(group_class, name), "__wrapped__", None)
        if function is not None:
            setattr(Backend, name, calling(function))
    return Backend


def register(group, store, timeout):
    """Gives group its backend. Returns torch's own process group over it, or None."""
    if group.backend_class is None:
        return None
    backend = group.backend = group.backend_class(group, timeout)
    if group.is_checked:
        backend = dist.distributed_c10d._create_process_group_wrapper(
            backend, "weft", store, group.getRank(), group.getSize(), timeout)
    kind = dist.ProcessGroup.BackendType.CUSTOM
    as_torch_has_it = dist.ProcessGroup(store, group.getRank(), group.getSize())
    for each in group, as_torch_has_it:
        each._set_default_backend(kind)
        each._register_backend(torch.device("cpu"), kind, backend)
    return as_torch_has_it
