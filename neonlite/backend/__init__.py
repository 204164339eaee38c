"""Backends, tensors and op-tree nodes.

``gen_backend()`` sets the current backend, ``use_backend()`` replaces it in one thread, ``NervanaObject.be`` reads it.
"""

from __future__ import annotations

import copyreg
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import numpy as np

from neonlite import typing
from neonlite.backend import objects, validation
from neonlite.backend.backend import Backend, Block
from neonlite.backend.concurrency import create_lock, set_threads
from neonlite.backend.planning import Plan
from neonlite.backend.runtimes import canonical, default_runtime, info
from neonlite.backend.runtimes.base import Runtime
from neonlite.backend.tensor import Tensor
from neonlite.optree import OpTreeNode
from neonlite.typing import DTypeLike, NumPyArray

__all__ = [
    "Backend",
    "Block",
    "NervanaObject",
    "OpTreeNode",
    "Plan",
    "Tensor",
    "cleanup_backend",
    "current_backend",
    "gen_backend",
    "info",
    "set_threads",
    "use_backend",
]

P = ParamSpec("P")
T = TypeVar("T")

set_attribute = object.__setattr__
_current_backend: Backend | None = None
_creation_lock = create_lock()  # one thread at a time creates the current backend


class ThreadBackend(threading.local):
    """The backend of ``use_backend`` in the current thread; None outside of such a block."""

    value: Backend | None = None


_thread_backend = ThreadBackend()


@validation.checks_arguments
def gen_backend(
    backend: str | Runtime | Backend | None = None,
    rng_seed: int | None = None,
    datatype: DTypeLike = np.float32,
    batch_size: int = 0,
    stochastic_round: bool = False,
    device_id: int = 0,
    max_devices: int | None = None,
    compat_mode: str | None = None,
    deterministic_update: bool | None = None,
    deterministic: bool | None = None,
) -> Backend:
    """Create the current backend, or reseed and return the live one if it has these settings.

    Called again with the same runtime, device, dtype, ``compat_mode`` and ``deterministic``, as when a notebook's cell
    is run twice, it reseeds the random streams of the live backend, whose tensors and models stay usable. With other
    settings it creates a new backend and closes the previous one, whose tensors can still be read.

    Without a call, ``gen_backend()`` is called when the current backend is first needed.

    Parameters
    ----------
    backend : str, Runtime or Backend, optional
        The name of a runtime; a runtime, as in ``gen_backend(MyRuntime())``; or a backend, whose runtime is used.
        Default "mkl" if it is installed, else "cpu".
    rng_seed : int, optional
        The seed of the random streams, from 0 to 2**64 - 1; default from the operating system.
    datatype : dtype
        The floating-point dtype of new tensors; default float32.
    batch_size : int
        The batch size N, ``be.bsz``; default 0: that of the live backend if it is returned, else not set.
    stochastic_round : bool
        For compatibility with neon, without effect: optimizers have this option.
    device_id : int
        The device of the runtime, from 0; default 0.
    max_devices : int, optional
        For compatibility with neon, without effect: a backend has one device.
    compat_mode : str, optional
        "caffe" rounds the output sizes of pooling up, as Caffe does.
    deterministic_update : bool, optional
        For compatibility with neon, without effect: updates are deterministic.
    deterministic : bool, optional
        Compute bit-identical results in every run, also where this is slower.

    Returns
    -------
    Backend
        The current backend.

    Raises
    ------
    ValueError
        Unknown runtime, device, ``compat_mode`` or seed, or a default dtype that is not floating point.
    TypeError
        ``stochastic_round`` is not a boolean, ``max_devices`` not an integer, an option is unknown, or the runtime is
        incomplete.
    ImportError
        The runtime is not installed; the message has the command that installs it.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu", rng_seed=0, batch_size=32)
    >>> be.zeros((2, 3)).shape
    (2, 3)
    >>> nl.gen_backend("cpu", rng_seed=0) is be, nl.gen_backend("cpu", datatype="float64") is be
    (True, False)
    >>> from neonlite.backend.runtimes.numpy import NumPyRuntime
    >>> class MyRuntime(NumPyRuntime):
    ...     name = "mine"
    >>> nl.gen_backend(MyRuntime()).name
    'mine'
    """
    global _current_backend
    if max_devices is not None:
        validation.integer("gen_backend: max_devices", max_devices)
    runtime = backend.runtime if isinstance(backend, Backend) else default_runtime() if backend is None else backend
    with _creation_lock:
        live = _current_backend if type(_current_backend) is Backend and not _current_backend.closed else None
        if live is not None and _is_equivalent(live, runtime, datatype, compat_mode, deterministic, device_id):
            _restart(live, rng_seed, batch_size)
            return live
        be = Backend(runtime, rng_seed, datatype, compat_mode, deterministic, batch_size, device_id)
        cleanup_backend()
        _current_backend = be
        return be


