"""The update of parameters: one pass, states, rounding of 16-bit weights, descriptions, arguments and errors."""

from __future__ import annotations

import copy
import json
import math
from itertools import pairwise

import numpy as np
import pytest
from helpers.allocations import buffers
from helpers.optimizer_equations import (
    GDM,
    MAKERS,
    Layer,
    N,
    every_equation,
    gdm,
    gradients,
    network,
    textbook,
    train,
    weights,
)
from helpers.runtimes import lacks
from hypothesis import given, settings, strategies as st

import neonlite as nl
from neonlite.backend.planning.assignment import CompiledAssignment
from neonlite.backend.runtimes.cuda.simulator import SimulatedGPU
from neonlite.optimizers import (
    Adadelta,
    Adagrad,
    Adam,
    AdamW,
    CosineSchedule,
    ExpSchedule,
    GradientDescentMomentum,
    MultiOptimizer,
    Optimizer,
    PolySchedule,
    PowerSchedule,
    RMSProp,
    Schedule,
    ShiftAdaMax,
    ShiftSchedule,
    StepSchedule,
    WarmupSchedule,
    get_param_list,
)
from neonlite.optimizers.optimizer import merge_contiguous, round_stochastically


class Pair(Layer):
    """A layer with two weights, as a convolution with a bias."""

    def __init__(self, name, first, second):
        self.name, self.parts = name, [first, second]

    def get_params(self):
        return [part.get_params() for part in self.parts]


# --- one pass ------------------------------------------------------------------------------------------------------


@every_equation
def test_one_buffer_or_many_give_the_same_bits(be, name):
    steps = 10 if be.name in ("cpu", "mkl") else 3
    one, many = (train(MAKERS[name](), network(be, flat), steps) for flat in (True, False))
    for x, y in zip(one, many, strict=True):
        if "clipped" in name:  # the squares of the norm are added up in another order
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(x, y)


@every_equation
def test_one_buffer_is_one_plan_and_no_step_creates_another(be, monkeypatch, name):
    optimizer, layers = MAKERS[name](), network(be)
    optimizer.schedule = ExpSchedule(0.1)
    optimizer.cuda_graphs = False  # run each update without a graph
    train(optimizer, layers, 2)
    calls, plans, run = [], len(be.plan_cache), CompiledAssignment.__call__
    monkeypatch.setattr(CompiledAssignment, "__call__", lambda update: calls.append(len(update.tensors)) or run(update))
    for epoch in range(5):
        optimizer.optimize(layers, epoch)
    num_parameters = 1 if optimizer.merges_parameters else len(layers)
    # no copy of weights and states: one assignment
    assert calls == [num_parameters * (1 + len(optimizer.state_names))] * 5
    assert len(be.plan_cache) == plans


def test_parameters_that_are_adjacent_are_updated_as_one(cpu):
    layers, optimizer = network(cpu), GDM(0.1, 0.9)
    train(optimizer, [layers[1], layers[3], layers[0]], 1)  # 2 is in between
    (program,) = optimizer._programs.values()
    assert sorted(t.shape for t in program.targets) == [(1, 7), (1, 7), (16, 1), (16, 1)]  # weights and velocities


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize(
    "name", ["momentum, clipped", "rmsprop", "adagrad", "adadelta", "adamw, clipped", "shiftadamax"]
)
def test_a_step_allocates_nothing(cpu, name, flat):
    assert max(buffers(lambda: np.exp(np.zeros(1000) + 1))) == 8000
    layers = network(cpu, flat, [(300, 500), (300, 1), (300, 20)])  # one after another, too many for one block
    optimizer = MAKERS[name]()
    optimizer.schedule = ExpSchedule(0.1)
    train(optimizer, layers, 2)
    assert buffers(lambda: optimizer.optimize(layers, 7)) == []


