"""Kernels of row reductions, in registers and in several passes, agree with NumPy."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.parametrize import part
from helpers.simulated_gpu import LAYOUTS, OpByOp, numbers, ran, simulated, standardized

from neonlite import Backend
from neonlite.backend.runtimes.cuda.codegen import PREAMBLE
from neonlite.backend.runtimes.cuda.simulator import SimulatedDriver, SimulatedGPU

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are simulated with g++, which is not here")


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
    return sum("n1" in text for text, _ in ran(sim))


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
    for dtype in part(["float32", half], f"{name} {shape}", 0, num_parts=2) if len(shape) == 2 else ["float64"]:
        # the copy of x in float32, for softmax and logsumexp, is reduced in the same stage, but by another kernel
        is_widened = name == "several" and dtype == "float16"
        assert check_formula(name, numbers(*shape), axis, dtype) == 1 + is_widened


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "whole"])
def test_row_reductions_of_every_memory_layout(layout: str) -> None:
    for axis in (0, 1):
        assert check_formula("several", numbers(6, 8), axis, "float32", layout) == 1


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize(("shape", "axis"), [((2, 40_000), 1), ((40_000, 2), 0)], ids=["rows", "columns"])
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
            assert sum("n1" in text for text, _ in ran(be)) == (1 if columns == 96 else 2)
        values.append([r.get() for r in [*rows, y]])
    for result, wanted in zip(*values, strict=True):
        np.testing.assert_allclose(result, wanted, 1e-4, 1e-5)


@pytest.mark.parametrize("axis", [1, 0], ids=["rows", "columns"])
def test_rows_of_any_length_have_the_bits_of_numpy(axis: int) -> None:
    """The last pack of some lanes is missing, the last block has fewer rows, and rows begin anywhere in memory."""
    for n in (1, 3, 31, 33, 100, 128, 260, 513):
        for count in (1, 9, 17):
            x = numbers(count, n, seed=n).astype(np.float32)
            x[0] *= 1e-38  # whose range is denormal
            x = x.T if axis == 0 else x
            sim = simulated()
            t, z = sim.array(x), sim.array(x)
            low, high = sim.min(t, axis=axis), sim.max(t, axis=axis)
            z[:] = (t - low) / (high - low + 1e-38) * z  # in place: a thread without a row must not store
            low, high = x.min(axis=axis, keepdims=True), x.max(axis=axis, keepdims=True)
            np.testing.assert_array_equal(z.get(), (x - low) / (high - low + np.float32(1e-38)) * x)


# --- division by a reciprocal that many elements share ---

# x / y for all 24-bit integers X and Y whose quotient is so near to a midpoint of two floats, (M + c / Y) / 2^s with an
# odd M of 25 bits and |c| <= 16, that an error of 8 / 2^24 of the last bit could change its rounding. The error of
# divide() before it rounds is below 3 / 2^24. Y is first, first + step, ...
HARD_QUOTIENTS = """
extern "C" __global__ void kernel(long long* counts, long long first, long long step)
{
    for (unsigned Y = (1 << 23) + first; Y < 1 << 24; Y += step) {
        const int twos = __builtin_ctz(Y);
        unsigned inverse = Y >> twos;  // of the odd part of Y, modulo 2^32, by Newton's method
        for (int n = 0; n < 5; ++n) inverse *= 2 - (Y >> twos) * inverse;
        for (int c = -16; c <= 16; ++c)
            for (int s = 24; c != 0 && __builtin_ctz(c) == twos && s <= 25; ++s) {  // 2^s X = M Y + c
                const unsigned period = 1u << (s - twos), M0 = (-(unsigned)(c >> twos) * inverse - (1 << 24)) % period;
                for (uint64 M = (1 << 24) + M0; M < 1 << 25; M += period) {
                    const uint64 X = (M * Y + c) >> s;
                    if (X < 1 << 23 || X >= 1 << 24) continue;
                    const float x = X, y = Y;
                    ++counts[0];
                    counts[1] += divide(x, y, reciprocal(y)) != x / y;
                    counts[2] += x * reciprocal(y) != x / y;
                }
            }
    }
}
"""


@pytest.mark.parametrize(("step", "tried"), [(63, 1_476_077), pytest.param(1, 93_036_199, marks=pytest.mark.slow)])
def test_quotients_by_a_shared_reciprocal_are_rounded_correctly_where_that_is_hardest(step: int, tried: int) -> None:
    driver, counts = SimulatedDriver(), np.zeros(3, np.int64)
    driver.launch(driver.compile(PREAMBLE + HARD_QUOTIENTS), (1, 1), 1, [counts.ctypes.data, 0, step])
    assert (counts[0], counts[1]) == (tried, 0)
    assert counts[2] > tried // 3  # without the remainder, many are wrong


QUOTIENTS = """
extern "C" __global__ void kernel(float* z, const float* x, const float* y, long long n)
{
    for (long long i = 0; i < n; ++i) z[i] = divide(x[i], y[i], reciprocal(y[i]));
}
"""


def test_quotients_of_any_two_floats_have_the_bits_of_numpy() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, (2, 2_000_000), np.uint32)
    bits[0, ::2] = bits[0, ::2] & 0x807FFFFF | bits[1, ::2] & 0x7F800000  # quotients near 1
    special = np.float32([0, -0.0, 1, -1, 2**-149, 2**-126, 2**-60, 2**-40, 2**40, 3e38, math.inf, -math.inf, math.nan])
    pairs = zip(bits.view(np.float32), np.meshgrid(special, special), strict=True)
    x, y = (np.concatenate([drawn, more.ravel()]) for drawn, more in pairs)
    z, driver = np.empty_like(x), SimulatedDriver()
    driver.launch(driver.compile(PREAMBLE + QUOTIENTS), (1, 1), 1, [*(a.ctypes.data for a in (z, x, y)), len(z)])
    with np.errstate(all="ignore"):
        wanted = x / y
    np.testing.assert_array_equal(z, wanted)
    numbers = wanted == wanted
    np.testing.assert_array_equal(np.signbit(z[numbers]), np.signbit(wanted[numbers]))
