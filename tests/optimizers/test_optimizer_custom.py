"""Custom optimizers: errors say what is missing. The learning rate is that of the schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neonlite import gen_backend
from neonlite.layers import Affine
from neonlite.models import Model
from neonlite.optimizers import Adam, AdamW, ExpSchedule, Optimizer, ShiftAdaMax


class Plain(Optimizer):
    """Gradient descent; subclasses break one part of it."""

    def __init__(self, learning_rate: float = 0.1) -> None:
        super().__init__()
        self.learning_rate = learning_rate

    def update_rule(self, be: Any, w: Any, g: Any, states: Any, rate: float) -> Any:
        return [w - rate * g]


class WithoutSuper(Plain):
    def __init__(self) -> None:
        self.learning_rate = 0.1


class WithoutRate(Plain):
    def __init__(self) -> None:
        Optimizer.__init__(self)


class OneTree(Plain):
    def update_rule(self, be: Any, w: Any, g: Any, states: Any, rate: float) -> Any:
        return w - rate * g


class MissingState(Plain):
    state_names = ("velocity",)


class OtherParameters(Plain):
    def update_rule(self, w: Any, g: Any) -> Any:  # type: ignore[override]
        return [w - g]


class RaisesTypeError(Plain):
    def update_rule(self, be: Any, w: Any, g: Any, states: Any, rate: float) -> Any:
        raise TypeError("of the user")


def train(optimizer: Any) -> Model:
    gen_backend("cpu", rng_seed=0)
    model = Model([Affine(3, activation="softmax")])
    model.fit(np.eye(6, 4), np.arange(6) % 3, epochs=1, optimizer=optimizer, progress_bar=False)
    return model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (WithoutSuper, r"WithoutSuper: expected __init__ to call super\(\).__init__\(\), got no call"),
        (WithoutRate, "WithoutRate: expected an attribute learning_rate, got none"),
        (
            OneTree,
            r"OneTree: expected update_rule\(be, w, g, states, rate\) to return a list of 1, the new parameter, got",
        ),
        (MissingState, "to return a list of 2, the new parameter, the new velocity, got 1 values"),
        (OtherParameters, r"expected update_rule\(be, w, g, states, rate\), got the parameters \(w, g\)"),
        (RaisesTypeError, "^of the user$"),
    ],
)
def test_what_a_custom_optimizer_lacks_is_named(make, message):
    with pytest.raises(TypeError, match=message):
        train(make())


def test_a_custom_optimizer_that_lacks_nothing_trains():
    assert train(Plain()).epoch_index == 1


@pytest.mark.parametrize("kind", [Adam, AdamW, ShiftAdaMax])
def test_the_rate_is_that_of_the_schedule_without_bias_correction(kind):
    optimizer = kind(learning_rate=0.5, schedule=ExpSchedule(1.0))
    before = [optimizer.get_rate(epoch) for epoch in (0, 1, 3)]
    assert before == [0.5, 0.25, 0.125]  # 0.5 / (1 + epoch)
    train(optimizer)
    assert [optimizer.get_rate(epoch) for epoch in (0, 1, 3)] == before
