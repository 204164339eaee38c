"""oneDNN as an accelerator of the runtimes for NumPy arrays: chains of elementwise steps, and mixins for the classes.

Without oneDNN installed, NumPy or MKL computes everything; see ``neonlite.backend.runtimes.accelerated``. The executor
merges consecutive elementwise steps of a fused stage into chains that oneDNN runs in one pass. A step is appended to
the chain that computes its operand if no other step reads this operand. Results are bitwise equal to those without
chains, except for exp, tanh and the sigmoid, and the sign of a zero returned by maximum or minimum.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

from neonlite.backend.planning import Plan
from neonlite.backend.planning.steps import Step
from neonlite.backend.runtimes.numpy import BlockedExecutor, NumPyPrimitives
from neonlite.backend.runtimes.numpy.templates import OP_COST
from neonlite.backend.runtimes.onednn import bindings as dnnl, post_ops, products
from neonlite.backend.runtimes.onednn.bindings import get_library, version_info
from neonlite.ops import OPS
from neonlite.ops.functions import Shape
from neonlite.tree_structure import Constant

# --- the mixins: the executor, and the primitives ---

# elements times cost, below which a chain is slower than NumPy; by thresholds.py with one thread, with AVX-512 and
# without: the break-even is 1 << 17 for the sigmoid, above 1 << 20 for tanh and exp
MIN_CHAIN_COST = 1 << 18
MIN_EXACT_CHAIN_ELEMENTS = 1 << 15  # below it, a chain without an op of ``INEXACT_OPS`` is slower than NumPy
ZERO_COMPARISONS = {"gt": "gt_zero", "lt": "lt_zero"}  # names of comparisons with 0 in chains
MAX_OP_COST = 1 << 7  # an upper bound of the cost of a chain per element


class ChainBuilder(NamedTuple):
    """A chain under construction: its ops, its operands, and the steps it replaces."""

    ops: list[post_ops.ChainOp]
    operands: list[int | Constant]
    steps: list[int]

    @property
    def cost(self) -> int:
        """The cost per element."""
        return sum(OP_COST.get(link.op, 1) for link in self.ops)

    @property
    def is_exact(self) -> bool:
        """Whether results are bitwise equal to NumPy's."""
        return not any(link.op in post_ops.INEXACT_OPS for link in self.ops)

    def operand_index(self, x: int | Constant | None) -> int | None:
        """Return the index of an operand, added if it is new; None for None."""
        if x is None:
            return None
        if x not in self.operands:
            self.operands.append(x)
        return self.operands.index(x)


def fuse_chains(
    plan: Plan, steps: dict[int, Step], domain: Shape, live_out: Collection[int]
) -> tuple[dict[int, Step], dict[int, post_ops.FusedChain]]:
    """Return the steps of a stage with each chain merged into one step, and {last value of a chain: chain}.

    Values in ``live_out`` are read outside of the stage. A single op becomes a chain only if every step of the stage is
    part of a chain.
    """
    size = math.prod(domain)
    if size * MAX_OP_COST < MIN_CHAIN_COST:  # small trees do not load oneDNN
        return steps, {}

    def is_scalar(x: int | Constant) -> bool:
        return not plan.dtype(x)

    def is_full_shape(x: int | Constant) -> bool:
        return isinstance(x, int) and not is_scalar(x) and plan.shape(x) == domain

    def is_scaling(builder: ChainBuilder, link: post_ops.ChainOp) -> bool:
        return link.op == "neg" or (link.op == "mul" and is_scalar(builder.operands[link.operand or 0]))

    readers = count_readers(steps)
    builders: dict[int, ChainBuilder] = {}
    for v, step in (short_steps := fuse_sigmoid(steps, readers, live_out)).items():
        is_candidate = (
            step.kind == "elementwise" and step.shape == domain and step.dtype == step.compute_dtype == "float32"
        )
        if not is_candidate or not all(is_scalar(x) or plan.dtype(x) == "float32" for x in step.inputs):
            continue
        name, inputs = step.op.name, step.inputs
        if name == "mul" and inputs[0] == inputs[1]:
            name, inputs = "sqr", inputs[:1]
        elif name == "div" and inputs[0] == Constant(1):
            name, inputs = "reciprocal", inputs[1:]
        elif name in ZERO_COMPARISONS and inputs[1] == Constant(0):
            name, inputs = ZERO_COMPARISONS[name], inputs[:1]
        if len(inputs) > 2 or len(set(inputs)) < len(inputs):
            continue
        for n, x in enumerate(inputs):
            before = builders.get(x) if isinstance(x, int) and x not in live_out and readers[x] == 1 else None
            if before is None or len(before.ops) == post_ops.MAX_CHAIN_OPS:
                continue
            other = next((y for y in inputs if y != x), None)
            multiple = other == before.operands[0] and all(is_scaling(before, link) for link in before.ops)
            if post_ops.can_extend(
                before.ops, name, is_reversed=bool(n), is_binary=other is not None, propagates_nan=multiple
            ):
                builders[v] = before
                before.ops.append(post_ops.ChainOp(name, before.operand_index(other), bool(n)))
                before.steps.append(v)
                del builders[x]  # type: ignore[arg-type]
                break
        else:
            is_reversed = not is_full_shape(inputs[0]) and name != "div"
            first, *rest = reversed(inputs) if is_reversed else inputs
            if is_full_shape(first) and post_ops.can_start(name, all(map(is_scalar, rest))):
                builders[v] = builder = ChainBuilder([], [first], [v])
                builder.ops.append(
                    post_ops.ChainOp(name, builder.operand_index(rest[0] if rest else None), is_reversed)
                )
    are_all_chained = sum(len(builder.steps) for builder in builders.values()) == len(short_steps)
    total_cost = sum(builder.cost for builder in builders.values())
    # in a stage with sums, a chain also computes the product that NumPy would compute as part of a sum
    needs_all = size >= MIN_EXACT_CHAIN_ELEMENTS or any(step.kind == "reduction" for step in steps.values())
    chains = {v: builder for v, builder in builders.items() if are_all_chained or len(builder.ops) > 1}
    chains = {
        v: builder
        for v, builder in chains.items()
        if size * (total_cost if are_all_chained else builder.cost) >= MIN_CHAIN_COST
        and (needs_all or not builder.is_exact)
    }
    if not chains or dnnl.get_library() is None:
        return short_steps, {}
    inner = {u for v, builder in chains.items() for u in builder.steps if u != v}
    merged_steps = {v: step for v, step in short_steps.items() if v not in inner}
    fused = {}
    for v, builder in chains.items():
        scalars = frozenset(n for n, x in enumerate(builder.operands) if is_scalar(x))
        fused[v] = post_ops.get_chain(tuple(builder.ops), len(builder.operands), scalars)
        merged_steps[v] = merged_steps[v]._replace(inputs=tuple(builder.operands))
    return merged_steps, fused


