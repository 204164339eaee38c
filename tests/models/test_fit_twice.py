"""Objects that are used for a second fit or a second model: nothing of the first training influences the second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.parametrize import thinned

import neonlite as nl
from neonlite import callbacks as callbacks_package
from neonlite.callbacks import (
    Callback,
    Callbacks,
    CSVLogger,
    EarlyStop,
    EarlyStopCallback,
    HistCallback,
    ReduceOnPlateau,
    SaveBestStateCallback,
    SerializeModelCallback,
    TensorBoardLogger,
    TerminateOnNaN,
    TrainCostCallback,
)
from neonlite.data import ArrayIterator
from neonlite.initializers import Constant
from neonlite.layers import Affine, BatchNorm, Dropout, GeneralizedCostMask, Linear
from neonlite.optimizers import Adam, GradientDescentMomentum
from neonlite.transforms import MeanSquared

ROWS, FEATURES, EPOCHS = 45, 3, 6
rng = np.random.default_rng(0)
X, Y, OTHER_Y = rng.normal(size=(ROWS, FEATURES)), rng.normal(size=ROWS), rng.normal(size=ROWS)


def new_model(seed: int = 0) -> nl.Model:
    nl.gen_backend("cpu", rng_seed=seed)
    return nl.Model(
        [Affine(5, activation="tanh", name="hidden"), Dropout(0.8), BatchNorm(name="bn"), Affine(1, name="out")]
    )


def fit(model: nl.Model, y: Any = Y, epochs: int = EPOCHS, **options: Any) -> Any:
    options = {"optimizer": Adam(0.05), "validation_split": 0.3, "batch_size": 8, "progress_bar": False} | options
    return model.fit(X, y, epochs=epochs, **options)


def same_weights(one: nl.Model, other: nl.Model) -> bool:
    expected = other.get_weights()
    weights = one.get_weights()
    return weights.keys() == expected.keys() and all((weights[name] == expected[name]).all() for name in weights)


# --- callbacks -------------------------------------------------------------------------------------------------------


def stop_after_two(state: Any, cost: float) -> tuple[Any, bool]:
    """Return the number of evaluations, and whether training ends: after three."""
    return (state or 0) + 1, (state or 0) >= 2


CALLBACKS: dict[str, Callable[[Any], Callback]] = {
    "EarlyStop, which does not stop": lambda folder: EarlyStop(patience=100),
    "EarlyStop, which stops": lambda folder: EarlyStop(patience=1, monitor="loss", mode="max"),
    "EarlyStop with the last weights": lambda folder: EarlyStop(patience=2, restore_best=False),
    "EarlyStopCallback": lambda folder: EarlyStopCallback(stop_after_two),
    "ReduceOnPlateau": lambda folder: ReduceOnPlateau(0.1, 1, monitor="loss", mode="max"),
    "TrainCostCallback": lambda folder: TrainCostCallback(wsz=50, minibatch_freq=1),
    "TerminateOnNaN": lambda folder: TerminateOnNaN(),
    "HistCallback": lambda folder: HistCallback(),
    "SaveBestStateCallback": lambda folder: SaveBestStateCallback(folder / "best.neon"),
    "SerializeModelCallback": lambda folder: SerializeModelCallback(folder / "last.neon", 1, 2),
    "CSVLogger": lambda folder: CSVLogger(folder / "log.csv"),
    "TensorBoardLogger": lambda folder: TensorBoardLogger(folder / "board"),
}
every_callback = pytest.mark.parametrize("name", CALLBACKS)


@pytest.fixture(autouse=True)
def _needs_tensorboard(request: pytest.FixtureRequest) -> None:
    """Skip the tests of TensorBoardLogger without tensorboardX."""
    if "TensorBoardLogger" in request.node.name:
        pytest.importorskip("tensorboardX")


def outcome(model: nl.Model, history: Any, callback: Callback) -> Any:
    """Return what a training leaves: its history, the number of epochs, and the state of a callback."""
    state = callback.get_state()
    if isinstance(state, dict):
        state = {key: x for key, x in state.items() if not key.endswith("weights")}
    return dict(history.records), model.epoch_index, state


@pytest.mark.parametrize(
    ("name", "second"), thinned(2, CALLBACKS, ["another model", "the same model", "a copy", "loaded"])
)
def test_a_callback_that_is_used_again_does_what_a_new_one_does(name, second, tmp_path):
    def train(is_new: bool, folder: Any) -> tuple[nl.Model, Any]:
        folder.mkdir()
        callback = CALLBACKS[name](folder)
        model = new_model()
        fit(model, callbacks=callback)
        if second == "another model":
            model = new_model()
        elif second == "a copy":
            model = model.copy()
            model.loaded_state = None  # the copy has the callbacks of the first fit until then
        elif second == "loaded":
            model.save_params(folder / "model.neon")
            model = nl.Model(folder / "model.neon")
            model.loaded_state = None
        callback = CALLBACKS[name](folder) if is_new else callback
        history = fit(model, OTHER_Y, callbacks=callback, epochs=4)
        return model, outcome(model, history, callback)

    model, seen = train(False, tmp_path / "again")
    expected_model, expected = train(True, tmp_path / "new")
    assert seen == expected
    assert same_weights(model, expected_model)


def test_every_callback_with_a_state_is_tested_here():
    classes = {x for x in vars(callbacks_package).values() if isinstance(x, type) and issubclass(x, Callback)}
    with_state = {x.__name__ for x in classes if x.get_state is not Callback.get_state}
    of_other_networks = {"TrainMulticostCallback", "GANCostCallback", "MonitorCallback"}
    assert {x for x in with_state if not any(name.startswith(x) for name in CALLBACKS)} <= of_other_networks


def test_a_users_callback_with_a_state_starts_again():
    class Count(Callback):
        count = 0

        def on_epoch_end(self, epoch: int) -> None:
            self.count += 1

        def get_state(self) -> object:
            return {"count": self.count}

        def set_state(self, state: Any) -> None:
            self.count = state["count"]

    count = Count()
    for _ in range(2):
        fit(new_model(), callbacks=count)
        assert count.count == EPOCHS


def test_the_optimizer_has_its_rate_again_after_reductions():
    optimizer = GradientDescentMomentum(0.5, 0.9)
    fit(new_model(), optimizer=optimizer, callbacks=ReduceOnPlateau(0.1, 1, monitor="loss", mode="max"))
    assert optimizer.get_rate(0) == 0.5


class Interrupt(Callback):
    """Raises KeyboardInterrupt once, within an epoch."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self.epoch: int | None = epoch

    def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
        if epoch == self.epoch and minibatch == 1:
            self.epoch = None
            raise KeyboardInterrupt


