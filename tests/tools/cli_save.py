#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The saved model: names kept, label dropped, symbolic batch, and the same accuracy in onnxruntime."""
import sys
import json
import subprocess
import time
import unittest

import support
from support import Case, DATA, MODELS, NEED_DATA, read_idx

try:
    import numpy as np
    import onnx
    import onnx.checker
    import onnx.numpy_helper
except ImportError:
    print("skipped: python3-numpy or python3-onnx is missing")
    sys.exit(77)
try:
    import onnxruntime
except ImportError:
    onnxruntime = None

STEPS = 10 if support.SANITIZED else 60
LONG = 300 if support.SANITIZED else 1500  # steps: training goes on after its first checkpoint


@NEED_DATA
class Save(Case):
    def train_and_save(self, model, *extra):
        saved = self.dir / "trained.onnx"
        report = self.weft_json("run", MODELS / model, "-n", 2, "--batch", 48, "--data", DATA, "--steps", STEPS,
                                "--save", saved, *extra)
        return report, onnx.load(saved)

    def check(self, name, *extra):
        report, saved = self.train_and_save(name, *extra)
        source = onnx.load(MODELS / name)
        onnx.checker.check_model(saved, full_check=True)
        self.assertEqual({i.name for i in saved.graph.initializer}, {i.name for i in source.graph.initializer})
        label = source.graph.node[-1].input[1]
        logits = source.graph.node[-1].input[0]
        self.assertNotIn(label, {i.name for i in saved.graph.input})
        self.assertEqual([o.name for o in saved.graph.output], [logits])
        self.assertTrue(saved.graph.input[0].type.tensor_type.shape.dim[0].dim_param)
        self.assertTrue(saved.graph.output[0].type.tensor_type.shape.dim[0].dim_param)
        for before in source.graph.initializer:
            after = next(i for i in saved.graph.initializer if i.name == before.name)
            self.assertEqual(list(after.dims), list(before.dims))
            self.assertFalse(np.array_equal(onnx.numpy_helper.to_array(after), onnx.numpy_helper.to_array(before)))
        if onnxruntime is None:
            self.skipTest("onnxruntime cannot be imported; the rest of this test has passed")
        session = onnxruntime.InferenceSession(saved.SerializeToString(), providers=["CPUExecutionProvider"])
        images = read_idx("t10k-images-idx3-ubyte.gz").reshape(-1, 1, 28, 28).astype(np.float32) / 255
        labels = read_idx("t10k-labels-idx1-ubyte.gz")
        right = 0
        for part in np.array_split(np.arange(len(labels)), 7):  # any batch size goes
            answer, = session.run(None, {saved.graph.input[0].name: images[part]})
            right += int((answer.argmax(1) == labels[part]).sum())
        # Ties in the last bit of two logits may fall either way.
        self.assertAlmostEqual(right / len(labels), report["test_accuracy"], delta=3e-4)

    def test_mlp(self):
        self.check("mlp.onnx")

    @unittest.skipIf(support.SANITIZED, "test_mlp does the same, in a tenth of the time")
    def test_lenet(self):
        self.check("lenet.onnx", "--optimizer", "adam")

    def test_the_saved_model_says_how_its_input_is_scaled(self):
        self.train_and_save("mlp.onnx", "--no-eval")
        props = {p.key: p.value for p in onnx.load(self.dir / "trained.onnx").metadata_props}
        self.assertEqual(props["weft.input.image"], "pixels / 255")
        plan = self.compile("mlp.onnx", "p.weft", 1, 48)
        done = self.weft("run", plan, "--data", DATA, "--steps", 1, "--no-eval")
        self.assertIn("trained 1 step on 1 rank: ", done.stdout)
        self.assertIn("input: pixels were divided by 255", done.stdout)

    def test_a_failing_trace_or_checkpoint_does_not_lose_the_model(self):
        """Both folders go while training runs: the model and the summary are there, and each failure is reported."""
        plan = self.compile("mlp.onnx", "p.weft", 2, 48)
        for folder in ("t", "c"):
            (self.dir / folder).mkdir()
        run = subprocess.Popen([support.WEFT, "run", plan, "-n", "2", "--data", DATA, "--steps", str(LONG), "--no-eval", "--save",
                                "m.onnx", "--trace", "t/t.json", "--checkpoint", "c/c", "--checkpoint-every", "10", "--json"],
                               cwd=self.dir, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while not (self.dir / "c" / "c").exists() and run.poll() is None:
            time.sleep(0.001)
        (self.dir / "c").rename(self.dir / "gone")
        (self.dir / "t").rmdir()
        out, err = run.communicate(timeout=240)
        self.assertEqual(run.returncode, 2, err)
        self.assertEqual(json.loads(out)["steps"], LONG)
        onnx.checker.check_model(onnx.load(self.dir / "m.onnx"), full_check=True)
        self.assertIn("t/t.json", err)
        self.assertIn("c/c", err)

    def test_the_saved_model_has_no_loss_to_train_by(self):
        self.train_and_save("mlp.onnx", "--no-eval")
        done = self.weft("compile", self.dir / "trained.onnx", "-o", self.dir / "p.weft", "--world", 2, code=2)
        self.assertIn("loss", done.stderr)


if __name__ == "__main__":
    support.main()
