"""Defer Ctrl-C (SIGINT), SIGTERM and SIGHUP until the current training step is complete."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# The signals that end training, and their default handlers.
ENDING = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
if hasattr(signal, "SIGHUP"):  # not on Windows
    ENDING[signal.SIGHUP] = signal.SIG_DFL


class Terminated(SystemExit):
    """Raised after SIGTERM or SIGHUP. If it is not caught, the process exits with 128 + the signal number.

    Parameters
    ----------
    number : int
        The signal number.
    """

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


class DeferredInterrupt:
    """Context manager that defers Ctrl-C, SIGTERM and SIGHUP until ``raise_if_pending`` or its end.

    A second signal is raised immediately, except within ``defer``. Ctrl-C raises KeyboardInterrupt, the others
    ``Terminated``. Signals that are ignored, such as SIGHUP under nohup, or that have another handler, are not
    affected; nor are signals outside of the main thread, where Python does not deliver them.
    """

    def __init__(self) -> None:
        self.pending_signal: int | None = None  # a signal number
        self.is_deferring = False
        self.is_agreed = True  # with several processes: whether all know of the pending signal
        self.previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> DeferredInterrupt:
        if threading.current_thread() is threading.main_thread():
            for number, default in ENDING.items():
                if signal.getsignal(number) == default:
                    self.previous_handlers[number] = signal.signal(number, self.handle_signal)
        return self

    def handle_signal(self, signum: int, frame: FrameType | None) -> None:
        """Record a signal; raise the second one immediately, unless within ``defer``."""
        if self.pending_signal is not None and not self.is_deferring:
            raise ended_by(signum)
        self.pending_signal = signum

    @contextmanager
    def defer(self) -> Iterator[None]:
        """Defer every signal while the context is active."""
        self.is_deferring = True
        try:
            yield
        finally:
            self.is_deferring = False

    def raise_if_pending(self) -> None:
        """Raise KeyboardInterrupt or Terminated if a signal is pending, and several processes have agreed on it."""
        if self.pending_signal is not None and self.is_agreed:
            number, self.pending_signal = self.pending_signal, None
            raise ended_by(number)

    def agree_on(self, signum: int) -> None:
        """Make a signal that any process has received pending on this one.

        Parameters
        ----------
        signum : int
            The signal number.
        """
        self.pending_signal, self.is_agreed = signum, True

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for number, handler in self.previous_handlers.items():
            signal.signal(number, handler)
        self.is_agreed = True
        if error is None:
            self.raise_if_pending()
        if self.pending_signal not in (None, signal.SIGINT) and isinstance(
            error, Exception
        ):  # the error may be a result of the signal, as after a closed terminal
            raise ended_by(self.pending_signal) from error


def ended_by(number: int) -> BaseException:
    """Return the exception to raise for a signal."""
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)
