"""Readers of data files, gzip, idx, CSV, tar and CIFAR-10, and where to find them; HDF5Iterator, in the background."""

from __future__ import annotations

import gzip
import math
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from neonlite.backend.validation import import_extra
from neonlite.data.iterator import Minibatch, ResumableIterator, check_all_finite, check_labels, row_shape
from neonlite.data.minibatches import Epoch, IntegerRange, MinibatchBuffers, Preprocessing
from neonlite.files import max_file_bytes, open_input, printable
from neonlite.messages import truncate_message

Bytes = NDArray[np.uint8]
IDX_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}  # by third byte of the file
CIFAR10_RECORD_BYTES = 1 + 3 * 32 * 32  # the label, then the red, green and blue channels
MAX_CIFAR10_BYTES = 10_000 * CIFAR10_RECORD_BYTES  # a file has 10,000 images
MAX_CSV_BYTES = 1 << 26  # the largest table, mnist_5k.csv, has 5,000 rows of 785 values
MAX_TAR_MEMBERS = 1000  # a data set has fewer, a malicious archive may have millions
CHUNK_BYTES = 1 << 20  # bytes decompressed at a time
SearchLocation = tuple[Path | None, str, str]  # a folder, its label if it is None, how to install files there
LIMIT_HINT = " Set the environment variable NEONLITE_MAX_FILE_BYTES=N to allow N bytes."


@contextmanager
def open_decompressed(path: Path) -> Iterator[Any]:
    """Open a file for reading, through gzip if it is a .gz. Raise ValueError if the .gz is damaged."""
    with open_input(path) as file:
        if path.suffix != ".gz":
            yield file
            return
        try:
            with gzip.open(file) as decompressed:
                yield decompressed
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path}: expected a complete .gz file: {error}") from error


def read_up_to(file: IO[bytes], max_bytes: int) -> bytes:
    """Return the rest of an open file; ``max_bytes + 1`` bytes of it if it is larger than ``max_bytes``."""
    chunks, count = [], 0
    while count <= max_bytes and (chunk := file.read(min(CHUNK_BYTES, max_bytes + 1 - count))):
        chunks.append(chunk)
        count += len(chunk)
    return b"".join(chunks)


def read_chunks(path: Path, max_bytes: int | None = None) -> Iterator[bytes]:
    """Yield the bytes of a file in chunks, decompressed if it is a .gz.

    ``max_bytes``: largest decompressed size; default: ``max_file_bytes()``. Raise ValueError for a larger file, without
    decompressing the rest.
    """
    limit = max_file_bytes() if max_bytes is None else max_bytes
    count = 0
    with open_decompressed(path) as file:
        while chunk := file.read(min(CHUNK_BYTES, limit + 1 - count)):
            count += len(chunk)
            if count > limit:
                hint = LIMIT_HINT if max_bytes is None else ""
                raise ValueError(f"{path}: expected at most {limit:,} bytes, got more.{hint}")
            yield chunk


def read_bytes(path: Path, max_bytes: int | None = None) -> bytes:
    """Return the bytes of a file, as ``read_chunks`` yields them."""
    return b"".join(read_chunks(path, max_bytes))


