"""Bidirectional recurrent layers: BiRNN, BiLSTM and BiBNRNN, lists of several, and the sum of both directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from neonlite.backend import Tensor
from neonlite.backend.validation import checks_arguments, integer
from neonlite.layers.activation import ActivationLike
from neonlite.layers.container import LayerList
from neonlite.layers.layer import Layer, LayerInput
from neonlite.layers.norm import RunningStatistics
from neonlite.layers.parameter import InitLike
from neonlite.layers.recurrent import LSTM, Recurrent
from neonlite.ops.recurrent import take_rows
from neonlite.optree import Operand


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


class BiBNRNN(RunningStatistics, BiRNN):
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
