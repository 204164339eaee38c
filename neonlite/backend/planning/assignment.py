"""Assignments: ``out[:] = value``, several op-trees in one plan, assignments planned once, and how a plan is run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from threading import get_ident
from typing import Any

import numpy as np

from neonlite.backend.concurrency import Cache
from neonlite.backend.creation import to_host_array
from neonlite.backend.measure import OutOfMemoryError
from neonlite.backend.planning import Plan
from neonlite.backend.tensor import Tensor, overlap
from neonlite.backend.validation import check_open, sequence
from neonlite.messages import describe, owners
from neonlite.ops import OPS
from neonlite.ops.functions import can_broadcast
from neonlite.optree import Operand, OpTreeNode, create_node, postorder
from neonlite.tree_structure import (
    STATIC_INTS,
    flatten_pairs,
    is_composite,
    lower_to_instructions,
    refuse_in_trace,
    traces,
)
from neonlite.typing import ArrayLike, BackendBase, NativeArray, Untracked

USE_ASSIGN = "Assign in the function: out[:] = tree, or be.assign([out], [tree])"
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
        if traces and (trace := traces.get(get_ident())) is not None:
            return trace.write([target], [tree])
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
        if plan.int_range_checks:
            return run_plan(self, plan, (target,), (target.storage,), values, tree)
        try:  # what run_plan does in this case, without its call
            plan.run((target.storage,), values)
        except Exception as error:
            raise add_error_context(self, error, (target,), tree) from error


def run_tree(be: BackendBase, targets: Sequence[Tensor], tree: Any) -> None:
    """Evaluate an op-tree, or nested pairs of op-trees, into targets."""
    plan, operands = find_plan(be, targets, tree)
    values = [x.storage if isinstance(x, Tensor) else x for x in operands]
    run_plan(be, plan, targets, [t.storage for t in targets], values, tree)


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


def plan_arguments(
    be: BackendBase, name: str, trees: Sequence[Operand], out: Tensor | Sequence[Tensor] | None
) -> tuple[Sequence[Tensor], Any, Any]:
    """Return the targets, the tree and the aliases of a plan that is not run."""
    if not trees or (out is None and not all(isinstance(x, Operand) for x in trees)):
        raise TypeError(f"{name}: expected op-trees, as in {name}(x + 1, y * 2), got {describe(*trees) or 'none'}")
    if out is None:
        targets: Sequence[Tensor] = [Tensor(None, be.tensor_info(x.shape, x.info.dtype)) for x in trees]
    else:
        targets = [out] if isinstance(out, Tensor) else out
        check_assignment(name, targets, trees)
    tree = pair_values(be, targets, trees)
    leaves = lower_to_instructions(split_pairs(targets, tree))[1] if tree.leaves is None else tree.leaves
    return targets, tree, find_aliases(targets, leaves.values())


def build_plan(be: BackendBase, targets: Sequence[Tensor], tree: Any, aliases: Any) -> Plan:
    """Check the values against their targets and return a plan that is not compiled."""
    check_open(be)
    trees = split_pairs(targets, tree)
    for t, x in zip(targets, trees, strict=True):
        check_assignable(be, t, x)
    leaves = tree.leaves if isinstance(tree, OpTreeNode) else None
    return Plan(trees, leaves, [t.info for t in targets], aliases or (), targets_alias(targets))


def make_plan(be: BackendBase, targets: Sequence[Tensor], tree: Any, aliases: Any, key: Any = None) -> Plan:
    """Check the values against their targets and compile a plan. It is cached under the key, if there is one."""
    try:
        plan = build_plan(be, targets, tree, aliases)
        plan.run = be._executor.compile(plan)
        if any(t.shape != info.shape for t, info in zip(targets, plan.targets, strict=True)):
            plan.run = reshape_targets(plan, be.runtime.reshape)
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
    arrays: Sequence[NativeArray],
    values: Sequence[NativeArray],
    tree: Any,
) -> None:
    """Run a plan on bound arrays. An error names the ops and the targets."""
    try:
        if plan.int_range_checks:
            plan.check_int_ranges(values)
        plan.run(arrays, values)
    except Exception as error:
        raise add_error_context(be, error, targets, tree) from error


def reshape_targets(plan: Plan, reshape: Callable[[NativeArray, tuple[int, ...]], NativeArray]) -> Callable[..., None]:
    """Return the function that runs a plan on the targets in the shapes that it writes."""
    run, shapes = plan.run, [info.shape for info in plan.targets]

    def run_reshaped(targets: Sequence[NativeArray], leaves: Sequence[NativeArray]) -> None:
        run([reshape(x, shape) for x, shape in zip(targets, shapes, strict=True)], leaves)

    return run_reshaped


def find_aliases(targets: Sequence[Tensor], operands: Collection[Any]) -> tuple[tuple[int, int, str], ...] | None:
    """Return (target, operand, "exact" or "partial") for each pair that shares memory; None if there is none."""
    targets_in = _by_allocation(targets)
    found = [
        (i, k, how)
        for k, x in enumerate(operands)
        if isinstance(x, Tensor)
        for i, t in targets_in.get(id(x.allocation), ())
        if (how := overlap(t, x)) != "none"
    ]
    return tuple(found) or None


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
    error = be.runtime.allocation_error(error, "the temporaries of an op")
    if isinstance(error, OutOfMemoryError):
        return OutOfMemoryError(f"{error} (while evaluating {describe(*tensors)})")
    nodes = postorder(tree, opens=is_composite)
    candidates = [node for node in nodes if (op := node.info.op_def).may_raise and op is OPS.get(op.name)][:3]
    calls = [
        f"be.{node.info.op_def.method}({describe(*node.operands)}"
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


# --- assignments, also those that are planned once and repeated ---

Assignment = tuple[Sequence[Tensor], Sequence[Any]]  # targets and their values


class AssignmentMethods(BackendBase):
    """The methods of ``Backend`` that evaluate op-trees."""

    def assign(self, tensors: Sequence[Tensor], values: Sequence[ArrayLike]) -> list[Tensor]:
        """Evaluate several op-trees in one plan, which computes common subtrees once, then write all targets.

        Parameters
        ----------
        tensors : sequence of Tensor
            The targets.
        values : sequence of OpTreeNode, Tensor, scalar or array_like
            One value for each target.

        Returns
        -------
        list of Tensor
            The targets.

        Raises
        ------
        TypeError
            A target is not a tensor.
        ValueError
            The numbers of targets and values differ, or a value does not broadcast to its target.

        Examples
        --------
        >>> import neonlite as nl
        >>> be = nl.gen_backend("cpu")
        >>> x, y = be.array([[1]]), be.array([[2]])
        >>> be.assign([x, y], [y, x])
        [Tensor([[2.]], (1, 1), float32, cpu), Tensor([[1.]], (1, 1), float32, cpu)]
        """
        check_assignment("be.assign", tensors, values)
        if traces and (trace := traces.get(get_ident())) is not None:
            trace.write(tensors, values)
            return list(tensors)
        if len(tensors) == 1:
            tensors[0][:] = values[0]
            return list(tensors)
        if tensors:
            run_tree(self, tensors, pair_values(self, tensors, values))
        return list(tensors)

    def compile(self, tensors: Sequence[Tensor], values: Sequence[ArrayLike]) -> CompiledAssignment:
        """Plan an assignment once, to run it many times on the same tensors, for example once per time step.

        Parameters
        ----------
        tensors : sequence of Tensor
            The targets.
        values : sequence of OpTreeNode, Tensor, scalar or array_like
            One value for each target.

        Returns
        -------
        callable
            A function without arguments that does what ``assign`` does, with the current values of the tensors.

        Examples
        --------
        >>> import neonlite as nl
        >>> be = nl.gen_backend("cpu")
        >>> a, b = be.ones((1, 2)), be.ones((1, 2))
        >>> fibonacci = be.compile([a, b], [b, a + b])
        >>> for _ in range(5):
        ...     fibonacci()
        >>> a.get()
        array([[8., 8.]], dtype=float32)
        """
        check_assignment("be.compile", tensors, values)
        refuse_in_trace("be.compile", USE_ASSIGN)
        return CompiledAssignment(self, tensors, values)

    def evaluate(self, trees: Sequence[Operand]) -> list[Tensor]:
        """Evaluate several op-trees in one plan into new tensors.

        Parameters
        ----------
        trees : sequence of OpTreeNode or Tensor
            The op-trees.

        Returns
        -------
        list of Tensor
            A new tensor for each op-tree.
        """
        check_open(self)
        try:
            infos = [x.info for x in trees]
        except (AttributeError, TypeError):
            raise TypeError(f"be.evaluate: expected a list of op-trees or tensors, got {describe(trees)}") from None
        targets = [self.empty(info.shape, info.dtype) for info in infos]
        return self.assign(targets, trees)

    def execute(self, node: OpTreeNode) -> Tensor:
        """Run an assignment that was built as an op-tree.

        Parameters
        ----------
        node : OpTreeNode
            An op-tree whose root is the op 'assign'.

        Returns
        -------
        Tensor
            The target.
        """
        if not isinstance(node, OpTreeNode) or node.op != "assign":
            raise ValueError(
                f"be.execute: expected an op-tree with the root 'assign', got {describe(node)}. Use out[:] = tree."
            )
        return self.assign([node.left], [node.right])[0]

    def plan(self, *trees: Operand, out: Tensor | Sequence[Tensor] | None = None) -> Plan:
        """Return the execution plan of op-trees without running it; print it to see stages, bytes and temporaries.

        Parameters
        ----------
        *trees : OpTreeNode
            The op-trees.
        out : Tensor or sequence of Tensor, optional
            The targets, which may share memory with operands; default new tensors.

        Returns
        -------
        Plan
            The plan.
        """
        return make_plan(self, *plan_arguments(self, "be.plan", trees, out))

    def write(self, target: Tensor, value: ArrayLike) -> None:
        """Copy a tensor, a scalar or an array into a tensor, as ``target[:] = value`` does.

        Parameters
        ----------
        target : Tensor
            The tensor to write.
        value : Tensor, scalar or array_like
            The values; cast to the target's dtype and broadcast to its shape.
        """
        check_open(self)
        value = getattr(value, "operand", value)  # of an array of neonlite.array_api
        if traces and (trace := traces.get(get_ident())) is not None:
            return trace.write([target], [value])
        if isinstance(value, OpTreeNode):
            return self.run(target, value)
        if isinstance(value, Tensor):
            check_assignable(self, target, value)
            if overlap(target, value) == "exact":  # ``t[1:] += y`` writes the view, then Python assigns it to ``t[1:]``
                return
            return self.run(target, self.stop_gradient(value))
        is_small = type(value) is int and value in STATIC_INTS and (value >= 0 or target.info.dtype[0] != "u")
        if is_small and self.runtime.has_device_memory:  # no copy from the host
            return self.run(target, create_node(OPS["cast"], value, None, (("to", target.info.dtype),), self))
        values = _reshape_to_target(self, target, value)
        if values.shape != target.shape and not can_broadcast(values.shape, target.shape):
            raise ValueError(
                f"assignment to {describe(target)}: expected a value that broadcasts to {target.shape}, got an array "
                f"{np.shape(value)}"
            )
        write_array(self, target, values)


def check_assignment(where: str, tensors: Sequence[Tensor], values: Sequence[Any]) -> None:
    """Raise an error unless there are a list of tensors, and a list of as many values. An op-tree is not a list."""
    if type(tensors) is not list or type(values) is not list:
        way_out = ". To write one op-tree, use out[:] = tree."
        sequence(f"{where}: the targets", tensors, "a list of tensors", way_out)
        sequence(f"{where}: the values", values, "a list of values", way_out)
    for t in tensors:
        if not isinstance(t, Tensor):
            raise TypeError(f"{where}: expected tensors as targets, got {describe(t)}")
    if len(tensors) != len(values):
        raise ValueError(f"{where}: expected a value for each of {len(tensors)} tensors, got {len(values)} values")


def write_array(be: BackendBase, target: Tensor, values: np.ndarray[Any, Any]) -> None:
    """Copy an array of numbers that broadcasts to a tensor's shape into the tensor, without further checks."""
    check_open(be)
    try:
        if not be.primitives.try_copy_transposed(values, target._array):
            be.runtime.write(target._array, values, target.info.dtype)
    except ValueError as error:
        raise ValueError(f"{error} (while writing to {describe(target)})") from None


