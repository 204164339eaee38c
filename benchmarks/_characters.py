"""The networks of steps.py that read characters, ours and PyTorch's: a recurrent layer, and a linear one for each step.

PyTorch's layers have two biases for one of ours: the second stays at zero, with a learning rate of 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from _learner import learner

from neonlite.backend import Backend, NervanaObject
from neonlite.backend.onehot import OneHot
from neonlite.initializers import Constant, GlorotUniform
from neonlite.layers import GRU, LSTM, Affine, GeneralizedCost, Sequential
from neonlite.transforms import CrossEntropyMulti, Logistic, Softmax, Tanh

T, N, HIDDEN, VOCABULARY = 64, 64, 128, 98


class Characters(NamedTuple):
    """What is learned: each next character of N texts, in T steps."""

    kind: str  # lstm or gru
    ids: Any  # (T + 1, N)


def case(kind: str) -> Characters:
    """Return the case of a kind of layer, with characters that were drawn."""
    return Characters(kind, np.random.default_rng(0).integers(0, VOCABULARY, (T + 1, N)))


def ours(of: Characters, runtime: str, rate: float) -> tuple[tuple[Any, ...], Any]:
    """Return step, loss, infer and outputs, and the network; its weights are those of a fixed seed."""
    NervanaObject.be = be = Backend(runtime, rng_seed=1, batch_size=N)
    options: dict[str, Any] = {"activation": Tanh(), "gate_activation": Logistic(), "reset_cells": True}
    recurrent = (LSTM if of.kind == "lstm" else GRU)(HIDDEN, GlorotUniform(), **options)
    net = Sequential([recurrent, Affine(VOCABULARY, GlorotUniform(), bias=Constant(0), activation=Softmax())])
    cost = GeneralizedCost(CrossEntropyMulti())

    def data() -> Any:
        parts = of.ids[:-1], of.ids[1:]
        return [OneHot(VOCABULARY, be.array(ids.reshape(1, -1), dtype="int32")).show() for ids in parts]

    return learner(net, (VOCABULARY, T), cost, rate, data), net


def theirs(torch: Any, of: Characters, net: Any, rate: float) -> tuple[Any, ...]:
    """Return the same of PyTorch, with the weights of a network of ours."""
    F = torch.nn.functional
    rnn = (torch.nn.LSTM if of.kind == "lstm" else torch.nn.GRU)(VOCABULARY, HIDDEN)
    linear = torch.nn.Linear(HIDDEN, VOCABULARY)
    recurrent, affine = net.layers_to_optimize[0], net.layers_to_optimize[1:]
    # the gates of ours are i f o g, and r u k; of PyTorch's i f g o, and r u k
    order = [0, 1, 3, 2] if of.kind == "lstm" else [0, 1, 2]

    def gates(t: Any) -> Any:
        return torch.from_numpy(np.concatenate([np.split(t.get(), len(order))[k] for k in order]))

    with torch.no_grad():
        rnn.weight_ih_l0.copy_(gates(recurrent.W_input))
        rnn.weight_hh_l0.copy_(gates(recurrent.W_recur))
        rnn.bias_ih_l0.copy_(gates(recurrent.b)[:, 0])
        rnn.bias_hh_l0.zero_()
        for parameter, layer in zip((linear.weight, linear.bias), affine, strict=True):
            parameter.copy_(torch.from_numpy(layer.W.get()).reshape(parameter.shape))
    still = [rnn.bias_hh_l0]
    moved = [rnn.weight_ih_l0, rnn.weight_hh_l0, rnn.bias_ih_l0, *linear.parameters()]
    optimizer = torch.optim.SGD([{"params": moved}, {"params": still, "lr": 0.0}], rate, momentum=0.9)
    x = F.one_hot(torch.from_numpy(of.ids[:-1]), VOCABULARY).float()
    labels = torch.from_numpy(of.ids[1:]).reshape(-1)

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        y = linear(rnn(x)[0]).reshape(-1, VOCABULARY)
        cost = F.cross_entropy(y, labels, reduction="sum") / N
        cost.backward()
        optimizer.step()
        return cost

    def infer() -> Any:
        with torch.inference_mode():
            return F.softmax(linear(rnn(x)[0]), 2)

    return step, lambda: step().item() / T, infer, lambda y: y.reshape(-1, VOCABULARY).numpy()