@settings(max_examples=40)
@given(st.permutations(range(5)), st.permutations(range(5)), st.sets(st.integers(0, 4), min_size=1), st.booleans())
def test_no_layout_changes_the_weights(order, gradient_order, chosen, gap):
    be = nl.Backend("cpu", batch_size=N)
    shapes = [(2, 3), (1, 1), (4, 2), (3, 1), (1, 5)]
    expected = network(be, False, shapes)

    def laid_out(order):
        whole, start, result = be.zeros((100, 1)), 3, {}
        for i in order:
            result[i] = whole[start : start + math.prod(shapes[i])].reshape(shapes[i])
            start += math.prod(shapes[i]) + gap
        return result

    w, dw = laid_out(order), laid_out(gradient_order)
    layers = [Layer(f"layer{i}", w[i], dw[i]) for i in range(5)]
    for layer, other in zip(layers, expected, strict=True):
        layer.W[:] = other.W
    result = train(AdamW(), [layers[i] for i in chosen], 3)
    for x, y in zip(result, train(AdamW(), [expected[i] for i in chosen], 3), strict=True):
        np.testing.assert_array_equal(x, y)
    for i in {0, 1, 2, 3, 4} - chosen:
        np.testing.assert_array_equal(layers[i].W.get(), expected[i].W.get())


@settings(max_examples=60)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=8), st.data())
def test_merge_contiguous_keeps_every_element_and_merges_adjacent_views(sizes, data):
    be = nl.Backend("cpu")
    spans = list(pairwise(np.cumsum([0, *sizes]).tolist()))
    whole = be.array(np.arange(sum(sizes) + 1.0))
    spans = [span for span in spans if data.draw(st.booleans())]
    parts = [(whole[a:b],) for a, b in spans]
    rows = merge_contiguous(parts)
    assert [x for (t,) in rows for x in t.get().ravel()] == [x for a, b in spans for x in range(a, b)]
    assert len(rows) == len(spans) - sum(x[1] == y[0] for x, y in pairwise(spans))
    assert all(t.root is whole for (t,) in rows)


def test_views_with_gaps_and_in_a_different_order_are_updated_in_place(be):
    for view in (lambda t: t[:, 1:4:2], lambda t: t.T, lambda t: t[2:4]):
        whole, errors = be.ones((5, 6)), be.array(np.arange(30.0).reshape(5, 6))
        layer = Layer("a", view(whole), view(errors))
        be.bsz = 2
        optimizer = GDM(0.1, 0.9)
        for _ in range(2):
            optimizer.optimize([layer], 0)
        values, part = np.ones((5, 6)), view(be.array(np.arange(30.0).reshape(5, 6))).get() / 2
        np.testing.assert_allclose(layer.W.get(), 1 - 0.1 * part * (1 + 1.9), rtol=1e-5)
        layer.W[:] = 1
        np.testing.assert_array_equal(whole.get(), values)


def test_memory_of_another_library_is_updated_in_place():
    be, values, errors = nl.Backend("cpu", batch_size=1), np.ones(10, np.float32), np.ones(10, np.float32)
    w, dw = be.from_dlpack(values), be.from_dlpack(errors)
    layers = [Layer("a", w[:4], dw[:4]), Layer("b", w[4:9], dw[4:9])]
    GDM(0.5, 0.9).optimize(layers, 0)
    np.testing.assert_array_equal(values, [0.5] * 9 + [1])
    halves = np.ones(6, np.float32)  # they touch, and yet no tensor holds both
    x, y = be.from_dlpack(halves[:3]), be.from_dlpack(halves[3:])
    ones = be.ones((6, 1))
    GDM(0.5, 0).optimize([Layer("a", x, ones[:3]), Layer("b", y, ones[3:])], 0)
    np.testing.assert_array_equal(halves, [0.5] * 6)


# --- states --------------------------------------------------------------------------------------------------------


def test_states_are_allocated_on_first_use_named_and_contiguous(be):
    layers = network(be)
    train(Adam(), layers, 1)
    for layer in layers:
        assert [x.name for x in layer.states] == [f"{layer.W.name}.mean", f"{layer.W.name}.mean_square"]
        assert [x.shape for x in layer.states] == [layer.W.shape] * 2
    for k in range(2):
        assert len({id(layer.states[k].root) for layer in layers}) == 1
        assert [layer.states[k].storage_offset for layer in layers] == [layer.W.storage_offset for layer in layers]
    g = layers[0].dW.get() / N
    np.testing.assert_allclose(layers[0].states[0].get(), 0.1 * g, rtol=1e-5)
    np.testing.assert_allclose(layers[0].states[1].get(), 0.001 * g * g, rtol=1e-5)


