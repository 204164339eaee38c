"""RoiPooling, compared with loops over the pixels of each bin (neonlite/layers/images.py)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from helpers.networks import close, ready
from helpers.reference import numerical_gradient

from neonlite import Autodiff, Backend, jit
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import (
    Affine,
    Conv,
    GeneralizedCost,
    Linear,
    Pooling,
    RoiPooling,
    Sequential,
)
from neonlite.optimizers import GradientDescentMomentum
from neonlite.transforms import CrossEntropyMulti, Rectlin, Softmax

Array = np.ndarray[Any, Any]


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
    layer = ready(RoiPooling(HW, spatial_scale=scale), ((C, H, W), (5, R)))
    assert (layer.in_shape, layer.pooled_shape, layer.out_shape) == ((C, H, W), (C, *HW), (C * HW[0] * HW[1], R))
    for inference in (False, True, False):
        maps, rois = scene(rng, C, H, W, N, R * N, scale)
        y = layer.fprop((flat(be, maps), be.array(rois)), inference)
        assert y is layer.outputs
        assert np.array_equal(y.get(), pooled(maps, rois, HW, scale))


@each_size
def test_the_error_of_a_bin_is_that_of_its_maximum(be, rng, C, H, W, N, R, HW, scale):
    be.bsz = N
    layer = ready(RoiPooling(HW, spatial_scale=scale), [(C, H, W), (5, R)], deltas=False)  # computed by default
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
    layer = ready(RoiPooling(HW, spatial_scale=scale), ((C, H, W), (5, R)))
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


@pytest.mark.parametrize("compiled", [False, True])
@each_size
def test_regions_are_pooled_in_an_expression(be, rng, C, H, W, N, R, HW, scale, compiled):
    layer = Sequential([RoiPooling(HW, spatial_scale=scale)]).configure(((C, H, W), (5, R)))
    maps, rois = scene(rng, C, H, W, N, R * N, scale)
    e = rng.integers(-9, 9, size=(C * HW[0] * HW[1], R * N)).astype(float)

    def step(x, regions, e):
        y = layer((x, regions), training=True)
        return y, Autodiff(be.sum(y * e), be).get_grad_op_tree(x)

    for images in (maps, maps.reshape(-1, N)):
        y, dx = (jit(step) if compiled else step)(be.array(images), be.array(rois), be.array(e))
        assert np.array_equal(y.get(), pooled(maps, rois, HW, scale))
        assert np.array_equal(dx.get().reshape(-1, N), spread(maps, rois, HW, scale, e))


def test_an_expression_refuses_other_regions_and_passes_no_gradient_if_disabled(be):
    layer, x = RoiPooling(2, spatial_scale=1.0, bprop_enabled=False), be.ones((2, 4, 4, 1))
    regions = be.array([[0], [0], [0], [3], [3]])
    y = layer([x, regions])
    assert y.shape == (8, 1)
    assert not Autodiff(be.sum(y), be, allow_unused=True).get_grad_asnumpyarray([x])[0].any()
    with pytest.raises(ValueError, match=r"expected a list of 2 inputs, for \[\(2, 4, 4\), 5\], got"):
        layer(x)
    with pytest.raises(IndexError, match="image 1 is out of range for size 1"):
        layer([x, be.array([[1], [0], [0], [3], [3]])]).get()
    with pytest.raises(ValueError, match="expected finite regions"):
        layer([x, be.array([[0], [0], [0], [3], [math.nan]])]).get()


def test_one_region_per_image_is_an_image(be, rng):
    be.bsz = 3
    layer = ready(RoiPooling(2, spatial_scale=1), ((2, 4, 5), 5))
    assert layer.out_shape == (2, 2, 2)
    maps, rois = scene(rng, 2, 4, 5, 3, 3, 1)
    assert np.array_equal(layer.fprop((flat(be, maps), be.array(rois))).get(), pooled(maps, rois, (2, 2), 1))
    assert Sequential([RoiPooling(2), Pooling("all")]).configure(((2, 4, 5), 5)).out_shape == (2, 1, 1)


def test_pooled_regions_are_added_to_the_outputs_times_beta(be, rng):
    be.bsz = 2
    layer = ready(RoiPooling((2, 2), spatial_scale=1), ((2, 4, 5), (5, 3)))
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
    head = ready(Sequential([RoiPooling(2, bprop_enabled=False), Linear(3, Gaussian())]), ((2, 4, 5), (5, 3)))
    assert head.layers[0].deltas is None
    asked = ready(RoiPooling(2, bprop_enabled=False), ((2, 4, 5), (5, 3)))
    asked.fprop((flat(be, features), be.array(rois)))
    assert asked.bprop(be.ones((8, 6))) is None


def test_more_or_fewer_images_and_regions_are_pooled_in_the_same_memory(be, rng):
    be.bsz = 4
    head = ready(Sequential([RoiPooling((2, 3), spatial_scale=1), Linear(3, Gaussian())]), ((2, 5, 6), (5, 3)))
    layer, W = head.layers[0], head.layers[1].W.get()
    memory = layer.outputs
    for N, R in ((4, 3), (1, 3), (1, 2), (3, 2), (3, 4)):
        head.set_batch_size(N)
        if layer.regions_shape[1] != R:
            head.set_seq_len(R)
        maps, rois = scene(rng, 2, 5, 6, N, R * N, 1)
        close(head.fprop((flat(be, maps), be.array(rois))), W @ pooled(maps, rois, (2, 3), 1), 1e-4)
        e = rng.normal(size=(3, R * N))
        close(head.bprop(be.array(e)), spread(maps, rois, (2, 3), 1, W.T @ e), 1e-4)
        memory.fill(7)
        assert (layer.outputs.get() == 7).all()


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

    layer = ready(RoiPooling((2, 2), name="roi"), ((2, 4, 5), (5, 3)))
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
            IndexError, match=r"image -?\d is out of range for size 2: expected 0 to 1 \(while evaluating roi\.outputs"
        ):
            layer.fprop((maps, be.array(np.full((5, 6), image))))
    with pytest.raises(ValueError, match=r"expected finite regions, got infinity or NaN .* roi\.outputs"):
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
    layer = ready(RoiPooling((2, 2), name="roi"), ((2, 4, 5), (5, 3)))
    with pytest.raises(RuntimeError, match="roi: bprop: expected a training fprop before it"):
        layer.bprop(be.ones((8, 6)))
    layer.fprop(inputs)
    with pytest.raises(ValueError, match=r"roi: expected an error of shape \(8, 6\)"):
        layer.bprop(be.ones((8, 2)))
    layer.fprop(inputs, inference=True)
    with pytest.raises(RuntimeError, match="roi: bprop: expected a training fprop before it"):
        layer.bprop(be.ones((8, 6)))


# --- memory ----------------------------------------------------------------------------------------------------------
