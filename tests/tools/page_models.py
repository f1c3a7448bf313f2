# SPDX-License-Identifier: Apache-2.0
"""A model with the graph of ResNet-50 (He et al. 2016): 53 convolutions, each with BatchNormalization. Channels and images are
smaller, so that it compiles quickly."""
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def resnet50(divide=8, size=32, batch=2):
    nodes, weights = [], []

    def weight(name, *shape):
        weights.append(numpy_helper.from_array(np.full(shape, 0.01, np.float32), name))
        return name

    def conv(value, name, before, after, kernel, stride, relu):
        nodes.append(helper.make_node("Conv", [value, weight(f"{name}.conv.weight", after, before, kernel, kernel)], [f"{name}.conv"],
                                      f"{name}.conv", strides=[stride] * 2, pads=[kernel // 2] * 4))
        norms = [weight(f"{name}.bn.{part}", after) for part in ("weight", "bias", "running_mean", "running_var")]
        nodes.append(helper.make_node("BatchNormalization", [f"{name}.conv", *norms], [f"{name}.bn", f"{name}.mean", f"{name}.var"],
                                      f"{name}.bn", training_mode=1))
        if relu:
            nodes.append(helper.make_node("Relu", [f"{name}.bn"], [f"{name}.out"], f"{name}.relu"))
        return f"{name}.out" if relu else f"{name}.bn"

    channels = 64 // divide
    value = conv("x", "stem", 3, channels, 7, 2, True)
    nodes.append(helper.make_node("MaxPool", [value], ["pool"], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4))
    value, before = "pool", channels
    for layer, blocks in enumerate((3, 4, 6, 3), 1):
        middle = channels << (layer - 1)
        for block in range(blocks):
            name, stride = f"layer{layer}.{block}", 2 if block == 0 and layer > 1 else 1
            inner = conv(value, f"{name}.1", before, middle, 1, 1, True)
            inner = conv(inner, f"{name}.2", middle, middle, 3, stride, True)
            inner = conv(inner, f"{name}.3", middle, 4 * middle, 1, 1, False)
            if block == 0:
                value = conv(value, f"{name}.down", before, 4 * middle, 1, stride, False)
            nodes.append(helper.make_node("Add", [inner, value], [f"{name}.sum"], f"{name}.add"))
            nodes.append(helper.make_node("Relu", [f"{name}.sum"], [f"{name}.out"], f"{name}.relu"))
            value, before = f"{name}.out", 4 * middle
    nodes += [helper.make_node("GlobalAveragePool", [value], ["mean"], "mean"), helper.make_node("Flatten", ["mean"], ["flat"], "flat"),
              helper.make_node("Gemm", ["flat", weight("fc.weight", 1000, before), weight("fc.bias", 1000)], ["logits"], "fc", transB=1),
              helper.make_node("SoftmaxCrossEntropyLoss", ["logits", "label"], ["loss"], "loss")]
    graph = helper.make_graph(nodes, "resnet50", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, size, size]),
                                                  helper.make_tensor_value_info("label", TensorProto.INT64, ["batch"])],
                              [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)])
    onnx.checker.check_model(model)
    return model
