"""Checks of a layer's shape, inputs and error. An error message names the layer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from neonlite.autodiff import Autodiff
from neonlite.backend import Tensor
from neonlite.backend.batch_size import require_batch_size
from neonlite.layers.buffers import tensor_shape
from neonlite.layers.types import LayerInput, LayerShape
from neonlite.messages import describe
from neonlite.optree import Operand, OpTreeNode, postorder
from neonlite.tree_structure import RandomSource

if TYPE_CHECKING:
    from neonlite.layers.layer import Layer
    from neonlite.layers.weights import WeightOwner


def not_configured(layer: WeightOwner) -> RuntimeError:
    """Return the exception for a layer without shapes."""
    return RuntimeError(
        f"{layer.name}: expected a configured layer, got one without shapes. Call configure(shape), then allocate(); "
        "for a Model, call model.initialize(shape) with the shape of a row, or fit."
    )


def check_configured(layer: Layer) -> None:
    """Raise RuntimeError unless ``configure`` has set the shapes."""
    if layer.in_shape is None:
        raise not_configured(layer)
    if layer.out_shape is None:
        raise RuntimeError(
            f"{layer.name}: expected {layer.classnm}.configure to set out_shape, got None. Set self.out_shape there, "
            "such as to self.in_shape."
        )


def check_in_shape(layer: Layer, in_obj: LayerInput) -> None:
    """Raise ValueError unless ``configure(in_obj)`` has set a valid input shape."""
    shape, previous = layer.in_shape, layer.prev_layer if in_obj is layer.prev_layer else None
    if previous is not None and isinstance(shape, list):
        raise ValueError(
            f"{layer.name}: expected an input layer with one output, got {previous.name} with the output shapes "
            f"{shape}. Append layers to its branches."
        )
    sizes = (shape,) if isinstance(shape, int) else shape
    if not isinstance(sizes, tuple) or not sizes or not all(isinstance(n, int) and n > 0 for n in sizes):
        source = "" if previous is None else f" from {previous.name}, which is not configured"
        raise ValueError(f"{layer.name}: expected an input shape F, (F, T) or (C, H, W), got {shape!r}{source}.")


def check_inputs(layer: Layer, inputs: Tensor) -> None:
    """Raise an error unless these are valid inputs and the layer is allocated.

    Parameters
    ----------
    inputs : Tensor
        The argument of ``fprop``.
    """
    check_tensor(layer, "inputs", inputs, layer.in_shape)
    if layer.batch_size not in (0, layer.be.bsz):
        raise ValueError(
            f"{layer.name}: expected the batch size {layer.batch_size} of its buffers, got be.bsz = {layer.be.bsz}. "
            f"Call set_batch_size({layer.be.bsz})."
        )
    if layer.owns_output and layer.outputs is None:
        raise RuntimeError(f"{layer.name}: expected allocated buffers, got none. Call allocate() before fprop.")


def check_error(layer: Layer, error: Tensor) -> None:
    """Raise an error unless there was a training ``fprop`` and the error has the shape of the outputs.

    Parameters
    ----------
    error : Tensor
        The argument of ``bprop``.
    """
    check_can_backprop(layer)
    check_tensor(layer, "an error", error, layer.out_shape)


def check_can_backprop(layer: Layer) -> None:
    """Raise RuntimeError unless the last ``fprop`` was a training pass."""
    if not layer.can_backprop:
        raise RuntimeError(
            f"{layer.name}: bprop: expected a training fprop before it, got none, or one with inference=True. Call "
            "fprop(inputs) first."
        )


def check_tensor(layer: Layer, label: str, x: Tensor, shape: LayerShape | None) -> None:
    """Raise an error unless x is a tensor of a layer shape and the current batch size.

    Parameters
    ----------
    label : str
        What x is, for the error message.
    x : Tensor
        The tensor to check.
    shape : int or tuple
        The expected shape, without the batch dimension.
    """
    if shape is None:
        raise not_configured(layer)
    if not isinstance(x, Tensor):
        raise TypeError(f"{layer.name}: expected {label} as a tensor, got {describe(x)}. Create one with be.array(a).")
    batch_size = layer.be.bsz or require_batch_size(layer.be, layer.name)
    if x.shape != (expected := tensor_shape(shape, batch_size)):
        steps, rest = divmod(x.shape[1], batch_size)
        has_steps = isinstance(shape, tuple) and len(shape) == x.ndim == 2 and x.shape[0] == shape[0]
        fits = has_steps and steps and not rest
        hint = f" For {steps} time steps call set_seq_len({steps})." if fits else ""
        raise ValueError(
            f"{layer.name}: expected {label} of shape {expected} (layer shape {shape}, batch size {batch_size}), "
            f"got {describe(x)}.{hint}"
        )


def check_in_place(layer: Layer, inputs: Tensor, tree: OpTreeNode) -> None:
    """Raise ValueError if the derivative of the formula reads the inputs, which the outputs overwrite."""
    outputs, error = layer.be.empty(tree.shape), layer.be.empty(tree.shape)
    autodiff = Autodiff(tree, layer.be, error, values={tree: outputs}, allow_unused=True)
    trees = [x for x in autodiff.gradient_operands([inputs, *layer.parameters]) if isinstance(x, OpTreeNode)]
    for node in postorder(*trees):
        if any(x is inputs for x in node.operands):
            raise ValueError(
                f"{layer.name}: expected a derivative that does not read the inputs, because in_place overwrites "
                "them. Set in_place = False."
            )


def check_no_random_numbers(layer: Layer, trees: Iterable[Operand]) -> None:
    """Raise ValueError if the derivative of the formula reads random numbers, which ``bprop`` would draw again."""
    for node in postorder(*[x for x in trees if isinstance(x, OpTreeNode)]):
        if any(isinstance(x, RandomSource) for x in node.operands):
            raise ValueError(
                f"{layer.name}: expected a derivative that does not read random numbers, because bprop would draw "
                "other ones than fprop. In fprop, draw them into a tensor, such as self.mask[:] = be.rand(shape), and "
                "read this tensor in formula."
            )


def check_sequence_shape(layer: Layer) -> tuple[int, int]:
    """Return a layer's input shape; ValueError unless it is (F, T)."""
    if not isinstance(layer.in_shape, tuple) or len(layer.in_shape) != 2:
        raise ValueError(
            f"{layer.name}: expected inputs with time steps, (F, T), such as the outputs of a LookupTable, "
            f"got {layer.in_shape}"
        )
    return layer.in_shape
