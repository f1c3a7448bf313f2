#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weft.empty, zeros, register, unregister: memory that peers reach, and how long it lives."""
import gc
import os
import sys
import threading
import unittest

import ranks

np = ranks.need("numpy")
import weft

try:
    import torch
except ImportError:
    torch = None

torch_only = unittest.skipIf(torch is None, "torch is not installed")


def address(array):
    return array.__array_interface__["data"][0]


class Empty(ranks.RankCase):
    """weft.empty and weft.zeros."""
    RANKS = (1, 3)

    def test_types_and_shapes(self):
        for dtype in ("float64", "float32", "float16", "int64", "uint8", "bool", np.int16, np.dtype("u4"), float, int):
            for shape in ((), 5, (0,), (3, 0), (2, 3), [4, 1, 2], np.int64(3), (1,) * 8):
                x = weft.empty(shape, dtype)
                self.assertIs(type(x), np.ndarray)
                self.assertEqual(x.dtype, np.dtype(dtype))
                self.assertEqual(x.shape, np.zeros(shape).shape)
                self.assertTrue(x.flags.writeable and x.flags.c_contiguous and not x.flags.owndata)
        self.assertEqual(weft.empty(3).dtype, np.dtype("float32"))
        self.assertEqual(weft.empty(shape=(2,), dtype="int8", context=None).nbytes, 2)

    def test_zeros(self):
        for n in (10, 100000):
            x = weft.zeros(n)
            self.assertFalse(x.any())
            x[:] = 7
            self.assertEqual(address(x) % 4096, 0)
            del x
        self.assertFalse(weft.zeros(100000).any())

    def test_collectives(self):
        for n in (1, 1000, 300001):
            x, y = weft.empty(n), weft.empty((self.size, n))
            x[:] = self.rank + 1
            weft.all_gather(x, out=y.reshape(-1))
            for r in range(self.size):
                self.assertTrue((y[r] == r + 1).all())
            weft.all_reduce_(x)
            self.assertTrue((x == sum(range(self.size + 1))).all())
            weft.all_reduce_(y[:, n // 2:n // 2 + 1].copy())
            weft.all_reduce_(y[self.size - 1])
            self.assertTrue((y[-1] == self.size ** 2).all())
            if self.size > 1:
                self.assertTrue((y[0] == 1).all())

    def test_what_all_ranks_dropped_comes_back(self):
        x = weft.empty(5000)
        where = address(x)
        del x
        y = weft.empty(5000)
        self.assertEqual(address(y), where)
        z = weft.empty(5000)
        self.assertNotEqual(address(z), where)

    def test_what_one_rank_keeps_stays(self):
        x = weft.empty(5000)
        where, kept = address(x), None
        x[:] = 3
        if self.rank == self.size - 1:
            kept = x[10:20]  # any view of it
        del x
        y = weft.empty(5000)
        self.assertNotEqual(address(y), where)
        if kept is not None:
            self.assertTrue((kept == 3).all())
        del kept
        z = weft.empty(5000)
        self.assertEqual(address(z), where)
        self.assertNotEqual(address(y), where)

    def test_memory_does_not_grow(self):
        places = set()
        for i in range(100):
            x, y = weft.empty(3000 + i), weft.empty(77)
            if i % 3 == self.rank:
                x = None
            places.update(address(a) for a in (x, y) if a is not None)
            x = y = None
        self.assertLess(len(places), 12)

    def test_arrays_in_flight(self):
        """A Work has its array until it is done, whoever drops it."""
        for n in (10, 300000):
            x = weft.empty(n)
            x[:] = self.rank + 1
            where, work = address(x), weft.all_reduce_(x, async_op=True)
            del x
            y = weft.empty(n)
            y[:] = 9
            x = work.wait()
            self.assertEqual(address(x), where)
            self.assertTrue((x == sum(range(self.size + 1))).all() and (y == 9).all())

    def test_random_lives(self):
        """Ranks drop arrays at different times; what they hold keeps its contents."""
        shared = self.random()
        own = np.random.default_rng(self.rank)
        held = {}
        for step in range(150):
            n = int(shared.integers(1, 4000))
            x = weft.empty(n, "int32")
            self.assertFalse(x.any())
            for other in held.values():
                self.assertFalse(np.shares_memory(x, other))
            x[:] = step
            held[step] = x
            for key in [key for key in held if own.random() < 0.3]:
                self.assertTrue((held.pop(key) == key).all())
            if step % 10 == 0:
                held = {key: held[key] for key in held if key > step - 20}
        for key, x in held.items():
            self.assertTrue((x == key).all())

    def test_sessions_that_end_at_other_times(self):
        """The garbage collector comes when it likes on each rank; what is allocated next does not mind."""
        plan = weft.compile(str(ranks.SOURCE / "tests" / "data" / "torch_mlp.onnx"), world=self.size, batch=4)
        sessions = [weft.Session(plan) for _ in range(3)]
        for i in range(3):
            del sessions[(i + self.rank) % len(sessions)]
            gc.collect()
            x = weft.empty(4000)
            x[:] = self.rank
            weft.all_reduce_(x)
            self.assertTrue((x == sum(range(self.size))).all())
            sessions[:0] = [weft.Session(plan)] if i == 0 else []

    def test_bfloat16(self):
        """numpy has it with ml_dtypes only."""
        try:
            import ml_dtypes
        except ImportError:
            with self.raises_within(TypeError, "bfloat16 requires the package ml_dtypes"):
                weft.empty(3, "bfloat16")
            return
        self.assertEqual(weft.empty(3, "bfloat16").dtype, ml_dtypes.bfloat16)

    def test_names(self):
        with self.raises_within(TypeError, "shape"):
            weft.empty()
        with self.raises_within(TypeError, "shape must be an integer or a sequence"):
            weft.empty(("a",))
        with self.raises_within(ValueError, "negative dimension -3"):
            weft.empty((2, -3))
        with self.raises_within(ValueError, "too large for the address space"):
            weft.empty((1 << 40, 1 << 40))
        with self.raises_within(ValueError, "too many dimensions: 9"):
            weft.empty((1,) * 9)
        with self.raises_within(ValueError, "too many dimensions: 1152921504606846976"):
            weft.empty(range(1 << 60))
        with self.raises_within((OverflowError, ValueError)):
            weft.empty(1 << 70)

    def test_more_than_there_is(self):
        with self.raises_within(MemoryError, ""):
            weft.empty(1 << 58, "uint8")
        self.assertEqual(weft.all_reduce(np.ones(3)).tolist(), [float(self.size)] * 3)
        self.assertEqual(weft.empty(3).tolist(), [0.0] * 3)

    def test_buffer(self):
        """The object below an array shows its memory, too."""
        x = weft.empty((2, 3), "int16")
        memory = x.base.obj
        self.assertEqual(type(memory).__name__, "Memory")
        view = memoryview(memory)
        self.assertEqual((view.format, view.shape, view.strides, view.readonly), ("h", (2, 3), (6, 2), False))
        view[1, 2] = 5
        self.assertEqual(x[1, 2], 5)
        with self.assertRaises(TypeError):
            type(memory)()

    @torch_only
    def test_tensors(self):
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
            x = weft.empty((2, 3), dtype)
            self.assertEqual((type(x), x.dtype, tuple(x.shape)), (torch.Tensor, dtype, (2, 3)))
            self.assertFalse(x.any())
        self.assertEqual(tuple(weft.empty((0, 2), torch.float32).shape), (0, 2))
        self.assertEqual(tuple(weft.empty((), torch.float32).shape), ())
        x = weft.empty(100, torch.float32)
        where = x.data_ptr()
        x[:] = self.rank
        weft.all_reduce_(x)
        self.assertEqual(x.tolist(), [float(sum(range(self.size)))] * 100)
        part = x[5:]
        del x
        self.assertNotEqual(weft.empty(100, torch.float32).data_ptr(), where)
        del part
        gc.collect()
        weft.barrier()
        self.assertEqual(weft.empty(100, torch.float32).data_ptr(), where)

    @torch_only
    def test_from_numpy(self):
        x = torch.from_numpy(weft.empty(10))
        weft.all_reduce_(x + 1)
        weft.all_reduce_(x)
        self.assertEqual(x.tolist(), [0.0] * 10)


class Register(ranks.RankCase):
    """weft.register and weft.unregister."""
    RANKS = (1, 3)

    def test_contents_and_address_stay(self):
        for n in (1, 1000, 100003):
            x = np.arange(n, dtype="f")
            where = address(x)
            self.assertIsNone(weft.register(x))
            np.testing.assert_array_equal(x, np.arange(n, dtype="f"))
            weft.all_reduce_(x)
            np.testing.assert_array_equal(x, np.arange(n, dtype="f") * self.size)
            weft.all_reduce_(x[n // 3:])
            self.assertIsNone(weft.unregister(x))
            self.assertEqual(address(x), where)
            np.testing.assert_array_equal(x[:n // 3], np.arange(n, dtype="f")[:n // 3] * self.size)
            np.testing.assert_array_equal(x[n // 3:], np.arange(n, dtype="f")[n // 3:] * self.size ** 2)
            weft.all_reduce_(x)

    def test_sizes_may_differ(self):
        x = np.ones(5000 * (1 + self.rank), "f")
        weft.register(x)
        weft.all_reduce_(x[:5000])
        self.assertEqual(float(x[:5000].sum()), 5000.0 * self.size)
        weft.unregister(x)

    def test_it_is_kept(self):
        x = np.ones(50000)
        before = sys.getrefcount(x)
        weft.register(x)
        self.assertGreater(sys.getrefcount(x), before)
        weft.unregister(x)
        self.assertEqual(sys.getrefcount(x), before)

    def test_other_memory(self):
        x = bytearray(100000)
        weft.register(x)
        with self.assertRaises(BufferError):
            x.append(1)
        x[99999] = 1
        weft.all_reduce_(x)
        self.assertEqual(x[99999], self.size)
        weft.unregister(memoryview(x))  # the address counts
        x.append(1)

    def test_several(self):
        arrays = [np.full(9000, i, "f") for i in range(5)]
        for x in arrays:
            weft.register(x)
        for i in (3, 0, 4, 1, 2):
            weft.all_reduce_(arrays[i])
            weft.unregister(arrays[i])
            self.assertTrue((arrays[i] == i * self.size).all())

    def test_each_rank_in_its_own_order(self):
        arrays = [np.full(9000, i, "f") for i in range(4)]
        for x in arrays:
            weft.register(x)
        for i in range(4):
            x = arrays[(i + self.rank) % 4]
            weft.unregister(x)
            for y in arrays:
                weft.all_reduce_(y)
            weft.register(np.zeros(100 + 5000 * i))
        for i, x in enumerate(arrays):
            self.assertTrue((x == i * self.size ** 4).all())

    def test_twice(self):
        x = np.zeros(5000)
        weft.register(x)
        with self.raises_within(weft.WeftArgumentError, "already registered"):
            weft.register(x)
        weft.unregister(x)
        with self.raises_within(ValueError, "array is not registered"):
            weft.unregister(x)

    def test_what_is_refused(self):
        with self.raises_within(weft.WeftArgumentError, "bytes"):
            weft.register(np.zeros(0))
        with self.raises_within(ValueError, "array is a numpy array whose memory is not contiguous"):
            weft.register(np.zeros((4, 4))[:, 1])
        with self.raises_within(TypeError, "array must have memory"):
            weft.register([1, 2])
        with self.raises_within(ValueError, "read-only"):
            weft.register(b"123")

    @torch_only
    def test_tensors(self):
        x = torch.ones(30000)
        where = x.data_ptr()
        weft.register(x)
        weft.all_reduce_(x)
        self.assertEqual((x.data_ptr(), float(x[29999])), (where, self.size))
        old = x.view(-1)
        x.data = torch.zeros(1)  # its memory stays with old
        weft.all_reduce_(old)
        self.assertEqual(float(old[29999]), self.size ** 2)
        weft.unregister(old)
        self.assertEqual(float(old[29999]), self.size ** 2)


class Contexts(ranks.RankCase):
    """Memory belongs to a context, and may outlive it."""
    INIT = False

    def world(self, name):
        return weft.Context(self.rank, self.size, f"unix:{self.dir}/{name}")

    def test_of_another_context(self):
        with self.world("a") as a, self.world("b") as b:
            x, y = weft.empty(100, context=a), weft.zeros(100, "float64", b.world)
            x[:], y[:] = self.rank, self.rank + 1
            self.assertEqual(weft.all_reduce(x, group=a.world)[7], 1)
            self.assertEqual(weft.all_reduce(y, group=b.world)[7], 3)
            self.assertEqual(weft.all_reduce(y, group=a.world)[7], 3)  # through staging
            z = np.ones(5000)
            weft.register(z, a)
            weft.all_reduce_(z, group=a.world)
            self.assertEqual(z[-1], 2)
            with self.raises_within(ValueError, "not registered"):
                weft.unregister(z, b)
            weft.unregister(z, context=a)

    def test_without_a_world(self):
        for call in (lambda: weft.empty(3), lambda: weft.register(np.zeros(3)), lambda: weft.unregister(np.zeros(3))):
            with self.raises_within(weft.WeftStateError, "weft.init"):
                call()
        with self.raises_within(TypeError, "context"):
            weft.empty(3, context=5)

    def test_closed(self):
        a = self.world("a")
        a.close()
        for call in (lambda: weft.empty(3, context=a), lambda: weft.register(np.zeros(3), a)):
            with self.raises_within(weft.WeftStateError, "closed"):
                call()

    def test_arrays_outlive_their_context(self):
        for order in range(2):
            a = self.world(f"a{order}")
            x, y, z = weft.empty(100000, context=a), weft.empty(10, context=a), np.arange(50000)
            weft.register(z, a)
            x[:], y[:] = 5, 6
            weft.barrier(a.world)
            a.close()
            np.testing.assert_array_equal(z, np.arange(50000))
            z += 1
            self.assertTrue((x == 5).all() and (y == 6).all())
            x += 1
            if order == 0:
                del x
                self.assertTrue((y == 6).all())
                del y, a
            else:
                del a, y
                self.assertTrue((x == 6).all())
                del x
            gc.collect()
        self.assertEqual(z[-1], 50000)

    def test_init_again_while_an_array_lives(self):
        weft.init(self.rank, self.size, f"unix:{self.dir}/1")
        x = weft.empty(3000)
        x[:] = self.rank + 1
        weft.finalize()
        weft.init(self.rank, self.size, f"unix:{self.dir}/2")
        self.assertEqual(weft.all_reduce(x)[2999], 3)
        y = weft.empty(3000)
        self.assertFalse(np.shares_memory(x, y))
        self.assertTrue((x == self.rank + 1).all())
        weft.finalize()
        del x, y

    def test_one_rank_leaves_first(self):
        """Its arrays stay whatever the others do, and theirs."""
        a = self.world("a")
        x = weft.empty(40000, context=a)
        x[:] = self.rank
        weft.barrier(a.world)
        if self.rank == 0:
            a.close()
            del a
        self.meet()
        self.assertTrue((x == self.rank).all())
        x[:] = 2
        self.meet()
        self.assertTrue((x == 2).all())

    def test_an_array_does_not_keep_its_rank_in_the_world(self):
        a = self.world("a")
        x = weft.empty(5000, context=a)
        x[:] = 4
        weft.barrier(a.world)
        if self.rank == 0:
            a.close()
        else:
            with self.raises_within(weft.WeftPeerDiedError, "rank 0 left the world"):
                weft.barrier(a.world)
            a.close()
        self.meet()
        self.assertTrue((x == 4).all())

    def test_pages_of_a_world_that_was_left(self):
        """They go back to the system when their array does."""
        def shared():
            with open("/proc/self/smaps_rollup", encoding="ascii") as lines:
                return sum(int(line.split()[1]) for line in lines if line.startswith("Pss_Shmem"))
        a = self.world("a")
        x, y = weft.empty(1 << 22, context=a), weft.empty(1 << 22, context=a)
        x[:] = y[:] = 1
        a.close()
        self.meet()  # nobody else has them any more
        before = shared()
        del x
        self.assertLess(shared(), before - 12000)
        self.assertTrue((y == 1).all())

    @ranks.fresh
    def test_the_end_of_the_program(self):
        """Arrays that are alive then do no harm."""
        weft.init()
        Contexts.left = [weft.empty(1000), np.zeros(9000)]
        weft.register(Contexts.left[1])

    @ranks.fresh
    def test_a_forked_child_leaves_memory_alone(self):
        weft.init(self.rank, self.size, f"unix:{self.dir}/a")
        x = weft.empty(1000)
        x[:] = 1
        child = os.fork()
        if child == 0:
            del x
            gc.collect()
            try:
                weft.empty(1000)
            except weft.WeftStateError:
                os._exit(3)
            os._exit(4)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 3)
        weft.all_reduce_(x)
        self.assertTrue((x == 2).all())
        weft.finalize()


class Threads(ranks.RankCase):
    """Other threads go on meanwhile."""

    def test_arrays_end_on_other_threads(self):
        for _ in range(20):
            held = [weft.empty(2000) for _ in range(4)]
            where = {address(x) for x in held}
            threads = [threading.Thread(target=held.pop) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            del threads, thread
            weft.barrier()
            again = [weft.empty(2000) for _ in range(4)]
            self.assertEqual({address(x) for x in again}, where)

    def test_a_rank_that_comes_late_is_waited_for_without_the_gil(self):
        steps = []
        other = threading.Thread(target=lambda: [steps.append(i) for i in range(1000)])
        if self.rank == 0:
            other.start()
            x = weft.empty(100)
            other.join()
        else:
            self.assertEqual(os.getpid(), os.getpid())
            x = weft.empty(100)
        self.assertEqual(x.sum(), 0)
        self.assertEqual(len(steps), 1000 if self.rank == 0 else 0)


class End(unittest.TestCase):
    """The end of the program."""

    def test_it_uses_an_array(self):
        """Also after Weft has left the world: what was registered first is called last."""
        done = ranks.run_script("import atexit, sys\n"
                                "def last():\n"
                                "    x[:] += 1\n"
                                "    sys.stdout.write(f'sum {int(x.sum())}\\n')\n"
                                "atexit.register(last)\n"
                                "import weft\n"
                                "weft.init()\n"
                                "x = weft.empty(5000)\n"
                                "weft.all_reduce_(x)\n")
        self.assertEqual((done.returncode, done.stdout.count("sum 5000")), (0, 2), done.stdout + done.stderr)


if __name__ == "__main__":
    ranks.main()
