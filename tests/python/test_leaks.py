#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Calls, good and bad, leave nothing behind: the interpreter's blocks, the C heap and objects are counted."""
import array
import contextlib
import ctypes
import gc
import os
import sys

import ranks

np = ranks.need("numpy")
import weft  # noqa: E402

try:
    import torch
except ImportError:
    torch = None

ROUNDS = 60


class _Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks",
                                                     "fsmblks", "uordblks", "fordblks", "keepcost")]


mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = _Mallinfo


def in_use():
    """(the interpreter's small blocks, bytes of the C heap, objects that the collector knows)."""
    gc.collect()
    heap = mallinfo()
    return sys.getallocatedblocks(), heap.uordblks + heap.hblkhd, len(gc.get_objects())


class Leaks(ranks.RankCase):
    TIMEOUT = 600
    ENV = {"WEFT_PROGRESS": "inline"}

    @classmethod
    def set_up_ranks(cls):
        gc.collect()
        gc.freeze()  # what is there now is not looked at again

    def check(self, name, call, rounds=ROUNDS, heap=16):
        """call leaves less than a block, heap bytes and an object behind; five tries, for the interpreter's caches."""
        grown = []
        for _ in range(5):
            for _ in range(rounds):
                call()
            before = in_use()
            for _ in range(rounds):
                call()
            after = in_use()
            grown.append(tuple(a - b for a, b in zip(after, before)))
            blocks, size, objects = grown[-1]
            # All ranks do the same number of rounds: who is content goes on with the others.
            content = blocks < rounds / 2 + 16 and size < heap * rounds + 2048 and objects < rounds / 2 + 2
            if all(self.exchange(content)):
                return
        self.fail(f"{name}: blocks, bytes, objects left by {rounds} calls in five tries: {grown}")

    def check_raises(self, name, error, call, rounds=ROUNDS):
        def quietly():
            with contextlib.suppress(error):
                call()
                raise AssertionError(f"{name} does not raise")
        self.check(name, quietly, rounds)

    def test_operators(self):
        x = np.ones(64, "float32")
        rows = np.ones((4 * self.size, 3), "int64")
        out = np.empty((self.size, 64), "float32")
        root = self.size - 1
        buffer = array.array("d", range(8))
        counts = [2] * self.size
        peer = (self.rank + 1) % self.size
        for name, call in {
            "all_reduce": lambda: weft.all_reduce(x, op="max"),
            "all_reduce out": lambda: weft.all_reduce(tensor=x, out=out[0]),
            "all_reduce_": lambda: weft.all_reduce_(buffer),
            "all_gather": lambda: weft.all_gather(rows),
            "all_gather uneven": lambda: weft.all_gather(rows[:1 + self.rank]),
            "all_gather out": lambda: weft.all_gather(x, out=out),
            "reduce_scatter": lambda: weft.reduce_scatter(rows),
            "reduce_scatter pad": lambda: weft.reduce_scatter(rows[1:], pad=True),
            "broadcast": lambda: weft.broadcast(x, root=root),
            "reduce": lambda: weft.reduce(x, root, "min"),
            "gather": lambda: weft.gather(x, root=root),
            "scatter": lambda: weft.scatter(rows if self.rank == root else None, root=root),
            "all_to_all": lambda: weft.all_to_all(rows),
            "all_to_all counts": lambda: weft.all_to_all(rows[:2 * self.size], send_counts=counts),
            "all_to_all both": lambda: weft.all_to_all(rows[:2 * self.size], send_counts=counts, recv_counts=counts),
            "barrier": weft.barrier,
        }.items():
            self.check(name, call)
        if self.size > 1:
            def ring():
                if self.rank % 2:
                    weft.recv(x, peer)
                    weft.send(x, peer)
                else:
                    weft.send(x, peer)
                    weft.recv(x, peer)
            self.check("send and recv", ring)

    def test_kinds_of_results(self):
        self.check("buffer", lambda: weft.all_reduce(array.array("f", [1, 2])))
        self.check("memoryview", lambda: weft.all_reduce(memoryview(bytearray(8)).cast("i")))
        self.check("scalar", lambda: weft.all_reduce(np.array(2.0)))
        self.check("empty", lambda: weft.all_gather(np.empty((0, 3))))
        self.check("dlpack", lambda: weft.all_reduce_(Exports(np.ones(4))))

    def test_torch(self):
        if torch is None:
            self.skipTest("torch is not installed")
        x = torch.ones(8, 3)
        self.check("all_reduce", lambda: weft.all_reduce(x))
        self.check("all_reduce_", lambda: weft.all_reduce_(x))
        self.check("all_gather", lambda: weft.all_gather(x))
        self.check("broadcast", lambda: weft.broadcast(x))
        self.check_raises("dtype", TypeError, lambda: weft.all_reduce(torch.ones(3, dtype=torch.complex64)))
        self.check("strided", lambda: weft.all_reduce_(x.T))

    def test_asynchronous(self):
        x, y = np.ones(64, "float32"), np.ones(64, "float32")
        stream = weft.Stream()
        event = stream.record_event()

        def on_stream():
            weft.all_reduce_(x, stream=stream)
            stream.record_event(event)
            event.synchronize()
            event.query()
            stream.synchronize()

        def several():
            works = [weft.all_reduce(x, async_op=True), weft.all_gather(y, async_op=True)]
            for work in works:
                work.wait()
            works[0].is_completed(), works[1].result(), works[1].exception()

        def in_a_batch():
            with weft.batch():
                weft.all_reduce_(x)
                weft.all_reduce_(y)

        def dropped():
            weft.all_reduce_(x, async_op=True)
            weft.barrier()

        self.check("async_op", several)
        self.check("dropped", dropped)
        self.check("stream", on_stream)
        self.check("new event", lambda: stream.record_event().synchronize())
        self.check("batch", in_a_batch)
        gaps = np.ones((8, 8), "float32")[:, ::3]
        self.check("strided", lambda: weft.all_reduce_(gaps, async_op=True).wait())
        fuser = weft.Fuser()

        def step():
            fuser.add(x, name="x")
            fuser.wait()
        self.check("fuser", step)
        fuser.destroy()
        self.check("new stream", lambda: weft.Stream().synchronize(), 40, 64)

    def test_errors_of_arguments(self):
        x = np.ones((4, 4), "float32")
        fixed = np.ones(4)
        fixed.flags.writeable = False
        for name, (error, call) in {
            "op": (ValueError, lambda: weft.all_reduce(x, op="median")),
            "dtype": (TypeError, lambda: weft.all_reduce(np.ones(3, complex))),
            "shared": (ValueError, lambda: weft.all_reduce_(np.lib.stride_tricks.as_strided(x, (2, 2), (0, 4)))),
            "object": (TypeError, lambda: weft.all_reduce(object())),
            "read-only": ((ValueError, BufferError, TypeError), lambda: weft.all_reduce_(fixed)),
            "root": (ValueError, lambda: weft.broadcast(x, root=self.size)),
            "keyword": (TypeError, lambda: weft.all_reduce(x, opp="sum")),
            "missing": (TypeError, lambda: weft.all_reduce()),
            "out": (ValueError, lambda: weft.all_reduce(x, out=np.ones(3, "float32"))),
            "out's type": ((ValueError, TypeError), lambda: weft.all_reduce(x, out=np.ones((4, 4)))),
            "group": (TypeError, lambda: weft.all_reduce(x, group=3)),
            "stream": (TypeError, lambda: weft.all_reduce(x, stream=3)),
            "ranks": ((ValueError, TypeError), lambda: weft.new_group([self.size])),
            "twice": (weft.WeftStateError, weft.init),
            "shape": ((ValueError, TypeError), lambda: weft.empty((-1,))),
            "empty's type": ((ValueError, TypeError), lambda: weft.empty(3, "quaternion")),
            "plan": ((weft.WeftError, OSError), lambda: weft.Plan.load("/nowhere/plan.weft")),
            "model": ((weft.WeftError, OSError), lambda: weft.compile("/nowhere/model.onnx", world=1)),
        }.items():
            self.check_raises(name, error, call)

    def test_errors_of_ranks(self):
        if self.size == 1:
            self.skipTest("one rank agrees with itself")
        x = np.ones((4, 3 + self.rank), "float32")
        self.check_raises("all_gather", weft.WeftMismatchError, lambda: weft.all_gather(x))

    def test_memory(self):
        def take():
            weft.empty((100,))
            weft.barrier()
        # What ranks have dropped is given back at the next call.
        self.check("empty", take, 60, 64)
        x = np.ones(1 << 16)

        def adopt():
            weft.register(x)
            weft.all_reduce_(x)
            weft.unregister(x)
        self.check("register", adopt, 30, 64)

    def test_groups(self):
        def make():
            group = weft.new_group(list(range(self.size))[::-1])
            weft.all_reduce_(np.ones(3), group=group)
            group.destroy()
        self.check("new_group", make, 40, 64)
        self.check("properties", lambda: (weft.get_rank(), weft.get_world_size(), repr(weft.Stream)))

    def test_contexts(self):
        turn = [0]

        def join():
            turn[0] += 1
            address = f"unix:@weft-leaks-{os.environ['WEFT_ADDRESS'][6:]}-{turn[0]}"
            with weft.Context(self.rank, self.size, address) as context:
                weft.all_reduce_(np.ones(3), group=context.world)
        # Threads, maps and sockets come and go with it; blocks and objects must not.
        self.check("Context", join, 20, 4096)

    def test_plans_and_sessions(self):
        model = ranks.SOURCE / "tests" / "data" / "torch_mlp_batch4.onnx"
        plan = weft.compile(model, world=self.size)
        session = weft.Session(plan)
        values = [np.zeros(binding["shape"], binding["dtype"]) for binding in plan.bindings
                  if binding["role"] in ("input", "label")]
        name = next(iter(session.params))
        path = self.dir / f"plan{self.rank}"

        def store():
            session.params[name] = session.params[name]

        self.check("step", lambda: session.step(*values))
        self.check("step by name", lambda: session.step(lr=0.1))
        self.check("eval", lambda: session.eval(values[0]))
        self.check("params", store)
        self.check("views", lambda: (dict(session.params), dict(session.state), dict(session.scalars),
                                     list(session.inputs)), 50)
        self.check("what it says", lambda: (plan.info, plan.bindings, plan.explain(), plan.explain(json=True),
                                            session.stats()), 50, 64)
        self.check_raises("input", (TypeError, ValueError), lambda: session.step(values[0][:1], *values[1:]))
        self.check_raises("name", (TypeError, ValueError, KeyError), lambda: session.step(nobody=1))
        self.check("save and load", lambda: (plan.save(path), weft.Plan.load(path)), 30, 64)
        self.check("compile", lambda: weft.compile(model, world=self.size), 20, 256)

        def bind():
            weft.Session(plan).close()
        self.check("Session", bind, 10, 1024)


class Exports:
    """What has nothing but DLPack."""

    def __init__(self, values):
        self.values = values

    def __dlpack__(self, **kwargs):
        return self.values.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


if __name__ == "__main__":
    ranks.main()
