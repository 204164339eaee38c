"""Containers of layers, compared with NumPy formulas, numerical gradients, PyTorch and runs that share no buffers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from helpers.networks import (
    Careful,
    Gain,
    MultiplyByTwo,
    branching,
    close,
    data,
    needs_torch,
    network,
    numerical_gradient,
    ready,
)
from helpers.parametrize import thinned
from helpers.textbook import conv

import neonlite.layers
from neonlite import Autodiff, Backend, gen_backend
from neonlite.initializers import Constant, Gaussian, IdentityInit
from neonlite.layers import (
    LRN,
    Activation,
    Affine,
    BatchNorm,
    Bias,
    BranchNode,
    Conv,
    Convolution,
    Convolution_bias,
    Deconvolution,
    Dropout,
    GeneralizedCost,
    GenerativeAdversarial,
    Layer,
    LayerContainer,
    LayerNorm,
    Linear,
    LookupTable,
    MergeBroadcast,
    MergeMultistream,
    MergeSum,
    Multicost,
    ParameterLayer,
    Pooling,
    Reshape,
    Sequential,
    SingleOutputTree,
    SkipNode,
    Tree,
)
from neonlite.layers.buffers import DeltaPlanner
from neonlite.optimizers import GradientDescentMomentum
from neonlite.transforms import Logistic, Rectlin, SiLU, Softmax, SumSquared, Tanh

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


def logistic(x: NDArray) -> NDArray:
    return 1 / (1 + np.exp(-x))


def columns_of(*found: NDArray) -> NDArray:
    return np.concatenate(found, axis=1)


IMAGE = (2, 3, 5)
Formula = Callable[..., Any]  # (parameters, inputs ...) -> an array, or a list of arrays
# name -> (how to make it, the shape of its inputs, that of its outputs, its outputs in NumPy)
CONTAINERS: dict[str, tuple[Callable[[], Any], Any, Any, Formula]] = {
    "Sequential": (
        lambda: Sequential([Linear(3, INIT), Sequential([[Bias(INIT)], Activation(Tanh())]), [[Linear(2, INIT)]]]),
        7,
        2,
        lambda P, x: P[2] @ np.tanh(P[0] @ x + P[1]),
    ),
    "MergeSum": (
        lambda: MergeSum([[Linear(5, INIT), Activation(Logistic())], SkipNode(), Linear(5, INIT)]),
        5,
        5,
        lambda P, x: logistic(P[0] @ x) + x + P[1] @ x,
    ),
    "MergeSum that reads": (
        lambda: MergeSum([[Linear(5, INIT), Activation(Tanh())], Activation(Tanh())]),
        5,
        5,
        lambda P, x: np.tanh(P[0] @ x) + np.tanh(x),
    ),
    "MergeSum of one": (lambda: MergeSum([[Bias(INIT), Activation(Tanh())]]), 2, 2, lambda P, x: np.tanh(x + P[0])),
    "MergeSum of skips": (lambda: MergeSum([SkipNode(), SkipNode(), SkipNode()]), 5, 5, lambda P, x: 3 * x),
    "MergeSum of steps": (
        lambda: MergeSum([Linear(5, INIT), [SkipNode(), Activation(Tanh()), Bias(INIT)]]),
        (5, 3),
        (5, 3),
        lambda P, x: P[0] @ x + np.tanh(x) + P[1],
    ),
    "residual block": (
        lambda: Sequential([Conv((3, 3, 2), INIT, padding=1), residual(), Activation(Tanh())]),
        IMAGE,
        IMAGE,
        lambda P, x: np.tanh(residual_of(P[1:], conv3(x, P[0], IMAGE))),
    ),
    "stack": (
        lambda: MergeBroadcast([Linear(2, INIT), [Linear(3, INIT), Activation(Tanh())], SkipNode()], merge="stack"),
        5,
        10,
        lambda P, x: np.vstack([P[0] @ x, np.tanh(P[1] @ x), x]),
    ),
    "stack of steps": (
        lambda: MergeBroadcast([Linear(2, INIT), Linear(3, INIT)], merge="stack"),
        (5, 3),
        (5, 3),
        lambda P, x: np.vstack([P[0] @ x, P[1] @ x]),
    ),
    "stack of images and features": (
        lambda: MergeBroadcast([Conv((3, 3, 1), INIT, padding=1), Linear(2, INIT), Reshape(30)], merge="stack"),
        IMAGE,
        47,
        lambda P, x: np.vstack([conv3(x, P[0], IMAGE), P[1] @ x, x]),
    ),
    "depth": (
        lambda: MergeBroadcast([SkipNode(), Conv((3, 3, 3), INIT, padding=1), [Activation(Tanh())]], merge="depth"),
        IMAGE,
        (7, 3, 5),
        lambda P, x: np.vstack([x, conv3(x, P[0], IMAGE), np.tanh(x)]),
    ),
    "recurrent": (
        lambda: MergeBroadcast(
            [Linear(4, INIT), [Linear(4, INIT), Activation(Tanh())], [Reshape((8, 3)), Linear(4, INIT)]], "recurrent"
        ),
        (4, 6),
        (4, 15),
        lambda P, x: columns_of(P[0] @ x, np.tanh(P[1] @ x), P[2] @ steps_of(x, (4, 6), (8, 3))),
    ),
    "stack before a layer in place": (
        lambda: Sequential(
            [
                MergeBroadcast([[Linear(2, INIT), Activation(Tanh())], Linear(3, INIT)], merge="stack"),
                Bias(INIT),
                Activation(Logistic()),
            ]
        ),
        5,
        5,
        lambda P, x: logistic(np.vstack([np.tanh(P[0] @ x), P[1] @ x]) + P[2]),
    ),
    "recurrent before a layer in place": (
        lambda: Sequential([MergeBroadcast([Activation(Tanh()), SkipNode()], merge="recurrent"), Bias(INIT)]),
        (5, 2),
        (5, 4),
        lambda P, x: columns_of(np.tanh(x), x) + P[0],
    ),
    "nested": (
        lambda: Sequential(
            [
                MergeBroadcast(
                    [
                        MergeSum([Linear(3, INIT), [Bias(INIT), Linear(3, INIT)]]),
                        MergeBroadcast([SkipNode(), Linear(2, INIT)], "stack"),
                    ],
                    "stack",
                ),
                MergeSum([Activation(Tanh()), SkipNode()]),
                Linear(2, INIT),
            ]
        ),
        4,
        2,
        lambda P, x: P[4] @ plus_tanh(np.vstack([P[0] @ x + P[2] @ (x + P[1]), x, P[3] @ x])),
    ),
    "Tree": (
        lambda: branching(
            [Linear(4, INIT), Activation(Tanh()), "one", Linear(3, INIT), "two", Activation(Tanh())],
            ["one", Activation(Logistic()), "three", Linear(2, INIT)],
            ["two", Bias(INIT)],
            ["three", Linear(1, INIT)],
            ["one", SkipNode()],
        ),
        5,
        [3, 2, 3, 1, 4],
        lambda P, x: tree_of(P, x),
    ),
    "Tree from its inputs": (
        lambda: branching(["one", Linear(4, INIT)], ["one", Activation(Tanh())], ["one", Linear(2, INIT)]),
        5,
        [4, 5, 2],
        lambda P, x: [P[0] @ x, np.tanh(x), P[1] @ x],
    ),
    "Tree of images": (
        lambda: branching([Conv((3, 3, 2), INIT, padding=1), "one", Activation(Tanh())], ["one", Linear(2, INIT)]),
        IMAGE,
        [IMAGE, 2],
        lambda P, x: [np.tanh(conv3(x, P[0], IMAGE)), P[1] @ conv3(x, P[0], IMAGE)],
    ),
    "SingleOutputTree": (
        lambda: branching([Linear(4, INIT), "one", Linear(3, INIT)], ["one", Linear(2, INIT)], cls=SingleOutputTree),
        (5, 2),
        [(3, 2), (2, 2)],
        lambda P, x: [P[1] @ P[0] @ x, P[2] @ P[0] @ x],
    ),
    "Tree at the end": (
        lambda: Sequential([Linear(4, INIT), branching(["one", Linear(3, INIT)], ["one", Activation(Tanh())])]),
        5,
        [3, 4],
        lambda P, x: [P[1] @ P[0] @ x, np.tanh(P[0] @ x)],
    ),
    "streams": (
        lambda: MergeMultistream([Linear(2, INIT), [Bias(INIT), Activation(Tanh())], SkipNode()], merge="stack"),
        [5, 3, IMAGE],
        35,
        lambda P, x, y, z: np.vstack([P[0] @ x, np.tanh(y + P[1]), z]),
    ),
    "streams into a layer": (
        lambda: Sequential(
            [MergeMultistream([Linear(2, INIT), Linear(3, INIT), Linear(2, INIT)], "stack"), Linear(4, INIT)]
        ),
        [5, 5, 3],
        4,
        lambda P, x, y, z: P[3] @ np.vstack([P[0] @ x, P[1] @ y, P[2] @ z]),
    ),
    "streams of unlike lengths": (
        lambda: Sequential(
            [
                MergeMultistream([Linear(2, INIT), [Bias(INIT), Activation(Tanh())], SkipNode()], "stack"),
                Linear(4, INIT),
            ]
        ),
        [(5, 3), (3, 2), IMAGE],
        4,
        lambda P, x, y, z: P[2] @ np.vstack([(P[0] @ x).reshape(6, -1), np.tanh(y + P[1]).reshape(6, -1), z]),
    ),
    "branches of unlike lengths": (
        lambda: MergeBroadcast([SkipNode(), [Reshape((6, 2)), Linear(3, INIT)]], "stack", alphas=[1, 1]),
        (4, 3),
        18,
        lambda P, x: np.vstack([x.reshape(12, -1), (P[0] @ steps_of(x, (4, 3), (6, 2))).reshape(6, -1)]),
    ),
    "streams of steps": (
        lambda: MergeMultistream([Linear(2, INIT), Linear(2, INIT)], merge="recurrent"),
        [(5, 3), (3, 2)],
        (2, 5),
        lambda P, x, y: columns_of(P[0] @ x, P[1] @ y),
    ),
    "streams of maps": (
        lambda: Sequential([MergeMultistream([Convolution((1, 1, 1), init=INIT), SkipNode()], "depth"), Bias(INIT)]),
        [IMAGE, (1, 3, 5)],
        (2, 3, 5),
        lambda P, x, y: np.vstack([np.tensordot(P[0][:, 0], x.reshape(2, 15, -1), 1), y]) + np.repeat(P[1], 15, axis=0),
    ),
    "GenerativeAdversarial": (
        lambda: GenerativeAdversarial(
            [Linear(4, INIT), Activation(Tanh())], Sequential([Linear(1, INIT), Activation(Logistic())])
        ),
        3,
        1,
        lambda P, x: logistic(P[1] @ np.tanh(P[0] @ x)),
    ),
}


def residual() -> MergeSum:
    return MergeSum(
        [[Conv((3, 3, 3), INIT, padding=1), Activation(Tanh()), Conv((3, 3, 2), INIT, padding=1)], SkipNode()]
    )


def residual_of(P: list[NDArray], x: NDArray) -> NDArray:
    return x + conv3(np.tanh(conv3(x, P[0], IMAGE)), P[1], (3, 3, 5))


def plus_tanh(x: NDArray) -> NDArray:
    return x + np.tanh(x)


def steps_of(x: NDArray, shape: tuple[int, int], to: tuple[int, int]) -> NDArray:
    return x.reshape(*shape, -1).reshape(*to, -1).reshape(to[0], -1)


def tree_of(P: list[NDArray], x: NDArray) -> list[NDArray]:
    one = np.tanh(P[0] @ x)
    two, three = P[1] @ one, logistic(one)
    return [np.tanh(two), P[2] @ three, two + P[3], P[4] @ three, one]


each_container = pytest.mark.parametrize("which", CONTAINERS)


@each_container
@pytest.mark.parametrize("n", [1, 3])
def test_outputs_match_the_textbook_and_deltas_and_gradients_are_numerical_gradients(be64, rng, which, n):
    be64.bsz = n
    make, shape, out_shape, formula = CONTAINERS[which]
    net = ready(make(), shape)
    assert net.out_shape == out_shape
    inputs = [data(be64, rng, s) for s in (shape if isinstance(shape, list) else [shape])]
    given = inputs if isinstance(shape, list) else inputs[0]
    errors = [data(be64, rng, s) for s in (out_shape if isinstance(out_shape, list) else [out_shape])]
    X, E, P = [x.get() for x in inputs], [e.get() for e in errors], [p.get() for p in net.parameters]
    for _ in range(2):
        outputs = net.fprop(given)
        assert outputs is net.outputs
        assert isinstance(outputs, list) == isinstance(out_shape, list)
        for got, want in zip(listed(outputs), listed(formula(P, *X)), strict=True):
            close(got, want)
        deltas = net.bprop(errors if isinstance(out_shape, list) else errors[0])
        assert deltas is net.deltas

    def total() -> float:
        return float(sum(np.sum(e * y) for e, y in zip(E, listed(formula(P, *X)), strict=True)))

    for got, a in zip([*listed(deltas), *net.gradients], [*X, *P], strict=True):
        close(got, numerical_gradient(total, a), 1e-7)
    for got, want in zip([*inputs, *errors], [*X, *E], strict=True):
        close(got, want, 0)


@each_container
def test_inference_gives_the_same_where_nothing_is_random_or_a_statistic(be, rng, which):
    be.bsz = 2
    make, shape, _, _ = CONTAINERS[which]
    net = ready(make(), shape)
    x = [data(be, rng, s) for s in shape] if isinstance(shape, list) else data(be, rng, shape)
    want = [y.get() for y in listed(net.fprop(x))]
    got = net.fprop(x, inference=True)
    if which == "SingleOutputTree":
        assert not isinstance(got, list)
        want = want[:1]
    for a, b in zip(listed(got), want, strict=True):
        close(a, b, 0)


def test_alphas_multiply_the_errors_of_branches_and_not_their_outputs(be64, rng):
    be64.bsz = 3
    alphas = [0.5, 1.0, -2.0]
    W = [rng.normal(size=(2, 5)) for _ in range(3)]
    x = data(be64, rng, 5)
    tree = ready(
        branching(["one", Linear(2, W[0])], ["one", Linear(2, W[1])], ["one", Linear(2, W[2])], alphas=alphas), 5
    )
    merge = ready(MergeBroadcast([Linear(2, w) for w in W], "stack", alphas=alphas), 5)
    steps = ready(MergeBroadcast([Linear(2, w) for w in W], "recurrent", alphas=alphas), (5, 1))
    e = [data(be64, rng, 2) for _ in W]
    E = [t.get() for t in e]
    for net, error in ((tree, e), (merge, be64.array(np.vstack(E))), (steps, be64.array(np.hstack(E)))):
        found = net.fprop(x)
        y = np.vstack([t.get() for t in found]) if net is tree else found.get()
        close(np.vstack(np.split(y, 3, axis=1)) if net is steps else y, np.vstack([w @ x.get() for w in W]))
        close(net.bprop(error), sum(a * w.T @ v for a, w, v in zip(alphas, W, E, strict=True)))
        for got, a, v in zip(net.gradients, alphas, E, strict=True):
            close(got, a * v @ x.get().T)
    for got, want in zip(e, E, strict=True):
        close(got, want, 0)


@each_container
def test_a_container_rejects_alpha_and_beta(cpu, rng, which):
    cpu.bsz = 2
    make, shape, _, _ = CONTAINERS[which]
    net = ready(make(), shape)
    net.name = "net"
    x = [data(cpu, rng, s) for s in shape] if isinstance(shape, list) else data(cpu, rng, shape)
    for inference in (False, True):
        with pytest.raises(ValueError, match=r"net: expected alpha=1 and beta=0, got .*beta=0\.5"):
            net.fprop(x, inference, beta=0.5)
    net.fprop(x)
    error, _ = all_errors(cpu, net, rng)
    for scales in ({"alpha": 2.0}, {"beta": 1.0}):
        with pytest.raises(ValueError, match="net: expected alpha=1 and beta=0, got"):
            net.bprop(error, **scales)
    net.bprop(error)


def test_a_skip_node_with_beta_adds_to_its_outputs(be64, rng):
    be64.bsz = 3
    node = ready(SkipNode(), 4)
    x, y = data(be64, rng, 4), data(be64, rng, 4)
    X, Y = x.get(), y.get()
    assert node.fprop(x) is x
    close(node.fprop(y, beta=0.5), Y + 0.5 * X)
    close(node.fprop(x, beta=-1.0), X - Y - 0.5 * X)
    close(x, X, 0)
    close(y, Y, 0)
    deltas = node.bprop(x).get()
    close(deltas, X)
    close(node.bprop(y, alpha=2.0, beta=3.0), 2 * Y + 3 * X)
    close(y, Y, 0)


# --- against torch ---------------------------------------------------------------------------------------------------


def images(t: Any, shape: tuple[int, ...]) -> Any:
    """Return (C H W, N) as torch's (N, C, H, W)."""
    return t.reshape(*shape, -1).permute(3, 0, 1, 2)


