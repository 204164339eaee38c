"""Networks of all kinds learn tasks that are made up, better than they could without learning or with a wrong sign."""

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


def made(net: Any, shape: Any, cost: Any, accumulate_updates: bool = False) -> Any:
    """Return a network with its buffers; the cost knows it."""
    net.configure(shape)
    net.allocate(**({"accumulate_updates": True} if accumulate_updates else {}))
    net.allocate_deltas()
    cost.initialize(net)
    return net


def learn(net: Any, cost: Any, optimizer: Any, batch: Callable[[], tuple[Any, Any]], steps: int) -> list[float]:
    """Return the cost of each step."""
    found = []
    for _ in range(steps):
        x, t = batch()
        y = net.fprop(x)
        found.append(float(cost.get_cost(y, t).item()))
        net.bprop(cost.get_errors(y, t))
        optimizer.optimize(net.layers_to_optimize, epoch=0)
    return found


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
    net = made(Sequential(layers), 2, cost)
    found = learn(net, cost, Adam(learning_rate=0.01), lambda: (x, t), 150)
    assert found[0] > 0.4
    assert found[-1] < 0.05
    right = (net.fprop(x, inference=True).get().argmax(axis=0) == which).mean()
    assert right > 0.98  # no line between them gets more than about 70 %


def test_an_autoencoder_with_deconvolutions_learns_to_draw(cpu: Backend, rng: np.random.Generator) -> None:
    cpu.bsz = 32

    def batch() -> tuple[Any, Any]:
        """Bars, level or upright, in 8 x 8 images."""
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
    net = made(Sequential(layers), (1, 8, 8), cost)
    assert net.out_shape == (1, 8, 8)
    found = learn(net, cost, Adam(learning_rate=0.01), batch, 250)
    # one pixel in eight is on: who knows no more than that pays 24.1
    assert found[0] > 24
    assert np.mean(found[-10:]) < 4
    x, _ = batch()
    assert ((net.fprop(x, inference=True).get() > 0.5) == (x.get() > 0.5)).mean() > 0.98


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
    made(net, 6, cost)
    found = learn(net, cost, Adam(learning_rate=0.01), batch, 300)
    assert found[0] > 0.9
    assert np.mean(found[-10:]) < 0.3
    x, (labels, numbers) = batch()
    y, z = net.fprop(x, inference=True)
    assert (y.get().argmax(axis=0) == labels.get().argmax(axis=0)).mean() > 0.85  # a third by chance
    assert np.mean((z.get() - numbers.get()) ** 2) < 0.1 * np.mean(numbers.get() ** 2)


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
    made(net, 4, cost, accumulate_updates=True)
    judges, makers = Adam(learning_rate=0.01, beta_1=0.5), Adam(learning_rate=0.005, beta_1=0.5)
    z = cpu.zeros((4, 64))

    def noise() -> Any:
        z[:] = rng.normal(size=(4, 64))
        return z

    def center() -> NDArray:
        return np.mean([net.generator.fprop(noise(), inference=True).get().mean(axis=1) for _ in range(8)], axis=0)

    start = np.abs(center() - mean[:, 0]).max()
    assert start > 1
    late = []
    for step in range(400):
        # the discriminator learns from noise and from data, and both add up
        y_noise = net.discriminator.fprop(net.generator.fprop(noise()))
        net.discriminator.bprop(cost.get_errors(y_noise, "noise"))
        net.discriminator.set_acc_on(True)
        y_data = net.discriminator.fprop(cpu.array(mean + 0.5 * rng.normal(size=(2, 64))))
        net.discriminator.bprop(cost.get_errors(y_data, "data"))
        net.discriminator.set_acc_on(False)
        judges.optimize(net.discriminator.layers_to_optimize, epoch=0)
        if func == "wasserstein":
            for p in net.discriminator.parameters:
                p[:] = cpu.clip(p, -0.3, 0.3)
        # the generator from what the discriminator says of its work
        y_noise = net.fprop(noise())
        net.bprop(cost.get_errors(y_noise, "generator"))
        makers.optimize(net.generator.layers_to_optimize, epoch=0)
        if step >= 300 and step % 10 == 0:
            late.append(center())
    assert np.abs(np.mean(late, axis=0) - mean[:, 0]).max() < 0.35


def test_words_and_ways_in_time_learn_which_of_two_words_is_there(cpu: Backend, rng: np.random.Generator) -> None:
    cpu.bsz = 32

    def batch() -> tuple[Any, Any]:
        words = rng.integers(2, 9, size=(3, 32))
        which = rng.integers(2, size=32)
        words[rng.integers(3, size=32), np.arange(32)] = which
        return cpu.array(words), cpu.array(one_hot(which, 2))

    net = Sequential(
        [
            LookupTable(9, 4, Gaussian(scale=0.5)),
            MergeBroadcast([Affine(4, INIT, Constant(0), activation=Tanh()), SkipNode()], "recurrent"),
            Reshape(-1),
            Affine(2, INIT, Constant(0), activation=Softmax()),
        ]
    )
    cost = GeneralizedCost(CrossEntropyMulti())
    made(net, 3, cost)
    found = learn(net, cost, Adam(learning_rate=0.02), batch, 200)
    assert found[0] > 0.5
    assert np.mean(found[-10:]) < 0.1


def test_learning_against_the_slope_makes_it_worse(cpu: Backend, rng: np.random.Generator) -> None:
    cpu.bsz = 16
    x, t = cpu.array(rng.normal(size=(5, 16))), cpu.array(rng.normal(size=(5, 16)))
    for sign in (1, -1):
        cost = GeneralizedCostMask(SumSquared(), weights=sign)
        net = made(Sequential([MergeSum([Affine(5, INIT, activation=Tanh()), SkipNode()])]), 5, cost)
        truth = t, cpu.ones((1, 16))
        found = sign * np.array(
            learn(net, cost, GradientDescentMomentum(0.02, 0.0), lambda truth=truth: (x, truth), 50)
        )
        assert (np.diff(sign * found) < 0).all()
        assert (found[-1] < 0.9 * found[0]) == (sign == 1)


def test_a_residual_net_learns_256_images_with_random_labels_by_heart(cpu: Backend, rng: np.random.Generator) -> None:
    cpu.bsz = 64
    images, labels = rng.normal(size=(4, 3 * 8 * 8, 64)), rng.integers(10, size=(4, 64))
    batches = [(cpu.array(x), cpu.array(one_hot(t, 10))) for x, t in zip(images, labels, strict=True)]

    def conv(maps: int, **more: Any) -> Conv:
        return Conv((3, 3, maps), INIT, padding=1, batch_norm=True, **more)

    def block(maps: int) -> list[Any]:
        return [MergeSum([[conv(maps, activation=Rectlin()), conv(maps)], SkipNode()]), Activation(Rectlin())]

    layers = [conv(16, activation=Rectlin()), *block(16), Pooling(2), *block(16), Linear(10, INIT), BatchNorm()]
    cost = GeneralizedCost(CrossEntropyMulti())
    net = made(Sequential([*layers, Activation(Softmax())]), (3, 8, 8), cost)

    def right() -> float:
        return float(
            np.mean([(net.fprop(x).get().argmax(axis=0) == t.get().argmax(axis=0)).mean() for x, t in batches])
        )

    assert right() < 0.25
    optimizer = Adam(learning_rate=0.005)
    for _ in range(25):
        order = iter(batches)
        learn(net, cost, optimizer, lambda order=order: next(order), len(batches))
        if right() == 1:
            break
    assert right() == 1
