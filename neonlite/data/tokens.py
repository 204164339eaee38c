"""Tokenizers, and conversion between tokens and token ids."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from neonlite.backend.validation import check_number
from neonlite.data.file_formats import read_bytes

if TYPE_CHECKING:
    from neonlite.typing import ArrayLike

TokenIds = NDArray[np.int32]
Tokenizer = Callable[[str], Sequence[str]]

UNK, EOS, PAD = "<unk>", "<eos>", "<pad>"


# --- texts ---------------------------------------------------------------------------------------------------------


def read_text(path: str | Path) -> str:
    r"""Return the text of a UTF-8 file, which may be a .gz; \r\n becomes \n.

    Raise FileNotFoundError if it does not exist, and ValueError if it is empty or not UTF-8.
    """
    path = Path(path)
    if not path.is_file():
        state = "which is a folder" if path.is_dir() else "which does not exist"
        raise FileNotFoundError(f"read_text: expected a text file, got {path}, {state}")
    try:
        text = read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"read_text: expected {path} in UTF-8, got byte 0x{error.object[error.start]:02x} at offset {error.start}: "
            f"{error.reason}. Save a copy in UTF-8, or pass the text to Text, decoded with its encoding: "
            f"text=Path({str(path)!r}).read_text(encoding='latin-1')"
        ) from None
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if not text:
        raise ValueError(f"read_text: expected a text, got the empty file {path}")
    return text


def split_text(name: str, text: str, valid_split: float) -> tuple[str, str]:
    """Split a text into two parts; the second has about the fraction ``valid_split`` of the characters.

    The first part ends with white space if there is any among its last 100 characters.
    """
    check_number(f"{name}: valid_split", valid_split, above=0, high=1)
    cut = len(text) - round(len(text) * valid_split)
    if not 0 < cut < len(text):
        raise ValueError(
            f"{name}: expected a fraction that splits {len(text)} characters into two nonempty parts for "
            f"valid_split, got {valid_split!r}"
        )
    cut = max(text.rfind(space, max(cut - 100, 0), cut) for space in " \n") + 1 or cut
    return text[:cut], text[cut:]


# --- tokens --------------------------------------------------------------------------------------------------------


def characters(text: str) -> list[str]:
    """Return the characters of a text."""
    return list(text)


def words(text: str) -> list[str]:
    """Return the words and the punctuation marks of a text, without white space.

    >>> words("It's late, isn't it?")
    ["It's", 'late', ',', "isn't", 'it', '?']
    """
    return re.findall(r"\w+(?:['’]\w+)*|[^\w\s]", text)


def newline_tokenizer(text: str) -> list[str]:
    r"""Split a text at white space, and replace each newline by <eos>, as is usual for the Penn Treebank.

    >>> newline_tokenizer("a <unk> b\nc\n")
    ['a', '<unk>', 'b', '<eos>', 'c', '<eos>']
    """
    return text.replace("\n", f" {EOS} ").split()


TOKENIZERS: dict[str, Tokenizer] = {f.__name__: f for f in (characters, words, newline_tokenizer)}
"""The tokenizers by name."""


def get_tokenizer(tokenizer: str | Tokenizer | None) -> Tokenizer:
    """Return the tokenizer for a name, a function, or None, which selects ``characters``."""
    if tokenizer is None:
        return characters
    if callable(tokenizer):
        return tokenizer
    if tokenizer not in TOKENIZERS:
        raise ValueError(
            f"expected as tokenizer one of {', '.join(map(repr, TOKENIZERS))}, or a function that returns the "
            f"tokens of a text, got {tokenizer!r}"
        )
    return TOKENIZERS[tokenizer]


def join_tokens(tokens: Iterable[str], tokenizer: str | Tokenizer | None) -> str:
    """Join tokens into a text: characters directly, other tokens with spaces."""
    return ("" if get_tokenizer(tokenizer) is characters else " ").join(tokens)


# --- token ids ----------------------------------------------------------------------------------------------------


def tokens_to_ids(name: str, tokens: Sequence[str], index: Mapping[str, int]) -> TokenIds:
    """Return the id of each token; an unknown token becomes <unk>. Raise IndexError if there is no <unk>."""
    try:
        return np.fromiter(map(index.__getitem__, tokens), np.int32, len(tokens))
    except KeyError as error:
        unknown = index.get(UNK)
        if unknown is None:
            raise IndexError(
                f"{name}: expected tokens of the vocabulary of {len(index)} tokens, got {error.args[0]!r}. Create the "
                f"vocabulary from all texts, vocab=sorted(set(...)), or add {UNK!r} to it"
            ) from None
        return np.fromiter((index.get(token, unknown) for token in tokens), np.int32, len(tokens))


def ids_to_tokens(name: str, ids: ArrayLike, vocab: Sequence[str]) -> list[str]:
    """Return the tokens of ids. Raise IndexError for an id that is not in the vocabulary."""
    flat = np.asarray(ids).reshape(-1)
    is_invalid = (flat < 0) | (flat >= len(vocab)) | (flat != np.floor(flat))
    if is_invalid.any():
        i = int(is_invalid.argmax())
        raise IndexError(f"{name}: expected token ids from 0 to {len(vocab) - 1}, got {flat[i]} at index {i}")
    return [vocab[int(i)] for i in flat]
