#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What goes in and what comes out: every kind of memory, every type, and results like what was given."""
import array
import ctypes
import gc
import importlib.util
import mmap
import sys
import unittest

import ranks

np = ranks.need("numpy")
import weft

try:
    import torch
except ImportError:
    torch = None

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

NUMBERS = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")
torch_only = unittest.skipIf(torch is None, "torch is not installed")


class Exporter:
    """Has DLPack, and neither the buffer protocol nor anything else."""

    def __init__(self, array, device=(1, 0), versioned=False):
        self.array, self.device, self.versioned = array, device, versioned

    def __dlpack__(self, **keywords):
        if not self.versioned and "max_version" in keywords:
            raise TypeError("an exporter of before version 1")
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.device


class Numpy(ranks.RankCase):
    """Arrays of numpy."""

    def test_types(self):
        for dtype in NUMBERS:
            with self.subTest(dtype=dtype):
                x = (np.arange(37) + self.rank).astype(dtype)
                expected = (2 * np.arange(37) + 1).astype(dtype)
                y = weft.all_reduce(x)
                self.assertEqual(y.dtype, np.dtype(dtype))
                np.testing.assert_array_equal(y, expected)
                weft.all_reduce_(x)
                np.testing.assert_array_equal(x, expected)

    def test_c_types(self):
        """Types that C has under several names are one type here."""
        for code in "bhilqpBHILQPefd":
            x = np.full(5, self.rank + 1, code)
            y = weft.all_reduce(x)
            self.assertEqual((y.dtype.kind, y.dtype.itemsize), (x.dtype.kind, x.dtype.itemsize), code)
            np.testing.assert_array_equal(y, np.full(5, 3, code))

    def test_bool_is_moved(self):
        x = np.array([True, False, self.rank == 1])
        y = weft.all_gather(x)
        self.assertEqual(y.dtype, np.dtype(bool))
        np.testing.assert_array_equal(y, [True, False, False, True, False, True])
        weft.broadcast(x, 1)
        np.testing.assert_array_equal(x, [True, False, True])

    @unittest.skipIf(ml_dtypes is None, "ml_dtypes is not installed")
    def test_bfloat16(self):
        x = np.full((3, 2), self.rank + 0.5, ml_dtypes.bfloat16)
        y = weft.all_reduce(x)
        self.assertEqual(y.dtype, x.dtype)
        np.testing.assert_array_equal(y.astype("float32"), np.full((3, 2), 2.0, "float32"))
        self.assertEqual(weft.empty(4, ml_dtypes.bfloat16).dtype, x.dtype)

    def test_shapes(self):
        for shape in ((), (0,), (1,), (0, 5), (3, 0, 2), (2, 3), (1,) * 8, (2, 1, 3, 1, 2)):
            with self.subTest(shape=shape):
                x = np.full(shape, self.rank + 1, "int32")
                y = weft.all_reduce(x)
                self.assertEqual(y.shape, shape)
                np.testing.assert_array_equal(y, np.full(shape, 3))
                self.assertTrue(y.flags.c_contiguous and y.flags.writeable and y.flags.owndata)

    def test_too_many_dimensions(self):
        with self.raises_within(ValueError, "tensor.* too many dimensions: 9.* 8"):
            weft.all_reduce(np.zeros((1,) * 9))

    def test_views_without_gaps(self):
        """What is contiguous, however it came about."""
        whole = np.arange(60, dtype="f").reshape(5, 12)
        for view in (whole[1:3], whole[2], whole[4:5, ::1], whole.reshape(3, 20)[1:], whole[1:2, 3:7], whole.T.T,
                     np.zeros((3, 4), "f", order="F").T, np.arange(3, dtype="f")[None], whole[::7]):
            y = weft.all_reduce(view)
            self.assertEqual(y.shape, view.shape)
            np.testing.assert_array_equal(y, 2 * view)

    def test_parts_are_written_and_no_more(self):
        x = np.full((6, 3), self.rank, "f")
        weft.all_reduce_(x[2:4])
        np.testing.assert_array_equal(x, [[1 if i in (2, 3) else self.rank] * 3 for i in range(6)])

    def test_odd_addresses(self):
        room = bytearray(41)
        for dtype in ("i2", "f4", "f8"):
            x = np.frombuffer(room, dtype, offset=1)
            self.assertFalse(x.flags.aligned)
            with self.raises_within(ValueError, f"tensor: {np.dtype(dtype).name} at an address .* copy it"):
                weft.all_reduce(x)
            weft.all_reduce(x.copy())
        weft.all_reduce_(np.frombuffer(room, "i1", offset=1))
        weft.all_reduce_(np.frombuffer(room, "f4", 9, offset=4))
        with self.raises_within(ValueError, "at an address"):
            weft.all_reduce(memoryview(room)[1:].cast("f"))
        del x
        room.append(1)  # nothing holds it any more

    def test_subclasses(self):
        class Mine(np.ndarray):
            pass
        x = np.full(4, self.rank + 1, "f").view(Mine)
        self.assertEqual(weft.all_reduce(x).tolist(), [3] * 4)
        weft.all_reduce_(x)
        self.assertEqual(x.tolist(), [3] * 4)
        path = self.dir / f"{self.rank}.bin"
        on_disk = np.memmap(path, "f", "w+", shape=(2, 2))
        on_disk[:] = self.rank
        weft.all_reduce_(on_disk)
        self.assertEqual(np.asarray(on_disk).tolist(), [[1, 1]] * 2)

    def test_scalars(self):
        """numpy's scalars have memory, too, but it is read-only."""
        y = weft.all_reduce(np.float32(self.rank + 1))
        self.assertEqual((y.shape, y.dtype, float(y)), ((), np.dtype("f"), 3.0))
        with self.raises_within(ValueError, "float32 whose memory is read-only"):
            weft.all_reduce_(np.float32(1))

    def test_messages(self):
        x = np.zeros((4, 4), "f")
        x.flags.writeable = False
        with self.raises_within(ValueError, "tensor is a numpy array that is read-only"):
            weft.all_reduce_(x)
        for dtype, name in (("complex64", "complex64"), ("M8[s]", "datetime64"), (">i2", "big-endian"),
                            ("O", "object")):
            with self.raises_within(TypeError, f"tensor is a numpy array of .*{name}"):
                weft.all_reduce(np.zeros(3, dtype))

    def test_references(self):
        """A call keeps nothing: neither what was given, nor what it made, nor on its way out by an exception."""
        def counts():
            return [sys.getrefcount(thing) for thing in things]
        x, view, dlpack = np.zeros(8, "f"), memoryview(bytearray(32)), Exporter(np.zeros(8, "f"))
        gaps, wrong, dtype = np.zeros((4, 4), "f")[:, 1], np.zeros(3, "c8"), np.dtype("f")
        things = [x, view, dlpack, dlpack.array, gaps, wrong, dtype, np.ndarray, memoryview]
        for repetition in range(2):  # the first one fills what is looked up once
            before = counts()
            for _ in range(50):
                weft.all_reduce(x)
                weft.all_reduce_(x)
                weft.all_reduce(view)
                weft.all_reduce(dlpack)
                weft.all_gather(x)
                weft.all_reduce(gaps)
                weft.all_reduce_(gaps, async_op=True).wait()
                with self.assertRaises((TypeError, ValueError)):
                    weft.all_reduce(wrong)
            gc.collect()
            if repetition == 1:
                for was, now, thing in zip(before, counts(), things):
                    self.assertLess(abs(now - was), 25, type(thing))


