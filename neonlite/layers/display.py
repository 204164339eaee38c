"""LayerList: the base class of lists of layers, such as Affine, which print with their class."""

from __future__ import annotations

from typing import Any

from neonlite import html_repr
from neonlite.backend.validation import check_constructor
from neonlite.name_hints import LAYER_LIST, add_hints


@add_hints(LAYER_LIST)
class LayerList(list[Any]):
    """Base class of lists of layers, such as Affine: a list that prints with its class."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_constructor(cls)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({super().__repr__()})"

    def _repr_html_(self) -> str:
        count = f"{len(self)} layer{'s' * (len(self) != 1)}"
        return str(html_repr.format_object(type(self).__name__, [count], {"layers": list(self)}))
