#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Inference: `weft compile --infer`, `weft run --inputs --outputs`, against numpy."""
import json
import pathlib
import subprocess
import os
import unittest

import numpy as np
import onnx
from onnx import TensorProto

import support
from infer_models import Attention, Mlp, RandomGraph, load_tensor, model, node, save_tensor, tree
from support import MODELS, WEFT

SEED = int(os.environ.get("WEFT_TEST_SEED", "20240607"))
TESTDATA = pathlib.Path("/usr/share/libonnx-testdata/data")
SLOW = bool(support.SANITIZED)  # then a process takes half a second: fewer of them


def all_reduce(value, result):
    return [node("AllReduce", [value], result, "weft")]


def microsoft_all_reduce(value, result):
    return [node("AllReduce", [value], result, "com.microsoft")]


class Infer(support.Case):
    def setUp(self):
        super().setUp()
        self.rng = np.random.default_rng(SEED)

    def feed(self, arrays, rank=None):
        for name, array in arrays.items():
            folder = self.dir / "in" if rank is None else self.dir / "in" / f"rank{rank}"
            save_tensor(folder / f"{name}.pb", array)

    def infer(self, models, world, *extra, run=(), code=0, env=None):
        models = models if isinstance(models, list) else [models]
        self.weft("compile", *models, "-o", "p.weft", "--infer", "--world", world, *extra)
        return self.weft_json("run", "p.weft", "--inputs", "in", "--outputs", "out", *run, code=code, env=env)

    def output(self, name, rank=None):
        folder = self.dir / "out" if rank is None else self.dir / "out" / f"rank{rank}"
        label, array = load_tensor(folder / f"{name}.pb")
        self.assertEqual(label, name)
        return array

    def by_rank(self, name, ranks):
        """What every rank has of an output, from one file or one each."""
        if (self.dir / "out" / f"{name}.pb").exists():
            return [self.output(name)] * ranks
        return [self.output(name, r) for r in range(ranks)]


class TensorParallel(Infer):
    def split(self, net, ranks, reduce=all_reduce):
        return [self.save(model(net.nodes(reduce), net.inputs, net.outputs, net.part(r, ranks)), f"m.rank{r}.onnx")
                for r in range(ranks)]

    def check(self, net, counts, batch):
        shape = [batch if d == "batch" else d for d in net.inputs["x"]]
        feed = {"x": self.rng.standard_normal(shape).astype(np.float32)}
        want = net.run(feed)["y"]
        self.feed(feed)
        for ranks in counts:
            with self.subTest(ranks=ranks):
                report = self.infer(self.split(net, ranks), ranks, "--batch", batch)
                self.assertTrue(report["outputs"][0]["equal_on_all_ranks"])  # bit for bit
                np.testing.assert_allclose(self.output("y"), want, rtol=1e-4, atol=1e-5)

    def test_mlp(self):
        self.check(Mlp(self.rng), (2, 3) if SLOW else (1, 2, 3, 4), 7)

    def test_attention(self):
        self.check(Attention(self.rng), (2,) if SLOW else (1, 2, 4), 2)

    def test_microsoft_names(self):
        net = Mlp(self.rng)
        self.feed({"x": self.rng.standard_normal((3, 10)).astype(np.float32)})
        digests = [self.infer(self.split(net, 2, reduce), 2, "--batch", 3)["outputs"][0]["sha256"]
                   for reduce in (all_reduce, microsoft_all_reduce)]
        self.assertEqual(*digests)

    def test_weights_that_are_equal_are_stored_once(self):
        net = Mlp(self.rng)
        def bytes_of(parts):
            models = [self.save(model(net.nodes(all_reduce), net.inputs, net.outputs, p), f"m.rank{r}.onnx")
                      for r, p in enumerate(parts)]
            self.weft("compile", *models, "-o", "p.weft", "--infer", "--world", len(parts), "--batch", 1)
            return (self.dir / "p.weft").stat().st_size
        one = bytes_of([net.part(0, 4)])
        same = bytes_of([net.part(0, 4)] * 4)
        differ = bytes_of([net.part(r, 4) for r in range(4)])
        self.assertLess(same, one + 2048)
        self.assertGreater(differ, one + 3 * 10 * 6 * 4)

    def test_how_it_is_run_changes_no_bit(self):
        net = Attention(self.rng)
        self.feed({"x": self.rng.standard_normal((3, 5, 16)).astype(np.float32)})
        models = self.split(net, 2)
        digests = {self.infer(models, 2, "--batch", 3, run=("--repeat", 3), env=env)["outputs"][0]["sha256"]
                   for env in ({"WEFT_PROGRESS": "inline"}, {"WEFT_PROGRESS": "thread"}, {"WEFT_ISA": "portable"},
                               {"WEFT_ALGO": "AllReduce=halving-doubling"}, {"WEFT_ALGO": "AllReduce=one-shot"})}
        self.assertEqual(len(digests), 1)

    def test_models_that_differ(self):
        net = Mlp(self.rng)
        good = self.split(net, 2)
        nodes = net.nodes(all_reduce)
        nodes[1].op_type = "Tanh"
        other = self.save(model(nodes, net.inputs, net.outputs, net.part(1, 2)), "other.onnx")
        message = self.weft("compile", good[0], other, "-o", "p.weft", "--infer", "--world", 2, "--batch", 1, code=2).stderr
        self.assert_one_line(message)
        self.assertRegex(message, r"m\.rank0\.onnx has '.*Relu.*', .*other\.onnx has '.*Tanh")
        part = net.part(1, 2)
        part["w2"] = part["w2"][:, :5]
        part["b2"] = part["b2"][:5]
        other = self.save(model(net.nodes(all_reduce), net.inputs, net.outputs, part), "narrow.onnx")
        message = self.weft("compile", good[0], other, "-o", "p.weft", "--infer", "--world", 2, "--batch", 1, code=2).stderr
        self.assertRegex(message, r"f32\[1,6\].*f32\[1,5\]")
        self.assertEqual(self.weft_json("compile", *good, "-o", "p.weft", "--infer", "--batch", 1)["world"], 2)
        message = self.weft("compile", *good, "-o", "p.weft", "--infer", "--world", 3, "--batch", 1, code=2).stderr
        self.assertIn("must be one model per rank: 2 models, world_size 3", message)
        message = self.weft("compile", *good, "-o", "p.weft", "--world", 2, "--batch", 1, code=2).stderr
        self.assertIn("expected one MODEL.onnx", message)

    def test_constants_of_ranks(self):
        """What is read when the step runs may differ, what decides shapes may not."""
        def models(pads):
            return [self.save(model([node("Add", ["x", "own"], "s"), node("Pad", ["s", "pads"], "y")], {"x": [3]}, ["y"],
                                    {"own": np.float32(10 * r), "pads": np.array(pads[r])}), f"c{r}.onnx") for r in range(2)]
        self.feed({"x": np.float32([1, 2, 3])})
        self.infer(models([[1, 0], [1, 0]]), 2)
        np.testing.assert_array_equal(self.output("y", 1), [0, 11, 12, 13])
        message = self.weft("compile", *models([[1, 0], [0, 1]]), "-o", "p.weft", "--infer", "--world", 2, code=2).stderr
        self.assertIn("node 'Pad_y' (Pad): constant 'pads' determines a shape and differs", message)

    def test_plan_is_explained_and_verified(self):
        self.weft("compile", *self.split(Mlp(self.rng), 2), "-o", "p.weft", "--infer", "--world", 2, "--batch", 1)
        self.weft("explain", "p.weft")
        self.assertEqual(self.weft_json("explain", "p.weft")["world"], 2)
        data = bytearray((self.dir / "p.weft").read_bytes())
        data[-1] ^= 1
        (self.dir / "bad.weft").write_bytes(data)
        self.assertIn("digest", self.weft("run", "bad.weft", "--inputs", "in", code=2).stderr)


