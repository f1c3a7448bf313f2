#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Devices of the plugin opencl from the command line: what is listed, refused, and run on two of them."""
import json
import os
import signal
import subprocess
import sys
import time
import unittest

import support

try:
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper
except ImportError:
    print("skipped: python3-onnx is missing")
    sys.exit(77)

from support import BINARY, Case, DATA, MODELS, NEED_DATA, TWO_DEVICES as TWO, WEFT, opencl_devices

NEED_DEVICES = unittest.skipUnless(not isinstance(opencl_devices(), str), f"no OpenCL devices: {opencl_devices()}")

BUFFERS = {"WEFT_OPENCL_MEMORY": "buffer"}  # memory that other ranks do not reach

EAGER = """
import numpy as np, weft
c = weft.init()
x = np.arange(1000, dtype=np.float32) * (c.rank + 1)
y = weft.all_reduce(x)
assert (y == np.arange(1000) * 3).all(), y
z = weft.all_gather(np.full(3, c.rank, dtype=np.int32))
assert z.tolist() == [0, 0, 0, 1, 1, 1], z
"""

# Arrays on a device in calls of each kind, and what is refused.
ARRAYS = """
import gc, numpy as np, weft
c = weft.init()
n = c.size
def refused(error, text, function, *arguments, **keywords):
    try:
        function(*arguments, **keywords)
    except error as caught:
        assert text in str(caught), caught
    else:
        raise AssertionError(text)
a = weft.empty((3, 4), "float32", device="opencl")
assert isinstance(a, weft.DeviceArray) and a.device == f"opencl:{c.rank}" and a.context is c
assert (a.shape, a.dtype, a.nbytes) == ((3, 4), "float32", 48) and not a.numpy().any()
host = np.arange(12, dtype=np.float32).reshape(3, 4)
assert a.copy_(host * (c.rank + 1)) is a
b = weft.all_reduce(a)
assert isinstance(b, weft.DeviceArray) and (b.numpy() == host * 3).all()
assert weft.all_reduce_(a) is a and (a.numpy() == host * 3).all()
assert (a.copy_(host[:, ::-1]).numpy() == host[:, ::-1]).all() and (a.copy_(b).numpy() == b.numpy()).all()
assert weft.all_gather(weft.zeros((c.rank + 1, 2), "int16")).shape == (3, 2)
assert weft.reduce_scatter(weft.zeros((3, 2)), pad=True).shape == (2, 2)
assert (weft.reduce_scatter(weft.zeros((5,)).copy_(np.ones(5, "float32")), pad=True).numpy() == ([2] * 3, [2, 2, 0])[c.rank]).all()
assert weft.all_to_all(weft.zeros((4, 1), "float64")).shape == (4, 1)
assert weft.scatter(weft.zeros((2, 5)) if c.rank == 0 else None).shape == (1, 5)
out = np.empty((3, 4), np.float32)
assert weft.all_reduce(b, out=out) is out and (out == host * 6).all()
assert (weft.all_reduce(host, out=a).numpy() == host * 2).all()
assert (weft.all_reduce(b, async_op=True).wait().numpy() == host * 6).all()
stream, other = weft.Stream(), weft.Stream()
weft.all_reduce_(a, stream=stream)
other.wait_event(stream.record_event())
weft.all_reduce_(a, stream=other)
other.synchronize()
assert (a.numpy() == host * 8).all()
with weft.batch():
    x, y = weft.all_reduce(a), weft.all_reduce(b)
assert (x.numpy() == host * 16).all() and (y.numpy() == host * 6).all()
fuser = weft.Fuser()
fuser.add(a, name="a"), fuser.add(b, name="b")
fuser.wait()
assert (a.numpy() == host * 16).all() and (b.numpy() == host * 6).all()
fuser.destroy()
with weft.capture() as calls:
    weft.all_reduce_(a), weft.all_reduce_(b)
calls.launch()
assert (a.numpy() == host * 32).all() and (b.numpy() == host * 12).all()
calls.destroy()
refused(ValueError, "device: 'cpu', the context is on 'opencl", weft.empty, 3, device="cpu")
refused(TypeError, "device must be a string", weft.empty, 3, device=0)
refused(ValueError, "int32 of shape (3, 4), the array float32", a.copy_, host.astype(np.int32))
refused(ValueError, "of shape (4, 3)", a.copy_, host.reshape(4, 3))
refused(ValueError, "is on device opencl:", weft.register, a)
refused(ValueError, "device type 1, the context is on opencl", weft.from_dlpack, host)
with weft.Context(0, 1, device="opencl:0") as alone:
    refused(ValueError, "another context", weft.all_reduce, a, group=alone.world)
    refused(ValueError, "another context", a.copy_, weft.zeros((3, 4), context=alone))
    kept = weft.zeros(4, context=alone)
refused(weft.WeftStateError, "the context was closed", kept.numpy)
del x, y, b, kept
gc.collect()
weft.finalize()
refused(weft.WeftStateError, "the context was closed", a.numpy)
refused(weft.WeftStateError, "the context was closed", a.__dlpack__)
"""

