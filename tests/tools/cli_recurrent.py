#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""LSTM, GRU and RNN: results against numpy, gradients of torch's exports against torch in double precision."""
import unittest

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import support
from cli_training_info import read_safetensors
from support import Case

try:
    import torch
except ImportError:
    torch = None

STEPS, BATCH, INPUTS, HIDDEN = 5, 3, 4, 2
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def cell(kind, x, w, r, b, state, p, options):
    """One step of one direction; state: h, and c of LSTM."""
    h, n = state[0], HIDDEN
    wb, rb = np.split(b, 2)
    clip = options.get("clip", np.inf)

    def f(value):
        return sigmoid(np.clip(value, -clip, clip))

    def g(value):
        return np.tanh(np.clip(value, -clip, clip))
    if kind == "RNN":
        return (g(x @ w.T + wb + h @ r.T + rb),)
    if kind == "GRU":
        xs, hs = np.split(x @ w.T + wb, 3, 1), np.split(h @ r.T, 3, 1)
        z, reset = f(xs[0] + hs[0] + rb[:n]), f(xs[1] + hs[1] + rb[n:2 * n])
        if options.get("linear_before_reset"):
            fresh = g(xs[2] + reset * (hs[2] + rb[2 * n:]))
        else:
            fresh = g(xs[2] + (reset * h) @ r[2 * n:].T + rb[2 * n:])
        return ((1 - z) * fresh + z * h,)
    c = state[1]
    i, o, forget, fresh = np.split(x @ w.T + wb + h @ r.T + rb, 4, 1)
    i, forget = f(i + p[:n] * c), f(forget + p[2 * n:] * c)
    c = (1 - i if options.get("input_forget") else forget) * c + i * g(fresh)
    return f(o + p[n:2 * n] * c) * np.tanh(c), c


def reference(kind, feeds, options):
    """Y, Y_h and Y_c by the operator's definition."""
    x = feeds["X"].astype(np.float64)
    states = 2 if kind == "LSTM" else 1
    lengths = feeds.get("lengths", [STEPS] * BATCH)
    directions = 2 if options.get("direction") == "bidirectional" else 1
    y, ends = np.zeros((STEPS, directions, BATCH, HIDDEN)), [np.zeros((directions, BATCH, HIDDEN)) for _ in range(states)]
    for d in range(directions):
        state = [feeds.get(name, np.zeros((directions, BATCH, HIDDEN)))[d] for name in ("h", "c")[:states]]
        p = feeds["P"][d] if "P" in feeds else np.zeros(3 * HIDDEN)
        order = range(STEPS)[::-1] if d == 1 or options.get("direction") == "reverse" else range(STEPS)
        for t in order:
            new = cell(kind, x[t], feeds["W"][d], feeds["R"][d], feeds["B"][d], state, p, options)
            for s in range(BATCH):
                if t < lengths[s]:
                    y[t, d, s] = new[0][s]
                    for k in range(states):
                        state[k] = np.concatenate([state[k][:s], new[k][s:s + 1], state[k][s + 1:]])
        for k in range(states):
            ends[k][d] = state[k]
    return y, *ends


