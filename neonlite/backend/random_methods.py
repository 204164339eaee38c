"""Backend methods for random numbers: seeds and states of the streams, and tensors filled at random."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neonlite.backend.base import BackendBase
from neonlite.backend.lifecycle import check_open
from neonlite.backend.random import mask_threshold
from neonlite.backend.tensor import Tensor

if TYPE_CHECKING:
    import numpy as np


class RandomMethods(BackendBase):
    """The methods of ``Backend`` for random numbers."""

    def gen_rng(self, seed: int | None = None) -> np.random.RandomState:
        """Reseed all random streams.

        Parameters
        ----------
        seed : int, optional
            The seed, from 0 to 2**64 - 1; default from the operating system.

        Returns
        -------
        numpy.random.RandomState
            The generator for code on the host, ``be.rng``.
        """
        self.streams = self.runtime.random_streams(seed)
        return self.streams.host

    def rng_get_state(self, state: object = None) -> tuple[int | str, ...]:
        """Return the state of all random streams.

        Parameters
        ----------
        state : object
            For compatibility with neon, without effect.

        Returns
        -------
        tuple
            A small tuple of integers and strings, for ``rng_set_state``.
        """
        return self.streams.get_state()

    def rng_set_state(self, state: tuple[int | str, ...]) -> None:
        """Set the state of all random streams.

        Parameters
        ----------
        state : tuple
            A state that ``rng_get_state`` returned.

        Raises
        ------
        ValueError
            Any other value; the state is then unchanged.
        """
        self.streams.set_state(state)

    def rng_reset(self) -> None:
        """Reset all random streams to their initial state."""
        self.streams.reset()

    def make_binary_mask(self, out: Tensor, keepthresh: float = 0.5) -> None:
        """Fill a tensor with ones and zeros at random.

        Parameters
        ----------
        out : Tensor
            The tensor to fill.
        keepthresh : float
            The probability of a one, from 0 to 1; default 0.5.
        """
        check_open(self)
        mask_threshold(keepthresh)  # raises an error before the old values of the tensor are dropped
        self.runtime.fill_mask(self.streams, out, keepthresh)

    def fill_normal(self, ary: Tensor, mean: float = 0.0, stdv: float = 1.0) -> None:
        """Fill a tensor with normally distributed random numbers.

        Parameters
        ----------
        ary : Tensor
            The tensor to fill.
        mean : float
            The mean; default 0.
        stdv : float
            The standard deviation; default 1.
        """
        check_open(self)
        self.runtime.fill_normal(self.streams, ary, mean, stdv)
