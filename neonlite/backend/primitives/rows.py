"""The ops in plans that the primitives of the runtime compute, and the layout of their images."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from neonlite.backend.planning import Plan
from neonlite.backend.planning.steps import Stage, Step
from neonlite.backend.primitives import ReferencePrimitives
from neonlite.backend.primitives.geometry import ConvLayer, ImageShape, PoolLayer, ReorderedImages, image_shape
from neonlite.backend.primitives.recurrent import CompilePlan, find_recurrences
from neonlite.ops import OPS, Op, composites
from neonlite.ops.functions import Shape, is_transposed
from neonlite.ops.images import check_regions
from neonlite.tree_structure import Constant
from neonlite.typing import FLOAT_DTYPES, HALF_DTYPES, NativeArray

# {op: (what its operands and its result are: images I, filters F, biases B or outputs O; the call of the primitive)}
CONVOLUTIONS: dict[str, tuple[str, Callable[..., None]]] = {
    "conv": ("IFO", lambda primitives, layer, i, f, o: primitives.conv_fprop(layer, i, f, o, 1.0, 0.0)),
    "conv_backward": ("OFI", lambda primitives, layer, o, f, i: primitives.conv_bprop(layer, f, o, i, 1.0, 0.0)),
    "conv_update": ("IOF", lambda primitives, layer, i, o, f: primitives.conv_update(layer, i, o, f, 1.0, 0.0)),
    "conv_bias": ("IFBO", lambda primitives, layer, i, f, b, o: primitives.conv_bias(layer, i, f, b, o, False)),
    "conv_bias_relu": ("IFBO", lambda primitives, layer, i, f, b, o: primitives.conv_bias(layer, i, f, b, o, True)),
}


def find_indices(primitives: ReferencePrimitives, layer: PoolLayer, i: NativeArray, indices: NativeArray) -> None:
    """Write the positions of the maxima."""
    maxima = primitives.get_workspace("maxima", layer.dimO, i)
    if isinstance(indices, ReorderedImages):
        maxima = indices._replace(memory=maxima.reshape(indices.memory.shape))
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

    ``inputs``: the operands, of which a reshape is skipped. ``outputs``: the results. ``plans``: those that it runs.
    ``is_repeatable``: whether the launches on a GPU depend on the addresses of the arrays alone.
    """

    run: Callable[..., None]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    plans: Sequence[Plan] = ()
    is_repeatable: bool = False


def find_primitives(primitives: ReferencePrimitives, plan: Plan, compile_plan: CompilePlan) -> dict[int, PrimitiveCall]:
    """Return, for the values of a plan that a primitive computes, its call.

    ``compile_plan``: the function of the executor, for plans that a call runs.
    """
    found = {v: find_primitive(primitives, plan, v) for v in plan.step_values}
    calls = {v: call for v, call in found.items() if call is not None}
    for v, (run, recurrence) in find_recurrences(primitives, plan, compile_plan).items():
        inputs: Any = plan.step_of(v).inputs
        calls[v] = PrimitiveCall(run, inputs, (v,), recurrence.plans)
    return calls


def image_layer(primitives: ReferencePrimitives, plan: Plan, v: int) -> tuple[str, Any, Callable[..., None]] | None:
    """Return what the operands and the result of a step are, its layer object and its call; None if there is none."""
    step = plan.step_of(v)
    name, attrs = step.op.name, step.attrs
    if name not in CONVOLUTIONS and name not in POOLINGS:
        return None
    dtype, halves = plan.dtype(step.inputs[0]), () if primitives.runtime.supports_half else HALF_DTYPES
    if dtype not in FLOAT_DTYPES or dtype in halves:
        return None
    shapes = [plan.layout.to_chwn(plan.shape(x)) if x in plan.reordered else plan.shape(x) for x in (*step.inputs, v)]
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
    if step.op is REORDER:
        return reorder_call(primitives, plan, plan.stages[plan.stage_of[v]].steps)
    if step.op.name == "roi_pool_indices":
        return roi_call(primitives, plan, v)
    if step.op is TRANSPOSED:
        return PrimitiveCall(primitives.copy_transposed, cast("tuple[int]", step.inputs), (v,))
    if step.op in ROW_FUNCTIONS:
        return rows_call(primitives, plan, v)
    if step.op is ROUNDED:
        return rounded_call(primitives, plan, v)
    if step.op in (QUANTIZED_DOT, QUANTIZED_CONV):
        return quantized_call(primitives, plan, v)
    if step.op.name in ("fused_attention", "fused_attention_backward"):
        return attention_call(primitives, plan, v)
    if (found := image_layer(primitives, plan, v)) is None:
        return None
    roles, layer, call = found
    inputs = tuple(skip_reshapes(plan, x) for x in step.inputs if isinstance(x, int))
    outputs = (v,) if (pair := find_indices_of(plan, v)) is None else (v, pair)
    if pair is not None:
        roles, call = "IOO", find_maxima
    is_strided = [not plan.is_contiguous(x) for x in inputs]
    values = [*inputs, *outputs]
    shapes = [(layer.K,) if role == "B" else getattr(layer, f"dim{role}") for role in roles]
    is_reordered = [x in plan.reordered for x in values]

    def operand(n: int, x: Any) -> Any:
        if n < len(is_strided) and is_strided[n]:
            x = contiguous_copy(primitives, n, x)
        if is_reordered[n]:
            return ReorderedImages(reshape(x, plan.layout.from_chwn(shapes[n])), plan.layout)
        return reshape(x, shapes[n])

    def run(*arrays: NativeArray) -> None:
        call(primitives, layer, *[operand(n, x) for n, x in enumerate(arrays)])

    is_uniform = (
        len({x for role, x in zip(roles, is_reordered, strict=True) if role in "IO"}) == 1
    )  # no images are copied
    return PrimitiveCall(run, inputs, outputs, is_repeatable=is_uniform and not any(is_strided))


def reorder_call(primitives: ReferencePrimitives, plan: Plan, values: Sequence[int]) -> PrimitiveCall:
    """Return the copies of images and filters to the other layout that are the steps of one stage."""
    inputs, is_reordered, shapes = [], [v in plan.reordered for v in values], list[ImageShape]()
    for v in values:
        inputs.append(cast("int", plan.step_of(v).inputs[0]))
        shape = plan.layout.to_chwn(plan.shape(v)) if v in plan.reordered else plan.shape(v)
        shapes.append(image_shape(shape, plan.layout))
    reshape = primitives.runtime.reshape

    def run(*arrays: NativeArray) -> None:
        copies = []
        for n, (shape, source, out) in enumerate(zip(shapes, arrays, arrays[len(values) :], strict=False)):
            if not source.flags.c_contiguous:
                source = contiguous_copy(primitives, n, source)
            flat = (math.prod(shape),)
            source, out = reshape(source, flat), reshape(out, flat)
            copies.append((shape, *((source, out) if is_reordered[n] else (out, source)), not is_reordered[n]))
        primitives.reorder_all(copies)

    return PrimitiveCall(run, tuple(inputs), tuple(values), is_repeatable=all(map(plan.is_contiguous, inputs)))


