"""Model: training, interruption, checkpoints, and errors."""

from __future__ import annotations

import json
import signal
import threading
from typing import Any

import numpy as np
import pytest
from helpers.small_models import CLASSES, Interrupting, Nothing, X, Y, blobs, data, network, same, start

from neonlite import gen_backend
from neonlite.callbacks import CallbackBase, Callbacks
from neonlite.data import ArrayIterator, NervanaDataIterator
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import BranchNode, GeneralizedCost, GeneralizedCostMask, Linear, Multicost, SingleOutputTree, Tree
from neonlite.models import CheckpointError, Model
from neonlite.optimizers import Adam, GradientDescentMomentum
from neonlite.transforms import Accuracy, CrossEntropyMulti, MeanSquared, Misclassification, PrecisionRecall, SumSquared

# --- training --------------------------------------------------------------------------------------------------------


def test_a_model_is_trained_and_evaluated(be):
    be.bsz = 8
    model, train = Model(network()), data(shuffle=True)
    model.initialize(train)
    before = model.eval(train, Accuracy())[0]
    model.fit(train, CrossEntropyMulti(), Adam(learning_rate=0.05), num_epochs=15)
    assert model.eval(train, Accuracy())[0] > max(before, 0.9)
    assert model.epoch_index == 15
    assert model.total_cost < 0.4


def test_a_metric_converts_to_a_scalar(cpu):
    model, train = start(), data()
    model.fit(train, CrossEntropyMulti(), Adam(learning_rate=0.05), 2)
    error = model.eval(train, Misclassification())
    expected = error[0]
    assert error.shape == (1,)
    assert "%.1f%%" % (error * 100) == f"{100 * expected:.1f}%"
    assert f"{error:.3f} {100 * (1 - error):.2f}" == f"{expected:.3f} {100 * (1 - expected):.2f}"
    assert float(error) == expected
    assert int(error * 100) == int(100 * expected)
    assert round(error, 2) == round(float(expected), 2)
    assert (f"{error}", repr(error)) == (str(np.array([expected])), repr(np.array([expected])))
    several = model.eval(train, PrecisionRecall(CLASSES))
    assert several.shape == (2,)
    assert repr(several).startswith("array(")
    for wrong in (lambda: float(several), lambda: f"{several:.1f}", lambda: int(several)):
        with pytest.raises(TypeError, match="expected one element, got "):
            wrong()


def test_an_assigned_cost_is_initialized_when_it_is_passed(cpu):
    result = []
    for assigned in (False, True):
        model, train, cost = start(), data(), GeneralizedCost(CrossEntropyMulti())
        if assigned:
            model.cost = cost
        model.initialize(train, cost=cost)
        assert model.cost.network is model.layers
        result.append(model.eval_cost(train))
    assert result[0] == result[1]
    other = model.cost = GeneralizedCost(MeanSquared())
    model.fit(train, cost, Adam(), 1)
    assert model.cost is cost
    model.fit(train, other, Adam(), 2)
    assert model.cost is other


def test_the_batch_size_may_be_set_before_the_network_is_configured():
    model = start(batch_size=0)
    model.set_batch_size(np.int64(4))
    assert (type(model.be.bsz), model.be.bsz) == (int, 4)
    model.fit(data(), CrossEntropyMulti(), Adam(), 1)
    assert model.fprop(model.be.ones((model.layers.in_shape, 4))).shape[1] == 4
    assert model.layers.layers[0].outputs.shape[1] == 4


def test_a_second_fit_continues_with_the_next_epoch(cpu):
    cpu.bsz = 8
    whole, parts = [], []
    for result, ends in ((whole, [4]), (parts, [1, 2, 4])):
        model = start()
        train, cost, optimizer = data(shuffle=True), CrossEntropyMulti(), Adam(learning_rate=0.05)
        for end in ends:
            model.fit(train, cost, optimizer, num_epochs=end)
        result.append(model.get_weights())
    assert same(whole[0], parts[0])


@pytest.mark.parametrize("partial_last", [True, False])
def test_each_row_counts_once(partial_last):
    gen_backend("cpu", rng_seed=1, batch_size=7)
    model, sets = Model(network()), data(partial_last=partial_last)
    model.initialize(sets)
    X, y = blobs()
    right = model.predict(X).argmax(axis=1) == y
    assert model.eval(sets, Misclassification())[0] == pytest.approx(1 - right.mean())
    assert np.array_equal(model.get_outputs(sets), model.predict(X))
    assert model.be.bsz == 7


