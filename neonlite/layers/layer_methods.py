"""Methods of Layer besides its passes: inference of one minibatch, another batch size or number of time steps, text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from neonlite.backend import Tensor
from neonlite.backend.interrupt import defers_interrupt
from neonlite.backend.validation import boolean, integer
from neonlite.files import printable
from neonlite.layers.buffers import copy_tensors, num_steps
from neonlite.layers.inference_copies import MAX_MINIBATCHES
from neonlite.layers.layer_checks import check_sequence_shape, not_configured
from neonlite.layers.types import LayerOutputs, LayerShapes, Tensors
from neonlite.messages import describe

if TYPE_CHECKING:
    from neonlite.layers.layer import Layer


@defers_interrupt
def infer(layer: Layer, x: Tensors) -> LayerOutputs:
    """Return the outputs at inference, as ``fprop(x, inference=True)`` does, for any number of samples N.

    The layer must be configured, and its parameters allocated. Training, its buffers and ``be.bsz`` are not affected.
    Recurrent states start at zero, as in ``Model.predict``.

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
        If the layer is not configured, or its parameters are not allocated.
    """
    layer.check_configured()
    for leaf in layer.leaves():
        if leaf.has_params and any(p is None for p in leaf.parameters):
            raise RuntimeError(f"{leaf.name}: expected allocated parameters, got none. Call allocate() first.")
    n = num_samples(layer, x)
    with layer.be.lock, layer.be.batch_size(n):
        copy = layer.inference_copies.of(layer, n, MAX_MINIBATCHES * n)
        leaves = copy.leaves()
        for leaf in leaves:
            leaf.set_state({})
        inputs: Any = x if leaves[0].owns_output else copy_tensors(x)  # else the outputs overwrite them
        outputs: Tensors = copy_tensors(copy.fprop(inputs, inference=True))
        return outputs


# --- training ---


def set_trainable(layers: Iterable[Layer], value: bool) -> None:
    """Set whether the parameters of layers, and of layers in them, are trained; plan the backward pass again.

    Parameters
    ----------
    layers : iterable of Layer
        Layers and containers.
    value : bool
        Whether they are trained.
    """
    roots = {}
    for layer in layers:
        for leaf in layer.leaves():
            leaf._trainable = boolean(f"{leaf.name}.trainable", value)
        roots[id(layer.root)] = layer.root
    for root in roots.values():
        if root.has_backward_plan and root.batch_size:  # else all buffers are allocated before the next minibatch
            with root.be.batch_size(root.batch_size):
                allocate_backward(root)
        if root.gradient_reducer is not None:
            root.gradient_reducer.plan()


# --- batch size and number of time steps ---


def num_samples(layer: Layer, x: Tensors) -> int:
    """Return the number of samples N in the inputs of a layer: their columns, divided by the number of time steps.

    Parameters
    ----------
    x : Tensor or list of Tensor
        The inputs, (F, N) or (F, T N).
    """
    layer.check_configured()
    first: Any = x[0] if isinstance(x, list | tuple) and x else x
    shape = layer.in_shape[0] if first is not x or isinstance(layer.in_shape, list) else layer.in_shape
    if not isinstance(first, Tensor):
        layer.leaves()[0].check_tensor("inputs", first, shape)
    if not first.shape[1]:
        raise ValueError(f"{layer.name}: expected inputs with one column or more, got {describe(first)}.")
    num_columns: int = first.shape[1]
    return max(1, num_columns // num_steps(shape))  # fprop refuses other numbers of columns


def set_batch_size(layer: Layer, N: int) -> None:
    """Set ``be.bsz`` and reallocate buffers. Smaller buffers are views of the existing memory.

    Parameters
    ----------
    N : int
        The new batch size.
    """
    layer.be.bsz = N
    allocate_buffers(layer)


def allocate_buffers(layer: Layer, **options: Any) -> None:
    """Allocate all buffers for ``be.bsz``.

    Parameters
    ----------
    options
        Arguments of ``layer.allocate``.
    """
    layer.batch_size = 0  # until the end, so that all buffers are allocated again after an error
    layer.allocate(**options)
    allocate_backward(layer)


def allocate_backward(layer: Layer) -> None:
    """Allocate the buffers of ``bprop``. After an error the layer has no batch size, as in ``allocate_buffers``."""
    batch_size, layer.batch_size = layer.batch_size, 0
    try:
        layer.allocate_deltas()
    except BaseException:
        for leaf in layer.leaves():
            leaf.set_state(leaf.get_state())  # an allocation resets all but a state that was set
        raise
    layer.batch_size = batch_size


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
    shape, layer.batch_size = layer.shape_for_seq_len(S), 0
    layer.configure(shape)
    allocate_buffers(layer)


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
    """Raise ValueError unless S is a positive integer and the layer is configured.

    Parameters
    ----------
    S : int
        The number of time steps.
    """
    integer(f"{layer.name}: the number of time steps", S)
    if layer.in_shape is None:
        raise ValueError(str(not_configured(layer)))


# --- text ---


def layer_repr(layer: Layer) -> str:
    """Return ``repr(layer)``: the name, shapes and number of parameters."""
    return f"{layer.classnm}({', '.join([repr(layer.name), *layer.repr_details()])})"


def repr_details(layer: Layer) -> list[str]:
    """Return what ``repr`` shows besides the name: shapes and number of parameters."""
    if layer.out_shape is None:
        return ["not configured"]
    count = layer.num_parameters
    parameters = [f"{count:,} parameter{'s' * (count != 1)}"] if count else []
    return [f"{layer.in_shape} -> {layer.out_shape}", *parameters]


def layer_str(layer: Layer) -> str:
    """Return ``str(layer)``: the class, name and shapes."""
    return f"{layer.classnm} Layer '{printable(layer.name, keep='')}': {layer.in_shape} -> {layer.out_shape}"


def nested_str(layer: Layer, level: int = 0) -> str:
    """Return the layer as a line of text.

    Parameters
    ----------
    level : int
        Depth of indentation.
    """
    return f"{'  ' * level}{layer}"
