#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Contexts and groups as objects: how they are made, what they say, how they end; calls from signal handlers."""
import gc
import json
import pathlib
import re
import signal
import sys
import time
import unittest

import ranks

np = ranks.need("numpy")
import weft


def ones(*shape):
    return np.ones(shape, "float32")


class Groups(ranks.RankCase):
    RANKS = (1, 3)

    def test_world(self):
        world = self.world()
        self.assertEqual((world.rank, world.size, world.ranks), (self.rank, self.size, list(range(self.size))))
        self.assertIs(world.context.world, world)
        self.assertIn(f"rank {self.rank} of {self.size}", repr(world))
        with self.assertRaisesRegex(weft.WeftStateError, "finalize"):
            world.destroy()
        with self.assertRaises(TypeError):
            weft.Group()
        np.testing.assert_array_equal(weft.all_reduce(ones(2), group=world.context), ones(2) * self.size)

    def world(self):
        return weft.new_group(range(self.size)).context.world

    def test_order_of_ranks(self):
        members = list(reversed(range(self.size)))
        group = weft.new_group(members)
        self.assertEqual((group.rank, group.ranks), (members.index(self.rank), members))
        np.testing.assert_array_equal(weft.all_gather(np.array([self.rank]), group), members)
        group.destroy()

    def test_split(self):
        group = self.world()
        half = group.split(self.rank % 2, key=-self.rank)
        expected = [r for r in reversed(range(self.size)) if r % 2 == self.rank % 2]
        self.assertEqual(half.ranks, expected)
        np.testing.assert_array_equal(weft.all_gather(np.array([self.rank]), half), expected)
        nobody = group.split(None if self.rank == 0 else 5)
        self.assertEqual(nobody is None, self.rank == 0)
        for bad in (-1, 1 << 40):
            with self.assertRaisesRegex(ValueError, "color"):
                group.split(bad)
        with self.assertRaises(TypeError):
            group.split("red")
        with self.assertRaisesRegex(ValueError, "staging_bytes"):
            group.split(0, staging_bytes=-1)
        large = group.split(0, staging_bytes=8 << 20)
        np.testing.assert_array_equal(weft.all_reduce(np.ones(1 << 20, np.float32), group=large)[:3], self.size)

    def test_duplicate_and_destroy(self):
        group = weft.new_group(range(self.size))
        other = group.duplicate()
        self.assertEqual(other.ranks, group.ranks)
        weft.barrier(other)
        group.destroy()
        group.destroy()  # nothing is left to do
        self.assertIn("destroyed", repr(group))
        for call in (lambda: weft.barrier(group), lambda: weft.all_gather(ones(2), group), group.duplicate, group.check,
                     lambda: group.split(0), lambda: group.ranks, lambda: group.last_path,
                      lambda: weft.new_group([0], group),
                     lambda: weft.scatter(ones(self.size), 0, group), lambda: group.set_order("any")):
            with self.assertRaisesRegex(weft.WeftStateError, "destroyed"):
                call()
        self.assertEqual((group.rank, group.size), (other.rank, other.size))
        weft.barrier(other)
        other.destroy()

    def test_settings(self):
        group = weft.new_group(range(self.size))
        self.assertEqual(group.last_algorithm, "none")
        group.set_order("any")
        x = ones(1000) * (self.rank + 1)
        expected = ones(1000) * sum(range(1, self.size + 1))
        np.testing.assert_array_equal(weft.all_reduce(x, group=group), expected)
        self.assertNotEqual(group.last_path, "")
        group.set_order("tree")
        group.set_order("blocks", [1] * self.size)
        np.testing.assert_array_equal(weft.all_reduce(x, group=group), expected)
        group.set_order("tree")
        if self.size > 1:
            group.set_algorithm("all_reduce", "one-shot")
            np.testing.assert_array_equal(weft.all_reduce(x, group=group), expected)
            self.assertIn("one-shot", group.last_algorithm)
        group.set_algorithm("all_reduce", None)
        self.assertIsNone(group.check())
        for bad, error, pattern in ((lambda: group.set_order("random"), ValueError, "random"),
                                    (lambda: group.set_order(3), TypeError, ""),
                                    (lambda: group.set_order("blocks"), ValueError, "block_sizes"),
                                    (lambda: group.set_order("blocks", [self.size + 1]), ValueError, "block_sizes"),
                                    (lambda: group.set_algorithm("all_reduce", "magic"), ValueError,
                                      "AllReduce: unknown algorithm .*magic"),
                                    (lambda: group.set_algorithm("reduce_all", None), ValueError, "reduce_all")):
            with self.assertRaisesRegex(error, pattern):
                bad()
        group.destroy()

    def test_check(self):
        if self.size == 1:
            return
        group = weft.new_group(range(self.size))
        with self.raises_within(weft.WeftMismatchError):
            weft.all_reduce(ones(5 + self.rank), group=group)
        with self.raises_within(weft.WeftMismatchError) as raised:
            group.check()
        self.assertEqual(raised.exception.status, "ERR_MISMATCH")
        group.destroy()  # which does not wait for the others then
        self.assertIsNone(self.world().check())

    def test_nothing_is_kept(self):
        group = weft.new_group(range(self.size))
        before = sys.getrefcount(group), sys.getrefcount(group.context)
        for _ in range(30):
            weft.all_reduce(ones(3), group=group)
            weft.all_gather(ones(2), group)
            weft.scatter(ones(self.size) if group.rank == 0 else None, 0, group)
            for wrong in (lambda: weft.all_reduce(ones(3), "x", group), lambda: weft.broadcast(ones(3), 99, group),
                          lambda: weft.send(ones(3), group.rank, group), lambda: weft.all_reduce("x", group=group),
                          lambda: weft.all_to_all(ones(1), group, send_counts=[7] * self.size)):
                with self.assertRaises((TypeError, ValueError)):
                    wrong()
        self.assertEqual((sys.getrefcount(group), sys.getrefcount(group.context)), before)


