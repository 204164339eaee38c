"""The functions of ``neonlite.array_api`` on one backend, imported when they are first used: ``be.array_api``."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from neonlite import typing

CREATE = ("__array_namespace_info__", "default_rng")  # besides the creation functions: they use the current backend


class Namespace:
    """The namespace ``neonlite.array_api``, or its ``random``, with the arrays on a given backend: ``be.array_api``.

    Parameters
    ----------
    be : Backend
        The backend of new arrays.
    name : str
        The name of the module.
    """

    def __init__(self, be: Any, name: str = "neonlite.array_api") -> None:
        self.be, self.__name__ = be, name

    def __getattr__(self, name: str) -> Any:
        from neonlite.array_api import creation

        value = function = getattr(importlib.import_module(self.__name__), name)
        if name in CREATE or name in vars(creation):

            @functools.wraps(function)
            def on_backend(*args: Any, **kwargs: Any) -> Any:
                with typing.use_backend(self.be):
                    return function(*args, **kwargs)

            value = on_backend
        elif name == "random":
            value = Namespace(self.be, f"{self.__name__}.random")
        self.__dict__[name] = value
        return value

    def __dir__(self) -> list[str]:
        return list(importlib.import_module(self.__name__).__all__)

    def __repr__(self) -> str:
        return f"<{self.__name__} on {self.be!r}>"

    def __deepcopy__(self, memo: dict[int, object]) -> Namespace:
        return self
