"""How do a few images become many?  By small changes, drawn anew each time an image is used.

An augmentation is a function of images (n, C, H, W), an array on the host, and of random words (n, 4), uint64, four
for each image; it returns images. The words come from the backend's stream "data" by the epoch and the place in it, so
a run that stopped goes on with the same changes. One of your own is any such function.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neonlite.optree import describe

Images = NDArray[Any]
Words = NDArray[np.uint64]


def below(words: Words, n: int) -> NDArray[np.int64]:
    """Return a whole number from 0 to n - 1 for each word: ``floor(high lane * n / 2^32)``."""
    return ((words >> 32) * np.uint64(n) >> 32).astype(np.int64)


@dataclass(frozen=True)
class Flip:
    """Mirrors an image, left to right, with probability ``p``."""

    p: float = 0.5

    def __post_init__(self) -> None:
        """Check the probability."""
        if not 0 <= self.p <= 1:
            raise ValueError(f"Flip: p is the probability of a mirrored image, from 0 to 1; got {self.p!r}")

    def __call__(self, images: Images, words: Words) -> Images:
        """Return (n, C, H, W), some of them mirrored."""
        mirrored = (words[:, 0] >> 32) < math.ceil(self.p * 2**32)
        made = images.copy()
        made[mirrored] = images[mirrored][..., ::-1]
        return made


@dataclass(frozen=True)
class Crop:
    """Cuts a window out of an image with a border of ``pad`` pixels around it, of the value ``fill``.

    ``size``: the window's, (height, width) or one number for both; the image's unless given. The window lies anywhere,
    every place as likely; in the middle if not ``random``, as for a test.
    """

    pad: int = 0
    size: int | tuple[int, int] | None = None
    fill: float = 0
    random: bool = True

    def __post_init__(self) -> None:
        """Check the sizes."""
        sizes = () if self.size is None else (self.size,) if isinstance(self.size, int) else tuple(self.size)
        wrong = [n for n in (self.pad, *sizes) if not isinstance(n, int) or isinstance(n, bool)]
        if wrong or self.pad < 0 or len(sizes) > 2 or (sizes and min(sizes) < 1):
            raise ValueError(
                f"{type(self).__name__}: pad is a whole number from 0, and size one or two from 1; "
                f"got pad={self.pad!r}, size={self.size!r}"
            )

    def window(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return height and width of the window in images (..., H, W). ValueError when it does not fit."""
        height, width = shape[-2:]
        if self.size is not None:
            height, width = (self.size, self.size) if isinstance(self.size, int) else self.size
        if height > shape[-2] + 2 * self.pad or width > shape[-1] + 2 * self.pad:
            raise ValueError(
                f"{type(self).__name__}: a window {height} x {width} is larger than images "
                f"{shape[-2]} x {shape[-1]} with a border of {self.pad}"
            )
        return height, width

    def __call__(self, images: Images, words: Words) -> Images:
        """Return a window (n, C, height, width) of each image."""
        n, c, h, w = images.shape
        height, width = self.window(images.shape)
        p = self.pad
        padded = np.full((n, c, h + 2 * p, w + 2 * p), self.fill, images.dtype)
        padded[:, :, p : p + h, p : p + w] = images
        most = padded.shape[2] - height, padded.shape[3] - width
        if self.random:
            tops, lefts = (below(words[:, i], most[i] + 1) for i in (0, 1))
        else:
            tops, lefts = (np.full(n, m // 2) for m in most)
        windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
        return windows[np.arange(n), :, tops, lefts]


class Shift(Crop):
    """Moves an image by up to ``most`` pixels each way, every way as likely; ``fill`` comes in at the edges."""

    def __init__(self, most: int, fill: float = 0) -> None:
        super().__init__(pad=most, fill=fill)


def tried(augment: Any, shape: Any, dtype: Any) -> Images:
    """Return what a list of augmentations makes of one black image (C, H, W): its shape and dtype are those to expect.

    ValueError for what has no height and width; TypeError for what is no function, or does not return images.
    """
    if not isinstance(shape, tuple) or len(shape) != 3:
        raise ValueError(f"augment is for images, lshape=(C, H, W); got the shape {shape!r}")
    images = np.zeros((1, *shape), dtype)
    for change in augment:
        if not callable(change):
            raise TypeError(f"augment is a function of images and words, such as Flip(), or a list; got {change!r}")
        made = change(images, np.zeros((1, 4), np.uint64))
        if not isinstance(made, np.ndarray) or made.ndim != 4 or len(made) != 1:
            got = f"an array {made.shape}" if isinstance(made, np.ndarray) else describe(made)
            raise TypeError(f"augment: {change!r} returns images (n, C, H, W), as many as it takes; got {got} for one")
        images = made
    return images
