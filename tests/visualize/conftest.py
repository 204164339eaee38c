"""Fixtures of the tests of texts and drawings: a backend with two tensors, and op-trees of them."""

import numpy as np
import pytest
from helpers.parametrize import DEEP

import neonlite as nl


@pytest.fixture(scope="module")
def be():
    return nl.gen_backend("cpu", rng_seed=0)


@pytest.fixture(scope="module")
def x(be):
    return be.array(np.array([[0.5, -1.0], [2.0, 3.0]]), name="x")


@pytest.fixture(scope="module")
def y(be):
    return be.ones((2, 2), name="y")


@pytest.fixture(scope="module")
def logistic(be, x):
    return 1 / (1 + be.exp(-1 * x))


@pytest.fixture(scope="module", params=DEEP)
def nodes(request):
    return request.param


@pytest.fixture(scope="module")
def deep(x, y, nodes):
    tree = x
    for _ in range(nodes):
        tree = tree + y
    return tree


@pytest.fixture(scope="module")
def shared(x):
    tree = x
    for _ in range(1000):
        tree = tree + tree
    return tree
