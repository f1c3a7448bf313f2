#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of compare_onnxruntime.py: times models with an all-reduce in them; rank 0 prints JSON.

usage: peer_onnxruntime.py none|weft|gloo|mpi ADDRESS

weft: one session, with AllReduce nodes. gloo, mpi: what has to be done without: the model is cut into sessions, between which
torch or mpi4py reduces the arrays. none: one session without the nodes.
"""
import json
import os
import statistics
import sys
import time

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

SIDE, ADDRESS = sys.argv[1:3]
SIZES = (4 << 10, 64 << 10, 1 << 20)
LAYERS, WIDTH = 24, 1024  # of a decoder that computes one token: two reductions of 4 KiB in each layer
REPEATS = 5


def world():
    """Rank, and a function that adds up an array of all ranks in place."""
    if SIDE == "mpi":
        from mpi4py import MPI
        return MPI.COMM_WORLD.Get_rank(), lambda array: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array)
    rank = int(os.environ["WEFT_RANK"])
    if SIDE != "gloo":
        return rank, None
    import torch
    import torch.distributed as distributed
    distributed.init_process_group("gloo", f"tcp://{ADDRESS}", rank=rank, world_size=int(os.environ["WEFT_WORLD_SIZE"]))
    return rank, lambda array: distributed.all_reduce(torch.from_numpy(array))


def session_of(nodes, shape, initializers=()):
    """A session of a chain of nodes: what a node writes is what the next one reads first."""
    for i, node in enumerate(nodes):
        node.input[0] = f"v{i}" if i else "x"
        node.output[0] = f"v{i + 1}" if i + 1 < len(nodes) else "y"
    infos = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)] for name in "xy"]
    graph = helper.make_graph(nodes, "bench", *infos, initializer=list(initializers))
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17),
                                                                  helper.make_opsetid("com.microsoft", 1)])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if SIDE == "weft":
        import weft.onnxruntime
        weft.onnxruntime.register(options, model.SerializeToString())
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def program(parts, shape, initializers, reduce):
    """A function that runs a model of parts (lists of nodes) with an all-reduce between each two of them."""
    if reduce is not None:  # the model is cut
        sessions = [session_of(nodes, shape, initializers) for nodes in parts]

        def run(x):
            for session in sessions[:-1]:
                x = session.run(None, {"x": x})[0]
                reduce(x)
            return sessions[-1].run(None, {"x": x})[0]
        return run
    nodes = list(parts[0])
    for part in parts[1:]:
        if SIDE == "weft":
            nodes.append(helper.make_node("AllReduce", [""], [""], domain="com.microsoft"))
        nodes += part
    session = session_of(nodes, shape, initializers)
    return lambda x: session.run(None, {"x": x})[0]


def median_us(run, x, count):
    """Microseconds of a run. Each run begins when all ranks have ended the one before, which reduces."""
    for _ in range(10):
        run(x)
    rounds = []
    for _ in range(REPEATS):
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            run(x)
            times.append(time.perf_counter() - begin)
        rounds.append(statistics.median(times) * 1e6)
    return statistics.median(rounds)


def main():
    rank, reduce = world()
    rows = {}
    for size in SIZES:
        shape = [size // 4]
        run = program([[helper.make_node("Relu", [""], [""])], [helper.make_node("Neg", [""], [""])]], shape, [], reduce)
        got = run(np.ones(shape, "float32"))
        assert (got == (-1 if SIDE == "none" else -2)).all(), got
        rows[f"all-reduce {size}"] = median_us(run, np.ones(shape, "float32"), max(20, min(500, (64 << 20) // size)))
    weights = [helper.make_tensor(name, TensorProto.FLOAT, [WIDTH, WIDTH // 2][::step],
                                  np.full(WIDTH * WIDTH // 2, 1e-3, "float32").tobytes(), raw=True)
               for name, step in (("up", 1), ("down", -1))]
    layer = [helper.make_node("MatMul", ["", "up"], [""]), helper.make_node("Relu", [""], [""]),
             helper.make_node("MatMul", ["", "down"], [""])]
    parts = [[helper.make_node(n.op_type, list(n.input), list(n.output)) for n in layer] for _ in range(2 * LAYERS + 1)]
    run = program(parts, [1, WIDTH], weights, reduce)
    rows["token"] = median_us(run, np.ones((1, WIDTH), "float32"), 20)
    if rank == 0:
        print("RESULT " + json.dumps(rows), flush=True)


main()