class Buffers(ranks.RankCase):
    """What else has the buffer protocol; results are arrays of numpy."""

    def check(self, x, dtype, values):
        y = weft.all_reduce(x)
        self.assertIs(type(y), np.ndarray)
        self.assertEqual(y.dtype, np.dtype(dtype))
        np.testing.assert_array_equal(y, values)
        self.assertIs(weft.all_reduce_(x), x)
        np.testing.assert_array_equal(np.asarray(x), values)

    def test_array_module(self):
        for code in "bBhHiIlLqQfd":
            x = array.array(code, [self.rank + 1] * 7)
            self.check(x, code, [3] * 7)
            x.append(1)  # nothing holds its memory any more

    def test_bytes(self):
        self.check(bytearray([1 + self.rank] * 5), "u1", [3] * 5)
        self.assertEqual(weft.all_gather(bytes([self.rank, 7])).tolist(), [0, 7, 1, 7])
        with self.raises_within(ValueError, "tensor is a bytes whose memory is read-only"):
            weft.all_reduce_(b"1234")

    def test_memoryview(self):
        room = bytearray(24)
        self.check(memoryview(room).cast("f"), "f", [0] * 6)
        view = memoryview(room).cast("B").cast("i", (2, 3))
        view[1, 2] = 4 * self.rank
        self.check(view, "i", [[0, 0, 0], [0, 0, 4]])
        with self.raises_within(ValueError, "memoryview whose memory is read-only"):
            weft.all_reduce_(memoryview(room).toreadonly())

    def test_ctypes(self):
        x = (ctypes.c_float * 4)(*[self.rank + 1] * 4)
        self.check(x, "f", [3] * 4)
        self.check(((ctypes.c_int64 * 3) * 2)(), "i8", [[0] * 3] * 2)

    def test_mmap(self):
        with mmap.mmap(-1, 10000) as memory:
            memory[7] = 1 + self.rank
            weft.all_reduce_(memory)
            self.assertEqual(memory[7], 3)

    def test_types_that_are_not_there(self):
        with self.raises_within(TypeError, "format 'c'"):
            weft.all_reduce(memoryview(b"12").cast("c"))
        with self.raises_within(TypeError, "format 'u'|format 'w'"):
            weft.all_reduce(array.array("u", "ab"))

    def test_things_without_memory(self):
        for thing in ([1.0], (1,), 3, 2.5, "text", None, {}, range(3)):
            with self.raises_within(TypeError, f"tensor must have memory .*, not {type(thing).__name__}"):
                weft.all_reduce(thing)


