"""Layer base class: shapes, buffers, forward and backward pass; fprop and bprop derived from a formula.

Data has the shape (F, N): features by columns, with the minibatch as the last axis. A layer is used in four steps:
``configure`` infers shapes, ``allocate`` and ``allocate_deltas`` allocate buffers, ``fprop`` computes the outputs, and
``bprop`` computes the gradients of the parameters and, from the error of the outputs, the error of the inputs (the
*deltas*).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from neonlite.autodiff import Autodiff
from neonlite.backend import Tensor
from neonlite.backend.planning.assignment import CachedAssignment
from neonlite.backend.validation import checks_booleans, integer
from neonlite.files import printable
from neonlite.layers.buffers import copy_tensors, iobuf_shape, num_features, num_steps, shape_of, with_layout
from neonlite.layers.deltas import DeltaPlanner, PlannedGradient
from neonlite.layers.summary import Summary, summary
from neonlite.layers.types import LayerInput, LayerShape
from neonlite.layers.weights import WeightOwner
from neonlite.messages import describe
from neonlite.optree import Operand, OpTreeNode, postorder
from neonlite.typing import NativeArray

if TYPE_CHECKING:
    from neonlite.layers.cost import GeneralizedCost, Multicost
    from neonlite.optimizers import Optimizer


def accumulates(bprop: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a ``bprop`` to add to the gradients after ``set_acc_on(True)``, instead of overwriting them.

    Parameters
    ----------
    bprop : callable
        The method of a layer.
    """

    @functools.wraps(bprop)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self, Layer):
            raise TypeError(f"Layer.accumulates: expected the bprop of a Layer, got that of {self!r}.")
        if not self.acc_on:
            return bprop(self, *args, **kwargs)
        self.be.assign(self.grad_accumulators, self.gradients)
        self.acc_on = False  # a bprop called by this one must not accumulate again
        try:
            deltas = bprop(self, *args, **kwargs)
        finally:
            self.acc_on = True
        self.be.assign(self.gradients, [x + y for x, y in zip(self.gradients, self.grad_accumulators, strict=True)])
        return deltas

    return wrapper


