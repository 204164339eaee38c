"""Products that are added to where they are stored, and the arguments that cuBLAS gets."""

from __future__ import annotations

import itertools
import shutil
from typing import Any

import numpy as np
import pytest
from helpers.parametrize import each, thinned
from helpers.simulated_gpu import LAYOUTS, OpByOp, numbers, ran, simulated

from neonlite import Backend
from neonlite.backend.runtimes.cuda.simulator import SimulatedGPU
from neonlite.initializers import Constant
from neonlite.layers import GRU, LSTM, Recurrent
from neonlite.transforms import Logistic, Tanh
from neonlite.typing import FLOAT_DTYPES

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are simulated with g++, which is not here")


# --- what is added to where it lies ----------------------------------------------------------------------------------


# (shape, axis, number of kernels)
SUMS: list[tuple[tuple[int, ...], Any, int]] = [
    ((7, 900), 1, 1),
    ((90, 70), 0, 1),
    ((3, 4, 50), 2, 1),
    ((30, 5, 8), (0, 2), 1),
    ((2, 70_000), 1, 2),
    ((20_000, 5), 0, 2),
    ((300, 250), (0, 1), 2),
    ((3000, 2, 40), 0, 2),
]


@pytest.mark.parametrize(("case", "dtype"), thinned(2, SUMS, FLOAT_DTYPES), ids=str)
def test_sums_are_added_to_their_target_in_the_same_pass(case: tuple[tuple[int, ...], Any, int], dtype: str) -> None:
    shape, axis, kernels = case
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


@each("name, dtype", itertools.product(SUMS_OF_PRODUCTS, FLOAT_DTYPES))
def test_products_are_added_to_their_target_without_a_temporary(name: str, dtype: str) -> None:
    sim, (build, value, products, kernels) = simulated(), SUMS_OF_PRODUCTS[name]
    arrays = [numbers(*shape, seed=n, low=-1, high=1) for n, shape in enumerate([(6, 5), (6, 7), (7, 5), (7, 6)])]
    c, *operands = (sim.array(x, dtype) for x in arrays)
    for factor in (0.75, -2.5):
        expected = value(*(t.get().astype(np.float64) for t in (c, *operands)), factor)
        c[:] = build(sim, c, *operands, factor)
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


@pytest.mark.parametrize(("kind", "products", "kernels"), [(Recurrent, 1, (1, 2)), (LSTM, 1, (1, 2)), (GRU, 2, (2, 5))])
def test_a_step_of_a_recurrent_layer_is_its_products_and_few_kernels(
    kind: Any, products: int, kernels: tuple[int, int]
) -> None:
    """A GRU has two products: the reset gate is computed by the first and read by the second.

    Kernels are those of a time step in fprop, and in bprop, which runs fprop again.
    """
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
    per_pass = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(short, long, strict=True)]
    assert per_pass == [(4 * kernels[0], 4 * products), (4 * kernels[1], 8 * products)]
    assert long[0][1] == 7 * products + 1  # and one for the inputs of all time steps
    for result, wanted in zip(values, ran_through(Backend(OpByOp()), 7)[1], strict=True):
        np.testing.assert_allclose(result, wanted, 1e-4, 1e-5)
