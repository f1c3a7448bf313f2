# SPDX-License-Identifier: Apache-2.0
"""Exports a torch module with its loss as an ONNX file that `weft compile` trains.

    import weft.export
    weft.export.export(model, images, labels, "model.onnx")

or, where a function returns (module, inputs, labels):

    python -m weft.export package.module:function model.onnx

This is torch.onnx.export with what training needs: the loss is a part of the model; Dropout and BatchNormalization keep
their training form; nothing is folded, so that parameters keep their names; the first dimension is the batch. The file
lists the parameters that are trained, those with requires_grad, as property weft.trained.
"""
from __future__ import annotations

import argparse
import importlib
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["export", "with_loss"]

TRAINED = "weft.trained"


def _varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number, payload):
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _add_property(path, key, value):
    """One more entry of ModelProto.metadata_props: fields of a message may follow in any order, so it is appended."""
    with open(path, "ab") as file:
        file.write(_field(14, _field(1, key.encode()) + _field(2, value.encode())))


def _cross_entropy(logits, labels):
    import torch

    if logits.dim() > 2 and logits.shape[1:-1] == labels.shape[1:]:  # a language model: classes are the last dimension
        logits, labels = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    return torch.nn.functional.cross_entropy(logits, labels)


def with_loss(model: torch.nn.Module, loss: Callable[..., Any] | None = None) -> torch.nn.Module:
    """The module that export writes: the last of its inputs are the labels, its outputs loss and logits."""
    import torch

    loss = loss or _cross_entropy

    class WithLoss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, *tensors):
            output = self.model(*tensors[:-1])
            logits = output.logits if hasattr(output, "logits") else output  # of transformers
            return loss(logits, tensors[-1]), logits

    return WithLoss()


def _torchscript(module, tensors, path, opset, axes, names):
    import torch

    options = {"dynamo": False} if "dynamo" in inspect.signature(torch.onnx.export).parameters else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, tensors, path, opset_version=opset or 17, training=torch.onnx.TrainingMode.TRAINING,
                          do_constant_folding=False, input_names=names, output_names=["loss", "logits"],
                          dynamic_axes={name: {0: "batch"} for name in names} if axes else None, **options)


def _dynamo(module, tensors, path, opset, axes, names):
    import torch

    shapes = None
    if axes:
        batch = torch.export.Dim("batch")
        shapes = (tuple({0: batch} for _ in tensors),)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, tensors, path, opset_version=opset or 20, dynamo=True, optimize=False, verbose=False,
                          external_data=False, input_names=names, output_names=["loss", "logits"], dynamic_shapes=shapes)


def _names(model, count):
    parameters = inspect.signature(model.forward).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)]
    if count == 1 or len(names) < count or "label" in names[:count]:
        return ["input"] if count == 1 else [f"input{i}" for i in range(count)]
    return names[:count]


EXPORTERS = {"torchscript": _torchscript, "dynamo": _dynamo}


def export(model: torch.nn.Module, inputs: torch.Tensor | tuple[torch.Tensor, ...], labels: torch.Tensor,
           path: str | os.PathLike[str], *, loss: Callable[..., Any] | None = None, opset: int | None = None,
           exporter: str = "torchscript", fixed_batch: bool = False, input_names: Sequence[str] | None = None) -> list[str]:
    """Writes model with its loss to path.

    model        a torch.nn.Module; its training mode is restored
    inputs       an example tensor, or a tuple of them, whose first dimension is the batch
    labels       the example labels
    loss         a function of (logits, labels); default: cross entropy, of every position with a language model, of every pixel with classes in dimension 1
    opset        default: 17 with torchscript, 20 with dynamo
    exporter     "torchscript", which keeps BatchNormalization and Dropout in training form, or "dynamo", for models that the
                 other one cannot trace
    fixed_batch  True: the file has the batch of the examples
    input_names  default: input; of several, the names of forward's parameters; the labels are label

    In the file, names of parameters begin with "model.". Returns the names of the parameters that are trained.
    """
    if exporter not in EXPORTERS:
        raise ValueError(f"exporter must be one of {', '.join(EXPORTERS)}: {exporter!r}")
    inputs = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    names = list(input_names or _names(model, len(inputs)))
    if len(names) != len(inputs):
        raise ValueError(f"input_names has {len(names)} names for {len(inputs)} inputs")
    module = with_loss(model, loss)
    trained = [f"{path_of}.{name}" for path_of, part in module.named_modules(remove_duplicate=False)  # tied ones by all names
               for name, parameter in part.named_parameters(recurse=False) if parameter.requires_grad]
    training = model.training
    try:
        EXPORTERS[exporter](module.train(), (*inputs, labels), os.fspath(path), opset, not fixed_batch, names + ["label"])
    finally:
        model.train(training)
    _add_property(path, TRAINED, ",".join(trained))
    return trained


def main(arguments: list[str] | None = None) -> Any:
    parser = argparse.ArgumentParser(prog="python -m weft.export", description=__doc__.splitlines()[0])
    parser.add_argument("function", metavar="MODULE:FUNCTION", help="returns (torch module, inputs, labels)")
    parser.add_argument("output", metavar="OUT.onnx")
    parser.add_argument("--opset", type=int, metavar="N", help="default: 17 with torchscript, 20 with dynamo")
    parser.add_argument("--exporter", choices=EXPORTERS, default="torchscript", help="default: torchscript")
    parser.add_argument("--fixed-batch", action="store_true", help="the file has the batch of the inputs")
    args = parser.parse_args(arguments)
    module, _, function = args.function.partition(":")
    if not function:
        parser.error(f"{args.function}: expected MODULE:FUNCTION")
    sys.path.insert(0, "")  # a module of the current folder
    model, inputs, labels = getattr(importlib.import_module(module), function)()
    trained = export(model, inputs, labels, args.output, opset=args.opset, exporter=args.exporter, fixed_batch=args.fixed_batch)
    print(f"{args.output}: {os.path.getsize(args.output)} bytes, {len(trained)} parameters trained")


if __name__ == "__main__":
    main()
