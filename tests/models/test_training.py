"""Networks of all kinds learn synthetic tasks, better than untrained ones or ones with a wrong sign."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from neonlite import Backend
from neonlite.initializers import Constant, Gaussian, Kaiming
from neonlite.layers import (
    Activation,
    Affine,
    BatchNorm,
    BranchNode,
    Conv,
    Deconv,
    GeneralizedCost,
    GeneralizedCostMask,
    GeneralizedGANCost,
    GenerativeAdversarial,
    Linear,
    LookupTable,
    MergeBroadcast,
    MergeSum,
    Multicost,
    Pooling,
    Reshape,
    Sequential,
    SkipNode,
    Tree,
)
from neonlite.optimizers import Adam, GradientDescentMomentum
from neonlite.transforms import (
    CrossEntropyBinary,
    CrossEntropyMulti,
    GANCost,
    Logistic,
    MeanSquared,
    Rectlin,
    Softmax,
    SumSquared,
    Tanh,
)

NDArray = np.ndarray[Any, Any]
INIT = Kaiming()


def build(net: Any, shape: Any, cost: Any, accumulate_updates: bool = False) -> Any:
    """Return a network with allocated buffers, and initialize the cost."""
    net.configure(shape)
    net.allocate(**({"accumulate_updates": True} if accumulate_updates else {}))
    net.allocate_deltas()
    cost.initialize(net)
    return net


def train(net: Any, cost: Any, optimizer: Any, batch: Callable[[], tuple[Any, Any]], steps: int) -> list[float]:
    """Train, and return the cost of each step."""
    result = []
    for _ in range(steps):
        x, t = batch()
        y = net.fprop(x)
        result.append(float(cost.get_cost(y, t).item()))
        net.bprop(cost.get_errors(y, t))
        optimizer.optimize(net.layers_to_optimize, epoch=0)
    return result


def one_hot(labels: NDArray, classes: int) -> NDArray:
    return np.eye(classes)[:, labels]


def test_residual_blocks_learn_two_spirals(cpu: Backend, rng: np.random.Generator) -> None:
    cpu.bsz = 128
    turn, which = rng.uniform(0.5, 2.5, 128) * np.pi, rng.integers(2, size=128)
    points = turn / np.pi * np.array([np.cos(turn + np.pi * which), np.sin(turn + np.pi * which)])
    x, t = cpu.array(points), cpu.array(one_hot(which, 2))

    def block() -> MergeSum:
        return MergeSum([[Affine(24, INIT, Constant(0), activation=Rectlin()), Linear(24, INIT)], SkipNode()])

    layers = [
        Affine(24, INIT, Constant(0)),
        block(),
        block(),
        Activation(Rectlin()),
        Affine(2, INIT, activation=Softmax()),
    ]
    cost = GeneralizedCost(CrossEntropyMulti())
    net = build(Sequential(layers), 2, cost)
    result = train(net, cost, Adam(learning_rate=0.01), lambda: (x, t), 150)
    assert result[0] > 0.4
    assert result[-1] < 0.05
    accuracy = (net.fprop(x, inference=True).get().argmax(axis=0) == which).mean()
    assert accuracy > 0.98  # a linear classifier reaches about 70 %


@pytest.mark.long
def test_an_autoencoder_with_deconvolutions_learns_to_draw(cpu: Backend, rng: np.random.Generator) -> None:
    cpu.bsz = 32

    def batch() -> tuple[Any, Any]:
        """Return 8 x 8 images of horizontal or vertical bars."""
        images = np.zeros((8, 8, 32))
        for n in range(32):
            where = rng.integers(8)
            if rng.integers(2):
                images[where, :, n] = 1
            else:
                images[:, where, n] = 1
        x = cpu.array(images.reshape(64, 32))
        return x, x

    layers = [
        Conv((2, 2, 8), INIT, strides=2, bias=Constant(0), activation=Rectlin()),
        Conv((4, 4, 16), INIT, bias=Constant(0), activation=Rectlin()),
        Deconv((4, 4, 8), INIT, bias=Constant(0), activation=Rectlin()),
        Deconv((2, 2, 1), INIT, strides=2, bias=Constant(0), activation=Logistic()),
    ]
    cost = GeneralizedCost(CrossEntropyBinary())
    net = build(Sequential(layers), (1, 8, 8), cost)
    assert net.out_shape == (1, 8, 8)
    result = train(net, cost, Adam(learning_rate=0.01), batch, 250)
    # one pixel in eight is on: predicting this rate costs 24.1
    assert result[0] > 24
    assert np.mean(result[-10:]) < 4
    x, _ = batch()
    assert ((net.fprop(x, inference=True).get() > 0.5) == (x.get() > 0.5)).mean() > 0.98


@pytest.mark.long
def test_two_heads_of_a_tree_learn_two_tasks_from_one_trunk(cpu: Backend, rng: np.random.Generator) -> None:
    cpu.bsz = 64
    W, V = rng.normal(size=(3, 6)), rng.normal(size=(2, 6))

    def batch() -> tuple[Any, Any]:
        x = rng.normal(size=(6, 64))
        return cpu.array(x), [cpu.array(one_hot((W @ x).argmax(axis=0), 3)), cpu.array(np.tanh(V @ x))]

    node = BranchNode()
    trunk = [
        Affine(32, INIT, Constant(0), activation=Rectlin()),
        node,
        Affine(3, INIT, Constant(0), activation=Softmax()),
    ]
    net = Tree([trunk, [node, Affine(16, INIT, Constant(0), activation=Tanh()), Affine(2, INIT, Constant(0))]])
    cost = Multicost([GeneralizedCost(CrossEntropyMulti()), GeneralizedCost(MeanSquared())], weights=[1, 2])
    build(net, 6, cost)
    result = train(net, cost, Adam(learning_rate=0.01), batch, 300)
    assert result[0] > 0.9
    assert np.mean(result[-10:]) < 0.3
    x, (labels, numbers) = batch()
    y, z = net.fprop(x, inference=True)
    assert (y.get().argmax(axis=0) == labels.get().argmax(axis=0)).mean() > 0.85  # a third by chance
    assert np.mean((z.get() - numbers.get()) ** 2) < 0.1 * np.mean(numbers.get() ** 2)


@pytest.mark.long
@pytest.mark.parametrize("func", ["modified", "wasserstein"])
def test_a_generator_moves_to_where_the_data_is(cpu: Backend, rng: np.random.Generator, func: str) -> None:
    cpu.bsz = 64
    mean = np.array([[2.0], [-1.0]])
    end = Logistic() if func == "modified" else None
    net = GenerativeAdversarial(
        [Affine(8, INIT, Constant(0), activation=Tanh()), Affine(2, INIT, Constant(0))],
        [Affine(16, INIT, Constant(0), activation=Rectlin(0.2)), Affine(1, INIT, Constant(0), activation=end)],
    )
    cost = GeneralizedGANCost(GANCost(func=func))
    build(net, 4, cost, accumulate_updates=True)
    discriminator_optimizer, generator_optimizer = (
        Adam(learning_rate=0.02, beta_1=0.5),
        Adam(learning_rate=0.01, beta_1=0.5),
    )
    z = cpu.zeros((4, 64))

    def noise() -> Any:
        z[:] = rng.normal(size=(4, 64))
        return z

    def center() -> NDArray:
        return np.mean([net.generator.fprop(noise(), inference=True).get().mean(axis=1) for _ in range(8)], axis=0)

    start = np.abs(center() - mean[:, 0]).max()
    assert start > 1
    centers = []
    for step in range(240):
        # the gradients of the discriminator on noise and on data are accumulated
        y_noise = net.discriminator.fprop(net.generator.fprop(noise()))
        net.discriminator.bprop(cost.get_errors(y_noise, "noise"))
        net.discriminator.set_acc_on(True)
        y_data = net.discriminator.fprop(cpu.array(mean + 0.5 * rng.normal(size=(2, 64))))
        net.discriminator.bprop(cost.get_errors(y_data, "data"))
        net.discriminator.set_acc_on(False)
        discriminator_optimizer.optimize(net.discriminator.layers_to_optimize, epoch=0)
        if func == "wasserstein":
            for p in net.discriminator.parameters:
                p[:] = cpu.clip(p, -0.3, 0.3)
        # the generator is trained on the errors that the discriminator propagates
        y_noise = net.fprop(noise())
        net.bprop(cost.get_errors(y_noise, "generator"))
        generator_optimizer.optimize(net.generator.layers_to_optimize, epoch=0)
        if step >= 180 and step % 10 == 0:
            centers.append(center())
    assert np.abs(np.mean(centers, axis=0) - mean[:, 0]).max() < 0.35


def test_an_embedding_and_time_series_layers_learn_which_of_two_tokens_occurs(
    cpu: Backend, rng: np.random.Generator
) -> None:
    cpu.bsz = 32

    def batch() -> tuple[Any, Any]:
        tokens = rng.integers(2, 9, size=(3, 32))
        which = rng.integers(2, size=32)
        tokens[rng.integers(3, size=32), np.arange(32)] = which
        return cpu.array(tokens), cpu.array(one_hot(which, 2))

    net = Sequential(
        [
            LookupTable(9, 4, Gaussian(scale=0.5)),
            MergeBroadcast([Affine(4, INIT, Constant(0), activation=Tanh()), SkipNode()], "recurrent"),
            Reshape(-1),
            Affine(2, INIT, Constant(0), activation=Softmax()),
        ]
    )
    cost = GeneralizedCost(CrossEntropyMulti())
    build(net, 3, cost)
    result = train(net, cost, Adam(learning_rate=0.02), batch, 200)
    assert result[0] > 0.5
    assert np.mean(result[-10:]) < 0.1


def test_training_with_the_negative_gradient_increases_the_cost(cpu: Backend, rng: np.random.Generator) -> None:
    cpu.bsz = 16
    x, t = cpu.array(rng.normal(size=(5, 16))), cpu.array(rng.normal(size=(5, 16)))
    for sign in (1, -1):
        cost = GeneralizedCostMask(SumSquared(), weights=sign)
        net = build(Sequential([MergeSum([Affine(5, INIT, activation=Tanh()), SkipNode()])]), 5, cost)
        truth = t, cpu.ones((1, 16))
        result = sign * np.array(
            train(net, cost, GradientDescentMomentum(0.02, 0.0), lambda truth=truth: (x, truth), 50)
        )
        assert (np.diff(sign * result) < 0).all()
        assert (result[-1] < 0.9 * result[0]) == (sign == 1)


@pytest.mark.long
def test_a_residual_network_memorizes_256_images_with_random_labels(cpu: Backend, rng: np.random.Generator) -> None:
    cpu.bsz = 64
    images, labels = rng.normal(size=(4, 3 * 8 * 8, 64)), rng.integers(10, size=(4, 64))
    batches = [(cpu.array(x), cpu.array(one_hot(t, 10))) for x, t in zip(images, labels, strict=True)]

    def conv(maps: int, **more: Any) -> Conv:
        return Conv((3, 3, maps), INIT, padding=1, batch_norm=True, **more)

    def block(maps: int) -> list[Any]:
        return [MergeSum([[conv(maps, activation=Rectlin()), conv(maps)], SkipNode()]), Activation(Rectlin())]

    layers = [conv(16, activation=Rectlin()), *block(16), Pooling(2), *block(16), Linear(10, INIT), BatchNorm()]
    cost = GeneralizedCost(CrossEntropyMulti())
    net = build(Sequential([*layers, Activation(Softmax())]), (3, 8, 8), cost)

    def accuracy() -> float:
        return float(
            np.mean([(net.fprop(x).get().argmax(axis=0) == t.get().argmax(axis=0)).mean() for x, t in batches])
        )

    assert accuracy() < 0.25
    optimizer = Adam(learning_rate=0.005)
    for _ in range(25):
        order = iter(batches)
        train(net, cost, optimizer, lambda order=order: next(order), len(batches))
        if accuracy() == 1:
            break
    assert accuracy() == 1