@pytest.mark.parametrize("name", ["momentum", "adam", "adamw", "adadelta", "rmsprop"])
def test_resumed_training_gives_the_same_bits(be, name):
    layers, optimizer = network(be), MAKERS[name]()
    train(optimizer, layers, 4)
    saved = [(layer.W.get(), [x.get() for x in layer.states]) for layer in layers]
    state = json.loads(json.dumps(optimizer.get_state()))
    expected = train(optimizer, layers, 4)
    again, other = network(be), MAKERS[name]()
    for layer, (w, states) in zip(again, saved, strict=True):
        layer.W[:] = w
        layer.states.extend(be.array(x) for x in states)
    other.set_state(state)
    for x, y in zip(train(other, again, 4), expected, strict=True):
        np.testing.assert_array_equal(x, y)
    assert len({id(layer.states[0].root) for layer in again}) == 1  # brought together


def test_states_of_a_wrong_number_are_rejected(cpu):
    layers = network(cpu)
    layers[0].states.append(cpu.zeros((4, 3)))
    with pytest.raises(ValueError, match=r"Adam: expected 2 states of the shape of W0 \(4, 3\), got .* Empty the list"):
        train(Adam(), layers, 1)
    layers[0].states.clear()
    train(Adam(), layers, 1)


def test_emptied_states_start_at_zero_again(cpu):
    layers, optimizer = network(cpu), GDM(0.1, 0.9)
    train(optimizer, layers, 3)
    for layer in layers:
        layer.states.clear()
    before = weights(layers)
    gs = gradients(layers, 9)
    optimizer.optimize(layers, 0)
    for w, x, g in zip(weights(layers), before, gs, strict=True):
        np.testing.assert_allclose(w, x - 0.1 * g / N, rtol=1e-4, atol=1e-5)


def test_two_networks_may_alternate(cpu):
    one, two = network(cpu, seed=1), network(cpu, seed=2)
    optimizer, alone = GDM(0.1, 0.9), GDM(0.1, 0.9)
    for _ in range(3):
        train(optimizer, one, 1)
        train(optimizer, two, 1)
    other = network(cpu, seed=2)
    for _ in range(3):
        train(alone, other, 1)
    for x, y in zip(weights(two), weights(other), strict=True):
        np.testing.assert_array_equal(x, y)
    assert optimizer.t == 3  # of the network that was updated last


def test_a_new_network_is_not_mistaken_for_a_deleted_one(cpu):
    optimizer = GDM(1.0, 0.0)
    cpu.bsz = 1
    for w, dw in [(cpu.zeros((6, 1)), cpu.ones((6, 1))) for _ in range(40)]:
        layers = [Layer("a", w[i : i + 3], dw[i : i + 3]) for i in (0, 3)]  # Python reuses the ids of deleted tensors
        optimizer.optimize(layers, 0)
        np.testing.assert_array_equal(w.get(), -np.ones((6, 1)))
        del layers
    assert len(optimizer._programs) <= 16


def test_a_parameter_group_is_cached(cpu, monkeypatch):
    layers, optimizer = network(cpu), Adam()
    train(optimizer, layers, 1)
    monkeypatch.setattr("neonlite.optimizers.optimizer.contiguous_runs", None)
    train(optimizer, layers, 1)


# --- results of get_params() --------------------------------------------------------------------------------------


def test_a_layer_may_have_several_weights_and_another_none(be):
    class Activation:
        has_params = False

    layers, expected, optimizer = network(be), network(be), GDM(0.1, 0.9)
    be.bsz = N
    for step in range(2):
        gradients(layers, step)
        optimizer.optimize([layers[3], Pair("conv", layers[0], layers[1]), Activation(), layers[2]], 0)
    for x, y in zip(weights(layers), train(GDM(0.1, 0.9), expected, 2), strict=True):
        np.testing.assert_array_equal(x, y)
    assert len(get_param_list([Pair("conv", layers[0], layers[1]), Activation(), layers[2]])) == 3
    optimizer.optimize([], 0)
    optimizer.optimize([Activation()], 0)
    assert optimizer.t == 2


