#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes given_gradients.onnx beside this script: a small training graph with gradients by both names, a start and wait
pair, a sum over ranks that is halved afterwards. compiled_graph.onnx was made of it:

    weft compile given_gradients.onnx -o plan.weft --world 2 --batch 4 --optimizer adam --emit-onnx compiled_graph.onnx

and stays as it is, so that files of before are read."""
import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

rng = np.random.default_rng(3)


def draw(*shape):
    return (rng.random(shape) - 0.5).astype(np.float32)


VALUES = {"w1": draw(3, 4), "b1": draw(3), "w2": draw(2, 3), "one": np.array(1, np.float32),
          "half": np.array(0.5, np.float32)}
node = helper.make_node
NODES = [
    node("Gemm", ["x", "w1", "b1"], ["h"], name="fc1", transB=1),
    node("Relu", ["h"], ["a"], name="r"),
    node("Gemm", ["a", "w2"], ["z"], name="fc2", transB=1),
    node("SoftmaxCrossEntropyLoss", ["z", "label"], ["loss", "lp"], name="ce"),
    node("SoftmaxCrossEntropyLossGrad", ["one", "lp", "label"], ["dz"], domain="com.microsoft", reduction="mean"),
    node("Gemm", ["dz", "a"], ["w2_local"], transA=1),
    node("AllReduceStart", ["w2_local"], ["fly"], name="s", domain="weft", reduction="avg"),
    node("Gemm", ["dz", "w2"], ["da"]),
    node("ReluGrad", ["da", "a"], ["dh"], domain="com.microsoft"),
    node("AllReduceWait", ["fly"], ["w2_grad"], name="w", domain="weft"),
    node("Gemm", ["dh", "x"], ["w1_local"], transA=1),
    node("AllReduce", ["w1_local"], ["w1_sum"], domain="com.microsoft"),
    node("Mul", ["w1_sum", "half"], ["w1_grad"]),
    node("SumTo", ["dh"], ["grad.b1"], domain="weft", shape=[3]),
]
graph = helper.make_graph(
    NODES, "tiny",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4]),
     helper.make_tensor_value_info("label", TensorProto.INT64, ["n"])],
    [helper.make_tensor_value_info("loss", TensorProto.FLOAT, []),
     helper.make_tensor_value_info("w2_grad", TensorProto.FLOAT, [2, 3])],
    [numpy_helper.from_array(v, k) for k, v in VALUES.items()])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13), helper.make_opsetid("weft", 1),
                                                helper.make_opsetid("com.microsoft", 1)])
model.ir_version = 8
onnx.save(model, pathlib.Path(__file__).parent / "given_gradients.onnx")
