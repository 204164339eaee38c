"""Reference implementations of the ops for recurrence over time: the textbook equations, and complex-step derivatives.

The derivative of an analytic function f along a direction d is the imaginary part of f(x + i h d) / h, without a
rounding error of differences (Squire and Trapp 1998).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

STEP = 1e-30
FUNCTIONS = {
    "tanh": np.tanh,
    "sig": lambda x: 1 / (1 + np.exp(-x)),
    "relu": lambda x: np.where(x.real > 0, x, 0),
    "identity": lambda x: x,
}


def run(
    name: str, x: Any, W: Any, U: Any, b: Any, *states: Any, y: Any = None, push: Any = None, steps: int, **attrs: Any
) -> tuple[Any, list[Any]]:
    """Return h of all steps, and c after the last one if there is one.

    ``push`` is added to U where U is multiplied by h of the previous step, which is in y.
    """
    n, N = U.shape[1], x.shape[1] // steps
    act, gate = (FUNCTIONS[attrs.get(k, "sig")] for k in ("activation", "gate_activation"))
    push, h, *c = np.zeros(U.shape) if push is None else push, *states
    before, outputs = h, np.zeros((n, x.shape[1]), complex)
    for t in range(steps)[:: -1 if attrs["reverse"] else 1]:
        at = slice(t * N, (t + 1) * N)
        z = W @ x[:, at] + b
        if name == "rnn":
            h = act(z + U @ h + push @ before)
        elif name == "lstm":
            i, f, o, g = np.split(z + U @ h + push @ before, 4)
            c = [gate(f) * c[0] + gate(i) * act(g)]
            h = gate(o) * act(c[0])
        else:
            r, u = np.split(gate(z[: 2 * n] + U[: 2 * n] @ h + push[: 2 * n] @ before), 2)
            h = (1 - u) * h + u * act(z[2 * n :] + (U + push)[2 * n :] @ (r * h))
        outputs[:, at] = h
        before = h if y is None else y[:, at]
    return outputs, c


def sequence(name: str, *operands: Any, **attrs: Any) -> Any:
    """Return h of all steps."""
    return run(name, *operands, **attrs)[0].real


def cell_state(y: Any, *operands: Any, **attrs: Any) -> Any:
    """Return c after the last step of an LSTM."""
    return run("lstm", *operands, **attrs)[1][0]


def sequence_backward(name: str, e: Any, *values: Any, **attrs: Any) -> Any:
    """Return the gradients of all operands in a row; for an LSTM, the second operand is the error of the last c."""
    last_error, y, *operands = values if name == "lstm" else (0, *values)
    gradients: list[float] = []
    for k, x in enumerate(operands):
        for at in np.ndindex(*x.shape):
            direction = np.zeros(x.shape, complex)
            direction[at] = STEP * 1j
            push = direction if k == 2 else None
            moved = [z + direction if i == k != 2 else z for i, z in enumerate(operands)]
            h, c = run(name, *moved, y=y, push=push, **attrs)
            of_last = (last_error * c[0].imag).sum() if c else 0
            gradients.append(((e * h.imag).sum() + of_last) / STEP)
    return np.array([gradients])


CELLS = ("rnn", "lstm", "gru")
RECURRENT = {name: partial(sequence, name) for name in CELLS}
RECURRENT["lstm_state"] = cell_state
RECURRENT |= {f"{name}_backward": partial(sequence_backward, name) for name in CELLS}