def read_idx(path: Path, ndim: int) -> NDArray[Any]:
    """Return the array of an idx file with ``ndim`` dimensions, without decompressing more than its header declares.

    Source: LeCun, Cortes and Burges, "The MNIST database of handwritten digits": two zero bytes, the dtype, the number
    of dimensions, the sizes as big-endian 32-bit integers, the values.
    """
    with open_decompressed(path) as file:
        head = file.read(4 + 4 * ndim)
        if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in IDX_DTYPES or head[3] != ndim:
            raise ValueError(
                f"{path}: expected an idx file of {ndim} dimensions, which starts with 00 00 08 {ndim:02x} or a "
                f"different dtype, got {head[:4].hex(' ') or 'nothing'}."
            )
        dtype = np.dtype(IDX_DTYPES[head[2]])
        shape = tuple(int.from_bytes(head[i : i + 4]) for i in range(4, 4 + 4 * ndim, 4))
        expected = math.prod(shape) * dtype.itemsize
        if expected > max_file_bytes():
            raise ValueError(
                f"{path}: expected at most {max_file_bytes():,} bytes, got a header {shape} that declares "
                f"{expected:,}.{LIMIT_HINT}"
            )
        data = read_up_to(file, expected)
    if len(head) < 4 + 4 * ndim or len(data) != expected:
        more = " or more" if len(data) > expected else ""
        raise ValueError(
            f"{path}: expected {4 + 4 * ndim + expected} bytes, as the header {shape} declares, got "
            f"{len(head) + len(data)}{more}. The file is damaged."
        )
    return np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def read_csv(path: Path, columns: int, dtype: DTypeLike, skip: int = 0) -> NDArray[Any]:
    """Return the values (n, columns) of a .csv or .csv.gz file, without the first ``skip`` lines."""
    data = read_bytes(path, MAX_CSV_BYTES)
    try:
        table = np.loadtxt(data.decode("ascii").splitlines()[skip:], dtype, delimiter=",", ndmin=2)
    except ValueError as error:
        raise ValueError(f"{path}: expected a numeric table: {error}") from error
    if table.shape[1] != columns or not table.size:
        raise ValueError(f"{path}: expected {columns} columns, got a table {table.shape}.")
    return table


class BoundedReader:
    """An open file that raises ValueError when it is read beyond ``max_bytes``."""

    def __init__(self, file: IO[bytes], max_bytes: int) -> None:
        self.file, self.max_bytes = file, max_bytes
        self.tell = file.tell

    def read(self, size: int) -> bytes:
        """Return ``size`` bytes, or fewer at the end."""
        self._check(self.tell() + size)
        return self.file.read(size)

    def seek(self, offset: int) -> int:
        """Move to an offset."""
        self._check(offset)
        return self.file.seek(offset)

    def _check(self, offset: int) -> None:
        if offset > self.max_bytes:
            raise ValueError(f"expected at most {self.max_bytes:,} bytes, got more")


def read_tar(path: Path, names: Sequence[str], max_bytes: int) -> list[bytes]:
    """Return the bytes of members of a .tar.gz, each of at most ``max_bytes``, without extracting files to disk.

    Raise ValueError when a limit is exceeded, before more is decompressed.
    """
    contents: dict[str, bytes] = {}
    others: list[str] = []
    with open_decompressed(path) as file:
        reader: Any = BoundedReader(file, (len(names) + 1) * max_bytes)
        try:
            with tarfile.open(fileobj=reader, mode="r:") as archive:
                for count, member in enumerate(archive):
                    if count == MAX_TAR_MEMBERS:
                        raise ValueError(f"expected at most {MAX_TAR_MEMBERS} members, got more")
                    name = Path(member.name).name
                    if not member.isfile() or name not in names:
                        others += [name] * member.isfile()
                        continue
                    if member.size > max_bytes:
                        raise ValueError(f"{name}: expected at most {max_bytes:,} bytes, got {member.size:,}")
                    part: Any = archive.extractfile(member)
                    contents[name] = part.read()
            while reader.read(CHUNK_BYTES):  # read to the end, so that gzip verifies the checksum
                pass
        except Exception as error:  # tarfile raises many types of exceptions for damaged files
            raise ValueError(f"{path}: expected a complete .tar.gz file: {printable(error)}") from error
    if missing := [name for name in names if name not in contents]:
        got = truncate_message(printable(", ".join(sorted([*contents, *others])))) or "nothing"
        raise ValueError(f"{path}: expected {', '.join(missing)} in the archive, got {got}.")
    return [contents[name] for name in names]


def parse_cifar10(label: str, data: bytes) -> tuple[Bytes, NDArray[np.int64]]:
    """Return the images (n, 3072) and labels (n,) of a file of CIFAR-10's binary version.

    Source: Krizhevsky, "The CIFAR-10 dataset", binary version: records of 3,073 bytes, the label first.
    """
    if not data or len(data) % CIFAR10_RECORD_BYTES:
        raise ValueError(f"{label}: expected a multiple of {CIFAR10_RECORD_BYTES} bytes, got {len(data)}.")
    records = np.frombuffer(data, np.uint8).reshape(-1, CIFAR10_RECORD_BYTES)
    return records[:, 1:], records[:, 0].astype(np.int64)


