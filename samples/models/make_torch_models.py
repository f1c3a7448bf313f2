#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes resnet.onnx and unet.onnx, tiny models with random weights and their loss as torch exports them in training
form, and for each a .json: the loss, gradients and running means of one step that torch computes in double precision,
each as its norm and its product with cos(0), cos(1), ... The running variance of torch is not that of ONNX.

usage: make_torch_models.py FOLDER

Needs torch (2.15 was used). `python -m weft.export` writes a model of your own in the same way.
"""
import json
import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional

BATCH, SIZE, CLASSES = 4, 16, 5


def conv(inputs, outputs, stride=1):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """Two convolutions beside a shortcut, as in ResNet-18."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first, self.second = conv(inputs, outputs, stride), conv(outputs, outputs)
        self.shortcut = nn.Sequential() if stride == 1 else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                                                                          nn.BatchNorm2d(outputs))

    def forward(self, x):
        return torch.relu(self.second(torch.relu(self.first(x))) + self.shortcut(x))


def resnet():
    return nn.Sequential(conv(3, 8), nn.ReLU(), nn.MaxPool2d(3, 2, 1), Block(8, 8, 1), Block(8, 16, 2), Block(16, 24, 2),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, CLASSES))


class UNet(nn.Module):
    """Down by pooling, up by transposed convolutions; a class for every pixel."""

    def __init__(self):
        super().__init__()
        self.down, self.pool = nn.ModuleList([conv(3, 8), conv(8, 12), conv(12, 16)]), nn.MaxPool2d(2)
        self.up = nn.ModuleList([nn.ConvTranspose2d(16, 12, 2, 2), nn.ConvTranspose2d(12, 8, 3, 2, 1, output_padding=1)])
        self.merge, self.out = nn.ModuleList([conv(24, 12), conv(16, 8)]), nn.Conv2d(8, CLASSES, 1)

    def forward(self, x):
        kept = []
        for layer in self.down:
            x = torch.relu(layer(self.pool(x) if kept else x))
            kept.append(x)
        for up, merge, skip in zip(self.up, self.merge, kept[-2::-1]):
            x = torch.relu(merge(torch.cat([up(x), skip], 1)))
        return self.out(x)


class WithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, image, label):
        logits = self.model(image)
        return functional.cross_entropy(logits, label), logits


def write(name, model, label_shape):
    count = BATCH * 3 * SIZE * SIZE
    image = torch.tensor(np.cos(np.arange(count) * 0.7 + np.arange(count) // 97)).float().reshape(BATCH, 3, SIZE, SIZE)
    label = (torch.arange(int(np.prod(label_shape))) * 7 // 3 % CLASSES).reshape(label_shape)
    model = WithLoss(model).train()
    torch.onnx.export(model, (image, label), f"{sys.argv[1]}/{name}.onnx", dynamo=False, opset_version=17,
                      training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
                      input_names=["image", "label"], output_names=["loss", "logits"],
                      dynamic_axes={"image": {0: "batch"}, "label": {0: "batch"}})  # moves running statistics once
    loss = model.double()(image.double(), label)[0]
    loss.backward()
    values = {key: p.grad for key, p in model.named_parameters()}
    values.update({key: mean for key, mean in model.named_buffers() if key.endswith("running_mean")})
    values = {key: value.numpy().ravel() for key, value in values.items()}
    with open(f"{sys.argv[1]}/{name}.json", "w", encoding="utf-8") as file:
        json.dump({"loss": loss.item(), "values": {key: [float(np.linalg.norm(g)), float(g @ np.cos(np.arange(len(g))))]
                                                   for key, g in values.items()}}, file, indent=1)
        file.write("\n")


torch.manual_seed(1)
write("resnet", resnet(), (BATCH,))
write("unet", UNet(), (BATCH, SIZE, SIZE))
