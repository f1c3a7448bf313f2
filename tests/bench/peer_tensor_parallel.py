#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A decoder like Llama with caches of keys and values, for compare_tensor_parallel.py: exports it for Weft, or runs it as
one rank of torch's DTensor over Gloo.

    peer_tensor_parallel.py decode --export decode.onnx
    WEFT_BIND=none weft run -n 2 -- python3 peer_tensor_parallel.py decode --store FILE

Weights are random, of a fixed seed. Phase prefill reads --words words and makes their caches; decode reads one word after
--words others, whose caches are inputs, and makes the longer ones. The logits are those of the last word. With DTensor,
linear layers are ColwiseParallel and RowwiseParallel, and a rank keeps the caches of its heads; embeddings are whole on
every rank. Rank 0 prints the times of its steps, the first logits and the peak memory of all ranks, as JSON.
"""
import argparse
import json
import os
import sys
import time
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import peak_memory
from compare_tensor_parallel import HEAD, WORDS, add_sizes, make_inputs


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def heads_of(x):
    """[1, words, columns] as [1, heads, words, HEAD]: the heads that the rank has."""
    return x.reshape(1, x.shape[1], -1, HEAD).transpose(1, 2)


def rotated(x, cos, sin):
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat((-high, low), -1) * sin


class Block(nn.Module):
    def __init__(self, width, hidden, kv_heads):
        super().__init__()
        def linear(rows, columns):
            return nn.Linear(rows, columns, bias=False)
        self.times = width // HEAD // kv_heads
        self.norm1, self.norm2 = Norm(width), Norm(width)
        self.q, self.k, self.v = linear(width, width), linear(width, kv_heads * HEAD), linear(width, kv_heads * HEAD)
        self.o, self.gate, self.up, self.down = linear(width, width), linear(width, hidden), linear(width, hidden), linear(hidden, width)

    def repeated(self, x):
        shape = (1, x.shape[1], self.times, x.shape[2], HEAD)
        return x.unsqueeze(2).expand(shape).reshape(1, -1, x.shape[2], HEAD)

    def forward(self, x, turn, mask, caches):
        y = self.norm1(x)
        q, k, v = rotated(heads_of(self.q(y)), *turn), rotated(heads_of(self.k(y)), *turn), heads_of(self.v(y))
        if caches:
            k, v = torch.cat((caches[0], k), 2), torch.cat((caches[1], v), 2)
        mixed = functional.scaled_dot_product_attention(q, self.repeated(k), self.repeated(v), attn_mask=mask)
        x = x + self.o(mixed.transpose(1, 2).reshape(1, x.shape[1], -1))
        y = self.norm2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y)), k, v


class Decoder(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, args.width)
        self.layers = nn.ModuleList(Block(args.width, args.hidden, args.kv_heads) for _ in range(args.layers))
        self.norm, self.head = Norm(args.width), nn.Linear(args.width, WORDS, bias=False)
        first, count = (0, args.words) if args.phase == "prefill" else (args.words, 1)
        angles = torch.outer(torch.arange(first, first + count), 10000.0 ** (-torch.arange(0, HEAD, 2) / HEAD)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.register_buffer("mask", torch.full((count, count), -1e9).triu(1) if count > 1 else None)

    def forward(self, tokens, *caches):
        x, made = self.embedding(tokens), []
        for i, layer in enumerate(self.layers):
            x, k, v = layer(x, (self.cos, self.sin), self.mask, caches[2 * i:2 * i + 2])
            made += [k, v]
        return self.head(self.norm(x[:, -1:])), *made


def export(args, model):
    inputs = make_inputs(args, args.phase)
    made = ["logits", *(f"present_{i}" for i in range(2 * args.layers))]
    warnings.simplefilter("ignore")
    torch.onnx.export(model, tuple(map(torch.from_numpy, inputs.values())), args.export, dynamo=True, opset_version=20,
                      external_data=False, verbose=False, input_names=list(inputs), output_names=made)


def run(args, model):
    from torch.distributed.tensor import Replicate  # pylint: disable=import-outside-toplevel
    from torch.distributed.tensor.parallel import (  # pylint: disable=import-outside-toplevel
        ColwiseParallel, RowwiseParallel, parallelize_module)

    rank, world = int(os.environ["WEFT_RANK"]), int(os.environ["WEFT_WORLD_SIZE"])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(args.threads)
    dist.init_process_group("gloo", store=dist.FileStore(args.store, world), rank=rank, world_size=world)
    columns = {f"layers.*.{name}": ColwiseParallel() for name in ("q", "k", "v", "gate", "up")}
    rows = {f"layers.*.{name}": RowwiseParallel() for name in ("o", "down")}
    model = parallelize_module(model, dist.init_device_mesh("cpu", (world,)),
                               {**columns, **rows, "head": ColwiseParallel(output_layouts=Replicate())})
    inputs = [torch.from_numpy(value) for value in make_inputs(args, args.phase, world, rank).values()]
    times, processor, logits = [], [], None
    with torch.inference_mode():
        for _ in range(args.steps + 2):
            dist.barrier()
            begin, used = time.perf_counter(), time.process_time()
            logits = model(*inputs)[0]
            times.append(time.perf_counter() - begin)
            processor.append(time.process_time() - used)
    peaks = [None] * world
    dist.all_gather_object(peaks, peak_memory.peak_memory())
    if rank == 0:
        print(json.dumps({"times_s": times[2:], "processor_s": processor[2:], "peak_bytes": peaks, "torch": torch.__version__,
                          "logits": logits.flatten()[:64].tolist()}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("phase", choices=("prefill", "decode"))
    add_sizes(parser)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--export", metavar="OUT.onnx", help="write the model, and do not run it")
    parser.add_argument("--store", help="a file that torch's ranks meet by; it must not exist")
    args = parser.parse_args()
    torch.manual_seed(1)
    model = Decoder(args).eval()
    export(args, model) if args.export else run(args, model)


if __name__ == "__main__":
    sys.exit(main())
