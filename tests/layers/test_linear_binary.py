"""BinaryLinear: signs of weights, counted products, training (neonlite/layers/linear.py)."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from helpers.networks import close, ready
from helpers.reference import numerical_gradient

from neonlite import Autodiff
from neonlite.initializers import Constant, Gaussian, Uniform
from neonlite.layers import (
    Activation,
    Affine,
    BatchNorm,
    BinaryAffine,
    BinaryLinear,
    DataTransform,
    GeneralizedCost,
    Sequential,
    ShiftBatchNorm,
)
from neonlite.optimizers import ShiftAdaMax
from neonlite.transforms import CrossEntropyMulti, Rectlin, Sign, Softmax, SumSquared

Array = np.ndarray[Any, Any]


needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


# --- binary weights --------------------------------------------------------------------------------------------------
SHAPES = [(1, 1), (7, 1), (5, 3), ((3, 5), 2), ((2, 3, 5), 4)]  # the inputs' shape and the size of the minibatch


each_shape = pytest.mark.parametrize(("shape", "N"), SHAPES)


def sizes(shape: Any, N: int) -> tuple[int, int]:
    if isinstance(shape, int):
        return shape, N
    return (shape[0], shape[1] * N) if len(shape) == 2 else (math.prod(shape), N)


def signed(W: Array, x: Array) -> Array:
    """Return the sums of inputs with the signs of weights; the sign of 0 is +1."""
    out = np.zeros((len(W), x.shape[1]))
    for k, n in np.ndindex(out.shape):
        out[k, n] = math.fsum(v if w >= 0 else -v for w, v in zip(W[k].tolist(), x[:, n].tolist(), strict=True))
    return out


def weights(rng: np.random.Generator, rows: int, columns: int) -> Array:
    """Return values around 0, and 0 with both signs."""
    W = rng.normal(size=(rows, columns))
    W[rng.random(W.shape) < 0.2] = 0.0
    W[rng.random(W.shape) < 0.1] = -0.0
    return W


@each_shape
def test_a_binary_layer_adds_or_subtracts_inputs(be, rng, shape, N):
    be.bsz = N
    (rows, columns), nout = sizes(shape, N), 4
    W = weights(rng, nout, rows)
    layer = ready(BinaryLinear(nout, W, bsum=True), shape)
    assert layer.out_shape == ((nout, shape[1]) if isinstance(shape, tuple) and len(shape) == 2 else nout)
    for inference in (False, True):
        x = rng.integers(-9, 9, size=(rows, columns)).astype(float)
        y = layer.fprop(be.array(x), inference)
        assert y is layer.outputs
        assert np.array_equal(y.get(), signed(W, x))
        assert np.array_equal(layer.batch_sum.get(), signed(W, x).sum(axis=1, keepdims=True))
        assert np.array_equal(layer.fprop(be.array(x), inference, beta=-0.5).get(), signed(W, x) / 2)
    assert np.array_equal(layer.W.get(), W.astype("float32"))  # the real values are not changed


@each_shape
def test_the_gradient_of_signs_is_that_of_the_weights(be64, rng, shape, N):
    be64.bsz = N
    (rows, columns), nout = sizes(shape, N), 3
    W, x, e = weights(rng, nout, rows), rng.normal(size=(rows, columns)), rng.normal(size=(nout, columns))
    layer = ready(BinaryLinear(nout, W), shape)
    inputs, error = be64.array(x), be64.array(e)
    close(layer.fprop(inputs), signed(W, x))
    S = np.where(W >= 0, 1.0, -1.0)
    by_signs = numerical_gradient(
        lambda: float(np.sum(e * (S @ x))), S, 1e-3
    )  # of the product, by the signs as if they were any
    by_inputs = numerical_gradient(lambda: float(np.sum(e * signed(W, x))), x, 1e-3)
    deltas = layer.bprop(error)
    assert deltas is layer.deltas
    close(deltas, by_inputs, 1e-9)
    close(layer.dW, by_signs, 1e-9)
    close(layer.bprop(error, alpha=2.0, beta=-0.5), 1.5 * by_inputs, 1e-9)
    close(layer.dW, by_signs, 1e-9)


@each_shape
def test_the_backward_pass_of_signs_matches_the_formula(be64, rng, shape, N):
    be64.bsz = N
    (rows, columns), nout = sizes(shape, N), 3
    layer = ready(BinaryLinear(nout, weights(rng, nout, rows) / 3), shape)
    x = be64.array(rng.integers(-9, 9, size=(rows, columns)))
    y = layer.fprop(x).get()
    tree, error = layer.formula(x), be64.array(rng.normal(size=y.shape))
    assert np.array_equal(tree.asnumpyarray(), y)  # to the bit: what lets the gradient through adds 0
    deltas = layer.bprop(error)
    dW, dx = Autodiff(tree, be64, error).get_grad_asnumpyarray([layer.W, x])
    close(layer.dW, dW)
    close(deltas, dx)


@needs_torch
def test_training_binary_weights_matches_torch(be64, rng):
    import torch

    be64.bsz = 6
    W, x, t = rng.normal(size=(3, 5)), rng.normal(size=(5, 6)), rng.normal(size=(2, 6))
    V = rng.normal(size=(2, 3))
    net = ready(Sequential([BinaryLinear(3, W), Activation(Sign()), BinaryLinear(2, V)]), 5)
    y = net.fprop(be64.array(x))
    deltas = net.bprop(be64.array(y.get() - t))

    class Signed(torch.autograd.Function):
        """The sign; its derivative is 1, or with ``hard`` 1 within -1 and 1."""

        @staticmethod
        def forward(ctx: Any, a: Any, hard: bool) -> Any:
            ctx.save_for_backward(a)
            ctx.hard = hard
            return torch.where(a >= 0, 1.0, -1.0).to(a.dtype)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (a,) = ctx.saved_tensors
            return (g * (a.abs() <= 1) if ctx.hard else g), None

    tW, tV, tx = (torch.tensor(a, requires_grad=True) for a in (W, V, x))
    out = Signed.apply(tV, False) @ Signed.apply(Signed.apply(tW, False) @ tx, True)
    (0.5 * (out - torch.tensor(t)) ** 2).sum().backward()
    close(y, out.detach().numpy())
    close(net.layers[0].dW, tW.grad.numpy())
    close(net.layers[2].dW, tV.grad.numpy())
    close(deltas, tx.grad.numpy())


def test_gradients_of_signs_add_up_when_asked(be, rng):
    be.bsz = 3
    layer = BinaryLinear(2, rng.normal(size=(2, 4))).configure(4)
    layer.allocate(accumulate_updates=True)
    x, e = rng.integers(-9, 9, size=(4, 3)), rng.integers(-9, 9, size=(2, 3))
    layer.fprop(be.array(x))
    for acc_on, times in ((False, 1), (True, 2), (True, 3), (False, 1)):
        layer.set_acc_on(acc_on)
        layer.bprop(be.array(e))
        assert np.array_equal(layer.dW.get(), times * (e @ x.T))


def test_a_binary_affine_is_a_list_of_its_layers():
    def named(**arguments: Any) -> list[tuple[str, str]]:
        return [(x.classnm, x.name) for x in BinaryAffine(3, Uniform(-1, 1), name="b", **arguments)]

    assert named() == [("BinaryLinear", "b")]
    assert named(bias=Constant(0), activation=Sign()) == [
        ("BinaryLinear", "b"),
        ("Bias", "b_bias"),
        ("Activation", "b_Sign"),
    ]
    assert named(batch_norm=True, activation=Rectlin()) == [
        ("BinaryLinear", "b"),
        ("ShiftBatchNorm", "b_sbnorm"),
        ("Activation", "b_Rectlin"),
    ]
    assert type(BinaryAffine(3, Uniform(), batch_norm=True)[1]) is ShiftBatchNorm
    assert type(Affine(3, Uniform(), batch_norm=True)[1]) is BatchNorm


def test_a_binary_network_learns_the_outputs_of_another_one(be, rng):
    be.bsz = 64
    x = np.where(rng.random((16, 64)) < 0.5, 1.0, -1.0)
    teacher = np.where(rng.random((3, 16)) < 0.5, 1.0, -1.0)
    labels = (teacher @ x + rng.random((3, 1)) / 2).argmax(axis=0)
    init = Uniform(-0.5, 0.5)
    net = Sequential(
        [
            DataTransform(Sign()),
            BinaryAffine(256, init, batch_norm=True, activation=Sign()),
            BinaryAffine(3, init, batch_norm=True, activation=Softmax()),
        ]
    )
    net.configure(16)
    net.allocate()
    net.allocate_deltas()
    cost = GeneralizedCost(CrossEntropyMulti())
    cost.initialize(net)
    optimizer, inputs, t = ShiftAdaMax(learning_rate=2**-4), be.array(x), be.array(np.eye(3)[:, labels])
    costs = []
    for _ in range(60):
        y = net.fprop(inputs)
        costs.append(cost.get_cost(y, t).item())
        net.bprop(cost.get_errors(y, t))
        optimizer.optimize(net.layers_to_optimize, 0)
    y = net.fprop(inputs).get()
    assert np.mean(y.argmax(axis=0) == labels) == 1, costs[::10]
    assert np.abs(net.layers[1].W.get()).max() <= 1


def test_what_does_not_fit_a_binary_layer_is_rejected_by_name(be):
    be.bsz = 2
    for nout in (0, -1, 2.0, True):
        with pytest.raises((TypeError, ValueError), match=f"b: expected an integer >= 1 for nout, got {nout}"):
            BinaryLinear(nout, Gaussian(), name="b")
        with pytest.raises((TypeError, ValueError), match=f"b: expected an integer >= 1 for nout, got {nout}"):
            BinaryAffine(nout, Gaussian(), name="b")
    with pytest.raises(AttributeError, match=r"b: expected bias or batch_norm, got both. Leave out bias"):
        BinaryAffine(3, Gaussian(), bias=Constant(0), batch_norm=True, name="b")
    with pytest.raises(TypeError, match="b: expected True or False for batch_norm, got 2"):
        BinaryAffine(3, Gaussian(), batch_norm=2, name="b")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a transform"):
        BinaryAffine(3, Gaussian(), activation=SumSquared(), name="b")
    with pytest.raises(ValueError, match="b: expected an input shape F"):
        BinaryLinear(3, Gaussian(), name="b").configure(0)
    layer = ready(BinaryLinear(3, Gaussian(), name="b"), 4)
    with pytest.raises(ValueError, match=r"b: expected inputs of shape \(4, 2\)"):
        layer.fprop(be.ones((5, 2)))
    with pytest.raises(RuntimeError, match="b: bprop: expected a training fprop before it"):
        layer.bprop(be.ones((3, 2)))
