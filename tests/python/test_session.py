#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weft.Session: training and inference against numpy and `weft run`; what it holds, files, wrong input, lifetimes."""
import copy
import gc
import json
import os
import pathlib
import pickle
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
from collections import abc

import ranks

np = ranks.need("numpy")
onnx = ranks.need("onnx")
from onnx import numpy_helper  # noqa: E402

sys.path.insert(0, str(ranks.SOURCE / "tests" / "tools"))
import door_models as doors  # noqa: E402
import infer_models as infer  # noqa: E402
import weft  # noqa: E402

try:
    import torch
except ImportError:
    torch = None

BATCH = 4
SEED = 11
SWISH = ranks.SOURCE / "samples" / "custom_kernel" / "swish.onnx"
PLUGIN = pathlib.Path(os.environ.get("WEFT_BINARY_DIR") or pathlib.Path(ranks.WEFT).parent) / "samples" / "libswish.so"


def all_reduce(value, result):
    return [infer.node("AllReduce", [value], result, "weft")]


def splitmix64(state):
    mask = (1 << 64) - 1
    while True:
        state = (state + 0x9e3779b97f4a7c15) & mask
        z = ((state ^ (state >> 30)) * 0xbf58476d1ce4e5b9) & mask
        z = ((z ^ (z >> 27)) * 0x94d049bb133111eb) & mask
        yield z ^ (z >> 31)


def shuffled(seed, epoch, count):
    """The order of an epoch of `weft run`."""
    order = list(range(count))
    numbers = splitmix64((seed * 0x100000001b3 + epoch) & ((1 << 64) - 1))
    for i in range(count, 1, -1):
        j = ((next(numbers) >> 32) * i) >> 32
        order[i - 1], order[j] = order[j], order[i - 1]
    return order


class Case(ranks.RankCase):
    def compile(self, proto=None, **arguments):
        return weft.compile(proto or doors.forward(), **{"batch": BATCH, "lr": 0.1, **arguments})

    def images(self, rng, batch=BATCH):
        return rng.random((batch, 1, 28, 28), dtype=np.float32), rng.integers(0, 10, batch)

    def batches(self, count, batch=BATCH):
        """All ranks' batches of count steps: [step][rank] -> images, labels; the same on all ranks."""
        rng = self.random()
        return [[self.images(rng, batch) for _ in range(self.size)] for _ in range(count)]

    def assert_same(self, value):
        self.assertEqual(set(self.exchange(value)), {value})