def rows_call(primitives: ReferencePrimitives, plan: Plan, v: int) -> PrimitiveCall:
    """Return a function of rows, or of the channels of images in NHWC, with those of its results that are read.

    Operands and results are matrices of the rows, and vectors of one element for each row or each column.
    """
    step, reshape, attrs = plan.step_of(v), primitives.runtime.reshape, dict(plan.step_of(v).attrs)
    inputs: Any = step.inputs
    is_images = v in plan.reordered
    rows: Any = rows_shape(step.shape) if is_images else matrix_shape(step.shape, attrs.pop("rank"))
    columns = step.shape[-1] if is_images else rows[1]
    sizes = {step.op: rows, GAMMA_BACKWARD: (columns,), BETA_BACKWARD: (columns,)}
    sizes |= dict.fromkeys((MEANS, VARIANCES), (columns,) if is_images else rows[:1])
    computed = {plan.step_of(u).op: u for u in plan.stages[plan.stage_of[v]].steps}
    stored = {op: u for op, u in computed.items() if u in plan.temporaries or u in plan.outputs}
    results = RESULTS.get((step.op, len(inputs)), (step.op,))
    outputs = tuple(stored[op] for op in results if op in stored)
    function = primitives.batch_norm if is_images else ROW_FUNCTIONS[step.op](primitives)
    strided = [n for n, x in enumerate(inputs) if not plan.is_contiguous(x)]
    vector = (1, -1) if is_images else (-1,)
    shapes = [rows if plan.shape(x) == step.shape else vector for x in inputs]
    shapes += [rows if op is step.op else vector for op in results]

    def run(*arrays: NativeArray) -> None:
        operands, written = list(arrays[: len(inputs)]), iter(arrays[len(inputs) :])
        for n in strided:
            operands[n] = contiguous_copy(primitives, n, operands[n])
        for op in results:  # those that are not read, such as the means, are written, too
            operands.append(next(written) if op in stored else primitives.get_workspace(op.name, sizes[op], arrays[0]))
        function(*map(reshape, operands, shapes), **attrs)

    return PrimitiveCall(run, inputs, outputs)


def rounded_call(primitives: ReferencePrimitives, plan: Plan, v: int) -> PrimitiveCall:
    """Return the copy of float32 rounded to int8 or bfloat16."""
    inputs, attrs = cast("tuple[int]", plan.step_of(v).inputs), plan.step_of(v).attrs
    is_strided = not plan.is_contiguous(inputs[0])

    def run(x: NativeArray, out: NativeArray) -> None:
        primitives.round_to(contiguous_copy(primitives, 0, x) if is_strided else x, out, **attrs)

    return PrimitiveCall(run, inputs, (v,))


def quantized_call(primitives: ReferencePrimitives, plan: Plan, v: int) -> PrimitiveCall:
    """Return a product or a convolution of int8 or bfloat16, of images in NHWC."""
    step = plan.step_of(v)
    inputs, options = cast("tuple[int, ...]", step.inputs), {"relu": step.attrs["relu"]}
    function: Callable[..., None] = primitives.quantized_dot
    if step.op is QUANTIZED_CONV:
        x, o = map(plan.layout.to_chwn, (plan.shape(inputs[0]), step.shape))
        layer = convolution_layer(step, step.dtype, x, plan.shape(inputs[1]), o)
        function = partial(primitives.quantized_conv, layer)
    is_strided = [not plan.is_contiguous(x) for x in inputs]

    def run(*arrays: NativeArray) -> None:
        *operands, out = arrays
        pairs = enumerate(zip(operands, is_strided, strict=True))
        operands = [contiguous_copy(primitives, n, x) if copies else x for n, (x, copies) in pairs]
        function(*operands, out, **options)

    return PrimitiveCall(run, inputs, (v,))


def attention_call(primitives: ReferencePrimitives, plan: Plan, v: int) -> PrimitiveCall | None:
    """Return fused_attention with its stats, or its gradients; None where no primitive computes them."""
    step, xp = plan.step_of(v), primitives.xp
    inputs, causal = cast("tuple[int, ...]", step.inputs), step.attrs["causal"]
    is_backward = step.op.name == "fused_attention_backward"
    shapes = [plan.shape(x) for x in (inputs[2:-1] if is_backward else inputs)]
    if not primitives.computes_attention(shapes, step.dtype, causal):
        return None
    results = {n: (shape, step.dtype) for n, shape in enumerate(shapes)}
    if not is_backward:
        results = {0: (step.shape, step.dtype), 1: (composites.attention_stats_shape(*shapes), "float32")}
    stage = plan.stages[plan.stage_of[v]].steps
    computed = {plan.step_of(u).attrs.get("part", int(u != v)): u for u in stage}  # {number of a result: its step}
    copied = [n for n, x in enumerate(inputs) if not has_rows_of_packs(plan, x)]
    function: Callable[..., bool] = primitives.attention_backward if is_backward else primitives.attention

    def heads(x: NativeArray) -> NativeArray:
        """Return an array as (N, H, T, d)."""
        return primitives.runtime.reshape(x, (-1, *x.shape[-3:])) if x.ndim > 4 else x[(None,) * (4 - x.ndim)]

    def whole(x: NativeArray) -> NativeArray:
        return heads(x) if len(shapes) == 3 else xp.permute_dims(x, (1, 2, 0, 3))

    def parts(arrays: Sequence[NativeArray]) -> list[NativeArray]:
        return [*map(heads, arrays)] if len(shapes) == 3 else [whole(arrays[0][:, :, n]) for n in range(3)]

    def run(*arrays: NativeArray) -> None:
        operands, written = list(arrays[: len(inputs)]), dict(zip(computed, arrays[len(inputs) :], strict=True))
        for n in copied:
            operands[n] = contiguous_copy(primitives, n, operands[n])
        outs = []
        for n, (shape, dtype) in results.items():
            like = xp.empty(0, dtype=getattr(xp, dtype)) if dtype == "float32" else operands[0]
            outs.append(written[n] if n in written else primitives.get_workspace(f"attention {n}", shape, like))
        if is_backward:
            dz, z, *values, stats = operands
            views = [whole(dz), whole(z), *parts(values), heads(stats), *parts(outs)]
        else:
            views = [*parts(operands), whole(outs[0]), heads(outs[1])]
        if not function(*views, causal=causal):
            for n, u in computed.items():
                written[n][...] = plan.step_of(u).op.run(xp, *operands, **plan.step_of(u).attrs)

    return PrimitiveCall(run, inputs, tuple(computed.values()), is_repeatable=not copied)


def has_rows_of_packs(plan: Plan, x: int) -> bool:
    """Return whether a value is contiguous, or its last axis is and the strides of the others are multiples of 8."""
    strides = plan.strides.get(x, ())
    is_strided = 1 < len(strides) < 5 and strides[-1] == 1 and all(n > 0 and n % 8 == 0 for n in strides[:-1])
    return plan.is_contiguous(x) or is_strided


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

    return PrimitiveCall(run, inputs, (v,))


def find_indices_of(plan: Plan, v: int) -> int | None:
    """Return the step that finds the positions of the maxima of a step, if it is computed in the same stage."""
    w = plan.stages[plan.stage_of[v]].steps[-1]
    return w if w != v else None


