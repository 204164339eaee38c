"""Prefetching: a thread computes the next minibatch; order, errors, abandoned loops."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from helpers.minibatches import delay_filling, epoch, in_order, prefetch_threads, rows

from neonlite.data import ArrayIterator, Flip
from neonlite.data.minibatches import prefetch

# --- prefetching --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_prefetching_changes_neither_order_nor_results(n):
    assert list(prefetch(lambda k: k * k, range(n))) == [k * k for k in range(n)]
    assert list(prefetch(lambda k: k, range(3, 3 + n))) == list(range(3, 3 + n))
    assert not prefetch_threads()


def test_the_next_step_runs_while_one_is_in_use_and_never_two():
    begun = [threading.Event() for _ in range(6)]

    def work(k):
        assert threading.current_thread() is not threading.main_thread()
        begun[k].set()
        return k

    for k in prefetch(work, range(5)):
        if k < 4:
            assert begun[k + 1].wait(300)
            assert len(prefetch_threads()) == 1
        assert not begun[k + 2 if k < 4 else 5].wait(0.02)  # it has only two buffers


def test_an_error_of_the_thread_is_raised_in_the_loop_at_its_step():
    seen = []

    def work(k):
        if k == 3:
            raise OSError("the disk is gone")
        return k

    with pytest.raises(OSError, match="the disk is gone"):
        seen.extend(prefetch(work, range(9)))
    assert seen == [0, 1, 2]
    gc.collect()
    assert not prefetch_threads()


def test_no_thread_is_left_when_a_loop_is_abandoned(cpu):
    for _ in prefetch(lambda k: k, range(9)):
        assert len(prefetch_threads()) == 1
        break
    assert not prefetch_threads()
    cpu.bsz = 2
    it = ArrayIterator(np.zeros((9, 1, 2, 2)), augment=Flip())
    for _ in it:
        assert len(prefetch_threads()) == 1
        break
    assert not prefetch_threads()
    with pytest.raises(ZeroDivisionError):
        [1 / 0 for _ in it]
    gc.collect()
    assert not prefetch_threads()


def test_prefetched_values_last_until_they_are_used(cpu, monkeypatch):
    delay_filling(monkeypatch)
    cpu.bsz = 2
    it = ArrayIterator(rows(10).reshape(10, 1, 1, 2), augment=lambda images, random_bits: images)
    assert epoch(it) == in_order(10, 2, 1)[0]