def check_images(label: str, images: NDArray[Any], labels: NDArray[Any], nclass: int, max_value: float = 255) -> None:
    """Raise ValueError unless images have values from 0 to ``max_value``, and each has a label from 0 to nclass - 1."""
    if len(images) != len(labels) or not images.size:
        raise ValueError(
            f"{label}: expected a label for each image, got {len(images)} images and {len(labels)} labels."
        )
    if not np.isin(labels, np.arange(nclass)).all():
        raise ValueError(f"{label}: expected labels from 0 to {nclass - 1}, got {labels.min()} to {labels.max()}.")
    low, high = images.min(), images.max()
    if not (low >= 0 and high <= max_value):  # negated, so that NaN fails too
        raise ValueError(f"{label}: expected values from 0 to {max_value}, got {low} to {high}.")


# --- search for files ----------------------------------------------------------------------------------------------


def find_files(
    name: str,
    choices: Sequence[Sequence[str]],
    path: str | Path | None = None,
    locations: Sequence[SearchLocation] = (),
    urls: dict[str, str] | None = None,
) -> list[Path]:
    """Return the paths of the files of a data set, each of which may be a .gz, from the first complete location.

    ``choices``: alternative lists of files; one complete list is sufficient. ``path``: a folder, or a file if a list
    consists of a single file; no other location is searched, unless ``path`` is None or empty. ``urls``: maps the URL
    of each file to its SHA-256. Raise FileNotFoundError that lists every location searched, with the commands that
    install the files.
    """
    expected = ", or ".join(", ".join(files) for files in choices)
    if path not in (None, ""):
        path = Path(path)
        files = [path] if path.is_file() and min(map(len, choices)) == 1 else _find_all(path, choices)
        if files is None:
            missing = [file for file in choices[-1] if not _find_file(path, file)]
            got = "does not exist" if not path.exists() else f"has no {', '.join(missing)}"
            raise FileNotFoundError(f"{name}: expected {expected}, optionally as .gz; {path} {got}")
        return files
    home = os.environ.get("NEONLITE_DATA")
    data_dir = Path(home) / name if home else None
    searched = []
    first = (data_dir, "$NEONLITE_DATA, not set", f"export NEONLITE_DATA=folder, with the files in folder/{name}/")
    for folder, label, hint in (first, *locations):
        files = None if folder is None else _find_all(folder, choices)
        if files is not None:
            return files
        searched.append(f"{folder or label}: {hint}")
    try:
        if urls:
            return _download(data_dir or name, urls)
    except (ImportError, OSError, ValueError) as error:
        searched.append(f"{next(iter(urls or ()))}: {truncate_message(error)}")
    lines = "\n  ".join([*searched, f"{name}(path=folder): the folder of the files"])
    raise FileNotFoundError(f"{name}: expected {expected}, found in none of these locations:\n  {lines}")


def _find_file(folder: Path, file: str) -> Path | None:
    """Return the path of a file, or of its .gz, in a folder; None if the folder has neither."""
    return next((path for path in (folder / file, folder / f"{file}.gz") if path.is_file()), None)


def _find_all(folder: Path, choices: Sequence[Sequence[str]]) -> list[Path] | None:
    """Return the paths of the files of the first list that is complete in a folder; None if no list is."""
    for files in choices:
        paths = [path for path in (_find_file(folder, file) for file in files) if path is not None]
        if len(paths) == len(files):
            return paths
    return None


def _download(target: Path | str, urls: dict[str, str]) -> list[Path]:
    """Download files to a folder, or to a subfolder of the user's cache, and return their paths."""
    try:
        import pooch
    except ImportError as error:
        raise ImportError('pip install "neonlite[datasets]" to download it') from error
    folder = target if isinstance(target, Path) else Path(pooch.os_cache("neonlite")) / target
    return [
        Path(pooch.retrieve(url, f"sha256:{sha256}", url.rsplit("/", 1)[1], folder)) for url, sha256 in urls.items()
    ]


# --- HDF5Iterator: minibatches read from an HDF5 file by a background thread ---


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
