"""Schedules give the learning rates of their formulas."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.optimizer_equations import GDM, N, network, train, weights

import neonlite as nl
from neonlite.optimizers import (
    Adagrad,
    Adam,
    AdamW,
    CosineSchedule,
    ExpSchedule,
    OneCycleSchedule,
    PolySchedule,
    PowerSchedule,
    ReducedSchedule,
    RMSProp,
    Schedule,
    ShiftAdaMax,
    ShiftSchedule,
    StepSchedule,
    UpdateSchedule,
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
    (CosineSchedule(6, warmup=2), [1 / 3, 2 / 3, 1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5, 0, 0]),
    (CosineSchedule(4, 0.2, 2), [1 / 3, 2 / 3, 1, 0.6, 0.2, 0.2, 0.2, 0.2]),
    (
        OneCycleSchedule(7, 3 / 7, 10, 2),
        [0.1, 0.55, 1, 0.525 + 0.95 * 0.5**1.5, 0.525, 0.525 - 0.95 * 0.5**1.5, 0.05, 0.05],
    ),
    (UpdateSchedule(PowerSchedule(1, 0.5)), [0.5**k for k in range(8)]),
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


@pytest.mark.parametrize(("schedule", "rates"), SCHEDULES, ids=lambda x: getattr(x, "classnm", ""))
def test_the_epoch_may_be_a_tensor_of_a_compiled_function(be64, schedule, rates):
    rate = nl.jit(lambda epoch: be64.ones((1, 1)) * schedule.get_learning_rate(0.5, epoch))
    for epoch in range(8):
        expected = schedule.get_learning_rate(0.5, epoch)
        assert rate(be64.array([[float(epoch)]])).item() == pytest.approx(expected, abs=1e-12)
    assert len(rate.programs) == 1


@pytest.mark.parametrize("options", [{}, {"pct_start": 0.5, "div_factor": 10, "final_div_factor": 100}])
def test_one_cycle_is_that_of_pytorch(options):
    torch = pytest.importorskip("torch")
    other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 1.0)
    peer = torch.optim.lr_scheduler.OneCycleLR(other, 0.3, total_steps=40, cycle_momentum=False, **options)
    schedule = OneCycleSchedule(40, **options)
    for step in range(40):
        assert schedule.get_learning_rate(0.3, step) == pytest.approx(peer.get_last_lr()[0], rel=1e-9)
        other.step()
        if step < 39:
            peer.step()


# --- schedules of the number of updates ----------------------------------------------------------------------------


def decayed(updates, rate=0.5):
    return rate * 0.9**updates


def sgd():
    return GDM(0.5, 0.0, schedule=UpdateSchedule(PowerSchedule(1, 0.9)))


def test_an_update_schedule_counts_the_steps_of_optimize_whatever_the_epoch(be64):
    layers, optimizer, total = network(be64), sgd(), 0.0
    before = weights(layers)
    be64.bsz = N
    for step in range(4):
        for layer in layers:
            layer.dW[:] = N
        optimizer.optimize(layers, epoch=step // 3)
        total += decayed(step)
    for w, x in zip(weights(layers), before, strict=True):
        np.testing.assert_allclose(w, x - total, rtol=1e-12)


@pytest.mark.parametrize("has_state", [False, True])
def test_an_update_schedule_counts_the_steps_of_a_compiled_function(be64, has_state):
    optimizer, total = sgd(), 0.0
    w, one = be64.zeros((1, 1)), be64.ones((1, 1))
    params, state = [w], optimizer.init([w])
    step = nl.jit(optimizer.step if has_state else lambda w, g: optimizer.step([w_of_loop], g))
    w_of_loop = w
    for k in range(4):
        if has_state:
            params, state = step(params, [one], state)
        else:
            step(one, [one])
        total += decayed(k)
        assert params[0].item() == pytest.approx(-total, rel=1e-12)
    assert len(step.programs) == 1


@pytest.mark.parametrize("wrap", [lambda s: WarmupSchedule(3, s), lambda s: ReducedSchedule(s, 0.5)])
def test_schedules_around_an_update_schedule_count_updates_too(wrap):
    optimizer = GDM(1.0, schedule=wrap(UpdateSchedule(PowerSchedule(1, 0.5))))
    optimizer.t = 2
    assert optimizer.get_rate(epoch=7) == optimizer.schedule.get_learning_rate(1.0, 2)


def test_a_fit_that_is_resumed_within_an_epoch_continues_its_update_schedule(tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 3)), rng.integers(0, 2, 40)

    class Interrupt(nl.callbacks.Callback):
        def on_minibatch_end(self, epoch, minibatch):
            if self.model.layers.parameters[0].updates[1] == 7:
                self.model.finished = True

    def trained(*callbacks):
        nl.gen_backend("cpu", rng_seed=0)
        model = nl.Model([nl.layers.Affine(2, activation="softmax")])
        schedule = UpdateSchedule(CosineSchedule(20, warmup=5))
        model.fit(X, y, epochs=3, batch_size=8, optimizer=Adam(0.1, schedule=schedule), callbacks=callbacks)
        return model

    whole, half = trained(), trained(Interrupt())
    assert half.minibatch_index == 2
    resumed = nl.Model(half.save_params(tmp_path / "model.neon"))
    resumed.fit(X, y, epochs=2, batch_size=8)
    for a, b in zip(whole.get_weights().values(), resumed.get_weights().values(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(half.get_weights().popitem()[1], whole.get_weights().popitem()[1])


@pytest.mark.filterwarnings("error")
def test_a_rate_that_ends_at_zero_after_updates_is_no_reason_to_warn():
    nl.gen_backend("cpu")
    optimizer = Adam(0.1, schedule=UpdateSchedule(PolySchedule(4, 1)))
    for _ in range(2):  # two models, the second one with an optimizer whose t is beyond the end
        nl.Model([nl.layers.Affine(1)]).fit(
            [[0.0], [1.0]], [1.0, 2.0], epochs=6, optimizer=optimizer, progress_bar=False
        )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CosineSchedule(4, warmup=4), "expected a finite number >= 0 and < 4 for warmup, got 4"),
        (lambda: OneCycleSchedule(3), "> 1 for pct_start"),
        (lambda: OneCycleSchedule(30, 1), "number > 0 and < 1 for pct_start, got 1"),
        (lambda: OneCycleSchedule(30, div_factor=0.5), "expected a finite number >= 1 for div_factor"),
    ],
)
def test_limits_of_a_schedule_are_checked_when_it_is_created(make, message):
    with pytest.raises(ValueError, match=message):
        make()


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
