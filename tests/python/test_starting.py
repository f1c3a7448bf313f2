#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Beginnings and ends: weft.init with what is wrong, worlds beside each other, programs of which one rank fails."""
import os
import time
import unittest

import ranks

np = ranks.need("numpy")
import weft


def ones(count=4):
    return np.ones(count, "float32")


class Joining(ranks.RankCase):
    """weft.init itself."""
    INIT = False

    def test_wrong_arguments(self):
        for arguments, pattern in (({"rank": 2, "size": 2, "address": "unix:@weft-nobody"}, "rank"),
                                   ({"rank": -3, "size": 2, "address": "unix:@weft-nobody"}, "rank"),
                                   ({"rank": 0, "size": 0, "address": "unix:@weft-nobody"}, "size|world"),
                                   ({"rank": 0, "size": 2, "address": "nonsense"}, "nonsense"),
                                   ({"rank": "0"}, "rank"), ({"address": 5}, "address"), ({"nothing": 1}, "nothing")):
            with self.subTest(arguments=arguments):
                with self.raises_within((TypeError, ValueError), pattern):
                    weft.init(**arguments)
        self.assertFalse(weft.is_initialized())

    def test_wrong_environment(self):
        """What the launcher should have set says which variable is wrong."""
        for name, value in (("WEFT_RANK", "abc"), ("WEFT_RANK", "5"), ("WEFT_RANK", "-1"), ("WEFT_WORLD_SIZE", "0"),
                            ("WEFT_WORLD_SIZE", "99999999999"), ("WEFT_ADDRESS", "nonsense"), ("WEFT_TIMEOUT", "soon"),
                            ("WEFT_PROGRESS", "maybe"), ("WEFT_ADDRESS", "unix:/nonexistent/folder/socket")):
            kept = os.environ.get(name)
            os.environ[name] = value
            try:
                with self.subTest(name=name, value=value):
                    if "nonexistent" not in value or self.rank == 0:  # the others wait until somebody is there
                        with self.raises_within(weft.WeftError, f"{name}|{value}|world size"):
                            weft.init()
            finally:
                del os.environ[name]
                if kept is not None:
                    os.environ[name] = kept
        self.assertFalse(weft.is_initialized())

    @ranks.fresh
    def test_one_does_not_come(self):
        os.environ["WEFT_TIMEOUT"] = "0.3"
        if self.rank == 0:
            with self.raises_within(weft.WeftTimeoutError, "rank|1 of 2"):
                weft.init()
            self.assertFalse(weft.is_initialized())
        self.meet()

    @ranks.fresh
    def test_sizes_differ(self):
        os.environ["WEFT_TIMEOUT"] = "0.3"
        with self.raises_within((weft.WeftMismatchError, weft.WeftTimeoutError), "rank|size|world"):
            weft.init(rank=self.rank, size=2 + self.rank, address=os.environ["WEFT_ADDRESS"])
        self.meet()

    @ranks.fresh
    def test_twice_the_same_rank(self):
        os.environ["WEFT_TIMEOUT"] = "0.3"
        with self.raises_within(weft.WeftError, "rank"):
            weft.init(rank=0, size=2, address=os.environ["WEFT_ADDRESS"])
        self.meet()

    @ranks.fresh
    def test_twice(self):
        weft.init()
        with self.raises_within(weft.WeftStateError, "init"):
            weft.init()
        self.assertEqual(weft.all_reduce(ones(1))[0], 2)

    @ranks.fresh
    def test_worlds_of_their_own(self):
        """Contexts beside the module's: several, of any size, in one process."""
        weft.init()
        alone = weft.Context(0, 1, None)
        again = weft.Context(1 - self.rank, 2, os.environ["WEFT_ADDRESS"] + "-second")
        self.assertEqual((alone.rank, alone.size, again.rank, again.size), (0, 1, 1 - self.rank, 2))
        self.assertEqual(weft.all_reduce(ones(1), group=alone.world)[0], 1)
        x = np.array([self.rank])
        weft.broadcast(x, 0, again.world)
        self.assertEqual(x[0], 1)


class Programs(unittest.TestCase):
    """Whole programs under `weft run`."""

    def both(self, text, **keywords):
        begin = time.monotonic()
        done = ranks.run_script("import weft, numpy as np, sys, os, time\nweft.init()\nr = weft.get_rank()\n" + text,
                                **keywords)
        return done, time.monotonic() - begin

    def test_one_raises(self):
        done, took = self.both("x = np.ones(4)\nif r == 1: raise KeyError('the reason')\n"
                               "weft.all_reduce(x)\nprint('not reached')\n")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("KeyError: 'the reason'", done.stderr)
        self.assertNotIn("not reached", done.stdout)
        self.assertLess(took, ranks.PROMPT)

    def test_one_exits(self):
        """Also with status 0: who needs it is told."""
        done, took = self.both("if r == 1: sys.exit(0)\ntry:\n    weft.all_reduce(np.ones(4))\n"
                               "except weft.WeftError as error:\n    print(type(error).__name__, error)\n")
        self.assertRegex(done.stdout, "Weft[A-Za-z]+Error .*rank 1")
        self.assertLess(took, ranks.PROMPT)

    def test_ends_without_finalize(self):
        """Works, streams, groups and arrays are still there when the interpreter ends."""
        done, _ = self.both("g = weft.new_group([0, 1])\ns = weft.Stream()\nx = weft.zeros(100)\n"
                            "w = weft.all_reduce_(x, group=g, async_op=True)\nw2 = weft.all_reduce(x, async_op=True)\n"
                            "e = s.record_event()\nprint('reached')\n")
        self.assertEqual((done.returncode, done.stdout.count("reached")), (0, 2), done.stderr)
        self.assertEqual(done.stderr, "")

    def test_interrupt(self):
        """Ctrl-C ends a call that waits, and the others hear of it."""
        done, took = self.both(
            "import signal, threading\ngroup = weft.new_group(range(3))\nif r == 1:\n"
            "    signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
            "    try:\n        signal.setitimer(signal.ITIMER_REAL, 0.2)\n        weft.recv(np.ones(4), 2)\n    except KeyboardInterrupt:\n        print('interrupted')\n"
            "else:\n    try:\n        if r == 0: weft.recv(np.ones(4), 1)\n        while True: group.check(); time.sleep(0.01)\n"
            "    except weft.WeftError as error:\n        print(type(error).__name__)\n", ranks=3)
        self.assertIn("interrupted", done.stdout, done.stderr)
        self.assertRegex(done.stdout, "Weft(Aborted|PeerDied)Error")
        self.assertLess(took, ranks.PROMPT)

    def test_killed_by_hand(self):
        done, took = self.both("import signal\nweft.barrier()\nif r == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
                               "weft.barrier()\nprint('not reached')\n")
        self.assertNotEqual(done.returncode, 0)
        self.assertNotIn("not reached", done.stdout)
        self.assertLess(took, ranks.PROMPT)


if __name__ == "__main__":
    ranks.main()
