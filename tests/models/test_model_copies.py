"""Copies and pickles of models."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.small_models import data, network, same, start

import neonlite as nl
from neonlite.layers import Affine, GenerativeAdversarial, Linear
from neonlite.models import GAN, Model
from neonlite.optimizers import Adam
from neonlite.transforms import CrossEntropyMulti

COPIES = {
    "copy method": Model.copy,
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
}
every_copy = pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)


@every_copy
def test_a_copy_predicts_the_same_and_is_independent(duplicate):
    model = start()
    model.fit(data(), CrossEntropyMulti(), Adam(), num_epochs=1)
    model.metadata = {"classes": ["a", "b", "c"]}
    x = np.ones((5, 2), np.float32)
    before, weights = model.predict(x), model.get_weights()
    other = duplicate(model)
    assert type(other) is Model
    assert (other.name, other.metadata, other.epoch_index) == (model.name, model.metadata, 1)
    np.testing.assert_array_equal(other.predict(x), before)
    other.layers["hidden"].W[:] = 0
    other.metadata["classes"].append("d")
    assert same(model.get_weights(), weights)
    assert len(model.metadata["classes"]) == 3


@every_copy
def test_a_copy_continues_the_training_with_the_same_bits(duplicate):
    model = start()
    model.fit(data(), CrossEntropyMulti(), Adam(), num_epochs=3)
    expected = model.get_weights()
    model = start()
    model.fit(data(), CrossEntropyMulti(), Adam(), num_epochs=1)
    model = duplicate(model)
    model.fit(data(), CrossEntropyMulti(), Adam(), num_epochs=3)
    assert same(model.get_weights(), expected)


def test_copying_does_not_change_the_random_streams():
    model = start()
    model.initialize(2)
    state = model.be.rng_get_state()
    model.copy()
    assert model.be.rng_get_state() == state


@every_copy
def test_a_model_that_is_not_configured_can_be_copied(duplicate):
    model = Model(network(), name="net", optimizer="adam")
    model.metadata = {"a": [1]}
    other = duplicate(model)
    assert other.name == "net"
    assert str(other) == str(model)
    assert other["hidden"] is not model["hidden"]
    assert other.optimizer is not model.optimizer
    assert (type(other.optimizer), other.metadata) == (Adam, {"a": [1]})
    assert other.metadata["a"] is not model.metadata["a"]


@every_copy
def test_a_gan_is_copied_with_its_settings(duplicate):
    nl.gen_backend("cpu", rng_seed=0, batch_size=4)
    layers = GenerativeAdversarial([Affine(3, name="gen")], [Affine(1, activation="sigmoid", name="dis")])
    model = GAN(layers, noise_dim=2, noise_type="uniform", k=2, wgan_param_clamp=0.5)
    model.initialize(3)
    other = duplicate(model)
    assert type(other) is GAN
    assert other.resume_settings == model.resume_settings
    assert same(other.get_weights(), model.get_weights())


class Tagged(Model):
    def __init__(self, layers: Any, tag: str = "a", **options: Any) -> None:
        super().__init__(layers, **options)
        self.tag = tag


class Fixed(Model):
    def __init__(self, width: int) -> None:
        super().__init__([Linear(width)])
        self.width = width


@every_copy
def test_a_subclass_is_copied_with_the_arguments_that_it_stores(duplicate):
    model = Tagged([Linear(2)], tag="b")
    for size in (None, 3):
        if size:
            model.be.bsz = 2
            model.initialize(size)
        assert type(duplicate(model)) is Tagged
        assert duplicate(model).tag == "b"


@every_copy
def test_a_subclass_without_the_argument_layers_is_refused_with_the_way_out(duplicate):
    with pytest.raises(TypeError, match=r"constructor of Fixed with the argument layers, .* Override __reduce__"):
        duplicate(Fixed(2))


def test_a_pickle_is_loaded_in_a_process_without_a_backend(tmp_path):
    model = start()
    model.initialize(2)
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(model))
    code = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb'))['hidden'].W.get().tolist())"
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model.pickle")],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(nl.__file__).parent.parent,
    )
    assert run.stdout.strip() == str(model["hidden"].W.get().tolist())


def test_a_model_with_a_function_cannot_be_pickled_and_the_error_names_it():
    model = start()
    model.initialize(2)
    model.metadata = {"f": print}
    with pytest.raises(TypeError):
        pickle.dumps(model)
