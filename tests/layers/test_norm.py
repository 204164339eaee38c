"""Normalization layers, compared with loops over scalars, numerical gradients, PyTorch and their formula."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from helpers.networks import allocate
from helpers.reference import numerical_gradient

import neonlite as nl
from neonlite import Backend, gen_backend
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import (
    Activation,
    BatchNorm,
    BatchNormAutodiff,
    Bias,
    Layer,
    LayerNorm,
    Linear,
    Reshape,
    Sequential,
    ShiftBatchNorm,
)
from neonlite.layers.buffers import num_features
from neonlite.transforms import Rectlin, Tanh

Array = np.ndarray[Any, Any]

# the inputs' shape and the size of the minibatch
PLACES = [(5, 4), (1, 3), (7, 1), ((3, 5), 2), ((4, 2), 1), ((3, 2, 5), 4), ((1, 3, 3), 1), ((2, 3, 1, 3), 3)]


# as the guide of neon prints it
PRINTED = '''
class BatchNormAutodiff(BatchNorm):

    def __init__(self, rho=0.99, eps=1e-6, name=None):
        super(BatchNormAutodiff, self).__init__(rho, eps, name)

    def get_forward_optree(self):
        """
        Initialize the fprop optree for batchnorm.
        """
        # get fprop op-tree
        xvar = self.be.var(self.x, axis=1)
        xmean = self.be.mean(self.x, axis=1)
        xhat = (self.x - xmean) / self.be.sqrt(xvar + self.eps)
        return xhat * self.gamma + self.beta

    def fprop(self, inputs, inference=False):
        """
        Compute the actual fprop from op-tree, update the global estimations
        """
        if inference:
            return self._fprop_inference(inputs)
        self.init_buffers(inputs)
        if self.allparams is None:
            self.init_params(self.nfm)
            self.fprop_op_tree = self.get_forward_optree()

        # the actual f-prop
        self.y[:] = self.fprop_op_tree

        # for inference
        self.gmean[:] = (self.gmean * self.rho + (1.0 - self.rho) * self.be.mean(self.x, axis=1))
        self.gvar[:] = (self.gvar * self.rho + (1.0 - self.rho) * self.be.var(self.x, axis=1))

        return self.outputs

    def bprop(self, error):
        """
        Use Autodiff.back_prop_grad to back propagate gradients for the
        corresponding tensors.
        """
        if not self.deltas:
            self.deltas = error.reshape((self.nfm, -1))

        # autodiff will automatically cache and reuse the object
        # if we know the `error` buffer at init, we can also create the autodiff
        # object at layer's init
        ad = Autodiff(self.fprop_op_tree, self.be, next_error=self.deltas)

        # back propagate
        ad.back_prop_grad([self.x, self.gamma, self.beta],
                          [self.deltas, self.grad_gamma, self.grad_beta])

        return error
'''
guide: dict[str, Any] = {"__name__": "guide", "Autodiff": nl.Autodiff, "BatchNorm": BatchNorm}
exec(PRINTED, guide)
Printed = guide["BatchNormAutodiff"]

BATCH_NORMS = [BatchNorm, BatchNormAutodiff, Printed]
each_batch_norm = pytest.mark.parametrize("cls", BATCH_NORMS)
each_place = pytest.mark.parametrize(("shape", "N"), PLACES)


def size(shape: Any, N: int) -> tuple[int, int]:
    """Return the shape of the buffer of a minibatch."""
    return (shape[0], shape[1] * N) if isinstance(shape, tuple) and len(shape) == 2 else (num_features(shape), N)


def maps(shape: Any) -> int:
    return shape if isinstance(shape, int) else shape[0]


def scaled(be: Backend, layer: Any, rng: np.random.Generator) -> tuple[Array, Array]:
    """Give a layer some gamma and beta; return them."""
    gamma, beta = rng.normal(size=(2, layer.nfm, 1)) + 1
    layer.gamma, layer.beta = gamma, beta
    return gamma, beta


# --- the reference: loops over scalars -------------------------------------------------------------------------------


def product(x: float, y: float) -> float:
    return x * y


def shift(x: float, y: float) -> float:
    """Return x times the power of two nearest to y, with its sign."""
    return x * math.copysign(2.0 ** round(math.log2(abs(y))), y) if y else 0.0


def statistics(group: Any, times: Any = product) -> tuple[float, float]:
    """Return the mean and the population variance of values."""
    mean = math.fsum(group) / len(group)
    return mean, math.fsum(times(v - mean, v - mean) for v in group) / len(group)


def batch_norm(
    x: Array, nfm: int, gamma: Array, beta: Array, eps: float, running: Any = None, times: Any = product
) -> Array:
    """Normalize each feature map; ``running``: (means, variances) to do it by."""
    out = np.empty((nfm, x.size // nfm))
    for f, row in enumerate(x.reshape(nfm, -1).tolist()):
        mean, var = (running[0][f, 0], running[1][f, 0]) if running else statistics(row, times)
        out[f] = [times(times(v - mean, 1 / math.sqrt(var + eps)), gamma[f, 0]) + beta[f, 0] for v in row]
    return out.reshape(x.shape)


def layer_norm(x: Array, gamma: Array, beta: Array, eps: float) -> Array:
    out = np.empty(x.shape)
    for n, column in enumerate(x.T.tolist()):
        mean, var = statistics(column)
        out[:, n] = [(v - mean) / math.sqrt(var + eps) * gamma[f, 0] + beta[f, 0] for f, v in enumerate(column)]
    return out


# --- forward pass ----------------------------------------------------------------------------------------------------


@each_batch_norm
@each_place
def test_each_feature_map_is_normalized_over_all_else(be, rng, cls, shape, N):
    layer = allocate(be, cls(eps=1e-3), shape, N)
    assert (layer.out_shape, layer.nfm) == (shape, maps(shape))
    gamma, beta = scaled(be, layer, rng)
    x = rng.normal(size=size(shape, N)) * 3 + 1
    y = layer.fprop(be.array(x))
    assert y is layer.outputs
    np.testing.assert_allclose(y.get(), batch_norm(x, layer.nfm, gamma, beta, 1e-3), rtol=1e-3, atol=1e-4)


@each_place
def test_layer_norm_normalizes_each_column_alike_in_training_and_inference(be, rng, shape, N):
    layer = allocate(be, LayerNorm(eps=1e-3), shape, N)
    assert (layer.out_shape, layer.nfm) == (shape, num_features(shape))
    gamma, beta = scaled(be, layer, rng)
    x = rng.normal(size=size(shape, N)) * 3 + 1
    for inference in (False, True):
        y = layer.fprop(be.array(x), inference)
        np.testing.assert_allclose(y.get(), layer_norm(x, gamma, beta, 1e-3), rtol=1e-4, atol=1e-5)


def test_the_defaults_are_those_of_neon(be):
    for layer, rho, eps in (
        (BatchNorm(), 0.9, 1e-3), (BatchNormAutodiff(), 0.99, 1e-6), (ShiftBatchNorm(), 0.99, 1e-6)
    ):  # fmt: skip
        allocate(be, layer, 3, 2)
        assert (layer.rho, layer.eps, layer.binary) == (rho, eps, isinstance(layer, ShiftBatchNorm))
        for t, value in ((layer.gamma, 1), (layer.beta, 0), (layer.gmean, 0), (layer.gvar, 0)):
            assert np.array_equal(t.get(), np.full((3, 1), value))
    assert LayerNorm().eps == 1e-5


@pytest.mark.parametrize("inference", [False, True])
def test_shift_batch_norm_multiplies_by_powers_of_two(be, inference):
    layer = allocate(be, ShiftBatchNorm(eps=0.0), (2, 3), 2)
    layer.gamma, layer.gmean, layer.gvar = np.array([[3.1], [-0.3]]), np.array([[1.0], [2.0]]), np.array([[5.0], [0.4]])
    x = np.array([[1.0, 4, -2, 9, 3, 0], [0.5, 7, 2, 1, -3, 5.1]])
    running = (layer.gmean.get(), layer.gvar.get()) if inference else None
    want = batch_norm(x, 2, layer.gamma.get(), np.zeros((2, 1)), 0.0, running, shift)
    np.testing.assert_allclose(layer.fprop(be.array(x), inference).get(), want, rtol=1e-5)


# --- running statistics ----------------------------------------------------------------------------------------------


@each_batch_norm
@pytest.mark.parametrize(("shape", "N"), [(5, 4), ((3, 5), 2), ((2, 3, 3), 3)])
def test_training_steps_update_the_statistics_used_at_inference(be, rng, cls, shape, N):
    layer = allocate(be, cls(rho=0.75, eps=1e-2), shape, N)
    gamma, beta = scaled(be, layer, rng)
    nfm = layer.nfm
    gmean, gvar, x = np.zeros((nfm, 1)), np.zeros((nfm, 1)), be.empty(size(shape, N))
    for _ in range(4):
        batch = rng.normal(size=x.shape) * 2 + 1
        x[:] = batch
        layer.fprop(x)
        found = np.array([statistics(row) for row in batch.reshape(nfm, -1).tolist()])
        gmean, gvar = 0.75 * gmean + 0.25 * found[:, :1], 0.75 * gvar + 0.25 * found[:, 1:]
        layer.bprop(be.array(rng.normal(size=x.shape)))
    for t, want in ((layer.gmean, gmean), (layer.gvar, gvar)):
        np.testing.assert_allclose(t.get(), want, rtol=1e-4, atol=1e-5)
    kept = [t.get() for t in (layer.gmean, layer.gvar, layer.gamma, layer.beta)]
    batch = rng.normal(size=x.shape)
    y = layer.fprop(be.array(batch), inference=True).get()
    np.testing.assert_allclose(y, batch_norm(batch, nfm, gamma, beta, 1e-2, (gmean, gvar)), rtol=1e-3, atol=1e-4)
    for t, before in zip((layer.gmean, layer.gvar, layer.gamma, layer.beta), kept, strict=True):
        assert np.array_equal(t.get(), before)


def test_inference_before_training_uses_loaded_statistics(be, rng):
    layer = allocate(be, Printed(), 3, 2)
    given = {name: rng.uniform(1, 2, size=(3, 1)) for name in ("gmean", "gvar", "gamma", "beta")}
    layer.set_params(given)
    x = rng.normal(size=(3, 2))
    want = batch_norm(x, 3, given["gamma"], given["beta"], 1e-6, (given["gmean"], given["gvar"]))
    np.testing.assert_allclose(layer.fprop(be.array(x), inference=True).get(), want, rtol=1e-4, atol=1e-5)
    layer.fprop(be.array(x))
    assert layer.gmean.get()[0] < given["gmean"][0]


@each_batch_norm
def test_statistics_that_are_loaded_must_be_complete(be, cls):
    layer = allocate(be, cls(name="bn"), 2, 2)
    given = {name: np.ones((2, 1)) for name in ("beta", "gamma", "gmean", "gvar")}
    for name in given:
        with pytest.raises(KeyError, match=f"bn: expected an array {name}, got only"):
            layer.set_params({key: value for key, value in given.items() if key != name})


# --- backward pass ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [*BATCH_NORMS, LayerNorm])
@pytest.mark.parametrize(("shape", "N"), [(3, 4), (5, 1), ((2, 3), 2), ((2, 1, 3), 3)])
def test_gradients_are_numerical_gradients_of_the_textbook(be64, rng, cls, shape, N):
    layer = allocate(be64, cls(eps=1e-2), shape, N)
    gamma, beta = scaled(be64, layer, rng)
    x, error = rng.normal(size=(2, *size(shape, N)))

    def E(x: Array, gamma: Array, beta: Array) -> float:
        if cls is LayerNorm:
            return float(np.sum(layer_norm(x, gamma, beta, 1e-2) * error))
        return float(np.sum(batch_norm(x, layer.nfm, gamma, beta, 1e-2) * error))

    layer.fprop(be64.array(x))
    deltas = layer.bprop(be64.array(error))
    for got, want in (
        (deltas, numerical_gradient(lambda: E(x, gamma, beta), x, 1e-5)),
        (layer.grad_gamma, numerical_gradient(lambda: E(x, gamma, beta), gamma, 1e-5)),
        (layer.grad_beta, numerical_gradient(lambda: E(x, gamma, beta), beta, 1e-5)),
    ):
        np.testing.assert_allclose(got.get(), want, rtol=1e-6, atol=1e-8)


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize(
    ("cls", "shape", "N"),  # torch normalizes no batch of one
    [(cls, *place) for cls in [*BATCH_NORMS, LayerNorm] for place in PLACES if cls is LayerNorm or place != (7, 1)],
)
def test_values_and_gradients_are_those_of_torch(be64, rng, cls, shape, N):
    import torch
    from torch.nn import functional as F

    layer = allocate(be64, cls(eps=1e-3), shape, N)
    values = [*scaled(be64, layer, rng), *rng.normal(size=(2, *size(shape, N)))]
    gamma, beta, x, error = (torch.tensor(v, requires_grad=True) for v in values)
    if cls is LayerNorm:
        y = F.layer_norm(x.T, (layer.nfm,), gamma[:, 0], beta[:, 0], 1e-3).T
    else:
        rows = x.reshape(layer.nfm, -1).T
        gmean = torch.zeros(layer.nfm, dtype=torch.float64)
        y = F.batch_norm(rows, gmean, torch.ones_like(gmean), gamma[:, 0], beta[:, 0], True, 1 - layer.rho, 1e-3)
        y = y.T.reshape(x.shape)
    y.backward(error)
    np.testing.assert_allclose(layer.fprop(be64.array(values[2])).get(), y.detach(), rtol=1e-10, atol=1e-10)
    deltas = layer.bprop(be64.array(values[3]))
    for got, want in ((deltas, x.grad), (layer.grad_gamma, gamma.grad), (layer.grad_beta, beta.grad)):
        np.testing.assert_allclose(got.get(), want, rtol=1e-10, atol=1e-10)
    if cls is not LayerNorm:
        np.testing.assert_allclose(layer.gmean.get()[:, 0], gmean, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(("shape", "N"), [*PLACES, (300, 3)])
def test_the_hand_written_passes_are_those_of_the_formula(be64, rng, binary, shape, N):
    layer, formula = (allocate(be64, BatchNorm(binary=binary), shape, N) for _ in range(2))
    formula.gamma, formula.beta = scaled(be64, layer, rng)
    x, error = rng.normal(size=(2, *size(shape, N)))
    x = be64.array(x)
    y, z = layer.fprop(x), Layer.fprop(formula, x)
    np.testing.assert_allclose(y.get(), z.get(), rtol=1e-12, atol=1e-12)
    if not binary:  # by hand, products by powers of two have the derivative of the products they stand for
        deltas, wanted = layer.bprop(be64.array(error)), Layer.bprop(formula, be64.array(error))
        for got, want in zip([deltas, *layer.gradients], [wanted, *formula.gradients], strict=True):
            np.testing.assert_allclose(got.get(), want.get(), rtol=1e-10, atol=1e-10)
    layer.gvar = rng.uniform(0.5, 2, size=(layer.nfm, 1))
    formula.gmean, formula.gvar = layer.gmean, layer.gvar
    y, z = layer.fprop(x, True), Layer.fprop(formula, x, True)
    np.testing.assert_allclose(y.get(), z.get(), rtol=1e-12, atol=1e-12)


def test_the_errors_of_a_shifted_batch_are_shifted_as_well(be64, rng):
    layer = allocate(be64, ShiftBatchNorm(eps=1e-3), 2, 3)
    gamma, _ = scaled(be64, layer, rng)
    x, error = rng.normal(size=(2, 2, 3))
    layer.fprop(be64.array(x))
    deltas = layer.bprop(be64.array(error)).get()
    for f in range(2):
        mean, var = statistics(x[f].tolist(), shift)
        inv = 1 / math.sqrt(var + 1e-3)
        xhat = [shift(v - mean, inv) for v in x[f]]
        by_gamma, by_beta = sum(a * b for a, b in zip(xhat, error[f], strict=True)), sum(error[f])
        np.testing.assert_allclose([layer.grad_gamma.get()[f, 0], layer.grad_beta.get()[f, 0]], [by_gamma, by_beta])
        want = [
            shift(shift(e - (shift(h, by_gamma) + by_beta) / 3, gamma[f, 0]), inv)
            for e, h in zip(error[f], xhat, strict=True)
        ]
        np.testing.assert_allclose(deltas[f], want)


@pytest.mark.parametrize("cls", [BatchNorm, BatchNormAutodiff, LayerNorm])
def test_deltas_are_added_with_beta_and_the_error_is_not_changed(be, rng, cls):
    layer = allocate(be, cls(), (2, 3, 1), 4)
    x, one, two = (be.array(rng.normal(size=(6, 4))) for _ in range(3))
    errors = one.get(), two.get()
    layer.fprop(x)
    first, second = layer.bprop(one).get(), layer.bprop(two).get()
    for alpha, beta in ((1.0, 1.0), (2.0, 0.0), (0.5, 3.0)):
        layer.fprop(x)
        layer.bprop(one)
        got = layer.bprop(two, alpha, beta)
        np.testing.assert_allclose(got.get(), alpha * second + beta * first, rtol=1e-3, atol=1e-5)
        assert np.array_equal(one.get(), errors[0])
        assert np.array_equal(two.get(), errors[1])


@pytest.mark.parametrize("cls", [BatchNorm, BatchNormAutodiff, LayerNorm])
def test_outputs_are_added_with_beta(be, rng, cls):
    layer = allocate(be, cls(), (2, 3, 1), 4)
    x = be.array(rng.normal(size=(6, 4)))
    for inference in (False, True):
        once = layer.fprop(x, inference).get()
        np.testing.assert_allclose(layer.fprop(x, inference, beta=0.5).get(), 1.5 * once, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cls", [BatchNorm, BatchNormAutodiff, LayerNorm])
def test_a_first_layer_has_no_deltas_and_is_trained(be, rng, cls):
    be.bsz = 4
    net = Sequential([cls(name="first")])
    net.configure(3)
    net.allocate()
    net.allocate_deltas()
    error = be.array(rng.normal(size=(3, 4)))
    before = error.get()
    net.fprop(be.array(rng.normal(size=(3, 4))))
    assert net.bprop(error) is None
    assert np.array_equal(error.get(), before)
    np.testing.assert_allclose(net.layers[0].grad_beta.get()[:, 0], before.sum(axis=1), rtol=1e-5)


@each_batch_norm
def test_new_inputs_and_new_errors_are_handled_like_old_ones(be, rng, cls):
    layer = allocate(be, cls(eps=1e-3), (2, 1, 2), 3)
    for _ in range(3):
        fresh = allocate(be, BatchNorm(eps=1e-3), (2, 1, 2), 3)
        x, error = rng.normal(size=(2, 4, 3))
        np.testing.assert_allclose(layer.fprop(be.array(x)).get(), fresh.fprop(be.array(x)).get(), atol=1e-5)
        got, want = layer.bprop(be.array(error)).get(), fresh.bprop(be.array(error)).get()
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        for t, wanted in zip(layer.gradients, fresh.gradients, strict=True):
            np.testing.assert_allclose(t.get(), wanted.get(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cls", [BatchNorm, BatchNormAutodiff, LayerNorm])
def test_reallocated_buffers_are_used(be, rng, cls):
    layer = allocate(be, cls(), (3, 1, 1), 4)
    x, error = rng.normal(size=(2, 3, 8))
    four, eight = ((be.array(x[:, :n]), be.array(error[:, :n])) for n in (4, 8))
    for inputs, wrong in (four, four, eight, four):
        be.bsz = inputs.shape[1]
        layer.allocate()
        layer.allocate_deltas()
        fresh = allocate(be, cls(), (3, 1, 1), be.bsz)
        np.testing.assert_allclose(layer.fprop(inputs).get(), fresh.fprop(inputs).get(), rtol=1e-5)
        assert np.array_equal(layer.bprop(wrong, 2.0, 1.0).get(), fresh.bprop(wrong, 2.0, 1.0).get())


# --- in a network ----------------------------------------------------------------------------------------------------


def network(be: Backend, cls: Any, weights: list[Array]) -> Sequential:
    be.bsz = 5
    init = [be.array(w) for w in weights]
    layers = [Linear(4, init[0]), Activation(Tanh()), cls(eps=1e-2), Activation(Rectlin()), Linear(3, init[1]),
              cls(eps=1e-2), cls(eps=1e-2)]  # fmt: skip
    net = Sequential(layers)
    net.configure(2)
    net.allocate()
    net.allocate_deltas()
    return net


@pytest.mark.parametrize("cls", [*BATCH_NORMS, LayerNorm])
def test_gradients_of_a_network_are_numerical_gradients(be64, rng, cls):
    weights = [rng.normal(size=(4, 2)), rng.normal(size=(3, 4))]
    x, error = rng.normal(size=(2, 5)), rng.normal(size=(3, 5))
    net = network(be64, cls, weights)

    def E(w: Array) -> float:
        h = np.tanh(w @ x)
        for i in (0, 1, 2):
            one, zero = np.ones((len(h), 1)), np.zeros((len(h), 1))
            h = layer_norm(h, one, zero, 1e-2) if cls is LayerNorm else batch_norm(h, len(h), one, zero, 1e-2)
            h = weights[1] @ np.maximum(h, 0) if i == 0 else h
        return float(np.sum(h * error))

    inputs = be64.array(x)
    for _ in range(2):
        net.fprop(inputs)
        net.bprop(be64.array(error))
    assert E(weights[0]) == pytest.approx(float(np.sum(net.outputs.get() * error)), rel=1e-9)
    np.testing.assert_allclose(
        net.layers[0].dW.get(), numerical_gradient(lambda: E(weights[0]), weights[0], 1e-5), rtol=1e-5, atol=1e-7
    )


@each_batch_norm
def test_the_guides_class_trains_like_the_builtin_one(be, rng, cls):
    weights = [rng.normal(size=(4, 2)), rng.normal(size=(3, 4))]
    nets = [network(be, c, weights) for c in (BatchNorm, cls)]
    x, target = rng.normal(size=(2, 5)), rng.normal(size=(3, 5))
    results = []
    for net in nets:
        for layer in net.leaves():
            if hasattr(layer, "rho"):
                layer.rho = 0.5
        inputs, costs = be.array(x), []
        for _ in range(8):
            y = net.fprop(inputs)
            error = be.array(y.get() - target)
            costs.append(float(np.sum(error.get() ** 2)))
            net.bprop(error)
            for p, g in zip(net.parameters, net.gradients, strict=True):
                p[:] = p - 0.02 * g
        results.append((costs, net.fprop(inputs, inference=True).get()))
    assert results[1][0][-1] < results[1][0][0]
    np.testing.assert_allclose(results[1][0], results[0][0], rtol=1e-3)
    np.testing.assert_allclose(results[1][1], results[0][1], rtol=1e-2, atol=1e-3)


PARTS = {
    "BatchNorm": lambda: BatchNorm(eps=1e-2),
    "by formula": lambda: BatchNormAutodiff(eps=1e-2),
    "printed": lambda: Printed(eps=1e-2),
    "LayerNorm": lambda: LayerNorm(eps=1e-2),
    "Reshape": lambda: Reshape(4),
    "reshaped twice": lambda: Sequential([Reshape((2, 1, 2)), Reshape((2, 2)), Reshape(-1)]),
    "through maps": lambda: [Reshape((2, 1, 2)), BatchNorm(eps=1e-2), Reshape(-1)],
    "Linear": lambda: Linear(4, Gaussian()),
    "Bias": lambda: Bias(Gaussian()),
    "Tanh": lambda: Activation(Tanh()),
}


@pytest.mark.parametrize("seed", range(40))
def test_the_backward_pass_of_any_chain_of_layers_is_correct(rng, seed):
    be = gen_backend("cpu", batch_size=3, datatype=np.float64, rng_seed=seed)
    parts = np.random.default_rng(seed).choice(list(PARTS), size=4)
    net = Sequential([PARTS[part]() for part in parts])
    net.configure(4)
    net.needs_deltas = True
    net.allocate()
    net.allocate_deltas()
    values, wrong = rng.normal(size=(2, 4, 3))
    x, error = be.array(values), be.array(wrong)

    def E(v: Array) -> float:
        return float(np.sum(net.fprop(be.array(v)).get() * wrong))

    for _ in range(2):
        net.fprop(x)
        deltas = net.bprop(be.array(wrong)).get()
    np.testing.assert_allclose(
        deltas, numerical_gradient(lambda: E(values), values, 1e-5), rtol=1e-5, atol=1e-7, err_msg=str(parts)
    )
    net.fprop(x)
    net.bprop(error)
    assert np.array_equal(x.get(), values)
    if "printed" not in parts:  # which writes over its error
        assert np.array_equal(error.get(), wrong)


@pytest.mark.parametrize("cls", [BatchNorm, BatchNormAutodiff, LayerNorm])
def test_bprop_after_inference_is_rejected(be, cls):
    layer = allocate(be, cls(name="n"), 3, 2)
    x = be.ones((3, 2))
    layer.fprop(x)
    layer.bprop(x)
    layer.fprop(x, inference=True)
    with pytest.raises(RuntimeError, match="n: bprop: expected a training fprop before it"):
        layer.bprop(x)


# --- parameters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [BatchNorm, LayerNorm])
def test_parameters_are_beta_and_gamma_in_the_buffer_of_the_network(be, cls):
    be.bsz = 2
    net = Sequential([Linear(3, Gaussian()), cls(name="n")])
    net.configure(2)
    net.allocate()
    layer = net.layers[1]
    pairs = layer.get_params()
    assert [[t.name for t in pair] for pair, _ in pairs] == [["n.beta", "n.grad_beta"], ["n.gamma", "n.grad_gamma"]]
    assert [states for _, states in pairs] == [[], []]
    assert pairs[0][1] is not pairs[1][1]
    root = net.layers[0].W.root
    assert all(p.root is root for (p, _), _ in pairs)
    assert root.size == 2 * 3 + 3 + 3
    beta = layer.beta
    layer.beta = np.array([[1.0], [2], [3]])
    assert layer.beta is beta
    assert np.array_equal(root.get()[6:9, 0], [1, 2, 3])
    assert np.array_equal(root.get()[9:, 0], [1, 1, 1])


def test_a_description_recreates_the_layer():
    for layer in (BatchNorm(0.5, 1e-2, "n", True), ShiftBatchNorm(0.5), BatchNormAutodiff(0.5), LayerNorm(1e-2)):
        config = layer.get_description()["config"]
        again = type(layer).gen_class(config)
        assert again.get_description() == layer.get_description()
        assert (again.eps, getattr(again, "rho", 0)) == (layer.eps, getattr(layer, "rho", 0))


def test_mistakes_are_named():
    for act, kind, words in (
        (lambda: BatchNorm(1.5, name="bn"), ValueError, "bn: expected a finite number >= 0 and < 1 for rho, got 1.5"),
        (lambda: BatchNorm("a", name="bn"), TypeError, "bn: expected a number for rho"),
        (lambda: BatchNorm(eps=-1, name="bn"), ValueError, "bn: expected a finite number >= 0 and < 1 for eps"),
        (lambda: LayerNorm(eps=None, name="ln"), TypeError, "ln: expected a number for eps"),
    ):
        with pytest.raises(kind, match=words):
            act()


@pytest.mark.parametrize("cls", [BatchNorm, BatchNormAutodiff, LayerNorm])
def test_invalid_inputs_are_rejected(be, cls):
    with pytest.raises(ValueError, match=r"n: expected an input shape F, \(F, T\) or \(C, H, W\), got \(0, 3\)"):
        cls(name="n").configure((0, 3))
    layer = allocate(be, cls(name="n"), 3, 2)
    with pytest.raises(RuntimeError, match="n: bprop: expected a training fprop before it"):
        layer.bprop(be.ones((3, 2)))
    with pytest.raises(ValueError, match="3"):
        layer.fprop(be.ones((3, 5), name="x"))


def test_each_of_two_backends_has_separate_layers(cpu):
    other = nl.Backend("cpu", 1)
    layer = BatchNorm()
    layer.be = other
    allocate(other, layer, 2, 3)
    assert layer.fprop(other.ones((2, 3))).backend is other
    assert layer.gmean.backend is other
    assert allocate(cpu, Linear(2, Constant(1)), 2, 3).W.backend is cpu


def test_a_repeated_batch_norm_reads_new_values() -> None:
    be = gen_backend("cpu", batch_size=4)
    rng = np.random.default_rng(0)
    layer = BatchNorm(rho=0.5, eps=0.1, name="norm")
    layer.configure(Reshape((3, 2, 5)).configure((3, 2, 5)))
    layer.allocate()
    layer.allocate_deltas()
    x, e, mean = be.empty((30, 4)), be.empty((30, 4)), 0.0
    for _ in range(5):
        a, b = rng.standard_normal((2, 30, 4)).astype(np.float32)
        x[:], e[:] = a, b
        y, d = layer.fprop(x).get(), layer.bprop(e).get()
        wide, error = a.reshape(3, 40), b.reshape(3, 40)
        xhat = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 0.1)
        np.testing.assert_allclose(y.reshape(3, 40), xhat, atol=1e-5)
        by_gamma, by_beta = (xhat * error).mean(1, keepdims=True), error.mean(1, keepdims=True)
        wanted = (error - xhat * by_gamma - by_beta) / np.sqrt(wide.var(1, keepdims=True) + 0.1)
        np.testing.assert_allclose(d.reshape(3, 40), wanted, atol=1e-5)
        mean = 0.5 * mean + 0.5 * wide.mean(1, keepdims=True)
        np.testing.assert_allclose(layer.gmean.get(), mean, atol=1e-6)


def test_batch_norm_refuses_binary_with_sync():
    with pytest.raises(ValueError, match="expected binary or sync, got both"):
        BatchNorm(binary=True, sync=True)
