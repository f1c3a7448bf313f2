#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weft.torch.inductor: compiled steps with Weft's buckets against the same steps without torch.compile."""
import re
import sys
import unittest

import ranks

torch = ranks.need("torch")
import atexit  # noqa: E402
import contextlib  # noqa: E402
import copy  # noqa: E402
import operator  # noqa: E402
import os  # noqa: E402
import shutil  # noqa: E402
import tempfile  # noqa: E402
import types  # noqa: E402

import torch.distributed as dist  # noqa: E402
import weft.torch  # noqa: E402
import weft.torch.inductor as inductor  # noqa: E402

NEW = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2]) >= inductor.LEAST
torch.set_num_threads(1)
if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
    CACHE = os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="weft-inductor-")
    OWNER = os.getpid()  # not the ranks, which are its forks
    atexit.register(lambda: os.getpid() == OWNER and shutil.rmtree(CACHE, ignore_errors=True))
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of processes


class Old(unittest.TestCase):
    @unittest.skipIf(NEW, "this torch is new enough")
    def test_message(self):
        with self.assertRaisesRegex(RuntimeError, f"torch {re.escape(torch.__version__)} is too old: needs torch 2.15"):
            inductor.install()
        self.assertFalse(inductor.installed())
        inductor.uninstall()


def net(layers=6, width=32):
    torch.manual_seed(5)
    parts = []
    for _ in range(layers):
        parts += [torch.nn.Linear(width, width), torch.nn.Tanh()]
    return torch.nn.Sequential(*parts)


class Mutations(unittest.TestCase):
    """What reads an input, also through a view or in a bucket, runs before the copy_ that gives it a new value."""

    def order(self, describe, gathers):
        """Names in the order of execution. describe(graph) adds nodes and returns the inputs of each bucket."""
        graph = torch.fx.Graph()
        buckets = []
        for inputs in describe(graph):
            start = graph.call_function(max, (inputs,))
            results = [graph.call_function(operator.getitem, (start, i)) for i in range(len(inputs))]
            wait = graph.call_function(min, (results, inputs))
            buckets.append(types.SimpleNamespace(start=start, wait=wait, results=results, inputs=inputs, gathers=gathers,
                                                 started=False, waited=False))
        self.late(graph, buckets)
        graph.output([result for bucket in buckets for result in bucket.results])
        inductor.Order(graph, buckets).apply()
        return [bucket.start.name for bucket in buckets], [node.name for node in graph.nodes]

    def late(self, graph, buckets):
        """Has the user of a result, where there is one, read it."""
        for node in graph.nodes:
            if node.name == "reader":
                node.args = (buckets[0].results[0], *node.args)

    def test_reader_of_a_view(self):
        def view(x):
            return x
        view.is_view = True

        def describe(graph):
            x, y = graph.placeholder("x"), graph.placeholder("y")
            first = graph.call_function(operator.neg, (x,))
            graph.create_node("call_function", operator.add, (graph.call_function(view, (x,)),), name="reader")
            graph.create_node("call_function", torch.ops.aten.copy_.default, (x, first), name="copied")
            return [[first, graph.call_function(operator.neg, (y,))]]
        _, order = self.order(describe, False)
        self.assertLess(order.index("reader"), order.index("copied"), order)

    def test_bucket(self):
        def describe(graph):
            x, y = graph.placeholder("x"), graph.placeholder("y")
            new = graph.call_function(operator.neg, (x,))
            graph.create_node("call_function", torch.ops.aten.copy_.default, (x, new), name="copied")
            return [[y], [x]]
        (_, second), order = self.order(describe, True)
        self.assertLess(order.index(second), order.index("copied"), order)

    def test_view_of_a_result(self):
        """It is no reason to wait: what comes after it runs before the wait."""
        def view(x):
            return x
        view.is_view = True

        def describe(graph):
            x, y = graph.placeholder("x"), graph.placeholder("y")
            cut = graph.create_node("call_function", view, (x,), name="reader")
            graph.create_node("call_function", operator.neg, (y,), name="other")
            graph.create_node("call_function", operator.neg, (cut,), name="last")
            return [[x]]
        _, order = self.order(describe, False)
        self.assertLess(order.index("other"), order.index("min_1"), order)
        self.assertEqual(order[-4:], ["min_1", "reader", "last", "output"])


