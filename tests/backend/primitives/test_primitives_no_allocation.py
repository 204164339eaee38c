"""Tests that no primitive of the NumPy runtimes allocates large memory after its first run.

Two checks of a second call: no NumPy buffer of 1 kB or more exists at any call or return within it, and its peak of all
memory stays far below the size of any array that it works on. The latter finds buffers that live between two calls,
such as an operand of a sum, and the buffers of NumPy's functions for strided arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.allocations import buffers, peak
from helpers.parametrize import part
from helpers.runtimes import RUNTIMES

from neonlite import Backend
from neonlite.backend.tensor import Tensor
from neonlite.transforms import Logistic, Rectlin, Tanh

Run = Callable[[], Any]
LITTLE = 20_000  # bytes of Python's own objects in a call, at most: less than an array of a case has


@pytest.fixture(params=[name for name in ("cpu", "mkl") if name in RUNTIMES])
def be(request: pytest.FixtureRequest) -> Backend:
    return Backend(request.param, rng_seed=1)


def tensors(be: Backend, *shapes: tuple[int, ...], dtype: str = "float32") -> list[Tensor]:
    rng = np.random.default_rng(0)
    return [
        be.array(rng.standard_normal(shape) if math.prod(shape) else np.zeros(shape), dtype=dtype) for shape in shapes
    ]


def test_buffers_are_found_where_there_are_some() -> None:
    x = np.zeros(257)

    def run() -> None:
        list(range(1000))
        y = x + 1
        len(y)

    assert max(buffers(run)) == 8 * 257
    assert buffers(lambda: len(x[1:] + 1)) == []


def allocates_nothing(run: Run, case: Any) -> None:
    run()
    run()
    # beside other processes, a thread of the pool may have had no block yet: it allocates its buffers once
    assert any(buffers(run) == [] for _ in range(3)), case
    assert any(peak(run) < LITTLE for _ in range(3)), case


def sizes(text: str) -> dict[str, int]:
    return {name: int(size) for name, size in (word.split("=") for word in text.split())}


POOLS = {
    "windows apart": "N=128 C=16 H=28 W=28 R=2 S=2",
    "windows overlap": "N=128 C=8 H=32 W=32 R=3 S=3 str_h=2 str_w=2",
    "padding": "N=64 C=8 H=13 W=17 R=3 S=3 str_h=2 str_w=1 pad_h=1 pad_w=2",
    "channels": "N=64 C=12 H=9 W=9 J=3 R=2 S=2 str_j=2 pad_j=1 str_h=1 str_w=1",
    "depth": "N=16 C=8 D=6 H=10 W=12 T=2 R=3 S=2 pad_d=1 pad_h=1 str_d=1 str_h=2",
    "the whole image": "N=64 C=32 H=17 W=17 R=17 S=17",
    "one image": "N=1 C=8 H=200 W=200 R=3 S=3 str_h=1 str_w=1 pad_h=1 pad_w=1",
    "a long row": "N=128 C=1 H=1 W=2000 R=1 S=5 str_w=3",
}


@pytest.mark.parametrize("op", ["max", "avg", "l2"])
@pytest.mark.parametrize(("shape", "dtype"), [*((shape, "float32") for shape in POOLS), ("padding", "float64")])
def test_pooling_allocates_nothing(be: Backend, shape: str, op: str, dtype: str) -> None:
    layer = be.pool_layer(dtype, op, **sizes(POOLS[shape]))
    I, O, E, D = tensors(be, layer.dimI2, layer.dimO2, layer.dimO2, layer.dimI2, dtype=dtype)
    argmaxes = [be.zeros(layer.dimO2, dtype=kind) for kind in ("int16", "int32")]
    trials: list[tuple[Run, Any]] = []
    for places in (None, *argmaxes[: 2 if op == "max" else 0]):
        be.fprop_pool(layer, I, O, places)  # the backward passes read places
        trials.append((partial(be.fprop_pool, layer, I, O, places), (places, "fprop")))
        trials.append((partial(be.fprop_pool, layer, I, O, places, beta=0.5), (places, "fprop beta")))
        for scales in ((1.0, 0.0), (0.5, 0.0), (1.0, 1.0), (0.5, 0.25)):
            trials.append((partial(be.bprop_pool, layer, I, E, D, *scales, argmax=places), (places, scales)))
    for run, case in part(trials, f"{shape} {op}", 0):
        allocates_nothing(run, case)


def test_maxima_that_are_nan_allocate_nothing(be: Backend) -> None:
    layer = be.pool_layer("float32", "max", **sizes(POOLS["padding"]))
    I, O = tensors(be, layer.dimI2, layer.dimO2)
    I[3:9] = math.nan
    places = be.zeros(layer.dimO2, dtype="uint8")
    allocates_nothing(lambda: be.fprop_pool(layer, I, O, places), "nan")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(128, 8, 1, 20, 20, 5), (32, 48, 1, 6, 7, 3), (2, 5, 40, 50, 4, 4)])
def test_normalization_over_channels_allocates_nothing(be: Backend, shape: tuple[int, ...], dtype: str) -> None:
    layer = be.lrn_layer(dtype, *shape)
    I, O, E, D, denom = tensors(be, *[layer.dimI2] * 5, dtype=dtype)
    for bpower in (0.75, 0.5, 1.0, 2.0):
        for scales in ((None, None), (0.5, 0.25)):
            more = (*scales, 0.5, bpower)
            allocates_nothing(lambda more=more: be.fprop_lrn(layer, I, O, denom, *more), ("fprop", more))
            allocates_nothing(lambda more=more: be.bprop_lrn(layer, I, O, E, D, denom, *more), ("bprop", more))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("dims", [(64, 20, 30, 2, 60, 7, 7), (3, 50, 40, 1, 300, 3, 5), (300, 8, 9, 4, 150, 2, 2)])
def test_pooling_of_regions_allocates_nothing(
    be: Backend, rng: np.random.Generator, dims: tuple[int, ...], dtype: str
) -> None:
    C, H, W, N, n, PH, PW = dims
    corners = np.sort(rng.integers(0, [[W], [H]], (n, 2, 2)), axis=2)
    rois = be.array(np.column_stack([rng.integers(0, N, n), corners[:, :, 0], corners[:, :, 1]]), dtype=dtype)
    I, O, E, D = tensors(be, (C * H * W, N), (C * PH * PW, n), (C * PH * PW, n), (C * H * W, N), dtype=dtype)
    argmax = be.zeros((C * PH * PW, n), dtype="int32")
    allocates_nothing(lambda: be.roipooling_fprop(I, rois, O, argmax, n, C, H, W, PH, PW, 1.0), "fprop")
    allocates_nothing(lambda: be.roipooling_bprop(E, rois, D, argmax, n, C, H, W, PH, PW, 1.0), "bprop")


CONVS = {
    "three colors": "N=64 C=3 K=16 H=16 W=16 R=5 S=5 pad_h=2 pad_w=2",
    "many maps": "N=32 C=32 K=24 H=9 W=9 R=3 S=3 pad_h=1 pad_w=1 str_h=2",
    "depth and dilation": "N=16 C=4 K=8 D=5 H=9 W=10 T=2 R=3 S=3 dil_h=2 dil_w=2",
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", CONVS)
def test_convolution_allocates_nothing(be: Backend, shape: str, dtype: str) -> None:
    layer = be.conv_layer(dtype, **sizes(CONVS[shape]))
    i, f, o, k = layer.dimI2, layer.dimF2, layer.dimO2, (layer.K, 1)
    I, F, O, E, D, U, bias, sums = tensors(be, i, f, o, o, i, f, k, k, dtype=dtype)
    for alpha, beta in ((1.0, 0.0), (0.5, 0.25)):
        more = {"alpha": alpha, "beta": beta}
        allocates_nothing(lambda more=more: be.fprop_conv(layer, I, F, O, **more), ("fprop", more))
        allocates_nothing(lambda more=more: be.bprop_conv(layer, F, E, D, **more), ("bprop", more))
        allocates_nothing(lambda more=more: be.update_conv(layer, I, E, U, **more), ("update", more))
    allocates_nothing(lambda: be.fprop_conv(layer, I, F, O, bias=bias, bsum=sums, relu=True, slope=0.1), "bias")
    allocates_nothing(lambda: be.fprop_conv(layer, I, F, O, X=E, brelu=True), "brelu")
    allocates_nothing(lambda: be.update_conv(layer, I, E, U, grad_bias=bias), "grad_bias")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(100, 300), (30, 4000), (700, 64), (5000, 4)])
def test_batch_normalization_allocates_nothing(be: Backend, shape: tuple[int, int], dtype: str) -> None:
    x, y, error, delta, *rows = tensors(be, *[shape] * 4, *[(shape[0], 1)] * 8, dtype=dtype)
    xsum, xvar, gmean, gvar, gamma, beta, by_gamma, by_beta = rows
    gvar[:] = xvar[:] = 1
    for more in ({}, {"relu": True}, {"accumbeta": 0.5}, {"inference": True}, {"binary": True}):

        def forward(more: Any = more) -> None:
            be.compound_fprop_bn(x, xsum, xvar, gmean, gvar, gamma, beta, y, 1e-3, 0.9, **more)

        allocates_nothing(forward, more)
    for binary in (False, True):

        def backward(binary: bool = binary) -> None:
            be.compound_bprop_bn(delta, by_gamma, by_beta, error, x, xsum, xvar, gamma, 1e-3, binary)

        allocates_nothing(backward, ("bprop", binary))


@pytest.mark.parametrize("activation", [Tanh, Logistic, Rectlin])
@pytest.mark.parametrize("dims", [(64, 64, 5), (200, 37, 3)])
def test_a_recurrence_allocates_nothing(be: Backend, dims: tuple[int, int, int], activation: Any) -> None:
    nout, N, steps = dims
    W, bias = tensors(be, (nout, nout), (nout, 1))
    h_prev, ff, h, delta_prev, delta = (tensors(be, *[(nout, N)] * steps) for _ in range(5))
    act = activation()
    act.be = be
    allocates_nothing(lambda: be.compound_rnn_unroll_fprop(W, h_prev, ff, h, bias, nout, steps, steps, act), "fprop")
    whole, errors = tensors(be, (nout, N * steps), (nout, N * steps))
    columns = [slice(t * N, t * N + N) for t in range(steps)]
    outs, sent = [whole[:, c] for c in columns], [errors[:, c] for c in columns]
    allocates_nothing(lambda: be.compound_rnn_unroll_fprop(W, outs, ff, outs, bias, nout, steps, steps, act), "columns")
    allocates_nothing(lambda: be.compound_rnn_unroll_bprop(W, delta_prev, delta, h, nout, steps, steps, act), "bprop")
    allocates_nothing(
        lambda: be.compound_rnn_unroll_bprop(W, sent, sent, outs, nout, steps, steps, act), "bprop, columns"
    )


@pytest.mark.parametrize("pad", [None, 0])
@pytest.mark.parametrize("dims", [(50, 32, 10, 64), (1000, 16, 20, 32)])
def test_a_look_up_table_allocates_nothing(
    be: Backend, rng: np.random.Generator, dims: tuple[int, ...], pad: int | None
) -> None:
    vocabulary, dim, nin, N = dims
    words = be.array(rng.integers(0, vocabulary, (nin, N)), dtype="int32")
    error, error_t, dW = tensors(be, (dim, nin * N), (nin * N, dim), (vocabulary, dim))
    allocates_nothing(lambda: be.compound_bprop_lut(nin, words, error, None, dW, pad), "plain")
    allocates_nothing(lambda: be.compound_bprop_lut(nin, words, error, error_t, dW, pad, 0.5, 0.25), "scaled")
    W = be.array(rng.standard_normal((vocabulary, dim)))
    chosen = be.zeros((dim, nin * N))
    allocates_nothing(lambda: chosen.copy_from(be.take(W, words.reshape(1, -1), axis=0).T), "take")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(10, 300), (512, 128), (1000, 600)])
def test_a_mask_allocates_nothing(be: Backend, shape: tuple[int, int], dtype: str) -> None:
    out = be.zeros(shape, dtype=dtype)
    allocates_nothing(lambda: be.make_binary_mask(out, 0.7), "mask")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_operand_that_is_stretched_allocates_nothing(be: Backend, dtype: str) -> None:
    for F, N in ((100, 300), (30, 4000), (700, 64), (5000, 4), (300, 3000)):
        x, y, column, row = tensors(be, (F, N), (F, N), (F, 1), (1, N), dtype=dtype)
        for tree in (x + column, x * row - column, be.maximum(column, row), be.sum(x * column, axis=1) * row):
            allocates_nothing(lambda y=y, tree=tree: y.copy_from(tree), (F, N, tree))


def test_a_bias_allocates_nothing(be: Backend) -> None:
    x, bias, out = tensors(be, (200, 300), (200, 1), (200, 1))
    allocates_nothing(lambda: be.add_fc_bias(x, bias), "add")
    allocates_nothing(lambda: be.update_fc_bias(x, out), "update")
