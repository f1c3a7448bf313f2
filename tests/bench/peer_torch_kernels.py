#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of compare_torch.py: all sides in turn in one process; rank 0 prints JSON, row -> side -> microseconds.

    peer_torch_kernels.py PART PORT [deepspeed=LIBRARY] [vllm=LIBRARY]     PART: a name of PARTS; PORT: of
                                                              this run, in names of the kernels' shared memory
"""
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch_kernels
import weft
import weft.torch

OPERATORS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
SIZES = [4096 << 2 * i for i in range(7)]  # to 16 MiB
ROUND_S = 0.004
SIDE_S, ROUNDS_OF_SIDE, COMPUTE_S = 0.4, 4, 0.001  # of the part load


class Ranks:
    """Groups and kernels of this rank."""

    def __init__(self, port, libraries):
        dist.init_process_group("weft")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        if os.environ.get("WEFT_BIND") != "none":
            cpus = sorted(os.sched_getaffinity(0))  # one, if weft run has bound this rank
            os.sched_setaffinity(0, {cpus[self.rank % len(cpus)]})
        torch.set_num_threads(1)
        self.group = weft.torch.group_of()
        self.name = weft.torch.operators.group_name()
        self.gloo = dist.new_group(backend="gloo")
        self.kernels = {}
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        if "deepspeed" in libraries:
            self.kernels["deepspeed"] = torch_kernels.DeepSpeed(libraries["deepspeed"], self.rank, self.size)
        if "vllm" in libraries:
            self.kernels["vllm"] = torch_kernels.VLLM(libraries["vllm"], self.rank, self.size, self.meet)

    def meet(self):
        weft.barrier(self.group)


def calls_in_a_round(ranks, function, most):
    """As many as take ROUND_S, the same on all ranks: caches are warm after the first of them."""
    function()
    ranks.meet()
    begin = time.perf_counter()
    function()
    count = torch.tensor([max(1, min(most, int(ROUND_S / (time.perf_counter() - begin))))])
    weft.broadcast(count, 0, ranks.group)
    return int(count)


def alternate(ranks, sides, rounds, most=200):
    """Side -> microseconds of one call: the tenth percentile over rounds of at most so many, since other programs only
    add to them. Sides are functions without arguments."""
    counts = {side: calls_in_a_round(ranks, function, most) for side, function in sides.items()}
    times = {side: [] for side in sides}
    for number in range(-max(1, rounds // 8), rounds):
        for side, function in sides.items():
            ranks.meet()
            begin = time.perf_counter()
            for _ in range(counts[side]):
                function()
            if number >= 0:
                times[side].append((time.perf_counter() - begin) / counts[side] * 1e6)
    return {side: sorted(values)[len(values) // 10] for side, values in times.items()}


# ---- calls ----
def text_of(size_bytes):
    return f"{size_bytes >> 20} MiB" if size_bytes >= 1 << 20 else f"{size_bytes >> 10} KiB"


def calls_of(ranks, operator, size_bytes):
    """Side -> function, on size_bytes of bfloat16 of each rank: what it gives, or of broadcast the root's."""
    group, name, n = ranks.group, ranks.name, ranks.size
    x = torch.zeros(size_bytes // 2, dtype=torch.bfloat16)
    reached = weft.torch.empty(size_bytes // 2, dtype=torch.bfloat16)
    kernels = {side: getattr(kernel, operator) for side, kernel in ranks.kernels.items() if hasattr(kernel, operator)}
    ops = torch.ops.weft
    if operator == "all_reduce":
        return {"weft": lambda: dist.all_reduce(x), "direct": lambda: weft.all_reduce_(x, "sum", group),
                "operator": lambda: ops.all_reduce_(x, "sum", name),
                "reached": lambda: weft.all_reduce_(reached, "sum", group),
                "gloo": lambda: dist.all_reduce(x, group=ranks.gloo),
                **{side: lambda call=call: call(x) for side, call in kernels.items()}}
    if operator == "broadcast":
        return {"weft": lambda: dist.broadcast(x, 0), "direct": lambda: weft.broadcast(x, 0, group),
                "reached": lambda: weft.broadcast(reached, 0, group),
                "gloo": lambda: dist.broadcast(x, 0, group=ranks.gloo)}
    if operator == "all_gather":
        whole = torch.zeros(n * x.numel(), dtype=x.dtype)
        whole_reached = weft.torch.empty(n * x.numel(), dtype=x.dtype)
        return {"weft": lambda: dist.all_gather_into_tensor(whole, x),
                "direct": lambda: weft.all_gather(x, group, out=whole), "operator": lambda: ops.all_gather_out(x, n, name, whole),
                "reached": lambda: weft.all_gather(reached, group, out=whole_reached),
                "gloo": lambda: dist.all_gather_into_tensor(whole, x, group=ranks.gloo),
                **{side: lambda call=call: call(whole, x) for side, call in kernels.items()}}
    part = torch.zeros(x.numel() // n, dtype=x.dtype)
    part_reached = weft.torch.empty(x.numel() // n, dtype=x.dtype)
    return {"weft": lambda: dist.reduce_scatter_tensor(part, x),
            "direct": lambda: weft.reduce_scatter(x, "sum", group, out=part),
            "operator": lambda: ops.reduce_scatter_out(x, "sum", n, name, part),
            "reached": lambda: weft.reduce_scatter(reached, "sum", group, out=part_reached),
            "gloo": lambda: dist.reduce_scatter_tensor(part, x, group=ranks.gloo)}


def check_sums(ranks):
    """All sides of all_reduce add: figures of a kernel that does nothing would be good ones."""
    sides = {"weft": dist.all_reduce, "operator": lambda x: torch.ops.weft.all_reduce_(x, "sum", ranks.name),
             **{side: kernel.all_reduce for side, kernel in ranks.kernels.items()}}
    for side, call in sides.items():
        x = torch.full((3000,), float(ranks.rank + 1), dtype=torch.bfloat16)
        call(x)
        if not torch.all(x == ranks.size * (ranks.size + 1) / 2):
            raise RuntimeError(f"{side} returned {x[:4]}")


def calls(ranks):
    check_sums(ranks)
    rows = {}
    with torch.inference_mode():
        for operator in OPERATORS:
            for size_bytes in SIZES:
                rows[f"{operator} {text_of(size_bytes)}"] = alternate(ranks, calls_of(ranks, operator, size_bytes),
                                                                      40 if size_bytes <= 1 << 20 else 15)
    return rows


# ---- decode ----
class Decoder:
    """A model like Llama whose heads and hidden columns are divided over ranks: one token at a time, batch 1."""
    LAYERS, HEAD, WORDS, MOST = 8, 64, 8192, 256

    def __init__(self, ranks, dim):
        generator = torch.Generator().manual_seed(ranks.rank)

        def weight(*shape):
            return (torch.randn(shape, generator=generator) * 0.02).to(torch.bfloat16)
        n = ranks.size
        self.dim, self.heads = dim, dim // self.HEAD // n
        hidden, width = dim * 8 // 3 // 64 * 64 // n, self.heads * self.HEAD
        self.layers = [(weight(3 * width, dim), weight(dim, width), weight(2 * hidden, dim), weight(dim, hidden))
                       for _ in range(self.LAYERS)]
        self.words, self.head = weight(self.WORDS, dim), weight(self.WORDS // n, dim)
        self.cache = torch.zeros(self.LAYERS, 2, self.heads, self.MOST, self.HEAD, dtype=torch.bfloat16)

    def token(self, at, word, reduce):
        """The logits of this rank's words."""
        functional = torch.nn.functional
        x = self.words[word]
        for (qkv, out, up, down), cache in zip(self.layers, self.cache):
            q, k, v = functional.linear(functional.rms_norm(x, (self.dim,)), qkv).view(3, self.heads, 1, self.HEAD)
            cache[0, :, at], cache[1, :, at] = k[:, 0], v[:, 0]
            seen = functional.scaled_dot_product_attention(q, cache[0, :, :at + 1], cache[1, :, :at + 1])
            y = functional.linear(seen.reshape(-1), out)
            reduce(y)
            x = x + y
            gate, value = functional.linear(functional.rms_norm(x, (self.dim,)), up).chunk(2)
            y = functional.linear(functional.silu(gate) * value, down)
            reduce(y)
            x = x + y
        return functional.linear(x, self.head)


def decode(ranks):
    rows = {}
    for dim in 512, 1024:
        model = Decoder(ranks, dim)

        def tokens(reduce, model=model):
            for at in range(100, 132):
                model.token(at, at, reduce)
        sides = {"weft": dist.all_reduce, "operator": lambda x: torch.ops.weft.all_reduce_(x, "sum", ranks.name),
                 "gloo": lambda x: dist.all_reduce(x, group=ranks.gloo),
                 **{side: kernel.all_reduce for side, kernel in ranks.kernels.items()}, "none": lambda x: None}
        with torch.inference_mode():
            found = alternate(ranks, {side: lambda call=call: tokens(call) for side, call in sides.items()}, 12)
        rows[f"token, dim {dim}"] = {side: us / 32 for side, us in found.items()}
    return rows


# ---- training ----
def transformer():
    """10 million parameters."""
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(320, 5, 1280, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 8)


def step_of(model, x, optimizer):
    def step():
        optimizer.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        optimizer.step()
    return step


def no_communication(_, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def ddp(ranks):
    x, sides = torch.randn(2, 32, 320), {}
    hooks = {"hook": (weft.torch.Buckets(), weft.torch.ddp_hook), "none": (None, no_communication)}
    for side in "weft", "hook", "gloo", "none":
        model = torch.nn.parallel.DistributedDataParallel(transformer(), process_group=ranks.gloo if side == "gloo" else None)
        if side in hooks:
            model.register_comm_hook(*hooks[side])
        sides[side] = step_of(model, x, torch.optim.SGD(model.parameters(), 1e-3))
    return {"step of DDP": alternate(ranks, sides, 30)}


def fsdp(ranks):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    x, sides = torch.randn(2, 32, 320), {}
    for side, group in ("weft", dist.group.WORLD), ("gloo", ranks.gloo), ("none", None):
        model = transformer()
        if group is not None:
            mesh = DeviceMesh.from_group(group, "cpu")
            for part in (*model.layers, model):
                fully_shard(part, mesh=mesh)
        sides[side] = step_of(model, x, torch.optim.SGD(model.parameters(), 1e-3))
    return {"step of FSDP2": alternate(ranks, sides, 30)}


# ---- cores that are shared with other programs ----
def calls_of_groups(ranks, operator, size_bytes):
    """Side -> function, on size_bytes of float32 of each rank: through torch.distributed only."""
    x = torch.zeros(size_bytes // 4)
    sides = {"weft": None, "gloo": ranks.gloo}
    if operator == "all_gather":
        out, call = torch.zeros(ranks.size * x.numel()), dist.all_gather_into_tensor
    elif operator == "reduce_scatter":
        out, call = torch.zeros(x.numel() // ranks.size), dist.reduce_scatter_tensor
    elif operator == "all_to_all":
        out, call = torch.zeros_like(x), dist.all_to_all_single
    elif operator == "broadcast":
        return {side: lambda group=group: dist.broadcast(x, 0, group=group) for side, group in sides.items()}
    else:
        return {side: lambda group=group: dist.all_reduce(x, group=group) for side, group in sides.items()}
    return {side: lambda group=group: call(out, x, group=group) for side, group in sides.items()}


def compute():
    """COMPUTE_S of this thread's time, however long that takes."""
    end = time.thread_time() + COMPUTE_S
    while time.thread_time() < end:
        pass


def turns(ranks, sides, before):
    """Side -> microseconds of every call, or of before and a call. Sides alternate for SIDE_S each, in rounds of
    ROUNDS_OF_SIDE."""
    counts = {}
    for side, function in sides.items():
        for _ in range(2):  # memory is touched, connections are made
            function()
        ranks.meet()
        begin = time.perf_counter()
        for _ in range(3):
            before()
            function()
        took = (time.perf_counter() - begin) / 3
        count = torch.tensor([max(2, min(300, int(SIDE_S / ROUNDS_OF_SIDE / took)))])
        weft.broadcast(count, 0, ranks.group)
        counts[side] = int(count)
    times = {side: [] for side in sides}
    for _ in range(ROUNDS_OF_SIDE):
        for side, function in sides.items():
            ranks.meet()
            last = time.perf_counter()
            for _ in range(counts[side]):
                before()
                function()
                now = time.perf_counter()
                times[side].append((now - last) * 1e6)
                last = now
    return times


def load(ranks):
    """Medians and ninetieth percentiles of rank 0, and the mean of the rank with the longest, as a root may return early."""
    rows = {}
    for operator in (*OPERATORS, "all_to_all"):
        for size_bytes in SIZES[::2]:
            for name, before in ("", lambda: None), (" compute", compute):
                times = turns(ranks, calls_of_groups(ranks, operator, size_bytes), before)
                means = torch.tensor([statistics.fmean(values) for values in times.values()])
                weft.all_reduce_(means, "max", ranks.group)
                row = f"{operator} {text_of(size_bytes)}{name}"
                rows[row] = {side: statistics.median(values) for side, values in times.items()}
                rows[f"{row} mean"] = dict(zip(times, means.tolist()))
                rows[f"{row} p90"] = {side: sorted(values)[len(values) * 9 // 10] for side, values in times.items()}
    return rows


PARTS = {"calls": calls, "decode": decode, "ddp": ddp, "fsdp": fsdp, "load": load}


def main():
    ranks = Ranks(sys.argv[2], dict(word.split("=", 1) for word in sys.argv[3:]))
    rows = PARTS[sys.argv[1]](ranks)
    if ranks.rank == 0:
        print("RESULT " + json.dumps(rows), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
