#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Looks at saved models with the onnx package: usage check_saved_onnx.py GRAPH_ONNX_EVAL SOURCE_DIR

GRAPH_ONNX_EVAL MODEL OUT writes MODEL's evaluation model with its own weights. Exit status 77: no onnx package.
"""
import os
import subprocess
import sys
import tempfile

try:
    import onnx
    from onnx import checker, numpy_helper, shape_inference
except ImportError as error:
    print(f"skipped: {error} (Debian: python3-onnx)")
    sys.exit(77)

MODELS = ["samples/models/mlp.onnx", "samples/models/lenet.onnx", "tests/data/torch_mlp.onnx",
          "tests/data/torch_mlp_batch4.onnx", "tests/data/torch_lenet_avgpool.onnx",
          "tests/data/torch_lenet_avgpool_batch4.onnx", "tests/data/torch_reshape.onnx",
          "tests/data/torch_reshape_batch4.onnx", "tests/data/torch_dropout.onnx",
          "tests/data/torch_dropout_batch4.onnx"]


def dims(value):
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]


def check(original, saved):
    checker.check_model(saved, full_check=True)
    inferred = shape_inference.infer_shapes(saved, strict_mode=True)
    assert saved.opset_import == original.opset_import and saved.ir_version == original.ir_version
    assert saved.producer_name == original.producer_name
    assert [i.name for i in saved.graph.input] == ["image"], saved.graph.input
    assert [o.name for o in saved.graph.output] == ["logits"], saved.graph.output
    assert dims(saved.graph.input[0])[0] == "batch"
    assert dims(saved.graph.input[0])[1:] == dims(original.graph.input[0])[1:]
    assert dims(saved.graph.output[0]) == ["batch", 10], dims(saved.graph.output[0])
    assert dims(inferred.graph.output[0]) == ["batch", 10]
    # Nodes: a subset in the same order, with the same names and outputs; no loss.
    names = [(n.name, n.op_type, n.output[0]) for n in original.graph.node]
    kept = [(n.name, n.op_type, n.output[0]) for n in saved.graph.node]
    assert all(k in names for k in kept) and kept == [n for n in names if n in kept]
    assert not any(op == "SoftmaxCrossEntropyLoss" for _, op, _ in kept)
    assert all(len(n.input) == 1 for n in saved.graph.node if n.op_type == "Dropout")
    # Weights: every trained one, same name, same bits.
    before = {t.name: numpy_helper.to_array(t) for t in original.graph.initializer}
    after = {t.name: numpy_helper.to_array(t) for t in saved.graph.initializer}
    for name, array in before.items():
        assert name in after and after[name].dtype == array.dtype and after[name].shape == array.shape, name
        assert after[name].tobytes() == array.tobytes(), name
    assert not saved.graph.value_info


def main():
    program, source = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        for model in MODELS:
            path, out = os.path.join(source, model), os.path.join(folder, os.path.basename(model))
            subprocess.run([program, path, out], check=True)
            check(onnx.load(path), onnx.load(out))
            assert os.listdir(folder) == [os.path.basename(model)]
            os.unlink(out)
            print(f"ok {model}")


if __name__ == "__main__":
    main()
