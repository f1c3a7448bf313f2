#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The injection matrix: worlds of 2 to 6 processes in random legal work, one of which suffers a fault at a random moment, or
which disagree about an operation.

Every survivor must get an error that names the faulty rank within WEFT_TIMEOUT, and its process must end soon after that.
Ranks that disagree must all get an error that names both sides within a second, however long WEFT_TIMEOUT is. Nothing may be
left: no process, no file, no socket, no descriptor. A case is made of the seed and its number only.

usage: matrix.py [--build DIR] [--cases N] [--seed N] [--only N] [--seconds N] [--timeout S] [--slack S]
                 [--fault KIND] [--at N] [--differ KIND] [--layout shm|tcp|mixed] [--tolerate KIND] [--keep DIR] [--jobs N] [--log FILE] [-v]
       matrix.py --by-message HOSTS[,HOSTS] [--rank N] [--first N] [--cases N] ..     a stop at every place of joining
       matrix.py --soak SECONDS [--kills N] [--kill-every SECONDS] [--layout ..] ..   one world that shrinks and grows
"""
import argparse
import collections
import ctypes
import dataclasses
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from program import free_port  # noqa: E402

PR_SET_CHILD_SUBREAPER = 36
DEATHS = ("kill", "segv", "abort", "exit", "quit", "exec", "orphan", "leave")
LATE = ("stop",)  # found by the deadline only
FAULTS = (*DEATHS, *LATE * 2, "pause")
# Kinds of disagreements: disagree.c; "setting" is one before they join.
DIFFERENCES = ("dtype", "count", "reduction", "root", "kind", "group", "order", "algorithm", "creation", "destroy", "operation",
               "swapped", "bytes", "fuser", "capture", "plan", "fewer", "setting")
ANSWERS = {"ERR_PEER_DIED", "ERR_TIMEOUT", "ERR_ABORTED"}
# A rank that hangs is given up after this many seconds more than it may take.
GUARD = 60
MODEL = pathlib.Path(__file__).resolve().parents[3] / "samples" / "models" / "mlp.onnx"


@dataclasses.dataclass
class Case:
    """What a case is made of."""
    number: int
    size: int
    hosts: str  # a letter per rank, equal on ranks of one host
    over_tcp: bool
    address: str
    fault: str
    rank: int
    at: int
    after_us: int
    messages: int  # the fault comes after so many of the rank's; 0: it does not depend on them
    ends: list
    ops: int
    settings: dict
    wakes: bool  # a stopped rank continues in the end; else it is killed
    differ: str  # what ranks disagree about; None: there is a fault
    odd: list  # the ranks of one side
    leaves: bool  # these ranks leave after the operation

    def __str__(self):
        where = f"hosts {self.hosts}" if self.over_tcp else "one host"
        extra = " ".join(f"{k}={v}" for k, v in self.settings.items())
        when = f"after {self.messages} messages" if self.messages else f"{self.at}+{self.after_us} us"
        what = (f"{self.differ} differs on {self.odd}{', which leave,' if self.leaves else ''} at operation {self.at}" if self.differ
                else f"{self.fault} of rank {self.rank} at operation {when}")
        return f"case {self.number}: {self.size} ranks, {where}, {what}; {self.address.split(':')[0]} {extra}".rstrip()


def draw_case(seed, number, args):
    """Case number of a seed."""
    r = random.Random(f"{seed}/{number}")
    size = r.randint(2, args.ranks)
    layout = args.layout or r.choice(("shm", "shm", "tcp", "mixed"))
    hosts = "a" * size
    if layout == "tcp":
        hosts = "abcdefgh"[:size]
    elif layout == "mixed":
        hosts = "".join(r.choice("ab") for _ in range(size))
    over_tcp = layout != "shm"
    fault = r.choice(FAULTS)
    fault = args.fault or fault
    at = r.choice((0, 1, 2 + r.randrange(10), 2 + r.randrange(60), 2 + r.randrange(60)))
    at = at if args.at is None else args.at
    after_us = r.choice((0, r.randrange(300), r.randrange(5000), r.randrange(50000)))
    settings = {}
    if r.random() < 0.5:
        settings["WEFT_PROGRESS"] = r.choice(("inline", "thread"))
    if r.random() < 0.2:
        settings["WEFT_ATTACH"] = r.choice(("off", "always"))
    if r.random() < 0.2:
        settings["WEFT_CHECK"] = "results"
    if r.random() < 0.2:
        settings["WEFT_ORDER"] = "any"
    differ = r.choice(DIFFERENCES) if r.random() < 0.4 else None
    if args.fault or args.differ:
        differ = r.choice(DIFFERENCES) if args.differ == "any" else args.differ
    odd = r.sample(range(size), r.randrange(1, size))
    if differ:
        fault, at = None, 0 if differ == "setting" else 2 + r.randrange(12)
    address, rank = r.choice(("tcp:", "file:")) if over_tcp else "unix:", r.randrange(size)
    ends = [r.choice(("destroy", "destroy", "leave", "exit")) for _ in range(size)]
    if fault == "pause":  # others may still be in the last operation when a rank has finished it
        ends = [end.replace("exit", "destroy") for end in ends]
    messages = 0
    if fault and at == 0:
        later = random.Random(f"{seed}/{number}/messages")
        messages = later.choice((0, later.randrange(1, 12), later.randrange(1, 80), later.randrange(1, 300)))
    if args.by_message:
        hosts = args.by_message.split(",")[number % len(args.by_message.split(","))]
        size, over_tcp, messages, differ = len(hosts), hosts != "a" * len(hosts), number, None
        address, rank, at, settings, ends = "file:" if over_tcp else "unix:", args.rank, 0, {}, ["destroy"] * size
        fault = args.fault or "stop"
    return Case(number, size, hosts, over_tcp, address, fault, rank, at, after_us, messages, ends,
                at + 30 if fault == "pause" else at + 300 if differ else 1000000, settings, r.random() < 0.5, differ, sorted(odd),
                differ == "fewer" and r.random() < 0.3)


class Rank:
    """A process and what it reported."""

    def __init__(self, process, folder, number):
        self.process, self.number = process, number
        self.path, self.error_path = folder / f"out.{number}", folder / f"err.{number}"
        self.code, self.ended_ns, self.late_stack = None, 0, ""

    def read(self):
        """Its events: name -> (nanoseconds, fields)."""
        self.events = {}
        for line in self.path.read_text(errors="replace").splitlines():
            name, at, *fields = line.split("\t")
            self.events.setdefault(name, (int(at), fields))
        self.log = self.error_path.read_text(errors="replace")

    def stack(self):
        """Where its threads are, if gdb tells."""
        done = subprocess.run(["gdb", "-p", str(self.process.pid), "-batch", "-ex", "thread apply all bt 14"],
                              capture_output=True, text=True) if shutil.which("gdb") else None
        return done.stdout if done else ""


def children_of(pid):
    """Processes that the kernel lists as children of this one."""
    found = []
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(p) for p in path.read_text().split()]
        except OSError:
            pass
    return found


def read_log(path, seed):
    """Records of the cases of a seed that have been run."""
    records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [record for record in records if record["seed"] == seed]


def summary(records, args, seconds):
    """Prints what was found; returns whether all of it is tolerated."""
    kinds = collections.Counter(kind for record in records for kind in {kind for kind, _ in record["found"]})
    perfect = sum(not record["found"] for record in records)
    print(f"seed {args.seed}: {len(records)} cases in {seconds:.0f} s, {perfect} perfect; "
          + ", ".join(f"{n} {kind}" for kind, n in kinds.most_common()))
    drawn = collections.Counter(record["kind"] for record in records)
    print("faults: " + ", ".join(f"{n} {kind}" for kind, n in sorted(drawn.items())))
    for name in ("answers", "disagreements"):
        times = sorted(ms for record in records for ms in record[name])
        if times:
            print(f"{name}: {len(times)}, median {times[len(times) // 2]:.0f} ms, 99 % {times[len(times) * 99 // 100]:.0f} ms, "
                  f"most {times[-1]:.0f} ms")
    return all(kind.startswith(tuple(args.tolerate)) for kind in kinds)


def named_ranks(message):
    """Ranks that a message names."""
    found = set()
    for numbers in re.findall(r"\branks?:? (\d+(?:(?:, | and | )\d+)*)", message):
        found |= {int(n) for n in re.findall(r"\d+", numbers)}
    return found


class Matrix:
    """Runs cases."""

    def __init__(self, args):
        self.args = args
        self.plans = {}
        self.base = pathlib.Path(tempfile.mkdtemp(prefix="weft-matrix-"))
        self.answer_ms, self.disagreement_ms, self.last_ns = [], [], 0  # of the present case

    def plan(self, size):
        """A plan for that many ranks, compiled once."""
        if size not in self.plans:
            self.plans[size] = self.base / f"plan.{size}"
            for path, batch in ((self.plans[size], "2"), (f"{self.plans[size]}.other", "3")):
                subprocess.run([f"{self.args.build}/weft", "compile", MODEL, "-o", path, "--world", str(size), "--batch", batch],
                               check=True, capture_output=True, env={**os.environ, "WEFT_CALIBRATE": "off"})
        return self.plans[size]

    # ---- one case ----

    def start(self, case, folder):
        address = {"unix:": f"unix:@weft-matrix-{os.getpid()}-{case.number}", "file:": f"file://{folder}/meeting",
                   "tcp:": f"127.0.0.1:{free_port() if case.address == 'tcp:' else 0}"}[case.address]
        ranks = []
        (folder / "tmp").mkdir()
        for number in range(case.size):
            env = {**os.environ, **case.settings, "WEFT_RANK": str(number), "WEFT_WORLD_SIZE": str(case.size),
                   "WEFT_ADDRESS": address, "TMPDIR": str(folder / "tmp"), "WEFT_CALIBRATE": "off"}
            timeout = self.args.timeout if case.fault else self.args.differ_timeout
            for name in ("WEFT_TIMEOUT", "WEFT_CONNECT_TIMEOUT", "WEFT_LINK_TIMEOUT"):
                env[name] = str(timeout)
            if case.over_tcp:
                env["WEFT_HOST_ID"] = f"host-{case.hosts[number]}"
            if case.ends[number] == "exit":  # without destroying anything
                env["ASAN_OPTIONS"] = "detect_leaks=0"
            command = [f"{self.args.build}/tests/fault_rank", f"seed={self.args.seed * 1000003 + case.number}", f"ops={case.ops}",
                       f"end={case.ends[number]}", f"folder={folder}", f"plan={self.plan(case.size)}"]
            if case.differ == "setting":
                env["WEFT_SOCKETS"] = "3" if number in case.odd else "2"
            elif case.differ:
                command += [f"differ={case.differ}", f"at={case.at}"] + (["odd=1"] if number in case.odd else [])
                command += ["then=leave"] if number in case.odd and case.leaves else []
            elif number == case.rank:
                command += [f"fault={case.fault}", f"at={case.at}"]
                command += [f"messages={case.messages}" if case.messages else f"after_us={case.after_us}"]
            with open(folder / f"out.{number}", "w") as out, open(folder / f"err.{number}", "w") as err:
                ranks.append(Rank(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env,
                                                   start_new_session=True), folder, number))
        return ranks

    def wait(self, ranks, until):
        """Until all of them have ended; returns those that have not at that time. Late ones show their stacks."""
        left = [r for r in ranks if r.code is None]
        late = until - GUARD + 2
        while left and time.monotonic() < until:
            for rank in left:
                rank.code = rank.process.poll()
                rank.ended_ns = time.monotonic_ns()
            left = [r for r in left if r.code is None]
            if left and late < time.monotonic():
                late = until
                for rank in left:
                    rank.late_stack = rank.stack()
            if left:
                time.sleep(0.002)
        return left

    def last_call(self, ranks):
        """When the last rank was in the call that it, or another one, must not make. A rank may have gone on to another one."""
        errors = [r.events["error"] for r in ranks if "error" in r.events]
        first_ns = min((at_ns for at_ns, _ in errors), default=0)
        begun = [r.events[name][0] for r in ranks for name in ("start", "call") if name in r.events]
        return max(begun + [int(fields[3]) for _, fields in errors if int(fields[3]) < first_ns], default=0)

    def wait_stopped(self, rank, until):
        """Until the process of a rank has stopped; false if it ended."""
        while time.monotonic() < until and rank.process.poll() is None:
            try:
                if re.search(r"^State:\s+T", pathlib.Path(f"/proc/{rank.process.pid}/status").read_text(), re.M):
                    return True
            except OSError:
                return False
            time.sleep(0.002)
        return False

    def run(self, case):
        """Runs a case; returns its faults: (kind, detail)."""
        folder = self.base / f"case.{case.number}"
        folder.mkdir()
        self.plan(case.size)
        shm = set(os.listdir("/dev/shm"))
        ranks = self.start(case, folder)
        faulty, found = None if case.differ else ranks[case.rank], []
        timeout = self.args.differ_timeout if case.differ else self.args.timeout
        guard = time.monotonic() + 2 * timeout + self.args.slack + GUARD
        others = [r for r in ranks if r is not faulty]
        if case.differ:
            hung = self.wait(ranks, guard)
        elif case.fault == "pause":
            if self.wait_stopped(faulty, guard):
                time.sleep(0.1)
                os.kill(faulty.process.pid, signal.SIGCONT)
            hung = self.wait(ranks, guard)
        elif case.fault == "stop":
            hung = self.wait(others, guard)
            woken_ns = time.monotonic_ns()
            if self.wait_stopped(faulty, guard):
                os.kill(faulty.process.pid, signal.SIGCONT if case.wakes else signal.SIGKILL)
            hung += self.wait([faulty], time.monotonic() + 2 * self.args.timeout + self.args.slack + GUARD)
            if case.wakes and faulty.ended_ns - woken_ns > (self.args.timeout + self.args.slack) * 1e9:
                found.append(("late end", f"rank {faulty.number} ended {(faulty.ended_ns - woken_ns) / 1e9:.2f} s after SIGCONT"))
        else:
            hung = self.wait(others, guard)
            if case.fault == "exec":
                faulty.process.kill()
            hung += self.wait([faulty], time.monotonic() + GUARD)
        for rank in hung:
            found.append(("hang", f"rank {rank.number} has not ended; its threads:\n{rank.late_stack}"))
            rank.process.kill()
            rank.process.wait()
        self.clean_up(case, found)
        for rank in ranks:
            rank.read()
        self.last_ns = self.last_call(ranks)
        for rank in ranks:
            self.judge(case, rank, faulty, found)
        if case.differ == "swapped" and not any("error" in rank.events for rank in ranks):
            found = []  # neither operation waited for what the other side did first
        self.look_around(case, folder, shm, found)
        keep = found and self.args.keep
        if keep:
            shutil.copytree(folder, pathlib.Path(self.args.keep) / f"case.{self.args.seed}.{case.number}", dirs_exist_ok=True)
        shutil.rmtree(folder)
        return found

    def clean_up(self, case, found):
        """Ends the processes that are left: the child of an orphan may, others are faults."""
        for _ in range(100):
            left = children_of(os.getpid())
            if len(left) == 0 or len(left) == 1 and case.fault == "orphan":
                break
            time.sleep(0.01)
            while True:  # zombies
                try:
                    if os.waitpid(-1, os.WNOHANG)[0] == 0:
                        break
                except ChildProcessError:
                    break
        else:
            found.append(("process left", str(left)))
        for pid in left:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def look_around(self, case, folder, shm, found):
        """Files and sockets of this case."""
        pids = [f"weft-matrix-{os.getpid()}-{case.number}"]
        left = [f"/dev/shm/{name}" for name in set(os.listdir("/dev/shm")) - shm if "weft" in name]
        left += [str(path) for path in (folder / "tmp").iterdir()]
        left += [name for name in os.listdir(folder) if not re.fullmatch(r"(out|err)\.\d+|tmp|checkpoint", name)
                 # killed while it wrote a checkpoint, or before it removed the address that it wrote
                 and not (case.rank == 0 and case.fault not in (None, "pause"))]
        with open("/proc/net/unix") as sockets:
            left += [line.split()[-1] for line in sockets if any(p in line for p in pids)]
        if left:
            found.append(("left", " ".join(left)))

    # ---- judgement ----

    def judge(self, case, rank, faulty, found):
        """What is wrong with the end of one rank."""
        def fault(kind, detail=""):
            found.append((kind, f"rank {rank.number}: {detail}"))
        if re.search(r"Sanitizer|runtime error:", rank.log) and (rank is not faulty or case.fault in ("pause", "stop")):
            fault("sanitizer", rank.log[:2000])
        if "wrong" in rank.events:
            fault("wrong result", " ".join(rank.events["wrong"][1]))
        if rank is faulty and case.fault not in (None, "pause"):
            if case.fault == "stop" and case.wakes and rank.code != 0:
                fault("crash", f"code {rank.code} after SIGCONT")
            if case.fault == "leave" and rank.code != 0:
                fault("crash", f"code {rank.code}")
            return
        if rank.code != 0:
            fault("crash", f"code {rank.code}: {rank.log[-500:]}")
            return
        if "ended" in rank.events:
            before, after, threads = map(int, rank.events["ended"][1])
            if after > before:
                fault("descriptors left", f"{before} before, {after} after")
            if threads > 1:
                fault("threads left", str(threads))
        if case.fault == "pause":
            if "error" in rank.events:
                fault("error without a fault", " ".join(rank.events["error"][1]))
            return
        if case.differ:
            self.judge_disagreement(case, rank, fault)
        else:
            self.judge_answer(case, rank, faulty, fault)

    def judge_disagreement(self, case, rank, fault):
        """Whether a rank learns at once that ranks disagree, and about which ones."""
        if case.leaves and rank.number in case.odd:
            return  # it need not learn anything
        if "error" not in rank.events:
            fault("no error")
            return
        at_ns, (op, name, status, began_ns, message) = rank.events["error"]
        waited = (at_ns - self.last_ns) / 1e9
        self.disagreement_ms.append(waited * 1e3)
        text = f"{waited:.2f} s after the last call: operation {op} {name}: {status}: {message}"
        named = named_ranks(message)
        if waited > self.args.differ_timeout * 0.9:
            fault("disagreement: at the deadline", text)
        elif waited > 1:
            fault("disagreement: late", text)
        if status not in ("ERR_MISMATCH", "ERR_PEER_DIED"):  # a rank that went on elsewhere may learn of the departure
            fault("disagreement: status", text)
        elif not named or case.differ != "fuser" and not case.leaves and len({n in case.odd for n in named}) < 2:
            fault("disagreement: one side named", text)

    def judge_answer(self, case, rank, faulty, fault):
        """Whether a survivor's error comes in time and names the faulty rank."""
        if "error" not in rank.events:
            fault("no error")
            return
        if "fault" not in faulty.events:  # it did not come to that
            fault("error before the fault", " ".join(rank.events["error"][1]))
            return
        at_ns, (op, name, status, began_ns, message) = rank.events["error"]
        begin_ns = max(faulty.events["fault"][0], rank.events["start"][0])
        # Something without a status, such as a destroy, may have used up a deadline of its own before.
        limit_ns = max(begin_ns, min(int(began_ns), begin_ns + self.args.timeout * 1e9)) + (self.args.timeout + self.args.slack) * 1e9
        self.answer_ms.append((at_ns - begin_ns) / 1e6)
        text = f"{(at_ns - begin_ns) / 1e9:.2f} s after the fault: operation {op} {name}: {status}: {message}"
        if at_ns > limit_ns:
            fault("late answer", text)
        if rank.ended_ns > max(limit_ns, at_ns + self.args.slack * 1e9):
            fault("late end", f"{(rank.ended_ns - at_ns) / 1e9:.2f} s after its error ({case.ends[rank.number]}); {text}"
                  f"\n{rank.late_stack}".rstrip())
        if status not in ANSWERS and not (status == "ERR_LINK" and case.fault in LATE):
            fault("status", text)
        if case.rank not in named_ranks(message):
            fault("wrong name", text)
        late = named_ranks(message.rpartition("late: ")[2]) if "late: " in message else set()
        if late - {case.rank}:
            fault("names others", text)

    # ---- a world that goes on ----

    def soak(self):
        """One world, which loses ranks and gets new ones; returns the faults."""
        return Soak(self).run()

    # ---- all cases ----

    def all(self):
        """Runs all cases that the log does not have yet; returns whether it has findings that are not tolerated."""
        args, begin = self.args, time.monotonic()
        log = pathlib.Path(args.log or self.base / "log")
        known = {record["case"] for record in read_log(log, args.seed)}
        numbers = [args.only] if args.only is not None else range(args.first, args.first + args.cases)
        numbers = [n for n in numbers if n not in known]
        for job in range(args.jobs):
            if os.fork() == 0:
                self.base = self.base / f"job.{job}"
                self.base.mkdir()
                self.work(numbers[job::args.jobs], log, begin)
                os._exit(0)
        crashed = sum(os.wait()[1] != 0 for _ in range(args.jobs))
        return summary(read_log(log, args.seed), args, time.monotonic() - begin) and not crashed

    def work(self, numbers, log, begin):
        """Runs cases and adds a line to the log for each."""
        args = self.args
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        for count, number in enumerate(numbers):
            if args.seconds and time.monotonic() - begin > args.seconds:
                break
            case = draw_case(args.seed, number, args)
            self.answer_ms, self.disagreement_ms = [], []
            found = self.run(case)
            record = {"seed": args.seed, "case": number, "kind": case.fault or case.differ, "found": found,
                      "answers": self.answer_ms, "disagreements": self.disagreement_ms}
            with open(log, "a") as file:
                file.write(json.dumps(record) + "\n")
            if found or args.verbose:
                lines = [f"{case}: {'' if found else 'ok'}", *(f"  {kind}: {detail}" for kind, detail in found)]
                print("\n".join(lines + [f"  again: {self.again(number)}"] * (len(found) > 0)), flush=True)
            elif count % 50 == 49:
                print(f"{count + 1} cases, {time.monotonic() - begin:.0f} s", flush=True)

    def again(self, number):
        kept = [a for name in ("build", "timeout", "slack", "seed", "ranks", "fault", "differ", "layout", "by_message", "rank")
                if (value := getattr(self.args, name)) is not None for a in (f"--{name.replace('_', '-')}", str(value))]
        return shlex.join([sys.argv[0], *kept, "--only", str(number)])


