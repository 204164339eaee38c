"""Generated CUDA kernels agree with NumPy; a C++ compiler runs them on the CPU.

The reference is op-by-op execution on NumPy arrays, which shares no code with the kernels. ``+ - * / sqrt`` and all ops
on integers must agree to the bit. NVRTC compiles the sources, where it is installed. Most of test_every_op.py runs on
kernels, too, in ``make test-slow``; any file runs on them with NEONLITE_TEST_SIMULATED=1.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import re
import shutil
import threading
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import nvrtc, op_cases
from helpers.parametrize import ARCHITECTURES, thinned
from helpers.simulated_gpu import CLOSE, LAYOUTS, OpByOp, elementwise, numbers, ran, simulated, standardized
from helpers.standin_cupy import installed

from neonlite import Autodiff, Backend, gen_backend
from neonlite.backend.runtimes.cuda import codegen as kernels_module
from neonlite.backend.runtimes.cuda import executor as executor_module
from neonlite.backend.runtimes.cuda.driver import CuPyDriver
from neonlite.backend.runtimes.cuda.libraries import OPTIONS
from neonlite.backend.runtimes.cuda.op_templates import (
    OP_TEMPLATES,
    REDUCE_TEMPLATES,
)
from neonlite.backend.runtimes.cuda.simulator import SimulatedGPU
from neonlite.dtypes import FLOAT_DTYPES, HALF_DTYPES, INT_DTYPES
from neonlite.initializers import Constant
from neonlite.layers import GRU, LSTM, Recurrent
from neonlite.ops import OPS
from neonlite.transforms import Logistic, Tanh

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are simulated with g++, which is not here")

DTYPES = [*FLOAT_DTYPES, "int8", "int32", "int64", "uint8", "uint32", "uint64"]


@pytest.fixture
def sim() -> Backend:
    return simulated()


@pytest.fixture
def plain() -> Backend:
    return Backend(OpByOp(), rng_seed=1)


def agree(
    make: Callable[..., list[Any]], arrays: Sequence[Any], dtype: str, layouts: Any = (), exact: bool = False
) -> int:
    """Assert that kernels and NumPy agree on the trees ``make(be, *operands)``; return how many kernels ran."""
    sim, values = simulated(), []
    for be in (sim, Backend(OpByOp(), rng_seed=1)):
        lay = [layouts[n] if n < len(layouts) else "whole" for n in range(len(arrays))]
        operands = [LAYOUTS[how](be, be.array(x, dtype)) for x, how in zip(arrays, lay, strict=True)]
        if be is sim:
            ran(sim)
        values.append([t.get() for t in be.evaluate(make(be, *operands))])
    for n, (result, wanted) in enumerate(zip(*values, strict=True)):
        assert (result.dtype, result.shape) == (wanted.dtype, wanted.shape)
        if exact or result.dtype.kind in "iu":
            np.testing.assert_array_equal(result, wanted, err_msg=f"tree {n}")
        else:
            close = CLOSE[result.dtype.name]
            np.testing.assert_allclose(*(x.astype(float) for x in (result, wanted)), close, close, err_msg=f"tree {n}")
    return len(ran(sim))


# --- elementwise ops ---


@pytest.mark.parametrize("shape", [(16, 16), (3, 7)], ids=["16 bytes at once", "one by one"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_elementwise_op_has_the_value_of_numpy(dtype: str, shape: tuple[int, int]) -> None:
    low = 0 if dtype[0] == "u" else -3
    arrays = [numbers(*shape, seed=n, low=low).round(n) for n in range(2)] + [numbers(*shape, seed=3, low=0.3).round(1)]
    if dtype not in FLOAT_DTYPES:
        arrays = [np.rint(9 * x) for x in arrays]
    arrays[0].flat[:2] = arrays[1].flat[:2]  # some are equal
    be = Backend(OpByOp())
    names = list(elementwise(be, *(be.zeros((1, 1), dtype) for _ in range(3))))
    for least in range(0, len(names), 16):

        def some(be: Backend, *xs: Any, names: Any = names[least : least + 16]) -> list[Any]:
            trees = elementwise(be, *xs)
            return [trees[name] for name in names]

        assert agree(some, arrays, dtype) == 1  # one pass for all


ALL_BITS = [
    "add",
    "sub",
    "mul",
    "div",
    "sqrt",
    "sqr",
    "neg",
    "abs",
    "sgn",
    "maximum",
    "minimum",
    "rint",
    "where",
    "finite",
]
ALL_BITS += ["eq", "ne", "lt", "le", "gt", "ge"]


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_arithmetic_has_the_bits_of_numpy_also_where_a_gpu_could_use_fma(dtype: str) -> None:
    x, y, p = numbers(64, 8), numbers(64, 8, seed=1), numbers(64, 8, seed=2, low=1e-3)

    def trees(be: Backend, x: Any, y: Any, p: Any) -> list[Any]:
        result = [op_cases.call(be, n, [p if n == "sqrt" else x, y, p][: OPS[n].arity], {}) for n in ALL_BITS]
        return [*result, x * y + p, x * y - y * x, x / p * y - 0.1, 1e-3 * x - y / 3]

    agree(trees, [x, y, p], dtype, exact=True)


@pytest.mark.parametrize("start", range(0, len(op_cases.EDGES), 16))
def test_infinities_nan_and_zeros(sim: Backend, start: int) -> None:
    op_cases.check_edges(sim, op_cases.EDGES[start : start + 16])


def test_infinities_and_nan_are_reduced_as_numpys() -> None:
    x = [[1.0, math.nan, 3.0], [math.inf, 2.0, -math.inf], [-math.inf] * 3, [math.nan, 5.0, math.nan]]
    for axis in (0, 1, (0, 1)):
        agree(
            lambda be, x, axis=axis: [getattr(be, name)(x, axis=axis) for name in REDUCE_TEMPLATES],
            [x],
            "float32",
            exact=True,
        )


@pytest.mark.parametrize(("dtype", "values", "to", "expected"), op_cases.CASTS, ids=str)
def test_astype_casts_as_numpy_does(sim: Backend, dtype: str, values: Any, to: str, expected: Any) -> None:
    op_cases.check_cast(sim, dtype, values, to, expected)


@pytest.mark.parametrize("formula", ["x > 0", "~(x > 0)", "xp.any(xp.isnan(x))", "xp.where(x > 0, x, 0.0)"])
def test_comparisons_of_arrays_are_written_as_uint8(sim: Backend, formula: str) -> None:
    values = np.asarray([-1, 0, 2, np.nan, 5], np.float32)
    got = eval(formula, {"xp": sim.array_api, "x": sim.array_api.asarray(values)})
    np.testing.assert_array_equal(got.numpy(), eval(formula, {"xp": np, "x": values}))


@pytest.mark.parametrize("n", op_cases.CONDITIONS, ids=repr)
def test_a_scalar_condition_is_compared_with_0_before_it_is_rounded(sim: Backend, n: Any) -> None:
    for dtype in ("uint8", "float16", "float32"):
        op_cases.check_scalar_condition(sim, n, dtype)


@pytest.mark.parametrize("dtype", ["int8", "uint32", "int64", "uint64"])
def test_ints_are_compared_with_scalars_out_of_the_range_of_their_dtype(sim: Backend, dtype: str) -> None:
    op_cases.check_comparison_of_ints(sim, dtype)


def test_every_float16_value_is_loaded_and_stored() -> None:
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).reshape(256, 256)
    sim = simulated()
    result = (sim.array(halves, "float16") * 1.0).asnumpyarray()
    np.testing.assert_array_equal(result, halves)
    between = np.concatenate([halves, np.nextafter(halves, np.float16(0))]).astype(np.float64)
    pairs = np.sort(between[np.isfinite(between)])
    ties = (pairs[1:] + pairs[:-1]) / 2  # halfway
    for x in (ties, np.nextafter(ties, np.inf), np.nextafter(ties, -np.inf), 10 * ties):
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(
                sim.astype(sim.array(x, "float64"), "float16").asnumpyarray()[:, 0], x.astype(np.float16)
            )


def casts(sim: Backend, x: Any, dtype: str, to: str) -> Any:
    """Return an array of a dtype, cast to another by a kernel."""
    return sim.astype(sim.array(x, dtype), to).asnumpyarray().reshape(np.shape(x))


EVERY_BFLOAT16 = np.arange(2**16, dtype=np.uint16).view(ml_dtypes.bfloat16).reshape(256, 256)


def test_every_bfloat16_value_is_loaded_and_stored() -> None:
    sim = simulated()
    result = (sim.array(EVERY_BFLOAT16, "bfloat16") * 1.0).asnumpyarray()
    assert result.dtype == ml_dtypes.bfloat16
    wide = casts(sim, EVERY_BFLOAT16, "bfloat16", "float32")
    with np.errstate(invalid="ignore"):  # there are NaN that signal
        np.testing.assert_array_equal(np.isnan(result), np.isnan(EVERY_BFLOAT16))
        np.testing.assert_array_equal(wide, EVERY_BFLOAT16.astype(np.float32))
    none = np.array([[0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF]], np.uint32).view(np.float32)
    assert np.isnan(casts(sim, none, "float32", "bfloat16").astype(np.float32)).all()  # whose upper half is infinite
    some = ~np.isnan(wide)
    np.testing.assert_array_equal(result.view(np.uint16)[some], EVERY_BFLOAT16.view(np.uint16)[some])  # -0.0, too


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bfloat16_rounds_to_nearest_half_to_even(dtype: str) -> None:
    finite = np.sort(EVERY_BFLOAT16[EVERY_BFLOAT16.view(np.uint16) & 0x7FFF < 0x7F80].astype(np.float64))
    ties = (finite[1:] + finite[:-1]) / 2  # subnormal ones among them; all are numbers of float32
    largest = finite[-1] + np.array([0.0, 2.0**119])  # the tie with 2^128 is infinite
    x = np.concatenate([ties, largest, -largest, [np.inf, -np.inf, np.nan, 0.0, -0.0, 2.0**-149]]).astype(np.float32)
    sim = simulated(dtype)
    for values in (x, np.nextafter(x, np.float32(np.inf)), np.nextafter(x, np.float32(-np.inf))):
        with np.errstate(over="ignore"):
            near = casts(sim, values[:, None], dtype, "bfloat16")[:, 0].astype(np.float64)
            np.testing.assert_array_equal(near, values.astype(ml_dtypes.bfloat16).astype(np.float64))
        # no other bfloat16 number is nearer
        finite_mask = np.isfinite(near)
        place = np.searchsorted(finite, near[finite_mask])
        below, above = (finite[np.clip(place + step, 0, len(finite) - 1)] for step in (-1, 1))
        gap = np.abs(values[finite_mask].astype(np.float64) - near[finite_mask])
        assert (gap <= np.abs(values[finite_mask] - below)).all()
        assert (gap <= np.abs(values[finite_mask] - above)).all()


@pytest.mark.parametrize("dtype", [x for x in (*FLOAT_DTYPES, *INT_DTYPES) if x != "bfloat16"])
def test_casts_to_and_from_bfloat16_are_those_of_ml_dtypes(dtype: str) -> None:
    sim, bfloat16 = simulated(), ml_dtypes.bfloat16
    if dtype in FLOAT_DTYPES:
        x = np.concatenate([numbers(500, 1, low=-1e4, high=1e4), numbers(500, 1, low=-1e-4, high=1e-4)])
    else:
        low, high = (float(x) for x in (np.iinfo(dtype).min, np.iinfo(dtype).max))
        x = np.concatenate([np.trunc(numbers(500, 1, low=low * 0.99, high=high * 0.99)), np.arange(120.0)[:, None]])
    there = x.astype(dtype)
    np.testing.assert_array_equal(casts(sim, there, dtype, "bfloat16"), there.astype(bfloat16))
    with np.errstate(invalid="ignore"):
        back = x.astype(bfloat16)
        held = back.astype(np.float64)
        in_range = np.abs(held) <= (np.inf if dtype in FLOAT_DTYPES else 0.99 * np.iinfo(dtype).max)
        np.testing.assert_array_equal(casts(sim, back, "bfloat16", dtype)[in_range], held.astype(dtype)[in_range])


def test_float16_and_bfloat16_promote_to_float32_and_scalars_change_no_dtype(sim: Backend) -> None:
    h, b = sim.array([[0.1, 3]], "float16"), sim.array([[0.1, 3]], "bfloat16")
    assert [(x + y).dtype for x, y in [(h, b), (b, h), (b, sim.ones((1, 2)))]] == ["float32"] * 3
    np.testing.assert_array_equal((h * b).asnumpyarray(), h.get().astype("float32") * b.get().astype("float32"))
    assert [x.dtype for x in (b + 1, 0.1 * b, b * np.float64(2), b / 3, sim.ones((1, 2), "int32") + b)] == [
        "bfloat16"
    ] * 5
    b[:] = h  # an assignment casts
    assert (b.get() == h.get().astype(ml_dtypes.bfloat16)).all()
    b[:] = sim.array([[2**24 + 1, 7]], "int32")
    assert b.get().tolist() == [[2.0**24, 7]]


# --- layouts --------------------------------------------------------------------------------------------------------

WAYS: list[tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...]]] = [
    *(((6, 8), (6, 8), (a, b)) for a in LAYOUTS for b in ("whole", "transposed")),
    *(
        (a, b, ())
        for a, b in [((6, 8), (6, 1)), ((6, 8), (1, 8)), ((6, 8), (1, 1)), ((6, 1), (1, 8)), ((1, 1), (5, 7))]
    ),
    *(
        (a, b, ())
        for a, b in [((2, 3, 8), (2, 1, 8)), ((2, 3, 8), (3, 1)), ((2, 1, 8), (1, 3, 1)), ((2, 3, 4, 2), (3, 1, 2))]
    ),
    *(
        (a, b, (how, how))
        for a, b in [((6, 8), (6, 1)), ((6, 1), (1, 8)), ((2, 3, 4), (2, 1, 4))]
        for how in ("strided", "backwards")
    ),
    *(
        ((2, 3, 8), (3, 8), how)
        for how in [(), ("whole", "transposed"), ("strided", "strided"), ("whole", "backwards")]
    ),
    ((3, 1, 4, 1), (1, 2, 1, 5), ("strided",)),
    ((2, 1, 2, 1, 3), (1, 2, 1, 2, 1), ()),
]


@pytest.mark.parametrize(("x", "y", "layouts"), WAYS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_operands_of_every_layout(dtype: str, x: Any, y: Any, layouts: Any) -> None:
    a, b = np.rint(4 * numbers(*x)), np.rint(4 * numbers(*y, seed=1))
    count = agree(lambda be, a, b: [a - b, be.where(a > b, a, b)], [a, b], dtype, layouts, exact=True)
    assert count == 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_are_written_into_views_and_nowhere_else(sim: Backend, layout: str) -> None:
    x = numbers(6, 8).astype(np.float32)
    target = LAYOUTS[layout](sim, sim.zeros((6, 8)))
    before = target.root.get()
    target[:] = sim.array(x) * 3
    np.testing.assert_array_equal(target.get(), x * np.float32(3))
    assert np.count_nonzero(target.root.get() == 77) == np.count_nonzero(before == 77)
    target[:] = sim.sum(sim.array(x), axis=0) * sim.ones((6, 1))
    np.testing.assert_allclose(target.get(), np.broadcast_to(x.sum(0), (6, 8)), 1e-6, 1e-6)


def test_memory_is_moved_16_bytes_at_a_time_where_it_is_aligned(sim: Backend) -> None:
    x = sim.zeros((1, 1601))
    for tensor, expected in [
        (x[:, :1600], 4),
        (x[:, 1:1601], 1),  # 4 bytes off
        (x[:, 4:1600], 4),
        (x[:, :1599], 1),  # does not come out even
        (sim.zeros((4, 6), "float64"), 2),
        (sim.zeros((4, 6), "float16"), 8),
        (sim.zeros((4, 6), "bfloat16"), 8),
        (sim.zeros((4, 4), "int8"), 16),
        (sim.zeros((4, 8)).T, 1),
    ]:
        ran(sim)
        tensor[:] = tensor + 1
        ((text, _),) = ran(sim)
        assert f"constexpr int V = {expected};" in text, (tensor.shape, text)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("width", [64, 40, 6, 7])
@pytest.mark.parametrize("height", [1, 5, 300])
def test_sums_of_columns_have_the_same_bits_wherever_memory_begins(
    sim: Backend, height: int, width: int, dtype: str
) -> None:
    x = np.random.default_rng(0).normal(size=(height, width)).astype(dtype)
    flat = sim.zeros((1, x.size + 64), dtype=dtype)
    wanted = np.sum(x.astype("float64"), axis=0, keepdims=True)
    results = []
    for start in (0, 1, 2, 8):
        view = flat[:, start : start + x.size].reshape(height, width)
        view[:] = x
        results.append((sim.sum(view, axis=0).asnumpyarray(), sim.argmax(view, axis=0).asnumpyarray()))
        np.testing.assert_allclose(results[-1][0], wanted, 1e-2 if dtype == "float16" else 1e-4, 1e-2)
        np.testing.assert_array_equal(results[-1][1], x.argmax(axis=0, keepdims=True))
    for sums, _ in results[1:]:
        np.testing.assert_array_equal(sums, results[0][0])


# --- reductions -----------------------------------------------------------------------------------------------------


def reductions(be: Backend, x: Any, axis: Any) -> list[Any]:
    return [
        *(getattr(be, n)(x * 2, axis=axis) for n in ("sum", "max", "min")),
        be.sum(x, axis=axis, keepdims=False),
        x * 2,
    ]


@pytest.mark.parametrize(
    "shape", [(6, 8), (5, 7), (1, 9), (9, 1), (2, 3, 4), (3, 2, 1, 5), (70, 300), (300, 70), (2, 1, 2, 1, 2)], ids=str
)
def test_reductions_over_any_axes(shape: tuple[int, ...]) -> None:
    x = np.rint(4 * numbers(*shape))  # sums of integers are exact in any order
    for k in range(1, len(shape) + 1):
        for axis in itertools.combinations(range(len(shape)), k):
            agree(lambda be, x, axis=axis: reductions(be, x, axis), [x], "float32", exact=True)
            agree(lambda be, x, axis=axis: [be.argmax(x, axis=axis), be.argmin(x, axis=axis)], [x], "float32")


@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions_of_every_dtype(dtype: str) -> None:
    x = np.rint(40 * numbers(33, 48, low=0 if dtype[0] == "u" else -3))
    for axis in (0, 1, (0, 1)):
        agree(lambda be, x, axis=axis: [*reductions(be, x, axis), be.argmax(x, axis=axis)], [x], dtype, exact=True)


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "whole"])
def test_reductions_of_every_layout(layout: str) -> None:
    for shape, axis in itertools.product([(6, 8), (3, 4, 8)], (0, 1, -1, None)):
        x = np.rint(4 * numbers(*shape))
        trees = lambda be, x, axis=axis: [*reductions(be, x, axis)[:4], be.argmax(x, axis=axis)]  # noqa: E731
        agree(trees, [x], "float32", [layout], exact=True)


def test_several_sets_of_axes_are_reduced_and_the_values_stored_last(sim: Backend) -> None:
    x = np.rint(4 * numbers(6, 8)).astype(np.float32)
    t = sim.array(x)
    rows, columns, total = sim.zeros((6, 1)), sim.zeros((1, 8)), sim.zeros((1, 1))
    ran(sim)
    sim.assign([t, rows, columns, total], [t * 2, sim.sum(t * t, axis=1), sim.max(t, axis=0), sim.sum(t)])
    assert len(ran(sim)) == 3
    for result, expected in [(t, 2 * x), (rows, (x * x).sum(1, keepdims=True)), (columns, x.max(0, keepdims=True))]:
        np.testing.assert_array_equal(result.get(), expected)
    assert total.get() == x.sum()


def test_a_result_that_is_read_by_itself_and_through_a_view_is_in_memory(sim: Backend) -> None:
    x = numbers(5, 6)
    total, (by_view, by_itself) = sim.sum(sim.array(x) + 1, axis=1), (sim.empty((5, 6)), sim.empty((5, 6)))
    sim.assign(
        [by_view, by_itself],
        [sim.build("slice", total, index=((4, 5, -1), (0, 1, 1))), sim.maximum(sim.array(x) * 9, total)],
    )
    wanted = (x + 1).sum(1, keepdims=True, dtype=np.float32)
    np.testing.assert_allclose(by_view.get(), np.broadcast_to(wanted[::-1], (5, 6)), 1e-6)
    np.testing.assert_allclose(by_itself.get(), np.maximum(x * 9, wanted), 1e-6)


LARGE = [((7, 300_000), 1), ((300_000, 7), 0), ((600, 900), (0, 1)), ((9000, 2, 40), 0)]


@pytest.mark.parametrize(("case", "dtype"), thinned(4, LARGE, ["float32", "float16", "bfloat16", "int64"]))
def test_large_reductions_are_split_over_several_blocks(case: tuple[tuple[int, ...], Any], dtype: str) -> None:
    shape, axis = case
    x = np.rint(numbers(*shape))
    x.flat[::997] = 7
    assert agree(lambda be, x: [be.sum(x, axis=axis), be.max(x, axis=axis)], [x], dtype, exact=True) == 2
    assert agree(lambda be, x: [be.argmax(x, axis=axis)], [x], dtype) == 2


def test_partial_results_are_stored_after_the_temporaries() -> None:
    def trees(be: Backend, x: Any) -> list[Any]:
        m, n = be.max(x), be.sum(x, axis=0)
        return [be.sum((x - m) * 2) + m, be.max(x - n) * m]

    agree(trees, [np.rint(numbers(500, 801))], "float32", exact=True)


def test_forty_reductions_are_spread_over_kernels() -> None:
    x = [np.rint(numbers(20, 30))]
    assert agree(lambda be, x: [be.sum(x * n + 0.5 * n, axis=0) for n in range(1, 41)], x, "float64", exact=True) == 3


def test_a_repeated_sum_has_the_same_bits_and_is_exact_up_to_rounding() -> None:
    x = numbers(3, 400_001, low=0)
    sim, sums = simulated(), set()
    t = sim.array(x)
    for _ in range(3):
        sums.add(sim.sum(t).asnumpyarray().item())
    assert len(sums) == 1
    assert abs(sums.pop() / x.astype(np.float32).sum(dtype=np.float64) - 1) < 1e-6


def test_empty_axes_are_reduced_to_zeros(sim: Backend) -> None:
    for shape, axis in [((0, 3), 0), ((3, 0), 1), ((0, 3), 1), ((2, 0, 2), (0, 1)), ((0, 0), None)]:
        result = sim.sum(sim.zeros(shape), axis=axis)
        np.testing.assert_array_equal(result.asnumpyarray(), np.zeros(result.shape))


@pytest.mark.parametrize(("dtype", "n", "value", "total"), op_cases.SUMS)
def test_sums_accumulate_in_a_wider_dtype(sim: Backend, dtype: str, n: int, value: Any, total: Any) -> None:
    op_cases.check_sum(sim, dtype, n, value, total)


# --- row reductions ---


FORMULAS: dict[str, tuple[Callable[..., list[Any]], int]] = {  # op-trees, and the number of passes over long rows
    "softmax": (lambda be, x, axis: [be.softmax(x, axis=axis)], 2),
    "logsumexp": (lambda be, x, axis: [be.logsumexp(x, axis=axis)], 1),
    "variance": (lambda be, x, axis: [be.var(x, axis=axis), 2 * be.std(x, axis=axis) + x], 2),
    "standardized": (lambda be, x, axis: [standardized(be, x, axis)], 2),
    "scaled": (
        lambda be, x, axis: [(x - be.min(x, axis=axis)) / (be.max(x, axis=axis) - be.min(x, axis=axis)), x * x],
        2,
    ),
    "several": (lambda be, x, axis: [be.softmax(x, axis=axis), be.logsumexp(x * 2, axis=axis), be.max(x, axis)], 2),
}


class InNumPy:
    """The functions of the formulas in NumPy, in float64."""

    sqrt, exp = np.sqrt, np.exp

    def __getattr__(self, name: str) -> Any:
        return lambda x, axis: getattr(np, name)(x, axis=axis, keepdims=True)

    def softmax(self, x: Any, axis: Any) -> Any:
        return np.exp(x - self.logsumexp(x, axis))

    def logsumexp(self, x: Any, axis: Any) -> Any:
        return np.log(np.exp(x).sum(axis=axis, keepdims=True))


def check_formula(name: str, x: Any, axis: Any, dtype: str, layout: str = "whole") -> int:
    """Assert that kernels agree with NumPy; return the number of kernels that read all of x."""
    sim, (trees, _) = simulated(), FORMULAS[name]
    t = LAYOUTS[layout](sim, sim.array(x, dtype))
    ran(sim)
    result, wanted = sim.evaluate(trees(sim, t, axis)), trees(InNumPy(), t.get().astype(np.float64), axis)
    close = {"float16": 4e-3, "bfloat16": 2.0**-5, "float32": 4e-6, "float64": 1e-13}[dtype]
    for a, b in zip(result, wanted, strict=True):
        assert a.info.dtype == dtype
        np.testing.assert_allclose(a.get().astype(float), b, close, close)
    return sum("N1" in text or "long long J" in text for text, _ in ran(sim))


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((6, 8), 1), ((6, 8), 0), ((35, 7), 0), ((3, 4, 8), (0, 2)), ((2, 300), 1)],
    ids=str,
)
def test_stages_that_reduce_the_same_rows_or_columns_are_one_kernel(
    name: str, shape: tuple[int, ...], axis: Any
) -> None:
    half = "bfloat16" if shape[0] == 6 else "float16"
    for dtype in ("float32", half) if len(shape) == 2 else ("float64",):
        # the copy of x in float32, for softmax and logsumexp, is reduced in the same stage, but by another kernel
        is_widened = name == "several" and dtype == "float16"
        assert check_formula(name, numbers(*shape), axis, dtype) == 1 + is_widened


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "whole"])
def test_row_reductions_of_every_memory_layout(layout: str) -> None:
    for axis in (0, 1):
        assert check_formula("several", numbers(6, 8), axis, "float32", layout) == 1


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize(("shape", "axis"), [((3, 70_000), 1), ((70_000, 3), 0)], ids=["rows", "columns"])
def test_rows_that_are_too_long_for_registers_are_read_twice_without_stored_intermediates(
    name: str, shape: tuple[int, int], axis: int
) -> None:
    assert check_formula(name, numbers(*shape), axis, "float32") == FORMULAS[name][1]
    be = Backend(SimulatedGPU())
    assert be.plan(*FORMULAS[name][0](be, be.zeros(shape), axis)).arena_bytes < 2000


def test_long_formulas_are_not_unrolled_over_long_rows() -> None:
    be = Backend(SimulatedGPU())
    for n, kind in [(10, "row_tile"), (60, "row_passes")]:
        far = x = be.zeros((4, 16_000))
        for k in range(n):
            far = far * x + 0.1 * k
        assert f"1. {kind} " in repr(be.plan(be.softmax(far, axis=1)))


def test_infinities_and_nan_in_long_rows_are_those_of_short_ones() -> None:
    x = np.zeros((6, 40_000), np.float32)
    x[0, 7], x[1, 9], x[2], x[3, ::2], x[4, 5], x[4, 6] = math.inf, -math.inf, -math.inf, math.nan, math.inf, -math.inf
    x[5] = 1e30
    result = []
    for n in (40_000, 40):
        sim = simulated()
        t = sim.array(x[:, :n])
        result.append(
            [
                y.get()[:, :8]
                for y in sim.evaluate([sim.softmax(t, axis=1) * n, sim.logsumexp(t, axis=1), sim.var(t, axis=1)])
            ]
        )
    result[0][1] -= np.float32(math.log(1000)) * np.isfinite(result[1][1])
    for long, short in zip(*result, strict=True):
        np.testing.assert_allclose(long[[0, 2, 3, 4]], short[[0, 2, 3, 4]], 1e-5, 1e-5)
    np.testing.assert_allclose(result[0][0][[1, 5]], [[1] * 8] * 2, 1e-4)


@pytest.mark.parametrize("n", [500, 50_000])
def test_a_variance_far_from_0_is_exact(n: int) -> None:
    x = (1000 + numbers(4, n)).astype(np.float32)
    for t, axis in ((x, 1), (x.T, 0)):
        sim = simulated()
        result = sim.var(sim.array(t), axis=axis).asnumpyarray().ravel()
        np.testing.assert_allclose(result, x.astype(np.float64).var(axis=1), 1e-5)


@pytest.mark.parametrize("n", [64, 40_000])
def test_row_reductions_do_not_overwrite_their_operands(n: int) -> None:
    """Targets that overlap operands, temporaries, and statistics updated in place."""

    def program(be: Backend) -> list[Any]:
        x, other = be.array(numbers(8, n)), be.array(numbers(8, n, seed=1))
        mean, spread = be.array(numbers(8, 1)), be.ones((8, 1))
        square = be.array(numbers(8, 8, seed=2))
        x[:] = be.softmax(x, axis=1) * n  # in place
        x[:4] = be.softmax(x[2:6], axis=1) * n  # in place, overlapping
        m = be.mean(x, axis=1)
        v = be.mean((x - m) * (x - m), axis=1)
        be.assign(
            [mean, spread, other], [0.9 * mean + 0.1 * m, 0.5 * spread + v, (x - m) / be.sqrt(v + 1) + other - mean]
        )
        be.assign([x, mean], [standardized(be, other + x, 1) + mean, be.max(x, axis=1) + be.sum(other, axis=1)])
        fresh = 0.5 * spread + be.var(x, axis=1)  # may reuse the buffer of spread, which is read again
        be.assign([spread, x], [fresh, x - fresh - spread])
        y = be.dot(square, be.softmax(be.dot(square, x) * 0.1, axis=1))  # the product is in the arena
        square[:] = square - be.sum(be.exp(square - be.max(square, axis=0)), axis=0, keepdims=False)
        return [t.get() for t in (x, other, mean, spread, y.astensor(), square)]

    for result, wanted in zip(program(simulated()), program(Backend(OpByOp(), rng_seed=1)), strict=True):
        np.testing.assert_allclose(result, wanted, 2e-4, 2e-4)


@pytest.mark.parametrize("columns", [96, 40_000])
def test_batch_norm_moves_no_more_memory_than_necessary(columns: int) -> None:
    x = numbers(4, columns)
    values = []
    for be in (simulated(), Backend(OpByOp())):
        t, y, rows = be.array(x), be.zeros((4, columns)), [be.ones((4, 1)) for _ in range(6)]
        be.compound_fprop_bn(t, *rows, y, 1e-3, 0.9)
        if be.name == "simulated":
            assert sum("N1" in text for text, _ in ran(be)) == (1 if columns == 96 else 2)
        values.append([r.get() for r in [*rows, y]])
    for result, wanted in zip(*values, strict=True):
        np.testing.assert_allclose(result, wanted, 1e-4, 1e-5)


# --- what is added to where it lies ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "axis", "kernels"),
    [
        ((7, 900), 1, 1),
        ((90, 70), 0, 1),
        ((3, 4, 50), 2, 1),
        ((30, 5, 8), (0, 2), 1),
        ((5, 100_000), 1, 2),
        ((100_000, 5), 0, 2),
        ((600, 500), (0, 1), 2),
        ((9000, 2, 40), 0, 2),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_sums_are_added_to_their_target_in_the_same_pass(
    shape: tuple[int, ...], axis: Any, kernels: int, dtype: str
) -> None:
    sim, x = simulated(), numbers(*shape, low=-0.3, high=0.3).astype(dtype)
    narrow = x.astype(np.float64).sum(axis=axis, keepdims=True).shape
    old, factor = numbers(*narrow, seed=1).astype(dtype), numbers(*narrow, seed=2).astype(dtype)
    t, target, other = sim.array(x, dtype), sim.array(old, dtype), sim.array(factor, dtype)
    top = sim.zeros(narrow, dtype)
    wide, first, second = (a.astype(np.float64) for a in (x, old, factor))
    squares = (wide * wide).sum(axis=axis, keepdims=True)
    close = {"float16": 0.02, "bfloat16": 0.1}.get(dtype, 1e-5)  # 16-bit floats are rounded after each op
    ran(sim)
    target[:] = 0.5 * target + sim.sum(t * t, axis=axis) * (other / 100)
    assert len(ran(sim)) == kernels
    np.testing.assert_allclose(target.get(), 0.5 * first + squares * second / 100, close, close * squares.max() / 100)
    sim.assign([target, top], [sim.max(t, axis=axis) - other * sim.min(t, axis=axis), sim.max(t, axis=axis)])
    assert len(ran(sim)) == kernels
    greatest, least = (f(wide, axis=axis, keepdims=True) for f in (np.max, np.min))
    np.testing.assert_allclose(target.get(), greatest - second * least, close, close)
    np.testing.assert_array_equal(top.get(), greatest)
    assert (sim.memory().arena > 0) == (kernels == 2)  # only partial results need memory


@pytest.mark.parametrize("n", [40, 60_000])
def test_sums_that_are_added_to_their_operand_are_those_of_the_old_values(n: int) -> None:
    def program(be: Backend) -> list[Any]:
        x, wide, scale = be.array(numbers(4, 1)), be.array(numbers(4, n, seed=1)), be.array(numbers(4, 1, seed=2))
        square = be.array(numbers(4, 4, seed=3))
        x[:] = x + be.sum(x * wide, axis=1) / n
        wide[:, 1:2] = wide[:, 1:2] + be.mean(wide, axis=1)
        square[:, :1] = square[:, :1] + be.sum(square, axis=1)
        x[:] = x + be.mean(x.T * square, axis=1)
        x[:] = x + be.mean(be.transpose(x) * square, axis=1)
        x[::-1] = x + be.mean(wide, axis=1)
        be.assign([x, scale], [scale + be.max(wide, axis=1), x + be.min(wide, axis=1)])
        be.assign([scale, wide], [scale - be.mean(wide, axis=1), wide * scale])
        be.assign([scale, x], [x + (total := be.mean(wide, axis=1)), wide[:, 3:4] * scale - total * x])
        return [t.get() for t in (x, wide, scale, square)]

    for result, wanted in zip(program(simulated()), program(Backend(OpByOp())), strict=True):
        np.testing.assert_allclose(result, wanted, 1e-4, 1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sums_are_added_to_targets_of_every_layout(layout: str) -> None:
    values = []
    for be in (simulated(), Backend(OpByOp())):
        for n in (50, 30_000):
            target = LAYOUTS[layout](be, be.array(numbers(3, 4, 1)))
            target[:] = target + be.mean(be.array(numbers(3, 4, n, seed=1)), axis=2)
            values.append(target.get())
    for result, wanted in zip(values[:2], values[2:], strict=True):
        np.testing.assert_allclose(result, wanted, 1e-5, 1e-5)


# (program of the target c, the operands and a scalar; its value; number of products; number of kernels)
SUMS_OF_PRODUCTS: dict[str, tuple[Any, Any, int, int]] = {
    "c + a b": (lambda be, c, a, b, d, n: c + be.dot(a, b), lambda c, a, b, d, n: c + a @ b, 1, 0),
    "a b + c": (lambda be, c, a, b, d, n: be.dot(a, b) + c, lambda c, a, b, d, n: c + a @ b, 1, 0),
    "c - n a b": (lambda be, c, a, b, d, n: c - n * be.dot(a, b), lambda c, a, b, d, n: c - n * (a @ b), 1, 0),
    "n c + 2 d^T b": (
        lambda be, c, a, b, d, n: n * c + be.dot(d.T, b) * 2,
        lambda c, a, b, d, n: n * c + 2 * d.T @ b,
        1,
        0,
    ),
    "a b - n c": (lambda be, c, a, b, d, n: be.dot(a, b) - n * c, lambda c, a, b, d, n: a @ b - n * c, 1, 0),
    "a b - d^T b": (
        lambda be, c, a, b, d, n: be.dot(a, b) - be.dot(be.transpose(d), b),
        lambda c, a, b, d, n: a @ b - d.T @ b,
        2,
        0,
    ),
    "n (c - (a b - 3 d^T b))": (
        lambda be, c, a, b, d, n: n * (c - (be.dot(a, b) - 3 * be.dot(d.T, b))),
        lambda c, a, b, d, n: n * (c - (a @ b - 3 * d.T @ b)),
        2,
        0,
    ),
    "relu of c + a b": (
        lambda be, c, a, b, d, n: be.maximum(c + be.dot(a, b), 0),
        lambda c, a, b, d, n: np.maximum(c + a @ b, 0),
        1,
        1,
    ),
    "c + c + a b": (lambda be, c, a, b, d, n: c + (c + be.dot(a, b)), lambda c, a, b, d, n: 2 * c + a @ b, 1, 1),
    "c + a b + 1": (lambda be, c, a, b, d, n: c + be.dot(a, b) + 1, lambda c, a, b, d, n: c + a @ b + 1, 1, 1),
    "a b + a b": (lambda be, c, a, b, d, n: be.dot(a, b) + be.dot(a, b), lambda c, a, b, d, n: 2 * a @ b, 1, 1),
    "c + c b": (lambda be, c, a, b, d, n: c + be.dot(c, b[:5, :5]), lambda c, a, b, d, n: c + c @ b[:5, :5], 1, 1),
    "c + row of a b": (
        lambda be, c, a, b, d, n: c + be.dot(a[:1], b),
        lambda c, a, b, d, n: c + a[:1] @ b,
        1,
        1,
    ),
}


@pytest.mark.parametrize("name", SUMS_OF_PRODUCTS)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_products_are_added_to_their_target_without_a_temporary(name: str, dtype: str) -> None:
    sim, (spell, value, products, kernels) = simulated(), SUMS_OF_PRODUCTS[name]
    arrays = [numbers(*shape, seed=n, low=-1, high=1) for n, shape in enumerate([(6, 5), (6, 7), (7, 5), (7, 6)])]
    c, *operands = (sim.array(x, dtype) for x in arrays)
    for factor in (0.75, -2.5):
        expected = value(*(t.get().astype(np.float64) for t in (c, *operands)), factor)
        c[:] = spell(sim, c, *operands, factor)
        close = {"float16": 0.02, "bfloat16": 0.15}.get(dtype, 1e-5)
        np.testing.assert_allclose(c.get(), expected, close, close)
    assert (len(sim.runtime.driver.products), len(ran(sim))) == (2 * products, 2 * kernels)
    assert sim.memory().arena == 0 or kernels


def test_products_that_cannot_accumulate_in_their_target_have_the_same_values() -> None:
    """Strided operands and targets, results that are read again, several targets, and a driver without cuBLAS."""

    def program(be: Backend) -> list[Any]:
        c, a, b, d = (be.array(numbers(6, 6, seed=n, low=-1, high=1)) for n in range(4))
        wide, stacks, stack = be.array(numbers(12, 13)), be.array(numbers(3, 6, 6)), be.array(numbers(3, 6, 6, seed=1))
        c[:] = c + be.dot(wide[::2, ::2][:, :6], b)
        c[:] = be.dot(a, b) + be.dot(wide[::2, ::2][:, :6], b)
        wide[:6, 1:7] = wide[:6, 1:7] + be.dot(a, b)
        wide[:6, 1:7] = wide[:6, 1:7] + be.dot(wide[:6, 2:8], b)
        wide[::2, ::2][:, :6] = wide[::2, ::2][:, :6] - be.dot(a, b)
        c[:] = c + be.dot(c, b)
        c[:] = be.dot(c, b) - be.dot(a, c)
        c[:] = c + be.dot(a, c.T)
        stacks[:] = stacks * 2 - be.matmul(stack, stack)
        be.assign([c, d], [c + be.dot(a, b), d - (c + be.dot(a, b))])
        be.assign([c, d], [(total := c + be.dot(a, d)), total + be.dot(a, b)])
        be.assign([c, d], [(total := be.dot(a, b) + be.dot(b, a)), total + be.dot(a, a)])
        be.assign([c, d], [d - be.dot(a, b), c - be.dot(a, b)])
        be.assign([c, a], [c - be.dot(a, b), a + be.dot(c, b)])
        e = be.tanh(a) * 0.1
        c[:] = be.dot(e, b) + be.dot(d, e)  # e is as large as c
        d[:] = 0.0 * d.fill(np.nan) + be.dot(a, b)
        return [t.get() for t in (c, a, b, d, wide, stacks)]

    alone = simulated()
    alone.runtime.driver.gemm = lambda form, alpha, beta: False
    wanted = program(Backend(OpByOp()))
    for be in (simulated(), alone):
        for result, x in zip(program(be), wanted, strict=True):
            np.testing.assert_allclose(result, x, 1e-4, 1e-4)


@pytest.mark.parametrize(("kind", "products"), [(Recurrent, 1), (LSTM, 1), (GRU, 2)])
def test_a_step_of_a_recurrent_layer_is_its_products_and_as_many_kernels(kind: Any, products: int) -> None:
    """A GRU has two products: the reset gate is computed by the first and read by the second."""
    n, nin, bsz = 16, 12, 8

    def ran_through(be: Backend, T: int) -> tuple[list[tuple[int, int]], list[Any]]:
        be.bsz = bsz
        gates = {} if kind is Recurrent else {"gate_activation": Logistic()}
        layer = kind(n, Constant(0), activation=Tanh(), **gates)
        layer.be = be
        layer.needs_deltas = True
        layer.configure((nin, T))
        layer.allocate()
        layer.allocate_deltas()
        layer.W[:] = 0.1 * numbers(*layer.W.shape, seed=2)
        x, error = be.array(numbers(nin, T * bsz)), be.array(numbers(n, T * bsz, seed=1))
        counts = []
        for f, given in [(layer.fprop, x), (layer.bprop, error)]:
            if counted := isinstance(be.runtime, SimulatedGPU):
                be.runtime.driver.products, be.runtime.driver.ran = [], []
            f(given)
            if counted:
                counts.append((len(be.runtime.driver.ran), len(be.runtime.driver.products)))
        return counts, [t.get() for t in (layer.outputs, layer.dW, layer.deltas)]

    short, _ = ran_through(simulated(), 3)
    long, values = ran_through(simulated(), 7)
    steps = 4 * products
    assert [(b[0] - a[0], b[1] - a[1]) for a, b in zip(short, long, strict=True)] == [(steps, steps), (steps, steps)]
    assert long[0][1] == 7 * products + 1  # and one for the inputs of all time steps
    for result, wanted in zip(values, ran_through(Backend(OpByOp()), 7)[1], strict=True):
        np.testing.assert_allclose(result, wanted, 1e-4, 1e-5)


# --- gathers and random numbers ---


@pytest.mark.parametrize("name", ["take", "onehot"])
def test_gathers(sim: Backend, name: str) -> None:
    for dtype, case in itertools.product(FLOAT_DTYPES, op_cases.CASES[name]):
        op_cases.check_value(sim, case, dtype, "tensor")


def test_indices_of_every_dtype_are_checked_before_anything_is_written(sim: Backend) -> None:
    x, out = sim.array(numbers(5, 4)), sim.zeros((2, 4)).fill(9)
    for dtype in INT_DTYPES:
        index = sim.array([[4, 1]], dtype)
        np.testing.assert_array_equal(sim.take(x, index, 0).asnumpyarray(), x.get()[[4, 1]])
        np.testing.assert_array_equal(sim.onehot(index, 0, nclass=5).asnumpyarray(), np.eye(5)[:, [4, 1]])
    for bad in ([0, 5], [-6, 0]):
        with pytest.raises(IndexError, match=f"index {bad[0] or bad[1]} is out of range for size 5"):
            out[:] = sim.take(x, bad, 0)
    with pytest.raises(IndexError, match="label -1 is out of range"):
        sim.onehot([-1, 0], 1, nclass=4, out=out)
    assert (out.get() == 9).all()


def test_an_index_out_of_range_raises_at_the_next_synchronization(monkeypatch: Any) -> None:
    monkeypatch.delenv("NEONLITE_WAIT")
    sim = simulated()
    x, out, hot = sim.array(numbers(5, 4)), sim.zeros((3, 4)).fill(9), sim.zeros((5, 3))
    for dtype, bad in [("int32", 5), ("int8", -6), ("int64", 2**40), ("uint8", 200)]:
        index = sim.array([[4, bad, 0]], dtype)
        ran(sim)
        out[:] = sim.take(x, index, 0)
        other = out * 2 + 1  # later work still runs
        (text, _), *_ = ran(sim)
        assert "report_index" in text
        words = rf"^be.take: index {bad} is out of range for size 5: expected -5 to 4; set NEONLITE_WAIT=1 in the"
        for see in (out.get, sim.runtime.synchronize, lambda: np.asarray(x), x.numpy):
            out[:] = sim.take(x, index, 0)
            with pytest.raises(IndexError, match=words):
                see()
            see()  # the error is raised once
        np.testing.assert_array_equal(out.get(), [x.get()[4], [0] * 4, x.get()[0]])
        assert other.asnumpyarray().shape == (3, 4)
    for bad in (-1, 5):
        hot[:] = sim.onehot([[1, bad, 4]], axis=0)
        with pytest.raises(IndexError, match=f"^be.onehot: label {bad} is out of range for size 5: expected 0 to 4"):
            hot.get()
        np.testing.assert_array_equal(hot.get(), np.eye(5)[:, [1, 0, 4]] * [1, 0, 1])
    hot[:] = sim.onehot([[1, 2, 9]], axis=0)
    out[:] = sim.take(x, [[7, 0, 0]], 0)
    with pytest.raises(IndexError, match="label 9"):  # the first of several
        out.get()
    for empty in (sim.zeros((5, 0)), sim.zeros((0, 4))):
        with pytest.raises(IndexError, match="index 7 is out of range"):
            sim.take(empty, [[7]], 0).asnumpyarray()


def test_a_gather_writes_its_target_directly_when_checks_are_asynchronous(monkeypatch: Any) -> None:
    monkeypatch.delenv("NEONLITE_WAIT")
    be = Backend(SimulatedGPU())
    assert be.plan(be.take(be.zeros((50, 4)), [1, 2], 0)).arena_bytes == 0


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("shape", [(3, 5), (1, 8), (16, 16), (1, 1)], ids=str)
def test_random_numbers_have_the_bits_of_the_stream_on_every_runtime(dtype: str, shape: tuple[int, int]) -> None:
    sim, plain = simulated(dtype), Backend(OpByOp(), rng_seed=1, default_dtype=dtype)
    for _ in range(3):  # each continues the stream of the one before
        result, wanted = (be.rand(*shape).asnumpyarray() for be in (sim, plain))
        np.testing.assert_array_equal(result, wanted)
        result, wanted = (be.randn(*shape).asnumpyarray() for be in (sim, plain))
        np.testing.assert_allclose(
            result.astype(float), wanted.astype(float), CLOSE[dtype], 1e-14 if dtype == "float64" else 0
        )
    assert sim.rng_get_state() == plain.rng_get_state()


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_normal_numbers_fill_a_tensor_in_a_kernel(dtype: str) -> None:
    sim, plain = simulated(dtype), Backend(OpByOp(), rng_seed=1, default_dtype=dtype)
    for shape, mean, stdv in [((3, 7), 0, 1), ((16, 16), -2.5, 0.25), ((1, 5), 100, 3)]:
        result, wanted = (be.empty(shape) for be in (sim, plain))
        for be, out in ((sim, result), (plain, wanted)):
            be.fill_normal(out, mean, stdv)
        close = CLOSE[dtype] / 2
        np.testing.assert_allclose(result.get().astype(float), wanted.get().astype(float), close, close * stdv)
    assert len(ran(sim)) == 3
    sim.fill_normal(part := sim.zeros((6, 8))[:, ::2], 5, 0.1)  # with gaps, and of integer dtype: as on the host
    sim.fill_normal(whole := sim.zeros((6, 8), "int32"), 50, 0.1)
    assert not ran(sim)[2:]
    assert (abs(part.get().astype(float) - 5) < 1).all()
    assert (abs(whole.get() - 50) <= 1).all()
    for columns in (4, 8):
        plain.fill_normal(plain.zeros((6, columns)))
    assert sim.rng_get_state() == plain.rng_get_state()


@pytest.mark.parametrize("first", [2**64 - 2, 2**128 - 1, 2**192 - 2, 2**256 - 3, 2**64 - 1, 5 * 2**64 - 1])
def test_the_block_counter_carries_over_all_four_words(first: int) -> None:
    values = []
    for be in (simulated(), Backend(OpByOp(), rng_seed=2**64 - 1)):
        be.gen_rng(2**64 - 1)
        be.streams._blocks["noise"] = first
        values.append(be.rand(1, 40).asnumpyarray())
    np.testing.assert_array_equal(*values)


# --- plans ----------------------------------------------------------------------------------------------------------


def test_targets_that_share_memory_with_operands(sim: Backend) -> None:
    def program(be: Backend) -> list[Any]:
        x, y = be.array(numbers(6, 6)), be.array(numbers(6, 6, seed=1))
        x[:] = x * 2 + 1
        x[:] = x.T
        x[1:] = x[:-1] * 1
        y[:, ::-1] = y + x
        be.assign([x, y], [y, x])
        be.assign([x, y], [x + be.sum(y), y - be.sum(x, axis=0)])
        y[:] = be.softmax(y, axis=1)
        x[:] = x - be.max(x, axis=0)
        x[0] = be.sum(x, axis=0)
        return [x.get(), y.get()]

    for result, wanted in zip(program(sim), program(Backend(OpByOp())), strict=True):
        np.testing.assert_allclose(result, wanted, 1e-5, 1e-5)


def test_stages_without_a_kernel_are_computed_op_by_op(sim: Backend, plain: Backend) -> None:
    Backend.define_op("third_power", lambda xp, x: x * x * x, None)
    try:
        result = []
        for be in (sim, plain):
            x, y = be.array(numbers(5, 6)), be.array(np.arange(30).reshape(6, 5), "int32")
            trees = [be.third_power(x) + be.dot(x, be.ones((6, 1))), y ** be.array([[2, 3, 1, 0, 2]], "int32") * 2]
            trees += [
                be.concat([x, x * 2]),
                be.build("scatter_add", x, be.array([[0, 0, 1, 2, 1]], "int32"), axis=0, size=3),
            ]
            trees += [be.sum(be.third_power(x), axis=0), be.third_power(x) * 2]
            result.append([t.get() for t in be.evaluate(trees)])
        for a, b in zip(*result, strict=True):
            np.testing.assert_allclose(a, b, 1e-6, 1e-6)
    finally:
        del OPS["third_power"], Backend.third_power  # type: ignore[attr-defined]


def test_very_long_stages_are_computed_op_by_op(sim: Backend) -> None:
    chain = x = sim.ones((2, 2))
    for n in range(1000):
        chain = chain * 0.5 + float(n % 7)
    wide = sum((sim.zeros((2, 2)).fill(n) for n in range(500)), start=x)
    ran(sim)
    result, total = (t.get() for t in sim.evaluate([chain, wide]))
    assert not ran(sim)
    assert (total == 1 + 499 * 250).all()
    expected = 1.0
    for n in range(1000):
        expected = expected * 0.5 + n % 7
    np.testing.assert_allclose(result, expected, 1e-6)


def test_an_integer_to_a_negative_power_raises_and_the_target_is_unchanged(sim: Backend) -> None:
    x, y, out = (sim.array([n], dtype="int32") for n in ([2, 1], [3, -1], [7, 7]))
    for tree in (x**y, 2**y, x**-1, x**-20):
        with pytest.raises(ValueError, match="negative integer powers"):
            out[:] = tree
    assert out.get().tolist() == [[7, 7]]
    out[:] = x**3 + x**20
    assert out.get().tolist() == [[8 + 2**20, 2]]


def test_a_kernel_that_does_not_compile_warns_once_and_is_computed_op_by_op(sim: Backend, monkeypatch: Any) -> None:
    monkeypatch.setitem(OP_TEMPLATES, "tanh", "no_such_function({x})")
    x = sim.array([[0.0, 1.0]])
    with pytest.warns(RuntimeWarning, match="no_such_function"):
        np.testing.assert_allclose(sim.tanh(x).asnumpyarray(), np.tanh([[0, 1]]), 1e-6)
    np.testing.assert_allclose(
        sim.tanh(x).asnumpyarray(), np.tanh([[0, 1]]), 1e-6
    )  # without a warning, which would be an error
    a, b, c = (sim.zeros((1, 2)).fill(n) for n in (0, 1, 2))
    with pytest.warns(RuntimeWarning, match="no_such_function"):
        sim.assign([a, b, c], [b, a, sim.tanh(a)])  # operands are read before targets are written
    assert [t.get().tolist() for t in (a, b, c)] == [[[1, 1]], [[0, 0]], [[0, 0]]]


def test_kernels_can_be_switched_off(sim: Backend, monkeypatch: Any) -> None:
    monkeypatch.setenv("NEONLITE_KERNELS", "0")
    assert (sim.ones((2, 2)) * 2 + 1).asnumpyarray().tolist() == [[3.0] * 2] * 2
    assert not ran(sim)


def test_cupys_driver_runs_what_the_simulated_one_does(monkeypatch: Any) -> None:
    with installed():
        gpu, wanted = Backend("gpu", rng_seed=1), Backend(OpByOp(), rng_seed=1)
        assert type(gpu.runtime.driver) is CuPyDriver
        result = []
        for be in (gpu, wanted):
            x, n = be.array(numbers(12, 40)), be.array(np.arange(480).reshape(12, 40), "uint64")
            trees = [be.softmax(x * 1.5, axis=0), be.sum(x), n + (2**64 - 5), be.take(x.T, [3, -1], 1), be.rand(3, 3)]
            result.append([t.get() for t in be.evaluate([*trees, be.dot(x, x.T), x[::2, ::-1] * 2])])
        for a, b in zip(*result, strict=True):
            np.testing.assert_allclose(a, b, 1e-5, 1e-5)
        assert len(gpu._executor.compiled) >= 6
        gpu.runtime.driver.synchronize()
        monkeypatch.setitem(OP_TEMPLATES, "tanh", "no_such_function({x})")
        with pytest.warns(RuntimeWarning, match="NVRTC cannot compile a kernel"):
            gpu.tanh(gpu.ones((1, 1))).asnumpyarray()


def test_kernels_are_cached_by_structure_for_all_shapes_and_scalars(sim: Backend) -> None:
    for shape in [(4, 8), (16, 4), (3, 100)]:
        for number in (0.5, 2.5):
            x, b = sim.ones(shape), sim.ones((shape[0], 1))
            assert (sim.tanh(x * number) + b).asnumpyarray().shape == shape
            sim.sum(x * number, axis=1).asnumpyarray()
    texts = [text for text, _ in ran(sim) if "tanh" in text or "sum" in text]
    assert (len(texts), len(set(texts))) == (12, 2)


def test_threads_have_separate_arenas(sim: Backend) -> None:
    x = sim.array(numbers(40, 30))
    wanted = sim.softmax(x, axis=1).asnumpyarray()
    wrong: list[Any] = []

    def work(k: int) -> None:
        for _ in range(5):
            result = sim.softmax(x + k, axis=1).asnumpyarray()
            wrong.extend([] if np.allclose(result, wanted, 1e-5, 1e-6) else [result])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_arena_is_tracked_and_a_dry_run_predicts_it() -> None:
    def work(be: Backend) -> Any:
        x = be.zeros((64, 50_000))
        be.softmax(x, axis=1).astensor()
        be.sum(x).astensor()
        return be.memory()

    def fill(be: Backend) -> Any:
        be.empty((2, 3)).fill(2)
        return be.memory()

    for played in (work, fill):
        real = played(Backend(SimulatedGPU()))
        assert played(Backend(SimulatedGPU()).dry_run()) == real
        assert (real.arena > 0) == (played is work)


# --- source and compilation ---


def everything(be: Backend) -> dict[str, str]:
    """Return the source of every kind of kernel."""
    x, c, r = be.ones((64, 96)), be.ones((64, 1)), be.ones((1, 96))
    h, w, n = be.ones((64, 96), "float16"), be.ones((64, 96), "float64"), be.ones((64, 96), "int32")
    deep = be.ones((64, 20, 33))
    texts = {
        "sigmoid": be.kernel(1 / (1 + be.exp(-x))),
        "broadcast": be.kernel(be.tanh(x * c + r) - 2.5),
        "strided": be.kernel(be.ones((96, 64)).T * x[:, ::-1], deep[:, ::2, 1:] * 2 + deep[:1, ::2, :-1]),
        "deep": be.kernel(deep * be.ones((20, 1)) + be.ones((64, 1, 33))),
        "softmax of rows": be.kernel(be.softmax(x, axis=1)),
        "softmax of columns": be.kernel(be.softmax(x, axis=0)),
        "softmax of long columns": be.kernel(be.softmax(be.ones((1000, 100)), axis=0)),
        "softmax of longer rows": be.kernel(be.softmax(be.ones((2, 32_000)), axis=1)),
        "softmax in passes": be.kernel(be.softmax(be.ones((2, 50_000)), axis=1)),
        "standardized": be.kernel(standardized(be, be.ones((1000, 100)), 0), standardized(be, be.ones((2, 50_000)), 1)),
        "variance": be.kernel(be.var(h, axis=1), be.var(w, axis=0)),
        "totals": be.kernel(be.sum(be.ones((3000, 3000))), be.max(be.ones((900, 4000), "float16"))),
        "places": be.kernel(
            be.argmax(x, axis=1), be.argmin(w, axis=0), be.argmax(be.ones((999, 999), "int8"), axis=(0, 1))
        ),
        "gathers": be.kernel(
            be.take(h, [1, 2], 0), be.onehot([1, 2], 0, nclass=3), be.onehot(n.reshape(1, -1), 1, nclass=3)
        ),
        "sums that are added": be.kernel(c + be.sum(x * x, axis=1), be.sum(w, axis=0) / w[:1] - 2),
        "shared sums that are added": be.kernel(
            r[:, :3] + be.sum(be.ones((9999, 3)), axis=0) * 2,
            h[:3, :1] - be.max(be.ones((3, 99_999), "float16"), axis=1),
        ),
        "draws": be.kernel(be.rand(6, 7), be.randn(6, 7)),
    }
    for dtype in HALF_DTYPES:
        halves = Backend(OpByOp(), default_dtype=dtype)
        texts[f"{dtype} drawn"] = halves.kernel(halves.rand(6, 7), halves.randn(6, 7))
        texts[f"{dtype} shared"] = halves.kernel(
            halves.softmax(halves.ones((1000, 100)), axis=0), standardized(halves, halves.ones((2, 50_000)), 1)
        )
    for dtype in DTYPES:
        a, b, p = (be.ones((64, 96), dtype) for _ in range(3))
        trees = list(elementwise(be, a, b, p).values())
        texts |= {f"{dtype} {n}": be.kernel(*trees[n : n + 8]) for n in range(0, len(trees), 8)}
        texts[f"{dtype} reduced"] = be.kernel(*reductions(be, a, 1)[:3], *reductions(be, a * b, 0)[:3], be.sum(a))
    return texts


def test_indices_have_64_bits_where_there_are_more_than_2_to_the_31_elements() -> None:
    huge = Backend("cpu").dry_run()
    for shape, index in [((2**16, 2**15), "long long"), ((2**16, 2**15 - 1), "unsigned")]:
        x, y = huge.zeros(shape), huge.zeros((1, shape[1]))
        for tree in (x * y, huge.sum(x * 2, axis=1), huge.max(x, axis=0), huge.argmax(x, axis=(0, 1))):
            assert f"typedef {index} Index;" in huge.kernel(tree)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("share", [pytest.param(1, marks=pytest.mark.slow), 0.2])
def test_nvidias_compiler_compiles_every_kernel_without_spills(architecture: str, share: float) -> None:
    if nvrtc.library() is None:
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc-cu12")
    sources = everything(Backend(OpByOp()))
    rng = random.Random(os.environ.get("NEONLITE_TEST_SEED", "0"))
    names = {"sigmoid", "broadcast", *rng.sample(sorted(sources), round(share * len(sources)))}
    for name, text in sources.items():
        if name not in names:
            continue
        result = nvrtc.compiled(text, architecture, OPTIONS)
        reduces_angles = re.search(r"\b(sin|cos|tan)f?\(", text)  # of large angles, in memory
        assert result.spilled <= (8 if reduces_angles else 0), (name, result[:3])
        if architecture == "sm_90" and name in ("sigmoid", "broadcast"):
            assert re.search(r"ld\.global(\.nc)?\.v4", result.assembly)
            assert "st.global.v4" in result.assembly
            assert result.registers <= 40, result[:3]


@pytest.mark.parametrize(("architecture", "count"), [("sm_75", 0), ("sm_80", 32)])
def test_bfloat16_rounds_in_one_instruction_and_on_older_gpus_by_integer_arithmetic(
    architecture: str, count: int
) -> None:
    if nvrtc.library() is None:
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc-cu12")
    be = Backend(OpByOp(), default_dtype="bfloat16")
    result = nvrtc.compiled(be.kernel(be.exp(be.ones((64, 96)) * 3) - 1), architecture, OPTIONS)
    assert (result.spilled, result.assembly.count("cvt.rn.bf16.f32")) == (0, count)  # 3 ops, and results, of 8 elements


def test_the_source_of_a_tree_is_available_on_any_machine(plain: Backend) -> None:
    x, y = plain.ones((30, 40), name="x"), plain.ones((30, 1), name="bias")
    text = plain.kernel(plain.softmax(plain.dot(x, x.T) + y, axis=1))
    for words in [
        "// --- stage 1: call (30, 30): dot ---\n// No generated kernel",
        "x1: bias (30, 1) float32",
        "// --- stage 2: row_tile (30, 30): add max stop_gradient sub exp sum div ---",
        "s0 = max((x0 + x1)) over axis 1 of 2",
        "x0: dot of stage 1 (30, 30) float32",
    ]:
        assert words in text, text


# --- every op once more, one by one: thousands of kernels -----------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(  # other layouts: test_reductions_of_every_layout
    ("dtype", "layout"),
    [
        ("float64", "tensor"),
        ("float32", "view"),
        ("float16", "tensor"),
        ("bfloat16", "view"),
    ],
)
@pytest.mark.parametrize("name", op_cases.OF_FLOATS)
def test_the_value_is_that_of_the_textbook(sim: Backend, name: str, dtype: str, layout: str) -> None:
    for case in op_cases.CASES[name]:
        op_cases.check_value(sim, case, dtype, layout)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8"])
@pytest.mark.parametrize("name", op_cases.CASES)
def test_the_value_of_integers_is_that_of_the_textbook(sim: Backend, name: str, dtype: str) -> None:
    op_cases.check_value_of_ints(sim, name, dtype)


def test_a_gradient_without_elements_needs_an_arena_of_0_bytes() -> None:
    be = simulated()
    x = be.zeros((3, 0))
    (dx,) = Autodiff(be.max(x, axis=0), be).get_grad_asnumpyarray([x])
    assert dx.shape == (3, 0)


# --- cached launches ---


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that grows whenever the arguments of a kernel are packed."""
    calls: list[Any] = []
    launches = kernels_module.FusedKernel.launches
    monkeypatch.setattr(
        kernels_module.FusedKernel, "launches", lambda self, *args: calls.append(self) or launches(self, *args)
    )
    return calls


