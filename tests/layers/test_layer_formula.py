"""Layers that are computed from their formula: it sees the current values of everything it reads, in both passes
(neonlite/layers/layer.py)."""

import numpy as np
import pytest
from helpers.networks import allocate, made_ready

from neonlite.layers import Activation, Bias, Layer, LayerNorm, RecurrentLast
from neonlite.transforms import Rectlin, Transform


def test_the_outputs_of_an_activation_follow_the_attributes_of_its_transform(be):
    layer = made_ready(Activation(Rectlin(slope=0.1)), be, 2)
    x = be.array(np.full((3, 2), -1.0))
    for slope in (0.1, 0.5, 0.5, 0.25):
        layer.transform.slope = slope
        np.testing.assert_array_equal(layer.fprop(x).get(), np.full((3, 2), -slope, np.float32))


class Scaled(Layer):
    """``x scale``, with the scale from a function, so that no attribute of the layer tells it."""

    def __init__(self, get_scale, noise=False):
        super().__init__()
        self.get_scale, self.noise = get_scale, noise

    def configure(self, in_obj):
        super().configure(in_obj)
        self.out_shape = self.in_shape
        return self

    def formula(self, x):
        return x * self.get_scale() + (0.0 * self.be.rand() if self.noise else 0)


@pytest.mark.parametrize("noise", [False, True])
def test_a_formula_that_reads_other_values_than_before_gives_new_outputs_and_deltas(be, noise):
    scales = [2.5, 2.5, 3.5, 3.5, 3.5, 0.0, -0.0, 2.5]
    pending = iter(scales)
    layer = made_ready(Scaled(lambda: next(pending), noise), be, 2)
    x, error = be.ones((3, 2)), be.ones((3, 2))
    for scale in scales:
        y = layer.fprop(x)
        np.testing.assert_array_equal(y.get(), np.full((3, 2), scale))
        deltas = layer.bprop(error).get()
        np.testing.assert_array_equal(deltas, np.full((3, 2), scale))
        assert np.signbit(deltas).all() == np.signbit(scale)


class Tripled(Bias):
    factor = 3.0

    def formula(self, x):
        return x * self.factor


class NormScaled(LayerNorm):
    factor = 3.0

    def formula(self, x):
        return super().formula(x) * self.factor


class LastScaled(RecurrentLast):
    factor = 3.0

    def formula(self, x):
        return super().formula(x) * self.factor


@pytest.mark.parametrize(("make", "shape"), [(Tripled, 3), (NormScaled, 3), (LastScaled, (3, 1))])
def test_subclasses_of_layers_whose_formula_is_evaluated_once_have_their_own_formula(be, make, shape):
    layer, x = allocate(be, make(), shape, 2), be.array([[1.0, 2.0], [2.0, 1.0], [5.0, 7.0]])
    first = layer.fprop(x).get()
    layer.factor = 6.0
    np.testing.assert_allclose(layer.fprop(x).get(), 2 * first, rtol=1e-6)


def test_a_layer_norm_follows_its_eps(be):
    layer, values = made_ready(LayerNorm(), be, 2), np.array([[1.0, 2.0], [2.0, 1.0], [5.0, 7.0]])
    x = be.array(values)
    for eps in (1e-5, 4.0, 0.5):
        layer.eps = eps
        d = values - values.mean(axis=0)
        expected = d / np.sqrt((d * d).mean(axis=0) + eps)
        np.testing.assert_allclose(layer.fprop(x).get(), expected, rtol=1e-5)


class Noisy(Layer):
    """``x r``, with random numbers r."""

    def configure(self, in_obj):
        super().configure(in_obj)
        self.out_shape = self.in_shape
        return self

    def formula(self, x):
        return x * self.be.rand(x.shape)


class NoisyTransform(Transform):
    def __call__(self, x):
        return x * self.be.rand(x.shape)


def noisy_op(own):
    own("noise", formula=lambda be, x: be.rand(x.shape) + 0 * x, grad=None)
    layer = Noisy()
    layer.formula = lambda x: x * layer.be.noise(x)
    return layer


@pytest.mark.parametrize("make", [lambda own: Noisy(), lambda own: Activation(NoisyTransform()), noisy_op])
def test_bprop_reads_the_random_numbers_that_fprop_has_drawn(be, own, make):
    layer = made_ready(make(own), be, 2)
    drawn = [layer.fprop(be.ones((3, 2))).get() for _ in range(2)]
    assert (drawn[0] != drawn[1]).all()
    for _ in range(2):
        np.testing.assert_allclose(layer.bprop(be.array(np.full((3, 2), 2.0))).get(), 2 * drawn[1], rtol=1e-5)


def test_a_formula_of_another_shape_is_refused(be):
    class Summed(Noisy):
        def formula(self, x):
            return self.be.sum(x, axis=0)

    layer = made_ready(Summed(name="summed"), be, 2)
    for inference in (False, True):
        with pytest.raises(ValueError, match=r"summed: expected a formula of the shape \(3, 2\), got .*\(1, 2\)"):
            layer.fprop(be.ones((3, 2)), inference)


def test_a_formula_may_be_an_array_of_the_namespace(be):
    class Squared(Noisy):
        def formula(self, x):
            xp = self.be.array_api
            return xp.square(xp.asarray(x))

    layer = made_ready(Squared(), be, 2)
    x = be.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    np.testing.assert_array_equal(layer.fprop(x, inference=True).get(), x.get() ** 2)
    np.testing.assert_array_equal(layer.fprop(x).get(), x.get() ** 2)
    np.testing.assert_array_equal(layer.bprop(be.ones((3, 2))).get(), 2 * x.get())
