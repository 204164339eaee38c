"""Histograms of tensors: the number of elements of each magnitude, in bins of powers of two."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from neonlite.backend.base import BackendBase
from neonlite.backend.validation import integer

if TYPE_CHECKING:
    from neonlite.backend.tensor import Tensor


class HistogramMethods(BackendBase):
    """The methods of ``Backend`` for histograms."""

    hist_bins = 64
    hist_offset = -48

    def set_hist_buffers(self, hist_bins: int, hist_offset: int) -> None:
        """Set the bins of ``Tensor.hist``, and delete all histograms.

        Parameters
        ----------
        hist_bins : int
            The number of bins, one for each power of two; initially 64.
        hist_offset : int
            The exponent of the first bin; initially -48.
        """
        bins = integer("be.set_hist_buffers: hist_bins", hist_bins)
        offset = integer("be.set_hist_buffers: hist_offset", hist_offset, -math.inf)
        self.hist_bins, self.hist_offset, self.hist_buf = bins, offset, {}

    def histogram(self, t: Tensor, tag: str) -> Tensor:
        """Count the elements of a tensor by magnitude, in bins of powers of two.

        bin = rint(log2 |x|) - hist_offset, clipped to the first and the last bin. NaN is not counted.

        Parameters
        ----------
        t : Tensor
            The tensor.
        tag : str
            The name of the histogram for ``dump_hist_data``.

        Returns
        -------
        Tensor
            The counts, (1, hist_bins), int32.
        """
        values = self.astype(t, "float64" if t.info.dtype == "float64" else "float32")
        exponent = self.rint(self.log2(self.absolute(values)))
        bin_index = self.clip(exponent - self.hist_offset, 0, self.hist_bins - 1)
        is_number = values == values
        bin_ids = self.astype(self.where(is_number, bin_index, 0), "int32")
        counts = self.build(
            "scatter_add",
            self.reshape(self.astype(is_number, "int32"), -1, 1),
            self.reshape(bin_ids, -1, 1),
            axis=0,
            size=self.hist_bins,
        )
        if tag not in self.hist_buf:
            self.hist_buf[tag] = self.zeros((1, self.hist_bins), dtype="int32")
        self.hist_buf[tag][:] = self.reshape(counts, 1, self.hist_bins)
        return self.hist_buf[tag]

    def dump_hist_data(self) -> tuple[Tensor, dict[str, int]]:
        """Return all histograms, and delete them.

        Returns
        -------
        data : Tensor
            The counts, (number of tags, hist_bins), int32.
        tags : dict
            The row of each tag.
        """
        rows = list(self.hist_buf.values())
        data = self.zeros((len(rows), self.hist_bins), dtype="int32")
        if rows:
            data[:] = self.concat(rows, axis=0)
        tags = {tag: row for row, tag in enumerate(self.hist_buf)}
        self.hist_buf = {}
        return data, tags


