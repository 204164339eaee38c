"""The functions of ``neonlite.array_api`` on one backend, imported when they are first used: ``be.array_api``."""

from __future__ import annotations

import functools
from typing import Any

from neonlite import typing


class Namespace:
    """The namespace ``neonlite.array_api`` with the arrays on a given backend: ``be.array_api``.

    Parameters
    ----------
    be : Backend
        The backend of new arrays.
    """

    __name__ = "neonlite.array_api"

    def __init__(self, be: Any) -> None:
        self.be = be

    def __getattr__(self, name: str) -> Any:
        from neonlite import array_api
        from neonlite.array_api import creation

        value = function = getattr(array_api, name)
        if name == "__array_namespace_info__" or name in vars(creation):  # they use the current backend

            @functools.wraps(function)
            def on_backend(*args: Any, **kwargs: Any) -> Any:
                with typing.use_backend(self.be):
                    return function(*args, **kwargs)

            value = on_backend
        self.__dict__[name] = value
        return value

    def __dir__(self) -> list[str]:
        from neonlite import array_api

        return list(array_api.__all__)

    def __repr__(self) -> str:
        return f"<neonlite.array_api on {self.be!r}>"

    def __deepcopy__(self, memo: dict[int, object]) -> Namespace:
        return self
