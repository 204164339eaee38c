"""How does a network write?  Word by word: it reads what it wrote, and one of the likely next words is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neonlite.backend import Tensor
from neonlite.backend.numbers import number
from neonlite.backend.onehot import OneHot
from neonlite.layers.recurrent import Recurrence
from neonlite.models.model import Model


def sample(model: Model, prompt: Sequence[int], length: int, temperature: float = 1.0, seed: int = 0) -> Iterator[int]:
    """Yield ``length`` words, whole numbers, that go on behind a prompt.

    A word w is drawn with ``p_w^(1 / temperature)``, normed, of the probabilities p that the network tells: the higher
    the temperature, the more is dared; 0 takes the likeliest. The network reads words (1, T), or one-hot (words, T),
    and tells probabilities (words, T). ValueError for another, for a prompt of nothing, for a word that is none, and
    for a temperature below 0.
    """
    check_writer(model)
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


def check_writer(model: Model) -> None:
    """Raise ValueError unless a network reads words and tells of each next one how probable it is."""
    read, told = model.layers.in_shape, model.layers.out_shape
    if not all(isinstance(shape, tuple) and len(shape) == 2 for shape in (read, told)) or read[0] not in (1, told[0]):
        raise ValueError(
            "a network that writes reads words (1, T), or one-hot (V, T), and tells how probable each of V words is, "
            f"(V, T); this one reads {read} and tells {told}"
        )
    for layer in model.layers.leaves():
        if getattr(layer, "ways", 1) > 1:
            raise ValueError(
                f"{layer.name}: {layer.classnm} reads both ways, and nothing is yet behind what is to be written: "
                "train a network with LSTM or GRU"
            )


def reader(model: Model, steps: int) -> Callable[[Any], Tensor]:
    """Return what shows words (1, steps) to a network as it reads them: as numbers, or one-hot."""
    ids, rows = model.be.zeros((1, steps), dtype="int32"), model.layers.in_shape[0]
    onehot = OneHot(rows, ids) if rows > 1 else None

    def show(words: Any) -> Tensor:
        ids[:] = words
        return ids if onehot is None else onehot.show()

    return show


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
    network = model.layers
    network.set_seq_len(1)
    model.set_batch_size(1)
    for layer in network.leaves():
        layer.carry({})
    read, p, show = 0, None, reader(model, 1)
    while True:
        said = yield p
        for word in said[read:]:
            p = network.fprop(show(word), inference=True).get()[:, 0]
        read = len(said)


def window(model: Model) -> Any:
    """Take all words so far, and give the probabilities of the next, from a network that reads the last T of them."""
    network = model.layers
    steps = network.in_shape[1]
    model.set_batch_size(1)
    p, show = None, reader(model, steps)
    while True:
        said = (yield p)[-steps:]
        words = np.array([said + [0] * (steps - len(said))], np.int32)  # what comes behind is not looked at
        p = network.fprop(show(words), inference=True).get()[:, len(said) - 1]
