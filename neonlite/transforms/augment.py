"""How do a few images stand for many?  By small random changes while a network learns, and none for inference."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from neonlite.backend import NervanaObject
from neonlite.backend.numbers import number
from neonlite.optree import describe

# of the colors red, green and blue, from 0 to 1, of ImageNet's images: principal components, one a column, and the
# deviations along them
COLORPCA = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))
COLORSTD = (0.2175, 0.0188, 0.0045)


class ColorNoise(NervanaObject):
    """Other light on each image: ``f(x) = m + (1 + a) (x - m) + b + P (s e)``, for ``DataTransform(ColorNoise())``.

    Each image has its mean m, and draws a evenly from +-``contrast``, b from +-``brightness``, and e, a number for each
    principal component of colors, from a normal distribution of deviation ``noise_level``. ``colorpca`` P (C, K) has a
    component a column, and ``colorstd`` s the K deviations along them, in units of x; unless given they are those of
    red, green and blue from 0 to 1. Images are (C, H, W). For inference ``f(x) = x``.

    Source: Krizhevsky et al. 2012, section 4.1.

    >>> import neonlite as nl
    >>> from neonlite.layers import DataTransform
    >>> from neonlite.transforms import ColorNoise
    >>> be = nl.gen_backend("cpu", batch_size=2, rng_seed=0)
    >>> layer = DataTransform(ColorNoise(noise_level=0.5)).configure((3, 1, 2))
    >>> layer.allocate()
    >>> layer.fprop(be.zeros((6, 2))).get().round(2)  # both pixels of an image, a column, in one light
    array([[0.05, 0.07], [0.05, 0.07], [0.06, 0.07], [0.06, 0.07], [0.06, 0.07], [0.06, 0.07]], dtype=float32)
    """

    def __init__(
        self,
        colorpca: Any = None,
        colorstd: Any = None,
        noise_level: float = 0.1,
        brightness: float = 0.0,
        contrast: float = 0.0,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if (colorpca is None) != (colorstd is None):
            raise ValueError(f"{self.classnm}: colorpca and colorstd, its deviations, are given together")
        self.colorpca, self.colorstd = colorpca, colorstd
        self.axes = scaled(self, *((COLORPCA, COLORSTD) if colorpca is None else (colorpca, colorstd)))
        self.noise_level = number(f"{self.classnm}: noise_level", noise_level, low=0)
        self.brightness = number(f"{self.classnm}: brightness", brightness, low=0)
        self.contrast = number(f"{self.classnm}: contrast", contrast, low=0)
        self.components: Any = None  # the axes as a tensor

    def configure(self, shape: Any) -> None:
        """Take the shape of the data. ValueError unless it is that of images with as many maps as ``colorpca`` has."""
        if not isinstance(shape, tuple) or len(shape) < 3 or shape[0] != len(self.axes):
            raise ValueError(
                f"{self.classnm}: images have the shape ({len(self.axes)}, H, W), a map for each row of colorpca; "
                f"got {shape}"
            )

    def __call__(self, x: Any) -> Any:
        """Return the images in other light, drawn each time that this is worked out."""
        be, maps, N = self.be, len(self.axes), x.shape[1]
        if x.shape[0] % maps:
            raise ValueError(f"{self.classnm}: images have {maps} maps, x (C H W, N); got {describe(x)}")
        y = x
        if self.contrast:
            m = be.mean(x, axis=0)
            y = m + (1 + self.evenly(self.contrast, N)) * (x - m)
        if self.brightness:
            y = y + self.evenly(self.brightness, N)
        if self.noise_level:
            if self.components is None or self.components.backend is not be:
                self.components = be.array(self.axes, name=f"{self.name}.components")
            light = be.dot(self.components, self.noise_level * be.randn(self.components.shape[1], N))
            y = be.reshape(be.reshape(y, maps, -1, N) + be.reshape(light, maps, 1, N), x.shape)
        return y

    def inference(self, x: Any) -> Any:
        """Return the images as they are."""
        return x

    def evenly(self, bound: float, N: int) -> Any:
        """Return a number for each of N images, drawn evenly from within +- a bound."""
        return bound * (2 * self.be.rand(1, N) - 1)


def scaled(owner: NervanaObject, colorpca: Any, colorstd: Any) -> list[list[float]]:
    """Return principal components, one a column, each times its deviation. ValueError when there are not as many."""
    if not all(isinstance(x, Iterable) for x in (colorpca, colorstd)) or not all(
        isinstance(x, Iterable) for x in colorpca
    ):
        raise TypeError(f"{owner.classnm}: colorpca is rows of numbers, and colorstd numbers")
    rows, std = [list(row) for row in colorpca], [number(f"{owner.classnm}: a colorstd", s, low=0) for s in colorstd]
    if not rows or not std or any(len(row) != len(std) for row in rows):
        raise ValueError(
            f"{owner.classnm}: colorpca has a row a map and a column a component, and colorstd a number a component; "
            f"got rows of {[len(row) for row in rows]}, and {len(std)}"
        )
    return [[number(f"{owner.classnm}: a colorpca", p) * s for p, s in zip(row, std, strict=True)] for row in rows]
