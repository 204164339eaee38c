"""Settings that must be the same on all processes, and the first difference of nested values."""

from types import SimpleNamespace

import numpy as np
import pytest

import neonlite as nl
from neonlite.distributed import Communicator, optimizer as module
from neonlite.distributed.optimizer import Distributed, backend_settings, check_same, differ, first_difference
from neonlite.optimizers import GradientDescentMomentum


def communicator(*everywhere):
    """Return a stand-in for that of several processes, whose settings are given."""
    return SimpleNamespace(all_gather_objects=lambda settings: list(everywhere))


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (0, "0", "a.1.b = 0 on rank 0 and '0' on rank 1"),
        (1, 1.0, "a.1.b = 1 on rank 0 and 1.0 on rank 1"),
        (True, "True", "a.1.b = True on rank 0 and 'True' on rank 1"),
        ("x", "y", "a.1.b = x on rank 0 and y on rank 1"),
        ([1], [1, 2], r"a.1.b = \[1\] on rank 0 and \[1, 2\] on rank 1"),
        ([1], (1,), r"a.1.b = \[1\] on rank 0 and \(1,\) on rank 1"),
        ({"c": 1}, {"d": 1}, r"a.1.b = {'c': 1} on rank 0 and {'d': 1} on rank 1"),
        ({0: 1}, {"0": 1}, r"a.1.b = {0: 1} on rank 0 and {'0': 1} on rank 1"),
    ],
)
def test_nested_values_that_differ_also_by_their_type_alone_are_named_with_their_ranks(x, y, message):
    first, other = ({"the data": {"a": [7, {"b": value}]}} for value in (x, y))
    with pytest.raises(ValueError, match=rf"^fit: expected the data to be the same on all processes, got {message}\."):
        check_same(communicator(first, other), "fit", first)


def test_all_ranks_with_another_value_than_rank_0_are_named():
    everywhere = [{"the runtime": name} for name in ("mkl", "cpu", "mkl", "cpu")]
    with pytest.raises(ValueError, match=r"expected the runtime .*, got mkl on rank 0 and cpu on ranks 1, 3\."):
        check_same(communicator(*everywhere), "fit", everywhere[0])


@pytest.mark.parametrize(
    ("x", "y"), [({"a": 1, "b": 2}, {"b": 2, "a": 1}), ([float("nan")], [float("nan")]), ("text", "text"), (None, None)]
)
def test_equal_values_are_no_difference_whatever_the_order_of_the_keys(x, y):
    assert not differ(x, y)
    check_same(communicator({"a": x}, {"a": y}), "fit", {"a": x})
    assert first_difference(x, y) == ("", repr(x), repr(y)) or str(x) != str(y)


def test_the_settings_of_a_backend_name_its_runtime_and_dtype(be):
    settings = backend_settings(be, Communicator())
    assert (settings["the runtime"], settings["the dtype"]) == (be.runtime.name, "float32")


def test_a_step_adds_up_the_gradients_of_all_processes(be, monkeypatch):
    def sum_gradients(g, is_deterministic):
        g[:] = g + 10  # the sum with the gradient of the other process

    two = Communicator()
    vars(two).update(size=2, sum_gradients=sum_gradients, all_gather_objects=lambda x: [x, x])
    monkeypatch.setattr(module, "world", lambda: two)
    w, optimizer = be.array([[1.0, 2.0]]), Distributed(GradientDescentMomentum(0.5, 0.0))
    gradient = w * 1
    optimizer.step([w], [gradient])
    np.testing.assert_allclose(w.get(), [[1 - 0.5 * 11, 2 - 0.5 * 12]], rtol=1e-6)
    with pytest.raises(TypeError, match=r"Distributed\.step in several processes"):
        nl.jit(lambda g: optimizer.step([w], [g]))(be.ones((1, 2)))
    two.all_gather_objects = lambda x: [x, [((1, 2), 0)]] if isinstance(x, list) else [x, x]
    with pytest.raises(ValueError, match="expected the weights of rank 0 on all processes, got others on rank 1"):
        Distributed(GradientDescentMomentum(0.5, 0.0)).step([w], [w * 1])
