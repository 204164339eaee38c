"""Measure primitives beside PyTorch: convolution, pooling, normalization, softmax, products.

python benchmarks/primitives.py            # five to eight minutes; writes results/primitives.json and .md
python benchmarks/primitives.py --quick    # a smoke test with small sizes; writes nothing
python benchmarks/primitives.py --only pool --runtime cpu
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import _chains
import numpy as np
from _table import QUICK, Effort, Work, buffers, format_duration, machine, markdown, measure, ratio, save

from neonlite import Autodiff, Backend, jit
from neonlite.backend import concurrency
from neonlite.backend.runtimes.onednn import bindings
from neonlite.transforms import Softmax

# imported before MKL, or PyTorch would use MKL's OpenMP library
torch: Any = import_module("torch") if find_spec("torch") else None
aten = torch.ops.aten if torch else None
RUNTIMES = ["cpu", *(["mkl"] if find_spec("mkl") else [])]  # they differ only in products
FULL = Effort(1.0, 0.02, 5)
REST = 0.12  # seconds until the threads of OpenMP (10 ms) and OpenBLAS (100 ms) stop spinning
LIMIT, LIMITS = 1.0, {"chain": 1.05}  # maximum time relative to PyTorch
NEAR = 1e-3  # tolerance of results, as a fraction of their norm
EPS, RHO = 1e-3, 0.9
LRN = 5, 1e-4, 0.75  # channels, ascale and bpower of Krizhevsky et al.
NOTE = """\
A pass of neonlite is one call of the backend - `fprop_conv`, `bprop_conv`, `update_conv`, `fprop_pool`, `bprop_pool`,
`fprop_lrn`, `bprop_lrn`, `compound_fprop_bn`, `compound_bprop_bn`, `compound_dot` - or one op-tree that is built and
evaluated: softmax, its `backward`, and a random mask with the product by it. All write into preallocated tensors, with
images (C, D, H, W, N). The functions of rows, gelu and attention are compiled by `jit`, beside functions of
`torch.nn.functional`, and with gradients beside autograd; these return new tensors. PyTorch runs the operator of ATen
for the same pass, into preallocated tensors where it supports them: not for convolutions, batch norm and dropout; the
backward pass of local response normalization runs by autograd. Its images are (N, C, H, W), and channels last; the
faster of both counts. Results are compared before the measurement,
except for dropout, which is random. A chain is a network of consecutive convolutions with bias and Rectlin, compiled by
`jit`, beside modules of PyTorch, with the errors of images and the gradients of weights in the backward pass. Times are
medians over rounds, in
each of which every peer runs once, in random order, and with two threads after a rest; "× torch" is the time relative
to PyTorch, the median of the ratios of all rounds. "Buffers" are those of 1 kB and more that NumPy allocates in one
call after the first, in this thread."""

Result = Callable[[], Any]
Passes = dict[str, tuple[Work, Result]]  # the work, and a function that returns its result in neonlite's layout


class Sizes(NamedTuple):
    """N images (C, D, H, W), K filters, and windows (T, R, S); images and windows are square."""

    N: int
    C: int
    H: int
    K: int
    R: int
    pad: int = 0
    stride: int = 1
    D: int = 1
    T: int = 1

    @property
    def named(self) -> dict[str, int]:
        """The sizes by the argument names of ``conv_layer`` and ``pool_layer``."""
        deep = {"pad_d": self.pad, "str_d": self.stride} if self.T > 1 else {"str_d": 1}
        flat = {"pad_h": self.pad, "pad_w": self.pad, "str_h": self.stride, "str_w": self.stride}
        return {"D": self.D, "H": self.H, "W": self.H, "T": self.T, "R": self.R, "S": self.R} | flat | deep

    @property
    def axes(self) -> int:
        """Number of axes along which windows move."""
        return 3 if self.T > 1 else 2

    def along(self, deep: int, flat: int) -> list[int]:
        """Return a size for each of these axes."""
        return [deep, flat, flat][-self.axes :]

    def __str__(self) -> str:
        image = f"{self.D} x {self.H} x {self.H}" if self.D > 1 else f"{self.H} x {self.H}"
        window = f"{self.T} x {self.R} x {self.R}" if self.T > 1 else f"{self.R} x {self.R}"
        what = "" if self.K == self.C else f" -> {self.K}"
        more = f"{f', padded by {self.pad}' if self.pad else ''}{f', stride {self.stride}' if self.stride > 1 else ''}"
        return f"{self.N} images {self.C}{what}, {image}" + (f", by {window}{more}" if self.R else "")


def drawn(*shapes: tuple[int, ...]) -> list[Any]:
    """Return normally distributed arrays, the same in every call."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape, np.float32) for shape in shapes]


