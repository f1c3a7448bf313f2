#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Help, version, compile, explain, ops, info: what a new user types first."""
import json

import support
from support import Case, MODELS


class Basic(Case):
    def test_help_and_version(self):
        self.assertIn("compile", self.weft("--help").stdout)
        self.assertRegex(self.weft("--version").stdout, r"^weft \d+\.\d+\.\d+\n$")
        for command in ("compile", "explain", "run", "ops", "info"):
            self.assertIn(f"usage: weft {command}", self.weft(command, "--help").stdout)

    def test_wrong_usage_is_one_line_and_status_2(self):
        for args in ([], ["nonsense"], ["compile"], ["compile", "--wrold", "2"], ["run"], ["explain"],
                     ["run", "x", "-n", "0"], ["compile", "x.onnx", "-o", "y", "--world", "zero"],
                     ["compile", "x.onnx", "-o", "y", "--world", "2", "--bucket", "percent:60,60"],
                     ["compile", "x.onnx", "-o", "y", "--world", "2", "--shape", "image"],
                     ["ops", "extra"], ["info", "extra"], ["doctor", "extra"]):
            done = self.weft(*args, code=2)
            self.assertEqual(done.stdout, "")
            if args:
                self.assert_one_line(done.stderr)
        for args in (["python3", "train.py"], ["train.py"]):
            self.assertIn("a program goes after --", self.weft("run", "-n", "2", *args, code=2).stderr)

    def test_the_plan_says_how_far_it_is_from_the_optimum(self):
        """Every policy is forecast; auto is within 0.1 % of the optimum, and all share one bound."""
        done = {}
        for policy in ("auto", "one", "none", "bytes:1M", "mgwfbp"):
            plan = self.compile("mlp.onnx", "p.weft", 4, 32, "--bucket", policy)
            explained = self.weft_json("explain", plan)
            done[policy] = explained["chosen_us"]
            self.assertLessEqual(explained["lower_bound_us"], explained["optimum_us"])
            self.assertLessEqual(explained["optimum_us"], explained["chosen_us"])
            rows = {row["policy"]: row for row in explained["compare"]}
            self.assertAlmostEqual(rows[policy]["done_us"], explained["chosen_us"], places=3)
            self.assertEqual(rows[policy]["buckets"], len(explained["buckets"]))
        self.assertLessEqual(done["auto"], explained["optimum_us"] * 1.001)
        self.assertEqual(min(done.values()), min(done["auto"], done["none"], done["mgwfbp"], done["bytes:1M"]))
        table = self.weft("explain", plan, "--compare").stdout
        for row in explained["compare"]:
            self.assertRegex(table, rf"(?m)^ *{row['buckets']} .* {row['policy']}$")
        self.assertIn("lower bound", self.weft("explain", plan).stdout)

    def test_it_says_why_a_gradient_is_exposed(self):
        """Late, waiting for its bucket, channel busy, or hidden; names of gradients and of parameters."""
        why = lambda plan, tensor: self.weft("explain", plan, "--why", tensor).stdout
        plan = self.compile("mlp.onnx", "p.weft", 4, 64, "--bucket", "none")
        self.assertIn("alone in bucket 0 of 6", why(plan, "fc3.weight"))
        self.assertIn("hidden: the backward pass runs", why(plan, "fc3.weight_grad"))
        self.assertIn("late: sent at once", why(plan, "fc1.weight"))
        self.assertRegex(why(plan, "fc1.bias"), r"the channel is busy for another [0-9.]+ us, with bucket 4")
        plan = self.compile("mlp.onnx", "p.weft", 4, 64, "--bucket", "one")
        self.assertRegex(why(plan, "fc3.weight"), r"its bucket waits another [0-9.]+ us for fc1.bias_grad")
        self.assertIn("one of 6 in bucket 0 of 1", why(plan, "fc3.weight"))
        plan = self.compile("mlp.onnx", "p.weft", 4, 64, "--bucket", "bytes:256K")
        self.assertRegex(why(plan, "fc1.weight"), r"in 7 pieces, buckets \d to \d")
        self.assertIn("above the cap of 256.0 KiB", why(plan, "fc1.weight"))
        self.assertEqual(self.weft("explain", plan, "--why", "fc9.weight", code=2).stdout, "")

    def test_compile_and_explain(self):
        plan = self.dir / "mlp.weft"
        report = self.weft_json("compile", MODELS / "mlp.onnx", "-o", plan, "--world", 2, "--batch", 64)
        self.assertEqual((report["world"], report["batch"], report["fusion_copied_bytes"]), (2, 64, 0))
        self.assertLessEqual(report["arena_bytes"], 1.25 * report["live_bytes"])
        text = self.weft("explain", plan).stdout
        self.assertIn("bucket", text)
        explained = self.weft_json("explain", plan)
        self.assertEqual(explained["structure_digest"], report["structure_digest"])
        self.assertEqual(sum(b["bytes"] for b in explained["buckets"]), 535818 * 4)
        members = [m for b in explained["buckets"] for m in b["members"]]
        self.assertEqual(len(members), 6)
        self.assertEqual([p.name for p in self.dir.iterdir()], ["mlp.weft"])

    def test_compiling_twice_gives_one_file(self):
        first = self.compile(name="a.weft").read_bytes()
        second = self.compile(name="b.weft").read_bytes()
        self.assertEqual(first, second)

    def test_policies_shape_buckets(self):
        def buckets(policy):
            plan = self.compile("mlp.onnx", "p.weft", 2, 64, "--bucket", policy)
            return [len(b["members"]) for b in self.weft_json("explain", plan)["buckets"]]
        self.assertEqual(buckets("one"), [6])
        self.assertEqual(buckets("none"), [1] * 6)
        self.assertEqual(buckets("bytes:25M"), [6])
        self.assertEqual(buckets("index:1,3"), [2, 2, 2])
        self.assertEqual(len(buckets("percent:60,40")), 2)
        self.assertGreater(len(buckets("bytes:1M")), 1)

    def test_no_bucket_exceeds_the_cap(self):
        plan = self.compile("mlp.onnx", "p.weft", 2, 64, "--bucket", "bytes:256K")
        buckets = self.weft_json("explain", plan)["buckets"]
        self.assertTrue(all(b["bytes"] <= 256 * 1024 for b in buckets))
        self.assertTrue(all(b["elem_count"] * 4 <= 256 * 1024 for b in buckets))
        self.assertEqual(sum(b["bytes"] for b in buckets), 535818 * 4)
        self.assertTrue(all(sum(b["member_bytes"]) == b["bytes"] for b in buckets))
        large = [b for b in buckets if b["members"] == ["fc1.weight_grad"]]
        self.assertEqual([(b["part"], b["parts"]) for b in large], [(i, 7) for i in range(1, 8)])
        self.assertIn("piece 2 of 7 of fc1.weight_grad, which alone has 1.5 MiB", large[1]["reason"])
        self.assertIn("piece 7/7", self.weft("explain", plan).stdout)

    def test_policies_that_cannot_be_honoured(self):
        for policy, says in (("bytes:63", "at least 64"), ("index:0,6", "position 6 is out of range: the model has gradients 0 to 5"),
                             ("bytes:64,time:5ms", None)):
            args = ("compile", MODELS / "mlp.onnx", "-o", self.dir / "x.weft", "--world", 2, "--batch", 4,
                    "--bucket", policy)
            if says:
                done = self.weft(*args, code=2)
                self.assert_one_line(done.stderr)
                self.assertIn(says, done.stderr)
            else:
                self.weft(*args)  # 33,495 pieces of 64 bytes

    def test_ops_and_info(self):
        self.assertIn("ncclAllReduce", self.weft("ops").stdout)
        ops = self.weft_json("ops")["operators"]
        by_name = {op["name"]: op for op in ops if op["domain"] == "weft"}
        self.assertEqual([by_name["AllReduce"][key] for key in ("ordering", "start", "wait")],
                         ["group", "AllReduceStart", "AllReduceWait"])
        self.assertEqual([by_name[name]["ordering"] for name in ("Send", "AllReduceWait", "SGD")],
                         ["pair", "none", "none"])
        self.assertEqual([by_name["SGD"]["facts"], by_name["SquareSum"]["facts"]], [["elementwise", "in_place"], ["accumulates", "in_place"]])
        names = {(op["domain"], op["name"]) for op in ops}
        for wanted in (("", "Gemm"), ("weft", "AllReduce"), ("weft", "Adam"), ("", "SoftmaxCrossEntropyLoss")):
            self.assertIn(wanted, names)
        info = self.weft_json("info")
        self.assertGreaterEqual(info["machine"]["cores"], 1)
        self.assertIn("WEFT_PROGRESS", [s["name"] for s in info["settings"]])
        self.assertIn("WEFT_PROGRESS", self.weft("info").stdout)
        self.assertEqual(info["transports"], ["shm", "inproc", "tcp", "verbs", "null"])
        self.assertIn("cpu", info["devices"])

    def test_doctor_reports_what_keeps_ranks_from_running(self):
        healthy = self.weft_json("doctor")
        self.assertEqual(healthy["errors"], 0)
        self.assertEqual(len(healthy["checks"]), len({check["name"] for check in healthy["checks"]}))
        for check in healthy["checks"]:
            self.assertIn(check["level"], ("ok", "hint", "warning"), check)
            self.assertTrue(check["found"] and check["meaning"], check)
        text = self.weft("doctor").stdout
        self.assertRegex(text, r"(?m)^ok +address space +64.0 GiB per rank can be reserved$")
        self.assertRegex(text, r"\n\d+ ok, \d+ hints?, \d+ warnings?, 0 errors\n$")
        limited = self.weft("doctor", code=1, env={"WEFT_RESERVE_BYTES": str(1 << 62)}).stdout
        self.assertRegex(limited, r"(?m)^error +address space +cannot reserve ")
        self.assertIn("fix: raise ulimit -v", limited)
        self.assertIn("WEFT_TIMEOUT", self.weft("doctor", code=2, env={"WEFT_TIMEOUT": "soon"}).stderr)


if __name__ == "__main__":
    support.main()
