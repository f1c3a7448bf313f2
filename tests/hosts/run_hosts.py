#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs on 2 and 4 hosts (namespaces.py) over cables of 1 Gbit/s: training, every collective, faults."""
import gzip
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import namespaces
import support
from support import Case, DATA, NEED_DATA, WEFT

RANK_CALLS = os.environ["WEFT_RANK_CALLS"]
WHY_NOT = namespaces.why_not()
MPIRUN = shutil.which("mpirun.openmpi")
# What would say to the ranks that somebody else has started them, or to hosts that they are one.
FOREIGN = ("WEFT_RANK", "WEFT_WORLD_SIZE", "WEFT_ADDRESS", "WEFT_HOST_ID", "WEFT_SECRET", "RANK", "WORLD_SIZE")
NOT_UNDER_SANITIZERS = unittest.skipIf(support.SANITIZED, "one case is enough under sanitizers")
SHAPES = {"2x1": (2, "h0,h1"), "2x2": (2, "h0:2,h1:2"), "4x1": (4, "h0,h1,h2,h3"), "1+3": (2, "h0:1,h1:3")}
LINK_TIMEOUT = 5  # longer than a busy machine keeps a rank from reading its sockets
PROMPT = 300  # half of the default WEFT_TIMEOUT, in seconds


class HostCase(Case):
    hosts = None
    count = 4

    @classmethod
    def setUpClass(cls):
        if WHY_NOT is not None:
            raise unittest.SkipTest(WHY_NOT)
        for name in FOREIGN:
            os.environ.pop(name, None)
        cls.hosts = namespaces.Hosts(cls.count).__enter__()

    @classmethod
    def tearDownClass(cls):
        if cls.hosts is not None:
            cls.hosts.close()

    def setUp(self):
        super().setUp()
        self.started = []

    def tearDown(self):
        """Whatever happened, nobody is left on any host."""
        for started in self.started:
            if started.poll() is None:
                started.kill()
            started.communicate()
        deadline = time.monotonic() + 120
        while self.hosts.processes() and time.monotonic() < deadline:
            time.sleep(0.02)
        self.assertEqual([(p, self.command_line(p)) for p in self.hosts.processes()], [])

    @staticmethod
    def command_line(pid):
        try:
            return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        except OSError:
            return [""]

    def on_hosts(self, hosts, *args):
        return ["run", "--hosts", hosts, "--engine", "ssh", "--rsh", self.hosts.rsh, *args]

    def start(self, hosts, *args, env=None):
        """A run that goes on until something breaks; it is running when this returns."""
        command = [WEFT, *map(str, self.on_hosts(hosts, *args))]
        started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env={**os.environ, "WEFT_LINK_TIMEOUT": str(LINK_TIMEOUT), **(env or {})})
        self.started.append(started)
        line = started.stdout.readline()
        if "running" not in line:
            self.fail(f"it does not run: {line} {started.communicate(timeout=300)[1]}")
        return started

    # The port is one of a network that nobody else is in.
    def by_hand(self, rank, size, host, secret, *args, port=29712, timeout=2, env=None):
        command = self.hosts.command(host, *(args or (RANK_CALLS, "check", "quick")))
        variables = {"WEFT_RANK": str(rank), "WEFT_WORLD_SIZE": str(size), "WEFT_SECRET": secret,
                     "WEFT_ADDRESS": f"{self.hosts.address('h0')}:{port}", "WEFT_CONNECT_TIMEOUT": str(timeout)}
        self.started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                             env={**os.environ, **variables, **(env or {})}))
        return self.started[-1]

    def ranks_on(self, host, name="rank_calls"):
        return [p for p in namespaces.processes(self.hosts.space(host))
                if os.path.basename(self.command_line(p)[0]) == name]


