#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weft analyze: the rank, the call and the group that are to blame, in dumps of real and of made-up worlds."""
import json
import signal
import unittest

import recorded
import support
import trace_processor

WAITING = ("waiting", "all_reduce with 8 x f32 (sum)")
LAST = "all_reduce with 3 x f32 (sum)"
ALL = r"the group of all 4 ranks \(channel 0\)"


class RealWorlds(support.Case):
    def analyze(self, *paths, code=1):
        return self.weft("analyze", *paths, code=code).stdout

    def test_a_late_rank(self):
        with recorded.Ranks(self, "late") as ranks:
            ranks.await_calls({0: WAITING, 1: WAITING, 2: ("idle", LAST), 3: WAITING})
            self.weft("ps", ranks.pids()[0], "--dump", "dumps")
            pid = ranks.pids()[2]
        text = self.analyze("dumps")
        self.assertRegex(text, rf"behind: rank 2 \(host .*, pid {pid}\): in no call for .* s; the last one was all_reduce with "
                               r"3 x f32 \(sum\), number \d+ of the group of ranks 0 2 \(channel \d+\)\n")
        self.assertRegex(text, r"waiting: ranks 0 1 3 wait for rank 2, after .* s: all_reduce with 8 x f32 \(sum\), "
                               rf"number \d+ of {ALL}\n")
        found = self.weft_json("analyze", "dumps", code=1)
        self.assertEqual((found["behind"], found["missing"], found["circle"], found["disagreement"]), ([2], [], [], []))
        self.check_timeline()

    def check_timeline(self):
        """Every call of the dumps is a slice of the row of its group, and Perfetto reads all of them."""
        self.weft("analyze", "dumps", "--timeline", "t.json", code=1)
        data = (self.dir / "t.json").read_bytes()
        slices = [event for event in json.loads(data)["traceEvents"] if event["ph"] == "X"]
        dumps = [json.loads(path.read_text()) for path in (self.dir / "dumps").glob("*.json")]
        self.assertEqual(len(slices), sum(len(dump["calls"]) for dump in dumps))
        for event in slices:
            self.assertGreaterEqual(min(event["ts"], event["dur"]), 0)
        if why := trace_processor.missing():
            self.skipTest(why)
        processor = trace_processor.TraceProcessor(data)
        self.assertEqual(processor.query("select count(*) from slice"), [(len(slices),)])
        self.assertEqual(processor.query("select count(distinct upid) from thread_track join thread using (utid)"), [(4,)])
        self.assertEqual(processor.query("select sum(value) from stats where severity = 'error'")[0][0] or 0, 0)

    def test_a_chain(self):
        """Ranks 0 and 3 wait for 1 and 2; rank 2 waits for 1, which is the cause."""
        with recorded.Ranks(self, "chain") as ranks:
            ranks.await_calls({0: WAITING, 1: ("idle", LAST), 2: ("waiting", "recv of 3 x f32 from rank 1"), 3: WAITING})
            self.weft("ps", ranks.pids()[0], "--dump", "dumps")
        text = self.analyze("dumps")
        self.assertEqual([line[:14] for line in text.splitlines() if line.startswith("behind")], ["behind: rank 1"])
        self.assertRegex(text, r"waiting: rank 2 waits for rank 1, after .* s: recv of 3 x f32 from rank 1, number 1 of ")

    def test_a_control_call(self):
        """The others make a group without rank 2; making one of half of the world was a call of that."""
        with recorded.Ranks(self, "split") as ranks:
            waits = ("waiting", "group_split")
            ranks.await_calls({0: waits, 1: waits, 2: ("idle", LAST), 3: waits})
            self.weft("ps", ranks.pids()[0], "--dump", "dumps")
        text = self.analyze("dumps")
        self.assertRegex(text, r"behind: rank 2 \(.*\): in no call for ")
        self.assertRegex(text, r"waiting: ranks 0 1 3 wait for rank 2, after .* s: group_split, number \d+ of the world's "
                               r"control calls\n")
        self.assertNotIn("disagree", text)

    def test_a_mismatch(self):
        with recorded.Ranks(self, "mismatch", WEFT_DUMP=str(self.dir / "dumps")) as ranks:
            ranks.wait()
        text = self.analyze("dumps")
        # a rank that comes after the failure has an error, but no record of its call
        self.assertIn("4 of 4 ranks", text)
        self.assertRegex(text, rf"ranks disagree first in call \d+ of {ALL}:\n")
        self.assertRegex(text, r"  ranks?( [013])+: all_reduce with 8 x f32 \(sum\)\n")
        self.assertIn("  rank 2: all_reduce with 9 x f32 (sum)\n", text)
        self.assertRegex(text, r"error: rank 0: rank \d called all_reduce with [89] x f32, rank \d with [89] x f32")
        self.assertNotIn("behind", text)

    def test_a_dead_rank(self):
        with recorded.Ranks(self, "late", WEFT_DUMP=str(self.dir / "dumps")) as ranks:
            ranks.await_calls({0: WAITING, 1: WAITING, 2: ("idle", LAST), 3: WAITING})
            ranks.processes[2].kill()
            ranks.wait()
        text = self.analyze("dumps")
        self.assertIn("no dump of rank 2\n", text)
        self.assertIn("behind: rank 2: no dump: it may have died\n", text)
        self.assertRegex(text, rf"waiting: ranks 0 1 3 waited for rank 2, after .*: all_reduce with 8 x f32 .* of {ALL}")
        self.assertRegex(text, r"error: rank 0: rank 2 .*died")

    def test_a_signal(self):
        """A rank that is in the program, and ranks that wait, write their dumps when asked."""
        with recorded.Ranks(self, "late", WEFT_DUMP=str(self.dir / "dumps")) as ranks:
            ranks.await_calls({0: WAITING, 1: WAITING, 2: ("idle", LAST), 3: WAITING})
            for process in ranks.processes:
                process.send_signal(signal.SIGUSR1)
            while len(list((self.dir / "dumps").glob("weft-rank?-*-*.json"))) < 4:
                pass
        self.assertEqual(self.weft_json("analyze", "dumps", code=1)["behind"], [2])


