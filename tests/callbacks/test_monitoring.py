"""Callbacks that monitor a recorded value: early stopping, and reductions of the learning rate."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import numpy as np
import pytest
from helpers.small_models import Stop, X, Y, data, fit, normalized, same, start

from neonlite import gen_backend
from neonlite.callbacks import (
    Callback,
    Callbacks,
    EarlyStop,
    EarlyStopCallback,
    GANCostCallback,
    MetricCallback,
    ReduceOnPlateau,
    SaveBestStateCallback,
    SerializeModelCallback,
    TerminateOnNaN,
    TrainCostCallback,
    TrainMulticostCallback,
)
from neonlite.callbacks.callback import PRIORITY_DISPLAY
from neonlite.models import Model
from neonlite.models.training_state import CheckpointError
from neonlite.optimizers import (
    Adam,
    CosineSchedule,
    GradientDescentMomentum,
    LossScaling,
    MultiOptimizer,
    PowerSchedule,
    ReducedSchedule,
    Schedule,
    StepSchedule,
)
from neonlite.transforms import Accuracy, CrossEntropyMulti, Misclassification, ObjectDetection

NAN = float("nan")


class Values(Callback):
    """Records given values instead of evaluating, and the weights and learning rates of each epoch."""

    def __init__(self, values: list[float], name: str = "value") -> None:
        super().__init__()
        self.values, self.value_name = values, name
        self.weights: list[Any] = []
        self.rates: list[float] = []

    def on_epoch_begin(self, epoch):
        if hasattr(self.model.optimizer, "learning_rate"):
            self.rates.append(self.model.optimizer.get_rate(epoch))

    def on_epoch_end(self, epoch):
        self.weights.append(self.model.get_weights())
        if epoch < len(self.values) and self.values[epoch] is not None:
            self.callbacks.history.record(self.value_name, epoch + 1, self.values[epoch])


def run(values: list[Any], callback: Any, epochs: int = 12, optimizer: Any = None, train: Any = None) -> Any:
    """Train while ``values`` are recorded, with a callback that monitors them."""
    model = start()
    record = Values(values, callback.monitor)
    callbacks = Callbacks(model, progress_bar=False)
    callbacks.add_callback(callback)
    callbacks.add_callback(record)
    optimizer = optimizer or Adam(learning_rate=0.05)
    model.fit(train or data(shuffle=True), CrossEntropyMulti(), optimizer, epochs, callbacks)
    return model, record


@pytest.mark.parametrize(
    ("values", "options", "stops", "best"),
    [
        ([5, 4, 3, 3, 3, 1], {"patience": 2}, 5, 3),
        ([5, 4, 3, 3, 2, 2, 2, 1], {"patience": 2}, 7, 5),
        ([1, 2], {"patience": 1}, 2, 1),
        ([1, 2, 3, 3, 2, 4], {"patience": 2, "mode": "max"}, 5, 3),
        ([5, 4.8, 4.6, 4.4], {"patience": 2, "min_delta": 0.5}, 3, 1),
        ([5, 4.8, 4.6, 4.4, 4.3, 4.2], {"patience": 3, "min_delta": 0.5}, None, 4),
        ([NAN, NAN, NAN, 1], {"patience": 2}, 2, None),
        ([2, NAN, 1, NAN, NAN, NAN, 0], {"patience": 3}, 6, 3),
        ([2, None, None, 1, None, None, 1, 0], {"patience": 3}, 7, 4),
    ],
)
def test_training_ends_after_patience_epochs_without_improvement(values, options, stops, best):
    stop = EarlyStop(monitor="value", **{"mode": "min", **options})
    model, record = run(values, stop, len(values))
    assert model.epoch_index == (stops or len(values))
    assert stop.stopped == (stops is not None)
    expected = record.weights[best - 1] if best else record.weights[-1]
    assert same(model.get_weights(), expected)
    if best:
        assert stop.best == values[best - 1]
        assert best == model.epoch_index or not same(record.weights[-1], expected)


def test_the_last_weights_remain_without_restore_best():
    model, record = run([1, 2, 3], EarlyStop(2, restore_best=False, monitor="value", mode="min"))
    assert model.epoch_index == 3
    assert same(model.get_weights(), record.weights[-1])


def test_the_statistics_of_batch_norm_are_restored():
    model = normalized()
    callbacks = Callbacks(model, progress_bar=False)
    record = Values([1, 2, 3])
    callbacks.add_callback(record)
    callbacks.add_callback(EarlyStop(2, monitor="value", mode="min"))
    fit(model, callbacks, 9)
    assert any(name.startswith("bn.g") for name in record.weights[0])
    assert same(model.get_weights(), record.weights[0])


def test_the_cost_on_the_validation_set_is_monitored_by_default():
    model = start()
    callbacks = Callbacks(model, eval_set=data(), progress_bar=False)
    stop = EarlyStop(patience=1)
    callbacks.add_callback(stop)
    model.fit(data(), CrossEntropyMulti(), GradientDescentMomentum(50.0, 0.0), 20, callbacks)
    costs = callbacks.history["val_loss"]
    assert stop.stopped
    assert costs[-1] >= min(costs[:-1])
    assert all(b < a for a, b in itertools.pairwise(costs[:-1]))
    assert model.eval_cost(data()) == pytest.approx(min(costs), rel=1e-6)


@pytest.mark.parametrize(("metric", "mode"), [(Accuracy(), "max"), (Misclassification(), "min")])
def test_the_metric_declares_the_direction(metric, mode):
    callbacks = Callbacks(start(), eval_set=data(), metric=metric, progress_bar=False)
    stop = EarlyStop(monitor=metric.metric_names[0])
    callbacks.add_callback(stop)
    assert stop.find_mode() == mode


def test_an_unknown_value_or_direction_is_reported_before_the_first_step():
    model = start()
    callbacks = Callbacks(model, eval_set=data(), metric=Accuracy(), progress_bar=False)
    callbacks.add_callback(EarlyStop(monitor="Acuracy"))
    names = "'loss', 'val_loss', 'Accuracy'"
    with pytest.raises(ValueError, match=f"EarlyStop: expected monitor to be one of {names}, got 'Acuracy'"):
        fit(model, callbacks, 2)
    callbacks.callbacks[-1] = both = EarlyStop(monitor="SmoothL1Loss")
    both.callbacks = callbacks
    callbacks.add_callback(MetricCallback(data(), ObjectDetection()))
    with pytest.raises(ValueError, match="pass mode='min' or mode='max'"):
        both.on_train_begin(2)
    without = Callbacks(model, progress_bar=False)
    without.add_callback(ReduceOnPlateau())
    with pytest.raises(ValueError, match="ReduceOnPlateau: expected a validation set, got none"):
        fit(model, without, 2)
    assert model.epoch_index == model.minibatch_index == 0


@pytest.mark.parametrize("create", [EarlyStop, ReduceOnPlateau])
@pytest.mark.parametrize(
    ("name", "mode", "message"),
    [
        ("val_los", "min", "'loss', 'val_loss', 'Accuracy', got 'val_los'. Did you mean 'val_loss'?"),
        ("acuracy", "max", "'loss', 'val_loss', 'Accuracy', got 'acuracy'. Did you mean 'Accuracy'?"),
        ("val_accuracy", "max", "'loss', 'val_loss', 'Accuracy', got 'val_accuracy'. Did you mean 'Accuracy'?"),
        ("mse", "min", "'loss', 'val_loss', 'Accuracy', got 'mse'."),
    ],
)
def test_a_value_that_is_not_recorded_in_the_first_epoch_is_an_error(create, name, mode, message):
    model = start()
    with pytest.raises(ValueError, match=re.escape(f"expected monitor to be one of {message}")):
        model.fit(X, Y, validation_split=0.2, epochs=3, callbacks=create(monitor=name, mode=mode), progress_bar=False)
    assert model.epoch_index <= 1


@pytest.mark.parametrize(("monitor", "mode"), [("accuracy", None), ("accuracy", "max"), ("Accuracy", None)])
def test_a_metric_is_monitored_by_its_own_name_and_by_its_short_name(monitor, mode):
    stop = EarlyStop(patience=2, monitor=monitor, mode=mode)
    history = start().fit(
        X, Y, validation_split=0.2, epochs=40, metrics=["accuracy"], callbacks=stop, progress_bar=False
    )
    values = history["Accuracy"]
    best = max(range(len(values)), key=values.__getitem__)  # the first of the largest
    assert stop.stopped
    assert (stop.best, len(values)) == (values[best], best + 3)


@pytest.mark.parametrize("declare", [False, True])
def test_a_value_may_be_recorded_later_if_a_callback_declares_it(declare):
    class Late(Values):
        record_names = ["late"] if declare else []

    model = start()
    callbacks = Callbacks(model, progress_bar=False)
    callbacks.add_callback(stop := EarlyStop(2, monitor="late", mode="min"))
    callbacks.add_callback(Late([None, 5, None, 6, 7], "late"))
    if declare:
        fit(model, callbacks, 5)
        assert (stop.best, model.epoch_index) == (5, 4)
    else:
        with pytest.raises(ValueError, match="expected monitor to be one of 'loss', got 'late'"):
            fit(model, callbacks, 5)


def test_a_metric_that_is_not_evaluated_in_each_epoch_is_monitored():
    model = start()
    callbacks = Callbacks(model, eval_set=data(), metric="accuracy", eval_freq=3, progress_bar=False)
    callbacks.add_callback(stop := EarlyStop(9, monitor="accuracy"))
    fit(model, callbacks, 6)
    assert stop.best == max(callbacks.history["accuracy"])


def test_stopped_training_stays_stopped():
    stop = EarlyStop(1, monitor="value", mode="min")
    model, _ = run([1, 2], stop)
    weights = model.get_weights()
    with pytest.warns(UserWarning, match="a callback, such as EarlyStop, ended this training"):
        fit(model, stop.callbacks, 9)
    assert same(model.get_weights(), weights)
    model.fit(data(), CrossEntropyMulti(), Adam(), 3)
    assert model.epoch_index == 3


def test_training_continues_from_the_last_weights_as_if_uninterrupted():
    values = [3, 1, 2, 2, 2, 2, 2, 2]
    straight, record = run(values, EarlyStop(4, monitor="value", mode="min"), 5)
    assert same(straight.get_weights(), record.weights[1])  # the best ones
    optimizer, train = Adam(learning_rate=0.05), data(shuffle=True)
    model, again = run(values, EarlyStop(4, monitor="value", mode="min"), 3, optimizer, train)
    assert same(model.get_weights(), again.weights[1])
    model.fit(train, CrossEntropyMulti(), optimizer, 5, again.callbacks)
    assert all(same(a, b) for a, b in zip(again.weights, record.weights, strict=True))
    assert same(model.get_weights(), straight.get_weights())


def test_weights_that_were_changed_after_training_are_not_replaced():
    model, record = run([1, 2, 3], EarlyStop(9, monitor="value", mode="min"), 3)
    changed = {name: np.zeros_like(w) for name, w in model.get_weights().items()}
    model.set_weights(changed)
    record.callbacks.add_callback(weights := Values([]))
    weights.on_epoch_begin = lambda epoch: weights.weights.append(model.get_weights())  # type: ignore[method-assign]
    fit(model, record.callbacks, 4)
    assert same(weights.weights[0], changed)


# --- learning rate ---------------------------------------------------------------------------------------------------


def test_the_rate_is_reduced_after_each_plateau():
    values = [3, 2, 2, 2, 1, 1, 1, 1, 1]
    reduce = ReduceOnPlateau(0.5, patience=2, monitor="value", mode="min")
    _, record = run(values, reduce, 9, GradientDescentMomentum(0.8, 0.9))
    assert record.rates == pytest.approx([0.8, 0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.2, 0.2])
    assert reduce.scale == 0.125  # after the last epoch


@pytest.mark.parametrize(
    "schedule",
    [Schedule(), PowerSchedule(2, 0.5), StepSchedule([1, 3], [0.4, 0.1]), CosineSchedule(8, final=0.01)],
    ids=lambda x: x.classnm,
)
def test_the_rates_of_any_schedule_are_reduced(schedule):
    reduce = ReduceOnPlateau(0.1, patience=2, min_rate=0.15, monitor="value", mode="min")
    optimizer = GradientDescentMomentum(0.8, 0.9, schedule=schedule)
    _, record = run([1] * 6, reduce, 6, optimizer)
    rates = [schedule.get_learning_rate(0.8, epoch) for epoch in range(6)]
    scales = [1, 1, 1, 0.1, 0.1, 0.01]
    expected = [max(s * rate, min(rate, 0.15)) for s, rate in zip(scales, rates, strict=True)]
    assert record.rates == pytest.approx(expected, rel=1e-12)


def test_the_rates_of_all_optimizers_are_reduced_once():
    one, other = GradientDescentMomentum(0.5, 0.9), GradientDescentMomentum(0.25, 0.9)
    optimizer = LossScaling(MultiOptimizer({"default": one, "Bias": other}), scale=1.0)
    reduce, seen = ReduceOnPlateau(0.5, patience=1, monitor="value", mode="min"), []

    class Rates(Values):
        def on_train_begin(self, epochs):
            self.priority = PRIORITY_DISPLAY  # after the reduction

        def on_epoch_end(self, epoch):
            assert not isinstance(getattr(one.schedule, "schedule", None), ReducedSchedule)
            seen.append((one.get_rate(9), other.get_rate(9)))

    model = start()
    callbacks = Callbacks(model, progress_bar=False)
    for callback in (reduce, Values([1, 1, 1]), Rates([])):
        callbacks.add_callback(callback)
    model.fit(data(), CrossEntropyMulti(), optimizer, 3, callbacks)
    assert seen == [(0.5, 0.25), (0.25, 0.125), (0.125, 0.0625)]
    assert (one.get_rate(9), other.get_rate(9)) == (0.5, 0.25)  # the optimizer is as before


def test_the_weights_are_those_of_a_schedule_with_the_same_rates():
    reduce = ReduceOnPlateau(0.25, patience=2, monitor="value", mode="min")
    reduced, _ = run([1] * 4, reduce, 4, GradientDescentMomentum(0.5, 0.9))
    model, schedule = start(), StepSchedule([3], [0.125])
    model.fit(data(shuffle=True), CrossEntropyMulti(), GradientDescentMomentum(0.5, 0.9, schedule=schedule), 4)
    assert same(reduced.get_weights(), model.get_weights())


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (lambda: ReduceOnPlateau(factor=1.0), "ReduceOnPlateau: expected a finite number > 0 and < 1 for factor"),
        (lambda: ReduceOnPlateau(min_rate=-1), "ReduceOnPlateau: expected a finite number >= 0 for min_rate"),
        (lambda: EarlyStop(patience=0), "EarlyStop: expected an integer >= 1 for patience, got 0"),
        (lambda: EarlyStop(mode="auto"), "EarlyStop: expected one of 'min', 'max', None for mode, got 'auto'"),
        (lambda: EarlyStop(monitor=Accuracy()), "EarlyStop: expected the name of a recorded value for monitor"),
        (lambda: EarlyStop(min_delta=NAN), "EarlyStop: expected a finite number >= 0 for min_delta"),
        (lambda: ReducedSchedule(Schedule(), 2.0), "ReducedSchedule: expected a finite number >= 0 and <= 1 for scale"),
        (lambda: ReducedSchedule(0.1, 0.5), r"ReducedSchedule: expected a Schedule, .* for schedule, got 0.1"),
    ],
)
def test_mistakes_are_reported(create, message):
    with pytest.raises((TypeError, ValueError), match=message):
        create()


def test_an_optimizer_without_a_schedule_is_reported():
    class Custom:
        def optimize(self, layers, epoch):
            pass

    with pytest.raises(TypeError, match=r"expected an Optimizer, such as Adam\(\), for optimizer, got"):
        run([1], ReduceOnPlateau(monitor="value", mode="min"), 1, Custom())


# --- checkpoints -----------------------------------------------------------------------------------------------------


VALUES = [5, 3, 4, 4, 2, 3, 3, 3]


def monitored(model: Model, train: Any, path: Any = None, stop: Any = None) -> tuple[Callbacks, Values]:
    callbacks = Callbacks(model, train, progress_bar=False, save_path=path)
    record = Values(VALUES)
    callbacks.add_callback(EarlyStop(3, monitor="value", mode="min"))
    callbacks.add_callback(ReduceOnPlateau(0.5, 1, monitor="value", mode="min"))
    callbacks.add_callback(record)
    if stop:
        callbacks.add_callback(stop)
    return callbacks, record


@pytest.mark.parametrize("at", [(0, 3), (2, 0), (2, 7), (3, 5), (6, 2)])
@pytest.mark.parametrize("fresh_optimizer", [False, True])
def test_resumed_training_is_the_same_as_uninterrupted_training(tmp_path, at, fresh_optimizer):
    def new_optimizer() -> Adam:
        return Adam(learning_rate=0.05, schedule=PowerSchedule(2, 0.5))

    model, train = normalized(), data(shuffle=True)
    callbacks, record = monitored(model, train)
    model.fit(train, CrossEntropyMulti(), new_optimizer(), 9, callbacks)
    assert model.epoch_index == 8  # the best value is that of epoch 5
    assert same(model.get_weights(), record.weights[4])

    path = tmp_path / "m.neon"
    interrupted, train = normalized(), data(shuffle=True)
    callbacks, first = monitored(interrupted, train, path, Stop(*at))
    with pytest.raises(KeyboardInterrupt):
        interrupted.fit(
            train, CrossEntropyMulti(), Adam(learning_rate=0.05, schedule=PowerSchedule(2, 0.5)), 9, callbacks
        )
    gen_backend("cpu", rng_seed=99, batch_size=8)
    resumed, train = Model(path), data(shuffle=True)
    callbacks, rest = monitored(resumed, train, path)
    optimizer = new_optimizer() if fresh_optimizer else resumed.optimizer
    resumed.fit(train, CrossEntropyMulti(), optimizer, 9, callbacks)

    assert resumed.epoch_index == 8
    for a, b in zip([*first.weights, *rest.weights], record.weights, strict=True):
        assert same(a, b)
    assert rest.rates[-1] == record.rates[-1]
    assert same(resumed.get_weights(), model.get_weights())
    assert same(Model(path).get_weights(), model.get_weights())  # the last checkpoint has the best weights
    assert [x.scale for x in callbacks.callbacks if isinstance(x, ReduceOnPlateau)] == [0.5**5]
    assert optimizer.schedule.get_learning_rate(0.05, 8) == 0.05 * 0.5**4  # not reduced after training


def test_a_checkpoint_saved_again_before_training_has_the_best_weights(tmp_path):
    stop = EarlyStop(9, monitor="value", mode="min")
    model, record = run([1, 2, 3], stop, 3)
    model.save_params(tmp_path / "a")
    Model(tmp_path / "a").save_params(tmp_path / "b")
    for name in ("a", "b"):
        loaded = Model(tmp_path / name)
        callbacks = Callbacks(loaded, progress_bar=False)
        callbacks.add_callback(again := EarlyStop(9, monitor="value", mode="min"))
        callbacks.add_callback(Values([1, 2, 3, 3]))
        fit(loaded, callbacks, 4)
        assert again.best == 1
        assert same(loaded.get_weights(), record.weights[0])


def test_a_state_is_json_data_but_for_the_weights():
    stop = EarlyStop(9, monitor="value", mode="min")
    run([2, 1, 3], stop, 3)
    state = dict(stop.get_state())
    assert state.pop("best_weights").keys() == state.pop("last_weights").keys()  # type: ignore[attr-defined]
    assert json.loads(json.dumps(state)) == {"best": 1, "waiting_since": 1, "stopped": False}


@pytest.mark.parametrize(
    ("callback", "state"),
    [
        (EarlyStop(), {"best": 1}),
        (EarlyStop(), []),
        (EarlyStop(), {**EarlyStop().get_state(), "best": "low"}),
        (EarlyStop(), {**EarlyStop().get_state(), "stopped": "no"}),
        (ReduceOnPlateau(), {**ReduceOnPlateau().get_state(), "scale": 2.0}),
        (ReduceOnPlateau(), {**ReduceOnPlateau().get_state(), "waiting_since": -2}),
    ],
)
def test_an_invalid_state_is_rejected_with_the_class_name(callback, state):
    with pytest.raises((TypeError, ValueError), match=f"{callback.classnm}: .* got "):
        callback.set_state(state)


def test_a_reference_to_a_missing_array_is_a_checkpoint_error():
    model, _ = run([1, 2], EarlyStop(9, monitor="value", mode="min"), 2)
    description = model.serialize()
    del description["arrays"]["callbacks/0"]
    loaded = Model(description)
    callbacks = Callbacks(loaded, progress_bar=False)
    callbacks.add_callback(EarlyStop(9, monitor="value", mode="min"))
    with pytest.raises(CheckpointError, match=r"training.callbacks: .*callbacks/0"):
        fit(loaded, callbacks, 3)


def test_callbacks_are_created_from_their_description():
    callbacks = Callbacks(start(), eval_set=data(), progress_bar=False)
    callbacks.add_callback(EarlyStop(3, False, "Accuracy", 0.5, "max"))
    callbacks.add_callback(ReduceOnPlateau(0.5, 4, 1e-5))
    again = Callbacks.load_callbacks(json.loads(json.dumps(callbacks.serialize())), start(), eval_set=data())
    assert again.serialize() == callbacks.serialize()


# --- the best state, and stop functions ------------------------------------------------------------------------------


def test_the_best_state_is_saved(tmp_path):
    model = start()
    callbacks = Callbacks(model, eval_set=data(), progress_bar=False)
    callbacks.add_save_best_state_callback(tmp_path / "best")
    fit(model, callbacks, 3)
    worse = Adam(learning_rate=1000.0)
    best = min(callbacks.history["val_loss"])
    model.fit(data(), CrossEntropyMulti(), worse, 4, callbacks)
    assert callbacks.history.last("val_loss") > best
    kept = Model(tmp_path / "best")
    kept.initialize(data(), CrossEntropyMulti())
    assert kept.eval_cost(data()) == pytest.approx(best, rel=1e-5)


def test_the_best_file_is_not_written_again_when_the_cost_is_the_same(tmp_path, monkeypatch):
    model = start()
    costs = iter([0.5, 0.5, 0.75, 0.25, 0.25])
    monkeypatch.setattr(model, "eval_cost", lambda data: next(costs))
    callbacks, epochs = Callbacks(model, eval_set=data(), progress_bar=False), []
    callbacks.add_save_best_state_callback(tmp_path / "best")

    class Read(Callback):
        priority = 99

        def on_epoch_end(self, epoch):
            epochs.append(Model(tmp_path / "best").epoch_index)

    callbacks.add_callback(Read())
    fit(model, callbacks, 5)
    assert epochs == [1, 1, 1, 4, 4]


def test_a_training_is_ended_early():
    model = start()
    callbacks = Callbacks(model, eval_set=data(), progress_bar=False)
    costs: list[float] = []

    def stop(state: Any, cost: float) -> tuple[int, bool]:
        costs.append(cost)
        return (state or 0) + 1, (state or 0) == 2

    callbacks.add_early_stop_callback(stop)
    fit(model, callbacks, 10)
    assert model.epoch_index == 3
    assert costs == callbacks.history["val_loss"]


def test_early_stop_runs_where_there_is_a_validation_cost_and_a_stopped_training_stays_stopped(tmp_path):
    model, costs = start(), []

    def stop(state: Any, cost: float) -> Any:
        costs.append(cost)
        return [*(state or []), np.float32(cost)], len(costs) == 2

    def created(model: Model) -> Callbacks:
        callbacks = Callbacks(model, eval_set=data(), eval_freq=2, progress_bar=False, save_path=tmp_path / "m")
        callbacks.add_early_stop_callback(stop)
        return callbacks

    fit(model, callbacks := created(model), 10)
    assert model.epoch_index == 4
    assert costs == callbacks.history["val_loss"]
    assert callbacks.callbacks[-1].state == pytest.approx(costs)
    again = Model(tmp_path / "m")
    with pytest.warns(UserWarning, match="nothing was trained: .* ended this training after 4 epochs"):
        fit(again, created(again), 10)
    assert again.epoch_index == 4
    fit(again, Callbacks(again, progress_bar=False), 5)
    assert again.epoch_index == 5


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ((object(), False), "the state that stop_func returned: expected a value that can be serialized"),
        (3.5, "expected a pair .state, whether to stop. for the result of stop_func, got 3.5"),
    ],
)
def test_a_wrong_result_of_a_stop_function_is_reported(result, message):
    callbacks = Callbacks(start(), eval_set=data(), progress_bar=False)
    callbacks.add_early_stop_callback(lambda state, cost: result)
    with pytest.raises(TypeError, match=message):
        fit(callbacks.model, callbacks, 1)


# --- states ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("callback", "state"),  # as files of former versions contain them
    [
        (EarlyStop(), {"best": 0.5, "waiting_since": 3, "stopped": True, "best_weights": None, "last_weights": None}),
        (
            EarlyStop(),
            {"best": None, "waiting_since": -1, "stopped": False, "best_weights": None, "last_weights": None},
        ),
        (ReduceOnPlateau(), {"best": 2.0, "waiting_since": None, "scale": 0.25}),
        (EarlyStopCallback(max), {"state": [1, "a"], "stopped": True}),
        (SaveBestStateCallback("m"), 0.25),
        (SaveBestStateCallback("m"), float("inf")),
        (TrainCostCallback(3), {"recent_costs": [1.0, 2.0]}),
        (TrainMulticostCallback(3), {"recent_costs": [1.0], "sums": [1.0, NAN], "count": 4}),
        (GANCostCallback(), {"cost_sum_and_count": [2.0, 3.0]}),
        (SerializeModelCallback("m", history=2), [1, 2]),
        (SerializeModelCallback("m"), None),
        (TerminateOnNaN(), None),
    ],
)
def test_each_state_of_a_file_is_restored(callback, state):
    if state is not None:
        callback.set_state(json.loads(json.dumps(state)))
    assert repr(callback.get_state()) == repr(state)


@pytest.mark.parametrize("stop", [EarlyStop(), EarlyStopCallback(max)])
def test_a_training_that_was_stopped_does_not_continue(stop):
    model = start()
    callbacks = Callbacks(model, eval_set=data(), progress_bar=False)
    callbacks.add_callback(stop)
    state = stop.get_state()
    stop.set_state({**state, "stopped": True})
    with pytest.warns(UserWarning, match="nothing was trained: .* ended this training"):
        fit(model, callbacks, 2)
    assert model.epoch_index == 0
