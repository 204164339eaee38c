"""Is this argument a number, and in range?  It then becomes Python's own."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from neonlite.backend.description import Described
from neonlite.optree import describe


def number(what: str, value: Any, low: float = -math.inf, below: float = math.inf) -> float:
    """Return a number as Python's own; TypeError when it is none, ValueError for NaN, infinity, or one out of range."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{what} is a number; got {describe(value)}")
    if not math.isfinite(x := float(value)) or not low <= x < below:
        bounds = (f" from {low:g}" if low > -math.inf else "") + (f" below {below:g}" if below < math.inf else "")
        raise ValueError(f"{what} is a finite number{bounds}; got {value!r}")
    return int(value) if isinstance(value, Integral) else x


def check(thing: Described, *names: str, low: float = -math.inf, below: float = math.inf) -> None:
    """Check that the attributes of these names are numbers in range; they become Python's own."""
    for name in names:
        setattr(thing, name, number(f"{thing.classnm}: {name}", getattr(thing, name), low, below))