# --- convolution -----------------------------------------------------------------------------------------------------


def ours_conv(be: Backend, s: Sizes) -> Passes:
    layer = be.conv_layer("float32", s.N, s.C, s.K, **s.named)
    x, f, e = map(be.array, drawn(layer.dimI, layer.dimF, layer.dimO))
    o, d, u = (be.empty(dim) for dim in (layer.dimO, layer.dimI, layer.dimF))
    return {
        "fprop": (lambda: be.fprop_conv(layer, x, f, o), o.get),
        "bprop": (lambda: be.bprop_conv(layer, f, e, d), d.get),
        "update": (lambda: be.update_conv(layer, x, e, u), u.get),
    }


def theirs_conv(s: Sizes, last: bool) -> Passes:
    layer = Backend("cpu").conv_layer("float32", s.N, s.C, s.K, **s.named)
    x, f, e = (to_torch(a, s, last) for a in drawn(layer.dimI, layer.dimF, layer.dimO))
    how = [s.stride] * s.axes, [s.pad] * s.axes, [1] * s.axes, False, [0] * s.axes, 1

    def back(*wanted: bool) -> Callable[[], Any]:
        return lambda: aten.convolution_backward(e, x, f, None, *how, [*wanted, False])

    bprop, update = back(True, False), back(False, True)
    return {
        "fprop": (lambda: aten.convolution(x, f, None, *how), lambda: to_numpy(aten.convolution(x, f, None, *how))),
        "bprop": (bprop, lambda: to_numpy(bprop()[0])),
        "update": (update, lambda: to_numpy(update()[1])),
    }


def to_torch(a: Any, s: Sizes, last: bool) -> Any:
    """Return an array (C, D, H, W, N) as a tensor (N, C, D, H, W), without D if windows do not move along it."""
    a = np.ascontiguousarray(np.moveaxis(a if s.axes == 3 else a[:, 0], -1, 0))
    order = torch.channels_last_3d if s.axes == 3 else torch.channels_last
    return torch.from_numpy(a).contiguous(memory_format=order) if last else torch.from_numpy(a)


def to_numpy(t: Any) -> Any:
    """Return a tensor of PyTorch as an array (C, D, H, W, N)."""
    a = np.moveaxis(t.numpy(), 0, -1)
    return a if a.ndim == 5 else a[:, None]


def ours_deconv(be: Backend, s: Sizes) -> Passes:
    """Return the passes of a transposed convolution, whose images are the outputs of a convolution."""
    return {"fprop": ours_conv(be, s)["bprop"], "bprop": ours_conv(be, s)["fprop"]}


def theirs_deconv(s: Sizes, last: bool) -> Passes:
    layer = Backend("cpu").conv_layer("float32", s.N, s.C, s.K, **s.named)
    x, f, e = (to_torch(a, s, last) for a in drawn(layer.dimI, layer.dimF, layer.dimO))
    how = [s.stride] * s.axes, [s.pad] * s.axes, [1] * s.axes, True
    left = [(n + 2 * s.pad - s.R) % s.stride for n in layer.DHW[-s.axes :]]  # pixels that no window covers
    forward = partial(aten.convolution, e, f, None, *how, left, 1)
    back = partial(aten.convolution_backward, x, e, f, None, *how, left, 1, [True, False, False])
    return {"fprop": (forward, lambda: to_numpy(forward())), "bprop": (back, lambda: to_numpy(back()[0]))}


# --- pooling ---------------------------------------------------------------------------------------------------------