def test_weights_of_several_dtypes_and_one_norm_over_them(cpu):
    layers = [*network(cpu, seed=1), *network(cpu, dtype="float64", seed=2)]
    before, cpu.bsz = weights(layers), N
    gs = gradients(layers, 0)
    GDM(0.1, 0.9, gradient_clip_norm=0.5).optimize(layers, 0)
    expected = textbook(gdm, before, [gs], [0], clip_norm=0.5, lr=0.1, mu=0.9)
    for w, x, layer in zip(weights(layers), expected, layers, strict=True):
        np.testing.assert_allclose(w, x, rtol=1e-5)
        assert {w.dtype} == {state.dtype for state in layer.states}


def test_arguments_can_be_changed_between_steps(cpu):
    layers, optimizer = network(cpu), GDM(0.5, 0.0)
    train(optimizer, layers, 1)
    before, optimizer.learning_rate, cpu.bsz = weights(layers), 0.25, 2 * N
    gs = gradients(layers, 1)
    optimizer.optimize(layers, 0)
    for w, x, g in zip(weights(layers), before, gs, strict=True):
        np.testing.assert_allclose(w, x - 0.25 * g / (2 * N), rtol=1e-5, atol=1e-5)


def test_a_custom_optimizer_implements_update_rule(be):
    class SignDescent(Optimizer):
        state_names = ("steps",)

        def __init__(self, learning_rate):
            super().__init__()
            self.learning_rate = learning_rate

        def update_rule(self, be, w, g, states, rate):
            return [w - rate * be.sgn(g), states[0] + 1]

    layers, optimizer = network(be), SignDescent(0.25)
    be.bsz, before = N, weights(layers)
    gs = [gradients(layers, 0), optimizer.optimize(layers, 0)][0]
    for w, x, g, layer in zip(weights(layers), before, gs, layers, strict=True):
        np.testing.assert_allclose(w, x - 0.25 * np.sign(g), rtol=1e-6)
        np.testing.assert_array_equal(layer.states[0].get(), np.ones(w.shape))
    plain = Optimizer()
    plain.learning_rate = 0.1
    with pytest.raises(NotImplementedError, match="Optimizer: expected a method update_rule"):
        plain.optimize(network(be), 0)


# --- halves --------------------------------------------------------------------------------------------------------


@every_equation
def test_float16_weights_are_updated_in_float32_and_rounded_once(be, name):
    if lacks(be, "float16"):
        return
    layers = network(be, dtype="float16")
    w = weights(layers)
    wide = network(be)
    for layer, value in zip(wide, w, strict=True):
        layer.W[:] = value
    optimizer, other = MAKERS[name](), MAKERS[name]()
    be.bsz = N
    for step in range(3):
        for layer, g in zip(wide, gradients(layers, step), strict=True):
            layer.dW[:] = g
        optimizer.optimize(layers, step)
        other.optimize(wide, step)
        for layer, x in zip(layers, wide, strict=True):
            assert layer.W.info.dtype == "float16"
            np.testing.assert_array_equal(layer.W.get(), x.W.get().astype(np.float16))
            assert {state.info.dtype for state in layer.states} <= {"float32"}
            x.W[:] = layer.W


def around(x, dtype="float16"):
    """The numbers of 16 bits below and above."""
    with np.errstate(over="ignore"):
        near = x.astype(dtype)
        ends = np.array([-np.inf, np.inf]).astype(dtype)
        low = np.where(near > x, np.nextafter(near, ends[0]), near)
        high = np.where(near < x, np.nextafter(near, ends[1]), near)
    return low.astype(np.float32), high.astype(np.float32)


def drawn(be, x, dtype="float16"):
    return be.evaluate([round_stochastically(be, be.array(x, dtype="float32"), dtype)])[0].get()


@settings(max_examples=60)
@given(st.lists(st.floats(width=32), min_size=1, max_size=30))
def test_stochastic_rounding_gives_a_neighbor_and_keeps_representable_values(values):
    be = nl.Backend("cpu", rng_seed=len(values))
    x = np.array(values, np.float32)[:, None]
    result = drawn(be, x)
    low, high = around(x)
    large = np.abs(x) > 65504
    assert ((result == low) | (result == high) | np.isnan(x) | large).all()
    assert (np.isnan(result) == np.isnan(x)).all()
    with np.errstate(over="ignore"):
        halves = x.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(drawn(be, halves), halves)
    np.testing.assert_array_equal(result[large], halves[large])


