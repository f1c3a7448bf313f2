#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weft.passes against the C functions on the same view, and what it says to invalid views."""
import array
import ctypes
import inspect
import os
import random
import threading
import unittest

import ranks

np = ranks.need("numpy")
import weft  # noqa: E402
from weft import passes  # noqa: E402

ABSENT = 2**32 - 1
P = ctypes.c_void_p
U32, U64 = ctypes.c_uint32, ctypes.c_uint64


def struct(name, *fields):
    return type(name, (ctypes.Structure,), {"_fields_": [(field, kind) for field, kind in fields]})


Value = struct("Value", ("name", ctypes.c_char_p), ("dtype", ctypes.c_int), ("bytes", U64), ("producer", U32),
               ("grad_of", U32), ("first_user", U32), ("user_count", U32))
Op = struct("Op", ("name", ctypes.c_char_p), ("definition", P), ("effects", U32), ("group", U32), ("first_input", U32),
            ("input_count", U32), ("first_output", U32), ("output_count", U32), ("reduction", ctypes.c_int),
            ("present", U32))
CView = struct("CView", ("size", ctypes.c_size_t), ("value_count", U32), ("values", P), ("op_count", U32), ("ops", P),
               ("order_count", U32), ("order", P), ("op_inputs", P), ("op_outputs", P), ("users", P),
               ("edge_count", U32), ("edges", P))
CEdit = struct("CEdit", ("kind", ctypes.c_int), ("value", U32), ("op_name", ctypes.c_char_p),
               ("reduction", ctypes.c_int), ("group", U32), ("members", ctypes.POINTER(U32)), ("member_count", U32),
               ("op_a", U32), ("op_b", U32), ("text", ctypes.c_char_p), ("parts", U32))
BucketParams = struct("BucketParams", ("size", ctypes.c_size_t), ("policy", ctypes.c_char_p), ("ready_ns", P),
                      ("world", U32), ("cost", P), ("costs_path", ctypes.c_char_p), ("allocator", P),
                      ("reduce_scatter_cost", P), ("all_gather_cost", P))
CForecast = struct("CForecast", ("size", ctypes.c_size_t), ("bucket_count", U32), ("optimum_count", U32),
                   ("ready_ps", U64), ("chosen_ps", U64), ("optimum_ps", U64), ("lower_bound_ps", U64),
                   ("comm_ps", U64))
ScheduleParams = struct("ScheduleParams", ("size", ctypes.c_size_t), ("op_ns", P), ("kept", P), ("to_end", P),
                        ("in_flight", U32), ("most_live_bytes", U64), ("allocator", P))
AlgorithmsParams = struct("AlgorithmsParams", ("size", ctypes.c_size_t), ("group_sizes", P), ("group_count", U32),
                          ("order", ctypes.c_int), ("costs_path", ctypes.c_char_p), ("registry", P), ("allocator", P))


