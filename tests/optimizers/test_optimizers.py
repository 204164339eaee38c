"""Tests of optimizers and schedules against their equations in NumPy, on every runtime."""

from __future__ import annotations

import copy
import json
import math
from itertools import pairwise

import numpy as np
import pytest
from helpers.allocations import buffers
from helpers.runtimes import lacks
from hypothesis import given, settings
from hypothesis import strategies as st

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

N = 32  # the batch size
SHAPES = [(4, 3), (4, 1), (2, 3, 2), (1, 7)]


class Layer:
    """The attributes of a layer that an optimizer uses."""

    def __init__(self, name, W, dW, states=None):
        self.name, self.W, self.dW, self.states = name, W, dW, [] if states is None else states

    def get_params(self):
        return ((self.W, self.dW), self.states)


class Bias(Layer):
    pass


class Pair(Layer):
    """A layer with two weights, as a convolution with a bias."""

    def __init__(self, name, first, second):
        self.name, self.parts = name, [first, second]

    def get_params(self):
        return [part.get_params() for part in self.parts]


def network(be, flat=True, shapes=SHAPES, dtype=None, seed=0):
    """Return layers whose weights are views of one buffer, or separate tensors."""
    rng, sizes, layers, start = np.random.default_rng(seed), [math.prod(s) for s in shapes], [], 0
    buffers = be.zeros((sum(sizes), 1), dtype), be.zeros((sum(sizes), 1), dtype)
    for i, (shape, size) in enumerate(zip(shapes, sizes, strict=True)):
        w, dw = (x[start : start + size].reshape(shape) if flat else be.zeros(shape, dtype) for x in buffers)
        w[:] = rng.normal(size=shape)
        w.name, dw.name = f"W{i}", f"dW{i}"
        layers.append(Layer(f"layer{i}", w, dw))
        start += size
    return layers


def gradients(layers, step):
    """Set and return gradients from 1e-3 to 1e2, some exactly 0, the same for every optimizer and runtime."""
    rng = np.random.default_rng(1000 + step)
    result = []
    for layer in layers:
        g = N * rng.normal(size=layer.W.shape) * 10.0 ** rng.uniform(-3, 2, layer.W.shape)
        g[rng.random(layer.W.shape) < 0.1] = 0
        layer.dW[:] = g
        result.append(layer.dW.get().astype(np.float64))
    return result


def weights(layers):
    return [layer.W.get() for layer in layers]


