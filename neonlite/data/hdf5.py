"""How is data used that is larger than memory?  From an HDF5 file, a minibatch at a time, read by a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neonlite.data.columns import Columns
from neonlite.data.iterator import Minibatches, check_labels, check_numbers, shape_of
from neonlite.data.order import Epoch


def open_hdf5(filename: Any) -> Any:
    """Return an HDF5 file, open to be read. ImportError, with the pip line, without h5py; OSError for no such file."""
    try:
        import h5py
    except ImportError as error:
        raise ImportError('HDF5 files are read by h5py: pip install "neonlite[hdf5]"') from error
    try:
        return h5py.File(filename, "r")
    except OSError as error:
        raise type(error)(f"{filename} is not read as an HDF5 file: {error}") from error


class HDF5Iterator(Minibatches):
    """Minibatches of an HDF5 file: inputs (F, N), and targets (K, N) as they are in the file.

    The file has 'input' (n, F), with the attribute ``lshape``: F or (C, H, W); 'output' (n,) or (n, K); and maybe
    'mean', F numbers or C, which is subtracted from the inputs. Only what a minibatch needs is read, by a thread that
    works one ahead; the file is open as long as a loop runs. The last minibatch is filled up from the start.

    ImportError without h5py; ValueError when the file has not what it should.
    """

    needs_output = True

    def __init__(self, hdf_filename: Any, name: str | None = None) -> None:
        super().__init__(name)
        self.be = self.be  # from now on this one, whatever becomes the current one
        self.hdf_filename = str(hdf_filename)
        with open_hdf5(hdf_filename) as file:
            has = {key: getattr(x, "shape", ()) for key, x in file.items()}
            if len(has.get("input", ())) < 2 or (self.needs_output and not has.get("output")):
                wanted = "'input' (n, F)" + (" and 'output' (n,) or (n, K)" if self.needs_output else "")
                found = ", ".join(f"{key!r} {shape}" for key, shape in has.items()) or "nothing"
                raise ValueError(f"{self.hdf_filename} must have {wanted}; it has {found}")
            x = file["input"]
            self.ndata = len(x)
            if not x.size:
                raise ValueError(f"{self.hdf_filename} has no data: 'input' is {x.shape}")
            lshape = x.attrs.get("lshape")
            self.shape = shape_of(self.hdf_filename, x, None if lshape is None else np.atleast_1d(lshape).tolist())
            self._mean = self._mean_of(file)
            self._inputs = Columns(self.be, self.shape, f"{self.name}.inputs")
            self._targets = self._columns(file["output"]) if self.needs_output else None
        if self.be.bsz:
            self._epoch()

    def _mean_of(self, file: Any) -> NDArray[Any] | None:
        """Return what is subtracted from rows (N, F): one number a feature; None for nothing."""
        if "mean" not in file:
            return None
        mean = np.asarray(file["mean"], np.float32).reshape(-1)
        features = int(np.prod(self.shape))
        channels = self.shape[0] if isinstance(self.shape, tuple) else features
        if mean.size not in (features, channels):
            raise ValueError(
                f"{self.hdf_filename}: 'mean' has a number for each of {features} features or {channels} channels; "
                f"got {file['mean'].shape}"
            )
        return mean.repeat(features // mean.size)

    def _columns(self, output: Any) -> Columns:
        """Return the tensors of targets, given the file's 'output'."""
        if len(output) != self.ndata:
            raise ValueError(
                f"{self.hdf_filename}: as many rows everywhere; 'input' has {self.ndata}, 'output' {len(output)}"
            )
        nclass = output.attrs.get("nclass")
        self.nclass = None if nclass is None else int(np.asarray(nclass).item())
        return Columns(self.be, int(np.prod(output.shape[1:])), f"{self.name}.targets")

    def _check(self, output: NDArray[Any]) -> None:
        """Raise ValueError for targets that cannot be."""
        check_numbers(self.hdf_filename, output)

    # --- minibatches ---

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        self._file = open_hdf5(self.hdf_filename)
        with self._file:
            yield from super().__iter__()

    def work(self, epoch: Epoch) -> Callable[[int], Any] | None:
        x, output = self._file["input"], self._file["output"] if self.needs_output else None
        features = int(np.prod(self.shape))
        buffers = [np.empty((features, epoch.size), self.be.default_dtype) for _ in range(2)]

        def read(k: int) -> tuple[Any, Any]:
            """Return inputs and targets of minibatch k, as columns."""
            pieces, inputs = epoch.pieces(k), buffers[k % 2]
            for columns, rows in pieces:
                found = x[rows].reshape(-1, features)
                inputs[:, columns] = (found if self._mean is None else found - self._mean).T
            if output is None:
                return inputs, None
            targets = np.concatenate([output[rows] for _, rows in pieces]).reshape(epoch.size, -1)
            self._check(targets)
            return inputs, targets.T

        return read

    def fill(self, epoch: Epoch, k: int, values: Any) -> tuple[Any, Any]:
        every = slice(0, epoch.size)
        inputs = self._inputs.fill(epoch.size, [(every, values[0])])
        return inputs, self._targets.fill(epoch.size, [(every, values[1])]) if self._targets else inputs


class HDF5IteratorOneHot(HDF5Iterator):
    """Minibatches of an HDF5 file whose 'output' is labels, with the attribute ``nclass``: targets (nclass, N)."""

    def _columns(self, output: Any) -> Columns:
        super()._columns(output)
        whole = output.dtype.kind in "biu" and int(np.prod(output.shape[1:])) == 1
        if not whole or self.nclass is None or self.nclass < 1:
            raise ValueError(
                f"{self.hdf_filename}: 'output' is whole numbers (n,) or (n, 1), with the attribute nclass from 1; got "
                f"{output.shape} of {output.dtype}, nclass={self.nclass}: HDF5Iterator takes targets as they are"
            )
        return Columns(self.be, 1, f"{self.name}.targets", nclass=self.nclass)

    def _check(self, output: NDArray[Any]) -> None:
        check_labels(self.hdf_filename, output, self.nclass or 0)


class HDF5IteratorAutoencoder(HDF5Iterator):
    """Minibatches of an HDF5 file whose targets are the inputs; it needs no 'output'."""

    needs_output = False
