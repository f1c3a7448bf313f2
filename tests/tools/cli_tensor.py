#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""compile --tensor-parallel: logits of a divided transformer are those of one rank, with a part of its weights."""
import unittest

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from cli_checkpoint import read_safetensors
from infer_models import load_tensor, save_tensor
from support import MODELS, NEED_DATA, SANITIZED, Case, main

BATCH, LENGTH, WIDTH, HIDDEN, WORDS = 2, 5, 64, 96, 512


class Model:
    """Nodes and random initializers of a small decoder, written as exporters write them."""

    def __init__(self, heads=4, kv_heads=4, fused=True, layers=2):
        self.heads, self.kv_heads, self.size = heads, kv_heads, WIDTH // heads
        self.rng, self.nodes, self.values = np.random.default_rng(7), [], {}
        x = self.op("Gather", self.weight("embedding", WORDS, WIDTH), "tokens")
        for i in range(layers):
            x = self.op("Add", x, self.attention(f"h{i}.", self.norm(f"h{i}.ln1", x), fused))
            x = self.op("Add", x, self.mlp(f"h{i}.", self.norm(f"h{i}.ln2", x), fused))
        tied = self.op("Transpose", "embedding", perm=[1, 0])
        self.nodes.append(helper.make_node("MatMul", [self.norm("ln", x), tied], ["logits"], name="head"))

    def weight(self, name, *shape, scale=0.15):
        self.values[name] = (self.rng.standard_normal(shape) * scale).astype(np.float32)
        return name

    def ints(self, *values):
        name = "ints." + ".".join(map(str, values))
        self.values[name] = np.array(values, np.int64)
        return name

    def op(self, kind, *inputs, outputs=1, **attributes):
        names = [f"{kind}.{len(self.nodes)}.{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=names[0], **attributes))
        return names[0] if outputs == 1 else names

    def norm(self, name, x):
        return self.op("LayerNormalization", x, self.weight(name + ".w", WIDTH), self.weight(name + ".b", WIDTH))

    def linear(self, name, x, rows, columns, as_gemm):
        weight, bias = self.weight(name + ".w", rows, columns), self.weight(name + ".b", columns)
        if not as_gemm:
            return self.op("Add", self.op("MatMul", x, weight), bias)
        flat = self.op("Gemm", self.op("Reshape", x, self.ints(-1, rows)), weight, bias)
        return self.op("Reshape", flat, self.ints(BATCH, LENGTH, columns))

    def split_heads(self, x, heads):
        return self.op("Transpose", self.op("Reshape", x, self.ints(0, 0, heads, self.size)), perm=[0, 2, 1, 3])

    def repeated(self, x):
        times = self.heads // self.kv_heads
        if times == 1:
            return x
        x = self.op("Unsqueeze", x, self.ints(2))
        x = self.op("Expand", x, self.ints(BATCH, self.kv_heads, times, LENGTH, self.size))
        return self.op("Reshape", x, self.ints(BATCH, self.heads, LENGTH, self.size))

    def attention(self, name, x, fused):
        if fused:
            qkv = self.linear(name + "qkv", x, WIDTH, 3 * WIDTH, True)
            if fused == "ranges":
                q, k, v = (self.op("Slice", qkv, self.ints(i * WIDTH), self.ints((i + 1) * WIDTH), self.ints(-1)) for i in range(3))
            else:
                q, k, v = self.op("Split", qkv, self.ints(WIDTH, WIDTH, WIDTH), outputs=3, axis=2)
        else:
            narrow = self.kv_heads * self.size
            q, k, v = (self.linear(name + part, x, WIDTH, columns, False)
                       for part, columns in (("q", WIDTH), ("k", narrow), ("v", narrow)))
        q = self.split_heads(q, self.heads)
        k, v = (self.repeated(self.split_heads(y, self.kv_heads)) for y in (k, v))
        self.values["scale"] = np.array(self.size ** -0.5, np.float32)
        self.values["mask"] = np.triu(np.full((LENGTH, LENGTH), -1e9, np.float32), 1)[None, None]
        k = self.op("Transpose", k, perm=[0, 1, 3, 2])
        scores = (self.op("MatMul", self.op("Mul", q, "scale"), k) if fused else
                  self.op("Mul", self.op("MatMul", q, k), "scale"))
        mixed = self.op("MatMul", self.op("Softmax", self.op("Add", scores, "mask"), axis=-1), v)
        joined = self.op("Reshape", self.op("Transpose", mixed, perm=[0, 2, 1, 3]), self.ints(0, 0, -1))
        return self.linear(name + "out", joined, WIDTH, WIDTH, fused)

    def mlp(self, name, x, fused):
        up = self.linear(name + "up", x, WIDTH, HIDDEN, fused)
        if fused:
            up = self.op("Mul", up, self.op("Sigmoid", up))
        else:
            up = self.op("Mul", self.op("Tanh", self.linear(name + "gate", x, WIDTH, HIDDEN, False)), up)
        return self.linear(name + "down", up, HIDDEN, WIDTH, fused)

    def proto(self, loss=False):
        inputs, outputs = ["tokens"], [helper.make_tensor_value_info("logits", TensorProto.FLOAT, None)]
        if loss:
            self.nodes.append(helper.make_node("Transpose", ["logits"], ["scores"], perm=[0, 2, 1]))
            self.nodes.append(helper.make_node("SoftmaxCrossEntropyLoss", ["scores", "labels"], ["loss"]))
            inputs, outputs = ["tokens", "labels"], [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])]
        graph = helper.make_graph(
            self.nodes, "decoder",
            [helper.make_tensor_value_info(name, TensorProto.INT64, [BATCH, LENGTH]) for name in inputs], outputs,
            [numpy_helper.from_array(value, name) for name, value in self.values.items()])
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        proto.ir_version = 8
        return proto


