"""CSV files: read a table of text fields, and convert its columns to arrays of numbers, categories or labels."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neonlite.data.file_formats import read_bytes
from neonlite.data.input_encoders import TableEncoder
from neonlite.data.target_encoders import ClassEncoder, TargetEncoder
from neonlite.messages import describe

DELIMITERS = ",;\t"
MISSING_VALUES = {"", "na", "n/a", "nan", "null", "none", "?"}  # in a column of numbers, in lower case
MAX_MIXED_VALUES = 20  # different values of a column of categories of which most are numbers
# no leading zeros, which codes such as 01067 have
NUMBER = re.compile(r"[+-]?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
INTEGER = re.compile(r"[+-]?(0|[1-9]\d{0,19})", re.ASCII)  # of 20 digits at most, as of uint64


class CSVTable:
    """The fields of a CSV file, with the numbers of their lines for error messages.

    Parameters
    ----------
    path : Path
        The file.
    names : list of str
        The names of the columns.
    rows : list of list of str
        The fields of each row.
    lines : list of int
        The line in which each row starts, from 1.
    """

    def __init__(self, path: Path, names: list[str], rows: list[list[str]], lines: list[int]) -> None:
        self.path, self.names, self.rows, self.lines = path, names, rows, lines

    def __len__(self) -> int:
        return len(self.rows)

    def fields(self, name: str) -> list[str]:
        """Return the fields of a column."""
        self.check_names(name)
        column = self.names.index(name)
        return [row[column] for row in self.rows]

    def check_names(self, *names: str, option: str | None = None) -> None:
        """Raise ValueError unless there are columns of these names, which may be the value of an option."""
        for name in names:
            if name not in self.names:
                where = f"{option} {name}" if option else str(self.path)
                wanted = f"a column of {self.path}" if option else f"a column {name!r}, as in the training data"
                raise ValueError(f"{where}: expected {wanted}, which has the columns {', '.join(self.names)}.")

    def texts(self, name: str) -> NDArray[Any]:
        """Return a column of text; raise ValueError for an empty field."""
        fields = self.fields(name)
        if "" in fields:
            self.fail(fields.index(""), f"expected a value in column {name!r}, got an empty field. {remedy(name)}")
        return np.array(fields)

    def numbers(self, name: str) -> NDArray[Any]:
        """Return a column of numbers, int64, uint64 or float64; raise ValueError for other fields."""
        fields = self.fields(name)
        for row, text in enumerate(fields):
            if is_number(text):
                continue
            if text.lower() in MISSING_VALUES:
                got = repr(text) if text else "an empty field"
                self.fail(row, f"expected a number in column {name!r}, got {got}. {remedy(name)}")
            hint = " Numbers have a decimal point." if is_number(text.replace(",", ".")) else ""
            self.fail(row, f"expected a number in column {name!r}, got {describe(text)}.{hint}")
        numbers = np.array([int(x) if INTEGER.fullmatch(x) else float(x) for x in fields])
        return numbers if numbers.dtype.kind in "iu" else numbers.astype(np.float64)

    def values(self, name: str) -> NDArray[Any]:
        """Return a column of numbers if all of its fields are numbers or missing values, else one of text."""
        fields = set(self.fields(name))
        numbers = {text for text in fields if is_number(text)}
        others = {text for text in fields - numbers if text.lower() not in MISSING_VALUES}
        is_mixed = len(fields) > MAX_MIXED_VALUES and len(numbers) > len(fields) / 2
        return self.numbers(name) if (numbers and not others) or is_mixed else self.texts(name)

    def inputs(self, encoder: TableEncoder) -> dict[str, NDArray[Any]]:
        """Return the columns that an encoder expects; raise ValueError for other columns, values or categories."""
        return {
            column["name"]: self.one_of(column["name"], {x: x for x in column["categories"]})
            if "categories" in column
            else self.numbers(column["name"])
            for column in encoder.columns
        }

    def targets(self, name: str, encoder: TargetEncoder) -> NDArray[Any]:
        """Return a column of labels or numbers that an encoder expects; raise ValueError for others."""
        if isinstance(encoder, ClassEncoder):
            return self.one_of(name, {str(label): label for label in encoder.classes})
        return self.numbers(name).astype(np.float64)

    def one_of(self, name: str, known: dict[str, Any]) -> NDArray[Any]:
        """Return a column whose fields are keys of a dict, as the values of the dict."""
        texts = self.texts(name)
        for row, text in enumerate(texts.tolist()):
            if text not in known:
                expected = f"one of the values of the training data, {describe(list(known))}"
                self.fail(row, f"expected in column {name!r} {expected}, got {describe(text)}")
        return np.array([known[text] for text in texts.tolist()])

    def fail(self, row: int, message: str) -> None:
        """Raise ValueError with the line of a row."""
        raise ValueError(f"{self.path}: line {self.lines[row]}: {message}")


def read_csv(path: Path) -> CSVTable:
    """Read a CSV file in UTF-8 with a header, which may be compressed (.gz).

    The delimiter, one of comma, semicolon and tab, is the one that splits the header into the most fields. Empty lines
    are ignored, and spaces around fields are removed.

    Parameters
    ----------
    path : Path
        The file.

    Raises
    ------
    OSError
        The file does not exist, is a folder, or cannot be read.
    ValueError
        Binary data, no rows, rows of different lengths, or names that are missing, repeated, or numbers.
    """
    text = read_text(path)
    delimiter = max(DELIMITERS, key=lambda x: count_fields(text, x))
    rows: list[list[str]] = []
    lines: list[int] = []
    limit = csv.field_size_limit(len(text) + 1)  # a field may be as long as the file
    try:
        for line, row in records(text, delimiter):
            if rows and len(row) != len(rows[0]):
                raise ValueError(
                    f"{path}: line {line}: expected {len(rows[0])} fields, as in the header, got {len(row)}"
                )
            rows.append(row)
            lines.append(line)
    except csv.Error as error:
        line = 1 + (lines[-1] if lines else 0)
        raise ValueError(f"{path}: line {line} or later: expected fields with matching quotes: {error}") from None
    finally:
        csv.field_size_limit(limit)
    if not rows:
        raise ValueError(f"{path}: expected the names of columns and rows of data, got an empty file")
    names = rows[0]
    check_header(f"{path}: line {lines[0]}", names)
    if len(rows) == 1:
        raise ValueError(f"{path}: expected rows of data, got the names of columns only")
    return CSVTable(path, names, rows[1:], lines[1:])


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8, without a byte order mark."""
    if path.is_dir():
        raise IsADirectoryError(f"{path}: expected a CSV file, got a folder")
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: there is no such file") from None
    if b"\0" in data:
        raise ValueError(f"{path}: expected a CSV file in UTF-8, got binary data, or text in UTF-16")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}: line {line}: expected text in UTF-8, got the byte 0x{data[error.start]:02x}. Convert it, such as "
            "by: iconv -f latin1 -t utf-8"
        ) from None


