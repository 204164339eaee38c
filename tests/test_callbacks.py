"""Callbacks note, show, judge, keep and end a training."""

from __future__ import annotations

import io
import itertools
import json
import logging
import os
import signal
import struct
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_models import CLASSES, blobs, data, same, start

from neonlite import gen_backend
from neonlite.backend import description
from neonlite.callbacks import (
    BatchNormTune,
    Callback,
    Callbacks,
    EarlyStop,
    GANCosts,
    GANPlot,
    MultiLabelStats,
    ProgressBar,
    SaveBestState,
    SerializeModelCallback,
    TrainCost,
)
from neonlite.data import ArrayIterator
from neonlite.initializers import Gaussian
from neonlite.layers import Affine, BatchNorm, BranchNode, Dropout, GeneralizedCost, Linear, Multicost, Tree
from neonlite.models import Model
from neonlite.models.gan import GAN
from neonlite.models.zoo import gan
from neonlite.optimizers import Adam, GradientDescentMomentum
from neonlite.transforms import (
    Accuracy,
    CrossEntropyBinary,
    CrossEntropyMulti,
    GANCost,
    Logistic,
    MeanSquared,
    PrecisionRecall,
    Softmax,
    TopKMisclassification,
)


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
    t = np.eye(CLASSES)[:, blobs()[1]]
    y = model.get_outputs(valid).T
    want = -np.log(y)[t.astype(bool)].mean()
    assert callbacks.history.last("cost, validation") == pytest.approx(want, rel=1e-5)


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


class Stop(Callback):
    """Ends the training behind a step."""

    def __init__(self, epoch: int, minibatch: int) -> None:
        super().__init__()
        self.at = (epoch, minibatch)

    def on_minibatch_end(self, epoch, minibatch):
        if (epoch, minibatch) == self.at:
            raise KeyboardInterrupt


@pytest.mark.parametrize(("freq", "wanted"), [(3, [2, 5]), ([0, 7], [0, 7]), (0, [])])
def test_a_callback_of_ones_own_hears_of_the_course(freq, wanted):
    model = start()
    callbacks, heard = Callbacks(model, progress_bar=False), Heard(minibatch_freq=freq)
    callbacks.add_callback(heard, insert_pos=0)
    fit(model, callbacks, 1)
    assert heard.heard == [("train", 1), ("epoch", 0), *((0, k) for k in wanted), "end"]
    assert heard.model is model


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


def test_the_history_is_written_to_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    model = start()
    fit(model, Callbacks(model, eval_set=data(), output_file=tmp_path / "h.h5", progress_bar=False))
    with h5py.File(tmp_path / "h.h5") as file:
        assert file["cost/train"].shape == (3, 2)
        assert file["cost/validation"][:, 0].tolist() == [1, 2, 3]
    assert [x.name for x in tmp_path.iterdir()] == ["h.h5"]


def test_the_cost_of_minibatches_is_noted_when_asked_for():
    model = start()
    callbacks, costs = Callbacks(model, progress_bar=False, minibatch_freq=3), []

    class Costs(Callback):
        def on_minibatch_end(self, epoch, minibatch):
            costs.append(float(self.model.cost.cost.item()))

    callbacks.add_callback(Costs())
    fit(model, callbacks, 2)  # 8 minibatches, then 7
    want = [(k / 8, k) for k in (3, 6)] + [(1 + k / 7, 8 + k) for k in (3, 6)]
    notes = callbacks.history["cost, minibatches"]
    assert [at for at, _ in notes] == [at for at, _ in want]
    assert [x for _, x in notes] == pytest.approx([np.mean(costs[max(0, k - 10) : k]) for _, k in want])


def tree() -> Model:
    gen_backend("cpu", rng_seed=7, batch_size=8)
    branch = BranchNode("b")
    trunk = [Linear(4, Gaussian(), name="a"), branch, Linear(2, Gaussian(), name="c")]
    return Model(Tree([trunk, [branch, Linear(2, Gaussian(), name="d")]]))


