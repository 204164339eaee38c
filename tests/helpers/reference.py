"""Reference implementations of every op: loops over scalars with ``math``, without neonlite.

``REFERENCE[name](*arrays, **attrs)`` takes NumPy arrays and scalars, and returns a NumPy array of Python numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache, reduce
from typing import Any

import numpy as np

from helpers.philox import oracle_lanes, oracle_normals, oracle_words
from helpers.recurrent_reference import RECURRENT
from helpers.textbook import starts

# --- from definitions for scalars to definitions for arrays --------------------------------------------------------


def each(f: Callable[..., Any]) -> Callable[..., Any]:
    """Apply a scalar function to every element."""

    def textbook(*operands: Any, **attrs: Any) -> Any:
        stretched = np.broadcast_arrays(*map(np.atleast_2d, operands))
        numbers = zip(*(x.ravel().tolist() for x in stretched), strict=True)
        return np.array([f(*xs, **attrs) for xs in numbers]).reshape(stretched[0].shape)

    return textbook


def over(f: Callable[[list[Any]], Any]) -> Callable[..., Any]:
    """Apply a function of a list of scalars along axes."""

    def textbook(x: Any, axis: Any = None, keepdims: bool = True) -> Any:
        axes = range(x.ndim) if axis is None else [a % x.ndim for a in np.atleast_1d(axis)]
        kept_shape = [1 if a in axes else n for a, n in enumerate(x.shape)]
        values = []
        for at in np.ndindex(*kept_shape):
            block = x[tuple(slice(None) if a in axes else i for a, i in enumerate(at))]
            values.append(f(block.ravel().tolist()))
        if not keepdims:
            kept_shape = [n for a, n in enumerate(kept_shape) if a not in axes]
            kept_shape += [1] * (2 - len(kept_shape))
        return np.array(values).reshape(kept_shape)

    return textbook


# --- finite differences ---------------------------------------------------------------------------------------------

STEP = 1e-5


def off(analytic: Any, numeric: Any) -> float:
    """Return the largest error relative to max(size of the element, 0.001 times the largest)."""
    assert analytic.shape == numeric.shape
    if not numeric.size:
        return 0.0
    size = np.maximum(abs(numeric), 1e-3 * max(1.0, abs(numeric).max()))
    return float((abs(analytic - numeric) / size).max())


def slope(f: Callable[..., Any], xs: Sequence[Any], directions: dict[int, Any]) -> Any:
    """Return the derivative along a direction in some operands, by their numbers, by a central difference."""
    up, down = (
        [x + sign * STEP * directions[k] if k in directions else x for k, x in enumerate(xs)] for sign in (1, -1)
    )
    return (f(*up) - f(*down)) / (2 * STEP)


def numerical_gradient(f: Callable[[], float], x: Any, step: float = 1e-6) -> Any:
    """Return df/dx for an array that f reads, element by element, by central differences."""
    gradient = np.zeros(x.shape)
    for at in np.ndindex(x.shape):
        value = x[at]
        x[at] = value + step
        up = f()
        x[at] = value - step
        gradient[at] = (up - f()) / (2 * step)
        x[at] = value
    return gradient


def gradient_of_operand(f: Callable[..., Any], xs: Sequence[Any], k: int, dz: Any) -> Any:
    """Return the gradient of sum(f * dz) in operand k."""
    x = np.array(xs[k], dtype=np.float64)
    return numerical_gradient(lambda: float((f(*xs[:k], x, *xs[k + 1 :]) * dz).sum()), x, STEP)


# --- functions of numbers -------------------------------------------------------------------------------------------


def sign(x: float) -> float:
    return (x > 0) - (x < 0)


def rint(x: float) -> float:
    low = math.floor(x)
    if x - low == 0.5:
        return low + low % 2
    return low if x - low < 0.5 else low + 1


def atanh(x: float) -> float:
    return math.atanh(x) if abs(x) < 1 else math.copysign(math.inf, x)


def ap2(y: float) -> float:
    """The power of two nearest to y on the logarithmic scale, with the sign of y."""
    return sign(y) * 2.0 ** rint(math.log2(abs(y))) if y else 0.0


def total(xs: list[Any]) -> Any:
    return sum(xs) if all(isinstance(x, int) for x in xs) else math.fsum(xs)


def first(xs: list[Any], best: Any) -> int:
    return next(i for i, x in enumerate(xs) if x == best)


# --- functions of vectors and matrices ------------------------------------------------------------------------------


def along(f: Callable[..., Any]) -> Callable[..., Any]:
    """Apply a function from lists to lists along an axis."""

    def textbook(x: Any, axis: int = -1, **attrs: Any) -> Any:
        rows = np.moveaxis(x, axis, -1)
        values = [f(rows[at].tolist(), **attrs) for at in np.ndindex(*rows.shape[:-1])]
        return np.moveaxis(np.array(values).reshape(rows.shape), -1, axis)

    return textbook


def of_matrices(f: Callable[..., Any]) -> Callable[..., Any]:
    """Apply a function of matrices to the last two axes; the other axes broadcast."""

    def textbook(*operands: Any, **attrs: Any) -> Any:
        batch = np.broadcast_shapes(*(x.shape[:-2] for x in operands))
        stretched = [np.broadcast_to(x, (*batch, *x.shape[-2:])).astype(float) for x in operands]
        values = [np.array(f(*(x[at] for x in stretched), **attrs), dtype=float) for at in np.ndindex(*batch)]
        return np.array(values).reshape(*batch, *values[0].shape)

    return textbook


def determinant(a: Any) -> float:
    """Expand along the first row."""
    if not len(a):
        return 1.0
    return math.fsum((-1) ** j * a[0, j] * determinant(np.delete(a[1:], j, axis=1)) for j in range(len(a)))


def minor(a: Any, i: int, j: int) -> Any:
    """Remove row i and column j."""
    return np.delete(np.delete(a, i, axis=0), j, axis=1)


def cofactors(a: Any) -> Any:
    """The signed determinants of the minors."""
    out = np.zeros_like(a)
    for i, j in np.ndindex(*a.shape):
        out[i, j] = (-1) ** (i + j) * determinant(minor(a, i, j))
    return out


def cofactor_derivatives(d: Any, a: Any) -> Any:
    """The cofactors of each minor, times the sign of the minor and its factor d."""
    out = np.zeros_like(a)
    for k, l in np.ndindex(*a.shape):
        rows, columns = (np.delete(np.arange(len(a)), i) for i in (k, l))
        out[np.ix_(rows, columns)] += d[k, l] * (-1) ** (k + l) * cofactors(minor(a, k, l))
    return out


def full_rank_pseudo_inverse(a: Any) -> Any:
    """The normal equations."""
    if a.shape[0] < a.shape[1]:
        return full_rank_pseudo_inverse(a.T).T
    return solution(a.T @ a, np.array(a.T))


def solution(a: Any, b: Any) -> Any:
    """Cramer's rule: a column of the right-hand side in place of each column of the matrix."""
    x = np.zeros_like(b)
    for i, k in np.ndindex(*b.shape):
        replaced = a.copy()
        replaced[:, i] = b[:, k]
        x[i, k] = determinant(replaced) / determinant(a)
    return x


