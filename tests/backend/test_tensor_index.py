"""Indices of tensors select the same elements as in NumPy, and keep two dimensions."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.runtimes import refused
from helpers.tensors import counted, holds
from hypothesis import given, settings, strategies as st

# --- indexing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("index", "shape"),
    [
        (0, (1, 4)),
        (-1, (1, 4)),
        (np.int64(2), (1, 4)),
        (np.array(2), (1, 4)),
        ((slice(None), 1), (3, 1)),
        ((1, 1), (1, 1)),
        (slice(0, 1), (1, 4)),
        (slice(5, 9), (0, 4)),
        ((Ellipsis, -1), (3, 1)),
        ((Ellipsis,), (3, 4)),
        ((slice(None, None, -2), slice(3, 0, -1)), (2, 3)),
    ],
)
def test_an_index_of_a_matrix_keeps_two_dimensions(be, index, shape):
    x, a = counted(be, 3, 4)
    if not refused(be, lambda: x[index]):
        holds(x[index], a[index].reshape(shape))


@pytest.mark.parametrize(
    ("index", "shape"),
    [
        (1, (3, 4)),
        ((0, 2), (1, 4)),
        ((slice(None), 2), (2, 4)),
        ((slice(None), 0, 1), (2, 1)),
        ((0, slice(None), 1), (3, 1)),
        ((1, 2, 3), (1, 1)),
        ((Ellipsis, 0), (2, 3)),
        (slice(0, 1), (1, 3, 4)),
        ((slice(0, 1), 1), (1, 4)),
    ],
)
def test_an_int_drops_its_own_axis_and_never_one_below_two(be, index, shape):
    x, a = counted(be, 2, 3, 4)
    holds(x[index], a[index].reshape(shape))


indices = st.one_of(
    st.integers(-4, 3),
    st.builds(slice, *[st.none() | st.integers(-9, 9)] * 2, st.none() | st.sampled_from([1, 2, 3, -1, -2])),
)


@pytest.mark.long
@settings(max_examples=300)
@given(
    shape=st.lists(st.integers(4, 6), min_size=2, max_size=4),
    index=st.lists(indices, max_size=4),
    dots=st.integers(0, 9),
)
def test_any_index_selects_the_same_elements_as_in_numpy(be, shape, index, dots):
    x, a = counted(be, *shape)
    index = index[: len(shape)]
    if dots <= len(index) < len(shape):
        index.insert(dots, Ellipsis)
    if refused(be, lambda: x[tuple(index)]):
        return
    t = x[tuple(index)]
    np.testing.assert_array_equal(t.get().ravel(), a[tuple(index)].ravel())
    assert t.ndim == max(2, a[tuple(index)].ndim)
    assert t.ndim == 2 or t.shape == a[tuple(index)].shape
    t[:] = -1
    a[tuple(index)] = -1
    np.testing.assert_array_equal(x.get(), a)


@pytest.mark.parametrize("index", [3, -4, (0, 4), (slice(None), -5), (0, 0, 0), (0, slice(None), slice(None))])
def test_an_index_out_of_range_raises_and_names_the_tensor(be, index):
    with pytest.raises(IndexError, match=r"tensor x \(3, 4\)"):
        counted(be, 3, 4)[0][index]


@pytest.mark.parametrize("index", [True, np.True_, (slice(None), False)])
def test_a_boolean_is_not_an_index(be, index):
    with pytest.raises(IndexError, match=r"Use t\[mask\]"):
        be.ones((3, 4))[index]


@pytest.mark.parametrize("index", [1.0, "a", None])
def test_an_object_that_is_not_an_index_is_rejected_with_a_hint(be, index):
    with pytest.raises(TypeError, match=r"Use t\.reshape"):
        be.ones((3, 4))[index]
