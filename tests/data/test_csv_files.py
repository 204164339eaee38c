"""CSV files are read in blocks, with the values that the csv module and pandas read as a whole."""

from __future__ import annotations

import csv
import gzip
import io
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neonlite.data import csv_files, file_formats
from neonlite.data.csv_files import format_csv, read_csv
from neonlite.encoders import read_column
from neonlite.encoders.inputs import TableEncoder

pd = pytest.importorskip("pandas")
N = 300


@pytest.fixture(params=["one block", "small blocks", "a row in a block"])
def blocks(request, monkeypatch) -> None:
    """Read in blocks of several sizes, which end within lines, characters and line breaks, and with few categories."""
    if request.param != "one block":
        small = request.param == "small blocks"
        monkeypatch.setattr(csv_files, "BLOCK_FIELDS", 64 if small else 1)
        monkeypatch.setattr(csv_files, "MIN_BLOCK_ROWS", 1)
        monkeypatch.setattr(file_formats, "CHUNK_BYTES", 37 if small else 1)


@pytest.fixture
def few_categories(monkeypatch) -> None:
    """Columns of more than 8 different numbers are columns of numbers."""
    monkeypatch.setattr(csv_files, "MAX_CATEGORIES", 8)


def write(path: Path, columns: dict[str, list[Any]], end: str = "\n", quoting: Any = csv.QUOTE_MINIMAL) -> str:
    """Write columns, by gzip if the path ends in .gz; return the text."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator=end, quoting=quoting)
    writer.writerows([[*columns], *zip(*columns.values(), strict=True)])
    data = text.getvalue().encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return text.getvalue()


def random_columns() -> dict[str, list[Any]]:
    rng = np.random.default_rng(0)
    integers, floats = rng.integers(-(2**63), 2**63 - 1, N).tolist(), rng.normal(size=N).tolist()
    return {
        "float": floats,
        "exponent": [f"{x:.3e}" for x in floats],
        "integer": integers,
        "digits": rng.integers(0, 10, N).tolist(),
        "late float": [*range(N - 1), "0.5"],
        "late large": [*range(N - 1), 2**63],
        "unsigned": [2**64 - 1 - i for i in range(N)],
        "huge": [10**25 + i for i in range(N)],
        "signs": [f"{'+-'[i % 2]}{i}" for i in range(N)],
        "city": rng.choice(
            ["Zürich", "New, York", 'say "x"', "two\nlines", "two\r\nlines", "c\rr", "日本"], N
        ).tolist(),
        "codes": [f"{i % 30:03}" for i in range(N)],
        "mostly missing": ["NA", *["x", "y", "12"] * 99, "?", "z"],
    }


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
@pytest.mark.usefixtures("blocks", "few_categories")
def test_numbers_and_texts_are_those_of_pandas_in_blocks_of_any_size(tmp_path, name, end):
    columns = random_columns()
    reader = csv.reader(io.StringIO(write(tmp_path / name, columns, end, csv.QUOTE_NONNUMERIC), newline=""))
    starts = [1 + reader.line_num for _ in reader]
    table = read_csv(tmp_path / name)
    assert [table.line(row) for row in range(N)] == starts[:-1]
    assert (table.names, len(table)) == ([*columns], N)
    for column, fields in columns.items():
        values = table.values(column)
        expected: Any = pd.Series([str(x) for x in fields], dtype=object)
        if column not in ("city", "codes", "mostly missing"):
            expected = pd.Series([int(x) if str(x).strip("+-").isdigit() else float(x) for x in fields])
            expected = expected.astype(float) if expected.dtype == object or "late" in column else expected
            assert values.dtype == expected.dtype
        assert values.tolist() == expected.tolist()


@pytest.mark.usefixtures("blocks", "few_categories")
def test_a_column_is_read_as_text_when_its_numbers_are_labels(tmp_path):
    fields = [f"{i}.50" for i in range(N)]
    write(tmp_path / "t.csv", {"x": fields, "id": [f"id {i}" for i in range(N)], "y": fields})
    table = read_csv(tmp_path / "t.csv", {"x": "text", "y": "any"}.get)
    assert table.texts("x").tolist() == fields
    assert table.values("x").tolist() == table.values("y").tolist() == [float(x) for x in fields]
    with pytest.raises(ValueError, match="expected a column that was read, got 'id'"):
        table.values("id")
    with pytest.raises(ValueError, match="expected column 'y' as text, got numbers"):
        table.texts("y")


@pytest.mark.parametrize("wrong", ["7,5", "nan", "", "1e999", "0x10", "1_0", "٣"])
@pytest.mark.parametrize("row", [0, 5, 250])
@pytest.mark.usefixtures("blocks", "few_categories")
def test_a_field_that_is_not_a_number_is_reported_with_its_line(tmp_path, row, wrong):
    fields = [f"{i}.25" for i in range(N)]
    fields[row] = wrong
    texts = ["a\nb\nc" if i % 7 == 3 else "a" for i in range(N)]
    text = write(tmp_path / "t.csv", {"text": texts, "x": fields}).replace("\na,8.25", "\n\n \na,8.25")
    (tmp_path / "t.csv").write_text(text)
    line = text[: text.index(f'"{wrong}"\n' if wrong == "7,5" else f",{wrong}\n")].count("\n") + 1
    line -= 2 * (row % 7 == 3)  # the row starts in the first of its lines
    with pytest.raises(ValueError, match=rf"t\.csv: line {line}: expected a number in column 'x', got "):
        read_csv(tmp_path / "t.csv").values("x")


@pytest.mark.usefixtures("blocks", "few_categories")
def test_more_texts_than_codes_are_reported_with_their_line(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_files, "MAX_TEXTS", 100)
    write(tmp_path / "t.csv", {"x": [1] * N, "id": [f"n{i // 2}" for i in range(N)]})
    message = "t.csv: line 202: expected numbers, or at most 100 different texts, in column 'id', got more. Leave it"
    with pytest.raises(ValueError, match=message):
        read_csv(tmp_path / "t.csv")
    assert len(read_csv(tmp_path / "t.csv", {"x": "any"}.get)) == N


def test_codes_are_exact_up_to_their_limit(tmp_path):
    fields = [f"n{i}" for i in range(csv_files.MAX_TEXTS)]
    write(tmp_path / "t.csv", {"x": fields})
    assert read_csv(tmp_path / "t.csv").values("x").tolist() == fields
    write(tmp_path / "t.csv", {"x": [*fields, "one more"]})
    with pytest.raises(ValueError, match=f"line {csv_files.MAX_TEXTS + 2}: expected numbers, or at most 65,536"):
        read_csv(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a,b\n" + b"1,2\n" * 50 + b"1,\xff\n", "line 52: expected text in UTF-8, got the byte 0xff"),
        (b"a,b\n" + b"1,2\n" * 50 + "1,é\n".encode()[:-2], "line 52: expected text in UTF-8, got the byte 0xc3"),
        (b"a,b\n" + b"1,2\n" * 50 + b"1,\0\n", "expected a CSV file in UTF-8, got binary data"),
        (b"a,b\n" + b"1,2\n" * 50 + b"1\n", "line 52: expected 2 fields, as in the header, got 1"),
        (b"a,b\n" + b"1,2\n" * 50 + b'1,"2\n', "line 52 or later: expected fields with matching quotes"),
        (b"a,b\n" + b"1,2\n" * 50 + b'1,"2"3\n', "line 52 or later: expected fields with matching quotes"),
    ],
)
@pytest.mark.usefixtures("blocks")
def test_an_invalid_end_of_a_file_is_reported_with_its_line(tmp_path, data, message):
    (tmp_path / "t.csv").write_bytes(data)
    with pytest.raises(ValueError, match=message):
        read_csv(tmp_path / "t.csv")


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_texts_lines_and_fields_have_limits(tmp_path, monkeypatch, name):
    limit = csv.field_size_limit()
    write(tmp_path / name, {"a": ["x" * 200_000], "b": [1]})
    assert read_csv(tmp_path / name).values("a").tolist() == ["x" * 200_000]
    monkeypatch.setattr(csv_files, "MAX_FIELD_CHARS", 150_000)
    with pytest.raises(ValueError, match=r"line 2 or later: .* larger than field limit"):
        read_csv(tmp_path / name)
    monkeypatch.setattr(csv_files, "MAX_LINE_CHARS", 100_000)
    monkeypatch.setattr(file_formats, "CHUNK_BYTES", 1 << 12)
    with pytest.raises(ValueError, match="expected lines of at most 100,000 characters"):
        read_csv(tmp_path / name)
    monkeypatch.setenv("NEONLITE_MAX_FILE_BYTES", "50000")
    with pytest.raises(ValueError, match=r"expected at most 50,000 bytes, got more\. Set the environment variable"):
        read_csv(tmp_path / name)
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize(
    ("fields", "rows", "width"),
    [
        (["1", "2", "x", "y"], 20_000, 6),
        ([f"{i}.5" for i in range(20_000)], 20_000, 6),
        ([f"{i}.25" for i in range(900)], 900, 90),
    ],
)
def test_memory_is_at_most_three_times_that_of_the_arrays(tmp_path, monkeypatch, fields, rows, width):
    monkeypatch.setattr(csv_files, "BLOCK_FIELDS", 1 << 10)
    monkeypatch.setattr(file_formats, "CHUNK_BYTES", 1 << 14)
    columns = {f"c{i}": fields * (rows // len(fields)) for i in range(width)}
    write(tmp_path / "t.csv.gz", columns)
    read_csv(tmp_path / "t.csv.gz")
    tracemalloc.start()
    try:
        table = read_csv(tmp_path / "t.csv.gz")
        arrays = [table.values(name) for name in columns]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [len(array) for array in arrays] == [rows] * width
    assert peak < 3 * sum(array.nbytes for array in arrays)


def test_a_long_text_among_short_ones_takes_its_own_memory_only(tmp_path):
    columns = {"a": ["y" * 20_000, *["x"] * 20_000], "b": [*range(20_001)]}
    write(tmp_path / "t.csv", columns)
    tracemalloc.start()
    try:
        table = read_csv(tmp_path / "t.csv")
        encoder = TableEncoder.from_data("f", {"a": read_column("f", table.values("a"), "a")}, True)
        values = table.inputs(encoder)["a"]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert values.tolist() == columns["a"]
    assert peak < 30e6  # the longest text for each row: 1.6 GB


def test_many_columns_are_read(tmp_path):
    names = [f"c{i}" for i in range(30_000)]
    (tmp_path / "t.csv").write_text("\n".join([",".join(names), ",".join(map(str, range(30_000)))]))
    table = read_csv(tmp_path / "t.csv")
    assert [table.values(name).tolist() for name in names] == [[i] for i in range(30_000)]
    with pytest.raises(ValueError, match=r"which has the columns c0, .* more\.") as error:
        table.values("none")
    assert len(str(error.value)) < 400


# --- writing ---------------------------------------------------------------------------------------------------------

CELLS = ["c\rr", "\u05d0\u200f", "plain", "a,b", 'say "x"', "two\nlines", "two\r\nlines", " ", "", "\u2028", "é", "1.5"]


@pytest.mark.parametrize("safe_cells", [False, True])
def test_the_csv_module_and_pandas_read_what_was_written(safe_cells):
    rows = [["c\rr", "head,er"], *zip(CELLS, CELLS[::-1], strict=True)]
    text = format_csv(rows, safe_cells)
    assert list(csv.reader(io.StringIO(text, newline=""))) == [[*row] for row in rows]
    frame = pd.read_csv(io.StringIO(text, newline=""), dtype=str, keep_default_na=False, skip_blank_lines=False)
    assert [[*frame.columns], *frame.to_numpy().tolist()] == [[*row] for row in rows]
    assert text.count("\n") == len(rows) + text.count("two\nlines") + text.count("two\r\nlines")


FORMULAS = ["=cmd|'/C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", "\uff1d1", "-", "-inf", "+"]


def test_formulas_are_written_as_text_when_asked():
    others = ["-1.5", "+2", "-1e-7", "a=1", "a-b", "x@y", "1", "text"]
    assert [*csv.reader(io.StringIO(format_csv([FORMULAS, others]), newline=""))] == [FORMULAS, others]
    text = format_csv([FORMULAS, others], safe_cells=True)
    assert [*csv.reader(io.StringIO(text, newline=""))] == [[f"'{x}" for x in FORMULAS], others]
    assert text.count('"') == 2 * len(FORMULAS + others)
