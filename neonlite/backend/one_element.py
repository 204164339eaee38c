"""OneElement: a NumPy array of one element that converts to a Python scalar, whatever its number of axes."""

from __future__ import annotations

from typing import Any

import numpy as np


class OneElement(np.ndarray[Any, np.dtype[Any]]):
    """An array that is also a scalar if it has one element: ``float(x)``, ``"%.1f" % x`` and ``f"{x:.3f}"`` work.

    NumPy rejects these for arrays with axes.
    """

    def __float__(self) -> float:
        """Return the only element; raise TypeError if there are several."""
        return float(self.only())

    def __int__(self) -> int:
        """Return the integer part of the only element."""
        return int(self.only())

    def __round__(self, ndigits: int | None = None) -> float:
        """Return the only element, rounded."""
        return round(float(self), ndigits)

    def __format__(self, spec: str) -> str:
        """Format the only element; without a format specification, the array."""
        return format(self.only(), spec) if spec else str(self)

    def __repr__(self) -> str:
        return repr(self.view(np.ndarray))

    def __reduce__(self) -> Any:
        """Pickle as an array of NumPy."""
        return self.view(np.ndarray).__reduce__()

    def only(self) -> Any:
        """Return the only element; raise TypeError if there are several."""
        if self.size != 1:
            raise TypeError(f"expected one element, got an array {self.shape}. Select one by its index.")
        return self.item()