def ours_pool(op: str) -> Callable[[Backend, Sizes], Passes]:
    def passes(be: Backend, s: Sizes) -> Passes:
        layer = be.pool_layer("float32", op, s.N, s.C, **s.named)
        x, e = map(be.array, drawn(layer.dimI, layer.dimO))
        x, o, d = x, be.empty(layer.dimO), be.empty(layer.dimI)
        places = be.empty(layer.dimO, "uint8") if op == "max" else None
        be.fprop_pool(layer, x, o, places)
        return {
            "fprop": (lambda: be.fprop_pool(layer, x, o, places), o.get),
            "bprop": (lambda: be.bprop_pool(layer, e, d, places), d.get),
        }

    return passes


def theirs_pool(op: str) -> Callable[[Sizes, bool], Passes]:
    def passes(s: Sizes, last: bool) -> Passes:
        layer = Backend("cpu").pool_layer("float32", op, s.N, s.C, **s.named)
        x, e = (to_torch(a, s, last) for a in drawn(layer.dimI, layer.dimO))
        o, d, how = torch.empty_like(e), torch.empty_like(x), ([s.R] * 2, [s.stride] * 2, [s.pad] * 2)
        if op == "max":
            places = aten.max_pool2d_with_indices(x, *how)[1]
            max_back = aten.max_pool2d_with_indices_backward
            return {
                "fprop": (lambda: aten.max_pool2d_with_indices(x, *how, out=o, indices=places), lambda: to_numpy(o)),
                "bprop": (lambda: max_back(e, x, *how, [1, 1], False, places, grad_input=d), lambda: to_numpy(d)),
            }
        how += False, False, None  # a mean does not count the padding
        return {
            "fprop": (lambda: aten.avg_pool2d(x, *how, out=o), lambda: to_numpy(o)),
            "bprop": (lambda: aten.avg_pool2d_backward(e, x, *how, grad_input=d), lambda: to_numpy(d)),
        }

    return passes


# --- normalization ---------------------------------------------------------------------------------------------------


def ours_lrn(be: Backend, s: Sizes) -> Passes:
    J, ascale, bpower = LRN
    layer = be.lrn_layer("float32", s.N, s.C, s.D, s.H, s.H, J)
    x, e = map(be.array, drawn(layer.dimI, layer.dimO))
    o, d, denom = (be.empty(layer.dimI) for _ in range(3))
    scales = {"ascale": ascale, "bpower": bpower}
    be.fprop_lrn(layer, x, o, denom, **scales)
    return {
        "fprop": (lambda: be.fprop_lrn(layer, x, o, denom, **scales), o.get),
        "bprop": (lambda: be.bprop_lrn(layer, x, o, e, d, denom, **scales), d.get),
    }


def theirs_lrn(s: Sizes, last: bool) -> Passes:
    J, ascale, bpower = LRN
    shape = s.C, s.D, s.H, s.H, s.N
    x, e = (to_torch(a, s, last) for a in drawn(shape, shape))
    norm = torch.nn.functional.local_response_norm
    leaf = x.clone().requires_grad_()
    with torch.enable_grad():
        y = norm(leaf, J, ascale, bpower, 1.0)
    forward, back = partial(norm, x, J, ascale, bpower, 1.0), partial(torch.autograd.grad, y, leaf, e, True)
    return {"fprop": (forward, lambda: to_numpy(forward())), "bprop": (back, lambda: to_numpy(back()[0]))}


def ours_norm(be: Backend, s: Sizes) -> Passes:
    columns = s.D * s.H * s.H * s.N
    x, e, gamma, beta = map(be.array, drawn((s.C, columns), (s.C, columns), (s.C, 1), (s.C, 1)))
    x, y, d = x, be.empty(x.shape), be.empty(x.shape)
    mean, var, gmean, gvar, by_gamma, by_beta = (be.zeros((s.C, 1)) for _ in range(6))
    forward = partial(be.compound_fprop_bn, x, mean, var, gmean, gvar, gamma, beta, y, EPS, RHO)
    forward()
    shape = s.C, s.D, s.H, s.H, s.N
    return {
        "fprop": (forward, lambda: y.get().reshape(shape)),
        "bprop": (
            partial(be.compound_bprop_bn, d, by_gamma, by_beta, e, x, mean, var, gamma, EPS),
            lambda: d.get().reshape(shape),
        ),
    }


