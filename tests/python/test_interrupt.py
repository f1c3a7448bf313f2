# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and other signals while a rank waits: it goes on within a tenth of a second, and the others are told."""
import os
import signal
import sys
import threading
import time

import ranks

np = ranks.need("numpy")
import weft  # noqa: E402

SOON = 0.3  # of a machine with more to do


class Handled(Exception):
    """What a handler raises."""


def interrupt():
    raise KeyboardInterrupt


class Interrupts(ranks.RankCase):
    """Every method breaks the world."""

    def interrupted(self, call, error=KeyboardInterrupt):
        """call on rank 1 waits until it is interrupted; rank 0 receives in vain."""
        if self.rank == 0:
            pid, peer = self.exchange()[1], 1
            self.meet()
            with self.signalling(pid, signal.SIGINT), \
                    self.raises_within(weft.WeftAbortedError, "rank 1 was interrupted", seconds=2):
                weft.recv(np.zeros(3), peer)
            with self.raises_within(weft.WeftAbortedError, "rank 1 was interrupted"):
                weft.barrier()
            return
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.exchange(os.getpid())
        self.meet()
        with self.raises_within(error, seconds=0.1 + SOON):
            self.call_with_handler(signal.SIGINT, interrupt, call)
        with self.raises_within(weft.WeftAbortedError, "rank 1 was interrupted"):
            weft.barrier()

    @ranks.fresh
    def test_in_a_call(self):
        self.interrupted(lambda: weft.recv(np.zeros(3), 0))

    @ranks.fresh
    def test_in_a_collective_that_makes_its_result(self):
        self.interrupted(lambda: weft.all_gather(np.zeros(1000)))

    @ranks.fresh
    def test_at_the_barrier_of_the_world(self):
        self.interrupted(lambda: weft.Stream().context.barrier())

    @ranks.fresh
    def test_in_a_work(self):
        self.interrupted(lambda: weft.recv(np.zeros(3), 0, async_op=True).wait())

    @ranks.fresh
    def test_in_a_work_with_a_timeout(self):
        self.interrupted(lambda: weft.recv(np.zeros(3), 0, async_op=True).wait(timeout=30))

    @ranks.fresh
    def test_at_a_stream(self):
        stream = weft.Stream(thread=False)

        def call():
            weft.recv(np.zeros(3), 0, stream=stream)
            stream.synchronize()

        self.interrupted(call)

    @ranks.fresh
    def test_at_an_event_of_a_thread(self):
        stream = weft.Stream(thread=True)

        def call():
            weft.recv(np.zeros(3), 0, stream=stream)
            stream.record_event().synchronize()

        self.interrupted(call)

    @ranks.fresh
    def test_in_a_batch(self):
        def call():
            with weft.batch():
                weft.all_reduce(np.zeros(3))
                weft.all_reduce(np.zeros(3))

        self.interrupted(call)

    @ranks.fresh
    def test_in_a_step(self):
        try:
            import onnx  # noqa: F401
        except ImportError:
            self.skipTest("onnx is not installed")
        sys.path.insert(0, str(ranks.SOURCE / "tests" / "tools"))
        import door_models
        session = weft.Session(weft.compile(door_models.forward(), batch=4, lr=0.1))
        images, labels = np.zeros((4, 1, 28, 28), "float32"), np.zeros(4, "int64")
        session.step(images, labels)
        self.interrupted(lambda: session.step(images, labels))

    @ranks.fresh
    def test_in_finalize(self):
        """What is in flight is waited for, but not for ever."""
        work = None
        if self.rank == 1:
            work = weft.recv(np.zeros(3), 0, async_op=True)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        pid = self.exchange(os.getpid())[1]
        if self.rank == 0:
            with self.signalling(pid, signal.SIGINT), \
                    self.raises_within(weft.WeftAbortedError, "rank 1 was interrupted", seconds=2):
                weft.recv(np.zeros(3), 1)
            return
        with self.raises_within(KeyboardInterrupt, seconds=0.1 + SOON):
            self.call_with_handler(signal.SIGINT, interrupt, weft.finalize)
        self.assertFalse(weft.is_initialized())
        self.assertIsInstance(work.exception(), weft.WeftAbortedError)


