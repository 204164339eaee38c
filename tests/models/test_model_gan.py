"""GAN: the schedule of training steps, the formulas of a step and its program, resuming bit-identically, and noise."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from neonlite import gen_backend
from neonlite.callbacks import CallbackBase
from neonlite.data import ArrayIterator
from neonlite.initializers import Constant, Gaussian, Kaiming
from neonlite.layers import (
    Affine,
    BatchNorm,
    Dropout,
    GeneralizedGANCost,
    GenerativeAdversarial,
    Layer,
    Linear,
    Sequential,
)
from neonlite.models import GAN, CheckpointError, Model, zoo
from neonlite.optimizers import Adam, GradientDescentMomentum, LossScaling, RMSProp
from neonlite.transforms import Accuracy, GANCost, Logistic, MeanSquared, Rectlin

INIT = Kaiming(local=False)


def cloud(n: int = 512) -> Any:
    """Return points from a correlated normal distribution around (2, -1)."""
    turn = np.array([[0.8, 0.3], [0.0, 0.4]])
    return (np.random.default_rng(0).normal(size=(n, 2)) @ turn.T + [2, -1]).astype(np.float32)


def pair(func: str = "modified", hidden: int = 16) -> GenerativeAdversarial:
    end = None if func == "wasserstein" else Logistic()
    make = [
        Affine(hidden, INIT, Constant(0), activation=Rectlin(0.2), name="make"),
        Affine(2, INIT, Constant(0), name="made"),
    ]
    critic = [
        Affine(2 * hidden, INIT, Constant(0), activation=Rectlin(0.2), name="critic"),
        Affine(1, INIT, Constant(0), activation=end, name="critic_out"),
    ]
    return GenerativeAdversarial(make, critic)


def small(runtime: str = "cpu", func: str = "wasserstein", **more: Any) -> tuple[GAN, ArrayIterator]:
    gen_backend(runtime, rng_seed=5, batch_size=4)
    return GAN(pair(func, 3), 2, **more), ArrayIterator(cloud(40), shuffle=True)


CRITIC = {"k": 3, "wgan_param_clamp": 0.2}


@pytest.mark.long
@pytest.mark.parametrize(
    (
        "func",
        "optimizer",
        "more",
        "epochs",
        "off",
    ),  # off: the tolerance of the covariances, large for the first cost, which is known for it
    [
        ("modified", Adam(learning_rate=0.004, beta_1=0.5), {}, 40, 2),
        ("wasserstein", RMSProp(learning_rate=0.006), CRITIC, 80, 0.4),
        ("wasserstein", RMSProp(learning_rate=0.006), {**CRITIC, "noise_type": "uniform"}, 80, 1),
    ],
)
def test_a_gan_learns_the_mean_and_covariance_of_the_data(func, optimizer, more, epochs, off):
    gen_backend("cpu", rng_seed=3, batch_size=64)
    X = cloud()
    gan, data = GAN(pair(func), 4, **more), ArrayIterator(X, shuffle=True)
    gan.initialize(data)
    first, last = gan.generate(500), []
    for epoch in range(epochs - 16, epochs + 1, 2):
        gan.fit(data, GANCost(func=func), optimizer, epoch)
        last.append(gan.generate(500))
    center, spread = np.mean([x.mean(axis=0) for x in last], axis=0), np.mean([np.cov(x.T) for x in last], axis=0)
    assert np.abs(first.mean(axis=0) - X.mean(axis=0)).max() > 1
    assert np.abs(center - X.mean(axis=0)).max() < 0.25
    assert np.abs(spread - np.cov(X.T)).max() < off


# --- a step ----------------------------------------------------------------------------------------------------------


def test_a_step_matches_the_formulas(be64):
    """The critic is w y + c, and the generator A z + b; their derivatives are written by hand."""
    be64.bsz = N = 4
    zs: list[Any] = []

    class NoiseRecorder(GAN):
        def draw_noise(self):
            z = super().draw_noise()
            zs.append(z.get().copy())
            return z

    make, critic = (
        [Affine(n, Gaussian(), Constant(0.5), name=name)] for n, name in ((2, "make"), (1, "critic"))
    )  # fmt: skip
    gan = NoiseRecorder(GenerativeAdversarial(make, critic), 3)
    X = cloud(8).astype(np.float64)
    data = ArrayIterator(X)
    gan.initialize(data)
    p = {name: x.astype(np.float64) for name, x in gan.get_weights().items()}
    gan.fit(data, GANCost(func="wasserstein"), GradientDescentMomentum(0.1, 0.0), 1)
    A, b, w, c = p["make.W"], p["make_bias.W"], p["critic.W"], p["critic_bias.W"]
    costs = []
    for i in range(2):
        x = X[N * i : N * (i + 1)].T
        fake = A @ zs[2 * i] + b
        costs.append(float((w @ fake).mean() - (w @ x).mean()))
        w = w - 0.1 * (fake.mean(axis=1) - x.mean(axis=1))  # c is in both costs, and cancels out
        z = zs[2 * i + 1]
        cost_gen = -float((w @ (A @ z + b) + c).mean())
        A, b = A + 0.1 * w.T @ z.mean(axis=1, keepdims=True).T, b + 0.1 * w.T
    for name, expected in {"make.W": A, "make_bias.W": b, "critic.W": w, "critic_bias.W": c}.items():
        np.testing.assert_allclose(gan.get_weights()[name], expected, rtol=1e-9, atol=1e-12)
    assert gan.total_cost == pytest.approx(np.mean(costs))
    assert gan.cost_gen == pytest.approx(cost_gen)
    assert len(zs) == 4


class StepCounter(CallbackBase):
    """Records after each minibatch the number of steps of the generator."""

    def __init__(self, gan: GAN) -> None:
        self.gan, self.turns = gan, []

    def on_minibatch_end(self, epoch, minibatch):
        self.turns.append(self.gan.gen_iterations)


@pytest.mark.parametrize("k", [1, 2, 3, 7])
def test_the_generator_is_trained_after_k_steps_of_the_discriminator(k):
    gan, data = small(k=k)
    gan.initialize(data)
    turns = StepCounter(gan)
    gan.fit(data, GANCost(func="wasserstein"), GradientDescentMomentum(0.01, 0.0), 2, turns)
    assert turns.turns == [(i + 1) // k for i in range(20)]
    assert gan.dis_iterations == 20 % k


def test_a_step_of_the_discriminator_does_not_change_the_generator():
    gan, data = small(k=2)
    gan.initialize(data, GANCost(func="wasserstein"))
    gan.optimizer = GradientDescentMomentum(0.01, 0.0)
    steps = iter(data)
    before = gan.get_weights()
    gan.train_step(*next(steps))
    first = {name: (x != before[name]).any() for name, x in gan.get_weights().items()}
    assert first["critic.W"]
    assert not first["make.W"]
    gan.train_step(*next(steps))
    assert (gan.get_weights()["make.W"] != before["make.W"]).any()


def test_the_schedule_trains_the_critic_more_at_first_and_at_intervals():
    gan, data = small(k=5, wgan_train_sched=True)
    turns = StepCounter(gan)
    gan.fit(data, GANCost(func="wasserstein"), GradientDescentMomentum(0.001, 0.0), 21, turns)
    assert turns.turns == [(i + 1) // 100 for i in range(210)]
    due = {}
    for n in (0, 24, 25, 26, 499, 500, 501, 999, 1000):
        gan.gen_iterations = n
        due[n] = gan.critic_steps_due
    assert due == {0: 100, 24: 100, 25: 5, 26: 5, 499: 5, 500: 100, 501: 5, 999: 5, 1000: 100}
    gan.wgan_train_sched, gan.gen_iterations = False, 0
    assert gan.critic_steps_due == 5


def test_the_parameters_of_the_critic_are_clipped(be):
    be.bsz = 4
    gan, data = GAN(pair("wasserstein", 3), 2, wgan_param_clamp=0.05), ArrayIterator(cloud(40))
    held = []

    class WeightRecorder(CallbackBase):
        def on_minibatch_end(self, epoch, minibatch):
            held.append(max(np.abs(p.get()).max() for p in gan.discriminator.parameters))

    gan.fit(data, GANCost(func="wasserstein"), GradientDescentMomentum(0.1, 0.0), 1, WeightRecorder())
    assert held == [pytest.approx(0.05)] * 10
    assert max(np.abs(p.get()).max() for p in gan.generator.parameters) > 0.1
    free, data = GAN(pair("wasserstein", 3), 2), ArrayIterator(cloud(40))
    free.fit(data, GANCost(func="wasserstein"), GradientDescentMomentum(0.1, 0.0), 1)
    assert max(np.abs(p.get()).max() for p in free.discriminator.parameters) > 0.1


# --- a step as a program ----------------------------------------------------------------------------------------------


class Formula(Layer):
    """A layer that doubles its inputs."""

    def configure(self, in_obj):
        super().configure(in_obj)
        self.out_shape = self.in_shape
        return self

    def formula(self, x):
        return 2 * x


class Doubled(Formula):
    """The same with its own forward and backward pass, which a program cannot contain."""

    def fprop(self, inputs, inference=False):
        self.set_inputs(inputs, inference)
        self.outputs[:] = 2 * inputs
        return self.outputs

    def bprop(self, error):
        self.deltas[:] = 2 * error
        return self.deltas


def deep(func: str, *more: Any) -> GenerativeAdversarial:
    """Return networks with dropout and batch normalization, the discriminator with further layers."""
    end = None if func == "wasserstein" else Logistic()
    make = [
        Affine(6, INIT, batch_norm=True, activation=Rectlin(0.2), name="make"),
        Dropout(0.7),
        Linear(2, INIT, name="made"),
    ]
    critic = [Affine(8, INIT, Constant(0), activation=Rectlin(0.2), name="critic"), Dropout(0.6), *more]
    critic += [Affine(4, INIT, batch_norm=True, activation=Rectlin(0.1), name="normed"), Dropout(0.8)]
    return GenerativeAdversarial(make, [*critic, Affine(1, INIT, Constant(0), activation=end, name="out")])


STEPS = [
    ("wasserstein", lambda: RMSProp(learning_rate=0.003), {**CRITIC, "k": 2, "noise_type": "uniform"}),
    ("modified", lambda: LossScaling(Adam(learning_rate=0.002)), {}),
    ("original", lambda: GradientDescentMomentum(0.01, 0.9), {}),
]


def trained(gan: GAN, func: str, optimizer: Any) -> tuple[Any, ...]:
    """Train for 22 steps, of which the last of an epoch is partial; return the weights, costs and random streams."""
    costs: list[float] = []

    class Costs(CallbackBase):
        def on_minibatch_end(self, epoch, minibatch):
            costs.extend((gan.step_cost, gan.cost_gen))

    gan.fit(ArrayIterator(cloud(83), shuffle=True, partial_last=True), GANCost(func=func), optimizer, 2, Costs())
    return gan.get_weights(), np.array(costs), gan.be.rng_get_state()


def count_passes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list to which each forward pass of the layers appends."""
    passes: list[Any] = []
    fprop = Sequential.fprop
    monkeypatch.setattr(Sequential, "fprop", lambda self, *args: passes.append(self) or fprop(self, *args))
    return passes