class Training(HostCase):
    """On the first images of the data set: each host reads it by itself."""

    def digest(self, done):
        return json.loads(done.stdout)["param_digest"]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data = cls.hosts.dir / "data"
        cls.data.mkdir()
        for part, count in (("train", 2000), ("t10k", 500)) if support.HAVE_DATA else ():
            for kind, bytes_each, head in (("images-idx3", 784, 16), ("labels-idx1", 1, 8)):
                with gzip.open(f"{DATA}/{part}-{kind}-ubyte.gz") as file:
                    raw = file.read(head + count * bytes_each)
                (cls.data / f"{part}-{kind}-ubyte").write_bytes(raw[:4] + count.to_bytes(4, "big") + raw[8:])

    @NEED_DATA
    def test_small(self):
        """Also under sanitizers: two hosts train to the same weights as one."""
        plan = self.compile(world=2, batch=16)
        args = (plan, "--data", self.data, "--steps", 3, "--no-eval", "--json")
        expected = self.digest(self.weft("run", *args))
        done = self.weft(*self.on_hosts("h0,h1", *args))
        report = json.loads(done.stdout)
        self.assertEqual(report["param_digest"], expected)
        self.assertEqual(report["transports"], ["self", "tcp"])
        self.assertEqual(report["hosts"], [{"name": "h0", "ranks": [0]}, {"name": "h1", "ranks": [1]}])

    @NEED_DATA
    @NOT_UNDER_SANITIZERS
    def test_weights_do_not_depend_on_hosts(self):
        plan = self.compile(world=4, batch=16)
        args = (plan, "--data", self.data, "--steps", 3, "--no-eval", "--json")
        expected = {order: self.digest(self.weft("run", *args, env={"WEFT_ORDER": order}))
                    for order in ("tree", "blocks:1,3")}
        for hosts, placement, order in (("h0:2,h1:2", (), "tree"), ("h0:2,h1:2", ("--round-robin",), "tree"),
                                        ("h0:1,h1:3", (), "tree"), ("h0:1,h1:3", (), "blocks:1,3"),
                                        ("h0,h1,h2,h3", (), "tree")):
            with self.subTest(hosts=hosts, placement=placement, order=order):
                done = self.weft(*self.on_hosts(hosts, *placement, *args), env={"WEFT_ORDER": order})
                self.assertEqual(self.digest(done), expected[order])
                ranks = [host["ranks"] for host in json.loads(done.stdout)["hosts"]]
                self.assertEqual(ranks, [[0, 2], [1, 3]] if placement else
                                 {"h0:2,h1:2": [[0, 1], [2, 3]], "h0:1,h1:3": [[0], [1, 2, 3]]}.get(
                                     hosts, [[0], [1], [2], [3]]))

    @NEED_DATA
    @NOT_UNDER_SANITIZERS
    @unittest.skipIf(isinstance(support.opencl_devices(), str), f"no OpenCL devices: {support.opencl_devices()}")
    def test_devices(self):
        """Devices of two hosts, whose memory no other host reaches."""
        for world, hosts in ((2, "h0,h1"), (3, "h0:2,h1:1")):
            plan = self.compile(name=f"p{world}.weft", world=world, batch=16)
            args = (plan, "--data", self.data, "--steps", 3, "--no-eval", "--json")
            expected = self.digest(self.weft("run", *args))
            done = self.weft(*self.on_hosts(hosts, *args, "--device", "opencl"))
            self.assertEqual(self.digest(done), expected, hosts)

    @NEED_DATA
    @NOT_UNDER_SANITIZERS
    def test_evaluation_and_files(self):
        """Every file is written once, and the accuracy is that of one host."""
        plan = self.compile(world=2, batch=64)
        args = (plan, "--data", self.data, "--steps", 10, "--json")
        alone = json.loads(self.weft("run", *args, "--checkpoint", "a.safetensors").stdout)
        done = json.loads(self.weft(*self.on_hosts("h0,h1", *args, "--checkpoint", "b.safetensors", "--trace", "t.json",
                                                   "--save", "t.onnx")).stdout)
        self.assertEqual(done["test_accuracy"], alone["test_accuracy"])
        self.assertEqual(done["param_digest"], alone["param_digest"])
        self.assertEqual((self.dir / "a.safetensors").read_bytes(), (self.dir / "b.safetensors").read_bytes())
        self.assertTrue(json.loads((self.dir / "t.json").read_text()))

    @NEED_DATA
    @NOT_UNDER_SANITIZERS
    @unittest.skipUnless(MPIRUN, "mpirun.openmpi is missing (Debian package openmpi-bin)")
    def test_mpirun(self):
        expected = {}
        for hosts, world, transports in (("h0,h1", 2, ["self", "tcp"]),
                                         ("h0:2,h1:2", 4, ["self", "shm", "tcp", "tcp"]),
                                         ("h0:1,h1:3", 4, ["self", "tcp", "tcp", "tcp"]),
                                         ("h0,h1,h2,h3", 4, ["self", "tcp", "tcp", "tcp"])):
            if world not in expected:
                plan = self.compile(name=f"{world}.weft", world=world, batch=16)
                args = ("run", plan, "--data", self.data, "--steps", 3, "--no-eval", "--json")
                expected[world] = self.digest(self.weft(*args))
            with self.subTest(hosts=hosts):
                done = self.mpirun(hosts, world, *args)
                report = json.loads(done.stdout)
                self.assertEqual(report["param_digest"], expected[world])
                self.assertEqual(report["launcher"], "pmix")
                self.assertEqual(report["transports"], transports)

    def mpirun(self, hosts, world, *args):
        """The command on world ranks, by an mpirun on h0."""
        mpirun = [MPIRUN, "--allow-run-as-root", "--host", hosts, "--mca", "plm_rsh_agent", self.hosts.rsh,
                  "--mca", "plm_rsh_no_tree_spawn", "1", "--mca", "oob_tcp_if_include", "eth0", "-np", world, WEFT]
        done = subprocess.run(self.hosts.command("h0", *mpirun, *args), capture_output=True, text=True, timeout=300,
                              cwd=self.dir)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done


