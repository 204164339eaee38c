"""Recurrent layers, Recurrent, LSTM, GRU and bidirectional ones, and reductions of their outputs to one vector."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self, TypeAlias

from neonlite import autodiff, tree_structure
from neonlite.backend import Tensor, validation
from neonlite.initializers import GlorotUniform, Orthonormal
from neonlite.layers import buffers, container, norm
from neonlite.layers.activation import ActivationLike, check_activation
from neonlite.layers.layer import Layer, LayerInput
from neonlite.layers.parameter import InitLike, ParameterLayer, ParameterSpec, fill_parameter
from neonlite.messages import describe
from neonlite.ops.functions import build_variadic
from neonlite.ops.recurrent import CELLS, gru_step, lstm_step, rnn_step, take_columns, take_rows
from neonlite.optree import Operand
from neonlite.transforms import Identity, Logistic, Rectlin, Tanh, Transform
from neonlite.typing import LayerShape, NativeArray

STATE = "recurrent state: "  # begins the names of its tensors among the buffers of a layer

States: TypeAlias = "dict[RecurrentBase, Sequence[Operand]]"
# {layer: its initial states as op-trees, and after it has been built its final ones}, while a network is built
passed_states: ContextVar[States | None] = ContextVar("passed_states", default=None)


@contextmanager
def passing_states(states: States) -> Iterator[States]:
    """While op-trees are built, let layers start from the states of a dict, and replace them by their final ones."""
    token = passed_states.set(states)
    try:
        yield states
    finally:
        passed_states.reset(token)


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
        Activation function, such as ``Logistic()``, or its name. Default: ``Tanh()``.
    reset_cells : bool
        Start every minibatch from zero states.
    name : str, optional
        Name of the layer.
    """

    result_attributes = (*ParameterLayer.result_attributes, "final_trees")
    unread_attributes = (
        *ParameterLayer.unread_attributes,
        *("initial_states", "initial_errors", "final_errors", "final_trees"),
    )
    num_gates = 1
    state_names: tuple[str, ...] = ("h",)  # states that a step passes to the next one
    W_input: Tensor
    W_recur: Tensor
    b: Tensor
    dW_input: Tensor
    dW_recur: Tensor
    db: Tensor
    num_directions = 1  # 2: bidirectional

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
        self.output_size = self.nout = validation.integer(f"{self.name}: output_size", output_size)
        self.init_inner, self.reset_cells = self.initial_values(init_inner), bool(reset_cells)
        activation = Tanh() if activation is None else activation
        self.activation = check_activation(f"{self.name}: activation", activation, "Tanh()")
        self.split_inputs = False
        self.nsteps = 0  # the number of time steps; 0 before ``configure``
        self.saved_batch_size = 0  # of a state from set_state from which no fprop has started yet; 0 if there is none
        self.init_state: Any = None  # the default of fprop's init_state: another layer's final states
        self.initial_states: list[Tensor] = []  # of the last fprop
        self.initial_errors: list[Tensor] = []  # the errors of the initial states, after ``bprop``
        self.final_errors: list[Sequence[Tensor]] = []  # from each layer that started with this one's final states
        self.final_trees: Sequence[Operand] = []  # the states after the last step of the last fprop, as op-trees

    # --- one step, defined by subclasses ---

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
        """Whether the class has a formula of one step."""
        return type(self).step_formula is not RecurrentBase.step_formula

    def formula(self, x: Operand) -> Operand:
        """Return h of all steps, from zeros or ``init_state``."""
        return self._run_directions(x, training=False)

    def training_formula(self, x: Operand) -> Operand:
        """Return h of all steps from the recurrent state, and assign the states after the last step to it."""
        return self._run_directions(x, training=True)

    def unroll(self, x: Operand, direction: int, initial: Sequence[Operand]) -> tuple[Operand, list[Operand]]:
        """Return h of all steps of one direction, (output_size, T N), and the states after the last step, as op-trees.

        It is an op of the table if there is one of the cell and its activation functions, else a tree of all steps.

        Parameters
        ----------
        x : Tensor or OpTreeNode
            The inputs of the direction, (nin_per_direction, T N).
        direction : int
            0 forward in time, 1 backward in time.
        initial : sequence of Tensor or OpTreeNode
            The initial states, (output_size, N).
        """
        be, names, cell = self.be, [*map(name_of_function, self.functions)], CELL_OF_STEP.get(type(self).step_formula)
        W_input, W_recur, b = self.split_weights(self.W, direction)
        if cell is None or "" in names:
            return self.scan(be.dot(W_input, x) + b, direction, initial)
        options: dict[str, Any] = dict(zip(("activation", "gate_activation"), names, strict=False))
        operands = x, W_input, W_recur, b, *initial
        y: Any = getattr(be, cell)(*operands, steps=self.nsteps, reverse=bool(direction), **options)
        n = y.shape[1] // self.nsteps
        final = [take_columns(be, y, 0 if direction else y.shape[1] - n, n)]
        if cell == "lstm":
            final.append(build_variadic(be, "lstm_state", y, *operands, **y.attrs))
        return y, final

    def _run_directions(self, x: Operand, training: bool, **options: bool) -> Operand:
        """Return h of all steps of all directions; in training, read and write the recurrent state.

        ``options`` are those of ``unroll``.
        """
        be, passed = self.be, passed_states.get()
        parts = self._split_directions(x)
        n = parts[0].shape[1] // self.nsteps
        initial = self._check_states(self.init_state, n) if passed is None else passed.get(self, [])
        if passed is None and self.init_state is None and training and not self.reset_cells:
            initial = buffers.copy_tensors(self.recurrent_state(n))  # constants
        zeros = [be.zeros((self.nout, n), name="zeros")] * len(self.state_names)
        initial = [*initial, *zeros[len(initial) :]]
        results = [self.unroll(part, k, zeros if k else initial, **options) for k, part in enumerate(parts)]
        final = results[0][1]
        if passed is not None:
            passed[self] = final
        elif training:
            be.assign(self.state_tensors(n), final)
        outputs = [h for h, _ in results]
        return outputs[0] if len(outputs) == 1 else be.concat(outputs, axis=0)

    def _split_directions(self, x: Operand) -> list[Operand]:
        """Return the inputs of each direction, (nin_per_direction, T N)."""
        x, F = self.be.reshape(x, (self.nin, -1)), self.nin_per_direction
        return [take_rows(self.be, x, k * F, F) if self.split_inputs else x for k in range(self.num_directions)]

    def _check_states(self, init_state: Operand | Sequence[Operand] | None, n: int) -> list[Operand]:
        """Return initial states of n sequences as a list, empty for None. ValueError if their shapes do not fit."""
        given: Any = [] if init_state is None else init_state
        states, expected = list(given) if isinstance(given, list | tuple) else [given], (self.nout, n)
        is_bidirectional, fits = self.num_directions == 2, len(states) <= len(self.state_names)
        if (is_bidirectional and states) or not fits or any(getattr(x, "shape", None) != expected for x in states):
            names = f"{' and '.join(self.state_names)}, each {expected}"
            label = "None, as for every bidirectional layer" if is_bidirectional else names
            raise ValueError(f"{self.name}: expected as init_state {label}, got {describe(*states)}")
        return states

    @property
    def functions(self) -> list[Transform]:
        """The activation functions of a step."""
        return [self.activation]

    # --- shapes, buffers, fprop and bprop ---

    def configure(self, in_obj: LayerInput) -> Self:
        super().configure(in_obj)
        for f in self.functions:
            f.be = self.be
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
        if self.saved_batch_size != self.be.bsz and (self.outputs is not None or not self.saved_batch_size):
            self.reset()  # but keep a state from set_state; before the first allocation of any batch size
        super().allocate(shared_outputs, accumulate_updates)
        self.state_tensors(self.be.bsz)
        self.initial_states, self.initial_errors = (
            [self.buffer(f"{label} {name}", self.nout) for name in self.state_names]
            for label in ("initial", "error of")
        )

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

    def check_inputs(self, inputs: Tensor) -> None:
        super().check_inputs(inputs)
        if "int" in inputs.info.dtype:
            raise ValueError(
                f"{self.name}: {self.classnm} expected vectors, got {describe(inputs)} of {inputs.info.dtype}. Put a "
                "LookupTable before it, or pass tokens as one-hot columns, onehot_input=True"
            )

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
        inputs, inference
            As for ``Layer.fprop``; inputs (nin, T N), or (C H W, N) for images.
        init_state : Tensor or list of Tensor, optional
            The initial h (output_size, N), or all initial states. Default: the final states of the previous minibatch.
        beta : float
            Must be 0: states of different passes cannot be added.

        Returns
        -------
        Tensor
            h of all steps, (num_directions output_size, T N).
        """
        self.set_inputs(inputs, inference)
        if beta:
            raise ValueError(
                f"{self.name}: expected beta=0, got beta={beta}. Each state depends on the previous one, so outputs of "
                "different passes cannot be added"
            )
        be, init_state = self.be, self.init_state if init_state is None else init_state
        given, states = self._check_states(init_state, be.bsz), self.recurrent_state(be.bsz)
        initial = states if init_state is None and not self.reset_cells else given
        be.assign(self.initial_states, [*initial, *[0] * (len(states) - len(initial))])
        with passing_states({self: self.initial_states}) as passed:
            self.tree = self._as_operand((self.inference_formula if inference else self.training_formula)(inputs))
        self.final_trees = passed[self]
        be.assign([self.outputs, *states], [self.tree, *self.final_trees])
        return self.outputs

    def final_state(self) -> Tensor:
        """Return h of the last step, (output_size, N)."""
        return self.final_states[0]

    @property
    def final_states(self) -> list[Tensor]:
        """The states of the last step, (output_size, N) each; of a bidirectional layer, of its forward direction."""
        if (STATE + self.state_names[0], self.be.bsz) not in self._buffers:
            raise RuntimeError(
                f"{self.name}: expected allocated buffers, got none. Call allocate() before final_states"
            )
        return self.state_tensors(self.be.bsz)

    def bprop(
        self, error: Tensor, alpha: float = 1.0, beta: float = 0.0, final_errors: Sequence[Tensor] | None = None
    ) -> Tensor | None:
        """Backpropagate through time, as ``Layer.bprop``; afterwards ``initial_errors`` has those of initial states.

        Parameters
        ----------
        error, alpha, beta
            As for ``Layer.bprop``.
        final_errors : sequence of Tensor, optional
            Additional errors of ``final_states``, such as those from a decoder.
        """
        self.final_errors = self.final_errors if final_errors is None else [final_errors]
        return super().bprop(error, alpha, beta)

    def gradient_targets(self) -> tuple[list[Tensor], list[Tensor]]:
        tensors, targets = super().gradient_targets()
        return [*self.initial_states, *tensors], [*self.initial_errors, *targets]

    def build_gradients(self, error: Tensor, tensors: Sequence[Tensor]) -> list[Operand]:
        given, self.final_errors = self.final_errors, []
        pairs = [pair for errors in given for pair in zip(self.final_trees, errors, strict=False)]
        return autodiff.differentiate_outputs(self.be, [(self.tree, error), *pairs], tensors)

    def scan(self, z: Operand, direction: int, initial: Sequence[Operand]) -> tuple[Operand, list[Operand]]:
        """Return h of all steps, (output_size, T N), and the states after the last step, as op-trees.

        Parameters
        ----------
        z : OpTreeNode
            ``W_input x + b``, (num_gates output_size, T N).
        direction : int
            0 forward in time, 1 backward in time.
        initial : sequence of Tensor or OpTreeNode
            The initial states, (output_size, N).
        """
        be, T, W_recur, states = self.be, self.nsteps, self.split_weights(self.W, direction)[1], list(initial)
        n = z.shape[1] // T
        outputs: list[Any] = [None] * T
        for t in reversed(range(T)) if direction else range(T):
            states = self.step_formula(take_columns(be, z, t * n, n), states, W_recur)
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
                with tree_structure.untraced():
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
            validation.warn(other_batch_size([self.name], self.saved_batch_size, n))
            with tree_structure.untraced():
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
        """Start the next minibatch from a recurrent state, (output_size, N) each; from zeros if it is empty."""
        self.check_state(arrays)
        self.reset()
        if arrays:
            self.saved_batch_size = arrays[self.state_names[0]].shape[1]
            for name, t in zip(self.state_names, self.state_tensors(self.saved_batch_size), strict=True):
                t[:] = arrays[name]

    def check_state(self, arrays: dict[str, NativeArray]) -> None:
        """Raise ValueError unless the dict is empty or contains the recurrent state of this layer."""
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
        return rnn_step(self.be, [z], previous, W_recur, self.functions)[0]


class GatedRecurrentBase(RecurrentBase):
    """Base class of layers whose gates have a separate activation function, such as Logistic().

    The other parameters are those of ``RecurrentBase``.

    Parameters
    ----------
    gate_activation : Transform or str
        Activation function of the gates, or its name. Default: ``Logistic()``.
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
        self.gate_activation = check_activation(f"{self.name}: gate_activation", gate_activation, "Logistic()")

    @property
    def functions(self) -> list[Transform]:
        """The activation functions of a step: that of the states, and that of the gates."""
        return [self.activation, self.gate_activation]