class Blocks(ranks.RankCase):
    """all_to_all with blocks of different lengths."""
    RANKS = (1, 3)

    def rows(self, source, target):
        return (source * 2 + target * 3) % 4

    def test_counts(self):
        n = self.size
        send = [self.rows(self.rank, r) for r in range(n)]
        recv = [self.rows(r, self.rank) for r in range(n)]
        x = np.concatenate([np.full((send[r], 2), 10 * self.rank + r, "int32") for r in range(n)])
        expected = np.concatenate([np.full((recv[r], 2), 10 * r + self.rank, "int32") for r in range(n)])
        np.testing.assert_array_equal(weft.all_to_all(x, send_counts=send), expected)
        np.testing.assert_array_equal(weft.all_to_all(x, send_counts=send, recv_counts=np.array(recv)), expected)
        out = np.zeros_like(expected)
        self.assertIs(weft.all_to_all(x, send_counts=send, recv_counts=recv, out=out), out)
        np.testing.assert_array_equal(out, expected)
        work = weft.all_to_all(x, send_counts=send, recv_counts=recv, async_op=True)
        np.testing.assert_array_equal(work.wait(), expected)

    def test_wrong_counts(self):
        n, x = self.size, ones(self.size, 2)
        for counts, error, pattern in (([1] * (n + 1), ValueError, "send_counts"),
                                       ([2] * n, ValueError, f"{2 * n} rows"),
                                       ([-1] * n, ValueError, "send_counts"), (["1"] * n, TypeError, "send_counts"),
                                       (1, TypeError, "iter")):
            with self.raises_within(error, pattern):
                weft.all_to_all(x, send_counts=counts)
        with self.raises_within(ValueError, "send_counts"):
            weft.all_to_all(x, recv_counts=[1] * n)
        with self.raises_within(ValueError, "out"):
            weft.all_to_all(x, send_counts=[1] * n, recv_counts=[1] * n, out=ones(n, 3))
        np.testing.assert_array_equal(weft.all_to_all(x, send_counts=[1] * n), x)


