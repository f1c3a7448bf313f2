#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks that die, leave, fork, come late or never: the others are told, soon, and nothing hangs or crashes."""
import gc
import os
import signal
import threading
import time
import unittest

import ranks

np = ranks.need("numpy")
import weft

GONE = (weft.WeftPeerDiedError, weft.WeftAbortedError)


def ones(count=4):
    return np.ones(count, "float32")


class Deaths(ranks.RankCase):
    """Rank 1 is killed while the others wait for it."""
    RANKS = (2, 3)

    def survive(self, call, before=lambda: None):
        """The others are in call, or about to be, when rank 1 dies; they learn which rank it was."""
        before()
        self.meet()
        if self.rank == 1:
            self.die()
        with self.raises_within(GONE, "rank 1"):
            call()
        for again in (weft.barrier, lambda: weft.all_reduce(ones()), lambda: weft.new_group([0])):
            with self.raises_within(GONE, "rank 1"):
                again()

    @ranks.fresh(dies=[1])
    def test_before_a_call(self):
        self.survive(lambda: weft.all_reduce(ones()))

    @ranks.fresh(dies=[1])
    def test_shapes_are_being_exchanged(self):
        self.survive(lambda: weft.all_gather(ones()))

    @ranks.fresh(dies=[1])
    def test_recv(self):
        self.survive(lambda: weft.recv(ones(), 1) if self.rank == 0 else weft.barrier())

    @ranks.fresh(dies=[1])
    def test_making_groups(self):
        self.survive(lambda: weft.new_group(range(self.size)))

    @ranks.fresh(dies=[1])
    def test_taking_memory(self):
        self.survive(lambda: weft.empty(5000))

    @ranks.fresh(dies=[1])
    def test_works(self):
        works = []
        self.survive(lambda: [work.wait() for work in works],
                     lambda: self.rank != 1 and works.extend(weft.all_reduce(ones(), async_op=True) for _ in range(5)))
        for work in works:
            with self.raises_within(GONE, "rank 1"):
                work.wait()
            self.assertTrue(work.is_completed())

    @ranks.fresh(dies=[1])
    def test_in_the_middle_of_large_calls(self):
        """Killed by a signal that comes at any time."""
        if self.rank == 1:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process
            signal.setitimer(signal.ITIMER_REAL, 0.05)
        x = np.zeros(1 << 20, "float32")
        with self.raises_within(GONE, "rank 1", seconds=2):
            while True:
                weft.all_reduce_(x)

    @ranks.fresh(dies=[1])
    def test_in_memory_that_peers_reach(self):
        x = weft.zeros(1 << 20)
        if self.rank == 1:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
        with self.raises_within(GONE, "rank 1", seconds=2):
            while True:
                weft.all_reduce_(x)
        x[:] = 1  # still there
        self.assertEqual(x.sum(), 1 << 20)
        del x
        gc.collect()

    @ranks.fresh(dies=[1])
    def test_other_threads(self):
        """All threads that wait are told."""
        groups = [weft.new_group(range(self.size)) for _ in range(3)]
        self.meet()
        if self.rank == 1:
            self.die()
        told = []

        def wait(group):
            try:
                weft.barrier(group)
            except GONE:
                told.append(group)
        with self.within(1):
            threads = [threading.Thread(target=wait, args=(group,)) for group in groups]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(len(told), 3)


@unittest.skipIf(ranks.SANITIZED, "enough of this is run above")
class DeathsUnderThreads(Deaths):
    """The same where calls of streams progress on threads of their own."""
    RANKS = 2
    ENV = {"WEFT_PROGRESS": "thread"}


