"""Convolution, pooling and normalization of images as op-trees equal PyTorch, and the reference loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.reference import REFERENCE

from neonlite import Autodiff, Backend


def normal(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


def close(tree: Any, expected: Any) -> None:
    np.testing.assert_allclose(tree.asnumpyarray(), expected, rtol=1e-12, atol=1e-12)


# --- padding ---------------------------------------------------------------------------------------------------------

# of images of 6 x 5 pixels and windows of 4 x 3, with strides of 1 and 2
PADDING: dict[str, tuple[Any, Any]] = {
    "none": (0, ((0, 0), (0, 0))),
    "an integer": (1, ((1, 1), (1, 1))),
    "one for each axis": ((0, 2), ((0, 0), (2, 2))),
    "pairs": (((2, 0), (0, 1)), ((2, 0), (0, 1))),
    "an integer and a pair": ([1, (0, 1)], ((1, 1), (0, 1))),
    "valid": ("valid", ((0, 0), (0, 0))),
    "same": ("same", ((1, 2), (1, 1))),  # 6 and 3 windows
}


@pytest.mark.parametrize(("padding", "pairs"), PADDING.values(), ids=PADDING)
def test_padding_is_a_number_of_pixels_before_and_after_each_axis(be64: Backend, padding: Any, pairs: Any) -> None:
    x, f = normal(2, 6, 5, 3), normal(2, 4, 3, 4)
    expected = REFERENCE["conv"](x, f, strides=(1, 2), padding=pairs, dilation=(1, 1), groups=1)
    close(be64.conv(be64.array(x), be64.array(f), strides=(1, 2), padding=padding), expected)
    window = {"window": (1, 4, 3), "strides": (1, 1, 2), "padding": ((0, 0), *pairs), "ceil": False}
    close(be64.pool(be64.array(x), (4, 3), strides=(1, 2), padding=padding), REFERENCE["max_pool"](x, **window))
    mean = REFERENCE["sum_pool"](x, mean=True, **window)
    close(be64.pool(be64.array(x), (4, 3), "avg", strides=(1, 2), padding=padding), mean)


@pytest.mark.parametrize(
    ("size", "window", "stride", "dilation"), [(6, 3, 2, 1), (5, 2, 1, 2), (4, 1, 3, 1), (2, 5, 4, 1)]
)
def test_same_padding_makes_one_window_for_each_stride(size: int, window: int, stride: int, dilation: int) -> None:
    be = Backend("cpu")
    x, f = be.ones((1, size, 1)), be.ones((1, window, 1))
    z = be.conv(x, f, strides=stride, padding="same", dilation=dilation)
    assert z.shape == (1, -(-size // stride), 1)
    (before, after), missing = z.attrs["padding"][0], (z.shape[1] - 1) * stride + dilation * (window - 1) + 1 - size
    assert (before + after, after - before in (0, 1)) == (max(0, missing), True)


# --- PyTorch ---------------------------------------------------------------------------------------------------------

OPTIONS = [{}, {"strides": 2, "padding": 1}, {"padding": 2, "dilation": 2, "groups": 2}, {"strides": 3, "groups": 4}]


def check_against_torch(be: Backend, build: Callable[..., Any], function: Callable[..., Any], *arrays: Any) -> None:
    """Compare images (N, C, *sizes), and their gradients, with a function of PyTorch."""
    import torch

    tensors = [be.array(x) for x in arrays]
    others = [torch.tensor(x, requires_grad=True) for x in arrays]
    tree, expected = build(*tensors), function(*others)
    close(tree, expected.detach().numpy())
    error = normal(*tree.shape)
    gradients = torch.autograd.grad(expected, others, torch.tensor(error))
    for tensor, gradient in zip(tensors, gradients, strict=True):
        (dx,) = Autodiff(tree, be, be.array(error)).get_grad_op_tree([tensor])
        close(dx, gradient.numpy())


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_convolutions_of_nchw_images_are_those_of_pytorch(be64: Backend, axes: int, options: Any) -> None:
    functional = pytest.importorskip("torch").nn.functional
    named = {{"strides": "stride"}.get(name, name): value for name, value in options.items()}
    groups = options.get("groups", 1)
    x, f, e = (
        normal(2, 4, *(7, 6, 5)[:axes]),
        normal(8, 4 // groups, *(3, 2, 1)[:axes]),
        normal(2, 8, *(4, 3, 6)[:axes]),
    )

    def conv(x: Any, f: Any) -> Any:
        return be64.conv(x, f, layout="NCHW", **options)

    def deconv(x: Any, f: Any) -> Any:
        return be64.deconv(x, f, layout="NCHW", **options)

    check_against_torch(be64, conv, lambda x, f: getattr(functional, f"conv{axes}d")(x, f, **named), x, f)
    check_against_torch(be64, deconv, lambda e, f: getattr(functional, f"conv_transpose{axes}d")(e, f, **named), e, f)


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("op", ["max", "avg", "l2"])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_poolings_of_nchw_images_are_those_of_pytorch(be64: Backend, axes: int, op: str, ceil: bool) -> None:
    functional = pytest.importorskip("torch").nn.functional
    x, padding = normal(2, 3, *(7, 6, 5)[:axes]), 0 if op == "l2" else 1
    name, options = {"max": "max_pool", "avg": "avg_pool", "l2": "lp_pool"}[op], {"stride": 2, "ceil_mode": ceil}
    options |= {"max": {"padding": 1}, "avg": {"padding": 1, "count_include_pad": False}, "l2": {}}[op]
    norm = (2,) if op == "l2" else ()

    def pool(x: Any) -> Any:
        return be64.pool(x, 3, op, strides=2, padding=padding, ceil=ceil, layout="NCHW")

    if op == "l2" and ceil:  # PyTorch's counts the pixels outside, too
        return
    check_against_torch(be64, pool, lambda x: getattr(functional, f"{name}{axes}d")(x, *norm, 3, **options), x)


@pytest.mark.parametrize("depth", [1, 2, 5, 9])
def test_lrn_of_nchw_images_is_that_of_pytorch(be64: Backend, depth: int) -> None:
    functional = pytest.importorskip("torch").nn.functional

    def lrn(x: Any) -> Any:
        return be64.lrn(x, depth, 0.5, 0.75, layout="NCHW")

    check_against_torch(
        be64, lrn, lambda x: functional.local_response_norm(x, depth, 0.5, 0.75, 1.0), normal(2, 6, 3, 4)
    )


# --- without PyTorch -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 2])
def test_a_transposed_convolution_is_the_adjoint_of_the_convolution(be64: Backend, groups: int) -> None:
    options: dict[str, Any] = {"strides": (2, 1), "padding": ((1, 0), (2, 1)), "dilation": (1, 2), "groups": groups}
    x, f = normal(4, 6, 7, 3), normal(4 // groups, 3, 2, 6)
    z = be64.conv(be64.array(x), be64.array(f), **options)
    e = normal(*z.shape)
    back = be64.deconv(be64.array(e), be64.array(f), **options)
    assert back.shape == x.shape
    np.testing.assert_allclose((z.asnumpyarray() * e).sum(), (back.asnumpyarray() * x).sum(), rtol=1e-12)


@pytest.mark.parametrize("depth", [1, 2, 4, 5])
def test_lrn_divides_by_a_power_of_the_squares_of_the_neighboring_channels(be64: Backend, depth: int) -> None:
    x = normal(5, 2, 3)
    sums = [(x[max(0, c - depth // 2) : c + (depth - 1) // 2 + 1] ** 2).sum(0) for c in range(5)]
    close(be64.lrn(be64.array(x), depth, 2.0, 0.75), x / (1 + 2 / depth * np.array(sums)) ** 0.75)


def test_the_norm_of_a_window_of_zeros_has_a_gradient_of_zero(be64: Backend) -> None:
    x = be64.array([[[0.0], [0.0], [3.0], [4.0]]])
    z = be64.pool(x, 2, "l2")
    close(z, [[[0], [5]]])
    close(Autodiff(z, be64).get_grad_op_tree([x])[0], [[[0], [0], [0.6], [0.8]]])


def test_the_error_of_a_maximum_goes_to_its_first_pixel(be64: Backend) -> None:
    x = be64.array([[[1.0], [2.0], [2.0], [2.0]]])
    close(Autodiff(be64.pool(x, 3, strides=1), be64).get_grad_op_tree([x])[0], [[[0], [2], [0], [0]]])


def test_a_window_may_cover_channels(be64: Backend) -> None:
    x = normal(6, 4, 2)
    z = be64.pool(be64.array(x), (3, 2), strides=(1, 2))
    assert z.shape == (4, 2, 2)
    close(z, [[x[c : c + 3, i : i + 2].max((0, 1)) for i in (0, 2)] for c in range(4)])
    assert be64.pool(be64.array(x), (3, 2)).shape == (2, 2, 2)


@pytest.mark.parametrize("op", ["max", "avg"])
def test_a_partial_last_window_counts_with_ceil(be64: Backend, op: str) -> None:
    x = be64.array(np.arange(5.0).reshape(1, 5, 1))
    close(be64.pool(x, 2, op, ceil=True), [[[1], [3], [4]]] if op == "max" else [[[0.5], [2.5], [4]]])
    assert be64.pool(x, 2, op).shape == (1, 2, 1)


# --- targets and operands --------------------------------------------------------------------------------------------


def test_a_result_may_replace_its_operand(be: Backend) -> None:
    x, f = normal(4, 5, 6, 3).astype(np.float32), normal(4, 3, 3, 4).astype(np.float32)
    expected = REFERENCE["conv"](x, f, strides=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1), groups=1)
    t = be.array(x)
    assert be.conv(t, be.array(f), padding=1, out=t) is t
    np.testing.assert_allclose(t.get(), expected, rtol=1e-4, atol=1e-5)
    t[:] = x
    t[:] = be.pool(t, 3, strides=1, padding=1) + be.pool(t, 3, "avg", strides=1, padding=1)
    pool: dict[str, Any] = {
        "window": (1, 3, 3),
        "strides": (1, 1, 1),
        "padding": ((0, 0), (1, 1), (1, 1)),
        "ceil": False,
    }
    expected = REFERENCE["max_pool"](x, **pool) + REFERENCE["sum_pool"](x, mean=True, **pool)
    np.testing.assert_allclose(t.get(), expected, rtol=1e-5, atol=1e-5)


def test_operands_may_be_expressions_and_arrays_and_a_part_of_a_target(be64: Backend) -> None:
    x, f = normal(2, 6, 3), normal(2, 3, 4)
    out = be64.zeros((8, 4, 3))
    out[::2] = be64.relu(be64.conv(2 * be64.array(x), f)) + 1
    expected = REFERENCE["conv"](2 * x, f, strides=(1,), padding=((0, 0),), dilation=(1,), groups=1)
    np.testing.assert_allclose(out.get()[::2], np.maximum(expected, 0) + 1, rtol=1e-12)
    assert not out.get()[1::2].any()


def test_a_layer_of_a_network_is_printed_planned_and_differentiated_twice(be64: Backend) -> None:
    x, f = be64.array(normal(2, 6, 6, 3), name="x"), be64.array(normal(2, 3, 3, 4), name="f")
    z = be64.pool(be64.tanh(be64.conv(x, f, padding=1)), 2)
    assert z.pp() == "(max_pool (tanh (conv x f padding=((1, 1), (1, 1)))) strides=(1, 2, 2) window=(1, 2, 2))"
    assert [stage.strip().split(": ")[1].split(";")[0] for stage in repr(be64.plan(z)).splitlines()[1:4]] == [
        "conv",
        "tanh",
        "max_pool",
    ]
    assert be64.plan(be64.conv(x, f)).flops == 2 * (4 * 4 * 4 * 3) * (2 * 3 * 3)
    (df,) = Autodiff(be64.sum(z), be64).get_grad_op_tree([f])
    assert be64.check_grad(be64.sum(df * df))


# --- errors ----------------------------------------------------------------------------------------------------------

ERRORS: dict[str, tuple[Callable[..., Any], type[Exception], str]] = {
    "images": (
        lambda be, x, f: be.conv(be.reshape(x, (18, 4)), f),
        ValueError,
        r"be\.conv: expected images \(C, H, W, N\) and filters \(C, R, S, K\), or with one or three axes of pixels, "
        r"got .*\(18, 4\), f \(2, 2, 2, 6\)\. Reshape a tensor \(C H W, N\) with be\.reshape\(x, \(C, H, W, N\)\)",
    ),
    "images, channels second": (
        lambda be, x, f: be.pool(be.ones((2, 3)), 2, layout="NCHW"),
        ValueError,
        r"be\.pool: expected images \(N, C, H, W\), or .*Reshape a tensor \(N, C H W\)",
    ),
    "filters of another rank": (
        lambda be, x, f: be.conv(x, be.ones((2, 2, 6))),
        ValueError,
        "expected images .*and filters",
    ),
    "channels": (
        lambda be, x, f: be.conv(x, be.ones((3, 2, 2, 6))),
        ValueError,
        r"be\.conv\(x \(2, 3, 3, 4\), .*expected filters of 2 channels, for images of 2 in 1 groups, got 3",
    ),
    "groups": (
        lambda be, x, f: be.conv(x, f, groups=3),
        ValueError,
        r"be\.conv\(.*expected multiples of 3 groups, got 2 channels and 6 filters",
    ),
    "a number of groups": (lambda be, x, f: be.conv(x, f, groups=0), ValueError, "an integer >= 1 for groups, got 0"),
    "a large window": (
        lambda be, x, f: be.conv(x, f, dilation=3),
        ValueError,
        r"a window of 4 \(size 2, dilation 3\) is larger than 3, the size 3 with padding 0 before and 0 after it",
    ),
    "a large pooling window": (
        lambda be, x, f: be.pool(x, (1, 4)),
        ValueError,
        r"max_pool\(x .*a window of 4 .* than 3",
    ),
    "strides": (
        lambda be, x, f: be.conv(x, f, strides=(1, 1, 1)),
        ValueError,
        r"be\.conv: strides: expected an integer, or one for each of 2 axes, got \(1, 1, 1\)",
    ),
    "a stride of 0": (lambda be, x, f: be.deconv(f, f, strides=0), ValueError, r"be\.deconv: expected an integer >= 1"),
    "a window": (
        lambda be, x, f: be.pool(x, "2"),
        ValueError,
        r"be\.pool: window: expected an integer, or one for each of 2 axes, got '2'",
    ),
    "the name of a padding": (
        lambda be, x, f: be.conv(x, f, padding="full"),
        ValueError,
        "expected one of 'same', 'valid' for padding, got 'full'",
    ),
    "three paddings": (
        lambda be, x, f: be.conv(x, f, padding=(1, 1, 1)),
        ValueError,
        r"be\.conv: padding: expected an integer, 'same', 'valid', or an integer or a pair \(before, after\) for each "
        r"of 2 axes, got \(1, 1, 1\)",
    ),
    "a triple": (
        lambda be, x, f: be.conv(x, f, padding=((1, 1, 1), 0)),
        ValueError,
        r"padding: expected pairs \(before, after\), got \(\(1, 1, 1\), 0\)",
    ),
    "a negative padding": (
        lambda be, x, f: be.conv(x, f, padding=-1),
        ValueError,
        "an integer >= 0 for padding, got -1",
    ),
    "a padding as large as the window": (
        lambda be, x, f: be.pool(x, 2, padding=((0, 2), 1)),
        ValueError,
        r"expected a padding smaller than the window of 2, got \(0, 2\)\. Use a padding of at most 1",
    ),
    "a layout": (
        lambda be, x, f: be.conv(x, f, layout="NHWC"),
        ValueError,
        r"be\.conv: expected one of 'CHWN', 'NCHW' for layout, got 'NHWC'",
    ),
    "an op": (
        lambda be, x, f: be.pool(x, 2, "median"),
        ValueError,
        r"be\.pool: expected one of 'max', 'avg', 'l2' for op",
    ),
    "ceil": (lambda be, x, f: be.pool(x, 2, ceil=2), TypeError, r"be\.pool: expected True or False for ceil, got 2"),
    "a name of PyTorch": (
        lambda be, x, f: be.conv(x, f, stride=2),
        TypeError,
        r"be\.conv: expected the options .*, got stride\. Did you mean 'strides'\?",
    ),
    "same padding of a transposed convolution": (
        lambda be, x, f: be.deconv(x, f, padding="same"),
        ValueError,
        r"be\.deconv: expected padding as integers, got 'same'\. Pass \(before, after\) for each axis",
    ),
    "no pixels": (
        lambda be, x, f: be.deconv(be.ones((6, 1, 1, 4)), f, padding=1),
        ValueError,
        r"be\.deconv\(.*expected images with as many channels as there are filters, a multiple of 1 groups, and a "
        r"result of at least one pixel, got 6 channels, 6 filters and a result of \(0, 0\) pixels",
    ),
    "groups of a transposed convolution": (
        lambda be, x, f: be.deconv(be.ones((6, 1, 1, 4)), f, groups=4),
        ValueError,
        "a multiple of 4 groups, .*got 6 channels, 6 filters",
    ),
    "channels of a transposed convolution": (lambda be, x, f: be.deconv(x, f), ValueError, "got 2 channels, 6 filters"),
    "depth": (lambda be, x, f: be.lrn(x, 0), ValueError, r"be\.lrn: expected an integer >= 1 for depth, got 0"),
    "a scale": (lambda be, x, f: be.lrn(x, 3, "1"), TypeError, r"be\.lrn: expected a number for ascale, got '1'"),
    "an exponent": (
        lambda be, x, f: be.lrn(x, 3, 1, None),
        TypeError,
        r"be\.lrn: expected a number for bpower, got None",
    ),
    "a target of another shape": (
        lambda be, x, f: be.conv(x, f, out=be.ones((6, 2, 2, 3))),
        ValueError,
        r"assignment to a tensor \(6, 2, 2, 3\): .* got conv-tree \(6, 2, 2, 4\)",
    ),
}


@pytest.mark.parametrize(("act", "error", "message"), ERRORS.values(), ids=ERRORS)
def test_wrong_arguments_are_refused(
    cpu: Backend, act: Callable[..., Any], error: type[Exception], message: str
) -> None:
    x, f = cpu.ones((2, 3, 3, 4), name="x"), cpu.ones((2, 2, 2, 6), name="f")
    with pytest.raises(error, match=message):
        act(cpu, x, f)