# DLPack out, by the driver's own names; and in, of buffers that the program makes.
DLPACK = """
import ctypes, gc, numpy as np, os, weft
c = weft.init(device="opencl:0")
cl = ctypes.CDLL("libOpenCL.so.1")
class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("type", ctypes.c_int32), ("id", ctypes.c_int32), ("rank", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("dims", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64)]
class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]
pointer, new = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_New
pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
def tensor_of(array):
    capsule = array.__dlpack__()
    return capsule, Managed.from_address(pointer(capsule, b"dltensor")).tensor
a = weft.empty(1000, "float32").copy_(np.arange(1000, dtype=np.float32))
assert a.__dlpack_device__() == (4, 0)
capsule, tensor = tensor_of(a)
assert (tensor.type, tensor.id, tensor.rank, tensor.dims[0], tensor.code, tensor.bits) == (4, 0, 1, 1000, 2, 32)
size, context = ctypes.c_size_t(), ctypes.c_void_p()
assert cl.clGetMemObjectInfo(ctypes.c_void_p(tensor.data), 0x1102, 8, ctypes.byref(size), None) == 0
assert size.value >= tensor.offset + 4000, size
assert cl.clGetMemObjectInfo(ctypes.c_void_p(tensor.data), 0x1106, 8, ctypes.byref(context), None) == 0
class Foreign:  # another library's array
    def __init__(self, context, count, offset=0, device=4):
        code = ctypes.c_int32()
        cl.clCreateBuffer.restype = ctypes.c_void_p
        self.data = cl.clCreateBuffer(context, ctypes.c_uint64(1), ctypes.c_size_t(4 * count), None, ctypes.byref(code))
        assert code.value == 0, code
        self.dims, self.device = (ctypes.c_int64 * 1)(count - offset // 4), device
        self.struct = Managed(Tensor(self.data, 4, 0, 1, 2, 32, 1, self.dims, None, offset))
    def __dlpack_device__(self):
        return self.device, 0
    def __dlpack__(self):
        return new(ctypes.addressof(self.struct), b"dltensor", None)
    def references(self):
        count = ctypes.c_uint32()
        assert cl.clGetMemObjectInfo(ctypes.c_void_p(self.data), 0x1105, 4, ctypes.byref(count), None) == 0
        return count.value
foreign = Foreign(context, 500, 400)
wrapped = weft.from_dlpack(foreign)
assert wrapped.shape == (400,) and foreign.references() == 2
wrapped.copy_(np.arange(400, dtype=np.float32))
assert (weft.all_reduce(wrapped).numpy() == np.arange(400)).all()
twice = weft.from_dlpack(wrapped)
twice.copy_(np.ones(400, "float32"))
assert (wrapped.numpy() == 1).all()
held, again = tensor_of(twice)
assert (again.data, again.offset) == (foreign.data, 400)
del held, again
del wrapped
gc.collect()
assert foreign.references() == 2 and (twice.numpy() == 1).all()
del twice
gc.collect()
assert foreign.references() == 1
for wrong, error, text in ((Foreign(context, 100, device=2), ValueError, "device type 2"),
                           (Foreign(context, 0 + 100, 400), ValueError, "no memory")):
    wrong.dims[0] = 0 if wrong.device == 4 else 100
    wrong.struct.tensor.offset = 0
    try:
        weft.from_dlpack(wrong)
    except error as caught:
        assert text in str(caught), caught
    else:
        raise AssertionError(text)
short = Foreign(context, 100)
short.dims[0] = 101
try:
    weft.from_dlpack(short)
except weft.WeftArgumentError as caught:
    assert "has 400 bytes: expected at least 404" in str(caught), caught
else:
    raise AssertionError("too short")
with weft.Context(0, 1, device="opencl:1") as other: # a cl_context of its own
    theirs = tensor_of(weft.empty(1000, context=other))
    stranger = Foreign(context, 10)
    stranger.struct.tensor.data = theirs[1].data
    try:
        weft.from_dlpack(stranger)
    except weft.WeftUnsupportedError as caught:
        assert "another cl_context" in str(caught), caught
    else:
        raise AssertionError("another context")
    del theirs
host = a.__dlpack__(dl_device=(1, 0), max_version=(1, 0))
class Once:
    def __dlpack_device__(self):
        return 1, 0
    def __dlpack__(self, **_):
        return host
shared = os.environ.get("WEFT_OPENCL_MEMORY") != "buffer"
view = weft.Context(0, 1, device="cpu")
back = weft.all_reduce(Once(), group=view.world)
assert (np.asarray(back) == np.arange(1000)).all()
try:
    a.__dlpack__(dl_device=(1, 0), copy=False)
except BufferError as caught:
    assert not shared and "without a copy" in str(caught), caught
else:
    assert shared
for wrong in ({"dl_device": (2, 0)}, {"dl_device": (4, 1)}, {"copy": True}):
    try:
        a.__dlpack__(**wrong)
    except BufferError:
        continue
    raise AssertionError(wrong)
assert '"dltensor"' in repr(a.__dlpack__(dl_device=(1, 0), copy=True)) # no version was asked for
huge = Foreign(context, 100)
huge.dims[0], huge.struct.tensor.bits, huge.struct.tensor.offset = 2**61, 64, 64 # 2**64 bytes
try:
    weft.from_dlpack(huge)
except ValueError as caught:
    assert "invalid dimensions" in str(caught), caught
else:
    raise AssertionError("2**64 bytes")
class Closes:
    def __init__(self, context):
        self.context = context
    def __getitem__(self, index):
        self.context.close()
        return 1 - index
    def __bool__(self):
        self.context.close()
        return False
for wrong in ("dl_device", "copy"):
    alone = weft.Context(0, 1, device="opencl:0")
    array = weft.zeros(3, context=alone)
    try:
        array.__dlpack__(**{"dl_device": (1, 0), wrong: Closes(alone)})
    except weft.WeftStateError as caught:
        assert "the context was closed" in str(caught), caught
    else:
        raise AssertionError(wrong)
del capsule, tensor, foreign
"""

