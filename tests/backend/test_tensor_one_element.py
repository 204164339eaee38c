"""Arrays of one element, which convert to Python scalars."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from neonlite import gen_backend


@pytest.mark.parametrize("shape", [(1, 1), (1,), (1, 1, 1)])
def test_the_value_of_a_tensor_or_tree_of_one_element_is_a_scalar_too(shape):
    be = gen_backend("cpu")
    t = be.array(np.full(shape, 2.718281828))
    for value in (t.get(), (t + 0).get(), t.astensor().get()):
        assert isinstance(value, np.ndarray)
        assert (value.shape, value.dtype) == (t.shape, np.float32)
        assert (float(value), int(value), round(value, 2)) == (float(np.float32(2.718281828)), 2, 2.72)
        assert (format(value, ".3f"), f"{value:.3f}", f"{value}") == ("2.718", "2.718", str(np.asarray(value)))
        assert repr(value) == repr(np.asarray(value))
        for other in (pickle.loads(pickle.dumps(value)), copy.deepcopy(value)):
            np.testing.assert_array_equal(other, value)
        assert type(pickle.loads(pickle.dumps(value))) is np.ndarray


def test_an_array_of_several_elements_has_no_scalar():
    be = gen_backend("cpu")
    assert type(be.ones((2, 1)).get()) is np.ndarray
    with pytest.raises(TypeError, match=r"expected one element, got an array \(3, 1\). Select one by its index"):
        float(be.ones((1, 1)).get() * np.ones((3, 1)))
