"""Automatic differentiation of op-trees, in reverse and in forward mode; derivatives are op-trees themselves.

The tree is traversed from its result to its leaves. The gradient rule of each op maps the gradient of its result to the
gradients of its operands, and an operand that is used more than once gets their sum. As gradients are op-trees, they
can be printed, evaluated together in one plan, and differentiated again.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import accumulate, pairwise
from operator import add, attrgetter
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeGuard, overload

from neonlite import name_hints, typing
from neonlite.backend.tensor import Tensor, overlap, view_steps
from neonlite.backend.validation import instance
from neonlite.messages import describe, label, listed
from neonlite.ops import OPS, missing_gradient
from neonlite.ops.functions import reduction_shape, widen_half
from neonlite.optree import Operand, OpTreeNode, copy_node, create_node, postorder
from neonlite.tree_structure import untraced
from neonlite.typing import FLOAT_DTYPES, BackendBase, NumPyArray

if TYPE_CHECKING:
    from neonlite.array_api import Array


OPENED = attrgetter("opens_to_differentiate")  # whether the derivative of an op is that of its formula

# what to differentiate with respect to: one or several tensors, or variables of neonlite.array_api
Variables: TypeAlias = "Tensor | Array | Sequence[Tensor] | Sequence[Array]"


@name_hints.add_hints(name_hints.AUTODIFF)
class Autodiff:
    """The gradients of an op-tree: dE/dx for every tensor x in it, given dE/dtree.

    A second Autodiff for the same tree and the arguments of the last one is the same object. Random numbers in the tree
    (``be.rand``) are drawn at each evaluation; the value and its gradients have the same ones if one ``be.assign``
    evaluates them.

    Parameters
    ----------
    op_tree : OpTreeNode
        The op-tree to differentiate.
    be : Backend, optional
        The backend of the tree; the current backend by default.
    next_error : Tensor or OpTreeNode, optional
        The gradient dE/dtree, of the tree's shape; ones by default.
    values : dict, optional
        {node: tensor} of intermediate results that are already known. They are not evaluated again, and are constants
        in second derivatives.
    allow_unused : bool, default False
        Return zeros for a tensor that is not in the tree, instead of raising ValueError.

    References
    ----------
    Griewank and Walther, Evaluating Derivatives, 2nd edition, 2008, section 3.2.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> x0, x1 = be.array([[1.0]], name="x0"), be.array([[2.0]], name="x1")
    >>> nl.Autodiff(x0 * x0 + x0 * x1, be).get_grad_asnumpyarray([x0, x1])
    [array([[4.]], dtype=float32), array([[1.]], dtype=float32)]
    """

    op_tree: OpTreeNode
    be: BackendBase
    next_error: Operand  # the gradient dE/dtree
    _cache: GradientCache

    def _differentiate(self, tensors: Sequence[Tensor]) -> list[Operand]:
        """Return the gradient with respect to each tensor, as a new op-tree."""
        roots, leaves_of_root = {id(x.root) for x in tensors}, self._cache.leaves_of_root
        grads = self.backpropagate({id(leaf) for root in roots for leaf in leaves_of_root.get(root, ())})
        return [self._accumulate_views(x, grads) for x in tensors]

    def backpropagate(
        self, leaves: set[int], root: OpTreeNode | None = None, error: Operand | None = None
    ) -> dict[int, Operand]:
        """Return the gradients with respect to the given leaves and the nodes that depend on them.

        Parameters
        ----------
        leaves : set of int
            The ids of leaves, or of inner nodes, at which the walk ends.
        root, error : OpTreeNode and Operand, optional
            Instead of the tree and ``next_error``: the formula of a composite op below ``where``, and its gradient.

        Returns
        -------
        dict
            {id of a leaf or node: its gradient}, by reverse accumulation.
        """
        top, cache = (self.op_tree, self._cache) if root is None else (root, None)
        nodes = nodes_of(top) if cache is None else [*cache.nodes, (top, operands_of(top))]
        reachable = set(leaves)  # the leaves, and every node that has a derivative with respect to one of them
        for z, operands in nodes:
            op: Any = z.info.op_def
            has_derivative = op.grad is not None and z.info.dtype in FLOAT_DTYPES
            if has_derivative and any(id(x) in reachable for x in operands):
                reachable.add(id(z))
        parts: dict[int, list[Operand]] = {id(top): [self.next_error if error is None else error]}
        # operands of ``where``, and what they are computed from: 0 where it selects others
        masked: set[int] = set() if root is None else {id(root)}
        for z, operands in reversed(nodes):
            op = z.info.op_def
            if id(z) not in parts or id(z) not in reachable or id(z) in leaves:
                continue
            dz = self._add_parts(z, parts[id(z)])
            parts[id(z)] = [dz]
            is_masked = id(z) in masked or z.op == "where"
            input_grads: tuple[Operand | None, ...] = (dz,)
            if not op.opens_to_differentiate:
                opens = is_masked and op.formula is not None and not op.is_estimator
                input_grads = self._differentiate_formula(z, dz) if opens else self._apply_rule(z, operands, dz)
            for x, dx in zip(operands, input_grads, strict=True):
                if dx is not None and id(x) in reachable:
                    if is_masked:
                        masked.add(id(x))
                        dx = self._mask(dx, dz, z, x)
                    parts.setdefault(id(x), []).append(self._fit_to_operand(dx, x))
        return {key: add_gradients(self.be, grads) for key, grads in parts.items()}

    def _add_parts(self, z: OpTreeNode, parts: list[Operand]) -> Operand:
        """Return the gradient of z, the sum of those that its users give."""
        return add_gradients(self.be, parts)

    def _apply_rule(self, z: OpTreeNode, operands: tuple[Any, ...], dz: Operand) -> tuple[Operand | None, ...]:
        """Return the gradients of the operands of z by its gradient rule, which gets known values."""
        op: Any = z.info.op_def
        known = self._cache.known_values
        check_has_gradient(z)
        values = [dz, *[known.get(id(x), x) for x in (z, *operands)]]
        if values[1] is self.op_tree:
            values[1] = copy_node(z)  # as the cache on the tree must not refer to the tree
        if op.kind == "composite":
            values = [widen_half(self.be, x) for x in values]
        return check_input_grads(z, operands, op.grad(self.be, *values, **z.info.attrs))

    def _fit_to_operand(self, dx: Operand, x: Operand) -> Operand:
        """Return a gradient in the shape and dtype of its operand: summed over broadcast axes, or broadcast."""
        if dx.info.dtype != x.info.dtype and x.info.dtype in FLOAT_DTYPES:
            dx = self.be.astype(dx, x.info.dtype)
        if dx.shape == x.shape:
            return dx
        extra = max(0, dx.ndim - x.ndim)  # leading axes that only the gradient has
        shape = (1,) * extra + x.shape[max(0, x.ndim - dx.ndim) :]
        axes = tuple(i for i, n in enumerate(dx.shape) if n != 1 and shape[i] == 1)
        if axes:
            dx = self.be.sum(dx, axis=axes)
        if extra:
            dx = self.be.reshape(dx, dx.shape[extra:])
        return self.be.broadcast_to(dx, x.shape)

    # --- how it is made fast, and the rest ---

    def _differentiate_formula(self, z: OpTreeNode, dz: Operand) -> tuple[Operand | None, ...]:
        """Return the gradients of the operands of a composite op by its formula, each op of which is masked."""
        grads = self.backpropagate({id(x) for x in z.operands if isinstance(x, Operand)}, z.opened, dz)
        return tuple(grads.pop(id(x), None) for x in z.operands)  # the first of equal operands gets the gradient

    def back_prop_grad(self, tensors: Variables, gradients: Tensor | Sequence[Tensor]) -> None:
        """Evaluate the gradients with respect to some tensors into given tensors, all in one plan.

        All gradients are computed before any is written, so a gradient may overwrite ``next_error`` or a tensor of the
        tree.

        Parameters
        ----------
        tensors : Tensor or list of Tensor
            The tensors to differentiate with respect to.
        gradients : Tensor or list of Tensor
            The tensors to write to, of the same shapes.

        Raises
        ------
        ValueError
            The numbers or shapes of the tensors differ, or two of the gradients share memory.
        """
        tensors, gradients = as_list(tensors), as_list(gradients)
        if len(tensors) != len(gradients):
            raise ValueError(f"back_prop_grad: expected {len(tensors)} gradients, one per tensor, got {len(gradients)}")
        for i, x in enumerate(gradients):
            if not isinstance(x, Tensor):
                raise TypeError(f"back_prop_grad: expected tensors to write gradients to, got {describe(x)}")
            if x.shape != tensors[i].shape:
                raise ValueError(
                    f"back_prop_grad: expected a gradient of the shape of {describe(tensors[i])}, got {describe(x)}"
                )
            for y in gradients[:i]:
                if overlap(x, y) != "none":
                    raise ValueError(
                        f"back_prop_grad: expected gradients that do not overlap, got {describe(y)} and {describe(x)}. "
                        "Allocate one tensor per gradient."
                    )
        self.be.assign(gradients, self.gradient_operands(tensors))

    @overload
    def get_grad_op_tree(self, tensors: Tensor) -> OpTreeNode: ...
    @overload
    def get_grad_op_tree(self, tensors: Array) -> Array: ...
    @overload
    def get_grad_op_tree(self, tensors: Sequence[Tensor]) -> list[OpTreeNode]: ...
    @overload
    def get_grad_op_tree(self, tensors: Sequence[Array]) -> list[Array]: ...
    def get_grad_op_tree(self, tensors: Variables) -> OpTreeNode | Array | list[OpTreeNode] | list[Array]:
        """Return the gradients as op-trees.

        Parameters
        ----------
        tensors : Tensor or list of Tensor
            The tensors to differentiate with respect to.

        Returns
        -------
        OpTreeNode or list of OpTreeNode
            One gradient for one tensor, a list for a list; an ``Array`` for an ``array_api.variable``.
        """
        xs = as_list(tensors)
        # a gradient may be a tensor: next_error, or zeros
        trees: list[Any] = [x * 1 if isinstance(x, Tensor) else x for x in self.gradient_operands(xs)]
        trees = [x.with_operand(tree) if is_array(x) else tree for x, tree in zip(xs, trees, strict=True)]
        return trees if isinstance(tensors, list | tuple) else trees[0]

    @overload
    def get_grad_tensor(self, tensors: Tensor | Array) -> Tensor: ...
    @overload
    def get_grad_tensor(self, tensors: Sequence[Tensor] | Sequence[Array]) -> list[Tensor]: ...
    def get_grad_tensor(self, tensors: Variables) -> Tensor | list[Tensor]:
        """Evaluate the gradients into new tensors.

        Parameters
        ----------
        tensors
            As for ``get_grad_op_tree``.

        Returns
        -------
        Tensor or list of Tensor
            One gradient for one tensor, a list for a list.
        """
        result = self.be.evaluate(self.gradient_operands(as_list(tensors)))
        return result if isinstance(tensors, list | tuple) else result[0]

    @overload
    def get_grad_asnumpyarray(self, tensors: Tensor | Array) -> NumPyArray: ...
    @overload
    def get_grad_asnumpyarray(self, tensors: Sequence[Tensor] | Sequence[Array]) -> list[NumPyArray]: ...
    def get_grad_asnumpyarray(self, tensors: Variables) -> NumPyArray | list[NumPyArray]:
        """Evaluate the gradients into NumPy arrays.

        Parameters
        ----------
        tensors
            As for ``get_grad_op_tree``.

        Returns
        -------
        numpy.ndarray or list of numpy.ndarray
            One gradient for one tensor, a list for a list.
        """
        xs = as_list(tensors)
        result = [grad.get().reshape(x.shape) for x, grad in zip(xs, self.get_grad_tensor(xs), strict=True)]
        return result if isinstance(tensors, list | tuple) else result[0]

    # --- the object, its cache, and checks ---

    def __new__(
        cls,
        op_tree: OpTreeNode | Array,
        be: BackendBase | None = None,
        next_error: Operand | Array | None = None,
        values: dict[OpTreeNode, Tensor] | None = None,
        allow_unused: bool = False,
    ) -> Self:
        """Return the existing object for the same arguments, or a new one."""
        tree, error = operand_of(op_tree), operand_of(next_error)
        tree = tree * 1 if is_array(op_tree) and isinstance(tree, Tensor) else tree
        instance("Autodiff: op_tree", tree, OpTreeNode, "an op-tree")
        known = tuple((id(node), id(tensor)) for node, tensor in (values or {}).items())
        key = (id(be), id(error), known, allow_unused)
        cache: GradientCache | None = getattr(tree, "_autodiff", None)
        if cache is None or cache.key != key:
            be = typing.current_backend() if be is None else be
            cache = tree._autodiff = GradientCache(key, tree, be, error, values or {}, allow_unused)
        self = cache.autodiff()
        if self is None:
            self = super().__new__(cls)
            self.op_tree, self.be, self.next_error, self._cache = tree, cache.be, cache.next_error, cache
            cache.autodiff = weakref.ref(self)
        return self

    def __repr__(self) -> str:
        names = listed(sorted({label(x) for x in self._cache.leaves.values()}))
        return f"{type(self).__name__}({describe(self.op_tree)} of {names})"

    def gradient_operands(self, tensors: Sequence[Tensor]) -> list[Operand]:
        """Return the gradients as operands: op-trees, or tensors such as ``next_error``, without a copy.

        Parameters
        ----------
        tensors : sequence of Tensor
            As for ``get_grad_op_tree``.

        Returns
        -------
        list of Tensor or OpTreeNode
            One gradient for each tensor.
        """
        tensors = [self._as_variable(x) if is_array(x) else x for x in tensors]
        cache, key = self._cache, tuple(id(x) for x in tensors)
        with untraced() as trace:  # the tree reads the tensors, and not what has been assigned to them since
            assigned = {} if trace is None else self._assigned_values(tensors, trace)
            for i, x in enumerate(tensors):
                if i not in assigned:
                    self._check_tensor(x)
            if cache.requested_ids == key and not assigned:
                return list(cache.gradients)
            trees = self._differentiate(tensors)
            if assigned:
                grads = self.backpropagate({id(node) for node in assigned.values()})
                for i, node in assigned.items():
                    trees[i] = grads.get(id(node), self.be.zeros(node.shape))
                return trees
        cache.requested_ids, cache.requested, cache.gradients = key, tensors, trees
        return list(trees)

    def _as_variable(self, x: Any) -> Tensor:
        """Return the tensor of a variable of ``neonlite.array_api``."""
        if isinstance(x.operand, Tensor):
            if x.is_live:
                return x.operand
        elif x.is_live:
            raise ValueError(
                f"Autodiff: expected a variable, got an expression {x.shape}: an assignment or an operator such as "
                "x -= y replaced the variable. Create a new one: x = array_api.variable(x - y)."
            )
        raise ValueError(
            f"Autodiff: expected a variable, got an array {x.shape}, which is a constant: its expressions are replaced "
            "by their values when they are evaluated. Create it with array_api.variable(values)."
        )

    def _check_tensor(self, x: object) -> None:
        if not isinstance(x, Tensor):
            way_out = ". Call net(x) first, which allocates net.parameters." if x is None else ""
            raise TypeError(f"Autodiff: expected a tensor to differentiate with respect to, got {describe(x)}{way_out}")
        if x.info.dtype not in FLOAT_DTYPES:
            raise TypeError(
                f"Autodiff: expected a float tensor, got {describe(x)} with dtype {x.info.dtype}. Create it with "
                "dtype='float32'."
            )
        if self._cache.allow_unused or id(x.root) in self._cache.leaves_of_root:
            return
        names = listed(sorted(label(leaf) for leaf in self._cache.leaves.values())) or "no tensor"
        raise ValueError(
            f"Autodiff: expected a tensor of the tree, {names}, got {describe(x)}. allow_unused=True gives zeros."
        )

    def _assigned_values(self, tensors: Sequence[Tensor], trace: Any) -> dict[int, OpTreeNode]:
        """Return, by index, what a traced function has assigned to tensors, if the tree reads it instead of them."""
        nodes = {id(node): node for node in postorder(self.op_tree, opens=OPENED)}
        values = {i: trace.read(x) for i, x in enumerate(tensors) if isinstance(x, Tensor)}
        return {i: nodes[id(value)] for i, value in values.items() if id(value) in nodes}

    def _mask(self, dx: Operand, dz: Operand, z: OpTreeNode, x: Operand) -> Operand:
        """Return the gradient of an operand of z, with 0 where dz is 0 even if the derivative of z is not finite.

        ``where`` has the gradient 0 at elements that it does not select, and 0 times infinity would be NaN.
        """
        kind = z.info.op_def.kind  # type: ignore[union-attr]
        if z.op == "where" or kind not in ("elementwise", "reduction") or is_finite_multiple(dx, dz):
            return dx
        if kind == "reduction":
            dz = self.be.reshape(dz, reduction_shape(x.shape, axis=z.info.attrs["axis"]))
        return self.be.where(dz, dx, 0)

    def _accumulate_views(self, x: Tensor, grads: dict[int, Operand]) -> Operand:
        """Return the gradient of a tensor as the sum over all leaves that share memory with it."""
        if id(x) in grads and id(x.root) in self._cache.roots_of_disjoint_leaves:
            return grads[id(x)]
        views = self._cache.leaves_of_root.get(id(x.root), ())
        leaves = [leaf for leaf in views if id(leaf) in grads and overlap(x, leaf) != "none"]
        if not leaves:
            return self.be.zeros(x.shape, dtype=x.info.dtype)
        steps = {id(leaf): list(view_steps(leaf)) for leaf in leaves}
        are_views = all(leaf is x or any(base is x for base, _, _ in steps[id(leaf)]) for leaf in leaves)
        owner = x if are_views else x.root
        parts: list[Operand] = []  # the gradients of the owner
        for leaf in leaves:
            dx, t = grads[id(leaf)], leaf
            for parent, op, attrs in steps[id(leaf)]:
                if t is owner:
                    break
                node, rule = self.be.build(op, parent, **attrs), OPS[op].grad or missing_gradient
                dx, t = self._fit_to_operand(rule(self.be, dx, node, parent, **attrs)[0], parent), parent
            parts.append(dx)
        total = add_gradients(self.be, parts)
        for _, op, attrs in [] if are_views else reversed(list(view_steps(x))):
            total = self.be.build(op, total, **attrs)
        return total


class GradientCache:
    """The arguments and results of the last Autodiff of a tree, stored on its root node and so freed with it.

    It must not refer to the root itself: without a reference cycle, a tree and its gradients are freed at once.
    """

    def __init__(
        self,
        key: tuple[Any, ...],
        op_tree: OpTreeNode,
        be: BackendBase,
        next_error: Operand | None,
        values: dict[OpTreeNode, Tensor],
        allow_unused: bool,
    ) -> None:
        if be is not op_tree.backend:
            kind = ValueError if isinstance(be, BackendBase) else TypeError
            raise kind(f"Autodiff: expected the backend of the tree, {op_tree.backend!r}, got {describe(be)}")
        for node, tensor in values.items():
            if not isinstance(tensor, Tensor) or tensor.backend is not be or tensor.shape != node.shape:
                raise ValueError(
                    f"Autodiff: expected a tensor of its shape as the value of {describe(node)}, got {describe(tensor)}"
                )
        if next_error is None:
            next_error = be.ones(op_tree.shape, dtype=op_tree.info.dtype, name="error")
        elif not isinstance(next_error, Operand):
            raise TypeError(
                f"Autodiff: expected a tensor or op-tree as next_error, got {describe(next_error)}. Use be.array."
            )
        elif next_error.backend is not op_tree.backend:
            raise ValueError(
                f"Autodiff: expected next_error on the backend of the tree, {op_tree.backend!r}, got "
                f"{describe(next_error)} on {next_error.backend!r}. Copy it with be.array."
            )
        elif next_error.shape != op_tree.shape:
            raise ValueError(f"Autodiff: expected next_error of the shape {op_tree.shape}, got {describe(next_error)}")
        self.key = key  # the ids of the arguments
        self.autodiff: Callable[[], Any] = lambda: None  # a weak reference to the Autodiff, if it exists
        self.be: BackendBase = be
        self.next_error = next_error
        self.allow_unused = allow_unused
        self.known_values = {id(node): tensor for node, tensor in values.items()}
        opened = [z for z in values if isinstance(z, OpTreeNode) and OPENED(z.info.op_def)]
        self.known_values |= {id(z.opened): values[z] for z in opened}
        # references, so that no new node gets an id that is in known_values
        self.known_nodes = [node for node in values if node is not op_tree]
        *self.nodes, root = nodes_of(op_tree)  # without the root
        of_nodes = (x for _, xs in (*self.nodes, root) for x in xs)
        # the leaves of a tree are also those that the formula of an opened op does not use
        operands = of_nodes if op_tree.leaves is None else op_tree.leaves.values()
        self.leaves = {id(x): x for x in operands if isinstance(x, Tensor)}
        self.leaves_of_root: dict[int, list[Tensor]] = {}
        for leaf in self.leaves.values():
            self.leaves_of_root.setdefault(id(leaf.root), []).append(leaf)
        self.roots_of_disjoint_leaves = {root for root, views in self.leaves_of_root.items() if are_disjoint(views)}
        # the last request: the ids of its tensors, the tensors, and their gradients
        self.requested_ids: tuple[int, ...] | None = None
        self.requested: Sequence[Tensor] = ()
        self.gradients: list[Operand] = []


def add_gradients(be: BackendBase, parts: Sequence[Operand]) -> Operand:
    """Return the sum of gradients; slices of one place are added first, and slices that tile an axis concatenated."""
    if len(parts) == 1:
        return parts[0]
    slices: dict[Any, list[OpTreeNode]] = {}  # the gradients of slices of each place
    for x in parts:
        if isinstance(x, OpTreeNode) and x.op == "slice_backward":
            slices.setdefault(x.info.attrs["index"], []).append(x)
    others = [x for x in parts if not isinstance(x, OpTreeNode) or x.op != "slice_backward"]
    total = {box: reduce(add, [x.left for x in same]) for box, same in slices.items()}
    if slices and not others:
        to = parts[0].shape
        cut = {axis for box in slices for axis, part in enumerate(box) if part != (0, to[axis], 1)}
        if len(cut) == 1:
            (axis,) = cut
            order = sorted(slices, key=lambda box: box[axis])
            ends = [0, *accumulate(box[axis][1] for box in order)]
            is_tiled = all(box[axis] == (ends[k], ends[k + 1] - ends[k], 1) for k, box in enumerate(order))
            if is_tiled and ends[-1] == to[axis]:
                return be.concat([total[box] for box in order], axis=axis)
    placed = [
        same[0] if len(same) == 1 else build_node(be, OPS["slice_backward"], [total[box]], same[0].info.attrs)
        for box, same in slices.items()
    ]
    return reduce(add, [*others, *placed])


def are_disjoint(tensors: Sequence[Tensor]) -> bool:
    """Return whether tensors of one memory share no element."""
    spans = sorted(t.span for t in tensors)
    return all(end <= start for (_, end), (start, _) in pairwise(spans))


def nodes_of(tree: OpTreeNode) -> list[tuple[OpTreeNode, tuple[Any, ...]]]:
    """Return the nodes to differentiate, operands first, each with the operands to which a gradient is passed."""
    return [(z, operands_of(z)) for z in postorder(tree, opens=OPENED) if z.info["op"] != "pair"]


def operands_of(z: OpTreeNode) -> tuple[Any, ...]:
    """Return the operands to which a gradient is passed: of an opened composite op, the op-tree of its formula."""
    return (z.opened,) if z.info.op_def.opens_to_differentiate else z.operands  # type: ignore[union-attr]


def is_array(x: object) -> TypeGuard[Any]:
    """Return whether x is an array of ``neonlite.array_api``, which has its op-tree in ``operand``."""
    return type(x).__module__ == "neonlite.array_api.array"


def operand_of(x: object) -> Any:
    """Return the op-tree or tensor of an array, and any other object unchanged."""
    return x.operand if is_array(x) else x


def as_list(x: Any) -> list[Any]:
    """Return a list unchanged, and any other object in a list of one."""
    return list(x) if isinstance(x, list | tuple) else [x]


def check_has_gradient(z: OpTreeNode) -> None:
    """Raise NotImplementedError if the op of z has no gradient rule."""
    if z.info.op_def.grad is missing_gradient:  # type: ignore[union-attr]
        raise NotImplementedError(f"the op {z.op!r} was defined without a derivative. Pass grad= to be.define_op.")


def check_input_grads(z: OpTreeNode, operands: tuple[Any, ...], grads: Any) -> tuple[Operand | None, ...]:
    """Return the result of the gradient rule of z. ValueError unless it has a gradient, or None, for each operand."""
    items: tuple[Any, ...] = grads if isinstance(grads, tuple) else ()
    if len(items) != len(operands) or not all(x is None or isinstance(x, Operand) for x in items):
        raise ValueError(
            f"grad of {z.op!r}: expected a tuple with an op-tree, or None for a zero gradient, for each of the "
            f"{len(operands)} operands, got {describe(grads)}"
        )
    return items


def is_finite_multiple(dx: Operand, dz: Operand) -> bool:
    """Return whether a gradient is computed from ``dz`` and finite numbers alone, so that it is 0 where ``dz`` is 0."""
    return dx is dz or (
        isinstance(dx, OpTreeNode)
        and all(x is dz or (isinstance(x, int | float) and math.isfinite(x)) for x in dx.operands)
    )


def differentiate_outputs(
    be: Any, roots: Sequence[tuple[Operand, Operand]], parameters: Sequence[Tensor]
) -> list[Operand]:
    """Return the gradients of parameters, given the errors of op-trees."""
    tree, error = (
        roots[0] if len(roots) == 1 else (reduce(add, [be.sum(y * be.stop_gradient(e)) for y, e in roots]), None)
    )
    tree = tree if isinstance(tree, OpTreeNode) else tree * 1
    return Autodiff(tree, be, error, allow_unused=True).gradient_operands(parameters)


# --- forward mode: the change of an expression for changes of its tensors -------------------------------------------

# ops that are linear in all operands together, in each of them, and in the first one
LINEAR = {"sum", "transpose", "reshape", "broadcast", "slice", "slice_backward", "concat", "cumulative_sum", "cast"}
LINEAR |= {"tril", "triu", "sum_pool", "sum_unpool"}
MULTILINEAR = {"dot", "matmul", "conv", "conv_backward", "conv_update"}
LINEAR_IN_FIRST = {
    "after",
    "take",
    "scatter_add",
    "take_along_axis",
    "scatter_add_along_axis",
    "max_pool_take",
    "max_unpool",
}


def push_forward(be: Any, trees: Sequence[Any], tangents: dict[int, Any]) -> list[Operand | None]:
    """Return the directional derivative of each tree, given those of tensors; None for one that is always 0.

    Parameters
    ----------
    be : Backend
        The backend.
    trees : sequence of Operand
        The expressions.
    tangents : dict
        {id of a tensor: its derivative along a direction, of its shape}.
    """
    known = dict(tangents)

    def opens(op: Any) -> bool:
        return op.formula is not None and not op.is_estimator

    for z in postorder(*trees, opens=opens):
        op: Any = z.info.op_def
        if opens(op):
            if id(z.opened) in known:
                known[id(z)] = known[id(z.opened)]
        elif op.grad is not None and op.name != "pair" and z.info.dtype in FLOAT_DTYPES:
            changes = [known.get(id(x)) for x in z.operands]
            if any(dx is not None for dx in changes):
                check_has_gradient(z)
                parts = [dz for dz in derive(be, op, z, changes) if dz is not None]
                if parts:
                    known[id(z)] = be.broadcast_to(be.astype(add_gradients(be, parts), z.info.dtype), z.shape)
    return [known.get(id(tree)) for tree in trees]


def derive(be: Any, op: Any, z: OpTreeNode, changes: Sequence[Operand | None]) -> Iterator[Operand | None]:
    """Yield the terms of the derivative of a node along the changes of its operands; None is 0."""
    operands: Any = z.operands
    attrs = z.info.attrs
    if op.is_estimator:
        raise NotImplementedError(
            f"the derivative of {op.name!r} is given by a rule, which has no forward mode. Use reverse mode: vjp "
            "instead of jvp, jacobian(grad(f)) instead of hessian and hvp."
        )
    if op.name in LINEAR:
        if z.info.dtype in FLOAT_DTYPES:
            pairs = zip(changes, operands, strict=True)
            yield build_node(be, op, [be.zeros(x.shape, x.info.dtype) if dx is None else dx for dx, x in pairs], attrs)
    elif op.name in MULTILINEAR:
        for i, dx in enumerate(changes):
            if dx is not None:
                yield build_node(be, op, [*operands[:i], dx, *operands[i + 1 :]], attrs)
    elif op.name in LINEAR_IN_FIRST:
        if changes[0] is not None:
            yield build_node(be, op, [changes[0], *operands[1:]], attrs)
    elif op.kind == "elementwise":  # its derivative is a diagonal matrix, so that of the gradient rule is the same
        for i, dx in enumerate(changes):
            if dx is not None:
                yield op.grad(be, dx, z, *operands, **attrs)[i]
    else:  # the gradient rule is linear in the error e: the derivative is that of sum(gradients * changes) by e
        error = be.ones(z.shape, dtype=z.info.dtype)
        grads = zip(op.grad(be, error, z, *operands, **attrs), changes, strict=True)
        terms = [be.sum(g * dx) for g, dx in grads if g is not None and dx is not None]
        if terms:
            yield Autodiff(add_gradients(be, terms) * 1, be, allow_unused=True).gradient_operands([error])[0]


def build_node(be: Any, op: Any, operands: Sequence[Any], attrs: dict[str, Any]) -> OpTreeNode:
    """Return the node of an op of any number of operands."""
    first, *rest = operands
    while len(rest) > 1:
        rest[-2:] = [create_node(OPS["pair"], rest[-2], rest[-1], (), be)]
    return create_node(op, first, rest[0] if rest else None, tuple(attrs.items()), be)
