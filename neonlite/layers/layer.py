"""What is a layer?  A formula from inputs to outputs; what runs it forward and back follows.

Data is (F, N): features by columns, the minibatch innermost. A layer lives in four steps: ``configure`` settles shapes,
``allocate`` makes buffers, ``fprop`` computes outputs, and ``bprop`` takes the error of the outputs and computes the
gradients of the parameters and the error of the inputs, the *deltas*.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from neonlite.autodiff import Autodiff
from neonlite.backend import Tensor
from neonlite.backend.prepared import Habit
from neonlite.layers.buffers import by_columns, columns, elements, features, turned
from neonlite.layers.deltas import Deltas, Place
from neonlite.layers.serialize import Stored
from neonlite.layers.summary import Summary, summary
from neonlite.optree import Operand, OpTreeNode, describe, postorder


def accumulates(bprop: Callable[..., Any]) -> Callable[..., Any]:
    """Have a ``bprop`` add to the gradients while ``set_acc_on(True)`` holds, where else it overwrites them."""

    @functools.wraps(bprop)
    def accumulating(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self, Layer):
            raise TypeError(f"Layer.accumulates is for the bprop of layers; got that of {self!r}")
        if not self.acc_on:
            return bprop(self, *args, **kwargs)
        self.be.assign(self.accumulated, self.gradients)
        self.acc_on = False  # what this one calls is not to add once more
        try:
            deltas = bprop(self, *args, **kwargs)
        finally:
            self.acc_on = True
        self.be.assign(self.gradients, [x + y for x, y in zip(self.gradients, self.accumulated, strict=True)])
        return deltas

    return accumulating


class Layer(Stored):
    """Turns inputs (F, N) into outputs (K, N). Write ``formula``, and ``fprop`` and ``bprop`` follow from it.

    ``in_shape`` and ``out_shape`` leave the minibatch out: F, (F, T) with time steps, or (C, H, W).

    >>> import neonlite as nl
    >>> from neonlite.layers import Layer
    >>> class Squared(Layer):
    ...     def configure(self, in_obj):
    ...         super().configure(in_obj)
    ...         self.out_shape = self.in_shape
    ...         return self
    ...
    ...     def formula(self, x):
    ...         return x * x
    >>> be = nl.gen_backend("cpu", batch_size=2)
    >>> layer = Squared().configure(1)
    >>> layer.prev_layer = True  # there is somebody who wants the deltas
    >>> layer.allocate()
    >>> layer.allocate_deltas()
    >>> layer.fprop(be.array([[3.0, -1.0]])).get()
    array([[9., 1.]], dtype=float32)
    >>> layer.bprop(be.ones((1, 2))).get()
    array([[ 6., -2.]], dtype=float32)
    """

    has_params = False
    in_place = False  # whether it may write its outputs over its inputs, and its deltas over the error
    reads_columns = False  # whether inputs and deltas may as well lie column by column
    by_columns = False  # whether its outputs, and their errors, lie so
    reads_outputs = True  # whether bprop may read the outputs that fprop left; else the next layer may overwrite them
    accumulates = staticmethod(accumulates)

    def __init__(self, name: str | None = None, parallelism: str = "Unknown") -> None:
        super().__init__(name)
        self.parallelism = parallelism
        self.in_shape: Any = None
        self.out_shape: Any = None
        self.inputs: Any = None
        self.outputs: Any = None
        self.deltas: Any = None
        self.prev_layer: Any = None
        self.next_layer: Any = None
        self.owns_output = True  # else it writes its outputs over its inputs
        self.owns_delta = True  # else it writes its deltas over the error
        self.tree: Any = None  # the formula of the last inputs
        self.fprop_habit, self.bprop_habit = Habit(), Habit()  # what fprop and bprop assign
        self.acc_on = False  # whether bprop adds to the gradients
        self.accumulated: list[Tensor] = []  # the gradients that it adds to

    # --- the four steps ---

    def configure(self, in_obj: Any) -> Layer:
        """Take the shape of a layer, a data set (its ``shape``), a tensor (F, N), or sizes; return the layer."""
        self.be = self.be  # from now on this one, whatever becomes the current one
        if isinstance(in_obj, Layer):
            self.prev_layer, self.in_shape = in_obj, in_obj.out_shape
            in_obj.next_layer = self
            if isinstance(self.in_shape, list):
                raise ValueError(f"{self.name}: {in_obj.name} has outputs of {self.in_shape}: no layer comes after it")
        elif isinstance(in_obj, Tensor):
            steps = in_obj.shape[1] // self.be.bsz if self.be.bsz else 1
            self.in_shape = in_obj.shape[0] if steps <= 1 else (in_obj.shape[0], steps)
        else:
            self.in_shape = getattr(in_obj, "shape", in_obj)
        if isinstance(self.in_shape, list):
            self.in_shape = tuple(self.in_shape)
        sizes = (self.in_shape,) if isinstance(self.in_shape, int) else self.in_shape
        if not isinstance(sizes, tuple) or not sizes or not all(isinstance(n, int) and n > 0 for n in sizes):
            source = f" of {in_obj.name}, which is not configured" if isinstance(in_obj, Layer) else ""
            raise ValueError(f"{self.name}: the inputs' shape is F, (F, T) or (C, H, W); got {self.in_shape!r}{source}")
        return self

    def allocate(self, shared_outputs: Tensor | None = None, accumulate_updates: bool = False) -> None:
        """Make the buffer of the outputs, or take a shared one; once more, after another batch size, in its memory.

        ``accumulate_updates``: whether there are to be the buffers that ``set_acc_on(True)`` needs.
        """
        self.tree, self.fprop_habit, self.bprop_habit = None, Habit(), Habit()  # they may name buffers that were
        if self.owns_output and self.out_shape is not None:
            self.outputs = self.buffer("outputs", self.out_shape, shared=shared_outputs)

    def allocate_deltas(self, global_deltas: Tensor | None = None) -> None:
        """Make the buffer of the deltas, or take a shared one; a first layer needs none."""
        if self.owns_delta and self.prev_layer is not None:
            self.deltas = self.buffer("deltas", self.in_shape, shared=global_deltas)
            if getattr(self.prev_layer, "by_columns", False):
                self.deltas = turned(self.deltas)

    def set_deltas(self, delta_buffers: Sequence[Tensor]) -> None:
        """Take the first of a list of buffers for the deltas, and turn the list around, so that two serve in turns."""
        if self.owns_delta and self.prev_layer is not None:
            self.allocate_deltas(delta_buffers[0])
            if isinstance(delta_buffers, list):
                delta_buffers.reverse()

    def reserve(self, deltas: Deltas, error: Place | None) -> Place | None:
        """Say where the deltas are to lie, given where the error does: over it, in a place of their own, or nowhere."""
        if self.prev_layer is None or error is None:
            deltas.free(error)
            return None
        self.owns_delta = not (self.in_place and error.exclusive)
        if not self.owns_delta:
            return error
        place = deltas.take(elements(self.in_shape), self.allocate_deltas)
        deltas.free(error)
        return place

    def set_batch_size(self, N: int) -> None:
        """Make ready for minibatches of N: ``be.bsz`` becomes N; buffers are views of those that were, or larger."""
        self.be.bsz = N
        self.allocate()
        self.allocate_deltas()

    def set_seq_len(self, S: int) -> None:
        """Make ready for inputs of S time steps. ValueError when the inputs have none."""
        self.configure(self.in_steps(S))
        self.allocate()
        self.allocate_deltas()

    def in_steps(self, S: int) -> Any:
        """Return the inputs' shape with S time steps."""
        self.check_steps(S)
        if not isinstance(self.in_shape, tuple) or len(self.in_shape) != 2:
            raise ValueError(f"{self.name}: inputs with time steps are (F, T); this layer has {self.in_shape}")
        return self.in_shape[0], S

    def check_steps(self, S: Any) -> None:
        """Raise ValueError unless S is a number of time steps, RuntimeError before there are shapes."""
        if type(S) is not int or S < 1:
            raise ValueError(f"{self.name}: time steps are a whole number from 1; got {S!r}")
        if self.in_shape is None:
            raise RuntimeError(f"{self.name}: it has no shapes yet: call configure(shape) first")

    def blank_inputs(self) -> Any:
        """Return inputs that fit the layer, of zeros."""
        return self.be.iobuf(by_columns(self.in_shape))

    def summary(self, in_obj: Any = None, cost: Any = None, optimizer: Any = None) -> Summary:
        """Return shapes, parameters, arithmetic and memory of training, which are known before anything is run.

        ``in_obj``: the inputs' shape, for a network that is not configured yet. The network stays as it is.
        """
        return summary(self, in_obj, cost, optimizer)

    def set_acc_on(self, acc_on: bool) -> None:
        """Set whether bprop adds to the gradients. BufferError unless allocated with ``accumulate_updates=True``."""
        if acc_on and len(self.accumulated) != len(self.parameters):
            raise BufferError(f"{self.name} has no buffers to add to: call allocate(accumulate_updates=True) first")
        self.acc_on = acc_on

    def formula(self, x: Any) -> Any:
        """Return the outputs as an op-tree of the inputs."""
        raise NotImplementedError(f"{self.classnm} has no formula: write formula(x), or fprop and bprop")

    def inference_formula(self, x: Any) -> Any:
        """Return the outputs when nothing is learned: the same, unless a layer says otherwise."""
        return self.formula(x)

    def fprop(self, inputs: Any, inference: bool = False, beta: float = 0.0) -> Any:
        """Compute the outputs, plus ``beta`` times what they were, and return them."""
        tree = self.prepare(inputs, inference)
        if not self.owns_output:
            self.outputs = inputs
        if inference or beta:
            self.outputs[:] = tree + beta * self.outputs if beta else tree
        else:
            self.fprop_habit(self.be, (tree, self.outputs), lambda: ([self.outputs], [tree]))
        return self.outputs

    @accumulates
    def bprop(self, error: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """Compute the gradients of the parameters, and ``deltas = alpha dE/dinputs + beta deltas``; return the deltas.

        The first layer of a network has no deltas, and returns None.
        """
        self.check_error(error)
        if not self.owns_delta:
            self.deltas = error
        operands = self.tree, error, self.deltas, alpha, beta
        self.bprop_habit(self.be, operands, lambda: self.way_back(error, alpha, beta))
        return self.deltas

    def way_back(self, error: Any, alpha: float, beta: float) -> tuple[list[Tensor], list[Any]]:
        """Return what bprop writes to, and the op-trees of what it writes there."""
        tensors, targets = list(self.parameters), list(self.gradients)
        if self.deltas is not None:
            tensors.append(self.inputs)
            targets.append(self.deltas)
        autodiff = Autodiff(self.tree, self.be, error, values={self.tree: self.outputs}, allow_unused=True)
        values = autodiff.get_grad_op_tree(tensors)
        if self.deltas is not None:
            values[-1] = self.scaled(values[-1], alpha, beta)
            if values[-1] is self.deltas:  # the error goes through as it is
                del targets[-1], values[-1]
        return targets, values

    def scaled(self, delta: Any, alpha: float, beta: float) -> Any:
        """Return ``alpha delta + beta deltas``."""
        delta = delta if alpha == 1 else alpha * delta
        return delta if beta == 0 else delta + beta * self.deltas

    # --- checks ---

    def prepare(self, inputs: Any, inference: bool) -> Any:
        """Check the inputs, keep them, and return the op-tree of the outputs, which bprop finds in ``tree``.

        After inference ``tree`` is None: buffers hold what is not to be learned from.
        """
        self.accept(inputs)
        if inference:
            self.inputs, self.tree = inputs, None
            return self.inference_formula(inputs)
        if inputs is not self.inputs or self.tree is None:  # a tree names its operands: new inputs, new tree
            tree = self.formula(inputs)
            if not isinstance(tree, Operand):
                raise TypeError(f"{self.name}: formula(x) returns an op-tree of the outputs; got {describe(tree)}")
            self.inputs, self.tree = inputs, tree if isinstance(tree, OpTreeNode) else tree * 1
            if not self.owns_output and type(self).bprop is Layer.bprop:
                self.check_in_place()
        return self.tree

    def accept(self, inputs: Any) -> None:
        """Raise an error unless these are inputs for fprop, and there are buffers."""
        self.check("the inputs", inputs, self.in_shape)
        if self.owns_output and self.outputs is None:
            raise RuntimeError(f"{self.name}: it has no buffers yet: call allocate() before fprop")

    def check_in_place(self) -> None:
        """Raise ValueError when the derivative of the formula needs the inputs, over which the outputs are written."""
        kept, error = self.be.empty(self.tree.shape), self.be.empty(self.tree.shape)
        autodiff = Autodiff(self.tree, self.be, error, values={self.tree: kept}, allow_unused=True)
        trees = [x for x in autodiff.get_grad_op_tree([self.inputs, *self.parameters]) if isinstance(x, OpTreeNode)]
        for node in postorder(*trees):
            if any(x is self.inputs for x in node.operands):
                raise ValueError(f"{self.name}: the derivative needs the inputs: this layer cannot be in_place")

    def check_error(self, error: Any) -> None:
        """Raise an error unless bprop may begin: after fprop, not for inference, with an error like the outputs."""
        if self.tree is None:
            raise RuntimeError(f"{self.name}: {NOT_YET}")
        self.check("the error", error, self.out_shape)

    def check(self, what: str, x: Any, shape: Any) -> None:
        """Raise an error unless x is a tensor with the features of a shape, and the columns of a minibatch."""
        if shape is None:
            raise RuntimeError(f"{self.name}: it has no shapes yet: call configure(shape), then allocate()")
        if not isinstance(x, Tensor):
            raise TypeError(f"{self.name}: {what} are a tensor, be.array(a) makes one; got {describe(x)}")
        if x.shape != (wanted := dims(shape, self.be.bsz)):
            steps, rest = divmod(x.shape[1], self.be.bsz)
            timed = isinstance(shape, tuple) and len(shape) == x.ndim == 2 and x.shape[0] == shape[0]
            fits = timed and steps and not rest
            hint = f", which has {steps} time steps: set_seq_len({steps}) is for these" if fits else ""
            raise ValueError(
                f"{self.name}: {what} must have the shape {wanted}, that of {shape} for the batch size "
                f"{self.be.bsz}; got {describe(x)}{hint}"
            )

    # --- parameters ---

    @property
    def parameters(self) -> list[Tensor]:
        """The tensors that are learned."""
        return []

    @property
    def gradients(self) -> list[Tensor]:
        """The gradients of the parameters, in the same order."""
        return []

    # --- what goes on from minibatch to minibatch ---

    @property
    def carried(self) -> dict[str, Any]:
        """What the next minibatch begins with, arrays by name: nothing, but for layers that have a memory."""
        return {}

    def carry(self, arrays: dict[str, Any]) -> None:
        """Have the next minibatch begin with what ``carried`` was; with nothing, as the first one."""
        self.check_carried(arrays)

    def check_carried(self, arrays: dict[str, Any]) -> None:
        """Raise ValueError unless the layer can begin with these."""
        if arrays:
            raise ValueError(f"{self.name}: {self.classnm} has no memory to put {', '.join(arrays)} in")

    # --- its place ---

    def get_terminal(self) -> Any:
        """Return the last layer: itself, or that of a container."""
        return self

    def set_next(self, layer: Any) -> None:
        """Take note of the layer that comes after."""
        self.next_layer = layer

    def __str__(self) -> str:
        return f"{self.classnm} Layer '{self.name}': {self.in_shape} -> {self.out_shape}"

    def nested_str(self, level: int = 0) -> str:
        """Return the layer in words, indented."""
        return f"{'  ' * level}{self}"


@functools.lru_cache
def dims(shape: Any, N: int) -> tuple[int, int]:
    """Return the shape of a buffer for a minibatch of N."""
    return features(shape), columns(shape) * N


NOT_YET = "bprop comes after fprop, which was not called, or for inference, whose buffers tell nothing to learn from"
