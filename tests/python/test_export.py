#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weft.export: files that compile, train what has requires_grad, and are saved for every batch."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import ranks

torch = ranks.need("torch")
import weft  # noqa: E402
import weft.export  # noqa: E402


class Net(torch.nn.Module):
    """A frozen layer, a buffer, a number in an expression, Dropout."""

    def __init__(self):
        super().__init__()
        self.body, self.head, self.drop = torch.nn.Linear(6, 5), torch.nn.Linear(5, 3), torch.nn.Dropout(0.25)
        self.register_buffer("mask", torch.tensor([1.0, 0, 1, 1, 1]))
        self.body.requires_grad_(False)

    def forward(self, x):
        return self.head(self.drop(torch.relu(self.body(x)) * self.mask * 0.125))


def make():
    torch.manual_seed(1)
    return Net(), torch.randn(4, 6), torch.randint(0, 3, (4,))


def make_language_model():
    """Logits of every position: [batch, positions, classes]."""
    torch.manual_seed(1)
    return torch.nn.Linear(6, 7), torch.randn(4, 2, 6), torch.randint(0, 7, (4, 2))


class Export(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)

    def trained(self, path, **options):
        plan = weft.compile(path, world=2, batch=4, **options)
        return {entry["name"] for entry in plan.explain(json=True)["parameter_list"] if entry["trained"]}

    def test_what_requires_grad_is_trained(self):
        model, inputs, labels = make()
        model.eval()
        path = self.dir / "net.onnx"
        names = weft.export.export(model, inputs, labels, path)
        self.assertFalse(model.training)
        self.assertEqual(set(names), {"model.head.weight", "model.head.bias"})
        self.assertEqual(self.trained(path), set(names))
        self.assertEqual(self.trained(path, freeze=["*"], train=["model.body.*", "model.head.bias"]),
                         {"model.body.weight", "model.body.bias", "model.head.bias"})
        with self.assertRaisesRegex(weft.WeftArgumentError, "matches no floating-point initializer"):
            self.trained(path, freeze="body.*")

    def test_a_language_model_with_a_fixed_batch(self):
        model, inputs, labels = make_language_model()
        for fixed in (False, True):
            path = self.dir / f"lm{fixed}.onnx"
            weft.export.export(model, inputs, labels, path, fixed_batch=fixed)
            self.assertEqual(self.trained(path), {"model.weight", "model.bias"})

    def test_inputs_have_the_names_of_forward(self):
        class Masked(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.table = torch.nn.Embedding(7, 5)

            def forward(self, input_ids, attention_mask=None):
                return self.table(input_ids) * attention_mask[..., None]

        onnx = ranks.need("onnx")
        path = self.dir / "masked.onnx"
        ids = torch.zeros(4, 6, dtype=torch.int64)
        weft.export.export(Masked(), (ids, torch.ones(4, 6)), ids, path)
        self.assertEqual([name.name for name in onnx.load(path).graph.input], ["input_ids", "attention_mask", "label"])

    def test_a_class_for_every_pixel(self):
        torch.manual_seed(1)
        path = self.dir / "pixels.onnx"
        weft.export.export(torch.nn.Conv2d(2, 5, 1), torch.randn(4, 2, 3, 3), torch.randint(0, 5, (4, 3, 3)), path)
        self.assertEqual(self.trained(path), {"model.weight", "model.bias"})

    def test_the_command(self):
        done = subprocess.run([sys.executable, "-m", "weft.export", "test_export:make", self.dir / "net.onnx", "--fixed-batch"],
                              capture_output=True, text=True, cwd=pathlib.Path(__file__).parent, env=os.environ)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"net.onnx: \d+ bytes, 2 parameters trained")
        self.assertEqual(self.trained(self.dir / "net.onnx"), {"model.head.weight", "model.head.bias"})

    def test_wrong_arguments(self):
        model, inputs, labels = make()
        with self.assertRaisesRegex(ValueError, "exporter must be one of"):
            weft.export.export(model, inputs, labels, self.dir / "x.onnx", exporter="tensorrt")
        with self.assertRaisesRegex(ValueError, "2 names for 1 inputs"):
            weft.export.export(model, inputs, labels, self.dir / "x.onnx", input_names=["a", "b"])


if __name__ == "__main__":
    ranks.main()
