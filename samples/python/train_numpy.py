#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training by hand: an MLP in numpy, gradients averaged by weft.

    weft run -n 2 -- python3 samples/python/train_numpy.py

Every rank has the whole model and a part of every batch. Gradients are views into one array of weft.zeros, memory that
other ranks reach directly, so one all_reduce_ per step averages all of them in place. Runs under any launcher; alone it
is one rank.
"""
import argparse
import gzip
import os
import time

# One thread of BLAS per rank: before numpy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
try:
    import numpy as np  # noqa: E402, pylint: disable=wrong-import-position

    import weft  # noqa: E402, pylint: disable=wrong-import-position
except ModuleNotFoundError as error:
    raise SystemExit(f"this sample needs the Python package '{error.name}': see samples/python/README.md") from None

SIZES = (784, 512, 256, 10)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist", help="folder of the four IDX files")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, help="steps per epoch (default: as many as there are samples for)")
    parser.add_argument("--batch", type=int, default=64, help="samples per rank and step")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate, falling to 0 linearly")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if not os.path.exists(f"{args.data}/train-images-idx3-ubyte.gz"):
        parser.error(f"{args.data} has no train-images-idx3-ubyte.gz: install dataset-fashion-mnist, or give --data")
    return args


def read_images(folder, part):
    """float32 (count, 784), 0 to 1; int64 (count,)"""
    with gzip.open(f"{folder}/{part}-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, SIZES[0])
    with gzip.open(f"{folder}/{part}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8).astype(np.int64)
    return images.astype(np.float32) / 255, labels


class Tensors:
    """Weights and biases of all layers, in one array; each is a view into it."""

    def __init__(self, flat):
        self.flat = flat
        self.weights, self.biases = [], []
        at = 0
        for inputs, outputs in zip(SIZES, SIZES[1:]):
            self.weights.append(flat[at:at + inputs * outputs].reshape(inputs, outputs))
            at += inputs * outputs
            self.biases.append(flat[at:at + outputs])
            at += outputs

    @staticmethod
    def size():
        return sum(inputs * outputs + outputs for inputs, outputs in zip(SIZES, SIZES[1:]))


def forward(model, images):
    """The input of every layer, and the last one's output (logits)."""
    values = [images]
    for index, (weight, bias) in enumerate(zip(model.weights, model.biases)):
        value = values[-1] @ weight
        value += bias
        if index + 1 < len(model.weights):
            np.maximum(value, 0, out=value)
        values.append(value)
    return values


def backward(model, gradients, values, labels):
    """Fills in gradients of the mean cross entropy over this rank's samples; returns that."""
    logits = values[-1]
    logits -= logits.max(axis=1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.log(np.maximum(logits[rows, labels], 1e-30)).mean()
    logits[rows, labels] -= 1
    error = logits / np.float32(len(labels))
    for index in reversed(range(len(model.weights))):
        np.matmul(values[index].T, error, out=gradients.weights[index])
        np.sum(error, axis=0, out=gradients.biases[index])
        if index > 0:
            error = error @ model.weights[index].T
            error *= values[index] > 0
    return float(loss)


def accuracy(model, images, labels):
    """Over all ranks' shares of the test images."""
    rank, world = weft.get_rank(), weft.get_world_size()
    found = forward(model, images[rank::world])[-1].argmax(axis=1)
    right = np.array([np.count_nonzero(found == labels[rank::world])])
    return int(weft.all_reduce(right)[0]) / len(labels)


def main():
    args = parse_arguments()
    weft.init()
    rank, world = weft.get_rank(), weft.get_world_size()
    images, labels = read_images(args.data, "train")
    steps = args.steps or len(labels) // (args.batch * world)

    random = np.random.default_rng(args.seed)
    model = Tensors(np.zeros(Tensors.size(), np.float32))
    for weight in model.weights:
        weight[:] = random.normal(0, np.sqrt(2 / weight.shape[0]), weight.shape)
    weft.broadcast(model.flat, root=0)      # the same everywhere, also if the seeds were not
    gradients = Tensors(weft.zeros((Tensors.size(),), "float32"))
    velocity = np.zeros_like(model.flat)

    for epoch in range(args.epochs):
        order = np.random.default_rng([args.seed, epoch]).permutation(len(labels))     # the same on all ranks
        times, waits, losses = [], [], []
        for step in range(steps):
            begin = time.perf_counter()
            at = (step * world + rank) * args.batch % (len(labels) - args.batch + 1)
            mine = order[at:at + args.batch]
            losses.append(backward(model, gradients, forward(model, images[mine]), labels[mine]))
            start = time.perf_counter()
            weft.all_reduce_(gradients.flat, op="avg")
            waits.append(time.perf_counter() - start)
            lr = args.lr * (1 - (epoch * steps + step) / (args.epochs * steps))
            velocity *= np.float32(args.momentum)
            velocity += gradients.flat
            model.flat -= np.float32(lr) * velocity
            times.append(time.perf_counter() - begin)
        loss = weft.all_reduce(np.array([np.mean(losses)]), op="avg")[0]
        right = accuracy(model, *read_images(args.data, "t10k"))
        if rank == 0:
            step_ms, wait_ms = np.median(times) * 1e3, np.median(waits) * 1e3
            print(f"epoch {epoch + 1}: loss {loss:.4f}, accuracy {right:.4f}, {step_ms:.2f} ms per step, of which"
                  f" {wait_ms:.2f} ms all_reduce", flush=True)

    # Ranks that did the same have the same weights, to the bit.
    least, most = weft.all_reduce(model.flat, op="min"), weft.all_reduce(model.flat, op="max")
    if not np.array_equal(least, most):
        raise SystemExit("ranks have different weights")
    if rank == 0:
        print(f"{world} rank{'s have' if world > 1 else ' has'} the same weights")
    weft.finalize()


if __name__ == "__main__":
    main()
