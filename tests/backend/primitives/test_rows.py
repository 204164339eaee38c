"""The primitives compute in plans what the forward functions of the ops for images do."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from helpers.op_cases import CASES, Case, fill
from helpers.runtimes import RUNTIMES, new_backend

from neonlite import Backend
from neonlite.backend.primitives.rows import convolution_layer
from neonlite.backend.runtimes.onednn.bindings import get_library
from neonlite.ops import OPS

NAMES = ["conv", "conv_backward", "conv_update", "max_pool", "max_pool_indices", "max_unpool", "sum_pool", "sum_unpool"]
USES_PRIMITIVES = [name for name in RUNTIMES if name in ("cpu", "mkl", "gpu", "simulated")]


@pytest.fixture(params=USES_PRIMITIVES)
def runtime(request: pytest.FixtureRequest) -> Backend:
    """A backend of a runtime that uses primitives in plans."""
    return new_backend(request.param)


def build(be: Backend, case: Case, dtype: str, is_strided: bool = False) -> tuple[Any, list[Any]]:
    """Return the tree of a case, and its operands as arrays; with ``is_strided``, the operands are transposed."""
    arrays = [x.astype(dtype) if x.dtype.kind == "f" else x.astype("uint8") for x in fill(case)]
    tensors = [be.array(x.T if is_strided else x, dtype=x.dtype.name) for x in arrays]
    tensors = [x.permute(range(x.ndim)[::-1]) if is_strided else x for x in tensors]
    return be.build(case.op, *tensors, **case.attrs), arrays


def has_primitive(case: Case) -> bool:
    """Return whether a primitive computes float64, of which oneDNN has no groups."""
    shapes = [np.shape(x) if isinstance(x, np.ndarray) else x for x in (*case.operands, case.attrs.get("to", ""))]
    is_empty = any(0 in shape for shape in shapes if shape and isinstance(shape, tuple))
    return not is_empty and case.attrs.get("groups", 1) == 1


@pytest.mark.parametrize("is_strided", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_primitive_computes_what_the_forward_function_does(runtime: Backend, name: str, is_strided: bool) -> None:
    for case in CASES[name]:
        tree, arrays = build(runtime, case, "float64", is_strided)
        plan = runtime.plan(tree)
        assert len(plan.primitives) == has_primitive(case), case
        expected = OPS[name].run(np, *arrays, **case.attrs)
        np.testing.assert_allclose(tree.get(), expected, rtol=1e-12, atol=1e-12, err_msg=str(case))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("name", NAMES)
def test_other_dtypes_have_the_primitives_of_their_library(runtime: Backend, name: str, dtype: str) -> None:
    case = next(case for case in CASES[name] if has_primitive(case))
    tree, _ = build(runtime, case, dtype)
    is_float = dtype != "int32" or name.startswith(("conv", "sum"))  # of integers, these are floats
    halves = runtime.runtime.supports_half
    assert len(runtime.plan(tree).primitives) == (is_float and (dtype != "float16" or halves)), dtype


def test_a_view_is_copied_for_a_primitive_and_other_steps_are_fused(runtime: Backend) -> None:
    rng = np.random.default_rng(0)
    x, f = rng.standard_normal((2, 6, 5, 3)), rng.standard_normal((2, 3, 3, 4))
    t, filters = runtime.array(x, "float64"), runtime.array(f, "float64")
    z = runtime.conv(runtime.transpose(t + 1, (0, 2, 1, 3)), filters)
    tree = 2 * runtime.build("slice", z, index=((0, 2, 2), (0, 3, 1), (0, 4, 1), (0, 3, 1))) + 1
    plan = runtime.plan(tree)
    assert [plan.step_of(v).op.name for v in plan.primitives] == ["conv"]
    attrs: dict[str, Any] = {"strides": (1, 1), "padding": ((0, 0),) * 2, "dilation": (1, 1), "groups": 1}
    expected = 2 * OPS["conv"].run(np, (x + 1).transpose(0, 2, 1, 3), f, **attrs)[::2] + 1
    np.testing.assert_allclose(tree.get(), expected, rtol=1e-12)


def test_a_reshape_is_skipped_and_a_slice_is_not(runtime: Backend) -> None:
    x, f = np.random.default_rng(0).standard_normal((4 * 6, 3)), np.ones((2, 2, 1))
    t = runtime.array(x, "float64")
    images = runtime.reshape(t, 4, 6, 3)
    attrs: dict[str, Any] = {"strides": (1,), "padding": ((0, 0),), "dilation": (1,), "groups": 1}
    for start in (0, 2):
        part = runtime.build("slice", images, index=((start, 2, 1), (0, 6, 1), (0, 3, 1)))
        tree = runtime.conv(part, runtime.array(f, "float64"))
        plan = runtime.plan(tree)
        (call,) = plan.primitives.values()
        assert plan.step_of(call.inputs[0]).op.name == "slice"
        expected = OPS["conv"].run(np, x.reshape(4, 6, 3)[start : start + 2], f, **attrs)
        np.testing.assert_allclose(tree.get(), expected, rtol=1e-12)
    plan = runtime.plan(runtime.pool(images, 2))
    (call,) = plan.primitives.values()
    assert call.inputs == (0,)


@pytest.mark.parametrize("groups", [2, 4, 8])
def test_groups_are_computed_by_a_primitive_that_supports_them(runtime: Backend, groups: int) -> None:
    rng, primitives = np.random.default_rng(0), cast(Any, runtime.primitives)
    attrs: dict[str, Any] = {"strides": (1, 2), "padding": ((0, 1), (1, 1)), "dilation": (1, 1), "groups": groups}
    shapes = {"I": (8, 8, 8, 32), "F": (8 // groups, 3, 3, 16), "O": (16, 7, 4, 32)}
    for name, roles in [("conv", "IFO"), ("conv_backward", "OFI"), ("conv_update", "IOF")]:
        x, y = (rng.standard_normal(shapes[role]).astype(np.float32) for role in roles[:2])
        options = attrs if name == "conv" else attrs | {"to": shapes[roles[2]]}
        tree = runtime.build(name, runtime.array(x), runtime.array(y), **options)
        plan = runtime.plan(tree)
        (step,) = plan.steps
        layer = convolution_layer(step, "float32", **shapes)
        assert (layer.groups, layer.dimF, layer.padding_after) == (groups, (8 // groups, 1, 3, 3, 16), (0, 1, 0))
        assert not layer.has_equal_padding
        has_onednn = runtime.name in ("cpu", "mkl") and get_library() is not None
        assert bool(plan.primitives) == primitives.computes(name, layer) == has_onednn
        expected = OPS[name].run(np, x.astype(float), y.astype(float), **options)
        np.testing.assert_allclose(tree.get(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_a_primitive_finds_the_largest_pixels_of_regions_of_floats(runtime: Backend, dtype: str) -> None:
    rng = np.random.default_rng(0)
    x = np.round(rng.standard_normal((6, 5, 3, 2)) * 4).astype(dtype)  # with equal pixels
    regions = np.array([[0, 0, 0, 3, 3], [1, 1, 1, 9, 9], [0, 2, 2, 2, 2], [1, 9, 9, 12, 12]], np.float32).T
    attrs = {"bins": (2, 2), "scale": 0.5}
    expected = OPS["roi_pool_indices"].run(np, x.transpose(3, 1, 2, 0), regions, **attrs)
    for images in (
        runtime.array(x.transpose(3, 1, 2, 0), dtype=dtype),
        runtime.array(x, dtype=dtype).permute((3, 1, 2, 0)),
    ):
        tree = runtime.build("roi_pool_indices", images, runtime.array(regions), **attrs)
        assert len(runtime.plan(tree).primitives) == (dtype != "int32")
        np.testing.assert_array_equal(tree.get(), expected)
    for wrong, error in [(np.full((5, 1), 7.0), IndexError), (np.full((5, 1), np.inf), ValueError)]:
        tree = runtime.build("roi_pool_indices", images, runtime.array(wrong), **attrs)
        with pytest.raises(error):
            tree.get()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_maxima_and_their_positions_are_those_of_two_plans(runtime: Backend, dtype: str) -> None:
    x = runtime.array(np.random.default_rng(0).permutation(2 * 6 * 6 * 3).reshape(2, 6, 6, 3), dtype)
    attrs: dict[str, Any] = {"window": (1, 2, 2), "strides": (1, 2, 2), "padding": ((0, 0),) * 3, "ceil": False}
    trees = [runtime.build("max_pool", x, **attrs), runtime.build("max_pool_indices", x, to="uint8", **attrs)]
    targets = [runtime.empty(tree.shape, tree.dtype.name).fill(99) for tree in trees]
    runtime.compile(targets, trees)()
    for mine, tree in zip(targets, trees, strict=True):
        np.testing.assert_array_equal(mine.get(), tree.get())
