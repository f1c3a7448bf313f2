#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`weft run --elastic`: ranks are killed while they train; the others go on after the last step that was whole, with the
bits of a run that began there on their number of ranks. So do the processes that take the places of the dead."""
import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import time
import unittest

import door_models
import support
from cli_checkpoint import read_safetensors, step_of
from cli_failures import children
from support import Case, DATA, MODELS, NEED_DATA, SANITIZED, WEFT

MODES = {"plain": (), "sharded": ("--shard-optimizer",), "parameters": ("--shard-parameters",), "decoupled": ("--decouple",)}
RSH = """#!/bin/sh
WEFT_HOST_ID=$1 exec sh -c "$2"
"""


def state_of(pid):
    """T: stopped, Z: ended, or nobody has such a process any more."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(") ", 1)[1][0]
    return "Z"


def sockets_of(pid):
    """How many it has open."""
    with contextlib.suppress(FileNotFoundError):  # descriptors that are closed meanwhile
        return sum(os.readlink(entry.path).startswith("socket:") for entry in os.scandir(f"/proc/{pid}/fd"))
    return 0


def ranks_of(pid):
    """Processes of ranks: leaves of the tree of the launcher."""
    below = children(pid)
    return [rank for child in below for rank in ranks_of(child)] if below else [pid]


def clean_environment():
    """Without what would say to ranks that something else has started them."""
    return {name: value for name, value in os.environ.items()
            if not re.match(r"(PMIX?|OMPI|SLURM|TORCHELASTIC)_|RANK$|WORLD_SIZE$|MASTER_", name)}


HAVE_TORCHRUN = shutil.which("torchrun") and subprocess.run(["torchrun", "--help"], capture_output=True).returncode == 0


