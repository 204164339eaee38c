"""Functions of ``neonlite.array_api`` give what NumPy, which follows the same standard, gives for each expression.

Tests ``neonlite/array_api/elementwise.py``, ``neonlite/array_api/reductions.py``,
``neonlite/array_api/manipulation.py``, ``neonlite/array_api/linalg.py`` and ``neonlite/array_api/creation.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.parametrize import each

from neonlite.backend import Backend

RNG = np.random.default_rng(0)
NAMES: dict[str, Any] = {
    "x": RNG.normal(size=(3, 4)),
    "y": RNG.normal(size=(3, 4)),
    "p": RNG.uniform(0.1, 0.9, size=(3, 4)),
    "v": RNG.normal(size=4),
    "w": RNG.normal(size=4),
    "s": np.asarray(0.7),
    "t": RNG.normal(size=(2, 3, 4)),
    "i": RNG.integers(-9, 9, size=(3, 4)),
    "j": RNG.integers(1, 5, size=(3, 4)),
    "u": RNG.integers(0, 200, size=(3, 4)).astype(np.uint8),
    "b": RNG.normal(size=(3, 4)) > 0,
    "c": RNG.normal(size=4) > 0,
    "k": np.asarray([2, 0, -1]),
    "A": RNG.normal(size=(2, 3, 3)) + 3 * np.eye(3),
    "S": np.eye(3) * 4 + np.full((3, 3), 0.5),
    "e": np.zeros((0, 4)),
    "r": np.asarray([3.0, 1.0, 3.0, 2.0, 1.0]),
}

EXPRESSIONS = """
xp.abs(x); xp.abs(i); xp.negative(x); -i; +x; xp.square(i); xp.sqrt(p); xp.exp(x); xp.expm1(x); xp.log(p); xp.log1p(p)
xp.log2(p); xp.log10(p); xp.sin(x); xp.cos(x); xp.tan(x); xp.asin(p); xp.acos(p); xp.atan(x); xp.sinh(x); xp.cosh(x)
xp.tanh(x); xp.asinh(x); xp.acosh(p + 1); xp.atanh(p); xp.floor(x); xp.ceil(x); xp.trunc(x); xp.round(x * 2)
xp.floor(i)
xp.sign(x); xp.sign(i); xp.signbit(x); xp.isnan(x / 0); xp.isinf(x / 0); xp.isfinite(x / 0); xp.reciprocal(p)
xp.positive(x); xp.real(x); xp.conj(x); xp.imag(x); ~b; ~i; xp.logical_not(x); xp.bitwise_invert(u)
x + y; x - v; x * s; x / y; x + 1; 1 - x; 2 * i; i + 3; x**2; p**y; i**2; x // y; x % y; i // j; i % j; -7 // j
x @ v; v @ w
xp.add(i, j); i - j; i * j; i / j; u + u; u + 100; u // 7; xp.atan2(x, y); xp.hypot(x, y); xp.copysign(x, y)
xp.logaddexp(x, y); xp.nextafter(x, y); xp.maximum(x, y); xp.minimum(i, j); xp.maximum(x, 0.5); xp.remainder(x, y)
i & j; i | j; i ^ j; i << j; i >> j; b & c; b | c; b ^ c; xp.logical_and(x, b); xp.logical_or(b, c)
xp.logical_xor(b, c)
x == y; x != y; x < y; x <= y; x > y; x >= y; i == 3; b == c; b != c; x > 0; 0.5 >= x; s < 1; i + u; u + i; x + i
xp.clip(x, -0.5, 0.5); xp.clip(x, min=0.0); xp.clip(i, max=3); xp.clip(x, v, v + 1); xp.where(b, x, y)
xp.where(c, v, 0.0)
xp.where(b, 1.0, x); xp.where(b, i, j); xp.where(b, c, b); xp.where(b, b, i); b * i; i + b; xp.concat([b, i])
xp.sum(x); xp.sum(x, axis=0); xp.sum(x, axis=-1, keepdims=True); xp.sum(i); xp.sum(u, axis=1); xp.sum(b)
xp.sum(t, axis=(0, 2))
xp.sum(v); xp.sum(s); xp.sum(e); xp.sum(e, axis=0); xp.prod(p); xp.prod(i, axis=0); xp.prod(t, axis=(1, 2)); xp.prod(e)
xp.mean(x); xp.mean(t, axis=1); xp.mean(v, keepdims=True); xp.var(x, axis=0); xp.var(x, correction=1); xp.std(x, axis=1)
xp.std(v, correction=1.0); xp.max(x); xp.max(i, axis=0); xp.min(t, axis=(0, 1)); xp.min(u); xp.max(v, keepdims=True)
xp.argmax(x); xp.argmax(x, axis=1); xp.argmin(t, axis=0, keepdims=True); xp.argmin(i, keepdims=True); xp.argmax(v)
xp.any(b); xp.all(b, axis=0); xp.any(x, axis=1, keepdims=True); xp.all(e); xp.any(e); xp.count_nonzero(i)
xp.count_nonzero(b, axis=0)
xp.cumulative_sum(x, axis=0); xp.cumulative_sum(v); xp.cumulative_sum(i, axis=1, include_initial=True)
xp.cumulative_sum(u, axis=0)
xp.cumulative_prod(p, axis=1); xp.cumulative_prod(v, include_initial=True)
xp.sort(x); xp.sort(x, axis=0); xp.sort(i, axis=1); xp.argsort(r); xp.argsort(x, axis=0); xp.flip(xp.sort(v))
xp.searchsorted(xp.sort(v), w); xp.searchsorted(xp.sort(v), x, side="right"); xp.diff(x); xp.diff(x, axis=0, n=2)
xp.diff(i)
xp.diff(v, prepend=w, append=w); xp.sort(xp.unique_values(i)); xp.unique_values(r); xp.unique_all(r)[1]
xp.unique_all(r)[2]; xp.unique_counts(i)[1]
xp.unique_inverse(i)[1]; xp.nonzero(i)[0]; xp.nonzero(b)[1]; xp.nonzero(v)[0]
xp.reshape(x, (4, 3)); xp.reshape(x, (-1,)); xp.reshape(t, (4, -1)); xp.reshape(s, (1, 1, 1)); xp.reshape(e, (4, 0))
xp.permute_dims(t, (2, 0, 1)); xp.moveaxis(t, 0, -1); xp.moveaxis(t, (0, 1), (1, 0)); x.T; t.mT; xp.matrix_transpose(t)
xp.expand_dims(x, axis=0); xp.expand_dims(x, axis=(0, 3)); xp.squeeze(x[:, :1], axis=1); xp.broadcast_to(v, (3, 4))
xp.broadcast_to(s, (2, 2))
xp.broadcast_arrays(x, v)[1]; xp.concat([x, y]); xp.concat([x, y], axis=1); xp.concat([v, w])
xp.concat([x, v], axis=None)
xp.concat([i, u], axis=0); xp.concat([b, b > 3], axis=0); xp.stack([x, y]); xp.stack([x, y], axis=-1)
xp.stack([s, s]); xp.stack([v, w], axis=1)
xp.unstack(x, axis=1)[2]; xp.flip(x); xp.flip(x, axis=0); xp.flip(t, axis=(0, 2)); xp.roll(x, 1)
xp.roll(x, 2, axis=1); xp.roll(x, (1, -1), axis=(0, 1))
xp.tile(x, (2, 1)); xp.tile(v, (2, 2)); xp.tile(t, (2,)); xp.repeat(x, 2); xp.repeat(x, 2, axis=1)
xp.repeat(v, j[0, :])
xp.take(v, k); xp.take(x, k, axis=0); xp.take(t, k[:2], axis=2); xp.take_along_axis(x, xp.argsort(x, axis=1), axis=1)
xp.tril(x); xp.triu(x, k=1); xp.tril(t, k=-1); xp.triu(b); xp.meshgrid(v, w)[0]; xp.meshgrid(v, w, indexing="ij")[1]
xp.meshgrid(v, w, r)[2]
xp.matmul(x, x.T); xp.matmul(t, x.T); xp.matmul(x, t.mT); xp.matmul(v, x.T); i @ j.T; t @ v
xp.tensordot(t, x, axes=2); xp.tensordot(t, x, axes=([1, 2], [0, 1]))
xp.tensordot(v, w, axes=0); xp.vecdot(x, y); xp.vecdot(x, v); xp.vecdot(i, j); xp.vecdot(t, x, axis=-2)
xp.linalg.det(A); xp.linalg.inv(A); xp.linalg.solve(A, A); xp.linalg.solve(S, v[:3]); xp.linalg.solve(A, x[:, :2])
xp.linalg.cholesky(S)
xp.linalg.cholesky(S, upper=True); xp.linalg.slogdet(A)[0]; xp.linalg.slogdet(A)[1]; xp.linalg.eigh(S)[0]
xp.linalg.eigvalsh(S)
xp.linalg.svdvals(t); xp.linalg.svd(x)[1]; xp.linalg.pinv(x); xp.linalg.pinv(A); xp.linalg.matrix_rank(x)
xp.linalg.matrix_power(S, 3); xp.linalg.matrix_power(A, -2)
xp.linalg.matrix_norm(t); xp.linalg.matrix_norm(x, ord=1); xp.linalg.matrix_norm(x, ord=-2, keepdims=True)
xp.linalg.matrix_norm(x, ord="nuc"); xp.linalg.matrix_norm(x, ord=np.inf)
xp.linalg.vector_norm(x); xp.linalg.vector_norm(x, axis=1); xp.linalg.vector_norm(t, axis=(0, 1), ord=1)
xp.linalg.vector_norm(v, ord=np.inf); xp.linalg.vector_norm(v, ord=0)
xp.linalg.vector_norm(x, axis=0, ord=3, keepdims=True)
xp.linalg.vector_norm(v / 0, ord=-1); xp.linalg.vector_norm(e, axis=0, ord=-2); xp.linalg.vector_norm(v * 0, ord=-1)
xp.linalg.norm(x); xp.linalg.norm(t, axis=(2, 0)); xp.linalg.norm(v, 1); xp.linalg.norm(x, "nuc"); xp.linalg.norm(i)
xp.einsum("ij,kj->ik", x, y); xp.einsum("bij,jk,k", t, x.T, w[:3]); xp.einsum("...i,i->...", t, v)
xp.einsum("i,i", i[0], v)
xp.linalg.trace(x); xp.linalg.trace(t, offset=1); xp.linalg.diagonal(t); xp.linalg.diagonal(x, offset=-1)
xp.linalg.outer(v, w); xp.linalg.cross(v[:3], w[:3]); xp.linalg.cross(A, S)
x[0]; x[-1, 2]; x[:, 1]; x[1:, ::2]; x[::-1]; x[..., -1]; x[None]; x[:, None, 1:]; t[1, :, 2]; v[3]; s[()]; s[...]
s[None]
x[k]; x[:, k]; x[k, k]; x[k[:, None], k]; x[b]; x[c[:3]]; x[:, c]; x[i > 0]; t[:, k[:2], 1]; t[0][:, c]; x[[0, 2]]
x[b & (x > 0)]; e[:, 1:]
""".replace("\n", ";")
CASES = [expression.strip() for expression in EXPRESSIONS.split(";") if expression.strip()]


def allowed_dtypes(be: Backend, name: str) -> tuple[str, ...]:
    """Return the dtypes of a result for that of NumPy's: integers become floats of the default dtype."""
    if name == "uint64" and name not in be.runtime.dtypes:
        return ("int64",)
    return (name, be.default_dtype_name) if name == "float64" else (name,)


