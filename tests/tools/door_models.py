# SPDX-License-Identifier: Apache-2.0
"""A multilayer perceptron by hand: the forward model, and the same with its backward pass, from one set of weights."""
import struct

import numpy as np
from onnx import TensorProto, helper, numpy_helper

PARAMS = ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")


def weights(seed=7, inputs=784, hidden=32, classes=10):
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return (rng.random(shape) * 0.2 - 0.1).astype(np.float32)

    return {"fc1.weight": draw(hidden, inputs), "fc1.bias": draw(hidden),
            "fc2.weight": draw(classes, hidden), "fc2.bias": draw(classes)}


def forward_nodes():
    return [helper.make_node("Flatten", ["image"], ["x"], name="flatten", axis=1),
            helper.make_node("Gemm", ["x", "fc1.weight", "fc1.bias"], ["h"], name="fc1", transB=1),
            helper.make_node("Relu", ["h"], ["a"], name="relu"),
            helper.make_node("Gemm", ["a", "fc2.weight", "fc2.bias"], ["logits"], name="fc2", transB=1),
            helper.make_node("SoftmaxCrossEntropyLoss", ["logits", "label"], ["loss", "log_prob"], name="ce",
                             reduction="mean")]


def backward_nodes(names):
    """Operators that exporters of training graphs write; names: what the gradient of each weight is called."""
    return [helper.make_node("SoftmaxCrossEntropyLossGrad", ["one", "log_prob", "label"], ["d_logits"], name="d_ce",
                             domain="com.microsoft", reduction="mean"),
            helper.make_node("Gemm", ["d_logits", "a"], [names["fc2.weight"]], name="d_fc2_w", transA=1),
            helper.make_node("SumTo", ["d_logits"], [names["fc2.bias"]], name="d_fc2_b", domain="weft", shape=[10]),
            helper.make_node("Gemm", ["d_logits", "fc2.weight"], ["d_a"], name="d_fc2_x"),
            helper.make_node("ReluGrad", ["d_a", "a"], ["d_h"], name="d_relu", domain="com.microsoft"),
            helper.make_node("Gemm", ["d_h", "x"], [names["fc1.weight"]], name="d_fc1_w", transA=1),
            helper.make_node("SumTo", ["d_h"], [names["fc1.bias"]], name="d_fc1_b", domain="weft", shape=[32])]


def model(nodes, values, outputs=("loss",), more=()):
    """A model of nodes; values: initializers by name."""
    shapes = {"loss": [], "logits": ["batch", 10]}
    graph = helper.make_graph(
        nodes, "door",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 28, 28]),
         helper.make_tensor_value_info("label", TensorProto.INT64, ["batch"])],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, shapes.get(o, values[o].shape if o in values else None))
         for o in outputs] + list(more),
        [numpy_helper.from_array(v, k) for k, v in values.items()])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13), helper.make_opsetid("weft", 1),
                                                   helper.make_opsetid("com.microsoft", 1)])
    made.ir_version = 8
    return made


def forward(values=None):
    return model(forward_nodes(), values or weights())


def deep(layers, width):
    """So many layers of one width, between two small ones."""
    values, x = {}, "x0"
    nodes = [helper.make_node("AveragePool", ["image"], ["pooled"], name="pool", kernel_shape=[4, 4], strides=[4, 4]),
             helper.make_node("Flatten", ["pooled"], ["x0"], name="flatten", axis=1)]
    sizes = [49, *[width] * (layers + 1), 10]
    for i, (inputs, outputs) in enumerate(zip(sizes, sizes[1:])):
        own = weights(seed=i, inputs=inputs, hidden=outputs)
        values |= {f"{i}.weight": own["fc1.weight"], f"{i}.bias": own["fc1.bias"]}
        h = "logits" if i == layers + 1 else f"h{i}"
        nodes.append(helper.make_node("Gemm", [x, f"{i}.weight", f"{i}.bias"], [h], name=f"fc{i}", transB=1))
        if h != "logits":
            x = f"a{i}"
            nodes.append(helper.make_node("Relu", [h], [x], name=f"relu{i}"))
    return model([*nodes, forward_nodes()[-1]], values)


def average_of_images(values=None):
    """All ranks learn from the average of their images: a forward pass that communicates, before its first weight."""
    nodes = forward_nodes()
    nodes[0].output[0] = "own"
    nodes.insert(1, helper.make_node("AllReduce", ["own"], ["x"], name="average", domain="weft", reduction="avg"))
    return model(nodes, values or weights())


def training(names=None, values=None, between=(), outputs=("loss",), more=()):
    """Forward and backward; between: nodes behind them, such as collectives of its own."""
    names = names or {p: p + "_grad" for p in PARAMS}
    values = dict(values or weights())
    values["one"] = np.array(1.0, np.float32)
    return model(forward_nodes() + backward_nodes(names) + list(between), values, outputs, more)


def gradients(values, image, label):
    """The gradients by numpy, in double precision."""
    w = {k: v.astype(np.float64) for k, v in values.items()}
    x = image.reshape(len(image), -1).astype(np.float64)
    h = x @ w["fc1.weight"].T + w["fc1.bias"]
    a = np.maximum(h, 0)
    z = a @ w["fc2.weight"].T + w["fc2.bias"]
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    loss = -np.log(p[np.arange(len(label)), label]).mean()
    d = p.copy()
    d[np.arange(len(label)), label] -= 1
    d /= len(label)
    dh = d @ w["fc2.weight"] * (h > 0)
    return loss, {"fc2.weight": d.T @ a, "fc2.bias": d.sum(0), "fc1.weight": dh.T @ x, "fc1.bias": dh.sum(0)}


def write_data(folder, count, seed=11):
    """A data set of random images as `weft run --data` reads it; returns images in [0, 1] and labels."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "t10k"):
        images = rng.integers(0, 256, (count, 28, 28), np.uint8)
        labels = rng.integers(0, 10, count, np.uint8)
        (folder / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, count, 28, 28) + images.tobytes())
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels.tobytes())
        if name == "train":
            answer = images.astype(np.float32) / np.float32(255), labels
    return answer


def sharded_training(ranks, params=PARAMS):
    """training(), whose weights are divided among ranks: an AllGather per weight, a ReduceScatter per gradient."""
    proto = training()
    nodes, graph = [], proto.graph
    for weight in graph.initializer:
        if weight.name not in params:
            continue
        array = numpy_helper.to_array(weight)
        own = array[:array.shape[0] // ranks]
        weight.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(own), weight.name))
        for n in graph.node:
            for i, name in enumerate(n.input):
                n.input[i] = weight.name + "_whole" if name == weight.name else name
            for i, name in enumerate(n.output):
                n.output[i] = weight.name + "_local" if name == weight.name + "_grad" else name
        nodes.append(helper.make_node("AllGather", [weight.name], [weight.name + "_whole"], "gather " + weight.name,
                                      domain="weft", group_size=ranks))
    nodes += graph.node
    for p in params:
        nodes.append(helper.make_node("ReduceScatter", [p + "_local"], [p + "_grad"], "scatter " + p, domain="weft",
                                      group_size=ranks, reduction="avg"))
    del graph.node[:]
    graph.node.extend(nodes)
    return proto
