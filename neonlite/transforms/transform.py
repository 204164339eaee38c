"""What is a transform?  A formula: called with operands it gives an op-tree, and another one is its derivative."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from neonlite.autodiff import Autodiff
from neonlite.backend import NervanaObject, Tensor
from neonlite.optree import Operand, describe


class Transform(NervanaObject):
    """The base of activations: ``f(x)`` is an op-tree of x's shape, made of the words of ``self.be``.

    A class of your own needs ``__call__`` alone: ``backward`` differentiates it. Where the derivative follows from the
    output, ``bprop(y)`` saves working the formula out again, and lets a layer overwrite its input.

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

    def __call__(self, x: Any) -> Any:
        """Return f(x)."""
        raise NotImplementedError(f"{self.classnm}: write __call__(x), an op-tree made with self.be")

    @property
    def from_output(self) -> bool:
        """Whether ``backward`` needs the output alone; a layer may then work in place on its input."""
        return type(self).bprop is not Transform.bprop

    def bprop(self, y: Any) -> Any:
        """Return df/dx given the output ``y = f(x)``: an op-tree, or a number where it is constant.

        Softmax, and Logistic when asked to, return neon's shortcut of 1, which presumes the cost that they are paired
        with; ``backward`` never does. ValueError when the derivative does not follow from the output.
        """
        raise ValueError(f"{self.classnm}: the derivative does not follow from y alone: use backward(error, y, x)")

    def backward(self, error: Any, y: Any, x: Any = None) -> Any:
        """Return the true dE/dx, given ``error = dE/dy``, ``y = f(x)`` and, unless ``from_output``, the input x."""
        if self.from_output:
            return self.bprop(y) * error
        return derivative(self, self.needed(x), error)

    def needed(self, x: Any) -> Any:
        """Return the input; ValueError when there is none."""
        if x is None:
            raise ValueError(f"{self.classnm}.backward(error, y, x) needs the input x: y alone does not tell dy/dx")
        return x


class Cost(NervanaObject):
    """The base of costs: ``cost(y, t)`` of outputs and targets (F, N) is one value a column, (1, N).

    A class of your own needs ``__call__`` alone: its derivative is found. Errors are not divided by N: optimizers do.

    >>> import neonlite as nl
    >>> from neonlite.transforms import Cost
    >>> class Absolute(Cost):
    ...     def __call__(self, y, t):
    ...         return self.be.sum(abs(y - t), axis=0)
    >>> be = nl.gen_backend("cpu")
    >>> Absolute().bprop(be.array([[1.0, 2.0]]), be.array([[0.0, 5.0]])).asnumpyarray()
    array([[ 1., -1.]], dtype=float32)
    """

    pairs_with: type[Transform] | None = None  # the activation before it under which ``bprop`` is a shortcut

    def __call__(self, y: Any, t: Any) -> Any:
        """Return the cost of each column."""
        raise NotImplementedError(f"{self.classnm}: write __call__(y, t), an op-tree made with self.be")

    def bprop(self, y: Any, t: Any) -> Any:
        """Return neon's derivative: dcost/dy; with ``pairs_with``, dcost/dx of the paired activation's input x."""
        return self.backward(y, t)

    def backward(self, y: Any, t: Any) -> Any:
        """Return the true dcost/dy, whatever comes before."""
        fixed = self.be.stop_gradient(t) if isinstance(t, Operand) else t  # also where t is y itself
        return derivative(lambda y: self(y, fixed), y)


class Metric(NervanaObject):
    """The base of metrics: ``metric(y, t)`` is a number on the host, or an array with one for each of its names.

    A class of your own gives ``metric_names`` and ``columns(y, t)``, from which the mean over columns is taken. Over
    several minibatches ``sums`` are added up, and the ``summary`` is that of all; where ``__call__`` is a class's own,
    it is the mean over minibatches.
    """

    metric_names: Sequence[str] = ()

    def columns(self, y: Any, t: Any) -> Any:
        """Return an op-tree with a row for each name and a value for each column of y."""
        raise NotImplementedError(f"{self.classnm}: write columns(y, t), an op-tree made with self.be")

    def chosen(self, y: Any, t: Any, calcrange: Any = slice(0, None)) -> Any:
        """Return the columns in ``calcrange``, on the host, in float64. ValueError when it takes none."""
        values = self.columns(y, t).asnumpyarray().astype("float64")
        if isinstance(calcrange, int):
            raise TypeError(f"{self.classnm}: calcrange is a slice, or a list of column numbers; got {calcrange}")
        chosen = values[:, calcrange]
        if not chosen.shape[1]:
            raise ValueError(f"{self.classnm}: calcrange {calcrange} takes none of the {values.shape[1]} columns")
        return chosen

    def sums(self, y: Any, t: Any, calcrange: Any = slice(0, None)) -> tuple[Any, float]:
        """Return the sum of each row over the chosen columns, and how much these count: what minibatches add up to."""
        values = self.chosen(y, t, calcrange)
        return values.sum(axis=1), values.shape[1]

    def summary(self, sums: Any, count: float) -> Any:
        """Return one number a name, out of sums: the means."""
        return sums / count

    @property
    def adds_up(self) -> bool:
        """Whether the metric of several minibatches is the summary of their sums."""
        return type(self).__call__ is Metric.__call__

    def __call__(self, y: Any, t: Any, calcrange: Any = slice(0, None)) -> Any:
        """Return the metric over the columns in ``calcrange``, a slice or a list of column numbers.

        ValueError when it takes no column.
        """
        numbers = self.summary(*self.sums(y, t, calcrange))
        return numbers if len(self.metric_names) > 1 else float(numbers[0])


def derivative(f: Callable[[Any], Any], x: Any, error: Any = None) -> Any:
    """Return ``error * df/dx`` as an op-tree, where x is a tensor or an op-tree; the error is 1 unless given."""
    leaf = x if isinstance(x, Tensor) else x.backend.empty(x.shape, dtype=x.info.dtype)
    grad = Autodiff(f(leaf), leaf.backend, error).get_grad_op_tree(leaf)
    return grad if leaf is x else grad.replace(leaf, x)


def alike(owner: NervanaObject, y: Any, t: Any, names: str = "y and t") -> None:
    """Raise an error unless outputs and targets are operands of one shape."""
    for x in (y, t):
        if not isinstance(x, Operand):
            raise TypeError(f"{owner.classnm} takes tensors and op-trees, be.array(a) makes one; got {describe(x)}")
    if y.shape != t.shape:
        hint = "; be.onehot(labels, axis=0, nclass=F) makes targets of labels" if t.shape[0] == 1 < y.shape[0] else ""
        raise ValueError(f"{owner.classnm}: {names} have one shape, (F, N); got {describe(y, t)}{hint}")


def whole(owner: NervanaObject, **given: Any) -> None:
    """Raise ValueError unless the arguments are whole numbers from 1."""
    for name, n in given.items():
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise ValueError(f"{owner.classnm}: {name} is a whole number from 1; got {describe(n)}")


def one_of(owner: NervanaObject, name: str, given: Any, choices: Sequence[str]) -> None:
    """Raise ValueError unless the argument is one of the choices."""
    if given not in choices:
        raise ValueError(f"{owner.classnm}: {name} is one of {', '.join(map(repr, choices))}; got {describe(given)}")
