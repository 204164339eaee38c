"""Random networks of containers, their weights, and their errors."""

from __future__ import annotations

from typing import Any

import numpy as np

from helpers.networks import Careful, MultiplyByTwo, data
from helpers.textbook import conv
from neonlite import Backend
from neonlite.initializers import Gaussian
from neonlite.layers import (
    LRN,
    Activation,
    BatchNorm,
    Bias,
    BranchNode,
    Conv,
    Dropout,
    LayerNorm,
    Linear,
    MergeBroadcast,
    MergeSum,
    Pooling,
    Reshape,
    Sequential,
    SkipNode,
    Tree,
)
from neonlite.transforms import Logistic, Rectlin, SiLU, Softmax, Tanh

NDArray = np.ndarray[Any, Any]


INIT = Gaussian(scale=0.5)


def listed(x: Any) -> list[Any]:
    return x if isinstance(x, list) else [x]


# --- each container against its formula ------------------------------------------------------------------------------
def conv3(x: NDArray, W: NDArray, shape: tuple[int, int, int]) -> NDArray:
    """Return images filtered by 3 x 3 windows with a border of zeros, by the textbook's loops."""
    C, H, Wide = shape
    filters = W.reshape(C, 1, 3, 3, -1)
    images = x.reshape(C, 1, H, Wide, -1)
    return conv(images, filters, (0, 1, 1), (1, 1, 1), (1, 1, 1)).reshape(-1, x.shape[1])


# --- any network against a run without shared buffers ----------------------------------------------------------------
class Grower:
    """Makes random networks: the same again for the same seed."""

    def __init__(self, seed: int, alphas: bool = False, strangers: bool = True) -> None:
        self.chance = np.random.default_rng(seed)
        self.alphas = alphas
        self.strangers = [MultiplyByTwo, Careful] if strangers else []  # layers written elsewhere

    def pick(self, *choices: Any) -> Any:
        return choices[self.chance.integers(len(choices))]

    def network(self) -> tuple[Any, Any]:
        """Return a network, and the shape of its inputs."""
        shape = self.pick(4, 6, (4, 3), (6, 2), (2, 3, 3), (3, 4, 2))
        if self.chance.random() < 0.3:
            return self.tree(shape), shape
        return Sequential(self.layers(shape, 2, self.chance.integers(2, 6))), shape

    def tree(self, shape: Any) -> Tree:
        """Return a tree with branches at random positions."""
        paths, nodes = [], []
        for i in range(self.chance.integers(2, 4)):
            path: list[Any] = []
            if i:
                node, at = nodes[self.chance.integers(len(nodes))]
                path.append(node)
            else:
                at = shape
            for j in range(self.chance.integers(1, 4)):
                if not i or j:
                    nodes.append((BranchNode(), at))
                    path.append(nodes[-1][0])
                found = self.layers(at, 1, 1)
                path += found
            paths.append([*path, SkipNode()] if self.pick(True, False) else path)
        return Tree(paths, alphas=[float(a) for a in self.chance.normal(size=len(paths))] if self.alphas else None)

    def layers(self, shape: Any, depth: int, count: int) -> list[Any]:
        """Return layers whose outputs have the shape of the inputs."""
        return [layer for _ in range(count) for layer in self.block(shape, depth)]

    def block(self, shape: Any, depth: int) -> list[Any]:
        if depth and self.chance.random() < 0.4:
            return self.container(shape, depth - 1)
        leaves = [
            lambda: Bias(INIT),
            lambda: Activation(self.pick(Rectlin(0.25), Tanh(), Logistic(), SiLU(), Softmax(), Rectlin())),
            lambda: Dropout(1.0),
            BatchNorm,
            LayerNorm,
            SkipNode,
            *self.strangers,
            lambda: self.products(shape),
            lambda: self.products(shape),
            lambda: self.reshaped(shape),
        ]
        found = self.pick(*leaves)()
        return found if isinstance(found, list) else [found]

    def products(self, shape: Any) -> list[Any]:
        """Return layers with weights whose outputs have the shape of the inputs."""
        if isinstance(shape, int):
            return [Linear(shape, INIT)]
        if len(shape) == 2:
            return [Linear(shape[0], INIT)]
        C, H, W = shape
        conv3, conv1 = Conv((3, 3, C), INIT, padding=1), Conv((1, 1, C), INIT)
        linear = [Linear(C * H * W, INIT), Reshape(shape)]
        return self.pick(conv3, conv1, linear, [Pooling(3, "avg", 1, 1)], [LRN(3, ascale=2, bpower=0.75)])

    def reshaped(self, shape: Any) -> list[Any]:
        """Return layers that work in another shape in between."""
        if isinstance(shape, int):
            return [Reshape((2, -1)), *self.block((2, shape // 2), 0), Reshape(shape)]
        return [Reshape(-1), *self.block(int(np.prod(shape)), 0), Reshape(shape)]

    def container(self, shape: Any, depth: int) -> list[Any]:
        kinds = ["Sequential", "MergeSum", "MergeSum", "stack"]
        kinds += {1: [], 2: ["recurrent"], 3: ["depth", "depth"]}[len(shape) if isinstance(shape, tuple) else 1]
        kind = self.pick(*kinds)
        ways: list[Any] = [
            self.layers(shape, depth, self.chance.integers(1, 4)) for _ in range(self.chance.integers(1, 4))
        ]
        if self.pick(True, False):
            ways.insert(self.chance.integers(len(ways) + 1), self.pick(SkipNode(), [SkipNode()]))
        if kind == "Sequential":
            return [Sequential(ways)]
        if kind == "MergeSum":
            return [MergeSum(ways)]
        alphas = (
            [float(a) for a in self.chance.normal(size=len(ways))] if self.alphas and self.pick(True, False) else None
        )
        merged = MergeBroadcast(ways, kind, alphas=alphas)
        if kind == "recurrent":  # all steps of all ways, in sizes of before
            F, T = shape
            return [merged, Reshape((len(ways) * F, T)), Linear(F, INIT)]
        if kind == "depth":
            return [merged, *Conv((1, 1, shape[0]), INIT)]
        if isinstance(shape, int) or len(shape) == 2:
            return [merged, Linear(shape if isinstance(shape, int) else shape[0], INIT)]
        return [merged, Linear(int(np.prod(shape)), INIT), Reshape(shape)]


def numbers(net: Any, rng: np.random.Generator) -> None:
    """Fill all parameters, those that begin with 0 or 1 as well."""
    for p in net.parameters:
        p[:] = rng.normal(size=p.shape) / 2 + 0.25


def all_errors(be: Backend, net: Any, rng: np.random.Generator) -> tuple[Any, list[NDArray]]:
    errors = [data(be, rng, s) for s in (net.out_shape if isinstance(net.out_shape, list) else [net.out_shape])]
    return (errors if isinstance(net.out_shape, list) else errors[0]), [e.get() for e in errors]
