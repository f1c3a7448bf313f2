#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of compare_jax.py: times collectives of JAX, over Weft, Gloo or an MPI; rank 0 prints JSON.

usage: peer_jax.py weft|gloo|MPIWRAPPER ADDRESS
"""
import json
import os
import statistics
import sys
import time

side, address = sys.argv[1:3]
if side == "weft":
    import weft.jax  # noqa: F401
elif side == "gloo":
    os.environ["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] = "gloo"
else:
    os.environ.update(JAX_CPU_COLLECTIVES_IMPLEMENTATION="mpi", MPITRAMPOLINE_LIB=side)
import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
GRADIENTS, ELEMENTS = 64, 4096
LAYERS, WIDTH, ROWS = 16, 512, 128
REPEATS = 9


def median_us(run, count):
    """Microseconds of one of the count operations of a run, which has run before."""
    jax.block_until_ready(run())
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        jax.block_until_ready(run())
        times.append((time.perf_counter() - begin) * 1e6 / count)
    return statistics.median(times)


def time_psum(mesh, size):
    """A psum inside of a compiled loop."""
    count = max(10, min(2000, (64 << 20) // size)) // (20 if side == "gloo" and size < 1 << 20 else 1)
    # MPICH creates communicators on the thread that started it: in a program as small as this one.
    loop = jax.shard_map(lambda a: lax.fori_loop(0, count, lambda _, b: lax.psum(b, "x"), a), mesh=mesh, in_specs=P("x"),
                         out_specs=P("x"), check_vma=False)
    n = jax.device_count()
    x = jax.make_array_from_callback((n * size // 4,), NamedSharding(mesh, P("x")),
                                     lambda index: np.ones(size // 4, "float32"))
    compiled = jax.jit(loop)
    return median_us(lambda: compiled(x), count)


def time_step(mesh, average=lambda gradients: gradients, wrap=lambda grad: grad):
    """A data-parallel training step with GRADIENTS gradients of ELEMENTS float32."""
    whole = NamedSharding(mesh, P())
    weights = [jax.make_array_from_callback((ELEMENTS,), whole, lambda index: np.full(ELEMENTS, 0.5, "float32"))
               for _ in range(GRADIENTS)]
    data = jax.make_array_from_callback((jax.device_count(), ELEMENTS), NamedSharding(mesh, P("x")),
                                        lambda index: np.ones((1, ELEMENTS), "float32"))

    def loss(weights, x):
        return sum(((w * x - 1) ** 2).mean() for w in weights)

    def step(weights, x):
        return [w - 0.1 * g for w, g in zip(weights, average(wrap(jax.grad(loss))(weights, x)))]

    compiled = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(P(), P("x")), out_specs=P(), check_vma=False))
    return median_us(lambda: compiled(weights, data), 1)


def time_layers(mesh, average=lambda gradients: gradients, wrap=lambda grad: grad):
    """The same of LAYERS layers of WIDTH x WIDTH on ROWS rows per rank, whose gradients are ready one after another."""
    whole = NamedSharding(mesh, P())
    weights = [jax.make_array_from_callback((WIDTH, WIDTH), whole, lambda index: np.full((WIDTH, WIDTH), 1e-3, "float32"))
               for _ in range(LAYERS)]
    data = jax.make_array_from_callback((jax.device_count() * ROWS, WIDTH), NamedSharding(mesh, P("x")),
                                        lambda index: np.ones((ROWS, WIDTH), "float32"))

    def loss(weights, x):
        for w in weights:
            x = jax.numpy.tanh(x @ w)
        return (x * x).mean()

    def step(weights, x):
        return [w - 0.1 * g for w, g in zip(weights, average(wrap(jax.grad(loss))(weights, x)))]

    compiled = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(P(), P("x")), out_specs=P(), check_vma=False))
    return median_us(lambda: compiled(weights, data), 1)


def main():
    if side == "weft":
        jax.distributed.initialize()
    else:
        rank, size = (int(os.environ.get(f"WEFT_{name}") or os.environ[f"PMI_{other}"])
                      for name, other in (("RANK", "RANK"), ("WORLD_SIZE", "SIZE")))
        jax.distributed.initialize(address, size, rank)
    mesh = Mesh(np.array(jax.devices()), ("x",))
    time_psum(mesh, 8)
    rows = {f"psum {size}": time_psum(mesh, size) for size in SIZES}
    for name, time_one in (("step", time_step), ("layers", time_layers)):
        rows[name] = time_one(mesh, lambda gradients: [lax.pmean(g, "x") for g in gradients])
        if side == "weft":
            rows[f"{name}, operator"] = time_one(mesh, lambda gradients: weft.jax.all_reduce(gradients, "avg"))
            rows[f"{name}, bucketed"] = time_one(mesh, wrap=weft.jax.bucketed)
    if jax.process_index() == 0:
        print("RESULT " + json.dumps(rows), flush=True)


main()
