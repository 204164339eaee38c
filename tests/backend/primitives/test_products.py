"""Matrix products, fully connected and recurrent layers, lookup tables: compared with loops over scalars, and torch.

Tests ``neonlite/backend/primitives/products.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from helpers.allocations import buffers, peak
from helpers.reference import numerical_gradient
from helpers.runtimes import RUNTIMES, lacks

from neonlite import Backend
from neonlite.backend.tensor import Tensor
from neonlite.typing import HALF_DTYPES

Array = np.ndarray[Any, Any]

SIZES = [0, 1, 1, 2, 3, 4, 5, 7, 8]
ALPHAS = [1.0, 1.0, 1, 0, -2.5, np.float32(0.5), np.float64(0.3)]
BETAS = [0.0, 0, 1.0, 1, -0.5, np.float32(2)]
TOLERANCE = {"float16": 1e-3, "float32": 2e-6, "float64": 1e-14}  # of the sum of the absolute values of all terms
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE)


def cases(be: Backend, few: int = 15) -> range:
    return range(100 if be.name == "cpu" else few)


def close(got: Array, want: Any, terms: Any, dtype: str) -> None:
    """Assert that numbers agree, up to what rounding does to the sum of their terms."""
    want, terms = np.reshape(want, got.shape), np.reshape(terms, got.shape)
    assert got.dtype == dtype
    assert np.all(np.abs(got.astype(np.float64) - want) <= TOLERANCE[dtype] * (1 + terms))


def laid(be: Backend, values: Array, dtype: str, rng: np.random.Generator) -> Tensor:
    """Return a tensor of values that is dense, a transposed view, or one of some rows or columns of a larger one."""
    how, (m, n) = rng.integers(6), values.shape[-2:]
    stack = (slice(None),) * (values.ndim - 2)
    if how == 0:
        return be.array(values, dtype=dtype)
    if how == 1:
        return be.array(values.swapaxes(-1, -2), dtype=dtype).T
    rows, columns = slice(0, m), slice(0, n)
    if how == 2:
        rows = slice(1, m + 1)
    elif how == 3:
        columns = slice(2, n + 2)
    elif how == 4:
        columns = slice(0, 2 * n, 2)
    elif be.runtime.supports_negative_strides and m:
        rows = slice(m - 1, None, -1)
    whole = be.array(np.full((*values.shape[:-2], m + 1, 2 * n + 2), np.nan), dtype=dtype)
    view = (
        whole[(*stack, slice(0, m), slice(None))][(*stack, rows, columns)] if how == 5 else whole[*stack, rows, columns]
    )
    view[:] = be.array(values, dtype=dtype)
    return view


def untouched(t: Tensor) -> bool:
    """Return whether the NaNs around a view of ``laid`` are still there."""
    return int(np.isnan(t.root.get()).sum()) == t.root.size - t.size


def total(pairs: Any, c: Array, alpha: Any, beta: Any, relu: bool) -> tuple[Array, Array]:
    """Return ``[relu](alpha * sum of a b) + beta c`` over pairs (a, b), and the absolute values of its terms, added."""
    out, terms = np.zeros(c.shape), np.zeros(c.shape)
    for i, j in np.ndindex(c.shape):
        product = size = 0.0
        for a, b in pairs:
            for p in range(a.shape[1]):
                product += float(a[i, p]) * float(b[p, j])
                size += abs(float(a[i, p]) * float(b[p, j]))
        product *= float(alpha)
        if relu and product < 0:
            product = 0.0
        out[i, j], terms[i, j] = product, size * abs(alpha)
        if beta:
            out[i, j] += float(beta) * float(c[i, j])
            terms[i, j] += abs(float(beta) * float(c[i, j]))
    return out, terms


# --- compound_dot --------------------------------------------------------------------------------------------------


@DTYPES
def test_compound_dot_is_the_textbook_sum_in_every_layout(be, rng, dtype):
    if lacks(be, dtype):
        return
    for _ in cases(be):
        m, k, n = rng.choice(SIZES, 3)
        alpha, beta, relu = ALPHAS[rng.integers(7)], BETAS[rng.integers(6)], bool(rng.integers(2))
        A, B, C = (laid(be, rng.normal(size=shape), dtype, rng) for shape in ((m, k), (k, n), (m, n)))
        want, terms = total([(A.get(), B.get())], C.get(), alpha, beta, relu)
        if not beta:
            C[:] = np.nan
        bsum = laid(be, np.zeros((m, 1)), dtype, rng) if rng.integers(2) else None
        assert be.compound_dot(A, B, C, alpha, beta, relu, bsum) is C
        close(C.get(), want, terms, dtype)
        assert untouched(C)
        if bsum is not None:
            close(bsum.get(), want.sum(axis=1), terms.sum(axis=1), dtype)


@DTYPES
def test_compound_dot_may_write_over_its_own_operands(be, rng, dtype):
    if lacks(be, dtype):
        return
    for _ in cases(be):
        m, k, n = rng.integers(1, 6, 3)
        memory = be.array(rng.normal(size=(8, 9)), dtype=dtype)

        def part(rows: int, columns: int, memory: Tensor = memory) -> Tensor:
            if rng.integers(2):
                return part(columns, rows).T
            i, j = rng.integers(0, 9 - rows), rng.integers(0, 10 - columns)
            return memory[i : i + rows, j : j + columns]

        A, B, C = part(m, k), part(k, n), part(m, n)
        if m == k == n and rng.integers(2):
            C = [A, A.T, B, B.T][rng.integers(4)]
        alpha, beta, relu = ALPHAS[rng.integers(7)], BETAS[rng.integers(6)], bool(rng.integers(2))
        want, terms = total([(A.get(), B.get())], C.get(), alpha, beta, relu)
        before = memory.get()
        be.compound_dot(A, B, C, alpha, beta, relu)
        close(C.get(), want, terms, dtype)
        C[:] = np.nan
        rest = ~np.isnan(memory.get())
        assert np.array_equal(memory.get()[rest], before[rest])


def test_compound_dot_does_not_read_c_when_beta_is_0(be):
    for relu in (False, True):
        for junk in (math.nan, math.inf):
            C = be.array(np.full((2, 2), junk))
            be.compound_dot(be.array([[1, 2], [3, 4]]), be.array([[1, 0], [0, -1]]), C, alpha=2, beta=0, relu=relu)
            assert C.get().tolist() == [[2, 0], [6, 0]] if relu else C.get().tolist() == [[2, -4], [6, -8]]


def test_compound_dot_takes_relu_before_it_adds_beta_c(be):
    C = be.array([[-10.0, 10.0]])
    be.compound_dot(be.array([[1.0]]), be.array([[-3.0, 3.0]]), C, beta=1, relu=True)
    assert C.get().tolist() == [[-10, 13]]


def test_16_bit_floats_are_summed_in_float32(be):
    if lacks(be, "float16"):
        return
    A, B, C = (be.ones(shape, dtype="float16") for shape in ((1, 5000), (5000, 1), (1, 1)))
    assert be.compound_dot(A, B, C).get() == 5000  # summed in float16 this stops at 2048
    stacks = be.ones((5000, 1, 1), dtype="float16")
    assert be.batched_dot(stacks, stacks, C).get() == 5000


def test_products_refuse_operands_that_do_not_fit(be):
    x, y = be.ones((2, 3), name="x"), be.ones((3, 2))
    out = be.zeros((2, 2), name="out")
    with pytest.raises(
        ValueError, match=r"A \(m, k\), B \(k, n\) and C \(m, n\), got A x \(2, 3\), B x \(2, 3\), C out"
    ):
        be.compound_dot(x, x, out)
    with pytest.raises(ValueError, match=r"C a tensor \(2, 3\)"):
        be.compound_dot(x, y, be.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"B a tensor \(3, 2, 5\)"):
        be.compound_dot(x, be.ones((3, 2, 5)), out)
    with pytest.raises(ValueError, match=r"expected bsum of shape \(2, 1\), one element for each row of out \(2, 2\)"):
        be.compound_dot(x, y, out, bsum=be.zeros((1, 2)))
    with pytest.raises(
        TypeError, match=r"one float dtype, got A float32 \(x \(2, 3\)\), B float64 .* Cast with be.astype"
    ):
        be.compound_dot(x, be.ones((3, 2), dtype="float64"), out)
    with pytest.raises(TypeError, match="one float dtype, got A int32"):
        be.compound_dot(*(be.ones((2, 2), dtype="int32") for _ in range(3)))
    with pytest.raises(TypeError, match=r"expected a tensor for A, got (an )?array"):
        be.compound_dot(np.ones((2, 3)), y, out)
    with pytest.raises(ValueError, match=r"expected a tensor of .*, got .* of <backend cpu"):
        be.compound_dot(Backend("cpu").ones((2, 3)), y, out)
    with pytest.raises(
        TypeError, match=r"be.batched_dot: expected tensors of one float dtype, got A float32 .*, B float64"
    ):
        be.batched_dot(x, be.ones((4, 3, 2), dtype="float64"), be.ones((4, 2, 2)))
    for shapes in (
        ((2, 3), (3, 2), (2, 2)),  # no stack
        ((2, 3), (4, 3, 2), (5, 2, 2)),  # stacks of different heights
        ((2, 3), (4, 3, 2), (2, 2)),  # a sum over one stack
        ((4, 2, 3), (5, 3, 2), (2, 2)),
        ((2, 3), (4, 5, 2), (4, 2, 2)),
        ((2, 3), (4, 3, 2), (4, 2, 3)),
    ):
        with pytest.raises(
            ValueError, match=r"be.batched_dot: expected A \(K, C\), B \(X, C, N\), C \(X, K, N\), or A"
        ):
            be.batched_dot(*(be.zeros(shape) for shape in shapes))


# --- batched_dot ---------------------------------------------------------------------------------------------------

FORMS = ["A B", "A.T B", "sum over A B.T"]


def stacks(form: str, X: int, K: int, C: int, N: int) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of A, B and C in one of the three forms."""
    if form == "A B":
        return (K, C), (X, C, N), (X, K, N)
    return ((K, C), (X, K, N), (X, C, N)) if form == "A.T B" else ((X, K, N), (X, C, N), (K, C))


