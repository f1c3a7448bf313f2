#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training graphs of ONNX Runtime: what accumulates and updates in them becomes the plan's, with ONNX Runtime's own weights."""
import random
import shutil
import subprocess
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import support
from cli_training_info import read_safetensors
from support import SOURCE, Case

MS = "com.microsoft"
FOLDER = SOURCE / "tests" / "data" / "onnxruntime"
FILES = ("training_model.onnx", "checkpoint", "optimizer_model.onnx")
STEPS, LR = 6, 0.05
NAMES = ("fc1.weight", "fc1.bias", "fc2.weight")


def draw():
    r = np.random.default_rng(7)
    return r.standard_normal((16, 6)).astype(np.float32), r.integers(0, 3, 16)


def start():
    """The weights of the checkpoint, which make_onnxruntime.py draws."""
    r = np.random.default_rng(0)
    return {"fc1.weight": r.standard_normal((6, 5)).astype(np.float32) / 2, "fc1.bias": r.standard_normal(5).astype(np.float32),
            "fc2.weight": r.standard_normal((5, 3)).astype(np.float32)}


def gradients(w, x, labels):
    h = np.tanh(x @ w["fc1.weight"] + w["fc1.bias"])
    y = h @ w["fc2.weight"]
    p = np.exp(y - y.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    d = (p - np.eye(3)[labels]) / len(x)
    db = d @ w["fc2.weight"].T * (1 - h * h)
    return {"fc1.weight": x.T @ db, "fc1.bias": db.sum(0), "fc2.weight": h.T @ d}


def expected(op, a, clip):
    """The weights after all steps in double precision, by the definitions of the operators."""
    w = {name: value.astype(np.float64) for name, value in start().items()}
    m, v = ({name: 0.0 for name in NAMES} for _ in range(2))
    x, labels = draw()
    for t in range(1, STEPS + 1):
        g = gradients(w, x.astype(np.float64), labels)
        norm = np.sqrt(sum((value ** 2).sum() for value in g.values()))
        for name in NAMES:
            d = g[name] * min(1, clip / (norm + 1e-6)) if clip else g[name]
            if op == "SGDOptimizerV2":
                w[name] = w[name] - LR * d
                continue
            alpha, beta, decay = a.get("alpha", 0.9), a.get("beta", 0.999), a.get("weight_decay", 0.01)
            m[name] = alpha * m[name] + (1 - alpha) * d
            v[name] = beta * v[name] + (1 - beta) * d * d
            one, two, epsilon = 1 - alpha ** t, 1 - beta ** t, a.get("epsilon", 1e-8)
            if a.get("adam_mode", 0) == 0:
                w[name] = w[name] * (1 - LR * decay) - LR * m[name] / one / (np.sqrt(v[name] / two) + epsilon)
            else:
                w[name] = (w[name] - LR * np.sqrt(two) / one * m[name] / (np.sqrt(v[name]) + epsilon)) * (1 - LR * decay)
    return w


def whole(op, clip=None, change=None, **attributes):
    """One graph with initializers, accumulators and the optimizer."""
    proto = onnx.load(FOLDER / "training_model.onnx")
    graph, info = proto.graph, helper.make_tensor_value_info
    kept = [value for value in graph.input if value.name not in NAMES]
    del graph.input[:]
    graph.input.extend([*kept, info("lr", TensorProto.FLOAT, [1])])
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in start().items())
    sums = [f"sum_{name}" for name in NAMES]
    for node in graph.node:
        if node.op_type == "InPlaceAccumulatorV2":
            node.output.append(sums[NAMES.index(node.output[0][:-len("_grad.accumulation.out")])])
    adamw = op == "AdamWOptimizer"
    states = {slot: [f"{slot}_{name}" for name in NAMES] for slot in ("m", "v")} if adamw else {}
    if adamw:
        graph.input.append(info("step", TensorProto.INT64, [1]))
    for slot in states:
        graph.initializer.extend(numpy_helper.from_array(np.zeros_like(start()[name]), f"{slot}_{name}") for name in NAMES)
    lists = {"params": NAMES, "grads": sums, **states}
    graph.node.extend(helper.make_node("SequenceConstruct", list(names), [name]) for name, names in lists.items())
    grads = "grads"
    if clip:
        graph.node.append(helper.make_node("InplaceClipGradNorm", ["grads"], ["clipped"], "clip", domain=MS, max_norm=clip))
        grads = "clipped"
    inputs = ["lr", "step", "params", grads, "m", "v"] if adamw else ["lr", "params", grads]
    graph.node.append(helper.make_node(op, inputs, ["done"], "update", domain=MS, **attributes))
    graph.output.append(info("done", TensorProto.BOOL, [1]))
    if change is not None:
        change(graph)
    return proto


