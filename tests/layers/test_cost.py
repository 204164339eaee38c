"""Costs with a mask, of several outputs and of GANs, compared with NumPy formulas and numerical gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.networks import (
    branching,
    by_hand,
    check_cost,
    check_numerical_gradients,
    close,
    data,
    network,
    ready,
    targets,
)
from helpers.reference import numerical_gradient

from neonlite import Backend, gen_backend
from neonlite.initializers import Gaussian
from neonlite.layers import (
    Activation,
    Affine,
    BatchNorm,
    GeneralizedCost,
    GeneralizedCostMask,
    GeneralizedGANCost,
    GenerativeAdversarial,
    Linear,
    MergeSum,
    Multicost,
    Sequential,
    SingleOutputTree,
    SkipNode,
)
from neonlite.optimizers import GradientDescentMomentum
from neonlite.transforms import (
    Cost,
    CrossEntropyBinary,
    CrossEntropyMulti,
    GANCost,
    Identity,
    Logistic,
    MeanSquared,
    PixelwiseSoftmax,
    SmoothL1Loss,
    Softmax,
    SquareHingeLoss,
    SumSquared,
    Tanh,
    Transform,
)

NDArray = np.ndarray[Any, Any]
INIT = Gaussian(scale=0.5)


def log(x: NDArray) -> NDArray:
    """Return logarithms that end at -50."""
    return np.log(np.maximum(x, math.exp(-50)))


# cost -> the cost of each column in NumPy
FORMULAS: dict[Any, Callable[[NDArray, NDArray], NDArray]] = {
    CrossEntropyMulti: lambda y, t: -(t * log(y)).sum(axis=0),
    CrossEntropyBinary: lambda y, t: -(t * log(y) + (1 - t) * log(1 - y)).sum(axis=0),
    SumSquared: lambda y, t: ((y - t) ** 2).sum(axis=0) / 2,
    MeanSquared: lambda y, t: ((y - t) ** 2).mean(axis=0) / 2,
    SmoothL1Loss: lambda y, t: np.where(abs(y - t) < 1, (y - t) ** 2 / 2, abs(y - t) - 0.5).sum(axis=0),
    SquareHingeLoss: lambda y, t: (np.maximum(1 - (2 * t - 1) * y, 0) ** 2).mean(axis=0),
}
ENDS: dict[str, Callable[[], Any]] = {"Softmax": Softmax, "Logistic": Logistic, "Tanh": Tanh, "Identity": Identity}
PAIRS = {("Softmax", CrossEntropyMulti), ("Logistic", CrossEntropyBinary)}


def small(end: str, shape: Any) -> Any:
    """Return a small network for three classes."""
    layers = [Affine(4, INIT, INIT, activation=Tanh()), Affine(3, INIT, INIT, activation=ENDS[end]())]
    return ready(Sequential(layers), shape, deltas=False)


def mask_of(be: Backend, rng: np.random.Generator, rows: int, columns: int) -> Any:
    """Return a mask with ones and zeros in it."""
    mask = (rng.random((rows, columns)) < 0.5).astype(float)
    mask[0, 0], mask[-1, -1] = 1, 0
    return be.array(mask)


# --- outputs that do not match a cost --------------------------------------------------------------------------------

EXPECTED: list[tuple[Any, Any, str]] = [
    (
        Linear(3, INIT),
        CrossEntropyMulti(),
        r"expects probabilities, got outputs of \w+ with no activation\. .*Softmax\(\)",
    ),
    (
        Linear(3, INIT),
        CrossEntropyBinary(),
        r"no activation\. End the network with Logistic\(\) or Softmax\(\), or use",
    ),
    (Affine(3, INIT, activation=Logistic()), CrossEntropyMulti(), r"of \w+ with Logistic\. End the network with"),
    (Affine(3, INIT, activation=Tanh()), CrossEntropyBinary(), r"of \w+ with Tanh\. End the network with"),
    (Affine(1, INIT, activation=Softmax()), CrossEntropyMulti(), "the softmax of a single output is always 1"),
    (Affine(1, INIT, activation=Softmax()), CrossEntropyBinary(), r"is always 1, so its gradient is 0\. Use an out"),
    (Linear(1, INIT), GANCost(), r"GANCost expects probabilities, got outputs of \w+ with no activation"),
]
MEANT = [
    (Affine(3, INIT, activation=Softmax()), CrossEntropyBinary()),
    (Affine(3, INIT, activation=PixelwiseSoftmax(3)), CrossEntropyMulti()),
    (Affine(1, INIT, activation=Logistic()), CrossEntropyBinary()),
    (Linear(3, INIT), SumSquared()),
    (Linear(1, INIT), GANCost(func="wasserstein")),
]


def initialize_cost(cost: Any, layers: Any) -> None:
    gen_backend("cpu", batch_size=2)
    kind = GeneralizedGANCost if isinstance(cost, GANCost) else GeneralizedCost
    kind(cost).initialize(ready(Sequential([layers]), 4))


@pytest.mark.parametrize(("layers", "cost", "words"), EXPECTED)
def test_a_cost_of_probabilities_warns_if_the_network_outputs_none(layers, cost, words):
    with pytest.warns(UserWarning, match=words) as found:
        initialize_cost(cost, layers)
    assert found[0].filename == __file__


@pytest.mark.parametrize(("layers", "cost"), MEANT)
def test_a_cost_does_not_warn_about_matching_outputs(layers, cost):
    initialize_cost(cost, layers)


def test_a_cost_does_not_warn_about_custom_activations_and_layers():
    class Share(Transform):
        def __call__(self, x):
            return self.be.exp(x) / self.be.sum(self.be.exp(x), axis=0)

    class Shares(Linear):
        def formula(self, x):
            return Share()(super().formula(x))

    initialize_cost(CrossEntropyMulti(), Affine(3, INIT, activation=Share()))
    initialize_cost(CrossEntropyMulti(), Shares(3, INIT))


# --- compiled once ---------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*expects probabilities")
def test_the_op_trees_of_a_built_in_cost_are_built_once_for_the_same_tensors(be64, rng, monkeypatch):
    calls, call = [], CrossEntropyMulti.__call__
    monkeypatch.setattr(CrossEntropyMulti, "__call__", lambda *args: calls.append(args) or call(*args))
    be64.bsz = 4
    costfunc = CrossEntropyMulti()
    cost = GeneralizedCost(costfunc)
    cost.initialize(ready(Sequential([Linear(3, INIT)]), 2))
    y, *targets = (be64.empty((3, 4)) for _ in range(3))
    for target, factor, num_calls in [(0, 1.0, 1), (0, 1.0, 1), (0, 1.0, 1), (1, 1.0, 2), (1, 2.0, 3), (1, 2.0, 3)]:
        t, costfunc.log_base_factor = targets[target], factor
        y[:], t[:] = rng.uniform(0.1, 1, (3, 4)), rng.uniform(0.1, 1, (3, 4))
        close(cost.get_cost(y, t), -factor * (t.get() * np.log(y.get())).sum(0).mean())
        assert len(calls) == num_calls


def test_a_custom_cost_may_depend_on_other_state(be64, rng):
    factor = [1.0]

    class Scaled(Cost):
        def __call__(self, y, t):
            return factor[0] * self.be.sum(y - t, axis=0)

        def backward(self, y, t):
            return factor[0] * self.be.broadcast_to(self.be.array([[1.0]]), y.shape)

    be64.bsz = 4
    cost = GeneralizedCost(Scaled())
    cost.initialize(ready(Sequential([Linear(3, INIT)]), 2))
    y, t = be64.array(rng.normal(size=(3, 4))), be64.zeros((3, 4))
    for factor[0] in (1.0, 1.0, 1.0, 2.0):
        close(cost.get_cost(y, t), factor[0] * y.get().sum(0).mean())
        close(cost.get_errors(y, t).get(), np.full((3, 4), factor[0]))


# --- with a mask -----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*expects probabilities")
@pytest.mark.parametrize("costfunc", FORMULAS, ids=lambda cost: cost.__name__)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("shape", [4, (4, 2)])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_mask_excludes_outputs_from_cost_and_gradients(cpu64, rng, end, costfunc, shape, rows):
    cpu64.bsz = 3
    net = small(end, shape)
    cost = GeneralizedCostMask(costfunc(), weights=0.75)
    cost.initialize(net)
    assert cost.shortcut == ((end, costfunc) in PAIRS)
    x = data(cpu64, rng, shape)
    t, mask = targets(cpu64, rng, (3, x.shape[1])), mask_of(cpu64, rng, rows, x.shape[1])
    y = net.fprop(x)
    Y, T, M = y.get(), t.get(), mask.get()
    got = cost.get_cost(y, (t, mask))
    assert got.shape == (1, 1)
    assert got is cost.cost
    each = np.stack([FORMULAS[costfunc](y, t) for y, t in zip(Y[:, None], T[:, None], strict=True)]).reshape(Y.shape)
    share = FORMULAS[costfunc](Y, T) / each.sum(axis=0)  # 1 of a sum over elements, 1 / 3 of a mean
    close(got, [[0.75 * (M * each * share).sum(axis=0).mean()]])
    check_cost(net, cost, x, (t, mask))
    errors = cost.get_errors(net.fprop(x), [t, mask]).get()
    assert (errors[np.broadcast_to(M == 0, errors.shape)] == 0).all()
    assert (errors != 0).any()
    close(t, T, 0)
    close(mask, M, 0)
    cost.shortcut = False  # without the shortcut derivative
    check_cost(net, cost, x, (t, mask))


class MaxDifference(Cost):
    """1 + the largest difference of a column: no sum over elements, and not 0 at (0, 0)."""

    def __call__(self, y, t):
        return 1 + self.be.max(self.be.absolute(y - t), axis=0)


@pytest.mark.parametrize("costfunc", [SquareHingeLoss, MaxDifference])
def test_masked_columns_have_no_effect_whatever_their_values(be64, rng, costfunc):
    be64.bsz = 4
    net = small("Logistic", 4)
    cost, alone = GeneralizedCostMask(costfunc(), weights=2), GeneralizedCost(costfunc())
    x, t, mask = data(be64, rng, 4), targets(be64, rng, (3, 4)), be64.array([[1.0, 0, 1, 0]])
    y = net.fprop(x)
    alone.initialize(net)
    alone.get_cost(y, t)
    each, slope = alone.outputs.get(), alone.get_errors(y, t).get()
    wanted = [[2 * (each[0, 0] + each[0, 2]) / 4]]
    cost.initialize(net)
    close(cost.get_cost(y, (t, be64.array(np.repeat(mask.get(), 3, axis=0)))), wanted)
    t[:, 1], t[:, 3] = np.nan, 1e6
    close(cost.get_cost(y, (t, mask)), wanted)
    close(cost.get_errors(y, (t, mask)), 2 * slope * mask.get())


def test_a_mask_of_ones_has_no_effect(be64, rng):
    be64.bsz = 4
    net = small("Softmax", 4)
    x, t = data(be64, rng, 4), targets(be64, rng, (3, 4))
    plain, masked = GeneralizedCost(CrossEntropyMulti()), GeneralizedCostMask(CrossEntropyMulti())
    y = net.fprop(x)
    for rows in (1, 3):
        found = []
        for cost, truth in ((plain, t), (masked, (t, be64.ones((rows, 4))))):
            cost.initialize(net)
            value = cost.get_cost(y, truth)
            net.fprop(x)
            net.bprop(cost.get_errors(y, truth))
            found.append([value, *(g.get() for g in net.gradients)])
        for got, want in zip(*found, strict=True):
            close(got, want)


def test_the_shortcut_is_used_for_masks_of_columns_or_elementwise_activations(be64, rng):
    be64.bsz = 3
    for end, costfunc, rows, taken in (
        ("Softmax", CrossEntropyMulti, 1, True),
        ("Softmax", CrossEntropyMulti, 3, False),
        ("Logistic", CrossEntropyBinary, 1, True),
        ("Logistic", CrossEntropyBinary, 3, True),
    ):
        net = small(end, 4)
        cost = GeneralizedCostMask(costfunc())
        cost.initialize(net)
        y, t, mask = net.fprop(data(be64, rng, 4)), targets(be64, rng, (3, 3)), mask_of(be64, rng, rows, 3)
        errors = cost.get_errors(y, (t, mask))
        assert net.layers[-1].shortcut is taken
        if taken:
            close(errors, mask.get() * (y.get() - t.get()))


def test_targets_of_a_masked_cost_are_a_pair_that_fits(be, rng):
    be.bsz = 3
    net = ready(Sequential([Linear(3, INIT, name="last")]), 4)
    cost = GeneralizedCostMask(SumSquared(), name="masked")
    cost.initialize(net)
    y, t = net.fprop(data(be, rng, 4)), data(be, rng, 3)
    mask = be.ones((3, 3))
    wrong: list[tuple[Any, Any, str]] = [
        (t, TypeError, r"masked, at last: expected a pair \(t, mask\) for targets, got a tensor \(3, 3\)"),
        ((t, mask, mask), ValueError, r"masked, at last: expected a pair \(t, mask\) for targets, got"),
        ((t,), ValueError, r"masked, at last: expected a pair \(t, mask\) for targets, got"),
        (
            (t, be.ones((1, 2))),
            ValueError,
            r"masked, at last 3: expected a mask of the shape of the targets or \(1, columns\), got",
        ),
        (
            (t, be.ones((3, 1))),
            ValueError,
            r"at last 3: expected a mask .*, got a tensor \(3, 1\) for a tensor \(3, 3\)",
        ),
        ((t, None), ValueError, r"at last 3: expected a mask .*, got None for a tensor \(3, 3\)"),
        ((t, 1.0), ValueError, r"at last 3: expected a mask .*, got 1\.0 for a tensor \(3, 3\)"),
        ((None, mask), ValueError, r"at last 3: expected a mask .*, got a tensor \(3, 3\) for None"),
        ((be.ones((2, 3)), be.ones((2, 3))), ValueError, r"masked, at last 3: .*\(3, 3\).*\(2, 3\)"),
    ]
    for truth, kind, message in wrong:
        for act in (cost.get_cost, cost.get_errors):
            with pytest.raises(kind, match=message):
                act(y, truth)
    with pytest.raises(TypeError, match="masked: expected a number for weights, got 'much'"):
        GeneralizedCostMask(SumSquared(), weights="much", name="masked")
    close(cost.get_cost(y, cost.make_zero_targets()), [[0]], 0)


# --- several outputs -------------------------------------------------------------------------------------------------

HEADS: list[tuple[str, Any]] = [("Softmax", CrossEntropyMulti), ("Logistic", CrossEntropyBinary), ("Tanh", SumSquared)]


def heads(alphas: Any = None, shape: Any = 4) -> Any:
    """Return a tree with three heads of three outputs each."""
    ends = [Affine(3, INIT, INIT, activation=ENDS[end]()) for end, _ in HEADS]
    tree = branching([Linear(4, INIT), "one", ends[0]], ["one", ends[1]], ["one", ends[2]], alphas=alphas)
    return ready(tree, shape, deltas=False)


def make_multicost(weights: Any = None, masked: bool = False) -> Multicost:
    costs = [GeneralizedCost(costfunc()) for _, costfunc in HEADS]
    if masked:
        costs[1] = GeneralizedCostMask(CrossEntropyBinary(), weights=2.0)
    return Multicost(costs, weights)


@pytest.mark.parametrize("shape", [4, (4, 2)])
@pytest.mark.parametrize("weights", [None, [1, 0.5, -2]])
@pytest.mark.parametrize("shortcut", [True, False])
@pytest.mark.parametrize("missing", [(), (0,), (1, 2)])
def test_the_costs_of_several_outputs_add_up_by_their_weights(cpu64, rng, shape, weights, shortcut, missing):
    cpu64.bsz = 3
    net, cost = heads(shape=shape), make_multicost(weights)
    cost.initialize(net)
    assert [c.shortcut for c in cost.costs] == [True, True, False]
    if not shortcut:
        for c in cost.costs:
            c.shortcut = False
    x = data(cpu64, rng, shape)
    given = [None if i in missing else targets(cpu64, rng, (3, x.shape[1])) for i in range(3)]
    y = net.fprop(x)
    cost.get_errors(y, y[0])  # another cost's errors are in the buffers by now
    each = [
        w * FORMULAS[costfunc](o.get(), t.get()).mean()
        for (_, costfunc), o, t, w in zip(HEADS, y, given, weights or [1, 1, 1], strict=True)
        if t is not None
    ]
    got = cost.get_cost(y, given)
    assert got is cost.cost
    close(got, [[sum(each)]])
    check_cost(net, cost, x, given)
    errors = cost.get_errors(y, given)
    assert len(errors) == 3
    for i in missing:
        close(errors[i], np.zeros((3, x.shape[1])), 0)


def test_one_tensor_may_be_the_target_of_all_outputs(be64, rng):
    be64.bsz = 3
    net, cost = heads(), make_multicost([1, 2, 3])
    cost.initialize(net)
    x, t = data(be64, rng, 4), targets(be64, rng, (3, 3))
    y = net.fprop(x)
    want = cost.get_cost(y, [t, t, t])
    assert want != 0
    close(cost.get_cost(y, t), want, 0)
    errors = [e.get() for e in cost.get_errors(y, [t, t, t])]
    for got, e in zip(cost.get_errors(y, t), errors, strict=True):
        close(got, e, 0)
    check_cost(net, cost, x, t)


def test_one_of_several_costs_may_have_a_mask(be64, rng):
    be64.bsz = 3
    net, cost = heads(), make_multicost([1, 0.5, 1], masked=True)
    cost.initialize(net)
    x, t = data(be64, rng, 4), targets(be64, rng, (3, 3))
    mask = mask_of(be64, rng, 3, 3)
    y, M = net.fprop(x), mask.get()
    want = FORMULAS[CrossEntropyMulti](y[0].get(), t.get()).mean()
    want += FORMULAS[CrossEntropyBinary](y[1].get() * M, t.get() * M).mean()  # 0.5 * 2
    want += FORMULAS[SumSquared](y[2].get(), t.get()).mean()
    close(cost.get_cost(y, [t, (t, mask), t]), [[want]])
    check_cost(net, cost, x, [t, (t, mask), t])
    close(cost.get_cost(y, cost.make_zero_targets()), masked_zero_cost(y), 1e-10)


def masked_zero_cost(y: list[Any]) -> NDArray:
    """Return what targets of zeros cost, a third of which is masked out."""
    zeros = np.zeros((3, 3))
    return np.array([[FORMULAS[SumSquared](y[2].get(), zeros).mean()]])


def test_alphas_of_a_tree_multiply_the_weights_of_its_costs_in_gradients(be64, rng):
    be64.bsz = 3
    x, t = data(be64, rng, 4), targets(be64, rng, (3, 3))
    W, found = None, []
    for alphas, weights in (([2.0, -0.5, 1.0], [0.5, 3.0, 0.25]), (None, [1.0, -1.5, 0.25])):
        net, cost = heads(alphas), make_multicost(weights)
        cost.initialize(net)
        W = W or [p.get() for p in net.parameters]
        for p, w in zip(net.parameters, W, strict=True):
            p[:] = w
        net.bprop(cost.get_errors(net.fprop(x), t))
        found.append([g.get() for g in net.gradients])
    for got, want in zip(*found, strict=True):
        close(got, want)


def test_inference_evaluates_the_only_output_of_a_single_output_tree(be64, rng):
    be64.bsz = 3
    layers = (
        [Linear(4, INIT), "one", Affine(3, INIT, activation=Softmax())],
        ["one", Affine(3, INIT, activation=Tanh())],
    )
    net = ready(branching(*layers, cls=SingleOutputTree), 5, deltas=False)
    cost = Multicost([GeneralizedCost(CrossEntropyMulti()), GeneralizedCost(SumSquared())], weights=[0.5, 1])
    cost.initialize(net)
    x, t = data(be64, rng, 5), targets(be64, rng, (3, 3))
    y = net.fprop(x, inference=True)
    for truth in ([t, t], [t], t):
        close(cost.get_cost(y, truth), 0.5 * FORMULAS[CrossEntropyMulti](y.get(), t.get()).mean())


def test_several_costs_fit_as_many_outputs(be, rng):
    be.bsz = 3
    net = heads()
    net.name = "tree"
    one = Multicost([GeneralizedCost(SumSquared())], name="multi")
    for wrong, have in (
        (net, "a list of 3"),
        (ready(Sequential([Linear(2, INIT)], name="line"), 4), "one output; it takes a cost without Multicost"),
    ):
        costs = Multicost([GeneralizedCost(SumSquared()) for _ in range(2)], name="multi")
        with pytest.raises(
            ValueError, match=rf"multi: expected a network with a list of 2 outputs, .*, got {wrong.name} with {have}\."
        ):
            costs.initialize(wrong)
    with pytest.raises(
        ValueError, match=r"multi: expected a network with a list of 1 outputs, .*, got tree with a list of 3\."
    ):
        one.initialize(net)
    with pytest.raises(ValueError, match=r"multi: expected one number for each cost, 2 in all, for weights, got \[1\]"):
        Multicost([GeneralizedCost(SumSquared()) for _ in range(2)], weights=[1], name="multi")
    with pytest.raises(TypeError, match="multi: expected a number for each of weights, got 'a'"):
        Multicost([GeneralizedCost(SumSquared())], weights=["a"], name="multi")
    cost = make_multicost()
    cost.name = "multi"
    cost.initialize(net)
    y, t = net.fprop(data(be, rng, 4)), targets(be, rng, (3, 3))
    with pytest.raises(ValueError, match="multi: expected targets for 3 outputs, got 2"):
        cost.get_cost(y, [t, t])
    with pytest.raises(ValueError, match="multi: expected at most 3 outputs, one for each cost, got 4"):
        cost.get_errors([*y, y[0]], t)
    with pytest.raises(ValueError, match=r"each of the 3 outputs of the network, .*\(2, 3\) with 2\. End"):
        cost.get_cost(y, [t, be.ones((2, 3)), t])
    with pytest.raises(
        ValueError,
        match=r"single: expected a network with one output, got tree with 3 of the shapes \[3, 3, 3\]. Use Multi",
    ):
        GeneralizedCost(SumSquared(), name="single").initialize(net)
    assert cost.costfunc is cost.costs[0].costfunc


# --- GANs ------------------------------------------------------------------------------------------------------------

GAN: dict[str, tuple[Any, Any, Any]] = {  # of data, of noise, of the generator
    "original": (lambda y: -log(y), lambda y: -log(1 - y), lambda y: log(1 - y)),
    "modified": (lambda y: -log(y), lambda y: -log(1 - y), lambda y: -log(y)),
    "wasserstein": (lambda y: -y, lambda y: y, lambda y: -y),
}


def adversaries(be: Backend, end: Any, outputs: int = 1) -> Any:
    """Return a generator from 2 to 3 features, and a discriminator."""
    net = GenerativeAdversarial(
        [Affine(4, INIT, INIT, activation=Tanh()), Affine(3, INIT)],
        [Affine(4, INIT, INIT, activation=Tanh()), Affine(outputs, INIT, INIT, activation=end)],
    )
    net.configure(2)
    net.allocate(accumulate_updates=True)
    net.allocate_deltas()
    return net


@pytest.mark.parametrize("func", GAN)
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_both_adversaries_get_the_gradients_of_their_costs(cpu64, rng, func, outputs, scale):
    cpu64.bsz = 4
    net = adversaries(cpu64, Identity() if func == "wasserstein" else Logistic(), outputs)
    cost = GeneralizedGANCost(GANCost(scale=scale, func=func))
    cost.initialize(net)
    assert not cost.shortcut
    z, real = data(cpu64, rng, 2), data(cpu64, rng, 3)
    P = [p.get() for p in net.parameters]
    of_data, of_noise, of_generator = GAN[func]

    def outcome(P: list[NDArray]) -> tuple[NDArray, NDArray]:
        def discriminate(x: NDArray) -> NDArray:
            y = P[5] @ np.tanh(P[3] @ x + P[4]) + P[6]
            return y if func == "wasserstein" else 1 / (1 + np.exp(-y))

        return discriminate(real.get()), discriminate(P[2] @ np.tanh(P[0] @ z.get() + P[1]))

    def dis() -> float:
        y_data, y_noise = outcome(P)
        return float((of_data(y_data) + of_noise(y_noise)).mean(axis=0).sum())

    def gen() -> float:
        return float(of_generator(outcome(P)[1]).mean(axis=0).sum())

    # the discriminator learns from noise and from data, and both add up
    made = net.generator.fprop(z)
    y_noise = net.discriminator.fprop(made)
    noise_outputs = cpu64.array(y_noise.get())
    net.discriminator.bprop(cost.get_errors(y_noise, "noise"))
    net.discriminator.set_acc_on(True)
    y_data = net.discriminator.fprop(real)
    net.discriminator.bprop(cost.get_errors(y_data, "data"))
    net.discriminator.set_acc_on(False)
    for got, want in zip((y_data, noise_outputs), outcome(P), strict=True):
        close(got, want)
    close(cost.get_cost(y_data, noise_outputs), [[dis() / 4]])
    close(cost.get_cost(y_data, noise_outputs, cost_type="dis"), [[dis() / 4]])
    close(cost.get_cost(y_data, noise_outputs, cost_type="gen"), [[gen() / 4]])
    close(cost.get_cost(None, noise_outputs, cost_type="gen"), [[gen() / 4]])
    for got, p in zip(net.discriminator.gradients, P[3:], strict=True):
        close(got, scale * numerical_gradient(dis, p), 1e-7)

    y_noise = net.fprop(z)
    net.bprop(cost.get_errors(y_noise, "generator"))
    for got, p in zip(net.generator.gradients, P[:3], strict=True):
        close(got, scale * numerical_gradient(gen, p), 1e-7)


def test_the_errors_of_adversaries_are_of_three_kinds(be, rng):
    be.bsz = 2
    net = adversaries(be, Logistic())
    cost = GeneralizedGANCost(GANCost(), name="gan")
    with pytest.raises(
        RuntimeError,
        match=r"gan: expected an initialized cost, got one without buffers. Call initialize\(network\) first",
    ):
        cost.get_errors(None, "data")
    cost.initialize(net)
    y = net.fprop(data(be, rng, 2))
    for wrong in ("dis", None, 0):
        with pytest.raises(ValueError, match=rf"gan: expected one of 'data', .* for targets, got {wrong!r}"):
            cost.get_errors(y, wrong)
    with pytest.raises(ValueError, match=r"gan, at .*: .*expected y_data and y_noise of the same shape"):
        cost.get_cost(y, be.ones((1, 3)))
    with pytest.raises(ValueError, match=r"gan, at .*: .*cost_type"):
        cost.get_cost(y, y, cost_type="both")


def test_a_gan_cost_and_a_paired_cost_may_alternate(be64, rng):
    be64.bsz = 3
    net = adversaries(be64, Logistic())
    gan, paired = GeneralizedGANCost(GANCost()), GeneralizedCost(CrossEntropyBinary())
    gan.initialize(net.discriminator)
    x, t = data(be64, rng, 3), be64.array([[1.0, 0.0, 1.0]])

    def gradients() -> list[NDArray]:
        y = net.discriminator.fprop(x)
        net.discriminator.bprop(gan.get_errors(y, "data"))
        return [g.get() for g in net.discriminator.gradients]

    want = gradients()
    paired.initialize(net.discriminator)
    for _ in range(2):
        paired.get_errors(net.discriminator.fprop(x), t)
        for got, w in zip(gradients(), want, strict=True):
            close(got, w, 0)


# --- any network -----------------------------------------------------------------------------------------------------


def test_a_trained_network_may_become_part_of_another(be64, rng):
    be64.bsz = 3
    net, _ = network([Affine(3, INIT, activation=Softmax())], 4, CrossEntropyMulti())
    check_numerical_gradients(network([net, Linear(2, INIT)], 4, deltas=True), rng, 4)


@pytest.mark.parametrize("end", ["inside", "merged"])
def test_the_shortcut_is_for_the_very_last_layer(be64, rng, end):
    be64.bsz = 3
    last = Affine(3, INIT, activation=Softmax())
    layers = [
        Affine(3, INIT),
        Sequential([last]) if end == "inside" else MergeSum([last, [Affine(3, INIT, activation=Softmax())]]),
    ]
    net, cost = network(layers, 4, CrossEntropyMulti())
    assert cost.shortcut == (end == "inside")
    check_cost(net, cost, data(be64, rng, 4), targets(be64, rng, (3, 3)))


def test_costs_require_a_configured_network(be, rng):
    be.bsz = 2
    for cost in (GeneralizedCostMask(SumSquared(), name="c"), GeneralizedCost(SumSquared(), name="c")):
        with pytest.raises(
            RuntimeError,
            match=r"c: expected an initialized cost, got one without buffers. Call initialize\(network\) first",
        ):
            cost.get_errors(be.ones((2, 2)), (be.ones((2, 2)), be.ones((2, 2))))
        with pytest.raises(
            RuntimeError, match=r"c: expected a configured network, got net. Call configure\(shape\) first"
        ):
            cost.initialize(Sequential([Linear(2, INIT)], name="net"))


@pytest.mark.parametrize("shape", [3, (3, 2)])
def test_costs_follow_the_batch_size(be64, rng, shape):
    be64.bsz = 4
    layer = by_hand(Activation(Identity()), shape)
    cost = GeneralizedCostMask(SumSquared())
    cost.initialize(layer)
    for N in (4, 1, 5):
        layer.set_batch_size(N)
        y, t = data(be64, rng, shape), data(be64, rng, shape)
        mask = mask_of(be64, rng, 1, y.shape[1])
        want = ((y.get() - t.get()) * mask.get()) ** 2
        close(cost.get_cost(y, (t, mask)), [[want.sum() / 2 / y.shape[1]]])
        close(cost.get_errors(y, (t, mask)), (y.get() - t.get()) * mask.get())


def test_a_batch_norm_before_several_costs_is_trained_by_their_gradients(be64, rng):
    be64.bsz = 5
    net = branching(
        [Linear(4, INIT), BatchNorm(), "one", MergeSum([Linear(4, INIT), SkipNode()]), Activation(Softmax())],
        ["one", Affine(2, INIT, activation=Logistic())],
    )
    ready(net, 3, deltas=False)
    cost = Multicost([GeneralizedCost(CrossEntropyMulti()), GeneralizedCost(CrossEntropyBinary())], weights=[1, 0.3])
    cost.initialize(net)
    x, t, u = data(be64, rng, 3), targets(be64, rng, (4, 5)), be64.array(rng.integers(2, size=(2, 5)))
    net.bprop(cost.get_errors(net.fprop(x), [t, u]))
    P, found = [p.get() for p in net.parameters], [g.get() for g in net.gradients]

    def total() -> float:
        W, beta, gamma, V, U = P
        h = W @ x.get()
        xhat = (h - h.mean(axis=1, keepdims=True)) / np.sqrt(h.var(axis=1, keepdims=True) + 1e-3)
        one = gamma * xhat + beta
        e = np.exp(V @ one + one)
        y, v = e / e.sum(axis=0), 1 / (1 + np.exp(-U @ one))
        each = FORMULAS[CrossEntropyMulti](y, t.get()) + 0.3 * FORMULAS[CrossEntropyBinary](v, u.get())
        return float(each.sum())

    for got, p in zip(found, P, strict=True):
        close(got, numerical_gradient(total, p), 1e-7)


def test_a_step_against_the_errors_lowers_each_kind_of_cost(be, rng):
    be.bsz = 8
    for weights, masked in itertools.product(([1, 1, 1], [0.1, 2, 0.5]), (False, True)):
        net, cost = heads(), make_multicost(weights, masked)
        cost.initialize(net)
        x, t = data(be, rng, 4), targets(be, rng, (3, 8))
        truth = [t, (t, be.ones((1, 8))) if masked else t, t]
        found = []
        for _ in range(3):
            y = net.fprop(x)
            found.append(cost.get_cost(y, truth).item())
            net.bprop(cost.get_errors(y, truth))
            GradientDescentMomentum(0.05, 0.0).optimize(net.layers_to_optimize, epoch=0)
        assert found[0] > found[1] > found[2]
