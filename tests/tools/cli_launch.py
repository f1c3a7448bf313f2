#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starting ranks: programs as ranks, their output and exit codes; hosts by a stand-in for ssh, all of them this one."""
import json
import os
import re
import shutil
import signal
import subprocess
import time
import unittest

import support
from support import Case, DATA, NEED_DATA, WEFT

RSH = """#!/bin/sh
echo "$1" >>"%s"
WEFT_HOST_ID=$1 exec sh -c "$2"
"""
HOSTS = "127.0.0.2", "127.0.0.3"  # names of this host that it takes for others'
MPIRUN = shutil.which("mpirun.openmpi")


def alive(pid):
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


class LaunchCase(Case):
    def setUp(self):
        super().setUp()
        self.rsh = self.dir / "rsh"
        self.rsh.write_text(RSH % (self.dir / "reached"))
        self.rsh.chmod(0o755)

    def program(self, *args, code=0, **kwargs):
        return self.weft("run", *args, code=code, timeout=600, **kwargs)

    def hosts(self, hosts, *args, **kwargs):
        return self.program("--hosts", hosts, "--engine", "ssh", "--rsh", self.rsh, *args, **kwargs)


class Programs(LaunchCase):
    def test_what_ranks_are_told(self):
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "ADDRESS", "SECRET")
        line = " ".join(f"$WEFT_{name}" for name in names)
        done = self.program("-n", 3, "--", "sh", "-c", f"echo {line}")
        told = sorted(line.split() for line in done.stdout.splitlines())
        self.assertEqual([t[:4] for t in told], [[str(r), "3", str(r), "3"] for r in range(3)])
        self.assertEqual(len({t[4] for t in told}), 1)
        self.assertRegex(told[0][4], "^unix:@weft-")
        self.assertRegex(told[0][5], "^[0-9a-f]{64}$")

    def test_a_secret_of_the_user_stays(self):
        done = self.program("-n", 1, "--", "sh", "-c", "echo $WEFT_SECRET", env={"WEFT_SECRET": "sixteen characters"})
        self.assertEqual(done.stdout, "sixteen characters\n")

    def test_a_world_without_shared_memory_has_an_address_of_the_network(self):
        done = self.program("-n", 2, "--", "sh", "-c", "echo $WEFT_ADDRESS", env={"WEFT_TRANSPORT": "tcp"})
        self.assertRegex(done.stdout, r"^(127\.0\.0\.1:\d+)\n\1\n$")

    def test_ranks_have_cores_of_their_own(self):
        if len(os.sched_getaffinity(0)) < 2:
            self.skipTest("there is one core only")
        done = self.program("-n", 2, "--tag-output", "--", "/usr/bin/python3", "-c",
                            "import os; print(sorted(os.sched_getaffinity(0)))")
        masks = [set(json.loads(line[4:])) for line in done.stdout.splitlines()]
        self.assertTrue(masks[0].isdisjoint(masks[1]), masks)

    def test_tagged_lines(self):
        done = self.program("-n", 2, "--tag-output", "--", "sh", "-c",
                            "printf 'a '; printf 'b\\n\\nend'; echo wrong $WEFT_RANK >&2")
        for rank in range(2):
            self.assertEqual([l for l in done.stdout.splitlines() if l.startswith(f"[{rank}]")],
                             [f"[{rank}] a b", f"[{rank}] ", f"[{rank}] end"])
        self.assertEqual(sorted(done.stderr.splitlines()), ["[0] wrong 0", "[1] wrong 1"])

    def test_long_lines_are_not_lost(self):
        done = self.program("-n", 2, "--tag-output", "--", "/usr/bin/python3", "-c",
                            "import os; print(os.environ['WEFT_RANK'] * 100000)")
        text = re.sub(r"\[\d\] |\n", "", done.stdout)
        self.assertEqual((text.count("0"), text.count("1")), (100000, 100000))

    def test_only_rank_0_has_the_input(self):
        done = self.program("-n", 2, "--tag-output", "--", "sh", "-c", "cat; echo end", input="given\n")
        self.assertEqual(sorted(done.stdout.splitlines()), ["[0] end", "[0] given", "[1] end"])

    def test_exit_code_of_the_first_rank_that_fails(self):
        done = self.program("-n", 3, "--", "sh", "-c", "[ $WEFT_RANK = 1 ] && exit 7; sleep 30", code=7)
        self.assertRegex(done.stderr, r"^weft run: rank 1 \(pid \d+\) exited with status 7\n$")

    def test_a_signal(self):
        done = self.program("-n", 2, "--", "sh", "-c", "[ $WEFT_RANK = 1 ] && kill -9 $$; sleep 30", code=128 + 9)
        self.assertRegex(done.stderr, r"^weft run: rank 1 \(pid \d+\) was killed by signal 9 \(Killed\)\n$")

    def test_what_a_rank_has_started_ends_with_it(self):
        self.program("-n", 2, "--", "sh", "-c",
                     "sleep 300 & echo $! >$WEFT_RANK.pid; [ $WEFT_RANK = 1 ] && exit 3; wait", code=3)
        for rank in range(2):
            pid = int((self.dir / f"{rank}.pid").read_text())
            deadline = time.monotonic() + support.PROMPT
            while alive(pid) and time.monotonic() < deadline:
                time.sleep(0.01)
            self.assertFalse(alive(pid))

    def test_a_program_that_is_not_there(self):
        done = self.program("-n", 2, "--", "/nonexistent/program", code=2)
        self.assertRegex(done.stderr, r"^weft run: cannot run '/nonexistent/program': No such file or directory\n$")

    def test_arguments(self):
        for args, match in ((("-n", 2, "--"), "missing program after --"), (("--", "true"), "-n N"),
                            (("-n", 2, "--data", "x", "--", "true"), "before -- PROGRAM only -n"),
                            (("-n", 2, "model.onnx", "--", "true"), "before -- PROGRAM only -n")):
            done = self.program(*args, code=2)
            self.assertRegex(done.stderr, match)
            self.assert_one_line(done.stderr)
        done = self.program("-n", 1, "--", "echo", "--help", "-n", "5", "--", "'quoted \"words\"'")
        self.assertEqual(done.stdout, "--help -n 5 -- 'quoted \"words\"'\n")