INIT = """
import array, weft
for wrong, error in ((3, TypeError), ("opencl:99", weft.WeftError), ("Open CL", ValueError)):
    try:
        weft.init(device=wrong)
    except error as caught:
        assert str(wrong) in str(caught) or wrong == 3, caught
    else:
        raise AssertionError(wrong)
with weft.Context(device="opencl:0") as c:
    assert c.world.size == 1
weft.init(device="opencl:0")
assert list(weft.all_reduce(array.array("d", [1.0, 2.0]))) == [1.0, 2.0]
"""


def attention(length, heads, kv_heads, causal, masked, width=20):
    """A model of one Attention, with a loss for each row."""
    rng, each = np.random.default_rng(1), width // heads
    mask = (rng.standard_normal((heads, length, length)) + np.where(np.arange(length) % 5 == 0, -3e38, 0)[:, None])
    tensors = {"w": rng.standard_normal((width, width + 2 * kv_heads * each)).astype(np.float32) / 3,
               "parts": np.array([width, kv_heads * each, kv_heads * each]), "out": np.ones((width, 8), np.float32),
               "rows": np.array([-1, 8]), "flat": np.array([-1])}
    tensors.update({"mask": mask[None].astype(np.float32)} if masked else {})
    node = helper.make_node
    nodes = [node("MatMul", ["x", "w"], ["qkv"]), node("Split", ["qkv", "parts"], ["q", "k", "v"], axis=2),
             node("Attention", ["q", "k", "v"] + ["mask"] * masked, ["y"], q_num_heads=heads, kv_num_heads=kv_heads,
                  is_causal=causal),
             node("MatMul", ["y", "out"], ["z"]), node("Reshape", ["z", "rows"], ["logits"]),
             node("Reshape", ["label", "flat"], ["labels"]),
             node("SoftmaxCrossEntropyLoss", ["logits", "labels"], ["loss"])]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "attention",
        [value("x", onnx.TensorProto.FLOAT, ["batch", length, width]), value("label", onnx.TensorProto.INT64, ["batch", length])],
        [value("loss", onnx.TensorProto.FLOAT, []), value("logits", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])


FUNCTIONS = (("Tanh", {}), ("Sigmoid", {}), ("Relu", {}), ("Erf", {}), ("Gelu", {}), ("Gelu", {"approximate": "tanh"}),
             ("Exp", {}), ("Neg", {}), ("Abs", {}), ("Softsign", {}), ("Elu", {"alpha": 0.7}), ("LeakyRelu", {}),
             ("HardSigmoid", {"alpha": 0.3}), ("HardSwish", {}), ("Swish", {"alpha": 1.5}), ("Floor", {}), ("Ceil", {}),
             ("Round", {}), ("Sign", {}), ("Softmax", {}), ("LogSoftmax", {}))


