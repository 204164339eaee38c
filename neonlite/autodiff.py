"""Reverse-mode automatic differentiation of op-trees; gradients are op-trees themselves.

The tree is traversed from its result to its leaves. The gradient rule of each op maps the gradient of its result to the
gradients of its operands, and an operand that is used more than once gets their sum. As gradients are op-trees, they
can be printed, evaluated together in one plan, and differentiated again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import add

from neonlite.autodiff_requests import GradientRequests, check_input_grads
from neonlite.backend import Tensor
from neonlite.backend.tensor_views import view_steps
from neonlite.dtypes import FLOAT_DTYPES
from neonlite.name_hints import AUTODIFF, add_hints
from neonlite.ops import OPS, missing_gradient
from neonlite.optree import Operand, OpTreeNode, build, postorder
from neonlite.shapes import reduction_shape


def is_finite_multiple(dx: Operand, dz: Operand) -> bool:
    """Return whether a gradient is computed from ``dz`` and finite numbers alone, so that it is 0 where ``dz`` is 0."""
    return dx is dz or (
        isinstance(dx, OpTreeNode)
        and all(x is dz or (isinstance(x, int | float) and math.isfinite(x)) for x in dx.operands)
    )


@add_hints(AUTODIFF)
class Autodiff(GradientRequests):
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

    def _differentiate(self, tensors: Sequence[Tensor]) -> list[Operand]:
        roots = {id(x.root) for x in tensors}
        grads = self.backpropagate({id(x) for root in roots for x in self._cache.leaves_of_root.get(root, ())})
        return [self._accumulate_views(x, grads) for x in tensors]

    def backpropagate(self, leaves: set[int]) -> dict[int, Operand]:
        """Return the gradients with respect to the given leaves and the nodes that depend on them.

        Parameters
        ----------
        leaves : set of int
            The ids of leaves.

        Returns
        -------
        dict
            {id of a leaf or node: its gradient}, by reverse accumulation.
        """
        nodes, known = [z for z in postorder(self.op_tree) if z.op != "pair"], self._cache.known_values
        reachable = set(leaves)  # the leaves, and every node that depends on them
        for z in nodes:
            if any(id(x) in reachable for x in z.operands):
                reachable.add(id(z))
        grads: dict[int, Operand] = {id(self.op_tree): self.next_error}
        masked: set[int] = set()  # operands of ``where``, and what they are computed from
        for z in reversed(nodes):
            dz = grads.get(id(z))
            rule = z.info.op_def.grad
            if dz is None or id(z) not in reachable or rule is None:
                continue
            if rule is missing_gradient:
                raise NotImplementedError(
                    f"the op {z.op!r} was defined without a derivative. Pass grad= to be.define_op."
                )
            values = [known.get(id(x), x) for x in (z, *z.operands)]
            if values[0] is self.op_tree:  # a copy, as the cache on the tree must not refer to the tree
                values[0] = build(OPS[z.op], z.left, z.right, tuple(z.info.attrs.items()), self.be)
            input_grads = rule(self.be, dz, *values, **z.info.attrs)
            check_input_grads(z, input_grads)
            is_masked = id(z) in masked or z.op == "where"
            for x, dx in zip(z.operands, input_grads, strict=True):
                if dx is not None and id(x) in reachable:
                    if is_masked:
                        masked.add(id(x))
                        dx = self._mask(dx, dz, z, x)
                    dx = self._unbroadcast(dx, x)
                    grads[id(x)] = grads[id(x)] + dx if id(x) in grads else dx
        return grads

    def _mask(self, dx: Operand, dz: Operand, z: OpTreeNode, x: Operand) -> Operand:
        """Return the gradient of an operand of z, with 0 where dz is 0 even if the derivative of z is not finite.

        ``where`` has the gradient 0 at elements that it does not select, and 0 times infinity would be NaN.
        """
        kind = OPS[z.op].kind
        if z.op == "where" or kind not in ("elementwise", "reduction") or is_finite_multiple(dx, dz):
            return dx
        if kind == "reduction":
            dz = self.be.reshape(dz, reduction_shape(x.shape, axis=z.info.attrs["axis"]))
        return self.be.where(dz, dx, 0)

    def _unbroadcast(self, dx: Operand, x: Operand) -> Operand:
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

    def _accumulate_views(self, x: Tensor, grads: dict[int, Operand]) -> Operand:
        """Return the gradient of a tensor as the sum over all leaves that are views of the same memory."""
        leaves = [leaf for leaf in self._cache.leaves_of_root.get(id(x.root), ()) if id(leaf) in grads]
        if not leaves:
            return self.be.zeros(x.shape, dtype=x.info.dtype)
        if len(leaves) == 1 and leaves[0] is x:
            return grads[id(x)]
        parts: list[Operand] = []  # the gradients of the tensor that owns the memory
        for leaf in leaves:
            dx = grads[id(leaf)]
            for base, op, attrs in view_steps(leaf):
                node, rule = self.be.build(op, base, **attrs), OPS[op].grad or missing_gradient
                dx = self._unbroadcast(rule(self.be, dx, node, base, **attrs)[0], base)
            parts.append(dx)
        total = reduce(add, parts)
        for _, op, attrs in reversed(list(view_steps(x))):
            total = self.be.build(op, total, **attrs)
        return total
