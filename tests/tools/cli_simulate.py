#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`weft simulate`: a step on described clusters, by rank and by class, and files for other simulators."""
import json
import unittest

import trace_processor
from support import MODELS, Case, main


def hosts(count, ranks, per_rack=0, **more):
    """A description of equal hosts in racks."""
    first = {"ranks": ranks, "cores": 16, "l3_caches": 4, "nics": [{"name": "eth0", "gbit_per_s": 25}]}
    rows = [first if i == 0 else {"like": "host0", "ranks": ranks} for i in range(count)]
    if per_rack:
        rows = [{**row, "rack": i // per_rack} for i, row in enumerate(rows)]
    return {"format": 1, "hosts": rows, "link": {"gbit_per_s": 25, "latency_us": 5}, **more}


class Simulate(Case):
    def topology(self, description, name="topology.json"):
        path = self.dir / name
        path.write_text(description if isinstance(description, str) else json.dumps(description))
        return path

    def plan(self, topology, *options, model="mlp.onnx"):
        plan = self.dir / "plan.weft"
        self.weft("compile", MODELS / model, "-o", plan, "--topology", topology, "--batch", 8, *options)
        return plan

    def simulate(self, plan, topology, *options):
        return self.weft_json("simulate", plan, "--topology", topology, *options)

    def test_every_rank_and_classes_of_ranks_agree(self):
        topology = self.topology(hosts(12, 6, 4, levels={"rack": {"gbit_per_s": 50, "latency_us": 2},
                                                         "l3": {"latency_us": 0.1, "gbit_per_s": 80}}))
        for algorithm in ("ring", "halving-doubling", "doubling", "hierarchical", "rails", "mesh"):
            with self.subTest(algorithm):
                plan = self.plan(topology, "--order", "any", "--algo", f"all_reduce={algorithm}")
                exact = self.simulate(plan, topology, "--exact", 72)
                classes = self.simulate(plan, topology, "--exact", 1)
                self.assertTrue(exact["exact"])
                self.assertAlmostEqual(classes["step_us"] / exact["step_us"], 1, delta=0.15)

    def test_ranks_that_share_a_link_share_its_rate(self):
        steps = {}
        for name, description in (("alone", hosts(4, 1)), ("shared", hosts(4, 4)), ("slow", hosts(4, 1))):
            if name == "slow":
                description["link"]["gbit_per_s"] = 2.5
            topology = self.topology(description)
            plan = self.plan(topology, "--order", "any", "--algo", "all_reduce=ring", "--bucket", "none")
            found = self.simulate(plan, topology)
            steps[name] = found["communication_us"]
            self.assertIn("NIC", found["busiest_links"][0]["link"])
            self.assertLessEqual(found["busiest_links"][0]["busy"], 1)
        self.assertGreater(steps["slow"], 4 * steps["alone"])
        # Four ranks of a host on a ring send over its NIC only once: about as long as one rank.
        self.assertLess(steps["shared"], 4 * steps["alone"])

    def test_an_uplink_of_a_rack_slows_what_crosses_it(self):
        times = [self.simulate(self.plan(topology, "--order", "any", "--algo", "all_reduce=halving-doubling"), topology)
                 ["step_us"] for topology in (self.topology(hosts(4, 4, 2, levels={"rack": {"gbit_per_s": rate}}))
                                              for rate in (1000, 5))]
        self.assertGreater(times[1], 1.5 * times[0])

    def test_65536_ranks(self):
        topology = self.topology(hosts(8192, 8, 32, levels={"rack": {"gbit_per_s": 1600, "latency_us": 2}}))
        plan = self.plan(topology, model="families/gpt2.onnx")
        found = self.simulate(plan, topology)
        self.assertEqual((found["ranks"], found["exact"]), (65536, False))
        self.assertEqual({row["classes"] for row in found["collectives"]}, {256})
        self.assertGreater(found["step_us"], 0)
        text = self.weft("simulate", plan, "--topology", topology).stdout
        self.assertIn("simulated by class: up to 256 of 65536 ranks", text)
        done = self.weft("verify", plan, code=1)
        self.assertIn("\nnot proved: ", done.stdout)

    def test_one_host_and_other_numbers_of_ranks(self):
        plan = self.compile()
        for ranks in (1, 2, 3, 7, 8, 300):
            found = self.weft_json("simulate", plan, "-n", ranks)
            self.assertEqual(found["ranks"], ranks)
            self.assertGreaterEqual(found["step_us"] * 1.000001, found["kernels_us"])
        sharded = self.compile("mlp.onnx", "s.weft", 4, 64, "--shard-optimizer")
        self.assertEqual(self.weft_json("simulate", sharded, "-n", 6)["ranks"], 6)

    def test_what_is_invalid_is_refused(self):
        plan = self.compile()
        topology = self.topology(hosts(2, 1))
        self.assertIn("a plan is required", self.weft("simulate", code=2).stderr)
        self.weft("simulate", topology, code=2)
        self.assertIn("does not match the topology", self.weft("simulate", plan, "--topology", topology, "-n", 3,
                                                               code=2).stderr)
        for text, message in (('{"format": 1, "hosts": [{"ranks": 2, "rack": -1}]}', "rack"),
                              ('{"format": 1, "hosts": [2], "levels": 3}', "levels"),
                              ('{"format": 1, "hosts": [2], "levels": {"l3": {"gbit_per_s": -1}}}', "l3"),
                              ('{"format": 1, "hosts": [2], "levels": {"numa": 7}}', "numa"),
                              ('{"format": 1, "hosts": [2', "json")):
            done = self.weft("simulate", plan, "--topology", self.topology(text), code=2)
            self.assert_one_line(done.stderr)
            self.assertIn(message, done.stderr)

    def test_the_description_is_written_as_it_was_read(self):
        topology = self.topology(hosts(2, 1, 1, levels={"rack": {"gbit_per_s": 50}, "l3": {"latency_us": 0.5}}))
        again = json.loads(self.weft("topo", "--topology", topology, "--json").stdout)
        self.assertEqual([host["rack"] for host in again["hosts"]], [0, 1])
        self.assertEqual((again["levels"]["rack"]["gbit_per_s"], again["levels"]["l3"]["latency_us"]), (50, 0.5))

    @unittest.skipIf(trace_processor.missing(), trace_processor.missing())
    def test_perfetto_reads_the_timeline(self):
        plan = self.compile()
        path = self.dir / "step.json"
        found = self.weft_json("simulate", plan, "--perfetto", path)
        processor = trace_processor.TraceProcessor(path.read_bytes())
        rows = processor.query("select name, dur from slice where category = 'communication'")
        self.assertEqual(len(rows), 2 * len(found["collectives"]))


if __name__ == "__main__":
    main()
