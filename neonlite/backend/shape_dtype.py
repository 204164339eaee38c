"""Shapes and dtypes of tensors: conversion of arguments, and the records of shape and dtype that tensors share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from neonlite.backend.bfloat16 import INSTALL_COMMAND
from neonlite.dtypes import dtype_bits
from neonlite.messages import NO_COMPLEX, describe
from neonlite.optree_structure import Info
from neonlite.shapes import Shape, at_least_2d, contiguous_strides
from neonlite.typing import DTypeLike, ShapeLike

if TYPE_CHECKING:
    from neonlite.backend.backend import Backend

DATATYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}  # neon's short names

MISSING_DTYPE_HINTS = {  # dtype -> what to use instead
    "bool": "Booleans are stored as 0 and 1: use uint8.",
    "bfloat16": f"The runtimes gpu and torch support it with ml_dtypes ({INSTALL_COMMAND}); else use float32.",
    "complex64": NO_COMPLEX,
    "complex128": NO_COMPLEX,
}


def shape_of(be: Backend, shape: ShapeLike | Sequence[ShapeLike], allow_unknown: bool = False) -> Shape:
    """Return a shape as a tuple of at least two sizes: 5 and (5,) become (5, 1).

    Parameters
    ----------
    shape : int or sequence of int
        The shape.
    allow_unknown : bool
        Whether sizes may be -1; default False.

    Returns
    -------
    tuple of int
        The shape.

    Raises
    ------
    TypeError
        A size is not an integer.
    ValueError
        A size is negative.
    """
    sizes: Sequence[Any] = shape if isinstance(shape, tuple | list) else (shape,)
    if len(sizes) > 1 and {*map(type, sizes)} == {int} and min(sizes) >= 0:
        return tuple(sizes)
    for n in sizes:
        if isinstance(n, bool) or not hasattr(n, "__index__"):
            raise TypeError(f"shape: expected integers as sizes, got {describe(shape)}")
        if n.__index__() < (-1 if allow_unknown else 0):
            raise ValueError(f"shape: expected sizes >= 0, got the negative size {n} in {describe(shape)}")
    return at_least_2d(tuple(n.__index__() for n in sizes))


def dtype_name(be: Backend, dtype: DTypeLike) -> str:
    """Return the name of a dtype, such as "float32".

    Parameters
    ----------
    dtype : dtype or None
        A NumPy dtype, its name, or a short name such as "f16"; None is ``be.default_dtype``.

    Returns
    -------
    str
        The name.

    Raises
    ------
    TypeError
        The backend does not support the dtype.
    """
    if dtype is None:
        return be.default_dtype_name
    if type(dtype) is str and (dtype := DATATYPES.get(dtype, dtype)) in be.runtime.dtypes:
        return str(dtype)
    try:
        name: str = np.dtype(dtype).name  # type: ignore[arg-type]  # NumPy lists no other classes
    except TypeError:
        name = str(dtype)
    if name not in be.runtime.dtypes:
        supported = ", ".join(be.runtime.dtypes)
        hint = f". {MISSING_DTYPE_HINTS[name]}" if name in MISSING_DTYPE_HINTS else ""
        hint = ". Pass a shape as one tuple: be.zeros((2, 3))." if isinstance(dtype, int) else hint
        raise TypeError(f"backend {be.name!r}: expected one of the dtypes {supported}, got {name!r}{hint}")
    return name


def numpy_dtype(be: Backend, name: str) -> np.dtype[Any]:
    """Return the NumPy dtype of a name.

    Parameters
    ----------
    name : str
        The name, such as "float32".

    Returns
    -------
    numpy.dtype
        The dtype.
    """
    return np.dtype(name)


def tensor_info(be: Backend, shape: Shape, dtype: str, contiguous: bool = True) -> Info:
    """Return the Info that all tensors of one shape, dtype and contiguity share.

    Parameters
    ----------
    shape : tuple of int
        The shape, of at least two sizes.
    dtype : str
        The name of the dtype.
    contiguous : bool
        Whether the tensor is contiguous; default True.

    Returns
    -------
    Info
        Shape, dtype, strides and backend.
    """
    key = (shape, dtype, contiguous)
    info: Info | None = be.infos.get(key)
    if info is None:
        info = Info(shape=shape, op="tensor")
        size = math.prod(shape)
        info.attrs = {"contiguous": contiguous, "strides": contiguous_strides(shape), "span": (0, size)}
        info.attrs["nbytes"] = size * dtype_bits(dtype) // 8
        info.op_def, info.be, info.operand_types, info.num_children = None, be, (), 0
        info.shape, info.dtype, info.compute_dtype = shape, dtype, dtype
        info.find = be.structures.get
        info = be.infos.add(key, info)
    return info


def dtype_of(dtype: Any) -> Any:
    """Return the NumPy dtype of a short name such as "f32", or of anything that NumPy converts to a dtype."""
    return np.dtype(DATATYPES.get(dtype, dtype))
