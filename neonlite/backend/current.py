"""Which backend is the current one?  The one that ``gen_backend`` made last: ``NervanaObject.be``."""

from __future__ import annotations

import inspect
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from neonlite.backend.backend import Backend
from neonlite.backend.runtimes import default

_current: Backend | None = None
_counts: dict[str, Iterator[int]] = defaultdict(itertools.count)  # of objects without a name, by class


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


class NervanaObject(metaclass=_Current):
    """The base of everything that uses a backend, as ``self.be``, and has a name: ``ClassName_0`` unless given."""

    _be: Backend | None = None

    def __init__(self, name: str | None = None) -> None:
        self.name = f"{self.classnm}_{next(_counts[self.classnm])}" if name is None else name

    @property
    def be(self) -> Backend:
        """The backend that this object was given; the current one until then."""
        return self._be or current()

    @be.setter
    def be(self, value: Backend | None) -> None:
        self._be = value

    @property
    def classnm(self) -> str:
        """The name of the class."""
        return type(self).__name__

    @property
    def modulenm(self) -> str:
        """The name of the class and of the module that has it."""
        return f"{type(self).__module__}.{self.classnm}"

    def get_description(self, skip: Sequence[str] = ()) -> dict[str, Any]:
        """Return ``{"type": ..., "config": {...}}``: the class, and what its constructor was given, as data.

        An argument is read from the attribute of its name; those without one, and those in ``skip``, are left out.
        """
        config = {}
        for name, parameter in inspect.signature(type(self).__init__).parameters.items():
            if name in ("self", *skip) or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            if hasattr(self, name):
                config[name] = described(getattr(self, name))
        return {"type": self.modulenm, "config": config}

    @classmethod
    def gen_class(cls, pdict: dict[str, Any]) -> Any:
        """Return a new object of this class from the ``config`` of a description."""
        return cls(**pdict)


def described(value: Any) -> Any:
    """Return a value as data: objects, also those in lists and dicts, by their descriptions."""
    if isinstance(value, NervanaObject):
        return value.get_description()
    if isinstance(value, list | tuple):
        return [described(x) for x in value]
    return {key: described(x) for key, x in value.items()} if isinstance(value, dict) else value
