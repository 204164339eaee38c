"""How is a file read?  Formats that data sets come in, each checked; nothing in a file is ever run.

Every error is a ValueError that names the file.
"""

from __future__ import annotations

import gzip
import math
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
IDX = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}  # an idx file's third byte
RECORD = 1 + 3 * 32 * 32  # bytes of an image of CIFAR-10: its label, then red, green and blue


def content(path: Path) -> bytes:
    """Return the bytes of a file, unpacked when it is a .gz."""
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        return gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is no whole .gz file: {error}") from error


def read_idx(path: Path, ndim: int) -> NDArray[Any]:
    """Return the array of an idx file, which has ``ndim`` dimensions.

    Source: LeCun, Cortes and Burges, "The MNIST database of handwritten digits": two zero bytes, a type, the number of
    dimensions, the sizes as big-endian 32-bit numbers, the values.
    """
    data = content(path)
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in IDX or data[3] != ndim:
        raise ValueError(
            f"{path} is no idx file of {ndim} dimensions: it begins with {data[:4].hex(' ') or 'nothing'}, "
            f"not with 00 00 08 {ndim:02x} or another type"
        )
    dtype, head = np.dtype(IDX[data[2]]), 4 + 4 * ndim
    shape = tuple(int.from_bytes(data[i : i + 4]) for i in range(4, head, 4))
    expected = head + math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise ValueError(f"{path} is damaged: {len(data)} bytes, where its header, {shape}, says {expected}")
    return np.frombuffer(data, dtype, offset=head).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def read_numbers(path: Path, columns: int, dtype: Any, skip: int = 0) -> NDArray[Any]:
    """Return the numbers of a .csv or .csv.gz file: (n, columns), without the first ``skip`` lines."""
    try:
        lines = content(path).decode("ascii").splitlines()[skip:]
        numbers = np.loadtxt(lines, dtype, delimiter=",", ndmin=2)
    except ValueError as error:
        raise ValueError(f"{path} is no table of numbers: {error}") from error
    if numbers.shape[1] != columns or not numbers.size:
        raise ValueError(f"{path} has {columns} columns of numbers; got {numbers.shape}")
    return numbers


def read_tar(path: Path, names: Sequence[str]) -> list[bytes]:
    """Return the bytes of some files of a .tar.gz, which is read and never unpacked to the disk."""
    try:
        with tarfile.open(path) as archive:
            found = {Path(member.name).name: member for member in archive if member.isfile()}
            absent = [name for name in names if name not in found]
            if absent:
                raise ValueError(f"{path} has no {', '.join(absent)}; it has {', '.join(sorted(found)) or 'nothing'}")
            files = [archive.extractfile(found[name]) for name in names]
            return [file.read() for file in files if file is not None]
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise ValueError(f"{path} is no whole .tar.gz file: {error}") from error


def cifar_records(where: str, data: bytes) -> tuple[Bytes, NDArray[np.int64]]:
    """Return images (n, 3072) and labels (n,) of a file of CIFAR-10's binary version.

    Source: Krizhevsky, "The CIFAR-10 dataset", binary version: records of 3,073 bytes, the label first.
    """
    if not data or len(data) % RECORD:
        raise ValueError(f"{where} is no whole file of CIFAR-10: {len(data)} bytes are no multiple of {RECORD}")
    records = np.frombuffer(data, np.uint8).reshape(-1, RECORD)
    return records[:, 1:], records[:, 0].astype(np.int64)


def check_images(where: str, images: NDArray[Any], labels: NDArray[Any], nclass: int) -> None:
    """Raise ValueError unless there is a label for each image, and each is a class."""
    if len(images) != len(labels) or not len(images):
        raise ValueError(f"{where}: {len(images)} images and {len(labels)} labels")
    if labels.min() < 0 or labels.max() >= nclass:
        raise ValueError(f"{where}: labels are 0 to {nclass - 1}; got {labels.min()} to {labels.max()}")
