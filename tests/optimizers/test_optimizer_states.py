"""Tests of the states of optimizers: they belong to the parameters of a model, under the kind of optimizer."""

import copy
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
from helpers.parametrize import thinned

from neonlite.data import ArrayIterator
from neonlite.distributed import Distributed
from neonlite.initializers import Constant
from neonlite.layers import Affine, Linear
from neonlite.models import CheckpointError, Model
from neonlite.optimizers import (
    Adadelta,
    Adagrad,
    Adam,
    AdamW,
    GradientDescentMomentum,
    LossScaling,
    MultiOptimizer,
    RMSProp,
    ShiftAdaMax,
)

N = 4  # the batch size
MAKERS = {
    "sgd": lambda: GradientDescentMomentum(0.01, 0.0),
    "momentum": lambda: GradientDescentMomentum(0.01, 0.9),
    "nesterov": lambda: GradientDescentMomentum(0.02, 0.8, nesterov=True),
    "rmsprop": lambda: RMSProp(0.01),
    "adagrad": lambda: Adagrad(0.1),
    "adadelta": lambda: Adadelta(),
    "adam": lambda: Adam(0.01),
    "adamw": lambda: AdamW(0.01),
    "shiftadamax": lambda: ShiftAdaMax(0.01),
}
WRAPPERS = {
    "alone": lambda x: x,
    "MultiOptimizer": lambda x: MultiOptimizer({"default": x}),
    "LossScaling": lambda x: LossScaling(x, scale=1.0),
    "both": lambda x: LossScaling(MultiOptimizer({"default": x}), scale=1.0),
}
every_optimizer = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


class Layer:
    """A user's layer, with a plain list of states."""

    def __init__(self, be, seed, shape=(3, 2)):
        self.name, self.states = "layer", []
        self.W = be.array(np.random.default_rng(seed).normal(size=shape))
        self.dW = be.zeros(shape)

    def get_params(self):
        return (self.W, self.dW), self.states


def update(optimizer, layer, steps, first=0):
    """Update a layer with the gradients of some steps, and return its weights."""
    be = layer.W.backend
    be.bsz = N
    for step in range(first, first + steps):
        layer.dW[:] = N * np.random.default_rng(step).normal(size=layer.W.shape)
        if hasattr(optimizer, "scale"):
            optimizer.scale_errors(be.zeros((1, 1)))
        optimizer.optimize([layer], 0)
    return layer.W.get()


def bits(*arrays):
    return [x.tobytes() for x in arrays]


@pytest.mark.parametrize(("first", "second", "wrapper"), thinned(2, MAKERS, MAKERS, WRAPPERS))
def test_an_optimizer_continues_from_states_of_its_kind_and_starts_afresh_after_another(cpu, first, second, wrapper):
    wrap, layer = WRAPPERS[wrapper], Layer(cpu, 0)
    update(wrap(MAKERS[first]()), layer, 3)
    other, optimizer = Layer(cpu, 1), MAKERS[second]()
    other.W[:] = layer.W
    if MAKERS[first]().kind == optimizer.kind:  # set by hand, with the number of updates
        other.states[:] = [cpu.array(x.get()) for x in layer.states]
        optimizer.set_state({"t": 3})
    expected = update(wrap(optimizer), other, 3, 3)
    assert bits(update(wrap(MAKERS[second]()), layer, 3, 3)) == bits(expected)


@pytest.mark.parametrize("wrap", [Distributed, lambda x: MultiOptimizer({"default": Distributed(x)})])
def test_loss_scaling_divides_also_the_gradients_of_a_distributed_optimizer(cpu, wrap):
    expected = update(GradientDescentMomentum(0.1, 0.0), Layer(cpu, 0), 1)
    layer = Layer(cpu, 0)
    layer.dW[:] = 8 * N * np.random.default_rng(0).normal(size=(3, 2))
    scaling = LossScaling(wrap(GradientDescentMomentum(0.1, 0.0)), scale=8)
    scaling.scale_errors(cpu.zeros((1, 1)))
    scaling.optimize([layer], 0)
    assert bits(layer.W.get()) == bits(expected)


def test_momentum_and_nesterov_are_one_kind_and_others_are_different():
    kinds = {name: make().kind for name, make in MAKERS.items()}
    assert kinds.pop("nesterov") == kinds["momentum"]
    assert len(set(kinds.values())) == len(kinds)


@every_optimizer
def test_one_optimizer_may_alternate_between_two_networks(cpu, make):
    one, two, optimizer = Layer(cpu, 1), Layer(cpu, 2), make()
    for step in range(4):
        update(optimizer, one, 1, step)
        if step > 1:
            update(optimizer, two, 1, step)
    alone = update(make(), Layer(cpu, 1), 4), update(make(), Layer(cpu, 2), 2, 2)
    assert bits(one.W.get(), two.W.get()) == bits(*alone)


