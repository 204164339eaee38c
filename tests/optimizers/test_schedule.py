"""Schedules give the learning rates of their formulas."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.optimizer_equations import GDM, N, network, train, weights

from neonlite.optimizers import (
    Adagrad,
    Adam,
    AdamW,
    CosineSchedule,
    ExpSchedule,
    PolySchedule,
    PowerSchedule,
    RMSProp,
    Schedule,
    ShiftAdaMax,
    ShiftSchedule,
    StepSchedule,
    WarmupSchedule,
)

# --- schedules -----------------------------------------------------------------------------------------------------

SCHEDULES = [
    (Schedule(), [1] * 8),
    (Schedule(3, 0.5), [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25]),
    (Schedule([2, 5], 0.5), [1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25]),
    (Schedule([2, 5], [0.3, 0.2]), [1, 1, 0.3, 0.3, 0.3, 0.2, 0.2, 0.2]),
    (StepSchedule([2, 5], [0.3, 0.2]), [1, 1, 0.3, 0.3, 0.3, 0.2, 0.2, 0.2]),
    (StepSchedule([0, 1], [0.7, 2]), [0.7, 2, 2, 2, 2, 2, 2, 2]),
    (StepSchedule([], []), [1] * 8),
    (PowerSchedule(3, 0.5), [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25]),
    (ExpSchedule(0.5), [1, 1 / 1.5, 1 / 2, 1 / 2.5, 1 / 3, 1 / 3.5, 1 / 4, 1 / 4.5]),
    (PolySchedule(4, 2), [1, 9 / 16, 4 / 16, 1 / 16, 0, 0, 0, 0]),
    (PolySchedule(5, 0.5), [1, 0.8**0.5, 0.6**0.5, 0.4**0.5, 0.2**0.5, 0, 0, 0]),
    (PolySchedule(4, 0), [1, 1, 1, 1, 0, 0, 0, 0]),
    (ShiftSchedule(2), [1, 1, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125]),
    (ShiftSchedule(3, 2), [1, 1, 1, 0.25, 0.25, 0.25, 0.0625, 0.0625]),
    (CosineSchedule(4), [1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5, 0, 0, 0, 0]),
    (CosineSchedule(2, 0.2), [1, 0.6, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2]),
    (WarmupSchedule(3), [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]),
    (WarmupSchedule(0), [1] * 8),
    (WarmupSchedule(1, PowerSchedule(2, 0.1)), [0.5, 1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001]),
]


@pytest.mark.parametrize(("schedule", "rates"), SCHEDULES, ids=lambda x: getattr(x, "classnm", ""))
def test_schedules_give_these_rates_in_any_order_of_epochs(schedule, rates):
    for epoch in (*range(8), *reversed(range(8)), 5, 2, 7):
        assert schedule.get_learning_rate(1.0, epoch) == pytest.approx(rates[epoch], abs=1e-15)
        if not isinstance(schedule, CosineSchedule) and not isinstance(schedule.__dict__.get("change"), list):
            assert schedule.get_learning_rate(0.3, epoch) == pytest.approx(0.3 * rates[epoch], abs=1e-15)


def test_a_cosine_schedule_ends_at_its_final_rate():
    assert [CosineSchedule(2, 0.2).get_learning_rate(3.0, e) for e in range(3)] == pytest.approx([3, 1.6, 0.2])


def test_the_optimizer_passes_the_epoch_to_its_schedule(cpu):
    asked = []

    class Mine:
        classnm = "Mine"

        def get_learning_rate(self, learning_rate, epoch):
            asked.append((learning_rate, epoch))
            return learning_rate / 2

    layers, before = network(cpu), weights(network(cpu))
    result = train(GDM(0.5, 0.0, schedule=Mine()), layers, 1, epoch=lambda step: 7)
    assert {*asked} == {(0.5, 7)}
    for w, x, layer in zip(result, before, layers, strict=True):
        np.testing.assert_allclose(w, x - 0.25 * layer.dW.get() / N, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "make", [RMSProp, Adagrad, Adam, AdamW, ShiftAdaMax, lambda **k: GDM(0.1, 0.9, **k)], ids=lambda make: make.__name__
)
def test_every_optimizer_with_a_rate_has_a_schedule(cpu, make):
    layers = network(cpu)
    before = weights(layers)
    for w, x in zip(train(make(schedule=StepSchedule([0], [0.0])), layers, 2), before, strict=True):
        np.testing.assert_array_equal(w, np.clip(x, -1, 1) if make is ShiftAdaMax else x)


# --- descriptions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", [schedule for schedule, _ in SCHEDULES], ids=lambda schedule: schedule.classnm)
def test_a_description_creates_the_same_schedule(schedule):
    description = json.loads(json.dumps(schedule.get_description()))
    again = type(schedule).gen_class(description["config"])
    assert repr(again) == repr(schedule)
    assert [again.get_learning_rate(1.0, e) for e in range(9)] == [schedule.get_learning_rate(1.0, e) for e in range(9)]


# --- mistakes ------------------------------------------------------------------------------------------------------


def test_a_custom_schedule_is_printed_with_its_class_and_arguments():
    class WarmCosine(Schedule):
        def __init__(self, total, warm):
            super().__init__()
            self.total, self.warm = total, warm

        def get_learning_rate(self, learning_rate, epoch):
            return learning_rate

    assert "schedule=WarmCosine(total=10, warm=2)" in repr(Adam(schedule=WarmCosine(10, 2)))
    assert repr(Schedule([2, 3], 0.5)) == "Schedule(step_config=[2, 3], change=0.5)"


class NoInit(Schedule):
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def get_learning_rate(self, learning_rate: float, epoch: float) -> float:
        return learning_rate


class NoMethod(Schedule):
    pass


class OtherArguments(Schedule):
    def get_learning_rate(self, epoch: float) -> float:  # type: ignore[override]
        return 1.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NoInit(3), r"NoInit: expected __init__ to call super\(\).__init__\(\)"),
        (NoMethod, r"NoMethod: expected a method get_learning_rate\(learning_rate, epoch\), got none"),
        (OtherArguments, r"expected get_learning_rate\(learning_rate, epoch\), got the parameters \(epoch\)"),
        (lambda: "cosine", r"expected a Schedule, such as CosineSchedule\(10\), for schedule, got 'cosine'"),
    ],
)
def test_what_a_custom_schedule_lacks_is_named_when_the_optimizer_is_created(make, message):
    with pytest.raises(TypeError, match=message):
        Adam(schedule=make())


def test_a_schedule_is_any_object_with_the_method():
    schedule = SimpleNamespace(get_learning_rate=lambda rate, epoch: rate / 2)
    assert Adam(0.5, schedule=schedule).get_rate(3) == 0.25
