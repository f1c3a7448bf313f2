#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weft.compile and weft.Plan: the same plans as `weft compile` makes, what they say, wrong arguments."""
import gc
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import warnings

import ranks

np = ranks.need("numpy")
onnx = ranks.need("onnx")
sys.path.insert(0, str(ranks.SOURCE / "tests" / "tools"))
import door_models as doors  # noqa: E402
import infer_models as infer  # noqa: E402
import weft  # noqa: E402

MODELS = ranks.SOURCE / "samples" / "models"
MLP, LENET = MODELS / "mlp.onnx", MODELS / "lenet.onnx"
SWISH = ranks.SOURCE / "samples" / "custom_kernel" / "swish.onnx"
PLUGIN = pathlib.Path(os.environ.get("WEFT_BINARY_DIR") or pathlib.Path(ranks.WEFT).parent) / "samples" / "libswish.so"
# Arguments, and the command's options for the same.
OPTIONS = (
    (dict(batch=4), ("--batch", 4)),
    (dict(batch=4, optimizer="adam", lr=0.002, weight_decay=0.01, clip=1.5, accumulate=2, bucket="bytes:8K",
          shard_optimizer=True, in_flight=2),
     ("--batch", 4, "--optimizer", "adam", "--lr", 0.002, "--weight-decay", 0.01, "--clip", 1.5, "--accumulate", 2,
      "--bucket", "bytes:8K", "--shard-optimizer", "--in-flight", 2)),
    (dict(batch=8, momentum=0.7, lr=0.3, decouple=True, arena_limit="64M", loss="loss"),
     ("--batch", 8, "--momentum", 0.7, "--lr", 0.3, "--decouple", "--arena-limit", "64M", "--loss", "loss")),
    (dict(shape={"image": (16, 1, 28, 28), "label": [16]}, global_micro_batches=8, wire="f32", optimizer="sgd", weight_decay=0),
     ("--shape", "image=16,1,28,28", "--shape", "label=16", "--global-micro-batches", 8, "--wire", "f32", "--optimizer", "sgd",
      "--weight-decay", 0)),
)


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="weft-test-")
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)

    def command(self, *args):
        done = subprocess.run([ranks.WEFT, *map(str, args)], capture_output=True, text=True, cwd=self.dir, timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def save(self, proto, name="m.onnx"):
        onnx.save(proto, self.dir / name)
        return self.dir / name


class Compile(Case):
    def test_the_command_makes_the_same_plans(self):
        for arguments, options in OPTIONS[:2] if ranks.SANITIZED else OPTIONS:
            with self.subTest(arguments):
                said = json.loads(self.command("compile", LENET, "-o", "c.weft", "--world", 4, *options, "--json"))
                self.assertEqual(said.pop("costs"), "default")  # of the command, not of the plan
                plan = weft.compile(LENET, world=4, **arguments)
                plan.save(self.dir / "p.weft")
                self.assertEqual((self.dir / "p.weft").read_bytes(), (self.dir / "c.weft").read_bytes())
                del said["plan"]
                self.assertEqual({**said, **plan.info}, plan.info)  # and info has more

    def test_all_arguments_reach_the_compiler(self):
        plan = weft.compile(LENET, world=2, batch=8, accumulate=3, clip=0.5, decouple=True, bucket="one",
                            optimizer="adam")
        info = plan.info
        self.assertEqual((info["world"], info["batch"], info["accumulate"], info["clip_norm"]), (2, 8, 3, 0.5))
        self.assertEqual((info["decoupled"], info["sharded"], info["policy"], info["optimizer"]),
                         (True, True, "one", "adam"))
        self.assertEqual((plan.world, plan.batch, info["kind"], info["has_eval"]), (2, 8, "training", True))
        self.assertEqual((info["device"], info["bits"]), ("cpu", "cpu"))
        with self.assertRaisesRegex(weft.WeftNotFoundError, "libweft_nothing.so"):
            weft.compile(MLP, world=2, batch=8, device="nothing:0")
        self.assertEqual(weft.compile(LENET, world=2, batch=8, global_micro_batches=8).info["global_micro_batches"], 8)
        self.assertRegex(repr(plan), "^<weft.Plan lenet.onnx: training on 2 ranks, batch 8, digest [0-9a-f]{16}>$")

    def test_paths_and_models_in_memory(self):
        digest = weft.compile(MLP, world=2, batch=8).info["structure_digest"]
        for model in (str(MLP), os.fsencode(MLP), onnx.load(MLP), [MLP]):
            self.assertEqual(weft.compile(model, world=2, batch=8).info["structure_digest"], digest)

    def test_a_graph_that_was_written_compiles_again(self):
        out = self.dir / "graph.onnx"
        first = weft.compile(MLP, world=3, batch=8, emit_onnx=out)
        self.assertEqual(weft.compile(out).info["structure_digest"], first.info["structure_digest"])
        with self.assertRaisesRegex(weft.WeftArgumentError, "bucket"):
            weft.compile(out, bucket="one")
        options = {"world": 2, "batch": 4, "loss": "loss", "precision": "bf16"}
        first = weft.compile(MLP.parent / "families" / "gpt2.onnx", emit_onnx=out, **options)
        self.assertEqual(weft.compile(out).info["structure_digest"], first.info["structure_digest"])

    def test_a_batch_that_nobody_gives(self):
        with self.assertWarnsRegex(UserWarning, "symbolic batch size: compiled for 1 sample per rank"):
            self.assertEqual(weft.compile(MLP, world=4, bucket="auto").batch, 1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.assertEqual(weft.compile(MLP, world=4, shape={"image": (6, 1, 28, 28)}).batch, 6)

    def test_models_of_ranks(self):
        net = infer.Mlp(np.random.default_rng(5))
        reduce = lambda x, y: [infer.node("AllReduce", [x], y, "weft")]  # noqa: E731
        paths = [self.save(infer.model(net.nodes(reduce), net.inputs, net.outputs, net.part(r, 2)), f"r{r}.onnx")
                 for r in range(2)]
        plan = weft.compile(paths, infer=True, batch=3)
        info = plan.info
        self.assertEqual((info["kind"], info["world"], info["batch"], info["rank_weights"]), ("inference", 2, 3, True))
        self.assertEqual([(b["name"], b["role"], b["dtype"], b["shape"]) for b in plan.bindings],
                         [("x", "input", "float32", (3, 10)), ("y", "output", "float32", (3, 6))])
        with self.assertRaisesRegex(weft.WeftArgumentError, "infer"):
            weft.compile(paths, batch=3)

    def test_files_that_describe_the_machines(self):
        machine = ranks.SOURCE / "tests" / "data" / "topologies" / "one-socket.xml"
        topology = self.dir / "t.json"
        topology.write_text(self.command("topo", "--xml", f"a={machine}", "-n", 3, "--json"))
        self.command("compile", MLP, "-o", "c.weft", "--batch", 8, "--topology", topology)
        plan = weft.compile(MLP, batch=8, topology=topology)
        self.assertEqual(plan.world, 3)
        plan.save(self.dir / "p.weft")
        self.assertEqual((self.dir / "p.weft").read_bytes(), (self.dir / "c.weft").read_bytes())
        with self.assertRaisesRegex(weft.WeftNotFoundError, "nowhere.json"):
            weft.compile(MLP, world=2, batch=8, topology="nowhere.json")

    def test_gradients_that_a_file_names(self):
        names = {p: f"g{i}" for i, p in enumerate(doors.PARAMS)}
        (self.dir / "map.json").write_text(json.dumps(names))
        model = self.save(doors.training(names))
        given = weft.compile(model, world=2, batch=8, grads=self.dir / "map.json")
        self.assertEqual(given.info["kind"], "training")
        with self.assertRaisesRegex(weft.WeftNotFoundError, "nowhere.json"):
            weft.compile(model, world=2, batch=8, grads="nowhere.json")

    def test_warnings(self):
        names = {p: f"{p}_grad" for p in doors.PARAMS}
        proto = doors.training(names)
        kept = [n for n in proto.graph.node if n.name != "d_fc1_b"]
        del proto.graph.node[:]
        proto.graph.node.extend(kept)
        with self.assertWarnsRegex(UserWarning, "1 weight without a gradient, not trained: fc1.bias"):
            weft.compile(proto, world=2, batch=8)
        with warnings.catch_warnings(), self.assertRaises(UserWarning):
            warnings.simplefilter("error")
            weft.compile(proto, world=2, batch=8)

    @unittest.skipUnless(PLUGIN.exists(), f"{PLUGIN} is missing")
    def test_plugins(self):
        for kernels in (PLUGIN, [str(PLUGIN)]):
            plan = weft.compile(SWISH, world=2, batch=8, kernels=kernels)
        plan.save(self.dir / "p.weft")
        again = weft.Plan.load(self.dir / "p.weft", kernels=PLUGIN)
        self.assertEqual(again.info, plan.info)
        with self.assertRaisesRegex(weft.WeftUnsupportedError, "Swish"):
            weft.compile(SWISH, world=2, batch=8)
        with self.assertRaisesRegex(weft.WeftError, "nowhere.so"):
            weft.compile(SWISH, world=2, kernels="/nowhere.so")


class Wrong(Case):
    def test_no_cycles(self):
        gc.collect()
        gc.disable()
        try:
            weft.compile(MLP, world=2, batch=8)
            self.assertEqual(gc.collect(), 0)
        finally:
            gc.enable()

    def test_arguments(self):
        wrong = (
            (TypeError, "model must be a path, not <class 'int'>", dict(model=3)),
            (TypeError, "missing 1 required positional argument: 'model'", dict()),
            (TypeError, "unexpected keyword argument 'worlds'", dict(model=MLP, worlds=2)),
            (ValueError, r"world_size: must be a whole number between 1 and 65536: 0$", dict(model=MLP, world=0)),
            (ValueError, "world_size: must be a whole number .*: 70000", dict(model=MLP, world=70000)),
            (TypeError, "batch must be an integer", dict(model=MLP, world=2, batch=2.5)),
            (ValueError, "lr: must be a number above 0: 0.0", dict(model=MLP, world=2, lr=0)),
            (ValueError, "lr: must be a number above 0: nan", dict(model=MLP, world=2, lr=float("nan"))),
            (TypeError, "clip must be a number", dict(model=MLP, world=2, clip="much")),
            (ValueError, "weight_decay: must be a number of at least 0: -1.0", dict(model=MLP, world=2, weight_decay=-1)),
            (TypeError, "bucket must be a str", dict(model=MLP, world=2, bucket=4)),
            (ValueError, "bucket: .* has a null character", dict(model=MLP, world=2, bucket="one\0x")),
            (ValueError, "bucket: unknown policy 'zz'", dict(model=MLP, world=2, bucket="zz")),
            (ValueError, "optimizer", dict(model=MLP, world=2, optimizer="zz")),
            (ValueError, "arena_limit: must be a number of bytes such as 8, 4K or 64M: 64Q", dict(model=MLP, world=2, arena_limit="64Q")),
            (ValueError, "arena_limit: must be a number of bytes .*: -1", dict(model=MLP, world=2, arena_limit=-1)),
            (TypeError, "shape must be a dict", dict(model=MLP, world=2, shape=(1, 2))),
            (TypeError, "shape: 3 is not the name", dict(model=MLP, world=2, shape={3: (1, 2)})),
            (ValueError, "at most 8", dict(model=MLP, world=2, shape={"image": range(9)})),
            (ValueError, "shape of 'image': -1 is out of range", dict(model=MLP, world=2, shape={"image": (-1,)})),
            (TypeError, "shape of 'image' must be a sequence of integers", dict(model=MLP, world=2, shape={"image": 3})),
            (ValueError, "batch: an integer of 16610 bits is out of range", dict(model=MLP, world=2, batch=10**5000)),
            (ValueError, "lr: an integer is out of range", dict(model=MLP, world=2, lr=10**400)),
            (TypeError, "freeze must be str, not <class 'int'>", dict(model=MLP, world=2, freeze=[1])),
            (TypeError, "kernels must be a path", dict(model=MLP, world=2, kernels=3)),
            (ValueError, "the list is empty", dict(model=[])),
            (TypeError, "every model must be a path", dict(model=[MLP, None], infer=True)),
            (weft.WeftNotFoundError, "nowhere.onnx", dict(model="nowhere.onnx", world=2)),
            (weft.WeftArgumentError, "world_size: must be set", dict(model=MLP)),
            (weft.WeftNotFoundError, "nowhere.json", dict(model=MLP, world=2, costs="nowhere.json")),
            (weft.WeftNotFoundError, "nowhere.json", dict(model=MLP, world=2, ops="nowhere.json")),
            (weft.WeftArgumentError, "input 'image': 2 dimensions, the model has 4",
             dict(model=MLP, world=2, shape={"image": (6, 784)})),
            (weft.WeftArgumentError, "global_micro_batches.*accumulate",
             dict(model=MLP, world=2, batch=8, global_micro_batches=8, accumulate=2)),
        )
        for error, text, arguments in wrong:
            with self.subTest(arguments), self.assertRaisesRegex(error, text):
                weft.compile(**arguments)

    def test_files(self):
        (self.dir / "m.onnx").write_bytes(b"not a model")
        with self.assertRaisesRegex(weft.WeftFormatError, "m.onnx"):
            weft.compile(self.dir / "m.onnx", world=2)
        with self.assertRaises(weft.WeftFormatError):
            weft.Plan.load(self.dir / "m.onnx")
        with self.assertRaisesRegex(weft.WeftNotFoundError, "nowhere.weft"):
            weft.Plan.load("nowhere.weft")
        plan = weft.compile(MLP, world=2, batch=8)
        for where in ("nowhere/p.weft", "/dev/null/p.weft"):
            with self.assertRaisesRegex(weft.WeftError, where):
                plan.save(where)
        with self.assertRaises(TypeError):
            plan.save(None)
        with self.assertRaises(TypeError):
            weft.Plan()
        with self.assertRaises(weft.WeftStateError):
            weft.Session(plan)  # before weft.init

    def test_model_that_fails_to_serialize(self):
        class Model:
            def SerializeToString(self):
                raise KeyError("no")
        with self.assertRaises(KeyError):
            weft.compile(Model(), world=2)


class Plans(Case):
    def test_saved_and_loaded(self):
        plan = weft.compile(LENET, world=2, batch=8)
        plan.save(self.dir / "p.weft")
        again = weft.Plan.load(self.dir / "p.weft")
        self.assertEqual(again.info, plan.info)
        self.assertEqual(again.bindings, plan.bindings)
        again.save(str(self.dir / "q.weft"))
        self.assertEqual((self.dir / "q.weft").read_bytes(), (self.dir / "p.weft").read_bytes())
        del plan
        self.assertIn("lenet", again.explain())

    def test_what_it_says(self):
        plan = weft.compile(LENET, world=4, batch=8)
        plan.save(self.dir / "p.weft")
        self.assertEqual(plan.explain(), self.command("explain", "p.weft"))
        self.assertEqual(plan.explain(json=True), json.loads(self.command("explain", "p.weft", "--json")))
        self.assertEqual(plan.compare().strip(), self.command("explain", "p.weft", "--compare").strip())
        self.assertIn("fc1.weight", plan.why("fc1.weight"))
        with self.assertRaisesRegex(weft.WeftNotFoundError, "fc9"):
            plan.why("fc9")
        with self.assertRaises(TypeError):
            plan.why(9)

    def test_bindings(self):
        plan = weft.compile(MLP, world=2, batch=8, lr=0.25)
        self.assertEqual(plan.bindings, [
            dict(name="image", role="input", dtype="float32", shape=(8, 1, 28, 28)),
            dict(name="label", role="label", dtype="int64", shape=(8,)),
            dict(name="lr", role="scalar", dtype="float32", shape=(), default=0.25),
            dict(name="loss", role="loss", dtype="float32", shape=()),
            dict(name="logits", role="logits", dtype="float32", shape=(8, 10))])

    def test_many_at_once(self):
        """Plans come from several threads, and go again."""
        import concurrent.futures
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            plans = list(pool.map(lambda i: weft.compile(MLP, world=1 + i % 4, batch=8), range(12)))
        for i, plan in enumerate(plans):
            self.assertEqual(plan.info, plans[i % 4].info)


if __name__ == "__main__":
    ranks.main()