class Collectives(HostCase):
    @NOT_UNDER_SANITIZERS
    def test_every_collective_and_the_transport_of_every_pair(self):
        for shape, (_, hosts) in SHAPES.items():
            with self.subTest(shape=shape):
                done = self.weft(*self.on_hosts(hosts, "--", RANK_CALLS, "check"), timeout=300)
                self.check(json.loads(done.stdout), hosts)

    def test_small(self):
        done = self.weft(*self.on_hosts("h0:2,h1", "--", RANK_CALLS, "check", "quick"), timeout=300)
        self.check(json.loads(done.stdout), "h0:2,h1")

    def check(self, told, hosts):
        where = [h.split(":")[0] for h in hosts.split(",") for _ in range(int((h + ":1").split(":")[1]))]
        self.assertEqual(told["launcher"], "environment")
        self.assertEqual(told["host_count"], len(set(where)))
        self.assertEqual([r["host"] for r in told["ranks"]], where)
        numbers = {name: index for index, name in enumerate(dict.fromkeys(where))}
        for rank, row in enumerate(told["ranks"]):
            self.assertGreater(row["checked"], 100)
            self.assertEqual(row["hosts"], [numbers[name] for name in where])
            self.assertEqual(row["transports"], ["self" if peer == rank else "shm" if where[peer] == where[rank]
                                                 else "tcp" for peer in range(len(where))])

    @NOT_UNDER_SANITIZERS
    def test_tune_writes_a_slow_uplink_as_a_level(self):
        """h0 and h1 are near each other, h2 behind a cable of a tenth of their rate."""
        costs, topology = self.dir / "costs.json", self.dir / "cluster.json"
        self.addCleanup(self.hosts.limit, "h2", self.hosts.rate)
        self.hosts.limit("h2", "100mbit")
        self.weft(*self.on_hosts("h0:2,h1,h2", "--", WEFT, "tune", "-o", costs, "--quick", "--op", "broadcast", "--max",
                                 64, "--write-topology", topology))
        found = json.loads(topology.read_text())
        racks = [host["rack"] for host in found["hosts"]]
        self.assertEqual((racks[0] == racks[1], racks[0] == racks[2]), (True, False), found)
        # Bounds of what was set; a busy machine makes links slower, never quicker.
        self.assertLess(found["levels"]["rack"]["gbit_per_s"], 0.1 * 1.2)
        self.assertGreater(found["levels"]["rack"]["latency_us"], 0)
        self.assertLess(found["link"]["gbit_per_s"], 1.3)
        self.assertGreater(found["link"]["gbit_per_s"], found["levels"]["rack"]["gbit_per_s"])
        self.assertTrue({"l3", "numa", "socket", "host"} & set(found["levels"]))  # of the two ranks of h0
        plan = self.dir / "plan.weft"
        self.weft("compile", support.MODELS / "mlp.onnx", "-o", plan, "--topology", topology, "--batch", 8)
        self.weft("simulate", plan, "--topology", topology, "--costs", costs)


