"""Random op-trees, compared with every op written out in NumPy, on each executor.

This also tests ``neonlite/backend/runtimes/base.py``, ``neonlite/backend/runtimes/__init__.py``,
``neonlite/backend/runtimes/numpy/__init__.py``, ``neonlite/backend/runtimes/numpy/stages.py`` and
``neonlite/backend/concurrency.py``.
"""

from __future__ import annotations

import random

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