class Training(Case):
    RANKS = (3,) if ranks.SANITIZED else (1, 2, 3)

    def oracle(self, batches, lr):
        """Weights and the losses of this rank, in double precision: sgd with momentum."""
        weights = {k: v.astype(np.float64) for k, v in doors.weights().items()}
        momentum = {k: np.zeros_like(v) for k, v in weights.items()}
        losses = []
        for step in batches:
            parts = [doors.gradients(weights, x, y)[1] for x, y in step]
            x, y = step[self.rank]
            logits = self.logits(weights, x)
            losses.append(float(np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y])))
            for name in weights:
                momentum[name] = 0.9 * momentum[name] + sum(p[name] for p in parts) / self.size
                weights[name] = weights[name] - lr * momentum[name]
        return weights, momentum, losses

    @staticmethod
    def logits(weights, x):
        w = {k: v.astype(np.float64) for k, v in weights.items()}
        h = np.maximum(x.reshape(len(x), -1) @ w["fc1.weight"].T + w["fc1.bias"], 0)
        return h @ w["fc2.weight"].T + w["fc2.bias"]

    def test_numpy_agrees(self):
        batches = self.batches(3)
        weights, momentum, losses = self.oracle(batches, 0.1)
        with weft.Session(self.compile()) as session:
            self.assertRegex(repr(session), "^<weft.Session of <weft.Plan [^>]+>>$")
            for step, loss in zip(batches, losses):
                got = session.step(*step[self.rank])
                self.assertIsInstance(got, float)
                self.assertAlmostEqual(got, loss, places=4)
            for name, want in weights.items():
                np.testing.assert_allclose(session.params[name], want, atol=2e-5)
                np.testing.assert_allclose(session.state[f"{name}.momentum"], momentum[name], atol=2e-4)
            x, y = batches[0][self.rank]
            np.testing.assert_allclose(session.eval(x), self.logits(weights, x), atol=2e-4)
            self.assert_same(session.param_digest())
            self.assertEqual(session.stats()["steps"], 3)

    @unittest.skipIf(torch is None, "python3-torch is missing")
    def test_optimizers_schedules_and_smoothing_are_those_of_torch(self):
        optim, nn, steps = torch.optim, torch.nn, 8
        batches = self.batches(steps)
        undecayed = [name for name, value in doors.weights().items() if value.ndim < 2]
        for kind, setting in (("sgd", "beta1"), ("momentum", "beta2"), ("sgd", "epsilon")):
            with self.assertRaisesRegex(weft.WeftError, f"{setting}: must not be set with optimizer {kind}"):
                self.compile(optimizer=kind, **{setting: 0.5})
        schedules = {
            "linear": lambda o: optim.lr_scheduler.LambdaLR(o, lambda t: 0.1 + 0.9 * (1 - min(t / steps, 1))),
            "cosine": lambda o: optim.lr_scheduler.CosineAnnealingLR(o, steps, eta_min=0.002),
            "step": lambda o: optim.lr_scheduler.StepLR(o, 3, gamma=0.5)}
        more = {"linear": dict(lr_steps=steps, min_lr=0.002), "cosine": dict(min_lr=0.002),
                "step": dict(lr_steps=3, lr_gamma=0.5)}
        # epsilon: with that of torch, a gradient near 0 gives an update whose sign rounding decides
        adam, ours = dict(betas=(0.8, 0.99), eps=1e-3), dict(beta1=0.8, beta2=0.99, epsilon=1e-3)
        for (kind, make), schedule in zip((("momentum", lambda p, **k: optim.SGD(p, momentum=0.9, **k)),
                                           ("adam", lambda p, **k: optim.Adam(p, **adam, **k)),
                                           ("adamw", lambda p, **k: optim.AdamW(p, **adam, **k))), schedules):
            leaves = {k: torch.tensor(v, dtype=torch.float64, requires_grad=True) for k, v in doors.weights().items()}
            groups = [dict(params=[leaves[k] for k in leaves if k not in undecayed], weight_decay=0.5),
                      dict(params=[leaves[k] for k in undecayed], weight_decay=0.0)]
            theirs = make(groups, lr=0.02)
            rates = schedules[schedule](theirs)
            plan = self.compile(optimizer=kind, lr=0.02, weight_decay=0.5, no_decay="1d", label_smoothing=0.1,
                                lr_schedule=schedule, shard_optimizer=kind == "adamw", **more[schedule],
                                **(ours if kind != "momentum" else {}))
            with weft.Session(plan) as session:
                if schedule == "cosine":
                    session.scalars["lr_steps"] = steps
                for batch in batches:
                    x, y = (torch.tensor(np.concatenate(part)) for part in zip(*batch))
                    h = torch.relu(x.double().flatten(1) @ leaves["fc1.weight"].T + leaves["fc1.bias"])
                    theirs.zero_grad()
                    nn.functional.cross_entropy(h @ leaves["fc2.weight"].T + leaves["fc2.bias"], y,
                                                label_smoothing=0.1).backward()
                    theirs.step()
                    rates.step()
                    session.step(*batch[self.rank])
                    for name, leaf in leaves.items():
                        np.testing.assert_allclose(session.params[name], leaf.detach(), atol=3e-4, err_msg=(kind, name))

    def test_gradients(self):
        batches = self.batches(1)
        parts = [doors.gradients(doors.weights(), x, y)[1] for x, y in batches[0]]
        with weft.Session(self.compile()) as session:
            with self.assertRaises(weft.WeftStateError):
                session.gradients["fc1.weight"]
            session.step(*batches[0][self.rank])
            for name, got in session.gradients.items():
                np.testing.assert_allclose(got, sum(p[name] for p in parts) / self.size, atol=1e-5)

    def test_ways_of_feeding(self):
        """By place, by name, in place, narrower integers, one call of feed: the same bits."""
        (x, y), plan = self.batches(1)[0][self.rank], self.compile()

        def in_place(session):
            session.inputs["image"][:] = x
            session.inputs["label"][:] = y
            return session.step()

        def assigned(session):
            session.inputs["image"] = x
            session.inputs.update({"label": y})
            return session.step()

        def fed(session):
            session.feed(x, label=y)
            return session.step(lr=0.1)

        if torch:
            tensors = torch.from_numpy(x), torch.from_numpy(y)
        ways = [*([lambda s: s.step(*tensors), lambda s: s.step(tensors[0], tensors[1].int())] if torch else []),
                lambda s: s.step(x, y), lambda s: s.step(label=y, image=x), lambda s: s.step(x, label=y.astype("u1")),
                lambda s: s.step(memoryview(x), y.astype("i4")), lambda s: s.step(x, y.astype("i1"), lr=0.1),
                lambda s: s.step(x, list_of(y)), in_place, assigned, fed]

        def list_of(values):
            import array
            return array.array("H", list(map(int, values)))

        results = set()
        for way in ways:
            with weft.Session(plan) as session:
                results.add((way(session), session.param_digest()))
        self.assertEqual(len(results), 1)

    def test_micro_batches(self):
        """K at once, one after another: the same; and the mean of their losses."""
        plan = self.compile(accumulate=3)
        x, y = self.batches(1, 3 * BATCH)[0][self.rank]
        with weft.Session(plan) as session:
            losses = []
            for k in range(3):
                self.assertEqual(session.micro_count, k)
                part = slice(k * BATCH, (k + 1) * BATCH)
                losses.append((session.step if k == 2 else session.micro_step)(x[part], y[part]))
            with self.assertRaises(ValueError):
                session.step(x, y[:BATCH])
            with self.assertRaisesRegex(ValueError, "3 times the first"):
                session.step(x[:2 * BATCH], y[:2 * BATCH])
            digest = session.param_digest()
        with weft.Session(plan) as session:
            self.assertAlmostEqual(session.step(x, y), sum(losses) / 3, places=6)
            self.assertEqual(session.param_digest(), digest)
            session.micro_step(x[:BATCH], y[:BATCH])
            with self.assertRaises(weft.WeftStateError):
                session.step(x, y)
            session.micro_step()
            with self.assertRaises(weft.WeftStateError):
                session.micro_step()
            session.step()
            self.assertEqual(session.stats()["steps"], 2)

    def test_scalars(self):
        x, y = self.batches(1)[0][self.rank]
        with weft.Session(self.compile()) as session:
            self.assertEqual(dict(session.scalars).keys(), {"lr"})
            self.assertAlmostEqual(session.scalars["lr"], 0.1, places=6)
            before = session.param_digest()
            session.scalars["lr"] = 0
            session.step(x, y)
            self.assertEqual(session.param_digest(), before)
            session.step(x, y, lr=0.5)
            self.assertEqual(session.scalars["lr"], 0.5)
            self.assertNotEqual(session.param_digest(), before)
            with self.assertRaisesRegex(TypeError, "scalar 'lr' must be a number"):
                session.scalars["lr"] = "fast"
            with self.assertRaises(KeyError):
                session.scalars["momentum"] = 1

    def test_params_and_state_are_set(self):
        rng = self.random()
        x, y = self.batches(1)[0][self.rank]
        with weft.Session(self.compile(optimizer="adam")) as session:
            self.assertIsInstance(session.params, abc.Mapping)
            self.assertEqual(set(session.params), set(doors.PARAMS))
            self.assertEqual(len(session.params), 4)
            self.assertEqual(set(session.state), {f"{p}.{s}" for p in doors.PARAMS for s in ("moment1", "moment2")})
            for tensors in (session.params, session.state):
                new = {name: rng.random(value.shape, dtype=np.float32) for name, value in tensors.items()}
                tensors.update(new)
                for name, value in dict(tensors).items():
                    np.testing.assert_array_equal(value, new[name])
            np.testing.assert_allclose(session.eval(x), self.logits(dict(session.params), x), rtol=1e-3, atol=1e-3)
            session.step(x, y)
            self.assert_same(session.param_digest())
            self.assertIn("fc1.bias", session.params)
            self.assertNotIn("fc9.bias", session.params)
            self.assertNotIn(9, session.params)
            self.assertEqual(session.params.get("fc9.bias", 3), 3)
            self.assertIsNone(session.params.get("fc9.bias"))
            before = session.param_digest()
            wrong = ((TypeError, "parameter 'fc1.bias': dtype mismatch: expected float32, got float64", "fc1.bias", np.zeros(32)),
                     (ValueError, r"expected \(32,\), got \(31,\)", "fc1.bias", np.zeros(31, "f4")),
                     (KeyError, "fc9", "fc9.bias", np.zeros(32, "f4")),
                     (TypeError, "must have memory", "fc1.bias", 3.0))
            for error, text, name, value in wrong:
                with self.assertRaisesRegex(error, text):
                    session.params[name] = value
            with self.assertRaises(KeyError):
                session.params.update({"fc1.bias": np.zeros(32, "f4"), "fc9.bias": np.zeros(32, "f4")})
            for tensors in (session.gradients, session.outputs):
                with self.assertRaisesRegex(TypeError, "cannot be set"):
                    tensors["loss"] = 3
            with self.assertRaisesRegex(TypeError, "cannot be deleted"):
                del session.params["fc1.bias"]
            self.assertEqual(session.param_digest(), before)

    def test_sharded_and_decoupled(self):
        """Other ways to the same weights, to rounding; all of a session's tensors are whole."""
        batches = self.batches(2)
        weights, momentum, _ = self.oracle(batches, 0.1)
        for arguments in (dict(shard_optimizer=True), dict(decouple=True, bucket="none"),
                          dict(shard_parameters=True, bucket="none")):
            with weft.Session(self.compile(**arguments)) as session:
                for step in batches:
                    session.step(*step[self.rank])
                session.flush()
                for name, want in weights.items():
                    np.testing.assert_allclose(session.params[name], want, atol=2e-5)
                    np.testing.assert_allclose(session.state[f"{name}.momentum"], momentum[name], atol=2e-4)

    def test_checkpoint(self):
        batches = self.batches(4)
        path = self.dir / "c.safetensors"
        plan = self.compile(optimizer="adam")
        with weft.Session(plan) as session:
            for step in batches[:2]:
                session.step(*step[self.rank], lr=0.25)
            session.save_checkpoint(path, seed=5, epoch=1, sample=2 * BATCH * self.size, sample_count=1000, lr=0.25)
            for step in batches[2:]:
                session.step(*step[self.rank])
            digest = session.param_digest()
        with weft.Session(self.compile(optimizer="adam", bucket="none", shard_optimizer=True)) as session:
            info = session.load_checkpoint(path)
            self.assertEqual(info, dict(seed=5, epoch=1, sample=2 * BATCH * self.size, sample_count=1000, lr=0.25,
                                        step=2, global_batch=BATCH * self.size, world=self.size, optimizer="adam",
                                        tensors=12))
            self.assertEqual(session.scalars["lr"], 0.25)
            self.assertEqual(session.state["fc1.bias.moment1"].shape, (32,))
        with weft.Session(plan) as session:
            session.load_checkpoint(str(path))
            for step in batches[2:]:
                session.step(*step[self.rank])
            self.assertEqual(session.param_digest(), digest)
            with self.assertRaisesRegex(weft.WeftNotFoundError, "nowhere"):
                session.load_checkpoint(self.dir / "nowhere")
            with self.assertRaises(weft.WeftError):  # on all ranks
                session.save_checkpoint(self.dir / "no folder" / "c")
            with self.assertRaisesRegex(ValueError, "seed: -1 is out of range"):
                session.save_checkpoint(path, seed=-1)
            with self.assertRaisesRegex(ValueError, "lr: an integer is out of range"):
                session.save_checkpoint(path, lr=10**400)
            self.assertEqual(session.param_digest(), digest)

    def test_saved_model(self):
        x, y = self.batches(1)[0][self.rank]
        for arguments in (dict(), dict(decouple=True)):
            with weft.Session(self.compile(**arguments)) as session:
                session.step(x, y)
                session.save(self.dir / "m.onnx")
                self.meet()
                saved = {i.name: numpy_helper.to_array(i) for i in onnx.load(self.dir / "m.onnx").graph.initializer}
                for name, value in session.params.items():
                    np.testing.assert_array_equal(saved[name], value)
                self.meet()
                if self.rank == 0 and not arguments:
                    session.save(str(self.dir / "n.onnx"))  # nobody else needs to come
                    with self.assertRaisesRegex(weft.WeftError, "no folder"):
                        session.save(self.dir / "no folder" / "m.onnx")

    def test_outputs(self):
        x, y = self.batches(1)[0][self.rank]
        with weft.Session(self.compile()) as session:
            loss = session.step(x, y, lr=0)
            self.assertEqual(set(session.outputs), {"loss"} | ({"logits"} & set(session.outputs)))
            self.assertEqual(session.outputs["loss"].shape, ())
            self.assertAlmostEqual(float(session.outputs["loss"]), loss, places=6)

    def test_traces(self):
        x, y = self.batches(1)[0][self.rank]
        with weft.Session(self.compile(), trace=True) as session:
            for _ in range(3):
                session.step(x, y)
            session.write_trace(self.dir / "t.json")
            session.write_profile(self.dir / "p.json")
        self.meet()
        self.assertIn("traceEvents", json.loads((self.dir / "t.json").read_text()))
        again = self.compile(profile=self.dir / "p.json")
        self.assertEqual(again.world, self.size)
        self.meet()
        with weft.Session(self.compile()) as session, self.assertRaises(weft.WeftError):
            session.write_profile(self.dir / "p.json")


