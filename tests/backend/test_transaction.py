"""Tests of transactions: what is undone after an error, the last write, and Ctrl-C."""

import os
import signal
import threading
from types import SimpleNamespace

import pytest

from neonlite.backend import concurrency
from neonlite.backend.transaction import atomic, begin_last_write, on_failure, restore_on_failure

main_thread_receives_ctrl_c = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")


def run(last, between=lambda: None, owner="owner"):
    """Run a transaction that counts to 2, whose write is the last if ``last``; return the counter and the error."""
    counter, error = SimpleNamespace(n=0), None

    def step():
        restore_on_failure(counter, "n")
        counter.n = 1
        assert begin_last_write(owner) == last
        between()
        counter.n = 2

    try:
        atomic(step, last=owner if last else None)
    except BaseException as raised:
        error = type(raised)
    return counter.n, error


def ctrl_c():
    signal.raise_signal(signal.SIGINT)


def fail():
    raise MemoryError


@main_thread_receives_ctrl_c
@pytest.mark.parametrize(("last", "end"), [(True, 2), (False, 0)])
def test_ctrl_c_ends_a_transaction_after_its_last_write_and_undoes_others(last, end):
    assert run(last, ctrl_c) == (end, KeyboardInterrupt)
    assert run(True) == (2, None)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("last", [True, False])
def test_an_error_undoes_the_registered_changes(last):
    assert run(last, fail) == (0, MemoryError)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_another_handler_of_ctrl_c_is_not_replaced():
    calls, previous = [], signal.signal(signal.SIGINT, lambda *_: calls.append(1))
    try:
        assert run(True, ctrl_c) == (2, None)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert calls == [1]


def test_only_the_main_thread_defers_ctrl_c():
    seen = []
    thread = threading.Thread(
        target=lambda: seen.append(run(True, lambda: seen.append(signal.getsignal(signal.SIGINT))))
    )
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler, (2, None)]


def test_a_nested_transaction_is_part_of_the_outer_one():
    counter = SimpleNamespace(n=0)

    def inner():
        assert not begin_last_write("inner")  # the outer one may still fail
        on_failure(setattr, counter, "n", 0)
        counter.n = 1

    def outer():
        atomic(inner, last="inner")
        raise MemoryError

    with pytest.raises(MemoryError):
        atomic(outer)
    assert counter.n == 0


def test_a_thread_that_cannot_start_fails_before_the_work_begins(monkeypatch):
    before, starts, start = concurrency.get_num_threads(), [], threading.Thread.start

    def fail_at_second(thread):
        starts.append(thread)
        if len(starts) == 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    concurrency.set_threads(3)
    monkeypatch.setattr(threading.Thread, "start", fail_at_second)
    done = []
    try:
        with pytest.raises(RuntimeError, match="can't start"):
            concurrency.parallel_for(done.extend, 10)
        assert done == []
        concurrency.parallel_for(done.extend, 10)
        assert sorted(done) == list(range(10))
    finally:
        concurrency.set_threads(before)
