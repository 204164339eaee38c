"""LayerList: the base class of lists of layers, such as Affine, which print with their class."""

from __future__ import annotations

from typing import Any

from neonlite import html_repr
from neonlite.backend.builtin_classes import is_builtin
from neonlite.backend.validation import check_constructor
from neonlite.name_hints import LAYER_LIST, add_hints


@add_hints(LAYER_LIST)
class LayerList(list[Any]):
    """Base class of lists of layers, such as Affine: a list that prints with its class."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_constructor(cls)

    def __setattr__(self, name: str, value: object) -> None:
        if self and is_builtin(type(self)):  # the arguments of its constructor have been used
            raise AttributeError(
                f"{type(self).__name__}: expected no assignment to {name}, which would change none of its layers. Pass "
                f"{name} to the constructor, or set an attribute of one of the layers."
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({super().__repr__()})"

    def _repr_html_(self) -> str:
        count = f"{len(self)} layer{'s' * (len(self) != 1)}"
        return str(html_repr.format_object(type(self).__name__, [count], {"layers": list(self)}))
