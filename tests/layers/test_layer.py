"""Layer: passes derived from the formula, shapes, buffers, in-place outputs and errors (neonlite/layers/layer.py)."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from helpers.layer_cases import LAYERS, PARTS, each_layer, mlp
from helpers.networks import by_hand, check_numerical_gradients, close, data, made_ready, network, rows
from helpers.parametrize import each, thinned
from helpers.reference import numerical_gradient

from neonlite import gen_backend
from neonlite.initializers import Gaussian
from neonlite.layers import Activation, Affine, Bias, Dropout, Layer, Linear, Sequential
from neonlite.transforms import Rectlin, Tanh

SHAPES = [1, 7, (5, 3), (3, 2, 5)]


@each_layer
@each("shape", SHAPES)
def test_bprop_matches_autodiff_of_the_formula(be64, rng, which, shape):
    for be64.bsz, alpha, beta in [(2, 1.0, 0.0), (2, 0.5, 0.0), (2, 1.0, 1.0), (1, -2.0, 0.25), (5, -2.0, 0.25)]:
        layer = by_hand(LAYERS[which][0](), shape)
        layer.fprop(data(be64, rng, shape))
        error, before = data(be64, rng, layer.out_shape), data(be64, rng, shape)
        found = []
        for bprop, factors in [(type(layer).bprop, (alpha, beta)), (Layer.bprop, ())]:
            layer.deltas[:] = before
            for gradient in layer.gradients:
                gradient.fill(9)
            assert bprop(layer, error, *factors) is layer.deltas
            found.append([x.get() for x in (layer.deltas, *layer.gradients)])
        found[1][0] = alpha * found[1][0] + beta * before.get()
        for got, want in zip(*found, strict=True):
            close(got, want, 1e-12)


@each_layer
@each("shape, n", itertools.product(SHAPES, [1, 3]))
def test_outputs_match_the_textbook_and_deltas_and_gradients_are_numerical_gradients(be64, rng, which, shape, n):
    be64.bsz = n
    make, formula = LAYERS[which]
    layer = by_hand(make(), shape)
    inputs = data(be64, rng, shape)
    outputs = layer.fprop(inputs)
    x, W = inputs.get(), layer.W.get() if layer.has_params else None
    close(outputs, formula(layer, W, x))
    assert outputs is layer.outputs
    assert outputs.shape[0] == rows(layer.out_shape)

    error = data(be64, rng, layer.out_shape)
    e = error.get()
    close(layer.bprop(error), numerical_gradient(lambda: float(np.sum(e * formula(layer, W, x))), x), 1e-7)
    if layer.has_params:
        close(layer.dW, numerical_gradient(lambda: float(np.sum(e * formula(layer, W, x))), W), 1e-7)
    close(error, e, 0)
    close(inputs, x, 0)


def test_fprop_with_beta_adds_to_the_outputs(be64, rng):
    be64.bsz = 3
    for make, formula in LAYERS.values():
        layer = by_hand(make(), 2)
        x, before = data(be64, rng, 2), data(be64, rng, layer.out_shape)
        layer.outputs[:] = before
        got = layer.fprop(x, beta=0.5)
        close(got, formula(layer, layer.W.get() if layer.has_params else None, x.get()) + 0.5 * before.get())


# --- single layers ---------------------------------------------------------------------------------------------------
def test_a_layer_is_configured_by_sizes_data_tensors_and_layers(cpu):
    cpu.bsz = 4

    class Data:
        shape = (3, 2, 5)

    sources = [(6, 6), ((6, 3), (6, 3)), ([3, 2, 5], (3, 2, 5)), (Data(), (3, 2, 5))]
    sources += [(cpu.zeros((6, 4)), 6), (cpu.zeros((6, 12)), (6, 3))]
    for source, shape in sources:
        layer = Activation(Tanh())
        assert layer.configure(source) is layer
        assert layer.in_shape == layer.out_shape == shape
        assert layer.prev_layer is None
    after = Linear(7, Gaussian()).configure(layer)
    assert after.prev_layer is layer
    assert layer.next_layer is after
    assert after.in_shape == (6, 3)
    assert after.out_shape == (7, 3)
    assert after.weight_shape == (7, 6)
    assert Linear(7, Gaussian()).configure((3, 2, 5)).weight_shape == (7, 30)
    assert Bias(Gaussian()).configure((3, 2, 5)).weight_shape == (3, 1)


@pytest.mark.parametrize("how", ["allocate_deltas()", "allocate_deltas(shared)", "set_deltas([shared])"])
def test_a_layer_runs_outside_a_network(be, how):
    be.bsz = 2
    layer = Linear(1, np.array([[2.0, 3.0]])).configure(2)
    layer.needs_deltas = True
    shared = be.ones((5, 2))
    layer.allocate()
    eval(how, {"shared": shared, **{x: getattr(layer, x) for x in ("allocate_deltas", "set_deltas")}})
    assert (layer.deltas.root is shared) == ("shared" in how)
    close(layer.fprop(be.array([[1, 2], [3, 4]])), [[11, 16]])
    close(layer.bprop(be.array([[1, 10]])), [[2, 20], [3, 30]])
    close(layer.dW, [[21, 43]])


@pytest.mark.parametrize("container", [False, True])
def test_neons_prev_layer_true_requests_deltas(be, container):
    be.bsz = 2
    layer: Any = Linear(1, np.array([[2.0, 3.0]]))
    layer = (Sequential([layer]) if container else layer).configure(2)
    layer.prev_layer = True
    assert layer.prev_layer is None
    assert layer.needs_deltas
    layer.allocate()
    layer.allocate_deltas()
    layer.fprop(be.array([[1, 2], [3, 4]]))
    close(layer.bprop(be.array([[1, 10]])), [[2, 20], [3, 30]])


def test_a_previous_layer_requests_deltas_and_none_does_not():
    layer, first = Linear(1, Gaussian()), Linear(1, Gaussian())
    assert not layer.needs_deltas
    layer.prev_layer = first
    assert layer.needs_deltas
    assert layer.prev_layer is first
    layer.prev_layer = None
    assert not layer.needs_deltas


def test_repr_states_class_name_shapes_and_parameters_in_one_line(be):
    be.bsz = 2
    layers = [Linear(1000, Gaussian(), name="fc"), Bias(Gaussian(), name="b\n"), Activation(Rectlin(), name="f")]
    net = Sequential(layers, name="net")
    assert repr(layers[0]) == "Linear('fc', not configured)"
    assert repr(net) == "Sequential('net', 3 layers, not configured)"
    net.configure((3, 4))
    assert [repr(layer) for layer in layers] == [
        "Linear('fc', (3, 4) -> (1000, 4), 3,000 parameters)",
        r"Bias('b\n', (1000, 4) -> (1000, 4), 1,000 parameters)",
        "Activation('f', (1000, 4) -> (1000, 4))",
    ]
    assert repr(net) == "Sequential('net', 3 layers, (3, 4) -> (1000, 4), 4,000 parameters)"
    assert repr(Sequential([Linear(1, Gaussian())], name="one").configure(1)) == (
        "Sequential('one', 1 layer, 1 -> 1, 1 parameter)"
    )


def test_a_first_layer_computes_no_deltas(be, rng):
    be.bsz = 2
    for make, _ in LAYERS.values():
        layer = make().configure(3)
        layer.allocate()
        layer.allocate_deltas()
        layer.fprop(data(be, rng, 3))
        assert layer.bprop(data(be, rng, layer.out_shape)) is None
        assert layer.deltas is None


def test_configure_sets_the_backend_of_a_layer(rng):
    first = gen_backend("cpu", batch_size=2)
    layer = by_hand(Affine(3, Gaussian(), activation=Tanh())[0], 2)
    second = gen_backend("cpu", batch_size=5, datatype=np.float64)
    assert layer.be is first is layer.W.backend
    assert by_hand(Linear(3, Gaussian()), 2).be is second


@pytest.mark.parametrize(("first", "second"), thinned(4, PARTS, PARTS))
def test_any_layer_may_follow_any_other(rng, first, second):
    pair = (first, second)
    gen_backend("cpu", batch_size=3, datatype=np.float64, rng_seed=2)
    for parts in (pair, ("Linear", *pair, "Linear"), ("Tanh", *pair, "Tanh")):
        net = network([PARTS[part]() for part in parts], 4, deltas=True)
        check_numerical_gradients(net, rng, 4)


@pytest.mark.parametrize("seed", range(20))
def test_the_backward_pass_of_any_chain_of_layers_is_correct(rng, seed):
    gen_backend("cpu", batch_size=2, datatype=np.float64, rng_seed=seed)
    chance = np.random.default_rng(seed)
    net = network([PARTS[part]() for part in chance.choice(list(PARTS), size=6)], 4, deltas=True)
    check_numerical_gradients(net, rng, 4)


@each_layer
def test_bprop_after_inference_is_an_error(be, rng, which):
    be.bsz = 2
    layer = by_hand(LAYERS[which][0](), 3)
    error = data(be, rng, layer.out_shape)
    with pytest.raises(RuntimeError, match=f"{layer.name}: bprop: expected a training fprop before it, got none"):
        layer.bprop(error)
    x, other = data(be, rng, 3), data(be, rng, 3)
    layer.fprop(x)
    layer.fprop(other, inference=True)
    with pytest.raises(RuntimeError, match=f"{layer.name}: bprop: expected a training fprop before it"):
        layer.bprop(error)
    layer.fprop(x)
    layer.bprop(error)


def test_new_data_gives_new_outputs_in_the_same_or_another_tensor(be64, rng):
    be64.bsz = 2
    for make, formula in LAYERS.values():
        layer = by_hand(make(), 3)
        for x in (data(be64, rng, 3), data(be64, rng, 3)):
            for _ in range(2):
                x[:] = rng.normal(size=(3, 2))
                W = layer.W.get() if layer.has_params else None
                close(layer.fprop(x), formula(layer, W, x.get()))


@pytest.mark.parametrize("shape", [0, -3, 2.5, None, "4", (3, 0), (3, -1), (), [2.5, 1], Linear(3, Gaussian())])
def test_a_wrong_shape_is_rejected(cpu, shape):
    for layer in (Linear(3, Gaussian(), name="lay"), Bias(Gaussian(), name="lay"), Sequential([Dropout(name="lay")])):
        with pytest.raises(ValueError, match=r"lay: expected an input shape F, \(F, T\) or \(C, H, W\), got "):
            layer.configure(shape)


def test_a_layer_that_is_not_configured_is_named(cpu):
    with pytest.raises(ValueError, match=r"lay: .* got None from before, which is not configured"):
        Bias(Gaussian(), name="lay").configure(Linear(3, Gaussian(), name="before"))


@pytest.mark.parametrize("which", ["Linear to 7", "Bias", "Tanh", "Softmax", "Dropout", "network"])
def test_inputs_and_errors_of_another_shape_name_the_layer(be, rng, which):
    be.bsz = 4
    layer = by_hand(Sequential(mlp()) if which == "network" else LAYERS[which][0](), 6)
    name = layer.layers[0].name if which == "network" else layer.name
    for shape in ((6, 1), (1, 4), (12, 4), (6, 8), (6, 4, 1), (5, 4), (1, 1)):
        with pytest.raises(ValueError, match=rf"{name}: expected inputs of shape \(6, 4\).*got .*") as error:
            layer.fprop(be.zeros(shape, name="wrong"))
        assert f"wrong {shape}" in str(error.value)
        assert "batch size 4" in str(error.value)
    for thing in (np.zeros((6, 4)), be.zeros((6, 4)) + 1, 3, None):
        with pytest.raises(TypeError, match=f"{name}: expected inputs as a tensor"):
            layer.fprop(thing)
    layer.fprop(be.zeros((6, 4)))
    for shape in ((1, 4), (rows(layer.out_shape), 1), (rows(layer.out_shape) + 1, 4)):
        with pytest.raises(ValueError, match=r"expected an error of shape \(\d, 4\) .*, got a tensor"):
            layer.bprop(be.zeros(shape))


@pytest.mark.parametrize("which", LAYERS)
def test_the_steps_come_in_order(be, rng, which):
    layer = LAYERS[which][0]()
    be.bsz = 2
    x = data(be, rng, 3)
    with pytest.raises(
        RuntimeError,
        match=rf"{layer.name}: expected a configured layer, got one without shapes. Call configure\(shape\)",
    ):
        layer.fprop(x)
    layer.configure(3)
    with pytest.raises(
        RuntimeError, match=rf"{layer.name}: expected allocated buffers, got none. Call allocate\(\) before fprop"
    ):
        layer.fprop(x)
    with pytest.raises(RuntimeError, match=f"{layer.name}: bprop: expected a training fprop before it"):
        layer.bprop(x)
    be.bsz = 0
    with pytest.raises(ValueError, match=r"be.iobuf: expected a batch size, got none"):
        layer.allocate()


def test_a_layer_without_a_formula_names_the_missing_methods(be):
    be.bsz = 2

    class Empty(Layer):
        pass

    layer = Empty(name="mine").configure(3)
    layer.out_shape = 3
    layer.allocate()
    with pytest.raises(NotImplementedError, match=r"Empty: expected formula\(x\), or fprop and bprop"):
        layer.fprop(be.zeros((3, 2)))


# --- repeated and changed steps --------------------------------------------------------------------------------------
class Cubed(Layer):
    def configure(self, in_obj):
        super().configure(in_obj)
        self.out_shape = self.in_shape
        return self

    def formula(self, x):
        return x * x * x


@pytest.mark.parametrize("kind", ["formula", "activation"])
def test_a_step_with_another_operand_is_planned_again(cpu, kind):
    layer = made_ready(Cubed() if kind == "formula" else Activation(Rectlin()), cpu, 2)
    f, slope = (
        (lambda x: x**3, lambda x: 3 * x**2) if kind == "formula" else (lambda x: np.maximum(x, 0), lambda x: x > 0)
    )
    rng = np.random.default_rng(0)
    inputs, errors = ([cpu.array(rng.standard_normal((3, 2))) for _ in range(2)] for _ in range(2))
    deltas = np.zeros((3, 2))
    for x, error, alpha, beta in [
        *[(inputs[0], errors[0], 1.0, 0.0)] * 3,
        *[(inputs[0], errors[1], 1.0, 0.0)] * 2,
        *[(inputs[1], errors[1], 1.0, 0.0)] * 2,
        *[(inputs[1], errors[1], 2.0, 0.0)] * 2,
        *[(inputs[1], errors[1], 2.0, 0.5)] * 2,
        (inputs[0], errors[0], 1.0, 0.0),
    ]:
        x[:] = x + 0.1  # other values in the same tensor
        np.testing.assert_allclose(layer.fprop(x).get(), f(x.get()), rtol=1e-5)
        deltas = alpha * slope(x.get()) * error.get() + beta * deltas
        np.testing.assert_allclose(layer.bprop(error, alpha, beta).get(), deltas, rtol=1e-4, atol=1e-6)
    for _ in range(2):
        before = layer.outputs.get()
        np.testing.assert_allclose(layer.fprop(x, beta=0.5).get(), f(x.get()) + before / 2, rtol=1e-5)
        np.testing.assert_allclose(layer.fprop(x, inference=True).get(), f(x.get()), rtol=1e-5)


def test_a_step_with_another_batch_size_is_planned_again(cpu):
    layer = made_ready(Cubed(), cpu, 2)
    for N in (2, 2, 5, 5, 2):
        if cpu.bsz != N:
            layer.set_batch_size(N)
        x, error = (cpu.array(np.random.default_rng(k).standard_normal((3, N))) for k in range(2))
        for _ in range(3):
            np.testing.assert_allclose(layer.fprop(x).get(), x.get() ** 3, rtol=1e-5)
            np.testing.assert_allclose(layer.bprop(error).get(), 3 * x.get() ** 2 * error.get(), rtol=1e-5)


def test_formulas_that_may_read_buffers_are_built_again_for_another_batch_size(be):
    class Noisy(Layer):
        def configure(self, in_obj):
            super().configure(in_obj)
            self.out_shape = self.in_shape
            return self

        def allocate(self, *args, **kwargs):
            super().allocate(*args, **kwargs)
            self.noise = self.be.ones((3, self.be.bsz)) * self.be.bsz + 0

        def formula(self, x):
            return x + self.noise

    be.bsz = 4
    network = Sequential([Noisy()])
    network.configure(3)
    for n in [4, 2, 4, 2]:
        network.set_batch_size(n)
        assert (network.fprop(be.zeros((3, n))).get() == n).all()
