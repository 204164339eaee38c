"""The ops in plans that the primitives of the runtime compute: those for images, and recurrence over time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from neonlite.backend.planning import Plan
from neonlite.backend.planning.layout import ImageOperand, ImageShape, NHWCImages
from neonlite.backend.planning.steps import Step
from neonlite.backend.primitives import ReferencePrimitives
from neonlite.backend.primitives.geometry import ConvLayer, PoolLayer
from neonlite.backend.primitives.recurrent import CompilePlan, find_recurrences
from neonlite.dtypes import FLOAT_DTYPES, HALF_DTYPES
from neonlite.ops.images import check_regions
from neonlite.ops.shapes import Shape
from neonlite.typing import NativeArray

# {op: (what its operands and its result are: images I, filters F or outputs O; the call of the primitive)}
CONVOLUTIONS: dict[str, tuple[str, Callable[..., None]]] = {
    "conv": ("IFO", lambda primitives, layer, i, f, o: primitives.conv_fprop(layer, i, f, o, 1.0, 0.0)),
    "conv_backward": ("OFI", lambda primitives, layer, o, f, i: primitives.conv_bprop(layer, f, o, i, 1.0, 0.0)),
    "conv_update": ("IOF", lambda primitives, layer, i, o, f: primitives.conv_update(layer, i, o, f, 1.0, 0.0)),
}


def find_indices(primitives: ReferencePrimitives, layer: PoolLayer, i: NativeArray, indices: NativeArray) -> None:
    """Write the positions of the maxima."""
    maxima = primitives.get_workspace("maxima", layer.dimO, i)
    if isinstance(indices, NHWCImages):
        maxima = NHWCImages(maxima.reshape(swap_ends(layer.dimO)))
    primitives.pool_fprop(layer, i, maxima, indices, 0.0)


def find_maxima(
    primitives: ReferencePrimitives, layer: PoolLayer, i: NativeArray, o: NativeArray, indices: NativeArray
) -> None:
    """Write the maxima and their positions."""
    primitives.pool_fprop(layer, i, o, indices, 0.0)


POOLINGS: dict[str, tuple[str, str, Callable[..., None]]] = {
    "max_pool": ("IO", "max", lambda primitives, layer, i, o: primitives.pool_fprop(layer, i, o, None, 0.0)),
    "max_pool_indices": ("IO", "max", find_indices),
    "max_unpool": (
        "OOI",
        "max",
        lambda primitives, layer, o, indices, i: primitives.pool_bprop(layer, None, o, i, indices, 1.0, 0.0),
    ),
    "sum_pool": ("IO", "avg", lambda primitives, layer, i, o: primitives.pool_fprop(layer, i, o, None, 0.0)),
    "sum_unpool": (
        "OI",
        "avg",
        lambda primitives, layer, o, i: primitives.pool_bprop(layer, None, o, i, None, 1.0, 0.0),
    ),
}


class PrimitiveCall(NamedTuple):
    """The primitive that computes a step: a function of the arrays of its operands and its result.

    ``inputs``: the operands, of which a reshape is skipped. ``outputs``: the results. ``takes_images``: which of them,
    the results last, may be an ``ImageOperand``. ``plans``: the plans that it runs.
    """

    run: Callable[..., None]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    takes_images: tuple[bool, ...]
    plans: Sequence[Plan] = ()


def find_primitives(primitives: ReferencePrimitives, plan: Plan, compile_plan: CompilePlan) -> dict[int, PrimitiveCall]:
    """Return, for the values of a plan that a primitive computes, its call.

    ``compile_plan``: the function of the executor, for plans that a call runs.
    """
    found = {v: find_primitive(primitives, plan, v) for v in plan.step_values}
    calls = {v: call for v, call in found.items() if call is not None}
    for v, (run, recurrence) in find_recurrences(primitives, plan, compile_plan).items():
        inputs: Any = plan.step_of(v).inputs
        calls[v] = PrimitiveCall(run, inputs, (v,), (False,) * (len(inputs) + 1), recurrence.plans)
    return calls


def find_images(plan: Plan) -> tuple[set[int], set[int]]:
    """Return the leaves and the targets of a plan that only primitives read and write, in a layout they choose."""
    read: set[int] = set()
    read_as_arrays = {*plan.held_in_targets, *(plan.view_base(v) for v in plan.outputs if plan.view_base(v) != v)}
    for v, step in plan.numbered_steps:
        if call := plan.primitives.get(v):
            for x, is_image in zip(call.inputs, call.takes_images, strict=False):
                (read if is_image else read_as_arrays).add(plan.view_base(x))
        elif step.kind != "view":
            read_as_arrays |= {plan.view_base(x) for x in step.inputs if isinstance(x, int)}
    leaves = {x for x in read - read_as_arrays - set(plan.outputs) if x < len(plan.leaves)}
    written = {v for v, call in plan.primitives.items() if call.takes_images[-1]} - read_as_arrays
    targets = {i for i, v in enumerate(plan.outputs) if plan.is_direct[i] and v in written}
    return leaves, targets - set(plan.held_in_targets.values())


def image_layer(primitives: ReferencePrimitives, plan: Plan, v: int) -> tuple[str, Any, Callable[..., None]] | None:
    """Return what the operands and the result of a step are, its layer object and its call; None if there is none."""
    step = plan.step_of(v)
    name, attrs = step.op.name, step.attrs
    if name not in CONVOLUTIONS and name not in POOLINGS:
        return None
    dtype, halves = plan.dtype(step.inputs[0]), () if primitives.runtime.supports_half else HALF_DTYPES
    if dtype not in FLOAT_DTYPES or dtype in halves:
        return None
    shapes = [swap_ends(plan.shape(x)) if x in plan.nhwc else plan.shape(x) for x in (*step.inputs, v)]
    if any(0 in shape for shape in shapes):
        return None
    layer: Any
    if name in CONVOLUTIONS:
        roles, call = CONVOLUTIONS[name]
        layer = convolution_layer(step, dtype, **dict(zip(roles, shapes, strict=True)))
        if layer.groups > 1 and not primitives.computes(name, layer):
            return None
    else:
        roles, op, call = POOLINGS[name]
        op = op if attrs.get("mean", True) else "sum"
        layer = pooling_layer(step, dtype, op, **dict(zip(roles, shapes, strict=True)))
    return roles, layer, call


def find_primitive(primitives: ReferencePrimitives, plan: Plan, v: int) -> PrimitiveCall | None:
    """Return the call of the primitive that computes a step; None if no primitive does."""
    step, reshape = plan.step_of(v), primitives.runtime.reshape
    if step.op.name == "reorder":
        return reorder_call(primitives, plan, v)
    if step.op.name == "roi_pool_indices":
        return roi_call(primitives, plan, v)
    if (found := image_layer(primitives, plan, v)) is None:
        return None
    roles, layer, call = found
    inputs = tuple(skip_reshapes(plan, x) for x in step.inputs if isinstance(x, int))
    outputs = (v,) if (pair := find_indices_of(plan, v)) is None else (v, pair)
    if pair is not None:
        roles, call = "IOO", find_maxima
    is_strided = [not plan.is_contiguous(x) for x in inputs]
    values = [*inputs, *outputs]
    shapes = [getattr(layer, f"dim{role}") for role in roles]
    is_nhwc = [x in plan.nhwc for x in values]

    def operand(n: int, x: Any) -> Any:
        if n < len(is_strided) and is_strided[n]:
            x = contiguous_copy(primitives, n, x)
        if is_nhwc[n]:
            return NHWCImages(reshape(x, swap_ends(shapes[n])))
        return x._replace(array=reshape(x.array, shapes[n])) if isinstance(x, ImageOperand) else reshape(x, shapes[n])

    def run(*arrays: NativeArray) -> None:
        call(primitives, layer, *[operand(n, x) for n, x in enumerate(arrays)])

    is_copied = [
        *(strided or plan.view_base(x) != x for x, strided in zip(inputs, is_strided, strict=True)),
        False,
        False,
    ]
    takes_images = tuple(role != "F" and not copied for role, copied in zip(roles, is_copied, strict=False))
    return PrimitiveCall(run, inputs, outputs, takes_images)


def reorder_call(primitives: ReferencePrimitives, plan: Plan, v: int) -> PrimitiveCall:
    """Return the copy of images to the other layout."""
    x: Any = plan.step_of(v).inputs[0]
    shape = plan.shape(v)
    is_nhwc, reshape = v in plan.nhwc, primitives.runtime.reshape
    C, *sizes, N = swap_ends(shape) if is_nhwc else shape
    images, size = ImageShape(C, math.prod(sizes), N), math.prod(shape)

    def run(source: NativeArray, out: NativeArray) -> None:
        if not source.flags.c_contiguous:
            source = contiguous_copy(primitives, 0, source)
        source, out = reshape(source, (size,)), reshape(out, (size,))
        primitives.reorder(images, *((source, out) if is_nhwc else (out, source)), not is_nhwc)

    return PrimitiveCall(run, (x,), (v,), (False, False))


def roi_call(primitives: ReferencePrimitives, plan: Plan, v: int) -> PrimitiveCall | None:
    """Return the search for the largest pixels of regions of float images; None for other images."""
    step, inputs = plan.step_of(v), cast("tuple[int, int]", plan.step_of(v).inputs)
    shape, scale = plan.shape(inputs[0]), step.attrs["scale"]
    if plan.dtype(inputs[0]) not in ("float32", "float64") or 0 in (*shape, *step.shape):
        return None
    (C, H, W, N), xp = shape, primitives.xp

    def run(i: NativeArray, regions: NativeArray, out: NativeArray) -> None:
        rows = primitives.to_host_float64(regions).T
        image = check_regions(np, rows.T, N)
        i = i if plan.is_contiguous(inputs[0]) else contiguous_copy(primitives, 0, i)
        maxima, pixels = (
            primitives.get_workspace(name, out.shape, like) for name, like in (("maxima", i), ("pixels", out))
        )
        primitives.roi_fprop(i, rows, maxima, pixels, scale)
        first = primitives.runtime.put(np.arange(C)[:, None, None, None] * (H * W * N) + image)
        out[...] = xp.where(pixels < 0, pixels, pixels * N + first)

    return PrimitiveCall(run, inputs, (v,), (False, False, False))


def find_indices_of(plan: Plan, v: int) -> int | None:
    """Return the step that finds the positions of the maxima of a step, if it is computed in the same stage."""
    w = plan.stages[plan.stage_of[v]].steps[-1]
    return w if w != v else None


def pair_pools(plan: Plan) -> None:
    """Move the positions of maxima into the stage that computes the maxima."""
    maxima = {
        (step.inputs, tuple(step.attrs.items())): v for v, step in plan.numbered_steps if step.op.name == "max_pool"
    }
    pairs = {}
    for w, step in plan.numbered_steps:
        if step.op.name == "max_pool_indices":
            attrs = tuple(item for item in step.attrs.items() if item[0] != "to")
            if (v := maxima.get((step.inputs, attrs))) is not None:
                pairs[v] = w
    if pairs:
        moved = set(pairs.values())
        plan.set_stages(
            [
                stage._replace(steps=[stage.steps[0], pairs[stage.steps[0]]]) if stage.steps[0] in pairs else stage
                for stage in plan.stages
                if stage.steps[0] not in moved
            ]
        )


def swap_ends(shape: Shape) -> Shape:
    """Return a shape with the first and the last axis exchanged."""
    return (shape[-1], *shape[1:-1], shape[0])


def skip_reshapes(plan: Plan, x: int) -> int:
    """Return the contiguous value that is reshaped, or the value itself."""
    while x >= len(plan.leaves) and plan.step_of(x).op.name == "reshape" and plan.is_contiguous(x):
        (source,) = plan.step_of(x).inputs
        if not isinstance(source, int) or not plan.is_contiguous(source) or (x in plan.nhwc) != (source in plan.nhwc):
            break
        x = source
    return x


def contiguous_copy(primitives: ReferencePrimitives, n: int, x: NativeArray) -> NativeArray:
    """Return a contiguous copy of operand n in a workspace."""
    copy = primitives.get_workspace(f"operand {n}", x.shape, x)
    copy[...] = x
    return copy


def convolution_layer(step: Step, dtype: str, I: Shape, F: Shape, O: Shape) -> ConvLayer:
    """Return the layer object of a convolution, with three axes of pixels."""
    missing = (1,) * (5 - len(I))
    strides, dilation = (missing + step.attrs[name] for name in ("strides", "dilation"))
    padding = (0,) * len(missing) + tuple(before for before, _ in step.attrs["padding"])
    sizes, window, counts = (missing + shape[1:-1] for shape in (I, F, O))
    backend: Any = None  # no backend checks this object
    NCK, groups = (I[-1], I[0], F[-1]), step.attrs["groups"]
    return ConvLayer(backend, dtype, NCK, sizes, window, padding, strides, dilation, counts, groups=groups)


def pooling_layer(step: Step, dtype: str, op: str, I: Shape, O: Shape) -> PoolLayer:
    """Return the layer object of a pooling, with three axes of pixels."""
    C, *sizes, N = I
    ones = (1,) * (3 - len(sizes))
    (J, *window), (step_J, *strides), ((pad_J, _), *pads) = (step.attrs[x] for x in ("window", "strides", "padding"))
    backend: Any = None  # no backend checks this object
    return PoolLayer(
        backend,
        dtype,
        op,
        N,
        (C, *ones, *sizes),
        (J, *ones, *window),
        (pad_J, *(0 for _ in ones), *(before for before, _ in pads)),
        (step_J, *ones, *strides),
        step.attrs["ceil"],
        (O[0], *ones, *O[1:-1]),
    )
