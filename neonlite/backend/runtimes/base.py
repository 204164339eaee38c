"""What must be known of an array library?  A runtime: its name, its namespace, and the way to the host and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from neonlite.backend.executors.generic import Generic as Executor
from neonlite.backend.executors.quiet import Silence
from neonlite.backend.memory import Held, Ledger, NoRoom, Room
from neonlite.backend.plan import size
from neonlite.backend.primitives.generic import Generic as Primitives
from neonlite.ops import INTS


class Runtime:
    """An array library under a backend. One of your own says ``name``, ``xp``, ``put`` and ``get``; the rest may stay.

    Its arrays must be writable in place and have views. ``device_id`` counts from 0, below ``devices``.
    """

    name: str
    xp: Any  # the array-API namespace
    dtypes: tuple[str, ...] = ("float16", "float32", "float64", *INTS)  # the dtypes it has
    negative_steps = True  # whether x[::-1] is a view
    executor: Callable[[Any, Any], Any] = Executor  # runs plans; made with the runtime and its primitives
    primitives: Callable[[Any], Any] = Primitives  # convolutions, products and their like; made with the runtime
    halves = False  # whether primitives compute with dtypes of 16 bits as they are, or widen them

    def __init__(self, device_id: int = 0) -> None:
        if isinstance(device_id, bool) or not isinstance(device_id, int) or not 0 <= device_id < self.devices:
            have = f"{self.devices} device" + (", number 0" if self.devices == 1 else f"s, 0 to {self.devices - 1}")
            raise ValueError(f"the backend {self.name!r} has {have}; got device_id={device_id!r}")
        self.device_id = device_id
        self.ledger = Ledger()  # of the memory that is handed out and kept

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    @property
    def devices(self) -> int:
        """How many devices there are."""
        return 1

    def dtype(self, name: str) -> Any:
        """Return the library's dtype of a name; NumPy's where its namespace lacks it, as it does bfloat16."""
        return getattr(self.xp, name, None) or np.dtype(name)

    def put(self, array: Any) -> Any:
        """Return a NumPy array as an array of the library: a copy."""
        raise NotImplementedError

    def get(self, array: Any) -> Any:
        """Return an array of the library as a NumPy array: a copy."""
        raise NotImplementedError

    def write(self, array: Any, values: np.ndarray[Any, Any], dtype: str) -> None:
        """Write a NumPy array into an array of the library of some dtype, cast to it; the shapes broadcast."""
        with Silence():
            array[...] = self.put(values.astype(dtype))

    def share(self, array: Any) -> np.ndarray[Any, Any]:
        """Return an array of the library as a NumPy array that shows the same memory; BufferError when it cannot."""
        return np.from_dlpack(array)

    def closed(self, array: Any) -> Any:
        """Return a view of an array that cannot be written, nor can views of it; None where there is no such thing."""
        return None

    def layout(self, array: Any) -> tuple[int, tuple[int, ...]]:
        """Return the address of the first element, and the strides, both in bytes."""
        seen = self.share(array)
        return seen.__array_interface__["data"][0], seen.strides

    def reshape(self, array: Any, shape: tuple[int, ...]) -> Any:
        """Return a contiguous array in another shape: a view."""
        return self.xp.reshape(array, shape, copy=False)

    def wait(self) -> None:
        """Wait until all work is done."""

    def check(self) -> None:
        """Raise RuntimeError where this thread, or this process, cannot work with the device."""

    def room(self) -> tuple[int, int] | None:
        """Return the free bytes of the device's memory, and all of them; None where there is no device apart."""
        return None

    def no_room(self, what: str) -> NoRoom:
        """Return the error that there is no room for something: with what is held, what is free, and what helps."""
        room = self.room()
        free = f"; the device has {Room(*room)}" if room else ""
        return NoRoom(
            f"there is no room for {what}: {self.name!r} holds {self.ledger.memory()}{free}. What helps: a smaller "
            "batch size, dtype='float16', del of tensors that are done with. model.summary(data) and be.rehearsal() "
            "tell beforehand what there has to be"
        )

    def taken(self, kind: str, purpose: str, nbytes: int, make: Callable[[], Any]) -> tuple[Any, Held]:
        """Return an arena or a workspace, and its entry in the ledger, once it is there; NoRoom when it cannot be."""
        self.check()
        try:
            made = make()
        except MemoryError as error:
            raise self.no_room(f"{purpose}, {size(nbytes)}") from error
        return made, self.ledger.hold(nbytes, kind)

    def explained(self, error: Exception) -> Exception:
        """Return an error of the library, or one that tells its cause, where that is known."""
        return error

    def make_deterministic(self) -> None:
        """See to it that the same work gives the same bits, run after run."""

    def about(self) -> str:
        """Return version, threads and devices in a few words."""
        return f"{self.xp.__name__} {getattr(self.xp, '__version__', '')}".strip()
