"""How do two networks that learn from each other come along?  The costs of both, and pictures of what one makes."""

from __future__ import annotations

from math import isqrt
from pathlib import Path
from typing import Any

from neonlite.callbacks.callback import KEEPS, Callback, whole, writable
from neonlite.callbacks.note import numbers
from neonlite.optree import describe


class GANCosts(Callback):
    """Notes the mean costs of each epoch's steps, as "cost, discriminator" and "cost, generator", for a ``GAN``."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0  # of the generator, up to now
        self.sums = [0.0, 0.0]  # of its costs in this epoch, and how many there were

    def on_train_begin(self, epochs: int) -> None:
        if not hasattr(self.model, "cost_gen"):
            raise TypeError(f"{self.classnm} is for a GAN, with two costs; got {describe(self.model)}")
        self.steps = self.model.gen_iterations

    def on_epoch_begin(self, epoch: int) -> None:
        if not self.model.minibatch_index:
            self.sums = [0.0, 0.0]

    def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
        if self.model.gen_iterations > self.steps:
            self.steps = self.model.gen_iterations
            self.sums = [self.sums[0] + self.model.cost_gen, self.sums[1] + 1]

    def on_epoch_end(self, epoch: int) -> None:
        self.callbacks.history.note("cost, discriminator", epoch + 1, self.model.total_cost)
        total, n = self.sums
        if n:
            self.callbacks.history.note("cost, generator", epoch + 1, total / n)

    def get_state(self) -> Any:
        return {"sums": self.sums}

    def set_state(self, state: Any) -> None:
        found = numbers(self, state, "sums")
        if len(found) != 2:
            raise ValueError(f"{self.classnm}: sums in its state are two numbers; got {describe(state)}")
        self.sums = found


class GANPlot(Callback):
    """Writes a picture of what the generator of a ``GAN`` makes, every so many epochs: path_EPOCH.png.

    ``num_samples``: how many images, a square number; the same noise is taken each time. The darkest of all is black,
    the brightest white; each dot is drawn as ``zoom`` x ``zoom``. ImportError without matplotlib.
    """

    turn = KEEPS

    def __init__(self, filename: Any, num_samples: int = 36, zoom: int = 4, epoch_freq: Any = 1) -> None:
        super().__init__(epoch_freq)
        self.filename = writable("GANPlot: filename", filename)
        self.num_samples = whole("GANPlot: num_samples", num_samples, 1)
        self.zoom = whole("GANPlot: zoom", zoom, 1)
        if isqrt(num_samples) ** 2 != num_samples:
            raise ValueError(f"GANPlot: num_samples fill a square, 36 or 64; got {num_samples}")
        imsave()

    def on_train_begin(self, epochs: int) -> None:
        if not hasattr(self.model, "generate"):
            raise TypeError(f"{self.classnm} is for a GAN, which generates images; got {describe(self.model)}")

    def on_epoch_end(self, epoch: int) -> None:
        if self.should_fire(epoch, self.epoch_freq):
            path = Path(self.filename)
            dots = self.dots(self.model.generate(self.num_samples))
            imsave()(path.with_name(f"{path.stem}_{epoch}{path.suffix or '.png'}"), dots, cmap="gray")

    def dots(self, images: Any) -> Any:
        """Return images (n, C, H, W), or (n, F) that are square, as one of (rows, columns) or (rows, columns, 3)."""
        side, shape = isqrt(len(images)), list(images.shape[1:])
        C, H, W = shape if len(shape) == 3 else (1, isqrt(shape[0]), isqrt(shape[0]))
        if shape not in ([C, H, W], [H * W]) or C not in (1, 3):
            raise ValueError(f"GANPlot draws images of 1 or 3 channels; the generator makes {tuple(shape)}")
        low, high = images.min(), images.max()
        bright = (images - low) / ((high - low) or 1)
        rows = bright.reshape(side, side, C, H, W).transpose(0, 3, 1, 4, 2).reshape(side * H, side * W, C)
        rows = rows.repeat(self.zoom, axis=0).repeat(self.zoom, axis=1)
        return rows[:, :, 0] if C == 1 else rows


def imsave() -> Any:
    """Return matplotlib's function that writes an image. ImportError, with the pip line, when it is not installed."""
    try:
        from matplotlib.image import imsave
    except ImportError:
        raise ImportError('images are drawn by matplotlib: pip install "neonlite[viz]"') from None
    return imsave