@pytest.mark.parametrize("datatype", ["float16", "float32", "float64"])
def test_stochastic_rounding_is_unbiased(be, datatype):
    if lacks(be, "float16"):
        return
    be = nl.Backend(be.name, rng_seed=3, default_dtype=datatype)
    count = 40_000
    x = [0.1, -0.1, 1 / 3, 1 - 1e-4, 1 + 1e-4, -1 - 1e-6, 2.0**-13 * 0.9999, 2.0**-14 * 1.0001, 1e-5, -3e-8, 1e-8]
    x = np.array([*x, 2049.3, 65503, 2.0**-14 - 2.0**-26, 2.0**-44, 1.9997, -63.999, 1.25e-4], np.float32)
    low, high = (side.astype(np.float64) for side in around(x))
    result = drawn(be, np.repeat(x[:, None], count, axis=1)).astype(np.float64)
    assert ((result == low[:, None]) | (result == high[:, None])).all()
    p = (x.astype(np.float64) - low) / (high - low)
    assert (p > 0).all()
    error = (result.mean(axis=1) - x) / (high - low)
    assert (np.abs(error) < 5 * np.sqrt(p * (1 - p) / count) + 1 / count).all()


@pytest.mark.parametrize("datatype", ["bfloat16", "float32"])
def test_stochastic_rounding_is_unbiased_in_bfloat16(datatype):
    be, count = nl.Backend(SimulatedGPU(), rng_seed=3, default_dtype=datatype), 4000
    x = np.array([0.1, -1 / 3, 1 + 1e-3, -1 - 1e-2, 1.999, 257.3, -3e38, 1e-30, 2.0**-130 * 1.2], np.float32)
    low, high = (side.astype(np.float64) for side in around(x, "bfloat16"))
    result = drawn(be, np.repeat(x[:, None], count, axis=1), "bfloat16").astype(np.float64)
    assert ((result == low[:, None]) | (result == high[:, None])).all()
    p = (x.astype(np.float64) - low) / (high - low)
    error = (result.mean(axis=1) - x) / (high - low)
    assert (np.abs(error) < 5 * np.sqrt(p * (1 - p) / count) + 1 / count).all()
    halves = around(x, "bfloat16")[0][:, None]
    np.testing.assert_array_equal(drawn(be, halves, "bfloat16"), halves)


def test_steps_too_small_for_float16_are_not_lost_on_average(cpu):
    cpu.bsz, result = 1, {}
    for stochastic in (False, True):
        layer = Layer("a", cpu.ones((100, 10), "float16"), cpu.ones((100, 10), "float16"))
        optimizer = GDM(2.0**-14, 0.0, stochastic_round=stochastic)
        for _ in range(100):
            optimizer.optimize([layer], 0)
        result[stochastic] = layer.W.get().astype(np.float64).mean()
    assert result[False] == 1
    assert result[True] == pytest.approx(1 - 100 * 2.0**-14, abs=2e-4)


def test_stochastic_rounding_has_no_effect_on_other_dtypes(be):
    state = be.rng_get_state()
    for x, y in zip(train(Adam(True), network(be), 3), train(Adam(), network(be), 3), strict=True):
        np.testing.assert_array_equal(x, y)
    assert be.rng_get_state() == state


# --- descriptions --------------------------------------------------------------------------------------------------


DESCRIBED = [
    *(make() for make in MAKERS.values()),
    GDM(0.1, 0.9, True, 0.1, 1.0, 2.0, 3.0, "mine", WarmupSchedule(2, PolySchedule(9, 0.5)), True),
    RMSProp(schedule=Schedule([1, 2], [0.1, 0.2])),
    MultiOptimizer({"default": Adam(schedule=CosineSchedule(5)), "Bias": GDM(0.1, 0)}, "both"),
]


@pytest.mark.parametrize("optimizer", DESCRIBED, ids=lambda optimizer: optimizer.classnm)
def test_a_description_is_data_and_creates_the_same_optimizer(cpu, optimizer):
    description = json.loads(json.dumps(optimizer.get_description()))
    assert description["type"] == f"{type(optimizer).__module__}.{optimizer.classnm}"
    again = type(optimizer).gen_class(description["config"])
    assert again.get_description() == optimizer.get_description()
    assert again.name == optimizer.name
    if not isinstance(optimizer, MultiOptimizer):
        for x, y in zip(train(again, network(cpu), 3), train(optimizer, network(cpu), 3), strict=True):
            np.testing.assert_array_equal(x, y)


