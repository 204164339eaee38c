"""Layers as text: repr(layer), str(layer), and one line for each layer of a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neonlite import html_repr
from neonlite.files import printable

if TYPE_CHECKING:
    from neonlite.layers.layer import Layer


class LayerList(list[Any]):
    """Base class of lists of layers, such as Affine: a list that prints with its class."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({super().__repr__()})"

    def _repr_html_(self) -> str:
        count = f"{len(self)} layer{'s' * (len(self) != 1)}"
        return html_repr.format_object(type(self).__name__, [count], {"layers": list(self)})


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
