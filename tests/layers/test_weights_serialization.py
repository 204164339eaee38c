"""Weights and states of networks as arrays, by name and by order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.network_steps import inputs, ready, step

from neonlite import NervanaObject
from neonlite.initializers import Constant, Gaussian, IdentityInit
from neonlite.layers import Affine, Bias, Conv, Convolution, Convolution_bias, Layer, Linear, Sequential
from neonlite.optimizers import Adam, GradientDescentMomentum
from neonlite.transforms import Tanh

G = Gaussian(scale=0.3)

# --- weights -------------------------------------------------------------------------------------------------------


def mlp(be: Any, names: tuple[str, str] = ("hidden", "out"), sizes: tuple[int, int] = (4, 2)) -> Any:
    """A network with a batch norm and a bias, from 3 inputs."""
    be.bsz = 2
    first, last = names
    affine = Affine(sizes[0], G, batch_norm=True, activation=Tanh(), name=first)
    return ready(be, Sequential([affine, Affine(sizes[1], G, bias=Constant(0), name=last)], "net"), 3)


def test_weights_are_converted_to_a_dict_and_restored(be):
    net, other = mlp(be), mlp(be)
    other.fprop(be.ones((3, 2)))  # its batch norm has other statistics
    weights = net.get_weights()
    shapes = {name: array.shape for name, array in weights.items()}
    stats = {f"hidden_bnorm.{name}": (4, 1) for name in ("beta", "gamma", "gmean", "gvar")}
    assert shapes == {"hidden.W": (4, 3), **stats, "out.W": (2, 4), "out_bias.W": (2, 1)}
    assert all(type(array) is np.ndarray for array in weights.values())
    np.testing.assert_array_equal(weights["hidden.W"], net.layers[0].W.get())
    net.layers[1].gvar = 3
    assert (net.get_weights()["hidden_bnorm.gvar"][0], weights["hidden_bnorm.gmean"][0]) == (3, 0)
    weights["hidden.W"][0, 0] = 9
    assert net.layers[0].W.get()[0, 0] != 9  # a copy
    root = other.layers[0].W.root
    other.set_weights(weights)
    for name, array in other.get_weights().items():
        np.testing.assert_array_equal(array, weights[name])
    assert other.layers[0].W.root is root  # copied in: they are still views of one tensor


def test_weights_may_be_lists_tensors_of_any_backend_and_columns(be):
    net = mlp(be)
    weights = net.get_weights()
    given: dict[str, Any] = {name: array.tolist() for name, array in weights.items()}
    given |= {"hidden.W": be.array(weights["hidden.W"] + 1), "out_bias.W": np.float64([1, 2])}
    net.set_weights(given)
    np.testing.assert_array_equal(net.layers[0].W.get(), weights["hidden.W"] + 1)
    np.testing.assert_array_equal(net.layers[-1].W.get(), [[1], [2]])


def test_a_subset_of_weights_is_set_if_requested(be):
    net = mlp(be)
    before = net.get_weights()
    with pytest.raises(ValueError, match="partial=True accepts a subset"):
        net.set_weights({"out.W": np.ones((2, 4))})
    assert net.get_weights()["out.W"].tolist() == before["out.W"].tolist()
    net.set_weights({"out.W": np.ones((2, 4)), "hidden_bnorm.gvar": np.full((4, 1), 3)}, partial=True)
    after = net.get_weights()
    assert np.all(after["out.W"] == 1)
    assert np.all(after["hidden_bnorm.gvar"] == 3)
    for name in before.keys() - {"out.W", "hidden_bnorm.gvar"}:
        np.testing.assert_array_equal(after[name], before[name])


def rows(error: pytest.ExceptionInfo[ValueError]) -> list[list[str]]:
    """The rows of the table in a message, below its header."""
    return [[cell for cell in line.split("  ") if cell] for line in str(error.value).splitlines()[2:]]


def stripped(table: list[list[str]]) -> list[list[str]]:
    return [[cell.strip() for cell in row] for row in table]


def test_all_mismatches_are_listed_in_one_table_and_nothing_is_written(be):
    net = mlp(be)
    before = net.get_weights()
    given: dict[str, Any] = before | {"hidden.W": np.ones((3, 4)), "hidden.V": [[1]], "out_bias.W": "words"}
    given["out.W"] = np.ones((2, 4))
    del given["hidden_bnorm.gmean"]
    for partial in (False, True):
        with pytest.raises(
            ValueError, match=r"^net: expected weights that fit the layers, got other names or shapes; none was changed"
        ) as error:
            net.set_weights(given, partial)
        missing = [] if partial else [["hidden_bnorm", "gmean", "(4, 1)", "nothing"]]
        table = stripped(rows(error))
        assert sorted(table) == sorted(
            [
                ["hidden", "W", "(4, 3)", "(3, 4)"],
                *missing,
                ["out_bias", "W", "(2, 1)", "'words'"],
                ["hidden.V", "nothing", "(1, 1)"],
            ]
        )
        for name, array in net.get_weights().items():
            np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("key", ["out.W", "out.V"])
def test_none_is_not_a_weight(cpu, key):
    net = mlp(cpu)
    with pytest.raises(ValueError, match=r"none was changed; get_weights\(\) returns the valid names"):
        net.set_weights({key: None}, partial=True)


@pytest.mark.parametrize("given", [None, [np.ones((2, 4))], "out.W", {0: np.ones((2, 4))}])
def test_weights_are_a_dict_by_name(cpu, given):
    with pytest.raises(
        TypeError, match=r"set_weights: expected a dict of arrays by name, as from get_weights\(\), got"
    ):
        mlp(cpu).set_weights(given)


def test_a_long_table_is_truncated(cpu):
    cpu.bsz = 1
    net = ready(cpu, Sequential([Linear(2, G) for _ in range(30)]), 2)
    with pytest.raises(ValueError, match=r"\nand 10 more$") as error:
        net.set_weights({})
    assert len(str(error.value).splitlines()) == 1 + 1 + 20 + 1


def test_weights_of_a_single_layer(be):
    net = mlp(be)
    assert list(net.layers[0].get_weights()) == ["hidden.W"]
    file = net.layers[1].serialize()
    assert list(file["params"]) == ["beta", "gamma", "gmean", "gvar"]
    other = mlp(be)
    net.layers[1].gmean = 7
    other.layers[1].load_weights(net.layers[1].serialize())
    assert np.all(other.layers[1].gmean.get() == 7)
    assert net.layers[2].serialize() == net.layers[2].get_description()  # an activation has none
    net.layers[2].load_weights(net.layers[2].serialize())


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda net: net.get_weights(), "fc: expected a configured layer, got one without shapes. Call configure"),
        (lambda net: net.serialize(), "fc: expected a configured layer, got one without shapes"),
        (
            lambda net: net.configure(3).get_weights(),
            r"fc: expected allocated weights, got none\. Call allocate\(\) first",
        ),
        (lambda net: net.configure(3).set_weights({}), "fc: expected allocated weights, got none"),
    ],
)
def test_weights_exist_after_allocate(cpu, act, message):
    with pytest.raises(RuntimeError, match=message):
        act(Sequential([Linear(2, G, name="fc"), Bias(G)]))


def test_a_layer_without_persistent_tensors_is_rejected(cpu):
    class Secret(Layer):
        has_params = True

        def configure(self, in_obj: Any) -> Any:
            super().configure(in_obj)
            self.out_shape = self.in_shape
            return self

    layer = Secret("odd").configure(3)
    with pytest.raises(TypeError, match="odd: expected persistent_tensors for a layer with parameters, got none"):
        layer.serialize()


# --- files ---------------------------------------------------------------------------------------------------------


def test_params_and_states_are_stored_beside_the_config_of_each_layer(be):
    net = mlp(be)
    optimizer = GradientDescentMomentum(0.1, 0.9)
    step(be, net, 3, optimizer, 0)
    file = net.serialize()
    assert set(file) == {"type", "config"}
    entries = file["config"]["layers"]
    assert [set(x) - {"type", "config"} for x in entries] == [
        {"params", "states", "updates"},
        {"params", "states", "updates"},
        set(),
        {"params", "states", "updates"},
        {"params", "states", "updates"},
    ]
    assert [[len(x) for x in entry["states"]] for entry in entries if "states" in entry] == [[1], [1, 1], [1], [1]]
    assert entries[1]["updates"] == [["GradientDescentMomentum(velocity)", 1]] * 2
    np.testing.assert_array_equal(entries[0]["states"][0][0], net.layers[0].states[0].get())
    np.testing.assert_array_equal(entries[1]["states"][1][0], net.layers[1].states[1][0].get())
    bare = net.serialize(keep_states=False)["config"]["layers"]
    assert [set(x) - {"type", "config"} for x in bare] == [{"params"}, {"params"}, set(), {"params"}, {"params"}]
    assert [x["config"] for x in bare] == [x["config"] for x in net.get_description()["config"]["layers"]]


@pytest.mark.parametrize("trained", [False, True])
def test_states_are_restored_whether_or_not_there_were_any(be, trained):
    net, other = mlp(be), mlp(be)
    step(be, net, 3, GradientDescentMomentum(0.1, 0.9), 0)
    if trained:
        step(be, other, 3, GradientDescentMomentum(0.5, 0.9), 1)
    file = net.serialize()
    other.load_weights(file, load_states=False)
    for x, y in zip(net.layers_to_optimize, other.layers_to_optimize, strict=True):
        for (_, have), (_, expected) in zip(flat_params(y), flat_params(x), strict=True):
            assert len(have) == int(trained)
            assert not trained or not np.array_equal(have[0].get(), expected[0].get())
    other.load_weights(file)
    for x, y in zip(net.layers_to_optimize, other.layers_to_optimize, strict=True):
        for (_, have), (_, expected) in zip(flat_params(y), flat_params(x), strict=True):
            np.testing.assert_array_equal(have[0].get(), expected[0].get())
    state = other.layers[0].states[0]
    other.load_weights(file)
    assert other.layers[0].states[0] is state  # copied in
    fresh = mlp(be).serialize()
    other.load_weights(fresh)
    assert [states for x in other.layers_to_optimize for _, states in flat_params(x)] == [[]] * 5


def flat_params(layer: Any) -> list[Any]:
    params = layer.get_params()
    return params if isinstance(params, list) else [params]


def test_float16_weights_keep_states_in_float32(cpu):
    from neonlite import Backend

    be = Backend("cpu", rng_seed=1, default_dtype=np.float16)
    NervanaObject.be = be
    net, other = mlp(be), mlp(be)
    step(be, net, 3, GradientDescentMomentum(0.1, 0.9), 0)
    file = net.serialize()
    other.load_weights(file)
    assert (other.layers[0].W.info.dtype, other.layers[0].states[0].info.dtype) == ("float16", "float32")
    np.testing.assert_array_equal(other.layers[0].states[0].get(), net.layers[0].states[0].get())
    again = file["config"]["layers"][0]["params"]["W"]
    assert again.dtype == np.float16


def test_layers_are_matched_by_name_if_names_agree_and_else_by_order(be):
    net = mlp(be, ("a", "b"), (3, 3))
    other = ready(be, Sequential([*mlp(be, ("b", "a"), (3, 3)).layers]), 3)
    file = net.serialize()
    names = [x.name for x in other]  # b, b_bnorm ... a, a_bias: not the same as a, a_bnorm ... b, b_bias
    assert set(names) != {x.name for x in net}
    other.load_weights(file)
    np.testing.assert_array_equal(other.layers[0].W.get(), net.layers[0].W.get())

    one = ready(be, Sequential([Linear(3, G, name="a"), Linear(3, G, name="b")]), 3)
    two = ready(be, Sequential([Linear(3, G, name="b"), Linear(3, G, name="a")]), 3)
    two.load_weights(one.serialize())
    np.testing.assert_array_equal(two.layers[0].W.get(), one.layers[1].W.get())
    np.testing.assert_array_equal(two.layers[1].W.get(), one.layers[0].W.get())


def test_a_file_that_does_not_match_is_rejected_before_the_first_write(be):
    net, other = mlp(be), mlp(be, sizes=(4, 3))
    step(be, net, 3, Adam(), 0)
    file = net.serialize()
    file["config"]["layers"][0]["params"]["V"] = np.ones((1, 1))
    del file["config"]["layers"][1]["params"]["gvar"]
    file["config"]["layers"][0]["states"][0][1] = np.ones((3, 4))
    file["config"]["layers"][1]["states"].pop()
    before = other.get_weights()
    with pytest.raises(ValueError, match="none was changed") as error:
        other.load_weights(file)
    table = stripped(rows(error))
    assert table == [
        ["hidden", "V", "nothing", "(1, 1)"],
        ["hidden", "states[0][1]", "(4, 3)", "(3, 4)"],
        ["hidden_bnorm", "gvar", "(4, 1)", "nothing"],
        ["hidden_bnorm", "states[1]", "(4, 1)", "nothing"],
        ["out", "W", "(3, 4)", "(2, 4)"],
        *[["out", f"states[0][{i}]", "(3, 4)", "(2, 4)"] for i in range(2)],
        ["out_bias", "W", "(3, 1)", "(2, 1)"],
        *[["out_bias", f"states[0][{i}]", "(3, 1)", "(2, 1)"] for i in range(2)],
    ]
    for name, array in other.get_weights().items():
        np.testing.assert_array_equal(array, before[name])
    assert other.layers[0].states == []


def test_layers_that_a_file_has_or_lacks_are_named(be):
    be.bsz = 1
    long = ready(be, Sequential([Linear(3, G, name=n) for n in "abc"]), 3)
    short = ready(be, Sequential([Linear(3, G, name=n) for n in "ab"]), 3)
    with pytest.raises(ValueError, match="none was changed") as error:
        long.load_weights(short.serialize())
    assert stripped(rows(error)) == [["c", "W", "(3, 3)", "nothing"]]
    with pytest.raises(ValueError, match="none was changed") as error:
        short.load_weights(long.serialize())
    assert stripped(rows(error)) == [["c", "W", "nothing", "(3, 3)"]]


def test_states_without_params_are_checked_too(be):
    net = mlp(be)
    with pytest.raises(ValueError, match=r"out  +states\[0\]\[0\] +\(2, 4\) +\(4, 2\)"):
        net.layers[3].set_states([[np.ones((4, 2))]])
    net.layers[3].set_states([[np.ones((2, 4)), np.zeros((2, 4))]])
    assert [x.get().sum() for x in net.layers[3].states] == [8, 0]
    with pytest.raises(ValueError, match=r"states\[1\] +nothing +'a list'"):
        net.layers[3].set_states([[], []])


def test_an_old_file_with_a_separate_bias_layer_loads_into_one_layer(be):
    be.bsz = 2
    old = ready(
        be, Sequential([Convolution((2, 2, 3), init=G, name="c"), Bias(G, name="c_bias"), Linear(2, G)]), (2, 4, 4)
    )
    new = ready(be, Sequential([Conv((2, 2, 3), G, bias=Constant(0), name="c"), Linear(2, G)]), (2, 4, 4))
    assert isinstance(new.layers[0], Convolution_bias)
    step(be, old, (2, 4, 4), GradientDescentMomentum(0.1, 0.9), 0)
    new.load_weights(old.serialize())
    x = inputs(be, (2, 4, 4))
    np.testing.assert_allclose(new.fprop(x).get(), old.fprop(x).get(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(new.layers[0].weight_bias.get(), old.layers[1].W.get())
    assert [len(x) for x in new.layers[0].states] == [1, 1]
    np.testing.assert_array_equal(new.layers[0].states[1][0].get(), old.layers[1].states[0].get())


def test_layers_without_parameters_are_serialized_as_well(be):
    be.bsz = 1
    net = ready(be, Sequential([Linear(3, IdentityInit(), name="fixed"), Linear(2, G, name="fc")]), 3)
    net["fixed"].trainable = False
    assert [x.name for x in net.layers_to_optimize] == ["fc"]
    assert list(net.get_weights()) == ["fixed.W", "fc.W"]


def test_parallelism_is_reported_as_in_neon():
    actual = {p: Linear(2, G, parallelism=p).get_param_attrs() for p in ("Data", "Model", "Disabled")}
    assert actual["Data"] == {"parallel": True, "distributed": False}
    assert actual["Model"] == {"parallel": True, "distributed": True}
    assert actual["Disabled"] == {"parallel": False, "distributed": False}
