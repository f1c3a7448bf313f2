#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of a program in JAX; tests/python/test_jax.py starts as many as it needs, with an interpreter that has jax.

usage: jax_ranks.py CASE ..     cases: calls types axes train operators aside bucketed dies late refused alone
"""
import os
import signal
import sys
import time

if not os.environ.get("MPITRAMPOLINE_LIB"):  # else without weft.jax, by the variables alone
    import weft.jax  # noqa: F401
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

REAL = "float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bfloat16".split()
MOVED = ["bool", "bfloat16", "float32", "complex64", "complex128"]  # of each size


def initialize():
    if "WEFT_NO_PYTHON" in os.environ:
        jax.distributed.initialize(os.environ["WEFT_NO_PYTHON"], int(os.environ["WEFT_WORLD_SIZE"]),
                                   int(os.environ["WEFT_RANK"]))
    else:
        jax.distributed.initialize()
    jax.config.update("jax_enable_x64", True)


def put(array, sharding):
    """An array that all ranks hold as an array of all of them."""
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def check(name, got, expected):
    """Compares this rank's part of an array with that of numpy's array."""
    for shard in got.addressable_shards:
        want = np.asarray(expected)[shard.index]
        np.testing.assert_array_equal(np.asarray(shard.data).astype(want.dtype), want, err_msg=name)


def run_all(mesh, spec, op, inputs):
    """op on a dictionary of arrays that are cut by spec, in one compiled program."""
    placed = {name: put(array, NamedSharding(mesh, spec)) for name, array in inputs.items()}
    mapped = jax.shard_map(lambda tree: {name: op(part) for name, part in tree.items()}, mesh=mesh, in_specs=spec,
                           out_specs=spec, check_vma=False)
    return jax.jit(mapped)(placed)


def collectives(summed, moved):
    """Reductions on types of summed, the rest on those of moved, in one program each. Each rank has 2 * n elements."""
    n = jax.device_count()
    mesh = Mesh(np.array(jax.devices()), ("x",))
    ring = [(i, (i + 1) % n) for i in range(n)]

    def case(op, reference, types):
        inputs = {t: (np.arange(2 * n * n) % 5 % (2 if t == "bool" else 5)).astype(jnp.dtype(t)) for t in types}
        outputs = run_all(mesh, P("x"), op, inputs)
        for t in types:
            blocks = inputs[t].astype("complex128" if "complex" in t else "float64").reshape(n, 2 * n)
            check(f"{op.__name__} of {t}", outputs[t], np.concatenate(reference(blocks)))

    def psum(a):
        return lax.psum(a, "x")

    def pmean(a):
        return lax.pmean(a, "x")

    def pmax(a):
        return lax.pmax(a, "x")

    def pmin(a):
        return lax.pmin(a, "x")

    def all_gather(a):
        return lax.all_gather(a, "x", tiled=True)

    def psum_scatter(a):
        return lax.psum_scatter(a, "x", tiled=True)

    def ppermute(a):
        return lax.ppermute(a, "x", ring)

    def ppermute_once(a):
        return lax.ppermute(a, "x", ring[:1])

    def all_to_all(a):
        return lax.all_to_all(a, "x", 0, 0, tiled=True)

    case(psum, lambda b: [b.sum(0)] * n, summed)
    case(psum_scatter, lambda b: list(b.sum(0).reshape(n, 2)), summed)
    ordered = [t for t in summed if t in REAL]
    case(pmax, lambda b: [b.max(0)] * n, ordered)
    case(pmin, lambda b: [b.min(0)] * n, ordered)
    if n != 3:  # exact
        case(pmean, lambda b: [b.sum(0) / n] * n, ["float32"])
    case(all_gather, lambda b: [b.reshape(-1)] * n, moved)
    case(ppermute, lambda b: [b[(i - 1) % n] for i in range(n)], moved)
    case(ppermute_once, lambda b: [b[0] if i == 1 else 0 * b[0] for i in range(n)], moved)
    case(all_to_all, lambda b: [b.reshape(n, n, 2)[:, i].reshape(-1) for i in range(n)], moved)


def calls():
    collectives(["float32", "complex64"], ["float32"])


def types():
    collectives([*REAL, "complex64", "complex128"], MOVED)


def axes():
    """Collectives over each axis of a mesh of 2 x 2, and both."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("rows", "columns"))
    x = np.arange(16, dtype="float32").reshape(4, 4)
    blocks = x.reshape(2, 2, 2, 2).transpose(0, 2, 1, 3)  # [row, column, ..]

    def op(a):
        return (lax.psum(a, "rows"), lax.psum(a, "columns"), lax.psum(a, ("rows", "columns")),
                lax.ppermute(a, "columns", [(0, 1), (1, 0)]))

    outputs = run_all(mesh, P("rows", "columns"), op, {"x": x})["x"]
    rows = np.broadcast_to(blocks.sum(0, keepdims=True), blocks.shape)
    columns = np.broadcast_to(blocks.sum(1, keepdims=True), blocks.shape)
    both = np.broadcast_to(blocks.sum((0, 1), keepdims=True), blocks.shape)
    for name, got, expected in zip(("rows", "columns", "both", "swap"), outputs, (rows, columns, both, blocks[:, ::-1])):
        check(name, got, expected.transpose(0, 2, 1, 3).reshape(4, 4))


