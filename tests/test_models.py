"""A model learns, judges, stops where it should, and goes on from a file with the same bits."""

from __future__ import annotations

import json
import os
import signal
import threading
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from neonlite import gen_backend
from neonlite.callbacks import Listener
from neonlite.data import ArrayIterator
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import Affine, Dropout, GeneralizedCost, Linear
from neonlite.models import CheckpointError, Model
from neonlite.optimizers import Adam, GradientDescentMomentum
from neonlite.transforms import Accuracy, CrossEntropyMulti, MeanSquared, Misclassification, Rectlin, Softmax

CLASSES = 3


def blobs(n: int = 60, seed: int = 0) -> tuple[Any, Any]:
    """Points around the corners of a triangle, and which corner it is."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, n)
    corners = np.array([[0, 0], [3, 0], [0, 3]])
    return (corners[y] + rng.normal(scale=0.5, size=(n, 2))).astype(np.float32), y


def network() -> list[Any]:
    return [
        Affine(8, Gaussian(scale=0.5), bias=Constant(0), activation=Rectlin(), name="hidden"),
        Dropout(0.9, name="drop"),
        Affine(CLASSES, Gaussian(scale=0.5), activation=Softmax(), name="out"),
    ]


def data(**more: Any) -> ArrayIterator:
    X, y = blobs()
    return ArrayIterator(X, y, nclass=CLASSES, name="blobs", **more)


def start(runtime: str = "cpu", batch_size: int = 8) -> Model:
    gen_backend(runtime, rng_seed=7, batch_size=batch_size)
    return Model(network())


def same(a: Any, b: Any) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


# --- learning --------------------------------------------------------------------------------------------------------


def test_a_model_learns_and_is_judged(be):
    be.bsz = 8
    model, train = Model(network()), data(shuffle=True)
    model.initialize(train)
    before = model.eval(train, Accuracy())[0]
    model.fit(train, CrossEntropyMulti(), Adam(learning_rate=0.05), num_epochs=15)
    assert model.eval(train, Accuracy())[0] > max(before, 0.9)
    assert model.epoch_index == 15
    assert model.total_cost < 0.4


def test_a_second_fit_goes_on_with_the_next_epoch(cpu):
    cpu.bsz = 8
    whole, parts = [], []
    for found, ends in ((whole, [4]), (parts, [1, 2, 4])):
        model = start()
        train, cost, optimizer = data(shuffle=True), CrossEntropyMulti(), Adam(learning_rate=0.05)
        for end in ends:
            model.fit(train, cost, optimizer, num_epochs=end)
        found.append(model.get_weights())
    assert same(whole[0], parts[0])


@pytest.mark.parametrize("ragged", [True, False])
def test_each_row_counts_once(ragged):
    gen_backend("cpu", rng_seed=1, batch_size=7)
    model, sets = Model(network()), data(ragged=ragged)
    model.initialize(sets)
    X, y = blobs()
    right = model.predict(X).argmax(axis=1) == y
    assert model.eval(sets, Misclassification())[0] == pytest.approx(1 - right.mean())
    assert np.array_equal(model.get_outputs(sets), model.predict(X))
    assert model.be.bsz == 7


def test_a_narrow_last_minibatch_is_learned_from():
    be = gen_backend("cpu", rng_seed=1, batch_size=7)
    model = Model([Linear(CLASSES, Gaussian(), name="lin")])
    model.fit(data(ragged=True), MeanSquared(), GradientDescentMomentum(0.01, 0.0), num_epochs=1)
    X, y = blobs()
    by_hand = Model([Linear(CLASSES, Gaussian(), name="lin")])
    by_hand.be.rng_reset()
    by_hand.initialize(2)
    w = by_hand.get_weights()["lin.W"].astype(np.float64)
    for i in range(0, len(X), 7):
        x, t = X[i : i + 7].T, np.eye(CLASSES)[:, y[i : i + 7]]
        w -= 0.01 * ((w @ x - t) / CLASSES) @ x.T / x.shape[1]
    np.testing.assert_allclose(model.get_weights()["lin.W"], w, rtol=1e-4, atol=1e-5)
    assert be.bsz == 7


def test_the_mean_cost_of_an_epoch_is_that_of_its_minibatches():
    model = start()
    costs = []

    class Noting(Listener):
        def on_minibatch_end(self, epoch, minibatch):
            costs.append(float(model.cost.cost.item()))

    model.fit(data(), CrossEntropyMulti(), Adam(), 1, callbacks=Noting())
    assert model.total_cost == pytest.approx(np.mean(costs), rel=1e-6)


# --- stopping --------------------------------------------------------------------------------------------------------


class Interrupting(Listener):
    """Sends Ctrl-C in the middle of a step, and notes the weights behind it."""

    def __init__(self, model: Model, at: int) -> None:
        self.model, self.at, self.step = model, at, 0
        self.ended = False

    def on_minibatch_begin(self, epoch, minibatch):
        if self.step == self.at:
            os.kill(os.getpid(), signal.SIGINT)
        self.step += 1

    def on_interrupt(self):
        self.ended = True


@pytest.mark.parametrize("at", [0, 1, 6, 7, 8, 17])
def test_ctrl_c_ends_behind_a_whole_step_and_fit_goes_on(at):
    straight = start()
    straight.fit(data(shuffle=True), CrossEntropyMulti(), Adam(learning_rate=0.05), 3)
    model = start()
    train, optimizer = data(shuffle=True), Adam(learning_rate=0.05)
    stop = Interrupting(model, at)
    with pytest.raises(KeyboardInterrupt):
        model.fit(train, CrossEntropyMulti(), optimizer, 3, callbacks=stop)
    assert stop.ended
    assert stop.step == at + 1  # the step that was under way was done
    assert optimizer.t == at + 1
    model.fit(train, CrossEntropyMulti(), optimizer, 3)
    assert same(model.get_weights(), straight.get_weights())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_step_that_fails_is_left_out_and_comes_again():
    straight = start()
    straight.fit(data(shuffle=True), CrossEntropyMulti(), GradientDescentMomentum(0.1, 0.5), 2)
    model = start()
    model.initialize(data())
    train, optimizer, real = data(shuffle=True), GradientDescentMomentum(0.1, 0.5), model.layers.fprop
    calls = []

    def failing(x: Any, inference: bool = False) -> Any:
        calls.append(x)
        if len(calls) == 5:
            raise RuntimeError("the cable was pulled")
        return real(x, inference)

    model.layers.fprop = failing
    with pytest.raises(RuntimeError, match="cable"):
        model.fit(train, CrossEntropyMulti(), optimizer, 2)
    assert model.minibatch_index == 4
    model.fit(train, CrossEntropyMulti(), optimizer, 2)
    assert same(model.get_weights(), straight.get_weights())


def test_fit_works_outside_the_main_thread():
    model = start()
    worker = threading.Thread(
        target=lambda: model.fit(data(), CrossEntropyMulti(), GradientDescentMomentum(0.1, 0), num_epochs=1)
    )
    worker.start()
    worker.join()
    assert model.epoch_index == 1


# --- keeping ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 3, 7, 12])
def test_training_goes_on_from_a_file_with_the_same_bits(tmp_path, at):
    path = tmp_path / "model.neon"

    class Saving(Interrupting):
        def on_interrupt(self):
            self.model.save_params(path)

    straight = start()
    straight.fit(data(shuffle=True), CrossEntropyMulti(), Adam(learning_rate=0.05), 3)
    first = start()
    with pytest.raises(KeyboardInterrupt):
        first.fit(data(shuffle=True), CrossEntropyMulti(), Adam(learning_rate=0.05), 3, callbacks=Saving(first, at))

    gen_backend("cpu", rng_seed=99, batch_size=8)  # another process, and another seed
    model = Model(network())
    model.load_params(path)
    model.fit(data(shuffle=True), CrossEntropyMulti(), model.optimizer, 3)
    assert same(model.get_weights(), straight.get_weights())
    assert model.total_cost == straight.total_cost


def test_a_model_is_made_from_its_file_alone(tmp_path, be):
    be.bsz = 8
    model = Model(network())
    model.fit(data(), GeneralizedCost(CrossEntropyMulti()), Adam(learning_rate=0.05), 2)
    model.save_params(tmp_path / "m")
    again = Model(tmp_path / "m")
    assert str(again) == str(model)
    assert again.epoch_index == 2
    X, _ = blobs()
    assert np.array_equal(again.predict(X), model.predict(X))


def test_weights_alone_are_kept_and_taken(tmp_path):
    model = start()
    model.fit(data(), CrossEntropyMulti(), Adam(), 1)
    model.save_params(tmp_path / "m", keep_states=False)
    other = start()
    other.load_params(tmp_path / "m")
    assert same(other.get_weights(), model.get_weights())
    assert (other.epoch_index, other.optimizer) == (0, None)
    third = start()
    model.save_params(tmp_path / "all")
    third.load_params(tmp_path / "all", load_states=False)
    assert third.epoch_index == 0


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    model = start()
    model.initialize(data())
    path = tmp_path / "m"
    model.save_params(path)
    before = path.read_bytes()
    model.layers.layers[0].W[:] = 5

    def full(file: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        model.save_params(path)
    assert path.read_bytes() == before
    monkeypatch.undo()
    model.save_params(path)
    assert path.read_bytes() != before
    assert sorted(x.name for x in tmp_path.iterdir()) == ["m"]  # what was left over was used


def changed(path: Any, change: Any) -> None:
    """Change the description in a file."""
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
    description = json.loads(metadata["neonlite 1"])
    change(description)
    save_file(load_file(path), path, {"neonlite 1": json.dumps(description)})


MISTAKES = {
    "layers": lambda d: d.pop("layers"),
    "layers ": lambda d: d["layers"].update(type="os.system"),
    "in_shape": lambda d: d.update(in_shape="2"),
    "training.epoch_index": lambda d: d["training"].update(epoch_index="1"),
    "training.rng_state": lambda d: d["training"].update(rng_state=[1]),
    "training.optimizer": lambda d: d["training"].update(optimizer={"type": "subprocess.Popen", "config": {}}),
    "training.optimizer_state": lambda d: d["training"].update(optimizer_state={}),
}


@pytest.mark.parametrize("field", MISTAKES)
def test_a_file_with_a_wrong_field_is_refused_and_nothing_is_changed(tmp_path, field):
    path = tmp_path / "m"
    model = start()
    model.fit(data(), CrossEntropyMulti(), Adam(), 1)
    model.save_params(path)
    changed(path, MISTAKES[field])
    other = start()
    other.initialize(data())
    weights, state = other.get_weights(), other.be.rng_get_state()
    act = Model if field.strip() in ("layers", "in_shape") else other.load_params
    with pytest.raises(CheckpointError, match=rf"m: .*{field.strip().rpartition('.')[2]}"):
        act(path)
    assert same(other.get_weights(), weights)
    assert other.be.rng_get_state() == state
    assert other.epoch_index == 0


def test_what_is_no_checkpoint_is_named(tmp_path):
    model = start()
    model.fit(data(), CrossEntropyMulti(), Adam(), 1)
    model.save_params(tmp_path / "good")
    whole = (tmp_path / "good").read_bytes()
    bad = {
        "empty": b"",
        "short": whole[: len(whole) // 2],
        "header": whole[:20],
        "pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}\x94.",
        "zip": b"PK\x03\x04" + bytes(100),
        "html": b"<html><body>404</body></html>",
        "huge": (2**60).to_bytes(8, "little") + b"{}",
    }
    for name, content in bad.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CheckpointError, match=rf"{name}: .*it is no checkpoint"):
            model.load_params(tmp_path / name)
    save_file({"x": np.zeros(3)}, tmp_path / "other")
    with pytest.raises(CheckpointError, match="other: it says nothing of itself, and not 'neonlite 1'"):
        Model(tmp_path / "other")
    with pytest.raises(FileNotFoundError, match="nowhere: there is no such file"):
        Model(tmp_path / "nowhere")


def test_weights_of_another_network_are_told_in_a_table(tmp_path):
    model = start()
    model.fit(data(), CrossEntropyMulti(), Adam(), 1)
    model.save_params(tmp_path / "m")
    other = Model([Affine(5, Gaussian(), name="hidden"), Affine(CLASSES, Gaussian(), name="new")])
    other.initialize(2)
    before = other.get_weights()
    with pytest.raises(CheckpointError, match=r"(?s)m: .*hidden.*\(5, 2\).*\(8, 2\).*new.*nothing"):
        other.load_params(tmp_path / "m", load_states=False)
    assert same(other.get_weights(), before)
