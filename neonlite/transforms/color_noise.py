"""ColorNoise: random brightness, contrast and PCA color noise, applied in the network during training."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from neonlite.backend import NervanaObject
from neonlite.backend.validation import check_number
from neonlite.messages import describe
from neonlite.optree import Operand
from neonlite.typing import ArrayLike, ShapeLike

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
            normal = self.draw_columns(lambda n: be.randn(self.components.shape[1], n), N)
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
        uniform = self.draw_columns(lambda n: self.be.rand(1, n), N)
        return bound * (2 * uniform - 1)

    def draw_columns(self, draw: Callable[[int], Operand], N: int) -> Operand:
        """Return random numbers for each image, which are the same on any number of processes.

        Parameters
        ----------
        draw : callable
            A function of the number of images of all processes that returns their random numbers, one column each.
        N : int
            Number of images of this process.

        Returns
        -------
        op-tree
            The N columns of this process.
        """
        shard = self.be.minibatch_shard
        if shard is None:
            return draw(N)
        return self.be.take(draw(shard.total), range(shard.start, shard.stop), axis=1)


def scale_components(owner: NervanaObject, colorpca: Any, colorstd: Any) -> list[list[float]]:
    """Return the principal components (columns), each multiplied by its standard deviation."""
    if not all(isinstance(x, Iterable) for x in (colorpca, colorstd)) or not all(
        isinstance(x, Iterable) for x in colorpca
    ):
        raise TypeError(
            f"{owner.classnm}: expected colorpca as rows of scalars and colorstd as scalars, got other types"
        )
    rows, std = (
        [list(row) for row in colorpca],
        [check_number(f"{owner.classnm}: an element of colorstd", s, low=0) for s in colorstd],
    )
    if not rows or not std or any(len(row) != len(std) for row in rows):
        raise ValueError(
            f"{owner.classnm}: expected colorpca with one row per channel and one column per component, and colorstd "
            f"with one scalar per component, got rows of {[len(row) for row in rows]}, and {len(std)}"
        )
    return [
        [check_number(f"{owner.classnm}: an element of colorpca", p) * s for p, s in zip(row, std, strict=True)]
        for row in rows
    ]
