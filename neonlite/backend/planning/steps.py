"""The steps of a plan, one per op, and their fusion into stages, each one pass over memory.

Equal sub-trees become one step, operands are cast, and ranges of integers are checked. A fused stage is one pass over a
domain: elementwise steps over one shape, and the reductions over it. Each product, gather and random op is a call
stage. Views cost nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from neonlite.ops import OPS, Op
from neonlite.ops.functions import Shape, contiguous_strides, find_view_strides
from neonlite.tree_structure import Above, Below, Constant, Info, Instruction, Leaves, OperandId, lower_to_instructions
from neonlite.typing import LIMITS, OperandLike, dtype_bits, overflow_message


class Step(NamedTuple):
    """One op of a plan. ``inputs`` are value ids or constants. Value ids number the leaves, then the steps."""

    op: Op
    attrs: dict[str, Any]
    inputs: tuple[int | Constant, ...]
    shape: Shape
    dtype: str
    compute_dtype: str

    @property
    def kind(self) -> str:
        """The kind of the op."""
        return self.op.kind

    @property
    def nbytes(self) -> int:
        """The size of the result in bytes."""
        return math.prod(self.shape) * dtype_bits(self.dtype) // 8


class Stage(NamedTuple):
    """Steps that run together over a domain.

    Kinds: "fused" (one pass over the domain) and "call" (one library op). An executor may merge stages into other
    kinds, which may also have steps over the shape of their reductions.

    ``passes_in_memory``: the stage runs as several kernels, which pass values that are not elementwise on in memory.
    ``writes_early``: the stage writes its target before it has read all operands.
    """

    kind: str
    domain: Shape
    steps: list[int]
    passes_in_memory: bool = False
    writes_early: bool = False


class StepList:
    """The steps that evaluate op-trees, in order.

    Parameters
    ----------
    trees : sequence of OpTreeNode
        The op-trees, one per target.
    leaves : dict or None
        {id: leaf} in the order of the arguments of ``run``; None for the order of appearance.
    targets : sequence of Info
        The Infos of the targets. A target of a reshape gets the shape of what is reshaped.
    """

    def __init__(self, trees: Sequence[OperandLike], leaves: Leaves | None, targets: Sequence[Info]) -> None:
        composites: dict[OperandId, Instruction] = {}
        instructions, leaves, result_ids = lower_to_instructions(trees, leaves, composites)
        self.leaves = [x.info if hasattr(x, "info") else type(x) for x in leaves.values()]
        self.names = [getattr(x, "name", None) or f"x{i}" for i, x in enumerate(leaves.values())]
        self.targets = list(targets)
        self.num_distinct_ops = len(instructions)  # after merging equal sub-trees
        self.steps: list[Step] = []
        # of views, and of values that are not stored in C order, in elements; NaN if unknown
        self.strides: dict[int, tuple[float, ...]] = {}
        self.int_range_checks: list[tuple[int, str]] = []  # (leaf, the integer dtype it must fit)
        value_ids: list[int] = []  # the value of each instruction

        def value(x: OperandId) -> int | Constant:
            return x if isinstance(x, Constant) else value_ids[x] if x >= 0 else -1 - x

        for op, attrs, ids, shape, dtype, compute_dtype in write_booleans_as_uint8(instructions):
            value_ids.append(self._add_step(op, dict(attrs), [value(x) for x in ids], shape, dtype, compute_dtype))
        self.composites: dict[int, Step] = {}  # {result of a formula: the composite op as a step}
        for x, (op, attrs, ids, shape, dtype, compute_dtype) in composites.items():
            if isinstance(v := value(x), int) and v >= len(self.leaves):
                self.composites[v] = Step(op, dict(attrs), tuple(map(value, ids)), shape, dtype, compute_dtype)
        self.outputs: dict[int, int] = {}  # {value: the number of its target}, in the order of the targets
        for i, x in enumerate(map(value, result_ids)):
            source = self._skip_reshapes(x, self.targets[i])
            if source != x:
                self.targets[i] = self.targets[i].be.tensor_info(self.shape(source), self.targets[i].dtype)
            self.outputs[self._make_output(source, self.targets[i])] = i

    # --- values ---

    def find_step(self, v: int) -> Step | None:
        """Return the step that computes a value; None for a leaf.

        Parameters
        ----------
        v : int
            A value id.

        Returns
        -------
        Step or None
            The step.
        """
        return self.steps[v - len(self.leaves)] if v >= len(self.leaves) else None

    def step_of(self, v: int) -> Step:
        """Return the step that computes a value that is not a leaf.

        Parameters
        ----------
        v : int
            A value id.

        Returns
        -------
        Step
            The step.
        """
        return self.steps[v - len(self.leaves)]

    @property
    def numbered_steps(self) -> list[tuple[int, Step]]:
        """(value id, step) for all steps."""
        return list(enumerate(self.steps, len(self.leaves)))

    @property
    def step_values(self) -> range:
        """The value ids of the steps."""
        return range(len(self.leaves), len(self.leaves) + len(self.steps))

    def shape(self, x: int | Constant) -> Shape:
        """Return the shape of a value; (1, 1) for a scalar.

        Parameters
        ----------
        x : int or Constant
            A value id or a constant.

        Returns
        -------
        tuple of int
            The shape.
        """
        if isinstance(x, Constant):
            return (1, 1)
        value = self.find_step(x) or self.leaves[x]
        return value.shape if isinstance(value, Step | Info) else (1, 1)

    def dtype(self, x: int | Constant) -> str:
        """Return the dtype of a value; an empty string for a scalar.

        Parameters
        ----------
        x : int or Constant
            A value id or a constant.

        Returns
        -------
        str
            The name of the dtype.
        """
        if isinstance(x, Constant):
            return ""
        value = self.find_step(x) or self.leaves[x]
        return value.dtype if isinstance(value, Step | Info) else ""

    def is_boolean(self, x: int | Constant) -> bool:
        """Return whether a value is the result of a comparison, as 0 and 1 of uint8.

        Parameters
        ----------
        x : int or Constant
            A value id or a constant.

        Returns
        -------
        bool
            Whether it is.
        """
        step = self.find_step(x) if isinstance(x, int) else None
        return step is not None and step.op.result_dtype == "boolean" and step.dtype == "uint8"

    def view_base(self, v: int) -> int:
        """Return the base of a view; any other value itself.

        Parameters
        ----------
        v : int
            A value id.

        Returns
        -------
        int
            The value id of the base.
        """
        while (step := self.find_step(v)) and step.kind == "view":
            v = step.inputs[0]  # type: ignore[assignment]
        return v

    def check_int_ranges(self, values: Sequence[object]) -> None:
        """Raise OverflowError if an integer among the leaves does not fit the dtype it is used in.

        Parameters
        ----------
        values : sequence
            The leaves.

        Raises
        ------
        OverflowError
            An integer does not fit.
        """
        for leaf, dtype in self.int_range_checks:
            (low, high), value = LIMITS[dtype], cast(int, values[leaf])
            if not low <= value <= high:
                raise OverflowError(overflow_message(value, dtype))

    # --- lowering ---

    def _add_step(
        self, op: Op, attrs: dict[str, Any], inputs: list[int | Constant], shape: Shape, dtype: str, compute_dtype: str
    ) -> int:
        if (known := self._out_of_range(op, inputs, shape, dtype, compute_dtype)) is not None:
            return known
        if op.name == "cast" and dtype == "uint8" and self.is_boolean(inputs[0]):
            return inputs[0]  # type: ignore[return-value]
        if op.name == "where" and not self.dtype(inputs[0]):  # a scalar condition is compared with 0 in float64
            inputs[0] = self._add_step(OPS["ne"], {}, [inputs[0], Constant(0)], (1, 1), "float64", "float64")
        self._record_int_ranges(inputs[op.promoted_operands], compute_dtype)
        if op.kind != "random":
            for i in range(len(inputs))[op.promoted_operands]:
                if (have := self.dtype(inputs[i])) and have != compute_dtype:
                    inputs[i] = self._add_cast(inputs[i], compute_dtype)
        if op.kind in ("reduction", "view", "library"):  # these do not accept Python scalars
            inputs = [x if self.dtype(x) else self._add_cast(x, compute_dtype) for x in inputs]
        if op.kind == "elementwise":
            inputs = [self._skip_broadcasts(x) for x in inputs]
        if op.name == "reshape":
            x: Any = inputs[0]
            if find_view_strides(self._strides(x), self.shape(x), shape) is None:
                inputs = [self._add_cast(x, dtype)]
        return self.append_step(Step(op, attrs, tuple(inputs), shape, dtype, compute_dtype))

    def append_step(self, step: Step) -> int:
        """Append a step as it is, and return its value id.

        Parameters
        ----------
        step : Step
            The step.

        Returns
        -------
        int
            The value id.
        """
        self.steps.append(step)
        v = len(self.leaves) + len(self.steps) - 1
        if step.kind == "view":
            self.strides[v] = self._view_strides(step)
        return v

    def set_strides(self, v: int, strides: tuple[float, ...]) -> None:
        """Set the strides of a value, and of its views.

        Parameters
        ----------
        v : int
            A value id.
        strides : tuple of int
            The strides, in elements.
        """
        self.strides[v] = strides
        for u, step in self.numbered_steps:
            if step.kind == "view":
                self.strides[u] = self._view_strides(step)

    def _add_cast(self, x: int | Constant, dtype: str) -> int:
        return self._add_step(OPS["cast"], {"to": dtype}, [x], self.shape(x), dtype, dtype)

    def _record_int_ranges(self, operands: Sequence[int | Constant], compute_dtype: str) -> None:
        """Record the integers that must fit an integer dtype. Raises OverflowError for a constant that does not."""
        if "int" in compute_dtype:
            low, high = LIMITS[compute_dtype]
            for x in operands:
                if isinstance(x, Constant) and not low <= x.value <= high:
                    raise OverflowError(overflow_message(x.value, compute_dtype))
                if isinstance(x, int) and x < len(self.leaves) and self.leaves[x] in (int, Below, Above):
                    self.int_range_checks.append((x, compute_dtype))

    def _out_of_range(
        self, op: Op, inputs: Sequence[int | Constant], shape: Shape, dtype: str, compute_dtype: str
    ) -> int | None:
        """Return the result of an op on an integer tensor and a scalar out of its range, if the range determines it."""
        if op.order_signs is None or not (
            sign := self._side(inputs[0], compute_dtype) - self._side(inputs[1], compute_dtype)
        ):
            return None
        (x,) = (x for x in inputs if isinstance(x, int) and self.dtype(x))
        if op.result_dtype == "boolean":
            return self._add_step(
                OPS["eq" if sign in op.order_signs else "ne"], {}, [x, x], shape, dtype, compute_dtype
            )
        return x if (sign in op.order_signs) == (x == inputs[0]) else None

    def _side(self, x: int | Constant, dtype: str) -> int:
        """Return -1 for a scalar below the range of an integer dtype, 1 for a scalar above it, else 0."""
        if "int" not in dtype or self.dtype(x):
            return 0
        if isinstance(x, Constant):
            low, high = LIMITS[dtype]
            return (x.value > high) - (x.value < low)
        return (self.leaves[x] is Above) - (self.leaves[x] is Below)

    def _skip_broadcasts(self, x: int | Constant) -> int | Constant:
        """Return the operand of broadcast views, as elementwise steps broadcast their operands themselves."""
        while isinstance(x, int) and (step := self.find_step(x)) and step.op.name == "broadcast":
            x = step.inputs[0]
        return x

    def _skip_reshapes(self, x: int | Constant, target: Info) -> int | Constant:
        """Return the value that is reshaped to x if the target, reshaped, can get it instead; else x itself."""
        source = x
        while isinstance(source, int) and (step := self.find_step(source)) and step.op.name == "reshape":
            source = step.inputs[0]
        step = self.find_step(source) if isinstance(source, int) else None
        is_computed = step is not None and step.kind != "view" and step.dtype == target.dtype
        fits = target.attrs["contiguous"] and self.shape(x) == target.shape
        return source if is_computed and fits and source not in self.outputs else x

    def _make_output(self, x: int | Constant, target: Info) -> int:
        """Return the value of a target, with its shape and dtype; a cast is added if needed."""
        step = self.find_step(x) if isinstance(x, int) else None
        if step and step.op.name == "cast" and step.dtype == target.dtype and len(self.targets) == 1:
            # no other step reads the cast, so it can broadcast as well
            step = self.steps[x - len(self.leaves)] = step._replace(shape=target.shape)  # type: ignore[operator]
        is_output = step and step.kind != "view" and step.shape == target.shape and step.dtype == target.dtype
        if not is_output or x in self.outputs:
            return self._add_step(
                OPS["cast"], {"to": target.dtype}, [x], target.shape, target.dtype, self.dtype(x) or target.dtype
            )
        return x  # type: ignore[return-value]

    def _strides(self, v: int) -> tuple[float, ...]:
        """Return the strides of a value, in elements; NaN if unknown."""
        leaf = None if v >= len(self.leaves) else self.leaves[v]
        if isinstance(leaf, Info) and not leaf.attrs["contiguous"]:
            return (math.nan,) * len(leaf.shape)
        return self.strides.get(v) or contiguous_strides(self.shape(v))

    def _view_strides(self, step: Step) -> tuple[float, ...]:
        """Return the strides of a view, by the rule of its op."""
        v = next(x for x in step.inputs if isinstance(x, int))
        if step.op.strides_fn is None:
            return (math.nan,) * len(step.shape)
        return step.op.strides_fn(self._strides(v), self.shape(v), step.shape, **step.attrs)


def write_booleans_as_uint8(instructions: Sequence[Instruction]) -> list[Instruction]:
    """Return instructions in which a comparison that is cast to uint8 has this dtype itself; the cast is skipped."""
    lowered = list(instructions)
    for reader in instructions:
        x = reader.operand_ids[0] if reader.op.name == "cast" and reader.dtype == "uint8" else None
        if isinstance(x, int) and x >= 0:
            read = instructions[x]
            if read.op.kind == "elementwise" and read.op.result_dtype == "boolean":
                lowered[x] = read._replace(dtype="uint8")
    return lowered


# --- fusion: group steps into stages, each one pass over memory ---
#
# A fused stage is one pass over a domain: elementwise steps over one shape, and the reductions over it. Each product,
# gather and random op is a call stage. Views cost nothing.


def build_stages(plan: StepList) -> list[Stage]:
    """Group the steps into stages: as early as their operands allow, steps over the same shape together."""
    level = dict.fromkeys(range(len(plan.leaves)), 0)  # the level of a value's stage; stages run in order of level
    ready = dict(level)  # the first level whose stages can read the value from memory
    for v, step in plan.numbered_steps:
        inputs = [x for x in step.inputs if isinstance(x, int)]
        if step.kind == "view":
            level[v] = ready[v] = max(ready[x] for x in inputs)
            continue
        if domain := _iteration_domain(plan, step):
            fusable = [_can_fuse(plan, x, domain) for x in inputs]
            level[v] = max(
                [level[x] if can_fuse else ready[x] for x, can_fuse in zip(inputs, fusable, strict=True)], default=0
            )
        else:
            level[v] = max([ready[x] for x in inputs], default=0)
        ready[v] = level[v] + 1
    _sink_steps(plan, level)
    groups: dict[tuple[int, str, Any], list[int]] = defaultdict(list)
    for v, step in plan.numbered_steps:
        if step.kind != "view":
            domain = _iteration_domain(plan, step)
            groups[level[v], "fused" if domain else "call", domain or v].append(v)
    order = sorted(groups, key=lambda key: key[0])
    return [
        Stage(kind, domain if kind == "fused" else plan.shape(domain), groups[n, kind, domain])
        for n, kind, domain in order
    ]


def _iteration_domain(plan: StepList, step: Step) -> Shape | None:
    """Return the shape over which a step can run block by block; None if it cannot."""
    if step.kind == "reduction":
        return plan.shape(step.inputs[0])
    return step.shape if step.kind == "elementwise" else None


def _can_fuse(plan: StepList, x: int, domain: Shape) -> bool:
    """Return whether a stage over a domain can use a value that it computes itself, block by block."""
    step = plan.find_step(x)
    return step is not None and step.kind == "elementwise" and step.shape == domain


def _sink_steps(plan: StepList, level: dict[int, int]) -> None:
    """Sink each step into the only stage that reads it, so that its value stays in a register and is not stored.

    A reduction is moved to a later pass over its operand, if there is one.
    """
    readers: dict[int, list[int]] = defaultdict(list)
    for v, step in plan.numbered_steps:
        for x in {x for x in step.inputs if isinstance(x, int)}:
            readers[x].append(v)
    for v, step in reversed(plan.numbered_steps):
        needed = {level[u] for u in readers[v]}
        if not needed or any(plan.step_of(u).kind == "view" for u in readers[v]):
            continue
        if step.kind == "elementwise" and v not in plan.outputs and len(needed) == 1:
            if all(_iteration_domain(plan, plan.step_of(u)) == step.shape for u in readers[v]):
                level[v] = needed.pop()
        elif step.kind == "reduction":
            x, domain = step.inputs[0], _iteration_domain(plan, step)
            later_passes = {level[u] for u in readers[x] if _iteration_domain(plan, plan.step_of(u)) == domain}
            level[v] = max((n for n in later_passes if level[v] <= n < min(needed)), default=level[v])
