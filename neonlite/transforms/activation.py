"""Activation functions: Rectlin, Logistic, Tanh, Softmax, GELU and others."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from neonlite.backend.validation import check_number, integer
from neonlite.messages import describe
from neonlite.ops import composites
from neonlite.optree import Operand
from neonlite.transforms.transform import Transform
from neonlite.typing import OperandLike

EPSILON = 2.0**-23


class Identity(Transform):
    """Identity: ``f(x) = x``.

    Parameters
    ----------
    name : str, optional
        Name of the object.
    """

    def __call__(self, x: Operand) -> Operand:
        return x

    def bprop(self, y: Operand) -> OperandLike:
        return 1

    def backward(self, error: Operand, y: Operand, x: Operand | None = None) -> Operand:
        return error


class Rectlin(Transform):
    """Rectified linear unit (ReLU), leaky with a slope: ``f(x) = max(x, 0) + slope min(x, 0)``.

    The derivative at 0 is 0. With a negative slope the sign of x cannot be derived from the output, and
    ``backward`` needs x.

    Parameters
    ----------
    slope : float
        Slope for negative x (default: 0).
    name : str, optional
        Name of the object.

    References
    ----------
    Nair and Hinton 2010; Maas, Hannun and Ng 2013 (leaky).

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> x, leaky = be.array([[-4.0, 0.0, 3.0]]), Rectlin(slope=0.25)
    >>> leaky(x).asnumpyarray()
    array([[-1.,  0.,  3.]], dtype=float32)
    >>> leaky.bprop(leaky(x)).asnumpyarray()
    array([[0.25, 0.  , 1.  ]], dtype=float32)
    """

    def __init__(self, slope: float = 0, name: str | None = None) -> None:
        super().__init__(name)
        self.slope = check_number(f"{self.classnm}: slope", slope)

    @property
    def has_grad_from_output(self) -> bool:
        return self.slope >= 0

    def __call__(self, x: Operand) -> Operand:
        return composites.leaky_relu(self.be, x, slope=self.slope)  # a leaf of the tree, as it may change at each step

    def bprop(self, y: Operand) -> OperandLike:
        if not self.has_grad_from_output:
            return super().bprop(y)
        grad = self.be.greater(y, 0)
        return grad + self.slope * self.be.less(y, 0) if self.slope else grad


class Rectlinclip(Rectlin):
    """Clipped rectified linear unit: ``f(x) = min(max(x, 0) + slope min(x, 0), xcut)``.

    The derivative is 0 where the output is xcut.

    Parameters
    ----------
    slope : float
        Slope for negative x (default: 0).
    name : str, optional
        Name of the object.
    xcut : float
        Upper bound of the output.

    References
    ----------
    Hannun et al. 2014, Deep Speech, section 2.
    """

    def __init__(self, slope: float = 0, name: str | None = None, xcut: float = 20.0) -> None:
        super().__init__(slope, name)
        self.xcut = check_number(f"{self.classnm}: xcut", xcut)

    def __call__(self, x: Operand) -> Operand:
        return self.be.minimum(super().__call__(x), self.xcut)

    def bprop(self, y: Operand) -> OperandLike:
        return super().bprop(y) * self.be.less(y, self.xcut)


class Explin(Transform):
    """Exponential linear unit (ELU): ``f(x) = max(x, 0) + alpha (e^min(x, 0) - 1)``; the derivative at 0 is alpha.

    Parameters
    ----------
    alpha : float
        Scale for negative x, non-negative.
    name : str, optional
        Name of the object.

    References
    ----------
    Clevert, Unterthiner and Hochreiter 2016, equation 16.
    """

    def __init__(self, alpha: float = 1.0, name: str | None = None) -> None:
        super().__init__(name)
        self.alpha = check_number("Explin: alpha", alpha, 0)

    def __call__(self, x: Operand) -> Operand:
        return composites.elu(self.be, x, alpha=self.alpha)

    def bprop(self, y: Operand) -> OperandLike:
        below = self.be.minimum(y, 0) + self.alpha * self.be.less_equal(y, 0)  # for x <= 0, alpha e^x = y + alpha
        return self.be.greater(y, 0) + below


class Normalizer(Transform):
    """Scaling: ``f(x) = x / divisor``; by default it maps uint8 values to [0, 2).

    Parameters
    ----------
    name : str, optional
        Name of the object.
    divisor : float
        The divisor, not 0.
    """

    def __init__(self, name: str | None = None, divisor: float = 128.0) -> None:
        super().__init__(name)
        self.divisor = check_number("Normalizer: divisor", divisor)
        if not divisor:
            raise ValueError(f"Normalizer: expected a nonzero divisor, got {describe(divisor)}")

    def __call__(self, x: Operand) -> Operand:
        return x / self.divisor

    def bprop(self, y: Operand) -> OperandLike:
        return 1 / self.divisor


class Softmax(Transform):
    """Softmax: ``f(x)_i = e^x_i / sum_j e^x_j`` along an axis.

    ``bprop`` returns 1, as ``CrossEntropyMulti.bprop`` already includes the derivative of the softmax; ``backward``
    returns the exact gradient ``y (error - sum(y error))``.

    Parameters
    ----------
    axis : int
        Axis of the classes (default: 0, for x (classes, N)).
    name : str, optional
        Name of the object.
    epsilon : float
        No effect; accepted for compatibility with neon.

    References
    ----------
    Bridle 1990, equation 10.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> Softmax()(be.array([[1000.0, 0.0], [1000.0, 0.0], [0.0, 0.0]])).asnumpyarray()
    array([[0.5       , 0.33333334], [0.5       , 0.33333334], [0.        , 0.33333334]], dtype=float32)
    """

    def __init__(self, axis: int = 0, name: str | None = None, epsilon: float = EPSILON) -> None:
        super().__init__(name)
        self.axis, self.epsilon = integer(f"{self.classnm}: axis", axis, -math.inf), epsilon

    def __call__(self, x: Operand) -> Operand:
        try:
            return self.be.softmax(x, self.axis)
        except IndexError as error:
            raise IndexError(f"{self.classnm}(axis={self.axis}): {error}") from None

    def bprop(self, y: Operand) -> OperandLike:
        return 1

    def backward(self, error: Operand, y: Operand, x: Operand | None = None) -> Operand:
        return y * (error - self.be.sum(y * error, axis=self.axis))


class PixelwiseSoftmax(Softmax):
    """Softmax over the channels of each pixel: x (c * H * W, N) holds the scores of c classes per pixel.

    As for Softmax, ``bprop`` returns 1 for CrossEntropyMulti, which is correct if the target of each pixel is one-hot.

    Parameters
    ----------
    c : int
        Number of channels.
    name : str, optional
        Name of the object.
    epsilon : float
        No effect; accepted for compatibility with neon.

    References
    ----------
    Long, Shelhamer and Darrell 2015, section 4.
    """

    def __init__(self, c: int, name: str | None = None, epsilon: float = EPSILON) -> None:
        super().__init__(0, name, epsilon)
        self.c = integer(f"{self.classnm}: c", c)

    def _reshape_to_channels(self, x: Operand) -> Operand:
        if x.shape[0] % self.c:
            raise ValueError(
                f"PixelwiseSoftmax: expected x (c * H * W, N) with c = {self.c} channels, got {describe(x)}"
            )
        return self.be.reshape(x, (self.c, -1))

    def __call__(self, x: Operand) -> Operand:
        return self.be.reshape(super().__call__(self._reshape_to_channels(x)), x.shape)

    def backward(self, error: Operand, y: Operand, x: Operand | None = None) -> Operand:
        return self.be.reshape(
            super().backward(self._reshape_to_channels(error), self._reshape_to_channels(y)), y.shape
        )


class Tanh(Transform):
    """Hyperbolic tangent: ``f(x) = tanh x``.

    Parameters
    ----------
    name : str, optional
        Name of the object.
    """

    def __call__(self, x: Operand) -> Operand:
        return self.be.tanh(x)

    def bprop(self, y: Operand) -> OperandLike:
        return 1 - self.be.square(y)


class Logistic(Transform):
    """Logistic sigmoid: ``f(x) = 1 / (1 + e^-x)``.

    Parameters
    ----------
    name : str, optional
        Name of the object.
    shortcut : bool
        Whether ``bprop`` returns 1, for the last layer before CrossEntropyBinary, whose ``bprop`` already includes the
        derivative; ``backward`` is always exact.
    """

    def __init__(self, name: str | None = None, shortcut: bool = False) -> None:
        super().__init__(name)
        self.shortcut = shortcut

    def __call__(self, x: Operand) -> Operand:
        return self.be.sig(x)

    def bprop(self, y: Operand) -> OperandLike:
        return 1 if self.shortcut else y * (1 - y)

    def backward(self, error: Operand, y: Operand, x: Operand | None = None) -> Operand:
        return y * (1 - y) * error


class Sign(Transform):
    """Sign: ``f(x) = +1 where x >= 0, else -1``, with the straight-through estimator as its derivative.

    The estimator is 1 where ``|x| <= 1``, else 0. The exact derivative is 0, so that no parameter would be trained.

    Parameters
    ----------
    name : str, optional
        Name of the object.

    References
    ----------
    Courbariaux et al. 2016, Binarized neural networks, equation 4.
    """

    def __call__(self, x: Operand) -> Operand:
        be = self.be
        inside = be.clip(x, -2, 2) * (be.absolute(x) <= 1)
        straight_through = inside - be.stop_gradient(inside)  # 0, with derivative 1 where |x| <= 1
        return be.binarize(x, stochastic=False) + straight_through

    def backward(self, error: Operand, y: Operand, x: Operand | None = None) -> Operand:
        return self.be.less_equal(self.be.absolute(self.require_input(x)), 1) * error


class SiLU(Transform):
    """Sigmoid linear unit, also known as swish: ``f(x) = x / (1 + e^-x)``.

    Parameters
    ----------
    name : str, optional
        Name of the object.

    References
    ----------
    Elfwing, Uchibe and Doya 2018, equation 15.
    """

    def __call__(self, x: Operand) -> Operand:
        return self.be.silu(x)


class GELU(Transform):
    """Gaussian error linear unit, tanh approximation: ``f(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))``.

    It differs by less than 5e-4 from the exact ``x/2 (1 + erf(x / sqrt(2)))``.

    Parameters
    ----------
    name : str, optional
        Name of the object.

    References
    ----------
    Hendrycks and Gimpel 2016, section 2.
    """

    def __call__(self, x: Operand) -> Operand:
        return self.be.gelu(x)


# the activations that a name stands for, such as ``activation="relu"``: names of classes, and those of other libraries
ACTIVATIONS: dict[str, Callable[[], Transform]] = {
    "elu": Explin,
    "explin": Explin,
    "gelu": GELU,
    "identity": Identity,
    "leaky_relu": partial(Rectlin, 0.01),
    "linear": Identity,
    "logistic": Logistic,
    "normalizer": Normalizer,
    "rectlin": Rectlin,
    "rectlinclip": Rectlinclip,
    "relu": Rectlin,
    "sigmoid": Logistic,
    "sign": Sign,
    "silu": SiLU,
    "softmax": Softmax,
    "swish": SiLU,
    "tanh": Tanh,
}
