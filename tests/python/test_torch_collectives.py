# SPDX-License-Identifier: Apache-2.0
"""Every collective of torch.distributed on backend weft, against what torch itself makes of all ranks' tensors."""
import ranks

torch = ranks.need("torch")
import datetime  # noqa: E402
import gc  # noqa: E402
import importlib.util  # noqa: E402
import os  # noqa: E402
import unittest  # noqa: E402
import weakref  # noqa: E402
from unittest import mock  # noqa: E402

import torch.distributed as dist  # noqa: E402
import weft  # noqa: E402
import weft.torch  # noqa: E402
from torch._C import _distributed_c10d as c10d  # noqa: E402
from weft.torch import process_group  # noqa: E402

try:
    from torch.distributed import _functional_collectives as functional
except ImportError:
    functional = None
torch.set_num_threads(1)
REDUCTIONS = {
    "SUM": lambda parts: parts.sum(0), "AVG": lambda parts: parts.mean(0), "MAX": lambda parts: parts.amax(0),
    "MIN": lambda parts: parts.amin(0), "PRODUCT": lambda parts: parts.prod(0),
}


class TorchCase(ranks.TorchRankCase):
    """Ranks with the default process group on Weft, found by way of weft's own world."""

    def parts(self, shape, dtype=torch.float32, seed=0):
        """(ranks, *shape): what each rank gives; the same everywhere."""
        generator = torch.Generator().manual_seed(seed)
        shape = (self.size, *shape)
        if dtype is torch.bool:
            return torch.randint(0, 2, shape, generator=generator).to(dtype)
        if dtype.is_complex or dtype.is_floating_point:
            return torch.randint(-8, 9, shape, generator=generator).to(dtype) / 4
        return torch.randint(0, 20, shape, generator=generator).to(dtype)

    def same(self, actual, expected):
        self.assertEqual(actual.dtype, expected.dtype)
        self.assertTrue(torch.equal(actual, expected.reshape(actual.shape)), f"{actual} instead of {expected}")


