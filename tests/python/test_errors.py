#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Wrong calls: what is wrong is said, on every rank that it concerns, within a second; what was not broken goes on."""
import unittest

import ranks

np = ranks.need("numpy")
import weft

BAD = (TypeError, ValueError, BufferError)


def ones(*shape, dtype="float32"):
    return np.ones(shape, dtype)


class Local(ranks.RankCase):
    """What is found before anything is sent: every rank's call ends with it, and the next call is as any other."""

    def refused(self, pattern, function, *args, error=BAD, **keywords):
        with self.subTest(function=getattr(function, "__name__", "?"), args=str(args)[:80], keywords=str(keywords)):
            with self.raises_within(error, pattern):
                function(*args, **keywords)

    def tearDown(self):
        if weft.is_initialized():
            np.testing.assert_array_equal(weft.all_reduce(ones(3)), ones(3) * self.size)

    def test_one_rank_tells_the_others(self):
        for wrong in (lambda: weft.all_reduce(ones(4) * 1j), lambda: weft.all_reduce(ones(4), "median"),
                      lambda: weft.broadcast(ones(4), 7), lambda: weft.reduce_scatter(ones(self.size + 1)),
                      lambda: weft.all_gather("text"), lambda: weft.all_to_all(ones(2), send_counts=[-1, 3])):
            if self.rank == 1:
                with self.raises_within(BAD):
                    wrong()
            else:
                with self.raises_within(weft.WeftArgumentError, "^rank 1: "):
                    weft.all_reduce(ones(4))
            np.testing.assert_array_equal(weft.all_reduce(ones(4)), ones(4) * self.size)

    def test_one_rank_tells_the_others_in_a_batch(self):
        for large in (3, 90000):
            if self.rank == 1:
                with self.raises_within(BAD, "out of range"), weft.batch():
                    weft.all_reduce(ones(4))
                    weft.broadcast(ones(large), 7)
            else:
                with self.raises_within(weft.WeftArgumentError, "rank 1: .*out of range"), weft.batch():
                    weft.all_reduce(ones(4))
                    weft.broadcast(ones(large), 0)
            np.testing.assert_array_equal(weft.all_reduce(ones(4)), ones(4) * self.size)

    def test_shapes_in_a_batch(self):
        world = weft.new_group(range(self.size)).context.world
        for large in (1, 1000):
            group = world.duplicate()
            with self.raises_within(weft.WeftError, rf"of shape \({2 * large}, 8\).*of shape \(8, {2 * large}\)|"
                                                    rf"of shape \(8, {2 * large}\).*of shape \({2 * large}, 8\)"):
                with weft.batch(group):
                    for shape in ((3, 2), (8, 2 * large) if self.rank == 0 else (2 * large, 8)):
                        weft.all_reduce_(ones(*shape), group=group)
            group.destroy()

    def test_refuse(self):
        world = weft.new_group(range(self.size)).context.world
        if self.rank == 0:
            self.assertIsNone(world.refuse("no array at hand"))
            with self.raises_within(TypeError, "message"):
                world.refuse(3)
        else:
            with self.raises_within(weft.WeftArgumentError, "^rank 0: no array at hand$"):
                weft.barrier()

    def test_words(self):
        x = ones(4)
        self.refused("all_reduce.*missing.*tensor", weft.all_reduce, error=TypeError)
        self.refused("all_reduce.*nothing", weft.all_reduce, x, nothing=1, error=TypeError)
        self.refused("all_reduce.*tensor", weft.all_reduce, x, tensor=x, error=TypeError)
        self.refused("all_reduce.*positional", weft.all_reduce, x, "sum", None, x, error=TypeError)
        self.refused("all_reduce_", weft.all_reduce_, x, out=x, error=TypeError)
        self.refused("barrier", weft.barrier, None, 1, error=TypeError)
        self.refused("", weft.get_rank, 1, 2, error=TypeError)
        self.refused("send.*missing.*peer", weft.send, x, error=TypeError)

    def test_reductions(self):
        for function in (weft.all_reduce, weft.all_reduce_, weft.reduce_scatter):
            self.refused("median.*sum", function, ones(2 * self.size), "median", error=ValueError)
            self.refused("op", function, ones(2 * self.size), 5, error=TypeError)
        self.refused("median", weft.reduce, ones(4), 0, "median", error=ValueError)
        self.refused("SUM|sum", weft.all_reduce, ones(4), "", error=ValueError)

    def test_things_without_memory(self):
        functions = (weft.all_reduce, weft.all_reduce_, weft.all_gather, weft.reduce_scatter, weft.broadcast,
                     weft.reduce, weft.gather, weft.all_to_all)
        for function in functions:
            for thing in (None, "text", [1.0, 2.0], 3, object()):
                self.refused(f"tensor.*{type(thing).__name__}|tensor.*None", function, thing, error=TypeError)
            self.refused("not list: numpy.asarray makes one", function, [1.0, 2.0], error=TypeError)
        for thing in (None, [1.0], "text"):
            self.refused("tensor", weft.send, thing, 1 - self.rank, error=TypeError)
            self.refused("tensor", weft.recv, thing, 1 - self.rank, error=TypeError)

    def test_types(self):
        for dtype, name in (("complex64", "complex64"), ("complex128", "complex128"), ("object", "object"),
                            ("S4", "S4"), ("U3", "U3"), ("datetime64[s]", "datetime64"), ("longdouble", "float128"),
                            ([("a", "f4")], "a"), ("timedelta64[s]", "timedelta64")):
            x = np.zeros(2 * self.size, dtype)
            for function in (weft.all_reduce_, weft.all_gather, weft.broadcast):
                self.refused(name, function, x, error=TypeError)
        for dtype in (">f4", ">i8", ">u2"):
            self.refused("byte order|endian", weft.all_reduce, np.zeros(4, dtype), error=BAD)
        for function in (weft.all_reduce, weft.all_reduce_, weft.reduce_scatter, weft.reduce):
            self.refused("bool", function, np.zeros(2 * self.size, "bool"), error=BAD)

    def test_memory_with_gaps(self):
        x = np.zeros((8, 6), "float32")
        shared = np.lib.stride_tricks.as_strided(x, (4, 2), (0, 4))
        self.refused("tensor has elements that share memory", weft.all_reduce_, shared)
        self.refused("out has elements that share memory", weft.all_reduce, ones(4, 2), out=shared)
        self.refused("read-only", weft.all_reduce_, np.broadcast_to(np.float32(1), (4,)))

    def test_read_only_memory(self):
        x = ones(4)
        x.flags.writeable = False
        np.testing.assert_array_equal(weft.all_reduce(x), ones(4) * self.size)
        for thing in (x, b"1234", memoryview(b"1234")):
            self.refused("tensor.*read-only|read-only.*tensor", weft.all_reduce_, thing)
            self.refused("read-only", weft.recv, thing, 1 - self.rank)
        self.refused("out.*read-only|read-only.*out", weft.all_reduce, ones(4), out=x)
        self.refused("read-only", weft.register, x)

    def test_out(self):
        x, n = ones(4, 2), self.size
        self.refused(r"out.*float64.*float32", weft.all_reduce, x, out=ones(4, 2, dtype="float64"))
        self.refused(r"out.*int32.*float32", weft.all_gather, x, out=ones(4 * n, 2, dtype="int32"))
        self.refused(r"out.*\(4, 3\).*\(4, 2\)", weft.all_reduce, x, out=ones(4, 3))
        self.refused(r"out.*\(8,\)|out.*8", weft.all_gather, ones(8), out=ones(8))
        self.refused(r"out.*\(3, 2\)", weft.reduce_scatter, ones(4 * n, 2), out=ones(3, 2))
        self.refused(r"out.*\(5,\)", weft.all_to_all, ones(2 * n), out=ones(5))
        self.refused("out", weft.all_reduce, x, out=[1.0] * 8)
        self.refused("out", weft.reduce, x, self.rank, out=ones(9))

    def test_overlaps(self):
        x = ones(100)
        self.refused("overlap", weft.all_reduce, x[:50], out=x[1:51], error=ValueError)
        self.refused("overlap", weft.all_gather, x[:2], out=x[1:1 + 2 * self.size], error=ValueError)
        self.refused("overlap", weft.reduce_scatter, x[:2 * self.size], out=x[2 * self.size - 1:2 * self.size + 1],
                     error=ValueError)
        self.refused("overlap", weft.all_to_all, x[:2 * self.size], out=x[1:2 * self.size + 1], error=ValueError)

    def test_roots_and_peers(self):
        x = ones(4)
        for bad in (-1, self.size, 1 << 40, -(1 << 70)):
            for function in (weft.broadcast, weft.reduce, weft.gather, weft.scatter):
                self.refused("root", function, x, bad, error=ValueError)
            self.refused("peer", weft.send, x, bad, error=ValueError)
            self.refused("peer", weft.recv, x, bad, error=ValueError)
        for bad in (1.0, "0", [0]):
            self.refused("root", weft.broadcast, x, bad, error=TypeError)
        self.refused("peer|itself", weft.send, x, self.rank, error=ValueError)
        self.refused("peer|itself", weft.recv, x, self.rank, error=ValueError)
        weft.broadcast(x, np.int64(1))
        weft.broadcast(x, True)

    def test_groups(self):
        x = ones(4)
        for bad in (5, "world", [0, 1], x):
            self.refused("group", weft.all_reduce, x, group=bad, error=TypeError)
            self.refused("group", weft.get_rank, bad, error=TypeError)
        for bad, text in (([], "at least one"), ([0, 0], "duplicate rank 0"), ([0] * 1000, "duplicate rank"),
                          ([self.size], f"{self.size} is out of range"), ([-1], "-1 is out of range")):
            self.refused(f"ranks: .*{text}", weft.new_group, bad, error=ValueError)
        for bad in (["0"], [0.0], 3, None):
            self.refused("ranks must be an? (integer|sequence of integers)", weft.new_group, bad, error=TypeError)
        group = weft.new_group(np.arange(self.size))
        self.refused("root", weft.broadcast, x, self.size, group, error=ValueError)
        self.assertEqual(weft.new_group(r for r in [self.rank == 99]) is None, self.rank != 0)

    def test_first_dimensions(self):
        n = self.size
        self.refused(rf"{2 * n + 1}.*{n}", weft.reduce_scatter, ones(2 * n + 1, 3), error=ValueError)
        self.refused("pad", weft.reduce_scatter, ones(2 * n + 1), error=ValueError)
        self.refused(rf"{2 * n + 1}.*{n}", weft.all_to_all, ones(2 * n + 1, 3), error=ValueError)
        self.refused("dimension|scalar", weft.reduce_scatter, np.float32(1) + np.zeros((), "f4"), error=ValueError)
        self.refused("dimension|scalar", weft.all_to_all, np.zeros(()), error=ValueError)
        self.assertEqual(weft.reduce_scatter(ones(2 * n + 1), pad=True).shape, (3,))

    def test_memory(self):
        self.refused("shape|negative", weft.empty, (-1,), error=ValueError)
        self.refused("shape", weft.empty, "text", error=TypeError)
        self.refused("shape", weft.empty, (2.5,), error=TypeError)
        self.refused("complex64|dtype", weft.empty, 4, "complex64", error=BAD)
        self.refused("", weft.empty, (1 << 62, 8), error=(MemoryError, ValueError, OverflowError))
        self.refused("dimension", weft.empty, (1,) * 70, error=ValueError)
        self.refused("register", weft.unregister, ones(5), error=(ValueError, weft.WeftError))
        self.refused("contiguous", weft.register, ones(6, 6)[:, 1])
        self.refused("", weft.register, [1, 2], error=TypeError)
        for name in ("i8", "u8"):  # 8 bits, or 8 bytes?
            self.refused(f"dtype.*'{name}'.*int64", weft.empty, 4, name, error=TypeError)
        self.assertEqual(weft.empty(0).shape, (0,))
        self.assertEqual(weft.empty(2, "u1").dtype, np.uint8)
        with self.raises_within(weft.WeftNoMemoryError, "memory|bytes"):
            weft.empty(1 << 45, "uint8")

    @unittest.skipIf(ranks.SANITIZED, "torch takes long to import under sanitizers; its tensors are tested elsewhere")
    def test_torch(self):
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        x = torch.ones(4, 6)
        self.refused("share memory", weft.all_reduce_, x[:1].expand(4, 6))
        self.refused("complex64", weft.all_reduce, torch.ones(4, dtype=torch.complex64), error=TypeError)
        self.refused("bool", weft.all_reduce, torch.ones(4, dtype=torch.bool))
        self.refused("meta|device|host", weft.all_reduce, torch.ones(4, device="meta"))
        self.refused("sparse|layout|contiguous", weft.all_reduce, torch.eye(3).to_sparse())
        self.refused("quantized|quint8|dtype", weft.all_reduce,
                     torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8))
        self.assertTrue(torch.equal(weft.all_reduce(torch.ones(3)), torch.ones(3) * self.size))