def test_a_description_of_an_unknown_type_is_rejected():
    config = {"learning_rate": 0.1, "momentum_coef": 0.9, "schedule": {"type": "os.system", "config": {}}}
    with pytest.raises(
        ValueError, match=r"the type of a defined class, got 'os.system'.*A custom class must be defined first"
    ):
        GDM.gen_class(config)


def test_arguments_are_stored_as_attributes():
    optimizer = RMSProp(decay_rate=np.float32(0.5), learning_rate=np.int64(1), gradient_clip_value=2)
    assert (type(optimizer.decay_rate), type(optimizer.learning_rate)) == (float, int)
    assert (optimizer.epsilon, optimizer.gradient_clip_value, optimizer.stochastic_round) == (1e-6, 2, False)
    assert repr(ExpSchedule(0.1)) == "ExpSchedule(decay=0.1)"
    assert "RMSProp(stochastic_round=False, decay_rate=0.5, learning_rate=1, " in repr(optimizer)


# The signatures of the table, in order; neonlite adds to their ends, and has defaults where neon has none.
SIGNATURES = {
    GDM: "learning_rate=0.01 momentum_coef=0.9 stochastic_round=False wdecay=0.0 gradient_clip_norm=None "
    "gradient_clip_value=None param_clip_value=None name=None schedule nesterov=False",
    RMSProp: "stochastic_round=False decay_rate=0.95 learning_rate=0.002 epsilon=1e-06 gradient_clip_norm=None "
    "gradient_clip_value=None param_clip_value=None name=None schedule",
    Adagrad: "stochastic_round=False learning_rate=0.01 epsilon=1e-06 gradient_clip_norm=None "
    "gradient_clip_value=None param_clip_value=None name=None",
    Adadelta: "stochastic_round=False decay=0.95 epsilon=1e-06 param_clip_value=None name=None",
    Adam: "stochastic_round=False learning_rate=0.001 beta_1=0.9 beta_2=0.999 epsilon=1e-08 gradient_clip_norm=None "
    "gradient_clip_value=None param_clip_value=None name='adam'",
    ShiftAdaMax: "stochastic_round=False learning_rate=0.002 beta_1=0.9 beta_2=0.999 epsilon=1e-08 schedule name=None",
}


@pytest.mark.parametrize("cls", SIGNATURES, ids=lambda cls: cls.__name__)
def test_the_arguments_are_neons_in_neons_order(cls):
    import inspect

    result = [
        p.name if p.name == "schedule" or p.default is p.empty else f"{p.name}={p.default!r}"
        for p in inspect.signature(cls).parameters.values()
    ]
    assert " ".join(result).startswith(SIGNATURES[cls])


