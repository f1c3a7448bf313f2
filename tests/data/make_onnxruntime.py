#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/data/onnxruntime: training artifacts of a small perceptron, and its weights after 6 steps of ONNX Runtime.

Needs onnxruntime-training 1.19.2, the last release, with onnx 1.16 and torch. The optimizer decays last, clips and has a large
epsilon, so that each of its parts shows in the weights.
"""
import pathlib
import sys

import numpy as np
import onnx
import onnxruntime.training.onnxblock as onnxblock
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.training import api, artifacts
from onnxruntime.training.onnxblock import optim

STEPS, LR = 6, 0.05


def draw():
    r = np.random.default_rng(7)
    return r.standard_normal((16, 6)).astype(np.float32), r.integers(0, 3, 16)


def forward():
    r = np.random.default_rng(0)
    weights = {"fc1.weight": r.standard_normal((6, 5)).astype(np.float32) / 2, "fc1.bias": r.standard_normal(5).astype(np.float32),
               "fc2.weight": r.standard_normal((5, 3)).astype(np.float32)}
    node, info = helper.make_node, helper.make_tensor_value_info
    graph = helper.make_graph(
        [node("MatMul", ["x", "fc1.weight"], ["a"], "mm1"), node("Add", ["a", "fc1.bias"], ["b"], "add"), node("Tanh", ["b"], ["h"], "tanh"),
         node("MatMul", ["h", "fc2.weight"], ["y"], "mm2")], "g", [info("x", TensorProto.FLOAT, ["batch", 6])],
        [info("y", TensorProto.FLOAT, ["batch", 3])], [numpy_helper.from_array(v, k) for k, v in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8), list(weights)


def make(folder):
    model, names = forward()
    artifacts.generate_artifacts(model, requires_grad=names, loss=artifacts.LossType.CrossEntropyLoss, optimizer=artifacts.OptimType.AdamW,
                                 artifact_directory=str(folder))
    block = optim.AdamW(weight_decay=0.1, eps=1e-3, clip_grad=optim.ClipGradNorm(0.2))
    with onnxblock.empty_base():
        block((list(model.graph.initializer), []))
        onnx.save(block.to_model_proto(), folder / "optimizer_model.onnx")


def train(folder):
    state = api.CheckpointState.load_checkpoint(folder / "checkpoint")
    module = api.Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    optimizer = api.Optimizer(folder / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(LR)
    module.train()
    for _ in range(STEPS):
        module(*draw())
        optimizer.step()
        module.lazy_reset_grad()
    np.savez(folder / "weights.npz", **{name: value.data for name, value in state.parameters})


if __name__ == "__main__":
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "onnxruntime")
    out.mkdir(exist_ok=True)
    make(out)
    train(out)
    (out / "eval_model.onnx").unlink()
