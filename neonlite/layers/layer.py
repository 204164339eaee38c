"""Layer base class: shapes, buffers, forward and backward pass; fprop and bprop derived from a formula.

Data has the shape (F, N): features by columns, with the minibatch as the last axis. A layer is used in four steps:
``configure`` infers shapes, ``allocate`` and ``allocate_deltas`` allocate buffers, ``fprop`` computes the outputs, and
``bprop`` computes the gradients of the parameters and, from the error of the outputs, the error of the inputs (the
*deltas*).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Concatenate, ParamSpec, Self, TypeAlias, TypeVar

from neonlite import name_hints, tree_structure
from neonlite.autodiff import Autodiff
from neonlite.backend import NervanaObject, Tensor, concurrency, objects, validation
from neonlite.backend.batch_size import require_batch_size
from neonlite.files import printable
from neonlite.layers import buffers
from neonlite.layers.inference import InferenceProgram, inference
from neonlite.layers.summary import Summary, summarize
from neonlite.layers.weights import WeightOwner, accumulates
from neonlite.messages import describe
from neonlite.optree import Operand, OpTreeNode, postorder
from neonlite.typing import HasShape, LayerShape, LayerShapes

LayerInput: TypeAlias = "Layer | HasShape | LayerShapes"  # the argument of ``Layer.configure``
Terminal: TypeAlias = "Layer | list[Terminal]"  # the last layer of a network, or of each of its branches
USE_CALL = "Use layer(x) and nl.Autodiff"
L = TypeVar("L")
P = ParamSpec("P")
R = TypeVar("R")


def overridable(method: Callable[Concatenate[L, P], R]) -> Callable[Concatenate[L, ...], R]:
    """Decorate a method that subclasses may override with fewer parameters, as neon's layers do."""
    return method


