"""Optimizers: SGD with momentum, RMSProp, Adagrad, Adadelta, Adam and its variants, Lion and Muon."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

from neonlite.backend import Backend
from neonlite.backend.validation import check_attributes, checked_dataclass
from neonlite.optimizers.optimizer import Optimizer, Row
from neonlite.optimizers.schedule import CONSTANT_SCHEDULE, Schedule
from neonlite.optree import Operand
from neonlite.typing import OperandLike


@checked_dataclass
class GradientDescentMomentum(Optimizer):
    """Gradient descent with momentum, optionally with Nesterov's accelerated gradient.

    Formula: ``v = mu v - l (g + wdecay w)``, ``w = w + v``; with nesterov ``w = w + mu v - l (g + wdecay w)``. With
    ``momentum_coef=0`` there is no state v: ``w = w - l (g + wdecay w)``.

    Parameters
    ----------
    learning_rate : float
        Learning rate l before the schedule is applied; default: 0.01.
    momentum_coef : float
        Momentum mu, in [0, 1); default: 0.9.
    stochastic_round : bool
        Whether 16-bit parameters are rounded stochastically; default: False.
    wdecay : float
        Weight decay; default: 0.
    gradient_clip_norm, gradient_clip_value, param_clip_value : float, optional
        Largest norm of all gradients, and largest magnitude of an element of a gradient, and of a parameter; default:
        no limit.
    name : str, optional
        Name; default: the class name and a counter.
    schedule : Schedule
        Learning-rate schedule; default: constant.
    nesterov : bool
        Whether to use Nesterov's accelerated gradient; default: False.
    master_weights : bool
        Whether 16-bit parameters have float32 copies, which are updated in their place; default: False.

    Raises
    ------
    ValueError
        If an argument is out of range, or ``nesterov`` is used without momentum.

    References
    ----------
    Sutskever, Martens, Dahl and Hinton, "On the importance of initialization and momentum", 2013.

    Examples
    --------
    >>> from neonlite.optimizers import GradientDescentMomentum, PowerSchedule
    >>> optimizer = GradientDescentMomentum(0.1, 0.9, wdecay=1e-4, schedule=PowerSchedule(10, 0.5))
    >>> optimizer.get_rate(epoch=20)
    0.025
    """

    learning_rate: float = 0.01
    momentum_coef: float = 0.9
    stochastic_round: bool = False
    wdecay: float = 0.0
    gradient_clip_norm: float | None = None
    gradient_clip_value: float | None = None
    param_clip_value: float | None = None
    name: str | None = None  # type: ignore[assignment]
    schedule: Schedule = CONSTANT_SCHEDULE
    nesterov: bool = False
    master_weights: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not self.momentum_coef:
            raise ValueError("GradientDescentMomentum: expected a positive momentum_coef with nesterov=True, got 0.")
        self.state_names = ("velocity",) if self.momentum_coef else ()

    def update_rule(self, be: Backend, w: Operand, g: Operand, states: Row, rate: float) -> Sequence[Operand]:
        decrease = rate * g
        if self.wdecay:
            decrease = decrease + (rate * self.wdecay) * w
        if not states:
            return [w - decrease]
        v = self.momentum_coef * states[0] - decrease
        return [w + self.momentum_coef * v - decrease if self.nesterov else w + v, v]


@checked_dataclass
class RMSProp(Optimizer):
    """RMSProp: gradients divided by the square root of a moving average of their squares.

    Formula: ``m = decay_rate m + (1 - decay_rate) g^2``, ``w = w - l g / (sqrt(m + epsilon) + epsilon)``.

    Parameters
    ----------
    stochastic_round : bool, or float
        Whether 16-bit parameters are rounded stochastically, in neon the first argument; default: False. A number as
        the first argument, as in ``RMSProp(0.01)``, is the learning rate.
    decay_rate : float
        Decay rate of m per step, in [0, 1); default: 0.95.
    learning_rate : float
        Learning rate l before the schedule is applied; default: 0.002.
    epsilon : float
        Added to m and to the square root, as in neon; default: 1e-6.
    gradient_clip_norm, gradient_clip_value, param_clip_value : float, optional
        Largest norm of all gradients, and largest magnitude of an element of a gradient, and of a parameter; default:
        no limit.
    name : str, optional
        Name; default: the class name and a counter.
    schedule : Schedule
        Learning-rate schedule; default: constant.
    master_weights : bool
        Whether 16-bit parameters have float32 copies, which are updated in their place; default: False.

    References
    ----------
    Hinton, "Neural Networks for Machine Learning", lecture 6, 2012.
    """

    stochastic_round: bool | float = False
    decay_rate: float = 0.95
    learning_rate: float = 0.002
    epsilon: float = 1e-6
    gradient_clip_norm: float | None = None
    gradient_clip_value: float | None = None
    param_clip_value: float | None = None
    name: str | None = None  # type: ignore[assignment]
    schedule: Schedule = CONSTANT_SCHEDULE
    master_weights: bool = False

    state_names = ("mean_square",)

    def update_rule(self, be: Backend, w: Operand, g: Operand, states: Row, rate: float) -> Sequence[Operand]:
        m = self.decay_rate * states[0] + (1 - self.decay_rate) * be.square(g)
        return [w - rate * g / (be.sqrt(m + self.epsilon) + self.epsilon), m]


@checked_dataclass
class Adagrad(Optimizer):
    """Adagrad: gradients divided by the square root of the sum of all previous squares.

    Formula: ``m = m + g^2``, ``w = w - l g / sqrt(m + epsilon)``.

    Parameters
    ----------
    stochastic_round : bool, or float
        Whether 16-bit parameters are rounded stochastically, in neon the first argument; default: False. A number as
        the first argument, as in ``Adagrad(0.01)``, is the learning rate.
    learning_rate : float
        Learning rate l before the schedule is applied; default: 0.01.
    epsilon : float
        Added to m; default: 1e-6.
    gradient_clip_norm, gradient_clip_value, param_clip_value : float, optional
        Largest norm of all gradients, and largest magnitude of an element of a gradient, and of a parameter; default:
        no limit.
    name : str, optional
        Name; default: the class name and a counter.
    schedule : Schedule
        Learning-rate schedule; default: constant.
    master_weights : bool
        Whether 16-bit parameters have float32 copies, which are updated in their place; default: False.

    References
    ----------
    Duchi, Hazan and Singer, "Adaptive Subgradient Methods", 2011.
    """

    stochastic_round: bool | float = False
    learning_rate: float = 0.01
    epsilon: float = 1e-6
    gradient_clip_norm: float | None = None
    gradient_clip_value: float | None = None
    param_clip_value: float | None = None
    name: str | None = None  # type: ignore[assignment]
    schedule: Schedule = CONSTANT_SCHEDULE
    master_weights: bool = False

    state_names = ("sum_of_squares",)

    def update_rule(self, be: Backend, w: Operand, g: Operand, states: Row, rate: float) -> Sequence[Operand]:
        m = states[0] + be.square(g)
        return [w - rate * g / be.sqrt(m + self.epsilon), m]


@checked_dataclass
class Adadelta(Optimizer):
    """Adadelta: gradients scaled by the ratio of the RMS of previous updates to their RMS, without a learning rate.

    Formula: ``m = decay m + (1 - decay) g^2``, ``d = sqrt((n + epsilon) / (m + epsilon)) g``, ``w = w - d``, where n is
    the moving average of d^2 over the previous steps.

    Parameters
    ----------
    stochastic_round : bool
        Whether 16-bit parameters are rounded stochastically; default: False.
    decay : float
        Decay rate of m and n per step, in [0, 1); default: 0.95.
    epsilon : float
        Added to m and n; default: 1e-6.
    param_clip_value : float, optional
        Largest magnitude of an element of a parameter; default: no limit.
    name : str, optional
        Name; default: the class name and a counter.
    gradient_clip_norm, gradient_clip_value : float, optional
        Largest norm of all gradients, and largest magnitude of an element of a gradient; default: no limit.
    master_weights : bool
        Whether 16-bit parameters have float32 copies, which are updated in their place; default: False.

    References
    ----------
    Zeiler, "ADADELTA: An Adaptive Learning Rate Method", 2012.
    """

    stochastic_round: bool = False
    decay: float = 0.95
    epsilon: float = 1e-6
    param_clip_value: float | None = None
    name: str | None = None  # type: ignore[assignment]
    gradient_clip_norm: float | None = None
    gradient_clip_value: float | None = None
    master_weights: bool = False

    state_names = ("mean_square", "mean_square_step", "step")

    def get_rate(self, epoch: float) -> float:
        return 1.0

    def update_rule(self, be: Backend, w: Operand, g: Operand, states: Row, rate: float) -> Sequence[Operand]:
        m = self.decay * states[0] + (1 - self.decay) * be.square(g)
        d = be.sqrt((states[1] + self.epsilon) / (m + self.epsilon)) * g
        return [w - d, m, self.decay * states[1] + (1 - self.decay) * be.square(d), d]


@checked_dataclass
class Adam(Optimizer):
    """Adam: moving averages of gradients and of their squares, with bias correction.

    Formula: ``m = beta_1 m + (1 - beta_1) g``, ``v = beta_2 v + (1 - beta_2) g^2``, ``w = w - l' m / (sqrt(v) +
    epsilon)``, with the bias correction ``l' = l sqrt(1 - beta_2^t) / (1 - beta_1^t)`` in step t = 1, 2, ...

    Parameters
    ----------
    stochastic_round : bool, or float
        Whether 16-bit parameters are rounded stochastically, in neon the first argument; default: False. A number as
        the first argument, as in ``Adam(0.01)``, is the learning rate.
    learning_rate : float
        Learning rate l before the schedule is applied; default: 0.001.
    beta_1, beta_2 : float
        Decay rates of m and v per step, in [0, 1); default: 0.9 and 0.999.
    epsilon : float
        Added to the square root of v; default: 1e-8.
    gradient_clip_norm, gradient_clip_value, param_clip_value : float, optional
        Largest norm of all gradients, and largest magnitude of an element of a gradient, and of a parameter; default:
        no limit.
    name : str, optional
        Name; default: "adam".
    schedule : Schedule
        Learning-rate schedule; default: constant.
    master_weights : bool
        Whether 16-bit parameters have float32 copies, which are updated in their place; default: False.

    References
    ----------
    Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, end of section 2.
    """

    stochastic_round: bool | float = False
    learning_rate: float = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    gradient_clip_norm: float | None = None
    gradient_clip_value: float | None = None
    param_clip_value: float | None = None
    name: str | None = "adam"  # type: ignore[assignment]
    schedule: Schedule = CONSTANT_SCHEDULE
    master_weights: bool = False

    state_names = ("mean", "mean_square")

    def bias_correction(self) -> tuple[float, float]:
        """Return the bias-correction factors: those by which m and sqrt(v) are too small, as both start at 0.

        Returns
        -------
        (float, float)
            ``1 - beta_1^t`` and ``sqrt(1 - beta_2^t)`` in step t.
        """
        t = self.t + 1
        return 1 - self.beta_1**t, (1 - self.beta_2**t) ** 0.5

    def get_scalars(self, epoch: float) -> dict[str, float]:
        first, second = self.bias_correction()
        return {"rate": self.get_rate(epoch) * second / first}

    def update_rule(self, be: Backend, w: Operand, g: Operand, states: Row, rate: float) -> Sequence[Operand]:
        decrease, m, v = self.compute_step(be, g, states, rate, self.epsilon)
        return [w - decrease, m, v]

    def compute_step(
        self, be: Backend, g: Operand, states: Row, rate: OperandLike, epsilon: OperandLike
    ) -> Sequence[Operand]:
        """Return the value to subtract from the parameter, and the new states, as op-trees.

        Parameters
        ----------
        be : Backend
            The backend of the parameter.
        g : OpTree
            The gradient.
        states : sequence of Tensor
            m and v.
        rate, epsilon : float or Tensor
            Learning rate and epsilon, which include the bias correction.

        Returns
        -------
        list of OpTree
            The value to subtract, and the new m and v.
        """
        m = self.beta_1 * states[0] + (1 - self.beta_1) * g
        v = self.beta_2 * states[1] + (1 - self.beta_2) * be.square(g)
        return [rate * m / (be.sqrt(v) + epsilon), m, v]


@checked_dataclass
class AdamW(Adam):
    """Adam with decoupled weight decay.

    Formula: ``w = w - l m' / (sqrt(v') + epsilon) - l wdecay w``, with ``m' = m / (1 - beta_1^t)`` and
    ``v' = v / (1 - beta_2^t)``. The decay is multiplied by the learning rate, as in PyTorch. The other parameters are
    those of ``Adam``.

    Parameters
    ----------
    wdecay : float
        Weight decay; default: 0.01.

    References
    ----------
    Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019, algorithm 2.
    """

    name: str | None = None
    wdecay: float = 0.01

    def get_scalars(self, epoch: float) -> dict[str, float]:
        second = self.bias_correction()[1]
        decay = self.get_rate(epoch) * self.wdecay
        return {**super().get_scalars(epoch), "epsilon": self.epsilon * second, "decay": decay}

    def update_rule(
        self, be: Backend, w: Operand, g: Operand, states: Row, rate: float, epsilon: float = 1e-8, decay: float = 0.0
    ) -> Sequence[Operand]:
        decrease, m, v = self.compute_step(be, g, states, rate, epsilon)
        return [w - (decrease + decay * w), m, v]


@checked_dataclass
class NAdam(Adam):
    """Adam with Nesterov's momentum, whose coefficient grows to ``beta_1``.

    Formula: ``w = w - l (mu_(t+1) m / (1 - p_(t+1)) + (1 - mu_t) g / (1 - p_t)) / (sqrt(v') + epsilon)``, with m and v
    of Adam, ``v' = v / (1 - beta_2^t)``, ``mu_t = beta_1 (1 - 0.96^(t momentum_decay) / 2)`` and
    ``p_t = mu_1 ... mu_t``, as in PyTorch. The other parameters are those of ``Adam``.

    Parameters
    ----------
    learning_rate : float
        Learning rate l before the schedule is applied; default: 0.002.
    momentum_decay : float
        The rate at which mu approaches ``beta_1``, > 0; default: 0.004.

    References
    ----------
    Dozat, "Incorporating Nesterov Momentum into Adam", 2016.

    Examples
    --------
    >>> from neonlite.optimizers import NAdam
    >>> optimizer = NAdam(0.002, momentum_decay=0.01)
    """

    learning_rate: float = 0.002
    name: str | None = None
    momentum_decay: float = 0.004

    def __post_init__(self) -> None:
        super().__post_init__()
        check_attributes(self, "momentum_decay", above=0)

    def get_scalars(self, epoch: float) -> dict[str, float]:
        t, second = self.t + 1, self.bias_correction()[1]
        (mu, product), (next_mu, next_product) = self._momentum(t), self._momentum(t + 1)
        rate = self.get_rate(epoch) * second
        return {
            "rate": rate * next_mu / (1 - next_product),
            "grad_rate": rate * (1 - mu) / (1 - product),
            "epsilon": self.epsilon * second,
        }

    def _momentum(self, t: Any) -> tuple[Any, Any]:
        """Return mu_t and the product mu_1 ... mu_t, also of a tensor t.

        With q = 0.96^momentum_decay, the logarithm of the product is t log(beta_1) plus that of 1 - q^i / 2 for each i,
        a series of powers of q^i, whose sums over i are polynomials of q^t.
        """
        q = 0.96**self.momentum_decay
        power, weights = q**t, [(q / 2) ** k / (k * (1 - q**k)) for k in range(1, 54)]
        series = reduce(lambda total, x: (total + x) * power, reversed(weights), 0.0)
        return self.beta_1 * (1 - power / 2), self.beta_1**t * math.e ** (series - sum(weights))

    def update_rule(
        self, be: Backend, w: Operand, g: Operand, states: Row, rate: float, grad_rate: float = 0, epsilon: float = 1e-8
    ) -> Sequence[Operand]:
        decrease, m, v = self.compute_step(be, g, states, rate, epsilon)
        return [w - decrease - grad_rate * g / (be.sqrt(v) + epsilon), m, v]


@checked_dataclass
class LAMB(Adam):
    """Adam whose step of each parameter has a norm in proportion to that of the parameter: for large minibatches.

    Formula: ``w = w - l |w| / |r| r``, with ``r = m' / (sqrt(v') + epsilon) + wdecay w`` and m', v' of AdamW. If a norm
    is 0, the quotient is 1. The other parameters are those of ``Adam``.

    Parameters
    ----------
    epsilon : float
        Added to the square root of v'; default: 1e-6.
    wdecay : float
        Weight decay; default: 0.01.

    References
    ----------
    You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 Minutes", 2020, algorithm 2.

    Examples
    --------
    >>> from neonlite.optimizers import LAMB
    >>> optimizer = LAMB(0.002, wdecay=0.1)
    """

    epsilon: float = 1e-6
    name: str | None = None
    wdecay: float = 0.01

    merges_parameters = False

    def get_scalars(self, epoch: float) -> dict[str, float]:
        first, second = self.bias_correction()
        return {"rate": self.get_rate(epoch), "factor": second / first, "epsilon": self.epsilon * second}

    def update_rule(
        self, be: Backend, w: Operand, g: Operand, states: Row, rate: float, factor: float = 1, epsilon: float = 1e-6
    ) -> Sequence[Operand]:
        step, m, v = self.compute_step(be, g, states, factor, epsilon)
        step = step + self.wdecay * w if self.wdecay else step
        norm_w, norm_step = norm(be, w), norm(be, step)
        ratio = be.where(be.minimum(norm_w, norm_step) > 0, norm_w / norm_step, 1.0)
        return [w - rate * ratio * step, m, v]


@checked_dataclass
class Lion(Optimizer):
    """Lion: the sign of a moving average of gradients, with decoupled weight decay.

    Formula: ``w = w - l (sign(beta_1 m + (1 - beta_1) g) + wdecay w)``, ``m = beta_2 m + (1 - beta_2) g``.

    Parameters
    ----------
    learning_rate : float
        Learning rate l before the schedule is applied, a third to a tenth of that of AdamW; default: 0.0001.
    beta_1, beta_2 : float
        Weight of m in the step, and its decay rate per step, in [0, 1); default: 0.9 and 0.99.
    wdecay : float
        Weight decay, 3 to 10 times that of AdamW; default: 0.
    stochastic_round : bool
        Whether 16-bit parameters are rounded stochastically; default: False.
    gradient_clip_norm, gradient_clip_value, param_clip_value : float, optional
        Largest norm of all gradients, and largest magnitude of an element of a gradient, and of a parameter; default:
        no limit.
    name : str, optional
        Name; default: the class name and a counter.
    schedule : Schedule
        Learning-rate schedule; default: constant.
    master_weights : bool
        Whether 16-bit parameters have float32 copies, which are updated in their place; default: False.

    References
    ----------
    Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, program 1.

    Examples
    --------
    >>> from neonlite.optimizers import Lion
    >>> optimizer = Lion(0.0003, wdecay=0.1)
    """

    learning_rate: float = 0.0001
    beta_1: float = 0.9
    beta_2: float = 0.99
    wdecay: float = 0.0
    stochastic_round: bool = False
    gradient_clip_norm: float | None = None
    gradient_clip_value: float | None = None
    param_clip_value: float | None = None
    name: str | None = None  # type: ignore[assignment]
    schedule: Schedule = CONSTANT_SCHEDULE
    master_weights: bool = False

    state_names = ("mean",)

    def update_rule(self, be: Backend, w: Operand, g: Operand, states: Row, rate: float) -> Sequence[Operand]:
        step = be.sgn(self.beta_1 * states[0] + (1 - self.beta_1) * g)
        step = step + self.wdecay * w if self.wdecay else step
        return [w - rate * step, self.beta_2 * states[0] + (1 - self.beta_2) * g]


@checked_dataclass
class Muon(Optimizer):
    """Muon: Nesterov's momentum whose steps of matrices are orthogonalized, with decoupled weight decay.

    Formula: ``m = mu m + (1 - mu) g``, ``d = mu m + (1 - mu) g``, ``w = w - l (s O(d) + wdecay w)``, where O(d) is
    approximately the orthogonal matrix ``U V^T`` of the singular value decomposition of d, and
    ``s = 0.2 sqrt(max(rows, columns))``: elements have the size of those of Adam, so rates of AdamW can be used. For
    parameters that are no matrices, or that have one row or column, ``s O(d)`` is d. The reference trains these,
    embeddings and the output layer by AdamW: ``MultiOptimizer({"default": Muon(), "Bias": AdamW(), "out": AdamW()})``.

    Parameters
    ----------
    learning_rate : float
        Learning rate l before the schedule is applied; default: 0.001.
    momentum_coef : float
        Momentum mu, in [0, 1); default: 0.95.
    wdecay : float
        Weight decay; default: 0.1.
    stochastic_round : bool
        Whether 16-bit parameters are rounded stochastically; default: False.
    gradient_clip_norm, gradient_clip_value, param_clip_value : float, optional
        Largest norm of all gradients, and largest magnitude of an element of a gradient, and of a parameter; default:
        no limit.
    name : str, optional
        Name; default: the class name and a counter.
    schedule : Schedule
        Learning-rate schedule; default: constant.
    master_weights : bool
        Whether 16-bit parameters have float32 copies, which are updated in their place; default: False.

    References
    ----------
    Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024; the factor s: Liu et al., "Muon is
    Scalable for LLM Training", 2025, equation 4.

    Examples
    --------
    >>> from neonlite.optimizers import AdamW, MultiOptimizer, Muon
    >>> optimizer = MultiOptimizer({"default": Muon(0.002), "Bias": AdamW(0.002), "BatchNorm": AdamW(0.002)})
    """

    learning_rate: float = 0.001
    momentum_coef: float = 0.95
    wdecay: float = 0.1
    stochastic_round: bool = False
    gradient_clip_norm: float | None = None
    gradient_clip_value: float | None = None
    param_clip_value: float | None = None
    name: str | None = None  # type: ignore[assignment]
    schedule: Schedule = CONSTANT_SCHEDULE
    master_weights: bool = False

    state_names = ("momentum",)
    merges_parameters = False

    def update_rule(self, be: Backend, w: Operand, g: Operand, states: Row, rate: float) -> Sequence[Operand]:
        m = self.momentum_coef * states[0] + (1 - self.momentum_coef) * g
        step = self.momentum_coef * m + (1 - self.momentum_coef) * g
        if len(w.shape) == 2 and min(w.shape) > 1:
            step = 0.2 * math.sqrt(max(w.shape)) * orthogonalize(be, step)
        step = step + self.wdecay * w if self.wdecay else step
        return [w - rate * step, m]


def norm(be: Backend, x: Operand) -> Operand:
    """Return the norm of all elements."""
    return be.sqrt(be.sum(be.square(x)))


def orthogonalize(be: Backend, x: Operand) -> Operand:
    """Return about U V^T of the singular value decomposition of a matrix, by five iterations of Newton and Schulz.

    The singular values of the result are from 0.7 to 1.2, unless those of x are below a thousandth of its norm.
    """
    is_tall = x.shape[0] > x.shape[1]
    x = x.T if is_tall else x
    x = x / (norm(be, x) + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (2.0315 * (gram @ gram) - 4.775 * gram) @ x
    return x.T if is_tall else x


@checked_dataclass
class ShiftAdaMax(Optimizer):
    """AdaMax with multiplications replaced by bit shifts, for binary networks.

    Formula: ``m = beta_1 m + (1 - beta_1) g``, ``v = max(beta_2 v, |g|)``,
    ``w = clip(w - ((m << 1 / (v + epsilon)) << l'), -1, 1)``, where ``x << y`` is x times the power of two nearest to y
    (``be.shift``) and ``l' = l / (1 - beta_1^(epoch + 1))``.

    Parameters
    ----------
    stochastic_round : bool, or float
        Whether 16-bit parameters are rounded stochastically, in neon the first argument; default: False. A number as
        the first argument, as in ``ShiftAdaMax(0.01)``, is the learning rate.
    learning_rate : float
        Learning rate l before the schedule is applied; default: 0.002.
    beta_1, beta_2 : float
        Decay rates of m and v per step, in [0, 1); default: 0.9 and 0.999.
    epsilon : float
        Added to v; default: 1e-8.
    schedule : Schedule
        Learning-rate schedule; default: constant.
    name : str, optional
        Name; default: the class name and a counter.
    gradient_clip_norm, gradient_clip_value : float, optional
        Largest norm of all gradients, and largest magnitude of an element of a gradient; default: no limit.
    master_weights : bool
        Whether 16-bit parameters have float32 copies, which are updated in their place; default: False.

    References
    ----------
    Courbariaux, Hubara, Soudry, El-Yaniv and Bengio, "Binarized Neural Networks", 2016, algorithm 4.
    """

    stochastic_round: bool | float = False
    learning_rate: float = 0.002
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    schedule: Schedule = CONSTANT_SCHEDULE
    name: str | None = None  # type: ignore[assignment]
    gradient_clip_norm: float | None = None
    gradient_clip_value: float | None = None
    master_weights: bool = False

    state_names = ("mean", "max_gradient")

    def get_scalars(self, epoch: float) -> dict[str, float]:
        correction: float = 1 - self.beta_1 ** (epoch + 1)
        return {"rate": self.get_rate(epoch) / correction}

    def update_rule(self, be: Backend, w: Operand, g: Operand, states: Row, rate: float) -> Sequence[Operand]:
        m = self.beta_1 * states[0] + (1 - self.beta_1) * g
        v = be.maximum(self.beta_2 * states[1], be.absolute(g))
        return [be.clip(w - be.shift(be.shift(m, 1 / (v + self.epsilon)), rate), -1, 1), m, v]


RULES = (Adadelta, Adagrad, Adam, AdamW, GradientDescentMomentum, LAMB, Lion, Muon, NAdam, RMSProp, ShiftAdaMax)
# the optimizers that a name stands for, such as ``optimizer="adam"``: names of classes, and those of other libraries
OPTIMIZERS: dict[str, Callable[[], Optimizer]] = {rule.__name__.lower(): rule for rule in RULES} | {
    "momentum": GradientDescentMomentum,
    "nesterov": partial(GradientDescentMomentum, nesterov=True),
    "sgd": partial(GradientDescentMomentum, momentum_coef=0.0),
}