class Recurrent(Case):
    def compare(self, kind, given, layout=0, **options):
        """given: optional inputs."""
        directions, gates = 2 if options.get("direction") == "bidirectional" else 1, GATES[kind]
        feeds = {"X": draw(1, STEPS, BATCH, INPUTS), "W": draw(2, directions, gates * HIDDEN, INPUTS),
                 "R": draw(3, directions, gates * HIDDEN, HIDDEN), "B": draw(4, directions, 2 * gates * HIDDEN)}
        if "lengths" in given:
            feeds["lengths"] = np.int32([STEPS, 2, 3])
        for i, name in enumerate(("h", "c")):
            if name in given:
                feeds[name] = draw(5 + i, directions, BATCH, HIDDEN)
        if "P" in given:
            feeds["P"] = draw(7, directions, 3 * HIDDEN)
        want = reference(kind, feeds, options)
        if layout == 1:
            feeds |= {name: np.ascontiguousarray(np.swapaxes(feeds[name], 0, 1)) for name in ("X", "h", "c") if name in feeds}
            want = (np.moveaxis(want[0], 2, 0), *(np.swapaxes(end, 0, 1) for end in want[1:]))
            options["layout"] = 1
        names = [name if name in feeds else "" for name in ("X", "W", "R", "B", "lengths", "h", "c", "P")]
        node = helper.make_node(kind, names if kind == "LSTM" else names[:6], ["Y", "Y_h", "Y_c"][:len(want)], "cell",
                                hidden_size=HIDDEN, **options)
        kinds = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int32): TensorProto.INT32}
        graph = helper.make_graph(
            [node], "recurrent", [helper.make_tensor_value_info(n, kinds[v.dtype], v.shape) for n, v in feeds.items()],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, w.shape) for n, w in zip(node.output, want)])
        path = self.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8))
        folder = self.dir / "in"
        folder.mkdir(exist_ok=True)
        for name, value in feeds.items():
            (folder / f"{name}.pb").write_bytes(numpy_helper.from_array(value, name).SerializeToString())
        self.weft("run", path, "-n", 1, "--infer", "--inputs", folder, "--outputs", self.dir / "out")
        for name, value in zip(node.output, want):
            got = numpy_helper.to_array(onnx.load_tensor(str(self.dir / "out" / f"{name}.pb")))
            np.testing.assert_allclose(got, value, rtol=1e-5, atol=1e-6, err_msg=f"{kind} {options} {name}")

    def test_definitions(self):
        for kind in GATES:
            states = ("h", "c") if kind == "LSTM" else ("h",)
            self.compare(kind, ())
            self.compare(kind, states, direction="reverse", layout=1)
            self.compare(kind, ("lengths", *states), direction="bidirectional", clip=0.5)
        self.compare("LSTM", ("h", "c", "P"), direction="bidirectional")
        self.compare("LSTM", ("P", "lengths"), input_forget=1)
        self.compare("GRU", ("h", "lengths"), linear_before_reset=1, direction="bidirectional")

    def test_what_is_not_supported_is_named(self):
        with self.assertRaisesRegex(AssertionError, "unsupported activation 'ScaledTanh'"):
            self.compare("RNN", (), activations=["ScaledTanh"])

    @unittest.skipIf(torch is None, "python3-torch is missing")
    def test_exports_of_torch_train(self):
        """A step of gradient descent with rate 1 shows the gradients of two ranks' samples."""
        samples, classes, steps = 8, 5, 200
        for name, make, length in (("lstm", lambda: torch.nn.LSTM(INPUTS, 6, 2, bidirectional=True, batch_first=True), 7),
                                   ("gru", lambda: torch.nn.GRU(INPUTS, 6, batch_first=True), steps),
                                   ("rnn", lambda: torch.nn.RNN(INPUTS, 6, bidirectional=True, batch_first=True), 7)):
            torch.manual_seed(3)

            class Model(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.body = make()
                    self.head = torch.nn.Linear(6 * (2 if self.body.bidirectional else 1), classes)

                def forward(self, x, label):
                    y, _ = self.body(x)
                    return torch.nn.functional.cross_entropy(self.head(y[:, -1]), label)

            model = Model()
            x, label = torch.tensor(draw(1, samples, length, INPUTS)), torch.tensor(np.arange(samples) % classes)
            half = (x[:4], label[:4])
            path = self.dir / f"{name}.onnx"
            more = {"dynamo": False} if "dynamo" in torch.onnx.export.__code__.co_varnames else {}
            torch.onnx.export(model, half, str(path), input_names=["x", "label"], output_names=["loss"], opset_version=14,
                              training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, **more)
            np.savez(self.dir / "data.npz", x=x.numpy(), label=label.numpy())
            report = self.weft_json("run", path, "-n", 2, "--batch", 4, "--data", self.dir / "data.npz", "--no-eval", "--steps", 1,
                                    "--optimizer", "sgd", "--lr", 1, "--checkpoint", self.dir / "end.safetensors")
            got = read_safetensors(self.dir / "end.safetensors")
            double = Model().double()
            double.load_state_dict({k: v.double() for k, v in model.state_dict().items()})
            loss = double(x.double(), label)
            loss.backward()
            self.assertAlmostEqual(report["loss_first"], loss.item(), delta=1e-5)
            for key, value in double.named_parameters():
                self.assertIn(key, got)
                gradient = value.detach().numpy() - got[key]
                error = np.linalg.norm(gradient - value.grad.numpy()) / max(np.linalg.norm(value.grad.numpy()), 1e-6)
                self.assertLess(error, 2e-4, (name, key))


if __name__ == "__main__":
    support.main()
