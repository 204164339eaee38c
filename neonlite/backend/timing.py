"""Timing marks of a backend, as in neon: record the time at which work is finished."""

from __future__ import annotations

import time

from neonlite.backend.base import BackendBase


class Mark:
    """A timing mark: the clock in seconds, None until recorded."""

    seconds: float | None = None


class TimingMethods(BackendBase):
    """The methods of ``Backend`` for timing marks."""

    def init_mark(self) -> Mark:
        """Create a timing mark.

        Returns
        -------
        Mark
            A mark for ``record_mark``.
        """
        return Mark()

    def record_mark(self, marker: Mark) -> None:
        """Record the time at which all work so far is finished.

        Parameters
        ----------
        marker : Mark
            The mark.
        """
        self.runtime.synchronize()
        marker.seconds = time.perf_counter()

    def synchronize_mark(self, marker: Mark) -> None:
        """Wait until the work before a mark is finished.

        Parameters
        ----------
        marker : Mark
            A recorded mark.
        """
        self.runtime.synchronize()

    def get_time(self, start: Mark, end: Mark) -> float:
        """Return the time between two marks.

        Parameters
        ----------
        start, end : Mark
            Recorded marks.

        Returns
        -------
        float
            Milliseconds.

        Raises
        ------
        ValueError
            A mark is not recorded.
        """
        if start.seconds is None or end.seconds is None:
            raise ValueError(
                "be.get_time: expected two recorded marks, got one that is not. Call be.record_mark first."
            )
        return (end.seconds - start.seconds) * 1e3
