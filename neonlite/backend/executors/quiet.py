"""How loud is arithmetic?  Silent: infinities and NaNs are values, on every runtime alike, and no warning is given.

``np.errstate`` says so too, but takes longer than a small op-tree; NumPy's context variable behind it does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# Elements that NumPy gathers at a time where rows have gaps: with its own 8192 it allocates that much for each operand
# in every call; with fewer than a row has, it walks along rows in place.
BUFFER = 240

try:
    from numpy._core.umath import _extobj_contextvar, _make_extobj

    _SILENT = _make_extobj(all="ignore", bufsize=BUFFER)

    def hush() -> Any:
        """Silence NumPy's floating-point warnings in this context, and return what ``speak`` needs."""
        return _extobj_contextvar.set(_SILENT)

    speak = _extobj_contextvar.reset
except ImportError:  # another NumPy: the same by its public door

    def hush() -> Any:
        """Silence NumPy's floating-point warnings in this context, and return what ``speak`` needs."""
        state = np.errstate(all="ignore")
        state.__enter__()
        np.setbufsize(BUFFER)
        return state

    def speak(state: Any) -> None:
        """Go back to how loud it was."""
        state.__exit__(None, None, None)


class Silence:
    """``with Silence():`` no floating-point warnings."""

    def __enter__(self) -> None:
        self.state = hush()

    def __exit__(self, *_: object) -> None:
        speak(self.state)
