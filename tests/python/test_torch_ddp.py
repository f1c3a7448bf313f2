# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel and what else torch builds on process groups, on backend weft; weights against Gloo's."""
import ranks

torch = ranks.need("torch")
import contextlib  # noqa: E402
import gc  # noqa: E402
import io  # noqa: E402
import os  # noqa: E402
import unittest  # noqa: E402
from unittest import mock  # noqa: E402

import torch.distributed as dist  # noqa: E402
import torch.distributed.nn  # noqa: E402
import weft  # noqa: E402
import weft.torch  # noqa: E402
from torch import nn  # noqa: E402
from weft.torch import adoption as adoption_module  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # noqa: E402
from torch.distributed.algorithms.join import Join  # noqa: E402
from torch.distributed.optim import ZeroRedundancyOptimizer  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

try:
    from torch.distributed.fsdp import fully_shard
except (ImportError, ValueError):  # torch 1.13 has another one, which Python 3.11 cannot import
    fully_shard = None

torch.set_num_threads(1)
STEPS = 4


def network(seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3),
                         nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 64), nn.ReLU(), nn.Linear(64, 10))


def batches(rank, steps=STEPS):
    generator = torch.Generator().manual_seed(100 + rank)
    return [(torch.randn(8, 1, 14, 14, generator=generator), torch.randint(0, 10, (8,), generator=generator))
            for _ in range(steps)]