def _is_equivalent(
    be: Backend,
    runtime: str | Runtime,
    default_dtype: DTypeLike,
    compat_mode: str | None,
    deterministic: bool | None,
    device_id: int,
) -> bool:
    """Return whether a backend created with these arguments would differ from ``be`` at most in seed and batch size."""
    if not be.runtime.has_values:  # a dry run
        return False
    is_same_runtime = (
        (canonical(runtime), device_id) == (be.name, be.runtime.device_id)
        if isinstance(runtime, str)
        else isinstance(runtime, Runtime) and be.runtime.is_equivalent(runtime)
    )
    settings = be.default_dtype_name, be.compat_mode, bool(be.deterministic)
    return is_same_runtime and settings == (be.dtype_name(default_dtype), compat_mode, bool(deterministic))


def _restart(be: Backend, rng_seed: int | None, batch_size: int) -> None:
    """Reseed the random streams, and clear histograms, their settings, and the peak; tensors and plans stay valid.

    A ``batch_size`` of 0 leaves it unchanged.
    """
    streams = be.runtime.random_streams(rng_seed)
    be.bsz = batch_size or be.bsz
    be.streams = streams
    be.set_hist_buffers(Backend.hist_bins, Backend.hist_offset)
    be.memory_tracker.clear_thread_cache()
    be.reset_peak()


def cleanup_backend() -> None:
    """Close the current backend, if there is one. Its tensors can still be read."""
    global _current_backend
    if _current_backend is not None:
        _current_backend.cleanup_backend()
        _current_backend = None


def current_backend() -> Backend:
    """Return the current backend: that of ``use_backend``, else that of ``gen_backend()``, called if there is none.

    Returns
    -------
    Backend
        The current backend.
    """
    be = _thread_backend.value or _current_backend
    if be is None:
        with _creation_lock:
            be = gen_backend() if _current_backend is None else _current_backend
    return be


@contextmanager
def use_backend(be: Backend) -> Iterator[Backend]:
    """Make a backend the current one within a ``with`` block, for the current thread only.

    Parameters
    ----------
    be : Backend
        The backend. It is not closed at the end of the block.

    Yields
    ------
    Backend
        The backend.

    Examples
    --------
    >>> import neonlite as nl
    >>> from neonlite.backend import current_backend, use_backend
    >>> be = nl.gen_backend("cpu")
    >>> with use_backend(nl.Backend("cpu", default_dtype="float64")) as precise:
    ...     print(current_backend() is precise)
    True
    >>> current_backend() is be
    True
    """
    before = _thread_backend.value
    _thread_backend.value = be
    try:
        yield be
    finally:
        _thread_backend.value = before


def on_its_backend(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method so that the backend of its object is the current one while it runs."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        obj: Any = args[0]
        with use_backend(obj.be):
            return function(*args, **kwargs)

    return wrapper


class _BackendMeta(type):
    @property
    def be(cls) -> Backend:
        return current_backend()

    @be.setter
    def be(cls, value: Backend | None) -> None:
        global _current_backend
        _current_backend = value


class NervanaObject(objects.Serializable, metaclass=_BackendMeta):
    """Base of named, serializable objects that use a backend as ``self.be``.

    Constructor arguments that are annotated as bool must be booleans, 0 or 1; TypeError otherwise.

    Parameters
    ----------
    name : str, optional
        The object's name; default ``ClassName_0``, ``ClassName_1``, ...
    """

    _be: Backend | None = None
    needs_base_init = False  # whether an object without the attributes of the base class's __init__ is an error

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        validation.check_constructor(cls)

    def __setattr__(self, name: str, value: object) -> None:
        if name not in self.__dict__:
            objects.check_attribute(self, name)
        set_attribute(self, name, value)

    @property
    def be(self) -> Backend:
        """The backend set on this object, else the current backend."""
        return self._be or current_backend()

    @be.setter
    def be(self, value: Backend | None) -> None:
        self._be = value


# --- pickled tensors ------------------------------------------------------------------------------------------------


def reduce_tensor(t: Tensor) -> tuple[Callable[..., Tensor], tuple[object, ...]]:
    """Return what pickle stores of a tensor: its values, dtype and name, but not that it is a view of another one."""
    return load_tensor, (t.get(), t.info.dtype, t.name)


def load_tensor(values: NumPyArray, dtype: str, name: str | None) -> Tensor:
    """Return a pickled tensor on the current backend."""
    return current_backend().array(values, dtype, name)


copyreg.pickle(Tensor, reduce_tensor)
typing.current_backend, typing.use_backend = current_backend, use_backend
