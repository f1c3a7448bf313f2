#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""compile --infer of models with multi-device annotations (IR 11): results are those of the whole model."""
import functools
import itertools
import os
import sys
import unittest

import numpy as np
import onnx

from cli_tensor import BATCH, LENGTH, WORDS, Model
from infer_models import load_tensor, model, node, save_tensor
from support import SANITIZED, Case, main

NAME = "devices"
KINDS = ({"fused": False}, {"fused": True}, {"fused": "ranges", "kv_heads": 4})


def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def number(field, value):
    return varint(field << 3) + varint(value)


def message(field, *parts):
    data = b"".join(part.encode() if isinstance(part, str) else part for part in parts)
    return varint(field << 3 | 2) + varint(len(data)) + data


def dim(axis, shards, value=None):
    """A sharded_dim of a sharding_spec."""
    size = b"" if value is None else number(1, value)
    return message(4, number(1, axis), *(message(2, size, number(3, n)) for n in (shards if isinstance(shards, tuple) else (shards,))))


def spec(tensor, *dims, devices=(), groups=()):
    """A ShardingSpecProto as field sharding_spec."""
    return message(2, message(1, tensor), *(number(2, d) for d in devices),
                   *(message(3, number(1, key), *(number(2, d) for d in group)) for key, group in groups), *dims)


def annotate(proto, index, *specs, name=NAME, stage=None):
    """Debian's onnx has no such fields: they stay bytes of the message."""
    more = () if stage is None else (number(3, stage),)
    proto.graph.node[index].MergeFromString(message(10, message(1, name), *specs, *more))
    return proto


def configure(proto, count, name=NAME):
    proto.MergeFromString(message(26, message(1, name), number(2, count)))
    proto.ir_version = 11
    return proto


def split(count, **axes):
    return [spec(tensor, dim(axis, count), devices=range(count)) for tensor, axis in axes.items()]


def perceptron(gemm=False):
    """x [4, 8]: y = relu(x w + b) v + c, without annotations."""
    rng = np.random.default_rng(2)
    shapes = {"w": (8, 16), "b": (16,), "v": (16, 8), "c": (8,)}
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    nodes = ([node("Gemm", ["x", "w", "b"], "h"), node("Relu", ["h"], "r"), node("Gemm", ["r", "v", "c"], "y")] if gemm else
             [node("MatMul", ["x", "w"], "a"), node("Add", ["a", "b"], "h"), node("Relu", ["h"], "r"),
              node("MatMul", ["r", "v"], "z"), node("Add", ["z", "c"], "y")])
    return model(nodes, {"x": [4, 8]}, ["y"], weights)