def normalized_weights():
    r = np.random.default_rng(2)
    return {"n.weight": r.uniform(0.5, 2, 2).astype(np.float32), "n.bias": r.standard_normal(2).astype(np.float32),
            "n.running_mean": np.zeros(2, np.float32), "n.running_var": np.ones(2, np.float32),
            "f.weight": r.standard_normal((3, 8)).astype(np.float32), "f.bias": r.standard_normal(3).astype(np.float32)}


def normalized(trained):
    """A model with BatchNormalization and AveragePool; trained: as ONNX Runtime writes its forward and backward pass."""
    node, info, w = helper.make_node, helper.make_tensor_value_info, normalized_weights()
    norm, pool = {"epsilon": 1e-3, "momentum": 0.8, "training_mode": 1}, {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 0, 0, 0]}
    operands, running = ["x", "n.weight", "n.bias", "n.running_mean", "n.running_var"], ["new_mean", "new_var"]
    nodes = [node("BatchNormInternal", operands, ["a", *running, "saved_mean", "saved_inv_std"], "norm", domain=MS, **norm) if trained else
             node("BatchNormalization", operands, ["a", *running], "norm", **norm),
             node("AveragePool", ["a"], ["p"], "pool", **pool), node("Flatten", ["p"], ["v"]),
             node("Gemm", ["v", "f.weight", "f.bias"], ["y"], transB=1),
             node("SoftmaxCrossEntropyLoss", ["y", "labels"], ["loss", "scores"], "loss", reduction="mean")]
    if trained:
        w |= {"one": np.float32(1), "rows": np.int64([0])}
        nodes += [node("SoftmaxCrossEntropyLossGrad", ["one", "scores", "labels"], ["y_grad"], domain=MS, reduction="mean"),
                  node("ReduceSum", ["y_grad", "rows"], ["f.bias_grad"], keepdims=0),
                  node("Gemm", ["y_grad", "v"], ["f.weight_grad"], transA=1), node("Gemm", ["y_grad", "f.weight"], ["v_grad"]),
                  node("Shape", ["p"], ["pooled"]), node("Reshape", ["v_grad", "pooled"], ["p_grad"]),
                  node("AveragePoolGrad", ["p_grad"], ["a_grad"], "pool_grad", **pool),
                  node("BatchNormalizationGrad", ["a_grad", "x", "n.weight", "saved_mean", "saved_inv_std"],
                       ["", "n.weight_grad", "n.bias_grad"], domain=MS, epsilon=1e-3)]
    graph = helper.make_graph(nodes, "g", [info("x", TensorProto.FLOAT, ["batch", 2, 5, 5]), info("labels", TensorProto.INT64, ["batch"])],
                              [info("loss", TensorProto.FLOAT, [])], [numpy_helper.from_array(v, k) for k, v in w.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15), helper.make_opsetid(MS, 1)], ir_version=8)


def node_of(graph, op):
    return next(node for node in graph.node if node.op_type == op)


