"""Activation and Dropout layers, compared with NumPy formulas (neonlite/layers/activation.py)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from helpers.layer_cases import TRANSFORMS
from helpers.networks import NDArray, by_hand, check_cost, close, data, made_ready, network, targets

from neonlite import Backend, gen_backend
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import Activation, Affine, Bias, Dropout, Linear
from neonlite.transforms import (
    CrossEntropyBinary,
    CrossEntropyMulti,
    Logistic,
    MeanSquared,
    Normalizer,
    Rectlin,
    Sign,
    SmoothL1Loss,
    SquareHingeLoss,
    SumSquared,
    Tanh,
    Transform,
)


def test_sign_passes_errors_where_inputs_are_small(be64):
    be64.bsz = 5
    layer = by_hand(Activation(Sign()), 1)
    close(layer.fprop(be64.array([[-2.0, -0.5, 0.0, 0.5, 2.0]])), [[-1, -1, 1, 1, 1]])
    close(layer.bprop(be64.array([[1.0, 2, 3, 4, 5]])), [[0, 2, 3, 4, 0]])


def test_an_activation_does_not_overwrite_outputs_that_another_reads(be64, rng):
    be64.bsz = 3
    for between in ([], [Dropout(1.0)], [Bias(Constant(0.0))]):
        net = network([Linear(4, Gaussian()), Activation(Tanh()), *between, Activation(Logistic())], 4)
        net.fprop(data(be64, rng, 4))
        close(net.layers[-1].outputs, 1 / (1 + np.exp(-net.layers[1].outputs.get())))


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


@pytest.mark.parametrize("keep", [0, -0.5, 1.5, math.nan, math.inf, "half", True])
def test_a_wrong_fraction_is_rejected(cpu, keep):
    with pytest.raises((ValueError, TypeError), match=r"drop: expected a .*number .*for keep"):
        Dropout(keep, name="drop")


@pytest.mark.parametrize("thing", [Tanh, None, math.tanh])
def test_an_activation_needs_a_transform(cpu, thing):
    with pytest.raises(TypeError, match=r"act: expected a transform, such as Rectlin\(\), for transform"):
        Activation(thing, name="act")


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
    layer.fprop(x)
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
