"""Callbacks that save: checkpoints, the best state, and resumed trainings."""

from __future__ import annotations

import itertools
import json
import os
import types
from collections import defaultdict
from typing import Any

import pytest
from helpers.small_models import Stop, data, fit, normalized, same, start

from neonlite import gen_backend
from neonlite.backend import objects
from neonlite.callbacks import (
    BatchNormTuneCallback,
    Callback,
    Callbacks,
    EarlyStopCallback,
    SaveBestStateCallback,
    SerializeModelCallback,
    TrainCostCallback,
)
from neonlite.models import Model
from neonlite.optimizers import Adam
from neonlite.transforms import Accuracy, CrossEntropyMulti


def test_checkpoints_are_written_and_the_last_ones_remain(tmp_path):
    model = start()
    callbacks = Callbacks(model, save_path=tmp_path / "m.neon", serialize=1, history=2, progress_bar=False)
    fit(model, callbacks, 4)
    assert sorted(x.name for x in tmp_path.iterdir()) == ["m.neon", "m_3.neon", "m_4.neon"]
    assert Model(tmp_path / "m_3.neon").epoch_index == 3
    weights = model.get_weights()
    assert same(Model(tmp_path / "m.neon").get_weights(), weights)
    again = start()
    Callbacks(again, model_file=tmp_path / "m.neon", progress_bar=False)
    assert again.epoch_index == 4


class Closure(Adam):
    """An optimizer that cannot be saved: it has a function."""

    def __init__(self, after=print):
        super().__init__()
        self.after = after


@pytest.mark.parametrize("saver", ["save_path", "best"])
@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (Closure(), "after: expected a value that can be serialized, got .*print"),
        (types.SimpleNamespace(optimize=lambda layers, epoch: None), "get_description"),
    ],
)
def test_an_optimizer_that_cannot_be_saved_is_refused_before_the_first_step(tmp_path, saver, optimizer, message):
    model = start()
    callbacks = Callbacks(
        model, eval_set=data(), progress_bar=False, save_path=tmp_path / "m" if saver == "save_path" else None
    )
    if saver == "best":
        callbacks.add_save_best_state_callback(tmp_path / "m")
    model.initialize(data())
    before = model.get_weights()
    with pytest.raises(TypeError, match=rf"this training cannot be saved to {tmp_path / 'm'}: .*{message}"):
        model.fit(data(), CrossEntropyMulti(), optimizer, 2, callbacks)
    assert same(model.get_weights(), before)
    assert not list(tmp_path.iterdir())
    model.fit(data(), CrossEntropyMulti(), optimizer, 1)  # allowed without a file


# --- files -----------------------------------------------------------------------------------------------------------


def every_kind(model: Model, folder: Any, train: Any, stop: Any = None) -> Callbacks:
    """Return callbacks of all kinds with a state; those that save are first."""
    callbacks = Callbacks(model, train, eval_set=train, eval_freq=[0, 1, 3], progress_bar=False, minibatch_freq=3)
    callbacks.add_callback(SerializeModelCallback(folder / "m.neon", history=2), insert_pos=0)
    callbacks.add_callback(SaveBestStateCallback(folder / "best"), insert_pos=0)
    callbacks.add_early_stop_callback(lambda state, cost: ((cost, [1.5, state and state[0]]), False))
    callbacks.add_hist_callback()
    callbacks.add_callback(BatchNormTuneCallback())
    if stop:
        callbacks.add_callback(stop)
    return callbacks


@pytest.mark.parametrize("at", [(0, 0), (0, 7), (1, 3), (2, 0), (3, 6)])
def test_a_resumed_training_writes_the_same_files(tmp_path, at, monkeypatch):
    def new_process() -> None:  # default names are numbered from 0 again
        monkeypatch.setattr(objects, "_name_counters", defaultdict(itertools.count))

    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    for folder in (straight, resumed):
        folder.mkdir()
        new_process()
        model, train = normalized(), data(shuffle=True)
        callbacks = every_kind(model, folder, train, Stop(*at) if folder == resumed else None)
        optimizer = Adam(learning_rate=0.05)
        if folder == resumed:
            with pytest.raises(KeyboardInterrupt):
                model.fit(train, CrossEntropyMulti(), optimizer, 4, callbacks)
            new_process()
            gen_backend("cpu", rng_seed=99, batch_size=8)
            model, train = Model(folder / "m.neon"), data(shuffle=True)
            callbacks, optimizer = every_kind(model, folder, train), model.optimizer
        model.fit(train, CrossEntropyMulti(), optimizer, 4, callbacks)
        assert callbacks.history.epochs("loss") == [1, 2, 3, 4]
        assert callbacks.history.epochs("val_loss") == [1, 2, 4]
    names = sorted(x.name for x in straight.iterdir())
    assert names == sorted(x.name for x in resumed.iterdir()) == ["best", "m.neon", "m_3.neon", "m_4.neon"]
    for name in names:
        assert (straight / name).read_bytes() == (resumed / name).read_bytes()