# --- mistakes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (
            lambda: GDM(0.1, 0, nesterov=True),
            ValueError,
            "expected a positive momentum_coef with nesterov=True, got 0",
        ),
        (lambda: GDM(-0.1, 0.9), ValueError, "expected a finite number >= 0 for learning_rate, got -0.1"),
        (lambda: GDM(math.nan, 0.9), ValueError, "expected a finite number >= 0 for learning_rate, got nan"),
        (lambda: GDM(None, 0.9), TypeError, "GradientDescentMomentum: expected a number for learning_rate, got None"),
        (lambda: GDM(0.1, None), TypeError, "expected a number for momentum_coef, got None"),
        (lambda: GDM("0.1", 0.9), TypeError, "expected a number for learning_rate, got '0.1'"),
        (lambda: GDM(np.array(0.1), 0.9), TypeError, r"got array\(0\.1\)\. Convert it with float\(\)\."),
        (lambda: GDM(0.1, 1.0), ValueError, "expected a finite number >= 0 and < 1 for momentum_coef, got 1.0"),
        (lambda: GDM(0.1, 0.9, wdecay=-1), ValueError, "expected a finite number >= 0 for wdecay, got -1"),
        (lambda: GDM(0.1, 0.9, schedule=None), TypeError, "expected a Schedule.* for schedule, got None"),
        (lambda: GDM(0.1, 0.9, schedule=Schedule), TypeError, "expected a Schedule.* for schedule, got <class"),
        (lambda: RMSProp(decay_rate=1.5), ValueError, "expected a finite number >= 0 and < 1 for decay_rate, got 1.5"),
        (lambda: RMSProp(epsilon=-1e-6), ValueError, "expected a finite number >= 0 for epsilon, got -1e-06"),
        (lambda: RMSProp(gradient_clip_norm=0), ValueError, "expected a finite number > 0 for gradient_clip_norm"),
        (
            lambda: RMSProp(gradient_clip_norm=-1.0),
            ValueError,
            "finite number > 0 for gradient_clip_norm, got -1",
        ),
        (lambda: Adagrad(gradient_clip_value="a"), TypeError, "expected a number for gradient_clip_value, got 'a'"),
        (lambda: Adadelta(decay=-0.1), ValueError, "expected a finite number >= 0 and < 1 for decay, got -0.1"),
        (
            lambda: Adadelta(param_clip_value=math.inf),
            ValueError,
            "expected a finite number > 0 for param_clip_value",
        ),
        (lambda: Adam(beta_1=1.0), ValueError, "expected a finite number >= 0 and < 1 for beta_1, got 1.0"),
        (lambda: ShiftAdaMax(beta_2=math.nan), ValueError, "expected a finite number >= 0 and < 1 for beta_2, got nan"),
        (lambda: AdamW(wdecay=None), TypeError, "AdamW: expected a number for wdecay, got None"),
        (
            lambda: StepSchedule([1, 2], [0.1]),
            ValueError,
            "two lists of the same length, epochs and rates, got",
        ),
        (lambda: StepSchedule(3, 0.1), ValueError, "StepSchedule: expected two lists of the same length"),
        (lambda: Schedule(3, [0.1]), ValueError, "Schedule: expected two lists of the same length"),
        (
            lambda: StepSchedule([2, 1], [0.1, 0.2]),
            ValueError,
            r"increasing epochs in step_config, got \[2, 1\]",
        ),
        (lambda: Schedule([1, None], 0.5), TypeError, "expected a number for an epoch of step_config, got None"),
        (lambda: StepSchedule([1], [-0.1]), ValueError, "expected a finite number >= 0 for a rate of change, got -0.1"),
        (
            lambda: PowerSchedule(0, 0.1),
            ValueError,
            "PowerSchedule: expected .* >= 1 for step_config, got 0",
        ),
        (lambda: ExpSchedule(math.nan), ValueError, "ExpSchedule: expected a finite number >= 0 for decay, got nan"),
        (lambda: PolySchedule(0, 1), ValueError, "expected a finite number >= 1 for total_epochs, got 0"),
        (lambda: ShiftSchedule(None), TypeError, "expected a number for interval, got None"),
        (lambda: CosineSchedule(5, -1), ValueError, "expected a finite number >= 0 for final, got -1"),
        (lambda: WarmupSchedule(2, 0.1), TypeError, "WarmupSchedule: expected a Schedule.* for schedule, got 0.1"),
    ],
)
def test_arguments_are_checked_when_they_are_given(make, error, words):
    with pytest.raises(error, match=words):
        make()