class Hosts(LaunchCase):
    """ssh is a script that speaks to this host under all names."""

    def where(self, hosts, *args, **kwargs):
        done = self.hosts(hosts, *args, "--", "sh", "-c", "echo $WEFT_RANK $WEFT_HOST_ID $WEFT_LOCAL_RANK/$WEFT_LOCAL_SIZE", **kwargs)
        return [line.split()[1:] for line in sorted(done.stdout.splitlines())]

    def test_slots(self):
        two = [["a", "0/2"], ["a", "1/2"], ["b", "0/1"]]
        self.assertEqual(self.where("a:2,b"), two)
        self.assertEqual(self.where("a,b:1,a:1"), two)
        self.assertEqual(self.where("a:2,b:4", "-n", 3), two)
        self.assertEqual(self.where("a:2,b", "--round-robin"), [["a", "0/2"], ["b", "0/1"], ["a", "1/2"]])
        self.assertEqual(self.where("a:2,b:2,c:2", "-n", 1), [["a", "0/1"]])
        reached = (self.dir / "reached").read_text().split()
        self.assertEqual(sorted(set(reached)), ["a", "b"])  # nobody called c, which has no rank

    def test_a_file_of_hosts(self):
        path = self.dir / "hosts"
        path.write_text(f"# two machines{1000 * '.'}\na slots=2\n\nb 1   # the other\n")
        for name in (path, "hosts"):
            self.assertEqual(self.where(name), [["a", "0/2"], ["a", "1/2"], ["b", "0/1"]])

    def test_wrong_hosts(self):
        (self.dir / "empty").write_text("# nobody\n")
        (self.dir / "bad").write_text("a slots=none\n")
        (self.dir / "null").write_bytes(b"a\0\nb\n")
        for hosts, match in (("a:0", "slots must be between 1 and 1024"), ("a:x", "slots"), ("-oProxyCommand=x", "invalid host name"),
                             ("a;b", "invalid host name"), ("[::1]x", r"\[address\]:slots"), ("a:1000,b:1000", "1024"),
                             ("./empty", "no host"), ("./bad", "none|slots"),
                             ("./null", "not a text file"), ("/dev/zero", "not a text file"), ("/nonexistent/file", "cannot read")):
            done = self.hosts(hosts, "--", "true", code=2)
            self.assertRegex(done.stderr, match)
            self.assert_one_line(done.stderr)
        done = self.hosts("a,b", "-n", 3, "--", "true", code=2)
        self.assertRegex(done.stderr, "--world 3: too many ranks: the hosts have 2 slots")

    def test_variables_and_folder_come_along(self):
        done = self.hosts("a,b", "--", "sh", "-c", "echo $PWD $WEFT_LATE $WEFT_HOST_ID",
                          env={"WEFT_LATE": "7", "WEFT_HOST_ID": "mine"})
        self.assertEqual(sorted(done.stdout.splitlines()), [f"{self.dir} 7 a", f"{self.dir} 7 b"])

    def test_arguments_arrive_as_they_are(self):
        words = ["a b", "it's", '"quoted"', "$HOME", "*", "", "back\\slash", "new\nline"]
        done = self.hosts("a", "--", "/usr/bin/python3", "-c", "import sys; print(sys.argv[1:])", *words)
        self.assertEqual(done.stdout, f"{words}\n")

    def test_tagged_lines(self):
        done = self.hosts("a,b", "--tag-output", "--", "sh", "-c", "echo $WEFT_HOST_ID; echo bad >&2")
        self.assertEqual(sorted(done.stdout.splitlines()), ["[0] a", "[1] b"])
        self.assertEqual(sorted(done.stderr.splitlines()), ["[0] bad", "[1] bad"])

    def test_exit_code_and_host_of_the_first_rank_that_fails(self):
        done = self.hosts("a,b:2", "--", "sh", "-c", "[ $WEFT_RANK = 2 ] && exit 9; sleep 30", code=9)
        self.assertRegex(done.stderr, r"^weft run: rank 2 \(pid \d+, host b\) exited with status 9\n$")

    def test_what_only_ranks_report(self):
        """Whatever their arguments are, and however they end."""
        (self.dir / "script").write_text("exit 3")
        for host, command, code, end in (("a", ("sh", "script", "--rank"), 3, "exited with status 3"),
                                         ("a", ("sh", "-c", "kill -SEGV $$"), 139, r"was killed by signal 11 .*"),
                                         ("localhost", ("sh", "-c", "exit 255"), 255, "exited with status 255"),
                                         ("localhost", ("sh", "-c", "exit 127"), 127, "exited with status 127")):
            done = self.hosts(host, "--", *command, code=code)
            self.assertRegex(done.stderr, rf"^weft run: rank 0 \(pid \d+, host {host}\) {end}\n$")

    def test_input(self):
        """That of ssh is the launcher's, which ranks do not read."""
        for hosts in ("a,b", "localhost:2"):
            self.assertEqual(self.hosts(hosts, "--", "cat", input="of the launcher").stdout, "")

    def test_remote_shells(self):
        (self.dir / "words").write_text('#!/bin/sh\nshift 40; exec sh -c "$2"\n')
        (self.dir / "words").chmod(0o755)
        many = " ".join([str(self.dir / "words"), *map(str, range(40))])
        self.assertEqual(self.program("--hosts", "a", "--engine", "ssh", "--rsh", many, "--", "echo", "said").stdout,
                         "said\n")
        for empty in "", " \t":
            done = self.program("--hosts", "a", "--rsh", empty, "--", "true", code=2)
            self.assertEqual(done.stderr, "weft run: --rsh or WEFT_RSH: missing command\n")

    def test_a_colon(self):
        """Engines would run what follows it."""
        for engine in "srun", "mpirun", "mpiexec.hydra":
            done = self.program("--hosts", "a", "--engine", engine, "--", "echo", ":", "false", code=2)
            self.assertRegex(done.stderr, f"^weft run: argument ':' requires --engine ssh: {engine} reads it")
        self.assertEqual(self.hosts("a", "--", "echo", ":").stdout, ":\n")

    def test_exit_code_of_a_signal(self):
        """Other hosts' ranks fail because of it, and may have ended before."""
        (self.dir / "script").write_text("echo $$ >$WEFT_RANK\n[ $WEFT_RANK = 0 ] && while ! [ -s 1 ]; do sleep 0.01; done && exit 7\n"
                                         "while ! [ -s 0 ] || kill -0 $(cat 0) 2>&-; do sleep 0.01; done\nsleep 0.1; kill -SEGV $$\n")
        done = self.hosts("a,b", "--", "sh", "script", code=128 + 11)
        self.assertRegex(done.stderr, r"rank 0 \(pid \d+, host a\) exited with status 7\n")

    def test_much_output(self):
        done = self.hosts("a,b", "--", "/usr/bin/python3", "-c", "print('x' * 3000000)")
        self.assertEqual(done.stdout.count("x"), 6000000)

    def test_a_host_that_cannot_be_reached(self):
        closed = self.dir / "closed"
        closed.write_text("#!/bin/sh\necho no entry >&2\nexit 255\n")  # as ssh does
        closed.chmod(0o755)
        done = self.program("--hosts", "a,b", "--engine", "ssh", "--rsh", closed, "--", "true", code=1)
        self.assertRegex(done.stderr, "(?s)no entry.*host [ab]: closed ended with status 255")
        done = self.program("--hosts", "a", "--engine", "ssh", "--rsh", "/nonexistent/rsh", "--", "true", code=1)
        self.assertRegex(done.stderr, "cannot run /nonexistent/rsh")
        done = self.hosts("a", "--remote-weft", "/nonexistent/weft", "--", "true", code=1)
        self.assertRegex(done.stderr, "host a: rsh ended with status 127")

    def test_a_host_that_does_not_answer(self):
        deaf = self.dir / "deaf"
        deaf.write_text('#!/bin/sh\n[ "$1" = b ] && exec sleep 100\nexec sh -c "$2"\n')
        deaf.chmod(0o755)
        hosts = f"{HOSTS[0]},b"
        done = self.program("--hosts", hosts, "--engine", "ssh", "--rsh", deaf, "--", support.BINARY / "tests" / "launched",
                            code=3, env={"WEFT_CONNECT_TIMEOUT": "5"})
        self.assertIn("missing ranks: 1", done.stderr)
        self.assertIn(f"weft run: rank 0 (pid ", done.stderr)

    def test_a_damaged_job(self):
        for job in (b"", b"\x05\0\0\0", b"\xff\xff\xff\xff", b"\x02\0\0\0ab", b"\x03\0\0\0a\0\0",
                    b"\x10\0\0\0" + b"\0" * 16):
            done = subprocess.run([WEFT, "run", "--host-ranks"], input=job, capture_output=True, timeout=600)
            self.assertIn(done.returncode, (1, 2), job)
            self.assertRegex(done.stderr, b"^(weft run: (malformed job|host .*version mismatch).*\n)?$")

    def test_interrupt(self):
        run = subprocess.Popen([WEFT, "run", "--hosts", "a,b:2", "--engine", "ssh", "--rsh", str(self.rsh), "--", "sh", "-c",
                                "echo $$; exec sleep 100"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        pids = [int(run.stdout.readline()) for _ in range(3)]
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=600)
        self.assertEqual((run.returncode, err), (130, "weft run: interrupted, all ranks ended\n"))
        self.assertFalse(any(map(alive, pids)))

    def test_programs_hear_of_an_interrupt(self):
        for more in (["-n", "3"], ["--hosts", "a,b:2", "--engine", "ssh", "--rsh", str(self.rsh)]):
            run = subprocess.Popen([WEFT, "run", *more, "--", "sh", "-c",
                                    "trap 'echo heard; exit 0' INT; echo ready; while :; do sleep 0.1; done"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(3):
                self.assertEqual(run.stdout.readline(), "ready\n")
            run.send_signal(signal.SIGINT)
            out, err = run.communicate(timeout=600)
            self.assertEqual((run.returncode, out), (130, 3 * "heard\n"), err)

    def test_ranks_end_with_a_killed_launcher(self):
        run = subprocess.Popen([WEFT, "run", "--hosts", "a,b:2", "--engine", "ssh", "--rsh", str(self.rsh), "--", "sh", "-c",
                                "echo $$; exec sleep 100"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        pids = [int(run.stdout.readline()) for _ in range(3)]
        run.kill()
        run.communicate(timeout=600)
        deadline = time.monotonic() + support.PROMPT
        while any(map(alive, pids)) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertFalse(any(map(alive, pids)))

    @NEED_DATA
    def test_training_and_inference(self):
        """The ranks of two names for one machine: between them goes tcp."""
        plan = self.compile(batch=16)
        args = (plan, "--data", DATA, "--steps", 3, "--no-eval", "--json")
        expected = self.weft_json("run", *args[:-1])["param_digest"]
        told = json.loads(self.hosts(",".join(HOSTS), *args).stdout)
        self.assertEqual(told["param_digest"], expected)
        self.assertEqual(told["transports"], ["self", "tcp"])
        done = self.hosts(",".join(HOSTS), *args[:-1])
        self.assertRegex(done.stdout, r"trained 3 steps on 2 ranks \(2 hosts, tcp\): loss")
        done = self.hosts(HOSTS[0], "-n", 1, *args, code=2)
        self.assertRegex(done.stderr, "^weft run: .* the plan is for 2 ranks, not for 1")
        self.assert_one_line(done.stderr)


class Launched(LaunchCase):
    @NEED_DATA
    @unittest.skipIf(support.SANITIZED, "libpmix itself leaks")
    @unittest.skipUnless(MPIRUN, "mpirun.openmpi is missing (Debian package openmpi-bin)")
    def test_mpirun(self):
        plan = self.compile(batch=16)
        args = ("run", plan, "--data", DATA, "--steps", 3, "--no-eval", "--json")
        expected = self.weft_json(*args[:-1])["param_digest"]
        told = json.loads(self.mpirun(2, *args).stdout)
        self.assertEqual((told["param_digest"], told["launcher"]), (expected, "pmix"))
        done = self.mpirun(3, *args, code=2)
        self.assertEqual(done.stderr.count("the plan is for 2 ranks, not for 3"), 1)
        done = self.mpirun(2, "run", self.dir / "none.weft", *args[2:], code=2)
        self.assertEqual(done.stderr.count("none.weft"), 1)

    def mpirun(self, ranks, *args, code=0):
        # Nothing but our lines is looked at: what mpirun says about the failure depends on its version.
        done = subprocess.run([MPIRUN, "--allow-run-as-root", "--oversubscribe", "-np", str(ranks), WEFT,
                               *map(str, args)], capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, code, done.stderr)
        return done


if __name__ == "__main__":
    support.main()
