"""With which weights does learning begin?  An initializer fills a tensor, in place.

What is random comes from the backend's stream "weights" and is worked out on the host: for a seed, every runtime gets
the same bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from neonlite.backend import NervanaObject, Tensor
from neonlite.backend.numbers import check
from neonlite.optree import describe


class Initializer(NervanaObject):
    """Fills tensors. One of your own says ``values(param)``: a number, or an array of the tensor's shape."""

    def fill(self, param: Tensor) -> None:
        """Set the elements of a tensor. TypeError for anything else."""
        if not isinstance(param, Tensor):
            raise TypeError(f"{self.classnm}.fill takes a tensor; got {describe(param)}")
        param[:] = self.values(param)

    def values(self, param: Tensor) -> Any:
        """Return what a tensor is filled with."""
        raise NotImplementedError(f"{self.classnm} has no values: write values(param), or fill(param)")

    def uniform(self, param: Tensor, low: float, high: float) -> Any:
        """Return numbers spread evenly from ``low`` to ``high``, in the shape of a tensor."""
        values = param.backend.streams.uniform("weights", param.shape, wide(param))
        values *= high - low
        values += low
        return values

    def normal(self, param: Tensor, loc: float, scale: float) -> Any:
        """Return normal numbers of mean ``loc`` and deviation ``scale``, in the shape of a tensor."""
        values = param.backend.streams.normal("weights", param.shape, wide(param))
        values *= scale
        values += loc
        return values

    def __post_init__(self) -> None:
        """Name it, once its arguments are set."""
        NervanaObject.__init__(self, self.name)


def wide(param: Tensor) -> str:
    """Return the dtype to draw and to compute in: float64 for a tensor of those, else float32."""
    return "float64" if param.info.dtype == "float64" else "float32"


def fan_in(param: Tensor, local: bool) -> int:
    """Return how many inputs an output sees: rows of a convolution's (C R S, K), columns of a Linear's (nout, nin)."""
    return max(param.shape[0 if local else 1], 1)


# --- numbers that are given ----------------------------------------------------------------------------------------


@dataclass(eq=False)
class Constant(Initializer):
    """Every element is ``val``."""

    val: float = 0.0
    name: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, "val")

    def values(self, param: Tensor) -> Any:
        return self.val


@dataclass(eq=False)
class Array(Initializer):
    """The elements of an array, nested lists or a tensor. ValueError when it has another shape."""

    val: Any
    name: Any = None

    def values(self, param: Tensor) -> Any:
        values = param.backend.array(self.val, dtype=param.info.dtype)
        if values.shape != param.shape:
            raise ValueError(
                f"Array: an array {values.shape} cannot fill {describe(param)}: the shapes must be equal; "
                "weights are (nout, nin) of Linear, (C R S, K) of Convolution"
            )
        return values


@dataclass(eq=False)
class IdentityInit(Initializer):
    """Ones on the diagonal, zeros elsewhere: what a Linear or a 1x1 convolution needs to hand its inputs on.

    A layer whose initializer has the name 'Identity', as this one has unless told, is not trained. The diagonal of
    (nout, nin) is that of (C, K), so that ``local`` has no effect.
    """

    local: bool = True
    name: Any = "Identity"

    def values(self, param: Tensor) -> Any:
        be, shape = param.backend, matrix(self, param)
        return be.runtime.get(be.xp.eye(*shape, dtype=be.xp.float32))


# --- random numbers ------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Uniform(Initializer):
    """Spread evenly from ``low`` to ``high``."""

    low: float = 0.0
    high: float = 1.0
    name: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, "low", "high")
        if self.low > self.high:
            raise ValueError(f"Uniform: low is not above high; got low={self.low}, high={self.high}")

    def values(self, param: Tensor) -> Any:
        return self.uniform(param, self.low, self.high)


@dataclass(eq=False)
class Gaussian(Initializer):
    """Normal, with mean ``loc`` and standard deviation ``scale``."""

    loc: float = 0.0
    scale: float = 1.0
    name: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, "loc")
        check(self, "scale", low=0)

    def values(self, param: Tensor) -> Any:
        return self.normal(param, self.loc, self.scale)


@dataclass(eq=False)
class GlorotUniform(Initializer):
    """Spread evenly over ±sqrt(6 / (rows + columns)).

    Source: Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010, (16).
    """

    name: Any = None

    def values(self, param: Tensor) -> Any:
        k = math.sqrt(6 / max(param.shape[0] + param.shape[1], 1))
        return self.uniform(param, -k, k)


@dataclass(eq=False)
class Xavier(Initializer):
    """Spread evenly over ±sqrt(3 / fan_in). ``local``: weights are (C R S, K), a convolution's; else (nout, nin)."""

    local: bool = True
    name: Any = None

    def values(self, param: Tensor) -> Any:
        k = math.sqrt(3 / fan_in(param, self.local))
        return self.uniform(param, -k, k)


@dataclass(eq=False)
class Kaiming(Initializer):
    """Normal, with deviation sqrt(2 / fan_in). ``local``: weights are (C R S, K), a convolution's; else (nout, nin).

    Source: He, Zhang, Ren and Sun, "Delving Deep into Rectifiers", 2015, (10).
    """

    local: bool = True
    name: Any = None

    def values(self, param: Tensor) -> Any:
        return self.normal(param, 0.0, math.sqrt(2 / fan_in(param, self.local)))


@dataclass(eq=False)
class Orthonormal(Initializer):
    """``scale`` times a random matrix with orthonormal columns; with orthonormal rows when it has fewer of them.

    The Q of a normal matrix's QR decomposition, its signs such that R's diagonal is positive: then Q is the same from
    every library, and no direction is preferred.
    Source: Mezzadri, "How to generate random matrices from the classical compact groups", 2007.
    """

    scale: float = 1.1
    name: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, "scale", low=0)

    def values(self, param: Tensor) -> Any:
        rows, columns = matrix(self, param)
        x = param.backend.streams.normal("weights", (rows, columns), "float64")
        xp = x.__array_namespace__()
        q, r = xp.linalg.qr(x if rows >= columns else x.T)
        q *= self.scale * xp.sign(xp.linalg.diagonal(r))
        return q if rows >= columns else q.T


def matrix(initializer: Initializer, param: Tensor) -> tuple[int, int]:
    """Return rows and columns; ValueError for a tensor of more dimensions."""
    if param.ndim != 2:
        raise ValueError(f"{initializer.classnm} fills matrices; got {describe(param)}: reshape it")
    return param.shape[0], param.shape[1]
