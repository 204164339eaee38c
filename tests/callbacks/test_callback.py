"""The base class of callbacks: custom callbacks get the events of training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.small_models import data, fit, start

from neonlite import callbacks as neonlite_callbacks
from neonlite.callbacks import Callback, Callbacks


class EventRecorder(Callback):
    """Records its events."""

    def __init__(self, **freqs: Any) -> None:
        super().__init__(**freqs)
        self.recorded: list[Any] = []

    def on_train_begin(self, epochs):
        self.recorded.append(("train", epochs))

    def on_epoch_begin(self, epoch):
        self.recorded.append(("epoch", epoch))

    def on_minibatch_end(self, epoch, minibatch):
        if self.should_fire(minibatch, self.minibatch_freq):
            self.recorded.append((epoch, minibatch))

    def on_train_end(self):
        self.recorded.append("end")


@pytest.mark.parametrize(("freq", "expected"), [(3, [2, 5]), ([0, 7], [0, 7]), (0, [])])
def test_a_custom_callback_receives_the_events_of_training(freq, expected):
    model = start()
    callbacks, recorded = Callbacks(model, progress_bar=False), EventRecorder(minibatch_freq=freq)
    callbacks.add_callback(recorded, insert_pos=0)
    fit(model, callbacks, 1)
    assert recorded.recorded == [("train", 1), ("epoch", 0), *((0, k) for k in expected), "end"]
    assert recorded.model is model


# --- serialization and mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.int64, np.uint8, int])
def test_integers_may_be_those_of_numpy(kind):
    model = start()
    callbacks = Callbacks(model, eval_set=data(), eval_freq=kind(2), progress_bar=False)
    callbacks.add_callback(recorded := EventRecorder(epoch_freq=[kind(1)], minibatch_freq=kind(0)))
    fit(model, callbacks, kind(2))
    assert recorded.recorded == [("train", 2), ("epoch", 0), ("epoch", 1), "end"]
    assert type(recorded.recorded[0][1]) is int
    assert callbacks.history.epochs("val_loss") == [2]


def test_callbacks_have_neons_class_names():
    neons = "Metric BatchNormTune EarlyStop Hist Loss GANPlot GANCost RunTimer TrainLogger ProgressBar SaveBestState"
    for name in neons.split():
        assert getattr(neonlite_callbacks, f"{name}Callback").__name__ == f"{name}Callback"
