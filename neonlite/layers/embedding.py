"""Embedding of sequences: LookupTable of token ids, and position encodings, fixed and trained."""

from __future__ import annotations

import math
from typing import Any, Self

from neonlite.backend import Tensor
from neonlite.backend.validation import integer
from neonlite.initializers import Gaussian
from neonlite.layers.buffers import num_elements
from neonlite.layers.layer import Layer, LayerInput
from neonlite.layers.parameter import InitLike, ParameterLayer
from neonlite.messages import describe
from neonlite.optree import Operand
from neonlite.typing import SIGNIFICAND_BITS, LayerShapes


class LookupTable(ParameterLayer):
    """Embedding: row i of the table ``W`` (vocab_size, embedding_dim) for each token id i.

    Inputs are token ids (nin, N), or (1, T) or (T, 1) with time steps, of any dtype that represents all ids exactly.
    Outputs are (embedding_dim, nin * N), with column t * N + n. Token ids have no deltas: ``bprop`` returns None.

    Parameters
    ----------
    vocab_size : int
        Number of rows; token ids are 0 to vocab_size - 1.
    embedding_dim : int
        Number of columns.
    init : initializer, array, Tensor or str, optional
        Fills W (default: ``Gaussian()``).
    update : bool
        Train W; otherwise its gradient stays zero.
    pad_idx : int, optional
        Token id of padding, whose row is zero and has no gradient.
    name : str, optional
        Name of the layer.

    Raises
    ------
    IndexError
        By ``fprop``, for token ids outside of the table.
    TypeError
        By ``fprop``, for a dtype that cannot represent all ids.
    """

    can_compute_deltas = False

    def __init__(
        self,
        vocab_size: int,
        embedding_dim: int,
        init: InitLike | None = None,
        update: bool = True,
        pad_idx: int | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(Gaussian() if init is None else init, name)
        self.vocab_size = integer(f"{self.name}: vocab_size", vocab_size)
        self.embedding_dim = integer(f"{self.name}: embedding_dim", embedding_dim)
        if pad_idx is not None:
            pad_idx = integer(f"{self.name}: pad_idx", pad_idx, 0, self.vocab_size - 1)
        self._trainable, self.pad_idx = update, pad_idx

    def configure(self, in_obj: LayerInput) -> Self:
        super().configure(in_obj)
        if isinstance(self.in_shape, tuple) and len(self.in_shape) == 2 and 1 not in self.in_shape:
            raise ValueError(
                f"{self.name}: expected inputs of nin token ids, or (1, T) or (T, 1), one per time step, "
                f"got {self.in_shape}"
            )
        self.nin = num_elements(self.in_shape)
        self.out_shape = (self.embedding_dim, self.nin)
        self.weight_shape = (self.vocab_size, self.embedding_dim)
        return self

    def allocate(self, shared_outputs: Tensor | None = None, accumulate_updates: bool = False) -> None:
        super().allocate(shared_outputs, accumulate_updates)
        if self.pad_idx is not None:
            self.W[self.pad_idx] = 0

    @property
    def update(self) -> bool:
        """Whether the table is trained: ``trainable``, by neon's name."""
        return self.trainable

    @update.setter
    def update(self, value: bool) -> None:
        self.trainable = value

    def shape_for_seq_len(self, S: int) -> LayerShapes:
        self.check_seq_len(S)
        if isinstance(self.in_shape, int):
            return S
        return (1, S) if self.in_shape[0] == 1 else (S, 1)

    def to_token_ids(self, x: Operand) -> Operand:
        """Return inputs as a column of int32 token ids; invalid ones become ``vocab_size``, which ``be.take`` rejects.

        Parameters
        ----------
        x : Tensor or op-tree
            The inputs.
        """
        dtype, last = x.info.dtype, self.vocab_size - 1
        if last > 2 ** SIGNIFICAND_BITS.get(dtype, 64):
            raise TypeError(
                f"{self.name}: expected a dtype that represents the token ids 0 to {last}, got {describe(x)} of "
                f"{dtype}, which is exact up to {2 ** SIGNIFICAND_BITS[dtype]}. Use int32"
            )
        x = self.be.reshape(x, -1, 1)
        ids = self.be.astype(x, "int32")
        return self.be.where((ids == x) * (ids >= 0), ids, self.vocab_size)  # be.take accepts negative indices

    def formula(self, x: Tensor) -> Operand:
        """Return the rows of W as columns; those of ``pad_idx`` do not depend on W."""
        ids = self.to_token_ids(x)
        rows = self.be.take(self.W, ids, axis=0)
        return self.be.transpose(rows if self.pad_idx is None else self.be.where(ids == self.pad_idx, 0, rows))

    def fprop(self, inputs: Tensor, inference: bool = False, beta: float = 0.0) -> Tensor:
        try:
            return super().fprop(inputs, inference, beta)
        except IndexError:
            ids = self.to_token_ids(inputs).get()
            out_of_range = inputs.get().reshape(-1, 1)[ids >= self.vocab_size]
            raise IndexError(
                f"{self.name}: expected token ids from 0 to {self.vocab_size - 1}, got {out_of_range[0]}"
            ) from None


SINUSOID_BASE = 10000  # the longest wavelength is 2 pi times this many steps


class PositionalEncoding(Layer):
    """Add sinusoidal position encodings, (F, T) -> (F, T): ``x + PE``.

    ``PE[2i, t] = sin(t / 10000^(2i / F))`` and ``PE[2i + 1, t] = cos(t / 10000^(2i / F))``.

    Parameters
    ----------
    name : str, optional
        Name of the layer.

    References
    ----------
    Vaswani et al. 2017, section 3.5.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.table: Tensor | Any = None

    def configure(self, in_obj: LayerInput) -> Self:
        super().configure(in_obj)
        self.out_shape = self._check_sequence_shape()
        return self

    def allocate(self, shared_outputs: Tensor | None = None, accumulate_updates: bool = False) -> None:
        super().allocate(shared_outputs, accumulate_updates)
        self.allocate_parameters()

    def allocate_parameters(self) -> None:
        F, T = self.in_shape
        if self.table is None or self.table.shape != (F, T):
            self.table = self.be.array([sinusoid_row(i, F, T) for i in range(F)], name=f"{self.name}.table")

    def formula(self, x: Tensor) -> Operand:
        return add_per_step(x, self.table)


class PositionEmbedding(ParameterLayer):
    """Add trainable position embeddings, (F, T) -> (F, T): ``x + W[:, t]`` at step t, W (F, max_steps).

    Parameters
    ----------
    max_steps : int
        Largest T.
    init : initializer, array, Tensor or str, optional
        Fills W (default: ``Gaussian(scale=0.02)``).
    name : str, optional
        Name of the layer.

    References
    ----------
    Gehring et al. 2017, section 3.1.
    """

    def __init__(self, max_steps: int, init: InitLike | None = None, name: str | None = None) -> None:
        super().__init__(Gaussian(scale=0.02) if init is None else init, name)
        self.max_steps = integer(f"{self.name}: max_steps", max_steps)

    def configure(self, in_obj: LayerInput) -> Self:
        super().configure(in_obj)
        self.out_shape = F, T = self._check_sequence_shape()
        if self.max_steps < T:
            raise ValueError(
                f"{self.name}: expected at most max_steps = {self.max_steps} steps, got {T}. Use more max_steps"
            )
        self.weight_shape = (F, self.max_steps)
        return self

    def formula(self, x: Tensor) -> Operand:
        T = self.in_shape[1]
        return add_per_step(x, self.W if self.max_steps == T else self.W[:, :T])


def sinusoid_row(i: int, F: int, T: int) -> list[float]:
    """Return row i of the position encodings (F, T)."""
    f = math.cos if i % 2 else math.sin
    return [f(t / SINUSOID_BASE ** ((i - i % 2) / F)) for t in range(T)]


def add_per_step(x: Tensor, table: Tensor) -> Operand:
    """Return x (F, T N), with column t of a table (F, T) added to each column t N + n."""
    F, T = table.shape
    return x.backend.reshape(x.backend.reshape(x, (F, T, -1)) + x.backend.reshape(table, (F, T, 1)), x.shape)