def test_each_of_several_costs_is_noted():
    X, _ = blobs()
    model = tree()
    callbacks, costs = Callbacks(model, multicost=True, progress_bar=False), []

    class Costs(Callback):
        def on_minibatch_end(self, epoch, minibatch):
            costs.append([float(x.cost.item()) for x in self.model.cost.costs])

    callbacks.add_callback(Costs())
    both = Multicost([GeneralizedCost(MeanSquared()), GeneralizedCost(MeanSquared())], weights=[1, 0.25])
    model.fit(ArrayIterator(X, X, make_onehot=False), both, GradientDescentMomentum(0.01, 0), 2, callbacks)
    for epoch, part in enumerate((costs[:8], costs[8:])):
        first, second = np.mean(part, axis=0)
        assert callbacks.history["cost, train 0"][epoch] == (epoch + 1, pytest.approx(first))
        assert callbacks.history["cost, train 1"][epoch] == (epoch + 1, pytest.approx(second))
        assert callbacks.history["cost, train"][epoch][1] == pytest.approx(first + 0.25 * second)
    with pytest.raises(ValueError, match="multicost=True is for a Multicost; the cost is"):
        fit(model := start(), Callbacks(model, multicost=True, progress_bar=False))


def test_each_of_several_costs_is_noted_also_when_training_is_taken_up(tmp_path):
    found = []
    for stop in (None, Stop(1, 2)):
        X, _ = blobs()
        model, sets = tree(), ArrayIterator(X, X, make_onehot=False)
        callbacks = Callbacks(model, multicost=True, progress_bar=False, save_path=tmp_path / "m")
        both = Multicost([GeneralizedCost(MeanSquared()), GeneralizedCost(MeanSquared())])
        if stop:
            callbacks.add_callback(stop)
            with pytest.raises(KeyboardInterrupt):
                model.fit(sets, both, GradientDescentMomentum(0.01, 0), 2, callbacks)
            model = Model(tmp_path / "m")
            callbacks = Callbacks(model, multicost=True, progress_bar=False)
        model.fit(sets, both, model.optimizer or GradientDescentMomentum(0.01, 0), 2, callbacks)
        found.append(callbacks.get_state())
    assert found[0]["history"] == found[1]["history"]
    assert found[0]["callbacks"][0] == found[1]["callbacks"][0]
    assert len(found[0]["callbacks"][0][1]["recent"]) == 10


def test_precision_and_recall_of_each_label_are_noted():
    gen_backend("cpu", rng_seed=3, batch_size=8)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 4)).astype(np.float32)
    t = (rng.random((30, 3)) < 0.4).astype(np.float32)
    t[:, 2] = 0  # never true

    class Round(Logistic):
        def __call__(self, x):
            return self.be.greater(x, 0)

    model = Model([Affine(3, Gaussian(), activation=Round())])
    valid = ArrayIterator(X, t, make_onehot=False)
    model.initialize(valid, CrossEntropyBinary())
    callbacks = Callbacks(model, progress_bar=False)
    callbacks.add_callback(MultiLabelStats(valid, ["cat", "dog", "cow"], PrecisionRecall(3)))
    callbacks.on_epoch_end(0)
    y = model.get_outputs(valid)
    for i, label in enumerate(["cat", "dog", "cow"]):
        right = ((y[:, i] == 1) & (t[:, i] == 1)).sum()
        said, true = (y[:, i] == 1).sum(), (t[:, i] == 1).sum()
        assert callbacks.history.last(f"Precision, {label}") == pytest.approx(right / said)
        assert callbacks.history.last(f"Recall, {label}") == pytest.approx(right / true if true else 0)


@pytest.mark.parametrize("per_minibatch", [False, True])
def test_weights_are_counted_by_their_magnitude(per_minibatch):
    model = start()
    callbacks = Callbacks(model, progress_bar=False)
    callbacks.add_hist_callback(per_minibatch, ["W"])
    fit(model, callbacks, 2)
    histograms, be = callbacks.history.histograms, model.be
    assert list(histograms) == ["hidden.W", "hidden_bias.W", "out.W"]
    for name, notes in histograms.items():
        assert [at for at, _ in notes] == (
            [*np.arange(1, 9) / 8, *(1 + np.arange(1, 8) / 7)] if per_minibatch else [1, 2]
        )
        w = model.get_weights()[name].ravel()
        bins = np.clip(np.rint(np.log2(np.abs(w))) - be.hist_offset, 0, 63).astype(int)
        assert notes[-1][1] == np.bincount(bins, minlength=64).tolist()
    assert not be.hist_buf


def normalized() -> Model:
    gen_backend("cpu", rng_seed=7, batch_size=8)
    layers = [Linear(6, Gaussian(), name="a"), BatchNorm(name="bn"), Dropout(0.8, name="drop")]
    return Model([*layers, Affine(CLASSES, Gaussian(), activation=Softmax(), name="out")])


