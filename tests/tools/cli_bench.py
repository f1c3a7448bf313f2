#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weft bench: rows, checked results, and what it refuses."""
import json
import xml.etree.ElementTree as ElementTree

import support

KEYS = {"op", "bytes", "ranks", "dtype", "redop", "memory", "algo", "path", "p50_us", "p99_us", "floor_us",
        "algbw_gbs", "busbw_gbs", "wrong"}


class Bench(support.Case):
    def rows(self, *arguments):
        done = self.weft("bench", *arguments, "--iterations", "5", "--check", "--json")
        rows = json.loads(done.stdout)["rows"]
        for row in rows:
            self.assertEqual(set(row), KEYS)
            self.assertEqual(row["wrong"], 0, row)
            self.assertLessEqual(row["p50_us"], row["p99_us"])
            self.assertGreater(row["floor_us"], 0)
        return rows

    def test_every_operator(self):
        for op in ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter",
                   "all_to_all"):
            rows = self.rows(op, "-n", "2", "--min", "64", "--max", "256K")
            self.assertEqual([row["bytes"] for row in rows], [64, 512, 4096, 32768, 262144])
            self.assertEqual(rows[0]["path"], "posting")

    def test_a_picture_has_the_curves_of_peers(self):
        svg, peers, name = self.dir / "out.svg", self.dir / "peers.json", "<script>&\"x"
        row = {"op": "all_reduce", "ranks": 2, "memory": "registered"}
        peers.write_text(json.dumps({"rows": [
            {**row, "bytes": 4096, "peers_us": {"other": 3.0, name: 50}}, {**row, "bytes": 64, "peers_us": {"other": 1.0}},
            {**row, "bytes": 64, "p50_us": 2.0}, {**row, "bytes": 64, "memory": "plain", "peers_us": {"plain": 1}},
            {**row, "bytes": 1 << 40, "peers_us": {"large": 1}}, {**row, "bytes": 64, "peers_us": {"bad": -1, "worse": "1"}}, 3]}))
        run = ("bench", "all_reduce", "-n", "2", "--min", "64", "--max", "4K", "--iterations", "5", "--plot", svg)
        rows = json.loads(self.weft(*run, "--peers", peers, "--json").stdout)["rows"]
        root = ElementTree.parse(svg).getroot()
        space = "{http://www.w3.org/2000/svg}"
        texts = [node.text for node in root.iter(f"{space}text")]
        for text in ("all_reduce, 2 ranks, f32, registered memory, in place", "weft", "floor", "other", name, "weft, in the file", "64 B", "4.0 KiB"):
            self.assertIn(text, texts)
        self.assertFalse({"plain", "large", "bad", "worse"} & set(texts))
        titles = [node.text for node in root.iter(f"{space}title")]
        self.assertIn("other: 3.00 µs at 4.0 KiB", titles)
        shown = [float(title.split()[1]) for title in titles if title.startswith("weft: ")]
        for us, measured in zip(shown, rows, strict=True):
            self.assertLess(abs(us - measured["p50_us"]), 0.006 + measured["p50_us"] / 100)
        lines = [[tuple(map(float, point.split(","))) for point in line.get("points").split()] for line in root.iter(f"{space}polyline")]
        for line in lines:
            self.assertEqual([x for x, _ in line], sorted(x for x, _ in line))
        # both axes are logarithmic: factors are distances
        mine = next(line for line in lines if len(line) == 3)
        self.assertAlmostEqual(mine[1][0] - mine[0][0], mine[2][0] - mine[1][0], delta=0.2)
        svg.unlink()
        self.weft(*run[:-2], "--plot", svg)
        self.assertNotIn("other", svg.read_text())

    def test_pictures_that_cannot_be(self):
        svg, peers = self.dir / "out.svg", self.dir / "peers.json"
        run = ("bench", "all_reduce", "--max", "64", "--iterations", "5")
        self.assertIn("requires --plot", self.weft(*run, "--peers", peers, code=2).stderr)
        self.assertIn("missing", self.weft(*run, "--plot", self.dir / "missing" / "out.svg", code=2).stderr)
        for text in ("", "{", "[]", "{}", '{"rows": 3}', '{"rows": [1, {}, {"op": "all_reduce", "ranks": 3, "bytes": 64, "p50_us": 1}]}'):
            peers.write_text(text)
            error = self.weft(*run, "--plot", svg, "--peers", peers, code=2).stderr
            self.assert_one_line(error)
            self.assertIn(str(peers), error)
        self.assertFalse(svg.exists())

    def test_memory_kinds(self):
        paths = {}
        for memory in ("registered", "adopted", "plain"):
            rows = self.rows("all_reduce", "-n", "2", "--min", "1M", "--max", "1M", "--memory", memory)
            paths[memory] = rows[0]["path"]
        self.assertIn(paths.pop("plain"), ("attached", "staged"))  # as the system allows
        self.assertEqual(paths, {"registered": "direct", "adopted": "direct"})

    def test_algorithms(self):
        for op, algorithm in (("all_reduce", "halving-doubling"), ("all_gather", "bruck"), ("broadcast", "binomial"),
                              ("all_to_all", "pairwise"), ("reduce_scatter", "mesh")):
            for row in self.rows(op, "-n", "3", "--min", "12", "--max", "64K", "--algo", algorithm):
                self.assertEqual(row["algo"], algorithm)
                if algorithm != "mesh":
                    self.assertEqual(row["path"], "schedule")
        rows = self.rows("all_reduce", "-n", "4", "--min", "1K", "--max", "64K", "--algo", "ring", "--order", "any")
        self.assertEqual({row["algo"] for row in rows}, {"ring (order any)"})
        self.rows("all_reduce", "-n", "4", "--max", "64K", "--order", "blocks:3,1")

    def test_what_runs_is_what_algos_says(self):
        costs = self.dir / "costs.json"  # interpreting is free, so that all kinds are chosen
        costs.write_text(json.dumps({"format": 1, "measured": [
            {"op": op, "algorithm": algorithm, "ranks": 4, "from_bytes": 512, "alpha_ns": 1}
            for op, algorithm in (("AllReduce", "ring"), ("ReduceScatter", "log-step"), ("AllGather", "bruck"),
                                  ("AllToAll", "pairwise"))]}))
        seen = set()
        for table in ([], ["--costs", costs]):
            env = {"WEFT_COSTS": str(costs)} if table else {}
            for order in ("tree", "any") if support.SANITIZED else ("tree", "any", "blocks:3,1"):
                for name, op in (("all_reduce", "AllReduce"), ("reduce_scatter", "ReduceScatter"),
                                 ("all_gather", "AllGather"), ("all_to_all", "AllToAll")):
                    said = {row["bytes"]: row for row in self.weft_json(
                        "algos", "-n", "4", "--op", op, "--order", order, *table)["rows"]}
                    done = self.weft("bench", name, "-n", "4", "--min", "64", "--max", "4K", "--iterations", "2",
                                     "--order", order, "--json", env=env)
                    for row in json.loads(done.stdout)["rows"]:
                        best = said[row["bytes"]]["candidates"][0]
                        ran = row["algo"].split(" (order")[0]
                        expected = {"mesh", "one-shot"} if best["executor"] else {best["algorithm"]}
                        self.assertIn(ran, expected, (op, order, row))
                        self.assertEqual(row["path"] == "schedule", not best["executor"], (op, order, row))
                        seen.add(ran)
        self.assertLessEqual({"mesh", "one-shot", "ring", "bruck", "pairwise"}, seen)

    def test_an_algorithm_that_cannot_is_refused(self):
        for arguments, why in ((["--algo", "ring"], "--algo ring: not eligible for all_reduce: it cannot realise the group's reduction order"),
                               (["--algo", "doubling", "--order", "blocks:3,1"], "--algo doubling: not eligible for all_reduce: "),
                               (["--order", "blocks:3,2"], "sum to 5 ranks, but the group has 4"),
                               (["--order", "sorted"], "invalid value 'sorted' for WEFT_ORDER: expected 'tree', 'any', or 'blocks:'")):
            said = self.weft("bench", "all_reduce", "-n", "4", "--max", "64", *arguments, code=2).stderr
            self.assert_one_line(said)
            self.assertIn(why, said)

    def test_types_and_reductions(self):
        for dtype, reduction in (("bf16", "avg"), ("f16", "sum"), ("i8", "max"), ("f64", "prod"), ("u64", "min")):
            rows = self.rows("all_reduce", "-n", "3", "--min", "8", "--max", "64K", "--dtype", dtype, "--reduction",
                             reduction, "--memory", "plain", "--out-of-place")
            self.assertEqual({(row["dtype"], row["redop"]) for row in rows}, {(dtype, reduction)})

    def test_streams(self):
        for stream in ("inline", "thread"):
            self.rows("all_reduce", "-n", "2", "--min", "8", "--max", "64K", "--stream", stream)

    def test_floor_of_blocks_at_odd_places(self):
        for op in ("all_reduce", "reduce_scatter", "all_to_all", "gather"):
            self.rows(op, "-n", "3", "--min", "5", "--max", "20001", "--factor", "60", "--dtype", "i8")

    def test_floor_does_what_the_operator_does(self):
        for op in ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter",
                   "all_to_all"):
            for ranks in ("3",) if support.SANITIZED else ("2", "5"):  # and its result is checked
                self.rows(op, "-n", ranks, "--min", "20", "--max", "300K", "--factor", "30", "--dtype", "i32")
                self.rows(op, "-n", ranks, "--min", "20", "--max", "20K", "--factor", "100", "--dtype", "u32",
                          "--out-of-place")

    def test_table(self):
        done = self.weft("bench", "broadcast", "-n", "2", "--max", "512", "--iterations", "5")
        self.assertIn("p99 us", done.stdout)
        self.assertIn("floor us", done.stdout)
        self.assertEqual(len(done.stdout.strip().splitlines()), 5)

    def test_bad_input(self):
        for arguments in ([], ["sideways"], ["all_reduce", "--min", "4K", "--max", "8"], ["all_reduce", "--max", "x"],
                          ["all_reduce", "--dtype", "f33"], ["all_reduce", "--reduction", "mean"],
                          ["all_reduce", "--memory", "borrowed"], ["all_reduce", "-n", "0"],
                          ["all_reduce", "--stream", "wide"]):
            self.assert_one_line(self.weft("bench", *arguments, code=2).stderr)
        said = self.weft("bench", "all_gather", "--algo", "one-shot", code=2).stderr
        self.assert_one_line(said)
        self.assertIn("mesh, ", said)  # what there is


if __name__ == "__main__":
    support.main()
