"""Methods of tensors and op-trees: conversion to NumPy arrays, scalars, strings and drawings; ``OpTreeNode.build``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self, overload

from neonlite.messages import describe
from neonlite.ops import OPS
from neonlite.optree_inference import backend_of, unknown_op
from neonlite.optree_structure import Info, info_of
from neonlite.shapes import Shape

if TYPE_CHECKING:
    import numpy as np

    from neonlite.backend.base import BackendBase
    from neonlite.backend.tensor import Tensor
    from neonlite.optree import Operand, OpTreeNode
    from neonlite.typing import NumPyArray, OperandLike
    from neonlite.visualize import Steps


class Convertible:
    """The base class of ``Operand``: properties, and conversion to NumPy arrays, Python scalars and strings."""

    __slots__ = ()

    info: Info
    name: str | None
    if TYPE_CHECKING:  # Triple and Tensor define it

        @property
        def shape(self) -> Shape:
            """The shape, of at least two dimensions."""

    @property
    def backend(self) -> BackendBase:
        """The ``Backend``."""
        return self.info.be

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype."""
        return self.info.be.numpy_dtype(self.info.dtype)

    @property
    def ndim(self) -> int:
        """The number of dimensions, two or more."""
        return len(self.info.shape)

    @property
    def T(self) -> Self:
        """The operand with its last two axes exchanged."""
        raise NotImplementedError

    @overload
    def transpose(self, *axes: int | Sequence[int] | None, out: None = None) -> Self: ...
    @overload
    def transpose(self, *axes: int | Sequence[int] | None, out: Tensor) -> Tensor: ...
    @overload
    def transpose(self, out: Tensor, /) -> Tensor: ...
    def transpose(self, *axes: int | Sequence[int] | Tensor | None, out: Tensor | None = None) -> Self | Tensor:
        """Return ``T``, or the operand with its axes permuted, or evaluate it into ``out``.

        Parameters
        ----------
        *axes : int, or one tuple of int
            The permutation; by default the last two axes are exchanged. As in neon, ``t.transpose(out)`` is accepted.
        out : Tensor, optional
            The tensor to write.

        Returns
        -------
        Tensor or OpTreeNode
            A view of a tensor, the transposed tree, or ``out``.
        """
        order: Any = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or None
        if info_of(order) is not None:
            order, out = None, order
        value = self.T if order is None else self._permute(tuple(order))
        return value if out is None else self.backend.assign([out], [value])[0]

    def _permute(self, axes: tuple[int, ...]) -> Self:
        """Return the operand with its axes in another order."""
        raise NotImplementedError

    def get(self) -> NumPyArray:
        """Return a copy of the value as a NumPy array."""
        raise NotImplementedError

    def numpy(self) -> NumPyArray:
        """Return a copy of the value as a NumPy array; PyTorch's name of ``get``."""
        return self.get()

    def item(self, *index: int | tuple[int, ...]) -> float:
        """Return the value of a tensor or op-tree with one element, or of the element with an index.

        Parameters
        ----------
        *index : int, or one tuple of int
            The index of each axis, or one of the values in C order; by default there is exactly one element.

        Returns
        -------
        float or int
            The value as a Python scalar.

        Raises
        ------
        ValueError
            There is not exactly one element.

        Examples
        --------
        >>> import neonlite as nl
        >>> x = nl.gen_backend("cpu").array([[1.0, 2.0]])
        >>> x[0, 1].item(), float(x[0, 0] + 2)
        (2.0, 3.0)
        """
        shape = self.shape
        if math.prod(shape) != 1 and not index:
            raise ValueError(
                f"item() and float(): expected one element, got {describe(self)} with {math.prod(shape)}. Copy all "
                "values to NumPy with .get(), or select one with t[0, 0].item()."
            )
        value: float = self.get().item(*index)  # type: ignore[arg-type]
        return value

    def asnumpyarray(self) -> NumPyArray:
        """Return a copy of the value as a NumPy array; neon's name of ``get``."""
        return self.get()

    def to_numpy(self) -> NumPyArray:
        """Return a copy of the value as a NumPy array; pandas' name of ``get``, which Matplotlib and others call."""
        return self.get()

    def __arrow_c_stream__(self, requested_schema: object = None) -> NoReturn:
        raise not_for_arrow(self, "t.get()")

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __format__(self, spec: str) -> str:
        """Format the only element, as in ``f"{cost:.2f}"``; without a format, the whole operand."""
        return format(self.item(), spec) if spec else str(self)


def not_for_arrow(x: object, value: str) -> TypeError:
    """Return the exception for Arrow's protocol, by which polars and others would read columns."""
    return TypeError(f"{describe(x)}: expected a NumPy array for libraries that read Arrow's columns. Pass {value}.")


# --- methods of OpTreeNode ---


def build_by_name(
    cls: type[OpTreeNode],
    /,
    op: str,
    a: OperandLike,
    b: OperandLike | None = None,
    out: Tensor | None = None,
    **attrs: object,
) -> Operand:
    """Return a node with shape inference and checks.

    Parameters
    ----------
    op : str
        The name of the op. "assign" runs at once.
    a, b, out, **attrs
        As for ``be.build``; ``axis`` has the default of the backend's method.

    Returns
    -------
    OpTreeNode or Tensor
        The node; or ``out``.
    """
    if op not in OPS:
        raise unknown_op("OpTreeNode.build", op)
    be = backend_of(a, b)
    if op == "assign":
        node = cls({"shape": cls.shape(a), "op": op}, a, b)  # type: ignore[arg-type]  # the function of ShapeDescriptor
        be.execute(node)
        return node
    if OPS[op].has_axis:  # its method has a default
        method: Callable[..., Operand] = getattr(be, OPS[op].method)
        return method(a, out=out, **attrs)
    return be.build(op, a, b, out, **attrs)


def format_triple(tree: OpTreeNode) -> str:
    """Return ``repr(tree)``: nested triples, as in neon."""
    from neonlite import visualize  # when first used, as it is large

    return visualize.format_triple(tree)


def pp(tree: OpTreeNode) -> str:
    """Return the tree in infix notation.

    Returns
    -------
    str
        A formula such as ``((1) / ((1) + (exp ((-1) * x))))``.
    """
    from neonlite import visualize

    return visualize.format_infix(tree)


def draw(tree: OpTreeNode, format: str = "text", max_nodes: int | None = 40) -> str:
    """Return a drawing of the tree, with its result on top.

    A node or tensor that is used twice is drawn once. In a tree of more than ``max_nodes`` nodes, those nearest to the
    result are drawn, and each sub-tree below them is folded into one box: its formula if that is short, else its first
    op and its number of ops.

    Parameters
    ----------
    format : {"text", "mermaid", "dot", "svg"}, default "text"
        Indented text, a Mermaid flowchart, a Graphviz digraph, or an SVG picture.
    max_nodes : int, optional
        The largest number of ops, tensors and scalars to draw; None: all. Default: 40.

    Returns
    -------
    str
        The drawing.

    Raises
    ------
    ValueError
        The format is not one of these, or ``max_nodes`` is not positive.
    TypeError
        ``max_nodes`` is not an integer.
    """
    from neonlite import visualize

    return visualize.draw(tree, format, max_nodes)


def draw_svg(tree: OpTreeNode) -> str:
    """Return the drawing that notebooks display."""
    return draw(tree, "svg")


def step(tree: OpTreeNode) -> Steps:
    """Evaluate the tree node by node.

    Returns
    -------
    Steps
        An iterable of (node, value) that prints as a table of all intermediate values.
    """
    from neonlite import visualize

    return visualize.Steps(tree)
