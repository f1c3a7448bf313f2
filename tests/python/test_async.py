# SPDX-License-Identifier: Apache-2.0
"""async_op=True, streams, events, batches, many threads, forked children."""
import gc
import os
import sys
import threading
import time
import unittest
import weakref

import ranks

np = ranks.need("numpy")
import weft  # noqa: E402


class Array(np.ndarray):
    """An array that weak references may watch."""


def watched(count, value):
    array = np.full(count, value, "float32").view(Array)
    return array, weakref.ref(array)


class Works(ranks.RankCase):
    RANKS = (1, 2)
    ENV = {"WEFT_PROGRESS": "inline"}

    def sum(self, of=lambda rank: 1 + rank):
        return sum(map(of, range(self.size)))

    def test_wait_returns_what_the_call_would(self):
        x = np.full(100, 1 + self.rank, "float32")
        work = weft.all_reduce(x, async_op=True)
        self.assertIsInstance(work, weft.Work)
        y = work.wait()
        np.testing.assert_array_equal(y, np.full(100, self.sum()))
        self.assertEqual(x[0], 1 + self.rank)
        self.assertIs(work.wait(), y)
        self.assertIs(work.result(), y)
        self.assertTrue(work.is_completed() and work.is_success())
        self.assertIsNone(work.exception())
        self.assertIs(weft.all_reduce_(x, async_op=True).wait(), x)
        self.assertEqual(x[0], self.sum())
        self.assertIsNone(weft.barrier(async_op=True).wait())

    def test_every_operator(self):
        n, r = self.size, self.rank
        x = np.arange(4 * n, dtype="float32") + r
        np.testing.assert_array_equal(weft.all_gather(x, async_op=True).wait().reshape(n, -1),
                                      [np.arange(4 * n) + i for i in range(n)])
        np.testing.assert_array_equal(weft.reduce_scatter(x, async_op=True).wait(),
                                      n * np.arange(4 * r, 4 * r + 4) + sum(range(n)))
        y = x.copy()
        self.assertIs(weft.broadcast(y, root=n - 1, async_op=True).wait(), y)
        np.testing.assert_array_equal(y, np.arange(4 * n) + n - 1)
        y = weft.reduce(x, root=0, async_op=True).wait()
        if r == 0:
            np.testing.assert_array_equal(y, n * np.arange(4 * n) + sum(range(n)))
        else:
            self.assertIsNone(y)
        y = weft.gather(x, root=0, async_op=True).wait()
        if r == 0:
            np.testing.assert_array_equal(y.reshape(n, -1), [np.arange(4 * n) + i for i in range(n)])
        else:
            self.assertIsNone(y)
        out = np.empty(4, "float32")
        weft.scatter(x if r == 0 else None, root=0, out=out, async_op=True).wait()
        np.testing.assert_array_equal(out, np.arange(4 * r, 4 * r + 4))
        np.testing.assert_array_equal(weft.all_to_all(x, async_op=True).wait().reshape(n, -1),
                                      [np.arange(4 * r, 4 * r + 4) + i for i in range(n)])

    def test_many_in_flight_in_order(self):
        """More than a group has places for, and than its stream has."""
        works = [weft.all_reduce_(np.full(3, i + self.rank, "int64"), async_op=True) for i in range(700)]
        for i in reversed(range(700)):
            self.assertEqual(works[i].wait()[0], self.sum(lambda rank: i + rank))

    def test_synchronous_calls_between(self):
        for i in range(20):
            a = weft.all_reduce_(np.full(2000, i, "float32"), async_op=True)
            b = weft.all_reduce(np.full(2, i, "float32"))
            c = weft.all_reduce_(np.full(2, 2 * i, "float32"), async_op=True)
            self.assertEqual((a.wait()[0], b[0], c.wait()[0]), (self.size * i, self.size * i, 2 * self.size * i))

    def test_dropped_work_keeps_its_arrays_until_it_is_done(self):
        array, alive = watched(1000, 1.0)
        gate = np.zeros(1, "float32")
        if self.rank == 1:
            self.meet()
            weft.send(gate, 0)
        elif self.size > 1:  # in front of it on the stream: nothing behind can be done
            weft.recv(gate, 1, async_op=True)
        weft.all_reduce_(array, async_op=True)
        del array
        gc.collect()
        if self.rank == 0 and self.size > 1:
            self.assertIsNotNone(alive())
            self.meet()
        weft.barrier(async_op=True).wait()
        gc.collect()
        self.assertIsNone(alive())

    def test_list_of_dropped_works_gets_shorter_by_itself(self):
        alive = []
        for i in range(200):
            array, reference = watched(10, i)
            alive.append(reference)
            weft.all_reduce_(array, async_op=True)
        del array
        self.assertLess(sum(reference() is not None for reference in alive), 150)
        weft.barrier(async_op=True).wait()
        self.assertEqual(sum(reference() is not None for reference in alive), 0)

    def test_goes_on_inside_other_calls(self):
        """Also in those of another group, and if nobody waits for it."""
        group = weft.new_group(list(range(self.size)))
        context = weft.Stream().context
        for other in (weft.barrier, context.barrier, lambda: weft.new_group([0]), lambda: weft.empty(10),
                      group.duplicate):
            x = np.full(200000, 1.0)
            if self.rank == 0:
                weft.all_reduce_(x, group=group, async_op=True)
            else:
                weft.all_reduce_(x, group=group)
            other()
            weft.barrier(group, async_op=True).wait()
            self.assertEqual(x[-1], self.size)
        group.destroy()

    def test_wrong_arguments(self):
        work = weft.barrier(async_op=True)
        for timeout in (-1, float("nan")):
            with self.assertRaisesRegex(ValueError, "timeout"):
                weft.all_reduce_(np.zeros(1), async_op=True).wait(timeout)
        with self.assertRaises(TypeError):
            weft.all_reduce_(np.zeros(1), async_op=True).wait("soon")
        work.wait(timeout=300)
        with self.assertRaises(TypeError):
            weft.Work()
        with self.assertRaisesRegex(TypeError, "stream must be"):
            weft.all_reduce_(np.zeros(1), stream="s")
        with self.assertRaisesRegex(TypeError, "event must be"):
            weft.Stream().wait_event(1)
        weft.barrier(async_op=True).wait()

    def test_error_of_a_work_is_raised_each_time(self):
        group = weft.new_group(list(range(self.size)))
        if self.size == 1:
            self.skipTest("one rank agrees with itself")
        try:
            work = weft.all_reduce_(np.zeros(4 + self.rank, "float32"), group=group, async_op=True)
        except weft.WeftMismatchError:  # it failed on the stream before its event was there: no work
            return weft.barrier()
        behind = weft.barrier(group=group, async_op=True)
        for _ in range(2):
            with self.raises_within(weft.WeftMismatchError, "x f32"):
                work.wait()
        self.assertTrue(work.is_completed())
        self.assertFalse(work.is_success())
        self.assertIsInstance(work.exception(), weft.WeftMismatchError)
        with self.assertRaises(weft.WeftMismatchError):
            work.result()
        with self.assertRaises(weft.WeftError):
            behind.wait()
        weft.barrier()  # the world is well


    def test_works_go_on_after_an_error_that_the_group_survives(self):
        if self.size == 1:
            self.skipTest("one rank has no algorithms")
        group = weft.new_group(list(range(self.size)))
        group.set_algorithm("all_reduce", "ring")  # not for the order that reductions have
        with self.raises_within(weft.WeftUnsupportedError, "ring"):
            weft.all_reduce(np.ones(100), group=group, async_op=True).wait()
        group.set_algorithm("all_reduce", None)
        self.assertEqual(weft.all_reduce(np.ones(100), group=group, async_op=True).wait()[0], self.size)
        group.destroy()


