"""What the tests of plans share: random values, trees with their NumPy values, and the work of threads."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from helpers.runtimes import back
from neonlite import Backend
from neonlite.backend.planning import Plan
from neonlite.optree import OpTreeNode

Array = np.ndarray[Any, Any]


Node = tuple[Any, float]  # an operand, and a bound on the size of its elements


def stages(plan: Plan) -> list[str]:
    return [" ".join(step.op.name for v in stage.steps if (step := plan.find_step(v))) for stage in plan.stages]


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def batch_norm(be, x, gamma, beta):
    return (x - be.mean(x, axis=1)) / be.sqrt(be.var(x, axis=1) + 1e-3) * gamma + beta


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


ORACLE: dict[str, Callable[..., Array]] = {
    "neg": lambda x: -x,
    "abs": lambda x: np.where(x < 0, -x, x),
    "sgn": lambda x: 1.0 * (x > 0) - (x < 0),
    "sqr": lambda x: x**2,
    "sqrt": lambda x: x**0.5,
    "exp2": lambda x: 2.0**x,
    "safelog": lambda x: np.log(np.where(x > 0, x, math.exp(-50))),
    "sig": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": lambda x: 1 - 2 / (np.exp(2 * x) + 1),
    "rint": np.rint,
    "finite": np.ones_like,
    "cast": lambda x, to: x,  # integers that every dtype can represent
    "stop_gradient": lambda x: x,
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "pow": lambda x, y: x**y,
    "maximum": lambda x, y: np.where(x > y, x, y),
    "minimum": lambda x, y: np.where(x < y, x, y),
    "shift": lambda x, y, value: x * (np.sign(y) * 2.0 ** np.rint(np.log2(np.abs(y))) if value else 2.0**y),
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
    "after": lambda x, y: x,
    "slice": lambda x, index: x[places(index)],
    "slice_backward": unslice,
    "concat": lambda *xs, axis: np.concatenate(xs, axis),
    "take": lambda x, indices, axis: np.take(x, indices.ravel().astype(int), axis),
    "scatter_add": scatter,
    "onehot": onehot,
}


def compute(tree: Any, arrays: dict[int, Array], done: dict[int, Array]) -> Array:
    """Return the value of a tree; ``mirror`` holds the values of tensors."""
    if isinstance(tree, int | float):
        return np.full((1, 1), tree, float)
    if not isinstance(tree, OpTreeNode):
        return arrays[id(tree)].astype(float) if id(tree) in arrays else tree.get().astype(float)
    if id(tree) not in done:
        value = ORACLE[tree.op](*[compute(x, arrays, done) for x in tree.operands], **tree.attrs)
        done[id(tree)] = value.reshape((*value.shape, 1, 1)[:2]) if value.ndim < 2 else value
    return done[id(tree)]


SHAPES = [(4, 4), (5, 3), (6, 6), (1, 7), (3, 1), (2, 3, 4), (3, 3, 3), (12, 9), (2, 40)]


LARGEST = 400  # elements of a value


NUMBERS: list[Node] = [(2, 2), (-1, 1), (1, 1), (0, 0), (12, 12), (2.0, 2), (-3.0, 3), (-0.0, 0), (True, 1)]


UNARY: list[Callable[[Any, Any, float], Node]] = [
    lambda be, x, m: (-x, m),
    lambda be, x, m: (abs(x), m),
    lambda be, x, m: (be.sgn(x), 1),
    lambda be, x, m: (be.square(x), m * m),
    lambda be, x, m: (x**2, m * m),
    lambda be, x, m: (be.rint(x / 2), m),
    lambda be, x, m: (be.rint(4 * be.sig(x)), 4),
    lambda be, x, m: (be.rint(4 * be.tanh(be.clip(x, -50, 50))), 4),
    lambda be, x, m: (be.rint(be.safelog(x)), 50),
    lambda be, x, m: (be.rint(be.sqrt(abs(x))), m),
    lambda be, x, m: (be.exp2(be.clip(x, 0, 8)), 256),
    lambda be, x, m: (be.finite(x), 1),
    lambda be, x, m: (be.stop_gradient(x), m),
    lambda be, x, m: (be.astype(x, "int32"), m),
    lambda be, x, m: (be.astype(x, "float64"), m),
]


BINARY: list[Callable[[Any, Any, Any, float, float], Node]] = [
    lambda be, x, y, m, n: (x + y, m + n),
    lambda be, x, y, m, n: (x - y, m + n),
    lambda be, x, y, m, n: (y - x, m + n),
    lambda be, x, y, m, n: (x * y, m * n),
    lambda be, x, y, m, n: (be.maximum(x, y), max(m, n)),
    lambda be, x, y, m, n: (be.minimum(y, x), max(m, n)),
    lambda be, x, y, m, n: (be.shift(x, be.clip(y, -60, 60)), m * 64),
    lambda be, x, y, m, n: (be.shift(x, be.clip(y, 0, 6), value=False), m * 64),
    lambda be, x, y, m, n: (be.equal(x, y), 1),
    lambda be, x, y, m, n: (be.not_equal(y, x), 1),
    lambda be, x, y, m, n: (be.less(x, y), 1),
    lambda be, x, y, m, n: (be.less_equal(x, y), 1),
    lambda be, x, y, m, n: (be.greater(y, x), 1),
    lambda be, x, y, m, n: (be.greater_equal(x, y), 1),
    lambda be, x, y, m, n: (be.where(x > 0, y, x), max(m, n)),
    lambda be, x, y, m, n: (be.where(y, x, 1), max(m, 1)),
]


PLAIN = ["unary"] * 3 + ["binary"] * 6 + ["reduce", "flip"]


KINDS = PLAIN + ["reduce"] * 2 + ["view"] * 3 + ["dot", "join", "gather", "label", "argument"]


def tame(be: Backend, node: Node, limit: float = 2000) -> Node:
    """Return a node whose elements are no larger than a limit."""
    x, m = node
    return (x, m) if m <= limit else (be.clip(x, -limit, limit), limit)


def fit(r: random.Random, be: Backend, node: Node, shape: tuple[int, ...]) -> Node:
    """Return the node, changed until it stretches to a shape."""
    x, m = node
    if isinstance(x, int | float):
        return node
    if math.prod(x.shape) == math.prod(shape) and r.random() < 0.5:
        return be.reshape(x, shape), m
    while len(x.shape) > len(shape):
        x, m = tame(be, (x, m))
        x, m = be.reshape(be.sum(x, axis=0), x.shape[1:]), m * x.shape[0]
    for axis, (n, size) in enumerate(zip(x.shape[::-1], shape[::-1], strict=False)):
        if n not in (1, size):
            x, m = tame(be, (x, m))
            x, m = (be.sum, be.max)[n > 0 and r.random() < 0.5](x, axis=-1 - axis), m * max(1, n)
    return x, m


def some_axes(r: random.Random, ndim: int) -> Any:
    return r.choice([None, r.randrange(ndim), r.randrange(-ndim, 0), tuple(r.sample(range(ndim), r.randint(1, ndim)))])


def some_box(r: random.Random, be: Backend, shape: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
    """Return (start, count, step) for each axis, now and then of nothing."""
    box = []
    for n in shape:
        step = r.choice([1, 1, 1, 2, 3, *[back(be), back(be), 2 * back(be)]])
        most = -(-n // abs(step))
        count = most if r.random() < 0.4 else r.randint(r.random() > 0.03, most) if most else 0
        first = r.randint(0, n - 1 - (count - 1) * abs(step)) if count else 0
        box.append((first if step > 0 else n - 1 - first, count, step) if count else (0, 0, 1))
    return tuple(box)


def slices(box: tuple[tuple[int, int, int], ...]) -> tuple[slice, ...]:
    ends = [start + count * step for start, count, step in box]
    return tuple(slice(s, e if e >= 0 else None, step) for (s, _, step), e in zip(box, ends, strict=True))


def some_view(r: random.Random, t: Any, a: Array, margin: int | None) -> tuple[Any, Array]:
    """Return a random view of a tensor, and the same view of the array that mirrors it.

    With a margin, all views of a tensor have one shape: some of its rows, all but these, forwards or backwards.
    """
    if margin is not None:
        step, n = back(t.backend), max(1, len(a) - margin)
        start = r.randint(0, len(a) - n)
        t, a = t[start : start + n], a[start : start + n]
        return r.choice([(t, a), (t, a), (t[::step], a[::step]), (t[:, ::step], a[:, ::step])])
    for _ in range(r.choice([0, 1, 1, 2, 3])):
        kind = r.choice(["box", "box", "T", "reshape", "int"])
        if kind == "box":
            box = slices(some_box(r, t.backend, a.shape))
            t, a = t[box], a[box]
        elif kind == "T":
            t, a = t.T, a.swapaxes(-1, -2)
        elif kind == "reshape" and a.flags.c_contiguous and a.size:
            to = r.choice([(-1, 1), (1, -1), a.shape[::-1], (1, *a.shape), (a.shape[0], -1)])
            t, a = t.reshape(to), a.reshape(to)
        elif kind == "int" and a.size:
            axis = r.randrange(a.ndim)
            i = r.randrange(-a.shape[axis], a.shape[axis])
            t, a = t[(*[slice(None)] * axis, i)], np.moveaxis(np.moveaxis(a, axis, 0)[i : i + 1 or None], 0, axis)
            a = a.squeeze(axis) if a.ndim > 2 else a
    return t, a


def grow(r: random.Random, be: Backend, known: list[Node], kinds: list[str]) -> Node:
    """Return one random node over those that are known."""
    x, m = tame(be, r.choice(known))
    kind, shape, axis = r.choice(kinds), x.shape, r.randrange(len(x.shape))
    size, n = math.prod(shape), shape[axis]
    if kind == "unary":
        return r.choice(UNARY)(be, x, m)
    if kind == "binary":
        y, limit = tame(be, fit(r, be, r.choice(known + NUMBERS), shape))
        return r.choice(BINARY)(be, x, y, m, limit)
    if kind == "flip":
        if shape[-1] == shape[-2] and r.random() < 0.5:
            return be.transpose(x), m
        if not be.runtime.supports_negative_strides:
            return be.take(x, list(range(n))[::-1], axis), m
        box = tuple((size - 1, size, -1) if i == axis and size else (0, size, 1) for i, size in enumerate(shape))
        return be.build("slice", x, index=box), m
    if kind == "reduce":
        axes, keepdims = some_axes(r, len(shape)), r.random() < 0.8
        if not size or r.random() < 0.5:
            return be.sum(x, axis=axes, keepdims=keepdims), m * max(1, size)
        return r.choice([be.max, be.min])(x, axis=axes, keepdims=keepdims), m
    if kind == "view":
        box = some_box(r, be, shape)
        part = be.build("slice", x, index=box)
        choices = [part, part, be.build("slice_backward", part, index=box, to=shape)]
        choices += [
            be.build("after", x, r.choice(known)[0]),
            be.transpose(x, r.sample(range(len(shape)), len(shape))),
            x.T,
        ]
        return r.choice(choices + [be.reshape(x, to) for to in ((-1, 1), shape[::-1], (1, *shape)) if size]), m
    if kind == "dot":
        (x, m), (y, limit) = tame(be, (x, m), 60), tame(be, r.choice(known), 60)
        partners = [z for z in (y, y.T) if len(z.shape) == len(shape) == 2 and z.shape[0] == shape[1]] or [x.T]
        return x @ partners[0], m * max(limit, m) * max(1, shape[-1])
    if kind == "join":
        y, limit = fit(r, be, r.choice(known), shape)
        y = be.broadcast_to(y, shape)
        return r.choice([be.concat, be.stack])(r.choice([[x, y], [y, x, x], [x]]), axis=axis), max(m, limit)
    if kind == "argument" and size:
        return r.choice([be.argmax, be.argmin])(x, axis=some_axes(r, len(shape)), keepdims=r.random() < 0.8), size
    whole = [y for y, _ in known if y.info.dtype in ("int32", "int64") and 0 < math.prod(y.shape) < 40]
    if kind == "label" and whole:
        return be.onehot(be.minimum(abs(r.choice(whole)), 3), axis=r.choice([0, 1]), nclass=4), 1
    if kind == "gather" and size:
        if r.random() < 0.4:
            at = be.array([r.randrange(-n, n) for _ in range(n)], dtype="int32")
            return be.build("scatter_add", x, at, axis=axis, size=n + 1), m * n
        given = [r.randrange(-n, n) for _ in range(r.randint(1, 4))]
        return be.take(x, be.clip(r.choice(whole), -n, n - 1) if whole and r.random() < 0.6 else given, axis), m
    return x + 1, m + 1


def check_random_trees(r: random.Random, be: Backend) -> None:
    """Run random trees of random views of one or two tensors into views of the same; compare every element of both."""
    shape, alike = r.choice(SHAPES), r.random() < 0.4
    margin = r.choice([0, 1, 1, 2, 3]) if alike else None
    shapes = [shape, shape if alike else r.choice([shape, r.choice(SHAPES)])]
    arrays = [np.zeros(s, r.choice(["float32", "float32", "float64", "int32"])) for s in shapes[: r.randint(1, 2)]]
    roots = [be.array(a, dtype=a.dtype) for a in arrays]
    mirror: dict[int, Array] = {}
    views = []  # kept, as their ids stand in the mirror

    def view(k: int | None = None) -> Any:
        k = r.randrange(len(roots)) if k is None else k
        t, a = some_view(r, roots[k], arrays[k], margin)
        assert t.shape == a.shape
        mirror[id(t)] = a
        views.append(t)
        return t

    known: list[Node] = [(view(), 3) for _ in range(r.randint(1, 4))]
    for _ in range(r.randint(1, 14)):
        node = grow(r, be, known, PLAIN if alike else KINDS)
        if math.prod(node[0].shape) <= LARGEST:
            known.append(node)
    if r.random() < 0.4:  # a target that is no operand
        arrays.append(np.zeros(r.choice(known)[0].shape, r.choice(["float32", "float32", "int32"])))
        roots.append(be.array(arrays[-1], dtype=arrays[-1].dtype))
    targets = [view(-1 if r.random() < 0.6 else None) for _ in range(r.choice([1, 1, 2, 3]))]
    values = [fit(r, be, r.choice(known[-4:]), t.shape)[0] for t in targets]
    for _ in range(2):
        for t, a in zip(roots, arrays, strict=True):
            a[...] = np.reshape([r.randint(-3, 3) for _ in range(a.size)], a.shape)
            t.set(a)
        done: dict[int, Array] = {}
        with np.errstate(divide="ignore", over="ignore"):
            expected = [compute(x, mirror, done) for x in values]
        if len(targets) == 1:
            targets[0][:] = values[0]
        else:
            be.assign(targets, values)
        for t, x in zip(targets, expected, strict=True):
            mirror[id(t)][...] = x
        for t, a in zip(roots, arrays, strict=True):
            np.testing.assert_array_equal(t.get(), a)
