#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weft algos and weft verify."""
import json
import os
import subprocess
import tempfile
import unittest

TOOL = os.environ["WEFT_TOOL"]


def weft(*args):
    return subprocess.run([TOOL, *args], capture_output=True, text=True, timeout=120)


class Algos(unittest.TestCase):
    def test_rows_name_algorithm_and_reasons(self):
        done = weft("algos", "-n", "8", "--op", "AllReduce", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = json.loads(done.stdout)["rows"]
        self.assertEqual([row["bytes"] for row in rows], [8 ** k for k in range(1, 9)])
        for row in rows:
            names = {c["algorithm"] for c in row["candidates"]}
            self.assertLessEqual({"mesh", "one-shot", "doubling", "halving-doubling", "ring"}, names)
            times = [c["predicted_us"] for c in row["candidates"] if "predicted_us" in c]
            self.assertEqual(times, sorted(times))
            ring = next(c for c in row["candidates"] if c["algorithm"] == "ring")
            self.assertIn("order", ring["reason"])
        self.assertEqual(rows[-1]["algorithm"], "mesh")

    def test_every_operator_has_a_choice(self):
        done = weft("algos", "-n", "5")
        self.assertEqual(done.returncode, 0, done.stderr)
        for op in ("AllReduce", "Broadcast", "ReduceScatter", "AllGather", "Reduce", "Gather", "Scatter",
                   "AllToAll", "SendRecv", "Barrier"):
            self.assertIn(f"{op}, 5 ranks", done.stdout)

    def test_measured_table_decides(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"format": 1, "measured": [{"op": "AllReduce", "algorithm": "one-shot", "ranks": 4,
                                                  "alpha_ns": 1}]}, file)
            file.flush()
            done = weft("algos", "-n", "4", "--op", "AllReduce", "--costs", file.name)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("one-shot"), done.stdout.count("(measured)"))
        self.assertIn("one-shot", done.stdout)

    def test_override_that_cannot_be_honoured_is_an_error(self):
        done = weft("algos", "-n", "4", "--op", "AllReduce", "--algo", "ring")
        self.assertEqual(done.returncode, 2)
        self.assertIn("AllReduce ring: it cannot realise the group's reduction order", done.stderr)
        done = weft("algos", "-n", "4", "--op", "AllReduce", "--algo", "ring", "--order", "any")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_bad_input_is_named(self):
        for args, text in ((("--op", "AllGarble"), "no operator 'AllGarble'"),
                           (("--hosts", "4,x"), "--hosts 4,x"),
                           (("--hosts", "4,4", "-n", "9"), "hold 8 ranks together, the group 9"),
                           (("--order", "odd"), "--order odd"),
                           (("--costs", "/nonexistent"), "/nonexistent"),
                           (("--algo", "nonsense"), "no operator has")):
            done = weft("algos", *args)
            self.assertEqual(done.returncode, 2, args)
            self.assertIn(text, done.stderr)


class Verify(unittest.TestCase):
    def test_one_size_is_proved(self):
        done = weft("verify", "-n", "7", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        self.assertTrue(result["ok"])
        self.assertGreater(result["proved"], 400)
        self.assertIsNone(result["error"])

    def test_selection(self):
        done = weft("verify", "-n", "6", "--op", "Reduce", "--algo", "binomial")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("cases proved", done.stdout)
        self.assertEqual(weft("verify", "-n", "6", "--algo", "nonsense").returncode, 2)
        self.assertEqual(weft("verify", "-n", "0").returncode, 2)


if __name__ == "__main__":
    unittest.main()