class C:
    """The C library that weft itself has loaded."""

    def __init__(self):
        self.lib = ctypes.CDLL("libweft.so.0")
        self.lib.weft_registry_find_op.restype = P
        self.lib.weft_registry_find_op.argtypes = [P, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int32]
        self.lib.weft_edit_list_count.restype = ctypes.c_size_t
        self.lib.weft_edit_list_count.argtypes = [P]
        self.lib.weft_edit_list_get.restype = ctypes.POINTER(CEdit)
        self.lib.weft_edit_list_get.argtypes = [P, ctypes.c_size_t]
        self.lib.weft_edit_list_destroy.argtypes = [P]
        self.registry = P()
        assert self.lib.weft_registry_create(None, ctypes.byref(self.registry)) == 0

    def definition(self, name):
        domain, op, version = (b"weft", name[5:].encode(), 1) if name.startswith("weft.") else (b"", b"Concat", 13)
        found = self.lib.weft_registry_find_op(self.registry, domain, op, version)
        assert found, name
        return found

    def view(self, graph):
        """The arrays of a Graph; the view refers to them."""
        ops = (Op * len(graph.ops))()
        values = (Value * len(graph.bytes))()
        inputs, outputs, users = [], [], []
        for i, op in enumerate(graph.ops):
            effects = passes.COMMUNICATES if op.startswith("weft.") else passes.PURE
            ops[i] = Op(b"op %d" % i, self.definition(op), effects, 0, len(inputs), len(graph.inputs[i]), len(outputs),
                        len(graph.outputs[i]), 1, 1)
            inputs += graph.inputs[i]
            outputs += graph.outputs[i]
        for v, size in enumerate(graph.bytes):
            readers = [i for i in range(len(graph.ops)) for value in graph.inputs[i] if value == v]
            producer = next((i for i in range(len(graph.ops)) if v in graph.outputs[i]), ABSENT)
            grad_of = graph.grad_of[v] if graph.grad_of[v] >= 0 else ABSENT
            values[v] = Value(b"value %d" % v, 1, size, producer, grad_of, len(users), len(readers))
            users += readers
        arrays = [(U32 * max(1, len(ids)))(*ids) for ids in (range(len(ops)), inputs, outputs, users)]
        view = CView(ctypes.sizeof(CView), len(values), ctypes.addressof(values), len(ops), ctypes.addressof(ops),
                     len(ops), *(ctypes.addressof(ids) for ids in arrays), 0, None)
        view.keep = values, ops, arrays
        return view

    def edits(self, name, view, params=None, report=None):
        out = P()
        more = [ctypes.byref(params)] if params is not None else [None]
        more += [ctypes.byref(out), None if report is None else ctypes.byref(report)]
        status = getattr(self.lib, f"weft_pass_{name}")(ctypes.byref(view), *more)
        assert status == 0, (name, status)
        found = []
        for i in range(self.lib.weft_edit_list_count(out)):
            edit = self.lib.weft_edit_list_get(out, i).contents
            text = edit.text.decode() if edit.text else ""
            members = tuple(edit.members[k] for k in range(edit.member_count))
            if edit.kind == 1:
                found.append(passes.Insert(edit.value, edit.op_name.decode(), "avg", edit.group))
            elif edit.kind == 2:
                found.append(passes.Fuse(members, text))
            elif edit.kind == 3:
                found.append(passes.Order(edit.op_a, edit.op_b))
            elif edit.kind == 4:
                found.append(passes.Algorithm(edit.op_a, tuple(text.split(","))))
            elif edit.kind == 5:
                found.append(passes.Split(edit.op_a, edit.parts, text))
            else:
                after = None if edit.op_b == ABSENT else edit.op_b
                found.append(passes.StartWait(edit.op_a, after, members[0] if members else None))
        self.lib.weft_edit_list_destroy(out)
        return found


class Graph:
    """A backward pass: count products, each of which makes a gradient that is reduced and then read by an update."""

    def __init__(self, sizes, collective="weft.AllReduce"):
        count = len(sizes)
        self.ops, self.inputs, self.outputs, self.grad_of = [], [], [], [-1] * (count + 1)
        self.bytes = list(sizes) + [64]                     # parameters, and the gradient that goes backwards
        last = count
        results = []
        for i, size in enumerate(sizes):
            grad, onward, result = (len(self.bytes) + k for k in range(3))
            self.bytes += [size, 64, size]
            self.grad_of += [-1 if collective else i, -1, i]
            self.ops += ["product", collective or "identity"]
            self.inputs += [[last], [grad]]
            self.outputs += [[grad, onward], [result]]
            last = onward
            results.append(result)
        self.ops.append("update")
        self.inputs.append(results)
        self.outputs.append([])

    def view(self, **more):
        return passes.View.from_lists(self.ops, self.inputs, self.outputs, self.bytes, grad_of=self.grad_of,
                                      reductions=["avg"] * len(self.ops), **more)


def graphs():
    generator = random.Random(7)
    yield Graph([])
    yield Graph([1 << 20])
    for count in (3, 20, 64):
        yield Graph([generator.choice((256, 4096, 65536, 1 << 20, 9 << 20)) for _ in range(count)])


