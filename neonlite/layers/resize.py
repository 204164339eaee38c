"""Change the batch size or the number of time steps of a configured layer. These functions are methods of Layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neonlite.backend.validation import integer
from neonlite.layers.layer_checks import check_sequence_shape, not_configured
from neonlite.layers.types import LayerShapes

if TYPE_CHECKING:
    from neonlite.layers.layer import Layer


def set_batch_size(layer: Layer, N: int) -> None:
    """Set ``be.bsz`` and reallocate buffers. Smaller buffers are views of the existing memory.

    Parameters
    ----------
    N : int
        The new batch size.
    """
    layer.be.bsz = N
    layer.allocate()
    layer.allocate_deltas()


def set_seq_len(layer: Layer, S: int) -> None:
    """Configure and reallocate the layer for inputs of S time steps.

    Parameters
    ----------
    S : int
        The number of time steps.

    Raises
    ------
    ValueError
        If the inputs have no time steps.
    """
    layer.configure(layer.shape_for_seq_len(S))
    layer.allocate()
    layer.allocate_deltas()


def shape_for_seq_len(layer: Layer, S: int) -> LayerShapes:
    """Return the input shape with S time steps.

    Parameters
    ----------
    S : int
        The number of time steps.
    """
    check_seq_len(layer, S)
    return check_sequence_shape(layer)[0], S


def check_seq_len(layer: Layer, S: int) -> None:
    """Raise ValueError unless S is a positive integer, RuntimeError if the layer is not configured.

    Parameters
    ----------
    S : int
        The number of time steps.
    """
    integer(f"{layer.name}: the number of time steps", S)
    if layer.in_shape is None:
        raise not_configured(layer)
