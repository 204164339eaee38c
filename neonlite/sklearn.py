"""scikit-learn estimators: NeonClassifier and NeonRegressor, with the extra ``neonlite[sklearn]``."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state, column_or_1d, compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from neonlite.backend import Backend, runtimes, use_backend
from neonlite.backend.validation import boolean, check_number, from_name, integer, sequence
from neonlite.callbacks import CallbackBase, EarlyStop
from neonlite.encoders import check_unmasked, frame_columns, is_frame, read_column
from neonlite.encoders.targets import LABEL_KINDS, ClassEncoder, IndicatorEncoder
from neonlite.layers import Affine, Dropout, Layer
from neonlite.layers.activation import check_activation
from neonlite.messages import describe
from neonlite.models import Model
from neonlite.models.predict import raw_outputs
from neonlite.optimizers import Optimizer, rules
from neonlite.transforms import Cost, CrossEntropyBinary, CrossEntropyMulti, Logistic, MeanSquared, Softmax, Transform
from neonlite.typing import ArrayLike

__all__ = ["NeonClassifier", "NeonEstimator", "NeonRegressor"]

DTYPES = [np.float64, np.float32]  # other inputs are converted to the first one
PREDICT_ROWS = 128  # the rows of a minibatch of ``predict``


@dataclass(eq=False, repr=False)
class NeonEstimator(BaseEstimator):  # type: ignore[misc]
    """Base class of the estimators: a network that ``Model.fit(X, y)`` trains, with its own backend.

    ``fit`` standardizes features, with the mean and the deviation of ``X``. Training does not change the current
    backend, its batch size or its random streams, and any thread may train. An estimator can be pickled if its layers
    can be saved as a checkpoint; the copy has a new backend.

    Parameters
    ----------
    layers : sequence of int or Layer
        The network without its last layer, which ``fit`` adds. An integer n stands for ``Affine(n)`` with the
        activation and the dropout. ``fit`` copies the layers. Default: (100,).
    activation : str or Transform
        The activation after layers that are given as an integer: an object such as ``Tanh()``, or a name such as
        "tanh", "logistic" or "gelu". Default: "relu".
    dropout : float
        The fraction of outputs that are dropped after layers that are given as an integer, from 0 to below 1.
        Default: 0.
    optimizer : str or Optimizer
        A name such as "adam", "adamw", "sgd" or "rmsprop"; or an object such as ``Adam(0.01)``, which has its own
        learning rate. Default: "adam".
    learning_rate : float
        The learning rate of an optimizer that is given by name. Default: 0.001.
    epochs : int
        The number of epochs of ``fit``; with early stopping, the largest number. Default: 50.
    batch_size : int
        The number of rows of a minibatch. Default: 32.
    early_stopping : bool
        Whether to end training when the cost of a validation set no longer decreases, with the best weights.
        Default: False.
    validation_fraction : float
        The fraction of the rows for that validation set. Default: 0.1.
    patience : int
        The number of epochs without improvement after which early stopping ends training. Default: 10.
    warm_start : bool
        Whether another ``fit`` continues with the weights and the optimizer of the last one. Default: False.
    random_state : int, RandomState or None
        The seed of weights, dropout, order of the rows and validation set. With an integer, results are bit-identical.
        Default: None, random.
    backend : str, optional
        The runtime, such as "gpu". Default: that of ``gen_backend()``.
    verbose : int
        Whether to show a progress bar. Default: 0.

    Attributes
    ----------
    model_ : Model
        The trained model, which ``save_params`` saves.
    history_ : dict
        The recorded values of each epoch, by name, such as "loss".
    loss_curve_ : list of float
        The cost of each epoch of training.
    n_iter_ : int
        The number of epochs.
    n_features_in_ : int
        The number of features.
    feature_names_in_ : numpy.ndarray
        The names of the features, if ``X`` is a data frame.
    """

    layers: Sequence[int | Layer | Sequence[Layer]] = (100,)
    activation: str | Transform = "relu"
    _: KW_ONLY
    dropout: float = 0.0
    optimizer: str | Optimizer = "adam"
    learning_rate: float = 0.001
    epochs: int = 50
    batch_size: int = 32
    early_stopping: bool = False
    validation_fraction: float = 0.1
    patience: int = 10
    warm_start: bool = False
    random_state: int | np.random.RandomState | None = None
    backend: str | None = None
    verbose: int = 0
    model_: Model = field(init=False)
    history_: dict[str, list[float]] = field(init=False)

    # --- the model ---

    def _new_model(self, where: str, num_outputs: int, last: Transform | None) -> Model:
        """Return a model on a new backend."""
        dropout = check_number(f"{where}: dropout", self.dropout, 0, 1)
        network: list[Any] = []
        for item in sequence(f"{where}: layers", self.layers, "a list of integers and layers"):
            if isinstance(item, Layer | list | tuple):
                network.append(copy.deepcopy(item))
                continue
            n = integer(f"{where}: each of layers", item)
            activation = check_activation(f"{where}: activation", copy.deepcopy(self.activation))
            network += [Affine(n, activation=activation), *([Dropout(dropout=dropout)] if dropout else [])]
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        be = self._new_backend(seed)
        with use_backend(be):
            model = Model([*network, Affine(num_outputs, activation=last)], name=type(self).__name__)
        model.be = be
        return model

    @property
    def _continues(self) -> bool:
        """Whether ``fit`` continues with the model of the last one."""
        return boolean(f"{type(self).__name__}.fit: warm_start", self.warm_start) and hasattr(self, "model_")

    def _new_backend(self, seed: int | None = None) -> Backend:
        return Backend(runtimes.default_runtime() if self.backend is None else self.backend, seed)

    def _train(
        self, where: str, model: Model, X: Any, y: Any, cost: Cost, sample_weight: Any, epochs: int, stops_early: bool
    ) -> None:
        """Train a model and set the attributes that describe it."""
        optimizer = model.optimizer or from_name(f"{where}: optimizer", copy.deepcopy(self.optimizer), rules.OPTIMIZERS)
        if isinstance(self.optimizer, str):
            optimizer.learning_rate = check_number(f"{where}: learning_rate", self.learning_rate, 0)
        history = model.fit(
            X,
            y,
            epochs=epochs,
            batch_size=integer(f"{where}: batch_size", self.batch_size),
            cost=cost,
            optimizer=optimizer,
            sample_weight=sample_weight,
            validation_split=self.validation_fraction if stops_early else 0.0,
            metrics=[],
            callbacks=EarlyStop(self.patience) if stops_early else None,
            progress_bar=bool(self.verbose),
        )
        model.callbacks = CallbackBase()  # those of fit have references to the data
        model.data_state = None  # the next rows may be others
        if not hasattr(self, "model_") or model is not self.model_:
            self.model_, self.history_ = model, {}
        for name, values in history.items():
            self.history_.setdefault(name, []).extend(values)
        self.loss_curve_ = self.history_["loss"]
        self.n_iter_ = model.epoch_index

    def _fit(self, where: str, X: Any, y: Any, sample_weight: Any) -> Self:
        """Train on validated data, with a new model unless ``warm_start`` is set."""
        if not self._continues and hasattr(self, "model_"):
            del self.model_  # so that an error leaves the estimator without a model of other data
        model = self.model_ if self._continues else self._model_for(where, y)
        epochs = integer(f"{where}: epochs", self.epochs)
        stops_early = boolean(f"{where}: early_stopping", self.early_stopping)
        self._train(where, model, X, y, self._cost(y), self._weights(X, y, sample_weight), epochs, stops_early)
        return self

    def _partial_fit(self, where: str, X: Any, y: Any, sample_weight: Any) -> Self:
        """Train for one epoch on validated data, in a random order."""
        model = self.model_ if hasattr(self, "model_") else self._model_for(where, y)
        weights = self._weights(X, y, sample_weight)
        order = model.be.rng.permutation(len(X))
        weights = None if weights is None else weights[order]
        self._train(where, model, X[order], y[order], self._cost(y), weights, 1, False)
        return self

    def _model_for(self, where: str, y: NDArray[Any]) -> Model:
        """Return a new model for targets."""
        raise NotImplementedError

    def _cost(self, y: NDArray[Any]) -> Cost:
        """Return the cost for targets."""
        raise NotImplementedError

    def _weights(self, X: NDArray[Any], y: NDArray[Any], sample_weight: Any) -> NDArray[Any] | None:
        """Return the weights of the rows, or None."""
        check_unmasked(f"{type(self).__name__}.fit", sample_weight, of="sample_weight")
        return None if sample_weight is None else _check_sample_weight(sample_weight, X)

    def _outputs(self, where: str, X: ArrayLike) -> NDArray[np.float32]:
        """Return the outputs of the network, computed in minibatches of one size, so that they depend on a row only."""
        check_is_fitted(self)
        check_data(where, X)
        rows = validate_data(self, X, dtype=DTYPES, reset=False)
        n = len(rows)
        padded = np.concatenate([rows, np.zeros((-n % PREDICT_ROWS, rows.shape[1]), rows.dtype)])
        outputs: NDArray[np.float32] = raw_outputs(self.model_, where, padded, None, PREDICT_ROWS)[0][:n]
        return outputs

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    # --- pickle ---

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return state | {"model_": self.model_.serialize()} if "model_" in state else state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        super().__setstate__({name: value for name, value in state.items() if name != "model_"})
        if "model_" in state:
            be = self._new_backend()
            with use_backend(be):
                self.model_ = Model(state["model_"])
            self.model_.be = be


@dataclass(eq=False, repr=False)
class NeonClassifier(ClassifierMixin, NeonEstimator):  # type: ignore[misc]
    """A classifier for scikit-learn: two or more classes, or several labels for each row.

    The last layer is ``Affine`` with ``Softmax``, and the cost is ``CrossEntropyMulti``; for several labels, zeros and
    ones (n, K), ``Logistic`` and ``CrossEntropyBinary``.

    Parameters
    ----------
    layers, activation, dropout, optimizer, learning_rate, epochs, batch_size
        See ``NeonEstimator``.
    class_weight : dict or "balanced", optional
        A factor of the cost for each class, as in scikit-learn. Default: 1.
    early_stopping, validation_fraction, patience, warm_start, random_state, backend, verbose
        See ``NeonEstimator``.

    Attributes
    ----------
    classes_ : numpy.ndarray
        The labels, in the order of the columns of ``predict_proba``; for several labels, their indices.

    Examples
    --------
    >>> from neonlite.sklearn import NeonClassifier
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], ["low", "low", "high", "high"]
    >>> classifier = NeonClassifier(layers=(10,), epochs=200, learning_rate=0.01, random_state=0).fit(X, y)
    >>> classifier.predict([[0.5], [2.5]])
    array(['low', 'high'], dtype='<U4')
    >>> classifier.predict_proba([[0.5]]).shape, classifier.classes_.tolist()
    ((1, 2), ['high', 'low'])
    """

    class_weight: Mapping[Any, float] | str | None = field(default=None, kw_only=True)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on rows of features and their classes.

        Parameters
        ----------
        X : array_like or data frame
            Features, (n, F).
        y : array_like
            Labels (n,) of any type, or zeros and ones (n, K) for several labels.
        sample_weight : array_like, optional
            A factor >= 0 of the cost of each row, (n,).

        Returns
        -------
        NeonClassifier
            The estimator.
        """
        where = "NeonClassifier.fit"
        X, labels = self._validate(X, y, reset=not self._continues)
        if self._continues:
            self._check_classes(where, find_classes(labels))
        else:
            self.classes_ = find_classes(labels)
        return self._fit(where, X, self._as_targets(labels), sample_weight)

    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Train for one epoch on some of the rows. The first call standardizes features with its rows.

        Parameters
        ----------
        X, y, sample_weight
            As for ``fit``.
        classes : array_like, optional
            All labels that may occur; the first call needs them, unless ``y`` has several labels for each row.

        Returns
        -------
        NeonClassifier
            The estimator.
        """
        where, is_first = "NeonClassifier.partial_fit", not hasattr(self, "model_")
        X, labels = self._validate(X, y, reset=is_first)
        if not is_first:
            self._check_classes(where, self.classes_ if classes is None else np.unique(np.asarray(classes)))
        elif labels.ndim == 2:
            self.classes_ = find_classes(labels)
        elif classes is None:
            raise ValueError(f"{where}: expected all labels as classes in the first call, got None.")
        else:
            self.classes_ = np.unique(np.asarray(classes))
        return self._partial_fit(where, X, self._as_targets(labels), sample_weight)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the most probable class of each row; for several labels, zeros and ones.

        Parameters
        ----------
        X : array_like or data frame
            Features, (n, F).

        Returns
        -------
        numpy.ndarray
            Labels (n,), or zeros and ones (n, K).
        """
        outputs = self._outputs("NeonClassifier.predict", X)
        if isinstance(self.model_.target_encoder, IndicatorEncoder):
            return (outputs > 0.5).astype(np.int64)
        labels: NDArray[Any] = self.classes_[outputs.argmax(axis=1)]
        return labels

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float32]:
        """Return the probability of each class; for several labels, of each of them.

        Parameters
        ----------
        X : array_like or data frame
            Features, (n, F).

        Returns
        -------
        numpy.ndarray
            (n, K), in the order of ``classes_``.
        """
        return self._outputs("NeonClassifier.predict_proba", X)

    def _validate(self, X: Any, y: Any, reset: bool) -> tuple[NDArray[Any], NDArray[Any]]:
        check_data(f"{type(self).__name__}.fit", X, y)
        X, y = validate_data(self, X, y, dtype=DTYPES, multi_output=True, reset=reset)
        check_classification_targets(y)
        if type_of_target(y) == "multilabel-indicator":
            return X, y.toarray() if hasattr(y, "toarray") else y
        return X, column_or_1d(y, warn=True)

    def _check_classes(self, where: str, classes: NDArray[Any]) -> None:
        if not np.array_equal(classes, self.classes_):
            expected = describe(self.classes_.tolist())
            raise ValueError(f"{where}: expected the classes {expected}, as before, got {describe(classes.tolist())}.")

    def _model_for(self, where: str, y: NDArray[Any]) -> Model:
        if y.ndim == 2:
            model = self._new_model(where, len(self.classes_), Logistic())
            model.target_encoder = IndicatorEncoder([str(i) for i in self.classes_])
            return model
        if len(self.classes_) < 2:
            raise ValueError(f"{where}: expected at least two classes, got 1 class, {self.classes_.tolist()}.")
        model, labels = self._new_model(where, len(self.classes_), Softmax()), self._as_targets(self.classes_)
        kind = next(name for name, kinds in LABEL_KINDS.items() if labels.dtype.kind in kinds)
        model.target_encoder = ClassEncoder(labels.tolist(), kind)
        return model

    def _as_targets(self, labels: NDArray[Any]) -> NDArray[Any]:
        """Return labels that the model takes: indices of the classes for those of other types, such as dates."""
        if labels.ndim == 2:
            return labels
        plain = np.asarray(labels.tolist()) if labels.dtype.kind == "O" else labels
        return plain if plain.dtype.kind in "".join(LABEL_KINDS.values()) else np.searchsorted(self.classes_, labels)

    def _cost(self, y: NDArray[Any]) -> Cost:
        return CrossEntropyBinary() if y.ndim == 2 else CrossEntropyMulti()

    def _weights(self, X: NDArray[Any], y: NDArray[Any], sample_weight: Any) -> NDArray[Any] | None:
        weights = super()._weights(X, y, sample_weight)
        if self.class_weight is None:
            return weights
        factors: NDArray[Any] = compute_sample_weight(self.class_weight, y)
        return factors if weights is None else factors * weights


