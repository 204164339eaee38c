"""NumPy's methods of tensors and op-trees: reductions, ``astype``, ``clip``, ``round``, ``tolist`` and others."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, Self, overload

from neonlite.dtypes import LIMITS
from neonlite.messages import describe
from neonlite.name_hints import OPERAND, add_hints, hide_unknown, synonyms
from neonlite.ops import OP_TABLE
from neonlite.optree_methods import Convertible
from neonlite.typing import AxisLike, DTypeLike, NestedLists, OperandLike

if TYPE_CHECKING:
    from neonlite.backend.base import BackendBase
    from neonlite.backend.tensor import Tensor
    from neonlite.optree import Operand, OpTreeNode


def device_of(be: BackendBase) -> str:
    """Return the name of the device of a backend."""
    return f"cuda:{be.runtime.device_id}" if be.runtime.has_device_memory else "cpu"


class ArrayMethods(Convertible):
    """The base class of ``Operand``: NumPy's methods, with the rules of the backend's methods of the same name.

    Results are op-trees of two dimensions or more. Reductions keep the reduced axes unless ``keepdims=False``.
    """

    __slots__ = ()

    if TYPE_CHECKING:  # generated below

        @overload
        def _reduction(self, axis: AxisLike = ..., out: None = None, keepdims: bool = True) -> OpTreeNode: ...
        @overload
        def _reduction(self, axis: AxisLike = ..., *, out: Tensor, keepdims: bool = True) -> Tensor: ...
        @overload
        def _reduction(self, axis: AxisLike, out: Tensor, keepdims: bool = True) -> Tensor: ...
        def _reduction(self, axis: object = None, out: object = None, keepdims: bool = True) -> object: ...

        all = any = argmax = argmin = max = mean = min = prod = std = sum = var = _reduction

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.info.shape)

    @property
    def mT(self) -> Self:
        """The operand with its last two axes exchanged, like ``T``."""
        return self.T

    @property
    def device(self) -> str:
        """The device of the backend: "cpu", or as in "cuda:0"."""
        return device_of(self.info.be)

    def to_device(self, device: str, *, stream: None = None) -> Self:
        """Return the operand itself, which is on the device of its backend.

        Parameters
        ----------
        device : str
            The device of the operand.
        stream : None
            As in the array-API standard; there are no streams.

        Returns
        -------
        Tensor or OpTreeNode
            The operand.

        Raises
        ------
        ValueError
            It is on another device.
        """
        if stream is not None:
            raise ValueError(f"{describe(self)}.to_device: expected no stream, got {stream!r}. Leave it out.")
        if device != self.device:
            raise ValueError(
                f"{describe(self)}.to_device: expected {self.device!r}, got {device!r}. Copy the values to a "
                "backend of another device: nl.gen_backend(runtime).array(t)."
            )
        return self

    def astype(self, dtype: DTypeLike) -> Operand:
        """Return ``be.astype(t, dtype)``.

        Parameters
        ----------
        dtype : dtype or str
            The dtype.

        Returns
        -------
        Tensor or OpTreeNode
            An op-tree; the operand itself if it has this dtype.
        """
        return self.info.be.astype(self, dtype)

    @overload
    def clip(self, min: OperandLike | None = None, max: OperandLike | None = None, out: None = None) -> OpTreeNode: ...
    @overload
    def clip(self, min: OperandLike | None = None, max: OperandLike | None = None, *, out: Tensor) -> Tensor: ...
    @overload
    def clip(self, min: OperandLike | None, max: OperandLike | None, out: Tensor) -> Tensor: ...
    def clip(
        self, min: OperandLike | None = None, max: OperandLike | None = None, out: Tensor | None = None
    ) -> OpTreeNode | Tensor:
        """Return the values limited to an interval.

        Parameters
        ----------
        min, max : Tensor, OpTreeNode, scalar or array, optional
            The bounds; by default there is none.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree; or ``out``.

        Raises
        ------
        ValueError
            There is no bound.
        """
        be = self.info.be
        if min is None:
            if max is None:
                raise ValueError(f"{describe(self)}.clip: expected min, max or both, got neither")
            return be.minimum(self, max, out)
        if max is None:
            return be.maximum(self, min, out)
        return be.clip(self, min, max, out)

    @overload
    def round(self, decimals: int = 0, out: None = None) -> OpTreeNode: ...
    @overload
    def round(self, decimals: int = 0, *, out: Tensor) -> Tensor: ...
    @overload
    def round(self, decimals: int, out: Tensor) -> Tensor: ...
    def round(self, decimals: int = 0, out: Tensor | None = None) -> OpTreeNode | Tensor:
        """Return the values rounded, ties to even.

        Parameters
        ----------
        decimals : int, default 0
            The number of decimal digits to keep; negative ones round to tens, hundreds and so on.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree; or ``out``.
        """
        be = self.info.be
        decimals = decimals.__index__()
        if "int" in self.info.dtype:
            return be.multiply(*self._rounded_quotient(10**-decimals), out) if decimals < 0 else be.rint(self, out)
        if decimals == 0:
            return be.rint(self, out)
        scale = 10.0 ** abs(decimals)
        if decimals > 0:
            return be.divide(be.rint(be.multiply(self, scale)), scale, out)
        return be.multiply(be.rint(be.divide(self, scale)), scale, out)

    def _rounded_quotient(self, divisor: int) -> tuple[Operand, int]:
        """Return integers divided by a power of ten, rounded, ties to even, and the divisor; 0 if it is too large."""
        be, dtype = self.info.be, self.info.dtype
        if divisor > LIMITS[dtype][1]:
            return be.multiply(self, 0), 0
        quotient = be.floor_divide(self, divisor)
        rest, half = be.subtract(self, be.multiply(quotient, divisor)), divisor // 2
        rounds_up = be.where(be.equal(rest, half), be.remainder(quotient, 2), be.astype(be.greater(rest, half), dtype))
        return be.add(quotient, rounds_up), divisor

    def ravel(self) -> Operand:
        """Return ``be.reshape(t, -1, 1)``: the values in C order, in one column.

        Returns
        -------
        Tensor or OpTreeNode
            An op-tree of shape (n, 1); the operand itself if it has this shape.
        """
        return self.info.be.reshape(self, -1, 1)

    flatten = ravel

    def tolist(self) -> NestedLists:
        """Return the values as nested lists of Python scalars.

        Returns
        -------
        list
            The values.
        """
        values: NestedLists = self.get().tolist()
        return values

    def __index__(self) -> int:
        if "int" not in self.info.dtype:
            raise TypeError(
                f"{describe(self)} as an index: expected an integer dtype, got {self.info.dtype}. Convert one element "
                "with int(t)."
            )
        return int(self.item())

    def __complex__(self) -> NoReturn:
        raise TypeError(f"complex({describe(self)}): expected real numbers; there is no complex dtype. Use float(t).")

    def __round__(self, ndigits: int | None = None) -> OpTreeNode:
        return self.round(ndigits or 0)

    def __pos__(self) -> Self:
        return self


# --- reductions, generated from the op table ---

# {method: (what it returns, the default of axis)}
REDUCTIONS: dict[str, tuple[str, int | None]] = {
    **{op.method: (op.doc, None if op.kind == "reduction" else 1) for op in OP_TABLE if op.has_axis},
    "mean": ("the mean", None),
    "var": ("the population variance", None),
    "std": ("the standard deviation", None),
    "any": ("1 if any element is not 0, else 0", None),
    "all": ("1 if no element is 0, else 0", None),
}
TRUTH = {"any": "max", "all": "min"}  # the reduction of t != 0


def _make_reduction(name: str, doc: str, default: int | None) -> Callable[..., Operand]:
    def method(
        self: Operand,
        axis: AxisLike = default,
        out: Tensor | None = None,
        keepdims: bool = True,
        **unknown: object,
    ) -> Operand:
        x = self != 0 if name in TRUTH else self
        reduce: Callable[..., Operand] = getattr(self.info.be, TRUTH.get(name, name))
        if unknown:  # the backend's method refuses it
            reduce(x, **unknown)
        return reduce(x, axis=axis, out=out, keepdims=keepdims)

    method.__name__, method.__qualname__ = name, f"ArrayMethods.{name}"
    method.__doc__ = f"""Return {doc}, over one axis, several or all.

        Parameters
        ----------
        axis : int, tuple of int or None, default {default}
            The axes to reduce; None for all axes.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.
        keepdims : bool, default True
            Keep the reduced axes with size 1; a result has two dimensions or more.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree; or ``out``.
        """
    return hide_unknown(method)


for _name, (_doc, _axis) in REDUCTIONS.items():
    setattr(ArrayMethods, _name, _make_reduction(_name, _doc, _axis))

# --- attributes of NumPy and PyTorch that are named otherwise ---

add_hints(OPERAND)(ArrayMethods)
for _op in OP_TABLE:
    if _op.kind == "elementwise":
        _call = f"be.{_op.method}({', '.join(['{t}', 'x', 'y'][: _op.arity])})"
        add_hints({_call: " ".join([_op.method, *synonyms(_op.method)])})(ArrayMethods)
