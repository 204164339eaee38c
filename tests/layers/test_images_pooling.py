"""Pooling and local response normalization, compared with PyTorch (neonlite/layers/images.py)."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.image_layers import (
    NORMALIZATIONS,
    OPS,
    POOLINGS,
    Slide,
    Torch,
    close,
    numbers,
    pooling,
    run,
    volume,
    window,
)
from helpers.networks import allocate

from neonlite import Backend
from neonlite.layers import LRN, Pooling

Sizes = tuple[int, ...]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("slide", POOLINGS)
def test_a_pooling_and_its_deltas_are_those_of_pytorch(
    be64: Backend, rng: np.random.Generator, oracle: Torch, slide: Slide, op: str
) -> None:
    layer = allocate(be64, pooling(slide, op), slide.shape, slide.N)
    ran = run(be64, layer, rng)

    x, TRS = oracle.images(ran.x, slide.shape), window(slide, "")
    how = (TRS, slide.strides, slide.padding)
    if op == "max":
        y = oracle.F.max_pool3d(x, *how)
    elif op == "avg":
        y = oracle.F.avg_pool3d(x, *how, count_include_pad=False)
    else:
        y = oracle.F.avg_pool3d(x * x, *how, divisor_override=1).sqrt()
    (dx,) = oracle.gradients(y, ran.error, x)

    assert volume(layer.out_shape) == y.shape[1:]
    close(ran.outputs, oracle.columns(y))
    close(ran.deltas, oracle.columns(dx))


@pytest.mark.parametrize("slide", NORMALIZATIONS)
def test_local_response_normalization_and_its_deltas_are_those_of_pytorch(
    be64: Backend, rng: np.random.Generator, oracle: Torch, slide: Slide
) -> None:
    layer = allocate(be64, LRN(slide.fshape, alpha=1.5, ascale=0.7, bpower=0.75), slide.shape, slide.N)
    ran = run(be64, layer, rng)

    x = oracle.images(ran.x, slide.shape)
    y = 1.5 * oracle.F.local_response_norm(x, slide.fshape, alpha=0.7, beta=0.75, k=1.0)
    (dx,) = oracle.gradients(y, ran.error, x)

    assert layer.out_shape == slide.shape
    close(ran.outputs, oracle.columns(y))
    close(ran.deltas, oracle.columns(dx))


def test_beta_of_a_normalization_adds_to_the_outputs_as_well(be64: Backend, rng: np.random.Generator) -> None:
    layer = allocate(be64, LRN(3, alpha=2.0, beta=0.5), (3, 2, 2), 2)
    _, inputs = numbers(rng, be64, 12, 2)
    once = layer.fprop(inputs).get()
    close(layer.fprop(inputs).get(), 1.5 * once)
    close(layer.fprop(inputs, beta=0.25).get(), once + 0.75 * 1.5 * once)


def test_a_pooling_of_many_elements_counts_them_all(be64: Backend) -> None:
    layer = allocate(be64, Pooling("all"), (2, 17, 19), 1)
    x = np.arange(2.0 * 17 * 19)[:, None]
    layer.fprop(be64.array(x))
    deltas = layer.bprop(be64.array([[1.0], [2.0]])).get()
    assert list(np.flatnonzero(deltas)) == [17 * 19 - 1, 2 * 17 * 19 - 1]


def test_the_first_of_equal_maxima_receives_the_error(be64: Backend) -> None:
    layer = allocate(be64, Pooling(2), (1, 2, 2), 1)
    layer.fprop(be64.array([[1.0], [3.0], [3.0], [3.0]]))
    assert layer.bprop(be64.array([[5.0]])).get().ravel().tolist() == [0, 5, 0, 0]


def test_pooling_in_caffe_mode_counts_windows_that_fit_in_part(cpu: Backend, rng: np.random.Generator) -> None:
    cpu.set_caffe_compat()
    layer = allocate(cpu, Pooling(3, "avg", strides=2), (1, 8, 8), 1)
    assert layer.out_shape == (1, 4, 4)
    _, x = numbers(rng, cpu, 64, 1)
    np.testing.assert_allclose(layer.fprop(x).get(), layer.formula(x).asnumpyarray(), rtol=1e-6)
