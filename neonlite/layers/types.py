"""Type aliases of the arguments of layers, for editors and type checkers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from neonlite.backend import Tensor
    from neonlite.layers.layer import Layer
    from neonlite.layers.parameter import TensorAttribute
    from neonlite.transforms import Transform
    from neonlite.typing import Array

L = TypeVar("L")
P = ParamSpec("P")
R = TypeVar("R")

LayerShape = int | tuple[int, ...]  # F, (F, T) or (C, H, W): without the batch dimension
LayerShapes: TypeAlias = "LayerShape | Sequence[LayerShapes]"  # also of several inputs or outputs


class HasShape(Protocol):
    """A data set or tensor: an object with the shape of its data."""

    @property
    def shape(self) -> Any:
        """The shape."""


class HasFill(Protocol):
    """An initializer."""

    def fill(self, param: Tensor) -> None:
        """Assign initial values to a parameter."""


if TYPE_CHECKING:

    class AnyLayer(Layer):
        """A layer whose class the checker does not know: it may have any attribute, such as ``W`` or ``keep``."""

        W: TensorAttribute
        dW: TensorAttribute

        def __getattr__(self, name: str) -> Any: ...


LayerInput: TypeAlias = "Layer | HasShape | LayerShapes"  # the argument of ``Layer.configure``
LayerLike: TypeAlias = "Layer | Sequence[LayerLike]"  # a layer, or nested lists of layers
Tensors: TypeAlias = (
    "Tensor | list[Tensor] | tuple[Tensor, ...]"  # the inputs or outputs of a layer: one tensor, or several
)
# The outputs: one tensor, or a list or tuple of several (Any, because few networks have several)
LayerOutputs: TypeAlias = "Tensor | Any"
Deltas: TypeAlias = "Tensor | list[Deltas] | None"  # the gradients with respect to them; None: not computed
Terminal: TypeAlias = "Layer | list[Terminal]"  # the last layer of a network, or of each of its branches
Parameter: TypeAlias = "tuple[tuple[Tensor, Tensor], list[Tensor]]"  # ((W, dW), states), as get_params() returns it
InitLike: TypeAlias = "HasFill | Array | str"  # initial values of a parameter; a name such as "glorot"
ActivationLike: TypeAlias = "Transform | str"  # an activation function; a name such as "relu"
WindowSizes = int | Sequence[int] | dict[str, int]  # sizes of a window or filter: a scalar, by axis or by name


def overridable(method: Callable[Concatenate[L, P], R]) -> Callable[Concatenate[L, ...], R]:
    """Decorate a method that subclasses may override with fewer parameters, as neon's layers do."""
    return method