@each("expression", CASES)
def test_an_expression_gives_what_numpy_gives(be: Backend, expression: str) -> None:
    if be.runtime.name == "torch" and "nextafter" in expression:
        pytest.skip("PyTorch casts float64 to the dtype of the tensor")
    xp = be.array_api
    with np.errstate(all="ignore"):
        expected = np.asarray(eval(expression, {"xp": np, "np": np, **NAMES}))
    result = eval(expression, {"xp": xp, "np": np, **{name: xp.asarray(array) for name, array in NAMES.items()}})
    assert result.shape == expected.shape
    assert result.ndim == expected.ndim
    assert result.dtype.name in allowed_dtypes(be, expected.dtype.name)
    value = np.asarray(result)
    assert value.dtype == result.dtype
    tolerance = 1e-5 if result.dtype == np.float32 else 1e-10
    np.testing.assert_allclose(value, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "expression",
    """xp.zeros((2, 3)); xp.ones(4); xp.full((2,), 7); xp.full((), 2.5); xp.eye(3); xp.eye(2, 4, k=1); xp.arange(5)
    xp.arange(1, 9, 3)
    xp.arange(9, 1, -2); xp.arange(0.0, 1.0, 0.25); xp.arange(3, dtype=xp.float64); xp.linspace(0, 1, 5)
    xp.linspace(2, 5, 4, endpoint=False)
    xp.zeros_like(xp.arange(3)); xp.ones_like(xp.zeros((2, 2), dtype=xp.int8)); xp.full_like(xp.arange(3), 9)
    xp.zeros((0, 3)); xp.asarray(True)
    xp.asarray([1, 2]); xp.asarray([[True], [False]]); xp.asarray([1, 2], dtype=xp.float64)
    xp.astype(xp.arange(3), xp.bool)
    xp.astype(xp.asarray([0.5, -1.7]), xp.int32); xp.asarray(3); xp.asarray([2**62 + 1])""".replace("\n", ";").split(
        ";"
    ),
)
def test_arrays_are_created_as_in_numpy(be: Backend, expression: str) -> None:
    result, expected = eval(expression.strip(), {"xp": be.array_api}), np.asarray(eval(expression.strip(), {"xp": np}))
    assert result.shape == expected.shape
    assert result.dtype.name in allowed_dtypes(be, expected.dtype.name)
    np.testing.assert_array_equal(np.asarray(result), expected.astype(result.dtype))
