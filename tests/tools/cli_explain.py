#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden texts of `weft explain`: what the compiler decides for a set of models and options, and why.

A change in what it decides, or in how it is told, shows as a difference here. Where it is meant:
  WEFT_TOOL=build/weft WEFT_SOURCE_DIR=. WEFT_BINARY_DIR=build python3 tests/tools/cli_explain.py --regenerate
and read the differences before they are committed.
"""
import difflib
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import onnx

import support
from infer_models import Attention, Mlp, model as onnx_model, node
from support import SOURCE, Case

GOLDEN = SOURCE / "tests" / "golden" / "explain"
MLP, LENET = "samples/models/mlp.onnx", "samples/models/lenet.onnx"
DROPOUT, POOL, RESHAPE = ("tests/data/torch_dropout.onnx", "tests/data/torch_lenet_avgpool.onnx",
                          "tests/data/torch_reshape.onnx")
ATTENTION, WHOLE = "attention", "whole"  # made below
CASES = {  # model, options
    "mlp": (MLP, "--world 2 --batch 64"),
    "mlp-alone": (MLP, "--world 1 --batch 64"),
    "mlp-8-ranks-adam": (MLP, "--world 8 --batch 16 --optimizer adam"),
    "mlp-pieces": (MLP, "--world 4 --batch 64 --bucket bytes:256K"),
    "mlp-none": (MLP, "--world 2 --batch 64 --bucket none"),
    "mlp-mgwfbp": (MLP, "--world 2 --batch 64 --bucket mgwfbp"),
    "mlp-sharded": (MLP, "--world 4 --batch 64 --shard-optimizer"),
    "mlp-sharded-bf16": (MLP, "--world 4 --batch 64 --shard-optimizer --wire bf16"),
    "mlp-sharded-parameters": (MLP, "--world 4 --batch 64 --shard-parameters --bucket bytes:256K"),
    "mlp-decoupled": (MLP, "--world 4 --batch 64 --decouple"),
    "mlp-in-flight": (MLP, "--world 2 --batch 64 --bucket bytes:256K --in-flight 2"),
    "lenet": (LENET, "--world 2 --batch 64"),
    "lenet-3-ranks": (LENET, "--world 3 --batch 64 --bucket one"),
    "lenet-accumulated": (LENET, "--world 2 --batch 16 --accumulate 4"),
    "lenet-shards": (LENET, "--world 2 --batch 16 --global-micro-batches 8 --optimizer sgd"),
    "lenet-clipped": (LENET, "--world 2 --batch 64 --clip 1"),
    "lenet-all": (LENET, "--world 4 --batch 16 --decouple --accumulate 3 --wire bf16 --clip 0.5"),
    "lenet-infer": (LENET, "--world 2 --batch 8 --infer"),
    "attention": (ATTENTION, "--world 2 --batch 2 --infer"),
    "mlp-split-batch": (WHOLE, "--world 2 --infer --split-batch 8"),
    "torch-dropout": (DROPOUT, "--world 2 --batch 8"),
    "torch-lenet-avgpool": (POOL, "--world 4 --batch 8 --shard-optimizer"),
    "torch-reshape": (RESHAPE, "--world 2 --batch 8 --bucket percent:60,40"),
}
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "WEFT_COSTS"}
NUMBER = re.compile(r"\d+\.\d+")


def make(model, folder):
    """The files of a generated model; their weights are not told."""
    rng = np.random.default_rng(1)
    if model == ATTENTION:
        net = Attention(rng)
        graphs = [onnx_model(net.nodes(lambda part, whole: [node("AllReduce", [part], whole, "weft")]),
                             net.inputs, net.outputs, net.part(rank, 2)) for rank in range(2)]
    else:
        net = Mlp(rng)
        graphs = [onnx_model(net.nodes(lambda part, whole: [node("Identity", [part], whole)]),
                             net.inputs, net.outputs, net.weights)]
    paths = [f"{folder}/{model}.rank{rank}.onnx" for rank in range(len(graphs))]
    for graph, path in zip(graphs, paths):
        onnx.save(graph, path)
    return paths


def explain(name, folder):
    """The text, without digests: what they stand for is told by the rest."""
    model, options = CASES[name]
    plan = f"{folder}/{name}.weft"
    paths = [SOURCE / model] if model.endswith(".onnx") else make(model, folder)
    done = subprocess.run([support.WEFT, "compile", *paths, "-o", plan, *options.split()], capture_output=True,
                          text=True, env=ENVIRONMENT)
    if done.returncode != 0:
        raise RuntimeError(f"{name}: {done.stderr}")
    text = subprocess.run([support.WEFT, "explain", plan], check=True, capture_output=True, text=True).stdout
    lines = [line for line in text.splitlines() if not re.match(r"  (structure|weights) +[0-9a-f]{64}$", line)]
    return plan, f"weft compile {model} {options}\n\n" + "\n".join(lines) + "\n"


def same(expected, found):
    """Predicted times may differ in their last digit between compilers; nothing else may."""
    if NUMBER.sub("#", expected) != NUMBER.sub("#", found):
        return False
    pairs = zip(NUMBER.findall(expected), NUMBER.findall(found))
    return all(abs(float(a) - float(b)) <= 0.11 + 0.001 * float(a) for a, b in pairs)


class Explain(Case):
    maxDiff = None

    def test_golden_texts(self):
        for name in CASES:
            with self.subTest(name):
                plan, found = explain(name, self.dir)
                expected = (GOLDEN / f"{name}.txt").read_text()
                if not same(expected, found):
                    self.fail("".join(difflib.unified_diff(expected.splitlines(True), found.splitlines(True),
                                                           f"golden/explain/{name}.txt", "found")))
                self.check_json(plan, found)

    def check_json(self, plan, text):
        """Both forms tell the same."""
        told = self.weft_json("explain", plan)
        self.assertEqual(told["kind"] == "inference", "for inference" in text)
        if told["kind"] == "training":
            self.assertIn(f"buckets of a step: {len(told['buckets'])},", text)
        self.assertEqual(told["sharded"], "  sharded: " in text)
        self.assertEqual(told["decoupled"], "  decoupled: " in text)
        self.assertEqual(told["accumulate"] > 1, "  accumulate: " in text)
        self.assertEqual(told["global_micro_batches"] > 0, "  global micro-batches: " in text)
        self.assertEqual(told["clip_norm"] > 0, "  clip: " in text)
        self.assertEqual(sum(bucket["update"] for bucket in told["buckets"]), text.count("fused reduce-update-gather, "))
        for collective in told["collectives"]:
            self.assertIn(collective["op"], text)
            self.assertNotEqual(collective["program"], "init")
        for bucket in told["buckets"]:
            self.assertEqual(bucket["bytes"], sum(bucket["member_bytes"]))
            self.assertIn(bucket["reason"], text)

    def test_every_golden_text_is_of_a_case(self):
        self.assertEqual({path.stem for path in GOLDEN.glob("*.txt")}, set(CASES))


def regenerate():
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for path in GOLDEN.glob("*.txt"):
        path.unlink()
    with tempfile.TemporaryDirectory() as folder:
        for name in CASES:
            (GOLDEN / f"{name}.txt").write_text(explain(name, folder)[1])
    print(json.dumps({"written": len(CASES)}))


if __name__ == "__main__":
    if sys.argv[1:] == ["--regenerate"]:
        regenerate()
    else:
        support.main()
