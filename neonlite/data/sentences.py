"""Clean, index and pad sentences for classification."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from neonlite.backend.validation import check_number, integer, one_of
from neonlite.data.epoch import permutation

if TYPE_CHECKING:
    from neonlite.typing import ArrayLike


def clean_string(text: str) -> str:
    """Convert a sentence to lower case and separate punctuation and endings such as 's by spaces.

    Characters other than letters, digits and ( ) , ! ? ' ` become spaces.

    Parameters
    ----------
    text : str
        The sentence.

    Returns
    -------
    str
        The cleaned sentence.

    References
    ----------
    Kim, "Convolutional Neural Networks for Sentence Classification", 2014, its preprocessing.

    Examples
    --------
    >>> clean_string("It's fine; isn't it?")
    "it 's fine is n't it ?"
    """
    text = re.sub(r"[^A-Za-z0-9(),!?'`]", " ", text)
    text = re.sub(r"('s|'ve|n't|'re|'d|'ll)\b|([(),!?])", r" \1\2 ", text)
    return " ".join(text.split()).lower()


def pad_sentences(
    sentences: Sequence[Sequence[float] | NDArray[Any]],
    sentence_length: int | None = None,
    dtype: DTypeLike = np.int32,
    pad_val: float = 0,
    pad_from: str = "left",
) -> NDArray[Any]:
    """Pad sentences of token ids to one length.

    Parameters
    ----------
    sentences : sequence of sequences of int
        n sentences.
    sentence_length : int, optional
        Length of the rows (default: that of the longest sentence). Longer sentences are truncated: their first ids are
        removed, or their last ids with ``pad_from="right"``.
    dtype : dtype
        Dtype of the result.
    pad_val : float
        Value of the padding.
    pad_from : str
        "left" or "right": the side to pad and truncate.

    Returns
    -------
    ndarray
        (n, sentence_length).

    Examples
    --------
    >>> pad_sentences([[5, 6], [7, 8, 9, 10]], 3).tolist()
    [[0, 5, 6], [8, 9, 10]]
    """
    one_of("pad_sentences: pad_from", pad_from, ("left", "right"))
    if sentence_length is None:
        sentence_length = max(map(len, sentences), default=0)
    sentence_length = integer("pad_sentences: sentence_length", sentence_length)
    padded = np.full((len(sentences), sentence_length), pad_val, dtype)
    for row, sentence in zip(padded, sentences, strict=True):
        if pad_from == "right":
            row[: len(sentence)] = sentence[:sentence_length]
        elif len(sentence):
            row[-len(sentence) :] = sentence[-sentence_length:]
    return padded


def get_paddedXY(
    X: Sequence[Sequence[int]],
    y: ArrayLike,
    vocab_size: int | None = 20_000,
    sentence_length: int = 100,
    oov: int | None = 2,
    start: int | None = 1,
    index_from: int = 3,
    seed: int = 113,
    shuffle: bool = True,
) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Offset, truncate and pad sentences of token ids, which are the ranks of words by decreasing frequency.

    Parameters
    ----------
    X : sequence of sequences of int
        n sentences of non-negative token ids.
    y : array-like
        n labels.
    vocab_size : int, optional
        Ids >= vocab_size, after adding ``index_from``, are out of vocabulary; None for no limit.
    sentence_length : int
        Length of the rows; padding on the left is 0.
    oov : int, optional
        Id that replaces out-of-vocabulary ids; None removes them.
    start : int, optional
        Id to insert before each sentence; None for no id.
    index_from : int
        Offset added to each id.
    seed : int
        Seed of the random order.
    shuffle : bool
        Whether to shuffle the sentences.

    Returns
    -------
    sentences : ndarray
        (n, sentence_length).
    labels : ndarray
        (n, 1).
    """
    labels = np.asarray(y).reshape(-1, 1)
    if len(X) != len(labels) or not len(labels):
        raise ValueError(
            f"get_paddedXY: expected as many sentences as labels, at least one, got {len(X)} and {len(labels)}"
        )
    order = permutation(seed, 0, len(labels)) if shuffle else np.arange(len(labels))
    rows = []
    for i in order:
        ids = [word + index_from for word in X[i]]
        if any(word < index_from for word in ids):
            raise ValueError(f"get_paddedXY: expected non-negative token ids, got {min(X[i])} in sentence {i}")
        if start is not None:
            ids = [start, *ids]
        if vocab_size is not None:
            in_vocab = [word if word < vocab_size else oov for word in ids]
            ids = [word for word in in_vocab if word is not None]
        rows.append(ids)
    return pad_sentences(rows, sentence_length), labels[order]


def pad_data(
    X: Sequence[Sequence[int]], y: ArrayLike, test_split: float = 0.2, **options: object
) -> tuple[tuple[NDArray[np.int32], NDArray[Any]], tuple[NDArray[np.int32], NDArray[Any]], int]:
    """Pad sentences with ``get_paddedXY``, and split them into a training and a test set.

    Parameters
    ----------
    X : sequence of sequences of int
        Sentences of token ids.
    y : array-like
        Labels.
    test_split : float
        Fraction of the sentences in the test set.
    **options
        Passed to ``get_paddedXY``.

    Returns
    -------
    tuple
        (X_train, y_train), (X_test, y_test), and the number of classes.
    """
    padded, labels = get_paddedXY(X, y, **cast(dict[str, Any], options))
    check_number("pad_data: test_split", test_split, above=0, high=1)
    split_index = round(len(labels) * (1 - test_split))
    return (
        (padded[:split_index], labels[:split_index]),
        (padded[split_index:], labels[split_index:]),
        int(labels.max()) + 1,
    )
