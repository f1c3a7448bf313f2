#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Graphs that bring their gradients, their collectives and operators nobody knows."""
import json
import sys
import unittest

import support
from support import MODELS

try:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper
except ImportError:
    print("skipped: python3-numpy or python3-onnx is missing")
    sys.exit(77)
import door_models as doors
from door_models import PARAMS
from infer_models import load_tensor, save_tensor


class Doors(support.Case):
    def json(self, value, name):
        (self.dir / name).write_text(json.dumps(value))
        return self.dir / name

    def plan(self, proto, *extra, name="p.weft", code=0, world=2):
        return self.weft("compile", self.save(proto), "-o", self.dir / name, "--world", world, "--batch", 32, *extra,
                         code=code)

    def explain(self, name="p.weft"):
        return self.weft_json("explain", self.dir / name)

    def members(self, name="p.weft"):
        return sorted(m for b in self.explain(name)["buckets"] for m in b["members"])

    def run_plan(self, name, *extra, world=2, steps=6, count=256):
        self.data = doors.write_data(self.dir / "data", count)
        return self.weft_json("run", self.dir / name, "-n", world, "--data", self.dir / "data", "--steps", steps,
                              "--no-eval", *extra)

    def digest(self, name, **kwargs):
        return self.run_plan(name, **kwargs)["param_digest"]

    def saved(self, name, **kwargs):
        """The weights after some steps."""
        self.run_plan(name, "--save", self.dir / "out.onnx", **kwargs)
        return {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load(self.dir / "out.onnx").graph.initializer}


