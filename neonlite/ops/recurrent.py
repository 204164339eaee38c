"""The rows of the op table for recurrence over time: simple, LSTM and GRU layers, and their backward passes.

A sequence is a matrix (F, T N), whose column t N + n is time step t of sequence n. An op computes all steps of a cell.
The steps are functions of arrays or of op-trees: the forward function of an op and its formula are the same. In plans,
primitives compute the ops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from neonlite.ops.functions import Gradients, Shape, accumulation_dtype, build_variadic
from neonlite.typing import BackendBase, Namespace, NativeArray, Operand

Values = Sequence[Any]  # arrays or op-trees: the states of a step, their errors, and what its backward pass reads
Functions = Sequence[Callable[..., Any]]  # the activation function, and that of the gates; or their derivatives
# {name of an activation function: (f(be, x), dE/dx of y = f(x) as a function of be, dE/dy and y)}
FUNCTIONS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any, Any], Any]]] = {
    "tanh": (lambda be, x: be.build("tanh", x), lambda be, dy, y: dy * (1 - y * y)),
    "sig": (lambda be, x: be.build("sig", x), lambda be, dy, y: dy * (y * (1 - y))),
    "relu": (lambda be, x: be.build("maximum", x, 0), lambda be, dy, y: dy * be.build("sgn", y)),
    "identity": (lambda be, x: x, lambda be, dy, y: dy),
}


# --- one step of each cell -------------------------------------------------------------------------------------------
#
# A step maps the input product z = W_input x + b and the previous states to the states, h first; to other values that
# its backward pass reads; and to the sums of z and the products with W_recur. There is one such product for the gates
# that multiply W_recur by h, and one for the others; z is in parts accordingly. The backward pass maps the errors of
# the states to dz and the errors of the previous states; the error of a state may be None, for zero.


def take_rows(be: Any, x: Any, first: int, count: int) -> Any:
    """Return some rows of a matrix."""
    return be.build("slice", x, index=((first, count, 1), (0, x.shape[1], 1)))


def take_columns(be: Any, x: Any, first: int, count: int) -> Any:
    """Return some columns of a matrix."""
    return be.build("slice", x, index=((0, x.shape[0], 1), (first, count, 1)))


def transpose(be: Any, x: Any) -> Any:
    """Return the transpose of a matrix, a node of the tree also for a tensor."""
    return be.build("transpose", x, axes=(1, 0))


def split_gates(be: Any, z: Any, count: int) -> list[Any]:
    """Return the rows of each gate."""
    n = z.shape[0] // count
    return [take_rows(be, z, k * n, n) for k in range(count)]


def rnn_step(be: Any, z: Values, previous: Values, W_recur: Any, functions: Functions) -> tuple[list[Any], ...]:
    """Return ``h = f(z + W_recur h)``."""
    total = z[0] + W_recur @ previous[0]
    return [functions[0](total)], [], [total]


def rnn_step_backward(
    be: Any, errors: Values, previous: Values, states: Values, saved: Values, W_recur: Any, derivatives: Functions
) -> tuple[Any, list[Any]]:
    """Return dz, and the error of the previous h."""
    dz = derivatives[0](errors[0], states[0])
    return dz, [transpose(be, W_recur) @ dz]


def lstm_step(be: Any, z: Values, previous: Values, W_recur: Any, functions: Functions) -> tuple[list[Any], ...]:
    """Return ``h = o a(c)`` and ``c = f c + i g``; and the gates i, f, o, the candidate g, and a(c)."""
    (h, c), (activation, gate) = previous, functions
    total = z[0] + W_recur @ h
    *gates, candidate = split_gates(be, total, 4)
    (i, f, o), g = map(gate, gates), activation(candidate)
    c = f * c + i * g
    a = activation(c)
    return [o * a, c], [i, f, o, g, a], [total]


def lstm_step_backward(
    be: Any, errors: Values, previous: Values, states: Values, saved: Values, W_recur: Any, derivatives: Functions
) -> tuple[Any, list[Any]]:
    """Return dz, and the errors of the previous h and c."""
    (dh, dc), (i, f, o, g, a), (activation, gate) = errors, saved, derivatives
    through_h = activation(dh * o, a)
    dc = through_h if dc is None else dc + through_h
    gates = gate(dc * g, i), gate(dc * previous[1], f), gate(dh * a, o)
    dz = be.concat([*gates, activation(dc * i, g)], axis=0)
    return dz, [transpose(be, W_recur) @ dz, dc * f]


def gru_step(be: Any, z: Values, previous: Values, W_recur: Any, functions: Functions) -> tuple[list[Any], ...]:
    """Return ``h = (1 - u) h + u k``; and r h, the gates r and u, and the candidate k."""
    (h,), (activation, gate), n = previous, functions, W_recur.shape[1]
    of_gates = z[0] + take_rows(be, W_recur, 0, 2 * n) @ h
    r, u = map(gate, split_gates(be, of_gates, 2))
    rh = r * h
    of_candidate = z[1] + take_rows(be, W_recur, 2 * n, n) @ rh
    k = activation(of_candidate)
    return [h + u * (k - h)], [rh, r, u, k], [of_gates, of_candidate]


def gru_step_backward(
    be: Any, errors: Values, previous: Values, states: Values, saved: Values, W_recur: Any, derivatives: Functions
) -> tuple[Any, list[Any]]:
    """Return dz, and the error of the previous h."""
    (dh,), (h,), (_, r, u, k), (activation, gate), n = errors, previous, saved, derivatives, W_recur.shape[1]
    dk = activation(dh * u, k)
    drh = transpose(be, take_rows(be, W_recur, 2 * n, n)) @ dk
    dz = be.concat([gate(drh * h, r), gate(dh * (k - h), u), dk], axis=0)
    dgates = transpose(be, take_rows(be, W_recur, 0, 2 * n)) @ take_rows(be, dz, 0, 2 * n)
    return dz, [dh * (1 - u) + drh * r + dgates]


class Cell(NamedTuple):
    """A kind of recurrent cell: its gates, states and steps.

    ``num_saved``: the number of values that a step saves for its backward pass. ``gates_of_h``: how many gates multiply
    W_recur by h; the others multiply it by the first saved value.
    """

    num_gates: int
    num_states: int
    num_saved: int
    gates_of_h: int
    step: Callable[..., tuple[list[Any], ...]]
    step_backward: Callable[..., tuple[Any, list[Any]]]

    @property
    def gates_of_parts(self) -> list[int]:
        """The number of gates of each part of z."""
        others = self.num_gates - self.gates_of_h
        return [self.gates_of_h, others] if others else [self.gates_of_h]

    def split(self, be: Any, z: Any) -> list[Any]:
        """Return z in parts."""
        H, ends = z.shape[0] // self.num_gates, [0, *accumulate(self.gates_of_parts)]
        return [take_rows(be, z, start * H, (end - start) * H) for start, end in pairwise(ends)]


CELLS = {
    "rnn": Cell(1, 1, 0, 1, rnn_step, rnn_step_backward),
    "lstm": Cell(4, 2, 5, 4, lstm_step, lstm_step_backward),
    "gru": Cell(3, 1, 4, 2, gru_step, gru_step_backward),
}


# --- the formulas: all steps -----------------------------------------------------------------------------------------


def activation_names(attrs: dict[str, Any]) -> list[str]:
    """Return the names of the activation functions among the attributes of an op."""
    return [attrs[name] for name in ("activation", "gate_activation") if name in attrs]


def functions_of(be: Any, names: Sequence[str]) -> list[Callable[[Any], Any]]:
    """Return the activation functions of some names."""
    return [partial(FUNCTIONS[name][0], be) for name in names]


def derivatives_of(be: Any, names: Sequence[str]) -> list[Callable[[Any, Any], Any]]:
    """Return the derivatives of the activation functions of some names."""
    return [partial(FUNCTIONS[name][1], be) for name in names]


def unroll(
    be: Any, cell: Cell, operands: Sequence[Any], steps: int, reverse: bool, functions: Functions
) -> Iterator[tuple[int, Any, Any, Any]]:
    """Yield, for each step, its number, the previous states, the states and the other saved values."""
    x, W_input, W_recur, b, *states = operands
    n, z = x.shape[1] // steps, W_input @ x + b
    for t in reversed(range(steps)) if reverse else range(steps):
        previous = states
        parts = cell.split(be, take_columns(be, z, t * n, n))
        states, saved, _ = cell.step(be, parts, previous, W_recur, functions)
        yield t, previous, states, saved


def forward(be: Any, cell: Cell, operands: Sequence[Any], steps: int, reverse: bool, names: Sequence[str]) -> Any:
    """Return h of all steps."""
    unrolled = unroll(be, cell, operands, steps, reverse, functions_of(be, names))
    outputs = {t: states[0] for t, _, states, _ in unrolled}
    return be.concat([outputs[t] for t in range(steps)], axis=1)


def final_cell_state(
    be: Any,
    y: Any,
    x: Any,
    W_input: Any,
    W_recur: Any,
    b: Any,
    h: Any,
    c: Any,
    *,
    steps: int,
    reverse: bool,
    **attrs: str,
) -> Any:
    """Return c after the last step of an LSTM, of the result y and the operands of ``lstm``."""
    functions = functions_of(be, activation_names(attrs))
    *_, (_, _, states, _) = unroll(be, CELLS["lstm"], [x, W_input, W_recur, b, h, c], steps, reverse, functions)
    return states[1]


def backward(name: str, be: Any, e: Any, *values: Any, steps: int, reverse: bool, **attrs: str) -> Any:
    """Return the gradients of all operands, one after another in a row.

    ``values``: of an LSTM the error of the last c; the result y, of which e is the error; and the operands.
    """
    cell, names = CELLS[name], activation_names(attrs)
    *final_errors, y = values[: cell.num_states]
    operands = values[cell.num_states :]
    x, W_input, W_recur, _, h, *_ = operands
    n, rows = x.shape[1] // steps, cell.gates_of_h * W_recur.shape[1]
    outputs = [take_columns(be, y, t * n, n) for t in range(steps)]
    h_before = [*outputs[1:], h] if reverse else [h, *outputs[:-1]]  # h of the previous step of each
    derivatives = derivatives_of(be, names)
    errors: list[Any] = [None, *final_errors]
    dz_of: dict[int, Any] = {}
    rh_of: dict[int, Any] = {}
    unrolled = list(unroll(be, cell, operands, steps, reverse, functions_of(be, names)))
    for t, previous, states, saved in reversed(unrolled):
        dh = take_columns(be, e, t * n, n)
        errors = [dh if errors[0] is None else dh + errors[0], *errors[1:]]
        dz_of[t], errors = cell.step_backward(be, errors, previous, states, saved, W_recur, derivatives)
        rh_of[t] = saved[0] if saved else None
    dz = be.concat([dz_of[t] for t in range(steps)], axis=1)
    dW_recur = take_rows(be, dz, 0, rows) @ transpose(be, be.concat(h_before, axis=1))
    if rows < dz.shape[0]:
        rh = be.concat([rh_of[t] for t in range(steps)], axis=1)
        candidate = take_rows(be, dz, rows, dz.shape[0] - rows) @ transpose(be, rh)
        dW_recur = be.concat([dW_recur, candidate], axis=0)
    db = be.build("sum", dz, axis=(1,))
    gradients = transpose(be, W_input) @ dz, dz @ transpose(be, x), dW_recur, db, *errors
    return be.concat([be.build("reshape", g, to=(1, math.prod(g.shape))) for g in gradients], axis=1)


def rnn(
    be: Any,
    x: Any,
    W_input: Any,
    W_recur: Any,
    b: Any,
    h: Any,
    *,
    steps: int = 1,
    reverse: bool = False,
    activation: str = "tanh",
) -> Any:
    """Return h of all steps of a simple recurrent layer."""
    return forward(be, CELLS["rnn"], [x, W_input, W_recur, b, h], steps, reverse, [activation])


def lstm(
    be: Any,
    x: Any,
    W_input: Any,
    W_recur: Any,
    b: Any,
    h: Any,
    c: Any,
    *,
    steps: int = 1,
    reverse: bool = False,
    activation: str = "tanh",
    gate_activation: str = "sig",
) -> Any:
    """Return h of all steps of an LSTM."""
    return forward(be, CELLS["lstm"], [x, W_input, W_recur, b, h, c], steps, reverse, [activation, gate_activation])


def gru(
    be: Any,
    x: Any,
    W_input: Any,
    W_recur: Any,
    b: Any,
    h: Any,
    *,
    steps: int = 1,
    reverse: bool = False,
    activation: str = "tanh",
    gate_activation: str = "sig",
) -> Any:
    """Return h of all steps of a GRU."""
    return forward(be, CELLS["gru"], [x, W_input, W_recur, b, h], steps, reverse, [activation, gate_activation])


# --- forward functions: the formulas of arrays -----------------------------------------------------------------------


class ArrayMethods(NamedTuple):
    """The methods that formulas call, for arrays of a namespace instead of op-trees.

    ``find_run(op)``: the forward function of an op of the table.
    """

    xp: Namespace
    find_run: Callable[[str], Callable[..., NativeArray]]

    def build(self, op: str, x: NativeArray, *numbers: float, **attrs: Any) -> NativeArray:
        """Return the result of an op."""
        return self.find_run(op)(self.xp, x, *(self.xp.asarray(n, dtype=x.dtype) for n in numbers), **attrs)

    def concat(self, parts: Sequence[NativeArray], axis: int) -> NativeArray:
        """Return concatenated arrays."""
        return self.xp.concat(parts, axis=axis)


def run_formula(
    formula: Callable[..., Any],
    find_run: Callable[[str], Callable[..., NativeArray]],
    xp: Namespace,
    *operands: NativeArray,
    **attrs: Any,
) -> NativeArray:
    """Return the value of a formula; 16-bit floats are computed in float32."""
    wide = [xp.astype(x, accumulation_dtype(xp, x), copy=False) for x in operands]
    return formula(ArrayMethods(xp, find_run), *wide, **attrs)


# --- shapes and gradient rules ---------------------------------------------------------------------------------------


def sequence_shape(name: str, *operands: Shape, steps: int = 1, reverse: bool = False, **names: str) -> Shape:
    """(F, T N), (gates H, F), (gates H, H), (gates H, 1), (H, N) for each state -> (H, T N)."""
    (F, columns), W_input, W_recur, b, *states = operands
    gates, H = CELLS[name].num_gates, W_recur[-1]
    if steps < 1 or columns % steps:
        raise ValueError(f"expected steps that divide the {columns} columns of x, got {steps}")
    expected = [(gates * H, F), (gates * H, H), (gates * H, 1), *[(H, columns // steps)] * len(states)]
    if [W_input, W_recur, b, *states] != expected:
        raise ValueError(
            f"expected W_input, W_recur, b and the initial states of shapes {', '.join(map(str, expected))}, got "
            f"{', '.join(map(str, operands[1:]))}"
        )
    for argument, value in names.items():
        if value not in FUNCTIONS:
            raise ValueError(f"expected as {argument} one of {', '.join(FUNCTIONS)}, got {value!r}")
    return (H, columns)


def backward_shape(name: str, e: Shape, *values: Shape, **attrs: Any) -> Shape:
    """Return the shape of the gradients of all operands in a row."""
    *final_errors, y = values[: CELLS[name].num_states]
    operands = values[CELLS[name].num_states :]
    expected = sequence_shape(name, *operands, **attrs)
    if not e == y == expected:
        raise ValueError(f"expected the result and its error of the shape {expected}, got {y} and {e}")
    if any(shape != operands[-1] for shape in final_errors):
        raise ValueError(f"expected the error of the last c of the shape {operands[-1]}, got {final_errors[0]}")
    return (1, sum(map(math.prod, operands)))


def state_shape(y: Shape, *operands: Shape, **attrs: Any) -> Shape:
    """Return the shape of a state."""
    expected = sequence_shape("lstm", *operands, **attrs)
    if y != expected:
        raise ValueError(f"expected the result of the shape {expected}, got {y}")
    return operands[-1]


def sequence_flops(z: Shape, *operands: Shape) -> int:
    """Return two operations for each column and each element of W_input and W_recur."""
    x, W_input, W_recur, *_ = operands
    return 2 * x[1] * (math.prod(W_input) + math.prod(W_recur))


def backward_flops(name: str, z: Shape, *values: Shape) -> int:
    """Return twice as many operations as the forward pass has."""
    return 2 * sequence_flops(z, *values[CELLS[name].num_states + 1 :])


def grad_sequence(name: str, be: BackendBase, dz: Operand, z: Operand, *operands: Operand, **attrs: Any) -> Gradients:
    """Return the gradients of a sequence: parts of the result of its backward op."""
    zeros = [zeros_like(be, x) for x in operands[5:]]
    return split_gradients(build_variadic(be, f"{name}_backward", dz, *zeros, z, *operands, **attrs), operands)


def grad_state(be: BackendBase, dz: Operand, z: Operand, y: Operand, *operands: Operand, **attrs: Any) -> Gradients:
    """Return the gradients of the last c of an LSTM: parts of the result of its backward op, for errors of 0."""
    h: Operand = build_variadic(be, "lstm", *operands, **attrs)  # y, unless that was replaced
    row: Operand = build_variadic(be, "lstm_backward", zeros_like(be, h), dz, h, *operands, **attrs)
    return None, *split_gradients(row, operands)


def zeros_like(be: Any, x: Operand) -> Any:
    """Return zeros of the shape of x, a view of one number."""
    return be.broadcast_to(be.zeros((1, 1), dtype=x.info.dtype), x.shape)


def split_gradients(row: Any, operands: Sequence[Operand]) -> Gradients:
    """Return the gradients of operands as parts of a row."""
    parts, start = [], 0
    for x in operands:
        part = take_columns(row.backend, row, start, math.prod(x.shape))
        parts.append(row.backend.build("reshape", part, to=x.shape))
        start += math.prod(x.shape)
    return tuple(parts)
