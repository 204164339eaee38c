"""The layout of the images of a plan: NHWC between the primitives that are fastest in it.

The steps are rewritten before they are grouped into stages. Images in NHWC are a value of the shape (N, *sizes, C): the
elementwise steps and reductions that read them run over this shape, and ``reorder`` copies images between the two
shapes where another step reads them. Leaves and targets keep their shape.

NumPy and oneDNN are slow on rows as short as the channels, and GPUs are not. On a CPU, steps whose other operands are
one number per channel run over a matrix whose rows have the channels of several pixels, one after another, with these
numbers repeated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from neonlite.backend.planning import Plan
from neonlite.backend.planning.steps import Step
from neonlite.backend.primitives import ReferencePrimitives
from neonlite.backend.primitives.rows import CONVOLUTIONS, POOLINGS, image_layer, swap_ends
from neonlite.ops import OPS, Op
from neonlite.ops.shapes import Shape
from neonlite.tree_structure import Constant

REDUCTIONS = ("sum", "max", "min", "prod")  # whose result depends on no order of the elements
UNPOOLINGS = ("max_unpool", "sum_unpool")
MAX_ROW_ELEMENTS = 1 << 10  # of the rows with several pixels
MIN_ROW_IMAGES = 1 << 15  # elements of images below which longer rows gain less than the copies of operands take


def swap_axes(xp: Any, x: Any) -> Any:
    """Return images with the first and the last axis exchanged."""
    return xp.permute_dims(x, (x.ndim - 1, *range(1, x.ndim - 1), 0))


REORDER = Op("reorder", swap_axes, doc="images copied from CHWN to NHWC, or back", kind="library", has_method=False)


def lay_out_images(primitives: ReferencePrimitives, plan: Plan) -> None:
    """Rewrite a plan with several image ops so that images stay in NHWC between those that the library computes."""
    read = {plan.view_base(x) for s in plan.steps if s.kind != "view" for x in s.inputs if isinstance(x, int)}
    preferring = {v for v in plan.step_values if prefers_nhwc(primitives, plan, v, v not in plan.outputs or v in read)}
    if len(preferring) > 1 and any(plan.step_of(v).op.name in CONVOLUTIONS for v in preferring):
        ImageLayouts(primitives, plan, preferring).rewrite()


def prefers_nhwc(primitives: ReferencePrimitives, plan: Plan, v: int, is_read: bool) -> bool:
    """Return whether the library computes a step in NHWC, and another step reads images that it returns."""
    if (found := image_layer(primitives, plan, v)) is None:
        return False
    roles, layer, _ = found
    return (is_read or roles[-1] == "F") and primitives.computes(plan.step_of(v).op.name, layer)


class ImageLayouts:
    """The values of a plan in their own shape, and of images those in NHWC, while its steps are rewritten."""

    def __init__(self, primitives: ReferencePrimitives, plan: Plan, preferring: set[int]) -> None:
        self.plan, self.preferring = plan, preferring
        self.is_gpu = primitives.supports_nhwc_trees
        self.steps, self.outputs = dict(plan.numbered_steps), set(plan.outputs)
        self.shapes = {v: plan.shape(v) for v in range(len(plan.leaves) + len(plan.steps))}
        self.plain: dict[int, int] = {v: v for v in range(len(plan.leaves))}  # {old value: new value}
        self.nhwc: dict[int, int] = {}
        self.rows: dict[int, int] = {}  # the same images as a matrix, several pixels in a row
        self.repeated: dict[tuple[int, Shape], int] = {}  # {(old value, shape of the rows): numbers of the channels}
        plan.steps, plan.strides = [], {}

    def rewrite(self) -> None:
        """Append the new steps to the plan, and group them into stages."""
        plan, needed = self.plan, set(self.outputs)
        for v, step in reversed(self.steps.items()):
            if v in needed:
                needed.update(x for x in step.inputs if isinstance(x, int))
        for v, step in self.steps.items():
            if v in needed:
                self.append(v, step)
        plan.outputs = [self.as_output(i, v) for i, v in enumerate(plan.outputs)]
        plan.nhwc = {*self.nhwc.values(), *self.rows.values()}
        plan.plan_stages()

    def append(self, v: int, step: Step) -> None:
        """Append a step, in NHWC if that saves copies."""
        is_nhwc = [y in self.nhwc or y in self.rows for y in step.inputs]
        full = [n for n, y in enumerate(step.inputs) if isinstance(y, int) and self.shapes[y] == step.shape]
        if step.op.name in CONVOLUTIONS or step.op.name in POOLINGS:
            if v in self.preferring and (step.op.name in (*CONVOLUTIONS, *UNPOOLINGS) or is_nhwc[0]):
                return self.append_primitive(v, step)
        elif step.kind == "elementwise" and len(step.shape) > 2:
            if 2 * sum(is_nhwc[n] for n in full) >= len(full) > 0:
                return self.append_elementwise(v, step, full)
        elif is_nhwc and is_nhwc[0] and self.append_view_or_reduction(v, step):
            return None
        inputs = [self.as_plain(y) if isinstance(y, int) else y for y in step.inputs]
        self.plain[v] = self.plan.append_step(step._replace(inputs=tuple(inputs)))
        return None

    def append_elementwise(self, v: int, step: Step, full: Sequence[int]) -> None:
        """Append an elementwise step, whose operands of its shape have these numbers."""
        ndim, to = len(step.shape), None if self.is_gpu else rows_shape(swap_ends(step.shape))
        others = [y for n, y in enumerate(step.inputs) if n not in full]
        if to and all(self.is_per_channel(y, ndim) for y in others):
            inputs = [self.as_rows(y, to) if n in full else self.repeat(y, ndim, to) for n, y in enumerate(step.inputs)]
            self.rows[v] = self.plan.append_step(step._replace(inputs=tuple(inputs), shape=to))
        else:
            self.append_nhwc(v, step, [self.broadcastable(y, ndim) for y in step.inputs])

    def append_view_or_reduction(self, v: int, step: Step) -> bool:
        """Append a reshape of pixels, or a reduction of images in NHWC, and return True; False for any other step."""
        x: Any = step.inputs[0]
        shape, to, last = self.shapes[x], step.shape, len(self.shapes[x]) - 1
        if step.op.name == "reshape" and len(to) > 2 and (to[0], to[-1]) == (shape[0], shape[-1]):
            self.append_nhwc(v, step, [self.as_nhwc(x)], to=swap_ends(to))
        elif step.op.name in REDUCTIONS and step.attrs.get("keepdims", True):
            axes = step.attrs["axis"]
            rows = None if self.is_gpu else rows_shape(swap_ends(shape))
            if rows and sorted(axes) == list(range(1, last + 1)):
                C, attrs = shape[0], step.attrs | {"axis": (0,)}
                row = self.plan.append_step(
                    step._replace(inputs=(self.as_rows(x, rows),), shape=(1, rows[1]), attrs=attrs)
                )
                pixels = self.reshape(row, (rows[1] // C, C))
                total = self.plan.append_step(
                    step._replace(inputs=(pixels,), shape=(1, C), attrs=attrs, compute_dtype=step.dtype)
                )
                self.nhwc[v] = self.reshape(total, swap_ends(to))
            else:
                axes = tuple(sorted({0: last, last: 0}.get(a, a) for a in axes))
                self.append_nhwc(v, step, [self.as_nhwc(x)], axis=axes)
        else:
            return False
        return True

    def append_primitive(self, v: int, step: Step) -> None:
        """Append the step of a primitive. On a CPU it chooses the layout of leaves itself."""
        roles = (CONVOLUTIONS.get(step.op.name) or POOLINGS[step.op.name])[0]
        inputs: list[Any] = [
            self.as_plain(x) if role == "F" or (self.is_leaf(x) and not self.is_gpu) else self.as_nhwc(x)
            for x, role in zip(step.inputs, roles, strict=False)
        ]
        if roles[-1] == "F":
            self.plain[v] = self.plan.append_step(step._replace(inputs=tuple(inputs)))
        else:
            self.append_nhwc(v, step, inputs)

    def is_leaf(self, v: Any) -> bool:
        """Return whether a value is a leaf, or a leaf reshaped."""
        while (step := self.steps.get(v)) is not None and step.op.name == "reshape":
            v = step.inputs[0]
        return v not in self.steps

    def append_nhwc(self, v: int, step: Step, inputs: Sequence[int | Constant], **attrs: Any) -> None:
        """Append a step whose result is in NHWC."""
        new = step._replace(inputs=tuple(inputs), shape=swap_ends(step.shape), attrs=step.attrs | attrs)
        self.nhwc[v] = self.plan.append_step(new)

    def as_output(self, i: int, v: int) -> int:
        """Return the value of a target: of one channel or one sample in NHWC, for which the target is reshaped."""
        target = self.plan.targets[i]
        if v not in self.plain or self.plan.step_of(self.plain[v]).kind == "view":
            source: Any = self.as_nhwc(v)
            if is_vector(target.shape) and target.attrs["contiguous"]:
                while self.plan.step_of(source).kind == "view":
                    source = self.plan.step_of(source).inputs[0]
                self.plan.targets[i] = target.be.tensor_info(self.plan.shape(source), target.dtype)
                return source
            self.plain[v] = self.reorder(source, target.shape)
        return self.plain[v]

    def as_plain(self, v: Any) -> Any:
        """Return a value in its own shape."""
        if v not in self.plain:
            shape = self.shapes[v]
            copy = self.reshape if is_vector(shape) else self.reorder
            self.plain[v] = copy(self.as_nhwc(v), shape)
        return self.plain[v]

    def as_nhwc(self, v: Any) -> int:
        """Return images in NHWC."""
        if v not in self.nhwc:
            shape, source = swap_ends(self.shapes[v]), self.rows.get(v, self.plain.get(v))
            step = self.steps.get(v)
            number: Any = step.inputs[0] if step is not None and step.op.name == "broadcast" else None
            if step is not None and number is not None and math.prod(self.shapes[number]) == 1:
                self.append_nhwc(v, step, [self.as_plain(number)], to=shape)
                return self.nhwc[v]
            copy = self.reshape if v in self.rows or is_vector(shape) else self.reorder
            self.nhwc[v] = copy(source, shape)
        return self.nhwc[v]

    def as_rows(self, v: Any, shape: Shape) -> int:
        """Return images in NHWC as a matrix."""
        if v not in self.rows:
            self.rows[v] = self.reshape(self.as_nhwc(v), shape)
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
        C, numbers = math.prod(self.shapes[v]), self.plain[v] if v in self.plain else self.as_nhwc(v)
        if C == 1:
            return self.reshape(numbers, (1, 1))
        if (v, rows) not in self.repeated:
            dtype, k = self.plan.dtype(numbers), rows[1] // C
            numbers = self.reshape(numbers, (1, C))
            copy = self.plan.append_step(Step(OPS["stop_gradient"], {}, (numbers,), (k, C), dtype, dtype))
            self.repeated[v, rows] = self.reshape(copy, (1, k * C))
        return self.repeated[v, rows]

    def broadcastable(self, v: Any, ndim: int) -> Any:
        """Return an operand that broadcasts to images in NHWC."""
        if not isinstance(v, int) or (v in self.plain and not self.plan.dtype(self.plain[v])):
            return v
        shape = (1,) * (ndim - len(self.shapes[v])) + self.shapes[v]
        if v in self.nhwc or v in self.rows or shape == self.shapes[v]:
            return self.as_nhwc(v)
        if shape[0] == shape[-1] == 1:
            return self.plain[v]
        return self.reorder(self.reshape(self.plain[v], shape), swap_ends(shape))

    def reorder(self, v: Any, shape: Shape) -> int:
        """Append the copy of images to the other layout."""
        dtype = self.plan.dtype(v)
        return self.plan.append_step(Step(REORDER, {}, (v,), shape, dtype, dtype))

    def reshape(self, v: Any, shape: Shape) -> int:
        """Append a view of a value in another shape."""
        dtype = self.plan.dtype(v)
        return self.plan.append_step(Step(OPS["reshape"], {"to": shape}, (v,), shape, dtype, dtype))


def is_vector(shape: Shape) -> bool:
    """Return whether all elements lie along one axis."""
    return math.prod(shape) == max(shape, default=1)


def rows_shape(shape: Shape) -> Shape | None:
    """Return the shape of images (N, *sizes, C) as a matrix of several pixels in a row; None if they are too small."""
    C, pixels = shape[-1], math.prod(shape[:-1])
    if math.prod(shape) < MIN_ROW_IMAGES:
        return None
    k = next((k for k in range(MAX_ROW_ELEMENTS // C, 1, -1) if pixels % k == 0), 1)
    return (pixels // k, k * C) if k > 1 else None
