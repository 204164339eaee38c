"""Networks of every layer and of the zoo; ``python saved_networks.py FOLDER`` loads their checkpoints."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import neonlite as nl
from neonlite import layers as L
from neonlite.initializers import Gaussian
from neonlite.layers.buffers import iobuf_shape
from neonlite.models import Model, zoo
from neonlite.optimizers import Adam

G = Gaussian(scale=0.5)
IMAGE, STEPS, IDS, N = (2, 8, 8), (5, 4), (1, 4), 3
GATES = {"activation": "tanh", "gate_activation": "logistic"}


def tree() -> Any:
    node = L.BranchNode(name="node")
    return L.Tree([[L.Linear(4), node, L.Linear(3)], [node, L.Affine(2)]])


NETWORKS: dict[str, tuple[Callable[[], Any], Any]] = {  # layers, and the shape of the inputs
    "Linear Bias Activation Dropout": (
        lambda: [L.Linear(4), L.Bias(G), L.Activation("tanh"), L.Dropout(0.5), L.Affine(2)], 5),
    "BinaryAffine": (lambda: [L.BinaryAffine(4, G, batch_norm=True, activation="tanh"), L.BinaryLinear(3, G)], 5),
    "norms": (lambda: [L.Affine(4, G, batch_norm=True), L.BatchNormAutodiff(), L.LayerNorm(), L.ShiftBatchNorm()], 5),
    "Conv": (lambda: [L.Conv((3, 3, 4), activation="relu"), L.Pooling(2), L.Affine(2)], IMAGE),
    "Convolutions": (
        lambda: [L.Convolution((3, 3, 4), init=G), L.Convolution_bias((2, 2, 3), init=G, bias=G), L.LRN(3)], IMAGE),
    "Conv in 3-D": (lambda: [L.Conv((2, 2, 2, 3), bias=True)], (2, 4, 4, 4)),
    "Deconv": (lambda: [L.Deconv((3, 3, 4), strides=2, activation="relu"), L.Conv((1, 1, 2))], IMAGE),
    "Reshape": (lambda: [L.Reshape((2, 4, 4)), L.Conv((3, 3, 4), batch_norm=True)], 32),
    "MergeSum": (lambda: [L.MergeSum([[L.Conv((3, 3, 2), padding=1)], L.SkipNode()]), L.Affine(2)], IMAGE),
    "MergeBroadcast": (lambda: [L.MergeBroadcast([L.Linear(3), L.Affine(2)], merge="stack"), L.Linear(2)], 5),
    "MergeMultistream": (lambda: L.MergeMultistream([[L.Affine(3)], [L.Conv((3, 3, 2))]], merge="stack"), [5, IMAGE]),
    "Tree": (tree, 5),
    "LookupTable": (lambda: [L.LookupTable(7, 3), L.Recurrent(4, G, activation="tanh"), L.RecurrentLast()], IDS),
    "LSTM": (lambda: [L.LSTM(4, G, **GATES), L.RecurrentMean(), L.Affine(2)], STEPS),
    "GRU": (lambda: [L.GRU(4, G, **GATES), L.RecurrentSum()], STEPS),
    "BiRNN": (lambda: [L.BiRNN(4, G, activation="tanh"), L.BiSum()], STEPS),
    "BiLSTM": (lambda: [L.BiLSTM(4, G, **GATES), L.Affine(2)], STEPS),
    "BiBNRNN": (lambda: [L.BiBNRNN(4, G, activation="tanh")], STEPS),
    "DeepBi": (lambda: [L.DeepBiRNN(3, G, activation="tanh", depth=2), L.DeepBiLSTM(3, G, **GATES)], STEPS),
    "attention": (lambda: [L.PositionEmbedding(4, G), L.MultiHeadAttention(1, G, bias=G)], STEPS),
    "TransformerBlock": (lambda: [L.PositionalEncoding(), L.TransformerBlock(5, 1, 8, G)], STEPS),
    "Seq2Seq": (lambda: L.Seq2Seq([[L.GRU(4, G, **GATES)], [L.GRU(4, G, **GATES), L.Affine(3)]]), [STEPS, (3, 4)]),
    "zoo.mlp": (lambda: zoo.mlp(3, hidden=(6, 4)), 5),
    "zoo.lenet": (lambda: zoo.lenet(3, filters=(2, 3), hidden=4), IMAGE),
    "zoo.allcnn": (lambda: zoo.allcnn(3, width=2), (2, 16, 16)),
    "zoo.cifar10_conv": (lambda: zoo.cifar10_conv(3), (2, 16, 16)),
    "zoo.resnet": (lambda: zoo.resnet(3, width=2), IMAGE),
    "zoo.autoencoder": (lambda: zoo.autoencoder(2, 2), IMAGE),
    "zoo.gan": (lambda: zoo.gan((2, 4, 4), 6), 3),
    "zoo.rnn": (lambda: zoo.rnn(7, 4), IDS),
    "zoo.lstm": (lambda: zoo.lstm(7, 4), IDS),
    "zoo.gru": (lambda: zoo.gru(7, 4), IDS),
    "zoo.transformer": (lambda: zoo.transformer(7, 8, 2, 1), IDS),
}  # fmt: skip


def flat(x: Any) -> list[Any]:
    return [t for each in x for t in flat(each)] if isinstance(x, list | tuple) else [x]


def inputs(be: Any, shape: Any, rng: Any, n: int = N) -> Any:
    """Return random inputs of n samples for a shape, token ids for (1, T)."""
    if isinstance(shape, list):
        return [inputs(be, each, rng, n) for each in shape]
    rows, steps = iobuf_shape(shape)
    size = (rows, steps * n)
    return be.array(rng.integers(0, 7, size) if shape == IDS else rng.normal(size=size))


def train(model: Any, x: Any) -> list[Any]:
    """Run a training step for the sum of the outputs; return the outputs before it, and the weights after it."""
    y = model.fprop(x)
    outputs = [t.get() for t in flat(y)]
    errors = [model.be.ones(t.shape) for t in flat(y)]
    model.bprop(errors if isinstance(y, list) else errors[0])
    model.optimizer.optimize(model.layers_to_optimize, 0)
    return [*outputs, *model.get_weights().values()]


def use(model: Any, shape: Any) -> list[Any]:
    """Return the outputs of a model, and what a training step gives."""
    x = inputs(model.be, shape, np.random.default_rng(1))
    return [*(t.get() for t in flat(model(x))), *train(model, x)]


def create(name: str) -> Any:
    """Return a model after one training step."""
    layers, shape = NETWORKS[name]
    nl.cleanup_backend()
    nl.gen_backend("cpu", rng_seed=1, batch_size=N)
    model = Model(layers(), optimizer=Adam(0.01))
    model.initialize(shape)
    train(model, inputs(model.be, shape, np.random.default_rng(0)))
    return model


def load_all(folder: Path) -> None:
    """Write NAME.npz with the results of the checkpoint NAME.neon, for each of them."""
    for path in sorted(folder.glob("*.neon")):
        nl.gen_backend("cpu", batch_size=N)
        np.savez(path.with_suffix(".npz"), *use(Model(path), NETWORKS[path.stem][1]))


if __name__ == "__main__":
    load_all(Path(sys.argv[1]))