def theirs_norm(s: Sizes, last: bool) -> Passes:
    shape = s.C, s.D, s.H, s.H, s.N
    columns = s.D * s.H * s.H * s.N
    wide = drawn((s.C, columns), (s.C, columns), (s.C, 1), (s.C, 1))
    x, e = (to_torch(a.reshape(shape), s, last) for a in wide[:2])
    gamma, beta = (torch.from_numpy(a[:, 0]) for a in wide[2:])
    means = torch.zeros(s.C), torch.zeros(s.C)
    forward = partial(aten.native_batch_norm, x, gamma, beta, *means, True, 1 - RHO, EPS)
    _, mean, inv = forward()
    back = partial(aten.native_batch_norm_backward, e, x, gamma, *means, mean, inv, True, EPS, [True] * 3)
    return {"fprop": (forward, lambda: to_numpy(forward()[0])), "bprop": (back, lambda: to_numpy(back()[0]))}


# --- matrices --------------------------------------------------------------------------------------------------------


def ours_softmax(be: Backend, shape: tuple[int, int]) -> Passes:
    x, e = map(be.array, drawn(shape, shape))
    y, d, softmax = be.empty(shape), be.empty(shape), Softmax()
    softmax.be = be
    y[:] = softmax(x)

    def forward() -> None:
        y[:] = softmax(x)

    def back() -> None:
        d[:] = softmax.backward(e, y)

    return {"fprop": (forward, y.get), "bprop": (back, d.get)}


def theirs_softmax(shape: tuple[int, int], last: bool) -> Passes:
    x, e = map(torch.from_numpy, drawn(shape, shape))
    y, d, back = torch.softmax(x, 0), torch.empty(shape), aten._softmax_backward_data
    return {
        "fprop": (lambda: aten._softmax(x, 0, False, out=y), y.numpy),
        "bprop": (lambda: back(e, y, 0, torch.float32, grad_input=d), d.numpy),
    }


# by name: neonlite's formula, PyTorch's, and the shapes of the operands for the shape of the result
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., list[tuple[int, ...]]]]] = {
    "softmax of rows": (
        lambda be, x: be.softmax(x, axis=1),
        lambda F, x: F.softmax(x, 1),
        lambda *shape: [shape],
    ),
    "log_softmax of rows": (
        lambda be, x: be.log_softmax(x, axis=1),
        lambda F, x: F.log_softmax(x, 1),
        lambda *shape: [shape],
    ),
    "layer norm of rows": (
        lambda be, x, gamma, beta: be.layer_norm(x, gamma, beta, axis=1),
        lambda F, x, gamma, beta: F.layer_norm(x, x.shape[1:], gamma[0], beta[0]),
        lambda rows, n: [(rows, n), (1, n), (1, n)],
    ),
    "gelu": (
        lambda be, x: be.gelu(x),
        lambda F, x: F.gelu(x, approximate="tanh"),
        lambda *shape: [shape],
    ),
    "cross entropy of rows": (
        lambda be, x, t: be.cross_entropy(x, be.softmax(t, axis=1), axis=1),
        lambda F, x, t: F.cross_entropy(x, F.softmax(t, 1)),
        lambda *shape: [shape, shape],
    ),
    "attention": (
        lambda be, q, k, v: be.attention(q, k, v),
        lambda F, q, k, v: F.scaled_dot_product_attention(q, k, v),
        lambda *shape: [shape] * 3,
    ),
}


def ours_function(name: str, be: Backend, shape: tuple[int, ...]) -> Passes:
    """Return the function, and its gradients with respect to all operands, compiled by ``jit``."""
    formula, _, shapes = FUNCTIONS[name]
    operands = list(map(be.array, drawn(*shapes(*shape))))
    forward = jit(partial(formula, be))
    (error,) = map(be.array, drawn(forward(*operands).shape))

    def gradients(e: Any, *operands: Any) -> Any:
        return Autodiff(formula(be, *operands), be, e).get_grad_op_tree(list(operands))

    back = jit(gradients)
    return {
        "fprop": (lambda: forward(*operands), lambda: forward(*operands).get()),
        "fprop and bprop": (lambda: back(error, *operands), lambda: back(error, *operands)[0].get()),
    }


