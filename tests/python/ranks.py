# SPDX-License-Identifier: Apache-2.0
"""unittest on several ranks: what the tests of the Python package share.

    import ranks
    np = ranks.need("numpy")                # or the whole program is skipped, saying why
    import weft

    class AllReduce(ranks.RankCase):
        RANKS = 2                           # or (1, 2, 3): every method once per size; the default is 2
        ENV = {"WEFT_PROGRESS": "thread"}   # optional
        INIT = True                         # False: the methods call weft.init themselves

        def test_sum(self):                 # runs on every rank, as a process of its own, after weft.init()
            x = np.full(4, self.rank, "float32")
            np.testing.assert_array_equal(weft.all_reduce(x), np.full(4, sum(range(self.size))))

        def test_shapes_differ(self):
            with self.raises_within(weft.WeftMismatchError, "2048 x f32"):      # and within a second
                weft.all_reduce(np.zeros(1024 * (1 + self.rank), "float32"))

        @ranks.fresh(dies=[1])              # processes of its own, before and after; rank 1 is to be killed
        def test_dead_peer(self):
            self.meet()                     # all ranks (that live) come here; not by Weft
            if self.rank == 1:
                self.die()                  # kill -9
            with self.raises_within(weft.WeftPeerDiedError, seconds=5):
                weft.barrier()

    if __name__ == "__main__":
        ranks.main()

By hand:   PYTHONPATH=build/python WEFT_TOOL=build/weft /usr/bin/python3 tests/python/test_x.py [Class.test_name]

The program that unittest runs is not a rank: it forks RANKS processes at a class's first method (so imports cost once),
tells them which method to run, and shows what a rank that failed has said. The same processes run all methods of a
class; after a failure, and around `fresh`, there are new ones. When a method does not end within TIMEOUT seconds, or
one rank failed and the others do not end soon after, ranks are killed and the failure shows the stacks of those that
waited.
What else there is: self.rank, self.size, self.within(seconds), self.exchange(value) (all ranks' values, not by Weft),
self.dir (a temporary folder, the same for all ranks, empty for each method), cls.set_up_ranks() (once per rank),
self.random() (numpy Generator, the same on all ranks; the seed is shown on failure, and taken from WEFT_TEST_SEED).
Ordinary unittest.TestCase classes may stand beside: they run in the program itself, where weft.init must not be called;
run_script() runs a script in as many ranks by `weft run`.
"""
import atexit
import contextlib
import ctypes
import faulthandler
import importlib
import multiprocessing.connection
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(SOURCE / "tests" / "support"))
from program import free_port, main  # noqa: E402,F401 (part of what tests share)
WEFT = os.environ.get("WEFT_TOOL") or str(SOURCE / "build" / "weft")
WEFT = os.path.abspath(WEFT)
if os.environ.get("PYTHONPATH"):  # scripts run in other folders, too
    os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, os.environ["PYTHONPATH"].split(os.pathsep)))
SANITIZED = os.environ.get("WEFT_SANITIZED", "")
# How much longer things may take under sanitizers.
SLOW = 5 if SANITIZED else 1
# A bound on time is a guard against hangs: a busy machine takes many times as long as an idle one.
PATIENCE = 60
# Half of the default WEFT_TIMEOUT, in seconds: what ends earlier did not wait for that.
PROMPT = 300
SKIPPED = 77
GRACE = 4.0 if SANITIZED else 2.0  # seconds for the others after one rank has failed
NOT_INHERITED = ("WEFT_RANK", "WEFT_WORLD_SIZE", "WEFT_ADDRESS", "WEFT_GROUP", "RANK", "WORLD_SIZE", "MASTER_ADDR",
                 "MASTER_PORT", "PMIX_RANK", "PMIX_NAMESPACE", "PMI_FD", "PMI_RANK", "PMI_SIZE", "TORCHELASTIC_RUN_ID")


def need(name):
    """The module called name; where it cannot be imported the program ends as skipped."""
    if name == "torch" and SANITIZED:
        print("skipped: under a sanitizer torch's libraries take too long to load")
        sys.exit(SKIPPED)
    try:
        return importlib.import_module(name)
    except ImportError as error:
        print(f"skipped: {name} is not installed ({error})")
        sys.exit(SKIPPED)


