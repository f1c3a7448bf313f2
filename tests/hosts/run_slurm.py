#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training under a real Slurm of two nodes (slurm.py), whose traffic crosses a cable: started, killed, started again."""
import json
import os
import pathlib
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import namespaces
import slurm
import support
from support import DATA, NEED_DATA, SOURCE, WEFT

WHY_NOT = slurm.why_not()
PATIENCE = 300  # seconds; guards against hangs


def name_of(pid):
    """Of the program; None: the process has ended meanwhile."""
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None


@NEED_DATA
class Slurm(support.Case):
    @classmethod
    def setUpClass(cls):
        if WHY_NOT is not None:
            raise unittest.SkipTest(WHY_NOT)
        cls.hosts = namespaces.Hosts(3).__enter__()
        cls.addClassCleanup(cls.hosts.close)
        try:
            cls.cluster = slurm.Cluster(cls.hosts)
        except RuntimeError as error:
            raise unittest.SkipTest(f"Slurm does not start here: {error}") from None
        cls.addClassCleanup(cls.cluster.close)

    def setUp(self):
        super().setUp()
        self.plan = self.compile(world=2, batch=16)
        self.file = self.dir / "state.safetensors"
        self.env = {**os.environ, "PATH": f"{pathlib.Path(WEFT).parent}:{os.environ['PATH']}"}

    def run_on(self, *args, check=True):
        done = self.cluster.run(*args, check=False, env=self.env, cwd=self.dir, timeout=2 * PATIENCE)
        self.assertFalse(check and done.returncode != 0, f"{args}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return done

    def check(self, report, steps, first=0):
        self.assertEqual((report["first_step"], report["steps"]), (first, steps - first))
        self.assertEqual(report["param_digest"], self.train(self.plan, steps=steps)["param_digest"])
        self.assertEqual([host["name"] for host in report["hosts"]], ["h0", "h1"])
        self.assertIn("tcp", report["transports"])

    def wait_for_step(self, step):
        end = time.monotonic() + PATIENCE
        while not self.file.exists() or self.step() < step:
            self.assertLess(time.monotonic(), end, self.log())
            time.sleep(0.05)

    def step(self):
        with open(self.file, "rb") as file:
            head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        return int(head["__metadata__"]["weft.step"])

    def submit(self, *args, options=()):
        """samples/launch/slurm.sh as a job; its number. One rank per node."""
        done = self.run_on("sbatch", "--parsable", "--ntasks-per-node=1", "--cpus-per-task=1", "--output=job.log",
                           "--open-mode=append", *options, SOURCE / "samples" / "launch" / "slurm.sh", self.plan, DATA,
                           "--no-eval", "--json", *args)
        return done.stdout.strip()

    def log(self):
        log = self.dir / "job.log"
        return log.read_text() if log.exists() else ""

    def state(self, job):
        return self.run_on("squeue", "-h", "-o", "%T", "-j", job, check=False).stdout.strip()

    def wait_for_end(self, job):
        end = time.monotonic() + PATIENCE
        while self.state(job) not in ("", "COMPLETED", "FAILED", "CANCELLED"):
            self.assertLess(time.monotonic(), end, self.log())
            time.sleep(0.1)

    def ranks(self):
        return [pid for name in self.cluster.nodes for pid in namespaces.processes(self.hosts.space(name))
                if name_of(pid) == "weft"]

    def test_srun(self):
        for way in "pmix", "pmi2":
            with self.subTest(way):
                done = self.run_on("srun", f"--mpi={way}", "-N2", "-n2", WEFT, "run", self.plan, "--data", DATA,
                                   "--steps", 3, "--no-eval", "--json")
                self.check(json.loads(done.stdout), 3)

    def test_hosts_of_an_allocation(self):
        """`weft run --hosts` becomes srun there."""
        args = "--data", DATA, "--steps", 3, "--no-eval", "--json"
        done = self.run_on("salloc", "-N2", "-n4", WEFT, "run", "--hosts", "h0,h1", self.plan, *args)
        self.check(json.loads(done.stdout), 3)
        plan = self.compile(name="p3.weft", world=3, batch=16)
        done = self.run_on("salloc", "-N2", "-n4", WEFT, "run", "--hosts", "h0:2,h1", "--round-robin", plan, *args)
        report = json.loads(done.stdout)
        self.assertEqual(report["param_digest"], self.train(plan, world=3, steps=3)["param_digest"])
        self.assertEqual([host["ranks"] for host in report["hosts"]], [[0, 2], [1]])

    def test_a_batch_job(self):
        self.wait_for_end(self.submit("--steps", 3))
        self.check(json.loads(self.log()), 3)

    def test_a_cancelled_job_leaves_nobody(self):
        job = self.submit("--steps", 1000000, "--checkpoint", self.file, "--checkpoint-every", 1)
        self.wait_for_step(3)
        self.assertEqual(len(self.ranks()), 2)
        self.run_on("scancel", job)
        self.wait_for_end(job)
        slurm.Cluster.wait_for(lambda: not self.ranks(), PATIENCE)

    def test_a_killed_task_is_named(self):
        job = self.submit("--steps", 1000000, "--checkpoint", self.file, "--checkpoint-every", 1)
        self.wait_for_step(3)
        on_h1 = [pid for pid in self.ranks() if pid in namespaces.processes(self.hosts.space("h1"))]
        self.assertEqual(len(on_h1), 1)
        os.kill(on_h1[0], 9)
        self.wait_for_end(job)
        self.assertRegex(self.log(), r"rank 1 \(host h1\) died|h1: task 1: Killed")  # srun may end before it shows all
        slurm.Cluster.wait_for(lambda: not self.ranks(), PATIENCE)

    def test_a_job_goes_on_when_its_node_has_returned(self):
        job = self.submit("--steps", 1000000, "--checkpoint", self.file, "--checkpoint-every", 1, "--resume", "auto",
                          options=["--requeue"])
        self.wait_for_step(3)
        self.cluster.node_dies("h1")
        slurm.Cluster.wait_for(lambda: self.state(job) == "PENDING", PATIENCE)
        before = self.step()
        self.cluster.node_returns("h1")
        self.run_on("scontrol", "update", f"JobId={job}", "StartTime=now+10")  # Slurm waits two minutes
        self.wait_for_step(before + 3)
        self.run_on("scancel", job)
        self.wait_for_end(job)
        done = self.step()
        report = json.loads(self.run_on("srun", "--mpi=pmix", "-N2", "-n2", WEFT, "run", self.plan, "--data", DATA, "--steps",
                                        done + 2, "--no-eval", "--json", "--checkpoint", self.file, "--resume", "auto").stdout)
        self.check(report, done + 2, first=done)


if __name__ == "__main__":
    support.main()
