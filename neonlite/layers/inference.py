"""The outputs of a layer at inference, for one minibatch, without a change of the state of training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from neonlite.backend import Tensor
from neonlite.layers.buffers import copy_tensors

if TYPE_CHECKING:
    from neonlite.layers.layer import Layer


def infer(layer: Layer, x: Tensor | Sequence[Tensor]) -> Any:
    """Return the outputs at inference, ``fprop(x, inference=True)``. The layer must be configured and allocated.

    Recurrent states start at zero, as in ``Model.predict``, and those for the next minibatch are unchanged.

    Parameters
    ----------
    x : Tensor or list of Tensor
        The inputs, (F, N), or (F, T N) with time steps; a list for a network with several inputs.

    Returns
    -------
    Tensor or list of Tensor
        The outputs, (K, N) or (K, T N), in new tensors.

    Raises
    ------
    RuntimeError
        If the layer is not configured or not allocated.
    """
    layer.check_configured()
    leaves = layer.leaves()
    inputs: Any = x if leaves[0].owns_output else copy_tensors(x)  # else the outputs overwrite them
    states = [(leaf, leaf.get_state()) for leaf in leaves]
    try:
        for leaf in leaves:
            leaf.set_state({})
        return copy_tensors(layer.fprop(inputs, inference=True))
    finally:
        for leaf, state in states:
            leaf.set_state(state)
