#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""BatchNormalization in training form: gradients and running statistics against numpy, on 1, 2 and 4 ranks."""
import sys

import ranks

np = ranks.need("numpy")
onnx = ranks.need("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

sys.path.insert(0, str(ranks.SOURCE / "tests" / "tools"))
import weft  # noqa: E402

MICRO, STEPS, LR, EPSILON, MOMENTUM = 4, 3, 0.125, 1e-3, 0.75
CHANNELS, CLASSES, PIXELS = 3, 5, (3, 4)
TRAINED, RUNNING = ("scale", "shift", "weight", "bias"), ("running_mean", "running_var")


def start():
    rng = np.random.default_rng(5)

    def draw(*shape):
        return (rng.random(shape) - 0.5).astype(np.float32)

    return {"scale": 1 + draw(CHANNELS), "shift": draw(CHANNELS), "running_mean": draw(CHANNELS),
            "running_var": 1 + draw(CHANNELS), "weight": draw(CLASSES, CHANNELS * PIXELS[0] * PIXELS[1]),
            "bias": draw(CLASSES)}


def model(opset=17):
    """BatchNormalization of the images, Tanh, Gemm; before opset 14 the outputs state that it trains."""
    new = opset >= 14
    outputs = ["n", "new_mean", "new_var"] + ([] if new else ["saved_mean", "saved_var"])
    nodes = [helper.make_node("BatchNormalization", ["image", "scale", "shift", *RUNNING], outputs, name="bn", epsilon=EPSILON,
                              momentum=MOMENTUM, **({"training_mode": 1} if new else {})),
             helper.make_node("Tanh", ["n"], ["t"], name="tanh"), helper.make_node("Flatten", ["t"], ["f"], name="flatten"),
             helper.make_node("Gemm", ["f", "weight", "bias"], ["logits"], name="fc", transB=1),
             helper.make_node("SoftmaxCrossEntropyLoss", ["logits", "label"], ["loss"], name="ce")]
    graph = helper.make_graph(
        nodes, "norm", [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", CHANNELS, *PIXELS]),
                        helper.make_tensor_value_info("label", TensorProto.INT64, ["batch"])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, []),
         helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])],
        [numpy_helper.from_array(value, name) for name, value in start().items()])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = 8
    return made


def logits(w, x, mean, var):
    """Also what the backward pass needs."""
    inverse = 1 / np.sqrt(var + EPSILON)
    normal = (x - mean[:, None, None]) * inverse[:, None, None]
    t = np.tanh(w["scale"][:, None, None] * normal + w["shift"][:, None, None])
    return t.reshape(len(x), -1) @ w["weight"].T + w["bias"], normal, inverse, t


def gradients(w, x, y):
    """Loss, gradients, and the statistics of the batch in the place of the gradients of the running ones."""
    axes, count = (0, 2, 3), x.size // CHANNELS
    mean, var = x.mean(axes), x.var(axes)
    scores, normal, inverse, t = logits(w, x, mean, var)
    log_p = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    d = np.exp(log_p)
    d[np.arange(len(y)), y] -= 1
    d /= len(y)
    dn = (d @ w["weight"]).reshape(t.shape) * (1 - t * t)
    out = {"weight": d.T @ t.reshape(len(x), -1), "bias": d.sum(0), "scale": (dn * normal).sum(axes), "shift": dn.sum(axes),
           "running_mean": mean, "running_var": var}
    return -log_p[np.arange(len(y)), y].mean(), out


