"""Data parallel training on 2, 3 and 4 ranks: weights, costs, files, the end of a training, and errors.

The ranks run the functions of training_ranks.py; all of a number of ranks run in one mpiexec.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import training_ranks
from helpers.data_parallel import CLASSES, EPOCHS, TOTAL, assert_same, optimizer, problem, rows
from helpers.mpi import Ranks, needs_mpi, shared_folder

from neonlite import Backend, cleanup_backend, gen_backend
from neonlite.distributed import world
from neonlite.layers import Dropout
from neonlite.models import Model
from neonlite.models.training import GradientProgram
from neonlite.models.training_state import read_checkpoint
from neonlite.optimizers import Adam, get_param_list

IN_TWO = (
    "deterministic fastest on_runtimes partial_rounding running_statistics starting_from_rank_0 overlapping compressed "
    "on_files metrics accumulated weighted files uninterrupted first_part second_part last_part endings early_stop "
    "signals mismatches after_an_error custom_loops other_runtimes other_weights no_batch_size loaded_on_rank_0 "
    "loaded_before_connecting sharded sharded_frozen sharded_continued sharded_parts sharded_refused"
)
IN_THREE = (
    "deterministic fastest unequal partial_rounding running_statistics starting_from_rank_0 overlapping metrics "
    "compressed accumulated weighted files endings early_stop signals mismatches custom_loops other_weights sharded "
    "sharded_continued sharded_parts sharded_on_more"
)
IN_FOUR = "deterministic fastest partial_rounding second_part"
TOGETHER = {2: IN_TWO.split(), 3: IN_THREE.split(), 4: IN_FOUR.split()}

pytestmark = [needs_mpi, pytest.mark.long]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return Ranks(Path(training_ranks.__file__), shared_folder(tmp_path_factory, "training"), TOGETHER)


@pytest.fixture(autouse=True)
def on_one_thread(threads):
    """Use one thread, as the ranks do: the bits of a result may depend on the number of threads."""
    threads(1)
    yield
    cleanup_backend()


def distance(weights: dict[str, Any], expected: dict[str, Any]) -> float:
    """Return the largest difference of a weight, relative to the largest weight of its tensor."""
    assert weights.keys() == expected.keys()
    return max(abs(weights[name] - w).max() / abs(w).max() for name, w in expected.items())


# --- oracles: one process --------------------------------------------------------------------------------------------


def plain(kind: str, rule: str, epochs: int = 0, accumulate: int = 1, **options: Any) -> dict[str, Any]:
    """Return the weights after training in one process."""
    cleanup_backend()
    gen_backend(options.pop("runtime", "cpu"), rng_seed=7, batch_size=TOTAL, **options)
    layers, dataset, cost = problem(kind)
    model = Model(layers)
    model.fit(dataset, cost, optimizer(rule), epochs or EPOCHS[kind], accumulate=accumulate)
    return model.get_weights()


class GivenDropout(Dropout):
    """Dropout with a mask that is set before."""

    given: Any = None

    def training_formula(self, x):
        return x * self.given


def simulated(
    kind: str, rule: str, sizes: list[int], epochs: int = 0, record: list[Any] | None = None, **options: Any
) -> dict[str, Any]:
    """Return the weights after a data parallel training, computed in one process, one part of a minibatch at a time.

    Each part has a copy of the network. For each minibatch, their gradients are added in order, and the optimizer of
    the first copy updates its weights by the sum divided by all columns; the others copy its weights.
    """
    cleanup_backend()
    be = gen_backend("cpu", rng_seed=7, batch_size=TOTAL, deterministic=True, **options)
    initial, copies = be.rng_get_state(), []
    for size in sizes:
        be.rng_set_state(initial)
        layers, dataset, cost = problem(kind, GivenDropout)
        with be.batch_size(size):
            copies.append(Model(layers))
            copies[-1].initialize(dataset, cost)
            copies[-1].layers.allocate_buffers()
            for layer in copies[-1].layers:
                if isinstance(layer, GivenDropout):
                    layer.given = be.zeros(layer.outputs.shape)
    programs = [GradientProgram(model) for model in copies]
    first, update = copies[0], optimizer(rule)
    stops = list(itertools.accumulate(sizes))
    for epoch in range(epochs or EPOCHS[kind]):
        for x, t in dataset:
            steps = x.shape[1] // TOTAL
            whole = [tensor.get().reshape(-1, steps, TOTAL) for tensor in (x, t)]
            masks = draw_masks(be, first)
            gradients: list[Any] = []
            for model, program, size, stop in zip(copies, programs, sizes, stops, strict=True):
                columns = slice(stop - size, stop)
                with be.batch_size(size):
                    for layer, mask in masks.items():
                        model.layers.layers[layer].given[:] = be.array(mask[:, columns])
                    xs, ts = (be.array(a[:, :, columns].reshape(len(a), -1)) for a in whole)
                    assert program(xs, ts, None) is not None
                own = [dw.get() for (_, dw), _ in get_param_list(model.layers_to_optimize)]
                gradients = [a + b for a, b in zip(gradients, own, strict=True)] if gradients else own
            for ((_, dw), _), total in zip(get_param_list(first.layers_to_optimize), gradients, strict=True):
                dw[:] = be.array(total)
            update.optimize(first.layers_to_optimize, epoch)
            combine_weights(copies, sizes)
            if record is not None:
                record.append(first.get_weights())
    return first.get_weights()


def draw_masks(be: Backend, model: Model) -> dict[int, Any]:
    """Return the mask of all columns for each dropout layer, by the index of the layer."""
    masks = {}
    for i, layer in enumerate(model.layers.layers):
        if isinstance(layer, Dropout):
            mask = be.empty((layer.given.shape[0], TOTAL))
            be.make_binary_mask(mask, layer.keep)
            masks[i] = mask.get()
    return masks


def combine_weights(copies: list[Model], sizes: list[int]) -> None:
    """Give all copies the weights of the first one, and running statistics that are the mean of all."""
    every = [model.get_weights() for model in copies]
    weights = dict(every[0])
    for name, w in weights.items():
        if name.endswith(("gmean", "gvar")):
            total = sum(n * other[name].astype(np.float64) for n, other in zip(sizes, every, strict=True))
            weights[name] = (total / sum(sizes)).astype(w.dtype)
    for model in copies:
        model.set_weights(weights)


def split(n: int) -> list[int]:
    return [TOTAL // n] * n


# --- weights ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("rule", ["sgd", "adam"])
@pytest.mark.parametrize("kind", ["mlp", "lenet", "lstm", "norm"])
def test_deterministic_training_has_the_bits_of_sums_in_the_order_of_the_ranks(ranks, kind, rule, n):
    weights = [result[kind, rule] for result in ranks("deterministic", n)]
    assert_same(weights)
    assert_same([weights[0], simulated(kind, rule, split(n))])


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("kind", training_ranks.STEPS_OF_200)
def test_deterministic_training_has_the_bits_of_sums_in_order_after_200_steps(ranks, kind, n):
    weights = [result[kind, "sgd"] for result in ranks("deterministic_200", n)]
    assert_same(weights)
    assert_same([weights[0], simulated(kind, "sgd", split(n), training_ranks.STEPS_OF_200[kind])])


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize(("dtype", "rule", "tolerance"), [("float32", "sgd", 1e-6), ("float64", "adam", 1e-12)])
@pytest.mark.parametrize("kind", ["mlp", "lenet", "lstm", "partial"])
def test_weights_are_those_of_one_process_up_to_rounding(ranks, kind, dtype, rule, tolerance, n):
    """The last minibatch of "partial" has 2 rows, fewer than 3 or 4 ranks."""
    weights = [result[kind, dtype, rule] for result in ranks("fastest", n)]
    assert_same(weights)
    assert distance(weights[0], plain(kind, rule, datatype=dtype)) <= tolerance


@pytest.mark.parametrize("n", [2, 3])
def test_updates_for_several_minibatches_are_those_of_one_process(ranks, n):
    """The last update of "mlp" in an epoch is by one minibatch; the last minibatch of "partial" has 2 rows."""
    results = ranks("accumulated", n)
    for key in itertools.product(("mlp", "partial"), (False, True)):
        weights = [result[key] for result in results]
        assert_same(weights)
        assert distance(weights[0], plain(key[0], "adam", accumulate=2, datatype="float64")) <= 1e-12
    assert_same([result[key] for result in results for key in ("continued", "loaded", ("mlp", False))])
    assert [result["waiting"] for result in results] == [(TOTAL, [1] * 6)] * n


def test_weights_are_those_of_one_process_on_every_runtime(ranks):
    results = ranks("on_runtimes", 2)
    for runtime in results[0]:
        weights = [result[runtime] for result in results]
        assert_same(weights)
        assert distance(weights[0], plain("partial", "sgd", runtime=runtime)) <= 1e-6


@pytest.mark.parametrize("kind", ["lenet", "lstm", "partial"])
def test_ranks_may_have_different_batch_sizes(ranks, kind):
    weights = [result[kind] for result in ranks("unequal", 3)]
    assert_same(weights)
    assert distance(weights[0], plain(kind, "adam", datatype="float64")) <= 1e-12


@pytest.mark.parametrize("n", [2, 3, 4])
def test_random_numbers_stay_the_same_after_a_minibatch_without_a_column_for_some_ranks(ranks, n):
    results = ranks("partial_rounding", n)
    assert_same([weights for weights, _ in results])
    assert len({state for _, state in results}) == 1
    gen_backend("cpu", rng_seed=7, batch_size=TOTAL, datatype="float16")
    layers, dataset, cost = problem("partial")
    model = Model(layers)
    model.fit(dataset, cost, Adam(learning_rate=0.01, stochastic_round=True), 5)
    assert results[0][1] == model.be.rng_get_state()


@pytest.mark.parametrize("n", [2, 3])
def test_weights_and_random_numbers_are_those_of_rank_0(ranks, n):
    results = ranks("starting_from_rank_0", n)
    assert any((results[1]["before"][name] != w).any() for name, w in results[0]["before"].items())
    assert_same([result["after"] for result in results])
    cleanup_backend()
    gen_backend("cpu", rng_seed=100, batch_size=TOTAL)
    layers, dataset, cost = problem("lenet")
    model = Model(layers)
    model.fit(dataset, cost, Adam(learning_rate=0.01), 2)
    assert distance(results[0]["after"], model.get_weights()) <= 1e-4


def test_training_on_files_has_the_bits_of_any_number_of_ranks_and_of_a_part_that_was_resumed(ranks):
    results = ranks("on_files", 2)
    for result in results:
        assert_same([result["whole"], result["resumed"]])
    assert_same([result["whole"] for result in results])
    alone = training_ranks.on_files(world(), None)["whole"]
    assert distance(results[0]["whole"], alone) <= 1e-6


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-12)])
def test_running_statistics_are_the_mean_of_those_of_the_ranks(ranks, dtype, tolerance, n):
    results = [result[dtype] for result in ranks("running_statistics", n)]
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])
    record: list[Any] = []
    simulated("norm", "sgd", split(n), 2, record, datatype=dtype)
    expected = np.array([[weights["bn.gmean"], weights["bn.gvar"]] for weights in record])
    np.testing.assert_allclose(results[0], expected, rtol=tolerance, atol=tolerance)
    assert abs(expected[-1] - expected[0]).max() > 0.01


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("kind", ["mlp", "lenet", "lstm", "norm", "partial"])
def test_sums_during_the_backward_pass_have_the_same_bits_on_all_ranks(ranks, kind, n):
    results = ranks("overlapping", n)
    for overlap in (False, True):
        assert_same([result[kind, overlap][0] for result in results])
    assert distance(results[0][kind, False][0], results[0][kind, True][0]) <= 1e-5  # by the layers, one after another
    for result in results:
        assert result[kind, False][1:] == (1, 0)
        _, buckets, sums = result[kind, True]
        assert buckets >= 2
        assert sums >= buckets  # in some steps at least


@pytest.mark.parametrize("n", [2, 3])
def test_training_with_compressed_gradients_has_the_same_bits_on_all_ranks_and_is_close_to_that_without(ranks, n):
    pytest.importorskip("ml_dtypes")
    results = ranks("compressed", n)
    for overlap in (False, True):
        assert_same([result[True, overlap] for result in results])
        assert 1e-5 < distance(results[0][True, overlap], results[0][False, overlap]) < 0.02
    for result in results:
        assert (result["step", True] != result["step", False]).all()
        assert "expected compress_gradients to be the same on all processes, got True on rank 0" in result["error"]


# --- divided optimizer states ---

PARTS = training_ranks.PARTS
SHARDED_CASES = [*(("mlp", rule) for rule in training_ranks.SHARDED), ("partial", "adam"), ("lstm", "adam")]
SHARDED_CASES += [("norm", "scaled"), ("single", "adam")]


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("case", SHARDED_CASES, ids="-".join)
def test_divided_states_give_the_bits_of_states_of_all_parameters_on_all_ranks(ranks, case, n):
    results = ranks("sharded", n)
    assert_same([result[*case, shard][0] for result in results for shard in (False, True)])
    everywhere = {result[*case, False][1] for result in results}
    assert len(everywhere) == 1
    assert sum(result[*case, True][1] for result in results) == everywhere.pop()


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("case", SHARDED_CASES, ids="-".join)
def test_checkpoints_do_not_depend_on_whether_the_states_are_divided(ranks, case, n):
    ranks("sharded", n)
    (first, arrays), (other, other_arrays) = (
        read_checkpoint(ranks.folder / f"{case[0]}-{case[1]}-{shard}-of-{n}.model") for shard in (False, True)
    )
    assert any(name.startswith("states/") for name in arrays)
    assert_same([arrays, other_arrays])
    for description in (first, other):
        del description["training"]["callbacks"], description["training"]["optimizer"]  # with times and names
    assert other["training"] == first["training"]


def test_layers_that_are_trained_later_are_updated_and_sent_too(ranks):
    results = ranks("sharded_frozen", 2)
    for i in (0, 1):
        assert_same([result[shard][i] for result in results for shard in (False, True)])
    before, after = results[0][True]
    assert (before["hidden.W"] != after["hidden.W"]).any()


@pytest.mark.parametrize("n", [2, 3])
def test_states_may_be_divided_in_some_calls_of_fit_and_complete_in_others(ranks, n):
    results = ranks("sharded_continued", n)
    assert_same([weights for result in results for weights, _ in result.values()])
    complete = results[0][False, False, False][1][0]
    for parts in results[0]:
        for k, is_divided in enumerate(parts):
            sizes = [result[parts][1][k] for result in results]
            assert sum(sizes) == complete if is_divided else sizes == [complete] * n


@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize("n", [2, 3])
def test_a_checkpoint_of_divided_states_continues_with_the_same_bits(ranks, kind, n):
    assert_same([result[kind]["weights"] for result in ranks("sharded_parts", n)])
    if n == 2:
        assert_same([ranks("sharded_parts", 2)[0][kind]["weights"], ranks("uninterrupted", 2)[0][kind]])


@pytest.mark.parametrize("kind", PARTS)
def test_a_checkpoint_of_divided_states_continues_on_another_number_of_ranks(ranks, kind):
    ranks("sharded_parts", 2)
    weights = [result[kind]["weights"] for result in ranks("sharded_on_more", 3)]
    assert_same(weights)
    assert distance(weights[0], ranks("uninterrupted", 2)[0][kind]) <= 1e-2


@pytest.mark.parametrize(
    ("name", "expected"),
    {
        "save": "RuntimeError: model: expected the optimizer states of all parameters, got those of one rank",
        "copy": "RuntimeError: model: expected the optimizer states of all parameters",
        "averaged": "RuntimeError: model: expected the optimizer states of all parameters",
        "serialize": "expected the optimizer states of all parameters, got those of one rank",
        "optimize": "RuntimeError: WeightAverage: expected the optimizer states of all parameters",
        "fit alone": "RuntimeError: WeightAverage: expected the optimizer states of all parameters",
        "fit the same minibatches alone": "RuntimeError: Adam: expected the optimizer states of all parameters",
        "own optimizer": "TypeError: model.fit: world().shard_states: expected an optimizer that defines update_rule",
        "own step": "TypeError: model.fit: world().shard_states: expected a model with the train_step of Model, got a",
        "rounding": "ValueError: model.fit: world().shard_states: expected an optimizer without stochastic_round",
        "one rank": "expected shard_states to be the same on all processes, got True on rank 0 and False on rank 1",
    }.items(),
)
def test_what_needs_the_states_of_all_parameters_is_an_error_while_they_are_divided(ranks, name, expected):
    for result in ranks("sharded_refused", 2):
        assert expected in result[name]


# --- costs and metrics -----------------------------------------------------------------------------------------------


def assert_close(result: Any, expected: Any, tolerance: float = 1e-12) -> None:
    assert result.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(result[name], value, rtol=tolerance, atol=tolerance, err_msg=str(name))


@pytest.mark.parametrize("n", [2, 3])
def test_costs_and_metrics_are_those_of_one_process(ranks, tmp_path, n):
    expected = training_ranks.metrics(world(), tmp_path, distributed=False)
    for result in ranks("metrics", n):
        for part in ("history", "again", "weights"):
            assert_close(result[part], expected[part])
        assert result["total cost"] == pytest.approx(expected["total cost"], rel=1e-12)
        np.testing.assert_allclose(result["afterwards"], expected["afterwards"])
        assert len(result["records"]) == len(expected["records"]) == 4
        for record, reference in zip(result["records"], expected["records"], strict=True):
            assert_close(record, reference)


@pytest.mark.parametrize("n", [2, 3])
def test_weights_of_samples_and_classes_have_the_effect_of_one_process(ranks, tmp_path, n):
    expected = training_ranks.weighted(world(), tmp_path, distributed=False)
    for result in ranks("weighted", n):
        assert result.keys() == expected.keys()
        for name in expected:
            assert_close(result[name][0], expected[name][0])
            assert_close(result[name][1], expected[name][1])


@pytest.mark.parametrize("n", [2, 3])
def test_early_stopping_ends_all_ranks_after_the_same_epoch(ranks, n):
    for limit, epochs in ((1, 2), (3, 4)):
        results = [result[limit] for result in ranks("early_stop", n)]
        assert all(position == (epochs, 0) for position, _ in results)
        assert all(costs == results[0][1] for _, costs in results)


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3])
def test_only_rank_0_writes_files_and_shows_progress(ranks, n):
    results = ranks("files", n)
    assert results[0]["printed"]
    assert [result["printed"] for result in results[1:]] == [""] * (n - 1)
    own = [f"rank-{rank}.own" for rank in range(n)]
    expected = ["rank-0.best", "rank-0.h5", "rank-0.model", "rank-0_2.model", "rank-0_3.model", *own]
    assert results[0]["files"] == sorted(expected)
    assert_same([result["weights"] for result in results])
    for result in results[1:]:
        assert_close(result["history"], results[0]["history"], 0)
    for rank, name in enumerate(["rank-0.model", *own[1:]]):
        description, arrays = read_checkpoint(ranks.folder / f"files-{n}" / name)
        for key, w in results[rank]["weights"].items():
            np.testing.assert_array_equal(arrays[f"weights/{key}"], w)
        assert description["training"]["epoch_index"] == 3


def continued(folder: Path, source: str, kind: str, epochs: int = 3) -> dict[str, Any]:
    """Return the weights after the remaining epochs of a checkpoint, in one process."""
    cleanup_backend()
    gen_backend("cpu", rng_seed=99, batch_size=TOTAL, deterministic=True)
    layers, dataset, cost = problem(kind)
    model = Model(layers)
    model.load_params(folder / source)
    model.fit(dataset, cost, optimizer("adam"), epochs)
    return model.get_weights()


@pytest.mark.parametrize("kind", PARTS)
def test_training_continues_within_an_epoch_with_the_same_bits(ranks, kind):
    expected = ranks("uninterrupted", 2)
    positions = [[(epoch, minibatch + 2) for epoch, minibatch in PARTS[kind]][i] for i in (0, 1)]
    for name, position in zip(("first_part", "second_part"), positions, strict=True):
        assert [result[kind]["position"] for result in ranks(name, 2)] == [position] * 2
    last = ranks("last_part", 2)
    assert [result[kind]["position"] for result in last] == [(3, 0)] * 2
    assert_same([result[kind]["weights"] for result in last] + [result[kind] for result in expected])


@pytest.mark.parametrize("kind", PARTS)
def test_training_continues_on_another_number_of_ranks(ranks, kind):
    """From 2 ranks to 4, and to one process, without a warning of lost recurrent states."""
    expected = ranks("uninterrupted", 2)[0][kind]
    ranks("first_part", 2)
    four = ranks("second_part", 4)
    assert_same([result[kind]["weights"] for result in four])
    assert distance(continued(ranks.folder, f"{kind}-2-of-4.model", kind), expected) <= 1e-4
    assert distance(continued(ranks.folder, f"{kind}-1-of-2.model", kind), expected) <= 1e-4


def test_a_checkpoint_may_be_loaded_before_the_ranks_are_connected(ranks):
    expected = [result["lstm"] for result in ranks("uninterrupted", 2)]
    ranks("first_part", 2)
    assert_same(ranks("loaded_before_connecting", 2) + expected)


def test_a_checkpoint_that_rank_0_alone_has_read_is_refused_by_all(ranks):
    ranks("first_part", 2)
    for result in ranks("loaded_on_rank_0", 2):
        for kind in ("mlp", "lstm"):
            assert "expected the parameters to be the same on all processes" in result[kind]


# --- the end of a training -------------------------------------------------------------------------------------------

ENDS = {"begin": (1, 2), "middle": (1, 2), "last of an epoch": (2, 0), "epoch": (2, 0)}  # lenet: 3 steps an epoch


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("where", ENDS)
def test_a_callback_of_one_rank_ends_all_after_the_same_step(ranks, where, n):
    expected = simulated("lenet", "adam", split(n), 4)
    for last in (0, n - 1):
        results = [result[where, last] for result in ranks("endings", n)]
        epoch, minibatch = ENDS[where]
        for ended, steps, finished, weights in results:
            assert (ended, steps, finished) == (ENDS[where], 3 * epoch + minibatch, (4, 0))
            assert_same([weights, expected])


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("at", [(0, 0), (1, 1), (1, 2), (0, "end")], ids=str)
@pytest.mark.parametrize(("name", "raised"), [("SIGINT", "KeyboardInterrupt"), ("SIGTERM", "Terminated 143")])
def test_a_signal_to_one_rank_ends_all_after_the_same_step(ranks, name, raised, at, n):
    expected = simulated("lenet", "adam", split(n), 4)
    results = [result[name, at] for result in ranks("signals", n)]
    step = (1, 1) if at == (0, "end") else (at[0], at[1] + 1)
    for error, ended, finished, weights in results:
        assert (error, ended, finished) == (raised, step, (4, 0))
        assert_same([weights, expected])


# --- errors ----------------------------------------------------------------------------------------------------------

DIFFERENCES = {
    "data": ["the data", "ndata = 60", "61"],
    "shuffle": ["the data", "shuffle = True", "False"],
    "runtime": ["the runtime", "cpu", "strict"],
    "dtype": ["the dtype", "float32", "float64"],
    "layer size": ["the parameters", "(16, 6)", "(17, 6)"],
    "optimizer": ["the optimizer", "Adam", "GradientDescentMomentum"],
    "learning rate": ["the optimizer", "0.01", "0.02"],
    "cost": ["the cost", "CrossEntropyMulti", "MeanSquared"],
    "epochs": ["the number of epochs", "2", "3"],
    "deterministic": ["deterministic", "False", "True"],
    "with overlap": ["the number of epochs", "2", "3"],
    "activation": ["the layers", "Rectlin", "Tanh"],
    "dropout": ["the layers", "keep = 0.5", "0.6"],
    "validation rows": ["the callbacks without rank_0_only", "20", "30"],
    "metric": ["the callbacks without rank_0_only", "Accuracy", "MeanSquared"],
    "callbacks": ["the callbacks without rank_0_only", "", "Callback"],
    "labels": ["the encoding of the data", "a0", "b0"],
    "types of labels": ["the encoding of the data", "classes.0 = 0", "'0'"],
    "scale": ["the encoding of the data", "mean", ""],
}


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("name", DIFFERENCES)
def test_differences_between_the_ranks_are_an_error_of_all(ranks, name, n):
    what, first, other = DIFFERENCES[name]
    for result in ranks("mismatches", n):
        text = result[name]
        assert text.startswith(f"ValueError: model.fit: expected {what} to be the same on all processes, got ")
        before, _, after = text.partition(" on rank 0 and ")
        assert first in before
        assert other in after
        assert after.endswith(f" on rank {n - 1}.")


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("name", ["SetRate", "SetWeights"])
def test_a_callback_that_changes_the_weights_or_the_optimizer_of_one_rank_is_an_error_of_all(ranks, name, n):
    for result in ranks("mismatches", n):
        assert result[name].startswith(
            "RuntimeError: model.fit: expected the weights and the optimizer of rank 0 on all processes before epoch 2"
        )
        assert f"got others on rank{'s' * (n > 2)} {', '.join(map(str, range(1, n)))}. A callback" in result[name]


@pytest.mark.parametrize("n", [2, 3])
def test_names_of_objects_may_differ_between_the_ranks(ranks, n):
    """After the errors, one rank has created other objects than the others, so that their names have other numbers."""
    assert [result["none"] for result in ranks("mismatches", n)] == ["no error"] * n


def test_an_iterator_without_positions_and_a_gan_are_refused(ranks):
    for result in ranks("mismatches", 2):
        assert result["iterator"].startswith("TypeError: model.fit: distributed: expected an iterator that can yield")
        assert "NotResumable" in result["iterator"]
        assert "TypeError: model.fit: distributed: expected a Model with targets, got a GAN." in result["GAN"]


def test_after_an_error_of_a_callback_training_continues(ranks):
    results = ranks("after_an_error", 2)
    for event in ("train", "epoch", "minibatch"):
        for result in results:
            assert result[event][:2] == (True, True), event
        assert_same([result[event][2] for result in results])


# --- custom loops ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("name", ["plain", "scaled", "dynamic", "fit"])
def test_a_loop_with_a_distributed_optimizer_has_the_bits_of_fit(ranks, name, n):
    weights = [result[name] for result in ranks("custom_loops", n)]
    assert_same([*weights, simulated("mlp", "sgd", split(n))])


@pytest.mark.parametrize("n", [2, 3])
def test_a_loop_with_its_own_minibatches_divides_by_the_columns_of_all(ranks, n):
    weights = [result["own minibatches"] for result in ranks("custom_loops", n)]
    assert_same(weights)
    be = gen_backend("cpu", rng_seed=7, batch_size=TOTAL)
    layers, dataset, cost = problem("mlp")
    model, rule = Model(layers), optimizer("sgd")
    model.initialize(dataset, cost)
    X, y = rows(60, 6)
    for epoch in range(2):
        for k in range(0, 60, TOTAL):
            x, t = be.array(X[k : k + TOTAL].T), be.array(np.eye(CLASSES)[:, y[k : k + TOTAL]])
            model.bprop(model.cost.get_errors(model.fprop(x), t))
            rule.optimize(model.layers_to_optimize, epoch)
    assert distance(weights[0], model.get_weights()) <= 1e-6


def test_a_distributed_optimizer_refuses_different_runtimes(ranks):
    for message in ranks("other_runtimes", 2):
        expected = "Distributed: expected the runtime to be the same on all processes, got cpu on rank 0 and strict on"
        assert message == f"ValueError: {expected} rank 1."


@pytest.mark.parametrize("n", [2, 3])
def test_a_distributed_optimizer_refuses_different_weights(ranks, n):
    others = ", ".join(map(str, range(1, n)))
    for message in ranks("other_weights", n):
        assert message.startswith("ValueError: Distributed: expected the weights of rank 0 on all processes, got ")
        assert f"on rank {others}." in message


def test_minibatches_cannot_be_split_without_a_batch_size(ranks):
    for message in ranks("no_batch_size", 2):
        assert message.startswith(
            "ValueError: Communicator.sharded: expected a batch size on every process, got [3, 0]"
        )
