"""Layer base class: shapes, buffers, forward and backward pass; fprop and bprop derived from a formula.

Data has the shape (F, N): features by columns, with the minibatch as the last axis. A layer is used in four steps:
``configure`` infers shapes, ``allocate`` and ``allocate_deltas`` allocate buffers, ``fprop`` computes the outputs, and
``bprop`` computes the gradients of the parameters and, from the error of the outputs, the error of the inputs (the
*deltas*).
"""

from __future__ import annotations

from typing import Any, Self

from neonlite.autodiff import Autodiff
from neonlite.backend import Tensor
from neonlite.backend.attribute_snapshot import same_objects
from neonlite.backend.planning.assignment import MAX_CACHED_ASSIGNMENTS, CachedAssignment
from neonlite.backend.validation import checks_arguments
from neonlite.layers import accumulation, deltas, layer_checks, layer_methods
from neonlite.layers.buffers import iobuf_shape, shape_of_data, with_layout
from neonlite.layers.inference_copies import InferenceCopies
from neonlite.layers.summary import summarize
from neonlite.layers.types import LayerInput, Tensors, Terminal, overridable
from neonlite.layers.weights import WeightOwner
from neonlite.messages import describe
from neonlite.name_hints import LAYER, add_hints
from neonlite.optree import Operand, OpTreeNode
from neonlite.tree_structure import is_same_expression

NO_TREE: tuple[Any, Any, Any] = (None, None, None)  # inputs, formula and constants of a layer that was not run


