"""Preprocessing: the scale and mean that an iterator applies to its inputs, which a model saves for ``predict``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from neonlite.backend.validation import check_keys, check_number

if TYPE_CHECKING:
    from neonlite.typing import LayerShape

TOLERANCE = 0.1  # how far values may exceed the range of the training data, as a fraction of the range
ROUNDING = 1e-3  # tolerance for rounding errors, as a fraction of the largest magnitude


@dataclass(eq=False)
class IntegerRange:
    """The dtype, such as "uint8", the minimum and the maximum of an integer input in the training data."""

    dtype: str
    low: int
    high: int

    @classmethod
    def from_array(cls, array: NDArray[Any]) -> IntegerRange | None:
        """Return the range of a non-empty array, or None if its dtype is not an integer dtype."""
        name = array.dtype.name
        return cls(name, int(array.min()), int(array.max())) if name in INTEGERS else None

    def include(self, array: NDArray[Any]) -> None:
        """Extend the range to include the values of an array."""
        self.low, self.high = min(self.low, int(array.min())), max(self.high, int(array.max()))

    def __str__(self) -> str:
        return f"{self.dtype} from {self.low} to {self.high}"


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """Scale and mean of the inputs of a network: ``factor * (x - mean) + offset``.

    Parameters
    ----------
    factor, offset : float
        Scale of the inputs; default: 1 and 0.
    mean : numpy.ndarray, optional
        Mean of each feature (F,), subtracted before scaling.
    integers : tuple of IntegerRange or None
        For each input, the range of its training data if they are integers, else None. ``predict`` uses it to
        distinguish preprocessed rows from raw ones.
    """

    factor: float = 1.0
    offset: float = 0.0
    mean: NDArray[Any] | None = None
    integers: tuple[IntegerRange | None, ...] = ()

    @property
    def scale(self) -> tuple[float, float]:
        """Factor and offset."""
        return self.factor, self.offset

    def subtract_mean(self, rows: Any) -> Any:
        """Return rows (n, F), or a scalar, minus the mean."""
        return rows if self.mean is None else rows - self.mean

    def is_in_scaled_range(self, rows: NDArray[Any], limits: IntegerRange) -> bool:
        """Return whether rows (n, F) are in the range of preprocessed integers, within a tolerance."""
        ends = [self.factor * self.subtract_mean(float(x)) + self.offset for x in (limits.low, limits.high)]
        low, high = np.minimum(*ends), np.maximum(*ends)
        slack = TOLERANCE * (high - low) + ROUNDING * np.maximum(abs(low), abs(high))
        return not ((rows < low - slack) | (rows > high + slack)).any()

    # --- checkpoints ---

    def get_description(self) -> dict[str, Any]:
        """Return all attributes except the mean, as data for JSON."""
        integers = [None if x is None else [x.dtype, x.low, x.high] for x in self.integers]
        return {"factor": self.factor, "offset": self.offset, "integers": integers}

    @classmethod
    def from_description(
        cls, description: object, mean: NDArray[Any] | None, shape: LayerShape | list[LayerShape]
    ) -> Preprocessing:
        """Create the preprocessing of inputs from its description. Raise ValueError if that or the mean is invalid."""
        description = check_keys("preprocessing", description, ("factor", "offset", "integers"))
        num_inputs = len(shape) if isinstance(shape, list) else 1
        integers = parse_ranges(description["integers"], num_inputs)
        factor, offset = (check_number(key, description[key]) for key in ("factor", "offset"))
        features = None if isinstance(shape, list) else math.prod(shape) if isinstance(shape, tuple) else shape
        if mean is not None and (mean.shape != (features,) or mean.dtype.kind != "f"):
            raise ValueError(
                f"expected the mean to have a float for each of {features} features, got {mean.dtype} {mean.shape}"
            )
        return cls(factor, offset, mean, integers)


INTEGERS = tuple(f"{kind}int{n}" for kind in ("u", "") for n in (8, 16, 32, 64))


def parse_ranges(description: object, num_inputs: int) -> tuple[IntegerRange | None, ...]:
    """Return the ranges of a description: [dtype, low, high] or None for each input, or one dtype for all of them."""
    if not isinstance(description, list):
        if description is None:
            return ()
        if not isinstance(description, str) or description not in INTEGERS:
            raise ValueError(f"integers: expected None or one of {', '.join(INTEGERS)}, got {description!r}")
        limits = np.iinfo(description)
        return (IntegerRange(description, int(limits.min), int(limits.max)),) * num_inputs
    for x in description:
        if x is not None and not (
            isinstance(x, list)
            and len(x) == 3
            and x[0] in INTEGERS
            and all(type(end) is int for end in x[1:])
            and np.iinfo(x[0]).min <= x[1] <= x[2] <= np.iinfo(x[0]).max
        ):
            raise ValueError(f"integers: expected None or [dtype, low, high] for each input, got {x!r}")
    if len(description) not in (0, num_inputs):
        raise ValueError(f"integers: expected an entry for each of {num_inputs} inputs, got {len(description)}")
    return tuple(None if x is None else IntegerRange(*x) for x in description)
