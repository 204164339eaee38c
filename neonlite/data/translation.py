"""How do translations come to a network?  In minibatches of sentences, with a mask for what there is of each."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neonlite.data.columns import Columns, Source
from neonlite.data.datasets import locate
from neonlite.data.iterator import Minibatches, State
from neonlite.data.order import Epoch
from neonlite.data.sentences import pad_sentences
from neonlite.data.sequences import Tokens, whole
from neonlite.data.text import Text
from neonlite.data.tokens import EOS, PAD, UNK, Ids, ids_of, joined, read_text, tokenizer_of, tokens_of


class TextNMT(Minibatches):
    """Minibatches of sentences and their translations: the lines of two files, in T time steps.

    Inputs are the ids (1, T * N) of a sentence, or with ``onehot_input`` (V, T * N); targets are (t, mask): the
    translation, one-hot, with <eos> at its end, and 1 where it is, (1, T * N). ``get_prev_target`` makes the inputs
    [x, previous]: previous is the target of the step before, for a decoder. Sentences end at the last step, and
    translations begin at the first; where there is no token, ids are 0, <pad>, and one-hot columns are zeros.

    ``path``: the two files; or a folder where they are DATASET.SPLIT.LANGUAGE, DATASET.LANGUAGE without ``split``.
    ``vocab``: two lists of tokens, such as ``vocabs`` of another one, which are that of the files unless given: <pad>,
    <eos>, <unk>, and the others sorted. ``tokenizer``: "words" unless given. ``subset_pct``: how much of the files is
    read, from the start. Pairs that are too long for T steps, or have an empty line, are left out: ``left_out`` counts
    them. A token that is not in the vocabulary is <unk>.

    FileNotFoundError for no such files; ValueError when they are empty, not UTF-8, of unequal lengths, or leave no
    pair.
    """

    def __init__(
        self,
        time_steps: int,
        path: Any,
        tokenizer: Any = "words",
        onehot_input: bool = False,
        get_prev_target: bool = False,
        split: str | None = None,
        dataset: str = "un2000",
        subset_pct: float = 100,
        languages: tuple[str, str] = ("en", "fr"),
        vocab: Any = None,
        shuffle: bool = False,
        ragged: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.be = self.be  # from now on this one, whatever becomes the current one
        whole(self.name, time_steps=time_steps)
        if isinstance(subset_pct, bool) or not isinstance(subset_pct, int | float) or not 0 < subset_pct <= 100:
            raise ValueError(f"{self.name}: subset_pct is a percentage above 0, up to 100; got {subset_pct!r}")
        self.time_steps, self.tokenizer = int(time_steps), "words" if tokenizer is None else tokenizer
        self.onehot_input, self.get_prev_target = bool(onehot_input), bool(get_prev_target)
        self.shuffle, self.ragged = bool(shuffle), bool(ragged)
        self.seed = self.be.rng_seed if shuffle else None
        sides = self._pairs(self._files(path, dataset, split, languages), subset_pct)
        if vocab is None:
            self.vocabs = [self._vocabulary(side) for side in sides]
        else:
            self.vocabs = [Text.get_vocab((), given) for given in vocab]
            if len(self.vocabs) != 2 or any(given[:3] != [PAD, EOS, UNK] for given in self.vocabs):
                raise ValueError(f"{self.name}: vocab is two lists, each with {PAD}, {EOS}, {UNK} first")
        self.vocab, self.nclass = self.vocabs[1], len(self.vocabs[1])
        self.ndata = len(sides[0])
        arrays, mask = self._arrays(sides)
        self._sources = [Source(self.be, array, True) for array in arrays]
        self._mask_source = Source(self.be, mask, True)
        sizes = (len(self.vocabs[0]), self.nclass, self.nclass)
        self._inputs, self._previous, self._targets = (
            Tokens(self.be, size, self.time_steps, onehot, f"{self.name}.{what}", gaps=True)
            for size, what, onehot in zip(
                sizes, ("inputs", "previous", "targets"), (onehot_input, onehot_input, True), strict=True
            )
        )
        self._mask = Columns(self.be, (1, self.time_steps), f"{self.name}.mask")
        self.shape = [self._inputs.shape, self._previous.shape] if get_prev_target else self._inputs.shape
        if self.be.bsz:
            self._epoch()

    def _files(self, path: Any, dataset: str, split: str | None, languages: tuple[str, str]) -> list[Path]:
        """Return the paths of the two files."""
        if isinstance(path, list | tuple):
            if len(path) != 2:
                raise ValueError(f"{self.name}: path is a folder, or two files; got {len(path)}")
            return [Path(file) for file in path]
        names = [".".join(filter(None, (dataset, split, language))) for language in languages]
        return locate(self.name, [names], path)

    def _pairs(self, files: list[Path], subset_pct: float) -> tuple[list[list[str]], list[list[str]]]:
        """Return the tokens of sentences and of their translations, of those pairs that fit."""
        lines = [read_text(file).split("\n") for file in files]
        lines = [side[:-1] if side[-1] == "" else side for side in lines]
        if len(lines[0]) != len(lines[1]):
            found = ", ".join(f"{file} has {len(side)}" for file, side in zip(files, lines, strict=True))
            raise ValueError(f"{self.name}: line i of one file is the translation of line i of the other; {found}")
        split = tokenizer_of(self.tokenizer)
        count = max(1, int(len(lines[0]) * subset_pct / 100))
        pairs = [(split(a), split(b)) for a, b in zip(lines[0][:count], lines[1][:count], strict=True)]
        kept = [(a, b) for a, b in pairs if a and b and len(a) <= self.time_steps and len(b) < self.time_steps]
        self.left_out = len(pairs) - len(kept)
        if not kept:
            raise ValueError(
                f"{self.name}: none of {len(pairs)} pairs fits {self.time_steps} time steps: the translation has one "
                f"step less, for {EOS}; take more time_steps"
            )
        return [list(a) for a, _ in kept], [list(b) for _, b in kept]

    @staticmethod
    def _vocabulary(sentences: Iterable[Iterable[str]]) -> list[str]:
        special = [PAD, EOS, UNK]
        return special + sorted(set().union(*sentences) - set(special))

    def _arrays(self, sides: tuple[list[list[str]], list[list[str]]]) -> tuple[list[Ids], NDArray[np.uint8]]:
        """Return the ids of both sides, and where there is a translation: (n, T) each."""
        indices = [{token: i for i, token in enumerate(vocab)} for vocab in self.vocabs]
        source, target = (
            [ids_of(self.name, sentence, index) for sentence in side]
            for side, index in zip(sides, indices, strict=True)
        )
        x = pad_sentences(source, self.time_steps, pad_val=-1 if self.onehot_input else 0)
        ended = [np.append(ids, np.int32(1)) for ids in target]
        t = pad_sentences(ended, self.time_steps, pad_val=-1, pad_from="right")
        previous = t if self.onehot_input else np.maximum(t, 0)
        return [x, previous, t], (t >= 0).astype(np.uint8)

    def decode(self, ids: Any) -> str:
        """Return the translation that numbers are, up to the first <eos>. IndexError for one that is no token."""
        tokens = tokens_of(self.name, ids, self.vocab)
        end = tokens.index(EOS) if EOS in tokens else len(tokens)
        return joined((token for token in tokens[:end] if token != PAD), self.tokenizer)

    def _made_as(self) -> State:
        return {**super()._made_as(), "time_steps": self.time_steps, "nclass": self.nclass}

    def fill(self, epoch: Epoch, k: int, values: Any) -> tuple[Any, Any]:
        width, pieces = epoch.width(k), epoch.pieces(k)

        def filled(made: Tokens, source: Source, delay: int = 0) -> Any:
            return made.fill(width, ((columns, source.rows(rows).T) for columns, rows in pieces), delay)

        x, t = filled(self._inputs, self._sources[0]), filled(self._targets, self._sources[2])
        mask = self._mask.gather(self._mask_source, width, pieces)
        if self.get_prev_target:
            return [x, filled(self._previous, self._sources[1], delay=1)], (t, mask)
        return x, (t, mask)
