"""Text corpora: text files, the Python documentation, Shakespeare, Penn Treebank, enwik8."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from neonlite.backend import current_backend
from neonlite.backend.validation import checks_arguments, one_of
from neonlite.data.datasets import NamedIterators, find_files
from neonlite.data.text import Text
from neonlite.data.tokens import characters, get_tokenizer, read_text, split_text

if TYPE_CHECKING:
    from neonlite.data.tokens import Tokenizer


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
        self.name, self.texts, self.time_steps, self.options = (
            name,
            dict(texts),
            time_steps,
            cast(dict[str, Any], options),
        )
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