class LSTM(GatedRecurrentBase):
    """Long short-term memory: ``[i f o] = s(z)``, ``g = a(z)``, ``c_t = f c_(t-1) + i g``, ``h_t = o a(c_t)``.

    z = W_input x_t + W_recur h_(t-1) + b; a = ``activation``, s = ``gate_activation``. The rows of the weights are
    those of i, f, o and g, in this order. The parameters are those of ``GatedRecurrentBase``.

    References
    ----------
    Hochreiter and Schmidhuber 1997; the forget gate f: Gers, Schmidhuber and Cummins 2000.
    """

    num_gates, state_names = 4, ("h", "c")

    def step_formula(self, z: Operand, previous: Sequence[Operand], W_recur: Tensor) -> list[Operand]:
        return lstm_step(self.be, [z], previous, W_recur, self.functions)[0]


class GRU(GatedRecurrentBase):
    """Gated recurrent unit.

    ``[r u] = s(z)``, ``k = a(W_input x_t + W_recur (r h_(t-1)) + b)``, ``h_t = (1 - u) h_(t-1) + u k``, with
    z = W_input x_t + W_recur h_(t-1) + b; a = ``activation``, s = ``gate_activation``. The rows of the weights are
    those of r, u and k, in this order. The parameters are those of ``GatedRecurrentBase``.

    References
    ----------
    Cho et al. 2014, equations 5 to 8, with u for 1 - z.
    """

    num_gates = 3

    def step_formula(self, z: Operand, previous: Sequence[Operand], W_recur: Tensor) -> list[Operand]:
        parts = CELLS["gru"].split(self.be, z)
        return gru_step(self.be, parts, previous, W_recur, self.functions)[0]


