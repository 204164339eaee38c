"""The layout of the images of a plan: NHWC between the primitives that are fastest in it.

The steps are rewritten before they are grouped into stages. Images in NHWC are a value of the shape (N, *sizes, C): the
elementwise steps and reductions that read them run over this shape, and ``reorder`` copies images between the two
shapes where another step reads them. Leaves and targets keep their shape.
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


def swap_axes(xp: Any, x: Any) -> Any:
    """Return images with the first and the last axis exchanged."""
    return xp.permute_dims(x, (x.ndim - 1, *range(1, x.ndim - 1), 0))


REORDER = Op("reorder", swap_axes, doc="images copied from CHWN to NHWC, or back", kind="library", has_method=False)


def lay_out_images(primitives: ReferencePrimitives, plan: Plan) -> None:
    """Rewrite a plan with several image ops so that images stay in NHWC between those that the library computes."""
    read = {plan.view_base(x) for s in plan.steps if s.kind != "view" for x in s.inputs if isinstance(x, int)}
    preferring = {v for v in plan.step_values if prefers_nhwc(primitives, plan, v, v not in plan.outputs or v in read)}
    if len(preferring) > 1 and any(plan.step_of(v).op.name in CONVOLUTIONS for v in preferring):
        ImageLayouts(plan, preferring).rewrite()


def prefers_nhwc(primitives: ReferencePrimitives, plan: Plan, v: int, is_read: bool) -> bool:
    """Return whether the library computes a step in NHWC, and another step reads images that it returns."""
    if (found := image_layer(primitives, plan, v)) is None:
        return False
    roles, layer, _ = found
    return (is_read or roles[-1] == "F") and primitives.computes(plan.step_of(v).op.name, layer)


class ImageLayouts:
    """The values of a plan in their own shape, and of images those in NHWC, while its steps are rewritten."""

    def __init__(self, plan: Plan, preferring: set[int]) -> None:
        self.plan, self.preferring = plan, preferring
        self.steps, self.outputs = dict(plan.numbered_steps), set(plan.outputs)
        self.shapes = {v: plan.shape(v) for v in range(len(plan.leaves) + len(plan.steps))}
        self.plain: dict[int, int] = {v: v for v in range(len(plan.leaves))}  # {old value: new value}
        self.nhwc: dict[int, int] = {}
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
        plan.nhwc = set(self.nhwc.values())
        plan.plan_stages()

    def append(self, v: int, step: Step) -> None:
        """Append a step, in NHWC if that saves copies."""
        x = step.inputs[0] if step.inputs else None
        is_nhwc = [isinstance(y, int) and y in self.nhwc and y not in self.plain for y in step.inputs]
        full = [n for n, y in enumerate(step.inputs) if isinstance(y, int) and self.shapes[y] == step.shape]
        if step.op.name in CONVOLUTIONS or step.op.name in POOLINGS:
            if v in self.preferring and (step.op.name in (*CONVOLUTIONS, *UNPOOLINGS) or is_nhwc[0]):
                return self.append_primitive(v, step)
        elif len(step.shape) < 3 and step.kind != "view":
            pass
        elif step.kind == "elementwise":
            if 2 * sum(is_nhwc[n] for n in full) >= len(full) > 0:
                inputs = [self.broadcastable(y, len(step.shape)) for y in step.inputs]
                return self.append_nhwc(v, step, inputs)
        elif isinstance(x, int) and is_nhwc[0]:
            shape, to = self.shapes[x], step.shape
            if step.op.name == "reshape" and len(to) > 2 and (to[0], to[-1]) == (shape[0], shape[-1]):
                return self.append_nhwc(v, step, [self.nhwc[x]], to=swap_ends(to))
            if step.op.name in REDUCTIONS and step.attrs.get("keepdims", True):
                last = len(shape) - 1
                axes = sorted({0: last, last: 0}.get(a, a) for a in step.attrs["axis"])
                return self.append_nhwc(v, step, [self.nhwc[x]], axis=tuple(axes))
        inputs = [self.as_plain(y) if isinstance(y, int) else y for y in step.inputs]
        self.plain[v] = self.plan.append_step(step._replace(inputs=tuple(inputs)))
        return None

    def append_primitive(self, v: int, step: Step) -> None:
        """Append the step of a primitive. Leaves, whose layout it chooses itself, stay as they are."""
        roles = (CONVOLUTIONS.get(step.op.name) or POOLINGS[step.op.name])[0]
        inputs: list[Any] = [
            self.as_plain(x) if role == "F" or self.is_leaf(x) else self.as_nhwc(x)
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
        if v in self.nhwc and is_vector(target.shape) and target.attrs["contiguous"]:
            self.plan.targets[i] = target.be.tensor_info(swap_ends(target.shape), target.dtype)
            return self.nhwc[v]
        if v not in self.plain or self.plan.step_of(self.plain[v]).kind == "view":
            self.plain[v] = self.reorder(self.nhwc[v], target.shape)
        return self.plain[v]

    def as_plain(self, v: Any) -> Any:
        """Return a value in its own shape."""
        if v not in self.plain:
            shape = self.shapes[v]
            copy = self.reshape if is_vector(shape) else self.reorder
            self.plain[v] = copy(self.nhwc[v], shape)
        return self.plain[v]

    def as_nhwc(self, v: Any) -> int:
        """Return images in NHWC."""
        if v not in self.nhwc:
            self.nhwc[v] = self.reorder(self.plain[v], swap_ends(self.shapes[v]))
        return self.nhwc[v]

    def broadcastable(self, v: Any, ndim: int) -> Any:
        """Return an operand that broadcasts to images in NHWC."""
        if not isinstance(v, int) or v in self.nhwc or not self.plan.dtype(self.plain[v]):
            return self.nhwc.get(v, v)
        shape = (1,) * (ndim - len(self.shapes[v])) + self.shapes[v]
        if shape[0] == shape[-1] == 1:
            return self.plain[v]
        if is_vector(shape):
            self.nhwc[v] = self.reshape(self.plain[v], swap_ends(shape))
        elif shape != self.shapes[v]:
            self.nhwc[v] = self.reorder(self.reshape(self.plain[v], shape), swap_ends(shape))
        return self.as_nhwc(v)

    def reorder(self, v: int, shape: Shape) -> int:
        """Append the copy of images to the other layout."""
        dtype = self.plan.dtype(v)
        return self.plan.append_step(Step(REORDER, {}, (v,), shape, dtype, dtype))

    def reshape(self, v: int, shape: Shape) -> int:
        """Append a view of a value in another shape."""
        dtype = self.plan.dtype(v)
        return self.plan.append_step(Step(OPS["reshape"], {"to": shape}, (v,), shape, dtype, dtype))


def is_vector(shape: Shape) -> bool:
    """Return whether all elements lie along one axis."""
    return math.prod(shape) == max(shape, default=1)
