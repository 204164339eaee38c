"""RoiPooling, BinaryLinear and ColorNoise, compared with loops, numerical gradients, random streams and PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from helpers.allocations import buffers

from neonlite import Autodiff, Backend, gen_backend
from neonlite.backend.random import RandomStreams
from neonlite.initializers import Constant, Gaussian, Uniform
from neonlite.layers import (
    Activation,
    Affine,
    BatchNorm,
    BinaryAffine,
    BinaryLinear,
    Conv,
    DataTransform,
    Dropout,
    GeneralizedCost,
    Linear,
    MergeSum,
    Pooling,
    Reshape,
    RoiPooling,
    Sequential,
    ShiftBatchNorm,
    SkipNode,
)
from neonlite.optimizers import GradientDescentMomentum, ShiftAdaMax
from neonlite.transforms import ColorNoise, CrossEntropyMulti, Normalizer, Rectlin, Sign, Softmax, SumSquared

Array = np.ndarray[Any, Any]
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


def made(layer: Any, shape: Any, deltas: bool = True) -> Any:
    """Return an allocated layer that computes deltas, as in the middle of a network."""
    assert layer.configure(shape) is layer
    if deltas:
        layer.needs_deltas = True
    layer.allocate()
    layer.allocate_deltas()
    return layer


def numerical_gradient(f: Callable[[], float], x: Array, step: float) -> Array:
    """Return df/dx for an array that f looks at, element by element, by central differences."""
    found = np.zeros(x.shape)
    for at in np.ndindex(x.shape):
        was = x[at]
        x[at] = was + step
        up = f()
        x[at] = was - step
        found[at] = (up - f()) / (2 * step)
        x[at] = was
    return found


def close(got: Any, want: Any, tolerance: float = 1e-10) -> None:
    got = got.get() if hasattr(got, "get") else got
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


# --- regions: the reference ------------------------------------------------------------------------------------------


def cells(low: float, high: float, scale: float, bins: int, i: int, size: int) -> list[int]:
    """Return the pixels that bin i of a region along an axis has a part in."""
    start, end = math.floor(low * scale + 0.5), math.floor(high * scale + 0.5)
    length = max(end - start + 1, 1)
    return [k for k in range(size) if start + i * length / bins < k + 1 and k < start + (i + 1) * length / bins]


def maximum(maps: Array, roi: Any, c: int, i: int, j: int, HW: Any, scale: float) -> Any:
    """Return the pixel (c, h, w, image) that is the maximum in a bin; None where there is none."""
    image, x1, y1, x2, y2 = roi
    _, H, W, _ = maps.shape
    found = [
        (c, h, w, int(image)) for h in cells(y1, y2, scale, HW[0], i, H) for w in cells(x1, x2, scale, HW[1], j, W)
    ]
    return max(found, key=lambda at: maps[at]) if found else None  # the first of equals


def pooled(maps: Array, rois: Array, HW: Any, scale: float) -> Array:
    """Return (C PH PW, n) for maps (C, H, W, N) and regions (5, n)."""
    C, n = maps.shape[0], rois.shape[1]
    out = np.zeros((C, *HW, n))
    for c, i, j, r in np.ndindex(out.shape):
        at = maximum(maps, rois[:, r].tolist(), c, i, j, HW, scale)
        out[c, i, j, r] = 0 if at is None else maps[at]
    return out.reshape(-1, n)


def spread(maps: Array, rois: Array, HW: Any, scale: float, error: Array) -> Array:
    """Return the deltas (C H W, N) of the maps for an error (C PH PW, n)."""
    C, n, deltas = maps.shape[0], rois.shape[1], np.zeros(maps.shape)
    for (c, i, j, r), e in np.ndenumerate(error.reshape(C, *HW, n)):
        at = maximum(maps, rois[:, r].tolist(), c, i, j, HW, scale)
        if at is not None:
            deltas[at] += e
    return deltas.reshape(-1, maps.shape[3])


# C, H, W, N, regions per image, (PH, PW), scale
REGIONS = [
    (1, 1, 1, 1, 1, (1, 1), 1.0),
    (2, 5, 7, 1, 3, (2, 3), 0.5),
    (3, 7, 4, 2, 1, (3, 1), 0.25),
    (1, 6, 5, 3, 5, (7, 7), 0.0625),
    (5, 3, 11, 2, 2, (2, 2), 1.0),
    (2, 11, 8, 1, 4, (5, 4), 0.125),
]
each_size = pytest.mark.parametrize(("C", "H", "W", "N", "R", "HW", "scale"), REGIONS)


def scene(rng: np.random.Generator, C: int, H: int, W: int, N: int, n: int, scale: float) -> tuple[Array, Array]:
    """Return feature maps with many equal values, and regions inside, at the border, across it, and outside."""
    maps, rois = rng.integers(-9, 9, size=(C, H, W, N)).astype(float), np.zeros((5, n))
    rois[0] = rng.integers(0, N, n)
    for low, size in ((1, W), (2, H)):
        ends = np.array(
            [(0, size - 1), (0, 0), (size - 1, size - 1), (-2, 1), (size - 1, size + 2), (size + 3, size + 4)]
        )
        rois[[low, low + 2]] = ends[rng.integers(0, len(ends), n)].T
        some = rng.random(n) < 0.5
        within = np.sort(rng.integers(0, 2 * size, size=(2, n)) / 2, axis=0)  # halves of pixels as well
        rois[[low, low + 2]] = np.where(some, within, rois[[low, low + 2]])
    rois[1:] /= scale
    return maps, rois


def flat(be: Backend, maps: Array) -> Any:
    return be.array(maps.reshape(-1, maps.shape[3]))


# --- regions ---------------------------------------------------------------------------------------------------------


@each_size
def test_a_region_is_pooled_to_the_maxima_of_its_bins(be, rng, C, H, W, N, R, HW, scale):
    be.bsz = N
    layer = made(RoiPooling(HW, spatial_scale=scale), ((C, H, W), (5, R)))
    assert (layer.in_shape, layer.pooled_shape, layer.out_shape) == ((C, H, W), (C, *HW), (C * HW[0] * HW[1], R))
    for inference in (False, True, False):
        maps, rois = scene(rng, C, H, W, N, R * N, scale)
        y = layer.fprop((flat(be, maps), be.array(rois)), inference)
        assert y is layer.outputs
        assert np.array_equal(y.get(), pooled(maps, rois, HW, scale))


@each_size
def test_the_error_of_a_bin_is_that_of_its_maximum(be, rng, C, H, W, N, R, HW, scale):
    be.bsz = N
    layer = made(RoiPooling(HW, spatial_scale=scale), [(C, H, W), (5, R)], deltas=False)  # computed by default
    maps, rois = scene(rng, C, H, W, N, R * N, scale)
    layer.fprop([flat(be, maps), be.array(rois)])
    e = rng.integers(-9, 9, size=(C * HW[0] * HW[1], R * N)).astype(float)
    want = spread(maps, rois, HW, scale, e)
    error = be.array(e)
    deltas = layer.bprop(error)
    assert deltas is layer.deltas
    assert np.array_equal(deltas.get(), want)
    assert np.array_equal(layer.bprop(error, alpha=0.5).get(), want / 2)
    assert np.array_equal(layer.bprop(error, alpha=2.0, beta=-3.0).get(), 2 * want - 3 * want / 2)
    assert np.array_equal(error.get(), e)


@each_size
def test_the_backward_pass_of_regions_matches_the_formula_and_numerical_gradients(be64, rng, C, H, W, N, R, HW, scale):
    be64.bsz = N
    layer = made(RoiPooling(HW, spatial_scale=scale), ((C, H, W), (5, R)))
    _, rois = scene(rng, C, H, W, N, R * N, scale)
    maps = rng.permutation(C * H * W * N).reshape(C, H, W, N).astype(float)  # no two alike: maxima are differentiable
    x, regions = flat(be64, maps), be64.array(rois)
    y = layer.fprop((x, regions)).get()
    e = rng.normal(size=y.shape)
    deltas = layer.bprop(be64.array(e)).get()
    tree = layer.formula((x, regions))
    assert np.array_equal(tree.asnumpyarray(), y)
    close(deltas, Autodiff(tree, be64, be64.array(e)).get_grad_asnumpyarray([x])[0])
    close(
        deltas,
        numerical_gradient(lambda: float(np.sum(e * pooled(maps, rois, HW, scale))), maps, 0.25).reshape(deltas.shape),
    )


def test_one_region_per_image_is_an_image(be, rng):
    be.bsz = 3
    layer = made(RoiPooling(2, spatial_scale=1), ((2, 4, 5), 5))
    assert layer.out_shape == (2, 2, 2)
    maps, rois = scene(rng, 2, 4, 5, 3, 3, 1)
    assert np.array_equal(layer.fprop((flat(be, maps), be.array(rois))).get(), pooled(maps, rois, (2, 2), 1))
    assert Sequential([RoiPooling(2), Pooling("all")]).configure(((2, 4, 5), 5)).out_shape == (2, 1, 1)


def test_pooled_regions_are_added_to_the_outputs_times_beta(be, rng):
    be.bsz = 2
    layer = made(RoiPooling((2, 2), spatial_scale=1), ((2, 4, 5), (5, 3)))
    maps, rois = scene(rng, 2, 4, 5, 2, 6, 1)
    inputs, want = (flat(be, maps), be.array(rois)), pooled(maps, rois, (2, 2), 1)
    layer.fprop(inputs)
    assert np.array_equal(layer.fprop(inputs, beta=-0.5).get(), want / 2)
    e = np.ones(want.shape)
    assert np.array_equal(layer.bprop(be.array(e)).get(), spread(maps, rois, (2, 2), 1, e))


def test_feature_maps_have_no_deltas_if_disabled(be, rng):
    be.bsz = 2
    for layer in (RoiPooling(2, bprop_enabled=False), Sequential([RoiPooling(2, bprop_enabled=False)])):
        maps = Sequential(Conv((3, 3, 2), Gaussian(), padding=1)).configure((1, 4, 5))
        layer.configure((maps, (5, 3)))
        layer.allocate()
        layer.allocate_deltas()
        features, rois = scene(rng, 2, 4, 5, 2, 6, 0.0625)
        layer.fprop((flat(be, features), be.array(rois)))
        assert layer.bprop(be.ones((8, 6))) is None
        assert layer.deltas is None
    head = made(Sequential([RoiPooling(2, bprop_enabled=False), Linear(3, Gaussian())]), ((2, 4, 5), (5, 3)))
    assert head.layers[0].deltas is None
    asked = made(RoiPooling(2, bprop_enabled=False), ((2, 4, 5), (5, 3)))
    asked.fprop((flat(be, features), be.array(rois)))
    assert asked.bprop(be.ones((8, 6))) is None


def test_more_or_fewer_images_and_regions_are_pooled_in_the_same_memory(be, rng):
    be.bsz = 4
    head = made(Sequential([RoiPooling((2, 3), spatial_scale=1), Linear(3, Gaussian())]), ((2, 5, 6), (5, 3)))
    layer, W = head.layers[0], head.layers[1].W.get()
    memory = [layer.outputs, layer.argmax]
    for N, R in ((4, 3), (1, 3), (1, 2), (3, 2), (3, 4)):
        head.set_batch_size(N)
        if layer.regions_shape[1] != R:
            head.set_seq_len(R)
        maps, rois = scene(rng, 2, 5, 6, N, R * N, 1)
        close(head.fprop((flat(be, maps), be.array(rois))), W @ pooled(maps, rois, (2, 3), 1), 1e-4)
        e = rng.normal(size=(3, R * N))
        close(head.bprop(be.array(e)), spread(maps, rois, (2, 3), 1, W.T @ e), 1e-4)
        for t, old in zip((layer.outputs, layer.argmax), memory, strict=True):
            old.fill(7)
            assert (t.get() == 7).all()


def detector(be: Backend) -> tuple[Any, Any, Any]:
    """Return the network of feature maps, that of regions, and the cost of the latter."""
    maps = Sequential(Conv((3, 3, 6), Gaussian(scale=0.3), padding=1, activation=Rectlin()))
    maps.configure((1, 8, 8))
    classes = Affine(3, Gaussian(scale=0.3), bias=Constant(0), activation=Softmax())
    head = Sequential([RoiPooling((2, 2), spatial_scale=1), classes])
    head.configure((maps, (5, 3)))
    for net in (maps, head):
        net.allocate()
        net.allocate_deltas()
    cost = GeneralizedCost(CrossEntropyMulti())
    cost.initialize(head)
    return maps, head, cost


def crosses_and_bars(rng: np.random.Generator, N: int, R: int) -> tuple[Array, Array, Array]:
    """Return images with horizontal or vertical bars or nothing in some regions, the regions, and their classes."""
    shapes = [np.array(rows, float) for rows in ([[0, 1, 0]] * 3, [[0] * 3, [1] * 3, [0] * 3], [[0] * 3] * 3)]
    images, rois, labels = np.zeros((8, 8, N)), np.zeros((5, R * N)), rng.integers(0, 3, R * N)
    places = np.array([(0, 0), (0, 5), (5, 0), (5, 5)])
    for n in range(N):
        for r, (h, w) in enumerate(rng.permutation(places)[:R]):
            images[h : h + 3, w : w + 3, n] = shapes[labels[r * N + n]]
            rois[:, r * N + n] = n, w, h, w + 2, h + 2
    return images.reshape(64, N), rois, labels


def test_a_network_of_regions_is_trained_with_that_of_the_feature_maps(be, rng):
    be.bsz = 8
    maps, head, cost = detector(be)
    data = [crosses_and_bars(rng, 8, 3) for _ in range(4)]
    learned = [*maps.layers_to_optimize, *head.layers_to_optimize]
    optimizer, before = GradientDescentMomentum(0.02, 0.9), maps.layers[0].W.get()
    costs = []
    for _ in range(25):
        for images, rois, labels in data:
            y = head.fprop((maps.fprop(be.array(images)), be.array(rois)))
            t = be.array(np.eye(3)[:, labels])
            costs.append(cost.get_cost(y, t).item())
            maps.bprop(head.bprop(cost.get_errors(y, t)))
            optimizer.optimize(learned, 0)
    right = [
        np.mean(head.fprop((maps.fprop(be.array(x), True), be.array(rois)), True).get().argmax(axis=0) == labels)
        for x, rois, labels in data
    ]
    assert np.mean(right) == 1, costs[::20]
    assert not np.allclose(maps.layers[0].W.get(), before)


def test_the_gradient_of_weights_before_regions_is_the_numerical_gradient(be64, rng):
    be64.bsz = 2
    maps, head, cost = detector(be64)
    images, rois, labels = crosses_and_bars(rng, 2, 3)
    x = be64.array(images + rng.normal(size=images.shape) / 4)
    regions, t = be64.array(rois), be64.array(np.eye(3)[:, labels])
    y = head.fprop((maps.fprop(x), regions))
    maps.bprop(head.bprop(cost.get_errors(y, t)))
    weights = maps.layers[0]
    W, dW = weights.W.get(), weights.dW.get()

    def total() -> float:
        weights.W = W
        return 6 * float(cost.get_cost(head.fprop((maps.fprop(x), regions)), t).item())

    close(dW, numerical_gradient(total, W, 1e-6), 1e-6)


def test_what_does_not_fit_regions_is_rejected_by_name(be):
    be.bsz = 2

    def refused(error: Any, match: str, shape: Any = ((2, 4, 5), (5, 3)), **arguments: Any) -> None:
        with pytest.raises(error, match="roi" + match):
            RoiPooling(**({"HW": (2, 2), "name": "roi"} | arguments)).configure(shape)

    for HW in (0, (2, 0), (2, 2, 2), (2.0, 2), "77", None, (True, 2)):
        refused(
            (TypeError, ValueError),
            ": expected an integer >= 1 .*for HW, got",
            HW=HW,
        )
    for scale in (0, -1):
        refused(ValueError, f": expected a finite number > 0 for spatial_scale, got {scale}", spatial_scale=scale)
    refused(TypeError, ": expected a number for spatial_scale, got '1'", spatial_scale="1")
    refused(
        ValueError, r": expected a pair of feature maps, .* regions, \(5, R\) .*, got \(2, 4, 5\)\. Use it", (2, 4, 5)
    )
    conv = Conv((3, 3, 2), Gaussian(), name="conv")
    with pytest.raises(ValueError, match=r"roi: expected a pair of feature maps, .*, got \(2, 3, 3\) of conv"):
        Sequential([*conv, RoiPooling(name="roi")]).configure((1, 5, 5))
    for flat_maps in (40, (8, 5)):
        refused(ValueError, r": expected feature maps \(C, H, W\), got ", (flat_maps, (5, 3)))
    for regions in (4, (3, 5), (5, 0), (5, 3, 1), (5, 2.0), None, ()):
        refused(ValueError, r": expected regions \(5, R\) for R per image, or 5", ((2, 4, 5), regions))

    layer = made(RoiPooling((2, 2), name="roi"), ((2, 4, 5), (5, 3)))
    maps, rois = be.ones((40, 2), name="maps"), be.zeros((5, 6), name="rois")
    for inputs in (maps, (maps,), (maps, rois, rois)):
        with pytest.raises(
            (TypeError, ValueError), match=r"roi: expected a pair \(feature maps, regions\) for inputs, got"
        ):
            layer.fprop(inputs)
    with pytest.raises(ValueError, match=r"roi: expected regions of shape \(5, 6\) \(layer shape \(5, 3\), .*\), got"):
        layer.fprop((maps, be.zeros((6, 5))))
    with pytest.raises(ValueError, match=r"roi: expected inputs of shape \(40, 2\) \(layer shape \(2, 4, 5\)"):
        layer.fprop((rois, rois))
    with pytest.raises(TypeError, match=r"roi: expected regions as a tensor"):
        layer.fprop((maps, np.zeros((5, 6))))
    for image in (-1, 2):
        with pytest.raises(
            IndexError, match=r"roi: be\.roipooling_fprop: expected image indices from 0 to 1 in rois, got"
        ):
            layer.fprop((maps, be.array(np.full((5, 6), image))))
    with pytest.raises(ValueError, match=r"roi: be\.roipooling_fprop: expected finite rois"):
        layer.fprop((maps, be.array([[0.0] * 6] * 4 + [[math.nan] * 6])))


def test_bprop_of_regions_requires_a_training_fprop(be):
    be.bsz = 2
    inputs = be.ones((40, 2)), be.zeros((5, 6))
    unready = RoiPooling((2, 2), name="roi")
    with pytest.raises(RuntimeError, match=r"roi: expected a configured layer, got one without shapes. Call configure"):
        unready.fprop(inputs)
    unready.configure(((2, 4, 5), (5, 3)))
    with pytest.raises(RuntimeError, match=r"roi: expected allocated buffers, got none. Call allocate"):
        unready.fprop(inputs)
    layer = made(RoiPooling((2, 2), name="roi"), ((2, 4, 5), (5, 3)))
    with pytest.raises(RuntimeError, match="roi: bprop: expected a training fprop before it"):
        layer.bprop(be.ones((8, 6)))
    layer.fprop(inputs)
    with pytest.raises(ValueError, match=r"roi: expected an error of shape \(8, 6\)"):
        layer.bprop(be.ones((8, 2)))
    layer.fprop(inputs, inference=True)
    with pytest.raises(RuntimeError, match="roi: bprop: expected a training fprop before it"):
        layer.bprop(be.ones((8, 6)))


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
    layer = made(BinaryLinear(nout, W, bsum=True), shape)
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
    layer = made(BinaryLinear(nout, W), shape)
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
    layer = made(BinaryLinear(nout, weights(rng, nout, rows) / 3), shape)
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
    net = made(Sequential([BinaryLinear(3, W), Activation(Sign()), BinaryLinear(2, V)]), 5)
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


BEFORE: dict[str, tuple[list[Any], bool]] = {
    "nothing": ([], False),
    "Sign": ([Activation(Sign())], True),
    "Sign, reshaped": ([Activation(Sign()), Reshape((4, 1)), SkipNode()], True),
    "Sign, in a network": ([Sequential([Activation(Sign())])], True),
    "data by signs": ([DataTransform(Sign())], True),
    "Rectlin": ([Activation(Rectlin())], False),
    "Sign, then Dropout": ([Activation(Sign()), Dropout()], False),
    "reshaped": ([Reshape((4, 1))], False),
}


@pytest.mark.parametrize("which", BEFORE)
def test_inputs_of_signs_are_multiplied_by_counting(cpu, rng, monkeypatch, which):
    cpu.bsz = 3
    before, counts = BEFORE[which]
    layer = BinaryLinear(2, weights(rng, 2, 4))
    net = made(Sequential([*before, layer]), 4, deltas=which != "data by signs")
    counted = []
    product = cpu.xnor_compound_dot

    def count(A: Any, B: Any, *args: Any, **kwargs: Any) -> Any:
        counted.append((A, B))
        return product(A, B, *args, **kwargs)

    monkeypatch.setattr(type(cpu), "xnor_compound_dot", lambda self, *args, **kwargs: count(*args, **kwargs))
    net.fprop(cpu.array(rng.normal(size=(4, 3))))
    assert len(counted) == counts
    for A, B in counted:
        assert {*np.unique(A.get()), *np.unique(B.get())} <= {-1, 1}
    close(net.outputs, signed(layer.W.get(), layer.inputs.get().reshape(4, 3)), 1e-6)


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
    layer = made(BinaryLinear(3, Gaussian(), name="b"), 4)
    with pytest.raises(ValueError, match=r"b: expected inputs of shape \(4, 2\)"):
        layer.fprop(be.ones((5, 2)))
    with pytest.raises(RuntimeError, match="b: bprop: expected a training fprop before it"):
        layer.bprop(be.ones((3, 2)))


# --- data ------------------------------------------------------------------------------------------------------------

PCA = np.array([[0.6, -0.3], [0.1, 0.9], [-0.7, 0.2]])  # three maps, two components
STD = np.array([0.5, 0.25])


def noisy(be: Backend, shape: Any, **arguments: Any) -> Any:
    return made(DataTransform(ColorNoise(**arguments), name="light"), shape, deltas=False)


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
        layer = made(DataTransform(light), (3, 4, 3), deltas=False)
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
    layer = made(DataTransform(Twice()), 1, deltas=False)
    for inference, want in ((False, [2, 4]), (True, [2, 3]), (False, [2, 4])):
        assert layer.fprop(x, inference).get().tolist() == [want]
    same = made(DataTransform(lambda x: 3 * x), 1, deltas=False)
    for inference in (False, True):
        assert same.fprop(x, inference).get().tolist() == [[3, 6]]


def test_data_is_transformed_by_several_layers_without_deltas(be, rng):
    be.bsz = 2
    net = Sequential(
        [DataTransform(Normalizer(divisor=4)), DataTransform(lambda x: x - 1), Linear(3, Gaussian(), name="after")]
    )
    net = made(net, (3, 2, 2), deltas=False)
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
    strange = made(DataTransform(lambda x: x + be.ones((3, 2)), name="light"), 4, deltas=False)
    with pytest.raises(ValueError, match=r"light: .*\(4, 2\).*\(3, 2\)"):
        strange.fprop(be.ones((4, 2)))
    for f in (lambda x: x[:1], lambda x: None, lambda x: be.sum(x, axis=0)):
        with pytest.raises(ValueError, match=r"light: expected a transform that keeps the shape of .*\(4, 2\).*, got "):
            made(DataTransform(f, name="light"), 4, deltas=False).fprop(be.ones((4, 2)))
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


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", ["cpu", "mkl"])
def test_special_layers_allocate_nothing_after_the_first_steps(rng, runtime):
    if runtime == "mkl":
        pytest.importorskip("mkl")
    be = gen_backend(runtime, rng_seed=1, batch_size=64)
    binary = BinaryAffine(50, Uniform(-1, 1), batch_norm=True, activation=Sign())
    light = ColorNoise(brightness=0.5, contrast=0.5, noise_level=0)
    net = made(Sequential([DataTransform(light), binary, BinaryAffine(10, Uniform(-1, 1))]), (3, 8, 8), deltas=False)
    x, e = be.array(rng.normal(size=(192, 64))), be.ones((10, 64))
    layer = made(RoiPooling((7, 7), spatial_scale=1), ((8, 9, 9), (5, 1)))
    maps, rois = scene(rng, 8, 9, 9, 64, 64, 1)
    inputs, error = (flat(be, maps), be.array(rois)), be.ones((392, 64))

    def step() -> None:
        net.fprop(x)
        net.bprop(e)
        layer.fprop(inputs)
        layer.bprop(error)

    for _ in range(3):
        step()
    assert buffers(step) == []
