#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`weft simulate`: a step on described clusters, by rank and by class, and files for other simulators."""
import json
import re
import resource
import unittest

import trace_processor
from support import MODELS, SANITIZED, Case, main


def hosts(count, ranks, per_rack=0, **more):
    """A description of equal hosts in racks."""
    first = {"ranks": ranks, "cores": 16, "l3_caches": 4, "nics": [{"name": "eth0", "gbit_per_s": 25}]}
    rows = [first if i == 0 else {"like": "host0", "ranks": ranks} for i in range(count)]
    if per_rack:
        rows = [{**row, "rack": i // per_rack} for i, row in enumerate(rows)]
    return {"format": 1, "hosts": rows, "link": {"gbit_per_s": 25, "latency_us": 5}, **more}


def read_goal(text):
    """Operations of each rank by label: (words, labels that are required)."""
    ranks = {}
    for line in text.splitlines()[1:]:
        if match := re.fullmatch(r"rank (\d+) {", line):
            ranks[int(match[1])] = operations = {}
        elif match := re.fullmatch(r"(l\d+): (.*)", line):
            operations[match[1]] = (match[2].split(), [])
        elif match := re.fullmatch(r"(l\d+) requires (l\d+)", line):
            operations[match[1]][1].append(match[2])
        else:
            assert line in ("", "}"), line
    return ranks


def play(ranks):
    """Runs operations as soon as they can; the bytes that were sent and received. Fails where they cannot."""
    done, sent, received = {rank: set() for rank in ranks}, {}, 0
    while any(len(done[rank]) < len(operations) for rank, operations in ranks.items()):
        before = sum(map(len, done.values()))
        for rank, operations in ranks.items():
            for label, (words, required) in operations.items():
                if label in done[rank] or not done[rank].issuperset(required):
                    continue
                if words[0] == "send":
                    assert (rank, int(words[3]), words[5]) not in sent
                    sent[rank, int(words[3]), words[5]] = words[1]
                elif words[0] == "recv":
                    key = int(words[3]), rank, words[5]
                    if key not in sent:
                        continue
                    assert sent.pop(key) == words[1], key
                    received += int(words[1][:-1])
                done[rank].add(label)
        assert sum(map(len, done.values())) > before, "a rank waits for ever"
    assert not sent
    return received


def fields(data):
    """(number, value) of a protobuf message: varints and bytes."""
    at = 0

    def varint():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = data[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value
    while at < len(data):
        key = varint()
        assert key & 7 in (0, 2), key
        if key & 7 == 0:
            yield key >> 3, varint()
        else:
            length = varint()
            yield key >> 3, data[at:at + length]
            at += length


def chakra_nodes(data):
    """Nodes of a file of length-prefixed messages."""
    at, nodes = 0, []
    while at < len(data):
        length, shift = 0, 0
        while data[at] > 127:
            length, shift, at = length | (data[at] & 127) << shift, shift + 7, at + 1
        length, at = length | data[at] << shift, at + 1
        nodes.append(list(fields(data[at:at + length])))
        at += length
    assert nodes[0] == [(1, b"0.0.4")]
    return [dict(node) | {"deps": [value for key, value in node if key == 5],
                          "attributes": {dict(fields(value))[1].decode(): list(fields(value))[1] for key, value in node
                                         if key == 10}} for node in nodes[1:]]


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

    @unittest.skipIf(SANITIZED, "takes long; the other cases reach the same code")
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

    def test_ranks_in_turns_cost_as_consecutive_ones(self):
        """Neighbours in a ring and halves of a tree follow hosts and racks, wherever ranks are."""
        rows = hosts(4, 4, 2, levels={"rack": {"gbit_per_s": 10, "latency_us": 2}})
        turns = hosts(4, 4, 2, levels=rows["levels"])
        for place, host in enumerate(turns["hosts"]):
            host["ranks"] = list(range(place, 16, 4))
            host["rack"] = place % 2
        for algorithm in ("ring", "halving-doubling", "doubling"):
            with self.subTest(algorithm):
                steps = []
                for topology in (self.topology(rows, "rows.json"), self.topology(turns, "turns.json")):
                    plan = self.plan(topology, "--order", "any", "--algo", f"all_reduce={algorithm}")
                    steps.append(self.simulate(plan, topology)["communication_us"])
                self.assertAlmostEqual(steps[1] / steps[0], 1, delta=0.05)

    @unittest.skipIf(SANITIZED, "takes long; the other cases reach the same code")
    def test_the_planner_takes_what_is_simulated_to_be_the_quickest(self):
        """Each algorithm forced on the same bucket; the choice without --algo is as quick as the best."""
        topologies = {
            "slow racks": hosts(8, 4, 2, levels={"rack": {"gbit_per_s": 5, "latency_us": 2}}),
            "one switch": hosts(4, 2),
            "far apart": {**hosts(4, 2), "link": {"gbit_per_s": 100, "latency_us": 500}},
            "one host": hosts(1, 8, levels={"l3": {"latency_us": 0.1, "gbit_per_s": 400},
                                            "socket": {"latency_us": 0.5, "gbit_per_s": 50}}),
            "round-robin": {**hosts(4, 0), "hosts": [{**row, "ranks": list(range(i, 16, 4))}
                                                     for i, row in enumerate(hosts(4, 4)["hosts"])]},
        }
        chosen = set()
        for name, description in topologies.items():
            topology = self.topology(description)
            for model in ("lenet.onnx", "mlp.onnx"):
                with self.subTest(name, model=model):
                    best = self.simulate(self.plan(topology, "--bucket", "one", model=model), topology)
                    chosen.add(best["collectives"][0]["algorithm"])
                    for algorithm in ("mesh", "one-shot", "doubling", "halving-doubling", "hierarchical", "rails"):
                        if name == "one host" and algorithm in ("hierarchical", "rails"):
                            continue
                        plan = self.plan(topology, "--bucket", "one", "--algo", f"all_reduce={algorithm}", model=model)
                        forced = self.simulate(plan, topology)
                        self.assertEqual(forced["collectives"][0]["algorithm"], algorithm)
                        self.assertLessEqual(best["communication_us"], forced["communication_us"] * 1.05, algorithm)
        self.assertGreater(len(chosen), 1)

    @unittest.skipIf(SANITIZED, "takes long; the other cases reach the same code")
    def test_levels_are_taken_where_racks_are_far_apart(self):
        """Of 4 hosts in 2 racks with a slow link between them; another row for each size."""
        topology = self.topology(hosts(4, 4, 2, levels={"rack": {"gbit_per_s": 10, "latency_us": 5}}))
        rows, chosen = ("levels-lww", "levels-lsw", "levels-lss", "levels-ssw", "levels-sss"), []
        for model, bucket in (("mlp.onnx", "none"), ("mlp.onnx", "one")):
            options = ("--order", "any", "--bucket", bucket)
            plan = self.plan(topology, *options, model=model)
            best = self.simulate(plan, topology)
            self.assertTrue(self.weft("verify", plan).stdout.endswith("\nproved\n"))
            for listed in self.weft_json("explain", plan)["buckets"]:  # sessions without WEFT_TOPOLOGY know no racks
                self.assertTrue(set(listed["candidates"]) - {*rows, "mesh"}, listed)
            chosen.append({row["algorithm"] for row in best["collectives"]})
            for algorithm in (*rows, "ring", "halving-doubling", "hierarchical", "rails"):
                plan = self.plan(topology, *options, "--algo", f"all_reduce={algorithm}", model=model)
                forced = self.simulate(plan, topology)["communication_us"]
                self.assertLessEqual(best["communication_us"], forced * 1.05, (algorithm, bucket))
                if algorithm not in rows:
                    self.assertLess(best["communication_us"] * 1.2, forced, (algorithm, bucket))
        self.assertGreater(len(chosen[0]), 1, chosen)  # sizes differ, and so do the rows
        for algorithm in chosen[0] | chosen[1]:
            self.assertIn(algorithm, rows)

    def test_one_fast_link_changes_the_plan(self):
        """Of four hosts, two of which a fast link joins; groups of tensor parallelism are on these two."""
        choices = []
        for links in ({}, {"links": [{"hosts": [0, 1], "gbit_per_s": 400, "latency_us": 1},
                                     {"hosts": [2, 3], "gbit_per_s": 400, "latency_us": 1}]}):
            topology = self.topology({**hosts(4, 1), "link": {"gbit_per_s": 1, "latency_us": 50}, **links})
            plan = self.dir / "tensor.weft"
            self.weft("compile", MODELS / "mlp.onnx", "-o", plan, "--topology", topology, "--batch", 8, "--tensor-parallel", 2)
            text = self.weft("explain", plan, "--json").stdout
            choices.append((text, self.simulate(plan, topology)["step_us"]))
        self.assertNotEqual(choices[0][0], choices[1][0])
        self.assertLess(choices[1][1], choices[0][1])

    @unittest.skipIf(SANITIZED, "takes long; the other cases reach the same code")
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

    def costs(self, cores=2):
        """A table of a machine: kernels of any size take 1 ns per unit of their size."""
        kinds = ("product", "conv", "conv_grad", "exp", "pool", "move", "update")
        path = self.dir / "costs.json"
        path.write_text(json.dumps({"format": 1, "name": "test", "cores": cores, "kernels": [
            {"kind": kind, "threads": 1, "size": size, "ns": size} for kind in kinds for size in (1, 1e6)]}))
        return path

    def test_ranks_share_the_cores_of_their_host(self):
        costs = self.costs()
        plan = self.compile()
        found = {ranks: self.weft_json("simulate", plan, "-n", ranks, "--costs", costs) for ranks in (2, 3, 4, 8, 9, 65)}
        self.assertEqual(len({row["kernels_us"] for row in found.values()}), 1)
        kernels = found[2]["kernels_us"]
        for ranks, turns in ((2, 1), (3, 2), (4, 2), (8, 4), (9, 5), (65, 1)):
            # Beside turns of kernels there is some communication.
            step = found[ranks]["step_us"]
            self.assertGreaterEqual(step, turns * kernels)
            self.assertLess(step, (turns + 0.5) * kernels)
        # A described host has cores of its own.
        for cores, turns in ((4, 1), (2, 2), (1, 4)):
            topology = self.topology({"format": 1, "hosts": [{"ranks": 4, "cores": cores}]})
            step = self.simulate(plan, topology, "-n", 4, "--costs", costs)["step_us"]
            self.assertEqual(int(step / kernels), turns)

    def test_compile_shares_cores_only_on_one_host(self):
        costs, times = self.costs(), {}
        for ranks in (2, 4, 65536):
            plan = self.dir / "plan.weft"
            self.weft("compile", MODELS / "mlp.onnx", "-o", plan, "-n", ranks, "--batch", 8, "--costs", costs)
            times[ranks] = self.weft_json("explain", plan)["ready_us"]
        self.assertAlmostEqual(times[4] / times[2], 2, places=2)
        self.assertAlmostEqual(times[65536] / times[2], 1, places=2)

    def test_compile_shares_described_cores_without_a_table(self):
        """The planner and the simulator count the turns of ranks on a core alike."""
        plan, ready = self.dir / "plan.weft", {}
        for cores in (4, 2, 1):
            topology = self.topology({"format": 1, "hosts": [{"ranks": 4, "cores": cores}]})
            self.weft("compile", MODELS / "mlp.onnx", "-o", plan, "--topology", topology, "--batch", 8)
            found = self.weft_json("explain", plan)
            ready[cores] = found["ready_us"]
            self.assertAlmostEqual(found["step_us"] / self.simulate(plan, topology)["step_us"], 1, delta=0.15)
        self.assertAlmostEqual(ready[2] / ready[4], 2, places=2)
        self.assertAlmostEqual(ready[1] / ready[4], 4, places=2)

    def test_links_count_where_the_simulator_cannot_predict(self):
        plan, times = self.dir / "plan.weft", []
        for gbit in (1, 100):
            topology = self.topology({**hosts(300, 4), "link": {"gbit_per_s": gbit, "latency_us": 5}})
            self.weft("compile", MODELS / "mlp.onnx", "-o", plan, "--topology", topology, "--batch", 8,
                      "--algo", "all_reduce=mesh", "--bucket", "one")
            times.append(self.weft_json("explain", plan)["step_us"])
        self.assertGreater(times[0], 2 * times[1])

    def test_kernel_times_of_a_profile(self):
        plan, profile = self.compile(), self.dir / "profile.json"
        self.train(plan, "--write-profile", profile, steps=3)
        measured = json.loads(profile.read_text())["kernels"]
        for ranks in (2, 4):
            found = self.weft_json("simulate", self.compile(name="p.weft", world=ranks), "--profile", profile)
            self.assertAlmostEqual(found["kernels_us"] / sum(kernel["ns"] * 1e-3 for kernel in measured), 1, places=3)
        self.assertIn("topology.json", self.weft("simulate", plan, "--profile", self.topology("{}"), code=2).stderr)

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

    def test_goal_and_chakra_traces_can_be_replayed(self):
        for world, options in ((2, ()), (3, ("--order", "any", "--algo", "all_reduce=ring")), (4, ("--shard-optimizer",)),
                               (5, ("--algo", "all_reduce=halving-doubling"))):
            with self.subTest(world=world, options=options):
                plan = self.compile("lenet.onnx", "p.weft", world, 8, *options)
                self.weft("simulate", plan, "--goal", self.dir / "x.goal", "--chakra", self.dir / "x")
                text = (self.dir / "x.goal").read_text()
                self.assertTrue(text.startswith(f"num_ranks {world}\n"))
                ranks = read_goal(text)
                self.assertEqual(sorted(ranks), list(range(world)))
                # At the least, each rank gets the gradients of the others once: 44,426 f32 of LeNet.
                self.assertGreater(play(ranks), 44426 * 4 * (world - 1))
                for rank, operations in ranks.items():
                    nodes = chakra_nodes((self.dir / f"x.{rank}.et").read_bytes())
                    self.assertEqual(len(nodes), len(operations))
                    for node, (label, (words, required)) in zip(nodes, operations.items()):
                        self.assertEqual((f"l{node[1]}", node[3]), (label, {"calc": 4, "send": 5, "recv": 6}[words[0]]))
                        self.assertEqual([f"l{number}" for number in node["deps"]], required)
                        if words[0] != "calc":
                            self.assertEqual(node["attributes"]["comm_size"], (9, int(words[1][:-1])))
                            self.assertEqual(node["attributes"]["comm_tag"], (7, int(words[5])))
                            ends = [node["attributes"][name][1] for name in ("comm_src", "comm_dst")]
                            self.assertEqual(ends, [rank, int(words[3])][::1 if words[0] == "send" else -1])

    def test_traces_of_large_groups(self):
        """Where all ranks wait for all, by a barrier of log2 n rounds."""
        plan, goal = self.compile("lenet.onnx", "p.weft", 4, 8, "--algo", "all_reduce=halving-doubling"), self.dir / "x.goal"
        for ranks in (80, 128):
            self.weft("simulate", plan, "-n", ranks, "--goal", goal)
            found = read_goal(goal.read_text())
            self.assertEqual(sorted(found), list(range(ranks)))
            self.assertGreater(play(found), 44426 * 4 * (ranks - 1))
            most = max(sum(words[0] == "send" for words, _ in operations.values()) for operations in found.values())
            self.assertLess(most, ranks)
        goal.unlink()
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        done = self.weft("simulate", plan, "-n", 128, "--goal", goal, code=2, preexec_fn=limit)
        self.assertRegex(done.stderr, "cannot write .*x.goal: File too large")
        self.assertFalse(goal.exists())
        if not SANITIZED:
            done = self.weft("simulate", plan, "-n", 4160, "--goal", goal, "--chakra", self.dir / "x")
            self.assertRegex(done.stderr, r"writing .*/x: about .* in 4160 files")
            text = goal.read_text()
            self.assertEqual((text.count("\nrank "), text.count(" send ")), (4160, text.count(" recv ")))
            self.assertEqual(len(chakra_nodes((self.dir / "x.4159.et").read_bytes())),
                             text[text.index("\nrank 4159 {"):].count(": "))

    def test_what_is_another_name_of_its_input_takes_a_call(self):
        """By a table in which a call takes 10 ns and a byte 1 ns."""
        costs, trace = self.dir / "costs.json", self.dir / "step.json"
        points = [{"kind": "move", "threads": threads, "size": size, "ns": size + 10} for threads in (1, 2) for size in (0.001, 1e6)]
        costs.write_text(json.dumps({"format": 1, "cores": 2, "kernels": points}))
        self.weft("simulate", self.compile("lenet.onnx", "p.weft", 2, 8), "--costs", costs, "--perfetto", trace)
        times = {event["args"]["op"]: event["dur"] for event in json.loads(trace.read_text())["traceEvents"] if "op" in event.get("args", {})}
        self.assertLess(times["Reshape"], 0.2)
        self.assertGreater(times["Relu"], 1)

    def test_groups_of_one_rank_exchange_nothing(self):
        plan = self.compile("mlp.onnx", "p.weft", 1)
        self.assertIn("none: groups of one rank\n", self.weft("simulate", plan).stdout)
        found = self.weft_json("simulate", plan)
        self.assertEqual([(event["algorithm"], event["exact"]) for event in found["collectives"]],
                         len(found["collectives"]) * [(None, True)])

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
