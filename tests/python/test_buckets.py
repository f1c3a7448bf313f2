#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weft.Fuser and weft.capture: results are those of all_reduce, whatever arrays, streams and errors do."""
import array
import gc
import math
import os
import signal
import threading

import ranks

np = ranks.need("numpy")
import weft  # noqa: E402

try:
    import torch
except ImportError:
    torch = None


def kinds(count, dtype="float32"):
    """An array of each kind, and what reads its elements."""
    yield np.ones(count, dtype), np.asarray
    yield array.array("f", [1] * count), np.asarray
    yield memoryview(bytearray(4 * count)).cast("f"), np.asarray
    if torch is not None:
        yield torch.ones(count, dtype=torch.bfloat16), lambda x: x.float().numpy()
        yield torch.ones(count, dtype=torch.float64), lambda x: x.numpy()


class Fusers(ranks.RankCase):
    RANKS = (1, 2, 3)

    def test_results_are_those_of_all_reduce(self):
        for stream in (None, weft.Stream(thread=True), weft.Stream(thread=False)):
            fuser = weft.Fuser(bytes=4096, window=math.inf, stream=stream)
            random = self.random()
            sizes = [int(size) for size in random.integers(0, 3000, 7)]
            for step in range(3):
                own = [np.random.default_rng(step * 100 + self.rank).standard_normal(size).astype("float32")
                       for size in sizes]
                expected = [weft.all_reduce(x, "avg") for x in own]
                order = np.random.default_rng(self.rank).permutation(len(own))
                for i in order:
                    self.assertIs(fuser.add(own[i], "avg", f"layer{i}"), own[i])
                fuser.query()
                fuser.wait()
                self.assertTrue(fuser.query())
                for x, y in zip(own, expected):
                    self.assertEqual(x.tobytes(), y.tobytes())
            stats = fuser.stats()
            self.assertEqual((stats["step_count"], stats["tensor_count"]), (3, len(sizes)))
            self.assertLessEqual(stats["largest_bucket_bytes"], 4096)
            fuser.reset()
            x = fuser.add(np.full(5, self.rank, "int64"), "max")
            fuser.flush()
            fuser.wait()
            self.assertEqual(list(x), [self.size - 1] * 5)
            fuser.destroy()
            fuser.destroy()

    def test_kinds_of_arrays(self):
        with weft.Fuser(window=0.5) as fuser:
            for step in range(2):
                arrays = list(kinds(9))
                for i, (x, read) in enumerate(arrays):
                    before = read(x).copy()
                    fuser.add(x)
                    arrays[i] = (x, read, before)
                fuser.wait()
                for x, read, before in arrays:
                    np.testing.assert_array_equal(read(x), before * self.size)
        with self.assertRaisesRegex(weft.WeftStateError, "the fuser is gone"):
            fuser.wait()

    def test_arrays_live_while_in_flight(self):
        fuser = weft.Fuser(stream=weft.Stream(thread=True))
        for _ in range(20):
            for i in range(4):
                fuser.add(np.ones(5000, "float32"), name=f"{i}")
            gc.collect()
            fuser.wait()
        fuser.destroy()

    def test_wrong_arguments_change_nothing(self):
        fuser = weft.Fuser()
        x = np.ones(4, "float32")
        fixed = x.copy()
        fixed.flags.writeable = False
        for error, call in ((ValueError, lambda: fuser.add(fixed)), (TypeError, lambda: fuser.add([1.0])),
                            (ValueError, lambda: fuser.add(x, "median")), (TypeError, lambda: fuser.add(x, name=1)),
                            (ValueError, lambda: fuser.add(x, name="a\0b")), (ValueError, lambda: fuser.add(x, name="")),
                            (ValueError, lambda: fuser.add(np.ones(2, bool), name="b"))):
            with self.assertRaises(error):
                call()
        fuser.add(x)
        with self.assertRaisesRegex(weft.WeftArgumentError, "already added"):
            fuser.add(x, name="0")
        fuser.wait()
        self.assertEqual(list(x), [self.size] * 4)
        for words in ({"bytes": 0}, {"bytes": -1}, {"bytes": 2**64}, {"window": -1}, {"window": math.nan}):
            with self.assertRaises(ValueError):
                weft.Fuser(**words)
        for words in ({"bytes": "1"}, {"window": "1"}, {"stream": 1}, {"group": 1}):
            with self.assertRaises(TypeError):
                weft.Fuser(**words)
        fuser.destroy()

    def test_a_dropped_fuser_leaves(self):
        """Not all ranks drop theirs, and the world goes on."""
        for late in (False, True):
            fuser = weft.Fuser(stream=weft.Stream(thread=True))
            fuser.add(np.ones(10, "float32"))
            fuser.wait()
            weft.barrier()
            if self.rank == 0 or late:
                del fuser
                gc.collect()
            weft.barrier()

    @ranks.fresh()
    def test_finalize_ends_it(self):
        fuser, idle = weft.Fuser(stream=weft.Stream(thread=True)), weft.Fuser()
        x = np.ones(10, "float32")
        fuser.add(x)
        fuser.wait()
        self.meet()
        if self.rank == self.size - 1:
            idle.add(x)  # in a step
        weft.finalize()
        for call in (fuser.wait, fuser.stats, idle.flush, lambda: fuser.add(x)):
            with self.assertRaisesRegex(weft.WeftStateError, "the fuser is gone"):
                call()
        fuser.destroy()

    def test_a_fork_has_none(self):
        fuser = weft.Fuser()
        fuser.add(np.ones(10, "float32"))
        child = os.fork()
        if child == 0:
            try:
                fuser.wait()
                os._exit(1)
            except weft.WeftError:
                del fuser
                gc.collect()
                os._exit(7)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)
        fuser.wait()
        fuser.destroy()

    def test_threads_wait_for_each_other(self):
        fuser = weft.Fuser()
        arrays = [np.ones(100, "float32") for _ in range(40)]
        threads = [threading.Thread(target=lambda part=part: [fuser.add(arrays[i], name=f"{i}") for i in part])
                   for part in (range(20), range(20, 40))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        fuser.wait()
        self.assertTrue(all((x == self.size).all() for x in arrays))
        fuser.destroy()


class Broken(ranks.RankCase):
    RANKS = 2

    @ranks.fresh()
    def test_ranks_that_differ(self):
        with self.raises_within(weft.WeftMismatchError, "fuser: ranks passed different parameters"):
            weft.Fuser(bytes=1024 * (1 + self.rank))
        fuser = weft.Fuser()
        with self.raises_within(weft.WeftMismatchError, "rank . did not add tensor|rank . adds tensor"):
            fuser.add(np.ones(4, "float32"), name=f"of rank {self.rank}")
            fuser.wait()

    @ranks.fresh()
    def test_interrupt(self):
        fuser = weft.Fuser()
        self.meet()
        if self.rank == 0:
            fuser.add(np.ones(4, "float32"))
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            with self.assertRaises(KeyboardInterrupt):
                fuser.wait()
        self.meet()

    @ranks.fresh(dies=[1])
    def test_dead_peer(self):
        fuser = weft.Fuser()
        self.meet()
        if self.rank == 1:
            self.die()
        with self.raises_within(weft.WeftPeerDiedError, seconds=5):
            fuser.add(np.ones(4, "float32"))
            fuser.wait()


class Captures(ranks.RankCase):
    RANKS = (1, 2, 3)

    def capture(self, arrays, **words):
        with weft.capture(**words) as step:
            for x in arrays:
                weft.all_reduce_(x, async_op=len(x) % 2 == 0)
        return step

    def test_replays(self):
        arrays = [np.zeros(100 * i + 1, "float32") for i in range(5)]
        total = sum(range(1, self.size + 1))
        for stream in (None, weft.Stream(thread=True)):
            step = self.capture(arrays, bucket="one", stream=stream, times=False)

            def fill():
                for x in arrays:
                    x[:] = self.rank + 1

            for how in range(4):
                fill()
                if how == 0:
                    step.launch()
                elif how == 1:
                    s = weft.Stream(thread=True)
                    step.launch(s)
                    s.synchronize()
                else:
                    for i in reversed(range(len(arrays))):
                        step.ready(i, stream if how == 3 else None)
                    step.wait(2)
                    step.wait()
                for x in arrays:
                    self.assertTrue((x == total).all(), (how, x))
            info = step.info
            self.assertEqual((info["call_count"], info["bucket_count"], info["replays"]), (5, 1, 4))
            self.assertIn("bucket 0", step.explain())
            self.assertEqual(step.explain(json=True)["digest"], info["digest"])
            self.assertEqual(len(set(self.exchange(info["digest"]))), 1)
            step.destroy()
            step.destroy()
            with self.assertRaisesRegex(weft.WeftStateError, "the capture is gone"):
                step.launch()

    def test_arrays_are_kept(self):
        x = np.ones(3, "float32")
        with weft.capture() as step:
            y = weft.all_reduce(x)
            z = weft.all_gather(y, async_op=True).wait()
            for made, _ in kinds(6):
                weft.all_reduce_(made)
            del made
        gc.collect()
        x[:] = 2
        step.launch()
        self.assertEqual(list(y), [2 * self.size] * 3)
        self.assertEqual(z.shape, (3 * self.size,))
        self.assertTrue((z == 2 * self.size).all())
        step.destroy()

    def test_an_exception_in_the_block(self):
        x = np.ones(3, "float32")
        wrong = self.size - 1
        with self.assertRaises(KeyError if self.rank == wrong else weft.WeftAbortedError) as caught:
            with weft.capture():
                weft.all_reduce_(x)
                if self.rank == wrong:
                    raise KeyError("lost")
        if self.rank != wrong:
            self.assertIn(f"rank {wrong}: the block of weft.capture ended by KeyError: 'lost'", str(caught.exception))
        weft.all_reduce_(x)
        self.assertEqual(list(x), [self.size] * 3)

    def test_wrong_use(self):
        step = weft.capture()
        with self.assertRaisesRegex(weft.WeftStateError, "has not ended"):
            step.launch()
        with step:
            with self.assertRaisesRegex(weft.WeftStateError, "capture"):
                weft.capture().__enter__()
            with self.assertRaisesRegex(weft.WeftStateError, "begun before"):
                step.__enter__()
            weft.barrier()
        for error, call in ((ValueError, lambda: step.ready(-1)), (ValueError, lambda: step.ready(2**32)),
                            (weft.WeftArgumentError, lambda: step.ready(1)), (TypeError, lambda: step.ready("0")),
                            (TypeError, lambda: step.wait(stream=weft.Stream())), (TypeError, lambda: step.launch(1)),
                            (weft.WeftStateError, lambda: step.wait(0))):
            with self.assertRaises(error):
                call()
        step.launch()
        step.destroy()
        with self.assertRaises(weft.WeftArgumentError):
            weft.capture(bucket="often").__enter__()
        if self.size > 1:
            weft.barrier()

    @ranks.fresh()
    def test_ends_in_any_order(self):
        x = np.ones(3, "float32")
        step = self.capture([x])
        step.launch(weft.Stream(thread=True))
        other = self.capture([x])
        if self.rank == 0:
            del other
            gc.collect()
        weft.barrier()
        self.meet()
        with self.assertRaises(weft.WeftStateError):
            with weft.capture():
                weft.all_reduce_(x)
                with self.assertRaises(weft.WeftStateError):
                    weft.Fuser()
                weft.finalize()
        with self.assertRaises(weft.WeftStateError):
            step.launch()


if __name__ == "__main__":
    ranks.main()
