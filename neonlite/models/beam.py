"""Which sentence is the likeliest?  Not always the one whose every word was: a few are followed at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from neonlite.layers import Seq2Seq
from neonlite.optree import describe


class BeamSearch:
    """Searches for the sentences that a Seq2Seq, which ends with probabilities of words, finds the likeliest.

    In each step every sentence that is followed, a *beam*, goes on with every word; the likeliest of all these are
    followed further. With one beam each word is the likeliest; with beams for all sentences there are, none is missed.

    Source: Graves 2012, Sequence transduction with recurrent neural networks, section 2.6; Sutskever, Vinyals and Le
    2014, section 3.2.
    """

    def __init__(self, seq2seq: Seq2Seq) -> None:
        if not isinstance(seq2seq, Seq2Seq):
            raise TypeError(f"BeamSearch is for a Seq2Seq, which says words; got {describe(seq2seq)}")
        self.seq2seq = seq2seq
        self.layers = [layer for layer, _ in seq2seq.pairs]

    def beamsearch(
        self, x: Any, num_beams: int = 5, steps: int | None = None, end: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return sentences (N, beams, steps), the likeliest first, and their scores (N, beams).

        A score is the logarithm of the probability that a sentence is said in answer to x. ``steps``: how many words
        are looked for, as many as there are targets unless given. ``end``: the word behind which nothing comes but this
        word. There are fewer beams where there are fewer sentences.
        """
        net = self.seq2seq
        if net.out_shape is None:
            raise RuntimeError(f"{net.name}: it has no shapes yet: call configure(shape), then allocate()")
        wanted = {"num_beams": num_beams, "steps": net.out_shape[1] if steps is None else steps}
        for name, n in wanted.items():
            if isinstance(n, bool) or not isinstance(n, int) or n < 1:
                raise ValueError(f"{name} is a whole number from 1; got {n!r}")
        vocab, N = net.out_shape[0], net.be.bsz
        if end is not None and (type(end) is not int or not 0 <= end < vocab):
            raise ValueError(f"end is a word, a whole number from 0 to {vocab - 1}, or None; got {end!r}")
        every = np.arange(N)
        sentences, scores = np.zeros((1, N, 0), np.int64), np.zeros((1, N))
        net.begin(x)
        states = [[np.stack([t.get()]) for t in layer.init_state] for layer in self.layers]
        for _ in range(wanted["steps"]):
            logs, after = self.steps(sentences, states)
            if end is not None and sentences.shape[2]:
                over = sentences[:, :, -1] == end
                logs.transpose(0, 2, 1)[over] = np.where(np.arange(vocab) == end, 0, -np.inf)
            total = (scores[:, None] + logs).reshape(-1, N)
            best = np.argsort(-total, axis=0, kind="stable")[:num_beams]
            beam, word = np.divmod(best, vocab)
            scores = np.take_along_axis(total, best, axis=0)
            sentences = np.concatenate([sentences[beam, every], word[:, :, None]], axis=2)
            states = [[a[beam, :, every].transpose(0, 2, 1) for a in layer] for layer in after]
        return sentences.transpose(1, 0, 2), scores.T

    def steps(self, sentences: Any, states: Any) -> tuple[NDArray[np.float64], list[list[NDArray[Any]]]]:
        """Return, for each beam, the logarithms of probabilities (beams, V, N), and the states after the step."""
        net, be, logs, after = self.seq2seq, self.seq2seq.be, [], []
        for k, beam in enumerate(sentences):
            for layer, arrays in zip(self.layers, states, strict=True):
                layer.init_state = [be.array(a[k]) for a in arrays]
            words = be.array(beam[:, -1:].T, dtype="int32") if beam.size else None
            with np.errstate(divide="ignore"):  # the logarithm of a probability of 0
                logs.append(np.log(net.step(words).get().astype(np.float64)))
            after.append([[t.get() for t in layer.final_states] for layer in self.layers])
        gathered = [[np.stack(arrays) for arrays in zip(*layer, strict=True)] for layer in zip(*after, strict=True)]
        return np.stack(logs), gathered
