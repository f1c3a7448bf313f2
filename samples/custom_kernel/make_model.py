#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes swish.onnx: a 784-32-10 network whose activation is the operator sample::Swish.

usage: make_model.py OUT.onnx   (needs Debian's python3-onnx and python3-numpy)
"""
import sys

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper, save


def layer(generator, inputs, outputs, index):
    bound = 1 / np.sqrt(inputs)
    shapes = {f"fc{index}.weight": (outputs, inputs), f"fc{index}.bias": (outputs,)}
    return [numpy_helper.from_array(generator.uniform(-bound, bound, shape).astype(np.float32), name)
            for name, shape in shapes.items()]


def main():
    generator = np.random.default_rng(7)
    initializers = layer(generator, 784, 32, 1) + layer(generator, 32, 10, 2)
    nodes = [
        helper.make_node("Flatten", ["image"], ["flat"], name="flatten"),
        helper.make_node("Gemm", ["flat", "fc1.weight", "fc1.bias"], ["hidden"], name="fc1", transB=1),
        helper.make_node("Swish", ["hidden"], ["active"], name="swish", domain="sample"),
        helper.make_node("Gemm", ["active", "fc2.weight", "fc2.bias"], ["logits"], name="fc2", transB=1),
        helper.make_node("SoftmaxCrossEntropyLoss", ["logits", "label"], ["loss"], name="criterion"),
    ]
    graph = helper.make_graph(
        nodes, "swish",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 28, 28]),
         helper.make_tensor_value_info("label", TensorProto.INT64, ["batch"])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])], initializers)
    model = helper.make_model(graph, producer_name="weft-samples",
                              opset_imports=[helper.make_opsetid("", 13), helper.make_opsetid("sample", 1)])
    model.ir_version = 8
    checker.check_model(model)
    save(model, sys.argv[1])


if __name__ == "__main__":
    main()
