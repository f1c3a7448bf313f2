# SPDX-License-Identifier: Apache-2.0
"""What asynchronous calls of a process group return."""
import datetime
import os
import sys
import threading
import time
import weakref

import torch
from torch._C import _distributed_c10d as c10d

# get_future may wait so long itself before it leaves that to a thread: most works end sooner, and a thread costs more.
SOON_S = 0.002
# While works of several groups are under way, waiting for one looks after the others this often.
SLICE_S = 0.0005
# Works that nobody has waited for are kept, in case torch's C++ code still will; of more than so many the oldest go,
# and every TIDY of them their tensors do.
KEPT = 4096
TIDY = 64

# Process groups that there are: works of one do not make those of another go on.
process_groups: "weakref.WeakSet[object]" = weakref.WeakSet()
# Their dictionaries of works, which calls look at that block at once.
kept = []


class Work(c10d.Work):
    """One call under way.

    torch's C++ code (DDP) holds the C++ half of this object only, and without the Python half its wait would never
    return. So the group keeps every work until it was waited for: once for each output that torch waits for by itself.
    """
    _error = None
    _source = -1
    _waits = 1

    def __init__(self, group, handle, outputs, finish=None):
        """handle: a weft.Work or what looks like one; outputs: tensors; finish(): runs once, when handle is done."""
        c10d.Work.__init__(self)
        self._group = group
        self._handle = handle
        self._outputs = outputs
        self._finish = finish
        group.issued += 1
        group.works[id(self)] = self
        if len(group.works) >= group.tidy_at:
            tidy(group)

    # ---- the end of a work ----
    def _conclude(self, error=None):
        """The handle is done: the results take their place, once."""
        with self._group.lock:
            if self._handle is None:
                return
            if error is None and self._finish is not None:
                try:
                    with torch.no_grad():
                        self._finish()
                except Exception as failure:  # a tensor that was resized meanwhile
                    error = failure
            self._error = error
            self._finish = None
            self._handle = None

    def _end(self, timeout_s):
        """Waits; raises TimeoutError when the work goes on after timeout_s, else what went wrong."""
        handle = self._handle
        if handle is not None:
            try:
                if timeout_s is None and len(process_groups) == 1:
                    handle.wait()
                else:
                    _wait_among(self._group, handle, timeout_s)
            except Exception as error:
                if not handle.is_completed():
                    raise
                self._conclude(_outcome(handle, error))
            else:
                if self._finish is None:  # the usual case: no lock needed
                    self._handle = None
                else:
                    self._conclude()
        if self._error is not None:
            raise self._error

    # ---- what torch calls ----
    def wait(self, timeout=None):
        """Returns True when the results are there; raises WeftError, or TimeoutError after timeout (a timedelta)."""
        seconds = timeout.total_seconds() if timeout else 0
        try:
            self._end(seconds if seconds > 0 else None)
        finally:
            if self._handle is None:
                self._waits -= 1
                if self._waits <= 0:
                    self._group.works.pop(id(self), None)
        return True

    def synchronize(self):
        self.wait()

    def is_completed(self):
        handle = self._handle
        if handle is not None and handle.is_completed():
            try:
                self._end(None)
            except Exception:
                pass  # is kept, and raised by wait
        return self._handle is None

    def is_success(self):
        return self.is_completed() and self._error is None

    def exception(self):
        return self._error if self.is_completed() else None

    def result(self):
        """The tensors that the call wrote."""
        self.wait()
        return self._outputs

    def source_rank(self):
        return self._source

    _source_rank = source_rank

    def get_future(self):
        """A torch.futures.Future of the list of tensors that the call wrote.

        DDP's C++ code asks from within a backward pass and reads the value without the GIL, so it must be no Python
        object, as those are that Python sets: it gets a future that is done, and waits here.
        """
        if called_by_backward(sys._getframe()):
            self.wait()
            return torch._C.fork(list, self._outputs)  # runs at once; the value is a list of tensors of torch's own
        future = torch.futures.Future()
        try:
            self._end(SOON_S)
        except Exception:
            pass
        if self._handle is None:
            settle(self, future)
        else:
            _finisher.add(self, future)
        return future


