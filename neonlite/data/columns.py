"""Columns of data: numbers or texts of NumPy, from lists, arrays, and columns of pandas, polars and Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from neonlite.backend.bfloat16 import is_float_array, is_real_array

ASTYPE_STR = "For categories or classes, convert it: astype(str)"
WAYS_OUT = {  # by the kind of a NumPy dtype
    "M": f"{ASTYPE_STR}; for numbers, such as to the days since a date, or to the month.",
    "m": f"{ASTYPE_STR}; for numbers, divide it by a unit, such as np.timedelta64(1, 'D').",
    "c": "Pass the real and the imaginary part as two columns.",
    "S": "Decode it: astype(str).",
    "V": "Pass each field as a column.",
}
WAYS_OUT_OF_TYPES = dict.fromkeys(("date", "datetime", "time", "Timestamp", "Period", "Interval"), WAYS_OUT["M"])
WAYS_OUT_OF_TYPES |= dict.fromkeys(("timedelta", "Timedelta"), WAYS_OUT["m"])
WAYS_OUT_OF_TYPES |= {"complex": WAYS_OUT["c"], "bytes": WAYS_OUT["S"], "Decimal": "Convert it: astype(float)."}


class Column(NamedTuple):
    """A column, or an array of several axes: numbers or texts, and whether they were declared as categories."""

    values: NDArray[Any]
    is_category: bool = False

    @property
    def is_numeric(self) -> bool:
        """Whether the values are numbers that were not declared as categories."""
        return is_real_array(self.values) and not self.is_category


def read_column(where: str, x: Any, name: str | None = None, of: str = "") -> Column:
    """Return numbers or texts; raise TypeError for others, and ValueError for missing values except NaN of floats.

    ``name``: of a column, for messages; ``of``: instead of it, such as " of y".
    """
    refuse_unread(where, x)
    place = of or ("" if name is None else f" in column {name!r}")
    array = to_numpy(where, x, place)
    dtype = getattr(x, "dtype", None)
    is_category = hasattr(dtype, "categories") or type(dtype).__name__ in ("Categorical", "Enum", "CategoricalDtype")
    if np.ma.is_masked(x):
        row = int(np.argmax(np.ma.getmaskarray(x).reshape(len(array), -1).any(axis=1)))
        fail_missing(where, "a masked value", name, of, row)
    if array.dtype.kind in "OT":
        array = read_objects(where, array, name, of)
    if array.dtype.kind == "U" or is_real_array(array):
        return Column(array, is_category)
    way_out = WAYS_OUT.get(array.dtype.kind, "")
    raise TypeError(f"{where}: expected numbers or texts{place or ' in X'}, got {array.dtype}. {way_out}".rstrip())


def read_objects(where: str, array: NDArray[Any], name: str | None, of: str) -> NDArray[Any]:
    """Return an array of Python objects as one of numbers or texts."""
    flat, place = array.ravel().tolist(), of or ("" if name is None else f" in column {name!r}")
    width = max(array.size // max(len(array), 1), 1)
    for i, value in enumerate(flat):
        if is_missing(value):
            fail_missing(where, str(value), name, of, i // width)
    kinds = {type(value) for value in flat}
    if all(issubclass(kind, str) for kind in kinds):
        return np.array(flat, dtype=str).reshape(array.shape)
    if any(issubclass(kind, bool | np.bool_) for kind in kinds) and len(kinds) == 1:
        return array.astype(bool)
    is_number = all(issubclass(kind, int | float | np.integer | np.floating) for kind in kinds)
    if is_number and not (bool in kinds and len(kinds) > 1):
        numbers = np.array(flat).reshape(array.shape)
        if is_real_array(numbers):
            return numbers
    names = sorted(kind.__name__ for kind in kinds)
    if len(names) > 1:
        expected, way_out = f"values of one type{place or ' in X'}", ASTYPE_STR + "."
    else:
        way_out = WAYS_OUT_OF_TYPES.get(names[0], "Use a column for each value.")
        expected = f"numbers or texts{place or ' in X'}"
    raise TypeError(f"{where}: expected {expected}, got {', '.join(names)}. {way_out}")


def to_numpy(where: str, x: Any, place: str) -> NDArray[Any]:
    """Return data as an array, without converting numbers and missing values beside texts to texts."""
    try:
        if type(x).__module__.partition(".")[0] == "pyarrow":
            return np.asarray(x.to_numpy(zero_copy_only=False))
        array = np.asarray(x.to_numpy() if hasattr(x, "to_numpy") else x)
        if (
            array.dtype.kind in "US"
            and not isinstance(x, np.ndarray)
            and any(not isinstance(value, str | bytes) for value in elements(x))
        ):
            array = np.array(x, dtype=object)
    except ValueError as error:
        raise ValueError(f"{where}: expected rows of one length{place}: {error}") from None
    return array


def elements(x: Any) -> Iterator[Any]:
    """Yield the elements of nested lists."""
    for value in x if isinstance(x, list | tuple) else ():
        if isinstance(value, list | tuple):
            yield from elements(value)
        else:
            yield value


def fail_missing(where: str, value: str, name: str | None, of: str, row: int) -> None:
    """Raise ValueError for a missing value."""
    column = "" if name is None else f" in column {name!r}, row {row}"
    place = column or f" in row {row}"
    replace = "." if of else ", or replace the values."
    raise ValueError(f"{where}: expected a value in every row{of}, got {value}{place}. Remove these rows{replace}")


def is_missing(value: Any) -> bool:
    """Return whether a value of a column is None, NaN, or the missing value of pandas."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and bool(value != value)


