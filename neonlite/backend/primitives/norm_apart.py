"""How are images normalized where they lie apart?  In rows of many pixels, with columns (F, 1) spread along them.

There the maps of a pixel are neighbors, (pixels, F), and rows of so few numbers would be slow: as many pixels lie in a
row as make some thousand numbers, (rows, pixels of a row * F). What there is for each map is repeated for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neonlite.backend.primitives.places import Places
from neonlite.backend.stored import Stored, brought, can_lie_apart, emptied, found
from neonlite.backend.tensor import Tensor

WIDE = 4096  # numbers in a row
NARROW = 256  # in a row of which it is not worth it


class Rows:
    """Images that lie apart, as (rows, pixels of a row * F), and columns (F, 1) as such rows."""

    def __init__(self, be: Any, stored: Stored) -> None:
        self.be, self.maps, self.dtype = be, stored.form.maps, stored.place.dtype.name
        self.pixels = stored.array.size // self.maps
        most = max(1, min(WIDE // self.maps, self.pixels))
        self.side = next(n for n in range(most, 0, -1) if self.pixels % n == 0)
        self.width = self.side * self.maps

    def tensor(self, array: Any, shape: tuple[int, int], memory: object = None) -> Tensor:
        """Return an array as a tensor."""
        return Tensor(array.reshape(shape), self.be.leaf_info(shape, self.dtype), memory=memory)

    def of(self, stored: Stored) -> Tensor:
        """Return images."""
        return self.tensor(stored.room, (self.pixels // self.side, self.width), stored)

    def room(self, name: str, like: Any) -> Tensor:
        """Return a row that is kept for a purpose."""
        return self.tensor(self.be.primitives.scratch(f"row of {name}", (self.width,), like.room), (1, self.width))

    def spread(self, name: str, column: Any, like: Stored) -> Tensor:
        """Return a column as a row."""
        row = self.room(name, like)
        row.reshape(self.side, self.maps)[:] = column.T
        return row

    def fold(self, row: Tensor) -> Any:
        """Return the sums of what is in a row for each map, as a column."""
        return self.be.sum(row.reshape(self.side, self.maps), axis=0).T


class NormApart(Places):
    """Batch normalization where images lie apart: each tells whether it could be done there."""

    def _fprop_bn_apart(
        self, x: Tensor, y: Tensor, columns: Sequence[Tensor], eps: float, rho: float, inference: bool, summed: bool
    ) -> bool:
        """Do what ``compound_fprop_bn`` does; ``columns``: xsum, xvar, gmean, gvar, gamma, beta."""
        stored = self._images_apart(x, columns)
        if stored is None or stored.in_order or not can_lie_apart(y) or y.memory is x.memory:
            return False
        rows, be = Rows(self, stored), self
        if rows.width < NARROW or any(t.memory is y.memory for t in columns) or y.info.dtype != x.info.dtype:
            return False
        xsum, xvar, mean, var, gamma, beta = columns
        images, many = rows.of(stored), 1.0 / rows.pixels
        if not inference:
            if not summed:
                self.primitives.sum_maps(stored.room, self._target(xsum, (rows.maps,)))
            xsum[:] = xsum * many
            sums = rows.room("sums", stored)
            sums[:] = be.sum(be.square(images - rows.spread("mean", xsum, stored)), axis=0)
            xvar[:] = rows.fold(sums) * many
            be.assign([mean, var], [rho * mean + (1 - rho) * xsum, rho * var + (1 - rho) * xvar])
            mean, var = xsum, xvar
        mean, beta = rows.spread("mean", mean, stored), rows.spread("beta", beta, stored)
        scale = rows.spread("scale", gamma / be.sqrt(var + eps), stored)
        result = emptied(y, stored.form, stored.keeper)
        rows.of(result)[:] = (images - mean) * scale + beta
        result.end(in_order=False)
        return True

    def _bprop_bn_apart(
        self, delta_out: Tensor, delta_in: Tensor, x: Tensor, columns: Sequence[Tensor], eps: float
    ) -> bool:
        """Do what ``compound_bprop_bn`` does; ``columns``: grad_gamma, grad_beta, xsum, xvar, gamma."""
        stored, be = self._images_apart(x, columns), self
        if stored is None or not can_lie_apart(delta_out) or delta_out.memory is x.memory:
            return False
        in_place = delta_out.memory is delta_in.memory
        wide = delta_in, delta_out
        if any(t.memory is w.memory for t in columns for w in wide) or any(w.info.dtype != x.info.dtype for w in wide):
            return False
        rows = Rows(self, stored)
        if rows.width < NARROW or (in_place and delta_in.span != delta_out.span) or delta_in.memory is x.memory:
            return False
        error = found(delta_in)
        if stored.in_order and (error is None or error.in_order):
            return False
        error = brought(delta_in, stored.form, stored.keeper)
        if error is None:
            return False
        grad_gamma, grad_beta, xsum, xvar, gamma = columns
        mean, inv = rows.spread("mean", xsum, stored), 1 / be.sqrt(xvar + eps)
        d, e, many = rows.of(stored) - mean, rows.of(error), 1.0 / rows.pixels
        sums = rows.room("sums", stored), rows.room("sums of errors", stored)
        be.assign(sums, [be.sum(d * e, axis=0), be.sum(e, axis=0)])
        be.assign([grad_gamma, grad_beta], [rows.fold(sums[0]) * inv, rows.fold(sums[1])])
        by_gamma, by_beta = (
            rows.spread("scale", grad_gamma * inv * many, stored),
            rows.spread("beta", grad_beta * many, stored),
        )
        scale = rows.spread("gamma", gamma * inv, stored)
        result = emptied(delta_out, stored.form, stored.keeper)
        rows.of(result)[:] = (e - d * by_gamma - by_beta) * scale
        result.end(in_order=False)
        return True

    def _images_apart(self, x: Tensor, columns: Sequence[Tensor]) -> Stored | None:
        """Return the room of images (F, columns), if it has just them and the columns are elsewhere."""
        stored = found(x) if self.primitives.has_rooms else None
        if stored is None or not stored.has(x, stored.form) or stored.form.maps != len(x):
            return None
        alike = all(t.info.dtype == x.info.dtype == "float32" and t.memory is not x.memory for t in columns)
        return stored if alike and all(t.is_contiguous for t in columns) else None
