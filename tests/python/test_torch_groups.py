# SPDX-License-Identifier: Apache-2.0
"""Process groups of backend weft: sub-groups, how they begin and end, what goes wrong in them."""
import ranks

torch = ranks.need("torch")
import datetime  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import tempfile  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
import types  # noqa: E402
import unittest  # noqa: E402
from unittest import mock  # noqa: E402

import torch.distributed as dist  # noqa: E402
import weft  # noqa: E402
import weft.torch  # noqa: E402
from weft.torch import meeting, works  # noqa: E402
from weft.torch.group import pair_group_of  # noqa: E402

torch.set_num_threads(1)


class Queues(unittest.TestCase):
    def test_pairs_of_a_rank_have_queues_of_their_own(self):
        for size in range(2, 9):
            for rank in range(size):
                queues = [pair_group_of(min(rank, other), max(rank, other), size) + way
                          for other in range(size) if other != rank for way in (0, 1)]
                self.assertEqual(len(set(queues)), 2 * (size - 1))
                self.assertLess(max(queues), min(14, 2 * (size - 1 if size % 2 == 0 else size)))
        for low in range(20):
            for high in range(low + 1, 20):
                self.assertLess(pair_group_of(low, high, 20) + 1, 14)


class JustDone:
    """A handle whose call ends just after a wait for it has timed out: well, or by failure."""

    def __init__(self, failure=None):
        self.failure = failure
        self.done = False

    def is_completed(self):
        return self.done

    def wait(self, timeout=None):
        if not self.done:
            self.done = True
            raise TimeoutError("not done in time")
        if self.failure is not None:
            raise self.failure


class Ends(unittest.TestCase):
    """A wait that is too short by a hair says nothing of the call."""

    def work(self, handle):
        group = types.SimpleNamespace(works={}, issued=0, tidy_at=64, lock=threading.RLock())
        return works.Work(group, handle, [torch.ones(2)])

    def test_well(self):
        for handle in JustDone(), works.Several([JustDone(), JustDone()]):
            work = self.work(handle)
            self.assertTrue(work.wait(datetime.timedelta(milliseconds=1)))
            self.assertTrue(work.is_success())
            self.assertEqual(self.work(JustDone()).get_future().wait()[0].tolist(), [1, 1])

    def test_failed(self):
        for failure in ValueError("broken"), TimeoutError("a rank is late"):
            for handle in JustDone(failure), works.Several([JustDone(), JustDone(failure)]):
                work = self.work(handle)
                with self.assertRaises(type(failure)) as raised:
                    work.wait(datetime.timedelta(milliseconds=1))
                self.assertIs(raised.exception, failure)
                self.assertIs(work.exception(), failure)


class Meetings(ranks.RankCase):
    RANKS = 2

    def join(self, store, late, asks="asks"):
        """Rank late comes when the other one asks for something in the store: asks says so."""
        if self.rank == late:
            store.get(asks)
        else:
            real = store.get

            def get(key):
                store.set(asks, "1")
                return real(key)
            store = types.SimpleNamespace(add=store.add, set=store.set, get=get)
        context = meeting.join(store, self.rank, 2, datetime.timedelta(seconds=100))
        self.assertEqual(weft.get_world_size(context.world), 2)
        context.close()

    def store(self):
        name = bytearray(tempfile.mktemp(prefix="weft-test-").ljust(200).encode())
        weft.broadcast(name, 0)
        return dist.FileStore(name.decode().strip(), 2)

    def test_what_an_earlier_attempt_has_left_in_the_store(self):
        """The meeting place of a group that was destroyed, or whose ranks were started again."""
        store = self.store()
        for turn, late in enumerate((0, 1, 0, 1)):
            self.join(store, late, f"asks {turn}")
        self.meet()

    def test_ranks_that_died_before_they_met(self):
        """What a rank 0 and a rank 1 of the past have written: a call that came to nothing, and an answer to it."""
        store = self.store()
        if self.rank == 0:
            store.add("weft/calls", 1)
            store.set("weft/call", "1")
            store.set("weft/1/rank/1", "{}")
        self.meet()
        self.join(store, 0)
        self.meet()

    def test_counts_of_restarts_differ(self):
        """Agents of torchrun count those that they have seen."""
        with mock.patch.dict(os.environ, TORCHELASTIC_RESTART_COUNT=str(self.rank)):
            self.join(self.store(), 0)
        self.meet()