class NeonRegressor(RegressorMixin, NeonEstimator):  # type: ignore[misc]
    """A regressor for scikit-learn, with one or several outputs.

    The last layer is ``Affine`` without activation, and the cost is ``MeanSquared``. ``fit`` standardizes the targets,
    and ``predict`` returns numbers in their units.

    Parameters
    ----------
    layers, activation, dropout, optimizer, learning_rate, epochs, batch_size
        See ``NeonEstimator``.
    early_stopping, validation_fraction, patience, warm_start, random_state, backend, verbose
        See ``NeonEstimator``.

    Examples
    --------
    >>> from neonlite.sklearn import NeonRegressor
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [1.0, 3.0, 5.0, 7.0]
    >>> regressor = NeonRegressor(layers=(), epochs=400, learning_rate=0.02, random_state=0).fit(X, y)
    >>> regressor.predict([[4.0], [5.0]]).round(1)  # 2 x + 1
    array([ 9., 11.])
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on rows of features and their targets.

        Parameters
        ----------
        X : array_like or data frame
            Features, (n, F).
        y : array_like
            Numbers, (n,) or (n, K).
        sample_weight : array_like, optional
            A factor >= 0 of the cost of each row, (n,).

        Returns
        -------
        NeonRegressor
            The estimator.
        """
        X, y = self._validate(X, y, reset=not self._continues)
        return self._fit("NeonRegressor.fit", X, y, sample_weight)

    def partial_fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train for one epoch on some of the rows. The first call standardizes features and targets with its rows.

        Parameters
        ----------
        X, y, sample_weight
            As for ``fit``.

        Returns
        -------
        NeonRegressor
            The estimator.
        """
        X, y = self._validate(X, y, reset=not hasattr(self, "model_"))
        return self._partial_fit("NeonRegressor.partial_fit", X, y, sample_weight)

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the predicted numbers.

        Parameters
        ----------
        X : array_like or data frame
            Features, (n, F).

        Returns
        -------
        numpy.ndarray
            (n,), or (n, K) for several outputs, in the units of the training targets.
        """
        outputs = self._outputs("NeonRegressor.predict", X)
        return self.model_.target_encoder.decode(outputs)  # type: ignore[union-attr]

    def _validate(self, X: Any, y: Any, reset: bool) -> tuple[NDArray[Any], NDArray[Any]]:
        check_data(f"{type(self).__name__}.fit", X, y)
        X, y = validate_data(self, X, y, dtype=DTYPES, multi_output=True, y_numeric=True, reset=reset)
        if y.dtype.kind in "OUS":
            try:
                y = y.astype(np.float64)
            except ValueError:
                raise ValueError(f"{type(self).__name__}: expected numbers as targets, got {describe(y)}.") from None
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        return X, y

    def _model_for(self, where: str, y: NDArray[Any]) -> Model:
        return self._new_model(where, y.shape[1] if y.ndim == 2 else 1, None)

    def _cost(self, y: NDArray[Any]) -> Cost:
        return MeanSquared()


def check_data(where: str, X: Any, y: Any = None) -> None:
    """Raise TypeError or ValueError for what scikit-learn converts to numbers: masked values, dates and durations."""
    check_unmasked(where, X)
    check_unmasked(where, y, of="y")
    for name, column in frame_columns(where, X).items() if is_frame(X) else ():
        read_column(where, column, name)
    if isinstance(X, np.ndarray) and X.dtype.kind in "mM":
        read_column(where, X)


def find_classes(y: NDArray[Any]) -> NDArray[Any]:
    """Return the sorted labels (n,), or the indices of several labels (n, K)."""
    classes: NDArray[Any] = np.arange(y.shape[1]) if y.ndim == 2 else np.unique(y)
    return classes
