#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models with training_info: Gradient, Momentum, Adagrad, Adam of ai.onnx.preview.training, against their definitions."""
import struct
import json

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import support
from support import Case

DOMAIN = "ai.onnx.preview.training"
SAMPLES, STEPS = 16, 6


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


START = {"w1": draw(1, 6, 5) * 0.5, "b1": draw(2, 5), "w2": draw(3, 5, 3), "fixed": draw(4, 5)}
TRAINED = ("w1", "b1", "w2")


def apply(kind, a, x, g, states, rate, count):
    """One update as the operator's definition states it; states: by name."""
    g = g + a.get("norm_coefficient", 0) * x
    if kind == "Momentum":
        v = states["V"] = a["alpha"] * states["V"] + g
        return x - rate * (g + a["alpha"] * v if a["mode"] == "nesterov" else v)
    if kind == "Adagrad":
        rate = rate / (1 + count * a.get("decay_factor", 0))
        h = states["V"] = states["V"] + g * g
        return x - rate * g / (np.sqrt(h) + a.get("epsilon", 1e-6))
    if kind == "Adam":
        alpha, beta = a.get("alpha", 0.9), a.get("beta", 0.999)
        v = states["V"] = alpha * states["V"] + (1 - alpha) * g
        h = states["H"] = beta * states["H"] + (1 - beta) * g * g
        adjusted = rate * np.sqrt(1 - beta ** count) / (1 - alpha ** count) if count > 0 else rate
        return x - adjusted * v / (np.sqrt(h) + a.get("epsilon", 1e-6))
    return x - rate * g


def step(w, x, t):
    """Loss and gradients of mean((tanh(x w1 + b1) * fixed) w2 - t)^2."""
    h = np.tanh(x @ w["w1"] + w["b1"])
    e = (h * w["fixed"]) @ w["w2"] - t
    d = 2 * e / e.size
    dh = d @ w["w2"].T * w["fixed"] * (1 - h * h)
    return (e * e).mean(), {"w1": x.T @ dh, "b1": dh.sum(0), "w2": (h * w["fixed"]).T @ d}