class Disagreement(ranks.RankCase):
    """Ranks that call different things: all of them learn which, and only the group that was used is broken."""
    RANKS = (2, 3)

    def disagree(self, calls, pattern, error=weft.WeftMismatchError, breaks=True):
        """calls: by rank; the last one's is that of all that follow. The pattern is what every rank is told."""
        group = weft.new_group(range(self.size))
        with self.subTest(pattern=pattern):
            with self.raises_within(error, pattern):
                calls[min(self.rank, len(calls) - 1)](group)
                weft.barrier(group)  # where a rank needs nothing of the others: it hears with its next call
            if breaks:
                with self.raises_within(error, pattern):
                    weft.all_reduce(ones(1), group=group)
            else:
                np.testing.assert_array_equal(weft.all_reduce(ones(1), group=group), ones(1) * self.size)
        np.testing.assert_array_equal(weft.all_reduce(ones(1)), ones(1) * self.size)

    def both(self, one, other):
        """The two sides, whichever is named first."""
        return rf"(?s)^(?=.*rank 0.*{one})(?=.*rank [12].*{other})"

    def test_counts(self):
        self.disagree([lambda g: weft.all_reduce(ones(1024), group=g), lambda g: weft.all_reduce(ones(2048), group=g)],
                      r"^rank [12] called all_reduce with 2048 x f32, rank 0 with 1024 x f32$")

    def test_counts_of_all_operators(self):
        n = self.size
        for big in (1, 40000):
            for call in (lambda g, k: weft.all_reduce_(ones(k), group=g),
                         lambda g, k: weft.reduce_scatter(ones(k * n), group=g),
                         lambda g, k: weft.broadcast(ones(k), 0, g),
                         lambda g, k: weft.broadcast(ones(k), 1, g),
                         lambda g, k: weft.reduce(ones(k), 1, group=g),
                         lambda g, k: weft.gather(ones(k), 0, g),
                         lambda g, k: weft.scatter(ones(k * n), 0, g, out=ones(k)),
                         lambda g, k: weft.all_to_all(ones(k * n), g),
                         lambda g, k: weft.all_gather(ones(k), g, out=ones(k * n))):
                self.disagree([lambda g: call(g, 3 * big), lambda g: call(g, 2 * big)],
                              self.both(rf"{3 * big} x f32", rf"{2 * big} x f32"))

    def test_shapes(self):
        """As many elements, of other shapes."""
        for call in (lambda g, *shape: weft.all_reduce(ones(*shape), group=g),
                     lambda g, *shape: weft.all_reduce_(ones(*shape), group=g),
                     lambda g, *shape: weft.broadcast(ones(*shape), 1, g),
                     lambda g, *shape: weft.reduce(ones(*shape), 1, group=g)):
            self.disagree([lambda g: call(g, 1024), lambda g: call(g, 32, 32)],
                          self.both(r"\(1024\)", r"\(32, 32\)"))
            self.disagree([lambda g: call(g, 1024, 8), lambda g: call(g, 8, 1024)],
                          self.both(r"\(1024, 8\)", r"\(8, 1024\)"))

    def test_types(self):
        self.disagree([lambda g: weft.all_reduce(ones(8), group=g),
                       lambda g: weft.all_reduce(ones(8, dtype="int64"), group=g)], self.both("f32", "i64"))

    def test_reductions(self):
        self.disagree([lambda g: weft.all_reduce(ones(8), "sum", g), lambda g: weft.all_reduce(ones(8), "max", g)],
                      self.both("sum", "max"))

    def test_operators(self):
        self.disagree([lambda g: weft.all_reduce(ones(8), group=g), lambda g: weft.barrier(g)],
                      self.both("all_reduce", "barrier"))
        self.disagree([lambda g: weft.all_gather(ones(8), g, out=ones(8 * self.size)),
                       lambda g: weft.reduce_scatter(ones(8 * self.size), group=g)],
                      self.both("all_gather", "reduce_scatter"))
        self.disagree([lambda g: weft.all_gather(ones(8), g), lambda g: weft.all_reduce(ones(8), group=g)],
                      self.both("all_gather", "all_reduce"))

    def test_roots(self):
        for call in (lambda g, root: weft.broadcast(ones(8), root, g),
                     lambda g, root: weft.reduce(ones(8), root, group=g),
                     lambda g, root: weft.gather(ones(8), root, g)):
            self.disagree([lambda g: call(g, 0), lambda g: call(g, 1)], self.both("root 0", "root 1"))

    def test_shapes_of_all_gather(self):
        """The group goes on: shapes are compared before data is sent."""
        gather = lambda *shape, dtype="float32": lambda g: weft.all_gather(ones(*shape, dtype=dtype), g)
        self.disagree([gather(2, 3), gather(2, 4)], self.both(r"\(2, 3\)", r"\(2, 4\)"), breaks=False)
        self.disagree([gather(6), gather(2, 3)], self.both(r"\(6,\)", r"\(2, 3\)"), breaks=False)
        self.disagree([gather(2, dtype="int8"), gather(2)], self.both("int8", "float32"), breaks=False)

    def test_ways_of_all_gather(self):
        self.disagree([lambda g: weft.all_gather(ones(8), g),
                       lambda g: weft.all_gather(ones(8), g, out=ones(8 * self.size))],
                      self.both(r"2 x u64 \(shapes ahead of the data\)", "8 x f32"))
        self.disagree([lambda g: weft.scatter(ones(8 * self.size), 0, g),
                       lambda g: weft.scatter(None, 0, g, out=ones(8))],
                      r"broadcast with \d+ x u64 \(root 0, shapes ahead of the data\)")
        pair = np.ones(2, "u8")  # what the shapes look like
        self.disagree([lambda g: weft.all_gather(pair, g),
                       lambda g: weft.all_gather(pair, g, out=np.ones(2 * self.size, "u8"))],
                      r"2 x u64 \(shapes ahead of the data\)")

    def test_send_and_recv(self):
        def call(group, count, dtype):
            if self.rank == 0:
                weft.send(ones(4), 1, group)
                weft.barrier(group)
            elif self.rank == 1:
                weft.recv(ones(count, dtype=dtype), 0, group)
            else:
                weft.barrier(group)
        self.disagree([lambda g: call(g, 5, "float32")], r"rank 0 .*4 .*f32.*rank 1 .*5 ")
        self.disagree([lambda g: call(g, 4, "float64")], r"rank 0 .*4 .*f32.*rank 1 .*4 .*f64")

    def test_async(self):
        self.disagree([lambda g: weft.all_reduce(ones(8), group=g, async_op=True).wait(),
                       lambda g: weft.all_reduce(ones(9), group=g)], self.both("8 x f32", "9 x f32"))
        group = weft.new_group(range(self.size))
        works = [weft.all_reduce(ones(8), group=group, async_op=True)]
        works += [weft.all_reduce(ones(8 + (self.rank == 0)), group=group, async_op=True)]
        with self.raises_within(weft.WeftMismatchError, self.both("9 x f32", "8 x f32")):
            # the group may be broken before a call is issued, or after
            works += [weft.all_reduce(ones(8), group=group, async_op=True) for _ in range(3)]
            for work in works:
                work.wait()
        with self.raises_within(weft.WeftMismatchError):
            works[-1].wait()

    def test_groups_made_of_different_ranks(self):
        group = weft.new_group(range(self.size))
        with self.raises_within(weft.WeftMismatchError, "rank"):
            weft.new_group([0, 1] if self.rank == 0 else [1, 0], group)
        with self.raises_within(weft.WeftMismatchError, "rank"):
            weft.new_group([0, 1] if self.rank == 0 else [0], weft.new_group(range(self.size)))

    @ranks.fresh
    def test_memory_of_different_sizes(self):
        with self.raises_within(weft.WeftMismatchError, "rank"):
            weft.empty(100000 * (1 + self.rank))

    @ranks.fresh
    def test_the_world(self):
        """Once the world is broken, every call says why."""
        count = 8 if self.rank == 0 else 9
        for call in (lambda: weft.all_reduce(ones(count)), lambda: weft.all_gather(ones(8)), weft.barrier):
            with self.raises_within(weft.WeftMismatchError, self.both("8 x f32", "9 x f32")):
                call()


