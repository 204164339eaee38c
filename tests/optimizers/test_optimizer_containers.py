"""``Optimizer.init`` and ``step`` with a state: new parameters in nested containers, at once and compiled."""

from __future__ import annotations

import re

import numpy as np
import pytest
from helpers.optimizer_equations import (
    EQUATIONS,
    GDM,
    MAKERS,
    SHAPES,
    N,
    every_equation,
    gradients,
    network,
    textbook,
    weights,
)
from helpers.runtimes import lacks

import neonlite as nl
from neonlite.distributed import Distributed
from neonlite.optimizers import Adam, LossScaling, MultiOptimizer, Optimizer, RMSProp

STEPS = 7
KINDS = ["tensors", "arrays"]


def nest(ws):
    return {"first": [ws[0], ws[1]], "rest": (ws[2], {"last": ws[3]})}


def unnest(params):
    return [*params["first"], params["rest"][0], params["rest"][1]["last"]]


def values(params):
    return [np.array(x.numpy()) for x in unnest(params)]


def convert(be, kind, array):
    return be.array(array) if kind == "tensors" else be.array_api.asarray(array)


def run(be, optimizer, is_compiled, kind):
    """Return the first parameters, all gradients, and the parameters and the state after all steps."""
    rng = np.random.default_rng(3)
    start = [rng.normal(size=shape) for shape in SHAPES]
    params = nest([convert(be, kind, x) for x in start])
    step = nl.jit(optimizer.step) if is_compiled else optimizer.step
    state, gs = optimizer.init(params), []
    for i in range(STEPS):
        gs.append([rng.normal(size=shape) * 10.0 ** rng.uniform(-3, 2, shape) for shape in SHAPES])
        params, state = step(params, nest([convert(be, kind, g) for g in gs[-1]]), state, i // 3)
    return start, gs, params, state


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_compiled", [False, True])
@every_equation
def test_steps_follow_the_equation_of_the_optimizer(be64, name, is_compiled, kind):
    make, rule, options = EQUATIONS[name]
    start, gs, params, state = run(be64, make(), is_compiled, kind)
    gs = [[N * g for g in step] for step in gs]
    expected = textbook(rule, start, gs, [i // 3 for i in range(STEPS)], **options)
    for w, x in zip(values(params), expected, strict=True):
        np.testing.assert_allclose(w, x, rtol=1e-10, atol=1e-10)
    assert int(state["t"]) == STEPS


@pytest.mark.parametrize("is_compiled", [False, True])
@every_equation
def test_they_give_the_weights_of_optimize_on_layers(cpu, name, is_compiled):
    layers, optimizer = network(cpu), MAKERS[name]()
    cpu.bsz = N
    params = nest([layer.W.copy() for layer in layers])
    pure = MAKERS[name]()
    step, state = nl.jit(pure.step) if is_compiled else pure.step, pure.init(params)
    for i in range(STEPS):
        gs = gradients(layers, i)
        optimizer.optimize(layers, i // 3)
        params, state = step(params, nest([cpu.array(g) / N for g in gs]), state, i // 3)
    for w, x in zip(values(params), weights(layers), strict=True):
        np.testing.assert_allclose(w, x, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_nothing_that_is_given_changes(be, is_compiled):
    optimizer = Adam(0.1)
    params = nest([be.array(np.full(shape, 2.0)) for shape in SHAPES])
    state = optimizer.init(params)
    step = nl.jit(optimizer.step) if is_compiled else optimizer.step
    first, _ = step(params, params, state)
    second, later = step(params, params, state)
    assert all((x == 2).all() for x in values(params))
    assert not any(x.any() for name in ("mean", "mean_square") for x in values(state[name]))
    assert (int(state["t"]), int(later["t"]), optimizer.t) == (0, 1, 0)
    assert {(w.updates, w.states) for w in unnest(params)} == {(None, None)}
    for x, y in zip(values(first), values(second), strict=True):
        np.testing.assert_array_equal(x, y)


def test_the_results_are_of_the_containers_and_kinds_that_were_given(be):
    optimizer, xp = GDM(0.1, 0.9), be.array_api
    params = nest([xp.ones((2,)), xp.asarray(3.0), xp.ones((2, 3, 4)), xp.variable([1.0], name="v")])
    state = optimizer.init(params)
    assert state.keys() == {"t", "velocity"}
    gs = nest([xp.ones((2,)), xp.asarray(1.0), xp.ones((2, 3, 4)), xp.asarray([2.0])])
    new, state = optimizer.step(params, {"rest": gs["rest"], "first": tuple(gs["first"])}, state)
    assert (type(new["first"]), type(new["rest"]), new.keys()) == (list, tuple, params.keys())
    assert [x.shape for x in unnest(new)] == [x.shape for x in unnest(state["velocity"])] == [(2,), (), (2, 3, 4), (1,)]
    assert state["t"].shape == ()
    assert float(new["first"][1]) == pytest.approx(2.9)
    last = unnest(new)[-1]  # of a variable, one that is differentiated
    assert nl.Autodiff(xp.sum(last * last)).get_grad_op_tree(last).item() == pytest.approx(1.6)
    assert optimizer.step([], [], optimizer.init([]))[0] == []


def test_a_compiled_function_trains_with_gradients_of_its_arguments(be):
    xp, optimizer = be.array_api, Adam(0.05)

    def cost_of(params, x, t):
        hidden = xp.tanh(x @ params["hidden"]["W"] + params["hidden"]["b"])
        return xp.mean((hidden @ params["out"] - t) ** 2)

    def step(params, state, x, t):
        cost = cost_of(params, x, t)
        leaves = [params["hidden"]["W"], params["hidden"]["b"], params["out"]]
        w, b, out = nl.Autodiff(cost).get_grad_op_tree(leaves)
        return cost, *optimizer.step(params, {"hidden": {"W": w, "b": b}, "out": out}, state)

    rng = np.random.default_rng(0)
    x, t = (xp.asarray(rng.normal(size=(20, n))) for n in (3, 1))
    params = {"hidden": {"W": xp.asarray(rng.normal(size=(3, 8))), "b": xp.zeros(8)}, "out": xp.zeros((8, 1))}
    state, compiled, costs = optimizer.init(params), nl.jit(step), []
    for _ in range(60):
        cost, params, state = compiled(params, state, x, t)
        costs.append(float(cost))
    assert len(compiled.programs) == 1
    assert costs[-1] < 0.3 * costs[0]


def test_a_setting_that_changes_is_used_in_the_next_call_of_a_compiled_step(be):
    optimizer = GDM(1.0, 0)
    step, params, total = nl.jit(optimizer.step), [be.zeros((1, 1))], 0.0
    state = optimizer.init(params)
    for rate, decay in ((1.0, 0.0), (0.5, 0.0), (0.5, 0.5), (0.5, 0.5)):
        optimizer.learning_rate, optimizer.wdecay = rate, decay
        params, state = step(params, [be.ones((1, 1))], state)
        total -= rate * (1 + decay * total)
        assert params[0].item() == pytest.approx(total)


def test_a_compiled_step_is_differentiated(be64):
    be = be64
    optimizer = GDM(0.1, 0)

    @nl.jit
    def slope(w):
        (new,), _ = optimizer.step([w], [w * w], optimizer.init([w]))
        return nl.Autodiff(be.sum(new)).get_grad_op_tree(w)

    assert slope(be.array([[3.0]])).item() == pytest.approx(1 - 0.2 * 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_compiled", [False, True])
def test_functions_of_functions_differentiate_a_step(be64, is_compiled, kind):
    optimizer = GDM(0.1, 0.5)

    def cost(params):
        return sum(be64.array_api.sum(be64.array_api.asarray(x) ** 3) for x in params.values())

    def after(params):
        new, state = optimizer.step(params, nl.grad(cost)(params), optimizer.init(params))
        return cost(optimizer.step(new, nl.grad(cost)(new), state)[0])

    x, h = np.array([[1.0, -0.5]]), 1e-6
    slope = nl.jit(nl.grad(after)) if is_compiled else nl.grad(after)
    found = slope({"w": convert(be64, kind, x)})["w"].numpy()

    def value(w):
        v = -0.3 * w**2
        new = w + v
        return ((new + 0.5 * v - 0.3 * new**2) ** 3).sum()

    expected = [(value(x + h * e) - value(x - h * e)) / (2 * h) for e in np.eye(2)]
    np.testing.assert_allclose(found.ravel(), expected, rtol=1e-6)


def test_parameters_of_16_bits_have_states_of_32_bits(be):
    if lacks(be, "float16"):
        return
    optimizer = GDM(0.1, 0.5)
    params = [be.ones((1, 2), dtype="float16")]
    state = optimizer.init(params)
    for _ in range(2):
        params, state = optimizer.step(params, [be.array([[1.0, 2.0]], dtype="float16")], state)
    assert (params[0].dtype, state["velocity"][0].dtype) == ("float16", "float32")
    np.testing.assert_allclose(params[0].get(), [[1 - 0.1 - 0.15, 1 - 0.2 - 0.3]], rtol=2e-3)


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda o, p, g, s: o.step(p, {"w": g["w"]}, s),
            ValueError,
            "containers, {'w': *, 'b': *}, got {'w': *}. Pass",
        ),
        (
            lambda o, p, g, s: o.step(p, g | {"c": g["w"]}, s),
            ValueError,
            "got {'w': *, 'b': *, 'c': *}. Pass the gradient",
        ),
        (lambda o, p, g, s: o.step(p, g | {"w": g["b"]}, s), ValueError, "gradients['w'] of the shape (2, 3), got"),
        (lambda o, p, g, s: o.step(p, g | {"w": 1.0}, s), ValueError, "gradients['w'] of the shape (2, 3), got"),
        (lambda o, p, g, s: o.step(p, g | {"w": None}, s), TypeError, "as gradients and states, got None. Start"),
        (lambda o, p, g, s: o.step(p | {"w": 2}, g, s), TypeError, "got 2 as parameters['w']. Cast it"),
        (lambda o, p, g, s: o.step(p | {"w": s["t"]}, g, s), TypeError, "of int32 as parameters['w']. Cast it"),
        (lambda o, p, g, s: o.init({"w": None}), TypeError, "Adam.init: expected arrays or tensors of floats"),
        (
            lambda o, p, g, s: o.step(p, g, RMSProp().init(p)),
            TypeError,
            "mean_square. Start with Adam.init(parameters)",
        ),
        (lambda o, p, g, s: o.step(p, g, 3), TypeError, "got 3. Start with Adam.init(parameters), or pass epoch=3."),
        (
            lambda o, p, g, s: o.step(p, g, o.init([p["w"]])),
            ValueError,
            "expected the state mean in the same containers",
        ),
        (lambda o, p, g, s: o.step(p, g, s, "one"), TypeError, "expected a number for the epoch, got 'one'"),
        (lambda o, p, g, s: LossScaling(o).init(p), TypeError, "Use an optimizer such as Adam() for each part of"),
        (lambda o, p, g, s: MultiOptimizer({"default": o}).step(p, g, s), TypeError, "got MultiOptimizer. Use an"),
        (lambda o, p, g, s: Distributed(o).step(p, g, s), TypeError, "got Distributed. Use an optimizer such as"),
        (lambda o, p, g, s: Optimizer().init(p), TypeError, "expected an optimizer with an update_rule"),
    ],
)
def test_what_does_not_match_is_one_error(be, is_compiled, call, error, message):
    params = {"w": be.ones((2, 3), name="w"), "b": be.ones((2, 1))}
    optimizer = Adam()
    state = optimizer.init(params)
    f = nl.jit(lambda p, s: call(optimizer, p, p, s)) if is_compiled else lambda p, s: call(optimizer, p, p, s)
    with pytest.raises(error, match=re.escape(message)):
        f(params, state)


def test_containers_without_a_state_are_an_error_that_names_it(be):
    params = {"w": be.ones((2, 3))}
    with pytest.raises(TypeError, match=r"optimizer.step\(parameters, gradients, optimizer.init\(parameters\)\)"):
        Adam().step(params, params)