def fresh(method=None, *, dies=()):
    """Marks a method that breaks its world: it gets processes of its own. dies: ranks that may end in the middle."""
    def mark(function):
        function.ranks_fresh = True
        function.ranks_die = frozenset(dies)
        return function
    return mark(method) if method else mark


def clean_environment(**more):
    """os.environ without what launchers leave there, and with more."""
    return {**{name: value for name, value in os.environ.items() if name not in NOT_INHERITED}, **more}


def run_script(script, *args, ranks=2, env=None, timeout=600, launcher=None):
    """Runs script (a path, or Python's text) in so many ranks; returns the finished process, output as text.

    launcher: words in front of the interpreter's; the default is `weft run -n RANKS --`.
    """
    command = [WEFT, "run", "-n", str(ranks), "--"] if launcher is None else list(launcher)
    script = [str(script)] if isinstance(script, pathlib.Path) else ["-c", script]
    return subprocess.run([*map(str, command), sys.executable, *script, *map(str, args)], capture_output=True,
                          text=True, timeout=timeout * SLOW, env=clean_environment(**(env or {})))


class _Rank:
    """The program's side of one rank."""

    def __init__(self, rank, pid, connection, output):
        self.rank, self.pid, self.connection, self.output = rank, pid, connection, output
        self.handle = os.pidfd_open(pid)
        self.status = None

    def said(self):
        self.output.flush()
        size = os.fstat(self.output.fileno()).st_size
        return os.pread(self.output.fileno(), 20000, max(0, size - 20000)).decode(errors="replace").strip()

    def send(self, message):
        with contextlib.suppress(OSError):
            self.connection.send(message)

    def reap(self):
        if self.status is None:
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def end(self, kill):
        """Waits for its end a little (it leaves the world), then makes it end."""
        if self.status is None and not kill:
            kill = not multiprocessing.connection.wait([self.handle], 10 * SLOW)
        if self.status is None and kill:
            os.kill(self.pid, signal.SIGKILL)
        self.reap()
        self.connection.close()
        self.output.close()
        os.close(self.handle)
        return self.status


class _World:
    """Processes that run methods of a class, one after another."""
    made = 0

    def __init__(self, cls, size):
        _World.made += 1
        self.size = size
        self.dir = tempfile.mkdtemp(prefix="weft-ranks-")
        self.ranks = []
        address = f"unix:@weft-ranks-{os.getpid()}-{_World.made}"
        sys.stdout.flush()
        sys.stderr.flush()
        for rank in range(size):
            here, there = multiprocessing.connection.Pipe()
            output = tempfile.TemporaryFile()
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    here.close()
                    for other in self.ranks:
                        other.connection.close()
                    status = _be_a_rank(cls, rank, size, address, there, output, self.dir)
                finally:
                    os._exit(status)
            there.close()
            self.ranks.append(_Rank(rank, pid, here, output))

    def close(self, kill=False):
        """Ends the processes; returns what was wrong with that."""
        for rank in self.ranks:
            if not kill:
                rank.send(None)
        wrong = []
        for rank in self.ranks:
            dead = rank.status is not None
            said = rank.said()
            status = rank.end(kill)
            if status != 0 and not kill and not dead:
                wrong.append(f"rank {rank.rank} ended with {status} when it left\n{said}")
        shutil.rmtree(self.dir, ignore_errors=True)
        return wrong

    def run(self, method, seed, limit, may_die):
        """Runs one method on all ranks; returns (failures: texts, skipped: reasons)."""
        for rank in self.ranks:
            rank.send((method, seed))
        done, gone, meeting, failures, skipped = set(), set(), {}, [], []
        deadline = time.monotonic() + limit

        def failed(text):
            nonlocal deadline
            failures.append(text)
            deadline = min(deadline, time.monotonic() + GRACE)

        def dead(rank):
            gone.add(rank.rank)
            rank.reap()
            if rank.rank not in may_die:
                failed(f"rank {rank.rank} ended with status {rank.status}\n{rank.said()}")

        while len(done | gone) < self.size:
            waiting = [r for r in self.ranks if r.rank not in done | gone]
            if len(meeting) == len(waiting):
                for rank in waiting:
                    rank.send([meeting.get(r) for r in range(self.size)])
                meeting = {}
            ready = multiprocessing.connection.wait([r.connection for r in waiting] + [r.handle for r in waiting],
                                                    max(0, deadline - time.monotonic()))
            if not ready:
                failures.extend(self._stacks(waiting))
                break
            for rank in waiting:
                if rank.connection in ready:
                    try:
                        kind, value = rank.connection.recv()
                    except (EOFError, ConnectionError):
                        dead(rank)
                        continue
                    if kind == "meet":
                        meeting[rank.rank] = value
                        continue
                    done.add(rank.rank)
                    for text in value:
                        (skipped.append if kind == "skip" else failed)(text if kind == "skip" else
                                                                        f"rank {rank.rank}:\n{text}\n{rank.said()}")
                elif rank.handle in ready:
                    dead(rank)
        return failures, skipped

    @staticmethod
    def _stacks(waiting):
        """What ranks that did not end are doing."""
        for rank in waiting:
            os.kill(rank.pid, signal.SIGUSR1)
        time.sleep(0.3 * SLOW)  # for the text only: nothing depends on it
        return [f"rank {rank.rank} did not end; its stacks:\n{rank.said()}" for rank in waiting]


