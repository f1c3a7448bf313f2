#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`weft compile --emit-onnx`: valid ONNX, and compiling it again gives the same plan."""
import itertools
import json
import os
import sys

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

SEED = int(os.environ.get("WEFT_TEST_SEED", "20240607"))
OPTIONS = (
    (), ("--optimizer", "sgd"), ("--optimizer", "adam", "--lr", "0.002"),
    ("--momentum", "0.7", "--weight-decay", "0.01", "--lr", "0.3"),
    ("--bucket", "one"), ("--bucket", "none", "--optimizer", "adam"), ("--bucket", "bytes:8K"),
    ("--bucket", "mgwfbp"), ("--bucket", "percent:50,50"), ("--bucket", "auto:64K", "--optimizer", "sgd"),
    ("--shard-optimizer",), ("--shard-optimizer", "--optimizer", "adamw", "--weight-decay", "0.01", "--bucket", "bytes:64K"),
    ("--decouple",), ("--decouple", "--accumulate", "2"), ("--accumulate", "3", "--optimizer", "sgd"),
    ("--global-micro-batches", "8"), ("--wire", "bf16"), ("--clip", "1.5"),
    ("--in-flight", "1"), ("--in-flight", "1", "--decouple", "--bucket", "none"), ("--arena-limit", "64M"),
    ("--recompute", "*"), ("--recompute", "*relu*", "--accumulate", "2", "--in-flight", "1"),
    ("--clip", "0.5", "--shard-optimizer", "--accumulate", "2", "--optimizer", "adam"),
    ("--shard-parameters",), ("--shard-parameters", "--bucket", "bytes:20K", "--wire", "bf16"),
    ("--optimizer", "lamb", "--weight-decay", "0.1", "--no-decay", "1d", "--beta2", "0.99", "--epsilon", "1e-6"),
    ("--shard-optimizer", "--optimizer", "lamb", "--weight-decay", "0.1", "--no-decay", "1d", "--bucket", "bytes:20K"),
    ("--shard-optimizer", "--lr-schedule", "cosine", "--warmup-steps", "2", "--label-smoothing", "0.1"),
    ("--shard-parameters", "--bucket", "none", "--clip", "0.5", "--accumulate", "2", "--in-flight", "1"),
)


EXCLUDE = ({"--global-micro-batches", "--accumulate"}, {"--decouple", "--shard-parameters"})


