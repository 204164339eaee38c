"""How do words become numbers?  By a table with a row of numbers for each word, which is learned."""

from __future__ import annotations

from typing import Any

from neonlite.layers.buffers import features
from neonlite.layers.deltas import Deltas, Place
from neonlite.layers.layer import accumulates
from neonlite.layers.parameter import ParameterLayer
from neonlite.ops import DIGITS
from neonlite.optree import describe


class LookupTable(ParameterLayer):
    """Row w of ``W`` (vocab_size, embedding_dim) for each word w, a whole number from 0 below vocab_size.

    Inputs (nin, N), or (1, T) with time steps, of any dtype that has all words; outputs (embedding_dim, nin * N), a
    column t * N + n.
    Row ``pad_idx`` begins with zeros and its gradient is zero, so that momentum and decay leave it there as well.
    Without ``update`` the gradient of W stays zero. Words have no deltas: ``bprop`` returns None.
    """

    reads_outputs = False

    def __init__(
        self,
        vocab_size: int,
        embedding_dim: int,
        init: Any,
        update: bool = True,
        pad_idx: int | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(init, name)
        for what, n in {"vocab_size": vocab_size, "embedding_dim": embedding_dim}.items():
            if isinstance(n, bool) or not isinstance(n, int) or n < 1:
                raise ValueError(f"{self.name}: {what} is a whole number from 1; got {n!r}")
        if pad_idx is not None and (type(pad_idx) is not int or pad_idx not in range(vocab_size)):
            raise ValueError(f"{self.name}: pad_idx is a word from 0 to {vocab_size - 1}, or None; got {pad_idx!r}")
        self.vocab_size, self.embedding_dim = vocab_size, embedding_dim
        self.update, self.pad_idx = update, pad_idx
        self.words: Any = None

    def configure(self, in_obj: Any) -> LookupTable:
        """Take the inputs' shape: nin words, or T time steps of one word."""
        super().configure(in_obj)
        steps = isinstance(self.in_shape, tuple) and len(self.in_shape) == 2
        if steps and self.in_shape[0] != 1:
            raise ValueError(f"{self.name}: inputs are nin words, or (1, T): one a time step; got {self.in_shape}")
        self.nin = self.in_shape[1] if steps else features(self.in_shape)
        self.out_shape = (self.embedding_dim, self.nin)
        self.weight_shape = (self.vocab_size, self.embedding_dim)
        return self

    def allocate(self, shared_outputs: Any = None, accumulate_updates: bool = False) -> None:
        """Make the buffers; the row of ``pad_idx`` is zero."""
        super().allocate(shared_outputs, accumulate_updates)
        self.words = self.buffer("words", (1, self.nin), "int32").reshape(-1, 1)
        if self.pad_idx is not None:
            self.W[self.pad_idx] = 0

    def allocate_deltas(self, global_deltas: Any = None) -> None:
        """Make nothing: words have no deltas."""

    def set_deltas(self, delta_buffers: Any) -> None:
        """Take nothing: words have no deltas."""

    def reserve(self, deltas: Deltas, error: Place | None) -> None:
        """Reserve nothing: words have no deltas."""
        deltas.free(error)

    @property
    def learns(self) -> bool:
        """Whether an optimizer is to update it."""
        return self.update and super().learns

    def in_steps(self, S: int) -> Any:
        """Return the inputs' shape with S words."""
        self.check_steps(S)
        return (1, S) if isinstance(self.in_shape, tuple) else S

    def index(self, x: Any) -> Any:
        """Return words as a column of int32. What is no word becomes one past the last, which ``be.take`` refuses."""
        dtype, last = x.info.dtype, self.vocab_size - 1
        if last > 2 ** DIGITS.get(dtype, 64):
            raise TypeError(
                f"{self.name}: words are whole numbers from 0 to {last}; {describe(x)} is {dtype}, in which those "
                f"above {2 ** DIGITS[dtype]} are rounded to others: inputs of int32 are not"
            )
        x = self.be.reshape(x, -1, 1)
        word = self.be.astype(x, "int32")
        return self.be.where((word == x) * (word >= 0), word, self.vocab_size)  # be.take counts from the end below 0

    def formula(self, x: Any) -> Any:
        """Return the rows of the words as columns; those of ``pad_idx`` are no part of W."""
        word = self.index(x)
        rows = self.be.take(self.W, word, axis=0)
        return self.be.transpose(rows if self.pad_idx is None else self.be.where(word == self.pad_idx, 0, rows))

    def fprop(self, inputs: Any, inference: bool = False, beta: float = 0.0) -> Any:
        """Look up the words. IndexError for one that is not in the table, TypeError for a dtype that has not all."""
        self.prepare(inputs, inference)
        self.words[:] = self.index(inputs)
        found = self.be.transpose(self.be.take(self.W, self.words, axis=0))
        try:
            self.outputs[:] = found + beta * self.outputs if beta else found
        except IndexError:
            strange = inputs.get().reshape(-1, 1)[self.words.get() >= self.vocab_size]
            raise IndexError(
                f"{self.name}: words are whole numbers from 0 to {self.vocab_size - 1}; got {strange[0]}"
            ) from None
        return self.outputs

    @accumulates
    def bprop(self, error: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute the gradient of W: for each word, the sum of the columns of the error where it stands."""
        self.check_error(error)
        if self.update:
            self.be.compound_bprop_lut(self.nin, self.words, error, None, self.dW, self.pad_idx)