def total_of_stacks(form: str, A: Array, B: Array, C: Array, *how: Any) -> tuple[Array, Array]:
    """Return what ``total`` does, matrix by matrix."""
    if form == "sum over A B.T":
        return total([(a, b.T) for a, b in zip(A, B, strict=True)], C, *how)
    out, terms = np.zeros(C.shape), np.zeros(C.shape)
    for x in range(len(C)):
        out[x], terms[x] = total([(A if form == "A B" else A.T, B[x])], C[x], *how)
    return out, terms


def batched(be: Backend, form: str, A: Tensor, B: Tensor, C: Tensor, *how: Any) -> Tensor:
    return be.batched_dot(A.T if form == "A.T B" else A, B.T if form == "sum over A B.T" else B, C, *how)


@DTYPES
@pytest.mark.parametrize("form", FORMS)
def test_batched_dot_is_the_textbook_sum_in_every_layout(be, rng, dtype, form):
    if lacks(be, dtype):
        return
    for _ in cases(be):
        shapes = stacks(form, *rng.choice(SIZES[:-1], 4))
        alpha, beta, relu = ALPHAS[rng.integers(7)], BETAS[rng.integers(6)], bool(rng.integers(2))
        A, B, C = (laid(be, rng.normal(size=shape), dtype, rng) for shape in shapes)
        want, terms = total_of_stacks(form, A.get(), B.get(), C.get(), alpha, beta, relu)
        if not beta:
            C[:] = np.nan
        assert batched(be, form, A, B, C, alpha, beta, relu) is C
        close(C.get(), want, terms, dtype)
        assert untouched(C)


