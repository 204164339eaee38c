"""A model learns, judges, stops where it should, and goes on from a file with the same bits."""

from __future__ import annotations

import json
import os
import signal
import threading
from typing import Any

import numpy as np
import pytest

from neonlite import gen_backend
from neonlite.callbacks import Callbacks, Listener
from neonlite.data import ArrayIterator, NervanaDataIterator
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import (
    Affine,
    BatchNorm,
    BranchNode,
    Dropout,
    GeneralizedCost,
    GeneralizedCostMask,
    Linear,
    Multicost,
    SingleOutputTree,
    Tree,
)
from neonlite.models import Benchmark, CheckpointError, Model
from neonlite.models.state import State
from neonlite.optimizers import Adam, GradientDescentMomentum
from neonlite.transforms import (
    Accuracy,
    CrossEntropyMulti,
    MeanSquared,
    Misclassification,
    Rectlin,
    Softmax,
    SumSquared,
)

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


def test_a_cost_may_remember_what_its_derivative_needs():
    class Remembering(GeneralizedCost):
        def get_cost(self, inputs, targets):
            self.derivative = super().get_errors(inputs, targets).get()
            return super().get_cost(inputs, targets)

        def get_errors(self, inputs, targets):
            self.deltas[:] = self.derivative
            return self.deltas

    weights = []
    for kind in (GeneralizedCost, Remembering):
        model = start()
        model.fit(data(), kind(CrossEntropyMulti()), Adam(), 2)
        weights.append(model.get_weights())
    assert same(*weights)


def test_training_goes_on_with_minibatches_of_another_size():
    def line() -> Model:
        return Model([Linear(CLASSES, Gaussian(), name="lin")])

    be = gen_backend("cpu", rng_seed=1, batch_size=8)
    model, other, optimizer = line(), line(), GradientDescentMomentum(0.01, 0.0)
    model.fit(data(ragged=True), MeanSquared(), optimizer, 1)
    weights = model.get_weights()
    for n in (4, 8, 16):
        be.bsz = n
        other = line()
        other.initialize(2)
        other.set_weights(weights)
        other.fit(data(ragged=True), MeanSquared(), GradientDescentMomentum(0.01, 0.0), 1)
        model.fit(data(ragged=True), MeanSquared(), optimizer, model.epoch_index + 1)
        weights = model.get_weights()
        np.testing.assert_allclose(weights["lin.W"], other.get_weights()["lin.W"], rtol=1e-5)
        assert np.array_equal(model.get_outputs(data(ragged=True)), model.predict(blobs()[0]))


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


def test_a_description_makes_the_network_and_with_arrays_the_model():
    model = start()
    model.fit(data(), CrossEntropyMulti(), Adam(learning_rate=0.05), 1)
    description = model.get_description()
    assert json.loads(json.dumps(description)) == description
    assert not {"training", "arrays"} & description.keys()
    bare = Model(description)
    assert bare.layers.get_description() == description["layers"]
    assert not bare.initialized
    whole = model.get_description(get_weights=True, keep_states=True)
    assert whole["arrays"].keys() == model.serialize()["arrays"].keys()
    assert {name.partition("/")[0] for name in whole["arrays"]} == {"weights", "states"}
    assert {name.partition("/")[0] for name in model.serialize(keep_states=False)["arrays"]} == {"weights"}
    model.layers.layers[0].W[:] = 0  # what was given is not shared
    again = Model(whole)
    assert again.get_weights()["hidden.W"].any()
    assert (again.epoch_index, again.optimizer.t) == (1, 8)
    assert (Model(whole, weights_only=True).epoch_index, Model(whole, weights_only=True).optimizer) == (0, None)


def test_what_was_serialized_goes_on_with_the_same_bits(tmp_path):
    straight = start()
    straight.fit(data(shuffle=True), CrossEntropyMulti(), Adam(learning_rate=0.05), 3)
    first = start()
    with pytest.raises(KeyboardInterrupt):
        first.fit(
            data(shuffle=True), CrossEntropyMulti(), Adam(learning_rate=0.05), 3, callbacks=Interrupting(first, 10)
        )
    kept = first.serialize(tmp_path / "m")
    for _ in range(2):  # what was kept stays as it is
        gen_backend("cpu", rng_seed=99, batch_size=8)
        model = Model(network())
        model.deserialize(kept, data())
        assert model.initialized
        model.fit(data(shuffle=True), CrossEntropyMulti(), model.optimizer, 3)
        assert same(model.get_weights(), straight.get_weights())
    assert same(Model(tmp_path / "m").get_weights(), Model(kept).get_weights())
    with pytest.raises(CheckpointError, match=r"the description: training\.epoch_index"):
        Model(kept | {"training": kept["training"] | {"epoch_index": "1"}})