def cholesky(a: Any, upper: bool = False) -> Any:
    """The algorithm of Cholesky and Banachiewicz, of the symmetric part."""
    a, low = (a + a.T) / 2, np.zeros_like(a)
    for i in range(len(a)):
        for j in range(i + 1):
            rest = a[i, j] - math.fsum(low[i, k] * low[j, k] for k in range(j))
            low[i, j] = math.sqrt(rest) if i == j else rest / low[j, j]
    return low.T if upper else low


def gram_schmidt(a: Any) -> tuple[Any, Any]:
    """Return q and r, the latter with a positive diagonal, of a matrix of full column rank."""
    q, r = np.zeros_like(a), np.zeros((a.shape[1],) * 2)
    for j in range(a.shape[1]):
        rest = a[:, j].copy()
        for i in range(j):
            r[i, j] = q[:, i] @ rest
            rest = rest - r[i, j] * q[:, i]
        r[j, j] = math.sqrt(rest @ rest)
        q[:, j] = rest / r[j, j]
    return q, r


def jacobi(a: Any) -> tuple[Any, Any]:
    """Return the eigenvalues, ascending, and eigenvectors of the symmetric part by Jacobi's rotations."""
    a, v = (a + a.T) / 2, np.eye(len(a))
    for _ in range(20):
        for i, j in itertools.combinations(range(len(a)), 2):
            angle = math.atan2(2 * a[i, j], a[j, j] - a[i, i]) / 2
            turn = np.eye(len(a))
            turn[i, i] = turn[j, j] = math.cos(angle)
            turn[i, j], turn[j, i] = math.sin(angle), -math.sin(angle)
            a, v = turn.T @ a @ turn, v @ turn
    order = sorted(range(len(a)), key=lambda i: a[i, i])
    return np.array([[a[i, i] for i in order]]), v[:, order]


def singular_values(a: Any) -> tuple[Any, Any, Any]:
    """Return u, s and vh from the eigenvalues of a^T a or a a^T."""
    if a.shape[0] < a.shape[1]:
        u, s, vh = singular_values(a.T)
        return vh.T, s, u.T
    squares, v = (x[:, ::-1] for x in jacobi(a.T @ a))
    s = np.sqrt(squares)
    return a @ v / s, s, v.T


# --- functions of arrays --------------------------------------------------------------------------------------------


