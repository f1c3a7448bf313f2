# SPDX-License-Identifier: Apache-2.0
"""Models for the tests of inference: small graphs, the parts of them that ranks have, random ones."""
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSETS = (("", 17), ("weft", 1), ("com.microsoft", 1))


def node(op, inputs, output, domain="", **attrs):
    outputs = output if isinstance(output, list) else [output]
    return helper.make_node(op, inputs, outputs, f"{op}_{outputs[0]}", domain=domain, **attrs)


def model(nodes, inputs, outputs, weights=None, dtype=TensorProto.FLOAT, opsets=OPSETS):
    """inputs: name -> shape (names of dimensions allowed) or (dtype, shape); weights: name -> array."""
    def info(name, shape):
        typed = len(shape) == 2 and not isinstance(shape[1], (int, str))
        return helper.make_tensor_value_info(name, *(shape if typed else (dtype, shape)))
    infos = [info(n, s) for n, s in inputs.items()]
    used = {n.domain for n in nodes} | {""}
    graph = helper.make_graph(nodes, "g", infos, [helper.make_tensor_value_info(o, dtype, None) for o in outputs],
                              [numpy_helper.from_array(np.ascontiguousarray(w), n) for n, w in (weights or {}).items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(*o) for o in opsets if o[0] in used], ir_version=8)


