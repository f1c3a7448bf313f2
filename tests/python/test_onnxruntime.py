#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weft.onnxruntime with the onnxruntime of PyPI: operators and types, models in parts, failures, the C interface.

tests/interop/onnxruntime_ranks.py is what the ranks run.
"""
import ctypes
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import ranks

np = ranks.need("numpy")
ranks.need("onnx")
onnxruntime = ranks.need("onnxruntime")

if ranks.SANITIZED:
    print("skipped: onnxruntime's library is not sanitized; interop_onnxruntime runs the operators")
    sys.exit(ranks.SKIPPED)

SCRIPT = ranks.SOURCE / "tests" / "interop" / "onnxruntime_ranks.py"
LIBRARY = pathlib.Path(ranks.WEFT).parent / "libweft_onnxruntime.so"
sys.path.append(str(ranks.SOURCE / "tests" / "hosts"))
import namespaces  # noqa: E402

HEADER = ranks.SOURCE / "interop" / "onnxruntime" / "ort_api.h"


def weft_run(count, *options):
    return [ranks.WEFT, "run", "-n", str(count), *options, "--"]


class OnnxRuntime(unittest.TestCase):
    def run_ranks(self, launcher, *cases, env=None, good=None):
        """Output of ranks; good: how many report that all went well, None: the ranks fail."""
        done = subprocess.run([*map(str, launcher), sys.executable, str(SCRIPT), *cases], capture_output=True, text=True,
                              timeout=600, env=ranks.clean_environment(**(env or {})), check=False)
        if good is not None:
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(len(re.findall(f"rank \\d of {good}: good", done.stdout)), good, done.stdout + done.stderr)
        return done

    def test_one_rank(self):
        self.run_ranks(weft_run(1), "order", "plain", env={"WEFT_TEST_LIBRARY": str(LIBRARY)}, good=1)

    def test_two_ranks(self):
        self.run_ranks(weft_run(2), "types", "order", "inferred", "model", good=2)

    def test_three_ranks(self):
        mpirun = shutil.which("mpirun.openmpi")
        launcher = [mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "3"] if mpirun else weft_run(3)
        self.run_ranks(launcher, "types", "order", good=3)

    def test_four_ranks(self):
        self.run_ranks(weft_run(4), "types", "order", "model", good=4)

    def test_two_hosts(self):
        if reason := namespaces.why_not():
            self.skipTest(reason)
        with namespaces.Hosts(2) as hosts:
            self.run_ranks(weft_run(2, "--hosts", "h0,h1", "--engine", "ssh", "--rsh", hosts.rsh), "types", "order", good=2)

    def test_sample(self):
        """The models of samples/tensor_parallel."""
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, ranks.SOURCE / "samples/tensor_parallel/split_model.py", folder, "2", "--heads", "8"],
                           check=True)
            self.run_ranks(weft_run(2), "sample", env={"WEFT_TEST_FOLDER": folder}, good=2)

    def test_without_the_package(self):
        self.run_ranks(weft_run(2), "plain", env={"WEFT_TEST_LIBRARY": str(LIBRARY)}, good=2)

    def test_refusals(self):
        self.run_ranks(weft_run(2), "domains", "wrong", good=2)

    def test_mismatch(self):
        self.run_ranks(weft_run(2), "mismatch", good=2)

    def test_two_at_a_time(self):
        self.run_ranks(weft_run(3), "threads", good=3)

    def test_dead_rank(self):
        done = self.run_ranks(weft_run(3), "dies")
        for rank in (0, 2):
            self.assertRegex(done.stdout, rf"rank {rank} has caught: .*AllReduce.*rank 1 \(pid \d+\) died")
        self.assertEqual(done.returncode, 128 + 9)


class Api(unittest.TestCase):
    """The installed library has the functions of ort_api.h in their places. Ranks above have called those of kernels."""

    @classmethod
    def setUpClass(cls):
        capi = pathlib.Path(onnxruntime.__file__).parent / "capi"
        candidates = [*sorted(capi.glob("libonnxruntime.so*")), *capi.glob("onnxruntime_pybind11_state*.so")]
        for path in candidates:
            base = getattr(ctypes.CDLL(str(path)), "OrtGetApiBase", None)
            if base is not None:
                break
        else:
            raise unittest.SkipTest(f"{capi} has no library that exports OrtGetApiBase")
        base.restype = ctypes.POINTER(ctypes.c_void_p * 2)
        get_api, get_version = base().contents
        cls.get_api = staticmethod(ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint32)(get_api))
        cls.version = ctypes.CFUNCTYPE(ctypes.c_char_p)(get_version)().decode()
        text = HEADER.read_text()
        cls.places = {name: int(place) for name, place in re.findall(r"^ORT_PLACE\((\w+), (\d+)\);", text, re.M)}
        cls.numbers = {name: int(value) for name, value in re.findall(r"^#define (ORT_VERSION\w*) (\d+)", text, re.M)}
        cls.places["error_message"] = 2  # for this test only
        cls.api = cls.get_api(cls.numbers["ORT_VERSION"])

    def call(self, name, *args, result=ctypes.c_void_p):
        """Calls a function by its place; pointers are passed as such, numbers as size_t."""
        types = [ctypes.c_void_p if isinstance(a, (type(None), ctypes.c_void_p, bytes)) or hasattr(a, "_obj") or
                 isinstance(a, ctypes.Array) else ctypes.c_size_t for a in args]
        types = [ctypes.c_char_p if isinstance(a, bytes) else t for a, t in zip(args, types)]
        return ctypes.CFUNCTYPE(result, *types)(self.api[self.places[name]])(*args)

    def good(self, name, *args):
        self.assertIsNone(self.call(name, *args), name)

    def test_versions(self):
        self.assertEqual(self.version, onnxruntime.__version__)
        self.assertRegex(self.version, r"^1\.\d+\.\d+")
        minor = int(self.version.split(".")[1])
        self.assertGreaterEqual(minor, self.numbers["ORT_VERSION"])
        self.assertTrue(self.api)
        self.assertEqual(bool(self.get_api(minor)), True)
        if minor >= self.numbers["ORT_VERSION_EXECUTION_MODE"]:
            self.assertTrue(self.get_api(self.numbers["ORT_VERSION_EXECUTION_MODE"]))

    def test_functions(self):
        status = self.call("create_status", 2, b"what is wrong")
        self.assertEqual(self.call("error_message", ctypes.c_void_p(status), result=ctypes.c_char_p), b"what is wrong")
        self.call("release_status", ctypes.c_void_p(status), result=None)

        domain = ctypes.c_void_p()
        self.good("create_domain", b"test", ctypes.byref(domain))
        self.assertTrue(domain.value)

    def test_every_function_is_used(self):
        source = (HEADER.parent / "operators.c").read_text()
        missing = {name for name in self.places if not re.search(rf"->{name}\(", source)}
        self.assertEqual(missing, {"error_message"})


if __name__ == "__main__":
    ranks.main()
