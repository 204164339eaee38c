"""Activations against formulas of single numbers, numerical gradients, and torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.reference import numerical_gradient
from helpers.runtimes import lacks
from helpers.transform_cases import STEP, Array, close, host, needs_torch, pixelwise, sig, softmax

from neonlite import Autodiff, Backend, jvp
from neonlite.transforms import (
    GELU,
    Explin,
    Identity,
    Logistic,
    Normalizer,
    PixelwiseSoftmax,
    Rectlin,
    Rectlinclip,
    Sign,
    SiLU,
    Softmax,
    Tanh,
    Transform,
)

# --- activations of single numbers: the textbook -------------------------------------------------------------------


def gelu(x: float) -> float:
    return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def leaky(slope: float) -> Callable[[float], float]:
    return lambda x: x if x > 0 else slope * x


# how to make it; the formula; where it bends, with the derivative there; whether the output tells the derivative
ACTIVATIONS: list[tuple[Callable[[], Transform], Callable[[float], float], dict[float, float], bool]] = [
    (Identity, lambda x: x, {}, True),
    (Rectlin, lambda x: max(x, 0), {0: 0}, True),
    (lambda: Rectlin(slope=0.1), leaky(0.1), {0: 0}, True),
    (lambda: Rectlin(slope=1), leaky(1), {0: 0}, True),
    (lambda: Rectlin(slope=-0.3), leaky(-0.3), {0: 0}, False),
    (Rectlinclip, lambda x: min(max(x, 0), 20), {0: 0, 20: 0}, True),
    (lambda: Rectlinclip(0.2, xcut=1.5), lambda x: min(leaky(0.2)(x), 1.5), {0: 0, 1.5: 0}, True),
    (lambda: Rectlinclip(0.5, xcut=-1.0), lambda x: min(leaky(0.5)(x), -1), {-2: 0}, True),
    (lambda: Rectlinclip(-0.5, None, 1.0), lambda x: min(leaky(-0.5)(x), 1), {0: 0, 1: 0, -2: 0}, False),
    (Explin, lambda x: x if x > 0 else math.expm1(x), {0: 1}, True),
    (lambda: Explin(alpha=0.25), lambda x: x if x > 0 else 0.25 * math.expm1(x), {0: 0.25}, True),
    (lambda: Explin(alpha=0), lambda x: max(x, 0), {0: 0}, True),
    (Normalizer, lambda x: x / 128, {}, True),
    (lambda: Normalizer(divisor=-4), lambda x: x / -4, {}, True),
    (Tanh, math.tanh, {}, True),
    (Logistic, sig, {}, True),
    (lambda: Logistic(shortcut=True), sig, {}, True),
    (SiLU, lambda x: x * sig(x), {}, False),
    (GELU, gelu, {}, False),
]
every_activation = pytest.mark.parametrize(
    ("make", "f", "bends", "by_output"),
    ACTIVATIONS,
    ids=[f"{n} {make().classnm}" for n, (make, *_) in enumerate(ACTIVATIONS)],
)
POINTS = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 3.75, -7.5, 12.0, -16.0, 20.0, -20.0, 21.5, 1.5, -3.25, 0.03125])


def points(bends: dict[float, float], rng: np.random.Generator) -> Array:
    """Return numbers of several sizes, none of them near a bend."""
    x = np.concatenate([POINTS, rng.normal(size=30), 8 * rng.normal(size=18)])
    for bend in bends:
        x[abs(x - bend) < 0.02] += 0.05
    return x.reshape(8, 8)


@every_activation
def test_an_activation_is_its_formula(be, rng, make, f, bends, by_output):
    x = np.float32(np.concatenate([POINTS, rng.normal(size=24)]).reshape(5, 8))
    got = make()(be.array(x))
    assert got.shape == (5, 8)
    assert got.info.dtype == "float32"
    close(got, np.vectorize(f, otypes=[float])(x.astype(float)), 3e-6, 1e-7)


@every_activation
def test_backward_is_the_slope_of_the_formula(be64, rng, make, f, bends, by_output):
    values, errors = points(bends, rng), rng.normal(size=(8, 8))
    x, error, activation = be64.array(values), be64.array(errors), make()
    wanted = errors * np.vectorize(lambda v: (f(v + STEP) - f(v - STEP)) / (2 * STEP))(values)
    y = be64.evaluate([activation(x)])[0] if make is not Identity else be64.array(x)
    close(activation.backward(error, y, x), wanted, 1e-6, 1e-8)
    assert activation.has_grad_from_output is by_output
    if by_output:
        close(activation.backward(error, y), wanted, 1e-6, 1e-8)
        if not getattr(activation, "shortcut", False):
            close(activation.bprop(y) * error, wanted, 1e-6, 1e-8)
        x[:] = activation(x)  # as a layer does that works in place
        error[:] = activation.backward(error, x)
        close(error, wanted, 1e-6, 1e-8)


@every_activation
def test_where_it_bends_the_derivative_is_the_one_that_the_docstring_names(be, make, f, bends, by_output):
    activation = make()
    for bend, wanted in bends.items():
        x = be.array([[bend, -0.0 if bend == 0 else bend]])
        error = be.array([[1.0, -2.0]])
        close(activation.backward(error, be.evaluate([activation(x)])[0], x), [[wanted, -2 * wanted]], 1e-6)
        for tree in (activation(x), be.where(x < bend + 1, activation(x), 0)):
            close(Autodiff(tree, be, error).get_grad_op_tree(x), [[wanted, -2 * wanted]], 1e-6)
        close(jvp(activation, (x,), (error,))[1], [[wanted, -2 * wanted]], 1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@every_activation
def test_the_largest_numbers_neither_overflow_nor_become_nan(cpu, make, f, bends, by_output, dtype):
    most = float(np.finfo(dtype).max)
    x = cpu.array(
        [[most, -most, most / 2, -most / 2, most**0.5, -(most**0.5), 1e3, -1e3, 100.0, -100.0, 26, -26]], dtype
    )
    activation = make()
    y = cpu.evaluate([activation(x * 1)])[0]
    assert y.info.dtype == dtype
    assert np.isfinite(y.get()).all()
    assert np.isfinite(host(activation.backward(cpu.ones((1, 12), dtype), y, x))).all()


@pytest.mark.parametrize("make", [Tanh, Logistic, GELU, SiLU, Softmax, Rectlin, Explin])
def test_halves_are_as_good_as_halves_can_be(be, rng, make):
    if lacks(be, "float16"):
        return
    values, errors = (np.float16(rng.normal(size=(6, 5))) for _ in range(2))
    wide = Backend("cpu", default_dtype="float64")
    activation, exact = make(), make()
    exact.be = wide
    x, error = be.array(values, "float16"), be.array(errors, "float16")
    X, E = wide.array(values), wide.array(errors)
    y, Y = be.evaluate([activation(x)])[0], wide.evaluate([exact(X)])[0]
    back = activation.backward(error, y, x)
    assert (y.info.dtype, back.info.dtype) == ("float16", "float16")
    close(y, Y.get(), 4e-3, 2e-3)
    close(back, exact.backward(E, Y, X).asnumpyarray(), 1e-2, 4e-3)


def test_gelu_is_accurate_where_the_tanh_form_cancels(be64):
    close(GELU()(be64.array([[-6.0, -5.0]])), [[gelu_tail(-6), gelu_tail(-5)]], 1e-12, 0)


def gelu_tail(x: float) -> float:
    """x times the logistic of 2u, by e^2u alone, which is tiny."""
    e = math.exp(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    return x * e / (1 + e)


def test_gelu_is_near_the_exact_one(be64):
    x = np.linspace(-6, 6, 601).reshape(1, -1)
    exact = [[v / 2 * (1 + math.erf(v / math.sqrt(2))) for v in x[0]]]
    assert 1e-4 < abs(host(GELU()(be64.array(x))) - exact).max() < 5e-4


def test_sign_has_a_side_for_zero_and_lets_errors_through_near_it(be):
    x = be.array([[-2.0, -1.0, -0.5, -0.0, 0.0, 1.0, 1.5]])
    y = be.evaluate([Sign()(x)])[0]
    assert y.get().tolist() == [[-1, -1, -1, 1, 1, 1, 1]]
    error = be.array([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]])
    assert Sign().backward(error, y, x).asnumpyarray().tolist() == [[0, 2, 3, 4, 5, 6, 0]]
    assert Sign().has_grad_from_output is False


@pytest.mark.parametrize("make", [Sign, SiLU, GELU, lambda: Rectlin(-1), lambda: Rectlinclip(-1)])
def test_backward_without_a_required_input_is_an_error(cpu, make):
    y = cpu.ones((2, 2))
    with pytest.raises(ValueError, match=rf"{make().classnm}.backward: expected the input x, got None"):
        make().backward(y, y)
    with pytest.raises(ValueError, match=rf"{make().classnm}.bprop: .* Use backward\(error, y, x\)"):
        make().bprop(y)


@every_activation
def test_an_input_may_be_an_op_tree(be64, rng, make, f, bends, by_output):
    values = be64.array(points(bends, rng))
    x, error, activation = values * 0.5, be64.ones((8, 8)) * 2, make()
    tensor = be64.evaluate([x])[0]
    close(activation(x), host(activation(tensor)), 1e-15)
    back = activation.backward(error, activation(x), x)
    close(back, host(activation.backward(error, activation(tensor), tensor)), 1e-12)
    values[:] = values * 0.25  # the tree is an expression, not a number
    tensor[:] = x
    close(back, host(activation.backward(error, activation(tensor), tensor)), 1e-12)


def test_bprop_of_a_shortcut_is_one_and_backward_is_not(cpu):
    y, error = cpu.array([[0.25], [0.75]]), cpu.array([[1.0], [0.0]])
    for activation in (Softmax(), PixelwiseSoftmax(2), Logistic(shortcut=True)):
        assert activation.bprop(y) == 1
    close(Logistic(shortcut=True).backward(error, y), [[0.1875], [0]])
    for activation in (Softmax(), PixelwiseSoftmax(2)):
        close(activation.backward(error, y), [[0.1875], [-0.1875]])


# --- softmax -------------------------------------------------------------------------------------------------------


SOFTMAXES: list[tuple[Callable[[], Softmax], Callable[[Array], Array]]] = [
    (Softmax, softmax),
    (lambda: Softmax(axis=1), lambda x: softmax(x, 1)),
    (lambda: Softmax(axis=-2), softmax),
    (lambda: PixelwiseSoftmax(3), lambda x: pixelwise(x, 3)),
    (lambda: PixelwiseSoftmax(c=6), softmax),
    (lambda: PixelwiseSoftmax(c=1), lambda x: np.ones(x.shape)),
]
every_softmax = pytest.mark.parametrize(("make", "f"), SOFTMAXES)


@every_softmax
def test_softmax_is_probabilities(be64, rng, make, f):
    x = rng.normal(size=(6, 4)) * 3
    x[:, 1] = 0
    x[:, 2] = [1e4, -1e4, 1e4, 0, 1e300, -1e300]
    close(make()(be64.array(x)), f(x), 1e-12)


@every_softmax
def test_backward_of_softmax_is_the_slope(be64, rng, make, f):
    values, errors = rng.normal(size=(6, 4)), rng.normal(size=(6, 4))
    wanted = numerical_gradient(lambda: float((f(values) * errors).sum()), values, STEP)
    x, error = be64.array(values), be64.array(errors)
    x[:] = make()(x)
    close(make().backward(error, x), wanted, 1e-6, 1e-9)
    assert make().has_grad_from_output is True


def test_softmax_of_more_dimensions_is_along_its_axis(be64, rng):
    x = rng.normal(size=(2, 3, 4))
    close(Softmax(axis=1)(be64.array(x)), softmax(x, 1), 1e-12)


# --- beside torch --------------------------------------------------------------------------------------------------


def torch_activations() -> list[tuple[Transform, Callable[[Any], Any]]]:
    import torch
    from torch.nn import functional as F

    return [
        (Rectlin(), F.relu),
        (Rectlin(0.2), lambda x: F.leaky_relu(x, 0.2)),
        (Rectlin(-0.2), lambda x: F.leaky_relu(x, -0.2)),
        (Rectlinclip(xcut=1.0), lambda x: F.hardtanh(x, 0.0, 1.0)),
        (Explin(0.7), lambda x: F.elu(x, 0.7)),
        (GELU(), lambda x: F.gelu(x, approximate="tanh")),
        (SiLU(), F.silu),
        (Tanh(), torch.tanh),
        (Logistic(), torch.sigmoid),
        (Softmax(), lambda x: F.softmax(x, 0)),
        (Softmax(1), lambda x: F.softmax(x, 1)),
        (PixelwiseSoftmax(2), lambda x: F.softmax(x.reshape(2, -1, x.shape[1]), 0).reshape(x.shape)),
    ]


@needs_torch
def test_activations_are_torch_s(be64, rng):
    import torch

    values, errors = rng.normal(size=(2, 6, 20)) * 4
    for activation, f in torch_activations():
        x = torch.tensor(values, requires_grad=True)
        y = f(x)
        y.backward(torch.tensor(errors))
        ours = be64.array(values)
        out = be64.evaluate([activation(ours)])[0]
        close(out, y.detach().numpy(), 1e-10, 1e-12)
        close(activation.backward(be64.array(errors), out, ours), x.grad.numpy(), 1e-9, 1e-12)
