"""The networks of the zoo have the expected layers, shapes and sizes, and learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neonlite import gen_backend
from neonlite.data import DATASETS, ArrayIterator, Flip
from neonlite.layers import Activation, GeneralizedCost, Pooling, Sequential
from neonlite.models import Model, zoo
from neonlite.optimizers import Adam
from neonlite.transforms import Accuracy, CrossEntropyMulti, SumSquared

SMALL: dict[str, Any] = {
    "mlp": lambda: zoo.mlp(3, hidden=(16, 8)),
    "lenet": lambda: zoo.lenet(3, filters=(4, 4), hidden=8, keep=0.9),
    "cifar10_conv": lambda: zoo.cifar10_conv(3),
    "allcnn": lambda: zoo.allcnn(3, width=4),
    "resnet": lambda: zoo.resnet(3, width=4, blocks=2),
}


def stripes(n: int = 48) -> tuple[Any, Any]:
    """Return images (2, 16, 16) of noise with horizontal, vertical or no stripes."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, n)
    X = rng.normal(scale=0.2, size=(n, 2, 16, 16))
    wave = np.sin(np.arange(16))
    X[y == 0] += wave
    X[y == 1] += wave[:, None]
    return X.astype(np.float32), y


def test_every_network_is_covered_here():
    assert SMALL.keys() == zoo.MODELS.keys()


@pytest.mark.long
@pytest.mark.parametrize("name", SMALL)
def test_a_network_learns_to_classify_stripes(name):
    gen_backend("cpu", rng_seed=1, batch_size=16)
    X, y = stripes()
    data = ArrayIterator(X, y, nclass=3, shuffle=True)
    model = Model(SMALL[name]())
    model.fit(data, CrossEntropyMulti(), Adam(learning_rate=0.01), num_epochs=15)
    assert model.layers.out_shape == 3
    assert model.eval(data, Accuracy())[0] > 0.9


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)], ids=["fashion", "cifar10"])
@pytest.mark.parametrize("name", SMALL)
def test_a_network_accepts_images_of_the_size_of(name, shape):
    gen_backend("cpu", rng_seed=1, batch_size=8)
    rng = np.random.default_rng(0)
    data = ArrayIterator(rng.normal(size=(8, *shape)), rng.integers(0, 10, 8), nclass=10)
    model = Model(zoo.MODELS[name]())
    model.fit(data, CrossEntropyMulti(), Adam(learning_rate=0.002), num_epochs=1)
    first = model.total_cost
    model.fit(data, CrossEntropyMulti(), model.optimizer, num_epochs=3)
    assert 1 < first < 10  # log 10 is the cost of guessing
    assert model.total_cost < 0.95 * first


# For images of 28 x 28: filters, two parameters a channel for batch norm, matrices, biases.
PARAMETERS = {
    "mlp": 784 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10,
    "lenet": 9 * 16 + 32 + 9 * 16 * 32 + 64 + 9 * 32 * 64 + 128 + 3 * 3 * 64 * 64 + 64 + 64 * 10 + 10,
    "cifar10_conv": 25 * 16 + 32 + 25 * 16 * 32 + 64 + 4 * 4 * 32 * 500 + 1000 + 500 * 10 + 10,
    "allcnn": 9 * (96 + 96 * 96 * 2 + 96 * 192 + 192 * 192 * 3) + 192 * 192 + 1920 + 2 * (3 * 96 + 5 * 192 + 10),
    "resnet": 9 * (16 + 16 * 16 * 2 + 16 * 32 + 32 * 32 + 32 * 64 + 64 * 64)
    + (16 * 32 + 32 * 64 + 2 * (3 * 16 + 3 * 32 + 3 * 64) + 64 * 10 + 10),
}
NORMED = ["BatchNorm", "Rectlin"]
HIDDEN, HEAD = ["Linear", "Bias", "Rectlin"], ["Linear", "Bias", "Softmax"]
CONV = ["Convolution", *NORMED]
BLOCK = ["MergeSum", "Sequential", *CONV, "Convolution", "BatchNorm", "Sequential"]
GENERATOR = [*HIDDEN, "Linear", "Bias", "Tanh", "Reshape"]
DISCRIMINATOR = ["Reshape", *HIDDEN, "Linear", "Bias", "Logistic"]
KINDS: dict[str, list[str]] = {
    "mlp": [*[*HIDDEN, "Dropout"] * 2, *HEAD],
    "lenet": [*[*CONV, "Pooling"] * 3, *HIDDEN, "Dropout", *HEAD],
    "cifar10_conv": [*[*CONV, "Pooling"] * 2, "Linear", *NORMED, *HEAD],
    "allcnn": [*[*CONV * 3, "Dropout"] * 2, *CONV * 3, "Pooling", "Reshape", "Softmax"],
    "resnet": [*CONV, *BLOCK, "SkipNode", "Rectlin", *[*BLOCK, "Convolution", *NORMED] * 2, "Pooling", *HEAD],
    "autoencoder": ["Convolution_bias", "Rectlin", "Deconvolution", "Bias", "Logistic"],
    "gan": ["Sequential", *GENERATOR, "Sequential", *DISCRIMINATOR],
}