@pytest.mark.parametrize(("func", "optimizer", "more"), STEPS)
def test_the_program_of_a_step_computes_what_the_layers_do(monkeypatch, func, optimizer, more):
    passes, results = count_passes(monkeypatch), []
    for by_layers in (False, True):
        gen_backend("cpu", rng_seed=5, batch_size=8, datatype="float64")
        gan = GAN(deep(func), 4, **more)
        if by_layers:
            # a method that is set on the model is the user's, so the layers run
            vars(gan)["compute_gradients"] = gan.compute_gradients
        results.append(trained(gan, func, optimizer()))
        assert bool(passes) == by_layers
        assert gan.program.count == 4 or by_layers  # two networks, two sizes of a minibatch
    (weights, costs, state), (expected, expected_costs, expected_state) = results
    for name, x in weights.items():
        np.testing.assert_allclose(x, expected[name], rtol=1e-9, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(costs, expected_costs, rtol=1e-9)
    assert state == expected_state
    assert np.isfinite(costs[2:]).all()


def test_a_layer_with_its_own_passes_is_trained_as_one_with_a_formula(monkeypatch):
    passes, results = count_passes(monkeypatch), []
    for layer in (Formula, Doubled):
        gen_backend("cpu", rng_seed=5, batch_size=8, datatype="float64")
        results.append(trained(GAN(deep("modified", layer(name="doubled")), 4), "modified", Adam()))
        assert bool(passes) == (layer is Doubled)
    (weights, costs, _), (expected, expected_costs, _) = results
    for name, x in weights.items():
        np.testing.assert_allclose(x, expected[name], rtol=1e-9, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(costs, expected_costs, rtol=1e-9)


class Failing(Adam):
    """An optimizer that fails after the update of the generator, while ``fails`` is set."""

    fails = False

    def optimize(self, layer_list, epoch):
        layers = list(layer_list)
        super().optimize(layers, epoch)
        if self.fails and layers[0].name == "make":
            raise MemoryError


def test_a_step_without_fit_that_fails_leaves_the_weights_of_both_networks():
    gan, data = small("cpu", "modified")
    gan.initialize(data, GANCost())
    gan.optimizer, before = Failing(), gan.get_weights()
    gan.optimizer.fails = True
    with pytest.raises(MemoryError):
        gan.train_step(*next(iter(data)))
    assert all(np.array_equal(x, before[name]) for name, x in gan.get_weights().items())
    assert (gan.gen_iterations, gan.optimizer.t) == (0, 0)


@pytest.mark.parametrize("own", [[], [Doubled(name="doubled")]])
def test_a_step_of_which_the_generator_fails_leaves_all_as_before(own):
    ends = []
    for fails in (False, True):
        gen_backend("cpu", rng_seed=5, batch_size=8)
        gan, optimizer = GAN(deep("modified", *copy.deepcopy(own)), 4, wgan_param_clamp=0.5), Failing()
        data = ArrayIterator(cloud(40), shuffle=True)
        gan.fit(data, GANCost(), optimizer, 1)
        if fails:
            before = gan.get_weights(), gan.be.rng_get_state(), gan.cost_gen, gan.gen_iterations, optimizer.t
            optimizer.fails = True
            with pytest.raises(MemoryError):
                gan.fit(data, GANCost(), optimizer, 2)
            after = gan.get_weights(), gan.be.rng_get_state(), gan.cost_gen, gan.gen_iterations, optimizer.t
            assert all(np.array_equal(x, after[0][name]) for name, x in before[0].items())
            assert before[1:] == after[1:]
            optimizer.fails = False
        gan.fit(data, GANCost(), optimizer, 2)
        ends.append(gan.get_weights())
    assert all(np.array_equal(x, ends[1][name]) for name, x in ends[0].items())


# --- resuming --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 1, 4, 11, 20])
def test_a_gan_resumed_from_a_checkpoint_is_bit_identical(tmp_path, at):
    class Stopping(CallbackBase):
        steps = 0

        def on_minibatch_end(self, epoch, minibatch):
            self.steps += 1
            if self.steps == at + 1:
                stopped.save_params(tmp_path / "m")
                raise KeyboardInterrupt

    more = {"k": 3, "wgan_param_clamp": 0.5}
    uninterrupted, data = small(**more)
    uninterrupted.fit(data, GANCost(func="wasserstein"), Adam(), 3)
    expected = uninterrupted.get_weights()
    stopped, data = small(**more)
    with pytest.raises(KeyboardInterrupt):
        stopped.fit(data, GANCost(func="wasserstein"), Adam(), 3, Stopping())
    gen_backend("cpu", rng_seed=77, batch_size=4)
    data = ArrayIterator(cloud(40), shuffle=True)
    for again in (GAN(tmp_path / "m", 2, **more), GAN(pair("wasserstein", 3), 2, **more)):
        again.load_params(tmp_path / "m")
        again.fit(data, GANCost(func="wasserstein"), again.optimizer, 3)
        assert all(np.array_equal(x, expected[name]) for name, x in again.get_weights().items())
        assert (again.gen_iterations, again.dis_iterations) == (
            uninterrupted.gen_iterations,
            uninterrupted.dis_iterations,
        )


OTHERS = {"noise_type": "uniform", "k": 2, "wgan_param_clamp": 0.25, "wgan_train_sched": True}


@pytest.mark.parametrize("word", [*OTHERS, "noise_dim"])
def test_a_resumed_gan_needs_the_same_settings(tmp_path, word):
    gan, data = small(**CRITIC)
    gan.fit(data, GANCost(func="wasserstein"), Adam(), 1)
    gan.save_params(tmp_path / "m")
    same, other = GAN(tmp_path / "m", 2, **CRITIC), {"noise_dim": 3} if word == "noise_dim" else {word: OTHERS[word]}
    arguments = {"noise_dim": 2, **CRITIC, **other}
    with pytest.raises(
        CheckpointError, match=rf"m: training: expected {word} = {arguments[word]!r}, got .*\. Use these settings"
    ):
        GAN(tmp_path / "m", **arguments)
    weights = GAN(tmp_path / "m", **{**arguments, "noise_dim": 2}, weights_only=True).get_weights()
    assert all(np.array_equal(x, weights[name]) for name, x in same.get_weights().items())


def test_noise_of_several_dimensions_is_resumed_from_a_checkpoint(tmp_path):
    gen_backend("cpu", rng_seed=5, batch_size=4)
    data = ArrayIterator(cloud(8))
    net = GenerativeAdversarial([Linear(2, INIT, name="make")], [Linear(1, INIT, name="critic")])
    gan = GAN(net, (1, 2, 2), wgan_param_clamp=np.float32(0.5))
    gan.fit(data, GANCost(func="wasserstein"), Adam(), 1)
    gan.save_params(tmp_path / "m")
    assert GAN(tmp_path / "m", (1, 2, 2), wgan_param_clamp=0.5).generate(3).shape == (3, 2)


def test_a_gan_cannot_be_evaluated_on_data():
    gan, data = small()
    gan.initialize(data)
    for act in (
        lambda: gan.eval(data, Accuracy()),
        lambda: gan.eval_cost(data),
        lambda: gan.get_outputs(data),
        lambda: gan.predict(np.zeros((4, 3))),
    ):
        with pytest.raises(
            TypeError, match=r"expected a model with targets, got a GAN\. Use generate\(n\) or GANCostCallback\(\)"
        ):
            act()


def test_generating_images_between_epochs_does_not_change_training():
    class Drawing(CallbackBase):
        def on_epoch_end(self, epoch):
            gan.generate(9)

    ends = []
    for callbacks in (CallbackBase(), Drawing()):
        gan, data = small()
        gan.fit(data, GANCost(func="wasserstein"), Adam(), 3, callbacks)
        ends.append(gan.get_weights())
    assert all(np.array_equal(x, ends[1][name]) for name, x in ends[0].items())


def test_generate_uses_the_same_noise_each_time(tmp_path):
    gen_backend("cpu", rng_seed=5, batch_size=4)
    gan, data = GAN(zoo.gan((1, 8, 8), 8), 6), ArrayIterator(np.zeros((8, 1, 8, 8)))
    gan.fit(data, GeneralizedGANCost(GANCost()), Adam(), 1)
    pictures = gan.generate(7)
    assert pictures.shape == (7, 1, 8, 8)
    assert isinstance(pictures, np.ndarray)
    assert np.array_equal(gan.generate(7), pictures)
    assert np.array_equal(gan.generate(3), pictures[:3])
    assert len(np.unique(pictures[:, 0, 0, 0])) == 7
    inputs = gan.be.array(np.resize(gan.get_noise(1), (4, 6)).T)
    np.testing.assert_allclose(gan.generator.fprop(inputs, inference=True).get()[:, 0], pictures[0].ravel())
    gan.save_params(tmp_path / "m")
    gen_backend("cpu", rng_seed=6, batch_size=3)
    assert np.allclose(GAN(tmp_path / "m", 6).generate(7), pictures, atol=1e-6)
    assert isinstance(Model(tmp_path / "m").layers, GenerativeAdversarial)


@pytest.mark.parametrize(("kind", "low", "high", "deviation"), [("normal", -6, 6, 1), ("uniform", -1, 1, 3**-0.5)])
def test_noise_has_the_given_distribution(be, kind, low, high, deviation):
    be.bsz = 50
    gan = GAN(GenerativeAdversarial([Linear(2, INIT)], [Linear(1, INIT)]), 40, noise_type=kind)
    gan.initialize(2)
    first = gan.draw_noise().get().copy()
    for noise in (first, gan.draw_noise().get(), gan.get_noise(50)):
        assert low <= noise.min() < -0.9
        assert 0.9 < noise.max() <= high
        assert abs(noise.mean()) < 0.1
        assert noise.std() == pytest.approx(deviation, rel=0.05)
    assert not np.array_equal(gan.draw_noise().get(), first)


def test_the_last_minibatch_may_be_partial():
    gen_backend("cpu", rng_seed=5, batch_size=4)
    net = GenerativeAdversarial([Linear(3, INIT), BatchNorm(), Linear(2, INIT)], [Linear(1, INIT)])
    gan = GAN(net, 2)
    gan.fit(ArrayIterator(cloud(10), partial_last=True), GANCost(func="wasserstein"), Adam(), 2)
    assert gan.gen_iterations == 6
    assert gan.generate(5).shape == (5, 2)
    np.testing.assert_allclose(gan.generate(5)[:3], gan.generate(3), rtol=1e-5)  # the other samples do not matter


def test_a_gan_has_a_summary():
    gan, data = small()
    gan.initialize(data)
    assert gan.summary().parameters == sum(p.size for p in gan.layers.parameters)
    times = gan.benchmark(data, cost=GANCost(func="wasserstein"), optimizer=Adam(), niterations=3)
    assert times["iteration"]["min"] > 0
    assert gan.gen_iterations == 0


def test_mistakes_are_reported():
    gan, data = small()
    with pytest.raises(ValueError, match=r"GAN: expected one of 'normal', 'uniform' for noise_type, got 'pink'"):
        GAN(pair(), 2, noise_type="pink")
    for k in (0, 1.5, True):
        with pytest.raises((TypeError, ValueError), match=rf"GAN: expected an integer >= 1 for k, got {k}"):
            GAN(pair(), 2, k=k)
    for limit in (0, -1, float("nan"), "much"):
        with pytest.raises((TypeError, ValueError), match=r"GAN: expected a .*number.* for wgan_param_clamp, got"):
            GAN(pair(), 2, wgan_param_clamp=limit)
    with pytest.raises(TypeError, match=r"expected GenerativeAdversarial\(generator, discriminator\)"):
        GAN([Linear(2, INIT)], 2)
    with pytest.raises(RuntimeError, match="generate: expected a configured network, got none"):
        gan.generate(1)
    with pytest.raises(ValueError, match=r"expected data of the shape of the generator's outputs, 2, got 3"):
        gan.initialize(ArrayIterator(np.zeros((4, 3))))
    with pytest.raises(TypeError, match=r"expected GeneralizedGANCost\(GANCost\(\)\)"):
        gan.fit(data, MeanSquared(), Adam(), 1)
    with pytest.raises(ValueError, match="generate: expected an integer >= 1 for n, got 0"):
        gan.generate(0)