def functions(width=37):
    """A model whose scores add up what all these functions of a product give."""
    rng, node = np.random.default_rng(1), helper.make_node
    tensors = {"w": rng.standard_normal((20, width)) / 5, "out": rng.standard_normal((width, 8)) / 10, "half": 0.5}
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Abs", ["h"], ["a"]), node("Add", ["a", "half"], ["positive"])]
    terms = [(op, ["h"], attributes) for op, attributes in FUNCTIONS]
    terms += [(op, ["positive"], {}) for op in ("Sqrt", "Log", "Reciprocal")]
    terms += [(op, ["h", "positive"], {}) for op in ("Sub", "Div", "Max", "Min", "Mul")]
    for exponent in (2, 3, 0.5, -0.5, -1, 1):
        tensors[f"exponent{exponent}"] = exponent
        terms.append(("Pow", ["positive", f"exponent{exponent}"], {}))
    for i, (op, inputs, attributes) in enumerate(terms):
        nodes += [node(op, inputs, [f"term{i}"], **attributes), node("Add", [f"sum{i - 1}" if i > 0 else "h", f"term{i}"], [f"sum{i}"])]
    nodes += [node("MatMul", [f"sum{len(terms) - 1}", "out"], ["logits"]),
              node("SoftmaxCrossEntropyLoss", ["logits", "label"], ["loss"])]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "functions",
        [value("x", onnx.TensorProto.FLOAT, ["batch", 20]), value("label", onnx.TensorProto.INT64, ["batch"])],
        [value("loss", onnx.TensorProto.FLOAT, []), value("logits", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.float32(array), name) for name, array in tensors.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])


