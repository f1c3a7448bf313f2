#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Arguments whose methods take away what a call works with, and threads that do: an exception, never a crash."""
import contextlib
import copy
import ctypes
import gc
import os
import pathlib
import pickle
import signal
import sys
import threading
import unittest

import ranks

np = ranks.need("numpy")
ranks.need("onnx")
sys.path.insert(0, str(ranks.SOURCE / "tests" / "tools"))
import door_models as doors  # noqa: E402
import weft  # noqa: E402

EXPECTED = (TypeError, ValueError, OverflowError, weft.WeftError)


class Act:
    """Whatever it is asked for, it does something first."""

    def __init__(self, act, value=0):
        self.act, self.value = act, value

    def answer(self, *args, **keywords):
        self.act()
        gc.collect()
        return self.value

    __index__ = __float__ = __fspath__ = __iter__ = __dlpack_device__ = __dlpack__ = answer

    def __bool__(self):
        return bool(self.answer())

    def __len__(self):
        return len(self.answer())

    def __getitem__(self, index):
        return self.value[index]


def ones(count=4):
    return np.ones(count, "float32")


class Reentry(ranks.RankCase):
    """An argument ends the world, or the object, in the middle of the call that it was given to."""
    RANKS = 1
    INIT = False

    def attempt(self, call):
        """call(argument that ends the world): it raises or returns; afterwards all is well."""
        weft.init()
        try:
            call(lambda value=0: Act(weft.finalize, value))
        except EXPECTED:
            pass
        weft.finalize()
        gc.collect()
        with weft.Context(0, 1) as context:
            self.assertEqual(weft.all_reduce(ones(), group=context).sum(), 4)

    def test_flags(self):
        for flag in (True, False):
            for name, array in (("all_reduce_", ones()), ("all_gather", ones()), ("reduce_scatter", ones())):
                with self.subTest(name):
                    self.attempt(lambda ends: getattr(weft, name)(array, async_op=ends(flag)))
        self.attempt(lambda ends: weft.barrier(async_op=ends()))
        self.attempt(lambda ends: weft.reduce_scatter(ones(), pad=ends()))
        self.attempt(lambda ends: weft.batch(async_op=ends()))
        self.attempt(lambda ends: weft.Stream(ends()))

    def test_numbers(self):
        for name in ("broadcast", "reduce", "gather", "scatter", "send", "recv"):
            self.attempt(lambda ends: getattr(weft, name)(ones(), ends()))
        self.attempt(lambda ends: weft.all_to_all(ones(), send_counts=[ends(4)], recv_counts=[4]))
        self.attempt(lambda ends: weft.all_to_all(ones(), send_counts=[ends(4)]))
        self.attempt(lambda ends: weft.empty(ends(4)))
        self.attempt(lambda ends: weft.empty((4, ends(4))))

    def test_groups(self):
        self.attempt(lambda ends: weft.new_group([ends()]))
        self.attempt(lambda ends: weft.new_group(ends([0])))
        self.attempt(lambda ends: weft.new_group([0]).split(ends()))
        self.attempt(lambda ends: weft.new_group([0]).split(0, key=ends()))
        self.attempt(lambda ends: weft.new_group([0]).set_order("blocks", [ends(1)]))

    def test_texts(self):
        class Silent(str):
            def encode(self, *_):
                return None

        with weft.Context(0, 1) as context, self.assertRaisesRegex(ValueError, "nowhere"):
            context.world.set_algorithm("all_reduce", Silent("nowhere"))

    def test_contexts(self):
        context = weft.Context(0, 1)
        with self.assertRaises(weft.WeftStateError):
            context.peer(Act(context.close))
        self.assertTrue(context.closed)

    def test_memory(self):
        class Exported:
            def __init__(self, ends):
                self.ends, self.array = ends, ones()

            def __dlpack_device__(self):
                return self.array.__dlpack_device__()

            def __dlpack__(self, **_):
                self.ends().answer()
                return self.array.__dlpack__()
        for function in (weft.register, weft.unregister, weft.all_reduce_, weft.all_gather):
            self.attempt(lambda ends: function(Exported(ends)))
        self.attempt(lambda ends: weft.all_reduce(ones(), out=Exported(ends)))

    def test_sessions(self):
        path = os.fspath(self.dir / "plan")
        weft.compile(doors.forward(), batch=4, world=1).save(path)
        self.attempt(lambda ends: weft.Session(ends(path)))

    def test_shapes_that_grow(self):
        """A dict that gets more entries while it is read."""
        shape = {}

        def grow():
            for i in range(1000):
                shape[f"more{len(shape)}"] = (1,)
        shape["x"] = (Act(grow, 1), 2)
        shape["y"] = (Act(grow, 1), 2)
        with self.assertRaises(EXPECTED + (RuntimeError,)):
            weft.compile(__file__, shape=shape, world=1)

    def test_view_of_a_subclass(self):
        """Its memory is what view() returns, which nobody else keeps."""
        class Brain(np.ndarray):
            @property
            def dtype(self):
                return "bfloat16"

            def view(self, *args):
                return np.zeros(1 << 16, "uint16")

        class Wider(Brain):
            def view(self, *args):
                return np.zeros(1 << 16, "uint8")
        weft.init()
        strange = np.zeros(1 << 16, "M8[s]")  # which has no buffer
        x = strange.view(Brain)
        weft.all_reduce_(x, async_op=True).wait()
        self.assertIs(weft.all_reduce_(x), x)
        with self.assertRaises(EXPECTED):
            weft.all_reduce_(strange.view(Wider))
        weft.finalize()


