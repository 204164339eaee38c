"""Encoders of targets: labels and numbers to the targets of a network, and its outputs back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neonlite.encoders.targets import (
    ClassEncoder,
    IndicatorEncoder,
    NumberEncoder,
    TargetEncoder,
    choose_target_encoder,
    one_hot,
)

PANDAS, POLARS = "pandas", "polars"


def roundtrip(encoder: Any) -> Any:
    """Return the encoder that a checkpoint would restore."""
    return TargetEncoder.recursive_gen(encoder.get_description())


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


def test_without_training_the_classes_of_one_output_are_0_and_1_and_of_more_their_indices():
    for outputs, activation in ((1, "Logistic"), (2, "Softmax"), (4, "Softmax")):
        encoder = choose_target_encoder("evaluate", [0, 1], outputs, activation, None, is_training=False)
        assert list(encoder.classes) == [*range(max(outputs, 2))]


def test_one_hot_labels_are_classes_for_softmax_and_labels_for_logistic(rng):
    y = np.eye(3)[[2, 0, 1]]
    encoder = choose_target_encoder("fit", y, 3, "Softmax", None)
    assert encoder.encode("fit", y).tolist() == [2, 0, 1]
    assert isinstance(choose_target_encoder("fit", y, 3, "Logistic", None), IndicatorEncoder)
    with pytest.raises(ValueError, match=r"several labels, end it with Affine\(3, activation=Logistic\(\)\)"):
        choose_target_encoder("fit", [[1, 1, 0], [0, 0, 1]], 3, "Softmax", None)
    with pytest.raises(ValueError, match=r"several labels, end it with Affine\(3, activation=Logistic\(\)\)"):
        choose_target_encoder("fit", [[0, 0, 0], [0, 0, 1]], 3, "Softmax", None)


@pytest.mark.parametrize("y", [[[1, 1, 0]], [[0, 0, 0]], [[0, 2, 0]], [[0, 1]], [0, 1, 0]])
def test_targets_that_are_not_one_hot_are_rejected_by_an_encoder_of_one_hot_classes(y):
    encoder = choose_target_encoder("fit", np.eye(3), 3, "Softmax", None)
    with pytest.raises(ValueError, match=r"evaluate: expected one-hot targets .*, as in the training data, got"):
        encoder.encode("evaluate", y)


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

INVALID: list[tuple[type[TargetEncoder], dict[str, Any]]] = [
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
