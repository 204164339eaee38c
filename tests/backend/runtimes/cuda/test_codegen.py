"""Generated CUDA kernels agree with NumPy; a C++ compiler runs them on the CPU.

The reference is op-by-op execution on NumPy arrays, which shares no code with the kernels. ``+ - * / sqrt`` and all ops
on integers must agree to the bit. Most of test_every_op.py runs on kernels, too, in ``make test-slow``; any file runs
on them with NEONLITE_TEST_SIMULATED=1.
"""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import op_cases
from helpers.cuda_kernels import DTYPES, reductions
from helpers.parametrize import part, thinned
from helpers.simulated_gpu import CLOSE, LAYOUTS, OpByOp, elementwise, numbers, ran, simulated

from neonlite import Backend
from neonlite.backend.runtimes.cuda.op_templates import REDUCE_TEMPLATES
from neonlite.ops import OPS
from neonlite.typing import FLOAT_DTYPES, INT_DTYPES

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are simulated with g++, which is not here")


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
    names = part(names, dtype, shape[0] % 2, num_parts=2)  # each op in one of the shapes, which depends on the dtype
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


@pytest.mark.parametrize(("way", "dtype"), thinned(3, WAYS, ["float32", "bfloat16", "int8"]), ids=str)
def test_operands_of_every_layout(way: tuple[Any, Any, Any], dtype: str) -> None:
    x, y, layouts = way
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


@pytest.mark.parametrize(
    ("height", "width", "dtype"), thinned(2, [1, 5, 300], [64, 40, 6, 7], ["float32", "float16", "float64"])
)
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


LARGE = [((7, 60_000), 1), ((60_000, 7), 0), ((400, 300), (0, 1)), ((4000, 2, 40), 0)]


@pytest.mark.long
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


@pytest.mark.long
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
