"""Images of a plan stay in NHWC between the ops that oneDNN computes. The oracle is float64, which stays in CHWN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neonlite import Autodiff, Backend
from neonlite.backend.primitives.rows import REORDER, rows_shape
from neonlite.backend.runtimes.onednn import bindings

pytestmark = pytest.mark.skipif(bindings.get_library() is None, reason=bindings.version_info())


class Leaves:
    """The tensors of an op-tree in one dtype, with the same values in each."""

    def __init__(self, be: Backend, dtype: str) -> None:
        self.be, self.dtype, self.rng = be, dtype, np.random.default_rng(0)
        self.tensors: list[Any] = []

    def __call__(self, *shape: int) -> Any:
        values = self.rng.normal(size=shape).astype(np.float32)
        self.tensors.append(self.be.array(values, dtype=self.dtype))
        return self.tensors[-1]


def ops_of(plan: Any) -> list[str]:
    """Return the names of the ops that a plan computes, in order."""
    return [plan.step_of(v).op.name for stage in plan.stages for v in stage.steps]


def random_network(be: Backend, leaf: Leaves, seed: int) -> list[Any]:
    """Return some values of a random network of images."""
    rng = np.random.default_rng(seed)
    N = int(rng.integers(1, 5))
    x = leaf(int(rng.integers(2, 5)), 9, 8, N)
    values = []
    for _ in range(9):
        C, H, W, _ = x.shape
        kind = rng.choice(
            ["conv", "relu", "bias", "sample", "pool", "mean", "norm", "skip", "five", "reduce", "where", "turn"]
        )
        if kind == "conv":
            x = be.conv(x, leaf(C, 3, 3, int(rng.integers(1, 6))), padding=1)
        elif kind == "relu":
            x = be.maximum(x, 0)
        elif kind == "bias":
            x = x + leaf(C, 1, 1, 1)
        elif kind == "sample":
            x = x * leaf(1, 1, 1, N) - leaf(1, H, 1, 1)
        elif kind == "pool" and min(H, W) > 3:
            x = be.pool(x, 2)
        elif kind == "mean" and min(H, W) > 3:
            x = be.pool(x, 3, strides=2, op="avg")
        elif kind == "norm" and H * W * N > 20:
            x = be.batch_norm(x, leaf(C, 1), leaf(C, 1))
        elif kind == "skip":
            x = be.tanh(x) * leaf(C, H, W, N) + x
        elif kind == "five":
            x = be.reshape(be.reshape(x, (C, 1, H * W, N)) * 0.5, (C, H, W, N))
        elif kind == "reduce":
            axes = tuple(int(a) for a in rng.choice(4, 2, replace=False))
            x = x - be.max(x, axis=axes) * 0.1 + be.mean(x, axis=axes)
        elif kind == "where":
            x = be.where(leaf(C, H, W, N) > 0, x, 0.1 * x)
        elif kind == "turn":
            x = be.transpose(be.exp(be.transpose(x, (0, 2, 1, 3)) * 0.01), (0, 2, 1, 3)) + x
        values.append(x)
    flat = be.dot(leaf(3, int(np.prod(x.shape[:-1]))), be.reshape(x, (-1, N)))
    chosen = [values[int(n)] for n in rng.choice(len(values), 2, replace=False)]
    return [be.sum(be.square(flat)), flat, be.sum(x, axis=(1, 2, 3)), *chosen]


@pytest.mark.parametrize("seed", range(60))
def test_random_networks_and_their_gradients_have_the_values_that_they_have_in_float64(cpu: Backend, seed: int) -> None:
    found: list[list[Any]] = []
    for dtype in ("float32", "float64"):
        leaf = Leaves(cpu, dtype)
        values = random_network(cpu, leaf, seed)
        gradients = Autodiff(values[0], cpu).get_grad_op_tree(leaf.tensors)
        targets = [cpu.empty(v.shape, dtype=dtype) for v in (*values, *gradients)]
        cpu.assign(targets, [*values, *gradients])
        found.append([t.get() for t in targets])
    largest = max(1.0, *(np.abs(x).max() for x in found[1]))  # some gradients are 0 but for rounding errors
    for x, expected in zip(*found, strict=True):
        np.testing.assert_allclose(x, expected, rtol=2e-3, atol=1e-5 * largest)


def step_of(be: Backend, leaf: Leaves) -> list[Any]:
    """Return the cost of two convolutions and its gradients by the filters, and biases."""
    x, f, b, g = leaf(8, 16, 16, 4), leaf(8, 3, 3, 8), leaf(8, 1, 1, 1), leaf(8, 3, 3, 8)
    y = be.pool(be.maximum(be.conv(x, f, padding=1) + b, 0), 2)
    z = be.sum(be.square(be.batch_norm(be.conv(y, g, padding=1), leaf(8, 1))))
    return [z, *Autodiff(z, be).get_grad_op_tree([f, b, g])]


def test_a_training_step_reorders_only_images_that_other_ops_read(cpu: Backend) -> None:
    plan = cpu.plan(*step_of(cpu, Leaves(cpu, "float32")))
    assert ops_of(plan).count("reorder") == 1  # of the inputs
    domains = {stage.domain for stage in plan.stages if stage.kind == "fused"}
    assert {(8, 1024), (4, 8, 8, 8)} <= domains  # rows of 128 pixels, and images
    assert not any(domain in domains for domain in [(8, 16, 16, 4), (8, 8, 8, 4)])
    assert "(4, 16, 16, 8): conv" in str(plan)
    assert not cpu.plan(*step_of(cpu, Leaves(cpu, "float64"))).reordered
    leaf = Leaves(cpu, "float32")
    images = cpu.conv(cpu.conv(leaf(8, 8, 8, 4), leaf(8, 3, 3, 8)), leaf(8, 3, 3, 8))
    flat = cpu.reshape(images, (8, -1))
    assert ops_of(cpu.plan(cpu.dot(flat, flat.T), flat)).count("reorder") == 2  # and of the result


def test_a_result_of_one_axis_is_written_to_its_target_as_it_is(cpu: Backend) -> None:
    leaf = Leaves(cpu, "float32")
    images = cpu.conv(cpu.conv(leaf(8, 8, 8, 4), leaf(8, 3, 3, 8)), leaf(8, 3, 3, 8))
    sums = cpu.sum(images, axis=(1, 2, 3))
    expected = images.get().sum(axis=(1, 2, 3), keepdims=True)
    whole = cpu.zeros((8, 1, 1, 2))
    for target in (cpu.zeros((8, 1, 1, 1)), whole[:, :, :, 1:]):
        target[:] = sums
        np.testing.assert_allclose(target.get(), expected, rtol=1e-4, atol=1e-4)
    assert not whole.get()[..., 0].any()
    twice = [cpu.zeros((8, 1, 1, 1)), cpu.zeros((8, 1))]
    cpu.assign(twice, [sums, cpu.reshape(sums, (8, 1)) * 2])
    np.testing.assert_allclose(twice[1].get(), 2 * expected.reshape(8, 1), rtol=1e-4, atol=1e-4)
    assert ops_of(cpu.plan(sums)).count("reorder") == 1  # of the inputs


def test_one_convolution_is_left_to_its_primitive(cpu: Backend) -> None:
    leaf = Leaves(cpu, "float32")
    plan = cpu.plan(cpu.maximum(cpu.conv(leaf(4, 8, 8, 4), leaf(4, 3, 3, 4)), 0))
    assert not plan.reordered
    assert ops_of(plan) == ["conv", "maximum"]


def test_maxima_and_their_positions_are_computed_in_one_call(cpu: Backend) -> None:
    for shape in [(3, 8, 8, 4), (1, 8, 8, 4)]:
        x = cpu.array(np.random.default_rng(0).normal(size=shape))
        cost = cpu.sum(cpu.square(cpu.pool(x, 2)))
        (gradient,) = Autodiff(cost, cpu).get_grad_op_tree([x])
        plan = cpu.plan(cost, gradient)
        pairs = [stage for stage in plan.stages if plan.step_of(stage.steps[0]).op.name == "max_pool"]
        assert [plan.step_of(v).op.name for v in pairs[0].steps] == ["max_pool", "max_pool_indices"]
        blocks = x.get().reshape(shape[0], 4, 2, 4, 2, 4)
        largest = blocks.max(axis=(2, 4), keepdims=True)
        expected = np.where(blocks == largest, 2 * largest, 0).reshape(shape)
        np.testing.assert_allclose(gradient.get(), expected, rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_maxima_of_images_that_are_not_finite_are_those_of_NumPy(cpu: Backend, value: float) -> None:
    leaf = Leaves(cpu, "float32")
    x, f = leaf(4, 8, 8, 4), leaf(4, 1, 1, 4)
    x[1:2, 2:3, 5:6, 3:4] = value
    y = cpu.conv(x, f)
    pooled = cpu.conv(cpu.pool(y, 2), f)
    (gradient,) = Autodiff(cpu.sum(pooled), cpu).get_grad_op_tree([f])
    assert cpu.plan(pooled).reordered
    images = np.einsum("chwn,ck->khwn", x.get().astype(float), f.get()[:, 0, 0].astype(float))
    largest = images.reshape(4, 4, 2, 4, 2, 4).max(axis=(2, 4))
    expected = np.einsum("chwn,ck->khwn", largest, f.get()[:, 0, 0].astype(float))
    np.testing.assert_allclose(pooled.get(), expected, rtol=1e-3, atol=1e-4)
    assert not np.isfinite(gradient.get()).all()


def test_reorder_exchanges_the_first_and_the_last_axis() -> None:
    x = np.arange(24).reshape(2, 3, 4)
    np.testing.assert_array_equal(REORDER.run(np, x, axes=(2, 1, 0)), x.transpose(2, 1, 0))


def test_rows_hold_several_pixels_of_images_with_few_channels() -> None:
    assert rows_shape((64, 32, 32, 32)) == (2048, 1024)
    assert rows_shape((9, 31, 31, 12)) == (9 * 31, 31 * 12)
    assert rows_shape((64, 32, 32, 600)) is None
    assert rows_shape((2, 8, 8, 32)) == (4, 1024)


def test_ops_that_mix_pixels_and_samples_read_images_in_their_own_layout(
    cpu: Backend,
) -> None:
    leaf = Leaves(cpu, "float32")
    x, f, turned = leaf(4, 6, 6, 4), leaf(4, 3, 3, 4), leaf(4, 6, 4, 6).permute((0, 1, 3, 2))
    y = cpu.conv(cpu.conv(x, f, padding=1), f, padding=1)
    images = y.get()
    merged = cpu.reshape(y, (4, 6, 24, 1))
    integers = cpu.sum(cpu.astype(y * 10, "int32"), axis=(1, 2, 3))
    targets = [cpu.empty((4, 6, 24, 1)), cpu.empty((4, 1, 1, 1), dtype="int64"), cpu.empty(y.shape)]
    trees = [merged * 2 + leaf(4, 1, 1, 1) * 0, integers, cpu.maximum(y, 0) * turned]
    for target, tree in zip(targets, trees, strict=True):  # one by one, so that no other op reads the images
        assert cpu.plan(tree, out=target).reordered
        target[:] = tree
    np.testing.assert_allclose(targets[0].get(), 2 * images.reshape(4, 6, 24, 1), rtol=1e-5)
    expected = (images * 10).astype(int).sum(axis=(1, 2, 3), keepdims=True)
    assert np.abs(targets[1].get() - expected).max() <= 2  # roundings of numbers near an integer
    np.testing.assert_allclose(targets[2].get(), np.maximum(images, 0) * turned.get(), rtol=1e-4, atol=1e-5)