def filters(t: Any, C: int, R: int) -> Any:
    """Return weights (C R R, K) as torch's (K, C, R, R)."""
    return t.reshape(C, R, R, -1).permute(3, 0, 1, 2)


def buffer(t: Any) -> Any:
    """Return torch's (N, C, H, W) as (C H W, N)."""
    return t.permute(1, 2, 3, 0).reshape(-1, t.shape[0])


@needs_torch
@pytest.mark.parametrize("n", [2, 7])
def test_training_a_network_of_all_kinds_of_blocks_matches_torch(be64, rng, n):
    import torch
    from torch.nn import functional as F

    be64.bsz = n
    shape = (3, 6, 7)
    block = MergeSum(
        [
            [
                Conv((3, 3, 4), INIT, padding=1, batch_norm=True, activation=Rectlin(0.1)),
                Conv((3, 3, 3), INIT, padding=1, batch_norm=True),
            ],
            SkipNode(),
        ]
    )
    inception = MergeBroadcast(
        [
            Conv((1, 1, 2), INIT, activation=Tanh()),
            [Conv((1, 1, 2), INIT), Conv((3, 3, 3), INIT, padding=1, bias=INIT)],
            [Pooling(3, strides=1, padding=1), Conv((1, 1, 1), INIT)],
        ],
        merge="depth",
        alphas=[1.0, 0.5, 1.0],
    )
    net = branching(
        [Conv((3, 3, 3), INIT, padding=1), block, "one", Activation(Tanh()), inception, Linear(2, INIT)],
        ["one", Pooling("all", op="avg"), Linear(3, INIT)],
        alphas=[1.0, 0.25],
    )
    ready(net, shape)
    for p in net.parameters:
        p[:] = rng.normal(size=p.shape) / 2
    x = data(be64, rng, shape)
    e = [data(be64, rng, 2), data(be64, rng, 3)]
    outputs = net.fprop(x)
    net.bprop(e)

    X = torch.tensor(x.get(), requires_grad=True)
    P = [torch.tensor(p.get(), requires_grad=True) for p in net.parameters]
    c0, c1, b1, g1, c2, b2, g2, i0, i1, i2, i2b, i3, head, aside = P
    start = F.conv2d(images(X, shape), filters(c0, 3, 3), padding=1)

    def norm(t: Any, b: Any, g: Any) -> Any:
        return F.batch_norm(t, None, None, g[:, 0], b[:, 0], training=True, eps=1e-3)

    y = F.leaky_relu(norm(F.conv2d(start, filters(c1, 3, 3), padding=1), b1, g1), 0.1)
    one = norm(F.conv2d(y, filters(c2, 4, 3), padding=1), b2, g2) + start
    z = torch.tanh(one)
    ways = [
        torch.tanh(F.conv2d(z, filters(i0, 3, 1))),
        F.conv2d(F.conv2d(z, filters(i1, 3, 1)), filters(i2, 2, 3), i2b[:, 0], padding=1),
        F.conv2d(F.max_pool2d(z, 3, 1, 1), filters(i3, 3, 1)),
    ]
    ways[1] = ways[1] / 2 + ways[1].detach() / 2
    want = [head @ buffer(torch.cat(ways, 1)), aside @ buffer(one.mean((2, 3), keepdim=True))]
    for got, t in zip(outputs, want, strict=True):
        close(got, t.detach().numpy())
    (torch.sum(torch.tensor(e[0].get()) * want[0]) + torch.sum(torch.tensor(e[1].get()) * want[1]) / 4).backward()
    for got, t in zip([net.deltas, *net.gradients], [X, *P], strict=True):
        close(got, t.grad.numpy())


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


