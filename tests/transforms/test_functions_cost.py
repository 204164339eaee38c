"""Costs against formulas of single columns, numerical gradients, and torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.reference import numerical_gradient
from helpers.runtimes import lacks
from helpers.transform_cases import (
    STEP,
    Array,
    close,
    each,
    host,
    ln,
    multi,
    needs_torch,
    pixelwise,
    sig,
    smooth,
    softmax,
)

from neonlite.transforms import (
    Cost,
    CrossEntropyBinary,
    CrossEntropyMulti,
    GANCost,
    Logistic,
    MeanSquared,
    PixelwiseSoftmax,
    SmoothL1Loss,
    Softmax,
    SquareHingeLoss,
    SumSquared,
    Transform,
)

# --- costs: the textbook, a number a column ------------------------------------------------------------------------


def binary(y: float, t: float) -> float:
    return -(t * ln(y) + (1 - t) * ln(1 - y))


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