@add_hints(LAYER)
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
    parameters, gradients : list of Tensor
        The trainable tensors, and their gradients in the same order (``WeightOwner``).
    needs_deltas : bool
        Whether ``bprop`` computes deltas: True if a previous layer is trained. Set it before ``allocate_deltas`` to
        compute the deltas of a first layer, too.
    trainable : bool
        Whether the parameters are trained; default True. False freezes them: optimizers leave them unchanged, also by
        weight decay, and ``bprop`` of a network ends at its first layer with parameters that are trained. For a
        container, it is that of all layers in it.

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

    needs_base_init = True
    has_params = False
    has_backward_plan = False  # whether a container has planned the buffers of bprop
    gradient_reducer: Any = None  # of a container: sums gradients over several processes, during ``Model.fit``
    in_place = False  # whether outputs may overwrite the inputs, and deltas the error
    can_compute_deltas = True  # False if the inputs have none, such as token ids
    returns_error = False  # whether the deltas are a view of the error
    bprop_workspace_size = 0  # elements for each sample of memory that only bprop uses; set_workspace receives it
    input_layouts: tuple[str, ...] = ("CHWN",)  # "CHWN" or "columns" of inputs and deltas; primitives choose NHWC
    layout = "CHWN"  # or "columns", of outputs and their errors; ``allocate`` selects one that the next layer reads
    needs_outputs = True  # whether bprop reads the outputs; else the next layer may overwrite them

    def __init__(self, name: str | None = None, parallelism: str = "Unknown") -> None:
        super().__init__(name)
        self.parallelism = parallelism
        self.in_shape: Any = None
        self.out_shape: Any = None
        self.inputs: Tensor | Any = None
        self.outputs: Tensor | Any = None
        self.deltas: Tensor | Any = None
        self.prev_layer = None  # sets needs_deltas, too
        self.next_layer: Layer | Any = None
        self.owns_output = True  # False: the outputs overwrite the inputs
        self.owns_delta = True  # False: the deltas overwrite the error
        self.container: Layer | Any = None  # that has allocated this layer
        self.batch_size = 0  # of the buffers; 0: they are not allocated
        self._trainable = True
        self.inference_copies = InferenceCopies()  # of ``layer(x)`` and ``Model.predict``
        self.can_backprop = False  # whether the last fprop was a training pass
        self.tree: OpTreeNode | None = None  # formula(inputs), if the layer is computed from its formula
        self.clear_trees()
        self.acc_on = False  # whether bprop adds to the gradients
        self.grad_accumulators: list[Tensor] = []  # copies of the gradients to add to

    # --- shapes and buffers ---

    def configure(self, in_obj: LayerInput) -> Self:
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
        self.clear_trees()
        if isinstance(in_obj, Layer):
            self.prev_layer, in_obj.next_layer = in_obj, self
            self.in_shape = in_obj.out_shape
        else:
            self.in_shape = shape_of_data(in_obj, self.be.bsz)
        layer_checks.check_in_shape(self, in_obj)
        return self

    @checks_arguments
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
        RuntimeError
            If the layer is not configured.
        """
        self.check_accumulation(accumulate_updates)
        self.check_configured()
        self.can_backprop, self.tree, self.batch_size = False, None, self.be.bsz
        if self.owns_output:
            self.outputs = self.buffer("outputs", self.out_shape, shared=shared_outputs)

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

    def clear_trees(self) -> None:
        """Forget the op-trees of the formula, and the compiled assignments of both passes."""
        self.trees: dict[int, tuple[Tensor, OpTreeNode, Any]] = {}  # (inputs, formula, constants) by id of the inputs
        self.fprop_assignment, self.bprop_assignment = CachedAssignment(), CachedAssignment()

    def make_zero_inputs(self) -> Tensors:
        """Return inputs of the layer's input shape, filled with zeros."""
        return self.be.iobuf(iobuf_shape(self.in_shape))

    # --- forward and backward pass ---

    def formula(self, x: Tensor) -> Operand:
        """Return the outputs as an op-tree of the inputs.

        Parameters
        ----------
        x : Tensor
            The inputs, (F, N).
        """
        raise NotImplementedError(f"{self.classnm}: expected formula(x), or fprop and bprop. Implement them.")

    def formula_constants(self) -> tuple[object, ...] | None:
        """Return what the formula reads beside x: if it is known, training evaluates the formula only when it changes.

        Returns
        -------
        tuple or None
            The objects that the formula reads; None, the default, if they are not known.
        """
        return None

    def inference_formula(self, x: Tensor) -> Operand:
        """Return the outputs at inference as an op-tree of the inputs. Default: ``formula(x)``.

        Parameters
        ----------
        x : Tensor
            The inputs, (F, N).
        """
        return self.formula(x)

    @overridable
    def fprop(self, inputs: Tensor, inference: bool = False, beta: float = 0.0) -> Tensor:
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
        if tree.shape != self.outputs.shape:
            shape = self.outputs.shape
            raise ValueError(f"{self.name}: expected a formula of the shape {shape}, got {describe(tree)}.")
        if inference or beta:
            self.outputs[:] = tree + beta * self.outputs if beta else tree
        else:
            self.fprop_assignment(self.be, (tree, self.outputs), lambda: ([self.outputs], [tree]))
        return self.outputs

    @overridable
    @accumulation.accumulates
    def bprop(self, error: Tensor, alpha: float = 1.0, beta: float = 0.0) -> Tensor | None:
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
            self.tree = self._build_tree(self.inputs)
            self._check_in_place(self.inputs, self.tree)
        operands = self.tree, self.outputs, error, self.deltas, alpha, beta, self._trainable
        self.bprop_assignment(self.be, operands, lambda: self.build_backward(error, alpha, beta))
        return self.deltas

    def build_backward(self, error: Tensor, alpha: float, beta: float) -> tuple[list[Tensor], list[Operand]]:
        """Return the targets of ``bprop`` and the op-trees to assign to them.

        Parameters
        ----------
        error, alpha, beta
            As for ``bprop``.
        """
        tensors, targets = (list(self.parameters), list(self.gradients)) if self._trainable else ([], [])
        if self.deltas is not None:
            tensors.append(self.inputs)
            targets.append(self.deltas)
        tree: Any = self.tree
        autodiff = Autodiff(tree, self.be, error, values={tree: self.outputs}, allow_unused=True)
        values = autodiff.gradient_operands(tensors)
        if self.deltas is not None:
            values[-1] = self.scale_deltas(values[-1], alpha, beta)
            if values[-1] is self.deltas:  # the error is passed on unchanged
                del targets[-1], values[-1]
        layer_checks.check_no_random_numbers(self, values)
        return targets, values

    def prepare_fprop(self, inputs: Tensor, inference: bool) -> Operand:
        """Store the inputs, and return the op-tree of the outputs, which in training is also stored as ``tree``.

        Parameters
        ----------
        inputs, inference
            As for ``fprop``.
        """
        self.set_inputs(inputs, inference)
        if inference:
            return self._as_operand(self.inference_formula(inputs))
        constants = self.formula_constants()
        known_inputs, known_tree, known_constants = self.trees.get(id(inputs), NO_TREE)
        is_known = known_inputs is inputs  # in a copy of the layer, ids are those of the original
        is_same = constants is not None and known_constants is not None and same_objects(constants, known_constants)
        if not (is_known and is_same):
            tree = self._build_tree(inputs)
            if not (is_known and is_same_expression(tree, known_tree)):  # else keep it: its assignments are compiled
                self._check_in_place(inputs, tree)
                if len(self.trees) >= MAX_CACHED_ASSIGNMENTS:
                    self.trees.clear()
                known_tree = tree
            self.trees[id(inputs)] = inputs, known_tree, constants
        result: Operand = known_tree
        self.tree = known_tree
        return result

    def _build_tree(self, inputs: Tensor) -> OpTreeNode:
        """Return ``formula(inputs)`` as an op-tree that ``bprop`` can differentiate."""
        tree = self._as_operand(self.formula(inputs))
        return tree if isinstance(tree, OpTreeNode) else tree * 1

    def _as_operand(self, tree: object) -> Operand:
        """Return the value of a formula as a tensor or op-tree. TypeError if it is neither, nor an Array."""
        operand = getattr(tree, "operand", tree)  # of an array of neonlite.array_api
        if not isinstance(operand, Operand):
            raise TypeError(f"{self.name}: expected an op-tree from formula(x), got {describe(tree)}.")
        return operand

    def _check_in_place(self, inputs: Tensor, tree: OpTreeNode) -> None:
        """Raise ValueError if ``bprop`` would need inputs that the outputs overwrite."""
        if not self.owns_output and type(self).bprop is Layer.bprop:
            layer_checks.check_in_place(self, inputs, tree)

    def set_inputs(self, inputs: Tensor, inference: bool) -> None:
        """Check and store the inputs, and that ``bprop`` can follow unless ``inference`` is set.

        Parameters
        ----------
        inputs, inference
            As for ``fprop``.
        """
        self.check_inputs(inputs)
        vars(self).update(inputs=inputs, tree=None, can_backprop=not inference)  # faster than three assignments

    # --- position in the network ---

    @property
    def prev_layer(self) -> Layer | None:
        """The previous layer, or None. Setting it also sets ``needs_deltas``, to False for None and False."""
        return self._prev_layer

    @prev_layer.setter
    def prev_layer(self, layer: Layer | bool | None) -> None:
        self.needs_deltas = layer is not None and layer is not False
        self._prev_layer = layer if isinstance(layer, Layer) else None  # neon's scripts set True to compute deltas

    def get_terminal(self) -> Terminal:
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

    @property
    def root(self) -> Layer:
        """The network that this layer belongs to, or the layer itself."""
        layer: Layer = self
        while layer.container is not None:
            layer = layer.container
        return layer

    # --- training ---

    @property
    def trainable(self) -> bool:
        """Whether the parameters are trained; setting it plans the backward pass again."""
        return self._trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        layer_methods.set_trainable([self], value)

    @property
    def trains_parameters(self) -> bool:
        """Whether ``bprop`` computes gradients of parameters, of this layer or of layers in it."""
        return self._trainable and self.has_params

    # --- methods defined in other modules ---

    __call__ = layer_methods.infer
    accumulates = staticmethod(accumulation.accumulates)
    set_acc_on = accumulation.set_acc_on
    check_accumulation = accumulation.check_accumulation
    check_configured = layer_checks.check_configured
    check_can_backprop = layer_checks.check_can_backprop
    check_error = layer_checks.check_error
    check_inputs = layer_checks.check_inputs
    check_tensor = layer_checks.check_tensor
    record_bprop = deltas.record_bprop
    scale_deltas = deltas.scale_deltas
    set_deltas = deltas.set_deltas
    check_seq_len = layer_methods.check_seq_len
    set_batch_size = layer_methods.set_batch_size
    set_seq_len = layer_methods.set_seq_len
    shape_for_seq_len = layer_methods.shape_for_seq_len
    summary = summarize
    __repr__ = layer_methods.layer_repr
    __str__ = layer_methods.layer_str
    nested_str = layer_methods.nested_str
    repr_details = layer_methods.repr_details