@unittest.skipUnless(NEW, f"torch {torch.__version__} is older than 2.15")
class Compiled(ranks.TorchRankCase):
    RANKS = 2
    INIT = False

    def batch(self, step):
        return torch.randn(4, 32, generator=torch.Generator().manual_seed(10 * step + self.rank))

    @contextlib.contextmanager
    def planned(self, policy):
        """Weft's planner for a while."""
        torch._dynamo.reset()
        inductor._reports.clear()
        inductor.install(policy=policy)
        try:
            yield
        finally:
            inductor.uninstall()
            torch._dynamo.config.optimize_ddp = True

    def steps(self, model, compiled):
        """Gradients of three steps; the third adds to those of the second."""
        found = []
        for step in range(3):
            if step < 2:
                model.zero_grad(set_to_none=True)
            enabled = torch._dynamo.compiled_autograd._enable(torch.compile(fullgraph=True))
            with enabled if compiled else contextlib.nullcontext():
                loss = model(self.batch(step)).square().mean()
                loss.backward()
            found.append([parameter.grad.clone() for parameter in model.parameters()])
        return found

    def close(self, actual, expected):
        for mine, theirs in zip(actual, expected):
            for a, b in zip(mine, theirs):
                torch.testing.assert_close(a, b)

    def test_ddp(self):
        DDP = torch.nn.parallel.DistributedDataParallel
        expected = self.steps(DDP(net()), False)
        for policy, buckets in (("one", [12]), ("none", [1] * 12), ("auto:3K", None)):
            with self.planned(policy):
                torch._dynamo.config.optimize_ddp = "python_reducer"
                self.close(self.steps(torch.compile(DDP(net())), True), expected)
                reports = inductor.report()
                self.assertGreaterEqual(len(reports), 1)
                for report in reports:
                    self.assertEqual(report["collectives"], 12)
                    if buckets is not None:
                        self.assertEqual(sorted(report["buckets"]), buckets)
            self.assertEqual(inductor._pending, {})

    def test_shards(self):
        """Parameters in shards: all-gathers ahead of need, reduce-scatters of gradients."""
        from torch.distributed import _functional_collectives as functional
        group, size = dist.group.WORLD, self.size

        class Gather(torch.autograd.Function):
            @staticmethod
            def forward(ctx, shard):
                return functional.all_gather_tensor(shard, 0, group)

            @staticmethod
            def backward(ctx, gradient):
                return functional.reduce_scatter_tensor(gradient.contiguous(), "avg", 0, group)

        whole = [parameter.detach() for parameter in net().parameters()]
        shards = [part.chunk(size)[self.rank].clone().requires_grad_() for part in whole]

        def step(x, *shards):
            for i in range(0, len(shards), 2):
                x = torch.tanh(torch.nn.functional.linear(x, Gather.apply(shards[i]), Gather.apply(shards[i + 1])))
            return x.square().mean()

        x = self.batch(0)
        step(x, *shards).backward()
        expected = [shard.grad.clone() for shard in shards]
        with self.planned("auto"):
            for shard in shards:
                shard.grad = None
            torch.compile(step, fullgraph=True)(x, *shards).backward()
            kinds = {kind for report in inductor.report() for kind in report["kinds"]}
            self.assertEqual(kinds, {"all_gather_into_tensor", "reduce_scatter_tensor"})
        self.close([[shard.grad for shard in shards]], [expected])

    def test_cache(self):
        """Compiled twice: Inductor's cache is neither used nor the reason for a warning."""
        for _ in range(2):
            with self.planned("one"), self.assertNoLogs("torch._inductor.codecache", "WARNING"):
                torch.compile(lambda x: dist._functional_collectives.all_reduce(x, "sum", dist.group.WORLD))(torch.ones(8))
                self.assertEqual(len(inductor.report()), 1)

    def test_kept_results(self):
        """A room whose results are still referred to is not written again."""
        inductor.install()
        inductor.uninstall()
        name, x = dist.group.WORLD.group_name, [torch.full((3, 5), 1.0 + self.rank), torch.full((7,), 2.0)]
        kept = []
        for step in range(3):
            results = torch.ops.weft.start(x, "all_reduce", "sum", 1, self.size, 0, name)
            torch.ops.weft.wait_(results, x)
            if self.rank == 0:                      # one rank keeps its results, the other uses its room again
                kept.append(results)
            self.assertTrue(all((result == value).all() for result, value in zip(results, (3.0, 4.0))), results)
        self.assertEqual(len({results[0].data_ptr() for results in kept}), len(kept))

    def test_other_backend(self):
        """Collectives of Gloo stay Inductor's."""
        other = dist.new_group(backend="gloo")
        with self.planned("auto"):
            from torch.distributed import _functional_collectives as functional
            x = torch.full((8,), float(self.rank + 1))
            y = torch.compile(lambda x: functional.all_reduce(x * 2, "sum", other) + 1, fullgraph=True)(x)
            torch.testing.assert_close(y, torch.full((8,), 7.0))
            self.assertEqual(inductor.report(), [])

    def test_settings(self):
        from torch._inductor import config
        before = copy.copy(config.post_grad_custom_post_pass), config.reorder_for_peak_memory
        with self.assertRaises(ValueError):
            inductor.install(policy="nonsense")
        with self.assertRaises(weft.WeftNotFoundError):
            inductor.install(costs="/none/such")
        self.assertFalse(inductor.installed())
        inductor.install()
        inductor.install(policy="one")
        self.assertTrue(inductor.installed())
        inductor.uninstall()
        inductor.uninstall()
        self.assertEqual((config.post_grad_custom_post_pass, config.reorder_for_peak_memory), before)


