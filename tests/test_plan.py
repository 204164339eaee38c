"""Plans and the executors that run them, held to a NumPy oracle that copies everything and shares no code with them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neonlite import Backend
from neonlite.backend.executors import blocked, pool

Array = np.ndarray[Any, Any]
Node = tuple[Any, float]  # an operand, and a bound on the size of its elements


# --- the oracle: every op written out in NumPy, every value a new array in float64 ---------------------------------


def along(x: Array, axis: tuple[int, ...], find: Callable[..., Array], keepdims: bool = True) -> Array:
    kept = [a for a in range(x.ndim) if a not in axis]
    flat = x.transpose(*kept, *axis).reshape(*(x.shape[a] for a in kept), math.prod(x.shape[a] for a in axis))
    found = find(flat, axis=-1)
    return found.reshape([1 if a in axis else x.shape[a] for a in range(x.ndim)] if keepdims else found.shape)


def places(index: Any) -> Any:
    return np.ix_(*[start + step * np.arange(count) for start, count, step in index])


def unslice(x: Array, index: Any, to: Any) -> Array:
    out = np.zeros(to)
    out[places(index)] = x
    return out


def scatter(x: Array, indices: Array, axis: int, size: int) -> Array:
    out = np.zeros((*x.shape[:axis], size, *x.shape[axis + 1 :]))
    for k, i in enumerate(indices.ravel().astype(int)):
        np.moveaxis(out, axis, 0)[i] += np.moveaxis(x, axis, 0)[k]
    return out


def onehot(labels: Array, axis: int, nclass: int) -> Array:
    out = np.eye(nclass)[labels.ravel().astype(int)]
    return out.T if axis == 0 else out


def nearest_power(y: Array) -> Array:
    return np.sign(y) * 2.0 ** np.rint(np.log2(np.abs(y)))


ORACLE: dict[str, Callable[..., Array]] = {
    "neg": np.negative,
    "abs": np.abs,
    "sgn": np.sign,
    "sqr": lambda x: x**2,
    "sqrt": np.sqrt,
    "exp2": lambda x: 2.0**x,
    "safelog": lambda x: np.log(np.where(x > 0, x, math.exp(-50))),
    "sig": lambda x: np.exp(x) / (np.exp(x) + 1),
    "tanh": lambda x: 1 - 2 / (np.exp(2 * x) + 1),
    "rint": np.rint,
    "finite": np.ones_like,
    "stop_gradient": lambda x: x,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "pow": lambda x, y: x * x,
    "maximum": lambda x, y: np.where(x > y, x, y),
    "minimum": lambda x, y: np.where(x < y, x, y),
    "shift": lambda x, y, value: x * (nearest_power(y) if value else 2.0**y),
    "eq": lambda x, y: 1.0 * (x == y),
    "ne": lambda x, y: 1.0 * (x != y),
    "lt": lambda x, y: 1.0 * (x < y),
    "le": lambda x, y: 1.0 * (x <= y),
    "gt": lambda x, y: 1.0 * (x > y),
    "ge": lambda x, y: 1.0 * (x >= y),
    "where": lambda c, x, y: np.where(c != 0, x, y),
    "sum": lambda x, axis, keepdims=True: along(x, axis, np.sum, keepdims),
    "max": lambda x, axis, keepdims=True: along(x, axis, np.max, keepdims),
    "min": lambda x, axis, keepdims=True: along(x, axis, np.min, keepdims),
    "argmax": lambda x, axis, keepdims=True: along(x, axis, np.argmax, keepdims),
    "argmin": lambda x, axis, keepdims=True: along(x, axis, np.argmin, keepdims),
    "dot": lambda x, y: np.einsum("ij,jk->ik", x, y),
    "matmul": lambda x, y: np.einsum("...ij,...jk->...ik", x, y),
    "transpose": lambda x, axes: x.transpose(axes),
    "reshape": lambda x, to: x.reshape(to),
    "broadcast": lambda x, to: np.zeros(to) + x,
    "slice": lambda x, index: x[places(index)],
    "unslice": unslice,
    "concat": lambda *xs, axis: np.concatenate(xs, axis),
    "take": lambda x, indices, axis: np.take(x, indices.ravel().astype(int), axis),
    "scatter": scatter,
    "onehot": onehot,
}


def work_out(tree: Any, leaf: Callable[[Any], Array], done: dict[int, Array] | None = None) -> Array:
    """Return the value of a tree; ``leaf`` gives the values of tensors."""
    done = {} if done is None else done
    if isinstance(tree, int | float):
        return np.full((1, 1), tree, float)
    if not isinstance(tree, tuple):
        return leaf(tree).astype(float)
    if id(tree) not in done:
        value = ORACLE[tree.op](*[work_out(x, leaf, done) for x in tree.operands], **tree.attrs)
        done[id(tree)] = value.reshape((*value.shape, 1, 1)[:2]) if value.ndim < 2 else value
    return done[id(tree)]


# --- random trees: elements are whole numbers, small enough for float32 to be exact --------------------------------

LARGEST = 400  # elements of a value
NUMBERS: list[Node] = [(2, 2), (-1, 1), (1, 1), (0, 0), (12, 12), (2.0, 2), (-3.0, 3), (-0.0, 0), (True, 1)]

UNARY: list[Callable[[Any, Any, float], Node]] = [
    lambda be, x, m: (-x, m),
    lambda be, x, m: (abs(x), m),
    lambda be, x, m: (be.sgn(x), 1),
    lambda be, x, m: (be.square(be.clip(x, -99, 99)), 99**2),
    lambda be, x, m: (be.clip(x, -99, 99) ** 2, 99**2),
    lambda be, x, m: (be.rint(x / 2), m),
    lambda be, x, m: (be.rint(4 * be.sig(x)), 4),
    lambda be, x, m: (be.rint(4 * be.tanh(x)), 4),
    lambda be, x, m: (be.rint(be.safelog(x)), 50),
    lambda be, x, m: (be.rint(be.sqrt(abs(x))), m),
    lambda be, x, m: (be.exp2(be.clip(x, 0, 8)), 256),
    lambda be, x, m: (be.finite(x), 1),
    lambda be, x, m: (be.stop_gradient(x), m),
]
BINARY: list[Callable[[Any, Any, Any, float, float], Node]] = [
    lambda be, x, y, m, n: (x + y, m + n),
    lambda be, x, y, m, n: (x - y, m + n),
    lambda be, x, y, m, n: (y - x, m + n),
    lambda be, x, y, m, n: (be.clip(x, -99, 99) * be.clip(y, -99, 99), 99**2),
    lambda be, x, y, m, n: (be.maximum(x, y), max(m, n)),
    lambda be, x, y, m, n: (be.minimum(y, x), max(m, n)),
    lambda be, x, y, m, n: (be.shift(be.clip(x, -99, 99), be.clip(y, -60, 60)), 99 * 64),
    lambda be, x, y, m, n: (be.shift(be.clip(x, -99, 99), be.clip(y, 0, 6), value=False), 99 * 64),
    *(lambda be, x, y, m, n, word=word: (getattr(be, word)(x, y), 1) for word in ("equal", "not_equal", "less")),
    *(lambda be, x, y, m, n, word=word: (getattr(be, word)(x, y), 1) for word in ("less_equal", "greater")),
    lambda be, x, y, m, n: (be.greater_equal(y, x), 1),
    lambda be, x, y, m, n: (be.where(x > 0, y, x), max(m, n)),
    lambda be, x, y, m, n: (be.where(y, x, 1), max(m, 1)),
]
KINDS = ["unary"] * 3 + ["binary"] * 6 + ["reduce"] * 3 + ["view"] * 2 + ["dot", "join", "gather", "label", "argument"]


def some_axes(r: random.Random, ndim: int) -> Any:
    return r.choice([None, r.randrange(ndim), r.randrange(-ndim, 0), tuple(r.sample(range(ndim), r.randint(1, ndim)))])


def some_box(r: random.Random, shape: tuple[int, ...]) -> tuple[slice, ...]:
    steps = [r.choice([1, 1, 1, 2, -1, -2]) for _ in shape]
    ends = [(r.randint(0, max(0, n // 2)), r.randint(n // 2, n)) for n in shape]
    return tuple(
        slice(low, high, step) if step > 0 else slice(high, low - 1 if low else None, step)
        for (low, high), step in zip(ends, steps, strict=True)
    )


def fit(r: random.Random, be: Backend, x: Any, shape: tuple[int, ...]) -> Any:
    """Return x, changed until it stretches to a shape."""
    if isinstance(x, int | float):
        return x
    if math.prod(x.shape) == math.prod(shape) and r.random() < 0.5:
        return be.reshape(x, shape)
    while len(x.shape) > len(shape):
        x = be.reshape(be.sum(be.clip(x, -99, 99), axis=0), x.shape[1:])
    for axis, (n, size) in enumerate(zip(x.shape[::-1], shape[::-1], strict=False)):
        if n not in (1, size):
            x = be.sum(be.clip(x, -99, 99), axis=-1 - axis) if n == 0 or r.random() < 0.5 else be.max(x, axis=-1 - axis)
    return x


def grow(r: random.Random, be: Backend, known: list[Node]) -> Node:
    """Return one random node over those that are known."""
    x, m = r.choice(known)
    if m > 2**15:
        x, m = be.clip(x, -(2**15), 2**15), 2**15
    kind, shape, axis = r.choice(KINDS), x.shape, r.randrange(len(x.shape))
    if kind == "unary":
        return r.choice(UNARY)(be, x, m)
    if kind == "binary":
        y, n = r.choice(known + NUMBERS)
        y, n = (be.clip(fit(r, be, y, shape), -(2**15), 2**15), 2**15) if n > 2**15 else (fit(r, be, y, shape), n * 200)
        return r.choice(BINARY)(be, x, y, m, n)
    if kind == "reduce":
        axes, keepdims = some_axes(r, len(shape)), r.random() < 0.8
        if 0 in shape or r.random() < 0.5:
            return be.sum(x, axis=axes, keepdims=keepdims), m * max(1, math.prod(shape))
        return r.choice([be.max, be.min])(x, axis=axes, keepdims=keepdims), m
    if kind == "view":
        if r.random() < 0.4:
            return be.transpose(x, r.sample(range(len(shape)), len(shape))), m
        if r.random() < 0.5:
            return be.reshape(x, r.choice([(-1, 1), (1, -1), shape[::-1], (1, *shape)]) if 0 not in shape else shape), m
        box = [(s.start or 0, len(range(*s.indices(n))), s.step) for s, n in zip(some_box(r, shape), shape, strict=True)]
        box = [(min(start, n - 1), count, step) for (start, count, step), n in zip(box, shape, strict=True)]
        box = [(s, c, t) if c else (0, 0, 1) for s, c, t in box]
        part = be.build("slice", x, index=tuple(box))
        return (part, m) if r.random() < 0.7 else (be.build("unslice", part, index=tuple(box), to=shape), m)
    if kind == "dot":
        x = be.clip(x, -30, 30)
        y = be.clip(r.choice(known)[0], -30, 30)
        partners = [z for z in (y, y.T) if len(z.shape) == len(shape) == 2 and z.shape[0] == shape[1]] or [x.T]
        return x @ partners[0], 900 * max(1, shape[-1])
    if kind == "join":
        y = be.broadcast_to(fit(r, be, be.clip(r.choice(known)[0], -99, 99), shape), shape)
        return r.choice([be.concat, be.stack])(r.choice([[x, y], [y, x, x], [x]]), axis=axis), max(m, 99 * 200)
    if kind == "argument" and 0 not in shape:
        return r.choice([be.argmax, be.argmin])(x, axis=some_axes(r, len(shape)), keepdims=r.random() < 0.8), 400
    ints = [y for y, _ in known if y.info.dtype == "int32" and 0 < math.prod(y.shape) < 40]
    if kind == "label" and ints:
        return be.onehot(be.minimum(abs(r.choice(ints)), 3), axis=r.choice([0, 1]), nclass=4), 1
    if kind == "gather" and 0 not in shape:
        n = shape[axis]
        indices: Any = [r.randrange(-n, n) for _ in range(r.randint(1, 4))]
        if ints and r.random() < 0.6:
            indices = be.clip(r.choice(ints), -n, n - 1)
        if r.random() < 0.5:
            return be.take(x, indices, axis), m
        indices = be.array([r.randrange(n + 1) for _ in range(n)], dtype="int32")
        return be.build("scatter", be.clip(x, -99, 99), indices, axis=axis, size=n + 1), 99 * n
    return x + 1, m + 1


def some_view(r: random.Random, t: Any, a: Array) -> tuple[Any, Array]:
    """Return a random view of a tensor, and the same view of the array that mirrors it."""
    for _ in range(r.choice([0, 1, 1, 2, 3])):
        kind = r.choice(["box", "box", "T", "reshape", "int"])
        if kind == "box":
            box = some_box(r, a.shape)
            t, a = t[box], a[box]
        elif kind == "T":
            t, a = t.T, a.swapaxes(-1, -2)
        elif kind == "reshape" and a.flags.c_contiguous and 0 not in a.shape:
            to = r.choice([(-1, 1), (1, -1), a.shape[::-1], (2, -1) if a.size % 2 == 0 else a.shape])
            t, a = t.reshape(to), a.reshape(to)
        elif kind == "int" and 0 not in a.shape:
            axis = r.randrange(a.ndim)
            i = r.randrange(-a.shape[axis], a.shape[axis])
            t = t[(*[slice(None)] * axis, i)]
            a = np.take(a, [i], axis) if False else a[(*[slice(None)] * axis, i if a.ndim > 2 else slice(i, i + 1 or None))]
    return t, a


SHAPES = [(4, 4), (5, 3), (6, 6), (1, 7), (3, 1), (2, 3, 4), (3, 3, 3), (12, 9), (2, 40)]


def check_random_trees(r: random.Random, be: Backend) -> None:
    """Run random trees of random views of one or two tensors into views of the same; compare every element of both."""
    shape = r.choice(SHAPES)
    dtypes = [r.choice(["float32", "float32", "float64", "int32"]) for _ in range(r.choice([1, 2]))]
    arrays = [np.zeros(r.choice([shape, shape, r.choice(SHAPES)]), dtype) for dtype in dtypes]
    roots = [be.array(a, dtype=a.dtype) for a in arrays]
    mirror: dict[int, Array] = {}

    def view() -> Any:
        k = r.randrange(len(roots))
        t, a = some_view(r, roots[k], arrays[k])
        assert t.shape == a.shape
        mirror[id(t)] = a
        return t

    known: list[Node] = [(view(), 3) for _ in range(r.randint(1, 4))]
    for _ in range(r.randint(1, 14)):
        node = grow(r, be, known)
        if math.prod(node[0].shape) <= LARGEST:
            known.append(node)
    targets = [view() for _ in range(r.choice([1, 1, 2, 3]))]
    values = [fit(r, be, r.choice(known[-4:])[0], t.shape) for t in targets]
    for _ in range(2):
        for t, a in zip(roots, arrays, strict=True):
            a[...] = [r.randint(-3, 3) for _ in range(a.size)] if a.ndim == 1 else np.reshape(
                [r.randint(-3, 3) for _ in range(a.size)], a.shape
            )
            t.set(a)
        done: dict[int, Array] = {}
        with np.errstate(divide="ignore"):
            expected = [work_out(x, lambda t: mirror[id(t)] if id(t) in mirror else t.get(), done) for x in values]
        if len(targets) == 1:
            targets[0][:] = values[0]
        else:
            be.assign(targets, values)
        for t, x in zip(targets, expected, strict=True):
            mirror[id(t)][...] = x
        for t, a in zip(roots, arrays, strict=True):
            np.testing.assert_array_equal(t.get(), a)