class Groups(ranks.TorchRankCase):
    RANKS = 4

    def test_what_it_is(self):
        self.assertTrue(dist.is_initialized())
        self.assertEqual(dist.get_backend(), "weft")
        self.assertEqual(dist.Backend("weft"), "weft")
        self.assertEqual((dist.get_rank(), dist.get_world_size()), (self.rank, self.size))

    def test_sub_groups(self):
        for members in ([0, 2], [3, 1, 2], [1], [0, 1, 2, 3]):
            group = dist.new_group(members)
            self.assertEqual(dist.get_rank(group) >= 0, self.rank in members)
            if self.rank not in members:
                dist.all_reduce(torch.ones(1), group=group)  # does nothing, as torch has it
                continue
            self.assertEqual(dist.get_world_size(group), len(members))
            x = torch.tensor([float(self.rank)])
            dist.all_reduce(x, group=group)
            self.assertEqual(x.item(), sum(members))
            x = torch.tensor([float(self.rank)])
            dist.broadcast(x, members[0], group=group)  # the root is named by its rank in the world
            self.assertEqual(x.item(), members[0])
            outputs = [torch.empty(1) for _ in members]
            dist.all_gather(outputs, torch.tensor([float(self.rank)]), group=group)
            self.assertEqual([output.item() for output in outputs], [float(rank) for rank in sorted(members)])
            dist.destroy_process_group(group)

    def test_messages_in_a_sub_group(self):
        group = dist.new_group([1, 3])
        if self.rank == 1:
            dist.send(torch.tensor([5.0]), 3, group=group)
        elif self.rank == 3:
            x = torch.empty(1)
            dist.recv(x, 1, group=group)
            self.assertEqual(x.item(), 5)

    def test_all_messages_of_four_at_once(self):
        """Every rank to every other, large, in orders that differ."""
        count = 200000
        others = sorted((rank for rank in range(4) if rank != self.rank),
                        key=lambda rank: rank * 7 % 5 * (self.rank + 1))
        blocks = {other: torch.empty(count) for other in others}
        received = {other: dist.irecv(blocks[other], other) for other in others}
        sent = [dist.isend(torch.full((count,), float(10 * self.rank + other)), other) for other in reversed(others)]
        for work in sent:
            work.wait()
        for other, work in received.items():
            work.wait()
            self.assertTrue(torch.equal(blocks[other], torch.full((count,), float(10 * other + self.rank))))

    def test_over_addresses(self):
        """Ranks of different hosts meet at a port, with a secret."""
        card = meeting._card()
        card["host"] += f" {self.rank}"
        seen = {}

        def context(rank, size, address):
            seen.update(address=address, secret=os.environ.get("WEFT_SECRET"))
            return real(rank, size, address)
        real = weft.Context
        with mock.patch.object(meeting, "_card", lambda: card), mock.patch.object(weft, "Context", context):
            group = dist.new_group([0, 1, 2, 3])
        self.assertRegex(seen["address"], r":\d+$")
        self.assertEqual(len(seen["secret"]), 64)
        self.assertNotIn("WEFT_SECRET", os.environ)
        x = torch.ones(1)
        dist.all_reduce(x, group=group)
        self.assertEqual(x.item(), 4)
        dist.destroy_process_group(group)


