#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""WEFT_KERNELS: training with oneDNN's kernels beside the exact ones."""
import os
import subprocess
import unittest

import support
from support import Case, DATA, MODELS, NEED_DATA, WEFT

ONEDNN = {"WEFT_KERNELS": "onednn", "WEFT_THREADS": "1"}


def has_avx2():
    with open("/proc/cpuinfo") as file:
        return "avx2" in file.read().split()


@NEED_DATA
@unittest.skipUnless(has_avx2(), "oneDNN generates code for AVX2 at least")
class Kernels(Case):
    def implementations(self, plan, env):
        """Node name -> what computes it, from the log of rank 0."""
        err = self.weft("run", plan, "-n", 1, "--data", DATA, "--steps", 1, "--no-eval",
                        env={**env, "WEFT_LOG": "info"}).stderr
        lines = [line.split("kernel ", 1)[1] for line in err.splitlines() if "info: kernel " in line]
        return dict(line.split(": ", 1) for line in lines)

    def test_losses_are_close(self):
        for model in ("mlp.onnx", "lenet.onnx"):
            plan = self.compile(model, f"{model}.weft", 2, 32)
            exact, onednn = self.train(plan), self.train(plan, env=ONEDNN)
            self.assertEqual((exact["kernels"], onednn["kernels"]), ("exact", "onednn"))
            self.assertAlmostEqual(exact["loss_first"], onednn["loss_first"], delta=1e-4)
            self.assertAlmostEqual(exact["loss_last"], onednn["loss_last"], delta=1e-3)
            self.assertNotEqual(exact["param_digest"], onednn["param_digest"], "the setting did nothing")

    def test_bits_do_not_depend_on_policy_progress_or_run(self):
        for model, policies in (("mlp.onnx", ("bytes:25M", "bytes:1M", "percent:60,40", "one", "none")),
                                ("lenet.onnx", ("one", "none"))):
            digests = {}
            for policy in policies:
                plan = self.compile(model, "p.weft", 2, 32, "--bucket", policy)
                digests[policy] = self.train(plan, steps=10, env=ONEDNN)["param_digest"]
            for progress in ("inline", "thread"):
                env = {**ONEDNN, "WEFT_PROGRESS": progress}
                digests[progress] = self.train(plan, steps=10, env=env)["param_digest"]
            self.assertEqual(len(set(digests.values())), 1, digests)

    def test_log_names_what_computes_each_node(self):
        plan = self.compile("lenet.onnx", "p.weft", 1, 16)
        onednn, exact = self.implementations(plan, ONEDNN), self.implementations(plan, {})
        self.assertEqual(set(onednn), set(exact))
        self.assertIn("conv1", onednn)
        for node, name in exact.items():
            self.assertRegex(name, "^(conv|gemm):")
            self.assertNotEqual(onednn[node], name)
            self.assertNotRegex(onednn[node], r"(^|[ :])ref")
        # oneDNN cannot obey a smaller instruction set: the exact kernels take over, and the log says why.
        smaller = self.implementations(plan, {**ONEDNN, "WEFT_ISA": "portable"})
        for name in smaller.values():
            self.assertRegex(name, r"^(conv|gemm):portable \(oneDNN: already initialised for .* in this process\)$")

    def test_node_that_onednn_declines(self):
        try:
            import onnx
        except ImportError:
            self.skipTest("the onnx package is missing")
        model = onnx.load(MODELS / "mlp.onnx")
        node = next(n for n in model.graph.node if n.name == "fc2")
        kept = [a for a in node.attribute if a.name != "beta"]
        del node.attribute[:]
        node.attribute.extend(kept + [onnx.helper.make_attribute("beta", 0.5)])
        onnx.save(model, self.dir / "beta.onnx")
        plan = self.compile(self.dir / "beta.onnx", "p.weft", 1, 16)
        names = self.implementations(plan, ONEDNN)
        self.assertRegex(names["fc2"], r"^gemm:\w+ \(oneDNN: scaling input 2 by beta is not supported\)$")
        self.assertNotRegex(names["fc1"], "^gemm:")

    def test_ranks_that_disagree_are_told(self):
        plan = self.compile("mlp.onnx", "a.weft", 2, 8)
        address = f"unix:@weft-test-kernels-{os.getpid()}"
        runs = [subprocess.Popen([WEFT, "run", str(plan), "--data", DATA, "--steps", "2"], stderr=subprocess.PIPE,
                                 stdout=subprocess.PIPE, text=True,
                                 env={**os.environ, "WEFT_RANK": str(rank), "WEFT_WORLD_SIZE": "2",
                                      "WEFT_ADDRESS": address, "WEFT_KERNELS": kernels})
                for rank, kernels in enumerate(("exact", "onednn"))]
        for run in runs:
            out, err = run.communicate(timeout=600)
            self.assertEqual(run.returncode, 1, out + err)
            self.assertIn("WEFT_KERNELS differs: rank 0 has exact, rank 1 has onednn", err)

    def test_setting_is_shown_and_checked(self):
        rows = {row["name"]: row for row in self.weft_json("info")["settings"]}
        self.assertEqual(rows["WEFT_KERNELS"]["default"], "exact")
        self.assertTrue(rows["WEFT_KERNELS"]["collective"])
        plan = self.compile("mlp.onnx", "a.weft", 1, 8)
        done = self.weft("run", plan, "-n", 1, "--data", DATA, "--steps", 1, code=2,
                         env={"WEFT_KERNELS": "fast"})
        self.assert_one_line(done.stderr)
        self.assertIn("WEFT_KERNELS", done.stderr)


if __name__ == "__main__":
    support.main()
