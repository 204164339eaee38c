"""sample(): generate tokens from a trained language model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast, overload

import numpy as np
from numpy.typing import NDArray

from neonlite.backend import Tensor
from neonlite.backend.onehot import OneHot
from neonlite.backend.validation import check_number, integer
from neonlite.data.tokens import get_tokenizer, tokens_to_ids
from neonlite.layers.recurrent import RecurrentBase
from neonlite.layers.weights import InferenceCopies
from neonlite.messages import describe
from neonlite.models.model import Model


@overload
def sample(model: Model, prompt: str, length: int, temperature: float = 1.0, seed: int = 0) -> Iterator[str]: ...
@overload
def sample(
    model: Model, prompt: Sequence[int], length: int, temperature: float = 1.0, seed: int = 0
) -> Iterator[int]: ...
def sample(
    model: Model, prompt: str | Sequence[int], length: int, temperature: float = 1.0, seed: int = 0
) -> Iterator[str] | Iterator[int]:
    """Generate the tokens after a prompt.

    Each token is sampled from the predicted probabilities raised to the power 1 / temperature, normalized. The network
    has inputs (1, T) or one-hot (V, T), and outputs probabilities (V, T). It runs in separate buffers, so that another
    thread may train it at the same time.

    Parameters
    ----------
    model : Model
        A trained language model.
    prompt : str or sequence of int
        A text of at least one token, for a model that was trained on ``Text``; or token ids.
    length : int
        Number of tokens to generate.
    temperature : float
        Non-negative; 0 is greedy decoding.
    seed : int
        Seed of the random choices.

    Returns
    -------
    iterator of str or int
        The next tokens, one by one: texts if the prompt is a text, such as characters, else token ids. The arguments
        are checked at once.

    Raises
    ------
    IndexError
        The prompt has a token that is not in the vocabulary.
    TypeError
        The prompt is neither a text nor a sequence of integers, or the model has no vocabulary for a text.
    ValueError
        The model is not a language model, or an argument is out of range.
    """
    check_language_model(model)
    check_number("sample: temperature", temperature, 0)
    length, seed = integer("sample: length", length, 0), integer("sample: seed", seed, 0)
    if isinstance(prompt, str):
        vocab, ids = encode_prompt(model, prompt)
        return (vocab[token] for token in generate_tokens(model, ids, length, temperature, seed))
    return generate_tokens(model, check_prompt(prompt, model.layers.out_shape[0]), length, temperature, seed)


def encode_prompt(model: Model, prompt: str) -> tuple[list[str], list[int]]:
    """Return the vocabulary of a model, and the token ids of a text."""
    vocab, size = model.metadata.get("vocab"), model.layers.out_shape[0]
    if not isinstance(vocab, list) or len(vocab) != size:
        raise TypeError(
            f"sample: expected a prompt of token ids for a model that was not trained on Text, got {describe(prompt)}. "
            f"Encode the text, or set model.metadata['vocab'] to a list of {size} tokens."
        )
    tokens = get_tokenizer(model.metadata.get("tokenizer"))(prompt)
    ids = tokens_to_ids("sample: prompt", tokens, {token: i for i, token in enumerate(vocab)})
    return vocab, check_prompt(ids, size)


def check_prompt(prompt: object, vocab_size: int) -> list[int]:
    """Return a prompt as a list of token ids."""
    if not np.iterable(prompt):
        raise TypeError(f"sample: expected a prompt, a text or token ids, got {describe(prompt)}.")
    tokens = [integer("sample: a token id of the prompt", token, 0, vocab_size - 1) for token in cast("Any", prompt)]
    if not tokens:
        raise ValueError(f"sample: expected a prompt of at least one token id from 0 to {vocab_size - 1}, got none")
    return tokens


def generate_tokens(model: Model, tokens: list[int], length: int, temperature: float, seed: int) -> Iterator[int]:
    """Yield the tokens that ``sample`` generates."""
    rng, be = np.random.default_rng(seed), model.layers.be
    with be.lock, be.batch_size(1):
        network = InferenceCopies().of(model.layers, 1, 1)
        is_recurrent = any(isinstance(x, RecurrentBase) for x in network.leaves())
        predictor = predict_stepwise(network) if is_recurrent else predict_windowed(network)
        next(predictor)
    for _ in range(length):
        with be.lock, be.batch_size(1):
            p = predictor.send(tokens)
        tokens.append(draw_token(p.astype(np.float64), temperature, rng))
        yield tokens[-1]


def check_language_model(model: Model) -> None:
    """Raise ValueError unless a model reads tokens and outputs probabilities of the next ones."""
    in_shape, out_shape = model.layers.in_shape, model.layers.out_shape
    if not all(isinstance(shape, tuple) and len(shape) == 2 for shape in (in_shape, out_shape)) or in_shape[0] not in (
        1,
        out_shape[0],
    ):
        raise ValueError(
            "sample: expected a network with inputs (1, T) or one-hot (V, T) and outputs (V, T), got inputs "
            f"{in_shape} and outputs {out_shape}. Use a language model such as zoo.lstm"
        )
    for layer in model.layers.leaves():
        if getattr(layer, "num_directions", 1) > 1:
            raise ValueError(
                f"sample: expected unidirectional recurrent layers, got the bidirectional {layer.classnm} "
                f"{layer.name}. Train a network with LSTM or GRU"
            )


def make_input_writer(network: Any, steps: int) -> Callable[[Any], Tensor]:
    """Return a function that writes token ids (1, steps) to the network's inputs, as ids or one-hot."""
    ids, rows = network.be.zeros((1, steps), dtype="int32"), network.in_shape[0]
    onehot = OneHot(rows, ids) if rows > 1 else None

    def write(token_ids: Any) -> Tensor:
        ids[:] = token_ids
        return ids if onehot is None else onehot.update()

    return write


def draw_token(p: NDArray[np.float64], temperature: float, rng: np.random.Generator) -> int:
    """Return a token id sampled from ``p^(1 / temperature)``; the most probable one for temperature 0."""
    if temperature == 0:
        return int(p.argmax())
    with np.errstate(divide="ignore"):  # log 0 = -inf is never sampled
        log_p = np.log(p)
    weights = np.exp((log_p - log_p.max()) / temperature)
    return int(rng.choice(len(p), p=weights / weights.sum()))


def predict_stepwise(network: Any) -> Any:
    """Receive all tokens so far (``send``) and yield the probabilities of the next one, from a recurrent network."""
    network.set_seq_len(1)
    network.set_batch_size(1)
    for layer in network.leaves():
        layer.set_state({})
    num_read, p, write = 0, None, make_input_writer(network, 1)
    while True:
        tokens = yield p
        for token in tokens[num_read:]:
            p = network.fprop(write(token), inference=True).get()[:, 0]
        num_read = len(tokens)


def predict_windowed(network: Any) -> Any:
    """Receive all tokens so far (``send``) and yield the probabilities of the next one, given the last T tokens."""
    steps = network.in_shape[1]
    network.set_batch_size(1)
    p, write = None, make_input_writer(network, steps)
    while True:
        tokens = (yield p)[-steps:]
        token_ids = np.array([tokens + [0] * (steps - len(tokens))], np.int32)  # causal: the padding has no effect
        p = network.fprop(write(token_ids), inference=True).get()[:, len(tokens) - 1]