class Collectives(TorchCase):
    RANKS = (2, 3)

    def test_blocking_calls_make_no_works(self):
        """Where torch says that the caller waits. Ranks may make one call in different ways."""
        group = dist.group.WORLD if dist.group.WORLD is not None else dist.distributed_c10d._get_default_group()
        gather = getattr(dist, "all_gather_into_tensor", None) or dist._all_gather_base
        scatter = getattr(dist, "reduce_scatter_tensor", None) or dist._reduce_scatter_base
        blocks = hasattr(c10d.AllreduceOptions, "asyncOp")
        for dtype in torch.bfloat16, torch.bool, torch.int64:
            for asynchronous in None, 0, self.size - 1:
                native, how = dtype is not torch.bool, {"async_op": self.rank == asynchronous}
                parts = self.parts((2 * self.size, 3), dtype)
                blocks_of = parts.view(self.size, self.size, 2, 3)
                x, y, whole, block = (parts[self.rank].clone() for _ in range(4))
                block, whole = block[:2].contiguous(), torch.cat([whole] * self.size)
                issued = group._get_sequence_number_for_group()
                with mock.patch.object(process_group, "Work", wraps=process_group.Work) as made:
                    works = [dist.all_reduce(x, **how), dist.broadcast(y, 1, **how), gather(whole, y, **how),
                             scatter(block, parts[self.rank], **how)]
                for work in works:
                    self.assertEqual(work is None, not how["async_op"])
                    if work is not None:
                        work.wait()
                self.assertEqual(made.call_count, 0 if blocks and native and not how["async_op"] else 4)
                self.assertEqual(group._get_sequence_number_for_group(), issued + 4)
                self.same(y, parts[1])
                self.same(whole, torch.cat([parts[1]] * self.size))
                self.same(x, parts.sum(0).to(dtype) if native else parts.any(0))
                mine = blocks_of[:, self.rank]
                self.same(block, mine.sum(0).to(dtype) if native else mine.any(0))

    def test_wrong_blocking_calls(self):
        """They end the other ranks' call, as others do; also where it ends before its work is on the stream."""
        gather = getattr(dist, "all_gather_into_tensor", None) or dist._all_gather_base
        for _ in range(30):
            x = torch.ones(2)
            if self.rank == 0:
                with self.raises_within(ValueError, "output has 2 elements"):
                    gather(x, torch.ones(2))
            else:
                with self.raises_within(RuntimeError, "output has 2 elements"):
                    gather(torch.ones(2 * self.size), torch.ones(2))
            dist.all_reduce(x)
            self.same(x, torch.full((2,), float(self.size)))

    def test_all_reduce(self):
        for shape in ((), (1,), (0, 3), (5, 7), (70000,)):
            for name, reduce in REDUCTIONS.items():
                parts = self.parts(shape)
                x = parts[self.rank].clone()
                self.assertIsNone(dist.all_reduce(x, getattr(dist.ReduceOp, name)))
                torch.testing.assert_close(x, reduce(parts))

    def test_all_reduce_of_every_type(self):
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
                      torch.int16, torch.int8, torch.uint8, torch.complex64):
            parts = self.parts((9,), dtype)
            x = parts[self.rank].clone()
            dist.all_reduce(x)
            self.same(x, parts.sum(0).to(dtype))
        parts = self.parts((9,), torch.bool)
        for op, expected in ((dist.ReduceOp.MAX, parts.any(0)), (dist.ReduceOp.MIN, parts.all(0))):
            x = parts[self.rank].clone()
            dist.all_reduce(x, op)
            self.same(x, expected)

    def test_bitwise(self):
        parts = self.parts((31,), torch.int64)
        for name, function in (("BAND", torch.bitwise_and), ("BOR", torch.bitwise_or), ("BXOR", torch.bitwise_xor)):
            expected = parts[0]
            for part in parts[1:]:
                expected = function(expected, part)
            x = parts[self.rank].clone()
            dist.all_reduce(x, getattr(dist.ReduceOp, name))
            self.same(x, expected)
            x = parts[self.rank].clone()
            dist.reduce(x, 1, getattr(dist.ReduceOp, name))
            self.same(x, expected if self.rank == 1 else parts[self.rank])
        with self.raises_within(RuntimeError, "bitwise"):
            dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND)

    def test_strided(self):
        """Tensors that are not one piece of memory are gathered and put back."""
        parts = self.parts((6, 4))
        x = parts[self.rank].t().contiguous().t()
        self.assertFalse(x.is_contiguous())
        dist.all_reduce(x)
        self.same(x, parts.sum(0))
        whole = torch.zeros(6, 8)
        whole[:, ::2] = parts[self.rank]
        dist.broadcast(whole[:, ::2], self.size - 1)
        self.same(whole[:, ::2], parts[-1])
        self.same(whole[:, 1::2], torch.zeros(6, 4))
        outputs = list(torch.zeros(6, 4 * self.size).chunk(self.size, 1))
        dist.all_gather(outputs, parts[self.rank].t().contiguous().t())
        for output, part in zip(outputs, parts):
            self.same(output, part)

    def test_sparse(self):
        """Entries of all ranks, as many as each has."""
        for dtype in (torch.float32, torch.int64):
            parts = []
            for rank in range(self.size):
                rows = torch.tensor([[rank, 2, 2][:rank + 1]])
                parts.append(torch.sparse_coo_tensor(rows, torch.full((rank + 1, 3), rank + 1, dtype=dtype), (6, 3)))
            x = parts[self.rank].clone()
            dist.all_reduce(x)
            self.assertTrue(x.is_sparse)
            self.same(x.to_dense(), sum(part.to_dense() for part in parts))
        with self.raises_within(RuntimeError, "sparse"):
            dist.all_reduce(parts[self.rank], dist.ReduceOp.MAX)

    def test_leaves_that_require_grad(self):
        """Parameters are written in place, as DDP does when it starts."""
        parts = self.parts((5,))
        x = torch.nn.Parameter(parts[self.rank].clone())
        with torch.no_grad():
            dist.broadcast(x, 0)
        self.same(x.detach(), parts[0])
        dist.all_reduce(x.data)
        self.same(x.detach(), parts[0] * self.size)

    def test_broadcast(self):
        for root in range(self.size):
            for dtype in (torch.float32, torch.bool, torch.complex128, torch.int64):
                parts = self.parts((3, 5), dtype, root)
                x = parts[self.rank].clone()
                dist.broadcast(x, root)
                self.same(x, parts[root])

    @unittest.skipUnless(hasattr(torch, "float8_e5m2"), "this torch has no floats of 8 bits")
    def test_small_floats(self):
        """Move as they are; sums of them are refused."""
        for dtype in (torch.float8_e5m2, torch.float8_e4m3fn):
            parts = self.parts((3, 5)).to(dtype)
            x = parts[0].clone() if self.rank == 0 else torch.zeros_like(parts[0])
            dist.broadcast(x, 0)
            whole = torch.empty((3 * self.size, 5), dtype=dtype)
            dist.all_gather_into_tensor(whole, parts[self.rank])
            for actual, expected in ((x, parts[0]), (whole.view(parts.shape), parts)):
                self.same(actual.view(torch.uint8), expected.contiguous().view(torch.uint8))
            with self.raises_within(RuntimeError, "unsupported sum of torch.float8"):
                dist.all_reduce(x)
            self.meet()

    def test_reduce(self):
        for root in range(self.size):
            for name, reduce in REDUCTIONS.items():
                parts = self.parts((4, 3), seed=root)
                x = parts[self.rank].clone()
                dist.reduce(x, root, getattr(dist.ReduceOp, name))
                torch.testing.assert_close(x, reduce(parts) if self.rank == root else parts[self.rank])

    def test_all_gather(self):
        for dtype in (torch.float32, torch.bool, torch.complex64):
            for shape in ((), (3,), (2, 1025)):
                parts = self.parts(shape, dtype)
                for outputs in ([torch.empty(shape, dtype=dtype) for _ in parts],
                                list(torch.empty((self.size, *shape), dtype=dtype).unbind(0))):
                    dist.all_gather(outputs, parts[self.rank])
                    for output, part in zip(outputs, parts):
                        self.same(output, part)

    def test_all_gather_of_different_sizes(self):
        parts = [torch.full((rank + 1, 2), float(rank)) for rank in range(self.size)]
        outputs = [torch.empty_like(part) for part in parts]
        dist.all_gather(outputs, parts[self.rank])
        for output, part in zip(outputs, parts):
            self.same(output, part)

    def test_all_gather_into_tensor(self):
        parts = self.parts((7, 2))
        output = torch.empty(7 * self.size, 2)
        dist.all_gather_into_tensor(output, parts[self.rank])
        self.same(output, parts)
        own = output[self.rank * 7:(self.rank + 1) * 7]  # in place
        output.zero_()
        own.copy_(parts[self.rank])
        dist.all_gather_into_tensor(output, own)
        self.same(output, parts)

    def test_reduce_scatter(self):
        for name, reduce in REDUCTIONS.items():
            parts = self.parts((self.size, 4, 3))
            output = torch.empty(4, 3)
            dist.reduce_scatter(output, list(parts[self.rank].unbind(0)), getattr(dist.ReduceOp, name))
            torch.testing.assert_close(output, reduce(parts)[self.rank])
            output = torch.empty(4, 3)
            dist.reduce_scatter_tensor(output, parts[self.rank].reshape(-1, 3).contiguous(),
                                       getattr(dist.ReduceOp, name))
            torch.testing.assert_close(output, reduce(parts)[self.rank])

    def test_reduce_scatter_of_different_sizes(self):
        inputs = [torch.full((rank + 1,), float(rank + self.rank)) for rank in range(self.size)]
        output = torch.empty(self.rank + 1)
        dist.reduce_scatter(output, inputs)
        self.same(output, torch.full((self.rank + 1,), float(sum(self.rank + other for other in range(self.size)))))

    def test_gather_and_scatter(self):
        for root in range(self.size):
            parts = self.parts((3,), seed=root)
            outputs = [torch.empty(3) for _ in parts] if self.rank == root else None
            dist.gather(parts[self.rank], outputs, root)
            for output, part in zip(outputs or [], parts):
                self.same(output, part)
            output = torch.empty(3)
            dist.scatter(output, list(parts) if self.rank == root else None, root)
            self.same(output, parts[self.rank])

    def test_all_to_all(self):
        parts = self.parts((self.size, 3))
        outputs = [torch.empty(3) for _ in parts]
        dist.all_to_all(outputs, list(parts[self.rank]))
        for output, part in zip(outputs, parts):
            self.same(output, part[self.rank])
        rows = lambda sender, receiver: (sender + 2 * receiver) % 3  # noqa: E731
        inputs = [torch.full((rows(self.rank, to), 2), 10.0 * self.rank + to) for to in range(self.size)]
        outputs = [torch.empty(rows(sender, self.rank), 2) for sender in range(self.size)]
        dist.all_to_all(outputs, inputs)
        for sender, output in enumerate(outputs):
            self.same(output, torch.full_like(output, 10.0 * sender + self.rank))

    def test_all_to_all_single(self):
        parts = self.parts((self.size * 2, 3))
        output = torch.empty(self.size * 2, 3)
        dist.all_to_all_single(output, parts[self.rank])
        self.same(output, parts.view(self.size, self.size, 2, 3)[:, self.rank])
        sends = [to + 1 for to in range(self.size)]
        blocks = [torch.full((to + 1, 2), 10.0 * self.rank + to) for to in range(self.size)]
        output = torch.empty(self.size * (self.rank + 1), 2)
        dist.all_to_all_single(output, torch.cat(blocks), [self.rank + 1] * self.size, sends)
        for sender, block in enumerate(output.view(self.size, self.rank + 1, 2)):
            self.same(block, torch.full_like(block, 10.0 * sender + self.rank))

    def test_coalesced(self):
        parts = [self.parts((3,), seed=1), self.parts((2, 2), seed=2)]
        tensors = [part[self.rank].clone() for part in parts]
        dist.all_reduce_coalesced(tensors)
        for tensor, part in zip(tensors, parts):
            self.same(tensor, part.sum(0))
        outputs = [[torch.empty(3), torch.empty(2, 2)] for _ in range(self.size)]
        dist.all_gather_coalesced(outputs, [part[self.rank] for part in parts])
        for rank, output in enumerate(outputs):
            self.same(output[0], parts[0][rank])
            self.same(output[1], parts[1][rank])

    def test_coalesced_in_other_shapes(self):
        group = dist.new_group()
        tensors = [torch.ones((2, 3) if self.rank == 0 else (3, 2)), torch.ones(3)]
        with self.assertRaisesRegex(Exception, r"of shape \(3, 2, 0, 3\), rank 0 .*of shape \(2, 3, 0, 3\)"):
            dist.all_reduce_coalesced(tensors, group=group)
        dist.all_reduce(torch.ones(3))

    def test_objects(self):
        mine = {"rank": self.rank, "text": "x" * (1 + 1000 * self.rank)}
        everybody = [{"rank": rank, "text": "x" * (1 + 1000 * rank)} for rank in range(self.size)]
        got = [None] * self.size
        dist.all_gather_object(got, mine)
        self.assertEqual(got, everybody)
        objects = [mine, None] if self.rank == 1 else [None, None]
        dist.broadcast_object_list(objects, 1)
        self.assertEqual(objects, [everybody[1], None])
        got = [None] * self.size if self.rank == 0 else None
        dist.gather_object(mine, got, 0)
        self.assertEqual(got, everybody if self.rank == 0 else None)
        got = [None]
        dist.scatter_object_list(got, everybody if self.rank == 0 else None, 0)
        self.assertEqual(got, [mine])

    def test_barrier(self):
        dist.barrier()
        dist.barrier(async_op=True).wait()
        dist.distributed_c10d._get_default_group().monitored_barrier(datetime.timedelta(seconds=300))

    def test_receives_by_tag(self):
        """In another order than they were sent; one that waits does not hold up one of another tag."""
        if self.rank == 1:
            sent = [dist.isend(torch.full((3,), float(tag)), 0, tag=tag) for tag in (5, 7, 5, 6)]
            for work in sent:
                work.wait()
            dist.barrier()
            dist.send(torch.full((3,), 9.0), 0, tag=9)
        elif self.rank == 0:
            tags = (9, 7, 6, 5, 5)
            tensors = [torch.empty(3, 2)[:, 0] for _ in tags]
            works = [dist.irecv(tensor, 1, tag=tag) for tensor, tag in zip(tensors, tags)]
            for i in (3, 1, 2, 4):
                self.assertTrue(works[i].wait())
                self.same(tensors[i], torch.full((3,), float(tags[i])))
            self.assertFalse(works[0].is_completed())
            dist.barrier()
            works[0].wait()
            self.same(tensors[0], torch.full((3,), 9.0))
        else:
            dist.barrier()

    def test_many_receives_by_tag(self):
        """The time that one takes does not double with each that waits before it."""
        tags = range(64)
        if self.rank == 1:
            dist.barrier()
            for work in [dist.isend(torch.full((1,), float(tag)), 0, tag=tag) for tag in reversed(tags)]:
                work.wait()
        elif self.rank == 0:
            tensors = [torch.empty(1) for _ in tags]
            works = [dist.irecv(tensor, 1, tag=tag) for tensor, tag in zip(tensors, tags)]
            dist.barrier()
            for tag, work in zip(tags, works):
                work.wait()
                self.same(tensors[tag], torch.full((1,), float(tag)))
        else:
            dist.barrier()

    def test_receives_from_any_rank(self):
        if self.rank != 0:
            for turn in range(3):
                dist.send(torch.full((2,), 10.0 * self.rank + turn), 0, tag=turn % 2)
        else:
            turns = {peer: [0, 2] for peer in range(1, self.size)}
            for _ in range(2 * (self.size - 1)):
                tensor = torch.empty(2)
                peer = dist.recv(tensor, tag=0)
                self.same(tensor, torch.full((2,), 10.0 * peer + turns[peer].pop(0)))
            for _ in range(self.size - 1):
                tensor = torch.empty(2)
                work = weft.torch.process_group._weft_group(None).recv_anysource([tensor], 1)
                work.wait()
                self.same(tensor, torch.full((2,), 10.0 * work.source_rank() + 1))
        dist.barrier()
        others = [rank for rank in range(self.size) if rank != self.rank]
        sent = [dist.isend(torch.full((2,), float(self.rank)), other, tag=3) for other in others]
        tensor = torch.empty(2)
        for _ in others:
            peer = dist.recv(tensor, tag=3)
            self.same(tensor, torch.full((2,), float(peer)))
        for work in sent:
            work.wait()

    def test_send_and_recv(self):
        following, previous = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        for count in (0, 1, 100, 300000):
            x = torch.full((count,), float(self.rank))
            y = torch.empty(count)
            if self.rank == 0:
                dist.send(x, following, tag=7)
                self.assertEqual(dist.recv(y, previous, tag=7), previous)
            else:
                self.assertEqual(dist.recv(y, previous, tag=7), previous)
                dist.send(x, following, tag=7)
            self.same(y, torch.full((count,), float(previous)))

    def test_messages_do_not_wait_for_each_other(self):
        """Large messages to and from everybody, sent before they are received, received in the opposite order."""
        count = 500000
        others = [rank for rank in range(self.size) if rank != self.rank]
        sent = [dist.isend(torch.full((count,), float(self.rank)), other) for other in others]
        blocks = {other: torch.empty(count) for other in others}
        received = {other: dist.irecv(blocks[other], other) for other in others}
        x = torch.ones(10)
        dist.all_reduce(x)  # while all of them are under way
        self.same(x, torch.full((10,), float(self.size)))
        for other in reversed(others):
            received[other].wait()
            self.same(blocks[other], torch.full((count,), float(other)))
        for work in sent:
            work.wait()

    def test_batches_of_messages(self):
        following, previous = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        x, y = torch.full((70000,), float(self.rank)), torch.empty(70000)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, following),
                                            dist.P2POp(dist.irecv, y, previous)]):
            work.wait()
        self.same(y, torch.full((70000,), float(previous)))


