"""Recurrent layers, Recurrent, LSTM and GRU, and reductions of their outputs to one vector: last step, sum and mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

from neonlite.backend import Tensor
from neonlite.backend.validation import integer, warn
from neonlite.initializers import GlorotUniform, Orthonormal
from neonlite.layers.activation import ActivationLike, check_activation
from neonlite.layers.buffers import copy_tensors, with_layout
from neonlite.layers.layer import Layer, LayerInput
from neonlite.layers.parameter import InitLike, ParameterLayer, ParameterSpec, fill_parameter
from neonlite.layers.unroll import Program, Step, StepUnroll, find_fused_primitive, make_unroll
from neonlite.layers.weights import accumulates
from neonlite.messages import describe
from neonlite.ops.recurrent import build_variadic, gru_step, lstm_step, rnn_step
from neonlite.optree import Operand
from neonlite.transforms import Identity, Logistic, Rectlin, Tanh, Transform
from neonlite.tree_structure import untraced
from neonlite.typing import LayerShape, NativeArray

STATE = "recurrent state: "  # begins the names of its tensors among the buffers of a layer

X = TypeVar("X", bound=Operand)


class RecurrentBase(ParameterLayer):
    """Base class of recurrent layers: (nin, T) -> (output_size, T), or (2 output_size, T) if bidirectional.

    Images (C, H, W) are read column by column, as the sequence (C H, W).

    All weights are one tensor ``W``, (num_directions (nin + output_size + 1), num_gates output_size). Its rows hold
    ``W_input`` (num_gates output_size, nin), ``W_recur`` (num_gates output_size, output_size) and ``b``
    (num_gates output_size, 1), one after another; these attributes are reshaped views. The biases start at 0.

    The initial state of a minibatch is the final state of the previous one, for ``fprop`` and for ``layer(x,
    training=True)``. It is zero with ``reset_cells``, after a change of the batch size or of the number of steps, after
    ``reset()``, and for ``layer(x)``. Gradients do not flow across minibatches.

    Parameters
    ----------
    output_size : int
        Number of elements of a state.
    init : initializer, array, Tensor or str, optional
        Fills each gate's part of W_input, and of W_recur without ``init_inner``. Default: ``GlorotUniform()``, with
        ``Orthonormal(1)`` for W_recur.
    init_inner : initializer, array, Tensor or str, optional
        Fills each gate's part of W_recur.
    activation : Transform or str
        Activation function whose derivative can be computed from its output, such as ``Logistic()``, or its name.
        Default: ``Tanh()``.
    reset_cells : bool
        Start every minibatch from zero states.
    name : str, optional
        Name of the layer.
    """

    num_gates = 1
    state_names: tuple[str, ...] = ("h",)  # states that a step passes to the next one
    saved_names: tuple[str, ...] = ()  # other values of each step that the backward pass reads
    W_input: Tensor
    W_recur: Tensor
    b: Tensor
    dW_input: Tensor
    dW_recur: Tensor
    db: Tensor
    recurrent_operands: tuple[str, ...] = ()  # which of saved_names are multiplied by W_recur, as h is
    num_directions = 1  # 2: bidirectional
    fused_kind = ""  # name of the backend's fused primitive; "" if there is none

    def __init__(
        self,
        output_size: int,
        init: InitLike | None = None,
        init_inner: InitLike | None = None,
        activation: ActivationLike | None = None,
        reset_cells: bool = False,
        name: str | None = None,
    ) -> None:
        if init is None:
            init, init_inner = GlorotUniform(), Orthonormal(1.0) if init_inner is None else init_inner
        super().__init__(init, name)
        self.output_size = self.nout = integer(f"{self.name}: output_size", output_size)
        self.init_inner, self.reset_cells = self.initial_values(init_inner), bool(reset_cells)
        self.activations: list[Transform] = []
        self.activation = self.check_activation("activation", Tanh() if activation is None else activation)
        self.split_inputs = False
        self.nsteps = 0  # the number of time steps; 0 before ``configure``
        self.saved_batch_size = 0  # of a state from set_state from which no fprop has started yet; 0 if there is none
        self.unrolls: list[Any] = []  # an Unroll for each direction
        self.write_state: Any = None  # assigns the final states of the forward direction to the recurrent state
        self.init_state: Any = None  # the default of fprop's init_state: another layer's final states
        # {layer: its initial states as op-trees, and after it has been built its final ones}, while a network is built
        self.passed_states: dict[Layer, list[Operand]] | None = None
        self.final_errors: list[Sequence[Tensor]] = []  # from each layer that started with this one's final states

    def check_activation(self, label: str, transform: object) -> Transform:
        """Return a transform, a new one for its name; ValueError if its derivative needs its input.

        Parameters
        ----------
        label : str
            Name of the argument, for errors.
        transform : Transform or str
            The activation function.

        Raises
        ------
        TypeError
            If it is not a transform.
        """
        activation = check_activation(f"{self.name}: {label}", transform, "Tanh()")
        if not activation.has_grad_from_output:
            raise ValueError(
                f"{self.name}: expected as {label} a transform whose derivative follows from its output, such as "
                f"Tanh(), Logistic() or Rectlin(), got {activation.classnm}"
            )
        self.activations.append(activation)
        return activation

    # --- one step, defined by subclasses ---

    def build_step(self, step: Step) -> Program:
        """Return the program that computes ``step.current`` from ``step.gates`` and ``step.previous``.

        Parameters
        ----------
        step : Step
            The tensors of the step.

        Returns
        -------
        list of callables
            The program, to be called in order.
        """
        raise NotImplementedError(f"{self.classnm}: implement build_step(step), the program of one step")

    def build_step_backward(self, step: Step) -> Program:
        """Return the program that computes ``step.dz`` and replaces the state errors by those of the previous states.

        Parameters
        ----------
        step : Step
            The tensors of the step.

        Returns
        -------
        list of callables
            The program, to be called in order.
        """
        raise NotImplementedError(f"{self.classnm}: implement build_step_backward(step), one step of the backward pass")

    def weight_gradient_pairs(self, unroll: StepUnroll) -> list[tuple[slice, Sequence[tuple[Tensor, Tensor]]]]:
        """Return the factors of the gradient of W_recur.

        Parameters
        ----------
        unroll : StepUnroll
            One direction of the layer.

        Returns
        -------
        list of (slice, pairs)
            For rows of W_recur, pairs (dz, operand) whose products ``dz operand^T`` add up to the gradient.
        """
        return [(slice(None), unroll.hidden_error_pairs())]

    def step_formula(self, z: Operand, previous: Sequence[Operand], W_recur: Tensor) -> list[Operand]:
        """Return the states of one step as op-trees, h first.

        Parameters
        ----------
        z : OpTreeNode
            ``W_input x_t + b``, (num_gates output_size, N).
        previous : list of Tensor or OpTreeNode
            The states of the previous step, (output_size, N).
        W_recur : Tensor
            The recurrent weights of the direction.
        """
        raise NotImplementedError(f"{self.classnm}: implement step_formula(z, previous, W_recur), one step as op-trees")

    @property
    def has_formula(self) -> bool:  # type: ignore[override]
        """Whether the class has a formula of one step, and no later class another program."""
        classes = type(self).__mro__
        formula, program = (
            next(i for i, c in enumerate(classes) if name in vars(c)) for name in ("step_formula", "build_step")
        )
        return classes[formula] is not RecurrentBase and formula <= program

    def formula(self, x: Operand) -> Operand:
        """Return h of all steps, from zeros or ``init_state``."""
        return self.run_directions(x, self.unroll, training=False)

    def training_formula(self, x: Operand) -> Operand:
        """Return h of all steps from the recurrent state, and assign the states after the last step to it."""
        return self.run_directions(x, self.unroll, training=True)

    def unroll(self, x: Operand, direction: int, initial: Sequence[Operand]) -> tuple[Operand, list[Operand]]:
        """Return h of all steps of one direction, (output_size, T N), and the states after the last step, as op-trees.

        It is an op of the table if there is one of the cell and its activation functions, else a tree of all steps.

        Parameters
        ----------
        x : Tensor or OpTreeNode
            The inputs, (nin, T N).
        direction : int
            0 forward in time, 1 backward in time.
        initial : sequence of Tensor or OpTreeNode
            The initial states, (output_size, N); zeros for those that are missing.
        """
        be, n, names = self.be, x.shape[1] // self.nsteps, [name_of_function(f) for f in self.functions]
        W_input, W_recur, b = self.split_weights(self.W, direction)
        x = self.slice_direction(x, direction)
        passes_cells = self.passed_states is not None and len(self.state_names) > 1  # with gradients of c
        if not self.cell or "" in names or passes_cells:
            return self.scan(be.dot(W_input, x) + b, direction, initial)
        zeros = [be.zeros((self.nout, n), name="zeros")] * (len(self.state_names) - len(initial))
        options: dict[str, Any] = dict(zip(("activation", "gate_activation"), names, strict=False))
        operands = x, W_input, W_recur, b, *initial, *zeros
        y: Any = getattr(be, self.cell)(*operands, steps=self.nsteps, reverse=bool(direction), **options)
        final = [take_block(y, (0, self.nout), (0 if direction else y.shape[1] - n, n))]
        if self.cell == "lstm":
            final.append(build_variadic(be, "lstm_state", y, *operands, **y.attrs))
        return y, final

    def run_directions(
        self,
        x: Operand,
        run: Callable[[Operand, int, Sequence[Operand]], tuple[Operand, list[Operand]]],
        training: bool,
    ) -> Operand:
        """Return h of all steps of all directions as an op-tree; in training, assign the final states.

        Parameters
        ----------
        x : Tensor or OpTreeNode
            The inputs.
        run : callable
            ``run(x, direction, initial)`` returns h of all steps of one direction, and the states after the last step.
        training : bool
            Whether to start from the recurrent state, and to assign the states after the last step to it.
        """
        x = self.be.reshape(x, (self.nin, -1))
        n = x.shape[1] // self.nsteps
        initial = self.initial_operands(n, training)
        results = [run(x, k, () if k else initial) for k in range(self.num_directions)]  # backward in time from zeros
        final = results[0][1]
        if self.passed_states is not None:
            self.passed_states[self] = final
        if training:
            self.be.assign(self.state_tensors(n), final)
        outputs = [h for h, _ in results]
        return outputs[0] if len(outputs) == 1 else self.be.concat(outputs, axis=0)

    def initial_operands(self, n: int, training: bool) -> Sequence[Operand]:
        """Return the initial states of n sequences, from ``passed_states``, ``init_state`` or the recurrent state.

        Parameters
        ----------
        n : int
            The number of sequences.
        training : bool
            Whether to start from the recurrent state if no others are given.
        """
        given: Any = self.init_state if self.passed_states is None else self.passed_states.get(self)
        if given is None:
            return copy_tensors(self.recurrent_state(n)) if training and not self.reset_cells else []  # constants
        states = list(given) if isinstance(given, list | tuple) else [given]
        if any(state.shape != (self.nout, n) for state in states):
            raise ValueError(f"{self.name}: expected initial states {(self.nout, n)}, got {describe(*states)}.")
        return states

    @property
    def functions(self) -> list[Transform]:
        """The activation functions of a step."""
        return [self.activation]

    @property
    def cell(self) -> str:
        """The op of the table that computes the steps of the class; "" if it has other steps."""
        return CELL_OF_STEP.get(type(self).step_formula, "")

    # --- shapes, buffers, fprop and bprop ---

    def configure(self, in_obj: LayerInput) -> Self:
        super().configure(in_obj)
        for activation in self.activations:
            activation.be = self.be
        if not isinstance(self.in_shape, tuple) or len(self.in_shape) not in (2, 3):
            raise ValueError(
                f"{self.name}: {self.classnm} expected inputs (F, T), of F features and T time steps, or images "
                f"(C, H, W), got the shape {self.in_shape}. Give the data set a shape (F, T), or put Reshape((F, T)) "
                "before this layer"
            )
        *sizes, steps = self.in_shape
        if self.nsteps not in (0, steps):
            self.reset()
        self.nsteps = steps
        self.nin = math.prod(sizes)
        if self.split_inputs and self.nin % 2:
            raise ValueError(
                f"{self.name}: split_inputs expected an even number of input features, to halve them, got {self.nin}"
            )
        self.nin_per_direction = self.nin // 2 if self.split_inputs else self.nin
        self.out_shape = (self.num_directions * self.nout, self.nsteps)
        rows = self.num_directions * (self.nin_per_direction + self.nout + 1)
        self.weight_shape = (rows, self.num_gates * self.nout)
        return self

    def parameter_specs(self) -> list[ParameterSpec]:
        return [ParameterSpec("W", "dW", self.weight_shape, RecurrentInitializer(self))]

    def allocate_parameters(self) -> None:
        super().allocate_parameters()
        for direction, suffix in enumerate(("",) if self.num_directions == 1 else ("_f", "_b")):
            known = vars(self).get(f"W_input{suffix}")
            if known is not None and known.allocation is self.W.allocation:
                continue
            for name, part in zip(("W_input", "W_recur", "b"), self.split_weights(self.W, direction), strict=True):
                vars(self)[f"{name}{suffix}"] = part
            for name, part in zip(("dW_input", "dW_recur", "db"), self.split_weights(self.dW, direction), strict=True):
                vars(self)[f"{name}{suffix}"] = part

    def allocate(self, shared_outputs: Tensor | None = None, accumulate_updates: bool = False) -> None:
        if self.saved_batch_size != self.be.bsz and (self.unrolls or not self.saved_batch_size):
            self.reset()  # but keep a state from set_state; before the first allocation of any batch size
        super().allocate(shared_outputs, accumulate_updates)
        self.allocate_parameters()
        self.unrolls = [make_unroll(self, direction) for direction in range(self.num_directions)]
        common = {*self.input_layouts} & {*getattr(self.next_layer, "input_layouts", ())}
        self.layout = "columns" if "columns" in common and shared_outputs is None else "CHWN"
        self.outputs = with_layout(self.outputs, self.layout)
        self.write_state = self.be.compile(self.state_tensors(self.be.bsz), self.unrolls[0].final_states)

    @property
    def input_layouts(self) -> tuple[str, ...]:
        """The layouts of inputs, deltas and outputs: "columns", too, if a fused primitive computes the layer."""
        is_fused = self.num_directions == 1 and find_fused_primitive(self, 0) is not None
        return ("CHWN", "columns") if is_fused else ("CHWN",)

    def split_weights(self, W: Tensor, direction: int) -> list[Tensor]:
        """Return the views W_input, W_recur and b of one direction.

        Parameters
        ----------
        W : Tensor
            The weights, or a tensor of their shape, such as their gradient.
        direction : int
            0 forward in time, 1 backward in time.

        Returns
        -------
        list of Tensor
            (num_gates output_size, nin), (num_gates output_size, output_size) and (num_gates output_size, 1).
        """
        n, F, N = self.nout, self.nin_per_direction, self.num_directions
        starts = (direction * F, N * F + direction * n, N * (F + n) + direction)
        return [W[i : i + m].reshape(self.num_gates * n, m) for i, m in zip(starts, (F, n, 1), strict=True)]

    def reset(self) -> None:
        """Start the next minibatch from zero states."""
        self.saved_batch_size = 0
        for (name, _), t in self._buffers.items():
            if name.startswith(STATE) and t.backend is self.be:
                t.fill(0)

    def fprop(  # neon's order
        self,
        inputs: Tensor,
        inference: bool = False,
        init_state: Tensor | Sequence[Tensor] | None = None,
        beta: float = 0.0,
    ) -> Tensor:
        """Compute the states of all steps.

        Parameters
        ----------
        inputs : Tensor
            (nin, T N), or (C H W, N) for images.
        inference : bool
            Do not prepare for ``bprop``.
        init_state : Tensor or list of Tensor, optional
            The initial h (output_size, N), or all initial states. Default: the final states of the previous minibatch.
        beta : float
            Must be 0: states of different passes cannot be added.

        Returns
        -------
        Tensor
            h of all steps, (num_directions output_size, T N).
        """
        self.check_inputs(inputs)
        if "int" in inputs.info.dtype:
            raise ValueError(
                f"{self.name}: {self.classnm} expected vectors, got {describe(inputs)} of {inputs.info.dtype}. Put a "
                "LookupTable before it, or pass tokens as one-hot columns, onehot_input=True"
            )
        if beta:
            raise ValueError(
                f"{self.name}: expected beta=0, got beta={beta}. Each state depends on the previous one, so outputs of "
                "different passes cannot be added"
            )
        given = self.check_init_state(self.init_state if init_state is None else init_state)
        state = self.recurrent_state(self.be.bsz)
        initial = given if given is not None else [] if self.reset_cells else state
        self.inputs, self.can_backprop = inputs, not inference
        for unroll in self.unrolls:
            unroll.set_initial_states([] if unroll.direction else initial)  # backward in time from zeros
            unroll.fprop(inputs)
        self.write_state()
        return self.outputs

    def check_init_state(self, init_state: Tensor | Sequence[Tensor] | None) -> list[Tensor] | None:
        """Return an initial state as a list, or None. ValueError if its shapes do not fit.

        Parameters
        ----------
        init_state : Tensor, list of Tensor or None
            h (output_size, N), or all states.
        """
        if init_state is None:
            return None
        states: list[Any] = list(init_state) if isinstance(init_state, list | tuple) else [init_state]
        expected = (self.nout, self.be.bsz)
        if (
            self.num_directions == 2
            or len(states) > len(self.state_names)
            or any(getattr(x, "shape", None) != expected for x in states)
        ):
            names = f"{' and '.join(self.state_names)}, each {expected}"
            label = names if self.num_directions == 1 else "None, as for every bidirectional layer"
            raise ValueError(f"{self.name}: expected as init_state {label}, got {describe(*states)}")
        return states

    def final_state(self) -> Tensor:
        """Return h of the last step, (output_size, N)."""
        return self.final_states[0]

    @property
    def final_states(self) -> list[Tensor]:
        """The states of the last step, (output_size, N) each; of a bidirectional layer, of its forward direction."""
        if not self.unrolls and (STATE + self.state_names[0], self.be.bsz) not in self._buffers:
            raise RuntimeError(
                f"{self.name}: expected allocated buffers, got none. Call allocate() before final_states"
            )
        return self.state_tensors(self.be.bsz)

    @accumulates
    def bprop(
        self, error: Tensor, alpha: float = 1.0, beta: float = 0.0, final_errors: Sequence[Tensor] | None = None
    ) -> Tensor | None:
        """Backpropagate through time: compute dW and ``deltas = alpha dE/dinputs + beta deltas``.

        Afterwards ``initial_errors`` holds the errors of the initial states.

        Parameters
        ----------
        error : Tensor
            Error of the outputs, of their shape.
        alpha, beta : float
            Factors of the new and of the old deltas.
        final_errors : sequence of Tensor, optional
            Additional errors of ``final_states``, such as those from a decoder.

        Returns
        -------
        Tensor or None
            The deltas, of the shape of the inputs; None if the layer has none.
        """
        self.check_error(error)
        errors = self.final_errors if final_errors is None else [final_errors]
        for unroll in self.unrolls:
            backward = unroll.direction
            unroll.bprop(error, [] if backward else errors, alpha, beta if not backward or self.split_inputs else 1.0)
        return self.deltas

    @property
    def initial_errors(self) -> list[Tensor]:
        """The errors of the initial states, after ``bprop``."""
        return list(self.unrolls[0].state_errors.values())

    def slice_direction(self, x: X, direction: int) -> X:
        """Return the rows of inputs or deltas of one direction; images as (C H, W N). Those of a tensor are a view.

        Parameters
        ----------
        x : Tensor or OpTreeNode
            Inputs or deltas.
        direction : int
            0 forward in time, 1 backward in time.
        """
        y: Any = x
        y = y if y.shape[0] == self.nin else y.reshape(self.nin, -1)
        F = self.nin_per_direction
        y = take_block(y, (direction * F, F), (0, y.shape[1])) if self.split_inputs else y
        part: X = y
        return part

    def scan(self, z: Operand, direction: int, initial: Sequence[Operand] = ()) -> tuple[Operand, list[Operand]]:
        """Return h of all steps, (output_size, T N), and the states after the last step, as op-trees.

        Parameters
        ----------
        z : OpTreeNode
            ``W_input x + b``, (num_gates output_size, T N).
        direction : int
            0 forward in time, 1 backward in time.
        initial : sequence of Tensor or OpTreeNode
            The initial states, (output_size, N); zeros for those that are missing.
        """
        be, T, W_recur = self.be, self.nsteps, self.split_weights(self.W, direction)[1]
        n = z.shape[1] // T
        states: list[Operand] = [*initial, *[be.zeros((self.nout, n))] * (len(self.state_names) - len(initial))]
        outputs: list[Any] = [None] * T
        for t in reversed(range(T)) if direction else range(T):
            states = self.step_formula(take_block(z, (0, z.shape[0]), (t * n, n)), states, W_recur)
            outputs[t] = states[0]
        return be.concat(outputs, axis=1), states

    # --- recurrent state across minibatches ---
    #
    # For each batch size there is a tensor of each state, which fprop and the op-tree of training read and write.
    # Compiled programs refer to these tensors, so they are not replaced. They are zeros after a reset.

    progress = ("saved_batch_size",)

    def state_tensors(self, n: int) -> list[Tensor]:
        """Return the tensors of the recurrent state of n sequences, (output_size, n) each, new ones if there are none.

        Parameters
        ----------
        n : int
            The number of sequences.
        """
        states = []
        for name in self.state_names:
            t = self._buffers.get((STATE + name, n))
            if t is None or t.backend is not self.be:
                with untraced():
                    t = self._buffers[STATE + name, n] = self.be.zeros((self.nout, n), name=f"{self.name}.{name}")
            states.append(t)
        return states

    def recurrent_state(self, n: int) -> list[Tensor]:
        """Return the tensors of the recurrent state; warn and use zeros if ``set_state`` had another batch size.

        Parameters
        ----------
        n : int
            The number of sequences.
        """
        if self.saved_batch_size not in (0, n):
            warn(other_batch_size([self.name], self.saved_batch_size, n))
            with untraced():
                self.reset()
        self.saved_batch_size = 0  # a minibatch starts from it
        return self.state_tensors(n)

    @property
    def running_tensors(self) -> list[Tensor]:
        """The tensors besides parameters on which the next minibatch depends: the recurrent state."""
        return super().running_tensors + ([] if self.reset_cells else self.state_tensors(self.be.bsz))

    def get_state(self) -> dict[str, NativeArray]:
        """Return the recurrent state from which the next minibatch starts, arrays by name; empty for zeros."""
        n = self.saved_batch_size or self.be.bsz
        if self.reset_cells or (STATE + self.state_names[0], n) not in self._buffers:
            return {}
        arrays = {name: t.get() for name, t in zip(self.state_names, self.state_tensors(n), strict=True)}
        return arrays if any(array.any() for array in arrays.values()) else {}

    def set_state(self, arrays: dict[str, NativeArray]) -> None:
        """Start the next minibatch from a recurrent state; from zeros if it is empty.

        Parameters
        ----------
        arrays : dict of str to ndarray
            The states by name, (output_size, N) each.
        """
        self.check_state(arrays)
        self.reset()
        if arrays:
            self.saved_batch_size = arrays[self.state_names[0]].shape[1]
            for name, t in zip(self.state_names, self.state_tensors(self.saved_batch_size), strict=True):
                t[:] = arrays[name]

    def check_state(self, arrays: dict[str, NativeArray]) -> None:
        """Raise ValueError unless the dict is empty or contains the recurrent state of this layer.

        Parameters
        ----------
        arrays : dict of str to ndarray
            The states by name, (output_size, N) each.
        """
        shapes: dict[str, Any] = {name: getattr(array, "shape", ()) for name, array in arrays.items()}
        names = {*self.state_names}
        fits = shapes.keys() == names and all(len(s) == 2 and s[0] == self.nout for s in shapes.values())
        fits = fits and len({s[1] for s in shapes.values()}) == 1
        if arrays and not fits:
            raise ValueError(
                f"{self.name}: expected the states {', '.join(self.state_names)}, of {self.nout} rows each and "
                f"equally many columns, got {shapes}"
            )


def other_batch_size(names: Sequence[str], saved: int, current: int) -> str:
    """Return the warning that the saved recurrent state of layers is for another batch size."""
    return (
        f"{', '.join(names)}: the saved recurrent state is of a batch size of {saved}, be.bsz is {current}: "
        "the next minibatch starts from zeros"
    )


class RecurrentInitializer:
    """Initialize the W of a recurrent layer gate by gate."""

    can_replay = True

    def __init__(self, layer: RecurrentBase) -> None:
        self.layer = layer

    def fill(self, param: Tensor) -> None:
        """Fill W_input and W_recur; b stays 0."""
        layer, n = self.layer, self.layer.nout
        inner = layer.init if layer.init_inner is None else layer.init_inner
        for direction in range(layer.num_directions):
            for part, init in zip(layer.split_weights(param, direction), (layer.init, inner), strict=False):
                for gate in range(layer.num_gates):
                    block = part[gate * n : (gate + 1) * n]
                    block.name = f"{layer.name}.W"
                    fill_parameter(block, init)


# --- unidirectional layers -------------------------------------------------------------------------------------------


class Recurrent(RecurrentBase):
    """Simple (Elman) recurrent layer: ``h_t = f(W_input x_t + W_recur h_(t-1) + b)``, with f = ``activation``.

    The parameters are those of ``RecurrentBase``.

    References
    ----------
    Elman 1990.

    Examples
    --------
    >>> import neonlite as nl
    >>> from neonlite.initializers import Constant
    >>> from neonlite.layers import Recurrent
    >>> from neonlite.transforms import Identity
    >>> be = nl.gen_backend("cpu", batch_size=1)
    >>> layer = Recurrent(1, Constant(1), activation=Identity()).configure((1, 3))
    >>> layer.allocate()
    >>> layer.fprop(be.array([[1.0, 2.0, 3.0]])).get()  # cumulative sums
    array([[1., 3., 6.]], dtype=float32)
    """

    def step_formula(self, z: Operand, previous: Sequence[Operand], W_recur: Tensor) -> list[Operand]:
        return rnn_step(self.be, z, previous, W_recur, self.functions)[0]

    def build_step(self, step: Step) -> Program:
        h = self.activation(step.pre_activations[0])
        return [step.add_recurrent_product(step.previous["h"]), step.assign([step.current["h"]], [h])]

    def build_step_backward(self, step: Step) -> Program:
        dh = step.unroll.state_errors["h"]
        dz = self.activation.backward(dh + step.output_error, step.current["h"])
        return [step.assign([step.dz[0]], [dz]), step.recurrent_product_backward(dh)]


class GatedRecurrentBase(RecurrentBase):
    """Base class of layers whose gates have a separate activation function, such as Logistic().

    Parameters
    ----------
    output_size : int
        Number of elements of a state.
    init : initializer, array, Tensor or str, optional
        Fills each gate's part of W_input, and of W_recur without ``init_inner``. Default: ``GlorotUniform()``, with
        ``Orthonormal(1)`` for W_recur.
    init_inner : initializer, array, Tensor or str, optional
        Fills each gate's part of W_recur.
    activation : Transform or str
        Activation function of the states, or its name; its derivative must be computable from its output. Default:
        ``Tanh()``.
    gate_activation : Transform or str
        Activation function of the gates, or its name; its derivative must be computable from its output. Default:
        ``Logistic()``.
    reset_cells : bool
        Start every minibatch from zero states.
    name : str, optional
        Name of the layer.
    """

    def __init__(
        self,
        output_size: int,
        init: InitLike | None = None,
        init_inner: InitLike | None = None,
        activation: ActivationLike | None = None,
        gate_activation: ActivationLike | None = None,
        reset_cells: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(output_size, init, init_inner, activation, reset_cells, name)
        gate_activation = Logistic() if gate_activation is None else gate_activation
        self.gate_activation = self.check_activation("gate_activation", gate_activation)

    @property
    def functions(self) -> list[Transform]:
        """The activation functions of a step: that of the states, and that of the gates."""
        return [self.activation, self.gate_activation]

    @property
    def fused_kind(self) -> str:  # type: ignore[override]
        """The kind of fused primitive; "" unless activations are Tanh and Logistic and the class has one."""
        is_standard = type(self.activation) is Tanh and type(self.gate_activation) is Logistic
        fused_cell: str = vars(type(self)).get("fused_cell", "")  # not inherited: a subclass may compute other steps
        return fused_cell if is_standard else ""


class LSTM(GatedRecurrentBase):
    """Long short-term memory: ``[i f o] = s(z)``, ``g = a(z)``, ``c_t = f c_(t-1) + i g``, ``h_t = o a(c_t)``.

    z = W_input x_t + W_recur h_(t-1) + b; a = ``activation``, s = ``gate_activation``. The rows of the weights are
    those of i, f, o and g, in this order. The parameters are those of ``GatedRecurrentBase``.

    References
    ----------
    Hochreiter and Schmidhuber 1997; the forget gate f: Gers, Schmidhuber and Cummins 2000.
    """

    fused_cell = "lstm"
    num_gates, state_names, saved_names = 4, ("h", "c"), ("a",)

    def step_formula(self, z: Operand, previous: Sequence[Operand], W_recur: Tensor) -> list[Operand]:
        return lstm_step(self.be, z, previous, W_recur, self.functions)[0]

    def build_step(self, step: Step) -> Program:
        *gates, candidate = step.pre_activations
        i, f, o = map(self.gate_activation, gates)
        g = self.activation(candidate)
        c = f * step.previous["c"] + i * g
        a = self.activation(c)
        targets = [*step.z, step.current["c"], step.current["a"], step.current["h"]]
        return [step.add_recurrent_product(step.previous["h"]), step.assign(targets, [i, f, o, g, c, a, o * a])]

    def build_step_backward(self, step: Step) -> Program:
        act, gate = self.activation.backward, self.gate_activation.backward
        (i, f, o, g), a = step.z, step.current["a"]
        errors = step.unroll.state_errors
        dh = errors["h"] + step.output_error
        dc = errors["c"] + act(dh * o, a)
        values = [gate(dc * g, i), gate(dc * step.previous["c"], f), gate(dh * a, o), act(dc * i, g), dc * f]
        return [step.assign([*step.dz, errors["c"]], values), step.recurrent_product_backward(errors["h"])]


class GRU(GatedRecurrentBase):
    """Gated recurrent unit.

    ``[r u] = s(z)``, ``k = a(W_input x_t + W_recur (r h_(t-1)) + b)``, ``h_t = (1 - u) h_(t-1) + u k``, with
    z = W_input x_t + W_recur h_(t-1) + b; a = ``activation``, s = ``gate_activation``. The rows of the weights are
    those of r, u and k, in this order. The parameters are those of ``GatedRecurrentBase``.

    References
    ----------
    Cho et al. 2014, equations 5 to 8, with u for 1 - z.
    """

    fused_cell = "gru"
    num_gates, saved_names, recurrent_operands = 3, ("rh",), ("rh",)

    def step_formula(self, z: Operand, previous: Sequence[Operand], W_recur: Tensor) -> list[Operand]:
        return gru_step(self.be, z, previous, W_recur, self.functions)[0]

    def build_step(self, step: Step) -> Program:
        h, rh = step.previous["h"], step.current["rh"]
        *gates, candidate = step.pre_activations
        r, u = map(self.gate_activation, gates)
        k = self.activation(candidate)
        return [
            step.add_recurrent_product(h, 0, 2),
            step.assign([step.z[0], step.z[1], rh], [r, u, r * h]),
            step.add_recurrent_product(rh, 2, 3),
            step.assign([step.z[2], step.current["h"]], [k, h + step.z[1] * (k - h)]),
        ]

    def build_step_backward(self, step: Step) -> Program:
        act, gate = self.activation.backward, self.gate_activation.backward
        (r, u, k), h = step.z, step.previous["h"]
        error, drh = step.unroll.state_errors["h"], step.unroll.scratch
        dh = error + step.output_error
        return [
            step.assign([step.dz[1], step.dz[2], error], [gate(dh * (k - h), u), act(dh * u, k), dh * (1 - u)]),
            step.recurrent_product_backward(drh, 2, 3),
            step.assign([step.dz[0], error], [gate(drh * h, r), error + drh * r]),
            step.recurrent_product_backward(error, 0, 2, beta=1.0),
        ]

    def weight_gradient_pairs(self, unroll: StepUnroll) -> list[tuple[slice, Sequence[tuple[Tensor, Tensor]]]]:
        gates, candidate = unroll.gate_rows(0, 2), unroll.gate_rows(2, 3)
        buffers = unroll.seq_buffers
        return [(gates, unroll.hidden_error_pairs()), (candidate, [(buffers["dz"], buffers["rh"])])]


# {step formula: the op of the table that computes all its steps}
CELL_OF_STEP: dict[object, str] = {
    Recurrent.step_formula: "rnn",
    LSTM.step_formula: "lstm",
    GRU.step_formula: "gru",
}
FUNCTION_NAMES: dict[type, str] = {Tanh: "tanh", Logistic: "sig", Rectlin: "relu", Identity: "identity"}


def name_of_function(f: Transform) -> str:
    """Return the name of an activation function for the ops of cells; "" if they have no such function."""
    return "" if getattr(f, "slope", 0) else FUNCTION_NAMES.get(type(f), "")


# --- reductions ------------------------------------------------------------------------------------------------------


def take_block(x: Operand, rows: tuple[int, int], columns: tuple[int, int]) -> Operand:
    """Return a block of a matrix, a view of a tensor, given the first row and column and their numbers."""
    if type(x) is Tensor:
        return x[rows[0] : sum(rows), columns[0] : sum(columns)]
    node: Operand = x.backend.build("slice", x, index=((*rows, 1), (*columns, 1)))
    return node


def get_steps(x: Tensor, shape: LayerShape) -> list[Tensor]:
    """Return views of the steps of a sequence.

    Parameters
    ----------
    x : Tensor
        (F, T N).
    shape : tuple of int
        (F, T).

    Returns
    -------
    list of Tensor
        T tensors (F, N).
    """
    if not isinstance(shape, tuple) or len(shape) != 2:
        raise ValueError(f"get_steps: expected a shape (F, T), got {shape}")
    n, rest = divmod(x.shape[1], shape[1])
    if rest:
        raise ValueError(f"get_steps: expected {shape[1]} steps of equally many columns, got {describe(x)}")
    return [x[:, t * n : (t + 1) * n] for t in range(shape[1])]


class RecurrentOutput(Layer):
    """Base class of layers that reduce a sequence to one vector, (F, T) -> F.

    Parameters
    ----------
    name : str, optional
        Name of the layer.
    """

    def configure(self, in_obj: LayerInput) -> Self:
        super().configure(in_obj)
        self.out_shape, self.nsteps = self._check_sequence_shape()
        return self


class RecurrentSum(RecurrentOutput):
    """The sum over the steps of a sequence, (F, T) -> F."""

    def formula(self, x: Tensor) -> Operand:
        by_step = self.be.reshape(x, self.out_shape, self.nsteps, -1)
        return self.be.reshape(self.be.sum(by_step, axis=1), self.out_shape, -1)


class RecurrentMean(RecurrentSum):
    """The mean over the steps of a sequence, (F, T) -> F."""

    def formula(self, x: Tensor) -> Operand:
        mean: Operand = super().formula(x) / self.nsteps
        return mean


class RecurrentLast(RecurrentOutput):
    """The last step of a sequence, (F, T) -> F."""

    def formula(self, x: Tensor) -> Operand:
        n = x.shape[1] // self.nsteps
        return take_block(x, (0, x.shape[0]), ((self.nsteps - 1) * n, n))
