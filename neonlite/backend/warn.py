"""Warnings and messages that name the line of user code that called into neonlite."""

from __future__ import annotations

import sys
import warnings
from types import FrameType


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning that names the line of user code that called into neonlite."""
    _, depth = entry_frame(sys._getframe(1))
    warnings.warn(message, category, stacklevel=depth + 2)


def called_from() -> str:
    """Return the function of neonlite that user code called, with the file and line of the call."""
    frame, _ = entry_frame(sys._getframe(1))
    caller = frame.f_back or frame
    return f"{frame.f_code.co_name}() at {caller.f_code.co_filename}:{caller.f_lineno}"


def entry_frame(frame: FrameType) -> tuple[FrameType, int]:
    """Return the frame of the function of neonlite that user code called, and its depth above ``frame``."""
    depth = 1
    while frame.f_back and frame.f_back.f_globals.get("__name__", "").partition(".")[0] == "neonlite":
        frame, depth = frame.f_back, depth + 1
    return frame, depth