class ThreadWorks(Works):
    """The same where a thread makes progress."""
    RANKS = 2
    ENV = {"WEFT_PROGRESS": "thread"}

    def test_goes_on_while_nobody_looks(self):
        x, z = np.ones(1000, "float32"), np.zeros(1000, "float32")
        if self.rank == 0:
            weft.send(x, 1, async_op=True)
            self.meet()
        else:
            weft.recv(z, 0)  # while rank 0 is elsewhere
            self.meet()
            self.assertEqual(z.sum(), 1000)
        weft.barrier()


class Timeouts(ranks.RankCase):
    ENV = {"WEFT_PROGRESS": "inline"}

    def test_wait_with_a_timeout(self):
        x = np.zeros(4, "float32")
        if self.rank == 0:
            work = weft.recv(x, 1, async_op=True)
            self.assertFalse(work.is_completed())
            with self.assertRaisesRegex(weft.WeftStateError, "not done yet"):
                work.result()
            begin = time.monotonic()
            with self.raises_within(TimeoutError, "timeout: the work is not done after 0.05 s"):
                work.wait(timeout=0.05)
            self.assertGreaterEqual(time.monotonic() - begin, 0.05)
            with self.assertRaises(weft.WeftTimeoutError):
                work.wait(0)
            self.assertFalse(work.is_completed())
            self.meet()
            self.assertEqual(work.wait(timeout=300)[3], 7)
        else:
            self.meet()
            weft.send(np.full(4, 7, "float32"), 0)

    def test_polling_ends(self):
        x = np.full(50, self.rank, "float32")
        work = weft.all_reduce_(x, async_op=True)
        with self.within(5):
            while not work.is_completed():
                pass
        self.assertEqual(x[0], 1)

    @ranks.fresh(dies=[1])
    def test_peer_dies_while_a_work_is_in_flight(self):
        self.meet()
        if self.rank == 1:
            self.die()
        work = weft.all_reduce_(np.zeros(1000, "float32"), async_op=True)
        with self.raises_within(weft.WeftPeerDiedError, "rank 1", seconds=5):
            work.wait()
        with self.raises_within(weft.WeftPeerDiedError, "rank 1"):
            work.wait()

    @ranks.fresh
    def test_finalize_finishes_what_is_in_flight(self):
        x, z = np.full(5000, 3.0, "float32"), np.zeros(5000, "float32")
        stream = weft.Stream(thread=True)
        if self.rank == 0:
            work = weft.send(x, 1, async_op=True)
            event = stream.record_event()
            self.meet()
            weft.finalize()
            self.assertTrue(work.is_success())
            self.assertIsNone(work.wait())
            for call in (stream.synchronize, stream.query, stream.record_event, event.query):
                with self.assertRaisesRegex(weft.WeftStateError, "context was closed"):
                    call()
        else:
            self.meet()
            weft.recv(z, 0)
            self.assertEqual(z.sum(), 15000)

    @ranks.fresh
    def test_finalize_while_a_thread_waits(self):
        errors = []

        def wait():
            try:
                weft.recv(np.zeros(4), 1 - self.rank, async_op=True).wait()
            except weft.WeftError as error:
                errors.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        self.meet()
        if self.rank == 0:
            weft.Stream().context.abort("enough")
        thread.join()
        weft.finalize()
        self.assertRegex(str(errors[0]), "enough")


