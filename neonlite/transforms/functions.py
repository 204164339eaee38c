"""Activation functions, such as Rectlin, Softmax and GELU, and cost functions, such as cross-entropies."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from neonlite import messages, typing
from neonlite.backend import Backend
from neonlite.backend.validation import by_name, check_number, integer, one_of
from neonlite.ops import composites
from neonlite.optree import Operand
from neonlite.transforms.transform import Cost, Transform, build_derivative, check_same_shape

# --- activation functions ---

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

    def bprop(self, y: Operand) -> typing.OperandLike:
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

    def bprop(self, y: Operand) -> typing.OperandLike:
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

    def bprop(self, y: Operand) -> typing.OperandLike:
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

    def bprop(self, y: Operand) -> typing.OperandLike:
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
            raise ValueError(f"Normalizer: expected a nonzero divisor, got {messages.describe(divisor)}")

    def __call__(self, x: Operand) -> Operand:
        return x / self.divisor

    def bprop(self, y: Operand) -> typing.OperandLike:
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

    def bprop(self, y: Operand) -> typing.OperandLike:
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
                f"PixelwiseSoftmax: expected x (c * H * W, N) with c = {self.c} channels, got {messages.describe(x)}"
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

    def bprop(self, y: Operand) -> typing.OperandLike:
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

    def bprop(self, y: Operand) -> typing.OperandLike:
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
ACTIVATIONS: dict[str, Callable[[], Transform]] = by_name(
    *(Explin, GELU, Identity, Logistic, Normalizer, Rectlin, Rectlinclip, Sign, SiLU, Softmax, Tanh),
    elu=Explin,
    leaky_relu=partial(Rectlin, 0.01),
    linear=Identity,
    relu=Rectlin,
    sigmoid=Logistic,
    swish=SiLU,
)


# --- cost functions ---

Formula = Callable[["Backend", Operand], Operand]  # (be, y) -> an op-tree

# costs as functions of the discriminator's output y: discriminator on data, discriminator on noise, generator
GAN_FORMULAS: dict[str, tuple[Formula, Formula, Formula]] = {
    "modified": (lambda be, y: -be.safelog(y), lambda be, y: -be.safelog(1 - y), lambda be, y: -be.safelog(y)),
    "original": (lambda be, y: -be.safelog(y), lambda be, y: -be.safelog(1 - y), lambda be, y: be.safelog(1 - y)),
    "wasserstein": (lambda be, y: -y, lambda be, y: y, lambda be, y: -y),
}


class CrossEntropy(Cost):
    """Base class of the cross-entropies: with the paired activation, dcost/dx is ``scale (y - t)``."""

    scale: float
    log_base_factor = 1.0

    def bprop(self, y: Operand, t: Operand) -> Operand:
        check_same_shape(self, y, t)
        return self.log_base_factor * self.scale * (y - t)

    def backward(self, y: Operand, t: Operand) -> Operand:
        check_same_shape(self, y, t)
        return self.scale * super().backward(y, t)


class CrossEntropyBinary(CrossEntropy):
    """Binary cross-entropy of independent probabilities: ``cost = -sum_i (t_i ln y_i + (1 - t_i) ln(1 - y_i))``.

    Outputs and targets are (F, N), the cost (1, N). Logarithms are clipped at -50. ``bprop`` returns the shortcut
    ``scale (y - t)``, the gradient with respect to the input of the Logistic that computed y: that layer must not
    apply its derivative again (``shortcut=True``). ``backward`` is exact.

    Parameters
    ----------
    scale : float
        Factor of the derivatives, not of the cost.
    name : str, optional
        Name of the object.

    References
    ----------
    Goodfellow, Bengio and Courville 2016, section 6.2.2.2.
    """

    paired_activation: type[Transform] | None = Logistic
    activations = (Logistic, Softmax)

    def __init__(self, scale: float = 1, name: str | None = None) -> None:
        super().__init__(name)
        self.scale = scale

    def __call__(self, y: Operand, t: Operand) -> Operand:
        check_same_shape(self, y, t)
        return self.be.sum(self.be.safelog(1 - y) * (t - 1) - self.be.safelog(y) * t, axis=0)


class CrossEntropyMulti(CrossEntropy):
    """Categorical cross-entropy: ``cost = -sum_i t_i ln y_i``.

    Probabilities and targets are (classes, N), the cost (1, N). Logarithms are clipped at -50. ``bprop`` returns the
    shortcut ``scale (y - t)``, the gradient with respect to the input of the Softmax or PixelwiseSoftmax that computed
    y; the targets of each softmax must add up to 1. ``backward`` is exact.

    Parameters
    ----------
    scale : float
        Factor of the derivatives, not of the cost.
    usebits : bool
        Whether to use logarithms to base 2.
    name : str, optional
        Name of the object.

    References
    ----------
    Goodfellow, Bengio and Courville 2016, section 6.2.2.3.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> y, t = be.array([[0.25], [0.75]]), be.array([[1.0], [0.0]])
    >>> CrossEntropyMulti(usebits=True)(y, t).asnumpyarray()
    array([[2.]], dtype=float32)
    >>> CrossEntropyMulti().bprop(y, t).asnumpyarray()  # with respect to the input of the softmax
    array([[-0.75], [ 0.75]], dtype=float32)
    >>> CrossEntropyMulti().backward(y, t).asnumpyarray()  # with respect to y
    array([[-4.], [-0.]], dtype=float32)
    """

    paired_activation: type[Transform] | None = Softmax
    activations = (Softmax,)

    def __init__(self, scale: float = 1, usebits: bool = False, name: str | None = None) -> None:
        super().__init__(name)
        self.scale, self.usebits = scale, usebits
        self.log_base_factor = 1 / math.log(2) if usebits else 1.0

    def __call__(self, y: Operand, t: Operand) -> Operand:
        check_same_shape(self, y, t)
        return -self.log_base_factor * self.be.sum(t * self.be.safelog(y), axis=0)


class SumSquared(Cost):
    """Sum of squared errors: ``cost = sum_i (y_i - t_i)^2 / 2``, (F, N) -> (1, N).

    Parameters
    ----------
    name : str, optional
        Name of the object.
    """

    def __call__(self, y: Operand, t: Operand) -> Operand:
        check_same_shape(self, y, t)
        return self.be.sum(self.be.square(y - t), axis=0) / 2

    def backward(self, y: Operand, t: Operand) -> Operand:
        check_same_shape(self, y, t)
        return y - t


class MeanSquared(Cost):
    """Mean squared error: ``cost = mean_i (y_i - t_i)^2 / 2``, (F, N) -> (1, N).

    Parameters
    ----------
    name : str, optional
        Name of the object.
    """

    def __call__(self, y: Operand, t: Operand) -> Operand:
        check_same_shape(self, y, t)
        return self.be.mean(self.be.square(y - t), axis=0) / 2

    def backward(self, y: Operand, t: Operand) -> Operand:
        check_same_shape(self, y, t)
        return (y - t) / y.shape[0]


class SmoothL1Loss(Cost):
    """Smooth L1 (Huber) loss: ``cost = sum_i h(y_i - t_i)``, (F, N) -> (1, N).

    ``h(x) = sigma^2 x^2 / 2`` where ``|x| < 1 / sigma^2``, else ``|x| - 1 / (2 sigma^2)``.

    Parameters
    ----------
    sigma : float
        Positive; the loss is quadratic where ``|y - t| < 1 / sigma^2``, and linear elsewhere.
    name : str, optional
        Name of the object.

    References
    ----------
    Girshick 2015, Fast R-CNN, equation 3; with sigma, Ren et al. 2015.
    """

    def __init__(self, sigma: float = 1.0, name: str | None = None) -> None:
        super().__init__(name)
        self.sigma = check_number("SmoothL1Loss: sigma", sigma, above=0)

    def __call__(self, y: Operand, t: Operand) -> Operand:
        check_same_shape(self, y, t)
        abs_diff = self.be.absolute(y - t)
        clipped = self.be.minimum(abs_diff, self.sigma**-2)  # gives both cases of h, without overflow of a square
        return self.be.sum(self.sigma**2 * clipped * (abs_diff - clipped / 2), axis=0)

    def backward(self, y: Operand, t: Operand) -> Operand:
        check_same_shape(self, y, t)
        return self.be.clip(self.sigma**2 * (y - t), -1, 1)


class SquareHingeLoss(Cost):
    """Squared hinge loss: ``cost = mean_i max(margin - s_i y_i, 0)^2`` with the signs ``s = 2 t - 1``.

    Outputs and targets (0 or 1) are (F, N), the cost (1, N).

    Parameters
    ----------
    margin : float
        The margin.
    name : str, optional
        Name of the object.

    References
    ----------
    Tang 2013, Deep learning using linear support vector machines, equation 6.
    """

    def __init__(self, margin: float = 1, name: str | None = None) -> None:
        super().__init__(name)
        self.margin = margin

    def __call__(self, y: Operand, t: Operand) -> Operand:
        check_same_shape(self, y, t)
        return self.be.mean(self.be.square(self.be.maximum(self.margin - (2 * t - 1) * y, 0)), axis=0)

    def backward(self, y: Operand, t: Operand) -> Operand:
        check_same_shape(self, y, t)
        sign = 2 * t - 1
        return -2 / y.shape[0] * sign * self.be.maximum(self.margin - sign * y, 0)


class GANCost(Cost):
    """Cost of the discriminator or of the generator of a GAN: the mean over the outputs of a column, (F, N) -> (1, N).

    ``y_data`` and ``y_noise`` are the discriminator's outputs for data and for generated samples: probabilities of
    being data, or any values for "wasserstein", whose discriminator is called a critic.

    =============  =================================  ==================
    func           cost of "dis"                      cost of "gen"
    =============  =================================  ==================
    "original"     ``-ln y_data - ln(1 - y_noise)``   ``ln(1 - y_noise)``
    "modified"     ``-ln y_data - ln(1 - y_noise)``   ``-ln y_noise``
    "wasserstein"  ``y_noise - y_data``               ``-y_noise``
    =============  =================================  ==================

    All are minimized. Logarithms are clipped at -50, where their derivative is 0. ``bprop_data``, ``bprop_noise`` and
    ``bprop_generator`` return the exact derivatives, times ``scale``.

    Parameters
    ----------
    scale : float
        Factor of the derivatives, not of the cost.
    cost_type : str
        Default of ``cost_type`` in calls: "dis" (discriminator) or "gen" (generator).
    func : str
        "original", "modified" or "wasserstein".
    name : str, optional
        Name of the object.

    References
    ----------
    Goodfellow et al. 2014, equation 1 and section 3 ("modified"); Arjovsky, Chintala and Bottou 2017, algorithm 1,
    with opposite signs for minimization.
    """

    def __init__(
        self, scale: float = 1.0, cost_type: str = "dis", func: str = "modified", name: str | None = None
    ) -> None:
        super().__init__(name)
        one_of(f"{self.classnm}: cost_type", cost_type, ("dis", "gen"))
        one_of(f"{self.classnm}: func", func, GAN_FORMULAS)
        self.scale, self.cost_type, self.func = scale, cost_type, func
        self.activations = () if func == "wasserstein" else (Logistic, Softmax)

    def __call__(self, y_data: Operand, y_noise: Operand, cost_type: str | None = None) -> Operand:
        """Return the cost of the discriminator or of the generator.

        Parameters
        ----------
        y_data : Tensor, op-tree or None
            The discriminator's outputs for data (F, N); unused for "gen".
        y_noise : Tensor or op-tree
            The discriminator's outputs for generated samples (F, N).
        cost_type : str, optional
            "dis" or "gen" (default: that of the constructor).

        Returns
        -------
        op-tree
            (1, N).
        """
        cost_type = cost_type or self.cost_type
        one_of(f"{self.classnm}: cost_type", cost_type, ("dis", "gen"))
        y_first = y_noise if cost_type == "gen" and y_data is None else y_data
        check_same_shape(self, y_first, y_noise, "y_data and y_noise")
        of_data, of_noise, of_generator = GAN_FORMULAS[self.func]
        if cost_type == "gen":
            return self.be.mean(of_generator(self.be, y_noise), axis=0)
        return self.be.mean(of_noise(self.be, y_noise) + of_data(self.be, y_data), axis=0)

    def bprop_data(self, y_data: Operand) -> Operand:
        """Return d(cost of "dis") / d y_data.

        Parameters
        ----------
        y_data : Tensor or op-tree
            The discriminator's outputs for data (F, N).
        """
        return self._derivative(0, y_data)

    def bprop_noise(self, y_noise: Operand) -> Operand:
        """Return d(cost of "dis") / d y_noise.

        Parameters
        ----------
        y_noise : Tensor or op-tree
            The discriminator's outputs for generated samples (F, N).
        """
        return self._derivative(1, y_noise)

    def bprop_generator(self, y_noise: Operand) -> Operand:
        """Return d(cost of "gen") / d y_noise.

        Parameters
        ----------
        y_noise : Tensor or op-tree
            The discriminator's outputs for generated samples (F, N).
        """
        return self._derivative(2, y_noise)

    def _derivative(self, which: int, y: Operand) -> Operand:
        check_same_shape(self, y, y)
        formula = GAN_FORMULAS[self.func][which]
        return self.scale * build_derivative(lambda y: self.be.mean(formula(self.be, y), axis=0), y)

    def bprop(self, y: Operand, t: Operand) -> Operand:
        """Raise TypeError: use ``bprop_data``, ``bprop_noise`` or ``bprop_generator``.

        Parameters
        ----------
        y, t : Tensor or op-tree
            Unused.
        """
        raise TypeError(
            "GANCost.bprop: this cost has three derivatives. Use bprop_data(y), bprop_noise(y) or bprop_generator(y)"
        )

    backward = bprop


# the costs that a name stands for, such as ``cost="cross_entropy"``: names of classes, and those of other libraries
COSTS: dict[str, Callable[[], Cost]] = by_name(
    *(CrossEntropyBinary, CrossEntropyMulti, MeanSquared, SmoothL1Loss, SquareHingeLoss, SumSquared),
    binary_cross_entropy=CrossEntropyBinary,
    binary_crossentropy=CrossEntropyBinary,
    categorical_crossentropy=CrossEntropyMulti,
    cross_entropy=CrossEntropyMulti,
    huber=SmoothL1Loss,
    mean_squared_error=MeanSquared,
    mse=MeanSquared,
    smooth_l1=SmoothL1Loss,
    sparse_categorical_crossentropy=CrossEntropyMulti,
    squared_hinge=SquareHingeLoss,
)
