"""Type aliases of the arguments of layers, for editors and type checkers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from neonlite.initializers import Initializer
    from neonlite.layers.layer import Layer
    from neonlite.transforms import Transform
    from neonlite.typing import Array

LayerShape = int | tuple[int, ...]  # F, (F, T) or (C, H, W): without the batch dimension
LayerShapes: TypeAlias = "LayerShape | Sequence[LayerShapes]"  # also of several inputs or outputs


class HasShape(Protocol):
    """A data set or tensor: an object with the shape of its data."""

    @property
    def shape(self) -> Any:
        """The shape."""


LayerInput: TypeAlias = "Layer | HasShape | LayerShapes"  # the argument of ``Layer.configure``
LayerLike: TypeAlias = "Layer | Sequence[LayerLike]"  # a layer, or nested lists of layers
InitLike: TypeAlias = "Initializer | Array | str"  # initial values of a parameter; a name such as "glorot"
ActivationLike: TypeAlias = "Transform | str"  # an activation function; a name such as "relu"
WindowSizes = int | Sequence[int] | dict[str, int]  # sizes of a window or filter: a scalar, by axis or by name
