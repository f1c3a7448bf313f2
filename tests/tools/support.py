# SPDX-License-Identifier: Apache-2.0
"""What the tests of the command share: running it, reading its JSON, temporary folders, data."""
import functools
import gzip
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

# Plans must not depend on the machine, or on a calibration in the developer's cache.
os.environ["WEFT_CALIBRATE"] = "off"
os.environ.pop("WEFT_COSTS", None)

WEFT = os.environ["WEFT_TOOL"]
SOURCE = pathlib.Path(os.environ["WEFT_SOURCE_DIR"])
sys.path.append(str(SOURCE / "tests" / "support"))
import data_set  # noqa: E402
from program import free_port, main  # noqa: E402,F401 (part of what tests share)
BINARY = pathlib.Path(os.environ["WEFT_BINARY_DIR"])
# Half of the default WEFT_TIMEOUT, in seconds: what ends earlier did not wait for that. Bounds on time are
# guards against hangs: a busy machine takes many times as long as an idle one.
PROMPT = 300
SANITIZED = os.environ.get("WEFT_SANITIZED", "")
MODELS = SOURCE / "samples" / "models"
WHOLE_DATA = data_set.WHOLE
DATA = data_set.tenth(BINARY)
TRAIN_COUNT = data_set.COUNTS["train"]
HAVE_DATA = os.path.exists(WHOLE_DATA)
NEED_DATA = unittest.skipUnless(HAVE_DATA, f"{WHOLE_DATA} is missing (Debian package dataset-fashion-mnist)")


# Two devices, each on the processors; a driver that is not PoCL ignores it.
TWO_DEVICES = {"POCL_DEVICES": "pthread pthread"}


@functools.cache
def opencl_devices():
    """The devices of the plugin opencl, two or more, or why there are none."""
    if SANITIZED.startswith("thread"):
        return "the driver is not built with ThreadSanitizer"
    os.environ["ASAN_OPTIONS"] = "use_sigaltstack=0"  # LLVM, in the driver, has alternate stacks of its own
    run = subprocess.run([WEFT, "info", "--devices", "--json"], capture_output=True, text=True, check=False,
                         env={**os.environ, **TWO_DEVICES})
    devices = json.loads(run.stdout)["devices"] if run.returncode == 0 else []
    return devices if len(devices) > 1 else run.stderr.strip() or f"found {len(devices)}"


def read_idx(name):
    """Images [count, rows * columns] or labels [count] of the data set, as bytes."""
    import numpy as np
    with gzip.open(f"{DATA}/{name}") as file:
        raw = file.read()
    dims = [int.from_bytes(raw[4 + 4 * i:8 + 4 * i], "big") for i in range(raw[3])]
    values = np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3])
    return values.reshape(dims[0], -1) if len(dims) > 1 else values


class Case(unittest.TestCase):
    """A test with a temporary folder of its own, which must hold nothing unexpected at the end."""

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="weft-test-"))
        self.addCleanup(shutil.rmtree, self.dir, True)

    def weft(self, *args, code=0, env=None, timeout=600, **kwargs):
        """Runs the command; fails unless it exits with code. Returns the finished process."""
        done = subprocess.run([WEFT, *map(str, args)], capture_output=True, text=True, timeout=timeout,
                              env={**os.environ, **(env or {})}, cwd=self.dir, **kwargs)
        self.assertEqual(done.returncode, code,
                         f"weft {' '.join(map(str, args))}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        return done

    def weft_json(self, *args, **kwargs):
        return json.loads(self.weft(*args, "--json", **kwargs).stdout)

    def compile(self, model="mlp.onnx", name="plan.weft", world=2, batch=64, *extra):
        plan = self.dir / name
        self.weft("compile", MODELS / model, "-o", plan, "--world", world, "--batch", batch, *extra)
        return plan

    def save(self, proto, name="m.onnx"):
        """An ONNX model in the temporary folder."""
        import onnx
        onnx.save(proto, self.dir / name)
        return self.dir / name

    def train(self, plan, *extra, world=2, steps=20, evaluate=False, data=DATA, **kwargs):
        """Trains a plan and returns the report; without the test set, which costs more than a few steps. steps None: extra says."""
        more = (() if evaluate else ("--no-eval",)) + (() if steps is None else ("--steps", steps))
        return self.weft_json("run", plan, "-n", world, "--data", data, *more, *extra, **kwargs)

    def assert_one_line(self, text):
        self.assertEqual(len(text.strip().splitlines()), 1, text)
