"""GAN: train a generator and a discriminator."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from neonlite.backend import Tensor
from neonlite.backend.concurrency import exclusive
from neonlite.backend.random import RandomStreams
from neonlite.backend.transaction import atomic, restore_on_failure
from neonlite.backend.validation import check_number, instance, integer, one_of
from neonlite.data import NervanaDataIterator
from neonlite.layers import GeneralizedCost, GeneralizedGANCost, GenerativeAdversarial, LayerContainer, Multicost
from neonlite.layers.buffers import iobuf_shape, num_features
from neonlite.layers.summary import Summary
from neonlite.messages import describe
from neonlite.models.model import Model
from neonlite.models.predict import predict_rows
from neonlite.optimizers import Optimizer
from neonlite.optree import Operand
from neonlite.transforms import Cost, GANCost
from neonlite.typing import LayerShape, LayerShapes, ShapeLike

# With wgan_train_sched, the discriminator makes WGAN_CRITIC_STEPS steps for each of the first WGAN_WARMUP_STEPS steps
# of the generator, and for every WGAN_CRITIC_INTERVAL-th step after these.
WGAN_CRITIC_STEPS = 100
WGAN_WARMUP_STEPS, WGAN_CRITIC_INTERVAL = 25, 500


class GAN(Model):
    """A generator and a discriminator that are trained on data without targets.

    Each minibatch trains the discriminator for one step, on data and on outputs of the generator. After every ``k`` of
    these steps, the generator is trained for one step. One optimizer updates both.

    Parameters
    ----------
    layers : GenerativeAdversarial, str, Path or dict
        ``GenerativeAdversarial(generator, discriminator)``, or a checkpoint.
    noise_dim : shape
        The shape of one sample of the noise.
    noise_type : str
        "normal", or "uniform" for noise from -1 to 1. Default: "normal".
    weights_only : bool
        Whether to load only the weights of a checkpoint. Default: False.
    name : str, optional
        The name of the model.
    optimizer : Optimizer or str, optional
        The optimizer, or its name, for ``summary`` and ``benchmark``; ``fit`` replaces it.
    k : int
        The number of steps of the discriminator for each step of the generator. Default: 1.
    wgan_param_clamp : float, optional
        Clip the parameters of the discriminator to this magnitude after each of its steps, for
        ``GANCost(func="wasserstein")``. Default: no clipping.
    wgan_train_sched : bool
        Whether the discriminator makes 100 steps instead of ``k`` for each of the first 25 steps of the generator, and
        for every 500th. Default: False.

    Raises
    ------
    TypeError
        ``layers`` is not a GenerativeAdversarial.
    CheckpointError
        The checkpoint was saved by a GAN with other settings.

    References
    ----------
    Goodfellow et al. 2014, Generative Adversarial Nets, algorithm 1.
    Arjovsky, Chintala and Bottou 2017, Wasserstein GAN, algorithm 1 and its published code.
    """

    cost_wrapper = GeneralizedGANCost
    has_targets = False
    progress_fields: ClassVar[dict[str, type]] = {**Model.progress_fields, "gen_iterations": int, "dis_iterations": int}

    def __init__(
        self,
        layers: GenerativeAdversarial | str | Path | dict[str, Any],
        noise_dim: ShapeLike,
        noise_type: str = "normal",
        weights_only: bool = False,
        name: str | None = None,
        optimizer: Optimizer | str | None = None,
        k: int = 1,
        wgan_param_clamp: float | None = None,
        wgan_train_sched: bool = False,
    ) -> None:
        self.noise_type = one_of("GAN: noise_type", noise_type, ("normal", "uniform"))
        self.noise_dim, self.k, limit = noise_dim, integer("GAN: k", k), wgan_param_clamp
        self.wgan_param_clamp = None if limit is None else float(check_number("GAN: wgan_param_clamp", limit, above=0))
        self.wgan_train_sched = bool(wgan_train_sched)
        self.gen_iterations = 0  # the number of steps of the generator
        self.dis_iterations = 0  # the number of steps of the discriminator since the last one of the generator
        self.cost_gen = math.nan  # the cost of the generator in its last step
        super().__init__(layers, None, weights_only, name, optimizer)
        kind = "GenerativeAdversarial(generator, discriminator)"
        instance(f"{self.name}: layers", self.layers, GenerativeAdversarial, kind)

    # --- the two networks ---

    @property
    def generator(self) -> LayerContainer:
        """The network from noise to data."""
        return cast(GenerativeAdversarial, self.layers).generator

    @property
    def discriminator(self) -> LayerContainer:
        """The network that distinguishes data from outputs of the generator."""
        return cast(GenerativeAdversarial, self.layers).discriminator

    @property
    def data_shape(self) -> LayerShape:
        """The shape of one sample of the data: that of the outputs of the generator."""
        return cast(LayerShape, self.generator.out_shape)

    @property
    def resume_settings(self) -> dict[str, Any]:
        """Constructor arguments that must be the same when training resumes from a checkpoint."""
        names = ("noise_type", "k", "wgan_param_clamp", "wgan_train_sched")
        dim = list(self.noise_dim) if isinstance(self.noise_dim, tuple) else self.noise_dim
        return {"noise_dim": dim, **{name: getattr(self, name) for name in names}}

    def allocate(self, shape: LayerShapes) -> None:
        """Configure both networks and allocate their parameters.

        Parameters
        ----------
        shape : shape
            The shape of one sample of the data.

        Raises
        ------
        ValueError
            The outputs of the generator have another size.
        """
        self.layers.configure(self.noise_dim)
        if iobuf_shape(self.data_shape) != iobuf_shape(cast(LayerShape, shape)):
            raise ValueError(
                f"{self.name}: expected data of the shape of the generator's outputs, {self.data_shape}, got {shape}"
            )
        super().allocate(self.noise_dim)

    def initialize(
        self, dataset: NervanaDataIterator | LayerShapes, cost: GeneralizedCost | Multicost | Cost | str | None = None
    ) -> None:
        if cost is not None and not isinstance(cost, GANCost | GeneralizedGANCost):
            raise TypeError(f"{self.name}: expected GeneralizedGANCost(GANCost()), got {describe(cost)}")
        super().initialize(dataset, cost)

    def summary(self, dataset: NervanaDataIterator | LayerShapes | None = None) -> Summary:
        """Return shapes, parameters, FLOPs and memory of both networks, as in a training step of the generator.

        Parameters
        ----------
        dataset : optional
            Ignored: ``noise_dim`` is the shape of the inputs.
        """
        summary: Summary = self.layers.summary(self.noise_dim, None, self.optimizer)
        return summary

    # --- training ---

    @property
    def critic_steps_due(self) -> int:
        """The number of steps of the discriminator before the next step of the generator."""
        is_critic_phase = self.gen_iterations < WGAN_WARMUP_STEPS or self.gen_iterations % WGAN_CRITIC_INTERVAL == 0
        return WGAN_CRITIC_STEPS if self.wgan_train_sched and is_critic_phase else self.k

    def train_step(self, x: Tensor | list[Tensor], t: Tensor | list[Tensor], epoch: int = 0) -> float:
        """Train the discriminator on one minibatch, and then the generator if ``critic_steps_due`` steps are complete.

        Parameters
        ----------
        x : Tensor
            The data.
        t : object
            Ignored.
        epoch : int
            The index of the epoch, for the learning-rate schedule. Default: 0.

        Returns
        -------
        float
            The cost of the discriminator.
        """
        return atomic(self._step, x, epoch)

    def _step(self, x: Any, epoch: int) -> float:
        layers = self.discriminator.layers_to_optimize
        dis_cost = self._compute_all_gradients([self.draw_noise(), x], [])
        self.optimizer.optimize(layers, epoch)
        if (limit := self.wgan_param_clamp) is not None:
            params = [p for layer in layers for p in layer.parameters]
            self.be.assign(params, [self.be.clip(p, -limit, limit) for p in params])
        self.dis_iterations += 1
        if self.dis_iterations >= self.critic_steps_due:
            self.train_step_generator(epoch)
        return dis_cost

    def train_step_generator(self, epoch: int = 0) -> None:
        """Train the generator on the errors that the discriminator propagates to its outputs.

        Parameters
        ----------
        epoch : int
            The index of the epoch, for the learning-rate schedule. Default: 0.
        """
        restore_on_failure(self, "cost_gen")
        self.cost_gen = self._compute_all_gradients([self.draw_noise()], [])
        self.optimizer.optimize(self.generator.layers_to_optimize, epoch)
        self.gen_iterations, self.dis_iterations = self.gen_iterations + 1, 0

    def _build_step(self, x: Any, t: Any) -> tuple[Any, list[Operand | None], list[tuple[Operand, Operand]]]:
        """Return what the step of ``compute_gradients`` trains, its cost and errors, as op-trees.

        Noise comes first in the cost, too, so that random numbers are drawn in the same order.
        """
        y: Any = self.layers(x[0], training=True)
        arguments: Any = None, y, "gen"
        if len(x) == 1:
            network, outputs = self.generator, {"generator": y}
        else:
            network, outputs = self.discriminator, {"noise": y, "data": self.discriminator(x[1], training=True)}
            arguments = outputs["data"], y, "dis"
        mean: Any = self.be.mean(self.cost.call_with_context(self.cost.costfunc, *arguments), axis=1)
        return network, [mean], [(y, self.scale_errors(self.cost.build_errors(y, kind))) for kind, y in outputs.items()]

    def compute_gradients(
        self, x: Tensor | list[Tensor], t: Tensor | list[Tensor]
    ) -> tuple[Tensor | list[Tensor], float]:
        """Run the passes of a step: with [noise] as x of the generator, with [noise, data] of the discriminator."""
        net, y = self.discriminator, self.fprop(x[0])
        if len(x) == 1:
            self.bprop(self.scale_errors(self.cost.get_errors(y, "generator")))
            return y, float(self.cost.get_cost(None, y, "gen").item())
        net.bprop(self.scale_errors(self.cost.get_errors(y, "noise")))
        gradients = [dw for layer in net.layers_to_optimize for dw in layer.gradients]
        y_noise, *of_noise = [t.copy() for t in (cast(Tensor, y), *gradients)]  # the second pass overwrites them
        y = net.fprop(x[1])
        net.bprop(self.scale_errors(self.cost.get_errors(y, "data")))
        self.be.assign(gradients, [dw + before for dw, before in zip(gradients, of_noise, strict=True)])
        return y, float(self.cost.get_cost(y, y_noise, "dis").item())

    def _recompute_outputs(self, x: Any) -> None:
        self.fprop(x[0], inference=True)
        for y in x[1:]:
            self.discriminator.fprop(y, inference=True)

    def check_can_evaluate(self) -> None:
        """Raise TypeError, as there are no targets for the outputs of the generator."""
        raise TypeError(f"{self.name}: expected a model with targets, got a GAN. Use generate(n) or GANCostCallback().")

    # --- noise and samples ---

    def draw_noise(self) -> Tensor:
        """Return new noise for a minibatch.

        Returns
        -------
        Tensor
            The noise, (features, N).
        """
        be, z = self.be, self.layers.buffer("noise", self.layers.in_shape)
        z[:] = be.randn(z.shape) if self.noise_type == "normal" else 2 * be.rand(z.shape) - 1
        return z

    def get_noise(self, n: int) -> NDArray[Any]:
        """Return noise that depends only on the backend's seed; the random streams of training do not advance.

        Parameters
        ----------
        n : int
            The number of samples.

        Returns
        -------
        numpy.ndarray
            (n, features).
        """
        streams, shape = RandomStreams(self.be.rng_seed), (n, num_features(self.layers.in_shape))
        if self.noise_type == "normal":
            return streams.normal("noise", shape)
        return 2 * streams.uniform("noise", shape) - 1

    @exclusive
    def generate(self, n: int) -> NDArray[Any]:
        """Return the outputs of the generator for ``get_noise(n)``, so that epochs can be compared.

        Parameters
        ----------
        n : int
            The number of samples.

        Returns
        -------
        numpy.ndarray
            (n, C, H, W) or (n, F).

        Raises
        ------
        RuntimeError
            The network has no weights yet.
        ValueError
            ``n`` is below 1.
        """
        self._check_configured(f"{self.name}.generate")
        n = integer(f"{self.name}.generate: n", n)
        self.initialize(self.data_shape)
        noise = np.pad(self.get_noise(n), ((0, -n % self.be.bsz), (0, 0)))  # minibatches of one size: equal rounding
        outputs = predict_rows(f"{self.name}.generate", self.generator, noise, None, True, self.be.bsz)[:n]
        shape = self.data_shape
        return outputs.reshape(n, *([shape] if isinstance(shape, int) else shape))