def test_a_partial_last_minibatch_is_trained_on():
    be = gen_backend("cpu", rng_seed=1, batch_size=7)
    model = Model([Linear(CLASSES, Gaussian(), name="lin")])
    model.fit(data(partial_last=True), MeanSquared(), GradientDescentMomentum(0.01, 0.0), num_epochs=1)
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

    class StepRecorder(CallbackBase):
        def on_minibatch_end(self, epoch, minibatch):
            costs.append(float(model.cost.cost.item()))

    model.fit(data(), CrossEntropyMulti(), Adam(), 1, callbacks=StepRecorder())
    assert model.total_cost == pytest.approx(np.mean(costs), rel=1e-6)


def test_a_cost_may_cache_values_for_its_derivative():
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


def test_training_continues_with_another_batch_size():
    def line() -> Model:
        return Model([Linear(CLASSES, Gaussian(), name="lin")])

    be = gen_backend("cpu", rng_seed=1, batch_size=8)
    model, other, optimizer = line(), line(), GradientDescentMomentum(0.01, 0.0)
    model.fit(data(partial_last=True), MeanSquared(), optimizer, 1)
    weights = model.get_weights()
    for n in (4, 8, 16):
        be.bsz = n
        other = line()
        other.initialize(2)
        other.set_weights(weights)
        other.fit(data(partial_last=True), MeanSquared(), GradientDescentMomentum(0.01, 0.0), 1)
        model.fit(data(partial_last=True), MeanSquared(), optimizer, model.epoch_index + 1)
        weights = model.get_weights()
        np.testing.assert_allclose(weights["lin.W"], other.get_weights()["lin.W"], rtol=1e-5)
        assert np.array_equal(model.get_outputs(data(partial_last=True)), model.predict(blobs()[0]))


# --- interruption ----------------------------------------------------------------------------------------------------


NOTEBOOK = [  # the cells of a user's notebook
    "be = gen_backend('cpu', rng_seed=1)",
    "be.bsz = 16",
    "train, valid = (ArrayIterator(*blobs(seed=i), nclass=CLASSES, shuffle=not i) for i in (0, 1))",
    "model = Model(network())",
    "cost, optimizer, callbacks = CrossEntropyMulti(), Adam(), Callbacks(model, eval_set=valid, metric=Accuracy())",
    "model.fit(train, cost, optimizer, model.epoch_index + 2, callbacks)",
    "accuracy = model.eval(valid, Accuracy())[0]",
    "answers = model.predict(blobs()[0])",
    "W = model.layers.layers[0].W; W -= 0.01 * W; result = (W * W).get()",
]


@pytest.mark.parametrize("again", range(len(NOTEBOOK)))
def test_a_cell_of_a_notebook_that_is_run_twice_breaks_no_later_one(again):
    names = dict(globals())
    for cell in [*NOTEBOOK, NOTEBOOK[again], *NOTEBOOK[4:], NOTEBOOK[0], *NOTEBOOK[5:]]:
        exec(cell, names)
    assert np.isfinite(names["result"]).all()
    assert 0 <= names["accuracy"] <= 1


@pytest.mark.parametrize("at", [0, 1, 6, 7, 8, 17])
def test_ctrl_c_ends_training_after_a_complete_step_and_fit_continues(at):
    straight = start()
    straight.fit(data(shuffle=True), CrossEntropyMulti(), Adam(learning_rate=0.05), 3)
    model = start()
    train, optimizer = data(shuffle=True), Adam(learning_rate=0.05)
    stop = Interrupting(model, at)
    with pytest.raises(KeyboardInterrupt):
        model.fit(train, CrossEntropyMulti(), optimizer, 3, callbacks=stop)
    assert stop.ended
    assert stop.step == at + 1  # the current step was completed
    assert optimizer.t == at + 1
    model.fit(train, CrossEntropyMulti(), optimizer, 3)
    assert same(model.get_weights(), straight.get_weights())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_failed_step_is_repeated_by_the_next_fit():
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


# --- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 3, 7, 12])
def test_training_resumed_from_a_checkpoint_is_bit_identical(tmp_path, at):
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


def test_a_model_is_created_from_its_checkpoint(tmp_path, be):
    be.bsz = 8
    model = Model(network())
    model.fit(data(), GeneralizedCost(CrossEntropyMulti()), Adam(learning_rate=0.05), 2)
    model.save_params(tmp_path / "m")
    again = Model(tmp_path / "m")
    assert str(again) == str(model)
    assert again.epoch_index == 2
    X, _ = blobs()
    assert np.array_equal(again.predict(X), model.predict(X))


