#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The measurement of `weft bench all_reduce` by torch.distributed over Gloo: one JSON line per size."""
import argparse
import json
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def rounds_for(size):
    return 300 if size <= 4096 else 100 if size <= 262144 else 30 if size <= 4 << 20 else 8


def rank_main(rank, ranks, master, arguments):
    host, port = master.rsplit(":", 1)
    os.environ.update(MASTER_ADDR=host, MASTER_PORT=port)
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[rank % len(cpus)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    size = arguments.min
    while size <= arguments.max:
        data = torch.zeros(size // 4)
        rounds = rounds_for(size)
        times = torch.zeros(rounds, dtype=torch.float64)
        for i in range(-rounds // 5, rounds):
            data.fill_(rank + 1)
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(data)
            if i >= 0:
                times[i] = time.perf_counter() - start
        dist.all_reduce(times, op=dist.ReduceOp.MAX)
        if rank == 0:
            p50 = times.median().item() * 1e6
            print(json.dumps({"op": "all_reduce", "bytes": size, "ranks": ranks, "p50_us": p50}), flush=True)
        size *= arguments.factor
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("--min", type=int, default=8)
    parser.add_argument("--max", type=int, default=16 << 20)
    parser.add_argument("--factor", type=int, default=8)
    parser.add_argument("--rank", type=int, help="this process is that rank only; default: all are started here")
    parser.add_argument("--master", help="ADDRESS:PORT where rank 0 listens, with --rank")
    arguments = parser.parse_args()
    if arguments.rank is not None:
        rank_main(arguments.rank, arguments.ranks, arguments.master, arguments)
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        master = f"127.0.0.1:{probe.getsockname()[1]}"
    mp.spawn(rank_main, args=(arguments.ranks, master, arguments), nprocs=arguments.ranks)


if __name__ == "__main__":
    main()
