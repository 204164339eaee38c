"""Initializers fill tensors with the values of their formulas, with the same bits on every runtime."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.runtimes import lacks

import neonlite as nl
from neonlite.backend.random import RandomStreams
from neonlite.initializers import (
    Array,
    Constant,
    Gaussian,
    GlorotUniform,
    IdentityInit,
    Initializer,
    Kaiming,
    Orthonormal,
    Uniform,
    Xavier,
)

ALL = [
    Constant(0.5),
    Array(np.arange(12.0).reshape(4, 3)),
    IdentityInit(),
    Uniform(-2, 3),
    Gaussian(1, 0.5),
    GlorotUniform(),
    Xavier(),
    Xavier(local=False),
    Kaiming(),
    Kaiming(local=False),
    Orthonormal(),
]
RANDOM = ALL[3:]
every = pytest.mark.parametrize("init", ALL, ids=lambda init: init.classnm)
every_random = pytest.mark.parametrize("init", RANDOM, ids=lambda init: init.classnm)


def filled(be, init, shape=(4, 3), dtype=None):
    x = be.empty(shape, dtype=dtype)
    assert init.fill(x) is None
    return x.get()


def uniform(shape, dtype="float32"):
    """The first random values of a backend with seed 1."""
    return RandomStreams(1).uniform("weights", shape, dtype).astype(np.float64)


def normal(shape, dtype="float32"):
    return RandomStreams(1).normal("weights", shape, dtype).astype(np.float64)


# --- values ----------------------------------------------------------------------------------------------------------


def test_constant_array_and_identity_set_their_values(be):
    np.testing.assert_array_equal(filled(be, Constant(), (2, 3)), np.zeros((2, 3)))
    np.testing.assert_array_equal(filled(be, Constant(-1.5), (2, 3)), np.full((2, 3), -1.5))
    values = np.arange(6.0).reshape(2, 3)
    for given in (values, values.tolist(), values.astype(int), be.array(values), nl.Backend("cpu").array(values)):
        np.testing.assert_array_equal(filled(be, Array(given), (2, 3)), values)
    np.testing.assert_array_equal(filled(be, Array([1.0, 2.0]), (2, 1)), [[1], [2]])
    for shape in ((3, 3), (2, 4), (4, 2)):
        np.testing.assert_array_equal(filled(be, IdentityInit(), shape), np.eye(*shape))
        np.testing.assert_array_equal(filled(be, IdentityInit(local=False), shape), np.eye(*shape))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_random_numbers_follow_the_formulas(be, dtype):
    if lacks(be, dtype):
        return
    shape, rows, columns = (20, 30), 20, 30
    drawn = "float64" if dtype == "float64" else "float32"
    u, n = uniform(shape, drawn), normal(shape, drawn)
    k = math.sqrt(6 / (rows + columns))
    expected = [
        (Uniform(), u),
        (Uniform(-2, 3), 5 * u - 2),
        (Gaussian(), n),
        (Gaussian(1.0, 0.5), 0.5 * n + 1),
        (Gaussian(3, 0), 3 + 0 * n),
        (GlorotUniform(), k * (2 * u - 1)),
        (Xavier(), math.sqrt(3 / rows) * (2 * u - 1)),
        (Xavier(local=False), math.sqrt(3 / columns) * (2 * u - 1)),
        (Kaiming(), math.sqrt(2 / rows) * n),
        (Kaiming(local=False), math.sqrt(2 / columns) * n),
    ]
    atol = {"float16": 2e-3, "float32": 1e-6, "float64": 1e-14}[dtype]
    for init, values in expected:
        be.rng_reset()
        np.testing.assert_allclose(filled(be, init, shape, dtype), values, rtol=atol, atol=atol, err_msg=repr(init))


def test_variances_are_those_of_the_papers(cpu):
    shape = (300, 200)
    for init, variance in [
        (GlorotUniform(), 2 / 500),
        (Xavier(), 1 / 300),
        (Xavier(local=False), 1 / 200),
        (Kaiming(), 2 / 300),
        (Kaiming(local=False), 2 / 200),
        (Uniform(-1, 1), 1 / 3),
        (Gaussian(0, 3), 9),
        (Orthonormal(scale=1.0), 1 / 300),
    ]:
        values = filled(cpu, init, shape)
        assert abs(values.mean()) < 5 * math.sqrt(variance / values.size)
        assert values.var() == pytest.approx(variance, rel=0.03)


@pytest.mark.parametrize("shape", [(5, 5), (7, 3), (3, 7), (1, 4), (4, 1), (60, 60)])
def test_orthonormal_has_orthonormal_columns_or_rows(be, shape):
    for dtype, atol in (("float32", 1e-6), ("float64", 1e-14)):
        q = filled(be, Orthonormal(scale=2.0), shape, dtype).astype(np.float64) / 2
        product = q.T @ q if shape[0] >= shape[1] else q @ q.T
        np.testing.assert_allclose(product, np.eye(min(shape)), atol=atol)


@pytest.mark.parametrize("shape", [(5, 5), (7, 3), (3, 7)])
def test_orthonormal_is_gram_and_schmidts_basis_of_a_normal_matrix(be64, shape):
    x = normal(shape, "float64")
    x = x if shape[0] >= shape[1] else x.T
    basis = []
    for column in x.T:  # the diagonal of R is the length that is left, and so above 0
        left = column - sum((b @ column) * b for b in basis)
        left = left - sum((b @ left) * b for b in basis)
        basis.append(left / np.linalg.norm(left))
    q = np.stack(basis, axis=1)
    found = filled(be64, Orthonormal(), shape)
    np.testing.assert_allclose(found, 1.1 * (q if shape[0] >= shape[1] else q.T), atol=1e-12)


# --- streams ---------------------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_runtime_gets_the_same_bits(be, init, dtype):
    np.testing.assert_array_equal(
        filled(be, init, dtype=dtype), filled(nl.Backend("cpu", rng_seed=1), init, dtype=dtype)
    )


@every_random
def test_what_is_random_comes_from_the_stream_of_weights_alone(cpu, init):
    masks, before = cpu.empty((4, 3)), cpu.rng_get_state()
    first, second = filled(cpu, init), filled(cpu, init)
    assert (first != second).any()
    after = cpu.rng_get_state()
    assert [i for i, (x, y) in enumerate(zip(before, after, strict=True)) if x != y] == [2]  # weights, see random.py
    cpu.rng_set_state(before)
    cpu.make_binary_mask(masks)
    np.testing.assert_array_equal(filled(cpu, init), first)
    assert (filled(nl.Backend("cpu", rng_seed=2), init) != first).any()


def test_what_is_not_random_draws_nothing(cpu):
    before = cpu.rng_get_state()
    for init in ALL[:3]:
        filled(cpu, init)
    assert cpu.rng_get_state() == before


@every
def test_filling_a_view_changes_nothing_else(be, init):
    whole = be.ones((6, 10))
    init.fill(whole[1:5, 2:8:2])
    values = whole.get()
    np.testing.assert_array_equal(values[1:5, 2:8:2], filled(nl.Backend("cpu", rng_seed=1), init))
    values[1:5, 2:8:2] = 1
    np.testing.assert_array_equal(values, np.ones((6, 10)))


@every
def test_float16_tensors_are_filled_too(be, init):
    if not lacks(be, "float16"):
        wide = filled(nl.Backend("cpu", rng_seed=1), init)
        np.testing.assert_array_equal(filled(be, init, dtype="float16"), wide.astype(np.float16))


def test_an_empty_tensor_may_be_filled(cpu):
    for init in (Constant(1), Uniform(), GlorotUniform(), Xavier(), Kaiming(), IdentityInit(), Orthonormal()):
        assert filled(cpu, init, (0, 0)).shape == (0, 0)


def test_tensors_of_more_dimensions_take_their_first_two(cpu):
    values = filled(cpu, Xavier(), (3, 4, 5))
    assert values.shape == (3, 4, 5)
    assert 0.8 < np.abs(values).max() <= 1
    for init in (Orthonormal(), IdentityInit()):
        with pytest.raises(ValueError, match=rf"{init.classnm}: expected a matrix, got W \(3, 4, 5\)"):
            init.fill(cpu.empty((3, 4, 5), name="W"))


# --- custom initializers, descriptions, errors -----------------------------------------------------------------------


def test_a_custom_initializer_returns_its_values(be):
    class Rows(Initializer):
        def values(self, param):
            return np.arange(param.shape[0])[:, None] * np.ones(param.shape)

    np.testing.assert_array_equal(filled(be, Rows(), (2, 2)), [[0, 0], [1, 1]])
    assert Rows("mine").name == "mine"
    with pytest.raises(NotImplementedError, match=r"Initializer: expected values\(param\) or fill"):
        filled(be, Initializer())


@every
def test_a_description_recreates_the_initializer(cpu, init):
    description = init.get_description()
    assert description["type"] == f"neonlite.initializers.{init.classnm}"
    again = type(init).gen_class(description["config"])
    assert again.get_description() == description
    x, y = filled(cpu, init), (cpu.rng_reset(), filled(cpu, again))[1]
    np.testing.assert_array_equal(x, y)


def test_descriptions_are_plain_data(cpu):
    import json

    for init in (*ALL, Array(cpu.ones((2, 2))), Gaussian(np.float32(0.5), np.int64(2))):
        assert json.loads(json.dumps(init.get_description())) == init.get_description()


def test_names_are_counted_unless_given():
    assert Gaussian(name="mine").name == "mine"
    first, second = (int(Gaussian().name.removeprefix("Gaussian_")) for _ in range(2))
    assert second == first + 1
    assert IdentityInit().name == "Identity"


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Constant(None), TypeError, "Constant: expected a number for val, got None"),
        (lambda: Constant("1"), TypeError, "Constant: expected a number for val, got '1'"),
        (lambda: Constant(True), TypeError, "Constant: expected a number for val, got True"),
        (lambda: Constant(math.nan), ValueError, "Constant: expected a finite number for val, got nan"),
        (lambda: Gaussian(0, -1), ValueError, "Gaussian: expected a finite number >= 0 for scale, got -1"),
        (lambda: Gaussian(math.inf), ValueError, "Gaussian: expected a finite number for loc, got inf"),
        (lambda: Gaussian(0, None), TypeError, "Gaussian: expected a number for scale, got None"),
        (lambda: Uniform(1, 0), ValueError, "Uniform: expected low <= high, got low=1, high=0."),
        (lambda: Uniform(high=math.nan), ValueError, "Uniform: expected a finite number for high, got nan"),
        (lambda: Orthonormal(-1.1), ValueError, "Orthonormal: expected a finite number >= 0 for scale, got -1.1"),
    ],
)
def test_arguments_are_checked_by_the_constructor(make, error, words):
    with pytest.raises(error) as caught:
        make()
    assert str(caught.value) == words


def test_an_array_of_another_shape_is_rejected_with_both_shapes(be):
    x = be.zeros((2, 3), name="W")
    for shape in ((3, 2), (1, 3), (6,), (2, 3, 1)):
        with pytest.raises(ValueError, match=r"Array: expected the shape of W \(2, 3\), got \(.*\)\. Weights are"):
            Array(np.ones(shape)).fill(x)
    with pytest.raises(TypeError, match="expected real numbers, got"):
        Array([["a"]]).fill(x)
    np.testing.assert_array_equal(x.get(), np.zeros((2, 3)))


@every
def test_only_tensors_are_filled(init):
    with pytest.raises(TypeError, match=rf"{init.classnm}.fill: expected a tensor for param, got (an )?array"):
        init.fill(np.zeros((4, 3)))