class ThreadInterrupts(Interrupts):
    """Where threads wait in this one's place; what makes no difference is left out."""
    ENV = {"WEFT_PROGRESS": "thread"}
    test_in_a_call = test_in_a_collective_that_makes_its_result = test_at_the_barrier_of_the_world = None
    test_in_a_batch = test_at_an_event_of_a_thread = None


class Handlers(ranks.RankCase):
    def test_handler_that_returns_ends_nothing(self):
        seen = []

        def handle():
            seen.append(1)
            if len(seen) == 3:
                self.meet()  # only now rank 0 sends what the call waits for

        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        pids = self.exchange(os.getpid())
        x = np.zeros(3)
        if self.rank == 0:
            with self.signalling(pids[1], signal.SIGUSR2):
                self.meet()
            weft.send(np.ones(3), 1)
            self.assertEqual(seen, [])
        else:
            self.call_with_handler(signal.SIGUSR2, handle, lambda: weft.recv(x, 0))
            self.assertEqual(x[2], 1)
            self.assertGreaterEqual(len(seen), 3)
        weft.barrier()

    @ranks.fresh
    def test_what_a_handler_raises_comes_out(self):
        def handle():
            raise Handled("by a signal")

        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        pids = self.exchange(os.getpid())
        if self.rank == 0:
            with self.signalling(pids[1], signal.SIGUSR2), \
                    self.raises_within(weft.WeftAbortedError, "interrupted", seconds=2):
                weft.recv(np.zeros(3), 1)
        else:
            with self.raises_within(Handled, "by a signal", seconds=2):
                self.call_with_handler(signal.SIGUSR2, handle, lambda: weft.recv(np.zeros(3), 0))

    @ranks.fresh
    def test_a_handler_that_calls_weft(self):
        """Inside a call of this thread: told so, rather than stuck."""
        seen = []
        handled = threading.Event()

        def handle():
            if seen:
                return
            seen.append(weft.get_rank())
            for call in (weft.barrier, lambda: weft.barrier(async_op=True)):
                try:
                    call()
                except weft.WeftError as error:
                    seen.append(error)
            handled.set()

        def meet_later():
            handled.wait()
            self.meet()

        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        pids = self.exchange(os.getpid())
        if self.rank == 0:
            with self.signalling(pids[1], signal.SIGUSR2):
                self.meet()
            weft.send(np.ones(3), 1)
        else:
            later = threading.Thread(target=meet_later)
            later.start()
            self.call_with_handler(signal.SIGUSR2, handle, lambda: weft.recv(np.zeros(3), 0))
            later.join()
            self.assertEqual(seen[0], 1)
            self.assertTrue(seen[1:] and all(isinstance(error, weft.WeftStateError) for error in seen[1:]), seen)
        weft.barrier()

    @ranks.fresh
    def test_other_threads_see_how_it_ended(self):
        """Python runs handlers on the main thread only; a call of another one ends with the world."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        pids = self.exchange(os.getpid())
        group = weft.new_group([0, 1])
        if self.rank == 0:
            with self.signalling(pids[1], signal.SIGINT), \
                    self.raises_within(weft.WeftAbortedError, "interrupted", seconds=2):
                weft.recv(np.zeros(3), 1)
            return
        errors = []

        def call():
            try:
                weft.recv(np.zeros(3), 0, group)
            except BaseException as error:  # noqa: B902
                errors.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        with self.raises_within(KeyboardInterrupt, seconds=0.1 + SOON):
            self.call_with_handler(signal.SIGINT, interrupt, lambda: weft.recv(np.zeros(3), 0))
        thread.join()
        self.assertIsInstance(errors[0], weft.WeftAbortedError)


class Joining(ranks.RankCase):
    INIT = False

    @ranks.fresh
    def test_while_others_are_missing(self):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.environ["WEFT_WORLD_SIZE"] = "3"
        for address in (os.environ["WEFT_ADDRESS"], f"file://{self.dir}/meet-{self.rank}"):
            self.meet()
            # The first of the two that is interrupted tells the other one, if they have met.
            try:
                with self.within(0.1 + 2 * SOON), self.signalling(os.getpid(), signal.SIGINT):
                    self.call_with_handler(signal.SIGINT, interrupt, lambda: weft.init(address=address))
                self.fail("no rank was missing")
            except weft.WeftError as error:
                self.assertRegex(str(error), "interrupted|disconnected")
            except KeyboardInterrupt:
                pass
            self.assertFalse(weft.is_initialized())


if __name__ == "__main__":
    ranks.main()
