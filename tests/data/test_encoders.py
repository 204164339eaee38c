"""Encoders of fit(X, y): layouts of arrays, data frames, texts, labels and numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from neonlite.backend.serialization import Serializable
from neonlite.data.input_encoders import ArrayEncoder, InputEncoder, TableEncoder, TextEncoder, choose_encoder
from neonlite.data.target_encoders import (
    ClassEncoder,
    IndicatorEncoder,
    NumberEncoder,
    TargetEncoder,
    choose_target_encoder,
    one_hot,
)

PANDAS, POLARS = "pandas", "polars"
TABLE = {"age": [20, 30, 40, 50], "job": ["cook", "driver", "cook", "nurse"], "member": [True, False, True, True]}


def frame(kind: str) -> Any:
    """Return the same table as a dict, or as a data frame of a library."""
    return TABLE if kind == "dict" else pytest.importorskip(kind).DataFrame(TABLE)


def roundtrip(encoder: Any) -> Any:
    """Return the encoder that a checkpoint would restore."""
    kind = InputEncoder if isinstance(encoder, InputEncoder) else TargetEncoder
    return kind.recursive_gen(encoder.get_description())


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


# --- targets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        (["b", "a", "c", "a"], ["a", "b", "c"]),
        ([2, 0, 0, 1], [0, 1, 2]),
        ([0, 0, 1, 1], [0, 1, 2]),  # a class without rows
        ([30, 10, 20, 10], [10, 20, 30]),
        ([1.0, 0.0, 2.0, 1.0], [0.0, 1.0, 2.0]),
    ],
)
def test_labels_become_class_indices_and_come_back_as_they_were(y, classes):
    encoder = choose_target_encoder("fit", y, 3, "Softmax", None)
    assert encoder.classes == classes
    for each in (encoder, roundtrip(encoder)):
        indices = each.encode("fit", np.array(y)[:, None])  # also as a column
        assert indices.tolist() == [classes.index(label) for label in y]
        labels = each.classes_of("predict_classes", np.eye(3)[indices])
        assert labels.tolist() == y
        assert labels.dtype.kind == np.array(y).dtype.kind


@pytest.mark.parametrize("kind", [PANDAS, POLARS])
def test_labels_of_data_frames_are_read(kind):
    library = pytest.importorskip(kind)
    y = ["b", "a", "b"]
    for column in (library.Series(y), library.DataFrame({"label": y})):
        encoder = choose_target_encoder("fit", column, 2, "Softmax", None)
        assert encoder.encode("fit", column).tolist() == [1, 0, 1]


def test_two_classes_with_one_output_are_decided_at_one_half():
    encoder = choose_target_encoder("fit", [True, False, True], 1, "Logistic", None)
    assert encoder.encode("fit", [True, False]).tolist() == [1, 0]
    assert encoder.classes_of("predict", np.array([[0.4], [0.6]])).tolist() == [False, True]


def test_one_hot_labels_are_classes_for_softmax_and_labels_for_logistic(rng):
    y = np.eye(3)[[2, 0, 1]]
    encoder = choose_target_encoder("fit", y, 3, "Softmax", None)
    assert encoder.encode("fit", y).tolist() == [2, 0, 1]
    assert isinstance(choose_target_encoder("fit", y, 3, "Logistic", None), IndicatorEncoder)
    with pytest.raises(ValueError, match=r"several labels, end it with Affine\(3, activation=Logistic\(\)\)"):
        choose_target_encoder("fit", [[1, 1, 0], [0, 0, 1]], 3, "Softmax", None)


def test_several_labels_are_zeros_and_ones_with_names():
    pandas = pytest.importorskip(PANDAS)
    y = pandas.DataFrame({"cat": [0, 1], "dog": [1, 1]})
    encoder = roundtrip(choose_target_encoder("fit", y, 2, "Logistic", None))
    assert encoder.names == ["cat", "dog"]
    assert encoder.encode("fit", y).tolist() == [[0, 1], [1, 1]]
    assert encoder.classes_of("predict", np.array([[0.2, 0.9]])).tolist() == [[0, 1]]
    with pytest.raises(ValueError, match=r"expected zeros and ones \(1, 2\) for y"):
        encoder.encode("evaluate", [[0, 2]])


def test_numbers_are_standardized_for_a_linear_output_and_come_back_in_their_units(rng):
    for y in (rng.normal(1e3, 5, 40), rng.normal(1e3, 5, (40, 2)) * [1, 10]):
        encoder = choose_target_encoder("fit", y, 1 if y.ndim == 1 else 2, None, None)
        for each in (encoder, roundtrip(encoder)):
            encoded = each.encode("fit", y)
            np.testing.assert_allclose(encoded.mean(axis=0), 0, atol=1e-5)
            np.testing.assert_allclose(encoded.std(axis=0), 1, rtol=1e-5)
            decoded = each.decode(encoded)
            assert decoded.shape == y.shape
            np.testing.assert_allclose(decoded, y, rtol=1e-6)
    bounded = choose_target_encoder("fit", y, 2, "Tanh", None)
    assert np.array_equal(bounded.encode("fit", y), y)
    sequences = rng.normal(size=(4, 2, 5))
    assert np.array_equal(choose_target_encoder("fit", sequences, 2, None, None).encode("fit", sequences), sequences)


def test_integers_are_not_guessed_to_be_classes_or_numbers():
    with pytest.raises(ValueError, match=r"For classes, end it with Softmax\(\); for numbers, pass y.astype\(float\)"):
        choose_target_encoder("fit", [0, 1, 2], 3, None, None)
    assert isinstance(choose_target_encoder("fit", [0, 1, 2], 1, None, False), NumberEncoder)  # by the cost
    assert isinstance(choose_target_encoder("fit", [0, 1, 2], 3, None, True), ClassEncoder)


@pytest.mark.parametrize(
    ("y", "outputs", "activation", "message"),
    [
        (
            ["a", "b", "c"],
            2,
            "Softmax",
            r"expected 2 classes .* got 3: \['a', 'b', 'c'\]. End the network with Affine\(3",
        ),
        (["a", "b"], 3, "Softmax", r"got 2: .*Affine\(2, activation=Softmax\(\)\) or Affine\(1, activation=Logistic"),
        (["a", "a"], 2, "Softmax", "expected at least two classes in y, got one: 'a'"),
        (
            [0.5, 1.5],
            1,
            "Softmax",
            "expected classes for a network that ends with Softmax, got float64 from 0.5 to 1.5",
        ),
        (
            np.zeros((4, 2)),
            3,
            None,
            r"expected y with a column for each of the 3 outputs, got \(4, 2\). End .*Affine\(2\)",
        ),
        ([1.0, np.nan], 1, None, "expected a value in every row of y, got nan in row 1"),
        (["a", None], 2, "Softmax", "expected a value in every row of y, got None in row 1"),
        (np.array(["a", 1], object), 2, "Softmax", "expected values of one type for y, got int, str"),
        ([[1], [2, 3]], 2, "Softmax", "expected rows of one length for y"),
        ([], 2, "Softmax", r"expected y with at least one row, .* got \(0,\)"),
        (np.zeros(3, complex), 1, None, "expected numbers or texts for y, got complex128. Pass the real"),
        ({"a": [1]}, 1, None, "expected an array or a data frame for y"),
    ],
)
def test_targets_that_do_not_match_the_network_are_rejected_with_the_way_out(y, outputs, activation, message):
    with pytest.raises((TypeError, ValueError), match=message):
        choose_target_encoder("fit", y, outputs, activation, None)


def test_a_label_that_is_not_a_class_is_named():
    encoder = choose_target_encoder("fit", ["a", "b"], 2, "Softmax", None)
    with pytest.raises(ValueError, match=r"evaluate: expected one of the classes \['a', 'b'\] in y, got 'c'"):
        encoder.encode("evaluate", ["a", "c"])
    with pytest.raises(TypeError, match="expected a model that was trained on classes, got one trained on numbers"):
        NumberEncoder().classes_of("predict_classes", np.zeros((1, 1)))


def test_class_indices_become_one_hot_along_the_second_axis():
    assert one_hot(np.array([1, 0]), 3).tolist() == [[0, 1, 0], [1, 0, 0]]
    assert one_hot(np.array([[1, 0]]), 2).tolist() == [[[0, 1], [1, 0]]]
    assert one_hot(np.array([1, 0]), 1).tolist() == [[1], [0]]


# --- descriptions ----------------------------------------------------------------------------------------------------

INVALID: list[tuple[type[Serializable], dict[str, Any]]] = [
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
    (ClassEncoder, {"classes": [], "dtype": "int"}),
    (ClassEncoder, {"classes": [1, 1], "dtype": "int"}),
    (ClassEncoder, {"classes": [[1]], "dtype": "int"}),
    (ClassEncoder, {"classes": [1, 2], "dtype": "O"}),
    (ClassEncoder, {"classes": [1, 2], "dtype": "int", "one_hot": "yes"}),
    (IndicatorEncoder, {"names": []}),
    (IndicatorEncoder, {"names": [1]}),
    (NumberEncoder, {"mean": [0.0], "deviation": [0.0]}),
]


@pytest.mark.parametrize(("kind", "config"), INVALID, ids=lambda x: x.__name__ if isinstance(x, type) else "")
def test_descriptions_that_make_no_sense_are_rejected(kind, config):
    with pytest.raises((TypeError, ValueError)):
        kind.gen_class(config)


def test_data_of_no_known_kind_is_rejected():
    with pytest.raises(TypeError, match="expected X to be a numeric array"):
        choose_encoder("fit", SimpleNamespace())