def pair_values(be: BackendBase, tensors: Sequence[Tensor], values: Sequence[Any]) -> Any:
    """Return several values as one op-tree of nested pairs."""
    tree = None
    for t, value in zip(tensors[::-1], values[::-1], strict=True):
        value = _as_tree(be, t, value)
        tree = value if tree is None else create_node(OPS["pair"], value, tree)
    return tree


def _as_tree(be: BackendBase, target: Tensor, value: Any) -> Any:
    """Return a value of an assignment as an op-tree, whose shape is checked when it is planned."""
    if isinstance(value, OpTreeNode):
        return resolve_nclass(be, target, value)
    operand = as_operand(be, target, value)
    return be.stop_gradient(operand) if isinstance(operand, Tensor) else operand


def as_operand(be: BackendBase, target: Tensor, value: Any) -> Any:
    """Return a value of an assignment as an op-tree or a tensor."""
    if isinstance(value, OpTreeNode):
        value = resolve_nclass(be, target, value)
    elif not isinstance(value, Tensor):
        values = _reshape_to_target(be, target, value)
        if isinstance(value, int | float):
            return be.build("cast", value, to=target.info.dtype)
        value = be.array(values, dtype=target.info.dtype)
    check_assignable(be, target, value)
    return value


def _reshape_to_target(be: BackendBase, target: Tensor, value: Any) -> np.ndarray[Any, Any]:
    """Return a value as a NumPy array; with one dimension, in the target's shape if the sizes agree, else as a row."""
    values: np.ndarray[Any, Any] = to_host_array(be, value, target.info.dtype, target)
    if values.ndim < 2:
        return values.reshape(target.shape if values.size == target.size else (1, -1))
    return values