@name_hints.add_hints(name_hints.LAYER)
class Layer(WeightOwner):
    """Base class of layers, which map inputs (F, N) to outputs (K, N).

    Subclasses implement ``configure`` and ``formula``; ``fprop`` and ``bprop`` are derived from the formula. Shapes
    omit the batch dimension: F, (F, T) with time steps, or (C, H, W).

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
    random_numbers : list of Tensor
        The random numbers that the last training ``fprop`` has drawn, and ``bprop`` reads.
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
    takes_images = False  # whether ``formula`` takes images with five axes as well, and returns such
    can_compute_deltas = True  # False if the inputs have none, such as token ids
    has_formula = True  # whether ``formula`` reads its argument and parameters only, and no buffers of ``fprop``
    gradient_reducer: Any = None  # of a container: sums gradients over several processes, during ``Model.fit``
    result_attributes: tuple[str, ...] = ("tree", "random_numbers")  # they do not affect the computation
    unread_attributes: tuple[str, ...] = (  # attributes that no formula reads: of fprop and bprop
        *("inputs", "outputs", "deltas", "needs_deltas", "batch_size", "can_backprop", "tree", "random_numbers"),
        *("_buffers", "_views"),
    )

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
        self.container: Layer | Any = None  # that has allocated this layer
        self.batch_size = 0  # of the buffers; 0: they are not allocated
        self._trainable = True
        self.inference_program = InferenceProgram()
        self.can_backprop = False  # whether the last fprop was a training pass
        self.tree: OpTreeNode | Any = None  # training_formula(inputs), if the layer is computed from its formula
        self.random_numbers: list[Tensor] = []
        self.acc_on = False  # whether bprop adds to the gradients
        self.grad_accumulators: list[Tensor] = []  # copies of the gradients to add to

    # --- shapes ---

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
        if isinstance(in_obj, Layer):
            self.prev_layer, in_obj.next_layer = in_obj, self
            self.in_shape = in_obj.out_shape
        else:
            self.in_shape = buffers.shape_of_data(in_obj, self.be.bsz)
        self._check_in_shape(in_obj)
        return self

    def _check_in_shape(self, in_obj: LayerInput) -> None:
        """Raise ValueError unless ``configure(in_obj)`` has set a valid input shape."""
        shape, previous = self.in_shape, self.prev_layer if in_obj is self.prev_layer else None
        if previous is not None and isinstance(shape, list):
            raise ValueError(
                f"{self.name}: expected an input layer with one output, got {previous.name} with the output shapes "
                f"{shape}. Append layers to its branches."
            )
        sizes = (shape,) if isinstance(shape, int) else shape
        if not isinstance(sizes, tuple) or not sizes or not all(isinstance(n, int) and n > 0 for n in sizes):
            source = "" if previous is None else f" from {previous.name}, which is not configured"
            raise ValueError(f"{self.name}: expected an input shape F, (F, T) or (C, H, W), got {shape!r}{source}.")

    def _check_sequence_shape(self) -> tuple[int, int]:
        """Return the input shape; ValueError unless it is (F, T)."""
        if not isinstance(self.in_shape, tuple) or len(self.in_shape) != 2:
            raise ValueError(
                f"{self.name}: expected inputs with time steps, (F, T), such as the outputs of a LookupTable, "
                f"got {self.in_shape}"
            )
        return self.in_shape

    def check_configured(self) -> None:
        """Raise RuntimeError unless ``configure`` has set the shapes."""
        if self.in_shape is None:
            raise self._not_configured()
        if self.out_shape is None:
            raise RuntimeError(
                f"{self.name}: expected {self.classnm}.configure to set out_shape, got None. Set self.out_shape there, "
                "such as to self.in_shape."
            )

    def _not_configured(self) -> RuntimeError:
        """Return the exception for a layer without shapes."""
        return RuntimeError(
            f"{self.name}: expected a configured layer, got one without shapes. Call configure(shape), then "
            "allocate(); for a Model, call model.initialize(shape) with the shape of a row, or fit."
        )

    def check_tensor(self, label: str, x: Tensor, shape: LayerShape | None) -> None:
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
            raise self._not_configured()
        if not isinstance(x, Tensor):
            raise TypeError(
                f"{self.name}: expected {label} as a tensor, got {describe(x)}. Create one with be.array(a)."
            )
        batch_size = self.be.bsz or require_batch_size(self.be, self.name)
        if x.shape != (expected := buffers.tensor_shape(shape, batch_size)):
            steps, rest = divmod(x.shape[1], batch_size)
            has_steps = isinstance(shape, tuple) and len(shape) == x.ndim == 2 and x.shape[0] == shape[0]
            fits = has_steps and steps and not rest
            hint = f" For {steps} time steps call set_seq_len({steps})." if fits else ""
            raise ValueError(
                f"{self.name}: expected {label} of shape {expected} (layer shape {shape}, batch size {batch_size}), "
                f"got {describe(x)}.{hint}"
            )

    def num_samples(self, x: buffers.Tensors) -> int:
        """Return the number of samples N in inputs: their columns, divided by the number of time steps.

        Parameters
        ----------
        x : Tensor or list of Tensor
            The inputs, (F, N) or (F, T N).
        """
        self.check_configured()
        first: Any = x[0] if isinstance(x, list | tuple) and x else x
        shape = self.in_shape[0] if first is not x or isinstance(self.in_shape, list) else self.in_shape
        if not isinstance(first, Tensor):
            self.leaves()[0].check_tensor("inputs", first, shape)
        if not first.shape[1]:
            raise ValueError(f"{self.name}: expected inputs with one column or more, got {describe(first)}.")
        num_columns: int = first.shape[1]
        return max(1, num_columns // buffers.num_steps(shape))  # fprop refuses other numbers of columns

    def make_zero_inputs(self) -> buffers.Tensors:
        """Return inputs of the layer's input shape, filled with zeros."""
        return self.be.iobuf(buffers.iobuf_shape(self.in_shape))

    @property
    def input_shape(self) -> LayerShapes:
        """The shape of the inputs of ``layer(x)``: a list for several inputs."""
        return self.in_shape

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

    def leaves(self) -> list[Layer]:
        """Return all layers that are not containers, in order; for a layer, itself."""
        return [self]

    # --- buffers ---

    @validation.checks_arguments
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
        self.outputs, self.deltas = self.buffer("outputs", self.out_shape, shared=shared_outputs), None
        self.allocate_parameters()

    def allocate_deltas(self, global_deltas: Tensor | None = None) -> None:
        """Allocate the buffer of the deltas, unless this is the first layer. ``bprop`` calls it if there is none.

        Parameters
        ----------
        global_deltas : Tensor, optional
            Buffer to use for the deltas.
        """
        if self.needs_deltas and self.can_compute_deltas:
            self.deltas = self.buffer("deltas", self.in_shape, shared=global_deltas)

    def set_deltas(self, delta_buffers: Sequence[Tensor]) -> None:
        """Use the first of a list of buffers for the deltas, and reverse the list, so that two buffers alternate.

        Parameters
        ----------
        delta_buffers : list of Tensor
            The buffers.
        """
        if self.needs_deltas and self.can_compute_deltas:
            self.allocate_deltas(delta_buffers[0])
            if isinstance(delta_buffers, list):
                delta_buffers.reverse()

    def allocate_buffers(self, accumulate_updates: bool = False) -> None:
        """Allocate all buffers for ``be.bsz``.

        Parameters
        ----------
        accumulate_updates : bool
            As for ``allocate``.
        """
        self.batch_size = 0  # until the end, so that all buffers are allocated again after an error
        if accumulate_updates:
            self.allocate(accumulate_updates=True)
        else:
            self.allocate()  # a custom layer may not accept the argument
        batch_size, self.batch_size = self.batch_size, 0
        self.allocate_deltas()
        self.batch_size = batch_size

    def set_batch_size(self, N: int) -> None:
        """Set ``be.bsz`` and reallocate buffers. Smaller buffers are views of the existing memory.

        Parameters
        ----------
        N : int
            The new batch size.
        """
        self.be.bsz = N
        self.allocate_buffers()

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
        shape, self.batch_size = self.shape_for_seq_len(S), 0
        self.configure(shape)
        self.allocate_buffers()

    def shape_for_seq_len(self, S: int) -> LayerShapes:
        """Return the input shape with S time steps.

        Parameters
        ----------
        S : int
            The number of time steps.
        """
        self.check_seq_len(S)
        return self._check_sequence_shape()[0], S

    def check_seq_len(self, S: int) -> None:
        """Raise ValueError unless S is a positive integer and the layer is configured.

        Parameters
        ----------
        S : int
            The number of time steps.
        """
        validation.integer(f"{self.name}: the number of time steps", S)
        if self.in_shape is None:
            raise ValueError(str(self._not_configured()))

    # --- forward pass ---

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

    @overridable
    def fprop(self, inputs: Tensor, inference: bool = False, beta: float = 0.0) -> Tensor:
        """Compute the outputs, ``training_formula(inputs) + beta outputs``.

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
        if tree.shape != self.outputs.shape:
            shape = self.outputs.shape
            raise ValueError(f"{self.name}: expected a formula of the shape {shape}, got {describe(tree)}.")
        self.outputs[:] = tree + beta * self.outputs if beta else tree
        return self.outputs

    def set_inputs(self, inputs: Tensor, inference: bool) -> None:
        """Check and store the inputs, and that ``bprop`` can follow unless ``inference`` is set.

        Parameters
        ----------
        inputs, inference
            As for ``fprop``.
        """
        tree_structure.refuse_in_trace("a layer's fprop", USE_CALL)
        self.check_inputs(inputs)
        vars(self).update(inputs=inputs, tree=None, can_backprop=not inference)  # faster than three assignments

    def check_inputs(self, inputs: Tensor) -> None:
        """Raise an error unless these are valid inputs and the layer is allocated.

        Parameters
        ----------
        inputs : Tensor
            The argument of ``fprop``.
        """
        self.check_tensor("inputs", inputs, self.in_shape)
        if self.batch_size not in (0, self.be.bsz):
            raise ValueError(
                f"{self.name}: expected the batch size {self.batch_size} of its buffers, got be.bsz = {self.be.bsz}. "
                f"Call set_batch_size({self.be.bsz})."
            )
        if self.outputs is None:
            raise RuntimeError(f"{self.name}: expected allocated buffers, got none. Call allocate() before fprop.")

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
        self.tree = self._build_tree(
            self.training_formula if self._follows_formula("training_formula") else self.formula
        )
        return self.tree

    def _build_tree(self, formula: Callable[[Any], Operand]) -> OpTreeNode:
        """Return ``formula(inputs)`` as an op-tree that ``bprop`` can differentiate, with random numbers as tensors."""
        tree = self._as_operand(formula(self.inputs))
        tree, self.random_numbers = draw_random_numbers(tree if isinstance(tree, OpTreeNode) else tree * 1)
        return tree

    def _follows_formula(self, name: str) -> bool:
        """Return whether a formula is that of the base class, or of the class that defines ``formula`` or a later one.

        Parameters
        ----------
        name : str
            ``training_formula`` or ``inference_formula``.
        """
        classes: Any = type(self).__mro__
        formula, other = (objects.defining_class(type(self), x) for x in ("formula", name))
        return other is Layer or classes.index(other) <= classes.index(formula)

    def _as_operand(self, tree: object) -> Operand:
        """Return the value of a formula as a tensor or op-tree. TypeError if it is neither, nor an Array."""
        operand = getattr(tree, "operand", tree)  # of an array of neonlite.array_api
        if not isinstance(operand, Operand):
            raise TypeError(f"{self.name}: expected an op-tree from formula(x), got {describe(tree)}.")
        return operand

    # --- the layer as an expression ---

    def training_formula(self, x: Operand) -> Operand:
        """Return the outputs in training as an op-tree of the inputs. Default: ``formula(x)``.

        Layers with random numbers draw them in the op-tree, and those with running statistics assign them.

        Parameters
        ----------
        x : Tensor or OpTreeNode
            The inputs, (F, N).
        """
        return self.formula(x)  # type: ignore[arg-type]

    @property
    def is_expression(self) -> bool:
        """Whether the outputs are an op-tree of the inputs, with its derivatives: those of the class's formula.

        They are not if a custom class has an fprop, a bprop or an allocate, unless the formula is of a later class; nor
        if the formulas for training and inference are of an earlier class.
        """
        follows = all(self._follows_formula(name) for name in ("training_formula", "inference_formula"))
        is_defined = type(self).formula is not Layer.formula and self.has_formula
        return is_defined and follows and self._passes_follow("formula")

    def _passes_follow(self, name: str) -> bool:
        """Return whether no fprop, bprop or allocate of the user replaces or completes what a method defines."""
        classes: Any = type(self).__mro__
        method, *passes = (objects.defining_class(type(self), x) for x in (name, "fprop", "bprop", "allocate"))
        is_replaced = "fprop" in vars(self) or "bprop" in vars(self)
        return not is_replaced and all(
            objects.is_builtin(c) or classes.index(method) < classes.index(c) for c in passes
        )

    def build_tree(self, x: buffers.Operands, training: bool) -> buffers.Trees:
        """Return the outputs as an op-tree of inputs of the layer's shape. Images may have five axes, (C, D, H, W, N).

        Parameters
        ----------
        x : Tensor or OpTreeNode, or a list of them
            The inputs.
        training : bool
            As for ``layer(x)``.
        """
        formula: Callable[..., Operand] = self.training_formula if training else self.inference_formula
        given: Any = x
        if not (self.takes_images and objects.has_builtin_method(type(self), "formula")):
            given = [buffers.flat(y) for y in given] if isinstance(given, list | tuple) else buffers.flat(given)
        return self._as_operand(formula(given))

    def __call__(self, x: buffers.Operands, training: bool = False) -> buffers.Trees:
        """Return the outputs as an op-tree of the inputs and the parameters, for any number of samples N.

        The op-tree can be printed, drawn, evaluated (``.get()``) and differentiated, with respect to ``parameters`` and
        to the inputs. A layer that is not configured is configured for these inputs. Buffers of ``fprop`` and
        ``be.bsz`` are not affected. Recurrent states start at ``init_state`` if it is set; else in training at those of
        the previous minibatch of N samples, unless there are ``reset_cells``, and at inference at zero.

        Parameters
        ----------
        x : Tensor or OpTreeNode, or a list of them
            The inputs: (F, N); (F, T N) with time steps; images also as (C, H, W, N). A list for several inputs.
        training : bool, default False
            Whether to return the outputs in training: with dropout, and with normalization by the statistics of the
            minibatch. Running statistics and recurrent states move (at once, or when the function of ``jit`` runs).

        Returns
        -------
        OpTreeNode, or list of OpTreeNode
            The outputs, (K, N) or (K, T N).

        Raises
        ------
        ValueError
            If the shape of the inputs is not that of the layer.

        Examples
        --------
        >>> import neonlite as nl
        >>> from neonlite.layers import Affine, Sequential
        >>> be = nl.gen_backend("cpu")
        >>> net = Sequential([Affine(2, init=[[1, 0], [0, 2]], activation="relu", bias=[[0], [1]])])
        >>> tree = net(be.array([[3], [-1]], name="x"))
        >>> tree.get()
        array([[3.],
               [0.]], dtype=float32)
        """
        operands: list[Any] = [getattr(y, "operand", y) for y in (x if isinstance(x, list | tuple) else [x])]
        for y in operands:
            if not isinstance(y, Operand):
                raise TypeError(
                    f"{self.name}: expected a tensor or op-tree, got {describe(y)}. Create a tensor with be.array(a)."
                )
        if self.in_shape is None:
            found = [y.shape[:-1] if y.ndim > 2 else y.shape[0] for y in operands]
            with tree_structure.untraced():
                self.configure(found if isinstance(x, list | tuple) else found[0])
        self.check_configured()
        with tree_structure.untraced():
            self.allocate_parameters()
        shape = self.input_shape
        shapes = shape if isinstance(shape, list) else [shape]
        if len(operands) != len(shapes):
            count = f"a list of {len(shapes)} inputs" if shape is shapes else "one input"
            raise ValueError(f"{self.name}: expected {count}, for {shape}, got {describe(*operands) or 'none'}.")
        inputs = [as_columns(self.name, y, size) for y, size in zip(operands, shapes, strict=True)]
        given: Any = inputs if shape is shapes else inputs[0]
        if self.is_expression:
            tree_structure.use_in_trace(self)
            trees = self.build_tree(given, training)
            return [buffers.flat(tree) for tree in trees] if isinstance(trees, list | tuple) else buffers.flat(trees)
        if training:
            names = ", ".join(leaf.name for leaf in self.leaves() if not leaf.is_expression)
            raise NotImplementedError(
                f"{self.name}: expected layers with a formula for training=True, got {names or self.classnm}, with "
                "fprop and bprop only. Call these, or use Model.fit."
            )
        return self._evaluate(given)

    def allocate_parameters(self) -> None:
        """Allocate the parameters and the other tensors that the formula reads, unless they are allocated."""

    @concurrency.defers_interrupt
    def _evaluate(self, x: buffers.Tensors) -> buffers.LayerOutputs:
        """Return the outputs at inference, by ``fprop`` of a copy with its own buffers."""
        inputs: Any = buffers.copy_tensors([as_tensor(y) for y in x] if isinstance(x, list | tuple) else as_tensor(x))
        with self.be.lock, self.be.batch_size(self.num_samples(inputs)), inference(self) as run:
            outputs: buffers.Tensors = buffers.copy_tensors(run(inputs))
            return outputs

    # --- backward pass ---

    @overridable
    @accumulates
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
        tree_structure.refuse_in_trace("a layer's bprop", USE_CALL)
        if error is None and not self.trains_parameters:
            return None  # the next layer has no deltas, such as LookupTable
        self.check_error(error)
        if self.deltas is None:
            self.allocate_deltas()
        if self.tree is None:  # a subclass computes its outputs without the formula
            self.tree = self._build_tree(self.formula)
        tensors, targets = self.gradient_targets()
        if self.deltas is not None:
            tensors.append(self.inputs if isinstance(self.inputs, Tensor) else self.inputs[0])
            targets.append(self.deltas)
        values = self.build_gradients(error, tensors)
        if self.deltas is not None:
            delta = values[-1] if alpha == 1 else alpha * values[-1]
            values[-1] = delta if beta == 0 else delta + beta * self.deltas
        self.be.assign(targets, values)
        return self.deltas

    def gradient_targets(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the tensors besides the inputs by which ``bprop`` differentiates, and those for the gradients."""
        return (list(self.parameters), list(self.gradients)) if self._trainable else ([], [])

    def sum_tensors(self, name: str, tensors: Sequence[Tensor | None]) -> Tensor | None:
        """Return the sum of tensors of the shape of the inputs, of which None are left out; None if there are none.

        Parameters
        ----------
        name : str
            Name of the buffer of the sum, if there are several.
        tensors : sequence of Tensor or None
            The tensors.
        """
        present: list[Any] = [x for x in tensors if x is not None]
        if len(present) < 2:
            return present[0] if present else None
        total = self.buffer(name, self.in_shape)
        total[:] = sum(present[1:], present[0])
        return total

    def build_gradients(self, error: Tensor, tensors: Sequence[Tensor]) -> list[Operand]:
        """Return the gradients with respect to parameters and inputs as op-trees.

        Parameters
        ----------
        error : Tensor
            As for ``bprop``.
        tensors : sequence of Tensor
            The parameters that are trained, and the inputs if there are deltas.
        """
        tree: Any = self.tree
        return Autodiff(tree, self.be, error, allow_unused=True).gradient_operands(tensors)

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

    accumulates = staticmethod(accumulates)

    @property
    def trainable(self) -> bool:
        """Whether the parameters are trained."""
        return self._trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        set_trainable([self], value)

    @property
    def trains_parameters(self) -> bool:
        """Whether ``bprop`` computes gradients of parameters, of this layer or of layers in it."""
        return self._trainable and self.has_params

    @property
    def error_factors(self) -> list[float]:
        """The factors of the errors of the outputs: the ``alphas`` of a Tree that is the last layer, else 1."""
        return [1.0] * (len(self.out_shape) if isinstance(self.out_shape, list) else 1)

    @property
    def layers_to_optimize(self) -> list[Layer]:
        """The layers with parameters that are trained."""
        return [layer for layer in self.leaves() if layer.trains_parameters]

    # --- text ---

    def summary(
        self,
        in_obj: LayerInput | None = None,
        cost: NervanaObject | None = None,
        optimizer: NervanaObject | None = None,
    ) -> Summary:
        """Return shapes, parameters, FLOPs and memory of training, without running it. The network is not changed.

        The memory is that of minibatches of ``be.bsz`` rows, or of 32 if it is not set.

        Parameters
        ----------
        in_obj : optional
            The input shape, for a network that is not configured.
        cost : GeneralizedCost or Multicost, optional
            A cost to include.
        optimizer : Optimizer, optional
            An optimizer to include.
        """
        return summarize(self, in_obj, cost, optimizer)

    def __repr__(self) -> str:
        """Return ``repr(layer)``: the name, shapes and number of parameters."""
        return f"{self.classnm}({', '.join([repr(self.name), *self.repr_details()])})"

    def repr_details(self) -> list[str]:
        """Return what ``repr`` shows besides the name: shapes and number of parameters."""
        if self.out_shape is None:
            return ["not configured"]
        count = self.num_parameters
        parameters = [f"{count:,} parameter{'s' * (count != 1)}"] if count else []
        return [f"{self.in_shape} -> {self.out_shape}", *parameters]

    def __str__(self) -> str:
        """Return ``str(layer)``: the class, name and shapes."""
        return f"{self.classnm} Layer '{printable(self.name, keep='')}': {self.in_shape} -> {self.out_shape}"

    def nested_str(self, level: int = 0) -> str:
        """Return the layer as a line of text.

        Parameters
        ----------
        level : int
            Depth of indentation.
        """
        return f"{'  ' * level}{self}"


