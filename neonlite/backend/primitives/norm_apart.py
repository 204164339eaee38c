"""How does a library normalize a batch?  Images where they lie apart, map by map; features in order row by row."""

from __future__ import annotations

from collections.abc import Sequence

from neonlite.backend.executors.quiet import Silence
from neonlite.backend.primitives.places import Places
from neonlite.backend.stored import Stored, brought, can_lie_apart, emptied, found
from neonlite.backend.tensor import Tensor, overlap

MANY = 1 << 18  # pixels of a map up to which the library's sums, one after another in float32, are precise enough


class NormApart(Places):
    """Batch normalization by a library: each tells whether it could do that."""

    def _fprop_bn_apart(
        self, x: Tensor, y: Tensor, columns: Sequence[Tensor], eps: float, rho: float, inference: bool
    ) -> bool:
        """Do what ``compound_fprop_bn`` does; ``columns``: xsum, xvar, gmean, gvar, gamma, beta."""
        stored = self._images_apart(x, columns, eps)
        if stored is None or stored.in_order or not can_lie_apart(y) or y.memory is x.memory:
            return False
        if y.info.dtype != x.info.dtype or any(t.memory is y.memory for t in columns):
            return False
        xsum, xvar, gmean, gvar, gamma, beta = columns
        take = self._shaped if inference else self._target
        moments = (gmean, gvar) if inference else (xsum, xvar)
        row = (stored.form.maps,)
        arrays = [*(self._shaped(t, row) for t in (gamma, beta)), *(take(t, row) for t in moments)]
        result = emptied(y, stored.form, stored.keeper)
        self.primitives.norm_fprop(stored.form, stored.room, arrays, result.room, eps, inference)
        result.end(in_order=False)
        if not inference:
            self.assign([gmean, gvar], [rho * gmean + (1 - rho) * xsum, rho * gvar + (1 - rho) * xvar])
        return True

    def _bprop_bn_apart(
        self, delta_out: Tensor, delta_in: Tensor, x: Tensor, columns: Sequence[Tensor], eps: float
    ) -> bool:
        """Do what ``compound_bprop_bn`` does; ``columns``: grad_gamma, grad_beta, xsum, xvar, gamma."""
        stored = self._images_apart(x, columns, eps)
        if stored is None or not can_lie_apart(delta_out) or any(x.memory is t.memory for t in (delta_in, delta_out)):
            return False
        in_place, wide = delta_out.memory is delta_in.memory, (delta_in, delta_out)
        if any(t.memory is w.memory for t in columns for w in wide) or any(w.info.dtype != x.info.dtype for w in wide):
            return False
        error = found(delta_in)
        if (in_place and delta_in.span != delta_out.span) or (stored.in_order and (error is None or error.in_order)):
            return False
        error = brought(delta_in, stored.form, stored.keeper)
        if error is None:
            return False
        errors, (by_gamma, by_beta, *read) = error.room, columns
        row = (stored.form.maps,)
        arrays = [*(self._shaped(t, row) for t in read), *(self._target(t, row) for t in (by_gamma, by_beta))]
        result = emptied(delta_out, stored.form, stored.keeper)
        self.primitives.norm_bprop(stored.form, stored.room, errors, arrays, result.room, eps)
        result.end(in_order=False)
        return True

    def _fprop_bn_rows(self, x: Tensor, y: Tensor, columns: Sequence[Tensor], eps: float, rho: float) -> bool:
        """Do what ``compound_fprop_bn`` does in training, of images in order or features."""
        if not self._are_rows(x, (y, *columns[:4]), columns[4:]):
            return False
        wide, row = x.shape, (len(x), 1)
        arrays = [*(self._target(t, row) for t in columns[:4]), *(self._shaped(t, row) for t in columns[4:])]
        with Silence():
            rows = self._shaped(x, wide), arrays, self._target(y, wide)
            return bool(self.primitives.norm_rows_fprop(*rows, eps, rho))

    def _bprop_bn_rows(
        self, delta_out: Tensor, delta_in: Tensor, x: Tensor, columns: Sequence[Tensor], eps: float
    ) -> bool:
        """Do what ``compound_bprop_bn`` does, of images in order or features."""
        read = columns[2:] if overlap(delta_out, delta_in) == "same" else (delta_in, *columns[2:])
        if delta_in.info.dtype != "float32" or not self._are_rows(x, (delta_out, *columns[:2]), read):
            return False
        wide, row = x.shape, (len(x), 1)
        arrays = [*(self._target(t, row) for t in columns[:2]), *(self._shaped(t, row) for t in columns[2:])]
        with Silence():
            rows = self._shaped(x, wide), self._shaped(delta_in, wide), arrays, self._target(delta_out, wide)
            return bool(self.primitives.norm_rows_bprop(*rows, eps))

    def _are_rows(self, x: Tensor, written: Sequence[Tensor], read: Sequence[Tensor]) -> bool:
        """Tell whether a library may have rows x, and others: those that are written share no memory."""
        tensors = *written, *read, x
        if not self.primitives.norms or x.shape[1] > MANY:
            return False
        if not all(t.info.dtype == "float32" and t.is_contiguous for t in tensors):
            return False
        pairs = ((t, other) for n, t in enumerate(written) for other in tensors[n + 1 :])
        return not any(t.memory is other.memory and overlap(t, other) != "none" for t, other in pairs)

    def _images_apart(self, x: Tensor, columns: Sequence[Tensor], eps: float) -> Stored | None:
        """Return the room of images (F, columns), if it has just them and the columns are elsewhere."""
        stored = found(x) if self.primitives.norms else None
        if stored is None or not stored.has(x, stored.form) or stored.form.maps != len(x):
            return None
        alike = all(t.info.dtype == x.info.dtype == "float32" and t.memory is not x.memory for t in columns)
        fit = alike and all(t.is_contiguous for t in columns) and stored.form.pixels * stored.form.images <= MANY
        return stored if fit and self.primitives.can_norm(stored.form, eps) else None
