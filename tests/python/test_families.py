#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The model families of samples/models/families as torch exports them: gradients of torch in double precision, training,
inference as onnxruntime computes it, the same bits on 1, 2 and 4 ranks."""
import json
import pathlib
import re
import tempfile

import ranks

np = ranks.need("numpy")
import weft  # noqa: E402

try:
    import onnxruntime
except ImportError:
    onnxruntime = None
try:
    import onnx
    import onnx.numpy_helper
except ImportError:
    onnx = None

FOLDER = ranks.SOURCE / "samples" / "models" / "families"
ORACLE = json.loads((FOLDER / "torch.json").read_text(encoding="utf-8"))
FILES = {name: (family, count) for family, oracle in ORACLE.items() for name, count in oracle["files"].items()}


def tensor(described):
    """The formula of make_families.py."""
    if not isinstance(described, dict):
        return np.array(described)
    at = np.arange(np.prod(described["floats"]))
    return np.cos(at * 0.7 + at // 97).astype(np.float32).reshape(described["floats"])


def tensors(name):
    """What torch had: the inputs, then the label."""
    family, count = FILES[name]
    *inputs, label = map(tensor, ORACLE[family]["inputs"])
    return [*inputs[:count], label]


def in_half(path, half, dtype):
    """A model with all f32 tensors of its file in a half type."""
    proto = onnx.load(path)
    f32 = onnx.TensorProto.FLOAT

    def convert(tensor):
        if tensor.data_type == f32:
            x = onnx.numpy_helper.to_array(tensor).astype(np.float32)
            bits = x.astype(np.float16) if dtype == "f16" else (x.view(np.uint32) + 0x8000 >> 16).astype(np.uint16)
            tensor.CopyFrom(onnx.TensorProto(name=tensor.name, data_type=half, dims=x.shape, raw_data=bits.tobytes()))

    for tensor in proto.graph.initializer:
        convert(tensor)
    for value in [*proto.graph.input, *proto.graph.output]:
        if value.type.tensor_type.elem_type == f32:
            value.type.tensor_type.elem_type = half
    del proto.graph.value_info[:]
    for attribute in (attribute for node in proto.graph.node for attribute in node.attribute):
        if attribute.name == "to" and attribute.i == f32:
            attribute.i = half
        if attribute.name == "value":
            convert(attribute.t)
    return proto


def compile_model(name, **options):
    """dynamo writes BatchNormalization in the form for inference."""
    statistics = any(key.endswith("running_mean") for key in ORACLE[FILES[name][0]]["values"])
    return weft.compile(FOLDER / name, training_form=statistics and ".dynamo" in name, loss="loss", **options)


class Families(ranks.RankCase):
    RANKS = (1, 2, 4)

    def check_values(self, values, name, bound):
        """Norm and two products of each."""
        for key, value in values.items():
            got = np.asarray(value, np.float64).ravel()
            at = np.arange(len(got))
            norm, *products = ORACLE[FILES[name][0]]["values"][key]
            self.assertLess(abs(np.linalg.norm(got) - norm), bound, (name, key))
            for factor, product in enumerate(products, 1):
                self.assertLess(abs(got @ np.cos(factor * at) - product), bound * len(got) ** 0.5, (name, key))

    def check_gradients(self, session, name):
        """To 1e-6 of the norm of all."""
        oracle = ORACLE[FILES[name][0]]
        gradients = dict(session.gradients.items())
        self.assertEqual(len(gradients), oracle["parameters"], name)
        self.check_values(gradients, name, 1e-6 * sum(oracle["values"][key][0] ** 2 for key in gradients) ** 0.5)

    def check_inference(self, session, name, inputs):
        """The saved model, by the session, by a plan of its own and by onnxruntime."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "saved.onnx"
            session.save(path)
            with weft.Context(0, 1) as alone, weft.Session(weft.compile(path, infer=True, world=1, batch=len(inputs[0])), alone) as infer:
                logits = infer.step(*inputs)
            self.assertEqual(len(logits), len(inputs[0]), name)  # not flattened
            if any(entry["role"] == "label" for entry in session.plan.bindings):  # DLRM's loss has no node with labels
                np.testing.assert_array_equal(session.eval(*inputs), logits, name)
            if onnxruntime:
                quiet = onnxruntime.SessionOptions()
                quiet.log_severity_level = 3  # its folding has no CastLike
                peer = onnxruntime.InferenceSession(path, quiet, providers=["CPUExecutionProvider"])
                expected = peer.run(None, dict(zip([x.name for x in peer.get_inputs()], inputs)))[0]
                np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max(), err_msg=name)

    def test_torch_agrees(self):
        for name in FILES if self.rank == 0 and self.size == self.RANKS[0] else ():
            *inputs, label = tensors(name)
            plan = compile_model(name, world=1, batch=len(label), optimizer="adam", lr=0.003)
            with weft.Context(0, 1) as alone, weft.Session(plan, alone) as session:
                before = {key: value.copy() for key, value in session.params.items() if key.endswith("running_mean")}
                first = session.step(*inputs, label)
                self.assertAlmostEqual(first, ORACLE[FILES[name][0]]["loss"], delta=1e-6, msg=name)
                self.check_gradients(session, name)
                self.check_values({key: session.params[key] - (1 - ORACLE[FILES[name][0]]["momentum"]) * value
                                   for key, value in before.items()}, name, 2e-6)
                for _ in range(20):
                    last = session.step(*inputs, label)
                self.assertLess(last, first - 0.02, name)
                self.check_inference(session, name, inputs)
        if not onnxruntime:
            self.skipTest("onnxruntime is not installed to run the saved models; all other checks have passed")

    def test_bf16_is_near_f32(self):
        """Losses of 20 steps to 6 % of what was learned; gradients to 3 % of their norm, where no statistics of four
        samples amplify what is rounded. torch.autocast is as far from f32."""
        for name in FILES if self.rank == 0 and self.size == self.RANKS[0] else ():
            *inputs, label = tensors(name)
            losses, gradients = {}, []
            for precision in ("f32", "bf16"):
                plan = compile_model(name, world=1, batch=len(label), optimizer="adam", lr=0.003, precision=precision)
                with weft.Context(0, 1) as alone, weft.Session(plan, alone) as session:
                    losses[precision] = [session.step(*inputs, label)]
                    gradients.append(np.concatenate([np.ravel(value) for key, value in sorted(session.gradients.items())
                                                     if "running_" not in key]))
                    losses[precision] += [session.step(*inputs, label) for _ in range(20)]
            f32, bf16 = (np.array(losses[precision]) for precision in ("f32", "bf16"))
            self.assertLess(np.abs(f32 - bf16).max(), 0.06 * (f32[0] - f32.min()), name)
            self.assertAlmostEqual(f32[0], bf16[0], delta=0.01, msg=name)
            self.assertLess(bf16[-1], bf16[0] - 0.02, name)
            statistics = any(key.endswith("running_mean") for key in ORACLE[FILES[name][0]]["values"])
            error = np.linalg.norm(gradients[0] - gradients[1]) / np.linalg.norm(gradients[0])
            self.assertLess(error, 0.5 if statistics else 0.03, name)

    def test_models_in_half_types(self):
        """They train as those of f32, with weights of f32, and are saved with the types that they had; not in f16."""
        if not onnx:
            self.skipTest("onnx is not installed to convert models to half types")
        for name in ("gpt2.onnx", "bert.onnx") if self.rank == 0 and self.size == self.RANKS[0] else ():
            *inputs, label = tensors(name)
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / "half.onnx"
                onnx.save(in_half(FOLDER / name, onnx.TensorProto.FLOAT16, "f16"), path)
                with self.assertRaisesRegex(weft.WeftError, "is f16: small gradients vanish"):
                    weft.compile(path, world=1, batch=len(label), loss="loss")
                with self.assertRaisesRegex(weft.WeftUnsupportedError, "small gradients vanish in f16; use bf16"):
                    compile_model(name, world=1, batch=len(label), precision="f16")
                onnx.save(in_half(FOLDER / name, onnx.TensorProto.BFLOAT16, "bf16"), path)
                plan = weft.compile(path, world=1, batch=len(label), loss="loss", optimizer="adam", lr=0.003)
                with weft.Context(0, 1) as alone, weft.Session(plan, alone) as session:
                    first = session.step(*inputs, label)
                    self.assertAlmostEqual(first, ORACLE[FILES[name][0]]["loss"], delta=0.03, msg=name)
                    for _ in range(20):
                        last = session.step(*inputs, label)
                    self.assertLess(last, first - 0.02, name)
                    self.assertEqual({value.dtype for value in session.params.values()}, {np.dtype(np.float32)})
                    session.save(path)
                self.assertNotIn(onnx.TensorProto.FLOAT, {tensor.data_type for tensor in onnx.load(path).graph.initializer})
                weft.compile(path, world=1, batch=len(label), infer=True)

    def test_inference_in_half_types(self):
        """Weights are stored in the half type, and in half of the bytes."""
        image = np.cos(np.arange(4 * 28 * 28) * 0.7).astype(np.float32).reshape(4, 1, 28, 28)
        results, sizes = {}, {}
        for precision in ("f32", "bf16", "f16") if self.rank == 0 and self.size == self.RANKS[0] else ():
            plan = weft.compile(FOLDER.parent / "mlp.onnx", world=1, batch=4, infer=True, precision=precision)
            with tempfile.TemporaryDirectory() as folder, weft.Context(0, 1) as alone, weft.Session(plan, alone) as session:
                plan.save(pathlib.Path(folder) / "plan.weft")
                sizes[precision] = (pathlib.Path(folder) / "plan.weft").stat().st_size
                results[precision] = np.concatenate([np.ravel(x) for x in session.step(image, np.arange(4)).values()])
            self.assertLess(sizes[precision], sizes["f32"] * (1.01 if precision == "f32" else 0.51))
            error = np.linalg.norm(results[precision] - results["f32"]) / np.linalg.norm(results["f32"])
            self.assertLess(error, {"f32": 1e-9, "bf16": 0.02, "f16": 2e-3}[precision])

    def test_bits_do_not_depend_on_the_number_of_ranks(self):
        """Micro-batches of two samples; statistics are those of a micro-batch."""
        for name, precision in [*((name, "f32") for name in FILES), ("gpt2.onnx", "bf16"), ("resnet.onnx", "bf16")]:
            batch = [np.concatenate([x, x[::-1]]) for x in tensors(name)]
            own = slice(self.rank * 8 // self.size, (self.rank + 1) * 8 // self.size)
            digests = []
            for world, part in ((self.size, own), (1, slice(None))):
                plan = compile_model(name, world=world, batch=2, global_micro_batches=4, lr=0.02, precision=precision)
                with weft.Context(0, 1) as alone, weft.Session(plan, None if world > 1 else alone) as session:
                    for _ in range(3):
                        session.step(*(x[part] for x in batch))
                    digests.append(session.param_digest())
            self.assertEqual(digests[0], digests[1], (name, precision))

    def test_recomputation_changes_no_bit(self):
        """With the least memory that is reachable, and with all operators computed again."""
        for name, options in (("mobilenet_v2.onnx", {"accumulate": 2}), ("resnet.onnx", {"shard_parameters": True}), ("gpt2.onnx", {})):
            batch = tensors(name)
            options.update(world=self.size, batch=len(batch[-1]), lr=0.02)
            with self.assertRaisesRegex(weft.WeftUnsupportedError, "arena_limit: 1 B is too small: with recomputation the plan needs") as refused:
                compile_model(name, arena_limit=1, recompute="auto", **options)
            least = int(re.search(r"\((\d+) bytes\)", str(refused.exception))[1])
            plans = [compile_model(name, **options), compile_model(name, arena_limit=least, recompute="auto", **options),
                     compile_model(name, recompute="*", **options)]
            kept, fits, _ = (plan.explain(json=True) for plan in plans)
            self.assertLessEqual(fits["arena_bytes"], least)
            self.assertEqual(fits["kept_arena_bytes"], kept["arena_bytes"])
            self.assertLess(least, 0.95 * kept["arena_bytes"])
            self.assertEqual(kept["recomputed"], [])
            self.assertGreater(len(fits["recomputed"]), 2)
            self.assertIn("recomputed in the backward pass: ", plans[1].explain())
            digests = []
            for plan in plans:
                with weft.Session(plan) as session:
                    for step in range(2 * options.get("accumulate", 1)):
                        (session.micro_step if (step + 1) % options.get("accumulate", 1) else session.step)(*batch)
                    digests.append(session.param_digest())
            self.assertEqual(digests, digests[:1] * 3, name)


if __name__ == "__main__":
    ranks.main()
