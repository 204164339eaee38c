"""Tests of be.compile: a compiled assignment gives the same results as the direct one, at every call."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from neonlite.backend import Backend


def test_a_compiled_assignment_reads_the_current_values_of_its_tensors(be):
    x, y, z = (be.array(a) for a in ([[1.0, 2.0]], [[0.0, 0.0]], [[0.0, 0.0]]))
    compiled = be.compile([y, z], [be.exp(x) + 1, y + x])
    for value in (0.5, -2.0):
        x[:] = value
        before = y.get()
        compiled()
        np.testing.assert_allclose(y.get(), np.full((1, 2), np.exp(value) + 1), rtol=1e-6)
        np.testing.assert_allclose(z.get(), before + value, rtol=1e-6)  # the old value of y


def test_a_single_tensor_may_be_assigned(be):
    x = be.array([[1.0, 2.0]])
    double = be.compile([x], [2 * x])
    double()
    double()
    assert x.get().tolist() == [[4, 8]]


def test_views_are_written(be):
    x = be.zeros((3, 4))
    be.compile([x[1:2], x[:, 3:]], [be.ones((1, 4)), 5])()
    assert x.get().tolist() == [[0, 0, 0, 5], [1, 1, 1, 5], [0, 0, 0, 5]]


def test_random_numbers_are_drawn_again(be):
    x = be.zeros((2, 50))
    draw = be.compile([x], [be.rand(x.shape)])
    draw()
    first = x.get()
    draw()
    assert (first != x.get()).any()


def test_a_tree_with_many_leaves_is_evaluated(be):
    leaves = [be.array([[float(i)]]) for i in range(200)]
    total = be.zeros((1, 1))
    compiled = be.compile([total], [sum(leaves[1:], leaves[0] * 1)])
    compiled()
    leaves[7][:] = 107
    compiled()
    assert total.get().item() == sum(range(200)) + 100


def test_a_copy_assigns_to_the_copies_of_its_tensors(be):
    x, y = be.array([[1.0]]), be.array([[2.0]])
    compiled = be.compile([x], [x + y])
    u, v, other = copy.deepcopy((x, y, compiled))
    other()
    compiled()
    compiled()
    assert (x.get().item(), u.get().item(), v.get().item()) == (5, 3, 2)


def test_invalid_arguments_raise_at_once_and_invalid_scalars_when_it_is_run(be):
    x, ids = be.zeros((2, 2)), be.array([[0], [1]], dtype="int32")
    with pytest.raises(ValueError, match="expected a value that broadcasts"):
        be.compile([x], [be.ones((3, 3)) * 2])
    compiled = be.compile([x], [be.take(be.ones((2, 2)), ids, axis=0)])
    compiled()
    ids[:] = 7
    with pytest.raises(IndexError, match=r"be.take"):
        compiled()
    assert x.get().tolist() == [[1, 1], [1, 1]]


def test_a_scalar_out_of_range_raises_when_it_is_run(be):
    x, y = be.array([[1, 2]], dtype="int32"), be.zeros((1, 2), dtype="int32")
    compiled = be.compile([y], [x + 2**40])
    with pytest.raises(OverflowError, match=r"expected an integer from .* for int32"):
        compiled()
    assert y.get().tolist() == [[0, 0]]


def test_a_compiled_assignment_does_not_run_on_a_backend_that_was_cleaned_up():
    be = Backend("cpu")
    x = be.ones((1, 2))
    double = be.compile([x], [2 * x])
    double()
    be.cleanup_backend()
    with pytest.raises(RuntimeError, match="clean"):
        double()
    assert x.get().tolist() == [[2, 2]]
