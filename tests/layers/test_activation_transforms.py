"""DataTransform with ColorNoise (neonlite/layers/activation.py)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from helpers.networks import close, ready

from neonlite import Backend, gen_backend
from neonlite.backend.random import RandomStreams
from neonlite.initializers import Gaussian
from neonlite.layers import DataTransform, Linear, MergeSum, Sequential, SkipNode
from neonlite.transforms import ColorNoise, Normalizer

Array = np.ndarray[Any, Any]


# --- data ------------------------------------------------------------------------------------------------------------
PCA = np.array([[0.6, -0.3], [0.1, 0.9], [-0.7, 0.2]])  # three maps, two components


STD = np.array([0.5, 0.25])


def noisy(be: Backend, shape: Any, **arguments: Any) -> Any:
    return ready(DataTransform(ColorNoise(**arguments), name="light"), shape, deltas=False)


@pytest.mark.parametrize(("shape", "N"), [((3, 1, 1), 1), ((3, 2, 5), 1), ((3, 7, 3), 5), ((3, 2, 2, 3), 4)])
def test_color_noise_moves_the_colors_of_an_image_along_components(be, rng, shape, N):
    be.bsz = N
    layer = noisy(be, shape, colorpca=PCA, colorstd=STD, noise_level=0.5)
    x, streams = rng.normal(size=(math.prod(shape), N)), RandomStreams(1)
    inputs = be.array(x)
    for _ in range(3):  # different noise each time
        e = 0.5 * streams.normal("noise", (2, N), "float64")
        want = x.reshape(3, -1, N).copy()
        for c, n in np.ndindex(3, N):
            want[c, :, n] += sum(PCA[c, k] * STD[k] * e[k, n] for k in range(2))
        close(layer.fprop(inputs), want.reshape(x.shape), 1e-5)
    assert np.array_equal(inputs.get(), x.astype("float32"))


@pytest.mark.parametrize("N", [1, 7])
def test_brightness_is_added_and_contrast_scales_around_the_mean(be, rng, N):
    be.bsz = N
    x = rng.normal(size=(12, N)) + 2
    u = 2 * RandomStreams(1).uniform("noise", (1, N), "float32").astype(float) - 1
    y = noisy(be, (3, 2, 2), noise_level=0, brightness=0.75).fprop(be.array(x))
    close(y, x + 0.75 * u, 1e-5)
    be.rng_reset()
    y = noisy(be, (3, 2, 2), noise_level=0, contrast=0.5).fprop(be.array(x))
    means = np.array([math.fsum(column) / 12 for column in x.T.tolist()])
    close(y, means + (1 + 0.5 * u) * (x - means), 1e-5)


def test_lighting_has_the_described_distribution(cpu):
    cpu.bsz = 20000
    x = np.repeat(np.array([[1.0], [3.0], [-1.0]]), 20000, axis=1)
    y = noisy(cpu, (3, 1, 1), noise_level=0.5).fprop(cpu.array(x)).get().astype(float) - x
    pca = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])
    std = np.array([0.2175, 0.0188, 0.0045])
    covariance = 0.25 * pca @ np.diag(std**2) @ pca.T
    np.testing.assert_allclose(np.cov(y), covariance, atol=3e-4)
    np.testing.assert_allclose(y.mean(axis=1), 0, atol=3e-3)
    y = noisy(cpu, (3, 1, 1), noise_level=0, brightness=2).fprop(cpu.array(x)).get() - x
    assert -2 <= y.min() < -1.99
    assert 1.99 < y.max() <= 2
    np.testing.assert_allclose((y.mean(), y.std()), (0, 2 / math.sqrt(3)), atol=0.03)
    y = (noisy(cpu, (3, 1, 1), noise_level=0, contrast=0.25).fprop(cpu.array(x)).get() - 1) / (x - 1 + (x == 1))
    assert np.allclose(y[0], 0, atol=1e-6)
    assert np.allclose(y[1], y[2], atol=1e-6)
    assert 0.75 <= y[1].min() < 0.755
    assert 1.245 < y[1].max() <= 1.25


def test_light_of_all_kinds_is_the_same_for_a_seed_on_every_runtime(be, rng):
    light = ColorNoise(brightness=0.5, contrast=0.25, noise_level=1)  # one on all backends

    def drawn(backend: Backend, seed: int) -> list[Array]:
        backend.bsz = 5
        backend.gen_rng(seed)
        layer = ready(DataTransform(light), (3, 4, 3), deltas=False)
        return [layer.fprop(backend.array(x)).get() for _ in range(3)]

    x = rng.normal(size=(36, 5))
    here, again, other = drawn(be, 7), drawn(be, 7), drawn(be, 8)
    assert np.array_equal(here, again)
    assert not np.allclose(here, other, atol=1e-3)
    assert not np.allclose(here[0], here[1], atol=1e-3)
    close(np.array(here), drawn(gen_backend("cpu", rng_seed=1), 7), 1e-5)


def test_images_are_unchanged_at_inference_and_nothing_is_drawn(be, rng):
    be.bsz = 2
    layer = noisy(be, (3, 2, 2), brightness=0.5, contrast=0.25)
    x = be.array(rng.normal(size=(12, 2)))
    state = be.rng_get_state()
    assert np.array_equal(layer.fprop(x, inference=True).get(), x.get())
    assert be.rng_get_state() == state
    assert not np.allclose(layer.fprop(x).get(), x.get(), atol=1e-3)
    assert np.array_equal(layer.fprop(x, inference=True).get(), x.get())
    none = noisy(be, (3, 2, 2), noise_level=0)
    state = be.rng_get_state()
    assert np.array_equal(none.fprop(x).get(), x.get())
    assert be.rng_get_state() == state


def test_a_transform_may_have_an_inference_method(be):
    be.bsz = 2

    class Twice:
        def __call__(self, x: Any) -> Any:
            return 2 * x

        def inference(self, x: Any) -> Any:
            return x + 1

    x = be.array([[1.0, 2.0]])
    layer = ready(DataTransform(Twice()), 1, deltas=False)
    for inference, want in ((False, [2, 4]), (True, [2, 3]), (False, [2, 4])):
        assert layer.fprop(x, inference).get().tolist() == [want]
    same = ready(DataTransform(lambda x: 3 * x), 1, deltas=False)
    for inference in (False, True):
        assert same.fprop(x, inference).get().tolist() == [[3, 6]]


def test_data_is_transformed_by_several_layers_without_deltas(be, rng):
    be.bsz = 2
    net = Sequential(
        [DataTransform(Normalizer(divisor=4)), DataTransform(lambda x: x - 1), Linear(3, Gaussian(), name="after")]
    )
    net = ready(net, (3, 2, 2), deltas=False)
    x = rng.integers(0, 256, size=(12, 2)).astype(float)
    y, W = net.fprop(be.array(x)), net.layers[2].W.get()
    close(y, W @ (x / 4 - 1), 1e-4)
    assert net.layers[1].deltas is None
    e = rng.normal(size=(3, 2))
    assert net.bprop(be.array(e)) is None
    close(net.layers[2].dW, e @ (x / 4 - 1).T, 1e-4)
    with pytest.raises(ValueError, match="light: expected to be the first layer, got the previous layer after"):
        Sequential([Linear(12, Gaussian(), name="after"), DataTransform(ColorNoise(), name="light")]).configure(4)
    branches = MergeSum([[DataTransform(Normalizer(divisor=4), name="light")], SkipNode()])
    with pytest.raises(ValueError, match="light: expected to be the first layer, got the previous layer after"):
        Sequential([Linear(12, Gaussian(), name="after"), branches]).configure(4)


def test_what_does_not_fit_color_noise_is_rejected_by_name(be):
    be.bsz = 2
    for shape in (12, (12, 1), (1, 2, 2), (2, 3, 3), (6, 2, 2)):
        with pytest.raises(ValueError, match=r"light: ColorNoise: expected images \(3, H, W\), one channel per row"):
            DataTransform(ColorNoise(), name="light").configure(shape)
    assert DataTransform(ColorNoise([[1]], [0.5])).configure((1, 2, 2)).out_shape == (1, 2, 2)
    with pytest.raises(ValueError, match=r"ColorNoise: expected images \(C H W, N\) of 3 channels, got"):
        ColorNoise()(be.ones((4, 2)))
    strange = ready(DataTransform(lambda x: x + be.ones((3, 2)), name="light"), 4, deltas=False)
    with pytest.raises(ValueError, match=r"light: .*\(4, 2\).*\(3, 2\)"):
        strange.fprop(be.ones((4, 2)))
    for f in (lambda x: x[:1], lambda x: None, lambda x: be.sum(x, axis=0)):
        with pytest.raises(ValueError, match=r"light: expected a transform that keeps the shape of .*\(4, 2\).*, got "):
            ready(DataTransform(f, name="light"), 4, deltas=False).fprop(be.ones((4, 2)))
    with pytest.raises(TypeError, match="light: expected a function of the data for transform, got 3"):
        DataTransform(3, name="light")

    def refused(error: Any, match: str, **arguments: Any) -> None:
        with pytest.raises(error, match="ColorNoise: " + match):
            ColorNoise(**arguments)

    refused(ValueError, "expected colorpca and colorstd together, got one of them", colorpca=PCA)
    refused(ValueError, "expected colorpca and colorstd together, got one of them", colorstd=STD)
    refused(
        ValueError,
        r"expected colorpca with one row per channel .*, got rows of \[2, 2, 2\], and 3",
        colorpca=PCA,
        colorstd=[1, 2, 3],
    )
    refused(
        ValueError,
        r"expected colorpca with one row per channel .*, got rows of \[1, 2\]",
        colorpca=[[1], [1, 2]],
        colorstd=[1],
    )
    refused(ValueError, "expected colorpca with one row per channel", colorpca=[], colorstd=[])
    refused(TypeError, "expected colorpca as rows of scalars and colorstd as scalars", colorpca=1, colorstd=2)
    refused(TypeError, "expected colorpca as rows of scalars and colorstd as scalars", colorpca=[1], colorstd=[2])
    refused(
        ValueError, "expected a finite number >= 0 for an element of colorstd, got -1", colorpca=[[1]], colorstd=[-1]
    )
    refused(TypeError, "expected a number for an element of colorpca, got", colorpca=[["1"]], colorstd=[1])
    for what in ("noise_level", "brightness", "contrast"):
        refused(ValueError, f"expected a finite number >= 0 for {what}, got -0.5", **{what: -0.5})
        refused(TypeError, f"expected a number for {what}, got", **{what: "much"})