class Gradients(Doors):
    """Weights trained by given gradients are those of Weft's own, bit for bit: the operators are the same."""

    def same_as_own(self, proto, *extra, **kwargs):
        options = ("--optimizer", "momentum", "--lr", "0.1", "--bucket", "one")
        self.plan(doors.forward(), *options, name="own.weft")
        done = self.plan(proto, *options, *extra, name="given.weft")
        self.assertEqual(self.digest("own.weft"), self.digest("given.weft"))
        return done

    def test_by_suffix(self):
        self.same_as_own(doors.training())

    def test_by_prefix(self):
        self.same_as_own(doors.training({p: "grad." + p for p in PARAMS}))

    def test_by_map(self):
        names = {p: f"g{i}" for i, p in enumerate(PARAMS)}
        done = self.same_as_own(doors.training(names), "--grads", self.json(names, "map.json"))
        self.assertEqual(done.stderr, "")
        self.assertEqual(self.members("given.weft"), sorted(names.values()))

    def test_that_are_read_once_they_are_reduced_travel_as_they_are(self):
        """What is reduced as bf16 stays bf16, which nothing but updates reads."""
        reduced = [helper.make_node("AllReduce", ["fc2.bias_grad"], ["reduced"], domain="weft", reduction="avg"),
                   helper.make_node("Relu", ["reduced"], ["positive"], name="reader")]
        self.plan(doors.training(between=reduced))
        self.assertIn("wire: bf16 is not possible: node 'reader' reads gradient 'fc2.bias_grad'",
                      self.plan(doors.training(between=reduced), "--wire", "bf16", code=2).stderr)

    def test_that_are_outputs_or_read_by_others(self):
        names = {p: p + "_grad" for p in PARAMS}
        values = doors.weights()
        more = [helper.make_tensor_value_info(names[p], TensorProto.FLOAT, values[p].shape) for p in PARAMS]
        more.append(helper.make_tensor_value_info("twice", TensorProto.FLOAT, values["fc1.bias"].shape))
        self.same_as_own(doors.training(between=[helper.make_node(
            "Add", ["fc1.bias_grad", "fc1.bias_grad"], ["twice"], name="twice")], more=more))

    def test_weights_without_one_stay(self):
        names = {p: f"g{i}" for i, p in enumerate(PARAMS)}
        some = {p: names[p] for p in PARAMS if p != "fc1.weight"}
        done = self.plan(doors.training(names), "--grads", self.json(some, "map.json"))
        self.assertIn("1 weight without a gradient, not trained: fc1.weight", done.stderr)
        saved = self.saved("p.weft")
        before = doors.weights()
        for p in PARAMS:
            self.assertEqual(np.array_equal(saved[p], before[p]), p == "fc1.weight", p)

    def test_against_numpy(self):
        """One step over all of the data: the weights are those that numpy computes, whatever the order."""
        self.plan(doors.training(), "--optimizer", "sgd", "--lr", "0.5")
        saved = self.saved("p.weft", steps=1, count=64)
        before = doors.weights()
        _, grads = doors.gradients(before, *self.data)
        for p in PARAMS:
            np.testing.assert_allclose(saved[p], before[p] - 0.5 * grads[p], rtol=1e-4, atol=1e-6, err_msg=p)

    def test_without_a_loss(self):
        """Softmax less one-hot is the gradient, no loss is computed; planned, explained and verified."""
        names = {p: p + "_grad" for p in PARAMS}
        head = [helper.make_node("Softmax", ["logits"], ["p"], name="softmax", axis=1),
                helper.make_node("Gather", ["eye", "label"], ["t"], name="one_hot"),
                helper.make_node("Sub", ["p", "t"], ["e"], name="error"),
                helper.make_node("Mul", ["e", "share"], ["d_logits"], name="d_ce")]
        values = doors.weights()
        values["eye"] = np.eye(10, dtype=np.float32)
        values["share"] = np.array(1 / 32, np.float32)
        proto = doors.model(doors.forward_nodes()[:-1] + head + doors.backward_nodes(names)[1:], values, ("logits",))
        self.plan(proto)
        self.weft("verify", self.dir / "p.weft")
        self.assertEqual(self.members(), sorted(names.values()))

    def refused(self, proto, *words, extra=()):
        done = self.plan(proto, *extra, code=2)
        error = done.stderr.strip().splitlines()[-1]
        for word in words:
            self.assertIn(word, error)

    def test_what_does_not_fit_is_refused(self):
        names = {p: f"g{i}" for i, p in enumerate(PARAMS)}
        proto = doors.training(names)

        def given(value):
            return "--grads", self.json(value, "map.json")

        self.refused(proto, "gradient 'g1': type or shape does not match parameter 'fc1.weight': f32 [32], parameter f32 [32, 784]",
                     extra=given({"fc1.weight": "g1"}))
        self.refused(proto, "'nothing'", "no node", extra=given({"fc1.weight": "nothing"}))
        self.refused(proto, "'nobody' is not a tensor of the model", extra=given({"nobody": "g0"}))
        self.refused(proto, "'h' is not a floating-point initializer", extra=given({"h": "g0"}))
        self.refused(proto, "gradient 'g0' belongs to two parameters: 'fc1.weight' and 'fc2.weight'", extra=given({"fc1.weight": "g0", "fc2.weight": "g0"}))
        self.refused(proto, "expected a JSON object", extra=given([]))
        self.refused(proto, "must be a string", extra=given({"fc1.weight": 3}))
        self.refused(proto, "with at least one entry", extra=given({}))
        (self.dir / "bad.json").write_text("{\"a\": ")
        self.refused(proto, "bad.json", extra=("--grads", self.dir / "bad.json"))
        self.refused(proto, "missing.json", extra=("--grads", self.dir / "missing.json"))
        twice = {p: p + "_grad" for p in PARAMS}
        self.refused(doors.training(twice, between=[helper.make_node(
            "Identity", ["fc1.bias_grad"], ["grad.fc1.bias"], name="again")]), "grads_path: not set", "parameter 'fc1.bias' has two gradients by name")

    def test_a_batch_that_is_fixed_stays(self):
        proto = doors.training()
        for value in proto.graph.input:
            value.type.tensor_type.shape.dim[0].dim_value = 16
        done = self.plan(proto, code=2)
        self.assertIn("is fixed to 16 in a graph with gradients", done.stderr)