def join_results(primitives: ReferencePrimitives, plan: Plan) -> None:
    """Move the steps that one primitive computes together into one stage.

    These are maxima and their positions, attention and its stats, normalized images or rows and their statistics, and
    gradients.
    """
    first: dict[tuple[Any, ...], int] = {}
    more: dict[int, list[int]] = {}
    for v, step in plan.numbered_steps:
        if step.op.name in JOINED.values() and (
            step.op.name not in OPS or find_primitive(primitives, plan, v) is not None
        ):
            first.setdefault((step.op.name, step.inputs, *shared_attrs(step)), v)
    for w, step in plan.numbered_steps:
        if step.op.name in JOINED:
            v = first.get((JOINED[step.op.name], step.inputs, *shared_attrs(step)), w)
            if v != w:
                more.setdefault(v, []).append(w)
    if more:
        moved = {w for others in more.values() for w in others}
        plan.set_stages(
            [
                stage._replace(steps=[*stage.steps, *more.get(stage.steps[0], ())])
                for stage in plan.stages
                if stage.steps[0] not in moved
            ]
        )


def shared_attrs(step: Step) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that steps which one primitive computes have in common."""
    yield from (item for item in step.attrs.items() if item[0] not in ("to", "part"))


def join_reorders(plan: Plan) -> None:
    """Move copies of images and filters to the other layout into few stages, each of which is one call.

    A copy can run from its operand on until its result is read. The gradients of filters, which nothing reads, are
    copied last; other results, which may be large, where they are computed.
    """
    copies = {v: plan.view_base(cast("int", s.inputs[0])) for v, s in plan.numbered_steps if s.op is REORDER}
    first_read: dict[int, int] = {}
    for stage in range(len(plan.stages) - 1, -1, -1):
        for u in plan.stages[stage].steps:
            first_read |= {plan.view_base(x): stage for x in plan.step_of(u).inputs if isinstance(x, int)}
    spans: list[tuple[int, int, int]] = []  # (the last stage before which it can run, the first one, the copy)
    for v, source in copies.items():
        step, stage = plan.find_step(source), plan.stage_of[v]
        is_gradient = step is not None and step.op.name == "conv_update"
        last = first_read.get(v, len(plan.stages) if is_gradient else stage)
        if source in copies or v in copies.values():  # a copy of a copy
            spans.append((stage, stage, v))
        else:
            spans.append((last, plan.stage_of.get(source, -1) + 1, v))
    joined: dict[int, list[int]] = {}  # {stage: the copies that run before it}
    pending = sorted(spans)
    while pending:
        last = pending[0][0]
        joined[last] = sorted(v for _, first, v in pending if first <= last)
        pending = [x for x in pending if x[2] not in joined[last]]
    if len(joined) < len(spans):
        stages = []
        for n, old in enumerate([*plan.stages, None]):
            if n in joined:
                stages.append(Stage("call", plan.shape(joined[n][0]), joined[n]))
            if old is not None and plan.step_of(old.steps[0]).op is not REORDER:
                stages.append(old)
        plan.set_stages(stages)


def skip_reshapes(plan: Plan, x: int) -> int:
    """Return the contiguous value that is reshaped, or the value itself."""
    while x >= len(plan.leaves) and plan.step_of(x).op.name == "reshape" and plan.is_contiguous(x):
        (source,) = plan.step_of(x).inputs
        if (
            not isinstance(source, int)
            or not plan.is_contiguous(source)
            or (x in plan.reordered) != (source in plan.reordered)
        ):
            break
        x = source
    return x


def contiguous_copy(primitives: ReferencePrimitives, n: int, x: NativeArray) -> NativeArray:
    """Return a contiguous copy of operand n in a workspace."""
    copy = primitives.get_workspace(f"operand {n}", x.shape, x)
    copy[...] = x
    return copy


def convolution_layer(step: Step, dtype: str, I: Shape, F: Shape, O: Shape, B: Shape = ()) -> ConvLayer:
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


# --- what primitives compute in a plan: formulas, transposes, and images in the layout that is fastest ---

NO_INPUTS = (-1,)  # of a value that another op computes: the number of no value
COPIES = ("cast", "stop_gradient")
REDUCTIONS = ("sum", "max", "min", "prod")  # whose result depends on no order of the elements
UNPOOLINGS = ("max_unpool", "sum_unpool")
MAX_ROW_ELEMENTS = 1 << 10  # of rows of several pixels; by thresholds.py, 1 << 7 to 1 << 13 differ by less than 20 %
MIN_TRANSPOSED = 1 << 15  # elements of a transpose from which its copy is a step; by benchmarks/thresholds.py


def primitive_op(name: str, doc: str, cost: int = 0) -> Op:
    """Return an op that only plans have, with its operations for each element of the result."""
    return Op(name, doc=doc, kind="library", has_method=False, flops_fn=lambda z, *operands: cost * math.prod(z))


# batch_norm of images in NHWC, which one primitive computes from x, gamma and beta, or the normalization of rows, from
# x alone; and the means and the variances
NORMALIZED = primitive_op("normalized", "batch_norm in NHWC, with relu or without, or normalize over the last axes", 7)
MEANS = primitive_op("means", "the means of the channels or rows")
VARIANCES = primitive_op("variances", "the variances of the channels or rows")
SOFTMAX = primitive_op("softmax", "softmax over the last axis", 5)
LOG_SOFTMAX = primitive_op("log_softmax", "log_softmax over the last axis", 5)
CONV_BIAS, CONV_BIAS_RELU = (
    Op(
        name,
        doc="conv, plus a bias for each channel" + ", and max(., 0)" * (name == "conv_bias_relu"),
        kind="library",
        has_method=False,
        flops_fn=lambda z, x, f, b: OPS["conv"].flops(z, x, f) + 2 * math.prod(z),
    )
    for name in ("conv_bias", "conv_bias_relu")
)
SOFTMAX_BACKWARD = primitive_op(
    "softmax_backward", "the gradient of softmax over the last axes, from dz and its result", 4
)
LOG_SOFTMAX_BACKWARD = primitive_op(
    "log_softmax_backward", "the gradient of log_softmax over the last axis, from dz and its result", 4
)
NORMALIZED_BACKWARD = primitive_op(
    "normalized_backward",
    "the gradient of normalize over the last axes, from dz, x, the means, the variances, and gamma if there is one",
    9,
)
GAMMA_BACKWARD = primitive_op("gamma_backward", "the gradient of gamma of each column")
BETA_BACKWARD = primitive_op("beta_backward", "the gradient of beta of each column")
ROW_FUNCTIONS: dict[Op, Callable[[ReferencePrimitives], Callable[..., None]]] = {
    NORMALIZED: lambda primitives: primitives.row_norm,
    SOFTMAX: lambda primitives: primitives.softmax,
    SOFTMAX_BACKWARD: lambda primitives: primitives.softmax_backward,
    LOG_SOFTMAX: lambda primitives: primitives.log_softmax,
    LOG_SOFTMAX_BACKWARD: lambda primitives: primitives.log_softmax_backward,
    NORMALIZED_BACKWARD: lambda primitives: primitives.row_norm_backward,
}
ROUNDED = primitive_op("rounded", "x / scale rounded to int8, or x to the bits of bfloat16")
QUANTIZED_DOT, QUANTIZED_CONV = (
    Op(name, doc=f"{name}, with relu or without", kind="library", has_method=False, flops_fn=flops_fn)
    for name, flops_fn in (
        ("quantized_dot", lambda z, x, W, *_: 2 * math.prod(z) * W[1]),
        ("quantized_conv", lambda z, x, W, *_: 2 * math.prod(z) * math.prod(W) // W[-1]),
    )
)
# the results of an op with a number of operands, of which only those are stored that are read
RESULTS = {(NORMALIZED, n): (NORMALIZED, MEANS, VARIANCES) for n in (1, 3)}
RESULTS |= {(NORMALIZED_BACKWARD, 5): (NORMALIZED_BACKWARD, GAMMA_BACKWARD, BETA_BACKWARD)}
JOINED = {"max_pool_indices": "max_pool", "attention_stats": "fused_attention"}
JOINED |= {"fused_attention_backward": "fused_attention_backward"}  # of q, of k and of v
JOINED |= {x.name: main.name for main, *more in RESULTS.values() for x in more}
TRANSPOSED = primitive_op("transposed", "a contiguous copy of a transpose")
REORDER = Op("reorder", OPS["transpose"].run, doc="images copied to another layout", kind="library", has_method=False)


def choose_primitives(primitives: ReferencePrimitives, plan: Plan) -> None:
    """Rewrite a plan so that primitives compute formulas, and images stay in one layout between the library's steps."""
    dtypes = {plan.dtype(s.inputs[0]) for s in plan.steps if s.op.name in CONVOLUTIONS}
    plan.layout = primitives.image_layout(dtypes)
    read = {plan.view_base(x) for s in plan.steps if s.kind != "view" for x in s.inputs if isinstance(x, int)}
    preferring = {
        v for v in plan.step_values if prefers_layout(primitives, plan, v, v not in plan.outputs or v in read)
    }
    convolutions = [v for v in preferring if plan.step_of(v).op.name in CONVOLUTIONS]
    if not convolutions or (len(preferring) < 2 and not reorders_filters(primitives, plan, convolutions[0])):
        preferring = set()
    readers = find_readers(plan)
    formulas = find_formulas(primitives, plan, preferring, readers)
    reordering = {v for v in preferring if reorders_filters(primitives, plan, v)}
    formulas += [x for v in reordering if (x := find_conv_bias(plan, v, readers))]
    inputs = {x for s in plan.steps if s.kind == "elementwise" for x in s.inputs if isinstance(x, int)}
    if preferring or formulas or any(is_transpose(primitives, plan, x) for x in inputs):
        PlanRewriter(primitives, plan, preferring, reordering).rewrite(formulas)


