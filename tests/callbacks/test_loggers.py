"""Callbacks that write recorded values elsewhere: a CSV file, TensorBoard, and curves in a notebook."""

from __future__ import annotations

import csv
import struct
import sys
from importlib.util import find_spec
from typing import Any
from unittest import TestCase

import pytest
from helpers.small_models import Stop, data, fit, normalized, start

from neonlite import gen_backend
from neonlite.callbacks import Callback, Callbacks, CSVLogger, LiveCurves, TensorBoardLogger, loggers
from neonlite.models import Model
from neonlite.optimizers import Adam
from neonlite.transforms import Accuracy, CrossEntropyMulti

needs_tensorboard = pytest.mark.skipif(find_spec("tensorboardX") is None, reason="tensorboardX is not installed")


def rows(path: Any) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def logged(model: Model, path: Any, more: Any = None, **options: Any) -> Callbacks:
    callbacks = Callbacks(model, eval_set=data(), metric=Accuracy(), progress_bar=False, **options)
    callbacks.add_callback(CSVLogger(path))
    if more:
        callbacks.add_callback(more)
    return callbacks


# --- CSV -------------------------------------------------------------------------------------------------------------


def test_a_csv_file_has_one_row_per_epoch_with_all_digits(tmp_path):
    model, path = start(), tmp_path / "a.csv"
    callbacks = logged(model, path, eval_freq=2)
    fit(model, callbacks, 4)
    table = rows(path)
    assert [*table[0]] == ["epochs", "loss", "val_loss", "Accuracy"]
    assert [row["epochs"] for row in table] == ["1", "2", "3", "4"]
    for name in [*table[0]][1:]:
        found = [(float(row["epochs"]), float(row[name])) for row in table if row[name]]
        assert found == callbacks.history.records[name]
    assert [row["Accuracy"] != "" for row in table] == [False, True, False, True]
    assert path.read_bytes().endswith(b"\n")
    assert b"\r" not in path.read_bytes()


@pytest.mark.parametrize("at", [(0, 0), (0, 7), (2, 3), (3, 6)])
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_resumed_training_writes_the_same_rows(tmp_path, at, is_lost):
    def train(model: Model, dataset: Any, name: str, stop: Any = None) -> None:
        callbacks = logged(model, tmp_path / f"{name}.csv", stop, save_path=tmp_path / name, serialize=2)
        optimizer = model.optimizer or Adam(learning_rate=0.05)
        model.fit(dataset, CrossEntropyMulti(), optimizer, 5, callbacks)

    train(normalized(), data(shuffle=True), "straight")
    with pytest.raises(KeyboardInterrupt):
        train(normalized(), data(shuffle=True), "resumed", Stop(*at))
    if is_lost:
        (tmp_path / "resumed.csv").unlink(missing_ok=True)  # the checkpoint has the values of all epochs
    gen_backend("cpu", rng_seed=99, batch_size=8)
    train(Model(tmp_path / "resumed"), data(shuffle=True), "resumed")
    assert (tmp_path / "resumed.csv").read_bytes() == (tmp_path / "straight.csv").read_bytes()


def test_rows_of_epochs_that_are_trained_again_are_replaced(tmp_path):
    model, path = start(), tmp_path / "a.csv"
    fit(model, logged(model, path, save_path=tmp_path / "m", serialize=2), 3)  # the checkpoint is that of two epochs
    before = rows(path)
    resumed = Model(tmp_path / "m")
    resumed.fit(data(shuffle=True), CrossEntropyMulti(), Adam(learning_rate=0.5), 3, logged(resumed, path))
    after = rows(path)
    assert [row["epochs"] for row in after] == ["1", "2", "3"]
    assert after[:2] == before[:2]
    assert after[2] != before[2]


def test_new_callbacks_continue_the_file_of_the_completed_epochs(tmp_path):
    model, path = start(), tmp_path / "a.csv"
    fit(model, logged(model, path), 2)
    before = rows(path)

    class Late(Callback):
        def on_epoch_end(self, epoch):
            self.callbacks.history.record("late", epoch + 1, 0.5)

    fit(model, logged(model, path, Late()), 4)
    after = rows(path)
    assert [row["epochs"] for row in after] == ["1", "2", "3", "4"]
    assert [row.pop("late") for row in after] == ["", "", "0.5", "0.5"]
    assert after[:2] == before
    other = start()
    fit(other, logged(other, path), 1)  # a new training starts a new file
    assert [row["epochs"] for row in rows(path)] == ["1"]


@pytest.mark.parametrize("text", ["name,age\na,3\n", "epochs\none\n", "\x00\xff", "loss\n", "epochs,a\n1,2,3\n"])
def test_another_file_is_not_overwritten(tmp_path, text):
    path = tmp_path / "a.csv"
    path.write_text(text)
    model = start()
    with pytest.raises(ValueError, match=r"CSVLogger: expected a CSV file with a column epochs, got .*a\.csv"):
        fit(model, logged(model, path), 1)
    assert path.read_text() == text
    assert model.minibatch_index == 0


def test_two_callbacks_do_not_write_one_csv_file(tmp_path):
    callbacks = logged(start(), tmp_path / "a.csv")
    with pytest.raises(ValueError, match="CSVLogger and CSVLogger: expected different files"):
        callbacks.add_callback(CSVLogger(tmp_path / "a.csv"))
    with pytest.raises(FileNotFoundError, match="CSVLogger: path"):
        CSVLogger(tmp_path / "none" / "a.csv")


