"""Conversion of tensors to and from NumPy arrays, in-place updates, and display as text and HTML."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from neonlite import html_repr
from neonlite.backend.one_element import OneElement
from neonlite.backend.planning.layout import find_images, read_chwn
from neonlite.dtypes import FLOAT_DTYPES
from neonlite.optree import Operand, OpTreeNode
from neonlite.typing import ArrayLike, NumPyArray

if TYPE_CHECKING:
    import numpy.typing as npt

    from neonlite.backend.tensor import Tensor












# --- writes ---










# --- display ---






def format_values(t: Tensor, prefix: str = "") -> str:
    """Return the values as text, truncated; lines after the first are indented to the width of the prefix."""
    return np.array2string(display_values(t), precision=4, threshold=60, edgeitems=3, prefix=prefix)


def display_values(t: Tensor) -> NumPyArray:
    """Return the values for printing, bfloat16 as float32. The layout of images in NHWC is not changed."""
    images = find_images(t)
    if images and not images.has_chwn and images.is_for(t, images.shape):
        nhwc: NumPyArray = t.backend.runtime.get(images.nhwc)
        values = nhwc.reshape(images.shape[::-1]).transpose().reshape(t.shape)
    else:
        values = t.numpy()
    return values.astype(np.float32) if t.info.dtype == "bfloat16" else values