class Emit(support.Case):
    def again(self, model, *options, world=4, batch=8, code=0):
        """Compiles a model, writes it, compiles that; both plans have one structure."""
        out = self.dir / "out.onnx"
        samples = () if batch is None else ("--batch", batch)
        first = self.weft_json("compile", model, "-o", "a.weft", "--world", world, *samples, "--emit-onnx", out,
                               *options)
        done = self.weft("compile", out, "-o", "b.weft", "--json")
        second = json.loads(done.stdout)
        self.assertEqual(first["structure_digest"], second["structure_digest"], f"{model} {options}")
        self.assertNotRegex(done.stderr, "plan differs|evaluation model")
        proto = onnx.load(out)
        onnx.checker.check_model(proto, full_check=True)
        return proto

    def test_sample_models_with_every_option(self):
        self.again(MODELS / "mlp.onnx")
        self.again(MODELS / "mlp.onnx", "--precision", "bf16")  # Conv of bf16 is of opset 22
        self.again(MODELS / "families" / "bert.onnx", "--loss", "loss", batch=4)  # attention without a mask
        for options in OPTIONS[::3 if support.SANITIZED else 1]:
            with self.subTest(options=options):
                self.again(MODELS / "lenet.onnx", *options)

    def test_with_options_at_random(self):
        rng = np.random.default_rng(SEED)
        model = self.save(doors.forward())
        for _ in range(2 if support.SANITIZED else 8):
            options = [o for at in rng.choice(len(OPTIONS), 2, replace=False) for o in OPTIONS[at]]
            keys = [o for o in options if o.startswith("--")]
            if len(keys) == len(set(keys)) and not any(both <= set(keys) for both in EXCLUDE):
                with self.subTest(options=options, seed=SEED):
                    self.again(model, *options, world=int(rng.choice([2, 4])))

    def test_every_combination(self):
        """The file holds all that is executed, so that each combination of options has one structure."""
        axes = (((), ("--optimizer", "adam")),
                ((), ("--accumulate", "2"), ("--accumulate", "5"), ("--global-micro-batches", "8")),
                ((), ("--wire", "bf16")), ((), ("--clip", "1.5")), ((), ("--shard-optimizer",), ("--decouple",)))
        model = self.save(doors.forward())
        # Every seventh has each option of each axis.
        for chosen in itertools.islice(itertools.product(*axes), 0, None, 7 if support.SANITIZED else 1):
            options = [o for axis in chosen for o in axis]
            with self.subTest(options=options):
                self.again(model, *options, "--bucket", "bytes:1K")
        self.again(model, "--infer", "--in-flight", "1")

    def test_programs_are_in_the_file(self):
        proto = self.again(MODELS / "lenet.onnx", "--accumulate", "3", "--wire", "bf16", "--bucket", "one")
        nodes = list(proto.graph.node) + list(proto.training_info[0].algorithm.node)
        meta = {p.key: p.value for p in proto.metadata_props}
        programs = {}
        for key, value in meta.items():
            if key.startswith("weft.program."):
                runs = [[int(x) for x in run.split(":")] for run in value.split()]
                programs[key[13:]] = [nodes[i] for first, last in runs for i in range(first, last + 1)]
        self.assertEqual(set(programs), {"init", "micro_step", "micro_step.1", "step", "eval"})
        ops = {name: [n.op_type for n in program] for name, program in programs.items()}
        self.assertEqual(ops["init"], ["Broadcast"])
        self.assertEqual({n: o.count("TreeFold") for n, o in ops.items()},
                         {"init": 0, "micro_step": 0, "micro_step.1": 1, "step": 1, "eval": 0})
        self.assertEqual((ops["step"].count("AllReduce"), ops["micro_step"].count("AllReduce")), (1, 0))
        self.assertEqual((ops["step"].count("MaxPoolMask"), ops["step"].count("MaxPool")), (2, 0))
        self.assertEqual((ops["eval"].count("MaxPoolMask"), ops["eval"].count("MaxPool")), (0, 2))
        self.assertLessEqual({n.op_type for n in proto.training_info[0].algorithm.node}, {"Momentum", "FusedUpdate"})
        fold = next(n for n in programs["step"] if n.op_type == "TreeFold")
        bucket = next(n for n in programs["step"] if n.op_type == "AllReduce")
        self.assertEqual(list(fold.output), list(bucket.input))
        self.assertEqual([a.s for a in fold.attribute if a.name == "type"], [b"bf16"])
        sums = {o for n in programs["micro_step.1"] if n.op_type == "TreeFold" for o in n.output}
        self.assertLessEqual(sums, set(fold.input))

    def test_files_without_programs_are_read(self):
        """Weft 0.2 wrote the graph before programs were made."""
        old = support.SOURCE / "tests" / "golden" / "onnx" / "compiled-0.2.onnx"
        self.assertFalse([p.key for p in onnx.load(old).metadata_props if p.key.startswith("weft.program.")])
        proto = self.again(old)
        self.assertIn("weft.program.micro_step.1", [p.key for p in proto.metadata_props])

    def test_what_is_in_the_file(self):
        proto = self.again(MODELS / "lenet.onnx", "--bucket", "bytes:16K", "--optimizer", "adam")
        names = {i.name for i in onnx.load(MODELS / "lenet.onnx").graph.initializer}
        buckets = [n for n in proto.graph.node if n.op_type == "AllReduce"]
        self.assertTrue(all(n.domain == "weft" for n in buckets))
        self.assertGreater(len(buckets), 1)
        self.assertTrue(any(len(n.input) > 1 for n in buckets))  # variadic
        numbers = []
        for node in buckets:
            a = {x.name: helper.get_attribute_value(x) for x in node.attribute}
            self.assertIn(b"mesh", a["algorithm"].split(b","))
            self.assertEqual((a["reduction"], a["order"], a["group"]), (b"avg", b"tree", 0))
            self.assertTrue(a["reason"])
            numbers.append(a["bucket"])
        self.assertEqual(len(set(numbers)), len(numbers))
        self.assertTrue(any(x.name == "parts" for n in buckets for x in n.attribute))
        self.assertEqual(sorted(p for n in buckets for p in n.input), sorted(n + "_grad" for n in names))
        training = proto.training_info[0]
        self.assertLessEqual({n.op_type for n in training.algorithm.node}, {"Adam", "FusedUpdate"})
        bound = {b.key: b.value for b in training.update_binding}
        self.assertEqual(set(bound), {n + s for n in names for s in ("", "_moment1", "_moment2")})
        self.assertEqual(set(bound.values()), {o.name for o in training.algorithm.output})
        states = {i.name for i in training.algorithm.initializer}
        self.assertEqual(states, {n + s for n in names for s in ("_moment1", "_moment2")})
        meta = {p.key: p.value for p in proto.metadata_props}
        self.assertEqual((meta["weft.world"], meta["weft.batch"], meta["weft.optimizer"], meta["weft.bucket"]),
                         ("4", "8", "adam", "bytes:16K"))

    def test_training_graph_as_one(self):
        """ONNX says that graph and algorithm together are what is run: that is one valid graph."""
        proto = self.again(self.save(doors.forward()), "--optimizer", "adam")
        algorithm = proto.training_info[0].algorithm
        proto.graph.node.extend(algorithm.node)
        proto.graph.initializer.extend(algorithm.initializer)
        proto.graph.output.extend(algorithm.output)
        del proto.training_info[:]
        onnx.checker.check_model(proto, full_check=True)

    def test_writing_it_again_changes_nothing(self):
        self.again(MODELS / "lenet.onnx", "--bucket", "bytes:16K")
        first = (self.dir / "out.onnx").read_bytes()
        self.weft("compile", "out.onnx", "-o", "c.weft", "--emit-onnx", "again.onnx")
        a, b = onnx.load(self.dir / "out.onnx"), onnx.load(self.dir / "again.onnx")
        self.assertEqual([n.SerializeToString() for n in a.graph.node], [n.SerializeToString() for n in b.graph.node])
        self.assertEqual(first, (self.dir / "again.onnx").read_bytes())

    def run_plan(self, plan, world=2, steps=5, *extra):
        doors.write_data(self.dir / "data", 256)
        return self.weft_json("run", plan, "-n", world, "--data", self.dir / "data", "--steps", steps, *extra)

    def test_it_trains_to_the_same_bits(self):
        for options in ((), ("--decouple",)):
            with self.subTest(options=options):
                self.again(self.save(doors.forward()), "--optimizer", "momentum", *options, world=2, batch=32)
                a, b = (self.run_plan(p, 2, 5, "--save", f"{p}.onnx") for p in ("a.weft", "b.weft"))
                self.assertEqual(a["param_digest"], b["param_digest"])
                self.assertEqual(a["test_accuracy"], b["test_accuracy"])
                models = [onnx.load(self.dir / f"{p}.onnx") for p in ("a.weft", "b.weft")]
                saved = [{i.name: onnx.numpy_helper.to_array(i) for i in m.graph.initializer} for m in models]
                for name, array in saved[0].items():
                    np.testing.assert_array_equal(array, saved[1][name], name)
                model = models[1]  # is a plain model: no trace of the training graph
                onnx.checker.check_model(model, full_check=True)
                props = {p.key: p.value for p in model.metadata_props if p.key.startswith("weft.")}
                self.assertEqual(props, {"weft.input.image": "pixels / 255"})
                self.assertEqual(len(model.training_info), 0)
                self.assertEqual([o.name for o in model.graph.output], ["logits"])
                self.assertNotIn("weft", {n.domain for n in model.graph.node})

    def test_dropout_and_pooling_are_forgotten_in_use(self):
        nodes = doors.forward_nodes()
        nodes[3].input[0] = "a.kept"
        nodes.insert(3, helper.make_node("Dropout", ["a", "ratio", "on"], ["a.kept"], name="drop"))
        values = doors.weights()
        values["ratio"], values["on"] = np.array(0.25, np.float32), np.array(True)
        self.again(self.save(doors.model(nodes, values)), "--optimizer", "adam", world=2, batch=32)
        a, b = (self.run_plan(p, 2, 4, "--save", f"{p}.onnx") for p in ("a.weft", "b.weft"))
        self.assertEqual(a["param_digest"], b["param_digest"])
        model = onnx.load(self.dir / "b.weft.onnx")
        onnx.checker.check_model(model, full_check=True)
        self.assertNotIn("DropoutMask", [n.op_type for n in model.graph.node])
        self.again(MODELS / "lenet.onnx", world=2, batch=32)
        self.run_plan("b.weft", 2, 1, "--save", "lenet.onnx")
        self.assertNotIn("weft", {n.domain for n in onnx.load(self.dir / "lenet.onnx").graph.node})

    def test_given_gradients_and_collectives(self):
        self.again(self.save(doors.training()), "--bucket", "one")
        local = {p: "local." + p for p in PARAMS}
        nodes = [helper.make_node("AllReduce", [local[p]], [p + "_grad"], name="reduce_" + p, domain="weft",
                                  reduction="avg") for p in PARAMS]
        self.again(self.save(doors.training(local, between=nodes)), "--bucket", "one")

    def test_gradients_alone(self):
        """A graph whose only output was the gradient has none left, and is read back."""
        proto = doors.training()
        del proto.graph.output[:]
        proto.graph.output.append(helper.make_tensor_value_info(PARAMS[0] + "_grad", TensorProto.FLOAT, None))
        out = self.again(self.save(proto))
        self.assertEqual(len(out.graph.output), 0)

    def test_starts_and_waits(self):
        """They are written as pairs again, at the same places."""
        local = {p: "local." + p for p in PARAMS}
        nodes = []
        for p in PARAMS[2:]:
            nodes.append(helper.make_node("AllReduceStart", [local[p]], ["fly." + p], name="start_" + p, domain="weft",
                                          reduction="avg"))
        proto = doors.training({**local, **{p: p + "_grad" for p in PARAMS[:2]}})
        at = next(i for i, n in enumerate(proto.graph.node) if n.name == "d_relu")
        waits = [helper.make_node("AllReduceWait", ["fly." + p], [p + "_grad"], name="wait_" + p, domain="weft")
                 for p in PARAMS[2:]]
        all_nodes = list(proto.graph.node)
        del proto.graph.node[:]
        proto.graph.node.extend(all_nodes[:at] + nodes + all_nodes[at:at + 1] + waits + all_nodes[at + 1:])
        out = self.again(self.save(proto), "--optimizer", "sgd", world=2, batch=32)
        order = [n.op_type for n in out.graph.node]
        self.assertEqual(order.count("AllReduceStart"), 2)
        self.assertEqual(order.count("AllReduceWait"), 2)
        self.assertLess(order.index("AllReduceStart"), order.index("ReluGrad"))
        self.assertLess(order.index("ReluGrad"), order.index("AllReduceWait"))
        self.weft("compile", self.save(doors.forward(), "f.onnx"), "-o", "own.weft", "--world", 2, "--batch", 32,
                  "--optimizer", "sgd")
        self.assertEqual(*(self.run_plan(p)["param_digest"] for p in ("own.weft", "b.weft")))

    def test_inference(self):
        nodes = [helper.make_node("Gemm", ["x", "w"], ["part"], name="mm"),
                 helper.make_node("AllReduceStart", ["part"], ["fly"], name="start", domain="weft"),
                 helper.make_node("Tanh", ["x"], ["t"], name="tanh"),
                 helper.make_node("AllReduceWait", ["fly"], ["sum"], name="wait", domain="weft"),
                 helper.make_node("Gemm", ["t", "w"], ["u"], name="mm2"),
                 helper.make_node("Add", ["sum", "u"], ["y"], name="add")]
        graph = helper.make_graph(
            nodes, "tp", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 6])],
            [onnx.numpy_helper.from_array(np.ones((4, 6), np.float32), "w")])
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13), helper.make_opsetid("weft", 1)])
        proto.ir_version = 8
        out = self.again(self.save(proto), "--infer", world=2)
        self.assertEqual(len(out.training_info), 0)
        self.assertIn("AllReduceWait", [n.op_type for n in out.graph.node])
        del proto.graph.node[1], proto.graph.node[2]
        proto.graph.node[-1].input[0] = "part"
        self.again(self.save(proto), "--infer", "--split-batch", 8, world=2, batch=None)

    def test_collectives_on_one_tensor(self):
        """Each keeps its own algorithms; where parts of a node have different ones, they are chosen again."""
        def add(op, inputs, outputs, **attrs):
            nodes.append(helper.make_node(op, inputs, outputs, "node_" + outputs[0], domain=domain(op), **attrs))

        def domain(op):
            return "" if op == "Add" else "weft"
        nodes = []
        add("AllReduce", ["x"], ["a"])
        add("Broadcast", ["a"], ["b"], root=1)
        add("AllReduce", ["a"], ["c"], reduction="max")
        add("Broadcast", ["x"], ["d"], root=0)
        add("AllReduce", ["big", "c"], ["bigger", "e"])
        add("Add", ["b", "d"], ["f"])
        add("Add", ["e", "f"], ["y"])
        graph = helper.make_graph(
            nodes, "several", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4]),
                               helper.make_tensor_value_info("big", TensorProto.FLOAT, [1 << 22])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4]),
             helper.make_tensor_value_info("bigger", TensorProto.FLOAT, [1 << 22])])
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13), helper.make_opsetid("weft", 1)])
        proto.ir_version = 8
        for world in (2, 3):
            self.weft("compile", self.save(proto), "-o", "a.weft", "--world", world, "--infer", "--emit-onnx", "out.onnx")
            self.assertEqual(self.weft("compile", "out.onnx", "-o", "b.weft").stderr, "")
            self.assertEqual(*(self.weft_json("explain", p)["structure_digest"] for p in ("a.weft", "b.weft")))
            for node in onnx.load(self.dir / "out.onnx").graph.node:
                names = [a.s.decode() for a in node.attribute if a.name == "algorithm"]
                if node.op_type == "Broadcast":
                    self.assertNotIn("one-shot", names[0])
                elif node.op_type == "AllReduce":
                    self.assertNotIn("binomial", "".join(names))

    def test_operators_of_ones_own(self):
        proto = doors.training()
        at = next(i for i, n in enumerate(proto.graph.node) if n.name == "d_relu")
        proto.graph.node[at].input[0] = "d_a.foo"
        proto.graph.node.insert(at, helper.make_node("Foo", ["d_a"], ["d_a.foo"], name="foo", domain="my", text="x",
                                                     numbers=[1, 2], more=[0.5], words=["a", "b"]))
        proto.opset_import.append(helper.make_opsetid("my", 3))
        proto.graph.value_info.append(helper.make_tensor_value_info("d_a.foo", TensorProto.FLOAT, ["batch", 32]))
        out = self.again(self.save(proto), world=2, batch=32)
        foo = next(n for n in out.graph.node if n.op_type == "Foo")
        self.assertEqual({a.name: helper.get_attribute_value(a) for a in foo.attribute},
                         {"text": b"x", "numbers": [1, 2], "more": [0.5], "words": [b"a", b"b"]})

    def test_options_are_those_of_the_file(self):
        self.again(self.save(doors.forward()), "--optimizer", "sgd")
        self.weft("compile", "out.onnx", "-o", "c.weft", "--world", 4, "--optimizer", "sgd")  # the same are fine
        for more, words in ((("--world", 2), "world_size: 2, but the graph out.onnx was compiled with 4"),
                            (("--optimizer", "adam"), "optimizer: adam, but the graph out.onnx was compiled with sgd"),
                            (("--bucket", "one"), "bucket: one, but the graph out.onnx was compiled with the default"),
                            (("--shard-optimizer",), "shard_optimizer: 1, but"), (("--infer",), "infer: 1, but"),
                            (("--loss", "loss"), "loss: must not be set: out.onnx is a compiled graph"),
                            (("--shape", "image=4,1,28,28"), "shapes: must not be set: out.onnx is a compiled graph")):
            done = self.weft("compile", "out.onnx", "-o", "c.weft", *more, code=2)
            self.assert_one_line(done.stderr)
            self.assertIn(words, done.stderr)
        self.assertIn("compiles", self.weft("check", "out.onnx").stdout)

    def test_the_earlier_name_of_a_parameter_is_read(self):
        """Files of Weft 0.1 call global_micro_batches "shards"; the plan of such a file is the same."""
        proto = self.again(self.save(doors.forward()), "--global-micro-batches", 8)
        props = {p.key: p.value for p in proto.metadata_props}
        self.assertEqual(props["weft.global_micro_batches"], "8")
        props["weft.shards"] = props.pop("weft.global_micro_batches")
        helper.set_model_props(proto, props)
        onnx.save(proto, self.dir / "old.onnx")
        done = self.weft("compile", "old.onnx", "-o", "old.weft", "--json")
        self.assertEqual(json.loads(done.stdout)["global_micro_batches"], 8)
        self.assertNotRegex(done.stderr, "plan differs|evaluation model")
        self.weft("compile", "old.onnx", "-o", "c.weft", "--global-micro-batches", 4, code=2)

    def test_algorithms_of_buckets_stay(self):
        (self.dir / "costs.json").write_text(json.dumps({"format": 1, "step_ns": 100000}))
        options = ("--world", 4, "--batch", 8, "--bucket", "none")
        self.weft("compile", self.save(doors.forward()), "-o", "a.weft", *options, "--costs", "costs.json", "--emit-onnx",
                  "out.onnx")
        done = self.weft("compile", "out.onnx", "-o", "b.weft")
        self.assertIn("need the same costs_path", done.stderr)  # the broadcast of the first weights is in no graph
        done = self.weft("compile", "out.onnx", "-o", "d.weft", "--costs", "costs.json")
        self.assertNotRegex(done.stderr, "plan differs|evaluation model")
        self.weft("compile", self.dir / "m.onnx", "-o", "c.weft", *options)
        a, b, c = ([x["candidates"] for x in self.weft_json("explain", p)["buckets"]] for p in ("a.weft", "b.weft", "c.weft"))
        self.assertEqual(a, b)
        self.assertNotEqual(a, c)  # the costs did matter

    def test_other_costs_are_noticed(self):
        self.again(self.save(doors.forward()), "--bucket", "auto")
        proto = onnx.load(self.dir / "out.onnx")
        next(p for p in proto.metadata_props if p.key == "weft.structure").value = "0" * 64
        onnx.save(proto, self.dir / "out.onnx")
        self.assertIn("plan differs from the plan", self.weft("compile", "out.onnx", "-o", "c.weft").stderr)

    def test_what_cannot_be_written(self):
        self.weft("compile", MODELS / "mlp.onnx", "-o", "a.weft", "--world", 2, "--batch", 8, "--emit-onnx",
                  "/nonexistent/out.onnx", code=2)
        self.assertFalse((self.dir / "a.weft").exists())

    def test_states_that_the_file_has_are_listed(self):
        proto = self.again(self.save(doors.forward()), "--shard-optimizer", "--optimizer", "adam")
        states = next(p.value for p in proto.metadata_props if p.key == "weft.states").split()
        first = len(proto.graph.initializer)
        count = len(proto.training_info[0].algorithm.initializer)
        self.assertEqual([int(s.split(":")[0]) for s in states], list(range(first, first + count)))

    def test_damaged_metadata_is_refused(self):
        self.again(self.save(doors.forward()))
        proto = onnx.load(self.dir / "out.onnx")
        good = {p.key[5:]: p.value for p in proto.metadata_props}
        changes = [("format", "2"), ("world", "x"), ("world", "-1"), ("world", "99999999999"), ("lr", "nan"), ("batch", "0"),
                   ("phases", ""), ("phases", "F999999"), ("phases", "X3"), ("phases", "U7 F99"), ("kinds", ""),
                   ("kinds", "S99"), ("kinds", "C99"), ("kinds", "P9999999999999999999999"), ("versions", "1"),
                   ("versions", "99999:1"), ("versions", "0:99999999999999"), ("versions", "0:0"), ("edges", "1:0"),
                   ("edges", "0:99999"), ("edges", "a:b"), ("scalars", "lr"), ("scalars", "lr:x"), ("scalars", "loss:1"),
                   ("loss", "nothing"), ("logits", "fc1.weight"), ("label", "nothing"), ("graph_batch", "-1"),
                   ("opset", "-5"), ("infer", "yes"), ("optimizer", "best"), ("bucket", "what"), ("infer", "1"),
                   ("program.step", ""), ("program.step", "0:99999"), ("program.step", "5:3"), ("program.step", "0:1 x"),
                   ("program.eval", "0:99"), ("program.eval", "3:3"), ("program.init", "1:1"), ("program.init", "0:1"),
                   ("variants", "0:1"), ("variants", "0"), ("variants", "0:9999"), ("persistent", "0:99"),
                   ("persistent", "0"), ("node_order", "0:1"), ("node_order", "9:1"), ("node_order", "0:99999"), ("gradients", "0:0:9999"),
                   ("gradients", "0:9:0"), ("gradients", "0:0"), ("states", "0:9999"), ("states", "x"),
                   ("states", good["states"] + " 0:1"), ("program.other", "0:1")]
        for key, value in changes:
            with self.subTest(key=key, value=value):
                helper.set_model_props(proto, {"weft." + k: v for k, v in {**good, key: value}.items()})
                onnx.save(proto, self.dir / "bad.onnx")
                done = self.weft("compile", "bad.onnx", "-o", "c.weft", code=2)
                self.assertTrue(done.stderr.strip())

    def test_damaged_training_info_is_refused(self):
        self.again(self.save(doors.forward()), "--optimizer", "adam", "--bucket", "none")
        good = onnx.load(self.dir / "out.onnx")

        def damage(change, *words):
            proto = onnx.ModelProto()
            proto.CopyFrom(good)
            change(proto, proto.training_info[0].algorithm)
            onnx.save(proto, self.dir / "bad.onnx")
            done = self.weft("compile", "bad.onnx", "-o", "c.weft", code=2)
            self.assert_one_line(done.stderr)
            for word in words:
                self.assertIn(word, done.stderr)

        damage(lambda p, a: p.training_info.add(), "training_info")
        damage(lambda p, a: p.training_info[0].ClearField("algorithm"), "training_info")
        damage(lambda p, a: p.training_info[0].initialization.node.add(op_type="Relu"), "training_info")
        damage(lambda p, a: a.node[0].ClearField("input"), "inputs")
        damage(lambda p, a: a.node[0].input.__setitem__(0, "h"), "")
        damage(lambda p, a: a.node[0].input.__setitem__(1, "lr"), "")
        damage(lambda p, a: a.node[0].input.__setitem__(1, a.node[1].input[1]), "")
        damage(lambda p, a: a.node[0].input.__setitem__(2, a.node[1].input[2]), "")
        damage(lambda p, a: a.node.pop(), "")
        damage(lambda p, a: a.node.append(p.graph.node[0]), "")
        damage(lambda p, a: p.graph.node.pop(0), "")
        damage(lambda p, a: a.initializer.pop(), "")
        good.ClearField("metadata_props")
        onnx.save(good, self.dir / "bad.onnx")
        done = self.weft("compile", "bad.onnx", "-o", "c.weft", "--world", 2, code=2)
        self.assertIn("training_info has no operator Gradient", done.stderr)


if __name__ == "__main__":
    support.main()
