"""Text corpora, and TextNMT: minibatches of sentence pairs for machine translation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from neonlite.backend import Tensor, current_backend
from neonlite.backend.validation import check_number, checks_arguments, integer, one_of
from neonlite.data.datasets import NamedIterators, find_files
from neonlite.data.iterator import Minibatch
from neonlite.data.minibatches import Epoch, MinibatchBuffers, RowSource
from neonlite.data.sequences import TokenBuffers, TokenIterator
from neonlite.data.text import (
    EOS,
    PAD,
    UNK,
    Text,
    TokenIds,
    Tokenizer,
    characters,
    get_tokenizer,
    ids_to_tokens,
    join_tokens,
    pad_sentences,
    read_text,
    split_text,
    tokens_to_ids,
)
from neonlite.typing import ArrayLike


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
        tokenizer = get_tokenizer(self.options.get("tokenizer"))
        if self.options.get("vocab") is None:
            tokens = set().union(
                *(texts[part] if tokenizer is characters else tokenizer(texts[part]) for part in texts)
            )
            self.options["vocab"] = sorted(tokens)
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


# --- text files -----------------------------------------------------------------------------------------------------


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


# --- standard corpora ----------------------------------------------------------------------------------------------


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


# --- TextNMT: minibatches of sentence pairs for machine translation ---


class TextNMT(TokenIterator):
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
        check_number(f"{self.name}: subset_pct", subset_pct, above=0, at_most=100)
        self.time_steps = self.seq_length = integer(f"{self.name}: time_steps", time_steps)
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
        self.sources = [RowSource(self.be, array, True) for array in arrays]
        self._mask_source = RowSource(self.be, mask, True)
        self.create_buffers((len(self.s_vocab), self.nclass, self.nclass), onehot_input)
        self._mask = MinibatchBuffers(self.be, (1, self.time_steps), f"{self.name}.mask")
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
        return find_files(self.name, [names], path)

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

    def fill_minibatch(self, epoch: Epoch, k: int, values: object) -> Minibatch:
        num_columns, spans = epoch.num_columns(k), epoch.spans(k)

        def fill(buffers: TokenBuffers, source: RowSource, delay: int = 0) -> Tensor:
            return buffers.fill(num_columns, ((columns, source.get_rows(rows).T) for columns, rows in spans), delay)

        x, t = fill(self._inputs, self.sources[0]), fill(self._targets, self.sources[2])
        mask = self._mask.gather(self._mask_source, num_columns, spans)
        if self.get_prev_target:
            return [x, fill(self._previous, self.sources[1], delay=1)], (t, mask)
        return x, (t, mask)
