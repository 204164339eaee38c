"""How does text come to a network?  As tokens, characters or words, each of which has a number in a vocabulary."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neonlite.backend import current
from neonlite.data.columns import Columns, Source
from neonlite.data.datasets import locate
from neonlite.data.formats import content
from neonlite.data.iterator import Minibatches, State
from neonlite.data.order import Epoch, permutation
from neonlite.data.sequences import Contiguous, Tokens, whole
from neonlite.optree import describe, shortened

Ids = NDArray[np.int32]
Tokenizer = Callable[[str], Sequence[str]]

UNK, EOS, PAD = "<unk>", "<eos>", "<pad>"


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
            f"in, you may know: text=Path({path.name!r}).read_text(encoding='latin-1')"
        ) from None
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if not text:
        raise ValueError(f"{path} is empty")
    return text


# --- one text ------------------------------------------------------------------------------------------------------


class Text(Contiguous):
    """Minibatches of a text: tokens, and as targets the next ones, in T time steps.

    The tokens are arranged (N, nbatches, T): column n of the minibatches reads on in part n of the text, so that a
    recurrent layer may carry its state along. Inputs are one-hot (V, T * N), or without ``onehot_input`` ids
    (1, T * N), for a LookupTable; targets are one-hot (V, T * N), of V tokens in the vocabulary.

    >>> import neonlite as nl
    >>> from neonlite.data import Text
    >>> be = nl.gen_backend("cpu", batch_size=1)
    >>> for x, t in Text(time_steps=4, text="she sells sea shells", onehot_input=False):
    ...     print(x.get().tolist(), t.get().argmax(axis=0).tolist())
    [[5, 3, 2, 0]] [3, 2, 0, 5]
    [[5, 2, 4, 4]] [2, 4, 4, 5]
    [[5, 0, 5, 2]] [0, 5, 2, 1]
    [[1, 0, 5, 3]] [0, 5, 3, 2]

    ``path``: a UTF-8 file, or a .gz of one; ``text=`` gives the text itself. ``vocab``: the tokens of the text, sorted,
    unless given, as for a text to judge by. A token that is not in it is <unk> where it has that, else IndexError.
    ``tokenizer``: "characters" unless given, "words", "newline_tokenizer", or a function of a text.
    ``reverse_target``: targets are the same tokens backwards. ``get_prev_target``: inputs are [x, previous], for an
    encoder and a decoder; previous is the target of the step before, in the first step zeros if one-hot, else id 0.

    FileNotFoundError for no such file; ValueError for one that is empty or not UTF-8, and for too few tokens: a
    minibatch takes N T + 1.
    """

    unit = "tokens"

    def __init__(
        self,
        time_steps: int,
        path: Any = None,
        vocab: Any = None,
        tokenizer: Any = None,
        onehot_input: bool = True,
        reverse_target: bool = False,
        get_prev_target: bool = False,
        text: str | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.be = self.be  # from now on this one, whatever becomes the current one
        whole(self.name, time_steps=time_steps)
        if (path is None) == (text is None):
            raise ValueError(f"{self.name} takes the path of a text, or the text itself as text=; got {describe(path)}")
        if text is None:
            text = read_text(path)
        self.time_steps, self.tokenizer = int(time_steps), tokenizer
        self.onehot_input, self.reverse_target = bool(onehot_input), bool(reverse_target)
        self.get_prev_target = bool(get_prev_target)
        tokens = text if tokenizer is None else self.get_tokens(text, tokenizer)  # a text is a sequence of characters
        if not len(tokens):
            raise ValueError(f"{self.name}: there are no tokens in {path if path is not None else shortened(text)!r}")
        self.vocab = self.get_vocab(tokens, vocab)
        self.nclass = len(self.vocab)
        self.token_to_index = {token: i for i, token in enumerate(self.vocab)}
        self.index_to_token = dict(enumerate(self.vocab))
        self.ids = ids_of(self.name, tokens, self.token_to_index)
        self.length = len(self.ids) - 1
        self._inputs, self._previous, self._targets = (
            Tokens(self.be, self.nclass, self.time_steps, onehot, f"{self.name}.{what}")
            for what, onehot in (("inputs", onehot_input), ("previous", onehot_input), ("targets", True))
        )
        self.shape = [self._inputs.shape, self._previous.shape] if get_prev_target else self._inputs.shape
        if self.be.bsz:
            self._epoch()

    @staticmethod
    def get_tokens(text: str, tokenizer: Any = None) -> list[str]:
        """Return the tokens of a text: its characters unless a tokenizer is given."""
        return list(tokenizer_of(tokenizer)(text))

    @staticmethod
    def get_vocab(tokens: Iterable[str], vocab: Any = None) -> list[str]:
        """Return the tokens that there are, each once, sorted; or those of a given list, in its order.

        A given dict is token -> number, and a set is sorted. ValueError when a token is there twice, or none.
        """
        if vocab is None:
            return sorted(set(tokens))
        if isinstance(vocab, Mapping):
            if sorted(vocab.values()) != list(range(len(vocab))):
                raise ValueError(f"a vocabulary numbers its {len(vocab)} tokens from 0; got {describe(vocab)}")
            found = sorted(vocab, key=vocab.__getitem__)
        else:
            found = sorted(vocab) if isinstance(vocab, set | frozenset) else list(vocab)
        if not found or len(set(found)) < len(found):
            raise ValueError(f"a vocabulary has one token or more, and each once; got {describe(vocab)}")
        return found

    @staticmethod
    def create_valid_file(path: Any, valid_split: float = 0.1) -> tuple[str, str]:
        """Write the beginning of a text to NAME_train.EXT beside it, and the end to NAME_valid.EXT; return both paths.

        ``valid_split`` is the fraction of characters that the second gets, and the part of a word where it would begin.
        """
        text = read_text(path)
        whole_path = Path(path)
        parts = split_text(str(path), text, valid_split)
        made = [whole_path.with_stem(f"{whole_path.stem}_{part}") for part in ("train", "valid")]
        for file, part in zip(made, parts, strict=True):
            file.write_text(part, encoding="utf-8", newline="")
        return str(made[0]), str(made[1])

    def encode(self, text: str) -> Ids:
        """Return the numbers of a text's tokens. IndexError for one that is not in the vocabulary."""
        return ids_of(self.name, self.get_tokens(text, self.tokenizer), self.token_to_index)

    def decode(self, ids: Any) -> str:
        """Return the text of numbers: characters one behind the other, other tokens with a space between them.

        IndexError for a number that is not in the vocabulary.
        """
        return joined(tokens_of(self.name, ids, self.vocab), self.tokenizer)

    def _made_as(self) -> State:
        return {**super()._made_as(), "nclass": self.nclass}

    def fill(self, epoch: Epoch, k: int, values: Any) -> tuple[Any, Any]:
        every = slice(0, epoch.size)
        tokens = self.piece(self.ids, epoch, k).T
        targets = tokens[::-1] if self.reverse_target else self.piece(self.ids[1:], epoch, k).T
        x, t = (
            made.fill(epoch.size, [(every, ids)]) for made, ids in ((self._inputs, tokens), (self._targets, targets))
        )
        if self.get_prev_target:
            return [x, self._previous.fill(epoch.size, [(every, targets)], delay=1)], t
        return x, t


