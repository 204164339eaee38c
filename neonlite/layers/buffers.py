"""Buffers of a minibatch: sizes from layer shapes, and reuse of memory across batch sizes.

The buffer of a shape (C, H, W) is (C H W, N), that of (F, T) is (F, T N), for the batch size N.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

from neonlite.backend import NervanaObject, Tensor
from neonlite.optree import Operand, OpTreeNode
from neonlite.typing import DTypeLike, LayerShape

Tensors = Tensor | list[Tensor] | tuple[Tensor, ...]  # the inputs or outputs of a layer: one tensor, or several
# The outputs: one tensor, or a list or tuple of several (Any, because few networks have several)
LayerOutputs = Tensor | Any
Operands = Operand | Sequence[Operand]  # inputs of a layer as an expression: tensors or op-trees
Trees = OpTreeNode | Any  # its outputs: an op-tree, or a list of several (Any, because few networks have several)
Deltas: TypeAlias = "Tensor | list[Deltas] | None"  # the gradients with respect to them; None: not computed


# --- shapes ---


def plain(shape: Any) -> Any:
    """Convert the integers of a shape, or of nested shapes, to Python ints; return other values unchanged."""
    if isinstance(shape, list | tuple):
        return [*map(plain, shape)] if isinstance(shape, list) else tuple(map(plain, shape))
    try:
        return operator.index(shape)
    except TypeError:
        return shape


def copy_tensors(x: Any) -> Any:
    """Return a new tensor with the values of a tensor, or a list of new tensors for a sequence of tensors."""
    if not isinstance(x, Tensor):
        return [copy_tensors(t) for t in x]
    copy = x.backend.empty_like(x)
    copy[:] = x
    return copy


def shape_of(in_obj: Any) -> Any:
    """Return the shape of a data set or tensor, or a shape itself, with Python ints."""
    shape = plain(in_obj)  # converted first, because NumPy integers have an attribute shape too
    return shape if isinstance(shape, int) else plain(getattr(in_obj, "shape", in_obj))


def shape_of_data(in_obj: Any, batch_size: int) -> Any:
    """Return the layer shape of a data set, a tensor (F, T N) or a shape; lists become tuples."""
    if isinstance(in_obj, Tensor):
        rows, columns = in_obj.shape
        return (rows, columns // batch_size) if batch_size and columns // batch_size > 1 else rows
    shape = shape_of(in_obj)
    return tuple(shape) if isinstance(shape, list) else shape


def num_features(shape: LayerShape) -> int:
    """Return the number of rows of the buffer of a shape: F for F and (F, T), C H W for (C, H, W)."""
    if isinstance(shape, int):
        return shape
    return int(shape[0]) if len(shape) == 2 else math.prod(shape)


def num_channels(shape: LayerShape) -> int:
    """Return the first size of a shape: F for F and (F, T), C for (C, H, W)."""
    return shape if isinstance(shape, int) else shape[0]


def num_steps(shape: LayerShape) -> int:
    """Return the number of columns for each sample in the buffer of a shape: T for (F, T), else 1."""
    return int(shape[1]) if isinstance(shape, tuple) and len(shape) == 2 else 1


def iobuf_shape(shape: LayerShape) -> tuple[int, int]:
    """Return the argument of ``be.iobuf`` for a shape: rows, and columns for each sample."""
    return num_features(shape), num_steps(shape)


def num_elements(shape: LayerShape) -> int:
    """Return the number of elements for each sample in the buffer of a shape."""
    return num_features(shape) * num_steps(shape)


@functools.lru_cache
def tensor_shape(shape: LayerShape, batch_size: int) -> tuple[int, int]:
    """Return the shape of the buffer of a layer shape."""
    return num_features(shape), num_steps(shape) * batch_size


def flat(x: Operand) -> Operand:
    """Return images (C, D, H, W, N) as columns (C D H W, N)."""
    return x if x.ndim == 2 else x.backend.reshape(x, (-1, x.shape[-1]))


# --- reuse of memory ---

MAX_CACHED_VIEWS = 64  # of a layer


class BufferOwner(NervanaObject):
    """Base class of objects with buffers for a minibatch, whose size is ``be.bsz`` at allocation."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self._buffers: dict[Any, Tensor] = {}  # the tensors that buffers are views of
        self._views: dict[Any, tuple[Tensor, Tensor]] = {}  # tensors and views of them by key

    def buffer(self, name: str, shape: LayerShape, dtype: DTypeLike = None, shared: Tensor | None = None) -> Tensor:
        """Return a zero-initialized buffer from ``be.iobuf``, in the memory of ``shared`` if given.

        A second call with the same name returns a view of the same memory if that is large enough, so changing the
        batch size does not reallocate buffers; with the same shape too, it returns the same tensor.

        Parameters
        ----------
        name : str
            Name of the buffer, unique within this object.
        shape : int or tuple
            Shape without the batch dimension.
        dtype : optional
            Default: the default dtype of the backend.
        shared : Tensor, optional
            Tensor whose memory to use.

        Returns
        -------
        Tensor
            Shape ``(num_features(shape), num_steps(shape) N)``.
        """
        be, sizes, full_name = self.be, iobuf_shape(shape), f"{self.name}.{name}"
        if shared is None:
            shared = self._buffers.get((name, dtype))
            if shared is None or shared.backend is not be or shared.size < num_elements(shape) * be.bsz:
                buffer = self._buffers[name, dtype] = be.iobuf(sizes, dtype=dtype, name=full_name)
                return buffer
        key = name, dtype, sizes, be.bsz
        return self.view(key, shared, lambda x: be.iobuf(sizes, shared=x, name=full_name)).fill(0)

    def view(self, key: Hashable, x: Tensor, make_view: Callable[[Tensor], Tensor]) -> Tensor:
        """Return ``make_view(x)``, the same tensor in every call with a key as long as x is the same tensor.

        A view that is the same tensor in every step keeps the assignments compiled that read it.

        Parameters
        ----------
        key : hashable
            Name of the view, unique within this object.
        x : Tensor
            The tensor.
        make_view : callable
            The function that returns the view.
        """
        known, view = self._views.get(key, (None, x))
        if known is not x:
            if len(self._views) >= MAX_CACHED_VIEWS:
                self._views.clear()
            view = make_view(x)
            self._views[key] = x, view
        return view
