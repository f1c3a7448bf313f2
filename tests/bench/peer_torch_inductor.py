#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of compare_inductor.py: compiled steps of a model, alone and under DDP; rank 0 prints JSON.

    peer_torch_inductor.py LAYERS WIDTH BATCH BLOCKS STEPS

The same process compiles the model three times: alone, and with Gloo as Inductor does by itself; then
weft.torch.inductor is installed, and with Weft. Blocks of STEPS steps of each alternate, each after a barrier, so that
other programs of the machine hit all alike.
"""
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


def step(model, x):
    """One step, with compiled autograd: without it Inductor does not see the collectives."""
    model.zero_grad(set_to_none=True)
    with torch._dynamo.compiled_autograd._enable(torch.compile()):
        model(x).square().mean().backward()


def block(model, x, steps):
    """(microseconds of each step, microseconds of processor time per step)."""
    dist.barrier()
    times, cpu = [], time.process_time()
    for _ in range(steps):
        begin = time.perf_counter()
        step(model, x)
        times.append((time.perf_counter() - begin) * 1e6)
    return times, (time.process_time() - cpu) * 1e6 / steps


def check(alone, reduced):
    """Gradients are the averages of those of the ranks' own steps."""
    for mine, theirs in zip(alone.parameters(), reduced.parameters()):
        mean = mine.grad.clone()
        dist.all_reduce(mean)
        torch.testing.assert_close(theirs.grad, mean / dist.get_world_size())


def low(values):
    """The tenth percentile: other programs only add to times."""
    return statistics.quantiles(values, n=10)[0]


def main():
    layers, width, batch, blocks, steps = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    dist.init_process_group("weft", init_method="weft://")
    x = torch.randn(batch, width, generator=torch.Generator().manual_seed(dist.get_rank()))
    torch._dynamo.config.optimize_ddp = "python_reducer"
    models = {"alone": make(layers, width)}
    models["gloo"] = DDP(make(layers, width), process_group=dist.new_group(backend="gloo"))
    models["weft"] = DDP(make(layers, width))
    compiled = {}
    for name, model in models.items():
        if name == "weft":
            weft.torch.inductor.install()
        compiled[name] = torch.compile(model)
        block(compiled[name], x, 3)
    check(models["alone"], models["gloo"])
    block(compiled["alone"], x, 1)
    check(models["alone"], models["weft"])
    times, cpu = {name: [] for name in compiled}, {name: [] for name in compiled}
    for _ in range(blocks):
        for name, model in compiled.items():
            found, of_cpu = block(model, x, steps)
            times[name] += found
            cpu[name].append(of_cpu)
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, (times, cpu))
    if dist.get_rank() == 0:
        result = {"gradients": len(list(models["alone"].parameters())),
                  "bytes": sum(parameter.numel() * 4 for parameter in models["alone"].parameters()),
                  "buckets": weft.torch.inductor.report()[-1]["buckets"]}
        for name in times:  # a step ends when all ranks have it
            of_all = [max(step) for step in zip(*(rank[0][name] for rank in everyones))]
            result[name] = {"step": low(of_all), "median": statistics.median(of_all),
                            "cpu": low([sum(rank) for rank in zip(*(rank[1][name] for rank in everyones))])}
        print("RESULT " + json.dumps(result), flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
