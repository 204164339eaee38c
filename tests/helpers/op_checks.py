"""Checks of ops, and custom ops for the tests of several modules."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from helpers.op_cases import (
    FLAT_OPERANDS,
    PAIRS,
    Case,
    assert_sum,
    call,
    differentiable,
    drawn,
    fill_with_error,
    placed,
)
from helpers.reference import REFERENCE, each, off, slope
from neonlite import Autodiff, Backend


def check_second_order(be: Backend, case: Case) -> None:
    """E = sum(w dx): its gradients in the operands by differences of E, and in the error by those of the reference.

    The differences are along a random direction, which meets an error of any element.
    """
    xs, dz = fill_with_error(case)
    operands = [placed(be, x, "float64", "tensor")[0] for x in xs]
    tree, error = call(be, case.op, operands, case.attrs), be.array(dz)
    places = [k for k in differentiable(case) if (case.op, k) not in FLAT_OPERANDS]
    asked = [operands[k] for k in places]
    ways = [drawn(f"{case} way {k}", xs[k].shape, -2, 2, False) for k in places]
    grads = Autodiff(tree, be, error).get_grad_op_tree(asked)
    energy = sum((be.sum(dx * be.array(way)) for dx, way in zip(grads, ways, strict=True)), start=0)
    *analytic, in_error = Autodiff(energy, be, allow_unused=True).get_grad_asnumpyarray([*asked, error])

    def worth(*values: Any) -> Any:
        for x, value in zip(asked, values, strict=True):
            x[:] = value
        return energy.asnumpyarray()

    directions = {k: drawn(f"{case} direction {k}", dx.shape, -2, 2, False) for k, dx in enumerate(analytic)}
    terms = np.concatenate([(dx * directions[k]).ravel() for k, dx in enumerate(analytic)])
    assert_sum(terms, np.sum(slope(worth, [xs[k] for k in places], directions)), case)
    pushed = slope(partial(REFERENCE[case.op], **case.attrs), xs, dict(zip(places, ways, strict=True)))
    assert off(in_error, pushed) <= 1e-6, case


class Own(NamedTuple):
    """An op of a user's, with its textbook."""

    run: Callable[..., Any]
    grad: Callable[..., Any]
    textbook: Callable[..., Any]
    shapes: list[tuple[tuple[int, ...], ...]]
    options: dict[str, Any]


OWN = {
    "third_power": Own(
        lambda xp, x: x * x * x,
        lambda be, dz, z, x: (dz * (3 * x * x),),
        each(lambda x: x**3),
        [((2, 3),), ((1, 1),), ((2, 1, 3),), ((0, 2),)],
        {},
    ),
    "hypotenuse": Own(
        lambda xp, x, y: xp.sqrt(x * x + y * y),
        lambda be, dz, z, x, y: (dz * x / z, dz * y / z),
        each(math.hypot),
        PAIRS,
        {"arity": 2, "result_dtype": "float"},
    ),
    "table": Own(  # every sum of an element of a column and an element of a row, squared
        lambda xp, x, y: (x + y) ** 2,
        lambda be, dz, z, x, y: (be.sum(2 * dz * (x + y), axis=1), be.sum(2 * dz * (x + y), axis=0)),
        each(lambda x, y: (x + y) ** 2),
        [((3, 1), (1, 2)), ((1, 1), (1, 4))],
        {"arity": 2, "kind": "library", "shape_fn": lambda x, y: (x[0], y[1])},
    ),
}
