"""Callbacks for GANs: costs of both networks, and images from the generator."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from math import isqrt, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from neonlite.backend.validation import import_extra, integer, sequence, with_attributes
from neonlite.callbacks.callback import PRIORITY_SAVE, Callback, check_floats
from neonlite.files import check_writable, write_atomic

if TYPE_CHECKING:
    from numpy import floating
    from numpy.typing import NDArray

    from neonlite.models import GAN


class GANCallback(Callback):
    """Base class of callbacks for a ``GAN``."""

    @property
    def model(self) -> GAN:
        """The GAN that is trained."""
        return cast("GAN", super().model)  # ``on_train_begin`` checks it

    def on_train_begin(self, epochs: int) -> None:
        with_attributes(f"{self.classnm}: model", self.model, "cost_gen", "a GAN")


class GANCostCallback(GANCallback):
    """Record the mean costs of both networks of a ``GAN``, as "loss_discriminator" and "loss_generator"."""

    def __init__(self) -> None:
        super().__init__()
        self.last_generator_step = 0
        self.cost_sum_and_count = [0.0, 0.0]  # of the generator's costs in this epoch

    @property
    def _state_fields(self) -> Mapping[str, Callable[[str, Any], Any]]:
        return {
            "cost_sum_and_count": lambda label, value: check_floats(label, sequence(label, value, "a pair", count=2))
        }

    def on_train_begin(self, epochs: int) -> None:
        super().on_train_begin(epochs)
        self.last_generator_step = self.model.gen_iterations

    def on_epoch_begin(self, epoch: int) -> None:
        if not self.model.minibatch_index:
            self.cost_sum_and_count = [0.0, 0.0]

    def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
        if self.model.gen_iterations > self.last_generator_step:
            self.last_generator_step = self.model.gen_iterations
            self.cost_sum_and_count = [self.cost_sum_and_count[0] + self.model.cost_gen, self.cost_sum_and_count[1] + 1]

    def on_epoch_end(self, epoch: int) -> None:
        self.callbacks.history.record("loss_discriminator", epoch + 1, self.model.total_cost)
        total, n = self.cost_sum_and_count
        if n:
            self.callbacks.history.record("loss_generator", epoch + 1, total / n)


class GANPlotCallback(GANCallback):
    """Save a grid of images from the generator of a ``GAN`` every ``epoch_freq`` epochs, as FILENAME_EPOCHS.png.

    The images are generated from the same noise each time.

    Parameters
    ----------
    filename : str or Path
        The path without the number of complete epochs; its extension sets the format. Default extension: .png.
    hw : int or tuple of int, optional
        The height and width of an image, or both as one integer. Default: those of the generator's outputs.
    num_samples : int
        The number of images. Default: 36.
    nchan : int, optional
        The number of channels, 1 or 3. Default: that of the generator's outputs.
    sym_range : bool
        Whether -1 is black and 1 is white. Default: False: the minimum of all images is black and the maximum is white.
    zoom : int
        The scale factor: each pixel of an image is drawn as ``zoom`` x ``zoom`` pixels. Default: 4.
    epoch_freq : int or list of int
        Run every ``epoch_freq`` epochs, or in the epochs of these indices. Default: 1.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    """

    priority = PRIORITY_SAVE

    def __init__(
        self,
        filename: str | Path,
        hw: int | tuple[int, int] | None = None,
        num_samples: int = 36,
        nchan: int | None = None,
        sym_range: bool = False,
        zoom: int = 4,
        epoch_freq: int | list[int] = 1,
    ) -> None:
        super().__init__(epoch_freq)
        self.filename = check_writable("GANPlotCallback: filename", filename)
        sizes = [] if hw is None else [*hw] if isinstance(hw, tuple | list) else [hw, hw]
        self.hw = [integer("GANPlotCallback: hw", n) for n in sizes]
        self.num_samples = integer("GANPlotCallback: num_samples", num_samples)
        self.nchan = None if nchan is None else integer("GANPlotCallback: nchan", nchan)
        self.sym_range = sym_range
        self.zoom = integer("GANPlotCallback: zoom", zoom)
        self.imsave = import_extra("matplotlib.image", self.classnm, "viz").imsave

    def on_epoch_end(self, epoch: int) -> None:
        if self.should_fire(epoch, self.epoch_freq):
            path = Path(self.filename)
            suffix, image = path.suffix or ".png", io.BytesIO()
            grid = self.make_grid(self.model.generate(self.num_samples))
            self.imsave(image, grid, cmap="gray", format=suffix[1:].lower())
            write_atomic(path.with_name(f"{path.stem}_{epoch + 1}{suffix}"), image.getvalue())

    def make_grid(self, images: NDArray[floating]) -> NDArray[floating]:
        """Arrange images in a square grid.

        Parameters
        ----------
        images : numpy.ndarray
            (n, C, H, W) or (n, F).

        Returns
        -------
        numpy.ndarray
            One image of values from 0 to 1: (height, width), or (height, width, 3).
        """
        n, *shape = images.shape
        C, H, W = self.sizes(shape)
        low, high = (-1, 1) if self.sym_range else (images.min(), images.max())
        scaled = ((images - low) / ((high - low) or 1)).clip(0, 1).reshape(n, C, H, W)
        across = isqrt(n - 1) + 1
        down = -(-n // across)
        rows = scaled[[*range(n), *[0] * (down * across - n)]]
        rows[n:] = 0  # empty cells are black
        rows = rows.reshape(down, across, C, H, W).transpose(0, 3, 1, 4, 2).reshape(down * H, across * W, C)
        rows = rows.repeat(self.zoom, axis=0).repeat(self.zoom, axis=1)
        return rows[:, :, 0] if C == 1 else rows

    def sizes(self, shape: list[int]) -> tuple[int, int, int]:
        """Return the channels, height and width of the images.

        Parameters
        ----------
        shape : list of int
            The shape of one output of the generator.

        Raises
        ------
        ValueError
            The outputs are not images of 1 or 3 channels, or not of the size ``hw``.
        """
        C = self.nchan or (shape[0] if len(shape) == 3 else 1)
        side = isqrt(prod(shape) // C)
        H, W = self.hw or (shape[-2:] if len(shape) == 3 else (side, side))
        if prod(shape) != C * H * W or C not in (1, 3):
            size = f"shape {(C, H, W)} with " if self.hw or self.nchan else ""
            raise ValueError(
                f"GANPlotCallback: expected images of {size}1 or 3 channels, got outputs of shape {tuple(shape)}"
            )
        return C, H, W