class ShardedWeights(Doors):
    """A model whose weights are divided among ranks: its all-gathers and reduce-scatters are bucketed."""

    def test_buckets_change_no_bit(self):
        for world, params in ((2, PARAMS), (4, PARAMS[:2]))[:1 if support.SANITIZED else 2]:
            digests = set()
            for policy in ("none", "one", "auto", "bytes:4K", "auto:8K"):
                with self.subTest(world=world, policy=policy):
                    self.plan(doors.sharded_training(world, params), "--bucket", policy, world=world)
                    doors.write_data(self.dir / "data", 256)
                    done = self.weft("run", "p.weft", "-n", world, "--data", "data", "--steps", 6, "--no-eval", code=1)
                    digests.add(done.stderr.splitlines()[-1])  # shards differ: the message has their digests
                    calls = [c["op"] for c in self.explain()["collectives"]]
                    want = {"none": len(params), "one": 1}.get(policy)
                    if want:
                        self.assertEqual([calls.count("AllGather"), calls.count("ReduceScatter")], [want, want])
            self.assertEqual(len(digests), 1, digests)
            self.assertIn("weights differ after training: digest", digests.pop())


class Collectives(Doors):
    def reduced(self, op, domain="weft", names=None, suffix="_grad", **attributes):
        """Every gradient is reduced by the graph itself; what comes out has its name."""
        local = {p: "local." + p for p in PARAMS}
        nodes = [helper.make_node(op, [local[p]], [p + suffix], name="reduce_" + p, domain=domain, **attributes)
                 for p in PARAMS]
        return doors.training(local, between=nodes)

    def same_as_own(self, proto, *extra, buckets=4):
        options = ("--optimizer", "sgd", "--lr", "0.1", *extra)
        self.plan(doors.forward(), *options, name="own.weft")
        self.plan(proto, *options, name="given.weft")
        self.weft("verify", self.dir / "given.weft")
        self.assertEqual(self.digest("own.weft"), self.digest("given.weft"))

    def test_gradients_are_not_reduced_twice(self):
        self.same_as_own(self.reduced("AllReduce", reduction="avg"), "--bucket", "none")
        self.assertEqual(len(self.explain("given.weft")["buckets"]), 4)

    def test_they_share_buckets(self):
        self.same_as_own(self.reduced("AllReduce", reduction="avg"), "--bucket", "one")
        self.assertEqual(len(self.explain("given.weft")["buckets"]), 1)

    def test_names_of_local_gradients_are_followed(self):
        names = {p: p + "_grad" for p in PARAMS}
        nodes = [helper.make_node("AllReduce", [names[p]], ["reduced." + p], name="reduce_" + p, domain="weft",
                                  reduction="avg") for p in PARAMS]
        self.same_as_own(doors.training(names, between=nodes), "--bucket", "one")

    def test_variadic(self):
        local = {p: "local." + p for p in PARAMS}
        ready = ("fc2.weight", "fc2.bias", "fc1.weight", "fc1.bias")  # the order of memory, and so of the digest
        node = helper.make_node("AllReduce", [local[p] for p in ready], [p + "_grad" for p in ready], name="all",
                                domain="weft", reduction="avg")
        self.same_as_own(doors.training(local, between=[node]), "--bucket", "one")
        self.assertEqual(len(self.explain("given.weft")["buckets"]), 1)

    def paired(self):
        """The gradients of the second layer travel while the next operator runs."""
        local = {p: "local." + p for p in PARAMS[2:]}
        proto = doors.training({**{p: p + "_grad" for p in PARAMS[:2]}, **local})
        nodes = list(proto.graph.node)
        at = next(i for i, n in enumerate(nodes) if n.name == "d_relu")
        start = [helper.make_node("AllReduceStart", [local[p]], ["fly." + p], name="start_" + p, domain="weft",
                                  reduction="avg") for p in local]
        wait = [helper.make_node("AllReduceWait", ["fly." + p], [p + "_grad"], name="wait_" + p, domain="weft")
                for p in local]
        del proto.graph.node[:]
        proto.graph.node.extend(nodes[:at] + start + nodes[at:at + 1] + wait + nodes[at + 1:])
        return proto

    def test_with_everything_that_lowering_does(self):
        for options in (("--decouple", "--bucket", "bytes:16K"), ("--wire", "bf16", "--global-micro-batches", "4"),
                        ("--clip", "0.5", "--shard-optimizer", "--accumulate", "2")):
            with self.subTest(options=options):
                digests = set()
                for proto in (doors.forward(), self.reduced("AllReduce", reduction="avg"), self.paired()):
                    self.plan(proto, *options)
                    digests.add(self.digest("p.weft", steps=2))
                self.assertEqual(len(digests), 1)
                self.weft("verify", "p.weft")

    def scaled(self, name="scale"):
        """A gradient that is made of a reduced one, and not by a collective: it is not reduced again."""
        local = {**{p: p + "_grad" for p in PARAMS}, "fc2.bias": "local"}
        values = doors.weights()
        values[name] = np.array(0.25, np.float32)
        return doors.training(local, values, [
            helper.make_node("AllReduce", ["local"], ["sum"], name="reduce", domain="weft"),
            helper.make_node("Mul", ["sum", name], ["fc2.bias_grad"], name="scaled")])

    def test_what_is_made_of_reduced_ones_is_not_reduced(self):
        self.plan(self.scaled(), "--optimizer", "sgd", "--lr", "0.5")
        self.weft("verify", "p.weft")
        saved = self.saved("p.weft", steps=1, count=64)
        before = doors.weights()
        _, grads = doors.gradients(before, *self.data)
        grads["fc2.bias"] = grads["fc2.bias"] * 2 * 0.25
        for p in PARAMS:
            np.testing.assert_allclose(saved[p], before[p] - 0.5 * grads[p], rtol=1e-4, atol=1e-6, err_msg=p)
        for options in ((), ("--shard-optimizer",), ("--clip", "100")):
            self.plan(self.scaled(), "--optimizer", "sgd", *options)
            self.weft("verify", "p.weft")
        for options in (("--accumulate", "2"), ("--global-micro-batches", "4")):
            done = self.plan(self.scaled(), *options, code=2)
            self.assertIn("gradient 'fc2.bias_grad': must be all-reduced", done.stderr)

    def summed(self, op, divide=False, **attributes):
        """A sum over ranks, then half of it, by either way: the average of two ranks."""
        local = {p: "local." + p for p in PARAMS}
        nodes = []
        for p in PARAMS:
            nodes += [helper.make_node(op, [local[p]], ["sum." + p], name="reduce_" + p, domain="com.microsoft",
                                       **attributes),
                      helper.make_node("Div" if divide else "Mul", ["sum." + p, "half"], [p + "_grad"],
                                       name="average_" + p)]
        values = doors.weights()
        values["half"] = np.array(2 if divide else 0.5, np.float32)
        return doors.training(local, values, nodes)

    def test_microsoft_names(self):
        for op, attributes in (("AllReduce", {}), ("NcclAllReduce", {"group_type": 1}), ("AllReduce", {"divide": True})):
            self.same_as_own(self.summed(op, **attributes), "--bucket", "one")
            report = self.explain("given.weft")
            self.assertEqual([b["reduction"] for b in report["buckets"]], ["avg"])

    def test_algorithms_asked_for_are_a_list_of_their_own(self):
        self.same_as_own(self.reduced("AllReduce", reduction="avg", algorithm="doubling,mesh"), "--bucket", "one")
        self.assertEqual([b["candidates"] for b in self.explain("given.weft")["buckets"]], [["doubling", "mesh"]])
        done = self.plan(self.reduced("AllReduce", algorithm="mesh,nonsense"), code=2)
        self.assertIn("attribute 'algorithm': unknown algorithm 'nonsense'", done.stderr)
        self.plan(self.reduced("AllReduce", reduction="avg", algorithm="ring,doubling"), "--bucket", "one",
                  name="listed.weft")
        self.assertEqual([b["candidates"] for b in self.explain("listed.weft")["buckets"]], [["doubling"]])
        self.weft("verify", self.dir / "listed.weft")
        done = self.plan(self.reduced("AllReduce", algorithm="ring"), code=2)
        self.assertIn("attribute 'algorithm': 'ring': it cannot realise the group's reduction order (tree)", done.stderr)
        done = self.plan(self.reduced("AllReduce", algorithm=","), code=2)
        self.assertIn("attribute 'algorithm': no name in ','", done.stderr)

    def test_what_no_plan_has_is_refused(self):
        for proto, words in (
                (self.reduced("NcclAllReduce", "com.microsoft", group_type=2), "group_type 2"),
                (self.reduced("NcclAllReduce", "com.microsoft", group_type=4), "unsupported group_type 4 (a model-parallel group)"),
                (self.reduced("NcclReduceScatter", "com.microsoft"), "how ONNX Runtime divides its buffer is not defined"),
                (self.reduced("AllReduce", "com.microsoft", group_size=3), "group_size does not match world_size: 3, world_size 2")):
            done = self.plan(proto, code=2)
            self.assert_one_line(done.stderr)
            self.assertIn(words, done.stderr)


