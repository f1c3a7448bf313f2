#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""WEFT_LATE: one line for a world whose ranks wait, and stacks of the late ranks."""
import os
import re
import shutil
import signal
import time

import recorded
import support

CALL = r"all_reduce with 8 x f32 \(sum\) \(call \d+ of group \d+\)"


class Late(support.Case):
    def await_line(self, ranks, rank, pattern):
        """The next line of a rank that has the pattern; the lines before it."""
        before = []
        for line in ranks.processes[rank].stderr:
            if re.search(pattern, line):
                return line, before
            before.append(line)
        self.fail(f"rank {rank} ended without {pattern}: {before}")

    def end(self, ranks):
        """What all ranks print until they are killed."""
        for process in ranks.processes:
            process.kill()
        return [process.stderr.read() for process in ranks.processes]

    def await_stopped(self, pid):
        state = ""
        while state != "T":
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
                state = file.read().rpartition(")")[2].split()[0]
            time.sleep(0.01)

    def test_one_line_for_the_world(self):
        """Rank 0 waits first, and reports also when ranks 1 and 3 have waited for as long."""
        with recorded.Ranks(self, "stall", WEFT_LATE="0.5") as ranks:
            pids = ranks.pids()
            self.await_stopped(pids[1])
            self.await_stopped(pids[3])
            line, _ = self.await_line(ranks, 0, "late: rank 1 2 3; 1 of 4 ranks wait")
            self.assertRegex(line, rf"rank 0 waited [\d.]+ s in {CALL}; late: rank 1 2 3; ")
            self.assertIn(f"; rank 1 (pid {pids[1]}) is stopped by a signal", line)
            self.assertIn(f"; rank 2 (pid {pids[2]}) is asleep in the program", line)
            for rank in (1, 3):
                ranks.processes[rank].send_signal(signal.SIGCONT)
            for _ in range(4):  # later than twice WEFT_LATE
                self.await_line(ranks, 0, "late: rank 2; 3 of 4 ranks wait")
            ends = self.end(ranks)
            # others may see a rank die before they are killed
            self.assertEqual([line for end in ends[1:] for line in end.splitlines() if "waited" in line], [])

    def test_control_calls_are_reported(self):
        with recorded.Ranks(self, "split", WEFT_LATE="0.5") as ranks:
            self.await_line(ranks, 0, "rank 0 waited [0-9.]+ s in group creation; late: rank 2; ")

    def test_stacks(self):
        """On several hosts too, where a rank of the late one's host asks for them."""
        for hosts, asks in (("", 0), ("aabb", 3)):
            with self.subTest(hosts), recorded.Ranks(self, "late", hosts=hosts, WEFT_LATE="0.5",
                                                     WEFT_LATE_STACKS="on") as ranks:
                where = r" \(host .*\)" if hosts else r" \(pid \d+\)"
                self.await_line(ranks, 0, rf"late: rank 2; .*; rank 2{where} is ")
                line, _ = self.await_line(ranks, asks, rf"stack of rank 2 \(pid {ranks.pids()[2]}\): ")
                if shutil.which("gdb") and "no stack" not in line:  # nobody forbids it here
                    self.await_line(ranks, asks, r"stack of rank 2 .*: #\d.* (wait_for_ever|pause|__libc_pause)")

    def test_stacks_hold_nobody_up(self):
        """A tool that takes long: the rank that reports goes on waiting, and reports again."""
        tool, started = self.dir / "gdb", self.dir / "started"
        tool.write_text(f"#!/bin/sh\necho $$ > {started}.new\nmv {started}.new {started}\nexec sleep 1000\n")
        tool.chmod(0o755)
        with recorded.Ranks(self, "late", WEFT_LATE="0.5", WEFT_LATE_STACKS="on",
                            PATH=f"{self.dir}:{os.environ['PATH']}") as ranks:
            self.await_line(ranks, 0, "late: rank 2; ")
            while not started.exists():
                time.sleep(0.01)
            self.await_line(ranks, 0, "late: rank 2; ")
            os.kill(int(started.read_text()), signal.SIGKILL)  # it still runs

    def test_no_tool(self):
        with recorded.Ranks(self, "late", WEFT_LATE="0.5", WEFT_LATE_STACKS="1", PATH="/nowhere") as ranks:
            self.await_line(ranks, 0, r"no stack of rank 2 \(pid \d+\): none of gdb, eu-stack and gstack is installed")


if __name__ == "__main__":
    support.main()