class CachedModel(Model):
    """One more word after LENGTH others, whose keys and values of each layer are inputs; the longer caches are outputs."""

    def __init__(self, **kinds):
        self.caches = []
        super().__init__(**kinds)

    def attention(self, name, x, fused):
        self.size = 32  # so that weights are worth it
        wide, narrow = self.heads * self.size, self.kv_heads * self.size
        if fused:
            q, k, v = self.op("Split", self.linear(name + "qkv", x, WIDTH, wide + 2 * narrow, False),
                              self.ints(wide, narrow, narrow), outputs=3, axis=2)
        else:
            q, k, v = (self.linear(name + part, x, WIDTH, columns, False)
                       for part, columns in (("q", wide), ("k", narrow), ("v", narrow)))
        q, k, v = self.split_heads(q, self.heads), self.split_heads(k, self.kv_heads), self.split_heads(v, self.kv_heads)
        joined = []
        for part, y in (("k", k), ("v", v)):
            output = f"{name}{part}.present"
            self.nodes.append(helper.make_node("Concat", [f"{name}{part}.past", y], [output], name=output, axis=2))
            self.caches.append(f"{name}{part}")
            joined.append(output)
        times = self.heads // self.kv_heads
        if times > 1:
            for i, y in enumerate(joined):
                y = self.op("Expand", self.op("Unsqueeze", y, self.ints(2)),
                            self.ints(BATCH, self.kv_heads, times, LENGTH + 1, self.size))
                joined[i] = self.op("Reshape", y, self.ints(BATCH, self.heads, LENGTH + 1, self.size))
        self.values["scale"] = np.array(self.size ** -0.5, np.float32)
        scores = self.op("Mul", self.op("MatMul", q, self.op("Transpose", joined[0], perm=[0, 1, 3, 2])), "scale")
        mixed = self.op("MatMul", self.op("Softmax", scores, axis=-1), joined[1])
        return self.linear(name + "out", self.op("Reshape", self.op("Transpose", mixed, perm=[0, 2, 1, 3]), self.ints(0, 0, wide)),
                           wide, WIDTH, False)

    def mlp(self, name, x, fused):
        return super().mlp(name, x, False)

    def proto(self):  # pylint: disable=arguments-differ
        def infos(ending, length):
            return [helper.make_tensor_value_info(f"{name}.{ending}", TensorProto.FLOAT, [BATCH, self.kv_heads, length, self.size])
                    for name in self.caches]
        proto = super().proto()
        proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1
        proto.graph.input.extend(infos("past", LENGTH))
        proto.graph.output.extend(infos("present", LENGTH + 1))
        return proto