def records(text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line, from 1, and the fields of each record, without empty lines."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True)
    line = 1
    for row in reader:
        fields = [field.strip() for field in row]
        if fields not in ([], [""]):
            yield line, fields
        line = reader.line_num + 1


def count_fields(text: str, delimiter: str) -> int:
    """Return the number of fields of the header."""
    try:
        return len(next(records(text, delimiter), (1, []))[1])
    except csv.Error:
        return 0


def check_header(where: str, names: list[str]) -> None:
    """Raise ValueError for names of columns that are missing, repeated, or numbers."""
    if "" in names:
        raise ValueError(
            f"{where}: expected a name for each column, got none for column {names.index('') + 1}. Add it, or remove "
            "the column (pandas: to_csv(path, index=False))"
        )
    repeated = sorted({name for name in names if names.count(name) > 1})
    if all(map(is_number, names)):
        raise ValueError(f"{where}: expected the names of the columns, got numbers. Add a line of names at the start")
    if repeated:
        raise ValueError(f"{where}: expected different names of columns, got {', '.join(repeated)} more than once")


def is_number(text: str) -> bool:
    """Return whether a field is a finite number."""
    return bool(NUMBER.fullmatch(text)) and math.isfinite(float(text))


def remedy(name: str) -> str:
    """Return how to continue after a missing value."""
    return f"Remove these rows, replace the values, or train without the column: --ignore {name}"
