#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weft verify PLAN: good plans of every kind are proved, plans broken in every way are refused."""
import re
import subprocess

import support
from support import BINARY, MODELS, Case

BREAK = BINARY / "tests" / "break_plan"
PLANS = {  # ranks, options
    "plain": (3, ()),
    "pieces": (3, ("--bucket", "bytes:64K")),
    "sharded": (3, ("--shard-optimizer",)),
    "passes": (3, ("--shard-optimizer", "--bucket", "none", "--optimizer", "adam", "--wire", "bf16")),
    "decoupled": (3, ("--decouple",)),
    "accumulated": (3, ("--accumulate", 4)),
    "fixed": (2, ("--global-micro-batches", 8, "--clip", 1.0)),
    "all": (3, ("--decouple", "--accumulate", 3, "--wire", "bf16", "--clip", 0.5)),
    "parameters": (3, ("--shard-parameters", "--bucket", "bytes:64K")),
    "gathered": (3, ("--shard-parameters", "--bucket", "none", "--wire", "bf16", "--in-flight", 1)),
    "alone": (1, ("--accumulate", 2)),
}


def break_plan(*args):
    return subprocess.run([BREAK, *map(str, args)], capture_output=True, text=True)


class Verify(Case):
    def plans(self):
        for name, (world, options) in PLANS.items():
            plan = self.dir / f"{name}.weft"
            self.weft("compile", MODELS / "lenet.onnx", "-o", plan, "--world", world, "--batch", 4, *options)
            yield name, plan

    def test_good_plans_are_proved(self):
        for name, plan in self.plans():
            with self.subTest(name):
                text = self.weft("verify", plan).stdout
                self.assertTrue(text.endswith("\nproved\n"), text)
                found = self.weft_json("verify", plan)
                self.assertTrue(found["ok"])
                explained = self.weft_json("explain", plan)
                for key in ("world", "arena_bytes", "structure_digest", "kernels"):
                    self.assertEqual(found[key], explained[key], key)
                self.assertEqual(found["buckets"], len(explained["buckets"]))
                self.assertGreater(found["meetings"], found["buckets"])
                self.assertEqual(found["ranks"], found["world"])
                self.assertTrue(found["schedules"])
                for schedule in found["schedules"]:
                    self.assertTrue(schedule["proved"] or schedule["left_out"], schedule)
                self.assertTrue(any(schedule["proved"] for schedule in found["schedules"]))

    def test_broken_plans_are_refused(self):
        ways = break_plan("--list").stdout.split()
        self.assertGreater(len(ways), 25)
        applied = set()
        broken = self.dir / "broken.weft"
        for name, plan in self.plans():
            if name == "alone":  # nothing has to be reduced or given to anybody
                continue
            done = break_plan("--all", plan)
            self.assertEqual(done.returncode, 0, f"{name}: {done.stderr}")
            for way in sorted(set(done.stdout.split()) - applied):  # by the command, once for each way
                done = break_plan(plan, broken, way)
                self.assertEqual(done.returncode, 0, f"{name} {way}: {done.stderr}")
                # An operator that is not defined here may be a plugin's: that is no fault of the plan.
                refused = self.weft("verify", broken, code=2 if way == "operator-differs" else 1)
                self.assertTrue(any(words in refused.stderr for words in done.stdout.strip().split("|")),
                                f"{name} {way}: {done.stdout} {refused.stderr}")
                self.assert_one_line(refused.stderr)
                self.assertEqual(refused.stdout, "")
                applied.add(way)
        self.assertEqual(set(ways), applied)

    def test_json_of_a_broken_plan(self):
        plan = self.compile("mlp.onnx", "p.weft", 2, 4)
        self.assertEqual(break_plan(plan, self.dir / "b.weft", "bucket-left-out").returncode, 0)
        found = support.json.loads(self.weft("verify", self.dir / "b.weft", "--json", code=1).stdout)
        self.assertFalse(found["ok"])
        self.assertIn("is not reduced", found["error"])

    def test_files_that_are_no_plans(self):
        self.weft("verify", self.dir / "none.weft", code=2)
        self.assertIn("not a plan; weft verify takes a PLAN.weft", self.weft("verify", MODELS / "mlp.onnx", code=2).stderr)
        plan = self.compile("mlp.onnx", "p.weft", 2, 4)
        data = bytearray(plan.read_bytes())
        data[len(data) // 2] ^= 1  # weights: their digest tells
        (self.dir / "flipped.weft").write_bytes(data)
        self.assertIn("digest", self.weft("verify", self.dir / "flipped.weft", code=1).stderr)
        (self.dir / "short.weft").write_bytes(plan.read_bytes()[:-1])
        self.weft("verify", self.dir / "short.weft", code=1)

    def test_arguments(self):
        plan = self.compile("mlp.onnx", "p.weft", 2, 4)
        self.weft("verify", plan, "--all", code=2)
        self.weft("verify", plan, plan, code=2)
        self.weft("verify", "--kernels", "none.so", code=2)

    def test_many_ranks(self):
        found = self.weft_json("verify", self.compile("mlp.onnx", "p.weft", 100, 4))
        self.assertEqual((found["ok"], found["ranks"], found["schedules_skipped"]), (True, 100, 0))
        self.assertTrue(all(schedule["proved"] for schedule in found["schedules"]))

    def test_a_plan_whose_schedules_were_skipped_is_not_proved(self):
        plan = self.compile("lenet.onnx", "p.weft", 1024, 4)
        found = self.weft_json("verify", plan, code=1)
        skipped = [schedule for schedule in found["schedules"] if schedule["left_out"] == "too large, not symmetric"]
        self.assertEqual((found["ok"], found["schedules_skipped"]), (False, len(skipped)))
        self.assertGreater(len(skipped), 0)
        plural = "s" if len(skipped) > 1 else ""
        text = self.weft("verify", plan, code=1).stdout
        self.assertTrue(text.endswith(f"\nnot proved: {len(skipped)} schedule{plural} skipped\n"), text)

    def test_algorithms_that_were_skipped_are_not_proved(self):
        done = self.weft("verify", "-n", 65536, "--op", "broadcast", code=1)
        self.assertRegex(done.stdout, r"^0 cases proved .*\nnot proved: \d+ cases skipped: too large .*\n$")
        found = self.weft_json("verify", "-n", 65536, "--op", "broadcast", code=1)
        self.assertEqual((found["ok"], found["proved"]), (False, 0))
        self.assertGreater(found["left_out"], 0)
        self.assertEqual(found["by_symmetry"], 0)

    def test_large_groups_are_proved_by_symmetry(self):
        for op, algorithm in (("all_gather", "bruck"), ("all_reduce", "doubling")):
            with self.subTest(algorithm):
                found = self.weft_json("verify", "-n", 65536, "--op", op, "--algo", algorithm)
                self.assertEqual((found["ok"], found["proved"], found["by_symmetry"], found["left_out"]), (True, 2, 2, 0))
        self.assertRegex(self.weft("verify", "-n", 65536, "--op", "barrier").stdout,
                         r"^1 cases proved .*\nof these by symmetry: 1 \(.*\)\n$")

    def test_ranks_that_are_not_simulated_are_named(self):
        """The simulation of all ranks has a limit: the same programs prove the others, other programs do not."""
        plan = self.dir / "g.weft"
        gpt2 = MODELS / "families" / "gpt2.onnx"
        self.weft("compile", gpt2, "-o", plan, "--world", 65536, "--batch", 1, "--bucket", "bytes:2K")
        done = self.weft("verify", plan, code=1).stdout
        ranks = int(re.search(r"deadlock +(\d+) ranks", done)[1])
        self.assertLess(ranks, 65536)
        self.assertIn(f"by symmetry the other {65536 - ranks} ranks", done)
        self.assertEqual(self.weft_json("verify", plan, code=1)["ranks_left_out"], 0)
        self.weft("compile", gpt2, "-o", plan, "--world", 65536, "--batch", 2, "--pipeline", 2, "--bucket", "bytes:2K")
        found = self.weft_json("verify", plan, code=1)
        self.assertEqual((found["ok"], found["ranks_left_out"]), (False, 65536 - found["ranks"]))
        self.assertIn(f"\nnot proved: {found['ranks_left_out']} ranks not simulated\n",
                      self.weft("verify", plan, code=1).stdout)

    def test_schedules_of_a_large_world_are_proved_by_symmetry_or_left_out(self):
        found = self.weft_json("verify", self.compile("mlp.onnx", "p.weft", 2048, 4), code=1)
        self.assertEqual({schedule["left_out"] for schedule in found["schedules"]}, {None, "too large, not symmetric"})

    def test_algorithms_for_several_hosts_are_proved(self):
        (self.dir / "t.json").write_text('{"format": 1, "hosts": [4, 4]}')
        plan = self.compile("mlp.onnx", "p.weft", 8, 4, "--topology", self.dir / "t.json")
        found = self.weft_json("verify", plan)
        self.assertIn("hierarchical", [schedule["algorithm"] for schedule in found["schedules"]])
        self.assertTrue(all(schedule["proved"] for schedule in found["schedules"]))


if __name__ == "__main__":
    support.main()
