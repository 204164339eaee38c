"""CSV files: read columns as they stream in, as codes of texts or as numbers, and convert them to arrays."""

from __future__ import annotations

import csv
import io
import math
import re
from array import array
from bisect import bisect_right
from codecs import getincrementaldecoder
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from neonlite.data.file_formats import read_chunks
from neonlite.encoders import TEXT
from neonlite.encoders.inputs import MAX_CATEGORIES, TableEncoder
from neonlite.encoders.targets import ClassEncoder, TargetEncoder
from neonlite.messages import describe, listed

DELIMITERS = ",;\t"
MISSING_VALUES = {"", "na", "n/a", "nan", "null", "none", "?"}  # in a column of numbers, in lower case
MAX_MIXED_VALUES = 20  # different values of a column of categories of which most are numbers
MAX_TEXTS = 1 << 16  # different texts of a column, whose codes are uint16
# so that a file with an unclosed quote does not fill the memory
MAX_FIELD_CHARS, MAX_LINE_CHARS = 1 << 22, 1 << 26
BLOCK_FIELDS, MIN_BLOCK_ROWS = 1 << 15, 8  # of rows that are parsed before they are appended to the columns
# no leading zeros, which codes such as 01067 have
NUMBER_PATTERN = r"[+-]?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
NUMBER = re.compile(NUMBER_PATTERN, re.ASCII)
NUMBERS = re.compile(rf"(?:(?>{NUMBER_PATTERN})\0)*+", re.ASCII)  # each with a null character at its end
INTEGER = re.compile(r"[+-]?(0|[1-9]\d{0,19})", re.ASCII)  # of 20 digits at most, as of uint64
MAX_INT64_CHARS = 18  # an integer of at most as many characters fits into int64
FORMULA = re.compile("\\s*[=+@\uff0b\uff0d\uff1d\uff20-]|[\t\r\n]")  # also in the full width of East Asian texts
Kind = Literal["text", "any"]
TYPECODES = {"i": "q", "u": "Q", "f": "d"}  # of the module array, by the kind of a NumPy dtype


