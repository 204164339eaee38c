"""Unrolling of recurrent layers over time, forward and backward: step by step, or by one fused primitive.

Data is (F, T N): column t N + n is time step t of sequence n. The input product of all steps is one matrix product;
each step then adds the product with the previous state. In the backward pass, too, the weight gradients are matrix
products over all steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

from neonlite.backend import Tensor
from neonlite.typing import LayerShape

Program = list[Callable[[], Any]]
MIN_LOOKUP_ROWS = 64  # one-hot inputs of at least this many rows are looked up, which is faster than a product


def make_unroll(layer: Any, direction: int) -> Unroll:
    """Return one direction of a recurrent layer, fused into a primitive if the backend has one for it."""
    primitive_key = find_fused_primitive(layer, direction)
    return FusedUnroll(layer, direction, primitive_key) if primitive_key else StepUnroll(layer, direction)


def find_fused_primitive(layer: Any, direction: int) -> Any:
    """Return the key of the backend's fused primitive for one direction of a layer, or None if it has none."""
    sizes = layer.fused_kind, layer.nsteps, layer.be.bsz, layer.nin_per_direction, layer.nout, direction == 1
    return layer.be.primitives.recurrent_shape(sizes, layer.be.default_dtype_name) if layer.fused_kind else None


class Unroll(ABC):
    """One direction of a recurrent layer over all steps: its weights, initial and final states, and their errors.

    ``direction`` is 0 forward in time and 1 backward in time.
    """

    can_replay = True
    initial_states: dict[str, Tensor]
    final_states: list[Tensor]
    state_errors: dict[str, Tensor]  # after a backward pass: the errors of the initial states

    def __init__(self, layer: Any, direction: int) -> None:
        self.layer, self.direction, self.be = layer, direction, layer.be
        self.W_input, self.W_recur, self.b = layer.split_weights(layer.W, direction)
        self.dW_input, self.dW_recur, self.db = layer.split_weights(layer.dW, direction)

    def buffer(self, name: str, shape: LayerShape) -> Tensor:
        """Return a buffer of the layer for this direction."""
        buffer: Tensor = self.layer.buffer(f"{name}{self.direction or ''}", shape)
        return buffer

    def rows_of_direction(self, x: Tensor) -> Tensor:
        """Return the rows of outputs, or of their error, that belong to this direction."""
        n = self.layer.nout
        return x[self.direction * n : (self.direction + 1) * n]

    @abstractmethod
    def fprop(self, inputs: Tensor) -> None:
        """Compute the states of all steps."""

    @abstractmethod
    def bprop(self, error: Tensor, final_errors: Sequence[Sequence[Tensor]], alpha: float, beta: float) -> None:
        """Compute the weight gradients, and the layer's deltas if it has any.

        ``final_errors`` holds lists of errors of the final states; they are summed.
        """

    def set_initial_states(self, states: Sequence[Tensor]) -> None:
        """Set the initial states; those that are missing are zeros."""
        for i, target in enumerate(self.initial_states.values()):
            target[:] = states[i] if i < len(states) else 0

    def sum_final_errors(self, targets: Sequence[Tensor], final_errors: Sequence[Sequence[Tensor]]) -> None:
        """Write the sums of the final states' errors to ``targets``."""
        for i, target in enumerate(targets):
            terms = [errors[i] for errors in final_errors if i < len(errors)]
            target[:] = sum(terms[1:], terms[0]) if terms else 0