@NEED_DATA
class Elastic(Case):
    @classmethod
    def setUpClass(cls):
        cls.seed = int(os.environ.get("WEFT_TEST_SEED", random.randrange(1 << 32)))
        print("WEFT_TEST_SEED", cls.seed, flush=True)
        cls.random = random.Random(cls.seed)

    def setUp(self):
        super().setUp()
        self.file = self.dir / "watched.safetensors"
        self.model = MODELS / "mlp.onnx"

    def start(self, *args, steps=60, data=DATA, env=None, keep=False, evaluate=False, model=None):
        """A run that writes a checkpoint after each step, by which the test sees how far it is. Nothing takes the place of the
        dead unless args have --restarts."""
        if "--elastic" in args and "--restarts" not in args:
            args += "--restarts", 0
        if not keep:
            self.file.unlink(missing_ok=True)
        more = (() if steps is None else ("--steps", steps)) + (() if evaluate else ("--no-eval",))
        return subprocess.Popen([WEFT, *map(str, ("run", model or self.model, "--data", data, "--json",
                                                  "--checkpoint", self.file, "--checkpoint-every", 1, *more, *args))], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.dir, env={**os.environ, **(env or {})})

    def wait_for_step(self, run, step):
        ended = False
        while not ended:
            ended = run.poll() is not None
            if self.file.exists() and step_of(self.file) >= step:
                return
            time.sleep(0.001)
        self.fail(f"the run has ended: {run.communicate()}")

    def kill_after_step(self, run, victim, step):
        """As soon as the checkpoint of the step is there: the rank is stopped nearly all of the time until then. False: it ended
        first, where this process did not get a processor for long."""
        rank = ranks_of(run.pid)[victim]
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.kill(rank, signal.SIGSTOP)
                while (state := state_of(rank)) not in "TZ":
                    pass
                if state == "Z":
                    return False
                if self.file.exists() and step_of(self.file) >= step:
                    os.kill(rank, signal.SIGKILL)
                    return True
                os.kill(rank, signal.SIGCONT)
                time.sleep(0.002)
        return False

    def await_line(self, run, pattern):
        """The next line of standard error that matches; other lines may come before it."""
        while not re.search(pattern, line := run.stderr.readline()):
            self.assertNotEqual(line, "", f"the run has ended without {pattern}")
        return line

    def kill(self, run, *victims):
        ranks = ranks_of(run.pid)
        for victim in victims:
            os.kill(ranks[victim], signal.SIGKILL)

    def end(self, run, code=0):
        """Its report and what it said."""
        out, err = run.communicate(timeout=support.PROMPT)
        self.assertEqual(run.returncode, code, err)
        return json.loads(out) if out else None, err

    def oracle(self, report, world, options, total, data=DATA):
        """The digest of runs without a death: N ranks up to the step, then those that were left."""
        state, at, count = None, 0, world
        for recovery in report["recoveries"]:
            if recovery["step"] > at:
                state = self.run_until(state, recovery["step"], count, options, data)
            at, count = recovery["step"], recovery["world"]
        return self.run_until(state, total, count, options, data, digest=True)

    def run_until(self, state, steps, world, options, data, digest=False):
        path = self.dir / f"oracle-{steps}.safetensors"
        resume = () if state is None else ("--resume", state)
        done = self.weft("run", self.model, "-n", world, "--data", data, "--no-eval", "--json", "--steps", steps,
                         "--checkpoint", path, *resume, *options)
        return json.loads(done.stdout)["param_digest"] if digest else path

    def check(self, world, low, deaths, *options, args=(), total=24, **kwargs):
        """deaths: lists of ranks, of those that are left, which are killed together. Returns the report."""
        run = self.start("--elastic", f"{low}:{world}", *options, *args, steps=total, **kwargs)
        step = 0
        for victims in deaths:
            step += self.random.randrange(1, 8)
            self.wait_for_step(run, step)
            self.kill(run, *victims)
            if victims is not deaths[-1]:
                self.await_line(run, "continue")  # until the others have gone on
        report, err = self.end(run)
        self.assertEqual(sum(r["dead_count"] for r in report["recoveries"]), sum(map(len, deaths)), report["recoveries"])
        if "--restarts" in args:
            self.assertEqual(sum(r["joined_count"] for r in report["recoveries"]), report["world"] - world + sum(map(len, deaths)))
        self.assertEqual(report["param_digest"], self.oracle(report, world, options, total), (report["recoveries"], err))
        return report

    def test_any_rank_may_die_at_any_step(self):
        for mode in ("plain",) if SANITIZED else MODES:
            with self.subTest(mode):
                world = self.random.choice((2, 3, 4))
                optimizer = self.random.choice(("momentum", "adam", "adamw"))
                report = self.check(world, 1, [[self.random.randrange(world)]], "--batch", 16, "--optimizer", optimizer,
                                    *MODES[mode])
                self.assertEqual((report["world"], report["steps"]), (world - 1, 24))
                self.assertEqual(report["snapshot"]["sent_bytes"] > 0, mode in ("sharded", "parameters", "decoupled") and
                                 world > 2)

    def test_a_fixed_global_batch_gives_the_bits_of_any_number_of_ranks(self):
        """Four micro-batches on four ranks, then on two: the digest is that of one rank that is never disturbed."""
        options = ("--batch", 16, "--global-micro-batches", 4, "--shard-optimizer")
        report = self.check(4, 1, [[self.random.choice((1, 3))]], *options)
        self.assertEqual(report["world"], 2)  # three do not divide four: one has left
        whole = self.weft_json("run", self.model, "-n", 1, "--data", DATA, "--no-eval", "--steps", 24, "--batch", 16,
                               "--global-micro-batches", 4)
        self.assertEqual(report["param_digest"], whole["param_digest"])

    def test_one_after_the_other_and_two_at_once(self):
        report = self.check(4, 1, [[2], [self.random.randrange(3)]], "--batch", 8, "--shard-optimizer")
        self.assertEqual(report["world"], 2)
        if SANITIZED:
            return
        report = self.check(4, 2, [[0, 2]], "--batch", 8, "--shard-optimizer")  # no neighbours
        self.assertEqual(report["world"], 2)
        report = self.check(4, 1, [[1, 2, 3]], "--batch", 8)  # nothing is sharded
        self.assertEqual(report["world"], 1)

    def test_over_hosts(self):
        rsh = self.dir / "rsh"
        rsh.write_text(RSH)
        rsh.chmod(0o755)
        args = ("--hosts", "127.0.0.2:2,127.0.0.3:2", "--rsh", rsh)
        for mode in ("sharded",) if SANITIZED else ("plain", "sharded"):
            self.check(4, 2, [[self.random.randrange(4)]], "--batch", 16, *MODES[mode], args=args)

    def test_the_data_go_on_where_they_were(self):
        """Across epochs: 167 images are 5 steps of 2 ranks with 16 each, and 10 of one."""
        data = self.dir / "data"
        door_models.write_data(data, 167)
        run = self.start("--elastic", "1:2", "--batch", 16, "--epochs", 4, steps=None, data=data)
        self.wait_for_step(run, self.random.randrange(1, 14))
        self.kill(run, 1)
        report, _ = self.end(run)
        step = report["recoveries"][0]["step"]
        epoch, sample = divmod(step, 5)
        left = (167 - 32 * sample) // 16
        self.assertEqual(report["steps"], step + left + (4 - epoch - 1) * 10)
        metadata = read_safetensors(self.file)[1]
        self.assertEqual((metadata["weft.epoch"], metadata["weft.sample"]), ("4", "0"))
        options = ("--batch", 16)
        self.assertEqual(report["param_digest"], self.oracle(report, 2, options, report["steps"], data=data))

    def restart(self, world, env, *args):
        """Starts the ranks of a job as torchrun starts its workers: by variables, and again with --resume auto."""
        variables = {"WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": support.free_port(),
                     "LOCAL_WORLD_SIZE": world, **env}
        return [self.start(*args, env={**{k: str(v) for k, v in variables.items()}, "RANK": str(r), "LOCAL_RANK": str(r)},
                           keep=True) for r in range(world)]

    def test_a_restart_on_other_ranks(self):
        """torchrun elastic, Slurm's requeue: all ranks are started again, in another number."""
        options = ("--batch", 16, "--shard-optimizer", "--optimizer", "adam")
        elastic = {"TORCHELASTIC_RUN_ID": "test", "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 3}
        runs = self.restart(3, elastic, *options, "--resume", "auto")
        self.wait_for_step(runs[0], self.random.randrange(1, 20))
        runs[1].kill()
        for run in runs:
            run.communicate(timeout=support.PROMPT)
            self.assertNotEqual(run.returncode, 0)
        step = step_of(self.file)
        runs = self.restart(2, {**elastic, "TORCHELASTIC_RESTART_COUNT": 1}, *options, "--resume", "auto")
        done = [self.end(run) for run in runs]
        report = done[0][0]
        self.assertEqual((report["first_step"], report["steps"]), (step, 60 - step))
        self.assertIn("written with a global batch of 48 (3 ranks), continues with 32 (2 ranks)", done[0][1])
        recoveries = {"recoveries": [{"step": step, "world": 2}]}
        self.assertEqual(report["param_digest"], self.oracle(recoveries, 3, options, 60))

    def torchrun(self, nodes, workers, *args, number=0):
        """torchrun on one of the nodes, called `number`: it starts workers and, when one dies, all of them again."""
        logs = ",".join(f"{worker}:1" for worker in range(workers))  # Debian's needs it
        line = ["torchrun", "--nnodes", nodes, "--nproc_per_node", workers, "--max_restarts", 3,
                "--monitor_interval", 0.1, "--rdzv_backend", "c10d", "--rdzv_endpoint", f"localhost:{self.port}", "--rdzv_id", "job",
                "--rdzv_conf", "last_call_timeout=1", "--log_dir", self.dir / f"node{number}", "-r", logs, "-t", logs, "--no_python",
                WEFT, "run", self.model, "--data", DATA, "--no-eval", "--steps", 1000000, "--checkpoint", self.file,
                "--checkpoint-every", 1, "--resume", "auto", *args]
        # Later versions of torch leave nodes that join later waiting for an address without it (samples/launch/README.md).
        env = {**clean_environment(), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        node = subprocess.Popen(list(map(str, line)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.dir, env=env)
        self.addCleanup(self.stop, node)
        return node

    @staticmethod
    def stop(node):
        """With its workers; it starts no others meanwhile."""
        if node.poll() is None:
            node.send_signal(signal.SIGSTOP)
            for pid in (*children(node.pid), node.pid):
                os.kill(pid, signal.SIGKILL)
        if not node.stdout.closed:
            node.communicate()

    def finish(self, world, *options):
        """Two more steps without torchrun: the weights are those of a run that nothing has happened to."""
        step = self.last_step() + 2
        report = self.weft_json("run", self.model, "-n", world, "--data", DATA, "--no-eval", "--steps", step, "--checkpoint",
                                self.file, "--resume", "auto", *options)
        self.assertEqual((report["first_step"], report["steps"]), (step - 2, 2))
        self.assertEqual(report["param_digest"], self.run_until(None, step, world, options, DATA, digest=True))

    def workers(self, agent):
        """Ranks in their order; starting ones may be missing."""
        found = {}
        for pid in children(agent.pid):
            try:
                lines = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if os.readlink(f"/proc/{pid}/exe") == os.path.realpath(WEFT):
                    found[next(int(line[5:]) for line in lines if line.startswith(b"RANK="))] = pid
            except (OSError, StopIteration):
                pass
        return found

    @unittest.skipIf(SANITIZED, "one case is enough under sanitizers")
    @unittest.skipUnless(HAVE_TORCHRUN, "torchrun does not run (Debian package python3-torch)")
    def test_torchrun_starts_all_again(self):
        """Each of its workers is killed once, at any time; the weights are those of a run that nothing has happened to."""
        self.port = support.free_port()
        node = self.torchrun(1, 2, "--batch", 16)
        for victim in (0, 1):
            self.wait_for_step(node, self.last_step() + self.random.randrange(2, 20))
            os.kill(self.workers(node)[victim], signal.SIGKILL)
        self.wait_for_step(node, self.last_step() + 2)  # which only those that are started again reach
        self.stop(node)
        self.finish(2, "--batch", 16)

    @unittest.skipIf(SANITIZED, "one case is enough under sanitizers")
    @unittest.skipUnless(HAVE_TORCHRUN, "torchrun does not run (Debian package python3-torch)")
    def test_torchrun_goes_on_with_fewer_nodes(self):
        """One of two nodes ends with its worker. The model is compiled for one rank, with the same global batch and bits."""
        self.port = support.free_port()
        options = ("--batch", 16, "--global-micro-batches", 2)
        node = self.torchrun("1:2", 1, *options)
        while not self.listens(self.port):  # the first one keeps what torch shares
            self.assertIsNone(node.poll())
            time.sleep(0.05)
        other = self.torchrun("1:2", 1, *options, number=1)
        self.wait_for_world(node, 2)
        self.stop(other)
        self.wait_for_world(node, 1)
        self.stop(node)
        self.finish(1, *options)

    def wait_for_world(self, node, size):
        """Until as many ranks have done a step."""
        end = time.monotonic() + support.PROMPT
        while not self.file.exists() or read_safetensors(self.file)[1]["weft.world_size"] != str(size):
            if node.poll() is not None:
                self.fail(node.communicate()[0])
            self.assertLess(time.monotonic(), end, "torchrun does not start ranks")
            time.sleep(0.01)

    @staticmethod
    def listens(port):
        with socket.socket() as probe:
            return probe.connect_ex(("localhost", port)) == 0

    def last_step(self):
        return step_of(self.file) if self.file.exists() else 0

    def test_processes_take_the_places_of_the_dead(self):
        """As many ranks as before, with the bits of an undisturbed run: MIN ranks wait for the process that takes the place."""
        for mode in ("plain",) if SANITIZED else MODES:
            with self.subTest(mode):
                world = self.random.choice((2, 3, 4))
                options = ("--batch", 16, "--optimizer", self.random.choice(("momentum", "adam", "adamw")), *MODES[mode])
                report = self.check(world, world, [[self.random.randrange(world)]], *options, args=("--restarts", 1))
                self.assertEqual((report["world"], report["first_step"], report["steps"]), (world, 0, 24))
                self.assertEqual(report["param_digest"], self.run_until(None, 24, world, options, DATA, digest=True))

    def test_ranks_join_while_the_others_go_on(self):
        """More than one step on fewer ranks, and another death after the first: the oracle knows the numbers of ranks."""
        report = self.check(3, 1, [[self.random.randrange(3)], [0]], "--batch", 16, "--shard-optimizer", args=("--restarts", 5),
                            total=200)
        self.assertGreater(report["world"], 1)

    def test_a_death_while_a_rank_joins(self):
        """The report has the rank that joined, whenever the other one dies: also before all have restored the state."""
        for delay in (0.005 * turn for turn in range(1 if SANITIZED else 3)):
            with self.subTest(delay):
                run = self.start("--elastic", "1:3", "--batch", 16, "--restarts", 5, steps=120)
                self.wait_for_step(run, 2)
                first = ranks_of(run.pid)
                os.kill(first[1], signal.SIGKILL)
                self.await_line(run, "continue")
                before = sockets_of(first[0])
                while sockets_of(first[0]) <= before and self.last_step() < 60:  # until it meets the one that joins
                    pass
                time.sleep(self.random.uniform(delay, delay + 0.005))
                os.kill(first[0], signal.SIGKILL)
                report, err = self.end(run)
                recoveries = report["recoveries"]
                self.assertEqual(sum(r["dead_count"] for r in recoveries), 2, recoveries)
                self.assertEqual(sum(r["joined_count"] for r in recoveries), report["world"] - 1, (recoveries, err))
                self.assertEqual(report["param_digest"], self.oracle(report, 3, ("--batch", 16), 120), (recoveries, err))

    @unittest.skipIf(SANITIZED, "one case is enough under sanitizers")
    def test_none_of_the_first_ranks_is_left(self):
        """One after the other: the last report is of a rank that has joined, and has the history."""
        run = self.start("--elastic", "2:2", "--batch", 16, "--restarts", 2, steps=40)
        first = None
        for victim in (0, 1):
            self.wait_for_step(run, 5 * victim + 3)
            first = first or ranks_of(run.pid)
            os.kill(first[victim], signal.SIGKILL)
            self.await_line(run, "joined")
        report, _ = self.end(run)
        self.assertEqual([(r["dead"], r["joined"], r["world"]) for r in report["recoveries"]], [("0", "2", 2), ("1", "3", 2)])
        self.assertEqual((report["first_step"], report["steps"]), (0, 40))
        self.assertEqual(report["param_digest"], self.run_until(None, 40, 2, ("--batch", 16), DATA, digest=True))

    def test_no_restart_is_left(self):
        run = self.start("--elastic", "2:2", "--batch", 16, "--restarts", 1, steps=10000)
        self.wait_for_step(run, 3)
        self.kill(run, 1)
        self.await_line(run, r"rank 1 \(pid \d+\) was killed by signal 9 \(Killed\); pid \d+ takes its place \(restart 1 of 1\)")
        self.await_line(run, "joined")
        self.kill(run, 1)
        _, err = self.end(run, code=1)
        self.assertRegex(err, "weft run: elastic: 1 rank is left, fewer than 2: rank [12] died in step")

    def test_a_death_before_the_first_step(self):
        """While ranks join, make sessions, take the first snapshot: with all bits, from the beginning."""
        whole = self.run_until(None, 60, 3, ("--batch", 16), DATA, digest=True)
        for _ in range(1 if SANITIZED else 6):
            run = self.start("--elastic", "3:3", "--batch", 16, "--restarts", 1)
            while len(children(run.pid)) < 3:
                self.assertIsNone(run.poll())
            time.sleep(self.random.random() * 0.05)  # anywhere on the way
            self.kill(run, self.random.randrange(3))
            report, err = self.end(run)
            self.assertEqual((report["world"], report["param_digest"]), (3, whole), err)

    @unittest.skipIf(SANITIZED, "one case is enough under sanitizers")
    def test_a_plan_for_a_number_that_stays(self):
        plan = self.compile(batch=16)
        run = self.start("--elastic", "2:2", "--restarts", 1, steps=30, model=plan)
        self.wait_for_step(run, 2)
        self.kill(run, 1)
        report, _ = self.end(run)
        self.assertEqual((report["world"], report["recoveries"][0]["joined"]), (2, "2"))
        self.assertEqual(report["param_digest"], self.run_until(None, 30, 2, ("--batch", 16), DATA, digest=True))

    @unittest.skipIf(SANITIZED, "one case is enough under sanitizers")
    def test_a_death_after_the_last_step(self):
        """While the test set is evaluated: nothing is trained again, and all of the set counts."""
        data = self.dir / "data"  # with 60000 images to be tested: the death comes before the end
        data.mkdir()
        for file in pathlib.Path(support.WHOLE_DATA).iterdir():
            for part in "train", "t10k":
                if file.name.startswith("train"):
                    (data / file.name.replace("train", part)).symlink_to(file)
        for _ in range(5):
            run = self.start("--elastic", "1:3", "--batch", 16, "--shard-optimizer", steps=12, evaluate=True, data=data)
            self.wait_for_step(run, 1)
            killed = self.kill_after_step(run, 0, 12)
            report, _ = self.end(run)
            if killed:
                break
        self.assertEqual([(r["step"], r["world"]) for r in report["recoveries"]], [(12, 2)])
        self.assertGreater(report["test_accuracy"], 0.2)
        self.assertEqual(report["param_digest"], self.run_until(None, 12, 3, ("--batch", 16), data, digest=True))

    def test_too_few_are_left(self):
        run = self.start("--elastic", "2:3", "--batch", 16, steps=100000)
        self.wait_for_step(run, 3)
        self.kill(run, 0, 2)
        _, err = self.end(run, code=1)
        self.assertRegex(err, r"weft run: elastic: 1 rank is left, fewer than 2: ranks 0, 2 died in step \d+")
        self.assertRegex(err, r"weft run: rank 2 \(pid \d+\) was killed by signal 9")

    def test_neighbours_with_shards(self):
        run = self.start("--elastic", "1:3", "--batch", 16, "--shard-optimizer", steps=100000)
        self.wait_for_step(run, 3)
        self.kill(run, 1, 2)
        _, err = self.end(run, code=1)
        self.assertRegex(err, "weft run: elastic: snapshot: the shards of rank 1 of 3 are lost: neither it nor rank 2 is left; "
                              "continue from a checkpoint")

    def test_the_line_and_no_plan(self):
        run = self.start("--elastic", "1:2", "--batch", 16, steps=200)
        self.wait_for_step(run, 2)
        self.kill(run, 0)
        report, err = self.end(run)
        step = report["recoveries"][0]["step"]
        self.assertRegex(err, rf"weft run: rank 0 died in step {step + 1}; 1 rank continues after step {step} "
                              r"\(recovery took \d+\.\d+ s\)")
        self.assertEqual(report["recoveries"][0]["dead"], "0")
        for args, words in ((("--elastic", "3"), "must be MIN:MAX"), (("--elastic", "3:2"), "must be MIN:MAX"),
                            (("--elastic", "2:3", "-n", 4), "--elastic 2:3 does not include 4 ranks"),
                            (("--elastic", "1:2", "--infer"), "training only"),
                            (("--restarts", 1), "--restarts requires --elastic MIN:MAX"),
                            (("--elastic", "1:2", "--restarts", 1, "--hosts", "a:2"), "not to --hosts")):
            done = self.weft("run", self.model, "--data", DATA, "--batch", 16, *args, code=2)
            self.assertIn(words, done.stderr)
        plan = self.compile()
        done = self.weft("run", plan, "--data", DATA, "--elastic", "1:2", code=2)
        self.assertIn("a plan for one number of ranks: --elastic 1:2 requires the model", done.stderr)


if __name__ == "__main__":
    support.main()