class Wrong(ranks.TorchRankCase):
    RANKS = 2

    def test_in_itself(self):
        """The caller gets it at once, and the group goes on."""
        for wrong in (lambda: dist.all_gather([torch.empty(2)], torch.ones(2)),
                      lambda: dist.all_gather([torch.empty(2)] * 2, torch.ones(3)),
                      lambda: dist.all_gather_into_tensor(torch.empty(3), torch.ones(2)),
                      lambda: dist.reduce_scatter_tensor(torch.empty(2), torch.ones(3)),
                      lambda: dist.all_to_all_single(torch.empty(3), torch.ones(3)),
                      lambda: dist.all_to_all_single(torch.empty(2), torch.ones(2), [1, 1], [2, 2]),
                      lambda: dist.broadcast(torch.ones(2).to_sparse(), 0),
                      lambda: dist.broadcast(torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8), 0),
                      lambda: dist.send(torch.ones(1), 5),
                      lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool), dist.ReduceOp.AVG)):
            with self.raises_within((RuntimeError, ValueError, TypeError)):
                wrong()
        self.meet()
        x = torch.ones(1)
        dist.all_reduce(x)
        self.assertEqual(x.item(), 2)

    def test_one_rank_tells_the_others(self):
        group = dist.new_group([0, 1])
        if self.rank == 1:
            with self.raises_within(ValueError, "allgather: the output has 3 elements"):
                dist.all_gather_into_tensor(torch.empty(3), torch.ones(2), group=group)
        else:
            with self.raises_within(RuntimeError, "rank 1: allgather: the output has 3 elements"):
                dist.all_gather_into_tensor(torch.empty(4), torch.ones(2), group=group)
        x = torch.ones(1)
        dist.all_reduce(x, group=group)
        self.assertEqual(x.item(), 2)

    def test_ranks_disagree(self):
        group = dist.new_group([0, 1])
        with self.raises_within(weft.WeftMismatchError, "2048 x f32"):
            dist.all_reduce(torch.ones(1024 * (1 + self.rank)), group=group)
        with self.raises_within(RuntimeError):
            dist.all_reduce(torch.ones(1), group=group)
        x = torch.ones(1)
        dist.all_reduce(x)  # other groups are not concerned
        self.assertEqual(x.item(), 2)

    def test_ranks_disagree_on_shapes(self):
        group = dist.new_group([0, 1])
        with self.raises_within(weft.WeftMismatchError, r"\(32, 32\)"):
            dist.all_reduce(torch.ones((1024,) if self.rank == 0 else (32, 32)), group=group)

    def test_errors_of_works(self):
        group = dist.new_group([0, 1])
        work = dist.all_reduce(torch.ones(10 + self.rank), group=group, async_op=True)
        future = work.get_future()
        with self.raises_within(RuntimeError, "f32"):
            future.wait()
        self.assertTrue(work.is_completed())
        self.assertFalse(work.is_success())
        self.assertIsInstance(work.exception(), weft.WeftMismatchError)
        with self.assertRaises(weft.WeftMismatchError):
            work.wait()

    def test_monitored_barrier(self):
        group = dist.new_group([0, 1])
        group.monitored_barrier(datetime.timedelta(seconds=300))
        if self.rank == 0:
            with self.raises_within(RuntimeError, "Rank 1 failed to pass", seconds=3):
                group.monitored_barrier(datetime.timedelta(milliseconds=100))
        self.meet()
        if self.rank == 1:
            with self.raises_within(RuntimeError, "Rank 1 failed to pass"):  # so rank 0 has said
                group.monitored_barrier(datetime.timedelta(milliseconds=100))

    def test_timeout_of_a_group(self):
        group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=1))
        if self.rank == 0:
            with self.raises_within(weft.WeftTimeoutError, seconds=4):
                dist.all_reduce(torch.ones(1), group=group)
        self.meet()

    def test_timeout_of_a_receive_from_any_rank(self):
        os.environ["WEFT_TIMEOUT"] = "1"
        group = dist.new_group(timeout=datetime.timedelta(seconds=1000))
        del os.environ["WEFT_TIMEOUT"]
        if self.rank == 0:
            with self.raises_within(TimeoutError, seconds=100):
                dist.recv(torch.ones(1), group=group)
        self.meet()

    @ranks.fresh(dies=[1])
    def test_dead_peer(self):
        self.meet()
        if self.rank == 1:
            self.die()
        with self.raises_within(weft.WeftPeerDiedError, seconds=5):
            dist.all_reduce(torch.ones(1))

    def test_destroyed(self):
        group = dist.new_group([0, 1])
        native = weft.torch.group_of(group)
        dist.destroy_process_group(group)
        del group
        with self.raises_within(weft.WeftStateError):
            weft.all_reduce_(torch.ones(1), group=native)


