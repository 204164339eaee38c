"""``Optimizer.step``: updates by gradients as op-trees, at once and in compiled functions."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.optimizer_equations import (
    EQUATIONS,
    GDM,
    MAKERS,
    SHAPES,
    N,
    every_equation,
    gdm,
    gradients,
    network,
    textbook,
    weights,
)
from helpers.runtimes import lacks

import neonlite as nl
from neonlite.distributed import Distributed
from neonlite.initializers import Gaussian
from neonlite.layers import Affine, GeneralizedCost, Linear, Sequential
from neonlite.optimizers import Adam, LossScaling, MultiOptimizer, Optimizer, PowerSchedule
from neonlite.transforms import SumSquared

STEPS = 7


def run(be, optimizer, layers, is_compiled, steps=STEPS, start=0):
    """Return the gradients of each step, of which ``step`` receives the N-th part, as ``optimize`` uses."""
    ws = [layer.W for layer in layers]

    def step(gs, epoch):
        optimizer.step(ws, [g / N for g in gs], epoch=epoch)

    step = nl.jit(step) if is_compiled else step
    result = []
    for i in range(start, start + steps):
        result.append(gradients(layers, i))
        step([layer.dW for layer in layers], i // 3)
    return result


@pytest.mark.parametrize("is_compiled", [False, True])
@every_equation
def test_steps_follow_the_equation_of_the_optimizer(be64, name, is_compiled):
    make, rule, options = EQUATIONS[name]
    layers, optimizer = network(be64), make()
    start = weights(layers)
    gs = run(be64, optimizer, layers, is_compiled)
    expected = textbook(rule, start, gs, [i // 3 for i in range(STEPS)], **options)
    for w, x in zip(weights(layers), expected, strict=True):
        np.testing.assert_allclose(w, x, rtol=1e-10, atol=1e-10)
    assert [layer.W.updates for layer in layers] == [(optimizer.kind, STEPS)] * len(layers)
    assert optimizer.t == STEPS


@every_equation
def test_compiled_steps_have_the_bits_of_those_that_are_not(cpu, name):
    results = []
    for is_compiled in (False, True):
        layers = network(cpu)
        run(cpu, MAKERS[name](), layers, is_compiled)
        results.append(weights(layers))
    for x, y in zip(*results, strict=True):
        np.testing.assert_array_equal(x, y)


def test_steps_continue_from_the_states_of_optimize_and_the_other_way(be64):
    layers, optimizer = network(be64), Adam(learning_rate=0.1)
    be64.bsz = N
    for layer in layers:  # of a layer, the states are those of its parameter
        layer.W.states = layer.states
    start, gs = weights(layers), []
    for i in range(3):
        gs.append(gradients(layers, 2 * i))
        optimizer.optimize(layers, 0)
        gs += run(be64, optimizer, layers, i > 0, 1, 2 * i + 1)
        assert all(layer.W.states is layer.states for layer in layers)
    rule = EQUATIONS["adam"][1]
    expected = textbook(rule, start, gs, [0] * 6, lr=0.1, b1=0.9, b2=0.999, eps=1e-8)
    for w, x in zip(weights(layers), expected, strict=True):
        np.testing.assert_allclose(w, x, rtol=1e-8, atol=1e-8)


def test_a_rate_that_is_set_between_two_steps_is_used_without_a_new_program(be):
    w, optimizer = be.zeros((1, 1)), GDM(1.0, 0)
    step = nl.jit(lambda g: optimizer.step([w], [g]))
    total = 0.0
    for rate in (1.0, 0.5, 0.25, 0.25):
        optimizer.learning_rate = rate
        step(be.ones((1, 1)))
        total -= rate
        assert w.get() == total
    assert len(step.programs) == 1


def test_parameters_of_unequal_numbers_of_updates_have_their_own_corrections(be64):
    be = be64
    a, b = be.zeros((1, 1)), be.zeros((1, 1))
    optimizer, one = Adam(learning_rate=1.0, epsilon=0.0), be.ones((1, 1))
    step = nl.jit(lambda ws: optimizer.step([a, b][:ws], [one, one][:ws]))
    for count in (1, 1, 2, 1, 2):
        step(count)
    # with equal gradients, each corrected step of Adam is the rate
    np.testing.assert_allclose([a.get().item(), b.get().item()], [-5, -2], rtol=1e-9)
    assert (a.updates[1], b.updates[1]) == (5, 2)


def test_parameters_of_16_bits_have_states_and_gradients_of_32_bits(be):
    if lacks(be, "float16"):
        return
    w, optimizer = be.ones((1, 2), dtype="float16"), GDM(0.1, 0.5)
    step = nl.jit(lambda g: optimizer.step([w], [g]))
    value, memory = np.ones((1, 2)), {}
    for t in range(3):
        step(be.array([[1.0, 2.0]], dtype="float16"))
        value = gdm(value, np.array([[1.0, 2.0]]), memory, t, 0, lr=0.1, mu=0.5)
    assert w.info.dtype == "float16"
    assert w.states[0].info.dtype == "float32"
    np.testing.assert_allclose(w.get(), value, rtol=2e-3)


def test_gradients_are_expressions_of_the_parameters(be64, rng):
    be, values = be64, [rng.normal(size=shape) for shape in SHAPES]
    ws = [be.array(x) for x in values]
    optimizer = GDM(0.01, 0.5, schedule=PowerSchedule(1, 0.5))

    def step(epoch):
        cost = sum(be.sum(w * w * w) for w in ws) * be.sum(ws[0])
        optimizer.step(ws, nl.Autodiff(cost, be).get_grad_op_tree(ws), epoch=epoch)
        return cost

    compiled, memories = nl.jit(step), [{} for _ in ws]
    for t in range(4):
        cubes, total = sum((x**3).sum() for x in values), values[0].sum()
        gs = [3 * x**2 * total + (cubes if i == 0 else 0) for i, x in enumerate(values)]
        cost = (step if t % 2 else compiled)(t // 2)
        if t % 2 == 0:  # without jit, an op-tree reads the weights when it is evaluated, those after the step
            np.testing.assert_allclose(cost.get(), cubes * total, rtol=1e-9)
        rate = 0.01 * 0.5 ** (t // 2)
        values = [gdm(x, g, m, t, 0, lr=rate, mu=0.5) for x, g, m in zip(values, gs, memories, strict=True)]
        for w, x in zip(ws, values, strict=True):
            np.testing.assert_allclose(w.get(), x, rtol=1e-8)


def test_a_custom_rule_gets_numbers_and_its_count_as_in_optimize(be):
    class Slower(Optimizer):
        learning_rate = 1.0

        def __init__(self):
            super().__init__()
            self.counts = []

        def update_rule(self, be, w, g, states, rate):
            self.counts.append((self.t, rate))
            return [w - g * (rate / (1 + self.t))]

    w, optimizer = be.zeros((1, 1)), Slower()
    for _ in range(3):
        optimizer.step([w], [be.ones((1, 1))])
    assert optimizer.counts == [(0, 1.0), (1, 1.0), (2, 1.0)]
    assert w.get() == pytest.approx(-1 - 1 / 2 - 1 / 3)
    with pytest.raises(TypeError, match=r"Slower.step, whose update_rule may read other values.* can_replay = True"):
        nl.jit(lambda g: optimizer.step([w], [g]))(be.ones((1, 1)))
    assert w.updates[1] == optimizer.t == 3


def test_no_parameters_are_no_step(be):
    optimizer = Adam()
    optimizer.step([], [])
    assert optimizer.t == 0


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda be, o, w: o.step([w], []), ValueError, "a gradient for each of 1 parameters, got 0"),
        (lambda be, o, w: o.step([w], [be.ones((2, 1))]), ValueError, "expected a gradient of the shape of"),
        (lambda be, o, w: o.step([w, w], [w, w]), ValueError, "expected each parameter once"),
        (lambda be, o, w: o.step([w * 1], [w]), TypeError, "expected parameters as tensors of floats"),
        (lambda be, o, w: o.step([w], [1.0]), TypeError, "expected parameters as tensors of floats, and gradients as"),
        (lambda be, o, w: o.step([w], [w], epoch="one"), (TypeError, ValueError), "the epoch"),
        (lambda be, o, w: Optimizer().step([w], [w]), TypeError, "expected an attribute learning_rate"),
    ],
)
def test_invalid_arguments_are_refused_before_anything_is_written(be, is_compiled, call, error, message):
    w, optimizer = be.ones((1, 1)), GDM(0.1, 0.9)
    f = (lambda: call(be, optimizer, w)) if not is_compiled else nl.jit(lambda: call(be, optimizer, w))
    with pytest.raises(error, match=message):
        f()
    assert w.get() == 1
    assert (w.updates, w.states, optimizer.t) == (None, None, 0)


# --- several optimizers, and scaled losses ---------------------------------------------------------------------------


def mapping():
    return MultiOptimizer({"default": GDM(0.1, 0.9), "Bias": Adam(0.05), "last": GDM(0.02, 0.0)})


def make_network():
    return Sequential([Affine(4, Gaussian(), bias=Gaussian(), activation="tanh"), Linear(3, Gaussian(), name="last")])


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("wrap", [lambda o: o, LossScaling, Distributed, lambda o: Distributed(LossScaling(o))])
def test_several_optimizers_step_as_in_fit(be64, rng, wrap, is_compiled):
    be, X = be64, rng.normal(size=(8, 5))
    y = rng.normal(size=(8, 3))
    results, start = [], []
    for by_step in (False, True):
        optimizer, net = wrap(mapping()), make_network()
        be.bsz = 8
        model = nl.models.Model(net)
        net.configure(5)
        net.allocate()
        for w, value in zip(
            net.parameters, start := start or [rng.normal(size=w.shape) for w in net.parameters], strict=True
        ):
            w[:] = value
        if by_step:
            scale = getattr(optimizer, "scale_errors", lambda cost: cost)

            def step(x, t, net=net, optimizer=optimizer, scale=scale):
                cost = be.sum(be.square(net(x, training=True) - t)) / 16
                gradients = nl.Autodiff(scale(cost), be).get_grad_op_tree(net.parameters)
                optimizer.step(net.parameters, gradients)

            step = nl.jit(step) if is_compiled else step
            for _ in range(3):
                step(be.array(X.T), be.array(y.T))
        else:
            data = nl.data.ArrayIterator(X, y, make_onehot=False)
            model.fit(data, cost=GeneralizedCost(SumSquared()), optimizer=optimizer, num_epochs=3)
        results.append([p.get() for p in net.parameters])
        assert {w.updates[1] for w in net.parameters} == {3}
    for p, q in zip(*results, strict=True):
        np.testing.assert_allclose(p, q, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_step_that_overflows_changes_the_scale_only(be, is_compiled):
    w, other = be.array([[1.0]]), be.array([[2.0]])
    optimizer = LossScaling(Adam(0.1), scale=4.0, growth_interval=2)

    def update(g):
        optimizer.step([w, other], [g * optimizer.scale_errors(w * 1) / w, be.ones((1, 1))])

    f = nl.jit(update) if is_compiled else update
    seen = []
    for g in (1.0, np.inf, 1.0, 1.0, np.nan, 1.0):
        before = [x.get() for t in (w, other) for x in (t, *(t.states or ()))]
        f(be.array([[g]]))
        after = [x.get() for t in (w, other) for x in (t, *t.states)]
        if not np.isfinite(g):
            np.testing.assert_array_equal(before, after)
        seen.append((optimizer.scale, optimizer.t, optimizer.total_skips, w.updates[1]))
    assert seen == [(4, 1, 0, 1), (2, 1, 1, 1), (2, 2, 1, 2), (4, 3, 1, 3), (2, 3, 2, 3), (2, 4, 2, 4)]
    expected, m, v = 1.0, 0.0, 0.0
    for t in range(1, 5):
        m, v = 0.9 * m + 0.1, 0.999 * v + 0.001
        expected -= 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    np.testing.assert_allclose(w.get(), expected, rtol=1e-5)


def test_too_many_steps_that_overflow_are_an_error(be):
    w, optimizer = be.ones((1, 1)), LossScaling(Adam(0.1))
    step = nl.jit(lambda g: optimizer.step([w], [optimizer.scale_errors(g * 1)]))
    for _ in range(40):
        step(be.array([[np.inf]]))
    with pytest.raises(FloatingPointError, match="in 40 consecutive steps"):
        step(be.array([[np.inf]]))
    assert w.get() == 1


def test_a_step_of_several_optimizers_refuses_unknown_layers(be):
    net = make_network()
    net(be.ones((5, 2)))
    gradients = [be.ones(w.shape) for w in net.parameters]
    with pytest.raises(ValueError, match="expected keys that are names or classes of layers, got missing"):
        MultiOptimizer({"default": Adam(), "missing": Adam()}).step(net.parameters, gradients)
    MultiOptimizer({"default": GDM(0.5, 0.0)}).step([w := be.ones((1, 1))], [be.ones((1, 1))])
    assert w.get() == 0.5


@pytest.mark.parametrize("by_layers", [False, True])
@pytest.mark.parametrize("wrap", [lambda o: o, LossScaling])
def test_an_optimizer_that_replaces_one_of_several_counts_from_the_next_step_on(be, wrap, by_layers):
    several = MultiOptimizer({"default": GDM(0.5, 0.0)})
    optimizer, (layer, *_) = wrap(several), network(be)
    be.bsz, w, before = 1, layer.W, layer.W.get()
    scale = getattr(optimizer, "scale_errors", lambda error: error)
    step = nl.jit(lambda g: optimizer.step([w], [scale(g * 1)]))

    def update():
        layer.dW[:] = scale(be.ones(w.shape) * 1)
        optimizer.optimize([layer], 0) if by_layers else step(be.ones(w.shape))

    update()
    several.optimizer_mapping["default"] = GDM(0.25, 0.0)
    update()
    np.testing.assert_allclose(w.get(), before - 0.75, 1e-6)


def test_a_scaled_optimizer_with_a_custom_optimize_gets_the_gradients_that_were_not_scaled(be):
    class Mine(Optimizer):
        def optimize(self, layer_list, epoch):
            for layer in layer_list:
                layer.W[:] = layer.W - layer.dW

    optimizer, (layer, *_) = LossScaling(MultiOptimizer({"default": Mine()}), 8.0), network(be)
    before = layer.W.get()
    for error, decrease in [(np.ones, 1), (lambda shape: np.full(shape, np.inf), 1), (np.ones, 2)]:
        layer.dW[:] = optimizer.scale_errors(be.array(error(layer.W.shape)))
        optimizer.optimize([layer], 0)
        np.testing.assert_allclose(layer.W.get(), before - decrease, 1e-6)
    optimizer.optimize([], 0)  # all layers are frozen
    assert (optimizer.t, optimizer.total_skips, optimizer.scale) == (2, 1, 4.0)
    with pytest.raises(TypeError, match=r"defines update_rule or get_scalars, got .*Mine.*which defines optimize"):
        optimizer.step([layer.W], [be.ones(layer.W.shape)])


def test_a_compiled_step_without_scaled_errors_is_refused(be):
    w, optimizer = be.ones((1, 1)), LossScaling(GDM(0.5, 0.0))
    with pytest.raises(RuntimeError, match=r"take the gradients of optimizer\.scale_errors\(cost\)"):
        nl.jit(lambda g: optimizer.step([w], [g * 1]))(be.ones((1, 1)))
    optimizer.step([w], [optimizer.scale_errors(w * 1)])
    with pytest.raises(RuntimeError, match=r"take the gradients of optimizer\.scale_errors\(cost\)"):
        optimizer.step([w], [w * 1])  # also after a step that was scaled
    assert w.get() == 0.5


def test_a_step_without_allocated_parameters_says_what_allocates_them(be):
    net = make_network()
    with pytest.raises(TypeError, match=r"Call net\(x\) first, which allocates net\.parameters"):
        Adam().step(net.parameters, net.parameters)
    with pytest.raises(TypeError, match=r"Call net\(x\) first, which allocates net\.parameters"):
        nl.Autodiff(be.ones((1, 1)) * 2, be).get_grad_op_tree(net.parameters)


def test_a_scaled_custom_rule_is_refused_in_a_compiled_step(be):
    class Mine(Optimizer):
        learning_rate = 0.5

        def update_rule(self, be, w, g, states, rate):
            return [w - rate * g]

    w, optimizer = be.ones((1, 1)), LossScaling(Mine())
    with pytest.raises(TypeError, match="whose update_rule may read other values"):
        nl.jit(lambda g: optimizer.step([w], [optimizer.scale_errors(g * 1)]))(be.ones((1, 1)))
    optimizer.step([w], [optimizer.scale_errors(be.ones((1, 1)) * 1)])
    assert w.get() == 0.5
