"""Reductions of sequences to one vector (last step, sum, mean), BiSum, and stacks of bidirectional layers."""

from __future__ import annotations

from typing import Self

from neonlite.backend import Tensor
from neonlite.backend.validation import checks_arguments, integer
from neonlite.layers.display import LayerList
from neonlite.layers.layer import Layer
from neonlite.layers.layer_checks import check_sequence_shape
from neonlite.layers.recurrent import BiBNRNN, BiLSTM, BiRNN
from neonlite.layers.types import ActivationLike, InitLike, LayerInput, LayerShape
from neonlite.messages import describe
from neonlite.optree import Operand


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

    needs_outputs = False

    def configure(self, in_obj: LayerInput) -> Self:
        super().configure(in_obj)
        self.out_shape, self.nsteps = check_sequence_shape(self)
        return self

    def view_by_step(self, x: Operand) -> Operand:
        """Return x (F, T N) as (F, T, N).

        Parameters
        ----------
        x : Tensor or op-tree
            (F, T N).
        """
        return self.be.reshape(x, self.out_shape, self.nsteps, -1)

    def drop_step_axis(self, x: Operand) -> Operand:
        """Return x (F, 1, N) as (F, N).

        Parameters
        ----------
        x : Tensor or op-tree
            (F, 1, N).
        """
        return self.be.reshape(x, self.out_shape, -1)


class RecurrentSum(RecurrentOutput):
    """The sum over the steps of a sequence, (F, T) -> F."""

    def formula(self, x: Tensor) -> Operand:
        return self.drop_step_axis(self.be.sum(self.view_by_step(x), axis=1))

    def bprop(self, error: Tensor, alpha: float = 1.0, beta: float = 0.0) -> Tensor | None:
        self.check_error(error)
        if self.deltas is not None:
            deltas = self.deltas.reshape(self.out_shape, self.nsteps, -1)
            new = alpha * self.be.reshape(error, self.out_shape, 1, -1)
            deltas[:] = new + beta * deltas if beta else new
        return self.deltas


class RecurrentMean(RecurrentSum):
    """The mean over the steps of a sequence, (F, T) -> F."""

    def formula(self, x: Tensor) -> Operand:
        mean: Operand = super().formula(x) / self.nsteps
        return mean

    def bprop(self, error: Tensor, alpha: float = 1.0, beta: float = 0.0) -> Tensor | None:
        return super().bprop(error, alpha / self.nsteps, beta)


class RecurrentLast(RecurrentOutput):
    """The last step of a sequence, (F, T) -> F."""

    def fprop(self, inputs: Tensor, inference: bool = False, beta: float = 0.0) -> Tensor:
        self.set_inputs(inputs, inference)
        last = inputs[:, -self.be.bsz :]
        self.outputs[:] = last + beta * self.outputs if beta else last
        return self.outputs

    def bprop(self, error: Tensor, alpha: float = 1.0, beta: float = 0.0) -> Tensor | None:
        self.check_error(error)
        if self.deltas is not None:
            first, last = self.deltas[:, : -self.be.bsz], self.deltas[:, -self.be.bsz :]
            if self.nsteps > 1:
                first[:] = beta * first if beta else 0
            last[:] = alpha * error + beta * last if beta else alpha * error
        return self.deltas


class BiSum(Layer):
    """The sum of both directions of a bidirectional layer, (2 F, T) -> (F, T).

    Parameters
    ----------
    name : str, optional
        Name of the layer.
    """

    needs_outputs = False

    def configure(self, in_obj: LayerInput) -> Self:
        super().configure(in_obj)
        if not isinstance(self.in_shape, tuple) or len(self.in_shape) != 2 or self.in_shape[0] % 2:
            raise ValueError(f"{self.name}: BiSum expected inputs (2 F, T), got the shape {self.in_shape}")
        self.out_shape = (self.in_shape[0] // 2, self.in_shape[1])
        return self

    def formula(self, x: Tensor) -> Operand:
        n = self.out_shape[0]
        return x[:n] + x[n:]


class DeepBiRNN(LayerList):
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

    @checks_arguments
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
        for i in range(integer("depth", depth)):
            self.append(layer(nout, init, init_inner, activation, reset_cells, split_inputs=bool(i) and not bi_sum))
            if bi_sum:
                self.append(BiSum())


class DeepBiLSTM(LayerList):
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

    @checks_arguments
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
            for i in range(integer("depth", depth))
        )
