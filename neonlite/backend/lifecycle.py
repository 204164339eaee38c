"""Creation, closing and clean-up of backends, and the check that a backend is open."""

from __future__ import annotations

import atexit
import weakref
from typing import TYPE_CHECKING, Any, cast

from neonlite.backend.cache import clear_caches
from neonlite.backend.warn import called_from

if TYPE_CHECKING:
    from neonlite.backend.backend import Backend

CLOSED_MESSAGE = (
    "is closed: its tensors can still be read with .get(), but nothing can be evaluated. Create tensors and networks "
    "again on the backend that gen_backend() returns, or copy a tensor there with be.array(t)."
)

open_backends: weakref.WeakSet[Backend] = weakref.WeakSet()  # cleaned up when Python exits


def allocate_backend(cls: type[Backend], /, name: str, **options: object) -> Backend:
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
    return cls(name, **cast(dict[str, Any], options))


def cleanup_backend(be: Backend) -> None:
    """Close the backend: release its plans and buffers. Its tensors can still be read."""
    be.closed_by = be.closed_by or called_from()
    be._executor = be.primitives = None
    be.memory_tracker.clear_thread_cache()
    be.hist_buf = {}
    clear_caches(be.memory_tracker)


@atexit.register
def _clean_up() -> None:
    for be in list(open_backends):
        be.cleanup_backend()


def check_open(be: Backend) -> None:
    """Raise RuntimeError if the backend is closed."""
    if be.closed_by:
        raise RuntimeError(f"{be!r} {CLOSED_MESSAGE}")
    be.runtime.check_device()