class CSVColumn:
    """The fields of a column of a CSV file: one text of them all, a code for each text, or numbers.

    At most MAX_CATEGORIES fields are one text. More have codes until there are more than MAX_CATEGORIES different ones.
    These decide whether all fields are numbers from then on.

    Parameters
    ----------
    is_text : bool
        Whether the fields have codes even if all of them are numbers.
    """

    __slots__ = ("codes", "index", "invalid", "is_text", "joined", "num_joined", "numbers")

    def __init__(self, is_text: bool) -> None:
        self.is_text = is_text
        self.joined, self.num_joined = "", 0  # fields, each with a null character, which no file contains, at its end
        self.index: dict[str, int] = {}  # text -> code
        self.codes = array("H")
        self.numbers: array[Any] | None = None
        self.invalid: tuple[int, str] | None = None  # row and text of the first field that is not a number

    def append(self, fields: Sequence[str]) -> int | None:
        """Append fields, or return the row of the first one that exceeds MAX_TEXTS."""
        if self.num_joined + len(fields) <= MAX_CATEGORIES and not self.index and self.numbers is None:
            self.joined += "\0".join([*fields, ""])
            self.num_joined += len(fields)
            return None
        if self.joined:
            fields = [*self.joined.split("\0")[:-1], *fields]
            self.joined = ""
        return self._append(fields)

    def encoded(self) -> CSVColumn:
        """Return the column with codes or numbers, which are not stored for a short one."""
        if not self.joined:
            return self
        column = CSVColumn(self.is_text)
        column._append(self.joined.split("\0")[:-1])
        return column

    def _append(self, fields: Sequence[str]) -> int | None:
        """Append fields as codes or numbers; return as ``append`` does."""
        if self.numbers is None:
            index = self.index
            for text in dict.fromkeys(fields):
                index.setdefault(text, len(index))
            if len(index) > MAX_CATEGORIES and not self.is_text:
                self.is_text = not is_number_column(index)
                if not self.is_text:
                    self._convert_to_numbers()
        if self.numbers is not None:
            self.numbers = self._append_numbers(self.numbers, fields)
        elif len(self.index) > MAX_TEXTS:
            return next(row for row, x in enumerate(fields, len(self.codes)) if self.index[x] >= MAX_TEXTS)
        else:
            self.codes.extend(map(self.index.__getitem__, fields))
        return None

    def _convert_to_numbers(self) -> None:
        """Replace the codes by numbers."""
        texts, codes, numbers = [*self.index], self.codes, array("q")
        for start in range(0, len(codes), BLOCK_FIELDS):
            numbers = self._append_numbers(numbers, [texts[code] for code in codes[start : start + BLOCK_FIELDS]])
        self.index, self.codes, self.numbers = {}, array("H"), numbers

    def _append_numbers(self, numbers: array[Any], fields: Sequence[str]) -> array[Any]:
        """Return numbers with those of fields appended, or unchanged once there was an invalid field."""
        block = parse_numbers(fields)
        if block is None:
            invalid = ((len(numbers) + i, text) for i, text in enumerate(fields) if not is_number(text))
            self.invalid = self.invalid or next(invalid)
            return numbers
        typecode = TYPECODES[block.dtype.kind]
        if not numbers:
            numbers = array(typecode)
        elif typecode != numbers.typecode:
            block = block.astype(np.float64)
            numbers = array("d", as_array(numbers).astype(np.float64).tobytes())
        numbers.frombytes(block.tobytes())
        return numbers

    def has_numbers(self) -> bool:
        """Return whether the column should be read as numbers."""
        return self.numbers is not None or is_number_column(self.index)

    def read_numbers(self) -> NDArray[Any] | tuple[int, str]:
        """Return numbers in int64, uint64 or float64, or row and text of the first field that is not a number."""
        if self.numbers is not None:
            return self.invalid or as_array(self.numbers)
        texts = [*self.index]
        numbers = parse_numbers(texts)
        return (
            self.first_row(text for text in texts if not is_number(text)) if numbers is None else self.decode(numbers)
        )

    def first_row(self, texts: Iterable[str]) -> tuple[int, str]:
        """Return row and text of the first field that is one of some texts of the column."""
        is_one = np.zeros(len(self.index), bool)
        is_one[[self.index[text] for text in texts]] = True
        row = int(self.decode(is_one).argmax())
        return row, [*self.index][self.codes[row]]

    def decode(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the column with a value for each of its texts."""
        decoded: NDArray[Any] = values[as_array(self.codes)]
        return decoded


class CSVTable:
    """The columns of a CSV file, with the lines of their rows for error messages.

    Parameters
    ----------
    path : Path
        The file.
    columns : dict
        The columns by name; None for those that are not read.
    """

    def __init__(self, path: Path, columns: dict[str, CSVColumn | None]) -> None:
        self.path, self.columns = path, columns
        self.names = [*columns]
        self.target: str | None = None  # the column to predict
        self.length = self.last_line = 0
        # the rows that do not start one line below the previous row, and their lines
        self.starts: tuple[array[int], array[int]] = array("q"), array("q")

    def __len__(self) -> int:
        return self.length

    def append(self, rows: Sequence[Sequence[str]], lines: Sequence[int]) -> None:
        """Append rows, and the lines in which they start."""
        jumps = np.flatnonzero(np.diff(lines, prepend=self.last_line if self.length else -1) != 1).tolist()
        self.starts[0].extend(self.length + row for row in jumps)
        self.starts[1].extend(lines[row] for row in jumps)
        for (name, column), fields in zip(self.columns.items(), zip(*rows, strict=True), strict=True):
            excess = column.append(fields) if column else None
            if excess is not None:
                expected = f"numbers, or at most {MAX_TEXTS:,} different texts, in column {name!r}"
                self.fail(excess, f"expected {expected}, got more. Leave it out: --ignore {name}")
        self.length, self.last_line = self.length + len(rows), lines[-1]

    def line(self, row: int) -> int:
        """Return the line in which a row starts, from 1."""
        rows, lines = self.starts
        i = bisect_right(rows, row) - 1
        return lines[i] + row - rows[i]

    def check_names(self, *names: str, option: str | None = None) -> None:
        """Raise ValueError unless there are columns of these names, which may be the value of an option."""
        for name in names:
            if name not in self.columns:
                where = f"{option} {name}" if option else str(self.path)
                wanted = f"a column of {self.path}" if option else f"a column {name!r}, as in the training data"
                raise ValueError(f"{where}: expected {wanted}, which has the columns {listed(self.names)}.")

    def column(self, name: str) -> CSVColumn:
        """Return a column that was read."""
        self.check_names(name)
        column = self.columns[name]
        if column is None:
            raise ValueError(f"{self.path}: expected a column that was read, got {name!r}")
        return column.encoded()

    def texts(self, name: str) -> NDArray[Any]:
        """Return a column of text; raise ValueError for an empty field, and if it was not read as text."""
        column = self.column(name)
        if column.numbers is not None:
            raise ValueError(f"{self.path}: expected column {name!r} as text, got numbers")
        if "" in column.index:
            row, _ = column.first_row([""])
            self.fail(row, f"expected a value in column {name!r}, got an empty field. {self.remedy(name)}")
        return column.decode(np.array([*column.index], TEXT))

    def numbers(self, name: str) -> NDArray[Any]:
        """Return a column of numbers, int64, uint64 or float64; raise ValueError for other fields."""
        numbers = self.column(name).read_numbers()
        if not isinstance(numbers, tuple):
            return numbers
        row, text = numbers
        if text.lower() in MISSING_VALUES:
            got = repr(text) if text else "an empty field"
            self.fail(row, f"expected a number in column {name!r}, got {got}. {self.remedy(name)}")
        hint = " Numbers have a decimal point." if is_number(text.replace(",", ".")) else ""
        self.fail(row, f"expected a number in column {name!r}, got {describe(text)}.{hint}")

    def values(self, name: str) -> NDArray[Any]:
        """Return a column of numbers if its fields are numbers or missing values, or most of many are; else text."""
        return self.numbers(name) if self.column(name).has_numbers() else self.texts(name)

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
        self.texts(name)
        column = self.column(name)
        if unknown := [text for text in column.index if text not in known]:
            row, text = column.first_row(unknown)
            expected = f"one of the values of the training data, {describe(list(known))}"
            self.fail(row, f"expected in column {name!r} {expected}, got {describe(text)}")
        values = [known[text] for text in column.index]
        return column.decode(np.array(values, TEXT if isinstance(values[0], str) else None))

    def remedy(self, name: str) -> str:
        """Return how to continue after a missing value."""
        if name == self.target:
            return "Remove these rows, or replace the values"
        return f"Remove these rows, replace the values, or train without the column: --ignore {name}"

    def fail(self, row: int, message: str) -> NoReturn:
        """Raise ValueError with the line of a row."""
        raise ValueError(f"{self.path}: line {self.line(row)}: {message}")


def read_csv(path: Path, kind_of: Callable[[str], Kind | None] = lambda name: "any") -> CSVTable:
    """Read a CSV file in UTF-8 with a header, which may be compressed (.gz).

    The delimiter, one of comma, semicolon and tab, is the one that splits the header into the most fields. Empty lines
    are ignored, and spaces around fields are removed. The file is read once, from start to end, so it may be a pipe.

    Parameters
    ----------
    path : Path
        The file.
    kind_of : function
        The kind of a column: "text", "any" for text or numbers, or None for a column that is not read.

    Raises
    ------
    OSError
        The file does not exist, is a folder, or cannot be read.
    ValueError
        Binary data, no rows, rows of different lengths, or names that are missing, repeated, or numbers.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path}: expected a CSV file, got a folder")
    limit, line = csv.field_size_limit(MAX_FIELD_CHARS), 0
    try:
        rows = records(*find_delimiter(text_lines(path)))
        line, names = next(rows, (0, []))
        if not names:
            raise ValueError(f"{path}: expected the names of columns and rows of data, got an empty file")
        check_header(f"{path}: line {line}", names)
        kinds = {name: kind_of(name) for name in names}
        table = CSVTable(path, {name: kind and CSVColumn(kind == "text") for name, kind in kinds.items()})
        block, lines = [], []
        for line, row in rows:
            if len(row) != len(names):
                raise ValueError(f"{path}: line {line}: expected {len(names)} fields, as in the header, got {len(row)}")
            block.append(row)
            lines.append(line)
            if len(block) >= max(MIN_BLOCK_ROWS, BLOCK_FIELDS // len(names)):
                table.append(block, lines)
                block, lines = [], []
        if block:
            table.append(block, lines)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: there is no such file") from None
    except csv.Error as error:
        raise ValueError(f"{path}: line {line + 1} or later: expected fields with matching quotes: {error}") from None
    finally:
        csv.field_size_limit(limit)
    if not len(table):
        raise ValueError(f"{path}: expected rows of data, got the names of columns only")
    return table


def encoded_kinds(encoder: TableEncoder) -> dict[str, Kind]:
    """Return the kinds of the columns that an encoder expects."""
    return {column["name"]: "text" if "categories" in column else "any" for column in encoder.columns}


def text_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file in UTF-8 with their ends, without a byte order mark."""
    decoder, rest, line = getincrementaldecoder("utf-8-sig")(), "", 1
    for data in chain(read_chunks(path), [b""]):
        if b"\0" in data:
            raise ValueError(f"{path}: expected a CSV file in UTF-8, got binary data, or text in UTF-16")
        try:
            text = rest + decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            line += error.object.count(b"\n", 0, error.start)
            raise ValueError(
                f"{path}: line {line}: expected text in UTF-8, got the byte 0x{error.object[error.start]:02x}. Convert "
                "it, such as by: iconv -f latin1 -t utf-8"
            ) from None
        line += data.count(b"\n")
        end = 1 + max(text.rfind("\n"), text.rfind("\r", 0, -1)) if data else len(text)  # the last may be one of \r\n
        rest = text[end:]
        if len(rest) > MAX_LINE_CHARS:
            raise ValueError(f"{path}: expected lines of at most {MAX_LINE_CHARS:,} characters, got more")
        yield from io.StringIO(text[:end], newline="")


def find_delimiter(lines: Iterator[str]) -> tuple[Iterator[str], str]:
    """Return all lines, and the delimiter that splits the header into the most fields."""
    head: list[str] = []

    def from_start() -> Iterator[str]:
        yield from head
        for line in lines:
            head.append(line)
            yield line

    delimiter = max(DELIMITERS, key=lambda x: count_fields(from_start(), x))
    return chain(head, lines), delimiter


def records(lines: Iterable[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line, from 1, and the fields of each record, without empty lines."""
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=True)
    line = 1
    for row in reader:
        fields = [*map(str.strip, row)]
        if fields not in ([], [""]):
            yield line, fields
        line = reader.line_num + 1


