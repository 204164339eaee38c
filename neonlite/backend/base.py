"""BackendBase: what the classes of a Backend's methods, tensors and op-trees use of it; how backends are closed."""

from __future__ import annotations

import atexit
import weakref
from typing import TYPE_CHECKING, Any, Self, cast

from neonlite.backend.cache import clear_caches
from neonlite.backend.validation import called_from

if TYPE_CHECKING:
    from weakref import WeakValueDictionary

    from neonlite.backend.random import RandomStreams


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
    streams: RandomStreams
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


# --- creation, closing and clean-up of backends, and the check that a backend is open ---

CLOSED_MESSAGE = (
    "is closed: its tensors can still be read with .get(), but nothing can be evaluated. Create tensors and networks "
    "again on the backend that gen_backend() returns, or copy a tensor there with be.array(t)."
)

open_backends: weakref.WeakSet[BackendBase] = weakref.WeakSet()  # cleaned up when Python exits


class LifecycleMethods(BackendBase):
    """The methods of ``Backend`` that create and close a backend."""

    @classmethod
    def allocate_backend(cls, /, name: str, **options: object) -> Self:
        """Create a backend without making it the current one.

        Parameters
        ----------
        name : str
            The runtime.
        **options : object
            Arguments of ``Backend``.

        Returns
        -------
        Backend
            The new backend.
        """
        return cast(Any, cls)(name, **options)

    def cleanup_backend(self) -> None:
        """Close the backend: release its plans and buffers. Its tensors can still be read."""
        self.closed_by = self.closed_by or called_from()
        self._executor = self.primitives = None
        self.memory_tracker.clear_thread_cache()
        self.hist_buf = {}
        clear_caches(self.memory_tracker)


@atexit.register
def _clean_up() -> None:
    for be in list(open_backends):
        be.cleanup_backend()


def check_open(be: BackendBase) -> None:
    """Raise RuntimeError if the backend is closed."""
    if be.closed_by:
        raise RuntimeError(f"{be!r} {CLOSED_MESSAGE}")
    be.runtime.check_device()