def matmul(x: Any, y: Any) -> Any:
    stack = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    rows, inner, columns = x.shape[-2], x.shape[-1], y.shape[-1]
    out = np.zeros((*stack, rows, columns), dtype=np.result_type(x, y))
    for *at, i, j in np.ndindex(*out.shape):
        a, b = (
            m[tuple(0 if n == 1 else k for k, n in zip(at[len(at) - m.ndim + 2 :], m.shape, strict=False))]
            for m in (x, y)
        )
        out[(*at, i, j)] = total([a[i, k].item() * b[k, j].item() for k in range(inner)])
    return out


def moved(x: Any, shape: Any, to: Callable[..., Any], add: bool = False) -> Any:
    """Move each element of x to the index ``to(*index)``."""
    out = np.zeros(shape, dtype=x.dtype)
    for at in np.ndindex(*x.shape):
        target = to(*at)
        out[target] = out[target] + x[at] if add else x[at]
    return out


def picked(x: Any, shape: Any, of: Callable[..., Any]) -> Any:
    """Return the element of x at ``of(*index)`` for each index."""
    return np.array([x[of(*at)] for at in np.ndindex(*shape)], dtype=x.dtype).reshape(shape)


def transpose(x: Any, axes: Any) -> Any:
    return moved(x, [x.shape[a] for a in axes], lambda *at: tuple(at[a] for a in axes))


def reshape(x: Any, to: Any) -> Any:
    out = np.zeros(to, dtype=x.dtype)
    for source, target in zip(np.ndindex(*x.shape), np.ndindex(*to), strict=True):
        out[target] = x[source]
    return out


def broadcast(x: Any, to: Any) -> Any:
    first_axis = len(to) - x.ndim
    return picked(x, to, lambda *at: tuple(0 if n == 1 else i for i, n in zip(at[first_axis:], x.shape, strict=True)))


def in_box(index: Any) -> Callable[..., Any]:
    return lambda *at: tuple(start + i * step for i, (start, _, step) in zip(at, index, strict=True))


def concat(*parts: Any, axis: int) -> Any:
    axis %= parts[0].ndim
    starts = list(itertools.accumulate((x.shape[axis] for x in parts), initial=0))
    out = np.zeros([starts[-1] if a == axis else n for a, n in enumerate(parts[0].shape)])
    for start, x in zip(starts, parts, strict=False):
        for at in np.ndindex(*x.shape):
            out[tuple(i + start * (a == axis) for a, i in enumerate(at))] = x[at]
    return out


def take(x: Any, indices: Any, axis: int) -> Any:
    axis, chosen = axis % x.ndim, np.ravel(indices)
    shape = [len(chosen) if a == axis else n for a, n in enumerate(x.shape)]
    return picked(x, shape, lambda *at: tuple(int(chosen[i]) if a == axis else i for a, i in enumerate(at)))


def scatter(x: Any, indices: Any, axis: int, size: int) -> Any:
    chosen = np.ravel(indices)
    shape = [size if a == axis else n for a, n in enumerate(x.shape)]
    return moved(x, shape, lambda *at: tuple(int(chosen[i]) if a == axis else i for a, i in enumerate(at)), add=True)


def take_along_axis(x: Any, indices: Any, axis: int = -1) -> Any:
    axis %= x.ndim
    return picked(x, indices.shape, lambda *at: tuple(int(indices[at]) if a == axis else i for a, i in enumerate(at)))


def scatter_along_axis(x: Any, indices: Any, axis: int, size: int) -> Any:
    shape = [size if a == axis else n for a, n in enumerate(x.shape)]
    return moved(x, shape, lambda *at: tuple(int(indices[at]) if a == axis else i for a, i in enumerate(at)), add=True)


def insertion_points(x: Any, values: Any, side: str = "left") -> Any:
    before = (lambda y, value: y < value) if side == "left" else (lambda y, value: y <= value)
    return np.array([sum(before(y, value) for y in x.ravel()) for value in values.ravel()]).reshape(values.shape)


def triangle(a: Any, k: int, sign: int) -> Any:
    return np.array([[x if sign * (j - i - k) <= 0 else 0 * x for j, x in enumerate(row)] for i, row in enumerate(a)])


def onehot(indices: Any, axis: int, nclass: int) -> Any:
    labels = np.ravel(indices).tolist()
    table = [[float(label == c) for label in labels] for c in range(nclass)]
    return np.array(table if axis == 0 else list(zip(*table, strict=True))).reshape(
        (nclass, len(labels)) if axis == 0 else (len(labels), nclass)
    )


# --- functions of images: products with the table of windows -------------------------------------------------------


