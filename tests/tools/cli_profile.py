#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measured times: `weft run --write-profile` writes them, `weft compile --profile` plans with them."""
import json

import support
from support import DATA, MODELS


class Profile(support.Case):
    def measure(self, model, *extra):
        profile = self.dir / "profile.json"
        report = self.weft_json("run", MODELS / model, "-n", 2, "--batch", 32, "--data", DATA, "--steps", 12,
                                "--no-eval", "--write-profile", profile, *extra)
        return profile, report, json.loads(profile.read_text())

    def test_a_profile_names_every_kernel_and_bucket(self):
        path, report, profile = self.measure("mlp.onnx", "--bucket", "bytes:256K")
        self.assertEqual((profile["format"], profile["world"], profile["batch"]), (1, 2, 32))
        self.assertAlmostEqual(profile["step_ns"] * 1e-6, report["step_ms_p50"], delta=report["step_ms_p50"])
        kernels = {kernel["name"]: kernel["ns"] for kernel in profile["kernels"]}
        for name in ("fc1", "fc1/grad", "fc2/grad", "loss_node", "loss_node/grad"):
            self.assertGreater(kernels[name], 0)
        self.assertTrue(any(name.startswith("update of bucket") for name in kernels))
        plan = self.compile("mlp.onnx", "p.weft", 2, 32, "--bucket", "bytes:256K")
        buckets = self.weft_json("explain", plan)["buckets"]
        self.assertEqual([c["name"] for c in profile["collectives"]], [b["name"] for b in buckets])
        self.assertEqual([c["bytes"] for c in profile["collectives"]],
                         [b["elem_count"] * 4 for b in buckets])

    def test_a_compile_plans_with_it(self):
        path, _, profile = self.measure("lenet.onnx")
        plan = self.compile("lenet.onnx", "p.weft", 2, 32, "--profile", path)
        explained = self.weft_json("explain", plan)
        compute = sum(kernel["ns"] for kernel in profile["kernels"]) * 1e-3
        updates = sum(kernel["ns"] for kernel in profile["kernels"] if kernel["name"].startswith("update")) * 1e-3
        # The last gradient is there when all but the updates have run; layout changes may come behind the plan.
        self.assertLessEqual(explained["ready_us"], compute - updates + 1)
        self.assertGreater(explained["ready_us"], 0.5 * (compute - updates))
        self.assertGreaterEqual(explained["step_inline_us"], compute)
        self.assertGreaterEqual(explained["step_us"], compute - 1)
        self.assertLessEqual(explained["step_us"], explained["step_inline_us"] + 1)
        slower = [row["step_us"] for row in explained["costs_off"]]
        self.assertEqual([row["factor"] for row in explained["costs_off"]], [1.2, 2])
        self.assertLessEqual(explained["step_us"], slower[0])
        self.assertLessEqual(slower[0], slower[1])
        # The times are not part of the plan's identity, only what was decided by them.
        again = self.compile("lenet.onnx", "q.weft", 2, 32, "--profile", path)
        self.assertEqual(self.weft_json("explain", again)["structure_digest"], explained["structure_digest"])

    def test_slow_collectives_make_fewer_buckets(self):
        path, _, profile = self.measure("mlp.onnx")
        counts = []
        for ns in (1, 2 * 10**11):
            for item in profile["collectives"]:
                item["ns"] = ns
            profile["inline_progress"] = False
            path.write_text(json.dumps(profile))
            plan = self.compile("mlp.onnx", "p.weft", 2, 32, "--profile", path)
            counts.append(len(self.weft_json("explain", plan)["buckets"]))
        # Nothing gains 0.1 % of minutes by starting earlier.
        self.assertEqual(counts[1], 1)
        self.assertGreaterEqual(counts[0], counts[1])

    def test_inline_collectives_cost_what_the_step_takes_longer(self):
        """Between kernels a collective is under way while kernels run: its own time says too much."""
        path, _, profile = self.measure("mlp.onnx", "--bucket", "none")
        compute = sum(kernel["ns"] for kernel in profile["kernels"])
        for item in profile["collectives"]:
            item["ns"] = 1e7
        profile.update(inline_progress=True, step_ns=compute + 50000)
        path.write_text(json.dumps(profile))
        plan = self.compile("mlp.onnx", "p.weft", 2, 32, "--bucket", "none", "--profile", path)
        self.assertAlmostEqual(self.weft_json("explain", plan)["step_inline_us"], compute * 1e-3 + 50, delta=1)

    def test_what_is_no_profile_is_refused(self):
        path = self.dir / "bad.json"
        good = {"format": 1, "kernels": [{"name": "fc1", "ns": 5}], "collectives": [{"bytes": 4, "ns": 5}]}
        for change, says in (({"format": 2}, "unsupported format: must be 1"), ({"kernels": 3}, "missing kernels or collectives"),
                             ({"kernels": [{"ns": 5}]}, "kernels[0]: missing name or ns"),
                             ({"kernels": [{"name": "a", "ns": -5}]}, "kernels[0]"),
                             ({"kernels": [7]}, "kernels[0]"), ({"collectives": [{"ns": 5}]}, "collectives[0]"),
                             ({"collectives": [{"bytes": 1e300, "ns": 5}]}, "collectives[0]")):
            path.write_text(json.dumps({**good, **change}))
            done = self.weft("compile", MODELS / "mlp.onnx", "-o", self.dir / "p.weft", "--world", 2, "--batch", 32,
                             "--profile", path, code=2)
            self.assertIn(says, done.stderr)
            self.assert_one_line(done.stderr)
        path.write_text('{"format": 1, "kernels": [')
        self.weft("compile", MODELS / "mlp.onnx", "-o", self.dir / "p.weft", "--world", 2, "--profile", path, code=2)
        done = self.weft("compile", MODELS / "mlp.onnx", "-o", self.dir / "p.weft", "--world", 2, "--profile",
                         self.dir / "none.json", code=2)
        self.assertIn("none.json", done.stderr)
        done = self.weft("run", MODELS / "mlp.onnx", "-n", 2, "--batch", 32, "--data", DATA, "--steps", 1, "--write-profile",
                         path, "--trace", path, code=2)
        self.assertIn("--trace and --write-profile name the same file", done.stderr)


if __name__ == "__main__":
    support.main()