def test_load_weights_has_another_name_now(tmp_path):
    model = start()
    model.fit(data(), CrossEntropyMulti(), Adam(), 1)
    model.save_params(tmp_path / "m")
    again = start()
    with pytest.warns(DeprecationWarning, match="load_params"):
        again.load_weights(tmp_path / "m")
    assert same(again.get_weights(), Model(tmp_path / "m").get_weights())


# --- how long it takes -----------------------------------------------------------------------------------------------


def everything(model: Model, train: Any) -> Any:
    description, arrays = State.of(model)
    return description, {name: array.tobytes() for name, array in arrays.items()}, train.get_state(), model.cost


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("learned", [False, True])
def test_timing_steps_changes_nothing(be, inference, learned):
    be.bsz = 8
    model, train, optimizer = Model([*network(), BatchNorm()]), data(shuffle=True, ragged=True), Adam()
    if learned:
        model.fit(train, MeanSquared(), optimizer, 1)
    model.initialize(train)
    before, steps = everything(model, train), optimizer.get_state()
    times = Benchmark(model).time(train, inference, 9, CrossEntropyMulti(), optimizer, nskip=2)
    assert everything(model, train) == before
    assert optimizer.get_state() == steps
    assert be.bsz == 8
    assert "fprop" not in vars(model) | vars(model.layers.layers[0])
    kinds = ["fprop"] if inference else ["fprop", "bprop"]
    names = [x.name for x in model.layers.leaves()]
    assert set(times) == {"iteration", *kinds, *(f"{kind} {name}" for kind in kinds for name in names)}
    assert {x.shape for x in times.values()} == {(9,)}
    assert all((x > 0).all() for x in times.values())
    assert (times["iteration"] > sum(times[kind] for kind in kinds)).all()
    assert (times["fprop"] > sum(times[f"fprop {name}"] for name in names)).all()
    brief = model.benchmark(train, inference, CrossEntropyMulti(), optimizer, niterations=2, nskip=0)
    assert set(brief) == {"iteration", *kinds}
    for found in brief.values():
        assert list(found) == ["mean", "median", "min", "max"]
        assert 0 < found["min"] <= found["mean"] <= found["max"]
        assert found["median"] == pytest.approx(found["mean"])  # of two
    assert everything(model, train) == before


def test_what_is_timed_is_the_steps_of_fit():
    """So many steps, of minibatches in turn, with the cost and the optimizer that are given."""
    model, seen = start(), []

    class Noting(Adam):
        def optimize(self, layer_list, epoch):
            seen.append(float(model.cost.cost.item()))
            super().optimize(layer_list, epoch)

    model.benchmark(data(), cost=CrossEntropyMulti(), optimizer=Noting(), niterations=9, nskip=3)
    assert len(seen) == 12  # of 8 minibatches
    fitted = start()
    costs = []

    class Costs(Listener):
        def on_minibatch_end(self, epoch, minibatch):
            costs.append(float(fitted.cost.cost.item()))

    fitted.fit(data(), CrossEntropyMulti(), Adam(), 1, Costs())
    assert seen[:7] == costs[:7]


def test_times_are_printed_as_a_table(capsys):
    stats = {"fprop": np.array([1.0, 2.0, 6.0]), "bprop hidden": np.array([0.5])}
    Benchmark.print_stats(stats)
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["Mean", "Median", "Min", "Max", "ms"]
    assert first.split() == ["fprop", "3.000", "2.000", "1.000", "6.000"]
    assert second.split() == ["bprop", "hidden", *["0.500"] * 4]
    said: list[str] = []
    Benchmark.print_stats(stats, functions=[np.sum], output=said.append)
    assert said[0].split() == ["Sum", "ms", "fprop", "9.000", "bprop", "hidden", "0.500"]


def test_mistakes_in_timing_are_told():
    model, cost, optimizer = start(), CrossEntropyMulti(), Adam()
    for given in ({}, {"cost": cost}, {"optimizer": optimizer}):
        with pytest.raises(RuntimeError, match=r"model: steps of learning take cost= and optimizer="):
            model.benchmark(data(), **given)
    for n in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match=rf"niterations is a whole number from 1; got {n}"):
            model.benchmark(data(), True, niterations=n)
    with pytest.raises(ValueError, match=r"nskip is a whole number from 0; got -1"):
        model.benchmark(data(), True, nskip=-1)
    for empty in (NervanaDataIterator(), []):
        with pytest.raises(ValueError, match="there is no data to time steps with"):
            start().benchmark(empty if empty else Nothing(), True)
    model.fit(data(), cost, optimizer, 1)
    assert model.benchmark(data(), niterations=1)["bprop"]["min"] > 0  # those of the fit


class Nothing(NervanaDataIterator):
    """Data that gives no minibatch."""

    ndata, nbatches, shape = 1, 1, 2

    def __iter__(self):
        return iter(())