class Maybe(nn.Module):
    """Uses its second half in some steps only."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.one, self.two, self.end = nn.Linear(20, 20), nn.Linear(20, 20), nn.Linear(20, 1)

    def forward(self, x, both):
        x = self.one(x)
        return self.end(self.two(x) if both else x)


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.full((20,), index / 40.0), torch.tensor([float(index % 3)])


class Training(ranks.TorchRankCase):
    RANKS = 2
    ENV = {"GLOO_SOCKET_IFNAME": "lo"}
    TIMEOUT = 600

    @classmethod
    def set_up_ranks(cls):
        super().set_up_ranks()
        cls.gloo = dist.new_group([0, 1], backend="gloo")

    def train(self, group=None, hook=None, state=None, model=None, steps=STEPS, **options):
        """Parameters after a few steps, and buffers, which are a rank's own until the next one."""
        model = DistributedDataParallel(model or network(), process_group=group, **options)
        if hook is not None:
            model.register_comm_hook(state, hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for images, labels in batches(self.rank, steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        parameters = [tensor.detach().clone() for tensor in model.parameters()]
        self.assertEqual(*self.exchange([tensor.numpy().tobytes() for tensor in parameters]), "ranks differ")
        return parameters + [tensor.clone() for tensor in model.buffers()]

    def close_to(self, actual, expected):
        for one, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)

    def alike(self, tensors):
        """The same bits on all ranks."""
        mine = [tensor.numpy().tobytes() for tensor in tensors]
        self.assertEqual(*self.exchange(mine))

    def test_the_same_as_gloo(self):
        expected = self.train(self.gloo)
        for options in ({}, {"bucket_cap_mb": 0.01}, {"gradient_as_bucket_view": True}, {"static_graph": True}):
            self.close_to(self.train(**options), expected)
            self.close_to(self.train(hook=weft.torch.ddp_hook, state=weft.torch.Buckets(), **options), expected)
        for state in (None, dist.new_group([0, 1]), weft.torch.Buckets(adopt=False)):
            self.close_to(self.train(hook=weft.torch.ddp_hook, state=state), expected)

    def test_buckets_are_adopted(self):
        """The memory of whole buckets, once, but not of those that DDP throws away after its first iteration."""
        registered, given_back = [], []

        def register(tensor, context):
            registered.append((tensor.data_ptr(), tensor.numel()))
            real_register(tensor, context)

        def unregister(tensor, context):
            given_back.append((tensor.data_ptr(), tensor.numel()))
            real_unregister(tensor, context)
        real_register, real_unregister = weft.register, weft.unregister
        layers = 5
        with mock.patch.object(weft, "register", register), mock.patch.object(weft, "unregister", unregister):
            for hook in (None, weft.torch.ddp_hook):
                group = dist.new_group([0, 1])
                model = nn.Sequential(nn.Flatten(), nn.Linear(196, 300), *(nn.Linear(300, 300) for _ in range(layers)),
                                      nn.Linear(300, 10))
                parameters = sum(parameter.numel() for parameter in model.parameters())
                self.train(group, hook, weft.torch.Buckets(group), model, steps=6, bucket_cap_mb=0.2)
                self.assertGreater(len(registered), 2)
                self.assertEqual(len(set(registered)), len(registered))
                self.assertEqual(given_back, [])
                self.assertLessEqual(sum(count for _, count in registered), parameters)
                self.assertGreater(sum(count for _, count in registered), parameters // 2)
                if hook:  # which knows the first backward pass
                    self.assertEqual(len(group.adoption._seen), len(registered))
                dist.destroy_process_group(group)
                del group, model
                gc.collect()
                self.assertEqual(given_back, registered)
                registered.clear()
                given_back.clear()

    def test_adopted_memory_that_nobody_uses(self):
        """Is given back when something else is adopted, later on; what was seen once is forgotten before."""
        group = dist.new_group([0, 1])
        adoption = group.adoption
        old, once = torch.zeros(20000), torch.zeros(20000)
        for _ in range(2):
            adoption.see(old)
        adoption.see(once)
        new = torch.zeros(30000)
        with mock.patch.object(adoption_module, "LONG", 100):
            for _ in range(101):
                adoption.see(new)
            self.assertEqual(set(adoption._seen), {old.data_ptr(), new.data_ptr()} | {once.data_ptr()})
            newest = torch.zeros(40000)
            for _ in range(2):
                adoption.see(newest)
            self.assertEqual(set(adoption._seen), {new.data_ptr(), newest.data_ptr()})
        for tensor in (old, new, newest):
            tensor.fill_(self.rank)
            dist.all_reduce(tensor, group=group)
            self.assertTrue(torch.equal(tensor, torch.ones_like(tensor)))

    def test_parameters_start_as_rank_0s(self):
        model = network(seed=5 + self.rank)
        expected = self.exchange([parameter.detach().clone().numpy() for parameter in model.parameters()])[0]
        DistributedDataParallel(model)
        for parameter, other in zip(model.parameters(), expected, strict=True):
            self.assertTrue(torch.equal(parameter.detach(), torch.from_numpy(other)))

    def test_models_that_differ(self):
        """Ranks compare theirs with rank 0's, which may not notice."""
        group = dist.new_group([0, 1])
        with self.within(3), self.assertRaises(RuntimeError) if self.rank == 1 else contextlib.suppress(RuntimeError):
            DistributedDataParallel(nn.Linear(3 + self.rank, 2), process_group=group)

    def accumulate(self, group, hook):
        model = DistributedDataParallel(network(), process_group=group)
        if hook is not None:
            model.register_comm_hook(None, hook)
        for i, (images, labels) in enumerate(batches(self.rank)):
            with model.no_sync() if i % 2 == 0 else contextlib.nullcontext():
                nn.functional.cross_entropy(model(images), labels).backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    def test_no_sync(self):
        expected = self.accumulate(self.gloo, None)
        self.close_to(self.accumulate(None, None), expected)
        self.close_to(self.accumulate(None, weft.torch.ddp_hook), expected)

    def test_parameters_that_are_not_used(self):
        def run(group, hook):
            model = DistributedDataParallel(Maybe(), process_group=group, find_unused_parameters=True)
            if hook is not None:
                model.register_comm_hook(weft.torch.Buckets(group), hook)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for i in range(4):
                optimizer.zero_grad()
                model(torch.full((2, 20), float(self.rank + i)), i % 2 == 0).mean().backward()
                optimizer.step()
            return [parameter.detach().clone() for parameter in model.parameters()]
        expected = run(self.gloo, None)
        self.close_to(run(None, None), expected)
        self.close_to(run(dist.new_group([0, 1]), weft.torch.ddp_hook), expected)

    def test_sparse_gradients(self):
        def run(group, hook):
            torch.manual_seed(2)
            model = nn.Sequential(nn.Embedding(50, 4, sparse=True), nn.Flatten(), nn.Linear(12, 1))
            model = DistributedDataParallel(model, process_group=group)
            if hook is not None:
                model.register_comm_hook(weft.torch.Buckets(group), hook)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for i in range(3):
                optimizer.zero_grad()
                model(torch.tensor([[i, self.rank, 7], [20 + i, 30 + self.rank, 7]])).sum().backward()
                optimizer.step()
            return [parameter.detach().clone() for parameter in model.parameters()]
        expected = run(self.gloo, None)
        self.close_to(run(None, None), expected)
        self.close_to(run(dist.new_group([0, 1]), weft.torch.ddp_hook), expected)

    def test_hooks_of_torch(self):
        expected = self.train(self.gloo)
        group = dist.new_group([0, 1])
        self.close_to(self.train(group, default_hooks.allreduce_hook, group), expected)
        for actual, other in zip(self.train(group, default_hooks.fp16_compress_hook, group), expected, strict=True):
            torch.testing.assert_close(actual, other, rtol=0.02, atol=0.02)

    def test_uneven_inputs(self):
        """Ranks with different numbers of batches: who is done shadows the others' collectives."""
        def run(group):
            model = DistributedDataParallel(nn.Linear(4, 1), process_group=group)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(0.5)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with Join([model]):
                for i in range(3 + 2 * self.rank):
                    optimizer.zero_grad()
                    model(torch.full((2, 4), float(i))).sum().backward()
                    optimizer.step()
            return [parameter.detach().clone() for parameter in model.parameters()]
        self.close_to(run(None), run(self.gloo))

    def test_sharded_optimizer(self):
        def run(group):
            model = DistributedDataParallel(network(), process_group=group)
            optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, process_group=group, lr=0.01)
            for images, labels in batches(self.rank):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
            return [parameter.detach().clone() for parameter in model.parameters()]
        for actual, expected in zip(run(dist.group.WORLD), run(self.gloo), strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)

    def test_collectives_with_gradients(self):
        """torch.distributed.nn: the derivative of a collective is a collective."""
        weight = self.rank + 1.0
        for function, expected in (
                (lambda x: torch.distributed.nn.all_reduce(x.clone()) * weight, 3.0),
                (lambda x: torch.stack(torch.distributed.nn.all_gather(x)) * weight, 3.0),
                (lambda x: torch.distributed.nn.broadcast(x.clone(), 1) * weight, 3.0 if self.rank == 1 else 0.0),
                (lambda x: torch.distributed.nn.reduce(x.clone(), 0) * weight, 1.0)):
            x = torch.full((3,), float(self.rank), requires_grad=True)
            function(x).sum().backward()
            self.assertTrue(torch.equal(x.grad, torch.full((3,), expected)), x.grad)

    def test_data_loaders_that_fork(self):
        """Worker processes are forked while buckets are adopted; they have no use for gradients."""
        model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 300), nn.ReLU(), nn.Linear(300, 1)))
        model.register_comm_hook(weft.torch.Buckets(), weft.torch.ddp_hook)
        data = Data()
        sampler = torch.utils.data.DistributedSampler(data)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        steps = 0
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for x, y in torch.utils.data.DataLoader(data, batch_size=5, sampler=sampler, num_workers=1,
                                                    multiprocessing_context="fork"):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
                steps += 1
        self.assertEqual(steps, 12)
        self.alike([parameter.detach() for parameter in model.parameters()])

    def test_groups_end_at_once(self):
        """After the last call, without waiting for each other."""
        for _ in range(10):
            group = dist.new_group([0, 1])
            x = torch.ones(100000)
            dist.all_reduce(x, group=group)
            dist.broadcast(x, 0, group=group)
            dist.destroy_process_group(group)
            del group

    @unittest.skipUnless(hasattr(torch, "compile"), "this torch does not compile")
    def test_compiled(self):
        """The collectives of a compiled model are called as they are."""
        x = torch.full((3, 1, 14, 14), float(self.rank + 1))
        gradients = []
        for hook in None, weft.torch.ddp_hook:
            for compiled in False, True:
                model = DistributedDataParallel(network())
                if hook is not None:
                    model.register_comm_hook(None, hook)
                step = torch.compile(model, backend="eager") if compiled else model
                for _ in range(3):
                    model.zero_grad()
                    step(x).sum().backward()
                gradients.append([parameter.grad for parameter in model.parameters()])
        for others in gradients[1:]:
            self.close_to(others, gradients[0])

    @unittest.skipIf(fully_shard is None or not hasattr(torch.cpu.Stream, "record_event"),
                     "this torch has no fully_shard for CPUs")
    def test_fully_sharded(self):
        """Gradients are averages over the ranks, compiled or not."""
        reference, inputs = network(), [torch.full((3, 1, 14, 14), float(rank + 1)) for rank in range(self.size)]
        sum(reference(x).sum() for x in inputs).div(self.size).backward()
        for compiled in False, True:
            model = network()
            mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (self.size,))
            for layer in (model[7], model):
                fully_shard(layer, mesh=mesh)
            step = torch.compile(model, backend="eager") if compiled else model
            for _ in range(2):
                model.zero_grad()
                step(inputs[self.rank]).sum().backward()
            torch.testing.assert_close(model[7].weight.grad.full_tensor(), reference[7].weight.grad, rtol=1e-4,
                                       atol=1e-5)

    def test_saved_and_loaded(self):
        model = DistributedDataParallel(network())
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        file.seek(0)
        other = DistributedDataParallel(network(seed=9))
        other.load_state_dict(torch.load(file))
        self.alike(list(other.state_dict().values()))

    @ranks.fresh(dies=[1])
    def test_a_rank_dies_in_backward(self):
        group = dist.new_group([0, 1])
        model = DistributedDataParallel(network(), process_group=group)
        model.register_comm_hook(group, weft.torch.ddp_hook)
        for step, (images, labels) in enumerate(batches(self.rank)):
            self.meet()
            if step == 2 and self.rank == 1:
                self.die()
            if step == 2:
                with self.raises_within(RuntimeError, seconds=5):
                    nn.functional.cross_entropy(model(images), labels).backward()
                return
            nn.functional.cross_entropy(model(images), labels).backward()


class Threads(Training):
    """The same with a thread that makes progress, so that buckets are on their way while backward goes on."""
    ENV = {"GLOO_SOCKET_IFNAME": "lo", "WEFT_PROGRESS": "thread"}
    test_data_loaders_that_fork = test_sharded_optimizer = test_saved_and_loaded = test_models_that_differ = None
    test_compiled = test_fully_sharded = None
    test_parameters_start_as_rank_0s = test_collectives_with_gradients = test_a_rank_dies_in_backward = None


class OverTcp(Training):
    """Ranks that take each other for strangers on other hosts: nothing is shared, nothing can be adopted in place."""
    test_data_loaders_that_fork = test_sharded_optimizer = test_saved_and_loaded = test_models_that_differ = None
    test_compiled = test_fully_sharded = None
    test_parameters_start_as_rank_0s = test_collectives_with_gradients = test_hooks_of_torch = None
    test_adopted_memory_that_nobody_uses = test_buckets_are_adopted = None

    @classmethod
    def set_up_ranks(cls):
        os.environ["WEFT_HOST_ID"] = "host-" + os.environ["WEFT_RANK"]
        super().set_up_ranks()


if __name__ == "__main__":
    ranks.main()