def test_launches_are_cached_for_the_same_arrays_and_scalars(packed: list[Any]) -> None:
    be = simulated()
    x, y = be.array(np.arange(12.0).reshape(3, 4)), be.empty((3, 4))
    mean, known = be.empty((3, 1)), ()
    for n in range(4):
        y[:] = be.exp(x * 0.5)
        mean[:] = be.mean(y, axis=1)
        np.testing.assert_allclose(mean.get()[:, 0], np.exp((np.arange(12.0) - n) / 2).reshape(3, 4).mean(1), rtol=1e-6)
        x[:] = x - 1
        known = known or (len(packed), len(ran(be)))
        assert len(packed) == known[0]
    assert len(ran(be)) == 3 * known[1] > 0


def test_other_arrays_scalars_and_addresses_are_other_launches(packed: list[Any]) -> None:
    be = simulated()
    host = np.arange(1.0, 61, dtype=np.float32).reshape(5, 12)
    memory = be.array(host)
    # They differ in rows, columns or strides.
    views = [memory[:4, :6], memory[1:, 1:7], memory[:4, 6:], memory[:4, ::2]]
    y = be.empty((4, 6))
    for _ in range(2):
        for x in views:
            for c in (1.0, 0.0, -0.0, math.inf):
                y[:] = c / x
                with np.errstate(all="ignore"):
                    expected = c / x.get()
                np.testing.assert_array_equal(y.get(), expected)
                np.testing.assert_array_equal(np.signbit(y.get()), np.signbit(expected))
    assert len(packed) == len(views) * 4


