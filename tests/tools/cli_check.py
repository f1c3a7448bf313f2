#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`weft check`: what of a model is supported, before and whether it is compiled."""
import numpy
import onnx
import onnx.numpy_helper
from onnx import TensorProto, helper

import support
from support import MODELS


class Check(support.Case):
    def model(self, nodes, name="m.onnx", opsets=(("", 13),)):
        """A model over x [batch, 4] and w [4, 4] with the given nodes; the last output is y."""
        graph = helper.make_graph(
            nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [helper.make_tensor("w", TensorProto.FLOAT, [4, 4], [0.5] * 16)])
        path = self.dir / name
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid(*o) for o in opsets], ir_version=8), path)
        return path

    def test_a_good_model(self):
        report = self.weft_json("check", MODELS / "lenet.onnx", "--batch", 16)
        self.assertEqual({op["name"]: op["count"] for op in report["operators"]},
                         {"Relu": 4, "Gemm": 3, "Conv": 2, "MaxPool": 2, "Flatten": 1, "SoftmaxCrossEntropyLoss": 1})
        self.assertTrue(all(op["definition"] and op["gradient"] and op["kernel"] for op in report["operators"]))
        self.assertEqual(report["inputs"][0], {"name": "image", "declared": "f32 [batch, 1, 28, 28]",
                                               "compiled": "[16, 1, 28, 28]"})
        self.assertTrue(report["compiles"])
        self.assertIsNone(report["error"])
        self.assertEqual((report["parameters"], report["batch"]), (10, 16))
        text = self.weft("check", MODELS / "lenet.onnx", "--batch", 16).stdout
        self.assertIn("compiles: 10 parameters of", text)
        self.assertIn("compiled as [16, 1, 28, 28]", text)

    def test_every_unsupported_operator_is_listed(self):
        path = self.model([helper.make_node("MatMul", ["x", "w"], ["a"], "one"),
                           helper.make_node("MaxUnpool", ["a"], ["b"], "two"),
                           helper.make_node("Frobnicate", ["b"], ["c"], "three", domain="com.example"),
                           helper.make_node("MaxUnpool", ["c"], ["y"], "four")],
                          opsets=(("", 13), ("com.example", 1)))
        done = self.weft("check", path, code=2)
        self.assertRegex(done.stdout, r"2  - +- +- +MaxUnpool +unsupported, first at node 1 'two'")
        self.assertRegex(done.stdout, r"1  - +- +- +com.example::Frobnicate +unsupported, first at node 2 'three'")
        self.assertIn("does not compile", done.stdout)
        self.assertEqual(done.stderr, "")
        report = self.weft("check", path, "--json", code=2).stdout
        self.assertIn('"compiles": false', report)

    def test_one_message_names_all_unsupported_operators(self):
        path = self.model([helper.make_node("MaxUnpool", ["x"], ["a"], "one"), helper.make_node("Det", ["a"], ["b"], "two"),
                           helper.make_node("Det", ["b"], ["y"], "three")], opsets=(("", 24),))
        done = self.weft("compile", path, "-o", self.dir / "m.weft", "-n", 2, "--batch", 4, code=2)
        self.assertRegex(done.stderr, r"node 0 'one' \(MaxUnpool\): unsupported operator MaxUnpool.*; also Det \(2 nodes\); 'weft ops'")
        path = self.model([helper.make_node("Det", ["x"], ["a"], "one"), helper.make_node("Foo", ["a"], ["y"], "two", domain="my")],
                          opsets=(("", 24), ("my", 1)))
        done = self.weft("compile", path, "-o", self.dir / "m.weft", "-n", 2, "--batch", 4, code=2)
        self.assertRegex(done.stderr, r"unsupported operator my::Foo; declare it .*; also Det \(1 node\)")

    def test_inputs_of_other_types_do_not_hide_operators(self):
        path = self.model([helper.make_node("MaxUnpool", ["x"], ["a"], "one"), helper.make_node("Det", ["a"], ["y"], "two")], opsets=(("", 24),))
        proto = onnx.load(path)
        for name in ("text", "words"):
            proto.graph.input.append(helper.make_tensor_value_info(name, TensorProto.STRING, [2]))
        options = "-o", self.dir / "m.weft", "-n", 2, "--batch", 4
        error = self.weft("compile", self.save(proto), *options, code=2).stderr
        self.assertRegex(error, r"input 'text': unsupported element type 8; also input 'words': unsupported element type 8; "
                                r"also MaxUnpool \(1 node\), Det \(1 node\)$")
        proto.graph.node.append(helper.make_node("Foo", ["y"], ["z"], "three", domain="my"))
        proto.opset_import.append(helper.make_opsetid("my", 1))
        error = self.weft("compile", self.save(proto), *options, code=2).stderr
        self.assertRegex(error, r"'words': .*; also node 2 'three' \(Foo\): unsupported operator my::Foo; declare it .*; also MaxUnpool .*, Det ")
        del proto.graph.input[-2:], proto.graph.node[-1]
        proto.graph.initializer.append(helper.make_tensor("table", TensorProto.STRING, [1], [b"a"]))
        error = self.weft("compile", self.save(proto), *options, code=2).stderr
        self.assertRegex(error, r"table'.*; also MaxUnpool .*, Det ")
        del proto.graph.initializer[-1]
        proto.graph.node.insert(0, helper.make_node("Constant", [], ["c"], "words", value_string="a"))
        error = self.weft("compile", self.save(proto), *options, code=2).stderr
        self.assertRegex(error, r"node 0 'words' \(Constant\): .*; also MaxUnpool \(1 node\), Det \(1 node\)$")

    def lifted(self):
        """w and a mask of the shape of a bias, scaled by a number that an exporter lifted; and a loss."""
        nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Mul", ["a", "mask"], ["b"]),
                 helper.make_node("Mul", ["b", "onnx::Mul_7"], ["c"]),
                 helper.make_node("SoftmaxCrossEntropyLoss", ["c", "label"], ["loss"])]
        graph = helper.make_graph(
            nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4]),
                         helper.make_tensor_value_info("label", TensorProto.INT64, ["batch"])],
            [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
            [helper.make_tensor("w", TensorProto.FLOAT, [4, 4], [0.5] * 16),
             helper.make_tensor("mask", TensorProto.FLOAT, [4], [1, 0, 1, 1]),
             helper.make_tensor("onnx::Mul_7", TensorProto.FLOAT, [], [0.125])])
        path = self.dir / "lifted.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
        return path

    def trained(self, report):
        return [entry["name"] for entry in report["parameter_list"] if entry["trained"]]

    def test_training_form(self):
        """Dropout in the form for inference is the identity, unless training_form is set."""
        nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Dropout", ["a"], ["b"]),
                 helper.make_node("SoftmaxCrossEntropyLoss", ["b", "label"], ["loss"])]
        graph = helper.make_graph(
            nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4]),
                         helper.make_tensor_value_info("label", TensorProto.INT64, ["batch"])],
            [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
            [helper.make_tensor("w", TensorProto.FLOAT, [4, 4], [0.5] * 16)])
        path = self.dir / "dropout.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
        common = ("compile", path, "-n", 2, "--batch", 4, "--stop-after", "differentiate")
        self.assertNotIn("DropoutMask", self.weft(*common).stdout)
        self.assertIn("DropoutMask", self.weft(*common, "--training-form").stdout)
        plan = self.dir / "dropout.weft"
        self.weft("compile", path, "-o", plan, "-n", 2, "--batch", 4, "--training-form")

    def test_what_is_trained(self):
        path = self.lifted()
        done = self.weft("check", path, "--batch", 4)
        self.assertIn("parameters: 2 trained, 1 not", done.stdout)
        self.assertRegex(done.stdout, r"trained +w +f32 \[4, 4\] +a weight by its place")
        self.assertRegex(done.stdout, r"trained +mask +f32 \[4\] +guess: ")
        self.assertRegex(done.stdout, r"- +onnx::Mul_7 +f32 \[\] +of an expression")
        self.assertRegex(done.stderr, r"1 trained by a guess: mask; set train or freeze")
        done = self.weft("check", path, "--batch", 4, "--freeze", "mask", "--json")
        self.assertEqual((self.trained(support.json.loads(done.stdout)), done.stderr), (["w"], ""))
        report = self.weft_json("check", path, "--batch", 4, "--freeze", "*", "--train", "m*", "--train", "onnx::*")
        self.assertEqual(self.trained(report), ["mask", "onnx::Mul_7"])
        self.assertEqual(report["parameters"], 2)
        plan = self.dir / "lifted.weft"
        self.weft("compile", path, "-o", plan, "-n", 2, "--batch", 4, "--freeze", "mask")
        self.assertRegex(self.weft("explain", plan).stdout, r"- +mask +f32 \[4\] +matches freeze")
        self.assertEqual(self.trained(self.weft_json("explain", plan)), ["w"])
        done = self.weft("compile", path, "-o", plan, "-n", 2, "--batch", 4, "--freeze", "layer*", code=2)
        self.assertIn("'layer*' matches no floating-point initializer", done.stderr)

    def test_names_that_leave_it_open(self):
        """A module has parameters and buffers under such names; a convolution's weight that the exporter computed."""
        conv = helper.make_node("Conv", ["image", "onnx::Conv_9"], ["c"])
        nodes = [conv, helper.make_node("Flatten", ["c"], ["f"]), helper.make_node("Mul", ["f", "net.mask"], ["a"]),
                 helper.make_node("Mul", ["a", "net.scale"], ["b"]), helper.make_node("Add", ["b", "net.shift_bias"], ["d"]),
                 helper.make_node("SoftmaxCrossEntropyLoss", ["d", "label"], ["loss"])]
        graph = helper.make_graph(
            nodes, "g", [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 2, 2]),
                         helper.make_tensor_value_info("label", TensorProto.INT64, ["batch"])],
            [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
            [helper.make_tensor("onnx::Conv_9", TensorProto.FLOAT, [1, 1, 1, 1], [2]),
             helper.make_tensor("net.mask", TensorProto.FLOAT, [4], [1, 0, 1, 1]),
             helper.make_tensor("net.shift_bias", TensorProto.FLOAT, [4], [1, 0, 1, 1]),
             helper.make_tensor("net.scale", TensorProto.FLOAT, [], [0.125])])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), self.dir / "open.onnx")
        done = self.weft("check", self.dir / "open.onnx", "--batch", 4)
        self.assertRegex(done.stdout, r"trained +net.shift_bias +f32 \[4\] +named as a tensor of a module")
        self.assertIn("2 trained by a guess: net.mask, net.scale; set train or freeze", done.stderr)
        self.assertRegex(done.stderr, r"1 computed by the exporter, .* BatchNormalization: onnx::Conv_9; export with training=")

    def save_model(self, nodes, inputs, initializers, name, opset=17):
        """A model with the loss of the logits of the last node; label is [batch]."""
        graph = helper.make_graph(
            [*nodes, helper.make_node("SoftmaxCrossEntropyLoss", ["logits", "label"], ["loss"])], "g",
            [*inputs, helper.make_tensor_value_info("label", TensorProto.INT64, ["batch"])],
            [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
            [helper.make_tensor(key, TensorProto.FLOAT, shape, values) for key, (shape, values) in initializers.items()])
        path = self.dir / name
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
        return path

    def test_normalization_in_evaluation_form(self):
        """A warning, unless it is turned into the training form, or its parameters are frozen, or nothing is trained."""
        nodes = [helper.make_node("BatchNormalization", ["x", "n1.weight", "n1.bias", "n1.running_mean", "n1.running_var"], ["a"]),
                 helper.make_node("BatchNormalization", ["a", "n2.weight", "n2.bias", "n2.running_mean", "n2.running_var"], ["b"]),
                 helper.make_node("MatMul", ["b", "fc.weight"], ["logits"])]
        tensors = {f"{norm}.{part}": ([4], [1.0] * 4) for norm in ("n1", "n2") for part in ("weight", "bias", "running_mean", "running_var")}
        path = self.save_model(nodes, [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
                               {**tensors, "fc.weight": ([4, 4], [0.5] * 16)}, "norm.onnx")
        plan = self.dir / "norm.weft"
        warning = r"{} in evaluation form: parameters are trained, statistics stay fixed; set training_form"
        self.assertRegex(self.weft("check", path, "--batch", 4).stderr, warning.format("2 BatchNormalization nodes"))
        self.assertRegex(self.weft("compile", path, "--batch", 4, "-o", plan, "-n", 2, "--freeze", "n1.*").stderr,
                         warning.format("1 BatchNormalization node"))
        for options in (["--freeze", "n?.*"], ["--training-form"], ["--infer"]):
            self.assertNotIn("evaluation form", self.weft("compile", path, "--batch", 4, "-o", plan, "-n", 2, *options).stderr, options)

    def test_tied_weights_that_the_exporter_separated(self):
        """The head is the transposed table of words: one parameter, whose gradient is the sum of both, also in the file that is saved."""
        table = [0.1 * ((7 * i) % 11) - 0.5 for i in range(24)]
        transposed = [table[4 * word + i] for i in range(4) for word in range(6)]
        nodes = [helper.make_node("Gather", ["emb.weight", "words"], ["a"]), helper.make_node("MatMul", ["a", "onnx::MatMul_7"], ["logits"])]
        path = self.save_model(nodes, [helper.make_tensor_value_info("words", TensorProto.INT64, ["batch"])],
                               {"emb.weight": ([6, 4], table), "onnx::MatMul_7": ([4, 6], transposed)}, "tied.onnx")
        done = self.weft("check", path, "--batch", 5, "--gradients", "--samples", 24)
        self.assertIn("parameters: 1 trained, 0 not", done.stdout)
        self.assertRegex(done.stdout, r"trained +emb.weight .*; 'onnx::MatMul_7' was a transposed copy of it")
        self.assertEqual(done.stderr, "")
        plan, saved = self.dir / "tied.weft", self.dir / "tied.saved.onnx"
        self.weft("compile", path, "--batch", 5, "-n", 1, "-o", plan)
        numpy.savez(self.dir / "tied.npz", words=numpy.arange(60) % 6, label=numpy.arange(60) % 5)
        self.weft("run", plan, "--data", self.dir / "tied.npz", "--steps", 3, "--no-eval", "--save", saved)
        model = onnx.load(saved)
        self.assertEqual([tensor.name for tensor in model.graph.initializer], ["emb.weight"])
        self.assertEqual([node.op_type for node in model.graph.node], ["Transpose", "Gather", "MatMul"])
        self.assertNotEqual(onnx.numpy_helper.to_array(model.graph.initializer[0]).ravel().tolist(), table)

    def test_what_is_in_the_way_is_said(self):
        """No loss; then a batch that cannot be."""
        path = self.model([helper.make_node("MatMul", ["x", "w"], ["y"], "one")])
        self.assertIn("no loss node (SoftmaxCrossEntropyLoss or NegativeLogLikelihoodLoss)", self.weft("check", path, code=2).stdout)
        report = self.weft("check", MODELS / "mlp.onnx", "--shape", "image=4,1,28,28", "--shape", "label=5", code=2)
        self.assertIn("does not compile", report.stdout)

    def test_files_that_are_no_models(self):
        path = self.dir / "bad.onnx"
        path.write_bytes((MODELS / "mlp.onnx").read_bytes()[:1000])
        self.assert_one_line(self.weft("check", path, code=2).stderr)
        self.assert_one_line(self.weft("check", self.dir / "none.onnx", code=2).stderr)
        self.assert_one_line(self.weft("check", code=2).stderr)


if __name__ == "__main__":
    support.main()
