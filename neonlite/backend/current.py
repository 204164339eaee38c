"""Which backend is the current one?  The one that ``gen_backend`` made last: ``NervanaObject.be``."""

from __future__ import annotations

from typing import Any

import numpy as np

from neonlite.backend.backend import Backend
from neonlite.backend.description import Described
from neonlite.backend.runtimes import default

_current: Backend | None = None


def gen_backend(
    backend: str | None = None,
    rng_seed: int | None = None,
    datatype: Any = np.float32,
    batch_size: int = 0,
    stochastic_round: bool = False,
    device_id: int = 0,
    max_devices: int | None = None,
    compat_mode: str | None = None,
    deterministic_update: bool | None = None,
    deterministic: bool | None = None,
) -> Backend:
    """Make a backend the current one, in the place of an earlier one, which is cleaned up; return it.

    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu", batch_size=32)
    >>> be.zeros((2, 3)).shape
    (2, 3)

    ``backend``: a runtime's name; unless given, "mkl" when it is installed, else "cpu". ValueError when it is unknown,
    ImportError with the pip line when it is not installed. ``datatype``: the dtype of new tensors. ``batch_size``: the
    N of ``be.iobuf``. ``device_id``: which device of the runtime, from 0. ``deterministic``: the same bits, run after
    run. ``stochastic_round``, ``max_devices`` and ``deterministic_update`` are neon's, and have no effect: optimizers
    round, a backend has one device, and updates are deterministic.
    """
    global _current
    made = Backend(backend or default(), rng_seed, datatype, compat_mode, deterministic, batch_size, device_id)
    cleanup_backend()
    _current = made
    return made


def cleanup_backend() -> None:
    """Clean up the current backend, if there is one; its tensors can still be read."""
    global _current
    if _current is not None:
        _current.cleanup_backend()
        _current = None


def current() -> Backend:
    """Return the current backend; RuntimeError when there is none yet."""
    if _current is None:
        raise RuntimeError("there is no backend yet: call gen_backend() first")
    return _current


class _Current(type):
    @property
    def be(cls) -> Backend:
        return current()

    @be.setter
    def be(cls, value: Backend | None) -> None:
        global _current
        _current = value


class NervanaObject(Described, metaclass=_Current):
    """The base of everything that uses a backend, as ``self.be``; it has a name, and a description."""

    _be: Backend | None = None

    @property
    def be(self) -> Backend:
        """The backend that this object was given; the current one until then."""
        return self._be or current()

    @be.setter
    def be(self, value: Backend | None) -> None:
        self._be = value
