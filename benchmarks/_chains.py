"""Chains of layers for primitives.py: consecutive convolutions with bias and Rectlin, as in VGG and ResNet.

A chain is part of a network: its backward pass computes the errors of its images and the gradients of all weights.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from neonlite import Autodiff, jit
from neonlite.backend import Backend, NervanaObject
from neonlite.initializers import Constant
from neonlite.layers import Conv, Pooling, Sequential
from neonlite.transforms import Rectlin


class Chain(NamedTuple):
    """N images (C, H, H), and layers: window, number of filters and stride of a convolution, or "pool"."""

    N: int
    C: int
    H: int
    layers: tuple[Any, ...]

    def __str__(self) -> str:
        texts = [x if x == "pool" else f"{x[0]} x {x[0]} -> {x[1]}{f' by {x[2]}' * (x[2] > 1)}" for x in self.layers]
        return f"{self.N} images {self.C}, {self.H} x {self.H}; {', '.join(texts)}"

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Channels and height of the images, and of the outputs of each layer."""
        result = [(self.C, self.H)]
        for layer in self.layers:
            channels, H = result[-1]
            result.append((channels, H // 2) if layer == "pool" else (layer[1], -(-H // layer[2])))
        return result


CHAINS = {
    "VGG, 64 maps": Chain(8, 64, 112, ((3, 64, 1), (3, 64, 1), "pool", (3, 128, 1))),
    "VGG, 256 maps": Chain(8, 256, 28, ((3, 256, 1), (3, 256, 1), (3, 256, 1), "pool")),
    "ResNet, bottlenecks": Chain(8, 256, 56, ((1, 64, 1), (3, 64, 1), (1, 256, 1)) * 2),
    "ResNet, basic": Chain(16, 128, 28, ((3, 128, 1), (3, 128, 1), (3, 256, 2), (3, 256, 1))),
}
SMALL = Chain(2, 3, 8, ((3, 16, 1), "pool", (1, 5, 1)))


def drawn(of: Chain) -> tuple[Any, Any, list[tuple[Any, Any]]]:
    """Return images (C, H, H, N), errors of the outputs, and filters (C R R, K) and biases (K, 1)."""
    rng = np.random.default_rng(0)
    x, e = (rng.standard_normal((C, H, H, of.N), np.float32) for C, H in (of.shapes[0], of.shapes[-1]))
    weights = []
    for layer, (C, _) in zip(of.layers, of.shapes, strict=False):
        if layer != "pool":
            fan = C * layer[0] ** 2
            filters = rng.standard_normal((fan, layer[1]), np.float32) * np.float32((2 / fan) ** 0.5)
            weights.append((filters, rng.standard_normal((layer[1], 1), np.float32)))
    return x, e, weights


def ours(be: Backend, of: Chain) -> dict[str, Any]:
    """Return for each pass a function that runs it, and one that returns its result."""
    NervanaObject.be, be.bsz = be, of.N
    images, errors, weights = drawn(of)
    net = Sequential([Pooling(2) if layer == "pool" else conv(*layer) for layer in of.layers])
    net.configure((of.C, of.H, of.H)).allocate_parameters()
    for parameter, values in zip(net.parameters, [part for pair in weights for part in pair], strict=True):
        parameter[:] = values
    x, e = (be.array(a.reshape(-1, of.N)) for a in (images, errors))
    compiled = jit(net.__call__)

    @jit
    def gradients(x: Any, e: Any) -> Any:
        return Autodiff(net(x, training=True), be, e).get_grad_op_tree([x, *net.parameters])

    def infer() -> Any:
        return compiled(x)

    def both() -> Any:
        return gradients(x, e)

    return {
        "infer": (infer, lambda: infer().get().ravel()),
        "fprop and bprop": (both, lambda: np.concatenate([t.get().ravel() for t in both()])),
    }


def conv(size: int, maps: int, stride: int) -> Any:
    """Return a convolution that keeps the size of images, except for its stride."""
    return Conv(
        (size, size, maps), Constant(0), strides=stride, padding=size // 2, bias=Constant(0), activation=Rectlin()
    )


def theirs(
    torch: Any, of: Chain, last: bool, device: str = "cpu", dtype: str = "float32", mode: str = ""
) -> dict[str, Any]:
    """Return the same for PyTorch; ``last``: with channels-last images; ``mode``: of torch.compile, "" for eager."""
    nn, order = torch.nn, torch.channels_last if last else torch.contiguous_format
    images, errors, weights = drawn(of)
    x, e = (torch.from_numpy(np.moveaxis(a, -1, 0).copy()).contiguous(memory_format=order) for a in (images, errors))
    stack, rest = [], iter(weights)
    for layer, ((C, _), (K, _)) in zip(of.layers, pairwise(of.shapes), strict=True):
        if layer == "pool":
            stack.append(nn.MaxPool2d(2))
            continue
        module, (filters, bias) = nn.Conv2d(C, K, layer[0], layer[2], layer[0] // 2), next(rest)
        with torch.no_grad():
            module.weight.copy_(torch.from_numpy(filters.T.copy()).reshape(module.weight.shape))
            module.bias.copy_(torch.from_numpy(bias[:, 0]))
        stack += [module, nn.ReLU()]
    kind = {"device": device, "dtype": getattr(torch, dtype)}
    x, e, net = x.to(**kind), e.to(**kind), nn.Sequential(*stack).to(memory_format=order, **kind)
    net = torch.compile(net, mode=mode) if mode else net
    leaf = x.clone().requires_grad_()

    def infer() -> Any:
        with torch.inference_mode():
            return net(x)

    def both() -> Any:
        with torch.enable_grad():
            return torch.autograd.grad(net(leaf), [leaf, *net.parameters()], e)

    def outside(t: Any) -> Any:
        """Return images with N last, filters with K last."""
        return np.moveaxis(t.numpy(), 0, -1).ravel()

    return {
        "infer": (infer, lambda: outside(infer())),
        "fprop and bprop": (both, lambda: np.concatenate(list(map(outside, both())))),
    }
