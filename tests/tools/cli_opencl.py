#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Devices of the plugin opencl from the command line: what is listed, refused, and run on two of them."""
import json
import os
import signal
import subprocess
import sys
import time
import unittest

import support
from support import BINARY, Case, DATA, MODELS, NEED_DATA, TWO_DEVICES as TWO, WEFT, opencl_devices

NEED_DEVICES = unittest.skipUnless(not isinstance(opencl_devices(), str), f"no OpenCL devices: {opencl_devices()}")

BUFFERS = {"WEFT_OPENCL_MEMORY": "buffer"}  # memory that other ranks do not reach

EAGER = """
import numpy as np, weft
c = weft.init()
x = np.arange(1000, dtype=np.float32) * (c.rank + 1)
y = weft.all_reduce(x)
assert (y == np.arange(1000) * 3).all(), y
z = weft.all_gather(np.full(3, c.rank, dtype=np.int32))
assert z.tolist() == [0, 0, 0, 1, 1, 1], z
try:
    weft.empty(4)
except NotImplementedError as error:
    assert "opencl:" in str(error), error
else:
    raise AssertionError("an array on the device")
"""

INIT = """
import array, weft
for wrong, error in ((3, TypeError), ("opencl:99", weft.WeftError), ("Open CL", ValueError)):
    try:
        weft.init(device=wrong)
    except error as caught:
        assert str(wrong) in str(caught) or wrong == 3, caught
    else:
        raise AssertionError(wrong)
with weft.Context(device="opencl:0") as c:
    assert c.world.size == 1
weft.init(device="opencl:0")
assert list(weft.all_reduce(array.array("d", [1.0, 2.0]))) == [1.0, 2.0]
"""