def count_readers(steps: dict[int, Step]) -> dict[int | Constant, int]:
    """Return the number of steps that read each value."""
    readers: dict[int | Constant, int] = {}
    for step in steps.values():
        for x in dict.fromkeys(step.inputs):
            readers[x] = readers.get(x, 0) + 1
    return readers


def fuse_sigmoid(
    steps: dict[int, Step], readers: dict[int | Constant, int], live_out: Collection[int]
) -> dict[int, Step]:
    """Return the steps with ``1 / (1 + exp(-x))`` merged into one ``sig`` step, which has the same template."""
    result = dict(steps)

    def match_step(v: int | Constant | None, name: str, number: int | None = None) -> int | Constant | None:
        """Return the operand of step v other than ``number`` if v is the op ``name`` and has one reader; else None."""
        step = steps.get(v) if isinstance(v, int) and v not in live_out and readers.get(v) == 1 else None
        if step is None or step.op.name != name or not step.dtype == step.compute_dtype == "float32":
            return None
        others = [x for x in step.inputs if number is None or x != Constant(number)]
        return others[0] if len(others) == 1 else None

    for v, step in steps.items():
        if step.op.name == "div" and step.inputs[0] == Constant(1):
            total = step.inputs[1]
            power = match_step(total, "add", 1)
            negative = match_step(power, "exp")
            x = match_step(negative, "neg")
            x = match_step(negative, "mul", -1) if x is None else x
            if x is not None:
                result[v] = step._replace(op=OPS["sig"], inputs=(x,))
                for inner in (total, power, negative):
                    del result[inner]  # type: ignore[arg-type]
    return result


# --- registration ---

__all__ = ["MIXINS", "version_info"]


class OneDNNExecutor(BlockedExecutor):
    """The executor for NumPy arrays. Without oneDNN installed, NumPy computes all steps."""

    def fuse_chains(
        self, plan: Plan, steps: dict[int, Step], domain: Shape, live_out: Collection[int]
    ) -> tuple[dict[int, Step], dict[int, post_ops.FusedChain]]:
        """Return the steps of a stage with each chain merged into one, and {last value of a chain: chain}."""
        return fuse_chains(plan, steps, domain, live_out)

    def find_function(self, step: Step, size: int) -> post_ops.EltwiseFunction | None:
        """Return oneDNN's function for a step on ``size`` elements, or None."""
        function = post_ops.ELTWISE_FUNCTIONS.get(step.op.name) if step.dtype == "float32" else None
        return function if function and function.min_size <= size and get_library() is not None else None


class OneDNNPrimitives(products.OneDNNRecurrent, products.OneDNNMatmul):
    """Image primitives, recurrent layers and large matrix products of float32 by oneDNN; the rest by the base class."""


MIXINS: dict[type, type] = {BlockedExecutor: OneDNNExecutor, NumPyPrimitives: OneDNNPrimitives}