class DLPack(ranks.RankCase):
    """What has nothing but DLPack."""

    def test_in_and_out(self):
        for dtype in NUMBERS:
            x = np.full((2, 3), self.rank + 1, dtype)
            y = weft.all_reduce(Exporter(x))
            self.assertEqual((type(y), y.dtype, y.shape), (np.ndarray, x.dtype, (2, 3)))
            np.testing.assert_array_equal(y, np.full((2, 3), 3))
            weft.all_reduce_(Exporter(x))
            np.testing.assert_array_equal(x, np.full((2, 3), 3))

    def test_shapes(self):
        for shape in ((), (0, 3), (1,), (1, 4, 1)):
            self.assertEqual(weft.all_reduce(Exporter(np.zeros(shape))).shape, shape)

    def test_a_part_of_memory(self):
        x = np.arange(10, dtype="f")
        weft.all_reduce_(Exporter(x[3:5]))
        np.testing.assert_array_equal(x, [0, 1, 2, 6, 8, 5, 6, 7, 8, 9])

    def test_what_is_refused(self):
        x = np.zeros((4, 4), "f")
        with self.raises_within(ValueError, "device"):
            weft.all_reduce(Exporter(x, device=(2, 0)))
        with self.raises_within(ValueError, "not contiguous"):
            weft.all_reduce(Exporter(x[:, 1]))
        with self.raises_within(TypeError, "type 5 of 64 bits"):
            weft.all_reduce(Exporter(np.zeros(3, "c8")))

    @unittest.skipIf(np.lib.NumpyVersion(np.__version__) < "2.1.0", "numpy has no DLPack of version 1")
    def test_version_1(self):
        x = np.full((2, 3), self.rank, "f")
        weft.all_reduce_(Exporter(x, versioned=True))
        np.testing.assert_array_equal(x, np.ones((2, 3)))
        x.flags.writeable = False
        self.assertEqual(weft.all_reduce(Exporter(x, versioned=True)).tolist(), [[2.0] * 3] * 2)
        with self.raises_within(ValueError, "tensor is read-only"):
            weft.all_reduce_(Exporter(x, versioned=True))
        self.assertEqual(weft.all_reduce(Exporter(np.zeros((0, 3)), versioned=True)).shape, (0, 3))

    def test_its_own_exceptions(self):
        class Broken(Exporter):
            def __dlpack__(self, **keywords):
                raise RuntimeError("gone")
        with self.raises_within(RuntimeError, "gone"):
            weft.all_reduce(Broken(np.zeros(3)))

        class NoCapsule(Exporter):
            def __dlpack__(self, **keywords):
                return 5
        with self.raises_within((TypeError, ValueError)):
            weft.all_reduce(NoCapsule(np.zeros(3)))

    def test_memory_is_given_back(self):
        x = np.zeros(100, "f")
        before = sys.getrefcount(x)
        for _ in range(20):
            weft.all_reduce_(Exporter(x))
        gc.collect()
        self.assertEqual(sys.getrefcount(x), before)

    @torch_only
    def test_bfloat16(self):
        x = torch.full((3,), self.rank + 1.5, dtype=torch.bfloat16)
        weft.all_reduce_(Exporter(x))
        self.assertEqual(x.tolist(), [4.0] * 3)