def test_a_checkpoint_has_all_records_of_its_epoch_in_any_order_of_callbacks(tmp_path):
    model = start()
    callbacks = Callbacks(model, eval_set=data(), progress_bar=False, save_path=tmp_path / "m")
    callbacks.callbacks.reverse()

    class Late(Callback):
        def on_epoch_end(self, epoch):
            self.callbacks.history.record("late", epoch + 1, epoch)

    callbacks.add_callback(Late())
    fit(model, callbacks, 2)
    again = Model(tmp_path / "m")
    other = Callbacks(again, eval_set=data(), progress_bar=False)
    with pytest.warns(UserWarning, match="nothing was trained"):
        fit(again, other, 2)  # no epoch is left
    assert other.history.records == callbacks.history.records
    assert list(other.history.records) == ["val_loss", "loss", "late"]
    assert other.history.last("late") == 1


def test_states_of_callbacks_are_matched_by_class_and_order():
    def with_early_stops(*stops: Any) -> Callbacks:
        callbacks = Callbacks(start(), eval_set=data(), progress_bar=False)
        for stop in stops:
            callbacks.add_early_stop_callback(stop)
        return callbacks

    saved = with_early_stops(lambda s, c: (c, False), lambda s, c: ((s or 0) + 1, False))
    fit(saved.model, saved, 2)
    state = json.loads(json.dumps(saved.get_state()))
    taken = with_early_stops(max, max, max)
    taken.callbacks.pop(0)  # TrainCostCallback, which has a state in the file
    taken.set_state(state)
    stops = [x.state for x in taken.callbacks if isinstance(x, EarlyStopCallback)]
    assert stops == [saved.history.last("val_loss"), 2, None]
    assert taken.history.records == saved.history.records
    none = Callbacks(start(), progress_bar=False)
    none.set_state(state)
    assert none.history.records == saved.history.records


WRONG = {
    "no dict": [],
    "no history": {"callbacks": []},
    "no pairs": {"history": None, "callbacks": [1]},
    "no list": {"history": None, "callbacks": {}},
    "history": {"history": {"records": 1}, "callbacks": []},
}


@pytest.mark.parametrize("kind", WRONG)
def test_an_invalid_state_is_rejected(kind):
    callbacks = Callbacks(start(), progress_bar=False)
    with pytest.raises(ValueError, match=r"Callbacks: expected a state with|History: expected a dict"):
        callbacks.set_state(WRONG[kind])


@pytest.mark.parametrize(
    ("callback", "state"),
    [
        (TrainCostCallback(), {"recent_costs": ["x"]}),
        (TrainCostCallback(), []),
        (EarlyStopCallback(max), {"state": 1}),
        (SerializeModelCallback("m", history=2), 5),
        (SaveBestStateCallback("m"), "low"),
    ],
)
def test_an_invalid_state_of_a_callback_is_rejected_with_its_class_name(callback, state):
    with pytest.raises(ValueError, match=f"{callback.classnm}: .* got "):
        callback.set_state(state)


def test_a_full_disk_ends_training_and_the_previous_file_remains(tmp_path, monkeypatch):
    model, path = start(), tmp_path / "m"
    callbacks = Callbacks(model, eval_set=data(), progress_bar=False, save_path=path)
    callbacks.add_save_best_state_callback(tmp_path / "best")
    fit(model, callbacks, 1)
    before = {x: (tmp_path / x).read_bytes() for x in ("m", "best")}
    best = callbacks.callbacks[-1].best_cost

    def full(file: int) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space"):
            fit(model, callbacks, 3)
    assert {x: (tmp_path / x).read_bytes() for x in before} == before
    assert callbacks.callbacks[-1].best_cost == best
    fit(model, callbacks, 3)
    assert Model(path).epoch_index == 3
    assert (tmp_path / "best").read_bytes() != before["best"]


def test_evaluation_on_the_training_set_does_not_change_training():
    plain, evaluated, train = start(), None, data(shuffle=True)
    plain.fit(train, CrossEntropyMulti(), Adam(learning_rate=0.05), 3)
    evaluated, train = start(), data(shuffle=True)
    callbacks = Callbacks(evaluated, train, eval_set=train, metric=Accuracy(), progress_bar=False)
    evaluated.fit(train, CrossEntropyMulti(), Adam(learning_rate=0.05), 3, callbacks)
    assert same(plain.get_weights(), evaluated.get_weights())
