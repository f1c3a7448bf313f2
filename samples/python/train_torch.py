#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training with torch: a small CNN in DistributedDataParallel, on backend weft.

    weft run -n 2 -- python3 samples/python/train_torch.py
    torchrun --nproc_per_node 2 samples/python/train_torch.py --backend gloo        to compare

--hook weft (the default on backend weft) hands whole buckets of gradients to Weft, which averages them in place, in
memory that other ranks reach; --hook none leaves that to DDP. Runs under any launcher; alone it is one rank.
"""
import argparse
import gzip
import os
import statistics
import time

try:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import weft.torch
except ModuleNotFoundError as error:
    raise SystemExit(f"this sample needs the Python package '{error.name}': see samples/python/README.md") from None


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist", help="folder of the four IDX files")
    parser.add_argument("--model", choices=("cnn", "mlp"), default="cnn")
    parser.add_argument("--backend", choices=("weft", "gloo"), default="weft")
    parser.add_argument("--hook", choices=("weft", "none"), default="weft")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, help="steps per epoch (default: as many as there are samples for)")
    parser.add_argument("--batch", type=int, default=64, help="samples per rank and step")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="threads of torch per rank")
    args = parser.parse_args()
    if not os.path.exists(f"{args.data}/train-images-idx3-ubyte.gz"):
        parser.error(f"{args.data} has no train-images-idx3-ubyte.gz: install dataset-fashion-mnist, or give --data")
    return args


def read_images(folder, part):
    """float32 (count, 1, 28, 28), about 0 with a variance of about 1; int64 (count,)"""
    with gzip.open(f"{folder}/{part}-images-idx3-ubyte.gz") as file:
        images = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8, offset=16).view(-1, 1, 28, 28)
    with gzip.open(f"{folder}/{part}-labels-idx1-ubyte.gz") as file:
        labels = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8, offset=8).long()
    return (images.float() / 255 - 0.286) / 0.353, labels


def make_model(name):
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
                             nn.Linear(256, 10))
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1),
                         nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 49, 128), nn.ReLU(),
                         nn.Linear(128, 10))


def accuracy(model, images, labels):
    """Over all ranks' shares of the test images."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model.eval()
    with torch.no_grad():
        right = torch.zeros(1)
        for part in torch.arange(rank, len(labels), world).split(500):
            right += (model(images[part]).argmax(1) == labels[part]).sum()
    model.train()
    dist.all_reduce(right)
    return right.item() / len(labels)


def main():
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    dist.init_process_group(args.backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    images, labels = read_images(args.data, "train")
    test_images, test_labels = read_images(args.data, "t10k")

    local = make_model(args.model)
    model = DistributedDataParallel(local)
    if args.backend == "weft" and args.hook == "weft":
        model.register_comm_hook(weft.torch.Buckets(), weft.torch.ddp_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    steps = args.steps or len(labels) // (args.batch * world)
    shuffled = torch.Generator().manual_seed(args.seed)     # the same on all ranks

    for epoch in range(args.epochs):
        order = torch.randperm(len(labels), generator=shuffled)
        times, losses = [], []
        for step in range(steps):
            begin = time.perf_counter()
            part = order[(step * world + rank) * args.batch:(step * world + rank + 1) * args.batch]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[part]), labels[part])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            times.append(time.perf_counter() - begin)
        mean = torch.tensor([sum(losses) / len(losses)])
        dist.all_reduce(mean)
        found = accuracy(local, test_images, test_labels)
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {mean.item() / world:.4f}, accuracy {found:.4f}, {world} ranks, backend"
                  f" {args.backend}, {statistics.median(times) * 1e3:.2f} ms per step", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
