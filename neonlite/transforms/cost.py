"""How wrong is an output?  One number a column, and how it changes with the output."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from neonlite.optree import describe
from neonlite.transforms.activation import Logistic, Softmax
from neonlite.transforms.transform import Cost, Transform, alike, derivative, one_of

Formula = Callable[[Any, Any], Any]  # (be, y) -> an op-tree

# what the discriminator's output for data costs it, what that for noise does, and what the latter costs the generator
GAN: dict[str, tuple[Formula, Formula, Formula]] = {
    "modified": (lambda be, y: -be.safelog(y), lambda be, y: -be.safelog(1 - y), lambda be, y: -be.safelog(y)),
    "original": (lambda be, y: -be.safelog(y), lambda be, y: -be.safelog(1 - y), lambda be, y: be.safelog(1 - y)),
    "wasserstein": (lambda be, y: -y, lambda be, y: y, lambda be, y: -y),
}


class CrossEntropy(Cost):
    """What the two cross-entropies share: under the paired activation, dcost/dx is ``scale (y - t)``."""

    scale: float
    unit = 1.0

    def bprop(self, y: Any, t: Any) -> Any:
        alike(self, y, t)
        return self.unit * self.scale * (y - t)

    def backward(self, y: Any, t: Any) -> Any:
        alike(self, y, t)
        return self.scale * super().backward(y, t)


class CrossEntropyBinary(CrossEntropy):
    """``cost = -sum_i (t_i ln y_i + (1 - t_i) ln(1 - y_i))`` for independent probabilities y (F, N) -> (1, N).

    Logarithms end at -50, so that a certain mistake costs 50. ``bprop`` is the shortcut ``scale (y - t)``, right when y
    comes from Logistic and that is not differentiated again; ``backward`` is true. ``scale`` multiplies derivatives,
    not the cost.

    Source: Goodfellow, Bengio and Courville 2016, section 6.2.2.2.
    """

    pairs_with: type[Transform] | None = Logistic

    def __init__(self, scale: float = 1, name: str | None = None) -> None:
        super().__init__(name)
        self.scale = scale

    def __call__(self, y: Any, t: Any) -> Any:
        alike(self, y, t)
        return self.be.sum(self.be.safelog(1 - y) * (t - 1) - self.be.safelog(y) * t, axis=0)


class CrossEntropyMulti(CrossEntropy):
    """``cost = -sum_i t_i ln y_i`` for the probabilities y (classes, N) of one class of several -> (1, N).

    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> y, t = be.array([[0.25], [0.75]]), be.array([[1.0], [0.0]])
    >>> CrossEntropyMulti(usebits=True)(y, t).asnumpyarray()
    array([[2.]], dtype=float32)
    >>> CrossEntropyMulti().bprop(y, t).asnumpyarray()  # with respect to the input of the softmax
    array([[-0.75], [ 0.75]], dtype=float32)
    >>> CrossEntropyMulti().backward(y, t).asnumpyarray()  # with respect to y
    array([[-4.], [-0.]], dtype=float32)

    Logarithms end at -50; with ``usebits`` they are to the base 2, and all is divided by ln 2. ``bprop`` is the
    shortcut ``scale (y - t)``, right when y comes from Softmax, or PixelwiseSoftmax, that is not differentiated again,
    and the targets of each softmax add up to 1; ``backward`` is true. ``scale`` multiplies derivatives, not the cost.

    Source: Goodfellow, Bengio and Courville 2016, section 6.2.2.3.
    """

    pairs_with: type[Transform] | None = Softmax

    def __init__(self, scale: float = 1, usebits: bool = False, name: str | None = None) -> None:
        super().__init__(name)
        self.scale, self.usebits = scale, usebits
        self.unit = 1 / math.log(2) if usebits else 1.0

    def __call__(self, y: Any, t: Any) -> Any:
        alike(self, y, t)
        return -self.unit * self.be.sum(t * self.be.safelog(y), axis=0)


class SumSquared(Cost):
    """``cost = sum_i (y_i - t_i)^2 / 2``, (F, N) -> (1, N)."""

    def __call__(self, y: Any, t: Any) -> Any:
        alike(self, y, t)
        return self.be.sum(self.be.square(y - t), axis=0) / 2

    def backward(self, y: Any, t: Any) -> Any:
        alike(self, y, t)
        return y - t


class MeanSquared(Cost):
    """``cost = mean_i (y_i - t_i)^2 / 2``, (F, N) -> (1, N)."""

    def __call__(self, y: Any, t: Any) -> Any:
        alike(self, y, t)
        return self.be.mean(self.be.square(y - t), axis=0) / 2

    def backward(self, y: Any, t: Any) -> Any:
        alike(self, y, t)
        return (y - t) / y.shape[0]


class SmoothL1Loss(Cost):
    """``cost = sum_i h(y_i - t_i)``, (F, N) -> (1, N), a parabola that goes on as a line.

    ``h(x) = sigma^2 x^2 / 2`` where ``|x| < 1 / sigma^2``, else ``|x| - 1 / (2 sigma^2)``.

    Source: Girshick 2015, Fast R-CNN, equation 3; with sigma, Ren et al. 2015.
    """

    def __init__(self, sigma: float = 1.0, name: str | None = None) -> None:
        super().__init__(name)
        if not sigma > 0:
            raise ValueError(f"SmoothL1Loss: sigma is a number above 0; got {describe(sigma)}")
        self.sigma = sigma

    def __call__(self, y: Any, t: Any) -> Any:
        alike(self, y, t)
        size = self.be.absolute(y - t)
        near = self.be.minimum(size, self.sigma**-2)  # both branches at once, and no square that overflows
        return self.be.sum(self.sigma**2 * near * (size - near / 2), axis=0)

    def backward(self, y: Any, t: Any) -> Any:
        alike(self, y, t)
        return self.be.clip(self.sigma**2 * (y - t), -1, 1)


class SquareHingeLoss(Cost):
    """``cost = mean_i max(margin - s_i y_i, 0)^2`` with ``s = 2 t - 1``, targets 0 and 1 as signs; (F, N) -> (1, N).

    Source: Tang 2013, Deep learning using linear support vector machines, equation 6.
    """

    def __init__(self, margin: float = 1, name: str | None = None) -> None:
        super().__init__(name)
        self.margin = margin

    def __call__(self, y: Any, t: Any) -> Any:
        alike(self, y, t)
        return self.be.mean(self.be.square(self.be.maximum(self.margin - (2 * t - 1) * y, 0)), axis=0)

    def backward(self, y: Any, t: Any) -> Any:
        alike(self, y, t)
        sign = 2 * t - 1
        return -2 / y.shape[0] * sign * self.be.maximum(self.margin - sign * y, 0)


class GANCost(Cost):
    """What a discriminator, or the generator against it, loses: the mean over a column's outputs, (F, N) -> (1, N).

    ``y_data`` and ``y_noise`` are the discriminator's outputs for data and for what the generator made of noise:
    probabilities of being data, or any numbers for "wasserstein", whose discriminator is called a critic.

    =============  =================================  ==================
    func           cost of "dis"                      cost of "gen"
    =============  =================================  ==================
    "original"     ``-ln y_data - ln(1 - y_noise)``   ``ln(1 - y_noise)``
    "modified"     ``-ln y_data - ln(1 - y_noise)``   ``-ln y_noise``
    "wasserstein"  ``y_noise - y_data``               ``-y_noise``
    =============  =================================  ==================

    All are minimized. Logarithms end at -50, where they are flat. The derivatives, times ``scale``, are ``bprop_data``,
    ``bprop_noise`` and ``bprop_generator``; they are true, for any activation before.

    Source: Goodfellow et al. 2014, equation 1 and section 3 ("modified"); Arjovsky, Chintala and Bottou 2017,
    algorithm 1, with signs turned for minimizing.
    """

    def __init__(
        self, scale: float = 1.0, cost_type: str = "dis", func: str = "modified", name: str | None = None
    ) -> None:
        super().__init__(name)
        one_of(self, "cost_type", cost_type, ("dis", "gen"))
        one_of(self, "func", func, tuple(GAN))
        self.scale, self.cost_type, self.func = scale, cost_type, func

    def __call__(self, y_data: Any, y_noise: Any, cost_type: str | None = None) -> Any:
        """Return the cost of "dis" or "gen", as made unless given; for "gen" y_data has no effect and may be None."""
        cost_type = cost_type or self.cost_type
        one_of(self, "cost_type", cost_type, ("dis", "gen"))
        alike(self, y_noise if cost_type == "gen" and y_data is None else y_data, y_noise, "y_data and y_noise")
        of_data, of_noise, of_generator = GAN[self.func]
        if cost_type == "gen":
            return self.be.mean(of_generator(self.be, y_noise), axis=0)
        return self.be.mean(of_data(self.be, y_data) + of_noise(self.be, y_noise), axis=0)

    def bprop_data(self, y_data: Any) -> Any:
        """Return d(cost of "dis") / d y_data."""
        return self._derivative(0, y_data)

    def bprop_noise(self, y_noise: Any) -> Any:
        """Return d(cost of "dis") / d y_noise."""
        return self._derivative(1, y_noise)

    def bprop_generator(self, y_noise: Any) -> Any:
        """Return d(cost of "gen") / d y_noise."""
        return self._derivative(2, y_noise)

    def _derivative(self, which: int, y: Any) -> Any:
        alike(self, y, y)
        formula = GAN[self.func][which]
        return self.scale * derivative(lambda y: self.be.mean(formula(self.be, y), axis=0), y)

    def bprop(self, y: Any, t: Any) -> Any:
        """Raise TypeError: there are three."""
        raise TypeError("GANCost has three derivatives: bprop_data(y), bprop_noise(y) and bprop_generator(y)")

    backward = bprop
