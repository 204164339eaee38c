"""How does oneDNN normalize a batch?  Images where they lie apart, map by map: one primitive there, and one back.

Features in order, of which each has a row, are what layer normalization takes for samples: it has a fast way for rows,
and batch normalization has none. What it does not know, gamma, beta and the gradients, chains and sums of rows add.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_float, c_uint
from typing import Any

import numpy as np

from neonlite.backend.onednn.chains import Link, chain
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
PIECE = 1 << 19  # elements of rows that are multiplied before they are added up: they stay in the cache
AFFINE = Link("mul", 1), Link("add", 2)  # x gamma + beta
PRODUCT = Link("sub", 1), Link("mul", 2)  # (x - mean) error
ERRORS = Link("sub", 1), Link("mul", 2), Link("add", 3), Link("sub", 4), Link("mul", 5)  # ((x - mean) a + error - b) c


class Norms(Images):
    """Images by oneDNN, and their batch normalization."""

    norms = True

    def can_norm(self, form: Form, eps: float) -> bool:
        """Tell whether oneDNN can normalize images of some sizes, there and back."""
        ways = (norm, (eps, False)), (norm, (eps, True)), (norm_back, (eps,))
        return all(self._norm(make, form, *more) is not None for make, more in ways)

    def norm_fprop(self, form: Form, x: Any, columns: Sequence[Any], y: Any, eps: float, inference: bool) -> None:
        """Compute ``y = gamma (x - mean) / sqrt(var + eps) + beta`` in rooms.

        ``columns``, each (maps,): gamma, beta, and the mean and population variance of x, which are written, or for
        inference given.
        """
        if not inference and not may_write(*columns[2:]):
            raise ValueError("output array is read-only")
        self._run(self._norm(norm, form, eps, inference), (x, *columns, y))

    def norm_bprop(self, form: Form, x: Any, error: Any, columns: Sequence[Any], d: Any, eps: float) -> None:
        """Compute the errors d of x, which may lie where those of y do, and the gradients, in rooms.

        ``columns``: mean, variance, gamma, and the gradients of gamma and beta, which are written.
        """
        mean, var, gamma, by_gamma, by_beta = columns
        if not may_write(by_gamma, by_beta):
            raise ValueError("output array is read-only")
        self._run(self._norm(norm_back, form, eps), (x, mean, var, error, gamma, d, by_gamma, by_beta))

    def norm_rows_fprop(self, x: Any, columns: Sequence[Any], y: Any, eps: float, rho: float) -> bool:
        """Compute ``y = gamma (x - mean) / sqrt(var + eps) + beta`` of rows, if oneDNN can; tell that.

        x and y (rows, size). ``columns``, each (rows, 1): the mean and population variance of x, which are written;
        what they were on the run, which becomes ``rho g + (1 - rho) now``; gamma and beta.
        """
        mean, var, gmean, gvar, gamma, beta = columns
        standardize, scale = self._of_rows(rows, x.shape, eps), self._of_rows(linked, x.shape, AFFINE)
        if not (standardize and scale and may_write(y, *columns[:4])):
            return False
        self._run(standardize, (x, mean, var, y))
        self._run(scale, (y, gamma, beta, y))
        part = self.scratch("columns", mean.shape, mean)
        for before, now in ((gmean, mean), (gvar, var)):
            np.multiply(now, 1 - rho, out=part)
            np.add(np.multiply(before, rho, out=before), part, out=before)
        return True

    def norm_rows_bprop(self, x: Any, error: Any, columns: Sequence[Any], d: Any, eps: float) -> bool:
        """Compute the errors d of x, which may lie where those of y do, and the gradients, if oneDNN can; tell that.

        x, error and d (rows, size). ``columns``, each (rows, 1): the gradients of gamma and beta, which are written;
        mean, variance and gamma.
        """
        by_gamma, by_beta, mean, var, gamma = columns
        count, size = x.shape
        some = next(n for n in range(max(1, min(count, PIECE // size)), 0, -1) if count % n == 0)
        multiply, add = self._of_rows(linked, (some, size), PRODUCT, 2), self._sums((some, size))
        add_all, finish = self._sums(x.shape), self._of_rows(linked, x.shape, ERRORS, 3)
        if not (multiply and add and add_all and finish and may_write(d, by_gamma, by_beta)):
            return False
        self._run(add_all, (error, by_beta))
        product = self.scratch("product", (some, size), x)
        for start in range(0, count, some):
            part = slice(start, start + some)
            self._run(multiply, (x[part], mean[part], error[part], product))
            self._run(add, (product, by_gamma[part]))
        # error - (xhat by_gamma + by_beta) / size is (x - mean) a + error - b, and all of it times gamma inv
        inv, a, b = self.scratch("columns", (3, count, 1), x)
        np.divide(1, np.sqrt(np.add(var, eps, out=inv), out=inv), out=inv)
        np.multiply(by_gamma, inv, out=by_gamma)
        np.multiply(np.multiply(by_gamma, inv, out=a), -1 / size, out=a)
        np.multiply(by_beta, 1 / size, out=b)
        np.multiply(gamma, inv, out=inv)
        self._run(finish, (x, mean, a, error, b, inv, d))
        return True

    def _of_rows(self, make: Any, shape: tuple[int, ...], *more: Any) -> Any:
        """Return the primitive of this thread for rows; None when there is none."""
        return self._ready("onednn norms", make, shape, shape, more)

    def _norm(self, make: Any, form: Form, *more: Any) -> Any:
        """Return the primitive of this thread; None when there is none."""
        return self._ready("onednn norms", make, form, form, more)


def may_write(*arrays: Any) -> bool:
    """Tell whether arrays may be written, at which NumPy looks, and oneDNN does not."""
    return all(array.flags.writeable for array in arrays)


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


def linked(library: Library, shape: Sequence[int], links: tuple[Link, ...], wide: int = 0) -> Call:
    """Return a chain of rows, for each of which an operand has one number, unless it is the first or ``wide``."""
    column, count = (shape[0], 1), len(links) + 1
    shapes = *(tuple(shape) if n in (0, wide) else column for n in range(count)), tuple(shape)
    return chain(links, count, frozenset()).make(library, shapes).call


def norm_back(library: Library, form: Form, eps: float) -> Call:
    """Return the backward pass, of images, mean, variance, errors and gamma to errors and gradients."""
    images, column = layouts(library, form)
    hint = forward(library, images, eps, inference=False)
    args = library.engine, BACKWARD, images.handle, images.handle, images.handle, c_float(eps), c_uint(SCALED)
    description = library.describe("batch_normalization_backward", *args, hint, library.plain)
    arguments = {SRC: images, MEAN: column, VARIANCE: column, DIFF_DST: images, SCALE: column, DIFF_SRC: images}
    return Call(library, description, arguments | {DIFF_SCALE: column, DIFF_SHIFT: column})
