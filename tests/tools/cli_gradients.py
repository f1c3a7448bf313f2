#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`weft check --gradients`: right gradients pass whatever the inputs are, wrong ones of a plugin are caught and named."""
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import door_models
import support
from support import BINARY, Case, MODELS, SANITIZED, SOURCE

PLUGIN = BINARY / "tests" / "libfaulty_gradients.so"
SEEDS = range(1, 2 if SANITIZED else 4)


class Gradients(Case):
    def model(self, op, corner=False):
        """x -> MatMul before -> op -> MatMul behind -> loss; corner: op(zeros) is added to h instead."""
        random = np.random.default_rng(3)
        before = (random.standard_normal((6, 12)) * 0.6).astype(np.float32)
        behind = (random.standard_normal((12, 5)) * 0.6).astype(np.float32)
        params = {"before": before, "behind": behind}
        nodes, last = [helper.make_node("MatMul", ["x", "before"], ["h"], "first")], "m"
        if corner:
            params["zeros"] = np.zeros(12, np.float32)
            nodes += [helper.make_node(op, ["zeros"], ["m"], "middle", domain="faulty"),
                      helper.make_node("Add", ["h", "m"], ["sum"], "add")]
            last = "sum"
        else:
            nodes.append(helper.make_node(op, ["h"], ["m"], "middle", domain="faulty"))
        nodes += [helper.make_node("MatMul", [last, "behind"], ["logits"], "second"),
                  helper.make_node("SoftmaxCrossEntropyLoss", ["logits", "label"], ["loss"], "loss")]
        graph = helper.make_graph(
            nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 6]),
                         helper.make_tensor_value_info("label", TensorProto.INT64, [8])],
            [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
            [numpy_helper.from_array(values, name) for name, values in params.items()])
        path = self.dir / f"{op}.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13), helper.make_opsetid("faulty", 1)],
                                    ir_version=8), path)
        return path

    def check(self, path, *extra, code=0):
        report = self.weft_json("check", path, "--gradients", *extra, code=code)["gradients"]
        return report, {row["name"]: row for row in report["parameters"]}

    def test_right_gradients_pass(self):
        """Models with corners, windows and dropout, and an operator of a plugin, with inputs by several seeds."""
        models = [] if SANITIZED else [(MODELS / "lenet.onnx", ("--batch", 2, "--samples", 4))]
        models += [(self.model("Right"), ("--kernels", PLUGIN))]
        models += [(SOURCE / "tests" / "data" / f"torch_{name}_batch4.onnx", ())
                   for name in ("mlp", "dropout", "lenet_avgpool", "reshape")]
        for path, extra in models:
            for seed in SEEDS if "lenet" not in path.name else [5]:
                report, rows = self.check(path, "--seed", seed, *extra)
                self.assertEqual(report["wrong"], 0)
                self.assertGreater(report["steps"], 50)
                told = [row for row in rows.values() if row["verdict"] == "ok"]
                self.assertGreaterEqual(len(told), len(rows) - 1, report)
                for row in told:
                    self.assertLess(abs(row["worst"]["gradient"] - row["worst"]["slope"]),
                                    4.1 * row["worst"]["error"] + 3e-3 * abs(row["worst"]["slope"]) + 1e-4)

    def test_wrong_gradients_are_caught(self):
        """What lies before the faulty operator is wrong, what lies behind it is right."""
        for fault in ("Scaled", "Negated", "Missing", "Linear"):
            path = self.model(fault)
            for seed in SEEDS:
                report, rows = self.check(path, "--kernels", PLUGIN, "--seed", seed, code=1)
                self.assertEqual((rows["before"]["verdict"], rows["behind"]["verdict"]), ("wrong", "ok"), (fault, report))
                self.assertEqual(report["wrong"], 1)
        text = self.weft("check", path, "--gradients", "--kernels", PLUGIN, code=1).stdout
        self.assertRegex(text, r"WRONG +before .*gradient .*, slope .*samples wrong")
        self.assertRegex(text, r"ok +behind ")
        self.assertIn("wrong gradients: 1 of 2 parameters", text)

    def test_gradients_that_a_graph_brings_along_are_checked_too(self):
        """A training graph of the user's own; then one whose backward pass forgets a Relu on one way."""
        proto = door_models.training()
        report, rows = self.check(self.save(proto), "--batch", 4)
        self.assertEqual((report["wrong"], len(rows)), (0, 4), report)
        node = next(node for node in proto.graph.node if "fc1.bias_grad" in node.output)
        self.assertEqual(node.input[0], "d_h")
        node.input[0] = "d_a"
        report, rows = self.check(self.save(proto), "--batch", 4, code=1)
        self.assertEqual([name for name, row in rows.items() if row["verdict"] == "wrong"], ["fc1.bias"], report)

    def test_a_gradient_that_is_no_number_is_wrong(self):
        report, rows = self.check(self.model("NotANumber"), "--kernels", PLUGIN, code=1)
        self.assertEqual((rows["before"]["verdict"], rows["behind"]["verdict"]), ("wrong", "ok"), report)

    def test_at_a_corner_there_is_no_right_gradient(self):
        """|x| at x = 0: single elements have the slope of one side, and all of them at once are no worse."""
        path = self.model("Corner", corner=True)
        for seed in SEEDS:
            report, rows = self.check(path, "--kernels", PLUGIN, "--seed", seed)
            self.assertEqual({name: row["verdict"] for name, row in rows.items()},
                             {"zeros": "kink", "before": "ok", "behind": "ok"}, report)
        text = self.weft("check", path, "--gradients", "--kernels", PLUGIN).stdout
        self.assertRegex(text, r"kink +zeros .*gradient")

    def test_what_cannot_be_told_is_noise(self):
        """Weights that reach nothing: their gradient is zero, and so is the slope, as far as can be seen."""
        path = self.model("Right")
        model = onnx.load(path)
        behind = next(t for t in model.graph.initializer if t.name == "behind")
        behind.CopyFrom(numpy_helper.from_array(np.zeros((12, 5), np.float32), "behind"))
        onnx.save(model, path)
        report, rows = self.check(path, "--kernels", PLUGIN)
        self.assertEqual((rows["before"]["verdict"], rows["behind"]["verdict"]), ("noise", "ok"), report)
        self.assertIn("correct gradients: 1 of 2 parameters; noise",
                      self.weft("check", path, "--gradients", "--kernels", PLUGIN).stdout)

    def test_the_same_step_twice_must_give_the_same_loss(self):
        done = self.weft("check", self.model("Unsteady"), "--gradients", "--kernels", PLUGIN, code=1)
        self.assertIn("an operator is not deterministic", done.stderr)
        self.assert_one_line(done.stderr)

    def test_answers_repeat_and_options_are_checked(self):
        path = SOURCE / "tests" / "data" / "torch_mlp_batch4.onnx"
        first, again = (self.weft("check", path, "--gradients", "--json").stdout for _ in range(2))
        self.assertEqual(first, again)
        self.assertNotEqual(first, self.weft("check", path, "--gradients", "--json", "--seed", 2).stdout)
        self.assertGreater(self.check(path, "--samples", 9)[0]["steps"], self.check(path, "--samples", 1)[0]["steps"])
        for wrong in (("--samples", 0), ("--seed", "x"), ("--infer",)):
            self.assert_one_line(self.weft("check", path, "--gradients", *wrong, code=2).stderr)
        # Training options of the user's change nothing here: gradients are those of one batch on one rank.
        more = self.check(path, "--optimizer", "adam", "--clip", 1, "--accumulate", 2, "--shard-optimizer", "--world", 2)
        self.assertEqual(more[0]["wrong"], 0)

    def test_models_that_do_not_compile_are_only_looked_at(self):
        done = self.weft("check", self.model("Right"), "--gradients", code=2)
        self.assertIn("does not compile", done.stdout)
        self.assertNotIn("slopes", done.stdout)


if __name__ == "__main__":
    support.main()
