"""Buffer planning for deltas: the steps of the backward pass, the liveness of errors, and shared buffers.

An *error* is the gradient of the cost with respect to the outputs of a layer, its *deltas* those to its inputs.

At allocation, the layers record the steps of ``bprop`` without computing them: which errors a step reads, and the error
that it computes. The planner counts the readers of each error. A step overwrites an error that no later step reads, if
it can; otherwise its result gets a free buffer. Each buffer is as large as the largest error assigned to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neonlite.backend import Tensor
from neonlite.layers.buffers import num_elements
from neonlite.layers.types import LayerShape

if TYPE_CHECKING:
    from neonlite.layers.layer import Layer
    from neonlite.optree import Operand


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


# --- methods of Layer ---


def record_bprop(layer: Layer, planner: DeltaPlanner, error: PlannedGradient | None) -> PlannedGradient | None:
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
    computes_deltas = layer.needs_deltas and layer.can_compute_deltas
    if not computes_deltas:  # forget those of an earlier plan
        layer.owns_delta, layer.deltas = True, None
        layer.allocate_deltas()
    if layer.returns_error:
        layer.owns_delta, layer.deltas = not computes_deltas, None
        return error if computes_deltas else None

    def set_target(index: int | None) -> None:
        layer.owns_delta = index is None

    return planner.add_step(
        layer,
        [error],
        layer.in_shape if computes_deltas else None,
        set_buffer=layer.allocate_deltas,
        set_target=set_target,
        can_overwrite=layer.in_place,
        workspace_size=layer.bprop_workspace_size,
    )


def scale_deltas(layer: Layer, delta: Operand, alpha: float, beta: float) -> Operand:
    """Return ``alpha delta + beta deltas``.

    Parameters
    ----------
    delta : Tensor or OpTreeNode
        The gradient with respect to the inputs.
    alpha, beta : float
        As for ``bprop``.
    """
    delta = delta if alpha == 1 else alpha * delta
    return delta if beta == 0 else delta + beta * layer.deltas


def set_deltas(layer: Layer, delta_buffers: Sequence[Tensor]) -> None:
    """Use the first of a list of buffers for the deltas, and reverse the list, so that two buffers alternate.

    For compatibility with neon: a network plans its buffers in ``allocate_deltas``.

    Parameters
    ----------
    delta_buffers : list of Tensor
        The buffers.
    """
    if layer.owns_delta and layer.needs_deltas and layer.can_compute_deltas:
        layer.allocate_deltas(delta_buffers[0])
        if isinstance(delta_buffers, list):
            delta_buffers.reverse()