class Ends(unittest.TestCase):
    """Programs that end while something is in flight."""

    def test_what_can_be_finished_is(self):
        done = ranks.run_script("""if True:
            import weft, numpy as np
            weft.init()
            x = np.ones(100000)
            if weft.get_rank() == 0:
                weft.send(x, 1, async_op=True)
            else:
                weft.recv(x, 0)
            """)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_an_exception_ends_the_waits_of_threads(self):
        begin = time.monotonic()
        done = ranks.run_script("""if True:
            import weft, numpy as np, threading
            weft.init()
            thread = threading.Thread(target=weft.recv, args=(np.ones(10), 1 - weft.get_rank()))
            thread.start()
            if weft.get_rank() == 0:
                raise ValueError("by rank 0")
            thread.join()
            """)
        self.assertIn("rank 0 ended by ValueError('by rank 0')", done.stderr)
        self.assertLess(time.monotonic() - begin, ranks.PROMPT)

    def test_what_cannot_ends_the_world(self):
        begin = time.monotonic()
        done = ranks.run_script("""if True:
            import weft, numpy as np
            weft.init()
            x, stream = np.ones(10), weft.Stream()
            group = weft.new_group([0, 1])  # younger than the stream
            if weft.get_rank() == 0:
                weft.recv(x, 1, group=group, stream=stream)
                weft.recv(x, 1, async_op=True)
            else:
                weft.recv(x, 0)
            """)
        self.assertIn("WeftAbortedError: rank 0's program ended with calls in flight", done.stderr)
        self.assertLess(time.monotonic() - begin, ranks.PROMPT)


