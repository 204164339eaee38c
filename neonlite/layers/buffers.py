"""Buffers of a minibatch: sizes from layer shapes, reuse of memory across batch sizes, and the buffers of the deltas.

The buffer of a shape (C, H, W) is (C H W, N), that of (F, T) is (F, T N), for the batch size N.

An *error* is the gradient of the cost with respect to the outputs of a layer, its *deltas* those to its inputs.

At allocation, the layers record the steps of ``bprop`` without computing them: which errors a step reads, and the error
that it computes. The planner counts the readers of each error. A step overwrites an error that no later step reads, if
it can; otherwise its result gets a free buffer. Each buffer is as large as the largest error assigned to it.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
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


# --- planning of the buffers of the deltas ---


class PlannedBuffer:
    """A buffer to be allocated: its size in elements, the callbacks that receive it, and its remaining readers."""

    def __init__(self, size: int, num_readers: float = 1) -> None:
        self.size, self.num_readers = size, num_readers
        self.callbacks: list[Callable[[Any], Any]] = []


@dataclass
class PlannedGradient:
    """An error to be computed in the backward pass: the number of steps that read it, and its buffer."""

    num_readers: float = 0
    buffer: PlannedBuffer | Any = None  # None until the buffers are planned


@dataclass
class BackwardStep:
    """A step of the backward pass.

    Parameters
    ----------
    owner : object
        What computes the step, such as a layer.
    errors : list of PlannedGradient
        What it reads.
    result : PlannedGradient or None
        What it computes.
    size : int
        Number of elements of the result for each sample.
    set_buffer : callable, optional
        Receives the memory of the result, unless the result overwrites an error.
    set_target : callable, optional
        Receives the index of the error that the result overwrites, or None.
    can_overwrite : bool
        Whether the result may overwrite an error.
    workspace_size : int
        Number of elements for each sample of memory that only this step uses; ``owner.set_workspace`` receives it.
    """

    owner: Any
    errors: list[PlannedGradient]
    result: PlannedGradient | None
    size: int
    set_buffer: Callable[[Any], Any] | None = None
    set_target: Callable[[int | None], Any] | None = None
    can_overwrite: bool = False
    workspace_size: int = 0


class DeltaPlanner:
    """The steps of a backward pass, and the buffers of its errors."""

    def __init__(self) -> None:
        self.steps: list[BackwardStep] = []
        self.buffers: list[PlannedBuffer] = []
        self.branch_errors: dict[Any, list[PlannedGradient | None]] = {}  # BranchNode -> the deltas of its branches

    # --- recording ---

    def external(self) -> PlannedGradient:
        """Return an error from outside the network, which must not be overwritten."""
        return PlannedGradient(math.inf, PlannedBuffer(0, math.inf))

    def keep(self, error: PlannedGradient | None) -> None:
        """Keep the values of an error after the backward pass."""
        if error is not None:
            error.num_readers += 1

    def add_step(
        self,
        owner: Any,
        errors: list[PlannedGradient],
        shape: LayerShape | None = None,
        *callbacks: Any,
        **options: Any,
    ) -> PlannedGradient | None:
        """Record a step that computes an error of a layer shape, or none; return that error."""
        for error in errors:
            error.num_readers += 1
        result, size = (None, 0) if shape is None else (PlannedGradient(), num_elements(shape))
        self.steps.append(BackwardStep(owner, errors, result, size, *callbacks, **options))
        return result

    def add_sum(
        self, gradient_sum: GradientSum, errors: Sequence[PlannedGradient | None], shape: LayerShape
    ) -> PlannedGradient | None:
        """Record the sum of errors of a layer shape, of which None are left out; return the sum, or None."""
        indices = [i for i, error in enumerate(errors) if error is not None]
        present = [error for error in errors if error is not None]
        gradient_sum.target_index = indices[0] if indices else None
        if len(present) < 2:
            return present[0] if present else None

        def set_target(index: int | None) -> None:
            gradient_sum.target_index = None if index is None else indices[index]

        return self.add_step(gradient_sum, present, shape, gradient_sum.set_buffer, set_target, can_overwrite=True)

    # --- planning ---

    def plan(self) -> None:
        """Assign a buffer to each error and workspace, step by step."""
        for step in self.steps:
            workspace = self.acquire(step.workspace_size, step.owner.set_workspace) if step.workspace_size else None
            self.plan_result(step)
            if workspace is not None:
                workspace.num_readers = 0

    def plan_result(self, step: BackwardStep) -> None:
        """Assign a buffer to the result of a step, and count the step as a reader of its errors.

        The result overwrites the first error without other readers, if there is one and the step can do so.
        """
        buffers = [error.buffer for error in step.errors]
        index = None
        if step.result is not None and step.can_overwrite:
            index = next((i for i, buffer in enumerate(buffers) if buffer.num_readers == 1), None)
        if step.set_target is not None:
            step.set_target(index)
        if step.result is not None:
            step.result.buffer = self.acquire(step.size, step.set_buffer) if index is None else buffers[index]
        for buffer in buffers:
            buffer.num_readers -= 1
        if step.result is not None:
            step.result.buffer.num_readers = step.result.num_readers

    def acquire(self, size: int, callback: Callable[[Any], Any] | None) -> PlannedBuffer:
        """Return a free buffer of ``size`` elements; ``callback`` is called with its memory once it is allocated."""
        free = sorted((buffer for buffer in self.buffers if not buffer.num_readers), key=lambda buffer: buffer.size)
        buffer = next((buffer for buffer in free if buffer.size >= size), free[-1] if free else None)
        if buffer is None:
            buffer = PlannedBuffer(size)
            self.buffers.append(buffer)
        buffer.size, buffer.num_readers = max(buffer.size, size), 1
        if callback is not None:
            buffer.callbacks.append(callback)
        return buffer

    def allocate(self, make_buffer: Callable[[str, int], Any]) -> None:
        """Plan the buffers, allocate them with ``make_buffer(name, size)``, and pass each to its callbacks."""
        self.plan()
        for index, planned in enumerate(self.buffers):
            buffer = make_buffer(f"deltas {index}", planned.size)
            buffer.root.persist_values = False  # every user overwrites it, so old values need not be saved
            for callback in planned.callbacks:
                callback(buffer)


class GradientSum:
    """The sum of errors from several branches. It overwrites one that has no other readers, if there is one."""

    can_replay = True

    def __init__(self) -> None:
        self.target_index: int | None = None  # index of the error that the sum overwrites, if any
        self.buffer: Tensor | Any = None  # the buffer of the sum if it overwrites none

    def set_buffer(self, buffer: Tensor) -> None:
        """Set the buffer of the sum."""
        self.buffer = buffer

    def compute(self, errors: Sequence[Any]) -> Tensor | Any:
        """Return the sum; None when there are no errors."""
        present = [error for error in errors if error is not None]
        if len(present) < 2:
            return present[0] if present else None
        target = self.buffer.share(present[0].shape) if self.target_index is None else errors[self.target_index]
        target[:] = sum(present[1:], present[0])
        return target


class DeltaOwner(BufferOwner):
    """Base class of layers: the buffer of their deltas, and the record of their ``bprop`` for planning it."""

    in_place = False  # whether outputs may overwrite the inputs, and deltas the error
    can_compute_deltas = True  # False if the inputs have none, such as token ids
    returns_error = False  # whether the deltas are a view of the error
    bprop_workspace_size = 0  # elements for each sample of memory that only bprop uses; set_workspace receives it
    needs_deltas: bool
    owns_delta: bool  # False: the deltas overwrite the error
    deltas: Tensor | Any
    in_shape: Any
    prev_layer: Any

    def allocate_deltas(self, global_deltas: Tensor | None = None) -> None:
        """Allocate the buffer of the deltas, unless this is the first layer.

        Parameters
        ----------
        global_deltas : Tensor, optional
            Buffer to use for the deltas.
        """
        if self.owns_delta and self.needs_deltas and self.can_compute_deltas:
            self.deltas = self.buffer("deltas", self.in_shape, shared=global_deltas)

    def set_deltas(self, delta_buffers: Sequence[Tensor]) -> None:
        """Use the first of a list of buffers for the deltas, and reverse the list, so that two buffers alternate.

        For compatibility with neon: a network plans its buffers in ``allocate_deltas``.

        Parameters
        ----------
        delta_buffers : list of Tensor
            The buffers.
        """
        if self.owns_delta and self.needs_deltas and self.can_compute_deltas:
            self.allocate_deltas(delta_buffers[0])
            if isinstance(delta_buffers, list):
                delta_buffers.reverse()

    def record_bprop(self, planner: DeltaPlanner, error: PlannedGradient | None) -> PlannedGradient | None:
        """Record ``bprop``, to plan the buffers of the network's deltas.

        Parameters
        ----------
        planner : DeltaPlanner
            Records the steps.
        error : PlannedGradient or None
            The error of the outputs.

        Returns
        -------
        PlannedGradient or None
            The deltas, or None if the layer computes none.
        """
        if error is None:
            return None
        computes_deltas = self.needs_deltas and self.can_compute_deltas
        if not computes_deltas:  # forget those of an earlier plan
            self.owns_delta, self.deltas = True, None
            self.allocate_deltas()
        if self.returns_error:
            self.owns_delta, self.deltas = not computes_deltas, None
            return error if computes_deltas else None

        def set_target(index: int | None) -> None:
            self.owns_delta = index is None

        return planner.add_step(
            self,
            [error],
            self.in_shape if computes_deltas else None,
            set_buffer=self.allocate_deltas,
            set_target=set_target,
            can_overwrite=self.in_place,
            workspace_size=self.bprop_workspace_size,
        )

    def scale_deltas(self, delta: Operand, alpha: float, beta: float) -> Operand:
        """Return ``alpha delta + beta deltas``.

        Parameters
        ----------
        delta : Tensor or OpTreeNode
            The gradient with respect to the inputs.
        alpha, beta : float
            As for ``bprop``.
        """
        delta = delta if alpha == 1 else alpha * delta
        return delta if beta == 0 else delta + beta * self.deltas
