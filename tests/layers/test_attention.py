"""Attention and transformer layers against loops over steps, numerical gradients, torch and invariants;
also the position encodings of neonlite/layers/attention.py."""

from __future__ import annotations

import json
import math
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from helpers.networks import allocate
from helpers.parametrize import thinned

from neonlite import Autodiff, Backend, gen_backend
from neonlite.initializers import Constant, Gaussian, GlorotUniform
from neonlite.layers import (
    Affine,
    GeneralizedCost,
    GeneralizedCostMask,
    Layer,
    LayerNorm,
    LookupTable,
    MultiHeadAttention,
    PositionalEncoding,
    PositionEmbedding,
    Sequential,
    TransformerBlock,
    attention,
    check_layer,
)
from neonlite.models import Model
from neonlite.models.training import GradientProgram
from neonlite.optimizers import Adam
from neonlite.transforms import CrossEntropyMulti, MeanSquared, Rectlin, Softmax

Array = np.ndarray[Any, Any]
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
G, B = Gaussian(scale=0.5), Gaussian(scale=0.3)
STEPS, SEQUENCES, HEADS = (1, 2, 7, 64), (1, 4), (1, 2, 4)


# --- reference --------------------------------------------------------------------------------------------------------


def attend(query: Array, keys: list[Array], values: list[Array], allowed: list[bool]) -> Array:
    """Return the softmax-weighted mean of values for one query, computed key by key."""
    scores = [math.exp(float(query @ key) / math.sqrt(len(query))) for key in keys]
    total = sum(w for w, is_allowed in zip(scores, allowed, strict=True) if is_allowed)
    actual = np.zeros_like(values[0])
    for w, value, is_allowed in zip(scores, values, allowed, strict=True):
        if is_allowed:
            actual += w / total * value
    return actual


def textbook(layer: Any, x: Array, N: int, mask: Array | None = None) -> Array:
    """Return the outputs of a layer, sequence by sequence, step by step and head by head."""
    W = {name: t.get().astype(float) for name, t in layer.persistent_tensors.items()}
    (F, T), d = layer.in_shape, layer.in_shape[0] // layer.heads
    y = np.empty(x.shape)
    for n in range(N):
        steps = [W["W_qkv"] @ x[:, t * N + n] + W.get("b_qkv", np.zeros((3 * F, 1)))[:, 0] for t in range(T)]
        for t in range(T):
            allowed = [(s <= t or not layer.causal) and (mask is None or mask[0, s * N + n] == 1) for s in range(T)]
            mixed = np.concatenate(
                [
                    attend(
                        steps[t][h * d : (h + 1) * d],
                        [s[F + h * d : F + (h + 1) * d] for s in steps],
                        [s[2 * F + h * d : 2 * F + (h + 1) * d] for s in steps],
                        allowed,
                    )
                    for h in range(layer.heads)
                ]
            )
            y[:, t * N + n] = W["W_out"] @ mixed + W.get("b_out", np.zeros((F, 1)))[:, 0]
    return y


def data(be: Backend, F: int, columns: int, seed: int = 0) -> Any:
    return be.array(np.random.default_rng(seed).normal(size=(F, columns)))


def by_sequence(x: Any, N: int) -> Array:
    """Return columns t N + n as torch has them: (N, T, F)."""
    return x.get().reshape(x.shape[0], -1, N).transpose(2, 1, 0).copy()


def by_step(x: Any) -> Array:
    """Return (N, T, F) as columns t N + n."""
    return np.asarray(x).transpose(2, 1, 0).reshape(x.shape[2], -1)


# --- the function ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
@pytest.mark.parametrize(("T", "S", "d", "e"), [(1, 1, 1, 1), (3, 5, 4, 2), (5, 3, 1, 4)])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_the_softmax_weighted_mean_of_values(be64, shape, T, S, d, e, masked):
    rng = np.random.default_rng(1)
    q, k, v = (rng.normal(size=(*shape, *size)) for size in ((T, d), (S, d), (S, e)))
    mask = rng.integers(0, 2, size=(T, S)).astype(float) if masked else np.ones((T, S))
    given = {"mask": be64.array(mask)} if masked else {}
    actual = attention(*map(be64.array, (q, k, v)), **given).asnumpyarray()
    assert actual.shape == (*shape, T, e)
    for at in np.ndindex(*shape, T):
        allowed = [bool(x) for x in mask[at[-1]]]
        expected = attend(q[at], list(k[at[:-1]]), list(v[at[:-1]]), allowed)
        np.testing.assert_allclose(actual[at], expected, rtol=1e-10, atol=1e-12)