class Streams(ranks.RankCase):
    ENV = {"WEFT_PROGRESS": "inline"}

    def test_calls_on_a_stream(self):
        for thread in (None, False, True):
            stream = weft.Stream(thread)
            self.assertIs(stream.context, weft.Stream(thread=False).context)
            x = np.full(64, 1 + self.rank, "float32")
            y = weft.all_reduce(x, stream=stream)
            z = weft.all_gather(y, out=np.empty(128, "float32"), stream=stream)  # in order
            stream.synchronize()
            self.assertTrue(stream.query())
            np.testing.assert_array_equal(y, np.full(64, 3))
            np.testing.assert_array_equal(z, np.full(128, 3))
            work = weft.all_reduce_(x, async_op=True, stream=stream)
            self.assertIs(work.wait(), x)

    def test_events_order_streams(self):
        for thread in (False, True):
            first, second = weft.Stream(thread), weft.Stream(thread)
            x = np.full(1000, 1 + self.rank, "float32")
            group = weft.new_group([0, 1])
            begin = first.record_event()
            weft.all_reduce_(x, stream=first)
            done = first.record_event()
            second.wait_event(done)
            y = weft.all_reduce(x, stream=second, group=group)
            end = second.record_event()
            end.synchronize()
            self.assertTrue(done.query() and end.query())
            np.testing.assert_array_equal(y, np.full(1000, 6))
            self.assertGreaterEqual(begin.elapsed_time(end), 0)
            self.assertGreaterEqual(begin.elapsed_time(end), begin.elapsed_time(done))
            self.assertIs(second.record_event(done), done)  # moved
            second.synchronize()
            group.destroy()

    def test_events_alone(self):
        event = weft.Event()
        self.assertTrue(event.query())  # nothing to wait for
        event.synchronize()
        weft.Stream().wait_event(event)
        with self.assertRaises(weft.WeftStateError):
            event.elapsed_time(event)
        with self.assertRaises(TypeError):
            event.elapsed_time(3)

    def test_more_events_than_a_stream_has_places(self):
        stream = weft.Stream(thread=True)
        events = [stream.record_event() for _ in range(3000)]
        stream.synchronize()
        self.assertTrue(all(event.query() for event in events))

    def test_what_they_say_of_themselves(self):
        context = f"<weft.Context rank {self.rank} of {self.size}, launcher \\S+>"
        stream, group = weft.Stream(), f"<weft.Group rank {self.rank} of {self.size}>"
        self.assertRegex(repr(stream), f"^<weft.Stream of {context}>$")
        self.assertRegex(repr(stream.record_event()), f"^<weft.Event of {context}>$")
        with weft.batch() as batch:
            self.assertEqual(repr(batch), f"<weft.batch of {group}, open>")
        self.assertEqual(repr(batch), f"<weft.batch of {group}>")

    def test_streams_of_two_groups_overlap(self):
        """A call that waits on one stream holds up no other."""
        a, b = weft.Stream(thread=True), weft.Stream(thread=True)
        group = weft.new_group([0, 1])
        x, gate = np.ones(10, "float32"), np.zeros(1, "float32")
        if self.rank == 0:
            weft.recv(gate, 1, stream=a)
        y = weft.all_reduce(x, group=group, stream=b)
        b.synchronize()
        self.assertEqual(y[0], 2)
        if self.rank == 1:
            weft.send(gate, 0)
        a.synchronize()
        group.destroy()

    def test_stream_of_another_context(self):
        with weft.Context(0, 1) as alone:
            stream = weft.Stream(context=alone)
            with self.assertRaisesRegex(ValueError, "different contexts"):
                weft.all_reduce_(np.zeros(1), stream=stream)
            y = weft.all_reduce(np.ones(2), group=alone.world, stream=stream)
            event = stream.record_event()
            event.synchronize()
            self.assertEqual(y[0], 1)
            with self.assertRaises(weft.WeftError):
                weft.Stream().wait_event(event)
            stream.synchronize()
        with self.assertRaises(weft.WeftStateError):
            weft.Stream(context=alone)
        with self.assertRaisesRegex(weft.WeftStateError, "context was closed"):
            stream.synchronize()
        with self.assertRaises(weft.WeftStateError):
            weft.all_reduce(np.ones(2), group=alone.world, async_op=True)

    def test_streams_and_arrays_are_given_back(self):
        for wait in (weft.Stream.synchronize, weft.Stream.query, lambda stream: stream.record_event().synchronize()):
            alive = []
            for i in range(30):
                stream = weft.Stream(thread=False)
                array, reference = watched(10, i)
                weft.all_reduce_(array, stream=stream)
                while not wait(stream) and wait is weft.Stream.query:
                    pass
                alive.append(reference)
            del array, stream
            weft.Stream()
            gc.collect()
            self.assertEqual(sum(reference() is not None for reference in alive), 0)

    def test_dropped_stream_finishes(self):
        x = np.full(100, 1.0, "float32")
        weft.all_reduce_(x, stream=weft.Stream())
        gc.collect()
        weft.barrier(async_op=True).wait()
        weft.barrier()
        self.assertEqual(x[0], 2)


