"""How does a text become numbers?  Read from a file, cut into tokens, each of which has a number in a vocabulary."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neonlite.data.formats import content

Ids = NDArray[np.int32]
Tokenizer = Callable[[str], Sequence[str]]

UNK, EOS, PAD = "<unk>", "<eos>", "<pad>"


# --- texts ---------------------------------------------------------------------------------------------------------


def read_text(path: Any) -> str:
    r"""Return the text of a UTF-8 file, which may be a .gz; \r\n becomes \n.

    FileNotFoundError when there is none; ValueError when it is empty, or not UTF-8, with the place of the first byte.
    """
    path = Path(path)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f"a text comes from a file; {path} {what}")
    try:
        text = content(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}, {error.reason}. What it is "
            f"in, you may know: Text takes text=Path({str(path)!r}).read_text(encoding='latin-1'), and everything a "
            "copy that was saved in UTF-8"
        ) from None
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if not text:
        raise ValueError(f"{path} is empty")
    return text


def split_text(name: str, text: str, valid_split: float) -> tuple[str, str]:
    """Return a text in two parts, of which the second has about the given fraction of characters: no word is cut."""
    real = isinstance(valid_split, int | float) and not isinstance(valid_split, bool)
    cut = len(text) - round(len(text) * valid_split) if real and 0 < valid_split < 1 else 0
    if not 0 < cut < len(text):
        raise ValueError(
            f"{name}: valid_split is a fraction between 0 and 1 that leaves characters on both sides of "
            f"{len(text)}; got {valid_split!r}"
        )
    cut = max(text.rfind(space, max(cut - 100, 0), cut) for space in " \n") + 1 or cut
    return text[:cut], text[cut:]


# --- tokens --------------------------------------------------------------------------------------------------------


def characters(text: str) -> list[str]:
    """Return the characters of a text."""
    return list(text)


def words(text: str) -> list[str]:
    """Return the words of a text, and its punctuation marks each by itself; white space only parts them.

    >>> words("It's late, isn't it?")
    ["It's", 'late', ',', "isn't", 'it', '?']
    """
    return re.findall(r"\w+(?:['’]\w+)*|[^\w\s]", text)


def newline_tokenizer(text: str) -> list[str]:
    r"""Return what white space parts, with <eos> at the end of each line: for files such as the Penn Treebank's.

    >>> newline_tokenizer("a <unk> b\nc\n")
    ['a', '<unk>', 'b', '<eos>', 'c', '<eos>']
    """
    return text.replace("\n", f" {EOS} ").split()


TOKENIZERS: dict[str, Tokenizer] = {f.__name__: f for f in (characters, words, newline_tokenizer)}
"""The tokenizers by name."""


def tokenizer_of(tokenizer: Any) -> Tokenizer:
    """Return a tokenizer, given itself, its name, or None for characters. ValueError for another name."""
    if tokenizer is None:
        return characters
    if callable(tokenizer):
        found: Tokenizer = tokenizer
        return found
    if tokenizer not in TOKENIZERS:
        raise ValueError(
            f"a tokenizer is one of {', '.join(map(repr, TOKENIZERS))}, or a function of a text that returns its "
            f"tokens; got {tokenizer!r}"
        )
    return TOKENIZERS[tokenizer]


def joined(tokens: Iterable[str], tokenizer: Any) -> str:
    """Return tokens as a text."""
    return ("" if tokenizer_of(tokenizer) is characters else " ").join(tokens)


# --- their numbers -------------------------------------------------------------------------------------------------


def ids_of(name: str, tokens: Sequence[str], index: Mapping[str, int]) -> Ids:
    """Return the number of each token. One that has none is <unk> where the vocabulary has that, else IndexError."""
    try:
        return np.fromiter(map(index.__getitem__, tokens), np.int32, len(tokens))
    except KeyError as error:
        unknown = index.get(UNK)
        if unknown is None:
            raise IndexError(
                f"{name}: {error.args[0]!r} is not in the vocabulary of {len(index)} tokens, and it has no "
                f"{UNK!r}: make it of all texts, vocab=sorted(set(...)), or with {UNK!r} among them"
            ) from None
        return np.fromiter((index.get(token, unknown) for token in tokens), np.int32, len(tokens))


def tokens_of(name: str, ids: Any, vocab: Sequence[str]) -> list[str]:
    """Return the tokens of numbers. IndexError for one that is not in the vocabulary."""
    numbers = np.asarray(ids).reshape(-1)
    wrong = (numbers < 0) | (numbers >= len(vocab)) | (numbers != np.floor(numbers))
    if wrong.any():
        at = int(wrong.argmax())
        raise IndexError(f"{name}: tokens are 0 to {len(vocab) - 1}; got {numbers[at]} at place {at}")
    return [vocab[int(i)] for i in numbers]
