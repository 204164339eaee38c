"""Copies of transposes by oneDNN."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.onednn_primitives import needs, ops_of

from neonlite import Backend
from neonlite.backend.primitives.rows import TRANSPOSED

pytestmark = needs
RNG = np.random.default_rng


@pytest.mark.parametrize("axes", [(1, 0, 2), (0, 2, 1), (2, 1, 0), (2, 0, 1)])
def test_a_transpose_is_copied_once_for_the_steps_that_read_it(cpu: Backend, axes: tuple[int, ...]) -> None:
    values = RNG(0).normal(size=(40, 30, 50)).astype(np.float32)
    x = cpu.array(values)
    y = cpu.transpose(x, axes)
    trees = [y + 1, y * 2, cpu.sum(y * y)]
    is_strided = axes[-1] != 2
    assert ops_of(cpu.plan(*trees)).count(TRANSPOSED) == is_strided
    assert TRANSPOSED not in ops_of(cpu.plan(cpu.zeros((400, 400))[:, ::2] + 1))
    expected = values.transpose(axes)
    for tree, value in zip(cpu.evaluate(trees), (expected + 1, expected * 2, [[(expected**2).sum()]]), strict=True):
        np.testing.assert_allclose(tree.get().reshape(np.shape(value)), value, rtol=1e-5)


def test_a_transpose_that_is_assigned_is_one_copy(cpu: Backend) -> None:
    x = cpu.array(RNG(0).normal(size=(301, 203)))
    assert ops_of(cpu.plan(x.T)) == [TRANSPOSED]
    assert ops_of(cpu.plan(cpu.stop_gradient(x.T))) == [TRANSPOSED]
    assert TRANSPOSED not in ops_of(cpu.plan(cpu.transpose(cpu.zeros((9, 9)))))  # small
    first, second = cpu.evaluate([x.T, x.T])
    for y in (first, second):
        np.testing.assert_array_equal(y.get(), x.get().T)
    square = cpu.array(RNG(0).normal(size=(200, 200)))
    before = square.get()
    square[:] = square.T
    np.testing.assert_array_equal(square.get(), before.T)
    wide = cpu.zeros((203, 602))
    wide[:, ::2] = x.T
    np.testing.assert_array_equal(wide.get(), np.stack([x.get().T, 0 * x.get().T], axis=2).reshape(203, 602))
