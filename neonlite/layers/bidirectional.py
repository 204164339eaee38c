"""Bidirectional recurrent layers: BiRNN, BiLSTM and BiBNRNN, lists of several, and the sum of both directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from neonlite.backend import Tensor
from neonlite.backend.validation import checks_arguments, integer
from neonlite.layers.activation import ActivationLike, RunningStatistics
from neonlite.layers.container import LayerList
from neonlite.layers.layer import Layer, LayerInput
from neonlite.layers.parameter import InitLike
from neonlite.layers.recurrent import LSTM, Recurrent, take_block
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
    ``W_input_b`` and so on. The backward direction always starts from zeros.

    Parameters
    ----------
    output_size : int
        Number of elements of a state of one direction.
    init, init_inner : initializer, array, Tensor or str, optional
        As for ``Recurrent``.
    activation : Transform or str
        As for ``Recurrent``.
    reset_cells : bool
        Start every minibatch from zero states.
    split_inputs : bool
        The forward direction reads the first half of the input features, the backward direction the second half, which
        is how the outputs of another bidirectional layer are arranged.
    name : str, optional
        Name of the layer.
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

    Parameters
    ----------
    output_size : int
        Number of elements of a state of one direction.
    init, init_inner : initializer, array, Tensor or str, optional
        As for ``LSTM``.
    activation, gate_activation : Transform or str
        As for ``LSTM``.
    reset_cells : bool
        Start every minibatch from zero states.
    split_inputs : bool
        As for ``BiRNN``.
    name : str, optional
        Name of the layer.

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

    def formula(self, x: Operand) -> Operand:
        """Return h of all steps, with inputs normalized by the statistics of the minibatch."""
        return self.run_directions(x, self._normalize_by_minibatch, training=False)

    def training_formula(self, x: Operand) -> Operand:
        """Return ``formula(x)`` from the recurrent state, and assign that and the running statistics."""
        be, rho = self.be, self.rho
        z = be.concat([self._input_product(x, k) for k in range(self.num_directions)], axis=0)
        new = be.mean(z, axis=1), be.var(z, axis=1)
        running = [self.gmean, self.gvar]
        be.assign(running, [rho * old + (1 - rho) * value for old, value in zip(running, new, strict=True)])
        return self.run_directions(x, self._normalize_by_minibatch, training=True)

    def inference_formula(self, x: Operand) -> Operand:
        """Return h of all steps, with inputs normalized by the running statistics."""
        return self.run_directions(x, self._normalize_by_running_statistics, training=False)

    def _input_product(self, x: Operand, k: int) -> Operand:
        """Return ``W_input x`` of one direction, (output_size, T N), given all inputs, (nin, T N)."""
        return self.be.dot(self.split_weights(self.W, k)[0], self.slice_direction(x, k))

    def _normalize_by_minibatch(self, x: Operand, k: int, initial: Sequence[Operand]) -> tuple[Operand, list[Operand]]:
        """Return h of all steps of a direction and the final states, by the statistics of the minibatch."""
        z = self.be.normalize(self._input_product(x, k), axis=1, eps=self.eps)
        return self.scan(z + self.split_weights(self.W, k)[2], k, initial)

    def _normalize_by_running_statistics(
        self, x: Operand, k: int, initial: Sequence[Operand]
    ) -> tuple[Operand, list[Operand]]:
        """Return h of all steps of a direction and the final states, by the running statistics."""
        rows = slice(k * self.nout, (k + 1) * self.nout)
        z = (self._input_product(x, k) - self.gmean[rows]) / self.be.sqrt(self.gvar[rows] + self.eps)
        return self.scan(z + self.split_weights(self.W, k)[2], k, initial)

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
        return take_block(x, (0, n), (0, x.shape[1])) + take_block(x, (n, n), (0, x.shape[1]))


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
