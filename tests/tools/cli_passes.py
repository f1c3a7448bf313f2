#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The passes of `weft compile`: --list-passes, --print-after, --stop-after, --time-passes, --verify-each."""
import json
import re

import support
from support import MODELS, SOURCE

MODEL = (MODELS / "mlp.onnx", "-n", 2, "--batch", 8)


class Passes(support.Case):
    def names(self):
        return [p["name"] for p in json.loads(self.weft("compile", "--list-passes", "--json").stdout)["passes"]]

    def ran(self, *options):
        return [p["name"] for p in self.weft_json("compile", *MODEL, "-o", "p.weft", "--time-passes", *options)["passes"]]

    def test_list(self):
        lines = self.weft("compile", "--list-passes").stdout.splitlines()
        self.assertEqual([line.split()[0] for line in lines], self.names())
        self.assertEqual({line.split()[1] for line in lines}, {"both", "training", "inference"})

    def test_readme_has_the_same_table(self):
        table = re.findall(r"^\| `([a-z-]+)` \| (both|training|inference) \| (.*) \|$",
                           (SOURCE / "fusion" / "README.md").read_text(), re.M)
        passes = json.loads(self.weft("compile", "--list-passes", "--json").stdout)["passes"]
        self.assertEqual(table, [(p["name"], p["runs_in"], p["summary"]) for p in passes])

    def test_rows_run_in_the_order_of_the_table(self):
        order = ["import", *self.names(), "lower"]
        for options in ((), ("--clip", "1", "--in-flight", "2"), ("--infer",), ("--arena-limit", "64M")):
            ran = self.ran(*options)
            self.assertEqual(ran, sorted(ran, key=order.index), options)
        self.assertIn("differentiate", self.ran())
        self.assertNotIn("inference-form", self.ran())
        self.assertNotIn("differentiate", self.ran("--infer"))
        self.assertNotIn("clip", self.ran())
        self.assertIn("clip", self.ran("--clip", "1"))
        self.assertIn("fit-arena", self.ran("--arena-limit", "64M"))

    def test_compiled_graph_skips_what_was_done(self):
        self.weft("compile", *MODEL, "-o", "p.weft", "--emit-onnx", "c.onnx")
        done = self.weft_json("compile", "c.onnx", "-o", "q.weft", "--time-passes")
        ran = {p["name"] for p in done["passes"]}
        self.assertLessEqual({"import", "layout", "lower"}, ran)
        self.assertFalse(ran & {"bind-shapes", "differentiate", "bucket", "optimizer"})

    def test_time_passes(self):
        done = self.weft("compile", *MODEL, "-o", "p.weft", "--time-passes")
        rows = [line.split() for line in done.stderr.splitlines()]
        self.assertEqual(rows[0], ["ms", "operators", "pass"])
        self.assertEqual([row[2] for row in rows[1:-1]], self.ran())
        times = [float(row[0]) for row in rows[1:]]
        self.assertAlmostEqual(sum(times[:-1]), times[-1], delta=0.01)
        grows = {row[2]: int(row[1]) for row in rows[1:-1]}
        self.assertLess(grows["import"], grows["differentiate"])

    def test_print_after(self):
        done = self.weft("compile", *MODEL, "-o", "p.weft", "--print-after", "differentiate")
        self.assertEqual(done.stderr.count("graph after"), 1)
        self.assertIn("%fc1.weight_grad = Gemm(", done.stderr)
        self.assertNotIn("AllReduce", done.stderr)
        done = self.weft("compile", *MODEL, "-o", "p.weft", "--print-after", "all")
        self.assertEqual(re.findall(r"^graph after ([a-z-]+)$", done.stderr, re.M), self.ran()[1:-1])

    def test_stop_after(self):
        done = self.weft("compile", *MODEL, "--stop-after", "insert-collectives", "--time-passes")
        self.assertEqual(done.stdout.count("weft::AllReduce("), 6)
        self.assertIn("insert-collectives", done.stderr)
        self.assertNotIn("bucket", done.stderr)
        self.assertEqual(list(self.dir.iterdir()), [])
        for extra in (("-o", "p.weft"), ("--json",)):
            done = self.weft("compile", *MODEL, "--stop-after", "bucket", *extra, code=2)
            self.assertIn("exclude each other", done.stderr)

    def test_unknown_and_skipped_passes(self):
        for flag in ("--stop-after", "--print-after"):
            output = () if flag == "--stop-after" else ("-o", "p.weft")
            done = self.weft("compile", *MODEL, flag, "buckets", *output, code=2)
            self.assertIn("unknown pass 'buckets'; did you mean 'bucket'?", done.stderr)
            done = self.weft("compile", *MODEL, flag, "split-batch", *output, code=2)
            self.assertIn("pass 'split-batch' does not run with these parameters", done.stderr)
            self.assert_one_line(done.stderr)

    def test_verify_each(self):
        plain = self.weft_json("compile", *MODEL, "-o", "p.weft", env={"WEFT_VERIFY_EACH": "off"})
        checked = self.weft_json("compile", *MODEL, "-o", "p.weft", "--verify-each", env={"WEFT_VERIFY_EACH": "off"})
        self.assertEqual(plain["structure_digest"], checked["structure_digest"])
        done = self.weft("compile", *MODEL, "-o", "p.weft", code=2, env={"WEFT_VERIFY_EACH": "2"})
        self.assertIn("invalid value '2' for WEFT_VERIFY_EACH: expected 'off' or 'on'", done.stderr)


if __name__ == "__main__":
    support.main()
