#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of DDP training of the MLP, on backends gloo and weft by turns.

    WEFT_BIND=none weft run -n 2 -- python3 python_ddp.py --store FILE

In one process, so that whatever else the machine does hits all alike, several models that are trained by turns, some
steps each:

    nothing    DDP whose hook leaves buckets as they are: what a step costs without communication
    gloo       DDP over Gloo
    weft       DDP over backend weft
    hook       the same with weft.torch.ddp_hook: whole buckets in place

Exposed communication is a step's time above that of `nothing`. Rank 0 prints JSON; medians over single steps, and the
time of an epoch (468 steps at two ranks of 64) by their mean.
"""
import argparse
import gzip
import json
import os
import statistics
import sys
import time

DATA = "/usr/share/datasets/fashion-mnist"
SIZES = (784, 512, 256, 10)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=468, help="steps of each model")
    parser.add_argument("--turn", type=int, default=26, help="steps until the next model's turn")
    parser.add_argument("--warm-up", type=int, default=26)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--data", default=DATA)
    parser.add_argument("--store", required=True, help="a file that torch's ranks meet by; it must not exist")
    parser.add_argument("--only", action="append", choices=("nothing", "gloo", "weft", "hook"), help="default: all")
    return parser.parse_args()


def read_idx(path, header, numpy):
    with gzip.open(path) as file:
        return numpy.frombuffer(file.read(), numpy.uint8, offset=header).copy()


def loaded_blas():
    """Names of the linear algebra libraries in this process."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        files = {os.path.realpath(line.split()[-1]) for line in maps if "/" in line}
    return sorted(file for file in files if any(word in os.path.basename(file) for word in ("blas", "blis", "mkl")))


class Trained:
    """A model with its optimizer, and the times of its steps."""

    def __init__(self, torch, kind, groups, gather):
        layers = [torch.nn.Flatten()]
        torch.manual_seed(1)
        for index in range(len(SIZES) - 1):
            layers.append(torch.nn.Linear(SIZES[index], SIZES[index + 1]))
            if index + 2 < len(SIZES):
                layers.append(torch.nn.ReLU())
        self.torch, self.kind, self.gather = torch, kind, gather
        group = groups["weft" if kind in ("weft", "hook") else "gloo"]
        self.model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), process_group=group)
        if kind == "nothing":
            self.model.register_comm_hook(None, self.leave)
        elif kind == "hook":
            import weft.torch  # pylint: disable=import-outside-toplevel
            self.model.register_comm_hook(group, weft.torch.ddp_hook)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.times, self.loss, self.steps = [], 0.0, 0

    def leave(self, _, bucket):
        future = self.torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def step(self):
        begin = time.perf_counter()
        images, labels = self.gather(self.steps)
        self.optimizer.zero_grad()
        loss = self.torch.nn.functional.cross_entropy(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        self.times.append(time.perf_counter() - begin)
        self.loss = float(loss.detach())
        self.steps += 1


def main():
    args = parse_arguments()
    import numpy  # pylint: disable=import-outside-toplevel
    import torch  # pylint: disable=import-outside-toplevel
    import torch.distributed as dist  # pylint: disable=import-outside-toplevel
    import weft.torch  # noqa: F401, pylint: disable=import-outside-toplevel,unused-import
    rank, world = int(os.environ["WEFT_RANK"]), int(os.environ["WEFT_WORLD_SIZE"])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    # Gloo's threads run on any core: faster than on that of the thread which computes
    dist.init_process_group("gloo", store=dist.FileStore(args.store, world), rank=rank, world_size=world)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    kinds = args.only or ["nothing", "gloo", "weft", "hook"]
    groups = {"gloo": None}
    if {"weft", "hook"} & set(kinds):
        groups["weft"] = dist.new_group(backend="weft")

    pixels = read_idx(f"{args.data}/train-images-idx3-ubyte.gz", 16, numpy)
    images = torch.from_numpy(pixels.reshape(-1, 1, 28, 28)).float() / 255
    labels = torch.from_numpy(read_idx(f"{args.data}/train-labels-idx1-ubyte.gz", 8, numpy)).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(2))

    def gather(step):
        at = ((step * world + rank) * args.batch) % (len(labels) - args.batch)
        index = order[at:at + args.batch]
        return images[index], labels[index]

    models = [Trained(torch, kind, groups, gather) for kind in kinds]
    while models[0].steps < args.warm_up + args.steps:
        for model in models:
            dist.barrier()
            for _ in range(args.turn):
                model.step()
    dist.barrier()
    if rank == 0:
        rows = {}
        for model in models:
            times = sorted(model.times[args.warm_up:])
            rows[model.kind] = {"step_ms_p50": statistics.median(times) * 1e3,
                                "step_ms_p90": times[len(times) * 9 // 10] * 1e3,
                                "epoch_s": statistics.mean(times) * (len(labels) // (args.batch * world)),
                                "loss": model.loss}
        print(json.dumps({"ranks": world, "batch": args.batch, "steps": args.steps, "torch": torch.__version__,
                          "blas": loaded_blas(), "rows": rows}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