def test_a_fully_masked_query_gets_zeros_and_no_gradient(be64):
    q, k, v = (data(be64, 3, 4, seed) for seed in range(3))
    mask = be64.array([[0, 0, 0], [1, 0, 0], [1, 1, 1]])
    tree = attention(q, k, v, mask)
    np.testing.assert_array_equal(tree.asnumpyarray()[0], 0)
    dq, dk, dv = Autodiff(tree, be64).get_grad_asnumpyarray([q, k, v])
    np.testing.assert_array_equal(dq[0], 0)
    np.testing.assert_allclose(dq[1], 0, atol=1e-15)  # the softmax of one key is constant
    assert abs(dq[2]).min() > 1e-3
    assert np.isfinite(dk).all()
    assert np.isfinite(dv).all()


def test_large_scores_do_not_overflow_and_masked_ones_do_not_count(be):
    q, k = be.array([[300.0]]), be.array([[300.0], [1.0], [0.5]])
    v, mask = be.array([[1.0], [2.0], [3.0]]), be.array([[0.0, 1.0, 1.0]])
    assert attention(q, k, v).asnumpyarray()[0, 0] == 1
    assert attention(q, k, v, mask).asnumpyarray()[0, 0] == 2


@needs_torch
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_are_those_of_torch(be64, masked):
    import torch

    rng = np.random.default_rng(2)
    arrays = [rng.normal(size=(2, 3, *size)) for size in ((5, 4), (7, 4), (7, 6), (5, 6))]
    mask = rng.integers(0, 2, size=(3, 5, 7)) | (np.arange(7) == 2)
    *tensors, error = map(be64.array, arrays)
    tree = attention(*tensors, *([be64.array(mask)] if masked else []))
    *torch_inputs, e = (torch.tensor(x, requires_grad=True) for x in arrays)
    options = {"attn_mask": torch.tensor(mask == 1)} if masked else {}
    y = torch.nn.functional.scaled_dot_product_attention(*torch_inputs, **options)
    y.backward(e.detach())
    np.testing.assert_allclose(tree.asnumpyarray(), y.detach(), rtol=1e-10, atol=1e-12)
    for got, expected in zip(Autodiff(tree, be64, error).get_grad_asnumpyarray(tensors), torch_inputs, strict=True):
        np.testing.assert_allclose(got, expected.grad, rtol=1e-10, atol=1e-12)


