"""Programs that launch every kind of GPU kernel, and a comparison of their results with the CPU; without pytest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from neonlite import Autodiff, Backend
from neonlite.backend.primitives.geometry import ImageShape


def tensors(be: Backend, *shapes: tuple[int, ...]) -> list[Any]:
    draw = np.random.default_rng(5)
    return [be.array(draw.normal(size=shape)) for shape in shapes]


def convolution(be: Backend) -> list[Any]:
    layer = be.conv_layer(np.float32, 2, 3, 4, 1, 6, 5, 1, 3, 2, 0, 1, 1, 1, 2, 1)
    i, f, e, bias = tensors(be, layer.dimI, layer.dimF, layer.dimO, (4, 1))
    o, d, u, sums = (be.zeros(shape) for shape in (layer.dimO, layer.dimI, layer.dimF, (4, 1)))
    be.fprop_conv(layer, i, f, o, bias=bias, bsum=sums, relu=True)
    be.bprop_conv(layer, f, e, d, alpha=2)
    be.update_conv(layer, i, e, u)
    return [o, d, u, sums, be.fprop_conv(layer, i, f, o, beta=0.5)]


def deconvolution(be: Backend) -> list[Any]:
    layer = be.deconv_layer(np.float32, 2, 3, 4, P=3, Q=4, R=3, S=2, str_h=2)
    e, f, d = *tensors(be, layer.dimO, layer.dimF), be.zeros(layer.dimI)
    return [be.bprop_conv(layer, f, e, d)]


def pooling(op: str) -> Callable[[Backend], list[Any]]:
    def run(be: Backend) -> list[Any]:
        layer = be.pool_layer(np.float32, op, 2, 4, 1, 5, 6, J=2, R=3, S=2, pad_h=1, str_h=2, str_w=1)
        i, e = tensors(be, layer.dimI, layer.dimO)
        o, d, argmax = be.zeros(layer.dimO), be.zeros(layer.dimI), be.zeros(layer.dimO, dtype="uint8")
        if op != "max":
            be.fprop_pool(layer, i, o)
            return [o, be.bprop_pool(layer, i, e, d)]
        be.fprop_pool(layer, i, o, argmax)
        return [
            o,
            argmax,
            be.bprop_pool(layer, i, e, d, argmax=argmax),
            be.bprop_pool(layer, i, e, be.zeros(layer.dimI)),
        ]

    return run


def local_response(be: Backend) -> list[Any]:
    layer = be.lrn_layer(np.float32, 2, 5, 1, 3, 2, J=3)
    i, e = tensors(be, layer.dimI, layer.dimO)
    o, denom, d = (be.zeros(layer.dimI) for _ in range(3))
    be.fprop_lrn(layer, i, o, denom, ascale=0.1, bpower=0.75)
    return [o, denom, be.bprop_lrn(layer, i, o, e, d, denom, ascale=0.1, bpower=0.75)]


def window_sums(be: Backend) -> list[Any]:
    """Return local response normalization as an op-tree, and its gradient, which sum windows."""
    x, e = tensors(be, (4, 3, 2, 2), (4, 3, 2, 2))
    y = be.lrn(x, 3, ascale=0.1, bpower=0.75)
    (dx,) = Autodiff(y, be, e).get_grad_op_tree([x])
    return [y.astensor(), dx.astensor()]


def batch_norm(be: Backend) -> list[Any]:
    x, e, gamma, beta = tensors(be, (3, 8), (3, 8), (3, 1), (3, 1))
    rows = [be.zeros((3, 1)) for _ in range(6)]
    mean, var, gmean, gvar, dgamma, dbeta = rows
    y, d = be.zeros((3, 8)), be.zeros((3, 8))
    be.compound_fprop_bn(x, mean, var, gmean, gvar, gamma, beta, y, eps=1e-3, rho=0.9)
    be.compound_bprop_bn(d, dgamma, dbeta, e, x, mean, var, gamma, eps=1e-3)
    return [y, d, *rows]


def products(be: Backend) -> list[Any]:
    a, b, c, stack, d = tensors(be, (3, 4), (4, 5), (3, 5), (2, 4, 5), (2, 3, 5))
    sums = be.zeros((3, 1))
    be.compound_dot(a, b, c, alpha=2, beta=0.5, relu=True, bsum=sums)
    be.batched_dot(a, stack, d)
    return [c, sums, d, be.batched_dot(d, stack.T, be.zeros((3, 4)))]


def look_up(be: Backend) -> list[Any]:
    token_ids, (error,) = be.array([[2, 0, 2, 1]], dtype="int32"), tensors(be, (3, 4))
    return [be.compound_bprop_lut(2, token_ids, error, None, be.zeros((5, 3)), pad_idx=0)]


def look_up_often(be: Backend) -> list[Any]:
    token_ids, (error,) = be.array([[1, 3] * 150], dtype="int32"), tensors(be, (3, 300))
    return [be.compound_bprop_lut(2, token_ids, error, None, be.zeros((5, 3)), pad_idx=0)]


def regions(be: Backend) -> list[Any]:
    i, e = tensors(be, (2, 6, 5, 2), (2, 2, 3, 3))
    rois = be.array([[0, 0, 0, 4, 5], [1, 2, 1, 3, 3], [1, 1, 1, 1, 1]])
    o, argmax = be.zeros((2, 2, 3, 3)), be.zeros((2, 2, 3, 3), dtype="int32")
    sizes = (3, 2, 6, 5, 2, 3, 1.0)
    be.roipooling_fprop(i, rois, o, argmax, *sizes)
    return [o, argmax, be.roipooling_bprop(e, rois, be.zeros((2, 6, 5, 2)), argmax, *sizes)]


PRIMITIVES: dict[str, Callable[[Backend], list[Any]]] = {
    "convolution": convolution,
    "deconvolution": deconvolution,
    **{f"{op} pooling": pooling(op) for op in ("max", "avg", "l2")},
    "local response": local_response,
    "sums of windows": window_sums,
    "batch norm": batch_norm,
    "products": products,
    "look-up table": look_up,
    "look-up table, a frequent token id": look_up_often,
    "regions": regions,
}


def trees(be: Backend) -> list[Any]:
    """Return op-trees for every kind of generated kernel, with shapes that leave some threads idle."""
    draw = np.random.default_rng(0)
    x, c, r = (be.array(draw.normal(size=shape)) for shape in [(37, 53), (37, 1), (1, 53)])
    indices = be.array(draw.integers(0, 37, (1, 9)), dtype="int32")
    mask = be.zeros((37, 53))
    be.make_binary_mask(mask, 0.5)
    long, h = be.array(draw.normal(size=(2, 40_000))), be.array(draw.normal(size=(9, 24)), dtype="float16")
    return [
        be.tanh(x * c + r) * mask,
        x.T[1:, ::-1] * 2,
        be.exp(h) + 1,
        be.softmax(x, axis=0),
        be.softmax(x, axis=1),
        be.softmax(long, axis=1),
        be.var(x, axis=1),
        be.var(long, axis=1),
        be.sum(x * x, axis=0),
        c + be.sum(x * x, axis=1),
        be.sum(be.ones((300, 701)) * 0.5),
        be.argmax(x, axis=1),
        be.take(x, indices, 0),
        be.onehot(indices, axis=0, nclass=37),
        be.rand(5, 7),
        be.randn(7, 5),
    ]


def reordered(be: Backend) -> Any:
    """Return images that were reordered to NHWC and back, which are unchanged."""
    x = be.array(np.random.default_rng(1).normal(size=(5, 21, 33)))
    back = be.empty(x.shape)
    if not hasattr(be.primitives, "reorder"):
        return x
    y = be.ones((2, 1, 2))
    xp, small, shapes = be.runtime.xp, be.empty(y.shape), (ImageShape(*x.shape), ImageShape(*y.shape))
    buffers = [xp.empty(t.size, dtype=t._array.dtype) for t in (x, y)]
    for arrays, to_chwn in (((x, y), False), ((back, small), True)):
        be.primitives.reorder_all(
            [(shape, t._array, b, to_chwn) for shape, t, b in zip(shapes, arrays, buffers, strict=True)]
        )
    return back


def work(be: Backend) -> list[Any]:
    """Return the values of the op-trees, one plan each, and of everything else that has kernels."""
    values = [tree.asnumpyarray() for tree in trees(be)]
    drawn = be.empty((13, 11))
    be.fill_normal(drawn, 1.0, 2.0)
    primitives = [x for primitive in PRIMITIVES.values() for x in primitive(be)]
    return [*values, *(x.get() for x in (drawn, reordered(be), *primitives))]


def agree(results: list[Any]) -> None:
    """Assert that results agree with those of the CPU."""
    for x, y in zip(results, work(Backend("cpu", rng_seed=1)), strict=True):
        close = 2e-3 if x.dtype == "float16" else 1e-5
        np.testing.assert_allclose(x, y, close, close)