@pytest.mark.parametrize("form", FORMS)
def test_batched_dot_may_write_over_its_own_operands(be, rng, form):
    for _ in cases(be):
        X, N = rng.integers(1, 4, 2)
        shapes = stacks(form, X, N, N, N)
        memory = be.array(rng.normal(size=200))
        parts = []
        for shape in shapes:
            start = rng.integers(0, 60)
            parts.append(memory[start : start + math.prod(shape)].reshape(shape))
        A, B, C = parts
        alpha, beta, relu = ALPHAS[rng.integers(7)], BETAS[rng.integers(6)], bool(rng.integers(2))
        want, terms = total_of_stacks(form, A.get(), B.get(), C.get(), alpha, beta, relu)
        batched(be, form, A, B, C, alpha, beta, relu)
        close(C.get(), want, terms, "float32")


def test_a_sum_over_an_empty_stack_is_0(be):
    A, B, C = be.zeros((0, 2, 3)), be.zeros((0, 4, 3)), be.array(np.full((2, 4), np.nan))
    assert be.batched_dot(A, B.T, C).get().tolist() == [[0] * 4] * 2
    assert be.batched_dot(A, B.T, C.fill(3), beta=2).get().tolist() == [[6] * 4] * 2


# --- xnor_compound_dot, and the products of a fully connected layer --------------------------------------------------


