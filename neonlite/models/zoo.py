"""Which networks are there already?  Functions that return layers, for any number of classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from neonlite.data import Flip, Shift
from neonlite.initializers import Constant, Gaussian, GlorotUniform, Initializer, Kaiming, Uniform
from neonlite.layers import (
    GRU,
    LSTM,
    Activation,
    Affine,
    Conv,
    Deconv,
    Dropout,
    GenerativeAdversarial,
    LayerNorm,
    LookupTable,
    MergeSum,
    Pooling,
    PositionalEncoding,
    Recurrent,
    Reshape,
    SkipNode,
    TransformerBlock,
)
from neonlite.transforms import Logistic, Rectlin, Softmax, Tanh

Layers = list[Any]


def mlp(nclass: int = 10, hidden: Sequence[int] = (200, 200), keep: float = 0.7) -> Layers:
    """Return fully connected layers, rectified, with dropout behind each where ``keep`` is below 1."""
    init = Kaiming(local=False)
    layers: Layers = []
    for n in hidden:
        layers.append(affine(n, init, Rectlin()))
        layers += [Dropout(keep)] if keep < 1 else []
    return [*layers, head(nclass)]


def lenet(nclass: int = 10, maps: Sequence[int] = (16, 32, 64), hidden: int = 64, keep: float = 0.8) -> Layers:
    """Return convolutions with pooling, and a hidden layer, with dropout behind it where ``keep`` is below 1.

    Source: after LeNet-5, which has three convolutions as well: LeCun et al. 1998.
    """
    layers: Layers = []
    for k in maps:
        layers += [conv(k, 3), Pooling(2)]
    layers += [affine(hidden, Kaiming(local=False), Rectlin())]
    return [*layers, *([Dropout(keep)] if keep < 1 else []), head(nclass)]


def cifar10_conv(nclass: int = 10) -> Layers:
    """Return neon's example for CIFAR-10: two convolutions of 5 x 5 with pooling, and a hidden layer of 500."""
    layers: Layers = []
    for k in (16, 32):
        layers += [Conv((5, 5, k), Kaiming(), batch_norm=True, activation=Rectlin()), Pooling(2)]
    hidden = Affine(500, Kaiming(local=False), batch_norm=True, activation=Rectlin())
    return [*layers, hidden, head(nclass)]


def allcnn(nclass: int = 10, width: int = 96, keep: float = 0.5) -> Layers:
    """Return a network of convolutions alone. Source: Springenberg et al. 2015, Striving for Simplicity, All-CNN-C."""
    layers: Layers = []
    for k in (width, 2 * width):
        strided = Conv((3, 3, k), Kaiming(), padding=1, strides=2, batch_norm=True, activation=Rectlin())
        layers += [conv(k, 3), conv(k, 3), strided, Dropout(keep)]
    layers += [conv(2 * width, 3), conv(2 * width, 1), conv(nclass, 1), Pooling("all", op="avg"), Reshape(-1)]
    return [*layers, Activation(Softmax())]


def resnet(nclass: int = 10, width: int = 16, blocks: int = 1) -> Layers:
    """Return a residual network of three stages, the way through each halving the image but in the first.

    Source: He et al. 2016, Deep Residual Learning for Image Recognition, section 4.2.
    """
    layers: Layers = [conv(width, 3)]
    for stage in range(3):
        for block in range(blocks):
            k, stride = width * 2**stage, 2 if stage and not block else 1
            way = [Conv((3, 3, k), Kaiming(), padding=1, strides=stride, batch_norm=True, activation=Rectlin())]
            way += [Conv((3, 3, k), Kaiming(), padding=1, batch_norm=True)]
            past = SkipNode() if stride == 1 else Conv((1, 1, k), Kaiming(), strides=stride, batch_norm=True)
            layers += [MergeSum([way, past]), Activation(Rectlin())]
    return [*layers, Pooling("all", op="avg"), head(nclass)]


def autoencoder(maps: int = 8, channels: int = 1) -> Layers:
    """Return a convolution that halves images, and its transpose that brings them back, for sizes that are even.

    **Shapes**: (C, H, W) -> (maps, H / 2, W / 2) -> (C, H, W), values from 0 to 1.
    """
    way: dict[str, Any] = {"init": Kaiming(), "padding": 1, "strides": 2, "bias": Constant(0)}
    small = Conv((4, 4, maps), activation=Rectlin(), **way)
    return [small, Deconv((4, 4, channels), activation=Logistic(), **way)]


def gan(shape: tuple[int, int, int] = (1, 8, 8), hidden: int = 64) -> GenerativeAdversarial:
    """Return a generator of images (C, H, W) from -1 to 1, and its discriminator, fully connected, for GAN.

    Source: Goodfellow et al. 2014, Generative Adversarial Nets, section 5.
    """
    C, H, W = shape
    init = GlorotUniform()
    make = [affine(hidden, init, Rectlin()), affine(C * H * W, init, Tanh()), Reshape(shape)]
    judge = [Reshape(C * H * W), affine(hidden, init, Rectlin(slope=0.1)), affine(1, init, Logistic())]
    return GenerativeAdversarial(make, judge)