def as_tensor(x: Any) -> Tensor:
    """Return an operand as a tensor: an op-tree is evaluated."""
    result: Tensor = x.astensor() if isinstance(x, OpTreeNode) else x
    return result


def as_columns(where: str, x: Operand, shape: Any) -> Operand:
    """Return inputs of a layer shape as columns, (F, N) or (F, T N); ValueError for another shape."""
    sizes = shape if isinstance(shape, tuple) else (shape,)
    rows, steps = buffers.num_elements(shape) // buffers.num_steps(shape), buffers.num_steps(shape)
    if x.ndim > 2 and x.shape[:-1] == sizes:
        x = x.backend.reshape(x, (rows, -1))
    if x.ndim != 2 or x.shape[0] != rows or x.shape[1] % steps:
        expected = f"({rows}, N)" if steps == 1 else f"({rows}, {steps} N)"
        way_out = (
            "For T time steps, call set_seq_len(T)."
            if x.ndim == 2 and x.shape[0] == rows
            else "Each column is a sample: transpose rows (x.T). For inputs of another shape, create a new network: "
            "the first ones set it."
        )
        raise ValueError(
            f"{where}: expected inputs {expected}, for the layer shape {shape}, got {describe(x)}. {way_out}"
        )
    if not x.shape[1]:
        raise ValueError(f"{where}: expected inputs with one column or more, got {describe(x)}.")
    return x


