#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A two-layer MLP split over ranks, token after token.

    weft run -n 2 -- python3 samples/python/tensor_parallel.py

The first layer is split by columns, the second by rows, so a rank computes its part of the hidden layer and from that a
partial sum of the output, and one all_reduce per token adds those up:

    rank r:   h_r = gelu(x W1[:, part r] + b1[part r])        y = all_reduce(h_r W2[part r, :]) + b2

A token is a matrix-vector product, which costs the reading of the weights: with N ranks each reads one Nth. What a
rank waits for others is the latency of the all_reduce, so that must be small: prints both, and checks the result
against the whole model.
"""
import argparse
import os
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
try:
    import numpy as np  # noqa: E402, pylint: disable=wrong-import-position

    import weft  # noqa: E402, pylint: disable=wrong-import-position
except ModuleNotFoundError as error:
    raise SystemExit(f"this sample needs the Python package '{error.name}': see samples/python/README.md") from None


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=1024, help="of input and output")
    parser.add_argument("--hidden", type=int, default=4096,
                        help="of the layer between; a multiple of the number of ranks")
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def gelu(x):
    """The approximation by tanh, in place."""
    inner = x * x
    inner *= x
    inner *= np.float32(0.044715)
    inner += x
    inner *= np.float32(0.7978845608)
    np.tanh(inner, out=inner)
    inner += 1
    x *= inner
    x *= np.float32(0.5)
    return x


class Part:
    """The columns of the first layer and the rows of the second that one rank has."""

    def __init__(self, whole, rank, world):
        w1, b1, w2, self.b2 = whole
        columns = slice(rank * w1.shape[1] // world, (rank + 1) * w1.shape[1] // world)
        self.w1 = np.ascontiguousarray(w1[:, columns].T)    # rows are what a token is multiplied with
        self.b1 = b1[columns].copy()
        self.w2 = np.ascontiguousarray(w2[columns, :].T)

    def partial(self, x, out):
        hidden = self.w1 @ x
        hidden += self.b1
        return np.matmul(self.w2, gelu(hidden), out=out)


def make_model(args):
    """w1 (width, hidden), b1, w2 (hidden, width), b2: the same on all ranks, since the seed is."""
    random = np.random.default_rng(args.seed)

    def tensor(*shape):
        return random.normal(0, shape[0] ** -0.5, shape).astype(np.float32)

    return tensor(args.width, args.hidden), tensor(args.hidden), tensor(args.hidden, args.width), tensor(args.width)


def serve(part, tokens, y, reduce):
    """Seconds per token, and of its reduction; outputs (tokens, width). Each token is one that all ranks have."""
    times, waits, outputs = [], [], []
    for token in tokens:
        begin = time.perf_counter()
        part.partial(token, y)
        start = time.perf_counter()
        if reduce:
            weft.all_reduce_(y)
        waits.append(time.perf_counter() - start)
        y += part.b2
        times.append(time.perf_counter() - begin)
        outputs.append(y.copy())
    return np.array(times), np.array(waits), np.array(outputs)


def main():
    args = parse_arguments()
    weft.init()
    rank, world = weft.get_rank(), weft.get_world_size()
    if args.hidden % world:
        raise SystemExit(f"--hidden {args.hidden} is not a multiple of {world} ranks")
    whole = make_model(args)
    tokens = np.random.default_rng(args.seed + 1).normal(size=(args.tokens, args.width)).astype(np.float32)
    weft.broadcast(tokens, root=0)
    y = weft.zeros((args.width,), "float32")    # peers add up in it directly

    alone, _, expected = serve(Part(whole, 0, 1), tokens, np.zeros(args.width, np.float32), False)
    weft.barrier()
    times, waits, outputs = serve(Part(whole, rank, world), tokens, y, True)

    worst = weft.all_reduce(np.array([np.abs(outputs - expected).max() / np.abs(expected).max()]), op="max")[0]
    if worst > 1e-4:
        raise SystemExit(f"rank {rank}: split and whole model differ by {worst:.1e} of the largest output")
    if rank == 0:
        print(f"{args.width}-{args.hidden}-{args.width}, {args.tokens} tokens, one at a time; median latency per token")
        print(f"  whole model, 1 rank    {np.median(alone) * 1e6:8.1f} us")
        print(f"  split, {world} rank{'s' if world > 1 else ' '}          {np.median(times) * 1e6:8.1f} us, of which "
              f"{np.median(waits) * 1e6:.1f} us all_reduce (waiting for others included)")
        print(f"  largest difference     {worst:8.1e} of the largest output")
    weft.finalize()


if __name__ == "__main__":
    main()
