#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weft algos and weft verify."""
import json
import os
import subprocess
import tempfile
import time
import unittest

import support

TOOL = os.environ["WEFT_TOOL"]


def weft(*args):
    return subprocess.run([TOOL, *args], capture_output=True, text=True, timeout=600)


class Algos(unittest.TestCase):
    def test_rows_name_algorithm_and_reasons(self):
        done = weft("algos", "-n", "8", "--op", "AllReduce", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = json.loads(done.stdout)["rows"]
        self.assertEqual([row["bytes"] for row in rows], [8 ** k for k in range(1, 9)])
        for row in rows:
            names = {c["algorithm"] for c in row["candidates"]}
            self.assertLessEqual({"mesh", "one-shot", "doubling", "halving-doubling", "ring"}, names)
            # Hand-written code goes first unless others are 5 % quicker.
            times = [c["predicted_us"] * (1 if c["executor"] else 1.05) for c in row["candidates"]
                     if "predicted_us" in c]
            self.assertEqual(times, sorted(times))
            ring = next(c for c in row["candidates"] if c["algorithm"] == "ring")
            self.assertIn("order", ring["reason"])
        self.assertEqual(rows[-1]["algorithm"], "mesh")

    def test_every_operator_has_a_choice(self):
        done = weft("algos", "-n", "5")
        self.assertEqual(done.returncode, 0, done.stderr)
        for op in ("all_reduce", "broadcast", "reduce_scatter", "all_gather", "reduce", "gather", "scatter",
                   "all_to_all", "send_recv", "barrier"):
            self.assertIn(f"{op}, 5 ranks", done.stdout)

    def test_several_hosts(self):
        def rows(*args):
            done = weft("algos", "--op", "AllReduce", "--json", *args)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)

        in_row, in_turn = rows("--ranks-per-host", "4,4"), rows("--ranks-per-host", "4,4", "--round-robin")
        self.assertEqual(in_row["ranks"], 8)
        self.assertEqual(in_row["rows"][-1]["algorithm"], "rails")
        self.assertFalse(any(c.get("executor") for row in in_row["rows"] for c in row["candidates"]))
        # Ranks in turn are no subtrees: more has to cross than one sum of each host.
        self.assertGreater(in_turn["rows"][-1]["candidates"][0]["predicted_us"],
                           1.5 * in_row["rows"][-1]["candidates"][0]["predicted_us"])
        tcp, verbs = rows("--ranks-per-host", "1,1"), rows("--ranks-per-host", "1,1", "--links", "verbs")
        self.assertGreater(tcp["rows"][0]["candidates"][0]["predicted_us"],
                           3 * verbs["rows"][0]["candidates"][0]["predicted_us"])
        self.assertIn("are sent together with the call's signature", weft("algos", "--ranks-per-host", "1,1", "--op", "AllReduce").stdout)
        for wrong in (["--ranks-per-host", "4,4", "-n", "7"], ["--ranks-per-host", "4,4", "--links", "pigeons"], ["--ranks-per-host", "4,x"]):
            self.assertEqual(weft("algos", *wrong).returncode, 2, wrong)

    def test_measured_table_decides(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"format": 1, "measured": [{"op": "AllReduce", "algorithm": "one-shot", "ranks": 4,
                                                  "alpha_ns": 1}]}, file)
            file.flush()
            done = weft("algos", "-n", "4", "--op", "AllReduce", "--costs", file.name)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("one-shot"), done.stdout.count("(measured)"))
        self.assertIn("one-shot", done.stdout)

    def test_executors_and_orders_as_in_the_runtime(self):
        def rows(*args):
            done = weft("algos", "-n", "4", "--op", "AllReduce", "--json", *args)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)["rows"]

        def executors(some):
            return {c["algorithm"] for row in some for c in row["candidates"] if c.get("executor")}

        self.assertEqual(executors(rows()), {"mesh", "one-shot"})
        self.assertEqual(executors(rows("--order", "blocks:2,2")), {"mesh", "one-shot"})  # subtrees
        odd = rows("--order", "blocks:3,1")
        self.assertEqual(executors(odd), set())
        self.assertLessEqual({row["algorithm"] for row in odd}, {"mesh", "one-shot"})
        self.assertIn("predicted_us", next(c for c in rows("--order", "any")[0]["candidates"]
                                           if c["algorithm"] == "ring"))

    def test_large_groups_are_not_predicted(self):
        done = weft("algos", "-n", "1000", "--op", "AllReduce", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        for row in json.loads(done.stdout)["rows"]:
            self.assertEqual(row["candidates"], [{"algorithm": "mesh", "predicted_us": None, "measured": False,
                                                  "executor": True}])
        done = weft("algos", "-n", "96", "--ranks-per-host", "32,32,32", "--op", "AllReduce")
        self.assertEqual(done.stdout.count("hierarchical       (not compared: more than 64 ranks)"), 8, done.stdout)

    def test_a_class_of_sizes_is_one(self):
        measured = [{"op": "AllReduce", "algorithm": "one-shot", "ranks": 2, "from_bytes": 4096, "alpha_ns": 1},
                    {"op": "AllReduce", "algorithm": "doubling", "ranks": 2, "from_bytes": 4100, "alpha_ns": 0}]
        plain = [{**measured[0], "memory": "plain", "from_bytes": 0, "alpha_ns": 12345}]
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"format": 1, "measured": measured + plain}, file)
            file.flush()
            rows = {row["bytes"]: row["algorithm"] for row in json.loads(
                weft("algos", "--op", "AllReduce", "--json", "--costs", file.name).stdout)["rows"]}
            done = subprocess.run([TOOL, "algos", "--op", "AllReduce", "--memory", "plain", "--algo", "one-shot"],
                                  capture_output=True, text=True, timeout=600,
                                  env={**os.environ, "WEFT_COSTS": file.name})
        self.assertEqual(rows[4096], "one-shot")
        self.assertEqual(rows[32768], "doubling")
        self.assertEqual(done.stdout.count("12.35 us (measured)"), 8, done.stdout)

    def test_override_that_cannot_be_honoured_is_an_error(self):
        done = weft("algos", "-n", "4", "--op", "AllReduce", "--algo", "ring")
        self.assertEqual(done.returncode, 2)
        self.assertIn("AllReduce ring: it cannot realise the group's reduction order", done.stderr)
        done = weft("algos", "-n", "4", "--op", "AllReduce", "--algo", "ring", "--order", "any")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_bad_input_is_named(self):
        for args, text in ((("--op", "AllGarble"), "--op AllGarble: unknown operator; must be all_reduce, "),
                           (("--ranks-per-host", "4,x"), "--ranks-per-host 4,x"),
                           (("--ranks-per-host", "4,4", "-n", "9"), "sum to 8 ranks, but the group has 9"),
                           (("--order", "odd"), "--order odd"),
                           (("--order", "blocks:2,x"), "--order blocks:2,x"),
                           (("--memory", "borrowed"), "--memory borrowed"),
                           (("--costs", "/nonexistent"), "/nonexistent"),
                           (("--algo", "nonsense"), "no operator matches")):
            done = weft("algos", *args)
            self.assertEqual(done.returncode, 2, args)
            self.assertIn(text, done.stderr)


