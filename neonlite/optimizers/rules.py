"""Which way, and how far?  One class an optimizer: its arguments are its fields, and ``rule`` is its equation.

In every equation g is the gradient, divided by the batch size and limited by value, and l the learning rate of the
epoch. Where the norm of all gradients has a limit, the step along g or its mean is scaled down to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from neonlite.optimizers.optimizer import Optimizer, Row
from neonlite.optimizers.schedule import CONSTANT, Schedule
from neonlite.optree import describe


@dataclass(eq=False)
class GradientDescentMomentum(Optimizer):
    """``v = mu v - l (g + wdecay w)``, ``w = w + v``; nesterov: ``w = w + mu v - l (g + wdecay w)``.

    Without momentum there is no v: ``w = w - l (g + wdecay w)``.
    Source: Sutskever, Martens, Dahl and Hinton, "On the importance of initialization and momentum", 2013.
    """

    learning_rate: float
    momentum_coef: float
    stochastic_round: bool = False
    wdecay: float = 0.0
    gradient_clip_norm: float | None = None
    gradient_clip_value: float | None = None
    param_clip_value: float | None = None
    name: Any = None
    schedule: Schedule = CONSTANT
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not self.momentum_coef:
            raise ValueError("GradientDescentMomentum: nesterov looks ahead along the momentum: momentum_coef is not 0")
        self.keeps = ("velocity",) if self.momentum_coef else ()

    def rule(self, be: Any, w: Any, g: Any, states: Row, rate: float, step: Any) -> Sequence[Any]:
        down = step * g
        if self.wdecay:
            down = down + (rate * self.wdecay) * w
        if not states:
            return [w - down]
        v = self.momentum_coef * states[0] - down
        return [w + self.momentum_coef * v - down if self.nesterov else w + v, v]


@dataclass(eq=False)
class RMSProp(Optimizer):
    """``m = decay_rate m + (1 - decay_rate) g^2``, ``w = w - l g / (sqrt(m + epsilon) + epsilon)``.

    Source: Hinton, "Neural Networks for Machine Learning", lecture 6, 2012; epsilon as in neon, twice.
    """

    stochastic_round: bool = False
    decay_rate: float = 0.95
    learning_rate: float = 0.002
    epsilon: float = 1e-6
    gradient_clip_norm: float | None = None
    gradient_clip_value: float | None = None
    param_clip_value: float | None = None
    name: Any = None
    schedule: Schedule = CONSTANT

    keeps = ("mean_square",)

    def rule(self, be: Any, w: Any, g: Any, states: Row, rate: float, step: Any) -> Sequence[Any]:
        m = self.decay_rate * states[0] + (1 - self.decay_rate) * be.square(g)
        return [w - step * g / (be.sqrt(m + self.epsilon) + self.epsilon), m]


@dataclass(eq=False)
class Adagrad(Optimizer):
    """``m = m + g^2``, ``w = w - l g / sqrt(m + epsilon)``.

    Source: Duchi, Hazan and Singer, "Adaptive Subgradient Methods", 2011.
    """

    stochastic_round: bool = False
    learning_rate: float = 0.01
    epsilon: float = 1e-6
    gradient_clip_norm: float | None = None
    gradient_clip_value: float | None = None
    param_clip_value: float | None = None
    name: Any = None
    schedule: Schedule = CONSTANT

    keeps = ("sum_of_squares",)

    def rule(self, be: Any, w: Any, g: Any, states: Row, rate: float, step: Any) -> Sequence[Any]:
        m = states[0] + be.square(g)
        return [w - step * g / be.sqrt(m + self.epsilon), m]


@dataclass(eq=False)
class Adadelta(Optimizer):
    """``m = decay m + (1 - decay) g^2``, ``d = sqrt((n + epsilon) / (m + epsilon)) g``, ``w = w - d``.

    n is the same mean of d^2, of the steps before. There is no learning rate.
    Source: Zeiler, "ADADELTA: An Adaptive Learning Rate Method", 2012.
    """

    stochastic_round: bool = False
    decay: float = 0.95
    epsilon: float = 1e-6
    param_clip_value: float | None = None
    name: Any = None

    keeps = ("mean_square", "mean_square_step", "step")

    def rate(self, epoch: float) -> float:
        return 1.0

    def rule(self, be: Any, w: Any, g: Any, states: Row, rate: float, step: Any) -> Sequence[Any]:
        m = self.decay * states[0] + (1 - self.decay) * be.square(g)
        d = be.sqrt((states[1] + self.epsilon) / (m + self.epsilon)) * g
        return [w - d, m, self.decay * states[1] + (1 - self.decay) * be.square(d), d]


@dataclass(eq=False)
class Adam(Optimizer):
    """``m = beta_1 m + (1 - beta_1) g``, ``v = beta_2 v + (1 - beta_2) g^2``, ``w = w - l' m / (sqrt(v) + epsilon)``.

    l' = l sqrt(1 - beta_2^t) / (1 - beta_1^t) in step t = 1, 2, ...: it makes up for m and v that begin at 0.
    Source: Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, the end of section 2.
    """

    stochastic_round: bool = False
    learning_rate: float = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    gradient_clip_norm: float | None = None
    gradient_clip_value: float | None = None
    param_clip_value: float | None = None
    name: Any = "adam"
    schedule: Schedule = CONSTANT

    keeps = ("mean", "mean_square")

    def correction(self) -> tuple[float, float]:
        """Return what m and the root of v are short of, as fractions: both begin at 0."""
        t = self.t + 1
        return 1 - self.beta_1**t, math.sqrt(1 - self.beta_2**t)

    def rate(self, epoch: float) -> float:
        first, second = self.correction()
        return super().rate(epoch) * second / first

    def rule(self, be: Any, w: Any, g: Any, states: Row, rate: float, step: Any) -> Sequence[Any]:
        down, m, v = self.descent(be, g, states, step, self.epsilon)
        return [w - down, m, v]

    def descent(self, be: Any, g: Any, states: Row, step: Any, epsilon: Any) -> Sequence[Any]:
        """Return what is taken off the weights, and both means."""
        m = self.beta_1 * states[0] + (1 - self.beta_1) * g
        v = self.beta_2 * states[1] + (1 - self.beta_2) * be.square(g)
        return [step * m / (be.sqrt(v) + epsilon), m, v]


@dataclass(eq=False)
class AdamW(Adam):
    """Adam, and apart from it a decay of the weights: ``w = w - l m' / (sqrt(v') + epsilon) - l wdecay w``.

    ``m' = m / (1 - beta_1^t)``, ``v' = v / (1 - beta_2^t)``. The decay follows the learning rate, as in PyTorch.
    Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019, algorithm 2.
    """

    name: Any = None
    wdecay: float = 0.01

    def numbers(self, epoch: float) -> dict[str, float]:
        (first, second), numbers = self.correction(), super().numbers(epoch)
        return {**numbers, "epsilon": self.epsilon * second, "decay": numbers["rate"] * first / second * self.wdecay}

    def rule(
        self, be: Any, w: Any, g: Any, states: Row, rate: float, step: Any, epsilon: Any = None, decay: Any = None
    ) -> Sequence[Any]:
        down, m, v = self.descent(be, g, states, step, epsilon)
        return [w - (down + decay * w), m, v]


@dataclass(eq=False)
class ShiftAdaMax(Optimizer):
    """``m = beta_1 m + (1 - beta_1) g``, ``v = max(beta_2 v, |g|)``, ``w = clip(w - m << 1 / (v + epsilon) << l')``.

    ``x << y`` is x times the power of two nearest to y (``be.shift``), l' = l / (1 - beta_1^(epoch + 1)), and weights
    are kept within ±1: for binary networks, without products.
    Source: Courbariaux, Hubara, Soudry, El-Yaniv and Bengio, "Binarized Neural Networks", 2016, algorithm 4.
    """

    stochastic_round: bool = False
    learning_rate: float = 0.002
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    schedule: Schedule = CONSTANT
    name: Any = None

    keeps = ("mean", "largest")

    def rate(self, epoch: float) -> float:
        return super().rate(epoch) / float(1 - self.beta_1 ** (epoch + 1))

    def rule(self, be: Any, w: Any, g: Any, states: Row, rate: float, step: Any) -> Sequence[Any]:
        m = self.beta_1 * states[0] + (1 - self.beta_1) * g
        v = be.maximum(self.beta_2 * states[1], be.absolute(g))
        return [be.clip(w - be.shift(be.shift(m, 1 / (v + self.epsilon)), rate), -1, 1), m, v]


@dataclass(eq=False)
class MultiOptimizer(Optimizer):
    """An optimizer for each layer: that of the layer's name, else that of its class, else that of 'default'.

    ``MultiOptimizer({"default": Adam(), "Bias": RMSProp(), "output": GradientDescentMomentum(0.1, 0.9)})``. ValueError
    when there is no 'default', and in ``optimize`` for a word that is neither a layer's name nor its class.
    """

    optimizer_mapping: dict[str, Optimizer]
    name: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        mapping = self.optimizer_mapping
        if not isinstance(mapping, dict) or not all(isinstance(x, Optimizer) for x in mapping.values()):
            raise TypeError(f"MultiOptimizer takes a dict of optimizers; got {describe(mapping)}")
        if "default" not in mapping:
            raise ValueError(f"MultiOptimizer: 'default' says what the other layers get; got only {', '.join(mapping)}")

    def optimize(self, layer_list: Iterable[Any], epoch: float) -> None:
        layer_list, mapping = list(layer_list), self.optimizer_mapping
        if unknown := mapping.keys() - {"default"} - {word for layer in layer_list for word in names(layer)}:
            have = ", ".join(f"{name} ({kind})" for name, kind in map(names, layer_list))
            raise ValueError(
                f"MultiOptimizer: no layer has the name or the class {', '.join(sorted(unknown))}; there are {have}"
            )
        layers: dict[int, list[Any]] = {id(optimizer): [] for optimizer in mapping.values()}
        for layer in layer_list:
            word = next(word for word in (*names(layer), "default") if word in mapping)
            layers[id(mapping[word])].append(layer)
        for optimizer in {id(x): x for x in mapping.values()}.values():
            optimizer.graphs = self.graphs
            optimizer.optimize(layers[id(optimizer)], epoch)
        self.t += 1

    def get_state(self) -> dict[str, Any]:
        return {word: optimizer.get_state() for word, optimizer in self.optimizer_mapping.items()}

    def set_state(self, state: dict[str, Any]) -> None:
        for word, optimizer in self.optimizer_mapping.items():
            optimizer.set_state(state[word])


def names(layer: Any) -> tuple[str, str]:
    """Return the name of a layer and that of its class."""
    return getattr(layer, "name", ""), type(layer).__name__