def test_xnor_compound_dot_counts_how_many_signs_agree(be, rng):
    for _ in cases(be):
        m, k, n = rng.choice(SIZES, 3)
        a, b, c = (rng.choice([-1, 1], size) for size in ((m, k), (k, n), (m, n)))
        beta = rng.integers(-1, 2)
        agree = [[sum(a[i, p] == b[p, j] for p in range(k)) for j in range(n)] for i in range(m)]
        want = 2 * np.reshape(agree, (m, n)) - k + beta * c
        A, B, C = (laid(be, x, "float32", rng) for x in (a, b, c))
        bsum = be.zeros((m, 1))
        assert be.xnor_compound_dot(A, B, C, beta, bsum) is C
        assert np.array_equal(C.get(), want)
        assert np.array_equal(bsum.get()[:, 0], want.sum(axis=1))


@DTYPES
def test_a_bias_is_added_to_each_column_and_its_gradient_sums_the_columns(be, rng, dtype):
    if lacks(be, dtype):
        return
    for _ in cases(be):
        m, n = rng.choice(SIZES, 2)
        x, bias, out = (laid(be, rng.normal(size=shape), dtype, rng) for shape in ((m, n), (m, 1), (m, 1)))
        a, b = x.get().tolist(), bias.get().tolist()
        assert be.update_fc_bias(x, out) is out
        close(out.get(), [sum(row) for row in a], [sum(map(abs, row)) for row in a], dtype)
        assert be.add_fc_bias(x, bias) is x
        want = [[a[i][j] + b[i][0] for j in range(n)] for i in range(m)]
        close(x.get(), want, np.abs(np.reshape(want, (m, n))), dtype)
        assert untouched(x)
        assert untouched(out)


def test_a_bias_is_a_column(be):
    x = be.ones((3, 3), name="x")
    with pytest.raises(
        ValueError, match=r"expected bias of shape \(3, 1\), one element for each row of x \(3, 3\), got"
    ):
        be.add_fc_bias(x, be.ones((1, 3)))
    with pytest.raises(
        ValueError, match=r"expected out of shape \(3, 1\), one element for each row of x \(3, 3\), got"
    ):
        be.update_fc_bias(x, be.ones((3, 3)))


# --- memory --------------------------------------------------------------------------------------------------------


def a_product(be: Backend, form: str, dtype: str, rng: np.random.Generator) -> Callable[..., Any]:
    shapes = ((230, 210), (210, 220), (230, 220)) if form == "A B, matrices" else stacks(form, 2, 230, 210, 220)
    A, B, C = (be.array(rng.normal(size=shape), dtype=dtype) for shape in shapes)
    if form == "A B, matrices":
        return lambda *how: be.compound_dot(A, B, C, *how)
    return lambda *how: batched(be, form, A, B, C, *how)


def test_buffers_and_peaks_are_detected():
    x = np.zeros(1000)
    assert max(buffers(lambda: np.exp(np.zeros(1000) + 1))) == 8000
    assert peak(lambda: x.__iadd__(x * x)) >= 8000


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("form", ["A B, matrices", *FORMS])
@pytest.mark.parametrize("runtime", [name for name in ("cpu", "mkl") if name in RUNTIMES])
def test_products_allocate_nothing_once_they_have_run(rng, runtime, form, dtype):
    product = a_product(Backend(runtime), form, dtype, rng)
    for how in ((1.0, 0.0, False), (0.5, 0.0, True), (-0.5, 1.0, False), (1.0, 0.5, False), (0.5, 0.25, True)):
        product(*how)
        product(*how)
        assert peak(lambda how=how: product(*how)) < 20_000, how  # a matrix has 185 kB or more
    if dtype == "float32":
        assert buffers(lambda: product(0.5, 0.25, True)) == buffers(lambda: product(0.5, 0.0, False)) == []


@pytest.mark.parametrize("runtime", [name for name in RUNTIMES if name in ("cpu", "mkl")])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_into_a_slice_of_columns_allocate_nothing_either(rng, runtime, dtype):
    be = Backend(runtime, default_dtype=dtype)
    a, b, c = rng.standard_normal((120, 50)), rng.standard_normal((50, 130)), rng.standard_normal((120, 300))
    A, B = be.array(a), be.array(b)
    for alpha, beta in ((1.0, 0.0), (-2.0, 0.0), (1.0, 1.0), (0.5, -2.0)):
        whole = be.array(c)
        C = whole[:, 30:160]
        be.compound_dot(A, B, C, alpha, beta)
        want = c.copy()
        want[:, 30:160] = alpha * (a @ b) + beta * c[:, 30:160]
        np.testing.assert_allclose(whole.get(), want, rtol=1e-3, atol=1e-4)
        assert peak(lambda C=C, by=(alpha, beta): be.compound_dot(A, B, C, *by)) < 20_000, (alpha, beta)