def rnn(nclass: int, width: int = 256, depth: int = 1) -> Layers:
    """Return layers that read a text, (1, T) words, and tell the probabilities of the next in each step: Recurrent."""
    return reader(nclass, width, depth, lambda init: Recurrent(width, init, None, Tanh()))


def lstm(nclass: int, width: int = 256, depth: int = 1) -> Layers:
    """Return what ``rnn`` does, of LSTM layers."""
    return reader(nclass, width, depth, lambda init: LSTM(width, init, None, Tanh(), Logistic()))


def gru(nclass: int, width: int = 256, depth: int = 1) -> Layers:
    """Return what ``rnn`` does, of GRU layers."""
    return reader(nclass, width, depth, lambda init: GRU(width, init, None, Tanh(), Logistic()))


def reader(nclass: int, width: int, depth: int, made: Callable[[Initializer], Any]) -> Layers:
    """Return a table of words, recurrent layers, and the probabilities of words."""
    layers = [made(Uniform(-(width**-0.5), width**-0.5)) for _ in range(depth)]
    return [LookupTable(nclass, width // 2, Gaussian(scale=1.0)), *layers, head(nclass)]


def transformer(nclass: int, width: int = 128, heads: int = 4, depth: int = 2, keep: float = 0.9) -> Layers:
    """Return what ``rnn`` does, of causal transformer blocks, each normed before. Source: Vaswani et al. 2017.

    Each head begins by looking somewhere else: the first at the word before, the second at about the one before that;
    those of the second half look back from where they are, the last one far.
    """
    init = GlorotUniform()
    slopes = [8.0 ** (1 - h) for h in range(heads)]
    lags = [h + 1 if h < heads // 2 else 0 for h in range(heads)]
    blocks = [
        TransformerBlock(width, heads, 4 * width, init, True, keep, slopes=slopes, lags=lags) for _ in range(depth)
    ]
    return [LookupTable(nclass, width, Gaussian()), PositionalEncoding(), *blocks, LayerNorm(), head(nclass)]


def head(nclass: int) -> Affine:
    """Return the layers that end a network with the probabilities of classes."""
    return affine(nclass, GlorotUniform(), Softmax())


def affine(nout: int, init: Initializer, activation: Any) -> Affine:
    """Return fully connected layers with a bias."""
    return Affine(nout, init, bias=Constant(0), activation=activation)


def conv(maps: int, size: int) -> Conv:
    """Return layers of a convolution that keeps the image's size, with batch normalization, rectified."""
    return Conv((size, size, maps), Kaiming(), padding=size // 2, batch_norm=True, activation=Rectlin())


MODELS: dict[str, Callable[..., Any]] = {
    "mlp": mlp,
    "lenet": lenet,
    "cifar10_conv": cifar10_conv,
    "allcnn": allcnn,
    "resnet": resnet,
}

READERS: dict[str, Callable[..., Any]] = {"rnn": rnn, "lstm": lstm, "gru": gru, "transformer": transformer}

# What a data set is trained with unless told: the network, epochs, the minibatch, the rate at first, and how images are
# changed each time they are used. What a network needs otherwise stands under its name; never the minibatch, which has
# to stay the same when a training goes on.
RECIPES: dict[str, dict[str, Any]] = {
    "digits": {"model": "mlp", "epochs": 60, "batch_size": 32, "lr": 0.003},
    "iris": {"model": "mlp", "epochs": 60, "batch_size": 16, "lr": 0.01},
    "mnist5k": {"model": "lenet", "epochs": 20, "batch_size": 64, "lr": 0.003, "augment": [Shift(1)]},
    "fashion": {"model": "lenet", "epochs": 20, "batch_size": 128, "lr": 0.003, "augment": [Flip()]}
    | {"mlp": {"epochs": 30, "lr": 0.001, "augment": None}},
    "text": {"model": "lstm", "epochs": 8, "batch_size": 32, "lr": 0.004} | {"transformer": {"epochs": 20}},
    "mnist": {"model": "lenet", "epochs": 5, "batch_size": 128, "lr": 0.003, "augment": [Shift(1)]},
    "cifar10": {"model": "cifar10_conv", "epochs": 10, "batch_size": 128, "lr": 0.002, "augment": [Flip()]},
}


def recipe(dataset: str, model: str | None = None) -> dict[str, Any]:
    """Return how a network is trained on a data set: model, epochs, batch_size, lr and augment.

    ``model``: a name of MODELS or READERS; the one that suits the data set unless given. ValueError: an unknown name.

    >>> recipe("digits")
    {'augment': None, 'model': 'mlp', 'epochs': 60, 'batch_size': 32, 'lr': 0.003}
    """
    for what, given, known in ("data set", dataset, RECIPES), ("network", model, MODELS | READERS):
        if given is not None and given not in known:
            raise ValueError(f"there is no recipe for the {what} {given!r}; there are {', '.join(known)}")
    common = RECIPES[dataset]
    name = model or common["model"]
    found = {key: value for key, value in common.items() if key not in MODELS | READERS}
    return {"augment": None, **found, **common.get(name, {}), "model": name}
