"""BeamSearch: decode the most probable token sequences of a Seq2Seq network."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from neonlite.backend.validation import integer
from neonlite.layers import Seq2Seq
from neonlite.messages import describe


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
        if not isinstance(seq2seq, Seq2Seq):
            raise TypeError(f"BeamSearch: expected a Seq2Seq, got {describe(seq2seq)}")
        self.seq2seq = seq2seq
        self.recurrent_layers = [layer for layer, _ in seq2seq.state_pairs]

    def __repr__(self) -> str:
        return f"BeamSearch({self.seq2seq!r})"

    def beamsearch(
        self, x: Any, num_beams: int = 5, steps: int | None = None, end_token: int | None = None
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
        if net.out_shape is None:
            raise RuntimeError(
                f"{net.name}: expected a configured layer, got one without shapes. "
                "Call configure(shape), then allocate()."
            )
        num_beams = integer("num_beams", num_beams)
        steps = integer("steps", net.out_shape[1] if steps is None else steps)
        vocab, N = net.out_shape[0], net.be.bsz
        if end_token is not None:
            end_token = integer("end_token", end_token, 0, vocab - 1)
        all_columns = np.arange(N)
        sequences, scores = np.zeros((1, N, 0), np.int64), np.zeros((1, N))
        net.start_decoding(x)
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

    def score_next_tokens(self, sequences: Any, states: Any) -> tuple[NDArray[np.float64], list[list[NDArray[Any]]]]:
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
