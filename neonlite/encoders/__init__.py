"""Encoders of fit(X, y): convert arrays, tables, texts, labels and numbers for a network, and outputs back.

This module reads columns: numbers or texts, from lists, arrays, and columns of pandas, polars and Arrow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from neonlite.messages import listed
from neonlite.typing import is_float_array, is_real_array

# --- columns of data: numbers or texts of NumPy, from lists, arrays, and columns of pandas, polars and Arrow ---

TEXT = np.dtypes.StringDType()  # whose elements take the memory of their text, not that of the longest text
WAYS_OUT = {  # by the kind of a NumPy dtype
    "M": "Convert it to numbers, such as the days since a date, or for categories and classes: astype(str).",
    "m": "Convert it to numbers: divide it by a unit, such as np.timedelta64(1, 'D').",
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


def read_column(where: str, x: Any, name: str | None = None, of: str = "X") -> Column:
    """Return numbers or texts; raise TypeError for others, and ValueError for missing and masked values.

    ``name``: of a column, for messages; ``of``: of the argument, if it is not a column.
    """
    refuse_unread(where, x)
    check_unmasked(where, x, name, of)
    place = f"for {of}" if name is None else f"in column {name!r}"
    array = to_numpy(where, x, place)
    if is_float_array(array) and (is_nan := np.isnan(array)).any():
        fail_missing(where, "nan", name, of, int(np.argwhere(np.atleast_1d(is_nan))[0, 0]))
    if array.dtype.kind in "OT":
        flat = [value.item() if getattr(value, "ndim", None) == 0 else value for value in array.ravel().tolist()]
        width = array.size // max(len(np.atleast_1d(array)), 1)
        for i, value in enumerate(flat):
            if is_missing(value):
                fail_missing(where, str(value), name, of, i // width)
        array = from_objects(where, flat, place).reshape(array.shape)
    if array.dtype.kind in "UT" or is_real_array(array):
        return Column(array, is_categorical(x))
    way_out = WAYS_OUT.get(array.dtype.kind, "")
    raise TypeError(f"{where}: expected numbers or texts {place}, got {array.dtype}. {way_out}".rstrip())


def from_objects(where: str, values: list[Any], place: str) -> NDArray[Any]:
    """Return Python objects as an array of numbers or texts; raise TypeError for others, and for several types."""
    kinds = {type(value) for value in values}
    if all(issubclass(kind, str) for kind in kinds):
        return np.array(values, dtype=TEXT)
    if kinds == {bool}:
        return np.array(values, dtype=bool)
    if bool not in kinds and all(issubclass(kind, int | float | np.floating) for kind in kinds):
        numbers = np.array(values)
        if numbers.dtype.kind in "iu" or (is_float_array(numbers) and kinds != {int}):
            return numbers
        raise TypeError(
            f"{where}: expected integers of int64, or of uint64, {place}, got {min(values)} to {max(values)}. For "
            "numbers, convert them: astype(float); for categories or classes: astype(str)."
        )
    names = sorted(kind.__name__ for kind in kinds)
    if len(names) > 1:
        raise TypeError(
            f"{where}: expected values of one type {place}, got {', '.join(names)}. For categories or classes, convert "
            "them: astype(str)."
        )
    way_out = WAYS_OUT_OF_TYPES.get(names[0], "Use a column for each value.")
    raise TypeError(f"{where}: expected numbers or texts {place}, got {names[0]}. {way_out}")


def to_numpy(where: str, x: Any, place: str) -> NDArray[Any]:
    """Return data as an array, in which numbers and missing values beside texts are not converted to texts."""
    if isinstance(x, Set | Iterator):
        raise TypeError(f"{where}: expected numbers or texts {place}, got a {type(x).__name__}. Pass a list of them.")
    try:
        if type(x).__module__.partition(".")[0] == "pyarrow":
            if is_categorical(x):  # to_numpy gives the nulls of a chunked dictionary other values
                x = x.cast(x.type.value_type)
            array = np.asarray(x.to_numpy(zero_copy_only=False))
        elif hasattr(x, "to_numpy"):
            array = np.asarray(x.to_numpy())
        else:
            array = np.asarray(x)  # an error for rows of several lengths
            array = np.array(x, dtype=object) if isinstance(x, list | tuple) else array
    except ValueError as error:
        raise ValueError(f"{where}: expected rows of one length {place}: {error}") from None
    except Exception as error:  # of the library, for what NumPy does not have
        raise TypeError(f"{where}: expected numbers or texts {place}: {error}") from error
    if array.shape != getattr(x, "shape", array.shape):  # arrays and structs of polars
        raise TypeError(f"{where}: expected numbers or texts {place}, got {x.dtype}. Use a column for each value.")
    return array


def is_categorical(x: Any) -> bool:
    """Return whether a column of pandas, polars or Arrow was declared as categories."""
    dtype = getattr(x, "dtype", None)
    arrow_type = getattr(dtype, "pyarrow_dtype", getattr(x, "type", None))
    names = {type(dtype).__name__, type(arrow_type).__name__}
    return hasattr(dtype, "categories") or not names.isdisjoint({"Categorical", "DictionaryType"})


def check_unmasked(where: str, x: Any, name: str | None = None, of: str = "X") -> None:
    """Raise ValueError for masked values, of a masked array or of those in a list."""
    rows = x if isinstance(x, list | tuple) else [x]
    if any(isinstance(row, np.ma.MaskedArray) and np.ma.is_masked(row) for row in rows):
        row = next(i for i, row in enumerate(rows if rows is x else np.ma.atleast_1d(x)) if np.ma.is_masked(row))
        fail_missing(where, "a masked value", name, of, row)


def fail_missing(where: str, value: str, name: str | None, of: str, row: int) -> None:
    """Raise ValueError for a missing value of a column, or of an argument."""
    of, place = (f" of {of}", f"row {row}") if name is None else ("", f"column {name!r}, row {row}")
    way_out = "Remove these rows, or replace the values."
    raise ValueError(f"{where}: expected a value in every row{of}, got {value} in {place}. {way_out}")


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
    if repeated := sorted(text for text, count in Counter(texts).items() if count > 1):
        raise ValueError(f"{where}: expected different names of columns, got {listed(repeated)} more than once.")
    return {text: x[name] for text, name in zip(texts, names, strict=True)}


def names_of_columns(x: Any) -> list[str] | None:
    """Return the names of a dict of columns, or of the first of several dicts of rows; None for other data."""
    first = x[0] if isinstance(x, list | tuple) and x else x
    return [*map(str, first)] if isinstance(first, Mapping) else None


def depth(x: Any) -> int:
    """Return the number of axes of an array, or of nested lists by their first elements."""
    if isinstance(x, list | tuple):
        return 1 + (depth(x[0]) if x else 0)
    return int(getattr(x, "ndim", 0))


def holds_pairs(x: Any) -> bool:
    """Return whether data is a list of samples or minibatches (X, y), and not of rows."""
    first = x[0] if isinstance(x, list | tuple) and x else None
    if not isinstance(first, list | tuple) or not first or not depth(first[0]):
        return False
    return isinstance(first, tuple) or len({*map(depth, first)}) > 1


def finite_numbers(where: str, name: str, values: NDArray[Any]) -> NDArray[np.float64]:
    """Return a column of numbers in float64; raise ValueError for infinity and what exceeds float32."""
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