@torch_only
class Torch(ranks.RankCase):
    """Tensors: results are tensors."""

    def test_types(self):
        for name in NUMBERS + ("bfloat16",):
            dtype = getattr(torch, name, None)
            if dtype is None:
                continue  # torch 1.13 has no uint64, for one
            with self.subTest(dtype=name):
                x = (torch.arange(20) + self.rank).to(dtype)
                y = weft.all_reduce(x)
                self.assertIs(type(y), torch.Tensor)
                self.assertEqual(y.dtype, dtype)
                self.assertTrue(torch.equal(y, (2 * torch.arange(20) + 1).to(dtype)))
                self.assertIs(weft.all_reduce_(x), x)
                self.assertTrue(torch.equal(x, y))
        self.assertEqual(weft.all_gather(torch.tensor([self.rank == 0])).tolist(), [True, False])

    def test_shapes(self):
        for shape in ((), (0,), (3,), (2, 0, 4), (2, 3, 4), (1,) * 8):
            y = weft.all_reduce(torch.full(shape, self.rank + 1.0))
            self.assertEqual(tuple(y.shape), shape)
            self.assertTrue(torch.equal(y, torch.full(shape, 3.0)))
            self.assertTrue(y.is_contiguous())
        self.assertEqual(tuple(weft.all_gather(torch.zeros(3, 2)).shape), (6, 2))
        self.assertEqual(tuple(weft.reduce_scatter(torch.zeros(4, 2)).shape), (2, 2))

    def test_parts(self):
        x = torch.full((4, 3), float(self.rank))
        weft.all_reduce_(x[1])
        self.assertEqual(x.tolist(), [[1.0 if i == 1 else self.rank] * 3 for i in range(4)])

    def test_gradients(self):
        """Parameters are written in place, and results have no history."""
        p = torch.nn.Parameter(torch.full((3,), self.rank + 1.0))
        y = weft.all_reduce(p)
        self.assertFalse(y.requires_grad)
        self.assertEqual(y.tolist(), [3.0] * 3)
        (p * p).sum().backward()
        weft.all_reduce_(p.grad)
        self.assertEqual(p.grad.tolist(), [6.0] * 3)
        weft.broadcast(p, 1)
        self.assertEqual(p.tolist(), [2.0] * 3)
        self.assertTrue(p.requires_grad and p.is_leaf)

    def test_out_of_the_other_kind(self):
        out = np.zeros(3, "f")
        self.assertIs(weft.all_reduce(torch.ones(3), out=out), out)
        self.assertEqual(out.tolist(), [2.0] * 3)
        out = torch.zeros(3)
        weft.all_reduce(np.ones(3, "f"), out=out)
        self.assertEqual(out.tolist(), [2.0] * 3)

    def test_what_is_refused(self):
        for tensor, error, text in ((torch.zeros(2, device="meta"), ValueError, "tensor of device meta"),
                                    (torch.eye(2).to_sparse(), ValueError, "tensor of layout torch.sparse_coo"),
                                    (torch.zeros(2, dtype=torch.complex64), TypeError,
                                      "tensor of dtype torch.complex64"),
                                    (torch.zeros((1,) * 9), ValueError, "too many dimensions: 9")):
            with self.raises_within(error, text):
                weft.all_gather(tensor)

    def test_references(self):
        x, gaps, bad = torch.zeros(8), torch.zeros(3, 3).t(), torch.zeros(3, dtype=torch.complex64)
        for _ in range(2):
            before = [sys.getrefcount(thing) for thing in (x, gaps, bad, torch.float32, torch.Tensor)]
            for _ in range(50):
                weft.all_reduce(x)
                weft.all_reduce_(x)
                weft.all_gather(x)
                weft.all_reduce_(gaps)
                with self.assertRaises(TypeError):
                    weft.all_reduce(bad)
            after = [sys.getrefcount(thing) for thing in (x, gaps, bad, torch.float32, torch.Tensor)]
        self.assertEqual(before, after)