# --- recurrent layers ----------------------------------------------------------------------------------------------


class Activation:
    """An activation: the op-tree of f(x), and of f'(x) as a function of f(x)."""

    def __init__(self, be: Backend) -> None:
        self.be = be


class Tanh(Activation):
    def __call__(self, x: Any) -> Any:
        return self.be.tanh(x)

    def bprop(self, h: Any) -> Any:
        return 1 - self.be.square(h)

    value = staticmethod(math.tanh)


class Logistic(Activation):
    def __call__(self, x: Any) -> Any:
        return self.be.sig(x)

    def bprop(self, h: Any) -> Any:
        return h * (1 - h)

    @staticmethod
    def value(x: float) -> float:
        return 1 / (1 + math.exp(-x))


class Relu(Activation):
    def __call__(self, x: Any) -> Any:
        return self.be.maximum(x, 0)

    def bprop(self, h: Any) -> Any:
        return h > 0

    @staticmethod
    def value(x: float) -> float:
        return x if x > 0 else 0.0


ACTIVATIONS = pytest.mark.parametrize("activation", [Tanh, Logistic, Relu])
Steps = list[list[list[float]]]


def unrolled(
    W: Any, first: Any, ff: Any, bias: Any, act: Callable[[float], float], reverse: bool
) -> tuple[Steps, float]:
    """Return h of every step, computed by scalars, and the smallest distance of a sum from 0, the kink of relu."""
    nout, N, T = len(W), len(first[0]) if len(first) else 0, len(ff)
    h: Steps = [[] for _ in range(T)]
    nearest, previous = math.inf, first
    for t in reversed(range(T)) if reverse else range(T):
        h[t] = [[0.0] * N for _ in range(nout)]
        for i in range(nout):
            for n in range(N):
                z = float(ff[t][i][n]) + float(bias[i][0])
                for j in range(nout):
                    z += float(W[i][j]) * float(previous[j][n])
                nearest = min(nearest, abs(z))
                h[t][i][n] = act(z)
        previous = h[t]
    return h, nearest


def steps_of(be: Backend, values: Array, dtype: Any = None) -> tuple[Tensor, list[Tensor]]:
    """Return a buffer (nout, T * N) with values (T, nout, N), and the views of its steps."""
    T, nout, N = values.shape
    buffer = be.array(values.transpose(1, 0, 2).reshape(nout, T * N), dtype=dtype)
    return buffer, [buffer[:, t * N : (t + 1) * N] for t in range(T)]


def previous(steps: Sequence[Tensor], first: Tensor, reverse: bool) -> list[Tensor]:
    """Return what stands before each step."""
    return [*steps[1:], first] if reverse else [first, *steps[:-1]]


def a_recurrence(rng: np.random.Generator, smallest: int = 0) -> tuple[Array, Array, Array, Array]:
    """Return W, h before the first step, the feed-forward part of every step, and the bias, of some sizes."""
    nout, N, T = (int(rng.integers(low, 6)) for low in (max(smallest, 1), max(smallest, 1), smallest))
    return (
        rng.normal(size=(nout, nout)) / math.sqrt(nout),
        rng.normal(size=(nout, N)),
        rng.normal(size=(T, nout, N)),
        rng.normal(size=(nout, 1)),
    )


@ACTIVATIONS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_recurrent_layer_runs_step_by_step(be, rng, activation, dtype):
    act = activation(be)
    for case in cases(be, 10):
        W, first, ff, bias = a_recurrence(rng)
        T, reverse, in_place = len(ff), bool(rng.integers(2)), bool(rng.integers(2))
        used = T if rng.integers(2) else int(rng.integers(0, T + 1))
        w, h0, b = (laid(be, x, dtype, rng) for x in (W, first, bias))
        _, h_ff = steps_of(be, ff, dtype)
        h = h_ff if in_place else steps_of(be, np.full_like(ff, 9), dtype)[1]
        before = previous(h[:used], h0, reverse) + h[used:]
        name = "compound_rnn_unroll_fprop" + ("_bibnrnn" if case % 2 else "")
        num_used = None if used == T and rng.integers(2) else used
        getattr(be, name)(w, before, h_ff, h, b, len(W), T, num_used, act, reverse)
        want, _ = unrolled(w.get(), h0.get(), ff.astype(dtype)[:used], b.get(), act.value, reverse)
        for t in range(used):
            assert np.allclose(h[t].get(), want[t], atol=2e-6 if dtype == "float32" else 1e-13)
        for t in range(used, T):  # left alone
            assert np.array_equal(h[t].get(), ff[t].astype(dtype) if in_place else np.full_like(ff[t], 9))
        if not in_place:
            assert all(np.array_equal(x.get(), y) for x, y in zip(h_ff, ff.astype(dtype), strict=True))