class Results(ranks.RankCase):
    """Results that cannot be made when ranks have told each other their shapes."""

    def test_rows_without_elements(self):
        self.assertEqual(weft.all_gather(np.empty((1 << 40, 0))).shape, (1 << 41, 0))
        with self.raises_within(OverflowError, "all_gather"):
            weft.all_gather(np.empty((1 << 62, 0), "int8"))
        weft.barrier()

    def test_one_rank_cannot_go_on(self):
        send = [1, 1]
        if self.rank == 0:
            with self.raises_within(ValueError, "out"):
                weft.all_to_all(ones(2), send_counts=send, out=ones(5))
        else:
            with self.raises_within(weft.WeftArgumentError, "rank 0: all_to_all_v: out"):
                weft.all_to_all(ones(2), send_counts=send, out=ones(2))
        np.testing.assert_array_equal(weft.all_reduce(ones(100000)), ones(100000) * self.size)


class Contexts(ranks.RankCase):
    def context(self, name):
        return weft.Context(self.rank, self.size, f"unix:{self.dir}/{name}")

    def test_what_it_says(self):
        context = self.context("a")
        self.assertEqual((context.rank, context.size, context.hosts, context.closed), (self.rank, self.size, 1, False))
        self.assertEqual(context.launcher, "arguments")
        peer = context.peer(1 - self.rank)
        self.assertEqual((peer["transport"], peer["host"]), ("shm", 0))
        with self.assertRaisesRegex(ValueError, "rank"):
            context.peer(2)
        self.assertIn("2 ranks", context.topology())
        self.assertIn("pairs", json.loads(context.topology(json=True)))
        with self.assertRaisesRegex(ValueError, "width: -1 is out of range"):
            context.topology(width=-1)
        context.dump(pathlib.Path(self.dir) / f"{self.rank}.json")
        self.assertEqual(json.loads((pathlib.Path(self.dir) / f"{self.rank}.json").read_text())["rank"], self.rank)
        with self.assertRaisesRegex(ValueError, "path"):
            context.dump()
        context.barrier()
        context.close()
        context.close()
        self.assertIn("closed", repr(context))
        self.assertTrue(context.closed)
        for call in (context.barrier, context.topology, lambda: context.peer(0), lambda: context.world,
                     lambda: context.abort("x"), lambda: context.dump("x"), context.__enter__, lambda: weft.empty(3, context=context)):
            with self.assertRaisesRegex(weft.WeftStateError, "closed"):
                call()

    def test_worlds_side_by_side(self):
        with self.context("b") as one, self.context("c") as other:
            for i in range(20):
                for context in (one, other):
                    np.testing.assert_array_equal(weft.all_reduce(ones(9) * i, group=context), ones(9) * 2 * i)
            inner = weft.new_group([1, 0], one.world)
            np.testing.assert_array_equal(weft.all_gather(np.array([self.rank]), inner), [1, 0])
        self.assertTrue(one.closed and other.closed)
        with self.assertRaises(weft.WeftStateError):
            weft.barrier(inner)
        weft.barrier()

    def test_memory_of_a_world(self):
        """Is that of the groups it has, not of all it may have: a world is quick to make."""
        def shared_kib():
            text = pathlib.Path("/proc/self/status").read_text()
            return int(re.search(r"RssShmem:\s*(\d+)", text).group(1))
        before = shared_kib()
        with self.context("small"):
            self.assertLess(shared_kib() - before, 1024)

    def test_collected(self):
        """A context that nobody has any more leaves its world, though it and its group refer to each other."""
        context = self.context("d")
        group = weft.new_group([0, 1], context.world)
        weft.barrier(group)
        self.meet()
        del context, group
        gc.collect()
        again = self.context("d")  # where the first one met
        weft.barrier(again)
        again.close()

    def test_what_was_sent_before_leaving(self):
        for i in range(20):
            x = ones(5) * i
            with self.context(f"g{i}") as context:
                if self.rank == 0:
                    weft.send(x, 1, context)
                else:
                    np.testing.assert_array_equal(weft.recv(np.zeros_like(x), 0, context), x)

    def test_abort(self):
        context = self.context("e")
        self.meet()
        if self.rank == 0:
            context.abort("no more paper")
            with self.raises_within(weft.WeftAbortedError, "no more paper"):
                context.barrier()
        else:
            with self.raises_within(weft.WeftAbortedError, "no more paper") as raised:
                weft.all_reduce(ones(4), group=context)
            self.assertEqual(raised.exception.status, "ERR_ABORTED")
        context.close()
        weft.barrier()

    def test_initialized_by_arguments(self):
        weft.finalize()
        context = weft.init(self.rank, self.size, f"unix:{self.dir}/f", progress="inline")
        self.assertEqual(context.launcher, "arguments")
        weft.barrier()
        with self.assertRaisesRegex(ValueError, "progress"):
            weft.Context(0, 1, progress="fast")

    @ranks.fresh
    def test_calls_of_a_signal_handler(self):
        """It runs inside a call that waits: another one on the same group is refused, on another group it goes on."""
        other = weft.new_group([0, 1]), weft.Context(0, 1)
        told = []

        def handler():
            signal.setitimer(signal.ITIMER_REAL, 0)
            told.append(weft.all_reduce(ones(1), group=other[1])[0])
            for call in (weft.barrier, lambda: weft.all_gather(ones(1)), lambda: weft.new_group([0])):
                try:
                    call()
                except weft.WeftStateError as error:
                    told.append(str(error))
            self.meet()
        if self.rank == 0:
            signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
            self.assertEqual(self.call_with_handler(signal.SIGALRM, handler, lambda: weft.all_reduce(ones(1)))[0], 2)
            self.assertEqual(told[0], 1)
            self.assertEqual(len(told), 4, told)
            for text in told[1:]:
                self.assertIn("signal handler", text)
        else:
            self.meet()  # in rank 0's handler, while it waits
            self.assertEqual(weft.all_reduce(ones(1))[0], 2)
        weft.barrier(other[0])


