#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of training by weft.Session, fed from Python: weft run -n 2 -- python3 python_session.py MODEL.onnx

The loop of python_ddp.py: take a batch, run a step. Rank 0 prints JSON: the median of single steps, and the time of an
epoch.
"""
import argparse
import gzip
import json
import os
import statistics
import sys
import time

import numpy as np
import weft

DATA = "/usr/share/datasets/fashion-mnist"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=468)
    parser.add_argument("--warm-up", type=int, default=26)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--data", default=DATA)
    return parser.parse_args()


def read_idx(path, header):
    with gzip.open(path) as file:
        return np.frombuffer(file.read(), np.uint8, offset=header)


def main():
    args = parse_arguments()
    rank, world = int(os.environ["WEFT_RANK"]), int(os.environ["WEFT_WORLD_SIZE"])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    weft.init()
    images = read_idx(f"{args.data}/train-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28).astype(np.float32) / 255
    labels = read_idx(f"{args.data}/train-labels-idx1-ubyte.gz", 8).astype(np.int64)
    order = np.random.default_rng(2).permutation(len(labels))
    session = weft.Session(weft.compile(args.model, world=world, batch=args.batch))
    times, loss = [], 0.0
    for step in range(args.warm_up + args.steps):
        at = ((step * world + rank) * args.batch) % (len(labels) - args.batch)
        begin = time.perf_counter()
        index = order[at:at + args.batch]
        loss = session.step(images[index], labels[index])
        times.append(time.perf_counter() - begin)
    times = sorted(times[args.warm_up:])
    if rank == 0:
        print(json.dumps({"ranks": world, "batch": args.batch, "steps": args.steps,
                          "step_ms_p50": statistics.median(times) * 1e3,
                          "step_ms_p90": times[len(times) * 9 // 10] * 1e3,
                          "epoch_s": statistics.mean(times) * (len(labels) // (args.batch * world)),
                          "loss": float(loss)}),
              flush=True)
    weft.barrier()
    weft.finalize()


if __name__ == "__main__":
    sys.exit(main())
