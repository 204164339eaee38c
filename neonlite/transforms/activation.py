"""What does a unit answer?  A function of its input, element by element (Softmax: of a column)."""

from __future__ import annotations

import math
from typing import Any

from neonlite.optree import describe
from neonlite.transforms.transform import Transform, whole

EPSILON = 2.0**-23


class Identity(Transform):
    """``f(x) = x``."""

    def __call__(self, x: Any) -> Any:
        return x

    def bprop(self, y: Any) -> Any:
        return 1

    def backward(self, error: Any, y: Any, x: Any = None) -> Any:
        return error


class Rectlin(Transform):
    """The rectified linear unit, leaky with a slope: ``f(x) = max(x, 0) + slope min(x, 0)``; its derivative at 0 is 0.

    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> x, leaky = be.array([[-4.0, 0.0, 3.0]]), Rectlin(slope=0.25)
    >>> leaky(x).asnumpyarray()
    array([[-1.,  0.,  3.]], dtype=float32)
    >>> leaky.bprop(leaky(x)).asnumpyarray()
    array([[0.25, 0.  , 1.  ]], dtype=float32)

    With a slope below 0 the output does not tell the sign of x, and ``backward`` needs x.

    Source: Nair and Hinton 2010; Maas, Hannun and Ng 2013 (leaky).
    """

    def __init__(self, slope: float = 0, name: str | None = None) -> None:
        super().__init__(name)
        self.slope = slope

    @property
    def from_output(self) -> bool:
        return self.slope >= 0

    def __call__(self, x: Any) -> Any:
        y = self.be.maximum(x, 0)
        return y + self.slope * self.be.minimum(x, 0) if self.slope else y

    def bprop(self, y: Any) -> Any:
        if not self.from_output:
            return super().bprop(y)
        rising = self.be.greater(y, 0)
        return rising + self.slope * self.be.less(y, 0) if self.slope else rising


class Rectlinclip(Rectlin):
    """A rectified linear unit that does not answer more than xcut: ``f(x) = min(max(x, 0) + slope min(x, 0), xcut)``.

    Its derivative is 0 at the cut and above.

    Source: Hannun et al. 2014, Deep Speech, section 2.
    """

    def __init__(self, slope: float = 0, name: str | None = None, xcut: float = 20.0) -> None:
        super().__init__(slope, name)
        self.xcut = xcut

    def __call__(self, x: Any) -> Any:
        return self.be.minimum(super().__call__(x), self.xcut)

    def bprop(self, y: Any) -> Any:
        return super().bprop(y) * self.be.less(y, self.xcut)


class Explin(Transform):
    """The exponential linear unit: ``f(x) = max(x, 0) + alpha (e^min(x, 0) - 1)``; its derivative at 0 is alpha.

    Source: Clevert, Unterthiner and Hochreiter 2016, equation 16.
    """

    def __init__(self, alpha: float = 1.0, name: str | None = None) -> None:
        super().__init__(name)
        if not alpha >= 0:
            raise ValueError(f"Explin: alpha is a number from 0; got {describe(alpha)}")
        self.alpha = alpha

    def __call__(self, x: Any) -> Any:
        return self.be.maximum(x, 0) + self.alpha * (self.be.exp(self.be.minimum(x, 0)) - 1)

    def bprop(self, y: Any) -> Any:
        below = self.be.minimum(y, 0) + self.alpha * self.be.less_equal(y, 0)  # there alpha e^x is y + alpha
        return self.be.greater(y, 0) + below


class Normalizer(Transform):
    """``f(x) = x / divisor``: brings bytes to numbers around 1."""

    def __init__(self, name: str | None = None, divisor: float = 128.0) -> None:
        super().__init__(name)
        if not divisor:
            raise ValueError(f"Normalizer: the divisor is a number other than 0; got {describe(divisor)}")
        self.divisor = divisor

    def __call__(self, x: Any) -> Any:
        return x / self.divisor

    def bprop(self, y: Any) -> Any:
        return 1 / self.divisor


class Softmax(Transform):
    """Probabilities: ``f(x)_i = e^x_i / sum_j e^x_j`` along an axis, 0 for x (classes, N).

    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> Softmax()(be.array([[1000.0, 0.0], [1000.0, 0.0], [0.0, 0.0]])).asnumpyarray()
    array([[0.5       , 0.33333334], [0.5       , 0.33333334], [0.        , 0.33333334]], dtype=float32)

    ``bprop`` is 1, the shortcut under CrossEntropyMulti; ``backward`` is the true ``y (error - sum(y error))``.
    ``epsilon`` is neon's, and has no effect.

    Source: Bridle 1990, equation 10.
    """

    def __init__(self, axis: int = 0, name: str | None = None, epsilon: float = EPSILON) -> None:
        super().__init__(name)
        if not isinstance(axis, int) or isinstance(axis, bool):
            raise TypeError(f"{self.classnm}: the axis is a whole number; got {describe(axis)}")
        self.axis, self.epsilon = axis, epsilon

    def __call__(self, x: Any) -> Any:
        try:
            return self.be.softmax(x, self.axis)
        except IndexError as error:
            raise IndexError(f"{self.classnm}(axis={self.axis}): {error}") from None

    def bprop(self, y: Any) -> Any:
        return 1

    def backward(self, error: Any, y: Any, x: Any = None) -> Any:
        return y * (error - self.be.sum(y * error, axis=self.axis))