class _Place:
    """The rank's side: who this process is."""
    connection = None
    rank = size = seed = None
    dir = None


def _be_a_rank(cls, rank, size, address, connection, output, folder):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no rank outlives the program
    for name in NOT_INHERITED:
        os.environ.pop(name, None)
    os.environ.update(cls.ENV, WEFT_RANK=str(rank), WEFT_WORLD_SIZE=str(size), WEFT_ADDRESS=address)
    if not os.environ.get("WEFT_TEST_VERBOSE"):
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)
    sys.stderr = open(2, "w", buffering=1, closefd=False)
    faulthandler.enable(sys.stderr)
    faulthandler.register(signal.SIGUSR1, sys.stderr)
    _Place.connection, _Place.rank, _Place.size = connection, rank, size
    wrong = None
    try:
        if cls.INIT:
            import weft
            weft.init()
        cls.set_up_ranks()
    except BaseException:
        wrong = "before the first method:\n" + traceback.format_exc()
    number = 0
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            break
        if message is None:
            break
        method, _Place.seed = message
        _Place.dir = pathlib.Path(folder) / str(number)
        number += 1
        _Place.dir.mkdir(exist_ok=True)
        if wrong:
            connection.send(("failed", [wrong]))
            continue
        result = unittest.TestResult()
        cls(method).run(result)
        failures = [text for _, text in result.failures + result.errors]
        failures += ["this was expected to fail" for _ in result.unexpectedSuccesses]
        if failures or not result.skipped:
            connection.send(("failed" if failures else "ok", failures))
        else:
            connection.send(("skip", [reason for _, reason in result.skipped]))
    # As an interpreter that ends: weft leaves its world.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return 0