class Batches(ranks.RankCase):
    RANKS = (1, 2, 3)

    def test_calls_of_a_block(self):
        n, r = self.size, self.rank
        x = np.full(8, 1.0 + r, "float32")
        with weft.batch():
            sums = [weft.all_reduce(np.full(4, i + r, "float32")) for i in range(20)]
            rows = weft.all_gather(x)
            weft.all_reduce_(x, op="max")
        for i, y in enumerate(sums):
            np.testing.assert_array_equal(y, np.full(4, n * i + sum(range(n))))
        np.testing.assert_array_equal(rows.reshape(n, 8)[:, 0], np.arange(1, n + 1))
        np.testing.assert_array_equal(x, np.full(8, n))

    def test_exchange_needs_no_order(self):
        n, r = self.size, self.rank
        if n == 1:
            self.skipTest("needs two")
        out, back = np.full(10000, r, "float32"), np.zeros(10000, "float32")
        with weft.batch():
            weft.send(out, (r + 1) % n)
            weft.recv(back, (r - 1) % n)
        np.testing.assert_array_equal(back, np.full(10000, (r - 1) % n))

    def test_asynchronous(self):
        stream = weft.Stream()
        with weft.batch(async_op=True) as batch:
            x, alive = watched(10, 1.0)
            y = weft.all_reduce(x)
            del x
            self.assertIsNone(batch.work)
        gc.collect()
        self.assertIsNone(batch.work.wait())
        self.assertIsNone(alive())
        self.assertEqual(y[0], self.size)
        with weft.batch(stream=stream) as batch:
            y = weft.all_reduce(np.ones(3, "float32"))
            z = weft.all_reduce(np.ones(3, "float32"), op="avg")
        stream.synchronize()
        self.assertTrue(batch.work.is_success())
        self.assertEqual((y[0], z[0]), (self.size, 1))

    def test_empty_and_again(self):
        batch = weft.batch()
        for _ in range(3):
            with batch:
                pass
            with batch:
                y = weft.all_reduce(np.ones(1))
            self.assertEqual(y[0], self.size)

    def test_an_exception_drops_it(self):
        x = np.full(4, 5.0)
        with self.assertRaises(ZeroDivisionError), weft.batch():
            weft.all_reduce_(x)
            1 / 0
        self.assertEqual(x[0], 5)
        self.assertEqual(weft.all_reduce(np.ones(1))[0], self.size)  # and the group goes on

    def test_wrong_use(self):
        with weft.batch():
            with self.assertRaisesRegex(weft.WeftStateError, "open on this group"):
                with weft.batch():
                    pass
            for more in ({"async_op": True}, {"stream": weft.Stream()}):
                with self.assertRaisesRegex(ValueError, "belong to weft.batch"):
                    weft.barrier(**more)
            with self.assertRaises(TypeError):
                weft.all_reduce(np.ones(2, bool))
            seen = []

            def call():
                try:
                    weft.barrier()
                except weft.WeftError as error:
                    seen.append(error)

            thread = threading.Thread(target=call)
            thread.start()
            thread.join()
            self.assertRegex(str(seen[0]), "another thread has a batch open")
        with self.assertRaisesRegex(weft.WeftStateError, "no batch is open"):
            weft.batch().__exit__(None, None, None)
        weft.barrier()

    def test_ranks_disagree(self):
        if self.size == 1:
            self.skipTest("one rank agrees with itself")
        group = weft.new_group(list(range(self.size)))
        with self.raises_within(weft.WeftMismatchError):
            with weft.batch(group):
                weft.all_reduce(np.zeros(4 + (self.rank == 1), "float32"), group=group)
                weft.all_reduce(np.zeros(4, "float32"), group=group)
            weft.barrier(group)
        weft.barrier()