class Programs(unittest.TestCase):
    def test_ends_while_a_thread_waits(self):
        """It would wait for ever; unless it is too late to wait at all, the others hear of it."""
        start = time.monotonic()
        done = ranks.run_script(THREAD_WAITS, ranks=2)
        self.assertRegex(done.stdout, "WeftAbortedError: rank 1 ended while a thread of it was in a call|"
                                      "WeftPeerDiedError: rank 1 ", done.stderr)
        self.assertLess(time.monotonic() - start, ranks.PROMPT)


THREAD_WAITS = """
import threading
import numpy as np
import weft
weft.init()
waits = weft.new_group([0, 1])
if weft.get_rank() == 1:
    weft.send(np.ones(3), 0)
    threading.Thread(target=weft.barrier, args=(waits,), daemon=True).start()
    weft.send(np.ones(3), 0)
else:
    weft.recv(np.ones(3), 1)
    weft.recv(np.ones(3), 1)
    try:
        weft.recv(np.ones(3), 1)
    except weft.WeftError as error:
        print(f"{type(error).__name__}: {error}")
"""


class Alone(unittest.TestCase):
    """A context of a world of one, in this process."""

    def test_a_context_holds_its_objects(self):
        context = weft.Context(0, 1)
        group = weft.new_group([0], context.world)
        world = context.world
        del context
        gc.collect()
        self.assertEqual(weft.all_reduce(ones(1), group=group)[0], 1)
        group.context.close()
        with self.assertRaisesRegex(weft.WeftStateError, "gone"):
            weft.barrier(world)

    def test_no_context_is_leaked(self):
        for _ in range(3):
            weft.barrier(weft.Context(0, 1))
        gc.collect()
        self.assertEqual([o for o in gc.get_objects() if type(o) is weft.Context and not o.closed], [])


if __name__ == "__main__":
    ranks.main()
