"""Text: minibatches of a text for language modeling, with the next tokens as targets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from neonlite.backend.validation import integer
from neonlite.data.epoch import Epoch
from neonlite.data.iterator import IteratorState, Minibatch
from neonlite.data.sequences import ContiguousIterator, TokenBuffers
from neonlite.data.tokens import (
    TokenIds,
    get_tokenizer,
    ids_to_tokens,
    join_tokens,
    read_text,
    split_text,
    tokens_to_ids,
)
from neonlite.files import write_atomic
from neonlite.messages import describe, truncate_message

if TYPE_CHECKING:
    from neonlite.data.tokens import Tokenizer
    from neonlite.typing import ArrayLike


class Text(ContiguousIterator):
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
        self.be = self.be  # keep this backend if another one becomes current
        if path is not None and text is None:
            text = read_text(path)
        elif path is not None or text is None:
            raise ValueError(f"{self.name}: expected either path or text, got {'neither' if path is None else 'both'}")
        self.time_steps = self.seq_length = integer(f"{self.name}: time_steps", time_steps)
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
        self._inputs, self._previous, self._targets = (
            TokenBuffers(
                self.be, self.nclass, self.time_steps, onehot, f"{self.name}.{label}", allow_missing=label == "previous"
            )
            for label, onehot in (("inputs", onehot_input), ("previous", onehot_input), ("targets", True))
        )
        self.shape = [self._inputs.shape, self._previous.shape] if get_prev_target else self._inputs.shape
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

    def _config(self) -> IteratorState:
        return {**super()._config(), "nclass": self.nclass}

    def fill_minibatch(self, epoch: Epoch, k: int, values: object) -> Minibatch:
        n = epoch.num_columns(k)
        every = slice(0, n)
        tokens = self.minibatch_slice(self.token_ids, epoch, k).T
        targets = tokens[::-1] if self.reverse_target else self.minibatch_slice(self.token_ids[1:], epoch, k).T
        x, t = (made.fill(n, [(every, ids)]) for made, ids in ((self._inputs, tokens), (self._targets, targets)))
        if self.get_prev_target:
            return [x, self._previous.fill(n, [(every, targets)], delay=1)], t
        return x, t
