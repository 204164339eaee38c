"""The networks of steps.py that read characters, ours and PyTorch's: by a recurrent layer or a transformer.

PyTorch's recurrent layers have two biases for one of ours: the second stays at zero, with a learning rate of 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from _learner import learner

from neonlite.backend import Backend, NervanaObject
from neonlite.backend.tensor import OneHot
from neonlite.initializers import Constant, Gaussian, GlorotUniform
from neonlite.layers import (
    GRU,
    LSTM,
    Affine,
    GeneralizedCost,
    LayerNorm,
    LookupTable,
    PositionalEncoding,
    Sequential,
    TransformerBlock,
)
from neonlite.transforms import CrossEntropyMulti, Logistic, Softmax, Tanh

T, N, HIDDEN, VOCABULARY = 64, 64, 128, 98
HEADS, BLOCKS = 4, 2  # of the transformer
MODES = {"cpu": "default", "cuda": "max-autotune-no-cudagraphs"}  # of torch.compile


class Characters(NamedTuple):
    """The data: N texts of which each next character is predicted, in T steps."""

    kind: str  # lstm, gru or transformer
    ids: Any  # (T + 1, N)
    hidden: int = HIDDEN
    heads: int = HEADS
    blocks: int = BLOCKS


def case(kind: str, steps: int = T, texts: int = N, **sizes: int) -> Characters:
    """Return the case of a kind of network, with random characters."""
    return Characters(kind, np.random.default_rng(0).integers(0, VOCABULARY, (steps + 1, texts)), **sizes)


# --- ours ------------------------------------------------------------------------------------------------------------


def ours(of: Characters, runtime: Any, rate: float, dtype: str = "float32") -> tuple[tuple[Any, ...], Any]:
    """Return step, loss, infer and outputs, and the network, initialized with a fixed seed."""
    (T, N), F = of.ids[1:].shape, of.hidden
    NervanaObject.be = be = Backend(runtime, rng_seed=1, batch_size=N, default_dtype=dtype)
    init, words = GlorotUniform(), of.kind == "transformer"
    if words:
        blocks = [TransformerBlock(F, of.heads, 4 * F, init, causal=True) for _ in range(of.blocks)]
        layers = [LookupTable(VOCABULARY, F, Gaussian()), PositionalEncoding(), *blocks, LayerNorm()]
    else:
        options: dict[str, Any] = {"activation": Tanh(), "gate_activation": Logistic(), "reset_cells": True}
        layers = [(LSTM if of.kind == "lstm" else GRU)(F, init, **options)]
    net = Sequential([*layers, Affine(VOCABULARY, init, bias=Constant(0), activation=Softmax())])

    def data() -> Any:
        x, labels = (be.array(ids, dtype="int32") for ids in (of.ids[:-1], of.ids[1:].reshape(1, -1)))
        one_hot = OneHot(VOCABULARY, x.reshape(1, -1)).update()
        return x if words else one_hot, OneHot(VOCABULARY, labels).update()

    return learner(net, (T,) if words else (VOCABULARY, T), GeneralizedCost(CrossEntropyMulti()), rate, data), net


# --- PyTorch's -------------------------------------------------------------------------------------------------------


def recurrent(torch: Any, of: Characters, net: Any, device: str) -> tuple[Any, Callable[[], Any]]:
    """Return a recurrent layer with the weights of neonlite's, and a function that returns its outputs (T, N, F)."""
    rnn = (torch.nn.LSTM if of.kind == "lstm" else torch.nn.GRU)(VOCABULARY, of.hidden)
    layer = net.layers_to_optimize[0]
    # neonlite orders gates i f o g, and r u k; PyTorch i f g o, and r u k
    order = [0, 1, 3, 2] if of.kind == "lstm" else [0, 1, 2]

    def gates(t: Any) -> Any:
        return torch.from_numpy(np.concatenate([np.split(t.get(), len(order))[k] for k in order]))

    with torch.no_grad():
        W_input, W_recur, b = layer.split_weights(layer.W, 0)
        rnn.weight_ih_l0.copy_(gates(W_input))
        rnn.weight_hh_l0.copy_(gates(W_recur))
        rnn.bias_ih_l0.copy_(gates(b)[:, 0])
        rnn.bias_hh_l0.zero_()
    x = torch.nn.functional.one_hot(torch.from_numpy(of.ids[:-1]), VOCABULARY).float().to(device)
    return rnn, lambda: rnn(x)[0]


