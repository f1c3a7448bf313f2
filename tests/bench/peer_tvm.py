#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One side of compare_tvm.py: times all-reduces of TVM's Disco and prints JSON.

usage: peer_tvm.py weft|controller|gloo threads|processes TORCH     TORCH: folder of the package torch, for gloo
       peer_tvm.py ID WORKERS GROUPS READ_FD WRITE_FD               a worker, started by a ProcessSession
"""
import json
import os
import pathlib
import sys
import tempfile
import time

import numpy as np
import tvm
from tvm_ffi import Shape, get_global_func, register_global_func

WORKERS = 2
SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
REPEATS = 25


@register_global_func("bench.gloo_init")
def gloo_init(torch_folder, file):
    sys.path.append(torch_folder)
    import torch
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}",
                                         rank=get_global_func("runtime.disco.worker_rank")(), world_size=WORKERS)


@register_global_func("bench.gloo_allreduce")
def gloo_allreduce(send, recv):
    import torch
    send, recv = torch.utils.dlpack.from_dlpack(send), torch.utils.dlpack.from_dlpack(recv)
    recv.copy_(send)
    torch.distributed.all_reduce(recv)


def fastest_us(run, count):
    """Microseconds of one of the count operations of the fastest run: other programs disturb that the least."""
    run()
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        run()
        times.append((time.perf_counter() - begin) * 1e6 / count)
    return min(times)


def module(folder, side, size, count):
    """A compiled function that reduces its argument count times, one result after the other."""
    from tvm import relax
    builder, kind = relax.BlockBuilder(), relax.TensorType((size // 4,), "float32")
    x = relax.Var("x", kind)
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x
            for _ in range(count):
                y = builder.emit(relax.op.ccl.allreduce(y, "sum") if side == "weft" else
                                 relax.call_dps_packed("bench.gloo_allreduce", [y], out_ty=kind))
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    path = str(pathlib.Path(folder) / f"{size}.so")
    tvm.compile(builder.get(), target="llvm").export_library(path)
    return path


def time_module(session, folder, side, size):
    count = max(4, min(200, (16 << 20) // size)) // (4 if side == "gloo" else 1)
    function = session.load_vm_module(module(folder, side, size, count))["main"]
    x = session.broadcast(np.zeros(size // 4, "float32"), in_group=False)
    session._sync_all()

    def run():
        function(x)
        session.sync_worker_0()
    return fastest_us(run, count)


def time_controller(session, size):
    """What a program can do without a collective library: the controller fetches, adds and sends back."""
    x = session.empty((size // 4,), "float32")

    def run():
        total = sum(x.debug_get_from_remote(worker).numpy() for worker in range(WORKERS))
        for worker in range(WORKERS):
            x.debug_copy_from(worker, total)
    return fastest_us(run, 1)


def main():
    if len(sys.argv) == 6:
        from tvm.exec import disco_worker
        disco_worker.main()
        return
    side, kind, torch_folder = sys.argv[1:]
    import weft.tvm
    from tvm.runtime.disco import ProcessSession, ThreadedSession
    session = ThreadedSession(WORKERS) if kind == "threads" else ProcessSession(WORKERS, entrypoint="peer_tvm")
    weft.tvm.init(session)
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) >= WORKERS:
        session.get_global_func("runtime.disco.bind_worker_to_cpu_core")(Shape(cores[:WORKERS]))
    with tempfile.TemporaryDirectory() as folder:
        if side == "gloo":
            session.get_global_func("bench.gloo_init")(torch_folder, os.path.join(folder, "rendezvous"))
        time_one = time_controller if side == "controller" else lambda s, size: time_module(s, folder, side, size)
        print("RESULT " + json.dumps({f"allreduce {size}": time_one(session, size) for size in SIZES}), flush=True)


if __name__ == "__main__":
    main()
