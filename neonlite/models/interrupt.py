"""What does Ctrl-C mean while a network learns?  Stop, as soon as the step that is under way is whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interruptible:
    """While it holds, Ctrl-C waits until ``check`` is called; a second one ends at once what is not ``whole``.

    It has no effect outside the main thread, where Python does not see Ctrl-C, and where somebody else handles it.
    """

    def __init__(self) -> None:
        self.pending = self.held = False
        self.before: Any = None

    def __enter__(self) -> Interruptible:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self.before = signal.signal(signal.SIGINT, self.note)
        return self

    def note(self, number: int, frame: FrameType | None) -> None:
        """Take note of Ctrl-C; raise KeyboardInterrupt for the second one, unless a step is under way."""
        if self.pending and not self.held:
            raise KeyboardInterrupt
        self.pending = True

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Have every Ctrl-C wait: what is done here is done whole."""
        self.held = True
        try:
            yield
        finally:
            self.held = False

    def check(self) -> None:
        """Raise KeyboardInterrupt if there was Ctrl-C."""
        if self.pending:
            self.pending = False
            raise KeyboardInterrupt

    def __exit__(self, *error: object) -> None:
        if self.before is not None:
            signal.signal(signal.SIGINT, self.before)