# --- TensorBoard -----------------------------------------------------------------------------------------------------


def events(folder: Any) -> list[Any]:
    """Return the events of all files, read by the format of TFRecord: length, its checksum, data, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        content = path.read_bytes()
        while content:
            (size,) = struct.unpack("<Q", content[:8])
            found.append(Event.FromString(content[12 : 12 + size]))
            content = content[16 + size :]
    return found


def scalars(folder: Any) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for event in events(folder):
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


@needs_tensorboard
def test_tensorboard_files_have_the_values_of_each_epoch(tmp_path):
    model = start()
    callbacks = logged(model, tmp_path / "a.csv", TensorBoardLogger(tmp_path / "run"), eval_freq=2)
    fit(model, callbacks, 4)
    found = scalars(tmp_path / "run")
    assert found.keys() == {"cost/train", "cost/validation", "metrics/Accuracy"}
    for tag, name in (("cost/train", "loss"), ("metrics/Accuracy", "Accuracy")):
        assert found[tag] == [(int(n), pytest.approx(x, rel=1e-6)) for n, x in callbacks.history.records[name]]


@needs_tensorboard
def test_a_resumed_training_discards_the_steps_that_are_trained_again(tmp_path):
    model, folder = start(), tmp_path / "run"
    callbacks = logged(model, tmp_path / "a.csv", TensorBoardLogger(folder), save_path=tmp_path / "m", serialize=2)
    callbacks.add_callback(Stop(2, 3))
    with pytest.raises(KeyboardInterrupt):
        fit(model, callbacks, 4)
    resumed = Model(tmp_path / "m")
    fit(resumed, logged(resumed, tmp_path / "b.csv", TensorBoardLogger(folder)), 4)
    assert [step for step, _ in scalars(folder)["cost/train"]] == [1, 2, 3, 4]
    starts = [event.step for event in events(folder) if event.HasField("session_log")]
    assert starts[-1] == 3  # TensorBoard hides earlier events from this step on


@needs_tensorboard
def test_every_name_is_a_valid_tag(tmp_path):
    model = start()
    callbacks = Callbacks(model, progress_bar=False)

    class Named(Callback):
        def on_epoch_end(self, epoch):
            self.callbacks.history.record("Precision_big cat", epoch + 1, 0.5)

    callbacks.add_callback(Named())
    callbacks.add_callback(TensorBoardLogger(tmp_path))
    with TestCase().assertNoLogs(level="WARNING"):
        fit(model, callbacks, 1)
        assert scalars(tmp_path)["metrics/Precision_big_cat"] == [(1, 0.5)]


def test_an_error_names_the_extra_that_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(
        ImportError, match=r'TensorBoardLogger needs tensorboardX: pip install "neonlite\[tensorboard\]"'
    ):
        TensorBoardLogger(tmp_path)


# --- notebooks -------------------------------------------------------------------------------------------------------


class Display:
    """Records what a notebook displays."""

    def __init__(self) -> None:
        self.outputs: list[list[dict[str, Any]]] = []

    def __call__(self, data: dict[str, Any], raw: bool, display_id: bool) -> Any:
        assert raw
        assert display_id
        output = [data]
        self.outputs.append(output)

        class Handle:
            def update(self, data: dict[str, Any], raw: bool) -> None:
                assert raw
                output.append(data)

        return Handle()


@pytest.fixture
def display(monkeypatch):
    module = pytest.importorskip("IPython.display")
    monkeypatch.setattr(module, "display", Display())
    monkeypatch.setattr(loggers, "is_notebook", lambda file: True)
    return module.display


def live(model: Model, **options: Any) -> Callbacks:
    callbacks = Callbacks(model, eval_set=data(), progress_bar=False)
    callbacks.add_callback(LiveCurves(**options))
    return callbacks


def test_one_output_is_updated_after_each_epoch(display):
    model = start()
    callbacks = live(model, update_thresh_s=0)
    fit(model, callbacks, 3)
    (output,) = display.outputs
    assert [x["image/png"][:4] for x in output] == [b"\x89PNG"] * 3
    assert output[0] != output[2]
    fit(model, callbacks, 4)
    assert [len(x) for x in display.outputs] == [3, 1]  # another fit, in another cell


def test_updates_are_rare_but_the_last_epoch_is_shown(display):
    model = start()
    callbacks = live(model, update_thresh_s=1e9)
    fit(model, callbacks, 5)
    (output,) = display.outputs
    assert len(output) == 2  # the first epoch and the last
    assert output[-1]["image/png"] == loggers.png(callbacks.history.plot())
    callbacks.add_callback(Stop(6, 2))
    with pytest.raises(KeyboardInterrupt):
        fit(model, callbacks, 9)
    assert len(display.outputs[1]) == 1


def test_outside_of_a_notebook_nothing_is_displayed(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    model = start()
    callbacks = live(model)
    fit(model, callbacks, 2)
    assert len(callbacks.history["val_loss"]) == 2


def test_loggers_are_created_from_their_description(tmp_path):
    callbacks = logged(start(), tmp_path / "a.csv", LiveCurves(0.5))
    again = Callbacks.load_callbacks(callbacks.serialize(), start(), eval_set=data())
    assert again.serialize() == callbacks.serialize()
