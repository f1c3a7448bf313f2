#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch.ops.weft.*: values, gradients, tracing, errors; with an old torch its kernels in Python, with a new one in C."""
import ranks

torch = ranks.need("torch")
import atexit  # noqa: E402
import importlib.util  # noqa: E402
import os  # noqa: E402
import pathlib  # noqa: E402
import re  # noqa: E402
import shutil  # noqa: E402
import signal  # noqa: E402
import tempfile  # noqa: E402
import unittest  # noqa: E402

import torch.distributed as dist  # noqa: E402
import weft  # noqa: E402
import weft.torch  # noqa: E402
from weft.torch import operators  # noqa: E402

ops = torch.ops.weft
torch.set_num_threads(1)
VERSION = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
COMPILES = VERSION >= (2, 10)
DTYPES = [getattr(torch, name) for name in (
    "float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "bool", "complex64", "complex128") if hasattr(torch, name)]
if COMPILES and "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
    CACHE = os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="weft-operators-")
    OWNER = os.getpid()  # not the ranks, which are its forks
    atexit.register(lambda: os.getpid() == OWNER and shutil.rmtree(CACHE, ignore_errors=True))
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of processes


def everybody(size, value):
    """What each rank has."""
    return [value(rank) for rank in range(size)]


def block(x, rank, size):
    return x[rank * (len(x) // size):(rank + 1) * (len(x) // size)]


class Headers(unittest.TestCase):
    """The declarations in torch_operators.c are those of the torch that is installed."""

    def test_declarations(self):
        include = pathlib.Path(torch.__file__).parent / "include/torch/csrc"
        headers = [include / "inductor/aoti_torch/c/shim.h", include / "stable/c/shim.h"]
        if VERSION < (2, 14) or not all(path.exists() for path in headers):
            self.skipTest("this torch has other headers")
        text = " ".join(re.sub(r"//.*", "", path.read_text()) for path in headers)
        there = {}
        for result, name, parameters in re.findall(r"AOTI_TORCH_EXPORT\s+([\w\s*]+?)\s*\b(\w+)\(([^)]*(?:\([^)]*\)[^)]*)*)\);",
                                                   text):
            there[name] = (self.plain(result), [self.plain(part) for part in self.split(parameters)])
        source = (ranks.SOURCE / "python/src/torch_operators.c").read_text()
        maps = source[source.index("#define WP_TORCH_MAP"):source.index("/* The constants of types")].replace("\\\n", " ")
        ours = re.findall(r"X\(\s*([\w ]+\*?),\s*(\w+),\s*\(([^()]*)\)\)", maps)
        self.assertGreater(len(ours), 20)
        for result, name, parameters in ours:
            self.assertIn(name, there)
            self.assertEqual((self.plain(result), [self.plain(part) for part in self.split(parameters)]), there[name], name)

    @staticmethod
    def split(parameters):
        """At commas that are not inside parentheses."""
        parts, depth = [""], 0
        for c in parameters:
            depth += (c == "(") - (c == ")")
            if c == "," and depth == 0:
                parts.append("")
            else:
                parts[-1] += c
        return [part for part in parts if part.strip() not in ("", "void")]

    @staticmethod
    def plain(words):
        """A type without the name of its parameter, handles and numbers as what they are: pointers, int32_t .."""
        if "(*" in words or "kernel_fn" in words:
            return "function"
        words = words.replace("AOTITorchError", "int32_t").replace("StableIValue", "value_t")
        for theirs, our in (("AtenTensorHandle", "tensor_t *"), ("StringHandle", "string_t *"),
                            ("TorchLibraryHandle", "library_t *")):
            words = words.replace(theirs, our)
        stars, base = words.count("*"), [word for word in re.findall(r"\w+", words) if word != "const"]
        return base[0] + "*" * stars


class Values(ranks.RankCase):
    RANKS = (1, 2, 3)
    INIT = False

    @classmethod
    def set_up_ranks(cls):
        dist.init_process_group("weft")
        cls.name = operators.group_name()

    def given(self, dtype, rows=6, of=None):
        """A rank's tensor of small whole numbers."""
        rank = self.rank if of is None else of
        x = torch.arange(rows * 2).remainder(3).add(rank)
        return (x % 2 if dtype is torch.bool else x).to(dtype).view(rows, 2)

    def test_level(self):
        expected = 2 if VERSION >= (2, 14) else 1 if VERSION >= (2, 10) else 0
        self.assertEqual(operators.level, expected)

    def test_no_argument_is_called_self(self):
        """torch warns users of such operators when it compiles them."""
        for op in "all_reduce_", "all_reduce", "all_gather", "reduce_scatter_out", "all_to_all_out":
            names = [argument.name for argument in getattr(ops, op).default._schema.arguments]
            self.assertNotIn("self", names)

    def test_dtypes(self):
        for dtype in DTYPES:
            with self.subTest(dtype=dtype):
                x = self.given(dtype)
                parts = everybody(self.size, lambda rank: self.given(dtype, of=rank))
                whole = torch.stack([part.to(torch.complex128) for part in parts]).sum(0)
                whole = (whole.real > 0) if dtype is torch.bool else whole.to(dtype)
                self.same(ops.all_reduce(x, "sum", self.name), whole)
                self.same(ops.reduce_scatter(x, "sum", self.size, self.name), block(whole, self.rank, self.size))
                self.same(ops.all_gather(x, self.size, self.name), torch.cat(parts))
                self.same(ops.all_to_all(x, self.name),
                          torch.cat([block(part, self.rank, self.size) for part in parts]))
                self.same(x, self.given(dtype))
                self.assertIsNone(ops.all_reduce_(x, "sum", self.name))
                self.same(x, whole)

    def same(self, a, b):
        self.assertEqual((a.dtype, tuple(a.shape)), (b.dtype, tuple(b.shape)))
        self.assertTrue(torch.equal(a, b) if a.dtype not in UNSIGNED else a.tolist() == b.tolist(), f"{a} {b}")

    def with_out(self, x):
        """(operator, its arguments but for out) of all that have a result."""
        return (("all_reduce", (x, "sum", self.name)), ("all_gather", (x, self.size, self.name)),
                ("reduce_scatter", (x, "sum", self.size, self.name)), ("all_to_all", (x, self.name)))

    def test_out(self):
        """The result in a tensor of the caller, which may have another shape, strides, and be the one place in x at which
        the operator works in place."""
        for dtype in DTYPES:
            x = self.given(dtype)
            for op, words in self.with_out(x):
                with self.subTest(dtype=dtype, op=op):
                    expected = getattr(ops, op)(*words)
                    call = getattr(ops, op + "_out")
                    out, flat = torch.zeros_like(expected), torch.zeros(expected.numel(), dtype=dtype)
                    wide = torch.zeros(len(expected), 4, dtype=dtype)
                    for given in out, flat, wide[:, ::2]:
                        self.assertIsNone(call(*words, given))
                        self.same(given.reshape(expected.shape), expected)
                    self.assertFalse(wide[:, 1::2].to(torch.complex128).any())
        whole = torch.zeros(self.size * 6, 2)
        own = block(whole, self.rank, self.size)
        own.copy_(self.given(torch.float32))
        expected = ops.all_gather(own, self.size, self.name)
        ops.all_gather_out(own, self.size, self.name, out=whole)
        self.same(whole, expected)
        expected = ops.reduce_scatter(whole, "sum", self.size, self.name)
        ops.reduce_scatter_out(whole, "sum", self.size, self.name, own)
        self.same(own, expected)

    def test_out_overlaps(self):
        if self.size == 1:
            self.skipTest("one rank's block is everything")
        whole = torch.zeros(self.size * 6)
        with self.assertRaisesRegex(Exception, "overlap"):
            ops.all_gather_out(whole[1:7], self.size, self.name, whole)

    def test_results_that_torch_refuses_to_copy(self):
        """Into elements that share memory: an error, as of torch's own operators."""
        shared = torch.zeros(1).expand(6)
        with self.assertRaisesRegex(Exception, "copied|single memory"):
            ops.all_reduce_out(torch.ones(6), "sum", self.name, shared)
        with self.assertRaisesRegex(Exception, "copied|single memory"):
            ops.all_reduce_(shared, "sum", self.name)

    def test_float8(self):
        if operators.level == 0:
            self.skipTest("kernels in Python")
        x = torch.full((2, 2), 1.0 + self.rank).to(torch.float8_e4m3fn)
        self.assertEqual(ops.all_gather(x, self.size, self.name).float()[:, 0].tolist(),
                         [1.0 + rank for rank in range(self.size) for _ in range(2)])
        with self.assertRaisesRegex(RuntimeError, "of float8 none"):
            ops.all_reduce(x, "sum", self.name)

    def test_reductions(self):
        x = torch.tensor([1.0, -2.0, 3.0]) * (self.rank + 1)
        every = torch.stack(everybody(self.size, lambda rank: torch.tensor([1.0, -2.0, 3.0]) * (rank + 1)))
        for word, result in (("sum", every.sum(0)), ("avg", every.mean(0)), ("max", every.amax(0)), ("min", every.amin(0)),
                             ("prod", every.prod(0)), ("product", every.prod(0))):
            self.assertTrue(torch.allclose(ops.all_reduce(x, word, self.name), result), word)

    def test_strides(self):
        """Ranks with other strides agree by index, and what lies between the elements stays."""
        base = torch.arange(24.0).view(6, 4) + self.rank
        x = base[:, ::2] if self.rank % 2 == 0 else base[:, ::2].contiguous()
        whole = sum(everybody(self.size, lambda rank: torch.arange(24.0).view(6, 4)[:, ::2] + rank))
        for result in ops.all_reduce(x, "sum", self.name), ops.all_reduce(x.t(), "sum", self.name).t():
            self.assertTrue(torch.equal(result, whole))
        self.assertTrue(torch.equal(ops.reduce_scatter(x, "sum", self.size, self.name), block(whole, self.rank, self.size)))
        self.assertTrue(ops.all_gather(x.t(), self.size, self.name).is_contiguous())
        ops.all_reduce_(x, "sum", self.name)
        self.assertTrue(torch.equal(x, whole))
        self.assertTrue(torch.equal(base[:, 1::2], torch.arange(24.0).view(6, 4)[:, 1::2] + self.rank))

    def test_small(self):
        self.assertEqual(ops.all_reduce(torch.zeros(0, 3), "sum", self.name).shape, (0, 3))
        self.assertEqual(ops.all_gather(torch.zeros(2, 0), self.size, self.name).shape, (2 * self.size, 0))
        self.assertEqual(ops.reduce_scatter(torch.zeros(0, 3), "sum", self.size, self.name).shape, (0, 3))
        self.assertEqual(ops.all_reduce(torch.tensor(2.0), "sum", self.name).item(), 2.0 * self.size)
        self.assertEqual(ops.all_gather(torch.tensor(float(self.rank)), self.size, self.name).tolist(), list(range(self.size)))
        if operators.level == 0:
            return  # at most 8 dimensions
        deep = torch.ones((1,) * 12)
        self.assertEqual(ops.all_gather(deep, self.size, self.name).shape, (self.size, *[1] * 11))

    def test_names(self):
        self.assertEqual(operators.group_name(dist.group.WORLD), self.name)
        alone = weft.new_group([self.rank], weft.torch.group_of()) if self.size == 1 else weft.torch.group_of().duplicate()
        name = operators.group_name(alone)
        self.assertEqual(operators.group_name(alone), name)
        self.assertEqual(ops.all_reduce(torch.ones(2), "sum", name).tolist(), [self.size] * 2)
        operators.forget(name)
        with self.assertRaisesRegex(RuntimeError if operators.level else ValueError, f"group '{name}' does not exist"):
            ops.all_reduce(torch.ones(2), "sum", name)
        pair = dist.new_group([self.size - 1])
        if self.rank == self.size - 1:
            self.assertEqual(ops.all_gather(torch.ones(2), 1, operators.group_name(pair)).tolist(), [1, 1])
            dist.destroy_process_group(pair)

    def test_shapes(self):
        for x, rows in ((torch.empty(6, 2, device="meta"), 6), (torch.empty((), device="meta"), 1)):
            gathered = ops.all_gather(x, self.size, self.name)
            self.assertEqual((gathered.device.type, gathered.shape[0]), ("meta", rows * self.size))
        x = torch.empty(6, 2, device="meta")
        self.assertEqual(ops.reduce_scatter(x, "sum", self.size, self.name).shape, (6 // self.size, 2))
        self.assertEqual(ops.all_to_all(x, self.name).shape, (6, 2))
        self.assertEqual(ops.all_reduce(x, "sum", self.name).shape, (6, 2))
        self.assertIsNone(ops.all_reduce_(x, "sum", self.name))
        for op, words in self.with_out(x):
            out = torch.empty_like(getattr(ops, op)(*words))
            self.assertIsNone(getattr(ops, op + "_out")(*words, out))
            for wrong, why in (out[1:], "elements"), (out.double(), "of type"):
                with self.assertRaisesRegex(Exception, why):
                    getattr(ops, op + "_out")(*words, wrong)

    # ---- gradients: of the sum of all ranks' losses ----
    def test_gradients(self):
        weight = torch.arange(1.0, 7.0, dtype=torch.float64) * (self.rank + 1)
        weights = everybody(self.size, lambda rank: torch.arange(1.0, 7.0, dtype=torch.float64) * (rank + 1))
        long = [torch.arange(1.0, 6 * self.size + 1, dtype=torch.float64) * (rank + 1) for rank in range(self.size)]
        rows = 6 // self.size
        cases = (
            ("all_reduce", ("sum",), weight, sum(weights)),
            ("all_reduce", ("avg",), weight, sum(weights) / self.size),
            ("all_gather", (self.size,), long[self.rank], block(sum(long), self.rank, self.size)),
            ("reduce_scatter", ("sum", self.size), weight[:rows], torch.cat([w[:rows] for w in weights])),
            ("reduce_scatter", ("avg", self.size), weight[:rows], torch.cat([w[:rows] for w in weights]) / self.size),
            ("all_to_all", (), weight, torch.cat([block(w, self.rank, self.size) for w in weights])))
        for op, words, factor, expected in cases:
            with self.subTest(op=op, words=words):
                x = torch.full((6,), 1.0 + self.rank, dtype=torch.float64, requires_grad=True)
                (getattr(ops, op)(x, *words, self.name) * factor).sum().backward()
                self.assertTrue(torch.allclose(x.grad, expected), f"{x.grad} {expected}")
        x = torch.ones(6, dtype=torch.float64, requires_grad=True)
        y = x * 2
        ops.all_reduce_(y, "sum", self.name)
        (y * weight).sum().backward()
        self.assertTrue(torch.allclose(x.grad, 2 * sum(weights)))
        scalar = torch.tensor(1.0, requires_grad=True)
        ops.all_gather(scalar, self.size, self.name).sum().backward()
        self.assertEqual(scalar.grad.item(), self.size)

    def test_no_gradient(self):
        x = torch.ones(3, requires_grad=True)
        with self.assertRaisesRegex(RuntimeError, "max has no gradient; sum and avg have"):
            ops.all_reduce(x, "max", self.name)
        with self.assertRaisesRegex(RuntimeError, "leaf"):
            ops.all_reduce_(x, "sum", self.name)
        with torch.no_grad():
            self.assertFalse(ops.all_reduce(x, "max", self.name).requires_grad)
        self.assertFalse(ops.all_gather(x.detach(), self.size, self.name).requires_grad)
        for x, out, which in ((torch.ones(6, requires_grad=True), torch.ones(6), "the tensor"),
                              (torch.ones(6), torch.ones(6, requires_grad=True), "out")):
            with self.assertRaisesRegex(RuntimeError, f"all_to_all_out has no gradient, and {which} needs one"):
                ops.all_to_all_out(x, self.name, out)
            with torch.no_grad():
                ops.all_to_all_out(x, self.name, out)

    def test_no_gradient_on_one_rank(self):
        """The others, which wait, learn why."""
        for why, call in (("all_reduce_out has no gradient", lambda x: ops.all_reduce_out(x, "sum", self.name, x)),
                          ("all_reduce: max has no gradient", lambda x: ops.all_reduce(x, "max", self.name))):
            x = torch.ones(3, requires_grad=self.rank == self.size - 1)
            with self.assertRaisesRegex(Exception, why):
                call(x)
            with torch.no_grad():
                ops.all_reduce_(x, "sum", self.name)
                self.assertEqual(x.tolist(), [self.size] * 3)

    def test_gradcheck(self):
        """Of the derivative that one rank sees: a world of one, twice."""
        if self.size > 1:
            self.skipTest("gradcheck changes one rank's input at a time")
        x = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
        for op, words in (("all_reduce", ("sum",)), ("all_reduce", ("avg",)), ("all_gather", (1,)),
                          ("reduce_scatter", ("avg", 1)), ("all_to_all", ())):
            def call(x, op=op, words=words):
                return getattr(ops, op)(x * x, *words, self.name)
            self.assertTrue(torch.autograd.gradcheck(call, (x,)))
            self.assertTrue(torch.autograd.gradgradcheck(call, (x,)))

    @unittest.skipIf(operators.level < 2, "torch does not count it from Python")
    def test_saved_tensor_changed(self):
        w, x = torch.ones(3, requires_grad=True), torch.ones(3)
        y = w * x
        ops.all_reduce_(x, "sum", self.name)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            y.sum().backward()
        y = w * x
        ops.all_reduce_out(torch.ones(3), "sum", self.name, x)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            y.sum().backward()

    # ---- tracing ----
    @unittest.skipUnless(COMPILES, "this torch is too old")
    def test_opcheck(self):
        for grad in False, True:
            x = torch.ones(6, 2, requires_grad=grad)
            for op, words in (("all_reduce", ("sum",)), ("all_gather", (self.size,)),
                              ("reduce_scatter", ("sum", self.size)), ("all_to_all", ())):
                torch.library.opcheck(getattr(ops, op).default, (x, *words, self.name))
        torch.library.opcheck(ops.all_reduce_.default, (torch.ones(6), "sum", self.name))
        for op, words in self.with_out(torch.ones(6, 2)):
            torch.library.opcheck(getattr(ops, op + "_out").default, (*words, torch.empty_like(getattr(ops, op)(*words))))

    @unittest.skipUnless(COMPILES, "this torch is too old")
    def test_compiled(self):
        def step(x, w):
            y = x @ w
            ops.all_reduce_(y, "sum", self.name)
            y = ops.all_gather(torch.relu(y), self.size, self.name)
            y = ops.reduce_scatter(y, "avg", self.size, self.name) + ops.all_reduce(x[:, :4], "sum", self.name)
            last = torch.empty_like(y)
            ops.all_to_all_out(y.detach(), self.name, last)
            return ops.all_to_all(y, self.name).square() + last

        torch.manual_seed(self.rank)
        x, w = torch.randn(6, 6), torch.randn(6, 4)
        for backend in ("aot_eager", "inductor") if self.size == 2 else ("aot_eager",):  # which takes seconds
            compiled = torch.compile(step, fullgraph=True, backend=backend, dynamic=False)
            for context in torch.no_grad, torch.inference_mode:
                with context():
                    torch.testing.assert_close(compiled(x, w), step(x, w))
            a, b = w.clone().requires_grad_(), w.clone().requires_grad_()
            step(x, a).sum().backward()
            compiled(x, b).sum().backward()
            torch.testing.assert_close(a.grad, b.grad)
        torch._dynamo.reset()

    @unittest.skipUnless(COMPILES, "this torch is too old")
    def test_compiled_with_any_rows(self):
        def step(x):
            return ops.reduce_scatter(ops.all_gather(x, self.size, self.name) + 1, "sum", self.size, self.name)
        compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=True)
        for rows in 2, 5, 9:
            x = torch.full((rows, 2), 1.0 + self.rank)
            torch.testing.assert_close(compiled(x), step(x))
        torch._dynamo.reset()


UNSIGNED = {getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)}


class Communicator(ranks.RankCase):
    """samples/python/vllm_communicator.py beside a class of the same shape over torch.distributed."""
    INIT = False

    @classmethod
    def set_up_ranks(cls):
        dist.init_process_group("gloo" if COMPILES else "weft", init_method=None if not COMPILES else "weft://")

    def test_like_torch(self):
        spec = importlib.util.spec_from_file_location("vllm_communicator",
                                                      ranks.SOURCE / "samples/python/vllm_communicator.py")
        sample = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sample)
        tp = sample.WeftCommunicator(dist.group.WORLD, device_group=dist.group.WORLD, unique_name="tp:0")
        x = torch.arange(24.0).view(2, 4, 3).repeat(1, 1, 2) + self.rank
        every = [torch.arange(24.0).view(2, 4, 3).repeat(1, 1, 2) + rank for rank in range(self.size)]
        for given in x, x.transpose(0, 2):
            parts = every if given is x else [part.transpose(0, 2) for part in every]
            for dim in 0, 1, 2, -1, -2:
                self.assertTrue(torch.equal(tp.all_gather(given, dim), torch.cat(parts, dim)))
                self.assertTrue(torch.equal(tp.reduce_scatter(given, dim),
                                            sum(parts).chunk(self.size, dim)[self.rank]))
                gathered = tp.gather(given, 1, dim)
                self.assertTrue(gathered is None if self.rank != 1 else torch.equal(gathered, torch.cat(parts, dim)))
            self.assertTrue(torch.equal(tp.all_reduce(given.clone()), sum(parts)))
        flat = x.clone()
        self.assertIs(tp.all_reduce(flat), flat)
        dist.destroy_process_group()


class WithoutTorch(ranks.RankCase):
    """Groups of weft itself."""
    RANKS = 2

    def test_world(self):
        name = operators.group_name()
        self.assertEqual(ops.all_reduce(torch.ones(2), "sum", name).tolist(), [2, 2])
        with self.assertRaisesRegex(TypeError, "process group"):
            operators.group_name(3)


class Wrong(ranks.RankCase):
    RANKS = 3

    @classmethod
    def set_up_ranks(cls):
        cls.name = operators.group_name()

    def test_rows(self):
        """Rank 1's argument is wrong: all ranks get to know, and the group stays usable."""
        x = torch.ones(6 if self.rank != 1 else 5)
        pattern = "rows|divisible|multiple" if self.rank == 1 else "rank 1"
        with self.assertRaisesRegex(Exception, pattern):
            ops.reduce_scatter(x, "sum", self.size, self.name)
        self.assertEqual(ops.all_reduce(torch.ones(2), "sum", self.name).tolist(), [3, 3])

    def test_out(self):
        out = torch.ones(6 if self.rank != 1 else 5)
        with self.assertRaisesRegex(Exception, "out has 5|elements" if self.rank == 1 else "rank 1"):
            ops.all_gather_out(torch.ones(2), self.size, self.name, out)
        with self.assertRaisesRegex(Exception, "type|float64" if self.rank == 1 else "rank 1"):
            ops.all_to_all_out(torch.ones(3), self.name, torch.ones(3).to(torch.float64 if self.rank == 1 else torch.float32))
        self.assertEqual(ops.all_reduce(torch.ones(2), "sum", self.name).tolist(), [3, 3])

    def test_reduction(self):
        with self.assertRaisesRegex(Exception, "sum" if self.rank == 2 else "rank 2"):
            ops.all_reduce_(torch.ones(2), "mystery" if self.rank == 2 else "sum", self.name)
        self.assertEqual(ops.all_reduce(torch.ones(2), "sum", self.name).tolist(), [3, 3])

    def test_group(self):
        with self.assertRaisesRegex(Exception, "group 'none' does not exist"):
            ops.all_reduce_(torch.ones(2), "sum", "none")
        with self.assertRaisesRegex(RuntimeError, "sparse|Sparse"):
            ops.all_reduce(torch.ones(2).to_sparse(), "sum", self.name)

    def test_size(self):
        with self.assertRaisesRegex(Exception, "group size 2, but the group has 3 ranks"):
            ops.all_gather(torch.ones(2), 2, self.name)

    @ranks.fresh
    def test_mismatch(self):
        with self.raises_within(RuntimeError, "rank 1 (called all_reduce )?with 5 x f32"):
            ops.all_reduce_(torch.ones(4 + (self.rank == 1)), "sum", self.name)

    @ranks.fresh(dies=[1])
    def test_dead_peer(self):
        ops.all_reduce_(torch.ones(4), "sum", self.name)
        self.meet()
        if self.rank == 1:
            self.die()
        with self.raises_within(RuntimeError, "rank 1", seconds=5):
            ops.all_reduce_(torch.ones(4), "sum", self.name)

    @ranks.fresh
    def test_interrupt(self):
        """What a signal's handler raises arrives, though torch makes another exception of it first."""
        pids = self.exchange(os.getpid())

        def call():
            try:
                ops.all_reduce_(torch.ones(4), "sum", self.name)
            except RuntimeError:
                for _ in range(1000):
                    pass

        def interrupt():
            raise KeyboardInterrupt

        if self.rank == 0:
            with self.assertRaises(KeyboardInterrupt):
                self.call_with_handler(signal.SIGINT, interrupt, call)
            self.meet()
        elif self.rank == 1:
            with self.signalling(pids[0], signal.SIGINT):
                self.meet()
        else:
            self.meet()

    @ranks.fresh
    def test_after_the_end(self):
        ops.all_reduce_(torch.ones(4), "sum", self.name)
        weft.finalize()
        with self.assertRaisesRegex(RuntimeError, "init"):
            ops.all_reduce_(torch.ones(4), "sum", self.name)


if __name__ == "__main__":
    ranks.main()