# --- repeated assignments ---


class CompiledAssignment(Untracked):
    """A planned assignment, created by ``be.compile``. Call it to run it.

    A deep copy is planned again, for the copies of its tensors.
    """

    def __init__(self, be: Any, tensors: Sequence[Tensor], values: Sequence[Any]) -> None:
        self.be, self.tensors, self.values = be, list(tensors), list(values)
        self.tree = pair_values(be, tensors, values)
        self.plan, operands = find_plan(be, tensors, self.tree)
        self.arrays = [t.storage for t in self.tensors]
        self.operands = list(operands)
        self.operand_values = [
            x if not isinstance(x, Tensor) else x.storage if x.has_values else None for x in self.operands
        ]

    def __call__(self) -> None:
        """Evaluate the values and write them to the targets."""
        if traces:
            refuse_in_trace("a compiled assignment", USE_ASSIGN)
        self.run(self.tensors, self.arrays, self.operand_values)

    def run(self, tensors: Sequence[Tensor], arrays: Any, values: Any) -> None:
        """Run the plan on targets and operands, which may be others of the same structure.

        Parameters
        ----------
        tensors : sequence
            The targets.
        arrays, values : sequence
            The arrays of the targets and of the operands; scalars as they are.
        """
        be, plan = self.be, self.plan
        if be.closed_by:
            check_open(be)
        if plan.int_range_checks:
            return run_plan(be, plan, tensors, arrays, values, self.tree)
        try:  # what run_plan does in this case, without its call
            plan.run(arrays, values)
        except Exception as error:
            raise add_error_context(be, error, tensors, self.tree) from error

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledAssignment:
        be, tensors, values = (copy.deepcopy(x, memo) for x in (self.be, self.tensors, self.values))
        return CompiledAssignment(be, tensors, values)
