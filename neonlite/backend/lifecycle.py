"""Creation, closing and clean-up of backends, and the check that a backend is open."""

from __future__ import annotations

import atexit
import weakref
from typing import Any, Self, cast

from neonlite.backend.base import BackendBase
from neonlite.backend.cache import clear_caches
from neonlite.backend.warn import called_from

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
