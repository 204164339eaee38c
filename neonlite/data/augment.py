"""Random image augmentation: flips, crops and shifts.

An augmentation is a callable ``augmentation(images, random_bits)`` that returns images. ``images`` is a NumPy array
(n, C, H, W), ``random_bits`` a uint64 array (n, 4). The random bits of an image depend only on the seed, the epoch and
the index of the image within the epoch, so that resumed training applies the same augmentations. Any callable with
this signature can be used as a custom augmentation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from neonlite.backend.validation import check_boolean_fields, check_number, function, integer, pair
from neonlite.data.epoch import RandomBits
from neonlite.messages import describe

Images = NDArray[Any]
Augmentation = Callable[[Images, NDArray[np.uint64]], Images]


def bounded_integers(random_bits: RandomBits, n: int) -> NDArray[np.int64]:
    """Map each random uint64 x to an integer from 0 to n - 1: ``floor(floor(x / 2^32) n / 2^32)``."""
    return ((random_bits >> 32) * np.uint64(n) >> 32).astype(np.int64)


@dataclass(frozen=True)
class Flip:
    """Mirror images left to right with probability ``p``.

    Parameters
    ----------
    p : float
        Probability that an image is mirrored; default: 0.5.

    Raises
    ------
    ValueError
        If ``p`` is not between 0 and 1.

    Examples
    --------
    >>> import numpy as np
    >>> Flip(p=1.0)(np.array([[[[1, 2, 3]]]]), np.zeros((1, 4), np.uint64)).tolist()
    [[[[3, 2, 1]]]]
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        check_number("Flip: p", self.p, 0, at_most=1)

    def __call__(self, images: Images, random_bits: RandomBits) -> Images:
        """Return the images, some of them mirrored.

        Parameters
        ----------
        images : numpy.ndarray
            Images (n, C, H, W).
        random_bits : numpy.ndarray
            Random bits (n, 4), uint64.

        Returns
        -------
        numpy.ndarray
            Images (n, C, H, W).
        """
        mirrored = (random_bits[:, 0] >> 32) < math.ceil(self.p * 2**32)
        result = images.copy()
        result[mirrored] = images[mirrored][..., ::-1]
        return result


@dataclass(frozen=True)
class Crop:
    """Crop a window at a random offset from images, after padding them.

    Parameters
    ----------
    pad : int
        Pixels added on each side before cropping; default: 0.
    size : int or (int, int), optional
        Height and width of the window, or one integer for both; default: the size of the images.
    fill : float
        Value of the padding; default: 0.
    random : bool
        Whether offsets are random, all equally likely; False crops the center, as for validation. Default: True.

    Raises
    ------
    TypeError, ValueError
        If ``pad`` is not a non-negative integer, ``size`` not positive integers, or ``fill`` not a finite number.

    Examples
    --------
    >>> import numpy as np
    >>> Crop(size=1, random=False)(np.arange(9).reshape(1, 1, 3, 3), np.zeros((1, 4), np.uint64)).tolist()
    [[[[4]]]]
    """

    pad: int = 0
    size: int | tuple[int, int] | None = None
    fill: float = 0
    random: bool = True

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_boolean_fields(self)
        integer(f"{name}: pad", self.pad, 0)
        check_number(f"{name}: fill", self.fill)
        if self.size is not None:
            pair(f"{name}: size", self.size)

    def window(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return the height and width of the window.

        Parameters
        ----------
        shape : tuple of int
            Shape of the images, (..., H, W).

        Returns
        -------
        (int, int)
            Height and width.

        Raises
        ------
        ValueError
            If the window is larger than the padded images.
        """
        height, width = shape[-2:]
        if self.size is not None:
            height, width = pair(f"{type(self).__name__}: size", self.size)
        if height > shape[-2] + 2 * self.pad or width > shape[-1] + 2 * self.pad:
            raise ValueError(
                f"{type(self).__name__}: expected a window that fits into images {shape[-2]} x {shape[-1]} with "
                f"padding {self.pad}, got {height} x {width}. Reduce size, or increase pad."
            )
        return height, width

    def __call__(self, images: Images, random_bits: RandomBits) -> Images:
        """Return a window of each image.

        Parameters
        ----------
        images : numpy.ndarray
            Images (n, C, H, W).
        random_bits : numpy.ndarray
            Random bits (n, 4), uint64.

        Returns
        -------
        numpy.ndarray
            Images (n, C, height, width).
        """
        n, c, h, w = images.shape
        height, width = self.window(images.shape)
        p = self.pad
        padded = np.full((n, c, h + 2 * p, w + 2 * p), self.fill, images.dtype)
        padded[:, :, p : p + h, p : p + w] = images
        max_offsets = padded.shape[2] - height, padded.shape[3] - width
        if self.random:
            tops, lefts = (bounded_integers(random_bits[:, i], max_offsets[i] + 1) for i in (0, 1))
        else:
            tops, lefts = (np.full(n, m // 2) for m in max_offsets)
        windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
        return windows[np.arange(n), :, tops, lefts]


class Shift(Crop):
    """Shift images by a random offset, vertically and horizontally.

    Parameters
    ----------
    max_pixels : int
        Largest offset in each direction, in pixels; all offsets up to it are equally likely.
    fill : float
        Value of the pixels that are uncovered at the edges; default: 0.
    """

    def __init__(self, max_pixels: int, fill: float = 0) -> None:
        super().__init__(pad=max_pixels, fill=fill)


def check_augmentations(augment: Any, shape: object, dtype: DTypeLike) -> Images:
    """Check augmentations by applying them to one all-zero image of ``shape``, and return the result.

    Raise ValueError if ``shape`` is not (C, H, W), and TypeError if an augmentation is not callable, or does not return
    an array of one image.
    """
    if not isinstance(shape, tuple) or len(shape) != 3:
        raise ValueError(f"augment: expected images, lshape=(C, H, W), got rows of shape {shape!r}.")
    images = np.zeros((1, *shape), dtype)
    for augmentation in augment:
        function("augment", augmentation, "functions of images and random bits, such as Flip(),")
        result = augmentation(images, np.zeros((1, 4), np.uint64))
        if not isinstance(result, np.ndarray) or result.ndim != 4 or len(result) != 1:
            got = f"an array {result.shape}" if isinstance(result, np.ndarray) else describe(result)
            raise TypeError(
                f"augment: expected {augmentation!r} to return images (n, C, H, W), as many as it gets, "
                f"got {got} for one image."
            )
        images = result
    return images