# {step formula: the op of the table that computes all its steps}
CELL_OF_STEP: dict[object, str] = {Recurrent.step_formula: "rnn", LSTM.step_formula: "lstm", GRU.step_formula: "gru"}
FUNCTION_NAMES: dict[type, str] = {Tanh: "tanh", Logistic: "sig", Rectlin: "relu", Identity: "identity"}


def name_of_function(f: Transform) -> str:
    """Return the name of an activation function for the ops of cells; "" if they have no such function."""
    return "" if getattr(f, "slope", 0) else FUNCTION_NAMES.get(type(f), "")


# --- bidirectional layers --------------------------------------------------------------------------------------------


class Bidirectional:
    """The views of the weights of both directions, forward and backward, and of their gradients."""

    num_directions = 2
    W_input_f: Tensor
    W_input_b: Tensor
    W_recur_f: Tensor
    W_recur_b: Tensor
    b_f: Tensor
    b_b: Tensor
    dW_input_f: Tensor
    dW_input_b: Tensor
    dW_recur_f: Tensor
    dW_recur_b: Tensor
    db_f: Tensor
    db_b: Tensor


class BiRNN(Bidirectional, Recurrent):
    """Bidirectional Recurrent layer: (nin, T) -> (2 output_size, T), the forward direction first.

    The rows of W hold W_input of both directions, W_recur of both, and b of both: attributes ``W_input_f``,
    ``W_input_b`` and so on. The backward direction always starts from zeros. The other parameters are those of
    ``Recurrent``, of which ``output_size`` is that of one direction.

    Parameters
    ----------
    split_inputs : bool
        The forward direction reads the first half of the input features, the backward direction the second half, which
        is how the outputs of another bidirectional layer are arranged.
    parallelism : str
        Stored in the description, without effect.

    References
    ----------
    Schuster and Paliwal 1997.
    """

    def __init__(
        self,
        output_size: int,
        init: InitLike | None = None,
        init_inner: InitLike | None = None,
        activation: ActivationLike | None = None,
        reset_cells: bool = False,
        split_inputs: bool = False,
        name: str | None = None,
        parallelism: str = "Data",
    ) -> None:
        super().__init__(output_size, init, init_inner, activation, reset_cells, name)
        self.split_inputs, self.parallelism = bool(split_inputs), parallelism