@NOT_UNDER_SANITIZERS
class Faults(HostCase):
    count = 2

    def test_a_cut_cable_names_the_host(self):
        run = self.start("h0:2,h1:2", "--tag-output", "--", RANK_CALLS, "loop", 65536)
        self.addCleanup(self.hosts.mend, "h1")
        self.hosts.cut("h1")
        cut = time.monotonic()
        out, err = run.communicate(timeout=300)
        self.assertLess(time.monotonic() - cut, PROMPT)
        self.assertEqual(run.returncode, 1, err)
        for rank in range(4):
            # What a rank's own host is called says nothing about the other.
            other = "h1" if rank < 2 else "h0"
            self.assertRegex(err, rf"(?m)^\[{rank}\] rank {rank}: .*{other}")

    def test_a_killed_rank_is_named_by_all(self):
        run = self.start("h0:2,h1:2", "--tag-output", "--", RANK_CALLS, "loop", 65536)
        ranks = sorted(self.ranks_on("h1"))
        self.assertEqual(len(ranks), 2)
        os.kill(ranks[1], signal.SIGKILL)
        killed = time.monotonic()
        out, err = run.communicate(timeout=300)
        self.assertLess(time.monotonic() - killed, PROMPT)
        self.assertRegex(err, r"(?m)^weft run: rank 3 \(pid \d+, host h1\) was killed by signal 9")
        self.assertEqual(run.returncode, 128 + 9, err)
        for rank in range(3):
            self.assertRegex(err, rf"(?m)^\[{rank}\] rank {rank}: .*rank 3")

    def test_what_a_host_has_started_ends_with_it(self):
        run = self.start("h0,h1:2", "--", RANK_CALLS, "loop", 1024)
        starters = self.ranks_on("h1", "weft")
        self.assertEqual(len(starters), 1)
        os.kill(starters[0], signal.SIGKILL)
        out, err = run.communicate(timeout=300)
        self.assertEqual(run.returncode, 1, err)
        self.assertRegex(err, "host h1: rsh was killed by signal 9")

    def test_a_killed_launcher_takes_all_along(self):
        run = self.start("h0,h1:2", "--", RANK_CALLS, "loop", 1024)
        run.kill()
        run.communicate(timeout=300)  # tearDown looks who is left

    def test_interrupt(self):
        run = self.start("h0,h1:2", "--", RANK_CALLS, "loop", 1024)
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=300)
        self.assertEqual(run.returncode, 130, err)
        self.assertIn("interrupted", err)

    def test_a_slow_link_is_named(self):
        """A tenth of its speed: 32 MiB take three seconds instead of a third of one, and each side says for whom it waits."""
        run = self.start("h0,h1", "--tag-output", "--", RANK_CALLS, "loop", 32 << 20, env={"WEFT_LATE": "1"})
        self.addCleanup(self.hosts.limit, "h1", self.hosts.rate)
        self.hosts.limit("h1", "100mbit")
        wanted = {r"\[0\] weft: warn: .*late: rank 1.*host h1", r"\[1\] weft: warn: .*late: rank 0.*host h0"}
        deadline = time.monotonic() + 300
        said = []
        while wanted and time.monotonic() < deadline:
            said.append(run.stderr.readline())
            wanted = {pattern for pattern in wanted if not re.search(pattern, said[-1])}
        self.assertEqual(wanted, set(), said)

    def test_a_wrong_secret_is_an_error_on_both_sides(self):
        ranks = [self.by_hand(0, 2, "h0", "the right secret"), self.by_hand(1, 2, "h1", "another secret, which is wrong")]
        errors = [rank.communicate(timeout=300)[1] for rank in ranks]
        for rank, error in zip(ranks, errors):
            self.assertNotEqual(rank.returncode, 0)
            self.assertRegex(error, "secret")

    def test_a_missing_rank_is_named_on_all(self):
        ranks = [self.by_hand(0, 3, "h0", "the right secret"), self.by_hand(1, 3, "h1", "the right secret")]
        for rank in ranks:
            error = rank.communicate(timeout=300)[1]
            self.assertNotEqual(rank.returncode, 0)
            self.assertRegex(error, "missing ranks: 2")


@NOT_UNDER_SANITIZERS
class Survivors(HostCase):
    count = 3

    def test_a_host_that_is_switched_off(self):
        """Nothing tells that it is gone: no process ends a connection, no port refuses one. It has the ranks that would lead."""
        hosts = ["h0", "h0", "h1", "h1", "h2", "h2"]
        ranks = [self.by_hand(rank, 6, host, "of all hosts here", RANK_CALLS, "survive", 4096, timeout=60,
                              env={"WEFT_LINK_TIMEOUT": str(LINK_TIMEOUT)}) for rank, host in enumerate(hosts)]
        self.assertEqual(ranks[0].stdout.readline(), "running\n")
        self.addCleanup(self.hosts.mend, "h0")
        self.hosts.cut("h0")
        for rank in (2, 3, 4, 5):
            out, err = ranks[rank].communicate(timeout=PROMPT)
            self.assertEqual(ranks[rank].returncode, 0, err)
            self.assertRegex(err, rf"rank {rank}: all-reduce: rank [01] \(host h0.* did not answer", err)
            self.assertEqual(out, f"rank {rank} goes on with 2 3 4 5\n")


