"""Write small files of data sets in their original formats: MNIST images, IMDB reviews."""

from __future__ import annotations

import gzip
import io
import tarfile

import numpy as np

MNIST_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx(array):
    sizes = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return (
        bytes([0, 0, {"uint8": 8, "int32": 12}[array.dtype.name], array.ndim])
        + sizes
        + array.astype(array.dtype.newbyteorder(">")).tobytes()
    )


def write_images(folder, compressed=False, rng=None):
    """Write four small files as MNIST has them, and return the arrays."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    shapes = [(20, 5, 4), (20,), (6, 5, 4), (6,)]
    arrays = [rng.integers(0, 256 if len(s) == 3 else 10, s, dtype=np.uint8) for s in shapes]
    for name, array in zip(MNIST_FILES, arrays, strict=True):
        data = idx(array)
        (folder / (f"{name}.gz" if compressed else name)).write_bytes(gzip.compress(data) if compressed else data)
    return arrays


def write_reviews(folder):
    texts_of = {"train/pos": ["A great, great film!", "great<br />fun"], "train/neg": ["Not a film. Bad"]}
    texts_of |= {"test/pos": ["great film"], "test/neg": ["awful film"]}
    for name, texts in texts_of.items():
        (folder / name).mkdir(parents=True)
        for i, text in enumerate(texts):
            (folder / name / f"{i}_5.txt").write_text(text)


PARTS = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]


def write_cifar(folder, change=None):
    """Write small files of CIFAR-10 in a folder and in an archive; return records (6, 3, 3073)."""
    rng = np.random.default_rng(0)
    records = rng.integers(0, 256, (6, 3, 3073), dtype=np.uint8)
    records[:, :, 0] %= 10
    (folder / "plain").mkdir()
    with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as archive:
        for name, part in zip(PARTS, records, strict=True):
            data = part.tobytes()
            (folder / "plain" / name).write_bytes(data)
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return records
