"""How does a network write?  Word by word: it reads what it wrote, and one of the likely next words is drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neonlite.backend.numbers import number
from neonlite.layers.recurrent import Recurrence
from neonlite.models.model import Model


def sample(model: Model, prompt: Sequence[int], length: int, temperature: float = 1.0, seed: int = 0) -> Iterator[int]:
    """Yield ``length`` words, whole numbers, that go on behind a prompt.

    A word w is drawn with ``p_w^(1 / temperature)``, normed, of the probabilities p that the network tells: the higher
    the temperature, the more is dared; 0 takes the likeliest. The network reads words (1, T), and tells probabilities
    (words, T). ValueError for a prompt of nothing, for a word that is none, and for a temperature below 0.
    """
    if number("temperature", temperature) < 0:
        raise ValueError(f"the temperature is 0 or more; got {temperature}")
    words = model.layers.out_shape[0]
    if not len(prompt) or not all(0 <= word < words for word in prompt):
        raise ValueError(f"a prompt is of one word or more, whole numbers from 0 below {words}; got {list(prompt)}")
    rng, said = np.random.default_rng(seed), list(prompt)
    layers = list(model.layers.leaves())
    recurrent = any(isinstance(layer, Recurrence) for layer in layers)
    steps, usual = model.layers.in_shape[1], model.be.bsz
    carried = [layer.carried for layer in layers]
    tell = one_by_one(model) if recurrent else window(model)
    next(tell)
    try:
        for _ in range(length):
            p = tell.send(said)
            said.append(drawn(p.astype(np.float64), temperature, rng))
            yield said[-1]
    finally:  # a training may go on
        if recurrent:
            model.set_seq_len(steps)
        if usual:
            model.set_batch_size(usual)
        for layer, arrays in zip(layers, carried, strict=True):
            layer.carry(arrays)


def drawn(p: NDArray[np.float64], temperature: float, rng: np.random.Generator) -> int:
    """Return a word drawn with ``p^(1 / temperature)``; the likeliest for 0."""
    if temperature == 0:
        return int(p.argmax())
    with np.errstate(divide="ignore"):  # a probability of 0 is never drawn
        logs = np.log(p)
    weights = np.exp((logs - logs.max()) / temperature)
    return int(rng.choice(len(p), p=weights / weights.sum()))


def one_by_one(model: Model) -> Any:
    """Take all words so far, and give the probabilities of the next, from a network that remembers what it read."""
    be, network = model.be, model.layers
    network.set_seq_len(1)
    model.set_batch_size(1)
    for layer in network.leaves():
        layer.carry({})
    read, p = 0, None
    x = be.empty((1, 1), dtype="int32")
    while True:
        said = yield p
        for word in said[read:]:
            x[:] = word
            p = network.fprop(x, inference=True).get()[:, 0]
        read = len(said)


def window(model: Model) -> Any:
    """Take all words so far, and give the probabilities of the next, from a network that reads the last T of them."""
    be, network = model.be, model.layers
    steps = network.in_shape[1]
    model.set_batch_size(1)
    x, p = be.zeros((1, steps), dtype="int32"), None
    while True:
        said = (yield p)[-steps:]
        x[:] = np.array([said + [0] * (steps - len(said))], np.int32)  # what comes behind is not looked at
        p = network.fprop(x, inference=True).get()[:, len(said) - 1]
