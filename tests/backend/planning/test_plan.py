"""Plans and their executors, compared with NumPy oracles that copy everything and share no code with them."""

from __future__ import annotations

import gc
import math
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
from helpers.allocations import buffers
from helpers.parametrize import DEEP
from helpers.runtimes import RUNTIMES, back, refused

import neonlite.backend.planning.run as run_module
from neonlite import Autodiff, Backend, optree_inference, optree_structure
from neonlite.backend import thread_pool
from neonlite.backend.planning import PLAN_BYTES, STEP_BYTES, Plan
from neonlite.backend.runtimes import onednn
from neonlite.backend.runtimes.numpy import stages as stages_module
from neonlite.backend.runtimes.numpy import templates
from neonlite.op_functions import to_slices
from neonlite.ops import OP_TABLE, OPS
from neonlite.optree import OpTreeNode

Array = np.ndarray[Any, Any]
Node = tuple[Any, float]  # an operand, and a bound on the size of its elements


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Return the list of all plans that are made during a test."""
    plans: list[Plan] = []

    class Counted(Plan):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            plans.append(self)

    monkeypatch.setattr(run_module, "Plan", Counted)
    return plans


@pytest.fixture
def counted() -> Iterator[tuple[Callable[..., Any], list[int]]]:
    """Return a backend method ``x -> x``, and the list to which each run of it appends."""
    runs: list[int] = []

    def run(xp: Any, x: Any) -> Any:
        runs.append(1)
        return x

    yield Backend.define_op("counted", run, lambda be, dz, z, x: (dz,)), runs
    del OPS["counted"], Backend.counted  # type: ignore[attr-defined]


@pytest.fixture
def threads(threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return the function that sets the number of threads, which share also cheap work."""
    monkeypatch.setattr(stages_module, "MIN_THREADED_COST", 0)
    return threads


@pytest.fixture(params=[*RUNTIMES, "blocks of 8", "blocks of 30"])
def runner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, threads: Any) -> Backend:
    """Return a backend of each kind; in small blocks every path of the blocked executor is taken by small tensors."""
    if request.param in RUNTIMES:
        return Backend(request.param)
    threads(3)
    whole, block, run, align, threaded = {"8": (4, 8, 2, 2, 16), "30": (31, 30, 4, 1, 60)}[request.param.split()[-1]]
    for name, value in {
        "MAX_UNTILED_ELEMENTS": whole,
        "BLOCK_ELEMENTS": block,
        "MIN_LAST_AXIS_ELEMENTS": run,
        "ALIGNMENT_BYTES": align,
        "MIN_THREADED_ELEMENTS": threaded,
    }.items():
        monkeypatch.setattr(stages_module, name, value)
    monkeypatch.setattr(stages_module, "MAX_BLOCK_ELEMENTS", 2 * block)
    monkeypatch.setattr(onednn, "MIN_CHAIN_COST", 1)
    monkeypatch.setattr(onednn, "MIN_EXACT_CHAIN_ELEMENTS", 1)
    for name, value in {
        "MIN_ELEMENTS": 1,
        "MIN_CHUNK_ELEMENTS": 2,
        "MAX_UNSPLIT_ELEMENTS": 3,
        "UNEVEN_CHUNK_ELEMENTS": 5,
    }.items():
        monkeypatch.setattr(templates, name, value)
    templates.even_chunk_size.cache_clear()
    return Backend("cpu")


def stages(plan: Plan) -> list[str]:
    return [" ".join(step.op.name for v in stage.steps if (step := plan.find_step(v))) for stage in plan.stages]


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# --- stages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (lambda be, x, y: 1 / (1 + be.exp(-1 * x)), ["mul exp add div"]),
        (lambda be, x, y: be.sum(be.square(x - y), axis=1), ["sub sqr sum"]),
        (lambda be, x, y: be.sum(x, axis=0) + be.max(x, axis=1), ["sum max", "add"]),
        (lambda be, x, y: be.exp(x - be.max(x, axis=0)) * 2, ["max", "sub exp mul"]),
        (lambda be, x, y: x.T[:: back(be)] + be.reshape(y, (4, 4)), ["add"]),
        (lambda be, x, y: (x + y).T * 2, ["add", "mul"]),
        (lambda be, x, y: be.dot(x, y) * 2 + 1, ["dot", "mul add"]),
        (lambda be, x, y: be.tanh(be.dot(x * 2, y)), ["mul", "dot", "tanh"]),
        (lambda be, x, y: be.take(x, [1, 2], axis=0) * 2, ["take", "mul"]),
        (lambda be, x, y: be.rand(4, 4) + be.rand(4, 4), ["rand", "rand", "add"]),
        (lambda be, x, y: x + be.zeros((4, 4), dtype="float64"), ["cast add"]),
        (lambda be, x, y: be.sum(be.astype(x, "float64") * 2, axis=0), ["cast mul sum"]),
        (lambda be, x, y: be.reshape(x * 2, 2, 8) * 2, ["mul", "mul"]),
        (lambda be, x, y: be.reshape(x.T, 2, 8) * 2, ["cast", "mul"]),
    ],
)
def test_a_stage_is_an_elementwise_region_with_its_reductions_or_one_call(be, formula, expected):
    if be.name in ("gpu", "simulated") and expected == ["max", "sub exp mul"]:
        expected = ["max sub exp mul"]  # a GPU keeps a row in registers, and reads it once
    assert stages(be.plan(formula(be, be.ones((4, 4)), be.ones((4, 4))))) == expected


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (3, 1), (3, 4)])
def test_a_cast_is_spread_over_a_larger_target_in_one_step(be, shape):
    t, x = be.zeros((3, 4)), be.array(np.arange(math.prod(shape)).reshape(shape), dtype="int32")
    (step,) = be.plan(be.astype(x, "float32"), out=t).steps
    assert step.shape == (3, 4)
    t[:] = be.astype(x, "float32")
    np.testing.assert_array_equal(t.get(), np.broadcast_to(np.arange(math.prod(shape)).reshape(shape), (3, 4)))
    small = be.zeros(shape)
    be.assign([t, small], [tree := be.astype(x, "float32"), tree])
    np.testing.assert_array_equal(small.get(), np.arange(math.prod(shape)).reshape(shape))