def theirs_function(name: str, shape: tuple[int, ...], last: bool) -> Passes:
    _, formula, shapes = FUNCTIONS[name]
    forward = partial(formula, torch.nn.functional)
    operands = list(map(torch.from_numpy, drawn(*shapes(*shape))))
    leaves = [x.clone().requires_grad_() for x in operands]
    (error,) = map(torch.from_numpy, drawn(tuple(forward(*operands).shape)))

    def back() -> Any:
        with torch.enable_grad():
            return torch.autograd.grad(forward(*leaves), leaves, error)

    return {
        "fprop": (lambda: forward(*operands), lambda: forward(*operands).numpy()),
        "fprop and bprop": (back, lambda: back()[0].numpy()),
    }


def ours_dropout(be: Backend, shape: tuple[int, int]) -> Passes:
    (x,) = map(be.array, drawn(shape))
    y, mask = be.empty(shape), be.empty(shape)

    def forward() -> None:
        be.make_binary_mask(mask, 0.5)
        y[:] = x * mask * 2

    return {"fprop": (forward, lambda: None)}


def theirs_dropout(shape: tuple[int, int], last: bool) -> Passes:
    (x,) = map(torch.from_numpy, drawn(shape))
    return {"fprop": (lambda: aten.native_dropout(x, 0.5, True), lambda: None)}


def ours_gemm(be: Backend, sizes: tuple[int, int, int]) -> Passes:
    m, k, n = sizes
    a, b = map(be.array, drawn((m, k), (k, n)))
    c = be.empty((m, n))
    return {"product": (lambda: be.compound_dot(a, b, c), c.get)}


def theirs_gemm(sizes: tuple[int, int, int], last: bool) -> Passes:
    m, k, n = sizes
    a, b = map(torch.from_numpy, drawn((m, k), (k, n)))
    c = torch.empty(m, n)
    return {"product": (lambda: torch.mm(a, b, out=c), c.numpy)}


# --- measurement ----------------------------------------------------------------------------------------------------


class Primitive(NamedTuple):
    """The passes of both libraries, whether channels may be last, the cases, and a small case."""

    ours: Callable[[Backend, Any], Passes]
    theirs: Callable[[Any, bool], Passes]
    images: bool
    cases: dict[str, Any]
    small: Any


CONVOLUTIONS = {
    "VGG 1": Sizes(4, 3, 224, 64, 3, 1),
    "VGG 6": Sizes(4, 128, 56, 256, 3, 1),
    "VGG 11": Sizes(8, 512, 14, 512, 3, 1),
    "ResNet 1": Sizes(8, 3, 224, 64, 7, 3, 2),
    "ResNet 1 x 1": Sizes(16, 64, 56, 256, 1),
    "ResNet 1 x 1, stride 2": Sizes(16, 256, 56, 512, 1, 0, 2),
    "ResNet 3 x 3": Sizes(16, 128, 28, 128, 3, 1),
    "ResNet 3 x 3, stride 2": Sizes(16, 128, 56, 128, 3, 1, 2),
    "CIFAR 1": Sizes(128, 3, 32, 16, 5),
    "CIFAR 2": Sizes(128, 16, 14, 32, 5),
    "deep": Sizes(4, 16, 28, 32, 3, 1, D=8, T=3),
}
POOLINGS = {
    "VGG": Sizes(8, 64, 112, 64, 2, 0, 2),
    "ResNet": Sizes(8, 64, 112, 64, 3, 1, 2),
    "CIFAR": Sizes(128, 16, 28, 16, 2, 0, 2),
    "global": Sizes(32, 512, 7, 512, 7),
}
NORMALIZED = {"AlexNet 1": Sizes(16, 96, 27, 96, 0), "AlexNet 2": Sizes(16, 256, 13, 256, 0)}
NORMALIZED |= {"ResNet": Sizes(16, 64, 56, 64, 0), "CIFAR": Sizes(128, 32, 14, 32, 0)}