class Collectives(Infer):
    def run_each(self, nodes, feeds, outputs, dtype=TensorProto.FLOAT):
        shapes = {n: (dtype, a.shape) for n, a in feeds[0].items()}
        for rank, feed in enumerate(feeds):
            self.feed(feed, rank)
        self.infer(self.save(model(nodes, shapes, outputs, dtype=dtype)), len(feeds))
        return {o: self.by_rank(o, len(feeds)) for o in outputs}

    def test_every_operator(self):
        for n in (1, 3) if SLOW else (1, 2, 3, 4):
            with self.subTest(ranks=n):
                root = n // 2
                x = [self.rng.standard_normal((12, 3)).astype(np.float32) for _ in range(n)]
                nodes = [node("AllReduce", ["x"], "sum", "weft"), node("AllReduce", ["x"], "avg", "weft", reduction="avg"),
                         node("AllReduce", ["x"], "max", "weft", reduction="max"), node("AllGather", ["x"], "all", "weft"),
                         node("ReduceScatter", ["x"], "part", "weft"), node("AllToAll", ["x"], "turned", "weft"),
                         node("Broadcast", ["x"], "one", "weft", root=root), node("Reduce", ["x"], "to", "weft", root=root),
                         node("Gather", ["x"], "from", "weft", root=root), node("Scatter", ["x"], "own", "weft", root=root)]
                outputs = [o for k in nodes for o in k.output]
                got = self.run_each(nodes, [{"x": a} for a in x], outputs)
                total = tree(x, np.add)
                for r in range(n):
                    np.testing.assert_array_equal(got["sum"][r], total)
                    np.testing.assert_array_equal(got["avg"][r], total / np.float32(n))
                    np.testing.assert_array_equal(got["max"][r], np.max(x, 0))
                    np.testing.assert_array_equal(got["all"][r], np.concatenate(x))
                    np.testing.assert_array_equal(got["part"][r], np.split(total, n)[r])
                    np.testing.assert_array_equal(got["turned"][r], np.concatenate([np.split(a, n)[r] for a in x]))
                    np.testing.assert_array_equal(got["one"][r], x[root])
                    np.testing.assert_array_equal(got["own"][r], np.split(x[root], n)[r])
                np.testing.assert_array_equal(got["to"][root], total)
                np.testing.assert_array_equal(got["from"][root], np.concatenate(x))

    def test_types(self):
        for dtype, onnx_type in ((np.int64, TensorProto.INT64), (np.float16, TensorProto.FLOAT16), (np.uint8, TensorProto.UINT8),
                                 (np.float64, TensorProto.DOUBLE))[:2 if SLOW else 4]:
            with self.subTest(dtype=dtype.__name__):
                x = [self.rng.integers(0, 50, (4, 3)).astype(dtype) for _ in range(2)]
                got = self.run_each([node("AllReduce", ["x"], "sum", "weft"), node("AllGather", ["x"], "all", "weft")],
                                    [{"x": a} for a in x], ["sum", "all"], onnx_type)
                np.testing.assert_array_equal(got["sum"][1], x[0] + x[1])
                np.testing.assert_array_equal(got["all"][0], np.concatenate(x))

    def test_weights_and_constants_are_sources(self):
        """What ranks hold in parts is put together by the graph."""
        w = self.rng.standard_normal((4, 6)).astype(np.float32)
        models = [self.save(model([node("AllGather", ["w"], "whole", "weft"), node("MatMul", ["x", "whole"], "y")],
                                  {"x": (3, 4)}, ["y"], {"w": w[2 * r:2 * r + 2]}), f"m{r}.onnx") for r in range(2)]
        x = self.rng.standard_normal((3, 4)).astype(np.float32)
        self.feed({"x": x})
        self.infer(models, 2)
        np.testing.assert_allclose(self.output("y"), x @ w, rtol=1e-5, atol=1e-5)

    def test_buckets_of_blocks_change_no_bit(self):
        """All-gathers of weights and reduce-scatters of activations, fused and split, as one by one."""
        for n in (2,) if SLOW else (2, 3, 4):
            widths = [8 * n, 12 * n, 4 * n, 20 * n]
            whole = [self.rng.standard_normal(shape).astype(np.float32) for shape in zip(widths, widths[1:])]
            nodes = [k for i in range(3) for k in (node("AllGather", [f"w{i}"], f"W{i}", "weft"),
                                                   node("MatMul", [f"y{i - 1}" if i else "x", f"W{i}"], f"y{i}"))]
            nodes += [node("ReduceScatter", [f"y{i}"], f"s{i}", "weft") for i in range(3)]
            outputs = ["y2", "s0", "s1", "s2"]
            models = [self.save(model(nodes, {"x": (2 * n, widths[0])}, outputs,
                                      {f"w{i}": np.split(w, n)[r] for i, w in enumerate(whole)}), f"m{r}.onnx")
                      for r in range(n)]
            for r in range(n):
                self.feed({"x": self.rng.standard_normal((2 * n, widths[0])).astype(np.float32)}, r)
            want = None
            for policy, calls in (("none", 3), ("one", 1), ("auto", None), ("bytes:1K", None), ("auto:600", None)):
                with self.subTest(ranks=n, policy=policy):
                    self.infer(models, n, "--bucket", policy)
                    ops = [c["op"] for c in self.weft_json("explain", "p.weft")["collectives"]]
                    if calls:
                        self.assertEqual([ops.count("AllGather"), ops.count("ReduceScatter")], [calls, calls])
                    got = [self.by_rank(o, n) for o in outputs]
                    want = want or got
                    np.testing.assert_equal(got, want)

    def test_gathering_along_another_axis(self):
        x = [self.rng.standard_normal((2, 3, 4)).astype(np.float32) for _ in range(2)]
        for axis in (1,) if SLOW else (0, 1, 2, -1):
            got = self.run_each([node("AllGather", ["x"], "y", "com.microsoft", axis=axis, group_size=2)],
                                [{"x": a} for a in x], ["y"])
            np.testing.assert_array_equal(got["y"][1], np.concatenate(x, axis))

    def test_start_and_wait(self):
        """A collective in two halves: what lies between them runs meanwhile."""
        x = [self.rng.standard_normal((64, 64)).astype(np.float32) for _ in range(2)]
        got = self.run_each([node("Relu", ["x"], "a"), node("AllReduceStart", ["a"], "flying", "weft"),
                             node("MatMul", ["x", "x"], "b"), node("AllReduceWait", ["flying"], "c", "weft"),
                             node("Add", ["b", "c"], "y")], [{"x": a} for a in x], ["y"])
        for r in range(2):
            np.testing.assert_allclose(got["y"][r], x[r] @ x[r] + np.maximum(x[0], 0) + np.maximum(x[1], 0), rtol=1e-3, atol=1e-3)
        compute = self.weft_json("explain", "p.weft")["streams"][0]
        self.assertEqual(compute["steps"]["step"], 5, "three kernels, one event each way")

    def test_convolutions_divided_by_channels(self):
        """Half of the channels on each rank: partial sums of the second convolution are added up."""
        w1, w2 = (self.rng.standard_normal(s).astype(np.float32) / 8 for s in ((32, 16, 3, 3), (16, 32, 3, 3)))
        x = self.rng.standard_normal((2, 16, 8, 8)).astype(np.float32)
        self.feed({"x": x})
        def nodes(reduce):
            return [node("Conv", ["x", "w1"], "a", pads=[1] * 4), node("Relu", ["a"], "b"),
                    node("Conv", ["b", "w2"], "c", pads=[1] * 4), *reduce, node("MaxPool", ["d"], "y", kernel_shape=[2, 2],
                                                                               strides=[2, 2])]
        shape = {"x": (2, 16, 8, 8)}
        whole = self.save(model(nodes([node("Identity", ["c"], "d")]), shape, ["y"], {"w1": w1, "w2": w2}))
        self.infer(whole, 1)
        want = self.output("y")
        parts = [self.save(model(nodes([node("AllReduce", ["c"], "d", "weft")]), shape, ["y"],
                                 {"w1": w1[16 * r:16 * r + 16], "w2": w2[:, 16 * r:16 * r + 16]}), f"p{r}.onnx")
                 for r in range(2)]
        self.infer(parts, 2)
        np.testing.assert_allclose(self.output("y"), want, rtol=1e-4, atol=1e-4)

    def test_random_graphs(self):
        """Memory is reused while collectives are under way: every result must still be exact."""
        for i in range(2 if SLOW else 9):
            ranks = (2, 3, 4)[i // 3 % 3]
            rng = np.random.default_rng(SEED + i)
            graph = RandomGraph(rng, ranks, 25)
            feeds = [{n: rng.integers(-4, 5, graph.shape).astype(np.float32) / 4 for n in ("x0", "x1")} for _ in range(ranks)]
            for rank, feed in enumerate(feeds):
                self.feed(feed, rank)
            bounds = ((), ("--in-flight", 1), ("--in-flight", 2))[i % 3]
            with self.subTest(seed=SEED + i, ranks=ranks, bounds=bounds):
                self.infer(self.save(graph.model()), ranks, *bounds, run=("--repeat", 2),
                           env={"WEFT_PROGRESS": ("inline", "thread")[i % 2]})
                with np.errstate(over="ignore", invalid="ignore"):
                    want = graph.run(feeds)
                for name in graph.outputs:
                    for r, got in enumerate(self.by_rank(name, ranks)):
                        np.testing.assert_array_equal(got, want[name][r], f"{name} on rank {r}")

    def test_less_memory(self):
        """A bound on the arena that a plan only just keeps changes no result."""
        graph = RandomGraph(np.random.default_rng(SEED), 2, 25)
        feeds = [{n: self.rng.integers(-4, 5, graph.shape).astype(np.float32) for n in ("x0", "x1")} for _ in range(2)]
        for rank, feed in enumerate(feeds):
            self.feed(feed, rank)
        path = self.save(graph.model())
        free = self.weft_json("compile", path, "-o", "p.weft", "--infer", "--world", 2)["arena_bytes"]
        self.infer(path, 2, "--arena-limit", free)
        want = graph.run(feeds)
        for name in graph.outputs:
            for r, got in enumerate(self.by_rank(name, 2)):
                np.testing.assert_array_equal(got, want[name][r])
        message = self.weft("compile", path, "-o", "p.weft", "--infer", "--world", 2, "--arena-limit", 64, code=2).stderr
        self.assert_one_line(message)

    def test_what_cannot_be(self):
        def refused(nodes, inputs, outputs, text, world=2):
            path = self.save(model(nodes, inputs, outputs))
            message = self.weft("compile", path, "-o", "p.weft", "--infer", "--world", world, code=2).stderr
            self.assert_one_line(message)
            self.assertRegex(message, text)
        refused([node("ReduceScatter", ["x"], "y", "weft")], {"x": (5, 2)}, ["y"],
                r"node 'ReduceScatter_y' \(ReduceScatter\): first dimension of 'x' must be divisible by the number of ranks: 5, 2 ranks")
        refused([node("AllToAll", ["x"], "y", "weft")], {"x": (3, 2)}, ["y"], r"'AllToAll_y'.*must be divisible")
        refused([node("Reduce", ["x"], "y", "weft", root=2)], {"x": (4,)}, ["y"], r"invalid root 2 for world size 2")
        refused([node("AllReduce", ["x"], "y", "weft", group=1)], {"x": (4,)}, ["y"], r"'AllReduce_y'.*group")
        refused([node("AllGather", ["x"], "y", "weft", group_size=3)], {"x": (4,)}, ["y"], r"group_size does not match world_size: 3")
        refused([node("AllReduce", ["x"], "y", "weft", reduction="xor")], {"x": (4,)}, ["y"], r"xor")


class SplitBatch(Infer):
    def net(self):
        net = Mlp(self.rng)
        return net, self.save(model(net.nodes(lambda p, s: [node("Identity", [p], s)]), net.inputs, net.outputs, net.weights))

    def test_the_batch_is_split(self):
        net, path = self.net()
        feed = {"x": self.rng.standard_normal((12, 10)).astype(np.float32)}
        self.feed(feed)
        for ranks in (2,) if SLOW else (1, 2, 3, 4):
            with self.subTest(ranks=ranks):
                report = self.infer(path, ranks, "--split-batch", 12)
                self.assertEqual(report["outputs"][0]["shape"], [12, 6])
                np.testing.assert_allclose(self.output("y"), net.run(feed)["y"], rtol=1e-4, atol=1e-5)
                self.assertEqual(self.weft_json("compile", path, "-o", "p.weft", "--infer", "--world", ranks,
                                                "--split-batch", 12)["batch"], 12 // ranks)

    def test_what_has_no_batch_is_broadcast(self):
        path = self.save(model([node("Add", ["x", "shift"], "y")], {"x": ["batch", 3], "shift": (3,)}, ["y"]))
        x, shift = self.rng.standard_normal((4, 3)).astype(np.float32), np.arange(3, dtype=np.float32)
        self.feed({"x": x, "shift": shift})
        self.infer(path, 2, "--split-batch", 4)
        np.testing.assert_array_equal(self.output("y"), x + shift)

    def test_what_cannot_be_split(self):
        _, path = self.net()
        def refused(path, *options):
            message = self.weft("compile", path, "-o", "p.weft", "--world", 2, *options, code=2).stderr
            self.assert_one_line(message)
            return message
        self.assertIn("split_batch: batch must be a multiple of world_size: 7, world_size 2", refused(path, "--infer", "--split-batch", 7))
        self.assertIn("split_batch: requires infer", refused(path, "--split-batch", 8))
        turned = self.save(model([node("Transpose", ["x"], "y", perm=[1, 0])], {"x": ["batch", 3]}, ["y"]), "turned.onnx")
        self.assertIn("the batch is not the first dimension of output 'y'",
                      refused(turned, "--infer", "--split-batch", 4))

    def test_samples_that_meet(self):
        """Ranks would come to other results than one rank does, so such graphs are not split."""
        i64 = np.int64
        size = [node("Shape", ["x"], "shape"), node("Cast", ["shape"], "size", to=TensorProto.FLOAT)]
        for nodes, words in (
                ([node("Softmax", ["x"], "y", axis=0)], "mixes samples"),
                ([node("LogSoftmax", ["x"], "y", axis=-2)], "mixes samples"),
                ([node("Transpose", ["x"], "t", perm=[1, 0]), node("MatMul", ["t", "x"], "g"),
                  node("MatMul", ["x", "g"], "y")], "combines several samples into one result"),
                ([node("Gemm", ["x", "x"], "g", transA=1), node("MatMul", ["x", "g"], "y")],
                 "combines several samples into one result"),
                ([node("Transpose", ["x"], "t", perm=[1, 0]), node("Softmax", ["t"], "s"),
                  node("Transpose", ["s"], "y", perm=[1, 0])], "(Softmax) mixes samples"),
                ([node("Transpose", ["x"], "t", perm=[1, 0]), node("Reshape", ["t", "flat"], "y")], "mixes samples"),
                (size + [node("Gather", ["size", "zero"], "n"), node("Div", ["x", "n"], "y")], "has an input computed from the batch size")):
            path = self.save(model(nodes, {"x": ["batch", 3]}, ["y"], {"flat": np.array([-1, 1], i64),
                                                                      "zero": np.array([0], i64)}), "meet.onnx")
            with self.subTest(last=nodes[-1].op_type):
                done = self.weft("compile", path, "-o", "p.weft", "--world", 2, "--infer", "--split-batch", 4,
                                 code=2)
                self.assert_one_line(done.stderr)
                self.assertIn(words, done.stderr)

    def test_operators_that_nobody_knows(self):
        """They are taken to keep samples apart, if they keep their number."""
        proto = model([node("Foo", ["x"], "y", "my"), node("Relu", ["y"], "z")], {"x": ["batch", 3]}, ["z"],
                      opsets=(("", 13), ("my", 1)))
        proto.graph.value_info.append(onnx.helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3]))
        self.weft("compile", self.save(proto), "-o", "p.weft", "--world", 2, "--infer", "--split-batch", 4)
        for fact, refused in (("mixes_from_1", False), ("mixes_axis", True)):
            declared = {"domain": "my", "name": "Foo", "inputs": 1, "outputs": 1, "effects": "pure", "facts": [fact]}
            (self.dir / "ops.json").write_text(json.dumps({"operators": [declared]}))
            done = self.weft("compile", self.save(proto), "-o", "p.weft", "--world", 2, "--infer", "--split-batch", 4,
                             "--ops", self.dir / "ops.json", code=2 if refused else 0)
            self.assertEqual("(Foo) mixes samples" in done.stderr, refused)

    def test_samples_that_only_move(self):
        """Heads of an attention, turned and put together again: samples stay apart."""
        w = self.rng.standard_normal((6, 6)).astype(np.float32)
        split, join = np.array([0, 0, 2, 3]), np.array([0, 0, 6])
        nodes = [node("MatMul", ["x", "w"], "q"), node("Reshape", ["q", "split"], "q4"),
                 node("Transpose", ["q4"], "qh", perm=[0, 2, 1, 3]), node("Transpose", ["q4"], "kh", perm=[0, 2, 3, 1]),
                 node("MatMul", ["qh", "kh"], "scores"), node("Softmax", ["scores"], "p", axis=-1),
                 node("MatMul", ["p", "qh"], "m"), node("Transpose", ["m"], "back", perm=[2, 0, 1, 3]),
                 node("Transpose", ["back"], "again", perm=[1, 0, 2, 3]), node("Reshape", ["again", "join"], "z"),
                 node("Add", ["z", "x"], "y")]
        path = self.save(model(nodes, {"x": ["batch", 5, 6]}, ["y"], {"w": w, "split": split, "join": join}))
        x = self.rng.standard_normal((6, 5, 6)).astype(np.float32)
        self.feed({"x": x})
        q = (x @ w).reshape(6, 5, 2, 3).transpose(0, 2, 1, 3)
        scores = np.exp(q @ q.transpose(0, 1, 3, 2))
        mixed = (scores / scores.sum(-1, keepdims=True)) @ q
        want = mixed.transpose(0, 2, 1, 3).reshape(6, 5, 6) + x
        for ranks in (1, 2, 3):
            self.infer(path, ranks, "--split-batch", 6)
            np.testing.assert_allclose(self.output("y"), want, rtol=1e-3, atol=1e-4)


