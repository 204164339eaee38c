"""Checkpoints of networks of every layer and of the zoo load in a new process, and as weights of a new network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neonlite import layers
from neonlite.layers import Convolution_bias, Layer
from neonlite.models import Model, zoo
from tests.helpers import saved_networks
from tests.helpers.saved_networks import NETWORKS, create, inputs, use

ABSTRACT = {"Layer", "LayerContainer", "ParameterLayer", "CompoundLayer"}
ELSEWHERE = {  # tests with their inputs are in the files of these layers
    "DataTransform": "a function, which cannot be saved",
    "RoiPooling": "inputs of two kinds",
    "SkipThought": "test_seq2seq_skipthought.py",
    "SingleOutputTree": "a Tree",
    "QuantizedLinear": "test_model_quantized.py",
    "QuantizedConvolution": "test_model_quantized.py",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: Any) -> dict[str, tuple[list[Any], list[Any]]]:
    """Return for each network what the model that was saved, and that of a new process, computes."""
    folder: Path = tmp_path_factory.mktemp("networks")
    here = {}
    for name in NETWORKS:
        model = create(name)
        model.save_params(folder / f"{name}.neon")
        here[name] = use(model, NETWORKS[name][1])
    subprocess.run([sys.executable, saved_networks.__file__, str(folder)], check=True, timeout=300)
    there = {name: list(np.load(folder / f"{name}.npz").values()) for name in NETWORKS}
    return {name: (here[name], there[name]) for name in NETWORKS}


@pytest.mark.long
@pytest.mark.parametrize("name", NETWORKS)
def test_a_new_process_predicts_and_continues_training_to_the_same_bits(results, name):
    here, there = results[name]
    assert len(here) == len(there) > 1
    for x, y in zip(here, there, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.long
def test_every_layer_and_every_network_of_the_zoo_is_among_them():
    used = {type(x).__name__ for name in NETWORKS for _, x in layers.summary.walk_layers(create(name).layers)}
    public = {x for x in layers.__all__ if isinstance(cls := getattr(layers, x), type) and issubclass(cls, Layer)}
    assert public - ABSTRACT - set(ELSEWHERE) <= used
    assert {f"zoo.{name}" for name in zoo.MODELS} <= set(NETWORKS)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_new_network_takes_the_weights(name):
    make, shape = NETWORKS[name]
    model = create(name)
    other = Model(make())
    other.load_params(model.serialize())
    x = inputs(model.be, shape, np.random.default_rng(2))
    for got, want in zip(saved_networks.flat(other(x)), saved_networks.flat(model(x)), strict=True):
        np.testing.assert_array_equal(got.get(), want.get())


def test_parameters_before_configure_are_none():
    layer = Convolution_bias((3, 3, 4), bias="zeros")
    assert layer.parameters == [None, None]
    assert not layer.is_allocated
    assert layer.parameter_specs()[1].shape == (4, 1)
