"""Tests of snapshots of attributes: changes are found, and so are objects of custom classes and custom functions."""

from __future__ import annotations

from types import MethodType
from typing import Any

from neonlite import Backend
from neonlite.backend.objects import AttributeSnapshot
from neonlite.initializers import Constant
from neonlite.layers import BiBNRNN, Convolution, Linear, MergeSum, Recurrent, Sequential
from neonlite.transforms import Tanh


class Custom(Linear):
    """A subclass of a built-in layer."""


def test_a_network_of_built_in_layers_has_no_custom_class(cpu: Backend) -> None:
    cpu.bsz = 2
    convolution = Convolution((3, 3, 2), init=Constant(1.0))
    recurrent = [Recurrent(2, Constant(1.0), activation=Tanh()), BiBNRNN(2, Constant(1.0), activation=Tanh())]
    networks: list[tuple[Sequential, Any]] = [
        (Sequential([MergeSum([Linear(2, Constant(1.0)), Linear(2, Constant(0.5))])]), 3),
        (Sequential([convolution]), (1, 4, 4)),
        (Sequential(recurrent), (3, 4)),
    ]
    for network, shape in networks:
        network.configure(shape)
        network.allocate()
        network.allocate_deltas()
        outputs = network.fprop(cpu.ones((3, 8)) if shape == (3, 4) else cpu.ones((3 if shape == 3 else 16, 2)))
        network.bprop(cpu.ones(outputs.shape))
        snapshot = AttributeSnapshot([network])
        assert snapshot.custom_class == ""
        assert snapshot.is_unchanged()


def test_a_change_in_a_nested_container_is_found() -> None:
    layer: Any = Linear(2, Constant(1.0))
    containers: list[Any] = [{"a": 1}, [1, {"b": [2]}], {3}]
    layer.init = containers
    changes = [
        lambda: containers[0].update(a=2),
        lambda: containers[1][1]["b"].append(4),
        lambda: containers[2].add(5),
        lambda: containers.append(6),
    ]
    for change in changes:
        snapshot = AttributeSnapshot([layer])
        assert snapshot.is_unchanged()
        change()
        assert not snapshot.is_unchanged()


def test_a_subclass_of_a_built_in_class_is_custom_unless_it_declares_can_replay() -> None:
    layer = Custom(2, Constant(1.0))
    assert AttributeSnapshot([[layer]]).custom_class == "Custom"
    layer.can_replay = True  # type: ignore[attr-defined]
    assert AttributeSnapshot([[layer]]).custom_class == ""


def test_a_method_is_custom_if_it_is_not_one_of_the_class_of_its_object() -> None:
    layer = Linear(2, Constant(1.0))
    layer.init = layer.fprop  # type: ignore[assignment]
    assert AttributeSnapshot([layer]).custom_class == ""
    layer.init = MethodType(lambda self: 1, layer)  # type: ignore[assignment]
    assert "lambda" in AttributeSnapshot([layer]).custom_class
