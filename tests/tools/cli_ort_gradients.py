#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gradient operators of ONNX Runtime's training graphs against their formulas in double precision."""
import math

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import door_models
import support
from support import Case

MS = "com.microsoft"


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def flat(x, axis):
    return x.reshape(int(np.prod(x.shape[:axis])), -1)


def gelu_slope(x):
    cdf = 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return cdf + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def fast_gelu_slope(x):
    c = math.sqrt(2 / math.pi)
    t = np.tanh(c * (x + 0.044715 * x ** 3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x)


def softmax_grad(dy, y, axis):
    return y * (dy - (dy * y).sum(axis, keepdims=True))


def log_softmax_grad(dy, y, axis):
    return dy - np.exp(y) * dy.sum(axis, keepdims=True)


def layer_norm(x, s, dy):
    """dX, dScale, dB of rows; and mean and 1 / deviation."""
    m, inv = x.mean(-1, keepdims=True), 1 / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    n, d = (x - m) * inv, dy * s
    dx = inv * (d - d.mean(-1, keepdims=True) - n * (d * n).mean(-1, keepdims=True))
    rows = tuple(range(x.ndim - 1))
    return (dx, (dy * n).sum(rows), dy.sum(rows)), (m, inv)


def batch_norm(x, s, dy, mean, var, epsilon):
    shape, rest = (1, -1, 1, 1), (0, 2, 3)
    inv = 1 / np.sqrt(var + epsilon).reshape(shape)
    n = (x - mean.reshape(shape)) * inv
    ds, db = (dy * n).sum(rest), dy.sum(rest)
    count = x.size / x.shape[1]
    return s.reshape(shape) * inv * (dy - (db.reshape(shape) + n * ds.reshape(shape)) / count), ds, db


def placed(shape, index, dy):
    dx = np.zeros(shape)
    np.add.at(dx, index, dy)
    return dx


def max_pool_grad(x, dy):
    dx = np.zeros(x.shape)
    for n, c, i, j in np.ndindex(dy.shape):
        window = x[n, c, 2 * i:2 * i + 2, 2 * j:2 * j + 2]
        a, b = np.unravel_index(window.argmax(), window.shape)
        dx[n, c, 2 * i + a, 2 * j + b] += dy[n, c, i, j]
    return dx


class OrtGradients(Case):
    def setUp(self):
        super().setUp()
        self.nodes, self.inputs, self.constants, self.expected = [], {}, {}, {}

    def add(self, op, operands, want, domain=MS, constant=(), before=(), **attributes):
        """operands: arrays, names, or None; want: a result or several."""
        number = len(self.nodes)
        names = []
        for i, value in enumerate(operands):
            name = value if isinstance(value, str) else "" if value is None else f"{op}{number}_{i}"
            if name and not isinstance(value, str):
                (self.constants if i in constant else self.inputs)[name] = np.asarray(value)
            names.append(name)
        want = want if isinstance(want, tuple) else (want,)
        outputs = [f"{op}{number}_y{i}" for i in range(len(want))]
        self.nodes += [*before, helper.make_node(op, names, outputs, f"{op}{number}", domain=domain, **attributes)]
        self.expected |= dict(zip(outputs, want))

    def run_all(self):
        def info(name, value):
            return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype) if hasattr(
                helper, "np_dtype_to_tensor_dtype") else onnx.mapping.NP_TYPE_TO_TENSOR_TYPE[value.dtype], value.shape)
        graph = helper.make_graph(
            self.nodes, "grads", [info(k, v) for k, v in self.inputs.items()],
            [info(k, np.asarray(v, np.float32)) for k, v in self.expected.items()],
            [numpy_helper.from_array(v, k) for k, v in self.constants.items()])
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)], ir_version=8)
        folder = self.dir / "in"
        folder.mkdir()
        for name, value in self.inputs.items():
            (folder / f"{name}.pb").write_bytes(numpy_helper.from_array(value, name).SerializeToString())
        self.weft("run", self.save(proto), "-n", 1, "--infer", "--inputs", folder, "--outputs", self.dir / "out")
        for name, want in self.expected.items():
            got = numpy_helper.to_array(onnx.load_tensor(str(self.dir / "out" / f"{name}.pb")))
            self.assertEqual(got.shape, np.shape(want), name)
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5, err_msg=name)

    def test_formulas(self):
        dy, x, b = draw(1, 3, 4, 5), draw(2, 3, 4, 5), draw(3, 5)
        f64 = {k: v.astype(np.float64) for k, v in {"dy": dy, "x": x, "b": b}.items()}
        self.add("GeluGrad", [dy, x], f64["dy"] * gelu_slope(f64["x"]))
        self.add("FastGeluGrad", [dy, x], f64["dy"] * fast_gelu_slope(f64["x"]))
        self.add("BiasGeluGrad_dX", [dy, x, b], f64["dy"] * gelu_slope(f64["x"] + f64["b"]))
        self.add("BiasFastGeluGrad_dX", [dy, x, b], f64["dy"] * fast_gelu_slope(f64["x"] + f64["b"]))
        self.add("SinGrad", [dy, x], dy * np.cos(x), domain="")
        self.add("SigmoidGrad", [dy, softmax(x)], dy * softmax(x) * (1 - softmax(x)))
        self.add("TanhGrad", [dy, np.tanh(x)], dy * (1 - np.tanh(x) ** 2))
        self.add("ReluGrad", [dy, np.maximum(x, 0)], dy * (x > 0))
        y1, y2 = softmax(flat(x, 1)).reshape(x.shape), softmax(x, 1)
        self.add("SoftmaxGrad", [dy, y1], softmax_grad(flat(dy, 1), flat(y1, 1), 1).reshape(x.shape))
        self.add("SoftmaxGrad_13", [dy, y2], softmax_grad(dy, y2, 1), axis=1)
        self.add("LogSoftmaxGrad", [dy, np.log(y1)], log_softmax_grad(flat(dy, 1), flat(np.log(y1), 1), 1).reshape(x.shape))
        self.add("LogSoftmaxGrad_13", [dy, np.log(y2)], log_softmax_grad(dy, np.log(y2), 1), axis=1)
        self.add("DivGrad", [dy, x, b], (dy / b, -(dy * x / (b * b)).sum((0, 1))))
        self.add("ReduceSumTraining", [dy, np.int64([0, 2])], dy.sum((0, 2)), constant=[1], keepdims=0)
        self.add("InPlaceAccumulator", [dy, x], dy + x)
        self.run_all()

    def test_normalizations(self):
        x, dy, s = draw(1, 3, 4, 8), draw(2, 3, 4, 8), draw(3, 8)
        want, (mean, inv) = layer_norm(x.astype(np.float64), s, dy)
        self.add("LayerNormalizationGrad", [dy, x, s, mean.astype(np.float32), inv.astype(np.float32)], want, axis=-1)
        inv = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
        n, d = x * inv, dy * s
        self.add("SimplifiedLayerNormalizationGrad", [dy, x, s, inv],
                 (inv * (d - n * (d * n).mean(-1, keepdims=True)), (dy * n).sum((0, 1))))
        x, dy, s = draw(4, 3, 2, 4, 4), draw(5, 3, 2, 4, 4), draw(6, 2)
        mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3))
        self.add("BatchNormalizationGrad", [dy, x, s, mean, var], batch_norm(x.astype(np.float64), s, dy, mean, var, 1e-3), epsilon=1e-3)
        self.run_all()

    def test_indices(self):
        dy, rows = draw(1, 3, 2, 4), np.int64([[1, 4], [0, 1], [-1, 1]])
        self.add("GatherGrad", [np.int64([5, 4]), rows, dy], placed((5, 4), rows, dy), constant=[0])
        want = np.moveaxis(placed((5, 3), rows.reshape(-1), np.moveaxis(draw(2, 3, 6), 1, 0)), 0, 1)
        self.add("GatherGrad", [np.int64([3, 5]), rows.reshape(-1), draw(2, 3, 6)], want, constant=[0], axis=1)
        index, part = np.int64([[0, 2], [2, 2]]), draw(3, 2, 2)
        want = np.zeros((2, 4))
        for i, j in np.ndindex(2, 2):
            want[i, index[i, j]] += part[i, j]
        self.add("GatherElementsGrad", [part, np.int64([2, 4]), index], want, constant=[1], axis=1)
        tuples = np.int64([[0, 1], [2, 0], [0, 1]])
        self.add("GatherNDGrad", [np.int64([3, 2, 4]), tuples, draw(4, 3, 4)],
                 placed((3, 2, 4), (tuples[:, 0], tuples[:, 1]), draw(4, 3, 4)), constant=[0])
        want = np.zeros((6, 7))
        want[5:0:-2, 1:-1:3] = draw(5, 3, 2)
        self.add("SliceGrad", [draw(5, 3, 2), np.int64([6, 7]), np.int64([-1, 1]), np.int64([0, -1]), np.int64([-1, 0][::-1]),
                               np.int64([-2, 3])], want, constant=[1, 2, 3, 4, 5])
        x, dy = draw(6, 2, 3, 4, 6), draw(7, 2, 3, 2, 3)
        self.inputs["pooled"] = x
        pool = helper.make_node("MaxPool", ["pooled"], ["max", "where"], "pool", kernel_shape=[2, 2], strides=[2, 2])
        self.add("MaxPoolGrad", [dy, "where"], max_pool_grad(x, dy), domain="", before=[pool])
        self.run_all()

    def test_dropout(self):
        dy, mask = draw(1, 4, 5), draw(2, 4, 5) > 0
        self.add("DropoutGrad", [dy, mask, np.float32(0.25), np.bool_(True)], dy * mask / 0.75, constant=[2, 3])
        self.add("DropoutGrad", [dy, mask], dy * mask / 0.5)
        self.add("DropoutGrad", [dy, mask, np.float32(0.25), np.bool_(False)], dy, constant=[2, 3])
        self.run_all()

    def test_losses(self):
        x, labels, weights = draw(1, 6, 4), np.int64([0, 3, 1, -1, 2, 2]), np.abs(draw(2, 4))
        p, valid = softmax(x.astype(np.float64)), labels >= 0
        w = np.where(valid, weights[labels], 0)
        log_p = np.log(p).astype(np.float32)
        loss = -(w * np.log(p)[np.arange(6), labels]).sum() / w.sum()
        self.add("SoftmaxCrossEntropyLossInternal", [x, labels, weights, np.int64(-1)], (loss, log_p), constant=[3])
        one = np.eye(4)[labels]
        grad = (p - one) * (w / w.sum())[:, None]
        self.add("SoftmaxCrossEntropyLossInternalGrad", [np.float32(2), log_p, labels, weights, np.int64(-1)], 2 * grad, constant=[4])
        bias = draw(3, 6, 4)
        self.add("SoftmaxCrossEntropyLossInternalGrad", [np.float32(2), log_p, labels, weights, np.int64(-1), bias], 2 * grad + bias,
                 constant=[4])
        share = softmax(draw(4, 6, 4))
        self.add("SoftmaxCrossEntropyGrad", [np.float32(1.5), log_p, share], 1.5 * (p - share) / 6)
        self.add("SoftmaxCrossEntropyGrad", [np.float32(1.5), log_p, share], 1.5 * (p - share), reduction="sum")
        self.run_all()

    def test_a_training_graph_trains(self):
        """The forward and backward pass of a perceptron with tanh, all gradients by operators of ONNX Runtime."""
        proto = door_models.training()
        for node in proto.graph.node:
            if node.op_type == "Relu":
                node.op_type = "Tanh"
            elif node.op_type == "ReluGrad":
                node.op_type = "TanhGrad"
            elif node.op_type == "SoftmaxCrossEntropyLoss":
                node.op_type, node.domain = "SoftmaxCrossEntropyLossInternal", MS
            elif node.op_type == "SoftmaxCrossEntropyLossGrad":
                node.op_type = "SoftmaxCrossEntropyLossInternalGrad"
            elif node.op_type == "SumTo":
                node.op_type, node.domain = "ReduceSumTraining", MS
                node.input.append("rows")
                del node.attribute[:]
                node.attribute.append(helper.make_attribute("keepdims", 0))
        proto.graph.initializer.append(numpy_helper.from_array(np.int64([0]), "rows"))
        path = self.save(proto)
        report = self.weft_json("check", path, "--gradients", "--batch", 4)["gradients"]
        self.assertEqual(report["wrong"], 0, report)
        self.assertGreater(report["steps"], 50)
        images, labels = door_models.write_data(self.dir / "data", 32)
        report = self.weft_json("run", path, "-n", 2, "--batch", 8, "--data", self.dir / "data", "--no-eval", "--steps", 12)
        self.assertLess(report["loss_last"], report["loss_first"])

    def test_what_cannot_be_known_is_named(self):
        self.add("MaxPoolGrad", [draw(1, 1, 1, 2, 2), np.zeros((1, 1, 2, 2), np.int64)], draw(1, 1, 1, 2, 2), domain="")
        with self.assertRaisesRegex(AssertionError, "must be an output of MaxPool"):
            self.run_all()


if __name__ == "__main__":
    support.main()