def test_weights_are_saved_and_loaded_without_training_state(tmp_path):
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


def test_a_description_creates_the_network_and_with_arrays_the_model():
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
    model.layers.layers[0].W[:] = 0  # the arrays are copies
    again = Model(whole)
    assert again.get_weights()["hidden.W"].any()
    assert (again.epoch_index, again.optimizer.t) == (1, 8)
    assert (Model(whole, weights_only=True).epoch_index, Model(whole, weights_only=True).optimizer) == (0, None)


def test_training_resumed_from_serialize_is_bit_identical(tmp_path):
    straight = start()
    straight.fit(data(shuffle=True), CrossEntropyMulti(), Adam(learning_rate=0.05), 3)
    first = start()
    with pytest.raises(KeyboardInterrupt):
        first.fit(
            data(shuffle=True), CrossEntropyMulti(), Adam(learning_rate=0.05), 3, callbacks=Interrupting(first, 10)
        )
    saved = first.serialize(tmp_path / "m")
    for _ in range(2):  # the description is not changed
        gen_backend("cpu", rng_seed=99, batch_size=8)
        model = Model(network())
        model.deserialize(saved, data())
        assert model.initialized
        model.fit(data(shuffle=True), CrossEntropyMulti(), model.optimizer, 3)
        assert same(model.get_weights(), straight.get_weights())
    assert same(Model(tmp_path / "m").get_weights(), Model(saved).get_weights())
    with pytest.raises(CheckpointError, match=r"the description: training\.epoch_index"):
        Model(saved | {"training": saved["training"] | {"epoch_index": "1"}})


def test_load_weights_is_deprecated(tmp_path):
    model = start()
    model.fit(data(), CrossEntropyMulti(), Adam(), 1)
    model.save_params(tmp_path / "m")
    again = start()
    with pytest.warns(DeprecationWarning, match="load_params"):
        again.load_weights(tmp_path / "m")
    assert same(again.get_weights(), Model(tmp_path / "m").get_weights())


# --- benchmarks ------------------------------------------------------------------------------------------------------


class OtherTargets(NervanaDataIterator):
    """The rows of another data set, with other targets."""

    def __init__(self, rows: Any, targets: Any) -> None:
        super().__init__()
        self.rows, self.targets, self.shape = rows, targets, rows.shape
        self.ndata, self.nbatches = rows.ndata, rows.nbatches

    def __iter__(self):
        return ((x, self.targets(t)) for x, t in self.rows)


@pytest.mark.parametrize(("tree", "second"), [(Tree, False), (SingleOutputTree, True)])
def test_an_output_without_a_target_does_not_count_in_the_cost(be64, tree, second):
    be64.bsz = 8
    rows = data()
    branch = BranchNode("two")
    model = Model(tree([[branch, Linear(CLASSES, Gaussian(0.1))], [branch, Linear(CLASSES, Gaussian(3.0))]]))
    model.initialize(rows, Multicost([GeneralizedCost(MeanSquared()) for _ in range(2)], weights=[0.5, 2.0]))
    model.cost.get_cost(*next((model.fprop(x), [t, t]) for x, t in rows))  # caches both costs
    result = model.eval_cost(OtherTargets(rows, lambda t: [t, t if second else None]))
    X, y = blobs()
    outputs = X @ model.layers.leaves()[1].W.get().T
    right = np.eye(CLASSES)[np.asarray(y).reshape(-1)]
    assert result == pytest.approx(0.5 * np.mean((outputs - right) ** 2) / 2, rel=1e-9)


def test_a_masked_cost_is_the_mean_over_all_rows_with_zeros_for_masked_ones(be64):
    be64.bsz = 8
    rows = data()
    model = Model([Linear(CLASSES, Gaussian(0.1))])
    mask = [0.0, 1, 1, 0, 0, 1, 0, 1]
    model.initialize(rows, GeneralizedCostMask(SumSquared()))
    X, y = blobs()
    off = X @ model.layers.leaves()[0].W.get().T - np.eye(CLASSES)[np.asarray(y).reshape(-1)]
    counts = np.resize(mask, len(X))
    expected = sum(c * 0.5 * sum(e * e for e in row) for c, row in zip(counts, off, strict=True)) / len(X)
    result = model.eval_cost(OtherTargets(rows, lambda t: (t, be64.array([mask]))))
    assert result == pytest.approx(expected, rel=1e-9)