class Soak:
    """A world that shrinks when ranks are killed and grows again, in random work, until the time is over."""

    def __init__(self, matrix):
        self.matrix, self.args = matrix, matrix.args
        self.random = random.Random(f"{self.args.seed}/soak")
        self.folder = matrix.base / "soak"
        (self.folder / "tmp").mkdir(parents=True)
        self.ranks, self.found = [], []
        self.errors = []  # not judged yet
        self.kills, self.count, self.worlds, self.grown, self.failed = 0, 0, {}, 0, 0
        self.back_ms = []  # from a death to the next world

    def start(self, number, size, address):
        """A process, as one rank of a world of that size that meets at the address."""
        layout = self.args.layout or "shm"
        env = {**os.environ, "WEFT_RANK": str(number), "WEFT_WORLD_SIZE": str(size), "WEFT_ADDRESS": address,
               "TMPDIR": str(self.folder / "tmp"), "WEFT_CALIBRATE": "off", "WEFT_TIMEOUT": str(self.args.timeout),
               "WEFT_CONNECT_TIMEOUT": str(self.args.timeout), "WEFT_LINK_TIMEOUT": str(self.args.timeout)}
        if layout != "shm":
            env["WEFT_HOST_ID"] = f"host-{self.count if layout == 'tcp' else self.random.choice('ab')}"
        command = [f"{self.args.build}/tests/fault_rank", f"seed={self.args.seed}", f"folder={self.folder}",
                   f"grows_at={self.address}"]
        name = self.count
        self.count += 1
        with open(self.folder / f"out.{name}", "w") as out, open(self.folder / f"err.{name}", "w") as err:
            rank = Rank(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env,
                                         start_new_session=True), self.folder, name)
        rank.worlds = []
        rank.file, rank.rest, rank.heard, rank.world, rank.killed_ns = open(rank.path), "", time.monotonic(), None, 0
        self.ranks.append(rank)

    def fault(self, rank, kind, detail=""):
        self.found.append((kind, f"process {rank.number}: {detail}"))
        print(f"  {kind}: process {rank.number} (rank and generation {rank.world}): {detail}", flush=True)

    def hear(self, rank):
        """New events of a process."""
        text = rank.rest + rank.file.read()
        *lines, rank.rest = text.split("\n")
        for line in lines:
            name, at, *fields = line.split("\t")
            rank.heard = time.monotonic()
            if name == "world":
                generation, number, size, descriptors, threads = map(int, fields)
                rank.world = (generation, number)
                rank.worlds.append(rank.world)
                self.worlds[generation] = size
                limits = rank.__dict__.setdefault("limits", {}).setdefault(size, [descriptors, threads, 0])
                limits[2] += 1
                if descriptors > limits[0] + 64 or threads > limits[1] + 8:
                    self.fault(rank, "descriptors left", f"{limits} -> {descriptors} descriptors, {threads} threads of {size} ranks")
                    limits[:2] = descriptors, threads
                if self.last_kill_ns and int(at) > self.last_kill_ns and generation > self.kill_generation:
                    self.back_ms.append((int(at) - self.last_kill_ns) / 1e6)
                    self.last_kill_ns = 0
            elif name == "grow":
                for joining in range(int(fields[0]), int(fields[1])):
                    self.start(joining, int(fields[1]), fields[2])
                self.grown += 1
            elif name == "error" and rank.killed_ns == 0 and rank.world:
                self.errors.append((time.monotonic(), rank, *fields))
            elif name in ("wrong", "lost") and rank.killed_ns == 0:
                self.fault(rank, name, " ".join(fields))

    def judge(self, before):
        """Errors that are old enough for all reports of that world to be here: they must name a rank that is gone."""
        for error in [e for e in self.errors if e[0] < before]:
            self.errors.remove(error)
            _, rank, generation, operation, status, message = error
            alive = {number for r in self.alive() for at, number in r.worlds if at == int(generation)}
            if status not in ANSWERS or not named_ranks(message) - alive:
                self.fault(rank, "wrong name", f"generation {generation}, alive are {sorted(alive)}: {operation}: {status}: {message}")

    def alive(self):
        return [r for r in self.ranks if r.process.poll() is None and r.killed_ns == 0]

    def kill(self):
        """One rank of the world, sometimes two at once, but not all."""
        inside = [r for r in self.alive() if r.world]
        for rank in self.random.sample(inside, min(len(inside) - 1, self.random.choice((1, 1, 1, 2)))):
            self.hear(rank)
            rank.killed_ns = time.monotonic_ns()
            self.last_kill_ns, self.kill_generation = rank.killed_ns, max(self.worlds)
            rank.process.kill()
            self.kills += 1

    def run(self):
        args, begin = self.args, time.monotonic()
        self.last_kill_ns = self.kill_generation = 0
        layout = args.layout or "shm"
        self.address = f"unix:@weft-soak-{os.getpid()}" if layout == "shm" else f"file://{self.folder}/meeting"
        (self.folder / "target").write_text(str(args.ranks))
        for number in range(args.ranks):
            self.start(number, args.ranks, self.address)
        next_kill, shown = begin + 3, begin
        limit = 3 * args.timeout + args.slack + GUARD / 2
        while time.monotonic() - begin < args.soak and self.kills < args.kills and len(self.found) < 100:
            time.sleep(0.01)
            for rank in self.ranks:
                self.hear(rank)
                if rank.process.poll() is not None and rank.killed_ns == 0:
                    rank.killed_ns = 1
                    if rank.world is None and rank.process.returncode == 0:
                        self.failed += 1
                        continue
                    self.fault(rank, "ended", f"code {rank.process.returncode}: {rank.error_path.read_text()[-1500:]}")
                elif rank.killed_ns == 0 and time.monotonic() - rank.heard > limit:
                    self.fault(rank, "hang", rank.stack())
                    rank.process.kill()
            self.judge(time.monotonic() - 1)
            for rank in [r for r in self.ranks if r.process.poll() is not None]:
                rank.file.close()
                self.ranks.remove(rank)
                for path in (rank.path, rank.error_path):
                    path.unlink()
            if len(self.alive()) == 0:
                break
            if time.monotonic() > next_kill:
                self.kill()
                next_kill = time.monotonic() + self.random.uniform(0.02, 2 * args.kill_every)
            if time.monotonic() - shown > 60:
                shown = time.monotonic()
                self.show(begin)
        (self.folder / "target").write_text("0")
        until = time.monotonic() + limit
        while self.alive() and time.monotonic() < until:
            for rank in self.alive():
                self.hear(rank)
            time.sleep(0.01)
        for rank in self.alive():
            self.fault(rank, "hang", rank.stack())
            rank.process.kill()
        self.show(begin)
        return self.found

    def show(self, begin):
        ordered = sorted(self.back_ms) or [0]
        print(f"{time.monotonic() - begin:.0f} s: {self.kills} ranks killed, {self.grown} times grown, {self.failed} could not join, {max(self.worlds, default=0)} "
              f"worlds, {len(self.found)} faults; next world after {ordered[len(ordered) // 2]:.0f} ms (median), "
              f"{ordered[-1]:.0f} ms (most)", flush=True)


