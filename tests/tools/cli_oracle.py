#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training agrees with the same training written in numpy (MLP, in double precision) and in torch (LeNet): the same
initial weights, order of samples, learning rates and optimizers."""
import sys
import unittest

import support
from support import Case, DATA, MODELS, NEED_DATA, TRAIN_COUNT, read_idx

try:
    import numpy as np
    import onnx
    import onnx.numpy_helper
except ImportError:
    print("skipped: python3-numpy or python3-onnx is missing")
    sys.exit(77)
try:
    import torch
except ImportError:
    torch = None

# The kernels of each optimizer are called under sanitizers by tests/ops.
ONE_IS_ENOUGH = unittest.skipIf(support.SANITIZED, "one optimizer of a model is enough under sanitizers")
WORLD, BATCH, SEED, COUNT = 2, 16, 3, TRAIN_COUNT
MASK = (1 << 64) - 1


def splitmix64(state):
    while True:
        state = (state + 0x9e3779b97f4a7c15) & MASK
        z = ((state ^ (state >> 30)) * 0xbf58476d1ce4e5b9) & MASK
        z = ((z ^ (z >> 27)) * 0x94d049bb133111eb) & MASK
        yield z ^ (z >> 31)


def shuffled(seed, epoch, count=COUNT):
    order = list(range(count))
    numbers = splitmix64((seed * 0x100000001b3 + epoch) & MASK)
    for i in range(count, 1, -1):
        j = ((next(numbers) >> 32) * i) >> 32
        order[i - 1], order[j] = order[j], order[i - 1]
    return order


def weights_of(path):
    return {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load(path).graph.initializer}


class Update:
    """One optimizer in the notation of its paper, for anything with numpy's arithmetic. Biases do not decay if only
    weights do."""

    def __init__(self, kind, decay=0.0, only_weights=False):
        self.kind, self.decay, self.first, self.second, self.step = kind, decay, {}, {}, 0
        self.only_weights = only_weights

    def __call__(self, weights, gradients, lr):
        self.step += 1
        for name, gradient in gradients.items():
            spared = self.only_weights and name.endswith("bias")
            decay = 0 if spared else self.decay
            if self.kind == "adamw":
                weights[name] = weights[name] * (1 - lr * decay)
            elif self.kind != "lamb":
                gradient = gradient + decay * weights[name]
            if self.kind == "sgd":
                change = gradient
            elif self.kind == "momentum":
                change = self.first[name] = 0.9 * self.first.get(name, 0.0) + gradient
            else:
                self.first[name] = 0.9 * self.first.get(name, 0.0) + 0.1 * gradient
                self.second[name] = 0.999 * self.second.get(name, 0.0) + 0.001 * gradient * gradient
                mean = self.first[name] / (1 - 0.9 ** self.step)
                change = mean / ((self.second[name] / (1 - 0.999 ** self.step)) ** 0.5 + 1e-8)
            if self.kind == "lamb":
                change = change + decay * weights[name]
                norms = [(x * x).sum() ** 0.5 for x in (weights[name], change)]
                change = change * (norms[0] / norms[1] if all(norms) and not spared else 1)
            weights[name] = weights[name] - lr * change


def mlp(weights, images, labels):
    """Loss and gradients of Flatten, three layers and the mean of cross-entropies."""
    x = [images.reshape(len(images), -1).astype(np.float64)]
    for layer in (1, 2, 3):
        y = x[-1] @ weights[f"fc{layer}.weight"].T + weights[f"fc{layer}.bias"]
        x.append(np.maximum(y, 0) if layer < 3 else y)
    shifted = x[3] - x[3].max(1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    rows = np.arange(len(labels))
    d = np.exp(log_p)
    d[rows, labels] -= 1
    d /= len(labels)
    gradients = {}
    for layer in (3, 2, 1):
        gradients[f"fc{layer}.weight"] = d.T @ x[layer - 1]
        gradients[f"fc{layer}.bias"] = d.sum(0)
        d = (d @ weights[f"fc{layer}.weight"]) * (x[layer - 1] > 0)
    return -log_p[rows, labels].mean(), gradients


def lenet(weights, images, labels):
    f = torch.nn.functional
    leaves = {name: value.detach().requires_grad_() for name, value in weights.items()}
    x = f.max_pool2d(f.relu(f.conv2d(torch.tensor(images, dtype=torch.float64).reshape(-1, 1, 28, 28),
                                     leaves["conv1.weight"], leaves["conv1.bias"], padding=2)), 2)
    x = f.max_pool2d(f.relu(f.conv2d(x, leaves["conv2.weight"], leaves["conv2.bias"])), 2).flatten(1)
    for layer in (1, 2):
        x = f.relu(f.linear(x, leaves[f"fc{layer}.weight"], leaves[f"fc{layer}.bias"]))
    loss = f.cross_entropy(f.linear(x, leaves["fc3.weight"], leaves["fc3.bias"]), torch.tensor(labels))
    loss.backward()
    return loss.item(), {name: leaf.grad for name, leaf in leaves.items()}


@NEED_DATA
class Oracle(Case):
    @classmethod
    def setUpClass(cls):
        cls.images = (read_idx("train-images-idx3-ubyte.gz").reshape(COUNT, 28, 28).astype(np.float32) /
                      np.float32(255))
        cls.labels = read_idx("train-labels-idx1-ubyte.gz").astype(np.int64)
        cls.order = shuffled(SEED, 0)

    def expected(self, model, network, optimizer, lr, steps, convert, decay, more):
        """Loss of every step, and the weights after the last one, of all ranks' samples as one batch."""
        weights = {name: convert(value.astype(np.float64)) for name, value in weights_of(MODELS / model).items()}
        update, losses = Update(optimizer, decay, "--no-decay" in more), []
        for step in range(steps):
            part = self.order[step * WORLD * BATCH:(step + 1) * WORLD * BATCH]
            loss, gradients = network(weights, self.images[part], self.labels[part])
            losses.append(loss)
            update(weights, gradients, lr * (1 - step / steps))  # --lr-schedule linear
        return losses, {name: np.asarray(value) for name, value in weights.items()}

    def compare(self, model, network, optimizer, lr, steps, tolerance, convert=lambda value: value, decay=0.0, more=()):
        start = weights_of(MODELS / model)
        # Runs of several lengths: the last loss of each is a point of a curve.
        for length in (1, steps // 3, steps):
            saved = self.dir / "saved.onnx"
            report = self.weft_json("run", MODELS / model, "-n", WORLD, "--batch", BATCH, "--data", DATA, "--no-eval", "--steps",
                                    length, "--seed", SEED, "--optimizer", optimizer, "--lr", lr, "--lr-schedule",
                                    "linear", "--bucket", "none", "--weight-decay", decay, *more, "--save", saved)
            losses, weights = self.expected(model, network, optimizer, lr, length, convert, decay, more)
            self.assertAlmostEqual(report["loss_first"], losses[0], delta=2e-6)
            self.assertAlmostEqual(report["loss_last"], losses[-1], delta=tolerance)
            for name, value in weights_of(saved).items():
                moved = np.linalg.norm(weights[name] - start[name])
                error = np.linalg.norm(weights[name] - value) / moved
                self.assertLess(error, tolerance, (length, name))
        self.assertLess(losses[-1], losses[0] - 0.05)  # there was something to compare

    @ONE_IS_ENOUGH
    def test_mlp_sgd(self):
        self.compare("mlp.onnx", mlp, "sgd", 0.2, 30, 1e-4)

    @ONE_IS_ENOUGH
    def test_mlp_momentum(self):
        self.compare("mlp.onnx", mlp, "momentum", 0.05, 30, 2e-4)

    @ONE_IS_ENOUGH
    def test_mlp_adam(self):
        self.compare("mlp.onnx", mlp, "adam", 0.001, 30, 5e-3)

    def test_mlp_adamw(self):
        self.compare("mlp.onnx", mlp, "adamw", 0.001, 30, 1e-2, decay=0.5, more=("--no-decay", "*.bias"))

    def test_mlp_lamb(self):
        self.compare("mlp.onnx", mlp, "lamb", 0.005, 30, 1e-2, decay=0.5, more=("--no-decay", "1d"))

    @ONE_IS_ENOUGH
    @unittest.skipIf(torch is None, "python3-torch is missing")
    def test_updates_are_those_of_torch(self):
        for kind, make in (("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW),
                           ("momentum", lambda leaves, **more: torch.optim.SGD(leaves, momentum=0.9, **more))):
            leaf = torch.linspace(-1, 1, 7, dtype=torch.float64, requires_grad=True)
            theirs, update = make([leaf], lr=0.1, weight_decay=0.2), Update(kind, 0.2)
            ours = {"w": leaf.detach().clone()}
            for step in range(5):
                leaf.grad = torch.cos(leaf.detach() + step)
                update(ours, {"w": leaf.grad.clone()}, 0.1)
                theirs.step()
                self.assertLess((ours["w"] - leaf.detach()).abs().max().item(), 1e-12, (kind, step))

    @unittest.skipIf(torch is None, "python3-torch is missing")
    def test_lenet_momentum(self):
        self.compare("lenet.onnx", lenet, "momentum", 0.1, 30, 1e-3, torch.tensor)

    @ONE_IS_ENOUGH
    @unittest.skipIf(torch is None, "python3-torch is missing")
    def test_lenet_adam(self):
        self.compare("lenet.onnx", lenet, "adam", 0.003, 30, 1e-2, torch.tensor)

    def test_epochs_have_orders_of_their_own(self):
        count = 100  # three steps an epoch; the samples that are left over wait for the next
        for name, data, dims in (("images-idx3", self.images[:count] * 255, (count, 28, 28)),
                                 ("labels-idx1", self.labels[:count], (count,))):
            head = bytes([0, 0, 8, len(dims)]) + b"".join(d.to_bytes(4, "big") for d in dims)
            (self.dir / f"train-{name}-ubyte").write_bytes(head + np.rint(data).astype(np.uint8).tobytes())
        report = self.weft_json("run", MODELS / "mlp.onnx", "-n", WORLD, "--batch", BATCH, "--data", self.dir,
                                "--steps", 8, "--seed", SEED, "--optimizer", "sgd", "--lr", "0.1")
        weights = {name: value.astype(np.float64) for name, value in weights_of(MODELS / "mlp.onnx").items()}
        update = Update("sgd")
        for step in range(8):
            part = shuffled(SEED, step // 3, count)[step % 3 * WORLD * BATCH:(step % 3 + 1) * WORLD * BATCH]
            loss, gradients = mlp(weights, self.images[part], self.labels[part])
            update(weights, gradients, 0.1)
        self.assertAlmostEqual(report["loss_last"], loss, delta=1e-5)
        self.assertIsNone(report["test_accuracy"])  # there is no test set


if __name__ == "__main__":
    support.main()
