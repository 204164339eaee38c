"""Library handles: one for each thread that is running."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerThread(Generic[T]):
    """Gives each thread its own object, and that of a thread that has ended to the next new one.

    A handle of cuBLAS or cuDNN holds tens of megabytes of GPU memory, so it is reused and never destroyed.

    Parameters
    ----------
    create : callable
        ``create()`` returns a new object.
    """

    def __init__(self, create: Callable[[], T]) -> None:
        self.create = create
        self.free: list[T] = []
        self.local = threading.local()

    def get(self) -> T:
        """Return the object of this thread."""
        loan: Loan[T] | None = getattr(self.local, "loan", None)
        if loan is None:
            try:
                value = self.free.pop()
            except IndexError:
                value = self.create()
            self.local.loan = loan = Loan(value)
            weakref.finalize(loan, self.free.append, value).atexit = False
        return loan.value


class Loan(Generic[T]):
    """Refers to the object of a thread, and is freed when the thread ends."""

    def __init__(self, value: T) -> None:
        self.value = value