def test_steps_that_need_nothing_of_each_other_share_one_pass(be):
    x = be.ones((8, 8))
    assert stages(be.plan(be.sum(x, axis=0), be.max(x * 2, axis=0), x + 1)) == ["sum mul max add"]


def test_a_plan_prints_stages_bytes_temporaries_and_peak(be):
    x = be.ones((1000, 500), name="x")
    assert str(be.plan(1 / (1 + be.exp(-1 * x)))).splitlines() == [
        "plan: 4 ops, 1 stage, 0 temporary buffers",
        "  1. fused (1000, 500): mul exp add div; reads 2 MB, writes 2 MB",
        "  arena 0 B; peak 4 MB",
    ]
    y = be.ones((500, 500))
    assert str(be.plan(be.dot(y, y) + y.T, out=y)).splitlines()[:-1] == [
        "plan: 2 ops, 2 stages, 2 temporary buffers",
        "  1. call (500, 500): dot; reads 1 MB, writes 1 MB",
        "  2. fused (500, 500): add; reads 2 MB, writes 1 MB",
        "  3. copy into 1 target",
        "  operand a tensor (500, 500) in columns",
    ]


def test_temporaries_share_the_arena_when_their_lives_do_not_meet(be):
    x = be.ones((64, 64))
    chain, bytes_of_one = x, 64 * 64 * 4
    for n in range(1, 8):
        chain = be.dot(chain, x)
        assert be.plan(chain).arena_bytes == bytes_of_one * min(n - 1, 2)


def test_a_target_is_written_at_once_unless_that_spoils_an_operand(be):
    x, bytes_of_one = be.ones((64, 64)), 64 * 64 * 4
    flipped = x[:: back(be)] * x
    for tree, arena in [
        *((x + 1, 0), (be.exp(x) * x, 0), (x.T + 1, bytes_of_one)),
        (flipped, bytes_of_one if be.runtime.supports_negative_strides else 0),
    ]:
        assert be.plan(tree, out=x).arena_bytes == arena
        assert be.plan(tree).arena_bytes == 0


# --- work is shared ------------------------------------------------------------------------------------------------


def test_equal_sub_trees_are_evaluated_once(be, counted):
    method, runs = counted
    x, y = be.ones((3, 3)), be.ones((3, 3))
    out = be.empty((3, 3))
    out[:] = method(be, x + y) * 2 + method(be, x + y)
    assert len(runs) == 1
    assert be.plan((x + y) * (x + y)).num_distinct_ops == 2
    np.testing.assert_array_equal(out.get(), np.full((3, 3), 6))


def test_targets_of_one_plan_share_their_work(be, counted, made):
    method, runs = counted
    x = be.array(normal(3, 4))
    a, b = be.empty((3, 4)), be.empty((3, 1))
    be.assign([a, b], [method(be, x) + 1, be.sum(method(be, x), axis=1)])
    assert len(runs) == len(made) == 1
    np.testing.assert_allclose(a.get(), normal(3, 4) + 1, rtol=1e-6)
    np.testing.assert_allclose(b.get(), normal(3, 4).sum(1, keepdims=True), rtol=1e-5)


def batch_norm(be, x, gamma, beta):
    return (x - be.mean(x, axis=1)) / be.sqrt(be.var(x, axis=1) + 1e-3) * gamma + beta


def test_the_gradients_of_one_tree_are_one_plan(be, counted, made):
    method, runs = counted
    x, gamma, beta = (be.array(normal(5, n)) for n in (8, 1, 1))
    grads = [be.zeros_like(t) for t in (x, gamma, beta)]
    Autodiff(batch_norm(be, method(be, x), gamma, beta), be).back_prop_grad([x, gamma, beta], grads)
    assert len(made) == len(runs) == 1


def test_one_random_node_is_one_draw_and_two_nodes_are_two(be):
    u = be.rand(50, 50)
    a, b, c = (be.empty((50, 50)) for _ in range(3))
    be.assign([a, b, c], [u + 0, u * 1, be.rand(50, 50)])
    assert (a.get() == b.get()).all()
    assert (a.get() != c.get()).any()
    b[:] = u
    assert (a.get() != b.get()).any()


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
    be.structures.capacity = 64 * optree_structure.STRUCTURE_BYTES
    monkeypatch.setattr(optree_inference, "MAX_CACHED_FLOATS", 64)
    x = be.ones((2, 2))
    early, tree = x * 2 + 3, x
    for n in range(500):
        tree = tree + 1.5 if n % 3 else tree * (n / 7)
        assert len(be.structures) <= 64
        assert len(optree_inference._float_cache) <= 66
    again = x * 2 + 3
    assert again.asnumpyarray().tolist() == early.asnumpyarray().tolist() == [[5, 5], [5, 5]]


def test_tensors_of_many_shapes_leave_nothing_behind(be):
    be.infos.capacity = 64 * optree_structure.STRUCTURE_BYTES
    x = be.ones((3000, 1))

    def infos() -> int:
        gc.collect()
        return sum(type(found) is optree_structure.Info for found in gc.get_objects())

    before = infos()
    for n in range(1, 3000):
        x[:n]
    assert infos() - before < 100


# --- aliasing: all values first, then all writes -------------------------------------------------------------------