FEATURES = {"a hidden layer": Sizes(128, 500, 1, 500, 0)}
SMALL = Sizes(4, 3, 9, 8, 3, 1, 2)
POOLED, FLAT = Sizes(4, 3, 9, 3, 3, 1, 2), Sizes(4, 3, 6, 3, 0)
MATRICES = {f"{m} x {n}": (m, n) for m, n in ((10, 128), (98, 4096), (1000, 128), (1000, 4096))}
ROWS = {"128 x 1000": (128, 1000), "8192 x 512": (8192, 512)}
HEADS = {f"{n} x 4 heads, T {T}": (n, 4, T, 64) for n, T in ((16, 64), (8, 256), (4, 1024))}
PRODUCTS = {
    f"{m} x {k} x {n}": (m, k, n)
    for m, k, n in (
        (32, 32, 32),
        (100, 784, 128),
        (512, 128, 64),
        (1000, 4096, 128),
        (64, 576, 12544),
        (1024, 1024, 1024),
    )
}
PRIMITIVES = {
    "conv": Primitive(ours_conv, theirs_conv, True, CONVOLUTIONS, SMALL),
    "deconv": Primitive(
        ours_deconv,
        theirs_deconv,
        True,
        {"DCGAN": Sizes(32, 64, 32, 128, 5, 2, 2), "autoencoder": Sizes(128, 8, 14, 8, 3, 1, 2)},
        SMALL,
    ),
    "max pool": Primitive(ours_pool("max"), theirs_pool("max"), True, POOLINGS, POOLED),
    "avg pool": Primitive(ours_pool("avg"), theirs_pool("avg"), True, POOLINGS, POOLED),
    "lrn": Primitive(ours_lrn, theirs_lrn, True, NORMALIZED, FLAT),
    "batch norm": Primitive(ours_norm, theirs_norm, True, NORMALIZED | FEATURES, FLAT),
    "softmax": Primitive(ours_softmax, theirs_softmax, False, MATRICES, (5, 7)),
    **{
        name: Primitive(
            partial(ours_function, name),
            partial(theirs_function, name),
            False,
            HEADS if name == "attention" else ROWS,
            (2, 3, 5, 7) if name == "attention" else (5, 7),
        )
        for name in FUNCTIONS
    },
    "dropout": Primitive(
        ours_dropout, theirs_dropout, False, {"98 x 4096": (98, 4096), "100 x 128": (100, 128)}, (5, 7)
    ),
    "gemm": Primitive(ours_gemm, theirs_gemm, False, PRODUCTS, (5, 7, 3)),
    "chain": Primitive(_chains.ours, partial(_chains.theirs, torch), True, _chains.CHAINS, _chains.SMALL),
}


def passes(primitive: Primitive, case: Any, runtimes: list[str]) -> dict[str, dict[str, Work]]:
    """Return {pass: {peer: work}}, after comparing all results."""
    found = {runtime: primitive.ours(Backend(runtime), case) for runtime in runtimes}
    if torch:
        found["torch"] = primitive.theirs(case, False)
        if primitive.images:
            found["torch, channels last"] = primitive.theirs(case, True)
    works: dict[str, dict[str, Work]] = {}
    for name in found[runtimes[0]]:
        works[name] = {peer: each[name][0] for peer, each in found.items()}
        results = {}
        for peer, work in works[name].items():
            work()
            results[peer] = found[peer][name][1]()
        first = results[runtimes[0]]
        for peer, result in results.items():
            if first is not None and np.linalg.norm(result - first) > NEAR * np.linalg.norm(first):
                raise AssertionError(f"{name}: {peer} and {runtimes[0]} have other results")
    return works


def large_buffers(work: Work) -> int:
    """Return the number of buffers of 1 kB and more that NumPy allocates in one call."""
    with buffers() as sizes:
        work()
    return sum(n >= 1000 for n in sizes)