def save_tensor(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save_tensor(numpy_helper.from_array(np.ascontiguousarray(array), path.stem), path)


def load_tensor(path):
    tensor = TensorProto()
    tensor.ParseFromString(path.read_bytes())
    return tensor.name, numpy_helper.to_array(tensor)


def tree(arrays, op):
    """The in-order binary tree over ranks, split at the largest power of two."""
    if len(arrays) == 1:
        return arrays[0]
    half = 1
    while half * 2 < len(arrays):
        half *= 2
    return op(tree(arrays[:half], op), tree(arrays[half:], op))


class Mlp:
    """x -> relu(x w1 + b1) w2 + b2, w1 by columns, w2 by rows: one all-reduce."""
    inputs = {"x": ["batch", 10]}
    outputs = ["y"]
    heads = 24  # what is divided among ranks

    def __init__(self, rng):
        self.weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in
                        (("w1", (10, 24)), ("b1", (24,)), ("w2", (24, 6)), ("b2", (6,)))}

    def part(self, rank, ranks):
        own = slice(rank * 24 // ranks, (rank + 1) * 24 // ranks)
        w = self.weights
        return {"w1": w["w1"][:, own], "b1": w["b1"][own], "w2": w["w2"][own], "b2": w["b2"]}

    def nodes(self, reduce):
        return [node("Gemm", ["x", "w1", "b1"], "h"), node("Relu", ["h"], "a"), node("MatMul", ["a", "w2"], "p"),
                *reduce("p", "s"), node("Add", ["s", "b2"], "y")]

    def run(self, feed):
        w = {k: v.astype(np.float64) for k, v in self.weights.items()}
        return {"y": np.maximum(feed["x"] @ w["w1"] + w["b1"], 0) @ w["w2"] + w["b2"]}


class Attention:
    """Self-attention with a residual; heads are divided among ranks: one all-reduce."""
    inputs = {"x": ["batch", 5, 16]}
    outputs = ["y"]
    heads = 4

    def __init__(self, rng):
        def weight(*shape):
            return (rng.standard_normal(shape) / 4).astype(np.float32)
        self.weights = {"wq": weight(16, 16), "wk": weight(16, 16), "wv": weight(16, 16), "wo": weight(16, 16)}

    def part(self, rank, ranks):
        own = slice(rank * 16 // ranks, (rank + 1) * 16 // ranks)
        w = self.weights
        return {"wq": w["wq"][:, own], "wk": w["wk"][:, own], "wv": w["wv"][:, own], "wo": w["wo"][own],
                "split": np.array([0, 0, 4 // ranks, 4]), "join": np.array([0, 0, 16 // ranks]), "half": np.float32(0.5)}

    def nodes(self, reduce):
        def split(name, perm):
            return [node("MatMul", ["x", "w" + name], name), node("Reshape", [name, "split"], name + "s"),
                    node("Transpose", [name + "s"], name + "h", perm=perm)]
        return [*split("q", [0, 2, 1, 3]), *split("k", [0, 2, 3, 1]), *split("v", [0, 2, 1, 3]),
                node("MatMul", ["qh", "kh"], "qk"), node("Mul", ["qk", "half"], "scores"),
                node("Softmax", ["scores"], "probs", axis=-1), node("MatMul", ["probs", "vh"], "mixed"),
                node("Transpose", ["mixed"], "back", perm=[0, 2, 1, 3]), node("Reshape", ["back", "join"], "flat"),
                node("MatMul", ["flat", "wo"], "p"), *reduce("p", "s"), node("Add", ["s", "x"], "y")]

    def run(self, feed):
        w = {k: v.astype(np.float64) for k, v in self.weights.items()}
        x = feed["x"].astype(np.float64)
        b, t, d = x.shape
        q, k, v = (np.moveaxis((x @ w[n]).reshape(b, t, 4, 4), 2, 1) for n in ("wq", "wk", "wv"))
        scores = q @ np.swapaxes(k, 2, 3) / 2
        probs = np.exp(scores - scores.max(-1, keepdims=True))
        probs /= probs.sum(-1, keepdims=True)
        return {"y": np.moveaxis(probs @ v, 1, 2).reshape(b, t, d) @ w["wo"] + x}


class RandomGraph:
    """Element-wise operators and collectives in a random order over [12, 5] tensors; runs on all ranks in numpy, bit
    for bit as Weft must."""
    shape = (12, 5)

    def __init__(self, rng, ranks, count):
        self.nodes, self.steps = [], []
        live = ["x0", "x1"]
        for i in range(count):
            out = f"t{i}"
            kind = rng.choice(["Add", "Sub", "Mul", "Relu", "Neg", "AllReduce", "Broadcast", "AllToAll", "AllReduce2",
                               "RoundTrip", "Gathered"])
            a, b = (live[int(rng.integers(max(0, len(live) - 6), len(live)))] for _ in range(2))
            self.add(rng, str(kind), a, b, out, ranks)
            live += [out, out + "b"] if kind == "AllReduce2" else [out]
        read = {i for n in self.nodes for i in n.input}
        self.outputs = [t for t in live if t not in read and t[0] == "t"][-4:] or [live[-1]]

    def add(self, rng, kind, a, b, out, ranks):
        root = int(rng.integers(ranks))
        reduction = str(rng.choice(["sum", "avg", "max", "min"]))
        ops = {"Add": lambda x, y: x + y, "Sub": lambda x, y: x - y, "Mul": lambda x, y: x * y * np.float32(0.5)}
        if kind == "Mul":
            self.nodes += [node("Mul", [a, b], out + "m"), node("Mul", [out + "m", "half"], out)]
            self.steps.append((out, lambda v, r: [x * y * np.float32(0.5) for x, y in zip(v[a], v[b])]))
        elif kind in ops:
            self.nodes.append(node(kind, [a, b], out))
            self.steps.append((out, lambda v, r: [ops[kind](x, y) for x, y in zip(v[a], v[b])]))
        elif kind == "Relu":
            self.nodes.append(node("Relu", [a], out))
            self.steps.append((out, lambda v, r: [np.maximum(x, 0) for x in v[a]]))
        elif kind == "Neg":
            self.nodes.append(node("Sub", ["zero", a], out))
            self.steps.append((out, lambda v, r: [np.float32(0) - x for x in v[a]]))
        elif kind == "AllReduce":
            self.nodes.append(node("AllReduce", [a], out, "weft", reduction=reduction))
            self.steps.append((out, lambda v, r: [self.reduce(v[a], reduction)] * r))
        elif kind == "AllReduce2":
            self.nodes.append(node("AllReduce", [a, b], [out, out + "b"], "weft"))
            self.steps.append((out, lambda v, r: [self.reduce(v[a], "sum")] * r))
            self.steps.append((out + "b", lambda v, r: [self.reduce(v[b], "sum")] * r))
        elif kind == "Broadcast":
            self.nodes.append(node("Broadcast", [a], out, "weft", root=root))
            self.steps.append((out, lambda v, r: [v[a][root]] * r))
        elif kind == "AllToAll":
            self.nodes.append(node("AllToAll", [a], out, "weft"))
            self.steps.append((out, lambda v, r: [np.concatenate([np.split(x, r)[me] for x in v[a]]) for me in range(r)]))
        elif kind == "RoundTrip":  # reduce-scatter, all-gather
            self.nodes += [node("ReduceScatter", [a], out + "s", "weft"), node("AllGather", [out + "s"], out, "weft")]
            self.steps.append((out, lambda v, r: [self.reduce(v[a], "sum")] * r))
        else:  # gathered at a root, scattered from another
            self.nodes += [node("Gather", [a], out + "g", "weft", root=root),
                           node("Scatter", [out + "g"], out, "weft", root=root)]
            self.steps.append((out, lambda v, r: list(v[a])))

    @staticmethod
    def reduce(arrays, reduction):
        ops = {"sum": np.add, "avg": np.add, "max": np.maximum, "min": np.minimum}
        total = tree(arrays, ops[reduction])
        return total / np.float32(len(arrays)) if reduction == "avg" else total

    def model(self):
        return model(self.nodes, {"x0": self.shape, "x1": self.shape}, self.outputs,
                     {"zero": np.float32(0), "half": np.float32(0.5)})

    def run(self, feeds):
        """feeds: per rank name -> array; returns per output a list by rank."""
        values = {name: [feed[name] for feed in feeds] for name in feeds[0]}
        for name, step in self.steps:
            values[name] = step(values, len(feeds))
        return {name: values[name] for name in self.outputs}
