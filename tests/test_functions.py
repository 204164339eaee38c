"""Tests of functions of functions: gradients, Jacobians and batches of every op and of whole functions.

Derivatives are compared with finite differences in float64, with textbook formulas and with torch.func; batches with a
loop over the samples.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.op_cases import (
    CASES,
    FLAT_OPERANDS,
    GRADIENTS,
    INTEGER_OPS,
    Case,
    call,
    differentiable,
    drawn,
    fill,
    placed,
)
from helpers.reference import REFERENCE, off, slope

import neonlite as nl
from neonlite import Backend
from neonlite.autodiff import push_forward
from neonlite.functions import Variable, batch

xp = nl.array_api
NUM_CASES = 12  # of an op


def some(cases: list[Case], name: str) -> list[Case]:
    """Return a sample of the cases of an op."""
    return cases[:: max(1, len(cases) // NUM_CASES)][:NUM_CASES]


# --- every op of the table -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GRADIENTS)
def test_the_derivative_of_an_op_along_a_direction_is_that_of_finite_differences(be64: Backend, name: str) -> None:
    for case in some(GRADIENTS[name], name):
        xs = fill(case)
        operands = variables(be64, xs, "float64")
        tree = call(be64, name, operands, case.attrs)
        places = [k for k in differentiable(case) if (name, k) not in FLAT_OPERANDS]
        ways = [drawn(f"{case} way {k}", xs[k].shape, -2, 2, False) for k in places]
        tangents = {id(operands[k]): be64.array(way) for k, way in zip(places, ways, strict=True)}
        (found,) = push_forward(be64, [tree], tangents)
        f = partial(REFERENCE[name], **case.attrs)
        got = np.zeros(tree.shape) if found is None else found.get()
        expected = sum((slope(f, xs, k, way) for k, way in zip(places, ways, strict=True)), start=np.zeros(got.shape))
        assert off(got.reshape(expected.shape), expected) <= 1e-6, case


@pytest.mark.parametrize("name", CASES)
def test_an_op_on_many_samples_has_the_values_of_each_sample(be64: Backend, name: str) -> None:
    dtype = "int32" if name in INTEGER_OPS else "float64"
    for number, case in enumerate(some(CASES[name], name)):
        xs = fill(case)
        values = [x if isinstance(x, int | float) else [x * scale for scale in scales(x)] for x in xs]
        operands = variables(be64, xs, dtype)
        tree = call(be64, name, operands, case.attrs)
        places = [k for k, x in enumerate(xs) if not isinstance(x, int | float)]
        choices = [c for n in range(1, len(places) + 1) for c in itertools.combinations(places, n)]
        chosen = choices[number % len(choices)]
        samples = {id(operands[k]): be64.array(np.stack(values[k]), dtype=operands[k].info.dtype) for k in chosen}
        (found,) = batch(be64, [tree], samples, 3)
        assert found.shape == (3, *tree.shape), case
        got = found.get()
        for i in range(3):
            for k in chosen:
                operands[k].given[:] = values[k][i]
            expected = tree.get()
            assert np.allclose(got[i], expected, rtol=1e-9, atol=1e-9, equal_nan=True), (case, chosen)


def variables(be: Backend, xs: list[Any], dtype: str) -> list[Any]:
    """Return operands as a function gets them that is transformed."""
    tensors = [placed(be, x, dtype, "tensor")[0] for x in xs]
    return [x if isinstance(x, int | float) else Variable(x.info, "x", x) for x in tensors]


def scales(x: Any) -> list[Any]:
    """Return three factors that keep the values of an operand in the domain of its op; indices stay as they are."""
    return [1, 1, 1] if x.dtype.kind == "i" else [1, 0.95, 0.9]
