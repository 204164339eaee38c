"""Readers for data files: gzip, idx, CSV, tar and CIFAR-10 binary records.

The readers validate the content and never execute it. Invalid content raises a ValueError that names the file.
"""

from __future__ import annotations

import gzip
import math
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from neonlite.files import max_file_bytes, open_input, printable
from neonlite.messages import truncate_message

Bytes = NDArray[np.uint8]
IDX_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}  # by third byte of the file
CIFAR10_RECORD_BYTES = 1 + 3 * 32 * 32  # the label, then the red, green and blue channels
MAX_CIFAR10_BYTES = 10_000 * CIFAR10_RECORD_BYTES  # a file has 10,000 images
MAX_CSV_BYTES = 1 << 26  # the largest table, mnist_5k.csv, has 5,000 rows of 785 values
MAX_TAR_MEMBERS = 1000
CHUNK_BYTES = 1 << 20  # bytes decompressed at a time
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
