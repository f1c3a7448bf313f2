#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""compile --pipeline: stages compute what one rank does; models of several ranks in one plan."""
import collections
import random as draw
import sys
import unittest

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from cli_checkpoint import read_safetensors
from cli_tensor import BATCH, LENGTH, WORDS, Model
from infer_models import load_tensor, save_tensor
from support import MODELS, SANITIZED, Case, main


def encoder(rows, columns, name="y"):
    """tanh(x w), x [3, rows]."""
    weight = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], [name])]
    graph = helper.make_graph(nodes, "encoder", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, rows])],
                              [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, columns])],
                              [numpy_helper.from_array(weight, "w")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    proto.ir_version = 8
    return proto, weight


def proto_of(nodes, inputs, outputs, **weights):
    """inputs and outputs: dimensions of f32 by name, but label: i64."""
    def infos(shapes):
        return [helper.make_tensor_value_info(name, TensorProto.INT64 if name == "label" else TensorProto.FLOAT, dims)
                for name, dims in shapes.items()]
    graph = helper.make_graph([helper.make_node(op, read.split(), made.split(), **attrs)
                               for op, read, made, attrs in nodes],
                              "graph", infos(inputs), infos(outputs),
                              [numpy_helper.from_array(value, name) for name, value in weights.items()])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    proto.ir_version = 8
    return proto


def random(*shape):
    return np.random.default_rng(shape[0]).standard_normal(shape).astype(np.float32) * np.float32(0.4)


class Pipeline(Case):
    def compile(self, model, *options):
        done = self.weft("compile", model, "-o", "p.weft", *options)
        self.weft("verify", "p.weft")
        return done

    def explain(self):
        return self.weft_json("explain", "p.weft")

    def test_models_of_ranks(self):
        """Each rank runs its own model, and has the outputs of both."""
        text, w0 = encoder(8, 4)
        image, w1 = encoder(5, 6, name="z")
        image.graph.output.append(helper.make_tensor_value_info("size", TensorProto.INT64, [2]))
        image.graph.node.append(helper.make_node("Shape", ["x"], ["size"]))
        paths = [self.dir / "text.onnx", self.dir / "image.onnx"]
        for path, proto in zip(paths, (text, image)):
            path.write_bytes(proto.SerializeToString())
        self.compile(paths[0], paths[1], "--infer")
        x = {name: np.random.default_rng(1).standard_normal((3, rows)).astype(np.float32)
             for name, rows in (("text", 8), ("image", 5))}
        for name, value in x.items():
            save_tensor(self.dir / "in" / f"{name}.x.pb", value)
        self.weft("run", "p.weft", "--inputs", "in", "--outputs", "out", env={"WEFT_CHECK": "results"})
        np.testing.assert_allclose(load_tensor(self.dir / "out" / "y.pb")[1], np.tanh(x["text"] @ w0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(load_tensor(self.dir / "out" / "z.pb")[1], np.tanh(x["image"] @ w1), rtol=1e-5, atol=1e-6)
        self.assertEqual(list(load_tensor(self.dir / "out" / "size.pb")[1]), [3, 5])
        report = self.explain()
        self.assertEqual([(a["axis"], a["size"]) for a in report["mesh"]], [("data", 1), ("model", 2)])
        self.assertEqual([p["weight_bytes"] for p in report["places"]], [w0.nbytes + 16, w1.nbytes + 16])  # and size
        self.assertEqual({c["op"] for c in report["collectives"]}, {"SendRecv"})
        self.weft("compile", *paths, paths[0], "--infer", "--world", 3, "--shape", "x=3,7", "-o", "p.weft", code=2)
        image.graph.output.append(image.graph.input[0])
        paths[1].write_bytes(image.SerializeToString())
        done = self.weft("compile", *paths, "--infer", "-o", "p.weft", code=2)
        self.assertIn("output 'image.x' is an input or a weight", done.stderr)

    def save_stages(self, *stages):
        """Models of (nodes, inputs, outputs, weights); what reads or makes nothing is of domain weft."""
        paths = []
        for i, (nodes, inputs, outputs, weights) in enumerate(stages):
            proto = proto_of(nodes, inputs, outputs, **weights)
            for node in proto.graph.node:
                node.domain = "weft" if node.op_type in ("Send", "Recv", "AllReduce") else ""
            proto.opset_import.append(helper.make_opsetid("weft", 1))
            paths.append(self.dir / f"s{i}.onnx")
            paths[-1].write_bytes(proto.SerializeToString())
        return paths

    def test_send_and_receive(self):
        """A pipeline that the user wrote, forward, back and side by side: what one rank computes with whole models."""
        w = {f"w{i}": random(8, 8) + np.float32(0.1 * i) for i in range(3)}
        x, rows = {"x": [3, 8]}, {"shape": [3, 8], "dtype": "f32"}
        # Two tensors of one tag keep their order; an input and a constant are sent too; rank 1 has no output of its own.
        first = [("MatMul", "x w0", "a", {}), ("Tanh", "a", "b", {}), ("Send", "b", "", {"peer": 1, "tag": 7}),
                 ("Send", "a", "", {"peer": 1, "tag": 7}), ("Send", "x", "", {"peer": 1}), ("Send", "w2", "", {"peer": 1, "tag": 1}),
                 ("Recv", "", "e", {"peer": 1, "tag": 7, **rows}), ("Add", "e b", "y", {})]
        second = [("Recv", "", "b", {"peer": 0, "tag": 7, **rows}), ("Recv", "", "a", {"peer": 0, "tag": 7, **rows}),
                  ("Recv", "", "x", {"peer": 0, **rows}), ("Recv", "", "v", {"peer": 0, "tag": 1, "shape": [8, 8]}),
                  ("MatMul", "b w1", "c", {}), ("Sub", "c a", "d", {}), ("Mul", "d x", "g", {}), ("MatMul", "g v", "e", {}),
                  ("Send", "e", "", {"peer": 0, "tag": 7})]
        whole = [("MatMul", "x w0", "a", {}), ("Tanh", "a", "b", {}), ("MatMul", "b w1", "c", {}), ("Sub", "c a", "d", {}),
                 ("Mul", "d x", "g", {}), ("MatMul", "g w2", "e", {}), ("Add", "e b", "y", {})]
        s0, s1 = self.save_stages((first, x, {"y": [3, 8]}, {"w0": w["w0"], "w2": w["w2"]}), (second, {}, {}, {"w1": w["w1"]}))
        model = self.save(proto_of(whole, x, {"y": [3, 8]}, **w))
        save_tensor(self.dir / "in" / "x.pb", random(3, 8))
        outputs = []
        for models in ((model, "--world", 1), (s0, s1)):
            self.compile(*models, "--infer")
            self.weft("run", "p.weft", "--inputs", "in", "--outputs", "out", env={"WEFT_CHECK": "results"})
            outputs.append(load_tensor(self.dir / "out" / "y.pb")[1])
        np.testing.assert_array_equal(outputs[1], outputs[0])
        report = self.explain()
        self.assertEqual({c["op"] for c in report["collectives"]}, {"SendRecv"})
        self.assertEqual(len(report["collectives"]), 6)  # five, and the output

    def test_stages_of_three_ranks(self):
        """Each gets and sends on; the last one has the output, whatever the order of the files' nodes."""
        w, rows = [random(6 + i, 6 + i + 1) for i in range(3)], 4
        stages = []
        for i in range(3):
            nodes = [("MatMul", f"{'x' if i == 0 else 'r'} w", "a", {}), ("Tanh", "a", "y" if i == 2 else "t", {})]
            nodes = ([] if i == 0 else [("Recv", "", "r", {"peer": i - 1, "shape": [rows, 6 + i]})]) + nodes
            nodes += [("Send", "t", "", {"peer": i + 1})] if i < 2 else []
            stages.append((nodes, {"x": [rows, 6]} if i == 0 else {}, {"y": [rows, 9]} if i == 2 else {}, {"w": w[i]}))
        self.compile(*self.save_stages(*stages), "--infer")
        x = random(rows, 6)
        save_tensor(self.dir / "in" / "x.pb", x)
        self.weft("run", "p.weft", "--inputs", "in", "--outputs", "out", env={"WEFT_CHECK": "results"})
        for weight in w:
            x = np.tanh(x @ weight)
        np.testing.assert_allclose(load_tensor(self.dir / "out" / "y.pb")[1], x, rtol=1e-5)

    def test_many_sends_that_are_sent_on(self):
        """Random ranks send what they computed or received last, with few tags: the oracle is a queue per channel."""
        seed = draw.randrange(1 << 30)
        print("seed", seed, file=sys.stderr)
        draws, ranks = draw.Random(seed), 4
        nodes, queues = [[] for _ in range(ranks)], collections.defaultdict(collections.deque)
        values = [{f"x{r}": random(r + 1, 4)[0]} for r in range(ranks)]
        last = [f"x{r}" for r in range(ranks)]
        for i in range(200):
            full = [channel for channel, queue in queues.items() if queue]
            if full and draws.random() < 0.5:
                channel = draws.choice(full)
                source, to, tag = channel
                values[to][f"v{i}"] = queues[channel].popleft()
                nodes[to].append(("Recv", "", f"v{i}", {"peer": source, "tag": tag, "shape": [4]}))
                if draws.random() < 0.5:  # else the next send is of what was received
                    nodes[to].append(("Sub", f"v{i} {last[to]}", f"d{i}", {}))
                    values[to][f"d{i}"] = values[to][f"v{i}"] - values[to][last[to]]
                    last[to] = f"d{i}"
                else:
                    last[to] = f"v{i}"
            else:
                source, to = draws.sample(range(ranks), 2)
                tag = draws.randrange(2)
                nodes[source].append(("Send", last[source], "", {"peer": to, "tag": tag}))
                queues[source, to, tag].append(values[source][last[source]])
        for (source, to, tag), queue in sorted(queues.items()):
            for i, value in enumerate(queue):
                nodes[to].append(("Recv", "", f"r{source}{tag}_{i}", {"peer": source, "tag": tag, "shape": [4]}))
        for r in range(ranks):
            nodes[r].append(("Neg", last[r], f"y{r}", {}))
        self.compile(*self.save_stages(*((nodes[r], {f"x{r}": [4]}, {f"y{r}": [4]}, {}) for r in range(ranks))), "--infer")
        for r in range(ranks):
            save_tensor(self.dir / "in" / f"x{r}.pb", values[r][f"x{r}"])
        self.weft("run", "p.weft", "--inputs", "in", "--outputs", "out")
        for r in range(ranks):
            np.testing.assert_array_equal(load_tensor(self.dir / "out" / f"y{r}.pb")[1], -values[r][last[r]])

    def test_sends_and_receives_that_do_not_meet(self):
        w = {"w": random(8, 8)}
        send = ("Send", "a", "", {"peer": 1, "tag": 2})
        recv = ("Recv", "", "b", {"peer": 0, "tag": 2, "shape": [3, 8]})
        change = lambda node, **attrs: (*node[:3], {**node[3], **attrs})
        both = ("Recv", "", "x2", {"peer": 1, "shape": [3, 8]})
        for sent, received, words in (
                ([send], [change(recv, shape=[3, 9])], ("s0.onnx: node 'Send", "sends f32 [3, 8], but node 'Recv", "of", "s1.onnx receives f32 [3, 9]")),
                ([send], [change(recv, dtype="f16")], ("receives f16 [3, 8]",)),
                ([send], [change(recv, tag=3)], ("s0.onnx: node 'Send", "no Recv of rank 1 is left for it: expected one with peer 0 and tag 2")),
                ([send, send], [recv], ("no Recv of rank 1 is left",)),
                ([send], [recv, (*recv[:2], "c", recv[3])], ("s1.onnx: node 'Recv", "no Send of rank 0 is left for it: expected one with peer 1 and tag 2")),
                ([change(send, peer=0)], [recv], ("invalid peer 0 of rank 0: there are 2 models",)),
                ([change(send, peer=2)], [recv], ("invalid peer 2 of rank 0: there are 2 models",)),
                ([change(send, group=1)], [recv], ("the only group is 0",)),
                ([send, ("AllReduce", "a", "s", {})], [recv], ("node 'AllReduce", "cannot have other collectives")),
                ([both, ("Add", "x2 x", "u", {}), ("Send", "u", "", {"peer": 1, "tag": 2})],
                 [recv, ("Send", "b", "", {"peer": 0})], ("cycle", "Add"))):
            paths = self.save_stages(([("MatMul", "x w", "a", {}), ("Relu", "a", "z", {}), *sent], {"x": [3, 8]}, {"z": [3, 8]}, w),
                                     ([*received, ("Relu", "b", "y", {})], {}, {"y": None}, {}))
            done = self.weft("compile", *paths, "--infer", "-o", "p.weft", code=2)
            self.assert_one_line(done.stderr)
            for word in words:
                self.assertIn(word, done.stderr)
        done = self.weft("compile", paths[0], "--infer", "--world", 2, "-o", "p.weft", code=2)
        self.assertIn("(Recv): no partner: it needs a model per rank, in rank_models, and inference", done.stderr)

    def test_inference(self):
        model = self.save(Model(fused=False).proto())
        save_tensor(self.dir / "in" / "tokens.pb", np.random.default_rng(3).integers(0, WORDS, (BATCH, LENGTH)))
        outputs = []
        for options in (("--world", 1), ("--pipeline", 2), ("--pipeline", 2, "--world", 4), ("--pipeline", 3)):
            self.compile(model, "--infer", *options)
            self.weft("run", "p.weft", "--inputs", "in", "--outputs", "out")
            outputs.append(load_tensor(self.dir / "out" / "logits.pb")[1])
        for other in outputs[1:]:
            np.testing.assert_array_equal(other, outputs[0])

    def trained(self, model, ranks, *options, steps=6, run=(), optimizer=("adamw", "--lr", 0.01)):
        self.compile(model, "--world", ranks, "--optimizer", *optimizer, *options)
        report = self.train("p.weft", "--checkpoint", "c.safetensors", *run, world=ranks, steps=steps,
                            data=self.dir / "data.npz")
        return report, read_safetensors(self.dir / "c.safetensors")[0]

    def test_training_is_that_of_one_rank(self):
        """Weights, states and losses; the tied embedding is of both stages, checkpoints are of whole models."""
        words = np.random.default_rng(5).integers(0, WORDS, (64, LENGTH + 1))
        np.savez(self.dir / "data.npz", tokens=words[:, :-1], labels=words[:, 1:])
        model = self.save(Model(fused=False, kv_heads=2).proto(loss=True))
        one, weights = self.trained(model, 1)
        two, same = self.trained(model, 2, "--pipeline", 2)
        self.assertEqual(two["loss_last"], one["loss_last"])
        self.assertEqual(two["param_digest"], one["param_digest"])
        self.assertEqual(sorted(same), sorted(weights))
        for name, value in weights.items():
            np.testing.assert_array_equal(same[name], value, err_msg=name)
        whole = (self.dir / "c.safetensors").read_bytes()
        self.trained(model, 2, "--pipeline", 2, steps=3)
        self.trained(model, 2, "--pipeline", 2, run=("--resume", "c.safetensors"))
        self.assertEqual((self.dir / "c.safetensors").read_bytes(), whole)
        places = self.explain()["places"]
        total = places[0]["weight_bytes"] + places[1]["weight_bytes"]
        self.assertLess(max(p["weight_bytes"] for p in places), 0.8 * total)

    def test_micro_batches_and_data_parallel(self):
        """A step of two micro-batches of one rank, by two of a pipeline, and by two pipelines."""
        words = np.random.default_rng(5).integers(0, WORDS, (64, LENGTH + 1))
        np.savez(self.dir / "data.npz", tokens=words[:, :-1], labels=words[:, 1:])
        model = self.save(Model(layers=1).proto(loss=True))
        sgd = ("sgd", "--lr", 0.3)
        one, weights = self.trained(model, 1, "--accumulate", 2, optimizer=sgd)
        for ranks, options in ((2, ("--batch", 2 * BATCH, "--pipeline-micro-batches", 2)), (4, ())):
            report, others = self.trained(model, ranks, "--pipeline", 2, *options, optimizer=sgd)
            np.testing.assert_allclose(report["loss_last"], one["loss_last"], rtol=1e-5)
            for name, value in weights.items():
                np.testing.assert_allclose(others[name], value, rtol=1e-3, atol=1e-4, err_msg=name)
        self.assertEqual({b["group"] for b in self.explain()["buckets"]}, {"data"})
        # Clipped: square sums are exact, whatever their order is. And groups that are not on as many hosts as others.
        one, _ = self.trained(model, 1, "--accumulate", 2, "--clip", 0.3)
        two, _ = self.trained(model, 4, "--pipeline", 2, "--clip", 0.3)
        self.assertEqual(two["param_digest"], one["param_digest"])
        rsh = self.dir / "rsh"
        rsh.write_text('#!/bin/sh\nWEFT_HOST_ID=$1 exec sh -c "$2"\n')
        rsh.chmod(0o755)
        report = self.weft_json("run", "p.weft", "--hosts", "127.0.0.2:3,127.0.0.3", "--engine", "ssh", "--rsh", rsh,
                                "--data", self.dir / "data.npz", "--no-eval", "--steps", 6)
        self.assertEqual(report["param_digest"], one["param_digest"])

    def test_masks_inputs_and_losses(self):
        """Both stages drop, read x and the label; the loss is no output. Bits are those of one rank."""
        nodes = [("MatMul", "x w0", "h0", {}), ("Dropout", "h0 ratio on", "d0", {}), ("Tanh", "d0", "t0", {}),
                 ("MatMul", "t0 head", "s0", {}), ("SoftmaxCrossEntropyLoss", "s0 label", "l0", {}),
                 ("Add", "t0 x", "r0", {}), ("MatMul", "r0 w1", "h1", {}), ("Dropout", "h1 ratio on", "d1", {}),
                 ("Mul", "d1 x", "r1", {}), ("MatMul", "r1 w2", "h2", {}),
                 ("SoftmaxCrossEntropyLoss", "h2 label", "l1", {}), ("Add", "l0 l1", "loss", {})]
        model = self.save(proto_of(nodes, {"x": ["batch", 6], "label": ["batch"]}, {"s0": ["batch", 4]}, w0=random(6, 6),
                                   w1=random(6, 6), w2=random(6, 4), head=random(6, 4), ratio=np.float32(0.3),
                                   on=np.array(True)))
        np.savez(self.dir / "data.npz", x=random(64, 6), label=np.arange(64) % 4)
        sgd = ("sgd", "--lr", 0.1)
        for ranks in (1, 2):
            for batch, parts, options in ((8, (), ()), (4, ("--accumulate", 2), ("--pipeline-micro-batches", 2))):
                one, _ = self.trained(model, ranks, "--loss", "loss", "--batch", batch, *parts, optimizer=sgd, steps=3)
                two, _ = self.trained(model, 2 * ranks, "--loss", "loss", "--batch", 8, "--pipeline", 2, *options,
                                      optimizer=sgd, steps=3)
                self.assertEqual(two["param_digest"], one["param_digest"], (ranks, options))
        self.train("p.weft", world=4, steps=3, data=self.dir / "data.npz", env={"WEFT_CHECK": "results"})

    def test_micro_batches_of_a_fixed_size(self):
        """A Reshape has the size of a part, which has as many samples as there are classes."""
        nodes = [("MatMul", "x w0", "h", {}), ("Reshape", "h size", "r", {}), ("MatMul", "r head", "s", {}),
                 ("SoftmaxCrossEntropyLoss", "s label", "loss", {})]
        model = self.save(proto_of(nodes, {"x": ["batch", 6], "label": ["batch"]}, {"s": ["batch", 4]}, w0=random(6, 6),
                                   head=random(6, 4), size=np.array([4, 6])))
        np.savez(self.dir / "data.npz", x=random(64, 6), label=np.arange(64) % 4)
        sgd = ("sgd", "--lr", 0.1)
        one, _ = self.trained(model, 1, "--loss", "loss", "--batch", 4, "--accumulate", 2, optimizer=sgd, steps=3)
        two, _ = self.trained(model, 2, "--loss", "loss", "--batch", 8, "--pipeline", 2, "--pipeline-micro-batches", 2,
                              optimizer=sgd, steps=3)
        self.assertEqual(two["param_digest"], one["param_digest"])

    def test_micro_batches_of_inference(self):
        """What has the batch is divided, by name and not by size; what mixes samples is refused."""
        begin = [("MatMul", "x w0", "a", {}), ("Tanh", "a", "b", {})]
        weights = {"w0": random(6, 6), "w1": random(6, 4)}
        x = {"x": ["batch", 6]}
        parts = ("--infer", "--batch", 6, "--pipeline", 2, "--pipeline-micro-batches", 2)
        model = self.save(proto_of([*begin, ("MatMul", "b m", "c", {}), ("MatMul", "c w1", "y", {})],
                                   {**x, "m": [6, 6]}, {"y": ["batch", 4]}, **weights))
        for name in ("x", "m"):
            save_tensor(self.dir / "in" / f"{name}.pb", random(6, 6) + np.float32(name == "m"))
        outputs = []
        for options in (("--infer", "--batch", 6, "--world", 1), parts):
            self.compile(model, *options)
            self.weft("run", "p.weft", "--inputs", "in", "--outputs", "out")
            outputs.append(load_tensor(self.dir / "out" / "y.pb")[1])
        np.testing.assert_array_equal(outputs[1], outputs[0])
        size = [("Shape", "x", "s", {}), ("Cast", "s", "n", {"to": TensorProto.FLOAT})]
        for more, outputs, words in (
                ([("MatMul", "b w1", "c", {}), ("Transpose", "c", "y", {"perm": [1, 0]})], {"y": [4, "batch"]},
                 "the batch is not the first dimension of output 'y'"),
                ([("MatMul", "b w1", "c", {}), ("ReduceMax", "c", "y", {"keepdims": 0})], {"y": []},
                 "combines several samples"),
                ([("ReduceMean", "b", "m", {"axes": [0]}), ("Sub", "b m", "c", {}), ("MatMul", "c w1", "y", {})],
                 {"y": ["batch", 4]}, "combines several samples"),
                ([*size, ("ReduceMin", "n", "m", {}), ("Div", "b m", "c", {}), ("MatMul", "c w1", "y", {})],
                 {"y": ["batch", 4]}, "has an input computed from the batch size"),
                ([*size, ("MatMul", "b w1", "y", {})], {"y": ["batch", 4], "n": [2]},
                 "output 'n' is computed from the batch size"),
                ([("MatMul", "b w1", "y", {})], {"y": ["batch", 4], **x}, "input 'x' is also an output")):
            model = self.save(proto_of([*begin, *more], x, outputs, **weights))
            done = self.weft("compile", model, "-o", "p.weft", *parts, code=2)
            self.assertIn(words, done.stderr)

    def test_families(self):
        """Masks and positions that both stages read; skips from one to the other; running statistics."""
        random = np.random.default_rng(0)
        for name in ("t5.dynamo", "unet")[:1 if SANITIZED else 2]:
            model = MODELS / "families" / f"{name}.onnx"
            graph, arrays = onnx.load(model).graph, {}
            weights = {value.name for value in graph.initializer}
            for value in graph.input:
                shape = [8] + [d.dim_value or 8 for d in value.type.tensor_type.shape.dim][1:]
                whole = value.type.tensor_type.elem_type == TensorProto.INT64
                if value.name not in weights:
                    arrays[value.name] = (random.integers(0, 4, shape) if whole
                                          else random.standard_normal(shape).astype(np.float32))
            np.savez(self.dir / "data.npz", **arrays)
            digests = [self.trained(model, ranks, "--batch", 4, *options, steps=2)[0]["param_digest"]
                       for ranks, options in ((1, ()), (2, ("--pipeline", 2)))]
            self.assertEqual(digests[1], digests[0], name)
        self.weft("compile", model, "--batch", 4, "--pipeline", 2, "--pipeline-micro-batches", 2, "-o", "p.weft",
                  code=0 if SANITIZED else 2)

    def test_what_is_refused(self):
        model = self.save(Model(layers=1).proto(loss=True))
        for options, words in (
                (("--pipeline", 2, "--world", 3), "world_size: must be a multiple of pipeline: 3, pipeline 2"),
                (("--pipeline", 1, "--pipeline-micro-batches", 3, "--world", 2), "requires at least 2 stages: 3, pipeline 1"),
                (("--pipeline", 2, "--tensor-parallel", 2), "excludes tensor_parallel"),
                (("--pipeline", 2, "--accumulate", 2), "set pipeline_micro_batches"),
                (("--pipeline", 2, "--pipeline-micro-batches", 2), "must divide batch"),
                (("--pipeline", 2, "--emit-onnx", "e.onnx"), "excludes emit_path"),
                (("--pipeline", 60), "too many stages: 60 stages"),
                (("--pipeline-micro-batches", 2, "--world", 2), "requires pipeline")):
            done = self.weft("compile", model, "-o", "p.weft", *options, code=2)
            self.assertIn(words, done.stderr.replace("--", "").replace("-", "_"))


if __name__ == "__main__":
    main()
