#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`weft run --checkpoint, --resume`: the file by its published layout, resumed runs to one digest, refusals with words."""
import json
import os
import signal
import struct
import subprocess
import time

import numpy as np

import door_models
import support
from support import Case, DATA, MODELS, NEED_DATA, SANITIZED, WEFT

TYPES = {"F32": np.float32, "I64": np.int64}


def read_safetensors(path):
    """By hand: 8 bytes of length, JSON, contents. Returns tensors by name and the metadata."""
    raw = path.read_bytes()
    length, = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + length])
    contents, tensors, at = raw[8 + length:], {}, 0
    metadata = header.pop("__metadata__")
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        assert begin == at, f"{name}: a gap or an overlap"
        tensors[name] = np.frombuffer(contents[begin:end], TYPES[entry["dtype"]]).reshape(entry["shape"])
        at = end
    assert at == len(contents) and raw[8:9] == b"{" and all(isinstance(v, str) for v in metadata.values())
    return tensors, metadata


def step_of(path):
    """The step of a checkpoint, from its header alone: tests that wait for a step ask every millisecond."""
    with open(path, "rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        return int(json.loads(file.read(length))["__metadata__"]["weft.step"])


def write_safetensors(path, tensors, metadata):
    header, at = {"__metadata__": metadata}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": {np.dtype(t): n for n, t in TYPES.items()}[values.dtype], "shape": list(values.shape),
                        "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(v.tobytes() for v in tensors.values()))


@NEED_DATA
class Checkpoint(Case):
    def setUp(self):
        super().setUp()
        self.file = self.dir / "state.safetensors"

    def digest(self, plan, *extra, **kwargs):
        return self.train(plan, *extra, **kwargs)["param_digest"]

    def test_the_file_is_what_others_read(self):
        """Names, shapes, types; and momentum is what one step makes of it: m = g, w' = w - lr m."""
        plan = self.compile("lenet.onnx", "plan.weft", 2, 16, "--optimizer", "momentum", "--lr", 0.125)
        self.train(plan, "--checkpoint", self.file, steps=1)
        tensors, metadata = read_safetensors(self.file)
        weights = {name for name in tensors if not name.endswith(".momentum")}
        self.assertEqual(set(tensors), weights | {f"{name}.momentum" for name in weights})
        try:
            import onnx
            import onnx.numpy_helper
        except ImportError:
            self.skipTest("python3-onnx is missing; the rest of this test has passed")
        first = {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load(MODELS / "lenet.onnx").graph.initializer}
        self.assertEqual(weights, set(first))
        for name, before in first.items():
            self.assertEqual(tensors[name].shape, before.shape)
            moved = before - np.float32(0.125) * tensors[f"{name}.momentum"]
            np.testing.assert_allclose(tensors[name], moved, rtol=0, atol=1e-6)
            self.assertGreater(np.abs(tensors[f"{name}.momentum"]).max(), 0)
        self.assertEqual({key: metadata[f"weft.{key}"] for key in ("format", "step", "seed", "epoch", "sample", "sample_count",
                                                                   "global_batch", "world_size", "optimizer", "lr")},
                         {"format": "1", "step": "1", "seed": "0", "epoch": "0", "sample": "32", "sample_count": "6000",
                          "global_batch": "32", "world_size": "2", "optimizer": "momentum", "lr": "0.125"})
        self.assertEqual(metadata["weft.scalar.lr"], "0.125")

    def resumed(self, plan, others, schedule=(), world=2, until=12, at=5):
        """Runs to the end without a stop; then to a checkpoint and on, by each of the other plans."""
        whole = self.train(plan, *schedule, steps=until, world=world)
        self.train(plan, *schedule, "--checkpoint", self.file, "--checkpoint-every", at, steps=until, world=world)
        # The last one is that of the end: one before is what a run that ends there leaves.
        self.assertEqual(read_safetensors(self.file)[1]["weft.step"], str(until))
        self.train(plan, "--checkpoint", self.file, steps=at, world=world)
        for other, ranks in others:
            done = self.train(other, *schedule, "--resume", self.file, steps=until, world=ranks)
            self.assertEqual(done["param_digest"], whole["param_digest"], other)
            self.assertEqual((done["steps"], done["first_step"]), (until - at, at))

    def test_resumed_and_uninterrupted_runs_give_one_digest(self):
        for optimizer in ("adam",) if SANITIZED else ("sgd", "momentum", "adamw"):
            with self.subTest(optimizer):
                plan = self.compile("lenet.onnx", f"{optimizer}.weft", 2, 16, "--optimizer", optimizer)
                self.resumed(plan, [(plan, 2)])

    def test_a_schedule_continues_at_its_step(self):
        """The number of steps is that of the whole training: it is part of the schedule."""
        for schedule in ("step", "cosine"):
            plan = self.compile("mlp.onnx", f"{schedule}.weft", 2, 16, "--lr-schedule", schedule, "--lr-steps", 4,
                                "--warmup-steps", 2)
            self.resumed(plan, [(plan, 2)], until=6, at=3)

    def test_bucket_policies_and_shards_may_change(self):
        adam = ("--optimizer", "adam")
        plans = [self.compile("mlp.onnx", f"{i}.weft", 2, 16, *adam, *extra)
                 for i, extra in enumerate([(), ("--bucket", "none"), ("--shard-optimizer",), ("--decouple",),
                                            ("--shard-parameters", "--bucket", "bytes:100K")])]
        for plan in plans[4:] if SANITIZED else plans[::2]:
            self.resumed(plan, [(other, 2) for other in plans], until=6, at=3)

    def test_lamb_resumes_with_and_without_shards(self):
        lamb = ("--optimizer", "lamb", "--weight-decay", "0.1", "--no-decay", "1d", "--lr", "0.01")
        plans = [self.compile("mlp.onnx", f"{i}.weft", 2, 16, *lamb, *extra)
                 for i, extra in enumerate([(), ("--shard-optimizer", "--bucket", "one"), ("--decouple",),
                                            ("--shard-parameters", "--bucket", "bytes:100K")])]
        for plan in plans[1:2] if SANITIZED else plans:
            self.resumed(plan, [(other, 2) for other in plans], until=6, at=3)

    def test_the_number_of_ranks_may_change_with_a_fixed_tree(self):
        """One global batch of four micro-batches: 1, 2 and 4 ranks have the same bits, stopped or not."""
        plans = {n: self.compile("mlp.onnx", f"{n}.weft", n, 16, "--global-micro-batches", 4) for n in (1, 2, 4)}
        self.resumed(plans[2], [(plans[n], n) for n in (1, 2, 4)], until=6, at=3)
        self.resumed(plans[4], [(plans[1], 1)], world=4, until=6, at=3)

    def test_the_number_of_ranks_may_change_with_the_global_batch(self):
        """As after a restart with other nodes: 167 images are 5 steps of 2 ranks with 16 each, and 3 of 3 ranks."""
        data = self.dir / "data"
        door_models.write_data(data, 167)
        plans = {n: self.compile("mlp.onnx", f"{n}.weft", n, 16) for n in (2, 3)}
        self.train(plans[2], "--checkpoint", self.file, data=data, steps=7)  # 103 images of the second epoch are left
        run = ("run", plans[3], "-n", 3, "--data", data, "--no-eval", "--json", "--epochs", 4, "--resume", self.file)
        done = self.weft(*run, "--checkpoint", self.file)
        self.assertIn("written with a global batch of 32 (2 ranks), continues with 48 (3 ranks)", done.stderr)
        report, metadata = json.loads(done.stdout), read_safetensors(self.file)[1]
        self.assertEqual((report["first_step"], report["steps"]), (7, 2 + 3 + 3))
        self.assertEqual([metadata[f"weft.{key}"] for key in ("step", "epoch", "sample", "global_batch")], ["15", "4", "0", "48"])

    def test_auto_begins_or_continues(self):
        plan = self.compile("mlp.onnx", "plan.weft", 2, 16)
        whole = self.digest(plan, steps=8)
        auto = ("--checkpoint", self.file, "--checkpoint-every", 1, "--resume", "auto")
        first = self.train(plan, *auto, steps=3)
        self.assertEqual((first["first_step"], first["steps"]), (0, 3))
        pauses = first["checkpoints"]
        self.assertEqual(pauses["count"], 3)
        self.assertTrue(0 < pauses["pause_ms_mean"] <= pauses["pause_ms_max"] and pauses["wait_ms_mean"] >= 0, pauses)
        second = self.train(plan, *auto, steps=8)
        self.assertEqual((second["first_step"], second["steps"], second["param_digest"]), (3, 5, whole))
        done = self.weft("run", plan, "-n", 2, "--data", DATA, "--steps", 8, "--no-eval", *auto)  # a job that is started once more
        self.assertIn(f"{self.file}: training has ended after 8 steps", done.stderr)
        self.file.write_bytes(b"damaged")
        self.weft("run", plan, "-n", 2, "--data", DATA, "--steps", 8, *auto, code=2)
        done = self.weft("run", plan, "-n", 2, "--data", DATA, "--steps", 8, "--resume", "auto", code=2)
        self.assertIn("--resume auto requires --checkpoint FILE", done.stderr)

    def test_earlier_checkpoints_are_kept_and_replace_damaged_ones(self):
        plan = self.compile("mlp.onnx", "plan.weft", 2, 16)
        whole = self.digest(plan, steps=10)
        auto = ("--checkpoint", self.file, "--checkpoint-every", 2, "--checkpoint-keep", 3, "--resume", "auto")
        self.train(plan, *auto, steps=8)
        files = [self.file, *(self.file.with_name(f"{self.file.name}.{n}") for n in (1, 2))]
        self.assertEqual(sorted(self.file.parent.glob(f"{self.file.name}*")), files)
        self.assertEqual([read_safetensors(file)[1]["weft.step"] for file in files], ["8", "6", "4"])
        files[0].write_bytes(b"damaged")
        content = bytearray(files[1].read_bytes())
        content[-1] ^= 1
        files[1].write_bytes(content)
        done = self.weft("run", plan, "-n", 2, "--data", DATA, "--steps", 10, "--no-eval", "--json", *auto)
        self.assertIn(f"warning: {files[1]}: digest mismatch", done.stderr)
        self.assertIn(f"continues from {files[2]}", done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual((report["first_step"], report["param_digest"]), (4, whole))
        done = self.weft("run", plan, "-n", 2, "--data", DATA, "--steps", 8, "--checkpoint-keep", 2, code=2)
        self.assertIn("--checkpoint-keep requires --checkpoint FILE", done.stderr)

    def test_the_epoch_goes_on_where_it_was(self):
        """Across the end of an epoch, at it and behind it: 167 images are 5 steps of 2 ranks with 16 each."""
        data = self.dir / "data"
        door_models.write_data(data, 167)
        plan = self.compile("mlp.onnx", "plan.weft", 2, 16)
        whole = self.digest(plan, "--epochs", 3, data=data, steps=None)
        for at in (4, 5, 6, 14):
            self.train(plan, "--checkpoint", self.file, data=data, steps=at)
            metadata = read_safetensors(self.file)[1]
            self.assertEqual((metadata["weft.epoch"], metadata["weft.sample"], metadata["weft.sample_count"]),
                             (str(at // 5), str(at % 5 * 32), "167"))
            self.assertEqual(self.digest(plan, "--epochs", 3, "--resume", self.file, data=data, steps=None), whole)

    def test_seed_and_learning_rate_are_taken_from_the_file(self):
        plan = self.compile("mlp.onnx", "plan.weft", 2, 16)
        options = ("--seed", 5, "--lr", 0.01)
        whole = self.digest(plan, *options, steps=8)
        self.train(plan, *options, "--checkpoint", self.file, steps=4)
        self.assertEqual(self.digest(plan, "--resume", self.file, steps=8), whole)
        self.assertEqual(self.digest(plan, *options, "--resume", self.file, steps=8), whole)
        self.assertNotEqual(self.digest(plan, "--lr", 0.02, "--resume", self.file, steps=8), whole)

    def refused(self, plan, *extra, words, world=2, steps=8):
        done = self.weft("run", plan, "-n", world, "--data", DATA, "--steps", steps, "--no-eval", "--resume", self.file, *extra,
                         code=2)
        self.assert_one_line(done.stderr)
        self.assertIn(words, done.stderr)

    def test_what_does_not_fit_is_refused_before_ranks_start(self):
        plan = self.compile("mlp.onnx", "plan.weft", 2, 16)
        self.train(plan, "--checkpoint", self.file, steps=4)
        self.refused(self.compile("mlp.onnx", "batch.weft", 2, 32),
                     words="written with a global batch of 32 (2 ranks), but this run has 64")
        self.refused(self.compile("mlp.onnx", "both.weft", 4, 32), words="change --world or --batch", world=4)
        self.refused(self.compile("mlp.onnx", "adam.weft", 2, 16, "--optimizer", "adam"),
                     words='optimizer mismatch: the checkpoint has "momentum", the plan "adam"')
        self.refused(self.compile("lenet.onnx", "lenet.weft", 2, 16), words="tensor")
        self.refused(plan, "--seed", 1, words="written with --seed 0")
        self.refused(plan, words="written after 4 steps, but training ends after 4", steps=4)
        tensors, metadata = read_safetensors(self.file)
        good = self.file.read_bytes()
        for change, words in (({"weft.sample_count": "5999"}, "written with 5999 training images"),
                              ({"weft.sample": "6000"}, "sample 6000 is out of range: the data set has 6000"),
                              ({"weft.format": "9"}, "checkpoint format 9"),
                              ({"weft.lr": "inf"}, '"weft.lr": not finite'),
                              ({"weft.step": "x"}, '"weft.step": invalid number')):
            write_safetensors(self.file, tensors, {**metadata, **change})
            self.refused(plan, words=words)
        self.file.write_bytes(good[:-5])
        self.refused(plan, words="data_offsets out of range")
        self.file.write_bytes(good[:-5] + b"WRONG")
        self.refused(plan, words="digest mismatch")
        self.file.unlink()
        self.refused(plan, words="cannot open")
        for wrong in (("--checkpoint-every", 5), ("--checkpoint-every", 0, "--checkpoint", "x"),
                      ("--checkpoint", self.dir / "none" / "x"), ("--checkpoint", "x", "--save", "x")):
            done = self.weft("run", plan, "-n", 2, "--data", DATA, *wrong, code=2)
            self.assert_one_line(done.stderr)

    def test_other_programs_may_change_it(self):
        """Another order of tensors, other JSON: the same training. Changed weights count once the digest is dropped."""
        plan = self.compile("mlp.onnx", "plan.weft", 2, 16)
        whole = self.digest(plan, steps=6)
        self.train(plan, "--checkpoint", self.file, steps=3)
        tensors, metadata = read_safetensors(self.file)
        write_safetensors(self.file, dict(reversed(tensors.items())), {"tool": "\u00e4\u20ac\U0001f600", **metadata})
        self.assertEqual(self.digest(plan, "--resume", self.file, steps=6), whole)
        changed = {**tensors, "fc1.bias": tensors["fc1.bias"] + 1}
        write_safetensors(self.file, changed, {k: v for k, v in metadata.items() if k != "weft.digest"})
        self.assertNotEqual(self.digest(plan, "--resume", self.file, steps=6), whole)

    def start_job(self, plan, start, *args):
        """Two tasks of a Slurm job, in its start-th start."""
        return [subprocess.Popen(list(map(str, [WEFT, "run", plan, "--data", DATA, "--no-eval", "--json", "--checkpoint", self.file,
                                                "--checkpoint-every", 1, "--resume", "auto", *args])),
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.dir, start_new_session=True,
                                 env={**os.environ, "WEFT_RANK": str(rank), "WEFT_WORLD_SIZE": "2",
                                      "WEFT_ADDRESS": f"unix:@weft-test-job-{os.getpid()}-{start}", "SLURM_JOB_ID": "77",
                                      "SLURM_NTASKS": "2", "SLURM_PROCID": str(rank), "SLURM_RESTART_COUNT": str(start)})
                for rank in range(2)]

    def test_a_requeued_job_continues(self):
        """As Slurm does it: SIGTERM to all tasks, SIGKILL to those that are left, then the same command again."""
        plan, before = self.compile("mlp.onnx", "plan.weft", 2, 16), 0
        for start, number in enumerate((signal.SIGTERM, signal.SIGKILL)):
            tasks = self.start_job(plan, start, "--steps", 100000)
            while self.file.exists() is False or step_of(self.file) < before + 3:
                self.assertEqual([task.poll() for task in tasks], [None, None])
                time.sleep(0.01)
            for task in tasks:
                task.send_signal(number)
            for task in tasks:
                task.communicate()
                self.assertNotEqual(task.returncode, 0)
            before = step_of(self.file)
        tasks = self.start_job(plan, 2, "--steps", before + 3)
        outs = [task.communicate() for task in tasks]
        self.assertEqual([task.returncode for task in tasks], [0, 0], outs)
        report = json.loads(outs[0][0])
        self.assertEqual((report["first_step"], report["steps"]), (before, 3))
        self.assertEqual(report["param_digest"], self.digest(plan, steps=before + 3))
        self.assertEqual({path.name for path in self.dir.iterdir()}, {"plan.weft", "state.safetensors"})

    def test_a_killed_run_leaves_the_last_checkpoint_complete(self):
        """Killed at any time, what is there can be gone on from, to the digest of a run that was left alone."""
        plan = self.compile("mlp.onnx", "plan.weft", 2, 16)
        args = [WEFT, "run", plan, "-n", "2", "--data", DATA, "--no-eval", "--steps", "100000", "--checkpoint", self.file,
                "--checkpoint-every", "3"]
        run = subprocess.Popen(list(map(str, args)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.dir,
                               start_new_session=True)
        seen, deadline = set(), time.monotonic() + 600
        while len(seen) < 4 and time.monotonic() < deadline:  # another file each time: it is replaced
            if self.file.exists():
                seen.add(os.stat(self.file).st_ino)
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        self.assertGreaterEqual(len(seen), 2)
        step = step_of(self.file)
        self.assertEqual(step % 3, 0)
        more = step + 4
        self.assertEqual(self.digest(plan, "--resume", self.file, steps=more), self.digest(plan, steps=more))
        self.assertEqual({path.name for path in self.dir.iterdir()}, {"plan.weft", "state.safetensors"})


if __name__ == "__main__":
    support.main()