WITHOUT_NUMPY = """
import sys
sys.modules["numpy"] = None  # cannot be imported
import array, weft
weft.init()
x = array.array("f", [weft.get_rank() + 1.0] * 6)
y = weft.all_reduce(x)
assert type(y) is memoryview and y.format == "f" and y.tolist() == [3.0] * 6, y
z = weft.all_gather(memoryview(x).cast("B").cast("f", (2, 3)))
assert z.shape == (4, 3), z.shape
assert z.tolist() == [[1.0] * 3] * 2 + [[2.0] * 3] * 2
assert weft.all_reduce(bytearray(0)).shape == (0,)
e = weft.empty((2, 2), "int16")
assert type(e) is memoryview and e.shape == (2, 2) and e.tolist() == [[0, 0], [0, 0]]
e[1, 0] = weft.get_rank() + 1
weft.all_reduce_(e)
assert e.tolist() == [[0, 0], [3, 0]]
assert "torch" not in sys.modules
"""

WITHOUT_IMPORTS = """
import sys, array, weft
weft.init()
weft.all_reduce_(array.array("d", [1.0]))
assert "numpy" not in sys.modules and "torch" not in sys.modules
import numpy
assert weft.all_reduce(numpy.ones(3)).tolist() == [2.0] * 3
"""


# torch has had __dlpack_c_exchange_api__ since 2.10: where it is older, the script gives it one.
EXCHANGED = """
import ctypes, torch, weft
class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]
READ = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
class Exchange(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("older", ctypes.c_void_p),
                ("allocate", ctypes.c_void_p), ("from_object", ctypes.c_void_p), ("to_object", ctypes.c_void_p),
                ("read", READ), ("stream", ctypes.c_void_p)]
kept, reads = [], []
@READ
def read(tensor, out):
    reads.append(tensor.dtype)
    kept[:] = [(ctypes.c_int64 * 8)(*size) for size in (tensor.shape, tensor.stride())]
    codes = {torch.float32: (2, 32), torch.bfloat16: (4, 16), torch.int64: (0, 64), torch.complex64: (5, 64)}
    out[0] = DLTensor(tensor.data_ptr(), 1, 0, tensor.dim(), *codes[tensor.dtype], 1,
                      *(ctypes.cast(size, ctypes.POINTER(ctypes.c_int64)) for size in kept), 0)
    return 0
exchange = Exchange(1, 1, None, None, None, None, read, None)
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
is_old = not hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
if is_old:
    torch.Tensor.__dlpack_c_exchange_api__ = new_capsule(ctypes.addressof(exchange), b"dlpack_exchange_api", None)
weft.init()
rank = weft.get_rank()
for dtype in torch.float32, torch.bfloat16, torch.int64:
    for shape in (), (0,), (3, 4):
        x = torch.full(shape, rank + 1).to(dtype)
        assert torch.equal(weft.all_reduce(x), torch.full(shape, 3).to(dtype))
        weft.all_reduce_(x)
        assert torch.equal(x, torch.full(shape, 3).to(dtype))
x = torch.full((3, 4), rank + 1.0).t()
assert torch.equal(weft.all_reduce(x), torch.full((4, 3), 3.0))
assert weft.all_gather(x[1:2]).shape == (2, 3)
p = torch.nn.Parameter(torch.full((3,), rank + 1.0))
assert weft.all_reduce(p).tolist() == [3.0] * 3
for wrong, why in ((torch.ones(2, dtype=torch.complex64), "complex64"), (torch.zeros((1,) * 9), "too many dimensions: 9"),
                   (torch.tensor([1 + 2j]).conj().imag, "resolve_neg"), (torch.tensor([1 + 2j, 1]).conj().imag, "resolve_neg"),
                   (torch._neg_view(torch.ones(4)), "resolve_neg"),
                   (torch.zeros(2, device="meta"), "device meta")):
    try:
        weft.all_gather(wrong)
        raise SystemExit(f"{wrong} was taken")
    except (TypeError, ValueError) as error:
        assert why in str(error), error
assert len(reads) > 20 or not is_old, reads
"""


