#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks started by launchers: Open MPI (PMIx), MPICH's hydra (PMI-1), torchrun, by hand."""
import os
import re
import shutil
import subprocess
import unittest

from support import BINARY, Case, WEFT, free_port, main

LAUNCHED = BINARY / "tests" / "launched"
OURS = re.compile(r"^(WEFT|PMIX?|OMPI|MPI|SLURM|TORCHELASTIC)_|^(RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)$")
LINE = re.compile(r"turn (\d+): rank (\d+) of (\d+) by ([a-z0-9-]+), next by (\w+), hosts (\d+): OK")


def environment(**more):
    clean = {name: value for name, value in os.environ.items()
             if not OURS.match(name) or name in ("WEFT_TOOL", "WEFT_SOURCE_DIR", "WEFT_BINARY_DIR")}
    return {**clean, "WEFT_CONNECT_TIMEOUT": "30", "ASAN_OPTIONS": "detect_leaks=0", **more}


def launcher(name):
    return unittest.skipUnless(shutil.which(name), f"{name} is not installed")


def have_torch():
    return shutil.which("torchrun") and subprocess.run(
        ["/usr/bin/python3", "-c", "import torch"], capture_output=True).returncode == 0


class Launchers(Case):
    def joined(self, output, ranks, by, worlds=1):
        """Each rank of each world, once, and nobody else."""
        found = sorted((int(turn), int(rank), int(size), name)
                       for turn, rank, size, name, _, _ in LINE.findall(output))
        expected = [(turn, rank, ranks, by) for turn in range(worlds) for rank in range(ranks)]
        self.assertEqual(found, expected, output)

    def run_one(self, *command, env=None, timeout=600):
        return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=timeout,
                              env=env or environment(), cwd=self.dir)

    def run_by_hand(self, environments, *args):
        """A process per environment, all at once; returns exit codes and what all of them said."""
        running = [subprocess.Popen([str(LAUNCHED), *args], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                    text=True, cwd=self.dir) for env in environments]
        said = [process.communicate(timeout=600)[0] for process in running]
        return [process.returncode for process in running], said

    MPIRUN = ["mpirun.openmpi", "--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]

    @launcher("mpirun.openmpi")
    def test_open_mpi(self):
        done = self.run_one(*self.MPIRUN, "-np", 4, LAUNCHED, 2)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.joined(done.stdout, 4, "pmix", 2)

    @launcher("mpirun.openmpi")
    def test_open_mpi_names_who_does_not_come(self):
        done = self.run_one(*self.MPIRUN, "-np", 3, LAUNCHED, "--leave-out", 2,
                            env=environment(WEFT_CONNECT_TIMEOUT="2"))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("missing ranks: 2", done.stdout + done.stderr)

    @launcher("mpiexec.hydra")
    def test_hydra(self):
        done = self.run_one("mpiexec.hydra", "-n", 4, LAUNCHED, 3)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.joined(done.stdout, 4, "pmi-1", 3)

    @launcher("mpiexec.hydra")
    def test_hydra_names_who_does_not_come(self):
        done = self.run_one("mpiexec.hydra", "-n", 3, LAUNCHED, "--leave-out", 1,
                            env=environment(WEFT_CONNECT_TIMEOUT="2"))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("missing ranks: 1", done.stdout + done.stderr)

    @unittest.skipUnless(have_torch(), "torch is not installed")
    def test_torchrun(self):
        script = self.dir / "start.py"
        script.write_text("import subprocess, sys\nsys.exit(subprocess.call(sys.argv[1:]))\n")
        for port in (free_port(), None):
            # With a static port torch's agent listens there; with its own rendezvous the port is free until
            # somebody makes a process group.
            meet = ["--master_port", port] if port else ["--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0",
                                                         "--rdzv_id", "one"]
            done = self.run_one("torchrun", "--nnodes", 1, "--nproc_per_node", 2, *meet, "-r", "0:1,1:1", "-t",
                                "0:1,1:1", script, LAUNCHED, 2)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.joined(done.stdout, 2, "torchrun", 2)

    def test_by_hand(self):
        for address in (f"127.0.0.1:{free_port()}", f"file://{self.dir}/meet"):
            codes, said = self.run_by_hand([environment(WEFT_RANK=str(rank), WEFT_WORLD_SIZE="4", WEFT_ADDRESS=address)
                                            for rank in range(4)], "2")
            self.assertEqual(codes, [0] * 4, said)
            self.joined("".join(said), 4, "environment", 2)
        self.assertFalse((self.dir / "meet").exists())

    def test_hosts_by_hand(self):
        """Two hosts of two ranks, by their ids: another way between them than inside."""
        address = f"localhost:{free_port()}"
        codes, said = self.run_by_hand([environment(WEFT_RANK=str(rank), WEFT_WORLD_SIZE="4", WEFT_ADDRESS=address,
                                                    WEFT_HOST_ID=str(rank // 2), WEFT_TRANSPORT="shm,tcp")
                                        for rank in range(4)])
        self.assertEqual(codes, [0] * 4, said)
        self.joined("".join(said), 4, "environment")
        ways = {int(rank): (way, hosts) for _, rank, _, _, way, hosts in LINE.findall("".join(said))}
        self.assertEqual(ways, {0: ("shm", "2"), 1: ("tcp", "2"), 2: ("shm", "2"), 3: ("tcp", "2")})

    def test_plain_variables(self):
        port = str(free_port())
        codes, said = self.run_by_hand([environment(RANK=str(rank), WORLD_SIZE="3", MASTER_ADDR="127.0.0.1",
                                                    MASTER_PORT=port) for rank in range(3)], "2")
        self.assertEqual(codes, [0] * 3, said)
        self.joined("".join(said), 3, "plain", 2)

    def test_pods_of_a_pytorchjob(self):
        """Kubeflow's operator sets variables of torch, and for torchrun those that begin with PET_."""
        port = str(free_port())
        pods = [environment(RANK=str(rank), WORLD_SIZE="3", MASTER_ADDR="localhost", MASTER_PORT=port, PYTHONUNBUFFERED="1",
                            PET_MASTER_ADDR="localhost", PET_MASTER_PORT=port, PET_NNODES="3", PET_NODE_RANK=str(rank),
                            PET_NPROC_PER_NODE="1") for rank in range(3)]
        codes, said = self.run_by_hand(pods, "2")
        self.assertEqual(codes, [0] * 3, said)
        self.joined("".join(said), 3, "plain", 2)

    def launcher_pod(self, lines, **variables):
        """The launcher of the MPI Operator: a file of hosts, and variables by which mpirun or mpiexec finds it."""
        hosts = self.dir / "hostfile"
        hosts.write_text(lines)
        rsh = self.dir / "rsh"
        rsh.write_text('#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do case $1 in -o) shift 2 ;; *) shift ;; esac; done\n'
                       'shift\nexec sh -c "$*"\n')
        rsh.chmod(0o755)
        return hosts, rsh, environment(K_MPI_JOB_ROLE="launcher", **{
            name: value.format(hosts=hosts, rsh=rsh) for name, value in variables.items()})

    OF_OPEN_MPI = {"OMPI_MCA_orte_default_hostfile": "{hosts}", "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
                   "OMPI_MCA_orte_set_default_slots": "2", "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
                   "OMPI_MCA_plm_rsh_agent": "{rsh}"}

    @launcher("mpirun.openmpi")
    def test_mpi_operator_with_open_mpi(self):
        _, _, env = self.launcher_pod("localhost slots=3\n", **self.OF_OPEN_MPI)
        done = self.run_one("mpirun.openmpi", *self.MPIRUN[2:], LAUNCHED, 2, env=env)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.joined(done.stdout, 3, "pmix", 2)

    @launcher("mpirun.openmpi")
    def test_hosts_of_the_mpi_operator(self):
        """The file is one that --hosts reads."""
        for lines, engine, by in (("localhost slots=2\n", "mpirun.openmpi", "pmix"), ("localhost:2\n", "mpiexec.hydra", "pmi-1")):
            if shutil.which(engine) is None:
                continue
            hosts, _, env = self.launcher_pod(lines, **self.OF_OPEN_MPI)
            done = self.run_one(WEFT, "run", "--engine", engine, "--hosts", hosts, "--", LAUNCHED, env=env)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.joined(done.stdout, 2, by)

    @launcher("mpiexec.hydra")
    def test_mpi_operator_with_hydra(self):
        """MPICH, and Intel MPI, which is hydra as well."""
        _, _, env = self.launcher_pod("localhost:3\n", HYDRA_HOST_FILE="{hosts}", HYDRA_LAUNCH_EXTRA_ARGS="-o ConnectionAttempts=10",
                                      I_MPI_HYDRA_HOST_FILE="{hosts}", I_MPI_PERHOST="3")
        done = self.run_one("mpiexec.hydra", "-n", 3, LAUNCHED, 2, env=env)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.joined(done.stdout, 3, "pmi-1", 2)

    def test_group(self):
        name = f"test-{os.getpid()}"
        codes, said = self.run_by_hand([environment(WEFT_RANK=str(rank), WEFT_WORLD_SIZE="3", WEFT_GROUP=name)
                                        for rank in range(3)])
        self.assertEqual(codes, [0] * 3, said)
        self.joined("".join(said), 3, "group")

    def test_alone(self):
        done = self.run_one(LAUNCHED)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.joined(done.stdout, 1, "alone")

    def test_wrong_secret(self):
        address = f"127.0.0.1:{free_port()}"
        codes, said = self.run_by_hand([environment(WEFT_RANK=str(rank), WEFT_WORLD_SIZE="3", WEFT_ADDRESS=address,
                                                    WEFT_CONNECT_TIMEOUT="2",
                                                    WEFT_SECRET="the secret of one" if rank == 1 else "of the others too")
                                        for rank in range(3)])
        self.assertEqual(codes, [3] * 3, said)
        self.assertIn("rank 1 and rank 0 have different secrets", said[1])
        for rank in (0, 2):
            self.assertIn("missing ranks: 1", said[rank])
            self.assertIn("does not know the secret", said[rank])

    def test_no_secret(self):
        done = self.run_one(LAUNCHED, env=environment(WEFT_RANK="0", WEFT_WORLD_SIZE="2", WEFT_ADDRESS="192.0.2.1:700"))
        self.assertEqual(done.returncode, 3)
        self.assertIn("set the same WEFT_SECRET or WEFT_SECRET_FILE", done.stderr)

    def test_info_says_which(self):
        info = self.weft_json("info", env=None)
        self.assertEqual(info["launcher"]["name"], "alone")
        info = self.weft_json("info", env={"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a.b", "MASTER_PORT": "77"})
        self.assertEqual(info["launcher"], {"name": "plain", "rank": 1, "world_size": 4, "address": "a.b:77"})
        text = self.weft("info", env={"WEFT_RANK": "0"}).stdout
        self.assertRegex(text, r"launcher +the rank \(WEFT_RANK\) is set, but the world size")


if __name__ == "__main__":
    main()
