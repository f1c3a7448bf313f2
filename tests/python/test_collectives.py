#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every operator against an oracle in numpy: types, shapes, roots, groups, in place and into memory of the caller."""
import array
import gc
import sys
import threading

import ranks

np = ranks.need("numpy")
import weft

from oracle import DTYPES, OPS, block, gathered, numbers, padded, reduced, same

SHAPES = ((), (1,), (0,), (7,), (3, 5), (2, 0, 3), (1025,), (1, 1, 1, 2, 1, 1, 1, 3), (300, 257))


class Operators(ranks.RankCase):
    """The same tests in worlds of several sizes."""
    RANKS = (1, 3) if ranks.SANITIZED else (1, 2, 3, 5)

    def parts(self, shape, dtype, *seed):
        """What every rank contributes."""
        return [numbers(shape, dtype, r, *seed) for r in range(self.size)]

    def given(self, shape, dtype, *seed):
        return self.parts(shape, dtype, *seed)[self.rank]

    def test_rank_and_size(self):
        self.assertEqual(weft.get_rank(), self.rank)
        self.assertEqual(weft.get_world_size(), self.size)
        self.assertTrue(weft.is_initialized())
        self.assertIsNone(weft.barrier())

    def test_all_reduce_types(self):
        for i, dtype in enumerate(DTYPES):
            for op in OPS:
                with self.subTest(dtype=dtype, op=op):
                    x = self.given(100, dtype, i)
                    kept = x.copy()
                    same(weft.all_reduce(x, op), reduced(self.parts(100, dtype, i), op))
                    same(x, kept)
                    self.assertIs(weft.all_reduce_(x, op), x)
                    same(x, reduced(self.parts(100, dtype, i), op))

    def test_all_reduce_shapes(self):
        for i, shape in enumerate(SHAPES):
            with self.subTest(shape=shape):
                expected = reduced(self.parts(shape, "float32", i), "sum")
                x = self.given(shape, "float32", i)
                y = weft.all_reduce(x)
                self.assertIs(type(y), np.ndarray)
                same(y, expected)
                out = np.full(shape, 3, "float32")
                self.assertIs(weft.all_reduce(x, out=out), out)
                same(out, expected)
                self.assertIs(weft.all_reduce(x, out=x), x)
                same(x, expected)

    def test_names_of_arguments(self):
        x = self.given(8, "int32", 1)
        expected = reduced(self.parts(8, "int32", 1), "max")
        same(weft.all_reduce(tensor=x, op="max", group=None), expected)
        same(weft.all_reduce(x, group=None, op="max", out=None, async_op=False, stream=None), expected)
        same(weft.all_reduce(x, op=None), reduced(self.parts(8, "int32", 1), "sum"))

    def test_all_gather(self):
        for i, shape in enumerate(((4,), (2, 3), (0, 3), (3, 0), (1,), (700, 31))):
            for dtype in ("float32", "bool", "int16"):
                with self.subTest(shape=shape, dtype=dtype):
                    expected = gathered(self.parts(shape, dtype, i))
                    x = self.given(shape, dtype, i)
                    same(weft.all_gather(x), expected)
                    out = np.zeros(expected.shape, dtype)
                    self.assertIs(weft.all_gather(x, out=out), out)
                    same(out, expected)

    def test_all_gather_of_scalars(self):
        same(weft.all_gather(np.array(self.rank + 0.5)), np.arange(self.size) + 0.5)

    def test_all_gather_of_different_lengths(self):
        for lengths in ([r + 1 for r in range(self.size)], [(r + 1) % 2 * 5 for r in range(self.size)],
                        [0] * self.size, [3000 * r for r in range(self.size)]):
            for tail in ((), (3,), (2, 0)):
                with self.subTest(lengths=lengths, tail=tail):
                    parts = [numbers((n,) + tail, "float32", r, n) for r, n in enumerate(lengths)]
                    same(weft.all_gather(parts[self.rank]), gathered(parts))

    def test_all_gather_in_place(self):
        parts = self.parts((2, 5), "float64", 3)
        whole = np.zeros((2 * self.size, 5))
        mine = whole[2 * self.rank:2 * self.rank + 2]
        mine[...] = parts[self.rank]
        weft.all_gather(mine, out=whole)
        same(whole, gathered(parts))

    def test_reduce_scatter(self):
        for i, rows in enumerate((0, 1, 4, 500)):
            for dtype in ("float32", "float16", "uint8"):
                for op in OPS:
                    with self.subTest(rows=rows, dtype=dtype, op=op):
                        parts = self.parts((rows * self.size, 3), dtype, i)
                        expected = block(reduced(parts, op), self.rank, self.size)
                        same(weft.reduce_scatter(parts[self.rank], op), expected)
                        out = np.zeros_like(expected)
                        self.assertIs(weft.reduce_scatter(parts[self.rank], op, out=out), out)
                        same(out, expected)

    def test_reduce_scatter_padded(self):
        for rows in range(2 * self.size + 1):
            with self.subTest(rows=rows):
                parts = self.parts((rows, 2), "int32", rows)
                expected = block(reduced([padded(part, self.size) for part in parts], "sum"), self.rank, self.size)
                kept = parts[self.rank].copy()
                same(weft.reduce_scatter(parts[self.rank], pad=True), expected)
                same(parts[self.rank], kept)

    def test_padding_is_never_in_the_rows_that_were_given(self):
        rows = self.size + 1
        for op in OPS:
            parts = self.parts((rows,), "float32", 9)
            whole = reduced(parts, op)
            y = weft.reduce_scatter(parts[self.rank], op, pad=True)
            each = -(-rows // self.size)
            mine = whole[each * self.rank:each * (self.rank + 1)]
            same(y[:len(mine)], mine)

    def test_broadcast(self):
        for root in range(self.size):
            for i, shape in enumerate(SHAPES):
                dtype = ("float32", "bool", "int8")[i % 3]
                x = self.given(shape, dtype, i)
                self.assertIs(weft.broadcast(x, root), x)
                same(x, self.parts(shape, dtype, i)[root])
        x = self.given(5, "int64", 1)
        weft.broadcast(x, root=self.size - 1)
        same(x, self.parts(5, "int64", 1)[-1])

    def test_reduce(self):
        for root in range(self.size):
            for op in OPS:
                x = self.given((3, 4), "float32", root)
                kept = x.copy()
                y = weft.reduce(x, root, op)
                if self.rank == root:
                    same(y, reduced(self.parts((3, 4), "float32", root), op))
                else:
                    self.assertIsNone(y)
                same(x, kept)

    def test_gather_and_scatter(self):
        for root in range(self.size):
            for shape in ((2, 3), (0,), (4000,)):
                parts = self.parts(shape, "float32", root)
                y = weft.gather(parts[self.rank], root)
                if self.rank == root:
                    same(y, gathered(parts))
                else:
                    self.assertIsNone(y)
                z = weft.scatter(y, root)
                same(z, parts[self.rank])
                out = np.zeros(shape, "float32")
                self.assertIs(weft.scatter(y, root, out=out), out)
                same(out, parts[self.rank])

    def test_all_to_all(self):
        for i, rows in enumerate((0, 1, 3, 900)):
            parts = self.parts((rows * self.size, 2), "int32", i)
            expected = gathered([block(part, self.rank, self.size) for part in parts])
            same(weft.all_to_all(parts[self.rank]), expected)
            out = np.zeros_like(expected)
            self.assertIs(weft.all_to_all(parts[self.rank], out=out), out)
            same(out, expected)

    def test_tags_and_probe(self):
        """Messages match by tag; probe says what has come."""
        if self.size == 1:
            self.assertIsNone(weft.probe())
            return
        if self.rank == 1:
            for tag in (5, 7, 5):
                weft.send(np.full(tag, self.rank, "int32"), 0, tag=tag)
        elif self.rank == 0:
            seven, work, first = np.empty(7, "int32"), None, np.empty(5, "int32")
            weft.recv(seven, 1, tag=7)
            same(seven, np.ones(7, "int32"))
            self.assertEqual(weft.probe(1, tag=5), (1, 5, 5, "int32"))
            work = weft.recv(first, 1, tag=5, async_op=True)
            self.assertIs(work.wait(), first)
            while weft.probe() is None:
                pass
            self.assertIsNone(weft.probe(tag=7))
            self.assertEqual(weft.probe(), (1, 5, 5, "int32"))
            weft.recv(first, 1, tag=5)
            same(first, np.ones(5, "int32"))
            for wrong in (dict(peer=self.size), dict(tag=-1), dict(tag=2 ** 32 - 1)):
                self.assertRaises(ValueError, weft.probe, **wrong)
            self.assertRaises(weft.WeftError, weft.probe, 0)
        weft.barrier()
        self.assertIsNone(weft.probe())

    def test_send_and_recv(self):
        """Around a ring; the first rank sends before it receives, the others the other way round."""
        if self.size == 1:
            return
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        for i, shape in enumerate(((5,), (0,), (), (100, 300))):
            x = self.given(shape, "float32", i)
            y = np.zeros_like(x)
            for sends in (True, False) if self.rank == 0 else (False, True):
                if sends:
                    self.assertIsNone(weft.send(x, after))
                else:
                    self.assertIs(weft.recv(y, before), y)
            same(y, self.parts(shape, "float32", i)[before])

    def test_other_memory(self):
        """What has the buffer protocol goes in as it is."""
        numbers_of = [float(self.rank + i) for i in range(4)]
        total = [float(sum(range(self.size)) + i * self.size) for i in range(4)]
        for make in (lambda: array.array("f", numbers_of), lambda: memoryview(array.array("d", numbers_of))):
            x = make()
            self.assertIs(weft.all_reduce_(x), x)
            self.assertEqual(list(x), total)
            y = weft.all_reduce(make())
            self.assertEqual([float(v) for v in np.asarray(y)], total)
        data = bytearray(b"rank%d" % self.rank)
        weft.broadcast(data)
        self.assertEqual(data, b"rank0")
        everything = weft.all_gather(b"abc%d" % self.rank)  # read only, and read
        self.assertEqual(bytes(np.asarray(everything)), b"".join(b"abc%d" % r for r in range(self.size)))

    def test_views(self):
        """Contiguous pieces of larger arrays, subclasses, arrays whose memory is not aligned."""
        whole = np.zeros((6, 4), "float32")
        whole[2:4] = self.rank
        weft.all_reduce_(whole[2:4])
        expected = np.zeros((6, 4), "float32")
        expected[2:4] = sum(range(self.size))
        same(whole, expected)

        class Mine(np.ndarray):
            pass
        x = np.full(3, self.rank, "float32").view(Mine)
        self.assertIs(weft.all_reduce_(x), x)
        same(np.asarray(x), np.full(3, sum(range(self.size)), "float32"))
        transposed = np.asfortranarray(np.ones((1, 7), "float32"))  # both orders at once
        same(weft.all_reduce(transposed), np.full((1, 7), self.size, "float32"))

    def test_own_memory(self):
        """weft.empty and zeros, whole and in pieces."""
        x = weft.zeros((300, 100))
        same(np.asarray(x), np.zeros((300, 100), "float32"))
        x[...] = self.rank + 1
        total = sum(range(1, self.size + 1))
        weft.all_reduce_(x)
        self.assertTrue((np.asarray(x) == total).all())
        y = weft.empty((2 * self.size, 3), "int64")
        y[...] = self.rank
        same(np.asarray(weft.reduce_scatter(y)), np.full((2, 3), sum(range(self.size)), "int64"))
        weft.broadcast(y[:1], self.size - 1)
        self.assertTrue((y[0] == self.size - 1).all())
        self.assertTrue((y[1:] == self.rank).all())
        for _ in range(50):
            z = weft.empty(1000, "float64")
            z[:] = 1
            weft.all_reduce_(z)
            self.assertEqual(z[999], self.size)

    def test_adopted_memory(self):
        x = np.full(100000, self.rank, "float32")
        weft.register(x)
        try:
            for _ in range(3):
                x[:] = self.rank
                weft.all_reduce_(x)
                self.assertTrue((x == sum(range(self.size))).all())
        finally:
            weft.unregister(x)
        self.assertTrue((x == sum(range(self.size))).all())

    def test_large(self):
        count = (1 << 20) // ranks.SLOW
        base = np.arange(count) % 1000
        for op, expected in (("sum", base * self.size + sum(range(self.size))), ("max", base + self.size - 1)):
            x = (base + self.rank).astype("float32")
            same(weft.all_reduce(x, op), expected.astype("float32"))
        x = (base + self.rank).astype("float32")
        same(weft.reduce_scatter(x[:count // self.size * self.size]),
             block((base * self.size + sum(range(self.size))).astype("float32"), self.rank, self.size))
        same(weft.all_gather(x), gathered([(base + r).astype("float32") for r in range(self.size)]))

    def test_groups(self):
        world = list(range(self.size))
        for members in (world[::2], world[::-1], world[-1:], world[1:] or world):
            group = weft.new_group(members)
            if self.rank not in members:
                self.assertIsNone(group)
                continue
            me = members.index(self.rank)
            self.assertEqual((weft.get_rank(group), weft.get_world_size(group)), (me, len(members)))
            parts = [numbers(6, "float32", r) for r in members]
            same(weft.all_reduce(parts[me], group=group), reduced(parts, "sum"))
            same(weft.all_gather(parts[me], group), gathered(parts))
            x = parts[me].copy()
            weft.broadcast(x, len(members) - 1, group)  # a root is a rank of the group
            same(x, parts[-1])
            weft.barrier(group)
            inner = weft.new_group([0], group)
            self.assertEqual(inner is None, me != 0)
        weft.barrier()

    def test_groups_come_and_go(self):
        for i in range(40):
            group = weft.new_group(list(range(self.size)))
            x = np.full(5, i, "int32")
            same(weft.all_reduce(x, group=group), x * self.size)
            del group

    def test_more_groups_than_there_can_be(self):
        """All ranks are told, and what they have goes on."""
        if self.size != 3:
            return  # it takes a while, and is the same in all sizes
        held = []
        with self.assertRaisesRegex(weft.WeftNoMemoryError, "groups"):
            while len(held) < 1000:
                held.append(weft.new_group(range(self.size)))
        same(weft.all_reduce(np.ones(2), group=held[-1]), np.full(2, float(self.size)))
        del held
        same(weft.all_reduce(np.ones(2), group=weft.new_group(range(self.size))), np.full(2, float(self.size)))

    def test_ranks_with_arrays_of_different_kinds(self):
        kinds = np.full(3, 1, "float32"), array.array("f", [1] * 3), memoryview(np.full(3, 1, "float32"))
        mine = kinds[self.rank % 3]
        self.assertIs(weft.all_reduce_(mine), mine)
        self.assertEqual(list(mine), [self.size] * 3)
        self.assertEqual(list(np.asarray(weft.all_gather(mine))), [self.size] * 3 * self.size)

    def test_async(self):
        works, arrays = [], []
        for i in range(100):
            x = self.given(1 + i * 7, "float32", i)
            arrays.append(x)
            works.append(weft.all_reduce_(x, async_op=True))
        for i, work in enumerate(works):
            self.assertIs(work.wait(), arrays[i])
            self.assertTrue(work.is_completed())
            same(arrays[i], reduced(self.parts(1 + i * 7, "float32", i), "sum"))
        y = weft.all_gather(arrays[0], async_op=True).wait()
        self.assertEqual(y.shape, (self.size,))

    def test_threads_with_groups_of_their_own(self):
        groups = [weft.new_group(list(range(self.size))) for _ in range(3)]
        problems = []

        def work(index):
            try:
                for i in range(60):
                    x = numbers(50 + i, "float32", self.rank, index, i)
                    expected = reduced([numbers(50 + i, "float32", r, index, i) for r in range(self.size)], "sum")
                    same(weft.all_reduce(x, group=groups[index]), expected)
            except BaseException as error:
                problems.append(error)
        threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(problems, [])

    def test_nothing_is_kept(self):
        """Neither arguments nor results nor their memory stay behind."""
        x = np.ones(64, "float32")
        whole = np.ones(64 * self.size, "float32")
        out = np.ones_like(x)

        def calls():
            weft.all_reduce(x)
            weft.all_reduce_(x)
            weft.all_reduce(x, out=out)
            weft.all_gather(x)
            weft.reduce_scatter(whole)
            weft.reduce_scatter(x[:63], pad=True)
            weft.broadcast(x)
            weft.reduce(x)
            weft.scatter(weft.gather(x))
            weft.all_to_all(whole)
            weft.all_reduce(x, async_op=True).wait()
            weft.all_reduce_(x, async_op=True)
        def settle():
            for _ in range(2):  # what nobody waited for is let go of
                weft.all_reduce(x, async_op=True).wait()
            gc.collect()
        for _ in range(20):
            calls()
        settle()
        before = sys.getrefcount(x), sys.getrefcount(out), sys.getrefcount(whole)
        blocks = sys.getallocatedblocks()
        for _ in range(200):
            calls()
        settle()
        self.assertEqual((sys.getrefcount(x), sys.getrefcount(out), sys.getrefcount(whole)), before)
        self.assertLess(sys.getallocatedblocks() - blocks, 100)


if __name__ == "__main__":
    ranks.main()