class AtCompile(support.Case):
    """compile --algo and --order."""

    def refused(self, words, *options, world=4):
        done = self.weft("compile", support.MODELS / "mlp.onnx", "-o", self.dir / "p.weft", "--world", world, "--batch",
                         8, *options, code=2)
        self.assert_one_line(done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def test_what_cannot_run_is_refused_with_candidates(self):
        self.refused(("AllReduce=ring: it cannot realise the group's reduction order (order any allows it): 4 ranks", "candidates: mesh, one-shot",
                      "(--algo)"), "--algo", "all_reduce=ring")
        self.refused(("AllReduce=rin: unknown algorithm", "halving-doubling, ring"), "--algo", "all_reduce=rin", "--order",
                     "any")
        self.refused(("AllReduce=hierarchical: the group is on one host: 4 ranks",), "--algo", "AllReduce=hierarchical")
        self.refused(("unknown collective 'all'",), "--algo", "all=ring")
        self.refused(("expected a collective and an algorithm",), "--algo", "ring")
        self.refused(("two algorithms for AllReduce: mesh and one-shot",), "--algo", "all_reduce=mesh", "--algo",
                     "AllReduce=one-shot")
        self.refused(("order: expected 'tree', 'any', or 'blocks:'", "(--order)"), "--order", "ring")
        self.refused(("blocks must have all ranks: blocks:3,2 has 5, world_size 4",), "--order", "blocks:3,2")
        self.refused(("excludes global_micro_batches",), "--order", "any", "--global-micro-batches", 4)

    def test_the_plan_has_the_algorithm_and_the_order(self):
        for options, op, expected in (
                (("--order", "any", "--algo", "all_reduce=ring"), "AllReduce", ("any", "ring")),
                (("--algo", "all_reduce=doubling,broadcast=chain"), "AllReduce", ("tree", "doubling")),
                (("--order", "any", "--shard-optimizer", "--algo", "reduce_scatter=ring"), "ReduceScatter", ("any", "ring")),
                (("--order", "blocks:3,1"), "AllReduce", ("blocks:3,1", "mesh"))):
            plan = self.compile("mlp.onnx", "p.weft", 4, 8, *options, "--emit-onnx", self.dir / "again.onnx")
            report = self.weft_json("explain", plan)
            for bucket in report["buckets"]:
                self.assertEqual((bucket["order"], bucket["algorithm"]), expected, options)
            self.weft("verify", plan)
            again = self.dir / "again.weft"
            self.weft("compile", self.dir / "again.onnx", "-o", again)
            self.assertEqual(self.weft_json("explain", again)["structure_digest"], report["structure_digest"])

    def test_several_hosts_are_those_of_the_topology(self):
        path = self.dir / "cluster.json"
        path.write_text(json.dumps({"format": 1, "hosts": [2, {"name": "b", "ranks": 2}]}))
        plan = self.compile("mlp.onnx", "p.weft", 4, 8, "--topology", path, "--algo", "all_reduce=hierarchical")
        self.assertEqual({b["algorithm"] for b in self.weft_json("explain", plan)["buckets"]}, {"hierarchical"})

    @support.NEED_DATA
    def test_steps_run_in_that_order(self):
        digests = {}
        for order in ("tree", "any", "blocks:3,1"):
            algo = ("--algo", "all_reduce=ring") if order == "any" else ()
            plan = self.compile("mlp.onnx", "p.weft", 4, 8, "--order", order, *algo)
            reports = [self.train(plan, world=4, steps=3, env={"WEFT_CHECK": "results", "WEFT_ALGO": name})
                       for name in (("",) if order == "any" else ("", "all_reduce=one-shot"))]
            self.assertEqual(len({report["param_digest"] for report in reports}), 1, order)
            digests[order] = reports[0]
        self.assertEqual(len({report["param_digest"] for report in digests.values()}), 3)
        for report in digests.values():
            self.assertAlmostEqual(report["loss_last"], digests["tree"]["loss_last"], places=4)


def pairs_file(path, ranks, skips=None):
    """An all-reduce of MSCCL: everybody sends everything to everybody, and adds. Rank 0 does not add that of rank skips."""
    def step(number, kind, source, target, needs=(-1, -1)):
        return (f'<step s="{number}" type="{kind}" srcbuf="{source[0]}" srcoff="{source[1]}" dstbuf="{target[0]}" '
                f'dstoff="{target[1]}" cnt="2" depid="{needs[0]}" deps="{needs[1]}" hasdep="0"/>')

    text = [f'<algo name="pairs" nchunksperloop="2" ngpus="{ranks}" coll="allreduce" inplace="0">']
    for rank in range(ranks):
        text.append(f'<gpu id="{rank}" i_chunks="2" o_chunks="2" s_chunks="{2 * (ranks - 1)}">')
        peers = [peer for peer in range(ranks) if peer != rank]
        for i, peer in enumerate(peers):
            text += [f'<tb id="{i}" send="{peer}" recv="{peer}" chan="0">', step(0, "s", ("i", 0), ("s", 0)),
                     step(1, "r", ("i", 0), ("s", 2 * i)), "</tb>"]
        steps = [("cpy", ("i", 0), ("o", 0))] + [("nop", ("i", 0), ("o", 0), (i, 1)) for i in range(ranks - 1)]
        steps += [("re", ("s", 2 * i), ("o", 0)) for i, peer in enumerate(peers) if rank > 0 or peer != skips]
        text += [f'<tb id="{ranks - 1}" send="-1" recv="-1" chan="0">', *(step(i, *what) for i, what in enumerate(steps)),
                 "</tb></gpu>"]
    path.write_text("\n".join([*text, "</algo>"]))
    return path


class Msccl(support.Case):
    def test_a_file_is_proved(self):
        path = pairs_file(self.dir / "pairs.xml", 4)
        text = self.weft("verify", path).stdout
        self.assertRegex(text, r"^pairs-[0-9a-f]{8}: AllReduce of 4 ranks proved, order tree; 4 lanes, ")
        found = self.weft_json("verify", path)
        self.assertEqual((found["ok"], found["op"], found["ranks"], found["order"]), (True, "all_reduce", 4, "tree"))
        wrong = pairs_file(self.dir / "wrong.xml", 4, skips=2)
        self.assertIn("output chunk 0 of gpu 0 lacks the contribution of gpu 2",
                      self.weft("verify", wrong, code=1).stderr)
        path.write_text(path.read_text()[:999])
        self.assertIn("pairs.xml:", weft("verify", path).stderr)

    def test_many_steps_are_read_quickly(self):
        """2^17 steps that do nothing before one of many chunks."""
        path, chunks, count = self.dir / "nops.xml", 1 << 10, 1 << 17
        nop = '<step s="{}" type="nop" depid="-1" deps="-1" hasdep="0"/>'
        moves = [f'<step s="{s}" type="{kind}" srcbuf="{a}" srcoff="0" dstbuf="{b}" dstoff="0" cnt="{chunks}" depid="-1" '
                 f'deps="-1" hasdep="0"/>'
                 for s, kind, a, b in ((0, "s", "i", "i"), (1, "r", "s", "s"), (count - 1, "re", "s", "i"))]
        rows = [*moves[:2], *(nop.format(s) for s in range(2, count - 1)), moves[2]]
        path.write_text("\n".join([f'<algo name="nops" nchunksperloop="{chunks}" ngpus="2" coll="allreduce" inplace="1">', *(
            "\n".join([f'<gpu id="{r}" i_chunks="{chunks}" o_chunks="0" s_chunks="{chunks}"><tb id="0" send="{1 - r}" '
                       f'recv="{1 - r}" chan="0">', *rows, "</tb></gpu>"]) for r in range(2)), "</algo>"]))
        begin = time.monotonic()
        self.weft("verify", path)
        self.assertLess(time.monotonic() - begin, support.PROMPT)

    def test_a_file_is_measured(self):
        path = pairs_file(self.dir / "pairs.xml", 4)
        rows = self.weft_json("bench", "all_reduce", "-n", 4, "--algo", path, "--max", "4K", "--iterations", 5, "--check")["rows"]
        self.assertEqual({(row["algo"][:6], row["wrong"]) for row in rows}, {("pairs-", 0)})
        for words, text in ((("all_reduce", "-n", 2), "its file describes 4 ranks"),
                            (("all_gather", "-n", 4), "the file is an algorithm of all_reduce, not all_gather")):
            self.assertIn(text, self.weft("bench", *words, "--algo", path, code=2).stderr)
        self.assertIn("none.xml", self.weft("bench", "all_reduce", "--algo", self.dir / "none.xml", code=2).stderr)

    @support.NEED_DATA
    def test_a_plan_runs_by_a_file(self):
        for ranks in (2, 4):
            path = pairs_file(self.dir / f"pairs{ranks}.xml", ranks)
            plan = self.compile("mlp.onnx", "p.weft", ranks, 8)
            reports = [self.train(plan, world=ranks, steps=3, env={"WEFT_CHECK": "results", "WEFT_ALGO": name})
                       for name in ("", str(path), f"all_reduce={path}")]
            self.assertEqual(len({report["param_digest"] for report in reports}), 1)
        done = self.weft("run", plan, "-n", 4, "--data", support.DATA, "--steps", 1, code=2,
                         env={"WEFT_ALGO": str(self.dir / "pairs2.xml")})
        self.assertIn("its file describes 2 ranks", done.stderr)


    def refused(self, words, *options, world=4):
        done = self.weft("compile", support.MODELS / "mlp.onnx", "-o", self.dir / "r.weft", "-n", world, "--batch", 8,
                         *options, code=2)
        self.assert_one_line("\n".join(line for line in done.stderr.splitlines() if "warn:" not in line))
        self.assertIn(words, done.stderr)
        self.assertFalse((self.dir / "r.weft").exists())

    def test_a_plan_contains_its_file(self):
        path, again = pairs_file(self.dir / "pairs.xml", 4), self.dir / "again.weft"
        plan = self.compile("mlp.onnx", "p.weft", 4, 8, "--algo", path, "--emit-onnx", self.dir / "c.onnx")
        path.unlink()
        report = self.weft_json("explain", plan)
        name = report["buckets"][0]["algorithm"]
        self.assertRegex(name, "^pairs-[0-9a-f]{8}$")
        self.assertEqual({bucket["algorithm"] for bucket in report["buckets"]}, {name})
        self.assertGreater(min(bucket["predicted_ps"] for bucket in report["buckets"]), 0)
        self.assertEqual([(file["file"], file["algorithm"], file["op"]) for file in report["algorithm_files"]],
                         [("pairs.xml", name, "AllReduce")])
        self.assertIn(f"algorithm {name}: all_reduce, in the plan as file pairs.xml", self.weft("explain", plan).stdout)
        self.assertIn(f"all_reduce {name}", self.weft("verify", plan).stdout)
        self.assertEqual({row["algorithm"] for row in self.weft_json("simulate", plan)["collectives"]
                          if row["name"].startswith("bucket")}, {name})
        self.weft("compile", self.dir / "c.onnx", "-o", again)
        self.assertEqual(self.weft_json("explain", again)["structure_digest"], report["structure_digest"])

    @support.NEED_DATA
    def test_a_plan_runs_by_the_file_that_it_contains(self):
        path = pairs_file(self.dir / "pairs.xml", 4)
        plans = [self.compile("mlp.onnx", f"{i}.weft", 4, 8, *algo) for i, algo in enumerate(((), ("--algo", path)))]
        path.unlink()
        reports = [self.train(plan, world=4, steps=2, env={"WEFT_CHECK": "results"}) for plan in plans]
        self.assertEqual(reports[0]["param_digest"], reports[1]["param_digest"])

    def test_groups_run_by_the_file_of_their_size(self):
        two, four = (pairs_file(self.dir / f"pairs{n}.xml", n) for n in (2, 4))
        for files, names in (((four,), {4}), ((two, four), {2, 4})):
            plan = self.compile("mlp.onnx", "p.weft", 8, 8, "--tensor-parallel", 2, "--algo", ",".join(map(str, files)))
            report = self.weft_json("explain", plan)
            found = {report["mesh"][0 if row["group"] == "data" else 1]["size"] for row in report["buckets"] + [
                row | {"group": "tensor"} for row in report["collectives"] if row["op"] == "AllReduce"]
                if row["algorithm"].startswith("pairs-")}
            self.assertEqual(found, names)

    def test_files_that_a_plan_cannot_use_are_refused(self):
        path, ring = pairs_file(self.dir / "pairs.xml", 4), self.dir / "wrong.xml"
        self.refused("pairs.xml: the file describes 4 ranks, the plan has 2 (--algo)", "--algo", path, world=2)
        self.refused("describes 4 ranks, the plan has 6 and groups of 3 and groups of 2", "--algo", path,
                     "--tensor-parallel", 2, world=6)
        self.refused("the file is an algorithm of all_reduce, not all_gather", "--algo", f"all_gather={path}")
        self.refused("the plan has no AllReduce of 4 ranks", "--algo", path, "--shard-optimizer")
        self.refused("two algorithms for AllReduce", "--algo", path, "--algo", "all_reduce=mesh")
        self.refused("two algorithms for AllReduce of 4 ranks", "--algo", path, "--algo", path)
        self.refused("cannot open", "--algo", self.dir / "none.xml")
        self.refused("lacks the contribution of gpu 2", "--algo", pairs_file(ring, 4, skips=2))
        ring.write_bytes(path.read_bytes() + b"\0")
        self.refused("not a text file", "--algo", ring)
        ring.write_text(path.read_text()[:999])
        self.refused("wrong.xml:", "--algo", ring)

    def test_a_file_is_listed_among_the_algorithms(self):
        path = pairs_file(self.dir / "pairs.xml", 4)
        found = self.weft_json("algos", path)
        self.assertEqual(found["ranks"], 4)
        for row in found["rows"]:
            own = next(c for c in row["candidates"] if c["algorithm"].startswith("pairs-"))
            self.assertGreater(own["predicted_us"], 0)
            self.assertIn("mesh", [c["algorithm"] for c in row["candidates"]])
        self.assertEqual(self.weft("algos", path).stdout.count(" times pairs-"), 8)
        self.assertEqual({row["algorithm"][:6] for row in self.weft_json("algos", "--algo", path)["rows"]}, {"pairs-"})
        self.assertIn("describes 4 ranks, not 2", self.weft("algos", path, "-n", 2, code=2).stderr)
        self.assertIn("is an algorithm of all_reduce", self.weft("algos", path, "--op", "broadcast", code=2).stderr)


class Verify(unittest.TestCase):
    def test_one_size_is_proved(self):
        done = weft("verify", "-n", "7", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        self.assertTrue(result["ok"])
        self.assertGreater(result["proved"], 400)
        self.assertIsNone(result["error"])

    def test_selection(self):
        done = weft("verify", "-n", "6", "--op", "Reduce", "--algo", "binomial")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("cases proved", done.stdout)
        self.assertEqual(weft("verify", "-n", "6", "--algo", "nonsense").returncode, 2)
        self.assertEqual(weft("verify", "-n", "0").returncode, 2)


if __name__ == "__main__":
    support.main()
