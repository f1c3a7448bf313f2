#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Odd forms of operators: absent outputs, sizes that overflow, equations that do not fit; right or refused by name."""
import sys

import ranks

np = ranks.need("numpy")
onnx = ranks.need("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

sys.path.insert(0, str(ranks.SOURCE / "tests" / "tools"))
import weft  # noqa: E402

TYPES = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "int64": TensorProto.INT64}


def model(nodes, inputs, outputs, opset=18, **constants):
    """inputs, outputs: name = (dtype, shape); a shape of None is not known."""
    def infos(things):
        return [helper.make_tensor_value_info(name, TYPES[dtype], shape) for name, (dtype, shape) in things.items()]

    graph = helper.make_graph(nodes, "g", infos(inputs), infos(outputs),
                              [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = 8
    return made


class Operators(ranks.RankCase):
    RANKS = 1

    def run_model(self, made, *inputs):
        with weft.Session(weft.compile(made, infer=True)) as session:
            return session.step(*inputs)

    def refused(self, made, text, **arguments):
        with self.assertRaisesRegex(weft.WeftError, text):
            weft.compile(made, **{"infer": True, **arguments})

    def test_attention_without_its_result(self):
        rng = np.random.default_rng(1)
        q, k, v, past_k, past_v = (rng.standard_normal((1, 2, n, 4)).astype("float32") for n in (3, 3, 3, 2, 2))
        node = helper.make_node("Attention", ["q", "k", "v", "", "pk", "pv"], ["", "keys"], name="a")
        shapes = {"q": 3, "k": 3, "v": 3, "pk": 2, "pv": 2}
        made = model([node], {n: ("float32", (1, 2, s, 4)) for n, s in shapes.items()}, {"keys": ("float32", (1, 2, 5, 4))}, 23)
        np.testing.assert_array_equal(self.run_model(made, q, k, v, past_k, past_v), np.concatenate([past_k, k], 2))

    def attention(self, length, opset=23, mask=None):
        inputs = {name: ("float32", (1, 1, length, 1)) for name in "qkv"}
        if mask is not None:
            inputs["mask"] = ("float32", mask)
        node = helper.make_node("Attention", ["q", "k", "v", *(["mask"] if mask else [])], ["y"], name="a", is_causal=int(not mask))
        return model([node], inputs, {"y": ("float32", (1, 1, length, 1))}, opset)

    def test_masks_of_attention(self):
        for length in (1 << 31, 1 << 16):
            self.refused(self.attention(length), "a mask of")
        rng = np.random.default_rng(3)
        q, k, v = (rng.standard_normal((1, 1, 4, 1)).astype("float32") for _ in range(3))
        only = self.run_model(self.attention(4, 24, (4, 1)), q, k, v, np.zeros((4, 1), "float32"))
        np.testing.assert_array_equal(only, np.broadcast_to(v[:, :, :1], q.shape))  # a short mask ends with -infinity

    def test_sizes_of_resize(self):
        for size in (384307168202282324, 1 << 31, -1, -3):
            made = model([helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], name="r", mode="nearest")],
                         {"x": ("float32", (1, 1, 1))}, {"y": ("float32", None)}, sizes=np.array([1, 1, size], "int64"))
            self.refused(made, "invalid size or scale")

    def test_selection_without_values(self):
        x = np.random.default_rng(2).standard_normal((3, 7)).astype("float32")
        made = model([helper.make_node("TopK", ["x", "k"], ["", "places"], name="t")], {"x": ("float32", (3, 7))},
                     {"places": ("int64", (3, 2))}, k=np.array([2], "int64"))
        np.testing.assert_array_equal(self.run_model(made, x), np.argsort(-x, 1)[:, :2])

    def bags(self, reduce, ends_from=1, weighted=False):
        """nn.EmbeddingBag as TorchScript writes it: rows of w at ids 10, from offset to offset."""
        def ints(name, value):
            return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(value, "int64")))

        body = [ints("zero", [0]), helper.make_node("Gather", ["all", "i"], ["from"]), helper.make_node("Gather", ["ends", "i"], ["to"]),
                helper.make_node("Unsqueeze", ["from", "zero"], ["from1"]), helper.make_node("Unsqueeze", ["to", "zero"], ["to1"]),
                helper.make_node("Slice", ["ids", "from1", "to1", "zero"], ["own"]), helper.make_node("Gather", ["w", "own"], ["rows"])]
        rows = "rows"
        if weighted:
            body += [helper.make_node("Slice", ["factors", "from1", "to1", "zero"], ["f"]), ints("one", [1]),
                     helper.make_node("Unsqueeze", ["f", "one"], ["f1"]), helper.make_node("Mul", ["rows", "f1"], ["scaled"])]
            rows = "scaled"
        body += [helper.make_node("ReduceSum", [rows, "zero"], ["bag"], keepdims=0) if reduce == "sum" else
                 helper.make_node("ReduceMean", [rows], ["bag"], axes=[0], keepdims=0), helper.make_node("Cast", ["true"], ["on"], to=9)]
        loop = helper.make_graph(body, "body", [helper.make_tensor_value_info("i", 7, []), helper.make_tensor_value_info("c", 9, [])],
                                 [helper.make_tensor_value_info("on", 9, []), helper.make_tensor_value_info("bag", 1, [None])])
        nodes = [helper.make_node("Shape", ["ids"], ["count"]), helper.make_node("Concat", ["offsets", "count"], ["all"], axis=0),
                 ints("first", [ends_from]), ints("last", [1 << 62]), ints("dim", [0]),
                 helper.make_node("Slice", ["all", "first", "last", "dim"], ["ends"]), helper.make_node("Size", ["ends"], ["bags"]),
                 helper.make_node("Constant", [], ["true"], value=numpy_helper.from_array(np.array(True))),
                 helper.make_node("Loop", ["bags", "true"], ["y"], body=loop, name="l")]
        inputs = {"ids": ("int64", (10,)), "offsets": ("int64", (4,)), **({"factors": ("float32", (10,))} if weighted else {})}
        return model(nodes, inputs, {"y": ("float32", (None, None))}, 17, w=np.arange(40, dtype="float32").reshape(20, 2) / 8)

    def test_bags(self):
        """The third bag is empty."""
        ids, offsets = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3]), np.array([0, 4, 6, 6])
        factors, table = np.arange(10, dtype="float32") / 4, np.arange(40, dtype="float32").reshape(20, 2) / 8
        for weighted, reduce in ((False, "sum"), (False, "mean"), (True, "sum")):
            rows = table[ids] * (factors[:, None] if weighted else 1)
            parts = [rows[a:b] for a, b in zip(offsets, [*offsets[1:], 10])]
            expected = [part.sum(0) if reduce == "sum" or not len(part) else part.mean(0) for part in parts]
            got = self.run_model(self.bags(reduce, weighted=weighted), ids, offsets, *([factors] if weighted else []))
            np.testing.assert_allclose(got, expected, rtol=1e-6)
        self.refused(self.bags("sum", ends_from=0), "cannot infer the shape")  # not the ends of the bags

    def sequence(self, places, lengths=None, **attributes):
        """SequenceAt of each place, of x [2, 7] split along axis 1."""
        nodes = [helper.make_node("SplitToSequence", ["x", *([] if lengths is None else ["lengths"])], ["s"], axis=1, **attributes)]
        nodes += [helper.make_node("SequenceAt", ["s", f"p{i}"], [f"y{i}"], name=f"at{i}") for i in range(len(places))]
        constants = {f"p{i}": np.int64(place) for i, place in enumerate(places)}
        constants.update({} if lengths is None else {"lengths": np.array(lengths, "int64")})
        return model(nodes, {"x": ("float32", (2, 7))}, {f"y{i}": ("float32", None) for i in range(len(places))}, **constants)

    def test_parts_of_sequences(self):
        x = np.arange(14, dtype="float32").reshape(2, 7)
        for made, want in ((self.sequence([1, 0, -2, 1], [2, 4, 1]), [x[:, 2:6], x[:, :2], x[:, 2:6], x[:, 2:6]]),
                           (self.sequence([2, 0], 3), [x[:, 6:], x[:, :3]]),
                           (self.sequence([-1, 3], keepdims=0), [x[:, 6], x[:, 3]])):
            got = self.run_model(made, x)
            for i, part in enumerate(want):
                np.testing.assert_array_equal(got[f"y{i}"], part)
        self.refused(self.sequence([3], [2, 4, 1]), "element 3 of 3 of a sequence is out of range")
        self.refused(self.sequence([1 << 62], 3), "out of range")
        self.refused(self.sequence([3], 3), "element 3 of sequence 's' is out of range")
        self.refused(self.sequence([0], [1] * 256), "unsupported operator SplitToSequence")
        self.refused(self.sequence([-1], 3), "unsupported operator SequenceAt")
        self.refused(self.sequence([0]), "unsupported operator SplitToSequence")

    def einsum(self, equation, *shapes):
        names = [f"x{i}" for i in range(len(shapes))]
        return model([helper.make_node("Einsum", names, ["y"], name="e", equation=equation)],
                     {name: ("float32", shape) for name, shape in zip(names, shapes)}, {"y": ("float32", None)})

    def test_equations_that_do_not_fit(self):
        for equation, *shapes in (("ij,jk->ik", (2, 3)), ("ij->ij", (2, 3), (3, 4)), ("ij,jk->ik", (2, 3), (4, 5)),
                                  ("ij,jk", (2, 3)), ("...ij,...jk->...ik", (5, 2, 3), (4, 3, 4))):
            self.refused(self.einsum(equation, *shapes), "Einsum|equation")
        a, b = np.arange(6, dtype="float32").reshape(2, 3), np.arange(12, dtype="float32").reshape(3, 4)
        np.testing.assert_array_equal(self.run_model(self.einsum("ij, jk -> ik", (2, 3), (3, 4)), a, b), a @ b)
        for equation, x in (("ii", (3, 3)), ("bii", (2, 3, 3))):  # a label that one operand has twice is not of the result
            x = np.arange(np.prod(x), dtype="float32").reshape(x)
            np.testing.assert_array_equal(self.run_model(self.einsum(equation, x.shape), x), np.einsum(equation, x))

    def test_bounds_of_the_type(self):
        x = np.array([-1e300, -2.0, 5.0, 1e300])
        for bounds, want in ((["x", "low"], [-1.0, -1.0, 5.0, 1e300]), (["x"], x)):
            made = model([helper.make_node("Clip", bounds, ["y"], name="c")], {"x": ("float64", (4,))}, {"y": ("float64", (4,))},
                         low=np.float64(-1))
            np.testing.assert_array_equal(self.run_model(made, x), want)

    def test_sines_of_large_numbers(self):
        x = np.concatenate([np.arange(300000, 300400) * (np.pi / 2), np.linspace(-9e5, 9e5, 1000)])
        made = model([helper.make_node(op, ["x"], [op], name=op) for op in ("Sin", "Cos")], {"x": ("float64", x.shape)},
                     {op: ("float64", x.shape) for op in ("Sin", "Cos")})
        got = self.run_model(made, x)
        np.testing.assert_allclose(got["Sin"], np.sin(x), rtol=1e-9, atol=1e-17)
        np.testing.assert_allclose(got["Cos"], np.cos(x), rtol=1e-9, atol=1e-17)

    def trained(self, nodes, **parameters):
        made = model([*nodes, helper.make_node("NegativeLogLikelihoodLoss", ["logits", "label"], ["loss"], name="loss")],
                     {"x": ("float32", (4, 3)), "label": ("int64", (4,))}, {"loss": ("float32", ())}, 17, **parameters)
        made.graph.output.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, (4, 3)))
        return made

    def test_statistics_in_part(self):
        nodes = [helper.make_node("LayerNormalization", ["x", "w"], ["n", "", "inverse"], name="norm"),
                 helper.make_node("Mul", ["n", "w"], ["logits"], name="mul")]
        self.refused(self.trained(nodes, w=np.ones(3, "float32")), "one of two statistics", infer=False, optimizer="sgd", lr=0.1)

    def test_smoothing_needs_its_loss(self):
        nodes = [helper.make_node("Mul", ["x", "w"], ["logits"], name="mul")]
        self.refused(self.trained(nodes, w=np.ones(3, "float32")), "the model has no SoftmaxCrossEntropyLoss", infer=False,
                     optimizer="sgd", lr=0.1, label_smoothing=0.1)

    def test_a_mean_of_parameters(self):
        """Each has a gradient of its own, which is reduced in place."""
        nodes = [helper.make_node("Mean", ["a", "b"], ["w"], name="mean"), helper.make_node("Mul", ["x", "w"], ["logits"], name="mul")]
        rng = np.random.default_rng(3)
        a, b, x = (rng.standard_normal((4, 3)).astype("float32") for _ in range(3))
        label = np.array([0, 1, 2, 0])
        plan = weft.compile(self.trained(nodes, a=a, b=b), optimizer="sgd", lr=0.5)
        with weft.Session(plan) as session:
            session.step(x, label)
            step = np.zeros((4, 3), "float32")
            step[np.arange(4), label] = 0.5 * 0.5 * x[np.arange(4), label] / 4
            np.testing.assert_allclose(session.params["a"], a + step, atol=1e-6)
            np.testing.assert_allclose(session.params["b"], b + step, atol=1e-6)


if __name__ == "__main__":
    ranks.main()
