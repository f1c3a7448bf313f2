#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weft ps: worlds, ranks and their calls, read from outside of the processes."""
import fcntl
import json
import os
import shutil
import struct
import subprocess
import time
import unittest

import recorded
import support

WAITING = ("waiting", "all_reduce with 8 x f32 (sum)")
LAST = "all_reduce with 3 x f32 (sum)"
PATIENCE = 60  # seconds for answers of other hosts, which come at once on an idle machine


# A host whose processes those of another one cannot see.
UNSHARE = ["unshare", *(() if os.geteuid() == 0 else ("--user", "--map-root-user")), "--pid", "--fork", "--mount-proc",
           "--kill-child"]
HIDDEN = shutil.which("unshare") is not None and subprocess.run([*UNSHARE, "true"], capture_output=True).returncode == 0


class Host:
    """A shell of its own process namespace, which starts ranks and weft ps."""

    def __init__(self, case, name):
        self.case = case
        self.shell = subprocess.Popen([*UNSHARE, "sh"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                      cwd=case.dir, env={**os.environ, "WEFT_HOST_ID": name})
        case.addCleanup(self.close)

    def close(self):
        self.shell.kill()
        self.shell.communicate()

    def run(self, *command):
        self.shell.stdin.write(" ".join(map(str, command)) + "\n")
        self.shell.stdin.flush()

    def start(self, scene, rank, world_size):
        """The world meets at a file. The shell's variable rankN has the rank's process."""
        self.run(f"WEFT_RANK={rank} WEFT_WORLD_SIZE={world_size} WEFT_ADDRESS=file://{self.case.dir}/meet",
                 support.BINARY / "tests" / "recorded", scene, "< /dev/null > /dev/null &", f"rank{rank}=$!")

    def ps(self, *args):
        self.run(support.WEFT, "ps", *args, "< /dev/null; echo \"end $?\"")
        text = ""
        for line in self.shell.stdout:
            if line.startswith("end "):
                self.case.assertEqual(line, "end 0\n", text)
                return text
            text += line
        self.case.fail(f"the shell has ended: {text}")

    def world(self, *args):
        worlds = json.loads(self.ps("--json", *args))["worlds"]
        return worlds[0] if worlds else {"ranks": [], "no_answer": []}

    def await_calls(self, *calls):
        """Until (state, call, host) of the ranks, in their order, are calls."""
        while True:
            world = self.world()
            now = tuple((r["state"], r.get("call", r.get("last_call")), r["host"]) for r in world["ranks"])
            if now == calls:
                self.case.assertEqual(world["no_answer"], [])
                return world
            time.sleep(0.01)


@unittest.skipUnless(HIDDEN, "no process namespaces here")
class Hosts(support.Case):
    """Ranks 0 and 1 on host a, 2 and 3 on host b."""

    def start(self, scene):
        self.a, self.b = Host(self, "a"), Host(self, "b")
        for rank in range(4):
            (self.a, self.b)[rank // 2].start(scene, rank, 4)

    def test_ranks_of_all_hosts(self):
        self.start("late")
        calls = (*WAITING, "a"), (*WAITING, "a"), ("idle", LAST, "b"), (*WAITING, "b")
        for host in self.a, self.b:
            world = host.await_calls(*calls)
            self.assertEqual([(r["rank"], r.get("awaits")) for r in world["ranks"]], [(0, 2), (1, 2), (2, None), (3, 2)])
            for rank in world["ranks"]:
                self.assertGreater(rank["memory_bytes"], 1 << 20)
                self.assertGreater(rank["pid"], 1)
            folder = self.dir / ("dumps-a" if host is self.a else "dumps-b")
            host.ps("--wait", PATIENCE, "--dump", folder)
            dumps = [json.loads(path.read_text()) for path in sorted(folder.iterdir())]
            self.assertEqual([(dump["rank"], dump["host"]) for dump in dumps], [(0, "a"), (1, "a"), (2, "b"), (3, "b")])
            self.assertEqual(dumps[3 - 2 * (host is self.b)]["calls"][-1]["call"], WAITING[1])
        text = self.b.ps("--wait", PATIENCE)
        self.assertRegex(text, r"^world file://\S+: 4 ranks, transport hosts, up ")
        self.assertRegex(text, r" 0 a +\d+ waiting .* all_reduce with 8 x f32 \(sum\), for rank 2\n")
        world = self.a.world("--wait", 0)
        self.assertEqual(([r["rank"] for r in world["ranks"]], world["no_answer"]), ([0, 1], []))
        self.assertIn(": 2 of 4 ranks,", self.a.ps("--wait", 0))

    def test_stopped_ranks_and_a_stopped_host(self):
        """Another rank answers for the first one of its host; where all are stopped, the host is named."""
        self.start("stopped")
        calls = (*WAITING, "a"), (*WAITING, "a"), ("stopped", LAST, "b"), (*WAITING, "b")
        for host in self.a, self.b:
            host.await_calls(*calls)
        self.b.run("kill -STOP $rank3")
        while [rank["state"] for rank in self.b.world("--wait", 0)["ranks"]] != ["stopped", "stopped"]:
            time.sleep(0.01)
        self.assertEqual(self.a.world("--wait", 0.5)["no_answer"], [{"host": "b", "ranks": [2, 3]}])
        self.assertIn("no answer from host b within 0.5 s: ranks 2 3\n", self.a.ps("--wait", 0.5))
        world = self.b.world()
        self.assertEqual(world["no_answer"],
                         [{"host": None, "ranks": [0, 1], "reason": "all of its ranks here are stopped"}])
        self.assertIn("no answer from other hosts: all of its ranks here are stopped; try again, or run weft ps there: "
                      "ranks 0 1\n", self.b.ps())
        self.b.run("kill -CONT $rank3")
        self.a.await_calls(*calls)


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
        header = struct.pack("<QQIIIIQQQ64s128s16s24sQ16s", 0x3274666c74666577, size, 0, 2, os.getpid(), 1, 0, 0, 0, b"h",
                             world.encode(), b"shm", b"none", 1, b"nowhere")
        os.pwrite(fd, header + b"\xff" * (size - len(header)), 0)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        return world

    def test_damaged_memory(self):
        """Of a process with a recorder that is none: it is read; memory that may shrink meanwhile is not."""
        sealed, open_ = self.recorder(fcntl.F_SEAL_SHRINK), self.recorder(fcntl.F_SEAL_GROW)
        worlds = [world["world"] for world in self.weft_json("ps", os.getpid(), "--dump", "dumps")["worlds"]]
        self.assertIn(sealed, worlds)
        self.assertNotIn(open_, worlds)
        self.assertIn(f"no answer from other hosts: cannot ask the rank of process {os.getpid()}: Connection refused; try again, "
                      "or run weft ps there: ranks 1\n", self.weft("ps", os.getpid()).stdout)
        text = self.weft("ps", os.getpid(), "--wait", 0).stdout
        self.assertIn("world " + sealed.replace("\x1b", "?") + ": 1 of 2 ranks", text)
        self.assertIn("1 rank not on this host, of another user, or ended\n", text)
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
        for args in (("x",), ("0",), ("--watch", "0"), ("--watch", "x"), ("--wait", "-1"), ("--wait", "x")):
            self.assert_one_line(self.weft("ps", *args, code=2).stderr)


if __name__ == "__main__":
    support.main()
