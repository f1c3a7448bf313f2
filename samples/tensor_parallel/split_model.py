#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A transformer block, whole and divided among ranks.

usage: split_model.py DIR N [--width D] [--hidden H] [--heads A]

Writes to DIR: whole.onnx, block.rank<r>.onnx for each of N ranks, and an input in/x.pb. A rank has some of the heads of
the attention and some of the columns of the first layer of the perceptron, and the rows of the second matrices that
belong to them, so each rank's products are parts of a sum: one weft::AllReduce after the attention and one after the
perceptron put the block together. Divided or not, the graph is the same; only initializers differ.
"""
import argparse
import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TOKENS = 16


def block(weights, heads, width, divided):
    """The graph for `heads` heads of a block of that width."""
    nodes = []

    def add(op, inputs, output, **attrs):
        domain = "weft" if op == "AllReduce" else ""
        nodes.append(helper.make_node(op, inputs, [output], output + "/" + op, domain=domain, **attrs))
        return output

    def whole(part, name):
        return add("AllReduce", [part], name) if divided else part

    def by_head(name, perm):
        add("MatMul", ["x", "w" + name], name)
        add("Reshape", [name, "split"], name + "_split")
        return add("Transpose", [name + "_split"], name + "_heads", perm=perm)

    scores = add("MatMul", [by_head("q", [0, 2, 1, 3]), by_head("k", [0, 2, 3, 1])], "scores")
    scaled = add("Mul", [scores, "scale"], "scaled")
    mixed = add("MatMul", [add("Softmax", [scaled], "probs", axis=-1), by_head("v", [0, 2, 1, 3])], "mixed")
    flat = add("Reshape", [add("Transpose", [mixed], "mixed_back", perm=[0, 2, 1, 3]), "join"], "flat")
    attention = whole(add("MatMul", [flat, "wo"], "attention_part"), "attention")
    middle = add("Add", [attention, "x"], "middle")
    hidden = add("Relu", [add("Add", [add("MatMul", [middle, "w1"], "h"), "b1"], "hb")], "hidden")
    perceptron = whole(add("MatMul", [hidden, "w2"], "perceptron_part"), "perceptron")
    add("Add", [perceptron, middle], "y")

    head_width = weights["wq"].shape[1] // heads
    constants = {"split": np.array([0, 0, heads, head_width]), "join": np.array([0, 0, heads * head_width]),
                 "scale": np.float32(head_width ** -0.5)}
    graph = helper.make_graph(
        nodes, "block", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", TOKENS, width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", TOKENS, width])],
        [numpy_helper.from_array(np.ascontiguousarray(a), n) for n, a in {**weights, **constants}.items()])
    opsets = [helper.make_opsetid("", 17)] + ([helper.make_opsetid("weft", 1)] if divided else [])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return model


def part(weights, rank, ranks):
    """Columns of what makes heads or hidden units, rows of what uses them."""
    def own(count):
        return slice(rank * count // ranks, (rank + 1) * count // ranks)
    heads, hidden = own(weights["wo"].shape[0]), own(weights["b1"].shape[0])
    return {"wq": weights["wq"][:, heads], "wk": weights["wk"][:, heads], "wv": weights["wv"][:, heads],
            "wo": weights["wo"][heads], "w1": weights["w1"][:, hidden], "b1": weights["b1"][hidden], "w2": weights["w2"][hidden]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("ranks", type=int)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    args = parser.parse_args()
    if args.heads % args.ranks or args.hidden % args.ranks or args.width % args.heads:
        parser.error("heads and hidden units must divide by the ranks, the width by the heads")
    rng = np.random.default_rng(1)
    shapes = {"wq": (args.width,) * 2, "wk": (args.width,) * 2, "wv": (args.width,) * 2, "wo": (args.width,) * 2,
              "w1": (args.width, args.hidden), "b1": (args.hidden,), "w2": (args.hidden, args.width)}
    weights = {n: (rng.standard_normal(s) / np.sqrt(s[0])).astype(np.float32) for n, s in shapes.items()}
    (args.folder / "in").mkdir(parents=True, exist_ok=True)
    onnx.save(block(weights, args.heads, args.width, False), args.folder / "whole.onnx")
    for rank in range(args.ranks):
        onnx.save(block(part(weights, rank, args.ranks), args.heads // args.ranks, args.width, True),
                  args.folder / f"block.rank{rank}.onnx")
    x = rng.standard_normal((1, TOKENS, args.width)).astype(np.float32)
    onnx.save_tensor(numpy_helper.from_array(x, "x"), args.folder / "in" / "x.pb")


if __name__ == "__main__":
    main()