def transformer(torch: Any, of: Characters, net: Any, device: str) -> tuple[Any, Callable[[], Any]]:
    """Return a transformer with the weights of neonlite's, and a function that returns its outputs (T, N, F)."""
    options: dict[str, Any] = {"activation": "gelu", "batch_first": True, "norm_first": True}
    F = of.hidden
    table, norm = torch.nn.Embedding(VOCABULARY, F), torch.nn.LayerNorm(F)
    blocks = [torch.nn.TransformerEncoderLayer(F, of.heads, 4 * F, 0.0, **options) for _ in range(of.blocks)]
    parts = [table, *(part for b in blocks for part in (b.norm1, b.self_attn, b.norm2, b.linear1, b.linear2)), norm]
    names = ("W", "gamma", "W_qkv", "b_qkv", "W_out", "b_out", "beta")  # in the order of PyTorch's
    found = [getattr(layer, name, None) for layer in net.layers_to_optimize[:-2] for name in names]
    tensors = [tensor for tensor in found if tensor is not None]
    with torch.no_grad():
        for parameter, tensor in zip((p for part in parts for p in part.parameters()), tensors, strict=True):
            parameter.copy_(torch.from_numpy(tensor.get().astype("float32")).reshape(parameter.shape))
    table_of = next(layer.table for layer in net.leaves() if isinstance(layer, PositionalEncoding))
    positions = torch.from_numpy(table_of.get().astype("float32").T).to(device)
    later = torch.nn.Transformer.generate_square_subsequent_mask(len(of.ids) - 1).to(device)
    words = torch.from_numpy(of.ids[:-1].T.copy()).to(device)

    def outputs() -> Any:
        y = table(words) + positions
        for block in blocks:
            y = block(y, src_mask=later, is_causal=True)
        return norm(y).transpose(0, 1)

    return torch.nn.ModuleList([table, *blocks, norm]), outputs


def theirs(
    torch: Any,
    of: Characters,
    net: Any,
    rate: float,
    device: str = "cpu",
    compiled: bool = False,
    dtype: str = "float32",
) -> tuple[Any, ...]:
    """Return step, loss, infer and outputs of PyTorch, with the weights of a neonlite network.

    In 16 bit, ``torch.autocast`` casts float32 weights.
    """
    (T, N), kind = of.ids[1:].shape, getattr(torch, dtype)
    F, make = torch.nn.functional, transformer if of.kind == "transformer" else recurrent
    model, read = make(torch, of, net, device)
    linear = torch.nn.Linear(of.hidden, VOCABULARY)
    with torch.no_grad():
        for parameter, layer in zip((linear.weight, linear.bias), net.layers_to_optimize[-2:], strict=True):
            parameter.copy_(torch.from_numpy(layer.W.get().astype("float32")).reshape(parameter.shape))
    model, linear = model.to(device), linear.to(device)
    still = [p for name, p in model.named_parameters() if name == "bias_hh_l0"]
    moved = [*linear.parameters(), *(p for name, p in model.named_parameters() if name != "bias_hh_l0")]
    groups = [{"params": moved}, {"params": still, "lr": 0.0}] if still else moved
    optimizer = torch.optim.SGD(groups, rate, momentum=0.9, fused=device == "cuda")
    labels = torch.from_numpy(of.ids[1:]).reshape(-1).to(device)

    def scores() -> Any:
        return linear(read())

    def cost_of() -> Any:
        with torch.autocast(device, kind, enabled=dtype != "float32"):
            return F.cross_entropy(scores().reshape(-1, VOCABULARY), labels, reduction="sum") / N

    def predict() -> Any:
        return F.softmax(scores(), 2)

    if compiled:
        cost_of, predict = (torch.compile(f, mode=MODES[device]) for f in (cost_of, predict))

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        cost = cost_of()
        cost.backward()
        optimizer.step()
        return cost

    def infer() -> Any:
        model.train(compiled)  # without dropout the same; torch.compile fails on the fused layer for inference
        with torch.inference_mode():
            y = predict()
        model.train()
        return y

    return step, lambda: step().item() / T, infer, lambda y: y.reshape(-1, VOCABULARY).numpy()