class Judged(NervanaDataIterator):
    """The rows of another, with other targets."""

    def __init__(self, rows: Any, targets: Any) -> None:
        super().__init__()
        self.rows, self.targets, self.shape = rows, targets, rows.shape
        self.ndata, self.nbatches = rows.ndata, rows.nbatches

    def __iter__(self):
        return ((x, self.targets(t)) for x, t in self.rows)


@pytest.mark.parametrize(("tree", "second"), [(Tree, False), (SingleOutputTree, True)])
def test_an_output_that_is_not_there_or_has_no_target_is_no_part_of_the_cost(be64, tree, second):
    be64.bsz = 8
    rows = data()
    branch = BranchNode("two")
    model = Model(tree([[branch, Linear(CLASSES, Gaussian(0.1))], [branch, Linear(CLASSES, Gaussian(3.0))]]))
    model.initialize(rows, Multicost([GeneralizedCost(MeanSquared()) for _ in range(2)], weights=[0.5, 2.0]))
    model.cost.get_cost(*next((model.fprop(x), [t, t]) for x, t in rows))  # both are at work
    found = model.eval_cost(Judged(rows, lambda t: [t, t if second else None]))
    X, y = blobs()
    outputs = X @ model.layers.leaves()[1].W.get().T
    right = np.eye(CLASSES)[np.asarray(y).reshape(-1)]
    assert found == pytest.approx(0.5 * np.mean((outputs - right) ** 2) / 2, rel=1e-9)


def test_a_masked_cost_is_the_mean_over_all_rows_those_that_the_mask_shuts_out_as_zeros(be64):
    be64.bsz = 8
    rows = data()
    model = Model([Linear(CLASSES, Gaussian(0.1))])
    mask = [0.0, 1, 1, 0, 0, 1, 0, 1]
    model.initialize(rows, GeneralizedCostMask(SumSquared()))
    X, y = blobs()
    off = X @ model.layers.leaves()[0].W.get().T - np.eye(CLASSES)[np.asarray(y).reshape(-1)]
    counts = np.resize(mask, len(X))
    wanted = sum(c * 0.5 * sum(e * e for e in row) for c, row in zip(counts, off, strict=True)) / len(X)
    found = model.eval_cost(Judged(rows, lambda t: (t, be64.array([mask]))))
    assert found == pytest.approx(wanted, rel=1e-9)


# --- mistakes --------------------------------------------------------------------------------------------------------

X, Y = blobs()