def kinds(network: Any) -> list[str]:
    result = []
    for layer in network.layers:
        result.append(type(layer.transform if isinstance(layer, Activation) else layer).__name__)
        result += kinds(layer) if hasattr(layer, "layers") else []
    return result


@pytest.mark.parametrize("name", KINDS)
def test_networks_have_the_expected_layers(name):
    created = getattr(zoo, name)()
    assert kinds(Sequential(created) if isinstance(created, list) else created) == KINDS[name]


@pytest.mark.parametrize("name", PARAMETERS)
def test_networks_have_the_expected_number_of_parameters(name):
    gen_backend("cpu", batch_size=2)
    stated = Sequential(zoo.MODELS[name]()).summary((1, 28, 28))
    assert stated.rows[0].out_shape == 10
    assert stated.parameters == PARAMETERS[name]


def test_a_network_without_dropout_has_none():
    assert "Dropout" not in kinds(Sequential([*zoo.mlp(keep=1), *zoo.lenet(keep=1)]))


@pytest.mark.parametrize(
    ("name", "last"),
    [("lenet", (64, 8, 8)), ("cifar10_conv", (32, 10, 10)), ("allcnn", (10, 8, 8)), ("resnet", (64, 8, 8))],
)
def test_the_last_pooling_has_feature_maps_of_this_size(name, last):
    gen_backend("cpu", batch_size=2)
    network = Sequential(zoo.MODELS[name]())
    network.configure((3, 32, 32))
    assert [layer.in_shape for layer in network.layers if isinstance(layer, Pooling)][-1] == last


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 6, 10)])
def test_the_autoencoder_reconstructs_images(shape):
    gen_backend("cpu", rng_seed=1, batch_size=16)
    X = (np.random.default_rng(0).random((32, *shape)) > 0.5).astype(np.float32)
    X[:, :, 1::2] = X[:, :, ::2]  # pairs of equal rows
    model = Model(zoo.autoencoder(filters=16, channels=shape[0]))
    data = ArrayIterator(X)
    model.initialize(data, GeneralizedCost(SumSquared()))
    assert model.layers.out_shape == shape
    assert model.layers.layers[0].out_shape == (16, shape[1] // 2, shape[2] // 2)
    before = model.eval_cost(data)
    model.fit(data, model.cost, Adam(learning_rate=0.02), num_epochs=60)
    assert model.eval_cost(data) < 0.3 * before


def test_the_gan_has_a_generator_of_images_and_a_discriminator():
    be = gen_backend("cpu", rng_seed=1, batch_size=4)
    net = zoo.gan((1, 8, 8), hidden=8)
    net.configure(16)
    net.allocate()
    net.allocate_deltas()
    assert net.generator.out_shape == (1, 8, 8)
    assert net.discriminator.out_shape == 1
    outputs = net.fprop(be.ones((16, 4))).get()
    assert ((outputs > 0) & (outputs < 1)).all()


def test_a_recipe_is_that_of_the_data_set_with_the_settings_of_the_network(monkeypatch):
    own = {"model": "lenet", "epochs": 3, "batch_size": 8, "lr": 0.1, "augment": [Flip()]}
    monkeypatch.setitem(zoo.RECIPES, "own", own | {"mlp": {"epochs": 9, "augment": None}})
    assert zoo.recipe("own") == zoo.recipe("own", "lenet") == zoo.recipe("own", "resnet") | {"model": "lenet"} == own
    assert zoo.recipe("own", "mlp") == {"model": "mlp", "epochs": 9, "batch_size": 8, "lr": 0.1, "augment": None}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("digit",), "expected one of 'digits', .* for dataset, got 'digit'$"),
        (("iris", "mpl"), "expected one of 'mlp', .* for model, got 'mpl'$"),
    ],
)
def test_a_recipe_of_an_unknown_name_lists_the_known_names(names, message):
    with pytest.raises(ValueError, match=f"^recipe: {message}"):
        zoo.recipe(*names)


@pytest.mark.parametrize("dataset", DATASETS)
def test_every_data_set_has_a_recipe_for_every_network(dataset):
    for name in (None, *zoo.MODELS):
        result = zoo.recipe(dataset, name)
        assert result.keys() == {"model", "epochs", "batch_size", "lr", "augment"}
        assert result["batch_size"] == zoo.RECIPES[dataset]["batch_size"]  # which a resumed training must keep
    assert zoo.RECIPES.keys() == {*DATASETS, "text"}
