"""Layers, networks and costs, compared with NumPy formulas, numerical gradients, Autodiff and PyTorch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.allocations import buffers
from helpers.networks import (
    Careful,
    Gain,
    MultiplyByTwo,
    NDArray,
    by_hand,
    check_cost,
    check_numerical_gradients,
    close,
    data,
    made_ready,
    needs_torch,
    network,
    numerical_gradient,
    rows,
    targets,
)
from helpers.parametrize import thinned

from neonlite import Backend, gen_backend
from neonlite.initializers import Array, Constant, Gaussian, Uniform
from neonlite.layers import (
    Activation,
    Affine,
    BatchNorm,
    Bias,
    Dropout,
    GeneralizedCost,
    Layer,
    Linear,
    Sequential,
)
from neonlite.optimizers import Adam, GradientDescentMomentum
from neonlite.transforms import (
    GELU,
    CrossEntropyBinary,
    CrossEntropyMulti,
    Explin,
    Identity,
    Logistic,
    MeanSquared,
    Normalizer,
    PixelwiseSoftmax,
    Rectlin,
    Rectlinclip,
    Sign,
    SiLU,
    SmoothL1Loss,
    Softmax,
    SquareHingeLoss,
    SumSquared,
    Tanh,
    Transform,
)

SHAPES = [1, 7, (5, 3), (3, 2, 5)]


# --- each layer against its own formula ------------------------------------------------------------------------------


def along(axis: int, x: NDArray) -> NDArray:
    e = np.exp(x)
    return e / e.sum(axis=axis, keepdims=True)


def leaky(x: NDArray, slope: float) -> NDArray:
    return np.where(x > 0, x, slope * x)


TRANSFORMS: dict[str, tuple[Callable[[], Transform], Callable[[NDArray], NDArray]]] = {
    "Identity": (Identity, lambda x: x),
    "Rectlin": (Rectlin, lambda x: leaky(x, 0)),
    "leaky": (lambda: Rectlin(0.25), lambda x: leaky(x, 0.25)),
    "mirrored": (lambda: Rectlin(-0.5), lambda x: leaky(x, -0.5)),
    "Rectlinclip": (lambda: Rectlinclip(xcut=0.75), lambda x: np.minimum(leaky(x, 0), 0.75)),
    "Explin": (lambda: Explin(1.5), lambda x: np.where(x > 0, x, 1.5 * np.expm1(x))),
    "Normalizer": (Normalizer, lambda x: x / 128),
    "Softmax": (Softmax, lambda x: along(0, x)),
    "Softmax of rows": (lambda: Softmax(axis=1), lambda x: along(1, x)),
    "PixelwiseSoftmax": (lambda: PixelwiseSoftmax(1), lambda x: np.ones(x.shape)),
    "Tanh": (Tanh, np.tanh),
    "Logistic": (Logistic, lambda x: 1 / (1 + np.exp(-x))),
    "Logistic, shortcut": (lambda: Logistic(shortcut=True), lambda x: 1 / (1 + np.exp(-x))),
    "SiLU": (SiLU, lambda x: x / (1 + np.exp(-x))),
    "GELU": (GELU, lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
}


def product(layer: Any, W: NDArray, x: NDArray) -> NDArray:
    return np.array([[math.fsum(w * v for w, v in zip(row, column, strict=True)) for column in x.T] for row in W])


def shifted(layer: Any, W: NDArray, x: NDArray) -> NDArray:
    each = x.shape[0] // W.shape[0]  # features in a row that share a bias
    return np.array([[v + W[i // each, 0] for v in row] for i, row in enumerate(x)])


# name -> (how to make the layer, its outputs in NumPy)
LAYERS: dict[str, tuple[Callable[[], Any], Callable[[Any, Any, NDArray], NDArray]]] = {
    "Linear to 1": (lambda: Linear(1, Gaussian()), product),
    "Linear to 7": (lambda: Linear(7, Gaussian()), product),
    "Bias": (lambda: Bias(Gaussian()), shifted),
    "Dropout": (lambda: Dropout(0.7), lambda layer, W, x: x * layer.mask.get()),
} | {
    name: (lambda make=make: Activation(make()), lambda layer, W, x, f=f: f(x))
    for name, (make, f) in TRANSFORMS.items()
}
each_layer = pytest.mark.parametrize("which", LAYERS)
each_shape = pytest.mark.parametrize("shape", SHAPES)


@each_layer
@each_shape
def test_bprop_matches_autodiff_of_the_formula(be64, rng, which, shape):
    for be64.bsz, (alpha, beta) in itertools.product([1, 2, 5], [(1.0, 0.0), (0.5, 0.0), (1.0, 1.0), (-2.0, 0.25)]):
        layer = by_hand(LAYERS[which][0](), shape)
        layer.fprop(data(be64, rng, shape))
        error, before = data(be64, rng, layer.out_shape), data(be64, rng, shape)
        found = []
        for bprop in (type(layer).bprop, Layer.bprop):
            layer.deltas[:] = before
            for gradient in layer.gradients:
                gradient.fill(9)
            assert bprop(layer, error, alpha, beta) is layer.deltas
            found.append([x.get() for x in (layer.deltas, *layer.gradients)])
        for got, want in zip(*found, strict=True):
            close(got, want, 1e-12)


@each_layer
@each_shape
@pytest.mark.parametrize("n", [1, 3])
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


def test_sign_passes_errors_where_inputs_are_small(be64):
    be64.bsz = 5
    layer = by_hand(Activation(Sign()), 1)
    close(layer.fprop(be64.array([[-2.0, -0.5, 0.0, 0.5, 2.0]])), [[-1, -1, 1, 1, 1]])
    close(layer.bprop(be64.array([[1.0, 2, 3, 4, 5]])), [[0, 2, 3, 4, 0]])


def test_fprop_with_beta_adds_to_the_outputs(be64, rng):
    be64.bsz = 3
    for make, formula in LAYERS.values():
        layer = by_hand(make(), 2)
        x, before = data(be64, rng, 2), data(be64, rng, layer.out_shape)
        layer.outputs[:] = before
        got = layer.fprop(x, beta=0.5)
        close(got, formula(layer, layer.W.get() if layer.has_params else None, x.get()) + 0.5 * before.get())


def test_a_linear_layer_computes_the_sums_of_its_outputs(be64, rng):
    be64.bsz = 4
    layer = by_hand(Linear(3, Gaussian(), bsum=True), 5)
    outputs = layer.fprop(data(be64, rng, 5))
    close(layer.batch_sum, outputs.get().sum(axis=1, keepdims=True))


@needs_torch
@pytest.mark.parametrize("shape", [5, (5, 3)])
@pytest.mark.parametrize("end", ["Softmax", "Logistic", "Tanh"])
def test_training_matches_torch(be64, rng, shape, end):
    import torch
    from torch.nn import functional

    be64.bsz = 4
    last, costfunc = {
        "Softmax": (Softmax, CrossEntropyMulti),
        "Logistic": (Logistic, CrossEntropyBinary),
        "Tanh": (Tanh, SumSquared),
    }[end]
    layers = [
        Affine(7, Gaussian(), Gaussian(), activation=Rectlin()),
        Affine(3, Gaussian(), Gaussian(), activation=last()),
    ]
    net, cost = network(layers, shape, costfunc(), deltas=True)
    x, t = data(be64, rng, shape), data(be64, rng, net.out_shape)
    t[:] = be64.softmax(t) if end == "Softmax" else be64.greater(t, 0)
    value = cost.get_cost(net.fprop(x), t)
    net.bprop(cost.get_errors(net.outputs, t))

    X, T = torch.tensor(x.get(), requires_grad=True), torch.tensor(t.get())
    W, b, V, c = (torch.tensor(p.get(), requires_grad=True) for p in net.parameters)
    z = V @ torch.relu(W @ X + b) + c
    if end == "Softmax":
        total = functional.cross_entropy(z.T, T.T, reduction="sum")
    elif end == "Logistic":
        total = functional.binary_cross_entropy_with_logits(z, T, reduction="sum")
    else:
        total = functional.mse_loss(torch.tanh(z), T, reduction="sum") / 2
    total.backward()
    close(value, [[total.item() / x.shape[1]]])
    for got, want in zip([net.deltas, *net.gradients], [X, W, b, V, c], strict=True):
        close(got, want.grad.numpy())


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


@each_layer
def test_a_call_of_a_layer_is_inference(be, rng, which):
    be.bsz = 2
    layer = by_hand(LAYERS[which][0](), 3)
    x = data(be, rng, 3)
    want = layer.fprop(x, inference=True).get()
    layer.fprop(x)
    error = data(be, rng, layer.out_shape).get()
    deltas = layer.bprop(be.array(error)).get()
    outputs = layer(x)
    layer(data(be, rng, 3))  # does not overwrite them
    np.testing.assert_array_equal(outputs.get(), want)
    np.testing.assert_array_equal(layer.bprop(be.array(error)).get(), deltas)  # of the training fprop


def test_a_call_of_a_layer_that_works_in_place_keeps_its_inputs(be):
    be.bsz = 2
    net = Sequential([Linear(3, Gaussian()), Bias(Constant(1)), Activation(Rectlin())]).configure(3)
    net.allocate()
    x = be.array([[-1.0, 2], [3, -4], [0, 5]])
    assert net.layers[2](x).get().tolist() == [[0, 2], [3, 0], [0, 5]]
    assert net.layers[1](x).get().tolist() == [[0, 3], [4, -3], [1, 6]]
    assert x.get().tolist() == [[-1, 2], [3, -4], [0, 5]]


def test_a_call_states_which_step_is_missing(be):
    be.bsz = 2
    for layer in (Linear(1, Gaussian(), name="fc"), Sequential([Linear(1, Gaussian(), name="fc")], name="fc")):
        with pytest.raises(RuntimeError, match=r"fc: expected a configured layer.*configure\(shape\), then allocate"):
            layer(be.ones((3, 2)))
        layer.configure(3)
        with pytest.raises(RuntimeError, match=r"fc: expected allocated parameters, got none. Call allocate\(\)"):
            layer(be.ones((3, 2)))
        layer.allocate()
        assert layer(be.ones((3, 2))).shape == (1, 2)


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


# --- in place --------------------------------------------------------------------------------------------------------


class ByFormula(Layer):
    """An elementwise function of x, whose derivative may read the outputs."""

    def __init__(self, f, name=None):
        super().__init__(name)
        self.formula = f

    def configure(self, in_obj):
        super().configure(in_obj)
        self.out_shape = self.in_shape
        return self


class InPlace(ByFormula):
    """The same, and it may write its outputs over its inputs."""

    in_place = True


PARTS: dict[str, Callable[[], Any]] = {
    "Linear": lambda: Linear(4, Gaussian()),
    "Bias": lambda: Bias(Gaussian()),
    "Tanh": lambda: Activation(Tanh()),
    "Softmax": lambda: Activation(Softmax()),
    "SiLU": lambda: Activation(SiLU()),
    "twice": MultiplyByTwo,
    "carefully twice": Careful,
    "exp": lambda: ByFormula(lambda x: (x / 8).backend.exp(x / 8)),
    "square": lambda: ByFormula(lambda x: x * x),
    "same": lambda: ByFormula(lambda x: x),
    "exp in place": lambda: InPlace(lambda x: (x / 8).backend.exp(x / 8)),
    "Gain": lambda: Gain(Gaussian()),
    "network": lambda: Sequential([Linear(4, Gaussian()), Activation(Tanh())]),
    "in place": lambda: Sequential([Bias(Gaussian()), Activation(Tanh())]),
}


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


def test_layers_share_a_buffer_where_that_is_safe(be, rng):
    be.bsz = 3
    net = network(
        [Affine(4, Gaussian(), Gaussian(), activation=Rectlin()), Affine(2, Gaussian(), Gaussian(), activation=Tanh())],
        5,
    )
    first, second = net.layers[:3], net.layers[3:]
    net.fprop(data(be, rng, 5))
    net.bprop(data(be, rng, 2))
    for linear, bias, activation in (first, second):
        assert linear.outputs is bias.outputs is activation.outputs
    assert first[0].outputs.allocation is not second[0].outputs.allocation
    assert first[1].deltas is first[2].deltas is second[0].deltas


@pytest.mark.parametrize("seed", range(10))
def test_no_layer_gets_its_error_in_the_memory_of_its_deltas(rng, seed):
    be = gen_backend("cpu", batch_size=2)
    parts = ["Linear", *np.random.default_rng(seed).choice(["Linear", "Tanh", "twice", "carefully twice"], size=7)]
    net = network([PARTS[part]() for part in parts], 4, deltas=True)
    seen = []

    def watched(layer: Any) -> Callable[..., Any]:
        bprop = type(layer).bprop
        return lambda error: (seen.append((error, layer.deltas)), bprop(layer, error))[1]

    for layer in net:
        layer.bprop = watched(layer)
    net.fprop(data(be, rng, 4))
    net.bprop(data(be, rng, net.out_shape))
    assert len(seen) == 8
    own = [pair for pair, layer in zip(seen, net.layers[::-1], strict=True) if layer.owns_delta]
    for error, deltas in own:
        assert error.allocation is not deltas.allocation
    assert len({id(deltas.allocation) for _, deltas in own}) <= 2 + sum("twice" in part for part in parts)


@pytest.mark.parametrize("parameter", [True, False])
def test_a_layer_whose_derivative_reads_its_inputs_cannot_be_in_place(be, rng, parameter):
    class SpoiledGain(Gain):
        in_place = True

    be.bsz = 3
    layer = SpoiledGain(Gaussian(), name="mine") if parameter else InPlace(lambda x: x * x, name="mine")
    net = network([Linear(4, Gaussian()), layer], 4)
    with pytest.raises(
        ValueError, match="mine: expected a derivative that does not read the inputs, because in_place overwrites"
    ):
        net.fprop(data(be, rng, 4))
    fine = InPlace(lambda x: be.exp(x / 8))
    net = network([Linear(4, Gaussian()), fine], 4)
    net.fprop(data(be, rng, 4))
    assert fine.outputs is net.layers[0].outputs


def test_an_activation_does_not_overwrite_outputs_that_another_reads(be64, rng):
    be64.bsz = 3
    for between in ([], [Dropout(1.0)], [Bias(Constant(0.0))]):
        net = network([Linear(4, Gaussian()), Activation(Tanh()), *between, Activation(Logistic())], 4)
        net.fprop(data(be64, rng, 4))
        close(net.layers[-1].outputs, 1 / (1 + np.exp(-net.layers[1].outputs.get())))


@pytest.mark.parametrize("part", [*PARTS, "Dropout"])
def test_data_and_errors_are_not_changed(be, rng, part):
    make = PARTS.get(part, Dropout)
    be.bsz = 3
    for layers in ([make()], [make(), Activation(Tanh())], [make(), Bias(Gaussian()), Activation(Tanh())]):
        net = network(layers, 4, deltas=True)
        x, error = data(be, rng, 4), data(be, rng, net.out_shape)
        before, wrong = x.get(), error.get()
        net.fprop(x)
        net.bprop(error)
        net.fprop(x, inference=True)
        close(x, before, 0)
        if part != "twice" or len(layers) > 1:  # the guide's layer writes over its error
            close(error, wrong, 0)


def test_a_layer_may_become_the_first_of_another_network(be, rng):
    be.bsz = 3
    bias = network([Linear(4, Gaussian()), Bias(Gaussian())], 4).layers[1]
    net, x = network([bias, Linear(2, Gaussian())], 4), data(be, rng, 4)
    before = x.get()
    close(net.fprop(x), net.layers[1].W.get() @ (before + bias.W.get()), 1e-5)
    close(x, before, 0)


def test_multiply_by_two_works_in_the_middle_of_a_network(be64, rng):
    be64.bsz = 3
    net = network([Affine(4, Gaussian(), activation=Tanh()), MultiplyByTwo(), Affine(2, Gaussian())], 4, deltas=True)
    x, error = data(be64, rng, 4), data(be64, rng, 2)
    W, V = (p.get() for p in net.parameters)
    h = np.tanh(W @ x.get())
    close(net.fprop(x), V @ (2 * h))
    close(net.bprop(error), W.T @ ((1 - h * h) * 2 * (V.T @ error.get())))
    close(net.gradients[1], error.get() @ (2 * h).T)


def test_a_network_writes_to_the_given_buffers(be, rng):
    be.bsz = 3
    for layers in (
        [Linear(4, Gaussian())],
        Affine(4, Gaussian(), Gaussian(), activation=Tanh()),
        [MultiplyByTwo(), Dropout()],
    ):
        net = Sequential(layers).configure(4)
        shared = be.zeros((4, 3))
        net.allocate(shared)
        close(net.fprop(data(be, rng, 4)), shared.get(), 0)
        assert np.all(np.any(shared.get() != 0, axis=0))


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


def test_bprop_of_a_network_after_inference_is_an_error(be, rng):
    be.bsz = 2
    net = network([MultiplyByTwo(), Sequential([Linear(3, Gaussian())], name="inner")], 3)
    x, error = data(be, rng, 3), data(be, rng, 3)
    for ready in (lambda: None, lambda: (net.fprop(x), net.fprop(x, inference=True))):
        ready()
        with pytest.raises(RuntimeError, match=f"{net.name}: bprop: expected a training fprop before it, .* inference"):
            net.bprop(error)
    net.fprop(x)
    net.bprop(error)


def test_new_data_gives_new_outputs_in_the_same_or_another_tensor(be64, rng):
    be64.bsz = 2
    for make, formula in LAYERS.values():
        layer = by_hand(make(), 3)
        for x in (data(be64, rng, 3), data(be64, rng, 3)):
            for _ in range(2):
                x[:] = rng.normal(size=(3, 2))
                W = layer.W.get() if layer.has_params else None
                close(layer.fprop(x), formula(layer, W, x.get()))


# --- parameters ------------------------------------------------------------------------------------------------------


def mlp(name: str = "") -> list[Any]:
    hidden = Affine(5, Gaussian(), bias=Gaussian(), activation=Rectlin(), name=f"{name}h")
    return [hidden, Dropout(0.9), Affine(3, Gaussian(), bias=Gaussian(), activation=Softmax(), name=f"{name}o")]


def test_parameters_are_views_of_one_buffer_and_gradients_of_another(be, rng):
    be.bsz = 2
    net = network([mlp(), Sequential([Linear(2, Gaussian(), name="in")])], 4)
    for tensors, names in ((net.parameters, "W"), (net.gradients, "dW")):
        assert [x.name for x in tensors] == [f"{x}.{names}" for x in ("h", "h_bias", "o", "o_bias", "in")]
        assert [x.shape for x in tensors] == [(5, 4), (5, 1), (3, 5), (3, 1), (2, 3)]
        assert len({id(x.allocation) for x in tensors}) == 1
        assert tensors[0].storage_offset == 0
        assert tensors[-1].span[1] == tensors[0].root.size == 20 + 5 + 15 + 3 + 6
        for x, y in itertools.pairwise(tensors):
            assert x.span[1] == y.storage_offset
    root = net.parameters[0].root
    close(root.get().ravel(), np.concatenate([p.get().ravel() for p in net.parameters]), 0)
    net.layers[0].W = np.arange(20.0).reshape(5, 4)
    close(root[:20].get().ravel(), np.arange(20.0), 0)
    assert net.parameters[0].allocation is not net.gradients[0].allocation
    assert [layer.name for layer in net.layers_to_optimize] == ["h", "h_bias", "o", "o_bias", "in"]


def test_an_optimizer_updates_a_network_in_one_pass(cpu, rng):
    cpu.bsz = 2
    net, cost = network(mlp(), 4, CrossEntropyMulti())
    x, t = data(cpu, rng, 4), cpu.array(np.eye(3)[:, :2])
    optimizer = Adam()
    cost.get_cost(net.fprop(x), t)
    net.bprop(cost.get_errors(net.outputs, t))
    optimizer.optimize(net.layers_to_optimize, 0)
    (known,) = optimizer._groups.values()
    assert len(known.rows) == 1
    assert known.rows[0][0].size == 43


def test_values_assigned_to_weights_are_copied(be):
    be.bsz = 2
    layer = by_hand(Linear(2, Constant(1.0)), 3)
    W, values = layer.W, np.arange(6.0).reshape(2, 3)
    for value in (values, be.array(values), be.array(values) * 1, values.astype("float32")):
        layer.W = 0
        close(W, np.zeros((2, 3)))
        layer.W = value
        assert layer.W is W
        close(W, values)
    layer.W = layer.W * 2
    assert layer.W is W
    close(W, 2 * values)
    values[:] = 9
    assert 9 not in W.get()
    for wrong in (np.zeros((3, 3)), np.zeros((1, 3)), be.zeros((3, 1))):
        with pytest.raises(ValueError, match=rf"{layer.name}\.W: expected the shape \(2, 3\), got "):
            layer.W = wrong
    with pytest.raises(ValueError, match=rf"{layer.name}\.W"):
        layer.W = np.zeros((3, 2))
    with pytest.raises(
        TypeError, match=r"fresh\.W: expected an allocated tensor to copy into, got none\. Call allocate"
    ):
        Linear(2, Constant(1.0), name="fresh").W = values


def test_weights_are_initialized_by_an_initializer_an_array_or_a_tensor(be):
    be.bsz = 2
    values = np.arange(6.0).reshape(2, 3)
    for init in (Array(values), values, be.array(values), values.astype("int32")):
        layer = by_hand(Linear(2, init), 3)
        close(layer.W, values)
        close(layer.dW, np.zeros((2, 3)))
    assert by_hand(Bias(np.ones((3, 1))), (3, 2, 5)).W.shape == (3, 1)
    for init in (np.ones((3, 2)), be.ones((3, 2)), np.ones(6), np.float32(1), Array(np.ones((3, 2)))):
        with pytest.raises(ValueError, match=r"far.*\(2, 3\)"):
            by_hand(Linear(2, init, name="far"), 3)
    with pytest.raises(TypeError, match=r"far.*: expected an initializer such as Gaussian"):
        Linear(2, 0.1, name="far")
    with pytest.raises(ValueError, match=r"far: expected one of .*'gaussian', .* for init, got 'Gauss'"):
        Linear(2, "Gauss", name="far")


def test_parameters_are_read_and_set_by_name(be):
    be.bsz = 2
    layer = by_hand(Linear(2, Constant(1.0)), 3)
    (W, dW), states = layer.get_params()
    assert W is layer.W
    assert dW is layer.dW
    assert states is layer.states == []
    layer.set_params({"W": np.full((2, 3), 7.0)})
    close(W, np.full((2, 3), 7.0))
    with pytest.raises(KeyError, match=f"{layer.name}: expected an array W, got only V"):
        layer.set_params({"V": 1})
    with pytest.raises(ValueError, match=rf"{layer.name}\.W: expected the shape"):
        layer.set_params({"W": np.ones((1, 3))})


def test_a_second_allocate_keeps_the_weights(be, rng):
    be.bsz = 2
    net = network(mlp(), 4)
    x, error = data(be, rng, 4), data(be, rng, 3)
    before = [p.get() for p in net.parameters]
    net.fprop(x)
    net.allocate()
    net.allocate_deltas()
    for p, value in zip(net.parameters, before, strict=True):
        close(p, value, 0)
    dropout = next(layer for layer in net.layers if isinstance(layer, Dropout))
    net.fprop(x)
    close(dropout.outputs, dropout.inputs.get() * dropout.mask.get(), 0)
    net.bprop(error)
    alone = by_hand(Dropout(), 4)
    for _ in range(5):
        alone.allocate()
        close(alone.fprop(x), x.get() * alone.mask.get(), 0)


# --- dropout ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("caffe", [False, True])
@pytest.mark.parametrize("keep", [0.25, 0.9, 1, np.float32(0.5)])
def test_dropout_scales_in_training_or_for_inference(be, caffe, keep):
    be.bsz = 500
    if caffe:
        be.set_caffe_compat()
    layer = by_hand(Dropout(keep), 20)
    x, error = be.ones((20, 500)), be.ones((20, 500)) * 3
    masks = []
    for _ in range(2):
        kept = layer.fprop(x).get()
        masks.append(kept)
        scale = np.float32(1 / keep) if caffe else 1
        np.testing.assert_allclose(np.unique(kept), [scale] if keep == 1 else [0, scale], rtol=1e-6)
        assert abs(np.mean(kept != 0) - keep) < 0.02
        close(layer.bprop(error.astensor()), 3 * kept, 1e-6)
        close(layer.fprop(x, inference=True), np.full((20, 500), 1 if caffe else keep), 1e-6)
    assert keep == 1 or np.mean(masks[0] != masks[1]) > 0.1


def test_inference_draws_no_mask(be):
    be.bsz = 4
    layer = by_hand(Dropout(), 3)
    state = be.rng_get_state()
    layer.fprop(be.ones((3, 4)), inference=True)
    assert be.rng_get_state() == state
    layer.fprop(be.ones((3, 4)))
    assert be.rng_get_state() != state


def test_dropout_drops_the_same_on_every_runtime(be):
    def dropped() -> NDArray:
        return by_hand(Dropout(0.3), 7).fprop(be.ones((7, 11))).get()

    be.bsz = 11
    got = dropped()
    be = gen_backend("cpu", rng_seed=1, batch_size=11)
    close(got, dropped(), 0)


# --- costs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [4, (4, 3), (1, 2, 2)])
def test_a_cost_is_the_mean_over_columns(be64, rng, shape):
    be64.bsz = 5
    layer = by_hand(Activation(Identity()), shape)
    cost = GeneralizedCost(SumSquared())
    cost.initialize(layer)
    y, t = data(be64, rng, shape), data(be64, rng, shape)
    each = ((y.get() - t.get()) ** 2).sum(axis=0) / 2
    assert len(each) == (15 if shape == (4, 3) else 5)
    got = cost.get_cost(y, t)
    assert got.shape == (1, 1)
    assert isinstance(got, np.ndarray)
    assert cost.cost is got
    close(got, [[each.mean()]])
    close(cost.outputs, [each])
    close(cost.get_errors(y, t), y.get() - t.get())  # not divided by the number of columns


COSTS = [CrossEntropyMulti, CrossEntropyBinary, SumSquared, MeanSquared, SmoothL1Loss, SquareHingeLoss]
PAIRS = {("Softmax", CrossEntropyMulti), ("PixelwiseSoftmax", CrossEntropyMulti)}
PAIRS |= {("Logistic", CrossEntropyBinary), ("Logistic, shortcut", CrossEntropyBinary)}


@pytest.mark.filterwarnings("ignore:.*expects probabilities", "ignore:.*the softmax of a single output")
@pytest.mark.parametrize("costfunc", COSTS)
@pytest.mark.parametrize("end", TRANSFORMS)
def test_a_cost_and_an_activation_give_the_numerical_gradient(be64, rng, end, costfunc):
    be64.bsz = 3
    for shape in (4, (4, 2)):
        layers = [
            Affine(3, Gaussian(), Gaussian(), activation=Tanh()),
            Affine(3, Gaussian(), Gaussian(), activation=TRANSFORMS[end][0]()),
        ]
        net, cost = network(layers, shape, costfunc())
        assert cost.shortcut == net.layers[-1].shortcut == ((end, costfunc) in PAIRS)
        x = data(be64, rng, shape)
        t = targets(be64, rng, (3, x.shape[1]))
        if end == "PixelwiseSoftmax":  # of one class, which is always the right one
            t.fill(1)
        check_cost(net, cost, x, t)


@pytest.mark.parametrize("costfunc", [CrossEntropyMulti, SumSquared])
def test_a_softmax_in_the_middle_has_its_true_derivative(be64, rng, costfunc):
    be64.bsz = 3
    layers = [Affine(4, Gaussian(), activation=Softmax()), Affine(3, Gaussian(), activation=Softmax())]
    net, cost = network([*layers, Sequential([Affine(3, Gaussian(), activation=Softmax())])], 4, costfunc())
    softmaxes = [x for x in net.leaves() if isinstance(x, Activation)]
    assert [x.shortcut for x in softmaxes] == [False, False, costfunc is CrossEntropyMulti]
    check_cost(net, cost, data(be64, rng, 4), targets(be64, rng, (3, 3)))


def test_the_shortcut_follows_the_current_cost(be64, rng):
    be64.bsz = 3
    net, paired = network(Affine(3, Gaussian(), activation=Softmax()), 4, CrossEntropyMulti())
    x, t = data(be64, rng, 4), targets(be64, rng, (3, 3))
    assert net.layers[-1].shortcut
    other = GeneralizedCost(SumSquared())
    other.initialize(net)
    assert not net.layers[-1].shortcut
    assert not other.shortcut
    for cost in (other, paired, other):
        check_cost(net, cost, x, t)


def test_a_scaled_cross_entropy_scales_its_errors_with_and_without_the_shortcut(be64, rng):
    be64.bsz = 3
    x, t = data(be64, rng, 4), targets(be64, rng, (3, 3))
    W, found = rng.normal(size=(3, 4)), []
    for scale, last in ((1, Softmax()), (2.5, Softmax()), (2.5, Softmax(axis=0))):
        net, cost = network([Linear(3, W), Activation(last)], 4, CrossEntropyMulti(scale))
        if len(found) == 2:
            cost.shortcut = False
        net.fprop(x)
        net.bprop(cost.get_errors(net.outputs, t))
        found.append(net.gradients[0].get())
    close(found[1], 2.5 * found[0])
    close(found[2], found[1])


# --- training --------------------------------------------------------------------------------------------------------


def train(be: Backend, steps: int = 120) -> tuple[list[float], list[NDArray]]:
    """Teach a small network 64 random points; return the cost of each step, and the weights."""
    be.bsz = 64
    draw = np.random.default_rng(7)
    x, t = be.array(draw.normal(size=(5, 64))), be.array(np.eye(3)[:, draw.integers(3, size=64)])
    affine = [
        Affine(n, Uniform(-0.4, 0.4), Constant(), activation=f)
        for n, f in ((40, Tanh()), (23, Rectlin()), (3, Softmax()))
    ]
    net, cost = network(affine, 5, CrossEntropyMulti())
    optimizer = GradientDescentMomentum(0.5, 0.9)
    costs = []
    for _ in range(steps):
        costs.append(cost.get_cost(net.fprop(x), t).item())
        net.bprop(cost.get_errors(net.outputs, t))
        optimizer.optimize(net.layers_to_optimize, 0)
    return costs, [p.get() for p in net.parameters]


def test_a_network_memorizes_64_points(be):
    costs, _ = train(be)
    assert costs[0] > 1
    assert costs[-1] < 0.02


def test_training_is_the_same_on_every_runtime(be64):
    costs, weights = train(be64, 30)
    wanted, theirs = train(gen_backend("cpu", rng_seed=1, datatype=np.float64), 30)
    close(costs, wanted, 1e-9)
    for p, q in zip(weights, theirs, strict=True):
        close(p, q, 1e-8)


def test_a_seed_gives_the_same_bits_twice(be):
    first, again = (train(gen_backend(be.name, rng_seed=3), 10) for _ in range(2))
    other = train(gen_backend(be.name, rng_seed=4), 10)
    assert first[0] == again[0] != other[0]
    assert all(p.tobytes() == q.tobytes() for p, q in zip(first[1], again[1], strict=True))


def test_a_second_training_step_allocates_nothing(cpu, rng):
    cpu.bsz = 64
    layers = [
        Affine(37, Gaussian(), Gaussian(), activation=Rectlin()),
        MultiplyByTwo(),
        Bias(Gaussian()),
        Gain(Gaussian()),
    ]
    layers += [
        Activation(SiLU()),
        Affine(11, Gaussian(), Gaussian(), activation=Tanh()),
        Affine(10, Gaussian(), activation=Softmax()),
    ]
    net, cost = network(layers, 29, CrossEntropyMulti())
    batches = [(data(cpu, rng, 29), targets(cpu, rng, (10, 64))) for _ in range(2)]
    optimizer = GradientDescentMomentum(0.1, 0.9)

    def step(x: Any, t: Any) -> None:
        cost.get_cost(net.fprop(x), t)
        net.bprop(cost.get_errors(net.outputs, t))
        optimizer.optimize(net.layers_to_optimize, 0)

    for batch in batches * 2:
        step(*batch)
    plans = cpu.plan_cache.num_compiled
    for batch in batches:
        assert buffers(lambda batch=batch: step(*batch)) == []
    assert cpu.plan_cache.num_compiled == plans


def test_dropout_allocates_nothing_of_size(cpu):
    cpu.bsz = 1000
    layer, x = by_hand(Dropout(), 300), cpu.ones((300, 1000))
    for _ in range(3):
        layer.bprop(layer.fprop(x))
    plans = cpu.plan_cache.num_compiled
    assert not buffers(lambda: layer.bprop(layer.fprop(x)))
    assert cpu.plan_cache.num_compiled == plans


# --- text ------------------------------------------------------------------------------------------------------------


def test_a_network_prints_its_layers_one_a_line(cpu):
    net = Sequential([mlp(), Sequential([Linear(2, Gaussian(), name="last")])]).configure(4)
    assert str(net) == "\n".join(
        [
            "Sequential",
            "  Linear Layer 'h': 4 -> 5",
            "  Bias Layer 'h_bias': 5 -> 5",
            "  Activation Layer 'h_Rectlin': 5 -> 5",
            f"  Dropout Layer '{net.layers[3].name}': 5 -> 5",
            "  Linear Layer 'o': 5 -> 3",
            "  Bias Layer 'o_bias': 3 -> 3",
            "  Activation Layer 'o_Softmax': 3 -> 3",
            "  Sequential",
            "    Linear Layer 'last': 3 -> 2",
        ]
    )
    assert len(net) == 8
    assert list(net) == net.layers
    assert net.get_terminal().name == "last"


def test_an_affine_is_a_list_of_the_requested_layers():
    bias, activation = Constant(0.0), Tanh()
    assert [type(x) for x in Affine(3, Gaussian())] == [Linear]
    assert [type(x) for x in Affine(3, Gaussian(), bias)] == [Linear, Bias]
    assert [type(x) for x in Affine(3, Gaussian(), activation=activation)] == [Linear, Activation]
    affine = Affine(3, Gaussian(), bias, activation=activation)
    assert [x.name for x in affine[1:]] == [f"{affine[0].name}_bias", f"{affine[0].name}_Tanh"]
    assert affine[1].init is bias
    assert affine[2].transform is activation
    assert affine[0].nout == 3
    assert [type(x) for x in Affine(3, Gaussian(), batch_norm=True, activation=activation)] == [
        Linear,
        BatchNorm,
        Activation,
    ]
    with pytest.raises(AttributeError, match="fc: expected bias or batch_norm, got both"):
        Affine(3, Gaussian(), bias, batch_norm=True, name="fc")
    with pytest.raises(TypeError, match=r"fc: expected True or False for batch_norm, got Tanh"):
        Affine(3, Gaussian(), bias, activation, name="fc")


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nout", [0, -1, 2.0, True, "5", None])
def test_a_wrong_number_of_outputs_is_rejected(cpu, nout):
    with pytest.raises((TypeError, ValueError), match=f"fc: expected an integer >= 1 for nout, got {nout!r}"):
        Linear(nout, Gaussian(), name="fc")
    with pytest.raises((TypeError, ValueError), match="fc: expected an integer >= 1 for nout"):
        Affine(nout, Gaussian(), name="fc")


@pytest.mark.parametrize("keep", [0, -0.5, 1.5, math.nan, math.inf, "half", True])
def test_a_wrong_fraction_is_rejected(cpu, keep):
    with pytest.raises((ValueError, TypeError), match=r"drop: expected a .*number .*for keep"):
        Dropout(keep, name="drop")


@pytest.mark.parametrize("thing", [Tanh, None, math.tanh])
def test_an_activation_needs_a_transform(cpu, thing):
    with pytest.raises(TypeError, match=r"act: expected a transform, such as Rectlin\(\), for transform"):
        Activation(thing, name="act")


@pytest.mark.parametrize("shape", [0, -3, 2.5, None, "4", (3, 0), (3, -1), (), [2.5, 1], Linear(3, Gaussian())])
def test_a_wrong_shape_is_rejected(cpu, shape):
    for layer in (Linear(3, Gaussian(), name="lay"), Bias(Gaussian(), name="lay"), Sequential([Dropout(name="lay")])):
        with pytest.raises(ValueError, match=r"lay: expected an input shape F, \(F, T\) or \(C, H, W\), got "):
            layer.configure(shape)


def test_a_layer_that_is_not_configured_is_named(cpu):
    with pytest.raises(ValueError, match=r"lay: .* got None from before, which is not configured"):
        Bias(Gaussian(), name="lay").configure(Linear(3, Gaussian(), name="before"))


def test_layer_names_in_a_network_are_unique(cpu):
    with pytest.raises(ValueError, match="net: expected one or more layers, got none"):
        Sequential([], name="net")
    with pytest.raises(ValueError, match="net: expected one or more layers, got none"):
        Sequential([[], ()], name="net")
    layer = Linear(3, Gaussian(), name="a")
    for layers in ([layer, layer], [Affine(3, None), layer] * 2):
        with pytest.raises(ValueError, match=r"net: expected unique layer names, got .* twice. Pass name="):
            Sequential(layers, name="net")
    for thing in (Tanh(), Linear, "Linear", 3, None):
        with pytest.raises(TypeError, match="expected layers and lists of layers, got "):
            Sequential([layer, [thing]])
    assert Sequential(layer).layers == [layer]


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


def test_a_cost_comes_after_its_network(be, rng):
    be.bsz = 2
    net, cost = Sequential(mlp()), GeneralizedCost(SumSquared(), name="loss")
    for act in (cost.get_cost, cost.get_errors):
        with pytest.raises(
            RuntimeError,
            match=r"loss: expected an initialized cost, got one without buffers. Call initialize\(network\)",
        ):
            act(be.zeros((3, 2)), be.zeros((3, 2)))
    with pytest.raises(RuntimeError, match=rf"loss: expected a configured network, got {net.name}"):
        cost.initialize(net)
    cost.initialize(net.configure(4))
    with pytest.raises(ValueError, match="SumSquared: expected targets with a row for each of the 3 outputs"):
        cost.get_cost(be.zeros((3, 2)), be.zeros((4, 2)))


def test_a_layer_without_a_formula_names_the_missing_methods(be):
    be.bsz = 2

    class Empty(Layer):
        pass

    layer = Empty(name="mine").configure(3)
    layer.out_shape = 3
    layer.allocate()
    with pytest.raises(NotImplementedError, match=r"Empty: expected formula\(x\), or fprop and bprop"):
        layer.fprop(be.zeros((3, 2)))


def test_weights_reject_inputs_of_another_shape(be):
    be.bsz = 2
    layer = by_hand(Linear(2, Gaussian(), name="fc"), 3)
    layer.configure(4)
    with pytest.raises(
        ValueError,
        match=r"fc: expected .* shape \(2, 4\) for inputs of shape 4, got fc\.W \(2, 3\), allocated for other",
    ):
        layer.allocate()


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


def test_an_activation_follows_its_shortcut_and_its_transform(cpu):
    layer = made_ready(Activation(Logistic()), cpu, 2)
    x, error = (cpu.array(np.random.default_rng(k).standard_normal((3, 2))) for k in range(2))
    y = 1 / (1 + np.exp(-x.get()))
    for shortcut in (False, False, True, True, False):
        layer.shortcut = shortcut
        layer.fprop(x)
        expected = error.get() * (1 if shortcut else y * (1 - y))
        np.testing.assert_allclose(layer.bprop(error).get(), expected, rtol=1e-5)
    layer.transform = Normalizer(divisor=4.0)
    np.testing.assert_allclose(layer.bprop(error).get(), error.get() / 4, rtol=1e-5)


def test_bprop_of_an_activation_uses_the_current_attributes_of_its_transform(be: Backend) -> None:
    class Own(Transform):
        def __call__(self, x: Any) -> Any:
            return self.be.maximum(x, 0)

        def bprop(self, x: Any) -> Any:
            return self.be.array((x.get() > 0).astype("float32"))

    be.bsz = 4
    for transform in (Own(), Rectlin(slope=0.1)):
        layer = Activation(transform).configure(5)
        layer.needs_deltas = True
        layer.allocate()
        layer.allocate_deltas()
        x, error = be.empty((5, 4)), be.ones((5, 4))
        for seed in range(4):
            values = np.random.default_rng(seed).normal(size=(5, 4))
            x[:] = be.array(values)
            slope = 0.0
            if isinstance(transform, Rectlin):
                slope = transform.slope = 0.1 * (1 + seed // 2)
            layer.fprop(x)
            np.testing.assert_allclose(layer.bprop(error).get(), np.where(values > 0, 1, slope), rtol=1e-6)


def test_the_formula_of_a_bias_is_evaluated_once_for_each_batch_size(be, monkeypatch):
    formula, evaluated = Bias.formula, []

    def counted(self, x):
        evaluated.append(x)
        return formula(self, x)

    monkeypatch.setattr(Bias, "formula", counted)
    layer = Bias()
    network = Sequential([Linear(3, init=Gaussian()), layer])
    be.bsz = 4
    network.configure(5)
    network.allocate()
    network.allocate_deltas()
    buffers = []
    for n in [4, 2, 4, 2, 4, 2]:
        network.set_batch_size(n)
        x = be.ones((5, n))
        y = network.fprop(x)
        network.bprop(be.ones((3, n)))
        buffers.append(y)
        expected = layer.W.get() + network.layers[0].W.get().sum(axis=1, keepdims=True)
        np.testing.assert_allclose(y.get(), np.tile(expected, n), rtol=1e-5)
        layer.W[:] = layer.W + 1
    assert len(evaluated) <= 3  # the first buffer, and a view of it for each batch size
    assert buffers[2] is buffers[4]
    assert buffers[3] is buffers[5]
    network.configure(5)
    assert not layer.trees


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
