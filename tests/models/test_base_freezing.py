"""Frozen layers do not change, no gradients below them are computed, and they are trained again after unfreezing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import neonlite as nl
from neonlite import gen_backend
from neonlite.callbacks import Callback
from neonlite.distributed.optimizer import GradientReducer
from neonlite.layers import (
    Affine,
    BatchNorm,
    BranchNode,
    Conv,
    Dropout,
    Linear,
    LookupTable,
    MergeSum,
    Sequential,
    SingleOutputTree,
    SkipNode,
)
from neonlite.models import Model
from neonlite.optimizers import Adam, GradientDescentMomentum
from neonlite.transforms import MeanSquared

N = 8
X = np.random.default_rng(0).normal(size=(32, 4))
Y = np.arange(32) % 2
SGD = GradientDescentMomentum


def three(**options: Any) -> list[Any]:
    return [
        Affine(6, activation="relu", name="a", **options),
        Affine(5, activation="tanh", name="b", **options),
        Affine(2, activation="softmax", name="c"),
    ]


def fit(model: Any, epochs: int = 1, **options: Any) -> None:
    model.fit(X, Y, epochs=epochs, progress_bar=False, batch_size=N, **options)


def changed(model: Any, before: dict[str, Any]) -> set[str]:
    """Return the first letters of the names of weights that are not equal to those before."""
    return {name[0] for name, w in model.get_weights().items() if (w != before[name]).any()}


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "called"])
@pytest.mark.parametrize("frozen", ["a", "b", "ab", "ac", "bc"])
def test_frozen_layers_do_not_change_also_by_weight_decay_and_momentum_and_others_do(frozen, recorded):
    gen_backend("cpu", rng_seed=1)
    model = Model(three())
    fit(model, 2, optimizer=SGD(0.1, 0.9, wdecay=0.1), cuda_graphs=recorded)
    model.freeze(*frozen)
    before = model.get_weights()
    fit(model, 2, cuda_graphs=recorded)
    assert changed(model, before) == set("abc") - set(frozen)
    model.unfreeze(*frozen)
    before = model.get_weights()
    fit(model, 2, cuda_graphs=recorded)
    assert changed(model, before) == set("abc")


NETWORKS: dict[str, Any] = {
    "Sequential": lambda: [Linear(5, name="a"), Sequential([Linear(4, name="b"), Dropout(1.0)]), Linear(3, name="c")],
    "MergeSum": lambda: [Linear(4, name="a"), MergeSum([Linear(4, name="b"), SkipNode()]), Linear(3, name="c")],
    "two branches": lambda: [MergeSum([Linear(4, name="a"), [Linear(5, name="b"), Linear(4, name="c")]])],
    "Conv": lambda: [
        Conv((2, 2, 3), name="a", activation="tanh"),
        Conv((1, 1, 2), name="b", batch_norm=True),
        Linear(3, name="c"),
    ],
}
SHAPES = {"Conv": (1, 3, 3)}


def gradients(kind: str, frozen: str, late: bool) -> dict[str, Any]:
    """Return the gradients of the layers that are trained; ``late``: they are frozen after the allocation."""
    be = gen_backend("cpu", rng_seed=1, batch_size=3, datatype="float64")
    net = Sequential(NETWORKS[kind]())
    leaves = {leaf.name: leaf for leaf in net.leaves() if leaf.has_params}

    def freeze() -> None:
        for name, leaf in leaves.items():
            leaf.trainable = name[0] not in frozen

    if not late:
        freeze()
    net.configure(SHAPES.get(kind, 4))
    net.allocate()
    net.allocate_deltas()
    rng = np.random.default_rng(0)
    for leaf in leaves.values():
        for p in leaf.parameters:
            p[:] = rng.normal(size=p.shape)
    rows = 9 if kind == "Conv" else 4
    x = be.array(rng.normal(size=(rows, 3)))
    error = be.array(rng.normal(size=net.fprop(x).shape))
    net.bprop(error)
    if late:
        freeze()
        net.fprop(x)
        net.bprop(error)
    return {leaf.name: [g.get() for g in leaf.gradients] for leaf in leaves.values() if leaf.trainable}


@pytest.mark.parametrize("late", [False, True], ids=["before allocation", "after a step"])
@pytest.mark.parametrize("frozen", ["a", "b", "c", "ab", "bc", "ac"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_gradients_of_the_other_layers_are_those_without_freezing(kind, frozen, late):
    if kind == "Conv" and "b" in frozen:
        frozen = frozen.replace("b", "")  # a frozen BatchNorm computes other outputs
    want, got = gradients(kind, "", False), gradients(kind, frozen, late)
    assert got.keys() == {name for name in want if name[0] not in frozen}
    for name, arrays in got.items():
        for x, y in zip(arrays, want[name], strict=True):
            np.testing.assert_array_equal(x, y)


def test_a_tree_stops_below_its_first_trained_layer_and_unfreezes():
    be = gen_backend("cpu", rng_seed=1, batch_size=2, datatype="float64")
    node = BranchNode(name="node")
    trunk, branch = [Linear(4, name="a"), node, Linear(3, name="b")], [node, Linear(2, name="c")]
    net = SingleOutputTree([trunk, branch])
    net.configure(5)
    net.allocate()
    net.allocate_deltas()
    x, errors = be.ones((5, 2)), [be.ones((3, 2)), be.ones((2, 2))]

    def step() -> dict[str, Any]:
        for g in net.gradients:
            g[:] = 7
        net.fprop(x)
        net.bprop(errors)
        return {leaf.name: leaf.dW.get() for leaf in net.leaves() if leaf.has_params}

    want = step()
    net["a"].trainable = False
    got = step()
    assert (got["a"] == 7).all()  # not computed
    np.testing.assert_array_equal(got["b"], want["b"])
    np.testing.assert_array_equal(got["c"], want["c"])
    net["b"].trainable = False
    net["a"].trainable = True
    got = step()
    np.testing.assert_array_equal(got["a"], want["a"])
    np.testing.assert_array_equal(got["c"], want["c"])


def test_bprop_does_not_run_the_layers_below_the_first_trained_one(monkeypatch):
    gen_backend("cpu", rng_seed=1)
    model = Model(three())
    model.freeze("a")
    fit(model)
    called = []
    original = Linear.bprop
    monkeypatch.setattr(Linear, "bprop", lambda self, *args: called.append(self.name) or original(self, *args))
    y = model.fprop(model.be.ones((model.layers.in_shape, 4)))
    model.bprop(model.be.ones(y.shape))
    assert set(called) == {"b", "c"}
    assert model["b"].deltas is None
    assert model["a"].deltas is None


def test_a_container_sets_that_of_all_its_layers_and_says_whether_any_is_trained():
    block = Sequential([Linear(2, name="x"), BatchNorm(name="y")], name="block")
    model = Model([block, Linear(1, name="z")])
    model.freeze("block")
    assert not block.trainable
    assert [layer.name for layer in model.layers_to_optimize] == ["z"]
    model["x"].trainable = True
    assert block.trainable
    block.trainable = True
    assert [layer.name for layer in model.layers_to_optimize] == ["x", "y", "z"]


def test_a_name_includes_bias_and_batch_norm_and_a_list_is_that_of_an_affine():
    hidden = Affine(3, batch_norm=True, activation="relu", name="h")
    model = Model([hidden, Affine(2, name="out")])
    model.freeze("h")
    assert [layer.name for layer in model.layers_to_optimize] == ["out", "out_bias"]
    model.unfreeze(hidden)
    model.freeze(model["out"], model["out_bias"])
    assert [layer.name for layer in model.layers_to_optimize] == ["h", "h_bnorm"]


def test_unknown_names_and_values_and_none_at_all_are_errors():
    model = Model(three())
    with pytest.raises(KeyError, match="expected the name of a layer"):
        model.freeze("hidden")
    with pytest.raises(ValueError, match=r"freeze: expected layers of .*, got a, which is not one of them"):
        model.freeze(Model(three())["a"])
    with pytest.raises(ValueError, match=r"freeze: expected layers or names of layers, got none"):
        model.freeze()
    with pytest.raises(TypeError, match="expected layers and lists of layers"):
        model.freeze(3)
    with pytest.raises(TypeError, match=r"a.trainable"):
        model["a"].trainable = "no"


def test_a_frozen_batch_norm_normalizes_with_running_statistics_in_training_too():
    be = gen_backend("cpu", rng_seed=1, batch_size=5, datatype="float64")
    rng = np.random.default_rng(0)
    net = Sequential([BatchNorm(name="bn"), Linear(2, name="fc")])
    net.configure(3)
    net.needs_deltas = True
    net.allocate()
    net.allocate_deltas()
    x, e = rng.normal(size=(3, 5)), rng.normal(size=(2, 5))
    gamma, beta, mean, var = rng.normal(size=(4, 3, 1)) ** 2
    bn = net["bn"]
    bn.gamma, bn.beta, bn.gmean, bn.gvar = gamma, beta, mean, var
    bn.trainable = False
    W = net["fc"].W.get()
    scale = gamma / np.sqrt(var + bn.eps)
    np.testing.assert_allclose(net.fprop(be.array(x)).get(), W @ ((x - mean) * scale + beta), rtol=1e-12)
    np.testing.assert_allclose(net.bprop(be.array(e)).get(), scale * (W.T @ e), rtol=1e-12)
    np.testing.assert_array_equal(bn.gmean.get(), mean)
    np.testing.assert_array_equal(bn.gvar.get(), var)


def test_a_lookup_table_without_update_is_a_frozen_layer():
    table = LookupTable(4, 2, update=False)
    assert not table.trainable
    table.trainable = True
    assert table.update
    assert table.get_description()["config"]["update"] is True


@pytest.mark.parametrize("copy", ["file", "copy", "load_params"])
def test_a_checkpoint_stores_which_layers_are_frozen(tmp_path, copy):
    gen_backend("cpu", rng_seed=1)
    model = Model(three())
    model.freeze("b")
    fit(model)
    path = tmp_path / "m.neon"
    model.save_params(path)
    if copy == "load_params":
        other = Model(three())
        other.freeze("a")
        other.load_params(path)
    else:
        other = Model(path) if copy == "file" else model.copy()
    assert [x.name for x in other.layers.leaves() if not x.trainable] == ["b", "b_bias"]
    before = other.get_weights()
    fit(other)
    assert changed(other, before) == {"a", "c"}
    assert Model(path, weights_only=True)["b"].trainable


def test_a_checkpoint_with_an_unknown_frozen_layer_is_an_error():
    gen_backend("cpu", rng_seed=1)
    model = Model(three())
    fit(model)
    state = model.serialize()
    state["training"]["frozen"] = ["nothing"]
    with pytest.raises(nl.models.CheckpointError, match="frozen"):
        Model(state)
    del state["training"]["frozen"]  # as in files of earlier versions
    assert Model(state)["a"].trainable


def test_summary_counts_trained_and_frozen_parameters():
    gen_backend("cpu", rng_seed=1, batch_size=2)
    model = Model([Linear(3, name="a"), Linear(2, name="b")])
    assert "frozen" not in str(model.summary(4))
    model.freeze("a")
    summary = model.summary(4)
    assert summary.frozen == 12
    assert "parameters: 6 trained, 12 frozen" in str(summary)
    assert "6 trained, 12 frozen" in summary._repr_html_()


def test_a_callback_can_unfreeze_layers_one_after_another():
    class Unfreeze(Callback):
        def on_epoch_begin(self, epoch):
            self.model.unfreeze("cba"[epoch])

    gen_backend("cpu", rng_seed=1)
    model = Model(three())
    model.freeze("a", "b", "c")
    moved = []

    class Watch(Callback):
        def on_epoch_begin(self, epoch):
            self.before = self.model.get_weights()

        def on_epoch_end(self, epoch):
            moved.append("".join(sorted(changed(self.model, self.before))))

    fit(model, 3, optimizer=Adam(0.01), callbacks=[Unfreeze(), Watch()])
    assert moved == ["c", "bc", "abc"]


@pytest.mark.parametrize("optimizer", [SGD(0.1, 0.9), Adam(0.01)], ids=["momentum", "adam"])
def test_training_continues_after_unfreezing_with_the_old_optimizer_states(optimizer):
    gen_backend("cpu", rng_seed=1, batch_size=N)
    model = Model([Linear(2, name="a")])
    data = nl.data.ArrayIterator(X, X[:, :2], make_onehot=False)
    model.fit(data, MeanSquared(), optimizer, num_epochs=1)
    states = [s.get() for s in model["a"].states]
    assert states
    model.freeze("a")
    model.fit(data, MeanSquared(), optimizer, num_epochs=2)
    assert all((s.get() == before).all() for s, before in zip(model["a"].states, states, strict=True))
    model.unfreeze("a")
    before = model.get_weights()
    model.fit(data, MeanSquared(), optimizer, num_epochs=3)
    assert changed(model, before) == {"a"}


@pytest.mark.parametrize("init", sorted(nl.initializers.initializer_names(False)))
def test_a_layer_is_trained_whatever_its_initializer(init):
    gen_backend("cpu", rng_seed=1, batch_size=32)
    model = Model([Affine(4, init=init, activation="tanh", name="a"), Affine(2, activation="softmax", name="c")])
    model.layers.configure(4)
    model.layers.allocate()
    before = model.get_weights()
    fit(model)
    assert changed(model, before) == {"a", "c"}


def test_the_buckets_of_gradients_of_several_processes_are_those_of_the_layers_that_are_trained():
    gen_backend("cpu", rng_seed=1, batch_size=2)
    model = Model([Linear(3, name="a"), Linear(2, name="b")])
    model.initialize(4)
    communicator: Any = SimpleNamespace(compress_gradients=False, is_asynchronous=lambda x: False)
    reducer = GradientReducer(communicator, model.layers)

    def size() -> int:
        return sum(buffer.size for _, buffers in reducer.buckets for buffer in buffers)

    sizes = [size()]
    for change in (lambda: model.freeze("a"), lambda: model.unfreeze("a"), reducer.close, lambda: model.freeze("a")):
        change()
        sizes.append(size())
    assert sizes == [18, 6, 18, 18, 18]