def reorders_filters(primitives: ReferencePrimitives, plan: Plan, v: int) -> bool:
    """Return whether a step is a convolution whose filters, too, are in the layout of the plan."""
    found = image_layer(primitives, plan, v) if plan.step_of(v).op.name in CONVOLUTIONS else None
    return found is not None and primitives.reorders_filters(found[1], plan.layout)


def is_transpose(primitives: ReferencePrimitives, plan: Plan, x: int) -> bool:
    """Return whether a value is a transpose, which the library copies faster than elementwise steps read it."""
    shape = plan.shape(x)
    if plan.dtype(x) != "float32" or math.prod(shape) < MIN_TRANSPOSED:
        return False
    leaf: Any = plan.leaves[x] if x < len(plan.leaves) else None
    known = plan.strides.get(x)
    order = leaf.attrs["transposed"] if leaf is not None else known is not None and is_transposed(shape, known)
    return bool(order) and primitives.computes_transposes()


def prefers_layout(primitives: ReferencePrimitives, plan: Plan, v: int, is_read: bool) -> bool:
    """Return whether the library computes a step in the plan's layout, and another step reads images it returns."""
    if (found := image_layer(primitives, plan, v)) is None:
        return False
    roles, layer, _ = found
    takes_filters = isinstance(layer, ConvLayer) and primitives.reorders_filters(layer, plan.layout)
    is_faster = is_read or roles[-1] == "F" or takes_filters
    return is_faster and primitives.computes(plan.step_of(v).op.name, layer)


class Formula(NamedTuple):
    """A formula of a plan that a primitive computes: its operands, and its results with their ops, the main one first.

    ``parameters``: numbers for each row by which further steps scale and shift the normalized rows. Those of images in
    NHWC, and of each element of a row, are operands of the primitive.
    """

    operands: tuple[int, ...]
    results: dict[int, Op]
    attrs: dict[str, Any]
    parameters: tuple[int, ...] = ()

    @property
    def main(self) -> int:
        """The main result."""
        return next(iter(self.results))

    @property
    def place(self) -> int:
        """The first result after all operands."""
        return min(v for v in self.results if v > max(self.operands))


Readers = dict[int, list[int]]  # {value: the steps that read it, each once}


def find_readers(plan: Plan) -> Readers:
    """Return the steps that read each value."""
    readers = Readers()
    for v, step in plan.numbered_steps:
        for x in {x for x in step.inputs if isinstance(x, int)}:
            readers.setdefault(x, []).append(v)
    return readers


def find_formulas(primitives: ReferencePrimitives, plan: Plan, preferring: set[int], readers: Readers) -> list[Formula]:
    """Return the formulas of float32 that primitives compute; of the norms of the same values, the first."""
    found: list[Formula] = []
    normalized: set[int] = set()
    for v, step in plan.composites.items():
        operands, name = cast("tuple[int, ...]", step.inputs), step.op.name
        if any(plan.dtype(x) != "float32" for x in (v, *operands[:1])):
            continue
        formula = None
        if name in ("softmax", "masked_softmax", "log_softmax"):
            formula = find_softmax(primitives, plan, v, readers)
        elif name in ("quantized_dot", "quantized_conv"):
            formula = find_quantized(primitives, plan, v)
        elif name in ("batch_norm", "normalize") and operands[0] not in normalized:
            if name == "batch_norm" and skip_reshapes(plan, operands[0]) in preferring:
                formula = find_batch_norm(primitives, plan, v, readers)
            elif not preferring or len(step.shape) == 2:  # reordered images would be copied to CHWN and back
                formula = find_row_norm(primitives, plan, v)
            normalized.update(operands[:1] if formula else ())
        found += [formula] if formula else []
    forward = {formula.main: formula for formula in found}
    backward: list[Formula] = []
    for v, step in plan.numbered_steps:
        if step.dtype == "float32" and len(step.inputs) == 2:
            formula = (
                find_softmax_backward(primitives, plan, v)
                or find_log_softmax_backward(primitives, plan, v, forward)
                or find_norm_backward(plan, v, forward, readers)
            )
            backward += [formula] if formula else []
    replaced = {u for x in backward for v in x.results for u in formula_values(plan, v, x.operands)}
    return [*(scaled(plan, formula, replaced, readers) for formula in found), *backward]


