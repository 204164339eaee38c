"""How does a text come to a network?  In minibatches of tokens and the next ones, read on from one to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from neonlite.data.iterator import State
from neonlite.data.order import Epoch
from neonlite.data.sequences import Contiguous, Tokens, whole
from neonlite.data.tokens import Ids, ids_of, joined, read_text, split_text, tokenizer_of, tokens_of
from neonlite.optree import describe, shortened


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
            Tokens(self.be, self.nclass, self.time_steps, onehot, f"{self.name}.{what}", gaps=what == "previous")
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
