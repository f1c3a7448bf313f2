#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sharded and decoupled updates, and sharded parameters, from the command line: the bits of whole ones, with less
memory."""
import unittest

from support import MODELS, NEED_DATA, SANITIZED, Case, main

MODES = ([], ["--shard-optimizer"], ["--decouple"], ["--shard-parameters"])


class Shards(Case):
    def plans(self, *args, **kwargs):
        return [self.compile(kwargs.get("model", "mlp.onnx"), f"plan{i}.weft", kwargs.get("world", 2), 8, *args, *mode)
                for i, mode in enumerate(MODES)]

    def digests(self, *args, world=2, steps=3, **kwargs):
        return [self.train(plan, world=world, steps=steps)["param_digest"]
                for plan in self.plans(*args, world=world, **kwargs)]

    def assert_equal_digests(self, *args, **kwargs):
        digests = self.digests(*args, **kwargs)
        self.assertEqual(len(set(digests)), 1, f"{args} {kwargs}: {digests}")
        return digests[0]

    @NEED_DATA
    def test_same_bits_for_all_optimizers_and_policies(self):
        rows = (2, "sgd", "none"), (3, "momentum", "bytes:100K"), (4, "adam", "index:1,4"), (2, "adamw", "auto")
        for world, optimizer, policy in rows[1:2] if SANITIZED else rows:
            self.assert_equal_digests("--optimizer", optimizer, "--weight-decay", "0.01", "--bucket", policy,
                                      world=world)

    @NEED_DATA
    def test_parameters_without_decay_have_buckets_of_their_own(self):
        options = ("--weight-decay", "0.1", "--no-decay", "1d", "--lr-schedule", "cosine", "--warmup-steps", "1")
        rows = (("auto", "adamw"), ("percent:60,40", "momentum"), ("none", "adam"))
        for policy, optimizer in rows[:1] if SANITIZED else rows:
            self.assert_equal_digests(*options, "--optimizer", optimizer, "--bucket", policy)
        for policy, count in (("one", 2), ("none", 6), ("index:0", 3)):
            plan = self.weft_json("explain", self.plans(*options, "--bucket", policy)[1])
            members = [bucket["members"] for bucket in plan["buckets"]]
            self.assertEqual(len(members), count, policy)
            for names in members:
                self.assertEqual(len({name.endswith("bias") for name in names}), 1, names)
                self.assertNotIn("not sharded", str(plan))

    @NEED_DATA
    def test_same_bits_of_lamb(self):
        """Norms of a tensor are exact sums over the shards of all ranks. Buckets of several tensors have borders of
        shards inside of tensors and tensors inside of a shard; others are pieces of one tensor. Biases take no norms."""
        lamb = ("--optimizer", "lamb", "--lr", "0.01", "--weight-decay", "0.1")
        spared = ("--no-decay", "1d")
        rows = ((2, "one", ()), (4, "one", spared), (4, "bytes:20K", spared), (3, "auto:10000", ("--clip", "0.5")),
                (2, "none", ("--accumulate", "3", "--wire", "bf16")), (2, "auto", (*spared, "--global-micro-batches", "4")))
        for world, policy, more in rows[1:3] if SANITIZED else rows:
            sharded = self.assert_equal_digests(*lamb, *more, "--bucket", policy, model="lenet.onnx", world=world, steps=4)
            other = self.compile("lenet.onnx", "other.weft", world, 8, *lamb, *more, "--bucket", "index:1,4")
            self.assertEqual(self.train(other, world=world, steps=4)["param_digest"], sharded)

    def test_lamb_adds_the_squares_of_all_tensors_at_once(self):
        for plan in self.plans("--optimizer", "lamb", "--bucket", "none", model="lenet.onnx", world=4)[1:]:
            text = self.weft("explain", plan).stdout
            self.assertEqual(text.count("sums the squares of all shards for norms of tensors"), 1, text)
            self.assertNotIn("not sharded", text)

    @NEED_DATA
    def test_same_bits_of_convolutions_and_split_tensors(self):
        self.assert_equal_digests("--bucket", "auto:10000", model="lenet.onnx")

    @NEED_DATA
    def test_trained_models_and_their_accuracy_are_the_same(self):
        saved, accuracies = [], []
        for i, plan in enumerate(self.plans()):
            report = self.train(plan, "--save", self.dir / f"{i}.onnx", steps=3, evaluate=True)
            saved.append((self.dir / f"{i}.onnx").read_bytes())
            accuracies.append(report["test_accuracy"])
        self.assertEqual(len(set(saved)), 1)
        self.assertEqual(len(set(accuracies)), 1)

    def test_a_rank_has_its_share_of_the_state(self):
        for world in (2, 4):
            whole, shard, late, *parameters = (self.weft_json("explain", plan)
                                               for plan in self.plans("--optimizer", "adam", world=world))
            for plan in parameters:
                for key in ("param_bytes", "gradient_bytes", "state_bytes"):
                    self.assertLess(plan[key] * world, whole[key] * 1.01)
                    self.assertGreaterEqual(plan[key] * world, whole[key])
                self.assertIn("gathers the weights of bucket", str(plan))
            for plan in (shard, late):
                self.assertLess(plan["state_bytes"] * world, whole["state_bytes"] * 1.01)
                self.assertGreaterEqual(plan["state_bytes"] * world, whole["state_bytes"])
                self.assertEqual(plan["param_bytes"], whole["param_bytes"])
                self.assertLess(plan["arena_bytes"], whole["arena_bytes"])
                self.assertEqual([b["members"] for b in plan["buckets"]], [b["members"] for b in whole["buckets"]])
            for bucket in shard["buckets"]:
                self.assertIn("fused reduce-update-gather", bucket["reason"])
            for bucket in late["buckets"]:
                self.assertIn("each rank reduces and updates", bucket["reason"])

    def test_memory_of_sharded_parameters(self):
        """A rank has its share of all that lasts, and the buckets that are gathered or reduced, which in_flight bounds."""
        try:
            from door_models import deep
        except ImportError:
            self.skipTest("python3-numpy or python3-onnx is missing")
        world, layers, width = 4, 24, 128
        model = self.save(deep(layers, width))
        bucket = 4 * (width * width + width)
        policy = ("--bucket", f"bytes:{bucket}")
        for optimizer, states in (("sgd", 0), ("momentum", 1), ("adam", 2)):
            whole, *plans = (self.weft_json("explain", self.compile(model, f"{i}.weft", world, 4, *policy, "--optimizer",
                                                                    optimizer, *mode))
                             for i, mode in enumerate([[], ["--shard-parameters", "--in-flight", 1],
                                                       ["--shard-parameters"]]))
            lasting = (2 + states) * whole["param_bytes"]
            others = whole["arena_bytes"] - lasting  # activations, inputs
            for plan in plans:
                self.assertLess(plan["arena_bytes"], 1.15 * (lasting / world + 2 * bucket + others))
            # one bucket of weights and one of gradients; with two collectives in flight one more
            for plan, buckets in zip(plans, (2, 3)):
                self.assertLess(plan["arena_bytes"], 1.02 * (lasting / world + buckets * bucket + others))

    def test_combinations_that_exclude_each_other(self):
        for more, words in ((("--decouple",), "excludes decouple: weights are gathered before each pass"),
                            (("--infer",), "only for training")):
            refused = self.weft("compile", MODELS / "mlp.onnx", "-o", self.dir / "p.weft", "--world", 2,
                                "--shard-parameters", *more, code=2)
            self.assertIn(words, refused.stderr)

    @NEED_DATA
    def test_same_bits_of_sharded_parameters_with_other_options(self):
        rows = ((), ("--wire", "bf16"), ("--clip", "0.5"), ("--accumulate", "3"), ("--global-micro-batches", "6"),
                ("--in-flight", "3", "--optimizer", "adam"))
        for options in rows[1:3] if SANITIZED else rows:
            plans = [self.compile("lenet.onnx", f"{i}.weft", 3, 8, "--bucket", "bytes:20K", *options, *mode)
                     for i, mode in enumerate((["--shard-optimizer"], ["--shard-parameters"]))]
            # images do not divide into equal shares: all ranks evaluate equally often
            reports = [self.train(plan, world=3, steps=3, evaluate=options == ()) for plan in plans]
            for key in ("param_digest", "loss_first", "loss_last", "test_accuracy"):
                self.assertEqual(reports[0].get(key), reports[1].get(key), f"{options} {key}")

    @NEED_DATA
    def test_micro_batches_that_communicate_gather_no_weights(self):
        """With four micro-batches weights are gathered before a step, whatever else its programs send."""
        try:
            from door_models import average_of_images
        except ImportError:
            self.skipTest("python3-numpy or python3-onnx is missing")
        model = self.save(average_of_images())
        for count in (2,) if SANITIZED else (2, 4):
            self.assert_equal_digests("--accumulate", count, model=model)

    def test_one_rank_shards_nothing(self):
        plans = [self.weft_json("explain", plan)["structure_digest"] for plan in self.plans(world=1)]
        self.assertEqual(len(set(plans)), 1)


if __name__ == "__main__":
    main()
