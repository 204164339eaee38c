"""The cache of plans, structures, and threads that evaluate op-trees at once."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import sys
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from operator import length_hint
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.plans import batch_norm, check_random_trees, normal
from helpers.runtimes import back

import neonlite.backend.planning.assignment as run_module
from neonlite import Backend, tree_inference, tree_structure
from neonlite.backend import concurrency
from neonlite.backend.planning import PLAN_BYTES, STEP_BYTES
from neonlite.ops import OPS

# --- the cache of plans, and the table of structures ---------------------------------------------------------------


def test_the_same_structure_finds_the_same_plan(be, made):
    for seed in range(5):
        x, y = be.array(normal(3, 4, seed=seed)), be.array(normal(1, 4, seed=seed + 9))
        out = be.empty((3, 4))
        out[:] = be.tanh(x * y + 0.5 * seed) - x
        np.testing.assert_allclose(out.get(), np.tanh(x.get() * y.get() + 0.5 * seed) - x.get(), rtol=1e-5, atol=1e-6)
    assert len(made) == 1


@pytest.mark.parametrize(
    "other",
    [
        lambda be, x, y: (be.ones((2, 5)) * be.ones((2, 5)), be.empty((2, 5))),
        lambda be, x, y: (be.ones((3, 4), dtype="float64") * y, be.empty((3, 4))),
        lambda be, x, y: (x * y, be.empty((3, 4), dtype="int32")),
        lambda be, x, y: (x * x, be.empty((3, 4))),
        lambda be, x, y: (x * be.ones((4, 3)).T, be.empty((3, 4))),
        lambda be, x, y: (x * y, x),
        lambda be, x, y: (x + y, be.empty((3, 4))),
        lambda be, x, y: (be.sum(x * y, axis=0), be.empty((3, 4))),
    ],
)
def test_another_structure_makes_another_plan(be, made, other):
    x, y, out = be.ones((3, 4)), be.ones((3, 4)), be.empty((3, 4))
    out[:] = x * y
    tree, target = other(be, x, y)
    target[:] = tree
    assert len(made) == 2


def test_which_operands_are_the_same_tensor_is_part_of_the_structure(be):
    x, y, z = (be.array([[n]]) for n in (7.0, 4.0, 1.0))
    trees = [
        (x - y) * (x - y),
        (x - y) * (y - x),
        (x - y) * (x - z),
        (x - y) * (z - x),
        (x - y) * (z - y),
        (x - y) * (x - x),
    ]
    trees += [(x - y) * 0.5 - (y - x) * 0.5, (x - y) * 0.5 - (x - y) * 0.5, (x - y) * 0.5 - (x - y) * 0.25]
    assert [t.asnumpyarray().item() for t in trees] == [9, -9, 18, -18, -9, 0, 3, 0, 0.75]


@pytest.mark.parametrize(
    ("dtype", "number", "value", "result"),
    [
        ("int32", 1, 3, "int32"),
        ("int32", True, 3, "int32"),
        ("int32", 1.0, 3.0, "float32"),
        ("int32", np.int64(1), 3, "int32"),
        ("int32", np.float64(1), 3.0, "float32"),
        ("float32", 1, 3.0, "float32"),
        ("float32", 1e3, 3e3, "float32"),
    ],
)
def test_constants_are_distinguished_by_type(be, dtype, number, value, result):
    for _ in range(2):
        tensor = (be.array([[3]], dtype=dtype) * number).astensor()
        assert tensor.dtype == result
        assert tensor.get().item() == value


def test_constants_are_distinguished_by_their_bits(be):
    x = be.array([[-0.0]])
    trees = [1 / (x + 0.0), 1 / (x + -0.0), 1 / (x + 0), 1 / (x + -0.0), 1 / (x + 0.0)]
    assert [t.asnumpyarray().item() for t in trees] == [np.inf, -np.inf, np.inf, -np.inf, np.inf]
    both = [x + 0.0, x + -0.0]
    assert np.signbit([t.get().item() for t in be.evaluate(both)]).tolist() == [False, True]
    assert [(be.ones((1, 1)) * n).asnumpyarray().item() for n in (np.nan, np.inf, -np.inf)][1:] == [np.inf, -np.inf]


def test_the_cache_of_plans_is_bounded_and_forgets_what_was_not_used_for_longest(be, made, monkeypatch):
    monkeypatch.setattr(run_module, "MAX_CACHED_PLANS", 8)

    def use(n: int) -> int:
        before = len(made)
        assert (be.ones((n, 1)) + 1).asnumpyarray().sum() == 2 * n
        return len(made) - before

    for n in range(1, 40):
        use(n)
        assert n == 1 or use(1) == 0  # used all the time, so kept
        assert len(be.plan_cache) <= 8
    assert use(39) == 0
    assert use(2) == 1


def test_the_cache_of_plans_is_bounded_by_bytes(be, made, monkeypatch):
    steps = 100
    small = 3 * (PLAN_BYTES + (steps + 1) * STEP_BYTES)
    monkeypatch.setattr(run_module, "MAX_CACHED_PLAN_BYTES", small)
    be.plan_cache.capacity = small

    def grown(n: int, count: int) -> Any:
        tree = be.ones((n, 1))
        for _ in range(count):
            tree = tree + 1
        return tree

    for n in range(1, 20):
        assert grown(n, steps).get()[0].item() == steps + 1
        assert len(be.plan_cache) <= 3
        assert be.plan_cache.total_cost == sum(plan.nbytes for plan in be.plan_cache.values()) <= small
    many, large, out = len(made), grown(5, 4 * steps), be.empty((5, 1))
    for _ in range(3):
        out[:] = large
        assert (out.get() == 4 * steps + 1).all()
    assert len(made) == many + 1  # planned once, and kept with the tree
    plan = weakref.ref(large._large_plan[1])
    del large, made[:]
    gc.collect()
    assert plan() is None


def test_a_plan_that_two_threads_make_counts_once(be):
    x, out = be.ones((3, 1)), be.empty((3, 1))
    plan = be.plan(x + 1)
    for _ in range(2):
        be.plan_cache.add("key", plan)
    assert be.plan_cache.total_cost == sum(run_module.plan_cost(None, plan) for plan in be.plan_cache.values())
    out[:] = x + 1
    be.cleanup_backend()
    assert be.plan_cache.total_cost == 0


@pytest.mark.long
def test_the_bytes_of_plans_and_structures_are_about_what_they_take(cpu):
    def use(n: int) -> None:
        x = cpu.ones((n, 7))
        for _ in range(12):
            x = cpu.tanh(x * 2) + cpu.exp(-x)
        x.get()

    use(10)
    gc.collect()
    tracemalloc.start()
    try:
        for n in range(20, 60):
            use(n)
        gc.collect()
        measured = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    reported = (
        sum(plan.nbytes for plan in cpu.plan_cache.values()[1:]) + cpu.structures.total_cost + cpu.infos.total_cost
    )
    assert 0.4 < measured / reported < 1.5


def test_the_table_of_structures_is_bounded(be, monkeypatch):
    be.structures.capacity = 64 * tree_structure.STRUCTURE_BYTES
    monkeypatch.setattr(tree_inference, "MAX_CACHED_FLOATS", 64)
    x = be.ones((2, 2))
    early, tree = x * 2 + 3, x
    for n in range(500):
        tree = tree + 1.5 if n % 3 else tree * (n / 7)
        assert len(be.structures) <= 64
        assert len(tree_inference._float_cache) <= 66
    again = x * 2 + 3
    assert again.asnumpyarray().tolist() == early.asnumpyarray().tolist() == [[5, 5], [5, 5]]


def test_tensors_of_many_shapes_leave_nothing_behind(be):
    be.infos.capacity = 64 * tree_structure.STRUCTURE_BYTES
    x = be.ones((3000, 1))

    def infos() -> int:
        gc.collect()
        return sum(type(found) is tree_structure.Info for found in gc.get_objects())

    before = infos()
    for n in range(1, 3000):
        x[:n]
    assert infos() - before < 100


# --- threads -------------------------------------------------------------------------------------------------------


LARGE = [
    lambda be, x, y: [be.sig(x * y) + be.exp(-x)],
    lambda be, x, y: [be.sum(x * x, axis=0), be.sum(x * x, axis=1), be.sum(x), be.max(x - y, axis=1), be.min(y)],
    lambda be, x, y: [be.softmax(x, axis=0), be.softmax(y.T, axis=0)],
    lambda be, x, y: [batch_norm(be, x, y[:, :1], y[:, 1:2])],
    lambda be, x, y: [be.reshape(x[:, ::2], -1, 5).T + 1, be.sum(be.reshape(y, 10, 70, 900), axis=(0, 2))],
]


@pytest.mark.parametrize("formulas", LARGE)
def test_results_depend_neither_on_the_number_of_threads_nor_on_timing(cpu, threads, formulas):
    x, y = cpu.array(normal(700, 900)), cpu.array(normal(700, 900, seed=1))
    seen = set()
    for n in (1, 2, 5, 5, 5):
        threads(n)
        seen.add(tuple(t.get().tobytes() for t in cpu.evaluate(formulas(cpu, x, y))))
    assert len(seen) == 1
    reference = Backend("strict")
    x, y = reference.array(normal(700, 900)), reference.array(normal(700, 900, seed=1))
    for bits, t in zip(seen.pop(), reference.evaluate(formulas(reference, x, y)), strict=True):
        mine, theirs = np.frombuffer(bits, np.float32).reshape(t.shape), t.get()
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4 * abs(theirs).max())


def at_once(work: Callable[[int], None]) -> None:
    """Call work(0) to work(7) in eight threads that change places all the time."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as workers:
            for done in [workers.submit(work, n) for n in range(8)]:
                done.result()
    finally:
        sys.setswitchinterval(interval)