class MadeUpWorlds(support.Case):
    def dump(self, rank, *calls, size=2, world="w", **more):
        """calls: (seq, text, state) in one group."""
        path = self.dir / f"{rank}.json"
        path.write_text(json.dumps({
            "weft_dump": 1, "rank": rank, "world_size": size, "world": world, "host": "h", "pid": 1, "created_unix_us": 10**15,
            "dumped_ns": 10**9, "groups": [{"id": 7, "size": size, "rank": rank, "channel": 0}],
            "calls": [{"record": i + 1, "group": 7, "seq": seq, "kind": text.split()[0], "call": text, "state": state,
                       "issued_ns": 1000 * i, **extra}
                      for i, (seq, text, state, extra) in enumerate((*call, {})[:4] for call in calls)], **more}))
        return path

    def test_all_is_well(self):
        paths = [self.dump(rank, (1, "barrier", "done"), (2, "barrier", "done")) for rank in range(2)]
        self.assertIn("no rank is behind, and no two ranks disagree", self.weft("analyze", *paths).stdout)

    def test_a_rank_that_failed_is_not_behind(self):
        """It came to the call after another rank had found the mismatch: the call has an error, but no record."""
        a = self.dump(0, (1, "barrier", "waiting"))
        for reason, behind in (("mismatch", []), ("SIGUSR1", [1])):
            b = self.dump(1, error={"status": "WEFT_ERR_MISMATCH", "message": "mismatch"}, reason=reason)
            self.assertEqual(self.weft_json("analyze", a, b, code=1)["behind"], behind)

    def test_a_circle(self):
        a = self.dump(0, (1, "recv of 1 x f32 from rank 1", "waiting", {"peer": 1}))
        b = self.dump(1, (1, "recv of 1 x f32 from rank 0", "waiting", {"peer": 0}))
        found = self.weft_json("analyze", a, b, code=1)
        self.assertEqual((found["circle"], found["behind"]), ([0, 1], []))
        text = self.weft("analyze", a, b, code=1).stdout
        self.assertIn("circle: rank 0 waits for rank 1, after ", text)
        self.assertIn("circle: rank 1 waits for rank 0, after ", text)

    def test_pairs_that_meet(self):
        a = self.dump(0, (1, "send of 1 x f32 to rank 1", "waiting", {"peer": 1}))
        b = self.dump(1, (1, "recv of 1 x f32 from rank 0", "waiting", {"peer": 0}))
        self.weft("analyze", a, b)

    def test_a_ring_that_has_forgotten(self):
        """Rank 1 made the call that rank 0 is in long ago; sequence numbers wrap."""
        a = self.dump(0, (2**32 - 1, "barrier", "moving"))
        b = self.dump(1, (5, "barrier", "done"))
        self.weft("analyze", a, b)

    def test_the_latest_dump_of_a_rank_counts(self):
        a = self.dump(0, (1, "barrier", "waiting"))
        b = self.dump(1)
        old = b.rename(self.dir / "old.json")
        self.dump(1, (1, "barrier", "done"), dumped_ns=2 * 10**9)
        self.assertEqual(self.weft_json("analyze", a, b, old)["behind"], [])

    def test_files_of_other_worlds(self):
        """Also where a rank has several dumps, of which the latest counts."""
        old = self.dump(0, dumped_ns=1).rename(self.dir / "old.json")
        a = self.dump(0)
        done = self.weft("analyze", a, old, self.dump(1, world="v"), code=2)
        self.assert_one_line(done.stderr)
        self.assertIn("different worlds", done.stderr)

    def test_groups_of_impossible_ranks(self):
        ranks = [1e308, -1, "x", {}, 1, 0, 2]
        path = self.dump(0, (1, "barrier", "waiting"), groups=[{"id": 7, "size": 2, "channel": 0, "ranks": ranks}])
        self.assertIn("number 1 of the group of ranks 1 0 (channel 0)\n", self.weft("analyze", path, code=1).stdout)
        done = self.weft("analyze", self.dump(0, size=10**6), code=2)
        self.assertIn("world_size: too large: 1000000, at most 16384", done.stderr)

    def test_names_do_not_control_the_terminal(self):
        text = self.weft("analyze", self.dump(0, (1, "barrier\x1b[2J", "waiting"), world="w\x1b]0;x\x07\x9b"), code=1).stdout
        self.assertEqual([c for c in text if c < " " and c != "\n" or "\x7f" <= c < "\xa0"], [])
        self.assertIn("of world w?]0;x", text)

    def test_wrong_files(self):
        (self.dir / "empty").mkdir()
        (self.dir / "x.json").write_text("{}")
        (self.dir / "y.json").write_text("no")
        other = self.dump(1, world="v").rename(self.dir / "other.json")
        for paths, message in ((("empty",), "no dumps"), (("x.json",), "not a dump"), (("y.json",), "y.json"),
                               (("nowhere",), "nowhere"), ((), "no dump"), ((self.dump(0), other), "different worlds")):
            with self.subTest(paths):
                done = self.weft("analyze", *paths, code=2)
                self.assert_one_line(done.stderr)
                self.assertIn(message, done.stderr)


if __name__ == "__main__":
    support.main()