class PixelwiseSoftmax(Softmax):
    """Probabilities of c classes at each pixel: a softmax over the channels of x (c * H * W, N).

    Under CrossEntropyMulti, with a one-hot target at each pixel, the shortcut holds as it does for Softmax.

    Source: Long, Shelhamer and Darrell 2015, section 4.
    """

    def __init__(self, c: int, name: str | None = None, epsilon: float = EPSILON) -> None:
        super().__init__(0, name, epsilon)
        whole(self, c=c)
        self.c = c

    def _by_channel(self, x: Any) -> Any:
        if x.shape[0] % self.c:
            raise ValueError(f"PixelwiseSoftmax takes x (c * H * W, N) with c = {self.c} channels; got {describe(x)}")
        return self.be.reshape(x, (self.c, -1))

    def __call__(self, x: Any) -> Any:
        return self.be.reshape(super().__call__(self._by_channel(x)), x.shape)

    def backward(self, error: Any, y: Any, x: Any = None) -> Any:
        return self.be.reshape(super().backward(self._by_channel(error), self._by_channel(y)), y.shape)


class Tanh(Transform):
    """``f(x) = tanh x``."""

    def __call__(self, x: Any) -> Any:
        return self.be.tanh(x)

    def bprop(self, y: Any) -> Any:
        return 1 - self.be.square(y)


class Logistic(Transform):
    """``f(x) = 1 / (1 + e^-x)``.

    With ``shortcut`` its ``bprop`` is 1, for a last layer under CrossEntropyBinary; ``backward`` is true either way.
    """

    def __init__(self, name: str | None = None, shortcut: bool = False) -> None:
        super().__init__(name)
        self.shortcut = shortcut

    def __call__(self, x: Any) -> Any:
        return self.be.sig(x)

    def bprop(self, y: Any) -> Any:
        return 1 if self.shortcut else y * (1 - y)

    def backward(self, error: Any, y: Any, x: Any = None) -> Any:
        return y * (1 - y) * error


class Sign(Transform):
    """``f(x) = +1 where x >= 0, else -1``; its derivative is taken to be 1 where ``|x| <= 1``, else 0.

    That is the straight-through estimator: the true derivative, 0, would teach nothing.

    Source: Courbariaux et al. 2016, Binarized neural networks, equation 4.
    """

    def __call__(self, x: Any) -> Any:
        return self.be.binarize(x, stochastic=False)

    def backward(self, error: Any, y: Any, x: Any = None) -> Any:
        return self.be.less_equal(self.be.absolute(self.needed(x)), 1) * error


class SiLU(Transform):
    """``f(x) = x / (1 + e^-x)``: the input times its logistic; also known as swish.

    Source: Elfwing, Uchibe and Doya 2018, equation 15.
    """

    def __call__(self, x: Any) -> Any:
        return x * self.be.sig(x)

    def backward(self, error: Any, y: Any, x: Any = None) -> Any:
        s = self.be.sig(self.needed(x))
        return error * (s * (1 + x * (1 - s)))


class GELU(Transform):
    """The Gaussian error linear unit by its tanh form: ``f(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))``.

    It is within 5e-4 of the exact ``x/2 (1 + erf(x / sqrt(2)))``, as there is no op for erf.

    Source: Hendrycks and Gimpel 2016, section 2.
    """

    def _share(self, x: Any) -> tuple[Any, Any]:
        """Return the share of x that passes, and the slope of what it is the logistic of.

        ``(1 + tanh u) / 2`` is the logistic of 2u, without the loss of digits where tanh u is near -1.
        """
        c = self.be.clip(x, -25, 25)  # beyond, the logistic is 0 or 1, and the cube might overflow
        cubic = 0.044715 * self.be.square(c)
        k = math.sqrt(8 / math.pi)
        return self.be.sig(k * c * (1 + cubic)), k * (1 + 3 * cubic)

    def __call__(self, x: Any) -> Any:
        return x * self._share(x)[0]

    def backward(self, error: Any, y: Any, x: Any = None) -> Any:
        s, slope = self._share(self.needed(x))
        return error * (s + x * (s * (1 - s)) * slope)
