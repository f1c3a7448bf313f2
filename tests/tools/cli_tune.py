#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weft tune: a table that weft algos and the runtime read back."""
import json
import math
import os
import pty
import signal
import subprocess

import support


class Tune(support.Case):
    def tune(self, *arguments, **kwargs):
        file = self.dir / "costs.json"
        done = self.weft("tune", "-o", file, "--quick", "--max", "512", "--json", *arguments, **kwargs)
        return json.loads(done.stdout), json.loads(file.read_text()), file

    def test_table_is_complete_and_read_back(self):
        said, table, file = self.tune("-n", "2", "--name", "here")
        self.assertEqual((table["format"], table["name"]), (1, "here"))
        for key in ("gamma_ns_per_byte", "step_ns", "call_ns"):
            self.assertGreaterEqual(table[key], 0)
        for level in ("self", "host"):
            self.assertGreater(table["links"][level]["beta_ns_per_byte"], 0)
        self.assertEqual(said["measured"], len(table["measured"]))
        measured = {(m["op"], m["algorithm"], m["memory"]) for m in table["measured"]}
        for op in ("AllReduce", "ReduceScatter", "AllGather", "Broadcast", "Reduce", "Gather", "Scatter", "AllToAll"):
            for memory in ("registered", "plain"):
                self.assertIn((op, "mesh", memory), measured)
        self.assertIn(("AllReduce", "ring", "registered"), measured)  # for groups of order any
        for m in table["measured"]:
            self.assertEqual((m["ranks"], m["hosts"]), (2, 1))
            self.assertTrue(math.isfinite(m["alpha_ns"]) and m["beta_ns_per_byte"] >= 0)

        # The same choice by tune, by algos with the file, and by the runtime.
        chosen = {}
        for stretch in said["choices"]:
            size = stretch["from_bytes"]
            while size <= stretch["to_bytes"]:
                chosen[stretch["op"], stretch["memory"], size] = stretch["algorithm"]
                size *= 2
        rows = self.weft_json("algos", "-n", "2", "--costs", file)["rows"]
        compared = 0
        for row in rows:
            if (row["op"], "registered", row["bytes"]) in chosen:
                self.assertTrue(row["candidates"][0]["measured"])
                self.assertEqual(row["algorithm"], chosen[row["op"], "registered", row["bytes"]])
                compared += 1
        self.assertGreater(compared, 20)
        for name in ("all_gather", "broadcast"):
            rows = self.weft_json("bench", name, "-n", "2", "--max", "512", "--iterations", "5",
                                  env={"WEFT_COSTS": str(file)})["rows"]
            for row in rows:
                self.assertEqual(row["algo"], chosen[name, "registered", row["bytes"]], row)

    def test_the_runtime_runs_what_a_table_says(self):
        _, table, file = self.tune("-n", "2", "--op", "all_gather")
        for measured in table["measured"]:
            quick = measured["algorithm"] == "bruck"
            measured["alpha_ns"] = 1 if quick else 1e6
            measured["beta_ns_per_byte"] = 0
        file.write_text(json.dumps(table))
        rows = self.weft_json("bench", "all_gather", "-n", "2", "--max", "512", "--iterations", "5", "--check",
                              env={"WEFT_COSTS": str(file)})["rows"]
        self.assertEqual({(row["algo"], row["path"], row["wrong"]) for row in rows}, {("bruck", "schedule", 0)})

    def test_several_sizes_of_groups(self):
        said, table, _ = self.tune("-n", "2,3", "--op", "Broadcast")
        self.assertEqual({m["ranks"] for m in table["measured"]}, {2, 3})
        self.assertEqual({m["op"] for m in table["measured"]}, {"Broadcast"})
        self.assertEqual({c["ranks"] for c in said["choices"]}, {2, 3})

    def test_text(self):
        file = self.dir / "costs.json"
        done = self.weft("tune", "-o", file, "--quick", "--max", "1K", "--op", "scatter")
        self.assertIn("scatter, 2 ranks, registered memory", done.stdout)
        self.assertIn("mesh", done.stdout)
        self.assertIn(f"written to {file}", done.stdout)
        self.assertEqual(done.stderr, "")

    def test_progress_on_a_terminal_and_an_interrupt(self):
        file = self.dir / "costs.json"
        ours, theirs = pty.openpty()
        with subprocess.Popen([support.WEFT, "tune", "-o", str(file), "-n", "2"], stdout=subprocess.PIPE,
                              stderr=theirs) as process:
            os.close(theirs)
            said = b""
            while b"2 ranks, registered memory, all_reduce" not in said:
                said += os.read(ours, 4096)
            process.send_signal(signal.SIGINT)
            while b"interrupted, all ranks ended" not in said:
                said += os.read(ours, 4096)
            self.assertEqual(process.stdout.read(), b"")
            self.assertEqual(process.wait(), 130)
        os.close(ours)
        self.assertEqual(list(self.dir.iterdir()), [])

    def read_terminal(self, ours, text):
        """What a terminal shows until it shows text."""
        said = b""
        while text not in said:
            said += os.read(ours, 4096)
        return said

    def test_an_interrupt_while_compile_or_run_calibrate(self):
        model = str(support.MODELS / "mlp.onnx")
        commands = [["compile", model, "-o", str(self.dir / "p.weft"), "-n", "2", "--batch", "8"]]
        if support.HAVE_DATA:
            commands.append(["run", model, "-n", "2", "--batch", "8", "--data", support.DATA, "--steps", "1"])
        for arguments in commands:
            ours, theirs = pty.openpty()
            environment = {**os.environ, "XDG_CACHE_HOME": str(self.dir / "cache"), "WEFT_CALIBRATE": "auto"}
            with subprocess.Popen([support.WEFT, *arguments], stdout=subprocess.PIPE, stderr=theirs,
                                  env=environment) as process:
                os.close(theirs)
                self.read_terminal(ours, b"2 ranks, registered memory, all_reduce")
                process.send_signal(signal.SIGINT)
                said = self.read_terminal(ours, b"interrupted, all ranks ended\r\n")
                self.assertIn(b"weft %s: interrupted" % arguments[0].encode(), said)
                self.assertEqual(process.stdout.read(), b"")
                self.assertEqual(process.wait(), 130)
            os.close(ours)
        self.assertEqual([file for file in self.dir.rglob("*") if file.is_file()], [])

    def test_bad_input(self):
        place = self.dir / "nowhere" / "costs.json"
        for arguments in (["--op", "AllReduce"], ["-o", place], ["-o", self.dir], ["-o", "x.json", "-n", "1"], ["-o", "x.json", "-n", "2,"],
                          ["-o", "x.json", "--op", "AllGarble"], ["-o", "x.json", "--max", "0"],
                          ["-o", "x.json", "-n", "2,three"], ["-o", "x.json", "surplus"]):
            said = self.weft("tune", *arguments, code=2).stderr
            self.assert_one_line(said)
        self.assertEqual(list(self.dir.iterdir()), [])

    def test_ranks_of_a_launcher_measure_links_between_hosts(self):
        file = self.dir / "costs.json"
        # Without shared memory each rank is a host of its own.
        done = self.weft("run", "-n", "2", "--", support.WEFT, "tune", "-o", file, "--quick", "--op", "AllReduce",
                         "--max", "4096", "--json", env={"WEFT_TRANSPORT": "tcp"})
        said, table = json.loads(done.stdout), json.loads(file.read_text())
        self.assertGreater(said["net_alpha_ns"], 1000)
        self.assertGreater(said["net_beta_ns_per_byte"], 0)
        self.assertEqual(table["links"]["net"]["alpha_ns"], said["net_alpha_ns"])
        self.assertEqual({(m["ranks"], m["hosts"]) for m in table["measured"]}, {(2, 2)})
        self.assertLessEqual({"mesh", "hierarchical", "rails"}, {m["algorithm"] for m in table["measured"]})
        row = self.weft_json("algos", "--ranks-per-host", "1,1", "--op", "AllReduce", "--costs", file)["rows"][0]
        self.assertTrue(row["candidates"][0]["measured"])

    def test_a_level_is_written_for_each_class_of_ranks(self):
        """A description says how two ranks are apart; the file has the measured cost of that level."""
        file, given = self.dir / "cluster.json", self.dir / "given.json"
        host = {"ranks": 2, "binding": ["0", "0"], "cores": 2}
        for level, parts, binding in (("l3", {}, ["0", "0"]), ("socket", {"l3_caches": 2, "numa_nodes": 2}, ["0", "1"])):
            given.write_text(json.dumps({"format": 1, "hosts": [{**host, **parts, "binding": binding}]}))
            self.tune("--op", "scatter", "--write-topology", file, env={"WEFT_TOPOLOGY": str(given)})
            levels = json.loads(file.read_text())["levels"]
            self.assertEqual(set(levels), {level})
            self.assertGreater(levels[level]["latency_us"], 0)
            self.assertGreater(levels[level]["gbit_per_s"], 0)
        self.weft("compile", support.MODELS / "mlp.onnx", "-o", self.dir / "p.weft", "--topology", file, "--batch", 8)
        self.weft("simulate", self.dir / "p.weft", "--topology", file)
        self.assertIn("level socket", self.weft("tune", "-o", self.dir / "x.json", "--quick", "--max", 64, "--op", "scatter",
                                                "--write-topology", file, env={"WEFT_TOPOLOGY": str(given)}).stdout)

    def test_links_between_hosts_are_written(self):
        file = self.dir / "cluster.json"
        # Without shared memory each rank is a host of its own.
        self.weft("run", "-n", "3", "--", support.WEFT, "tune", "-o", self.dir / "costs.json", "--quick", "--op", "scatter",
                  "--max", "64", "--write-topology", file, env={"WEFT_TRANSPORT": "tcp"})
        found = json.loads(file.read_text())
        self.assertEqual([host["ranks"] for host in found["hosts"]], [1, 1, 1])
        self.assertGreater(found["link"]["latency_us"], 1)
        self.assertGreater(found["link"]["gbit_per_s"], 0)

    def calibration(self):
        """The cached table, which must be the only file."""
        files = list((self.dir / "cache").rglob("*"))
        files = [file for file in files if file.is_file()]
        self.assertEqual(len(files), 1, files)
        self.assertRegex(files[0].name, r"^costs-[0-9a-f]{16}\.json$")
        return files[0], json.loads(files[0].read_text())

    def test_a_table_without_a_file_name_is_the_calibration(self):
        cache = {"XDG_CACHE_HOME": str(self.dir / "cache"), "WEFT_CALIBRATE": "cached"}
        said = self.weft_json("tune", "--quick", "--max", "4K", env=cache)
        file, table = self.calibration()
        self.assertEqual(said["output"], str(file))
        self.assertEqual(said["kernels"], len(table["kernels"]))
        kinds = {"product", "conv", "conv_grad", "exp", "attention", "fused", "norm", "pool", "move", "update"}
        self.assertEqual({k["kind"] for k in table["kernels"]}, kinds)
        self.assertIn(1, {k["threads"] for k in table["kernels"]})
        for kernel in table["kernels"]:
            self.assertGreater(kernel["ns"], 0)
        self.assertGreaterEqual(table["cores"], 1)

        plan, mlp = self.dir / "p.weft", support.MODELS / "mlp.onnx"
        arguments = ("compile", mlp, "-o", plan, "--world", 2, "--batch", 64)
        done = self.weft(*arguments, env=cache)
        self.assertIn(f"costs: measured on this machine ({file})", done.stdout)
        self.assertEqual(done.stderr, "")
        told = self.weft_json("explain", plan)
        self.assertEqual(told["costs"], table["name"])
        self.assertIn(f"costs measured on {table['name']}", self.weft("explain", plan).stdout)
        # A cluster is not this machine, and the user may say which costs count.
        for more, extra in ((("--costs", "default"), {}), ((), {"WEFT_CALIBRATE": "off"})):
            done = self.weft(*arguments, *more, env={**cache, **extra})
            self.assertIn("costs: default costs of a generic CPU; run weft tune", done.stdout)
            self.assertEqual(self.weft_json("explain", plan)["costs"], "default")
        self.assertEqual(self.weft_json(*arguments, env={**cache, "WEFT_COSTS": str(file)})["costs"], str(file))
        # A table of another machine, or a damaged one, is ignored with a warning.
        for text in (json.dumps({**table, "machine": "another"}), "{", '{"format": 1, "kernels": [{"kind": 3}]}'):
            file.write_text(text)
            done = self.weft(*arguments, env=cache)
            self.assert_one_line(done.stderr)
            self.assertIn("calibration ignored: ", done.stderr)
            self.assertIn(str(file), done.stderr)
            self.assertIn("default costs", done.stdout)

    def test_the_first_compile_calibrates(self):
        cache = {"XDG_CACHE_HOME": str(self.dir / "cache" / "new"), "WEFT_CALIBRATE": "auto"}
        plan, mlp = self.dir / "p.weft", support.MODELS / "mlp.onnx"
        arguments = ("compile", mlp, "-o", plan, "--world", 2, "--batch", 64)
        done = self.weft(*arguments, env={**cache, "WEFT_ALGO": "AllReduce=mesh"})
        file, table = self.calibration()
        self.assertRegex(done.stderr, r"^calibrated this machine in [0-9.]+ s, once; cached in ")
        self.assertGreater(len({m["algorithm"] for m in table["measured"]}), 3)
        first = self.weft_json("explain", plan)
        done = self.weft(*arguments, env=cache)
        self.assertEqual(done.stderr, "")
        self.assertEqual(self.weft_json("explain", plan)["structure_digest"], first["structure_digest"])
        # No place for a cache: default costs, and one line at level debug.
        nowhere = {"XDG_CACHE_HOME": "", "HOME": "", "WEFT_CALIBRATE": "auto"}
        done = self.weft(*arguments, env=nowhere)
        self.assertEqual(done.stderr, "")
        self.assertIn("default costs", done.stdout)
        self.assertIn("no calibration: ", self.weft(*arguments, env={**nowhere, "WEFT_LOG": "debug"}).stderr)
        # A cache that cannot be written is no reason to fail.
        (self.dir / "file").write_text("")
        done = self.weft(*arguments, env={**cache, "XDG_CACHE_HOME": str(self.dir / "file")})
        self.assertIn("warning", done.stderr)

    def test_a_damaged_table_is_refused_by_name(self):
        file = self.dir / "costs.json"
        file.write_text('{"format": 1, "measured": [{"op": "AllReduce"}]}')
        for arguments in (["algos", "--costs", file], ["bench", "all_reduce", "-n", "2", "--max", "8"]):
            said = self.weft(*arguments, code=2, env={"WEFT_COSTS": str(file)}).stderr
            self.assert_one_line(said)
            self.assertIn("algorithm is missing or not a name", said)
            self.assertIn(str(file), said)


if __name__ == "__main__":
    support.main()
