"""Errors of primitives name the primitive, the expected argument and the one that was passed, and write nothing.

Tests ``neonlite/backend/primitives/geometry.py``.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.parametrize import each

import neonlite as nl
from neonlite import Backend, Tensor


@pytest.fixture
def stage(be: Backend) -> SimpleNamespace:
    """What the mistakes below are made with: layer objects, tensors, a second backend, and one that was cleaned up."""
    s = SimpleNamespace(be=be, other=Backend(be.name), dead=Backend(be.name))
    numbers = np.random.default_rng(0)

    def tensor(name: str, *shape: int, on: Backend = be, dtype: str = "float32", **more: Any) -> None:
        setattr(s, more.get("to", name), on.array(numbers.uniform(1, 3, shape), dtype, name=name))

    s.conv = be.conv_layer("float32", 2, 3, 4, H=5, W=5, R=3, S=3)
    s.max, s.avg, s.l2 = (be.pool_layer("float32", op, 2, 3, H=4, W=4, R=2, S=2) for op in ("max", "avg", "l2"))
    s.lrn = be.lrn_layer("float32", 2, 3, H=2, W=2, J=3)
    for name, shape in {"I": (75, 2), "F": (27, 4), "O": (36, 2), "E": (36, 2), "D": (75, 2), "U": (27, 4)}.items():
        tensor(name, *shape)
    for name, shape in {"X": (36, 2), "B": (4, 1), "S": (4, 1), "B3": (3, 1), "big": (75, 3), "i": (48, 2)}.items():
        tensor(name, *shape)
    for name, shape in {"o": (12, 2), "e": (12, 2), "d": (48, 2), "n": (12, 2), "m": (12, 2), "g": (12, 2)}.items():
        tensor(name, *shape)
    tensor("places", 12, 2, dtype="int32")
    s.many = be.pool_layer("float32", "max", 2, 300, J=300)
    tensor("maps", 300, 2)
    tensor("two", 1, 2)
    tensor("bytes", 1, 2, dtype="uint8")
    tensor("wide", 75, 2, dtype="float64")
    tensor("ints", 75, 2, dtype="int32")
    tensor("whole", 36, 2, dtype="int32")
    tensor("foreign", 75, 2, on=s.other)
    s.their_conv = s.other.conv_layer("float32", 2, 3, 4, H=5, W=5, R=3, S=3)
    s.their_max = s.other.pool_layer("float32", "max", 2, 3, H=4, W=4, R=2, S=2)
    s.their_lrn = s.other.lrn_layer("float32", 2, 3, H=2, W=2, J=3)
    s.dead_conv = s.dead.conv_layer("float32", 2, 3, 4, H=5, W=5, R=3, S=3)
    s.dead_max = s.dead.pool_layer("float32", "max", 2, 3, H=4, W=4, R=2, S=2)
    s.dead_lrn = s.dead.lrn_layer("float32", 2, 3, H=2, W=2, J=3)
    for name, shape in {"gI": (75, 2), "gF": (27, 4), "gO": (36, 2), "gi": (48, 2), "go": (12, 2)}.items():
        tensor(name, *shape, on=s.dead)
    # products, recurrent steps, look-up tables, normalization, regions
    for name, shape in {"A": (2, 3), "C": (3, 4), "P": (2, 4), "r": (2, 1), "A3": (5, 3, 2), "C3": (5, 2, 4)}.items():
        tensor(name, *shape)
    for name, shape in {"W": (3, 3), "b": (3, 1), "h": (3, 2), "h2": (3, 2), "h3": (3, 2), "h4": (4, 2)}.items():
        tensor(name, *shape)
    tensor("P64", 2, 4, dtype="float64")
    tensor("foreign23", 2, 3, on=s.other)
    s.words = be.array([[0, 1, 2, 3, 4, 0]], "int32", name="words")
    for name, shape in {"error": (4, 6), "error_t": (6, 4), "dW": (5, 4), "error5": (5, 6), "dW5": (5, 5)}.items():
        tensor(name, *shape)
    for name in ("x", "y", "dx", "dy"):
        tensor(name, 3, 8)
    for name in ("mean", "var", "gmean", "gvar", "gamma", "beta", "dgamma", "dbeta"):
        tensor(name, 3, 1)
    for name, shape in {"images": (2 * 6 * 6, 2), "bins": (2 * 3 * 3, 4), "boxes": (4, 5)}.items():
        tensor(name, *shape)
    s.rois = be.array([[0, 0, 0, 3, 3], [1, 1, 1, 4, 4], [0, 2, 2, 5, 5], [1, 0, 0, 5, 5]], name="rois")
    tensor("at", 2 * 3 * 3, 4, dtype="int32")
    s.astray = be.array(np.full((18, 4), 99), "int32", name="astray")
    s.bn, s.roi = [s.mean, s.var, s.gmean, s.gvar, s.gamma, s.beta], (4, 2, 6, 6, 3, 3, 1.0)
    s.prev, s.ff, s.out, s.tanh = [s.h, s.h2], [s.h2, s.h3], [s.h3, s.h], be.tanh
    s.dead.cleanup_backend()
    return s


DEAD = "closed by cleanup_backend() at | test_geometry_operands.py: | .get() | gen_backend() | be.array(t)"

# What the user writes, and the words that must all be found in the message.
# fmt: off
REFUSED: list[tuple[type[Exception], str, str]] = [
    # --- output_dim and layer objects ---
    (ValueError, "be.output_dim(4, 7, 1, 1)", "window of 7 | larger than 6 | size 4 | padding 1"),
    (ValueError, "be.output_dim(4, 3, 0, 1, dilation=3)", "window of 7 | dilation 3 | size 4"),
    (ValueError, "be.output_dim(4, 3, 0, 0)", "strides | integer >= 1 | got 0"),
    (ValueError, "be.output_dim(4, 3, -1, 1)", "padding | integer >= 0 | got -1"),
    (ValueError, "be.output_dim(4, 0, 0, 1)", "S | integer >= 1 | got 0"),
    (ValueError, "be.output_dim(4.5, 3, 0, 1)", "X | integer >= 1 | got 4.5"),
    (ValueError, "be.output_dim(4, 3, 0, 1, dilation=0)", "dilation | integer >= 1 | got 0"),
    (ValueError, "be.output_dim(4, 2, 2, 1, pooling=True)", "pooling window of 2 | padding of 2 | at most 1"),
    (ValueError, "be.conv_layer('float32', 2, 3, 4, H=2, W=9, R=3, S=3)", "window of 3 | larger than 2"),
    (ValueError, "be.conv_layer('float32', 2, 3, 4, H=4, R=3, dil_h=2)", "window of 5 | dilation 2"),
    (ValueError, "be.conv_layer('float32', 0, 3, 4)", "N | integer >= 1 | got 0"),
    (ValueError, "be.conv_layer('float32', 2, 3, 4, H=5.0)", "H | integer | got 5.0"),
    (ValueError, "be.conv_layer('float32', 2, '3', 4)", "C | integer | got '3'"),
    (ValueError, "be.conv_layer('float32', 2, 3, None)", "K | integer | got None"),
    (ValueError, "be.conv_layer('float32', 2, 3, True)", "K | integer | got True"),
    (ValueError, "be.conv_layer('float32', 2, 3, np.array([4, 4]))", "K | integer | array([4, 4])"),
    (ValueError, "be.conv_layer('float32', 2, 3, 4, H=I)", "H | integer | Tensor"),
    (ValueError, "be.conv_layer('float32', 2, 3, 4, H=5, W=5, str_h=0)", "str_h | >= 1 | got 0"),
    (ValueError, "be.conv_layer('float32', 2, 3, 4, H=5, W=5, pad_w=-1)", "pad_w | >= 0 | got -1"),
    (ValueError, "be.conv_layer('float32', 2, 3, 4, H=5, W=5, dil_h=0)", "dil_h | >= 1 | got 0"),
    (TypeError, "be.conv_layer('int32', 2, 3, 4)", "dtype | float32 | got int32"),
    (TypeError, "be.conv_layer('float31', 2, 3, 4)", "expected one of the dtypes | got 'float31' | float32"),
    (ValueError, "be.deconv_layer('float32', 2, 3, 4, 2, 2, 3, 3, pad_h=2)", "padding 2 | nothing of 4"),
    (ValueError, "be.deconv_layer('float32', 2, 3, 4, 0, 2)", "P | integer >= 1 | got 0"),
    (ValueError, "be.deconv_layer('float32', 2, 3, 4, 2, 2, str_w=0)", "str_w | >= 1 | got 0"),
    (ValueError, "be.deconv_layer('float32', 2, 3, 4, 2, 2, pad_w=-1)", "pad_w | >= 0 | got -1"),
    (ValueError, "be.deconv_layer('float32', 2.5, 3, 4, 2, 2)", "N | integer | got 2.5"),
    (TypeError, "be.deconv_layer('int8', 2, 3, 4, 2, 2)", "dtype | float32 | got int8"),
    (TypeError, "be.deconv_layer('float32', 2, 3, 4)", "expected P, Q"),
    (TypeError, "be.deconv_layer('float32', 2, 3, 4, 2)", "expected Q"),
    (TypeError, "be.deconv_layer('float32', 2, 3, 4, 2, 2, Q=2)", "Q twice"),
    (TypeError, "be.deconv_layer('float32', 2, 3, 4, 2, 2, paddd=2)", "got paddd | pad_d"),
    (TypeError, "be.deconv_layer('float32', 2, 3, 4, 2, 2, 3, 3, 0)", "5 sizes by position | by name"),
    (TypeError, "be.deconv_layer('float32', 2, 3, 4, *[1] * 18)", "18 sizes by position | by name"),
    (ValueError, "be.pool_layer('float32', 'min', 2, 3)", "'max', 'avg', 'l2' for op | got 'min'"),
    (ValueError, "be.pool_layer('float32', 'max', 2, 3, H=4, W=4, R=5)", "window of 5 | larger than 4"),
    (ValueError, "be.pool_layer('float32', 'max', 2, 3, J=4)", "window of 4 | larger than 3"),
    (ValueError, "be.pool_layer('float32', 'avg', 2, 3, H=4, R=2, pad_h=2)", "window of 2 | padding of 2"),
    (ValueError, "be.pool_layer('float32', 'max', 2, 3, pad_j=1)", "window of 1 | padding of 1"),
    (ValueError, "be.pool_layer('float32', 'max', 2, 3, str_w=0)", "str_w | >= 1 | got 0"),
    (ValueError, "be.pool_layer('float32', 'max', 2, 3, str_c=0)", "str_j | >= 1 | got 0"),
    (ValueError, "be.pool_layer('float32', 'max', 2, 3, pad_d=-1)", "pad_d | >= 0 | got -1"),
    (ValueError, "be.pool_layer('float32', 'max', 2, 3, H=2.5)", "H | integer | got 2.5"),
    (TypeError, "be.pool_layer('uint8', 'max', 2, 3)", "dtype | float32 | got uint8"),
    (ValueError, "be.lrn_layer('float32', 2, 3, J=0)", "J | integer >= 1 | got 0"),
    (ValueError, "be.lrn_layer('float32', 2, 3, J=2.0)", "J | integer >= 1 | got 2.0"),
    (TypeError, "be.lrn_layer('int32', 2, 3)", "dtype | float32 | got int32"),
    # --- layer objects of another kind, or of another backend ---
    (TypeError, "be.fprop_conv(max, I, F, O)", "be.conv_layer | PoolLayer"),
    (TypeError, "be.fprop_conv(None, I, F, O)", "be.conv_layer | None"),
    (TypeError, "be.bprop_conv(lrn, F, E, D)", "be.conv_layer | LRNLayer"),
    (TypeError, "be.update_conv(I, E, U)", "be.conv_layer | I (75, 2)"),
    (TypeError, "be.fprop_pool(conv, i, o)", "be.pool_layer | ConvLayer"),
    (TypeError, "be.bprop_pool(i, e, d)", "be.pool_layer | i (48, 2)"),
    (TypeError, "be.fprop_lrn(max, n, m, g)", "be.lrn_layer | PoolLayer"),
    (TypeError, "be.bprop_lrn(conv, n, m, e, o, g)", "be.lrn_layer | ConvLayer"),
    (ValueError, "be.fprop_conv(their_conv, I, F, O)", "ConvLayer((3, 1, 5, 5, 2) | of <backend | be.conv_layer"),
    (ValueError, "be.bprop_conv(their_conv, F, E, D)", "ConvLayer | of <backend | be.conv_layer"),
    (ValueError, "be.update_conv(their_conv, I, E, U)", "ConvLayer | of <backend | be.conv_layer"),
    (ValueError, "be.fprop_pool(their_max, i, o)", "PoolLayer | of <backend | be.pool_layer"),
    (ValueError, "be.bprop_pool(their_max, i, e, d)", "PoolLayer | of <backend | be.pool_layer"),
    (ValueError, "be.fprop_lrn(their_lrn, n, m, g)", "LRNLayer | of <backend | be.lrn_layer"),
    (ValueError, "be.bprop_lrn(their_lrn, n, m, e, o, g)", "LRNLayer | of <backend | be.lrn_layer"),
    # --- convolution: sizes ---
    (ValueError, "be.fprop_conv(conv, big, F, O)",
     "I of shape (3, 1, 5, 5, 2) = (C, D, H, W, N) | 150 elements | got big (75, 3) with 225 | ConvLayer"),
    (ValueError, "be.fprop_conv(conv, I, big, O)", "F | (3, 1, 3, 3, 4) = (C, T, R, S, K) | big (75, 3)"),
    (ValueError, "be.fprop_conv(conv, I, F, big)", "O | (4, 1, 3, 3, 2) = (K, M, P, Q, N) | big (75, 3)"),
    (ValueError, "be.fprop_conv(conv, I, F, I)", "O | (4, 1, 3, 3, 2) | got I (75, 2)"),
    (ValueError, "be.fprop_conv(conv, I[:74], F, O)", "I of shape | I[...] (74, 2) with 148"),
    (ValueError, "be.bprop_conv(conv, big, E, D)", "F | (3, 1, 3, 3, 4) | big (75, 3)"),
    (ValueError, "be.bprop_conv(conv, F, big, D)", "E | (4, 1, 3, 3, 2) = (K, M, P, Q, N) | big (75, 3)"),
    (ValueError, "be.bprop_conv(conv, F, E, big)", "grad_I | (3, 1, 5, 5, 2) | big (75, 3)"),
    (ValueError, "be.update_conv(conv, big, E, U)", "I | (3, 1, 5, 5, 2) | big (75, 3)"),
    (ValueError, "be.update_conv(conv, I, big, U)", "E | (4, 1, 3, 3, 2) | big (75, 3)"),
    (ValueError, "be.update_conv(conv, I, E, big)", "grad_F | (3, 1, 3, 3, 4) | big (75, 3)"),
    (ValueError, "be.update_conv(conv, I, E, U, grad_bias=B3)", "grad_bias | (4, 1) | B3 (3, 1)"),
    (ValueError, "be.fprop_conv(conv, I, F, O, bias=B3)", "bias of shape (4, 1) | B3 (3, 1)"),
    (ValueError, "be.fprop_conv(conv, I, F, O, bsum=B3)", "bsum of shape (4, 1) | B3 (3, 1)"),
    (ValueError, "be.fprop_conv(conv, I, F, O, X=I, beta=1.0)", "X of shape (36, 2), that of the result | I (75, 2)"),
    (ValueError, "be.bprop_conv(conv, F, E, D, bias=B)", "bias of shape (3, 1) | B (4, 1)"),
    (ValueError, "be.bprop_conv(conv, F, E, D, X=X, brelu=True)", "X | (75, 2) | X (36, 2)"),
    (ValueError, "be.fprop_conv(conv, I, F, O, brelu=True)", "expected X with brelu | X > 0"),
    # --- convolution: numbers ---
    (ValueError, "be.fprop_conv(conv, I, F, O, repeat=0)", "repeat | integer >= 1 | got 0"),
    (ValueError, "be.fprop_conv(conv, I, F, O, 1.0, False, 1.5)", "repeat | integer | got 1.5"),
    (ValueError, "be.bprop_conv(conv, F, E, D, 1.0, -2)", "repeat | integer | got -2"),
    (ValueError, "be.update_conv(conv, I, E, U, repeat=2.5)", "repeat | integer | got 2.5"),
    (TypeError, "be.fprop_conv(conv, I, F, O, alpha=None)", "real number for alpha | got None"),
    (TypeError, "be.fprop_conv(conv, I, F, O, alpha=B)", "real number for alpha | got B (4, 1)"),
    (TypeError, "be.bprop_conv(conv, F, E, D, beta='1')", "real number for beta | got '1'"),
    (TypeError, "be.update_conv(conv, I, E, U, alpha=[1])", "real number for alpha | got [1]"),
    (TypeError, "be.fprop_pool(max, i, o, beta=None)", "real number for beta | got None"),
    (TypeError, "be.bprop_pool(max, i, e, d, alpha=o)", "real number for alpha | got o (12, 2)"),
    (TypeError, "be.fprop_lrn(lrn, n, m, g, bpower=None)", "real number for bpower | got None"),
    (TypeError, "be.bprop_lrn(lrn, n, m, e, o, g, ascale='1')", "real number for ascale | got '1'"),
    # --- convolution: dtypes, and what is no tensor of this backend ---
    (TypeError, "be.fprop_conv(conv, wide, F, O)", "I of dtype float32 | wide (75, 2) of float64 | be.astype"),
    (TypeError, "be.fprop_conv(conv, ints, F, O)", "I of dtype float32 | ints (75, 2) of int32 | be.astype"),
    (TypeError, "be.fprop_conv(conv, I, F, whole)", "O of dtype float32 | whole (36, 2) of int32"),
    (TypeError, "be.bprop_conv(conv, F, E, wide)", "grad_I of dtype float32 | wide (75, 2) of float64"),
    (TypeError, "be.update_conv(conv, wide, E, U)", "I of dtype float32 | wide (75, 2) of float64"),
    (TypeError, "be.fprop_conv(conv, np.ones((75, 2)), F, O)", "a tensor for I | array("),
    (TypeError, "be.fprop_conv(conv, I, F + 1, O)", "a tensor for F | add-tree (27, 4)"),
    (TypeError, "be.fprop_conv(conv, I, F, None)", "a tensor for O | None"),
    (TypeError, "be.fprop_conv(conv, I, F, O, bias=np.ones((4, 1)))", "a tensor for bias | array("),
    (TypeError, "be.fprop_conv(conv, I, F, O, X=X * 2, beta=1)", "a tensor for X | mul-tree (36, 2)"),
    (TypeError, "be.fprop_conv(conv, I, F, O, bsum=[0, 0])", "a tensor for bsum | [0, 0]"),
    (TypeError, "be.bprop_conv(conv, F, np.ones((36, 2)), D)", "a tensor for E | array("),
    (TypeError, "be.bprop_conv(conv, F, E * 2, D)", "a tensor for E | mul-tree (36, 2)"),
    (TypeError, "be.bprop_conv(conv, None, E, D)", "a tensor for F | None"),
    (TypeError, "be.update_conv(conv, I, E)", "a tensor for grad_F | None"),
    (TypeError, "be.update_conv(conv, I + 0, E, U)", "a tensor for I | add-tree (75, 2)"),
    (TypeError, "be.update_conv(conv, I, E, np.ones((27, 4)))", "a tensor for grad_F | array("),
    (TypeError, "be.update_conv(conv, I, E, U, grad_bias=np.ones((4, 1)))", "a tensor for grad_bias"),
    (ValueError, "be.fprop_conv(conv, foreign, F, O)", "a tensor of | for I, got foreign (75, 2) | be.array(t)"),
    (ValueError, "be.bprop_conv(conv, F, E, foreign)", "a tensor of | for grad_I, got foreign (75, 2) | be.array(t)"),
    (ValueError, "be.update_conv(conv, foreign, E, U)", "a tensor of | for I, got foreign (75, 2) | be.array(t)"),
    (ValueError, "be.fprop_conv(conv, I, F, O, bias=foreign)", "a tensor of | for bias, got foreign (75, 2)"),
    # --- pooling ---
    (ValueError, "be.fprop_pool(max, I, o)", "I | (3, 1, 4, 4, 2) = (C, D, H, W, N) | got I (75, 2)"),
    (ValueError, "be.fprop_pool(max, i, O)", "O | (3, 1, 2, 2, 2) = (K, M, P, Q, N) | got O (36, 2)"),
    (ValueError, "be.fprop_pool(max, i, o, whole)", "argmax | (3, 1, 2, 2, 2) | got whole (36, 2)"),
    (TypeError, "be.fprop_pool(max, i, o, n)", "argmax of an integer dtype | n (12, 2) of float32 | int32"),
    (TypeError, "be.fprop_pool(many, maps, two, bytes)", "argmax | 0 to 299 | bytes (1, 2) of uint8 | dtype='int32'"),
    (TypeError, "be.bprop_pool(many, two, maps, bytes)", "argmax | 0 to 299 | bytes (1, 2) of uint8 | dtype='int32'"),
    (TypeError, "be.fprop_pool(max, np.ones((48, 2)), o)", "a tensor for I | array("),
    (TypeError, "be.fprop_pool(max, i, None)", "a tensor for O | None"),
    (TypeError, "be.fprop_pool(max, i + 1, o)", "a tensor for I | add-tree (48, 2)"),
    (TypeError, "be.fprop_pool(max, i, o, np.ones((12, 2)))", "a tensor for argmax | array("),
    (TypeError, "be.fprop_pool(max, i, places)", "O of dtype float32 | places (12, 2) of int32 | be.astype"),
    (ValueError, "be.fprop_pool(max, foreign, o)", "a tensor of | for I, got foreign (75, 2) | be.array(t)"),
    (ValueError, "be.bprop_pool(max, i, E, d)", "E | (3, 1, 2, 2, 2) = (K, M, P, Q, N) | got E (36, 2)"),
    (ValueError, "be.bprop_pool(max, i, e, D)", "grad_I | (3, 1, 4, 4, 2) | got D (75, 2)"),
    (ValueError, "be.bprop_pool(max, I, e, d)", "I | (3, 1, 4, 4, 2) | got I (75, 2)"),
    (ValueError, "be.bprop_pool(max, E, d, places)", "E | (3, 1, 2, 2, 2) | got E (36, 2)"),
    (ValueError, "be.bprop_pool(max, e, D, places)", "grad_I | (3, 1, 4, 4, 2) | got D (75, 2)"),
    (ValueError, "be.bprop_pool(max, e, d, whole)", "argmax | (3, 1, 2, 2, 2) | got whole (36, 2)"),
    (ValueError, "be.bprop_pool(max, e, d)", "expected argmax | or the images I, for max pooling"),
    (ValueError, "be.bprop_pool(l2, e, d)", "expected the images I for l2 pooling"),
    (ValueError, "be.bprop_pool(l2, e, d, places)", "expected the images I for l2 pooling"),
    (TypeError, "be.bprop_pool(avg, e)", "a tensor for grad_I | None"),
    (TypeError, "be.bprop_pool(avg)", "a tensor for E | None"),
    (TypeError, "be.bprop_pool(avg, i, e + 1, d)", "a tensor for E | add-tree (12, 2)"),
    (TypeError, "be.bprop_pool(avg, i, e, np.ones((48, 2)))", "a tensor for grad_I | array("),
    (TypeError, "be.bprop_pool(max, e, d, argmax=n)", "argmax of an integer dtype | n (12, 2)"),
    (TypeError, "be.bprop_pool(max, i, places, d)", "E of dtype float32 | places (12, 2) of int32"),
    (ValueError, "be.bprop_pool(max, i, e, foreign)", "a tensor of | for grad_I, got foreign (75, 2) | be.array(t)"),
    # --- local response normalization ---
    (ValueError, "be.fprop_lrn(lrn, i, m, g)", "I | (3, 1, 2, 2, 2) = (C, D, H, W, N) | got i (48, 2)"),
    (ValueError, "be.fprop_lrn(lrn, n, i, g)", "O | (3, 1, 2, 2, 2) | got i (48, 2)"),
    (ValueError, "be.fprop_lrn(lrn, n, m, i)", "denom | (3, 1, 2, 2, 2) | got i (48, 2)"),
    (TypeError, "be.fprop_lrn(lrn, np.ones((12, 2)), m, g)", "a tensor for I | array("),
    (TypeError, "be.fprop_lrn(lrn, n, m, None)", "a tensor for denom | None"),
    (TypeError, "be.fprop_lrn(lrn, n, places, g)", "O of dtype float32 | places (12, 2) of int32"),
    (ValueError, "be.fprop_lrn(lrn, foreign, m, g)", "a tensor of | for I, got foreign (75, 2) | be.array(t)"),
    (ValueError, "be.bprop_lrn(lrn, n, m, i, o, g)", "E | (3, 1, 2, 2, 2) | got i (48, 2)"),
    (ValueError, "be.bprop_lrn(lrn, n, m, e, i, g)", "delta | (3, 1, 2, 2, 2) | got i (48, 2)"),
    (TypeError, "be.bprop_lrn(lrn, n, m, e * 1, o, g)", "a tensor for E | mul-tree (12, 2)"),
    (TypeError, "be.bprop_lrn(lrn, n, m, e, o, places)", "denom of dtype float32 | places (12, 2) of int32"),
    (ValueError, "be.bprop_lrn(lrn, n, m, e, foreign, g)", "tensor of | for delta, got foreign (75, 2) | be.array(t)"),
    # --- products ---
    (ValueError, "be.compound_dot(A, A, P)", "(k, n) | A (2, 3) | P (2, 4)"),
    (ValueError, "be.compound_dot(A, C, A)", "A (2, 3) | C (3, 4) | C A (2, 3)"),
    (ValueError, "be.compound_dot(A3, C, P)", "A A3 (5, 3, 2) | B C (3, 4)"),
    (TypeError, "be.compound_dot(A, C, P64)", "one float dtype | float64 (P64 (2, 4)) | be.astype"),
    (TypeError, "be.compound_dot(A, np.ones((3, 4)), P)", "a tensor for B | array("),
    (TypeError, "be.compound_dot(A + 1, C, P)", "a tensor for A | add-tree (2, 3)"),
    (TypeError, "be.compound_dot(A, C, None)", "a tensor for C | None"),
    (ValueError, "be.compound_dot(foreign23, C, P)", "a tensor of | for A, got foreign23 (2, 3) | be.array(t)"),
    (ValueError, "be.compound_dot(A, C, P, bsum=b)", "bsum | b (3, 1)"),
    (TypeError, "be.compound_dot(A, C, P, bsum=np.ones((2, 1)))", "a tensor for bsum | array("),
    (TypeError, "be.compound_dot(A, C, P, alpha=None)", "real number for alpha | None"),
    (TypeError, "be.compound_dot(A, C, P, beta='1')", "real number for beta | '1'"),
    (TypeError, "be.batched_dot(A, A3, A3[:, :2], alpha=A)", "real number for alpha | A (2, 3)"),
    (ValueError, "be.batched_dot(A, C, P)", "(X, C, N) | A (2, 3) | C (3, 4) | P (2, 4)"),
    (ValueError, "be.batched_dot(A, A3, A3)", "A A (2, 3) | A3 (5, 3, 2)"),
    (ValueError, "be.batched_dot(A, A3, C3[:3])", "A3 (5, 3, 2) | C3[...] (3, 2, 4)"),
    (TypeError, "be.batched_dot(A, A3, np.ones((5, 2, 2)))", "a tensor for C | array("),
    (TypeError, "be.batched_dot(A, A3 * 2, C3)", "a tensor for B | mul-tree (5, 3, 2)"),
    (ValueError, "be.batched_dot(foreign23, A3, C3)", "a tensor of | for A, got foreign23 (2, 3)"),
    (ValueError, "be.add_fc_bias(A, b)", "A (2, 3) | b (3, 1)"),
    (TypeError, "be.add_fc_bias(A, 1.0)", "a tensor for bias | 1.0"),
    (TypeError, "be.add_fc_bias(A + 1, r)", "a tensor for inputs | add-tree (2, 3)"),
    (ValueError, "be.add_fc_bias(foreign23, r)", "a tensor of | for inputs, got foreign23 (2, 3)"),
    (ValueError, "be.update_fc_bias(A, b)", "A (2, 3) | b (3, 1)"),
    (TypeError, "be.update_fc_bias(np.ones((2, 3)), r)", "a tensor for err | array("),
    (TypeError, "be.update_fc_bias(A, None)", "a tensor for out | None"),
    (ValueError, "be.update_fc_bias(foreign23, r)", "a tensor of | for err, got foreign23 (2, 3)"),
    # --- recurrent layers ---
    (ValueError, "be.compound_rnn_unroll_fprop(W, prev, ff, out, b, 4, 2, 2, tanh)",
     "W_recur of shape (4, 4) | W (3, 3)"),
    (ValueError, "be.compound_rnn_unroll_fprop(W, prev, ff, out, r, 3, 2, 2, tanh)",
     "bias of shape (3, 1) | r (2, 1)"),
    (ValueError, "be.compound_rnn_unroll_fprop(W, prev, ff, out, b, 3, 3, 3, tanh)",
     "lists of 3 steps, of num_steps 3 | 2, 2, 2"),
    (ValueError, "be.compound_rnn_unroll_fprop(W, prev, ff, out, b, 3, 2, 3, tanh)",
     "lists of 3 steps, of num_steps 2"),
    (ValueError, "be.compound_rnn_unroll_fprop(W, prev, ff, [h3, h4], b, 3, 2, 2, tanh)",
     "(nout, N) | nout 3 | h4 (4, 2)"),
    (ValueError, "be.compound_rnn_unroll_fprop(W, prev, ff, [h3, W], b, 3, 2, 2, tanh)",
     "step | W (3, 3)"),
    (TypeError, "be.compound_rnn_unroll_fprop(W, prev, [h, h2 + 1], out, b, 3, 2, 2, tanh)",
     "a tensor for step | add-tree (3, 2)"),
    (TypeError, "be.compound_rnn_unroll_fprop(np.ones((3, 3)), prev, ff, out, b, 3, 2, 2, tanh)",
     "a tensor for W_recur | array("),
    (ValueError, "be.compound_rnn_unroll_bprop(W, prev, ff, out, 4, 2, 2, nl)",
     "W_recur of shape (4, 4) | W (3, 3)"),
    (TypeError, "be.compound_rnn_unroll_bprop(W, prev, [h, None], out, 3, 2, 2, nl)",
     "a tensor for step | None"),
    (ValueError, "be.compound_rnn_unroll_bprop(foreign23, prev, ff, out, 3, 2, 2, nl)",
     "a tensor of | for W_recur, got foreign23 (2, 3)"),
    (ValueError, "be.compound_rnn_unroll_fprop(W, prev, ff, out, b, 3, 2.5, 2, tanh)",
     "num_steps | integer | 2.5"),
    (TypeError, "be.compound_rnn_unroll_fprop(W, None, ff, out, b, 3, 2, 2, tanh)", "h_prev_s | list | None"),
    (ValueError, "be.compound_rnn_unroll_bprop(W, prev, [h, W], out, 3, 2, 2, nl)", "step | W (3, 3)"),
    # --- look-up tables ---
    (ValueError, "be.compound_bprop_lut(3, words, error5[:, :5], None, dW5, None)",
     "(dim, nin * N) | words (1, 6) | error5[...] (5, 5)"),
    (ValueError, "be.compound_bprop_lut(3, words, error, None, dW5, None)", "dW dW5 (5, 5)"),
    (ValueError, "be.compound_bprop_lut(4, words, error, None, dW, None)", "nin 4 | words (1, 6)"),
    (ValueError, "be.compound_bprop_lut(3, words, error, error, dW, None)", "error_t | error (4, 6)"),
    (TypeError, "be.compound_bprop_lut(3, [1, 2], error, None, dW, None)", "a tensor for inputs"),
    (TypeError, "be.compound_bprop_lut(3, words, error + 1, None, dW, None)",
     "a tensor for error | add-tree (4, 6)"),
    (TypeError, "be.compound_bprop_lut(3, words, error, None, None, None)", "a tensor for dW"),
    (ValueError, "be.compound_bprop_lut(3, words, foreign23, None, dW, None)",
     "a tensor of | for error, got foreign23 (2, 3)"),
    (ValueError, "be.compound_bprop_lut(0, words, error, None, dW, None)", "nin * N | nin 0 | words (1, 6)"),
    (ValueError, "be.compound_bprop_lut(1.5, words, error, None, dW, None)", "nin | integer >= 0 | got 1.5"),
    (ValueError, "be.compound_bprop_lut(3, words, error, None, dW, 1.5)", "pad_idx | integer | got 1.5"),
    (TypeError, "be.compound_bprop_lut(3, words, error, None, dW, None, alpha=None)", "real number for alpha | None"),
    (IndexError, "be.compound_bprop_lut(3, words, error, error_t, dW[:2], None)",
     "words.reshape (6, 1) | index 4 is out of range for size 2"),
    # --- batch normalization ---
    (ValueError, "be.compound_fprop_bn(x, mean, var, gmean, gvar, gamma, r, y, 1e-3, 0.9)",
     "beta of shape (3, 1) | r (2, 1)"),
    (ValueError, "be.compound_fprop_bn(x, *bn, A, 1e-3, 0.9)", "y of shape (3, 8) | A (2, 3)"),
    (TypeError, "be.compound_fprop_bn(np.ones((3, 8)), *bn, y, 1e-3, 0.9)", "a tensor for x | array("),
    (TypeError, "be.compound_fprop_bn(x + 1, *bn, y, 1e-3, 0.9)", "a tensor for x | add-tree (3, 8)"),
    (ValueError, "be.compound_fprop_bn(foreign23, *bn, y, 1e-3, 0.9)", "a tensor of | got foreign23 (2, 3)"),
    (ValueError, "be.compound_bprop_bn(dx, r, dbeta, dy, x, mean, var, gamma, 1e-3)",
     "grad_gamma of shape (3, 1) | r (2, 1)"),
    (ValueError, "be.compound_bprop_bn(A, dgamma, dbeta, dy, x, mean, var, gamma, 1e-3)",
     "delta_out of shape (3, 8) | A (2, 3)"),
    (TypeError, "be.compound_bprop_bn(dx, dgamma, dbeta, None, x, mean, var, gamma, 1e-3)",
     "a tensor for delta_in | None"),
    (ValueError, "be.compound_bprop_bn(foreign23, dgamma, dbeta, dy, x, mean, var, gamma, 1e-3)",
     "a tensor of | for delta_out, got foreign23 (2, 3)"),
    (TypeError, "be.compound_fprop_bn(x, *bn, y, None, 0.9)", "real number for eps | None"),
    (TypeError, "be.compound_fprop_bn(x, *bn, y, 1e-3, 'a')", "real number for rho | 'a'"),
    (TypeError, "be.compound_bprop_bn(dx, dgamma, dbeta, dy, x, mean, var, gamma, '1')", "real number for eps | '1'"),
    # --- regions ---
    (ValueError, "be.roipooling_fprop(images, rois, bins[:9], at, *roi)", "(2, 3, 3, 4) | bins[...] (9, 4)"),
    (ValueError, "be.roipooling_fprop(images[:71], rois, bins, at, *roi)",
     "(C, H, W, N) | images[...] (71, 2)"),
    (ValueError, "be.roipooling_fprop(images, boxes[:3], bins, at, *roi)",
     "rois of shape (4, 5) | boxes[...] (3, 5)"),
    (IndexError, "be.roipooling_fprop(images, be.array(rois.get() + 2), bins, at, *roi)",
     "image indices from 0 to 1"),
    (TypeError, "be.roipooling_fprop(images, rois, bins, bins, *roi)", "argmax | int32 | float32"),
    (TypeError, "be.roipooling_fprop(images.get(), rois, bins, at, *roi)", "a tensor for I | array("),
    (TypeError, "be.roipooling_fprop(images, rois, bins + 1, at, *roi)", "a tensor for O | add-tree"),
    (ValueError, "be.roipooling_fprop(foreign, rois, bins, at, *roi)", "a tensor of | for I, got foreign (75, 2)"),
    (ValueError, "be.roipooling_bprop(bins, rois, images[:71], at, *roi)",
     "(C, H, W, N) | images[...] (71, 2)"),
    (ValueError, "be.roipooling_bprop(bins[:9], rois, images, at, *roi)", "(2, 3, 3, 4) | bins[...] (9, 4)"),
    (TypeError, "be.roipooling_bprop(None, rois, images, at, *roi)", "a tensor for I | None"),
    (TypeError, "be.roipooling_bprop(bins, rois, None, at, *roi)", "a tensor for O | None"),
    (ValueError, "be.roipooling_fprop(images, rois, bins, at, 4, 2, 6, 6.0, 3, 3, 1.0)", "W | integer | got 6.0"),
    (TypeError, "be.roipooling_fprop(images, rois, bins, at, 4, 2, 6, 6, 3, 3, None)",
     "real number for spatial_scale | None"),
    (IndexError, "be.roipooling_bprop(bins, rois, images, astray, *roi)", "argmax from -1 to 35 | astray (18, 4)"),
    (TypeError, "be.nms(rois, None)", "real number for threshold | None"),
    (ValueError, "be.nms(rois.T, 0.5)", "(n, 5) | rois.T (5, 4)"),
    (TypeError, "be.nms(np.ones((4, 5)), 0.5)", "a tensor for detections | array("),
    (TypeError, "be.nms(rois + 1, 0.5)", "a tensor for detections | add-tree (4, 5)"),
    (ValueError, "be.nms(foreign, 0.5)", "a tensor of | for detections, got foreign (75, 2)"),
    # --- a backend that was cleaned up ---
    (RuntimeError, "dead.fprop_conv(dead_conv, gI, gF, gO)", DEAD),
    (RuntimeError, "dead.bprop_conv(dead_conv, gF, gO, gI)", DEAD),
    (RuntimeError, "dead.update_conv(dead_conv, gI, gO, gF)", DEAD),
    (RuntimeError, "dead.fprop_pool(dead_max, gi, go)", DEAD),
    (RuntimeError, "dead.bprop_pool(dead_max, gi, go, gi)", DEAD),
    (RuntimeError, "dead.fprop_lrn(dead_lrn, go, go, go)", DEAD),
    (RuntimeError, "dead.bprop_lrn(dead_lrn, go, go, go, go, go)", DEAD),
    (RuntimeError, "dead.compound_dot(gI, gI, gI)", DEAD),
    (RuntimeError, "dead.batched_dot(gI, gI, gI)", DEAD),
    (RuntimeError, "dead.add_fc_bias(gI, gI)", DEAD),
    (RuntimeError, "dead.update_fc_bias(gI, gI)", DEAD),
    (RuntimeError, "dead.compound_rnn_unroll_fprop(gI, [gI], [gI], [gI], gI, 75, 1, 1, tanh)", DEAD),
    (RuntimeError, "dead.compound_rnn_unroll_bprop(gI, [gI], [gI], [gI], 75, 1, 1, nl)", DEAD),
    (RuntimeError, "dead.compound_bprop_lut(1, gI, gI, None, gI, None)", DEAD),
    (RuntimeError, "dead.compound_fprop_bn(*[gI] * 8, 1e-3, 0.9)", DEAD),
    (RuntimeError, "dead.compound_bprop_bn(*[gI] * 8, 1e-3)", DEAD),
    (RuntimeError, "dead.roipooling_fprop(gI, gI, gI, gI, *roi)", DEAD),
    (RuntimeError, "dead.roipooling_bprop(gI, gI, gI, gI, *roi)", DEAD),
    (RuntimeError, "dead.nms(gI, 0.5)", DEAD),
]
# fmt: on


@each("error, call, words", REFUSED)
def test_a_mistake_names_the_argument_and_nothing_is_written(
    stage: SimpleNamespace, error: type[Exception], call: str, words: str
) -> None:
    tensors = {name: t for name, t in vars(stage).items() if isinstance(t, Tensor)}
    before = {name: t.get() for name, t in tensors.items()}
    with pytest.raises(error) as caught:
        eval(call, {**vars(stage), "np": np, "nl": nl})
    primitive = "be." + call.split("(")[0].split(".")[1]
    for word in [primitive, *words.split(" | ")]:
        assert word in str(caught.value)
    assert len(str(caught.value)) < 400
    for name, t in tensors.items():
        assert np.array_equal(t.get(), before[name]), f"{name} was written to"
