"""Does every op of the table say what the textbook says: value, shape, dtype, derivative?  On every runtime.

The cases are made from the table, so a new elementwise op or reduction is tested from its first day; an op of another
kind fails ``test_every_op_has_...`` until it has a reference and cases of its own.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from reference import REFERENCE

from neonlite import Autodiff, Backend
from neonlite.backend.executors.blocked import THREADED, WHOLE
from neonlite.backend.executors.numpy_words import WORDS
from neonlite.ops import OPS, TABLE, Op, missing

FLAT = {"sgn", "rint", "finite", "stop_gradient", "eq", "ne", "lt", "le", "gt", "ge", "argmax", "argmin", "onehot"}
FLAT |= {"rand", "randn"}
FLAT_OPERANDS = {("shift", 1), ("where", 0)}
TIES = {"assign", "pair"}  # they hold trees together and have no derivative of their own
ROW = {op.name: op for op in TABLE}


# --- cases ----------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """An op on operands: a tuple is a shape to be filled at random, an array holds indices, a number is a number."""

    op: str
    operands: tuple[Any, ...]
    attrs: dict[str, Any]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [x for x in self.operands if isinstance(x, tuple)]


SHAPES = [(2, 3), (1, 1), (5, 1), (1, 4), (4, 4), (3, 2, 2), (1, 1, 3), (2, 1, 3, 2), (2, 1, 2, 1, 2), (0, 3), (2, 0, 2)]
PAIRS = [
    *(((2, 3), (2, 3)), ((2, 3), (2, 1)), ((2, 1), (2, 3)), ((2, 3), (1, 3)), ((1, 3), (2, 3)), ((2, 3), (1, 1))),
    *(((1, 1), (3, 2)), ((3, 1), (1, 4)), ((1, 4), (3, 1)), ((1, 1), (1, 1)), ((2, 3, 2), (2, 3, 2))),
    *(((2, 3, 2), (3, 2)), ((3, 2), (2, 3, 2)), ((2, 3, 2), (2, 1, 2)), ((1, 3, 1), (2, 1, 2)), ((3, 1), (2, 1, 2))),
    *(((2, 1, 1, 3), (1, 2, 2, 1)), ((2, 2), (2, 1, 2, 2)), ((0, 3), (1, 3)), ((2, 0, 2), (2, 1, 1))),
]
NUMBERS = [-1, 1, 2, 3, 9, 0.5, 2.25]
BOXES = [(0, 4, 1), (1, 2, 1), (0, 2, 2), (1, 2, 2), (3, 4, -1), (3, 2, -2), (2, 1, 1), (0, 0, 1)]  # of an axis of 4


def subsets(ndim: int) -> list[Any]:
    """Every way to name some axes: None, numbers from either end, tuples."""
    several = [c for k in range(1, ndim + 1) for c in itertools.combinations(range(ndim), k)]
    return [None, *range(-ndim, ndim), *several, tuple(range(-1, -ndim - 1, -1))]


def unary(op: Op) -> Iterator[Case]:
    return (Case(op.name, (shape,), {}) for shape in SHAPES)


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
    for x, y in [((), ()), ((2,), (2,)), ((2,), ()), ((), (3,)), ((2,), (1,)), ((2, 1), (3,)), ((1, 2), (3, 1)), ((0,), ())]:
        yield Case(op.name, ((*x, 2, 3), (*y, 3, 2)), {})
        yield Case(op.name, ((*x, 1, 2), (*y, 2, 3)), {})


def transpose(op: Op) -> Iterator[Case]:
    for shape in [(2, 3), (1, 4), (2, 3, 4), (2, 1, 3, 2), (0, 2)]:
        yield from (Case(op.name, (shape,), {"axes": axes}) for axes in itertools.permutations(range(len(shape))))


def reshape(op: Op) -> Iterator[Case]:
    for size, shapes in {
        12: [(12, 1), (3, 4), (2, 6), (2, 3, 2), (1, 2, 3, 2)],
        1: [(1, 1), (1, 1, 1)],
        0: [(0, 2), (3, 0, 1)],
    }.items():
        assert all(math.prod(shape) == size for shape in shapes)
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


MAKERS: dict[str, Callable[[Op], Iterator[Case]]] = {
    **{op.name: (unary, binary, where)[op.arity - 1] for op in TABLE if op.kind == "elementwise"},
    **{op.name: reduction for op in TABLE if op.kind == "reduction" or op.result == "index"},
    **{"dot": dot, "matmul": matmul, "transpose": transpose, "reshape": reshape, "broadcast": broadcast},
    **{"slice": slices, "unslice": unslices, "concat": concat, "take": take, "scatter": scatter, "onehot": onehot},
}
CASES = {name: list({repr(case): case for case in make(ROW[name])}.values()) for name, make in MAKERS.items()}
GRADIENTS = {name: cases for name, cases in CASES.items() if name not in FLAT}
LAYOUTS = ["tensor", "view", "node"]

METHOD_OF = {"concat": lambda be, *xs, axis: be.concat(xs, axis)}
BUILT = ("slice", "unslice", "scatter", "reshape", "broadcast", "transpose")
METHOD_OF |= {name: lambda be, *xs, op=name, **attrs: be.build(op, *xs, **attrs) for name in BUILT}


def call(be: Backend, name: str, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """Return the tree that a user would write."""
    return METHOD_OF[name](be, *operands, **attrs) if name in METHOD_OF else getattr(be, OPS[name].method)(*operands, **attrs)


@cache
def drawn(key: str, shape: tuple[int, ...], low: float, high: float, coarse: bool) -> Any:
    values = np.random.default_rng(zlib.crc32(key.encode())).uniform(low, high, shape)
    return np.round(2 * values) / 2 if coarse else values


def fill(case: Case) -> list[Any]:
    """Return the operands; those of flat ops are halves, so that some are equal and some lie halfway."""
    domain, coarse = OPS[case.op].domain, case.op in FLAT
    return [
        drawn(f"{case} {i}", x, *domain, coarse) if isinstance(x, tuple) else x for i, x in enumerate(case.operands)
    ]


def room(be: Backend, shape: tuple[int, ...], dtype: str, layout: str) -> Any:
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
    tensor = room(be, x.shape, dtype, layout)
    tensor[:] = x / 2 if layout == "node" else x
    return tensor, (2 * tensor if layout == "node" else tensor)


# --- the table is whole ---------------------------------------------------------------------------------------------


def test_every_op_has_a_reference_and_cases() -> None:
    assert len({op.name for op in TABLE}) == len({op.method for op in TABLE}) == len(TABLE)
    assert set(REFERENCE) == set(ROW)
    assert set(CASES) == set(ROW) - TIES - {"rand", "randn"}
    assert all(CASES.values())


def test_every_op_has_a_gradient_check_or_is_flat_by_name() -> None:
    assert {op.name for op in TABLE if op.grad is None} == FLAT
    assert {op.name for op in TABLE if op.grad is missing} == TIES
    assert set(GRADIENTS) == set(ROW) - FLAT - TIES


def test_there_are_a_thousand_gradient_cases_before_layouts() -> None:
    assert len({repr(case) for cases in GRADIENTS.values() for case in cases}) >= 1000


def test_numpy_spells_every_elementwise_op() -> None:
    assert set(WORDS) - {"cast"} == {op.name for op in TABLE if op.kind == "elementwise"}


@pytest.mark.parametrize("op", TABLE, ids=lambda op: op.name)
def test_every_op_says_what_it_is(op: Op) -> None:
    assert op.doc
    method = getattr(Backend, op.method, None)
    if op.name not in ("assign", "pair", "slice", "unslice", "scatter"):  # trees and derivatives make these
        assert method is not None
        assert method.__name__ == op.method
        assert method.__doc__


METHODS = {"neg": "negative", "abs": "absolute", "sqr": "square", "sub": "subtract", "mul": "multiply", "div": "divide"}
METHODS |= {"pow": "power", "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater"}
METHODS |= {"ge": "greater_equal", "broadcast": "broadcast_to"}


def test_methods_are_named_as_in_the_guide() -> None:
    assert {op.name: op.method for op in TABLE if op.name != op.method} == METHODS


# --- values ---------------------------------------------------------------------------------------------------------

CLOSE = {"float64": (1e-12, 1e-13), "float32": (2e-6, 1e-6), "float16": (4e-3, 4e-3)}


def expected_dtype(op: Op, dtype: str) -> str:
    return "int32" if op.name in ("argmax", "argmin") else "float32" if op.name == "onehot" else dtype


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("name", CASES)
def test_the_value_is_what_the_textbook_says(be: Backend, name: str, dtype: str, layout: str) -> None:
    if dtype not in be.runtime.dtypes:
        with pytest.raises(TypeError, match=f"has no dtype '{dtype}'"):
            be.array([1.0], dtype=dtype)
        return
    rtol, atol = CLOSE[dtype]
    for case in CASES[name]:
        xs = [x.astype(dtype) if getattr(x, "dtype", None) == "float64" else x for x in fill(case)]
        wide = [x.astype("float64") if getattr(x, "dtype", None) == dtype else x for x in xs]
        expected = REFERENCE[name](*wide, **case.attrs)
        tree = call(be, name, [placed(be, x, dtype, layout)[1] for x in xs], case.attrs)
        assert tree.shape == expected.shape, case
        assert tree.dtype == expected_dtype(ROW[name], dtype), case
        out = room(be, tree.shape, tree.dtype.name, layout)
        out[:] = tree
        assert out.dtype == tree.dtype
        np.testing.assert_allclose(out.get(), expected, rtol, atol, err_msg=str(case))
        if layout == "view":
            assert np.count_nonzero(out.root.get() == 99) == out.root.size - out.size, case


FLOATS_OF_INTS = {"sqrt", "exp", "exp2", "log", "log2", "safelog", "sig", "tanh", "div", "shift", "finite", "onehot"}
FLOATS_OF_INTS |= {"eq", "ne", "lt", "le", "gt", "ge"}


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
@pytest.mark.parametrize("name", CASES)
def test_the_value_of_ints_is_what_the_textbook_says(be: Backend, name: str, dtype: str) -> None:
    kind = "index" if name.startswith("arg") else "float32" if name in FLOATS_OF_INTS else dtype
    low = 1 if ROW[name].domain[0] > 0 or dtype == "uint8" else -4
    for case in CASES[name]:
        negative = any(isinstance(x, int) and x < 0 for x in case.operands)
        if any(isinstance(x, float) for x in case.operands) or (negative and (name == "pow" or dtype == "uint8")):
            continue  # not ints, or the result would not be
        xs = [np.round(x).astype(dtype).clip(low, 3) if getattr(x, "dtype", "") == "float64" else x for x in fill(case)]
        tree = call(be, name, [be.array(x, dtype=x.dtype) if isinstance(x, np.ndarray) else x for x in xs], case.attrs)
        assert tree.dtype == {"index": "int32"}.get(kind, kind), case
        expected = REFERENCE[name](*xs, **case.attrs).astype(tree.dtype)
        rtol, atol = CLOSE["float32"] if kind == "float32" else (0, 0)
        np.testing.assert_allclose(tree.asnumpyarray(), expected, rtol, atol, err_msg=str(case))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("name", ["rand", "randn"])
def test_random_numbers_are_those_of_the_stream(name: str, dtype: str) -> None:
    for runtime in ("cpu", "strict")[: 1 + (dtype != "float16")]:
        be = Backend.allocate_backend(runtime, rng_seed=7, default_dtype=dtype)
        tree = getattr(be, name)(3, 5)
        assert (tree.shape, tree.dtype) == ((3, 5), dtype)
        expected = REFERENCE[name](to=(3, 5), seed=7, bits=int(dtype[5:]))
        np.testing.assert_allclose(tree.asnumpyarray(), expected, *CLOSE[dtype])


# --- derivatives ----------------------------------------------------------------------------------------------------

STEP = 1e-5


def off(analytic: Any, numeric: Any) -> float:
    """The largest error, each relative to its own size, or to a thousandth of the largest where it is smaller."""
    assert analytic.shape == numeric.shape
    if not numeric.size:
        return 0.0
    size = np.maximum(abs(numeric), 1e-3 * max(1.0, abs(numeric).max()))
    return float((abs(analytic - numeric) / size).max())


def slope(f: Callable[..., Any], xs: Sequence[Any], k: int, direction: Any) -> Any:
    """df along a direction in operand k: the central difference."""
    up, down = ([*xs[:k], xs[k] + sign * STEP * direction, *xs[k + 1 :]] for sign in (1, -1))
    return (f(*up) - f(*down)) / (2 * STEP)


def numeric_gradient(f: Callable[..., Any], xs: Sequence[Any], k: int, dz: Any) -> Any:
    """The gradient of sum(f * dz) in operand k, element by element."""
    gradient = np.zeros(xs[k].shape)
    for at in np.ndindex(*gradient.shape):
        one = np.zeros(gradient.shape)
        one[at] = 1.0
        gradient[at] = (slope(f, xs, k, one) * dz).sum()
    return gradient


def differentiable(case: Case) -> list[int]:
    return [i for i, x in enumerate(case.operands) if isinstance(x, tuple)]


_numeric: dict[str, list[Any]] = {}


def by_the_book(case: Case) -> tuple[list[Any], Any, list[Any]]:
    """Return (operands, error of the result, gradients by the reference), for all runtimes and layouts."""
    xs, key = fill(case), repr(case)
    f = lambda *operands: REFERENCE[case.op](*operands, **case.attrs)
    dz = drawn(key + "dz", f(*xs).shape, -2, 2, False)
    if key not in _numeric:
        _numeric[key] = [
            np.zeros(xs[k].shape) if (case.op, k) in FLAT_OPERANDS else numeric_gradient(f, xs, k, dz)
            for k in differentiable(case)
        ]
    return xs, dz, _numeric[key]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", GRADIENTS)
def test_the_gradient_is_that_of_finite_differences(be64: Backend, name: str, layout: str) -> None:
    for case in GRADIENTS[name]:
        xs, dz, numeric = by_the_book(case)
        tensors, operands = zip(*(placed(be64, x, "float64", layout) for x in xs), strict=True)
        tree = call(be64, name, operands, case.attrs)
        asked = [tensors[k] for k in differentiable(case)]
        analytic = Autodiff(tree, be64, be64.array(dz)).get_grad_asnumpyarray(asked)
        for x, dx, expected in zip(asked, analytic, numeric, strict=True):
            assert dx.shape == x.shape
            assert off(dx, 2 * expected if layout == "node" else expected) <= 1e-6, case


def test_a_tensor_that_is_both_operands_gets_both_gradients(be64: Backend) -> None:
    square = drawn("twice", (3, 3), 0.5, 2.0, False)
    dz = drawn("twice dz", (3, 3), -2, 2, False)
    for name in ("add", "sub", "mul", "div", "pow", "dot", "matmul"):
        x = be64.array(square)
        numeric = numeric_gradient(lambda x, name=name: REFERENCE[name](x, x), [square], 0, dz)
        analytic = Autodiff(call(be64, name, [x, x], {}), be64, be64.array(dz)).get_grad_asnumpyarray(x)
        assert off(analytic, numeric) <= 1e-6, name


@pytest.mark.parametrize("name", GRADIENTS)
def test_the_gradient_of_the_gradient_is_that_of_finite_differences(be64: Backend, name: str) -> None:
    """E = sum(w dx): its gradients in the operands by differences of E, and in the error by those of the reference."""
    be = be64
    for case in GRADIENTS[name]:
        xs, dz, _ = by_the_book(case)
        operands = [placed(be, x, "float64", "tensor")[0] for x in xs]
        tree, error = call(be, name, operands, case.attrs), be.array(dz)
        asked = [operands[k] for k in differentiable(case)]
        ways = [drawn(f"{case} way {k}", x.shape, -2, 2, False) for k, x in enumerate(asked)]
        grads = Autodiff(tree, be, error).get_grad_op_tree(asked)
        energy = sum((be.sum(dx * be.array(way)) for dx, way in zip(grads, ways, strict=True)), start=0)
        *analytic, in_error = Autodiff(energy, be, allow_unused=True).get_grad_asnumpyarray([*asked, error])

        def worth(*values: Any, energy: Any = energy, asked: Any = asked) -> Any:
            for x, value in zip(asked, values, strict=True):
                x[:] = value
            return energy.asnumpyarray()

        start = [xs[k] for k in differentiable(case)]
        for k, dx in enumerate(analytic):
            assert off(dx, numeric_gradient(worth, start, k, 1.0)) <= 1e-6, case
            worth(*start)
        f = lambda *operands, case=case: REFERENCE[case.op](*operands, **case.attrs)
        pushed = [
            slope(f, xs, k, way)
            for k, way in zip(differentiable(case), ways, strict=True)
            if (case.op, k) not in FLAT_OPERANDS
        ]
        assert off(in_error, sum(pushed, start=np.zeros(dz.shape))) <= 1e-6, case


@pytest.mark.parametrize("name", sorted(FLAT & set(CASES) - {"argmax", "argmin", "onehot"}))
def test_the_gradient_through_a_flat_op_is_zero(be64: Backend, name: str) -> None:
    case = CASES[name][0]
    x, *others = (be64.array(x) for x in fill(case))
    slopes = Autodiff(3 * x + call(be64, name, [x, *others], case.attrs), be64).get_grad_asnumpyarray(x)
    assert (slopes == 3).all()


def test_places_of_extremes_are_flat(be64: Backend) -> None:
    x = be64.array([[1.0, 3.0], [2.0, 0.0]])
    for tree in (be64.argmax(x), be64.argmin(x)):
        np.testing.assert_array_equal(Autodiff(tree * x, be64).get_grad_asnumpyarray(x), [[1, 1], [0, 0]] if "argmax" in str(tree) else [[0, 0], [1, 1]])
