"""Branches and trees, compared with NumPy formulas, numerical gradients, PyTorch and runs without shared buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.network_cases import INIT, Grower, all_errors, conv3, listed, numbers
from helpers.networks import Careful, MultiplyByTwo, branching, check_gradient, close, data, needs_torch, ready
from helpers.parametrize import thinned

from neonlite import Autodiff, Backend, gen_backend
from neonlite.layers import (
    Activation,
    Affine,
    Bias,
    BranchNode,
    Conv,
    Convolution,
    GenerativeAdversarial,
    Linear,
    MergeBroadcast,
    MergeMultistream,
    MergeSum,
    Pooling,
    Reshape,
    Sequential,
    SingleOutputTree,
    SkipNode,
    Tree,
)
from neonlite.transforms import Logistic, Rectlin, Tanh

NDArray = np.ndarray[Any, Any]


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
        check_gradient(got.get(), total, a, rng)
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


def test_alphas_multiply_an_error_that_a_later_layer_computes(be64, rng):
    be64.bsz = 4
    W, V, alphas = [rng.normal(size=(2, 5)) for _ in range(2)], rng.normal(size=(3, 4)), [0.5, -2.0]
    merge = MergeBroadcast([Linear(2, w) for w in W], "stack", alphas=alphas)
    net = ready(Sequential([merge, Linear(3, V)]), 5)
    x, e = rng.normal(size=(5, 4)), rng.normal(size=(3, 4))
    net.fprop(be64.array(x))
    close(net.bprop(be64.array(e)), sum(a * w.T @ v for a, w, v in zip(alphas, W, np.split(V.T @ e, 2), strict=True)))


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
    close(node.fprop(x), X, 0)
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
            check_gradient(got.get(), total, a, rng)
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
