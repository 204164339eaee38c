"""The lock of a backend: Ctrl-C at any time leaves it free, and forked processes find complete steps and free locks."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from helpers.runtimes import RUNTIMES

from neonlite import Backend, gen_backend
from neonlite.backend import concurrency as lock_module
from neonlite.backend.concurrency import DeferredInterrupt, FairLock
from neonlite.callbacks import CallbackBase
from neonlite.data import ArrayIterator
from neonlite.layers import Affine
from neonlite.models import Model
from neonlite.optimizers import Adam

needs_fork = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes fork here"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def child_succeeds(work: Callable[[], object]) -> bool:
    """Return whether ``work`` returns a true value in a forked child, within 60 seconds."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if work() else 1)
    return os.waitpid(child, 0)[1] == 0


@pytest.fixture
def interrupted() -> Iterator[None]:
    """Let SIGALRM raise KeyboardInterrupt."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.signal(signal.SIGALRM, before)


def acquired_elsewhere(lock: FairLock) -> bool:
    """Return whether another thread can acquire the lock."""
    found: list[bool] = []

    def acquire() -> None:
        if lock.acquire(0.0):
            found.append(True)
            lock.release()

    thread = threading.Thread(target=acquire)
    thread.start()
    thread.join()
    return bool(found)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
@pytest.mark.usefixtures("interrupted")
def test_ctrl_c_at_any_time_leaves_the_lock_free() -> None:
    lock, times = FairLock(), random.Random(0)
    hits = 0
    for _ in range(10_000):
        try:
            signal.setitimer(signal.ITIMER_REAL, times.uniform(1e-6, 2e-5))
            for _ in range(1000):  # an interrupt during a finalizer is lost
                with lock, lock:
                    pass
        except KeyboardInterrupt:
            hits += 1
        assert not lock._lock._is_owned()  # type: ignore[attr-defined]
    assert hits > 5000
    assert acquired_elsewhere(lock)


def test_ctrl_c_twice_within_a_step_is_raised_after_the_step() -> None:
    steps = []

    def interrupted_step() -> None:
        with DeferredInterrupt() as interrupt, interrupt.defer():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            steps.append("complete")

    with pytest.raises(KeyboardInterrupt):
        interrupted_step()
    assert steps == ["complete"]


def test_a_lock_is_passed_to_a_waiting_thread_before_its_last_holder():
    for _ in range(20):
        lock, order = FairLock(), []

        def other(lock: FairLock = lock, order: list[str] = order) -> None:
            with lock:
                order.append("other")

        thread = threading.Thread(target=other)
        with lock, lock:  # twice in one thread
            thread.start()
            end = time.monotonic() + 300
            while lock._gate.acquire(blocking=False):  # until the other thread waits for the lock
                lock._gate.release()
                assert time.monotonic() < end
        with lock:
            order.append("this")
        thread.join()
        assert order == ["other", "this"]


class Steps:
    """A thread whose steps change two numbers one after the other, while they hold a lock."""

    def __init__(self, lock: FairLock, seconds: float) -> None:
        self.lock, self.seconds, self.numbers = lock, seconds, [0, 0]
        self.is_inside, self.ended = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        while not self.ended.is_set():
            with self.lock:
                self.numbers[0] += 1
                self.is_inside.set()
                time.sleep(self.seconds)
                self.numbers[1] += 1

    def __enter__(self) -> Steps:
        self.thread.start()
        self.is_inside.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()


class TestFork:
    pytestmark = needs_fork

    def test_the_child_finds_the_complete_step_of_another_thread(self) -> None:
        lock = FairLock()
        with Steps(lock, 0.03) as steps:
            for _ in range(5):
                assert child_succeeds(lambda: lock.acquire(0.0) and steps.numbers[0] == steps.numbers[1])

    def test_after_the_longest_wait_the_lock_is_free_nevertheless(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lock_module, "FORK_WAIT", 0.05)
        lock = FairLock()
        with Steps(lock, 0.5):
            assert child_succeeds(lambda: lock.acquire(0.0))

    def test_a_thread_that_waits_for_the_lock_does_not_hold_it_in_the_child(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lock_module, "FORK_WAIT", 0.05)
        lock = FairLock()
        waits = threading.Thread(target=lambda: lock.acquire(5.0) and lock.release())
        with Steps(lock, 0.5):
            waits.start()
            time.sleep(0.05)
            assert child_succeeds(lambda: lock.acquire(0.0))
        waits.join()

    def test_a_thread_that_forks_while_it_holds_the_lock_holds_it_in_both_processes(self) -> None:
        lock = FairLock()
        with lock:

            def release() -> bool:
                is_held = not acquired_elsewhere(lock)
                lock.release()
                return is_held and acquired_elsewhere(lock)

            assert child_succeeds(release)
            assert not acquired_elsewhere(lock)
        assert acquired_elsewhere(lock)

    def test_a_thread_that_holds_the_lock_forks_at_once_though_another_one_waits(self, monkeypatch) -> None:
        monkeypatch.setattr(lock_module, "FORK_WAIT", 60.0)
        lock, thread = FairLock(), None
        with lock:
            thread = threading.Thread(target=lambda: lock.acquire(60.0) and lock.release())
            thread.start()
            while lock._gate.acquire(blocking=False):  # until the thread waits
                lock._gate.release()
            before = time.monotonic()
            assert child_succeeds(lambda: True)
            assert time.monotonic() - before < 30.0
        thread.join()

    def test_the_parent_does_not_keep_the_lock(self) -> None:
        lock = FairLock()
        assert child_succeeds(lambda: acquired_elsewhere(lock))
        assert acquired_elsewhere(lock)

    @pytest.mark.parametrize("name", ["random numbers", "the host generator", "plans"])
    def test_the_child_can_use_what_another_thread_had_locked(self, name: str) -> None:
        be = Backend("cpu", rng_seed=0)
        x = be.ones((2, 3))
        host = be.rng
        locks = {
            "random numbers": be.streams._lock,
            "the host generator": host._bit_generator.lock,
            "plans": be.plan_cache.lock,
        }
        is_held, forked = threading.Event(), threading.Event()

        def hold() -> None:
            with locks[name]:
                is_held.set()
                forked.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        is_held.wait()

        def use() -> bool:
            draws = be.rand(2, 3).get(), host.standard_normal(2)
            return bool(
                np.isfinite(draws[0]).all() and np.isfinite(draws[1]).all() and ((x + 7) * 3).get().sum() == 144
            )

        try:
            assert child_succeeds(use)
        finally:
            forked.set()
            thread.join()


FORKED = """
import os, signal, sys
import numpy as np
import neonlite as nl
nl.backend.set_threads(2)
be = nl.gen_backend(sys.argv[1], rng_seed=0)
rows, labels = np.random.default_rng(0).random((256, 512)), np.arange(256) % 2
model = nl.Model([nl.layers.Affine(512, activation="relu"), nl.layers.Affine(2, activation="softmax")])
fit = lambda: model.fit(rows, labels, epochs=1, batch_size=128, progress_bar=False)
fit()
expected = model.predict_proba(rows)
if (child := os.fork()) == 0:
    signal.alarm(60)
    is_right = np.allclose(model.predict_proba(rows), expected, rtol=1e-4, atol=1e-5)
    fit()
    os._exit(0 if is_right else 1)
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes fork here")
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_forked_process_predicts_and_trains_with_the_model_of_its_parent(runtime: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKED, runtime]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == ["0"]


def test_a_training_holds_the_lock_while_it_writes_its_position() -> None:
    """The child of a fork in between would have the number of the new epoch and the position of the old one."""

    class Data(ArrayIterator):
        def get_state(self) -> dict[str, Any]:
            free.append(acquired_elsewhere(self.be.lock))
            return super().get_state()

    free: list[bool] = []
    gen_backend("cpu", rng_seed=0, batch_size=4)
    train = Data(np.ones((8, 3)), np.arange(8) % 2, nclass=2)
    Model([Affine(2, activation="softmax")]).fit(train, "cross_entropy", Adam(), 2, CallbackBase())
    assert free == [False] * 6  # after each minibatch, and each epoch