def find_softmax(primitives: ReferencePrimitives, plan: Plan, v: int, readers: Readers) -> Formula | None:
    """Return softmax or log_softmax over the last axis; if it is masked, of values that are -inf where the mask is 0.

    A log_softmax of which only exp is read, as by its gradient, is a softmax.
    """
    step, is_masked = plan.composites[v], plan.composites[v].op.name == "masked_softmax"
    inner = {u: plan.step_of(u) for u in formula_values(plan, v, cast("tuple[int, ...]", step.inputs))}
    total = next((u for u, s in inner.items() if s.op.name == "sum"), None)
    x: Any = step.inputs[0]
    if is_masked:
        x = next((u for u, s in inner.items() if s.op.name == "where" and x in s.inputs), None)
    rank, rows = find_rank(plan, x, total), matrix_shape(step.shape, len(step.shape) - 1)
    if rank is None or matrix_shape(step.shape, rank) != rows:
        return None
    attrs: dict[str, Any] = {"rank": len(step.shape) - 1}
    if step.op.name == "log_softmax":
        reader = None if v in plan.outputs else find_reader(readers, v)
        if reader is None or plan.step_of(reader).op.name != "exp":
            return Formula((x,), {v: LOG_SOFTMAX}, attrs) if primitives.computes_log_softmax(rows) else None
        v = reader
    return Formula((x,), {v: SOFTMAX}, attrs | {"is_masked": is_masked}) if primitives.computes_softmax(rows) else None


def find_softmax_backward(primitives: ReferencePrimitives, plan: Plan, v: int) -> Formula | None:
    """Return ``z (dz - sum(z dz))`` with the sum over the last axes, the gradient of a softmax z."""
    for z, difference in operand_orders(plan, v, "mul"):
        for dz, total in operand_orders(plan, difference, "sub")[:1]:
            product, shape = inputs_of(plan, inputs_of(plan, total, "sum")[0], "mul"), plan.shape(v)
            rank = find_rank(plan, v, total) if {*product} == {z, dz} else None
            is_float = all((plan.dtype(x), plan.shape(x)) == ("float32", shape) for x in (z, dz))
            if rank is not None and is_float and primitives.computes_softmax_backward(matrix_shape(shape, rank)):
                return Formula((dz, z), {v: SOFTMAX_BACKWARD}, {"rank": rank})
    return None


def find_log_softmax_backward(
    primitives: ReferencePrimitives, plan: Plan, v: int, forward: dict[int, Formula]
) -> Formula | None:
    """Return ``dz - e^z sum(dz)`` of a log_softmax z over the last axis that a primitive computes."""
    for dz, product in operand_orders(plan, v, "sub")[:1]:
        for e, total in operand_orders(plan, product, "mul"):
            (z,) = inputs_of(plan, e, "exp")
            formula = forward.get(z)
            if formula is None or formula.results[z] is not LOG_SOFTMAX or inputs_of(plan, total, "sum") != (dz,):
                continue
            shape, rank = plan.shape(z), find_rank(plan, dz, total)
            rows = matrix_shape(shape, formula.attrs["rank"])
            is_alike = (plan.dtype(dz), plan.shape(dz)) == ("float32", shape)
            if not is_alike or rank is None or matrix_shape(shape, rank) != rows:
                continue
            if primitives.computes_log_softmax_backward(rows):
                return Formula((dz, z), {v: LOG_SOFTMAX_BACKWARD}, formula.attrs)
    return None


def find_norm_backward(plan: Plan, v: int, forward: dict[int, Formula], readers: Readers) -> Formula | None:
    """Return ``(dz - mean(dz) - z mean(z dz)) / sqrt(variance + eps)`` of rows z that a primitive normalizes."""
    for centered, scale in operand_orders(plan, v, "mul"):
        for difference, product in operand_orders(plan, centered, "sub")[:1]:
            for dz, mean_dz in operand_orders(plan, difference, "sub")[:1]:
                for z, mean_product in operand_orders(plan, product, "mul"):
                    formula = forward.get(z)
                    if formula is None or formula.results[z] is not NORMALIZED or "rank" not in formula.attrs:
                        continue
                    if formula.parameters or inputs_of(plan, z, "mul")[-1] != scale:
                        continue
                    _, mean, variance = formula.results
                    sums = [sum_of_mean(plan, x, mean) for x in (mean_dz, mean_product)]
                    is_gradient = sums[0] == dz and {*inputs_of(plan, sums[1], "mul")} == {z, dz}
                    if is_gradient:
                        operands = dz, *formula.operands, mean, variance
                        gradient = Formula(operands, {v: NORMALIZED_BACKWARD}, formula.attrs)
                        return find_parameter_gradients(plan, gradient, z, readers) or gradient
    return None


def find_parameter_gradients(plan: Plan, formula: Formula, z: int, readers: Readers) -> Formula | None:
    """Return the gradients of rows x, gamma and beta of ``gamma z + beta``, if those of all three are computed."""
    (dz, *others), rank = formula.operands, formula.attrs["rank"]

    def sum_rows(x: int) -> int | None:
        """Return the sum of all rows x, if there is one."""
        sums = [u for u in readers.get(x, ()) if plan.step_of(u).op.name == "sum"]
        return next((u for u in sums if plan.step_of(u).attrs["axis"] == (*range(rank),)), None)

    for dy, gamma in operand_orders(plan, dz, "mul"):
        products = [x for x in readers.get(z, ()) if {*inputs_of(plan, x, "mul")} == {z, dy}]
        dgamma, dbeta = next((u for x in products if (u := sum_rows(x)) is not None), None), sum_rows(dy)
        if dgamma is not None and dbeta is not None and is_row(plan, gamma, plan.shape(z), rank):
            more = {dgamma: GAMMA_BACKWARD, dbeta: BETA_BACKWARD}
            found = Formula((dy, *others, gamma), formula.results | more, formula.attrs)
            first = min((u for x in more for u in readers.get(x, ())), default=found.place + 1)
            return found if found.place < first else None
    return None


def sum_of_mean(plan: Plan, x: int, mean: int) -> int:
    """Return the value whose mean is x, over the same axes and with the same factor as another mean; else -1."""
    (total, *factor), (other, *same) = inputs_of(plan, x, "mul"), inputs_of(plan, mean, "mul")
    (of,), (like,) = inputs_of(plan, total, "sum"), inputs_of(plan, other, "sum")
    is_alike = min(of, like) >= 0 and factor == same and plan.shape(of) == plan.shape(like)
    return of if is_alike and plan.step_of(total).attrs == plan.step_of(other).attrs else -1


def inputs_of(plan: Plan, x: Any, name: str) -> tuple[Any, ...]:
    """Return the operands of a value that the op ``name`` computes; else NO_INPUTS."""
    step = plan.find_step(x) if isinstance(x, int) and x >= 0 else None
    return step.inputs if step is not None and step.op.name == name else NO_INPUTS


def operand_orders(plan: Plan, x: Any, name: str) -> list[tuple[int, int]]:
    """Return the two operands of a value that the op ``name`` computes, in both orders; nothing for other values."""
    operands = inputs_of(plan, x, name)
    is_pair = len(operands) == 2 and all(isinstance(y, int) for y in operands)
    return [operands, operands[::-1]] if is_pair else []


def find_quantized(primitives: ReferencePrimitives, plan: Plan, v: int) -> Formula | None:
    """Return a product or a convolution of int8 or bfloat16."""
    step, operands = plan.composites[v], cast("tuple[int, ...]", plan.composites[v].inputs)
    (x, W), dtype = (plan.shape(operand) for operand in operands[:2]), plan.dtype(operands[1])
    if 0 in (*x, *W) or dtype != ("int16" if step.attrs["scale"] is None else "int8"):
        return None
    key: Any
    if step.op.name == "quantized_dot":
        op, key = QUANTIZED_DOT, (*W, x[1])
    else:
        op, key = QUANTIZED_CONV, convolution_layer(step, "float32", x, W, step.shape)
    return Formula(operands, {v: op}, step.attrs) if primitives.computes_quantized(dtype, key) else None