def joined(tokens: Iterable[str], tokenizer: Any) -> str:
    """Return tokens as a text."""
    return ("" if tokenizer_of(tokenizer) is characters else " ").join(tokens)


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


# --- texts with a split --------------------------------------------------------------------------------------------


class Corpus:
    """Texts to learn from and to judge by, with one vocabulary: that of all of them.

    ``texts``: "train", "valid" and maybe "test" -> text. The other arguments are those of ``Text``.
    """

    def __init__(self, name: str, texts: Mapping[str, str], time_steps: int, **options: Any) -> None:
        self.name, self.texts, self.time_steps, self.options = name, dict(texts), time_steps, options
        tokenizer = tokenizer_of(options.get("tokenizer"))
        if options.get("vocab") is None:
            every = set().union(*(texts[part] if tokenizer is characters else tokenizer(texts[part]) for part in texts))
            options["vocab"] = sorted(every)
        self.vocab: list[str] = Text.get_vocab((), options["vocab"])
        self._made: dict[str, Text] = {}

    def __repr__(self) -> str:
        sizes = ", ".join(f"{part} {len(text):,}" for part, text in self.texts.items())
        return f"{self.name}: {sizes} characters, {len(self.vocab)} tokens"

    @property
    def nclass(self) -> int:
        """How many tokens there are."""
        return len(self.vocab)

    def iterator(self, part: str) -> Text:
        """Return the iterator over one of the texts; the same one as long as the backend is."""
        made = self._made.get(part)
        if made is None or made.be is not current():
            if part not in self.texts:
                raise ValueError(f"{self.name} has the texts {', '.join(self.texts)}; got {part!r}")
            made = Text(self.time_steps, text=self.texts[part], name=f"{self.name}.{part}", **self.options)
            self._made[part] = made
        return made

    def iterators(self, batch_size: int | None = None) -> tuple[Text, Text]:
        """Return (train_set, valid_set); ``batch_size`` becomes the backend's."""
        if batch_size is not None:
            current().bsz = batch_size
        return self.train_iter, self.valid_iter

    def gen_iterators(self) -> dict[str, Text]:
        """Return the iterators of all texts by their names."""
        return {part: self.iterator(part) for part in self.texts}

    @property
    def train_iter(self) -> Text:
        """The iterator over the text to learn from."""
        return self.iterator("train")

    @property
    def valid_iter(self) -> Text:
        """The iterator over the text to judge by."""
        return self.iterator("valid")

    @property
    def test_iter(self) -> Text:
        """The iterator over the text that is kept for the end."""
        return self.iterator("test")


