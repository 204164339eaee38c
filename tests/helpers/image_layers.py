"""Layers of images with windows of many sizes, and PyTorch's tensors for their arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from neonlite import Backend
from neonlite.layers import Pooling

Sizes = tuple[int, ...]


# --- shapes ----------------------------------------------------------------------------------------------------------
class Slide(NamedTuple):
    """Inputs, and how a window slides over them; strides, padding and dilation are those of depth, height, width."""

    N: int
    shape: Sizes
    fshape: Any
    strides: Sizes = (1, 1, 1)
    padding: Sizes = (0, 0, 0)
    dilation: Sizes = (1, 1, 1)


POOLINGS = [
    Slide(1, (1, 1, 1), 1),
    Slide(3, (2, 5, 7), (3, 2), strides=(1, 1, 1)),  # windows that overlap
    Slide(2, (3, 7, 5), (1, 2), strides=(1, 3, 4)),  # gaps between windows
    Slide(5, (2, 7, 5), (2, 3), strides=(1, 2, 2), padding=(0, 1, 1)),
    Slide(2, (3, 4, 5, 7), (2, 3, 2), strides=(1, 2, 3), padding=(1, 1, 0)),
    Slide(2, (3, 5, 7), "all"),
    Slide(1, (2, 17, 19), (17, 16)),  # 272 cells in a window
]


NORMALIZATIONS = [
    Slide(N, shape, depth) for N, shape, depth in [(1, (1, 1, 1), 1), (3, (7, 2, 3), 5), (2, (5, 3, 2, 2), 4)]
]


OPS = ["max", "avg", "l2"]


def window(slide: Slide, letters: str) -> Sizes:
    """Return (T, R, S) of a fshape, without what follows."""
    if slide.fshape == "all":
        return (1, *slide.shape[1:])
    sizes = (slide.fshape,) * 2 if isinstance(slide.fshape, int) else slide.fshape[: len(slide.fshape) - len(letters)]
    return (1,) * (3 - len(sizes)) + tuple(sizes)


def volume(shape: Sizes) -> Sizes:
    """Return (C, D, H, W)."""
    return shape if len(shape) == 4 else (shape[0], 1, *shape[1:])


def pooling(slide: Slide, op: str) -> Any:
    return Pooling(slide.fshape, op, None if slide.fshape == "all" else slide.strides, slide.padding)


def numbers(rng: np.random.Generator, be: Backend, *shape: int) -> tuple[Any, Any]:
    """Return an array of distinct nonzero values, and its tensor."""
    values = rng.permutation(np.arange(1.0, np.prod(shape) + 1).reshape(-1)) / np.prod(shape) * 2
    values = (values * rng.choice([-1.0, 1.0], values.shape)).reshape(shape)
    return values, be.array(values)


class Run(NamedTuple):
    x: Any
    error: Any
    outputs: Any
    deltas: Any
    inputs: Any  # the tensors of x and error
    errors: Any


def run(be: Backend, layer: Any, rng: np.random.Generator) -> Run:
    """Run fprop and bprop of an allocated layer."""
    x, inputs = numbers(rng, be, *layer.deltas.shape)
    error, errors = numbers(rng, be, *layer.outputs.shape)
    outputs = layer.fprop(inputs).get()
    return Run(x, error, outputs, layer.bprop(errors).get(), inputs, errors)


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, np.asarray(wanted).reshape(found.shape), rtol=1e-10, atol=1e-10)


# --- comparison with PyTorch -----------------------------------------------------------------------------------------
class Torch:
    """PyTorch's tensors (N, C, D, H, W) and filters, from and to the arrays of a layer."""

    def __init__(self) -> None:
        self.torch = pytest.importorskip("torch")
        self.F = self.torch.nn.functional

    def images(self, x: Any, shape: Sizes) -> Any:
        return self.leaf(np.moveaxis(x.reshape(*volume(shape), -1), -1, 0))

    def leaf(self, x: Any) -> Any:
        return self.torch.from_numpy(x.copy()).requires_grad_()

    def columns(self, images: Any) -> Any:
        images = np.moveaxis(images.detach().numpy(), 0, -1)
        return images.reshape(-1, images.shape[-1])

    def gradients(self, outputs: Any, error: Any, *leaves: Any) -> Any:
        e = np.moveaxis(error.reshape(*outputs.shape[1:], -1), -1, 0).copy()
        return self.torch.autograd.grad(outputs, leaves, self.torch.from_numpy(e))
