#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tests' own helper: a rank that fails, hangs or dies is noticed, and said; the others do not wait for ever."""
import io
import os
import sys
import time
import unittest

import ranks


class Shown(ranks.RankCase):
    """What goes right."""
    RANKS = (1, 3)
    INIT = False
    ENV = {"WEFT_OF_THIS_CLASS": "7"}
    pids = []

    def test_places(self):
        self.assertEqual(os.environ["WEFT_RANK"], str(self.rank))
        self.assertEqual(os.environ["WEFT_OF_THIS_CLASS"], "7")
        self.assertEqual(self.exchange(self.rank * 10), [rank * 10 for rank in range(self.size)])
        (self.dir / str(self.rank)).touch()
        self.meet()
        self.assertEqual(len(list(self.dir.iterdir())), self.size)

    def test_the_same_processes_1(self):
        self.pids.append(os.getpid())

    def test_the_same_processes_2(self):
        self.assertEqual(self.pids, [os.getpid()])

    @ranks.fresh
    def test_the_same_processes_3(self):
        self.assertEqual(self.pids, [])

    @ranks.fresh(dies=[0, 2])
    def test_who_may_die(self):
        if self.rank != 1:
            self.die()
        self.meet()

    def test_a_reason_to_skip(self):
        self.skipTest("this case tests skipping")

    @unittest.skip("this case tests skipping")
    def test_skipped_at_once(self):
        self.fail()


class Wrong(ranks.RankCase):
    """What goes wrong; run by Noticed below."""
    RANKS = 2
    INIT = False

    def test_fails(self):
        print(f"said by rank {self.rank}")
        if self.rank == 1:
            self.assertEqual(1, 2)
        self.meet()

    def test_waits_for_one_that_failed(self):
        if self.rank == 1:
            raise ValueError("this one")
        while True:
            time.sleep(1)

    def test_dies(self):
        if self.rank == 0:
            os._exit(5)

    def test_takes_long(self):
        with self.within(0.001 / ranks.PATIENCE):
            time.sleep(0.02 * ranks.SLOW)

    def test_is_quick_but_right(self):
        with self.raises_within(ZeroDivisionError, "zero"):
            1 / 0


class Noticed(unittest.TestCase):
    def run_one(self, name):
        result = unittest.TextTestRunner(stream=io.StringIO(), verbosity=0).run(Wrong(name))
        Wrong.doClassCleanups()
        return "".join(text for _, text in result.failures + result.errors)

    def test_failures(self):
        text = self.run_one("test_fails")
        self.assertIn("1 != 2", text)
        self.assertIn("said by rank 1", text)
        self.assertNotIn("rank 0", text)

    def test_stacks(self):
        text = self.run_one("test_waits_for_one_that_failed")
        self.assertIn("ValueError: this one", text)
        self.assertRegex(text, r"rank 0 did not end(.|\n)*in test_waits_for_one_that_failed")

    def test_deaths(self):
        self.assertIn("rank 0 ended with status 5", self.run_one("test_dies"))

    def test_times(self):
        self.assertRegex(self.run_one("test_takes_long"), r"rank [01]:(.|\n)*took 0\.\d+ s")

    def test_right(self):
        self.assertEqual(self.run_one("test_is_quick_but_right"), "")


def load_tests(loader, tests, pattern):
    del tests, pattern
    return unittest.TestSuite(map(loader.loadTestsFromTestCase, (Shown, Noticed)))


if __name__ == "__main__":
    if ranks.SANITIZED:
        print("skipped: there is nothing in C here")
        sys.exit(ranks.SKIPPED)
    unittest.main(verbosity=2)  # without a summary: skipping is what two of the tests are about