class OpenCL(Case):
    @NEED_DEVICES
    def test_devices_are_listed(self):
        text = self.weft("info", "--devices", env=TWO).stdout
        for index, device in enumerate(opencl_devices()):
            self.assertEqual(device["device"], f"opencl:{index}")
            self.assertGreater(device["memory_bytes"], 0)
            self.assertGreater(device["compute_units"], 0)
            self.assertIn(f"opencl:{index} ", text)
            self.assertIn(device["name"], text)
        name = opencl_devices()[0]["name"]
        self.weft("run", "-n", 1, "--device", f"opencl:{name}", "--", WEFT, "bench", "all_reduce", "--min", "8",
                  "--max", "8", env=TWO)

    @NEED_DEVICES
    def test_an_error_of_a_plugin_hides_no_other_one(self):
        env = {**TWO, "WEFT_DEVICE": "nothing:0"}
        run = self.weft("info", "--devices", env=env)
        self.assertIn("opencl:0 ", run.stdout)
        self.assertIn("libweft_nothing.so", run.stderr)
        listed = json.loads(self.weft("info", "--devices", "--json", env=env).stdout)
        self.assertEqual([device["device"] for device in listed["devices"]][:2], ["opencl:0", "opencl:1"])
        self.assertEqual(len(listed["errors"]), 1)
        self.assertIn("libweft_nothing.so", listed["errors"][0])

    @NEED_DEVICES
    def test_buffers_are_not_shared(self):
        listed = json.loads(self.weft("info", "--devices", "--json", env={"WEFT_OPENCL_MEMORY": "buffer"}).stdout)
        self.assertFalse(listed["devices"][0]["peer_direct"])
        self.assertIn("host memory", listed["devices"][0]["note"])
        self.assertIn("OpenCL", listed["devices"][0]["platform"])

    @NEED_DEVICES
    def test_what_is_not_there_is_refused(self):
        bench = ("--", WEFT, "bench", "all_reduce", "--max", "8")
        for device, words in (("opencl:7", "no such index"), ("opencl:none such", "has \"none such\" in it"),
                              ("Open", "invalid device plugin"), ("nothing:0", "libweft_nothing.so")):
            run = self.weft("run", "-n", 1, "--device", device, *bench, code=2)
            self.assertIn(words, run.stderr)

    def test_bits_of_a_plan(self):
        """The fake card of the tests promises nothing about its bits."""
        fake = {"WEFT_DEVICE_PATH": str(BINARY / "tests")}
        for device, bits in (("cpu", "cpu"), ("fake:0", "device"), ("fake:0,1", "device")):
            self.weft("compile", MODELS / "mlp.onnx", "-o", "p.weft", "-n", 2, "--batch", 7, "--device", device, env=fake)
            explained = self.weft_json("explain", "p.weft")
            self.assertEqual((explained["device"], explained["bits"]), (device, bits))
        self.assertIn("compiled for device fake:0,1; f32 results have bits of the device's own", self.weft("explain", "p.weft").stdout)

    def test_without_plugin_or_driver(self):
        run = self.weft("info", "--devices", env={"WEFT_DEVICE_PATH": "/nowhere"}, code=2)
        self.assertIn("/nowhere/libweft_opencl.so", run.stderr)
        if (BINARY / "libweft_opencl.so").exists():
            run = self.weft("info", "--devices", env={"OCL_ICD_VENDORS": "/nowhere"}, code=2)
            self.assertIn("no platform", run.stderr)

    @NEED_DEVICES
    def test_bench(self):
        rows = self.weft_json("bench", "all_reduce", "--device", "opencl:0,1", "--max", "4K", "--iterations", 20, "--check", env=TWO)["rows"]
        self.assertTrue(rows)
        self.assertEqual({row["wrong"] for row in rows}, {0})
        run = self.weft("bench", "all_reduce", "--device", "opencl", "--max", "8", env={"WEFT_OPENCL_MEMORY": "buffer"}, code=2)
        self.assertIn("not accessible by the host", run.stderr)

    @NEED_DEVICES
    def test_eager_calls_between_two_devices(self):
        if support.SANITIZED or not (BINARY / "python" / "weft" / "_core.abi3.so").exists():
            self.skipTest("no interpreter that is sanitized")
        env = {**TWO, "PYTHONPATH": str(BINARY / "python")}
        for memory in ("shared", "buffer"):
            memory = {**env, "WEFT_OPENCL_MEMORY": memory}
            for program in (EAGER, ARRAYS):
                self.weft("run", "-n", 2, "--device", "opencl:0,1", "--", sys.executable, "-c", program, env=memory)
            self.weft("run", "-n", 1, "--", sys.executable, "-c", DLPACK, env=memory)
        self.weft("run", "-n", 1, "--", sys.executable, "-c", INIT, env=env)

    def digests(self, model, *options, world=2, steps=3, ways=({},), data=DATA):
        """Of the parameters after some steps: on the CPU, and on devices in each way."""
        arguments = {"world": world, "steps": steps, "data": data}
        cpu = self.train(MODELS / model, *options, **arguments)["param_digest"]
        return cpu, [self.train(MODELS / model, *options, "--device", "opencl:0,1", env={**TWO, **way},
                                **arguments)["param_digest"] for way in ways]

    @NEED_DEVICES
    @NEED_DATA
    def test_an_mlp_has_the_bits_of_the_cpu(self):
        for options in ((), ("--optimizer", "adam"), ("--optimizer", "adamw", "--weight-decay", "0.1"),
                        ("--optimizer", "sgd", "--weight-decay", "0.01"), ("--optimizer", "adagrad"),
                        ("--shard-optimizer",), ("--accumulate", 3))[::3 if support.SANITIZED else 1]:
            cpu, devices = self.digests("mlp.onnx", "--batch", 7, *options)
            self.assertEqual([cpu], devices, options)
        for world, ways in ((3, ({},)), (1, ({}, BUFFERS))):
            cpu, devices = self.digests("mlp.onnx", "--batch", 1, world=world, ways=ways)
            self.assertEqual([cpu] * len(ways), devices, world)

    @NEED_DEVICES
    @NEED_DATA
    def test_devices_that_do_not_reach_each_other(self):
        """Collectives run on a mirror of the arena: buffers on one host, and hosts that share nothing."""
        large = ("--bucket", "one")  # of several chunks
        rows = ((2, ()), (3, ("--shard-optimizer",)), (2, ("--decouple",)), (2, ("--accumulate", 2)),
                (2, large), (3, (*large, "--shard-optimizer")))
        for world, options in rows[1::4] if support.SANITIZED else rows:
            ways = (BUFFERS, {"WEFT_TRANSPORT": "tcp"}, {**BUFFERS, "WEFT_PROGRESS": "inline"})[:2 if options[:2] == large else 3]
            cpu, devices = self.digests("mlp.onnx", "--batch", 7, *options, world=world, ways=ways)
            self.assertEqual([cpu] * len(ways), devices, options)

    @unittest.skipIf(support.SANITIZED, "takes long; the other cases reach the same code")
    @NEED_DEVICES
    @NEED_DATA
    def test_a_timeline_has_the_queues_of_the_devices(self):
        """Commands with the names of nodes and collectives, by the device's clock, one after the other in each queue."""
        for way in ({}, BUFFERS):
            report = self.train(MODELS / "mlp.onnx", "--device", "opencl:0,1", "--trace", "t.json", "--batch", 7, "--bucket", "one",
                                world=2, steps=3, env={**TWO, **way})
            self.assertEqual(report["timeline"]["first_step"], 1)
            events = json.loads((self.dir / "t.json").read_text())["traceEvents"]
            names = {(event["pid"], event["args"]["name"]): event["tid"] for event in events if event["name"] == "thread_name"}
            self.assertEqual(len(set(names.values())), len(names))
            for rank in range(2):
                seen = {}
                for stream in ("compute", "comm"):
                    row = names[rank, f"{stream} on opencl:{rank}"]
                    slices = [event for event in events if event["ph"] == "X" and event["tid"] == row]
                    for before, after in zip(slices, slices[1:]):
                        self.assertLessEqual(before["ts"] + before["dur"], after["ts"] + 0.01)
                    for event in slices:
                        seen.setdefault(event["args"]["command"], set()).add((event["name"], event["args"].get("step")))
                steps = {step for _, step in seen["kernel"]}
                self.assertLessEqual({1, 2, 3}, steps)
                self.assertLessEqual({"fc1", "relu1"}, {name for name, _ in seen["kernel"]})
                self.assertTrue(any(name.startswith("bucket") for command in seen for name, _ in seen[command]), seen)
                if way == BUFFERS:  # chunks of the bucket, 2.2 MB, leave in one queue and come back in another
                    for row, command in (("comm", "read"), ("comm in", "write")):
                        moved = [event for event in events if event["ph"] == "X" and event["args"].get("command") == command
                                 and event["tid"] == names[rank, f"{row} on opencl:{rank}"] and event["args"].get("step") == 2
                                 and event["name"] == "bucket 0"]
                        self.assertGreaterEqual(len(moved), 3, row)

    @unittest.skipIf(support.SANITIZED, "takes long; the other cases reach the same code")
    @NEED_DEVICES
    @NEED_DATA
    def test_lenet_has_the_bits_of_the_cpu(self):
        for batch in (17, 7, 1):  # sixteen images at once and the rest; planes of one image
            cpu, devices = self.digests("lenet.onnx", "--batch", batch, steps=2)
            self.assertEqual([cpu], devices, batch)

    @NEED_DEVICES
    def test_transformers_have_the_bits_of_the_cpu(self):
        """Language models with causal and padded masks, an encoder, rotary positions, relative ones."""
        tokens = np.random.default_rng(3).integers(0, 48, (8, 8))
        arrays = {"input": tokens, "input0": tokens, "input1": np.tile([1, 1, 1, 1, 1, 1, 0, 0], (8, 1))}
        np.savez(self.dir / "language.npz", label=tokens, **arrays)
        np.savez(self.dir / "classes.npz", label=tokens[:, 0] % 5, **arrays)
        images = np.random.default_rng(4).random((8, 3, 16, 16), dtype=np.float32)
        np.savez(self.dir / "images.npz", label=tokens[:, 0] % 5, input=images)
        np.savez(self.dir / "t5.npz", label=tokens[:, 2:], input0=tokens, input1=tokens[:, 2:])
        np.tile(tokens.astype("<u2"), (3, 1)).tofile(self.dir / "t.bin")
        models = ((support.SOURCE / "tests/data/torch_gpt.onnx", "t.bin"),
                  ("families/gpt2.onnx", "language.npz"), ("families/gpt2.dynamo.onnx", "language.npz"),
                  ("families/bert.onnx", "classes.npz"), ("families/bert.dynamo.onnx", "classes.npz"),
                  ("families/llama.onnx", "language.npz"), ("families/t5.dynamo.onnx", "t5.npz"),
                  ("families/vit.dynamo.onnx", "images.npz"), ("families/lstm.onnx", "language.npz"))
        for model, data in models[::4 if support.SANITIZED else 1]:
            cpu, devices = self.digests(model, "--batch", 2, "--optimizer", "adamw", steps=2, data=self.dir / data,
                                        ways=({}, BUFFERS))
            self.assertEqual([cpu, cpu], devices, model)
        for options in (("--clip", "0.5"), ("--clip", "0.1", "--accumulate", 2), ("--lr-schedule", "step", "--lr-steps", 2),
                        ("--lr-schedule", "linear"), ("--lr-schedule", "cosine", "--warmup-steps", 1, "--shard-optimizer")):
            cpu, devices = self.digests(support.SOURCE / "tests/data/torch_gpt.onnx", "--batch", 2, *options, data=self.dir / "t.bin")
            self.assertEqual([cpu], devices, options)

    @NEED_DEVICES
    def test_attention_of_several_blocks(self):
        """Of 128 queries and keys; heads that share keys, and a mask so large that sums of rows are coarse."""
        for length, heads, keys, causal, mask in ((150, 2, 2, 1, False), (300, 2, 1, 1, False), (150, 4, 2, 0, True)):
            rng = np.random.default_rng(2)
            np.savez(self.dir / "a.npz", x=rng.standard_normal((8, length, 20)).astype(np.float32),
                     label=rng.integers(0, 8, (8, length)))
            model = self.save(attention(length, heads, keys, causal, mask))
            options = ("--freeze", "mask") if mask else ()
            cpu, devices = self.digests(model, "--batch", 2, "--lr", "0.1", *options, data=self.dir / "a.npz")
            self.assertEqual([cpu], devices, (length, heads, keys))

    @unittest.skipIf(support.SANITIZED, "takes long; the other cases reach the same code")
    @NEED_DEVICES
    def test_functions_of_elements(self):
        rng = np.random.default_rng(2)
        np.savez(self.dir / "f.npz", x=rng.standard_normal((12, 20)).astype(np.float32), label=rng.integers(0, 8, 12))
        for world in (1, 2):  # 37 columns: elements of several rows in a vector, and a rest
            cpu, devices = self.digests(self.save(functions()), "--batch", 3, "--lr", "0.0001", data=self.dir / "f.npz", world=world)
            self.assertEqual([cpu], devices)

    @NEED_DEVICES
    def test_dropout_has_the_masks_of_the_cpu(self):
        rng = np.random.default_rng(3)
        np.savez(self.dir / "d.npz", image=rng.random((32, 1, 8, 8), dtype=np.float32), label=rng.integers(0, 5, 32))
        model = support.SOURCE / "tests/data/torch_dropout.onnx"
        cpu, devices = self.digests(model, "--batch", 5, data=self.dir / "d.npz", world=2)  # no multiple of 4
        self.assertEqual([cpu], devices)

    @NEED_DEVICES
    def test_a_loss_of_no_rows(self):
        value, types = helper.make_tensor_value_info, onnx.TensorProto
        for outputs in (["loss"], ["loss", "log"]):
            graph = helper.make_graph(
                [helper.make_node("SoftmaxCrossEntropyLoss", ["x", "label"], outputs, reduction="sum")], "rows",
                [value("x", types.FLOAT, [0, 10]), value("label", types.INT64, [0])], [value(name, types.FLOAT, None) for name in outputs])
            model = self.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]))
            (self.dir / "in").mkdir(exist_ok=True)
            for name, array in (("x", np.zeros((0, 10), np.float32)), ("label", np.zeros(0, np.int64))):
                (self.dir / "in" / f"{name}.pb").write_bytes(numpy_helper.from_array(array, name).SerializeToString())
            for device in ("cpu", "opencl:0"):
                self.weft("run", model, "-n", 1, "--infer", "--inputs", "in", "--outputs", device, "--device", device)
                loss = onnx.load_tensor(str(self.dir / device / "loss.pb"))
                self.assertEqual(numpy_helper.to_array(loss), 0.0)

    @NEED_DEVICES
    def test_an_index_out_of_range_is_an_error(self):
        np.full((16, 8), 99, "<u2").tofile(self.dir / "t.bin")
        run = self.weft("run", support.SOURCE / "tests/data/torch_gpt.onnx", "-n", 1, "--batch", 2, "--steps", 1,
                        "--data", self.dir / "t.bin", "--no-eval", "--device", "opencl", code=2)
        self.assertIn("label or index", run.stderr)

    @unittest.skipIf(support.SANITIZED, "takes long; the other cases reach the same code")
    @NEED_DEVICES
    @NEED_DATA
    def test_accuracy_is_that_of_the_cpu(self):
        plan = self.compile("mlp.onnx", "plan.weft", 2, 100)
        reports = [self.train(plan, "--device", device, steps=3, evaluate=True, env=TWO) for device in ("cpu", "opencl:0,1")]
        self.assertEqual(reports[0]["test_accuracy"], reports[1]["test_accuracy"])
        self.assertEqual(reports[0]["param_digest"], reports[1]["param_digest"])

    @NEED_DEVICES
    @NEED_DATA
    def test_checkpoints_are_those_of_the_cpu(self):
        """Written on devices and continued there, from the files of the CPU."""
        plan = self.compile("mlp.onnx", "plan.weft", 2, 8, "--optimizer", "adam", "--shard-optimizer")
        self.train(plan, "--checkpoint", "cpu.st", steps=2)
        expected = self.train(plan, "--resume", "cpu.st", steps=3)["param_digest"]
        for name, way in (("shared", {}), ("buffer", BUFFERS)):
            on_devices = {"env": {**TWO, **way}}
            self.train(plan, "--device", "opencl:0,1", "--checkpoint", f"{name}.st", steps=2, **on_devices)
            self.assertEqual((self.dir / f"{name}.st").read_bytes(), (self.dir / "cpu.st").read_bytes(), name)
            report = self.train(plan, "--device", "opencl:0,1", "--resume", "cpu.st", steps=3, **on_devices)
            self.assertEqual(report["param_digest"], expected, name)

    @NEED_DEVICES
    @NEED_DATA
    def test_plans_that_cannot_run_are_refused(self):
        """By the compiler that knows the device, and by ranks; all nodes in one error."""
        model = MODELS / "families" / "swin.dynamo.onnx"
        for device in ("opencl:0", "opencl:0,1"):
            run = self.weft("compile", model, "-o", "p.weft", "-n", 2, "--batch", 2, "--optimizer", "lamb", "--device", device, code=2, env=TWO)
            self.assertIn('device "opencl:0" does not support', run.stderr)
            for words in ("(Lamb): it has no kernel", "node 'node_pad' (Pad): it has no kernel (4 nodes)"):
                self.assertIn(words, run.stderr)
            self.assert_one_line(run.stderr)
            self.assertFalse((self.dir / "p.weft").exists())
        plan = self.compile("mlp.onnx", "lamb.weft", 2, 7, "--optimizer", "lamb", "--device", "cpu")
        run = self.weft("run", plan, "-n", 2, "--data", DATA, "--steps", 1, "--no-eval", "--device", "opencl", code=2)
        self.assertIn('device "opencl:0" does not support 6 nodes', run.stderr)
        plan = self.compile("mlp.onnx", "p.weft", 2, 7, "--device", "opencl")
        explained = self.weft_json("explain", plan)
        self.assertEqual((explained["device"], explained["bits"]), ("opencl", "cpu"))
        self.assertIn("compiled for device opencl; f32 results have the bits of the CPU", self.weft("explain", plan).stdout)
        run = self.weft("compile", MODELS / "mlp.onnx", "-o", "p.weft", "-n", 2, "--batch", 7, "--device", "opencl:77", code=2)
        self.assertIn("no such index", run.stderr)

    @NEED_DEVICES
    @NEED_DATA
    def test_a_rank_that_dies_ends_the_others(self):
        """In memory that ranks share, in buffers, and between hosts."""
        plan = self.compile("mlp.onnx", "plan.weft", 3, 32)
        for way in ({}, BUFFERS, {"WEFT_TRANSPORT": "tcp"})[1 if support.SANITIZED else 0:]:
            run = subprocess.Popen([WEFT, "run", str(plan), "-n", "3", "--data", DATA, "--steps", "1000000", "--no-eval",
                                    "--device", "opencl:0,1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env={**os.environ, **TWO, **way}, cwd=self.dir)
            self.addCleanup(run.kill)
            ranks = []
            while len(ranks) < 3 and run.poll() is None:
                with open(f"/proc/{run.pid}/task/{run.pid}/children") as file:
                    ranks = file.read().split()
            trained = 0  # seconds of a processor: it is in its steps by then
            while trained < 0.8 and run.poll() is None:
                with open(f"/proc/{ranks[1]}/stat") as file:
                    fields = file.read().rsplit(")", 1)[1].split()
                trained = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                time.sleep(0.05)
            os.kill(int(ranks[1]), signal.SIGKILL)
            _, err = run.communicate(timeout=support.PROMPT)
            self.assertEqual(run.returncode, 1, err)
            self.assertRegex(err, rf"(?m)^weft run: rank 1 \(pid {ranks[1]}\) was killed by signal 9")
            self.assertEqual(err.count("was killed by signal"), 1, err)
            for rank in ranks:
                self.assertFalse(os.path.exists(f"/proc/{rank}"), err)

    def by_hand(self, *ranks):
        """Ends and messages of ranks: what each runs, and its device."""
        address = f"unix:@weft-test-opencl-{os.getpid()}"
        runs = [subprocess.Popen([WEFT, "run", str(plan), "--data", DATA, "--steps", "2", "--no-eval", "--device", device],
                                 stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                 env={**os.environ, **TWO, "WEFT_RANK": str(rank), "WEFT_WORLD_SIZE": str(len(ranks)),
                                      "WEFT_ADDRESS": address})
                for rank, (plan, device) in enumerate(ranks)]
        for run in runs:
            self.addCleanup(run.kill)
        return [(run.communicate(timeout=support.PROMPT)[1], run.returncode) for run in runs]

    @unittest.skipIf(support.SANITIZED, "takes long; the other cases reach the same code")
    @NEED_DEVICES
    @NEED_DATA
    def test_ranks_that_disagree_are_refused(self):
        plans = [self.compile("mlp.onnx", "a.weft", 2, 8, "--bucket", "one"),
                 self.compile("mlp.onnx", "b.weft", 2, 8, "--bucket", "none")]
        digests = [self.weft_json("explain", plan)["structure_digest"][:12] for plan in plans]
        for err, code in self.by_hand((plans[0], "opencl:0"), (plans[1], "opencl:1")):
            self.assertEqual(code, 1, err)
            for digest in digests:
                self.assertIn(digest, err)
        for err, code in self.by_hand((plans[0], "opencl:0"), (plans[0], "cpu")):
            self.assertEqual(code, 1, err)
            self.assertIn("rank 0 is on a device, rank 1 on the CPU", err)


if __name__ == "__main__":
    support.main()
