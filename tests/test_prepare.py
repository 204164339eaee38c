"""An assignment that is prepared does what it would do at once, again and again."""

from __future__ import annotations

import copy

import numpy as np
import pytest


def test_a_prepared_assignment_takes_what_the_tensors_hold_then(be):
    x, y, z = (be.array(a) for a in ([[1.0, 2.0]], [[0.0, 0.0]], [[0.0, 0.0]]))
    prepared = be.prepare([y, z], [be.exp(x) + 1, y + x])
    for value in (0.5, -2.0):
        x[:] = value
        before = y.get()
        prepared()
        np.testing.assert_allclose(y.get(), np.full((1, 2), np.exp(value) + 1), rtol=1e-6)
        np.testing.assert_allclose(z.get(), before + value, rtol=1e-6)  # y as it was


def test_one_tensor_will_do(be):
    x = be.array([[1.0, 2.0]])
    double = be.prepare([x], [2 * x])
    double()
    double()
    assert x.get().tolist() == [[4, 8]]


def test_views_are_written(be):
    x = be.zeros((3, 4))
    be.prepare([x[1:2], x[:, 3:]], [be.ones((1, 4)), 5])()
    assert x.get().tolist() == [[0, 0, 0, 5], [1, 1, 1, 5], [0, 0, 0, 5]]


def test_random_numbers_are_drawn_anew(be):
    x = be.zeros((2, 50))
    draw = be.prepare([x], [be.rand(x.shape)])
    draw()
    first = x.get()
    draw()
    assert (first != x.get()).any()


def test_a_tree_with_many_leaves_is_worked_out(be):
    leaves = [be.array([[float(i)]]) for i in range(200)]
    total = be.zeros((1, 1))
    prepared = be.prepare([total], [sum(leaves[1:], leaves[0] * 1)])
    prepared()
    leaves[7][:] = 107
    prepared()
    assert total.get().item() == sum(range(200)) + 100


def test_a_copy_is_for_the_copies_of_its_tensors(be):
    x, y = be.array([[1.0]]), be.array([[2.0]])
    prepared = be.prepare([x], [x + y])
    u, v, other = copy.deepcopy((x, y, prepared))
    other()
    prepared()
    prepared()
    assert (x.get().item(), u.get().item(), v.get().item()) == (5, 3, 2)


def test_mistakes_are_told_at_once_and_those_of_numbers_when_it_is_run(be):
    x, ids = be.zeros((2, 2)), be.array([[0], [1]], dtype="int32")
    with pytest.raises(ValueError, match="do not broadcast"):
        be.prepare([x], [be.ones((3, 3)) * 2])
    taken = be.prepare([x], [be.take(be.ones((2, 2)), ids, axis=0)])
    taken()
    ids[:] = 7
    with pytest.raises(IndexError, match=r"be.take"):
        taken()
    assert x.get().tolist() == [[1, 1], [1, 1]]
