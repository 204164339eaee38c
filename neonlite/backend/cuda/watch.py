"""Who notices an index that is out of range?  The kernel that meets it: it leaves word, which the host reads later.

Nobody waits for that. The word is looked at when the host waits for the card anyway: when values are read, and in
``be.runtime.wait()``. There the IndexError is raised. With ``NEONLITE_WAIT=1`` in the environment the host looks before
results are written: slower, and right for finding the line that is to blame.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np


def at_once() -> bool:
    """Tell whether errors are to be raised where they are made."""
    return os.environ.get("NEONLITE_WAIT") == "1"


class Watch:
    """Two words of a card's memory: the number of the check that failed first, 0 for none, and the bad index."""

    def __init__(self, runtime: Any) -> None:
        self.runtime = runtime
        self.checks: dict[str, int] = {}  # what is said when a check fails -> its number, from 1
        self.record: Any = None
        self.pending = False  # whether a kernel may have left word since the last look
        self.lock = threading.Lock()

    def check(self, words: str) -> int:
        """Return the number of a check; in its words, {} stands for the index."""
        with self.lock:
            return self.checks.setdefault(words, len(self.checks) + 1)

    def address(self) -> int:
        """Return where a kernel leaves word that is about to run, or to be recorded in a graph."""
        with self.lock:
            if self.record is None:
                self.record = self.runtime.driver.allocate(16)
                self.record[...] = 0
            self.pending = True
            return int(self.runtime.layout(self.record)[0])

    def expect(self) -> None:
        """Be told that recorded kernels run."""
        self.pending = self.record is not None

    def look(self, found: Any = None) -> Any:
        """Return what was found when the host waited; IndexError when a kernel left word, which is then forgotten."""
        if not self.pending:
            return found
        with self.lock:
            self.pending = False
            check, index = np.asarray(self.runtime.fetch(self.record)).view(np.int64)
            if not check:
                return found
            self.record[...] = 0
        raise IndexError(list(self.checks)[check - 1].format(index))
