"""The layers of models and networks by name and position."""

from __future__ import annotations

from typing import Any

import pytest

import neonlite as nl
from neonlite.layers import Affine, BranchNode, Conv, Dropout, Linear, MergeSum, Sequential, SkipNode, Tree
from neonlite.models import Model

# --- layers by name and position -------------------------------------------------------------------------------------


def small() -> Sequential:
    return Sequential([Conv((3, 3, 4), activation="relu", name="conv1"), Dropout(name="drop"), Affine(2, name="out")])


@pytest.mark.parametrize("create", [small, lambda: Model(small())], ids=["network", "model"])
def test_layers_are_found_by_name_and_position(create):
    net: Any = create()
    names = ["conv1", "conv1_Rectlin", "drop", "out", "out_bias"]
    assert len(net) == 5
    assert [layer.name for layer in net] == names
    assert [net[i].name for i in range(5)] == names
    assert net[-1].name == "out_bias"
    assert [layer.name for layer in net[1:3]] == names[1:3]
    assert all(net[name].name == name and name in net for name in names)
    assert net["drop"] in net
    assert "conv2" not in net
    assert Linear(2) not in net


def test_the_weights_of_a_layer_are_found_by_its_name():
    nl.gen_backend("cpu", batch_size=2)
    model = Model(small())
    model.initialize((3, 8, 8))
    assert model.layers["conv1"].W.shape == (27, 4)
    assert model["out"].W.shape == (2, 4 * 6 * 6)


def test_layers_in_nested_containers_are_found_by_name():
    branch = MergeSum([SkipNode(name="skip"), [Affine(3, name="inner")]], name="sum")
    node = BranchNode(name="node")
    net = Tree([[Affine(3, name="trunk"), branch, node, Affine(2, name="a")], [node, Affine(1, name="b")]])
    assert net["inner"].nout == 3
    assert net["sum"] is branch
    assert net["b"].nout == 1
    assert "inner" in net


def test_an_unknown_name_or_position_raises_an_error_with_the_names():
    net = small()
    with pytest.raises(KeyError, match="the name of a layer, conv1, conv1_Rectlin, drop, out, out_bias, got 'conv2'"):
        net["conv2"]
    with pytest.raises(IndexError):
        net[5]


def test_a_configured_model_has_a_summary_without_data():
    nl.gen_backend("cpu", batch_size=2)
    model = Model(small())
    model.initialize((3, 8, 8))
    assert "conv1 (Convolution_bias)" in str(model.summary())