class Batches(ranks.RankCase):
    RANKS = 1

    def test_ends_of_another(self):
        """A batch is ended by the one that began it."""
        one, other = weft.batch(), weft.batch()
        one.__enter__()
        with self.assertRaises(weft.WeftStateError):
            other.__exit__(None, None, None)
        one.__exit__(None, None, None)
        with self.assertRaises(weft.WeftStateError):
            one.__exit__(None, None, None)
        with other:
            x = weft.all_reduce(ones())
            del one
            gc.collect()
        self.assertEqual(x.sum(), 4)
        weft.barrier()

    def test_cannot_begin(self):
        """What was noted for a stream that will not have it is forgotten."""
        with weft.Context(0, 1) as context:
            stream = weft.Stream(context=context)
            with self.assertRaisesRegex(ValueError, "different contexts"), weft.batch(stream=stream):
                weft.all_reduce_(ones())
        gc.collect()
        x = ones()
        weft.all_reduce_(x)
        with weft.batch():
            weft.all_reduce_(x)
        self.assertEqual(x.sum(), 4)

    def test_dropped(self):
        one = weft.batch()
        one.__enter__()
        weft.all_reduce_(ones())
        del one
        gc.collect()
        weft.barrier()


class Closing(ranks.RankCase):
    """Another thread leaves the world while a call of this one waits for the others."""
    RANKS = 2
    INIT = False

    def race(self, call):
        context = weft.init(self.rank, self.size, f"unix:{self.dir}/r")
        told = []
        gone = pathlib.Path(self.dir, "gone")

        def wait():
            try:
                told.append(call())
            except weft.WeftError as error:
                told.append(error)
        if self.rank == 0:
            thread = threading.Thread(target=wait)
            self.meet()
            thread.start()

            def tell():  # weft.finalize waits for the call's end
                while weft.is_initialized():
                    pass
                gone.touch()
            teller = threading.Thread(target=tell)
            while thread.is_alive() and not self.waits(thread):
                pass
            teller.start()
            weft.finalize()
            teller.join()
            thread.join()
        else:
            self.meet()
            while not gone.exists():
                pass
            wait()
            weft.finalize()
        del context
        gc.collect()
        self.assertEqual(len(told), 1)
        self.meet()
        return told[0]

    def waits(self, thread):
        """Whether thread is in a call of the library: it sleeps, or spins without Python's lock."""
        frame = sys._current_frames().get(thread.ident)
        return frame is not None and frame.f_code.co_name in ("<lambda>", "empty", "register")

    def test_register(self):
        x = np.zeros(1 << 14, "float32")
        self.race(lambda: weft.register(x))

    def test_empty(self):
        self.race(lambda: weft.empty(1 << 14))

    def test_all_gather(self):
        self.race(lambda: weft.all_gather(ones()))

    def test_new_group(self):
        self.race(lambda: weft.new_group([0, 1]))


class Forks(ranks.RankCase):
    def test_memory_of_the_parent(self):
        """A forked child has none of what was registered: it is told so."""
        x = np.zeros(1 << 12, "float32")
        weft.register(x)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                weft.unregister(x)
            except weft.WeftStateError:
                code = 0
            finally:
                os._exit(code)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        weft.unregister(x)
        weft.barrier()


class Threads(ranks.RankCase):
    RANKS = 1

    def test_batches_and_calls(self):
        """One thread's calls are not noted in another one's batch: they are made, or refused."""
        ended, told = threading.Event(), []

        def batches():
            while not ended.is_set():
                try:
                    with weft.batch():
                        weft.all_reduce_(ones(1 << 12))
                except weft.WeftStateError:
                    pass
        thread = threading.Thread(target=batches)
        thread.start()
        out = np.zeros(1 << 12, "float32")
        for _ in range(3000):
            out[:] = 0
            try:
                weft.all_reduce(ones(1 << 12), out=out)
            except weft.WeftStateError as error:
                told.append(str(error))
                continue
            if out[0] != 1 or out[-1] != 1:
                told.append("not made")
                break
        ended.set()
        thread.join()
        self.assertNotIn("not made", told)
        weft.barrier()


