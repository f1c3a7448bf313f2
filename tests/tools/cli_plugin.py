#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The sample plugin: an operator of a foreign domain, compiled, differentiated and trained."""
import support
from support import BINARY, Case, DATA, NEED_DATA, SOURCE

MODEL = SOURCE / "samples" / "custom_kernel" / "swish.onnx"
PLUGIN = BINARY / "samples" / "libswish.so"


class Plugin(Case):
    def test_without_the_plugin_the_operator_is_named(self):
        done = self.weft("compile", MODEL, "-o", self.dir / "p.weft", "--world", 2, "--batch", 8, code=2)
        self.assertRegex(done.stderr, "sample.*Swish")
        self.assert_one_line(done.stderr)

    def test_ops_shows_the_plugin(self):
        ops = self.weft_json("ops", "--kernels", PLUGIN)["operators"]
        facts = {(op["domain"], op["name"]): op["facts"] for op in ops}
        self.assertEqual(facts["sample", "Swish"], ["elementwise", "mixes_none", "differentiable"])

    @NEED_DATA
    def test_it_trains(self):
        report = self.weft_json("run", MODEL, "--kernels", PLUGIN, "-n", 2, "--batch", 64, "--data", DATA,
                                "--steps", 200)
        self.assertGreater(report["test_accuracy"], 0.75)

    @NEED_DATA
    def test_a_plan_without_its_kernel_names_it(self):
        plan = self.dir / "p.weft"
        self.weft("compile", MODEL, "--kernels", PLUGIN, "-o", plan, "--world", 2, "--batch", 8)
        done = self.weft("run", plan, "-n", 2, "--data", DATA, "--steps", 1, code=2)
        self.assertIn("Swish", done.stderr)
        self.assert_one_line(done.stderr)


if __name__ == "__main__":
    support.main()