class Survivors(ranks.TorchRankCase):
    """The ranks that are left go on, also without the rank that has torch's store."""
    RANKS = 4

    def lose(self, dead, group=None):
        self.meet()
        if self.rank == dead:
            self.die()
        with self.raises_within(weft.WeftPeerDiedError, seconds=10):
            dist.all_reduce(torch.ones(1), group=group)

    def check(self, group, members):
        self.assertEqual(dist.get_world_size(group), len(members))
        self.assertEqual(dist.get_rank(group), members.index(self.rank))
        x = torch.full((1000,), float(self.rank))
        dist.all_reduce(x, group=group)
        self.assertEqual(x.tolist(), [float(sum(members))] * 1000)
        y = torch.full((3,), float(self.rank))
        dist.broadcast(y, members[-1], group=group)
        self.assertEqual(y.tolist(), [float(members[-1])] * 3)
        everything = [None] * len(members)
        dist.all_gather_object(everything, {"rank": self.rank}, group=group)
        self.assertEqual([one["rank"] for one in everything], members)

    @ranks.fresh(dies=[0, 2])
    def test_one_after_the_other(self):
        self.lose(0)
        left = weft.torch.shrink()
        self.check(left, [1, 2, 3])
        if self.rank == 2:
            self.die()
        with self.raises_within(weft.WeftPeerDiedError, seconds=10):
            dist.all_reduce(torch.ones(1), group=left)
        self.check(weft.torch.shrink(left), [1, 3])

    @ranks.fresh(dies=[1])
    def test_new_group(self):
        self.lose(1)
        self.check(dist.new_group([0, 2, 3]), [0, 2, 3])
        left = weft.torch.shrink()
        self.check(left, [0, 2, 3])
        pair = dist.new_group([0, 3])
        if self.rank != 2:
            self.check(pair, [0, 3])

    @ranks.fresh(dies=[1])
    def test_native(self):
        self.meet()
        if self.rank == 1:
            self.die()
        context = weft.torch.group_of().context
        with self.raises_within(weft.WeftPeerDiedError, seconds=10):
            weft.all_reduce(torch.ones(1), group=context.world)
        self.assertEqual(context.members, [0, 1, 2, 3])
        with context.shrink() as left:
            self.assertEqual(left.members, [0, 2, 3])
            self.assertEqual(weft.all_reduce(torch.ones(2), group=left.world).tolist(), [3, 3])
            with self.assertRaises(weft.WeftStateError):
                context.shrink()


class Left(unittest.TestCase):
    """A receive from any rank, when all others have left: what they sent before comes, then the answer."""
    SCRIPT = ("import torch, torch.distributed as dist, weft.torch\n"
              "dist.init_process_group('weft')\n"
              "if dist.get_rank() > 0:\n"
              "    dist.send(torch.full((1,), 7.0), 0)\n"
              "else:\n"
              "    x = torch.zeros(1)\n"
              "    try:\n"
              "        for got in range(9):\n"
              "            dist.recv(x)\n"
              "    except weft.WeftPeerDiedError as error:\n"
              "        print(got, x.item(), error)\n")

    def test_over_shared_memory(self):
        self.check({})

    def test_over_tcp(self):
        self.check({"WEFT_TRANSPORT": "tcp"})

    def check(self, env):
        done = ranks.run_script(self.SCRIPT, ranks=3, env=env)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"^2 7.0 rank [12] has left the world, and no message from it is left$")


class Again(ranks.RankCase):
    """The default group ends and begins again; without torch's variables env:// is Weft's way to meet."""
    RANKS = (1, 2, 3)
    INIT = False

    def test_again(self):
        for i in range(2):
            dist.init_process_group("weft")
            x = torch.ones(1)
            dist.all_reduce(x)
            self.assertEqual(x.item(), self.size)
            dist.barrier()
            dist.destroy_process_group()
            self.assertFalse(dist.is_initialized())

    def test_at_one_address(self):
        """The store of the former group closes while the next one begins, sooner or later."""
        place = bytearray(200)
        weft.init()
        place[:] = json.dumps(ranks.free_port()).ljust(200).encode()
        weft.broadcast(place, 0)
        weft.finalize()
        with mock.patch.dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=place.decode().strip(),
                             RANK=str(self.rank), WORLD_SIZE=str(self.size)):
            for i in range(8):
                dist.init_process_group("weft")
                if i % 2 == 0:
                    x = torch.ones(1)
                    dist.all_reduce(x)
                    self.assertEqual(x.item(), self.size)
                dist.destroy_process_group()

    def test_store_given(self):
        dist.init_process_group("weft", store=dist.FileStore(str(self.dir / "store"), self.size), rank=self.rank,
                                world_size=self.size)
        x = torch.ones(1)
        dist.all_reduce(x)
        self.assertEqual(x.item(), self.size)
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    ranks.main()