MISTAKES: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "no data": (lambda: ArrayIterator(X[:0], Y[:0], CLASSES), None, ValueError, "of one row at least"),
    "less data than a minibatch": (lambda: ArrayIterator(X[:7], Y[:7], CLASSES), None, ValueError, "7 rows .* of 8"),
    "more labels than data": (lambda: ArrayIterator(X[:59], Y, CLASSES), None, ValueError, "X has 59, y has 60"),
    "labels as they are": (lambda: ArrayIterator(X, Y, make_onehot=False), None, ValueError, r"\(3, 8\).*\(1, 8\)"),
    "labels of other classes": (lambda: ArrayIterator(X, Y, 4), None, ValueError, r"\(3, 8\).*\(4, 8\)"),
    "inputs of another shape": (lambda: ArrayIterator(X[:, :1], Y, CLASSES), None, ValueError, r"\(2, 8\).*\(1, 8\)"),
    "two costs for one output": (data, Multicost([GeneralizedCost(MeanSquared())] * 2), ValueError, "2 costs.* 1 kind"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_data_and_costs_that_do_not_fit_are_told_and_nothing_is_learned(name):
    dataset, cost, kind, words = MISTAKES[name]
    model = start()
    model.initialize(data())
    before = model.get_weights()
    with pytest.raises(kind, match=words):
        model.fit(dataset(), cost or CrossEntropyMulti(), Adam(), 1)
    assert same(model.get_weights(), before)
    model.fit(data(), CrossEntropyMulti(), Adam(learning_rate=0.05), 1)
    assert not same(model.get_weights(), before)


class Once(NervanaDataIterator):
    """Data that is used up after one epoch."""

    ndata, nbatches, shape = 8, 1, 2

    def __init__(self) -> None:
        super().__init__()
        self.rows = iter(ArrayIterator(*(part[:8] for part in blobs()), nclass=CLASSES))

    def __iter__(self):
        return self.rows


def test_an_epoch_without_minibatches_is_told():
    model = start()
    with pytest.raises(ValueError, match=r"model: epoch 0 has no minibatches; got <test_models.Nothing"):
        model.fit(Nothing(), CrossEntropyMulti(), Adam(), 3)
    with pytest.raises(ValueError, match=r"model: epoch 1 has no minibatches; got <test_models.Once"):
        model.fit(Once(), CrossEntropyMulti(), Adam(), 3)
    assert model.epoch_index == 1


NOT_TAKEN: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "arrays": ({"dataset": X}, TypeError, r"dataset is a data set, such as ArrayIterator\(X, y\); got array"),
    "no data": ({"dataset": None}, TypeError, r"dataset is a data set, .*; got None"),
    "a cost's class": ({"cost": CrossEntropyMulti}, TypeError, r"cost is an object such as CrossEntropyMulti\(\); got"),
    "a class of costs": ({"cost": GeneralizedCost}, TypeError, "cost is an object .*; got <class"),
    "a cost's name": ({"cost": "mse"}, TypeError, r"cost is an object such as CrossEntropyMulti\(\); got 'mse'"),
    "a metric": ({"cost": Accuracy()}, TypeError, "cost is an object .*; got <neonlite"),
    "no cost": ({"cost": None}, TypeError, "cost is an object .*; got None"),
    "an optimizer's class": ({"optimizer": Adam}, TypeError, r"optimizer is an object such as Adam\(\); got <class"),
    "no optimizer": ({"optimizer": None}, TypeError, "optimizer is an object .*; got None"),
    "half an epoch": ({"num_epochs": 1.5}, TypeError, "num_epochs is a whole number from 0; got 1.5"),
    "NumPy's one and a half": ({"num_epochs": np.float64(1.5)}, TypeError, "num_epochs is a whole number from 0"),
    "epochs that are none": ({"num_epochs": True}, TypeError, "num_epochs is a whole number from 0; got True"),
    "NumPy's truth": ({"num_epochs": np.True_}, TypeError, "num_epochs is a whole number from 0; got"),
    "epochs as words": ({"num_epochs": "3"}, TypeError, "num_epochs is a whole number from 0; got '3'"),
    "epochs before": ({"num_epochs": -1}, ValueError, "num_epochs is a whole number from 0; got -1"),
    "a listener's class": ({"callbacks": Listener}, TypeError, r"callbacks are Callbacks\(model\), or a Listener; got"),
    "an empty list": ({"callbacks": []}, TypeError, r"callbacks are Callbacks\(model\), or a Listener; got \[\]"),
    "a list": ({"callbacks": [Listener()]}, TypeError, r"callbacks are Callbacks\(model\), or a Listener; got \[<"),
}


@pytest.mark.parametrize("name", NOT_TAKEN)
def test_what_fit_does_not_take_is_told_before_it_begins(name):
    given, kind, words = NOT_TAKEN[name]
    model = start()
    args = {"dataset": data(), "cost": CrossEntropyMulti(), "optimizer": Adam(), "num_epochs": 1, **given}
    with pytest.raises(kind, match=f"model.fit: {words}"):
        model.fit(**args)
    assert not model.initialized
    assert model.optimizer is None


def test_callbacks_of_another_model_are_told():
    model, other = start(), start()
    with pytest.raises(ValueError, match=r"model.fit: the callbacks are those of another model, <neonlite"):
        model.fit(data(), CrossEntropyMulti(), Adam(), 1, Callbacks(other, progress_bar=False))


@pytest.mark.parametrize(
    "metric", [Accuracy, "accuracy", None, CrossEntropyMulti()], ids=["class", "word", "none", "cost"]
)
def test_what_is_no_metric_is_told(metric):
    model = start()
    with pytest.raises(TypeError, match=r"model.eval: a metric is an object such as Accuracy\(\); got "):
        model.eval(data(), metric)
    assert not model.initialized


class NoRows(Nothing):
    """Data that says so."""

    ndata = 0


@pytest.mark.parametrize(
    ("dataset", "kind", "words"),
    [
        (Nothing, ValueError, "what is judged has one row or more; <test_models.Nothing .* has none"),
        (NoRows, ValueError, "what is judged has one row or more; <test_models.NoRows .* has none"),
        (lambda: X, TypeError, r"what is judged is a data set, such as ArrayIterator\(X, y\); got array"),
    ],
)
def test_what_can_not_be_judged_is_told(dataset, kind, words):
    model = start()
    model.initialize(data(), CrossEntropyMulti())
    for act in (lambda given: model.eval(given, Accuracy()), model.eval_cost, model.get_outputs):
        with pytest.raises(kind, match=f"model: {words}"):
            act(dataset())


@pytest.mark.parametrize(
    ("rows", "kind", "words"),
    [
        ([], ValueError, "takes one row or more"),
        (None, TypeError, "got one of object: None"),
        (3.0, ValueError, "of one row at least; got"),
    ],
    ids=str,
)
def test_what_can_not_be_predicted_is_told(rows, kind, words):
    model = start()
    model.initialize(2)
    with pytest.raises(kind, match=words):
        model.predict(rows)