class RankCase(unittest.TestCase):
    """A class whose methods run on RANKS processes at once; see the head of this file."""
    RANKS = 2
    ENV = {}
    INIT = True
    TIMEOUT = 600

    _worlds = {}

    # --- on ranks ---
    @property
    def rank(self):
        return _Place.rank

    @property
    def size(self):
        return _Place.size

    @property
    def dir(self):
        return _Place.dir

    @classmethod
    def set_up_ranks(cls):
        """Called once in every process, after weft.init."""

    def random(self):
        """A generator with the same numbers on all ranks, others at each run."""
        print(f"seed {_Place.seed} (WEFT_TEST_SEED={_Place.seed} repeats it)")
        return need("numpy").random.default_rng(_Place.seed)

    @contextlib.contextmanager
    def within(self, seconds=1.0):
        """What is inside takes so long on an idle machine; fails when it takes PATIENCE times as long."""
        begin = time.monotonic()
        yield
        took = time.monotonic() - begin
        self.assertLess(took, seconds * SLOW * PATIENCE, f"took {took:.2f} s")

    @contextlib.contextmanager
    def raises_within(self, error, pattern="", seconds=1.0):
        """What is inside raises error, with a text that pattern matches, within so many seconds."""
        with self.within(seconds), self.assertRaisesRegex(error, pattern) as raised:
            yield raised

    def call_with_handler(self, number, handle, call):
        """Returns call(). Calls handle() for each signal of that number which comes while call runs; others are
        ignored, so that the sender may repeat them (signalling): nobody has to guess when call has begun."""
        def inside():
            return call()

        def handler(_, frame):
            while frame is not None and frame.f_code is not inside.__code__:
                frame = frame.f_back
            if frame is not None:
                handle()

        signal.signal(number, handler)
        return inside()

    @contextlib.contextmanager
    def signalling(self, pid, number):
        """Sends the signal to a process ten times a second until the end of the block."""
        over = threading.Event()

        def send():
            while not over.wait(0.1):
                os.kill(pid, number)

        thread = threading.Thread(target=send)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def exchange(self, value=None):
        """Every rank's value, in a list; None for ranks that have died or whose method has ended. Not by Weft."""
        _Place.connection.send(("meet", value))
        return _Place.connection.recv()

    def meet(self):
        """Returns when all ranks that are still in the method have called it. Not by Weft."""
        self.exchange()

    def die(self, number=signal.SIGKILL):
        """Ends this process by a signal."""
        sys.stdout.flush()
        os.kill(os.getpid(), number)
        signal.pause()

    # --- in the program ---
    def run(self, result=None):
        if _Place.connection is not None:
            return super().run(result)
        method = getattr(self, self._testMethodName)
        result.startTest(self)
        try:
            if getattr(type(self), "__unittest_skip__", False) or getattr(method, "__unittest_skip__", False):
                result.addSkip(self, getattr(type(self), "__unittest_skip_why__", "") or
                               getattr(method, "__unittest_skip_why__", ""))
                return result
            sizes = self.RANKS if isinstance(self.RANKS, (tuple, list)) else (self.RANKS,)
            failures, skipped = [], []
            for size in sizes:
                wrong, reasons = self._run_on(size, getattr(method, "ranks_fresh", False),
                                              getattr(method, "ranks_die", ()))
                failures += [f"{size} ranks, {text}" for text in wrong]
                skipped += reasons
            if failures:
                # A failure's text is what its exception says.
                error = self.failureException("\n\n".join(failures))
                result.addFailure(self, (self.failureException, error, None))
            elif skipped:
                result.addSkip(self, skipped[0])
            else:
                result.addSuccess(self)
        finally:
            result.stopTest(self)
        return result

    def _run_on(self, size, alone, may_die):
        cls = type(self)
        seed = int(os.environ.get("WEFT_TEST_SEED") or random.SystemRandom().randrange(1 << 31))
        world = None if alone else cls._worlds.get((cls, size))
        if world is None:
            world = _World(cls, size)
            if not alone:
                cls._worlds[cls, size] = world
                cls.addClassCleanup(cls._close_worlds)
        failures, skipped = world.run(self._testMethodName, seed, self.TIMEOUT * SLOW, may_die)
        if alone or failures:
            if not alone:
                del cls._worlds[cls, size]
            wrong = world.close(kill=bool(failures))
            failures = failures or wrong
        return failures, skipped

    @classmethod
    def _close_worlds(cls):
        for key in [key for key in cls._worlds if key[0] is cls]:
            wrong = cls._worlds.pop(key).close()
            if wrong:
                raise AssertionError("\n".join(wrong))


class TorchRankCase(RankCase):
    """A RankCase whose ranks are those of a process group of torch."""

    @classmethod
    def set_up_ranks(cls):
        import datetime
        import torch.distributed as dist
        dist.init_process_group("weft", init_method="weft://", timeout=datetime.timedelta(seconds=300))