class Run(Infer):
    def test_weights_of_several_types(self):
        """They are sent from rank 0, once per type."""
        w = {"wd": self.rng.standard_normal((4, 4)), "wf": self.rng.standard_normal((4, 4)).astype(np.float32),
             "we": self.rng.standard_normal((4, 4))}
        path = self.save(model([node("Cast", ["wd"], "d", to=TensorProto.FLOAT), node("Cast", ["we"], "e", to=TensorProto.FLOAT),
                                node("MatMul", ["x", "wf"], "a"), node("MatMul", ["a", "d"], "b"), node("MatMul", ["b", "e"], "y")],
                               {"x": ["batch", 4]}, {"y": ["batch", 4]}, w), "types.onnx")
        x = self.rng.standard_normal((2, 4)).astype(np.float32)
        self.feed({"x": x})
        self.infer(path, 2, "--batch", 2)
        for got in self.by_rank("y", 2):
            np.testing.assert_allclose(got, (x @ w["wf"]) @ w["wd"] @ w["we"], rtol=1e-4, atol=1e-4)

    def test_models_run_as_they_are(self):
        """No loss is needed; one that is there is an operator like any other."""
        image = self.rng.standard_normal((4, 1, 28, 28)).astype(np.float32)
        self.feed({"image": image, "label": np.arange(4)})
        report = self.infer(MODELS / "lenet.onnx", 2, "--batch", 4)
        names = {o["name"] for o in report["outputs"]}
        self.assertEqual(names, {o.name for o in onnx.load(MODELS / "lenet.onnx").graph.output})
        self.assertTrue(all(o["equal_on_all_ranks"] for o in report["outputs"]))

    def test_outputs_that_nothing_makes(self):
        w = np.arange(6, dtype=np.float32).reshape(2, 3)
        path = self.save(model([node("Add", ["x", "w"], "y")], {"x": (2, 3)}, ["y", "x", "w"], {"w": w}))
        x = self.rng.standard_normal((2, 3)).astype(np.float32)
        self.feed({"x": x})
        self.infer(path, 2)
        for name, want in (("y", x + w), ("x", x), ("w", w)):
            np.testing.assert_array_equal(self.output(name), want)

    def test_a_model_compiled_on_the_spot(self):
        path = self.save(model([node("AllReduce", ["x"], "y", "weft")], {"x": ["batch", 2]}, ["y"]))
        x = np.ones((3, 2), np.float32)
        self.feed({"x": x})
        self.weft("run", path, "-n", 2, "--batch", 3, "--inputs", "in", "--outputs", "out")
        np.testing.assert_array_equal(self.output("y"), 2 * x)

    def test_inputs_by_number_and_by_rank(self):
        path = self.save(model([node("AllReduce", ["a/b"], "x/y", "weft"), node("Add", ["a/b", "c"], "own")],
                               {"a/b": (3,), "c": (3,)}, ["x/y", "own"]))
        a = [np.float32([1, 2, 3]), np.float32([10, 20, 30])]
        save_tensor(self.dir / "in/input_0.pb", a[0])
        save_tensor(self.dir / "in/rank1/a_b.pb", a[1])
        save_tensor(self.dir / "in/c.pb", np.ones(3, np.float32))
        report = self.infer(path, 2)
        self.assertEqual({o["name"]: o["equal_on_all_ranks"] for o in report["outputs"]}, {"x/y": True, "own": False})
        name, total = load_tensor(self.dir / "out/x_y.pb")
        self.assertEqual(name, "x/y")
        np.testing.assert_array_equal(total, a[0] + a[1])
        for r in range(2):
            np.testing.assert_array_equal(self.output("own", r), a[r] + 1)
        # what an earlier run wrote for ranks is gone when they agree
        save_tensor(self.dir / "in/rank1/a_b.pb", a[0])
        self.infer(path, 2)
        self.assertFalse((self.dir / "out/rank1/own.pb").exists())
        np.testing.assert_array_equal(self.output("own"), a[0] + 1)

    def test_files_that_do_not_fit(self):
        path = self.save(model([node("Relu", ["x"], "y")], {"x": (2, 3)}, ["y"]))
        self.weft("compile", path, "-o", "p.weft", "--infer", "--world", 2)
        def refused():
            message = self.weft("run", "p.weft", "--inputs", "in", code=2).stderr
            self.assert_one_line(message)
            return message
        (self.dir / "in").mkdir()
        self.assertIn("no file for input 'x': expected x.pb or input_0.pb", refused())
        save_tensor(self.dir / "in/x.pb", np.zeros((3, 2), np.float32))
        self.assertIn("in/x.pb: type mismatch: f32 [3, 2], but input 'x' of the plan has type f32 [2, 3]", refused())
        save_tensor(self.dir / "in/x.pb", np.zeros((2, 3), np.int64))
        self.assertIn("type mismatch: i64 [2, 3]", refused())
        (self.dir / "in/x.pb").write_bytes(b"\xff\xff\xff")
        self.assertIn("in/x.pb", refused())
        save_tensor(self.dir / "in/x.pb", np.zeros((2, 3), np.float32))
        save_tensor(self.dir / "in/rank1/x.pb", np.zeros((2, 4), np.float32))
        self.assertIn("in/rank1/x.pb: type mismatch: f32 [2, 4]", refused())

    def test_options(self):
        path = self.save(model([node("Relu", ["x"], "y")], {"x": (2, 3)}, ["y"]))
        save_tensor(self.dir / "in/x.pb", np.ones((2, 3), np.float32))
        self.weft("compile", path, "-o", "p.weft", "--infer", "--world", 1)
        report = self.weft_json("run", "p.weft", "--inputs", "in", "--repeat", 20)
        self.assertEqual(report["steps"], 21)
        self.assertGreater(report["step_ms_p50"], 0)
        self.assertIn("20", self.weft("run", "p.weft", "--inputs", "in", "--repeat", 19).stdout)
        for extra, text in ((("--data", "x"), "--data applies to training only"), (("--resume", "x"), "--resume applies to training only"),
                            (("--scalar", "lr=1"), "no scalar of that name"),
                            (("--scalar", "lr"), "must be NAME=X"), (("--repeat", 0), "--repeat"), (("-n", 2), "the plan is for 1 rank, not for 2")):
            self.assertIn(text, self.weft("run", "p.weft", "--inputs", "in", *extra, code=2).stderr)
        self.assertIn("missing option: --data", self.weft("run", "p.weft", code=2).stderr)
        self.assertIn("missing option: --inputs DIR", self.weft("run", "p.weft", "--repeat", 1, code=2).stderr)
        (self.dir / "file").write_text("")
        self.assertIn("not a folder", self.weft("run", "p.weft", "--inputs", "in", "--outputs", "file", code=2).stderr)
        for option in (("--optimizer", "sgd"), ("--lr", "1"), ("--wire", "bf16"), ("--loss", "y"), ("--accumulate", "2")):
            self.assertIn("only for training, but infer is set",
                          self.weft("compile", path, "-o", "q.weft", "--infer", "--world", 1, *option, code=2).stderr)
        plan = self.compile()
        self.assertIn("a plan for training requires --data", self.weft("run", plan, "--inputs", "in", code=2).stderr)

    def test_timeline_and_profile(self):
        path = self.save(model([node("Relu", ["x"], "a"), node("AllReduce", ["a"], "y", "weft")], {"x": (3,)}, ["y"]))
        self.feed({"x": np.ones(3, np.float32)})
        self.infer(path, 2, run=("--repeat", 5, "--trace", "t.json", "--write-profile", "p.json"))
        self.assertIn("AllReduce_y", (self.dir / "t.json").read_text())
        self.assertIn("AllReduce_y", (self.dir / "p.json").read_text())

    def test_check(self):
        path = self.save(model([node("Relu", ["x"], "a"), node("AllReduce", ["a"], "y", "weft")], {"x": (3,)}, ["y"]))
        self.assertTrue(self.weft_json("check", path, "--infer")["compiles"])

    def test_scalars(self):
        """Dropout that drops has a seed, which can be set."""
        path = self.save(model([node("Dropout", ["x", "ratio", "mode"], "y")], {"x": (8, 32)}, ["y"],
                               {"ratio": np.float32(0.5), "mode": np.array(True)}))
        save_tensor(self.dir / "in/x.pb", np.ones((8, 32), np.float32))
        digests = [self.infer(path, 2, run=("--scalar", f"seed={seed}"))["outputs"][0]["sha256"] for seed in (1, 2, 1)]
        self.assertEqual(digests[0], digests[2])
        self.assertNotEqual(digests[0], digests[1])

    def test_old_dropout_does_not_drop(self):
        path = self.save(model([node("Dropout", ["x"], "y", ratio=0.5)], {"x": (2, 3)}, ["y"], opsets=(("", 10),)))
        x = self.rng.standard_normal((2, 3)).astype(np.float32)
        self.feed({"x": x})
        self.infer(path, 1)
        np.testing.assert_array_equal(self.output("y"), x)

    def test_ranks_started_by_hand(self):
        path = self.save(model([node("AllReduce", ["x"], "y", "weft")], {"x": (3,)}, ["y"]))
        self.feed({"x": np.ones(3, np.float32)})
        self.weft("compile", path, "-o", "p.weft", "--infer", "--world", 2)
        address = f"unix:{self.dir}/group"
        ranks = [subprocess.Popen([WEFT, "run", "p.weft", "--inputs", "in", "--outputs", "out"], cwd=self.dir,
                                  env={**os.environ, "WEFT_RANK": str(r), "WEFT_WORLD_SIZE": "2", "WEFT_ADDRESS": address},
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for r in range(2)]
        for rank in ranks:
            out, err = rank.communicate(timeout=600)
            self.assertEqual(rank.returncode, 0, out + err)
        np.testing.assert_array_equal(self.output("y"), np.full(3, 2, np.float32))


@unittest.skipUnless(TESTDATA.exists(), f"{TESTDATA} is missing (Debian package libonnx-testdata)")
class Conformance(Infer):
    UNSUPPORTED = ("not supported", "no kernel", "must be a constant", "not a tensor", "does not take that dtype", "expected f32", "unsupported", "only the inference form")
    FAMILIES = ["add", "averagepool_2d", "conv_with", "dropout_default", "flatten", "gemm", "globalaveragepool", "identity",
                "logsoftmax", "matmul", "maxpool_2d", "mul", "relu", "sce_mean", "sce_sum", "softmax", "squeeze", "sub", "tanh",
                "transpose", "basic_conv"]

    def test_onnx_test_data(self):
        ran = 0
        folders = [f for name in self.FAMILIES for f in sorted((TESTDATA / "node").glob(f"test_{name}*"))]
        for folder in folders[::12] if SLOW else folders[::2]:
            if folder.name.endswith("_expanded"):
                continue
            with self.subTest(case=folder.name):
                data = folder / "test_data_set_0"
                done = subprocess.run([WEFT, "run", folder / "model.onnx", "-n", "1", "--inputs", data, "--outputs", "out"],
                                      cwd=self.dir, capture_output=True, text=True, timeout=600)
                if done.returncode != 0 and any(text in done.stderr for text in self.UNSUPPORTED):
                    continue
                self.assertEqual(done.returncode, 0, done.stderr)
                for i, output in enumerate(onnx.load(folder / "model.onnx").graph.output):
                    got = load_tensor(self.dir / "out" / f"{output.name}.pb")[1]
                    np.testing.assert_allclose(got, load_tensor(data / f"output_{i}.pb")[1], rtol=1e-4, atol=1e-5)
                ran += 1
        self.assertGreater(ran, 3 if SLOW else 30)


class Refusals(Infer):
    """What would be ignored, or written over, is said."""

    def setUp(self):
        super().setUp()
        self.net = self.save(model([node("Relu", ["x"], "y")], {"x": ["b", 3]}, {"y": ["b", 3]}, {}))
        self.feed({"x": np.ones((2, 3), np.float32)})

    def says(self, words, *args):
        done = self.weft(*args, code=2)
        self.assert_one_line(done.stderr)
        self.assertIn(words, done.stderr)

    def test_options_without_effect(self):
        self.weft("compile", self.net, "-o", "p.weft", "--infer", "--world", 2, "--batch", 2)
        for option in (("--infer",), ("--in-flight", 1), ("--arena-limit", "1M"), ("--decouple",), ("--clip", 1),
                       ("--accumulate", 2), ("--costs", "c.json"), ("--bucket", "one"), ("--lr-schedule", "linear")):
            self.says("p.weft is a plan", "run", "p.weft", "--inputs", "in", *option)
        for option in (("--epochs", 2), ("--lr", 1), ("--steps", 1)):
            self.says(f"{option[0]} applies to training only", "run", "p.weft", "--inputs", "in", *option)

    def test_files(self):
        compile_it = ("compile", self.net, "--infer", "--world", 2, "--batch", 2)
        before = self.net.read_bytes()
        (self.dir / "link.onnx").symlink_to(self.net)
        self.says("would overwrite this input", *compile_it, "-o", self.net)
        self.says("would overwrite this input", *compile_it, "-o", "link.onnx")
        self.says("would overwrite this input", *compile_it, "-o", "p.weft", "--emit-onnx", self.net)
        self.says("name the same file", *compile_it, "-o", "p.weft", "--emit-onnx", "p.weft")
        self.assertEqual(before, self.net.read_bytes())
        self.weft(*compile_it, "-o", "p.weft")
        for option in ("--trace", "--write-profile"):
            self.says("would overwrite the input", "run", "p.weft", "--inputs", "in", option, self.dir / "p.weft")
        self.says("not a folder", "run", "p.weft", "--inputs", "nowhere")
        (self.dir / "in" / "x.pb").write_bytes(b"\n\x05")
        self.says("not an ONNX tensor", "run", "p.weft", "--inputs", "in")

    def test_shapes_and_batches(self):
        self.says("option '--split-batch' requires a value", "compile", self.net, "-o", "p.weft", "--infer", "--world", 2,
                  "--split-batch")
        self.says("exclude each other", "compile", self.net, "-o", "p.weft", "--infer", "--world", 2, "--split-batch", 4,
                  "--batch", 2)
        self.says("duplicate shape of input 'x'", "compile", self.net, "-o", "p.weft", "--infer", "--world", 2, "--shape", "x=2,3",
                  "--shape", "x=4,3")
        self.says("arena_limit: must be a number of bytes such as 8, 4K or 64M: a (--arena-limit)", "compile", self.net, "-o", "p.weft", "--infer", "--world", 2, "--arena-limit", "a")

    def test_check_counts_collectives_of_a_step(self):
        net = self.save(model([node("MatMul", ["x", "w"], "y")], {"x": ["b", 3]}, {"y": ["b", 3]},
                              {"w": np.ones((3, 3), np.float32)}))
        done = self.weft("check", net, "--infer", "--batch", 2)
        self.assertIn("1 weight of 36 B, batch 2 per rank, 0 collectives", done.stdout)

    def test_model_of_a_rank(self):
        """What is wrong with one of several models is said of that one."""
        bad = self.save(model([node("Nothing", ["x"], "y")], {"x": ["b", 3]}, {"y": ["b", 3]}, {}), "bad.onnx")
        self.says("model of rank 1: ", "compile", self.net, bad, "-o", "p.weft", "--infer", "--batch", 2)

    def test_inputs_with_one_file_name(self):
        """Their numbers tell them apart."""
        net = self.save(model([node("Sub", ["x/y", "x_y"], "z")], {"x/y": [2, 3], "x_y": [2, 3]}, {"z": [2, 3]}, {}))
        self.weft("compile", net, "-o", "p.weft", "--infer", "--world", 2)
        self.feed({"x_y": np.ones((2, 3), np.float32)})
        self.says("matches more inputs", "run", "p.weft", "--inputs", "in")
        self.feed({"input_0": np.full((2, 3), 5, np.float32), "input_1": np.full((2, 3), 3, np.float32)})
        self.weft("run", "p.weft", "--inputs", "in", "--outputs", "out")
        np.testing.assert_array_equal(self.output("z"), np.full((2, 3), 2, np.float32))


if __name__ == "__main__":
    support.main()
