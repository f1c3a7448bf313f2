#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes mlp.onnx and lenet.onnx beside this script: forward models with their loss, untrained.

Needs python3-onnx and python3-numpy. The files are the same, bit for bit, at every run: weights are drawn by a
seeded generator in the order of the layers, uniform in +-1/sqrt(fan_in), which is what torch.nn.Linear and
torch.nn.Conv2d start from. Weights have torch's shapes, [out, in] and [out, in, height, width].
"""
import os

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper

SEED = 20240501
OPSET = 13
IR_VERSION = 8


class Builder:
    """Collects nodes and initializers; `at` is the tensor the next layer reads."""

    def __init__(self, seed):
        self.random = np.random.Generator(np.random.PCG64(seed))
        self.nodes, self.initializers, self.at = [], [], "image"

    def weights(self, name, shape, fan_in):
        bound = 1.0 / np.sqrt(fan_in)
        values = self.random.random(shape) * 2 * bound - bound
        self.initializers.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def node(self, op, name, inputs=(), output=None, **attributes):
        output = output or name + "_out"
        self.nodes.append(helper.make_node(op, [self.at, *inputs], [output], name=name, **attributes))
        self.at = output

    def linear(self, name, fan_in, fan_out, output=None):
        w = self.weights(name + ".weight", (fan_out, fan_in), fan_in)
        b = self.weights(name + ".bias", (fan_out,), fan_in)
        self.node("Gemm", name, (w, b), output, transB=1)

    def conv(self, name, channels_in, channels_out, kernel, pad):
        fan_in = channels_in * kernel * kernel
        w = self.weights(name + ".weight", (channels_out, channels_in, kernel, kernel), fan_in)
        b = self.weights(name + ".bias", (channels_out,), fan_in)
        self.node("Conv", name, (w, b), kernel_shape=[kernel, kernel], pads=[pad] * 4, strides=[1, 1])

    def pool(self, name):
        self.node("MaxPool", name, kernel_shape=[2, 2], strides=[2, 2])

    def model(self, name):
        self.node("SoftmaxCrossEntropyLoss", "loss_node", ("label",), "loss", reduction="mean")
        graph = helper.make_graph(
            self.nodes, name,
            [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 28, 28]),
             helper.make_tensor_value_info("label", TensorProto.INT64, ["batch"])],
            [helper.make_tensor_value_info("loss", TensorProto.FLOAT, []),
             helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
            self.initializers)
        model = helper.make_model(graph, producer_name="weft samples",
                                  opset_imports=[helper.make_opsetid("", OPSET)])
        model.ir_version = IR_VERSION
        checker.check_model(model, full_check=True)
        return model


def mlp():
    b = Builder(SEED)
    b.node("Flatten", "flatten", axis=1)
    b.linear("fc1", 784, 512)
    b.node("Relu", "relu1")
    b.linear("fc2", 512, 256)
    b.node("Relu", "relu2")
    b.linear("fc3", 256, 10, "logits")
    return b.model("mlp")


def lenet():
    b = Builder(SEED + 1)
    b.conv("conv1", 1, 6, 5, 2)
    b.node("Relu", "relu1")
    b.pool("pool1")
    b.conv("conv2", 6, 16, 5, 0)
    b.node("Relu", "relu2")
    b.pool("pool2")
    b.node("Flatten", "flatten", axis=1)
    b.linear("fc1", 400, 120)
    b.node("Relu", "relu3")
    b.linear("fc2", 120, 84)
    b.node("Relu", "relu4")
    b.linear("fc3", 84, 10, "logits")
    return b.model("lenet")


def main():
    folder = os.path.dirname(os.path.abspath(__file__))
    for name, model in (("mlp", mlp()), ("lenet", lenet())):
        path = os.path.join(folder, name + ".onnx")
        with open(path, "wb") as file:
            file.write(model.SerializeToString())
        print(f"{path}: {os.path.getsize(path)} bytes")


if __name__ == "__main__":
    main()