# --- mistakes --------------------------------------------------------------------------------------------------------


MISTAKES: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "no data": (lambda: ArrayIterator(X[:0], Y[:0], CLASSES), None, ValueError, "with at least one row"),
    "less data than a minibatch": (
        lambda: ArrayIterator(X[:7], Y[:7], CLASSES),
        None,
        ValueError,
        "of at most 7, .* got 8",
    ),
    "more labels than data": (lambda: ArrayIterator(X[:59], Y, CLASSES), None, ValueError, "X has 59, y has 60"),
    "labels as they are": (lambda: ArrayIterator(X, Y, make_onehot=False), None, ValueError, r"\(3, 8\).*\(1, 8\)"),
    "labels of other classes": (lambda: ArrayIterator(X, Y, 4), None, ValueError, r"3 outputs .*\(4, 8\) with 4"),
    "inputs of another shape": (lambda: ArrayIterator(X[:, :1], Y, CLASSES), None, ValueError, r"\(2, N\).*\(1, 8\)"),
    "two costs for one output": (
        data,
        Multicost([GeneralizedCost(MeanSquared())] * 2),
        ValueError,
        "a list of 2 outputs, one for each cost, .*, got .* with one output; it takes a cost without Multicost",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_data_and_costs_that_do_not_match_are_reported_and_nothing_is_trained(name):
    dataset, cost, kind, message = MISTAKES[name]
    model = start()
    model.initialize(data())
    before = model.get_weights()
    with pytest.raises(kind, match=message):
        model.fit(dataset(), cost or CrossEntropyMulti(), Adam(), 1)
    assert same(model.get_weights(), before)
    model.fit(data(), CrossEntropyMulti(), Adam(learning_rate=0.05), 1)
    assert not same(model.get_weights(), before)


class Once(NervanaDataIterator):
    """A data set that is exhausted after one epoch."""

    ndata, nbatches, shape = 8, 1, 2

    def __init__(self) -> None:
        super().__init__()
        self.rows = iter(ArrayIterator(*(part[:8] for part in blobs()), nclass=CLASSES))

    def __iter__(self):
        return self.rows


def test_an_epoch_without_minibatches_is_reported():
    model = start()
    with pytest.raises(ValueError, match=r"model: expected at least one minibatch in epoch 1, got none from Nothing"):
        model.fit(Nothing(), CrossEntropyMulti(), Adam(), 3)
    with pytest.raises(ValueError, match=r"model: expected at least one minibatch in epoch 2, got none from Once"):
        model.fit(Once(), CrossEntropyMulti(), Adam(), 3)
    assert model.epoch_index == 1


NOT_TAKEN: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "arrays": (
        {"dataset": X},
        TypeError,
        r"expected a data set, such as ArrayIterator\(X, y\), for dataset, got an array",
    ),
    "no data": ({"dataset": None}, TypeError, "expected a data set, .* for dataset, got None"),
    "a cost's class": (
        {"cost": CrossEntropyMulti},
        TypeError,
        r"expected a cost, .* for cost, got",
    ),
    "a class of costs": ({"cost": GeneralizedCost}, TypeError, "expected a cost, .*, got <class"),
    "an unknown cost": ({"cost": "nse"}, ValueError, "expected one of 'binary_cross_entropy', .*'mse', .* got 'nse'"),
    "a metric": ({"cost": Accuracy()}, TypeError, r"expected a cost, .*, got Accuracy\(\)"),
    "no cost": ({"cost": None}, TypeError, "expected a cost, .*, got None"),
    "an optimizer's class": (
        {"optimizer": Adam},
        TypeError,
        r"expected an optimizer, .* for optimizer, got <class",
    ),
    "an unknown optimizer": ({"optimizer": "adan"}, ValueError, "expected one of .*'adam', .* got 'adan'"),
    "no optimizer": ({"optimizer": None}, TypeError, "expected an optimizer, .*, got None"),
    "half an epoch": ({"num_epochs": 1.5}, TypeError, "expected an integer >= 0 for num_epochs, got 1.5"),
    "NumPy's one and a half": ({"num_epochs": np.float64(1.5)}, TypeError, "expected an integer >= 0 for num_epochs"),
    "epochs that are none": ({"num_epochs": True}, TypeError, "expected an integer >= 0 for num_epochs, got True"),
    "NumPy's truth": ({"num_epochs": np.True_}, TypeError, "expected an integer >= 0 for num_epochs, got"),
    "epochs as words": ({"num_epochs": "3"}, TypeError, "expected an integer >= 0 for num_epochs, got '3'"),
    "epochs before": ({"num_epochs": -1}, ValueError, "expected an integer >= 0 for num_epochs, got -1"),
    "a class of callbacks": (
        {"callbacks": CallbackBase},
        TypeError,
        r"expected callbacks, such as Callbacks\(model\), for callbacks, got",
    ),
    "an empty list": (
        {"callbacks": []},
        TypeError,
        r"expected callbacks, .* for callbacks, got \[\]",
    ),
    "a list": (
        {"callbacks": [CallbackBase()]},
        TypeError,
        r"expected callbacks, such as Callbacks\(model\), for callbacks, got \[CallbackBase\(\)\]",
    ),
}


