"""How does oneDNN normalize a batch?  Images where they lie apart, map by map: one primitive there, and one back.

Features in order, of which each has a row, are what layer normalization takes for samples: it has a fast way for rows,
and batch normalization has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_float, c_uint
from typing import Any

from neonlite.backend.onednn.images import Images
from neonlite.backend.onednn.library import (
    BACKWARD,
    DIFF_DST,
    DIFF_SRC,
    DST,
    INFERENCE,
    SRC,
    TRAINING,
    Call,
    Handle,
    Layout,
    Library,
)
from neonlite.backend.stored import Form

MEAN, VARIANCE, SCALE, SHIFT, DIFF_SCALE, DIFF_SHIFT = 49, 50, 51, 52, 255, 256  # arguments
GIVEN, SCALED = 1, 2 | 4  # mean and variance are; gamma and beta are there


class Norms(Images):
    """Images by oneDNN, and their batch normalization."""

    def can_norm(self, form: Form, eps: float) -> bool:
        """Tell whether oneDNN can normalize images of some sizes, there and back."""
        ways = (norm, (eps, False)), (norm, (eps, True)), (norm_back, (eps,))
        return all(self._norm(make, form, *more) is not None for make, more in ways)

    def norm_fprop(self, form: Form, x: Any, columns: Sequence[Any], y: Any, eps: float, inference: bool) -> None:
        """Compute ``y = gamma (x - mean) / sqrt(var + eps) + beta`` in rooms.

        ``columns``, each (maps,): gamma, beta, and the mean and population variance of x, which are written, or for
        inference given.
        """
        self._run(self._norm(norm, form, eps, inference), (x, *columns, y))

    def norm_bprop(self, form: Form, x: Any, error: Any, columns: Sequence[Any], d: Any, eps: float) -> None:
        """Compute the errors d of x, which may lie where those of y do, and the gradients, in rooms.

        ``columns``: mean, variance, gamma, and the gradients of gamma and beta, which are written.
        """
        mean, var, gamma, by_gamma, by_beta = columns
        self._run(self._norm(norm_back, form, eps), (x, mean, var, error, gamma, d, by_gamma, by_beta))

    def standardize(self, x: Any, mean: Any, var: Any, y: Any, eps: float) -> bool:
        """Compute ``y = (x - mean) / sqrt(var + eps)`` of rows, and their mean and variance, if oneDNN can; tell that.

        x and y (rows, columns); mean and population variance (rows,), which are written.
        """
        call = self._ready("onednn norms", rows, x.shape, x.shape, (eps,))
        if call is not None:
            self._run(call, (x, mean, var, y))
        return call is not None

    def _norm(self, make: Any, form: Form, *more: Any) -> Any:
        """Return the primitive of this thread; None when there is none."""
        return self._ready("onednn norms", make, form, form, more)


# --- what is made ----------------------------------------------------------------------------------------------------


def layouts(library: Library, form: Form) -> tuple[Layout, Layout]:
    """Return how images (N, C, pixels) lie apart, and columns."""
    maps, pixels, images = form
    apart = library.layout((images, maps, pixels), (maps * pixels, 1, maps))
    return apart, library.layout((maps,), (1,))


def forward(library: Library, images: Layout, eps: float, inference: bool) -> Handle:
    """Return the description of the forward pass."""
    flags = SCALED | GIVEN * inference
    args = library.engine, INFERENCE if inference else TRAINING, images.handle, images.handle, c_float(eps)
    return library.describe("batch_normalization_forward", *args, c_uint(flags), library.plain)


def norm(library: Library, form: Form, eps: float, inference: bool) -> Call:
    """Return the forward pass, of images, gamma, beta, mean and variance."""
    images, column = layouts(library, form)
    arguments = {SRC: images, SCALE: column, SHIFT: column, MEAN: column, VARIANCE: column, DST: images}
    return Call(library, forward(library, images, eps, inference), arguments)


def rows(library: Library, shape: Sequence[int], eps: float) -> Call:
    """Return the forward pass of rows, each normalized alone."""
    array, column = library.layout(shape, (shape[1], 1)), library.layout(shape[:1], (1,))
    args = library.engine, TRAINING, array.handle, array.handle, column.handle, c_float(eps), c_uint(0), library.plain
    description = library.describe("layer_normalization_forward", *args)
    return Call(library, description, {SRC: array, MEAN: column, VARIANCE: column, DST: array})


def norm_back(library: Library, form: Form, eps: float) -> Call:
    """Return the backward pass, of images, mean, variance, errors and gamma to errors and gradients."""
    images, column = layouts(library, form)
    hint = forward(library, images, eps, inference=False)
    args = library.engine, BACKWARD, images.handle, images.handle, images.handle, c_float(eps), c_uint(SCALED)
    description = library.describe("batch_normalization_backward", *args, hint, library.plain)
    arguments = {SRC: images, MEAN: column, VARIANCE: column, DIFF_DST: images, SCALE: column, DIFF_SRC: images}
    return Call(library, description, arguments | {DIFF_SCALE: column, DIFF_SHIFT: column})