def count_fields(lines: Iterable[str], delimiter: str) -> int:
    """Return the number of fields of the header."""
    try:
        return len(next(records(lines, delimiter), (1, []))[1])
    except csv.Error:
        return 0


def is_number_column(texts: Collection[str]) -> bool:
    """Return whether texts are numbers and missing values, or many different texts of which most are numbers."""
    numbers = {text for text in texts if is_number(text)}
    is_mixed = len(texts) > MAX_MIXED_VALUES and len(numbers) > len(texts) / 2
    return is_mixed or (bool(numbers) and all(x in numbers or x.lower() in MISSING_VALUES for x in texts))


def parse_numbers(fields: Sequence[str]) -> NDArray[Any] | None:
    """Return fields as int64, uint64 or float64; None if one of them is not a number."""
    joined = "\0".join([*fields, ""])
    if NUMBERS.fullmatch(joined) is None:
        return None
    if not any(x in joined for x in ".eE") and max(map(len, fields)) <= MAX_INT64_CHARS:
        return np.fromiter(map(int, fields), np.int64, len(fields))
    numbers = np.fromiter(map(float, fields), np.float64, len(fields))
    if not np.isfinite(numbers).all():
        return None
    if all(map(INTEGER.fullmatch, fields)):
        integers = np.array([int(x) for x in fields])
        return integers if integers.dtype.kind in "iu" else numbers
    return numbers