class OverTcp(Collectives):
    """Ranks that take each other for strangers on other hosts: they meet at a port and talk by TCP."""
    RANKS = 2

    @classmethod
    def set_up_ranks(cls):
        os.environ["WEFT_HOST_ID"] = "host-" + os.environ["WEFT_RANK"]
        super().set_up_ranks()

    def test_hosts(self):
        self.assertEqual(dist.group.WORLD.weft_context.hosts, 2)


@unittest.skipIf(functional is None, "this torch has no functional collectives")
class Functional(TorchCase):
    """Collectives that return what they make, as torch 2 compiles them."""
    RANKS = (2, 3)

    @unittest.skipUnless(hasattr(functional, "all_to_all_single"), "this torch has fewer functional collectives")
    def test_operators(self):
        group = dist.group.WORLD
        parts = self.parts((2 * self.size, 3))
        mine = parts[self.rank]
        self.same(functional.all_reduce(mine, "sum", group) + 0, parts.sum(0))
        self.same(functional.all_gather_tensor(mine, 0, group) + 0, parts.reshape(-1, 3))
        blocks = parts.view(self.size, self.size, 2, 3)
        self.same(functional.reduce_scatter_tensor(mine, "sum", 0, group) + 0, blocks.sum(0)[self.rank])
        self.same(functional.all_to_all_single(mine, None, None, group) + 0, blocks[:, self.rank].reshape(-1, 3))
        self.same(functional.broadcast(mine, 1, group) + 0, parts[1])
        one, two = functional.all_reduce_coalesced([mine, mine * 2], "sum", group)
        self.same(two + 0, parts.sum(0) * 2)
        one, two = functional.all_gather_into_tensor_coalesced([mine, mine * 2], group)
        self.same(one + 0, parts.reshape(-1, 3))
        self.same(two + 0, parts.reshape(-1, 3) * 2)

    def test_in_a_sub_group(self):
        group = dist.new_group([0, 1])
        if self.rank < 2:
            self.same(functional.all_reduce(torch.ones(3), "sum", group) + 0, torch.full((3,), 2.0))

    @unittest.skipUnless(importlib.util.find_spec("torch.distributed.device_mesh"), "this torch traces only its own groups")
    def test_compiled(self):
        compiled = torch.compile(lambda x: functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1,
                                 backend="aot_eager")
        self.same(compiled(torch.ones(4)), torch.full((4,), 2.0 * self.size + 1))

    @unittest.skipUnless(importlib.util.find_spec("torch.distributed.device_mesh"), "this torch has no meshes of devices")
    def test_distributed_tensors(self):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor
        whole = torch.arange(24.0).view(6, 4)
        mesh = init_device_mesh("cpu", (self.size,))
        rows, columns = distribute_tensor(whole, mesh, [Shard(0)]), distribute_tensor(whole.t(), mesh, [Shard(1)])
        self.same((rows @ columns).full_tensor(), whole @ whole.t())


