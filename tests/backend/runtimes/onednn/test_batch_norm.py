"""batch_norm of NHWC images by oneDNN. The oracles are float64, which NumPy computes, and formulas in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from neonlite import Autodiff, Backend
from neonlite.backend import concurrency
from neonlite.backend.primitives.rows import NORMALIZED
from neonlite.backend.runtimes.onednn import bindings

pytestmark = pytest.mark.skipif(bindings.get_library() is None, reason=bindings.version_info())


def ops_of(plan: Any) -> list[str]:
    """Return the names of the ops that a plan computes, in order."""
    return [plan.step_of(v).op.name for stage in plan.stages for v in stage.steps]


def images(be: Backend, C: int = 16, dtype: str = "float32", loc: float = 0.0, N: int = 16, first: float = 0.5) -> Any:
    """Return the result of a convolution by the identity, of random images (C, 16, 16, N) with this first pixel."""
    values = np.random.default_rng(0).normal(loc, 1 + np.arange(C)[:, None, None, None] / C, (C, 16, 16, N))
    x, f = values.astype(np.float32), np.eye(C).reshape(C, 1, 1, C)
    x[0, 0, 0, 0] = first
    return be.conv(be.array(x, dtype=dtype), be.array(f, dtype=dtype))


def parameters(be: Backend, C: int = 16, dtype: str = "float32") -> list[Any]:
    """Return gamma and beta."""
    rng = np.random.default_rng(1)
    return [be.array(rng.normal(1, 0.5, (C, 1)).astype(np.float32), dtype=dtype) for _ in range(2)]


def step_of(be: Backend, dtype: str, network: Callable[..., Any]) -> tuple[Any, list[Any]]:
    """Return the plan of a network's cost, result and gradients, and their values."""
    x, (gamma, beta) = images(be, dtype=dtype), parameters(be, dtype=dtype)
    f = be.array(np.random.default_rng(2).normal(size=(16, 3, 3, 16)).astype(np.float32), dtype=dtype)
    y = network(be, x, gamma, beta)
    z = be.sum(be.square(be.conv(y, f, padding=1)))
    trees = [z, y, *Autodiff(z, be).get_grad_op_tree([x.left, gamma, beta])]
    return be.plan(*trees), [t.get() for t in be.evaluate(trees)]


NETWORKS: dict[str, Callable[..., Any]] = {
    "norm": lambda be, x, g, b: be.batch_norm(x, g, b),
    "norm and relu": lambda be, x, g, b: be.maximum(be.batch_norm(x, g, b, eps=1e-3), 0),
    "norm, relu of it, and itself": lambda be, x, g, b: (n := be.batch_norm(x, g, b)) + be.maximum(n, 0),
    "norm and a sum": lambda be, x, g, b: be.maximum(be.batch_norm(x, g, b) + x, 0),
    "norm and its statistics": lambda be, x, g, b: (
        be.batch_norm(x, g, b) + be.mean(x, axis=(1, 2, 3)) * be.var(x, axis=(1, 2, 3))
    ),
    "two norms of the same images": lambda be, x, g, b: be.batch_norm(x, g, b) * be.batch_norm(x, b, g),
    "another maximum": lambda be, x, g, b: be.maximum(be.batch_norm(x, g, b), 0.5),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_values_and_gradients_are_those_of_float64(cpu: Backend, name: str) -> None:
    (plan, found), (other, expected) = (step_of(cpu, dtype, NETWORKS[name]) for dtype in ("float32", "float64"))
    assert NORMALIZED.name in ops_of(plan)
    assert NORMALIZED.name not in ops_of(other)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5 * np.abs(y).max())


def test_relu_is_part_of_the_normalization(cpu: Backend) -> None:
    plan, _ = step_of(cpu, "float32", NETWORKS["norm and relu"])
    assert "maximum" not in ops_of(plan)
    plan, _ = step_of(cpu, "float32", NETWORKS["another maximum"])
    assert "maximum" in ops_of(plan)