ALIASING: dict[str, tuple[Callable[[Any, Any], None], Callable[[Array], Array]]] = {
    "x[:] = x.T": (lambda be, x: set_(x, slice(None), x.T), lambda a: a.T),
    "x[1:] = x[:-1]": (lambda be, x: set_(x, slice(1, None), x[:-1]), lambda a: np.vstack([a[:1], a[:-1]])),
    "x[:-1] = x[1:]": (lambda be, x: set_(x, slice(-1), x[1:]), lambda a: np.vstack([a[1:], a[-1:]])),
    "x[:] = x[::-1]": (lambda be, x: set_(x, slice(None), x[::-1]), lambda a: a[::-1]),
    "x[::2] = x[::-2]": (
        lambda be, x: set_(x, slice(None, None, 2), x[::-2]),
        lambda a: a[[i if i % 2 else len(a) - 1 - i for i in range(len(a))]],
    ),
    "x[:-1] = 3 * x[:0:-1]": (
        lambda be, x: set_(x, slice(-1), 2 * x[:0:-1] + x[:0:-1]),  # what is read again is not written over meanwhile
        lambda a: np.vstack([3 * a[:0:-1], a[-1:]]),
    ),
    "x[1:] = 3 * x[-2::-1]": (
        lambda be, x: set_(x, slice(1, None), 2 * x[-2::-1] + x[-2::-1]),
        lambda a: np.vstack([a[:1], 3 * a[-2::-1]]),
    ),
    "x[-2:] = 3 * x[-2::-1][:2]": (
        lambda be, x: set_(x, slice(-2, None), 2 * x[-2::-1][:2] + x[-2::-1][:2]),
        lambda a: np.vstack([a[:-2], 3 * a[-2::-1][:2]]),
    ),
    "x[:] = x + x.T": (lambda be, x: set_(x, slice(None), x + x.T), lambda a: a + a.T),
    "x[:] = x - x[0]": (lambda be, x: set_(x, slice(None), x - x[0]), lambda a: a - a[:1]),
    "x[0] = sum of all rows": (lambda be, x: set_(x, 0, be.sum(x, axis=0)), lambda a: np.vstack([a.sum(0), a[1:]])),
    "x[:] = x - its largest": (lambda be, x: set_(x, slice(None), x - be.max(x)), lambda a: a - a.max()),
    "x[:] = dot(x, x)": (lambda be, x: set_(x, slice(None), be.dot(x, x)), lambda a: a @ a),
    "x[:] = x taken backwards": (
        lambda be, x: set_(x, slice(None), be.take(x, list(range(x.shape[0]))[::-1], 0)),
        lambda a: a[::-1],
    ),
    "x.T[1:] = 2 * x[:-1]": (
        lambda be, x: set_(x.T, slice(1, None), 2 * x[:-1]),
        lambda a: np.hstack([a[:, :1], 2 * a[:-1].T]),
    ),
    "the triangles change places": (
        lambda be, x: be.assign([x[0], x[1]], [x[1], x[0]]),
        lambda a: a[[1, 0, *range(2, len(a))]],
    ),
    "three change places": (
        lambda be, x: be.assign([x[0], x[1], x[2]], [x[1] * 1, x[2], x[0] + 0]),
        lambda a: a[[1, 2, 0, *range(3, len(a))]],
    ),
    "the later of two targets wins": (
        lambda be, x: be.assign([x[:3], x[2:]], [x[:3] + 1, x[2:] * 0]),
        lambda a: np.vstack([a[:2] + 1, a[2:] * 0]),
    ),
    "a whole and a part of it": (
        lambda be, x: be.assign([x, x[1:3]], [x[::-1] * 2, x[:2]]),
        lambda a: np.vstack([a[::-1][:1] * 2, a[:2], a[::-1][3:] * 2]),
    ),
    "one target twice": (lambda be, x: be.assign([x, x], [x + 1, x + 2]), lambda a: a + 2),
}


def set_(x: Any, index: Any, value: Any) -> None:
    x[index] = value


@pytest.mark.parametrize("n", [4, 6, 11])
@pytest.mark.parametrize("statement", ALIASING)
def test_values_are_computed_before_anything_is_written(runner, statement, n):
    run, expected = ALIASING[statement]
    values = np.random.default_rng(0).integers(-5, 6, (n, n)).astype(float)
    if refused(runner, lambda: run(runner, runner.array(values))):
        return
    for _ in range(2):
        x = runner.array(values)
        run(runner, x)
        np.testing.assert_array_equal(x.get(), expected(values))


def test_a_reshape_is_a_stage_exactly_where_numpy_copies(cpu, rng):
    """Views of views: a plan knows how they lie, so a reshape that is a view costs nothing."""
    stages = []
    for _ in range(300):
        shape = [int(n) for n in rng.choice([1, 2, 3, 4], 3)]
        a = rng.random(shape).astype(np.float32)
        tree, shown = cpu.sqrt(cpu.array(a)), (values := np.sqrt(a))
        for way in rng.choice(4, rng.integers(3)):
            axes = tuple(map(int, rng.permutation(tree.ndim)))
            steps = [int(rng.choice([1, 1, -1, 2])) for _ in axes]
            box = tuple(slice(None, None, step).indices(n) for n, step in zip(tree.shape, steps, strict=True))
            box = tuple((start, len(range(start, stop, step)), step) for start, stop, step in box)
            box = ((1, tree.shape[0] - 1, 1), *box[1:]) if tree.shape[0] > 1 else box
            wide = (2, *(3 if n == 1 else n for n in tree.shape))
            if way == 0:
                tree, shown = cpu.transpose(tree, axes), shown.transpose(axes)
            elif way == 1:
                tree, shown = cpu.build("slice", tree, index=box), shown[to_slices(box)]
            elif way == 2:
                tree, shown = cpu.broadcast_to(tree, wide), np.broadcast_to(shown, wide)
        sizes = [p for p in shown.shape for p in ((2, 2) if p == 4 and rng.random() < 0.5 else (p,))]
        at = int(rng.integers(1, len(sizes) + 1))
        to = [(shown.size // math.prod(sizes[:at]), *sizes[:at]), (*sizes, 1), (math.prod(sizes[:at]), *sizes[at:], 1)]
        to = tuple(map(int, to[rng.integers(3)]))
        plan = cpu.plan(root := cpu.sqrt(cpu.reshape(tree, to)))
        copies = not np.shares_memory(shown.reshape(to), values)
        assert [s.op.name for s in plan.steps].count("cast") == copies, (plan, tree, to)
        np.testing.assert_allclose(root.asnumpyarray(), np.sqrt(shown.reshape(to)), 1e-6)
        stages.append(copies)
    assert 30 < sum(stages) < 270


@pytest.mark.parametrize("size", [6, 40])
def test_a_view_of_a_temporary_shows_what_it_is_this_time(runner, size):
    x, out, whole = runner.zeros((size, 5)), runner.empty((5, size)), runner.empty((5, 5))
    for n in range(3):
        a = np.arange(size * 5.0).reshape(size, 5) - n
        x.set(a)
        out[:] = runner.reshape((x * 2).T, size, 5).T + runner.reshape(x * 3, 5, size)
        np.testing.assert_array_equal(out.get(), (2 * a).T.reshape(size, 5).T + (3 * a).reshape(5, size))
        out[:] = runner.reshape(runner.concat([x]).T, 5, size)
        np.testing.assert_array_equal(out.get(), a.T)
        out[:] = runner.broadcast_to(runner.sum(x, axis=0), x.shape).T * 1
        np.testing.assert_array_equal(out.get(), np.repeat(a.sum(0)[:, None], size, 1))
        whole[:] = runner.dot((x + 1).T, x[:: back(runner)] * 2)
        np.testing.assert_array_equal(whole.get(), (a + 1).T @ (a[:: back(runner)] * 2))


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (lambda be, x: be.sum(x, axis=2), lambda a: a.sum(2, keepdims=True)),
        (lambda be, x: be.max(x, axis=(0, 2)), lambda a: a.max((0, 2), keepdims=True)),
        (lambda be, x: be.reshape(be.sum(x, axis=2), 20, 1), lambda a: a.sum(2).reshape(20, 1)),
        (lambda be, x: be.min(x, axis=2, keepdims=False), lambda a: a.min(2)),
        (lambda be, x: be.take(x, [3, 0], axis=0), lambda a: a[[3, 0]]),
        (lambda be, x: x @ x.T, lambda a: a @ a.swapaxes(1, 2)),
        (lambda be, x: x * x + 1, lambda a: a * a + 1),
    ],
)
def test_a_target_with_gaps_gets_its_value_and_keeps_what_lies_between(runner, formula, expected):
    a = np.random.default_rng(0).integers(-3, 4, (4, 5, 6)).astype(float)
    value = expected(a)
    whole = np.full([2 * n for n in value.shape], 7.0)
    for view in (lambda t: t[tuple(slice(n) for n in value.shape)], lambda t: t[(slice(None, None, 2),) * value.ndim]):
        t, b = runner.array(whole), whole.copy()
        view(t)[:] = formula(runner, runner.array(a))
        view(b)[...] = value
        np.testing.assert_array_equal(t.get(), b)


