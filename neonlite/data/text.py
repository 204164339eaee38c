"""Text: tokenizers, minibatches for language modeling and translation, and sentences for classification."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from neonlite.backend import Tensor, validation
from neonlite.data import file_formats, iterator, minibatches, sequences
from neonlite.files import write_atomic
from neonlite.messages import describe, truncate_message
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
        text = file_formats.read_bytes(path).decode("utf-8")
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
    validation.check_number(f"{name}: valid_split", valid_split, above=0, high=1)
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


# --- Text: minibatches of a text for language modeling, with the next tokens as targets ---


class Text(sequences.ContiguousIterator, sequences.TokenIterator):
    """Iterator over minibatches of a text for language modeling; the targets are the next tokens.

    The text is split into N contiguous parts, and the tokens are arranged as (N, nbatches, T). Sequence n of a
    minibatch continues sequence n of the previous one, as stateful recurrent layers expect. Inputs are one-hot
    (V, T * N) or token ids (1, T * N); targets are one-hot (V, T * N), for a vocabulary of V tokens.

    Parameters
    ----------
    time_steps : int
        Number of time steps T.
    path : path-like, optional
        A UTF-8 file, or a .gz of one.
    vocab : sequence of str, dict or set, optional
        The vocabulary, such as that of the training text (default: the sorted tokens of the text). Unknown tokens
        become <unk> if the vocabulary has it.
    tokenizer : str or callable, optional
        "characters" (default), "words", "newline_tokenizer", or a function from a text to its tokens.
    onehot_input : bool
        Whether inputs are one-hot; otherwise they are token ids, for a LookupTable.
    reverse_target : bool
        Whether targets are the input tokens in reverse order, instead of the next tokens.
    get_prev_target : bool
        Whether inputs are [x, previous], for an encoder and a decoder; previous is the target of the previous
        step, and in the first step zeros if one-hot, else id 0.
    text : str, optional
        The text itself, instead of ``path``.
    name : str, optional
        Name of the iterator.

    Raises
    ------
    FileNotFoundError
        If the file does not exist.
    IndexError
        For a token outside of a vocabulary without <unk>.
    ValueError
        If the file is empty or not UTF-8, or has fewer than N T + 1 tokens.

    Examples
    --------
    >>> import neonlite as nl
    >>> from neonlite.data import Text
    >>> be = nl.gen_backend("cpu", batch_size=1)
    >>> for x, t in Text(time_steps=4, text="she sells sea shells", onehot_input=False):
    ...     print(x.get().tolist(), t.get().argmax(axis=0).tolist())
    [[5, 3, 2, 0]] [3, 2, 0, 5]
    [[5, 2, 4, 4]] [2, 4, 4, 5]
    [[5, 0, 5, 2]] [0, 5, 2, 1]
    [[1, 0, 5, 3]] [0, 5, 3, 2]
    """

    unit = "tokens"

    def __init__(
        self,
        time_steps: int,
        path: str | Path | None = None,
        vocab: Iterable[str] | None = None,
        tokenizer: str | Tokenizer | None = None,
        onehot_input: bool = True,
        reverse_target: bool = False,
        get_prev_target: bool = False,
        text: str | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if path is not None and text is None:
            text = read_text(path)
        elif path is not None or text is None:
            raise ValueError(f"{self.name}: expected either path or text, got {'neither' if path is None else 'both'}")
        self.time_steps = self.seq_length = validation.integer(f"{self.name}: time_steps", time_steps)
        self.tokenizer = tokenizer
        self.onehot_input, self.reverse_target = bool(onehot_input), bool(reverse_target)
        self.get_prev_target = bool(get_prev_target)
        tokens = text if tokenizer is None else self.get_tokens(text, tokenizer)  # a string is a sequence of characters
        if not len(tokens):
            raise ValueError(
                f"{self.name}: expected tokens, got none in {path if path is not None else truncate_message(text)!r}"
            )
        self.vocab = self.get_vocab(tokens, vocab)
        self.nclass = self.nout = len(self.vocab)
        self.token_to_index = {token: i for i, token in enumerate(self.vocab)}
        self.index_to_token = dict(enumerate(self.vocab))
        self.token_ids = tokens_to_ids(self.name, tokens, self.token_to_index)
        self.length = len(self.token_ids) - 1
        self._create_buffers([self.nclass] * 3, onehot_input)
        if self.be.bsz:
            self._current_epoch()

    @staticmethod
    def get_tokens(text: str, tokenizer: str | Tokenizer | None = None) -> list[str]:
        """Return the tokens of a text.

        Parameters
        ----------
        text : str
            The text.
        tokenizer : str or callable, optional
            As for the constructor (default: characters).
        """
        return list(get_tokenizer(tokenizer)(text))

    @staticmethod
    def get_vocab(tokens: Iterable[str], vocab: Iterable[str] | None = None) -> list[str]:
        """Return a vocabulary: the sorted set of tokens, or ``vocab`` as a list.

        Parameters
        ----------
        tokens : iterable of str
            The tokens; unused if there is a ``vocab``.
        vocab : sequence of str, dict or set, optional
            A sequence keeps its order; a dict maps tokens to ids; a set is sorted.

        Raises
        ------
        ValueError
            If the vocabulary is empty, or if its tokens are not strings or not unique.
        """
        if vocab is None:
            return sorted(set(tokens))
        if not isinstance(vocab, Iterable) or not all(isinstance(token, str) for token in vocab):
            raise ValueError(f"expected a vocabulary of strings, got {describe(vocab)}")
        if isinstance(vocab, Mapping):
            if sorted(vocab.values()) != list(range(len(vocab))):
                raise ValueError(f"expected a vocabulary with the ids 0 to {len(vocab) - 1}, got {describe(vocab)}")
            result = sorted(vocab, key=vocab.__getitem__)
        else:
            result = sorted(vocab) if isinstance(vocab, set | frozenset) else list(vocab)
        if not result or len(set(result)) < len(result):
            raise ValueError(f"expected a vocabulary of at least one token, without duplicates, got {describe(vocab)}")
        return result

    @staticmethod
    def create_valid_file(path: str | Path, valid_split: float = 0.1) -> tuple[str, str]:
        """Split a text file into NAME_train.EXT and NAME_valid.EXT in the same folder, and return both paths.

        Parameters
        ----------
        path : path-like
            The text file.
        valid_split : float
            Fraction of the characters in the validation file; the text is split at white space if possible.
        """
        text = read_text(path)
        path = Path(path)
        parts = split_text(str(path), text, valid_split)
        files = [path.with_stem(f"{path.stem}_{part}") for part in ("train", "valid")]
        for file, part in zip(files, parts, strict=True):
            write_atomic(file, part.encode())
        return str(files[0]), str(files[1])

    def encode(self, text: str) -> TokenIds:
        """Return the token ids of a text.

        Parameters
        ----------
        text : str
            The text.

        Raises
        ------
        IndexError
            For a token outside of a vocabulary without <unk>.
        """
        return tokens_to_ids(self.name, self.get_tokens(text, self.tokenizer), self.token_to_index)

    def decode(self, ids: ArrayLike) -> str:
        """Return the text of token ids: characters are concatenated, other tokens are separated by spaces.

        Parameters
        ----------
        ids : array-like of int
            The token ids.

        Raises
        ------
        IndexError
            For an id outside of the vocabulary.
        """
        return join_tokens(ids_to_tokens(self.name, ids, self.vocab), self.tokenizer)

    @property
    def X(self) -> TokenIds:
        """The token ids of the inputs, (N, nbatches, T)."""
        return self._split(self.token_ids)

    @property
    def y(self) -> TokenIds:
        """The token ids of the targets, (N, nbatches, T)."""
        return self.X[:, :, ::-1] if self.reverse_target else self._split(self.token_ids[1:])

    def fill_minibatch(self, epoch: minibatches.Epoch, k: int, values: object) -> iterator.Minibatch:
        n = epoch.num_columns(k)
        every = slice(0, n)
        tokens = self.minibatch_slice(self.token_ids, epoch, k).T
        targets = tokens[::-1] if self.reverse_target else self.minibatch_slice(self.token_ids[1:], epoch, k).T
        x, t = (made.fill(n, [(every, ids)]) for made, ids in ((self._inputs, tokens), (self._targets, targets)))
        if self.get_prev_target:
            return [x, self._previous.fill(n, [(every, targets)], delay=1)], t
        return x, t


# --- TextNMT: minibatches of sentence pairs for machine translation ---


class TextNMT(sequences.TokenIterator):
    """Iterator over minibatches of sentences and their translations, read line by line from two files.

    Inputs are token ids (1, T * N), or one-hot (V, T * N). Targets are (t, mask): the one-hot translation, which ends
    with <eos>, and a mask (1, T * N), which is 1 where t is a token and 0 where it is padding. Sentences are padded on
    the left, translations on the right. The token id of padding is 0, <pad>; its one-hot columns are zero. Pairs that
    do not fit into T steps, or have an empty line, are skipped.

    Parameters
    ----------
    time_steps : int
        Number of time steps T.
    path : path-like, or two of them
        The two files, or the folder of the files DATASET.SPLIT.LANGUAGE (DATASET.LANGUAGE without ``split``).
    tokenizer : str or callable
        As for ``Text``.
    onehot_input : bool
        Whether inputs are one-hot; otherwise they are token ids, for a LookupTable.
    get_prev_target : bool
        Whether inputs are [x, previous], for an encoder and a decoder; previous is the target of the previous step.
    split : str, optional
        SPLIT in the names of the files, such as "train".
    dataset : str
        DATASET in the names of the files.
    subset_pct : float
        Percentage of the files to read, from the start.
    languages : tuple of str
        LANGUAGE in the names of the files of the sentences and of the translations.
    vocab : tuple of sequences of str, optional
        Two vocabularies that begin with <pad>, <eos>, <unk>, such as ``vocabs`` of the training set (default: these
        three, then the sorted tokens of the files). Unknown tokens become <unk>.
    shuffle : bool
        Whether to shuffle the pairs in each epoch.
    partial_last : bool
        Whether the last minibatch has only the remaining pairs, instead of being filled up.
    name : str, optional
        Name of the iterator.

    Attributes
    ----------
    num_skipped : int
        Number of skipped pairs.
    vocabs : list of list of str
        Both vocabularies.
    s_vocab, s_token_to_index, s_index_to_token
        Vocabulary of the sentences, and its mappings; likewise ``t_vocab`` and so on of the translations.

    Raises
    ------
    FileNotFoundError
        If a file does not exist.
    ValueError
        If files are empty, not UTF-8 or of different numbers of lines, or if all pairs are skipped.
    """

    def __init__(
        self,
        time_steps: int,
        path: str | Path | Sequence[str | Path],
        tokenizer: str | Tokenizer = "words",
        onehot_input: bool = False,
        get_prev_target: bool = False,
        split: str | None = None,
        dataset: str = "un2000",
        subset_pct: float = 100,
        languages: tuple[str, str] = ("en", "fr"),
        vocab: Sequence[Sequence[str]] | None = None,
        shuffle: bool = False,
        partial_last: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        validation.check_number(f"{self.name}: subset_pct", subset_pct, above=0, at_most=100)
        self.time_steps = self.seq_length = validation.integer(f"{self.name}: time_steps", time_steps)
        self.tokenizer = "words" if tokenizer is None else tokenizer
        self.onehot_input, self.get_prev_target = bool(onehot_input), bool(get_prev_target)
        self.shuffle, self.partial_last = bool(shuffle), bool(partial_last)
        self.seed = self.be.rng_seed if shuffle else None
        sentences = self._read_pairs(self._find_files(path, dataset, split, languages), subset_pct)
        if vocab is None:
            self.vocabs = [self._build_vocab(side) for side in sentences]
        else:
            self.vocabs = [Text.get_vocab((), tokens) for tokens in vocab]
            if len(self.vocabs) != 2 or any(tokens[:3] != [PAD, EOS, UNK] for tokens in self.vocabs):
                raise ValueError(
                    f"{self.name}: expected two vocabularies that begin with {PAD}, {EOS}, {UNK}, got others"
                )
        self.s_vocab, self.t_vocab = self.vocabs
        self.s_token_to_index, self.t_token_to_index = ({x: i for i, x in enumerate(v)} for v in self.vocabs)
        self.s_index_to_token, self.t_index_to_token = (dict(enumerate(v)) for v in self.vocabs)
        self.vocab, self.nclass = self.t_vocab, len(self.t_vocab)
        self.nout = self.nclass
        self.ndata = len(sentences[0])
        arrays, mask = self._encode_pairs(sentences)
        self.sources = [minibatches.RowSource(self.be, array, True) for array in arrays]
        self._mask_source = minibatches.RowSource(self.be, mask, True)
        self._create_buffers((len(self.s_vocab), self.nclass, self.nclass), onehot_input)
        self._mask = minibatches.MinibatchBuffers(self.be, (1, self.time_steps), f"{self.name}.mask")
        if self.be.bsz:
            self._current_epoch()

    def _find_files(
        self, path: str | Path | Sequence[str | Path], dataset: str, split: str | None, languages: tuple[str, str]
    ) -> list[Path]:
        """Return the paths of the two files."""
        if not isinstance(path, str | Path):
            if len(path) != 2:
                raise ValueError(f"{self.name}: expected path to be a folder or two files, got {len(path)} files")
            return [Path(file) for file in path]
        names = [".".join(filter(None, (dataset, split, language))) for language in languages]
        return file_formats.find_files(self.name, [names], path)

    def _read_pairs(self, files: list[Path], subset_pct: float) -> tuple[list[list[str]], list[list[str]]]:
        """Return the tokens of the sentences and of the translations, for the pairs that fit into T steps."""
        lines = [read_text(file).split("\n") for file in files]
        lines = [side[:-1] if side[-1] == "" else side for side in lines]
        if len(lines[0]) != len(lines[1]):
            counts = ", ".join(f"{file} has {len(side)}" for file, side in zip(files, lines, strict=True))
            raise ValueError(f"{self.name}: expected files of equally many lines, one translation per line; {counts}")
        split = get_tokenizer(self.tokenizer)
        count = max(1, int(len(lines[0]) * subset_pct / 100))
        pairs = [(split(a), split(b)) for a, b in zip(lines[0][:count], lines[1][:count], strict=True)]
        fitting = [(a, b) for a, b in pairs if a and b and len(a) <= self.time_steps and len(b) < self.time_steps]
        self.num_skipped = len(pairs) - len(fitting)
        if not fitting:
            raise ValueError(
                f"{self.name}: expected pairs that fit {self.time_steps} time steps, including {EOS} after the "
                f"translation, got none of {len(pairs)}. Use more time_steps"
            )
        return [list(a) for a, _ in fitting], [list(b) for _, b in fitting]

    @staticmethod
    def _build_vocab(sentences: Iterable[Iterable[str]]) -> list[str]:
        special = [PAD, EOS, UNK]
        return special + sorted(set().union(*sentences) - set(special))

    def _encode_pairs(
        self, sentences: tuple[list[list[str]], list[list[str]]]
    ) -> tuple[list[TokenIds], NDArray[np.uint8]]:
        """Return the token ids of inputs, previous targets and targets, and the mask, (n, T) each."""
        source, target = (
            [tokens_to_ids(self.name, sentence, index) for sentence in side]
            for side, index in zip(sentences, (self.s_token_to_index, self.t_token_to_index), strict=True)
        )
        x = pad_sentences(source, self.time_steps, pad_val=-1 if self.onehot_input else 0)
        with_eos = [np.append(ids, np.int32(1)) for ids in target]
        t = pad_sentences(with_eos, self.time_steps, pad_val=-1, pad_from="right")
        previous = t if self.onehot_input else np.maximum(t, 0)
        return [x, previous, t], (t >= 0).astype(np.uint8)

    def decode(self, ids: ArrayLike) -> str:
        """Return the text of a translation, up to the first <eos>.

        Parameters
        ----------
        ids : array-like of int
            Token ids of the translation.

        Raises
        ------
        IndexError
            For an id outside of the vocabulary.
        """
        tokens = ids_to_tokens(self.name, ids, self.vocab)
        end = tokens.index(EOS) if EOS in tokens else len(tokens)
        return join_tokens((token for token in tokens[:end] if token != PAD), self.tokenizer)

    def fill_minibatch(self, epoch: minibatches.Epoch, k: int, values: object) -> iterator.Minibatch:
        num_columns, spans = epoch.num_columns(k), epoch.spans(k)

        def fill(buffers: sequences.TokenBuffers, source: minibatches.RowSource, delay: int = 0) -> Tensor:
            return buffers.fill(num_columns, ((columns, source.get_rows(rows).T) for columns, rows in spans), delay)

        x, t = fill(self._inputs, self.sources[0]), fill(self._targets, self.sources[2])
        mask = self._mask.gather(self._mask_source, num_columns, spans)
        if self.get_prev_target:
            return [x, fill(self._previous, self.sources[1], delay=1)], (t, mask)
        return x, (t, mask)


# --- clean, index and pad sentences for classification ---


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
    validation.one_of("pad_sentences: pad_from", pad_from, ("left", "right"))
    if sentence_length is None:
        sentence_length = max(map(len, sentences), default=0)
    sentence_length = validation.integer("pad_sentences: sentence_length", sentence_length)
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
    order = minibatches.permutation(seed, 0, len(labels)) if shuffle else np.arange(len(labels))
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
    validation.check_number("pad_data: test_split", test_split, above=0, high=1)
    split_index = round(len(labels) * (1 - test_split))
    return (
        (padded[:split_index], labels[:split_index]),
        (padded[split_index:], labels[split_index:]),
        int(labels.max()) + 1,
    )