def tidy(group):
    """Finished works that no Python code holds let go of their tensors, and the oldest are forgotten."""
    own = group.works
    for key, work in list(own.items())[:-1]:  # but for the latest, which its caller has yet to get
        # By the dictionary, the list, the loop, and getrefcount itself; the C++ half holds no reference.
        if sys.getrefcount(work) <= 4 and work.is_completed():
            work._outputs = ()
            if len(own) > KEPT // 2:
                own.pop(key, None)
    group.tidy_at = len(own) + TIDY


class _Done(Work):
    """A call that has blocked. One object is all of them, so it knows no results."""

    def __init__(self):
        c10d.Work.__init__(self)
        self._handle = None
        self._outputs = []

    def wait(self, timeout=None):
        return True

    def get_future(self):
        future = torch.futures.Future()
        future.set_result([])
        return future


DONE = _Done()


def settle(work, future):
    """work is done: so is future."""
    work._group.works.pop(id(work), None)
    if work._error is not None:
        future.set_exception(work._error)
    else:
        future.set_result(work._outputs)


def called_by_backward(frame):
    """Whether frame's function was called by C++ code within a backward pass: by DDP's, then."""
    caller = frame.f_back
    while caller is not None and caller.f_globals.get("__name__") == "weft.torch.observed":
        caller = caller.f_back
    return caller is None or caller.f_globals.get("__name__", "").startswith("torch.autograd")


def _outcome(handle, error):
    """What became of handle, which is done, where a wait for it raised error; None: all is well. The wait's own time may
    have been over just before the call was done: then it is asked again."""
    if not isinstance(error, TimeoutError):
        return error
    try:
        handle.wait()
    except Exception as failure:
        return failure
    return None


class Several:
    """Handles of several calls that are one work."""

    def __init__(self, handles):
        self.handles = handles

    def wait(self, timeout=None):
        end = None if timeout is None else time.monotonic() + timeout
        failure = None
        for handle in self.handles:
            try:
                handle.wait() if end is None else handle.wait(max(0.0, end - time.monotonic()))
            except Exception as error:
                if not handle.is_completed():
                    raise
                failure = failure or _outcome(handle, error)
        if failure is not None:
            raise failure

    def is_completed(self):
        return all(handle.is_completed() for handle in self.handles)


class Done:
    """Nothing was to do."""

    def wait(self, timeout=None):
        pass

    def is_completed(self):
        return True


def _wait_among(group, handle, timeout_s):
    """Waits for handle; calls of other groups, which peers may need before they come to ours, go on meanwhile."""
    end = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        others = [other for other in process_groups if other is not group and other.works]
        left = None if end is None else end - time.monotonic()
        if not others:
            handle.wait() if left is None else handle.wait(max(0.0, left))
            return
        try:
            handle.wait(SLICE_S if left is None else max(0.0, min(SLICE_S, left)))
            return
        except TimeoutError:
            if handle.is_completed() or (left is not None and left <= SLICE_S):
                raise
        for other in others:
            other.progress()


class _Finisher:
    """A thread that ends works whose future somebody has asked for; started when first needed."""

    def __init__(self):
        self.changed = threading.Condition()
        self.entries = []
        self.process = None

    def add(self, work, future):
        with self.changed:
            if self.process != os.getpid():  # also after fork, which threads do not survive
                self.process = os.getpid()
                self.entries = []
                threading.Thread(target=self.run, name="weft-futures", daemon=True).start()
            self.entries.append((work, future))
            self.changed.notify()

    def run(self):
        while True:
            with self.changed:
                while not self.entries:
                    self.changed.wait()
                entries = list(self.entries)
            done = [entry for entry in entries if entry[0].is_completed()]
            if not done:
                try:
                    entries[0][0].wait(datetime.timedelta(seconds=SOON_S))
                except Exception:
                    pass  # not yet, or kept by the work
                continue
            with self.changed:
                self.entries = [entry for entry in self.entries if all(entry is not other for other in done)]
            for work, future in done:
                settle(work, future)


_finisher = _Finisher()
