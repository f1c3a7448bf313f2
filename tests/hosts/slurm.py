# SPDX-License-Identifier: Apache-2.0
"""A Slurm cluster of our own on hosts of namespaces.py: munged, slurmctld on the last host, slurmd on each of the others.

Nothing of the machine's own Slurm is used or changed: key, socket, state, spool and logs are in a directory of the cluster.
Each node has a configuration of its own, equal but for the folder of the PMIx plugin, whose name carries no name of a node.
"""
import os
import shutil
import signal
import subprocess
import time

import namespaces

PROGRAMS = {"slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client", "munged": "munge"}
CONF = """ClusterName=weft
SlurmctldHost={control}({address})
SlurmctldPort=17000
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={dir}/munge/socket
CredType=cred/munge
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool-%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd-%n.pid
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/slurmd-%n.log
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog={dir}/prolog
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1
ReturnToService=2
SlurmdTimeout={patience}
MessageTimeout=60
KillWait=5
JobRequeue=1
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not():
    """None, or the reason why there can be no cluster here."""
    missing = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    return namespaces.why_not() or (f"packages are missing: {' '.join(missing)}" if missing else None)


class Cluster:
    def __init__(self, hosts, patience=6):
        """patience: seconds after which a node that does not answer is down."""
        self.hosts, self.control, self.nodes = hosts, hosts.names[-1], hosts.names[:-1]
        self.dir = hosts.dir / "slurm"
        self.conf = self.dir / "slurm.conf"
        self.daemons = {}
        (self.dir / "munge").mkdir(parents=True)
        (self.dir / "state").mkdir()
        prolog = self.dir / "prolog"  # srun gives tasks the identity of its own host
        prolog.write_text('#!/bin/sh\necho "export WEFT_HOST_ID=$SLURMD_NODENAME"\n')
        prolog.chmod(0o755)
        for folder in (hosts.dir, self.dir, self.dir / "munge"):
            folder.chmod(0o755)
        nodes = [f"NodeName={name} NodeAddr={hosts.address(name)} Port={17001 + i} CPUs=2 State=UNKNOWN"
                 for i, name in enumerate(self.nodes)]
        self.conf.write_text(CONF.format(control=self.control, address=hosts.address(self.control), dir=self.dir,
                                         nodes="\n".join(nodes), patience=patience))
        key = self.dir / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        try:
            self.start_all()
        except BaseException:
            self.close()
            raise

    def start_all(self):
        munge = self.dir / "munge"
        self.start("munged", ["munged", "--foreground", "--force", f"--socket={munge}/socket", f"--key-file={munge}/key",
                              f"--log-file={munge}/log", f"--pid-file={munge}/pid", f"--seed-file={munge}/seed"])
        self.wait_for(lambda: (munge / "socket").exists())
        self.start(self.control, self.on(self.control, "slurmctld", "-D", "-f", self.conf))
        for name in self.nodes:
            self.start_node(name)
        self.wait_until_idle()

    def wait_until_idle(self):
        self.wait_for(lambda: self.states() == ["idle"] * len(self.nodes))
        # The first step after a start may fail to launch.
        self.wait_for(lambda: self.run("srun", "-N", len(self.nodes), "true", check=False).returncode == 0)

    def start_node(self, name):
        own, spool = self.dir / name, self.dir / f"spool-{name}"
        for folder in (own, spool):
            shutil.rmtree(folder, ignore_errors=True)  # the plugin does not replace what a dead node has left
            folder.mkdir()
        shutil.copy(self.conf, own)
        (own / "mpi.conf").write_text(f"PMIxCliTmpDirBase={own}\n")
        self.start(name, self.on(name, "slurmd", "-D", "-f", own / self.conf.name, "-N", name))

    def start(self, name, command):
        with open(self.dir / f"{name}.out", "a", encoding="utf-8") as out:
            self.daemons[name] = subprocess.Popen(list(map(str, command)), stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    def on(self, name, *args):
        """args as a command on that host, which keeps the machine's /sys: slurmd looks for cgroups there."""
        return ["nsenter", f"--net=/run/netns/{self.hosts.space(name)}", "unshare", "--uts", "sh", "-c",
                'hostname "$0" && exec "$@"', name, "env", f"WEFT_HOST_ID={name}", f"SLURM_CONF={self.conf}",
                *map(str, args)]

    def run(self, *args, check=True, **kwargs):
        """A command of a user of the cluster."""
        return namespaces.run(*self.on(self.control, *args), check=check, **kwargs)

    def node_dies(self, name):
        """All at once: its processes, and its cable."""
        self.hosts.cut(name)
        for pid in namespaces.processes(self.hosts.space(name)):
            os.kill(pid, signal.SIGKILL)
        self.daemons.pop(name).wait()

    def node_returns(self, name):
        self.hosts.mend(name)
        self.start_node(name)
        self.wait_until_idle()

    def states(self):
        done = self.run("sinfo", "-h", "-N", "-o", "%t", check=False)
        return done.stdout.split()

    @staticmethod
    def wait_for(condition, seconds=300):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise RuntimeError("the cluster is not ready")
            time.sleep(0.1)

    def close(self):
        for daemon in self.daemons.values():
            daemon.terminate()
        for daemon in self.daemons.values():
            daemon.wait()
