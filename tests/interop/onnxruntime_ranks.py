#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of a program on ONNX Runtime; tests/python/test_onnxruntime.py starts as many as it needs.

usage: onnxruntime_ranks.py CASE ..     cases: types order inferred model sample wrong domains mismatch threads dies plain
"""
import os
import pathlib
import signal
import sys
import threading

import numpy as np
import onnxruntime
from onnx import TensorProto as T, helper

import weft
import weft.onnxruntime

MOVED = {"bool": T.BOOL, "int8": T.INT8, "int16": T.INT16, "int32": T.INT32, "int64": T.INT64, "uint8": T.UINT8,
         "uint16": T.UINT16, "uint32": T.UINT32, "uint64": T.UINT64, "float16": T.FLOAT16, "float32": T.FLOAT,
         "float64": T.DOUBLE, "bfloat16": T.BFLOAT16}  # bfloat16, which numpy lacks, by Casts
DOMAINS = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("weft", 1)]

if "WEFT_RANK" in os.environ and "model" not in sys.argv:
    N, R = int(os.environ["WEFT_WORLD_SIZE"]), int(os.environ["WEFT_RANK"])
else:
    weft.init()  # a world next to that of the sessions
    N, R = weft.get_world_size(), weft.get_rank()


def model_of(nodes, inputs, outputs, initializers=(), domains=DOMAINS):
    """inputs, outputs: names and (type, shape)."""
    infos = [[helper.make_tensor_value_info(name, *what) for name, what in side.items()] for side in (inputs, outputs)]
    graph = helper.make_graph(nodes, "test", *infos, initializer=list(initializers))
    return helper.make_model(graph, opset_imports=domains, ir_version=8).SerializeToString()


def session_of(model, register=None, **settings):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    for name, value in settings.items():
        setattr(options, name, value)
    register(options) if register else weft.onnxruntime.register(options, model)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def node(op, names_in, names_out, domain="weft", **attributes):
    return helper.make_node(op, names_in.split(), names_out.split(), domain=domain, **attributes)


def expect_error(call, *texts):
    try:
        call()
    except Exception as error:  # noqa: BLE001 (ONNX Runtime has many types)
        message = str(error)
    else:
        raise AssertionError(f"no error with {texts}")
    for text in texts:
        assert text in message, message


# ---- operators ----

def types():
    for name, onnx_type in MOVED.items():
        one_type(name, onnx_type)


def one_type(name, onnx_type):
    """Every operator on one type, in one graph. e: what all ranks have, of which rank r has e[r]."""
    dtype = np.dtype("float32" if name == "bfloat16" else name)
    every = np.array([(np.arange(6 * N) % 3 + r + 1).reshape(2 * N, 3) for r in range(N)]).astype(dtype)
    rows = list(range(1, N + 1))  # of each rank
    tall = np.array([np.arange(sum(rows) * 3).reshape(-1, 3) % 4 + r for r in range(N)]).astype(dtype)
    sent = [[(s + 2 * d) % 3 for d in range(N)] for s in range(N)]  # rows from rank s to rank d
    starts = np.cumsum([[0, *line] for line in sent], axis=1)
    feeds = {"x": every[R], "tall": tall[R], "mine": tall[R][:rows[R]], "send": tall[R][:sum(sent[R])]}
    blocks = every.reshape(N, N, 2, 3)  # of rank, for rank
    nodes, expected = [], {}

    def case(op, array, result, domain="weft", **attributes):
        out = f"y{len(expected)}"
        nodes.append(node(op, array, out, domain, **attributes))
        expected[out] = result

    for domain, size in (("weft", {}), ("com.microsoft", {"group_size": N})):
        axis = {"axis": 0} if size else {}
        case("AllGather", "x", every.reshape(-1, 3), domain, **size, **axis)
        case("AllToAll", "x", blocks[:, R].reshape(-1, 3), domain, **size)
    for axis, attributes in ((1, {}), (1, {"axis": -1}), (0, {"axis": -2})):
        case("AllGather", "x", np.concatenate(every, axis), "com.microsoft", group_size=N, **attributes)
    case("Broadcast", "x", every[N - 1], root=N - 1)
    case("Scatter", "x", blocks[1, R], root=1)
    case("AllGatherV", "mine", np.concatenate([tall[r][:rows[r]] for r in range(N)]), counts=rows)
    case("AllToAllV", "send", np.concatenate([tall[s][starts[s][R]:starts[s][R + 1]] for s in range(N)]),
         send_counts=sent[R], recv_counts=[sent[s][R] for s in range(N)])
    if name != "bool":
        total = every.sum(0, dtype=dtype)
        case("AllReduce", "x", total, "com.microsoft")
        case("AllReduce", "x", total)
        case("AllReduce", "x", every.min(0), reduction="min")
        case("AllReduce", "x", every.max(0), reduction="max")
        case("ReduceScatter", "x", total.reshape(N, 2, 3)[R], group_size=N)
        case("Reduce", "x", total if R == N - 1 else None, root=N - 1)
        begin = sum(rows[:R])
        case("ReduceScatterV", "tall", tall.sum(0, dtype=dtype)[begin:begin + rows[R]], counts=rows)
        if name != "bfloat16":
            case("AllReduce", "x", every.prod(0, dtype=dtype), reduction="prod")
    if dtype.kind == "f":
        case("AllReduce", "x", (every.sum(0) / dtype.type(N)).astype(dtype), reduction="avg")
    outside = MOVED[dtype.name]
    if outside != onnx_type:
        nodes = [*(node("Cast", f"{i}_", i, "", to=onnx_type) for i in feeds), *nodes,
                 *(node("Cast", i, f"{i}_", "", to=outside) for i in expected)]
        feeds = {f"{i}_": array for i, array in feeds.items()}
        expected = {f"{i}_": array for i, array in expected.items()}
    session = session_of(model_of(nodes, {i: (outside, a.shape) for i, a in feeds.items()},
                                  {i: (outside, None) for i in expected}))
    for _ in range(2):
        for (out, want), got in zip(expected.items(), session.run(list(expected), feeds)):
            if want is not None:
                np.testing.assert_array_equal(got, want, err_msg=f"{name} {out}")


def order():
    """Independent collectives in one graph, many tensors in one node, tensors without elements, reused memory."""
    total = N * (N + 1) // 2
    nodes, expected = [], {}
    for i in range(40):
        nodes += [node("Mul", "x x", f"a{i}", ""), node("AllReduce", f"a{i}", f"b{i}", "com.microsoft" if i % 2 else "weft"),
                  node("Add", f"b{i} x", f"y{i}", "")]
        expected[f"y{i}"] = np.full(i + 1, sum((r + 1) ** 2 for r in range(N)) + R + 1, "float32")
    for i in range(40):  # one input of each length
        for n in nodes[3 * i:3 * i + 3]:
            n.input[:] = [f"x{i}" if name == "x" else name for name in n.input]
    feeds = {f"x{i}": np.full(i + 1, R + 1, "float32") for i in range(40)}
    session = session_of(model_of(nodes, {i: (T.FLOAT, ["n" + i]) for i in feeds}, {i: (T.FLOAT, None) for i in expected}))
    for _ in range(3):
        for want, got in zip(expected.values(), session.run(list(expected), feeds)):
            np.testing.assert_array_equal(got, want)

    many = 150  # more than a batch takes
    names = [f"x{i}" for i in range(many)]
    outs = [f"y{i}" for i in range(many)]
    for domain in ("weft", "com.microsoft"):
        session = session_of(model_of([node("AllReduce", " ".join(names), " ".join(outs), domain)],
                                      {i: (T.INT32, ["n"]) for i in names}, {i: (T.INT32, None) for i in outs}))
        feeds = {name: np.full(i % 4, R + 1, "int32") for i, name in enumerate(names)}
        for i, got in enumerate(session.run(outs, feeds)):
            np.testing.assert_array_equal(got, np.full(i % 4, total, "int32"))

    session = session_of(model_of([node("Relu", "x", "a", ""), node("AllReduce", "a", "y")], {"x": (T.FLOAT, [])},
                                  {"y": (T.FLOAT, None)}))
    assert session.run(None, {"x": np.array(R + 1, "float32")})[0] == total  # a scalar
    big = np.full((1 << 20) + 3, R + 1, "float32")
    session = session_of(model_of([node("Relu", "x", "a", ""), node("AllReduce", "a", "y")], {"x": (T.FLOAT, ["n"])},
                                  {"y": (T.FLOAT, None)}))
    for _ in range(3):
        assert (session.run(None, {"x": big})[0] == total).all()
        assert (big == R + 1).all()


def inferred():
    """Shapes that the graph knows before it runs."""
    cases = [(node("AllReduce", "x", "y"), ["n", 4], ["n", 4]), (node("AllReduce", "x", "y"), None, []),
             (node("AllGather", "x", "y", group_size=N), [2, "n"], [2 * N, "n"]),
             (node("AllGather", "x", "y", group_size=N), [2, 3], [2 * N, 3]),
             (node("AllGather", "x", "y", "com.microsoft", group_size=N), [2, 3], [2, 3 * N]),
             (node("AllGather", "x", "y", "com.microsoft", group_size=N, axis=0), [2, 3], [2 * N, 3]),
             (node("ReduceScatter", "x", "y", group_size=N), [2 * N, 3], [2, 3]),
             (node("ReduceScatter", "x", "y"), [2 * N, 3], None)]
    for n, shape, expected in cases:
        session = session_of(model_of([n], {"x": (T.FLOAT, shape)}, {"y": (T.FLOAT, None)}))
        got = session.get_outputs()[0].shape
        assert got == (expected or []), (n.op_type, shape, got, expected)


# ---- models ----

def block_of(size, rank, op, domain):
    """Attention and MLP whose heads and hidden units are spread over size ranks."""
    random = np.random.default_rng(1)
    width, heads, hidden = 32, 4, 64
    arrays = {name: random.normal(0, 0.3, shape).astype("float32") for name, shape in (
        ("q", (width, width)), ("k", (width, width)), ("v", (width, width)), ("o", (width, width)), ("up", (width, hidden)),
        ("down", (hidden, width)))}
    for name, axis in (("q", 1), ("k", 1), ("v", 1), ("o", 0), ("up", 1), ("down", 0)):
        arrays[name] = np.ascontiguousarray(np.split(arrays[name], size, axis)[rank])
    arrays["split"] = np.array([0, -1, heads // size, width // heads], "int64")
    arrays["join"] = np.array([0, 0, -1], "int64")
    arrays["root"] = np.array((width // heads) ** 0.5, "float32")
    nodes = []
    for name, to in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [node("MatMul", f"x {name}", f"{name}1", ""), node("Reshape", f"{name}1 split", f"{name}2", ""),
                  node("Transpose", f"{name}2", f"{name}3", "", perm=to)]
    nodes += [node("MatMul", "q3 k3", "s1", ""), node("Div", "s1 root", "s2", ""), node("Softmax", "s2", "s3", ""),
              node("MatMul", "s3 v3", "a1", ""), node("Transpose", "a1", "a2", "", perm=[0, 2, 1, 3]),
              node("Reshape", "a2 join", "a3", ""), node("MatMul", "a3 o", "a4", ""), node(op, "a4", "a5", domain),
              node("Add", "x a5", "r", ""), node("MatMul", "r up", "m1", ""), node("Relu", "m1", "m2", ""),
              node("MatMul", "m2 down", "m3", ""), node(op, "m3", "m4", domain), node("Add", "r m4", "y", "")]
    tensors = [helper.make_tensor(name, T.INT64 if a.dtype == np.int64 else T.FLOAT, a.shape, a.tobytes(), raw=True)
               for name, a in arrays.items()]
    shape = (T.FLOAT, ["batch", "tokens", width])
    return model_of(nodes, {"x": shape}, {"y": shape}, tensors)


def model():
    """A tensor-parallel model that ONNX Runtime alone cannot load equals the one-rank model."""
    part = block_of(N, R, "AllReduce", "com.microsoft")
    expect_error(lambda: session_of(part, lambda options: None), "com.microsoft:AllReduce(-1) is not a registered")
    whole, session = session_of(block_of(1, 0, "Identity", ""), lambda options: None), session_of(part)
    for batch, tokens in ((1, 5), (3, 2), (2, 17)):
        x = np.random.default_rng(2).normal(size=(batch, tokens, 32)).astype("float32")
        got = session.run(None, {"x": x})[0]
        np.testing.assert_allclose(got, whole.run(None, {"x": x})[0], rtol=1e-4, atol=1e-4)
        all_bits = weft.all_gather(got)
        assert all((bits == got).all() for bits in np.split(all_bits, N)), "ranks differ"


def sample():
    """The parts that samples/tensor_parallel/split_model.py has written, of domain weft."""
    folder = pathlib.Path(os.environ["WEFT_TEST_FOLDER"])
    session = session_of(str(folder / f"block.rank{R}.onnx"), lambda options: weft.onnxruntime.register(options))
    whole = session_of(str(folder / "whole.onnx"), lambda options: None)
    feeds = {i.name: np.random.default_rng(3).normal(size=[d if isinstance(d, int) else 2 for d in i.shape]).astype("float32")
             for i in session.get_inputs()}
    for got, want in zip(session.run(None, feeds), whole.run(None, feeds)):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


# ---- errors ----

def reducer(op="AllReduce", domain="weft", onnx_type=T.FLOAT, shape=None, **attributes):
    return session_of(model_of([node(op, "x", "y", domain, **attributes)], {"x": (onnx_type, shape)}, {"y": (onnx_type, None)}))


def wrong():
    """Attributes and arguments; the session stays usable."""
    expect_error(lambda: reducer("AllGather", "com.microsoft", group_size=N + 1),
                 f"attribute group_size: the model is for {N + 1} ranks, Weft's world has {N}")
    expect_error(lambda: reducer("AllToAll", "com.microsoft"), "attribute group_size: the model is for 1 ranks")
    expect_error(lambda: reducer(reduction="mean"), "attribute reduction: unknown value: expected sum, avg, prod, min or max")
    expect_error(lambda: reducer("Broadcast", root=N), f"attribute root: invalid rank {N} for world size {N}")
    expect_error(lambda: reducer(group=1), "attribute group: unsupported group 1")
    expect_error(lambda: reducer("ReduceScatter", flat=64), "attribute flat: unsupported")
    expect_error(lambda: reducer("AllGatherV", counts=[1] * (N + 1)), f"attribute counts: {N + 1} counts for {N} ranks")
    expect_error(lambda: reducer("AllGatherV", counts=[-1] * N), "attribute counts: invalid count of rank 0: -1")
    for op, attributes in (("AllGather", {"group_size": 2.0}), ("AllReduce", {"group": "world"}), ("AllReduce", {"flat": [1]}),
                           ("Broadcast", {"root": 1.0}), ("AllReduce", {"reduction": 1}), ("AllReduce", {"reduction": 1.0}),
                           ("AllGatherV", {"counts": [1.0] * N}), ("AllGatherV", {"counts": N})):
        name, = attributes
        expect_error(lambda: reducer(op, **attributes), f"attribute {name}: wrong type: expected")  # pylint: disable=cell-var-from-loop
    expect_error(lambda: reducer("AllGather", "com.microsoft", group_size=N, axis="last"), "attribute axis: wrong type: expected an integer")
    for op in ("Recv", "Gather"):
        expect_error(lambda: reducer(op), f"weft:{op}(-1) is not a registered")  # pylint: disable=cell-var-from-loop
    expect_error(lambda: session_of(model_of([], {}, {}), execution_mode=onnxruntime.ExecutionMode.ORT_PARALLEL),
                 "execution_mode is ORT_PARALLEL")
    scatter, good = reducer("ReduceScatter"), reducer()
    ones = np.ones(N, "float32")
    for r in range(2):  # one rank's argument is wrong: all ranks get its message
        expect_error(lambda: scatter.run(None, {"x": np.ones(N + (R == r), "float32")}),
                     f"input has {N + 1} rows: expected a multiple of {N} ranks", *([f"rank {r}: "] if r != R else []))
        assert (good.run(None, {"x": ones})[0] == N).all()
    expect_error(lambda: reducer("AllGather", "com.microsoft", group_size=N).run(None, {"x": ones}),
                 "input has 1 dimensions: axis 1 is not one of them")
    expect_error(lambda: reducer("AllGatherV", counts=[2] * N).run(None, {"x": np.ones(3, "float32")}),
                 f"input has 3 rows: rank {R} has 2 by the counts")
    expect_error(lambda: reducer(onnx_type=T.BOOL).run(None, {"x": np.ones(2, bool)}), "bool")
    expect_error(lambda: good.run(None, {"x": np.ones([1] * 9, "float32")}), "input 0 has 9 dimensions: expected at most 8")
    assert (good.run(None, {"x": ones})[0] == N).all()
    shapes = (2, 3) if R == 0 else (3, 2)  # as many elements
    expect_error(lambda: good.run(None, {"x": np.ones(shapes, "float32")}), "AllReduce", "rank 0", "(2, 3)", "(3, 2)")


def domains():
    """A model that imports com.microsoft, or a session without it: ONNX Runtime's fusions work. Else it does not find them."""
    fused = [node("Transpose", "x", "a", "", perm=[1, 0]), node("MatMul", "a x", "b", ""), node("AllReduce", "b", "y")]
    register = weft.onnxruntime.register
    with_it, without = (model_of(fused, {"x": (T.FLOAT, [4, 3])}, {"y": (T.FLOAT, None)}, (), ids)
                        for ids in (DOMAINS, [DOMAINS[0], DOMAINS[2]]))
    for model, chosen in ((with_it, {"model": with_it}), (without, {"model": without}), (with_it, {}), (without, {}),
                          (with_it, {"domains": ("weft", "com.microsoft")}), (without, {"domains": ["weft"]})):
        session = session_of(model, lambda options: register(options, **chosen))  # pylint: disable=cell-var-from-loop
        assert (session.run(None, {"x": np.ones((4, 3), "float32")})[0] == 4 * N).all()

    def refused(*texts, **chosen):
        expect_error(lambda: session_of(without, lambda options: register(options, **chosen)), *texts)
    refused("com.microsoft:FusedMatMul(-1) is not a registered", domains=["weft", "com.microsoft"])
    refused("weft:AllReduce(-1)", domains=["com.microsoft"])
    refused("invalid value 'weft' for domains", domains="weft")
    refused("invalid value ['ai.onnx']", domains=["ai.onnx"])
    for damaged in (without[:-1], b"\x80" * 20, b"\x0b", with_it[:len(with_it) // 2]):
        refused("model: not an ONNX model: pass domains", model=damaged)
    refused("No such file", model="no such model")
    large = model_of([node("Identity", "w", "y", "")], {}, {"y": (T.FLOAT, None)}, [helper.make_tensor("w", T.FLOAT, [9999], np.zeros(9999))])
    assert weft.onnxruntime.imports_of(large) == {"", "com.microsoft", "weft"} and weft.onnxruntime.imports_of(b"") == set()
    com = [node("AllReduce", "x", "y", "com.microsoft")]
    expect_error(lambda: session_of(model_of(com, {"x": (T.FLOAT, [3])}, {"y": (T.FLOAT, None)}), register),
                 "com.microsoft:AllReduce(-1) is not a registered")

    def configure(options):
        options.add_session_config_entry("weft.domains", "weft,ai.onnx")
        options.register_custom_ops_library(weft.onnxruntime.LIBRARY)
    expect_error(lambda: session_of(without, configure), "configuration entry weft.domains: unknown value: expected weft,")


def mismatch():
    session = reducer()
    expect_error(lambda: session.run(None, {"x": np.ones(1 + R, "float32")}), "rank 0", "1 x f32", "2 x f32")
    expect_error(lambda: session.run(None, {"x": np.ones(1, "float32")}), "1 x f32")  # the world is broken


def threads():
    """Two sessions at the same time: an error on all ranks, after which all is well."""
    sessions = [reducer(), reducer()]
    x = np.ones(3, "float32")
    seen = []

    def run(session):
        try:
            session.run(None, {"x": x})
        except Exception as error:  # noqa: BLE001
            assert "two collectives at the same time" in str(error), error
            seen.append(str(error))

    for _ in range(1000):
        if R == 0:
            both = [threading.Thread(target=run, args=(session,)) for session in sessions]
            for thread in both:
                thread.start()
            for thread in both:
                thread.join()
        else:
            run(sessions[0])
            run(sessions[1])
        if seen:
            break
    assert len(seen) == 1 and (R == 0 or "rank 0: " in seen[0]), seen
    assert (sessions[0].run(None, {"x": x})[0] == N).all()


def dies():
    session = reducer()
    x = np.ones(1000, "float32")
    session.run(None, {"x": x})
    if R == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            session.run(None, {"x": x})
    except Exception as error:  # noqa: BLE001
        print(f"rank {R} has caught: {error}", flush=True)


def plain():
    """Without weft.onnxruntime and without a Python package: by the path of the library."""
    def configure(options):
        options.add_session_config_entry("weft.domains", "com.microsoft")
        options.register_custom_ops_library(os.environ["WEFT_TEST_LIBRARY"])
    session = session_of(model_of([node("AllReduce", "x", "y", "com.microsoft")], {"x": (T.FLOAT, None)}, {"y": (T.FLOAT, None)}), configure)
    for _ in range(3):  # sessions come and go; the world stays
        assert session.run(None, {"x": np.ones(3, "float32")})[0][2] == N
        del session
        session = reducer()


for case in sys.argv[1:]:
    globals()[case]()
print(f"rank {R} of {N}: good", flush=True)
