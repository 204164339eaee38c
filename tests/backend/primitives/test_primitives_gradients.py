"""Gradients of convolution, pooling and LRN, compared with central differences and PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import textbook
from helpers.image_cases import Conv, Pool, conv_layer, pool_layer
from helpers.image_primitives import (
    CONV,
    DECONV,
    NORM,
    POOL,
    Deconv,
    conv_truth,
    deconv_layer,
    deconv_truth,
    every_op,
    near,
    pool_truth,
    tried,
    values,
)
from helpers.reference import numerical_gradient

from neonlite import Backend, Tensor

# --- gradients: central differences, and PyTorch ---------------------------------------------------------------------


STEP = 1e-4


def differences(be: Backend, f: Callable[[Tensor], Tensor], x: Any, e: Any) -> Any:
    """Return the gradient of sum(e * f(x)) by x, element by element."""
    moved = x.copy()
    return numerical_gradient(lambda: float((e * f(be.array(moved)).get().reshape(e.shape)).sum()), moved, STEP)


def slope_is(got: Tensor, wanted: Any, case: Any) -> None:
    np.testing.assert_allclose(got.get().reshape(wanted.shape), wanted, rtol=1e-6, atol=1e-6, err_msg=str(case))


def test_derivatives_of_convolution_agree_with_differences(be64: Backend) -> None:
    be = be64
    for case in (
        Conv(2, 1, 2, (1, 5, 4), (1, 2, 2), (0, 2, 1), dilation=(1, 2, 3)),
        Conv(1, 2, 2, (2, 3, 4), (2, 2, 2), (1, 0, 1), (2, 1, 2), (1, 1, 2)),
        Conv(1, 2, 2, (1, 4, 5), (1, 2, 1), (0, 1, 2), (1, 3, 2)),
    ):
        layer, t = conv_layer(be, "float64", case), conv_truth(case)
        I, F, E = be.array(t.i), be.array(t.f), be.array(t.e)
        by_i = differences(be, lambda I: be.fprop_conv(layer, I, F, be.zeros(layer.dimO)), t.i, t.e)  # noqa: B023
        slope_is(be.bprop_conv(layer, F, E, be.zeros(layer.dimI)), by_i, case)
        by_f = differences(be, lambda F: be.fprop_conv(layer, I, F, be.zeros(layer.dimO)), t.f, t.e)  # noqa: B023
        slope_is(be.update_conv(layer, I, E, be.zeros(layer.dimF)), by_f, case)


def test_derivatives_of_deconvolution_agree_with_differences(be64: Backend) -> None:
    be = be64
    for case in (
        Deconv(2, 2, 1, (1, 2, 3), (1, 2, 2), (0, 1, 1), (1, 2, 3)),
        Deconv(1, 1, 2, (2, 2, 1), (2, 2, 2), (1, 0, 0), (2, 1, 2), (1, 2, 1)),
    ):
        layer, t = deconv_layer(be, "float64", case), deconv_truth(case)
        X, F, E = be.array(t.x), be.array(t.f), be.array(t.e)
        by_x = differences(be, lambda X: be.bprop_conv(layer, F, X, be.zeros(layer.dimI)), t.x, t.e)  # noqa: B023
        slope_is(be.fprop_conv(layer, E, F, be.zeros(layer.dimO)), by_x, case)
        by_f = differences(be, lambda F: be.bprop_conv(layer, F, X, be.zeros(layer.dimI)), t.f, t.e)  # noqa: B023
        slope_is(be.update_conv(layer, E, X, be.zeros(layer.dimF)), by_f, case)


@every_op
def test_derivatives_of_pooling_agree_with_differences(be64: Backend, op: str) -> None:
    be = be64
    for case in (
        Pool(1, (3, 1, 3, 4), (2, 1, 2, 2), (1, 0, 1, 1), (2, 1, 1, 3)),
        Pool(2, (1, 1, 4, 4), (1, 1, 3, 2), (0, 0, 1, 1), (1, 1, 1, 2)),
        Pool(1, (2, 1, 5, 3), (1, 1, 2, 1), strides=(1, 1, 3, 2)),
    ):
        layer = pool_layer(be, "float64", op, case)
        order = np.random.default_rng(0).permutation(math.prod(layer.dimI))
        i, e = (order - 7.5).reshape(layer.dimI) / 10, values(3, *layer.dimO)  # no two equal, none 0
        by_i = differences(be, lambda I: be.fprop_pool(layer, I, be.zeros(layer.dimO)), i, e)  # noqa: B023
        slope_is(be.bprop_pool(layer, be.array(i), be.array(e), be.zeros(layer.dimI)), by_i, case)


@pytest.mark.parametrize("J", [1, 2, 3, 9])
def test_derivatives_of_normalization_agree_with_differences(be64: Backend, J: int) -> None:
    be, (a, b) = be64, (0.7, 0.6)
    layer = be.lrn_layer("float64", 2, 5, 1, 2, 1, J)
    O, denom, D = be.zeros(layer.dimI), be.zeros(layer.dimI), be.zeros(layer.dimI)
    i, e = values(1, *layer.dimI), values(3, *layer.dimI)
    by_i = differences(be, lambda I: be.fprop_lrn(layer, I, O, denom, None, None, a, b), i, e)
    I = be.array(i)
    be.fprop_lrn(layer, I, O, denom, None, None, a, b)
    slope_is(be.bprop_lrn(layer, I, O, be.array(e), D, denom, None, None, a, b), by_i, J)


def test_the_gradient_of_a_scaled_normalization_reads_no_output(be64: Backend) -> None:
    be = be64
    layer = be.lrn_layer("float64", 2, 5, 1, 2, 1, 3)
    i, e = values(1, *layer.dimI), values(3, *layer.dimI)
    I, O, denom, D = be.array(i), be.ones(layer.dimI), be.zeros(layer.dimI), be.zeros(layer.dimI)
    be.fprop_lrn(layer, I, O, denom, alpha=2.0, beta=0.5, ascale=0.7, bpower=0.6)
    be.bprop_lrn(layer, I, O, be.array(e), D, denom, alpha=2.0, ascale=0.7, bpower=0.6)
    near(D, 2 * textbook.lrn_bprop(i, e, 3, 0.7, 0.6), layer)


def torched(*arrays: Any) -> Any:
    """Return images (C, D, H, W, N) as PyTorch has them, (N, C, D, H, W), and filters (C, T, R, S, K) alike."""
    import torch

    return [torch.tensor(np.moveaxis(x, -1, 0).copy(), requires_grad=True) for x in arrays]


def back(x: Any) -> Any:
    return np.moveaxis(x.detach().numpy(), 0, -1)


def test_convolutions_are_pytorchs(be64: Backend) -> None:
    functional = pytest.importorskip("torch").nn.functional
    be = be64
    for case in tried(be, CONV)[:40]:
        layer, t = conv_layer(be, "float64", case), conv_truth(case)
        x, w = torched(t.i, t.f)
        y = functional.conv3d(x, w, None, case.strides, case.padding, case.dilation)
        y.backward(torched(t.e)[0])
        I, F, E = be.array(t.i), be.array(t.f), be.array(t.e)
        near(be.fprop_conv(layer, I, F, be.zeros(layer.dimO)), back(y), case)
        near(be.bprop_conv(layer, F, E, be.zeros(layer.dimI)), back(x.grad), case)
        near(be.update_conv(layer, I, E, be.zeros(layer.dimF)), back(w.grad), case)
    case = Conv(2, 3, 4, (1, 6, 5), (1, 3, 2), (0, 1, 2), (1, 2, 1), (1, 1, 2))
    layer, t = conv_layer(be, "float64", case), conv_truth(case)
    flat = functional.conv2d(*(a[:, :, 0] for a in torched(t.i, t.f)), None, (2, 1), (1, 2), (1, 2))
    near(be.fprop_conv(layer, be.array(t.i), be.array(t.f), be.zeros(layer.dimO)), back(flat)[:, None], case)


def test_deconvolutions_are_pytorchs(be64: Backend) -> None:
    functional = pytest.importorskip("torch").nn.functional
    be = be64
    for case in tried(be, DECONV)[:40]:
        layer, t = deconv_layer(be, "float64", case), deconv_truth(case)
        x, w = torched(t.x, t.f)
        y = functional.conv_transpose3d(x, w, None, case.strides, case.padding, 0, 1, case.dilation)
        y.backward(torched(t.e)[0])
        X, F, E = be.array(t.x), be.array(t.f), be.array(t.e)
        near(be.bprop_conv(layer, F, X, be.zeros(layer.dimI)), back(y), case)
        near(be.fprop_conv(layer, E, F, be.zeros(layer.dimO)), back(x.grad), case)
        near(be.update_conv(layer, E, X, be.zeros(layer.dimF)), back(w.grad), case)


@pytest.mark.parametrize("caffe", [False, True])
@every_op
def test_poolings_are_pytorchs(be64: Backend, op: str, caffe: bool) -> None:
    functional = pytest.importorskip("torch").nn.functional
    be, seen = be64, 0
    if caffe:
        be.set_caffe_compat()
    for case in tried(be, POOL):
        window, padding, strides = (x[1:] for x in case.geometry)
        if any(2 * p > k or k > x for p, k, x in zip(padding, window, case.CDHW[1:], strict=True)):
            continue  # PyTorch pads by half a window at most, and windows are no larger than the image
        case = Pool(case.N, case.CDHW, (1, *window), (0, *padding), (1, *strides))
        layer, t = pool_layer(be, "float64", op, case), pool_truth(op, case, caffe)
        (x,) = torched(t.i)
        if op == "max":
            y = functional.max_pool3d(x, window, strides, padding, ceil_mode=caffe)
        elif op == "avg":
            y = functional.avg_pool3d(x, window, strides, padding, caffe, count_include_pad=False)
        else:
            y = functional.avg_pool3d(x * x, window, strides, padding, caffe, divisor_override=1).sqrt()
        y.backward(torched(t.e)[0])
        I, E = be.array(t.i), be.array(t.e)
        near(be.fprop_pool(layer, I, be.zeros(layer.dimO)), back(y), case)
        near(be.bprop_pool(layer, I, E, be.zeros(layer.dimI)), back(x.grad), case)
        seen += 1
    assert seen > 4


def test_normalizations_over_channels_are_pytorchs(be64: Backend) -> None:
    functional = pytest.importorskip("torch").nn.functional
    be = be64
    for N, CDHW, J, a, b in tried(be, NORM)[:40]:
        layer, i, e = be.lrn_layer("float64", N, *CDHW, J), values(1, *CDHW, N), values(3, *CDHW, N)
        (x,) = torched(i)
        y = functional.local_response_norm(x, J, alpha=a, beta=b, k=1)
        y.backward(torched(e)[0])
        I, O, denom, D = be.array(i), be.zeros(layer.dimI), be.zeros(layer.dimI), be.zeros(layer.dimI)
        near(be.fprop_lrn(layer, I, O, denom, ascale=a, bpower=b), back(y), layer)
        near(be.bprop_lrn(layer, I, O, be.array(e), D, denom, ascale=a, bpower=b), back(x.grad), layer)
