"""Training that resumes from a checkpoint, and checkpoints of an earlier version."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.checkpoint_files import assert_rejected, drop, full_state, put, trained, write_changed
from helpers.parametrize import each
from helpers.small_models import CLASSES, Interrupting, blobs, data, network, same, start

from neonlite import gen_backend
from neonlite.backend.objects import Serializable, find_class
from neonlite.callbacks import CallbackBase, EarlyStop
from neonlite.data import ArrayIterator
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import Affine, Dropout, Linear
from neonlite.models import CheckpointError, Model
from neonlite.models.training_state import read_checkpoint
from neonlite.optimizers import Adam, GradientDescentMomentum, MultiOptimizer, PowerSchedule
from neonlite.transforms import CrossEntropyMulti, Rectlin, Softmax

# --- resuming --------------------------------------------------------------------------------------------------------


class SavesEvents(CallbackBase):
    """Saves the events that it receives; set_state comes before on_train_begin."""

    def __init__(self, recorded: Any = None) -> None:
        self.recorded = recorded or []

    def on_train_begin(self, epochs):
        self.recorded.append("begin")

    def on_epoch_end(self, epoch):
        self.recorded.append(epoch)

    def get_state(self):
        return {"recorded": list(self.recorded)}

    def set_state(self, state):
        if not isinstance(state, dict) or state.keys() != {"recorded"}:
            raise ValueError(f"expected a dict with recorded, got {state!r}")
        self.recorded = state["recorded"]


def train(model: Model, epochs: int, run_callbacks: CallbackBase | None = None) -> CallbackBase:
    run_callbacks = run_callbacks or SavesEvents()
    model.fit(data(shuffle=True), CrossEntropyMulti(), model.optimizer or Adam(), epochs, run_callbacks)
    return run_callbacks


def test_the_state_of_callbacks_is_resumed_from_a_checkpoint(tmp_path):
    model = start()
    train(model, 2)
    model.save_params(tmp_path / "m")
    filled = start()
    filled.load_params(tmp_path / "m")
    for created in (filled, Model(tmp_path / "m")):
        assert created.callbacks_state == {"recorded": ["begin", 0, 1]}
        assert train(created, 3).recorded == ["begin", 0, 1, "begin", 2]
        assert train(created, 4).recorded == ["begin", 3]  # the next one has no state


def test_a_loaded_model_saves_the_state_of_the_callbacks_again(tmp_path):
    model = start()
    train(model, 2)
    model.save_params(tmp_path / "m")
    again = Model(tmp_path / "m")
    again.save_params(tmp_path / "n")
    assert (tmp_path / "n").read_bytes() == (tmp_path / "m").read_bytes()
    model.load_params(tmp_path / "n")  # replaces the state of the callbacks
    train(model, 3, SavesEvents(["other"]))
    assert model.callbacks_state == {"recorded": ["begin", 0, 1, "begin", 2]}
    Model(tmp_path / "m", weights_only=True).save_params(tmp_path / "w")
    assert read_checkpoint(tmp_path / "w")[0]["training"]["callbacks"] is None


def test_an_interrupted_training_ends_with_the_same_file(tmp_path):
    first = start()
    first.initialize(data())
    first.save_params(tmp_path / "first")  # default names differ between networks
    uninterrupted = Model(tmp_path / "first")
    train(uninterrupted, 3, SavesEpochsOnly())
    uninterrupted.save_params(tmp_path / "straight")
    stopped = Model(tmp_path / "first")
    with pytest.raises(KeyboardInterrupt):
        train(stopped, 3, Stopping(stopped, 9, tmp_path / "m"))
    gen_backend("cpu", rng_seed=99, batch_size=8)
    again = Model(tmp_path / "m")
    train(again, 3, SavesEpochsOnly())
    again.save_params(tmp_path / "again")
    assert again.callbacks_state == {"recorded": [0, 1, 2]}
    assert (tmp_path / "again").read_bytes() == (tmp_path / "straight").read_bytes()


class SavesEpochsOnly(SavesEvents):
    """Does not save when training started."""

    def on_train_begin(self, epochs):
        pass


class Stopping(Interrupting, SavesEpochsOnly):
    """Interrupts within a step, and saves the model after it."""

    def __init__(self, model, at, path):
        Interrupting.__init__(self, model, at)
        SavesEpochsOnly.__init__(self)
        self.path = path

    def on_interrupt(self):
        self.model.save_params(self.path)


@pytest.mark.parametrize("at", [1, 2])
def test_an_optimizer_like_that_of_the_file_continues_from_its_state(tmp_path, at):
    def fit(model: Model, epochs: int) -> Any:
        optimizer = Adam(learning_rate=0.05)
        model.fit(data(shuffle=True), CrossEntropyMulti(), optimizer, epochs)
        assert model.optimizer is optimizer
        return model.get_weights(), optimizer.t

    expected = fit(start(), 3)
    stopped = start()
    fit(stopped, at)
    stopped.save_params(tmp_path / "m")
    model = Model(tmp_path / "m")
    weights, t = fit(model, 3)
    assert same(weights, expected[0])
    assert t == expected[1]
    assert fit(model, 4)[1] == t + -(-t // 3)  # a later one continues as well


@pytest.mark.parametrize("names", [[None] * 3, ["out", "drop", "hidden"], ["a.b", "c/0/1", "d"]], ids=str)
def test_layers_with_other_names_are_matched_by_order(tmp_path, names):
    def train(model: Model, epochs: int, optimizer: Any = None) -> Any:
        model.fit(data(shuffle=True), CrossEntropyMulti(), optimizer or model.optimizer, epochs)
        return list(model.get_weights().values())

    def named(first: Any, second: Any, third: Any) -> Model:
        return Model([
            Affine(8, Gaussian(scale=0.5), bias=Constant(0), activation=Rectlin(), name=first),
            Dropout(0.9, name=second),
            Affine(CLASSES, Gaussian(scale=0.5), activation=Softmax(), name=third),
        ])  # fmt: skip

    uninterrupted = start()
    expected = train(uninterrupted, 3, Adam())
    stopped = start()
    train(stopped, 2, Adam())
    stopped.save_params(tmp_path / "m")
    model = named(*names)
    model.load_params(tmp_path / "m")
    assert all(map(np.array_equal, train(model, 3), expected))
    restored = named(*names)
    restored.load_params(tmp_path / "m", load_states=False)
    assert all(map(np.array_equal, restored.get_weights().values(), stopped.get_weights().values()))


def test_layers_with_the_same_names_are_matched_by_name_and_others_by_type(tmp_path):
    class Other(Linear):
        """Another kind of layer, whose weights have the same shape."""

    gen_backend("cpu", rng_seed=1, batch_size=8)
    model, swapped = (Model([Linear(2, Gaussian(), name=name) for name in names]) for names in ("ab", "ba"))
    model.initialize(2)
    model.save_params(tmp_path / "m")
    swapped.load_params(tmp_path / "m")
    assert same(swapped.get_weights(), model.get_weights())
    another = Model([Linear(2, Gaussian()), Other(2, Gaussian())])
    with pytest.raises(CheckpointError, match=r"weights: .* expected weights that fit the layers"):
        another.load_params(tmp_path / "m")


def test_resuming_with_other_data_is_an_error_with_a_hint(tmp_path, valid_file):
    (tmp_path / "m").write_bytes(valid_file)
    gen_backend("cpu", rng_seed=1, batch_size=8)
    X, y = blobs(40)
    other = ArrayIterator(X, y, nclass=CLASSES)
    with pytest.raises(CheckpointError, match=r"ndata = 60, here 40; .*use Model\(path, weights_only=True\)"):
        Model(tmp_path / "m").fit(other, CrossEntropyMulti(), Adam(), 1)
    model = Model(tmp_path / "m", weights_only=True)
    model.fit(other, CrossEntropyMulti(), Adam(), 1)
    assert model.epoch_index == 1


def test_a_file_without_a_state_of_callbacks_is_loaded(tmp_path, valid_file):
    gen_backend("cpu", rng_seed=1, batch_size=8)
    model = Model(write_changed(valid_file, tmp_path / "m", drop("training", "callbacks")))
    assert train(model, 1).recorded == ["begin", 0]


STATES: dict[str, tuple[Any, str]] = {
    "of other callbacks": (
        put("training", "callbacks", value=[1]),
        "m: training.callbacks: expected a dict with recorded",
    ),
    "of data of another size": (put("training", "data", "ndata", value=61), "m: training.data: blobs: .*ndata = 61"),
    "of data without a seed": (put("training", "data", "seed", value=None), "m: training.data: .*seed = None"),
    "of other data": (put("training", "data", value={}), "m: training.data: blobs: expected the state to be the dict"),
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_of_another_object_is_rejected_by_fit_and_nothing_is_trained(tmp_path, valid_file, name):
    change, messages = STATES[name]
    gen_backend("cpu", rng_seed=1, batch_size=8)
    model = Model(write_changed(valid_file, tmp_path / "m", change))
    before = full_state(model)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=messages):
            train(model, 1)
        assert full_state(model) == before


def test_states_of_several_optimizers_are_saved(tmp_path):
    rates = PowerSchedule(1, 0.5)
    model = trained(MultiOptimizer({"default": Adam(), "Bias": GradientDescentMomentum(0.1, 0.9, schedule=rates)}))
    model.save_params(tmp_path / "m")
    again = Model(tmp_path / "m")
    assert full_state(again) == full_state(model)
    wrong = write_changed((tmp_path / "m").read_bytes(), tmp_path / "w", drop("training", "optimizer_state", "Bias"))
    assert_rejected(model, wrong, "training.optimizer_state: expected a dict with default, Bias")


def test_the_compatibility_mode_is_saved_with_the_network(tmp_path):
    X = np.ones((8, 2), np.float32)
    outputs = []
    for mode in (None, "caffe"):
        gen_backend("cpu", rng_seed=1, batch_size=8, compat_mode=mode)
        model = Model(network())
        model.initialize(2)
        model.save_params(tmp_path / f"{mode}")
        outputs.append(model.predict(X))
    assert not np.array_equal(*outputs)
    for mode, expected in zip((None, "caffe"), outputs, strict=True):
        gen_backend("cpu", rng_seed=1, batch_size=8, compat_mode="caffe" if mode is None else None)
        assert np.array_equal(Model(tmp_path / f"{mode}").predict(X), expected)


# --- files of an earlier version, which name modules that have moved since --------------------------------------------


SAVED = json.loads((Path(__file__).parent / "saved_types.json").read_text(encoding="utf-8"))


def subclasses(cls: type) -> set[type]:
    """Return all classes of the package that are derived from a class."""
    return {x for sub in cls.__subclasses__() for x in (sub, *subclasses(sub)) if x.__module__.startswith("neonlite.")}


def test_every_class_that_a_saved_file_may_name_is_found_whatever_its_module():
    for path in SAVED["types"]:
        name = path.rpartition(".")[2]
        for written in (path, f"neonlite.moved.{name}", f"neon.layers.{name}", name):
            found = find_class(written)
            assert (found.__name__, found.__module__[:9]) == (name, "neonlite.")


def test_no_two_classes_of_the_package_have_one_name():
    def is_of_package(cls):
        module = sys.modules.get(cls.__module__)  # that of a doctest does not have its classes
        return cls.__module__.startswith("neonlite.") and getattr(module, cls.__name__, None) is cls

    names = Counter(cls.__name__ for cls in subclasses(Serializable) if is_of_package(cls))
    assert {"Linear", "Adam", "Model"} <= names.keys()
    assert [name for name, n in names.items() if n > 1] == []


@each("description", SAVED["objects"])
def test_an_object_of_a_saved_file_is_created_with_all_its_settings(cpu, description):
    def has(value: Any, saved: Any) -> bool:
        """Return whether a description has the saved settings; it may have new ones, and names modules of today."""
        if isinstance(saved, list):
            return len(value) == len(saved) and all(map(has, value, saved))
        if not isinstance(saved, dict):
            return bool(value == saved)
        if {"type", "config"} <= saved.keys():
            saved, value = ({**x, "type": x["type"].rpartition(".")[2]} for x in (saved, value))
        return all(key in value and has(value[key], x) for key, x in saved.items())

    again = Serializable.recursive_gen(description)
    assert has(json.loads(json.dumps(again.get_description())), description)


def test_a_saved_model_predicts_the_same_and_continues_its_training(cpu):
    saved = SAVED["model"]
    arrays = {name: np.array(values, dtype) for name, (dtype, values) in saved["arrays"].items()}
    model = Model({**saved["description"], "arrays": arrays})
    np.testing.assert_allclose(model.predict(saved["X"]), saved["outputs"], rtol=1e-5)
    assert (model.epoch_index, type(model.optimizer), type(model.optimizer.schedule)) == (2, Adam, PowerSchedule)
    stop = EarlyStop(9, monitor="loss")
    history = model.fit(saved["X"], ["x", "y", "y", "x"], epochs=1, batch_size=2, callbacks=[stop], progress_bar=False)
    assert (len(history["loss"]), stop.best <= 0.8338560163974762) == (3, True)
