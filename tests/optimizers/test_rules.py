"""Update rules against their equations in NumPy and PyTorch, on every runtime; several optimizers of one network."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from helpers.optimizer_equations import (
    EQUATIONS,
    GDM,
    MAKERS,
    Layer,
    N,
    adam,
    every_equation,
    gdm,
    gradients,
    network,
    textbook,
    train,
    weights,
)

import neonlite as nl
from neonlite.optimizers import (
    LAMB,
    Adadelta,
    Adagrad,
    Adam,
    AdamW,
    LossScaling,
    MultiOptimizer,
    Muon,
    NAdam,
    RMSProp,
)


class Bias(Layer):
    pass


# --- the equations, in plain NumPy ---------------------------------------------------------------------------------


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
    for step in range(1500 if isinstance(optimizer, Adadelta | Adagrad) else 300):
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
    "nadam": (
        lambda: NAdam(0.05, beta_1=0.8, beta_2=0.9, epsilon=1e-3, momentum_decay=0.02),
        lambda t, p: t.optim.NAdam(p, 0.05, (0.8, 0.9), 1e-3, momentum_decay=0.02),
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
    tolerance = 1e-7 if name == "nadam" else 1e-12  # PyTorch has the product of the momenta in float32
    for w, param in zip(weights(layers), params, strict=True):
        np.testing.assert_allclose(w, param.detach().numpy(), rtol=tolerance, atol=tolerance)


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


def test_muon_gives_the_weights_of_pytorch_to_the_digits_of_its_16_bit_products():
    torch = pytest.importorskip("torch")
    be = nl.gen_backend("cpu", batch_size=N)
    layers = network(be, shapes=[(4, 3), (3, 8)])
    params = [torch.nn.Parameter(torch.from_numpy(w)) for w in weights(layers)]
    other = torch.optim.Muon(params, 0.05, 0.2, adjust_lr_fn="match_rms_adamw")
    optimizer = Muon(0.05, wdecay=0.2)
    for step in range(10):
        for param, g in zip(params, gradients(layers, step), strict=True):
            param.grad = torch.from_numpy(g / N).to(torch.float32)
        other.step()
        optimizer.optimize(layers)
    for w, param in zip(weights(layers), params, strict=True):
        np.testing.assert_allclose(w, param.detach().numpy(), atol=0.01)


@pytest.mark.parametrize("name", ["lamb", "muon"])
def test_a_rule_of_whole_parameters_is_part_of_a_multi_optimizer_and_of_loss_scaling(be64, name):
    make, rule, options = EQUATIONS[name]
    layers = network(be64)
    optimizer = LossScaling(MultiOptimizer({"default": make(), "layer1": GDM(0.1, 0.9)}))
    optimizer.scale_errors(be64.ones((1, 1)) * 1)  # as gradients below are not of a network
    be64.bsz = N
    start, gs = weights(layers), []
    for step in range(4):
        gs.append(gradients(layers, step))
        for layer in layers:
            layer.dW[:] = layer.dW * optimizer.scale
        optimizer.optimize(layers)
    expected = textbook(rule, start, gs, [0] * 4, **options)
    expected[1] = textbook(gdm, start[1:2], [g[1:2] for g in gs], [0] * 4, lr=0.1, mu=0.9)[0]
    for w, x in zip(weights(layers), expected, strict=True):
        np.testing.assert_allclose(w, x, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["lamb", "lion", "muon", "nadam"])
def test_a_fit_by_the_name_of_a_rule_is_resumed_from_a_checkpoint_to_the_same_bits(tmp_path, name):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 3)), rng.integers(0, 2, 40)

    def trained(*epochs, resumes=False):
        nl.gen_backend("cpu", rng_seed=0)
        model = nl.Model([nl.layers.Affine(8, activation="tanh"), nl.layers.Affine(2, activation="softmax")])
        for n in epochs:
            model.fit(X, y, epochs=n, optimizer=None if model.optimizer else name, progress_bar=False)
            if resumes:
                model = nl.Model(model.save_params(tmp_path / "model.neon"))
        return model

    first, second = trained(4), trained(2, 2, resumes=True)
    assert first.optimizer.classnm.lower() == second.optimizer.classnm.lower() == name
    for x, y in zip(first.get_weights().values(), second.get_weights().values(), strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_zero_parameter_leaves_zero_by_lamb(cpu):
    layers = network(cpu)
    layers[1].W[:] = 0
    train(LAMB(0.5), layers, 1)
    np.testing.assert_allclose(np.abs(weights(layers)[1][layers[1].dW.get() != 0]), 0.5, rtol=1e-3)


@pytest.mark.parametrize("decay", [0, -1])
def test_the_momentum_of_nadam_has_a_positive_decay(decay):
    with pytest.raises(ValueError, match="expected a finite number > 0 for momentum_decay"):
        NAdam(momentum_decay=decay)


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


# --- states --------------------------------------------------------------------------------------------------------


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


def test_layers_that_swap_their_names_swap_their_optimizers(cpu):
    layers = network(cpu)[:2]
    multi = MultiOptimizer({"default": GDM(0.5, 0.0), layers[0].name: GDM(0.25, 0.0)})
    cpu.bsz, before = 1, weights(layers)
    for _ in range(2):
        for layer in layers:
            layer.dW.fill(1)
        multi.optimize(layers, 0)
        layers[0].name, layers[1].name = layers[1].name, layers[0].name
    for w, x in zip(weights(layers), before, strict=True):
        np.testing.assert_allclose(w, x - 0.75, rtol=1e-6)


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
    layers = network(cpu)
    multi = MultiOptimizer({"default": GDM(0.1, 0.9), nl.layers.Linear.__name__: Adam(), "layer9": Adam()})
    before = weights(layers)
    with pytest.raises(ValueError, match=r"got layer9. The layers are layer0 \(Layer\), layer1"):
        train(multi, layers, 1)
    for w, x in zip(weights(layers), before, strict=True):
        np.testing.assert_array_equal(w, x)


# --- mistakes ------------------------------------------------------------------------------------------------------


def test_adadelta_has_no_learning_rate():
    with pytest.raises(TypeError, match="Adadelta: expected no learning rate, got 1"):
        Adadelta(1)
