"""Optimizers: SGD with momentum, RMSProp, Adagrad, Adadelta, Adam and its variants, Lion, Muon, and those of others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, cast, overload

from neonlite.backend import Backend, NervanaObject, Tensor
from neonlite.backend.transaction import atomic, restore_on_failure
from neonlite.backend.validation import check_attributes, check_keys, checked_dataclass, from_name, instance, integer
from neonlite.initializers import compute_dtype
from neonlite.messages import describe
from neonlite.optimizers.optimizer import Optimizer, Row, Settings, get_param_list, last_writer
from neonlite.optimizers.schedule import CONSTANT_SCHEDULE, Schedule
from neonlite.optree import Operand, OpTreeNode
from neonlite.tree_structure import untraced
from neonlite.typing import Model, OperandLike

if TYPE_CHECKING:
    from neonlite.layers import Layer


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
    gradient_clip_norm : float, optional
        Largest norm of the gradients of all layers together; default: no limit.
    gradient_clip_value : float, optional
        Largest magnitude of an element of a gradient; default: no limit.
    param_clip_value : float, optional
        Largest magnitude of an element of a parameter; default: no limit.
    name : str, optional
        Name; default: the class name and a counter.
    schedule : Schedule
        Learning-rate schedule; default: constant.
    nesterov : bool
        Whether to use Nesterov's accelerated gradient; default: False.

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
    gradient_clip_norm : float, optional
        Largest norm of the gradients of all layers together; default: no limit.
    gradient_clip_value : float, optional
        Largest magnitude of an element of a gradient; default: no limit.
    param_clip_value : float, optional
        Largest magnitude of an element of a parameter; default: no limit.
    name : str, optional
        Name; default: the class name and a counter.
    schedule : Schedule
        Learning-rate schedule; default: constant.

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
    gradient_clip_norm : float, optional
        Largest norm of the gradients of all layers together; default: no limit.
    gradient_clip_value : float, optional
        Largest magnitude of an element of a gradient; default: no limit.
    param_clip_value : float, optional
        Largest magnitude of an element of a parameter; default: no limit.
    name : str, optional
        Name; default: the class name and a counter.
    schedule : Schedule
        Learning-rate schedule; default: constant.

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
    gradient_clip_norm : float, optional
        Largest norm of the gradients of all layers together; default: no limit.
    gradient_clip_value : float, optional
        Largest magnitude of an element of a gradient; default: no limit.

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
    gradient_clip_norm : float, optional
        Largest norm of the gradients of all layers together; default: no limit.
    gradient_clip_value : float, optional
        Largest magnitude of an element of a gradient; default: no limit.
    param_clip_value : float, optional
        Largest magnitude of an element of a parameter; default: no limit.
    name : str, optional
        Name; default: "adam".
    schedule : Schedule
        Learning-rate schedule; default: constant.

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
    ``v' = v / (1 - beta_2^t)``. The decay is multiplied by the learning rate, as in PyTorch.

    Parameters
    ----------
    stochastic_round : bool, or float
        Whether 16-bit parameters are rounded stochastically; default: False. A number as the first argument, as in
        ``AdamW(0.01)``, is the learning rate.
    learning_rate : float
        Learning rate l before the schedule is applied; default: 0.001.
    beta_1, beta_2 : float
        Decay rates of m and v per step, in [0, 1); default: 0.9 and 0.999.
    epsilon : float
        Added to the square root of v'; default: 1e-8.
    gradient_clip_norm : float, optional
        Largest norm of the gradients of all layers together; default: no limit.
    gradient_clip_value : float, optional
        Largest magnitude of an element of a gradient; default: no limit.
    param_clip_value : float, optional
        Largest magnitude of an element of a parameter; default: no limit.
    name : str, optional
        Name; default: the class name and a counter.
    schedule : Schedule
        Learning-rate schedule; default: constant.
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
        self,
        be: Backend,
        w: Operand,
        g: Operand,
        states: Row,
        rate: float,
        epsilon: float = 1e-8,
        decay: float = 0.0,
    ) -> Sequence[Operand]:
        decrease, m, v = self.compute_step(be, g, states, rate, epsilon)
        return [w - (decrease + decay * w), m, v]


@checked_dataclass
class NAdam(Adam):
    """Adam with Nesterov's momentum, whose coefficient grows to ``beta_1``.

    Formula: ``w = w - l (mu_(t+1) m / (1 - p_(t+1)) + (1 - mu_t) g / (1 - p_t)) / (sqrt(v') + epsilon)``, with m and v
    of Adam, ``v' = v / (1 - beta_2^t)``, ``mu_t = beta_1 (1 - 0.96^(t momentum_decay) / 2)`` and
    ``p_t = mu_1 ... mu_t``, as in PyTorch.

    Parameters
    ----------
    stochastic_round : bool, or float
        Whether 16-bit parameters are rounded stochastically; default: False. A number as the first argument is the
        learning rate.
    learning_rate : float
        Learning rate l before the schedule is applied; default: 0.002.
    beta_1, beta_2 : float
        Decay rates of m and v per step, in [0, 1); default: 0.9 and 0.999.
    epsilon : float
        Added to the square root of v'; default: 1e-8.
    gradient_clip_norm, gradient_clip_value, param_clip_value : float, optional
        Largest norm of all gradients, and largest magnitude of an element of a gradient, and of a parameter; default:
        no limit.
    name : str, optional
        Name; default: the class name and a counter.
    schedule : Schedule
        Learning-rate schedule; default: constant.
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
            "gradient_rate": rate * (1 - mu) / (1 - product),
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
        self,
        be: Backend,
        w: Operand,
        g: Operand,
        states: Row,
        rate: float,
        gradient_rate: float = 0,
        epsilon: float = 1e-8,
    ) -> Sequence[Operand]:
        decrease, m, v = self.compute_step(be, g, states, rate, epsilon)
        return [w - decrease - gradient_rate * g / (be.sqrt(v) + epsilon), m, v]


@checked_dataclass
class LAMB(Adam):
    """Adam whose step of each parameter has a norm in proportion to that of the parameter: for large minibatches.

    Formula: ``w = w - l |w| / |r| r``, with ``r = m' / (sqrt(v') + epsilon) + wdecay w`` and m', v' of AdamW. If a norm
    is 0, the quotient is 1.

    Parameters
    ----------
    stochastic_round : bool, or float
        Whether 16-bit parameters are rounded stochastically; default: False. A number as the first argument is the
        learning rate.
    learning_rate : float
        Learning rate l before the schedule is applied; default: 0.001.
    beta_1, beta_2 : float
        Decay rates of m and v per step, in [0, 1); default: 0.9 and 0.999.
    epsilon : float
        Added to the square root of v'; default: 1e-6.
    gradient_clip_norm, gradient_clip_value, param_clip_value : float, optional
        Largest norm of all gradients, and largest magnitude of an element of a gradient, and of a parameter; default:
        no limit.
    name : str, optional
        Name; default: the class name and a counter.
    schedule : Schedule
        Learning-rate schedule; default: constant.
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
        return {"rate": self.get_rate(epoch), "correction": second / first, "epsilon": self.epsilon * second}

    def update_rule(
        self,
        be: Backend,
        w: Operand,
        g: Operand,
        states: Row,
        rate: float,
        correction: float = 1,
        epsilon: float = 1e-6,
    ) -> Sequence[Operand]:
        step, m, v = self.compute_step(be, g, states, correction, epsilon)
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
    gradient_clip_norm : float, optional
        Largest norm of the gradients of all layers together; default: no limit.
    gradient_clip_value : float, optional
        Largest magnitude of an element of a gradient; default: no limit.

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

    state_names = ("mean", "max_gradient")

    def get_scalars(self, epoch: float) -> dict[str, float]:
        correction: float = 1 - self.beta_1 ** (epoch + 1)
        return {"rate": self.get_rate(epoch) / correction}

    def update_rule(self, be: Backend, w: Operand, g: Operand, states: Row, rate: float) -> Sequence[Operand]:
        m = self.beta_1 * states[0] + (1 - self.beta_1) * g
        v = be.maximum(self.beta_2 * states[1], be.absolute(g))
        return [be.clip(w - be.shift(be.shift(m, 1 / (v + self.epsilon)), rate), -1, 1), m, v]


@checked_dataclass
class MultiOptimizer(Optimizer):
    """Different optimizers for different layers, selected by the name of the layer or of its class.

    The name of the layer has precedence over that of its class. All other layers use the optimizer of 'default'.

    Parameters
    ----------
    optimizer_mapping : dict of str to Optimizer or str
        Maps names of layers or classes, and 'default', to optimizers, or their names such as "adam".
    name : str, optional
        Name; default: the class name and a counter.

    Attributes
    ----------
    map_list : dict of Optimizer to list of Layer
        The layers of the last ``optimize``, by optimizer.

    Raises
    ------
    TypeError
        If ``optimizer_mapping`` is not a dict of optimizers, or one of them is a ``LossScaling``.
    ValueError
        If there is no 'default'; in ``optimize``, if a key is neither the name of a layer nor of a class.

    Examples
    --------
    >>> from neonlite.optimizers import Adam, GradientDescentMomentum, MultiOptimizer, RMSProp
    >>> mapping = {"default": Adam(), "Bias": RMSProp(), "output": GradientDescentMomentum(0.1, 0.9)}
    >>> optimizer = MultiOptimizer(mapping)
    """

    optimizer_mapping: dict[str, Any]  # Optimizers; the constructor also accepts their names
    name: str | None = None  # type: ignore[assignment]

    result_attributes = unread_attributes = (*Optimizer.unread_attributes, "map_list")

    def __post_init__(self) -> None:
        super().__post_init__()
        given = instance("MultiOptimizer: optimizer_mapping", self.optimizer_mapping, dict, "a dict of optimizers")
        self.optimizer_mapping = mapping = {
            key: from_name("MultiOptimizer: each of optimizer_mapping", x, OPTIMIZERS) for key, x in given.items()
        }
        for x in mapping.values():
            instance("MultiOptimizer: each of optimizer_mapping", x, Optimizer, "an optimizer, such as Adam(),")
            if isinstance(x, LossScaling):
                raise TypeError(
                    f"MultiOptimizer: expected optimizers without loss scaling, got {describe(x)}. Wrap the "
                    "MultiOptimizer as a whole: LossScaling(MultiOptimizer(...))."
                )
        if "default" not in mapping:
            have = ", ".join(mapping) or "none"
            raise ValueError(f"MultiOptimizer: expected a key 'default' for all other layers, got the keys: {have}.")

    def optimize(self, layer_list: Iterable[Layer], epoch: float = 0) -> None:
        layer_list = list(layer_list)
        layers: dict[int, list[Layer]] = {id(optimizer): [] for optimizer in self.optimizer_mapping.values()}
        for layer, optimizer in zip(layer_list, self._choose(map(layer_and_class_name, layer_list)), strict=True):
            layers[id(optimizer)].append(layer)
        self.map_list = {optimizer: layers[id(optimizer)] for optimizer in self.optimizer_mapping.values()}
        if None in map(last_writer, flatten_optimizers(self)):
            atomic(self._optimize_each, epoch)
        else:
            super().optimize(layer_list, epoch)
        restore_on_failure(self, "t")
        self.t += 1

    def _optimize_each(self, epoch: float) -> None:
        """Update the layers of each optimizer by its ``optimize``, as one may be of the user."""
        for optimizer, layers in self.map_list.items():
            optimizer.cuda_graphs = self.cuda_graphs
            if layers:
                optimizer.optimize(layers, epoch)

    def _choose(self, names: Iterable[tuple[str, str]]) -> list[Optimizer]:
        """Return the optimizer of each layer, given its name and that of its class. ValueError for an unknown key."""
        names, mapping = list(names), self.optimizer_mapping
        unknown = mapping.keys() - {"default", *(key for pair in names for key in pair)}
        if unknown and (unknown := unknown - layer_class_names()):
            have = ", ".join(f"{name} ({classnm})" for name, classnm in names if name) or "none"
            raise ValueError(
                f"MultiOptimizer: expected keys that are names or classes of layers, got {', '.join(sorted(unknown))}. "
                f"The layers are {have}."
            )
        return [mapping[next(key for key in (*pair, "default") if key in mapping)] for pair in names]

    def _make_steps(self, parameters: Sequence[Tensor], gradients: Sequence[Operand], settings: Settings) -> list[Any]:
        optimizers = self._choose(settings.owners)
        rows = list(zip(optimizers, parameters, gradients, settings.owners, strict=True))
        steps: list[Any] = []
        for optimizer in dict.fromkeys(optimizers):
            ws, gs, owners = zip(*[row for other, *row in rows if other is optimizer], strict=True)
            steps += updates_of(optimizer, ws, gs, settings._replace(owners=owners))
        return steps

    def get_state(self) -> dict[str, Any]:
        return {key: optimizer.get_state() for key, optimizer in self.optimizer_mapping.items()}

    def set_state(self, state: dict[str, Any]) -> None:
        for key, optimizer in self.optimizer_mapping.items():
            optimizer.set_state(state[key])


class OptimizerWrapper(Optimizer):
    """Base class of optimizers that wrap another one, which updates the parameters; it may be given by its name."""

    optimizer: Optimizer | str

    def __post_init__(self) -> None:
        super().__post_init__()
        self.optimizer = from_name(f"{self.classnm}: optimizer", self.optimizer, OPTIMIZERS)
        if not isinstance(self.optimizer, Optimizer) or isinstance(self.optimizer, type(self)):
            raise TypeError(f"{self.classnm}: expected an optimizer, such as Adam(), got {describe(self.optimizer)}.")

    @property
    def wrapped(self) -> Optimizer:
        """The optimizer that updates the parameters."""
        return cast(Optimizer, self.optimizer)


@checked_dataclass
class WeightAverage(OptimizerWrapper):
    """Wrap an optimizer: beside each parameter, keep the exponential moving average of its values after each update.

    Formula: ``a = decay a + (1 - decay) w``; the average is ``a / (1 - decay^t)`` after t updates. It is a state of the
    parameter: checkpoints store it, ``fit`` continues it, and a step that fails leaves it unchanged. Moments of
    ``BatchNorm`` are not averaged.

    Parameters
    ----------
    optimizer : Optimizer or str
        An optimizer with an update rule, or its name such as "adam". For a MultiOptimizer, wrap those that it contains;
        wrap LossScaling around this one.
    decay : float
        Decay rate of the average per update, in [0, 1); default: 0.999.
    name : str, optional
        Name; default: the class name and a counter.

    Raises
    ------
    TypeError
        If ``optimizer`` is not an optimizer with an update rule.

    References
    ----------
    Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992.

    Examples
    --------
    >>> import neonlite as nl
    >>> from neonlite.optimizers import Adam, WeightAverage
    >>> be, optimizer = nl.gen_backend("cpu"), WeightAverage(Adam(0.01), decay=0.9)
    >>> model = nl.Model([nl.layers.Affine(1)])
    >>> history = model.fit([[0.0], [1.0]], [1.0, 3.0], optimizer=optimizer, progress_bar=False)
    >>> optimizer.averaged(model).predict([[0.0], [1.0]]).shape
    (2,)
    """

    optimizer: Optimizer | str
    decay: float = 0.999
    name: str | None = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.wrapped.check_rule(self.classnm)
        self.state_names = (*self.wrapped.state_names, "average")
        self.merges_parameters = self.wrapped.merges_parameters

    @property
    def kind(self) -> str:
        return f"{self.classnm}Of{self.wrapped.classnm}({', '.join(self.state_names)})"

    def averaged(self, model: Model) -> Model:
        """Return a copy of a model with the averages as weights: to evaluate it, predict with it, or save it.

        Parameters
        ----------
        model : Model
            A model that this optimizer trains.

        Returns
        -------
        Model
            The copy. The model itself is unchanged.

        Raises
        ------
        ValueError
            If the model has no averages of this optimizer.
        """
        result, found = model.copy(), False
        for (w, _), states in get_param_list(result.layers.leaves()):
            kind, t = w.updates or ("", 0)
            if kind == self.kind and t:
                w[:], found = states[-1] / (1 - self.decay**t), True
        if not found:
            raise ValueError(
                f"{self.classnm}.averaged: expected a model that was trained by {self.name}, got {model.name} without "
                "averages. Call model.fit(X, y, optimizer=optimizer) first."
            )
        return result

    def _get_scalars_at(self, t: int, epoch: float) -> dict[str, Any]:
        self.t = t
        return self.wrapped._get_scalars_at(t, epoch)

    def _update(self, be: Backend, w: Tensor, g: Operand, states: Row, scalars: dict[str, Any]) -> list[Any]:
        self.wrapped.t = self.t
        new, *others = self.wrapped._update(be, w, g, states[:-1], scalars)
        return [new, *others, self.decay * states[-1] + (1 - self.decay) * new]

    def get_state(self) -> dict[str, Any]:
        return {"t": self.t, "optimizer": self.wrapped.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        self.t = state["t"]
        self.wrapped.set_state(state["optimizer"])


def layer_class_names() -> set[str]:
    """Return the names of all classes of layers, also of those that no network contains."""
    classes: list[Any] = [NervanaObject]
    for cls in classes:  # which grows
        classes += cls.__subclasses__()
    return {cls.__name__ for cls in classes if hasattr(cls, "configure")}


def layer_and_class_name(layer: Layer) -> tuple[str, str]:
    """Return the name of a layer and of its class."""
    return getattr(layer, "name", ""), type(layer).__name__


# the optimizers that a name stands for, such as ``optimizer="adam"``: names of classes, and those of other libraries
OPTIMIZERS: dict[str, Callable[[], Optimizer]] = {
    "adadelta": Adadelta,
    "adagrad": Adagrad,
    "adam": Adam,
    "adamw": AdamW,
    "gradientdescentmomentum": GradientDescentMomentum,
    "lamb": LAMB,
    "lion": Lion,
    "momentum": GradientDescentMomentum,
    "muon": Muon,
    "nadam": NAdam,
    "nesterov": partial(GradientDescentMomentum, nesterov=True),
    "rmsprop": RMSProp,
    "sgd": partial(GradientDescentMomentum, momentum_coef=0.0),
    "shiftadamax": ShiftAdaMax,
}


# --- lossScaling: scale errors for float16 training, and skip updates whose gradients overflow ---

MAX_CONSECUTIVE_SKIPS = 40  # after that many, the scale is not the cause
SCALE_COUNTS = ("good_steps", "consecutive_skips", "total_skips")


@checked_dataclass
class LossScaling(OptimizerWrapper):
    """Wrap an optimizer: errors are multiplied by ``scale`` before the backward pass, and gradients divided by it.

    The division is in float32. A step whose gradients are not all finite is skipped: parameters and states are
    unchanged. With ``dynamic``, the scale is halved after a skipped step, and doubled after ``growth_interval`` steps
    without one. ``Model.fit`` scales the errors; in a custom training loop, call
    ``net.bprop(optimizer.scale_errors(errors))``.

    Parameters
    ----------
    optimizer : Optimizer or str
        The optimizer, or its name such as "adam". To use a MultiOptimizer, wrap it as a whole, not its optimizers.
    scale : float
        Initial factor of the errors; default: 1024.
    dynamic : bool
        Whether the scale is adapted; default: True.
    growth_interval : int
        Steps without overflow after which the scale is doubled; default: 2000.
    name : str, optional
        Name; default: the class name and a counter.

    Attributes
    ----------
    good_steps, consecutive_skips : int
        Updates since the last skipped step, and skipped steps since the last update.
    total_skips : int
        Number of skipped steps.

    Raises
    ------
    TypeError
        If ``optimizer`` is not an optimizer.
    ValueError
        If ``scale`` or ``growth_interval`` is not positive.
    RuntimeError
        In ``optimize`` and ``step``, if the errors or the cost were not scaled by ``scale_errors``.
    FloatingPointError
        In ``optimize`` and ``step``, after 40 consecutive skipped steps.

    References
    ----------
    Micikevicius et al., "Mixed precision training", ICLR 2018, section 3.2.

    Examples
    --------
    >>> from neonlite.optimizers import Adam, LossScaling
    >>> optimizer = LossScaling(Adam(learning_rate=0.001), scale=2.0**15)
    """

    optimizer: Optimizer | str  # an Optimizer; the constructor also accepts its name
    scale: float = 2.0**10
    dynamic: bool = True
    growth_interval: int = 2000
    name: str | None = None  # type: ignore[assignment]

    result_attributes = unread_attributes = (*Optimizer.unread_attributes, "scale", *SCALE_COUNTS)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_attributes(self, "scale", above=0)
        self.growth_interval = integer("LossScaling: growth_interval", self.growth_interval)
        self.good_steps = self.consecutive_skips = self.total_skips = 0
        self._device_scale: Any = None

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "scale" and vars(self).get("_device_scale") is not None:
            self._device_scale.fill(value)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_device_scale": None}

    @overload
    def scale_errors(self, errors: Tensor) -> Tensor: ...
    @overload
    def scale_errors(self, errors: list[Tensor]) -> list[Tensor]: ...
    @overload
    def scale_errors(self, errors: OpTreeNode) -> OpTreeNode: ...
    def scale_errors(self, errors: Any) -> Any:
        """Multiply errors by the scale: tensors in place. CUDA graphs and programs read the current scale in each run.

        Parameters
        ----------
        errors : Tensor, list of Tensor or OpTreeNode
            The errors of a cost; or the cost as an op-tree, of which ``step`` then takes the gradients.

        Returns
        -------
        Tensor, list of Tensor or OpTreeNode
            The same tensors; for an op-tree, its product with the scale.
        """
        if isinstance(errors, list | tuple):
            return [self.scale_errors(error) for error in errors]
        scale = self._scale_on(errors.backend)
        if isinstance(errors, OpTreeNode):
            return errors * scale
        errors[:] = errors * scale
        return errors

    def _scale_on(self, be: Backend) -> Tensor:
        """Return the scale as a tensor (1, 1) on a backend."""
        if self._device_scale is None or self._device_scale.backend is not be:
            with untraced():
                self._device_scale = be.zeros((1, 1), dtype="float32").fill(self.scale)
        return cast(Tensor, self._device_scale)

    def optimize(self, layer_list: Iterable[Layer], epoch: float = 0) -> None:
        layer_list = list(layer_list)
        if None in map(last_writer, flatten_optimizers(self)):
            atomic(self._optimize_by_wrapped, layer_list, epoch)
        else:
            super().optimize(layer_list, epoch)

    def _optimize_by_wrapped(self, layer_list: list[Layer], epoch: float) -> None:
        """Divide the gradients by the scale, and call ``optimize`` of the wrapped optimizer, a method of the user."""
        gradients = [dw for (_, dw), _ in get_param_list(layer_list)]
        if not gradients:
            return
        restore_on_failure(self, "t", "scale", *SCALE_COUNTS)
        be = cast("Backend", gradients[0].backend)
        scale = self._check_scaled(be)
        if not be.evaluate([are_finite(be, gradients)])[0].get().item():
            return self.count_skip()
        be.assign(gradients, [be.astype(g, compute_dtype(g)) / scale for g in gradients])
        self.count_update()
        self.wrapped.cuda_graphs = self.cuda_graphs
        self.wrapped.optimize(layer_list, epoch)

    def _check_scaled(self, be: Backend) -> Tensor:
        """Return the scale as a tensor; RuntimeError if no errors have been scaled."""
        if self._device_scale is None:
            raise self._not_scaled()
        return self._scale_on(be)

    def _not_scaled(self) -> RuntimeError:
        """Return the error for gradients of a cost that was not scaled."""
        return RuntimeError(
            "LossScaling: expected errors that were scaled before the backward pass, got none. Call "
            "net.bprop(optimizer.scale_errors(errors)), as Model.fit does, or take the gradients of "
            "optimizer.scale_errors(cost)."
        )

    def _make_steps(self, parameters: Sequence[Tensor], gradients: Sequence[Operand], settings: Settings) -> list[Any]:
        be = cast("Backend", parameters[0].backend)
        scale = self._check_scaled(be)
        leaves = [g.leaves.values() for g in gradients if isinstance(g, OpTreeNode) and g.leaves is not None]
        if leaves and not any(x is scale for part in leaves for x in part):
            raise self._not_scaled()
        settings = settings._replace(divisors=(scale, *settings.divisors))
        return [ScaledStep(self, updates_of(self.wrapped, parameters, gradients, settings), gradients)]

    def count_update(self) -> None:
        """Count an update, and adapt the scale."""
        self.t, self.good_steps, self.consecutive_skips = self.t + 1, self.good_steps + 1, 0
        if self.good_steps % self.growth_interval == 0:
            self._rescale(2)

    def count_skip(self) -> None:
        """Count a step that was skipped, and adapt the scale; FloatingPointError after too many in a row."""
        self.total_skips, self.consecutive_skips, self.good_steps = self.total_skips + 1, self.consecutive_skips + 1, 0
        if self.consecutive_skips == MAX_CONSECUTIVE_SKIPS:
            raise FloatingPointError(
                f"LossScaling: expected finite gradients, got NaN or infinity in {MAX_CONSECUTIVE_SKIPS} consecutive "
                f"steps, down to a scale of {self.scale:g}. Training diverged: reduce the learning rate or the scale."
            )
        self._rescale(0.5)

    def _rescale(self, factor: float) -> None:
        if self.dynamic:
            self.scale *= factor

    def get_state(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in SCALE_COUNTS}
        return {"t": self.t, "scale": float(self.scale), **counts, "optimizer": self.wrapped.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        check_keys("LossScaling: the state", state, self.get_state())
        if self.wrapped.get_state().keys() == state["optimizer"].keys():  # else a different optimizer
            self.wrapped.set_state(state["optimizer"])
        for key, value in state.items():
            if key != "optimizer":
                setattr(self, key, value)


class ScaledStep:
    """An update by scaled gradients; without effect if one of them is not finite, which is known after it."""

    def __init__(self, optimizer: LossScaling, steps: Sequence[Any], gradients: Sequence[Operand]) -> None:
        self.optimizer, self.steps = optimizer, steps
        self.be: Any = gradients[0].backend
        self.is_replayed = all(step.is_replayed for step in steps)
        self.overflow = self.be.zeros((1, 1))  # 0 if the gradients of the last run were finite, as in a dry run, else 1

    def current_updates(self) -> list[Any] | None:
        """Return what the steps of the wrapped optimizer return; None if one returns None."""
        updates = [step.current_updates() for step in self.steps]
        return None if None in updates else updates

    def count(self, epoch: float | None = None) -> None:
        """Count the update, until ``finish`` reads whether it was one."""
        restore_on_failure(self.optimizer, "t", "scale", *SCALE_COUNTS)
        for step in self.steps:
            step.count(epoch)

    def finish(self) -> None:
        """Adapt the scale; after an update without effect, restore the numbers of updates."""
        if not self.overflow.get().item():
            return self.optimizer.count_update()
        for step in self.steps:
            step.restore(*step.before)
        self.optimizer.count_skip()

    def assignments(self) -> list[tuple[Tensor, Operand]]:
        """Return each parameter and state with its new value, or its old one if a gradient is not finite."""
        be = self.be
        gradients = [g for step in self.steps for _, (_, g, *_) in step.rows]
        finite = are_finite(be, gradients)
        pairs = [pair for step in self.steps for pair in step.assignments()]
        return [(self.overflow, 1 - finite), *((t, be.where(finite, value, t)) for t, value in pairs)]


def are_finite(be: Backend, gradients: Sequence[Operand]) -> Operand:
    """Return whether all elements of gradients are finite: 1 or 0, as an op-tree (1, 1)."""
    return reduce(be.minimum, [be.reshape(be.min(be.finite(g)), (1, 1)) for g in gradients])


def updates_of(
    optimizer: Optimizer, parameters: Sequence[Tensor], gradients: Sequence[Operand], settings: Settings
) -> list[Any]:
    """Return the update by an optimizer that another one contains; TypeError if it defines ``optimize``."""
    if last_writer(optimizer) is None:
        raise TypeError(
            f"optimizer: expected an optimizer that defines update_rule or get_scalars, got {describe(optimizer)}, "
            "which defines optimize."
        )
    return optimizer._make_steps(parameters, gradients, settings)


def flatten_optimizers(optimizer: Optimizer) -> list[Optimizer]:
    """Return the optimizers that a MultiOptimizer, LossScaling or Distributed contains, or the optimizer itself."""
    if isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        return flatten_optimizers(inner)
    if isinstance(optimizer, MultiOptimizer):
        return [x for part in optimizer.optimizer_mapping.values() for x in flatten_optimizers(part)]
    return [optimizer]
