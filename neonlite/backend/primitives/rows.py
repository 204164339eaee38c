"""The ops in plans that the primitives of the runtime compute: those for images, and recurrence over time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from neonlite.backend.planning import Plan
from neonlite.backend.planning.layout import ImageOperand
from neonlite.backend.planning.steps import Step
from neonlite.backend.primitives import ReferencePrimitives
from neonlite.backend.primitives.geometry import ConvLayer, PoolLayer
from neonlite.backend.primitives.recurrent import CompilePlan, find_recurrences
from neonlite.dtypes import FLOAT_DTYPES, HALF_DTYPES
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
    primitives.pool_fprop(layer, i, primitives.get_workspace("maxima", layer.dimO, i), indices, 0.0)


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

    ``inputs``: the operands, of which a reshape is skipped. ``takes_images``: which of them, and last whether the
    result, may be an ``ImageOperand``. ``required_arena_bytes()``: the arena size of plans that it runs.
    """

    run: Callable[..., None]
    inputs: tuple[int, ...]
    takes_images: tuple[bool, ...]
    required_arena_bytes: Callable[[], int] = lambda: 0


def find_primitives(primitives: ReferencePrimitives, plan: Plan, compile_plan: CompilePlan) -> dict[int, PrimitiveCall]:
    """Return, for the values of a plan that a primitive computes, its call.

    ``compile_plan``: the function of the executor, for plans that a call runs.
    """
    found = {v: find_primitive(primitives, plan, step) for v, step in plan.numbered_steps}
    calls = {v: call for v, call in found.items() if call is not None}
    for v, (run, recurrence) in find_recurrences(primitives, plan, compile_plan).items():
        inputs: Any = plan.step_of(v).inputs
        calls[v] = PrimitiveCall(run, inputs, (False,) * (len(inputs) + 1), recurrence.required_arena_bytes)
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


def find_primitive(primitives: ReferencePrimitives, plan: Plan, step: Step) -> PrimitiveCall | None:
    """Return the call of the primitive that computes a step; None if no primitive does."""
    name, attrs = step.op.name, step.attrs
    if name not in CONVOLUTIONS and name not in POOLINGS:
        return None
    dtype, halves = plan.dtype(step.inputs[0]), () if primitives.runtime.supports_half else HALF_DTYPES
    if dtype not in FLOAT_DTYPES or dtype in halves or not attrs.get("mean", True):
        return None
    shapes = [*map(plan.shape, step.inputs), step.shape]
    if any(0 in shape for shape in shapes):
        return None
    layer: Any
    if name in CONVOLUTIONS:
        roles, call = CONVOLUTIONS[name]
        layer = convolution_layer(step, dtype, **dict(zip(roles, shapes, strict=True)))
        if layer.groups > 1 and not primitives.supports_groups(name, layer):
            return None
    else:
        roles, op, call = POOLINGS[name]
        layer = pooling_layer(step, dtype, op, **dict(zip(roles, shapes, strict=True)))
    dims = [getattr(layer, f"dim{role}") for role in roles]
    inputs = tuple(skip_reshapes(plan, x) for x in step.inputs if isinstance(x, int))
    strided = [not plan.is_contiguous(x) for x in inputs]
    reshape = primitives.runtime.reshape

    def run(*arrays: NativeArray) -> None:
        operands = [
            contiguous_copy(primitives, n, x) if is_strided else x
            for n, (x, is_strided) in enumerate(zip(arrays, strided, strict=False))
        ]
        values = zip((*operands, arrays[-1]), dims, strict=True)
        call(
            primitives,
            layer,
            *(
                x._replace(array=reshape(x.array, shape)) if isinstance(x, ImageOperand) else reshape(x, shape)
                for x, shape in values
            ),
        )

    is_copied = (*(is_strided or plan.view_base(x) != x for x, is_strided in zip(inputs, strided, strict=True)), False)
    takes_images = tuple(role != "F" and not copied for role, copied in zip(roles, is_copied, strict=True))
    return PrimitiveCall(run, inputs, takes_images)


def skip_reshapes(plan: Plan, x: int) -> int:
    """Return the contiguous value that is reshaped, or the value itself."""
    while x >= len(plan.leaves) and plan.step_of(x).op.name == "reshape" and plan.is_contiguous(x):
        (source,) = plan.step_of(x).inputs
        if not isinstance(source, int) or not plan.is_contiguous(source):
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
