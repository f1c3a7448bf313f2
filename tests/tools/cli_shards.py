#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sharded and decoupled updates from the command line: the bits of whole ones, with less optimizer state."""
import unittest

from support import NEED_DATA, SANITIZED, Case, main

MODES = ([], ["--shard-optimizer"], ["--decouple"])


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
        rows = (2, "sgd", "none"), (3, "momentum", "bytes:100K"), (4, "adam", "index:1,4")
        for world, optimizer, policy in rows[1:2] if SANITIZED else rows:
            self.assert_equal_digests("--optimizer", optimizer, "--weight-decay", "0.01", "--bucket", policy,
                                      world=world)

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
        self.assertEqual(saved[1], saved[0])
        self.assertEqual(saved[2], saved[0])
        self.assertEqual(len(set(accuracies)), 1)

    def test_a_rank_has_its_share_of_the_state(self):
        for world in (2, 4):
            whole, shard, late = (self.weft_json("explain", plan)
                                  for plan in self.plans("--optimizer", "adam", world=world))
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
