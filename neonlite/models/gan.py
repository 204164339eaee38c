"""How do two networks learn from each other?  One makes what looks like data, the other tells it from data."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from neonlite.backend.random import Streams
from neonlite.layers import GeneralizedGANCost, GenerativeAdversarial
from neonlite.layers.buffers import by_columns, features
from neonlite.layers.summary import Summary
from neonlite.models.model import Model
from neonlite.optree import describe
from neonlite.transforms import GANCost

AHEAD = 100  # steps of the discriminator where it is to be ahead, with wgan_train_sched
EARLY, EVERY = 25, 500  # these steps of the generator: the first ones, and then one in so many


class GAN(Model):
    """A generator and a discriminator, ``layers=GenerativeAdversarial(...)``, that learn from data without targets.

    Each minibatch is a step of the discriminator: it learns from data, and from what the generator makes of noise;
    after every ``k`` of them comes a step of the generator. One optimizer updates both, and the cost, a
    ``GeneralizedGANCost`` or ``GANCost``, is told of the discriminator.

    ``noise_dim``: the shape of the noise; ``noise_type``: "normal", or "uniform" from -1 to 1. For ``GANCost(func=
    "wasserstein")``, ``wgan_param_clamp`` is the largest magnitude that a parameter of the discriminator keeps behind
    its step; and with ``wgan_train_sched`` it makes 100 steps instead of k in each of the first 25 of the generator,
    and in every 500th. A file that training goes on from was written with all of these the same.

    Source: Goodfellow et al. 2014, algorithm 1; Arjovsky, Chintala and Bottou 2017, algorithm 1 and its published code.
    """

    generalized = GeneralizedGANCost
    progress: ClassVar[dict[str, type]] = {**Model.progress, "gen_iterations": int, "dis_iterations": int}

    def __init__(
        self,
        layers: Any,
        noise_dim: Any,
        noise_type: str = "normal",
        weights_only: bool = False,
        name: str | None = None,
        optimizer: Any = None,
        k: int = 1,
        wgan_param_clamp: float | None = None,
        wgan_train_sched: bool = False,
    ) -> None:
        if noise_type not in ("normal", "uniform"):
            raise ValueError(f"noise_type is 'normal' or 'uniform'; got {noise_type!r}")
        if type(k) is not int or k < 1:
            raise ValueError(f"k, the steps of the discriminator for one of the generator, is 1 or more; got {k!r}")
        limit = wgan_param_clamp
        if limit is not None and not (isinstance(limit, Real) and limit > 0):
            raise ValueError(f"wgan_param_clamp is a number above 0, or None for no limit; got {wgan_param_clamp!r}")
        self.noise_dim, self.noise_type, self.k = noise_dim, noise_type, k
        self.wgan_param_clamp = None if limit is None else float(limit)
        self.wgan_train_sched = bool(wgan_train_sched)
        self.gen_iterations = 0  # steps of the generator
        self.dis_iterations = 0  # steps of the discriminator since the last one
        self.cost_gen = math.nan  # the generator's cost in its last step
        self.buffers: dict[str, Any] = {}
        super().__init__(layers, None, weights_only, name, optimizer)
        if not isinstance(self.layers, GenerativeAdversarial):
            raise TypeError(f"{self.name}: layers are GenerativeAdversarial(generator, discriminator); got {layers!r}")

    # --- the two ---

    @property
    def generator(self) -> Any:
        """The network from noise to data."""
        return self.layers.generator

    @property
    def discriminator(self) -> Any:
        """The network that tells data from the generator's work."""
        return self.layers.discriminator

    @property
    def data_shape(self) -> Any:
        """The shape of the data: what the generator makes."""
        return self.generator.out_shape

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the bits of a training: a file that is gone on from has the same."""
        words = ("noise_type", "k", "wgan_param_clamp", "wgan_train_sched")
        dim = list(self.noise_dim) if isinstance(self.noise_dim, tuple) else self.noise_dim
        return {"noise_dim": dim, **{word: getattr(self, word) for word in words}}

    def allocate(self, shape: Any) -> None:
        """Settle shapes and make buffers. ValueError unless the generator makes what the data are."""
        self.layers.configure(self.noise_dim)
        if by_columns(self.data_shape) != by_columns(shape):
            raise ValueError(f"{self.name}: the generator makes {self.data_shape}; the data are {shape}")
        self.layers.allocate(accumulate_updates=True)  # gradients of data and of noise
        self.layers.allocate_deltas()

    def initialize(self, dataset: Any, cost: Any = None) -> None:
        """Settle shapes and make buffers, once; then take the cost, if given. TypeError when it is none for a GAN."""
        if cost is not None and not isinstance(cost, GANCost | GeneralizedGANCost):
            raise TypeError(f"{self.name}: the cost is GeneralizedGANCost(GANCost()); got {describe(cost)}")
        super().initialize(dataset, cost)

    def summary(self, dataset: Any = None) -> Summary:
        """Return what the two take, one behind the other, as in a step of the generator."""
        found: Summary = self.layers.summary(self.noise_dim, None, self.optimizer)
        return found

    # --- learning ---

    @property
    def due(self) -> int:
        """How many steps the discriminator makes before the next one of the generator."""
        ahead = self.gen_iterations < EARLY or self.gen_iterations % EVERY == 0
        return AHEAD if self.wgan_train_sched and ahead else self.k

    def step(self, x: Any, t: Any, epoch: int = 0) -> float:
        """Learn from one minibatch, and return the discriminator's cost; if it is due, have the generator learn."""
        net, cost = self.discriminator, self.cost
        y = self.layers.fprop(self.draw())
        y_noise = self.buffer("y_noise", self.layers.out_shape)  # that of the network is for data next
        y_noise[:] = y
        net.bprop(self.scaled(cost.get_errors(y, "noise")))
        net.set_acc_on(True)
        try:
            y_data = net.fprop(x)
            net.bprop(self.scaled(cost.get_errors(y_data, "data")))
        finally:
            net.set_acc_on(False)
        found = float(cost.get_cost(y_data, y_noise, "dis").item())
        self.optimizer.optimize(net.layers_to_optimize, epoch)
        if (limit := self.wgan_param_clamp) is not None:
            params = [p for layer in net.layers_to_optimize for p in layer.parameters]
            self.be.assign(params, [self.be.clip(p, -limit, limit) for p in params])
        self.dis_iterations += 1
        if self.dis_iterations >= self.due:
            self.step_generator(epoch)
        return found

    def step_generator(self, epoch: int = 0) -> None:
        """Have the generator learn from what the discriminator says of its work."""
        y = self.layers.fprop(self.draw())
        self.layers.bprop(self.scaled(self.cost.get_errors(y, "generator")))
        self.cost_gen = float(self.cost.get_cost(None, y, "gen").item())
        self.optimizer.optimize(self.generator.layers_to_optimize, epoch)
        self.gen_iterations, self.dis_iterations = self.gen_iterations + 1, 0

    def check_judged(self) -> None:
        """Raise TypeError: what it makes has no targets."""
        raise TypeError(f"{self.name}: a GAN is judged by what it makes: generate(n), GANCosts()")

    # --- noise, and what comes of it ---

    def draw(self) -> Any:
        """Return new noise for a minibatch."""
        be, z = self.be, self.buffer("noise", self.layers.in_shape)
        z[:] = be.randn(z.shape) if self.noise_type == "normal" else 2 * be.rand(z.shape) - 1
        return z

    def buffer(self, name: str, shape: Any) -> Any:
        """Return the buffer of a name, for a minibatch of now."""
        found = self.buffers.get(name)
        if found is None or found.shape[1] != self.be.bsz:
            found = self.buffers[name] = self.layers.buffer(name, shape)
        return found

    def get_noise(self, n: int) -> NDArray[Any]:
        """Return n rows of noise, the same ones every time for a seed; training goes on as if nothing was drawn."""
        streams, shape = Streams(self.be.rng_seed), (n, features(self.layers.in_shape))
        if self.noise_type == "normal":
            return streams.normal("noise", shape)
        return 2 * streams.uniform("noise", shape) - 1

    def generate(self, n: int) -> NDArray[Any]:
        """Return what the generator makes of ``get_noise(n)``, so that epochs can be compared: (n, C, H, W) or (n, F).

        RuntimeError before there is a network, ValueError for n below 1.
        """
        if self.layers.in_shape is None:
            raise RuntimeError(f"{self.name}: it has no weights yet: call initialize(dataset) or fit first")
        if type(n) is not int or n < 1:
            raise ValueError(f"{self.name}.generate makes one image or more; got {n!r}")
        self.initialize(self.data_shape)
        rows, z, found = self.get_noise(n), self.buffer("noise", self.layers.in_shape), []
        for first in range(0, n, self.be.bsz):
            some = rows[first : first + self.be.bsz]
            z.fill(0)
            z[:, : len(some)] = some.T.copy()
            found.append(self.generator.fprop(z, inference=True).get()[:, : len(some)].T)
        shape = self.data_shape
        return np.concatenate(found).reshape(n, *([shape] if isinstance(shape, int) else shape))