@pytest.mark.parametrize("new_object", [False, True])
@pytest.mark.parametrize("name", [name for name in CALLBACKS if name.startswith(("Early", "Reduce", "TrainCost"))])
def test_a_fit_that_resumes_an_interrupted_one_continues_its_callbacks(name, new_object, tmp_path):
    expected_callback, callback = CALLBACKS[name](tmp_path), CALLBACKS[name](tmp_path)
    expected = new_model()
    fit(expected, callbacks=expected_callback)
    model = new_model()
    with pytest.raises(KeyboardInterrupt):
        fit(model, callbacks=[callback, Interrupt(1)])
    callback = CALLBACKS[name](tmp_path) if new_object else callback
    fit(model, callbacks=callback, epochs=EPOCHS - model.epoch_index)
    assert same_weights(model, expected)
    assert model.epoch_index == expected.epoch_index
    states = [x.get_state() for x in (callback, expected_callback)]
    for key, x in states[1].items():
        np.testing.assert_equal(states[0][key], x)


def test_a_callback_that_was_added_to_another_training_is_refused():
    stop, models = EarlyStop(monitor="loss"), [new_model(), new_model()]
    data = ArrayIterator(X, Y[:, None], make_onehot=False)
    both = [Callbacks(model, progress_bar=False) for model in models]
    for callbacks in both:
        callbacks.add_callback(stop)
    with models[0].be.batch_size(8), pytest.raises(ValueError, match="EarlyStop: expected a callback of the training"):
        models[0].fit(data, "mse", Adam(), 1, both[0])


# --- the order of rows -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("between", ["nothing", "copy", "file"])
@pytest.mark.parametrize("split", [0.0, 0.3])
@pytest.mark.parametrize("parts", [(1, 1, 1, 1), (2, 2), (3, 1)])
def test_several_fits_are_one_training(parts, split, between, tmp_path):
    expected = new_model()
    fit(expected, epochs=4, validation_split=split)
    model = new_model()
    for n, epochs in enumerate(parts):
        fit(model, epochs=epochs, validation_split=split)
        if between == "copy":
            model = model.copy()
        elif between == "file":
            model.save_params(tmp_path / f"{n}.neon")
            nl.gen_backend("cpu", rng_seed=99 + n)
            model = nl.Model(tmp_path / f"{n}.neon")
    assert same_weights(model, expected)


def test_each_fit_has_another_order_of_rows_also_with_another_batch_size():
    model, orders = new_model(), []
    step = model.train_step

    def record(x: Any, t: Any, epoch: int = 0) -> float:
        orders[-1] += x.get()[0].tolist()
        return step(x, t, epoch)

    model.train_step = record
    for batch_size in (9, 9, 15, 9):
        orders.append([])
        fit(model, epochs=1, batch_size=batch_size, validation_split=0.0)
    assert len({tuple(order) for order in orders}) == 4
    assert all(sorted(order) == sorted(orders[0]) for order in orders)


# --- costs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [(True, False), (False, True), (True, False, True), (False, True, False)])
def test_one_cost_is_used_with_and_without_weights_of_the_rows(weighted):
    nl.gen_backend("cpu", batch_size=ROWS)
    model, cost, rate = nl.Model([Linear(1, Constant(0), name="l")]), MeanSquared(), 0.1
    factors, expected = np.linspace(0, 2, ROWS), np.zeros(FEATURES)
    for epoch, is_weighted in enumerate(weighted):
        weights = factors if is_weighted else np.ones(ROWS)
        data = ArrayIterator(X, Y, make_onehot=False, sample_weight=weights if is_weighted else None)
        model.fit(
            data,
            GeneralizedCostMask(cost) if is_weighted else cost,
            GradientDescentMomentum(rate, 0),
            num_epochs=epoch + 1,
        )
        expected -= rate * X.T @ (weights * (X @ expected - Y)) / ROWS
    np.testing.assert_allclose(model["l"].W.get().ravel(), expected, rtol=1e-5, atol=1e-6)


def test_rows_without_weights_continue_a_training_with_weights():
    models = []
    for cost in (None, MeanSquared()):
        model = new_model()
        models.append(model)
        fit(model, epochs=1, sample_weight=np.linspace(0, 2, ROWS))
        fit(model, epochs=1, cost=cost)
    assert same_weights(*models)
