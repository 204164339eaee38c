"""Reductions of few columns, for which rows are joined, give what NumPy gives."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers.parametrize import each
from helpers.runtimes import RUNTIMES

from neonlite.backend import Backend
from neonlite.backend.runtimes.numpy.templates import FOLDED_ROW_ELEMENTS, FOLDED_UFUNCS, reduce_columns


@each(
    "columns, dtype, name", itertools.product([1, 3, 20, 128], ["float32", "float64", "uint8", "int64"], FOLDED_UFUNCS)
)
def test_columns_are_reduced_as_by_numpy(name: str, dtype: str, columns: int) -> None:
    joined = FOLDED_ROW_ELEMENTS // columns
    for n in (1, joined, 3 * joined + 1, 5 * joined - 1):
        x = np.random.default_rng(n).integers(-9 if dtype[0] != "u" else 0, 9, size=(n, 2 * columns)).astype(dtype)
        for part in (np.ascontiguousarray(x[:, :columns]), x[:, ::2]):
            out = np.empty((1, columns), dtype)
            reduce_columns(FOLDED_UFUNCS[name], part, out)
            np.testing.assert_array_equal(out, FOLDED_UFUNCS[name].reduce(part, axis=0, dtype=dtype, keepdims=True))


@pytest.mark.skipif("cpu" not in RUNTIMES, reason="needs the runtime cpu")
@pytest.mark.parametrize("shape", [(20000, 3), (999, 20), (400, 64), (40, 5, 100)])
def test_reductions_of_an_op_tree_over_rows_are_those_of_numpy(shape: tuple[int, ...]) -> None:
    be = Backend("cpu", default_dtype="float64")
    x = np.random.default_rng(0).normal(size=shape)
    x.flat[5] = np.nan
    t = be.array(x)
    for name in ("sum", "max", "min"):
        got = getattr(be, name)(t * 2, axis=0).get()
        np.testing.assert_allclose(got, getattr(np, name)(x * 2, axis=0, keepdims=True), rtol=1e-12)