def bad_rate(rate):
    class Mine(Schedule):
        def get_learning_rate(self, learning_rate, epoch):
            return rate

    return Mine()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda layers, _: setattr(layers[0].W.backend, "bsz", 0), ValueError, "expected a batch size, got none"),
        (
            lambda _, opt: setattr(opt, "schedule", bad_rate(math.nan)),
            ValueError,
            "finite number >= 0 for the learning rate of Mine, epoch=3, got nan",
        ),
        (
            lambda _, opt: setattr(opt, "schedule", bad_rate(None)),
            TypeError,
            "expected a number for the learning rate of Mine, epoch=3, got None",
        ),
        (lambda layers, _: layers.append(3), TypeError, r"expected a list of layers, each with get_params\(\), got 3"),
        (
            lambda layers, _: setattr(layers[2], "W", None),
            TypeError,
            r"two tensors and a list, .*Allocate the layers",
        ),
        (
            lambda layers, _: setattr(layers[2], "states", None),
            TypeError,
            r"get_params\(\): expected \(\(W, dW\), states\) or a list",
        ),
        (
            lambda layers, _: setattr(layers[3], "dW", layers[0].dW),
            ValueError,
            r"one shape and of float dtypes, got W3 \(1, 7\), float32, and dW0 \(4, 3\), float32",
        ),
        (
            lambda layers, _: setattr(layers[3], "W", layers[3].W.backend.zeros((1, 7), "int32")),
            ValueError,
            r"one shape and of float dtypes, got a tensor \(1, 7\), int32",
        ),
        (
            lambda layers, _: layers.extend(network(nl.Backend("cpu"), False)),
            ValueError,
            r"one backend, got W0 \(4, 3\) of <backend cpu \d+> and W0 \(4, 3\) of .*Use an optimizer for each backend",
        ),
    ],
)
def test_a_failed_step_changes_nothing(cpu, change, error, words):
    layers, optimizer = network(cpu, flat=False), Adam()
    train(optimizer, layers, 2)
    original = list(layers)
    tensors = [x for layer in layers for x in (layer.W, *layer.states)]
    before = [x.get() for x in tensors]
    change(layers, optimizer)
    with pytest.raises(error, match=words):
        optimizer.optimize(layers, 3)
    for x, y in zip(tensors, before, strict=True):
        np.testing.assert_array_equal(x.get(), y)
    assert (optimizer.t, len(original)) == (2, 4)


def test_an_epoch_that_is_not_a_number_is_rejected(cpu):
    with pytest.raises(TypeError, match="Adam: expected a number for the epoch, got None"):
        train(Adam(), network(cpu), 1, epoch=lambda step: None)


def test_a_copy_of_an_optimizer_updates_the_weights_it_is_given(be):
    be.bsz = 1
    layer = Layer("x", be.ones((2, 3)), be.ones((2, 3)))
    optimizer = GradientDescentMomentum(1.0, 0.0)
    optimizer.optimize([layer], 0)
    copy.deepcopy(optimizer).optimize([layer], 0)
    assert layer.W.get().tolist() == [[-1.0] * 3] * 2


RATE_OR_ROUND = [Adam, AdamW, RMSProp, Adagrad, ShiftAdaMax]


@pytest.mark.parametrize("make", RATE_OR_ROUND)
@pytest.mark.parametrize("number", [1, 0, 0.5, np.int64(2), np.float32(0.25)])
def test_a_number_as_first_argument_is_the_learning_rate(make, number):
    optimizer = make(number)
    assert (optimizer.learning_rate, optimizer.stochastic_round) == (number, False)
    assert optimizer.get_rate(0) == make(learning_rate=number).get_rate(0)


@pytest.mark.parametrize("make", RATE_OR_ROUND)
def test_a_number_beside_a_learning_rate_is_stochastic_round_as_in_neon_or_an_error(make):
    optimizer = make(1, learning_rate=0.5)
    assert (optimizer.learning_rate, optimizer.stochastic_round) == (0.5, True)
    with pytest.raises(TypeError, match=r"expected one learning rate, got 0\.1 and 0\.5"):
        make(0.1, learning_rate=0.5)


def test_arguments_after_a_learning_rate_keep_their_positions():
    assert Adam(0, 0.5).learning_rate == 0.5
    assert (optimizer := RMSProp(1, 0.8)).learning_rate == 1
    assert optimizer.decay_rate == 0.8


def test_a_subclass_with_another_constructor_may_pass_on_a_learning_rate():
    class Mine(Adam):
        def __init__(self, steps, rate):
            super().__init__(rate)
            self.steps = steps

    assert (Mine(5, 0.5).learning_rate, Mine(5, 0.5).steps) == (0.5, 5)


@pytest.mark.parametrize("make", [*RATE_OR_ROUND, Adadelta])
def test_a_boolean_as_first_argument_is_stochastic_round_as_in_neon(make):
    default = getattr(make(), "learning_rate", None)
    for value in (True, False, np.True_):
        optimizer = make(value)
        assert (optimizer.stochastic_round, getattr(optimizer, "learning_rate", None)) == (bool(value), default)
    assert make(stochastic_round=1).stochastic_round is True  # scripts of neon pass args.rounding
