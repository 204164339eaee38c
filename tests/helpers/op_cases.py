"""Cases of every op, generated from the op table, and comparisons of their values and gradients with reference.py."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial, reduce
from typing import Any, NamedTuple

import numpy as np
import pytest

from helpers.parametrize import part
from helpers.reference import REFERENCE, slope
from helpers.runtimes import lacks
from neonlite import Autodiff, Backend
from neonlite.ops import OP_TABLE, OPS, Op

FLAT = {"sgn", "rint", "finite", "stop_gradient", "eq", "ne", "lt", "le", "gt", "ge", "argmax", "argmin", "onehot"}
FLAT |= {
    "rand",
    "randn",
    "random_mask",
    "random_words",
    "floor",
    "ceil",
    "trunc",
    "isnan",
    "isinf",
    "signbit",
    "floor_divide",
}
FLAT |= {"logical_and", "logical_or", "logical_xor", "logical_not", "bitwise_and", "bitwise_or", "bitwise_xor"}
FLAT |= {"bitwise_invert", "bitwise_left_shift", "bitwise_right_shift", "random_words"}
OF_INT8 = {"quantized_dot", "quantized_conv"}  # which refuse to be differentiated
FLAT |= {"argsort", "searchsorted", "slogdet_sign", "max_pool_indices", "roi_pool_indices"}
MATRIX_OPS = {op.name for op in OP_TABLE if op.compute_dtypes}  # linear algebra, in float32 and float64
CELLS = ("rnn", "lstm", "gru")
# their results are sums of products: in float32, some of their errors are larger than one of rounding
RECURRENT = {"lstm_state"} | {f"{cell}{end}" for cell in CELLS for end in ("", "_backward")}
ATTENTION = {"fused_attention", "attention_stats", "fused_attention_backward"}
SUMS_OF_PRODUCTS = MATRIX_OPS | RECURRENT | ATTENTION
# their vectors are unique but for the sign, and are compared by their squares
SIGN_FREE = {"qr_q", "qr_r", "svd_u", "svd_vh", "eigh_vectors"}
INTEGER_OPS = {op.name for op in OP_TABLE if op.integers_only}  # floats are refused
FLAT_OPERANDS = {("shift", 1), ("where", 0), ("copysign", 1), ("nextafter", 1), ("after", 1)}
ROW = {op.name: op for op in OP_TABLE}


EVALUATED_TOGETHER = 32  # trees of one shape, which are one kernel on a GPU


class Case(NamedTuple):
    """An op on operands: a tuple is a shape to be filled at random, an array holds indices, a number is a number."""

    op: str
    operands: tuple[Any, ...]
    attrs: dict[str, Any]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [x for x in self.operands if isinstance(x, tuple)]


SHAPES = [(2, 3), (1, 1), (5, 1), (1, 4), (4, 4), (3, 2, 2), (1, 1, 3), (2, 1, 3, 2), (2, 1, 2, 1, 2)]
SHAPES += [(0, 3), (2, 0, 2)]
PAIRS = [
    *(((2, 3), (2, 3)), ((2, 3), (2, 1)), ((2, 1), (2, 3)), ((2, 3), (1, 3)), ((1, 3), (2, 3)), ((2, 3), (1, 1))),
    *(((1, 1), (3, 2)), ((3, 1), (1, 4)), ((1, 4), (3, 1)), ((1, 1), (1, 1)), ((2, 3, 2), (2, 3, 2))),
    *(((2, 3, 2), (3, 2)), ((3, 2), (2, 3, 2)), ((2, 3, 2), (2, 1, 2)), ((1, 3, 1), (2, 1, 2)), ((3, 1), (2, 1, 2))),
    *(((2, 1, 1, 3), (1, 2, 2, 1)), ((2, 2), (2, 1, 2, 2)), ((0, 3), (1, 3)), ((2, 0, 2), (2, 1, 1))),
]
ATTRS = {"cast": {"to": "float64"}}
NUMBERS = [-1, 1, 2, 3, 9, 0.5, 2.25]
BOXES = [(0, 4, 1), (1, 2, 1), (0, 2, 2), (1, 2, 2), (3, 4, -1), (3, 2, -2), (2, 1, 1), (0, 0, 1)]  # of an axis of 4


def subsets(ndim: int) -> list[Any]:
    """Every way to name some axes: None, numbers from either end, tuples."""
    several = [c for k in range(1, ndim + 1) for c in itertools.combinations(range(ndim), k)]
    return [None, *range(-ndim, ndim), *several, tuple(range(-1, -ndim - 1, -1))]


def unary(op: Op) -> Iterator[Case]:
    return (Case(op.name, (shape,), ATTRS.get(op.name, {})) for shape in SHAPES)


def binary(op: Op) -> Iterator[Case]:
    for attrs in [{"value": True}, {"value": False}] if op.name == "shift" else [{}]:
        yield from (Case(op.name, pair, attrs) for pair in PAIRS)
        for n in NUMBERS:
            yield Case(op.name, ((2, 3), n), attrs)
            if op.name != "pow" or n > 0:  # a negative number to any power is no real number
                yield Case(op.name, (n, (2, 1, 3)), attrs)


def where(op: Op) -> Iterator[Case]:
    for a, b in PAIRS:
        yield Case(op.name, (a, b, a), {})
        yield Case(op.name, (b, a, b), {})
    yield from (Case(op.name, operands, {}) for operands in [((2, 3), 1, (1, 3)), ((2, 3), (2, 1), 0.5)])


def reduction(op: Op) -> Iterator[Case]:
    for shape in [(2, 3), (1, 1), (4, 1), (3, 2, 4), (1, 2, 3), (2, 3, 1, 2)]:
        for axis, keepdims in itertools.product(subsets(len(shape)), [True, False]):
            yield Case(op.name, (shape,), {"axis": axis, "keepdims": keepdims})
    for shape, axis in [((0, 3), 1), ((2, 0, 2), 0), ((2, 0, 2), (0, 2))]:
        yield Case(op.name, (shape,), {"axis": axis})
    if op.name == "sum":
        yield from (Case(op.name, ((0, 3),), {"axis": axis}) for axis in (None, 0, (0, 1)))


def dot(op: Op) -> Iterator[Case]:
    sizes = [(2, 3, 4), (1, 1, 1), (1, 5, 1), (3, 1, 3), (4, 2, 1), (1, 2, 4), (0, 2, 3), (2, 3, 0), (2, 0, 3)]
    return (Case(op.name, ((m, k), (k, n)), {}) for m, k, n in sizes)


def matmul(op: Op) -> Iterator[Case]:
    stacks = [
        ((), ()),
        ((2,), (2,)),
        ((2,), ()),
        ((), (3,)),
        ((2,), (1,)),
        ((2, 1), (3,)),
        ((1, 2), (3, 1)),
        ((0,), ()),
    ]
    for x, y in stacks:
        yield Case(op.name, ((*x, 2, 3), (*y, 3, 2)), {})
        yield Case(op.name, ((*x, 1, 2), (*y, 2, 3)), {})


def transpose(op: Op) -> Iterator[Case]:
    for shape in [(2, 3), (1, 4), (2, 3, 4), (2, 1, 3, 2), (0, 2)]:
        yield from (Case(op.name, (shape,), {"axes": axes}) for axes in itertools.permutations(range(len(shape))))


def reshape(op: Op) -> Iterator[Case]:
    for shapes in [[(12, 1), (3, 4), (2, 6), (2, 3, 2), (1, 2, 3, 2)], [(1, 1), (1, 1, 1)], [(0, 2), (3, 0, 1)]]:
        yield from (Case(op.name, (x,), {"to": to}) for x, to in itertools.permutations(shapes, 2))


def broadcast(op: Op) -> Iterator[Case]:
    for x, to in [(x, y) for x, y in PAIRS if np.broadcast_shapes(x, y) == y]:
        yield Case(op.name, (x,), {"to": to})
    yield from (Case(op.name, ((2, 1),), {"to": (*stack, 2, 3)}) for stack in [(1,), (2,), (2, 1), (0,)])


def boxes() -> Iterator[tuple[Any, Any]]:
    yield from (((4, 4), index) for index in itertools.product(BOXES, BOXES[:5]))
    yield from (((2, 4, 3), ((1, 1, 1), box, (2, 3, -1))) for box in BOXES)


def slices(op: Op) -> Iterator[Case]:
    return (Case(op.name, (shape,), {"index": index}) for shape, index in boxes())


def unslices(op: Op) -> Iterator[Case]:
    return (Case(op.name, (tuple(n for _, n, _ in index),), {"index": index, "to": shape}) for shape, index in boxes())


def concat(op: Op) -> Iterator[Case]:
    for shape in [(2, 3), (1, 1), (2, 1, 3)]:
        for axis, count in itertools.product(range(-len(shape), len(shape)), [1, 2, 3]):
            parts = [tuple(n + k * (a == axis % len(shape)) for a, n in enumerate(shape)) for k in range(count)]
            yield Case(op.name, tuple(parts), {"axis": axis})
    yield Case(op.name, ((0, 3), (2, 3), (0, 3)), {"axis": 0})


INDICES = [[[0, 2, 1]], [[2, 2], [0, 2]], [[-1], [1]], [[1]], np.empty((0, 1))]  # of an axis of 3


def take(op: Op) -> Iterator[Case]:
    for shape, indices in itertools.product([(3, 3), (3, 3, 3)], INDICES):
        for axis in range(-len(shape), len(shape)):
            yield Case(op.name, (shape, np.array(indices, np.int32)), {"axis": axis})


def scatter(op: Op) -> Iterator[Case]:
    for indices in INDICES:
        n = np.size(indices)
        for axis, shape in enumerate([(n, 2, 2), (2, n, 1), (1, 2, n)]):
            yield Case(op.name, (shape, np.array(indices, np.int32)), {"axis": axis, "size": 3})
    yield Case(op.name, ((2, 3), np.array([[1, 1, 0]], np.int32)), {"axis": 1, "size": 4})


def onehot(op: Op) -> Iterator[Case]:
    for labels, axis in itertools.product([[[0, 2, 1, 2]], [[3], [0]], [[1]], np.empty((0, 1))], [0, 1]):
        yield Case(op.name, (np.array(labels, np.int32),), {"axis": axis, "nclass": 4})


def along_axis(op: Op) -> Iterator[Case]:
    flag = {"cumulative_sum": "reverse", "sort": "descending", "argsort": "descending"}.get(op.name)
    for attrs in [{}, {flag: True}] if flag else [{}]:
        for shape in [(2, 3), (1, 1), (5, 1), (3, 2, 4), (0, 2)]:
            yield Case(op.name, (shape,), attrs)
            yield from (Case(op.name, (shape,), {"axis": axis, **attrs}) for axis in range(-len(shape), len(shape)))


def triangle(op: Op) -> Iterator[Case]:
    for shape, k in itertools.product([(3, 3), (2, 4), (4, 1), (2, 1, 2, 3)], [-1, 0, 2]):
        yield Case(op.name, (shape,), {"k": k} if k else {})


def matrices(op: Op) -> Iterator[Case]:
    square = [(3, 3), (1, 1), (2, 2), (2, 3, 3), (2, 1, 2, 2)]
    wide = {"qr_q": [], "qr_r": []}.get(op.name, [(2, 3), (2, 2, 3)])  # no gradient of a QR decomposition
    if op.name == "cofactors_backward":
        yield from (Case(op.name, (shape, shape), {}) for shape in square)
        return
    if op.name == "pinv":
        shapes = [*square, (3, 2), (2, 4), (2, 3, 2)]
        yield from (Case(op.name, (shape, 0.0), {}) for shape in shapes)
        return
    if op.name == "solve":
        yield from (Case(op.name, (x, (*x[:-1], n)), {}) for x in square for n in (1, 2))
        for x, y in [((3, 3), (2, 3, 2)), ((2, 3, 3), (3, 1)), ((2, 1, 2, 2), (3, 2, 1)), ((2, 2, 2), (2, 2))]:
            yield Case(op.name, (x, y), {})
        return
    yield from (Case(op.name, (shape,), {}) for shape in square)
    if op.name.startswith(("qr", "svd")):
        yield from (Case(op.name, (shape,), {}) for shape in [(3, 2), (4, 1), (2, 3, 2), *wide])
    options = {"cholesky": {"upper": True}, "qr_q": {"mode": "complete"}, "qr_r": {"mode": "complete"}}
    options |= {key: {"full_matrices": True} for key in ("svd_u", "svd_vh")}
    if op.name in options:
        yield from (Case(op.name, (shape,), options[op.name]) for shape in square)


def searchsorted(op: Op) -> Iterator[Case]:
    for x, values in [((1, 5), (1, 1)), ((5, 1), (2, 3)), ((1, 1), (2, 2, 2))]:
        yield from (Case(op.name, (x, values), attrs) for attrs in ({}, {"side": "right"}))


ALONG = [[[0, 2, -1], [1, 1, 0], [2, 0, -3]], [[[0, 0]] * 3, [[1, -2]] * 3], np.zeros((3, 0))]


def take_along_axis(op: Op) -> Iterator[Case]:
    for indices in ALONG:
        for axis in range(-np.ndim(indices), np.ndim(indices)):
            shape = tuple(3 if a == axis % np.ndim(indices) else n for a, n in enumerate(np.shape(indices)))
            yield Case(op.name, (shape, np.array(indices, np.int32)), {"axis": axis})
    yield Case(op.name, ((2, 4), np.array([[3], [0]], np.int32)), {})


def scatter_along_axis(op: Op) -> Iterator[Case]:
    for indices in ALONG:
        for axis, size in itertools.product(range(np.ndim(indices)), (3, 5)):
            yield Case(op.name, (np.shape(indices), np.array(indices, np.int32)), {"axis": axis, "size": size})


class ImageAxis(NamedTuple):
    """An axis of images."""

    size: int
    window: int
    stride: int
    padding: tuple[int, int]
    dilation: int


def image_axes(rng: np.random.Generator, count: int, pooling: bool = False) -> list[ImageAxis]:
    """Draw axes, each with at least one window; the padding of a pooling is smaller than its window."""
    axes: list[ImageAxis] = []
    while len(axes) < count:
        size, k, stride = (int(n) for n in rng.integers(1, (6 - count, 4, 4)))
        before, after, dilation = (int(n) for n in rng.integers((0, 0, 1), (3, 3, 3)))
        dilation = 1 if pooling else dilation
        if dilation * (k - 1) < size + before + after and not (pooling and max(before, after) >= k):
            axes.append(ImageAxis(size, k, stride, (before, after), dilation))
    return axes


NUM_IMAGE_CASES = 36


@cache
def convolutions() -> list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], dict[str, Any]]]:
    """Return the shapes of images, filters and results of convolutions, and their attributes."""
    rng, found = np.random.default_rng(1), []
    for n in range(NUM_IMAGE_CASES):
        sizes, window, strides, padding, dilation = zip(*image_axes(rng, n % 3 + 1), strict=True)
        groups, c, k, N = (int(x) for x in rng.integers(1, (4, 3, 3, 3)))
        groups = 1 if n % 2 else groups
        c, k, N = (0, k, N) if n == 30 else (c, 0, N) if n == 31 else (c, k, 0) if n == 32 else (c, k, N)
        attrs = {"strides": strides, "padding": padding, "dilation": dilation, "groups": groups}
        x, f = (groups * c, *sizes, N), (c, *window, groups * k)
        found.append((x, f, REFERENCE["conv"](np.zeros(x), np.zeros(f), **attrs).shape, attrs))
    return found


def convolution(op: Op) -> Iterator[Case]:
    for x, f, z, attrs in convolutions():
        yield {
            "conv": Case(op.name, (x, f), attrs),
            "conv_backward": Case(op.name, (z, f), attrs | {"to": x}),
            "conv_update": Case(op.name, (x, z), attrs | {"to": f}),
        }[op.name]


@cache
def poolings() -> list[tuple[tuple[int, ...], Any, dict[str, Any]]]:
    """Return shapes of images, the position in each window of its largest pixel, and the attributes of poolings."""
    rng, found = np.random.default_rng(2), []
    for n in range(NUM_IMAGE_CASES):
        (channels,) = (
            image_axes(rng, 1, pooling=True) if n % 2 else [ImageAxis(int(rng.integers(1, 4)), 1, 1, (0, 0), 1)]
        )
        axes = [channels, *image_axes(rng, n % 3 + 1, pooling=True)]
        sizes, window, strides, padding, _ = zip(*axes, strict=True)
        attrs = {"window": window, "strides": strides, "padding": padding, "ceil": n % 4 > 1}
        x = np.round(rng.standard_normal((*sizes, 0 if n == 30 else int(rng.integers(1, 3)))))
        found.append((x.shape, REFERENCE["max_pool_indices"](x, to="", **attrs).astype(np.int32), attrs))
    return found


def pooling(op: Op) -> Iterator[Case]:
    for x, indices, attrs in poolings():
        operands: tuple[Any, ...] = (indices.shape if "unpool" in op.name else x,)
        operands += (indices,) if op.name in ("max_pool_take", "max_unpool") else ()
        to = {"to": x} if "unpool" in op.name else {"to": "uint8"} if op.name == "max_pool_indices" else {}
        for means in [{"mean": False}, {"mean": True}] if op.name.startswith("sum") else [{}]:
            yield Case(op.name, operands, attrs | to | means)


def regions(op: Op) -> Iterator[Case]:
    rng = np.random.default_rng(3)
    for (C, H, W, N), bins, count in [((2, 4, 3, 2), (2, 3), 3), ((1, 5, 6, 1), (1, 1), 2), ((3, 2, 2, 3), (3, 2), 4)]:
        corners = rng.integers(-2, 2 * max(H, W) + 2, size=(4, count))
        y = np.concatenate([rng.integers(0, N, size=(1, count)), corners]).astype(np.int32)
        yield Case(op.name, ((C, H, W, N), y), {"bins": bins, "scale": 0.5})
    yield Case(op.name, ((2, 4, 3, 2), np.zeros((5, 0), np.int32)), {"bins": (2, 2), "scale": 1.0})


MAKERS: dict[str, Callable[[Op], Iterator[Case]]] = {
    **{op.name: (unary, binary, where)[op.arity - 1] for op in OP_TABLE if op.kind == "elementwise"},
    **{op.name: reduction for op in OP_TABLE if op.has_axis},
    **dict.fromkeys(("cumulative_sum", "cumulative_prod", "sort", "argsort"), along_axis),
    **dict.fromkeys(("tril", "triu"), triangle),
    **dict.fromkeys(sorted(MATRIX_OPS), matrices),
}
MAKERS |= {"dot": dot, "matmul": matmul, "transpose": transpose, "reshape": reshape, "broadcast": broadcast}
MAKERS |= {
    "after": lambda op: (Case(op.name, pair, {}) for pair in PAIRS),
    "slice": slices,
    "slice_backward": unslices,
    "concat": concat,
    "take": take,
    "scatter_add": scatter,
    "onehot": onehot,
    "searchsorted": searchsorted,
    "roi_pool_indices": regions,
    "take_along_axis": take_along_axis,
    "scatter_add_along_axis": scatter_along_axis,
}
MAKERS |= dict.fromkeys(("conv", "conv_backward", "conv_update"), convolution)
MAKERS |= dict.fromkeys(("max_pool", "max_pool_indices", "max_pool_take", "max_unpool"), pooling)
MAKERS |= dict.fromkeys(("sum_pool", "sum_unpool"), pooling)


# --- recurrence over time -------------------------------------------------------------------------------------------

FUNCTIONS_OF_CELLS = [("tanh", "sig"), ("identity", "tanh"), ("sig", "sig")]


def recurrence(op: Op) -> Iterator[Case]:
    cell, _, end = op.name.partition("_")
    gates, states = {"rnn": (1, 1), "lstm": (4, 2), "gru": (3, 1)}[cell]
    for (T, F, H, N), reverse in itertools.product([(3, 2, 2, 2), (1, 3, 1, 2), (2, 1, 2, 1)], [False, True]):
        operands: tuple[Any, ...] = ((F, T * N), (gates * H, F), (gates * H, H), (gates * H, 1), *[(H, N)] * states)
        y = (H, T * N)
        operands = ({"": (), "state": (y,), "backward": (y, *[(H, N)] * (states - 1), y)}[end]) + operands
        for functions in FUNCTIONS_OF_CELLS[: 3 - 2 * (T < 3)]:
            names = dict(zip(("activation", "gate_activation"), functions[: 1 + (cell != "rnn")], strict=False))
            yield Case(op.name, operands, {"steps": T, "reverse": reverse, **names})


MAKERS |= dict.fromkeys(sorted(RECURRENT), recurrence)


def heads(op: Op) -> Iterator[Case]:
    for (T, N, H, d), causal in itertools.product([(3, 2, 1, 2), (1, 1, 2, 1), (4, 1, 2, 3)], [False, True]):
        x, z = (T, N, 3, H, d), (T, N, H, d)
        yield from heads_of(op, (x,), z, (N, H, T, 1), causal)
    for stack, (T, S, d, e) in itertools.product([(), (2,), (2, 1), (1, 2, 1)], [(2, 3, 4, 2), (3, 2, 1, 3)]):
        operands = (*stack, T, d), (*stack, S, d), (*stack, S, e)
        yield from heads_of(op, operands, (*stack, T, e), (*stack, T, 1), T < S)


def heads_of(op: Op, operands: tuple[Any, ...], z: Any, stats: Any, causal: bool) -> Iterator[Case]:
    if op.name.endswith("backward"):
        for n in range(len(operands)):
            yield Case(op.name, (z, z, *operands, stats), {"causal": causal, "part": n})
    else:
        yield Case(op.name, operands, {"causal": causal} | ({"to": "float64"} if "stats" in op.name else {}))


MAKERS |= dict.fromkeys(sorted(ATTENTION), heads)

# --- composite ops --------------------------------------------------------------------------------------------------


MORE_OPERANDS = {"layer_norm": 2, "rms_norm": 1, "cross_entropy": 1}  # of the shape of x; those of a norm are optional


def along_axes(op: Op) -> Iterator[Case]:
    attrs = {"eps": 0.25} if "norm" in op.name else {}  # finite differences are exact enough with a large eps only
    for shape in [(2, 3), (4, 1), (3, 2, 2), (2, 1, 3, 2)]:
        operands = (shape,) * (1 + MORE_OPERANDS.get(op.name, 0))
        yield from (Case(op.name, operands, {"axis": axis, **attrs}) for axis in subsets(len(shape)))
    yield Case(op.name, operands, attrs)
    if op.name != "cross_entropy":
        yield from (Case(op.name, (shape,), {"axis": axis}) for shape, axis in [((0, 3), 1), ((2, 0, 2), (0, 2))])
    if attrs:
        yield Case(op.name, ((5, 3),), {})
    if "_norm" in op.name:
        yield Case(op.name, ((3, 4), (3, 1)), attrs)
        yield Case(op.name, ((2, 3, 4), (1, 4)), {"axis": (1, 2), **attrs})


MASKS = [
    ((3, 4), [[1, 0, 2, 0], [0, 0, 1, 1], [1, 0, -1, 1]]),
    ((3, 2, 2), [[[1]], [[0]], [[1]]]),
    ((2, 3), [[0, 0, 0]]),
]


def masked_axes(op: Op) -> Iterator[Case]:
    for shape, mask in MASKS:
        yield from (Case(op.name, (shape, np.array(mask, np.int32)), {"axis": axis}) for axis in subsets(len(shape)))


def activations(op: Op) -> Iterator[Case]:
    name = {"leaky_relu": "slope", "elu": "alpha"}.get(op.name)
    for attrs in [{}, {name: 0.25}, {name: -0.5}, {name: 0.0}] if name else [{}]:
        yield from (Case(op.name, (shape,), attrs) for shape in SHAPES)


def channel_norms(op: Op) -> Iterator[Case]:
    for shape in [(4, 3), (2, 3, 2), (4, 2, 1, 3), (2, 1, 2, 2, 2)]:
        column = (shape[0], 1)
        for operands in [(shape,), (shape, column), (shape, column, column)]:
            for attrs in [{}, {"groups": 2}] if op.name == "group_norm" else [{}]:
                yield Case(op.name, operands, {"eps": 0.25, **attrs})
    yield Case(op.name, ((4, 5, 2),), {})
    if "batch_norm" not in op.name:
        yield Case(op.name, ((4, 2, 0),), {})


def attention(op: Op) -> Iterator[Case]:
    for stack in [(), (2,), (2, 1)]:
        for T, S, d, e in [(2, 3, 4, 2), (1, 1, 1, 1), (3, 2, 1, 3)]:
            operands = (*stack, T, d), (*stack, S, d), (*stack, S, e)
            yield Case(op.name, operands, {})
            yield Case(op.name, (*operands, np.tril(np.ones((T, S), np.int32))), {})
            yield Case(op.name, (*operands, np.zeros((1, S), np.int32)), {})


MAKERS |= dict.fromkeys(("softmax", "log_softmax", "logsumexp", "cross_entropy"), along_axes)
MAKERS |= dict.fromkeys(("normalize", "layer_norm", "rms_norm"), along_axes)
MAKERS |= dict.fromkeys(("silu", "gelu", "leaky_relu", "elu", "softplus"), activations)
MAKERS |= dict.fromkeys(("batch_norm", "shift_batch_norm", "group_norm", "instance_norm"), channel_norms)
MAKERS |= {"masked_softmax": masked_axes, "attention": attention}


def quantized(op: Op) -> Iterator[Case]:
    is_conv = op.name == "quantized_conv"
    scales = 2.0**-7, None  # for int8, inputs from 1 on are clipped; for bfloat16
    for sizes, relu, scale in itertools.product([(1, 1, 1), (3, 4, 2), (2, 5, 6)], [False, True], scales):
        nin, nout, N = sizes
        W: Any = np.arange(4 * nin * nout) * 5 % 7 - 3
        W = W.astype(np.int8) if scale else (W / 8).astype("<f4").view("<i2")[1::2]  # all have 8 significant bits
        attrs: dict[str, Any] = {"scale": scale, "relu": relu}
        if is_conv:
            attrs |= {"strides": (1, 2), "padding": ((1, 0), (0, 0)), "dilation": (1, 1), "groups": 1}
        shape, weights = ((nin, 3, 4, N), (nin, 2, 2, nout)) if is_conv else ((nin, N), (nout, nin))
        columns = ((nout, 1),) * (2 if scale else 1)
        yield Case(op.name, (shape, np.resize(W, weights), *columns), attrs)


MAKERS |= dict.fromkeys(("quantized_dot", "quantized_conv"), quantized)

# --- all cases ------------------------------------------------------------------------------------------------------

CASES = {name: list({repr(case): case for case in make(ROW[name])}.values()) for name, make in MAKERS.items()}
DIFFERENTIABLE = {name for name in CASES if not OPS[name].is_estimator} - FLAT - OF_INT8
GRADIENTS = {name: cases for name, cases in CASES.items() if name in DIFFERENTIABLE}
LAYOUTS = ["tensor", "view", "node"]
OF_FLOATS = [name for name in CASES if name not in INTEGER_OPS]
METHOD_OF = {"concat": lambda be, *xs, **attrs: be.concat(xs, **attrs)}
METHOD_OF |= {
    name: lambda be, x, op=name, **attrs: be.square(getattr(be, op)(x, **attrs)) for name in sorted(SIGN_FREE)
}
BUILT = {op.name for op in OP_TABLE if not op.has_method} | {"reshape", "broadcast", "transpose", "cast", "conv"}
METHOD_OF |= {name: lambda be, *xs, op=name, **attrs: be.build(op, *xs, **attrs) for name in BUILT}


def build_of_many(be: Backend, first: Any, *rest: Any, op: str, **attrs: Any) -> Any:
    """Return the node of an op with more than two operands, which form pairs."""
    others = [reduce(lambda pair, x: be.build("pair", x, pair), reversed(rest))] if rest else []
    return be.build(op, first, *others, **attrs)


OF_MANY = {*OF_INT8, *RECURRENT, *ATTENTION} - {*CELLS}
METHOD_OF |= {name: partial(build_of_many, op=name) for name in sorted(OF_MANY)}


def call(be: Backend, name: str, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """Return the tree that a user would write."""
    return (
        METHOD_OF[name](be, *operands, **attrs)
        if name in METHOD_OF
        else getattr(be, OPS[name].method)(*operands, **attrs)
    )


@cache
def drawn(key: str, shape: tuple[int, ...], low: float, high: float, coarse: bool) -> Any:
    values = np.random.default_rng(zlib.crc32(key.encode())).uniform(low, high, shape)
    return np.round(2 * values) / 2 if coarse else values


def fill(case: Case) -> list[Any]:
    """Return the operands; conditions and those of flat ops are halves: some are equal, some 0, some lie halfway."""
    domain = OPS[case.op].sample_range
    xs = [
        drawn(f"{case} {i}", x, *domain, case.op in FLAT | OF_INT8 or (case.op, i) == ("where", 0))
        if isinstance(x, tuple)
        else x
        for i, x in enumerate(case.operands)
    ]
    if case.op in MATRIX_OPS:  # positive definite, with distinct eigenvalues and singular values
        rows, columns = np.indices(xs[0].shape)[-2:]
        xs[0] = xs[0] / 2 + np.where(rows == columns, 1 + max(xs[0].shape[-2:]) + 2 * rows, 0)
    return [np.sort(xs[0], axis=None).reshape(xs[0].shape), *xs[1:]] if case.op == "searchsorted" else xs


def share(name: str, dtype: str, layout: str) -> Sequence[Case]:
    """Return the cases to test in a dtype and layout: one of six parts, so that nine tests meet each once or twice.

    With NEONLITE_TEST_VARIANTS=all, all cases but of the ops with the most: of these, each case in one layout.
    """
    is_shared = ROW[name].kind == "composite" or any(f"_{x}" in f"_{name}" for x in ("conv", "pool", "unpool", *CELLS))
    n = LAYOUTS.index(layout) + len(LAYOUTS) * list(CLOSE).index(dtype)
    cases = part(CASES[name], name, n, num_parts=6)
    return cases[LAYOUTS.index(layout) :: len(LAYOUTS)] if is_shared and len(cases) == len(CASES[name]) else cases


def able(be: Backend, cases: Sequence[Case]) -> list[Case]:
    """Return the cases that a runtime can do: those that go backwards need negative steps."""
    back = [any(step < 0 for _, _, step in case.attrs.get("index", ())) for case in cases]
    return [
        case
        for case, goes_back in zip(cases, back, strict=True)
        if be.runtime.supports_negative_strides or not goes_back
    ]


def allocate(be: Backend, shape: tuple[int, ...], dtype: str, layout: str) -> Any:
    """Return a tensor; as a view, every second element of a transposed one."""
    if layout != "view":
        return be.zeros(shape, dtype)
    *stack, m, n = (2 * k + 1 for k in shape)
    return be.zeros((*stack, n, m), dtype).fill(99).T[(slice(1, None, 2),) * len(shape)]


def placed(be: Backend, x: Any, dtype: str, layout: str) -> tuple[Any, Any]:
    """Return (the tensor that holds x, or half of it, and the operand that stands for x)."""
    if isinstance(x, int | float):
        return x, x
    if x.dtype.kind == "i":
        return (made := be.array(x, dtype="int32")), made
    tensor = allocate(be, x.shape, dtype, layout)
    tensor[:] = x / 2 if layout == "node" else x
    return tensor, (2 * tensor if layout == "node" else tensor)


CLOSE = {"float64": (1e-12, 1e-13), "float32": (2e-6, 1e-6), "float16": (4e-3, 4e-3), "bfloat16": (2.0**-5, 2.0**-5)}
# the dtypes of results that do not depend on those of operands
DTYPES = {op.name: "int64" for op in OP_TABLE if op.result_dtype == "index"}
DTYPES |= {"onehot": "float32", "cast": "float64", "attention_stats": "float64", "max_pool_indices": "uint8"}
SUM_DTYPES = {op.name for op in OP_TABLE if op.result_dtype == "sum"}  # int64 for integers


def tolerances(name: str, dtype: str, expected: Any) -> tuple[float, float]:
    """Return rtol and atol; large terms of a sum may cancel, and its rounding error is relative to the largest."""
    rtol, atol = CLOSE[dtype]
    if name not in SUMS_OF_PRODUCTS:
        return rtol, atol
    is_wide = dtype in ("float32", "float64")  # sums of 16-bit floats are computed in float32, and rounded once
    largest = float(abs(expected).max(initial=0)) if is_wide else 0.0
    return 20 * rtol, 4 * atol * max(5.0, largest)


def check_value(be: Backend, case: Case, dtype: str, layout: str) -> None:
    xs = [x.astype(dtype) if getattr(x, "dtype", None) == "float64" else x for x in fill(case)]
    wide = [x.astype("float64") if getattr(x, "dtype", None) == dtype else x for x in xs]
    expected = REFERENCE[case.op](*wide, **case.attrs)
    if case.op in MATRIX_OPS and dtype not in ROW[case.op].compute_dtypes:
        with pytest.raises(TypeError, match=rf"{case.op}.*expected float32 or float64, got {dtype}"):
            call(be, case.op, [be.array(x, dtype) for x in xs], case.attrs)
        return
    tree = call(be, case.op, [placed(be, x, dtype, layout)[1] for x in xs], case.attrs)
    assert tree.shape == expected.shape, case
    assert tree.dtype == DTYPES.get(case.op, dtype)
    out = allocate(be, tree.shape, tree.dtype.name, layout)
    out[:] = tree
    rtol, atol = tolerances(case.op, dtype, expected)
    np.testing.assert_allclose(out.get().astype(float), expected, rtol, atol, err_msg=str(case))
    if layout == "view":  # and nothing beside it
        assert np.count_nonzero(out.root.get() == 99) == out.root.size - out.size, case


FLOATS_OF_INTS = {"sqrt", "exp", "exp2", "log", "log2", "safelog", "sig", "tanh", "div", "shift", "finite", "onehot"}
FLOATS_OF_INTS |= {"eq", "ne", "lt", "le", "gt", "ge"}
FLOATS_OF_INTS |= {op.name for op in OP_TABLE if op.result_dtype in ("float", "boolean")}


INTS = ["int8", "int32", "int64", "uint8"]


def check_value_of_ints(be: Backend, name: str, dtype: str) -> None:
    kind = "int64" if name in SUM_DTYPES else DTYPES.get(name, dtype)
    kind = "float32" if name in FLOATS_OF_INTS else kind
    low = 1 if ROW[name].sample_range[0] > 0 or dtype == "uint8" else -4
    high = 1 if ROW[name].sample_range[1] < 1 else 99 if name in MATRIX_OPS else 3
    low, high = (min(low, 0), 1) if name in RECURRENT else (low, high)  # where functions are not saturated
    for case in able(be, part(CASES[name], name, INTS.index(dtype))):
        negative = any(isinstance(x, int) and x < 0 for x in case.operands)
        no_negatives = dtype == "uint8" or name in ("pow", "bitwise_left_shift", "bitwise_right_shift")
        if any(isinstance(x, float) for x in case.operands) or (negative and no_negatives):
            continue  # not ints, or the result would not be
        xs = [
            np.round(x).astype(dtype).clip(low, high) if getattr(x, "dtype", "") == "float64" else x for x in fill(case)
        ]
        if name in MATRIX_OPS or name == "searchsorted":  # negative elements do not wrap, so that the order is kept
            xs = [np.round(x).clip(low, high).astype(dtype) for x in fill(case)]
        tree = call(be, name, [be.array(x, dtype=x.dtype) if isinstance(x, np.ndarray) else x for x in xs], case.attrs)
        assert tree.dtype == kind, case
        expected = REFERENCE[name](*xs, **case.attrs).astype(tree.dtype)
        rtol, atol = tolerances(name, kind, expected) if kind in ("float32", "float64") else (0, 0)
        np.testing.assert_allclose(tree.asnumpyarray(), expected, rtol, atol, err_msg=str(case))


def differentiable(case: Case) -> list[int]:
    return [i for i, x in enumerate(case.operands) if isinstance(x, tuple)]


def fill_with_error(case: Case) -> tuple[list[Any], Any]:
    """Return the operands and the error of the result."""
    xs = fill(case)
    return xs, drawn(f"{case}dz", REFERENCE[case.op](*xs, **case.attrs).shape, -2, 2, False)


def check_gradient(be: Backend, case: Case, layout: str) -> None:
    """Compare gradients with finite differences along a random direction, which meets an error of any element."""
    directions, terms = {}, [np.zeros(1)]  # none, if all operands are flat
    xs, dz = fill_with_error(case)
    f = partial(REFERENCE[case.op], **case.attrs)
    tensors, operands = zip(*(placed(be, x, "float64", layout) for x in xs), strict=True)
    tree = call(be, case.op, operands, case.attrs)
    places = differentiable(case)
    asked = [tensors[k] for k in places]
    for k, x, dx in zip(places, asked, Autodiff(tree, be, be.array(dz)).get_grad_asnumpyarray(asked), strict=True):
        assert dx.shape == x.shape
        if (case.op, k) in FLAT_OPERANDS:
            assert not dx.any(), case
            continue
        directions[k] = drawn(f"{case} direction {k}", dx.shape, -2, 2, False)
        terms.append((dx * directions[k]).ravel())
    numeric = np.sum(slope(f, xs, directions) * dz) * (2 if layout == "node" else 1)
    assert_sum(np.concatenate(terms), numeric, case)


def assert_sum(terms: Any, numeric: Any, case: Case) -> None:
    """Assert the sum of terms; its error is relative to their size."""
    size = max(abs(numeric), 1e-2 * np.sum(abs(terms)), 1e-3)
    assert abs(np.sum(terms) - numeric) <= 1e-6 * size, case


INF, NAN = math.inf, math.nan
EDGES: list[tuple[str, list[list[float]], list[float]]] = [
    ("log", [[0, -0.0, -1, INF, NAN]], [-INF, -INF, NAN, INF, NAN]),
    ("log2", [[0, -1, INF, 8]], [-INF, NAN, INF, 3]),
    ("safelog", [[0, -1, INF, 1e-30, -INF]], [-50, -50, INF, -50, -50]),
    ("exp", [[INF, -INF, 1e4, -1e4, NAN, -0.0]], [INF, 0, INF, 0, NAN, 1]),
    ("exp2", [[INF, -INF, 1e5, -1e5, NAN, 10]], [INF, 0, INF, 0, NAN, 1024]),
    ("sqrt", [[0, INF, -1, NAN]], [0, INF, NAN, NAN]),
    ("sig", [[INF, -INF, 1e4, -1e4, NAN, 0]], [1, 0, 1, 0, NAN, 0.5]),
    ("tanh", [[INF, -INF, 1e4, -1e4, NAN]], [1, -1, 1, -1, NAN]),
    ("neg", [[INF, NAN, 0]], [-INF, NAN, 0]),
    ("abs", [[-INF, NAN, -0.0]], [INF, NAN, 0]),
    ("sgn", [[-INF, INF, 0, -0.0, NAN, 1e-7]], [-1, 1, 0, 0, NAN, 1]),
    ("rint", [[0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, INF, NAN]], [0, 2, 2, 0, -2, 0, INF, NAN]),
    ("finite", [[INF, -INF, NAN, 0, 6e4]], [0, 0, 0, 1, 1]),
    ("sqr", [[-INF, 1e30, NAN]], [INF, 1e60, NAN]),
    ("add", [[INF, INF], [-INF, 1]], [NAN, INF]),
    ("sub", [[INF, INF], [INF, 1]], [NAN, INF]),
    ("mul", [[INF, INF, NAN], [0, -1, 0]], [NAN, -INF, NAN]),
    ("div", [[1, -1, 0, INF, 1, 1], [0, 0, 0, INF, -INF, -0.0]], [INF, -INF, NAN, NAN, 0, -INF]),
    (
        "pow",
        [[0, 0, 2, INF, NAN, -2, -2, -8, 1], [0, -1, INF, 0, 0, 3, -2, 0.5, NAN]],
        [1, INF, INF, 1, 1, -8, 0.25, NAN, 1],
    ),
    ("maximum", [[NAN, 1, INF, -INF], [1, NAN, 2, -INF]], [NAN, NAN, INF, -INF]),
    ("minimum", [[NAN, 1, INF, -INF], [1, NAN, 2, 5]], [NAN, NAN, 2, -INF]),
    ("shift", [[3, 3, -3, 3, 5], [0, -1.4, 1.5, 1e4, 3]], [0, -3, -6, 3 * 2.0**13, 20]),
    ("eq", [[NAN, INF, 0, 1], [NAN, INF, -0.0, 2]], [0, 1, 1, 0]),
    ("ne", [[NAN, INF, 0, 1], [NAN, INF, -0.0, 2]], [1, 0, 0, 1]),
    *((name, [[NAN, 1, 1], [1, NAN, 1]], [0, 0, float(name in ("le", "ge"))]) for name in ("lt", "le", "gt", "ge")),
    ("log10", [[0, -1, INF, 1000, NAN]], [-INF, NAN, INF, 3, NAN]),
    ("expm1", [[INF, -INF, 0, 1e-7, NAN]], [INF, -1, 0, math.expm1(1e-7), NAN]),
    ("log1p", [[INF, -1, -2, 1e-7, NAN]], [INF, -INF, NAN, math.log1p(1e-7), NAN]),
    *((name, [[INF, -INF, NAN, 0]], [NAN, NAN, NAN, zero]) for name, zero in [("sin", 0), ("cos", 1), ("tan", 0)]),
    ("asin", [[1, -1, 2, 0, NAN]], [math.pi / 2, -math.pi / 2, NAN, 0, NAN]),
    ("acos", [[1, -1, 2, 0, NAN]], [0, math.pi, NAN, math.pi / 2, NAN]),
    ("atan", [[INF, -INF, 0, NAN]], [math.pi / 2, -math.pi / 2, 0, NAN]),
    ("sinh", [[INF, -INF, 1e4, 0, NAN]], [INF, -INF, INF, 0, NAN]),
    ("cosh", [[INF, -INF, 1e4, 0, NAN]], [INF, INF, INF, 1, NAN]),
    ("asinh", [[INF, -INF, 0, NAN]], [INF, -INF, 0, NAN]),
    ("acosh", [[INF, 1, 0.5, NAN]], [INF, 0, NAN, NAN]),
    ("atanh", [[1, -1, 2, 0, NAN]], [INF, -INF, NAN, 0, NAN]),
    ("erf", [[INF, -INF, 0, 9, -0.25, 0.5, 3, NAN]], [1, -1, 0, 1, *map(math.erf, (-0.25, 0.5, 3)), NAN]),
    ("floor", [[0.5, -0.5, 2, -2.5, INF, NAN]], [0, -1, 2, -3, INF, NAN]),
    ("ceil", [[0.5, -0.5, 2, -2.5, INF, NAN]], [1, 0, 2, -2, INF, NAN]),
    ("trunc", [[0.5, -0.5, 2, -2.5, -INF, NAN]], [0, 0, 2, -2, -INF, NAN]),
    ("isnan", [[INF, -INF, NAN, 0, 6e4]], [0, 0, 1, 0, 0]),
    ("isinf", [[INF, -INF, NAN, 0, 6e4]], [1, 1, 0, 0, 0]),
    ("signbit", [[INF, -INF, 0, -0.0, -1]], [0, 1, 0, 1, 1]),
    ("logical_not", [[NAN, 0, -0.0, 0.5]], [0, 1, 1, 0]),
    ("logical_and", [[NAN, 0, -0.0, 0.5], [1, NAN, 0, 2]], [1, 0, 0, 1]),
    ("logical_or", [[NAN, 0, -0.0, 0.5], [0, NAN, 0, 2]], [1, 1, 0, 1]),
    ("logical_xor", [[NAN, 0, -0.0, 0.5], [0, NAN, 0, 2]], [1, 1, 0, 0]),
    ("floor_divide", [[7, -7, 7, -7, 1, -1, 0, -1], [2, 2, -2, -2, 0, 0, 0, INF]], [3, -4, -4, 3, INF, -INF, NAN, -1]),
    ("remainder", [[7, -7, 7, -7, 1, INF, -1, 1], [4, 4, -4, -4, 0, 2, INF, INF]], [3, 1, -1, -3, NAN, NAN, INF, 1]),
    ("hypot", [[3, INF, NAN, 3e4, 0], [4, NAN, 1, 4e4, 0]], [5, INF, NAN, 5e4, 0]),
    ("atan2", [[0, 0, -1, 1, INF], [-1, 1, 0, 1, 1]], [math.pi, 0, -math.pi / 2, math.pi / 4, math.pi / 2]),
    ("logaddexp", [[INF, -INF, 1e4, NAN, 0], [-INF, -INF, 1, 0, 0]], [INF, -INF, 1e4, NAN, math.log(2)]),
    ("copysign", [[1, -1, INF, -2], [-0.0, 0, -1, INF]], [-1, 1, -INF, 2]),
    ("nextafter", [[1, -3, NAN, 2], [1, -3, 1, NAN]], [1, -3, NAN, NAN]),
    ("where", [[NAN, 0, -0.0, 2, INF], [1, INF, NAN, 1, 1], [NAN, 5, 5, INF, NAN]], [1, 5, 5, 1, 1]),
]


EDGE_WIDTH = max(len(expected) for _, _, expected in EDGES)
EDGE_RTOL = {"float64": 1e-15, "float32": 1e-6, "float16": 1e-3}


def check_edges(be: Backend, cases: Sequence[tuple[str, list[Any], list[float]]]) -> None:
    """Compare ops at the edges of arithmetic, in rows of one length, so that they are evaluated together."""
    for dtype in [dtype for dtype in EDGE_RTOL if dtype in be.runtime.dtypes]:
        trees, rows = [], []
        for name, operands, expected in cases:
            with np.errstate(over="ignore"):
                *xs, row = (np.resize(np.array([x]).astype(dtype), (1, EDGE_WIDTH)) for x in (*operands, expected))
            trees.append(call(be, name, [be.array(x, dtype) for x in xs], {}))
            rows.append(row)
        for value, row, (name, *_) in zip(be.evaluate(trees), rows, cases, strict=True):
            np.testing.assert_allclose(value.get(), row, EDGE_RTOL[dtype], err_msg=f"{name} {dtype}")


CONDITIONS = [0.5, 1e-46, -1e-300, -1, 256, 2**40, 2**70, NAN, INF, np.float64(1e-46), np.uint8(7), True]
CONDITIONS += [0, 0.0, -0.0, np.float32(0), False]


def check_scalar_condition(be: Backend, n: Any, dtype: str) -> None:
    if lacks(be, dtype):
        return
    x, y = be.array([[1, 2]], dtype=dtype), be.array([[5, 6]], dtype=dtype)
    mask = x > 1
    for tree, chosen, other in [
        (be.where(n, x, y), [1, 2], [5, 6]),
        (be.where(mask, x, y).replace(mask, n), [1, 2], [5, 6]),
        (be.where(n, x, 3), [1, 2], [3, 3]),
        (2 * be.where(n, 3, y), [6, 6], [10, 12]),
    ]:
        assert tree.dtype == dtype
        np.testing.assert_array_equal(tree.asnumpyarray(), [chosen if n != 0 else other])


COMPARISONS = {"equal": np.equal, "not_equal": np.not_equal, "less": np.less, "less_equal": np.less_equal}
COMPARISONS |= {"greater": np.greater, "greater_equal": np.greater_equal}


def check_comparison_of_ints(be: Backend, dtype: str) -> None:
    if lacks(be, dtype):
        return
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    values = [low, 5, high]
    x, whole = be.array(np.array([values], dtype), dtype), np.array([values], dtype=object)
    trees, wanted = [], []
    for n in (low - 1, high + 1, low - 300, high + 10**30, low, high, 5):
        for name, compare in COMPARISONS.items():
            trees += [getattr(be, name)(x, n), getattr(be, name)(n, x), getattr(be, name)(x * 1, n) + 1]
            wanted += [compare(whole, n), compare(n, whole), compare(whole, n) + 1]
            assert {tree.dtype.name for tree in trees[-3:]} == {"float32"}
        for name, pick in {"maximum": max, "minimum": min}.items():
            expected = [pick(n, value) for value in values]
            for tree in (getattr(be, name)(x, n), getattr(be, name)(n, x), getattr(be, name)(n, x * 1)):
                assert tree.dtype == dtype
                if all(low <= value <= high for value in expected):
                    trees.append(tree)
                    wanted.append(np.array([expected], dtype))
                else:
                    message = f"expected an integer from {low} to {high} for {dtype}, got {n}"
                    with pytest.raises(OverflowError, match=message):
                        tree.asnumpyarray()
    for start in range(0, len(trees), EVALUATED_TOGETHER):
        some = slice(start, start + EVALUATED_TOGETHER)
        for tree, value, expected in zip(trees[some], be.evaluate(trees[some]), wanted[some], strict=True):
            np.testing.assert_array_equal(value.get(), expected.astype(tree.dtype), err_msg=str(tree))


SUMS: list[tuple[str, int, Any, Any]] = [
    ("float16", 5000, 1.0, 5000.0),  # float16 represents even integers only above 2048
    ("float16", 4096, 1 + 2**-10, 4100.0),
    ("int8", 200, 1, 200),
    ("int16", 3, -(2**15), -3 * 2**15),
    ("uint8", 300, 1, 300),
    ("uint16", 3, 2**15, 3 * 2**15),
    ("uint32", 3, 2**31, 3 * 2**31),
    ("uint64", 3, 2**61, 3 * 2**61),
    ("int32", 3, 2**30, 3 * 2**30),
    ("int64", 3, 2**40, 3 * 2**40),
    ("int64", 2, 2**53 + 1, 2**54 + 2),
]


def check_sum(be: Backend, dtype: str, n: int, value: Any, total: Any) -> None:
    if lacks(be, dtype):
        return
    x = be.array(np.full((n, 2), value, dtype), dtype=dtype)
    for axis, count in [(0, 1), (None, 2)]:
        tree = be.sum(x, axis=axis)
        assert tree.dtype == (dtype if "float" in dtype or dtype == "uint64" else "int64")
        np.testing.assert_array_equal(tree.asnumpyarray(), np.full(tree.shape, np.array(count * total, tree.dtype)))
    gathered = be.build("scatter_add", x, be.zeros((n, 1), dtype="int32"), axis=0, size=2)  # all to the first of two
    assert gathered.dtype == dtype
    np.testing.assert_array_equal(gathered.asnumpyarray(), np.array([[total] * 2, [0, 0]]).astype(dtype))


CASTS: list[tuple[str, list[Any], str, list[Any]]] = [
    ("float64", [1.9, -1.9, 0.1, -0.1], "int32", [1, -1, 0, 0]),
    ("float32", [0.1, 1e10], "float64", [float(np.float32(0.1)), 1e10]),
    ("float64", [0.1, 1e300], "float32", [float(np.float32(0.1)), math.inf]),
    ("int32", [300, -1, 127], "int8", [44, -1, 127]),
    ("int16", [-1, 7], "uint16", [65535, 7]),
    ("int16", [-1, 300], "uint8", [255, 44]),
    ("int64", [2**24 + 1, -3], "float32", [2**24, -3]),
    ("float32", [2.5, -7.0], "int64", [2, -7]),
]


def check_cast(be: Backend, dtype: str, values: Any, to: str, expected: Any) -> None:
    if lacks(be, dtype, to):
        return
    x = be.array([values], dtype=dtype)
    assert be.astype(x, dtype) is x
    for tree in (be.astype(x, to), be.astype(be.reshape(x, -1, 1), np.dtype(to)).T, be.astype(x + 0, to) + 0):
        assert tree.dtype == to
        np.testing.assert_array_equal(tree.asnumpyarray(), np.array([expected], to))
    with pytest.raises(TypeError, match=r"expected one of the dtypes .*, got 'complex64'"):
        be.astype(x, "complex64")
