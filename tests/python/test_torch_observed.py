# SPDX-License-Identifier: Apache-2.0
"""Process groups of backend weft as torch looks at them: its profiler, its checks, what asks for a backend."""
import ranks

torch = ranks.need("torch")
import datetime  # noqa: E402
import unittest  # noqa: E402

import torch.distributed as dist  # noqa: E402
import weft.torch  # noqa: E402
from weft.torch import ProcessGroupWeft  # noqa: E402

torch.set_num_threads(1)
HAS_BACKEND = ProcessGroupWeft.backend_class is not None
needs_backend = unittest.skipUnless(HAS_BACKEND, "this torch has no backends that are written in Python")


class Everything(ranks.TorchRankCase):
    """What goes by way of torch while somebody looks has the results that it has otherwise."""
    RANKS = 2

    def calls(self):
        """(title, the call, what it reads, what it writes, what that is then)."""
        n, mine = self.size, float(self.rank + 1)
        x, total = torch.full((2, 3), mine), n * (n + 1) / 2
        outputs = [torch.empty(5) for _ in range(n)]
        whole, block = torch.empty(2 * n, 3), torch.empty(2, 3)
        gather = getattr(dist, "all_gather_into_tensor", None) or dist._all_gather_base
        scatter = getattr(dist, "reduce_scatter_tensor", None) or dist._reduce_scatter_base
        rows = torch.full((n, 3), mine)
        everybody = torch.arange(1.0, n + 1)
        yield "all_reduce", lambda **how: dist.all_reduce(x, **how), [x], [x], [total]
        y = torch.full((5,), mine)
        yield "broadcast", lambda **how: dist.broadcast(y, n - 1, **how), [y], [y], [float(n)]
        z = torch.full((5,), mine)
        yield "reduce", lambda **how: dist.reduce(z, 0, **how), [z], [z], [mine if self.rank else total]
        yield "all_gather", lambda **how: dist.all_gather(outputs, y, **how), [y], outputs[1:], [float(n)]
        yield "_all_gather_base", lambda **how: gather(whole, x, **how), [x], [whole], [total]
        yield "_reduce_scatter_base", lambda **how: scatter(block, torch.ones(2 * n, 3), **how), [whole], [block], [n]
        yield "all_to_all", lambda **how: dist.all_to_all_single(torch.empty(n, 3), rows, **how), [rows], [], []
        yield "all_to_all", lambda **how: dist.all_to_all_single(rows, rows.clone(), **how), [rows], [rows[:, 0]], [
            everybody]
        yield "barrier", lambda **how: dist.barrier(**how), [], [], []

    def test_profiled(self):
        for how in ({}, {"async_op": True}):
            for title, call, inputs, outputs, expected in self.calls():
                with torch.autograd.profiler.profile(record_shapes=True) as profile:
                    work = call(**how)
                    if work is not None:
                        self.assertTrue(work.wait())
                        self.assertTrue(work.is_completed())
                        self.assertTrue(work.is_success())
                names = [event.name for event in profile.function_events]
                event = next(event for event in profile.function_events if event.name == f"weft:{title}")
                self.assertEqual(names.count(f"weft:{title}"), 1)
                self.assertEqual(event.input_shapes, [list(tensor.shape) for tensor in inputs])
                self.assertEqual(event.is_async, HAS_BACKEND)
                self.assertEqual(any(name.startswith("c10d::") for name in names), HAS_BACKEND)
                for tensor, value in zip(outputs, expected, strict=True):
                    self.assertTrue(torch.all(tensor == value), (title, tensor))

    def test_messages_profiled(self):
        with torch.autograd.profiler.profile(record_shapes=True) as profile:
            x = torch.full((3,), float(self.rank))
            if self.rank == 0:
                dist.send(x, 1, tag=4)
                self.assertEqual(dist.recv(x), 1)  # from anybody
            else:
                y = torch.empty(3)
                self.assertEqual(dist.recv(y, 0, tag=4), 0)
                dist.send(x, 0)
        self.assertEqual(x.tolist(), [1.0] * 3)
        self.assertEqual(sorted(event.name for event in profile.function_events if event.name.startswith("weft:")),
                         ["weft:recvAnySource" if self.rank == 0 else "weft:recv", "weft:send"])

    def test_model_profiled(self):
        """DDP's C++ code calls from within a backward pass."""
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
        x = torch.full((3, 4), float(self.rank))
        with torch.autograd.profiler.profile() as profile:
            model(x).sum().backward()
        observed = model.module.weight.grad.clone()
        self.assertIn("weft:all_reduce", [event.name for event in profile.function_events])
        model.zero_grad()
        model(x).sum().backward()
        self.assertTrue(torch.equal(model.module.weight.grad, observed))
        self.assertEqual(observed[0, 0].item(), 1.5)

    def test_wrong_call_profiled(self):
        with torch.autograd.profiler.profile():
            with self.raises_within(RuntimeError, "unsupported"):
                dist.all_reduce(torch.ones(2, dtype=torch.bool), dist.ReduceOp.AVG)
        self.meet()
        self.test_profiled()

    def test_monitored_barrier(self):
        group = dist.new_group([0, 1])
        for each in None, group:
            dist.monitored_barrier(each)
            if self.rank == 0:
                with self.raises_within(RuntimeError, "Rank 1 failed to pass monitoredBarrier.*after 0.1 s"):
                    dist.monitored_barrier(each, datetime.timedelta(seconds=0.1))
                with self.raises_within(RuntimeError, "Ranks? 1 failed"):
                    dist.monitored_barrier(each, datetime.timedelta(0), wait_all_ranks=True)
            self.meet()

    @unittest.skipUnless(hasattr(dist, "split_group") and HAS_BACKEND, "this torch cannot split groups")
    def test_split_group(self):
        group = dist.split_group(split_ranks=[[1, 0]], group_desc="the other way round")
        x = torch.tensor([float(self.rank)])
        dist.broadcast(x, group_src=0, group=group)
        self.assertEqual((dist.get_rank(group), x.item()), (1 - self.rank, 1))
        self.assertEqual(group.group_desc, "the other way round")
        alone = dist.split_group(split_ranks=[[1]])
        if self.rank == 1:
            dist.all_reduce(x, group=alone)
            self.assertEqual(x.item(), 1)
        else:
            self.assertIs(alone, dist.GroupMember.NON_GROUP_MEMBER)

    @needs_backend
    def test_async_save(self):
        import torch.distributed.checkpoint as checkpoint
        folder = str(self.dir / "checkpoint")
        checkpoint.async_save({"mine": torch.full((4,), 7.0)}, checkpoint_id=folder).result()
        dist.barrier()
        state = {"mine": torch.zeros(4)}
        checkpoint.load(state, checkpoint_id=folder)
        self.assertEqual(state["mine"].tolist(), [7.0] * 4)

    @needs_backend
    def test_what_it_is(self):
        group = dist.distributed_c10d._get_default_group()
        self.assertEqual(group._device_types, [torch.device("cpu")])
        self.assertEqual(dist.get_backend(group), "weft")
        backend = group._get_backend(torch.device("cpu"))
        self.assertEqual(backend.name(), "weft")
        for name in dir(type(backend)):  # answers, and does not ask itself
            if isinstance(getattr(type(backend), name), property) or name.startswith("supports_"):
                try:
                    getattr(backend, name)
                except RecursionError:
                    self.fail(name)
                except RuntimeError:
                    pass