# --- the layer -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("T", "N", "heads", "causal"), thinned(2, STEPS, SEQUENCES, HEADS, [False, True]))
def test_heads_match_the_textbook_loops(be64, T, N, heads, causal):
    layer = allocate(be64, MultiHeadAttention(heads, G, causal, bias=B), (8, T), N)
    x = data(be64, 8, T * N)
    expected = textbook(layer, x.get(), N)
    np.testing.assert_allclose(layer.fprop(x).get(), expected, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(layer.fprop(x, inference=True).get(), expected, rtol=1e-10, atol=1e-10)
    sums = layer.attention_weights.get().sum(axis=2)
    np.testing.assert_allclose(sums, np.ones((heads, N, T)), rtol=1e-12)


@needs_torch
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("N", SEQUENCES)
@pytest.mark.parametrize("T", STEPS)
def test_outputs_and_gradients_are_those_of_torch(be64, T, N, heads, causal):
    import torch

    layer = allocate(be64, MultiHeadAttention(heads, G, causal, bias=B), (8, T), N)
    reference = torch.nn.MultiheadAttention(8, heads, batch_first=True, dtype=torch.float64)
    torch_params = {
        "W_qkv": reference.in_proj_weight,
        "W_out": reference.out_proj.weight,
        "b_qkv": reference.in_proj_bias,
    }
    torch_params["b_out"] = reference.out_proj.bias
    with torch.no_grad():
        for name, p in torch_params.items():
            p.copy_(torch.tensor(getattr(layer, name).get().reshape(tuple(p.shape))))
    x, e = data(be64, 8, T * N), data(be64, 8, T * N, seed=1)
    tx = torch.tensor(by_sequence(x, N), requires_grad=True)
    later = torch.triu(torch.ones(T, T, dtype=torch.bool), 1) if causal else None
    y, _ = reference(tx, tx, tx, need_weights=False, attn_mask=later)
    y.backward(torch.tensor(by_sequence(e, N)))
    near = {"rtol": 1e-10, "atol": 1e-10}
    np.testing.assert_allclose(layer.fprop(x).get(), by_step(y.detach()), **near)
    np.testing.assert_allclose(layer.bprop(e).get(), by_step(tx.grad), **near)
    for name, p in torch_params.items():
        gradient = getattr(layer, f"d{name}").get()
        np.testing.assert_allclose(gradient, p.grad.numpy().reshape(gradient.shape), err_msg=name, **near)


@pytest.mark.parametrize(
    ("case", "causal", "bias", "keep"),
    thinned(
        3,
        [(1, (3, 4), 2), (2, (4, 3), 3), (4, (4, 1), 2), (2, (2, 5), 1)],
        [False, True],
        [None, Constant(0)],
        [1, 0.6],
    ),
)
def test_gradients_match_the_formula_and_numerical_gradients(cpu, case, causal, bias, keep):
    heads, shape, N = case
    report = check_layer(MultiHeadAttention(heads, G, causal, keep, bias), shape, batch_size=N, tolerance=1e-7)
    assert report.ok, report


@pytest.mark.parametrize("offsets", [None, [0, 2]])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_decays_with_the_alibi_slope(be64, causal, offsets):
    alibi_slopes, T, N = [0.0, 0.5], 5, 3
    x = data(be64, 4, T * N)
    flat, sloped = (
        allocate(be64, MultiHeadAttention(2, G, causal, alibi_slopes=s, alibi_offsets=s and offsets), (4, T), N)
        for s in (None, alibi_slopes)
    )
    sloped.W_qkv[:] = flat.W_qkv
    for layer in (flat, sloped):
        layer.fprop(x)
    for h, (slope, lag) in enumerate(zip(alibi_slopes, offsets or [0, 0], strict=True)):
        for t in range(T):
            expected = flat.attention_weights.get()[h, :, :, t] * np.exp(-slope * abs(t - np.arange(T) - lag))
            expected /= expected.sum(axis=1, keepdims=True)
            np.testing.assert_allclose(sloped.attention_weights.get()[h, :, :, t], expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_with_alibi_match_numerical_gradients(cpu, causal):
    layer = MultiHeadAttention(2, G, causal, 0.6, Constant(0), alibi_slopes=[1.0, 0.25], alibi_offsets=[2, 0])
    report = check_layer(layer, (4, 5), batch_size=3, tolerance=1e-7)
    assert report.ok, report


def test_alibi_slopes_and_offsets_need_one_value_per_head():
    with pytest.raises(ValueError, match="look: expected one number for each head, 2 in all, for alibi_slopes, got"):
        MultiHeadAttention(2, G, alibi_slopes=[1, 2, 3], name="look")
    with pytest.raises(ValueError, match="look: expected one number for each head, 2 in all, for alibi_offsets, got"):
        MultiHeadAttention(2, G, alibi_slopes=[1, 2], alibi_offsets=[1], name="look")
    with pytest.raises(
        ValueError, match="look: expected alibi_slopes together with alibi_offsets, got alibi_offsets alone"
    ):
        MultiHeadAttention(2, G, alibi_offsets=[1, 2], name="look")


@pytest.mark.long
def test_gradients_of_one_and_two_blocks_match_numerical_gradients(cpu):
    for blocks, batch_size in ((1, 2), (2, 1)):
        net = [TransformerBlock(2, 2, 3, G, causal=True, keep=0.8) for _ in range(blocks)]
        report = check_layer(Sequential([PositionalEncoding(), net, LayerNorm()]), (2, 3), batch_size=batch_size)
        assert report.ok, report


def test_sequences_are_independent(be):
    N, T = 3, 5
    layer = allocate(be, MultiHeadAttention(2, G, bias=B), (4, T), N)
    x, e = data(be, 4, T * N), data(be, 4, T * N, seed=1)
    y, dx = layer.fprop(x).get(), layer.bprop(e).get()
    turn = np.array([[t * N + n for n in (2, 0, 1)] for t in range(T)]).ravel()
    np.testing.assert_allclose(layer.fprop(be.array(x.get()[:, turn])).get(), y[:, turn], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(layer.bprop(be.array(e.get()[:, turn])).get(), dx[:, turn], rtol=1e-5, atol=1e-6)


def test_a_causal_layer_ignores_later_steps(be):
    N, T, now = 2, 6, 3
    layer = allocate(be, MultiHeadAttention(2, G, causal=True), (4, T), N)
    x, other, e = data(be, 4, T * N), data(be, 4, T * N, seed=1), data(be, 4, T * N, seed=2)
    y = layer.fprop(x).get()
    x[:, now * N :] = other[:, now * N :]
    z = layer.fprop(x).get()
    np.testing.assert_array_equal(z[:, : now * N], y[:, : now * N])
    assert abs(z - y)[:, now * N :].min() > 0
    e[:, now * N :] = 0
    np.testing.assert_array_equal(layer.bprop(e).get()[:, now * N :], 0)


# --- sequences of unequal lengths ------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_padding_steps_are_not_attended_to(be64, causal, left):
    lengths, T = [5, 2, 1, 0], 5
    N = len(lengths)
    layer = allocate(be64, MultiHeadAttention(2, G, causal, bias=B), (4, T), N)
    present = np.array([[t >= T - n if left else t < n for n in lengths] for t in range(T)], float).reshape(1, -1)
    layer.mask = be64.array(present)
    x, e = data(be64, 4, T * N), data(be64, 4, T * N, seed=1)
    e[:] = e * layer.mask
    y, dx, dW = layer.fprop(x).get(), layer.bprop(e).get(), layer.dW_qkv.get()
    np.testing.assert_allclose(y, textbook(layer, x.get(), N, present), rtol=1e-10, atol=1e-10)
    np.testing.assert_array_equal(dx[:, present[0] == 0], 0)
    total = np.zeros_like(dW)
    for n, length in enumerate(lengths):
        if length:
            single = allocate(be64, MultiHeadAttention(2, G, causal, bias=B), (4, length), 1)
            single.set_params(layer.persistent_tensors)
            at = np.flatnonzero(present[0].reshape(T, N)[:, n]) * N + n
            np.testing.assert_allclose(single.fprop(be64.array(x.get()[:, at])).get(), y[:, at], rtol=1e-10, atol=1e-10)
            back = single.bprop(be64.array(e.get()[:, at])).get()
            np.testing.assert_allclose(dx[:, at], back, rtol=1e-10, atol=1e-10)
            total += single.dW_qkv.get()
    np.testing.assert_allclose(dW, total, rtol=1e-10, atol=1e-10)


def test_gradients_with_a_mask_match_the_formula(be64):
    layer = allocate(be64, MultiHeadAttention(2, G, causal=True, keep=0.7, bias=B), (4, 4), 3)
    layer.mask = be64.array([[0, 1, 1, 1, 1, 0, 1, 0, 0, 0, 0, 1]])
    x, e = data(be64, 4, 12), data(be64, 4, 12, seed=1)
    actual = [layer.fprop(x).get(), *(t.get() for t in (layer.bprop(e), *layer.gradients))]
    tree = layer.tree
    expected = Autodiff(tree, be64, e).get_grad_asnumpyarray([x, *layer.parameters])
    for a, b in zip(actual, [tree.asnumpyarray(), *expected], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_a_masked_cost_and_layer_train_as_without_padding(be64):
    """A sequence of 3 steps and the same padded to 5 yield the same gradients."""
    actual = []
    for T in (3, 5):
        be64.rng_reset()
        net = allocate(be64, TransformerBlock(4, 2, 6, G, name=f"block{T}"), (4, T), 1)
        x, t = data(be64, 4, 5)[:, :T], data(be64, 4, 5, seed=1)[:, :T]
        x, t, mask = be64.array(x), be64.array(t), be64.array([[1, 1, 1, 0, 0][:T]])
        for layer in net.leaves():
            if isinstance(layer, MultiHeadAttention):
                layer.mask = mask
        cost = GeneralizedCostMask(MeanSquared())
        cost.initialize(net)
        net.bprop(cost.get_errors(net.fprop(x), (t, mask)))
        actual.append([g.get() for g in net.gradients])
    for a, b in zip(*actual, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


# --- other options ---------------------------------------------------------------------------------------------------


def test_attention_dropout_applies_in_training_only_and_rescales(be):
    T, N = 40, 5
    layer = allocate(be, MultiHeadAttention(2, G, keep=0.75), (4, T), N)
    x = data(be, 4, T * N)
    layer.fprop(x)
    dropout_mask = layer.random_numbers[0].get()
    assert set(np.unique(dropout_mask)) == {0, 1}
    assert abs(dropout_mask.mean() - 0.75) < 0.02
    layer.fprop(x)
    assert (layer.random_numbers[0].get() != dropout_mask).any()
    plain = allocate(be, MultiHeadAttention(2, G), (4, T), N)
    plain.set_params(layer.persistent_tensors)
    np.testing.assert_array_equal(layer.fprop(x, inference=True).get(), plain.fprop(x).get())
    drawn = np.array([layer.fprop(x).get() for _ in range(300)])
    off = abs(drawn.mean(axis=0) - plain.outputs.get())
    assert (off < 6 * drawn.std(axis=0) / math.sqrt(len(drawn)) + 1e-3).all()


def test_alpha_and_beta_scale_and_add(be64):
    layer = allocate(be64, MultiHeadAttention(2, G, bias=B), (4, 3), 2)
    x, e = data(be64, 4, 6), data(be64, 4, 6, seed=1)
    y, dx = layer.fprop(x).get(), layer.bprop(e).get()
    np.testing.assert_allclose(layer.fprop(x, beta=0.5).get(), 1.5 * y, rtol=1e-12)
    np.testing.assert_allclose(layer.bprop(e, alpha=2).get(), 2 * dx, rtol=1e-12)
    np.testing.assert_allclose(layer.bprop(e, alpha=3, beta=0.5).get(), 4 * dx, rtol=1e-12)


def test_gradients_accumulate_if_requested(be64):
    layer = MultiHeadAttention(2, G, bias=B)
    be64.bsz = 2
    layer.configure((4, 3))
    layer.allocate(accumulate_updates=True)
    x, e = data(be64, 4, 6), data(be64, 4, 6, seed=1)
    layer.fprop(x)
    assert layer.bprop(e) is None  # a first layer
    once = [g.get() for g in layer.gradients]
    layer.set_acc_on(True)
    layer.bprop(e)
    for a, b in zip(layer.gradients, once, strict=True):
        np.testing.assert_allclose(a.get(), 2 * b, rtol=1e-12)


@pytest.mark.parametrize("change", ["batch", "steps", "both"])
def test_other_sizes_give_the_results_of_a_new_layer(be64, change):
    T, N = (4 if change == "batch" else 7), (5 if change == "steps" else 2)

    def layers():
        return [PositionEmbedding(9, G), TransformerBlock(4, 2, 6, G, causal=True, keep=0.9)]

    net, fresh = allocate(be64, layers(), (4, 4), 5), None
    net.bprop(net.fprop(data(be64, 4, 20)))
    if N != 5:
        net.set_batch_size(N)
    if T != 4:
        net.set_seq_len(T)
    x, e = data(be64, 4, T * N, seed=2), data(be64, 4, T * N, seed=3)
    state = be64.rng_get_state()
    y, dx = net.fprop(x).get(), net.bprop(e).get()
    fresh = allocate(be64, layers(), (4, T), N)
    for a, b in zip(fresh.parameters, net.parameters, strict=True):
        a[:] = b
    be64.rng_set_state(state)
    np.testing.assert_allclose(y, fresh.fprop(x).get(), rtol=1e-12)
    np.testing.assert_allclose(dx, fresh.bprop(e).get(), rtol=1e-10, atol=1e-12)
    for a, b in zip(net.gradients, fresh.gradients, strict=True):
        np.testing.assert_allclose(a.get(), b.get(), rtol=1e-10, atol=1e-12)


# --- positions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("F", "T", "N"), [(6, 5, 3), (1, 4, 2), (5, 1, 1), (8, 64, 2)])
def test_positions_are_sines_of_growing_wavelength(be64, F, T, N):
    layer = allocate(be64, PositionalEncoding(), (F, T), N)
    x = data(be64, F, T * N)
    y = layer.fprop(x).get()
    for i, t, n in np.ndindex(F, T, N):
        angle = t / 10000 ** ((i // 2 * 2) / F)
        expected = x.get()[i, t * N + n] + (math.sin(angle) if i % 2 == 0 else math.cos(angle))
        assert y[i, t * N + n] == pytest.approx(expected, rel=1e-12, abs=1e-12)
    np.testing.assert_array_equal(layer.bprop(x).get(), x.get())


def test_position_embeddings_add_one_column_per_step(be64):
    F, T, N, steps = 3, 4, 2, 6
    layer = allocate(be64, PositionEmbedding(steps, G), (F, T), N)
    x, e = data(be64, F, T * N), data(be64, F, T * N, seed=1)
    y, dx = layer.fprop(x).get(), layer.bprop(e).get()
    for t, n in np.ndindex(T, N):
        np.testing.assert_allclose(y[:, t * N + n], x.get()[:, t * N + n] + layer.W.get()[:, t], rtol=1e-12)
    expected = np.zeros((F, steps))
    for t, n in np.ndindex(T, N):
        expected[:, t] += e.get()[:, t * N + n]
    np.testing.assert_allclose(layer.dW.get(), expected, rtol=1e-12)
    np.testing.assert_array_equal(dx, e.get())


# --- blocks ----------------------------------------------------------------------------------------------------------


@needs_torch
@pytest.mark.parametrize("causal", [False, True])
def test_a_block_matches_that_of_torch(be64, causal):
    import torch

    F, T, N, hidden = 8, 6, 3, 12
    net = allocate(be64, TransformerBlock(F, 2, hidden, G, causal, activation=Rectlin(), name="b"), (F, T), N)
    for p in net.parameters:
        p[:] = p + be64.randn(p.shape) / 3
    reference = torch.nn.TransformerEncoderLayer(
        F, 2, hidden, dropout=0.0, batch_first=True, norm_first=True, dtype=torch.float64
    )
    names = {"self_attn.in_proj_weight": "b_heads.W_qkv", "self_attn.in_proj_bias": "b_heads.b_qkv"}
    names |= {"self_attn.out_proj.weight": "b_heads.W_out", "self_attn.out_proj.bias": "b_heads.b_out"}
    names |= {"linear1.weight": "b_1.W", "linear1.bias": "b_1_bias.W"}
    names |= {"linear2.weight": "b_2.W", "linear2.bias": "b_2_bias.W"}
    names |= {f"norm{i}.{w}": f"b_norm_{i}.{g}" for i in (1, 2) for w, g in (("weight", "gamma"), ("bias", "beta"))}
    weights = net.get_weights()
    assert set(names.values()) == set(weights)
    with torch.no_grad():
        for name, p in reference.named_parameters():
            p.copy_(torch.tensor(weights[names[name]].reshape(tuple(p.shape))))
    x, e = data(be64, F, T * N), data(be64, F, T * N, seed=1)
    tx = torch.tensor(by_sequence(x, N), requires_grad=True)
    later = torch.triu(torch.ones(T, T, dtype=torch.bool), 1) if causal else None
    y = reference(tx, src_mask=later)
    y.backward(torch.tensor(by_sequence(e, N)))
    near = {"rtol": 1e-9, "atol": 1e-10}
    np.testing.assert_allclose(net.fprop(x).get(), by_step(y.detach()), **near)
    np.testing.assert_allclose(net.bprop(e).get(), by_step(tx.grad), **near)
    gradients = dict(zip(weights, [g.get() for layer in net.layers_to_optimize for g in stored(layer)], strict=True))
    for name, p in reference.named_parameters():
        gradient = gradients[names[name]]
        np.testing.assert_allclose(gradient, p.grad.numpy().reshape(gradient.shape), err_msg=name, **near)


def stored(layer: Any) -> list[Any]:
    """Return the gradients of a layer in the order of the parameters in a file."""
    return [getattr(layer, slot.gradient) for slot in layer.parameter_specs()]


def transformer(
    vocab_size: int,
    width: int = 64,
    heads: int = 4,
    depth: int = 2,
    hidden: int | None = None,
    keep: float = 1.0,
    steps: int | None = None,
) -> list[Any]:
    """Return layers that predict the next token at each step: token ids (1, T) -> probabilities (tokens, T)."""
    init = GlorotUniform()
    position = PositionalEncoding() if steps is None else PositionEmbedding(steps, Gaussian(scale=0.02))
    blocks = [TransformerBlock(width, heads, hidden or 4 * width, init, True, keep) for _ in range(depth)]
    last = Affine(vocab_size, init, bias=Constant(0), activation=Softmax())
    return [LookupTable(vocab_size, width, Gaussian()), position, *blocks, LayerNorm(), last]


@pytest.mark.long
def test_a_small_transformer_learns_to_copy_the_token_three_steps_earlier(cpu):
    T, N, V, back = 16, 32, 8, 3
    net = allocate(cpu, transformer(V, width=32, depth=1), (1, T), N)
    cost, optimizer = GeneralizedCost(CrossEntropyMulti()), Adam(learning_rate=0.01)
    cost.initialize(net)
    x, t = cpu.iobuf((1, T), dtype="int32"), cpu.iobuf((V, T))
    rng = np.random.default_rng(0)

    def sample() -> Array:
        tokens = rng.integers(0, V, size=(T, N))
        targets = np.concatenate([np.zeros((back, N), int), tokens[:-back]])  # token 0 before the first step
        x[:], t[:] = tokens.reshape(1, -1), np.eye(V)[:, targets.ravel()]
        return targets.ravel()

    for _ in range(150):
        sample()
        net.bprop(cost.get_errors(net.fprop(x), t))
        optimizer.optimize(net.layers_to_optimize, epoch=0)
    right = [
        (net.fprop(x, inference=True).get().argmax(axis=0) == tokens).mean() for tokens in (sample() for _ in "ten")
    ]
    assert np.mean(right) > 0.99


# --- checkpoints, summary and memory ---------------------------------------------------------------------------------


def networks() -> dict[str, tuple[Any, Any]]:
    block = TransformerBlock(4, 2, 6, G, causal=True, keep=0.9, activation=Rectlin(), name="block")
    return {
        "layers": (
            [MultiHeadAttention(2, G, True, 0.5, B, "look"), PositionalEncoding(), PositionEmbedding(9, G)],
            (4, 5),
        ),
        "plain": ([MultiHeadAttention(4, G)], (4, 5)),
        "block": ([block], (4, 5)),
    }


@pytest.mark.parametrize("kind", networks())
def test_a_network_created_from_json_continues_bit_identically(be, kind):
    layers, shape = networks()[kind]
    net = allocate(be, layers, shape, 3)
    x, e, optimizer = data(be, 4, 15), data(be, 4, 15, seed=1), Adam()
    net.bprop(net.fprop(x) and e)
    optimizer.optimize(net.layers_to_optimize, epoch=0)
    again = Layer.recursive_gen(json.loads(json.dumps(net.get_description(), allow_nan=False)))
    assert again.get_description() == net.get_description()
    assert [layer.name for layer in again.leaves()] == [layer.name for layer in net.leaves()]
    again.configure(shape)
    again.allocate()
    again.load_weights(net.serialize())
    np.testing.assert_array_equal(again.fprop(x, inference=True).get(), net.fprop(x, inference=True).get())
    state = be.rng_get_state()
    y = net.fprop(x).get()
    be.rng_set_state(state)
    np.testing.assert_array_equal(again.fprop(x).get(), y)


def test_files_store_weights_by_name(cpu):
    net = allocate(cpu, [MultiHeadAttention(2, G, bias=B, name="look")], (4, 5), 2)
    shapes = {name: x.shape for name, x in net.get_weights().items()}
    assert shapes == {"look.W_qkv": (12, 4), "look.W_out": (4, 4), "look.b_qkv": (12, 1), "look.b_out": (4, 1)}


def test_a_summary_counts_parameters_and_memory(cpu):
    def ready() -> tuple[Any, Any, Any]:
        net, cost = Sequential(transformer(11, width=8, heads=2, keep=0.9)), GeneralizedCost(CrossEntropyMulti())
        return net, cost, Adam()

    cpu.bsz = 6
    net, cost, optimizer = ready()
    summary = net.summary((1, 7), cost, optimizer)
    attention = next(x for x in net.leaves() if isinstance(x, MultiHeadAttention))
    attention.mask = cpu.ones((1, 42))
    assert net.summary((1, 7), cost, optimizer).parameters == summary.parameters
    assert attention.mask.shape == (1, 42)
    attention.mask = None
    embedding, norm, head = 11 * 8, 2 * 8, 11 * 8 + 11
    block = 4 * 8 * 8 + 4 * 8 + 2 * norm + 2 * 8 * 32 + 32 + 8
    assert summary.parameters == embedding + 2 * block + norm + head
    be = gen_backend("cpu", batch_size=6)
    net, cost, optimizer = ready()
    net.configure((1, 7))
    x, t = net.make_zero_inputs(), None
    cost.initialize(net)
    t = cost.make_zero_targets()
    model = Model(net)
    model.cost = cost
    program = GradientProgram(model)
    for _ in range(2):
        assert program(x, t, None) is not None
        optimizer.optimize(net.layers_to_optimize, epoch=0)
    have = be.memory()
    assert (summary.memory.tensors, summary.memory.arena, summary.memory.workspaces) == (
        have.tensors,
        have.arena,
        have.workspaces,
    )


# --- mistakes --------------------------------------------------------------------------------------------------------


def three(be: Any, *shapes: tuple[int, ...]) -> list[Any]:
    return [be.ones(shape, name=name) for shape, name in zip(shapes, "qkv", strict=True)]


def masked(be: Any, mask: Any) -> Any:
    layer = allocate(be, MultiHeadAttention(2, G, name="look"), (4, 5), 3)
    layer.mask = mask(be) if callable(mask) else mask
    return layer.fprop(data(be, 4, 15))


MISTAKES: list[tuple[Any, type[Exception], str]] = [
    (
        lambda be: MultiHeadAttention(3, G, name="look").configure((8, 5)),
        ValueError,
        "look: expected heads to divide the 8 features, got 3. Use one of 1, 2, 4, 8",
    ),
    (
        lambda be: MultiHeadAttention(2, G, name="look").configure(8),
        ValueError,
        r"look: expected inputs with time steps, \(F, T\), .* LookupTable, got 8",
    ),
    (lambda be: PositionalEncoding("where").configure((3, 8, 8)), ValueError, r"where: .* \(F, T\).*got \(3, 8, 8\)"),
    (lambda be: PositionEmbedding(4, G, "where").configure(8), ValueError, r"where: .* \(F, T\).*got 8"),
    (
        lambda be: PositionEmbedding(4, G, "where").configure((3, 5)),
        ValueError,
        "where: expected at most max_steps = 4 steps, got 5. Use more max_steps",
    ),
    (lambda be: PositionEmbedding(0, G, "where"), ValueError, "where: expected an integer >= 1 for max_steps, got 0"),
    (lambda be: MultiHeadAttention(0, G, name="look"), ValueError, "look: expected an integer >= 1 for heads, got 0"),
    (
        lambda be: MultiHeadAttention(True, G, name="look"),
        TypeError,
        "look: expected an integer >= 1 for heads, got True",
    ),
    (
        lambda be: MultiHeadAttention(2.0, G, name="look"),
        TypeError,
        "look: expected an integer >= 1 for heads, got 2.0",
    ),
    (
        lambda be: MultiHeadAttention(2, G, keep=0, name="look"),
        ValueError,
        "look: expected a finite number > 0 and <= 1 for keep, got 0",
    ),
    (lambda be: MultiHeadAttention(2, G, keep="all", name="look"), TypeError, "look: expected a number for keep, got"),
    (
        lambda be: masked(be, lambda be: be.ones((1, 5))),
        ValueError,
        r"look: expected mask of shape \(1, 15\) \(layer shape \(1, 5\), batch size 3\), got",
    ),
    (
        lambda be: masked(be, lambda be: be.ones((15, 1))),
        ValueError,
        r"look: expected mask of shape \(1, 15\) .*, got a tensor \(15, 1\)",
    ),
    (lambda be: masked(be, np.ones((1, 15))), TypeError, r"look: expected mask as a tensor, got an array"),
    (
        lambda be: allocate(be, MultiHeadAttention(2, G, name="look"), (4, 5), 3).bprop(data(be, 4, 15)),
        RuntimeError,
        "look: bprop: expected a training fprop before it",
    ),
    (
        lambda be: allocate(be, [TransformerBlock(6, 2, 8, G, name="block")], (4, 5), 3),
        ValueError,
        r"block_feedforward: expected branches with outputs of the same shape, got .*\(4, 5\).*\(6, 5\)",
    ),
    (
        lambda be: attention(np.ones((2, 2)), None, None),
        TypeError,
        "attention: expected a tensor or an op-tree for q, got",
    ),
    (
        lambda be: attention(*three(be, (2, 3), (4, 2), (4, 5))),
        ValueError,
        r"be.attention\(.*\): expected q \(..., T, d\), .*, got \(2, 3\), \(4, 2\) and \(4, 5\)",
    ),
    (lambda be: attention(*three(be, (2, 3), (4, 3), (5, 3))), ValueError, r"be.attention\(.*\): expected q"),
    (lambda be: attention(*three(be, (2, 2, 3), (3, 4, 3), (3, 4, 5))), ValueError, r"be.attention\(.*\): expected q"),
    (
        lambda be: attention(*three(be, (2, 3), (4, 3), (4, 3)), mask=be.ones((2, 3))),
        ValueError,
        r"\(2, 3\)",
    ),
]


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes_are_reported(cpu, number):
    act, kind, message = MISTAKES[number]
    with pytest.raises(kind, match=message):
        act(cpu)


def test_bprop_after_inference_is_an_error(cpu):
    layer = allocate(cpu, MultiHeadAttention(2, G, name="look"), (4, 5), 3)
    layer.fprop(data(cpu, 4, 15), inference=True)
    with pytest.raises(RuntimeError, match="look: bprop: expected a training fprop before it"):
        layer.bprop(data(cpu, 4, 15))
