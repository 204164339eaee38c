"""Weight initializers: Constant, Uniform, Gaussian, Xavier (Glorot), Kaiming, Orthonormal and others.

Random values come from the backend's stream "weights" and are computed on the host, so a seed gives the same bits on
every runtime.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from neonlite.backend import NervanaObject, Tensor, objects
from neonlite.backend.validation import by_name, check_attributes, check_boolean_fields, checked_dataclass, instance
from neonlite.messages import describe
from neonlite.name_hints import INITIALIZER, add_hints, module_getattr
from neonlite.typing import ArrayLike

if TYPE_CHECKING:
    from numpy.typing import NDArray


__all__ = [
    "Array", "Constant", "Gaussian", "GlorotUniform", "IdentityInit", "Initializer", "Kaiming", "Orthonormal",
    "Uniform", "Xavier",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__ = module_getattr(__name__)


@add_hints(INITIALIZER)
class Initializer(NervanaObject):
    """Base class of initializers, which fill tensors. Subclasses implement ``values(param)``."""

    def fill(self, param: Tensor) -> None:
        """Set the elements of a tensor.

        Parameters
        ----------
        param : Tensor
            The tensor to fill.

        Raises
        ------
        TypeError
            If it is not a tensor.
        """
        instance(f"{self.classnm}.fill: param", param, Tensor, "a tensor")
        param[:] = self.values(param)

    def values(self, param: Tensor) -> ArrayLike:
        """Return the values for a tensor: a scalar, or an array of its shape.

        Parameters
        ----------
        param : Tensor
            The tensor to fill.
        """
        raise NotImplementedError(f"{self.classnm}: expected values(param) or fill(param). Implement one of them.")

    def uniform(self, param: Tensor, low: float, high: float) -> NDArray[Any]:
        """Return uniformly distributed random values in the shape of a tensor.

        Parameters
        ----------
        param : Tensor
            The tensor to fill.
        low, high : float
            Range of the values.
        """
        values: NDArray[Any] = param.backend.streams.uniform("weights", param.shape, compute_dtype(param))
        values *= high - low
        values += low
        return values

    def normal(self, param: Tensor, loc: float, scale: float) -> NDArray[Any]:
        """Return normally distributed random values in the shape of a tensor.

        Parameters
        ----------
        param : Tensor
            The tensor to fill.
        loc, scale : float
            Mean and standard deviation.
        """
        values: NDArray[Any] = param.backend.streams.normal("weights", param.shape, compute_dtype(param))
        values *= scale
        values += loc
        return values

    def __post_init__(self) -> None:
        """Initialize the name after the dataclass has set its arguments, and check the booleans."""
        NervanaObject.__init__(self, self.name)
        check_boolean_fields(self)


def compute_dtype(param: Tensor) -> str:
    """Return the dtype of computations for a tensor: float64 if it has that dtype, else float32."""
    return "float64" if param.info.dtype == "float64" else "float32"


def fan_in(param: Tensor, local: bool) -> int:
    """Return the number of inputs of an output: C R S of weights (C R S, K), nin of (nout, nin)."""
    return max(param.shape[0 if local else 1], 1)


# --- fixed values ----------------------------------------------------------------------------------------------------


@checked_dataclass
class Constant(Initializer):
    """Set every element to ``val``.

    Parameters
    ----------
    val : float
        The value.
    name : str, optional
        Name of the initializer.
    """

    val: float = 0.0
    name: str | None = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_attributes(self, "val")

    def values(self, param: Tensor) -> ArrayLike:
        return self.val


@checked_dataclass
class Array(Initializer):
    """Copy the elements of an array, nested lists or a tensor.

    Parameters
    ----------
    val : array, list or Tensor
        The values, of the shape of the tensor to fill.
    name : str, optional
        Name of the initializer.
    """

    val: ArrayLike
    name: str | None = None  # type: ignore[assignment]

    def values(self, param: Tensor) -> ArrayLike:
        values: Tensor = param.backend.array(self.val, dtype=param.info.dtype)
        if values.shape != param.shape:
            raise ValueError(
                f"Array: expected the shape of {describe(param)}, got {values.shape}. Weights are (nout, nin) for "
                "Linear, (C R S, K) for Convolution."
            )
        return values


@checked_dataclass
class IdentityInit(Initializer):
    """The identity matrix, for a Linear or 1x1 convolution that copies its inputs.

    The layer is trained, unlike in neon. To keep the identity, set ``layer.trainable = False``.

    Parameters
    ----------
    local : bool
        No effect; the diagonals of (nout, nin) and (C, K) are the same.
    name : str
        Name of the initializer.
    """

    local: bool = True
    name: str | None = "Identity"  # type: ignore[assignment]

    def values(self, param: Tensor) -> ArrayLike:
        be, shape = param.backend, check_matrix(self, param)
        identity: ArrayLike = be.runtime.get(be.xp.eye(*shape, dtype=be.xp.float32))
        return identity


# --- random values ---------------------------------------------------------------------------------------------------


@checked_dataclass
class Uniform(Initializer):
    """Uniform distribution between ``low`` and ``high``.

    Parameters
    ----------
    low, high : float
        Range of the values.
    name : str, optional
        Name of the initializer.
    """

    low: float = 0.0
    high: float = 1.0
    name: str | None = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_attributes(self, "low", "high")
        if self.low > self.high:
            raise ValueError(f"Uniform: expected low <= high, got low={self.low}, high={self.high}.")

    def values(self, param: Tensor) -> ArrayLike:
        return self.uniform(param, self.low, self.high)


@checked_dataclass
class Gaussian(Initializer):
    """Normal distribution.

    Parameters
    ----------
    loc, scale : float
        Mean and standard deviation.
    name : str, optional
        Name of the initializer.
    """

    loc: float = 0.0
    scale: float = 1.0
    name: str | None = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_attributes(self, "loc")
        check_attributes(self, "scale", low=0)

    def values(self, param: Tensor) -> ArrayLike:
        return self.normal(param, self.loc, self.scale)


@checked_dataclass
class GlorotUniform(Initializer):
    """Uniform distribution between ±sqrt(6 / (rows + columns)).

    Parameters
    ----------
    name : str, optional
        Name of the initializer.

    References
    ----------
    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010, (16).
    """

    name: str | None = None  # type: ignore[assignment]

    def values(self, param: Tensor) -> ArrayLike:
        k = math.sqrt(6 / max(param.shape[0] + param.shape[1], 1))
        return self.uniform(param, -k, k)


@checked_dataclass
class Xavier(Initializer):
    """Uniform distribution between ±sqrt(3 / fan_in).

    Parameters
    ----------
    local : bool
        Whether the weights are (C R S, K), as in a convolution, or else (nout, nin).
    name : str, optional
        Name of the initializer.
    """

    local: bool = True
    name: str | None = None  # type: ignore[assignment]

    def values(self, param: Tensor) -> ArrayLike:
        k = math.sqrt(3 / fan_in(param, self.local))
        return self.uniform(param, -k, k)


@checked_dataclass
class Kaiming(Initializer):
    """Normal distribution with mean 0 and standard deviation sqrt(2 / fan_in).

    Parameters
    ----------
    local : bool
        Whether the weights are (C R S, K), as in a convolution, or else (nout, nin).
    name : str, optional
        Name of the initializer.

    References
    ----------
    He, Zhang, Ren and Sun, "Delving deep into rectifiers", 2015, (10).
    """

    local: bool = True
    name: str | None = None  # type: ignore[assignment]

    def values(self, param: Tensor) -> ArrayLike:
        return self.normal(param, 0.0, math.sqrt(2 / fan_in(param, self.local)))


@checked_dataclass
class Orthonormal(Initializer):
    """``scale`` times a random matrix with orthonormal columns, or orthonormal rows if there are fewer rows.

    The Q of the QR decomposition of a normal random matrix, with the signs chosen so that the diagonal of R is
    positive: then Q is unique, and its distribution uniform.

    Parameters
    ----------
    scale : float
        Factor of the matrix.
    name : str, optional
        Name of the initializer.

    References
    ----------
    Mezzadri, "How to generate random matrices from the classical compact groups", 2007.
    """

    scale: float = 1.1
    name: str | None = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_attributes(self, "scale", low=0)

    def values(self, param: Tensor) -> ArrayLike:
        rows, columns = check_matrix(self, param)
        x = param.backend.streams.normal("weights", (rows, columns), "float64")
        xp = x.__array_namespace__()
        q, r = xp.linalg.qr(x if rows >= columns else x.T)
        q *= self.scale * xp.sign(xp.linalg.diagonal(r))
        orthonormal: ArrayLike = q if rows >= columns else q.T
        return orthonormal


def check_matrix(initializer: Initializer, param: Tensor) -> tuple[int, int]:
    """Return rows and columns of a tensor; ValueError if it is not a matrix."""
    if param.ndim != 2:
        raise ValueError(f"{initializer.classnm}: expected a matrix, got {describe(param)}. Reshape it.")
    return param.shape[0], param.shape[1]


def initializer_names(local: bool) -> dict[str, Callable[[], Initializer]]:
    """Return the initializers that a name stands for, such as ``init="glorot"``.

    Parameters
    ----------
    local : bool
        Whether the weights are (C R S, K), as in a convolution, or else (nout, nin).
    """
    kaiming, identity, xavier = (partial(cls, local) for cls in (Kaiming, IdentityInit, Xavier))
    return by_name(
        *(Constant, Gaussian, GlorotUniform, Orthonormal, Uniform),
        glorot=GlorotUniform,
        he=kaiming,
        identity=identity,
        identityinit=identity,
        kaiming=kaiming,
        normal=Gaussian,
        ones=partial(Constant, 1.0),
        orthogonal=Orthonormal,
        xavier=xavier,
        zeros=Constant,
    )


objects.declare_builtin(globals().values())
