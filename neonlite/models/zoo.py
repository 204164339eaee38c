"""Model zoo: ready-made networks, and the training settings of each data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from neonlite import layers as nn
from neonlite.backend.validation import one_of
from neonlite.data import Flip, Shift
from neonlite.initializers import Constant, Gaussian, GlorotUniform, Initializer, Kaiming, Uniform
from neonlite.layers.container import LayerLike
from neonlite.transforms import Logistic, Rectlin, Softmax, Tanh

Layers = list[Any]


def mlp(nclass: int = 10, hidden: Sequence[int] = (200, 200), keep: float = 0.7) -> Layers:
    """Return fully connected layers with Rectlin, each followed by dropout.

    Parameters
    ----------
    nclass : int
        The number of classes. Default: 10.
    hidden : sequence of int
        The sizes of the hidden layers. Default: (200, 200).
    keep : float
        The keep probability of the dropout; 1 for none. Default: 0.7.

    Returns
    -------
    list of Layer
        The layers.
    """
    init = Kaiming(local=False)
    layers: Layers = []
    for n in hidden:
        layers.append(dense(n, init, Rectlin()))
        layers += [nn.Dropout(keep)] if keep < 1 else []
    return [*layers, softmax_head(nclass)]


def csv_mlp(nclass: int | None, hidden: Sequence[int]) -> Layers:
    """Return fully connected layers with Rectlin, for the columns of a table.

    Parameters
    ----------
    nclass : int, optional
        The number of classes; None for a network that predicts a number.
    hidden : sequence of int
        The sizes of the hidden layers.

    Returns
    -------
    list of Layer
        The layers.
    """
    if nclass is not None:
        return mlp(nclass, hidden, keep=1)
    return [*mlp(1, hidden, keep=1)[:-1], dense(1, GlorotUniform(), None)]


def lenet(nclass: int = 10, filters: Sequence[int] = (16, 32, 64), hidden: int = 64, keep: float = 0.8) -> Layers:
    """Return convolutions with pooling, and a hidden layer followed by dropout.

    Parameters
    ----------
    nclass : int
        The number of classes. Default: 10.
    filters : sequence of int
        The numbers of filters of the convolutions. Default: (16, 32, 64).
    hidden : int
        The size of the hidden layer. Default: 64.
    keep : float
        The keep probability of the dropout; 1 for none. Default: 0.8.

    Returns
    -------
    list of Layer
        The layers.

    References
    ----------
    LeCun et al. 1998, Gradient-based learning applied to document recognition: LeNet-5 has three convolutions as well.
    """
    layers: Layers = []
    for k in filters:
        layers += [conv_block(k, 3), nn.Pooling(2)]
    layers += [dense(hidden, Kaiming(local=False), Rectlin())]
    return [*layers, *([nn.Dropout(keep)] if keep < 1 else []), softmax_head(nclass)]


def cifar10_conv(nclass: int = 10) -> Layers:
    """Return the network of neon's CIFAR-10 example: two 5 x 5 convolutions with pooling, a hidden layer of 500.

    Parameters
    ----------
    nclass : int
        The number of classes. Default: 10.

    Returns
    -------
    list of Layer
        The layers.
    """
    layers: Layers = []
    for k in (16, 32):
        layers += [nn.Conv((5, 5, k), Kaiming(), batch_norm=True, activation=Rectlin()), nn.Pooling(2)]
    hidden = nn.Affine(500, Kaiming(local=False), batch_norm=True, activation=Rectlin())
    return [*layers, hidden, softmax_head(nclass)]


def allcnn(nclass: int = 10, width: int = 96, keep: float = 0.5) -> Layers:
    """Return a network of convolutions only.

    Parameters
    ----------
    nclass : int
        The number of classes. Default: 10.
    width : int
        The number of filters of the first convolutions. Default: 96.
    keep : float
        The keep probability of the dropout; 1 for none. Default: 0.5.

    Returns
    -------
    list of Layer
        The layers.

    References
    ----------
    Springenberg et al. 2015, Striving for Simplicity, All-CNN-C.
    """
    layers: Layers = []
    for k in (width, 2 * width):
        strided = nn.Conv((3, 3, k), Kaiming(), padding=1, strides=2, batch_norm=True, activation=Rectlin())
        layers += [conv_block(k, 3), conv_block(k, 3), strided, nn.Dropout(keep)]
    layers += [
        conv_block(2 * width, 3),
        conv_block(2 * width, 1),
        conv_block(nclass, 1),
        nn.Pooling("all", op="avg"),
        nn.Reshape(-1),
    ]
    return [*layers, nn.Activation(Softmax())]


def resnet(nclass: int = 10, width: int = 16, blocks: int = 1) -> Layers:
    """Return a residual network of three stages, of which the second and third halve the image.

    Parameters
    ----------
    nclass : int
        The number of classes. Default: 10.
    width : int
        The number of filters of the first stage, which doubles in each stage. Default: 16.
    blocks : int
        The number of residual blocks of a stage. Default: 1.

    Returns
    -------
    list of Layer
        The layers.

    References
    ----------
    He et al. 2016, Deep Residual Learning for Image Recognition, section 4.2.
    """
    layers: Layers = [conv_block(width, 3)]
    for stage in range(3):
        for block in range(blocks):
            k, stride = width * 2**stage, 2 if stage and not block else 1
            residual = [nn.Conv((3, 3, k), Kaiming(), padding=1, strides=stride, batch_norm=True, activation=Rectlin())]
            residual += [nn.Conv((3, 3, k), Kaiming(), padding=1, batch_norm=True)]
            shortcut = nn.SkipNode() if stride == 1 else nn.Conv((1, 1, k), Kaiming(), strides=stride, batch_norm=True)
            layers += [nn.MergeSum([residual, shortcut]), nn.Activation(Rectlin())]
    return [*layers, nn.Pooling("all", op="avg"), softmax_head(nclass)]


def autoencoder(filters: int = 8, channels: int = 1) -> Layers:
    """Return a convolution that halves images, and a transposed convolution that restores their size.

    Shapes: (C, H, W) -> (filters, H / 2, W / 2) -> (C, H, W), with values from 0 to 1; H and W are even.

    Parameters
    ----------
    filters : int
        The number of filters of the convolution. Default: 8.
    channels : int
        The number of channels of the images, C. Default: 1.

    Returns
    -------
    list of Layer
        The layers.
    """
    options: dict[str, Any] = {"init": Kaiming(), "padding": 1, "strides": 2, "bias": Constant(0)}
    encoder = nn.Conv((4, 4, filters), activation=Rectlin(), **options)
    return [encoder, nn.Deconv((4, 4, channels), activation=Logistic(), **options)]


def gan(shape: tuple[int, int, int] = (1, 8, 8), hidden: int = 64) -> nn.GenerativeAdversarial:
    """Return a fully connected generator of images with values from -1 to 1, and its discriminator, for ``GAN``.

    Parameters
    ----------
    shape : tuple of int
        The shape of an image, (C, H, W). Default: (1, 8, 8).
    hidden : int
        The size of the hidden layers. Default: 64.

    Returns
    -------
    GenerativeAdversarial
        The two networks.

    References
    ----------
    Goodfellow et al. 2014, Generative Adversarial Nets, section 5.
    """
    C, H, W = shape
    init = GlorotUniform()
    generator: list[LayerLike] = [dense(hidden, init, Rectlin()), dense(C * H * W, init, Tanh()), nn.Reshape(shape)]
    discriminator: list[LayerLike] = [
        nn.Reshape(C * H * W),
        dense(hidden, init, Rectlin(slope=0.1)),
        dense(1, init, Logistic()),
    ]
    return nn.GenerativeAdversarial(generator, discriminator)


def rnn(nclass: int, width: int = 256, depth: int = 1) -> Layers:
    """Return a language model of Recurrent layers: token ids (1, T) to probabilities of the next token (nclass, T).

    Parameters
    ----------
    nclass : int
        The number of tokens.
    width : int
        The size of the recurrent state. Default: 256.
    depth : int
        The number of recurrent layers. Default: 1.

    Returns
    -------
    list of Layer
        The layers.
    """
    return recurrent_language_model(nclass, width, depth, lambda init: nn.Recurrent(width, init, None, Tanh()))


def lstm(nclass: int, width: int = 256, depth: int = 1) -> Layers:
    """Return a language model of LSTM layers: token ids (1, T) to probabilities of the next token (nclass, T).

    Parameters
    ----------
    nclass : int
        The number of tokens.
    width : int
        The size of the recurrent state. Default: 256.
    depth : int
        The number of recurrent layers. Default: 1.

    Returns
    -------
    list of Layer
        The layers.
    """
    return recurrent_language_model(nclass, width, depth, lambda init: nn.LSTM(width, init, None, Tanh(), Logistic()))


def gru(nclass: int, width: int = 256, depth: int = 1) -> Layers:
    """Return a language model of GRU layers: token ids (1, T) to probabilities of the next token (nclass, T).

    Parameters
    ----------
    nclass : int
        The number of tokens.
    width : int
        The size of the recurrent state. Default: 256.
    depth : int
        The number of recurrent layers. Default: 1.

    Returns
    -------
    list of Layer
        The layers.
    """
    return recurrent_language_model(nclass, width, depth, lambda init: nn.GRU(width, init, None, Tanh(), Logistic()))


def recurrent_language_model(nclass: int, width: int, depth: int, make_layer: Callable[[Initializer], Any]) -> Layers:
    """Return an embedding, recurrent layers, and a softmax over ``nclass`` tokens."""
    layers = [make_layer(Uniform(-(width**-0.5), width**-0.5)) for _ in range(depth)]
    return [nn.LookupTable(nclass, width // 2, Gaussian(scale=1.0)), *layers, softmax_head(nclass)]


def transformer(nclass: int, width: int = 128, heads: int = 4, depth: int = 2, keep: float = 0.9) -> Layers:
    """Return a language model of causal transformer blocks with layer normalization at the start of each part.

    The heads have different fixed position biases (ALiBi). In the first half of the heads, head h (counted from 1)
    favors the token h positions before the current one; the other heads favor the current token. ``alibi_slopes``
    decrease from the first head to the last, which therefore has the longest range.

    Parameters
    ----------
    nclass : int
        The number of tokens.
    width : int
        The size of the embedding. Default: 128.
    heads : int
        The number of attention heads. Default: 4.
    depth : int
        The number of blocks. Default: 2.
    keep : float
        The keep probability of the dropout; 1 for none. Default: 0.9.

    Returns
    -------
    list of Layer
        The layers.

    References
    ----------
    Vaswani et al. 2017, Attention Is All You Need.
    """
    init = GlorotUniform()
    alibi_slopes = [8.0 ** (1 - h) for h in range(heads)]
    offsets = [h + 1 if h < heads // 2 else 0 for h in range(heads)]
    blocks = [
        nn.TransformerBlock(width, heads, 4 * width, init, True, keep, alibi_slopes=alibi_slopes, alibi_offsets=offsets)
        for _ in range(depth)
    ]
    return [
        nn.LookupTable(nclass, width, Gaussian()),
        nn.PositionalEncoding(),
        *blocks,
        nn.LayerNorm(),
        softmax_head(nclass),
    ]


def softmax_head(nclass: int) -> nn.Affine:
    """Return the output layer: the probabilities of ``nclass`` classes."""
    return dense(nclass, GlorotUniform(), Softmax())


def dense(nout: int, init: Initializer, activation: Any) -> nn.Affine:
    """Return a fully connected layer with a bias."""
    return nn.Affine(nout, init, bias=Constant(0), activation=activation)


def conv_block(filters: int, size: int) -> nn.Conv:
    """Return a convolution that preserves the image size, with batch normalization and Rectlin."""
    return nn.Conv((size, size, filters), Kaiming(), padding=size // 2, batch_norm=True, activation=Rectlin())


MODELS: dict[str, Callable[..., Any]] = {f.__name__: f for f in (mlp, lenet, cifar10_conv, allcnn, resnet)}

LANGUAGE_MODELS: dict[str, Callable[..., Any]] = {f.__name__: f for f in (rnn, lstm, gru, transformer)}

# The default training settings of each data set: network, epochs, batch size, initial learning rate and augmentation.
# Settings of one network are under its name. They never change the batch size, which a resumed training must keep.
RECIPES: dict[str, dict[str, Any]] = {
    "digits": {"model": "mlp", "epochs": 40, "batch_size": 32, "lr": 0.003},
    "iris": {"model": "mlp", "epochs": 60, "batch_size": 16, "lr": 0.01},
    "mnist5k": {"model": "lenet", "epochs": 20, "batch_size": 64, "lr": 0.003, "augment": [Shift(1)]},
    "fashion": {"model": "lenet", "epochs": 20, "batch_size": 128, "lr": 0.003, "augment": [Flip()]}
    | {"mlp": {"epochs": 30, "lr": 0.001, "augment": None}},
    "text": {"model": "lstm", "epochs": 8, "batch_size": 32, "lr": 0.004} | {"transformer": {"epochs": 20}},
    "mnist": {"model": "lenet", "epochs": 5, "batch_size": 128, "lr": 0.003, "augment": [Shift(1)]},
    "cifar10": {"model": "cifar10_conv", "epochs": 10, "batch_size": 128, "lr": 0.002, "augment": [Flip()]},
}


def recipe(dataset: str, model: str | None = None) -> dict[str, Any]:
    """Return the training settings of a data set: model, epochs, batch_size, lr and augment.

    Parameters
    ----------
    dataset : str
        A name of ``RECIPES``.
    model : str, optional
        A name of ``MODELS`` or ``LANGUAGE_MODELS``. Default: that of the data set.

    Raises
    ------
    ValueError
        An unknown name.

    Examples
    --------
    >>> recipe("digits")
    {'augment': None, 'model': 'mlp', 'epochs': 40, 'batch_size': 32, 'lr': 0.003}
    """
    for label, name, known in ("dataset", dataset, RECIPES), ("model", model, MODELS | LANGUAGE_MODELS):
        if name is not None:
            one_of(f"recipe: {label}", name, known)
    common = RECIPES[dataset]
    network = model or common["model"]
    settings = {key: value for key, value in common.items() if key not in MODELS | LANGUAGE_MODELS}
    return {"augment": None, **settings, **common.get(network, {}), "model": network}