def find_row_norm(primitives: ReferencePrimitives, plan: Plan, v: int) -> Formula | None:
    """Return a normalization over the last axes."""
    step = plan.composites[v]
    x, *parameters = cast("tuple[int, ...]", step.inputs)
    eps = step.attrs["eps"]
    statistics = find_statistics(plan, v)
    rank = find_rank(plan, x, statistics[0]) if statistics else None
    if not statistics or rank is None or not primitives.computes_row_norm(matrix_shape(step.shape, rank), eps):
        return None
    mean, variance = statistics
    results = {v: NORMALIZED, mean: MEANS, variance: VARIANCES}
    return Formula((x,), results, {"rank": rank, "eps": eps}, tuple(parameters))


def scaled(plan: Plan, formula: Formula, replaced: Collection[int], readers: Readers) -> Formula:
    """Return the formula of ``gamma z + beta`` for that of normalized rows z, if only ``replaced`` steps read z, too.

    gamma and beta have a number for each element of a row.
    """
    main, rank, scale = formula.main, formula.attrs.get("rank"), list[int]()
    if formula.results[main] is not NORMALIZED or rank is None or formula.parameters:
        return formula
    shape = plan.shape(main)
    for name in ("mul", "add"):
        reader = None if main in plan.outputs else find_reader(readers, main, replaced)
        others: Any = [x for x in plan.step_of(reader).inputs if x != main] if reader is not None else ()
        if reader is None or len(others) != 1 or not is_row(plan, others[0], shape, rank):
            return formula
        step = plan.step_of(reader)
        if (step.op.name, step.shape, step.dtype) != (name, shape, "float32"):
            return formula
        main, scale = reader, [*scale, others[0]]
    _, *statistics = formula.results.items()
    return Formula((*formula.operands, *scale), {main: NORMALIZED, **dict(statistics)}, formula.attrs)


def is_row(plan: Plan, x: Any, shape: Shape, rank: int) -> bool:
    """Return whether a value is a contiguous leaf of float32 with a number for each element of a row."""
    if not isinstance(x, int) or x >= len(plan.leaves) or plan.dtype(x) != "float32" or not plan.is_contiguous(x):
        return False
    return (1,) * (len(shape) - len(plan.shape(x))) + plan.shape(x) == (1,) * rank + shape[rank:]


def find_batch_norm(primitives: ReferencePrimitives, plan: Plan, v: int, readers: Readers) -> Formula | None:
    """Return a batch_norm with gamma and beta, of images from a convolution in NHWC; with max(., 0) of it, if read."""
    step = plan.composites[v]
    operands = cast("tuple[int, ...]", step.inputs)
    rows, eps = rows_shape(plan.layout.from_chwn(step.shape)), step.attrs["eps"]
    if rows is None or len(operands) < 3 or not primitives.computes_batch_norm(rows, eps):
        return None
    if not all(p < len(plan.leaves) and plan.is_contiguous(p) for p in operands[1:]):
        return None
    if (statistics := find_statistics(plan, v)) is None:
        return None
    relu, (mean, variance) = find_relu(plan, v, readers), statistics
    results = {v if relu is None else relu: NORMALIZED, mean: MEANS, variance: VARIANCES}
    return Formula(operands, results, step.attrs | {"relu": relu is not None})


def find_conv_bias(plan: Plan, v: int, readers: Readers) -> Formula | None:
    """Return the sum of a convolution and a bias, or max(., 0) of it, of which nothing else is read."""
    step = plan.step_of(v)
    reader = find_reader(readers, v)
    if step.op.name != "conv" or v in plan.outputs or reader is None:
        return None
    total = plan.step_of(reader)
    others: Any = [x for x in total.inputs if x != v]
    K = step.shape[0]
    if total.op.name != "add" or len(others) != 1 or plan.dtype(others[0]) != step.dtype or total.dtype != step.dtype:
        return None
    if plan.shape(others[0]) != (K,) + (1,) * (len(step.shape) - 1):
        return None
    relu = find_relu(plan, reader, readers)
    result = {reader: CONV_BIAS} if relu is None else {relu: CONV_BIAS_RELU}
    return Formula((*step.inputs, *others), result, step.attrs)  # type: ignore[arg-type]


def find_statistics(plan: Plan, v: int) -> tuple[int, int] | None:
    """Return the mean and the variance of a normalization; None if they are operands, or x is broadcast."""
    operands: Any = plan.composites[v].inputs
    inner = [plan.step_of(u) for u in formula_values(plan, v, operands)]
    mean: Any = next((s.inputs[1] for s in inner if s.op.name == "sub" and s.inputs[0] == operands[0]), None)
    total: Any = next((s.inputs[0] for s in inner if s.op.name == "sqrt"), None)  # variance + eps
    if mean is None or total is None or {mean, total} & set(operands):
        return None
    return mean, cast("int", plan.step_of(total).inputs[0])


def find_rank(plan: Plan, x: int | None, reduced: int | None) -> int | None:
    """Return the first of the last axes of a contiguous value that a reduction runs over; None if it runs over others.

    ``reduced``: the value of the reduction, or one of its shape.
    """
    if x is None or reduced is None or 0 in plan.shape(x) or not plan.is_contiguous(x):
        return None
    shape, to = plan.shape(x), plan.shape(reduced)
    return next((n for n in range(len(shape), -1, -1) if to == shape[:n] + (1,) * (len(shape) - n)), None)


def matrix_shape(shape: Shape, rank: int) -> Shape:
    """Return the shape of a matrix, whose rows are over the axes from ``rank`` on."""
    return math.prod(shape[:rank]), math.prod(shape[rank:])


def find_relu(plan: Plan, v: int, readers: Readers) -> int | None:
    """Return ``max(., 0)`` of a value that nothing else reads; else None."""
    reader = None if v in plan.outputs else find_reader(readers, v)
    step = None if reader is None else plan.step_of(reader)
    return reader if step is not None and (step.op.name, step.inputs) == ("maximum", (v, Constant(0))) else None


def find_reader(readers: Readers, v: int, ignored: Collection[int] = ()) -> int | None:
    """Return the step that reads a value, if there is only one that is not ignored."""
    left = [u for u in readers.get(v, ()) if u not in ignored]
    return left[0] if len(left) == 1 else None


def formula_values(plan: Plan, v: int, operands: Collection[int]) -> list[int]:
    """Return the values of the steps of a formula, from its result back to its operands."""
    found = [v]
    for u in found:  # which grows
        for x in plan.step_of(u).inputs:
            if isinstance(x, int) and x >= len(plan.leaves) and x not in found and x not in operands:
                found.append(x)
    return found


