#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Micro-batches, one tree for any number of ranks, gradients that travel as bf16, clipping: by the command."""
import sys

import support
from support import Case, MODELS, NEED_DATA, read_idx

try:
    import cli_oracle as oracle
    from cli_checkpoint import read_safetensors
    from cli_dropout import write_model
    import numpy as np
except ImportError:
    print("skipped: python3-numpy or python3-onnx is missing")
    sys.exit(77)

WAYS = ((), ("--shard-optimizer",), ("--decouple", "--bucket", "auto:20K"), ("--bucket", "bytes:100K"))


@NEED_DATA
class Accumulate(Case):
    def plan_of(self, model, world, batch, *extra):
        plan = self.dir / "plan.weft"
        self.weft("compile", model, "-o", plan, "--world", world, "--batch", batch, *extra)
        return plan

    def digests(self, model, shards, worlds, *extra, batch=4, steps=3):
        """Digest and last loss by number of ranks, each trained in another way."""
        found = {}
        for i, world in enumerate(worlds):
            plan = self.plan_of(model, world, batch, "--global-micro-batches", shards, *WAYS[i % len(WAYS)], *extra)
            report = self.train(plan, world=world, steps=steps)
            found[world] = (report["param_digest"], round(report["loss_last"], 12))
        return found

    def test_one_digest_for_any_number_of_ranks(self):
        rows = (("mlp.onnx", (1, 2, 4, 8), ("--optimizer", "adam")), ("lenet.onnx", (1, 4), ()),
                ("mlp.onnx", (2, 8), ("--clip", "0.3")))
        for model, worlds, extra in rows[2:] if support.SANITIZED else rows:
            found = self.digests(MODELS / model, 8, worlds, *extra)
            self.assertEqual(len(set(found.values())), 1, (model, extra, found))

    def test_dropout_draws_by_micro_batch(self):
        model = self.dir / "dropout.onnx"
        write_model(model, 0.4)
        found = self.digests(model, 4, (1, 2, 4))
        self.assertEqual(len(set(found.values())), 1, found)

    def test_a_tree_that_is_no_power_of_two(self):
        found = self.digests(MODELS / "mlp.onnx", 6, (1, 3, 6), batch=2, steps=2)
        self.assertEqual(len(set(found.values())), 1, found)
        for world in (2, 4):
            self.assertIn(f"so that each rank sums one subtree: 6, world_size {world}", self.weft(
                "compile", MODELS / "mlp.onnx", "-o", self.dir / "no.weft", "--world", world, "--batch", 2, "--global-micro-batches", 6,
                code=2).stderr)

    def test_micro_batches_are_one_batch(self):
        """Two ranks with four micro-batches of eight train as one rank with a batch of 64; images are counted so, too."""
        parts = self.train(self.plan_of(MODELS / "mlp.onnx", 2, 8, "--accumulate", 4), steps=6)
        whole = self.train(self.plan_of(MODELS / "mlp.onnx", 1, 64), world=1, steps=6)
        self.assertAlmostEqual(parts["loss_last"], whole["loss_last"], delta=1e-4)
        self.assertAlmostEqual(parts["images_per_s"] * parts["step_ms_mean"], 64e3, delta=1)

    def test_half_the_bytes_travel(self):
        sizes = {}
        for wire in ("f32", "bf16"):
            plan = self.plan_of(MODELS / "mlp.onnx", 2, 8, "--wire", wire, "--bucket", "one")
            explained = self.weft_json("explain", plan)
            sizes[wire] = sum(bucket["bytes"] for bucket in explained["buckets"])
            self.assertEqual({bucket["dtype"] for bucket in explained["buckets"]}, {wire})
        self.assertEqual(sizes["f32"], 2 * sizes["bf16"])

    def test_bf16_is_close_and_the_same_in_every_way(self):
        reports = [self.train(self.plan_of(MODELS / "mlp.onnx", 2, 8, "--wire", "bf16", "--accumulate", 2, *way), steps=5)
                   for way in WAYS[1:]]
        self.assertEqual(len({report["param_digest"] for report in reports}), 1)
        plain = self.train(self.plan_of(MODELS / "mlp.onnx", 2, 8, "--accumulate", 2), steps=5)
        self.assertNotEqual(plain["param_digest"], reports[0]["param_digest"])
        self.assertAlmostEqual(plain["loss_last"], reports[0]["loss_last"], delta=2e-2)

    def test_running_statistics_travel_whole(self):
        """Those after one step are the same bits as without --wire; all gradients are rounded."""
        random = np.random.default_rng(2)
        np.savez(self.dir / "images.npz", input=random.standard_normal((32, 3, 16, 16)).astype(np.float32), label=np.arange(32) % 5)
        model = MODELS / "families" / "resnet.onnx"
        for extra in ((), ("--accumulate", 2, "--clip", 1), ("--bucket", "none"), ("--shard-optimizer",),
                      ("--shard-parameters",), ("--decouple", "--accumulate", 2))[:2 if support.SANITIZED else 6]:
            trained, losses = {}, {}
            for wire in ("f32", "bf16"):
                plan = self.plan_of(model, 2, 4, "--wire", wire, *extra)
                self.weft("verify", plan)
                report = self.weft_json("run", plan, "--data", self.dir / "images.npz", "--no-eval", "--steps", 1, "--checkpoint",
                                        "c.safetensors", env={"WEFT_CHECK": "results"})
                trained[wire], losses[wire] = read_safetensors(self.dir / "c.safetensors")[0], report["loss_last"]
            self.assertEqual({bucket["dtype"] for bucket in self.weft_json("explain", plan)["buckets"]}, {"f32", "bf16"})
            self.assertEqual(losses["f32"], losses["bf16"])
            differ = 0
            for name, value in trained["f32"].items():
                if "running_" in name:
                    np.testing.assert_array_equal(trained["bf16"][name], value, err_msg=f"{name} {extra}")
                    self.assertGreater(np.abs(value).max(), 0)
                else:
                    np.testing.assert_allclose(trained["bf16"][name], value, atol=2e-2, err_msg=name)
                    differ += not np.array_equal(trained["bf16"][name], value)
            self.assertGreater(differ, 20)

    def test_clipping_is_that_of_others(self):
        """Against numpy in double precision, with the factor of torch.nn.utils.clip_grad_norm_, max / (norm + 1e-6)."""
        limit, lr, steps = 0.4, 0.1, 5
        images = read_idx("train-images-idx3-ubyte.gz").reshape(-1, 28, 28) / np.float32(255)
        labels = read_idx("train-labels-idx1-ubyte.gz").astype(np.int64)
        order = oracle.shuffled(3, 0)
        weights = {name: value.astype(np.float64) for name, value in oracle.weights_of(MODELS / "mlp.onnx").items()}
        update, clipped = oracle.Update("sgd"), 0
        for step in range(steps):
            samples = order[32 * step:32 * step + 32]
            loss, gradients = oracle.mlp(weights, images[samples], labels[samples])
            norm = np.sqrt(sum((g * g).sum() for g in gradients.values()))
            clipped += norm > limit
            update(weights, {n: g * min(1.0, limit / (norm + 1e-6)) for n, g in gradients.items()}, lr)
        self.assertGreater(clipped, 0)
        saved = self.dir / "trained.onnx"
        plan = self.plan_of(MODELS / "mlp.onnx", 2, 8, "--accumulate", 2, "--clip", limit, "--optimizer", "sgd", "--lr", lr)
        report = self.train(plan, "--seed", 3, "--save", saved, steps=steps)
        self.assertAlmostEqual(report["loss_last"], loss, delta=1e-5)
        for name, value in oracle.weights_of(saved).items():
            np.testing.assert_allclose(value, weights[name], atol=2e-6)

    def test_saved_plans_are_proved(self):
        for extra in (("--global-micro-batches", 8), ("--accumulate", 3, "--wire", "bf16", "--clip", 1, "--decouple"),
                      ("--accumulate", 5, "--shard-optimizer", "--clip", 2, "--bucket", "auto:3K")):
            self.weft("verify", self.plan_of(MODELS / "lenet.onnx", 2, 4, *extra))


if __name__ == "__main__":
    support.main()
