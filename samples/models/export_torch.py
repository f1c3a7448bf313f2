#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exports torch models with their loss as ONNX files that Weft trains.

usage: export_torch.py [--tiny] [--fixed-batch] FOLDER

Needs python3-torch (1.13 was tried). What matters in the call of torch.onnx.export:
  - the module returns the loss: cross_entropy becomes one SoftmaxCrossEntropyLoss node;
  - training=TRAINING and do_constant_folding=False keep parameters as they are, with their names;
  - dynamic_axes names the batch; without it the file says the batch of the example inputs, which `--batch` replaces.
--tiny makes the small models of Weft's tests; --fixed-batch leaves dynamic_axes out.
"""
import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F


class WithLoss(nn.Module):
    """The model and its loss in one module; the logits are an output, too."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, image, label):
        logits = self.model(image)
        return F.cross_entropy(logits, label), logits


def mlp(tiny):
    a, b, c = (8, 12, 6) if tiny else (28, 512, 256)
    return nn.Sequential(nn.Flatten(), nn.Linear(a * a, b), nn.ReLU(), nn.Linear(b, c), nn.ReLU(), nn.Linear(c, 10)), a


def lenet(tiny):
    """The classic one: tanh and average pooling, which torch writes as Pad + AveragePool."""
    size, c1, c2, d1, d2 = (12, 2, 3, 8, 6) if tiny else (28, 6, 16, 120, 84)
    edge = (size // 2 - 4) // 2
    return nn.Sequential(
        nn.Conv2d(1, c1, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2),
        nn.Conv2d(c1, c2, 5), nn.Tanh(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(c2 * edge * edge, d1), nn.Tanh(), nn.Linear(d1, d2), nn.Tanh(), nn.Linear(d2, 10)), size


class Reshaping(nn.Module):
    """Flattens by view, so that the exporter bakes the batch into a constant."""

    def __init__(self, size):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(size * size, 12), nn.Linear(12, 10)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x.view(x.size(0), -1))))


class Dropping(nn.Module):
    """Dropout after the hidden layer."""

    def __init__(self, size):
        super().__init__()
        self.fc1, self.drop, self.fc2 = nn.Linear(size * size, 12), nn.Dropout(0.25), nn.Linear(12, 10)

    def forward(self, x):
        return self.fc2(self.drop(torch.relu(self.fc1(x.flatten(1)))))


def export(model, size, path, fixed_batch):
    image, label = torch.zeros(4, 1, size, size), torch.zeros(4, dtype=torch.int64)
    axes = None if fixed_batch else {"image": {0: "batch"}, "label": {0: "batch"}, "logits": {0: "batch"}}
    torch.onnx.export(WithLoss(model).train(), (image, label), path, opset_version=13,
                      training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
                      input_names=["image", "label"], output_names=["loss", "logits"], dynamic_axes=axes)
    print(f"{path}: {os.path.getsize(path)} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--fixed-batch", action="store_true")
    parser.add_argument("folder")
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    models = {"mlp": lambda: mlp(args.tiny), "lenet_avgpool": lambda: lenet(args.tiny)}
    if args.tiny:
        models["reshape"] = lambda: (Reshaping(8), 8)
        models["dropout"] = lambda: (Dropping(8), 8)
    for name, make in models.items():
        torch.manual_seed(1)
        model, size = make()
        suffix = "_batch4" if args.fixed_batch else ""
        export(model, size, os.path.join(args.folder, f"torch_{name}{suffix}.onnx"), args.fixed_batch)


if __name__ == "__main__":
    main()