def test_tensors_change_places(runner):
    x, y = runner.array(np.arange(20.0).reshape(4, 5)), runner.array(-np.arange(20.0).reshape(4, 5))
    for sign in (-1, 1):
        runner.assign([x, y], [y, x])
        np.testing.assert_array_equal(x.get(), sign * np.arange(20.0).reshape(4, 5))
        np.testing.assert_array_equal(y.get(), -sign * np.arange(20.0).reshape(4, 5))


def test_a_target_holds_one_temporary_until_the_last_stage_that_reads_it_and_only_then_another(runner):
    a = np.random.default_rng(0).standard_normal((5, 7))
    e = np.exp(a)
    share = e / e.sum(1, keepdims=True)
    x, out = runner.array(a), runner.zeros((5, 7))
    powers = runner.exp(x)
    shares = powers / runner.sum(powers, axis=1)
    tree = shares - runner.sum(powers * shares, axis=0)  # the stage that makes shares reads powers once more after it
    assert len(runner.plan(tree, out=out).held_in_targets) == 1
    out[:] = tree
    np.testing.assert_allclose(out.get(), share - (e * share).sum(0), 1e-4, 1e-6)
    tree = shares - runner.sum(shares, axis=0) + runner.max(shares * powers, axis=1)  # shares are read by two stages
    out[:] = tree
    np.testing.assert_allclose(out.get(), share - share.sum(0) + (share * e).max(1, keepdims=True), 1e-4, 1e-6)
    other = runner.zeros((5, 7))
    runner.assign([out, other], [shares, powers - runner.sum(shares, axis=0)])  # powers are read after out is written
    np.testing.assert_allclose(out.get(), share, 1e-4, 1e-6)
    np.testing.assert_allclose(other.get(), e - share.sum(0), 1e-4, 1e-6)


ELEMENTWISE = [op for op in OP_TABLE if op.kind == "elementwise"]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("op", ELEMENTWISE, ids=lambda op: op.name)
def test_a_strided_view_gives_the_same_bits_as_a_plain_tensor(cpu, op, dtype):
    if op.integers_only and dtype != "int32":
        return
    low, high = (0, 1) if op.sample_range[1] < 1 else (1, 9)
    plain = [cpu.array(np.random.default_rng(n).integers(low, high, (40, 1)), dtype=dtype) for n in range(op.arity)]
    rtol = 2e-7 if op.name == "atan2" else 0  # NumPy computes reversed results by another function

    def tree(x: Any, *others: Any) -> Any:
        y = others[0] if others else None
        attrs: dict[str, Any] = {"shift": {"value": True}, "cast": {"to": "float64"}}.get(op.name, {})
        return cpu.where(x, *others) if op.arity == 3 else cpu.build(op.name, x, y, **attrs)

    expected = tree(*plain).asnumpyarray()
    for width in (2, 3, 4, 5, 8, 16):
        for view in (lambda t: t[:, -1:], lambda t: t[::-1, :1]):
            strided = [view(cpu.zeros((40, width), dtype=dtype)) for _ in plain]
            for t, x in zip(strided, plain, strict=True):
                t.set(x.get())
            out = view(cpu.zeros((40, width), dtype=expected.dtype))
            out[:] = tree(*strided)
            np.testing.assert_allclose(out.get(), expected, rtol)
            strided[0][:] = tree(*strided)
            np.testing.assert_array_equal(strided[0].get(), expected.astype(dtype))


# --- the oracle of random trees: every op written out in NumPy, every value a new array in float64 -----------------


def along(x: Array, axis: tuple[int, ...], find: Callable[..., Array], keepdims: bool = True) -> Array:
    kept = [a for a in range(x.ndim) if a not in axis]
    flat = x.transpose(*kept, *axis).reshape(*(x.shape[a] for a in kept), math.prod(x.shape[a] for a in axis))
    found = find(flat, axis=-1)
    return found.reshape([1 if a in axis else x.shape[a] for a in range(x.ndim)] if keepdims else found.shape)


