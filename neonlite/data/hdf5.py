"""HDF5Iterator: minibatches read from an HDF5 file by a background thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from neonlite.backend.validation import import_extra
from neonlite.data.epoch import Epoch
from neonlite.data.iterator import Minibatch, ResumableIterator, check_all_finite, check_labels, row_shape
from neonlite.data.minibatch_buffers import MinibatchBuffers
from neonlite.data.preprocessing import IntegerRange, Preprocessing
from neonlite.files import printable

if TYPE_CHECKING:
    from pathlib import Path


def open_hdf5(filename: str | Path) -> Any:
    """Open an HDF5 file for reading. Raise ImportError without h5py, and OSError if it cannot be opened."""
    h5py = import_extra("h5py", "an HDF5 file", "hdf5")
    try:
        return h5py.File(filename, "r")
    except OSError as error:
        raise type(error)(f"{filename}: expected an HDF5 file: {error}") from error


@contextmanager
def reading(filename: str) -> Iterator[None]:
    """Convert any error of h5py while it reads data to a ValueError that names the file."""
    try:
        yield
    except Exception as error:
        if isinstance(error, MemoryError) or (isinstance(error, ValueError) and filename in str(error)):
            raise
        raise ValueError(f"{filename}: expected readable data, the file may be damaged: {printable(error)}") from error


class HDF5Iterator(ResumableIterator):
    """Iterate over an HDF5 file in minibatches: inputs (F, N) and targets (K, N).

    The file contains the dataset 'input' (n, F), with the optional attribute ``lshape``, the shape of a row: F or
    (C, H, W); the dataset 'output' (n,) or (n, K); and optionally 'mean', F or C values that are subtracted from the
    inputs. A background thread reads one minibatch ahead. The file is open only during iteration. The last minibatch is
    filled up with the first rows of the next epoch.

    Parameters
    ----------
    hdf_filename : str or Path
        The file.
    name : str, optional
        Name, used in error messages; default: the class name and a counter.
    check_finite : bool
        Whether to check each minibatch for NaN and infinity; default: True.

    Raises
    ------
    ImportError
        If h5py is not installed.
    OSError
        If the file cannot be opened.
    ValueError
        If data is missing, shapes do not match, or there is NaN or infinity; the message then names row and column.
    """

    needs_output = True

    def __init__(self, hdf_filename: str | Path, name: str | None = None, check_finite: bool = True) -> None:
        super().__init__(name)
        self.check_finite = bool(check_finite)
        self.be = self.be  # keep this backend if another one becomes current
        self.hdf_filename = str(hdf_filename)
        with open_hdf5(hdf_filename) as file, reading(self.hdf_filename):
            shapes = {key: getattr(x, "shape", ()) for key, x in file.items()}
            if len(shapes.get("input", ())) < 2 or (self.needs_output and not shapes.get("output")):
                expected = "'input' (n, F)" + (" and 'output' (n,) or (n, K)" if self.needs_output else "")
                got = ", ".join(f"{key!r} {shape}" for key, shape in shapes.items()) or "nothing"
                raise ValueError(f"{self.hdf_filename}: expected {expected}, got {got}.")
            for key in {"input", "mean", *(["output"] if self.needs_output else [])} & set(shapes):
                dtype = getattr(file[key], "dtype", None)  # None for a group
                if dtype is None or dtype.kind not in "biuf":
                    raise ValueError(
                        f"{self.hdf_filename}: expected {key!r} to be real numbers, got {dtype or 'a group'}."
                    )
            x = file["input"]
            self.ndata = len(x)
            if not x.size:
                raise ValueError(f"{self.hdf_filename}: expected at least one row, got 'input' of shape {x.shape}.")
            lshape = x.attrs.get("lshape")
            self.shape = row_shape(self.hdf_filename, x, None if lshape is None else np.atleast_1d(lshape).tolist())
            if (mean := self._read_mean(file)) is not None:
                self.preprocessing = Preprocessing(mean=mean, integers=(IntegerRange.from_array(x[:1]),))
            self._inputs = MinibatchBuffers(self.be, self.shape, f"{self.name}.inputs")
            self._targets = self._make_target_buffers(file["output"]) if self.needs_output else None
        if self.be.bsz:
            self._current_epoch()

    def _read_mean(self, file: Any) -> NDArray[Any] | None:
        """Return the mean (F,) that is subtracted from rows, or None."""
        if "mean" not in file:
            return None
        features = int(np.prod(self.shape))
        channels = self.shape[0] if isinstance(self.shape, tuple) else features
        if file["mean"].size not in (features, channels):  # check its size before reading it
            raise ValueError(
                f"{self.hdf_filename}: expected 'mean' to have a value for each of {features} features or {channels} "
                f"channels, got {file['mean'].shape}."
            )
        mean = np.asarray(file["mean"], np.float32).reshape(-1)
        self._check_values("mean", mean)
        return mean.repeat(features // mean.size)

    def _make_target_buffers(self, output: Any) -> MinibatchBuffers:
        """Return the buffers of the targets for the file's dataset 'output'."""
        if len(output) != self.ndata:
            raise ValueError(
                f"{self.hdf_filename}: expected the same number of rows everywhere; 'input' has {self.ndata}, "
                f"'output' has {len(output)}."
            )
        nclass = output.attrs.get("nclass")
        self.nclass = None if nclass is None else int(np.asarray(nclass).item())
        return MinibatchBuffers(self.be, int(np.prod(output.shape[1:])), f"{self.name}.targets")

    def _check_values(self, key: str, values: NDArray[Any], first: int = 0) -> None:
        """Raise ValueError for NaN and infinity. ``first``: index of the first row, for the message."""
        if self.check_finite:
            check_all_finite(f"{self.hdf_filename}: {key!r}", values, self.be.default_dtype, first)

    def _check_targets(self, targets: NDArray[Any], first: int) -> None:
        """Raise ValueError for invalid targets. ``first``: index of the first row, for the message."""
        self._check_values("output", targets, first)

    # --- minibatches ---

    def __iter__(self) -> Iterator[Minibatch]:
        self._file = open_hdf5(self.hdf_filename)
        with self._file:
            yield from super().__iter__()

    def make_prefetcher(self, epoch: Epoch) -> Callable[[int], object] | None:
        x, output = self._file["input"], self._file["output"] if self.needs_output else None
        features, preprocessing = int(np.prod(self.shape)), self.preprocessing
        buffers = [np.empty((features, epoch.num_columns(0)), self.be.default_dtype) for _ in range(2)]

        def read(k: int) -> tuple[Any, Any]:
            """Return inputs and targets of minibatch k, as columns."""
            spans = [(columns, rows) for columns, rows in epoch.spans(k) if isinstance(rows, slice)]  # all: no shuffle
            inputs = buffers[k % 2]
            with reading(self.hdf_filename):
                for columns, rows in spans:
                    values = x[rows].reshape(-1, features)
                    if preprocessing is not None:
                        for limits in filter(None, preprocessing.integers):
                            limits.include(values)
                        values = preprocessing.subtract_mean(values)
                    self._check_values("input", values, rows.start)
                    inputs[:, columns] = values.T
                if output is None:
                    return inputs, None
                targets = [output[rows].reshape(rows.stop - rows.start, -1) for _, rows in spans]
            for (_, rows), values in zip(spans, targets, strict=True):
                self._check_targets(values, rows.start)
            return inputs, np.concatenate(targets).T

        return read

    def fill_minibatch(self, epoch: Epoch, k: int, values: object) -> Minibatch:
        n, (x, t) = epoch.num_columns(k), cast(tuple[Any, Any], values)
        inputs = self._inputs.fill(n, [(slice(0, n), x)])
        return inputs, self._targets.fill(n, [(slice(0, n), t)]) if self._targets else inputs


