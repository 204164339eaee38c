"""What is the derivative of an expression?  Another expression.

Reverse accumulation: walk the tree from the result back to the tensors, ask each op's row for the error of its
operands, and add up where an operand is used more than once. Gradients are op-trees, so they can be printed, run
together in one plan, and differentiated again.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from neonlite.backend import Backend, Tensor, current
from neonlite.backend.tensor import overlap
from neonlite.ops import FLOATS, missing
from neonlite.optree import MANY, Operand, OpTreeNode, describe, label, postorder, rebuild


class Autodiff:
    """The gradients of one op-tree: dE/dx for every tensor x in it, where dE/dtree is ``next_error``.

    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> x0, x1 = be.array([[1.0]], name="x0"), be.array([[2.0]], name="x1")
    >>> nl.Autodiff(x0 * x0 + x0 * x1, be).get_grad_asnumpyarray([x0, x1])
    [array([[4.]], dtype=float32), array([[1.]], dtype=float32)]

    ``next_error``: a tensor of the tree's shape; ones unless given. ``values``: {node: tensor} of results that are
    known already, which are then not worked out again, and are constants to a second derivative. ``allow_unused``:
    give zeros, instead of an error, for a tensor that is not in the tree. Made a second time for the same tree and
    error, it is the same object.

    Source: Griewank and Walther, Evaluating Derivatives, 2nd edition, 2008, section 3.2.
    """

    op_tree: OpTreeNode
    _found: Found

    def __new__(
        cls,
        op_tree: OpTreeNode,
        be: Backend | None = None,
        next_error: Tensor | None = None,
        values: dict[OpTreeNode, Tensor] | None = None,
        allow_unused: bool = False,
    ) -> Autodiff:
        """Return the one made before for the same arguments, or a new one."""
        if not isinstance(op_tree, OpTreeNode):
            raise TypeError(f"Autodiff differentiates op-trees; got {describe(op_tree)}")
        known = tuple((id(node), id(tensor)) for node, tensor in (values or {}).items())
        key = (id(be), id(next_error), known, allow_unused)
        memo = op_tree.__dict__.get("autodiff")  # on the node itself: it goes when the tree goes
        if memo is not None and memo[0] == key:
            _, found, handle = memo
            if (made := handle()) is not None:
                return made  # type: ignore[no-any-return]
        else:
            be = current() if be is None else be
            found = Found(op_tree, be, next_error, values or {}, allow_unused)
        self = super().__new__(cls)
        self.op_tree, self._found = op_tree, found
        op_tree.__dict__["autodiff"] = (key, found, weakref.ref(self))
        return self

    @property
    def be(self) -> Backend:
        """The backend."""
        return self._found.be

    @property
    def next_error(self) -> Any:
        """The error of the tree's value."""
        return self._found.next_error

    # --- the four ways to have them ---

    def back_prop_grad(self, tensors: Any, gradients: Any) -> None:
        """Work out the gradients with respect to some tensors into given tensors, all in one plan.

        A gradient may be written over the error, or over a tensor of the tree: all are worked out before any is
        written. ValueError when the counts differ or two of the given tensors share memory.
        """
        tensors, gradients = listed(tensors), listed(gradients)
        if len(tensors) != len(gradients):
            raise ValueError(f"{len(tensors)} tensors need as many gradients; got {len(gradients)}")
        for i, x in enumerate(gradients):
            if not isinstance(x, Tensor):
                raise TypeError(f"gradients are written into tensors; got {describe(x)}")
            if x.shape != tensors[i].shape:
                raise ValueError(f"the gradient of {describe(tensors[i])} has its shape; got {describe(x)}")
            for y in gradients[:i]:
                if overlap(x, y) != "none":
                    raise ValueError(
                        f"the gradients {describe(y)} and {describe(x)} share memory: one would spoil the other"
                    )
        self.be.assign(gradients, self._gradients(tensors))

    def get_grad_op_tree(self, tensors: Any) -> Any:
        """Return the gradients as op-trees: a list for a list, one for one tensor."""
        trees = self._gradients(listed(tensors))
        return trees if isinstance(tensors, list | tuple) else trees[0]

    def get_grad_tensor(self, tensors: Any) -> Any:
        """Return the gradients in new tensors: a list for a list, one for one tensor."""
        made = self.be.evaluate(self._gradients(listed(tensors)))
        return made if isinstance(tensors, list | tuple) else made[0]

    def get_grad_asnumpyarray(self, tensors: Any) -> Any:
        """Return the gradients as NumPy arrays: a list for a list, one for one tensor."""
        made = [x.get() for x in self.get_grad_tensor(listed(tensors))]
        return made if isinstance(tensors, list | tuple) else made[0]

    # --- how ---

    def _gradients(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Return the gradient with respect to each tensor, as an op-tree."""
        for x in tensors:
            self._check(x)
        found, key = self._found, tuple(id(x) for x in tensors)
        if found.asked != key:
            roots = {id(x.root) for x in tensors}
            grads = self._back({id(x) for x in found.leaves.values() if id(x.root) in roots})
            trees = [self._collect(x, grads) for x in tensors]
            found.asked, found.tensors, found.trees = key, tensors, trees
            return list(trees)
        return list(found.trees)

    def _back(self, leaves: set[int]) -> dict[int, Any]:
        """Return {id of a leaf: its gradient}, for those that are asked for and reached."""
        nodes = list(postorder(self.op_tree))
        wanted = set(leaves)  # these, and every node that depends on them
        for z in nodes:
            if any(id(x) in wanted for x in z.operands):
                wanted.add(id(z))
        grads: dict[int, Any] = {id(self.op_tree): self.next_error}
        for z in reversed(nodes):
            dz = grads.pop(id(z), None)
            rule = z.info.row.grad
            if dz is None or id(z) not in wanted or rule is None or not z.shape:
                continue
            if rule is missing:
                raise NotImplementedError(f"the op {z.op!r} was defined without a derivative: give be.define_op grad=")
            result = replace_top(z) if z is self.op_tree else z  # so that the memo on the tree does not lead back to it
            known = [self._found.known.get(id(z), result), *(self._found.known.get(id(x), x) for x in z.operands)]
            errors = rule(self.be, dz, *known, **z.info.attrs)
            right = isinstance(errors, tuple) and not isinstance(errors, Operand) and len(errors) == len(z.operands)
            if not right or not all(e is None or isinstance(e, Operand) for e in errors):
                raise ValueError(
                    f"the derivative of {z.op!r} is a tuple with an op-tree, or None where it is flat, for each of its "
                    f"{len(z.operands)} operands; got {describe(errors)}"
                )
            for x, dx in zip(z.operands, errors, strict=True):
                if dx is not None and id(x) in wanted:
                    dx = self._like(dx, x)
                    grads[id(x)] = grads[id(x)] + dx if id(x) in grads else dx
        return grads

    def _like(self, dx: Any, x: Any) -> Any:
        """Return an error in the shape and dtype of its operand: summed where that was stretched, or stretched."""
        if dx.info.dtype != x.info.dtype and x.info.dtype in FLOATS:
            dx = self.be.astype(dx, x.info.dtype)
        if dx.shape == x.shape:
            return dx
        extra = max(0, dx.ndim - x.ndim)  # axes that only the error has
        shape = (1,) * extra + x.shape[max(0, x.ndim - dx.ndim) :]
        axes = tuple(i for i, n in enumerate(dx.shape) if n != 1 and shape[i] == 1)
        if axes:
            dx = self.be.sum(dx, axis=axes)
        if extra:
            dx = self.be.reshape(dx, dx.shape[extra:])
        return self.be.broadcast_to(dx, x.shape)

    def _collect(self, x: Tensor, grads: dict[int, Any]) -> Any:
        """Return the gradient of a tensor out of those of all leaves that show the same memory."""
        same = [leaf for leaf in self._found.leaves.values() if leaf.root is x.root and id(leaf) in grads]
        if not same:
            return self.be.zeros(x.shape, dtype=x.info.dtype)
        if len(same) == 1 and same[0] is x:
            return grads[id(x)]
        total = None
        for leaf in same:
            dx, view = grads[id(leaf)], leaf
            while view.origin is not None and view.base is not None:  # back to the tensor that owns the memory
                op, attrs = view.origin
                node = self.be.build(op, view.base, **attrs)
                dx = self._like(node.info.row.grad(self.be, dx, node, view.base, **attrs)[0], view.base)
                view = view.base
            total = dx if total is None else total + dx
        steps, view = [], x
        while view.origin is not None and view.base is not None:
            steps.append(view.origin)
            view = view.base
        for op, attrs in reversed(steps):
            total = self.be.build(op, total, **attrs)
        return total

    def _check(self, x: Any) -> None:
        if not isinstance(x, Tensor):
            raise TypeError(f"gradients are taken with respect to tensors; got {describe(x)}")
        if x.info.dtype not in FLOATS:
            raise TypeError(
                f"{describe(x)} holds {x.info.dtype}: only floats have gradients; make it with dtype='float32'"
            )
        if self._found.allow_unused or any(leaf.root is x.root for leaf in self._found.leaves.values()):
            return
        labels = sorted(label(leaf) for leaf in self._found.leaves.values())
        more = [f"{len(labels) - MANY} more"] if len(labels) > MANY else []
        names = ", ".join([*labels[:MANY], *more]) or "no tensor"
        raise ValueError(f"{describe(x)} is not in the tree, which has {names}; allow_unused=True gives zeros")


class Found:
    """What an Autodiff has found out, kept on the tree itself; it must not lead back to the tree's top node.

    So a tree that goes out of use takes its gradients along at once, without waiting for the garbage collector.
    """

    def __init__(
        self, op_tree: OpTreeNode, be: Any, next_error: Any, values: dict[OpTreeNode, Tensor], allow_unused: bool
    ) -> None:
        if be is not op_tree.backend:
            kind = ValueError if isinstance(be, Backend) else TypeError
            raise kind(f"Autodiff needs the backend of the tree, {op_tree.backend!r}; got {describe(be)}")
        for node, tensor in values.items():
            if not isinstance(tensor, Tensor) or tensor.backend is not be or tensor.shape != node.shape:
                raise ValueError(f"the value of {describe(node)} is a tensor of its shape; got {describe(tensor)}")
        if next_error is None:
            next_error = be.ones(op_tree.shape, dtype=op_tree.info.dtype)
        elif not isinstance(next_error, Operand):
            raise TypeError(f"next_error is a tensor or an op-tree, be.array(e) makes one; got {describe(next_error)}")
        elif next_error.backend is not op_tree.backend:
            whose = (
                f"next_error {describe(next_error)} belongs to {next_error.backend!r}, the tree to {op_tree.backend!r}"
            )
            raise ValueError(f"{whose}: copy it across with be.array")
        elif next_error.shape != op_tree.shape:
            raise ValueError(f"next_error has the shape of the tree, {op_tree.shape}; got {describe(next_error)}")
        self.be: Backend = be
        self.next_error = next_error
        self.allow_unused = allow_unused
        self.known = {id(node): tensor for node, tensor in values.items()}
        self.nodes = [node for node in values if node is not op_tree]  # kept, as their ids stand in ``known``
        self.leaves = {id(x): x for node in postorder(op_tree) for x in node.operands if isinstance(x, Tensor)}
        self.asked: tuple[int, ...] | None = None  # the ids of the tensors last asked for,
        self.tensors: Sequence[Tensor] = ()  # these tensors,
        self.trees: list[Any] = []  # and their gradients


def replace_top(node: OpTreeNode) -> OpTreeNode:
    """Return another node of the same op over the same operands."""
    twin: OpTreeNode = rebuild(node.info, node[1], node[2])
    return twin


def listed(x: Any) -> list[Any]:
    """Return a list of one or several."""
    return list(x) if isinstance(x, list | tuple) and not isinstance(x, Operand) else [x]
