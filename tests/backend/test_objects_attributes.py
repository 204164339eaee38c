"""Setting an attribute that a built-in object does not have is an error; objects of custom classes get any."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import neonlite as nl
from neonlite.backend.objects import assigned_names
from neonlite.callbacks import EarlyStop
from neonlite.data import ArrayIterator
from neonlite.initializers import Gaussian
from neonlite.layers import LSTM, Activation, Affine, Conv, DeepBiLSTM, GeneralizedCost, Layer, Linear, Sequential
from neonlite.optimizers import Adam
from neonlite.transforms import Accuracy, MeanSquared, Rectlin

OBJECTS: dict[str, Any] = {
    "layer": lambda: Linear(3),
    "activation layer": lambda: Activation("relu"),
    "convolution": lambda: Conv((3, 3, 2))[0],
    "container": lambda: Sequential([Linear(3)]),
    "optimizer": Adam,
    "cost": MeanSquared,
    "cost layer": lambda: GeneralizedCost(MeanSquared()),
    "metric": Accuracy,
    "transform": Rectlin,
    "initializer": Gaussian,
    "model": lambda: nl.Model([Linear(3)]),
    "data": lambda: ArrayIterator([[1.0], [2.0]], y=[0, 1], nclass=2),
    "callback": lambda: EarlyStop(),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_an_unknown_attribute_is_an_error_that_names_the_class(kind, be_of_four):
    x = OBJECTS[kind]()
    with pytest.raises(AttributeError, match=f"expected an attribute of {type(x).__name__}, got 'colour'"):
        x.colour = 1
    assert not hasattr(x, "colour")
    x._colour = 1
    x.name = "other"
    assert (x._colour, x.name) == (1, "other")


@pytest.fixture
def be_of_four():
    return nl.gen_backend("cpu", batch_size=2)


@pytest.mark.parametrize(
    ("make", "name", "hint"),
    [
        (lambda: Linear(3), "requires_grad", "Set trainable"),
        (lambda: Linear(3), "trainble", "Set trainable"),
        (lambda: Linear(3), "need_deltas", "Set needs_deltas"),
        (Adam, "lr", "Set learning_rate"),
        (Adam, "learn_rate", "Set learning_rate"),
        (lambda: nl.Model([Linear(3)]), "optimiser", "Set optimizer"),
        (lambda: Linear(3), "qqqqqq", "Only objects of custom classes may have attributes of any name"),
    ],
)
def test_the_error_names_the_attribute_of_neonlite(make, name, hint):
    with pytest.raises(AttributeError, match=hint):
        setattr(make(), name, 1)


@pytest.mark.parametrize("name", ["activation", "bias", "name", "colour"])
@pytest.mark.parametrize("make", [lambda: Affine(3, activation="relu"), lambda: DeepBiLSTM(3, Gaussian())])
def test_a_list_of_layers_gets_no_attributes_as_they_would_change_nothing(make, name, be_of_four):
    layers = make()
    with pytest.raises(AttributeError, match=f"{type(layers).__name__}: expected no assignment to {name}.*constructor"):
        setattr(layers, name, "softmax")


def test_a_custom_list_of_layers_gets_any_attribute(be_of_four):
    class Mine(Affine):
        def __init__(self):
            super().__init__(3)
            self.colour = "red"

    assert Mine().colour == "red"
    assert copy.deepcopy(Affine(3)).uses_default_bias


def test_custom_classes_set_what_they_like():
    class Mine(Layer):
        def __init__(self):
            super().__init__()
            self.anything = 3

        def configure(self, in_obj):
            super().configure(in_obj)
            self.something = self.in_shape
            return self

    layer = Mine().configure(4)
    layer.colour = "red"
    assert (layer.anything, layer.something, layer.colour) == (3, 4, "red")


def test_names_that_methods_properties_and_nested_functions_set_are_known():
    class Example:
        declared: int

        def __init__(self):
            self.first = 1

        def later(self):
            def inner():
                self.second = self.read.other

            return inner

        @property
        def value(self):
            self.third = 1
            return self.third

        @value.setter
        def value(self, x):
            self.fourth = x

        @classmethod
        def make(cls):
            x = cls()
            x.fifth = 1
            return x

    assert assigned_names(Example) == {"declared", "first", "second", "third", "fourth", "fifth"}


def test_attributes_beyond_the_256th_name_of_a_function_are_known():
    lines = [f"    self.a{i} = 0" for i in range(400)]
    namespace: dict[str, Any] = {}
    exec("\n".join(["def f(self):", *lines]), namespace)
    assert assigned_names(type("Many", (), {"f": namespace["f"]})) == {f"a{i}" for i in range(400)}


def test_a_recurrent_layer_has_its_weights_by_gate():
    nl.gen_backend("cpu", batch_size=2)
    layer = LSTM(3, Gaussian(), activation="tanh", gate_activation="logistic").configure((2, 4))
    layer.allocate()
    assert layer.W_input.shape == (12, 2)
