"""Callbacks of a training: events, interruptions, descriptions, and mistakes that are reported before training."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any
from unittest import TestCase

import numpy as np
import pytest
from helpers.small_models import Stop, data, fit, same, start

from neonlite.callbacks import (
    Callback,
    Callbacks,
    EarlyStopCallback,
    MultiLabelStatsCallback,
    ProgressBarCallback,
    SaveBestStateCallback,
)
from neonlite.models import Model
from neonlite.optimizers import Adam
from neonlite.transforms import Accuracy, ConfusionMatrix, CrossEntropyMulti, PrecisionRecall, TopKMisclassification


def test_the_history_is_written_to_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    model = start()
    fit(model, Callbacks(model, eval_set=data(), output_file=tmp_path / "h.h5", progress_bar=False))
    with h5py.File(tmp_path / "h.h5") as file:
        assert file["cost/train"].shape == (3, 2)
        assert file["cost/validation"][:, 0].tolist() == [1, 2, 3]
    assert [x.name for x in tmp_path.iterdir()] == ["h.h5"]


def test_each_epoch_is_a_line_of_the_log():
    model = start()
    callbacks = Callbacks(model, eval_set=data(), metric=Accuracy(), progress_bar=False, log_token="run 7")
    with TestCase().assertLogs("neonlite", "INFO") as log:
        fit(model, callbacks, 2)
    names = ("loss", "val_loss", "Accuracy")
    values = [[callbacks.history[name][epoch] for name in names] for epoch in (0, 1)]
    assert [(x.name, x.getMessage()) for x in log.records] == [
        ("neonlite", f"run 7 epoch {e}: loss {a:.6g}; val_loss {b:.6g}; Accuracy {c:.6g}")
        for e, (a, b, c) in enumerate(values, 1)
    ]


class Last(Callback):
    """Records on_interrupt, and may raise an error in it."""

    def __init__(self, recorded: list[str], word: str, priority: int, fails: bool = False) -> None:
        super().__init__()
        self.recorded, self.word, self.priority, self.fails = recorded, word, priority, fails

    def on_interrupt(self):
        self.recorded.append(self.word)
        if self.fails:
            raise OSError(f"{self.word}: nobody reads on")


def test_on_interrupt_runs_for_all_callbacks_in_order_also_when_some_fail(tmp_path):
    model, recorded = start(), []
    callbacks = Callbacks(model, progress_bar=False, save_path=tmp_path / "m")
    for word, priority, fails in (("d", 3, True), ("a", 1, True), ("b", 1, False), ("c", 2, False), ("z", 9, True)):
        callbacks.add_callback(Last(recorded, word, priority, fails))
    callbacks.add_callback(Stop(1, 2))
    with pytest.raises(OSError, match="a: nobody reads on") as error:
        fit(model, callbacks)
    assert recorded == ["a", "b", "c", "d", "z"]
    assert isinstance(error.value.__context__, KeyboardInterrupt)  # the cause is not lost
    assert Model(tmp_path / "m").minibatch_index == 3


def test_two_ctrl_c_abort_a_validation_but_no_training_step(tmp_path):
    def press(y, t, calcrange):
        if model.epoch_index == 2 and not pressed:
            pressed.append(True)
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
        return 1.0

    press.metric_names = ["ones"]
    pressed: list[bool] = []
    fit(straight := start(), None)
    model = start()
    callbacks = Callbacks(model, eval_set=data(), metric=press, progress_bar=False, save_path=tmp_path / "m")
    train, optimizer = data(shuffle=True), Adam(learning_rate=0.05)
    with pytest.raises(KeyboardInterrupt):
        model.fit(train, CrossEntropyMulti(), optimizer, 3, callbacks)
    assert Model(tmp_path / "m").epoch_index == model.epoch_index == 2
    model.fit(train, CrossEntropyMulti(), optimizer, 3, callbacks)
    assert same(model.get_weights(), straight.get_weights())
    assert callbacks.history.epochs("loss") == [1, 2, 3]
    assert callbacks.history.epochs("ones") == [1, 3]  # it is not repeated


# --- serialization and mistakes --------------------------------------------------------------------------------------


def test_callbacks_are_serialized_and_created_from_the_description(tmp_path):
    pytest.importorskip("h5py")
    model = start()
    callbacks = Callbacks(
        model, eval_set=data(), eval_freq=2, metric=TopKMisclassification(2), save_path=tmp_path / "m", history=3,
        output_file=tmp_path / "h.h5", minibatch_freq=4,
    )  # fmt: skip
    callbacks.add_hist_callback(filter_key=["W", "dW"])
    callbacks.add_save_best_state_callback(tmp_path / "best")
    description = json.loads(json.dumps(callbacks.serialize()))
    created = Callbacks.load_callbacks(description, model, eval_set=data())
    assert created.serialize() == callbacks.serialize()
    assert [type(x) for x in created.callbacks] == [type(x) for x in callbacks.callbacks]
    created.callbacks = [x for x in created.callbacks if not isinstance(x, ProgressBarCallback)]
    fit(model, created, 2)
    assert created.history.epochs("Top2Misclass") == [2]
    with pytest.raises(ValueError, match="expected the dict that serialize"):
        Callbacks.load_callbacks([], model)


VALID = "a validation set"
MISTAKES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "eval_freq alone": ({"eval_freq": 2}, ValueError, "expected eval_set together with eval_freq=2, got None"),
    "metric alone": ({"metric": Accuracy()}, ValueError, "expected eval_set together with metric=.*, got None"),
    "a class": (
        {"eval_set": VALID, "metric": Accuracy},
        TypeError,
        r"expected a metric, such as Accuracy\(\), for metric, got <class",
    ),
    "no metric": (
        {"eval_set": VALID, "metric": 5},
        TypeError,
        r"expected a metric, such as Accuracy\(\), for metric, got 5",
    ),
    "no names": (
        {"eval_set": VALID, "metric": ConfusionMatrix()},
        TypeError,
        "expected a metric of named values, .* got ConfusionMatrix",
    ),
    "an unknown name": (
        {"eval_set": VALID, "metric": "accurate"},
        ValueError,
        "get_metric: expected one of 'accuracy', .* got 'accurate'",
    ),
    "never": ({"eval_set": VALID, "eval_freq": 0}, ValueError, "expected an integer >= 1 for eval_freq, got 0"),
    "before": ({"eval_set": VALID, "eval_freq": -1}, ValueError, "expected an integer >= 1 for eval_freq, got -1"),
    "half": ({"eval_set": VALID, "eval_freq": 0.5}, TypeError, "expected an integer >= 1 for eval_freq, got 0.5"),
    "in a list": (
        {"eval_set": VALID, "eval_freq": [1, 2.5]},
        TypeError,
        "expected an integer >= 0 for eval_freq, in a list, got 2.5",
    ),
    "no data": (
        {"eval_set": np.zeros(3)},
        TypeError,
        "LossCallback: expected a data set, such as .* for eval_set, got",
    ),
    "no train data": ({"train_set": [1]}, TypeError, r"Callbacks: expected a data set.* for train_set, got \[1\]"),
    "serialize": ({"serialize": -1, "save_path": "m"}, ValueError, "expected an integer >= 0 for serialize, got -1"),
    "nowhere": ({"serialize": 1}, ValueError, "expected save_path together with serialize=1, got None"),
    "no files": (
        {"save_path": "m", "history": 0},
        ValueError,
        "Callbacks: expected an integer >= 1 for history.* got 0",
    ),
    "no folder": (
        {"save_path": "no/m"},
        FileNotFoundError,
        "save_path: no/m can not be written: there is no folder no",
    ),
    "a folder": ({"save_path": "."}, IsADirectoryError, "save_path: expected the path of a file, got the folder \\."),
    "no folder for the history": ({"output_file": "no/h"}, FileNotFoundError, "output_file: no/h can not be written"),
    "no model file": ({"model_file": "no"}, FileNotFoundError, "no: there is no such file"),
    "a misspelled word": ({"eval_frq": 1}, TypeError, "got eval_frq. Did you mean 'eval_freq'"),
    "minibatches": ({"minibatch_freq": -3}, ValueError, "expected an integer >= 0 for minibatch_freq, got -3"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_mistakes_are_reported_before_training(what):
    arguments, error, message = MISTAKES[what]
    model = start()
    if arguments.get("eval_set") is VALID:
        arguments = {**arguments, "eval_set": data()}
    with pytest.raises(error, match=message):
        Callbacks(model, **arguments)


def test_a_read_only_folder_is_reported_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: not (Path(path) == tmp_path and mode == os.W_OK))
    with pytest.raises(PermissionError, match=f"save_path: {tmp_path}/m can not be written: .* is read-only for you"):
        Callbacks(start(), save_path=tmp_path / "m")


def test_more_mistakes_are_reported_before_training(tmp_path, monkeypatch):
    model = start()
    with pytest.raises(TypeError, match=r"Callbacks: expected a Model for model, got 5"):
        Callbacks(5)
    callbacks = Callbacks(model, progress_bar=False)
    with pytest.raises(
        TypeError,
        match=r"add_callback: expected a Callback, .* got .*: add_callback\(SaveBestStateCallback\(...\)\)",
    ):
        callbacks.add_callback(SaveBestStateCallback)
    with pytest.raises(TypeError, match=r"EarlyStopCallback: expected a function .* for stop_func, got 3"):
        callbacks.add_early_stop_callback(3)
    with pytest.raises(TypeError, match=r"expected filter_key as a list .*, got 'W'"):
        callbacks.add_hist_callback(filter_key="W")
    with pytest.raises(ValueError, match="MultiLabelStatsCallback: expected 3 labels, got "):
        MultiLabelStatsCallback(data(), ["a"], PrecisionRecall(3))
    with pytest.raises(TypeError, match=r"MultiLabelStatsCallback: expected PrecisionRecall\(1\) for metric, got "):
        MultiLabelStatsCallback(data(), ["a"], Accuracy())
    for callback in (SaveBestStateCallback(tmp_path / "x"), EarlyStopCallback(max)):
        callbacks = Callbacks(model, progress_bar=False)
        callbacks.add_callback(callback)
        with pytest.raises(ValueError, match=f"{callback.classnm}: expected a validation set, got none"):
            fit(model, callbacks, 1)
    assert model.epoch_index == 0
    with pytest.raises(RuntimeError, match=r"model\.eval_cost: expected a cost, got none"):
        start().eval_cost(data())
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match=r'pip install "neonlite\[hdf5\]"'):
        Callbacks(model, output_file=tmp_path / "h.h5")
