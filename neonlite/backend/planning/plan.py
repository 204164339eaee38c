"""Execution plans: fuse the steps of op-trees into stages, and assign every value a target or an arena offset.

A plan depends on structure only (shapes, dtypes, aliasing), so one plan serves all trees of the same structure. It is
made in three passes over the steps:

1. Equal sub-trees are merged into one step, and operands are cast to the compute dtype of their op.
2. Steps are grouped into stages. A fused stage is one pass over memory: elementwise steps over one shape, and the
   reductions over it. Each product, gather and random op is a call stage. Views cost nothing.
3. Each value that outlives its stage is assigned memory: its target, if no operand is overwritten too early, else an
   offset in the arena, chosen by its lifetime.

All values are computed before targets that alias operands are written, so ``x[:] = x.T`` and ``x[1:] = x[:-1]`` work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

from neonlite import html_repr
from neonlite.backend.format import format_bytes
from neonlite.backend.planning import buffers, fusion
from neonlite.backend.planning.steps import Stage, StepList
from neonlite.dtypes import dtype_bits
from neonlite.optree_structure import Info, Leaves
from neonlite.shapes import is_contiguous
from neonlite.typing import OperandLike

PLAN_BYTES, STEP_BYTES = 6000, 1000  # host memory of a plan and of each step, as measured


class Plan(StepList):
    """An execution plan of op-trees and their targets. ``print(plan)`` shows its stages and memory.

    Parameters
    ----------
    trees : sequence of OpTreeNode
        The op-trees, one per target.
    leaves : dict or None
        {id: leaf} in the order of the arguments of ``run``; None for the order of appearance.
    targets : sequence of Info
        The Infos of the targets.
    aliases : iterable of (int, int, str)
        (target, leaf, "exact" or "partial") for each target and leaf that share memory.
    targets_alias : bool, default False
        Whether targets share memory with each other.
    """

    run: Callable[[Sequence[Any], Sequence[Any]], None]  # set by the executor
    required_arena_bytes: Callable[[], int]  # set by the executor, if it uses an arena

    def __init__(
        self,
        trees: Sequence[OperandLike],
        leaves: Leaves | None,
        targets: Sequence[Info],
        aliases: Iterable[tuple[int, int, str]] = (),
        targets_alias: bool = False,
    ) -> None:
        super().__init__(trees, leaves, targets)
        self.aliases, self.targets_alias = list(aliases), targets_alias
        self.required_arena_bytes = lambda: 0
        self.layouts: list[str] = []  # operands in another layout than CHWN, for printing; set by ``be.plan``
        # values that have views
        self.viewed_values = {self.view_base(v) for v, step in self.numbered_steps if step.kind == "view"}
        # steps that may raise an error, which must run before any target is written; integer powers do for negative
        # exponents
        self.raising_values = [
            v
            for v, s in self.numbered_steps
            if s.op.may_raise or (s.op.may_raise_on_integers and "int" in s.compute_dtype)
        ]
        self.set_stages(fusion.build_stages(self))

    @property
    def nbytes(self) -> int:
        """The approximate host memory of the plan itself."""
        return PLAN_BYTES + STEP_BYTES * len(self.steps)

    @cached_property
    def is_elementwise(self) -> bool:
        """Whether all values have one shape, or one element, and all steps are elementwise.

        Such a plan can run on any layout that all its arrays share.
        """
        shape = self.targets[0].shape
        leaves = [x.shape for x in self.leaves if isinstance(x, Info)]
        is_elementwise = all(step.kind == "elementwise" for step in self.steps) and not self.raising_values
        has_one_shape = all(s == shape or math.prod(s) == 1 for s in [*leaves, *(step.shape for step in self.steps)])
        return is_elementwise and has_one_shape and all(target.shape == shape for target in self.targets)

    def is_contiguous(self, v: int) -> bool:
        """Return whether a value is contiguous.

        Parameters
        ----------
        v : int
            A value id.

        Returns
        -------
        bool
            Whether it is C-contiguous.
        """
        if v in self.strides:
            return is_contiguous(self.shape(v), self.strides[v])
        if v < len(self.leaves):
            leaf = self.leaves[v]
            return not isinstance(leaf, Info) or bool(leaf.attrs["contiguous"])
        return (
            v not in self.outputs
            or not self.is_direct[self.outputs.index(v)]
            or self.targets[self.outputs.index(v)].attrs["contiguous"]
        )

    def set_stages(self, stages: list[Stage]) -> None:
        """Set the stages, in the order they run, and assign memory to every value.

        Parameters
        ----------
        stages : list of Stage
            The stages.
        """
        self.stages, self.stage_of = stages, {v: i for i, stage in enumerate(stages) for v in stage.steps}
        self.last_read = buffers.find_last_reads(self)
        self.is_direct = [
            not self.targets_alias and buffers.can_write_directly(self, i) for i in range(len(self.outputs))
        ]
        self.temporaries = buffers.find_temporaries(self)
        self.held_in_targets = buffers.assign_to_targets(self)
        self.offsets, self.arena_bytes = buffers.assign_offsets(self)

    # --- cost ---

    def traffic(self, stage: Stage) -> tuple[int, int]:
        """Return the bytes that a stage reads and writes, as (read, written).

        Parameters
        ----------
        stage : Stage
            A stage of the plan.

        Returns
        -------
        tuple of int
            The bytes read and the bytes written.
        """
        inputs = {self.view_base(x) for v in stage.steps for x in self.step_of(v).inputs if isinstance(x, int)}
        read = sum(self._nbytes(x) for x in inputs if x not in stage.steps)
        written = sum(self._nbytes(v) for v in stage.steps if v in self.temporaries or v in self.outputs)
        return read, written

    def _nbytes(self, v: int) -> int:
        return math.prod(self.shape(v)) * dtype_bits(self.dtype(v)) // 8 if self.dtype(v) else 0

    @property
    def peak_bytes(self) -> int:
        """The bytes of all operands, targets and temporaries together."""
        return sum(map(self._nbytes, range(len(self.leaves)))) + sum(map(self._nbytes, self.outputs)) + self.arena_bytes

    @property
    def flops(self) -> int:
        """The floating-point operations: one per element that an op computes or reduces, 2 m n k for a matrix product.

        Casts, copies, gathers, random numbers and custom ops of kind "library" count as 0.
        """
        return sum(step.op.flops(step.shape, *map(self.shape, step.inputs)) for step in self.steps)

    def _count(self) -> str:
        """Return the numbers of ops, stages and buffers."""
        counts = [(self.num_distinct_ops, "op"), (len(self.stages), "stage"), (len(self.offsets), "temporary buffer")]
        return f"plan: {', '.join(f'{n} {word}' + 's' * (n != 1) for n, word in counts)}"

    def _stage_rows(self) -> list[tuple[str, ...]]:
        """Return the number, kind, domain, ops, and bytes read and written of each stage."""
        rows = []
        for i, stage in enumerate(self.stages, 1):
            ops = " ".join(self.step_of(v).op.name for v in stage.steps)
            bytes_moved = map(format_bytes, self.traffic(stage))
            rows.append((str(i), stage.kind, str(stage.domain), ops, *bytes_moved))
        return rows

    def _notes(self) -> list[str]:
        """Return the lines that follow the stages."""
        copies = self.is_direct.count(False)
        lines = [f"{len(self.stages) + 1}. copy into {copies} target{'s' * (copies > 1)}"] if copies else []
        lines += [f"operand {operand}" for operand in self.layouts]
        return [*lines, f"arena {format_bytes(self.arena_bytes)}; peak {format_bytes(self.peak_bytes)}"]

    def __repr__(self) -> str:
        stages = [
            f"{i}. {kind} {domain}: {ops}; reads {read}, writes {written}"
            for i, kind, domain, ops, read, written in self._stage_rows()
        ]
        return "\n  ".join([self._count(), *stages, *self._notes()])

    def _repr_html_(self) -> str:
        header = ("", "stage", "shape", "ops", "reads", "writes")
        return str(html_repr.stack(self._count(), html_repr.table(self._stage_rows(), header), *self._notes()))
