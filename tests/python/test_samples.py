# SPDX-License-Identifier: Apache-2.0
"""The programs of samples/python, and python -m weft.bench, in short runs."""
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

import ranks

np = ranks.need("numpy")
SAMPLES = ranks.SOURCE / "samples" / "python"
DATA = "/usr/share/datasets/fashion-mnist"
HAS_DATA = os.path.exists(os.path.join(DATA, "train-images-idx3-ubyte.gz"))
HAS_TORCH = importlib.util.find_spec("torch") is not None


def number(pattern, text):
    """The first group of pattern in text, as a float."""
    found = re.search(pattern, text)
    if not found:
        raise AssertionError(f"no {pattern!r} in:\n{text}")
    return float(found.group(1))


class Samples(unittest.TestCase):
    def run_sample(self, name, *args, count=2):
        done = ranks.run_script(SAMPLES / name, *args, ranks=count)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    @unittest.skipUnless(HAS_DATA, "dataset-fashion-mnist is not installed")
    def test_train_numpy(self):
        said = self.run_sample("train_numpy.py", "--epochs", "1", "--steps", "120")
        self.assertGreater(number(r"accuracy ([\d.]+)", said), 0.7)
        self.assertIn("2 ranks have the same weights", said)

    @unittest.skipUnless(HAS_DATA, "dataset-fashion-mnist is not installed")
    def test_compile_onnx(self):
        with tempfile.TemporaryDirectory(prefix="weft-test-") as folder:
            said = self.run_sample("compile_onnx.py", "--steps", "60", "--optimizer", "adam", "--bucket", "one",
                                   "--plan", f"{folder}/p.weft", "--save", f"{folder}/m.onnx")
            self.assertGreater(number(r"accuracy ([\d.]+)", said), 0.6)
            self.assertIn("buckets of a step: 1", said)
            self.assertGreater(os.path.getsize(f"{folder}/p.weft"), 1 << 20)
            self.assertGreater(os.path.getsize(f"{folder}/m.onnx"), 1 << 20)

    @unittest.skipUnless(HAS_DATA and HAS_TORCH, "dataset-fashion-mnist or torch is not installed")
    def test_train_torch(self):
        said = self.run_sample("train_torch.py", "--epochs", "1", "--steps", "100", "--model", "mlp")
        self.assertGreater(number(r"accuracy ([\d.]+)", said), 0.6)
        self.assertIn("2 ranks, backend weft", said)

    def test_tensor_parallel(self):
        for count in (1, 2):
            said = self.run_sample("tensor_parallel.py", "--width", "96", "--hidden", "256", "--tokens", "12",
                                   count=count)
            self.assertLess(number(r"difference +([\d.e+-]+)", said), 1e-4)
            self.assertGreater(number(r"split.*? ([\d.]+) us, of which", said), 0)

    @unittest.skipUnless(HAS_TORCH, "torch is not installed")
    def test_vllm_communicator(self):
        for count in (1, 2):
            said = self.run_sample("vllm_communicator.py", count=count)
            self.assertLess(number(r"difference ([\d.e+-]+)", said), 1e-3)

    def test_tensor_parallel_says_what_cannot_be_split(self):
        done = ranks.run_script(SAMPLES / "tensor_parallel.py", "--width", "8", "--hidden", "33", "--tokens", "1",
                                ranks=2)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--hidden 33 is not a multiple of 2 ranks", done.stderr)


class Bench(unittest.TestCase):
    OPERATORS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter", "all_to_all")

    def bench(self, *args):
        done = subprocess.run([sys.executable, "-m", "weft.bench", *args], capture_output=True, text=True,
                              timeout=600, env=ranks.clean_environment(), check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_all_operators(self):
        """Every operator, on ranks that the program starts itself."""
        options = ("-n", "2", "--min", "8", "--max", "4K", "--factor", "512", "--iterations", "5", "--json")
        for more in ((), ("--new",)):
            rows = json.loads(self.bench(*self.OPERATORS, *options, *more))["rows"]
            self.assertEqual([(row["op"], row["bytes"]) for row in rows],
                             [(op, size) for op in self.OPERATORS for size in (8, 4096)])
            for row in rows:
                self.assertEqual(row["ranks"], 2)
                self.assertGreater(row["p50_us"], 0)
                self.assertGreater(row["c_p50_us"], 0)
                self.assertIsNotNone(row["python_us"])
                self.assertIsNone(row["gloo_p50_us"])

    def test_memory_and_tensors(self):
        for more in (("--memory", "adopted"), ("--memory", "empty"), ("--tensor", "array", "--dtype", "int32")):
            said = self.bench("all_reduce", "--min", "64K", "--max", "64K", "--iterations", "3", *more)
            self.assertRegex(said, r"(?m)^ +65536 ")

    @unittest.skipUnless(HAS_TORCH, "torch is not installed")
    def test_beside_gloo(self):
        """Operators that Gloo has, and one that it has not."""
        rows = json.loads(self.bench("all_reduce", "all_gather", "reduce_scatter", "--tensor", "torch", "--torch-gloo",
                                     "--min", "64", "--max", "64", "--iterations", "5", "--json"))["rows"]
        self.assertEqual([row["gloo_p50_us"] is not None for row in rows], [True, True, False])

    def test_under_a_launcher(self):
        done = subprocess.run([ranks.WEFT, "run", "-n", "3", "--", sys.executable, "-m", "weft.bench", "broadcast",
                               "--max", "8", "--iterations", "3"], capture_output=True, text=True,
                              timeout=600, env=ranks.clean_environment(), check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("# broadcast, 3 ranks", done.stdout)

    def test_wrong_words(self):
        for words, said in ((("all_sum",), "no operator is called all_sum"), (("--min", "4Q"), "is not a size"),
                            (("--min", "8", "--max", "4"), "--max is below --min"), (("-n", "0"), "at least 1")):
            done = subprocess.run([sys.executable, "-m", "weft.bench", *words], capture_output=True, text=True,
                                  timeout=600, env=ranks.clean_environment(), check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn(said, done.stderr)


if __name__ == "__main__":
    ranks.main()
