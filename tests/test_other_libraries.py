"""Tensors, op-trees and arrays in calls of other libraries, and in Python's functions: values as for a NumPy array.

Tests ``neonlite/numpy_methods.py`` and ``neonlite/array_api/__init__.py``.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import itertools
import re
import warnings
from typing import Any

import numpy as np
import pytest
from helpers.library_calls import CALLS
from helpers.parametrize import each

from neonlite import Backend, OpTreeNode, Tensor

VALUES: dict[str, Any] = {
    "x": np.array([[1.5, 2, 0.25], [3, 0.5, 1]], np.float32),
    "y": np.array([[2, 1, 4], [0.5, 3, 2]], np.float32),
    "q": np.array([[4, 1, 0.5], [1, 3, 0.25], [0.5, 0.25, 2]], np.float32),
    "v": np.array([3, 1, 2, 5, 4, 0.5], np.float32),
    "w": np.array([1, 2, 0.5, 4, 3, 2.5], np.float32),
    "s": np.float32(2.5),
    "i": np.array([[2, 0, 1], [1, 2, 0]]),
    "img": np.linspace(0, 1, 48, dtype=np.float32).reshape(4, 4, 3),
}
ALIASES = {
    "np": "numpy", "oe": "opt_einsum", "pa": "pyarrow", "pd": "pandas", "pl": "polars", "sns": "seaborn",
    "xpx": "array_api_extra", "xr": "xarray",
}  # fmt: skip
KINDS = {"tensor": "t", "op-tree": "n", "array": "a"}


@functools.cache
def backend() -> Backend:
    """Return the backend of all calls."""
    return Backend("cpu")


def at_least_2d(values: Any) -> Any:
    """Return values in the shape of a tensor: a vector is a column, and a number stays one."""
    return values[:, None] if np.ndim(values) == 1 else values


def operand(be: Backend, kind: str, values: Any) -> Any:
    """Return values as a tensor, an op-tree or an array."""
    if kind == "array":
        return be.array_api.asarray(values)
    t = be.array(np.reshape(values, (*np.shape(values), 1, 1)[:2]) if np.ndim(values) < 2 else values, values.dtype)
    return t if kind == "tensor" else t * 1


class Names(dict[str, Any]):
    """The names of a call: operands, and modules, which are imported when they are used."""

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name) or name.startswith("_"):  # pytest looks for some in frames
            raise KeyError(name)
        if name == "ax":
            return self.setdefault(name, pytest.importorskip("matplotlib.figure").Figure().subplots())
        return pytest.importorskip(ALIASES.get(name, name))


def names_of(call: str, operands: dict[str, Any], be: Backend) -> Names:
    """Return the names of a call, with the submodules that it mentions imported."""
    for module in re.findall(r"\b(?:PIL|matplotlib|scipy|sklearn|torch)\.[a-zA-Z_]+(?:\.[a-z_]+)?", call):
        parts = module.split(".")
        for n in range(len(parts), 0, -1):
            try:
                importlib.import_module(".".join(parts[:n]))
            except ImportError:
                continue
            break
    return Names(operands, be=be)


def as_numpy(x: Any) -> Any:
    """Return a result as NumPy arrays, in lists; strings and the like as they are."""
    if isinstance(x, str | bytes | bool | None):
        return x
    if isinstance(x, dict):
        return {key: as_numpy(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [as_numpy(item) for item in x]
    if isinstance(x, Tensor | OpTreeNode):
        return x.get()
    values = np.asarray(x.detach() if hasattr(x, "detach") else x)
    return values if values.dtype != object else x


def same(x: Any, y: Any, squeezed: bool) -> bool:
    """Return whether two results are equal, up to rounding; and up to axes of size 1, if they are squeezed."""
    if isinstance(x, list) and isinstance(y, list):
        return len(x) == len(y) and all(same(a, b, squeezed) for a, b in zip(x, y, strict=True))
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and x.dtype.kind in "biufc":
        x, y = (np.squeeze(x), np.squeeze(y)) if squeezed else (x, y)
        return x.shape == y.shape and np.allclose(x, y, rtol=1e-4, atol=1e-5, equal_nan=True)
    return type(x) is type(y) and bool(np.all(x == y)) if type(x) in (str, bytes, bool, dict) else type(x) is type(y)


@functools.cache
def expected(call: str, shaped_as_tensors: bool) -> tuple[Any, list[str]]:
    """Return what a call gives for NumPy arrays, or the exception that it raises, and its warnings."""
    values = {name: at_least_2d(a) if shaped_as_tensors else a for name, a in VALUES.items()}
    names = names_of(call, {name: a.copy() for name, a in values.items()}, backend())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = as_numpy(eval(call, names))
        except Exception as error:
            result = error
    return result, [str(w.message) for w in caught]


@each("call, kind", itertools.product(CALLS, KINDS))
def test_a_call_gives_what_it_gives_for_numpy_arrays_or_says_why_not(kind: str, call: str) -> None:
    be = backend()
    names = names_of(call, {name: operand(be, kind, a) for name, a in VALUES.items()}, be)
    refusals = [
        note.split(": ", 1)[1] for note in CALLS[call].split("; ") if KINDS[kind] in note.split(": ")[0].split()
    ]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if refusals:
            with pytest.raises(Exception, match=re.escape(refusals[0])):
                eval(call, names)
            return
        reference, known = expected(call, kind != "array")
        if isinstance(reference, Exception):  # a NumPy array of this shape is refused as well
            return
        result = as_numpy(eval(call, names))
    assert same(result, reference, squeezed=kind != "array"), f"{result!r}, expected {reference!r}"
    assert not [w for w in caught if "which has no gradient" not in str(w.message) and str(w.message) not in known]