@NOT_UNDER_SANITIZERS
class Launching(HostCase):
    count = 2

    def test_what_one_host_lacks_is_said_with_its_name(self):
        only = self.hosts.dir / "only-h0"
        (self.hosts.dir / "rsh-apart").write_text(self.hosts.rsh.read_text().replace(
            'exec sh -c "$2"', '{ [ $1 = h0 ] || mount -t tmpfs none %s; } && exec sh -c "$2"' % only))
        (self.hosts.dir / "rsh-apart").chmod(0o755)
        only.mkdir()
        plan = self.compile()
        shutil.copy(plan, only / "p.weft")
        done = self.weft("run", only / "p.weft", "--data", DATA, "--hosts", "h0,h1", "--engine", "ssh", "--rsh",
                         self.hosts.dir / "rsh-apart", code=2)
        self.assertRegex(done.stderr, r"^weft run: host h1: .*p\.weft")
        self.assert_one_line(done.stderr)

    def test_what_all_lack_is_said_once(self):
        done = self.weft(*self.on_hosts("h0,h1", self.dir / "no.weft", "--data", DATA), code=2)
        self.assertRegex(done.stderr, r"^weft run: cannot open \S*no\.weft")
        self.assert_one_line(done.stderr)

    def test_a_host_that_is_not_there(self):
        done = self.weft(*self.on_hosts("h0,h7", "--", "true"), code=1)
        self.assertRegex(done.stderr, r"h7")

    def test_the_secret_and_the_address_are_in_no_command_line(self):
        done = self.weft(*self.on_hosts("h0,h1", "--", "sh", "-c",
                                        "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f 2>/dev/null; echo; done >$WEFT_RANK.lines; "
                                        "echo $WEFT_SECRET $WEFT_ADDRESS"))
        secret, address = done.stdout.splitlines()[0].split()
        self.assertRegex(secret, "^[0-9a-f]{64}$")
        self.assertRegex(address, r"^h0:\d+$")
        for rank in range(2):
            lines = (self.dir / f"{rank}.lines").read_text()
            self.assertIn("--host-ranks", lines)
            self.assertNotIn(secret, lines)
            self.assertNotIn(address, lines)