def draw_random_numbers(tree: OpTreeNode) -> tuple[OpTreeNode, list[Tensor]]:
    """Return an op-tree with new tensors of random numbers in the place of random nodes, and these tensors."""
    leaves = tree.intrinsic_key_maps()[1] if tree.leaves is None else tree.leaves
    sources = {id(x) for x in leaves.values() if type(x) is tree_structure.RandomSource}
    if not sources:
        return tree, []
    nodes = [x for x in postorder(tree) if id(x.left) in sources]
    if sources != {id(x.left) for x in nodes}:  # some are in the formula of a composite op
        tree = tree.open()
        nodes = [x for x in postorder(tree) if id(x.left) in sources]
    drawn = [node.astensor() for node in nodes]
    return tree_structure.rebuild(tree, {id(node): tensor for node, tensor in zip(nodes, drawn, strict=True)}), drawn


def set_trainable(layers: Iterable[Layer], value: bool) -> None:
    """Set whether the parameters of layers, and of layers in them, are trained.

    Parameters
    ----------
    layers : iterable of Layer
        Layers and containers.
    value : bool
        Whether they are trained.
    """
    roots = {}
    for layer in layers:
        for leaf in layer.leaves():
            leaf._trainable = validation.boolean(f"{leaf.name}.trainable", value)
        roots[id(layer.root)] = layer.root
    for root in roots.values():
        if root.gradient_reducer is not None:
            root.gradient_reducer.plan()