def main():
    parser = argparse.ArgumentParser(description="injects faults into worlds of processes")
    parser.add_argument("--build", default="build", help="build folder, with weft and tests/fault_rank")
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("WEFT_TEST_SEED", "1")))
    parser.add_argument("--only", type=int, help="this case only")
    parser.add_argument("--seconds", type=float, help="no new case after this time")
    parser.add_argument("--timeout", type=float, default=3, help="WEFT_TIMEOUT of the ranks")
    parser.add_argument("--slack", type=float, default=2, help="seconds after the deadline")
    parser.add_argument("--ranks", type=int, default=6, help="most ranks of a world")
    parser.add_argument("--fault", choices=sorted(set(FAULTS)))
    parser.add_argument("--at", type=int, help="the operation of the fault: 0 creates the context")
    parser.add_argument("--differ", choices=("any", *DIFFERENCES), help="disagreements only")
    parser.add_argument("--differ-timeout", type=float, default=10, help="WEFT_TIMEOUT of ranks that disagree")
    parser.add_argument("--by-message", metavar="HOSTS", help="case N: one rank has the fault after N messages while the world is made; its ranks "
                        "are on hosts by letters, such as aaaaa or abbb (AAA: one host over TCP); cases take turns with HOSTS,HOSTS")
    parser.add_argument("--rank", type=int, default=0, help="with --by-message: this one")
    parser.add_argument("--layout", choices=("shm", "tcp", "mixed"))
    parser.add_argument("--soak", type=float, help="seconds of one world that loses and gets ranks, instead of cases")
    parser.add_argument("--kills", type=int, default=10**9, help="with --soak: ends after this many")
    parser.add_argument("--kill-every", type=float, default=2, help="with --soak: mean seconds between two")
    parser.add_argument("--keep", help="folder for the output of ranks of failed cases")
    parser.add_argument("--tolerate", action="append", default=[], help="kinds of findings, by their first words, that are counted only")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument("--log", help="file with a line of JSON per case; the cases that it has are not run again")
    parser.add_argument("-v", "--verbose", action="store_true")
    args = parser.parse_args()
    matrix = Matrix(args)
    if args.soak:
        found = matrix.soak()
        shutil.rmtree(matrix.base, ignore_errors=True)
        sys.exit(len(found) > 0)
    passed = matrix.all()
    shutil.rmtree(matrix.base, ignore_errors=True)
    sys.exit(not passed)


if __name__ == "__main__":
    main()