def test_launches_follow_temporaries_that_have_moved(packed: list[Any]) -> None:
    be = simulated()
    host = np.random.default_rng(1).random((3, 50)).astype(np.float32)
    x, y = be.array(host), be.empty((1, 1))
    wide, counts = be.array(np.ones((3, 40_000))), []
    for _ in range(3):
        y[:] = be.sum(be.sum(x, axis=1) ** 2, axis=0)
        np.testing.assert_allclose(y.get()[0, 0], (host.sum(1) ** 2).sum(), rtol=1e-5)
        counts.append(len(packed))
        y[:] = be.sum(be.sum(wide, axis=0) ** 2)  # needs a larger arena
        assert y.get() == 9 * 40_000
        counts.append(len(packed))
    first, both, again, *rest = counts
    assert again == both + first  # the arena was reallocated
    assert {*rest} == {again}


def test_the_cache_of_launches_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_module, "MAX_CACHED_LAUNCHES", 3)
    be = simulated()
    x, y = be.ones((2, 2)), be.empty((2, 2))
    for n in range(1, 9):
        y[:] = x * n
        assert y.get().tolist() == [[n, n]] * 2
        assert len(be.runtime.memory_tracker.thread_cache["launches"]) <= 3


def test_a_thread_launches_by_cupy_before_it_launches_by_the_driver() -> None:
    with installed():
        be = gen_backend("gpu")
        x, y = be.ones((4, 4)), be.empty((4, 4))
        tree = x + 1
        failed: list[Any] = []

        def work() -> None:
            try:
                for _ in range(3):
                    y[:] = tree
            except Exception as error:
                failed.append(error)

        work()
        for _ in range(2):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        assert failed == []
        assert y.get().tolist() == [[2] * 4] * 4