class Names(unittest.TestCase):
    """What `except` clauses may name."""

    def test_hierarchy(self):
        also = {"Timeout": TimeoutError, "Argument": ValueError, "NoMemory": MemoryError, "System": OSError}
        for name in ("Mismatch", "PeerDied", "Timeout", "Link", "Aborted", "State", "Argument", "Unsupported",
                     "NotFound", "Format", "NoMemory", "System", "Internal"):
            error = getattr(weft, f"Weft{name}Error")
            self.assertTrue(issubclass(error, weft.WeftError), name)
            self.assertTrue(issubclass(error, also.get(name, RuntimeError)), name)
            self.assertTrue(issubclass(error, RuntimeError), name)
            self.assertEqual(error.__module__, "weft")
            self.assertRegex(error.status, "^ERR_[A-Z_]+$")

    def test_before_init(self):
        x = ones(3)
        for call in (lambda: weft.all_reduce(x), lambda: weft.all_reduce_(x), lambda: weft.barrier(), weft.get_rank,
                     weft.get_world_size, lambda: weft.new_group([0]), lambda: weft.empty(3), lambda: weft.register(x),
                     lambda: weft.broadcast(x), lambda: weft.send(x, 0), lambda: weft.Stream()):
            with self.assertRaisesRegex(weft.WeftStateError, "init"):
                call()
        self.assertFalse(weft.is_initialized())
        weft.finalize()


if __name__ == "__main__":
    ranks.main()