def naive(layer: Any, x: Any, nodes: dict[str, Any]) -> Any:
    """Return the outputs of a network as one op-tree, without buffers."""
    be = layer.be
    if isinstance(layer, Tree):
        found = []
        for branch, node in zip(layer.layers, layer.nodes, strict=True):
            found.append(naive(branch, x if node is None else nodes[node.name], nodes))
        return found
    if isinstance(layer, Sequential):
        for each in layer.layers:
            x = naive(each, x, nodes)
        return x
    if isinstance(layer, MergeSum):
        return sum(naive(branch, x, nodes) for branch in layer.layers)
    if isinstance(layer, MergeBroadcast):
        ways = [naive(branch, x, nodes) for branch in layer.layers]
        for i, alpha in enumerate(layer.alphas):
            if alpha != 1:  # the errors alone are multiplied
                constant = be.empty(ways[i].shape)
                constant[:] = ways[i] * 1
                ways[i] = alpha * ways[i] + (1 - alpha) * constant
        return be.concat(ways, axis=1 if layer.merge_mode == "recurrent" else 0)
    if isinstance(layer, MultiplyByTwo):
        return 2 * x
    if isinstance(layer, BranchNode):
        nodes[layer.name] = x
        return x
    return layer.formula(x)


def near(found: list[NDArray], wanted: list[NDArray]) -> None:
    """Assert that arrays are alike, measured by the largest number among them."""
    size = 1 + max(np.abs(want).max() for want in wanted)
    for got, want in zip(found, wanted, strict=True):
        assert got.shape == want.shape
        assert np.isfinite(got).all()
        assert np.abs(got - want).max() <= 1e-9 * size


def numbers(net: Any, rng: np.random.Generator) -> None:
    """Fill all parameters, those that begin with 0 or 1 as well."""
    for p in net.parameters:
        p[:] = rng.normal(size=p.shape) / 2 + 0.25


def all_errors(be: Backend, net: Any, rng: np.random.Generator) -> tuple[Any, list[NDArray]]:
    errors = [data(be, rng, s) for s in (net.out_shape if isinstance(net.out_shape, list) else [net.out_shape])]
    return (errors if isinstance(net.out_shape, list) else errors[0]), [e.get() for e in errors]


def check_naive(be: Backend, seed: int, alphas: bool) -> None:
    """Assert that a random network computes what a run of the same layers without shared buffers does."""
    rng = np.random.default_rng(seed)
    net, shape = Grower(seed, alphas).network()
    ready(net, shape)
    numbers(net, rng)
    x = data(be, rng, shape, name="x")
    error, E = all_errors(be, net, rng)
    X, found = x.get(), []
    for _ in range(2):
        outputs = [y.get() for y in listed(net.fprop(x))]
        deltas = net.bprop(error)
        found.append([*outputs, deltas.get(), *(g.get() for g in net.gradients)])
    for first, second in zip(*found, strict=True):
        assert first.tobytes() == second.tobytes()
    assert x.get().tobytes() == X.tobytes()
    assert all(e.get().tobytes() == want.tobytes() for e, want in zip(listed(error), E, strict=True))

    trees = listed(naive(net, x, {}))
    weights = net.alphas if isinstance(net, Tree) else [1.0]
    total: Any = sum(w * be.sum(be.array(e) * t) for w, e, t in zip(weights, E, trees, strict=True))
    sought = [x, *net.parameters]
    want = Autodiff(total, be, allow_unused=True).get_grad_asnumpyarray(sought)
    values = [be.empty(t.shape) for t in trees]
    for value, t in zip(values, trees, strict=True):
        value[:] = t * 1
    near(found[0], [*(value.get() for value in values), *want])
    if alphas:
        return

    before, ways = [t.get() for t in sought], [rng.normal(size=t.shape) for t in sought]

    def at(step: float) -> float:
        for t, a, way in zip(sought, before, ways, strict=True):
            t[:] = a + step * way
        return float(sum(np.sum(e * y.get()) for e, y in zip(E, listed(net.fprop(x)), strict=True)))

    slope = (at(-2e-5) - 8 * at(-1e-5) + 8 * at(1e-5) - at(2e-5)) / 12e-5
    parts = [float(np.sum(a * way)) for a, way in zip(found[0][len(trees) :], ways, strict=True)]
    assert abs(slope - sum(parts)) <= 1e-5 * (1 + sum(map(abs, parts)))