def places(index: Any) -> Any:
    return np.ix_(*[start + step * np.arange(count) for start, count, step in index])


def unslice(x: Array, index: Any, to: Any) -> Array:
    out = np.zeros(to)
    out[places(index)] = x
    return out


def scatter(x: Array, indices: Array, axis: int, size: int) -> Array:
    out = np.zeros((*x.shape[:axis], size, *x.shape[axis + 1 :]))
    for k, i in enumerate(indices.ravel().astype(int)):
        np.moveaxis(out, axis, 0)[i] += np.moveaxis(x, axis, 0)[k]
    return out


def onehot(labels: Array, axis: int, nclass: int) -> Array:
    out = np.eye(nclass)[labels.ravel().astype(int)]
    return out.T if axis == 0 else out


ORACLE: dict[str, Callable[..., Array]] = {
    "neg": lambda x: -x,
    "abs": lambda x: np.where(x < 0, -x, x),
    "sgn": lambda x: 1.0 * (x > 0) - (x < 0),
    "sqr": lambda x: x**2,
    "sqrt": lambda x: x**0.5,
    "exp2": lambda x: 2.0**x,
    "safelog": lambda x: np.log(np.where(x > 0, x, math.exp(-50))),
    "sig": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": lambda x: 1 - 2 / (np.exp(2 * x) + 1),
    "rint": np.rint,
    "finite": np.ones_like,
    "cast": lambda x, to: x,  # integers that every dtype can represent
    "stop_gradient": lambda x: x,
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "pow": lambda x, y: x**y,
    "maximum": lambda x, y: np.where(x > y, x, y),
    "minimum": lambda x, y: np.where(x < y, x, y),
    "shift": lambda x, y, value: x * (np.sign(y) * 2.0 ** np.rint(np.log2(np.abs(y))) if value else 2.0**y),
    "eq": lambda x, y: 1.0 * (x == y),
    "ne": lambda x, y: 1.0 * (x != y),
    "lt": lambda x, y: 1.0 * (x < y),
    "le": lambda x, y: 1.0 * (x <= y),
    "gt": lambda x, y: 1.0 * (x > y),
    "ge": lambda x, y: 1.0 * (x >= y),
    "where": lambda c, x, y: np.where(c != 0, x, y),
    "sum": lambda x, axis, keepdims=True: along(x, axis, np.sum, keepdims),
    "max": lambda x, axis, keepdims=True: along(x, axis, np.max, keepdims),
    "min": lambda x, axis, keepdims=True: along(x, axis, np.min, keepdims),
    "argmax": lambda x, axis, keepdims=True: along(x, axis, np.argmax, keepdims),
    "argmin": lambda x, axis, keepdims=True: along(x, axis, np.argmin, keepdims),
    "dot": lambda x, y: np.einsum("ij,jk->ik", x, y),
    "matmul": lambda x, y: np.einsum("...ij,...jk->...ik", x, y),
    "transpose": lambda x, axes: x.transpose(axes),
    "reshape": lambda x, to: x.reshape(to),
    "broadcast": lambda x, to: np.zeros(to) + x,
    "slice": lambda x, index: x[places(index)],
    "slice_backward": unslice,
    "concat": lambda *xs, axis: np.concatenate(xs, axis),
    "take": lambda x, indices, axis: np.take(x, indices.ravel().astype(int), axis),
    "scatter_add": scatter,
    "onehot": onehot,
}


def compute(tree: Any, arrays: dict[int, Array], done: dict[int, Array]) -> Array:
    """Return the value of a tree; ``mirror`` holds the values of tensors."""
    if isinstance(tree, int | float):
        return np.full((1, 1), tree, float)
    if not isinstance(tree, OpTreeNode):
        return arrays[id(tree)].astype(float) if id(tree) in arrays else tree.get().astype(float)
    if id(tree) not in done:
        value = ORACLE[tree.op](*[compute(x, arrays, done) for x in tree.operands], **tree.attrs)
        done[id(tree)] = value.reshape((*value.shape, 1, 1)[:2]) if value.ndim < 2 else value
    return done[id(tree)]


# --- random trees: elements are integers, small enough for float32 to be exact --------------------------------

SHAPES = [(4, 4), (5, 3), (6, 6), (1, 7), (3, 1), (2, 3, 4), (3, 3, 3), (12, 9), (2, 40)]
LARGEST = 400  # elements of a value
NUMBERS: list[Node] = [(2, 2), (-1, 1), (1, 1), (0, 0), (12, 12), (2.0, 2), (-3.0, 3), (-0.0, 0), (True, 1)]

UNARY: list[Callable[[Any, Any, float], Node]] = [
    lambda be, x, m: (-x, m),
    lambda be, x, m: (abs(x), m),
    lambda be, x, m: (be.sgn(x), 1),
    lambda be, x, m: (be.square(x), m * m),
    lambda be, x, m: (x**2, m * m),
    lambda be, x, m: (be.rint(x / 2), m),
    lambda be, x, m: (be.rint(4 * be.sig(x)), 4),
    lambda be, x, m: (be.rint(4 * be.tanh(be.clip(x, -50, 50))), 4),
    lambda be, x, m: (be.rint(be.safelog(x)), 50),
    lambda be, x, m: (be.rint(be.sqrt(abs(x))), m),
    lambda be, x, m: (be.exp2(be.clip(x, 0, 8)), 256),
    lambda be, x, m: (be.finite(x), 1),
    lambda be, x, m: (be.stop_gradient(x), m),
    lambda be, x, m: (be.astype(x, "int32"), m),
    lambda be, x, m: (be.astype(x, "float64"), m),
]
BINARY: list[Callable[[Any, Any, Any, float, float], Node]] = [
    lambda be, x, y, m, n: (x + y, m + n),
    lambda be, x, y, m, n: (x - y, m + n),
    lambda be, x, y, m, n: (y - x, m + n),
    lambda be, x, y, m, n: (x * y, m * n),
    lambda be, x, y, m, n: (be.maximum(x, y), max(m, n)),
    lambda be, x, y, m, n: (be.minimum(y, x), max(m, n)),
    lambda be, x, y, m, n: (be.shift(x, be.clip(y, -60, 60)), m * 64),
    lambda be, x, y, m, n: (be.shift(x, be.clip(y, 0, 6), value=False), m * 64),
    lambda be, x, y, m, n: (be.equal(x, y), 1),
    lambda be, x, y, m, n: (be.not_equal(y, x), 1),
    lambda be, x, y, m, n: (be.less(x, y), 1),
    lambda be, x, y, m, n: (be.less_equal(x, y), 1),
    lambda be, x, y, m, n: (be.greater(y, x), 1),
    lambda be, x, y, m, n: (be.greater_equal(x, y), 1),
    lambda be, x, y, m, n: (be.where(x > 0, y, x), max(m, n)),
    lambda be, x, y, m, n: (be.where(y, x, 1), max(m, 1)),
]
PLAIN = ["unary"] * 3 + ["binary"] * 6 + ["reduce", "flip"]
KINDS = PLAIN + ["reduce"] * 2 + ["view"] * 3 + ["dot", "join", "gather", "label", "argument"]