class Engines(HostCase):
    """`weft run --hosts` becomes an engine, which starts the ranks; it is called on one of the hosts."""
    count = 2

    def by(self, engine, hosts, *args, code=0, env=None):
        line = ["env", *(f"{name}={value}" for name, value in (env or {}).items()), WEFT,
                *self.on_hosts(hosts, *args)]
        line[line.index("ssh")] = engine
        done = subprocess.run(self.hosts.command("h0", *line), capture_output=True, text=True, timeout=300, cwd=self.dir)
        self.assertEqual(done.returncode, code, f"{engine}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done

    def engines(self):
        return [name for name in ("prterun", "mpirun.openmpi", "mpiexec.hydra", "ssh") if shutil.which(name)]

    @NEED_DATA
    @NOT_UNDER_SANITIZERS
    def test_training(self):
        plan = self.compile(world=3, batch=16)
        args = (plan, "--data", DATA, "--steps", 3, "--no-eval", "--json")
        expected = json.loads(self.weft("run", *args).stdout)["param_digest"]
        launchers = {"ssh": "environment", "mpiexec.hydra": "pmi-1"}
        for engine in self.engines():
            for placement, ranks in ((), [[0, 1], [2]]), (("--round-robin",), [[0, 2], [1]]):
                with self.subTest(engine=engine, placement=placement):
                    report = json.loads(self.by(engine, "h0:2,h1:1", *placement, *args).stdout)
                    self.assertEqual(report["param_digest"], expected)
                    self.assertEqual(report["hosts"], [{"name": f"h{i}", "ranks": r} for i, r in enumerate(ranks)])
                    self.assertEqual(report["launcher"], launchers.get(engine, "pmix"))
                    self.assertEqual(len(report["links"]), 1)

    def test_a_program(self):
        """Variables of Weft, the folder and the arguments come along; the secret is on no command line."""
        secret = "of every command line the worst"
        late = "WEFT_" + 140 * "L"
        script = self.dir / "look.py"
        script.write_text("import glob, os, sys\nseen = 0\nfor path in glob.glob('/proc/[0-9]*/cmdline'):\n    try:\n"
                          "        seen += os.environ['WEFT_SECRET'].encode() in open(path, 'rb').read()\n    except OSError:\n"
                          "        pass\nsys.stdout.write(f\"at {os.getcwd()} {os.environ['" + late + "']} {os.environ['WEFT_HOST_ID']} "
                          "{sys.argv[1:]} {seen}\\n\")\n")
        for engine in self.engines():
            with self.subTest(engine=engine):
                file = self.dir / "secret"
                file.write_text(f"export WEFT_SECRET='{secret}' {late}=7\nexec \"$@\"\n")
                line = ["sh", file, WEFT, *self.on_hosts("h0,h1", "--", "/usr/bin/python3", script, "a  b $x *")]
                line[line.index("ssh")] = engine
                done = subprocess.run(self.hosts.command("h0", *line), capture_output=True, text=True, timeout=300,
                                      cwd=self.dir)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(sorted(done.stdout.splitlines()),
                                 [f"at {self.dir} 7 {host} ['a  b $x *'] 0" for host in ("h0", "h1")])

    @NOT_UNDER_SANITIZERS
    def test_what_fails(self):
        for engine in self.engines():
            with self.subTest(engine=engine):
                done = self.by(engine, "h0,h1", self.dir / "no.weft", "--data", DATA, code=2)
                self.assertEqual(done.stderr.count("no.weft"), 1, done.stderr)
                started = time.monotonic()
                script = self.dir / "fail.sh"
                # hydra lets the others go on unless a signal has killed the rank
                wait = "true" if engine == "mpiexec.hydra" else "exec sleep 1000"
                script.write_text(f"[ $WEFT_HOST_ID = h0 ] && {wait}; exit 9\n")
                self.by(engine, "h0,h1", "--", "sh", script, code=9)
                self.assertLess(time.monotonic() - started, PROMPT)

    def loop(self, engine):
        """A run that goes on until something breaks."""
        line = ["exec", WEFT, *self.on_hosts("h0,h1", "--", RANK_CALLS, "loop", 1024)]
        line[line.index("ssh")] = engine
        run = subprocess.Popen(self.hosts.command("h0", *line), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.started.append(run)
        self.assertIn("running", run.stdout.readline())
        return run

    @NOT_UNDER_SANITIZERS
    def test_interrupt(self):
        for engine in self.engines():
            with self.subTest(engine=engine):
                run = self.loop(engine)
                run.send_signal(signal.SIGINT)
                run.communicate(timeout=PROMPT)  # hydra's status is 0
                self.assertEqual(self.ranks_on("h0") + self.ranks_on("h1"), [], engine)

    @NOT_UNDER_SANITIZERS
    def test_a_killed_rank(self):
        for engine in self.engines():
            with self.subTest(engine=engine):
                run = self.loop(engine)
                os.kill(self.ranks_on("h1")[0], signal.SIGKILL)
                out, err = run.communicate(timeout=PROMPT)
                self.assertNotEqual(run.returncode, 0)
                self.assertRegex(out + err, "rank 0: .*rank 1|PID .* RUNNING AT h1")  # hydra leaves no time for the first

    def test_options(self):
        for args, match in ((("--engine", "make"), "--engine make: must be srun"),
                            (("--engine", "mpirun", "--elastic", "1:2"), "--elastic requires --engine ssh: mpirun"),
                            (("--engine", "/x/srun --y", "--bind-irqs"), "--bind-irqs requires --engine ssh, not srun"),
                            (("--engine", "/nonexistent/mpirun -q"), "cannot run '/nonexistent/mpirun': No such file")):
            done = self.weft("run", "--hosts", "a,b", *args, "p.weft", "--data", DATA, code=2)
            self.assertRegex(done.stderr, match)
            self.assert_one_line(done.stderr)
        done = self.weft("run", "-n", 2, "--engine", "ssh", "--", "true", code=2)
        self.assertRegex(done.stderr, "--engine requires --hosts")


if __name__ == "__main__":
    if WHY_NOT is not None:
        print(f"skipped: {WHY_NOT}")
        sys.exit(77)
    support.main()
