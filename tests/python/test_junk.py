#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Anything as any argument of anything: an exception or a result, never a crash, and nothing is kept."""
import array
import gc
import inspect
import os
import random
import sys

import ranks

np = ranks.need("numpy")
import weft

EXPECTED = (TypeError, ValueError, BufferError, OverflowError, MemoryError, OSError, AttributeError, KeyError,
            weft.WeftError)


class Raising:
    """Whatever is asked of it, it raises."""

    def __getattr__(self, name):
        raise ValueError(f"no {name}")

    def fail(self, *args, **keywords):
        raise ValueError("as always")

    __index__ = __bool__ = __len__ = __iter__ = __getitem__ = __hash__ = __eq__ = __repr__ = __str__ = fail
    __float__ = __int__ = __fspath__ = __dlpack__ = __dlpack_device__ = fail


class Lying:
    """Says that it has memory, and has not."""
    shape, dtype, size, nbytes = (4,), np.dtype("float32"), 4, 16
    __array_interface__ = {"shape": (4,), "typestr": "<f4", "data": (0, False), "version": 3}

    def __init__(self, answer):
        self.answer = answer

    def __dlpack__(self, *args, **keywords):
        return self.answer

    def __dlpack_device__(self):
        return 1, 0

    def data_ptr(self):
        return self.answer


class Index:
    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


def released():
    view = memoryview(bytearray(8))
    view.release()
    return view


def pool():
    """Things that arguments may be."""
    read_only = np.ones(4, "float32")
    read_only.flags.writeable = False
    cycle = []
    cycle.append(cycle)
    return [
        None, True, False, 0, 1, -1, 2, 7, 1 << 31, -(1 << 31), 1 << 40, 1 << 64, -(1 << 70), 0.0, 1.5,
        float("nan"), float("inf"), 1j, "", "sum", "max", "median", "float32", "bfloat16", "bool", "auto", "\0", "a\0b",
        "\udcff", "x" * 5000, b"", b"1234", bytearray(b"12345678"), array.array("f", [1, 2]), array.array("l"),
        memoryview(b"abcd"), memoryview(bytearray(16)).cast("f"), memoryview(bytearray(16))[::2], released(),
        np.ones(4, "float32"), np.ones((2, 3)), np.zeros(()), np.zeros((0, 5), "int8"), np.ones((4, 4))[:, 1],
        np.ones((4, 4)).T[1:], np.zeros(3, ">f4"), np.zeros(3, "complex64"), np.zeros(2, "O"), np.zeros(2, "U3"),
        np.zeros(2, [("a", "f4")]), np.zeros((1,) * 12), read_only, np.float32(3), np.int64(2), np.dtype("float32"),
        np.float16, float, int, bool, complex, object(), [], [1, 2], (), (1,), (4, 4), (1 << 62,), (-1,), (2.5,),
        [0, 0], cycle, {}, {"a": 1}, {1}, frozenset(), range(3), range(1 << 60), iter([1]), (i for i in range(2)),
        print, Raising(), Lying(None), Lying(5), Lying("x"), Lying(object()), Index(0), Index(-5), Index(1 << 80),
        Exception(), sys, type, Ellipsis, NotImplemented]


class Junk(ranks.RankCase):
    RANKS = 1  # where every call that is right is done at once
    TIMEOUT = 600

    # What would end the world of the test, or wait for others on purpose.
    NOT = {"finalize", "init", "Context", "abort", "close"}

    def functions(self):
        """(name, function, how many arguments it may have, names of those)."""
        found = []
        stream, group = weft.Stream(), weft.new_group([0])
        plan = weft.compile(ranks.SOURCE / "tests/data/torch_mlp_batch4.onnx", world=1, batch=4)
        session = weft.Session(plan)
        objects = [weft, stream, stream.record_event(), weft.all_reduce(np.ones(2), async_op=True), group, plan,
                   session,
                   session.params, weft.Stream, weft.Event, weft.Work, weft.Group, weft.Plan, weft.Session]
        for thing in objects:
            for name in dir(thing):
                function = getattr(thing, name)
                if name.startswith("_") or name in self.NOT or not callable(function):
                    continue
                if isinstance(function, type) and issubclass(function, BaseException):
                    continue
                try:
                    names = list(inspect.signature(function).parameters)
                except (TypeError, ValueError):
                    names = ["anything"]
                found.append((name, function, names))
        self.keep = objects
        return found

    def one_call(self, draw, functions, things):
        name, function, names = draw.choice(functions)
        if name in ("empty", "zeros"):  # or it may be right, and takes 8 GiB
            things = [thing for thing in things if type(thing) is not int or thing != 1 << 31]
        args = [draw.choice(things) for _ in range(draw.randrange(len(names) + 2))]
        if args and draw.random() < 0.6:
            args[0] = np.ones(draw.choice((0, 1, 4)), "float32")  # most are refused for it otherwise
        keywords = {draw.choice(names + ["nothing"]): draw.choice(things) for _ in range(draw.randrange(3))} \
            if names else {}
        try:
            function(*args, **keywords)
        except EXPECTED:
            return 0
        except BaseException as error:
            words = [type(x).__name__ for x in args], {key: type(x).__name__ for key, x in keywords.items()}
            raise AssertionError(f"{name}{words}: {type(error).__name__}: {error}") from None
        return 1

    def test_calls(self):
        os.chdir(self.dir)
        draw = random.Random(int(self.random().integers(1 << 31)))
        functions, things = self.functions(), pool()
        fine = sum(self.one_call(draw, functions, things) for _ in range(20000 // ranks.SLOW))
        self.assertGreater(fine, 50)
        np.testing.assert_array_equal(weft.all_reduce(np.ones(5)), np.ones(5))

    def test_nothing_is_kept(self):
        """The same calls again and again take no memory, and no references to their arguments."""
        draw = random.Random(int(self.random().integers(1 << 31)))
        functions, things = self.functions(), pool()
        functions = [f for f in functions if f[0] not in ("new_group", "register", "empty", "zeros", "Stream")]

        def calls(seed):
            again = random.Random(seed)
            for _ in range(300):
                self.one_call(again, functions, things)
            weft.all_reduce(np.ones(1), async_op=True).wait()
            weft.all_reduce(np.ones(1), async_op=True).wait()
            gc.collect()
        seed = draw.randrange(1 << 31)
        for _ in range(3):
            calls(seed)
        references = [sys.getrefcount(thing) for thing in things]
        blocks = sys.getallocatedblocks()
        for _ in range(5):
            calls(seed)
        shared = (None, True, False, NotImplemented, Ellipsis, sys, type, object(), float, int, bool, complex)
        for thing, before in zip(things, references):
            if not any(thing is other for other in shared) and type(thing) is not int:
                now = sys.getrefcount(thing)
                self.assertLess(now - before, 4, f"{type(thing).__name__}: {before} references, now {now}")
        self.assertLess(sys.getallocatedblocks() - blocks, 200)


if __name__ == "__main__":
    ranks.main()
