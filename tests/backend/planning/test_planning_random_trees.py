"""Random op-trees, compared with every op written out in NumPy, on each executor.

This also tests ``neonlite/backend/runtimes/base.py``, ``neonlite/backend/runtimes/__init__.py``,
``neonlite/backend/runtimes/numpy/__init__.py``, ``neonlite/backend/runtimes/numpy/stages.py`` and
``neonlite/backend/concurrency.py``.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from helpers.plans import ORACLE, check_random_trees

from neonlite.ops import OP_TABLE


def test_the_oracle_knows_the_ops_of_the_table():
    inexact = {"exp", "log", "log2", "rand", "randn", "random_mask", "random_words", "assign", "pair"}
    inexact |= {"log10", "expm1", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh"}
    inexact |= {"acosh", "atanh", "erf", "hypot", "atan2", "logaddexp"}
    untested = {"isnan", "isinf", "signbit", "copysign", "nextafter", "floor", "ceil", "trunc"}
    untested |= {"floor_divide", "remainder"}
    untested |= {f"logical_{name}" for name in ("and", "or", "xor", "not")}
    untested |= {f"bitwise_{name}" for name in ("and", "or", "xor", "invert", "left_shift", "right_shift")}
    untested |= {op.name for op in OP_TABLE if op.compute_dtypes}  # linear algebra
    untested |= {"prod", "cumulative_sum", "cumulative_prod", "sort", "argsort", "searchsorted", "tril", "triu"}
    untested |= {"take_along_axis", "scatter_add_along_axis"}
    untested |= {op.name for op in OP_TABLE if op.name.startswith("conv") or "pool" in op.name}
    untested |= {op.name for op in OP_TABLE if op.formula is not None}  # trees of the others
    assert {op.name for op in OP_TABLE} - set(ORACLE) == inexact | untested


@pytest.mark.long
def test_random_trees_over_views_that_share_memory_give_what_copies_give(runner):
    for seed in range(200):
        check_random_trees(random.Random(seed), runner)


@pytest.mark.slow
def test_many_random_trees_over_views_that_share_memory_give_what_copies_give(runner):
    for seed in range(200, 2000):
        check_random_trees(random.Random(seed), runner)


NUM_PROGRAMS, MAX_VALUE = 12, 8  # small integers, of which each runtime computes the same


def some_step(rng, be, x, a, y, b):
    """Return a random op of tensors x and y, and NumPy's value for a and b."""
    steps = [
        lambda: (be.maximum(x - 1, -x), np.maximum(a - 1, -a)),
        lambda: (be.sum(x, axis=1), a.sum(1, keepdims=True)),
        lambda: (x - be.max(x, axis=0), a - a.max(0, keepdims=True)),
        lambda: (x.T, a.T),
    ]
    if a.shape == b.shape:
        steps += [lambda: (x + y, a + b), lambda: (x * y - x, a * b - a), lambda: (be.dot(x, y.T), a @ b.T)]
    tree, value = steps[rng.integers(len(steps))]()
    return be.clip(tree, -MAX_VALUE, MAX_VALUE), np.clip(value, -MAX_VALUE, MAX_VALUE)


def test_random_programs_of_many_outputs_reductions_and_products_have_numpys_values(runner):
    for seed in range(NUM_PROGRAMS):
        rng = np.random.default_rng(seed)
        bases = [rng.integers(-4, 5, size).astype("float32") for size in ((6, 6), (6, 6), (4, 6))]
        tensors = [runner.array(a) for a in bases]
        values = [*zip(tensors, bases, strict=True), (tensors[0].T, bases[0].T), (tensors[0][1:5], bases[0][1:5])]
        count = len(values)
        for _ in range(rng.integers(3, 60)):
            first, second = (values[rng.integers(max(0, len(values) - 6 * k), len(values))] for k in (1, 2))
            values.append(some_step(rng, runner, *first, *second))
        expected = [np.array(value) for _, value in values[count:]]
        pairs = []
        for value in expected:  # into operands, and into new tensors
            views = [(t, a) for t, a in values[:count] if a.shape == value.shape and rng.random() < 0.3]
            new = np.zeros(value.shape, "float32")
            bases.append(new)
            tensors.append(runner.array(new))
            pairs.append(views[0] if views else (tensors[-1], new))
        runner.assign([t for t, _ in pairs], [tree for tree, _ in values[count:]])
        for (_, a), value in zip(pairs, expected, strict=True):
            a[...] = value
        for t, a in zip(tensors, bases, strict=True):
            np.testing.assert_array_equal(t.get(), a)
