"""What values of each dtype of NumPy, pandas, polars and Arrow become in X and in y, and which are refused."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pytest

import neonlite as nl
from neonlite.data import ArrayIterator
from neonlite.encoders import depth, read_column
from neonlite.encoders.inputs import TableEncoder, choose_encoder
from neonlite.encoders.targets import choose_target_encoder
from neonlite.layers import Affine, LookupTable, RecurrentMean

NUMBER, CATEGORY = "number", "category"
DAYS = np.array(["2020-01-01", "2021-01-01"] * 2, "M8[D]")
FIELDS = np.array([(1, 2.0)] * 4, dtype=[("a", int), ("b", float)])


def objects(*values: Any) -> Any:
    """Return a column of Python objects."""
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


# four values -> what they are in X; a text of the error if they are refused
NUMPY: dict[str, tuple[Any, str]] = {
    "bool": (np.array([True, False] * 2), NUMBER),
    **{
        name: (np.array([1, 2] * 2, name), NUMBER)
        for name in ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"]
    },
    "uint64": (np.array([2**63, 2**63 + 2**40] * 2, "u8"), NUMBER),
    **{name: (np.array([1.5, 2] * 2, name), NUMBER) for name in ["float16", "float32", "float64", "longdouble"]},
    "big-endian": (np.array([1.5, 2] * 2, ">f8"), NUMBER),
    "str": (np.array(["a", "b"] * 2), CATEGORY),
    "StringDType": (np.array(["a", "b"] * 2, np.dtypes.StringDType()), CATEGORY),
    "object of str": (objects("a", "b", "a", "b"), CATEGORY),
    "object of int": (objects(1, 2, 1, 2), NUMBER),
    "object of int and float": (objects(1, 2.5, 1, 2), NUMBER),
    "object of bool": (objects(True, False, True, False), NUMBER),
    "list of str": (["a", "b"] * 2, CATEGORY),
    "list of int": ([1, 2] * 2, NUMBER),
    "masked without masked values": (np.ma.array([1.0, 2] * 2, mask=False), NUMBER),
    "complex": (np.array([1j, 2] * 2), "got complex128. Pass the real and the imaginary part"),
    "bytes": (np.array([b"a", b"b"] * 2), r"got \|S1. Decode it"),
    "datetime64": (DAYS, r"got datetime64\[D\]. Convert it to numbers"),
    "timedelta64": (DAYS - DAYS[0], r"got timedelta64\[D\]. Convert it to numbers"),
    "structured": (FIELDS, "Pass each field as a column"),
    "void": (np.zeros(4, "V3"), r"got \|V3"),
    "object of several types": (objects(1, "1", 2, "2"), "expected values of one type .* got int, str"),
    "list of several types": ([1, "1", 2, "2"], "expected values of one type .* got int, str"),
    "list of booleans and integers": ([True, 2] * 2, "expected values of one type .* got bool, int"),
    "object of booleans of NumPy": (objects(True, np.False_, True, False), NUMBER),
    "list of arrays without axes": ([np.array(1), np.array(2)] * 2, NUMBER),
    "list of integers above 64 bits": ([2**64, 1] * 2, r"expected integers of int64, or of uint64, .* got 1 to 18"),
    "list of integers of two types": ([2**63, -1] * 2, "expected integers of int64, or of uint64, .* got -1 to 9"),
    "list of dates of NumPy": ([*DAYS], "got date. Convert it to numbers"),
    "list with a masked value": ([np.ma.masked, 1.0, 2.0, 3.0], "got a masked value in .*row 0"),
    "NaN without axes": (np.array(np.nan), "got nan in .*row 0"),
    "object without axes": (np.array(None), "got None in .*row 0"),
    "set": ({"a", "b"}, "got a set. Pass a list"),
    "generator": ((x for x in "abab"), "got a generator. Pass a list"),
    "object with None": (objects("a", None, "b", "a"), "got None"),
    "object with NaN": (objects("a", "b", np.nan, "a"), "got nan"),
    "list with NaN": (["a", "b", float("nan"), "a"], "got nan"),
    "list of numbers with None": ([1.0, None, 2.0, 3.0], "got None"),
    "float with NaN": (np.array([1.0, np.nan, 2, 3]), "got nan"),
    "masked": (np.ma.array([1.0, 2, 3, 4], mask=[False, True, False, False]), "got a masked value"),
    "masked integers": (np.ma.array([1, 2, 3, 4], mask=[False, True, False, False]), "got a masked value"),
    "lists": (objects([1], [2, 3], [1], [2]), "got list. Use a column for each value"),
    "dicts": (objects({"a": 1}, {}, {}, {}), "got dict. Use a column for each value"),
    "decimals": (objects(*map(decimal.Decimal, "1212")), r"got Decimal. Convert it: astype\(float\)"),
    "dates": (objects(*[datetime.date(2020, 1, 1)] * 4), "got date. Convert it to numbers"),
    "complex objects": (objects(1j, 2j, 1j, 2j), "got complex. Pass the real"),
    "bytes objects": (objects(b"a", b"b", b"a", b"b"), "got bytes. Decode it"),
}


def pandas_columns() -> dict[str, tuple[Any, str]]:
    pd = pytest.importorskip("pandas")
    days = pd.to_datetime(["2020-01-01", "2021-01-01"] * 2)
    return {
        "Int64": (pd.Series([1, 2] * 2, dtype="Int64"), NUMBER),
        "Float64": (pd.Series([1.5, 2] * 2, dtype="Float64"), NUMBER),
        "boolean": (pd.Series([True, False] * 2, dtype="boolean"), NUMBER),
        "string": (pd.Series(["a", "b"] * 2, dtype="string"), CATEGORY),
        "object": (pd.Series(["a", "b"] * 2, dtype=object), CATEGORY),
        "Sparse": (pd.Series([1.0, 0] * 2, dtype="Sparse[float]"), NUMBER),
        "Categorical of str": (pd.Series(["a", "b"] * 2, dtype="category"), CATEGORY),
        "Categorical of int": (pd.Series([1, 2] * 2, dtype="category"), CATEGORY),
        "ordered Categorical": (pd.Series(pd.Categorical([1, 2] * 2, ordered=True)), CATEGORY),
        "Int64 with NA": (pd.Series([1, None, 2, 3], dtype="Int64"), "row 1"),
        "string with NA": (pd.Series(["a", None, "b", "a"], dtype="string"), "row 1"),
        "Categorical with NaN": (pd.Series(["a", None, "b", "a"], dtype="category"), "row 1"),
        "Categorical of int with NaN": (pd.Series([1, None, 2, 1], dtype="category"), "row 1"),
        "datetime": (pd.Series(days), "Convert it to numbers"),
        "datetime with NaT": (pd.Series([days[0], pd.NaT, days[1], days[0]]), "Convert it to numbers|got NaT"),
        "datetime with time zone": (pd.Series(days.tz_localize("UTC")), "Convert it to numbers"),
        "timedelta": (pd.Series(days - days[0]), "Convert it to numbers"),
        "period": (pd.Series(days.to_period("M")), "got Period. Convert it to numbers"),
        "interval": (pd.Series(pd.interval_range(0, 4)), "got Interval. Convert it to numbers"),
        "complex": (pd.Series([1j, 2] * 2), "Pass the real"),
    }


def polars_columns() -> dict[str, tuple[Any, str]]:
    pl = pytest.importorskip("polars")
    day = datetime.date(2020, 1, 1)
    return {
        "Int32": (pl.Series([1, 2] * 2, dtype=pl.Int32), NUMBER),
        "Float32": (pl.Series([1.5, 2] * 2, dtype=pl.Float32), NUMBER),
        "Boolean": (pl.Series([True, False] * 2), NUMBER),
        "String": (pl.Series(["a", "b"] * 2), CATEGORY),
        "Categorical": (pl.Series(["a", "b"] * 2, dtype=pl.Categorical), CATEGORY),
        "Enum": (pl.Series(["a", "b"] * 2, dtype=pl.Enum(["a", "b"])), CATEGORY),
        "Int64 with null": (pl.Series([1, None, 2, 3]), "row 1"),
        "String with null": (pl.Series(["a", None, "b", "a"]), "row 1"),
        "Null": (pl.Series([None] * 4), "row 0"),
        "Date": (pl.Series([day] * 4), "Convert it to numbers"),
        "Datetime": (pl.Series([datetime.datetime(2020, 1, 1)] * 4), "Convert it to numbers"),
        "Duration": (pl.Series([datetime.timedelta(1)] * 4), "Convert it to numbers"),
        "Time": (pl.Series([datetime.time(1)] * 4), "Convert it to numbers"),
        "List": (pl.Series([[1], [2, 3], [1], [2]]), "got ndarray. Use a column"),
        "Struct": (pl.Series([{"a": 1}] * 4), "Use a column for each value"),
        "Array": (pl.Series([[1, 2]] * 4, dtype=pl.Array(pl.Int64, 2)), "Use a column for each value"),
        "Decimal": (pl.Series([decimal.Decimal(1)] * 4), r"got Decimal. Convert it: astype\(float\)"),
        "Int128": (pl.Series([1, 2] * 2, dtype=pl.Int128), "in column 'x': cannot convert|for y: cannot convert"),
        "Binary": (pl.Series([b"a", b"b"] * 2), "got bytes. Decode it"),
        "Object": (pl.Series([{1}, {2}, {1}, {2}], dtype=pl.Object), "got set. Use a column"),
    }


def arrow_columns() -> dict[str, tuple[Any, str]]:
    pa, pd = pytest.importorskip("pyarrow"), pytest.importorskip("pandas")
    columns = {
        "int8": (pa.array([1, 2] * 2, pa.int8()), NUMBER),
        "halffloat": (pa.array([1.0, 2] * 2, pa.float16()), NUMBER),
        "bool": (pa.array([True, False] * 2), NUMBER),
        "string": (pa.array(["a", "b"] * 2), CATEGORY),
        "large_string": (pa.array(["a", "b"] * 2, pa.large_string()), CATEGORY),
        "dictionary of string": (pa.array(["a", "b"] * 2).dictionary_encode(), CATEGORY),
        "dictionary of int": (pa.array([1, 2] * 2).dictionary_encode(), CATEGORY),
        "int with null": (pa.array([1, None, 2, 3]), "row 1"),
        "string with null": (pa.array(["a", None, "b", "a"]), "row 1"),
        "dictionary with null": (pa.array([1, None, 2, 1]).dictionary_encode(), "row 1"),
        "null": (pa.nulls(4), "row 0"),
        "date32": (pa.array([datetime.date(2020, 1, 1)] * 4), "Convert it to numbers"),
        "timestamp": (pa.array([datetime.datetime(2020, 1, 1)] * 4), "Convert it to numbers"),
        "duration": (pa.array([datetime.timedelta(1)] * 4), "Convert it to numbers"),
        "decimal128": (pa.array([decimal.Decimal(1)] * 4), "got Decimal. Convert it"),
        "list": (pa.array([[1], [2, 3]] * 2), "Use a column for each value"),
        "struct": (pa.array([{"a": 1}] * 4), "got dict. Use a column"),
        "binary": (pa.array([b"a", b"b"] * 2), "got bytes. Decode it"),
    }
    frames = {
        f"{name} of pandas": (pd.Series(column, dtype=pd.ArrowDtype(column.type)), expected)
        for name, (column, expected) in columns.items()
        if name
        in (
            "int8",
            "string",
            "dictionary of string",
            "dictionary of int",
            "int with null",
            "string with null",
            "dictionary with null",
        )
    }
    chunks = {f"chunked {name}": (pa.chunked_array([x, x[:0]]), expected) for name, (x, expected) in columns.items()}
    return columns | frames | chunks


LIBRARIES = {"numpy": lambda: NUMPY, "pandas": pandas_columns, "polars": polars_columns, "arrow": arrow_columns}
every_library = pytest.mark.parametrize("library", LIBRARIES)


def values_of(column: Any) -> list[Any]:
    """Return the values of a column as objects of Python."""
    return column.to_pylist() if hasattr(column, "to_pylist") else [*column]


@every_library
def test_each_dtype_is_a_number_or_a_category_in_X_or_refused(library):
    for name, (column, expected) in LIBRARIES[library]().items():
        if expected not in (NUMBER, CATEGORY):
            with pytest.raises((TypeError, ValueError), match=expected):
                choose_encoder("fit", {"x": column})
            continue
        encoder = choose_encoder("fit", {"x": column})
        assert isinstance(encoder, TableEncoder)
        assert ("categories" in encoder.columns[0]) == (expected == CATEGORY), name
        encoded = encoder.encode("fit", {"x": column})
        if expected == NUMBER:
            values = np.array([float(x) for x in values_of(column)])
            wanted = ((values - values.mean()) / values.std())[:, None]
        else:
            values = [str(x) for x in values_of(column)]
            wanted = [[x == category for category in sorted(set(values))] for x in values]
        np.testing.assert_allclose(encoded, wanted, atol=1e-3 if name == "float16" else 1e-6, err_msg=name)
        row = encoder.as_batch({"x": values_of(column)[0]})
        np.testing.assert_array_equal(encoder.encode("predict", row), encoded[:1], err_msg=name)


@every_library
def test_each_dtype_of_labels_is_returned_or_refused(library):
    for name, (column, expected) in LIBRARIES[library]().items():
        if expected not in (NUMBER, CATEGORY):
            with pytest.raises((TypeError, ValueError), match=expected):
                choose_target_encoder("fit", column, 2, "Softmax", None)
            continue
        column_values = values_of(column)
        if any(x != int(x) for x in column_values if expected == NUMBER):
            continue  # numbers with fractions are not classes
        encoder = choose_target_encoder("fit", column, 2, "Softmax", None)
        indices = encoder.encode("fit", column)
        labels = encoder.classes_of("predict", np.eye(len(encoder.classes))[indices])
        assert labels.tolist() == column_values, name


def test_numbers_are_targets_whatever_their_dtype():
    for name, (column, expected) in NUMPY.items():
        if expected == NUMBER:
            values = np.array([float(x) for x in column])
            encoder = choose_target_encoder("fit", column, 1, None, False)
            targets = encoder.encode("fit", column)
            np.testing.assert_allclose(targets[:, 0], (values - values.mean()) / values.std(), 1e-3, err_msg=name)
            np.testing.assert_allclose(encoder.decode(targets), values, 1e-9, err_msg=name)


def test_arrow_columns_are_read():
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"x": [1, 2, 1, 2], "c": ["a", "b", "a", "b"]})
    assert str(choose_encoder("fit", table)) == "columns x, c (2 categories)"
    assert read_column("fit", pa.array(["a", "b"])).values.tolist() == ["a", "b"]
    with pytest.raises(ValueError, match="row 1"):
        read_column("fit", pa.array(["a", None]))


def test_columns_of_one_name_are_refused():
    with pytest.raises(ValueError, match="expected different names of columns, got 1 more than once"):
        choose_encoder("fit", {1: [1.0, 2.0], "1": [3.0, 4.0]})


@pytest.mark.parametrize("argument", ["X", "y", "table"])
def test_a_lazy_frame_is_refused_with_the_way_out(argument):
    pl = pytest.importorskip("polars")
    lazy = pl.LazyFrame({"a": [1.0, 2.0]})
    nl.gen_backend("cpu")
    data = {"X": (lazy, [0.0, 1.0]), "y": ([[0.0], [1.0]], lazy), "table": (lazy, "a")}[argument]
    with pytest.raises(TypeError, match=r"got the LazyFrame of polars. Pass X.collect\(\)"):
        nl.Model([Affine(1)]).fit(*data, epochs=1, progress_bar=False)


@pytest.mark.parametrize("kind", [bool, np.uint8])
def test_boolean_arrays_are_numbers_and_uint8_is_scaled(kind):
    nl.gen_backend("cpu", rng_seed=0)
    X = np.random.default_rng(0).random((20, 3)) > 0.5
    model = nl.Model([Affine(1)])
    model.fit(X.astype(kind), X[:, 0].astype(float), epochs=1, progress_bar=False)
    assert (model.preprocessing is None) == (kind is bool)


@pytest.mark.parametrize("argument", ["X", "y", "sample_weight"])
@pytest.mark.parametrize("is_list", [False, True])
def test_masked_values_are_refused(argument, is_list):
    nl.gen_backend("cpu")
    data = {"X": np.eye(4), "y": np.eye(4), "sample_weight": np.ones(4)}
    data[argument] = np.ma.array(data[argument], mask=np.zeros_like(data[argument]))
    data[argument][1:2] = np.ma.masked
    if is_list:
        data[argument] = [*data[argument]]
    with pytest.raises(ValueError, match=f"expected a value in every row of {argument}, got a masked value in row 1"):
        nl.Model([Affine(4)]).fit(**data, progress_bar=False)


@pytest.mark.parametrize("weight", [np.nan, None])
def test_a_missing_weight_is_refused_with_its_row(weight):
    nl.gen_backend("cpu")
    with pytest.raises(ValueError, match=r"every row of sample_weight, got (nan|None) in row 2"):
        nl.Model([Affine(1)]).fit(np.eye(4), np.ones(4), sample_weight=[1.0, 1.0, weight, 1.0], progress_bar=False)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.ones((4, 2), complex), "got complex128.*Pass the real and the imaginary part"),
        (np.zeros((4, 2), "M8[D]"), "got datetime64.*Convert it to numbers"),
        (np.ones((4, 2), "S1"), "got .S1.*Decode it"),
    ],
)
@pytest.mark.parametrize("is_iterator", [False, True])
def test_arrays_of_other_dtypes_are_refused_with_the_conversion(X, message, is_iterator):
    nl.gen_backend("cpu", batch_size=4)
    y = np.ones((4, 1))
    with pytest.raises(TypeError, match=f"(?s){message}"):
        ArrayIterator(X, y, make_onehot=False) if is_iterator else nl.Model([Affine(1)]).fit(X, y)


def test_a_table_of_texts_is_read_as_texts_by_a_lookup_table(tmp_path):
    nl.gen_backend("cpu", rng_seed=0)
    table = {"text": ["good film", "bad film"] * 10, "label": [1, 0] * 10}
    model = nl.Model([LookupTable(20, 4), RecurrentMean(), Affine(2, activation="softmax")])
    model.fit(table, "label", epochs=1, progress_bar=False)
    texts = table["text"][:2]
    expected = model.predict(texts)
    np.testing.assert_array_equal(model.predict({"text": texts}), expected)
    np.testing.assert_array_equal(model.predict({"text": texts[0]}), expected[0])
    with pytest.raises(TypeError, match=r"expected texts or token ids .* got a table with the columns a, b"):
        choose_encoder("fit", {"a": [1, 2], "b": [3, 4]}, vocab_size=20)


def test_labels_above_the_range_of_int64_are_saved_and_returned(tmp_path):
    nl.gen_backend("cpu", rng_seed=0)
    X, y = np.random.default_rng(0).normal(size=(20, 2)), np.array([2**63, 2**64 - 1] * 10, "u8")
    model = nl.Model([Affine(2, activation="softmax")])
    model.fit(X, y, epochs=1, progress_bar=False)
    model.save_params(tmp_path / "model.neon")
    loaded = nl.Model(tmp_path / "model.neon")
    for labels in (model.predict_classes(X), loaded.predict_classes(X)):
        assert labels.dtype == np.uint64
        assert set(labels.tolist()) <= {2**63, 2**64 - 1}


def test_the_depth_of_nested_lists_is_that_of_their_first_elements():
    data = [1.0, [], [1.0], [[5.0]], [[[1]], [2]], [np.ones((2, 3))]]
    assert [depth(x) for x in data] == [0, 1, 1, 2, 3, 3]
