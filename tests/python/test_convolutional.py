#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A ResNet and a U-Net as torch exports them (samples/models): torch's gradients; the same bits on 1, 2 and 4 ranks."""
import json

import ranks

np = ranks.need("numpy")
import weft  # noqa: E402

MODELS = ranks.SOURCE / "samples" / "models"
BATCH, SIZE, CLASSES = 4, 16, 5
LABELS = {"resnet": (BATCH,), "unet": (BATCH, SIZE, SIZE)}


def batch(name):
    """What make_torch_models.py gave to torch."""
    at = np.arange(BATCH * 3 * SIZE * SIZE)
    label = np.arange(np.prod(LABELS[name])) * 7 // 3 % CLASSES
    return np.cos(at * 0.7 + at // 97).astype(np.float32).reshape(BATCH, 3, SIZE, SIZE), label.reshape(LABELS[name])


class Convolutional(ranks.RankCase):
    RANKS = (2,) if ranks.SANITIZED else (1, 2, 4)

    def test_torch_agrees(self):
        """One step in double precision, to 1e-5 of the norm; then the loss falls."""
        for name in LABELS if self.rank == 0 else ():
            image, label = batch(name)
            expected = json.loads((ranks.SOURCE / "tests" / "data" / f"torch_{name}.json").read_text(encoding="utf-8"))
            plan = weft.compile(MODELS / f"{name}.onnx", world=1, batch=BATCH, optimizer="sgd", lr=0.05)
            with weft.Context(0, 1) as alone, weft.Session(plan, alone) as session:
                first = session.step(image, label)
                self.assertAlmostEqual(first, expected["loss"], delta=2e-6)
                total = sum(norm ** 2 for key, (norm, _) in expected["values"].items() if "running" not in key) ** 0.5
                for key, (norm, product) in expected["values"].items():
                    got = np.asarray((session.params if "running" in key else session.gradients)[key], np.float64).ravel()
                    bound = 1e-5 * (norm if "running" in key else total) + 1e-7
                    self.assertLess(abs(np.linalg.norm(got) - norm), bound, (name, key))
                    self.assertLess(abs(got @ np.cos(np.arange(len(got))) - product), bound * len(got) ** 0.5, (name, key))
                for _ in range(10):
                    loss = session.step(image, label)
                self.assertLess(loss, first - 0.02, name)
                self.assertTrue(np.isfinite(session.eval(image)).all())

    def test_bits_do_not_depend_on_the_number_of_ranks(self):
        """Micro-batches of one sample; statistics are those of a micro-batch."""
        for name in LABELS:
            image, label = batch(name)
            image, label = np.concatenate([image, -image]), np.concatenate([label, label])
            own = slice(self.rank * 8 // self.size, (self.rank + 1) * 8 // self.size)
            digests = []
            for world, part in ((self.size, own), (1, slice(None))):
                plan = weft.compile(MODELS / f"{name}.onnx", world=world, batch=2, global_micro_batches=4, lr=0.05)
                with weft.Context(0, 1) as alone, weft.Session(plan, None if world > 1 else alone) as session:
                    for _ in range(2):
                        session.step(image[part], label[part])
                    digests.append(session.param_digest())
            self.assertEqual(digests[0], digests[1], name)


if __name__ == "__main__":
    ranks.main()