class AgainstC(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.c = C()

    def test_bucket(self):
        for graph in graphs():
            times = [1000 * (i + 1) for i in range(len(graph.ops))]
            for policy in ("none", "one", "index:0", "auto", "auto:64K", "mgwfbp", "bytes:1M", "percent:60,40", None):
                if policy in ("index:0", "percent:60,40") and len(graph.ops) < 6:
                    continue
                for world in (2, 8):
                    with self.subTest(policy=policy, world=world, ops=len(graph.ops)):
                        view = self.c.view(graph)
                        ready = (U64 * len(times))(*times)
                        forecast = CForecast(ctypes.sizeof(CForecast))
                        expected = self.c.edits("bucket", view, BucketParams(
                            ctypes.sizeof(BucketParams), policy and policy.encode(), ctypes.addressof(ready), world),
                            forecast)
                        edits, said = passes.bucket(graph.view(), policy, ready_ns=np.array(times), world=world)
                        self.assertEqual(edits, expected)
                        self.assertEqual(said, tuple(getattr(forecast, field) for field in passes.Forecast._fields))
                        passes.check(graph.view(), edits)

    def test_bucket_costs(self):
        graph = Graph([4096] * 12)
        flat = passes.Cost(pieces=[(20_000_000, 1024)])
        steep = passes.Cost(points=np.array([[0, 1000], [1 << 20, 10**12]], "uint64"))
        self.assertEqual(len([e for e in passes.bucket(graph.view(), cost=flat)[0]]), 1)
        _, forecast = passes.bucket(graph.view(), "none", cost=steep)
        self.assertEqual(forecast.bucket_count, 12)
        single = 1000 + 4096 * (10**12 - 1000) // (1 << 20)
        self.assertAlmostEqual(forecast.comm_ps / (12 * single), 1, places=3)

    def test_shards(self):
        """ReduceScatters and AllGathers become buckets, too."""
        for kind in ("weft.ReduceScatter", "weft.AllGather"):
            graph = Graph([65536] * 6, kind)
            edits, _ = passes.bucket(graph.view(), world=4)
            self.assertEqual([edit.members for edit in edits], [(1, 3, 5, 7, 9, 11)])

    def test_other_passes(self):
        for graph in graphs():
            view, c_view = graph.view(), self.c.view(graph)
            with self.subTest(ops=len(graph.ops)):
                for name in ("order", "start_wait"):
                    self.assertEqual(getattr(passes, name)(view), self.c.edits(name, c_view))
                sizes = (U32 * 1)(4)
                params = AlgorithmsParams(ctypes.sizeof(AlgorithmsParams), ctypes.addressof(sizes), 1)
                self.assertEqual(passes.algorithms(view, [4]), self.c.edits("algorithms", c_view, params))
                ns = [2000 if op.startswith("weft.") else 1000 for op in graph.ops]
                times = (U64 * len(ns))(*ns)
                params = ScheduleParams(ctypes.sizeof(ScheduleParams), ctypes.addressof(times), None, None, 2)
                edits, report = passes.schedule(view, ns, in_flight=2)
                self.assertEqual(edits, self.c.edits("schedule", c_view, params))
                self.assertEqual(bool(edits), report.changed)
                self.assertEqual(list(passes.ready_times(view, ns)), list(np.cumsum(ns)))
        plain = Graph([64, 64], None)
        plain.grad_of = [-1, -1, -1, 0, -1, -1, 1, -1, -1]
        edits = passes.insert_collectives(plain.view())
        self.assertEqual(edits, self.c.edits("insert_collectives", self.c.view(plain)))
        self.assertEqual([edit.value for edit in edits], [3, 6])

    def test_any_integers(self):
        """All buffers of integers mean the same."""
        graph = Graph([4096] * 8)
        expected = passes.bucket(graph.view(), world=4)
        begin, inputs = passes._ragged(graph.inputs)
        ends, outputs = passes._ragged(graph.outputs)
        for convert in (lambda x: np.array(x, "int32"), lambda x: np.array(x, "int64"), memoryview, list,
                        lambda x: np.array(x, "int16")):
            view = passes.View(graph.ops, convert(begin), convert(inputs), convert(ends), convert(outputs),
                               convert(array.array("i", graph.bytes)), grad_of=convert(array.array("h", graph.grad_of)),
                               reductions=["avg"] * len(graph.ops), dtypes=["float32"] * len(graph.bytes),
                               order=convert(array.array("b", range(len(graph.ops)))))
            self.assertEqual(passes.bucket(view, world=4), expected)

    def test_removed_operators(self):
        graph = Graph([4096] * 3)
        order = [i for i in range(len(graph.ops)) if i not in (3, 6)]  # the second AllReduce and the update
        edits, _ = passes.bucket(graph.view(order=order), world=2)
        self.assertEqual([edit.members for edit in edits], [(1, 5)])


def small(**change):
    """Arguments of a valid View, with some of them replaced."""
    fields = dict(ops=["a", "weft.AllReduce", "b"], input_begin=[0, 1, 2, 3], inputs=[0, 1, 2],
                  output_begin=[0, 1, 2, 3], outputs=[1, 2, 3], value_bytes=[4, 4, 4, 4], grad_of=[-1, -1, 0, -1])
    fields.update(change)
    return passes.View(**fields)


class Hostile(unittest.TestCase):
    """Python exceptions, never a crash."""

    def refuses(self, text, kind=ValueError, **change):
        with self.subTest(**{name: str(value)[:60] for name, value in change.items()}):
            with self.assertRaisesRegex(kind, text):
                passes.bucket(small(**change), world=2)

    def test_views(self):
        self.refuses("value 4 does not exist", inputs=[0, 1, 4])
        self.refuses("value 9 does not exist", outputs=[1, 2, 9])
        self.refuses("value 1 has two producers", outputs=[1, 1, 3])
        self.refuses("op 1 runs before op 2|runs before", inputs=[0, 3, 2])
        self.refuses("op 7 does not exist", order=[0, 1, 7])
        self.refuses("op 1 is a duplicate", order=[0, 1, 1])
        self.refuses("runs before", order=[2, 1, 0])
        self.refuses("runs first", edges=[(2, 0)])
        self.refuses("runs first", edges=[(1, 1)])
        self.refuses("but there are 3 ops", edges=[(0, 3)])
        self.refuses("edges has 3 elements", edges=[0, 1, 2])
        self.refuses("must not fall", input_begin=[0, 2, 1, 3])
        self.refuses("expected from 0 to 3", input_begin=[0, 1, 2, 2])
        self.refuses("expected from 0 to 3", input_begin=[1, 1, 2, 3])
        self.refuses("input_begin has 3 elements, expected 4", input_begin=[0, 1, 3])
        self.refuses("output_begin has 5 elements, expected 4", output_begin=[0, 1, 2, 3, 3])
        self.refuses("grad_of has 2 elements, expected 4", grad_of=[-1, 0])
        self.refuses("gradient of value 44", grad_of=[-1, -1, 44, -1])
        self.refuses(r"grad_of\[0\]: -2 is out of range", grad_of=[-2, -1, 0, -1])
        self.refuses(r"inputs\[1\]: -2 is out of range", inputs=[0, -2, 2])
        self.refuses("out of range", inputs=np.array([0, 2**32 - 1, 2], "uint64"))
        self.refuses("out of range", value_bytes=np.array([4, 4, 2**64 - 1, 4], "uint64"))
        self.refuses("out of range", value_bytes=[4, 4, -4, 4])
        self.refuses("out of range", value_bytes=[4, 4, 2**70, 4])
        with self.assertRaisesRegex(ValueError, "out of range"):
            passes.View.from_lists(["a"], [[2**70]], [[0]], [4])
        self.refuses("integers, not float32", TypeError, value_bytes=np.ones(4, "float32"))
        self.refuses("", TypeError, inputs=[0, "1", 2])
        self.refuses("", TypeError, inputs=None)
        self.refuses("", TypeError, inputs=7)
        self.refuses("", TypeError, ops=7)
        self.refuses("ops must be str", TypeError, ops=["a", None, "b"])
        self.refuses("no operator NoSuchThing", ops=["a", "weft.NoSuchThing", "b"])
        self.refuses("null character", ops=["a", "weft.AllReduce\0x", "b"])
        self.refuses("surrogates", ops=["a", "\ud800", "b"])
        self.refuses("input_begin has 4 elements, expected 2", ops=["a"])
        self.refuses("op_names has 1 elements, expected 3", op_names=["a"])
        self.refuses("reductions has 1 elements, expected 3", reductions=["sum"])
        self.refuses("not one of", reductions=["sum", "median", "sum"])
        self.refuses("unknown dtype", TypeError, dtypes=["float32", "float31", "float32", "float32"])
        self.refuses("groups has 1 elements, expected 3", groups=[0])
        self.refuses("effects has 1 elements, expected 3", effects=[0])
        self.refuses("C order|contiguous", (ValueError, BufferError), value_bytes=np.zeros(8, "int64")[::2])

    def test_parameters(self):
        view = small()
        for text, kind, call in (
                ("policy|bucket", ValueError, lambda: passes.bucket(view, "nonsense", world=2)),
                ("policy must be str", TypeError, lambda: passes.bucket(view, 7, world=2)),
                ("world_size", ValueError, lambda: passes.bucket(view)),
                ("world", ValueError, lambda: passes.bucket(view, world=-1)),
                ("world", ValueError, lambda: passes.bucket(view, world=2**40)),
                ("ready_ns has 1 elements, expected 3", ValueError, lambda: passes.bucket(view, world=2, ready_ns=[1])),
                ("out of range", ValueError, lambda: passes.bucket(view, world=2, ready_ns=[0, -1, 0])),
                ("weft.passes.Cost", TypeError, lambda: passes.bucket(view, cost=7)),
                ("pieces or points", ValueError, lambda: passes.bucket(view, cost=passes.Cost())),
                ("must rise", ValueError, lambda: passes.bucket(view, cost=passes.Cost([(8, 1), (8, 2)]))),
                ("has 3 elements", ValueError, lambda: passes.bucket(view, cost=passes.Cost(pieces=[1, 2, 3]))),
                ("No such file", weft.WeftNotFoundError, lambda: passes.bucket(view, world=2, costs="/none/such")),
                ("costs", TypeError, lambda: passes.bucket(view, world=2, costs=7)),
                ("group_sizes|no size", ValueError, lambda: passes.algorithms(view, [])),
                ("no size", ValueError, lambda: passes.algorithms(small(groups=[0, 5, 0]), [2])),
                ("blocks", ValueError, lambda: passes.algorithms(view, [2], order="blocks")),
                ("not one of", ValueError, lambda: passes.algorithms(view, [2], order="none")),
                ("op_ns has 1", ValueError, lambda: passes.schedule(view, [1])),
                ("kept has 1", ValueError, lambda: passes.schedule(view, [1] * 3, kept=[1])),
                ("in_flight", ValueError, lambda: passes.schedule(view, [1] * 3, in_flight=-1)),
                ("most_live_bytes", ValueError, lambda: passes.schedule(view, [1] * 3, most_live_bytes=-1)),
                ("op_ns", ValueError, lambda: passes.schedule(view, None)),
                ("op_ns has 4", ValueError, lambda: passes.ready_times(view, [1] * 4)),
                ("weft.passes.View", TypeError, lambda: passes.order("view")),
                ("weft.passes", TypeError, lambda: passes.check(view, ["edit"]))):
            with self.subTest(text), self.assertRaisesRegex(kind, text):
                call()

    def test_edits(self):
        view = small()
        for edit, text in ((passes.Fuse((1, 1), ""), "op 1|twice|fuse"), (passes.Fuse((0,), ""), "op 0"),
                           (passes.Fuse((77,), ""), "77"), (passes.Order(2, 0), "itself|cycle"),
                           (passes.Order(0, 99), "99"), (passes.Split(1, 2, ""), "parts|limit|piece"),
                           (passes.Split(1, 1, ""), "parts|at least"), (passes.Insert(99, "AllReduce", "sum", 0), "99"),
                           (passes.StartWait(55, None, None), "55"), (passes.Merge(0, 44), "44"),
                           (passes.Order(-1, 0), "out of range"), (passes.Order(None, 0), "op"),
                           (passes.Algorithm(99, ("ring",)), "99")):
            with self.subTest(edit), self.assertRaisesRegex(ValueError, text):
                passes.check(view, [edit])
        passes.check(view, [passes.Order(0, 2), passes.StartWait(1, 0, 2), passes.Algorithm(1, ("mesh",))])
        with self.assertRaises(TypeError):
            passes.check(view, 7)
        with self.assertRaises(TypeError):
            passes.check(view, [passes.Order("a", "b")])

    def test_random_damage(self):
        """Any one number of a valid view replaced by another: an exception, or edits that may be applied."""
        seed = int(os.environ.get("WEFT_TEST_SEED") or random.randrange(10**6))
        generator = random.Random(seed)
        refused = 0
        graph = Graph([4096, 65536, 256, 1 << 20])
        begin, inputs = passes._ragged(graph.inputs)
        ends, outputs = passes._ragged(graph.outputs)
        for _ in range(600):
            fields = dict(input_begin=begin, inputs=inputs, output_begin=ends, outputs=outputs,
                          value_bytes=graph.bytes, grad_of=graph.grad_of, order=range(len(graph.ops)),
                          edges=[0, 1, 2, 4], groups=[0] * len(graph.ops), effects=[0] * len(graph.ops))
            for name in generator.sample(sorted(fields), generator.randint(1, 2)):
                numbers = list(fields[name])
                numbers[generator.randrange(len(numbers))] = generator.choice(
                    (-1, 0, 1, 2, 3, 5, 8, 13, 1000, 2**31, 2**32 - 2, 2**40, 2**62))
                fields[name] = numbers
            try:
                view = passes.View(graph.ops, **fields)
                ns = [1000] * len(graph.ops)
                for edits in (passes.bucket(view, generator.choice(("none", "one", "auto", "mgwfbp")), world=3)[0],
                              passes.order(view), passes.start_wait(view), passes.schedule(view, ns)[0],
                              passes.insert_collectives(view)):
                    passes.check(view, edits)
                passes.algorithms(view, [3])
            except ValueError:
                refused += 1
            except Exception as error:
                error.add_note(f"seed {seed}, fields {fields}")
                raise
        self.assertGreater(refused, 100)

    def test_long_steps(self):
        """Times of many seconds, and the latest one, go from ready_times to bucket and schedule."""
        view = small()
        ready = passes.ready_times(view, [3 * 10**9] * 3)
        self.assertEqual(list(ready), [3 * 10**9, 6 * 10**9, 9 * 10**9])
        _, forecast = passes.bucket(view, world=2, ready_ns=ready)
        self.assertIn(forecast.ready_ps, [1000 * ns for ns in ready])
        _, report = passes.schedule(view, [5 * 10**9] * 3)
        self.assertGreaterEqual(report.given.finish_ps, 10 * 10**12)
        latest = passes.ready_times(view, [10**18] * 3)
        self.assertEqual(max(latest), 10**18)
        self.assertEqual(len(passes.bucket(view, world=2, ready_ns=latest)[0]), 1)

    def test_threads(self):
        """Views may be read by several threads."""
        graph = Graph([4096] * 20)
        view, expected, wrong = graph.view(), passes.bucket(graph.view(), world=4), []

        def work():
            for _ in range(50):
                if passes.bucket(view, world=4) != expected:
                    wrong.append(threading.current_thread().name)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_everything_has_a_docstring(self):
        for name, there in vars(passes).items():
            if not name.startswith("_") and getattr(there, "__module__", None) == "weft.passes":
                self.assertTrue(inspect.getdoc(there), name)


if __name__ == "__main__":
    ranks.main()
