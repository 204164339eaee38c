"""Batch normalization, compared with loops over scalars, numerical gradients of these loops, and torch.

Tests ``neonlite/backend/primitives/norm.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from helpers.reference import numerical_gradient
from helpers.runtimes import lacks

from neonlite import Backend
from neonlite.backend.tensor import Tensor

Array = np.ndarray[Any, Any]
Rows = list[list[float]]
Times = Callable[[float, float], float]

SIZES = [1, 1, 2, 3, 5, 7, 11]
NEAR = {"float16": 1e-3, "float32": 1e-6, "float64": 1e-14}
DTYPES = pytest.mark.parametrize("dtype", NEAR)
# how near an exponent may be to a half, where rounding decides about the power of two
TOO_NEAR = {"float16": 0.02, "float32": 1e-3, "float64": 1e-6}


def cases(be: Backend) -> int:
    return 100 if be.name == "cpu" else 12


# --- the textbook --------------------------------------------------------------------------------------------------


class Shift:
    """``x * AP2(y)``: times the power of two nearest to y. ``nearest``: how near an exponent was to a tie."""

    def __init__(self) -> None:
        self.nearest = 1.0

    def __call__(self, x: float, y: float) -> float:
        if not y:
            return 0.0
        exponent = math.log2(abs(y))
        self.nearest = min(self.nearest, abs(exponent - math.floor(exponent) - 0.5))
        return x * math.copysign(2.0 ** round(exponent), y)


def product(x: float, y: float) -> float:
    return x * y


def statistics(x: Rows, times: Times = product) -> tuple[list[float], list[float]]:
    """Return the mean and the population variance of each row."""
    means, variances = [], []
    for row in x:
        mean = math.fsum(row) / len(row)
        means.append(mean)
        variances.append(math.fsum(times(v - mean, v - mean) for v in row) / len(row))
    return means, variances


def normalized(
    x: Rows,
    mean: list[float],
    var: list[float],
    gamma: list[float],
    beta: list[float],
    eps: float,
    times: Times = product,
    relu: bool = False,
) -> Rows:
    out = []
    for f, row in enumerate(x):
        scale = 1 / math.sqrt(var[f] + eps)
        values = [times(times(v - mean[f], scale), gamma[f]) + beta[f] for v in row]
        out.append([max(v, 0.0) if relu else v for v in values])
    return out


def column(be: Backend, values: Any, dtype: str) -> Tensor:
    return be.array(np.reshape(values, (-1, 1)), dtype=dtype)


def flat(t: Tensor) -> list[float]:
    return [float(v) for v in t.get()[:, 0]]


def near(got: Any, want: Any, dtype: str, size: float = 1.0) -> bool:
    """Return whether numbers agree, relative to the largest among them."""
    want = np.array(want)
    largest = max(size, float(np.max(np.abs(want), initial=0)))
    return bool(np.all(np.abs(np.reshape(got, want.shape) - want) <= NEAR[dtype] * largest))


def laid(be: Backend, values: Array, dtype: str, rng: np.random.Generator) -> Tensor:
    """Return a tensor of values that is dense, a transposed view, or some columns of a larger one."""
    how = rng.integers(3)
    if how == 2:
        whole = be.ones((values.shape[0], values.shape[1] + 2), dtype=dtype)
        whole[:, 1:-1] = be.array(values, dtype=dtype)
        return whole[:, 1:-1]
    return be.array(values.T, dtype=dtype).T if how else be.array(values, dtype=dtype)


# --- forward -------------------------------------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize("binary", [False, True])
def test_a_batch_is_normalized_by_its_own_statistics(be, rng, dtype, binary):
    if lacks(be, dtype):
        return
    done = 0
    while done < cases(be):
        F, n = rng.choice([0, *SIZES]), rng.choice(SIZES)
        x = laid(be, rng.normal(size=(F, n)) * 2 + rng.normal(), dtype, rng)
        y = laid(be, rng.normal(size=(F, n)), dtype, rng)
        gamma, beta, gmean, gvar = (column(be, rng.normal(size=F), dtype) for _ in range(4))
        xsum, xvar = (column(be, np.full(F, np.nan), dtype) for _ in range(2))
        eps, rho, relu = float(rng.choice([1e-3, 0.1])), float(rng.choice([0.9, 0.0, 0.5])), bool(rng.integers(2))
        accumulate, given = float(rng.choice([0.0, 1.0, -0.5])), bool(rng.integers(2))
        values, old, running = x.get().tolist(), y.get(), (flat(gmean), flat(gvar))
        times: Any = Shift() if binary else product
        if given:  # the sums are there already
            xsum[:] = np.reshape([sum(row) for row in values], (-1, 1))
        mean, var = statistics(values, times)
        if dtype == "float16":  # the layer's buffers are rounded to float16
            mean = [
                float(np.float16(np.float16(sum(row)) / n if given else m)) for m, row in zip(mean, values, strict=True)
            ]
        want = np.reshape(normalized(values, mean, var, flat(gamma), flat(beta), eps, times, relu), (F, n))
        if accumulate:
            want = want + accumulate * old
        else:
            y[:] = np.nan
        if binary and times.nearest < TOO_NEAR[dtype]:
            continue
        done += 1
        more = {"binary": True} if binary else {}
        got = be.compound_fprop_bn(
            x, xsum, xvar, gmean, gvar, gamma, beta, y, eps, rho, not given, accumulate, relu, **more
        )
        assert got is y
        assert y.get().dtype == dtype
        spread = 1 / math.sqrt(min([*var, 1.0]) + eps)  # what rounding of the mean is multiplied by
        assert near(y.get(), want, dtype, spread * (np.max(np.abs(x.get()), initial=0) + 1))
        assert near(xsum.get(), mean, dtype)
        assert near(xvar.get(), var, dtype)
        for now, before, batch in ((gmean, running[0], mean), (gvar, running[1], var)):
            assert near(now.get(), [rho * g + (1 - rho) * b for g, b in zip(before, batch, strict=True)], dtype)
        assert np.array_equal(x.get().tolist(), values)


@DTYPES
@pytest.mark.parametrize("binary", [False, True])
def test_inference_takes_the_running_statistics_and_writes_the_result_alone(be, rng, dtype, binary):
    if lacks(be, dtype):
        return
    done = 0
    while done < cases(be):
        F, n = rng.choice([0, *SIZES], 2)
        x, y = (laid(be, rng.normal(size=(F, n)), dtype, rng) for _ in range(2))
        gamma, beta, gmean = (column(be, rng.normal(size=F), dtype) for _ in range(3))
        gvar, xsum, xvar = (column(be, rng.random(size=F), dtype) for _ in range(3))
        eps, relu, accumulate = 1e-2, bool(rng.integers(2)), float(rng.choice([0.0, 1.0, -0.5]))
        old, others = y.get(), (x, xsum, xvar, gmean, gvar, gamma, beta)
        before = [t.get() for t in others]
        times: Any = Shift() if binary else product
        rows = x.get().tolist(), flat(gmean), flat(gvar), flat(gamma), flat(beta)
        want = np.reshape(normalized(*rows, eps, times, relu), (F, n)) + (accumulate * old if accumulate else 0)
        if binary and times.nearest < TOO_NEAR[dtype]:
            continue
        done += 1
        be.compound_fprop_bn(
            x, xsum, xvar, gmean, gvar, gamma, beta, y, eps, 0.9, True, accumulate, relu, binary, inference=True
        )
        assert near(y.get(), want, dtype, 10 / math.sqrt(min([*rows[2], 1.0]) + eps))
        assert all(np.array_equal(t.get(), b) for t, b in zip(others, before, strict=True))


def test_the_result_may_overwrite_the_batch(be, rng):
    for inference in (False, True):
        values = rng.normal(size=(4, 9))
        x = be.array(values)
        rows = [column(be, v, "float32") for v in ([0] * 4, [0] * 4, [0.5] * 4, [2] * 4, [3] * 4, [1] * 4)]
        be.compound_fprop_bn(x, *rows, x, 1e-3, 0.9, inference=inference)
        mean, var = ([0.5] * 4, [2] * 4) if inference else statistics(values.tolist())
        assert near(x.get(), normalized(values.tolist(), mean, var, [3] * 4, [1] * 4, 1e-3), "float32", 10)


def test_the_running_statistics_start_at_0_and_decay_at_the_rate_rho(be):
    x, y = be.array([[1.0, 3.0]]), be.zeros((1, 2))
    xsum, xvar, gmean, gvar, gamma, beta = (be.zeros((1, 1)) for _ in range(6))
    seen = []
    for _ in range(3):
        be.compound_fprop_bn(x, xsum, xvar, gmean, gvar, gamma, beta, y, 1e-3, 0.75)
        seen.append((gmean.get().item(), gvar.get().item()))
    assert seen == [(0.5, 0.25), (0.875, 0.4375), (1.15625, 0.578125)]
    assert (xsum.get().item(), xvar.get().item()) == (2, 1)  # of the population: not 2, n / (n - 1) times as much


def test_16_bit_floats_do_not_overflow_in_sums_and_squares(be):
    if lacks(be, "float16"):
        return
    values = np.where(np.arange(4096) % 2, 100.0, 260.0)[None]  # their sum is 737,280; of squares 159 million
    x = be.array(values, dtype="float16")
    xsum, xvar, gmean, gvar, gamma, beta = (be.ones((1, 1), dtype="float16") for _ in range(6))
    y = be.compound_fprop_bn(x, xsum, xvar, gmean, gvar, gamma, beta.fill(0), be.empty_like(x), 1e-3, 0.5)
    assert (xsum.get().item(), xvar.get().item()) == (180, 6400)
    assert np.allclose(y.get(), np.where(values == 260, 1, -1), atol=1e-3)
    error = be.array(np.where(values == 260, 40.0, 0.0), dtype="float16")
    by_gamma, by_beta = (be.zeros((1, 1), dtype="float32") for _ in range(2))
    be.compound_bprop_bn(error, by_gamma, by_beta, error, x, xsum, xvar, gamma, 1e-3)
    assert np.allclose([by_gamma.get().item(), by_beta.get().item()], 40 * 2048, rtol=1e-3)
    assert np.all(np.abs(error.get()) < 1e-2)  # 40 and 0 are what gamma and beta make: nothing is left


# --- backward ------------------------------------------------------------------------------------------------------


def numerical_gradients(x: Array, gamma: Array, beta: Array, eps: float, weights: Array) -> list[Array]:
    """Return the derivatives of ``sum(weights y)`` by x, gamma and beta: central differences of the loops."""

    def error() -> float:
        rows = x.tolist()
        y = normalized(rows, *statistics(rows), gamma.tolist(), beta.tolist(), eps)
        return math.fsum(w * v for ws, vs in zip(weights.tolist(), y, strict=True) for w, v in zip(ws, vs, strict=True))

    return [numerical_gradient(error, t, 1e-5) for t in (x, gamma, beta)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("in_place", [False, True])
def test_the_backward_pass_is_the_derivative_of_the_forward_pass(be, rng, dtype, in_place):
    for _ in range(cases(be) // 2):
        F, n = int(rng.choice([1, 2, 3])), int(rng.choice(SIZES[1:]))
        values, weights = rng.normal(size=(F, n)), rng.normal(size=(F, n))
        gamma, beta, eps = rng.normal(size=F), rng.normal(size=F), float(rng.choice([0.1, 0.5]))
        want = numerical_gradients(values, gamma, beta, eps, weights)
        x, error = laid(be, values, dtype, rng), laid(be, weights, dtype, rng)
        g, b, xsum, xvar, gmean, gvar, by_gamma, by_beta = (
            column(be, v, dtype) for v in (gamma, beta, *[np.full(F, 7.0)] * 6)
        )
        be.compound_fprop_bn(x, xsum, xvar, gmean, gvar, g, b, be.empty((F, n), dtype=dtype), eps, 0.9)
        out = error if in_place else laid(be, np.full((F, n), np.nan), dtype, rng)
        assert be.compound_bprop_bn(out, by_gamma, by_beta, error, x, xsum, xvar, g, eps) is out
        atol = 2e-5 if dtype == "float32" else 1e-8
        for got, slope in zip((out, by_gamma, by_beta), want, strict=True):
            assert np.allclose(got.get().reshape(slope.shape), slope, rtol=1e-4, atol=atol)
        if not in_place:
            assert np.array_equal(error.get(), weights.astype(dtype))
        assert np.array_equal(x.get(), values.astype(dtype))


@pytest.mark.parametrize("shift", [1, -1])
def test_deltas_that_overlap_the_error_in_part_are_those_of_separate_memory(be, rng, shift):
    F, n = 8, 2048
    memory, x = be.array(rng.normal(size=(F + 1, n))), be.array(rng.normal(size=(F, n)))
    mean, var, gamma = (be.array(v) for v in (rng.normal(size=(F, 1)), 1 + rng.random((F, 1)), rng.random((F, 1))))
    error, out = (memory[:-1], memory[1:]) if shift > 0 else (memory[1:], memory[:-1])
    sums, expected_sums = ([be.zeros((F, 1)) for _ in range(2)] for _ in range(2))
    expected = be.compound_bprop_bn(be.empty((F, n)), *expected_sums, be.array(error), x, mean, var, gamma, 0.1)
    be.compound_bprop_bn(out, *sums, error, x, mean, var, gamma, 0.1)
    for got, wanted in zip((out, *sums), (expected, *expected_sums), strict=True):
        np.testing.assert_allclose(got.get(), wanted.get(), rtol=1e-4, atol=1e-5)


@DTYPES
def test_the_binary_backward_pass_has_powers_of_two_for_products(be, rng, dtype):
    if lacks(be, dtype):
        return
    done = 0
    while done < cases(be):
        F, n = int(rng.choice([0, *SIZES])), int(rng.choice(SIZES))
        x, error, gamma = (laid(be, rng.normal(size=size), dtype, rng) for size in ((F, n), (F, n), (F, 1)))
        mean, var, by_gamma, by_beta = (column(be, rng.random(F), dtype) for _ in range(4))
        times, eps = Shift(), 1e-2
        want = np.zeros((F, n))
        sums = []
        for f in range(F):
            xs, ds = x.get().tolist()[f], error.get().tolist()[f]
            inverse = 1 / math.sqrt(flat(var)[f] + eps)
            xhat = [times(v - flat(mean)[f], inverse) for v in xs]
            g, b = math.fsum(h * d for h, d in zip(xhat, ds, strict=True)), math.fsum(ds)
            sums.append((g, b))
            for c in range(n):
                left = ds[c] - (times(xhat[c], g) + b) / n
                want[f, c] = times(times(left, flat(gamma)[f]), inverse)
        if times.nearest < TOO_NEAR[dtype]:
            continue
        done += 1
        be.compound_bprop_bn(error, by_gamma, by_beta, error, x, mean, var, gamma, eps, True)
        assert near(error.get(), want, dtype, 20)
        assert near(by_gamma.get(), [g for g, _ in sums], dtype, 20)
        assert near(by_beta.get(), [b for _, b in sums], dtype, 20)


@pytest.mark.skipif(not find_spec("torch"), reason="torch is not installed")
@pytest.mark.parametrize("inference", [False, True])
def test_batch_normalization_agrees_with_torch(be64, rng, inference):
    import torch

    be = be64
    for F, n in ((1, 2), (5, 8), (13, 100)):
        x, gamma, beta = (torch.tensor(rng.normal(size=size), requires_grad=True) for size in ((n, F), (F,), (F,)))
        gmean, gvar = (torch.tensor(rng.random(F)) for _ in range(2))
        error = rng.normal(size=(F, n))
        mine = [be.array(t.detach().numpy().reshape(F, 1)) for t in (gmean, gvar, gamma, beta)]
        xs, xsum, xvar, y = be.array(x.detach().numpy().T), be.zeros((F, 1)), be.zeros((F, 1)), be.zeros((F, n))
        be.compound_fprop_bn(xs, xsum, xvar, *mine, y, 1e-3, 0.75, inference=inference)
        out = torch.nn.functional.batch_norm(x, gmean, gvar, gamma, beta, not inference, 0.25, 1e-3)
        assert np.allclose(y.get(), out.detach().numpy().T, atol=1e-12)
        assert np.allclose(mine[0].get()[:, 0], gmean.numpy(), atol=1e-12)
        if not inference:  # torch keeps n / (n - 1) times the population's variance
            more = 0.25 * xvar.get()[:, 0] / (n - 1)
            assert np.allclose(mine[1].get()[:, 0] + more, gvar.numpy(), atol=1e-12)
            (out * torch.tensor(error.T)).sum().backward()
            delta, by_gamma, by_beta = be.array(error), be.zeros((F, 1)), be.zeros((F, 1))
            be.compound_bprop_bn(delta, by_gamma, by_beta, delta, xs, xsum, xvar, mine[2], 1e-3)
            for got, want in ((delta, x.grad.T), (by_gamma, gamma.grad), (by_beta, beta.grad)):
                assert np.allclose(got.get().reshape(want.shape), want.numpy(), atol=1e-11)


# --- what does not fit ---------------------------------------------------------------------------------------------


def test_operands_that_do_not_fit_are_refused(be):
    x, y, rows = be.ones((3, 4), name="x"), be.ones((3, 4)), [be.zeros((3, 1)) for _ in range(6)]
    with pytest.raises(
        ValueError, match=r"expected y of shape \(3, 4\) = \(features, columns\), got a tensor \(4, 3\)"
    ):
        be.compound_fprop_bn(x, *rows, be.ones((4, 3)), 1e-3, 0.9)
    with pytest.raises(ValueError, match=r"expected gmean of shape \(3, 1\) = \(features, 1\), got a tensor \(4, 1\)"):
        be.compound_fprop_bn(x, *rows[:2], be.zeros((4, 1)), *rows[3:], y, 1e-3, 0.9)
    with pytest.raises(ValueError, match=r"bprop_bn: expected delta_in of shape \(3, 4\)"):
        be.compound_bprop_bn(y, rows[0], rows[1], be.ones((3, 5)), x, *rows[2:5], 1e-3)
    with pytest.raises(ValueError, match=r"for training with columns, got x \(3, 0\)"):
        be.compound_fprop_bn(be.zeros((3, 0), name="x"), *rows, be.zeros((3, 0)), 1e-3, 0.9)
    with pytest.raises(ValueError, match=r"expected x \(features, columns\), .* got a tensor \(3, 4, 2\)"):
        be.compound_fprop_bn(be.ones((3, 4, 2)), *rows, be.ones((3, 4, 2)), 1e-3, 0.9, inference=True)
    with pytest.raises(TypeError, match="expected a tensor for gamma, got 1"):
        be.compound_fprop_bn(x, *rows[:4], 1, rows[5], y, 1e-3, 0.9)