def tame(be: Backend, node: Node, limit: float = 2000) -> Node:
    """Return a node whose elements are no larger than a limit."""
    x, m = node
    return (x, m) if m <= limit else (be.clip(x, -limit, limit), limit)


def fit(r: random.Random, be: Backend, node: Node, shape: tuple[int, ...]) -> Node:
    """Return the node, changed until it stretches to a shape."""
    x, m = node
    if isinstance(x, int | float):
        return node
    if math.prod(x.shape) == math.prod(shape) and r.random() < 0.5:
        return be.reshape(x, shape), m
    while len(x.shape) > len(shape):
        x, m = tame(be, (x, m))
        x, m = be.reshape(be.sum(x, axis=0), x.shape[1:]), m * x.shape[0]
    for axis, (n, size) in enumerate(zip(x.shape[::-1], shape[::-1], strict=False)):
        if n not in (1, size):
            x, m = tame(be, (x, m))
            x, m = (be.sum, be.max)[n > 0 and r.random() < 0.5](x, axis=-1 - axis), m * max(1, n)
    return x, m


def some_axes(r: random.Random, ndim: int) -> Any:
    return r.choice([None, r.randrange(ndim), r.randrange(-ndim, 0), tuple(r.sample(range(ndim), r.randint(1, ndim)))])


