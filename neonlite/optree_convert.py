"""Conversion of tensors and op-trees to NumPy arrays, Python scalars and strings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from neonlite.messages import describe
from neonlite.optree_structure import Info
from neonlite.shapes import Shape

if TYPE_CHECKING:
    import numpy as np

    from neonlite.backend.backend import Backend
    from neonlite.typing import NumPyArray


class Convertible:
    """The base class of ``Operand``: properties, and conversion to NumPy arrays, Python scalars and strings."""

    __slots__ = ()

    info: Info
    name: str | None

    @property
    def backend(self) -> Backend:
        """The backend."""
        return self.info.be

    @property
    def shape(self) -> Shape:
        """The shape, of at least two dimensions."""
        return self.info.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype."""
        return self.info.be.numpy_dtype(self.info.dtype)

    @property
    def ndim(self) -> int:
        """The number of dimensions, two or more."""
        return len(self.info.shape)

    def get(self) -> NumPyArray:
        """Return the value.

        Returns
        -------
        numpy.ndarray
            A copy of the value.
        """
        raise NotImplementedError

    def item(self) -> float:
        """Return the value of a tensor or op-tree with one element.

        Returns
        -------
        float or int
            The value as a Python scalar.

        Raises
        ------
        ValueError
            There is not exactly one element.

        Examples
        --------
        >>> import neonlite as nl
        >>> x = nl.gen_backend("cpu").array([[1.0, 2.0]])
        >>> x[0, 1].item(), float(x[0, 0] + 2)
        (2.0, 3.0)
        """
        shape = self.shape
        if math.prod(shape) != 1:
            raise ValueError(
                f"item() and float(): expected one element, got {describe(self)} with {math.prod(shape)}. Copy all "
                "values to NumPy with .get(), or select one with t[0, 0].item()."
            )
        value: float = self.get().item()
        return value

    def asnumpyarray(self) -> NumPyArray:
        """Return the value; neon's name of ``get``.

        Returns
        -------
        numpy.ndarray
            A copy of the value.
        """
        return self.get()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __format__(self, spec: str) -> str:
        """Format the only element, as in ``f"{cost:.2f}"``; without a format, the whole operand."""
        return format(self.item(), spec) if spec else str(self)