def test_the_statistics_of_batch_norm_are_those_of_all_data_and_training_is_not_disturbed():
    plain, tuned = normalized(), None
    fit(plain, None)
    tuned, train = normalized(), data(shuffle=True)
    callbacks = Callbacks(tuned, train_set=train, progress_bar=False)
    callbacks.add_callback(BatchNormTune())
    tuned.fit(train, CrossEntropyMulti(), Adam(learning_rate=0.05), 3, callbacks)
    weights, untuned = tuned.get_weights(), plain.get_weights()
    for name in weights:
        assert np.array_equal(weights[name], untuned[name]) == (name not in ("bn.gmean", "bn.gvar"))
    wide = ArrayIterator(*blobs(), nclass=CLASSES)  # not shuffled: its first 56 rows, and 4 and 4 that wrap around
    tune = BatchNormTune(wide)
    tune.callbacks = callbacks
    tune.on_epoch_end(0)
    X = np.concatenate([blobs()[0], blobs()[0][:4]]).astype(np.float64) @ weights["a.W"].T.astype(np.float64)
    batches = X.reshape(8, 8, 6)
    found = tuned.get_weights()
    np.testing.assert_allclose(found["bn.gmean"].ravel(), batches.mean(axis=1).mean(axis=0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["bn.gvar"].ravel(), batches.var(axis=1).mean(axis=0), rtol=1e-4)
    assert tuned.layers.layers[1].rho == 0.9
    without = Callbacks(tuned, progress_bar=False)
    without.add_callback(BatchNormTune())
    with pytest.raises(ValueError, match=r"BatchNormTune\(tune_set\), or Callbacks\(train_set=...\)"):
        fit(tuned, without)


def adversaries(k: int = 2) -> tuple[GAN, ArrayIterator]:
    gen_backend("cpu", rng_seed=7, batch_size=8)
    X = np.tanh(np.random.default_rng(0).normal(size=(60, 1, 4, 4))).astype(np.float32)
    return GAN(gan((1, 4, 4), hidden=8), noise_dim=3, k=k), ArrayIterator(X.reshape(60, 16), lshape=(1, 4, 4))


def test_both_costs_of_a_gan_are_noted_also_when_it_is_taken_up(tmp_path):
    found = []
    for stops in ([], [Stop(1, 2)]):
        model, train = adversaries()
        callbacks, costs = Callbacks(model, progress_bar=False, save_path=tmp_path / "m"), []

        class Costs(Callback):
            def on_minibatch_end(self, epoch, minibatch, costs=costs):
                costs.append((epoch, self.model.cost_gen, self.model.dis_iterations == 0))

        for extra in (GANCosts(), Costs(), *stops):
            callbacks.add_callback(extra)
        args = GANCost(), GradientDescentMomentum(0.05, 0), 2, callbacks
        if stops:
            with pytest.raises(KeyboardInterrupt):
                model.fit(train, *args)
            _, train = adversaries()
            model = GAN(tmp_path / "m", noise_dim=3, k=2)
            callbacks = Callbacks(model, progress_bar=False)
            callbacks.add_callback(GANCosts())
            args = *args[:3], callbacks
        model.fit(train, *args)
        found.append(callbacks.history)
        if not stops:
            for epoch, (at, value) in enumerate(callbacks.history["cost, generator"]):
                want = np.mean([cost for e, cost, learned in costs if e == epoch and learned])
                assert (at, value) == (epoch + 1, pytest.approx(want))
            assert callbacks.history["cost, discriminator"] == callbacks.history["cost, train"]
    assert found[0].notes == found[1].notes
    plain = Callbacks(start(), progress_bar=False)
    plain.add_callback(GANCosts())
    with pytest.raises(TypeError, match="GANCosts is for a GAN, with two costs; got "):
        fit(plain.model, plain)


def test_what_a_generator_makes_is_drawn_and_training_is_not_disturbed(tmp_path):
    image = pytest.importorskip("matplotlib.image")
    weights = []
    for drawn in (False, True):
        model, train = adversaries()
        callbacks = Callbacks(model, progress_bar=False)
        if drawn:
            callbacks.add_callback(GANPlot(tmp_path / "made.png", num_samples=9, zoom=2, epoch_freq=2))
        model.fit(train, GANCost(), GradientDescentMomentum(0.05, 0), 4, callbacks)
        weights.append(list(model.get_weights().values()))
    assert all(map(np.array_equal, *weights))
    assert sorted(x.name for x in tmp_path.iterdir()) == ["made_1.png", "made_3.png"]
    seen, made = image.imread(tmp_path / "made_3.png")[:, :, 0], model.generate(9)
    assert seen.shape == (3 * 4 * 2, 3 * 4 * 2)
    for i in range(9):
        want = (made[i, 0] - made.min()) / (made.max() - made.min())
        part = seen[i // 3 * 8 :, i % 3 * 8 :][:8, :8]
        np.testing.assert_allclose(part, np.kron(want, np.ones((2, 2))), atol=0.01)
    with pytest.raises(ValueError, match="num_samples fill a square, 36 or 64; got 10"):
        GANPlot(tmp_path / "made.png", num_samples=10)
    colors = GANPlot(tmp_path / "made.png", zoom=1).dots(np.arange(4 * 3 * 2 * 5).reshape(4, 3, 2, 5))
    assert colors.shape == (4, 10, 3)
    assert colors[2, 5, 1] == pytest.approx((3 * 30 + 10) / 119)
    with pytest.raises(ValueError, match=r"images of 1 or 3 channels; the generator makes \(5,\)"):
        GANPlot(tmp_path / "made.png").dots(np.zeros((4, 5)))


def test_each_epoch_is_a_line_of_the_log(caplog):
    model = start()
    callbacks = Callbacks(model, eval_set=data(), metric=Accuracy(), progress_bar=False, log_token="run 7")
    with caplog.at_level(logging.INFO, logger="neonlite"):
        fit(model, callbacks, 2)
    names = ("cost, train", "cost, validation", "Accuracy")
    values = [[callbacks.history[name][epoch][1] for name in names] for epoch in (0, 1)]
    assert [(x.name, x.getMessage()) for x in caplog.records] == [
        ("neonlite", f"run 7 epoch {e}: cost, train {a:.6g}; cost, validation {b:.6g}; Accuracy {c:.6g}")
        for e, (a, b, c) in enumerate(values)
    ]


class Last(Callback):
    """Writes down that training ends before its time, and may fail at it."""

    def __init__(self, heard: list[str], word: str, turn: int, fails: bool = False) -> None:
        super().__init__()
        self.heard, self.word, self.turn, self.fails = heard, word, turn, fails

    def on_interrupt(self):
        self.heard.append(self.word)
        if self.fails:
            raise OSError(f"{self.word}: nobody reads on")


def test_all_hear_in_their_order_that_training_is_interrupted_also_when_some_fail(tmp_path):
    model, heard = start(), []
    callbacks = Callbacks(model, progress_bar=False, save_path=tmp_path / "m")
    for word, turn, fails in (("d", 3, True), ("a", 1, True), ("b", 1, False), ("c", 2, False), ("z", 9, True)):
        callbacks.add_callback(Last(heard, word, turn, fails))
    callbacks.add_callback(Stop(1, 2))
    with pytest.raises(OSError, match="a: nobody reads on") as error:
        fit(model, callbacks)
    assert heard == ["a", "b", "c", "d", "z"]
    assert isinstance(error.value.__context__, KeyboardInterrupt)  # what it ended for is not lost
    assert Model(tmp_path / "m").minibatch_index == 3


def test_two_ctrl_c_break_off_a_validation_and_no_training(tmp_path):
    def press(y, t, calcrange):
        if len(callbacks.history["cost, train"]) == 2 and not pressed:
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
    assert [at for at, _ in callbacks.history["cost, train"]] == [1, 2, 3]
    assert [at for at, _ in callbacks.history["ones"]] == [1, 3]  # it is not made up for


# --- the bar ---------------------------------------------------------------------------------------------------------

LEARN = """
import sys
sys.path.insert(0, TESTS)
from test_models import *
from neonlite.callbacks import Callback, Callbacks
model = start()
callbacks = Callbacks(model, eval_set=data(), metric=Accuracy())
callbacks.callbacks[3].update_thresh_s = 0
model.fit(data(), CrossEntropyMulti(), Adam(learning_rate=0.05), 3, callbacks)
""".replace("TESTS", repr(str(Path(__file__).parent)))


def screen(text: str) -> list[str]:
    """Return the lines that are seen when all is written: what comes after a carriage return is over what was there."""
    lines = []
    for line in text.replace("\r\n", "\n").split("\n"):
        seen = ""
        for part in line.split("\r"):
            seen = part + seen[len(part) :]
        lines.append(seen.rstrip())
    return [line for line in lines if line]


def on_a_terminal(width: int) -> str:
    """Return all that is written to a terminal, some characters wide."""
    fcntl, pty, termios = (pytest.importorskip(name) for name in ("fcntl", "pty", "termios"))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    run = subprocess.Popen([sys.executable, "-c", LEARN], stdout=theirs, stderr=theirs)
    os.close(theirs)
    found = b""
    with os.fdopen(ours, "rb", buffering=0) as file:
        try:
            while part := file.read(4096):
                found += part
        except OSError:  # how a terminal ends
            pass
    assert run.wait() == 0
    return found.decode()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_bar_grows_in_one_line_of_a_terminal(width):
    text = on_a_terminal(width)
    parts = [part.rstrip("\n") for part in text.split("\r")]
    assert max(map(len, parts)) < width
    assert len(parts) > 3 * 7  # it was drawn for each minibatch
    assert len({part.count("█") for part in parts}) > 5
    lines = screen(text)
    assert [line.split()[1] for line in lines] == ["0", "1", "2"]
    assert all("[Accuracy 0." in line and "validation 0." in line for line in lines)
    assert all(("7/7 batches" in line) == (width == 200) for line in lines[1:2])
    assert all(line.endswith("]") for line in lines)


class Terminal(io.StringIO):
    """Says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("arguments", "drawn"), [({}, 8), ({"minibatch_freq": 3}, 2), ({"update_thresh_s": 1e9}, 0)])
def test_the_bar_is_drawn_anew_as_often_as_it_is_told(arguments, drawn):
    model, out = start(), Terminal()
    callbacks = Callbacks(model, progress_bar=False)
    callbacks.add_callback(ProgressBar(file=out, **{"update_thresh_s": 0, **arguments}))
    fit(model, callbacks, 1)
    assert out.getvalue().count("\r") == drawn + 1


def test_the_bar_is_one_line_an_epoch_in_a_notebook():
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    cells = [LEARN, "print('after')", "callbacks.history", "import matplotlib; callbacks.history.plot()"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=60).execute()
    first, _, table, plot = ([dict(x) for x in cell.outputs] for cell in notebook.cells)
    assert {x["name"] for x in first} == {"stdout"}  # standard error is shown as if something was wrong
    text = "".join(x["text"] for x in first)
    assert text.count("\r") > 3 * 7  # it grows
    lines = screen(text)
    assert [line.split()[1] for line in lines] == ["0", "1", "2"]
    assert all("batches" in line and "[Accuracy 0." in line for line in lines)
    assert "<td>cost, train</td>" in table[0]["data"]["text/html"]
    assert "image/png" in plot[0]["data"]


def test_the_bar_is_printed_once_an_epoch_where_it_can_not_grow():
    model = start()
    callbacks, out = Callbacks(model, eval_set=data(), metric=Accuracy(), progress_bar=False), io.StringIO()
    callbacks.add_callback(ProgressBar(file=out), insert_pos=0)
    fit(model, callbacks)
    assert "\r" not in out.getvalue()
    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    for epoch, line in enumerate(lines):
        n = (8, 7, 8)[epoch]
        cost, loss, accuracy = (callbacks.history[x][epoch][1] for x in ("cost, train", "cost, validation", "Accuracy"))
        assert line.startswith(f"Epoch {epoch}   [Train |{'█' * 20}| {n}/{n} batches, {cost:.4g} cost, 0.")
        assert f"s] [cost, validation {loss:.4g}, 0." in line
        assert f"s] [Accuracy {accuracy:.4g}, 0." in line


def test_the_bar_of_an_epoch_that_is_interrupted_says_how_far_it_came():
    model, out = start(), io.StringIO()
    callbacks = Callbacks(model, progress_bar=False)
    callbacks.add_callback(ProgressBar(file=out))
    callbacks.add_callback(Stop(1, 2))
    with pytest.raises(KeyboardInterrupt):
        fit(model, callbacks)
    first, second = out.getvalue().splitlines()
    assert first.startswith("Epoch 0")
    assert second.startswith("Epoch 1")
    assert "| 3/7 batches, " in second


def test_the_bar_is_plain_where_blocks_can_not_be_written_and_takes_any_name():
    model = start()
    callbacks, out = Callbacks(model, progress_bar=False), io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    callbacks.add_callback(ProgressBar(file=out, epoch_freq=2))

    class Braces(Callback):
        def on_epoch_end(self, epoch):
            self.callbacks.history.note("{a} %s", epoch + 1, 1)

    callbacks.add_callback(Braces())
    fit(model, callbacks, 2)
    (line,) = out.buffer.getvalue().decode().splitlines()
    assert line.startswith(f"Epoch 1   [Train |{'#' * 20}| 7/7 batches")
    assert line.endswith("s] [{a} %s 1]")


# --- files -----------------------------------------------------------------------------------------------------------


def every_kind(model: Model, folder: Any, train: Any, stop: Any = None) -> Callbacks:
    """Callbacks of all kinds that have a state, the keepers first."""
    callbacks = Callbacks(model, train, eval_set=train, eval_freq=[0, 1, 3], progress_bar=False, minibatch_freq=3)
    callbacks.add_callback(SerializeModelCallback(folder / "m.neon", history=2), insert_pos=0)
    callbacks.add_callback(SaveBestState(folder / "best"), insert_pos=0)
    callbacks.add_early_stop_callback(lambda state, cost: ((cost, [1.5, state and state[0]]), False))
    callbacks.add_hist_callback()
    callbacks.add_callback(BatchNormTune())
    if stop:
        callbacks.add_callback(stop)
    return callbacks


@pytest.mark.parametrize("at", [(0, 0), (0, 7), (1, 3), (2, 0), (3, 6)])
def test_a_training_that_is_taken_up_leaves_the_same_files(tmp_path, at, monkeypatch):
    def new_process() -> None:  # in which names are counted from 0 again
        monkeypatch.setattr(description, "_counts", defaultdict(itertools.count))

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
        assert [x for x, _ in callbacks.history["cost, train"]] == [1, 2, 3, 4]
        assert [x for x, _ in callbacks.history["cost, validation"]] == [1, 2, 4]
    names = sorted(x.name for x in straight.iterdir())
    assert names == sorted(x.name for x in resumed.iterdir()) == ["best", "m.neon", "m_2.neon", "m_3.neon"]
    for name in names:
        assert (straight / name).read_bytes() == (resumed / name).read_bytes()


def test_a_file_has_all_notes_of_its_epoch_whatever_the_order(tmp_path):
    model = start()
    callbacks = Callbacks(model, eval_set=data(), progress_bar=False, save_path=tmp_path / "m")
    callbacks.callbacks.reverse()

    class Late(Callback):
        def on_epoch_end(self, epoch):
            self.callbacks.history.note("late", epoch + 1, epoch)

    callbacks.add_callback(Late())
    fit(model, callbacks, 2)
    again = Model(tmp_path / "m")
    other = Callbacks(again, eval_set=data(), progress_bar=False)
    fit(again, other, 2)  # nothing is left to do
    assert other.history.notes == callbacks.history.notes
    assert list(other.history.notes) == ["cost, validation", "cost, train", "late"]
    assert other.history.last("late") == 1


def test_states_are_taken_by_class_and_order():
    def judging(*stops: Any) -> Callbacks:
        callbacks = Callbacks(start(), eval_set=data(), progress_bar=False)
        for stop in stops:
            callbacks.add_early_stop_callback(stop)
        return callbacks

    saved = judging(lambda s, c: (c, False), lambda s, c: ((s or 0) + 1, False))
    fit(saved.model, saved, 2)
    state = json.loads(json.dumps(saved.get_state()))
    taken = judging(max, max, max)
    taken.callbacks.pop(0)  # TrainCost, which has a state in the file
    taken.set_state(state)
    stops = [x.state for x in taken.callbacks if isinstance(x, EarlyStop)]
    assert stops == [saved.history.last("cost, validation"), 2, None]
    assert taken.history.notes == saved.history.notes
    none = Callbacks(start(), progress_bar=False)
    none.set_state(state)
    assert none.history.notes == saved.history.notes


WRONG = {
    "no dict": [],
    "no history": {"callbacks": []},
    "no pairs": {"history": None, "callbacks": [1]},
    "no list": {"history": None, "callbacks": {}},
    "history": {"history": {"notes": 1}, "callbacks": []},
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_no_state_is_refused(kind):
    callbacks = Callbacks(start(), progress_bar=False)
    with pytest.raises(ValueError, match=r"the state of Callbacks is|a history is a dict"):
        callbacks.set_state(WRONG[kind])


@pytest.mark.parametrize(
    ("callback", "state"),
    [
        (TrainCost(), {"recent": ["x"]}),
        (TrainCost(), []),
        (EarlyStop(max), {"state": 1}),
        (SerializeModelCallback("m", history=2), 5),
        (SaveBestState("m"), "low"),
    ],
)
def test_what_is_no_state_of_a_callback_is_refused_by_its_name(callback, state):
    with pytest.raises(ValueError, match=f"{callback.classnm}: .* got "):
        callback.set_state(state)


def test_a_full_disk_ends_the_training_and_the_file_before_stays(tmp_path, monkeypatch):
    model, path = start(), tmp_path / "m"
    callbacks = Callbacks(model, eval_set=data(), progress_bar=False, save_path=path)
    callbacks.add_save_best_state_callback(tmp_path / "best")
    fit(model, callbacks, 1)
    before = {x: (tmp_path / x).read_bytes() for x in ("m", "best")}
    best = callbacks.callbacks[-1].best

    def full(file: int) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space"):
            fit(model, callbacks, 3)
    assert {x: (tmp_path / x).read_bytes() for x in before} == before
    assert callbacks.callbacks[-1].best == best
    fit(model, callbacks, 3)
    assert Model(path).epoch_index == 3
    assert (tmp_path / "best").read_bytes() != before["best"]


def test_judging_by_the_training_set_does_not_disturb_the_training():
    plain, judged, train = start(), None, data(shuffle=True)
    plain.fit(train, CrossEntropyMulti(), Adam(learning_rate=0.05), 3)
    judged, train = start(), data(shuffle=True)
    callbacks = Callbacks(judged, train, eval_set=train, metric=Accuracy(), progress_bar=False)
    judged.fit(train, CrossEntropyMulti(), Adam(learning_rate=0.05), 3, callbacks)
    assert same(plain.get_weights(), judged.get_weights())


# --- the end ---------------------------------------------------------------------------------------------------------


def test_early_stop_is_asked_where_there_is_a_cost_and_a_training_that_it_ended_stays_so(tmp_path):
    model, costs = start(), []

    def stop(state: Any, cost: float) -> Any:
        costs.append(cost)
        return [*(state or []), np.float32(cost)], len(costs) == 2

    def made(model: Model) -> Callbacks:
        callbacks = Callbacks(model, eval_set=data(), eval_freq=2, progress_bar=False, save_path=tmp_path / "m")
        callbacks.add_early_stop_callback(stop)
        return callbacks

    fit(model, callbacks := made(model), 10)
    assert model.epoch_index == 4
    assert costs == [cost for _, cost in callbacks.history["cost, validation"]]
    assert callbacks.callbacks[-1].state == pytest.approx(costs)
    again = Model(tmp_path / "m")
    fit(again, made(again), 10)
    assert again.epoch_index == 4
    fit(again, Callbacks(again, progress_bar=False), 5)
    assert again.epoch_index == 5


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ((object(), False), "the state that stop_func returned is .* which is no data"),
        (3.5, "stop_func returns .state, whether to stop.; got 3.5"),
    ],
)
def test_what_a_stop_function_returns_wrong_is_told(result, words):
    callbacks = Callbacks(start(), eval_set=data(), progress_bar=False)
    callbacks.add_early_stop_callback(lambda state, cost: result)
    with pytest.raises(TypeError, match=words):
        fit(callbacks.model, callbacks, 1)


# --- as data, and mistakes -------------------------------------------------------------------------------------------


def test_callbacks_are_told_as_data_and_made_of_it(tmp_path):
    pytest.importorskip("h5py")
    model = start()
    callbacks = Callbacks(
        model, eval_set=data(), eval_freq=2, metric=TopKMisclassification(2), save_path=tmp_path / "m", history=3,
        output_file=tmp_path / "h.h5", minibatch_freq=4,
    )  # fmt: skip
    callbacks.add_hist_callback(filter_key=["W", "dW"])
    callbacks.add_save_best_state_callback(tmp_path / "best")
    told = json.loads(json.dumps(callbacks.serialize()))
    made = Callbacks.load_callbacks(told, model, eval_set=data())
    assert made.serialize() == callbacks.serialize()
    assert [type(x) for x in made.callbacks] == [type(x) for x in callbacks.callbacks]
    made.callbacks = [x for x in made.callbacks if not isinstance(x, ProgressBar)]
    fit(model, made, 2)
    assert [at for at, _ in made.history["Top2Misclass"]] == [2]
    with pytest.raises(ValueError, match="told by the dict that serialize"):
        Callbacks.load_callbacks([], model)


VALID = "a validation set"
MISTAKES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "eval_freq alone": ({"eval_freq": 2}, ValueError, "eval_freq=2 says how often eval_set is judged; there is no"),
    "metric alone": ({"metric": Accuracy()}, ValueError, "judges eval_set; there is none"),
    "a class": (
        {"eval_set": VALID, "metric": Accuracy},
        ValueError,
        r"a metric is an object, Accuracy\(\); got the class",
    ),
    "no metric": ({"eval_set": VALID, "metric": "Accuracy"}, TypeError, r"such as Accuracy\(\), .*; got 'Accuracy'"),
    "never": ({"eval_set": VALID, "eval_freq": 0}, ValueError, "eval_freq is a whole number from 1; got 0"),
    "before": ({"eval_set": VALID, "eval_freq": -1}, ValueError, "eval_freq is a whole number from 1; got -1"),
    "half": ({"eval_set": VALID, "eval_freq": 0.5}, TypeError, "eval_freq is a whole number from 1; got 0.5"),
    "in a list": ({"eval_set": VALID, "eval_freq": [1, 2.5]}, TypeError, "eval_freq, in a list, is a whole .* got 2.5"),
    "no data": ({"eval_set": np.zeros(3)}, TypeError, "Loss: eval_set is a data set, such as ArrayIterator"),
    "no train data": ({"train_set": [1]}, TypeError, r"train_set is a data set.* got \[1\]"),
    "serialize": ({"serialize": -1, "save_path": "m"}, ValueError, "serialize is a whole number from 0; got -1"),
    "nowhere": ({"serialize": 1}, ValueError, "serialize=1 says how often the model is written: save_path=... says"),
    "no files": ({"save_path": "m", "history": 0}, ValueError, "history, .* is a whole number from 1; got 0"),
    "no folder": (
        {"save_path": "no/m"},
        FileNotFoundError,
        "save_path: no/m can not be written: there is no folder no",
    ),
    "a folder": ({"save_path": "."}, IsADirectoryError, "save_path is a file to be written; . is a folder"),
    "no folder for the history": ({"output_file": "no/h"}, FileNotFoundError, "output_file: no/h can not be written"),
    "no model file": ({"model_file": "no"}, FileNotFoundError, "no: there is no such file"),
    "a misspelled word": ({"eval_frq": 1}, TypeError, "unexpected keyword argument 'eval_frq'"),
    "minibatches": ({"minibatch_freq": -3}, ValueError, "minibatch_freq is a whole number from 0; got -3"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_mistakes_are_told_before_training(what):
    given, error, words = MISTAKES[what]
    model = start()
    if given.get("eval_set") is VALID:
        given = {**given, "eval_set": data()}
    with pytest.raises(error, match=words):
        Callbacks(model, **given)


def test_a_folder_that_is_read_only_is_told_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: not (Path(path) == tmp_path and mode == os.W_OK))
    with pytest.raises(PermissionError, match=f"save_path: {tmp_path}/m can not be written: .* is read-only for you"):
        Callbacks(start(), save_path=tmp_path / "m")


@pytest.mark.parametrize("kind", [np.int64, np.uint8, int])
def test_whole_numbers_may_be_those_of_numpy(kind):
    model = start()
    callbacks = Callbacks(model, eval_set=data(), eval_freq=kind(2), progress_bar=False)
    callbacks.add_callback(heard := Heard(epoch_freq=[kind(1)], minibatch_freq=kind(0)))
    fit(model, callbacks, kind(2))
    assert heard.heard == [("train", 2), ("epoch", 0), ("epoch", 1), "end"]
    assert type(heard.heard[0][1]) is int
    assert [at for at, _ in callbacks.history["cost, validation"]] == [2]


def test_a_gan_has_nothing_to_be_judged_by():
    model, train = adversaries()
    with pytest.raises(TypeError, match=r"a GAN is judged by what it makes: generate\(n\), GANCosts\(\)"):
        Callbacks(model, eval_set=train, progress_bar=False)


def test_more_mistakes_are_told_before_training(tmp_path, monkeypatch):
    model = start()
    with pytest.raises(TypeError, match=r"Callbacks\(model\): a Model; got 5"):
        Callbacks(5)
    callbacks = Callbacks(model, progress_bar=False)
    with pytest.raises(TypeError, match=r"takes an object of Callback; got .*: add_callback\(SaveBestState\(...\)\)"):
        callbacks.add_callback(SaveBestState)
    with pytest.raises(TypeError, match=r"EarlyStop: stop_func\(state, cost\) is a function; got 3"):
        callbacks.add_early_stop_callback(3)
    with pytest.raises(TypeError, match=r"filter_key is a list .*; got 'W'"):
        callbacks.add_hist_callback(filter_key="W")
    with pytest.raises(ValueError, match="MultiLabelStats: 3 classes take as many labels"):
        MultiLabelStats(data(), ["a"], PrecisionRecall(3))
    with pytest.raises(TypeError, match=r"MultiLabelStats takes PrecisionRecall\(1\); got "):
        MultiLabelStats(data(), ["a"], Accuracy())
    for callback in (SaveBestState(tmp_path / "x"), EarlyStop(max)):
        callbacks = Callbacks(model, progress_bar=False)
        callbacks.add_callback(callback)
        with pytest.raises(ValueError, match=f"{callback.classnm} goes by the cost of a validation set"):
            fit(model, callbacks, 1)
    assert model.epoch_index == 0
    with pytest.raises(RuntimeError, match="model has no cost yet"):
        start().eval_cost(data())
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match=r'pip install "neonlite\[hdf5\]"'):
        Callbacks(model, output_file=tmp_path / "h.h5")
