"""The networks of the zoo have the shapes they should, and learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neonlite import gen_backend
from neonlite.data import ArrayIterator, digits
from neonlite.layers import GeneralizedCost
from neonlite.models import Model, zoo
from neonlite.optimizers import Adam, CosineSchedule
from neonlite.transforms import Accuracy, CrossEntropyMulti, SumSquared

SMALL: dict[str, Any] = {
    "mlp": lambda: zoo.mlp(3, hidden=(16, 8)),
    "lenet": lambda: zoo.lenet(3, maps=(4, 4), hidden=8, keep=0.9),
    "cifar10_conv": lambda: zoo.cifar10_conv(3),
    "allcnn": lambda: zoo.allcnn(3, width=4),
    "resnet": lambda: zoo.resnet(3, width=4, blocks=2),
}


def stripes(n: int = 48) -> tuple[Any, Any]:
    """Images (2, 16, 16) with stripes along, across, or neither, in noise."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, n)
    X = rng.normal(scale=0.2, size=(n, 2, 16, 16))
    wave = np.sin(np.arange(16))
    X[y == 0] += wave
    X[y == 1] += wave[:, None]
    return X.astype(np.float32), y


def test_every_network_is_tried_here():
    assert SMALL.keys() == zoo.MODELS.keys()


@pytest.mark.parametrize("name", SMALL)
def test_a_network_learns_to_tell_stripes_apart(name):
    gen_backend("cpu", rng_seed=1, batch_size=16)
    X, y = stripes()
    data = ArrayIterator(X, y, nclass=3, shuffle=True)
    model = Model(SMALL[name]())
    model.fit(data, CrossEntropyMulti(), Adam(learning_rate=0.01), num_epochs=30)
    assert model.layers.out_shape == 3
    assert model.eval(data, Accuracy())[0] > 0.9


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("mlp", 784, 784 * 200 + 200 + 200 * 10 + 10),
        ("lenet", (1, 28, 28), None),
        ("resnet", (3, 32, 32), None),
    ],
)
def test_networks_are_as_large_as_they_should(name, shape, parameters):
    gen_backend("cpu", batch_size=2)
    stated = Model(zoo.MODELS[name]()).layers.summary(shape)
    assert stated.rows[0].out_shape == 10
    assert parameters is None or stated.parameters == parameters
    assert stated.parameters < 300_000


def test_the_autoencoder_gives_images_back():
    gen_backend("cpu", rng_seed=1, batch_size=16)
    rng = np.random.default_rng(0)
    X = (rng.random((32, 1, 9, 9)) > 0.5).astype(np.float32).repeat(1, axis=2)
    X[:, :, 1::2] = X[:, :, :-1:2]  # two rows alike
    model = Model(zoo.autoencoder(maps=16))
    data = ArrayIterator(X)
    model.initialize(data, GeneralizedCost(SumSquared()))
    before = model.eval_cost(data)
    model.fit(data, model.cost, Adam(learning_rate=0.02), num_epochs=60)
    assert model.eval_cost(data) < 0.3 * before


def test_the_gan_has_a_generator_of_images_and_their_judge():
    be = gen_backend("cpu", rng_seed=1, batch_size=4)
    net = zoo.gan((1, 8, 8), hidden=8)
    net.configure(16)
    net.allocate()
    net.allocate_deltas()
    assert net.generator.out_shape == (1, 8, 8)
    assert net.discriminator.out_shape == 1
    judged = net.fprop(be.ones((16, 4))).get()
    assert ((judged > 0) & (judged < 1)).all()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "epochs", "right"), [("mlp", 30, 0.975), ("lenet", 15, 0.98)])
def test_digits_are_read(name, epochs, right):
    gen_backend("cpu", rng_seed=1)
    train, valid = digits().iterators(32)
    model = Model(zoo.MODELS[name]())
    optimizer = Adam(learning_rate=0.003, schedule=CosineSchedule(epochs))
    model.fit(train, CrossEntropyMulti(), optimizer, epochs)
    assert model.eval(valid, Accuracy())[0] >= right
