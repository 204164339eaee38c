"""NumPy's functions that the standard does not have: values as in NumPy, arrays as results, and gradients."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from helpers.parametrize import each

import neonlite as nl
from neonlite.array_api import Array
from neonlite.array_api.operators import NUMPY_FUNCTIONS
from neonlite.backend import Backend

RNG = np.random.default_rng(0)
NAMES: dict[str, Any] = {
    "x": RNG.normal(size=(3, 4)),
    "y": RNG.normal(size=(3, 4)),
    "v": RNG.normal(size=4),
    "w": RNG.normal(size=3),
    "t": RNG.normal(size=(2, 3, 4)),
    "s": np.asarray(0.5),
}
EXPRESSIONS = """
np.einsum("ij,kj->ik", x, y); np.einsum("ij,j->i", x, v); np.einsum("i,ij,j", w, x, v); np.einsum("i,i->", v, v)
np.einsum("i,j", w, v); np.einsum("...j,j->...", t, v); np.einsum("ii->i", x[:, :3]); np.einsum(",ij->ji", s, x)
np.einsum("bij,kj->bik", t, y); np.einsum("ij->", x); np.einsum("ij,ij->j", x, y, optimize=True)
np.dot(x, v); np.dot(v, v); np.dot(x, y.T); np.dot(t, y.T); np.dot(y, t.mT); np.dot(s, x); np.dot(x, s)
np.inner(x, y); np.inner(v, v); np.inner(x, v); np.inner(t, v); np.inner(s, x); np.outer(v, w); np.outer(x, w)
np.vdot(x, y); np.vdot(v, v)
np.vstack([x, y]); np.vstack((v, v)); np.vstack([x, v]); np.hstack([x, y]); np.hstack((v, w)); np.hstack([s, s])
np.hstack([t, t]); np.column_stack([v, v]); np.column_stack([x, w]); np.column_stack((w, x[:, 0], y))
np.linalg.norm(x); np.linalg.norm(v); np.linalg.norm(v, 1); np.linalg.norm(v, np.inf); np.linalg.norm(x, axis=1)
np.linalg.norm(x, 1, axis=0); np.linalg.norm(x, "fro"); np.linalg.norm(x, 1); np.linalg.norm(t, axis=(0, 2))
np.linalg.norm(x, axis=0, keepdims=True); np.linalg.norm(t, axis=(2, 0), keepdims=True); np.linalg.norm(t)
np.linalg.norm(x, 2); np.linalg.norm(t, "nuc", axis=(1, 2)); np.linalg.norm(x, axis=(0,))
np.ravel(t); np.swapaxes(t, 0, -1); np.transpose(t); np.transpose(t, (1, 0, 2)); np.ptp(x); np.ptp(x, 1)
np.cumsum(x); np.cumsum(x, 0); np.cumsum(x, axis=1); np.cumprod(x); np.cumprod(v, axis=0)
np.median(x); np.median(v); np.median(t, axis=1); np.median(x, axis=(0, 1), keepdims=True); np.median(t, (0, 2))
np.quantile(x, 0.3); np.quantile(t, [0, 0.21, 1.0], axis=-1); np.quantile(x, [[0.5, 0.1]], axis=0, keepdims=True)
np.percentile(x, 40, axis=1); np.percentile(v, [3, 97]); np.quantile(s, 0.5)
np.pad(x, 1); np.pad(v, (2, 1), constant_values=(3, 4)); np.pad(t, ((0, 1), (2, 0), (1, 1)), "edge"); np.pad(s, 1)
np.pad(x, ((1, 2), (0, 3)), mode="reflect"); np.pad(v, 6, "wrap"); np.pad(x, 2, "symmetric"); np.pad(x[:0], 1)
np.convolve(v, w); np.convolve(w, v); np.convolve(v, w, "same"); np.convolve(w, v, "valid")
np.convolve(v, v[:2], "same")
np.append(x, y); np.append(x, y, axis=0)
np.squeeze(x[:, :1]); np.squeeze(x[:, :1], axis=1); np.squeeze(x[:1, :1]); np.std(x, ddof=1)
np.var(t, axis=1, ddof=1.5)
np.diag(v); np.diag(x); np.diag(v, -2); np.diag(x, k=1); np.diagflat(x); np.fliplr(x); np.flipud(v); np.rot90(x, 3)
np.delete(x, 1, axis=0); np.delete(v, [0, -1]); np.resize(v, (3, 3)); np.rollaxis(t, 2); np.split(x, 2, axis=1)[1]
np.array_split(v, 3)[0]; np.split(v, [1, 3])[2]; np.hsplit(x, 2)[0]; np.vsplit(x, [1])[1]; np.dsplit(t, 2)[1]
np.take(x, [1, 0]); np.take(x, [2, -1], axis=1); np.take(t, 1, axis=1); np.take(v, [[0, 3], [1, 1]])
""".replace("\n", ";")
CASES = [expression.strip() for expression in EXPRESSIONS.split(";") if expression.strip()]


def arrays(be: Backend, dtype: Any = None) -> dict[str, Any]:
    """Return the names of an expression, with arrays for NumPy's."""
    return {"np": np, **{name: be.array_api.asarray(a, dtype=dtype) for name, a in NAMES.items()}}