def test_a_reshape_that_copies_is_repeated_in_each_run(sim: Backend) -> None:
    """Reshapes of a temporary, a leaf, a strided leaf and the value of a strided target; launches are cached."""
    x, out, wide = sim.zeros((6, 10)), sim.empty((5, 6)), sim.empty((6, 10))
    apart, a = sim.zeros((6, 10))[:, ::2], np.arange(60.0).reshape(6, 10)
    for n in range(4):
        x.set(b := a - n)
        even = x[:, ::2]
        out[:] = sim.reshape((even * 2).T, 6, 5).T + sim.reshape(even * 3, 5, 6) + sim.reshape(even, 5, 6)
        b = b[:, ::2]
        np.testing.assert_array_equal(out.get(), (2 * b).T.reshape(6, 5).T + (4 * b).reshape(5, 6))
        wide[:] = sim.reshape(x.T, 6, 10)
        np.testing.assert_array_equal(wide.get(), (a - n).T.reshape(6, 10))
        sim.assign([apart, out], [double := even * 2, sim.reshape(double, 5, 6) + 1])  # one target has gaps
        np.testing.assert_array_equal(apart.get(), 2 * b)
        np.testing.assert_array_equal(out.get(), 2 * b.reshape(5, 6) + 1)
        if n > 1:
            out[:] = sim.reshape(sim.concat([even]).T, 5, 6)  # another plan in the same arena
            np.testing.assert_array_equal(out.get(), b.T)