def adam_in_numpy(w, gradients, rate=0.01, epsilon=1e-8):
    """Kingma and Ba, algorithm 1, with the bias correction of the end of section 2."""
    m = v = 0
    for t, g in enumerate(gradients, 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w = w - rate * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + epsilon)
    return w


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("make", [Adam, lambda rate: MultiOptimizer({"default": Adam(rate)})])
def test_a_parameter_that_was_frozen_has_its_own_number_of_updates(cpu, flat, make):
    layers = [Layer(cpu, k) for k in range(3)]
    if flat:
        weights, gradients = cpu.zeros((18, 1)), cpu.zeros((18, 1))
        for k, layer in enumerate(layers):
            part, values = slice(6 * k, 6 * k + 6), layer.W.get()
            layer.W, layer.dW = weights[part].reshape(3, 2), gradients[part].reshape(3, 2)
            layer.W[:] = values
    start, optimizer, seen = [layer.W.get() for layer in layers], make(0.01), [[], [], []]
    cpu.bsz = N
    for step, trained in enumerate([(0, 1), (0, 1), (0, 1, 2), (0, 2), (0, 1, 2), (0, 1, 2)]):
        for k in trained:
            g = np.random.default_rng([step, k]).normal(size=(3, 2))
            layers[k].dW[:] = N * g
            seen[k].append(g)
        optimizer.optimize([layers[k] for k in trained], 0)
    for layer, w, gradients in zip(layers, start, seen, strict=True):
        np.testing.assert_allclose(layer.W.get(), adam_in_numpy(w, gradients), rtol=1e-4, atol=1e-6)
    assert [layer.W.updates[1] for layer in layers] == [6, 5, 4]


def test_a_custom_update_rule_reads_the_number_of_updates_of_its_parameter(cpu):
    class Counting(GradientDescentMomentum):
        def update_rule(self, be, w, g, states, rate):
            return [w + 0 * g + self.t, *states]

    layers, optimizer = [Layer(cpu, 0), Layer(cpu, 1)], Counting()
    start = [layer.W.get() for layer in layers]
    cpu.bsz = N
    optimizer.optimize(layers[:1], 0)
    for _ in range(2):
        optimizer.optimize(layers, 0)
    for layer, w, total in zip(layers, start, (0 + 1 + 2, 0 + 1), strict=True):
        np.testing.assert_allclose(layer.W.get(), w + total, rtol=1e-6)


def test_the_norm_of_gradients_spans_parameters_with_different_numbers_of_updates(cpu):
    layers, optimizer = [Layer(cpu, 0), Layer(cpu, 1)], Adam(0.01, gradient_clip_norm=0.5)
    start = [layer.W.get() for layer in layers]
    gradients = [np.full((3, 2), 1.0), np.full((3, 2), 2.0)]
    for layer, g in zip(layers, gradients, strict=True):
        layer.dW[:] = N * g
    cpu.bsz = N
    optimizer.optimize(layers[:1], 0)
    optimizer.optimize(layers, 0)
    alone, both = 0.5 / np.sqrt(6), 0.5 / np.sqrt(6 + 24)
    expected = [[alone, both], [2 * both]]
    for layer, w, values in zip(layers, start, expected, strict=True):
        np.testing.assert_allclose(layer.W.get(), adam_in_numpy(w, [np.full((3, 2), x) for x in values]), rtol=1e-5)


def test_a_step_that_fails_leaves_the_states_of_another_kind(cpu, monkeypatch):
    layer = Layer(cpu, 0)
    update(GradientDescentMomentum(0.1, 0.9), layer, 2)
    before = [*layer.states], layer.W.updates, bits(layer.W.get(), layer.states[0].get())
    adam = Adam()

    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(adam, "get_rate", fail)
    with pytest.raises(MemoryError):
        update(adam, layer, 1)
    assert before == ([*layer.states], layer.W.updates, bits(layer.W.get(), layer.states[0].get()))
    assert adam.t == 0


# --- models ----------------------------------------------------------------------------------------------------------


def model(seed=0):
    rng = np.random.default_rng(seed)
    layers = [Affine(3, rng.normal(size=(3, 2)), bias=Constant(0), activation="tanh", name="a"), Linear(1, name="b")]
    layers[1].init = rng.normal(size=(1, 3))
    return Model(layers)


def data():
    x = np.random.default_rng(0).normal(size=(3 * N, 2))
    return ArrayIterator(x, x[:, :1], make_onehot=False)


def weights(model):
    return bits(*model.get_weights().values())


def fit(model, optimizer, num_epochs):
    """Train until the end of an epoch, and return the model."""
    model.fit(data(), "mse", optimizer, num_epochs)
    return model


@pytest.fixture
def batches(cpu):
    cpu.bsz = N
    return cpu


@every_optimizer
def test_a_second_fit_continues_also_with_a_new_optimizer(batches, make):
    assert weights(fit(fit(model(), make(), 2), make(), 4)) == weights(fit(model(), make(), 4))


