#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`weft run --data` with arrays and tokens: one result for all kinds of files and numbers of ranks; what is refused."""
import json
import os
import struct
import sys

import support
from support import MODELS, SANITIZED

try:
    import numpy as np
except ImportError:
    print("skipped: python3-numpy is missing")
    sys.exit(77)

GPT = support.SOURCE / "tests" / "data" / "torch_gpt.onnx"


def write_safetensors(path, tensors):
    header, contents = {}, b""
    for name, (dtype, array) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(array.shape),
                        "data_offsets": [len(contents), len(contents) + array.nbytes]}
        contents += array.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + contents)


class Data(support.Case):
    def run_on(self, model, path, *options, world=2, batch=8, steps=6):
        return self.weft_json("run", model, "-n", world, "--batch", batch, "--data", path, "--steps", steps, *options)

    def refused(self, words, path, *options, model=MODELS / "mlp.onnx"):
        done = self.weft("run", model, "-n", 2, "--batch", 8, "--data", path, "--steps", 1, *options, code=2)
        self.assertIn(words, done.stderr)
        self.assert_one_line(done.stderr)

    def arrays(self, count=64):
        rng = np.random.default_rng(3)
        image = rng.random((count, 1, 28, 28), dtype=np.float32)
        return image, (image.reshape(count, -1)[:, :8].mean(1) * 10).astype(np.int64)

    def test_arrays_of_all_kinds_give_one_result(self):
        image, label = self.arrays()
        folder = self.dir / "folder"
        folder.mkdir()
        np.save(folder / "image.npy", image.astype(np.float64))
        np.save(folder / "label.npy", label.astype(np.uint8))
        np.savez(self.dir / "a.npz", image=image, label=label.astype(np.int32), unused=label)
        np.savez_compressed(self.dir / "b.npz", image=image, label=label)
        write_safetensors(self.dir / "a.safetensors", {"image": ("F32", image), "label": ("I64", label)})
        reports = [self.run_on(MODELS / "mlp.onnx", path, "--seed", 5)
                   for path in (folder, self.dir / "a.npz", self.dir / "b.npz", self.dir / "a.safetensors")]
        self.assertEqual(len({report["param_digest"] for report in reports}), 1)
        tested = self.run_on(MODELS / "mlp.onnx", self.dir / "a.npz", "--test-data", self.dir / "b.npz", "--lr", "0.2",
                             steps=40)
        self.assertGreater(tested["test_accuracy"], 0.5)  # of the samples that it has seen
        self.assertIsNone(reports[0]["test_accuracy"])
        self.assertNotEqual(self.run_on(MODELS / "mlp.onnx", folder, "--seed", 6)["param_digest"],
                            reports[0]["param_digest"])

    def test_arrays_that_do_not_fit(self):
        image, label = self.arrays()
        for words, arrays in (("no array 'label'", dict(image=image)),
                              ("numbers of samples differ: 63", dict(image=image, label=label[1:])),
                              ("shape mismatch: 783 elements per sample, but input 'image' has 784",
                               dict(image=image.reshape(64, -1)[:, 1:].copy(), label=label)),
                              ("type mismatch: f16, but input 'image' is f32", dict(image=image.astype("f2"), label=label)),
                              ("unsupported dtype '>f4'", dict(image=image.astype(">f4"), label=label)),
                              ("fortran_order is True", dict(image=np.asfortranarray(image), label=label)),
                              ("its first dimension is missing", dict(image=image, label=np.int64(1))),
                              ("label 10 at index 5 is out of range", dict(image=image, label=np.where(np.arange(64) == 5, 10, label))),
                              ("data set too small: 8 training samples", dict(image=image[:8], label=label[:8]))):
            np.savez(self.dir / "a.npz", **arrays)
            self.refused(words, self.dir / "a.npz")
        np.savez(self.dir / "a.npz", image=image, label=label)
        whole = (self.dir / "a.npz").read_bytes()
        (self.dir / "a.npz").write_bytes(whole[:-100])
        self.refused("not a .npz file, or truncated", self.dir / "a.npz")
        np.save(self.dir / "label.npy", label)
        np.save(self.dir / "image.npy", image)
        os.truncate(self.dir / "image.npy", 4000)
        self.refused("bytes of contents, but its shape has 200704", self.dir)
        (self.dir / "a.txt").write_text("1 2 3")
        self.refused("unknown kind of data", self.dir / "a.txt")

    def test_a_language_model_trains_from_tokens(self):
        """Weights have the same bits for 1, 2 and 4 ranks; the loss falls below that of the frequencies of tokens."""
        tokens = np.arange(4000) * 7 % 64
        tokens.astype("<u2").tofile(self.dir / "t.bin")
        tokens.astype("<u4").tofile(self.dir / "wide.bin")
        options = ("--optimizer", "adamw", "--weight-decay", "0.1", "--no-decay", "1d", "--lr", "0.02", "--lr-schedule",
                   "cosine", "--warmup-steps", "5", "--clip", "1", "--global-micro-batches", "4", "--seed", "2")
        reports = [self.run_on(GPT, self.dir / "t.bin", *options, *more, world=world, batch=4, steps=40)
                   for world, more in ((1, ()), (2, ("--shard-optimizer",)), (4, ()))[1 if SANITIZED else 0:]]
        reports.append(self.run_on(GPT, self.dir / "wide.bin", "--tokens", "u32", *options, batch=4, steps=40))
        self.assertEqual(len({report["param_digest"] for report in reports}), 1)
        self.assertAlmostEqual(reports[0]["loss_first"], np.log(64), delta=0.3)
        self.assertLess(reports[0]["loss_last"], 2.5)

    def test_an_attention_mask_of_tokens_is_one(self):
        """What a file of arrays with the same sequences gives, in bits."""
        import onnx
        proto, count = onnx.load(MODELS / "families" / "gpt2.onnx"), 12
        names = {"input0": "input_ids", "input1": "attention_mask"}
        for value in proto.graph.input:
            value.name = names.get(value.name, value.name)
        for node in proto.graph.node:
            node.input[:] = [names.get(name, name) for name in node.input]
        tokens = (np.arange(8 * count + 1) * 7 % 48).astype("<u2")
        tokens.tofile(self.dir / "t.bin")
        rows = [tokens[i:8 * count + i].reshape(count, 8).astype(np.int64) for i in range(2)]
        np.savez(self.dir / "t.npz", input_ids=rows[0], attention_mask=np.ones((count, 8), np.int64), label=rows[1])
        reports = [self.run_on(self.save(proto), self.dir / name, batch=2, steps=4) for name in ("t.bin", "t.npz")]
        self.assertEqual(len({report["param_digest"] for report in reports}), 1)
        self.assertEqual([report["input"] for report in reports], [None, None])  # nothing is scaled

    def test_tokens_that_do_not_fit(self):
        (self.dir / "t.bin").write_bytes(bytes(17))
        self.refused("17 bytes is not a whole number of u16 tokens", self.dir / "t.bin", model=GPT)
        (self.dir / "t.bin").write_bytes(bytes(16))
        self.refused("too short: 8 tokens, but a sequence has 8 and one label after it", self.dir / "t.bin", model=GPT)
        self.refused("input 'image': type mismatch: the token file has u16, the input f32", self.dir / "t.bin")
        (self.dir / "t.bin").write_bytes(bytes(2 * 65))
        self.refused("data set too small: 8 training sequences", self.dir / "t.bin", model=GPT)


if __name__ == "__main__":
    support.main()