def format_csv(rows: Iterable[Iterable[str]], safe_cells: bool = False) -> str:
    """Return rows as CSV, each with a line feed at its end.

    ``safe_cells``: whether to quote all cells, and to write an apostrophe before formulas, so that spreadsheet programs
    show them as text. Source: OWASP, "CSV injection".
    """
    if safe_cells:
        rows = [[f"'{x}" if FORMULA.match(x) and not is_number(x) else x for x in row] for row in rows]
    lines: list[str] = []
    file = SimpleNamespace(write=lambda line: lines.append(line.removesuffix("\r\n")))
    csv.writer(file, quoting=csv.QUOTE_ALL if safe_cells else csv.QUOTE_MINIMAL).writerows(
        rows
    )  # \r is quoted as \n is
    return "\n".join([*lines, ""])


def as_array(numbers: array[Any]) -> NDArray[Any]:
    """Return an array that shares the memory of an array of Python."""
    return np.frombuffer(numbers, numbers.typecode)


def check_header(where: str, names: list[str]) -> None:
    """Raise ValueError for names of columns that are missing, repeated, or numbers."""
    if "" in names:
        raise ValueError(
            f"{where}: expected a name for each column, got none for column {names.index('') + 1}. Add it, or remove "
            "the column (pandas: to_csv(path, index=False))"
        )
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if all(map(is_number, names)):
        raise ValueError(f"{where}: expected the names of the columns, got numbers. Add a line of names at the start")
    if repeated:
        raise ValueError(f"{where}: expected different names of columns, got {listed(repeated)} more than once")


def is_number(text: str) -> bool:
    """Return whether a field is a finite number."""
    return bool(NUMBER.fullmatch(text)) and math.isfinite(float(text))