class Threads(ranks.RankCase):
    THREADS = 8

    def run_threads(self, function):
        errors = []

        def guarded(number):
            try:
                function(number)
            except BaseException as error:  # noqa: B902
                errors.append(error)

        threads = [threading.Thread(target=guarded, args=(i,)) for i in range(self.THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def test_a_group_for_each(self):
        groups = [weft.new_group([0, 1]) for _ in range(self.THREADS)]

        def call(number):
            for i in range(60):
                x = np.full(1 + 50 * number, i + number + self.rank, "float32")
                if i % 3 == 0:
                    y = weft.all_reduce(x, group=groups[number], async_op=True).wait()
                else:
                    y = weft.all_reduce(x, group=groups[number])
                np.testing.assert_array_equal(y, np.full(len(x), 2 * (i + number) + 1))

        self.run_threads(call)
        for group in groups:
            group.destroy()

    def test_one_group_of_equal_calls(self):
        """Who comes first does not matter where all calls are alike."""
        def call(number):
            for i in range(40):
                y = weft.all_reduce(np.ones(16, "float32"), async_op=(i + number) % 2 == 0)
                y = y.wait() if isinstance(y, weft.Work) else y
                np.testing.assert_array_equal(y, np.full(16, 2))

        self.run_threads(call)

    def test_one_work_for_all(self):
        works = [weft.all_reduce_(np.full(1000, 1.0, "float32"), async_op=True) for _ in range(40)]

        def wait(number):
            for i in range(len(works)):
                self.assertEqual(works[(i * 7 + number) % len(works)].wait()[0], 2)

        self.run_threads(wait)

    def test_others_compute_meanwhile(self):
        """A call that waits does not have the interpreter's lock."""
        ticks = [0]
        if self.rank == 0:
            calling = threading.Event()

            def tick():
                calling.wait()
                begin = time.monotonic()
                while ticks[0] < 1000 or time.monotonic() - begin < 0.2:
                    ticks[0] += 1
                self.meet()  # only now rank 1 sends what the main thread waits for

            thread = threading.Thread(target=tick)
            thread.start()
            calling.set()
            weft.recv(np.zeros(1), 1)
            thread.join()
        else:
            self.meet()
            weft.send(np.zeros(1), 0)


class Forks(ranks.RankCase):
    def child(self, function):
        """The exit status of function in a child."""
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                status = function()
            finally:
                os._exit(status)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def test_child_is_told_and_parent_goes_on(self):
        group = weft.new_group([0, 1])
        stream, thread_stream = weft.Stream(), weft.Stream(thread=True)
        done = weft.all_reduce(np.ones(2), async_op=True)
        done.wait()
        event = stream.record_event()
        calls = [lambda: weft.all_reduce(np.ones(2)), lambda: weft.barrier(group), weft.barrier,
                 lambda: weft.all_reduce(np.ones(2), async_op=True), lambda: weft.all_gather(np.ones(2)),
                 lambda: weft.new_group([0, 1]), lambda: weft.empty(3), lambda: group.duplicate(),
                 lambda: weft.all_reduce_(np.ones(2), stream=stream)]

        def inside():
            nonlocal group, stream, thread_stream, event
            for number, call in enumerate(calls):
                try:
                    call()
                    print("call", number, "worked")
                    return 10 + number
                except weft.WeftStateError as error:
                    if "forked" not in str(error):
                        print("call", number, error)
                        return 40 + number
            if done.wait()[0] != 2 or weft.get_rank() != self.rank:
                return 2
            del group, stream, thread_stream, event
            gc.collect()
            weft.finalize()
            return 0

        with self.within(5):
            self.assertEqual(self.child(inside), 0)
        self.assertEqual(weft.all_reduce(np.ones(2))[0], 2)
        group.destroy()

    def test_child_while_a_thread_is_in_a_call(self):
        """Its lock is held by nobody there."""
        if self.rank == 1:
            self.meet()
            weft.send(np.full(4, 9.0), 0)
            return
        x = np.zeros(4)
        thread = threading.Thread(target=weft.recv, args=(x, 1))
        thread.start()

        def inside():
            try:
                weft.barrier()
            except weft.WeftStateError:
                return 0
            return 1

        begin = time.monotonic()
        while time.monotonic() - begin < 0.05:  # most likely it is in the call now; either way nothing may hang
            pass
        with self.within(5):
            self.assertEqual(self.child(inside), 0)
        self.meet()
        thread.join()
        self.assertEqual(x[3], 9)


if __name__ == "__main__":
    ranks.main()