# ---- a transformer, trained ----

VOCABULARY, WIDTH, HEADS, LENGTH, BATCH, STEPS = 32, 32, 4, 8, 8, 4
# How tensor parallelism cuts the weights: attention by heads, the MLP by its hidden width.
SPECS = {"embed": P(), "q": P(None, "model"), "k": P(None, "model"), "v": P(None, "model"), "o": P("model"),
         "up": P(None, "model"), "down": P("model"), "out": P()}


def weights():
    random = np.random.default_rng(5)
    shapes = {"embed": (VOCABULARY, WIDTH), "q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH),
              "o": (WIDTH, WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH), "out": (WIDTH, VOCABULARY)}
    return {name: (random.standard_normal(shape) * 0.2).astype("float32") for name, shape in shapes.items()}


def loss_of(w, tokens):
    def norm(a):
        return a * lax.rsqrt(jnp.mean(a * a, -1, keepdims=True) + 1e-6)

    def heads(a):
        return a.reshape(*a.shape[:2], HEADS, WIDTH // HEADS)

    x = w["embed"][tokens[:, :-1]]
    q, k, v = (heads(norm(x) @ w[name]) for name in "qkv")
    scores = jnp.einsum("bihd,bjhd->bhij", q, k) / (WIDTH // HEADS) ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -1e9)
    x = x + jnp.einsum("bhij,bjhd->bihd", jax.nn.softmax(scores), v).reshape(x.shape) @ w["o"]
    x = x + jax.nn.gelu(norm(x) @ w["up"]) @ w["down"]
    logits = jax.nn.log_softmax(norm(x) @ w["out"])
    return -jnp.mean(jnp.take_along_axis(logits, tokens[:, 1:, None], -1))


def losses_on(mesh):
    """Losses of a few steps; XLA inserts what collectives the mesh needs."""
    w = {name: put(array, NamedSharding(mesh, SPECS[name])) for name, array in weights().items()}
    tokens = put(np.random.default_rng(6).integers(0, VOCABULARY, (BATCH, LENGTH + 1)), NamedSharding(mesh, P("data")))

    @jax.jit
    def step(w, tokens):
        loss, gradients = jax.value_and_grad(loss_of)(w, tokens)
        return loss, jax.tree.map(lambda a, g: a - 0.5 * g, w, gradients)

    losses = []
    for _ in range(STEPS):
        loss, w = step(w, tokens)
        losses.append(float(loss))
    return losses


def train():
    """Half of the ranks data-parallel, two ranks tensor-parallel; rank 0 compares with itself alone."""
    got = losses_on(Mesh(np.array(jax.devices()).reshape(-1, 2), ("data", "model")))
    if jax.process_index() == 0:
        expected = losses_on(Mesh(np.array(jax.local_devices()).reshape(1, 1), ("data", "model")))
        assert expected[-1] < expected[0] - 0.1, expected
        np.testing.assert_allclose(got, expected, rtol=2e-5)


# ---- operators of weft.jax ----

def operators():
    n, r = jax.process_count(), jax.process_index()
    everyones = [{t: ((np.arange(4 * n) + s) % 3 + 1).astype(jnp.dtype(t)) for t in [*REAL, "float16", "complex64"]}
                 for s in range(n)]
    mine = everyones[r]

    def case(operator, expected, tree=mine, **words):
        got = jax.jit(lambda a: operator(a, **words))(tree)
        for t in tree:
            want = expected(np.stack([e[t].astype("complex128" if t == "complex64" else "float64") for e in everyones]))
            np.testing.assert_array_equal(np.asarray(got[t]).astype(want.dtype), want, err_msg=f"{operator} {words} {t}")

    ordered = {t: a for t, a in mine.items() if t != "complex64"}
    case(weft.jax.all_reduce, lambda e: e.sum(0))
    for op, reference in (("prod", np.prod), ("min", np.min), ("max", np.max)):
        case(weft.jax.all_reduce, lambda e, f=reference: f(e, axis=0), ordered, op=op)
    case(weft.jax.all_reduce, lambda e: e.mean(0), {t: mine[t] for t in ("float32", "complex64")}, op="avg")
    case(weft.jax.reduce_scatter, lambda e: e.sum(0).reshape(n, 4)[r])
    case(weft.jax.all_gather, lambda e: e.reshape(-1))
    case(weft.jax.all_to_all, lambda e: e.reshape(n, n, 4)[:, r].reshape(-1))
    case(weft.jax.broadcast, lambda e: e[n - 1], root=n - 1)
    assert weft.jax.all_reduce(np.float32(r + 1)) == n * (n + 1) / 2  # not in jit
    assert weft.jax.all_reduce({}) == {}
    many = weft.jax.all_reduce([jnp.full(i % 3 + 1, r, "float32") for i in range(150)])  # more than a batch
    assert all((a == n * (n - 1) / 2).all() for a in many) and len(many) == 150
    transformed(n, r)
    parts = put(np.ones(n), NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x")))
    for call, text in ((lambda: weft.jax.all_reduce(mine, "mean"), "invalid value 'mean' for op"),
                       (lambda: weft.jax.all_to_all(np.zeros(n + 1)), f"no multiple of world size {n}"),
                       (lambda: weft.jax.broadcast(np.zeros(1), n), f"invalid root {n}"),
                       (lambda: weft.jax.all_reduce(np.zeros(1, bool)), "no sum of bool"),
                       (lambda: jax.grad(lambda a: weft.jax.all_reduce(a, "max"))(1.0), "'max' has no derivative"),
                       (lambda: jax.vmap(weft.jax.all_gather)(jnp.ones(3)), "a scalar has no first dimension"),
                       (lambda: weft.jax.all_reduce(parts), "sharded over several devices: call it inside of jax.shard")):
        expect_error(call, text)
    # Last: it breaks the world.
    expect_error(lambda: jax.block_until_ready(weft.jax.all_reduce(np.zeros(1 + r, "float32"))), "x f32")


def aside():
    """Calls of many bytes, which a thread completes, between small ones and products."""
    n, r = jax.process_count(), jax.process_index()
    x = np.arange(512.0 * 512).reshape(512, 512) % 7 + r
    every = [np.arange(512.0 * 512).reshape(512, 512) % 7 + s for s in range(n)]

    @jax.jit
    def steps(a):
        def step(a, _):
            (total, two), small = weft.jax.all_reduce((a, a[:2])), weft.jax.all_reduce(a[0])
            product = (a @ a)[0, 0]
            first = weft.jax.all_gather(a)[:512]
            return (total + first + product - (a @ a)[0, 0]) % 5, small + two[0]
        return lax.scan(step, a, None, 9)

    def step(arrays):
        return [(sum(arrays) + arrays[0]) % 5] * n, 2 * sum(arrays)[0]

    arrays, small = every, []
    for _ in range(9):
        arrays, row = step(arrays)
        small.append(row)
    got = steps(x)
    np.testing.assert_array_equal(got[0], arrays[r])
    np.testing.assert_array_equal(got[1], small)
    threads = [open(f"/proc/self/task/{task}/comm", encoding="utf8").read() for task in os.listdir("/proc/self/task")]
    assert "weft-jax\n" in threads, threads
    # Last: it breaks the world.
    expect_error(lambda: jax.block_until_ready(weft.jax.all_reduce(np.zeros((512, 512 + r)))), "x f64")


def expect_error(call, text):
    try:
        call()
    except Exception as error:  # noqa: BLE001 (JAX has many types)
        assert text in str(error), error
        return
    raise AssertionError(f"no error: {text}")


def transformed(n, r):
    """Derivatives are those of the sum of all processes' results."""
    x = np.arange(2.0 * n * n).reshape(2 * n, n) + r
    weight = r + 1.0
    total = n * (n + 1) / 2
    every = [np.arange(2.0 * n * n).reshape(2 * n, n) + s for s in range(n)]
    gradient = jax.jit(jax.grad(lambda a: (weft.jax.all_reduce(a) * weight).sum()))(x)
    np.testing.assert_allclose(gradient, np.full_like(x, total))
    gradient = jax.grad(lambda a: (jax.checkpoint(weft.jax.reduce_scatter)(a) * weight).sum())(x)
    np.testing.assert_allclose(gradient, np.repeat(np.arange(1.0, n + 1), 2)[:, None] + 0 * x)
    gradient = jax.grad(lambda a: (weft.jax.reduce_scatter(a, "avg") * weight).sum())(x)
    np.testing.assert_allclose(gradient, np.repeat(np.arange(1.0, n + 1), 2)[:, None] / n + 0 * x)
    gradient = jax.grad(lambda a: (weft.jax.all_gather(a) * weight).sum())(x)
    np.testing.assert_allclose(gradient, np.full_like(x, total))
    gradient = jax.grad(lambda a: (weft.jax.all_to_all(a) * weight).sum())(x)
    np.testing.assert_allclose(gradient, np.repeat(np.arange(1.0, n + 1), 2)[:, None] + 0 * x)
    scatter = jax.linear_transpose(lambda a: weft.jax.reduce_scatter(a, "avg"), x)  # and its transpose
    np.testing.assert_allclose(jax.linear_transpose(lambda c: scatter(c)[0], x[:2])(x)[0], (sum(every) / n)[2 * r:2 * r + 2])
    # Leaves without a tangent: integers, constants.
    mixed = jax.grad(lambda a: weft.jax.all_reduce({"a": a, "i": jnp.arange(3), "c": jnp.ones(2)})["a"].sum() * weight)(x)
    np.testing.assert_allclose(mixed, np.full_like(x, total))
    value, tangent = jax.jvp(lambda a: weft.jax.all_reduce((a, a * a)), (x,), (np.ones_like(x),))
    np.testing.assert_allclose(value[1], sum(e * e for e in every))
    np.testing.assert_allclose(tangent[1], 2 * sum(every))
    np.testing.assert_allclose(jax.vmap(weft.jax.all_gather, 1, 1)(x), np.concatenate(every))
    np.testing.assert_allclose(jax.vmap(weft.jax.all_reduce)(x), sum(every))
    averaged = jax.jit(lambda a: lax.scan(lambda c, _: (weft.jax.all_reduce(c, "avg") + 1, c.sum()), a, None, 5))(x)[0]
    np.testing.assert_allclose(averaged, sum(every) / n + 5)
    # Independent calls run in the order of the program on all processes, inside of shard_map as well.
    mesh = Mesh(np.array(jax.devices()), ("x",))
    parts = put(np.arange(4.0 * n), NamedSharding(mesh, P("x")))

    def independent(a):
        return [weft.jax.all_reduce(a[: i % 4 + 1]) for i in range(20)]

    for i, got in enumerate(jax.jit(jax.shard_map(independent, mesh=mesh, in_specs=P("x"), out_specs=P("x"),
                                                  check_vma=False))(parts)):
        check("shard_map", got, np.tile(np.arange(4.0 * n).reshape(n, 4).sum(0)[: i % 4 + 1], n))


# ---- weft.jax.bucketed ----

def count_calls(function, *args):
    """All-reduces in the jaxpr of function, and where they are, as a part of its equations."""
    eqns = jax.make_jaxpr(function)(*args).jaxpr.eqns
    places = [i for i, eqn in enumerate(eqns) if eqn.primitive.name == "weft_collective"]
    return len(places), [place / len(eqns) for place in places]


def same(got, expected, exact=True):
    assert jax.tree.structure(got) == jax.tree.structure(expected), (got, expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected)):
        if getattr(a, "dtype", None) == jax.dtypes.float0:
            assert a.dtype == b.dtype and a.shape == b.shape
            continue
        assert jnp.asarray(a).dtype == jnp.asarray(b).dtype, (a, b)
        to = np.asarray(a).dtype if np.asarray(a).dtype.kind in "iufc" else "float32"   # bfloat16
        rtol, atol = (0, 0) if exact else (2e-5, 1e-6)
        np.testing.assert_allclose(np.asarray(a, to), np.asarray(b, to), rtol=rtol, atol=atol)


def average(tree):
    return weft.jax.all_reduce(tree, op="avg")


def bucketed():
    n, r = jax.process_count(), jax.process_index()
    w = weights()
    tokens = np.random.default_rng(7 + r).integers(0, VOCABULARY, (BATCH, LENGTH + 1))
    jitted = jax.jit(jax.value_and_grad(loss_of))
    expected = average(jitted(w, tokens))
    for policy, calls in (("one", 1), ("none", 9), ("auto", None), ("bytes:8K", None), ("index:2,5", 3)):
        step = weft.jax.bucketed(jitted, policy)            # a jitted function is inlined
        found, places = count_calls(step, w, tokens)
        assert calls in (None, found), (policy, found)
        assert policy != "none" or places[0] < 0.5, places  # the loss is ready before the backward pass
        if policy in ("one", "none", "auto"):
            same(jax.jit(step)(w, tokens), expected, exact=False)
    deep(3, r)
    types_of_gradients(n, r)
    parts_of_results(n, r)
    trained(w, tokens)
    for call, text in ((lambda: weft.jax.bucketed(jax.grad(loss_of), "many"), "many"),
                       (lambda: weft.jax.bucketed(jax.grad(loss_of), costs="/none"), "/none"),
                       (lambda: weft.jax.bucketed(jax.grad(loss_of), average=(True, False))(w, tokens), "not a prefix"),
                       (lambda: weft.jax.bucketed(lambda a: a > 0)(np.ones(2)), "no avg of bool")):
        expect_error(call, text)


def deep(layers, r):
    """Layers as calls: jax.checkpoint, custom derivatives, control flow; large enough for several buckets."""
    @jax.custom_vjp
    def scaled(a):
        return a * 2.0

    scaled.defvjp(lambda a: (a * 2.0, None), lambda _, g: (g * 2.0,))

    def layer(x, w):
        x = x + jax.nn.relu(jax.nn.gelu(x @ w["a"]) @ w["b"]) + scaled(w["c"])
        return lax.cond(x[0, 0] > 1e9, lambda a: a * 2, lambda a: a, x)

    def loss(w, x):
        for part in w["layers"]:
            x = jax.checkpoint(layer)(x, part)
        x, _ = lax.scan(lambda a, m: (jnp.tanh(a @ m), None), x, w["scanned"])
        return (x * x).mean()

    random = np.random.default_rng(3)
    w = {"layers": [{"a": random.standard_normal((256, 512)).astype("float32") * 0.05,
                     "b": random.standard_normal((512, 256)).astype("float32") * 0.05,
                     "c": np.zeros(256, "float32")} for _ in range(layers)],
         "scanned": random.standard_normal((3, 256, 256)).astype("float32") * 0.05}
    x = np.random.default_rng(r).standard_normal((8, 256)).astype("float32")
    expected = average(jax.jit(jax.grad(loss))(w, x))
    for policy in ("one", "none", "auto"):
        step = weft.jax.bucketed(jax.grad(loss), policy)
        same(jax.jit(step)(w, x), expected, exact=False)
        found, places = count_calls(step, w, x)
        assert {"one": found == 1, "none": found == 3 * layers + 1, "auto": 1 <= found <= 3 * layers + 1}[policy], found
        # The last layer's gradients are reduced before those of other layers are computed.
        assert policy != "none" or places[-1] - places[0] > 0.1, places


def types_of_gradients(n, r):
    """Types are not mixed; tied, constant and zero gradients, integers, arrays that are passed through."""
    x = {t: jnp.arange(1, 7).astype(t) for t in ("float32", "bfloat16", "float16", "float64")}
    scale = 2.0 ** r

    def loss(w):
        return sum((a * a).sum().astype("float32") * scale for a in w.values())

    for policy, calls in (("one", 4), ("none", 4), ("auto", None)):
        step = weft.jax.bucketed(jax.grad(loss), policy)
        same(jax.jit(step)(x), average(jax.grad(loss)(x)), exact=False)
        found, _ = count_calls(step, x)
        assert calls in (None, found) and found >= 4, found

    def odd(w):
        g = jax.grad(lambda a: (a["used"] ** 2).sum() * (r + 1))(w)
        return {"g": g, "tied": [g["used"], g["used"]], "whole": w["unused"], "one": jnp.float32(r), "python": 1.0 * r,
                "none": None, "integer": jnp.arange(3) * n * r, "complex": jnp.full(2, 1j * r, "complex64")}

    w = {"used": jnp.arange(3.0), "unused": jnp.full(2, float(r))}
    for policy in ("one", "none", "auto"):
        step = weft.jax.bucketed(odd, policy)
        same(step(w), average(odd(w)))                      # not in jit
        same(jax.jit(step)(w), average(odd(w)))
    thrice = weft.jax.bucketed(lambda w: [jax.grad(lambda a: (a ** 2).sum())(w)] * 3, "none")
    assert count_calls(thrice, w["used"])[0] == 1
    g = weft.jax.bucketed(jax.grad(lambda a: (a["x"] ** 2).sum() * r, allow_int=True))({"x": w["used"], "i": 3})
    assert g["i"].dtype == jax.dtypes.float0
    np.testing.assert_allclose(g["x"], w["used"] * (n - 1))
    constant = jax.jit(jax.grad(lambda a, b: a * np.float32(r + 1) + b * 0, (0, 1)))
    scalars = np.ones(2, "float32")
    same(weft.jax.bucketed(constant)(*scalars), average(constant(*scalars)))
    assert weft.jax.bucketed(lambda a: {})(1.0) == {}
    same(jax.vmap(weft.jax.bucketed(lambda a: a * r))(jnp.ones((3, 2))), jnp.full((3, 2), (n - 1) / 2.0), exact=False)


def parts_of_results(n, r):
    """average is a prefix of the result; arguments by keyword, and such as no array."""
    def loss(w, x, power=2, *, name):
        assert name == "n" and power in (2, 3)
        return ((w * x) ** power).sum(), {"x": x, "w": w, "text": name}

    w, x = jnp.arange(4.0), jnp.full(4, r + 1.0)
    for power in (2, 3):
        (value, aux), g = jax.value_and_grad(loss, has_aux=True)(w, x, power, name="n")
        for policy in ("one", "none", "auto"):
            step = weft.jax.bucketed(jax.value_and_grad(loss, has_aux=True), policy, average=((True, False), True))
            (got_value, got_aux), got = step(w, x, power, name="n")
            same((got_value, got), average((value, g)))
            same({"x": got_aux["x"], "w": got_aux["w"]}, {"x": x, "w": w})
            assert got_aux["text"] == "n"
    both = jax.jit(weft.jax.bucketed(lambda a: (a, a), average=(False, True)))(x)
    same(both, (x, jnp.full(4, (n + 1) / 2.0)))
    only = jax.jit(weft.jax.bucketed(jax.value_and_grad(lambda a: a.sum()), average=(False, True)))(x)
    same(only, (x.sum(), jnp.ones(4)))
    same(weft.jax.bucketed(lambda a: a, average=False)(x), x)


def trained(w, tokens):
    """Inside of shard_map and scan: losses of a few steps as with all_reduce."""
    mesh = Mesh(np.array(jax.devices()), ("x",))
    data = jax.make_array_from_process_local_data(NamedSharding(mesh, P("x")), tokens)

    def losses(value_and_grad):
        def steps(w, tokens):
            def step(w, _):
                loss, g = value_and_grad(w, tokens)
                return jax.tree.map(lambda a, b: a - 0.5 * b, w, g), loss
            return lax.scan(step, w, None, STEPS)[1]
        mapped = jax.shard_map(steps, mesh=mesh, in_specs=(P(), P("x")), out_specs=P(), check_vma=False)
        return np.asarray(jax.jit(mapped)(w, data).addressable_shards[0].data)

    plain = jax.value_and_grad(loss_of)
    expected = losses(lambda w, tokens: average(plain(w, tokens)))
    assert expected[-1] < expected[0] - 0.1, expected
    for policy in ("one", "none", "auto"):
        np.testing.assert_allclose(losses(weft.jax.bucketed(plain, policy)), expected, rtol=2e-5)


# ---- failures ----

def failing(leave):
    mesh = Mesh(np.array(jax.devices()), ("x",))
    x = put(np.ones(jax.device_count(), "float32"), NamedSharding(mesh, P("x")))
    total = jax.jit(jax.shard_map(lambda a: lax.psum(a, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))
    total(x).block_until_ready()
    if jax.process_index() == 1:
        leave()
    try:
        while True:
            total(x).block_until_ready()
    except ValueError as error:
        print(f"rank {jax.process_index()} has caught: {error}", flush=True)
        if "WEFT_TEST_CAUGHT" in os.environ:
            open(os.environ["WEFT_TEST_CAUGHT"], "w").close()
        os._exit(0)  # jax.distributed would wait for the rank that is gone


def dies():
    failing(lambda: os.kill(os.getpid(), signal.SIGKILL))


def refused():
    try:
        failing(lambda: None)
    except Exception as error:  # noqa: BLE001 (JAX has many types)
        print(f"rank {jax.process_index()} has caught: {error}", flush=True)
        os._exit(0)


def alone():
    """Arguments of jax.distributed.initialize instead of a launcher."""
    for name in [name for name in os.environ if name.startswith("WEFT_")]:
        del os.environ[name]
    refused()


def late():
    def leave():
        while not os.path.exists(os.environ["WEFT_TEST_CAUGHT"]):
            time.sleep(0.1)
        os._exit(0)

    failing(leave)


initialize()
for case in sys.argv[1:]:
    globals()[case]()
print(f"rank {jax.process_index()} of {jax.process_count()}: good", flush=True)