class LikeTheCommand(Case):
    """The bits of `weft run` on the same data."""

    def write_data(self, count):
        rng = np.random.default_rng(SEED)
        pixels, labels = rng.integers(0, 256, (count, 28, 28), np.uint8), rng.integers(0, 10, count).astype(np.uint8)
        head = struct.pack(">iiii", 0x803, count, 28, 28)
        (self.dir / "train-images-idx3-ubyte").write_bytes(head + pixels.tobytes())
        (self.dir / "train-labels-idx1-ubyte").write_bytes(struct.pack(">ii", 0x801, count) + labels.tobytes())
        return pixels, labels

    def check(self, steps=5, **arguments):
        count, per = 64, BATCH * arguments.get("accumulate", 1)
        plan = self.compile(**arguments)
        if self.rank == 0:
            pixels, labels = self.write_data(count)
            plan.save(self.dir / "p.weft")
            command = [ranks.WEFT, "run", "p.weft", "-n", str(self.size), "--data", ".", "--steps", str(steps),
                       "--seed", str(SEED), "--no-eval", "--json"]
            done = subprocess.run(command, cwd=self.dir, capture_output=True, env=ranks.clean_environment(), text=True,
                                  timeout=600)
            self.assertEqual(done.returncode, 0, done.stderr)
        else:
            pixels = labels = done = None
        pixels, labels, said = self.exchange((pixels, labels, done and json.loads(done.stdout)))[0]
        images = pixels.astype(np.float32)[:, None] * np.float32(1 / 255)
        per_epoch = count // (per * self.size)
        first = last = None
        with weft.Session(plan) as session:
            for step in range(steps):
                order = shuffled(SEED, step // per_epoch, count)
                at = (step % per_epoch * self.size + self.rank) * per
                own = order[at:at + per]
                last = session.step(images[own], labels[own])
                first = last if first is None else first
            self.assertEqual(session.param_digest(), said["param_digest"])
        self.assertAlmostEqual(np.mean(self.exchange(first)), said["loss_first"], places=6)
        self.assertAlmostEqual(np.mean(self.exchange(last)), said["loss_last"], places=6)

    def test_momentum(self):
        self.check(steps=10)

    def test_adam_sharded(self):
        self.check(optimizer="adam", shard_optimizer=True, bucket="none")

    def test_momentum_of_sharded_parameters(self):
        self.check(shard_parameters=True, bucket="none")

    def test_accumulated_decoupled_clipped(self):
        self.check(accumulate=2, decouple=True, clip=0.5)


class Inference(Case):
    def save(self, proto, name):
        onnx.save(proto, self.dir / name)
        return self.dir / name

    def test_pipeline(self):
        """Every rank is fed, runs its stage, and has the output."""
        net = infer.Mlp(np.random.default_rng(SEED))
        whole = self.save(infer.model(net.nodes(lambda p, s: [infer.node("Identity", [p], s)]), net.inputs, net.outputs,
                                      net.weights), f"whole{self.rank}.onnx")
        self.meet()
        plan = weft.compile(whole, infer=True, batch=4, pipeline=min(self.size, 2), pipeline_micro_batches=2,
                            world=self.size) if self.size % 2 == 0 else weft.compile(whole, infer=True, batch=4)
        x = np.random.default_rng(SEED).standard_normal((4, 10)).astype(np.float32)
        with weft.Session(plan) as session:
            np.testing.assert_allclose(session.step(x), net.run({"x": x})["y"], rtol=1e-4, atol=1e-5)
        self.meet()

    def test_pipeline_in_training(self):
        """Every rank reads parameters, states and gradients of all stages; bits are those of one rank."""
        image = np.random.default_rng(SEED).standard_normal((BATCH, 1, 28, 28)).astype(np.float32)
        said = []
        for stages in (2 if self.size % 2 == 0 else 1, 1):
            with weft.Session(self.compile(world=self.size, optimizer="adam", pipeline=stages)) as session:
                session.params["fc2.bias"] = np.linspace(0, 1, 10, dtype=np.float32)
                session.step(image, np.arange(BATCH))
                said.append({f"{kind}.{name}": np.array(value) for kind in ("params", "gradients", "state")
                             for name, value in getattr(session, kind).items()})
            self.meet()
        self.assertEqual(set(said[0]), set(said[1]))
        self.assertEqual(len(said[0]), 4 * 4)
        for name, value in said[0].items():
            np.testing.assert_array_equal(value, said[1][name], err_msg=name)

    def test_tensor_parallel(self):
        """Models of ranks; one output, like the input."""
        for make in (infer.Mlp, infer.Attention):
            net = make(np.random.default_rng(SEED))
            self.save(infer.model(net.nodes(all_reduce), net.inputs, net.outputs, net.part(self.rank, self.size)),
                      f"r{self.rank}.onnx")
            self.meet()
            plan = weft.compile([self.dir / f"r{r}.onnx" for r in range(self.size)], infer=True, batch=3)
            x = self.random().standard_normal([3 if d == "batch" else d for d in net.inputs["x"]]).astype(np.float32)
            with weft.Session(plan) as session:
                y = session.step(x)
                np.testing.assert_allclose(y, net.run({"x": x})["y"], rtol=1e-4, atol=1e-5)
                session.inputs["x"][:] = 2 * x
                np.testing.assert_allclose(session.step(), net.run({"x": 2 * x})["y"], rtol=1e-4, atol=1e-5)
                self.assertEqual(type(session.step(memoryview(x))), np.ndarray)
                if torch:
                    tensor = session.step(torch.from_numpy(x))
                    self.assertIsInstance(tensor, torch.Tensor)
                    np.testing.assert_array_equal(tensor.numpy(), y)
                with self.assertRaises(weft.WeftStateError):
                    session.eval(x)
            self.meet()

    def test_random_graphs(self):
        """Several outputs: a dict; bit for bit as numpy."""
        rng = self.random()
        for _ in range(3):
            graph = infer.RandomGraph(rng, self.size, 12)
            feeds = [{f"x{i}": rng.standard_normal(graph.shape).astype(np.float32) for i in (0, 1)}
                     for _ in range(self.size)]
            wanted = graph.run(feeds)
            plan = weft.compile(graph.model(), infer=True)
            names = [b["name"] for b in plan.bindings if b["role"] == "input"]
            with weft.Session(plan) as session:
                got = session.step(**{name: feeds[self.rank][name] for name in names})
                got = got if len(graph.outputs) > 1 else {graph.outputs[0]: got}
                self.assertEqual(set(got), set(wanted))
                for name, value in got.items():
                    np.testing.assert_array_equal(value, wanted[name][self.rank])
                    np.testing.assert_array_equal(session.outputs[name], value)

    def test_types(self):
        """All that a graph may have; outputs are of their own type, whatever the first input is."""
        types = [np.dtype(t) for t in ("i8", "f4", "f8", "f2", "i4", "u1", "i2", "u4", "u8", "i1", "u2")]
        floats = {"float32": "FLOAT", "float64": "DOUBLE"}
        inputs = {f"x{i}": (onnx.TensorProto.DataType.Value(floats.get(t.name, t.name.upper())), (3,))
                  for i, t in enumerate(types)}
        nodes = [node for i in range(len(types)) for node in all_reduce(f"x{i}", f"y{i}")]
        plan = weft.compile(infer.model(nodes, inputs, [f"y{i}" for i in range(len(types))]), infer=True)
        with weft.Session(plan) as session:
            x = [np.array([4, 0, 2], t) for t in types]
            for got in (session.step(*x), session.step(**{f"x{i}": value for i, value in enumerate(x)})):
                for i, t in enumerate(types):
                    self.assertEqual((got[f"y{i}"].dtype, session.inputs[f"x{i}"].dtype), (t, t))
                    np.testing.assert_array_equal(got[f"y{i}"], x[i] * self.size)
            if torch:
                tensors = [torch.from_numpy(value) if hasattr(torch, value.dtype.name) else value for value in x]
                with self.assertRaisesRegex(TypeError, "torch has no dtype for an output of type uint32"):
                    session.step(*tensors)

    def test_tensors(self):
        """A tensor of integers goes in, an output of another type comes out as a tensor."""
        if torch is None:
            self.skipTest("python3-torch is missing")
        inputs = {"ids": (onnx.TensorProto.INT64, (3,)), "x": (onnx.TensorProto.FLOAT, (2, 2))}
        proto = infer.model([*all_reduce("ids", "a"), *all_reduce("x", "b")], inputs, ["a", "b"])
        with weft.Session(weft.compile(proto, infer=True)) as session:
            x = torch.ones(2, 2)
            numbers = [4, 0, -2]
            for ids in (torch.tensor(numbers), torch.tensor(numbers, dtype=torch.int32), np.array(numbers, "i1")):
                got = session.step(ids, x)
                self.assertEqual({k: type(v) for k, v in got.items()}, {"a": type(ids), "b": type(ids)})
                self.assertEqual((got["a"].tolist(), got["b"].tolist()),
                                 ([4 * self.size, 0, -2 * self.size], (x * self.size).tolist()))
                self.assertEqual([str(got[n].dtype).split(".")[-1] for n in "ab"], ["int64", "float32"])
            for wrong in (np.zeros(3, np.uint64), np.zeros(3, np.float32)):
                with self.assertRaisesRegex(TypeError, f"input 'ids': dtype mismatch: expected int64, got {wrong.dtype}"):
                    session.step(wrong, x)

    def test_split_batch(self):
        weights = np.random.default_rng(SEED).standard_normal((6, 3)).astype(np.float32)
        proto = infer.model([infer.node("MatMul", ["x", "w"], "y")], {"x": ["batch", 6]}, ["y"], {"w": weights})
        plan = weft.compile(proto, infer=True, split_batch=True, batch=8)
        self.assertTrue(plan.info["split_batch"])
        x = self.random().standard_normal((8, 6)).astype(np.float32)
        with weft.Session(plan) as session:
            y = session.step(x) if self.rank == 0 else session.step()
            self.assertEqual(y.shape, (8, 3))
            if self.rank == 0:
                np.testing.assert_allclose(y, x @ weights, rtol=1e-5, atol=1e-6)


class Wrong(Case):
    def test_inputs(self):
        """Said before anything is sent: the next step is as if nothing had been."""
        x, y = self.batches(1)[0][self.rank]
        with weft.Session(self.compile()) as session:
            wrong = (
                (TypeError, "step\\(\\) is missing input 'label'", (x,), {}),
                (TypeError, "step\\(\\) is missing input 'image'", (), {"label": y}),
                (TypeError, "step\\(\\) takes 2 inputs but 3 were given", (x, y, y), {}),
                (TypeError, "step\\(\\) got input 'image' twice", (x, y), {"image": x}),
                (TypeError, "'labels': the plan has inputs \\(image, label\\) and scalars \\(lr\\)", (x,),
                 {"labels": y}),
                (TypeError, "input 'image': dtype mismatch: expected float32, got float64", (x.astype("f8"), y), {}),
                (TypeError, "input 'image': dtype mismatch: expected float32, got uint8", (x.astype("u1"), y), {}),
                (TypeError, "input 'label': dtype mismatch: expected int64, got float32", (x, y.astype("f4")), {}),
                (TypeError, "input 'label': dtype mismatch: expected int64, got uint64", (x, y.astype("u8")), {}),
                (ValueError, r"input 'image': shape mismatch: expected \(4, 1, 28, 28\), got \(3, 1, 28, 28\)", (x[:3], y), {}),
                (ValueError, r"input 'image': shape mismatch: expected \(4, 1, 28, 28\), got \(4, 784\)", (x.reshape(4, -1), y), {}),
                (ValueError, r"input 'label': shape mismatch: expected \(4,\), got \(4, 1\)", (x, y[:, None]), {}),
                (ValueError, "image is a numpy array whose memory is not contiguous", (x[:, :, :, ::-1], y), {}),
                (TypeError, "image must have memory", (x.tolist(), y), {}),
                (TypeError, "scalar 'lr' must be a number", (x, y), {"lr": "fast"}),
                (ValueError, "scalar 'lr': an integer is out of range of float", (x, y), {"lr": 10**400}),
            )
            for error, text, args, keywords in wrong:
                with self.raises_within(error, text):
                    session.step(*args, **keywords)
            first = session.step(x, y)
        with weft.Session(self.compile()) as session:
            self.assertEqual(session.step(x, y), first)

    def test_arguments(self):
        plan = self.compile()
        for args, keywords, text in (((), {}, "plan"), ((3,), {}, "plan must be a weft.Plan or a path"),
                                     ((plan, 3), {}, "context must be"), ((plan,), {"nothing": 3}, "nothing")):
            with self.assertRaisesRegex(TypeError, text):
                weft.Session(*args, **keywords)
        with self.raises_within(weft.WeftNotFoundError, "nowhere.weft"):
            weft.Session("nowhere.weft")
        with self.raises_within(weft.WeftArgumentError, "3"):
            weft.Session(self.compile(world=3))

    @ranks.fresh
    def test_plans_differ(self):
        plan = self.compile(lr=0.1, bucket="one" if self.rank == 0 else "none")
        with self.raises_within(weft.WeftMismatchError, "digest|differ|plan"):
            weft.Session(plan)

    @ranks.fresh
    def test_a_label_that_there_is_not(self):
        """One rank's labels are wrong: it hears which, the others hear of it."""
        x, y = self.batches(1)[0][self.rank]
        session = weft.Session(self.compile())
        session.step(x, y)
        if self.rank == 1:
            y[2] = 10
        with self.raises_within(weft.WeftError, "label 10 at position 2" if self.rank == 1 else ""):
            session.step(x, y)
        with self.raises_within(weft.WeftError):
            session.step(x, y)

    @ranks.fresh(dies=[1])
    def test_a_rank_dies(self):
        x, y = self.batches(1)[0][self.rank]
        session = weft.Session(self.compile())
        session.step(x, y)
        self.meet()
        if self.rank == 1:
            self.die()
        with self.raises_within(weft.WeftPeerDiedError, seconds=5):
            for _ in range(1000):
                session.step(x, y)

    @ranks.fresh
    def test_an_exception_ends_the_others(self):
        """A rank whose own input is wrong leaves; the one that waits for its step is told."""
        x, y = self.batches(1)[0][self.rank]
        session = weft.Session(self.compile())
        session.step(x, y)
        if self.rank == 1:
            with self.assertRaises(ValueError):
                session.step(x[:1], y)
            weft.finalize()
        else:
            with self.raises_within(weft.WeftError, seconds=5):
                session.step(x, y)


class Lifetime(Case):
    def test_closed(self):
        x, y = self.batches(1)[0][self.rank]
        session = weft.Session(self.compile())
        params = session.params
        session.close()
        session.close()
        for call in (lambda: session.step(x, y), lambda: session.eval(x), session.flush, session.stats,
                     session.param_digest, lambda: session.save("m"), lambda: params["fc1.bias"], lambda: list(params),
                     lambda: len(params), lambda: session.inputs["image"], lambda: session.micro_count,
                     lambda: session.feed(x)):
            with self.raises_within(weft.WeftStateError, "closed"):
                call()
        self.assertEqual(session.plan.world, self.size)

    def test_arrays_keep_memory(self):
        """Of a closed session, too; the other rank's session goes at once."""
        x, y = self.batches(1)[0][self.rank]
        with weft.Session(self.compile()) as session:
            array = session.inputs["image"]
            view = memoryview(session.inputs["label"])
        del session
        gc.collect()
        array[:] = x
        view[2] = 7
        np.testing.assert_array_equal(array, x)
        self.assertEqual((array.shape, array.dtype, view[2]), ((BATCH, 1, 28, 28), np.float32, 7))
        del array, view
        with weft.Session(self.compile()) as session:  # the memory is there for the next one
            session.step(x, y)

    @ranks.fresh
    def test_arrays_do_not_keep_a_rank_in_the_world(self):
        """Memory of an input stays when its session's world is left, and nobody waits for this rank in vain."""
        x, _ = self.batches(1)[0][self.rank]
        session, closed = weft.Session(self.compile()), weft.Session(self.compile())
        arrays = [session.inputs["image"], closed.inputs["image"]]
        closed.close()
        for array in arrays:
            array[:] = x
        weft.barrier()
        if self.rank == 0:
            weft.finalize()
        else:
            with self.raises_within(weft.WeftPeerDiedError, "rank 0 left the world"):
                weft.barrier()
            weft.finalize()
        self.meet()
        for array in arrays:
            np.testing.assert_array_equal(array, x)
            array += 1
        del session, closed
        gc.collect()
        np.testing.assert_array_equal(arrays[1], x + 1)

    @unittest.skipUnless(PLUGIN.exists(), f"{PLUGIN} is missing")
    def test_arrays_keep_kernels(self):
        """An array that goes last ends the session, by kernels of the plan's plugin."""
        plan = weft.compile(SWISH, batch=BATCH, kernels=PLUGIN)
        session = weft.Session(plan)
        array = next(iter(session.inputs.values()))
        session.close()
        del session, plan
        gc.collect()
        array[:] = 0
        del array
        gc.collect()
        self.assert_same("alive")

    def test_copies(self):
        session = weft.Session(self.compile())
        for function in (copy.copy, copy.deepcopy, pickle.dumps):
            with self.assertRaisesRegex(TypeError, "cannot pickle 'weft.Session' object"):
                function(session)

    def test_plan_goes_first(self):
        x, y = self.batches(1)[0][self.rank]
        plan = self.compile()
        plan.save(self.dir / f"p{self.rank}.weft")
        session = weft.Session(plan)
        del plan
        session.step(x, y)
        del session
        session = weft.Session(self.dir / f"p{self.rank}.weft")
        session.step(x, y)
        params = session.params
        del session  # what came from it keeps it
        self.assertEqual(params["fc1.bias"].shape, (32,))

    @ranks.fresh
    def test_finalize(self):
        x, y = self.batches(1)[0][self.rank]
        session = weft.Session(self.compile())
        array = session.inputs["image"]
        session.step(x, y)
        weft.finalize()
        with self.assertRaises(weft.WeftStateError):
            session.step(x, y)
        array[:] = 3
        self.assertEqual(array.sum(), array.size * 3)

    def test_forked_children(self):
        """They are told; the session goes on in their parent."""
        x, y = self.batches(1)[0][self.rank]
        with weft.Session(self.compile()) as session:
            loss = session.step(x, y, lr=0)
            pid = os.fork()
            if pid == 0:
                status = 0
                for call in (lambda: session.step(x, y), lambda: session.feed(x), lambda: session.params["fc1.bias"],
                             lambda: session.inputs["image"], lambda: session.save("m.onnx"), session.stats):
                    try:
                        call()
                        status += 1
                    except weft.WeftStateError as error:
                        status += "forked" not in str(error)
                session.close()
                os._exit(status)
            self.assertEqual(os.waitpid(pid, 0)[1], 0)
            self.assertEqual(session.step(x, y), loss)

    def test_another_context(self):
        """A world of one beside the world of all."""
        x, y = self.batches(1)[0][self.rank]
        with weft.Context(0, 1) as alone, weft.Session(self.compile(world=1), alone) as session:
            if self.rank == 0:
                session.step(x, y)
            alone.close()
            with self.assertRaises(weft.WeftStateError):
                session.step(x, y)
            with self.assertRaises(weft.WeftStateError):
                weft.Session(session.plan, alone)
        with weft.Session(self.compile(), weft.new_group(range(self.size))) as session:  # the context of a group
            session.step(x, y)

    def test_two_sessions(self):
        x, y = self.batches(1)[0][self.rank]
        plan = self.compile()
        first, second = weft.Session(plan), weft.Session(plan)
        for _ in range(3):
            self.assertEqual(first.step(x, y), second.step(x, y))
        self.assertEqual(first.param_digest(), second.param_digest())

    def test_threads(self):
        """Calls of several threads run one after another; what only reads, and evaluates, needs no other rank."""
        x, y = self.batches(1)[0][self.rank]
        with weft.Session(self.compile()) as session:
            wanted, wrong = session.eval(x), []

            def work():
                try:
                    for _ in range(20):
                        np.testing.assert_array_equal(session.eval(x), wanted)
                        session.params["fc1.weight"]
                except BaseException as error:
                    wrong.append(error)

            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(wrong, [])
            session.step(x, y)

    def test_threads_of_their_own(self):
        """Two sessions and a group at once, each on a thread."""
        x, y = self.batches(1)[0][self.rank]
        plan = self.compile()
        first, second = weft.Session(plan), weft.Session(plan)
        group, ones, wrong = weft.new_group(range(self.size)), np.ones(1000, np.float32), []

        def reduce():
            np.testing.assert_array_equal(weft.all_reduce(ones, group=group), ones * self.size)

        def repeat(call):
            try:
                for _ in range(50):
                    call()
            except BaseException as error:
                wrong.append(error)

        calls = (lambda: first.step(x, y), lambda: second.step(x, y), reduce)
        threads = [threading.Thread(target=repeat, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        self.assertEqual(first.param_digest(), second.param_digest())

    def test_references(self):
        """Calls, right and wrong, give back all that they take."""
        x, y = self.batches(1)[0][self.rank]
        with weft.Session(self.compile()) as session:
            def calls():
                session.step(x, y)
                session.step(image=x, label=y, lr=0.1)
                session.eval(x)
                session.feed(label=y)
                for tensors in (session.params, session.inputs, session.outputs, session.scalars, session.gradients):
                    dict(tensors)
                for args in ((x,), (x[:1], y), (x, y, y), (x, 3)):
                    try:
                        session.step(*args)
                    except (TypeError, ValueError):
                        pass
            calls()
            objects = (x, y, session, session.plan, weft)
            before = [sys.getrefcount(o) for o in objects]
            for _ in range(10):
                calls()
            self.assertEqual([sys.getrefcount(o) for o in objects], before)


class Scripts(unittest.TestCase):
    def run_script(self, text):
        with tempfile.TemporaryDirectory(prefix="weft-test-") as folder:
            onnx.save(doors.forward(), f"{folder}/m.onnx")
            done = ranks.run_script(text, f"{folder}/m.onnx")
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_arrays_at_exit(self):
        """A program ends with arrays of inputs alive, one rank long before the other: it leaves its world."""
        self.run_script("""
import sys, numpy as np, weft
weft.init()
session = weft.Session(weft.compile(sys.argv[1], batch=4))
array = session.inputs["image"]
loss = session.step(np.zeros((4, 1, 28, 28), "f4"), np.zeros(4, "i8"))
if weft.get_rank() == 1:
    for _ in range(300):
        session.eval()
""")

    def test_ends_while_a_thread_steps(self):
        """It would wait for ever; the other rank hears which one ended."""
        self.run_script("""
import sys, threading, numpy as np, weft
weft.init()
session = weft.Session(weft.compile(sys.argv[1], batch=4))
def step():
    try:
        session.step()
    except weft.WeftError:  # printing that, at its end Python may abort: another thread has the lock of stderr
        pass
if weft.get_rank() == 1:
    threading.Thread(target=step, daemon=True).start()
    weft.send(np.ones(3), 0)
else:
    weft.recv(np.ones(3), 1)
    try:
        weft.recv(np.ones(3), 1)
    except (weft.WeftAbortedError, weft.WeftPeerDiedError) as error:  # the latter where the step had not begun
        assert "rank 1 " in str(error), error
    else:
        raise AssertionError
""")

    def test_without_numpy(self):
        """Memory goes in as memoryviews, and comes out as such."""
        self.run_script("""
import array, sys
sys.modules["numpy"] = None
import weft
weft.init()
with weft.Session(weft.compile(sys.argv[1], batch=4)) as session:
    images = memoryview(array.array("f", [0.5]) * (4 * 784)).cast("B").cast("f", (4, 1, 28, 28))
    labels = array.array("b", [1, 2, 3, 4])
    loss = session.step(images, labels)
    logits = session.eval(images)
    assert type(logits) is memoryview and logits.shape == (4, 10) and logits.format == "f", logits
    bias = session.params["fc2.bias"]
    assert type(bias) is memoryview and bias.shape == (10,)
    session.params["fc2.bias"] = array.array("f", range(10))
    assert session.params["fc2.bias"].tolist() == list(range(10))
    view = session.inputs["label"]
    assert view.tolist() == [1, 2, 3, 4] and view.format == "q"
    view[0] = 9
    assert session.step(images, labels) != loss
""")


if __name__ == "__main__":
    ranks.main()