@unittest.skipUnless(NEW, f"torch {torch.__version__} is older than 2.15")
class Sharded(ranks.TorchRankCase):
    """Modules by fully_shard, with shards that are uneven, empty, and shared."""
    RANKS = (2, 3)
    INIT = False

    def net(self):
        torch.manual_seed(5)
        parts = [torch.nn.Linear(16, 13), torch.nn.Tanh(), torch.nn.Linear(13, 16, bias=False), torch.nn.LayerNorm(16),
                 torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16), torch.nn.Linear(16, 1)]
        parts[6].weight = parts[4].weight
        return torch.nn.Sequential(*parts)

    def steps(self, model, parameters, reduce=lambda gradient: gradient):
        optimizer = torch.optim.AdamW(parameters, lr=0.01)
        x = torch.randn(4, 16, generator=torch.Generator().manual_seed(self.rank))
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            for parameter in parameters:
                reduce(parameter.grad)
            optimizer.step()

    def check(self, compile, reshard=True, **mesh):
        model = self.net()
        self.steps(model, list(model.parameters()), lambda gradient: dist.all_reduce(gradient, dist.ReduceOp.AVG))
        sharded = inductor.fully_shard(self.net(), reshard_after_forward=reshard, **mesh)
        self.assertEqual(list(sharded.state_dict()), list(model.state_dict()))
        self.assertLessEqual(sum(parameter.to_local().numel() for parameter in sharded.parameters()),
                             sum(parameter.numel() for parameter in model.parameters()) // self.size + 64)
        self.steps(compile(sharded), list(sharded.parameters()))
        for mine, theirs in zip(sharded.parameters(), model.parameters()):
            torch.testing.assert_close(mine.full_tensor(), theirs)

    def test_eager(self):
        self.check(lambda model: model)

    def test_compiled(self):
        for reshard in (True, False):
            torch._dynamo.reset()
            inductor._reports.clear()
            inductor.install()
            try:
                self.check(lambda model: torch.compile(model, fullgraph=True), reshard)
            finally:
                inductor.uninstall()
            forward, backward = ([kind for kind, count in zip(report["kinds"], report["buckets"]) for _ in range(count)]
                                 for report in inductor.report())
            self.assertEqual(set(forward), {"all_gather_into_tensor"})
            self.assertEqual(set(backward), {"reduce_scatter_tensor"} | ({"all_gather_into_tensor"} if reshard else set()))
            for report in inductor.report():
                self.assertEqual([report["buckets"]] * self.size, self.exchange(report["buckets"]))

    def test_other_backend(self):
        from torch.distributed.tensor import DeviceMesh
        self.check(lambda model: model, mesh=DeviceMesh.from_group(dist.new_group(backend="gloo"), "cpu"))

    def test_errors(self):
        from torch.distributed.tensor import init_device_mesh
        for module, words in ((torch.nn.LSTM(2, 2), "module '' is not supported: LSTM"),
                              (inductor.fully_shard(torch.nn.Linear(2, 2)), "'weight' of the module is a DTensor already"),
                              (torch.nn.ParameterList([torch.nn.Parameter(torch.tensor(1.0))]), "'0' of the module has no")):
            with self.assertRaisesRegex(ValueError, words):
                inductor.fully_shard(module)
        with self.assertRaisesRegex(ValueError, "'mesh': 2 dimensions: expected 1"):
            inductor.fully_shard(torch.nn.Linear(2, 2), init_device_mesh("cpu", (self.size, 1)))


if __name__ == "__main__":
    ranks.main()
