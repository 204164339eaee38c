"""Evaluation of op-trees: find or create the plan, bind targets and operands to arrays, and run it.

``out[:] = tree``, ``be.assign``, ``be.evaluate`` and what ``be.compile`` returns all take this path. A plan depends on
the structure of the op-trees, the Infos of the targets and which tensors share memory, so it is cached under these.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

from neonlite.backend.base import BackendBase
from neonlite.backend.cache import Cache
from neonlite.backend.lifecycle import check_open
from neonlite.backend.memory import OutOfMemoryError, translate_error
from neonlite.backend.planning import Plan, layout
from neonlite.backend.tensor import Tensor
from neonlite.backend.tensor_views import overlap
from neonlite.messages import describe, owners
from neonlite.ops import OPS
from neonlite.ops.shapes import can_broadcast
from neonlite.optree import Operand, OpTreeNode, create_node, postorder
from neonlite.tree_structure import flatten_pairs, lower_to_instructions
from neonlite.typing import NativeArray

MAX_CACHED_PLANS = 1024  # per backend
MAX_CACHED_PLAN_BYTES = 32_000_000  # of all cached plans; a larger plan is stored in its tree instead


class PlanCache(Cache):
    """The plans of a backend."""

    __slots__ = ("num_compiled",)

    def __init__(self, owner: object) -> None:
        super().__init__(MAX_CACHED_PLAN_BYTES, owner, plan_cost)
        self.num_compiled = 0  # plans made so far


def plan_cost(key: object, plan: Plan) -> int:
    """Return the bytes of a plan; at least so many that at most MAX_CACHED_PLANS are cached."""
    return max(plan.nbytes, MAX_CACHED_PLAN_BYTES // MAX_CACHED_PLANS)


class RunMethods(BackendBase):
    """The method of ``Backend`` that evaluates an op-tree."""

    # --- compile, bind, run ---

    def run(self, target: Tensor, tree: OpTreeNode) -> None:
        """Evaluate an op-tree into a tensor, as ``target[:] = tree`` does. The plan is cached by structure.

        Parameters
        ----------
        target : Tensor
            The tensor to write.
        tree : OpTreeNode
            The op-tree; its shape must broadcast to the target's.
        """
        leaves = tree.leaves
        if leaves is None:
            return run_tree(self, (target,), tree)
        # find aliases and bind operands in one loop, and look the plan up, as this runs for every ``out[:] = tree``
        operands, allocation = leaves.values(), target.allocation
        values: list[NativeArray] = []
        aliases: tuple[tuple[int, int, str], ...] | None = None
        for x in operands:
            if isinstance(x, Tensor):
                if x.allocation is allocation and (how := overlap(target, x)) != "none":
                    aliases = (*(aliases or ()), (0, len(values), how))
                values.append(x.storage)
            else:
                values.append(x)
        plan = self.plan_cache.get((tree.info, target.info, aliases))
        if plan is None:
            return run_tree(self, (target,), tree)
        if plan.int_range_checks or self.memory_tracker.has_layout_caches:
            return run_plan(self, plan, (target,), operands, (target.storage,), values, tree)
        try:  # what run_plan does in this case, without its call
            plan.run((target.storage,), values)
        except Exception as error:
            raise add_error_context(self, error, (target,), tree) from error


def run_tree(be: BackendBase, targets: Sequence[Tensor], tree: Any) -> None:
    """Evaluate an op-tree, or nested pairs of op-trees, into targets."""
    plan, operands = find_plan(be, targets, tree)
    values = [x.storage if isinstance(x, Tensor) else x for x in operands]
    run_plan(be, plan, targets, operands, [t.storage for t in targets], values, tree)


def find_plan(be: BackendBase, targets: Sequence[Tensor], tree: Any) -> tuple[Plan, Collection[Any]]:
    """Return the plan, from the cache or new, and its operands. A tree with too many leaves to track is not cached."""
    if tree.leaves is None:
        operands = lower_to_instructions(split_pairs(targets, tree))[1].values()
        return make_plan(be, targets, tree, find_aliases(targets, operands)), operands
    operands = tree.leaves.values()
    aliases = find_aliases(targets, operands)
    key: Any
    if len(targets) == 1:
        key = tree.info, targets[0].info, aliases
    else:
        key = tree.info, tuple([t.info for t in targets]), aliases, targets_alias(targets)
    plan: Plan | None = be.plan_cache.find(key)
    if plan is None:
        if len(targets) == 1 and (resolved := resolve_nclass(be, targets[0], tree)) is not tree:
            return find_plan(be, targets, resolved)
        large = getattr(tree, "_large_plan", None)
        plan = large[1] if large and large[0] == key else make_plan(be, targets, tree, aliases, key)
    return plan, operands


def make_plan(be: BackendBase, targets: Sequence[Tensor], tree: Any, aliases: Any, key: Any = None) -> Plan:
    """Check the values against their targets and compile a plan. It is cached under the key, if there is one."""
    check_open(be)
    trees = split_pairs(targets, tree)
    for t, x in zip(targets, trees, strict=True):
        check_assignable(be, t, x)
    leaves = tree.leaves if isinstance(tree, OpTreeNode) else None
    try:
        plan = Plan(trees, leaves, [t.info for t in targets], aliases or (), targets_alias(targets))
        plan.run = be._executor.compile(plan)
    except OverflowError as error:
        raise add_error_context(be, error, targets, tree) from None
    be.plan_cache.num_compiled += 1
    if key is not None:
        if plan.nbytes > MAX_CACHED_PLAN_BYTES:
            tree._large_plan = key, plan
        else:
            be.plan_cache.add(key, plan)
    return plan


def run_plan(
    be: BackendBase,
    plan: Plan,
    targets: Sequence[Tensor],
    operands: Collection[Any],
    arrays: Sequence[NativeArray],
    values: Sequence[NativeArray],
    tree: Any,
) -> None:
    """Run a plan on bound arrays, or in the layout that the tensors have. An error names the ops and the targets."""
    try:
        if plan.int_range_checks:
            plan.check_int_ranges(values)
        if be.memory_tracker.has_layout_caches:
            layout.run_in_layout(plan, targets, operands)
        else:  # all values are in CHWN
            plan.run(arrays, values)
    except Exception as error:
        raise add_error_context(be, error, targets, tree) from error


def find_aliases(targets: Sequence[Tensor], operands: Collection[Any]) -> tuple[tuple[int, int, str], ...] | None:
    """Return (target, operand, "exact" or "partial") for each pair that shares memory; None if there is none."""
    targets_in = _by_allocation(targets)
    aliases: Any = None
    for k, x in enumerate(operands):
        if isinstance(x, Tensor):
            for i, t in targets_in.get(id(x.allocation), ()):
                if (how := overlap(t, x)) != "none":
                    aliases = (*(aliases or ()), (i, k, how))
    return aliases


def targets_alias(targets: Sequence[Tensor]) -> bool:
    """Return whether two of the targets share memory."""
    return any(_overlap_any([t for _, t in group]) for group in _by_allocation(targets).values())


def _by_allocation(tensors: Sequence[Tensor]) -> dict[int, list[tuple[int, Tensor]]]:
    """Return the tensors of each allocation, with their numbers."""
    groups: dict[int, list[tuple[int, Tensor]]] = {}
    for i, t in enumerate(tensors):
        groups.setdefault(id(t.allocation), []).append((i, t))
    return groups


def _overlap_any(tensors: Sequence[Tensor]) -> bool:
    """Return whether the spans of two tensors of one allocation overlap."""
    spans = sorted(t.span for t in tensors if t.span[0] < t.span[1])
    return any(low < end for (_, end), (low, _) in pairwise(spans))


def split_pairs(targets: Sequence[Tensor], tree: Any) -> Sequence[Any]:
    """Return the op-tree of each target."""
    return flatten_pairs(tree) if len(targets) > 1 else (tree,)


def add_error_context(be: BackendBase, error: Exception, tensors: Sequence[Tensor], tree: Any) -> Exception:
    """Return an error of the same type that names the ops that may have raised it, and the targets.

    An error whose constructor may have other parameters gets them as a note, which Python prints below the message.
    """
    error = translate_error(be.runtime, error, "the temporaries of an op")
    if isinstance(error, OutOfMemoryError):
        return OutOfMemoryError(f"{error} (while evaluating {describe(*tensors)})")
    candidates = [node for node in postorder(tree) if (op := OPS.get(node.op)) and op.may_raise][:3]
    calls = [
        f"be.{OPS[node.op].method}({describe(*node.operands)}"
        f"{''.join(f', {k}={v}' for k, v in node.attrs.items() if isinstance(v, int))})"
        for node in candidates
    ]
    what = ", ".join(calls) or describe(tree)
    if type(error) in (ValueError, TypeError, IndexError, OverflowError):
        return type(error)(f"{what}: {error} (while evaluating {describe(*tensors)})")
    error.add_note(f"{what} (while evaluating {describe(*tensors)})")
    return error


# --- checks ---


def resolve_nclass(be: BackendBase, target: Tensor, tree: OpTreeNode) -> OpTreeNode:
    """Set the missing number of classes of a onehot tree from its target; return other trees unchanged."""
    if tree.op != "onehot" or tree.attrs["nclass"]:
        return tree
    if 0 in target.shape:
        raise ValueError(
            f"be.onehot({describe(tree.left)}): expected nclass, the number of classes, got none. Pass nclass, or "
            "assign the onehot itself to a tensor."
        )
    axis = tree.attrs["axis"]
    return create_node(OPS["onehot"], tree[1], None, (("axis", axis), ("nclass", target.shape[axis])), be)


def check_assignable(be: BackendBase, target: Tensor, value: Any) -> None:
    """Raise ValueError if a value belongs to another backend, or does not broadcast to its target."""
    if not isinstance(value, Operand):
        return
    if value.backend is not be or target.backend is not be:
        raise ValueError(f"the value and its target belong to different backends: {owners(value, target)}")
    if not can_broadcast(value.shape, target.shape):
        raise ValueError(
            f"assignment to {describe(target)}: expected a value that broadcasts to {target.shape}, got "
            f"{describe(value)}. Slice, transpose or reshape one of them."
        )