class FusedUnroll(Unroll):
    """All steps as one primitive of the backend (oneDNN, cuDNN), identified by ``primitive_key``.

    A state (nout, N) is stored column-major.
    """

    def __init__(self, layer: Any, direction: int, primitive_key: Any) -> None:
        super().__init__(layer, direction)
        self.primitive_key = primitive_key
        self.initial_states = self.make_state_buffers("{}, first")
        self.state_errors = self.make_state_buffers("d{}")
        self.final_states, self.final_errors = (
            list(self.make_state_buffers(name).values()) for name in ("{}, last", "d{}, last")
        )
        self.reserve_space: Tensor | Any = None  # what the primitive saves in fprop for bprop
        self.saved_inputs: Tensor | None = None  # None if inputs are token ids

    def make_state_buffers(self, name: str) -> dict[str, Tensor]:
        """Return a buffer for each state."""
        n, N = self.layer.nout, self.be.bsz
        return {x: self.buffer(name.format(x), n).reshape(N, n).T for x in self.layer.state_names}

    def fprop(self, inputs: Tensor) -> None:
        """Compute the states of all steps."""
        layer = self.layer
        if layer.can_backprop:
            size = self.be.primitives.recurrent_workspace_size(self.primitive_key)
            if self.reserve_space is None or self.reserve_space.size < size:
                self.reserve_space = self.buffer("reserve space", -(-size // self.be.bsz))
        x = layer.slice_direction(inputs, self.direction)
        y = self.rows_of_direction(layer.outputs)
        token_ids = getattr(x, "token_ids", None)
        self.saved_inputs = x if token_ids is None else None
        tensors = self.reserve_space if layer.can_backprop else None, x, y, token_ids
        arrays = [None if t is None else t._array for t in tensors]
        self.be.primitives.recurrent_fprop(self.primitive_key, *self.weight_and_state_arrays, *arrays)

    @property
    def weight_and_state_arrays(self) -> list[list[Any]]:
        """The arrays of the weights, of the initial states and of the final states."""
        tensors = (self.W_input, self.W_recur, self.b), self.initial_states.values(), self.final_states
        return [[x._array for x in group] for group in tensors]

    def bprop(self, error: Tensor, final_errors: Sequence[Sequence[Tensor]], alpha: float, beta: float) -> None:
        """Compute the weight gradients and the deltas."""
        layer, deltas = self.layer, self.layer.deltas
        self.sum_final_errors(self.final_errors, final_errors)
        gradients = self.dW_input, self.dW_recur, self.db
        groups = [[x._array for x in group] for group in (self.final_errors, self.state_errors.values(), gradients)]
        target = None if deltas is None else layer.slice_direction(deltas, self.direction)._array
        y, e = self.rows_of_direction(layer.outputs), self.rows_of_direction(error)
        arrays = [None if t is None else t._array for t in (self.reserve_space, self.saved_inputs, y, e)]
        self.be.primitives.recurrent_bprop(
            self.primitive_key, *self.weight_and_state_arrays, *arrays, *groups, target, alpha, beta
        )


class StepUnroll(Unroll):
    """Programs of single steps, which the layer defines, run one after another.

    The operands of a step are (rows, N) slices of buffers (T rows, N), so that they are contiguous in memory. Products
    over all steps need (rows, T N); their operands are copied to that layout in ``seq_buffers``.
    """

    def __init__(self, layer: Any, direction: int) -> None:
        super().__init__(layer, direction)
        n, T, g, buffer = layer.nout, layer.nsteps, layer.num_gates, self.buffer
        self.z, self.dz = buffer("z", T * g * n), buffer("dz", g * n)
        names = dict.fromkeys(("h", *layer.state_names, *layer.saved_names))
        self.step_values = {name: buffer(name, T * n) for name in names}
        self.seq_buffers = {
            "h": self.rows_of_direction(layer.outputs),
            "dz": buffer("dz, all steps", (g * n, T)),
        }
        self.seq_buffers |= {name: buffer(f"{name}, all steps", (n, T)) for name in layer.recurrent_operands}
        self.initial_states = {name: buffer(f"{name}, first", n) for name in layer.state_names}
        self.state_errors = {name: buffer(f"d{name}", n) for name in layer.state_names}
        self.scratch = buffer("scratch", n)
        self.final_states = [self.rows_at_step(self.step_values[name], -1) for name in layer.state_names]
        self.W_input_T = self.W_input.T
        self.input_norm: Any = None  # normalizes W_input x; has fprop() and bprop()
        self.programs: dict[str, tuple[Any, Program]] = {}  # name -> (the tensor that it was built for, program)

    def gate_rows(self, first: int, last: int | None) -> slice:
        """Return the rows of the gates from ``first`` up to ``last``."""
        n = self.layer.nout
        return slice(first * n, None if last is None else last * n)

    def time_index(self, i: int) -> int:
        """Return the time step of the i-th step in this direction; -1 is the last."""
        i = i % self.layer.nsteps
        return self.layer.nsteps - 1 - i if self.direction else i

    def rows_at_step(self, x: Tensor, i: int) -> Tensor:
        """Return the part of x (T rows, N) for the i-th step in this direction."""
        rows, t = x.shape[0] // self.layer.nsteps, self.time_index(i)
        return x[t * rows : (t + 1) * rows]

    def columns_at_step(self, x: Tensor, i: int) -> Tensor:
        """Return the part of x (rows, T N) for the i-th step in this direction."""
        N, t = self.be.bsz, self.time_index(i)
        return x[:, t * N : (t + 1) * N]

    def make_step(self, i: int, error: Tensor | None = None, with_bias: bool = True) -> Step:
        """Return the tensors of the i-th step in this direction."""

        def gates(x: Tensor) -> list[Tensor]:
            return [x[self.gate_rows(k, k + 1)] for k in range(self.layer.num_gates)]

        previous = {
            name: self.rows_at_step(self.step_values[name], i - 1) if i else first
            for name, first in self.initial_states.items()
        }
        current = {name: self.rows_at_step(x, i) for name, x in self.step_values.items()}
        output_error = None if error is None else self.columns_at_step(self.rows_of_direction(error), i)
        z, b = self.rows_at_step(self.z, i), gates(self.b) if with_bias else None
        dz_columns = gates(self.columns_at_step(self.seq_buffers["dz"], i))
        return Step(self, z, gates(z), gates(self.dz), dz_columns, b, previous, current, output_error)

    def build_forward(self, token_ids: Tensor | None) -> Program:
        """Return the program of the forward pass; with token ids, each step looks up its columns of W_input."""
        program: Program = []
        for i in range(self.layer.nsteps):
            if token_ids is not None:
                looked_up = self.be.take(self.lookup_table, self.columns_at_step(token_ids, i), axis=1)
                program.append(self.be.compile([self.rows_at_step(self.z, i)], [looked_up]))
            program += self.layer.build_step(self.make_step(i, with_bias=token_ids is None))
        names = "h", *self.layer.recurrent_operands
        targets = [self.seq_buffers[name].reshape(-1, self.layer.nsteps, self.be.bsz) for name in names]
        values = [self.view_by_step(self.step_values[name]).permute((1, 0, 2)) for name in names]
        return [*program, self.be.compile(targets, values)]

    def build_backward(self, error: Tensor) -> Program:
        """Return the program of the backward pass, last step first."""
        program: Program = []
        for i in reversed(range(self.layer.nsteps)):
            program += self.layer.build_step_backward(self.make_step(i, error))
        return program

    def view_by_step(self, x: Tensor) -> Tensor:
        """Return x (T rows, N) as (T, rows, N)."""
        return x.reshape(self.layer.nsteps, -1, self.be.bsz)

    def split_steps(self, x: Tensor) -> Tensor:
        """Return x (rows, T N) as (T, rows, N), a copy if x is not contiguous."""
        contiguous: Tensor = x if x.is_contiguous else self.be.array(x)
        return contiguous.reshape(-1, self.layer.nsteps, self.be.bsz).permute((1, 0, 2))

    def fprop(self, inputs: Tensor) -> None:
        """Compute the states of all steps."""
        x = self.layer.slice_direction(inputs, self.direction)
        token_ids = self.get_token_ids(x)
        if token_ids is None:
            self.be.batched_dot(self.W_input, self.split_steps(x), self.view_by_step(self.z))
        else:
            self.lookup_table[:] = self.W_input + self.b
        if self.input_norm is not None:
            self.input_norm.fprop()
        self.run_program("forward", token_ids, self.build_forward)

    def run_program(self, name: str, x: Tensor | None, build: Callable[[Any], Program]) -> None:
        """Run the program ``build(x)``, which is built again only for another tensor x."""
        if name not in self.programs or self.programs[name][0] is not x:
            self.programs[name] = x, build(x)
        for run in self.programs[name][1]:
            run()

    def get_token_ids(self, x: Tensor) -> Tensor | None:
        """Return the token ids of one-hot inputs if they are known and a look-up is faster than a product."""
        return getattr(x, "token_ids", None) if x.shape[0] >= MIN_LOOKUP_ROWS and self.input_norm is None else None

    @cached_property
    def lookup_table(self) -> Tensor:
        """W_input + b: column i holds the gates' pre-activations for token i."""
        table: Tensor = self.be.zeros(self.W_input.shape, name=f"{self.layer.name}.table")
        return table

    def bprop(self, error: Tensor, final_errors: Sequence[Sequence[Tensor]], alpha: float, beta: float) -> None:
        """Compute the weight gradients and the deltas, last step first."""
        self.sum_final_errors(list(self.state_errors.values()), final_errors)
        self.run_program("backward", error, self.build_backward)
        self.run_program("weight gradients", self.layer.inputs, self.build_weight_gradients)
        if self.layer.deltas is not None:
            target = self.layer.slice_direction(self.layer.deltas, self.direction)
            self.be.compound_dot(self.W_input_T, self.seq_buffers["dz"], target, alpha=alpha, beta=beta)

    def build_weight_gradients(self, inputs: Tensor) -> Program:
        """Return the program that computes the weight gradients, each over all steps at once."""
        x = self.layer.slice_direction(inputs, self.direction)
        be, dz, token_ids = self.be, self.seq_buffers["dz"], self.get_token_ids(x)
        program: Program = []
        for rows, pairs in self.layer.weight_gradient_pairs(self):
            for i, (errors, operand) in enumerate(pairs):
                target = self.dW_recur[rows]
                program.append(partial(be.compound_dot, errors[rows], operand.T, target, beta=float(i > 0)))
        if token_ids is not None:  # each column has one token, so db is the sum of dW_input over all tokens
            dW_input = be.build("scatter_add", dz, token_ids, axis=1, size=x.shape[0])
            program.append(be.compile([self.dW_input], [dW_input]))
            return [*program, be.compile([self.db], [be.sum(self.dW_input, axis=1)])]
        program.append(be.compile([self.db], [be.sum(dz, axis=1)]))
        if self.input_norm is not None:
            program.append(self.input_norm.bprop)
        return [*program, partial(be.compound_dot, dz, x.T, self.dW_input)]

    def hidden_error_pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Return pairs (dz_t, h_(t-1)): one for the first step, one for all others together."""
        N, h, dz = self.be.bsz, self.seq_buffers["h"], self.seq_buffers["dz"]
        pairs = [(self.columns_at_step(dz, 0), self.initial_states["h"])]
        if self.layer.nsteps > 1:
            pairs.append((dz[:, :-N], h[:, N:]) if self.direction else (dz[:, N:], h[:, :-N]))
        return pairs


class Step(NamedTuple):
    """The tensors (nout, N) of one step, by gate or by name."""

    unroll: StepUnroll
    gates: Tensor  # all gates, one tensor: W_input x, then plus W_recur h, then the gates' values
    z: list[Tensor]  # views of the rows of each gate in ``gates``
    dz: list[Tensor]
    dz_columns: list[Tensor]  # this step's columns of the buffer that saves dz of all steps
    b: list[Tensor] | None  # None if ``gates`` already include the bias
    previous: dict[str, Tensor]
    current: dict[str, Tensor]
    output_error: Tensor | Any  # the error of h from the layers after it; None in the forward pass

    def add_recurrent_product(self, x: Tensor, first: int = 0, last: int | None = None) -> Callable[[], Any]:
        """Return a callable that computes ``z += W_recur x`` for a range of gates."""
        rows = self.unroll.gate_rows(first, last)
        return partial(self.unroll.be.compound_dot, self.unroll.W_recur[rows], x, self.gates[rows], beta=1.0)

    @property
    def pre_activations(self) -> list[Any]:
        """The gates' pre-activations ``W_input x + W_recur h + b``, valid after ``add_recurrent_product``."""
        return [z + b for z, b in zip(self.z, self.b, strict=True)] if self.b else self.z

    def recurrent_product_backward(
        self, target: Tensor, first: int = 0, last: int | None = None, beta: float = 0.0
    ) -> Callable[[], Any]:
        """Return a callable that computes ``target = W_recur^T dz + beta target`` for a range of gates."""
        rows = self.unroll.gate_rows(first, last)
        return partial(
            self.unroll.be.compound_dot, self.unroll.W_recur[rows].T, self.unroll.dz[rows], target, beta=beta
        )

    def assign(self, targets: Sequence[Tensor], trees: Sequence[Any]) -> Callable[[], Any]:
        """Return a callable that evaluates the trees together, and copies the gates' errors to ``dz_columns``."""
        pairs = list(zip(targets, trees, strict=True))
        columns = list(zip(self.dz, self.dz_columns, strict=True))
        pairs += [(saved, x) for dz, saved in columns for t, x in pairs if t is dz]
        assignment: Callable[[], Any] = self.unroll.be.compile(*zip(*pairs, strict=True))
        return assignment
