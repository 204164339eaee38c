"""Generation: sample tokens from a language model, and beam search with a Seq2Seq network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast, overload

import numpy as np
from numpy.typing import NDArray

from neonlite.backend import Tensor
from neonlite.backend.tensor import OneHot
from neonlite.backend.validation import check_number, instance, integer
from neonlite.data.text import get_tokenizer, tokens_to_ids
from neonlite.layers import Seq2Seq, inference, recurrent
from neonlite.messages import describe
from neonlite.models.base import ModelBase

States = list[list[NDArray[Any]]]  # of each recurrent layer, (beams, output_size, N)


# --- sampling --------------------------------------------------------------------------------------------------------


@overload
def sample(model: ModelBase, prompt: str, length: int, temperature: float = 1.0, seed: int = 0) -> Iterator[str]: ...
@overload
def sample(
    model: ModelBase, prompt: Sequence[int], length: int, temperature: float = 1.0, seed: int = 0
) -> Iterator[int]: ...
def sample(
    model: ModelBase, prompt: str | Sequence[int], length: int, temperature: float = 1.0, seed: int = 0
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


def encode_prompt(model: ModelBase, prompt: str) -> tuple[list[str], list[int]]:
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


def generate_tokens(model: ModelBase, tokens: list[int], length: int, temperature: float, seed: int) -> Iterator[int]:
    """Yield the tokens that ``sample`` generates."""
    rng, be = np.random.default_rng(seed), model.layers.be
    with inference.shallow_copy(model.layers) as network:
        is_recurrent = any(isinstance(x, recurrent.RecurrentBase) for x in network.leaves())
        predictor = predict_stepwise(network) if is_recurrent else predict_windowed(network)
        with be.lock, be.batch_size(1):
            next(predictor)
        for _ in range(length):
            with be.lock, be.batch_size(1):
                p = predictor.send(tokens)
            tokens.append(draw_token(p.astype(np.float64), temperature, rng))
            yield tokens[-1]


def check_language_model(model: ModelBase) -> None:
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


# --- beam search -----------------------------------------------------------------------------------------------------


class BeamSearch:
    """Beam search: find the most probable token sequences of a Seq2Seq network that outputs probabilities.

    In each step all beams (partial sequences) are extended by all tokens, and the most probable results become the
    beams of the next step. One beam is greedy decoding; with as many beams as there are sequences, the search is
    exhaustive.

    Parameters
    ----------
    seq2seq : Seq2Seq
        The network.

    References
    ----------
    Graves 2012, Sequence transduction with recurrent neural networks, section 2.6; Sutskever, Vinyals and Le 2014,
    section 3.2.
    """

    def __init__(self, seq2seq: Seq2Seq) -> None:
        self.seq2seq = instance("BeamSearch: seq2seq", seq2seq, Seq2Seq, "a Seq2Seq")
        self.recurrent_layers = [layer for layer, _ in seq2seq.state_pairs]

    def __repr__(self) -> str:
        return f"BeamSearch({self.seq2seq!r})"

    def beamsearch(
        self, x: Tensor, num_beams: int = 5, steps: int | None = None, end_token: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Search the most probable sequences.

        Parameters
        ----------
        x : Tensor
            Inputs of the encoder, (F, T N).
        num_beams : int
            Number of beams; fewer if there are fewer sequences.
        steps : int, optional
            Length of the sequences (default: that of the targets).
        end_token : int, optional
            Id of the token that ends a sequence; only this token follows it.

        Returns
        -------
        sequences : ndarray of int
            (N, beams, steps), the most probable first.
        scores : ndarray of float
            (N, beams): the logarithms of the probabilities.
        """
        net = self.seq2seq
        net.check_configured()
        num_beams = integer("num_beams", num_beams)
        steps = integer("steps", net.out_shape[1] if steps is None else steps)
        vocab, N = net.out_shape[0], net.be.bsz
        if end_token is not None:
            end_token = integer("end_token", end_token, 0, vocab - 1)
        all_columns = np.arange(N)
        sequences, scores = np.zeros((1, N, 0), np.int64), np.zeros((1, N))
        with net.decoding(x):
            states = [[np.stack([t.get()]) for t in layer.init_state] for layer in self.recurrent_layers]
            for _ in range(steps):
                log_probs, next_states = self.score_next_tokens(sequences, states)
                if end_token is not None and sequences.shape[2]:
                    finished = sequences[:, :, -1] == end_token
                    log_probs.transpose(0, 2, 1)[finished] = np.where(np.arange(vocab) == end_token, 0, -np.inf)
                total = (scores[:, None] + log_probs).reshape(-1, N)
                best = np.argsort(-total, axis=0, kind="stable")[:num_beams]
                beam, token = np.divmod(best, vocab)
                scores = np.take_along_axis(total, best, axis=0)
                sequences = np.concatenate([sequences[beam, all_columns], token[:, :, None]], axis=2)
                states = [[a[beam, :, all_columns].transpose(0, 2, 1) for a in layer] for layer in next_states]
        return sequences.transpose(1, 0, 2), scores.T

    def score_next_tokens(self, sequences: NDArray[np.int64], states: States) -> tuple[NDArray[np.float64], States]:
        """Return the log probabilities of all next tokens (beams, V, N), and the states after the step.

        Parameters
        ----------
        sequences : ndarray
            (beams, N, steps), the tokens so far.
        states : list of list of ndarray
            For each recurrent layer its states, (beams, output_size, N) each.
        """
        net, be, log_probs, next_states = self.seq2seq, self.seq2seq.be, [], []
        for k, beam in enumerate(sequences):
            for layer, arrays in zip(self.recurrent_layers, states, strict=True):
                layer.init_state = [be.array(a[k]) for a in arrays]
            token_ids = be.array(beam[:, -1:].T, dtype="int32") if beam.size else None
            with np.errstate(divide="ignore"):  # log 0 = -inf
                log_probs.append(np.log(net.decode_step(token_ids).get().astype(np.float64)))
            next_states.append([[t.get() for t in layer.final_states] for layer in self.recurrent_layers])
        gathered = [
            [np.stack(arrays) for arrays in zip(*layer, strict=True)] for layer in zip(*next_states, strict=True)
        ]
        return np.stack(log_probs), gathered