def perceptron(*middle, rows=4, columns=8, opset=17, inputs=(), **initializers):
    """x [rows, 8] times w [8, columns], the nodes between a and m, and m times w2 [8, 8]: y."""
    rng = np.random.default_rng(2)
    values = {"w": rng.standard_normal((8, columns)), "w2": rng.standard_normal((8, 8))}
    values = {name: value.astype(np.float32) for name, value in values.items()} | initializers
    nodes = [helper.make_node(kind, list(ins), list(outs), name=kind, domain="weft" if kind == "AllReduce" else "",
                              **attributes) for kind, ins, outs, attributes in
             (("MatMul", ("x", "w"), "a", {}), *middle)]
    nodes.append(helper.make_node("MatMul", ["m", "w2"], ["y"], name="last"))
    graph = helper.make_graph(
        nodes, "perceptron",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in (("x", [rows, 8]), *inputs)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in values.items()])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("weft", 1)]
    proto = helper.make_model(graph, opset_imports=opsets)
    proto.ir_version = 8
    return proto


class TensorParallel(Case):
    def setUp(self):
        super().setUp()
        tokens = np.random.default_rng(3).integers(0, WORDS, (BATCH, LENGTH))
        save_tensor(self.dir / "in" / "tokens.pb", tokens)

    def logits(self, model, ranks, *options):
        self.weft("compile", model, "-o", "p.weft", "--infer", *options,
                  *(("--tensor-parallel", ranks) if ranks > 1 else ("--world", 1)))
        self.weft("verify", "p.weft")
        self.weft("run", "p.weft", "--inputs", "in", "--outputs", f"out{ranks}")
        return load_tensor(self.dir / f"out{ranks}" / "logits.pb")[1]

    def hosts(self, names):
        """Options of a run on hosts that share no memory."""
        rsh = self.dir / "rsh"
        rsh.write_text('#!/bin/sh\nWEFT_HOST_ID=$1 exec sh -c "$2"\n')
        rsh.chmod(0o755)
        return "--hosts", names, "--engine", "ssh", "--rsh", rsh

    def explain(self):
        return self.weft_json("explain", "p.weft")

    def test_logits_are_those_of_one_rank(self):
        kinds = ({}, {"fused": "ranges"}, {"fused": False}, {"fused": False, "kv_heads": 2}, {"fused": False, "heads": 8, "kv_heads": 4})
        for kind in kinds[2:3] if SANITIZED else kinds:
            model = self.save(Model(**kind).proto())
            whole = self.logits(model, 1)
            for ranks in (2, 4):
                np.testing.assert_allclose(self.logits(model, ranks), whole, rtol=1e-4, atol=2e-5, err_msg=str(kind))

    def test_a_rank_has_its_part_of_the_weights(self):
        model = self.save(Model(fused=False).proto())
        self.logits(model, 1)
        whole = self.explain()["arena_bytes"]
        self.logits(model, 4)
        report = self.explain()
        self.assertTrue(report["rank_weights"])
        # All but the embedding, which is read by rows, and as columns of the head; and activations that all ranks have.
        self.assertLess(report["arena_bytes"], whole / 4 + WORDS * WIDTH * 4 + 49152)
        reasons = [c["reason"] for c in report["collectives"]]
        self.assertEqual(sum("sums the terms of" in reason for reason in reasons), 4, reasons)

    def test_caches_of_keys_and_values(self):
        """Whole caches go in and come out; a rank copies its heads, and the keys and values of the new word alone travel."""
        rng = np.random.default_rng(9)
        save_tensor(self.dir / "in" / "tokens.pb", rng.integers(0, WORDS, (BATCH, 1)))
        for kinds in ({"fused": False}, {"fused": True}, {"fused": False, "kv_heads": 2}, {"fused": True, "kv_heads": 2}):
            cached = CachedModel(**kinds)
            model = self.save(cached.proto())
            for name in cached.caches:
                cache = rng.standard_normal((BATCH, cached.kv_heads, LENGTH, cached.size)).astype(np.float32)
                save_tensor(self.dir / "in" / f"{name}.past.pb", cache)
            results = {}
            for ranks in (1, 2) if kinds.get("kv_heads") == 2 else (1, 2, 4):
                done = self.weft("compile", model, "-o", "p.weft", "--infer",
                                 *(("--tensor-parallel", ranks) if ranks > 1 else ("--world", 1)))
                self.assertNotIn("products with weights", done.stderr)
                self.weft("verify", "p.weft")
                self.weft("run", "p.weft", "--inputs", "in", "--outputs", f"out{ranks}", env={"WEFT_CHECK": "results"})
                gathers = [c for c in self.explain()["collectives"] if c["op"] == "AllGather"]
                results[ranks] = {name: load_tensor(self.dir / f"out{ranks}" / f"{name}.pb")[1]
                                  for name in ("logits", *(f"{name}.present" for name in cached.caches))}
                for name, value in results[ranks].items():
                    self.assertEqual(value.shape, results[1][name].shape)
                    np.testing.assert_allclose(value, results[1][name], rtol=1e-4, atol=2e-5, err_msg=f"{name} {kinds} {ranks}")
            word = BATCH * cached.kv_heads * cached.size * 4
            self.assertEqual(sorted(c["bytes"] for c in gathers)[:4], [word] * 4, gathers)
            self.weft("compile", model, "-o", "p.weft", "--infer", "--tensor-parallel", 2, "--bucket", "one")
            self.assertEqual(sum(c["op"] == "AllGather" for c in self.explain()["collectives"]), 1)
            self.weft("run", "p.weft", "--inputs", "in", "--outputs", "out", env={"WEFT_CHECK": "results"})
            for name, value in results[2].items():
                np.testing.assert_array_equal(load_tensor(self.dir / "out" / f"{name}.pb")[1], value, err_msg=name)

    def test_only_what_divides_is_divided(self):
        model = self.save(Model(fused=False, kv_heads=1).proto())
        whole = self.logits(model, 1)
        np.testing.assert_allclose(self.logits(model, 2), whole, rtol=1e-4, atol=2e-5)
        done = self.weft("compile", model, "-o", "p.weft", "--infer", "--tensor-parallel", 2)
        self.assertIn("tensor_parallel: 11 of 15 products with weights are split over 2 ranks", done.stderr)
        self.assertIn("its inputs are split in different ways", done.stderr)
        done = self.weft("compile", self.save(Model(fused="ranges").proto()), "-o", "p.weft", "--infer", "--tensor-parallel", 2)
        self.assertNotIn("products with weights", done.stderr)

    def test_training_is_that_of_one_rank(self):
        """The losses of steps depend on the gradients of all parameters, whole and divided."""
        words = np.random.default_rng(5).integers(0, WORDS, (64, LENGTH + 1))
        np.savez(self.dir / "data.npz", tokens=words[:, :-1], labels=words[:, 1:])
        split_heads = {"fused": False, "heads": 1, "kv_heads": 1, "layers": 1}  # each rank has a part of the head
        for kind in ({"fused": False, "kv_heads": 2}, {}, split_heads, {"fused": "ranges", "layers": 1}):
            model = self.save(Model(**kind).proto(loss=True))
            for optimizer, rate in (("sgd", 0.3), ("adamw", 0.01))[:1 if "layers" in kind else 2]:
                losses = []
                for ranks in (1, 2, 4):
                    self.weft("compile", model, "-o", "p.weft", "--world", ranks, "--optimizer", optimizer, "--lr", rate,
                              "--freeze", "mask", *(("--tensor-parallel", ranks) if ranks > 1 else ()))
                    self.weft("verify", "p.weft")
                    report = self.train("p.weft", world=ranks, steps=8, data=self.dir / "data.npz")
                    losses.append(report["loss_last"])
                np.testing.assert_allclose(losses, losses[:1] * 3, rtol=2e-5, err_msg=f"{kind} {optimizer}")

    def test_data_and_tensor_parallel(self):
        """2 batches at a time on 2 x 2 ranks: the losses of a step of 2 micro-batches on one rank."""
        words = np.random.default_rng(5).integers(0, WORDS, (64, LENGTH + 1))
        np.savez(self.dir / "data.npz", tokens=words[:, :-1], labels=words[:, 1:])
        model, losses = self.save(Model(fused=False, kv_heads=2).proto(loss=True)), []
        for ranks, options in ((1, ("--accumulate", 2)), (4, ("--tensor-parallel", 2))):
            self.weft("compile", model, "-o", "p.weft", "--world", ranks, "--optimizer", "sgd", "--lr", 0.3, *options)
            self.weft("verify", "p.weft")
            report = self.train("p.weft", world=ranks, steps=8, data=self.dir / "data.npz")
            losses.append(report["loss_last"])
        # Groups that are not on as many hosts as the others of their axis.
        report = self.weft_json("run", "p.weft", *self.hosts("127.0.0.2:3,127.0.0.3"), "--data", self.dir / "data.npz", "--no-eval",
                                "--steps", 8)
        np.testing.assert_allclose([losses[1], report["loss_last"]], losses[0], rtol=2e-5)
        report = self.explain()
        self.assertEqual([(a["axis"], a["size"], a["stride"]) for a in report["mesh"]],
                         [("data", 2, 2), ("tensor", 2, 1)])
        self.assertEqual({c["group"] for c in report["collectives"]}, {"tensor"})
        self.assertEqual({b["group"] for b in report["buckets"]}, {"data"})

    def test_options_of_training(self):
        """Micro-batches, a norm that is clipped, sums in bf16: the losses of one rank."""
        words = np.random.default_rng(5).integers(0, WORDS, (32, LENGTH + 1))
        np.savez(self.dir / "data.npz", tokens=words[:, :-1], labels=words[:, 1:])
        model = self.save(Model(fused=False, kv_heads=2, layers=1).proto(loss=True))
        for count, ranks, options in ((4, (2, 4), ("--clip", 0.3)), (1, (2,), ("--clip", 0.3)), (2, (2,), ("--wire", "bf16"))):
            losses = []
            for world in (1, *ranks):
                self.weft("compile", model, "-o", "p.weft", "--optimizer", "sgd", "--lr", 0.5, "--world", world, *options,
                          "--accumulate", count // max(world // 2, 1), *(("--tensor-parallel", 2) if world > 1 else ()))
                losses.append(self.train("p.weft", world=world, steps=6, data=self.dir / "data.npz")["loss_last"])
            np.testing.assert_allclose(losses, losses[0], rtol=2e-4 if "--wire" in options else 2e-5, err_msg=str(options))

    def test_checkpoints(self):
        """They and saved models hold whole weights. Training continues on other hosts, with more batches at a time, on one
        rank."""
        words = np.random.default_rng(5).integers(0, WORDS, (64, LENGTH + 1))
        np.savez(self.dir / "data.npz", tokens=words[:, :-1], labels=words[:, 1:])
        model, data = self.save(Model(layers=1).proto(loss=True)), self.dir / "data.npz"
        tensors = {}
        for world, options in ((1, ()), (2, ("--tensor-parallel", 2))):
            self.weft("compile", model, "-o", "p.weft", "--world", world, "--optimizer", "adamw", "--lr", 0.01, *options)
            whole = self.train("p.weft", "--checkpoint", "c.safetensors", "--save", "saved.onnx", world=world, steps=6,
                               data=data)["loss_last"]
            tensors[world] = read_safetensors(self.dir / "c.safetensors")[0]
        self.assertEqual(tensors[1].keys(), tensors[2].keys())
        for name, tensor in tensors[1].items():
            np.testing.assert_allclose(tensors[2][name], tensor, rtol=1e-2, atol=1e-4, err_msg=name)
        saved = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(self.dir / "saved.onnx").graph.initializer}
        for name in set(saved) & set(tensors[2]):
            np.testing.assert_array_equal(saved[name], tensors[2][name], name)
        self.assertIn("h0.up.w", set(saved) & set(tensors[2]))
        self.weft("compile", "saved.onnx", "-o", "m.weft", "--infer", "--world", 1, "--batch", BATCH)
        self.train("p.weft", "--checkpoint", "a.safetensors", world=2, steps=3, data=data)
        hosts = self.hosts("127.0.0.2,127.0.0.3")
        for place in (("-n", 2), hosts):
            report = self.weft_json("run", "p.weft", *place, "--data", data, "--no-eval", "--resume", "a.safetensors",
                                    "--steps", 6, "--checkpoint", "b.safetensors")
            self.assertEqual(report["loss_last"], whole)
            self.assertEqual((self.dir / "b.safetensors").read_bytes(), (self.dir / "c.safetensors").read_bytes())
        self.weft("compile", model, "-o", "one.weft", "--world", 1, "--optimizer", "adamw", "--lr", 0.01)
        alone = self.train("one.weft", "--resume", "a.safetensors", world=1, steps=6, data=data)["loss_last"]
        self.assertAlmostEqual(alone, whole, delta=1e-4)
        self.weft("compile", model, "-o", "p.weft", "--world", 4, "--tensor-parallel", 2, "--optimizer", "adamw")
        four = ("run", "p.weft", "--data", data, "--no-eval", "--resume", "a.safetensors", "--steps", 4,
                "--checkpoint", "d.safetensors")
        self.weft(*four)
        once = (self.dir / "d.safetensors").read_bytes()
        self.weft(*four, *self.hosts("127.0.0.2:3,127.0.0.3"))
        self.assertEqual((self.dir / "d.safetensors").read_bytes(), once)
        done = self.weft("run", model, "--tensor-parallel", 2, "-n", 4, "--data", data, "--no-eval", "--elastic", "2:4",
                         code=2)
        self.assertIn("elastic training requires whole weights on every rank, but 2 ranks have parts of them", done.stderr)

    @NEED_DATA
    def test_evaluation(self):
        """Two ranks evaluate a batch together; two pairs have a half of the test set each."""
        right = []
        for world, options in ((1, ("--accumulate", 2)), (4, ("--tensor-parallel", 2))):
            self.weft("compile", MODELS / "mlp.onnx", "--batch", 64, "-o", "p.weft", "--world", world, *options)
            right.append(self.train("p.weft", world=world, steps=4, evaluate=True)["test_accuracy"])
        self.assertGreater(right[0], 0.15)
        self.assertAlmostEqual(right[1], right[0], delta=0.001)

    def test_inference_of_replicas(self):
        """2 x 2 ranks compute what one rank does, with a part of the weights once per pair in the file."""
        model = self.save(Model(fused=False).proto())
        whole, size = self.logits(model, 1), []
        for world in (2, 4):
            self.weft("compile", model, "-o", "p.weft", "--infer", "--tensor-parallel", 2, "--world", world)
            self.weft("run", "p.weft", "--inputs", "in", "--outputs", "out", env={"WEFT_CHECK": "results"})
            np.testing.assert_allclose(load_tensor(self.dir / "out" / "logits.pb")[1], whole, rtol=1e-4, atol=2e-5)
            size.append((self.dir / "p.weft").stat().st_size)
        self.assertLess(size[1], size[0] * 1.05)

    def result(self, model, ranks):
        self.weft("compile", model, "-o", "p.weft", "--infer",
                  *(("--tensor-parallel", ranks) if ranks > 1 else ("--world", 1)))
        self.weft("run", "p.weft", "--inputs", "small", "--outputs", f"out{ranks}")
        return load_tensor(self.dir / f"out{ranks}" / "y.pb")[1]

    def test_views_and_conversions_of_a_part(self):
        """Parts of 1 where Squeeze drops what is 1; a shape in an attribute; types of other values."""
        heads, row = np.array([1, 2, 4]), np.array([1, 8])
        back = (("Transpose", "c", "d", {"perm": [1, 0]}), ("Transpose", "d", "r", {"perm": [1, 0]}),
                ("Reshape", "rj", "m", {}))
        z = ("z", [4, 1])
        models = [
            perceptron(("Reshape", "ah", "b", {}), ("Squeeze", "b", "c", {}), *back, rows=1, h=heads, j=row),
            perceptron(("Reshape", "ah", "b", {}), ("Squeeze", "b", "c", {}), *back, rows=1, h=heads, j=row, opset=11),
            perceptron(("Reshape", "a", "b", {"shape": heads.tolist()}), ("Sigmoid", "b", "c", {}),
                       ("Reshape", "c", "m", {"shape": row.tolist()}), rows=1, opset=4),
            perceptron(("CastLike", "za", "k", {}), ("Mul", "ak", "m", {}), inputs=[z]),
            perceptron(("CastLike", "az", "k", {}), ("Relu", "k", "m", {}), inputs=[z])]
        for i, proto in enumerate(models):
            with self.subTest(i):
                rng = np.random.default_rng(4)
                for value in proto.graph.input:
                    dims = [d.dim_value for d in value.type.tensor_type.shape.dim]
                    save_tensor(self.dir / "small" / f"{value.name}.pb", rng.standard_normal(dims).astype(np.float32))
                model = self.save(proto)
                np.testing.assert_allclose(self.result(model, 2), self.result(model, 1), rtol=1e-5, atol=1e-5)
                for file in (self.dir / "small").iterdir():
                    file.unlink()

    def test_why_small_models_stay_whole(self):
        """No crash, and a reason that is true."""
        name = ["w"] + [f"t{i}" for i in range(60000)]
        deep = perceptron(("Relu", "a", "m", {}))
        relu = deep.graph.node[1:2]
        del deep.graph.node[:2]
        chain = [helper.make_node("Neg", [name[i]], [name[i + 1]]) for i in range(60000)]
        chain.append(helper.make_node("MatMul", ["x", name[-1]], ["a"], name="deep"))
        nodes = chain + list(relu) + list(deep.graph.node)
        del deep.graph.node[:]
        deep.graph.node.extend(nodes)
        empty = perceptron(("Reshape", "ah", "b", {}), ("Relu", "x", "m", {}), columns=0, h=np.array([4, 0, 3]))
        empty.graph.output.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [4, 0, 3]))
        for proto, words in (
                (deep, "first 'deep': its weight is computed"),
                (empty, "first 'MatMul': its weight is computed, has other readers, or is empty"),
                (perceptron(("Relu", "a", "r", {}), ("AllReduce", "r", "m", {})),
                 "the model is already divided: node 'AllReduce'"),
                (perceptron(("CumSum", "ai", "m", {}), i=np.array(1)), "first 'MatMul': node 'CumSum' (CumSum) needs it whole: no rule")):
            done = self.weft("compile", self.save(proto), "-o", "p.weft", "--infer", "--tensor-parallel", 2, code=2)
            self.assertIn(words, done.stderr)

    def test_what_cannot_be_divided_is_refused(self):
        model = self.save(Model().proto())
        for words, options in (
                ("no product can be split over 5 ranks: first 'Gemm.", ("--tensor-parallel", 5)),
                ("world_size: must be a multiple of tensor_parallel: 4, tensor_parallel 3", ("--tensor-parallel", 3, "--world", 4)),
                ("excludes order blocks:2,2", ("--tensor-parallel", 2, "--world", 4, "--order", "blocks:2,2")),
                ("excludes emit_path", ("--tensor-parallel", 2, "--emit-onnx", "x.onnx")),
                ("excludes rank_models", (model, "--tensor-parallel", 2, "--world", 2))):
            done = self.weft("compile", model, "-o", "p.weft", "--infer", *options, code=2)
            self.assert_one_line(done.stderr)
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    main()