@every_optimizer
def test_a_second_model_starts_afresh_with_the_same_optimizer(batches, make):
    optimizer = make()
    fit(model(1), optimizer, 3)
    assert weights(fit(model(), optimizer, 2)) == weights(fit(model(), make(), 2))


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@every_optimizer
def test_a_copy_or_a_loaded_model_continues_from_its_states(batches, tmp_path, make, wrap):
    trained = fit(model(), wrap(make()), 2)
    trained.save_params(tmp_path / "file")
    into = model()
    into.load_params(tmp_path / "file")
    copies = [trained.copy(), pickle.loads(pickle.dumps(trained)), Model(tmp_path / "file"), into]
    expected = weights(fit(trained, wrap(make()), 4))
    assert [weights(fit(x, wrap(make()), 4)) for x in copies] == [expected] * 4


def test_a_loaded_model_starts_afresh_with_another_kind(batches):
    trained = fit(model(), RMSProp(0.01), 2)
    fresh = model()
    fresh.initialize(data())
    fresh.set_weights(trained.get_weights())
    fit(fresh, GradientDescentMomentum(0.01, 0.9), 2)
    copied = trained.copy()
    copied.epoch_index = 0
    assert weights(fit(copied, MultiOptimizer({"default": GradientDescentMomentum(0.01, 0.9)}), 2)) == weights(fresh)


def test_a_deep_copy_of_a_network_continues_from_its_states(batches):
    trained, other = fit(model(), Adam(0.01), 2), model()
    other.layers = copy.deepcopy(trained.layers)
    other.epoch_index = 2
    assert weights(fit(other, Adam(0.01), 4)) == weights(fit(trained, Adam(0.01), 4))


def test_weights_and_states_of_layers_continue_in_another_network(batches):
    trained, other = fit(model(), Adam(0.01), 2), model()
    other.initialize(data())
    other.layers.load_weights(trained.layers.serialize())
    other.epoch_index = 2
    assert weights(fit(other, Adam(0.01), 4)) == weights(fit(trained, Adam(0.01), 4))


def test_a_model_continues_in_a_new_process(batches, tmp_path):
    trained = fit(model(), Adam(0.01), 2)
    trained.save_params(tmp_path / "file")
    np.savez(tmp_path / "data.npz", x=data().sources[0].array)
    script = f"""if True:
        import numpy as np, neonlite as nl
        be = nl.gen_backend("cpu", batch_size={N})
        x = np.load("data.npz")["x"]
        model = nl.Model("file")
        model.fit(nl.data.ArrayIterator(x, x[:, :1], make_onehot=False), "mse", nl.optimizers.Adam(0.01), 4)
        model.save_params("again")
        """
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    np.testing.assert_allclose(
        np.concatenate([x.ravel() for x in Model(tmp_path / "again").get_weights().values()]),
        np.concatenate([x.ravel() for x in fit(trained, Adam(0.01), 4).get_weights().values()]),
        rtol=1e-6,
    )


def test_a_checkpoint_without_numbers_of_updates_continues_with_those_of_its_optimizer(batches):
    trained = fit(model(), Adam(0.01), 2)
    saved = trained.serialize()
    del saved["training"]["updates"]
    expected = weights(fit(trained, Adam(0.01), 4))
    assert weights(fit(Model(saved), Adam(0.01), 4)) == expected
    fit(Model(saved), GradientDescentMomentum(0.01, 0.9), 4)  # another kind


@pytest.mark.parametrize(
    "updates", [{"a": 3}, {"a": [["Adam", -1]]}, {"a": [[1, 1]]}, {"z": [None]}, [], {"a": [1, 2]}]
)
def test_invalid_numbers_of_updates_in_a_checkpoint_are_rejected(batches, updates):
    saved = fit(model(), Adam(0.01), 1).serialize()
    saved["training"]["updates"] = json.loads(json.dumps(updates))
    with pytest.raises(CheckpointError, match="updates"):
        Model(saved)


class NeonSGD:
    """An optimizer that defines ``optimize``, as in neon, and fills lists of states that are empty."""

    name = "sgd"

    def optimize(self, layer_list, epoch):
        for layer in layer_list:
            params = layer.get_params()
            for (w, dw), states in params if isinstance(params, list) else [params]:
                if not states:
                    states.append(w.backend.zeros_like(w))
                states[0][:] = 0.9 * states[0] - 0.01 * dw / N
                w[:] = w + states[0]

    def get_state(self):
        return {}

    def set_state(self, state):
        pass


def test_another_class_that_defines_optimize_starts_with_empty_lists_of_states(batches):
    trained = fit(model(), Adam(0.01), 2)
    before, fresh = trained.get_weights(), model()
    fresh.initialize(data())
    fresh.set_weights(before)
    fresh.epoch_index = 2
    assert weights(fit(trained, NeonSGD(), 3)) == weights(fit(fresh, NeonSGD(), 3))
    fresh.set_weights(before)
    trained.set_weights(before)
    other = model()
    other.initialize(data())
    other.set_weights(before)
    assert weights(fit(trained, Adam(0.01), 4)) == weights(fit(other, Adam(0.01), 1))