def prose(time_steps: int = 64, valid_split: float = 0.1, **options: Any) -> Corpus:
    """Return the English prose that Python brings: what ``help()`` says on topics, about 370,000 characters.

    The topics in order of their names, each paragraph once, although several topics have it: what is judged by must
    not have been learned. The last tenth is to judge by. It differs between versions of Python, and so do figures.
    ``options``: those of ``Text``. ImportError where Python came without it.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise ImportError("this Python came without pydoc_data: text_file(path) takes a text of yours") from error
    paragraphs: dict[str, str] = {}
    for topic in sorted(topics):
        for paragraph in topics[topic].split("\n\n"):
            paragraphs.setdefault(" ".join(paragraph.split()), paragraph)
    text = "\n\n".join(paragraphs.values())
    train, valid = split_text("prose", text, valid_split)
    return Corpus("prose", {"train": train, "valid": valid}, time_steps, **options)


def text_file(path: Any, time_steps: int = 64, valid_split: float = 0.1, **options: Any) -> Corpus:
    """Return the text of a file, of which the last tenth is to judge by. ``options``: those of ``Text``."""
    train, valid = split_text(str(path), read_text(path), valid_split)
    return Corpus(Path(path).stem, {"train": train, "valid": valid}, time_steps, **options)


def corpus(path: Any = None, time_steps: int = 64, **options: Any) -> Corpus:
    """Return the text of a file, or the prose that Python brings, as ids: what ``neonlite train text`` reads."""
    options = {"onehot_input": False, **options}
    return prose(time_steps, **options) if path is None else text_file(path, time_steps, **options)


class Shakespeare(Corpus):
    """Shakespeare's works in one file, shakespeare_input.txt or input.txt, of which the last tenth is to judge by.

    ``path``: the file or its folder; else $NEONLITE_DATA/shakespeare. ``options``: those of ``Text``.
    Source: Karpathy, "The Unreasonable Effectiveness of Recurrent Neural Networks", 2015.
    """

    def __init__(self, time_steps: int, path: Any = None, **options: Any) -> None:
        (file,) = locate("shakespeare", [["shakespeare_input.txt"], ["input.txt"]], path)
        train, valid = split_text(str(file), read_text(file), 0.1)
        super().__init__("shakespeare", {"train": train, "valid": valid}, time_steps, **options)


class PTB(Corpus):
    """The Penn Treebank's files ptb.train.txt, ptb.valid.txt and, where it is, ptb.test.txt.

    ``path``: their folder; else $NEONLITE_DATA/ptb. ``tokenizer="newline_tokenizer"`` gives words, with <eos> at the
    end of each line. Source: Mikolov, Karafiat, Burget, Cernocky and Khudanpur, "Recurrent neural network based
    language model", 2010.
    """

    def __init__(
        self,
        timesteps: int,
        path: Any = None,
        onehot_input: bool = True,
        tokenizer: Any = None,
        reverse_target: bool = False,
        get_prev_target: bool = False,
    ) -> None:
        names = [f"ptb.{part}.txt" for part in ("train", "valid", "test")]
        files = locate("ptb", [names, names[:2]], path)
        texts = {part: read_text(file) for part, file in zip(("train", "valid", "test"), files, strict=False)}
        options = {"reverse_target": reverse_target, "get_prev_target": get_prev_target, "onehot_input": onehot_input}
        super().__init__("ptb", texts, timesteps, tokenizer=tokenizer, **options)


class HutterPrize(Corpus):
    """The first 100 MB of Wikipedia, enwik8: 90 % to learn from, 5 % to judge by, 5 % for the end.

    ``path``: the file or its folder; else $NEONLITE_DATA/enwik8. ``options``: those of ``Text``.
    Source: Hutter, "The human knowledge compression prize", 2006.
    """

    def __init__(self, time_steps: int, path: Any = None, **options: Any) -> None:
        (file,) = locate("enwik8", [["enwik8"]], path)
        train, rest = split_text(str(file), read_text(file), 0.1)
        valid, test = split_text(str(file), rest, 0.5)
        super().__init__("enwik8", {"train": train, "valid": valid, "test": test}, time_steps, **options)


# --- pairs of texts ------------------------------------------------------------------------------------------------


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
            Tokens(self.be, size, self.time_steps, onehot, f"{self.name}.{what}")
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


# --- sentences to be judged as a whole -----------------------------------------------------------------------------


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