class OrtTraining(Case):
    def setUp(self):
        super().setUp()
        x, labels = draw()
        np.savez(self.dir / "data.npz", x=x, labels=labels)

    def copy(self, *names):
        for name in names or FILES:
            shutil.copy(FOLDER / name, self.dir / name)
        return self.dir / "training_model.onnx"

    def train(self, path, *more, ranks=1):
        self.weft("run", path, "-n", ranks, "--batch", 16 // ranks, "--data", "data.npz", "--lr", LR, "--steps", STEPS, "--no-eval",
                  "--checkpoint", "end.safetensors", *more)
        return read_safetensors(self.dir / "end.safetensors")

    def compare(self, got, want):
        for name in NAMES:
            error = np.linalg.norm(got[name] - want[name]) / np.linalg.norm(want[name] - start()[name])
            self.assertLess(error, 1e-4, name)

    def refuse(self, path, *words):
        error = self.weft("compile", path, "--batch", 4, "--world", 1, "-o", "p.weft", code=2).stderr
        for word in words:
            self.assertIn(word, error)
        self.assert_one_line(error)

    def test_artifacts_train_as_in_onnxruntime(self):
        path, want = self.copy(), np.load(FOLDER / "weights.npz")
        for ranks in (1, 2):
            self.compare(self.train(path, ranks=ranks), want)
        self.compare(self.train(path, "--batch", 4, "--accumulate", 2, ranks=2), want)
        rows = {row["name"]: row for row in self.weft_json("check", path, "--batch", 4)["parameter_list"]}
        self.assertEqual([name for name, row in rows.items() if row["trained"]], list(NAMES))

    def test_the_trained_model_has_the_weights(self):
        end = self.train(self.copy(), "--save", "saved.onnx")
        saved = {i.name: numpy_helper.to_array(i) for i in onnx.load(self.dir / "saved.onnx").graph.initializer}
        for name in NAMES:
            self.assertEqual(end[name].tobytes(), saved[name].tobytes(), name)

    def test_without_the_optimizer_model_options_decide(self):
        self.compare(self.train(self.copy(*FILES[:2]), "--optimizer", "sgd"), expected("SGDOptimizerV2", {}, None))
        self.compare(self.train(self.copy(), "--optimizer", "sgd"), expected("SGDOptimizerV2", {}, None))

    def test_optimizers_in_the_graph(self):
        for op, clip, attributes in (("SGDOptimizerV2", None, {}), ("SGDOptimizerV2", 0.05, {}), ("AdamWOptimizer", None, {}),
                                     ("AdamWOptimizer", 0.1, {"adam_mode": 0, "weight_decay": 0.3, "alpha": 0.8, "beta": 0.9, "epsilon": 1e-2}),
                                     ("AdamWOptimizer", None, {"adam_mode": 1, "weight_decay": 0.3, "epsilon": 1e-2})):
            with self.subTest(op=op, clip=clip, **attributes):
                self.compare(self.train(self.save(whole(op, clip, **attributes))), expected(op, attributes, clip))

    def test_what_a_plan_would_do_differently_is_named(self):
        def skip(graph):
            node_of(graph, "AdamWOptimizer").input.append("lazy_reset_grad")

        def swap(graph):
            node = next(node for node in graph.node if list(node.output) == ["params"])
            node.input[0], node.input[1] = node.input[1], node.input[0]

        def omit(graph):
            for node in graph.node:
                if node.op_type == "SequenceConstruct":
                    del node.input[2]

        def read(graph):
            graph.node.append(helper.make_node("Identity", ["done"], ["copy"], "reader"))

        def state(graph):
            next(i for i in graph.initializer if i.name == "m_fc1.bias").CopyFrom(
                numpy_helper.from_array(np.ones(5, np.float32), "m_fc1.bias"))

        def buffer(graph):
            node_of(graph, "InPlaceAccumulatorV2").input[0] = "fc1.weight_grad"

        def rate(graph):
            graph.initializer.append(numpy_helper.from_array(np.float32([-1]), "lr"))

        adam = {"op": "AdamWOptimizer"}
        for arguments, words in (({**adam, "adam_mode": 2}, "'adam_mode'"), ({**adam, "correct_bias": 0}, "'correct_bias'"),
                                 ({**adam, "change": skip}, "input update_signal"), ({**adam, "change": swap}, "must be <parameter>_grad"),
                                 ({**adam, "change": omit}, "does not update a parameter with a gradient: 'fc2.weight'"),
                                 ({**adam, "change": read}, "node 'reader' (Identity): reads a result of the update"),
                                 ({**adam, "change": state}, "must start at zero: 'm_fc1.bias'"),
                                 ({**adam, "change": buffer}, "adds to the result of a node: 'fc1.weight_grad'"),
                                 ({**adam, "change": rate}, "the learning rate must be an input or a number above 0"),
                                 ({**adam, "clip": -1.0}, "'max_norm'")):
            with self.subTest(words=words):
                self.refuse(self.save(whole(**arguments)), words)

    def test_batch_normalization_and_average_pooling(self):
        """The same steps as from the forward pass, whose gradients are those of torch."""
        r = np.random.default_rng(3)
        np.savez(self.dir / "data.npz", x=r.standard_normal((16, 2, 5, 5)).astype(np.float32), labels=r.integers(0, 3, 16))
        forward, path = self.save(normalized(False), "forward.onnx"), self.save(normalized(True))
        for ranks, options in ((1, ()), (2, ()), (2, ("--sync-batchnorm",))):
            want = self.train(forward, "--optimizer", "sgd", *options, ranks=ranks)
            got = self.train(path, "--optimizer", "sgd", "--save", "saved.onnx", *options, ranks=ranks)
            for name, value in normalized_weights().items():
                self.assertGreater(np.abs(want[name] - value).max(), 1e-3, name)
                np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-6, err_msg=name)
        graph = self.weft("compile", path, "--batch", 4, "--world", 1, "--optimizer", "sgd", "--lr", LR, "--stop-after", "programs").stdout
        self.assertIn("BatchNormEvaluation", graph)
        saved = onnx.load(self.dir / "saved.onnx").graph
        self.assertEqual([node.op_type for node in saved.node], ["BatchNormalization", "AveragePool", "Flatten", "Gemm"])
        self.assertEqual({i.name for i in saved.initializer}, set(normalized_weights()))
        rows = {row["name"]: row for row in self.weft_json("check", path, "--batch", 4)["parameter_list"]}
        self.assertIn("running statistic", rows["n.running_mean"]["why"])

    def test_uses_of_normalization_that_differ_are_named(self):
        def reads(index):
            def change(graph):
                graph.node.append(helper.make_node("Identity", [graph.node[0].output[index]], ["copy"], "reader"))
                graph.output.append(helper.make_tensor_value_info("copy", TensorProto.FLOAT, [2]))
            return change

        def evaluation(graph):
            graph.node[0].attribute[-1].i = 0

        def renamed(graph):
            for node in graph.node:
                names = ["dy" if name == "p_grad" else name for name in node.input], ["dy" if n == "p_grad" else n for n in node.output]
                node.input[:], node.output[:] = names

        for change, words in ((reads(1), "running statistics that other nodes read"), (reads(4), "output saved_inv_std"),
                              (evaluation, "'training_mode' must be 1"), (renamed, "'<Y>_grad' of a result Y of AveragePool")):
            with self.subTest(words=words):
                proto = normalized(True)
                change(proto.graph)
                self.refuse(self.save(proto), words)

    def test_parameters_without_contents_are_named(self):
        self.refuse(self.copy(FILES[0]), "parameter 'fc1.weight' is an input", "file 'checkpoint'")

    def test_damaged_checkpoints(self):
        path, good = self.copy(*FILES[:2]), (FOLDER / "checkpoint").read_bytes()
        seed = random.randrange(1 << 30)
        print("seed", seed, file=sys.stderr)
        draws = random.Random(seed)
        damaged = [good[:size] for size in (0, 7, 8, 12, 40, 200, len(good) - 4)]
        for _ in range(40):
            bytes_ = bytearray(good)
            for _ in range(draws.randrange(1, 4)):
                bytes_[draws.randrange(len(good))] = draws.choice((0, 1, 0x7f, 0x80, 0xff))
            damaged.append(bytes(bytes_))
        for number, contents in enumerate(damaged):
            (self.dir / "checkpoint").write_bytes(contents)
            if number < 7:
                self.refuse(path, "checkpoint")
            else:
                done = subprocess.run([support.WEFT, "compile", path, "--batch", "4", "--world", "1", "-o", "p.weft"], cwd=self.dir,
                                      capture_output=True)
                self.assertIn(done.returncode, (0, 2), done.stderr)


if __name__ == "__main__":
    support.main()