class BatchNorm(ranks.RankCase):
    RANKS = (2,) if ranks.SANITIZED else (1, 2, 4)

    def compile(self, opset=17, **arguments):
        return weft.compile(model(opset), **{"batch": MICRO, "optimizer": "sgd", "lr": LR, **arguments})

    def batches(self, parts):
        """[step][part] -> images, labels; the same on all ranks, and whatever their number."""
        rng = np.random.default_rng(9)
        return [[(rng.standard_normal((MICRO, CHANNELS, *PIXELS)).astype(np.float32) * 2 + 1, rng.integers(0, CLASSES, MICRO))
                 for _ in range(parts)] for _ in range(STEPS)]

    def expected(self, batches):
        """After all steps; the statistics of a step are the averages of those of its micro-batches."""
        w = {name: value.astype(np.float64) for name, value in start().items()}
        for step in batches:
            parts = [gradients(w, x.astype(np.float64), y)[1] for x, y in step]
            for name in w:
                mean = sum(part[name] for part in parts) / len(parts)
                w[name] = MOMENTUM * w[name] + (1 - MOMENTUM) * mean if name in RUNNING else w[name] - LR * mean
        return w

    def train(self, session, batches, steps=slice(None)):
        """A rank has equal shares of the micro-batches of a step, in their order."""
        each = len(batches[0]) // self.size
        for step in batches[steps]:
            own = step[self.rank * each:(self.rank + 1) * each]
            loss = session.step(np.concatenate([x for x, _ in own]), np.concatenate([y for _, y in own]))
        return loss

    def assert_near(self, session, expected):
        self.assertEqual(set(session.params), set(expected))
        for name, value in expected.items():
            np.testing.assert_allclose(session.params[name], value, atol=2e-6, err_msg=name)

    def test_numpy_agrees(self):
        batches = self.batches(self.size)
        for opset in (17, 13):
            with weft.Session(self.compile(opset)) as session:
                self.train(session, batches, slice(0, 1))
                parts = [gradients({n: v.astype(np.float64) for n, v in start().items()}, x.astype(np.float64), y)[1]
                         for x, y in batches[0]]
                for name, got in session.gradients.items():
                    np.testing.assert_allclose(got, sum(p[name] for p in parts) / self.size, atol=2e-6, err_msg=name)
                self.train(session, batches, slice(1, None))
                self.assert_near(session, self.expected(batches))

    def test_evaluation_reads_running_statistics(self):
        batches = self.batches(self.size)
        x = batches[0][0][0]
        with weft.Session(self.compile()) as session:
            for _ in range(2):
                w = {name: np.asarray(value, np.float64) for name, value in session.params.items()}
                want = logits(w, x.astype(np.float64), w["running_mean"], w["running_var"])[0]
                np.testing.assert_allclose(session.eval(x), want, atol=1e-5)
                self.train(session, batches)

    def test_bits_do_not_depend_on_the_number_of_ranks(self):
        """Statistics are those of a micro-batch, whichever rank computes it."""
        batches, digests = self.batches(4), set()
        ways = (dict(), dict(bucket="none"), dict(bucket="bytes:64", shard_optimizer=True), dict(shard_parameters=True),
                dict(decouple=True))
        for arguments in ways:
            with weft.Session(self.compile(global_micro_batches=4, **arguments)) as session:
                self.train(session, batches)
                session.flush()
                self.assert_near(session, self.expected(batches))
                digests.add(session.param_digest())
        self.assertEqual(len(digests), 1)
        if self.size == 1:
            return
        with weft.Context(0, 1) as alone, weft.Session(self.compile(global_micro_batches=4, world=1), alone) as session:
            for step in batches:
                session.step(np.concatenate([x for x, _ in step]), np.concatenate([y for _, y in step]))
            self.assertEqual(digests, {session.param_digest()})

    def test_statistics_are_no_gradients(self):
        """Neither clipped nor decayed nor sent in fewer bits; the learning rate does not scale them."""
        batches = self.batches(self.size)
        expected = {name: value for name, value in self.expected(batches).items() if name in RUNNING}
        for arguments in (dict(clip=1e-3, weight_decay=0.5, optimizer="momentum"), dict(optimizer="adam", lr=1e-9),
                          dict(wire="bf16")):
            with weft.Session(self.compile(**arguments)) as session:
                self.train(session, batches)
                for name, value in expected.items():
                    np.testing.assert_allclose(session.params[name], value, atol=2e-6, err_msg=name)
                self.assertFalse([name for name in session.state if "running" in name])

    def test_synchronized(self):
        """Statistics of all ranks' batches as one: what one rank computes of the whole batch."""
        batches = self.batches(self.size)
        whole = [[(np.concatenate([x for x, _ in step]), np.concatenate([y for _, y in step]))] for step in batches]
        for arguments in (dict(), dict(shard_optimizer=True), dict(bucket="none", in_flight=1)):
            with weft.Session(self.compile(sync_batchnorm=True, **arguments)) as session:
                self.train(session, batches)
                self.assert_near(session, self.expected(whole))
                self.assertEqual(len(set(self.exchange(session.param_digest()))), 1)
                w = {name: np.asarray(value, np.float64) for name, value in session.params.items()}
                x = batches[0][0][0]
                want = logits(w, x.astype(np.float64), w["running_mean"], w["running_var"])[0]
                np.testing.assert_allclose(session.eval(x), want, atol=1e-5)
        pairs = self.batches(2 * self.size)  # micro-batch k of all ranks as one
        with weft.Session(self.compile(sync_batchnorm=True, accumulate=2)) as session:
            self.train(session, pairs)
            whole = [[tuple(np.concatenate(part) for part in zip(*step[k::2])) for k in range(2)] for step in pairs]
            self.assert_near(session, self.expected(whole))

    def test_what_is_refused(self):
        """Running statistics that are shared, read in the step, or of which there is one."""
        def share(graph):
            again = onnx.NodeProto()
            again.CopyFrom(graph.node[0])
            again.name, again.input[0] = "again", "n"
            again.output[:] = ["m", "newer_mean", "newer_var"]
            graph.node[1].input[0] = "m"
            graph.node.insert(1, again)

        def read(graph):
            graph.node.insert(1, helper.make_node("ReduceSum", ["new_mean"], ["sum"]))
            graph.node.insert(2, helper.make_node("Add", ["n", "sum"], ["m"]))
            graph.node[3].input[0] = "m"

        def omit(graph):
            graph.node[0].output[1] = ""

        for change, text in (share, "that two nodes share"), (read, "that other nodes read"), (omit, "one of two running"):
            changed = model()
            change(changed.graph)
            with self.assertRaisesRegex(weft.WeftUnsupportedError, text):
                weft.compile(changed, batch=MICRO, world=self.size)

    def test_in_a_function(self):
        """As exporters write it: saved models are in evaluation form there, too."""
        whole, inner = model(), model()
        node = inner.graph.node[0]
        inputs, outputs = list(node.input), list(node.output)
        inner.functions.append(helper.make_function("local", "Norm", inputs, outputs, [whole.graph.node[0]],
                                                    [helper.make_opsetid("", 17)]))
        inner.graph.node.insert(0, helper.make_node("Norm", inputs, outputs, name="call", domain="local"))
        inner.graph.node.remove(inner.graph.node[1])
        inner.opset_import.append(helper.make_opsetid("local", 1))
        batches, found = self.batches(self.size), []
        for made in (whole, inner):
            with weft.Session(weft.compile(made, batch=MICRO, optimizer="sgd", lr=LR)) as session:
                self.train(session, batches)
                self.assert_near(session, self.expected(batches))
                path = self.dir / f"{len(found)}.onnx"
                session.save(path)
                found.append((session.param_digest(), session.eval(batches[0][0][0])))
                self.meet()
            with weft.Session(weft.compile(path, infer=True, batch=MICRO)) as session:
                np.testing.assert_array_equal(session.step(batches[0][0][0]), found[-1][1])
        self.assertEqual(found[0][0], found[1][0])
        np.testing.assert_array_equal(found[0][1], found[1][1])

    def test_saved_and_continued(self):
        batches = self.batches(self.size)
        plan = self.compile(optimizer="momentum")
        with weft.Session(plan) as session:
            self.train(session, batches, slice(0, 2))
            session.save_checkpoint(self.dir / "c.safetensors")
            session.save(self.dir / "m.onnx")
            values = {name: np.array(value) for name, value in session.params.items()}
            evaluated = session.eval(batches[0][0][0])
            self.train(session, batches, slice(2, 3))
            digest = session.param_digest()
        with weft.Session(plan) as session:
            session.load_checkpoint(self.dir / "c.safetensors")
            self.train(session, batches, slice(2, 3))
            self.assertEqual(session.param_digest(), digest)
        saved = onnx.load(self.dir / "m.onnx")
        for initializer in saved.graph.initializer:
            np.testing.assert_array_equal(numpy_helper.to_array(initializer), values[initializer.name])
        self.assertTrue(set(RUNNING) <= {initializer.name for initializer in saved.graph.initializer})
        with weft.Session(weft.compile(self.dir / "m.onnx", infer=True, batch=MICRO)) as session:
            np.testing.assert_array_equal(session.step(batches[0][0][0]), evaluated)


if __name__ == "__main__":
    ranks.main()
