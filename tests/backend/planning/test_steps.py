"""The steps of plans and their fusion into stages: what is shared, and what is one pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from helpers.plans import batch_norm, normal, stages
from helpers.runtimes import back

from neonlite import Autodiff, Backend
from neonlite.ops import OPS


@pytest.fixture
def counted() -> Iterator[tuple[Callable[..., Any], list[int]]]:
    """Return a backend method ``x -> x``, and the list to which each run of it appends."""
    runs: list[int] = []

    def run(xp: Any, x: Any) -> Any:
        runs.append(1)
        return x

    yield Backend.define_op("counted", run, lambda be, dz, z, x: (dz,)), runs
    del OPS["counted"], Backend.counted  # type: ignore[attr-defined]


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
    assert str(be.plan(be.dot(y, y) + y[:, :1], out=y)).splitlines()[:-1] == [
        f"plan: 2 ops, 2 stages, {'1 temporary buffer' if be.name in ('cpu', 'mkl') else '2 temporary buffers'}",
        "  1. call (500, 500): dot; reads 1 MB, writes 1 MB",
        "  2. fused (500, 500): add; reads 1 MB, writes 1 MB",
        "  3. copy into 1 target",
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
