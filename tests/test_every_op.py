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
        yield Case(op.name, (b, a, a), {})
    yield from (Case(op.name, operands, {}) for operands in [((2, 3), 1, (1, 3)), ((2, 3), (2, 1), 0.5), ((2, 1), 1, 2)])


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
CASES = {name: list(make(ROW[name])) for name, make in MAKERS.items()}
GRADIENTS = {name: cases for name, cases in CASES.items() if name not in FLAT}
LAYOUTS = ["tensor", "view", "node"]

METHOD_OF = {"concat": lambda be, *xs, axis: be.concat(xs, axis)}
METHOD_OF |= {name: lambda be, *xs, _name=name, **attrs: be.build(_name, *xs, **attrs) for name in ("slice", "unslice")}
METHOD_OF |= {"scatter": lambda be, *xs, **attrs: be.build("scatter", *xs, **attrs)}


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
    cases = [repr(case) for cases in GRADIENTS.values() for case in cases]
    assert len(set(cases)) == len(cases) >= 1000


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


WHOLE_NUMBERS = {name for name, op in ROW.items() if op.result == "same" and name in CASES}
FLOATS_OF_INTS = {"sqrt", "exp", "exp2", "log", "log2", "safelog", "sig", "tanh", "div", "shift", "finite", "onehot"}
FLOATS_OF_INTS |= {"eq", "ne", "lt", "le", "gt", "ge"}


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
@pytest.mark.parametrize("name", CASES)
def test_the_value_of_ints_is_what_the_textbook_says(be: Backend, name: str, dtype: str) -> None:
    kind = "index" if name.startswith("arg") else "float32" if name in FLOATS_OF_INTS else dtype
    low = 1 if ROW[name].domain[0] > 0 or dtype == "uint8" else -4
    for case in CASES[name]:
        if any(isinstance(x, float) or (x == -1 and (dtype == "uint8" or name == "pow")) for x in case.operands if not isinstance(x, np.ndarray)):
            continue
        xs = [np.round(x).astype(dtype).clip(low, 3) if getattr(x, "dtype", "") == "float64" else x for x in fill(case)]
        tree = call(be, name, [be.array(x, dtype=x.dtype) if isinstance(x, np.ndarray) else x for x in xs], case.attrs)
        assert tree.dtype == {"index": "int32"}.get(kind, kind), case
        expected = REFERENCE[name](*xs, **case.attrs).astype(tree.dtype)
        np.testing.assert_allclose(tree.asnumpyarray(), expected, *((2e-6, 1e-6) if kind == "float32" else (0, 0)), err_msg=str(case))
