"""Histograms of tensors: the number of elements of each magnitude, in bins of powers of two."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from neonlite.backend.validation import integer

if TYPE_CHECKING:
    from neonlite.backend.backend import Backend
    from neonlite.backend.tensor import Tensor


def set_hist_buffers(be: Backend, hist_bins: int, hist_offset: int) -> None:
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
    be.hist_bins, be.hist_offset, be.hist_buf = bins, offset, {}


def histogram(be: Backend, t: Tensor, tag: str) -> Tensor:
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
    values = be.astype(t, "float64" if t.info.dtype == "float64" else "float32")
    exponent = be.rint(be.log2(be.absolute(values)))
    bin_index = be.clip(exponent - be.hist_offset, 0, be.hist_bins - 1)
    is_number = values == values
    bin_ids = be.astype(be.where(is_number, bin_index, 0), "int32")
    counts = be.build(
        "scatter_add",
        be.reshape(be.astype(is_number, "int32"), -1, 1),
        be.reshape(bin_ids, -1, 1),
        axis=0,
        size=be.hist_bins,
    )
    if tag not in be.hist_buf:
        be.hist_buf[tag] = be.zeros((1, be.hist_bins), dtype="int32")
    be.hist_buf[tag][:] = be.reshape(counts, 1, be.hist_bins)
    return be.hist_buf[tag]


def dump_hist_data(be: Backend) -> tuple[Tensor, dict[str, int]]:
    """Return all histograms, and delete them.

    Returns
    -------
    data : Tensor
        The counts, (number of tags, hist_bins), int32.
    tags : dict
        The row of each tag.
    """
    rows = list(be.hist_buf.values())
    data = be.zeros((len(rows), be.hist_bins), dtype="int32")
    if rows:
        data[:] = be.concat(rows, axis=0)
    tags = {tag: row for row, tag in enumerate(be.hist_buf)}
    be.hist_buf = {}
    return data, tags


def hist(t: Tensor, tag: str) -> Tensor:
    """Count the elements by magnitude, in bins of powers of two; see ``be.set_hist_buffers``.

    Parameters
    ----------
    tag : str
        The name of the histogram for ``be.dump_hist_data``.

    Returns
    -------
    Tensor
        The counts, (1, hist_bins), int32.
    """
    return t.backend.histogram(t, tag)