class Layer(WeightOwner):
    """Base class of layers, which map inputs (F, N) to outputs (K, N).

    Subclasses implement ``configure`` and ``formula``; ``fprop`` and ``bprop`` are derived from the formula. A layer
    may override them with faster ones. Shapes omit the batch dimension: F, (F, T) with time steps, or (C, H, W).

    Parameters
    ----------
    name : str, optional
        Name, unique in a network. Default: the class name and a counter.
    parallelism : str
        neon's data or model parallelism; stored in the description, without effect.

    Attributes
    ----------
    in_shape, out_shape : int or tuple
        Shapes of the inputs and outputs, set by ``configure``.
    inputs, outputs : Tensor
        The inputs and outputs of the last ``fprop``.
    deltas : Tensor or None
        The error of the inputs; None for the first layer of a network, unless ``needs_deltas`` is set.
    prev_layer, next_layer : Layer or None
        The neighbors.
    needs_deltas : bool
        Whether ``bprop`` computes deltas: True if there is a previous layer. Set it before ``allocate_deltas`` to
        compute the deltas of a first layer, too.

    Examples
    --------
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
    >>> layer.needs_deltas = True  # although this is the first layer
    >>> layer.allocate()
    >>> layer.allocate_deltas()
    >>> layer.fprop(be.array([[3.0, -1.0]])).get()
    array([[9., 1.]], dtype=float32)
    >>> layer.bprop(be.ones((1, 2))).get()
    array([[ 6., -2.]], dtype=float32)
    """

    has_params = False
    in_place = False  # whether outputs may overwrite the inputs, and deltas the error
    can_compute_deltas = True  # False if the inputs have none, such as token ids
    returns_error = False  # whether the deltas are a view of the error
    bprop_workspace_size = 0  # elements for each sample of memory that only bprop uses; set_workspace receives it
    input_layouts: tuple[str, ...] = ("CHWN",)  # "CHWN" or "columns" of inputs and deltas; primitives choose NHWC
    layout = "CHWN"  # or "columns", of outputs and their errors; ``allocate`` selects one that the next layer reads
    needs_outputs = True  # whether bprop reads the outputs; else the next layer may overwrite them
    accumulates = staticmethod(accumulates)

    def __init__(self, name: str | None = None, parallelism: str = "Unknown") -> None:
        super().__init__(name)
        self.parallelism = parallelism
        self.in_shape: Any = None
        self.out_shape: Any = None
        self.inputs: Any = None
        self.outputs: Any = None
        self.deltas: Any = None
        self.prev_layer = None  # sets needs_deltas, too
        self.next_layer: Any = None
        self.owns_output = True  # False: the outputs overwrite the inputs
        self.owns_delta = True  # False: the deltas overwrite the error
        self.can_backprop = False  # whether the last fprop was a training pass
        self.tree: OpTreeNode | None = None  # formula(inputs), if the layer is computed from its formula
        self.fprop_assignment, self.bprop_assignment = CachedAssignment(), CachedAssignment()
        self.acc_on = False  # whether bprop adds to the gradients
        self.grad_accumulators: list[Tensor] = []  # copies of the gradients to add to

    # --- shapes and buffers ---

    def configure(self, in_obj: LayerInput) -> Layer:
        """Set the input shape and infer the output shape.

        Parameters
        ----------
        in_obj : Layer, data set, Tensor, int or tuple
            The previous layer, a data set (its ``shape``), a tensor (F, N), or a shape F, (F, T) or (C, H, W).

        Returns
        -------
        Layer
            The layer itself.

        Raises
        ------
        ValueError
            If the input shape is none of these, or is not supported by the layer.
        """
        self.be = self.be  # keep this backend when another one becomes the current backend
        if isinstance(in_obj, Layer):
            self.prev_layer, self.in_shape = in_obj, in_obj.out_shape
            in_obj.next_layer = self
            if isinstance(self.in_shape, list):
                raise ValueError(
                    f"{self.name}: expected an input layer with one output, got {in_obj.name} with the output shapes "
                    f"{self.in_shape}. Append layers to its branches."
                )
        elif isinstance(in_obj, Tensor):
            steps = in_obj.shape[1] // self.be.bsz if self.be.bsz else 1
            self.in_shape = in_obj.shape[0] if steps <= 1 else (in_obj.shape[0], steps)
        else:
            self.in_shape = shape_of(in_obj)
        if isinstance(self.in_shape, list):
            self.in_shape = tuple(self.in_shape)
        sizes = (self.in_shape,) if isinstance(self.in_shape, int) else self.in_shape
        if not isinstance(sizes, tuple) or not sizes or not all(isinstance(n, int) and n > 0 for n in sizes):
            source = f" from {in_obj.name}, which is not configured" if isinstance(in_obj, Layer) else ""
            raise ValueError(
                f"{self.name}: expected an input shape F, (F, T) or (C, H, W), got {self.in_shape!r}{source}."
            )
        return self

    @checks_booleans
    def allocate(self, shared_outputs: Tensor | None = None, accumulate_updates: bool = False) -> None:
        """Allocate the buffer of the outputs. A second call, after a change of the batch size, reuses its memory.

        Parameters
        ----------
        shared_outputs : Tensor, optional
            Buffer to use for the outputs.
        accumulate_updates : bool
            Also allocate the buffers that ``set_acc_on(True)`` needs.

        Raises
        ------
        TypeError
            If ``accumulate_updates`` is set and the layer has no parameters.
        """
        self.check_accumulation(accumulate_updates)
        self.can_backprop, self.tree = False, None
        self.fprop_assignment, self.bprop_assignment = CachedAssignment(), CachedAssignment()
        if self.owns_output and self.out_shape is not None:
            self.outputs = self.buffer("outputs", self.out_shape, shared=shared_outputs)

    def check_accumulation(self, accumulate_updates: bool) -> None:
        """Raise TypeError if gradients must be accumulated and the layer has no parameters.

        Parameters
        ----------
        accumulate_updates : bool
            The argument of ``allocate``.
        """
        if accumulate_updates and not self.has_params:
            raise TypeError(
                f"{self.name}: accumulate_updates: expected a layer with parameters, got {self.classnm}. Call "
                "allocate() without it, or allocate the whole network."
            )

    def allocate_deltas(self, global_deltas: Tensor | None = None) -> None:
        """Allocate the buffer of the deltas, unless this is the first layer.

        Parameters
        ----------
        global_deltas : Tensor, optional
            Buffer to use for the deltas.
        """
        if self.owns_delta and self.needs_deltas and self.can_compute_deltas:
            self.deltas = self.buffer("deltas", self.in_shape, shared=global_deltas)
            self.deltas = with_layout(self.deltas, getattr(self.prev_layer, "layout", "CHWN"))

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
            The deltas.
        """
        return planner.add_layer(self, error)

    def set_batch_size(self, N: int) -> None:
        """Set ``be.bsz`` and reallocate buffers. Smaller buffers are views of the existing memory.

        Parameters
        ----------
        N : int
            The new batch size.
        """
        self.be.bsz = N
        self.allocate()
        self.allocate_deltas()

    def set_seq_len(self, S: int) -> None:
        """Configure and reallocate the layer for inputs of S time steps.

        Parameters
        ----------
        S : int
            The number of time steps.

        Raises
        ------
        ValueError
            If the inputs have no time steps.
        """
        self.configure(self.shape_for_seq_len(S))
        self.allocate()
        self.allocate_deltas()

    def shape_for_seq_len(self, S: int) -> Any:
        """Return the input shape with S time steps.

        Parameters
        ----------
        S : int
            The number of time steps.
        """
        self.check_seq_len(S)
        if not isinstance(self.in_shape, tuple) or len(self.in_shape) != 2:
            raise ValueError(
                f"{self.name}: expected inputs with time steps (F, T), got the input shape {self.in_shape}. "
                "Configure the layer with an input shape (F, T)."
            )
        return self.in_shape[0], S

    def check_seq_len(self, S: int) -> None:
        """Raise ValueError unless S is a positive integer, RuntimeError if the layer is not configured.

        Parameters
        ----------
        S : int
            The number of time steps.
        """
        integer(f"{self.name}: the number of time steps", S)
        if self.in_shape is None:
            raise RuntimeError(f"{self.name}: {NOT_CONFIGURED}")

    def make_zero_inputs(self) -> Any:
        """Return inputs of the layer's input shape, filled with zeros."""
        return self.be.iobuf(iobuf_shape(self.in_shape))

    def summary(
        self,
        in_obj: LayerInput | None = None,
        cost: GeneralizedCost | Multicost | None = None,
        optimizer: Optimizer | None = None,
    ) -> Summary:
        """Return shapes, parameters, FLOPs and memory of training, without running it. The network is not changed.

        Parameters
        ----------
        in_obj : optional
            The input shape, for a network that is not configured.
        cost : optional
            A cost to include, such as ``GeneralizedCost``.
        optimizer : Optimizer, optional
            An optimizer to include.
        """
        return summary(self, in_obj, cost, optimizer)

    @checks_booleans
    def set_acc_on(self, acc_on: bool) -> None:
        """Set whether ``bprop`` adds to the gradients instead of overwriting them.

        Parameters
        ----------
        acc_on : bool
            Whether to accumulate.

        Raises
        ------
        BufferError
            If the layer was not allocated with ``accumulate_updates=True``.
        """
        if acc_on and len(self.grad_accumulators) != len(self.parameters):
            raise BufferError(
                f"{self.name}: expected buffers for accumulating gradients, got none. Call "
                "allocate(accumulate_updates=True) first."
            )
        self.acc_on = acc_on

    # --- forward and backward pass ---

    def __call__(self, x: Any) -> Any:
        """Return the outputs at inference, ``fprop(x, inference=True)``. The layer must be configured and allocated.

        Parameters
        ----------
        x : Tensor or list of Tensor
            The inputs, (F, N), or (F, T N) with time steps; a list for a network with several inputs.

        Returns
        -------
        Tensor or list of Tensor
            The outputs, (K, N) or (K, T N), in new tensors.

        Raises
        ------
        RuntimeError
            If the layer is not configured or not allocated.

        Examples
        --------
        >>> import neonlite as nl
        >>> from neonlite.initializers import Constant
        >>> from neonlite.layers import Linear
        >>> be = nl.gen_backend("cpu", batch_size=2)
        >>> layer = Linear(1, Constant(2), name="sum").configure(3)
        >>> layer.allocate()
        >>> layer
        Linear('sum', 3 -> 1, 3 parameters)
        >>> layer(be.ones((3, 2))).get()
        array([[6., 6.]], dtype=float32)
        """
        if self.in_shape is None:
            raise RuntimeError(f"{self.name}: {NOT_CONFIGURED}")
        if not self.leaves()[0].owns_output:  # the outputs overwrite the inputs
            x = copy_tensors(x)
        return copy_tensors(self.fprop(x, inference=True))

    def formula(self, x: Tensor) -> Operand:
        """Return the outputs as an op-tree of the inputs.

        Parameters
        ----------
        x : Tensor
            The inputs, (F, N).
        """
        raise NotImplementedError(f"{self.classnm}: expected formula(x), or fprop and bprop. Implement them.")

    def inference_formula(self, x: Tensor) -> Operand:
        """Return the outputs at inference as an op-tree of the inputs. Default: ``formula(x)``.

        Parameters
        ----------
        x : Tensor
            The inputs, (F, N).
        """
        return self.formula(x)

    def fprop(self, inputs: Tensor, inference: bool = False, beta: float = 0.0) -> Any:
        """Compute the outputs, ``formula(inputs) + beta outputs``.

        Parameters
        ----------
        inputs : Tensor
            The inputs, (F, N), or (F, T N) with time steps.
        inference : bool
            Compute ``inference_formula`` instead; ``bprop`` is not possible afterwards.
        beta : float
            Factor of the old outputs.

        Returns
        -------
        Tensor
            The outputs, (K, N) or (K, T N).
        """
        tree = self.prepare_fprop(inputs, inference)
        if not self.owns_output:
            self.outputs = inputs
        if inference or beta:
            self.outputs[:] = tree + beta * self.outputs if beta else tree
        else:
            self.fprop_assignment(self.be, (tree, self.outputs), lambda: ([self.outputs], [tree]))
        return self.outputs

    @accumulates
    def bprop(self, error: Tensor, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """Compute the gradients of the parameters, and ``deltas = alpha dE/dinputs + beta deltas``.

        Parameters
        ----------
        error : Tensor
            The gradient of the cost with respect to the outputs, of their shape.
        alpha : float
            Factor of the gradient with respect to the inputs.
        beta : float
            Factor of the old deltas.

        Returns
        -------
        Tensor or None
            The deltas, of the shape of the inputs; None for the first layer of a network.

        Raises
        ------
        RuntimeError
            If there was no training ``fprop`` before.
        """
        self.check_error(error)
        if not self.owns_delta:
            self.deltas = error
        if self.tree is None:  # a subclass computes its outputs without the formula
            self.tree = self.build_tree(self.inputs)
        operands = self.tree, error, self.deltas, alpha, beta
        self.bprop_assignment(self.be, operands, lambda: self.build_backward(error, alpha, beta))
        return self.deltas

    def build_backward(self, error: Tensor, alpha: float, beta: float) -> tuple[list[Tensor], list[Any]]:
        """Return the targets of ``bprop`` and the op-trees to assign to them.

        Parameters
        ----------
        error, alpha, beta
            As for ``bprop``.
        """
        tensors, targets = list(self.parameters), list(self.gradients)
        if self.deltas is not None:
            tensors.append(self.inputs)
            targets.append(self.deltas)
        tree: Any = self.tree
        autodiff = Autodiff(tree, self.be, error, values={tree: self.outputs}, allow_unused=True)
        values = autodiff.get_grad_op_tree(tensors)
        if self.deltas is not None:
            values[-1] = self.scale_deltas(values[-1], alpha, beta)
            if values[-1] is self.deltas:  # the error is passed on unchanged
                del targets[-1], values[-1]
        return targets, values

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

    # --- checks ---

    def prepare_fprop(self, inputs: Any, inference: bool) -> Any:
        """Check and store the inputs, and return the op-tree of the outputs, in training also stored as ``tree``.

        Parameters
        ----------
        inputs, inference
            As for ``fprop``.
        """
        self.check_inputs(inputs)
        if inference:
            self.set_inputs(inputs, inference)
            return self.inference_formula(inputs)
        is_current = self.tree is not None and inputs is self.inputs  # new inputs need a new tree, which refers to them
        self.set_inputs(inputs, inference, self.tree if is_current else self.build_tree(inputs))
        return self.tree

    def build_tree(self, inputs: Tensor) -> OpTreeNode:
        """Return ``formula(inputs)`` as an op-tree that ``bprop`` can differentiate.

        Parameters
        ----------
        inputs : Tensor
            The argument of ``fprop``.
        """
        tree = self.formula(inputs)
        if not isinstance(tree, Operand):
            raise TypeError(f"{self.name}: expected an op-tree from formula(x), got {describe(tree)}.")
        tree = tree if isinstance(tree, OpTreeNode) else tree * 1
        if not self.owns_output and type(self).bprop is Layer.bprop:
            self.check_in_place(inputs, tree)
        return tree

    def set_inputs(self, inputs: Tensor, inference: bool, tree: OpTreeNode | None = None) -> None:
        """Store the inputs, and that ``bprop`` can follow unless ``inference`` is set.

        Parameters
        ----------
        inputs, inference
            As for ``fprop``.
        tree : OpTreeNode, optional
            The formula of the inputs, if ``bprop`` differentiates it.
        """
        self.inputs, self.tree, self.can_backprop = inputs, tree, not inference

    def check_inputs(self, inputs: Tensor) -> None:
        """Raise an error unless these are valid inputs and the layer is allocated.

        Parameters
        ----------
        inputs : Tensor
            The argument of ``fprop``.
        """
        self.check_tensor("inputs", inputs, self.in_shape)
        if self.owns_output and self.outputs is None:
            raise RuntimeError(f"{self.name}: expected allocated buffers, got none. Call allocate() before fprop.")

    def check_in_place(self, inputs: Tensor, tree: OpTreeNode) -> None:
        """Raise ValueError if the derivative of the formula reads the inputs, which the outputs overwrite.

        Parameters
        ----------
        inputs : Tensor
            The argument of ``fprop``.
        tree : OpTreeNode
            The formula of the inputs.
        """
        outputs, error = self.be.empty(tree.shape), self.be.empty(tree.shape)
        autodiff = Autodiff(tree, self.be, error, values={tree: outputs}, allow_unused=True)
        trees = [x for x in autodiff.get_grad_op_tree([inputs, *self.parameters]) if isinstance(x, OpTreeNode)]
        for node in postorder(*trees):
            if any(x is inputs for x in node.operands):
                raise ValueError(
                    f"{self.name}: expected a derivative that does not read the inputs, because in_place overwrites "
                    "them. Set in_place = False."
                )

    def check_error(self, error: Tensor) -> None:
        """Raise an error unless there was a training ``fprop`` and the error has the shape of the outputs.

        Parameters
        ----------
        error : Tensor
            The argument of ``bprop``.
        """
        self.check_can_backprop()
        self.check_tensor("an error", error, self.out_shape)

    def check_can_backprop(self) -> None:
        """Raise RuntimeError unless the last ``fprop`` was a training pass."""
        if not self.can_backprop:
            raise RuntimeError(
                f"{self.name}: bprop: expected a training fprop before it, got none, or one with inference=True. Call "
                "fprop(inputs) first."
            )

    def check_tensor(self, label: str, x: Any, shape: LayerShape) -> None:
        """Raise an error unless x is a tensor of a layer shape and the current batch size.

        Parameters
        ----------
        label : str
            What x is, for the error message.
        x : Tensor
            The tensor to check.
        shape : int or tuple
            The expected shape, without the batch dimension.
        """
        if shape is None:
            raise RuntimeError(f"{self.name}: {NOT_CONFIGURED}")
        if not isinstance(x, Tensor):
            raise TypeError(
                f"{self.name}: expected {label} as a tensor, got {describe(x)}. Create one with be.array(a)."
            )
        if x.shape != (expected := tensor_shape(shape, self.be.bsz)):
            steps, rest = divmod(x.shape[1], self.be.bsz)
            has_steps = isinstance(shape, tuple) and len(shape) == x.ndim == 2 and x.shape[0] == shape[0]
            fits = has_steps and steps and not rest
            hint = f" For {steps} time steps call set_seq_len({steps})." if fits else ""
            raise ValueError(
                f"{self.name}: expected {label} of shape {expected} (layer shape {shape}, batch size {self.be.bsz}), "
                f"got {describe(x)}.{hint}"
            )

    # --- parameters ---

    @property
    def parameters(self) -> list[Tensor]:
        """The trainable tensors."""
        return []

    @property
    def num_parameters(self) -> int:
        """The number of trainable parameters of a configured layer."""
        return 0

    @property
    def gradients(self) -> list[Tensor]:
        """The gradients of the parameters, in the same order."""
        return []

    # --- state across minibatches ---

    progress: tuple[str, ...] = ()  # names of attributes that a minibatch of training changes

    @property
    def running_tensors(self) -> list[Tensor]:
        """The tensors, besides parameters, that a minibatch of training changes and the next one depends on."""
        return []

    def get_state(self) -> dict[str, NativeArray]:
        """Return the recurrent state with which the next minibatch starts: arrays by name; empty if there is none."""
        return {}

    def set_state(self, arrays: dict[str, NativeArray]) -> None:
        """Set the recurrent state with which the next minibatch starts.

        Parameters
        ----------
        arrays : dict
            Arrays by name, from ``get_state``. An empty dict resets the state.

        Raises
        ------
        ValueError
            If the names or shapes do not fit the layer.
        """
        self.check_state(arrays)

    def check_state(self, arrays: dict[str, NativeArray]) -> None:
        """Raise ValueError unless ``set_state`` accepts these arrays.

        Parameters
        ----------
        arrays : dict
            Arrays by name.
        """
        if arrays:
            raise ValueError(f"{self.name}: expected no recurrent state for {self.classnm}, got {', '.join(arrays)}.")

    # --- position in the network ---

    @property
    def prev_layer(self) -> Layer | None:
        """The previous layer, or None. Setting it also sets ``needs_deltas``."""
        return self._prev_layer

    @prev_layer.setter
    def prev_layer(self, layer: Layer | bool | None) -> None:
        self.needs_deltas = layer is not None
        self._prev_layer = layer if isinstance(layer, Layer) else None  # neon's scripts set True to compute deltas

    def get_terminal(self) -> Any:
        """Return the last layer: the layer itself, or the last one of a container."""
        return self

    def set_next(self, layer: Layer) -> None:
        """Set the next layer.

        Parameters
        ----------
        layer : Layer
            The layer that reads the outputs of this one.
        """
        self.next_layer = layer

    def __repr__(self) -> str:
        return f"{self.classnm}({', '.join([repr(self.name), *self.repr_details()])})"

    def repr_details(self) -> list[str]:
        """Return what ``repr`` shows besides the name: shapes and number of parameters."""
        if self.out_shape is None:
            return ["not configured"]
        count = self.num_parameters
        parameters = [f"{count:,} parameter{'s' * (count != 1)}"] if count else []
        return [f"{self.in_shape} -> {self.out_shape}", *parameters]

    def __str__(self) -> str:
        return f"{self.classnm} Layer '{printable(self.name, keep='')}': {self.in_shape} -> {self.out_shape}"

    def nested_str(self, level: int = 0) -> str:
        """Return the layer as a line of text.

        Parameters
        ----------
        level : int
            Depth of indentation.
        """
        return f"{'  ' * level}{self}"


@functools.lru_cache
def tensor_shape(shape: LayerShape, batch_size: int) -> tuple[int, int]:
    """Return the shape of the buffer of a layer shape."""
    return num_features(shape), num_steps(shape) * batch_size


NOT_CONFIGURED = "expected a configured layer, got one without shapes. Call configure(shape), then allocate()."
