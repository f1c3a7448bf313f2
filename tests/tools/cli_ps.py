#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weft ps: worlds, ranks and their calls, read from outside of the processes."""
import fcntl
import json
import os
import struct
import subprocess
import unittest

import recorded
import support

WAITING = ("waiting", "all_reduce with 8 x f32 (sum)")
LAST = "all_reduce with 3 x f32 (sum)"


class Ps(support.Case):
    def test_a_late_rank(self):
        with recorded.Ranks(self, "late") as ranks:
            world = ranks.await_calls({0: WAITING, 1: WAITING, 2: ("idle", LAST), 3: WAITING})
            self.assertEqual((world["world_size"], world["transport"]), (4, "shm"))
            self.assertEqual([rank["pid"] for rank in world["ranks"]], ranks.pids())
            self.assertEqual([rank.get("awaits") for rank in world["ranks"]], [2, 2, None, 2])
            for rank in world["ranks"]:
                self.assertGreater(rank["memory_bytes"], 1 << 20)
                self.assertGreaterEqual(rank["seconds"], 0)
            text = self.weft("ps", ranks.pids()[3]).stdout
            self.assertIn(f"world {ranks.address}: 4 ranks, transport shm, up ", text)
            self.assertRegex(text, rf" 0 +{ranks.pids()[0]} waiting .* all_reduce with 8 x f32 \(sum\), for rank 2\n")
            self.assertRegex(text, rf" 2 +{ranks.pids()[2]} idle .* \(last: all_reduce with 3 x f32 \(sum\)\)\n")
        self.assertIsNone(ranks.ps())

    def test_a_stopped_rank_is_dumped(self):
        with recorded.Ranks(self, "stopped") as ranks:
            ranks.await_calls({0: WAITING, 1: WAITING, 2: ("stopped", LAST), 3: WAITING})
            self.weft("ps", ranks.pids()[0], "--dump", "dumps")
            dump = next((self.dir / "dumps").glob(f"weft-rank2-*-{ranks.pids()[2]}.json"))
            self.assertEqual(json.loads(dump.read_text())["calls"][-1]["call"], LAST)

    def test_nothing_runs(self):
        """Not in this namespace of processes: only those that the command may look at count."""
        done = self.weft("ps", "--json")
        self.assertIn("worlds", json.loads(done.stdout))
        self.assertEqual(done.stderr, "")

    def recorder(self, seals):
        """Memory like a recorder's: a good header, and then nothing but ones. The name of its world."""
        size, world = 1 << 20, f"garbage-\x1b[31m-{os.getpid()}-{seals}"
        fd = os.memfd_create("weft-flight", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.addCleanup(os.close, fd)
        header = struct.pack("<QQIIIIQQQ64s128s16s24s", 0x3174666c74666577, size, 0, 2, os.getpid(), 1, 0, 0, 0, b"h",
                             world.encode(), b"shm", b"none")
        os.pwrite(fd, header + b"\xff" * (size - len(header)), 0)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        return world

    def test_damaged_memory(self):
        """Of a process with a recorder that is none: it is read; memory that may shrink meanwhile is not."""
        sealed, open_ = self.recorder(fcntl.F_SEAL_SHRINK), self.recorder(fcntl.F_SEAL_GROW)
        worlds = [world["world"] for world in self.weft_json("ps", os.getpid(), "--dump", "dumps")["worlds"]]
        self.assertIn(sealed, worlds)
        self.assertNotIn(open_, worlds)
        text = self.weft("ps", os.getpid()).stdout
        self.assertIn("world " + sealed.replace("\x1b", "?") + ": 1 of 2 ranks", text)
        self.assertIn("1 rank not on this host, of another user, or ended: weft ps on other hosts lists theirs\n", text)
        self.assertEqual(len(list((self.dir / "dumps").iterdir())), 1)
        self.weft("analyze", "dumps", code=1)

    def test_rates(self):
        """Ranks that never stop calling."""
        with recorded.Ranks(self, "busy") as ranks:
            rates = [0]
            while min(rates) == 0:
                world = ranks.ps()
                rates = [min(rank["calls_per_s"], rank["bytes_per_s"]) for rank in world["ranks"]] if world else [0]

    def test_watch(self):
        done = subprocess.Popen([support.WEFT, "ps", "--watch", "0.1", "--json"], stdout=subprocess.PIPE,
                                        text=True, cwd=self.dir, env=dict(os.environ))
        decoder, text, found = json.JSONDecoder(), "", 0
        while found < 2:
            text += done.stdout.readline()
            try:
                _, end = decoder.raw_decode(text.lstrip())
            except ValueError:
                continue
            text, found = text.lstrip()[end:], found + 1
        done.terminate()
        done.communicate()

    def test_wrong_arguments(self):
        for args in (("x",), ("0",), ("--watch", "0"), ("--watch", "x")):
            self.assert_one_line(self.weft("ps", *args, code=2).stderr)


if __name__ == "__main__":
    support.main()
