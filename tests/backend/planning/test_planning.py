"""Plans and their executors, compared with NumPy oracles that copy everything and share no code with them.

Tests ``neonlite/backend/planning/__init__.py``: aliasing, memory, large trees and scalars.
"""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.allocations import buffers
from helpers.parametrize import DEEP, each
from helpers.plans import Array, batch_norm, normal
from helpers.runtimes import back, refused

from neonlite import Autodiff, Backend, tree_structure
from neonlite.backend.planning import assign_offsets
from neonlite.ops import OP_TABLE
from neonlite.ops.functions import find_view_strides, to_slices

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


@each("n, statement", itertools.product([4, 6, 11], ALIASING))
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


def test_the_strides_of_a_reshaped_view_are_those_of_numpy(rng):
    found = []
    for _ in range(500):
        sizes = [int(n) for n in rng.choice([1, 2, 3, 4], 4)]
        x = np.arange(math.prod(sizes)).reshape(sizes).transpose(rng.permutation(4))[:: rng.choice([1, 2])]
        cut = int(rng.integers(1, 4))
        to = [(*x.shape[:cut], math.prod(x.shape[cut:])), (math.prod(x.shape[:cut]), *x.shape[cut:]), (1, *x.shape, 1)]
        to += [tuple(p for n in x.shape for p in ((2, n // 2) if n % 2 == 0 else (n,))), x.shape[::-1]]
        shape = to[rng.integers(len(to))]
        strides, y = find_view_strides(tuple(n // x.itemsize for n in x.strides), x.shape, shape), x.reshape(shape)
        assert (strides is not None) == np.shares_memory(x, y)
        if strides is not None:
            pairs = zip(strides, y.strides, shape, strict=True)
            assert all(a * x.itemsize == b or n == 1 for a, b, n in pairs), (x.shape, x.strides, shape)
        found.append(strides is not None)
    assert 100 < sum(found) < 450


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


# --- temporaries in the memory of operands that are not read again --------------------------------------------------


def test_a_temporary_overwrites_an_operand_that_no_later_stage_reads(cpu):
    x = cpu.array(np.random.default_rng(0).standard_normal((64, 64)))
    y = cpu.dot(x, x)
    tree = cpu.dot(y + 1, x)
    plan = cpu.plan(tree)
    assert [plan.step_of(v).op.name for v in plan.in_place] == ["add"]
    assert plan.arena_bytes == x.nbytes
    assert not cpu.plan(tree * y).in_place  # y is read again
    assert not cpu.plan(cpu.dot(y + y.T, x)).in_place  # y is read in another order
    assert not cpu.plan(cpu.dot(cpu.astype(y, "float64"), cpu.astype(x, "float64"))).in_place


def random_program(be: Any, xp: Any, leaves: list[Any], rng: np.random.Generator) -> list[Any]:
    """Return some values of a random program of products, elementwise steps and reductions of (n, n) matrices."""
    values = list(leaves)
    for _ in range(14):
        kind, (i, j) = rng.integers(8), rng.integers(max(0, len(values) - 4), len(values), 2)
        x, y = values[i], values[j]
        if kind < 2:
            values.append(be.dot(x, y) * 0.1)
        elif kind == 2:
            values.append(xp.exp(-(x * x)) - y)
        elif kind == 3:
            values.append(x - be.sum(x * y, axis=0, keepdims=True) * 0.01)
        elif kind == 4:
            values.append(xp.maximum(x, 0) * be.max(y, axis=1, keepdims=True))
        elif kind == 5:
            values.append(x + y.T)
        elif kind == 6:
            values.append((x > y) * x + 0.5 * be.reshape(be.reshape(y, (-1, 5)), y.shape))
        else:
            values.append(xp.tanh(x) - y)
    return [values[-1], *(values[int(n)] for n in rng.integers(2, len(values), 2))]


@pytest.mark.parametrize("n", [10, 600])
def test_random_programs_whose_temporaries_overwrite_operands_have_numpys_values(cpu, n):
    found = 0
    for seed in range(150 if n == 10 else 8):
        arrays = [np.random.default_rng(seed + k).standard_normal((n, n)) / 3 for k in range(2)]
        leaves = [cpu.array(a, dtype="float64") for a in arrays]
        trees = [x * 1 for x in random_program(cpu, cpu, leaves, np.random.default_rng(seed))]
        found += len(cpu.plan(*trees).in_place)
        expected = random_program(np, np, arrays, np.random.default_rng(seed))
        for x, y in zip(cpu.evaluate(trees), expected, strict=True):
            np.testing.assert_allclose(x.get(), y, rtol=1e-7, atol=1e-9 * max(1.0, np.abs(y).max()))
    assert found > 5


ELEMENTWISE = [op for op in OP_TABLE if op.kind == "elementwise"]


@each("dtype, op", itertools.product(["float32", "float64", "int32"], ELEMENTWISE))
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


# --- memory --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_a_temporary_gets_the_first_offset_that_is_free_while_it_lives(seed):
    rng = np.random.default_rng(seed)
    num_stages, start = int(rng.integers(1, 40)), 64 * int(rng.integers(0, 3))
    first = [int(rng.integers(num_stages)) for _ in range(rng.integers(1, 40))]
    last = [int(rng.integers(f, min(num_stages, f + (3 if seed % 2 else 40)) + 1)) for f in first]
    sizes = [64 * int(rng.choice([1, 2, 3, 16])) for _ in first]
    plan = SimpleNamespace(stages=[None] * num_stages, arena_start=start, in_place={}, parts={}, held_in_targets={})
    plan.stage_of = dict(enumerate(first))
    plan.temporaries, plan.step_of = dict(enumerate(last)), lambda v: SimpleNamespace(nbytes=sizes[v])
    expected: dict[int, int] = {}
    for v in sorted(sorted(range(len(first)), key=first.__getitem__), key=sizes.__getitem__, reverse=True):
        beside = [u for u in expected if first[u] <= last[v] and first[v] <= last[u]]
        expected[v] = next(
            at
            for at in itertools.count(start, 64)
            if all(at + sizes[v] <= expected[u] or expected[u] + sizes[u] <= at for u in beside)
        )
    assert assign_offsets(plan, {}) == (expected, max(expected[v] + sizes[v] for v in expected))


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


@each(
    "dtype, shape, number",
    itertools.product(
        ["float16", "float32", "float64", "int32"], [(1, 1), (7, 30), (300, 500)], [0, -3, 0.1, float("inf")]
    ),
)
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
        return sum(type(x) is tree_structure.Info for x in gc.get_objects())

    x = tree = be.ones((2, 2))
    before = count()
    for _ in range(50):
        tree = tree + x
    top = tree[0]
    del tree
    assert top.shape == (2, 2)
    assert count() == before + 1


def test_a_reshaped_value_is_written_to_its_target_without_a_copy(be: Backend) -> None:
    values = np.arange(24.0, dtype=np.float32).reshape(4, 6)
    x, out = be.array(values), be.empty((2, 12))
    tree = be.reshape(be.reshape(be.sqrt(x), (3, 8)), out.shape)
    plan = be.plan(tree, out=out)
    assert (len(plan.stages), plan.arena_bytes, plan.is_direct) == (1, 0, [True])
    out[:] = tree
    np.testing.assert_allclose(out.get(), np.sqrt(values).reshape(2, 12), rtol=1e-6)
    y = x.reshape((2, 12))
    y[:] = be.reshape(x.T * 1, (2, 12))  # the target has the memory of an operand
    np.testing.assert_array_equal(y.get(), values.T.reshape(2, 12))
    y[:] = be.reshape(2 * x, (2, 12))
    np.testing.assert_array_equal(x.get(), 2 * values.T.reshape(4, 6))


def test_a_reshaped_value_with_another_target_or_a_strided_one_is_copied(be: Backend) -> None:
    values = np.arange(24.0, dtype=np.float32).reshape(4, 6)
    x, first, second, strided = be.array(values), be.empty((4, 6)), be.empty((3, 8)), be.zeros((3, 16))
    tree = x + 1
    be.assign([first, second], [tree, be.reshape(tree, second.shape)])
    strided[:, ::2] = be.reshape(x + 2, (3, 8))
    np.testing.assert_array_equal(first.get(), values + 1)
    np.testing.assert_array_equal(second.get(), (values + 1).reshape(3, 8))
    np.testing.assert_array_equal(strided.get()[:, ::2], (values + 2).reshape(3, 8))
    assert not strided.get()[:, 1::2].any()
    be.assign([second, first], [be.reshape(tree, second.shape), 2 * tree])
    np.testing.assert_array_equal(first.get(), 2 * (values + 1))
    wide = be.empty((2, 3, 8))
    wide[:] = be.reshape(x + 3, (3, 8))  # it broadcasts
    np.testing.assert_array_equal(wide.get(), np.stack([(values + 3).reshape(3, 8)] * 2))
