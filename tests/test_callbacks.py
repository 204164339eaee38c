"""Callbacks note, show, judge, keep and end a training."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from test_models import CLASSES, data, same, start

from neonlite.callbacks import Callback, Callbacks, History, ProgressBar, SaveBestState
from neonlite.models import Model
from neonlite.optimizers import Adam
from neonlite.transforms import Accuracy, CrossEntropyMulti, TopKMisclassification


def fit(model: Model, callbacks: Any, epochs: int = 3) -> None:
    model.fit(data(shuffle=True), CrossEntropyMulti(), Adam(learning_rate=0.05), epochs, callbacks)


def test_the_history_has_costs_and_metrics_of_each_epoch():
    model = start()
    valid = data()
    callbacks = Callbacks(model, eval_set=valid, metric=TopKMisclassification(2), progress_bar=False)
    fit(model, callbacks)
    notes = callbacks.history.notes
    assert list(notes) == ["cost, train", "cost, validation", "LogLoss", "Top1Misclass", "Top2Misclass"]
    assert all([at for at, _ in values] == [1, 2, 3] for values in notes.values())
    assert callbacks.history.last("cost, train") == model.total_cost
    assert callbacks.history["Top1Misclass"][-1][1] == pytest.approx(1 - model.eval(valid, Accuracy())[0])
    with pytest.raises(KeyError, match="nothing of the name 'loss' was noted; there are cost, train"):
        callbacks.history["loss"]


def test_the_validation_cost_is_the_mean_over_all_rows():
    model = start()
    valid = data()
    callbacks = Callbacks(model, eval_set=valid, progress_bar=False)
    fit(model, callbacks, 1)
    t = np.eye(CLASSES)[:, [label for _, label in rows(valid)]]
    y = model.get_outputs(valid).T
    want = -np.log(y)[t.astype(bool)].mean()
    assert callbacks.history.last("cost, validation") == pytest.approx(want, rel=1e-5)


def rows(valid: Any) -> Any:
    from test_models import blobs

    return list(zip(*blobs(), strict=True))


def test_eval_freq_says_how_often_the_validation_set_is_judged():
    model = start()
    callbacks = Callbacks(model, eval_set=data(), eval_freq=2, progress_bar=False)
    fit(model, callbacks, 5)
    assert [at for at, _ in callbacks.history["cost, validation"]] == [2, 4]


def test_judging_does_not_disturb_the_training():
    plain, judged = start(), None
    fit(plain, None)
    judged = start()
    fit(judged, Callbacks(judged, eval_set=data(), metric=Accuracy(), progress_bar=False))
    assert same(plain.get_weights(), judged.get_weights())


class Heard(Callback):
    """Writes down what it hears."""

    def __init__(self, **freqs: Any) -> None:
        super().__init__(**freqs)
        self.heard: list[Any] = []

    def on_train_begin(self, epochs):
        self.heard.append(("train", epochs))

    def on_epoch_begin(self, epoch):
        self.heard.append(("epoch", epoch))

    def on_minibatch_end(self, epoch, minibatch):
        if self.should_fire(minibatch, self.minibatch_freq):
            self.heard.append((epoch, minibatch))

    def on_train_end(self):
        self.heard.append("end")


@pytest.mark.parametrize(("freq", "wanted"), [(3, [2, 5]), ([0, 7], [0, 7]), (0, [])])
def test_a_callback_of_ones_own_hears_of_the_course(freq, wanted):
    model = start()
    callbacks, heard = Callbacks(model, progress_bar=False), Heard(minibatch_freq=freq)
    callbacks.add_callback(heard, insert_pos=0)
    fit(model, callbacks, 1)
    assert heard.heard == [("train", 1), ("epoch", 0), *((0, k) for k in wanted), "end"]
    assert heard.model is model


def test_the_bar_is_one_line_an_epoch():
    model = start()
    callbacks, out = Callbacks(model, eval_set=data(), metric=Accuracy(), progress_bar=False), io.StringIO()
    callbacks.add_callback(ProgressBar(file=out))
    fit(model, callbacks)
    lines = [line for line in out.getvalue().splitlines() if line.strip()]
    assert len(lines) == 3
    for epoch, line in enumerate(lines):
        assert line.startswith(f"Epoch {epoch}")
        assert "8/8 batches" in line or "7/7 batches" in line
        assert f"[Accuracy {callbacks.history['Accuracy'][epoch][1]:.4g}]" in line


def test_files_are_written_and_the_last_ones_kept(tmp_path):
    model = start()
    callbacks = Callbacks(model, save_path=tmp_path / "m.neon", serialize=1, history=2, progress_bar=False)
    fit(model, callbacks, 4)
    assert sorted(x.name for x in tmp_path.iterdir()) == ["m.neon", "m_2.neon", "m_3.neon"]
    assert Model(tmp_path / "m_2.neon").epoch_index == 3
    weights = model.get_weights()
    assert same(Model(tmp_path / "m.neon").get_weights(), weights)
    again = start()
    Callbacks(again, model_file=tmp_path / "m.neon", progress_bar=False)
    assert again.epoch_index == 4


def test_the_best_state_is_kept(tmp_path):
    model = start()
    callbacks = Callbacks(model, eval_set=data(), progress_bar=False)
    callbacks.add_save_best_state_callback(tmp_path / "best")
    fit(model, callbacks, 3)
    worse = Adam(learning_rate=1000.0)
    best = min(cost for _, cost in callbacks.history["cost, validation"])
    model.fit(data(), CrossEntropyMulti(), worse, 4, callbacks)
    assert callbacks.history.last("cost, validation") > best
    kept = Model(tmp_path / "best")
    kept.initialize(data(), CrossEntropyMulti())
    assert kept.eval_cost(data()) == pytest.approx(best, rel=1e-5)


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
    assert costs == [cost for _, cost in callbacks.history["cost, validation"]]


def test_the_history_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    history = History()
    for epoch in range(3):
        history.note("cost, train", epoch, 1 / (epoch + 1))
        history.note("Accuracy", epoch, epoch)
    figure = history.plot(tmp_path / "h.png")
    assert [axes.get_legend_handles_labels()[1] for axes in figure.axes] == [["cost, train"], ["Accuracy"]]
    assert (tmp_path / "h.png").read_bytes().startswith(b"\x89PNG")


def test_the_history_is_written_to_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    model = start()
    fit(model, Callbacks(model, eval_set=data(), output_file=tmp_path / "h.h5", progress_bar=False))
    with h5py.File(tmp_path / "h.h5") as file:
        assert file["cost/train"].shape == (3, 2)
        assert file["cost/validation"][:, 0].tolist() == [1, 2, 3]
    assert [x.name for x in tmp_path.iterdir()] == ["h.h5"]


def test_a_note_for_the_same_moment_is_replaced():
    history = History()
    for epochs, value in [(1, 5), (2, 6), (3, 7), (2, 8)]:
        history.note("x", epochs, value)
    assert json.dumps(history["x"]) == "[[1.0, 5.0], [2.0, 8.0]]"
    assert np.isnan(history.last("y"))


def test_mistakes_are_told():
    model = start()
    with pytest.raises(ValueError, match="eval_freq=2 says how often eval_set is judged; there is no eval_set"):
        Callbacks(model, eval_freq=2)
    with pytest.raises(ValueError, match=r"a metric is an object, Accuracy\(\); got the class"):
        Callbacks(model, eval_set=data(), metric=Accuracy)
    with pytest.raises(ValueError, match="judges eval_set; there is none"):
        Callbacks(model, metric=Accuracy())
    callbacks = Callbacks(model, progress_bar=False)
    callbacks.add_callback(SaveBestState("x"))
    with pytest.raises(ValueError, match=r"SaveBestState goes by the cost of a validation set"):
        fit(model, callbacks, 1)
    with pytest.raises(RuntimeError, match="model has no cost yet"):
        start().eval_cost(data())
