"""Call forms of the image primitives, and what is written where.

Tests ``neonlite/backend/primitives/images.py`` and ``neonlite/backend/primitives/geometry.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from helpers.image_cases import Conv, Pool, conv_layer, pool_layer
from helpers.image_primitives import conv_truth, every_op, near, pool_truth, values

from neonlite import Backend, Tensor


def fresh(s: SimpleNamespace, like: Tensor) -> Tensor:
    return s.be.array(np.full(like.shape, 0.5), "float64")


def maps(x: Any) -> Any:
    return x.reshape(len(x), -1)


def test_alpha_scales_with_and_without_beta(s: SimpleNamespace) -> None:
    near(s.be.fprop_conv(s.layer, s.I, s.F, fresh(s, s.O), alpha=3), 3 * s.t.o, "fprop")
    near(s.be.fprop_conv(s.layer, s.I, s.F, fresh(s, s.O), alpha=3, beta=2), 3 * s.t.o + 1, "fprop")
    near(s.be.bprop_conv(s.layer, s.F, s.E, fresh(s, s.I), alpha=3), 3 * s.t.d, "bprop")
    near(s.be.bprop_conv(s.layer, s.F, s.E, fresh(s, s.I), alpha=3, beta=2), 3 * s.t.d + 1, "bprop")
    near(s.be.update_conv(s.layer, s.I, s.E, fresh(s, s.F), alpha=3), 3 * s.t.u, "update")
    near(s.be.update_conv(s.layer, s.I, s.E, fresh(s, s.F), alpha=3, beta=2.0), 3 * s.t.u + 1, "update")


def test_numpy_scalars_are_accepted(s: SimpleNamespace) -> None:
    a, b = np.float64(3), np.float32(2)
    near(s.be.fprop_conv(s.layer, s.I, s.F, fresh(s, s.O), alpha=a, beta=b), 3 * s.t.o + 1, "fprop")
    near(s.be.fprop_conv(s.layer, s.I, s.F, fresh(s, s.O), np.float32(3)), 3 * s.t.o, "fprop")
    near(s.be.bprop_conv(s.layer, s.F, s.E, fresh(s, s.I), alpha=a, beta=b), 3 * s.t.d + 1, "bprop")
    near(s.be.update_conv(s.layer, s.I, s.E, fresh(s, s.F), alpha=a, beta=b), 3 * s.t.u + 1, "update")
    pool = s.be.pool_layer("float64", "max", 2, 1)
    two, half = s.be.array([[1, 2]], "float64"), s.be.array([[0.5, 0.5]], "float64")
    assert s.be.fprop_pool(pool, two, half, beta=b).get().tolist() == [[2, 3]]
    assert s.be.bprop_pool(pool, two, two, half, alpha=a, beta=b).get().tolist() == [[7, 12]]
    lrn = s.be.lrn_layer("float64", 2, 1)
    O, D, denom = (s.be.zeros((1, 2), "float64") for _ in range(3))
    near(s.be.fprop_lrn(lrn, two, O, denom, a, np.int32(0), b, np.float16(1)), np.array([[1, 2 / 3]]), "lrn")
    s.be.fprop_lrn(lrn, two, O, denom, None, None, b, np.float16(1))
    near(
        s.be.bprop_lrn(lrn, two, O, two, D, denom, a, np.int32(0), b, np.float16(1)),
        np.array([[-1 / 3, -14 / 27]]),
        "lrn",
    )


def test_beta_adds_X_instead_of_the_target(s: SimpleNamespace) -> None:
    before = s.X.get(), s.Y.get()
    O = s.be.fprop_conv(s.layer, s.I, s.F, fresh(s, s.O), X=s.X, beta=2.0)
    near(O, s.t.o + 2 * before[0].reshape(s.t.o.shape), "fprop")
    D = s.be.bprop_conv(s.layer, s.F, s.E, fresh(s, s.I), X=s.Y, beta=2.0)
    near(D, s.t.d + 2 * before[1].reshape(s.t.d.shape), "bprop")
    assert np.array_equal(s.X.get(), before[0])
    assert np.array_equal(s.Y.get(), before[1])
    near(s.be.fprop_conv(s.layer, s.I, s.F, s.X, X=s.X, beta=2), s.t.o + 2 * before[0].reshape(s.t.o.shape), "same")


def test_with_beta_nothing_else_is_done(s: SimpleNamespace) -> None:
    more = {"bias": s.bias_K, "bsum": s.bsum_K, "relu": True, "slope": 0.1, "X": s.X}
    near(s.be.fprop_conv(s.layer, s.I, s.F, fresh(s, s.O), beta=1, **more), s.t.o + maps_like(s.X, s.t.o), "fprop")
    more = {"bias": s.bias_C, "bsum": s.bsum_C, "brelu": True, "slope": 0.1, "X": s.Y}
    near(s.be.bprop_conv(s.layer, s.F, s.E, fresh(s, s.I), beta=1, **more), s.t.d + maps_like(s.Y, s.t.d), "bprop")
    assert np.isnan(s.bsum_K.get()).all()
    assert np.isnan(s.bsum_C.get()).all()


def maps_like(t: Tensor, wanted: Any) -> Any:
    return t.get().reshape(wanted.shape)


AFTER: list[dict[str, Any]] = [
    {"bias": True},
    {"bsum": True},
    {"relu": True},
    {"relu": True, "slope": 0.25},
    {"slope": 0.25},
    {"brelu": True},
    {"brelu": True, "slope": 0.25},
    {"brelu": True, "relu": True},
    {"bias": True, "relu": True, "bsum": True, "alpha": -2.0},
    {"bias": True, "brelu": True, "slope": -1.0, "bsum": True, "alpha": 0.5},
    {"bias": True, "relu": True, "slope": 2, "bsum": True, "X": True},
]


@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("after", AFTER, ids=str)
def test_bias_then_relu_then_sums_follow(s: SimpleNamespace, after: dict[str, Any], forward: bool) -> None:
    bias, bsum, X = (s.bias_K, s.bsum_K, s.X) if forward else (s.bias_C, s.bsum_C, s.Y)
    wanted = maps(s.t.o if forward else s.t.d) * after.get("alpha", 1)
    slope, x = after.get("slope", 0), X.get().reshape(wanted.shape)
    if "bias" in after:
        wanted = wanted + bias.get()
    if "brelu" in after:
        wanted = wanted * np.where(x > 0, 1, np.where(x < 0, slope, 0))
    elif "relu" in after:
        wanted = np.where(wanted > 0, wanted, slope * wanted)
    given = after | {k: t for k, t in (("bias", bias), ("bsum", bsum)) if k in after}
    if "brelu" in after or "X" in after:
        given["X"] = X
    if forward:
        got = s.be.fprop_conv(s.layer, s.I, s.F, fresh(s, s.O), **given)
    else:
        got = s.be.bprop_conv(s.layer, s.F, s.E, fresh(s, s.I), **given)
    near(got, wanted, after)
    if "bsum" in after:
        near(bsum, wanted.sum(axis=1, keepdims=True), after, "float32")
    else:
        assert np.isnan(bsum.get()).all()


def test_a_layer_object_may_ask_for_relu(s: SimpleNamespace) -> None:
    sizes = (2, 3, 4, 1, 5, 4, 1, 3, 2, 0, 1, 0, 1, 2, 1)
    for layer in (s.be.conv_layer("float64", *sizes, True), s.be.conv_layer("float64", *sizes, relu=True, bsum=True)):
        assert layer.dilation == (1, 1, 1)
        near(s.be.fprop_conv(layer, s.I, s.F, fresh(s, s.O)), np.maximum(s.t.o, 0), "relu")


def test_dilations_come_by_position_or_name(be: Backend) -> None:
    start = (2, 3, 4, 1, 7, 7, 1, 3, 3, 0, 0, 0, 1, 1, 1)
    for layer in (
        be.conv_layer("float32", *start, 1, 2, 3),
        be.conv_layer("float32", *start, dil_h=2, dil_w=3),
        be.conv_layer("float32", *start, 1, dil_h=2, dil_w=3),
        be.conv_layer("float32", *start, 1, 2, dil_w=3),
        be.conv_layer("float32", *start, False, False, 1, 2, 3),
    ):
        assert layer.dilation == (1, 2, 3)
        assert not layer.relu
        assert layer.MPQ == (1, 3, 1)


# What is called, and what the target, 0.5 all over before, holds after it.
# fmt: off
FORMS: list[tuple[str, str]] = [
    ("fprop_conv(layer, I, F, O)", "o"),
    # as the guide does: alpha, relu, repeat
    ("fprop_conv(layer, I, F, O, 2.0)", "2 * o"),
    ("fprop_conv(layer, I, F, O, 2)", "2 * o"),
    ("fprop_conv(layer, I, F, O, 2.0, True)", "2 * relu(o)"),
    ("fprop_conv(layer, I, F, O, 2.0, False)", "2 * o"),
    ("fprop_conv(layer, I, F, O, 1.0, True, 3)", "relu(o)"),
    ("fprop_conv(layer, I, F, O, 1.0, False, 3)", "o"),
    ("fprop_conv(layer, I=I, F=F, O=O, alpha=2.0, relu=True, repeat=2)", "2 * relu(o)"),
    ("fprop_conv(layer, I, F, O, 2.0, relu=True)", "2 * relu(o)"),
    ("fprop_conv(layer, I, F, O, 2.0, bias=bias_K)", "2 * o + b"),
    # as neon does: X, bias, bsum, alpha, beta, relu, brelu, slope, layer_op
    ("fprop_conv(layer, I, F, O, None, bias_K, bsum_K, 2.0, 0.0, True, False, 0.0, None)", "relu(2 * o + b)"),
    ("fprop_conv(layer, I, F, O, X, None, None, 1.0, 2.0)", "o + 2 * x"),
    ("fprop_conv(layer=layer, I=I, F=F, O=O, bias=bias_K, layer_op=object())", "o + b"),
    ("bprop_conv(layer, F, E, D)", "d"),
    ("bprop_conv(layer, F, E, D, 2.0)", "2 * d"),
    ("bprop_conv(layer, F, E, D, 2.0, 3)", "2 * d"),
    ("bprop_conv(layer, F=F, E=E, grad_I=D, alpha=2.0, repeat=2)", "2 * d"),
    ("bprop_conv(layer, F, E, D, 2.0, bias=bias_C)", "2 * d + c"),
    ("bprop_conv(layer, F, E, D, None, bias_C, bsum_C, 2.0, 0.0, True, False, 0.0, None)", "relu(2 * d + c)"),
    ("bprop_conv(layer, F, E, D, Y, None, None, 1.0, 2.0)", "d + 2 * y"),
    ("bprop_conv(layer, F, E, grad_I=D, alpha=1.0, beta=1.0)", "d + 0.5"),
    ("update_conv(layer, I, E, U)", "u"),
    ("update_conv(layer, I, E, U, 2.0)", "2 * u"),
    ("update_conv(layer, I, E, U, 2.0, 3)", "2 * u"),
    ("update_conv(layer, I=I, E=E, grad_F=U, alpha=2.0, repeat=2)", "2 * u"),
    ("update_conv(layer, I, E, U, 2.0, 1.0, bias_K, None)", "2 * u + 0.5"),
    ("update_conv(layer, I, E, U=U, grad_bias=bias_K, layer_op=None)", "u"),
]


@pytest.mark.parametrize(("call", "wanted"), FORMS, ids=[call for call, _ in FORMS])
def test_convolutions_are_called_as_the_guide_and_as_neon_do(s: SimpleNamespace, call: str, wanted: str) -> None:
    for name in "ODU":
        s.__dict__[name].fill(0.5)
    named = {
        **vars(s.t),
        "relu": lambda x: np.maximum(x, 0),
        "x": maps_like(s.X, s.t.o),
        "y": maps_like(s.Y, s.t.d),
        "b": s.bias_K.get()[..., None, None, None],
        "c": s.bias_C.get()[..., None, None, None],
    }
    near(eval(f"be.{call}", vars(s)), eval(wanted, named), call)


def test_the_gradient_of_a_bias_is_the_sum_of_errors_and_does_not_add_up(s: SimpleNamespace) -> None:
    for beta in (0.0, 1.0):
        s.be.update_conv(s.layer, s.I, s.E, fresh(s, s.F), beta=beta, grad_bias=s.bias_K)
        near(s.bias_K, maps(s.t.e).sum(axis=1, keepdims=True), beta)


def test_deconvolutions_are_made_as_the_guide_and_as_neon_do(be: Backend) -> None:
    for layer in (
        be.deconv_layer("float32", 2, 3, 4, 5, 6, 3, 2, 0, 1, 0, 1, 2, 3),  # the guide's: P, Q, R, S ...
        be.deconv_layer("float32", 2, 3, 4, P=5, Q=6, R=3, S=2, pad_d=0, pad_h=1, pad_w=0, str_d=1, str_h=2, str_w=3),
        be.deconv_layer("float32", N=2, C=3, K=4, P=5, Q=6, R=3, S=2, pad_h=1, str_h=2, str_w=3),
        be.deconv_layer("float32", 2, 3, 4, 5, 6, 3, 2, pad_h=1, str_h=2, str_w=3),
        be.deconv_layer("float32", 2, 3, 4, 5, 6, R=3, S=2, pad_h=1, str_h=2, str_w=3),
        be.deconv_layer("float32", 2, 3, 4, 1, 5, 6, 1, 3, 2, 0, 1, 0, 1, 2, 3),  # neon's: M, P, Q, T, R, S ...
        be.deconv_layer("float32", 2, 3, 4, 1, 5, 6, 1, 3, 2, 0, 1, 0, 1, 2, 3, 1, 1, 1),
        be.deconv_layer("float32", 2, 3, 4, 1, 5, 6, 1, 3, 2, pad_h=1, str_h=2, str_w=3, dil_d=1),
    ):
        assert (layer.dimI, layer.dimO, layer.dimF) == ((3, 1, 9, 17, 2), (4, 1, 5, 6, 2), (3, 1, 3, 2, 4))
        assert layer.dilation == (1, 1, 1)
    assert be.deconv_layer("float32", 2, 3, 4, 5, 6).dimI == (3, 1, 5, 6, 2)


POOL_CASES = {
    "smaller": Pool(2, (2, 1, 5, 4), (1, 1, 3, 2), (0, 0, 1, 0), (1, 1, 2, 1)),
    "as large": Pool(2, (2, 1, 4, 5), (1, 1, 3, 3), (0, 0, 1, 1)),
    "larger": Pool(2, (1, 1, 2, 2), (1, 1, 2, 2), (0, 0, 1, 1)),
}


# fmt: off
POOL_FORMS: list[tuple[str, str]] = [
    ("max avg l2", "bprop_pool(layer, I, E, D)"),  # the guide's
    ("max avg l2", "bprop_pool(layer, I=I, E=E, grad_I=D)"),
    ("max avg l2", "bprop_pool(layer, I, E, delta=D)"),
    ("max avg l2", "bprop_pool(layer, I, E, D, 1.0, 0.0)"),
    ("max avg l2", "bprop_pool(layer, I, E, D, argmax=places)"),
    ("max avg", "bprop_pool(layer, E, D, places)"),  # neon's
    ("max avg", "bprop_pool(layer, E, D, places, 1.0, 0.0)"),
    ("max avg", "bprop_pool(layer, E, D, argmax=places)"),
    ("max avg", "bprop_pool(layer, E, delta=D, argmax=places)"),
    ("max avg", "bprop_pool(layer, E=E, delta=D, argmax=places)"),
    ("max avg", "bprop_pool(layer, E=E, grad_I=D, argmax=places)"),
    ("max avg", "bprop_pool(layer, E, grad_I=D, argmax=places)"),
    ("avg", "bprop_pool(layer, E, D)"),
    ("avg", "bprop_pool(layer, E, D, None, 1.0, 0.0)"),
]


@pytest.mark.parametrize("case", POOL_CASES.values(), ids=POOL_CASES)
@every_op
def test_the_error_of_pooling_is_asked_for_as_the_guide_and_as_neon_do(be64: Backend, op: str, case: Pool) -> None:
    be, t = be64, pool_truth(op, case)
    layer, I, E = pool_layer(be, "float64", op, case), be.array(t.i), be.array(t.e)
    places = be.array(t.places, dtype="int32")
    for ops, call in POOL_FORMS:
        if op in ops:
            D = be.array(np.full(t.d.shape, np.nan))
            near(eval(f"be.{call}", {**locals()}), t.d, call)


def test_argmax_may_have_any_integer_dtype(be: Backend) -> None:
    case = POOL_CASES["smaller"]
    truth, layer = pool_truth("max", case), pool_layer(be, "float32", "max", case)
    I, E = be.array(truth.i), be.array(truth.e)
    for dtype in ("uint8", "int8", "int16", "uint16", "int32", "uint32", "int64"):
        if dtype in be.runtime.dtypes:
            places = be.zeros((layer.dimO2), dtype)
            be.fprop_pool(layer, I, be.zeros(layer.dimO2), places)
            np.testing.assert_array_equal(places.get().reshape(layer.dimO), truth.places)
            near(be.bprop_pool(layer, E, be.zeros(layer.dimI2), places), truth.d, dtype, "float32")


# --- memory: what is written where -----------------------------------------------------------------------------------


class Call(NamedTuple):
    """A primitive: how it is called with a result and operands, and the shapes of these."""

    run: Callable[..., Any]
    out: tuple[int, ...]
    operands: list[tuple[int, ...]]


def calls(be: Backend) -> dict[str, Call]:
    conv = be.conv_layer("float64", 2, 3, 4, 1, 5, 4, 1, 3, 2, 0, 1, 0, 1, 2, 1)
    pools = {
        op: be.pool_layer("float64", op, 2, 3, 1, 4, 3, 1, 1, 2, 2, str_h=1, str_w=1, pad_w=1)
        for op in ("max", "avg", "l2")
    }
    lrn = be.lrn_layer("float64", 2, 3, 1, 2, 2, 3)
    i, f, o = (conv.dimI2, conv.dimF2, conv.dimO2)
    many = {
        "fprop_conv": Call(lambda O, I, F, **more: be.fprop_conv(conv, I, F, O, **more), o, [i, f]),
        "fprop_conv beta": Call(lambda O, I, F, X: be.fprop_conv(conv, I, F, O, X=X, beta=2.0), o, [i, f, o]),
        "fprop_conv brelu": Call(lambda O, I, F, X: be.fprop_conv(conv, I, F, O, X=X, brelu=True), o, [i, f, o]),
        "fprop_conv bias": Call(lambda O, I, F, b: be.fprop_conv(conv, I, F, O, bias=b, relu=True), o, [i, f, (4, 1)]),
        "fprop_conv bsum": Call(
            lambda b, I, F: be.fprop_conv(conv, I, F, be.zeros(o, "float64"), bsum=b), (4, 1), [i, f]
        ),
        "bprop_conv": Call(lambda D, F, E, **more: be.bprop_conv(conv, F, E, D, **more), i, [f, o]),
        "bprop_conv brelu": Call(lambda D, F, E, X: be.bprop_conv(conv, F, E, D, X=X, brelu=True), i, [f, o, i]),
        "update_conv": Call(lambda U, I, E, **more: be.update_conv(conv, I, E, U, **more), f, [i, o]),
        "grad_bias": Call(
            lambda b, I, E: be.update_conv(conv, I, E, be.zeros(f, "float64"), grad_bias=b), (4, 1), [i, o]
        ),
        "fprop_lrn": Call(
            lambda O, I, **more: be.fprop_lrn(lrn, I, O, be.zeros(lrn.dimI, "float64"), bpower=0.5, **more),
            *(lrn.dimI2, [lrn.dimI2]),
        ),
        "denom": Call(lambda d, I: be.fprop_lrn(lrn, I, be.zeros(lrn.dimI, "float64"), d), lrn.dimI2, [lrn.dimI2]),
        "bprop_lrn": Call(
            lambda D, I, O, E, d, **more: be.bprop_lrn(lrn, I, O, E, D, d, bpower=0.5, **more),
            *(lrn.dimI2, [lrn.dimI2] * 4),
        ),
    }
    for op, pool in pools.items():
        i, o = pool.dimI2, pool.dimO2
        many[f"fprop_pool {op}"] = Call(lambda O, I, pool=pool, **more: be.fprop_pool(pool, I, O, **more), o, [i])
        many[f"bprop_pool {op}"] = Call(
            lambda D, I, E, pool=pool, **more: be.bprop_pool(pool, I, E, D, **more), i, [i, o]
        )
    return many


def operands(be: Backend, call: Call) -> list[Tensor]:
    return [be.array(values(n, *shape) + (n == 3), "float64") for n, shape in enumerate(call.operands)]


class Guard:
    """Primitives that refuse to write where they read, so that fast ones may write before they have read all."""

    results: ClassVar = {
        "conv_fprop": {3},
        "try_conv_bias": {3},
        "conv_bprop": {3},
        "conv_update": {3},
        "pool_fprop": {2, 3},
        "pool_bprop": {3},
        "lrn_fprop": {2, 3},
        "lrn_bprop": {3},
    }

    def __init__(self, primitives: Any) -> None:
        self.primitives = primitives

    def __getattr__(self, name: str) -> Any:
        def guarded(*args: Any) -> Any:
            each = {n: getattr(x, "array", x) for n, x in enumerate(args)}
            if name == "pool_bprop" and args[0].op == "avg":
                del each[1]  # of the images only the layout is used
            arrays = {n: x for n, x in each.items() if isinstance(x, np.ndarray)}
            for n in self.results.get(name, set()) & {*arrays}:
                assert not any(np.shares_memory(arrays[n], x) for m, x in arrays.items() if m != n), (name, n)
            return getattr(self.primitives, name)(*args)

        return guarded


def test_a_target_may_share_memory_with_any_operand(be: Backend) -> None:
    be.primitives = Guard(be.primitives)
    for name, call in calls(be).items():
        separate = operands(be, call)
        wanted = call.run(out := be.zeros(call.out, "float64"), *separate) and out.get()
        for n, x in enumerate(separate):
            for shift in {0, 1, x.size - 1}:
                whole = be.zeros((x.size + shift + math.prod(call.out), 1), "float64")
                operand = whole[shift : shift + x.size].reshape(x.shape)
                target = whole[: math.prod(call.out)].reshape(call.out)
                operand[:] = x
                call.run(target, *separate[:n], operand, *separate[n + 1 :])
                near(target, wanted, (name, n, shift))


ADDING = ["fprop_conv", "bprop_conv", "update_conv", "fprop_lrn", "bprop_lrn"]


ADDING += [f"{way}_pool {op}" for way in ("fprop", "bprop") for op in ("max", "avg", "l2")]


def test_a_target_with_beta_may_be_strided_or_share_memory(be: Backend) -> None:
    for name, call in calls(be).items():
        if name not in ADDING:
            continue
        separate = operands(be, call)
        call.run(out := be.zeros(call.out, "float64"), *separate)
        target, _ = gapped(be, np.full(call.out, 0.5), 2)
        call.run(target, *separate, beta=2.0)
        near(target, out.get() + 1, name)
        for n, x in enumerate(separate):
            whole = be.ones((x.size + math.prod(call.out), 1), "float64")
            operand, target = whole[1 : 1 + x.size].reshape(x.shape), whole[: math.prod(call.out)].reshape(call.out)
            operand[:] = x
            held = target.get()
            call.run(target, *separate[:n], operand, *separate[n + 1 :], beta=2.0)
            near(target, out.get() + 2 * held, (name, n))


def test_repeated_work_over_an_operand_begins_with_what_it_held(be64: Backend) -> None:
    layer = be64.conv_layer("float64", 1, 1, 1, H=1, W=3)
    I, F = be64.array([[1], [2], [3]]), be64.array([[2]])
    assert be64.fprop_conv(layer, I, F, be64.zeros((3, 1)), repeat=3).get().ravel().tolist() == [2, 4, 6]


def test_no_operand_is_changed(be: Backend) -> None:
    for name, call in calls(be).items():
        given = operands(be, call)
        before = [x.get() for x in given]
        call.run(be.zeros(call.out, "float64"), *given)
        for n, x in enumerate(given):
            assert np.array_equal(x.get(), before[n]), (name, n)


def gapped(be: Backend, value: Any, step: int) -> tuple[Tensor, Tensor]:
    """Return a view of every other column, or of the first ones, that holds a value; and the whole, 7 elsewhere."""
    rows, columns = value.shape
    whole = be.array(np.full((rows, columns * 2 + 1), 7.0), value.dtype.name)
    view = whole[:, ::2][:, :columns] if step == 2 else whole[:, :columns]
    view[:] = be.array(value, value.dtype.name)
    assert view.is_contiguous == (value.shape[0] == 1 and step == 1)
    return view, whole


@pytest.mark.parametrize("step", [1, 2])
def test_operands_and_targets_may_be_strided(be: Backend, step: int) -> None:
    for name, call in calls(be).items():
        given = operands(be, call)
        call.run(out := be.zeros(call.out, "float64"), *given)
        target, whole = gapped(be, np.full(call.out, np.nan), step)
        call.run(target, *(gapped(be, x.get(), step)[0] for x in given))
        near(target, out.get(), name)
        assert (whole.get() == 7).sum() == whole.size - target.size, name


def test_argmax_may_be_strided(be64: Backend) -> None:
    be = be64
    case = POOL_CASES["smaller"]
    t, layer = pool_truth("max", case), pool_layer(be, "float64", "max", case)
    places, whole = gapped(be, np.full(layer.dimO2, 5, np.int32), 1)
    be.fprop_pool(layer, be.array(t.i), be.zeros(layer.dimO2), places)
    np.testing.assert_array_equal(places.get().reshape(t.places.shape), t.places)
    assert (whole.get()[:, layer.N :] == 7).all()
    near(be.bprop_pool(layer, be.array(t.e), be.zeros(layer.dimI2), places), t.d, case)


def test_bias_and_sums_may_be_strided(s: SimpleNamespace) -> None:
    bias, _ = gapped(s.be, s.bias_K.get().T.copy(), 2)
    bsum, _ = gapped(s.be, np.zeros((1, 4)), 2)
    near(
        s.be.fprop_conv(s.layer, s.I, s.F, s.O, bias=bias, bsum=bsum), s.t.o + s.bias_K.get()[..., None, None, None], 0
    )
    near(bsum, maps(s.O.get().reshape(s.t.o.shape)).sum(axis=1)[None], "bsum")
    s.be.update_conv(s.layer, s.I, s.E, s.U, grad_bias=bsum)
    near(bsum, maps(s.t.e).sum(axis=1)[None], "grad_bias")


def test_filters_and_errors_may_be_transposed_views(s: SimpleNamespace) -> None:
    F, I, E = (s.be.array(x.get().T.copy(), "float64").T for x in (s.F, s.I, s.E))
    assert not F.is_contiguous
    near(s.be.fprop_conv(s.layer, I, F, fresh(s, s.O)), s.t.o, "fprop")
    near(s.be.bprop_conv(s.layer, F, E, fresh(s, s.I)), s.t.d, "bprop")
    U = s.be.zeros(s.F.shape[::-1], "float64").T
    near(s.be.update_conv(s.layer, I, E, U), s.t.u, "update")


def test_tensors_may_have_any_shape_of_as_many_elements(s: SimpleNamespace) -> None:
    flat, wide = s.I.reshape(-1, 1), s.F.reshape(s.layer.dimF)
    O = s.be.zeros((1, s.O.size), "float64")
    near(s.be.fprop_conv(s.layer, flat, wide, O), s.t.o, "flat")


def test_dtypes_are_the_layers_and_not_the_backends(be64: Backend) -> None:
    case = Conv(2, 3, 4, (1, 5, 4), (1, 3, 2), (0, 1, 0), (1, 2, 1))
    t, layer = conv_truth(case), conv_layer(be64, "float32", case)
    I, F, O = be64.array(t.i, "float32"), be64.array(t.f, "float32"), be64.zeros(layer.dimO, "float32")
    be64.fprop_conv(layer, I, F, O, relu=True, slope=0.5, bias=be64.zeros((4, 1)), bsum=(bsum := be64.zeros((4, 1))))
    assert (O.info.dtype, bsum.info.dtype) == ("float32", "float64")
    near(O, np.where(t.o > 0, t.o, t.o / 2), case, "float32")
