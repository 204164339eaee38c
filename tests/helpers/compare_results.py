"""Comparison of the results of another library for arrays of neonlite, and of their derivatives, with those for NumPy.

A call is a text such as ``scipy.stats.zscore(x, axis=0)``. One that begins with ``*`` in a list is differentiated.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import neonlite as nl


def compare_results(ours: Any, expected: Any) -> None:
    """Raise AssertionError unless arrays are arrays of neonlite, and all dtypes and values agree with NumPy's."""
    if isinstance(expected, dict):
        assert ours.keys() == expected.keys()
        for key, value in expected.items():
            compare_results(ours[key], value)
    elif isinstance(expected, tuple | list):
        assert len(ours) == len(expected)
        for x, y in zip(ours, expected, strict=True):
            compare_results(x, y)
    elif isinstance(expected, np.ndarray | np.generic):
        if type(ours).__name__ != "Array":
            raise AssertionError(f"expected an Array, got {type(ours).__name__}")
        expected = np.asarray(expected)
        assert ours.shape == expected.shape, f"shape {ours.shape}, NumPy's {expected.shape}"
        assert ours.dtype == expected.dtype, f"dtype {ours.dtype}, NumPy's {expected.dtype}"
        np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-7, atol=1e-10)
    elif isinstance(expected, float):
        np.testing.assert_allclose(ours, expected, rtol=1e-7, atol=1e-10)
    else:
        assert ours == expected, f"{ours!r}, NumPy's {expected!r}"


def floats_of(x: Any) -> list[Any]:
    """Return the floating-point arrays in a result, and NumPy's scalars."""
    if isinstance(x, dict | tuple | list):
        return [y for item in (x.values() if isinstance(x, dict) else x) for y in floats_of(item)]
    return [x] if getattr(x, "dtype", None) == np.float64 else []


class Derivatives:
    """Derivatives of the results of a call by its arrays, and finite differences of the call for NumPy's arrays.

    The results are multiplied by random weights, and added. Each array moves in a random direction.

    Parameters
    ----------
    call : str
        The call.
    xp : namespace
        The namespace of neonlite's arrays.
    arrays : dict
        NumPy's arrays by name.
    evaluate : callable
        ``evaluate(call, xp, arrays)`` is the result, for a namespace and arrays of it.
    """

    def __init__(
        self, call: str, xp: Any, arrays: dict[str, Any], evaluate: Callable[[str, Any, dict[str, Any]], Any]
    ) -> None:
        used = {node.id for node in ast.walk(ast.parse(call, mode="eval")) if isinstance(node, ast.Name)}
        rng = np.random.default_rng(0)
        self.names = [name for name in arrays if name in used and arrays[name].dtype == np.float64]
        self.points = [arrays[name] for name in self.names]
        self.directions = [rng.normal(size=x.shape) for x in self.points]
        constants = {name: xp.asarray(x) for name, x in arrays.items() if name not in self.names}
        self.reference = lambda *xs: floats_of(evaluate(call, np, arrays | dict(zip(self.names, xs, strict=True))))
        self.weights = [rng.normal(size=y.shape) for y in self.reference(*self.points)]
        self.xp = xp
        self.xs, self.dxs = ([xp.asarray(x) for x in part] for part in (self.points, self.directions))
        self.function = lambda *xs: floats_of(evaluate(call, xp, constants | dict(zip(self.names, xs, strict=True))))

    def loss(self, *xs: Any) -> Any:
        """Return the sum of the weighted results."""
        return sum(self.xp.sum(y * self.xp.asarray(w)) for y, w in zip(self.function(*xs), self.weights, strict=True))

    def value_at(self, step: float, directions: Any) -> float:
        """Return the sum of the weighted results for NumPy's arrays, moved by a step."""
        ys = self.reference(*(x + step * d for x, d in zip(self.points, directions, strict=True)))
        return float(sum(np.sum(y * w) for y, w in zip(ys, self.weights, strict=True)))

    def difference(self, directions: Any, h: float = 1e-5) -> float:
        """Return a finite difference of the fourth order."""
        f = [self.value_at(k * h, directions) for k in (-2, -1, 1, 2)]
        return (8 * (f[2] - f[1]) - (f[3] - f[0])) / (12 * h)

    def second_difference(self, h: float = 2e-4) -> float:
        """Return a second finite difference of the fourth order."""
        f = [self.value_at(k * h, self.directions) for k in (-2, -1, 0, 1, 2)]
        return (16 * (f[1] + f[3]) - f[0] - f[4] - 30 * f[2]) / (12 * h * h)

    def differences(self) -> dict[str, float]:
        """Return the finite difference for each array, which moves alone."""
        return {
            name: self.difference([d if i == j else 0 * d for j, d in enumerate(self.directions)])
            for i, name in enumerate(self.names)
        }

    def compare_reverse(self) -> None:
        """Raise AssertionError unless the derivatives by each array in reverse mode are the finite differences."""
        _, pull_back = nl.vjp(self.function, *self.xs)
        gradients = pull_back([self.xp.asarray(w) for w in self.weights])
        for g, d, (name, expected) in zip(gradients, self.directions, self.differences().items(), strict=True):
            np.testing.assert_allclose(np.sum(g.numpy() * d), expected, 1e-5, 1e-8, err_msg=f"derivative by {name}")
            assert expected, f"the derivative by {name} is 0"

    def compare_forward(self) -> None:
        """Raise AssertionError unless the derivatives in forward mode, and the second ones, are finite differences."""
        _, derivative = nl.jvp(self.loss, self.xs, self.dxs)
        np.testing.assert_allclose(float(derivative), self.difference(self.directions), 1e-5, 1e-8, err_msg="jvp")
        products = nl.hvp(self.loss, self.xs, self.dxs)
        pairs = zip(products if isinstance(products, tuple) else [products], self.directions, strict=True)
        found = sum(np.sum(p.numpy() * d) for p, d in pairs)
        np.testing.assert_allclose(found, self.second_difference(), 1e-4, 1e-4, err_msg="hvp")

    def silent_error(self) -> str:
        """Return how the derivative is wrong, if no error and no warning says that there is none; "" otherwise."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                self.compare_reverse()
            except AssertionError as error:
                is_known = any(word in str(error) for word in ("is 0", "DESIRED: array(nan)"))
                if not is_known and not any("no gradient" in str(w.message) for w in caught):
                    return f"wrong without a warning: {error}"
            except Exception:
                return ""
        return ""


def find_problems(
    calls: list[str],
    arrays: dict[str, Any],
    evaluate: Callable[[str, Any, dict[str, Any]], Any],
    xp: Any,
    what: str,
) -> dict[str, str]:
    """Return how the results of calls differ from NumPy's, or the error: {call: problem, or ""}.

    ``what`` is "values", of all; "gradients", of those with ``*``; or "derivatives": in forward mode and of second
    order with ``*``, and whether a wrong gradient is reported without it.
    """
    found = {}
    for text in calls:
        call, is_differentiable = text.removeprefix("*"), text.startswith("*")
        if what == "gradients" and not is_differentiable:
            continue
        found[call] = ""
        try:
            if what == "values":
                ours = {name: xp.asarray(array) for name, array in arrays.items()}
                compare_results(evaluate(call, xp, ours), evaluate(call, np, arrays))
                continue
            derivatives = Derivatives(call, xp, arrays, evaluate)
            if what == "gradients":
                derivatives.compare_reverse()
            elif is_differentiable:
                derivatives.compare_forward()
            else:
                found[call] = derivatives.silent_error()
        except Exception as error:
            found[call] = f"{type(error).__name__}: {error}"
    return found