class Inference(Doors):
    def infer(self, nodes, arrays, shape):
        """y of both ranks, which are fed different x."""
        graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
                                  [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13), helper.make_opsetid("weft", 1),
                                                        helper.make_opsetid("com.microsoft", 1)])
        proto.ir_version = 8
        self.weft("compile", self.save(proto), "-o", "p.weft", "--world", 2, "--infer")
        self.weft("verify", "p.weft")
        for rank, array in enumerate(arrays):
            save_tensor(self.dir / "in" / f"rank{rank}" / "x.pb", array)
        self.weft("run", "p.weft", "--inputs", "in", "--outputs", "out")
        return [load_tensor(f)[1] for f in sorted((self.dir / "out").rglob("y.pb"))]

    def test_gathers_along_any_axis(self):
        rng = np.random.default_rng(5)
        arrays = [rng.standard_normal((2, 3, 4)).astype(np.float32) for _ in range(2)]
        for axis in (0, 1, 2, -1, -2):
            with self.subTest(axis=axis):
                got = self.infer([helper.make_node("AllGather", ["x"], ["y"], name="gather", domain="com.microsoft",
                                                   axis=axis, group_size=2)], arrays, [2, 3, 4])
                self.assertTrue(got)
                for y in got:
                    np.testing.assert_array_equal(y, np.concatenate(arrays, axis))

    def test_all_to_all_and_groups_of_parts(self):
        arrays = [np.arange(8, dtype=np.float32).reshape(4, 2) + 100 * r for r in range(2)]
        got = self.infer([helper.make_node("AllToAll", ["x"], ["z"], name="exchange", domain="com.microsoft", group_size=2),
                          helper.make_node("NcclAllReduce", ["z"], ["y"], name="sum", domain="com.microsoft",
                                           group_type=4)], arrays, [4, 2])
        whole = np.concatenate([arrays[0][:2], arrays[1][:2]]) + np.concatenate([arrays[0][2:], arrays[1][2:]])
        for y in got:
            np.testing.assert_array_equal(y, whole)

    def test_an_axis_is_needed(self):
        with self.assertRaisesRegex(AssertionError, "missing attribute 'axis'"):
            self.infer([helper.make_node("AllGather", ["x"], ["y"], name="g", domain="com.microsoft")], [], [2, 2])
        with self.assertRaisesRegex(AssertionError, "axis"):
            self.infer([helper.make_node("AllGather", ["x"], ["y"], name="g", domain="com.microsoft", axis=2)], [], [2, 2])


