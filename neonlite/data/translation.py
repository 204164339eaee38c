"""TextNMT: minibatches of sentence pairs for machine translation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from neonlite.backend.validation import check_number, integer
from neonlite.data.datasets import find_files
from neonlite.data.epoch import Epoch
from neonlite.data.iterator import IteratorState, Minibatch, ResumableIterator
from neonlite.data.minibatch_buffers import MinibatchBuffers, RowSource
from neonlite.data.sentences import pad_sentences
from neonlite.data.sequences import TokenBuffers
from neonlite.data.text import Text
from neonlite.data.tokens import (
    EOS,
    PAD,
    UNK,
    TokenIds,
    get_tokenizer,
    ids_to_tokens,
    join_tokens,
    read_text,
    tokens_to_ids,
)

if TYPE_CHECKING:
    from neonlite.backend import Tensor
    from neonlite.data.tokens import Tokenizer
    from neonlite.typing import ArrayLike


class TextNMT(ResumableIterator):
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
        self.be = self.be  # keep this backend if another one becomes current
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
        sizes = (len(self.vocabs[0]), self.nclass, self.nclass)
        self._inputs, self._previous, self._targets = (
            TokenBuffers(self.be, size, self.time_steps, onehot, f"{self.name}.{label}", allow_missing=True)
            for size, label, onehot in zip(
                sizes, ("inputs", "previous", "targets"), (onehot_input, onehot_input, True), strict=True
            )
        )
        self._mask = MinibatchBuffers(self.be, (1, self.time_steps), f"{self.name}.mask")
        self.shape = [self._inputs.shape, self._previous.shape] if get_prev_target else self._inputs.shape
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

    def _config(self) -> IteratorState:
        return {**super()._config(), "time_steps": self.time_steps, "nclass": self.nclass}

    def fill_minibatch(self, epoch: Epoch, k: int, values: object) -> Minibatch:
        num_columns, spans = epoch.num_columns(k), epoch.spans(k)

        def fill(buffers: TokenBuffers, source: RowSource, delay: int = 0) -> Tensor:
            return buffers.fill(num_columns, ((columns, source.get_rows(rows).T) for columns, rows in spans), delay)

        x, t = fill(self._inputs, self.sources[0]), fill(self._targets, self.sources[2])
        mask = self._mask.gather(self._mask_source, num_columns, spans)
        if self.get_prev_target:
            return [x, fill(self._previous, self.sources[1], delay=1)], (t, mask)
        return x, (t, mask)
