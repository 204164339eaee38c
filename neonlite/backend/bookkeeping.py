"""What else does a backend keep?  Histograms of tensors, marks in time, and neon's words for several devices."""

from __future__ import annotations

import time
from collections.abc import Sequence

from neonlite.backend.making import Making
from neonlite.backend.tensor import Tensor
from neonlite.backend.words import Words


class Mark:
    """A moment: seconds of a clock, once it was recorded."""

    at: float | None = None


class Bookkeeping(Making, Words):
    """The backend's methods that compute nothing new."""

    hist_bins = 64
    hist_offset = -48
    hist_buf: dict[str, Tensor]

    # --- histograms ---

    def set_hist_buffers(self, hist_bins: int, hist_offset: int) -> None:
        """Set what ``Tensor.hist`` counts: ``hist_bins`` powers of two, the first 2^hist_offset; forget what it has."""
        for name, n in (("hist_bins", hist_bins), ("hist_offset", hist_offset)):
            if isinstance(n, bool) or not isinstance(n, int) or (name == "hist_bins" and n < 1):
                raise ValueError(f"be.set_hist_buffers: {name} is a whole number; got {n!r}")
        self.hist_bins, self.hist_offset, self.hist_buf = hist_bins, hist_offset, {}

    def histogram(self, t: Tensor, tag: str) -> Tensor:
        """Count the elements of a tensor by magnitude, ``rint(log2 |x|)``, under a tag; return the counts, int32.

        The first bin holds all that is smaller, the last all that is larger; NaN is not counted.
        """
        wide = self.astype(t, "float64" if t.info.dtype == "float64" else "float32")
        exponent = self.rint(self.log2(self.absolute(wide)))
        place = self.clip(exponent - self.hist_offset, 0, self.hist_bins - 1)
        real = wide == wide
        number = self.astype(self.where(real, place, 0), "int32")
        counts = self.build(
            "scatter",
            self.reshape(self.astype(real, "int32"), -1, 1),
            self.reshape(number, -1, 1),
            axis=0,
            size=self.hist_bins,
        )
        if tag not in self.hist_buf:
            self.hist_buf[tag] = self.zeros((1, self.hist_bins), dtype="int32")
        self.hist_buf[tag][:] = self.reshape(counts, 1, self.hist_bins)
        return self.hist_buf[tag]

    def dump_hist_data(self) -> tuple[Tensor, dict[str, int]]:
        """Return all histograms as the rows of a tensor, and the row of each tag; begin anew."""
        rows = list(self.hist_buf.values())
        data = self.zeros((len(rows), self.hist_bins), dtype="int32")
        if rows:
            data[:] = self.concat(rows, axis=0)
        tags = {tag: row for row, tag in enumerate(self.hist_buf)}
        self.hist_buf = {}
        return data, tags

    # --- time ---

    def init_mark(self) -> Mark:
        """Return a mark that is not recorded yet."""
        return Mark()

    def record_mark(self, marker: Mark) -> None:
        """Record the moment when all work so far is done."""
        self.runtime.wait()
        marker.at = time.perf_counter()

    def synchronize_mark(self, marker: Mark) -> None:
        """Wait until a mark is reached."""
        self.runtime.wait()

    def get_time(self, start: Mark, end: Mark) -> float:
        """Return the milliseconds between two marks."""
        if start.at is None or end.at is None:
            raise ValueError("be.get_time: record both marks first, with be.record_mark")
        return (end.at - start.at) * 1e3

    # --- moving data ---

    def copy_transpose(self, a: Tensor, out: Tensor, axes: Sequence[int] | None = None, repeat: int = 1) -> Tensor:
        """Copy ``a`` with its axes in another order into ``out``, and return it; without ``axes``, in reverse."""
        value = self.transpose(a, list(range(a.ndim))[::-1] if axes is None else list(axes))
        if value.shape != out.shape and a.size == out.size:
            value = self.reshape(value, out.shape)
        for _ in range(repeat):
            out[:] = value
        return out

    def distribute_data(self, tensor: Tensor, layer_parallelism: str) -> Tensor:
        """Return the tensor: there is one device, and nothing to distribute."""
        return tensor

    def revert_tensor(self, tensor: Tensor) -> Tensor:
        """Return the tensor as it was before ``distribute_data``: as it is."""
        return tensor