def gradients(
    W: Array, first: Array, ff: Array, bias: Array, act: Callable[[float], float], reverse: bool, weights: Array
) -> list[Array]:
    """Return the derivatives of ``sum(weights h)`` by W, first and ff: central differences of the whole of it."""

    def error() -> float:
        h, _ = unrolled(W.tolist(), first.tolist(), ff.tolist(), bias.tolist(), act, reverse)
        return sum(
            w * x
            for ws, xs in zip(weights.tolist(), h, strict=True)
            for row_w, row_x in zip(ws, xs, strict=True)
            for w, x in zip(row_w, row_x, strict=True)
        )

    return [numerical_gradient(error, x, 1e-5) for x in (W, first, ff)]


@ACTIVATIONS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_backward_pass_of_a_recurrent_layer_is_the_slope_of_the_forward_pass(be, rng, activation, dtype):
    act = activation(be)
    done = 0
    while done < (34 if be.name == "cpu" else 5):  # three activations: 100 in all
        W, first, ff, bias = a_recurrence(rng, smallest=1)
        ff, reverse = ff[:3], bool(rng.integers(2))  # whether the layer ran from its last step to its first
        want_h, nearest = unrolled(W, first, ff, bias, act.value, reverse)
        if nearest < 1e-3:
            continue
        done += 1
        error = rng.normal(size=ff.shape)
        by_W, by_first, by_ff = gradients(W, first, ff, bias, act.value, reverse, error)
        T, nout, N = ff.shape
        idle = int(rng.integers(0, 3))  # steps of the buffers that are not used
        padded = [np.concatenate([np.array(x), rng.normal(size=(idle, nout, N))]) for x in (error, want_h)]
        (_, delta), (_, h) = (steps_of(be, x, dtype) for x in padded)
        w, d0, h0 = laid(be, W, dtype, rng), be.zeros((nout, N), dtype=dtype), be.array(first, dtype=dtype)
        before = previous(delta[:T], d0, reverse) + delta[T:]
        bprop = be.compound_rnn_unroll_bprop_bibnrnn if rng.integers(2) else be.compound_rnn_unroll_bprop
        bprop(w, before, delta, h, nout, T + idle, T, act, not reverse)
        dW = be.zeros((nout, nout), dtype=dtype)
        for d, x in zip(delta[:T], previous(h[:T], h0, reverse), strict=True):
            be.compound_dot(d, x.T, dW, beta=1.0)
        near = 1e-4 if dtype == "float32" else 1e-7
        assert np.allclose([d.get() for d in delta[:T]], by_ff, atol=near)
        assert np.allclose(d0.get(), by_first, atol=near)
        assert np.allclose(dW.get(), by_W, atol=near)
        for t in range(T, T + idle):
            assert np.array_equal(delta[t].get(), padded[0][t].astype(dtype))


@pytest.mark.skipif(not find_spec("torch"), reason="torch is not installed")
def test_a_recurrent_layer_agrees_with_torch(be64, rng):
    import torch

    be, act = be64, Tanh(be64)
    for reverse in (False, True):
        nout, N, T = 7, 5, 11
        W, first, ff, bias = (
            torch.tensor(rng.normal(size=size) / 2, requires_grad=True)
            for size in ((nout, nout), (nout, N), (T, nout, N), (nout, 1))
        )
        error, before, total = torch.tensor(rng.normal(size=(T, nout, N))), first, torch.tensor(0.0)
        for t in reversed(range(T)) if reverse else range(T):
            before = torch.tanh(W @ before + ff[t] + bias)
            total = total + (error[t] * before).sum()
        total.backward()
        w, h0, b = (be.array(x.detach().numpy()) for x in (W, first, bias))
        _, h = steps_of(be, ff.detach().numpy())
        be.compound_rnn_unroll_fprop(w, previous(h, h0, reverse), h, h, b, nout, T, None, act, reverse)
        _, delta = steps_of(be, error.numpy())
        d0 = be.zeros((nout, N))
        be.compound_rnn_unroll_bprop(w, previous(delta, d0, reverse), delta, h, nout, T, None, act, not reverse)
        assert np.allclose([d.get() for d in delta], ff.grad.numpy(), atol=1e-12)
        assert np.allclose(d0.get(), first.grad.numpy(), atol=1e-12)
        by_bias = be.zeros((nout, 1))
        for d in delta:
            by_bias[:] = by_bias + be.update_fc_bias(d, be.zeros((nout, 1)))
        assert np.allclose(by_bias.get(), bias.grad.numpy(), atol=1e-12)