class Operators(Doors):
    """Operators that Weft does not know: in a training graph with its gradients, where nothing is differentiated."""

    FOO = {"domain": "my", "name": "Foo", "inputs": 1, "outputs": 1, "types": [{"like": 0}], "effects": "pure"}

    def proto(self, typed=False, op="Foo", **attributes):
        """Foo stands between the gradients of the two layers."""
        nodes = doors.forward_nodes() + doors.backward_nodes({p: p + "_grad" for p in PARAMS})
        at = next(i for i, n in enumerate(nodes) if n.name == "d_relu")
        nodes[at].input[0] = "d_a.foo"
        nodes.insert(at, helper.make_node(op, ["d_a"], ["d_a.foo"], name="foo", domain="my", **attributes))
        values = doors.weights()
        values["one"] = np.array(1.0, np.float32)
        proto = doors.model(nodes, values)
        proto.opset_import.append(helper.make_opsetid("my", 1))
        if typed:
            proto.graph.value_info.append(helper.make_tensor_value_info("d_a.foo", TensorProto.FLOAT, ["batch", 32]))
        return proto

    def ops(self, *operators):
        return "--ops", self.json({"operators": list(operators)}, "ops.json")

    def test_pure_ones_are_moved_across(self):
        self.plan(self.proto(), "--bucket", "one", *self.ops(self.FOO))
        self.assertEqual(len(self.weft_json("explain", "p.weft", "--ops", "ops.json")["buckets"]), 1)
        self.weft("verify", "p.weft", "--ops", "ops.json")

    def test_others_are_fences(self):
        unknown = dict(self.FOO, effects="unknown")
        done = self.plan(self.proto(), "--bucket", "one", *self.ops(unknown))
        self.assertIn("1 operator of unknown effect, node 'foo' (my::Foo)", done.stderr)
        self.assertEqual(len(self.weft_json("explain", "p.weft", "--ops", "ops.json")["buckets"]), 2)
        del unknown["effects"]
        self.plan(self.proto(), "--bucket", "one", *self.ops(unknown))
        self.assertEqual(len(self.explain()["buckets"]), 2)

    def test_undeclared_ones_are_fences_where_the_file_has_types(self):
        done = self.plan(self.proto(typed=True), "--bucket", "one")
        self.assertIn("unknown effect", done.stderr)
        self.assertEqual(len(self.explain()["buckets"]), 2)
        self.weft("verify", "p.weft")

    def test_elsewhere_a_declaration_is_asked_for(self):
        done = self.plan(self.proto(), code=2)
        self.assert_one_line(done.stderr)
        self.assertIn("node 9 'foo' (Foo): unsupported operator my::Foo; declare it in the file ops_path", done.stderr)
        template = done.stderr[done.stderr.index('{"operators"'):]
        self.json(json.loads(template), "ops.json")
        self.plan(self.proto(), "--ops", self.dir / "ops.json")  # what it says works

    def test_running_names_the_kernel(self):
        self.plan(self.proto(), *self.ops(self.FOO))
        doors.write_data(self.dir / "data", 256)
        done = self.weft("run", "p.weft", "-n", 2, "--data", "data", "--steps", 1, "--ops", "ops.json", code=2)
        self.assertIn("node \"foo\": no kernel registered for operator my.Foo version 1", done.stderr)

    def test_types_by_rule(self):
        """Shapes that follow from others, and from numbers."""
        bar = {"domain": "my", "name": "Bar", "inputs": [1, 2], "outputs": [1, None],
               "types": [{"dtype": "f32", "shape": [[0, 0], [0, 1]]}, {"dtype": "i64", "shape": [3, [0, 1]]}],
               "effects": "random", "flops_per_element": 5, "in_place": [None], "gradient": "BarGrad", "version": 1}
        self.plan(self.proto(op="Bar"), *self.ops(bar))
        wrong = dict(bar, types=[{"dtype": "f32", "shape": [[0, 0], 31]}])
        done = self.plan(self.proto(op="Bar"), *self.ops(wrong), code=2)
        self.assertIn("31", done.stderr)
        wrong = dict(bar, types=[{"dtype": "f32", "shape": [[0, 5]]}])
        done = self.plan(self.proto(op="Bar"), *self.ops(wrong), code=2)
        self.assertIn("dimension 0 of output 0", done.stderr)

    def test_gradients_are_declared_too(self):
        """A forward model through an operator of one's own: its gradient is another one."""
        foo = dict(self.FOO, gradient="FooGrad")
        grad = {"domain": "my", "name": "FooGrad", "inputs": 3, "outputs": 1, "types": [{"like": 1}], "effects": "pure"}
        nodes = doors.forward_nodes()
        nodes[3].input[0] = "a.foo"
        nodes.insert(3, helper.make_node("Foo", ["a"], ["a.foo"], name="foo", domain="my"))
        proto = doors.model(nodes, doors.weights())
        proto.opset_import.append(helper.make_opsetid("my", 1))
        self.plan(proto, *self.ops(foo, grad))
        done = self.plan(proto, *self.ops(self.FOO), code=2)
        self.assertIn("node 'foo' (my::Foo): operator has no gradient rule", done.stderr)

    def test_a_declared_loss_is_found(self):
        """By its fact; without it the model has no loss node."""
        loss = {"domain": "my", "name": "Loss", "inputs": 2, "outputs": 1, "types": [{"dtype": "f32", "shape": []}],
                "effects": "pure", "gradient": "LossGrad", "facts": ["loss"]}
        grad = {"domain": "my", "name": "LossGrad", "inputs": 4, "outputs": 2, "types": [{"like": 1}], "effects": "pure"}
        nodes = doors.forward_nodes()
        del nodes[-1].attribute[:], nodes[-1].output[1:]
        nodes[-1].op_type, nodes[-1].domain = "Loss", "my"
        proto = doors.model(nodes, doors.weights())
        proto.opset_import.append(helper.make_opsetid("my", 1))
        self.plan(proto, *self.ops(loss, grad))
        del loss["facts"]
        done = self.plan(proto, *self.ops(loss, grad), code=2)
        self.assertIn("has no loss node", done.stderr)

    def test_bad_declarations(self):
        def broken(**changes):
            return {"operators": [dict(self.FOO, **changes)]}

        for value, words in ((broken(inputs="x"), "key 'inputs': expected a number"), (broken(effects="good"), "key 'effects'"),
                             (broken(inputs=[2, 1]), "key 'inputs'"), (broken(inputs=-1), "key 'inputs'"),
                             (broken(types=[]), "key 'types'"), (broken(types=[{}]), 'either "like" or "shape"'),
                             (broken(types=[{"like": 0.5}]), "key 'like'"), (broken(types=[{"like": 0, "dtype": "f31"}]), "key 'dtype'"),
                             (broken(types=[{"shape": [1] * 9}]), "key 'shape'"), (broken(types=[{"shape": [-1]}]), "key 'shape'"),
                             (broken(types=[{"shape": [[0, 8]]}]), "key 'shape'"), (broken(types=3), "key 'types'"),
                             (broken(in_place=[7]), "cannot overwrite input 7"), (broken(in_place=3), "key 'in_place'"),
                             (broken(version=0), "key 'version'"), (broken(effect="pure"), "unknown key 'effect'"),
                             (broken(domain=""), "is reserved"), (broken(name=7), "key 'name'"),
                             (broken(domain="com.microsoft", name="ReluGrad"), "duplicate operator"),
                             (broken(flops_per_element=-1), "key 'flops_per_element'"),
                             (broken(facts="view"), "key 'facts': expected a list"), (broken(facts=["fast"]), "key 'facts'"),
                             (broken(facts=["mixes_none", "mixes_axis"]), "at most one of"), (broken(linear=[99]), "key 'linear'"),
                             ({"operators": [7]}, "operator 0: expected an object"), ([], "expected"), ({"operators": 1}, "expected"),
                             ({"operators": [self.FOO, self.FOO]}, "duplicate operator")):
            done = self.plan(self.proto(), "--ops", self.json(value, "ops.json"), code=2)
            self.assert_one_line(done.stderr)
            self.assertIn(words, done.stderr)
            self.assertIn("ops.json", done.stderr)


if __name__ == "__main__":
    support.main()