@needs_backend
class Checked(Everything):
    """TORCH_DISTRIBUTED_DEBUG=DETAIL: torch compares the calls of the ranks."""
    ENV = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "GLOO_SOCKET_IFNAME": "lo"}
    test_profiled = test_wrong_call_profiled = test_messages_profiled = None

    @classmethod
    def set_up_ranks(cls):
        dist.set_debug_level_from_env()
        super().set_up_ranks()

    def test_all(self):
        for title, call, _, outputs, expected in self.calls():
            call()
            for tensor, value in zip(outputs, expected, strict=True):
                self.assertTrue(torch.all(tensor == value), (title, tensor))
        work = dist.all_reduce(torch.ones(3), async_op=True)
        self.assertTrue(work.wait())
        self.assertTrue(work.is_completed())

    def test_ranks_disagree(self):
        group = dist.new_group([0, 1])
        with self.raises_within(RuntimeError, "Detected mismatch between collectives"):
            if self.rank == 0:
                dist.all_reduce(torch.ones(3), group=group)
            else:
                dist.broadcast(torch.ones(3), 0, group=group)


class End(unittest.TestCase):
    def test_group_that_outlives_the_modules(self):
        """The interpreter ends without a word about what its last objects do."""
        done = ranks.run_script("import sys, torch, torch.distributed as dist, weft.torch\n"
                                "dist.init_process_group('weft')\n"
                                "sys.kept = dist.new_group([0, 1]); sys.kept.kept = sys.kept\n"
                                "dist.all_reduce(torch.ones(3), group=sys.kept, async_op=True)\n")
        self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    ranks.main()