class BiLSTM(Bidirectional, LSTM):
    """Bidirectional LSTM layer: (nin, T) -> (2 output_size, T), with the weight layout of ``BiRNN``.

    The other parameters are those of ``LSTM``, of which ``output_size`` is that of one direction.

    Parameters
    ----------
    split_inputs : bool
        As for ``BiRNN``.

    References
    ----------
    Graves and Schmidhuber 2005.
    """

    def __init__(
        self,
        output_size: int,
        init: InitLike | None = None,
        init_inner: InitLike | None = None,
        activation: ActivationLike | None = None,
        gate_activation: ActivationLike | None = None,
        reset_cells: bool = False,
        split_inputs: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(output_size, init, init_inner, activation, gate_activation, reset_cells, name)
        self.split_inputs = bool(split_inputs)


class BiBNRNN(norm.RunningStatistics, BiRNN):
    """BiRNN with batch-normalized inputs: ``(W_input x - mean) / sqrt(var + eps)`` replaces ``W_input x``.

    The mean and the variance are over all steps and the minibatch. At inference, the running statistics replace them:
    ``gmean = rho gmean + (1 - rho) mean``, and likewise gvar, both with the initial value 0; rho = 0.9, eps = 0.001.

    The parameters are those of ``BiRNN``.

    References
    ----------
    Laurent et al. 2016, Batch normalized recurrent neural networks, equation 10; Amodei et al. 2016, 3.2.
    """

    rho, eps = 0.9, 1e-3

    def training_formula(self, x: Operand) -> Operand:
        """Return ``formula(x)`` from the recurrent state, and assign that and the running statistics."""
        be, rho, parts = self.be, self.rho, self._split_directions(x)
        z = be.concat([be.dot(self.split_weights(self.W, k)[0], part) for k, part in enumerate(parts)], axis=0)
        new = be.mean(z, axis=1), be.var(z, axis=1)
        running = [self.gmean, self.gvar]
        be.assign(running, [rho * old + (1 - rho) * value for old, value in zip(running, new, strict=True)])
        return super().training_formula(x)

    def inference_formula(self, x: Operand) -> Operand:
        """Return h of all steps, with inputs normalized by the running statistics."""
        return self._run_directions(x, training=False, by_minibatch=False)

    def unroll(
        self, x: Operand, direction: int, initial: Sequence[Operand], by_minibatch: bool = True
    ) -> tuple[Operand, list[Operand]]:
        """Return h of all steps of one direction and the states after the last step, with normalized inputs.

        Parameters
        ----------
        x, direction, initial
            As for ``RecurrentBase.unroll``.
        by_minibatch : bool
            Whether to normalize by the statistics of the minibatch; else by the running ones.
        """
        be, (W_input, _, b) = self.be, self.split_weights(self.W, direction)
        z, rows = be.dot(W_input, x), slice(direction * self.nout, (direction + 1) * self.nout)
        if by_minibatch:
            z = be.normalize(z, axis=1, eps=self.eps)
        else:
            z = (z - self.gmean[rows]) / be.sqrt(self.gvar[rows] + self.eps)
        return self.scan(z + b, direction, initial)

    def allocate_parameters(self) -> None:
        super().allocate_parameters()
        self.init_params(self.nfm)

    @property
    def nfm(self) -> int:
        """The number of features that are normalized, of both directions."""
        return self.num_directions * self.nout


class BiSum(Layer):
    """The sum of both directions of a bidirectional layer, (2 F, T) -> (F, T).

    Parameters
    ----------
    name : str, optional
        Name of the layer.
    """

    def configure(self, in_obj: LayerInput) -> Self:
        super().configure(in_obj)
        if not isinstance(self.in_shape, tuple) or len(self.in_shape) != 2 or self.in_shape[0] % 2:
            raise ValueError(f"{self.name}: BiSum expected inputs (2 F, T), got the shape {self.in_shape}")
        self.out_shape = (self.in_shape[0] // 2, self.in_shape[1])
        return self

    def formula(self, x: Tensor) -> Operand:
        n = self.out_shape[0]
        total: Operand = take_rows(self.be, x, 0, n) + take_rows(self.be, x, n, n)
        return total


class DeepBiRNN(container.LayerList):
    """A list of ``depth`` BiRNN layers.

    Layers after the first have ``split_inputs``, so that each direction reads the outputs of the same direction, unless
    ``bi_sum`` adds the two.

    Parameters
    ----------
    nout : int
        Number of elements of a state of one direction.
    init, init_inner : initializer, array, Tensor or str, optional
        As for ``BiRNN``.
    activation : Transform or str, optional
        As for ``BiRNN``.
    reset_cells : bool
        Start every minibatch from zero states.
    depth : int
        Number of recurrent layers.
    batch_norm : bool
        Use BiBNRNN layers.
    bi_sum : bool
        Add a BiSum after each.

    Examples
    --------
    >>> from neonlite.initializers import Gaussian
    >>> from neonlite.transforms import Tanh
    >>> [layer.classnm for layer in DeepBiRNN(8, Gaussian(), activation=Tanh(), depth=2, bi_sum=True)]
    ['BiRNN', 'BiSum', 'BiRNN', 'BiSum']
    """

    @validation.checks_arguments
    def __init__(
        self,
        nout: int,
        init: InitLike | None = None,
        init_inner: InitLike | None = None,
        activation: ActivationLike | None = None,
        reset_cells: bool = False,
        depth: int = 1,
        batch_norm: bool = False,
        bi_sum: bool = False,
    ) -> None:
        super().__init__()
        layer = BiBNRNN if batch_norm else BiRNN
        for i in range(validation.integer("depth", depth)):
            self.append(layer(nout, init, init_inner, activation, reset_cells, split_inputs=bool(i) and not bi_sum))
            if bi_sum:
                self.append(BiSum())


class DeepBiLSTM(container.LayerList):
    """A list of ``depth`` BiLSTM layers; those after the first have ``split_inputs``.

    Parameters
    ----------
    nout : int
        Number of elements of a state of one direction.
    init, init_inner : initializer, array, Tensor or str, optional
        As for ``BiLSTM``.
    activation, gate_activation : Transform or str, optional
        As for ``BiLSTM``.
    reset_cells : bool
        Start every minibatch from zero states.
    depth : int
        Number of layers.
    """

    @validation.checks_arguments
    def __init__(
        self,
        nout: int,
        init: InitLike | None = None,
        init_inner: InitLike | None = None,
        activation: ActivationLike | None = None,
        gate_activation: ActivationLike | None = None,
        reset_cells: bool = False,
        depth: int = 1,
    ) -> None:
        super().__init__(
            BiLSTM(nout, init, init_inner, activation, gate_activation, reset_cells, split_inputs=i > 0)
            for i in range(validation.integer("depth", depth))
        )


# --- reductions ------------------------------------------------------------------------------------------------------


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
        last: Operand = take_columns(self.be, x, (self.nsteps - 1) * n, n)
        return last
