"""Target encoders: convert class labels and numbers to the targets of a network, and its outputs back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neonlite.backend import objects, validation
from neonlite.data.iterator import check_all_finite
from neonlite.encoders import frame_columns, is_frame, read_column, refuse_unread
from neonlite.encoders.inputs import check_deviations, moments
from neonlite.messages import describe
from neonlite.typing import is_float_array, is_real_array

LABEL_KINDS = {"str": "UT", "int": "iu", "float": "f", "bool": "b"}  # Python type -> NumPy's kinds
LABEL_TYPES: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool}


class TargetEncoder(objects.Serializable):
    """Base class of target encoders.

    The constructor arguments of subclasses are JSON data, which checkpoints store.

    Attributes
    ----------
    num_outputs : int or None
        The number of outputs of a network for these targets, with two for two classes; None if it is not known.
    """

    num_outputs: int | None = None

    def encode(self, where: str, y: Any) -> NDArray[Any]:
        """Return targets: class indices (n,) or (n, T), or values (n, K) or (n, K, T).

        Parameters
        ----------
        where : str
            The caller, for error messages.
        y : array_like or data frame
            Labels or numbers in the format of the training data.

        Returns
        -------
        numpy.ndarray
            The targets.

        Raises
        ------
        ValueError, TypeError
            The data has another format than the training data.
        """
        raise NotImplementedError

    def decode(self, outputs: NDArray[Any]) -> NDArray[Any]:
        """Return what ``Model.predict`` returns for outputs: probabilities, or numbers in the units of the targets.

        Standardized numbers are decoded in float64: their mean may be large, as of years.

        Parameters
        ----------
        outputs : numpy.ndarray
            The outputs of the network, (n, K) or (n, K, T).
        """
        return outputs

    def classes_of(self, where: str, outputs: NDArray[Any]) -> NDArray[Any]:
        """Return the predicted classes for outputs.

        Parameters
        ----------
        where : str
            The caller, for error messages.
        outputs : numpy.ndarray
            The outputs of the network, (n, K) or (n, K, T).

        Raises
        ------
        TypeError
            The targets are numbers.
        """
        raise TypeError(
            f"{where}: expected a model that was trained on classes, got one trained on numbers. Use predict."
        )


class ClassEncoder(TargetEncoder):
    """Encoder of class labels: the index of each label among the classes.

    Parameters
    ----------
    classes : sequence of str, int, float or bool
        The labels of the classes, in the order of the network's outputs.
    dtype : {"str", "int", "float", "bool"}
        The kind of array in which labels are returned.
    one_hot : bool, default False
        Whether the data is one-hot, (n, K).
    name : str, optional
        The name.
    """

    def __init__(self, classes: Sequence[Any], dtype: str, one_hot: bool = False, name: str | None = None) -> None:
        super().__init__(name)
        self.dtype = validation.one_of(f"{self.classnm}: dtype", dtype, LABEL_KINDS)
        self.classes: list[Any] = validation.distinct(f"{self.classnm}: classes", classes, LABEL_TYPES[self.dtype])
        self.one_hot = validation.boolean(f"{self.classnm}: one_hot", one_hot)
        self.num_outputs = len(self.classes)
        if self.one_hot and (self.dtype != "int" or self.classes != [*range(self.num_outputs)]):
            raise ValueError(f"{self.classnm}: expected classes from 0 for one-hot data, got {describe(self.classes)}")
        self._index = {label: i for i, label in enumerate(self.classes)}
        is_large = self.dtype == "int" and max(self.classes) >= 2**63
        self._labels: NDArray[Any] = np.array(self.classes, dtype="uint64" if is_large else self.dtype)

    @classmethod
    def from_data(cls, where: str, y: NDArray[Any], num_outputs: int) -> ClassEncoder:
        """Return the encoder for training labels: numbers from 0 to K - 1 are K classes, others those that occur."""
        kind = next(name for name, kinds in LABEL_KINDS.items() if y.dtype.kind in kinds)
        labels, num_classes = set(y.ravel().tolist()), max(num_outputs, 2)
        if labels <= {*range(num_classes)}:
            if len(labels) == 1:
                validation.warn(
                    f"{where}: all rows of y have the class {describe(*labels)}, so there is nothing to learn. Check y."
                )
            return cls(np.arange(num_classes).astype(kind).tolist(), kind)
        if len(labels) == 1:
            raise ValueError(f"{where}: expected at least two classes in y, got one: {describe(*labels)}")
        if len(labels) != num_classes:
            width = max(len(labels), 2)
            binary = " or Affine(1, activation=Logistic())" if width == 2 else ""
            raise ValueError(
                f"{where}: expected {num_classes} classes for the {num_outputs} outputs of the network, got "
                f"{len(labels)}: {describe(sorted(labels))}. End the network with Affine({width}, "
                f"activation=Softmax()){binary}, and check y if it should have other classes."
            )
        return cls(sorted(labels), kind)

    def encode(self, where: str, y: Any) -> NDArray[Any]:
        labels = label_array(where, y)
        if self.one_hot:
            if labels.ndim != 2 or labels.shape[1] != len(self.classes) or not is_one_hot_array(labels):
                raise ValueError(
                    f"{where}: expected one-hot targets {(len(labels), len(self.classes))}, as in the training data, "
                    f"got {describe(y)}"
                )
            return class_indices(labels)
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        try:
            return np.array([self._index[x] for x in labels.ravel().tolist()], np.int32).reshape(labels.shape)
        except KeyError as error:
            raise ValueError(
                f"{where}: expected one of the classes {describe(self.classes)} in y, got {error.args[0]!r}."
            ) from None

    def classes_of(self, where: str, outputs: NDArray[Any]) -> NDArray[Any]:
        labels: NDArray[Any] = self._labels[class_indices(outputs)]
        return labels

    def __str__(self) -> str:
        return f"{len(self.classes)} classes: {', '.join(map(str, self.classes))}"


class IndicatorEncoder(TargetEncoder):
    """Encoder of several labels for each sample: zeros and ones (n, K).

    Parameters
    ----------
    names : sequence of str
        The names of the labels, such as the columns of a data frame.
    name : str, optional
        The name.
    """

    def __init__(self, names: Sequence[str], name: str | None = None) -> None:
        super().__init__(name)
        self.names = validation.distinct(f"{self.classnm}: names", names, str)
        self.num_outputs = len(self.names)

    def encode(self, where: str, y: Any) -> NDArray[Any]:
        indicators = label_array(where, y)
        expected = (len(indicators), len(self.names))
        if indicators.shape != expected or not is_real_array(indicators) or not is_zero_or_one(indicators):
            raise ValueError(f"{where}: expected zeros and ones {expected} for y, got {describe(y)}")
        return indicators.astype(np.float32)

    def classes_of(self, where: str, outputs: NDArray[Any]) -> NDArray[Any]:
        return (outputs > 0.5).astype(np.int64)

    def __str__(self) -> str:
        return f"{len(self.names)} labels: {', '.join(self.names)}"


class NumberEncoder(TargetEncoder):
    """Encoder of numbers: ``(y - mean) / deviation``.

    Parameters
    ----------
    mean, deviation : sequence of float, optional
        The mean and the standard deviation of each output. Default: not standardized.
    is_vector : bool, default False
        Whether the data is (n,) instead of (n, K).
    name : str, optional
        The name.
    """

    def __init__(
        self,
        mean: Sequence[float] | None = None,
        deviation: Sequence[float] | None = None,
        is_vector: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.mean, self.deviation = mean, deviation
        self.is_vector = validation.boolean(f"{self.classnm}: is_vector", is_vector)
        self.num_outputs = 1 if self.is_vector else None
        if mean is not None or deviation is not None:
            n = self.num_outputs or len(validation.sequence(f"{self.classnm}: mean", mean))
            self.num_outputs = n
            self.mean = validation.check_numbers(f"{self.classnm}: mean", mean, n, "output")
            self.deviation = check_deviations(f"{self.classnm}: deviation", deviation, n)

    @classmethod
    def from_data(cls, where: str, y: NDArray[Any], standardize: bool) -> NumberEncoder:
        """Return the encoder for training targets."""
        if y.ndim > 2 or not standardize:
            return cls(is_vector=y.ndim == 1)
        check_all_finite(f"{where}: y", y, np.float32, way_out="")
        mean, deviation = moments(y.reshape(len(y), -1))
        return cls(mean.tolist(), deviation.tolist(), y.ndim == 1)

    def encode(self, where: str, y: Any) -> NDArray[Any]:
        numbers = label_array(where, y)
        if not is_real_array(numbers):
            raise TypeError(f"{where}: expected numbers for y, as in the training data, got {describe(y)}")
        check_all_finite(f"{where}: y", numbers, np.float32, way_out="")
        numbers = numbers.astype(np.float64)
        if self.mean is None:
            return numbers[:, None] if numbers.ndim == 1 else numbers
        rows = numbers.reshape(len(numbers), -1)
        if rows.shape[1] != len(self.mean):
            expected = f"{len(self.mean)} columns"
            raise ValueError(f"{where}: expected {expected} in y, as in the training data, got {np.shape(y)}")
        standardized: NDArray[np.float64] = (rows - np.asarray(self.mean)) / np.asarray(self.deviation)
        return standardized

    def decode(self, outputs: NDArray[Any]) -> NDArray[Any]:
        if self.mean is not None:
            outputs = outputs * np.asarray(self.deviation) + np.asarray(self.mean)
        return outputs[:, 0] if self.is_vector and outputs.shape[1] == 1 else outputs

    def __str__(self) -> str:
        return f"numbers{', standardized for training' if self.mean is not None else ''}"


def one_hot(indices: NDArray[np.integer[Any]], num_outputs: int) -> NDArray[np.float32]:
    """Return class indices (n,) or (n, T) as targets (n, K) or (n, K, T); with one output as zeros and ones."""
    if num_outputs == 1:
        return indices[:, None].astype(np.float32)
    classes = np.arange(num_outputs).reshape(-1, *(1,) * (indices.ndim - 1))
    encoded: NDArray[np.float32] = (indices[:, None] == classes).astype(np.float32)
    return encoded


def class_indices(outputs: NDArray[Any]) -> NDArray[np.intp]:
    """Return the index of the largest output; for a single output, 1 where it is above 0.5, else 0."""
    return outputs.argmax(axis=1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0.5).astype(np.intp)


# --- choosing an encoder ---------------------------------------------------------------------------------------------


def choose_target_encoder(
    where: str,
    y: Any,
    num_outputs: int,
    activation: str | None,
    expects_probabilities: bool | None,
    is_training: bool = True,
    num_steps: int = 1,
) -> TargetEncoder:
    """Return the encoder for training targets.

    Parameters
    ----------
    where : str
        The caller, for error messages.
    y : array_like or data frame
        Labels or numbers.
    num_outputs : int
        The number of outputs of the network.
    activation : str, optional
        The class name of the last activation.
    expects_probabilities : bool, optional
        Whether the cost expects probabilities, as cross-entropies do; None without a cost.
    is_training : bool
        Whether the encoder depends on the moments and the labels of ``y``. If not, numbers are unchanged, and classes
        are their indices.
    num_steps : int
        The number of time steps of an output: with several, the columns of (n, T) are classes of time steps.

    Raises
    ------
    ValueError
        Labels and network do not match, or integers may be classes or numbers.
    """
    labels = label_array(where, y)
    is_number = is_real_array(labels)
    is_classifier = activation == "Softmax" or bool(expects_probabilities) or not is_number
    if not is_classifier and activation == "Logistic" and expects_probabilities is None:
        is_classifier = is_zero_or_one(labels) or not is_float_array(labels)
    if is_classifier and expects_probabilities is None and activation not in ("Softmax", "Logistic"):
        width = max(len(set(labels.ravel().tolist())), 2)
        raise ValueError(
            f"{where}: expected numbers for a network that ends with {activation or 'no activation'}, got labels such "
            f"as {labels.ravel()[0]!s:.40}. For classes, end the network with Affine({width}, activation=Softmax())."
        )
    if not is_classifier and labels.dtype.kind in "biu" and expects_probabilities is None:
        raise ValueError(
            f"{where}: expected classes for a network that ends with Softmax() or Logistic(), or numbers, got integers "
            f"for a network that ends with {activation or 'no activation'}. For classes, end it with "
            "Softmax(); for numbers, pass y.astype(float), or cost=MeanSquared()."
        )
    if not is_classifier:
        width = 1 if labels.ndim == 1 else labels.shape[1]
        if width != num_outputs:
            raise ValueError(
                f"{where}: expected y with a column for each of the {num_outputs} outputs, got {labels.shape}. End the "
                f"network with Affine({width})."
            )
        return NumberEncoder.from_data(where, labels, is_training and activation is None)
    if is_number and is_float_array(labels) and not (labels == np.floor(labels)).all():
        raise ValueError(
            f"{where}: expected classes for a network that ends with {activation}, got {labels.dtype} from "
            f"{labels.min():g} to {labels.max():g}. For numbers, end it with Affine({num_outputs}) without activation."
        )
    if activation == "Softmax" and num_outputs == 1:
        raise ValueError(
            f"{where}: expected an output for each class for a network that ends with Softmax, got one, which is "
            "always 1. End the network with Affine(2, activation=Softmax()) or Affine(1, activation=Logistic())."
        )
    has_columns = is_number and labels.ndim == 2 and labels.shape[1] == num_outputs > 1 == num_steps
    is_one_hot = has_columns and is_one_hot_array(labels)
    if has_columns and is_zero_or_one(labels) and not (activation == "Softmax" and is_one_hot):
        if activation == "Softmax":
            raise ValueError(
                f"{where}: expected one class for each row for a network that ends with Softmax, got several. For "
                f"several labels, end it with Affine({num_outputs}, activation=Logistic())."
            )
        names = [str(x) for x in y.columns] if hasattr(y, "columns") else [str(i) for i in range(num_outputs)]
        return IndicatorEncoder(names)
    if is_one_hot or not is_training:
        return ClassEncoder([*range(max(num_outputs, 2))], "int", is_one_hot)
    return ClassEncoder.from_data(where, labels, num_outputs)


# --- reading labels --------------------------------------------------------------------------------------------------


def label_array(where: str, y: Any) -> NDArray[Any]:
    """Return labels or numbers as an array (n,), (n, K), (n, T) or (n, K, T), without missing values."""
    refuse_unread(where, y)
    if isinstance(y, Mapping):
        raise TypeError(f"{where}: expected an array or a data frame for y, got {describe(y)}")
    if is_frame(y):
        columns = [read_column(where, column, name).values for name, column in frame_columns(where, y).items()]
        kinds = {"text" if column.dtype.kind in "UT" else "number" for column in columns}
        if len(kinds) > 1:
            raise TypeError(f"{where}: expected columns of numbers, or of texts, for y, got both")
        array = columns[0] if len(columns) == 1 else np.stack(columns, axis=1)
    else:
        array = read_column(where, y, of="y").values
    if not 1 <= array.ndim <= 3 or not array.size:
        raise ValueError(f"{where}: expected y with at least one row, (n,), (n, K) or (n, K, T), got {array.shape}")
    return array


def is_zero_or_one(y: NDArray[Any]) -> bool:
    """Return whether all elements are 0 or 1."""
    return bool(((y == 0) | (y == 1)).all())


def is_one_hot_array(y: NDArray[Any]) -> bool:
    """Return whether each row (K,) has a single 1, and zeros."""
    return bool(y.ndim == 2 and is_real_array(y) and is_zero_or_one(y) and (y.sum(axis=1) == 1).all())