@each("expression", CASES)
def test_a_function_gives_an_array_of_numpys_values(be: Backend, expression: str) -> None:
    result, expected = eval(expression, arrays(be)), np.asarray(eval(expression, {"np": np, **NAMES}))
    assert isinstance(result, Array)
    assert result.shape == expected.shape
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-5)


@each("expression", CASES)
def test_a_function_is_differentiated(expression: str) -> None:
    be = Backend("cpu", default_dtype="float64")
    xp = be.array_api
    used = set(re.findall(r"\b[stvwxy]\b", expression))
    variables = {name: xp.variable(NAMES[name], name=name) for name in used}
    result = eval(expression, {"np": np, **variables})
    weights = RNG.normal(size=result.shape)
    autodiff = nl.Autodiff(xp.sum(result * xp.asarray(weights)), be)
    for name, variable in variables.items():
        direction = RNG.normal(size=NAMES[name].shape)
        ends = [eval(expression, {"np": np, **NAMES, name: NAMES[name] + step * direction}) for step in (1e-6, -1e-6)]
        slope = np.sum(weights * (ends[0] - ends[1])) / 2e-6
        gradient = autodiff.get_grad_asnumpyarray(variable)
        np.testing.assert_allclose(np.sum(gradient * direction), slope, rtol=1e-6, atol=1e-6)


LISTS: dict[str, Any] = {  # one of the arrays of a call is a list
    "x": [[1.0, 2.0], [3.0, 4.0]], "v": [2.0, 1.0], "m": [True, False], "a": 0.5,
}  # fmt: skip
CALLS = """
np.dot(x, v); np.inner(v, x); np.outer(v, v); np.vdot(x, x); np.einsum("ij,j->i", x, v); np.matmul(x, v)
np.tensordot(v, x, 1); np.vecdot(x, v); np.linalg.solve(x, v)
np.concatenate([v, v]); np.vstack([x, v]); np.hstack([v, v]); np.column_stack([v, x]); np.stack([v, v])
np.broadcast_arrays(x, v); np.meshgrid(v, v); np.maximum(x, v); np.add(v, x); np.power(v, x); np.isin(x, v)
np.where(m, x, v); np.where(m, v, a); np.clip(x, v, 3); np.clip(v, a, x[0]); np.diff(v, append=v)
np.searchsorted(v, x)
""".replace("\n", ";")


@pytest.mark.parametrize("call", [call.strip() for call in CALLS.split(";") if call.strip()])
def test_a_list_beside_an_array_is_an_array(be: Backend, call: str) -> None:
    values = {name: np.asarray(x) if name != "a" else x for name, x in LISTS.items()}
    used = re.findall(r"\b[xvm]\b", call)
    for i, name in enumerate(used):  # the i-th is an array
        parts = re.split(r"\b[xvm]\b", call)
        numbered = "".join(part + (f"n{j}" if j < len(used) else "") for j, part in enumerate(parts))
        operands = {f"n{j}": LISTS[x] for j, x in enumerate(used)} | {f"n{i}": be.array_api.asarray(LISTS[name])}
        if name == "m" and "a" in call:  # NumPy does not ask a condition beside lists alone
            continue
        result = eval(numbered, {"np": np, "a": LISTS["a"], **operands})
        expected = eval(call, {"np": np, **values})
        results, references = (z if isinstance(z, list | tuple) else [z] for z in (result, expected))
        assert all(isinstance(z, Array) for z in results)
        for z, reference in zip(results, references, strict=True):
            np.testing.assert_allclose(z.numpy(), reference, rtol=1e-6)