def rows(words: list[str], runtimes: list[str], quick: bool) -> list[dict[str, Any]]:
    """Return the measurements of the cases whose names contain all of some words."""
    found = []
    for name, primitive in PRIMITIVES.items():
        for case, sizes in ({"small": primitive.small} if quick else primitive.cases).items():
            if not all(word in f"{name}, {case}" for word in words):
                continue
            some = runtimes if name == "gemm" else runtimes[:1]
            for pass_name, peers in passes(primitive, sizes, some).items():
                rest = REST * (concurrency.get_num_threads() > 1 and not quick)
                times, quiet = measure(peers, QUICK if quick else FULL, rest)
                size_text = str(sizes) if isinstance(sizes, Sizes | _chains.Chain) else " x ".join(map(str, sizes))
                row: dict[str, Any] = {
                    "primitive": name,
                    "case": case,
                    "sizes": size_text,
                    "pass": pass_name,
                    "quiet": quiet,
                }
                row |= {f"{peer} s": statistics.median(t) for peer, t in times.items()}
                row |= {f"{peer} buffers": large_buffers(peers[peer]) for peer in some}
                if best := min((p for p in times if p.startswith("torch")), key=lambda p: row[f"{p} s"], default=None):
                    row |= {f"{peer} / torch": ratio(times[best], times[peer]) for peer in some}
                found.append(row)
                print(*line(row, runtimes), sep="  ", flush=True)
    return found


def line(row: dict[str, Any], runtimes: list[str]) -> list[str]:
    """Return a row of the table; ``!`` marks a missed target, ``~`` a disturbed measurement."""
    cells = [f"{row['primitive']}, {row['case']}{'' if row['quiet'] else ' ~'}", row["pass"]]
    for peer in (*runtimes, "torch", "torch, channels last"):
        cells.append(format_duration(row[f"{peer} s"]) if f"{peer} s" in row else "")
    for peer in runtimes:
        longer = row.get(f"{peer} / torch")
        cells.append(f"{longer:.2f}{' !' if missed(row, peer) else ''}" if longer else "")
    return [*cells, " ".join(str(row[f"{peer} buffers"]) for peer in runtimes if f"{peer} buffers" in row)]


def missed(row: dict[str, Any], peer: str) -> bool:
    """Return whether a runtime of neonlite misses the target."""
    return round(row.get(f"{peer} / torch", 0), 2) > LIMITS.get(row["primitive"], LIMIT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="run a smoke test, and write nothing")
    parser.add_argument("--only", nargs="*", metavar="WORD", help="the cases with these words; nothing is written")
    parser.add_argument("--runtime", choices=RUNTIMES, help="only this runtime; write nothing")
    options = parser.parse_args()
    runtimes = [options.runtime] if options.runtime else RUNTIMES
    if torch:
        torch.set_num_threads(concurrency.get_num_threads())
        torch.set_grad_enabled(False)
    found = rows(options.only or [], runtimes, options.quick)
    about = machine("numpy", "mkl", "torch") | {
        "oneDNN": bindings.version_info(),
        "threads": concurrency.get_num_threads(),
    }
    head = [
        "primitive",
        "pass",
        *runtimes,
        "torch",
        "channels last",
        *(f"{peer} × torch" for peer in runtimes),
        "buffers",
    ]
    table = markdown(head, [line(row, runtimes) for row in found])
    words = "\n".join(f"- {key}: {value}" for key, value in about.items())
    ours = [(row, peer) for row, peer in itertools.product(found, runtimes) if f"{peer} / torch" in row]
    target = f"Target: at most {LIMIT:g} times as long as PyTorch, of chains {LIMITS['chain']:g}; a miss has a `!`. "
    target += f"Met: {sum(not missed(*pair) for pair in ours)} of {len(ours)}. "
    target += "`~`: other processes used the machine meanwhile."
    sizes = {f"{row['primitive']}, {row['case']}": row["sizes"] for row in found}
    what = markdown(["primitive", "sizes"], sizes.items())
    parts = ["# Primitives", f"`{' '.join(['python benchmarks/primitives.py', *sys.argv[1:]])}`", words, target, NOTE]
    page = "\n\n".join([*parts, table, what]) + "\n"
    print(page)
    if not (options.quick or options.only or options.runtime):
        save("primitives", {"machine": about, "rows": found}, page)


if __name__ == "__main__":
    main()
