"""Batch normalization by oneDNN equals the formula, and its errors those of the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.onednn_primitives import counts, needs

from neonlite import Backend
from neonlite.backend.planning.layout import ImageShape, layout_of
from neonlite.backend.runtimes import load_runtime
from neonlite.backend.runtimes.onednn.products import OneDNNBatchNorm


@needs
@counts
def test_nhwc_images_are_normalized_by_the_formula(count: int) -> None:
    rng, norms = np.random.default_rng(count), OneDNNBatchNorm(load_runtime("cpu"))
    for _ in range(count):
        form = ImageShape(*(int(n) for n in rng.integers(1, (70, 50, 12))))
        eps = float(rng.choice([1e-5, 1e-3, 0.1]))
        n, shape = form.pixels * form.batch_size, (form.pixels * form.batch_size, form.channels)
        x, e = (rng.normal(rng.normal(), 3, shape).astype(np.float32) for _ in "xe")
        gamma, beta, given, by_gamma, by_beta, mean = rng.normal(size=(6, form.channels)).astype(np.float32)
        var, y = np.empty_like(mean), np.empty_like(x)
        assert norms.can_normalize(form, eps)
        norms.batch_norm_fprop(form, x, [gamma, beta, mean, var], y, eps, inference=False)
        wide, error = x.astype(float), e.astype(float)
        inv = 1 / np.sqrt(wide.var(axis=0) + eps)
        hat = (wide - wide.mean(axis=0)) * inv
        near = {"rtol": 1e-4, "atol": 1e-4 * inv.max()}
        np.testing.assert_allclose(mean, wide.mean(axis=0), **near)
        np.testing.assert_allclose(var, wide.var(axis=0), **near)
        np.testing.assert_allclose(y, gamma * hat + beta, **near)
        norms.batch_norm_bprop(form, x, e, [mean, var, gamma, by_gamma, by_beta], e, eps)  # in place
        np.testing.assert_allclose(by_gamma, (hat * error).sum(axis=0), rtol=1e-4, atol=1e-5 * n * inv.max())
        np.testing.assert_allclose(by_beta, error.sum(axis=0), rtol=1e-4, atol=1e-5 * n)
        wanted = (error - (hat * (hat * error).mean(axis=0) + error.mean(axis=0))) * gamma * inv
        np.testing.assert_allclose(e, wanted, rtol=1e-3, atol=1e-4 * max(1, inv.max() ** 2))
        norms.batch_norm_fprop(form, x, [gamma, beta, given, var], y, eps, inference=True)
        np.testing.assert_allclose(y, gamma * (wide - given) / np.sqrt(var.astype(float) + eps) + beta, **near)


@needs
@counts
def test_chwn_features_are_normalized_by_the_formula(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    rng, norms = np.random.default_rng(count), OneDNNBatchNorm(load_runtime("cpu"))
    for _ in range(count):
        monkeypatch.setattr(
            "neonlite.backend.runtimes.onednn.products.ROW_BLOCK_SIZE", int(rng.choice([1, 5000, 1 << 19]))
        )
        shape = tuple(int(n) for n in rng.integers((1, 2), (50, 3000)))
        eps, offset, rho = float(rng.choice([1e-5, 1e-3, 0.1])), rng.normal(0, 30), float(rng.random())
        x, e = (rng.normal(size, 3, shape).astype(np.float32) for size in (offset, 1))
        gamma, beta, gmean, gvar = rng.normal(size=(4, shape[0], 1)).astype(np.float32)
        (mean, var, by_gamma, by_beta), y = np.full((4, shape[0], 1), np.nan, np.float32), np.full_like(x, np.nan)
        on_the_run = gmean.astype(float), gvar.astype(float)
        assert norms.row_norm_fprop(x, [mean, var, gmean, gvar, gamma, beta], y, eps, rho)
        wide, error, over = x.astype(float), e.astype(float), {"axis": 1, "keepdims": True}
        ulps = 16 * np.finfo("float32").eps * np.abs(wide).max()
        np.testing.assert_allclose(mean, wide.mean(**over), rtol=0, atol=ulps)
        np.testing.assert_allclose(var, wide.var(**over), rtol=1e-5, atol=ulps**2)
        np.testing.assert_allclose(gmean, rho * on_the_run[0] + (1 - rho) * mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(gvar, rho * on_the_run[1] + (1 - rho) * var, rtol=1e-5, atol=1e-6)
        inv = 1 / np.sqrt(wide.var(**over) + eps)
        hat, near = (wide - wide.mean(**over)) * inv, ulps * inv.max()
        np.testing.assert_allclose(y, gamma * hat + beta, rtol=1e-5, atol=near * np.abs(gamma).max() + 1e-6)
        d = e if rng.random() < 0.5 else np.full_like(e, np.nan)
        assert norms.row_norm_bprop(x, e, [by_gamma, by_beta, mean, var, gamma], d, eps)
        absolute = np.abs(error).sum(**over)
        assert (np.abs(by_beta - error.sum(**over)) <= 1e-5 * absolute).all()
        assert (np.abs(by_gamma - (hat * error).sum(**over)) <= (1e-5 * np.abs(hat).max() + near) * absolute).all()
        wanted = (error - (hat * (hat * error).mean(**over) + error.mean(**over))) * gamma * inv
        scale = np.abs(error).max() * np.abs(gamma).max() * inv.max()
        np.testing.assert_allclose(d, wanted, rtol=1e-4, atol=(1e-5 + near) * (1 + np.abs(hat).max() ** 2) * scale)


@needs
def test_rows_of_one_number_are_left_to_op_trees(cpu: Backend) -> None:
    x, e, d, y = (cpu.array(np.arange(5.0) - n).reshape(5, 1) for n in range(4))
    columns = [cpu.ones((5, 1)) for _ in range(6)]
    cpu.compound_fprop_bn(x, *columns, y, 1e-3, 0.9)
    np.testing.assert_allclose(y.get(), 1)
    cpu.compound_bprop_bn(d, *columns[:2], e, x, *columns[2:5], 1e-3)
    np.testing.assert_allclose(columns[1].get(), e.get())


@needs
@pytest.mark.parametrize("shared", ["y", "xsum", "gamma", "gvar", None])
def test_a_batch_is_normalized_by_one_dnn_unless_tensors_share_memory(
    cpu: Backend, monkeypatch: pytest.MonkeyPatch, shared: str | None
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        cpu.primitives, "row_norm_fprop", lambda *args: asked.append(args)
    )  # returns None: not supported
    x = cpu.array(np.random.default_rng(0).normal(size=(3, 8)))
    columns = {name: cpu.ones((3, 1)) for name in ("xsum", "xvar", "gmean", "gvar", "gamma", "beta")}
    y = x if shared == "y" else cpu.empty((3, 8))
    if shared == "xsum":
        columns["xsum"] = y.reshape(-1, 1)[:3]
    elif shared == "gamma":
        columns["gamma"] = columns["xvar"]
    elif shared == "gvar":
        columns["gvar"] = columns["beta"]
    before = x.get().astype(float)
    cpu.compound_fprop_bn(x, *columns.values(), y, 1e-3, 0.9)
    assert bool(asked) == (shared is None)
    hat = (before - before.mean(axis=1, keepdims=True)) / np.sqrt(before.var(axis=1, keepdims=True) + 1e-3)
    if shared in (None, "y"):
        np.testing.assert_allclose(y.get(), hat + 1, rtol=1e-5, atol=1e-5)


@needs
@pytest.mark.parametrize("has_output", [False, True])
@pytest.mark.parametrize("locked", range(5))
def test_a_batch_is_not_normalized_into_what_is_read_only(cpu: Backend, locked: int, has_output: bool) -> None:
    before = np.arange(24, dtype=np.float32).reshape(3, 8) + 1
    arrays = [before.copy(), *(before[:, :1].copy() for _ in range(4))]
    arrays[locked].flags.writeable = False
    y, first, second, third, fourth = map(cpu.from_dlpack, arrays)
    x, error, gamma, beta = cpu.array(before), cpu.array(before), cpu.ones((3, 1)), cpu.ones((3, 1))
    if has_output:
        as_they_are = cpu.conv_layer("float32", 8, 3, 3)
        x = cpu.fprop_conv(as_they_are, x, cpu.array(np.eye(3)), cpu.empty(x.shape))
        y = y if locked == 0 else cpu.empty(x.shape)  # the first one is exported, so it has no layout cache
        assert layout_of(x) == "NHWC"
    with pytest.raises(ValueError, match="read-only"):
        cpu.compound_fprop_bn(x, first, second, third, fourth, gamma, beta, y, 1e-3, 0.9)
    if locked < 3:
        with pytest.raises(ValueError, match="read-only"):
            cpu.compound_bprop_bn(y, first, second, error, x, beta, beta, gamma, 1e-3)
    np.testing.assert_array_equal(arrays[locked], before[:, : arrays[locked].shape[1]])


@needs
@pytest.mark.parametrize("shared", ["x", "grad_gamma", "some", "delta_in", None])
def test_errors_of_a_batch_are_those_of_one_dnn_unless_tensors_share_memory_but_in_place(
    cpu: Backend, monkeypatch: pytest.MonkeyPatch, shared: str | None
) -> None:
    asked: list[Any] = []
    plain = cpu.primitives.row_norm_bprop
    monkeypatch.setattr(cpu.primitives, "row_norm_bprop", lambda *args: asked.append(args) or plain(*args))
    rng = np.random.default_rng(0)
    x, buffer = cpu.array(rng.normal(size=(3, 8))), cpu.array(rng.normal(size=(4, 8)))
    error = buffer[:3]
    mean, var, gamma, by_gamma, by_beta = (cpu.array(rng.random((3, 1))) for _ in range(5))
    out = {"x": x, "some": buffer[1:], "delta_in": error}.get(str(shared), cpu.empty((3, 8)))
    by_gamma = gamma if shared == "grad_gamma" else by_gamma
    hat = (x.get() - mean.get()) / np.sqrt(var.get() + 1e-3)
    e, factor = error.get(), gamma.get() / np.sqrt(var.get() + 1e-3)
    sums = [np.sum(values, axis=1, keepdims=True) for values in (hat * e, e)]
    cpu.compound_bprop_bn(out, by_gamma, by_beta, error, x, mean, var, gamma, 1e-3)
    assert bool(asked) == (shared in (None, "delta_in"))
    np.testing.assert_allclose(by_gamma.get(), sums[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(by_beta.get(), sums[1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(out.get(), (e - (hat * sums[0] + sums[1]) / 8) * factor, rtol=1e-4, atol=1e-5)