def test_more_steps_need_no_more_plans(be, rng):
    act, nout, N = Tanh(be), 4, 3

    def unroll(T: int) -> int:
        w, h0, b = be.array(rng.normal(size=(nout, nout))), be.zeros((nout, N)), be.zeros((nout, 1))
        _, h = steps_of(be, rng.normal(size=(T, nout, N)))
        _, delta = steps_of(be, rng.normal(size=(T, nout, N)))
        be.compound_rnn_unroll_fprop(w, previous(h, h0, False), h, h, b, nout, T, None, act)
        be.compound_rnn_unroll_bprop(w, previous(delta, be.zeros((nout, N)), False), delta, h, nout, T, None, act)
        return len(be.plan_cache)

    assert unroll(3) == unroll(3) == unroll(50)


def test_a_recurrent_layer_refuses_operands_that_do_not_fit(be):
    act = Tanh(be)
    w, b, (_, h) = be.ones((2, 2), name="W"), be.ones((2, 1)), steps_of(be, np.ones((3, 2, 4)))
    with pytest.raises(ValueError, match=r"expected W_recur of shape \(3, 3\) = \(nout, nout\), got W \(2, 2\)"):
        be.compound_rnn_unroll_fprop(w, h, h, h, b, 3, 3, None, act)
    with pytest.raises(
        ValueError, match=r"expected bias of shape \(2, 1\), one element for each row of W \(2, 2\), got"
    ):
        be.compound_rnn_unroll_fprop(w, h, h, h, be.ones((1, 2)), 2, 3, None, act)
    with pytest.raises(ValueError, match="expected lists of 4 steps, of num_steps 4, got lists of 3, 3, 3"):
        be.compound_rnn_unroll_fprop(w, h, h, h, b, 2, 4, None, act)
    with pytest.raises(ValueError, match="bprop: expected lists of 4 steps, of num_steps 3, got lists of 3, 2"):
        be.compound_rnn_unroll_bprop(w, h, h[:2], h, 2, 3, 4, act)
    with pytest.raises(ValueError, match=r"expected steps of one shape \(nout, N\) with nout 2, got a tensor \(3, 4\)"):
        be.compound_rnn_unroll_bprop(w, h, [*h[:2], be.ones((3, 4))], h, 2, 3, None, act)
    with pytest.raises(TypeError, match="expected a tensor for step, got 1"):
        be.compound_rnn_unroll_bprop(w, [1, 2, 3], h, h, 2, 3, None, act)


# --- look-up tables ------------------------------------------------------------------------------------------------


@DTYPES
def test_the_gradient_of_a_lookup_table_sums_the_columns_of_each_token_id(be, rng, dtype):
    if lacks(be, dtype):
        return
    for _ in cases(be):
        words, dim, nin, N = int(rng.choice([1, 2, 5, 11])), *(int(n) for n in rng.choice(SIZES, 3))
        kind = str(rng.choice([x for x in be.runtime.dtypes if x not in HALF_DTYPES]))
        word = rng.integers(0, words, size=(nin, N))
        inputs = laid(be, word, kind, rng) if "float" in kind else be.array(word, dtype=kind)
        if rng.integers(2):
            inputs = be.array(word.reshape(1, -1), dtype=kind)
        error, dW = (laid(be, rng.normal(size=shape), dtype, rng) for shape in ((dim, nin * N), (words, dim)))
        error_t = laid(be, np.zeros((nin * N, dim)), dtype, rng) if rng.integers(2) else None
        pad = None if rng.integers(2) else int(rng.integers(0, words))
        alpha, beta = ALPHAS[rng.integers(7)], BETAS[rng.integers(6)]
        e, old = error.get().tolist(), dW.get().tolist()
        want, terms = np.zeros((words, dim)), np.zeros((words, dim))
        for w in range(words):
            for d in range(dim):
                for column, this in enumerate(word.reshape(-1).tolist()):
                    if this == w and w != pad:
                        want[w, d] += float(alpha) * e[d][column]
                        terms[w, d] += abs(float(alpha) * e[d][column])
                if beta:
                    want[w, d] += float(beta) * old[w][d]
                    terms[w, d] += abs(float(beta) * old[w][d])
        if not beta:
            dW[:] = np.nan
        assert be.compound_bprop_lut(nin, inputs, error, error_t, dW, pad, alpha, beta) is dW
        close(dW.get(), want, terms, dtype)
        assert untouched(dW)
        assert np.array_equal(error.get().tolist(), e)
        if error_t is not None:
            assert np.array_equal(error_t.get(), error.get().T)