class PlanRewriter:
    """The values of a plan in their own shape, and images in the layout of the plan, while its steps are rewritten.

    The steps of a formula become those of its primitive. A transpose is copied once, for the elementwise steps that
    read it.

    Images in NHWC are a value of the shape (N, *sizes, C), in NCHW of (N, C, *sizes): the elementwise steps and
    reductions that read them run over this shape, and ``reorder`` copies images between it and their own shape where
    another step reads them. Leaves and targets keep their shape. NumPy and oneDNN are slow on rows as short as the
    channels, and GPUs are not: on a CPU, steps whose other operands are one number per channel run over a matrix whose
    rows have the channels of several pixels, one after another, with these numbers repeated.
    """

    def __init__(self, primitives: ReferencePrimitives, plan: Plan, preferring: set[int], reordering: set[int]) -> None:
        self.primitives, self.plan, self.preferring, self.reordering = primitives, plan, preferring, reordering
        self.takes_short_rows, self.layout = primitives.takes_short_rows, plan.layout
        self.steps, self.outputs = dict(plan.numbered_steps), plan.outputs
        self.shapes = {v: plan.shape(v) for v in range(len(plan.leaves) + len(plan.steps))}
        self.plain: dict[int, int] = {v: v for v in range(len(plan.leaves))}  # {old value: new value}
        self.reordered: dict[int, int] = {}
        self.rows: dict[int, int] = {}  # the same images as a matrix, several pixels in a row
        self.copies: dict[int, int] = {}  # {new value of a transpose: its contiguous copy}
        self.repeated: dict[tuple[int, Shape], int] = {}  # {(old value, shape of the rows): numbers of the channels}
        self.rounded: dict[tuple[int, str, float | None], int] = {}  # {(old value, dtype, scale): rounded value}
        plan.steps, plan.strides = [], {}

    def rewrite(self, formulas: Sequence[Formula]) -> None:
        """Append the new steps to the plan, and group them into stages."""
        plan, needed = self.plan, self.needed_values({})
        by_value = {v: x for x in formulas if x.main in needed for v in x.results}
        needed = self.needed_values(by_value)
        for v, step in self.steps.items():
            if v in by_value:
                if v == by_value[v].place:
                    self.append_formula(by_value[v], needed)
                if v == by_value[v].main:
                    self.append_parameters(by_value[v])
            elif v in needed:
                self.append(v, step)
        plan.outputs = {self.as_output(i, v): i for v, i in plan.outputs.items()}
        plan.reordered = {*self.reordered.values(), *self.rows.values()}
        plan.plan_stages()

    def needed_values(self, by_value: dict[int, Formula]) -> set[int]:
        """Return the values from which the outputs are computed, if these are the results of primitives."""
        needed = set(self.outputs)
        for v, step in reversed(self.steps.items()):
            if v in needed:
                inputs = (*by_value[v].operands, *by_value[v].parameters) if v in by_value else step.inputs
                needed.update(x for x in inputs if isinstance(x, int))
        return needed

    def append(self, v: int, step: Step) -> None:
        """Append a step, of reordered images if that saves copies."""
        is_reordered = [y in self.reordered or y in self.rows for y in step.inputs]
        full = [n for n, y in enumerate(step.inputs) if isinstance(y, int) and self.shapes[y] == step.shape]
        if step.op.name in CONVOLUTIONS or step.op.name in POOLINGS:
            if v in self.preferring and (step.op.name in (*CONVOLUTIONS, *UNPOOLINGS) or is_reordered[0]):
                return self.append_primitive(v, step, v in self.reordering)
        elif step.kind == "elementwise" and len(step.shape) > 2:
            if 2 * sum(is_reordered[n] for n in full) >= len(full) > 0:
                return self.append_elementwise(v, step, full)
        elif is_reordered and is_reordered[0] and self.append_view_or_reduction(v, step):
            return None
        inputs = [self.as_plain(y) if isinstance(y, int) else y for y in step.inputs]
        for n in full if step.kind == "elementwise" else ():
            x = inputs[n]
            if isinstance(x, int) and is_transpose(self.primitives, self.plan, x):
                copy = Step(TRANSPOSED, {}, (x,), step.shape, "float32", "float32")
                if step.op.name in COPIES and step.dtype == "float32":
                    step, inputs = copy, [x]
                    break
                if x not in self.copies:
                    self.copies[x] = self.plan.append_step(copy)
                inputs[n] = self.copies[x]
        self.plain[v] = self.plan.append_step(step._replace(inputs=tuple(inputs)))
        return None

    def append_elementwise(self, v: int, step: Step, full: Sequence[int]) -> None:
        """Append an elementwise step, whose operands of its shape have these numbers."""
        ndim, to = len(step.shape), None if self.takes_short_rows else rows_shape(self.layout.from_chwn(step.shape))
        others = [y for n, y in enumerate(step.inputs) if n not in full]
        if to and all(self.is_per_channel(y, ndim) for y in others):
            inputs = [self.as_rows(y, to) if n in full else self.repeat(y, ndim, to) for n, y in enumerate(step.inputs)]
            self.rows[v] = self.plan.append_step(step._replace(inputs=tuple(inputs), shape=to))
        else:
            self.append_reordered(v, step, [self.broadcastable(y, ndim) for y in step.inputs])

    def append_view_or_reduction(self, v: int, step: Step) -> bool:
        """Append a reshape of pixels, or a reduction of reordered images, and return True; False for any other step."""
        x: Any = step.inputs[0]
        shape, to, last = self.shapes[x], step.shape, len(self.shapes[x]) - 1
        if step.op.name == "reshape" and len(to) > 2 and (to[0], to[-1]) == (shape[0], shape[-1]):
            self.append_reordered(v, step, [self.as_reordered(x)], to=self.layout.from_chwn(to))
        elif step.op.name in REDUCTIONS and step.attrs.get("keepdims", True):
            axes = step.attrs["axis"]
            rows = None if self.takes_short_rows else rows_shape(self.layout.from_chwn(shape))
            if rows and sorted(axes) == list(range(1, last + 1)):
                C, attrs = shape[0], step.attrs | {"axis": (0,)}
                row = self.plan.append_step(
                    step._replace(inputs=(self.as_rows(x, rows),), shape=(1, rows[1]), attrs=attrs)
                )
                pixels = self.reshape(row, (rows[1] // C, C))
                total = self.plan.append_step(
                    step._replace(inputs=(pixels,), shape=(1, C), attrs=attrs, compute_dtype=step.dtype)
                )
                self.reordered[v] = self.reshape(total, self.layout.from_chwn(to))
            else:
                axes = tuple(sorted(self.layout.axes(last + 1).index(a) for a in axes))
                self.append_reordered(v, step, [self.as_reordered(x)], axis=axes)
        else:
            return False
        return True

    def append_primitive(self, v: int, step: Step, reorders_filters: bool) -> None:
        """Append the step of a primitive."""
        roles = (CONVOLUTIONS.get(step.op.name) or POOLINGS[step.op.name])[0]
        plain = ("B",) if reorders_filters else ("B", "F")
        inputs: list[Any] = [
            self.as_plain(x) if role in plain else self.as_reordered(x)
            for x, role in zip(step.inputs, roles, strict=False)
        ]
        if roles[-1] in plain:
            self.plain[v] = self.plan.append_step(step._replace(inputs=tuple(inputs)))
        else:
            self.append_reordered(v, step, inputs)

    def append_formula(self, formula: Formula, needed: Collection[int]) -> None:
        """Append the steps of a primitive, for the main result of a formula and the others that are needed."""
        (x, *others), attrs, v = formula.operands, formula.attrs, formula.main
        if formula.results[v].name in CONVOLUTIONS:
            return self.append_primitive(
                v, self.steps[v]._replace(op=formula.results[v], attrs=attrs, inputs=formula.operands), True
            )
        is_images = "relu" in attrs and len(self.shapes[x]) > 2  # not the norm of rows
        if formula.results[v] in (QUANTIZED_DOT, QUANTIZED_CONV):
            x = self.round_to(x, self.plan.dtype(self.as_plain(others[0])), attrs["scale"], is_images)
        inputs = self.as_reordered(x) if is_images else self.as_plain(x), *map(self.as_plain, others)
        for v, op in formula.results.items():
            new = self.steps[v]._replace(op=op, attrs=attrs, inputs=inputs)
            if v == formula.main and is_images:
                self.append_reordered(v, new, inputs)
            elif v == formula.main or v in needed:
                self.plain[v] = self.plan.append_step(new)

    def round_to(self, v: int, dtype: str, scale: float | None, is_images: bool) -> int:
        """Return the number of a value that is rounded to int8 or bfloat16 in a layout that it has.

        The number is one after those of the old values. A copy to the other layout reads the rounded numbers, which are
        smaller.
        """
        key = v, dtype, scale
        if key not in self.rounded:
            self.rounded[key] = new = len(self.shapes)
            self.shapes[new] = self.shapes[v]
            is_reordered = v not in self.plain or (is_images and (v in self.reordered or v in self.rows))
            source = self.as_reordered(v) if is_reordered else self.plain[v]
            step = Step(ROUNDED, {"scale": scale}, (source,), self.plan.shape(source), dtype, dtype)
            (self.reordered if is_reordered else self.plain)[new] = self.plan.append_step(step)
        return self.rounded[key]

    def append_parameters(self, formula: Formula) -> None:
        """Append the steps that scale and shift the main result of a formula."""
        v = formula.main
        step, shape = self.steps[v], self.shapes[v][: formula.attrs.get("rank", 0)]
        for name, p in zip(("mul", "add"), formula.parameters, strict=False):
            column = self.reshape(self.as_plain(p), shape + (1,) * (len(step.shape) - len(shape)))
            new = step._replace(op=OPS[name], attrs={}, inputs=(self.plain[v], column))
            self.plain[v] = self.plan.append_step(new)

    def append_reordered(self, v: int, step: Step, inputs: Sequence[int | Constant], **attrs: Any) -> None:
        """Append a step whose result is reordered images."""
        new = step._replace(inputs=tuple(inputs), shape=self.layout.from_chwn(step.shape), attrs=step.attrs | attrs)
        self.reordered[v] = self.plan.append_step(new)

    def as_output(self, i: int, v: int) -> int:
        """Return the value of a target, which is reshaped where both layouts have one order."""
        target = self.plan.targets[i]
        if v not in self.plain or self.plan.step_of(self.plain[v]).kind == "view":
            source: Any = self.as_reordered(v)
            if self.layout.keeps_order(target.shape) and target.attrs["contiguous"]:
                while self.plan.step_of(source).kind == "view":
                    source = self.plan.step_of(source).inputs[0]
                self.plan.targets[i] = target.be.tensor_info(self.plan.shape(source), target.dtype)
                return source
            self.plain[v] = self.reorder(source, self.layout.inverse_axes(len(target.shape)))
        return self.plain[v]

    def as_plain(self, v: Any) -> Any:
        """Return a value in its own shape."""
        if v not in self.plain:
            shape, source = self.shapes[v], self.as_reordered(v)
            is_view, axes = self.layout.keeps_order(shape), self.layout.inverse_axes(len(shape))
            self.plain[v] = self.reshape(source, shape) if is_view else self.reorder(source, axes)
        return self.plain[v]

    def as_reordered(self, v: Any) -> int:
        """Return images in the layout of the plan."""
        if v not in self.reordered:
            shape, source = self.layout.from_chwn(self.shapes[v]), self.rows.get(v, self.plain.get(v))
            step = self.steps.get(v)
            number: Any = step.inputs[0] if step is not None and step.op.name == "broadcast" else None
            if step is not None and number is not None and math.prod(self.shapes[number]) == 1:
                self.append_reordered(v, step, [self.as_plain(number)], to=shape)
                return self.reordered[v]
            is_view, axes = v in self.rows or self.layout.keeps_order(self.shapes[v]), self.layout.axes(len(shape))
            self.reordered[v] = self.reshape(source, shape) if is_view else self.reorder(source, axes)
        return self.reordered[v]

    def as_rows(self, v: Any, shape: Shape) -> int:
        """Return reordered images as a matrix."""
        if v not in self.rows:
            self.rows[v] = self.reshape(self.as_reordered(v), shape)
        return self.rows[v]

    def is_per_channel(self, v: Any, ndim: int) -> bool:
        """Return whether an operand is a scalar, or has one number for each channel."""
        if not isinstance(v, int):
            return True
        shape = self.shapes[v]
        return math.prod(shape) == 1 or (len(shape) == ndim and math.prod(shape) == shape[0])

    def repeat(self, v: Any, ndim: int, rows: Shape) -> Any:
        """Return an operand with one number for each channel, repeated for each pixel of a row."""
        if not isinstance(v, int) or (v in self.plain and not self.plan.dtype(self.plain[v])):
            return v
        C, numbers = math.prod(self.shapes[v]), self.plain[v] if v in self.plain else self.as_reordered(v)
        if C == 1:
            return self.reshape(numbers, (1, 1))
        if (v, rows) not in self.repeated:
            dtype, k = self.plan.dtype(numbers), rows[1] // C
            numbers = self.reshape(numbers, (1, C))
            copy = self.plan.append_step(Step(OPS["stop_gradient"], {}, (numbers,), (k, C), dtype, dtype))
            self.repeated[v, rows] = self.reshape(copy, (1, k * C))
        return self.repeated[v, rows]

    def broadcastable(self, v: Any, ndim: int) -> Any:
        """Return an operand that broadcasts to reordered images."""
        if not isinstance(v, int) or (v in self.plain and not self.plan.dtype(self.plain[v])):
            return v
        shape = (1,) * (ndim - len(self.shapes[v])) + self.shapes[v]
        if v in self.reordered or v in self.rows or shape == self.shapes[v]:
            return self.as_reordered(v)
        to = self.layout.from_chwn(shape)
        if shape[0] == shape[-1] == 1:
            return self.plain[v] if to == shape else self.reshape(self.plain[v], to)
        return self.reorder(self.reshape(self.plain[v], shape), self.layout.axes(ndim))

    def reorder(self, v: Any, axes: Shape) -> int:
        """Append the copy of images to the other layout, which has these axes of them."""
        dtype, shape = self.plan.dtype(v), tuple(self.plan.shape(v)[a] for a in axes)
        return self.plan.append_step(Step(REORDER, {"axes": axes}, (v,), shape, dtype, dtype))

    def reshape(self, v: Any, shape: Shape) -> int:
        """Append a view of a value in another shape."""
        dtype = self.plan.dtype(v)
        return self.plan.append_step(Step(OPS["reshape"], {"to": shape}, (v,), shape, dtype, dtype))


def rows_shape(shape: Shape) -> Shape | None:
    """Return the shape of images (N, *sizes, C) as a matrix of several pixels in a row; None with many channels."""
    C, pixels = shape[-1], math.prod(shape[:-1])
    k = next((k for k in range(MAX_ROW_ELEMENTS // C, 1, -1) if pixels % k == 0), 1)
    return (pixels // k, k * C) if k > 1 else None