class HDF5IteratorOneHot(HDF5Iterator):
    """Iterate over an HDF5 file whose 'output' holds labels: inputs (F, N) and one-hot targets (nclass, N).

    The file is as for HDF5Iterator. 'output' (n,) or (n, 1) holds integer labels, and has the attribute ``nclass``.

    Parameters
    ----------
    hdf_filename : str or Path
        The file.
    name : str, optional
        Name, used in error messages; default: the class name and a counter.
    check_finite : bool
        Whether to check each minibatch for NaN and infinity; default: True.

    Raises
    ------
    ValueError
        As for HDF5Iterator, or if a label is not an integer from 0 to nclass - 1.
    """

    def _make_target_buffers(self, output: Any) -> MinibatchBuffers:
        super()._make_target_buffers(output)
        is_labels = output.dtype.kind in "biu" and int(np.prod(output.shape[1:])) == 1
        if not is_labels or self.nclass is None or self.nclass < 1:
            raise ValueError(
                f"{self.hdf_filename}: expected 'output' to be integers (n,) or (n, 1) with a positive attribute "
                f"nclass, got {output.shape} of {output.dtype}, nclass={self.nclass}. Use HDF5Iterator for other "
                "targets."
            )
        return MinibatchBuffers(self.be, 1, f"{self.name}.targets", nclass=self.nclass)

    def _check_targets(self, targets: NDArray[Any], first: int) -> None:
        check_labels(self.hdf_filename, targets, self.nclass or 0, first)


class HDF5IteratorAutoencoder(HDF5Iterator):
    """Iterate over an HDF5 file whose targets are the inputs; the file needs no 'output'.

    Parameters
    ----------
    hdf_filename : str or Path
        The file, as for HDF5Iterator.
    name : str, optional
        Name, used in error messages; default: the class name and a counter.
    check_finite : bool
        Whether to check each minibatch for NaN and infinity; default: True.
    """

    needs_output = False
