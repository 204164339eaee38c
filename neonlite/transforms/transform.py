"""Base classes of activations, costs and metrics; ColorNoise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from neonlite.autodiff import Autodiff
from neonlite.backend import NervanaObject, Tensor, batch_size
from neonlite.backend.validation import check_number
from neonlite.messages import describe
from neonlite.name_hints import COST, METRIC, TRANSFORM, add_hints
from neonlite.optree import Operand, OpTreeNode
from neonlite.typing import ArrayLike, OperandLike, ShapeLike

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    MetricValue: TypeAlias = float | Any  # a number, or a MetricResult (Any, because few metrics have several numbers)
    MetricResult = Sequence[float] | NDArray[np.float64]  # an element for each name of a metric, or for each sequence

Outputs = Operand | Sequence[Operand]  # outputs of a metric; several for ObjectDetection and MultiMetric
Targets: TypeAlias = "Operand | Sequence[Targets]"  # of a metric: targets, (targets, mask), or those of several outputs


@add_hints(TRANSFORM)
class Transform(NervanaObject):
    """Base class of activation functions: ``f(x)`` returns an op-tree of x's shape.

    Subclasses implement ``__call__`` with the functions of ``self.be``; ``backward`` differentiates it automatically.
    If the derivative is a function of the output alone, implement ``bprop(y)`` as well: ``backward`` then does not
    evaluate the formula again, and a layer can overwrite its input.

    Parameters
    ----------
    name : str, optional
        Name of the object.

    Examples
    --------
    >>> import neonlite as nl
    >>> from neonlite.transforms import Transform
    >>> class Cube(Transform):
    ...     def __call__(self, x):
    ...         return x * x * x
    >>> be = nl.gen_backend("cpu")
    >>> x, error = be.array([[2.0, -1.0]]), be.ones((1, 2))
    >>> cube = Cube()
    >>> cube.backward(error, cube(x), x).asnumpyarray()
    array([[12.,  3.]], dtype=float32)
    """

    def __call__(self, x: Operand) -> Operand:
        """Return f(x).

        Parameters
        ----------
        x : Tensor or op-tree
            The input.

        Returns
        -------
        op-tree
            f(x), of x's shape.
        """
        raise NotImplementedError(f"{self.classnm}: implement __call__(x); return an op-tree of self.be's functions")

    @property
    def has_grad_from_output(self) -> bool:
        """Whether ``backward`` needs only the output; a layer may then overwrite its input."""
        return type(self).bprop is not Transform.bprop

    def bprop(self, y: Operand) -> OperandLike:
        """Return df/dx as a function of the output ``y = f(x)``.

        Softmax, and Logistic with ``shortcut``, return 1, as in neon, which is correct only in the last layer before
        the paired cost function; ``backward`` always returns the exact derivative.

        Parameters
        ----------
        y : Tensor or op-tree
            The output.

        Returns
        -------
        op-tree or scalar
            The derivative of each element, a scalar if it is constant.

        Raises
        ------
        ValueError
            If the derivative is not a function of the output alone.
        """
        raise ValueError(
            f"{self.classnm}.bprop: the derivative does not follow from the output y alone. Use backward(error, y, x)"
        )

    def backward(self, error: Operand, y: Operand, x: Operand | None = None) -> Operand:
        """Return the gradient dE/dx, given the error dE/dy.

        Parameters
        ----------
        error : Tensor or op-tree
            dE/dy.
        y : Tensor or op-tree
            The output f(x).
        x : Tensor or op-tree, optional
            The input; not needed if ``has_grad_from_output``.

        Returns
        -------
        op-tree
            dE/dx, of x's shape.
        """
        if self.has_grad_from_output:
            return self.bprop(y) * error
        return build_derivative(self, self.require_input(x), error)

    def require_input(self, x: Operand | None) -> Operand:
        """Return x, or raise ValueError if it is None.

        Parameters
        ----------
        x : Tensor, op-tree or None
            The input.
        """
        if x is None:
            raise ValueError(
                f"{self.classnm}.backward: expected the input x, got None. Pass it: backward(error, y, x); dy/dx does "
                "not follow from y alone"
            )
        return x


@add_hints(COST)
class Cost(NervanaObject):
    """Base class of cost functions: ``cost(y, t)`` of outputs and targets (F, N) is one value per column, (1, N).

    Subclasses implement ``__call__``, which is differentiated automatically. Errors are not divided by N: optimizers
    divide gradients by N.

    Parameters
    ----------
    name : str, optional
        Name of the object.

    Examples
    --------
    >>> import neonlite as nl
    >>> from neonlite.transforms import Cost
    >>> class Absolute(Cost):
    ...     def __call__(self, y, t):
    ...         return self.be.sum(abs(y - t), axis=0)
    >>> be = nl.gen_backend("cpu")
    >>> Absolute().bprop(be.array([[1.0, 2.0]]), be.array([[0.0, 5.0]])).asnumpyarray()
    array([[ 1., -1.]], dtype=float32)
    """

    paired_activation: type[Transform] | None = None  # activation whose derivative ``bprop`` includes
    activations: tuple[type[Transform], ...] = ()  # activations whose outputs the cost accepts; () for all

    def __call__(self, y: Operand, t: Operand) -> Operand:
        """Return the cost of each column.

        Parameters
        ----------
        y : Tensor or op-tree
            Outputs (F, N).
        t : Tensor or op-tree
            Targets (F, N).

        Returns
        -------
        op-tree
            (1, N).
        """
        raise NotImplementedError(f"{self.classnm}: implement __call__(y, t); return an op-tree of self.be's functions")

    def bprop(self, y: Operand, t: Operand) -> Operand:
        """Return dcost/dy, or with ``paired_activation`` dcost/dx, where x is the input of that activation.

        Parameters
        ----------
        y : Tensor or op-tree
            Outputs (F, N).
        t : Tensor or op-tree
            Targets (F, N).

        Returns
        -------
        op-tree
            (F, N).
        """
        return self.backward(y, t)

    def backward(self, y: Operand, t: Operand) -> Operand:
        """Return the exact gradient dcost/dy, independent of the last activation.

        Parameters
        ----------
        y : Tensor or op-tree
            Outputs (F, N).
        t : Tensor or op-tree
            Targets (F, N).

        Returns
        -------
        op-tree
            (F, N).
        """
        constant = self.be.stop_gradient(t) if isinstance(t, Operand) else t  # also correct if t is y itself
        return build_derivative(lambda y: self(y, constant), y)


@add_hints(METRIC)
class Metric(NervanaObject):
    """Base class of metrics: ``metric(y, t)`` returns a float, or an array with one element per metric name.

    Subclasses set ``metric_names`` and implement ``column_values(y, t)``; the metric is its mean over the columns. Over
    several minibatches, the results of ``sums`` are combined by ``merge``, which adds them, and passed to ``compute``.
    If a metric is not a function of sums over columns, override these three: ``sums`` may return any array. If a
    subclass overrides ``__call__`` instead, the metric of a data set is the mean over minibatches.

    Parameters
    ----------
    name : str, optional
        Name of the object.

    Attributes
    ----------
    metric_names : sequence of str
        The names of the values; empty if the result is an array without names, as of ConfusionMatrix.
    greater_is_better : bool or None
        Whether a higher value is better; None if that is unknown, or differs between the values.
    """

    metric_names: Sequence[str] = ()
    greater_is_better: bool | None = None

    def column_values(self, y: Outputs, t: Targets) -> Operand:
        """Return the values of each column.

        Parameters
        ----------
        y : Tensor or op-tree
            Outputs (F, N).
        t : Tensor, op-tree or tuple
            Targets (F, N), or (targets, mask) for metrics that accept a mask.

        Returns
        -------
        op-tree
            (number of names, N).
        """
        raise NotImplementedError(
            f"{self.classnm}: implement column_values(y, t); return an op-tree of self.be's functions"
        )

    def select_columns(self, y: Outputs, t: Targets, calcrange: slice = slice(0, None)) -> NDArray[np.float64]:
        """Return the values of the selected columns as a float64 array on the host.

        Parameters
        ----------
        y, t : Tensor or op-tree
            Outputs and targets, as for ``column_values``.
        calcrange : slice or list of int
            The columns to use (default: all).

        Returns
        -------
        ndarray
            (rows of ``column_values``, selected columns).

        Raises
        ------
        ValueError
            If no column is selected.
        """
        values = self.column_values(y, t).asnumpyarray().astype("float64")
        if isinstance(calcrange, int):
            raise TypeError(
                f"{self.classnm}: expected a slice or a list of column indices as calcrange, got {calcrange}"
            )
        selected = values[:, calcrange]
        if not selected.shape[1]:
            raise ValueError(f"{self.classnm}: calcrange {calcrange} selects none of the {values.shape[1]} columns")
        return selected

    def sums(self, y: Outputs, t: Targets, calcrange: slice = slice(0, None)) -> tuple[NDArray[np.float64], float]:
        """Return the sums of the values over the selected columns, and the count to divide by.

        Parameters
        ----------
        y, t : Tensor or op-tree
            Outputs and targets, as for ``column_values``.
        calcrange : slice or list of int
            The columns to use (default: all).

        Returns
        -------
        sums : ndarray
            One sum per row of values.
        count : float
            Number, or total weight, of the columns.
        """
        values = self.select_columns(y, t, calcrange)
        return values.sum(axis=1), values.shape[1]

    def merge(self, parts: Sequence[tuple[NDArray[np.float64], float]]) -> tuple[NDArray[np.float64], float]:
        """Combine the results of ``sums`` of several minibatches, by default by adding them.

        Parameters
        ----------
        parts : sequence of (ndarray, float)
            The sums and the count of each minibatch, in order.

        Returns
        -------
        sums : ndarray
            The sums of all minibatches.
        count : float
            The count of all minibatches.
        """
        return sum(sums for sums, _ in parts), sum(count for _, count in parts)  # type: ignore[return-value]

    def compute(self, sums: NDArray[np.float64], count: float) -> MetricResult:
        """Return the metric, by default the means, from sums and a count.

        Parameters
        ----------
        sums : ndarray
            The sums of one minibatch, or of all, from ``merge``.
        count : float
            The count of one minibatch, or of all.

        Returns
        -------
        sequence of float
            One element per metric name; without names, an array of any shape.
        """
        return sums / count

    @property
    def is_additive(self) -> bool:
        """Whether the metric of several minibatches is computed from their merged sums and counts."""
        return type(self).__call__ is Metric.__call__

    def __call__(self, y: Outputs, t: Targets, calcrange: slice = slice(0, None)) -> MetricValue:
        """Return the metric over the selected columns.

        Parameters
        ----------
        y, t : Tensor or op-tree
            Outputs and targets, as for ``column_values``.
        calcrange : slice or list of int
            The columns to use (default: all).

        Returns
        -------
        float or ndarray
            A float if there is one value; with several, one element per metric name; without names, an array.
        """
        values = self.compute(*self.sums(y, t, calcrange))
        return float(values[0]) if len(values) == 1 else values

    def plot(self, values: NDArray[np.float64], axes: Axes) -> None:
        """Plot the values as a bar chart.

        Parameters
        ----------
        values : ndarray
            A result of ``Model.eval``, whose ``plot`` calls this method.
        axes : matplotlib.axes.Axes
            Where to plot them.
        """
        axes.barh([*self.metric_names], [*values])
        axes.invert_yaxis()


def build_derivative(f: Callable[[Tensor], Any], x: Operand, error: Operand | None = None) -> Operand:
    """Return ``error * df/dx`` as an op-tree; x is a tensor or an op-tree, ``error`` is 1 by default."""
    leaf = x if isinstance(x, Tensor) else x.backend.empty(x.shape, dtype=x.info.dtype)
    grad = Autodiff(f(leaf), leaf.backend, error).gradient_operands([leaf])[0]
    return grad.replace(leaf, x) if isinstance(grad, OpTreeNode) else grad


def check_same_shape(owner: NervanaObject, y: object, t: object, names: str = "y and t") -> tuple[Operand, Operand]:
    """Return outputs and targets; TypeError or ValueError unless they are operands of the same shape."""
    if not isinstance(y, Operand) or not isinstance(t, Operand):
        wrong = t if isinstance(y, Operand) else y
        raise TypeError(
            f"{owner.classnm}: expected tensors or op-trees, got {describe(wrong)}. Create a tensor with be.array(a)"
        )
    if y.shape != t.shape:
        is_label = t.shape[0] == 1 < y.shape[0]
        hint = ". Convert labels with be.onehot(labels, axis=0, nclass=F)" if is_label else ""
        raise ValueError(f"{owner.classnm}: expected {names} of the same shape (F, N), got {describe(y, t)}{hint}")
    return y, t


# --- ColorNoise: random brightness, contrast and PCA color noise, applied in the network during training ---

# principal components (columns) of ImageNet's RGB values in [0, 1], and the standard deviations along them
IMAGENET_COLOR_PCA = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))
IMAGENET_COLOR_STD = (0.2175, 0.0188, 0.0045)


class ColorNoise(NervanaObject):
    """Random brightness, contrast and color of each image, for ``DataTransform(ColorNoise())``.

    ``f(x) = m + (1 + a) (x - m) + b + P (s e)``, where m is the mean of the image. The random scalars of each image are
    a, uniform in +-``contrast``; b, uniform in +-``brightness``; and e, for each principal component, normal with
    standard deviation ``noise_level``. Images are (C, H, W). At inference ``f(x) = x``.

    Parameters
    ----------
    colorpca : array-like, optional
        Principal components P (C, K), one per column (default: those of ImageNet's colors in [0, 1]).
    colorstd : sequence of float, optional
        Standard deviations s along the K components, in units of x; required with ``colorpca``.
    noise_level : float
        Standard deviation of the color noise, relative to ``colorstd``.
    brightness : float
        Largest change of brightness, in units of x.
    contrast : float
        Largest relative change of contrast.
    name : str, optional
        Name of the object.

    References
    ----------
    Krizhevsky et al. 2012, section 4.1.

    Examples
    --------
    >>> import neonlite as nl
    >>> from neonlite.layers import DataTransform
    >>> from neonlite.transforms import ColorNoise
    >>> be = nl.gen_backend("cpu", batch_size=2, rng_seed=0)
    >>> layer = DataTransform(ColorNoise(noise_level=0.5)).configure((3, 1, 2))
    >>> layer.allocate()
    >>> layer.fprop(be.zeros((6, 2))).get().round(2)  # the same noise for both pixels of an image (a column)
    array([[0.05, 0.07], [0.05, 0.07], [0.06, 0.07], [0.06, 0.07], [0.06, 0.07], [0.06, 0.07]], dtype=float32)
    """

    def __init__(
        self,
        colorpca: ArrayLike | None = None,
        colorstd: ArrayLike | None = None,
        noise_level: float = 0.1,
        brightness: float = 0.0,
        contrast: float = 0.0,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if (colorpca is None) != (colorstd is None):
            raise ValueError(
                f"{self.classnm}: expected colorpca and colorstd together, got one of them. Pass both or neither"
            )
        self.colorpca, self.colorstd = colorpca, colorstd
        self.scaled_components = scale_components(
            self, *((IMAGENET_COLOR_PCA, IMAGENET_COLOR_STD) if colorpca is None else (colorpca, colorstd))
        )
        self.noise_level = check_number(f"{self.classnm}: noise_level", noise_level, low=0)
        self.brightness = check_number(f"{self.classnm}: brightness", brightness, low=0)
        self.contrast = check_number(f"{self.classnm}: contrast", contrast, low=0)
        self.components: Any = None  # ``scaled_components`` as a tensor

    def configure(self, shape: ShapeLike) -> None:
        """Check the shape of the data.

        Parameters
        ----------
        shape : tuple of int
            (C, H, W), with one channel per row of ``colorpca``; otherwise a ValueError is raised.
        """
        if not isinstance(shape, tuple) or len(shape) < 3 or shape[0] != len(self.scaled_components):
            raise ValueError(
                f"{self.classnm}: expected images ({len(self.scaled_components)}, H, W), one channel per row of "
                f"colorpca, got {shape}"
            )

    def __call__(self, x: Operand) -> Operand:
        """Return the images with noise, which is different in each evaluation.

        Parameters
        ----------
        x : Tensor or op-tree
            Images (C H W, N).

        Returns
        -------
        op-tree
            (C H W, N).
        """
        be, channels, N = self.be, len(self.scaled_components), x.shape[1]
        if x.shape[0] % channels:
            raise ValueError(f"{self.classnm}: expected images (C H W, N) of {channels} channels, got {describe(x)}")
        y = x
        if self.contrast:
            mean = be.mean(x, axis=0)
            y = mean + (1 + self.draw_uniform(self.contrast, N)) * (x - mean)
        if self.brightness:
            y = y + self.draw_uniform(self.brightness, N)
        if self.noise_level:
            if self.components is None or self.components.backend is not be:
                self.components = be.array(self.scaled_components, name=f"{self.name}.components")
            normal = batch_size.draw_samples(be, lambda n: be.randn(self.components.shape[1], n), N)
            noise = be.dot(self.components, self.noise_level * normal)
            y = be.reshape(be.reshape(y, channels, -1, N) + be.reshape(noise, channels, 1, N), x.shape)
        return y

    def inference(self, x: Operand) -> Operand:
        """Return the images unchanged.

        Parameters
        ----------
        x : Tensor or op-tree
            Images (C H W, N).
        """
        return x

    def draw_uniform(self, bound: float, N: int) -> Operand:
        """Return random scalars, uniform in [-bound, bound).

        Parameters
        ----------
        bound : float
            The bound.
        N : int
            Number of images.

        Returns
        -------
        op-tree
            (1, N).
        """
        uniform = batch_size.draw_samples(self.be, lambda n: self.be.rand(1, n), N)
        return bound * (2 * uniform - 1)


def scale_components(owner: NervanaObject, colorpca: Any, colorstd: Any) -> list[list[float]]:
    """Return the principal components (columns), each multiplied by its standard deviation."""
    if not all(isinstance(x, Iterable) for x in (colorpca, colorstd)) or not all(
        isinstance(x, Iterable) for x in colorpca
    ):
        raise TypeError(
            f"{owner.classnm}: expected colorpca as rows of scalars and colorstd as scalars, got other types"
        )
    rows = [list(row) for row in colorpca]
    std = [check_number(f"{owner.classnm}: an element of colorstd", s, low=0) for s in colorstd]
    if not rows or not std or any(len(row) != len(std) for row in rows):
        raise ValueError(
            f"{owner.classnm}: expected colorpca with one row per channel and one column per component, and colorstd "
            f"with one scalar per component, got rows of {[len(row) for row in rows]}, and {len(std)}"
        )
    return [
        [check_number(f"{owner.classnm}: an element of colorpca", p) * s for p, s in zip(row, std, strict=True)]
        for row in rows
    ]
