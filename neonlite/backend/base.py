"""BackendBase: what the classes of a Backend's methods, tensors and op-trees use of it. It imports no other module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from weakref import WeakValueDictionary

# the functions of ``current.py``, which sets them, for the modules below it
current_backend: Callable[[], Any]
use_backend: Callable[[Any], AbstractContextManager[Any]]


class Untracked:
    """Base of classes whose objects a snapshot does not look into: they depend only on what is recorded elsewhere."""

    __slots__ = ()


class BackendBase(Untracked):
    """The base class of ``Backend`` and of the classes that define its methods.

    It is below tensors and op-trees, which therefore use it in annotations. For type checkers, it has the attributes
    of ``Backend`` that are listed here with their types, and all others with the type Any.
    """

    name: str
    bsz: int
    closed_by: str  # the call that closed the backend, with file and line; "" if it is open
    default_dtype_name: str
    compat_mode: str | None
    deterministic: bool | None
    streams: Any
    runtime: Any
    primitives: Any
    _executor: Any
    _bsz: int
    hist_bins: int
    hist_offset: int
    hist_buf: dict[str, Any]
    num_redefinitions: int
    exported: WeakValueDictionary[int, Any]
    distributed: WeakValueDictionary[int, Any]

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
