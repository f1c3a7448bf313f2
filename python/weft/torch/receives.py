# SPDX-License-Identifier: Apache-2.0
"""Receives that are under way: by tag, and from any rank.

Receives of one Weft group end in the order in which they were issued. So one whose tag differs from those before it is
issued when these are done, or when its message has come before theirs. One from any rank is issued when a message has
come.
"""
import math
import os
import threading
import time

import weft

# While nothing comes, looked for so often.
_PAUSE_S = 0.0001


class Receives:
    """Those of one process group. timeout (a timedelta) bounds a wait for a message, unless WEFT_TIMEOUT does."""

    def __init__(self, timeout):
        self.timeout_s = float(os.environ.get("WEFT_TIMEOUT", timeout.total_seconds())) or math.inf  # 0: no limit
        self.lock = threading.RLock()
        self.under_way = []  # as they were asked for

    def receive(self, data, groups, tag):
        """A receive into data of what comes with tag from a rank of groups: pairs of a rank and its weft.Group."""
        made = Receive(self, data, groups, tag)
        with self.lock:
            self.under_way.append(made)
            self.look(made)
        if made.error is not None:
            raise made.error
        return made

    def look(self, last):
        """Receives up to last go on, in their order, each once: there may be many. Under the lock."""
        before = {}  # by peer: tags of receives that are not done, None where one of them is not issued
        for receive in list(self.under_way):
            receive.look(before)
            if receive is last:
                return
            if not receive.done:
                for peer, _ in receive.groups:
                    before.setdefault(peer, set()).update((receive.tag,) if receive.work else (receive.tag, None))


class Receive:
    """Looks like a weft.Work."""
    __slots__ = ("receives", "data", "groups", "tag", "work", "error", "done", "peer")

    def __init__(self, receives, data, groups, tag):
        self.receives, self.data, self.groups, self.tag = receives, data, groups, tag
        self.work = self.error = None
        self.done = False
        self.peer = -1  # known when it is issued

    def look(self, before):
        """Goes on, if it can. before: as in Receives.look. Under the lock."""
        if self.work is None and not self.done:
            self._advance(before)
        work = self.work
        if work is not None and work.is_completed():
            try:
                work.wait()
            except Exception as error:
                self._end(error)
            else:
                self._end()

    def _advance(self, before):
        """Issues it, if that can be."""
        gone = 0
        for peer, group in self.groups:
            tags = before.get(peer, ())
            try:
                if len(self.groups) == 1 and all(tag == self.tag for tag in tags):
                    self.work, self.peer = weft.recv(self.data, peer, group, tag=self.tag, async_op=True), peer
                    return
                if self.tag not in tags and weft.probe(peer, group, tag=self.tag) is not None:
                    weft.recv(self.data, peer, group, tag=self.tag)
                    self.peer = peer
                    return self._end()
            except weft.WeftPeerDiedError as error:  # or it has left, as the others may not have
                gone += 1
                if gone == len(self.groups):
                    return self._end(error)
            except Exception as error:
                return self._end(error)

    def _end(self, error=None):
        with self.receives.lock:
            if self.done:
                return
            self.receives.under_way.remove(self)
            self.error, self.done = error, True
            self.data = self.work = None

    def is_completed(self):
        if not self.done:
            with self.receives.lock:
                if self.work is None and not self.done:
                    self.receives.look(self)
                else:
                    self.look({})
        return self.done

    def wait(self, timeout=None):
        end = None if timeout is None else time.monotonic() + timeout
        last = time.monotonic() + self.receives.timeout_s if end is None else end
        while self.work is None and not self.is_completed():
            if time.monotonic() > last:
                who = f"rank {self.groups[0][0]}" if len(self.groups) == 1 else "any rank"
                raise TimeoutError(f"weft: timeout in recv: no message with tag {self.tag} has come from {who}")
            time.sleep(_PAUSE_S)
        work = self.work
        if work is not None:
            try:
                work.wait() if end is None else work.wait(max(0.0, end - time.monotonic()))
            except Exception:
                self.is_completed()
                raise
            self._end()
        elif self.error is not None:
            raise self.error