class Devices(Case):
    def setUp(self):
        super().setUp()
        save_tensor(self.dir / "in" / "x.pb", np.random.default_rng(4).standard_normal((4, 8)).astype(np.float32))

    def result(self, proto, *options, output="y", inputs="in", **kwargs):
        done = self.weft("compile", self.save(proto), "-o", "p.weft", "--infer", *options)
        self.assertNotIn("are ignored", done.stderr)
        self.weft("verify", "p.weft")
        self.weft("run", "p.weft", "--inputs", inputs, "--outputs", "out", env={"WEFT_CHECK": "results"}, **kwargs)
        return load_tensor(self.dir / "out" / f"{output}.pb")[1]

    @functools.cache
    def whole(self):
        """The result of the model on one device."""
        return self.result(perceptron(), "--world", 1)

    def collectives(self):
        return [c["op"] for c in self.weft_json("explain", "p.weft")["collectives"]]

    def equal(self, build, expected, *options, counts=(4,) if SANITIZED else (2, 4)):
        """build(n) is perceptron() with annotations for n devices; expected: the collectives of the plan."""
        whole = self.whole()
        for count in counts:
            with self.subTest(count):
                y = self.result(configure(build(count), count), *options)
                np.testing.assert_allclose(y, whole, rtol=1e-5, atol=1e-5)
                self.assertEqual(self.collectives(), expected)
                self.assertEqual(self.weft_json("explain", "p.weft")["world"], count)

    def test_columns_then_rows(self):
        def build(count):
            proto = annotate(perceptron(), 0, *split(count, w=1))
            return annotate(proto, 3, *split(count, v=0))
        self.equal(build, ["AllReduce"])
        self.assertTrue(self.weft_json("explain", "p.weft")["rank_weights"])

    def test_gemm(self):
        def build(count):
            proto = annotate(perceptron(gemm=True), 0, *split(count, w=-1, b=0), spec("x", devices=[-1], groups=[(-1, range(count))]))
            return annotate(proto, 2, *split(count, r=1, v=0), spec("c"), spec("y", dim(0, 1), devices=range(count)))
        self.equal(build, ["AllReduce"])

    def test_activations_alone(self):
        """The product's result is annotated, and the weights follow it."""
        self.equal(lambda n: annotate(perceptron(), 0, *split(n, a=1)), ["AllReduce"])

    def test_specs_that_disagree(self):
        """Split to whole is a gather, whole to split takes a part, another axis is both; a sum is reduced, or scattered."""
        self.equal(lambda n: annotate(annotate(perceptron(), 0, *split(n, w=1)), 3, spec("r")), ["AllGather"])
        self.equal(lambda n: annotate(perceptron(), 2, *split(n, h=0)), ["AllGather"])
        self.equal(lambda n: annotate(annotate(perceptron(), 0, *split(n, w=1)), 2, *split(n, h=0)), ["AllGather", "AllGather"])
        self.equal(lambda n: annotate(perceptron(), 3, *split(n, r=1, z=0)), ["ReduceScatter", "AllGather"])
        self.equal(lambda n: annotate(perceptron(), 3, *split(n, v=0, z=1)), ["AllReduce", "AllGather"])
        self.equal(lambda n: annotate(perceptron(), 0, *split(n, x=1)), ["AllReduce"])

    def test_all_annotations_of_small_model(self):
        """Every pair of splits of two values: the result, or an error that names node and tensor."""
        whole, refused, places = self.whole(), 0, []
        for index, tensors in enumerate((("x", "w", "a"), ("a", "b", "h"), ("h", "r"), ("r", "v", "z"), ("z", "c", "y"))):
            places += [(index, tensor, axis) for tensor in tensors for axis in ((0,) if tensor in "bc" else (None, 0, 1))]
        pairs = [(a, b) for a, b in itertools.combinations(places, 2) if a[:2] != b[:2]][::21 if SANITIZED else 7]
        for a, b in pairs:
            with self.subTest(f"{a} {b}"):
                proto, nodes = configure(perceptron(), 2), {}
                for index, tensor, axis in (a, b):
                    nodes.setdefault(index, []).append(spec(tensor, *([] if axis is None else [dim(axis, 2)])))
                for index, specs in nodes.items():
                    annotate(proto, index, *specs)
                path = self.save(proto)
                try:
                    self.weft("compile", path, "-o", "p.weft", "--infer")
                except AssertionError:
                    done = self.weft("compile", path, "-o", "p.weft", "--infer", code=2)
                    self.assert_one_line(done.stderr)
                    self.assertRegex(done.stderr, r"node '\w+' \(\w+\): sharding of '\w': the operator cannot read parts")
                    refused += 1
                    continue
                np.testing.assert_allclose(self.result(proto), whole, rtol=1e-5, atol=1e-5)
        self.assertLess(refused, len(pairs) / 2)

    def test_attention_by_heads(self):
        save_tensor(self.dir / "tokens" / "tokens.pb", np.random.default_rng(3).integers(0, WORDS, (BATCH, LENGTH)))
        for kind in ({"fused": False}, {"fused": True}):
            whole = self.result(Model(**kind).proto(), "--world", 1, output="logits", inputs="tokens")
            for count in (2, 4):
                proto = Model(**kind).proto()
                for index, n in enumerate(proto.graph.node):
                    for weight in n.input:
                        if weight.endswith((".qkv.w", ".q.w", ".k.w", ".v.w", ".up.w", ".gate.w")):
                            annotate(proto, index, *split(count, **{weight: 1}))
                        elif weight.endswith((".out.w", ".down.w")):
                            annotate(proto, index, *split(count, **{weight: 0}))
                logits = self.result(configure(proto, count), output="logits", inputs="tokens")
                np.testing.assert_allclose(logits, whole, rtol=1e-4, atol=2e-5)
                self.assertEqual(self.collectives(), ["AllReduce"] * 4, str(kind))

    def test_world(self):
        """Replicas of two devices; a choice among configurations; annotations that are ignored because the user asks for it."""
        proto = configure(annotate(annotate(perceptron(), 0, *split(2, w=1)), 0, *split(4, w=0), name="four"), 2)
        whole = self.whole()
        np.testing.assert_allclose(self.result(proto_without(proto, "four"), "--world", 4), whole, rtol=1e-5, atol=1e-5)
        scattered = configure(annotate(perceptron(), 3, *split(2, r=1, z=0)), 2)
        np.testing.assert_allclose(self.result(scattered, "--world", 4), whole, rtol=1e-5, atol=1e-5)
        self.assertEqual(self.collectives(), ["ReduceScatter", "AllGather"])
        configure(proto, 4, "four")
        for count in (2, 4):
            np.testing.assert_allclose(self.result(proto, "--tensor-parallel", count), whole, rtol=1e-5, atol=1e-5)
            self.assertEqual(self.collectives(), ["AllReduce"])
        done = self.weft("compile", self.save(proto), "-o", "p.weft", "--infer", "--world", 3, "--tensor-parallel", 1)
        self.assertIn("4 device configurations and sharding specifications are ignored: each rank runs the whole graph", done.stderr)
        self.assertEqual(self.collectives(), [])

    def test_mesh(self):
        """Shards, each on a group of devices: a mesh of two axes."""
        whole = self.whole()
        for shards, replicas in ((2, 2), (2, 3), (4, 2)):
            groups = [(-1 - s, range(s, shards * replicas, shards)) for s in range(shards)]
            def on(tensor, axis):
                return spec(tensor, dim(axis, shards), devices=[key for key, _ in groups], groups=groups)  # pylint: disable=cell-var-from-loop
            proto = annotate(annotate(perceptron(), 0, on("w", 1)), 3, on("v", 0), spec("z", devices=range(shards * replicas)))
            configure(proto, shards * replicas)
            for options in ((), ("--tensor-parallel", shards), ("--tensor-parallel", shards * replicas)):
                with self.subTest(shards=shards, replicas=replicas, options=options):
                    np.testing.assert_allclose(self.result(proto, *options), whole, rtol=1e-5, atol=1e-5)
                    self.assertEqual(self.collectives(), ["AllReduce"])
                    self.assertEqual(self.weft_json("explain", "p.weft")["world"], shards * replicas)
        self.refused(proto, "num_devices 8 must divide world_size 4", "set tensor_parallel 1 to ignore", options=("--world", 4))

    def test_hostile_annotations_are_refused(self):
        w = split(2, w=1)
        group = [(-1, (0, 1)), (-2, (2, 3))]
        cases = [
            ([spec("w", dim(0, 2), dim(1, 2))], 2, "sharding of 'w': several axes are sharded, limit 1: axes: 0, and 1"),
            ([spec("w", dim(1, 3))], 3, "uneven shards are not supported: dimension 1 is 16, num_shards 3"),
            ([spec("w", dim(1, 2))], 4, "num_shards differs from num_devices: 2, num_devices 4"),
            ([spec("w", dim(1, 2), devices=[0])], 2, "a subset of the devices: 1, num_devices 2"),
            ([spec("w", devices=[0, 1])], 4, "a subset of the devices: 2, num_devices 4"),
            ([spec("w", dim(1, 2), devices=[1, 0])], 2, "shards must be on devices 0, 1, .. in this order"),
            ([spec("w", dim(1, 2), devices=[0, 5])], 2, "no such device: 5, num_devices 2"),
            ([spec("w", dim(1, 2), devices=[0, -1])], 2, "no such device: -1"),
            ([spec("w", dim(1, 2), devices=[0, 0])], 2, "a device has several shards: 0"),
            ([spec("w", dim(1, 2), devices=[-1, -2], groups=group)], 4, "device d must have shard d % num_shards"),
            ([spec("w", dim(1, 2), devices=[-1, -2], groups=[(-1, (0, 2)), (-2, (1,))])], 4, "a subset of the devices: 3, num_devices 4"),
            ([spec("w", dim(1, 2), devices=[-1, -2], groups=[(-1, (0, 2)), (-2, (1, 0))])], 4, "a device has several shards: 0"),
            ([spec("w", dim(1, 2), devices=[-1, -2], groups=[(-1, (0, 2)), (-2, (1, 3))]), spec("x", dim(0, 4), devices=range(4))], 4,
             "num_shards differs from num_devices: 2, num_devices 4"),
            ([spec("w", dim(1, 4), devices=[-1, -2], groups=group)], 4, "shards must be on devices 0, 1, .."),
            ([spec("w", dim(2, 2))], 2, "axis 2 is out of range: rank 2"),
            ([spec("w", dim(-(1 << 63), 2))], 2, "is out of range: rank 2"),
            ([spec("w", dim(1, (2, 2)))], 2, "an axis has several entries of simple_sharding: 2, axis 1"),
            ([spec("w", dim(1, ()))], 2, "sharded_dim without simple_sharding"),
            ([spec("w", message(4, message(2, number(3, 2))))], 2, "sharded_dim without axis"),
            ([spec("w", dim(1, 0))], 2, "num_shards must be at least 1: 0"),
            ([spec("w", dim(1, -1))], 2, "num_shards must be at least 1: -1"),
            ([spec("w", dim(1, 2, 8))], 2, "dim_value 8 differs from dimension 1 of the tensor: 16"),
            ([spec("q", dim(1, 2))], 2, "sharding of 'q': not an input or output of the node"),
            ([spec("")], 2, "tensor_name is empty"),
            ([*w, spec("w")], 2, "sharding of 'w': several sharding specs for one tensor"),
            ([*w, *split(2, x=0)], 2, "sharding of 'x': the operator cannot read parts along axis 0"),
        ]
        for specs, count, words in cases:
            with self.subTest(words):
                self.refused(configure(annotate(perceptron(), 0, *specs), count), "node 'MatMul_a' (MatMul): ", words)
        self.refused(configure(annotate(perceptron(), 0, *w, name="other"), 2), "node 'MatMul_a' (MatMul): unknown configuration_id 'other'")
        self.refused(configure(annotate(perceptron(), 0, *w, stage=1), 2), "node 'MatMul_a' (MatMul): pipeline_stage 1 is not supported")
        self.refused(configure(annotate(annotate(perceptron(), 0, *w), 0), 2), "duplicate configuration_id 'devices'")
        self.refused(annotate(perceptron(), 0, *w), "nodes have device configurations, but the model has none")
        annotated = annotate(perceptron(), 0, *w)
        for count in (0, -1, 1 << 30):
            proto = perceptron()
            proto.CopyFrom(annotated)
            self.refused(configure(proto, count), f"'devices': num_devices must be between 1 and 65536: {count}")
        proto.CopyFrom(annotated)
        self.refused(configure(configure(proto, 2), 4), "duplicate device configuration 'devices'")
        proto.CopyFrom(annotated)
        self.refused(configure(configure(proto, 2), 4, "four"), "conflicting device configurations: 2, of which 0 have")
        proto.CopyFrom(annotated)
        configure(proto, 2)
        for options, words in ((("--world", 3), "num_devices 2 must divide world_size 3"), (("--pipeline", 2), "num_devices 2 excludes pipeline 2"),
                               (("--tensor-parallel", 4), "num_devices 2 differs from tensor_parallel 4")):
            self.refused(proto, words, "set tensor_parallel 1 to ignore", options=options)
        softmax = model([node("Softmax", ["x"], "y", axis=1)], {"x": [4, 8]}, ["y"])
        self.refused(configure(annotate(softmax, 0, *split(2, x=1)), 2),
                     "node 'Softmax_y' (Softmax): sharding of 'x': the operator cannot read parts along axis 1: it combines elements")
        folded = model([node("Neg", ["w"], "n"), node("MatMul", ["x", "n"], "y")], {"x": [4, 8]}, ["y"],
                       {"w": np.ones((8, 8), np.float32)})
        path = self.save(configure(annotate(folded, 0, *split(2, w=1)), 2))
        self.weft("compile", path, "-o", "p.weft", "--infer")

    def test_damaged_annotations_are_refused(self):
        """Each byte of an annotation becomes another one: an error, or the result."""
        proto = configure(annotate(perceptron(), 0, *split(2, w=1)), 2)
        whole, data, part = self.result(proto, "--world", 2), proto.SerializeToString(), split(2, w=1)[0]
        at, failed = data.index(part), 0
        for i in range(len(part)):
            for byte in (0x7f, part[i] ^ 1):
                (self.dir / "d.onnx").write_bytes(data[:at + i] + bytes([byte]) + data[at + i + 1:])
                try:
                    done = self.weft("compile", "d.onnx", "-o", "p.weft", "--infer", "--world", 2, code=2)
                except AssertionError:
                    self.weft("run", "p.weft", "--inputs", "in", "--outputs", "out")
                    np.testing.assert_allclose(load_tensor(self.dir / "out" / "y.pb")[1], whole, rtol=1e-5, atol=1e-5)
                    continue
                failed += 1
                self.assert_one_line(done.stderr)
        self.assertGreater(failed, len(part))

    def test_random_annotations_of_a_decoder(self):
        """Any split of any values: the logits of the whole model, or an error that names node and tensor."""
        save_tensor(self.dir / "tokens" / "tokens.pb", np.random.default_rng(3).integers(0, WORDS, (BATCH, LENGTH)))
        seed = int(os.environ.get("WEFT_TEST_SEED", "18"))
        print("seed", seed, file=sys.stderr)
        rng, equal = np.random.default_rng(seed), 0
        wholes = [self.result(Model(**kind, layers=1).proto(), "--world", 1, output="logits", inputs="tokens") for kind in KINDS]
        for case in range(int(os.environ.get("WEFT_TEST_CASES", "6" if SANITIZED else "24"))):
            proto = Model(**KINDS[case % 3], layers=1).proto()
            inferred = onnx.shape_inference.infer_shapes(proto)
            shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in inferred.graph.value_info}
            shapes.update({v.name: list(v.dims) for v in proto.graph.initializer if v.data_type == 1})
            for index in rng.choice(len(proto.graph.node), 1 + case % 5, replace=False):
                n, specs = proto.graph.node[index], []
                for name in {*n.output, *(n.input if rng.random() < 0.3 else ())}:
                    axes = [axis for axis, size in enumerate(shapes.get(name, [])) if size % 2 == 0]
                    if axes and rng.random() < 0.8:
                        specs.append(spec(name, dim(int(rng.choice(axes)), 2)))
                    elif axes:
                        specs.append(spec(name))
                annotate(proto, index, *specs)
            with self.subTest(case):
                path = self.save(configure(proto, 2))
                try:
                    self.weft("compile", path, "-o", "p.weft", "--infer", "--world", 2)
                except AssertionError:
                    done = self.weft("compile", path, "-o", "p.weft", "--infer", "--world", 2, code=2)
                    self.assert_one_line(done.stderr)
                    self.assertRegex(done.stderr, r"node '\S+' \(\w+\): sharding of '\S+': the operator (cannot|was)")
                    continue
                logits = self.result(proto, output="logits", inputs="tokens")
                np.testing.assert_allclose(logits, wholes[case % 3], rtol=1e-4, atol=2e-5)
                equal += 1
        self.assertGreater(equal, 0)

    def refused(self, proto, *words, options=()):
        done = self.weft("compile", self.save(proto), "-o", "p.weft", "--infer", *options, code=2)
        self.assert_one_line(done.stderr)
        for text in words:
            self.assertIn(text, done.stderr)

    def test_annotations_of_subgraphs_are_refused(self):
        branch = onnx.helper.make_graph([node("Neg", ["x"], "n")], "then", [], [onnx.helper.make_tensor_value_info("n", 1, None)])
        other = onnx.helper.make_graph([node("Relu", ["x"], "m")], "else", [], [onnx.helper.make_tensor_value_info("m", 1, None)])
        branch.node[0].MergeFromString(message(10, message(1, NAME), *split(2, x=0)))
        proto = model([node("If", ["t"], "y", then_branch=branch, else_branch=other)], {"x": [4, 8]}, ["y"], {"t": np.array(True)})
        self.refused(configure(proto, 2), "device configurations of nodes in subgraphs or functions are not supported")

    @unittest.skipUnless(hasattr(onnx, "DeviceConfigurationProto"), "onnx 1.18 or newer has the fields")
    def test_bytes_are_those_of_onnx(self):
        proto = configure(annotate(perceptron(), 0, spec("w", dim(-1, 2, 16), devices=[0, 1]),
                                   spec("x", devices=[-1], groups=[(-1, (0, 1))])), 2)
        self.assertEqual((proto.configuration[0].name, proto.configuration[0].num_devices), (NAME, 2))
        use = proto.graph.node[0].device_configurations[0]
        first, second = use.sharding_spec
        self.assertEqual((use.configuration_id, first.tensor_name, list(first.device)), (NAME, "w", [0, 1]))
        sharded = first.sharded_dim[0]
        simple = sharded.simple_sharding[0]
        self.assertEqual((sharded.axis, simple.dim_value, simple.num_shards), (-1, 16, 2))
        group = second.index_to_device_group_map[0]
        self.assertEqual((second.tensor_name, group.key, list(group.value)), ("x", -1, [0, 1]))


def proto_without(proto, name):
    """Without the annotations of a configuration."""
    copy = type(proto)()
    copy.CopyFrom(proto)
    wanted = annotate(perceptron(), 0, *split(2, w=1))
    copy.graph.node[0].CopyFrom(wanted.graph.node[0])
    return copy


if __name__ == "__main__":
    main()