def test_a_sum_of_many_tensors_neither_recurses_nor_visits_shared_operands_twice(sim: Backend) -> None:
    for be in (sim, Backend("cpu")):
        total = doubled_up = be.dot(be.ones((2, 2)), be.ones((2, 2)))
        for _ in range(1500):
            total = total + be.ones((2, 2))
        for _ in range(60):
            doubled_up = doubled_up + doubled_up
        assert (total.asnumpyarray() == 1502).all()
        assert (doubled_up.asnumpyarray() == 2.0**61).all()  # 2^60 paths lead to the product
        for tree in (total, doubled_up):
            assert "add" in be.kernel(tree)


def test_a_sum_and_a_broadcast_over_the_same_rows_are_separate_stages(sim: Backend) -> None:
    """The gradient of a product of three sums: one stage would read the total before it is known."""
    for dtype in ("float32", "float64"):
        be = simulated(dtype)
        a, b, c = (be.array(numbers(*shape, seed=n)) for n, shape in enumerate([(2, 3), (3, 1), (2, 2)]))
        gradients = Autodiff(be.sum(a) * be.sum(b) * be.sum(c), be).get_grad_asnumpyarray([a, b, c])
        again = Autodiff(be.einsum("ab,cd,ef->", a, b, c), be).get_grad_asnumpyarray([a, b, c])
        sums = [t.get().sum() for t in (a, b, c)]
        for n, t in enumerate((a, b, c)):
            expected = np.full(t.shape, np.prod(sums[:n] + sums[n + 1 :]))
            np.testing.assert_allclose(gradients[n], expected, 1e-5)
            np.testing.assert_allclose(again[n], expected, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", op_cases.GRADIENTS)
def test_the_gradient_is_that_of_finite_differences(name: str) -> None:
    for case in op_cases.GRADIENTS[name]:
        op_cases.check_gradient(simulated("float64"), case, "tensor")
