"""Encoders of inputs: layouts of arrays, columns of data frames, texts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from neonlite.encoders.inputs import ArrayEncoder, InputEncoder, TableEncoder, TextEncoder, choose_encoder

PANDAS, POLARS = "pandas", "polars"
TABLE = {"age": [20, 30, 40, 50], "job": ["cook", "driver", "cook", "nurse"], "member": [True, False, True, True]}


def frame(kind: str) -> Any:
    """Return the same table as a dict, or as a data frame of a library."""
    return TABLE if kind == "dict" else pytest.importorskip(kind).DataFrame(TABLE)


def roundtrip(encoder: Any) -> Any:
    """Return the encoder that a checkpoint would restore."""
    return InputEncoder.recursive_gen(encoder.get_description())


# --- arrays ----------------------------------------------------------------------------------------------------------


def test_features_are_standardized_with_the_moments_of_the_training_data(rng):
    x = rng.normal(size=(50, 3)) * [1, 100, 0.01] + [0, 1e4, 5]
    encoder = choose_encoder("fit", x)
    np.testing.assert_allclose(encoder.encode("fit", x), (x - x.mean(axis=0)) / x.std(axis=0), rtol=1e-4, atol=1e-5)
    other = rng.normal(size=(2, 3))
    for each in (encoder, roundtrip(encoder)):
        np.testing.assert_allclose(each.encode("predict", other), (other - x.mean(axis=0)) / x.std(axis=0), rtol=1e-4)
    assert str(encoder) == "arrays NF with rows of (3,), standardized"


def test_a_constant_feature_becomes_zero():
    assert choose_encoder("fit", [[3.0, 1.0], [3.0, 2.0]]).encode("fit", [[3.0, 1.0]]).tolist() == [[0.0, -1.0]]
    assert choose_encoder("fit", np.full((9, 1), 0.1)).encode("fit", [[0.1]]).item() == pytest.approx(0, abs=1e-6)


def test_without_standardization_and_as_uint8_features_are_unchanged():
    x = np.arange(6, dtype=np.uint8).reshape(3, 2)
    assert choose_encoder("fit", x).encode("fit", x).dtype == np.uint8
    assert choose_encoder("fit", x * 1.0, standardize=False).encode("fit", x * 1.0).tolist() == x.tolist()
    with pytest.raises(ValueError, match=r"expected rows of features \(n, F\) for standardize=True, got NCHW"):
        choose_encoder("fit", np.zeros((2, 3, 5, 5)), standardize=True)


@pytest.mark.parametrize(
    ("layout", "shape", "axes", "expected"),
    [
        ("NF", (2, 3), (0, 1), 3),
        ("NT", (2, 5), (0, 1), (1, 5)),
        ("NHW", (2, 4, 5), (0, 1, 2), (1, 4, 5)),
        ("NFT", (2, 3, 5), (0, 1, 2), (3, 5)),
        ("NTF", (2, 5, 3), (0, 2, 1), (3, 5)),
        ("NCHW", (2, 3, 4, 5), (0, 1, 2, 3), (3, 4, 5)),
        ("NHWC", (2, 4, 5, 3), (0, 3, 1, 2), (3, 4, 5)),
        ("NCDHW", (2, 3, 4, 5, 6), (0, 1, 2, 3, 4), (3, 4, 5, 6)),
    ],
)
def test_each_layout_is_transposed_to_that_of_the_network(rng, layout, shape, axes, expected):
    x = rng.normal(size=shape).astype(np.float32)
    encoder = choose_encoder("fit", x, layout=layout, standardize=False)
    assert encoder.shape == expected
    sizes = (expected,) if isinstance(expected, int) else expected
    for each in (encoder, roundtrip(encoder)):
        assert np.array_equal(each.encode("fit", x), x.transpose(axes).reshape(2, *sizes))
        assert np.array_equal(each.encode("predict", each.as_batch(x[1])), each.encode("predict", x)[1:])


@pytest.mark.parametrize(
    ("shape", "dtype", "expected", "layout"),
    [
        ((5, 8, 8, 3), "uint8", None, "NHWC"),
        ((5, 3, 8, 8), "float32", None, "NCHW"),
        ((5, 1, 9, 9), "float32", None, "NCHW"),
        ((5, 8, 8), "uint8", None, "NHW"),
        ((5, 7, 4), "float32", (7, 4), "NFT"),
        ((5, 7, 4), "float32", (4, 7), "NTF"),
        ((5, 3, 8, 3), "float32", (3, 3, 8), "NHWC"),
        ((5, 12, 8, 8), "float32", (12, 8, 8), "NCHW"),
    ],
)
def test_a_layout_with_one_possibility_is_recognized(shape, dtype, expected, layout):
    assert choose_encoder("fit", np.zeros(shape, dtype), expected=expected).layout == layout


@pytest.mark.parametrize(
    ("shape", "choices"),
    [
        ((5, 3, 8, 3), 'layout="NCHW" or layout="NHWC"'),
        ((5, 8, 8, 8), 'layout="NCHW" or layout="NHWC"'),
        ((5, 7, 4), 'layout="NHW" or layout="NFT" or layout="NTF"'),
    ],
)
def test_an_ambiguous_layout_must_be_given(shape, choices):
    with pytest.raises(ValueError, match=r"fit: expected the layout of an array \(5,.* got None. Pass " + choices):
        choose_encoder("fit", np.zeros(shape, np.float32))


def test_other_shapes_than_those_of_the_training_data_are_rejected(rng):
    encoder = choose_encoder("fit", rng.normal(size=(5, 7, 4)), layout="NFT")
    with pytest.raises(
        ValueError, match=r"predict: expected rows of shape \(7, 4\), .* got \(2, 4, 7\). The axes must"
    ):
        encoder.encode("predict", np.zeros((2, 4, 7)))
    with pytest.raises(
        ValueError, match=r"expected rows of shape \(3,\), an array \(3, 3\), got \(3, 5\). Pass rows: X.T"
    ):
        choose_encoder("fit", np.eye(3)).encode("predict", np.zeros((3, 5)))
    with pytest.raises(ValueError, match="'NTF' for an array"):
        choose_encoder("fit", np.zeros((5, 7)), layout="NTF")
    with pytest.raises(TypeError, match=r"expected a dense array, got the sparse csr_matrix. Pass X.toarray\(\)"):
        choose_encoder("fit", type("csr_matrix", (), {"toarray": None})())
    with pytest.raises(ValueError, match="X: expected finite values, got nan in row 1, column 0"):
        choose_encoder("fit", [[1.0], [np.nan]])


# --- data frames -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dict", PANDAS, POLARS])
def test_columns_of_numbers_are_standardized_and_categories_become_one_hot(kind):
    encoder = choose_encoder("fit", frame(kind))
    age, member = np.array(TABLE["age"]), np.array(TABLE["member"]) * 1.0
    expected = np.column_stack(
        [
            (age - 35) / np.sqrt(125),
            [[x == y for y in ("cook", "driver", "nurse")] for x in TABLE["job"]],
            (member - 0.75) / np.sqrt(0.75 * 0.25),
        ]
    )
    assert encoder.shape == 5
    for each in (encoder, roundtrip(encoder)):
        np.testing.assert_allclose(each.encode("fit", frame(kind)), expected, rtol=1e-6)
    assert str(encoder) == "columns age, job (3 categories), member"


@pytest.mark.parametrize("kind", ["dict", PANDAS, POLARS])
def test_columns_are_found_by_name_in_any_order_and_others_are_ignored(kind):
    encoder, table = choose_encoder("fit", frame(kind)), frame(kind)
    other = {"extra": [1, 2, 3, 4], **{name: table[name] for name in reversed(list(TABLE))}}
    assert np.array_equal(encoder.encode("predict", other), encoder.encode("predict", table))
    with pytest.raises(ValueError, match="predict: expected a column 'age', as in the training data, got job, member"):
        encoder.encode("predict", {name: table[name] for name in ("job", "member")})


def test_a_dict_of_values_and_a_row_of_pandas_are_one_sample():
    encoder = choose_encoder("fit", TABLE)
    row = {name: column[2] for name, column in TABLE.items()}
    assert np.array_equal(encoder.encode("predict", encoder.as_batch(row)), encoder.encode("predict", TABLE)[2:3])
    pandas_row = frame(PANDAS).iloc[2]
    assert np.array_equal(
        encoder.encode("predict", encoder.as_batch(pandas_row)), encoder.encode("predict", TABLE)[2:3]
    )
    assert encoder.as_batch(TABLE) is encoder.as_batch(frame(PANDAS)) is None


def test_rows_of_mixed_types_are_a_table():
    encoder = choose_encoder("fit", [["a", 1.0], ["b", 3.0]])
    assert encoder.encode("fit", [["b", 1.0]]).tolist() == [[0, 1, -1]]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([1.0, None, 2.0, 3.0], "got None in column 'x', row 1. Remove these rows, or replace"),
        (["a", "b", np.nan, "c"], "got nan in column 'x', row 2"),
        (np.array([1.0, 2.0, np.nan, 3.0]), "expected a value in every row, got nan in column 'x', row 2"),
        ([str(i) * 9 for i in range(60)], r"got column 'x' with 60 different values in 60 rows.*X.drop\(columns='x'\)"),
        (
            [f"{i},5" for i in range(60)],
            r"'0,5'. Leave it out: .* replace the decimal commas by points, as pandas.read_csv",
        ),
        (
            np.array(["2020-01-01"] * 4, "datetime64[D]"),
            "expected numbers or texts in column 'x', got datetime64.*Convert it to numbers",
        ),
        (np.zeros((4, 2)), r"expected a table with columns of one length, at least 1, got x \(4, 2\)"),
    ],
)
def test_columns_that_cannot_be_encoded_are_named(column, message):
    with pytest.raises((TypeError, ValueError), match=message):
        choose_encoder("fit", {"x": np.array(column, object) if isinstance(column, list) else column})


def test_missing_values_of_pandas_are_reported():
    pandas = pytest.importorskip(PANDAS)
    column = pandas.Series([1, None, 3], dtype="Int64")
    with pytest.raises(ValueError, match="got nan in column 'x', row 1"):
        choose_encoder("fit", pandas.DataFrame({"x": column}))
    numbers = pandas.DataFrame({"x": pandas.Series([1, 2, 3], dtype="Int64")})
    assert choose_encoder("fit", numbers).encode("fit", numbers)[1].item() == 0


def test_a_new_category_is_an_error():
    with pytest.raises(ValueError, match=r"in column 'job' one of the categories .* got 'pilot' in row 0"):
        choose_encoder("fit", TABLE).encode("predict", {"age": [1], "job": ["pilot"], "member": [False]})


# --- texts -----------------------------------------------------------------------------------------------------------


def test_texts_become_token_ids_by_frequency_padded_on_the_left():
    texts = ["the cat", "the dog saw the cat", "The end"]
    encoder = choose_encoder("fit", texts, vocab_size=5)
    assert encoder.vocabulary == ["<pad>", "<unk>", "the", "cat", "dog"]
    for each in (encoder, roundtrip(encoder)):
        assert each.encode("fit", texts)[:, 0].tolist() == [[0, 0, 0, 2, 3], [2, 4, 1, 2, 3], [0, 0, 0, 2, 1]]
    assert encoder.encode("predict", encoder.as_batch("a dog")).tolist() == [[[0, 0, 0, 1, 4]]]
    assert choose_encoder("fit", texts, vocab_size=9, length=2).encode("fit", texts[1:2]).tolist() == [[[2, 4]]]


@pytest.mark.parametrize("kind", [PANDAS, POLARS, "numpy"])
def test_a_column_of_texts_is_a_list_of_texts(kind):
    texts = ["one", "two three"]
    column = np.array(texts) if kind == "numpy" else pytest.importorskip(kind).Series(texts)
    assert np.array_equal(
        choose_encoder("fit", column, vocab_size=9).encode("fit", column),
        choose_encoder("fit", texts, vocab_size=9).encode("fit", texts),
    )


def test_texts_need_an_embedding_and_words():
    with pytest.raises(ValueError, match="expected a network that starts with a LookupTable for texts"):
        choose_encoder("fit", ["a", "b"])
    with pytest.raises(ValueError, match="expected texts with at least one word, got ' '"):
        choose_encoder("fit", [" "], vocab_size=5)
    with pytest.raises(TypeError, match="expected a list of texts, as in the training data, got 3"):
        choose_encoder("fit", ["a"], vocab_size=5).encode("predict", 3)


# --- descriptions ----------------------------------------------------------------------------------------------------

INVALID: list[tuple[type[InputEncoder], dict[str, Any]]] = [
    (ArrayEncoder, {"layout": "NX", "sizes": [1]}),
    (ArrayEncoder, {"layout": "NF", "sizes": [1, 2]}),
    (ArrayEncoder, {"layout": "NF", "sizes": [-1]}),
    (ArrayEncoder, {"layout": "NF", "sizes": 3}),
    (ArrayEncoder, {"layout": "NF", "sizes": [2], "mean": [0.0], "deviation": [1.0, 1.0]}),
    (ArrayEncoder, {"layout": "NF", "sizes": [1], "mean": [0.0], "deviation": [0.0]}),
    (ArrayEncoder, {"layout": "NF", "sizes": [1], "mean": [float("nan")], "deviation": [1.0]}),
    (ArrayEncoder, {"layout": "NCHW", "sizes": [1, 1, 1], "mean": [0.0], "deviation": [1.0]}),
    (TableEncoder, {"columns": []}),
    (TableEncoder, {"columns": [{"name": "x"}]}),
    (TableEncoder, {"columns": [{"name": 1, "mean": 0.0, "deviation": 1.0}]}),
    (TableEncoder, {"columns": [{"name": "x", "mean": 0.0, "deviation": -1.0}]}),
    (TableEncoder, {"columns": [{"name": "x", "categories": []}]}),
    (TableEncoder, {"columns": [{"name": "x", "categories": ["a", "a"]}]}),
    (TableEncoder, {"columns": [{"name": "x", "categories": [1]}]}),
    (TextEncoder, {"vocabulary": ["a"], "length": 2}),
    (TextEncoder, {"vocabulary": ["<pad>", "<unk>", 3], "length": 2}),
    (TextEncoder, {"vocabulary": ["<pad>", "<unk>"], "length": 0}),
    (TextEncoder, {"vocabulary": ["<pad>", "<unk>"], "length": 1, "tokenizer": "eval"}),
]


@pytest.mark.parametrize(("kind", "config"), INVALID, ids=lambda x: x.__name__ if isinstance(x, type) else "")
def test_descriptions_that_make_no_sense_are_rejected(kind, config):
    with pytest.raises((TypeError, ValueError)):
        kind.gen_class(config)


def test_data_of_no_known_kind_is_rejected():
    with pytest.raises(TypeError, match="expected X to be a numeric array"):
        choose_encoder("fit", SimpleNamespace())
