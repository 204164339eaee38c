"""Bounds checks for GPU indices: kernels record an index out of range, and the host raises IndexError at its next sync.

The host reads the record when it synchronizes anyway: when it copies values, and in ``be.runtime.synchronize()``. With
``NEONLITE_WAIT=1`` in the environment the host checks indices before the kernel runs. That is slower, and the traceback
points to the faulty call.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from neonlite.backend.lock import create_lock
from neonlite.typing import NativeArray

if TYPE_CHECKING:
    from neonlite.backend.runtimes.cuda.runtime import CudaRuntime


def is_check_synchronous() -> bool:
    """Return whether indices are checked on the host before kernels run: ``NEONLITE_WAIT=1`` in the environment."""
    return os.environ.get("NEONLITE_WAIT") == "1"


class BoundsChecker:
    """The error record in GPU memory: the id of the first check that failed (0 for none), and the bad index."""

    def __init__(self, runtime: CudaRuntime) -> None:
        self.runtime = runtime
        self.check_ids: dict[str, int] = {}  # message -> id of the check, from 1
        self.error_record: NativeArray = None
        self.is_pending = False  # whether a kernel may have written to the record since it was read
        self.lock = create_lock()

    def register(self, message: str) -> int:
        """Return the id of a check. In its message, {} stands for the index."""
        with self.lock:
            return self.check_ids.setdefault(message, len(self.check_ids) + 1)

    def record_address(self) -> int:
        """Return the address of the error record, and expect a kernel that may write to it."""
        with self.lock:
            if self.error_record is None:
                self.error_record = self.runtime.driver.allocate(16)
                self.error_record[...] = 0
            self.is_pending = True
            return int(self.runtime.address_and_strides(self.error_record)[0])

    def mark_pending(self) -> None:
        """Record that a captured graph was launched, whose kernels may write to the error record."""
        self.is_pending = self.error_record is not None

    def raise_pending(self) -> None:
        """Raise IndexError and clear the record if a kernel reported an index."""
        if not self.is_pending:
            return
        with self.lock:
            self.is_pending = False
            check_id, index = np.asarray(self.runtime.copy_to_host(self.error_record)).view(np.int64)
            if not check_id:
                return
            self.error_record[...] = 0
        raise IndexError(list(self.check_ids)[check_id - 1].format(index))