def refuse_unread(where: str, x: Any) -> None:
    """Raise TypeError for data that must be read or converted first."""
    if type(x).__name__ == "LazyFrame":
        raise TypeError(f"{where}: expected data, got the LazyFrame of polars. Pass X.collect().")
    if hasattr(x, "toarray"):  # of SciPy
        raise TypeError(f"{where}: expected a dense array, got the sparse {type(x).__name__}. Pass X.toarray().")
    if isinstance(x, PathLike):
        raise TypeError(f"{where}: expected data, got the path {str(x)!r}. Read it first: pandas.read_csv(path).")


def is_frame(x: Any) -> bool:
    """Return whether data is a data frame of pandas or polars, or a table of Arrow."""
    return hasattr(x, "columns") and hasattr(x, "__getitem__") and not isinstance(x, Mapping)


def frame_columns(where: str, x: Any) -> dict[str, Any]:
    """Return the columns of a frame or a dict by name; raise ValueError if two have one name."""
    names = [*x] if isinstance(x, Mapping) else [*getattr(x, "column_names", x.columns)]
    texts = [str(name) for name in names]
    if repeated := sorted({text for text in texts if texts.count(text) > 1}):
        raise ValueError(f"{where}: expected different names of columns, got {', '.join(repeated)} more than once.")
    return {text: x[name] for text, name in zip(texts, names, strict=True)}


def finite_numbers(where: str, name: str, values: NDArray[Any]) -> NDArray[np.float64]:
    """Return a column of numbers in float64; raise ValueError for NaN, infinity and what exceeds float32."""
    numbers = values.astype(np.float64)
    if not np.isfinite(numbers).all():
        row = int(np.isfinite(numbers).argmin())
        raise ValueError(
            f"{where}: expected finite numbers, got {numbers[row]} in column {name!r}, row {row}. Remove "
            "these rows, or replace the values."
        )
    too_large = np.abs(numbers) > np.finfo(np.float32).max
    if too_large.any():
        row = int(too_large.argmax())
        raise ValueError(f"{where}: expected float32 numbers, got {numbers[row]:g} in column {name!r}, row {row}.")
    return numbers


def check_no_nan(where: str, y: NDArray[Any]) -> None:
    """Raise ValueError for NaN in targets."""
    if is_float_array(y) and (missing := np.isnan(y.reshape(len(y), -1)).any(axis=1)).any():
        fail_missing(where, "nan", None, " of y", int(missing.argmax()))