class Works(TorchCase):
    RANKS = 2

    def test_several_under_way(self):
        tensors = [torch.full((100 * i,), float(self.rank + i)) for i in range(20)]
        under_way = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for i, (work, tensor) in reversed(list(enumerate(zip(under_way, tensors)))):
            self.assertTrue(work.wait())
            self.same(tensor, torch.full((100 * i,), float(2 * i + 1)))
            self.assertTrue(work.is_completed())
            self.assertTrue(work.is_success())
            self.assertIsNone(work.exception())
            self.assertIs(work.result()[0], tensor)

    def test_polling(self):
        x = torch.full((100,), float(self.rank))
        work = dist.all_reduce(x, async_op=True)
        while not work.is_completed():
            pass
        self.same(x, torch.ones(100))

    def test_results_of_lists_by_polling(self):
        """What is unpacked at the end is there when is_completed says so."""
        outputs = [torch.zeros(3), torch.zeros(3)]
        work = dist.all_gather(outputs, torch.full((3,), float(self.rank)), async_op=True)
        while not work.is_completed():
            pass
        self.same(outputs[1], torch.ones(3))

    def test_futures(self):
        x = torch.full((10,), float(self.rank + 1))
        future = dist.all_reduce(x, async_op=True).get_future().then(lambda done: done.value()[0] * 2)
        self.same(future.wait(), torch.full((10,), 6.0))

    def test_future_that_the_other_rank_makes_wait(self):
        """Asking for a future must not wait: the other rank comes to the call only after this one has gone on."""
        x = torch.ones(10)
        if self.rank == 0:
            future = dist.all_reduce(x, async_op=True).get_future()
            dist.send(torch.ones(1), 1)
            self.same(future.wait()[0], torch.full((10,), 2.0))
        else:
            dist.recv(torch.empty(1), 0)
            dist.all_reduce(x)

    def test_groups_in_different_order(self):
        """Ranks may wait for works of two groups in different orders."""
        one, two = dist.new_group([0, 1]), dist.new_group([0, 1])
        x, y = torch.ones(50000), torch.ones(50000)
        for _ in range(5):
            works = [dist.all_reduce(x, group=one, async_op=True), dist.all_reduce(y, group=two, async_op=True)]
            for work in works if self.rank == 0 else reversed(works):
                work.wait()
        self.same(x, torch.full((50000,), 32.0))
        dist.destroy_process_group(one)
        dist.destroy_process_group(two)

    def test_blocking_while_another_group_has_works(self):
        """The other rank needs them before it comes to the call."""
        one, two = dist.new_group([0, 1]), dist.new_group([0, 1])
        x, y = torch.ones(50000), torch.ones(3)
        if self.rank == 0:
            work = dist.all_reduce(x, group=one, async_op=True)
            dist.all_reduce(y, group=two)
            work.wait()
        else:
            dist.all_reduce(x, group=one)
            dist.all_reduce(y, group=two)
        self.same(torch.cat([x, y]), torch.full((50003,), 2.0))
        dist.destroy_process_group(one)
        dist.destroy_process_group(two)

    def test_works_that_nobody_waits_for(self):
        class Seen(torch.Tensor):
            pass
        x = torch.zeros(10)
        there = []
        for _ in range(300):
            x = torch.zeros(10).as_subclass(Seen)
            there.append(weakref.ref(x))
            dist.all_reduce(x, async_op=True)
        del x
        held = [ref for ref in there if ref() is not None]
        self.assertLess(len(held), 200)
        y = torch.ones(1)
        dist.all_reduce(y)
        self.same(y, torch.full((1,), 2.0))

    def test_wait_with_a_timeout(self):
        """The work goes on, and its error, if it has one, is another."""
        x = torch.full((4,), float(self.rank))
        if self.rank == 0:
            work = dist.all_reduce(x, async_op=True)
            with self.raises_within(TimeoutError, "timeout"):
                work.wait(datetime.timedelta(milliseconds=50))
            self.assertFalse(work.is_completed())
            self.meet()
            work.wait()
        else:
            self.meet()
            dist.all_reduce(x)
        self.same(x, torch.ones(4))

    def test_tensors_that_peers_reach(self):
        for shape, dtype in (((1000,), torch.float32), ((3, 5), torch.bfloat16), ((7,), torch.int64),
                             ((0, 4), torch.float64), ((30000,), torch.float32)):
            x = weft.torch.empty(*shape, dtype=dtype)
            self.assertEqual((tuple(x.shape), x.dtype), (shape, dtype))
            self.assertEqual(x.abs().sum().item(), 0)
            x += self.rank + 1
            dist.all_reduce(x)
            self.same(x, torch.full(shape, 3, dtype=dtype))
        view = weft.torch.empty((4, 6), group=dist.group.WORLD)[1:3]
        gc.collect()
        view.fill_(self.rank)
        dist.all_reduce(view)
        self.same(view, torch.ones(2, 6))

    def test_adopt(self):
        """Memory that is there: contents and addresses stay, and views of it are reached."""
        model = torch.nn.Sequential(torch.nn.Linear(100, 100), torch.nn.BatchNorm1d(100))
        x = torch.arange(30000.0)
        before, place = model[0].weight.detach().clone(), x.data_ptr()
        adoption = process_group._weft_group(None).adoption
        weft.torch.adopt(model, x, x[5:])
        self.assertEqual(len(adoption._asked_for), 2)  # the others are small
        weft.torch.adopt(x)  # again is fine
        self.assertEqual(x.data_ptr(), place)
        self.same(x, torch.arange(30000.0))
        self.same(model[0].weight.detach(), before)
        dist.all_reduce(x[3:])
        dist.all_reduce(model[0].weight.detach())
        self.same(x[3:], 2 * torch.arange(3.0, 30000.0))
        weft.torch.release(x, model)
        self.assertEqual(adoption._asked_for, {})
        dist.all_reduce(x)
        self.same(x[3:], 4 * torch.arange(3.0, 30000.0))

    def test_adopt_by_halves(self):
        """Ranks pass different things: all of them hear of it, and the group that they differ on is done with."""
        group = dist.new_group([0, 1])
        x, y = torch.zeros(10000), torch.zeros(10000)
        with self.raises_within(RuntimeError, "all_reduce"):
            weft.torch.adopt(*[x, y][:self.rank + 1], group=group)
        dist.destroy_process_group(group)
        with self.raises_within((TypeError, RuntimeError), "expected tensors and modules, not list"):
            weft.torch.adopt([x] if self.rank == 0 else x)
        self.meet()
        weft.torch.adopt(x)
        weft.torch.release(x)

    def test_weft_directly(self):
        group = weft.torch.group_of()
        x = torch.full((4,), float(self.rank))
        weft.all_reduce_(x, group=group)
        self.same(x, torch.ones(4))


if __name__ == "__main__":
    ranks.main()
