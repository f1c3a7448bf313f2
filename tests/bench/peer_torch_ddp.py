#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The peer: PyTorch DistributedDataParallel over Gloo, trained on the same data as Weft.

Every rank is a process with one thread, pinned to a core of its own. A step is what a training loop does:
take a batch, zero_grad, forward, loss, backward (DDP averages the gradients meanwhile), SGD with momentum.
Prints one JSON object with the times of single steps on rank 0, and the BLAS that torch really loaded.
"""
import argparse
import gzip
import json
import os
import socket
import sys
import time

DATA = "/usr/share/datasets/fashion-mnist"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=("mlp", "lenet", "wide"), default="mlp")
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64, help="samples per rank")
    parser.add_argument("--warm-up", type=int, default=20, help="steps that are not counted")
    parser.add_argument("--data", default=DATA)
    parser.add_argument("--rank", type=int, help="this process is that rank only; default: all are started here")
    parser.add_argument("--master", help="ADDRESS:PORT where rank 0 listens, with --rank")
    return parser.parse_args()


def read_idx(path, header, numpy):
    with gzip.open(path) as file:
        return numpy.frombuffer(file.read(), numpy.uint8, offset=header).copy()


def loaded_blas():
    """Files of the linear algebra libraries in this process, as the loader resolved them."""
    names = set()
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            file = line.split()[-1]
            base = os.path.basename(file)
            if any(word in base for word in ("blas", "blis", "mkl", "dnnl")):
                names.add(os.path.realpath(file))
    return sorted(names)


def build(kind, nn):
    if kind in ("mlp", "wide"):
        sizes = (784, 512, 256, 10) if kind == "mlp" else (784, *[2048] * 5, 10)
        layers = [nn.Flatten()]
        for index in range(len(sizes) - 1):
            layers.append(nn.Linear(sizes[index], sizes[index + 1]))
            if index + 2 < len(sizes):
                layers.append(nn.ReLU())
        return nn.Sequential(*layers)
    features = [nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    head = [nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    return nn.Sequential(*features, *head)


def train(rank, master, args):
    import numpy
    import torch
    import torch.distributed as dist
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = master.rsplit(":", 1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", rank=rank, world_size=args.ranks)
    pixels = read_idx(f"{args.data}/train-images-idx3-ubyte.gz", 16, numpy)
    images = torch.from_numpy(pixels.reshape(-1, 1, 28, 28)).float() / 255
    labels = torch.from_numpy(read_idx(f"{args.data}/train-labels-idx1-ubyte.gz", 8, numpy)).long()
    model = torch.nn.parallel.DistributedDataParallel(build(args.model, torch.nn))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(2))
    warmup, times, losses = args.warm_up, [], []
    for step in range(warmup + args.steps):
        at = ((step * args.ranks + rank) * args.batch) % (len(labels) - args.batch)
        begin = time.perf_counter()
        index = order[at:at + args.batch]
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images[index]), labels[index])
        loss.backward()
        optimizer.step()
        times.append((time.perf_counter() - begin) * 1e3)
        losses.append(float(loss.detach()))
    dist.barrier()
    if rank == 0:
        measured = sorted(times[warmup:])
        count = len(measured)
        print(json.dumps({
            "name": f"torch_ddp_{args.model}", "ranks": args.ranks, "batch": args.batch, "dtype": "f32",
            "iterations": count, "step_ms_min": round(measured[0], 4),
            "step_ms_p50": round(measured[count // 2], 4), "step_ms_p90": round(measured[count * 9 // 10], 4),
            "loss_first": round(losses[0], 4), "loss_last": round(losses[-1], 4),
            "torch": torch.__version__, "blas": loaded_blas()}), flush=True)
    dist.destroy_process_group()


def main():
    args = parse_arguments()
    try:
        from torch import multiprocessing
    except ImportError as error:
        print(f"peer_torch_ddp: no torch ({error}); Debian: apt-get install python3-torch", file=sys.stderr)
        return 77
    if args.rank is not None:
        train(args.rank, args.master, args)
        return 0
    with socket.socket() as probe:  # a free port; nobody else on this host should take it meanwhile
        probe.bind(("127.0.0.1", 0))
        master = f"127.0.0.1:{probe.getsockname()[1]}"
    multiprocessing.spawn(train, args=(master, args), nprocs=args.ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
