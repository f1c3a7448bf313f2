#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of compare_inductor.py: compiled steps of a model, alone and with others; rank 0 prints JSON.

    peer_torch_inductor.py KIND LAYERS WIDTH BATCH BLOCKS STEPS         KIND: ddp, shards

The same process compiles the model alone, and with Gloo as Inductor does by itself; then weft.torch.inductor is
installed, and with Weft. With shards the model is also compiled with torch's own fully_shard, whose hooks are not in
graphs, over Gloo and over Weft ("hooks"). Blocks of STEPS steps of each alternate, each after a barrier, so that other
programs of the machine hit all alike.
"""
import contextlib
import json
import statistics
import sys
import time

import torch
import torch.distributed as dist
import weft.torch.inductor
from torch.nn.parallel import DistributedDataParallel as DDP


def make(layers, width):
    torch.manual_seed(3)
    parts = []
    for _ in range(layers):
        parts += [torch.nn.Linear(width, width), torch.nn.Tanh()]
    return torch.nn.Sequential(*parts)


def make_all(kind, layers, width):
    """(name, model) in the order of compilation."""
    gloo = dist.new_group(backend="gloo")
    yield "alone", make(layers, width)
    if kind == "ddp":
        yield "gloo", DDP(make(layers, width), process_group=gloo)
        yield "weft", DDP(make(layers, width))
        return
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DeviceMesh, init_device_mesh
    # Names, as Dynamo takes what it compiled for one mesh where another one is equal.
    meshes = {"gloo": DeviceMesh.from_group(gloo, "cpu", mesh_dim_names=("gloo",)),
              "weft": init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("weft",))}
    for name, mesh in meshes.items():
        model = make(layers, width)
        for part in (*(part for part in model if isinstance(part, torch.nn.Linear)), model):
            fully_shard(part, mesh=mesh)
        yield f"hooks_{name}", model
    for name, mesh in meshes.items():
        yield name, weft.torch.inductor.fully_shard(make(layers, width), mesh)


def step(model, x, kind):
    """One step, with compiled autograd for DDP: without it Inductor does not see the collectives."""
    model.zero_grad(set_to_none=True)
    with torch._dynamo.compiled_autograd._enable(torch.compile()) if kind == "ddp" else contextlib.nullcontext():
        model(x).square().mean().backward()


def block(model, x, steps, kind):
    """(microseconds of each step, microseconds of processor time per step)."""
    dist.barrier()
    times, cpu = [], time.process_time()
    for _ in range(steps):
        begin = time.perf_counter()
        step(model, x, kind)
        times.append((time.perf_counter() - begin) * 1e6)
    return times, (time.process_time() - cpu) * 1e6 / steps


def check(alone, reduced):
    """Gradients are the averages of those of the ranks' own steps."""
    for mine, theirs in zip(alone.parameters(), reduced.parameters()):
        mean = mine.grad.clone()
        dist.all_reduce(mean)
        found = theirs.grad.full_tensor() if hasattr(theirs.grad, "full_tensor") else theirs.grad
        torch.testing.assert_close(found, mean / dist.get_world_size())


def low(values):
    """The tenth percentile: other programs only add to times."""
    return statistics.quantiles(values, n=10)[0]


def main():
    kind = sys.argv[1]
    layers, width, batch, blocks, steps = map(int, sys.argv[2:])
    torch.set_num_threads(1)
    dist.init_process_group("weft", init_method="weft://")
    x = torch.randn(batch, width, generator=torch.Generator().manual_seed(dist.get_rank()))
    torch._dynamo.config.optimize_ddp = "python_reducer"
    torch._dynamo.config.recompile_limit = 100
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    models, compiled = {}, {}
    for name, model in make_all(kind, layers, width):
        if name == "weft":
            weft.torch.inductor.install()
        models[name], compiled[name] = model, torch.compile(model)
        block(compiled[name], x, 3, kind)
        block(compiled["alone"], x, 1, kind)
        if name != "alone":
            check(models["alone"], model)
    times, cpu = {name: [] for name in compiled}, {name: [] for name in compiled}
    for _ in range(blocks):
        for name, model in compiled.items():
            found, of_cpu = block(model, x, steps, kind)
            times[name] += found
            cpu[name].append(of_cpu)
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, (times, cpu))
    if dist.get_rank() == 0:
        result = {"gradients": len(list(models["alone"].parameters())),
                  "bytes": sum(parameter.numel() * 4 for parameter in models["alone"].parameters()),
                  "buckets": [report["buckets"] for report in weft.torch.inductor.report()]}
        for name in times:  # a step ends when all ranks have it
            of_all = [max(step) for step in zip(*(rank[0][name] for rank in everyones))]
            result[name] = {"step": low(of_all), "median": statistics.median(of_all),
                            "cpu": low([sum(rank) for rank in zip(*(rank[1][name] for rank in everyones))])}
        print("RESULT " + json.dumps(result), flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
