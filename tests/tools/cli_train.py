#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training runs: keys of the report, equal bits, agreement over rank counts, timeline."""
import fcntl
import json
import os
import pty
import struct
import subprocess
import termios
import unittest

import support
from support import Case, MODELS, NEED_DATA

KEYS = ("world steps loss_first loss_last test_accuracy step_ms_p50 step_ms_mean compute_ms_p50 comm_ms_p50 "
        "exposed_comm_ms_p50 overlap_fraction fusion_copied_bytes arena_bytes rss_bytes param_digest").split()


@NEED_DATA
class Train(Case):
    def test_report_has_its_keys(self):
        report = self.train(self.compile("mlp.onnx", "p.weft", 2, 64, "--lr-schedule", "linear"), steps=100, evaluate=True)
        self.assertEqual([k for k in KEYS if k not in report], [])
        self.assertEqual((report["world"], report["steps"], report["fusion_copied_bytes"]), (2, 100, 0))
        self.assertLess(report["loss_last"], 0.6 * report["loss_first"])
        self.assertAlmostEqual(report["loss_first"], 2.3, delta=0.2)
        self.assertGreater(report["test_accuracy"], 0.7)

    def test_bits_do_not_depend_on_policy_progress_instruction_set_or_run(self):
        digests = {}
        policies = ("bytes:25M", "bytes:1M,time:5ms", "bytes:256K", "index:0,4", "percent:60,40", "one", "none")
        for policy in policies[-2:] if support.SANITIZED else policies:
            plan = self.compile("mlp.onnx", "p.weft", 2, 32, "--bucket", policy)
            digests[policy] = self.train(plan, steps=8)["param_digest"]
        for name, env in (("again", {}), ("inline", {"WEFT_PROGRESS": "inline"}),
                          ("thread", {"WEFT_PROGRESS": "thread"})):
            digests[name] = self.train(plan, steps=8, env=env)["param_digest"]
        for isa in ("portable", "avx2", "avx512"):
            if isa in cpu_flags() or (isa == "portable" and not support.SANITIZED):  # slow twice over
                digests[isa] = self.train(plan, steps=8, env={"WEFT_ISA": isa})["param_digest"]
        self.assertEqual(len(set(digests.values())), 1, digests)

    def test_thread_progress_reports_overlap(self):
        plan = self.compile("mlp.onnx", "p.weft", 2, 64, "--bucket", "none")
        report = self.train(plan, env={"WEFT_PROGRESS": "thread"})
        self.assertIsNotNone(report["overlap_fraction"])
        report = self.train(plan, env={"WEFT_PROGRESS": "inline"})
        self.assertIsNone(report["overlap_fraction"])

    def test_rank_counts_agree_on_one_global_batch(self):
        losses = {}
        for world in (1, 2, 4):
            plan = self.compile("mlp.onnx", f"p{world}.weft", world, 64 // world)
            losses[world] = self.train(plan, world=world, steps=30)["loss_last"]
        # The last loss is a mean over the same 64 samples in each case; only rounding differs.
        self.assertAlmostEqual(losses[1], losses[2], delta=2e-3)
        self.assertAlmostEqual(losses[1], losses[4], delta=2e-3)

    def test_without_evaluation_there_is_no_accuracy(self):
        self.assertIsNone(self.train(self.compile(), steps=2)["test_accuracy"])

    def test_odd_and_many_ranks(self):
        for world in (3, 5, 8):
            plan = self.compile("mlp.onnx", f"p{world}.weft", world, 8, "--bucket", "none")
            digests = {self.train(plan, world=world, steps=5, env={"WEFT_PROGRESS": mode})["param_digest"]
                       for mode in ("inline", "thread")}
            self.assertEqual(len(digests), 1)

    def test_lenet_with_adam_learns(self):
        steps = ("25", "--no-eval") if support.SANITIZED else ("150",)
        report = self.weft_json("run", MODELS / "lenet.onnx", "-n", 2, "--batch", 64, "--optimizer", "adam",
                                "--data", support.DATA, "--steps", *steps)
        self.assertLess(report["loss_last"], 0.7 * report["loss_first"])
        if not support.SANITIZED:
            self.assertGreater(report["test_accuracy"], 0.65)

    def test_sgd_model_run_and_seed(self):
        runs = [self.weft_json("run", MODELS / "mlp.onnx", "-n", 2, "--batch", 16, "--no-eval", "--optimizer", "sgd", "--lr",
                               "0.1", "--data", support.DATA, "--steps", 10, "--seed", seed)["param_digest"]
                for seed in (1, 1, 2)]
        self.assertEqual(runs[0], runs[1])
        self.assertNotEqual(runs[0], runs[2])

    def test_the_progress_line_fits_the_terminal(self):
        plan = self.compile()
        for columns in (80, 30):
            mine, theirs = pty.openpty()
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            run = subprocess.Popen([support.WEFT, "run", str(plan), "-n", "2", "--data", support.DATA, "--no-eval",
                                    "--steps", "60" if support.SANITIZED else "150"], stderr=theirs, stdout=subprocess.DEVNULL)
            os.close(theirs)
            shown = b""
            try:
                while part := os.read(mine, 4096):
                    shown += part
            except OSError:  # how a terminal without a writer ends
                pass
            os.close(mine)
            self.assertEqual(run.wait(support.PROMPT), 0)
            lines = shown.decode().split("\r\033[K")
            self.assertGreater(len(lines), 2)
            self.assertTrue(any(line.startswith("epoch ") for line in lines))
            self.assertLess(max(map(len, lines)), columns)
            self.assertEqual(lines[-1], "")

    def test_progress_lines_on_a_long_run(self):
        plan = self.compile()
        done = self.weft("run", plan, "-n", 2, "--data", support.DATA, "--no-eval", "--steps",
                         60 if support.SANITIZED else 300)
        self.assertRegex(done.stderr, r"epoch \d+/\d+  step \d+/\d+  loss \d")
        self.assertRegex(done.stdout, r"trained \d+ steps on 2 ranks: loss")


def cpu_flags():
    with open("/proc/cpuinfo") as file:
        text = file.read()
    return {"avx2"} & set(text.split()) | ({"avx512"} if "avx512f" in text else set())


if __name__ == "__main__":
    support.main()