def test_a_list_of_arrays_beside_an_array_is_differentiated() -> None:
    be = Backend("cpu")
    xp = be.array_api
    x = xp.variable([1.0, 2.0])
    for y in (np.concatenate([x, [x[0], 4.0]]), np.maximum([x[1] * 0, x[0]], x)):
        assert nl.Autodiff(xp.sum(y), be).get_grad_op_tree(x).tolist() == ([2, 1] if y.shape == (4,) else [1, 1])


def test_lists_alone_are_not_arrays_of_a_backend(be: Backend) -> None:
    for call in ("xp.concat([[1.0], [2.0]])", "xp.matmul([1.0], [2.0])", "xp.where([True], 1, 2)", "xp.clip([1.0], 0)"):
        with pytest.raises(TypeError, match=r"expected an array, got .* Create one with asarray\(x\)"):
            eval(call, {"xp": be.array_api})


def test_every_function_has_a_case() -> None:
    assert all(any(f".{name}(" in case for case in CASES) for name in NUMPY_FUNCTIONS if name != "searchsorted")
    x = nl.array_api.asarray([1.0, 2.0, 4.0])
    assert np.searchsorted([1, 2, 3], x).tolist() == [0, 1, 3]
    assert np.searchsorted(x, [2.0, 9.0], "right").tolist() == [2, 3]
    assert np.searchsorted(x, 3.0).item() == 2


def test_a_quantile_out_of_range_is_refused_and_of_nan_is_nan(be: Backend) -> None:
    x = be.array_api.asarray([[1.0, np.nan, 2.0], [4.0, 3.0, np.inf]])
    np.testing.assert_array_equal(np.median(x, axis=1).numpy(), [np.nan, 4.0])
    np.testing.assert_array_equal(np.quantile(x, [0, 1], axis=1).numpy(), [[np.nan, 3], [np.nan, np.inf]])
    assert np.median(be.array_api.asarray([4, 1, 2, 2])).item() == 2
    with pytest.raises(
        ValueError, match=r"quantile: expected q from 0 to 1, and for percentile from 0 to 100, got 1\.2"
    ):
        np.percentile(x, 120)


def test_a_mode_of_pad_that_computes_numbers_gives_a_constant_of_numpy() -> None:
    x = nl.array_api.variable([1.0, 4.0])
    with pytest.warns(UserWarning, match=r"np\.pad: NumPy computes a constant"):
        assert np.pad(x, 1, "mean").tolist() == [2.5, 1, 4, 2.5]
    with pytest.warns(UserWarning, match=r"np\.pad: NumPy computes a constant"):
        assert np.pad(x, 1, "reflect", reflect_type="odd").tolist() == [-2, 1, 4, 7]


def test_backend_methods_keep_the_gradient_of_an_array() -> None:
    be = Backend("cpu", default_dtype="float64")
    xp = be.array_api
    x = xp.variable(NAMES["x"], name="x")
    for tree in (
        be.einsum("ij,kj->ik", x, NAMES["y"]),
        be.concat([x, x]),
        be.softmax(x),
        be.einsum("ij,jk->ik", x, x[0]),
    ):
        loss = be.sum(tree * tree)
        assert nl.check_grad(be, loss, x.operand).ok
        assert nl.Autodiff(loss, be).get_grad_asnumpyarray(x.operand).any()


def test_arrays_of_other_libraries_are_operands() -> None:
    torch = pytest.importorskip("torch")
    x = Backend("cpu").array_api.asarray([[1.0, 2.0], [3.0, 4.0]])
    t = torch.full((2, 2), 2.0)
    for result, expected in ((t + x, [[3, 4], [5, 6]]), (x - t, [[-1, 0], [1, 2]]), (t @ x, [[8, 12]] * 2)):
        assert isinstance(result, Array)
        np.testing.assert_array_equal(result.numpy(), expected)