def train(optimizer, layers, steps, epoch=lambda step: step // 3):
    layers[0].W.backend.bsz = N
    for step in range(steps):
        gradients(layers, step)
        optimizer.optimize(layers, epoch(step))
    return weights(layers)


# --- the equations, in plain NumPy ---------------------------------------------------------------------------------


def textbook(rule, w, gs, epochs, clip_norm=None, clip_value=None, clip_param=None, **options):
    """Update lists of float64 arrays by lists of gradients, one list a step."""
    w, memory = [x.astype(np.float64).copy() for x in w], [{} for _ in w]
    for step, (grads, epoch) in enumerate(zip(gs, epochs, strict=True)):
        norm = math.sqrt(sum((g**2).sum() for g in grads)) / N
        s = clip_norm / max(norm, clip_norm) if clip_norm else 1.0
        for i, g in enumerate(grads):
            g = s * g / N
            if clip_value:
                g = np.minimum(np.maximum(g, -clip_value), clip_value)
            w[i] = rule(w[i], g, memory[i], step + 1, epoch, **options)
            if clip_param:
                w[i] = np.minimum(np.maximum(w[i], -clip_param), clip_param)
    return w


def gdm(w, g, m, t, epoch, lr, mu, wd=0.0, nesterov=False, rate=lambda lr, epoch: lr):
    lr = rate(lr, epoch)
    if mu == 0:
        return (1 - lr * wd) * w - lr * g
    m["v"] = mu * m.get("v", 0) - lr * (g + wd * w)
    return w + mu * m["v"] - lr * (g + wd * w) if nesterov else w + m["v"]


def rmsprop(w, g, m, t, epoch, lr, d, eps):
    m["s"] = d * m.get("s", 0) + (1 - d) * g**2
    return w - g * lr / (np.sqrt(m["s"] + eps) + eps)


def adagrad(w, g, m, t, epoch, lr, eps):
    m["s"] = m.get("s", 0) + g**2
    return w - g * lr / np.sqrt(m["s"] + eps)


def adadelta(w, g, m, t, epoch, d, eps):
    m["g"] = d * m.get("g", 0) + (1 - d) * g**2
    dx = np.sqrt((m.get("x", 0) + eps) / (m["g"] + eps)) * g
    m["x"] = d * m.get("x", 0) + (1 - d) * dx**2
    return w - dx


def adam(w, g, m, t, epoch, lr, b1, b2, eps):
    m["m"] = b1 * m.get("m", 0) + (1 - b1) * g
    m["v"] = b2 * m.get("v", 0) + (1 - b2) * g**2
    return w - lr * math.sqrt(1 - b2**t) / (1 - b1**t) * m["m"] / (np.sqrt(m["v"]) + eps)


def adamw(w, g, m, t, epoch, lr, b1, b2, eps, wd):
    m["m"] = b1 * m.get("m", 0) + (1 - b1) * g
    m["v"] = b2 * m.get("v", 0) + (1 - b2) * g**2
    return w - lr * wd * w - lr * (m["m"] / (1 - b1**t)) / (np.sqrt(m["v"] / (1 - b2**t)) + eps)


def power_of_two(y):
    return np.sign(y) * 2.0 ** np.rint(np.log2(np.abs(y)))


def shiftadamax(w, g, m, t, epoch, lr, b1, b2, eps):
    m["m"] = b1 * m.get("m", 0) + (1 - b1) * g
    m["v"] = np.maximum(b2 * m.get("v", 0), np.abs(g))
    step = m["m"] * power_of_two(1 / (m["v"] + eps)) * power_of_two(lr / (1 - b1 ** (epoch + 1)))
    return np.clip(w - step, -1, 1)


CLIPS = {"gradient_clip_norm": 2.0, "gradient_clip_value": 3.0, "param_clip_value": 1.5}
SAME = {"clip_norm": 2.0, "clip_value": 3.0, "clip_param": 1.5}
GDM = GradientDescentMomentum

EQUATIONS = {
    "momentum": (lambda: GDM(0.01, 0.9), gdm, {"lr": 0.01, "mu": 0.9}),
    "no momentum": (lambda: GDM(0.01, 0), gdm, {"lr": 0.01, "mu": 0}),
    "nesterov": (lambda: GDM(0.01, 0.8, nesterov=True), gdm, {"lr": 0.01, "mu": 0.8, "nesterov": True}),
    "decay": (lambda: GDM(0.01, 0.9, wdecay=0.05), gdm, {"lr": 0.01, "mu": 0.9, "wd": 0.05}),
    "decay alone": (lambda: GDM(0.01, 0.0, wdecay=0.05), gdm, {"lr": 0.01, "mu": 0, "wd": 0.05}),
    "decay and nesterov": (
        lambda: GDM(0.01, 0.8, wdecay=0.05, nesterov=True),
        gdm,
        {"lr": 0.01, "mu": 0.8, "wd": 0.05, "nesterov": True},
    ),
    "momentum, a schedule": (
        lambda: GDM(0.01, 0.9, wdecay=0.05, schedule=PowerSchedule(2, 0.5)),
        gdm,
        {"lr": 0.01, "mu": 0.9, "wd": 0.05, "rate": lambda lr, epoch: lr * 0.5 ** (epoch // 2)},
    ),
    "momentum, clipped": (lambda: GDM(0.1, 0.9, wdecay=0.05, **CLIPS), gdm, {"lr": 0.1, "mu": 0.9, "wd": 0.05, **SAME}),
    "no momentum, clipped": (lambda: GDM(0.1, 0, **CLIPS), gdm, {"lr": 0.1, "mu": 0, **SAME}),
    "rmsprop": (lambda: RMSProp(), rmsprop, {"lr": 0.002, "d": 0.95, "eps": 1e-6}),
    "rmsprop, clipped": (
        lambda: RMSProp(False, 0.5, 0.1, 1e-3, **CLIPS),
        rmsprop,
        {"lr": 0.1, "d": 0.5, "eps": 1e-3, **SAME},
    ),
    "adagrad": (lambda: Adagrad(), adagrad, {"lr": 0.01, "eps": 1e-6}),
    "adagrad, clipped": (lambda: Adagrad(False, 0.1, 1e-2, **CLIPS), adagrad, {"lr": 0.1, "eps": 1e-2, **SAME}),
    "adadelta": (lambda: Adadelta(), adadelta, {"d": 0.95, "eps": 1e-6}),
    "adadelta, clipped": (
        lambda: Adadelta(False, 0.5, 1e-2, **CLIPS),
        adadelta,
        {"d": 0.5, "eps": 1e-2, **SAME},
    ),
    "adam": (lambda: Adam(), adam, {"lr": 0.001, "b1": 0.9, "b2": 0.999, "eps": 1e-8}),
    "adam, clipped": (
        lambda: Adam(False, 0.1, 0.5, 0.8, 1e-2, **CLIPS),
        adam,
        {"lr": 0.1, "b1": 0.5, "b2": 0.8, "eps": 1e-2, **SAME},
    ),
    "adamw": (lambda: AdamW(), adamw, {"lr": 0.001, "b1": 0.9, "b2": 0.999, "eps": 1e-8, "wd": 0.01}),
    "adamw, clipped": (
        lambda: AdamW(False, 0.1, 0.5, 0.8, 1e-2, wdecay=0.3, **CLIPS),
        adamw,
        {"lr": 0.1, "b1": 0.5, "b2": 0.8, "eps": 1e-2, "wd": 0.3, **SAME},
    ),
    "shiftadamax": (lambda: ShiftAdaMax(), shiftadamax, {"lr": 0.002, "b1": 0.9, "b2": 0.999, "eps": 1e-8}),
    "shiftadamax, fast": (
        lambda: ShiftAdaMax(False, 0.3, 0.5, 0.8, 1e-2),
        shiftadamax,
        {"lr": 0.3, "b1": 0.5, "b2": 0.8, "eps": 1e-2},
    ),
    "shiftadamax, clipped": (
        lambda: ShiftAdaMax(False, 0.3, 0.5, 0.8, 1e-2, gradient_clip_norm=2.0, gradient_clip_value=3.0),
        shiftadamax,
        {"lr": 0.3, "b1": 0.5, "b2": 0.8, "eps": 1e-2, "clip_norm": 2.0, "clip_value": 3.0},
    ),
}
MAKERS = {name: make for name, (make, _, _) in EQUATIONS.items()}
every_equation = pytest.mark.parametrize("name", EQUATIONS)


def compare(be, name, atol):
    make, rule, options = EQUATIONS[name]
    steps = 100 if be.name in ("cpu", "mkl") else 12
    layers, optimizer = network(be), make()
    be.bsz = N
    before, gs, epochs = weights(layers), [], [step // 3 for step in range(steps)]
    for step, epoch in enumerate(epochs):
        gs.append(gradients(layers, step))
        optimizer.optimize(layers, epoch)
    expected = textbook(rule, before, gs, epochs, **options)
    for w, x in zip(weights(layers), expected, strict=True):
        np.testing.assert_allclose(w, x, rtol=atol, atol=atol * max(1, np.abs(x).max()))
    assert optimizer.t == steps


@every_equation
def test_a_hundred_steps_follow_the_equation(be, name):
    compare(be, name, 1e-6)


@every_equation
def test_a_hundred_steps_in_float64_follow_it_to_the_last_digits(be64, name):
    compare(be64, name, 1e-12)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_every_optimizer_minimizes_a_quadratic_function(cpu, make):
    layers, optimizer = network(cpu), make()
    optimizer.learning_rate = 0.02
    cpu.bsz = N
    for layer in layers:
        layer.W[:] = 1.0
    for step in range(3000 if isinstance(optimizer, Adadelta | Adagrad) else 600):
        for layer in layers:
            layer.dW[:] = N * (layer.W - 0.5)
        optimizer.optimize(layers, step // 100)
    assert all(np.abs(w - 0.5).max() < 0.25 for w in weights(layers))


# --- the equations of PyTorch --------------------------------------------------------------------------------------


def eps_of_step(optimizer, t):
    for group in optimizer.param_groups:
        group["eps"] = 1e-3 / math.sqrt(1 - 0.9**t)


PYTORCH = {
    "momentum": (lambda: GDM(0.01, 0.9), lambda t, p: t.optim.SGD(p, 0.01, 0.9)),
    "decay": (lambda: GDM(0.01, 0.9, wdecay=0.1), lambda t, p: t.optim.SGD(p, 0.01, 0.9, weight_decay=0.1)),
    "nesterov": (lambda: GDM(0.01, 0.9, nesterov=True), lambda t, p: t.optim.SGD(p, 0.01, 0.9, nesterov=True)),
    "plain": (lambda: GDM(0.01, 0.0), lambda t, p: t.optim.SGD(p, 0.01)),
    "adagrad": (
        lambda: Adagrad(False, 0.05, 1e-3),  # epsilon under the root is the initial value of PyTorch's sum
        lambda t, p: t.optim.Adagrad(p, 0.05, initial_accumulator_value=1e-3, eps=0),
    ),
    "adadelta": (lambda: Adadelta(False, 0.8, 1e-3), lambda t, p: t.optim.Adadelta(p, 1.0, 0.8, 1e-3)),
    "adamw": (
        lambda: AdamW(False, 0.05, 0.8, 0.9, 1e-3, wdecay=0.2),
        lambda t, p: t.optim.AdamW(p, 0.05, (0.8, 0.9), 1e-3, weight_decay=0.2),
    ),
    "adam": (lambda: Adam(False, 0.05, 0.8, 0.9, 1e-3), lambda t, p: t.optim.Adam(p, 0.05, (0.8, 0.9), 1e-3)),
}


@pytest.mark.parametrize("name", PYTORCH)
def test_optimizers_that_pytorch_has_too_give_the_same_weights(name):
    torch = pytest.importorskip("torch")
    make, peer = PYTORCH[name]
    be = nl.gen_backend("cpu", datatype=np.float64, batch_size=N)
    layers, optimizer = network(be), make()
    params = [torch.nn.Parameter(torch.from_numpy(w)) for w in weights(layers)]
    other = peer(torch, params)
    for step in range(50):
        for param, g in zip(params, gradients(layers, step), strict=True):
            param.grad = torch.from_numpy(g / N)
        if name == "adam":
            eps_of_step(other, step + 1)
        other.step()
        optimizer.optimize(layers, 0)
    for w, param in zip(weights(layers), params, strict=True):
        np.testing.assert_allclose(w, param.detach().numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("limit", [0.5, 1e6])
@pytest.mark.parametrize("name", PYTORCH)
def test_gradients_are_clipped_before_the_update_rule_as_by_clip_grad_norm(name, limit):
    torch = pytest.importorskip("torch")
    make, peer = PYTORCH[name]
    be = nl.gen_backend("cpu", datatype=np.float64, batch_size=N)
    layers, optimizer = network(be), make()
    optimizer.gradient_clip_norm = limit
    params = [torch.nn.Parameter(torch.from_numpy(w)) for w in weights(layers)]
    other = peer(torch, params)
    for step in range(20):
        for param, g in zip(params, gradients(layers, step), strict=True):
            param.grad = torch.from_numpy(g / N)
        torch.nn.utils.clip_grad_norm_(params, limit)
        if name == "adam":
            eps_of_step(other, step + 1)
        other.step()
        optimizer.optimize(layers, 0)
    for w, param in zip(weights(layers), params, strict=True):  # PyTorch adds 1e-6 to the norm
        np.testing.assert_allclose(w, param.detach().numpy(), rtol=1e-4, atol=1e-5)


CLIPPED = {name: make for name, make in MAKERS.items() if name.endswith("clipped")}


@pytest.mark.parametrize("limit", ["gradient_clip_norm", "gradient_clip_value"])
@pytest.mark.parametrize("make", CLIPPED.values(), ids=CLIPPED)
def test_a_clipped_outlier_leaves_the_weights_and_states_of_a_gradient_within_the_limit(cpu, make, limit):
    result, cpu.bsz = [], N
    for size in (1e4, 3.0):
        layers, optimizer = network(cpu), make()
        optimizer.gradient_clip_norm = optimizer.gradient_clip_value = optimizer.param_clip_value = None
        setattr(optimizer, limit, 0.01)
        for layer in layers:
            layer.dW.fill(size * N)
        optimizer.optimize(layers, 0)
        result.append([x.get() for layer in layers for x in (layer.W, *layer.states)])
    for x, y in zip(*result, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-8)


def test_adam_with_a_clipped_norm_continues_to_train_after_an_outlier(cpu):
    layers, optimizer = network(cpu), Adam(learning_rate=0.02, gradient_clip_norm=1.0)
    cpu.bsz = N
    for step in range(300):
        for layer in layers:
            layer.dW[:] = N * (layer.W - 0.5) * (1e4 if step == 0 else 1)
        optimizer.optimize(layers, 0)
    assert all(np.abs(w - 0.5).max() < 0.01 for w in weights(layers))


def test_each_optimizer_of_a_multi_optimizer_clips_the_norm_of_its_layers(cpu):
    layers = network(cpu)
    cpu.bsz, before, gs = N, weights(layers), gradients(layers, 0)
    clipped, other = GDM(1.0, 0, gradient_clip_norm=0.5), GDM(1.0, 0)
    MultiOptimizer({"default": other, "layer0": clipped, "layer1": clipped}).optimize(layers, 0)
    norm = math.sqrt(sum((g**2).sum() for g in gs[:2])) / N
    for i, (w, x, g) in enumerate(zip(weights(layers), before, gs, strict=True)):
        np.testing.assert_allclose(w, x - g / N * (0.5 / norm if i < 2 else 1), rtol=1e-5, atol=1e-5)


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
    assert calls == [1 + len(optimizer.state_names)] * 5  # no copy of weights and states: one assignment
    assert len(be.plan_cache) == plans


def test_parameters_that_are_not_adjacent_are_updated_separately(cpu, monkeypatch):
    calls, run = [], CompiledAssignment.__call__
    monkeypatch.setattr(
        CompiledAssignment, "__call__", lambda update: calls.append(update.tensors[0].shape) or run(update)
    )
    layers = network(cpu)
    train(GDM(0.1, 0.9), [layers[1], layers[3], layers[0]], 1)  # 2 is in between
    assert sorted(calls[1:]) == [(1, 7), (16, 1)]  # after the copy of all of them


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


def test_adadelta_keeps_its_states_in_neons_order(cpu):
    (layer,) = layers = network(cpu, shapes=[(3, 2)])
    cpu.bsz, before = N, layer.W.get()
    g = gradients(layers, 0)[0] / N
    Adadelta(decay=0.9, epsilon=1e-4).optimize(layers, 0)
    dx = np.sqrt(1e-4 / (0.1 * g**2 + 1e-4)) * g
    for state, value in zip(layer.states, (0.1 * g**2, 0.1 * dx**2, dx), strict=True):
        np.testing.assert_allclose(state.get(), value, rtol=1e-4)
    np.testing.assert_allclose(layer.W.get(), before - dx, rtol=1e-4)


def test_without_momentum_there_are_no_states(cpu):
    layers = network(cpu)
    train(GDM(0.1, 0.0), layers, 2)
    assert all(layer.states == [] for layer in layers)


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
    assert len(optimizer._groups) <= 8


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


# --- schedules -----------------------------------------------------------------------------------------------------

SCHEDULES = [
    (Schedule(), [1] * 8),
    (Schedule(3, 0.5), [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25]),
    (Schedule([2, 5], 0.5), [1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25]),
    (Schedule([2, 5], [0.3, 0.2]), [1, 1, 0.3, 0.3, 0.3, 0.2, 0.2, 0.2]),
    (StepSchedule([2, 5], [0.3, 0.2]), [1, 1, 0.3, 0.3, 0.3, 0.2, 0.2, 0.2]),
    (StepSchedule([0, 1], [0.7, 2]), [0.7, 2, 2, 2, 2, 2, 2, 2]),
    (StepSchedule([], []), [1] * 8),
    (PowerSchedule(3, 0.5), [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25]),
    (ExpSchedule(0.5), [1, 1 / 1.5, 1 / 2, 1 / 2.5, 1 / 3, 1 / 3.5, 1 / 4, 1 / 4.5]),
    (PolySchedule(4, 2), [1, 9 / 16, 4 / 16, 1 / 16, 0, 0, 0, 0]),
    (PolySchedule(5, 0.5), [1, 0.8**0.5, 0.6**0.5, 0.4**0.5, 0.2**0.5, 0, 0, 0]),
    (PolySchedule(4, 0), [1, 1, 1, 1, 0, 0, 0, 0]),
    (ShiftSchedule(2), [1, 1, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125]),
    (ShiftSchedule(3, 2), [1, 1, 1, 0.25, 0.25, 0.25, 0.0625, 0.0625]),
    (CosineSchedule(4), [1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5, 0, 0, 0, 0]),
    (CosineSchedule(2, 0.2), [1, 0.6, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2]),
    (WarmupSchedule(3), [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]),
    (WarmupSchedule(0), [1] * 8),
    (WarmupSchedule(1, PowerSchedule(2, 0.1)), [0.5, 1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001]),
]


@pytest.mark.parametrize(("schedule", "rates"), SCHEDULES, ids=lambda x: getattr(x, "classnm", ""))
def test_schedules_give_these_rates_in_any_order_of_epochs(schedule, rates):
    for epoch in (*range(8), *reversed(range(8)), 5, 2, 7):
        assert schedule.get_learning_rate(1.0, epoch) == pytest.approx(rates[epoch], abs=1e-15)
        if not isinstance(schedule, CosineSchedule) and not isinstance(schedule.__dict__.get("change"), list):
            assert schedule.get_learning_rate(0.3, epoch) == pytest.approx(0.3 * rates[epoch], abs=1e-15)


def test_a_cosine_schedule_ends_at_its_final_rate():
    assert [CosineSchedule(2, 0.2).get_learning_rate(3.0, e) for e in range(3)] == pytest.approx([3, 1.6, 0.2])


def test_the_optimizer_passes_the_epoch_to_its_schedule(cpu):
    asked = []

    class Mine:
        classnm = "Mine"

        def get_learning_rate(self, learning_rate, epoch):
            asked.append((learning_rate, epoch))
            return learning_rate / 2

    layers, before = network(cpu), weights(network(cpu))
    result = train(GDM(0.5, 0.0, schedule=Mine()), layers, 1, epoch=lambda step: 7)
    assert asked == [(0.5, 7)]
    for w, x, layer in zip(result, before, layers, strict=True):
        np.testing.assert_allclose(w, x - 0.25 * layer.dW.get() / N, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "make", [RMSProp, Adagrad, Adam, AdamW, ShiftAdaMax, lambda **k: GDM(0.1, 0.9, **k)], ids=lambda make: make.__name__
)
def test_every_optimizer_with_a_rate_has_a_schedule(cpu, make):
    layers = network(cpu)
    before = weights(layers)
    for w, x in zip(train(make(schedule=StepSchedule([0], [0.0])), layers, 2), before, strict=True):
        np.testing.assert_array_equal(w, np.clip(x, -1, 1) if make is ShiftAdaMax else x)


# --- several optimizers --------------------------------------------------------------------------------------------


def test_a_layer_gets_the_optimizer_of_its_name_or_its_class_or_the_default(be):
    def layers():
        result = network(be, shapes=[(2, 3)] * 4)
        for i in (1, 2):
            result[i] = Bias(result[i].name, result[i].W, result[i].dW)
        return result

    one, two, three = GDM(0.1, 0.9), RMSProp(), Adam()
    result = train(MultiOptimizer({"default": one, "Bias": two, "layer2": three}), layers(), 4)
    for i, optimizer in enumerate((GDM(0.1, 0.9), RMSProp(), Adam(), GDM(0.1, 0.9))):
        np.testing.assert_array_equal(result[i], train(optimizer, layers(), 4)[i])
    assert (one.t, two.t, three.t) == (4, 4, 4)


def test_each_optimizer_has_a_separate_norm_and_makes_one_step_a_call(cpu):
    layers, same = network(cpu), Adam(gradient_clip_norm=1.0)
    before = weights(layers)
    other = GDM(0.1, 0.0, gradient_clip_norm=0.1)
    multi = MultiOptimizer({"default": same, "layer1": same, "layer3": other})
    cpu.bsz = N
    gs = gradients(layers, 0)
    multi.optimize(layers, 0)
    expected = textbook(adam, before[:3], [gs[:3]], [0], clip_norm=1.0, lr=0.001, b1=0.9, b2=0.999, eps=1e-8)
    expected += textbook(gdm, before[3:], [gs[3:]], [0], clip_norm=0.1, lr=0.1, mu=0)
    for w, x in zip(weights(layers), expected, strict=True):
        np.testing.assert_allclose(w, x, rtol=1e-5, atol=1e-6)
    assert (same.t, other.t, multi.t) == (1, 1, 1)


def test_a_multi_optimizer_resumes_from_its_state(cpu):
    def make():
        return MultiOptimizer({"default": Adam(), "layer1": GDM(0.1, 0.9)})

    multi = make()
    train(multi, network(cpu), 3)
    state = json.loads(json.dumps(multi.get_state()))
    assert state == {"default": {"t": 3}, "layer1": {"t": 3}}
    other = make()
    other.set_state(state)
    assert other.get_state() == state


@pytest.mark.parametrize(
    ("mapping", "error", "words"),
    [
        ({"a": GDM(0.1, 0.9)}, ValueError, r"expected a key 'default' for all other layers, got the keys: a"),
        ({}, ValueError, r"expected a key 'default'"),
        ([GDM(0.1, 0.9)], TypeError, r"a dict of optimizers for optimizer_mapping, got \[Gradient"),
        ({"default": 0.1}, TypeError, r"an optimizer, .* for each of optimizer_mapping, got 0.1"),
    ],
)
def test_a_multi_optimizer_needs_a_default_and_optimizers(mapping, error, words):
    with pytest.raises(error, match=words):
        MultiOptimizer(mapping)


def test_a_key_that_is_no_layer_is_rejected_with_a_list_of_layers(cpu):
    layers, multi = network(cpu), MultiOptimizer({"default": GDM(0.1, 0.9), "Linear": Adam(), "layer9": Adam()})
    before = weights(layers)
    with pytest.raises(ValueError, match=r"got layer9. The layers are layer0 \(Layer\), layer1"):
        train(multi, layers, 1)
    for w, x in zip(weights(layers), before, strict=True):
        np.testing.assert_array_equal(w, x)


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
    assert description["type"] == f"neonlite.optimizers.rules.{optimizer.classnm}"
    again = type(optimizer).gen_class(description["config"])
    assert again.get_description() == optimizer.get_description()
    assert again.name == optimizer.name
    if not isinstance(optimizer, MultiOptimizer):
        for x, y in zip(train(again, network(cpu), 3), train(optimizer, network(cpu), 3), strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("schedule", [schedule for schedule, _ in SCHEDULES], ids=lambda schedule: schedule.classnm)
def test_a_description_creates_the_same_schedule(schedule):
    description = json.loads(json.dumps(schedule.get_description()))
    again = type(schedule).gen_class(description["config"])
    assert repr(again) == repr(schedule)
    assert [again.get_learning_rate(1.0, e) for e in range(9)] == [schedule.get_learning_rate(1.0, e) for e in range(9)]


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


def test_adadelta_has_no_learning_rate():
    with pytest.raises(TypeError, match="Adadelta: expected no learning rate, got 1"):
        Adadelta(1)


def test_a_custom_schedule_is_printed_with_its_class_and_arguments():
    class WarmCosine(Schedule):
        def __init__(self, total, warm):
            super().__init__()
            self.total, self.warm = total, warm

        def get_learning_rate(self, learning_rate, epoch):
            return learning_rate

    assert "schedule=WarmCosine(total=10, warm=2)" in repr(Adam(schedule=WarmCosine(10, 2)))
    assert repr(Schedule([2, 3], 0.5)) == "Schedule(step_config=[2, 3], change=0.5)"
