"""Activations, costs and metrics against scalar loops, their numerical gradients, and torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from helpers.networks import numerical_gradient
from helpers.runtimes import lacks

import neonlite.transforms as tr
from neonlite import Backend, NervanaObject, cleanup_backend, gen_backend
from neonlite.transforms import (
    F1,
    GELU,
    R2,
    ROCAUC,
    Accuracy,
    BitsPerCharacter,
    BLEUScore,
    ColorNoise,
    ConfusionMatrix,
    Cost,
    CostMetric,
    CrossEntropyBinary,
    CrossEntropyMulti,
    EditDistance,
    Explin,
    GANCost,
    Identity,
    Logistic,
    LogLoss,
    MeanAbsoluteError,
    MeanSquared,
    MeanSquaredError,
    Metric,
    Misclassification,
    MultiMetric,
    Normalizer,
    ObjectDetection,
    Perplexity,
    PixelwiseSoftmax,
    PrecisionRecall,
    Rectlin,
    Rectlinclip,
    SequenceAccuracy,
    Sign,
    SiLU,
    SmoothL1Loss,
    Softmax,
    SquareHingeLoss,
    SumSquared,
    Tanh,
    TopKMisclassification,
    Transform,
)

Array = np.ndarray[Any, Any]
STEP = 1e-5
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


def host(tree: Any) -> Array:
    return np.asarray(tree.asnumpyarray(), np.float64)


def close(got: Any, wanted: Any, rtol: float = 1e-9, atol: float = 1e-12) -> None:
    np.testing.assert_allclose(
        host(got) if hasattr(got, "asnumpyarray") else got, np.asarray(wanted, float), rtol, atol, strict=True
    )


# --- activations of single numbers: the textbook -------------------------------------------------------------------


def sig(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))


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
    for softmax in (Softmax(), PixelwiseSoftmax(2)):
        close(softmax.backward(error, y), [[0.1875], [-0.1875]])


# --- softmax -------------------------------------------------------------------------------------------------------


def softmax_of(column: Array) -> Array:
    most = max(column)
    e = [math.exp(v - most) for v in column]
    return np.array([v / sum(e) for v in e])


def softmax(x: Array, axis: int = 0) -> Array:
    return np.apply_along_axis(softmax_of, axis, x)


def pixelwise(x: Array, c: int) -> Array:
    """Softmax over the channels at each pixel of each image; row k * HW + p is pixel p of channel k."""
    out, pixels = np.zeros(x.shape), x.shape[0] // c
    for p, n in itertools.product(range(pixels), range(x.shape[1])):
        out[p::pixels, n] = softmax_of(x[p::pixels, n])
    return out


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


# --- costs: the textbook, a number a column ------------------------------------------------------------------------


def ln(p: float) -> float:
    return max(math.log(p), -50.0) if p > 0 else -50.0


def smooth(x: float, s: float) -> float:
    return 0.5 * (s * x) ** 2 if abs(x) < 1 / s**2 else abs(x) - 0.5 / s**2


def each(f: Callable[[float, float], float], mean: bool = False) -> Callable[[Array, Array], float]:
    def column(y: Array, t: Array) -> float:
        total = sum(f(a, b) for a, b in zip(y.tolist(), t.tolist(), strict=True))
        return total / len(y) if mean else total

    return column


def binary(y: float, t: float) -> float:
    return -(t * ln(y) + (1 - t) * ln(1 - y))


def multi(y: float, t: float) -> float:
    return -t * ln(y)


# how to make it; the cost of a column; by what the derivative is scaled; whether outputs are probabilities
COSTS: list[tuple[Callable[[], Cost], Callable[[Array, Array], float], float, bool]] = [
    (CrossEntropyBinary, each(binary), 1, True),
    (lambda: CrossEntropyBinary(scale=3), each(binary), 3, True),
    (CrossEntropyMulti, each(multi), 1, True),
    (lambda: CrossEntropyMulti(0.5, usebits=True), each(lambda y, t: multi(y, t) / math.log(2)), 0.5, True),
    (SumSquared, each(lambda y, t: (y - t) ** 2 / 2), 1, False),
    (MeanSquared, each(lambda y, t: (y - t) ** 2 / 2, mean=True), 1, False),
    (SmoothL1Loss, each(lambda y, t: smooth(y - t, 1)), 1, False),
    (lambda: SmoothL1Loss(sigma=3), each(lambda y, t: smooth(y - t, 3)), 1, False),
    (lambda: SmoothL1Loss(0.5), each(lambda y, t: smooth(y - t, 0.5)), 1, False),
    (SquareHingeLoss, each(lambda y, t: max(1 - (2 * t - 1) * y, 0) ** 2, mean=True), 1, False),
    (lambda: SquareHingeLoss(margin=0.25), each(lambda y, t: max(0.25 - (2 * t - 1) * y, 0) ** 2, True), 1, False),
]
every_cost = pytest.mark.parametrize(
    ("make", "column", "scale", "chances"), COSTS, ids=[f"{n} {make().classnm}" for n, (make, *_) in enumerate(COSTS)]
)


def of_columns(column: Callable[[Array, Array], float], y: Array, t: Array) -> Array:
    return np.array([[column(y[:, n], t[:, n]) for n in range(y.shape[1])]])


def outputs(rng: np.random.Generator, chances: bool, shape: tuple[int, int] = (5, 6)) -> tuple[Array, Array]:
    """Return outputs, and targets of 0, 1 and between."""
    y = rng.uniform(0.02, 0.98, shape) if chances else rng.normal(size=shape) * 2
    return y, rng.choice([0.0, 1.0, 0.3], shape)


@every_cost
def test_a_cost_is_one_value_per_column(be, rng, make, column, scale, chances):
    y, t = (np.float32(a) for a in outputs(rng, chances))
    got = make()(be.array(y), be.array(t))
    assert got.shape == (1, 6)
    assert got.info.dtype == "float32"
    close(got, of_columns(column, y.astype(float), t.astype(float)), 3e-6, 1e-6)


@every_cost
def test_backward_of_a_cost_is_the_slope_of_its_formula(be64, rng, make, column, scale, chances):
    values, targets = outputs(rng, chances)
    y, t = be64.array(values), be64.array(targets)
    wanted = scale * numerical_gradient(lambda: float(of_columns(column, values, targets).sum()), values, STEP)
    close(make()(y, t), of_columns(column, values, targets), 1e-12)
    close(make().backward(y, t), wanted, 1e-6, 1e-8)
    close(make().backward(y * 1, t + 0), wanted, 1e-6, 1e-8)  # of trees
    if make().paired_activation is None:
        close(make().bprop(y, t), wanted, 1e-6, 1e-8)


PAIRS: list[tuple[Callable[[], Any], Callable[[], Transform], Callable[[Array], Array], int]] = [
    (CrossEntropyBinary, Logistic, np.vectorize(sig), 0),
    (lambda: CrossEntropyBinary(scale=0.25), Logistic, np.vectorize(sig), 0),
    (CrossEntropyMulti, Softmax, softmax, 6),
    (lambda: CrossEntropyMulti(scale=2), Softmax, softmax, 6),
    (lambda: CrossEntropyMulti(scale=2, usebits=True), Softmax, softmax, 6),
    (CrossEntropyMulti, lambda: PixelwiseSoftmax(3), lambda x: pixelwise(x, 3), 3),
]


@pytest.mark.parametrize(("cost", "activation", "f", "classes"), PAIRS)
def test_the_shortcut_is_the_slope_through_the_paired_activation(be64, rng, cost, activation, f, classes):
    values, made, layer = rng.normal(size=(6, 4)), cost(), activation()
    assert isinstance(layer, made.paired_activation)
    targets = rng.uniform(size=(6, 4))
    if classes:  # soft labels: the targets of each softmax add up to 1
        groups = targets.reshape(classes, -1)
        targets = (groups / groups.sum(axis=0)).reshape(6, 4)
    column = each(multi if classes else binary)
    unit = made.scale / (math.log(2) if getattr(made, "usebits", False) else 1)
    wanted = unit * numerical_gradient(lambda: float(of_columns(column, f(values), targets).sum()), values, STEP)
    x, t = be64.array(values), be64.array(targets)
    y = be64.evaluate([layer(x)])[0]
    close(made.bprop(y, t), wanted, 1e-6, 1e-8)
    close(layer.backward(made.backward(y, t), y, x), wanted, 1e-6, 1e-8)  # the long way round


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_certain_mistakes_cost_fifty_and_certain_truths_nothing(be, dtype):
    if lacks(be, dtype):
        return
    y, t = be.array([[0.0, 0, 1, 1]], dtype), be.array([[0.0, 1, 0, 1]], dtype)
    assert CrossEntropyBinary()(y, t).asnumpyarray().tolist() == [[0, 50, 50, 0]]
    assert CrossEntropyMulti()(y, t).asnumpyarray().tolist() == [[0, 50, 0, 0]]
    assert CrossEntropyBinary().bprop(y, t).asnumpyarray().tolist() == [[0, -1, 1, 0]]
    for cost in (CrossEntropyBinary(), CrossEntropyMulti()):
        assert np.isfinite(host(cost.backward(y, t))).all()


def test_smooth_l1_does_not_overflow_and_is_flat_at_zero(be):
    y, t = be.array([[3e38, -3e38, 0.0]]), be.zeros((1, 3))
    close(SmoothL1Loss()(y, t), np.float32([[3e38, 3e38, 0]]).astype(float))
    close(SmoothL1Loss(sigma=2).bprop(y, t), [[1.0, -1, 0]])


@every_cost
def test_targets_are_constants_also_where_they_are_the_outputs(be64, rng, make, column, scale, chances):
    values = outputs(rng, chances)[0]
    y = be64.array(values)
    varied = values.copy()
    wanted = scale * numerical_gradient(lambda: float(of_columns(column, varied, values).sum()), varied, STEP)
    close(make().backward(y, y), wanted, 1e-6, 1e-6)
    both = be64.array(np.concatenate([values, values]))
    close(make().backward(both[:5], both[5:]), wanted, 1e-6, 1e-6)


def test_targets_may_be_integers(be):
    y, t = be.array([[0.25, 0.5], [0.75, 0.5]]), be.array([[1, 0], [0, 1]], dtype="int32")
    for make, column, _, _ in COSTS:
        close(make()(y, t), of_columns(column, host(y), host(t)), 1e-6)
        close(make().bprop(y, t), host(make().bprop(y, be.array(t.get()))), 1e-7)


# --- the two players -----------------------------------------------------------------------------------------------

PLAYERS: list[tuple[str, Callable[[float, float], float], Callable[[float], float]]] = [
    ("original", lambda d, n: -ln(d) - ln(1 - n), lambda n: ln(1 - n)),
    ("modified", lambda d, n: -ln(d) - ln(1 - n), lambda n: -ln(n)),
    ("wasserstein", lambda d, n: n - d, lambda n: -n),
]


@pytest.mark.parametrize(("func", "dis", "gen"), PLAYERS)
def test_gan_costs_are_the_papers(be64, rng, func, dis, gen):
    d, n = rng.uniform(0.05, 0.95, (2, 3, 4))
    data, noise, cost = be64.array(d), be64.array(n), GANCost(scale=2.0, func=func)
    of_dis = lambda d, n: of_columns(each(dis, mean=True), d, n)  # noqa: E731
    of_gen = lambda n: of_columns(each(lambda y, _: gen(y), mean=True), n, n)  # noqa: E731
    close(cost(data, noise), of_dis(d, n), 1e-12)
    close(cost(data, noise, cost_type="gen"), of_gen(n), 1e-12)
    close(cost(None, noise, "gen"), of_gen(n), 1e-12)
    generator = GANCost(cost_type="gen", func=func)
    close(generator(data, noise), of_gen(n), 1e-12)
    close(generator(data, noise, "dis"), of_dis(d, n), 1e-12)
    close(cost.bprop_data(data), 2 * numerical_gradient(lambda: float(of_dis(d, n).sum()), d, STEP), 1e-6, 1e-9)
    close(cost.bprop_noise(noise), 2 * numerical_gradient(lambda: float(of_dis(d, n).sum()), n, STEP), 1e-6, 1e-9)
    close(cost.bprop_generator(noise * 1), 2 * numerical_gradient(lambda: float(of_gen(n).sum()), n, STEP), 1e-6, 1e-9)


def test_a_discriminator_at_chance_has_cost_ln_4(cpu):
    half = cpu.ones((1, 3)) * 0.5
    close(GANCost()(half, half), np.full((1, 3), math.log(4)), 1e-6)


def test_a_discriminator_that_is_certain_leaves_finite_errors(be):
    y = be.array([[0.0, 1.0]])
    for func in ("original", "modified", "wasserstein"):
        cost = GANCost(func=func)
        for tree in (cost(y, y), cost(y, y, "gen"), cost.bprop_data(y), cost.bprop_noise(y), cost.bprop_generator(y)):
            assert np.isfinite(host(tree)).all()


def test_gan_costs_refuse_unknown_options(cpu):
    y = cpu.ones((1, 2))
    with pytest.raises(
        ValueError, match="GANCost: expected one of 'modified', 'original', 'wasserstein' for func, got 'hinge'"
    ):
        GANCost(func="hinge")
    with pytest.raises(ValueError, match="GANCost: expected one of 'dis', 'gen' for cost_type, got 'both'"):
        GANCost(cost_type="both")
    with pytest.raises(ValueError, match=r"expected one of .* for cost_type"):
        GANCost()(y, y, "both")
    with pytest.raises(TypeError, match=r"three derivatives. Use bprop_data\(y\)"):
        GANCost().bprop(y, y)
    with pytest.raises(TypeError, match="three derivatives"):
        GANCost().backward(y, y)
    with pytest.raises(
        ValueError, match=r"GANCost: expected y_data and y_noise of the same shape.*\(1, 2\), a tensor \(1, 3\)"
    ):
        GANCost()(y, cpu.ones((1, 3)))
    with pytest.raises(TypeError, match="GANCost: expected tensors"):
        GANCost().bprop_data(None)


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


@needs_torch
def test_costs_are_torch_s(be64, rng):
    import torch
    from torch.nn import functional as F

    values, labels = rng.normal(size=(5, 7)), rng.integers(0, 5, 7)
    x = be64.array(values)
    onehot = be64.evaluate([be64.onehot(labels, axis=0, nclass=5) * be64.ones((5, 7))])[0]
    truth = torch.tensor(onehot.get())

    def check(cost: Cost, y: Any, theirs: Any, short: bool = False) -> None:
        leaf = torch.tensor(values, requires_grad=True)
        total = theirs(leaf)
        total.sum().backward()
        close(cost(y, onehot), total.detach().numpy().reshape(1, -1), 1e-9)
        close(cost.bprop(y, onehot), leaf.grad.numpy(), 1e-8, 1e-10)

    target = torch.tensor(labels)
    softmaxed, squashed = be64.evaluate([Softmax()(x), Logistic()(x)])
    check(CrossEntropyMulti(), softmaxed, lambda x: F.cross_entropy(x.T, target, reduction="none"))
    check(
        CrossEntropyBinary(),
        squashed,
        lambda x: F.binary_cross_entropy_with_logits(x, truth, reduction="none").sum(0),
    )
    check(SumSquared(), x, lambda x: F.mse_loss(x, truth, reduction="none").sum(0) / 2)
    check(MeanSquared(), x, lambda x: F.mse_loss(x, truth, reduction="none").mean(0) / 2)
    for sigma in (0.7, 1.0, 3.0):
        beta = sigma**-2
        smooth = lambda x, beta=beta: F.smooth_l1_loss(x, truth, beta=beta, reduction="none").sum(0)  # noqa: E731
        check(SmoothL1Loss(sigma), x, smooth)


# --- metrics: loops over columns -----------------------------------------------------------------------------------


def first_best(column: Array) -> int:
    return next(i for i, v in enumerate(column) if v == max(column))


def top(k: int, y: Array, label: int) -> float:
    """How often the label is not among the k best, over all orders in which equal outputs may stand."""
    orders = [o for o in itertools.permutations(range(len(y))) if all(y[a] >= y[b] for a, b in itertools.pairwise(o))]
    return sum(label not in order[:k] for order in orders) / len(orders)


def guesses(rng: np.random.Generator, classes: int, n: int) -> tuple[Array, Array, list[int]]:
    """Return outputs with many ties, one-hot targets, labels."""
    y = rng.choice([0.125, 0.25, 0.5, 0.0625], (classes, n))
    labels = rng.integers(0, classes, n).tolist()
    t = np.zeros((classes, n))
    t[labels, range(n)] = 1
    return y, t, labels


RANGES = [slice(0, None), slice(2, 7), slice(None, None, 3), [0, 4, 5, 4]]


@pytest.mark.parametrize("calcrange", RANGES, ids=str)
def test_metrics_are_loops_over_columns(be, rng, calcrange):
    y, t, labels = guesses(rng, 5, 12)
    chosen = list(range(12))[calcrange] if isinstance(calcrange, slice) else calcrange
    Y, T = be.array(y), be.array(t)
    wrong = [first_best(y[:, n]) != labels[n] for n in chosen]
    loss = np.mean([-math.log(y[labels[n], n]) for n in chosen])
    for metric, wanted in [
        (Misclassification(), np.mean(wrong)),
        (Misclassification(steps=4), np.mean(wrong)),
        (Accuracy(), 1 - np.mean(wrong)),
        (LogLoss(), loss),
    ]:
        got = metric(Y, T, calcrange=calcrange)
        assert type(got) is float
        assert got == pytest.approx(wanted, rel=1e-6)
    for k in (1, 2, 3, 5):
        got = TopKMisclassification(k)(Y, T, calcrange)
        tops = [np.mean([top(j, y[:, n], labels[n]) for n in chosen]) for j in (1, k)]
        np.testing.assert_allclose(got, [loss, *tops], 1e-6, strict=True)


def test_all_outputs_equal_is_a_guess(be):
    y, t = be.ones((10, 4)), be.evaluate([be.onehot([0, 3, 9, 5], axis=0, nclass=10)])[0]
    np.testing.assert_allclose(TopKMisclassification(5)(y, t)[1:], [0.9, 0.5], 1e-6)
    assert Misclassification()(y, t) == 0.75  # the first of equals


def test_the_log_loss_of_a_certain_mistake_is_fifty(be):
    y, t = be.array([[0.0], [1.0]]), be.array([[1.0], [0.0]])
    assert LogLoss()(y, t) == 50
    assert TopKMisclassification(1)(y, t).tolist() == [50, 1, 1]


def test_the_log_loss_of_one_row_is_that_of_two_classes(be):
    y, t = np.array([[0.9, 0.2, 0.7]]), np.array([[1.0, 0.0, 0.0]])
    expected = -np.log([0.9, 0.8, 0.3]).mean()
    assert LogLoss()(be.array(y), be.array(t)) == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ValueError, match="expected at least 2 classes, got 1"):
        TopKMisclassification(1)(be.array(y), be.array(t))


def test_infinite_outputs_and_halves_are_counted_too(be):
    y, t = be.array([[math.inf, 1.0], [-math.inf, 5.0], [0.0, 2.0]]), be.array([[0.0, 1], [1, 0], [0, 0]])
    assert TopKMisclassification(2)(y, t)[1:].tolist() == [1, 1]
    assert Accuracy()(y, t) == 0
    if not lacks(be, "float16"):
        many = be.ones((2, 4096), "float16")  # more columns than a half can count one by one
        right = be.evaluate([be.onehot([0] * 4096, axis=0, nclass=2)])[0]
        got = PrecisionRecall(2, binarize=True)(many, right)
        np.testing.assert_allclose(got, [0.5, 0.5], 1e-6)
        assert TopKMisclassification(1)(many, right).tolist() == [0, 0.5, 0.5]


@pytest.mark.parametrize("binarize", [False, True])
@pytest.mark.parametrize("calcrange", RANGES, ids=str)
def test_precision_and_recall_are_counts(be, rng, binarize, calcrange):
    y, t, labels = guesses(rng, 4, 12)
    if not binarize:
        y = np.float64(y > 0.2)
    before = be.array(y)
    got = PrecisionRecall(4, binarize, epsilon=0.01)(before, be.array(t), calcrange)
    chosen = list(range(12))[calcrange] if isinstance(calcrange, slice) else calcrange
    said = [{first_best(y[:, n])} if binarize else {c for c in range(4) if y[c, n]} for n in chosen]
    precision, recall = [], []
    for c in range(4):
        right = sum(c in s and labels[n] == c for s, n in zip(said, chosen, strict=True))
        precision.append(right / (sum(c in s for s in said) + 0.01))
        recall.append(right / (sum(labels[n] == c for n in chosen) + 0.01))
    np.testing.assert_allclose(got, [np.mean(precision), np.mean(recall)], 1e-6, strict=True)
    np.testing.assert_array_equal(before.get(), np.float32(y))


def test_a_class_that_never_occurs_counts_as_nothing(be):
    y = be.array([[1.0, 1.0], [0.0, 0.0]])
    np.testing.assert_allclose(PrecisionRecall(2)(y, y), [0.5, 0.5], 1e-5)


@pytest.mark.parametrize("masked", [False, True])
def test_detection_is_accuracy_and_smooth_l1_over_regions(be, rng, masked):
    y, t, labels = guesses(rng, 3, 8)
    boxes, truth = rng.normal(size=(2, 12, 8)) * 2
    mask = rng.choice([0.0, 1.0], (12, 8)) if masked else np.ones((12, 8))
    targets = (be.array(truth), be.array(mask)) if masked else be.array(truth)
    got = ObjectDetection()((be.array(y), be.array(boxes)), (be.array(t), targets), slice(1, 6))
    right = np.mean([first_best(y[:, n]) == labels[n] for n in range(1, 6)])
    losses = [sum(mask[i, n] * smooth(boxes[i, n] - truth[i, n], 1) for i in range(12)) for n in range(1, 6)]
    np.testing.assert_allclose(got, [right, np.mean(losses)], 1e-5, strict=True)


def test_multimetric_uses_one_of_several_outputs(be, rng):
    (y0, t0, _), (y1, t1, _) = guesses(rng, 3, 9), guesses(rng, 4, 9)
    y, t = [be.array(y0), be.array(y1)], (be.array(t0), be.array(t1))
    for index, metric in itertools.product((0, 1, -1), (Accuracy(), TopKMisclassification(2))):
        multi = MultiMetric(metric, index)
        assert multi.metric_names == metric.metric_names
        np.testing.assert_array_equal(multi(y, t, slice(0, 5)), metric(y[index], t[index], slice(0, 5)))


def test_names_match_what_a_metric_returns(cpu):
    named = {type(m).__name__: list(m.metric_names) for m in made() if isinstance(m, Metric)}
    assert named == {
        "LogLoss": ["LogLoss"],
        "TopKMisclassification": ["LogLoss", "Top1Misclass", "Top5Misclass"],
        "Misclassification": ["Top1Misclass"],
        "Accuracy": ["Accuracy"],
        "PrecisionRecall": ["Precision", "Recall"],
        "ObjectDetection": ["Accuracy", "SmoothL1Loss"],
        "BLEUScore": ["BLEU"],
        "BitsPerCharacter": ["BitsPerCharacter"],
        "Perplexity": ["Perplexity"],
        "SequenceAccuracy": ["SequenceAccuracy"],
        "EditDistance": ["EditDistance"],
        "MultiMetric": ["Accuracy"],
        "CostMetric": ["SquareHingeLoss"],
        "MeanSquaredError": ["MeanSquaredError"],
        "MeanAbsoluteError": ["MeanAbsoluteError"],
        "R2": ["R2"],
        "F1": ["F1_micro"],  # as made above
        "ROCAUC": ["ROCAUC"],
        "ConfusionMatrix": [],
    }


# --- BLEU ----------------------------------------------------------------------------------------------------------


def bleu(sentences: list[list[str]], references: list[list[list[str]]], N: int, penalty: bool) -> float:
    logs = 0.0
    for n in range(1, N + 1):
        right = total = 0
        for s, several in zip(sentences, references, strict=True):
            runs = [s[i : i + n] for i in range(len(s) - n + 1)]
            total += len(runs)
            for run in [r for i, r in enumerate(runs) if r not in runs[:i]]:
                most = max(sum(r[i : i + n] == run for i in range(len(r))) for r in several)
                right += 0 if "<unk>" in run else min(runs.count(run), most)
        logs += math.log((right / total if total else 0.0) + 1e-7) / N
    c, r = sum(map(len, sentences)), 0
    for s, several in zip(sentences, references, strict=True):
        r += sorted(several, key=lambda x: (abs(len(x) - len(s)), len(x)))[0].__len__()
    factor = 1.0 if c > r else math.exp(1 - r / c)
    return 100 * math.exp(logs) * (factor if penalty else 1)


def test_bleu_is_papineni_s(rng):
    words = ["a", "b", "c", "d", "<unk>"]
    for _ in range(40):
        count = int(rng.integers(1, 5))
        sentences = [rng.choice(words, rng.integers(1, 9)).tolist() for _ in range(count)]
        references = [
            [rng.choice(words, rng.integers(1, 9)).tolist() for _ in range(rng.integers(1, 4))] for _ in range(count)
        ]
        for N, penalty in [(1, False), (2, True), (4, False), (4, True)]:
            metric = BLEUScore()
            got = metric(sentences, references, N=N, brevity_penalty=penalty)
            assert got == pytest.approx(bleu(sentences, references, N, penalty), rel=1e-12)
            each = [bleu(sentences, references, n, penalty) for n in range(1, N + 1)]
            assert metric.bleu_n == pytest.approx(each, rel=1e-12)


def test_bleu_of_the_paper_s_first_example():
    """Papineni et al., 2.1: "the" seven times; a reference has it twice, so that the modified precision is 2/7."""
    references = [["the cat is on the mat", "there is a cat on the mat"]]
    assert BLEUScore()(["the the the the the the the"], references, N=1) == pytest.approx(200 / 7, rel=1e-6)


def test_bleu_accepts_strings_lists_and_either_case():
    score = BLEUScore()
    exact = pytest.approx(100, rel=1e-6)
    assert score(["A b c d"], ["a B c d"]) == exact
    assert score([["A", "b", "c", "d"]], [["a b c d"]]) == exact
    assert score(["a b c d", "x"], [["a b c d"], ["y"]], slice(0, 1)) == exact
    assert score(["A b c d"], ["a b c d"], N=1, lower_case=False) == pytest.approx(75, rel=1e-6)
    assert score(["a UNK"], ["a UNK"], N=1) == exact
    assert BLEUScore(unk="UNK")(["a UNK"], ["a UNK"], N=1) == pytest.approx(50, rel=1e-6)
    assert score(["", ""], ["a", "b"], brevity_penalty=True) == 0
    assert 0 < score(["a"], ["b"]) < 1e-3


def test_bleu_refuses_what_does_not_match():
    with pytest.raises(ValueError, match="BLEUScore: expected as many sentences as lists of references"):
        BLEUScore()(["a", "b"], [["a"]])
    with pytest.raises(ValueError, match="BLEUScore: expected as many"):
        BLEUScore()("a b", ["a", "b"])
    with pytest.raises(ValueError, match=r"expected a sentence in calcrange slice\(3, None, None\)"):
        BLEUScore()(["a"], ["a"], slice(3, None))
    with pytest.raises(ValueError, match="a reference for each"):
        BLEUScore()(["a"], [[]])
    with pytest.raises(ValueError, match="BLEUScore: expected an integer >= 1 for N, got 0"):
        BLEUScore()(["a"], ["a"], N=0)


# --- mistakes ------------------------------------------------------------------------------------------------------


def made() -> list[NervanaObject]:
    """One of every public class, with different arguments."""
    return [
        Identity(),
        Rectlin(slope=0.1),
        Rectlinclip(0.1, "clip", 6.0),
        Explin(alpha=0.5),
        Normalizer(divisor=255.0),
        Softmax(axis=1, epsilon=0.5),
        PixelwiseSoftmax(21, "pixels", 0.25),
        Tanh("tanh"),
        Logistic(shortcut=True),
        Sign(),
        ColorNoise(brightness=0.5),
        SiLU(),
        GELU(),
        CrossEntropyBinary(scale=2),
        CrossEntropyMulti(3, usebits=True),
        SumSquared(),
        MeanSquared(name="mse"),
        SmoothL1Loss(sigma=3.0),
        SquareHingeLoss(margin=2),
        GANCost(0.5, "gen", "wasserstein"),
        LogLoss(),
        TopKMisclassification(5),
        Misclassification(steps=7),
        Accuracy(),
        PrecisionRecall(4, binarize=True, epsilon=1e-3),
        ObjectDetection(),
        BLEUScore(unk="?"),
        BitsPerCharacter(),
        Perplexity(),
        SequenceAccuracy(onehot=True),
        EditDistance(eos=1),
        MultiMetric(Accuracy("a"), 1),
        CostMetric(SquareHingeLoss(2.0, "margin")),
        MeanSquaredError(),
        MeanAbsoluteError(),
        R2(),
        F1("micro", True, 0.25),
        ROCAUC(multilabel=True),
        ConfusionMatrix(["cat", "dog"], 0.25),
    ]


every_object = pytest.mark.parametrize("thing", made(), ids=lambda thing: thing.classnm)


def test_every_public_class_is_among_those_tested():
    assert {type(thing).__name__ for thing in made()} | {"Transform", "Cost", "Metric", "get_metric"} == set(tr.__all__)


@every_object
def test_a_description_recreates_the_object(thing):
    description = thing.get_description()
    assert description["type"] == f"{type(thing).__module__}.{type(thing).__name__}"
    nested = {x: vars(thing)[x] for x in ("metric", "cost") if x in vars(thing)}
    for argument, part in nested.items():
        assert description["config"].pop(argument) == part.get_description()
    again = type(thing)(**description["config"], **nested)
    assert again.get_description() == thing.get_description()
    assert {k: v for k, v in vars(again).items() if not isinstance(v, NervanaObject)} == {
        k: v for k, v in vars(thing).items() if not isinstance(v, NervanaObject)
    }


@pytest.mark.parametrize("thing", [x for x in made() if isinstance(x, Cost | Metric)], ids=lambda x: x.classnm)
def test_outputs_and_targets_have_the_same_shape(cpu, thing):
    if isinstance(thing, BLEUScore | MultiMetric | ObjectDetection | GANCost):
        return
    y, t = cpu.ones((4, 3), name="guess"), cpu.ones((4, 2), name="truth")
    calls = [thing, *((thing.bprop, thing.backward) if isinstance(thing, Cost) else ())]
    for call in calls:
        words = rf"{thing.classnm}: expected y and t of the same shape \(F, N\), got guess \(4, 3\), truth \(4, 2\)$"
        with pytest.raises(ValueError, match=words):
            call(y, t)
        with pytest.raises(TypeError, match=rf"{thing.classnm}: expected tensors or op-trees, got \[\[1\]\]"):
            call(y, [[1]])
        with pytest.raises(ValueError, match=r"Convert labels with be.onehot\(labels, axis=0, nclass=F\)"):
            call(y, cpu.ones((1, 3)))


@pytest.mark.parametrize(
    "metric", [LogLoss(), Accuracy(), TopKMisclassification(2), PrecisionRecall(4)], ids=lambda x: x.classnm
)
def test_a_metric_needs_a_column(cpu, metric):
    y = cpu.ones((4, 3))
    with pytest.raises(
        ValueError, match=rf"{metric.classnm}: calcrange slice\(3, None, None\) selects none of the 3 col"
    ):
        metric(y, y, slice(3, None))
    with pytest.raises(ValueError, match="selects none of the 3 columns"):
        metric(y, y, calcrange=[])
    with pytest.raises(TypeError, match=rf"{metric.classnm}: expected a slice .*as calcrange, got 2"):
        metric(y, y, 2)
    with pytest.raises(IndexError):
        metric(y, y, [3])


def test_arguments_are_checked_by_the_constructor():
    for make, words in [
        (lambda: Softmax(axis="rows"), "Softmax: expected an integer for axis, got 'rows'"),
        (lambda: PixelwiseSoftmax(0), "PixelwiseSoftmax: expected an integer >= 1 for c, got 0"),
        (lambda: PixelwiseSoftmax(2.5), "PixelwiseSoftmax: expected an integer >= 1 for c"),
        (lambda: Normalizer(divisor=0), "Normalizer: expected a nonzero divisor, got 0"),
        (lambda: Explin(-0.5), "Explin: expected a finite number >= 0 for alpha, got -0.5"),
        (lambda: SmoothL1Loss(sigma=0), "SmoothL1Loss: expected a finite number > 0 for sigma, got 0"),
        (lambda: SmoothL1Loss(sigma=-1), "SmoothL1Loss: expected a finite number > 0 for sigma, got -1"),
        (lambda: TopKMisclassification(0), "TopKMisclassification: expected an integer >= 1 for k, got 0"),
        (lambda: TopKMisclassification(True), "TopKMisclassification: expected an integer >= 1 for k, got True"),
        (lambda: PrecisionRecall(-2), "PrecisionRecall: expected an integer >= 1 for num_classes, got -2"),
        (lambda: MultiMetric(Accuracy, 0), r"MultiMetric: expected a metric, such as Accuracy\(\), for metric, got"),
    ]:
        with pytest.raises((ValueError, TypeError), match=words):
            make()


def test_shapes_are_checked_by_the_call(cpu):
    x = cpu.ones((4, 3), name="x")
    with pytest.raises(IndexError, match=r"Softmax\(axis=2\): be.softmax\(x \(4, 3\)\): axis 2 is out of range"):
        Softmax(2)(x)
    with pytest.raises(ValueError, match=r"x \(c \* H \* W, N\) with c = 3 channels, got x \(4, 3\)"):
        PixelwiseSoftmax(3)(x)
    with pytest.raises(ValueError, match=r"expected at least k = 5 classes, got 4, those of x \(4, 3\)"):
        TopKMisclassification(5)(x, x)
    with pytest.raises(ValueError, match=r"PrecisionRecall: expected num_classes = 3 rows, got x \(4, 3\)"):
        PrecisionRecall(3)(x, x)
    with pytest.raises(ValueError, match=r"MultiMetric\(index=2\): expected several outputs, got"):
        MultiMetric(Accuracy(), 2)([x, x], [x, x])
    with pytest.raises(ValueError, match=r"MultiMetric\(index=0\): expected several targets, got x"):
        MultiMetric(Accuracy(), 0)([x, x], x)
    with pytest.raises(TypeError, match=r"ObjectDetection: expected y = \(scores, boxes\), got x"):
        ObjectDetection()(x, (x, x))
    with pytest.raises(TypeError, match=r"expected t = \(labels, boxes\)"):
        ObjectDetection()((x, x), (x,))
    with pytest.raises(ValueError, match="ObjectDetection: expected boxes and their targets of the same shape"):
        ObjectDetection()((x, x), (x, cpu.ones((4, 2))))


def test_one_row_is_the_probability_of_the_second_of_two_classes(be):
    y, t = be.array([[0.2, 0.5, 0.6, 0.9]]), be.array([[0.0, 1.0, 1.0, 0.0]])
    assert Accuracy()(y, t) == 0.5
    assert Misclassification()(y, t) == 0.5


# --- user subclasses, other backends -------------------------------------------------------------------------------


class Softplus(Transform):
    def __call__(self, x: Any) -> Any:
        return self.be.log(1 + self.be.exp(x))


class Doubled(Transform):
    """In neon's way: the derivative by the output."""

    def __call__(self, x: Any) -> Any:
        return 2 * x

    def bprop(self, y: Any) -> Any:
        return 2