def model(kind, attributes, rate=0.1, count=0, initialization=False, trained=TRAINED, **change):
    tensor = helper.make_tensor_value_info
    start = {**START, **change.get("start", {})}
    forward = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w1"], ["xw"]), helper.make_node("Add", ["xw", "b1"], ["a"]),
         helper.make_node("Tanh", ["a"], ["h"]), helper.make_node("Mul", ["h", "fixed"], ["scaled"]),
         helper.make_node("MatMul", ["scaled", "w2"], ["y"])], "forward",
        [tensor("x", TensorProto.FLOAT, ["batch", 6])], [tensor("y", TensorProto.FLOAT, ["batch", 3])],
        [numpy_helper.from_array(value, name) for name, value in start.items()])
    grads = [f"d_{name}" for name in trained]
    nodes = [helper.make_node("Sub", ["y", "t"], ["e"]), helper.make_node("Mul", ["e", "e"], ["ee"]),
             helper.make_node("ReduceMean", ["ee"], ["loss"], keepdims=0),
             helper.make_node("Gradient", [*trained, "x", "t"], grads, "grad", domain=DOMAIN, xs=list(trained), zs=["x", "t"], y="loss")]
    values = {"R": np.float32(rate), "T": np.int64(count), "one": np.int64(1)}
    bindings = {}
    if kind == "SGD":
        for name in trained:
            nodes += [helper.make_node("Mul", ["R", f"d_{name}"], [f"change_{name}"]),
                      helper.make_node("Sub", [name, f"change_{name}"], [f"{name}_new"])]
            bindings[name] = f"{name}_new"
    else:
        slots = ["V", "H"] if kind == "Adam" else ["V"]
        states = [f"{slot}_{name}" for slot in slots for name in trained]
        values |= {state: np.zeros_like(START[state[2:]]) for state in states}
        news = [f"{name}_new" for name in [*trained, *states]]
        nodes += [helper.make_node(kind, ["R", "T", *trained, *grads, *states], news, "update", domain=DOMAIN, **attributes),
                  helper.make_node("Add", ["T", "one"], ["T_new"])]
        bindings = {**dict(zip([*trained, *states], news)), "T": "T_new"}
    values |= change.get("values", {})
    algorithm = helper.make_graph(
        nodes, "algorithm", [tensor("t", TensorProto.FLOAT, ["batch", 3])], [tensor("loss", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()])
    bindings |= change.get("bindings", {})
    initial, initial_bindings = None, None
    if initialization:
        initial = helper.make_graph(
            [helper.make_node("ConstantOfShape", ["shape"], ["ones"], value=numpy_helper.from_array(np.float32([0.25]))),
             helper.make_node("Mul", ["ones", "half"], ["b1_start"])], "initialization", [],
            [tensor("b1_start", TensorProto.FLOAT, [5])],
            [numpy_helper.from_array(np.int64([5]), "shape"), numpy_helper.from_array(np.float32(0.5), "half")])
        initial_bindings = [("b1", "b1_start")]
    info = helper.make_training_info(algorithm, list(bindings.items()), initial, initial_bindings)
    made = helper.make_model(forward, opset_imports=[helper.make_opsetid("", 13), helper.make_opsetid(DOMAIN, 1)], ir_version=8)
    made.training_info.append(info)
    return made


def read_safetensors(path):
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    rows = json.loads(raw[8:8 + size])
    return {name: np.frombuffer(raw, np.float32, offset=8 + size + row["data_offsets"][0],
                                count=int(np.prod(row["shape"]))).reshape(row["shape"])
            for name, row in rows.items() if name != "__metadata__" and row["dtype"] == "F32"}


class TrainingInfo(Case):
    def setUp(self):
        super().setUp()
        self.x, self.t = draw(11, SAMPLES, 6), draw(12, SAMPLES, 3)
        np.savez(self.dir / "data.npz", x=self.x, t=self.t)

    def train(self, proto, *more, ranks=2):
        """Every step sees all samples."""
        path = self.save(proto)
        report = self.weft_json("run", path, "-n", ranks, "--batch", SAMPLES // ranks, "--data", self.dir / "data.npz", "--no-eval",
                                "--steps", STEPS, "--checkpoint", self.dir / "end.safetensors", *more)
        return report, read_safetensors(self.dir / "end.safetensors")

    def expected(self, kind, attributes, rate, count, start=START, trained=TRAINED):
        w = {name: value.astype(np.float64) for name, value in start.items()}
        states = {name: {"V": 0.0, "H": 0.0} for name in trained}
        losses = []
        for i in range(STEPS):
            loss, gradients = step(w, self.x.astype(np.float64), self.t.astype(np.float64))
            losses.append(loss)
            for name in trained:
                w[name] = apply(kind, attributes, w[name], gradients[name], states[name], rate, count + i)
        return losses, w

    def compare(self, kind, attributes, rate=0.1, count=0, start=START, more=(), trained=TRAINED, **change):
        proto = model(kind, attributes, change.pop("stored_rate", rate), count, trained=trained, **change)
        report, got = self.train(proto, *more)
        losses, want = self.expected(kind, attributes, rate, count, start, trained)
        self.assertAlmostEqual(report["loss_first"], losses[0], delta=2e-5 * losses[0])
        self.assertAlmostEqual(report["loss_last"], losses[-1], delta=2e-4 * losses[0])
        for name in trained:
            error = np.linalg.norm(got[name] - want[name]) / np.linalg.norm(want[name] - start[name])
            self.assertLess(error, 1e-4, name)
        return got

    def test_update_rules(self):
        for kind, attributes, count in (
                ("SGD", {}, 0),
                ("Momentum", {"alpha": 0.8, "beta": 1.0, "mode": "standard", "norm_coefficient": 0.01}, 0),
                ("Momentum", {"alpha": 0.8, "beta": 1.0, "mode": "nesterov", "norm_coefficient": 0.0}, 3),
                ("Adagrad", {"decay_factor": 0.2, "epsilon": 1e-3, "norm_coefficient": 0.02}, 0),
                ("Adagrad", {}, 7),
                ("Adam", {"alpha": 0.8, "beta": 0.9, "epsilon": 1e-2, "norm_coefficient": 0.05}, 0),
                ("Adam", {}, 1)):
            with self.subTest(kind=kind, attributes=attributes, count=count):
                self.compare(kind, attributes, 0.05, count)

    def test_sharded_updates_have_the_same_bits(self):
        proto = model("Adam", {"epsilon": 1e-2, "norm_coefficient": 0.05}, 0.05)
        _, one = self.train(proto)
        _, two = self.train(proto, "--shard-optimizer")
        for name in TRAINED:
            self.assertEqual(one[name].tobytes(), two[name].tobytes(), name)

    def test_the_compiled_graph_has_the_rule(self):
        """Compiling what --emit-onnx wrote gives the same plan; its weights are the same bits."""
        proto = model("Adagrad", {"decay_factor": 0.1}, 0.05)
        _, one = self.train(proto)
        self.weft("compile", self.save(proto), "--world", 2, "--batch", SAMPLES // 2, "-o", "p.weft", "--emit-onnx", "compiled.onnx")
        self.weft("run", "compiled.onnx", "-n", 2, "--data", "data.npz", "--no-eval", "--steps", STEPS, "--checkpoint", "again.safetensors")
        again = read_safetensors(self.dir / "again.safetensors")
        for name in TRAINED:
            self.assertEqual(one[name].tobytes(), again[name].tobytes(), name)

    def test_saved_models_have_the_new_weights(self):
        proto = model("SGD", {}, 0.05)
        _, end = self.train(proto, "--save", self.dir / "saved.onnx")
        saved = {i.name: numpy_helper.to_array(i) for i in onnx.load(self.dir / "saved.onnx").graph.initializer}
        for name in TRAINED:
            self.assertEqual(end[name].tobytes(), saved[name].tobytes(), name)

    def test_options_come_before_the_file(self):
        self.compare("SGD", {}, 0.2, more=("--lr", 0.2), stored_rate=0.05)
        losses, want = self.expected("SGD", {}, 0.05, 0)
        _, got = self.train(model("Adam", {}, 0.5), "--optimizer", "sgd", "--lr", 0.05)
        self.assertLess(np.linalg.norm(got["w1"] - want["w1"]), 1e-5)
        text = self.weft("compile", self.save(model("Adam", {})), "--batch", 4, "--world", 1, "-o", "p.weft", "--weight-decay", 0.1,
                         code=2).stderr
        self.assertIn("without optimizer", text)

    def test_only_what_is_updated_is_trained(self):
        got = self.compare("Momentum", {"alpha": 0.5, "beta": 1.0, "mode": "standard", "norm_coefficient": 0.0}, trained=("w1",))
        self.assertEqual([name for name in got if name in START], ["w1"])
        rows = {row["name"]: row for row in self.weft_json("check", self.save(model("Adam", {})), "--batch", 4)["parameter_list"]}
        self.assertFalse(rows["fixed"]["trained"])

    def test_initialization_is_run(self):
        start = {**START, "b1": np.full(5, 0.125, np.float32)}
        self.compare("SGD", {}, start=start, initialization=True)

    def test_a_gradient_operator_in_a_plain_graph(self):
        proto = model("SGD", {})
        info, graph = proto.training_info[0].algorithm, proto.graph
        graph.node.extend(info.node[:4])
        graph.input.extend(info.input)
        graph.output.extend([*info.output, helper.make_tensor_value_info("d_w1", TensorProto.FLOAT, [6, 5])])
        del proto.training_info[:]
        losses, want = self.expected("SGD", {}, 0.05, 0)
        _, got = self.train(proto, "--optimizer", "sgd", "--lr", 0.05)
        for name in TRAINED:
            self.assertLess(np.linalg.norm(got[name] - want[name]), 1e-5, name)

    def test_the_model_for_inference_needs_no_algorithm(self):
        proto = model("Adam", {})
        self.weft("compile", self.save(proto), "--infer", "--batch", 4, "--world", 1, "-o", "p.weft")

    def test_an_output_of_gradient_may_be_omitted(self):
        """An omitted input of a node that stays has the same empty name."""
        proto = model("SGD", {}, 0.05, trained=("w1", "b1"))
        algorithm = proto.training_info[0].algorithm
        next(node for node in algorithm.node if node.name == "grad").output[1] = ""
        for node in [node for node in algorithm.node if node.output[0] in ("change_b1", "b1_new")]:
            algorithm.node.remove(node)
        del proto.training_info[0].update_binding[1]
        proto.graph.node[-1].input[0] = "clipped"
        proto.graph.node.insert(4, helper.make_node("Clip", ["scaled", "", "bound"], ["clipped"]))
        proto.graph.initializer.append(numpy_helper.from_array(np.float32(1e6), "bound"))
        _, want = self.train(model("SGD", {}, 0.05, trained=("w1",)))
        _, got = self.train(proto)
        self.assertEqual(got["w1"].tobytes(), want["w1"].tobytes())

    def test_what_is_not_the_same_rule_is_named(self):
        post = model("Adam", {"norm_coefficient_post": 0.1})
        beta = model("Momentum", {"alpha": 0.8, "beta": 0.5, "mode": "standard", "norm_coefficient": 0.0})
        state = model("Adagrad", {}, values={"V_w1": np.ones((6, 5), np.float32)})
        count = model("Adam", {}, bindings={"T": "T"})
        other = model("SGD", {}, bindings={"fixed": "h"})
        two = model("SGD", {})
        two.training_info.append(two.training_info[0])
        shape = model("Adagrad", {}, values={"V_w1": np.zeros(5, np.float32)})
        rate = model("Adagrad", {})
        next(node for node in rate.training_info[0].algorithm.node if node.name == "update").input[0] = ""
        for proto, words in ((post, "norm_coefficient_post"), (beta, "'beta'"), (state, "must start at zero: 'V_w1'"),
                             (count, "add 1 to the count of steps 'T'"), (other, "update_binding 'fixed' = 'h'"),
                             (two, "2 algorithms"), (shape, "the shape of its parameter: 'V_w1'"),
                             (rate, "the learning rate must be an input or a number above 0")):
            error = self.weft("compile", self.save(proto), "--batch", 4, "--world", 1, "-o", "p.weft", code=2).stderr
            self.assertIn(words, error)


if __name__ == "__main__":
    support.main()