@cache
def windows(sizes: Any, window: Any, strides: Any, padding: Any, dilation: Any, ceil: bool = False) -> Any:
    """Return a table [p, r, i], 1 if pixel i is at position r of window p, else 0; and the numbers of windows."""
    tables = []
    for size, k, stride, pad, step in zip(sizes, window, strides, padding, dilation, strict=True):
        begin = starts(size, step * (k - 1) + 1, pad, stride, ceil)
        tables.append([[[float(b + r * step == i) for i in range(size)] for r in range(k)] for b in begin])
    return reduce(np.kron, map(np.array, tables)), tuple(map(len, tables))


def grouped(x: Any, groups: int) -> Any:
    """(C, *sizes, N) -> (groups, C / groups, pixels, N)."""
    return x.astype(float).reshape(groups, x.shape[0] // groups, math.prod(x.shape[1:-1]), x.shape[-1])


def filters(y: Any, groups: int) -> Any:
    """(C / groups, *window, K) -> (C / groups, positions, groups, K / groups)."""
    return y.astype(float).reshape(y.shape[0], math.prod(y.shape[1:-1]), groups, y.shape[-1] // groups)


def conv(x: Any, y: Any, groups: int, **geometry: Any) -> Any:
    table, counts = windows(x.shape[1:-1], y.shape[1:-1], **geometry)
    z = np.einsum("gcin,pri,crgk->gkpn", grouped(x, groups), table, filters(y, groups))
    return z.reshape(y.shape[-1], *counts, x.shape[-1])


def conv_backward(x: Any, y: Any, to: Any, groups: int, **geometry: Any) -> Any:
    table, _ = windows(to[1:-1], y.shape[1:-1], **geometry)
    return np.einsum("gkpn,pri,crgk->gcin", grouped(x, groups), table, filters(y, groups)).reshape(to)


def conv_update(x: Any, y: Any, to: Any, groups: int, **geometry: Any) -> Any:
    table, _ = windows(x.shape[1:-1], to[1:-1], **geometry)
    return np.einsum("gcin,pri,gkpn->crgk", grouped(x, groups), table, grouped(y, groups)).reshape(to)


def pool_windows(sizes: Any, window: Any, strides: Any, padding: Any, ceil: bool) -> Any:
    return windows(sizes, window, strides, padding, (1,) * len(window), ceil)


def pool(f: Callable[[Any, Any], Any], x: Any, geometry: dict[str, Any]) -> Any:
    """Apply a function of the positions in a window that are inside the image, and of the pixels (positions, N)."""
    table, counts = pool_windows(x.shape[:-1], **geometry)
    pixels = x.reshape(table.shape[2], x.shape[-1])
    values = [f(positions, pixels[inside]) for positions, inside in map(np.nonzero, table)]
    return np.array(values).reshape(*counts, x.shape[-1])


def roi_pool_indices(x: Any, y: Any, bins: Any, scale: float) -> Any:
    """Return the flat index of the first largest pixel of each bin, and -1 for a bin without pixels."""

    def cells(low: float, high: float, count: int, i: int, size: int) -> list[int]:
        start, end = math.floor(low * scale + 0.5), math.floor(high * scale + 0.5)
        length = max(end - start + 1, 1)
        return [k for k in range(size) if start + i * length / count < k + 1 and k < start + (i + 1) * length / count]

    _, H, W, _ = x.shape
    z = np.full((len(x), *bins, y.shape[1]), -1)
    for c, i, j, r in np.ndindex(z.shape):
        n, x1, y1, x2, y2 = y[:, r].tolist()
        rows, columns = cells(y1, y2, bins[0], i, H), cells(x1, x2, bins[1], j, W)
        found = [(c, h, w, n) for h in rows for w in columns]
        if found:
            z[c, i, j, r] = np.ravel_multi_index(max(found, key=lambda at: x[at]), x.shape)
    return z


def max_pool_take(x: Any, y: Any, **geometry: Any) -> Any:
    table, _ = pool_windows(x.shape[:-1], **geometry)
    pixels, index = x.reshape(table.shape[2], x.shape[-1]), y.reshape(len(table), y.shape[-1])
    return picked(pixels, index.shape, lambda p, n: (table[p, index[p, n]].argmax(), n)).reshape(y.shape)


def max_unpool(x: Any, y: Any, to: Any, **geometry: Any) -> Any:
    table, _ = pool_windows(to[:-1], **geometry)
    errors, index = (a.reshape(len(table), to[-1]) for a in (x, y))
    shape = (table.shape[2], to[-1])
    return moved(errors, shape, lambda p, n: (table[p, index[p, n]].argmax(), n), add=True).reshape(to)


def sum_unpool(x: Any, to: Any, mean: bool, **geometry: Any) -> Any:
    table = pool_windows(to[:-1], **geometry)[0].sum(axis=1)  # (windows, pixels)
    return (table.T @ (x.reshape(len(table), to[-1]) / (table.sum(1, keepdims=True) if mean else 1))).reshape(to)


def rand(to: Any, seed: int, bits: int) -> Any:
    n = math.prod(to)
    if bits == 64:
        return np.array([word // 2**11 / 2**53 for word in oracle_words(seed, "noise", n)]).reshape(to)
    mantissa_bits = {32: 24, 16: 11}[bits]
    return np.array(
        [lane // 2 ** (32 - mantissa_bits) / 2**mantissa_bits for lane in oracle_lanes(seed, "noise", n)]
    ).reshape(to)


def randn(to: Any, seed: int, bits: int) -> Any:
    return np.array(oracle_normals(seed, "noise", math.prod(to))).reshape(to)


def random_mask(to: Any, keep: float, seed: int, bits: int) -> Any:
    return np.array([lane < keep * 2**32 for lane in oracle_lanes(seed, "masks", math.prod(to))], float).reshape(to)


def random_words(to: Any, seed: int, bits: int) -> Any:
    words = oracle_words(seed, "noise", math.prod(to))
    return np.array([word - 2**64 if word >= 2**63 else word for word in words]).reshape(to)


def rounded_to_bfloat16(x: float) -> float:
    """Return the nearest number with 8 significant bits, ties to even; the range of exponents does not matter here."""
    fraction, exponent = math.frexp(x)
    return math.ldexp(round(fraction * 256), exponent - 8)


def value_of_bfloat16(bits: int) -> float:
    """Return the normal number with a sign bit, 8 bits of exponent and 7 of fraction."""
    return math.ldexp(128 + bits % 128, bits // 128 % 256 - 134) * (-1 if bits < 0 else 1) if bits % 2**15 else 0.0


def rounded_operands(x: Any, W: Any, scale: float | None) -> tuple[Any, Any]:
    """Return inputs rounded to int8 or bfloat16, and weights of it, given by the bits of bfloat16."""
    if scale is None:
        return np.vectorize(rounded_to_bfloat16)(x), np.vectorize(value_of_bfloat16, [float])(W.astype(int))
    return np.clip(np.rint(x / scale), -128, 127), W.astype(float)


def quantized_dot(x: Any, W: Any, bias: Any, factors: Any = 1, *, scale: float | None, relu: bool) -> Any:
    """Return the product of weights of int8 or bfloat16 with inputs rounded to it."""
    x, W = rounded_operands(x, W, scale)
    z = factors * (W @ x) + bias
    return np.maximum(z, 0) if relu else z


def quantized_conv(
    x: Any, W: Any, bias: Any, factors: Any = None, *, scale: float | None, relu: bool, **options: Any
) -> Any:
    """Return the correlation of filters of int8 or bfloat16 with images rounded to it."""
    sums = conv(*rounded_operands(x, W, scale), **options)
    ones = [1] * (x.ndim - 1)
    z = (sums if factors is None else factors.reshape(-1, *ones) * sums) + bias.reshape(-1, *ones)
    return np.maximum(z, 0) if relu else z


# --- attention: each query of each head alone ---


def query(q: Any, k: Any, v: Any) -> tuple[float, Any]:
    """Return the logarithm of the sum of a query's exponentials, and the mean of the values by its weights."""
    e = [math.exp(sum(a * b for a, b in zip(q, key, strict=True)) / math.sqrt(len(q))) for key in k]
    return math.log(math.fsum(e)), sum(w * value for w, value in zip(e, v, strict=True)) / math.fsum(e)


def as_heads(operands: Sequence[Any]) -> list[Any]:
    """Return q, k and v (..., T, d), also of x (T, N, 3, H, d)."""
    return list(operands) if len(operands) == 3 else [operands[0][:, :, n].transpose(1, 2, 0, 3) for n in range(3)]


def attended(*operands: Any, causal: bool, part: int) -> Any:
    """Return one of the results of ``query``, (..., T, 1) or (..., T, e)."""
    q, k, v = as_heads(operands)
    out = np.zeros((*q.shape[:-1], v.shape[-1] if part else 1))
    for *at, t in np.ndindex(*q.shape[:-1]):
        seen = t + 1 if causal else k.shape[-2]
        keys, values = k[tuple(at)][:seen], v[tuple(at)][:seen]
        out[(*at, t)] = query(q[(*at, t)], keys, values)[part]
    return out


def attention_stats(*operands: Any, causal: bool, to: str) -> Any:
    return attended(*operands, causal=causal, part=0)


def fused_attention(*operands: Any, causal: bool) -> Any:
    z = attended(*operands, causal=causal, part=1)
    return z if len(operands) == 3 else z.transpose(2, 0, 1, 3)


def fused_attention_backward(dz: Any, z: Any, *others: Any, causal: bool, part: int) -> Any:
    """Return a gradient, one pair of a query and a key at a time, of weights that the given stats determine."""
    *operands, stats = others
    q, k, v = (a.astype(float) for a in as_heads(operands))
    dz, z = (a.astype(float) if len(operands) == 3 else a.astype(float).transpose(1, 2, 0, 3) for a in (dz, z))
    dq, dk, dv = (np.zeros(a.shape) for a in (q, k, v))
    for *at, t in np.ndindex(*q.shape[:-1]):
        here, e = (*at, t), dz[(*at, t)]
        for s in range(min(t + 1, k.shape[-2]) if causal else k.shape[-2]):
            there = (*at, s)
            w = math.exp(sum(q[here] * k[there]) / math.sqrt(q.shape[-1]) - stats[here][0])
            dscore = w * (sum(e * v[there]) - sum(e * z[here])) / math.sqrt(q.shape[-1])
            dq[here] += dscore * k[there]
            dk[there] += dscore * q[here]
            dv[there] += w * e
    gradients = dq, dk, dv
    if len(operands) == 3:
        return gradients[part]
    return np.stack([a.transpose(2, 0, 1, 3) for a in gradients], axis=2)


REFERENCE: dict[str, Callable[..., Any]] = {
    "neg": each(lambda x: -x),
    "abs": each(lambda x: x if x > 0 else -x),
    "sgn": each(sign),
    "sqr": each(lambda x: x * x),
    "sqrt": each(math.sqrt),
    "exp": each(math.exp),
    "exp2": each(lambda x: 2.0**x),
    "log": each(math.log),
    "log2": each(math.log2),
    "safelog": each(lambda x: math.log(x) if x > math.exp(-50) else -50.0),
    "sig": each(lambda x: 1 / (1 + math.exp(-x))),
    "tanh": each(math.tanh),
    "rint": each(rint),
    "log10": each(math.log10),
    "expm1": each(math.expm1),
    "log1p": each(math.log1p),
    "sin": each(math.sin),
    "cos": each(math.cos),
    "tan": each(math.tan),
    "asin": each(math.asin),
    "acos": each(math.acos),
    "atan": each(math.atan),
    "sinh": each(math.sinh),
    "cosh": each(math.cosh),
    "asinh": each(math.asinh),
    "acosh": each(math.acosh),
    "atanh": each(atanh),
    "erf": each(math.erf),
    "floor": each(math.floor),
    "ceil": each(math.ceil),
    "trunc": each(math.trunc),
    "isnan": each(lambda x: float(math.isnan(x))),
    "isinf": each(lambda x: float(math.isinf(x))),
    "signbit": each(lambda x: float(math.copysign(1, x) < 0)),
    "logical_not": each(lambda x: float(not x)),
    "bitwise_invert": each(lambda x: ~x),
    "finite": each(lambda x: float(math.isfinite(x))),
    "cast": each(lambda x, to: float(x) if "float" in to else int(x)),
    "stop_gradient": each(lambda x: x),
    "add": each(lambda x, y: x + y),
    "sub": each(lambda x, y: x - y),
    "mul": each(lambda x, y: x * y),
    "div": each(lambda x, y: x / y),
    "pow": each(lambda x, y: x**y),
    "floor_divide": each(lambda x, y: x // y),
    "remainder": each(lambda x, y: x % y),
    "hypot": each(math.hypot),
    "atan2": each(math.atan2),
    "logaddexp": each(lambda x, y: math.log(math.exp(x) + math.exp(y))),
    "copysign": each(math.copysign),
    "nextafter": each(math.nextafter),
    "logical_and": each(lambda x, y: float(bool(x) and bool(y))),
    "logical_or": each(lambda x, y: float(bool(x) or bool(y))),
    "logical_xor": each(lambda x, y: float(bool(x) != bool(y))),
    "bitwise_and": each(lambda x, y: x & y),
    "bitwise_or": each(lambda x, y: x | y),
    "bitwise_xor": each(lambda x, y: x ^ y),
    "bitwise_left_shift": each(lambda x, y: x << y),
    "bitwise_right_shift": each(lambda x, y: x >> y),
    "maximum": each(lambda x, y: x if x > y else y),
    "minimum": each(lambda x, y: x if x < y else y),
    "shift": each(lambda x, y, value=True: x * (ap2(y) if value else 2.0**y)),
    "eq": each(lambda x, y: float(x == y)),
    "ne": each(lambda x, y: float(x != y)),
    "lt": each(lambda x, y: float(x < y)),
    "le": each(lambda x, y: float(x <= y)),
    "gt": each(lambda x, y: float(x > y)),
    "ge": each(lambda x, y: float(x >= y)),
    "where": each(lambda c, x, y: x if c else y),
    "sum": over(total),
    "max": over(max),
    "min": over(min),
    "argmax": over(lambda xs: first(xs, max(xs))),
    "argmin": over(lambda xs: first(xs, min(xs))),
    "prod": over(math.prod),
    "cumulative_sum": along(
        lambda xs, reverse=False: [total(xs[i:] if reverse else xs[: i + 1]) for i in range(len(xs))]
    ),
    "cumulative_prod": along(lambda xs: [math.prod(xs[: i + 1]) for i in range(len(xs))]),
    "sort": along(lambda xs, descending=False: sorted(xs, reverse=descending)),
    "argsort": along(
        lambda xs, descending=False: sorted(range(len(xs)), key=lambda i: -xs[i] if descending else xs[i])
    ),
    "searchsorted": insertion_points,
    "take_along_axis": take_along_axis,
    "scatter_add_along_axis": scatter_along_axis,
    "tril": of_matrices(lambda a, k=0: triangle(a, k, 1)),
    "triu": of_matrices(lambda a, k=0: triangle(a, k, -1)),
    "cholesky": of_matrices(cholesky),
    "solve": of_matrices(solution),
    "inv": of_matrices(lambda a: solution(a, np.eye(len(a)))),
    "det": of_matrices(lambda a: [[determinant(a)]]),
    "cofactors": of_matrices(cofactors),
    "cofactors_backward": of_matrices(cofactor_derivatives),
    "pinv": lambda x, y: of_matrices(full_rank_pseudo_inverse)(x),
    "slogdet_sign": of_matrices(lambda a: [[sign(determinant(a))]]),
    "slogdet_logabsdet": of_matrices(lambda a: [[math.log(abs(determinant(a)))]]),
    # squares, as the signs of the vectors differ between libraries
    "qr_q": of_matrices(lambda a, mode="reduced": gram_schmidt(a)[0] ** 2),
    "qr_r": of_matrices(lambda a, mode="reduced": gram_schmidt(a)[1] ** 2),
    "svd_u": of_matrices(lambda a, full_matrices=False: singular_values(a)[0] ** 2),
    "svd_s": of_matrices(lambda a: singular_values(a)[1]),
    "svd_vh": of_matrices(lambda a, full_matrices=False: singular_values(a)[2] ** 2),
    "eigh_values": of_matrices(lambda a: jacobi(a)[0]),
    "eigh_vectors": of_matrices(lambda a: jacobi(a)[1] ** 2),
    "dot": matmul,
    "matmul": matmul,
    "transpose": transpose,
    "reshape": reshape,
    "broadcast": broadcast,
    "after": lambda x, y: x,
    "slice": lambda x, index: picked(x, [count for _, count, _ in index], in_box(index)),
    "slice_backward": lambda x, index, to: moved(x, to, in_box(index)),
    "concat": concat,
    "take": take,
    "scatter_add": scatter,
    "onehot": onehot,
    "conv": conv,
    "conv_backward": conv_backward,
    "conv_update": conv_update,
    "max_pool": lambda x, **geometry: pool(lambda _, pixels: pixels.max(axis=0), x, geometry),
    "max_pool_indices": lambda x, to, **geometry: pool(lambda at, pixels: at[pixels.argmax(axis=0)], x, geometry),
    "max_pool_take": max_pool_take,
    "max_unpool": max_unpool,
    "sum_pool": lambda x, mean, **geometry: pool(
        lambda at, pixels: pixels.sum(axis=0) / (len(at) if mean else 1), x, geometry
    ),
    "sum_unpool": sum_unpool,
    "roi_pool_indices": roi_pool_indices,
    "rand": rand,
    "randn": randn,
    "random_mask": random_mask,
    "random_words": random_words,
    "assign": lambda x, y: broadcast(y, x.shape),
    "pair": lambda *xs: xs,
}


# --- composite ops --------------------------------------------------------------------------------------------------


def blocks(x: Any, axis: Any) -> list[tuple[slice | int, ...]]:
    """Return the index of every block of elements along some axes."""
    axes = range(x.ndim) if axis is None else [a % x.ndim for a in np.atleast_1d(axis)]
    kept = [1 if a in axes else n for a, n in enumerate(x.shape)]
    return [tuple(slice(None) if a in axes else i for a, i in enumerate(at)) for at in np.ndindex(*kept)]


def within(f: Callable[..., list[float]]) -> Callable[..., Any]:
    """Apply a function from lists to lists to every block along some axes, of one or several operands."""

    def textbook(*operands: Any, axis: Any = 0, **attrs: Any) -> Any:
        xs = np.broadcast_arrays(*operands)
        out = np.zeros(xs[0].shape)
        for block in blocks(out, axis):
            shape = out[block].shape
            out[block] = np.array(f(*(x[block].ravel().tolist() for x in xs), **attrs)).reshape(shape)
        return out

    return textbook


def softmax_of_list(xs: list[float], mask: Sequence[float] | None = None) -> list[float]:
    chosen = [x for x, m in zip(xs, mask or [1] * len(xs), strict=True) if m]
    terms = [math.exp(x - max(chosen)) if m else 0.0 for x, m in zip(xs, mask or [1] * len(xs), strict=True)]
    return [term / (math.fsum(terms) or 1.0) for term in terms]


def standardized(xs: list[float], eps: float = 1e-5) -> list[float]:
    mean = math.fsum(xs) / max(len(xs), 1)
    variance = math.fsum((x - mean) ** 2 for x in xs) / max(len(xs), 1)
    return [(x - mean) / math.sqrt(variance + eps) for x in xs]


def scaled(z: Any, gamma: Any = None, beta: Any = None) -> Any:
    return z * (1 if gamma is None else gamma) + (0 if beta is None else beta)


def columns(x: Any, p: Any) -> Any:
    """Return a parameter of each channel as an array that broadcasts to images (C, ...)."""
    return None if p is None else np.reshape(p, (len(x), *[1] * (x.ndim - 1)))


def shift_standardize(x: Any, gamma: Any = None, beta: Any = None, eps: float = 1e-5) -> Any:
    """Return images, each channel normalized; one factor of each product is rounded to a power of two."""

    def power(v: Any) -> Any:
        return 0.0 if v == 0 else math.copysign(2.0 ** round(math.log2(abs(v))), v)

    z = np.zeros(x.shape)
    for c in range(len(x)):
        d = x[c].astype("float64") - math.fsum(x[c].ravel().tolist()) / x[c].size
        scale = power(1 / math.sqrt(math.fsum(v * power(v) for v in d.ravel().tolist()) / d.size + eps))
        z[c] = d * scale * (1 if gamma is None else power(gamma[c, 0])) + (0 if beta is None else beta[c, 0])
    return z


def standardize_groups(x: Any, gamma: Any = None, beta: Any = None, groups: int = 1, eps: float = 1e-5) -> Any:
    size, out = len(x) // groups, np.zeros(x.shape)
    for g, n in itertools.product(range(groups), range(x.shape[-1])):
        block = slice(g * size, (g + 1) * size), ..., n
        out[block] = np.reshape(standardized(x[block].ravel().tolist(), eps), out[block].shape)
    return scaled(out, columns(x, gamma), columns(x, beta))


def attend(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    out = np.zeros((*q.shape[:-1], v.shape[-1]))
    mask = np.broadcast_to(1 if mask is None else mask, (*q.shape[:-1], k.shape[-2]))
    for at in np.ndindex(*q.shape[:-1]):
        keys, values = k[at[:-1]], v[at[:-1]]
        scores = [math.fsum(q[at] * key) / math.sqrt(len(key)) for key in keys]
        for weight, value in zip(softmax_of_list(scores, mask[at].tolist()), values, strict=True):
            out[at] += weight * value
    return out


REFERENCE |= {
    "softmax": within(softmax_of_list),
    "log_softmax": within(lambda xs: [math.log(p) for p in softmax_of_list(xs)]),
    "masked_softmax": within(softmax_of_list),
    "logsumexp": lambda x, axis=0: over(lambda xs: math.log(math.fsum(map(math.exp, xs))))(x, axis),
    "cross_entropy": lambda x, t, axis=0: np.full(
        (1,) * x.ndim,
        -math.fsum((t * REFERENCE["log_softmax"](x, axis=axis)).ravel().tolist()) / len(blocks(x, axis)),
    ),
    "silu": each(lambda x: x / (1 + math.exp(-x))),
    "gelu": each(lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
    "leaky_relu": each(lambda x, slope=0.01: x if x > 0 else slope * x),
    "elu": each(lambda x, alpha=1.0: x if x > 0 else alpha * math.expm1(x)),
    "softplus": each(lambda x: math.log(1 + math.exp(x))),
    "normalize": within(standardized),
    "layer_norm": lambda x, gamma=None, beta=None, **attrs: scaled(within(standardized)(x, **attrs), gamma, beta),
    "rms_norm": lambda x, gamma=None, eps=1e-5, **attrs: scaled(
        within(lambda xs: [x / math.sqrt(math.fsum(x * x for x in xs) / len(xs) + eps) for x in xs])(x, **attrs), gamma
    ),
    "batch_norm": lambda x, gamma=None, beta=None, eps=1e-5: scaled(
        within(standardized)(x, axis=range(1, x.ndim), eps=eps), columns(x, gamma), columns(x, beta)
    ),
    "shift_batch_norm": shift_standardize,
    "group_norm": standardize_groups,
    "instance_norm": lambda x, *parameters, eps=1e-5: standardize_groups(x, *parameters, groups=len(x), eps=eps),
    "attention": attend,
    "quantized_dot": quantized_dot,
    "quantized_conv": quantized_conv,
    **RECURRENT,
    "fused_attention": fused_attention,
    "attention_stats": attention_stats,
    "fused_attention_backward": fused_attention_backward,
}