def in_threads(be: Backend, trees: int) -> None:
    def work(n: int) -> None:
        for seed in range(trees):
            check_random_trees(random.Random(seed * 8 + n), be)

    at_once(work)


def test_eight_threads_may_share_a_backend(runner, monkeypatch):
    monkeypatch.setattr(run_module, "MAX_CACHED_PLANS", 8)
    in_threads(runner, 20)


def test_threads_that_meet_in_one_new_plan_do_not_disturb_each_other(runner):
    a = np.random.default_rng(0).integers(-3, 4, (8, 60, 50)).astype(np.float32)
    barrier = threading.Barrier(8, timeout=300)
    wrong: list[str] = []

    def work(n: int) -> None:
        for width in range(20, 32):  # a plan each, which no thread has run before
            b = a[n, :, :width]
            step = back(runner)
            x, out, row = runner.array(b), runner.empty((60, width)), runner.empty((1, width))
            barrier.wait()
            try:
                runner.assign([out, row], [(x + x[::step]) * 2 - runner.max(x, axis=1), runner.sum(x * x, axis=0)])
                np.testing.assert_array_equal(out.get(), (b + b[::step]) * 2 - b.max(1, keepdims=True))
                np.testing.assert_array_equal(row.get(), (b * b).sum(0, keepdims=True))
            except Exception as error:
                wrong.append(repr(error))

    at_once(work)
    assert not wrong


