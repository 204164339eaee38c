"""Benchmarks of a model time its steps, and change nothing."""

from __future__ import annotations

import logging
from typing import Any
from unittest import TestCase

import numpy as np
import pytest
from helpers.small_models import Nothing, data, network, start

from neonlite.callbacks import CallbackBase
from neonlite.data import NervanaDataIterator
from neonlite.layers import BatchNorm
from neonlite.models import Benchmark, Model
from neonlite.models.training_state import TrainingState
from neonlite.optimizers import Adam
from neonlite.transforms import CrossEntropyMulti, MeanSquared

# --- benchmarks ------------------------------------------------------------------------------------------------------


def everything(model: Model, train: Any) -> Any:
    description, arrays = TrainingState.from_model(model)
    return description, {name: array.tobytes() for name, array in arrays.items()}, train.get_state(), model.cost


@pytest.mark.filterwarnings("ignore:.*expects probabilities")
@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("learned", [False, True])
def test_timing_steps_changes_nothing(be, inference, learned):
    be.bsz = 8
    model, train, optimizer = Model([*network(), BatchNorm()]), data(shuffle=True, partial_last=True), Adam()
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
    for result in brief.values():
        assert list(result) == ["mean", "median", "min", "max"]
        assert 0 < result["min"] <= result["mean"] <= result["max"]
        assert result["median"] == pytest.approx(result["mean"])  # of two
    assert everything(model, train) == before


def test_the_benchmark_times_the_steps_of_fit():
    """The benchmark runs the given number of steps with the given cost and optimizer."""
    model, seen = start(), []

    class StepRecorder(Adam):
        def optimize(self, layer_list, epoch):
            seen.append(float(model.cost.cost.item()))
            super().optimize(layer_list, epoch)

    model.benchmark(data(), cost=CrossEntropyMulti(), optimizer=StepRecorder(), niterations=9, nskip=3)
    assert len(seen) == 12  # of 8 minibatches
    fitted = start()
    costs = []

    class Costs(CallbackBase):
        def on_minibatch_end(self, epoch, minibatch):
            costs.append(float(fitted.cost.cost.item()))

    fitted.fit(data(), CrossEntropyMulti(), Adam(), 1, Costs())
    assert seen[:7] == costs[:7]


def test_times_are_printed_as_a_table(capsys):
    stats = {"fprop": np.array([1.0, 2.0, 6.0]), "bprop hidden": np.array([0.5])}
    Benchmark.print_stats(stats)
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["Mean", "Median", "Amin", "Amax", "ms"]
    assert first.split() == ["fprop", "3.000", "2.000", "1.000", "6.000"]
    assert second.split() == ["bprop", "hidden", *["0.500"] * 4]
    said: list[str] = []
    Benchmark.print_stats(stats, functions=[np.sum], output=said.append)
    assert said[0].split() == ["Sum", "ms", "fprop", "9.000", "bprop", "hidden", "0.500"]


def test_timings_go_to_a_logger_without_the_first_iterations():
    stats = {"fprop": np.array([9.0, 1.0, 3.0])}
    with TestCase().assertLogs("times", "INFO") as log:
        Benchmark.print_stats(stats, [np.mean], output=logging.getLogger("times"), nskip=1)
    assert log.records[0].getMessage().split() == ["Mean", "ms", "fprop", "2.000"]
    with pytest.raises(
        ValueError, match="print_stats: expected nskip below 3, the number of iterations of fprop, got 3"
    ):
        Benchmark.print_stats(stats, nskip=3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((None,), "durations, .* None"),
        (([],), "durations"),
        (({"a": [1.0]}, []), r"one or more functions, got \[\]"),
    ],
)
def test_a_table_of_no_durations_or_functions_is_an_error(arguments: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"print_stats: expected {words}"):
        Benchmark.print_stats(*arguments)


def test_mistakes_in_benchmark_arguments_are_reported():
    model, cost, optimizer = start(), CrossEntropyMulti(), Adam()
    for arguments in ({}, {"cost": cost}, {"optimizer": optimizer}):
        with pytest.raises(RuntimeError, match=r"model: expected cost and optimizer for training steps"):
            model.benchmark(data(), **arguments)
    for n in (0, -1, 1.5, True):
        with pytest.raises((TypeError, ValueError), match=rf"expected an integer >= 1 for niterations, got {n}"):
            model.benchmark(data(), True, niterations=n)
    with pytest.raises(ValueError, match=r"expected an integer >= 0 for nskip, got -1"):
        model.benchmark(data(), True, nskip=-1)
    for empty in (NervanaDataIterator(), []):
        with pytest.raises(ValueError, match="expected a data set with at least one"):
            start().benchmark(empty if empty else Nothing(), True)
    model.fit(data(), cost, optimizer, 1)
    assert model.benchmark(data(), niterations=1)["bprop"]["min"] > 0  # with the cost and optimizer of fit
