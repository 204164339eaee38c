"""How do sentences become rows of one length?  Cleaned, numbered, and padded: to be judged as a whole."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neonlite.data.order import permutation
from neonlite.data.sequences import whole


def clean_string(text: str) -> str:
    """Return a sentence in lower case, with punctuation and endings such as 's as words of their own.

    Other characters than letters, digits and ( ) , ! ? ' ` become spaces.
    Source: Kim, "Convolutional Neural Networks for Sentence Classification", 2014, its preprocessing.

    >>> clean_string("It's fine; isn't it?")
    "it 's fine is n't it ?"
    """
    text = re.sub(r"[^A-Za-z0-9(),!?'`]", " ", text)
    text = re.sub(r"('s|'ve|n't|'re|'d|'ll)\b|([(),!?])", r" \1\2 ", text)
    return " ".join(text.split()).lower()


def pad_sentences(
    sentences: Sequence[Any],
    sentence_length: int | None = None,
    dtype: Any = np.int32,
    pad_val: float = 0,
    pad_from: str = "left",
) -> NDArray[Any]:
    """Return sentences of ids as an array (n, sentence_length), padded on the left, or the "right".

    Of one that is longer the last ids are kept, or with "right" the first. The length is the longest's unless given.

    >>> pad_sentences([[5, 6], [7, 8, 9, 10]], 3).tolist()
    [[0, 5, 6], [8, 9, 10]]
    """
    if pad_from not in ("left", "right"):
        raise ValueError(f'pad_sentences: pad_from is "left" or "right"; got {pad_from!r}')
    if sentence_length is None:
        sentence_length = max(map(len, sentences), default=0)
    whole("pad_sentences", sentence_length=sentence_length)
    padded = np.full((len(sentences), sentence_length), pad_val, dtype)
    for row, sentence in zip(padded, sentences, strict=True):
        if pad_from == "right":
            row[: len(sentence)] = sentence[:sentence_length]
        elif len(sentence):
            row[-len(sentence) :] = sentence[-sentence_length:]
    return padded


def get_paddedXY(
    X: Sequence[Sequence[int]],
    y: Any,
    vocab_size: int | None = 20_000,
    sentence_length: int = 100,
    oov: int | None = 2,
    start: int | None = 1,
    index_from: int = 3,
    seed: int = 113,
    shuffle: bool = True,
) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Return sentences of ids, the most frequent word first, as (n, sentence_length), and their labels (n, 1).

    Each id is raised by ``index_from``; ``start`` is put before each sentence, and ids from vocab_size on become
    ``oov``, or without one are left out. 0 pads on the left. ``shuffle``: in the random order of ``seed``.
    """
    labels = np.asarray(y).reshape(-1, 1)
    if len(X) != len(labels) or not len(labels):
        raise ValueError(f"get_paddedXY: as many labels as sentences, one at least; got {len(X)} and {len(labels)}")
    order = permutation(seed, 0, len(labels)) if shuffle else np.arange(len(labels))
    made = []
    for i in order:
        ids = [word + index_from for word in X[i]]
        if any(word < index_from for word in ids):
            raise ValueError(f"get_paddedXY: words are whole numbers from 0; sentence {i} has {min(X[i])}")
        if start is not None:
            ids = [start, *ids]
        if vocab_size is not None:
            known = [word if word < vocab_size else oov for word in ids]
            ids = [word for word in known if word is not None]
        made.append(ids)
    return pad_sentences(made, sentence_length), labels[order]


def pad_data(
    X: Sequence[Sequence[int]], y: Any, test_split: float = 0.2, **options: Any
) -> tuple[tuple[NDArray[np.int32], NDArray[Any]], tuple[NDArray[np.int32], NDArray[Any]], int]:
    """Return (X_train, y_train), (X_test, y_test) and the number of classes; ``options``: those of get_paddedXY."""
    padded, labels = get_paddedXY(X, y, **options)
    if not 0 < test_split < 1:
        raise ValueError(f"pad_data: test_split is a fraction between 0 and 1; got {test_split!r}")
    cut = round(len(labels) * (1 - test_split))
    return (padded[:cut], labels[:cut]), (padded[cut:], labels[cut:]), int(labels.max()) + 1
