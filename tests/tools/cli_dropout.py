#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model with Dropout trains, evaluates, is saved and explained; what its masks depend on, and what not."""
import json
import struct
import sys
import unittest

import support
from support import Case, DATA, NEED_DATA, read_idx

try:
    import numpy as np
    import onnx
    import onnx.numpy_helper
    from onnx import TensorProto, helper
except ImportError:
    print("skipped: python3-numpy or python3-onnx is missing")
    sys.exit(77)


def tensor(name, array):
    return onnx.numpy_helper.from_array(np.asarray(array), name)


def write_model(path, ratio):
    """784 - 64 - 10 with Dropout on the images (a quarter of ratio) and behind the hidden layer."""
    draw = np.random.RandomState(1)
    weights = [tensor("w1", (draw.randn(64, 784) * 0.05).astype(np.float32)), tensor("b1", np.zeros(64, np.float32)),
               tensor("w2", (draw.randn(10, 64) * 0.1).astype(np.float32)), tensor("b2", np.zeros(10, np.float32)),
               tensor("less", np.float32(ratio / 4)), tensor("ratio", np.float32(ratio)), tensor("on", np.array(True))]
    nodes = [helper.make_node("Flatten", ["image"], ["flat"]),
             helper.make_node("Dropout", ["flat", "less", "on"], ["seen"]),
             helper.make_node("Gemm", ["seen", "w1", "b1"], ["sum"], transB=1),
             helper.make_node("Relu", ["sum"], ["hidden"]),
             helper.make_node("Dropout", ["hidden", "ratio", "on"], ["kept", "mask"]),
             helper.make_node("Gemm", ["kept", "w2", "b2"], ["logits"], transB=1),
             helper.make_node("SoftmaxCrossEntropyLoss", ["logits", "label"], ["loss"])]
    inputs = [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 28, 28]),
              helper.make_tensor_value_info("label", TensorProto.INT64, ["batch"])]
    outputs = [helper.make_tensor_value_info("loss", TensorProto.FLOAT, []),
               helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])]
    onnx.save(helper.make_model(helper.make_graph(nodes, "dropout", inputs, outputs, weights), ir_version=7,
                                opset_imports=[helper.make_opsetid("", 13)]), path)