class Disagreement(ranks.RankCase):
    def test_no_shape(self):
        """Another rank's data, as long as a shape, is not taken for one."""
        group, junk = weft.new_group(range(self.size)), np.full(9, 0x7fffffff, "uint64")
        if self.rank == 0:
            with contextlib.suppress(weft.WeftMismatchError):  # or its part is done before
                weft.broadcast(junk, 0, group)
        else:
            with self.raises_within(weft.WeftMismatchError, r"9 x u64 \(.*shapes ahead of the data\)"):
                weft.scatter(None, 0, group)
        weft.barrier()

    def test_rows_beyond_numbers(self):
        """More rows than an int64 counts, of no elements."""
        many = np.empty((2**62, 0), "int8")
        for call in (lambda: weft.all_gather(many, async_op=True), lambda: weft.gather(many),
                     lambda: weft.reduce_scatter(np.empty((2**63 - 1, 0), "int8"), pad=True)):
            with self.assertRaises(EXPECTED) if self.rank == 0 else contextlib.suppress(EXPECTED):
                call()  # rank 1 has nothing to refuse in a gather to rank 0
        weft.barrier()


class Signals(ranks.RankCase):
    """A signal handler leaves the world inside a wait: it returns, and the wait goes on."""

    def leave_inside(self, call):
        def handler():
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.meet()
            weft.finalize()
            told.append(weft.is_initialized())
        told = []
        if self.rank == 0:
            signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        else:
            self.meet()
        self.assertEqual(self.call_with_handler(signal.SIGALRM, handler, call).sum(), 8)
        self.assertEqual(told, [] if self.rank else [False])

    @ranks.fresh
    def test_work(self):
        self.leave_inside(lambda: weft.all_reduce(ones(), async_op=True).wait())

    @ranks.fresh
    def test_call(self):
        x = ones()
        weft.register(x)  # which the call goes on with
        self.leave_inside(lambda: weft.all_reduce_(x))

    @ranks.fresh
    def test_stream(self):
        def call():
            stream = weft.Stream()
            x = weft.all_reduce(ones(), stream=stream)
            stream.synchronize()
            return x
        self.leave_inside(call)


class Programs(unittest.TestCase):
    def test_handler_ends_the_program(self):
        for wait in ("weft.barrier()", "weft.barrier(async_op=True).wait()"):
            with self.subTest(wait):
                done = ranks.run_script(HANDLER_ENDS.replace("WAIT", wait))
                self.assertIn("told", done.stdout, done.stderr)
                self.assertEqual(done.returncode, 3, done.stderr)


HANDLER_ENDS = """
import signal, sys, time
import weft
weft.init()
other = weft.new_group([0, 1])
def handler(*_):
    weft.finalize()
    sys.exit(3)
signal.signal(signal.SIGALRM, handler)
if weft.get_rank() == 0:
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    WAIT
else:
    try:
        while True:
            other.check()
            time.sleep(0.01)
    except (weft.WeftAbortedError, weft.WeftPeerDiedError):
        print("told")
"""


class Memory(unittest.TestCase):
    def test_none_left(self):
        """At any place in a call: what is said is that there is no memory, or what the call says."""
        try:
            import _testcapi
        except ImportError:
            self.skipTest("no _testcapi")
        x = ones()
        with weft.Context(0, 1) as context:
            stream = weft.Stream(context=context)
            for call in (lambda: weft.all_reduce(x, group=context), lambda: weft.all_reduce_(x, group=context),
                         lambda: weft.all_reduce_(x, group=context, async_op=True).wait(),
                         lambda: weft.all_gather(bytes(8), context), lambda: weft.empty(4, context=context),
                         lambda: stream.wait_event(stream.record_event()), lambda: weft.new_group([0], context)):
                call()
                for i in range(40):
                    _testcapi.set_nomemory(i, i + 1)
                    try:
                        call()
                    except (MemoryError, weft.WeftError):
                        pass
                    except ctypes.ArgumentError as error:  # how ctypes passes it on
                        self.assertIn("MemoryError", str(error))
                    finally:
                        _testcapi.remove_mem_hooks()
            weft.barrier(context)


class Copies(unittest.TestCase):
    def test_cannot_be_copied(self):
        with weft.Context(0, 1) as context:
            stream = weft.Stream(context=context)
            things = (context, context.world, stream, weft.Event(context), weft.batch(context),
                      weft.all_reduce(ones(), group=context, async_op=True))
            for thing in things:
                for how in (pickle.dumps, copy.copy, copy.deepcopy):
                    with self.assertRaisesRegex(TypeError, "pickle"):
                        how(thing)

    def test_no_subclasses(self):
        for name in ("Context", "Group", "Stream", "Event", "Work", "Plan", "Session", "batch"):
            with self.assertRaises(TypeError):
                type("Sub", (getattr(weft, name),), {})

    def test_not_made_by_hand(self):
        for name in ("Group", "Work", "Plan"):
            with self.assertRaises(TypeError):
                object.__new__(getattr(weft, name)).save("nowhere")  # a Plan, which is of Python, is none then
            with self.assertRaises(TypeError):
                getattr(weft, name)()
        for make in (lambda: object.__new__(weft.Context), lambda: weft.Context.shrink(None),
                     lambda: weft.Context.grow(None, 2, "file:///nowhere")):  # which would wait for rank 1
            with self.assertRaises(TypeError):
                make()

    def test_ends_once(self):
        plan = weft.compile(doors.forward(), batch=4, world=1)
        plan.__del__()
        with self.assertRaises(TypeError):
            plan.info


if __name__ == "__main__":
    ranks.main()
