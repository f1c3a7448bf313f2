#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weft topo on recorded machines and on worlds; weft compile --topology; WEFT_BIND.

Drawings are compared with tests/data/topologies/drawings.txt, which WEFT_UPDATE_GOLDEN=1 writes anew.
"""
import json
import os
import re
import subprocess
import unittest

import support
from support import Case, DATA, MODELS, NEED_DATA, SOURCE, WEFT

MACHINES = SOURCE / "tests" / "data" / "topologies"
GOLDEN = MACHINES / "drawings.txt"

DRAWN = [
    ["--xml", "a=one-socket.xml", "-n", "9", "--width", "80"],
    ["--xml", "a=two-sockets.xml", "-n", "3", "--width", "80"],
    ["--xml", "a=four-sockets.xml", "-n", "4", "--width", "120"],
    ["--xml", "a=eight-nodes.xml", "-n", "8", "--width", "80"],
    ["--xml", "a=eight-nodes.xml", "--width", "50"],
    ["--xml", "a=eight-cards.xml", "--xml", "b=eight-cards.xml", "-n", "16", "--devices", "--width", "120"],
    ["--xml", "a=two-sockets.xml", "-n", "2", "--bind", "numa", "--width", "80"],
    ["--topology", "uneven.json", "--width", "80"],
    ["--topology", "uneven.json", "-n", "4", "--round-robin", "--width", "120"],
]


def cpus_of(text):
    return {cpu for part in text.split(",") if part
            for cpu in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)}


class Topo(Case):
    def topo(self, *args, **kwargs):
        paths = [re.sub(r"^(\w+=)?([\w-]+\.(xml|json))$", lambda m: (m.group(1) or "") + str(MACHINES / m.group(2)),
                        str(a)) for a in args]
        return self.weft("topo", *paths, **kwargs).stdout

    def test_drawings(self):
        text = "".join(f"$ weft topo {' '.join(args)}\n{self.topo(*args)}\n" for args in DRAWN)
        if os.environ.get("WEFT_UPDATE_GOLDEN"):
            GOLDEN.write_text(text)
        self.assertEqual(text, GOLDEN.read_text())
        width = None
        for line in text.splitlines():
            if line.startswith("$ "):
                width = int(line.split()[-1])
            else:
                self.assertLessEqual(len(line), width, line)

    def test_json_is_a_description_of_the_same(self):
        for args in DRAWN:
            if "--width" in args:
                where = args.index("--width")
                args = args[:where] + args[where + 2:]
            path = self.dir / "cluster.json"
            path.write_text(self.topo(*args, "--json"))
            cluster = json.loads(path.read_text())
            self.assertEqual(cluster["format"], 1)
            self.assertEqual(self.topo("--topology", path, "--width", 100), self.topo(*args, "--width", 100))

    def test_binding_is_within_the_machine_and_apart(self):
        cluster = json.loads(self.topo("--xml", "a=two-sockets.xml", "-n", 8, "--json"))
        shares = [cpus_of(text) for text in cluster["hosts"][0]["binding"]]
        self.assertEqual(len(set().union(*shares)), sum(map(len, shares)))
        self.assertLessEqual(set().union(*shares), set(range(16)))

    def test_bad_arguments(self):
        for args, why in [(["--xml", "a.xml"], "HOST=FILE"), (["--xml", "a=/nonexistent"], "cannot open"),
                          (["--topology", "/nonexistent"], "cannot open"), (["--bind", "loose"], "must be none, core or numa"),
                          (["--width", "7"], "--width 7: must be between 40 and 240"), (["-n", "0"], "--world 0: must be between 1 and 4096"), (["x"], "unexpected"),
                          (["--topology", "a", "--xml", "b=c"], "exclude"),
                          (["--topology", "a", "--bind-irqs"], "this machine")]:
            done = self.weft("topo", *args, code=2)
            self.assertIn(why, done.stderr)

    def test_this_machine(self):
        machine = json.loads(self.weft("topo", "-n", 1, "--json").stdout)
        info = self.weft_json("info")["machine"]
        self.assertEqual(machine["hosts"][0]["ranks"], 1)
        self.assertEqual(machine["hosts"][0].get("sockets", info["sockets"]), info["sockets"])
        self.assertIn("interrupts", machine)

    def test_a_world_draws_itself(self):
        text = self.weft("run", "-n", 3, "--", WEFT, "topo").stdout
        self.assertIn("ranks 0-2", text)
        self.assertEqual(text.count("shm"), 3)
        self.assertIn("started by: environment", text)
        cluster = json.loads(self.weft("run", "-n", 2, "--", WEFT, "topo", "--json").stdout)
        self.assertEqual([p["transport"] for p in cluster["pairs"]], ["shm"])
        # The text is a description, too.
        path = self.dir / "world.json"
        path.write_text(json.dumps(cluster))
        self.assertIn("1 host, 2 ranks", self.weft("topo", "--topology", path).stdout)

    def test_ranks_are_bound(self):
        allowed = os.sched_getaffinity(0)
        program = ["run", "-n", 2, "--tag-output", "--", "grep", "Cpus_allowed_list", "/proc/self/status"]

        def shares(how):
            lines = self.weft(*program, env={"WEFT_BIND": how}).stdout.split("\n")
            return [cpus_of(line.split()[-1]) for line in lines if line]
        self.assertEqual(shares("none"), [allowed, allowed])
        for share in shares("core"):
            self.assertLessEqual(share, allowed)
        if len(allowed) >= 2:
            first, second = shares("auto")
            self.assertFalse(first & second)
            self.assertEqual(len(first), len(second))

    def test_ranks_that_join_bind_themselves_when_asked(self):
        """As under a launcher that leaves them on all cores."""
        if len(os.sched_getaffinity(0)) < 2:
            self.skipTest("one processor")
        for how, bound in (("core", True), ("auto", False)):
            env = {**os.environ, "WEFT_WORLD_SIZE": "2", "WEFT_BIND": how,
                   "WEFT_ADDRESS": f"unix:{self.dir}/meet-{how}"}
            ranks = [subprocess.Popen([WEFT, "topo", "--json"], env={**env, "WEFT_RANK": str(r)}, text=True,
                                      stdout=subprocess.PIPE) for r in range(2)]
            texts = [rank.communicate(timeout=600)[0] for rank in ranks]
            self.assertEqual([rank.returncode for rank in ranks], [0, 0])
            self.assertEqual(texts[1], "")
            host = json.loads(texts[0])["hosts"][0]
            if bound:
                first, second = map(cpus_of, host["binding"])
                self.assertFalse(first & second)
            else:
                self.assertEqual(len(set(host.get("binding", [""]))), 1)  # all the same, or not said


class Compile(Case):
    LINK = {"gbit_per_s": 1, "latency_us": 30}

    def describe(self, hosts, name="cluster.json", **more):
        path = self.dir / name
        path.write_text(json.dumps({"format": 1, "hosts": hosts, **more}))
        return path

    def explain(self, plan):
        return self.weft_json("explain", plan)

    def algorithm(self, plan):
        """Of the largest bucket."""
        return max(self.explain(plan)["buckets"], key=lambda bucket: bucket["bytes"])["algorithm"]

    def compile_for(self, path, *extra, name="plan.weft"):
        plan = self.dir / name
        self.weft("compile", MODELS / "mlp.onnx", "-o", plan, "--batch", 16, "--topology", path, *extra)
        return plan

    def test_several_hosts_get_algorithms_of_several_levels(self):
        together = self.describe([4, {"name": "b", "ranks": 4}], link=self.LINK)
        dealt = self.describe([{"ranks": [0, 2, 4, 6]}, {"ranks": [1, 3, 5, 7]}], name="dealt.json", link=self.LINK)
        one = self.describe([8], name="one.json")
        for path, summary in ((together, "2 hosts x 4 ranks"), (dealt, "2 hosts x 4 ranks, round-robin")):
            plan = self.compile_for(path)
            self.assertEqual(self.explain(plan)["topology"], summary)
            self.assertIn(self.algorithm(plan), {"hierarchical", "rails"})
            self.assertIn(f"compiled for {summary}", self.weft("explain", plan).stdout)
            self.weft("verify", plan)
        plan = self.compile_for(one)
        self.assertEqual(self.explain(plan)["topology"], "1 host, 8 ranks")
        self.assertNotIn(self.algorithm(plan), {"hierarchical", "rails"})
        # One host is what is taken for granted.
        plain = self.compile("mlp.onnx", "plain.weft", 8, 16)
        self.assertEqual(self.explain(plain)["topology"], "")
        self.assertEqual(self.weft_json("compile", MODELS / "mlp.onnx", "-o", plan, "--batch", 16, "--topology",
                                        one)["structure_digest"],
                         self.weft_json("compile", MODELS / "mlp.onnx", "-o", plain, "--batch", 16, "--world",
                                        8)["structure_digest"])

    def test_a_compiled_graph_makes_the_same_plan_for_the_same_hosts(self):
        path = self.describe([2, 2], link=self.LINK)
        graph = self.dir / "compiled.onnx"
        first = self.explain(self.compile_for(path, "--emit-onnx", graph))
        self.weft("compile", graph, "-o", self.dir / "again.weft", "--topology", path)
        again = self.explain(self.dir / "again.weft")
        self.assertEqual(first["structure_digest"], again["structure_digest"])
        done = self.weft("compile", graph, "-o", self.dir / "other.weft")
        self.assertIn("profile_path and topology_path", done.stderr)

    def test_slower_links_make_longer_forecasts(self):
        times = []
        for gbit in (100, 10, 1):
            path = self.describe([4, 4], link={"gbit_per_s": gbit, "latency_us": 5})
            plan = self.compile_for(path)
            times.append(sum(bucket["predicted_ps"] for bucket in self.explain(plan)["buckets"]))
        self.assertLess(times[0], times[1])
        self.assertLess(times[1], times[2])

    def test_what_does_not_fit_is_refused(self):
        model = MODELS / "mlp.onnx"
        path = self.describe([2, 2])
        done = self.weft("compile", model, "-o", self.dir / "p", "--topology", path, "--world", 3, code=2)
        self.assertIn("does not match the topology: 3", done.stderr)
        done = self.weft("compile", model, "-o", self.dir / "p", "--topology", MACHINES / "uneven.json", code=2)
        self.assertIn("convert them with `weft topo`", done.stderr)
        empty = self.describe([{"name": "a", "cores": 4}], name="empty.json")
        done = self.weft("compile", model, "-o", self.dir / "p", "--topology", empty, code=2)
        self.assertIn("world_size: must be set", done.stderr)
        self.weft("compile", model, "-o", self.dir / "p", "--topology", empty, "--world", 2, "--batch", 4)
        # hwloc's files by way of weft topo.
        path = self.dir / "made.json"
        path.write_text(self.weft("topo", "--topology", MACHINES / "uneven.json", "--json").stdout)
        plan = self.compile_for(path, name="uneven.weft")
        self.assertEqual(self.explain(plan)["topology"], "3 hosts, 5 + 3 + 2 ranks")

    @NEED_DATA
    def test_elsewhere_a_plan_warns_and_makes_the_same_bits(self):
        here = self.compile("mlp.onnx", "here.weft", 2, 16)
        there = self.compile_for(self.describe([1, 1], link=self.LINK), name="there.weft")
        results = []
        for plan in (here, there):
            done = self.weft("run", plan, "-n", 2, "--data", DATA, "--steps", 3, "--no-eval", "--json")
            results.append(json.loads(done.stdout)["param_digest"])
            self.assertEqual("compiled for 2 hosts x 1 rank, but running on 1 host, 2 ranks" in done.stderr, plan == there,
                             done.stderr)
            self.assertNotIn("order=any", done.stderr)
        self.assertEqual(results[0], results[1])
        loose = self.compile_for(self.describe([1, 1], link=self.LINK), "--order", "any", name="loose.weft")
        done = self.weft("run", loose, "-n", 2, "--data", DATA, "--steps", 1, "--no-eval")
        self.assertIn("with order=any sums may have other bits", done.stderr)

    def run_on_two_hosts(self, *args, **env):
        """Four ranks, two of each host as far as they know; what rank 0 said, and all complaints."""
        shared = {**os.environ, "WEFT_WORLD_SIZE": "4", "WEFT_ADDRESS": f"file://{self.dir}/meet-{len(args)}-{len(env)}",
                  "WEFT_SECRET": "what only ranks of this test know", **env}
        ranks = [subprocess.Popen([WEFT, *map(str, args)], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  env={**shared, "WEFT_RANK": str(r), "WEFT_HOST_ID": "ab"[r // 2]})
                 for r in range(4)]
        done = [rank.communicate(timeout=600) for rank in ranks]
        errors = "".join(error for _, error in done)
        self.assertEqual([rank.returncode for rank in ranks], [0] * 4, errors)
        return done[0][0], errors

    def test_two_hosts_know_that_they_are(self):
        text, _ = self.run_on_two_hosts("topo", "--json")
        cluster = json.loads(text)
        self.assertEqual([host["ranks"] for host in cluster["hosts"]], [2, 2])
        self.assertEqual(cluster["hosts"][1]["like"], cluster["hosts"][0]["name"])
        by = {tuple(sorted(pair["ranks"])): pair["transport"] for pair in cluster["pairs"]}
        self.assertEqual({pair for pair, name in by.items() if name == "shm"}, {(0, 1), (2, 3)})
        self.assertEqual({name for pair, name in by.items() if pair not in {(0, 1), (2, 3)}} - {"tcp", "verbs"}, set())

    @NEED_DATA
    def test_two_hosts_take_algorithms_for_two(self):
        said = self.compile_for(self.describe([2, 2], link=self.LINK), name="said.weft")
        plain = self.compile("mlp.onnx", "plain.weft", 4, 16)
        work = ["--data", DATA, "--steps", 2, "--no-eval", "--json"]
        digests = {json.loads(self.weft("run", plain, "-n", 4, *work).stdout)["param_digest"]}
        for plan, env in ((said, {"WEFT_LOG": "debug"}), (plain, {"WEFT_LOG": "debug", "WEFT_LATE": "0"})):
            text, errors = self.run_on_two_hosts("run", plan, *work, **env)
            digests.add(json.loads(text)["param_digest"])
            self.assertRegex(errors, r"bucket \d: algorithm (hierarchical|rails)")
            self.assertNotIn("compiled for", errors)
        self.assertEqual(len(digests), 1)

    def test_ranks_need_the_same_description(self):
        paths = [self.describe([{"ranks": 2, "cores": 2 + r}], name=f"{r}.json") for r in range(2)]
        ranks = [subprocess.Popen([WEFT, "topo"], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  env={**os.environ, "WEFT_RANK": str(r), "WEFT_WORLD_SIZE": "2",
                                       "WEFT_ADDRESS": f"unix:{self.dir}/meet", "WEFT_TOPOLOGY": str(paths[r])})
                 for r in range(2)]
        for rank in ranks:
            _, error = rank.communicate(timeout=600)
            self.assertEqual(rank.returncode, 1, error)
            self.assertIn("rank 1 and rank 0 have different descriptions of the cluster (WEFT_TOPOLOGY)", error)

    def test_a_description_for_running_ranks(self):
        path = self.describe([{"name": "x", "ranks": 2, "cores": 2}])
        text = self.weft("run", "-n", 2, "--", WEFT, "topo", env={"WEFT_TOPOLOGY": str(path)}).stdout
        self.assertIn("host x", text)
        done = self.weft("run", "-n", 3, "--", WEFT, "topo", env={"WEFT_TOPOLOGY": str(path)}, code=2)
        self.assertIn("describes 2 ranks, the world has 3", done.stderr)


if __name__ == "__main__":
    support.main()