@pytest.mark.skipif(not find_spec("torch"), reason="torch is not installed")
@pytest.mark.parametrize("pad", [None, 0, 3])
def test_a_lookup_table_agrees_with_the_embedding_of_torch(be, rng, pad):
    import torch

    words, dim, nin, N = 9, 4, 6, 5
    word, error = rng.integers(0, words, size=nin * N), rng.normal(size=(dim, nin * N)).astype(np.float32)
    W = torch.tensor(rng.normal(size=(words, dim)).astype(np.float32), requires_grad=True)
    out = torch.nn.functional.embedding(torch.tensor(word), W, padding_idx=pad)
    (out * torch.tensor(error.T)).sum().backward()
    dW = be.empty((words, dim))
    be.compound_bprop_lut(nin, be.array(word.reshape(1, -1)), be.array(error), None, dW, pad)
    assert np.allclose(dW.get(), W.grad.numpy(), atol=1e-5)


def test_an_infinite_error_reaches_only_the_row_of_its_token_id(be):
    error, dW = be.array([[math.inf, 1, -math.inf, math.nan, 2]]), be.zeros((5, 1))
    be.compound_bprop_lut(1, be.array([[0, 1, 2, 3, 1]]), error, None, dW, None)
    assert np.array_equal(dW.get()[:, 0], [math.inf, 3, -math.inf, math.nan, 0], equal_nan=True)
    be.compound_bprop_lut(1, be.array([[0, 1, 0, 3, 3]]), error, None, dW, 3)
    assert np.array_equal(dW.get()[:, 0], [math.nan, 1, 0, 0, 0], equal_nan=True)


def test_16_bit_errors_of_a_token_id_are_summed_in_float32(be):
    if lacks(be, "float16"):
        return
    error, dW = be.ones((1, 5000), dtype="float16"), be.zeros((2, 1), dtype="float16")
    be.compound_bprop_lut(1, be.zeros((1, 5000), dtype="int32"), error, None, dW, None)
    assert dW.get().tolist() == [[5000], [0]]


@pytest.mark.parametrize("kind", ["float32", "int32"])
def test_a_token_id_that_is_not_in_the_table_is_an_index_error(be, kind):
    error, dW = be.ones((2, 3)), be.ones((4, 2))
    for bad in (4, 1000, -5, math.nan, math.inf):
        if math.isfinite(bad) or kind == "float32":
            words = be.array([[0, bad, 1]], dtype=kind)
            with pytest.raises(IndexError, match=r"out of range for size 4"):
                be.compound_bprop_lut(3, words, error, None, dW, None)
            assert dW.get().tolist() == [[1, 1]] * 4


def test_a_lookup_table_refuses_operands_that_do_not_fit(be):
    words, error, dW = be.zeros((2, 3)), be.ones((5, 6), name="error"), be.ones((4, 5))
    match = r"expected nin \* N inputs, error \(dim, nin \* N\) and dW \(vocabulary, dim\), got nin 2, inputs"
    for bad in ((be.zeros((2, 2)), error, dW), (words, error[:4], dW), (words, error, be.ones((4, 6)))):
        with pytest.raises(ValueError, match=match):
            be.compound_bprop_lut(2, bad[0], bad[1], None, bad[2], None)
    with pytest.raises(ValueError, match="got nin 4, inputs"):
        be.compound_bprop_lut(4, words, error, None, dW, None)
    with pytest.raises(ValueError, match="expected error_t of shape"):
        be.compound_bprop_lut(2, words, error, be.ones((5, 6)), dW, None)