class Dropout(Case):
    def plan(self, world, *extra, ratio=0.4, batch=64):
        model = self.dir / f"{ratio}.onnx"
        if not model.exists():
            write_model(model, ratio)
        plan = self.dir / f"{ratio}-{world}.weft"
        self.weft("compile", model, "-o", plan, "--world", world, "--batch", batch // world, *extra)
        return plan

    @NEED_DATA
    def test_bits_depend_on_the_seed_and_on_no_choice(self):
        digests = {}
        for policy in ("one", "none", "bytes:64K", "percent:50,50"):
            plan = self.plan(2, "--bucket", policy)
            digests[policy] = self.train(plan)["param_digest"]
        for mode in ("inline", "thread"):
            digests[mode] = self.train(plan, env={"WEFT_PROGRESS": mode})["param_digest"]
        digests["portable"] = self.train(plan, env={"WEFT_ISA": "portable"})["param_digest"]
        self.assertEqual(len(set(digests.values())), 1, digests)
        self.assertNotEqual(self.train(plan, "--seed", 2)["param_digest"], digests["one"])

    @NEED_DATA
    def test_rank_counts_agree_on_one_global_batch(self):
        for optimizer in ("momentum", "adam"):
            reports = [self.train(self.plan(world, "--optimizer", optimizer), world=world, steps=30)
                       for world in (1, 2, 4)]
            for report in reports[1:]:  # only rounding differs; other masks make some 0.05
                self.assertAlmostEqual(report["loss_first"], reports[0]["loss_first"], delta=1e-6)
                self.assertAlmostEqual(report["loss_last"], reports[0]["loss_last"], delta=1e-3)

    @NEED_DATA
    def test_evaluation_and_the_saved_model_drop_nothing(self):
        saved = self.dir / "trained.onnx"
        report = self.train(self.plan(2), "--save", saved, steps=100, evaluate=True)
        model = onnx.load(saved)
        onnx.checker.check_model(model, full_check=True)
        self.assertTrue(all(len(n.input) == 1 for n in model.graph.node if n.op_type == "Dropout"))
        w = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
        images = read_idx("t10k-images-idx3-ubyte.gz").reshape(-1, 784).astype(np.float32) / 255
        logits = np.maximum(images @ w["w1"].T + w["b1"], 0) @ w["w2"].T + w["b2"]
        accuracy = np.mean(logits.argmax(1) == read_idx("t10k-labels-idx1-ubyte.gz"))
        self.assertGreater(accuracy, 0.6)
        self.assertAlmostEqual(report["test_accuracy"], accuracy, delta=2.5e-4)

    def same_images(self):
        """A data set whose order does not matter."""
        draw = np.random.RandomState(3)
        image = draw.randint(0, 256, 784, np.uint8).tobytes()
        for prefix in ("train", "t10k"):
            (self.dir / f"{prefix}-images-idx3-ubyte").write_bytes(
                struct.pack(">IIII", 0x803, 256, 28, 28) + image * 256)
            (self.dir / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, 256) + b"\3" * 256)
        return self.dir

    def run_same(self, plan, seed, steps):
        return self.weft_json("run", plan, "-n", 2, "--data", self.same_images(), "--steps", steps, "--seed", seed)

    def test_the_seed_and_the_step_choose_the_masks(self):
        plan = self.plan(2)
        losses = {seed: self.run_same(plan, seed, 1)["loss_first"] for seed in (0, 1, 2**32, 2**53 + 2, 2**62 + 7)}
        self.assertEqual(len(set(losses.values())), len(losses), losses)
        plain = self.plan(2, ratio=0.0)
        self.assertEqual(len({self.run_same(plain, seed, 3)["param_digest"] for seed in (1, 2)}), 1)
        # A learning rate of almost nothing: the loss moves because the masks do.
        still = self.plan(2, "--lr", "1e-30", "--optimizer", "sgd")
        report = self.run_same(still, 1, 2)
        self.assertGreater(abs(report["loss_first"] - report["loss_last"]), 1e-4)
        self.assertEqual(report["loss_first"], self.run_same(still, 1, 1)["loss_last"])

    def test_it_is_explained(self):
        plan = self.plan(2)
        self.assertIn("w1_grad", self.weft("explain", plan).stdout)
        names = sum((b["members"] for b in self.weft_json("explain", plan)["buckets"]), [])
        self.assertEqual(sorted(names), ["b1_grad", "b2_grad", "w1_grad", "w2_grad"])
        self.assertIn("DropoutMask", self.weft("ops").stdout)

    def test_the_form_of_old_opsets_and_what_is_refused(self):
        def compile_with(ratio, code=0):
            nodes = [helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("MatMul", ["f", "w"], ["y"]),
                     helper.make_node("Dropout", ["y"], ["d"], ratio=ratio)]
            graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
                                      [helper.make_tensor_value_info("d", TensorProto.FLOAT, [1, 1])],
                                      [tensor("w", np.ones((4, 1), np.float32))])
            onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 7)], ir_version=7),
                      self.dir / "old.onnx")
            return self.weft("compile", self.dir / "old.onnx", "--loss", "d", "--world", 2, "-o", self.dir / "p.weft",
                             code=code)
        compile_with(0.25)
        self.assertGreater(json.loads(self.weft("explain", self.dir / "p.weft", "--json").stdout)["kernels"], 0)
        failed = compile_with(1.5, code=2)
        self.assertRegex(failed.stderr, "Dropout.*ratio must be at least 0 and below 1: 1.5")
        self.assert_one_line(failed.stderr)


if __name__ == "__main__":
    support.main()
