"""What becomes of a sequence?  One vector for all of it, or one of two ways; and which stacks of layers read deeply."""

from __future__ import annotations

from typing import Any

from neonlite.backend import Tensor
from neonlite.layers.layer import Layer
from neonlite.layers.recurrent import BiBNRNN, BiLSTM, BiRNN
from neonlite.optree import describe
from neonlite.transforms import Transform


def get_steps(x: Tensor, shape: Any) -> list[Tensor]:
    """Return views of the steps of x (F, T N), for the shape (F, T): T tensors (F, N)."""
    if not isinstance(shape, tuple) or len(shape) != 2:
        raise ValueError(f"steps are those of a shape (F, T); got {shape}")
    n, rest = divmod(x.shape[1], shape[1])
    if rest:
        raise ValueError(f"{shape[1]} steps have as many columns each; got {describe(x)}")
    return [x[:, t * n : (t + 1) * n] for t in range(shape[1])]


class RecurrentOutput(Layer):
    """The base of layers that make one vector (F, N) of a sequence (F, T N)."""

    reads_outputs = False

    def configure(self, in_obj: Any) -> RecurrentOutput:
        """Take the inputs' shape (F, T). ValueError when they have no time steps."""
        super().configure(in_obj)
        if not isinstance(self.in_shape, tuple) or len(self.in_shape) != 2:
            raise ValueError(
                f"{self.name}: {self.classnm} takes a sequence (F, T); the inputs' shape is {self.in_shape}"
            )
        self.out_shape, self.nsteps = self.in_shape
        return self

    def by_steps(self, x: Any) -> Any:
        """Return x as (F, T, N)."""
        return self.be.reshape(x, self.out_shape, self.nsteps, -1)

    def flat(self, x: Any) -> Any:
        """Return x (F, 1, N) as (F, N)."""
        return self.be.reshape(x, self.out_shape, -1)


class RecurrentSum(RecurrentOutput):
    """The sum of all steps."""

    def formula(self, x: Any) -> Any:
        return self.flat(self.be.sum(self.by_steps(x), axis=1))

    def bprop(self, error: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """Give the error to all steps."""
        self.check_error(error)
        if self.deltas is not None:
            every = self.deltas.reshape(self.out_shape, self.nsteps, -1)
            each = alpha * self.be.reshape(error, self.out_shape, 1, -1)
            every[:] = each + beta * every if beta else each
        return self.deltas


class RecurrentMean(RecurrentSum):
    """The mean of all steps."""

    def formula(self, x: Any) -> Any:
        return super().formula(x) / self.nsteps

    def bprop(self, error: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """Give all steps a share of the error."""
        return super().bprop(error, alpha / self.nsteps, beta)


class RecurrentLast(RecurrentOutput):
    """The last step."""

    def fprop(self, inputs: Any, inference: bool = False, beta: float = 0.0) -> Any:
        """Copy the last step."""
        self.accept(inputs)
        self.inputs, self.tree = inputs, None if inference else self
        last = inputs[:, -self.be.bsz :]
        self.outputs[:] = last + beta * self.outputs if beta else last
        return self.outputs

    def bprop(self, error: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """Give the error to the last step, and 0 to all others."""
        self.check_error(error)
        if self.deltas is not None:
            first, last = self.deltas[:, : -self.be.bsz], self.deltas[:, -self.be.bsz :]
            if self.nsteps > 1:
                first[:] = beta * first if beta else 0
            last[:] = alpha * error + beta * last if beta else alpha * error
        return self.deltas


class BiSum(Layer):
    """The sum of both ways: of the first half of the rows and of the second."""

    reads_outputs = False

    def configure(self, in_obj: Any) -> BiSum:
        """Take the inputs' shape (2 F, T). ValueError when there are no halves."""
        super().configure(in_obj)
        if not isinstance(self.in_shape, tuple) or len(self.in_shape) != 2 or self.in_shape[0] % 2:
            raise ValueError(f"{self.name}: BiSum adds the halves of (2 F, T); the inputs' shape is {self.in_shape}")
        self.out_shape = (self.in_shape[0] // 2, self.in_shape[1])
        return self

    def formula(self, x: Any) -> Any:
        """Return the sum of the halves."""
        n = self.out_shape[0]
        return x[:n] + x[n:]


class DeepBiRNN(list[Any]):
    """BiRNN layers, ``depth`` of them; with ``batch_norm`` BiBNRNN, with ``bi_sum`` a BiSum behind each.

    Those after the first split their inputs, so that each way reads its own, unless these were added.

    >>> from neonlite.initializers import Gaussian
    >>> from neonlite.transforms import Tanh
    >>> [layer.classnm for layer in DeepBiRNN(8, Gaussian(), activation=Tanh(), depth=2, bi_sum=True)]
    ['BiRNN', 'BiSum', 'BiRNN', 'BiSum']
    """

    def __init__(
        self,
        nout: int,
        init: Any,
        init_inner: Any = None,
        activation: Transform | None = None,
        reset_cells: bool = False,
        depth: int = 1,
        batch_norm: bool = False,
        bi_sum: bool = False,
    ) -> None:
        super().__init__()
        kind = BiBNRNN if batch_norm else BiRNN
        for i in range(deep(depth)):
            self.append(kind(nout, init, init_inner, activation, reset_cells, split_inputs=bool(i) and not bi_sum))
            if bi_sum:
                self.append(BiSum())


class DeepBiLSTM(list[Any]):
    """BiLSTM layers, ``depth`` of them; those after the first split their inputs, so that each way reads its own."""

    def __init__(
        self,
        nout: int,
        init: Any,
        init_inner: Any = None,
        activation: Transform | None = None,
        gate_activation: Transform | None = None,
        reset_cells: bool = False,
        depth: int = 1,
    ) -> None:
        super().__init__(
            BiLSTM(nout, init, init_inner, activation, gate_activation, reset_cells, split_inputs=i > 0)
            for i in range(deep(depth))
        )


def deep(depth: Any) -> int:
    """Return a depth; ValueError unless it is a whole number from 1."""
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
        raise ValueError(f"depth is a whole number of layers, from 1; got {depth!r}")
    return depth
