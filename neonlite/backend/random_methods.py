"""Backend methods for random numbers: seeds and states of the streams, and tensors filled at random."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neonlite.backend.lifecycle import check_open
from neonlite.backend.random import mask_threshold
from neonlite.backend.tensor import Tensor

if TYPE_CHECKING:
    import numpy as np

    from neonlite.backend.backend import Backend


def gen_rng(be: Backend, seed: int | None = None) -> np.random.RandomState:
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
    be.streams = be.runtime.random_streams(seed)
    return be.streams.host


def rng_get_state(be: Backend, state: object = None) -> tuple[int | str, ...]:
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
    return be.streams.get_state()


def rng_set_state(be: Backend, state: tuple[int | str, ...]) -> None:
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
    be.streams.set_state(state)


def rng_reset(be: Backend) -> None:
    """Reset all random streams to their initial state."""
    be.streams.reset()


def make_binary_mask(be: Backend, out: Tensor, keepthresh: float = 0.5) -> None:
    """Fill a tensor with ones and zeros at random.

    Parameters
    ----------
    out : Tensor
        The tensor to fill.
    keepthresh : float
        The probability of a one, from 0 to 1; default 0.5.
    """
    check_open(be)
    mask_threshold(keepthresh)  # raises an error before the old values of the tensor are dropped
    be.runtime.fill_mask(be.streams, out, keepthresh)


def fill_normal(be: Backend, ary: Tensor, mean: float = 0.0, stdv: float = 1.0) -> None:
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
    check_open(be)
    be.runtime.fill_normal(be.streams, ary, mean, stdv)