@pytest.mark.parametrize("seed", thinned(5, range(120)))
def test_any_network_computes_what_its_layers_do_without_shared_buffers(seed):
    be = gen_backend("cpu", batch_size=[1, 2, 3, 5][seed % 4], datatype=np.float64)
    check_naive(be, seed, alphas=seed % 3 == 2)


@pytest.mark.parametrize("seed", range(200, 205))
def test_networks_are_the_same_on_every_runtime(be64, seed):
    be64.bsz = 2
    check_naive(be64, seed, alphas=False)


@pytest.mark.slow
def test_many_networks_compute_what_their_layers_do_without_shared_buffers():
    for seed in range(1000, 1150):
        be = gen_backend("cpu", batch_size=[1, 2, 3, 5][seed % 4], datatype=np.float64)
        check_naive(be, seed, alphas=seed % 3 == 2)


@pytest.mark.parametrize("rude", [MultiplyByTwo, Careful])
@pytest.mark.parametrize("where", range(8))
def test_a_custom_layer_is_safe_anywhere_in_a_network(be64, rng, rude, where):
    be64.bsz = 3
    at = [[rude()] if i == where else [] for i in range(8)]
    f = [2.0 if i == where else 1.0 for i in range(8)]
    net = branching(
        [
            *at[0],
            Linear(4, INIT),
            *at[1],
            "one",
            *at[2],
            MergeSum([[Activation(Tanh()), *at[3]], [*at[4], Linear(4, INIT)]]),
            MergeBroadcast([[*at[5], Linear(2, INIT)], [SkipNode(), *at[6]]], "stack"),
        ],
        ["one", *at[7], Linear(2, INIT)],
    )
    ready(net, 5)
    x, error = data(be64, rng, 5), [data(be64, rng, 6), data(be64, rng, 2)]
    X, E, P = x.get(), [e.get() for e in error], [p.get() for p in net.parameters]

    def formula() -> list[NDArray]:
        one = f[1] * (P[0] @ (f[0] * X))
        two = f[3] * np.tanh(f[2] * one) + P[1] @ (f[4] * f[2] * one)
        return [np.vstack([P[2] @ (f[5] * two), f[6] * two]), P[3] @ (f[7] * one)]

    def total() -> float:
        return float(sum(np.sum(e * y) for e, y in zip(E, formula(), strict=True)))

    for _ in range(2):
        for got, want in zip(net.fprop(x), formula(), strict=True):
            close(got, want)
        net.bprop(error)
        for got, a in zip([net.deltas, *net.gradients], [X, *P], strict=True):
            close(got, numerical_gradient(total, a), 1e-7)
        close(x, X, 0)
        for got, want in zip(error, E, strict=True):
            close(got, want, 0)


def test_a_failed_bprop_has_no_effect_on_the_next_one(be, rng):
    be.bsz = 2
    net = ready(branching([Linear(3, INIT), "one", Linear(2, INIT, name="head")], ["one", Linear(1, INIT)]), 4)
    net.fprop(data(be, rng, 4))
    e = [data(be, rng, 2), data(be, rng, 1)]
    want = net.bprop(e).get()
    with pytest.raises(ValueError, match=r"head: expected an error of shape \(2, 2\)"):
        net.bprop([e[1], e[1]])
    close(net.bprop(e), want, 0)


# --- planning of deltas ----------------------------------------------------------------------------------------------


def delta_buffers(net: Any) -> list[Any]:
    """Return the buffers of the deltas of a network."""
    return [t for (name, _), t in net._buffers.items() if name.startswith("deltas ")]


def chain(n: int, *more: Callable[[], Any]) -> Sequential:
    return Sequential([x for _ in range(n) for x in (Linear(4, INIT), *(make() for make in more))])


def skipping(*ways: Any) -> Sequential:
    return Sequential([Linear(4, INIT), MergeSum(ways), Linear(4, INIT)])


def wide(n: int) -> Sequential:
    ways = [Linear(4, INIT) for _ in range(n)]
    return Sequential([Linear(4, INIT), MergeBroadcast(ways, "stack"), Linear(4, INIT)])


LIVE: dict[
    str, tuple[Callable[[], Any], int]
] = {  # how many buffers, and at which step of the backward pass all are needed
    "one layer": (lambda: chain(1), 0),
    "two layers": (lambda: chain(2), 1),
    "three layers": (lambda: chain(3), 2),  # an error and the deltas computed from it
    "nine layers": (lambda: chain(9), 2),
    "layers with biases and activations": (lambda: chain(5, lambda: Bias(INIT), lambda: Activation(Tanh())), 2),
    "nested layers": (lambda: Sequential([chain(2), Sequential([chain(2)]), chain(1)]), 2),
    "a skip": (lambda: skipping([Linear(4, INIT), Linear(4, INIT)], SkipNode()), 3),  # and the error that skips them
    "a skip first": (lambda: skipping(SkipNode(), [Linear(4, INIT), Linear(4, INIT)]), 3),
    "a skip of an activation": (lambda: skipping(SkipNode(), Activation(Tanh())), 2),
    "three residual blocks": (
        lambda: Sequential([Linear(4, INIT), *(MergeSum([[chain(3)], SkipNode()]) for _ in range(3)), Linear(4, INIT)]),
        3,
    ),
    "two products": (lambda: skipping([Linear(4, INIT), Linear(4, INIT)], Linear(4, INIT)), 3),
    "two ways side by side": (lambda: wide(2), 3),  # the error, and the deltas of each way
    "four ways side by side": (lambda: wide(4), 5),
    "two blocks of four ways": (lambda: Sequential([Linear(4, INIT), *wide(4).layers, *wide(4).layers]), 5),
    "two sums of layers that write over errors": (
        lambda: Sequential(
            [
                Linear(4, INIT),
                *(MergeSum([[Linear(4, INIT), MultiplyByTwo()], Linear(4, INIT)]) for _ in range(2)),
                Linear(4, INIT),
            ]
        ),
        3,
    ),
    "a tree": (
        lambda: branching([Linear(4, INIT), "one", chain(3)], ["one", Linear(4, INIT)]),
        3,  # the deltas of the branch, an error, and the deltas computed from it
    ),
    "a tree of two heads": (
        lambda: branching([Linear(4, INIT), "one", Linear(2, INIT)], ["one", Linear(3, INIT)]),
        2,
    ),
}


@pytest.mark.parametrize("which", LIVE)
def test_deltas_use_as_few_buffers_as_are_live_at_one_time(be, which):
    be.bsz = 2
    make, count = LIVE[which]
    assert len(delta_buffers(ready(make(), 4, deltas=False))) == count


def test_a_buffer_of_deltas_is_as_large_as_the_largest_assigned_to_it(be):
    be.bsz = 3
    net = ready(Sequential([Linear(n, INIT) for n in (20, 30, 40, 10, 5)]), 7, deltas=False)
    # taken by turns, from the last layer: deltas of 10, 40, 30, 20
    assert sorted(t.size for t in delta_buffers(net)) == [3 * 30, 3 * 40]
    net = ready(Sequential([Linear(n, INIT) for n in (20, 40, 1)]), (7, 2), deltas=False)
    assert sorted(t.size for t in delta_buffers(net)) == [2 * 3 * 20, 2 * 3 * 40]


def test_small_deltas_do_not_use_large_buffers(be):
    be.bsz = 3
    fork = [MergeSum([Linear(n, INIT), Linear(n, INIT)]) for n in (2, 3)]
    net = ready(Sequential([Linear(40, INIT), fork[0], Linear(40, INIT), fork[1], Linear(5, INIT)]), 7, deltas=False)
    # from the last: deltas of 3; 40 and 40; 2, over those of 3; 40 and 40
    assert sorted(t.size for t in delta_buffers(net)) == [3 * 3, 3 * 40, 3 * 40]


def containers_of(net: Any) -> Iterator[Any]:
    yield net
    for layer in net.layers:
        if isinstance(layer, LayerContainer):
            yield from containers_of(layer)