class Leaving(ranks.RankCase):
    """Ranks that leave in an orderly way, too early."""
    RANKS = (2, 3)

    def leave(self, call):
        """Rank 1 leaves when the others are in call, or about to be; they learn which rank it was."""
        self.meet()
        if self.rank == 1:
            weft.finalize()
        else:
            with self.raises_within(GONE, "rank 1|all others have left"):
                call()
        self.meet()

    @ranks.fresh
    def test_finalize_while_others_wait(self):
        self.leave(lambda: weft.all_reduce(ones()))

    @ranks.fresh
    def test_finalize_while_others_wait_for_large_calls(self):
        self.leave(lambda: weft.broadcast(ones(1 << 20), 1))

    @ranks.fresh
    def test_finalize_while_works_wait(self):
        self.leave(lambda: weft.all_reduce(ones(), async_op=True).wait())

    @ranks.fresh
    def test_finalize_while_groups_are_made(self):
        self.leave(lambda: weft.new_group([0]))

    @ranks.fresh
    def test_finalize_while_one_receives(self):
        self.leave(lambda: weft.recv(ones(), 1) if self.rank == 0 else weft.barrier())

    @ranks.fresh
    def test_others_go_on_without_a_rank_they_do_not_need(self):
        rest = weft.new_group([rank for rank in range(self.size) if rank != 1])
        self.meet()
        if self.rank == 1:
            weft.finalize()
        else:
            for _ in range(3):
                self.assertEqual(weft.all_reduce(ones(1), group=rest)[0], self.size - 1)
                self.assertTrue((weft.all_reduce(ones(1 << 18), group=rest) == self.size - 1).all())
        self.meet()

    @ranks.fresh
    def test_finalize_waits_for_nobody(self):
        if self.rank == 0:
            with self.within(1):
                weft.finalize()
        self.meet()

    @ranks.fresh
    def test_after_finalize(self):
        """What was made before is refused, not touched."""
        x, y = ones(), weft.zeros(10)
        group, stream = weft.new_group(range(self.size)), weft.Stream()
        event = stream.record_event()
        done = weft.all_reduce(x, async_op=True)
        done.wait()
        pending = [weft.all_reduce(ones(), group=group, async_op=True) for _ in range(3)]
        y[:] = 5
        self.meet()
        weft.finalize()
        weft.finalize()
        self.assertFalse(weft.is_initialized())
        for call in (weft.barrier, lambda: weft.all_reduce(x), lambda: weft.all_reduce_(x, group=group),
                     lambda: weft.all_gather(x, group), lambda: weft.all_reduce(x, stream=stream), weft.get_rank,
                     lambda: weft.new_group([0]), lambda: weft.new_group([0], group), lambda: weft.empty(3),
                     lambda: weft.register(x), stream.record_event, lambda: stream.wait_event(event),
                     lambda: weft.send(x, self.rank - 1 if self.rank else 1, group)):
            with self.raises_within(weft.WeftStateError, "finalize|init|left|closed"):
                call()
        self.assertTrue(done.is_completed())
        for work in pending:  # done or given up
            with self.within(1):
                try:
                    work.wait()
                except weft.WeftError:
                    pass
        self.assertTrue((y == 5).all())
        y[:] = 6

    def test_leaving_right_after_the_last_call(self):
        """Is no error for those that are still in it."""
        x = np.full(1 << 17, self.rank, "float32")
        calls = (lambda g, some: weft.all_reduce(some, group=g), lambda g, some: weft.broadcast(some, 0, g),
                 lambda g, some: weft.broadcast(some, g.size - 1, g), lambda g, some: weft.gather(some, 0, g),
                 lambda g, some: weft.send(some, 1, g) if g.rank == 0 else g.rank == 1 and weft.recv(some, 0, g),
                 lambda g, some: weft.all_gather(some, g), lambda g, some: weft.barrier(g),
                 lambda g, some: weft.all_reduce(some, group=g, async_op=True).wait(),
                 lambda g, some: weft.all_to_all(some[:len(some) // 6 * 6], g))
        for i, call in enumerate(calls):
            context = weft.Context(self.rank, self.size, os.environ["WEFT_ADDRESS"] + f"-{i}")
            for _ in range(3):
                call(context.world, x[:12])
            call(context.world, x if i % 2 else x[:12])
            context.close()

    @ranks.fresh
    def test_two_worlds_one_after_the_other(self):
        """Names of the environment may be used again once all have left."""
        for _ in range(3):
            self.assertEqual(weft.all_reduce(ones(1))[0], self.size)
            self.meet()
            weft.finalize()
            self.meet()
            weft.init()

    @ranks.fresh
    def test_arrays_and_works_outlive_everything(self):
        """Objects are let go of in any order, in cycles too."""
        x = weft.zeros(1000)
        group = weft.new_group(range(self.size))
        work = weft.all_reduce_(x, group=group, async_op=True)
        cycle = [group, work, x]
        cycle.append(cycle)
        del group, work, x, cycle
        gc.collect()
        weft.barrier()
        self.assertEqual(weft.all_reduce(ones(1))[0], self.size)

    @ranks.fresh
    def test_works_that_nobody_waits_for(self):
        """Their memory lives as long as they do, and other calls go on."""
        for i in range(300):
            weft.all_reduce_(np.full(1 + i * 11, 1.0), async_op=True)
            weft.all_reduce(np.full(5, 1.0), async_op=True)
        self.assertEqual(weft.all_reduce(ones(1), async_op=True).wait()[0], self.size)
        gc.collect()


class Late(ranks.RankCase):
    """Ranks that do not come: the deadline names them."""
    ENV = {"WEFT_TIMEOUT": "0.3"}

    @ranks.fresh
    def test_call(self):
        if self.rank == 0:
            with self.raises_within(weft.WeftTimeoutError, "late: rank 1") as raised:
                weft.all_reduce(ones())
            self.assertIsInstance(raised.exception, TimeoutError)
            self.assertEqual(raised.exception.status, "ERR_TIMEOUT")
        self.meet()
        with self.raises_within(weft.WeftTimeoutError, "late: rank 1"):
            weft.all_reduce(ones())
        self.meet()

    @ranks.fresh
    def test_work(self):
        if self.rank == 0:
            with self.raises_within(weft.WeftTimeoutError, "late: rank 1"):
                weft.all_reduce(ones(), async_op=True).wait()
        self.meet()


class Threads(ranks.RankCase):
    """Several threads at once, in ways that need no order."""

    def test_one_group(self):
        """Calls of threads take turns; all ranks make the same number of the same call."""
        problems = []

        def work():
            try:
                for _ in range(200):
                    x = np.full(16, self.rank + 1, "float32")
                    weft.all_reduce_(x)
                    self.assertTrue((x == 3).all())
            except BaseException as error:
                problems.append(error)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(problems, [])

    def test_the_interpreter_goes_on(self):
        """A thread that waits in a call lets others run."""
        if self.rank == 0:
            thread = threading.Thread(target=weft.barrier)
            thread.start()
            count = 0
            begin = time.monotonic()
            while count <= 1000 or time.monotonic() - begin < 0.1:
                count += 1
            self.meet()
            thread.join()
        else:
            self.meet()
            weft.barrier()

    def test_works_elsewhere(self):
        """Started by one thread, waited for by another."""
        work = weft.all_reduce(ones(1), async_op=True)
        found = []
        thread = threading.Thread(target=lambda: found.append(work.wait()))
        thread.start()
        thread.join()
        self.assertEqual(found[0][0], 2)
        works = [weft.all_reduce(ones(1), async_op=True) for _ in range(20)]
        threads = [threading.Thread(target=work.wait) for work in works for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([work.wait()[0] for work in works], [2] * 20)


class Forks(ranks.RankCase):
    """A child has no part in its parent's world."""

    def in_child(self, function):
        """What the child says, as text; it ends as Python does, with its exit handlers."""
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                function()
                text = "nothing"
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            os.write(write, text.encode())
            import atexit
            atexit._run_exitfuncs()
            gc.collect()
            os._exit(7)
        os.close(write)
        with os.fdopen(read) as file:
            text = file.read()
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 7, text)
        return text

    def test_calls_of_a_child(self):
        x, mine = ones(), weft.zeros(10)
        mine[:] = self.rank
        weft.all_reduce(x)
        group = weft.new_group(range(2))
        work = weft.all_reduce(x, group=group, async_op=True)
        for call in (weft.barrier, lambda: weft.all_reduce(x), lambda: weft.all_reduce(x, group=group),
                     lambda: weft.new_group([0, 1]), lambda: weft.empty(4), lambda: weft.register(x),
                     lambda: weft.all_reduce(x, async_op=True).wait(), lambda: weft.all_gather(x),
                     lambda: weft.Stream().synchronize()):
            with self.within(2):
                self.assertRegex(self.in_child(call), "^WeftStateError: .*fork")
        self.assertIn(self.in_child(weft.finalize), ("nothing",))
        self.assertEqual(work.wait()[0], 2)
        self.assertTrue((weft.all_reduce(mine) == 1).all())
        self.assertEqual(weft.all_reduce(ones(1))[0], 2)

    def test_a_child_that_lets_go(self):
        """Objects of the parent are deleted in the child, and collected."""
        group = weft.new_group(range(2))
        things = [group, weft.Stream(), weft.zeros(50), weft.all_reduce(ones(), group=group, async_op=True)]
        del group

        def let_go():
            things.clear()
            gc.collect()
        self.assertEqual(self.in_child(let_go), "nothing")
        self.assertEqual(things[-1].wait()[0], 2)
        self.assertEqual(weft.all_reduce(ones(1), group=things[0])[0], 2)

    def test_worlds_of_children(self):
        """A child may make a world of its own."""
        def world_of_one():
            context = weft.Context(0, 1, None)
            assert weft.all_reduce(ones(1), group=context.world)[0] == 1
        self.assertEqual(self.in_child(world_of_one), "nothing")
        weft.barrier()


if __name__ == "__main__":
    ranks.main()