class Huber(Cost):
    def __call__(self, y: Any, t: Any) -> Any:
        size = abs(y - t)
        return self.be.sum(self.be.where(size < 1, size * size / 2, size - 0.5), axis=0)


class Signs(Metric):
    metric_names = ("same", "above")

    def column_values(self, y: Any, t: Any) -> Any:
        return self.be.concat([self.be.equal(self.be.sgn(y), self.be.sgn(t)), y > t])


def test_a_subclass_needs_only_its_formula(be64, rng):
    values, targets = rng.normal(size=(2, 1, 5)) * 2
    x, t, error = be64.array(values), be64.array(targets), be64.ones((1, 5)) * 3
    close(Softplus().backward(error, None, x), 3 * np.vectorize(sig)(values), 1e-9)
    close(Doubled().backward(error, None), np.full((1, 5), 6.0))
    assert [Softplus().has_grad_from_output, Doubled().has_grad_from_output] == [False, True]
    close(Huber().bprop(x, t), np.clip(values - targets, -1, 1), 1e-9)
    wanted = [np.mean(np.sign(values) == np.sign(targets)), np.mean(values > targets)]
    np.testing.assert_allclose(Signs()(x, t), wanted)


@pytest.mark.parametrize(("base", "word"), [(Transform, "__call__"), (Cost, "__call__"), (Metric, "column_values")])
def test_a_base_class_names_the_method_to_implement(cpu, base, word):
    y = cpu.ones((1, 1))
    with pytest.raises(NotImplementedError, match=rf"{base.__name__}: implement {word}\("):
        base()(*(y,) * (1 if base is Transform else 2))


def test_an_object_uses_the_backend_it_was_created_with():
    other = Backend("cpu", default_dtype="float64")
    y = other.array([[0.25, 0.5], [0.75, 0.5]])
    gen_backend("cpu")
    for thing in (Softmax(), CrossEntropyMulti(), TopKMisclassification(1), MultiMetric(Accuracy(), 0), GANCost()):
        thing.be = other
        if isinstance(thing, Transform):
            assert thing(y).backend is other
        elif isinstance(thing, Cost):
            assert thing(y, y).backend is other
        else:
            several = isinstance(thing, MultiMetric)
            assert np.size(thing([y], [y]) if several else thing(y, y)) == len(thing.metric_names)
    detection = ObjectDetection()
    detection.be = other
    assert detection((y, y), (y, y)).tolist() == [1, 0]
    cleanup_backend()