def poison(net: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have each buffer of deltas filled with NaN after the step that frees it; return a list that counts it."""
    freed: dict[Any, list[Any]] = defaultdict(list)  # (owner of a step, index of a branch or None) -> buffers
    memory: dict[int, Any] = {}
    count = [0]
    plan_result, allocate = DeltaPlanner.plan_result, DeltaPlanner.allocate

    def watched_plan_result(self: DeltaPlanner, step: Any) -> None:
        plan_result(self, step)
        owner, i = step.owner if isinstance(step.owner, tuple) else (step.owner, None)
        errors = [*step.errors, *([] if step.result is None else [step.result])]
        freed[id(owner), i] += {id(e.buffer): e.buffer for e in errors if e.buffer.num_readers == 0}.values()

    def watched_allocate(self: DeltaPlanner, make_buffer: Any) -> None:
        buffers: list[Any] = []

        def record(name: str, size: int) -> Any:
            buffers.append(make_buffer(name, size))
            return buffers[-1]

        allocate(self, record)
        memory.update((id(planned), buffer) for planned, buffer in zip(self.buffers, buffers, strict=True))

    def watch(owner: Any, method: str) -> None:
        run = getattr(owner, method)

        def running(*args: Any, **options: Any) -> Any:
            result = run(*args, **options)
            for planned in freed[id(owner), args[0] if isinstance(args[0], int) else None]:
                memory[id(planned)].fill(np.nan)
                count[0] += 1
            return result

        setattr(owner, method, running)

    monkeypatch.setattr(DeltaPlanner, "plan_result", watched_plan_result)
    monkeypatch.setattr(DeltaPlanner, "allocate", watched_allocate)
    for leaf in net.leaves():
        watch(leaf, "bprop")
        if isinstance(leaf, BranchNode):
            watch(leaf.gradient_sum, "compute")
    for container in containers_of(net):
        if hasattr(container, "gradient_sum"):
            watch(container.gradient_sum, "compute")
        if isinstance(container, MergeBroadcast):
            watch(container, "branch_error")
    net.allocate_deltas()
    return count


@pytest.mark.parametrize("seed", range(300, 340))
def test_released_buffers_are_not_read_again(monkeypatch, seed):
    be = gen_backend("cpu", batch_size=2, datatype=np.float64)
    rng = np.random.default_rng(seed)
    net, shape = Grower(seed, alphas=seed % 2 == 1).network()
    net = ready(Sequential([Linear(5, INIT), Linear(int(np.prod(shape)), INIT), Reshape(shape), net]), 3)
    numbers(net, rng)
    x, (error, _) = data(be, rng, 3), all_errors(be, net, rng)
    net.fprop(x)
    want = [net.bprop(error).get(), *(g.get() for g in net.gradients)]
    count = poison(net, monkeypatch)
    for _ in range(2):
        count[0] = 0
        net.fprop(x)
        got = [net.bprop(error).get(), *(g.get() for g in net.gradients)]
        assert count[0] > 0
        for a, b in zip(got, want, strict=True):
            assert a.tobytes() == b.tobytes()


# --- another batch size, other time steps ----------------------------------------------------------------------------


def roots(net: Any) -> dict[str, int]:
    """Return the owner of the memory of each buffer of a network, by the name of the buffer."""
    found = {}
    for thing in [*containers_of(net), *net.leaves()]:
        for name, value in vars(thing).items():
            if name in ("outputs", "mask", "own_deltas", "spare") and hasattr(value, "root"):
                found[f"{thing.name}.{name}"] = id(value.root)
    return found | {f"deltas {i}": id(t.root) for i, t in enumerate(delta_buffers(net))}


def run(be: Backend, net: Any, x: Any, seed: int) -> list[NDArray]:
    """Return outputs, deltas and gradients for an error."""
    error, _ = all_errors(be, net, np.random.default_rng(seed))
    found = [y.get() for y in listed(net.fprop(x))]
    return [*found, net.bprop(error).get(), *(g.get() for g in net.gradients)]


@pytest.mark.parametrize("seed", range(400, 425))
def test_another_batch_size_gives_the_results_of_a_new_network(seed):
    be = gen_backend("cpu", batch_size=4, datatype=np.float64)
    net, shape = Grower(seed, alphas=True).network()
    ready(net, shape)
    numbers(net, np.random.default_rng(seed))
    weights = [p.get() for p in net.parameters]
    for N in (4, 3, 4, 1, 7, 2, 7):
        if N != 4 or be.bsz != 4:
            net.set_batch_size(N)
        assert be.bsz == N
        fresh, _ = Grower(seed, alphas=True).network()
        ready(fresh, shape)
        for p, w in zip(fresh.parameters, weights, strict=True):
            p[:] = w
        x = data(be, np.random.default_rng(N), shape)
        for got, want in zip(run(be, net, x, N), run(be, fresh, x, N), strict=True):
            assert got.shape == want.shape
            assert got.tobytes() == want.tobytes()
    assert all(p.get().tobytes() == w.tobytes() for p, w in zip(net.parameters, weights, strict=True))


@pytest.mark.parametrize("seed", range(430, 436))
def test_a_smaller_batch_reuses_the_memory_of_a_larger_one(seed):
    be = gen_backend("cpu", batch_size=5)
    net, shape = Grower(seed, strangers=False).network()
    net = ready(Sequential([Linear(int(np.prod(shape)), INIT), Reshape(shape), net]), 3)
    kept: list[Any] = []  # keeps all memory alive, so that ids are unique

    def look(N: int) -> dict[str, int]:
        net.set_batch_size(N)
        kept.extend(t for thing in [*containers_of(net), *net.leaves()] for t in thing._buffers.values())
        net.fprop(be.ones((3, N)))
        return roots(net)

    was = look(5)
    assert len(was) > 3
    assert look(2) == look(5) == look(1) == was
    larger = look(9)
    assert larger.keys() == was.keys()
    assert not set(larger.values()) & set(was.values())
    assert look(5) == look(9) == larger


def test_a_cost_and_an_optimizer_follow_the_batch_size(be64, rng):
    be64.bsz = 4
    W, v = rng.normal(size=(2, 3)), np.zeros((2, 3))
    net, cost = network([Linear(2, W)], 3, SumSquared())
    optimizer = GradientDescentMomentum(0.1, 0.5)
    for N in (4, 2, 7, 4):
        if be64.bsz != N:
            net.set_batch_size(N)
        x, t = data(be64, rng, 3), data(be64, rng, 2)
        value = cost.get_cost(net.fprop(x), t)
        net.bprop(cost.get_errors(net.outputs, t))
        optimizer.optimize(net.layers_to_optimize, epoch=0)
        wrong = W @ x.get() - t.get()
        close(value, [[np.sum(wrong**2) / 2 / N]])
        v = 0.5 * v - 0.1 / N * wrong @ x.get().T
        W = W + v
        close(net.layers[0].W, W)


def test_a_tree_and_its_costs_follow_the_batch_size(be64, rng):
    be64.bsz = 4
    net = ready(branching([Linear(3, INIT), "one", Linear(2, INIT)], ["one", Linear(1, INIT)]), 5, deltas=False)
    cost = Multicost([GeneralizedCost(SumSquared()), GeneralizedCost(SumSquared())], weights=[1, 0.5])
    cost.initialize(net)
    P = [p.get() for p in net.parameters]
    for N in (4, 1, 7):
        if N != 4:
            net.set_batch_size(N)
        x, t, u = data(be64, rng, 5), data(be64, rng, 2), data(be64, rng, 1)
        y = net.fprop(x)
        one = P[0] @ x.get()
        close(
            cost.get_cost(y, [t, u]),
            np.sum((P[1] @ one - t.get()) ** 2) / 2 / N + np.sum((P[2] @ one - u.get()) ** 2) / 4 / N,
        )
        net.bprop(cost.get_errors(y, [t, u]))
        close(net.gradients[1], (P[1] @ one - t.get()) @ one.T)
        close(net.gradients[2], (P[2] @ one - u.get()) @ one.T / 2)


STEPS: dict[str, tuple[Callable[[], Any], Any]] = {
    "Linear": (lambda: Sequential([Linear(3, INIT), Activation(Tanh()), BatchNorm(), Linear(2, INIT)]), (4, 3)),
    "MergeSum": (lambda: Sequential([MergeSum([Linear(4, INIT), SkipNode()]), Linear(2, INIT)]), (4, 3)),
    "stack": (lambda: MergeBroadcast([Linear(4, INIT), Linear(3, INIT)], "stack"), (4, 3)),
    "recurrent": (lambda: MergeBroadcast([Linear(4, INIT), SkipNode()], "recurrent"), (4, 3)),
    "streams": (lambda: MergeMultistream([Linear(4, INIT), Linear(4, INIT)], "recurrent"), [(4, 3), (2, 3)]),
    "Tree": (lambda: branching([Linear(4, INIT), "one", Linear(2, INIT)], ["one", Activation(Tanh())]), (4, 3)),
}


@pytest.mark.parametrize("which", STEPS)
def test_other_sequence_lengths_give_the_results_of_a_new_network(be64, which):
    be64.bsz = 2
    make, shape = STEPS[which]
    net = ready(make(), shape)
    weights = [p.get() for p in net.parameters]
    kept: list[Any] = []
    for T in (5, 1, 3, 5):
        net.set_seq_len(T)
        shapes = [(F, T) for F, _ in shape] if isinstance(shape, list) else (4, T)
        fresh = ready(make(), shapes)
        assert net.out_shape == fresh.out_shape
        assert net.in_shape == fresh.in_shape
        for p, w in zip(fresh.parameters, weights, strict=True):
            p[:] = w
        rng = np.random.default_rng(T)
        x = [data(be64, rng, s) for s in shapes] if isinstance(shape, list) else data(be64, rng, shapes)
        error, _ = all_errors(be64, net, rng)
        found = []
        for each in (net, fresh):
            outputs = [y.get() for y in listed(each.fprop(x))]
            deltas = [d.get() for d in listed(each.bprop(error))]
            found.append([*outputs, *deltas, *(g.get() for g in each.gradients)])
        for got, want in zip(*found, strict=True):
            close(got, want, 0)
        kept.append(net.outputs)
    if which == "stack":
        assert kept[0].root is kept[1].root is kept[2].root is kept[3].root


@pytest.mark.parametrize("shape", [3, (1, 3)])
def test_the_number_of_token_ids_may_change(be64, rng, shape):
    be64.bsz = 2
    net = ready(Sequential([LookupTable(7, 4, INIT), Linear(2, INIT)]), shape, deltas=False)
    W, V = (p.get() for p in net.parameters)
    for T in (3, 5, 1):
        net.set_seq_len(T)
        assert net.out_shape == (2, T)
        words = rng.integers(7, size=(T, 2))
        x = be64.array(words if isinstance(shape, int) else words.reshape(1, -1))
        close(net.fprop(x), V @ W[words.ravel()].T)
        error = data(be64, rng, (2, T))
        net.bprop(error)
        want = np.zeros_like(W)
        for word, e in zip(words.ravel(), (V.T @ error.get()).T, strict=True):
            want[word] += e
        close(net.gradients[0], want)


def test_set_seq_len_requires_inputs_with_time_steps(be):
    be.bsz = 2
    net = ready(Sequential([Linear(2, INIT, name="first")]), 3)
    with pytest.raises(ValueError, match=r"first: expected inputs with time steps, \(F, T\), .* got 3"):
        net.set_seq_len(4)


# --- accumulation of gradients ---------------------------------------------------------------------------------------


class ByHand(ParameterLayer):
    """A layer of the user's that has written its bprop: ``W x``, for one number W."""

    def configure(self, in_obj):
        super().configure(in_obj)
        self.out_shape, self.weight_shape = self.in_shape, (1, 1)
        return self

    def fprop(self, inputs, inference=False):
        self.prepare_fprop(inputs, inference)
        self.outputs[:] = self.W * inputs
        return self.outputs

    def inference_formula(self, x):
        return x

    formula = inference_formula

    @Layer.accumulates
    def bprop(self, error):
        self.dW[:] = self.be.sum(error * self.inputs)
        self.deltas[:] = self.W * error
        return self.deltas


GRAY = (2, 4, 5)
MAKERS: dict[str, tuple[Callable[[], Any], Any]] = {
    "Linear": (lambda: Linear(3, INIT), 5),
    "BinaryLinear": (lambda: neonlite.layers.BinaryLinear(3, INIT), 5),
    "Bias": (lambda: Bias(INIT), GRAY),
    "Convolution": (lambda: Convolution((3, 3, 2), init=INIT), GRAY),
    "Convolution_bias": (lambda: Convolution_bias((3, 3, 2), init=INIT, bias=INIT), GRAY),
    "Deconvolution": (lambda: Deconvolution((3, 3, 2), init=INIT), GRAY),
    "LookupTable": (lambda: LookupTable(7, 3, INIT, pad_idx=2), 4),
    "MultiHeadAttention": (lambda: neonlite.layers.MultiHeadAttention(2, INIT, bias=INIT), (4, 3)),
    "PositionEmbedding": (lambda: neonlite.layers.PositionEmbedding(3, INIT), (4, 3)),
    "Gain": (lambda: Gain(INIT), 5),
    "ByHand": (lambda: ByHand(INIT), 5),
}
NORMS = ["BatchNorm", "BatchNormAutodiff", "ShiftBatchNorm", "LayerNorm"]
MAKERS |= {name: (getattr(neonlite.layers, name), GRAY) for name in NORMS}
PLAIN = {"activation": Tanh(), "reset_cells": True}
READERS = dict.fromkeys(("Recurrent", "BiRNN", "BiBNRNN"), PLAIN)
READERS |= dict.fromkeys(("LSTM", "GRU", "BiLSTM"), PLAIN | {"gate_activation": Logistic()})
MAKERS |= {
    name: (lambda name=name, options=options: getattr(neonlite.layers, name)(3, INIT, **options), (5, 4))
    for name, options in READERS.items()
}
LEARNING = [
    name for name, cls in vars(neonlite.layers).items() if isinstance(cls, type) and issubclass(cls, ParameterLayer)
]


@pytest.mark.parametrize("which", sorted({*MAKERS, *LEARNING} - {"ParameterLayer"}))
@pytest.mark.parametrize("inside", [False, True])
def test_gradients_add_up_over_several_passes_when_enabled(be, rng, which, inside):
    be.bsz = 3
    make, shape = MAKERS[which]
    layer = make()
    net = Sequential([MergeSum([layer])]) if inside else layer
    net.configure(shape)
    net.needs_deltas = True
    net.allocate(accumulate_updates=True)
    net.allocate_deltas()
    words = isinstance(layer, LookupTable)
    batches = [
        (be.array(rng.integers(7, size=(4, 3))) if words else data(be, rng, shape), data(be, rng, net.out_shape))
        for _ in range(3)
    ]

    def passes() -> list[list[NDArray]]:
        found = []
        for x, error in batches:
            net.fprop(x)
            deltas = net.bprop(error)
            found.append([g.get() for g in net.gradients] + ([] if deltas is None else [deltas.get()]))
        return found

    one = passes()
    parts = [sum(g[i].astype(float) for g in one) for i in range(len(net.gradients))]
    assert all(np.abs(p).max() > 0 for p in parts)
    for g in net.gradients:
        g.fill(0)
    net.set_acc_on(True)
    many = passes()
    for i, want in enumerate(parts):
        np.testing.assert_allclose(many[-1][i], want, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(many[1][i], one[0][i] + one[1][i], rtol=1e-5, atol=1e-5)
    for a, b in zip(one, many, strict=True):
        for deltas, want in zip(a[len(parts) :], b[len(parts) :], strict=True):
            close(deltas, want, 0)
    net.set_acc_on(False)
    for a, b in zip(one, passes(), strict=True):
        for got, want in zip(b, a, strict=True):
            close(got, want, 0)


def test_gradients_add_up_in_a_whole_network_and_after_another_batch_size(be64, rng):
    be64.bsz = 4
    net = branching(
        [Affine(4, INIT, batch_norm=True, activation=Tanh()), "one", MergeSum([Linear(4, INIT), Careful()])],
        ["one", MergeBroadcast([Linear(2, INIT), Bias(INIT)], "stack")],
    )
    net.configure(3)
    net.allocate(accumulate_updates=True)
    net.allocate_deltas()
    for N in (4, 2, 6):
        net.set_batch_size(N)
        net.set_acc_on(False)
        total: Any = 0
        batches = [(data(be64, rng, 3), all_errors(be64, net, rng)[0]) for _ in range(3)]
        for x, error in batches:
            net.fprop(x)
            net.bprop(error)
            total = total + np.concatenate([g.get().ravel() for g in net.gradients])
        for i, (x, error) in enumerate(batches):
            net.set_acc_on(i > 0)
            net.fprop(x)
            net.bprop(error)
        close(np.concatenate([g.get().ravel() for g in net.gradients]), total)


def test_gradients_cannot_add_up_without_buffers(be, rng):
    be.bsz = 2
    net = ready(Sequential([Activation(Tanh()), MergeSum([Linear(3, INIT, name="first"), SkipNode()])]), 3)
    message = (
        r"first: expected buffers for accumulating gradients, got none\. Call allocate\(accumulate_updates=True\) first"
    )
    for thing in (net, net.layers[1].layers[0].layers[0]):
        with pytest.raises(BufferError, match=message):
            thing.set_acc_on(True)
        thing.set_acc_on(False)
    Activation(Tanh()).set_acc_on(True)  # it has no gradients
    x = data(be, rng, 3)
    net.fprop(x)
    want = [net.bprop(x).get(), net.gradients[0].get()]
    net.bprop(x)
    close(net.gradients[0], want[1], 0)


def test_only_a_layer_accumulates(cpu):
    class Thing:
        @Layer.accumulates
        def bprop(self, error):
            return error

    with pytest.raises(TypeError, match=r"Layer\.accumulates: expected the bprop of a Layer, got that of .*Thing"):
        Thing().bprop(1)
    assert ByHand.bprop.__name__ == "bprop"


@pytest.mark.parametrize("layer", [Activation(Tanh()), Pooling(2), LRN(3), Dropout(), SkipNode(), Reshape(48)])
def test_a_layer_without_parameters_has_no_gradients_to_add_up(cpu, layer):
    cpu.bsz = 2
    layer.configure((3, 4, 4))
    with pytest.raises(
        TypeError, match=rf"{layer.name}: accumulate_updates: expected a layer with parameters, got {layer.classnm}"
    ):
        layer.allocate(accumulate_updates=True)
    layer.allocate()
    net = Sequential([Linear(3, INIT), Activation(Tanh())]).configure(4)
    net.allocate(accumulate_updates=True)
    net.set_acc_on(True)


def test_a_pass_that_fails_leaves_the_layer_accumulating(be, rng):
    be.bsz = 2
    layer = Linear(3, INIT).configure(4)
    layer.needs_deltas = True
    layer.allocate(accumulate_updates=True)
    layer.allocate_deltas()
    x, error = data(be, rng, 4), data(be, rng, 3)
    layer.fprop(x)
    layer.bprop(error)
    layer.set_acc_on(True)
    with pytest.raises(ValueError, match="expected an error of shape"):
        layer.bprop(x)
    assert layer.acc_on
    layer.bprop(error)
    np.testing.assert_allclose(layer.dW.get(), 2 * error.get() @ x.get().T, rtol=1e-5)


# --- trainable layers ------------------------------------------------------------------------------------------------


def test_layers_that_are_not_trainable_are_not_optimized(be):
    be.bsz = 2
    fixed = Linear(4, IdentityInit(), name="fixed")
    named = Bias(Constant(2), name="named")
    named.trainable = False
    words = LookupTable(5, 4, INIT, update=False, name="words")
    net = ready(
        Sequential([words, MergeSum([fixed, [Linear(4, INIT, name="learning"), named]]), Activation(Tanh())]),
        (1, 3),
        deltas=False,
    )
    assert {layer.name for layer in net.layers_to_optimize} == {"fixed", "learning"}
    x = be.array([[0, 1, 2, 3, 4, 0]])
    before = {layer.name: layer.W.get() for layer in net.leaves() if layer.has_params}
    net.fprop(x)
    net.bprop(be.ones((4, 6)))
    GradientDescentMomentum(0.1, 0.9).optimize(net.layers_to_optimize, epoch=0)
    moved = {
        name
        for layer in net.leaves()
        if layer.has_params
        for name in [layer.name]
        if (layer.W.get() != before[name]).any()
    }
    assert moved == {layer.name for layer in net.layers_to_optimize}


def test_parameters_of_all_branches_are_views_of_one_buffer_in_the_order_of_layers(be):
    be.bsz = 2
    net = ready(CONTAINERS["Tree"][0](), 5)
    assert [x.name for x in net.layers_to_optimize] == [x.name for x in net.leaves() if x.has_params]
    assert len({id(p.root) for p in net.parameters}) == len({id(g.root) for g in net.gradients}) == 1
    assert net.parameters[0].root.size == sum(p.size for p in net.parameters)
    assert net.parameters[0].root is not net.gradients[0].root


def test_a_generator_and_a_discriminator_are_named(be, rng):
    be.bsz = 2
    net = ready(GenerativeAdversarial(Linear(3, INIT), [Linear(1, INIT), Activation(Tanh())]), 2, deltas=False)
    assert len(net) == 2
    assert [net.generator, net.discriminator] == net.layers
    assert [len(x) for x in net] == [1, 2]
    z = data(be, rng, 2)
    whole = net.fprop(z).get()
    close(net.discriminator.fprop(net.generator.fprop(z)), whole, 0)
    # the discriminator is trained on data, and the generator by its deltas
    real, error = data(be, rng, 3), data(be, rng, 1)
    _, V = (p.get() for p in net.parameters)
    y = net.discriminator.fprop(real).get()
    net.discriminator.bprop(error)
    close(net.gradients[1], (error.get() * (1 - y**2)) @ real.get().T, 1e-5)
    y = net.fprop(z).get()
    net.bprop(error)
    close(net.gradients[0], V.T @ (error.get() * (1 - y**2)) @ z.get().T, 1e-5)


# --- errors ----------------------------------------------------------------------------------------------------------

WRONG_SHAPES: list[tuple[Callable[[], Any], Any, str]] = [
    (
        lambda: MergeBroadcast(
            [Conv((3, 3, 2), INIT, name="small"), Conv((1, 1, 2), INIT, name="large")], "depth", name="fork"
        ),
        (3, 5, 5),
        r"fork: expected branches with images of the same size, got small \(2, 3, 3\), large \(2, 5, 5\) for the input "
        r"shape \(3, 5, 5\)\. Adjust their padding",
    ),
    (
        lambda: MergeBroadcast([Linear(2, INIT, name="flat"), SkipNode(name="skip")], "depth", name="fork"),
        (3, 5, 5),
        r"fork: .*images of the same size.* flat 2, skip \(3, 5, 5\)",
    ),
    (
        lambda: MergeBroadcast([Linear(2, INIT, name="two"), Linear(3, INIT, name="three")], "recurrent", name="fork"),
        (4, 5),
        r"fork: expected branches with outputs \(F, T\) of the same F, got two \(2, 5\), three \(3, 5\) .* "
        r"A Linear changes F",
    ),
    (
        lambda: MergeBroadcast([Linear(2, INIT, name="two")], "recurrent", name="fork"),
        4,
        r"fork: .*\(F, T\) of the same F.* two 2 for the input shape 4",
    ),
    (
        lambda: MergeSum([Conv((3, 3, 4), INIT, name="conv"), SkipNode(name="skip")], name="sum"),
        (3, 5, 5),
        r"sum: expected branches with outputs of the same shape, got conv \(4, 3, 3\), skip \(3, 5, 5\) .* "
        r"A 1 x 1 Conv or a Linear changes the shape",
    ),
    (
        lambda: Sequential(
            [Linear(3, INIT), MergeSum([Linear(4, INIT, name="four"), SkipNode(name="skip")], name="sum")]
        ),
        5,
        "sum: .* four 4, skip 3 for the input shape 3",
    ),
    (
        lambda: MergeMultistream([Linear(2, INIT), Linear(2, INIT)], "stack", name="streams"),
        [3, 4, 5],
        r"streams: expected a list of 2 shapes, one for each branch, got \[3, 4, 5\]",
    ),
    (
        lambda: MergeMultistream([Linear(2, INIT), Linear(2, INIT)], "stack", name="streams"),
        3,
        "streams: expected a list of 2 shapes, one for each branch, got 3",
    ),
]


@pytest.mark.parametrize("case", WRONG_SHAPES, ids=lambda case: case[2][:40])
def test_branches_that_do_not_fit_together_are_named_with_their_shapes(cpu, case):
    make, shape, message = case
    with pytest.raises(ValueError, match=message):
        make().configure(shape)


def test_equal_layer_names_get_numbers_in_all_branches(cpu):
    def two() -> list[Any]:
        return [Linear(3, INIT, name="same"), Bias(INIT, name="same")]

    for make in (
        lambda: Sequential([Sequential(two()[:1]), two()[1:]], name="net"),
        lambda: MergeSum(two(), name="net"),
        lambda: MergeBroadcast([two()[:1], MergeSum(two()[1:])], "stack", name="net"),
        lambda: branching(["one", two()[0]], ["one", two()[1]], name="net"),
    ):
        names = [leaf.name for leaf in make().leaves() if leaf.name.startswith("same")]
        assert names == ["same", "same_1"]
    layer = Linear(3, INIT, name="shared")
    with pytest.raises(ValueError, match="expected unique layer names, got shared twice"):
        MergeSum([layer, layer], name="net")


def test_a_branch_starts_with_a_node_of_an_earlier_one(cpu):
    a, b = BranchNode(name="a"), BranchNode(name="b")

    def linear(name: str) -> Linear:
        return Linear(2, INIT, name=name)

    wrong = [
        (
            [[linear("x"), a], [linear("y")]],
            r"tree: branch 1: expected a BranchNode .* \(a\) as its first layer, got y",
        ),
        ([[linear("x")], [a, linear("y")]], r"branch 1: .* \(none\) as its first layer, got a"),
        ([[linear("x"), a], [a, linear("y")], [b, linear("z")]], r"branch 2: .* \(a\) as its first layer, got b"),
        ([[linear("x"), a], []], r"branch 1: .*, got None"),
    ]
    for layers, message in wrong:
        with pytest.raises(ValueError, match=message):
            Tree(layers, name="tree")
    with pytest.raises(ValueError, match=r"tree: .* each of trunk and branches, 2 in all, for alphas, got \[1\]"):
        Tree([[linear("x"), a], [a, linear("y")]], name="tree", alphas=[1])
    with pytest.raises(TypeError, match=r"each of alphas, got 'half'"):
        Tree([[linear("x"), a], [a, linear("y")]], name="tree", alphas=[1, "half"])


def test_a_node_is_identified_by_its_name(be64, rng):
    be64.bsz = 2
    net = Tree([[Linear(3, INIT), BranchNode(name="one"), Linear(2, INIT)], [BranchNode(name="one"), Linear(1, INIT)]])
    ready(net, 4)
    U, V, W = (p.get() for p in net.parameters)
    x, e = data(be64, rng, 4), [data(be64, rng, 2), data(be64, rng, 1)]
    for got, w in zip(net.fprop(x), (V, W), strict=True):
        close(got, w @ U @ x.get())
    close(net.bprop(e), U.T @ (V.T @ e[0].get() + W.T @ e[1].get()))


def test_merges_check_their_arguments(cpu):
    with pytest.raises(ValueError, match="fork: expected one of 'recurrent', 'depth', 'stack' for merge, got 'sum'"):
        MergeBroadcast([Linear(2, INIT)], "sum", name="fork")
    with pytest.raises(ValueError, match=r"fork: .* one number for each branch, 1 in all, for alphas, got"):
        MergeBroadcast([Linear(2, INIT)], "stack", alphas=[1, 2], name="fork")
    with pytest.raises(ValueError, match="net: expected one or more layers, got none"):
        MergeSum([], name="net")
    with pytest.raises(TypeError, match="expected layers and lists of layers, got 3"):
        MergeSum([Linear(2, INIT), 3])


def test_errors_of_a_tree_are_a_list_one_for_each_branch(be, rng):
    be.bsz = 2
    make = CONTAINERS["Tree at the end"][0]
    net = ready(make(), 5)
    tree = net.layers[1]
    tree.name = "tree"
    net.fprop(data(be, rng, 5))
    e = [data(be, rng, 3), data(be, rng, 4)]
    for wrong in (e[:1], [*e, e[0]], e[0], None):
        with pytest.raises(
            (TypeError, ValueError), match=r"tree.bprop: expected a list of 2, one for each branch, for error, got "
        ):
            net.bprop(wrong)
    with pytest.raises(ValueError, match=r"expected an error of shape \(4, 2\).*got a tensor \(3, 2\)"):
        net.bprop([e[0], e[0]])
    net.bprop(e)


def test_inputs_of_streams_are_a_list_one_for_each(be, rng):
    be.bsz = 2
    net = ready(
        MergeMultistream([Linear(2, INIT, name="a"), Linear(2, INIT, name="b")], "stack", name="streams"), [3, 4]
    )
    x = [data(be, rng, 3), data(be, rng, 4)]
    for wrong in (x[:1], [*x, x[0]], x[0]):
        with pytest.raises(
            (TypeError, ValueError), match="streams: expected a list of 2, one for each branch, for inputs, got "
        ):
            net.fprop(wrong)
    with pytest.raises(ValueError, match=r"a: expected inputs of shape \(3, 2\).*got a tensor \(4, 2\)"):
        net.fprop(x[::-1])


@each_container
def test_the_steps_come_in_order(be, rng, which):
    be.bsz = 2
    make, shape, _, _ = CONTAINERS[which]
    net = make()
    error, x = None, [data(be, rng, s) for s in (shape if isinstance(shape, list) else [shape])]
    net.configure(shape)
    error, _ = all_errors(be, net, rng)
    x = x if isinstance(shape, list) else x[0]
    net.allocate()
    net.allocate_deltas()
    message = "bprop: expected a training fprop before it, got none, or one with inference"
    with pytest.raises(RuntimeError, match=f"{net.name}: {message}"):
        net.bprop(error)
    net.fprop(x, inference=True)
    with pytest.raises(RuntimeError, match=f"{net.name}: {message}"):
        net.bprop(error)
    net.fprop(x)
    net.bprop(error)
    net.set_batch_size(2)
    with pytest.raises(RuntimeError, match=f"{net.name}: {message}"):
        net.bprop(error)


@pytest.mark.parametrize("which", ["MergeSum", "stack", "depth", "recurrent", "residual block", "Sequential"])
def test_inputs_and_errors_of_another_shape_are_rejected(be, which):
    be.bsz = 2
    make, shape, _, _ = CONTAINERS[which]
    net = ready(make(), shape)
    with pytest.raises(ValueError, match=r"expected inputs of shape .*batch size 2\), got a tensor"):
        net.fprop(be.ones((5, 3)))
    columns = shape[1] if isinstance(shape, tuple) and len(shape) == 2 else 1
    rows = shape[0] if columns > 1 else int(np.prod(shape))
    net.fprop(be.ones((rows, columns * 2)))
    with pytest.raises(ValueError, match=r"expected an error of shape .*batch size 2\), got a tensor"):
        net.bprop(be.ones((5, 3)))


def test_no_layer_may_follow_a_tree(cpu):
    cpu.bsz = 2
    tree = branching(["one", Linear(3, INIT)], ["one", Linear(1, INIT)], name="tree")
    with pytest.raises(ValueError, match=r"last: .*tree"):
        Sequential([tree, Linear(2, INIT, name="last")]).configure(4)


def test_a_network_of_branches_prints_its_layers_one_a_line(cpu):
    cpu.bsz = 2
    net = Sequential([Linear(3, INIT, name="a"), MergeSum([Linear(3, INIT, name="b"), SkipNode(name="c")])]).configure(
        4
    )
    assert str(net) == (
        "Sequential\n"
        "  Linear Layer 'a': 4 -> 3\n"
        "  MergeSum\n"
        "    Sequential\n"
        "      Linear Layer 'b': 3 -> 3\n"
        "    Sequential\n"
        "      SkipNode Layer 'c': 3 -> 3"
    )


def test_the_layers_of_a_compound_get_one_number(cpu):
    def layer() -> Any:
        return Affine(3, INIT, bias=INIT, activation=Rectlin(), name="a")

    net = Sequential([layer(), layer(), Linear(3, INIT, name="a_2"), layer()], name="net")
    names = [leaf.name for leaf in net.leaves()]
    assert names[:2] == ["a", "a_bias"]
    assert names[3:5] == ["a_1", "a_1_bias"]
    assert names[7:9] == ["a_3", "a_3_bias"]  # a_2 is taken
    assert len({*names}) == len(names)


def test_a_layer_of_another_network_keeps_its_name(cpu):
    other = Sequential([Linear(3, INIT, name="a")])
    with pytest.raises(ValueError, match="net: expected unique layer names, got a twice"):
        Sequential([Linear(3, INIT, name="a"), other[0]], name="net")
    net = Sequential([other[0], Linear(3, INIT, name="a")])
    assert [leaf.name for leaf in (*other, *net)] == ["a", "a", "a_1"]