class OpenCL(Case):
    @NEED_DEVICES
    def test_devices_are_listed(self):
        text = self.weft("info", "--devices", env=TWO).stdout
        for index, device in enumerate(opencl_devices()):
            self.assertEqual(device["device"], f"opencl:{index}")
            self.assertGreater(device["memory_bytes"], 0)
            self.assertGreater(device["compute_units"], 0)
            self.assertIn(f"opencl:{index} ", text)
            self.assertIn(device["name"], text)
        name = opencl_devices()[0]["name"]
        self.weft("run", "-n", 1, "--device", f"opencl:{name}", "--", WEFT, "bench", "all_reduce", "--min", "8",
                  "--max", "8", env=TWO)

    @NEED_DEVICES
    def test_an_error_of_a_plugin_hides_no_other_one(self):
        env = {**TWO, "WEFT_DEVICE": "nothing:0"}
        run = self.weft("info", "--devices", env=env)
        self.assertIn("opencl:0 ", run.stdout)
        self.assertIn("libweft_nothing.so", run.stderr)
        listed = json.loads(self.weft("info", "--devices", "--json", env=env).stdout)
        self.assertEqual([device["device"] for device in listed["devices"]][:2], ["opencl:0", "opencl:1"])
        self.assertEqual(len(listed["errors"]), 1)
        self.assertIn("libweft_nothing.so", listed["errors"][0])

    @NEED_DEVICES
    def test_buffers_are_not_shared(self):
        listed = json.loads(self.weft("info", "--devices", "--json", env={"WEFT_OPENCL_MEMORY": "buffer"}).stdout)
        self.assertFalse(listed["devices"][0]["peer_direct"])
        self.assertIn("host memory", listed["devices"][0]["note"])

    @NEED_DEVICES
    def test_what_is_not_there_is_refused(self):
        bench = ("--", WEFT, "bench", "all_reduce", "--max", "8")
        for device, words in (("opencl:7", "no such index"), ("opencl:none such", "has \"none such\" in it"),
                              ("Open", "invalid device plugin"), ("nothing:0", "libweft_nothing.so")):
            run = self.weft("run", "-n", 1, "--device", device, *bench, code=2)
            self.assertIn(words, run.stderr)

    def test_without_plugin_or_driver(self):
        run = self.weft("info", "--devices", env={"WEFT_DEVICE_PATH": "/nowhere"}, code=2)
        self.assertIn("/nowhere/libweft_opencl.so", run.stderr)
        if (BINARY / "libweft_opencl.so").exists():
            run = self.weft("info", "--devices", env={"OCL_ICD_VENDORS": "/nowhere"}, code=2)
            self.assertIn("no platform", run.stderr)

    @NEED_DEVICES
    def test_bench(self):
        rows = self.weft_json("bench", "all_reduce", "--device", "opencl:0,1", "--max", "4K", "--check", env=TWO)["rows"]
        self.assertTrue(rows)
        self.assertEqual({row["wrong"] for row in rows}, {0})
        run = self.weft("bench", "all_reduce", "--device", "opencl", "--max", "8", env={"WEFT_OPENCL_MEMORY": "buffer"}, code=2)
        self.assertIn("not accessible by the host", run.stderr)

    @NEED_DEVICES
    def test_eager_calls_between_two_devices(self):
        if support.SANITIZED or not (BINARY / "python" / "weft" / "_core.abi3.so").exists():
            self.skipTest("no interpreter that is sanitized")
        env = {**TWO, "PYTHONPATH": str(BINARY / "python")}
        for memory in ("shared", "buffer"):
            self.weft("run", "-n", 2, "--device", "opencl:0,1", "--", sys.executable, "-c", EAGER,
                      env={**env, "WEFT_OPENCL_MEMORY": memory})
        self.weft("run", "-n", 1, "--", sys.executable, "-c", INIT, env=env)

    def digests(self, model, *options, world=2, steps=3, ways=({},)):
        """Of the parameters after some steps: on the CPU, and on devices in each way."""
        arguments = {"world": world, "steps": steps}
        cpu = self.train(MODELS / model, *options, **arguments)["param_digest"]
        return cpu, [self.train(MODELS / model, *options, "--device", "opencl:0,1", env={**TWO, **way},
                                **arguments)["param_digest"] for way in ways]

    @NEED_DEVICES
    @NEED_DATA
    def test_an_mlp_has_the_bits_of_the_cpu(self):
        for options in ((), ("--optimizer", "adam"), ("--optimizer", "adamw", "--weight-decay", "0.1"),
                        ("--optimizer", "sgd", "--weight-decay", "0.01"), ("--optimizer", "adagrad"),
                        ("--shard-optimizer",), ("--accumulate", 3)):
            cpu, devices = self.digests("mlp.onnx", "--batch", 7, *options)
            self.assertEqual([cpu], devices, options)
        for world, ways in ((3, ({},)), (1, ({}, BUFFERS))):
            cpu, devices = self.digests("mlp.onnx", "--batch", 1, world=world, ways=ways)
            self.assertEqual([cpu] * len(ways), devices, world)

    @NEED_DEVICES
    @NEED_DATA
    def test_devices_that_do_not_reach_each_other(self):
        """Collectives run on a mirror of the arena: buffers on one host, and hosts that share nothing."""
        for world, options in ((2, ()), (3, ("--shard-optimizer",)), (2, ("--decouple",)), (2, ("--accumulate", 2))):
            ways = (BUFFERS, {"WEFT_TRANSPORT": "tcp"}, {**BUFFERS, "WEFT_PROGRESS": "inline"})
            cpu, devices = self.digests("mlp.onnx", "--batch", 7, *options, world=world, ways=ways)
            self.assertEqual([cpu] * len(ways), devices, options)

    @NEED_DEVICES
    @NEED_DATA
    def test_lenet_has_the_bits_of_the_cpu(self):
        for batch in (17, 7, 1):  # sixteen images at once and the rest; planes of one image
            cpu, devices = self.digests("lenet.onnx", "--batch", batch, steps=2)
            self.assertEqual([cpu], devices, batch)

    @NEED_DEVICES
    @NEED_DATA
    def test_accuracy_is_that_of_the_cpu(self):
        plan = self.compile("mlp.onnx", "plan.weft", 2, 100)
        reports = [self.train(plan, "--device", device, steps=3, evaluate=True, env=TWO) for device in ("cpu", "opencl:0,1")]
        self.assertEqual(reports[0]["test_accuracy"], reports[1]["test_accuracy"])
        self.assertEqual(reports[0]["param_digest"], reports[1]["param_digest"])

    @NEED_DEVICES
    @NEED_DATA
    def test_checkpoints_are_those_of_the_cpu(self):
        """Written on devices and continued there, from the files of the CPU."""
        plan = self.compile("mlp.onnx", "plan.weft", 2, 8, "--optimizer", "adam", "--shard-optimizer")
        self.train(plan, "--checkpoint", "cpu.st", steps=2)
        expected = self.train(plan, "--resume", "cpu.st", steps=3)["param_digest"]
        for name, way in (("shared", {}), ("buffer", BUFFERS)):
            on_devices = {"env": {**TWO, **way}}
            self.train(plan, "--device", "opencl:0,1", "--checkpoint", f"{name}.st", steps=2, **on_devices)
            self.assertEqual((self.dir / f"{name}.st").read_bytes(), (self.dir / "cpu.st").read_bytes(), name)
            report = self.train(plan, "--device", "opencl:0,1", "--resume", "cpu.st", steps=3, **on_devices)
            self.assertEqual(report["param_digest"], expected, name)

    @NEED_DEVICES
    @NEED_DATA
    def test_plans_that_cannot_run_are_refused(self):
        arguments = ("--batch", 7, "-n", 2, "--data", DATA, "--steps", 1, "--no-eval", "--device", "opencl")
        run = self.weft("run", MODELS / "mlp.onnx", "--optimizer", "lamb", *arguments, code=2)
        self.assertIn('device "opencl:0" does not support operator weft.Lamb', run.stderr)

    @NEED_DEVICES
    @NEED_DATA
    def test_a_rank_that_dies_ends_the_others(self):
        """In memory that ranks share, in buffers, and between hosts."""
        plan = self.compile("mlp.onnx", "plan.weft", 3, 32)
        for way in ({}, BUFFERS, {"WEFT_TRANSPORT": "tcp"}):
            run = subprocess.Popen([WEFT, "run", str(plan), "-n", "3", "--data", DATA, "--steps", "1000000", "--no-eval",
                                    "--device", "opencl:0,1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env={**os.environ, **TWO, **way}, cwd=self.dir)
            self.addCleanup(run.kill)
            ranks = []
            while len(ranks) < 3 and run.poll() is None:
                with open(f"/proc/{run.pid}/task/{run.pid}/children") as file:
                    ranks = file.read().split()
            trained = 0  # seconds of a processor: it is in its steps by then
            while trained < 1.5 and run.poll() is None:
                with open(f"/proc/{ranks[1]}/stat") as file:
                    fields = file.read().rsplit(")", 1)[1].split()
                trained = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                time.sleep(0.05)
            os.kill(int(ranks[1]), signal.SIGKILL)
            _, err = run.communicate(timeout=support.PROMPT)
            self.assertEqual(run.returncode, 1, err)
            self.assertRegex(err, rf"(?m)^weft run: rank 1 \(pid {ranks[1]}\) was killed by signal 9")
            self.assertEqual(err.count("was killed by signal"), 1, err)
            for rank in ranks:
                self.assertFalse(os.path.exists(f"/proc/{rank}"), err)

    def by_hand(self, *ranks):
        """Ends and messages of ranks: what each runs, and its device."""
        address = f"unix:@weft-test-opencl-{os.getpid()}"
        runs = [subprocess.Popen([WEFT, "run", str(plan), "--data", DATA, "--steps", "2", "--no-eval", "--device", device],
                                 stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                 env={**os.environ, **TWO, "WEFT_RANK": str(rank), "WEFT_WORLD_SIZE": str(len(ranks)),
                                      "WEFT_ADDRESS": address})
                for rank, (plan, device) in enumerate(ranks)]
        for run in runs:
            self.addCleanup(run.kill)
        return [(run.communicate(timeout=support.PROMPT)[1], run.returncode) for run in runs]

    @NEED_DEVICES
    @NEED_DATA
    def test_ranks_that_disagree_are_refused(self):
        plans = [self.compile("mlp.onnx", "a.weft", 2, 8, "--bucket", "one"),
                 self.compile("mlp.onnx", "b.weft", 2, 8, "--bucket", "none")]
        digests = [self.weft_json("explain", plan)["structure_digest"][:12] for plan in plans]
        for err, code in self.by_hand((plans[0], "opencl:0"), (plans[1], "opencl:1")):
            self.assertEqual(code, 1, err)
            for digest in digests:
                self.assertIn(digest, err)
        for err, code in self.by_hand((plans[0], "opencl:0"), (plans[0], "cpu")):
            self.assertEqual(code, 1, err)
            self.assertIn("rank 0 is on a device, rank 1 on the CPU", err)


if __name__ == "__main__":
    support.main()