def normalized(be: Backend, x: Any, relu: bool = True) -> list[Any]:
    """Return the normalized images, which another convolution reads, with relu or without, and their statistics."""
    C = x.shape[0]
    y = be.batch_norm(x, *parameters(be, C, x.info.dtype))
    y = be.maximum(y, 0) if relu else y
    z = be.sum(be.conv(y, be.ones((C, 1, 1, 2), dtype=x.info.dtype)))
    trees = [y, be.mean(x, axis=(1, 2, 3)), be.var(x, axis=(1, 2, 3)), z]
    assert (NORMALIZED.name in ops_of(be.plan(*trees))) == (x.info.dtype == "float32")
    return [t.get() for t in be.evaluate(trees)]


def test_a_result_that_is_also_evaluated_without_relu_has_both_values(cpu: Backend) -> None:
    x = images(cpu)
    n = cpu.batch_norm(x, *parameters(cpu))
    y = cpu.conv(cpu.maximum(n, 0), cpu.array(np.eye(16).reshape(16, 1, 1, 16)))
    found = [t.get() for t in cpu.evaluate([n, y, cpu.sum(cpu.square(y))])]
    np.testing.assert_array_equal(found[0], normalized(cpu, x, relu=False)[0])
    np.testing.assert_allclose(found[1], np.maximum(found[0], 0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_relu_propagates_nan_of_images_that_are_not_finite(cpu: Backend, value: float) -> None:
    found = normalized(cpu, cpu.conv(images(cpu), cpu.array(np.full((16, 1, 1, 16), value))))[0]
    assert np.isnan(found).all()
    gamma, beta = parameters(cpu)
    x, values = images(cpu), beta.get()
    values[3] = np.nan
    beta[:] = values
    y = cpu.maximum(cpu.batch_norm(x, gamma, beta), 0)
    trees = [y, cpu.sum(cpu.conv(y, cpu.ones((16, 1, 1, 2))))]
    assert "maximum" not in ops_of(cpu.plan(*trees))
    found = cpu.evaluate(trees)[0].get()
    np.testing.assert_array_equal(np.isnan(found).all(axis=(1, 2, 3)), np.arange(16) == 3)
    assert np.nanmin(found) == 0
    assert np.isnan(found).sum() == found[0].size


@pytest.mark.parametrize("loc", [0, 100, 10000])
def test_statistics_are_precise_whatever_the_mean_is(cpu: Backend, loc: float) -> None:
    x = images(cpu, loc=loc, N=64, first=loc)
    _, mean, variance, _ = normalized(cpu, x, relu=False)
    values, axes = x.left.get().astype(np.float64), (1, 2, 3)
    np.testing.assert_allclose(mean, values.mean(axes, keepdims=True), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(variance, values.var(axes, keepdims=True), rtol=2e-6 + 1e-8 * loc)


def test_results_do_not_depend_on_the_number_of_threads(cpu: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for threads in (1, 2):
        monkeypatch.setattr(concurrency, "get_num_threads", lambda threads=threads: threads)
        found.append(normalized(cpu, images(cpu, N=128)))
    for x, y in zip(*found, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("C", [3, 20, 24])
def test_any_number_of_channels_has_the_values_of_float64(cpu: Backend, C: int) -> None:
    found = [normalized(cpu, images(cpu, C, dtype, N=48)) for dtype in ("float32", "float64")]
    for x, y in zip(*found, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5 * np.abs(y).max())


def test_images_that_no_convolution_computes_are_normalized_by_stages(cpu: Backend) -> None:
    x, y = images(cpu), images(cpu, loc=1)
    plan = cpu.plan(cpu.sum(cpu.conv(cpu.batch_norm(x + y, *parameters(cpu)), cpu.zeros((16, 1, 1, 2)))))
    assert NORMALIZED.name not in ops_of(plan)
