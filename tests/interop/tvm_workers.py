#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program with TVM's Disco, and its workers; tests/python/test_tvm.py starts it with an interpreter that has tvm.

usage: tvm_workers.py CASE      cases: threads processes sockets models errors dies
       tvm_workers.py remote HOST PORT          the second node of the case sockets
       tvm_workers.py ID WORKERS GROUPS READ_FD WRITE_FD        a worker, started by a ProcessSession
"""
import ctypes
import faulthandler
import gc
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from unittest import mock

import ml_dtypes
import numpy as np
import tvm
from tvm.runtime import tensor
from tvm_ffi import Shape, from_dlpack, get_global_func, register_global_func

REAL = "float32 float64 float16 bfloat16 int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()
MOVED = ["float32", "float16", "bfloat16", "int64", "uint8", "bool", "float8_e4m3fn"]
SHAPES = [(), (1,), (3, 5), (257,), (0, 4), (8, 64, 64)]
KINDS = {"sum": 0, "prod": 1, "min": 2, "max": 3, "avg": 4}
REFERENCES = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max, "avg": np.mean}


# ---- on workers ----

def disco(name, *args):
    return get_global_func(f"runtime.disco.{name}")(*args)


def values(rank, shape, dtype):
    """What a worker passes: small numbers, all of which every type has."""
    numbers = (np.arange(np.prod(shape, dtype=int)) + rank) % 3 + 1
    return (numbers % 2 if dtype == "bool" else numbers).reshape(shape).astype(np_type(dtype))


def np_type(name):
    return np.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else np.dtype(name)


def empty(shape, dtype):
    return tensor(np.zeros(shape, np_type(dtype)))


def check(got, expected, *what):
    np.testing.assert_array_equal(got.numpy().astype("float64"), np.asarray(expected).astype("float64"), str(what))


@register_global_func("weft.test.collectives")
def collectives(groups):
    """Every collective, on the world and on the worker's group."""
    world, size = disco("worker_rank"), disco("world_size")
    for in_group in (False, True):
        count = size // groups if in_group else size
        ranks = [world // count * count + i for i in range(count)]
        rank = world % count
        for dtype in REAL:
            everyones = [values(r, (3, 5), dtype).astype("float64") for r in ranks]
            for op in KINDS:
                if op == "avg" and ("int" in dtype or count == 3):
                    continue  # exact
                recv = empty((3, 5), dtype)
                disco("allreduce", tensor(values(world, (3, 5), dtype)), Shape([KINDS[op]]), in_group, recv)
                check(recv, REFERENCES[op](everyones, axis=0), op, dtype, in_group)
        for shape in SHAPES:
            in_place = tensor(values(world, shape, "float32"))
            disco("allreduce", in_place, Shape([0]), in_group, in_place)
            check(in_place, sum(values(r, shape, "float32") for r in ranks), shape)
        for dtype, shape in [*((dtype, (3, 5)) for dtype in MOVED), *(("float32", shape) for shape in SHAPES)]:
            move(dtype, shape, in_group, ranks, rank, world)


def move(dtype, shape, in_group, ranks, rank, world):
    what = (dtype, shape, in_group)
    everyones = np.stack([values(r, shape, dtype) for r in ranks])
    mine, recv = tensor(values(world, shape, dtype)), empty(shape, dtype)
    blocks = empty((len(ranks), *shape), dtype)
    disco("allgather", mine, in_group, blocks)
    check(blocks, everyones, "allgather", *what)
    disco("broadcast_from_worker0", mine, in_group, recv)
    check(recv, everyones[0], "broadcast", *what)
    disco("scatter_from_worker0", tensor(everyones[::-1].copy()) if rank == 0 else None, in_group, recv)
    check(recv, everyones[len(ranks) - 1 - rank], "scatter", *what)
    blocks = empty((len(ranks), *shape), dtype)
    disco("gather_to_worker0", mine, in_group, blocks if rank == 0 else None)
    check(blocks, everyones if rank == 0 else 0 * everyones.astype("float64"), "gather", *what)


@register_global_func("weft.test.messages")
def messages(groups):
    rank, size = disco("worker_rank"), disco("world_size")
    per_group = size // groups
    for dtype in MOVED:
        mine, recv = tensor(values(rank, (3, 5), dtype)), empty((3, 5), dtype)
        if rank == 0:
            for other in range(1, size):
                disco("send_to_worker", mine, other)
        else:
            disco("recv_from_worker0", recv)
            check(recv, values(0, (3, 5), dtype), dtype)
        if rank == size - 1:
            disco("send_to_worker", mine, 0)
        if rank == 0:
            disco("recv_from_worker", recv, size - 1)
            check(recv, values(size - 1, (3, 5), dtype), dtype)
        if rank >= per_group:
            disco("recv_from_prev_group", recv)
            check(recv, values(rank - per_group, (3, 5), dtype), dtype)
        if rank < size - per_group:
            disco("send_to_next_group", mine)


@register_global_func("weft.test.views")
def views():
    """A tensor that begins in the middle of its memory, and one with strides that is contiguous all the same."""
    rank, size = disco("worker_rank"), disco("world_size")
    whole = np.arange(24, dtype="float32").reshape(4, 6) + rank
    for part in (tensor(whole)._create_view((2, 6), "float32", 48), from_dlpack(whole[2:]),
                 from_dlpack(whole[2:].reshape(2, 1, 6)[:, ::-1])):
        recv = empty(part.shape, "float32")
        disco("allreduce", part, Shape([0]), False, recv)
        expected = sum(np.arange(12, 24, dtype="float32") + r for r in range(size))
        check(recv, expected.reshape(tuple(part.shape)), part.shape)


caught = {}  # worker -> messages, of a ThreadedSession


def catch(rank, *call):
    try:
        disco(*call)
        caught.setdefault(rank, []).append("no error")
    except (ValueError, RuntimeError) as error:
        caught.setdefault(rank, []).append(f"{type(error).__name__}: {str(error).splitlines()[0]}")


@register_global_func("weft.test.errors")
def errors():
    rank = disco("worker_rank")
    good, other = tensor(np.zeros((2, 3), "float32")), tensor(np.zeros((2, 3), "int32"))
    turned = from_dlpack(np.zeros((3, 2), "float32").T)
    small, total = tensor(values(0, (2, 3), "float8_e4m3fn")), Shape([0])
    calls = [  # on worker 1, while worker 0 makes a right call; weft.NAME is what NAME calls after checks of its own
        ("allreduce", turned, total, False, good), ("allreduce", good, total, False, tensor(np.zeros(5, "float32"))),
        ("weft.allreduce", good, 7, False, good), ("allreduce", good, total, False, other),
        ("weft.allreduce", good, 0, False, None), ("weft.allreduce", good, 0, False),
        ("allreduce", small, total, False, small),
        ("allgather", good, False, good)]
    gathered = empty((2, 2, 3), "float32")
    for call in calls:
        right = ("allgather", good, False, gathered) if call[0] == "allgather" else ("weft.allreduce", good, 0, False, good)
        catch(rank, *(call if rank == 1 else right))
    truth = tensor(values(0, (2, 3), "bool"))
    catch(rank, "allreduce", truth, total, False, truth)  # from here on both are wrong
    catch(rank, "send_to_worker", good, 2)
    catch(rank, "recv_from_worker", good, -1)
    catch(rank, "send_to_worker", good, rank)
    catch(rank, *(("send_to_next_group", good) if rank == 1 else ("recv_from_prev_group", good)))
    recv = empty((2, 3), "float32")
    disco("allreduce", tensor(np.full((2, 3), rank + 1, "float32")), total, False, recv)  # still works
    check(recv, np.full((2, 3), 3.0))


@register_global_func("weft.test.die")
def die():
    if disco("worker_rank") == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    x = tensor(np.zeros(4, "float32"))
    disco("allreduce", x, Shape([0]), False, x)


# ---- in the program ----
# Sessions end by gc.collect(): functions that they cache refer to them. After session.shutdown() TVM's destructor would
# write to workers that have ended, which ends the program.

def make(kind, workers, groups=1):
    import weft.tvm
    from tvm.runtime.disco import ProcessSession, ThreadedSession
    session = (ThreadedSession(workers, groups) if kind == "threads" else
               ProcessSession(workers, groups, entrypoint="tvm_workers"))
    weft.tvm.init(session)
    return session


def everywhere(session, name, *args):
    """Calls one of the functions above on all workers; one that fails ends the program."""
    session.get_global_func(f"weft.test.{name}")(*args)
    session._sync_all()


def collectives_and_messages(kind, sizes):
    for workers, groups in sizes:
        session = make(kind, workers, groups)
        everywhere(session, "collectives", groups)
        everywhere(session, "messages", groups)
        everywhere(session, "views")
        session_methods(session, workers)
        del session
        gc.collect()


def session_methods(session, workers):
    x = np.arange(workers * 6, dtype="float32").reshape(workers, 2, 3)
    part, whole = session.scatter(x, in_group=False), session.broadcast(x, in_group=False)
    gathered, total = session.empty(x.shape, "float32"), session.empty((2, 3), "float32")
    session.gather_to_worker0(part, gathered, in_group=False)
    session.allreduce(part, total, "max", in_group=False)
    host = tensor(np.zeros_like(x))
    session.copy_from_worker_0(host, gathered)
    session.sync_worker_0()
    check(host, x)
    for worker in range(workers):
        check(part.debug_get_from_remote(worker), x[worker])
        check(whole.debug_get_from_remote(worker), x)
        check(total.debug_get_from_remote(worker), x.max(0))


def threads():
    collectives_and_messages("threads", [(4, 2), (3, 1), (6, 3)])
    import weft.tvm
    from tvm.runtime import disco as module
    session = module.ThreadedSession(2)
    # As init_ccl does, but for its list of names.
    get_global_func("runtime.disco.SessionInitCCL")(session, "weft", Shape([0, 0]))
    everywhere(session, "views")
    weft.tvm.init(session)  # another world
    everywhere(session, "views")


def processes():
    collectives_and_messages("processes", [(4, 2), (2, 1)])


def sockets():
    """Two nodes of one worker each; the other one is the case remote."""
    import weft.tvm
    from tvm.runtime.disco import SocketSession
    # TVM holds the interpreter's lock while it waits for the other node, so only a watchdog in C ends a wait for ever.
    faulthandler.dump_traceback_later(300, exit=True)
    # A loopback address of our own: a node connects to what listens, and programs that run at once may choose one port.
    host, port = f"127.{random.randrange(1, 255)}.{random.randrange(256)}.{random.randrange(1, 255)}", 10000
    with subprocess.Popen([sys.executable, __file__, "remote", host, str(port)]) as node:
        try:
            session = SocketSession(2, 1, 1, host, port)
            for address in (f"{host}:{port + 1}", None):
                with mock.patch("socket.gethostname", return_value=host):
                    weft.tvm.init(session, address)
                x = np.arange(12, dtype="float32").reshape(2, 2, 3)
                part, total = session.scatter(x, in_group=False), session.empty((2, 3), "float32")
                session.allreduce(part, total, in_group=False)
                host_array = tensor(np.zeros((2, 3), "float32"))
                session.copy_from_worker_0(host_array, total)
                session.sync_worker_0()
                check(host_array, x.sum(0))
            with weft.tvm._address_for(session) as address, socket.socket() as other:
                try:
                    other.bind(("", int(address.rpartition(":")[2])))
                    raise AssertionError(f"another program got the port of {address}")
                except OSError:
                    pass
            del part, total, session
            gc.collect()
            assert node.wait() == 0, node.returncode
        finally:
            node.kill()  # or it tries to connect for ever, where no session was made


def remote(host, port):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it does not outlive the case sockets
    import weft.tvm  # noqa: F401 (TVM's own program for nodes lacks what tvm.runtime.disco registers)
    while True:
        try:
            get_global_func("runtime.disco.RemoteSocketSession")(host, int(port), 1)
            return
        except RuntimeError as error:
            if "Failed to connect" not in str(error):
                raise
        time.sleep(0.1)  # nobody listens yet


def errors_case():
    session = make("threads", 2)
    catch(-1, "weft.allreduce")
    everywhere(session, "errors")
    for rank, texts in sorted(caught.items()):
        print("\n".join(f"worker {rank}: {text}" for text in texts), flush=True)


def dies():
    everywhere(make("processes", 2), "die")


# ---- models, compiled by Relax ----

BATCH, WIDTH, HIDDEN, HEADS, LENGTH = 3, 16, 64, 4, 5


def models():
    """A tensor-parallel MLP and an attention block on 1, 2 and 4 workers."""
    from tvm import relax
    from tvm.relax import op
    random = np.random.default_rng(5)

    def variable(name, *shape):
        return relax.Var(name, relax.TensorType(shape, "float32"))

    def compiled(path, parameters, body):
        builder = relax.BlockBuilder()
        with builder.function("main", parameters):
            with builder.dataflow():
                out = builder.emit_output(body(builder.emit))
            builder.emit_func_output(out)
        tvm.compile(builder.get(), target="llvm").export_library(path)
        return path

    def mlp(path, workers):
        x, up, down = (variable("x", BATCH, WIDTH), variable("up", WIDTH, HIDDEN // workers),
                       variable("down", HIDDEN // workers, WIDTH))
        return compiled(path, [x, up, down], lambda emit: emit(op.ccl.allreduce(emit(op.matmul(emit(op.nn.gelu(
            emit(op.matmul(x, up)))), down)), "sum", in_group=False)))

    def attention(path, workers):
        """Each worker has some of the heads; x and the result are broadcast, scattered and gathered by the module, too."""
        heads, head = HEADS // workers, WIDTH // HEADS
        x = variable("x", BATCH, LENGTH, WIDTH)
        q, k, v = (variable(name, WIDTH, heads * head) for name in "qkv")
        o = variable("o", heads * head, WIDTH)

        def body(emit):
            same = emit(op.ccl.broadcast_from_worker0(x))

            def split(weight, axes):
                y = emit(op.reshape(emit(op.matmul(same, weight)), (BATCH, LENGTH, heads, head)))
                return emit(op.permute_dims(y, axes))

            scores = emit(op.matmul(split(q, [0, 2, 1, 3]), split(k, [0, 2, 3, 1])))
            weights = emit(op.nn.softmax(emit(op.multiply(scores, relax.const(head ** -0.5, "float32")))))
            mixed = emit(op.permute_dims(emit(op.matmul(weights, split(v, [0, 2, 1, 3]))), [0, 2, 1, 3]))
            y = emit(op.matmul(emit(op.reshape(mixed, (BATCH, LENGTH, heads * head))), o))
            y = emit(op.ccl.allreduce(y, "sum", in_group=False))
            part = emit(op.ccl.scatter_from_worker0(emit(op.reshape(y, (4, -1))), workers, axis=0))
            return emit(op.ccl.allgather(part, workers, in_group=False))

        return compiled(path, [x, q, k, v, o], body)

    def shards(array, axis, workers):
        return np.stack(np.split(array, workers, axis))

    def weights(*shape):
        return (random.standard_normal(shape) * 0.3).astype("float32")

    mlp_x, attention_x = weights(BATCH, WIDTH), weights(BATCH, LENGTH, WIDTH)
    up, down = weights(WIDTH, HIDDEN), weights(HIDDEN, WIDTH)
    q, k, v, o = (weights(WIDTH, WIDTH) for _ in range(4))
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, workers in (("threads", 1), ("processes", 2), ("threads", 4)):
            session = make(kind, workers)
            for name, build, x, cut in (("mlp", mlp, mlp_x, ((up, 1), (down, 0))),
                                        ("attention", attention, attention_x, ((q, 1), (k, 1), (v, 1), (o, 0)))):
                module = session.load_vm_module(build(str(pathlib.Path(folder) / f"{name}{workers}.so"), workers))
                parts = [session.scatter(shards(array, axis, workers), in_group=False) for array, axis in cut]
                out = module["main"](session.broadcast(x, in_group=False), *parts)
                for worker in range(workers):
                    results[name, workers, worker] = out.debug_get_from_remote(worker).numpy()
            del session, module, parts, out
            gc.collect()
    expected = down_of_gelu(mlp_x @ up, down)
    np.testing.assert_allclose(results["mlp", 1, 0], expected, rtol=1e-4, atol=1e-5)
    for (name, workers, worker), got in results.items():
        np.testing.assert_allclose(got, results[name, 1, 0], rtol=1e-4, atol=1e-5, err_msg=f"{name} {workers} {worker}")


def down_of_gelu(x, down):
    """The MLP by numpy, with the series of TVM's erf replaced by that of the C library."""
    import math
    return (x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))).astype("float32") @ down


def main():
    if len(sys.argv) == 6:  # a worker
        from tvm.exec import disco_worker
        disco_worker.main()
        return
    case = {"threads": threads, "processes": processes, "sockets": sockets, "remote": remote, "models": models, "errors": errors_case,
            "dies": dies}[sys.argv[1]]
    case(*sys.argv[2:])
    print(f"{sys.argv[1]}: good", flush=True)


if __name__ == "__main__":
    main()
