"""Sequential networks: training, names, buffers that layers share (neonlite/layers/container.py)."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.layer_cases import PARTS, mlp
from helpers.networks import MultiplyByTwo, NDArray, close, data, needs_torch, network

from neonlite import Backend, gen_backend
from neonlite.initializers import Constant, Gaussian, Uniform
from neonlite.layers import Activation, Affine, Bias, Dropout, Linear, Sequential
from neonlite.optimizers import GradientDescentMomentum
from neonlite.transforms import CrossEntropyBinary, CrossEntropyMulti, Logistic, Rectlin, Softmax, SumSquared, Tanh


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