def some_box(r: random.Random, be: Backend, shape: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
    """Return (start, count, step) for each axis, now and then of nothing."""
    box = []
    for n in shape:
        step = r.choice([1, 1, 1, 2, 3, *[back(be), back(be), 2 * back(be)]])
        most = -(-n // abs(step))
        count = most if r.random() < 0.4 else r.randint(r.random() > 0.03, most) if most else 0
        first = r.randint(0, n - 1 - (count - 1) * abs(step)) if count else 0
        box.append((first if step > 0 else n - 1 - first, count, step) if count else (0, 0, 1))
    return tuple(box)


def slices(box: tuple[tuple[int, int, int], ...]) -> tuple[slice, ...]:
    ends = [start + count * step for start, count, step in box]
    return tuple(slice(s, e if e >= 0 else None, step) for (s, _, step), e in zip(box, ends, strict=True))


def some_view(r: random.Random, t: Any, a: Array, margin: int | None) -> tuple[Any, Array]:
    """Return a random view of a tensor, and the same view of the array that mirrors it.

    With a margin, all views of a tensor have one shape: some of its rows, all but these, forwards or backwards.
    """
    if margin is not None:
        step, n = back(t.backend), max(1, len(a) - margin)
        start = r.randint(0, len(a) - n)
        t, a = t[start : start + n], a[start : start + n]
        return r.choice([(t, a), (t, a), (t[::step], a[::step]), (t[:, ::step], a[:, ::step])])
    for _ in range(r.choice([0, 1, 1, 2, 3])):
        kind = r.choice(["box", "box", "T", "reshape", "int"])
        if kind == "box":
            box = slices(some_box(r, t.backend, a.shape))
            t, a = t[box], a[box]
        elif kind == "T":
            t, a = t.T, a.swapaxes(-1, -2)
        elif kind == "reshape" and a.flags.c_contiguous and a.size:
            to = r.choice([(-1, 1), (1, -1), a.shape[::-1], (1, *a.shape), (a.shape[0], -1)])
            t, a = t.reshape(to), a.reshape(to)
        elif kind == "int" and a.size:
            axis = r.randrange(a.ndim)
            i = r.randrange(-a.shape[axis], a.shape[axis])
            t, a = t[(*[slice(None)] * axis, i)], np.moveaxis(np.moveaxis(a, axis, 0)[i : i + 1 or None], 0, axis)
            a = a.squeeze(axis) if a.ndim > 2 else a
    return t, a


def grow(r: random.Random, be: Backend, known: list[Node], kinds: list[str]) -> Node:
    """Return one random node over those that are known."""
    x, m = tame(be, r.choice(known))
    kind, shape, axis = r.choice(kinds), x.shape, r.randrange(len(x.shape))
    size, n = math.prod(shape), shape[axis]
    if kind == "unary":
        return r.choice(UNARY)(be, x, m)
    if kind == "binary":
        y, limit = tame(be, fit(r, be, r.choice(known + NUMBERS), shape))
        return r.choice(BINARY)(be, x, y, m, limit)
    if kind == "flip":
        if shape[-1] == shape[-2] and r.random() < 0.5:
            return be.transpose(x), m
        if not be.runtime.supports_negative_strides:
            return be.take(x, list(range(n))[::-1], axis), m
        box = tuple((size - 1, size, -1) if i == axis and size else (0, size, 1) for i, size in enumerate(shape))
        return be.build("slice", x, index=box), m
    if kind == "reduce":
        axes, keepdims = some_axes(r, len(shape)), r.random() < 0.8
        if not size or r.random() < 0.5:
            return be.sum(x, axis=axes, keepdims=keepdims), m * max(1, size)
        return r.choice([be.max, be.min])(x, axis=axes, keepdims=keepdims), m
    if kind == "view":
        box = some_box(r, be, shape)
        part = be.build("slice", x, index=box)
        choices = [part, part, be.build("slice_backward", part, index=box, to=shape)]
        choices += [be.transpose(x, r.sample(range(len(shape)), len(shape))), x.T]
        return r.choice(choices + [be.reshape(x, to) for to in ((-1, 1), shape[::-1], (1, *shape)) if size]), m
    if kind == "dot":
        (x, m), (y, limit) = tame(be, (x, m), 60), tame(be, r.choice(known), 60)
        partners = [z for z in (y, y.T) if len(z.shape) == len(shape) == 2 and z.shape[0] == shape[1]] or [x.T]
        return x @ partners[0], m * max(limit, m) * max(1, shape[-1])
    if kind == "join":
        y, limit = fit(r, be, r.choice(known), shape)
        y = be.broadcast_to(y, shape)
        return r.choice([be.concat, be.stack])(r.choice([[x, y], [y, x, x], [x]]), axis=axis), max(m, limit)
    if kind == "argument" and size:
        return r.choice([be.argmax, be.argmin])(x, axis=some_axes(r, len(shape)), keepdims=r.random() < 0.8), size
    whole = [y for y, _ in known if y.info.dtype in ("int32", "int64") and 0 < math.prod(y.shape) < 40]
    if kind == "label" and whole:
        return be.onehot(be.minimum(abs(r.choice(whole)), 3), axis=r.choice([0, 1]), nclass=4), 1
    if kind == "gather" and size:
        if r.random() < 0.4:
            at = be.array([r.randrange(-n, n) for _ in range(n)], dtype="int32")
            return be.build("scatter_add", x, at, axis=axis, size=n + 1), m * n
        given = [r.randrange(-n, n) for _ in range(r.randint(1, 4))]
        return be.take(x, be.clip(r.choice(whole), -n, n - 1) if whole and r.random() < 0.6 else given, axis), m
    return x + 1, m + 1


def check_random_trees(r: random.Random, be: Backend) -> None:
    """Run random trees of random views of one or two tensors into views of the same; compare every element of both."""
    shape, alike = r.choice(SHAPES), r.random() < 0.4
    margin = r.choice([0, 1, 1, 2, 3]) if alike else None
    shapes = [shape, shape if alike else r.choice([shape, r.choice(SHAPES)])]
    arrays = [np.zeros(s, r.choice(["float32", "float32", "float64", "int32"])) for s in shapes[: r.randint(1, 2)]]
    roots = [be.array(a, dtype=a.dtype) for a in arrays]
    mirror: dict[int, Array] = {}
    views = []  # kept, as their ids stand in the mirror

    def view(k: int | None = None) -> Any:
        k = r.randrange(len(roots)) if k is None else k
        t, a = some_view(r, roots[k], arrays[k], margin)
        assert t.shape == a.shape
        mirror[id(t)] = a
        views.append(t)
        return t

    known: list[Node] = [(view(), 3) for _ in range(r.randint(1, 4))]
    for _ in range(r.randint(1, 14)):
        node = grow(r, be, known, PLAIN if alike else KINDS)
        if math.prod(node[0].shape) <= LARGEST:
            known.append(node)
    if r.random() < 0.4:  # a target that is no operand
        arrays.append(np.zeros(r.choice(known)[0].shape, r.choice(["float32", "float32", "int32"])))
        roots.append(be.array(arrays[-1], dtype=arrays[-1].dtype))
    targets = [view(-1 if r.random() < 0.6 else None) for _ in range(r.choice([1, 1, 2, 3]))]
    values = [fit(r, be, r.choice(known[-4:]), t.shape)[0] for t in targets]
    for _ in range(2):
        for t, a in zip(roots, arrays, strict=True):
            a[...] = np.reshape([r.randint(-3, 3) for _ in range(a.size)], a.shape)
            t.set(a)
        done: dict[int, Array] = {}
        with np.errstate(divide="ignore", over="ignore"):
            expected = [compute(x, mirror, done) for x in values]
        if len(targets) == 1:
            targets[0][:] = values[0]
        else:
            be.assign(targets, values)
        for t, x in zip(targets, expected, strict=True):
            mirror[id(t)][...] = x
        for t, a in zip(roots, arrays, strict=True):
            np.testing.assert_array_equal(t.get(), a)


def test_the_oracle_knows_the_ops_of_the_table():
    inexact = {"exp", "log", "log2", "rand", "randn", "assign", "pair"}
    inexact |= {"log10", "expm1", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh"}
    inexact |= {"acosh", "atanh", "erf", "hypot", "atan2", "logaddexp"}
    untested = {"isnan", "isinf", "signbit", "copysign", "nextafter", "floor", "ceil", "trunc"}
    untested |= {"floor_divide", "remainder"}
    untested |= {f"logical_{name}" for name in ("and", "or", "xor", "not")}
    untested |= {f"bitwise_{name}" for name in ("and", "or", "xor", "invert", "left_shift", "right_shift")}
    untested |= {op.name for op in OP_TABLE if op.compute_dtypes}  # linear algebra
    untested |= {"prod", "cumulative_sum", "cumulative_prod", "sort", "argsort", "searchsorted", "tril", "triu"}
    untested |= {"take_along_axis", "scatter_add_along_axis"}
    assert {op.name for op in OP_TABLE} - set(ORACLE) == inexact | untested


def test_random_trees_over_views_that_share_memory_give_what_copies_give(runner):
    for seed in range(500):
        check_random_trees(random.Random(seed), runner)


@pytest.mark.slow
def test_many_random_trees_over_views_that_share_memory_give_what_copies_give(runner):
    for seed in range(500, 2000):
        check_random_trees(random.Random(seed), runner)


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
        for width in range(20, 50):  # a plan each, which no thread has run before
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
        thread_pool.parallel_for(work, 1000)
    assert sorted(begun) == [0, 1, 2]


def test_an_error_in_one_helper_is_raised_when_the_others_have_ended(threads, monkeypatch):
    threads(3)
    failed, slow = Future[None](), Future[None]()
    helpers = iter([failed, slow])
    monkeypatch.setattr(thread_pool, "_pool", SimpleNamespace(submit=lambda *_: next(helpers)))
    failed.set_exception(ValueError("a bad block"))
    threading.Timer(0.05, slow.set_result, [None]).start()
    with pytest.raises(ValueError, match="a bad block"):
        thread_pool.parallel_for(lambda numbers: None, 3)
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


# --- memory --------------------------------------------------------------------------------------------------------


def test_buffers_are_found_where_there_are_some():
    assert max(buffers(lambda: np.exp(np.zeros(1000) + 1))) == 8000
    assert buffers(lambda: np.zeros(10)) == []


def gradient(be, x, w):
    tree = be.tanh(be.dot(w, x)) * x
    ad, dx, dw = Autodiff(tree, be), be.empty_like(x), be.empty_like(w)
    return lambda: ad.back_prop_grad([x, w], [dx, dw])


def into(be, tree):
    out = be.empty(tree.shape)
    return lambda: out.__setitem__(slice(None), tree)


@pytest.mark.parametrize(
    "prepare",
    [
        lambda be, x, w: into(be, 1 / (1 + be.exp(-1 * x))),
        lambda be, x, w: into(be, be.softmax(x, axis=0)),
        lambda be, x, w: into(be, be.softmax(x, axis=1)),
        lambda be, x, w: into(be, be.transpose(x) * w + (x + w).T),
        lambda be, x, w: into(be, batch_norm(be, x, w[:, :1], w[:, 1:2])),
        lambda be, x, w: into(be, be.dot(w, be.dot(w.T, be.dot(w, x) + 1)) * 2),
        lambda be, x, w: into(be, be.take(be.concat([x, x.T]), [3, 4, 5], axis=1) * 2),
        lambda be, x, w: into(x.backend, be.where(x > w, be.maximum(x, 0.5), be.shift(x, w)) + x.T),
        lambda be, x, w: into(be, be.reshape(be.sum(x.T + 1, axis=1), (10, -1)).T * 3),
        gradient,
    ],
)
@pytest.mark.parametrize("n", [30, 1000])
def test_the_second_run_and_those_after_it_allocate_nothing(cpu, threads, prepare, n):
    threads(1)
    run = prepare(cpu, cpu.array(normal(n, n)), cpu.array(normal(n, n, seed=1)))
    run()
    assert buffers(run) == buffers(run) == []


def test_a_new_tree_of_a_known_structure_allocates_nothing(cpu, threads):
    threads(1)
    x, w, out = (cpu.array(normal(300, 900)) for _ in range(3))

    def step() -> None:
        out[:] = cpu.tanh(x * w + 0.25) - cpu.mean(x, axis=0)

    step()
    assert buffers(step) == []


# --- large trees ---------------------------------------------------------------------------------------------------


def test_a_thousand_tensors_are_summed(be):
    tensors = [be.array([[float(n)]]) for n in range(1000)]
    total = tensors[0]
    for t in tensors[1:]:
        total = total + t
    for _ in range(2):
        assert total.asnumpyarray().item() == 999 * 500
    tensors[7][:] = 1007.0
    assert total.asnumpyarray().item() == 999 * 500 + 1000


def test_wide_trees_meet_their_targets_memory(be):
    x = be.array(np.arange(300.0).reshape(300, 1))
    total = x[:: back(be)]
    for n in range(300):
        total = total + x[n]
    x[:] = total
    np.testing.assert_array_equal(x.get().ravel(), np.arange(300.0)[:: back(be)] + 299 * 150)


@pytest.mark.parametrize("nodes", DEEP)
@pytest.mark.parametrize("name", ["cpu", "strict"])  # one of each executor
def test_a_tree_may_be_deeper_than_the_stack(name, nodes):
    be = Backend(name)
    x = tree = be.array([[0.0, 1.0]], dtype="float64")
    for _ in range(nodes // 2):
        tree = (tree + x) * 1
    assert tree.asnumpyarray().tolist() == [[0, nodes // 2 + 1]]


def test_a_shared_part_is_evaluated_once_however_often_it_is_used(be):
    tree = be.array([[1.0]], dtype="float64")
    for _ in range(100):
        tree = tree + tree
    assert be.plan(tree).num_distinct_ops == 100
    assert tree.asnumpyarray().item() == 2.0**100


# --- a number beside a tensor ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
@pytest.mark.parametrize("shape", [(1, 1), (7, 30), (300, 500)])
@pytest.mark.parametrize("number", [0, -3, 0.1, float("inf")])
def test_the_larger_and_the_smaller_of_a_tensor_and_a_number(cpu, dtype, shape, number):
    if dtype == "int32" and isinstance(number, float):
        number = 3
    a = (np.random.default_rng(0).standard_normal(shape) * 4).astype(dtype)
    if dtype != "int32":
        a.flat[:: max(1, a.size // 3)] = np.nan
    x, out = cpu.array(a, dtype=dtype), cpu.empty(shape, dtype=dtype)
    for tree, expected in (
        (cpu.maximum(x, number), np.where(np.isnan(a) | (a > number), a, a.dtype.type(number))),
        (cpu.minimum(number, x), np.where(np.isnan(a) | (a < number), a, a.dtype.type(number))),
    ):
        out[:] = tree
        np.testing.assert_array_equal(out.get(), expected)
    x[:, ::-1][:] = cpu.maximum(x[:, ::-1], number) * 2 + cpu.minimum(1, x[:, ::-1])  # in place, two in one region
    with np.errstate(all="ignore"):
        expected = np.maximum(a, a.dtype.type(number)) * a.dtype.type(2) + np.minimum(a, a.dtype.type(1))
    np.testing.assert_allclose(x.get(), expected, rtol=1e-3)


def test_the_structure_of_a_deep_tree_does_not_hold_those_below_it(be):
    def count() -> int:
        be.structures.clear()
        gc.collect()
        return sum(type(x) is optree_structure.Info for x in gc.get_objects())

    x = tree = be.ones((2, 2))
    before = count()
    for _ in range(50):
        tree = tree + x
    top = tree[0]
    del tree
    assert top.shape == (2, 2)
    assert count() == before + 1