@pytest.mark.slow
def test_eight_threads_may_share_a_backend_for_long(runner):
    in_threads(runner, 100)


@pytest.mark.parametrize("whose", ["this thread", "a helper"])
def test_an_error_in_one_block_ends_the_run_and_the_next_run_is_right(cpu, threads, whose):
    blocks: list[int] = []
    reached = threading.Event()

    def run(xp: Any, x: Any) -> Any:
        blocks.append(x.size)
        if bad and (threading.current_thread() is threading.main_thread()) == (whose == "this thread"):
            reached.set()
            raise ValueError("a bad block")
        assert not bad or reached.wait(300)  # so that each thread gets a block
        return x

    threads(3)
    method = Backend.define_op("fussy", run, None)
    try:
        x, out, bad = cpu.ones((2000, 1000)), cpu.zeros((2000, 1000)), True
        with pytest.raises(ValueError, match="a bad block"):
            out[:] = method(cpu, x)
        blocks.clear()
        bad = False
        out[:] = method(cpu, x)
        assert sum(blocks) == x.size
        assert (out.get() == 1).all()
    finally:
        del OPS["fussy"], Backend.fussy  # type: ignore[attr-defined]


def test_after_an_error_nothing_is_begun_any_more(threads):
    threads(3)
    begun: list[int] = []
    all_began = threading.Barrier(3)

    def work(numbers: Iterator[int]) -> None:
        begun.append(next(numbers))
        all_began.wait(300)
        if threading.current_thread() is threading.main_thread():
            raise ValueError("a bad block")
        end = time.monotonic() + 300
        while length_hint(numbers) and time.monotonic() < end:  # until nothing is left to begin
            time.sleep(0.001)
        begun.extend(numbers)

    with pytest.raises(ValueError, match="a bad block"):
        concurrency.parallel_for(work, 1000)
    assert sorted(begun) == [0, 1, 2]


def test_an_error_in_one_helper_is_raised_when_the_others_have_ended(threads, monkeypatch):
    threads(3)
    failed, slow = Future[None](), Future[None]()
    helpers = iter([failed, slow])
    monkeypatch.setattr(concurrency, "_pool", SimpleNamespace(submit=lambda *_: next(helpers)))
    failed.set_exception(ValueError("a bad block"))
    threading.Timer(0.05, slow.set_result, [None]).start()
    with pytest.raises(ValueError, match="a bad block"):
        concurrency.parallel_for(lambda numbers: None, 3)
    assert slow.done()


def in_child(queue: Any) -> None:
    be = Backend("cpu")
    queue.put(float(be.sum(be.ones((1000, 1000)) * 2).asnumpyarray().item()))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_child_process_computes_after_its_parent_used_the_pool(cpu, threads):
    threads(3)
    assert cpu.sum(cpu.ones((1000, 1000))).asnumpyarray().item() == 1e6
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=in_child, args=(queue,))
    child.start()
    child.join(300)
    hung = child.is_alive()
    if hung:
        child.kill()
    assert not hung
    assert queue.get() == 2e6


def test_an_error_of_a_new_plan_is_shown_alone(be):
    x, out = be.ones((3, 4)), be.empty((2, 2))
    with pytest.raises(ValueError, match="broadcasts") as caught:
        be.compile([out], [x + 1])
    assert caught.value.__context__ is None