@pytest.mark.parametrize("name", NOT_TAKEN)
def test_wrong_arguments_of_fit_are_reported_before_it_starts(name):
    arguments, kind, message = NOT_TAKEN[name]
    model = start()
    args = {"dataset": data(), "cost": CrossEntropyMulti(), "optimizer": Adam(), "num_epochs": 1, **arguments}
    with pytest.raises(kind, match=f"model.fit: {message}"):
        model.fit(**args)
    assert not model.initialized
    assert model.optimizer is None


def test_callbacks_of_another_model_are_reported():
    model, other = start(), start()
    with pytest.raises(ValueError, match=r"model.fit: expected callbacks of this model, got those of 'model'"):
        model.fit(data(), CrossEntropyMulti(), Adam(), 1, Callbacks(other, progress_bar=False))


@pytest.mark.parametrize("metric", [Accuracy, None, 5], ids=["class", "none", "number"])
def test_an_argument_that_is_not_a_metric_is_reported(metric):
    model = start()
    with pytest.raises(TypeError, match=r"model.eval: expected a metric, such as Accuracy\(\), got "):
        model.eval(data(), metric)
    assert not model.initialized


class NoRows(Nothing):
    """A data set that declares 0 rows."""

    ndata = 0


@pytest.mark.parametrize(
    ("dataset", "kind", "message"),
    [
        (Nothing, ValueError, "expected a data set with at least one row, got Nothing"),
        (NoRows, ValueError, "expected a data set with at least one row, got NoRows"),
        (lambda: X, TypeError, r"expected a data set, such as ArrayIterator\(X, y\), for dataset, got an array"),
    ],
)
def test_data_that_cannot_be_evaluated_is_reported(dataset, kind, message):
    model = start()
    model.initialize(data(), CrossEntropyMulti())
    for act in (lambda arguments: model.eval(arguments, Accuracy()), model.eval_cost, model.get_outputs):
        with pytest.raises(kind, match=f"model: {message}"):
            act(dataset())


def test_an_error_of_a_metric_leaves_the_position_of_the_data_set_at_once():
    class Fails(Accuracy):
        def __call__(self, *arguments, **options):
            raise OverflowError

    model, dataset = start(), data()
    model.initialize(dataset, CrossEntropyMulti())
    before = dataset.get_state()
    iter(dataset).__next__()
    iter(dataset).__next__()
    moved = dataset.get_state()
    assert moved != before
    with pytest.raises(OverflowError) as raised:
        model.eval(dataset, Fails())
    assert dataset.get_state() == {**moved, "minibatch": 0}
    assert raised.traceback  # whose frames are alive


@pytest.mark.parametrize(
    ("rows", "kind", "message"),
    [
        ([], ValueError, "with at least one row, got"),
        (None, TypeError, "got object: None"),
        (3.0, ValueError, "with at least one row, got"),
    ],
    ids=str,
)
def test_data_that_cannot_be_predicted_is_reported(rows, kind, message):
    model = start()
    model.initialize(2)
    with pytest.raises(kind, match=message):
        model.predict(rows)


def test_the_summary_of_a_configured_model_is_that_of_the_data_it_is_given():
    gen_backend("cpu", batch_size=4)
    model = Model([Linear(3, Constant(1))])
    with pytest.raises(RuntimeError, match=r"expected a configured network, .*: summary\(shape\)"):
        model.summary()
    model.initialize(5)
    assert [model.summary(x).rows[-1].out_shape for x in (None, 5, (5, 2))] == [3, 3, (3, 2)]
    with pytest.raises(ValueError, match=r"expected W of shape .* for inputs of shape 7"):
        model.summary(7)
    assert model.data_shape == 5
    assert "total  " in str(model.summary())
    model.initialize(5, MeanSquared())
    assert "total (with cost)" in str(model.summary())
