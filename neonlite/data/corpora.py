"""Which texts are there?  Files, and the prose that Python brings, with a part to learn from and one to judge by."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neonlite.backend import current
from neonlite.data.datasets import locate
from neonlite.data.text import Text
from neonlite.data.tokens import characters, read_text, split_text, tokenizer_of


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


# --- any text ------------------------------------------------------------------------------------------------------


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


# --- known ones ----------------------------------------------------------------------------------------------------


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
