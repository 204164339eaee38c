"""Data sets with neon's class names and arguments: MNIST, CIFAR10 and IMDB."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np

from neonlite.backend.validation import check_number, checks_arguments, integer
from neonlite.data.datasets import Array, Dataset, cifar10, mnist
from neonlite.data.sentences import clean_string, get_paddedXY
from neonlite.data.tokens import read_text

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