class Imports(unittest.TestCase):
    """numpy and torch are optional."""

    def run_script(self, script):
        done = ranks.run_script(script)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_without_numpy(self):
        self.run_script(WITHOUT_NUMPY)

    def test_nothing_is_imported_in_vain(self):
        self.run_script(WITHOUT_IMPORTS)

    @torch_only
    def test_torch_by_dlpacks_functions(self):
        self.run_script(EXCHANGED)


class Strided(ranks.RankCase):
    """Arrays that are not contiguous: the results of contiguous ones, by a packed copy; memory between stays."""
    RANKS = (1, 2, 3)

    def views(self, dtype="float32"):
        """(whole, view): views of one shape, with an order, gaps, and a direction of their own."""
        n = 6 * self.size
        for make in (lambda w: w[:, ::2], lambda w: w.reshape(16, n).T[:, ::2], lambda w: w[::-1, 8:],
                     lambda w: w.reshape(n, 4, 4)[:, 1:3, ::-1].reshape(n, 2, 4).transpose(0, 2, 1)[:, :, 0:2]):
            whole = np.arange(16 * n, dtype=dtype).reshape(n, 16) + self.rank
            yield whole, make(whole)

    def test_out_of_place(self):
        for whole, view in self.views():
            before, packed = whole.copy(), view.copy("C")
            for call in (weft.all_reduce, weft.all_gather, weft.reduce_scatter, weft.all_to_all, weft.gather, weft.reduce,
                         lambda x, **words: weft.scatter(x if self.rank == 0 else None, **words)):
                for stream in (None, weft.Stream(thread=True)):
                    if call is weft.scatter and stream is not None:
                        continue
                    expected, got = call(packed), call(view)
                    np.testing.assert_array_equal(got, expected)
                expected = call(packed)
            np.testing.assert_array_equal(weft.all_reduce(view, async_op=True).wait(), weft.all_reduce(packed))
            np.testing.assert_array_equal(whole, before)

    def test_in_place(self):
        for how in ("wait", "async", "stream", "batch"):
            for whole, view in self.views():
                packed, outside = weft.all_reduce(view.copy("C")), np.ones_like(whole, bool)
                address = view.__array_interface__["data"][0]
                if not np.shares_memory(whole, view):
                    continue
                before = whole.copy()
                if how == "wait":
                    self.assertIs(weft.all_reduce_(view), view)
                elif how == "async":
                    work = [weft.all_reduce_(view, async_op=True), weft.all_reduce_(view, "max", async_op=True)]
                    self.assertIs(work[1].wait(), view)
                elif how == "stream":
                    stream = weft.Stream(thread=True)
                    weft.all_reduce_(view, stream=stream)
                    weft.broadcast(view, self.size - 1, stream=stream)
                    stream.synchronize()
                else:
                    with weft.batch():
                        weft.all_reduce_(view)
                np.testing.assert_array_equal(view, packed)
                self.assertEqual(view.__array_interface__["data"][0], address)
                view[...] = 0
                touched = before != whole
                before[touched] = whole[touched] = 0
                np.testing.assert_array_equal(whole, before)
                self.assertLessEqual(touched.sum(), view.size)
                del outside

    def test_out(self):
        for whole, view in self.views():
            out = np.zeros((2 * view.shape[0], *view.shape[1:]), "float32")[::2]
            self.assertIs(weft.all_reduce(view, out=out), out)
            np.testing.assert_array_equal(out, weft.all_reduce(view.copy("C")))
            self.assertFalse(out.base[1::2].any())

    def test_types(self):
        for dtype in ("float64", "float16", "int8", "uint16", "int64"):
            x = np.ones((4, 6), dtype)[:, ::3]
            weft.all_reduce_(x)
            self.assertTrue((x == self.size).all() and (x.base.sum() == 16 + 8 * self.size))
        for x in (np.ones((0, 4))[:, ::2], np.ones((4, 0))[::2], np.ones((5, 1))[::2]):
            self.assertEqual(weft.all_reduce(x).shape, x.shape)
        x = memoryview(bytearray(range(8)))[::2]
        weft.all_reduce_(x, "max")
        self.assertEqual(list(x), [0, 2, 4, 6])
        y = np.broadcast_to(np.ones(3, "float32"), (2, 3))
        np.testing.assert_array_equal(weft.all_reduce(y), np.full((2, 3), self.size))
        shared = np.lib.stride_tricks.as_strided(np.ones(3, "float32"), (2, 3), (0, 4))
        with self.raises_within(ValueError, "elements that share memory"):
            weft.all_reduce_(shared)

    def test_when_batches_read(self):
        """At the end of the block, and after what is on the stream before them: as with contiguous arrays."""
        for how in ({}, {"async_op": True}, {"stream": weft.Stream(thread=False)}, {"stream": weft.Stream(thread=True)}):
            whole = np.zeros((4, 6), "float32")
            view, other = whole[:, ::2], np.zeros((4, 6), "float32").T
            if "stream" in how:
                whole[...] = 1
                weft.all_reduce_(view, stream=how["stream"])
            with weft.batch(**how) as batch:
                weft.all_reduce_(view)
                weft.all_reduce_(other, "max")
                if "stream" not in how:
                    whole[...] = self.size
                other[...] = self.rank
            if how:
                batch.work.wait()
            self.assertTrue((view == self.size**2).all() and (other == self.size - 1).all(), how)

    def test_a_call_that_fails(self):
        """What packs its array is on the stream by then, and runs while the memory is there."""
        group, stream = weft.new_group(range(self.size)), weft.Stream(thread=False)
        if self.size == 1:
            return
        with self.raises_within(weft.WeftMismatchError):
            weft.barrier(group) if self.rank == 0 else weft.all_reduce(np.ones(3), group=group)
        x = np.ones((2, 2**24 + 4), "float32")[:, ::4]  # so much that free() unmaps it
        with self.raises_within(weft.WeftMismatchError):
            weft.all_reduce_(x, group=group, stream=stream)
        with self.raises_within(weft.WeftMismatchError), weft.batch(group, stream=stream):
            weft.all_reduce_(x, group=group)
        del x
        stream.synchronize()

    def test_send_and_recv(self):
        if self.size > 1 and self.rank < 2:
            x = np.full((3, 4), self.rank, "float32")[:, 1::2]
            if self.rank == 0:
                weft.send(x, 1)
            else:
                weft.recv(x, 0)
                self.assertEqual(x.base.sum(), 6)

    def test_captured(self):
        with self.assertRaises(ValueError):
            with weft.capture():
                weft.all_reduce_(np.ones((4, 4), "float32")[:, 0])

    @unittest.skipUnless(importlib.util.find_spec("torch"), "torch is not installed")
    def test_torch(self):
        import torch
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            for make in (lambda x: x.t(), lambda x: x[:, ::2], lambda x: x[1:3].permute(1, 0)):
                whole = torch.arange(24).reshape(4, 6).to(dtype)
                view = make(whole)
                expected = view.contiguous() * self.size
                result = weft.all_reduce(view)
                self.assertTrue(result.is_contiguous())
                self.assertTrue(torch.equal(result, expected))
                self.assertIs(weft.all_reduce_(view, async_op=True).wait(), view)
                self.assertTrue(torch.equal(view, expected))
                self.assertEqual((whole == torch.arange(24).reshape(4, 6).to(dtype)).sum() < 24, self.size > 1)
        with self.raises_within(ValueError, "elements that share memory"):
            weft.all_reduce_(torch.ones(3).expand(2, 3))


if __name__ == "__main__":
    ranks.main()
