"""Two networks learn from each other, by turns that can be counted, and go on from a file with the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neonlite import gen_backend
from neonlite.callbacks import Listener
from neonlite.data import ArrayIterator
from neonlite.initializers import Constant, Gaussian, Kaiming
from neonlite.layers import Affine, BatchNorm, GeneralizedGANCost, GenerativeAdversarial, Linear
from neonlite.models import GAN, CheckpointError, Model, zoo
from neonlite.optimizers import Adam, GradientDescentMomentum, RMSProp
from neonlite.transforms import Accuracy, GANCost, Logistic, MeanSquared, Rectlin

INIT = Kaiming(local=False)


def cloud(n: int = 512) -> Any:
    """Points around (2, -1), wider along than across."""
    turn = np.array([[0.8, 0.3], [0.0, 0.4]])
    return (np.random.default_rng(0).normal(size=(n, 2)) @ turn.T + [2, -1]).astype(np.float32)


def pair(func: str = "modified", hidden: int = 16) -> GenerativeAdversarial:
    end = None if func == "wasserstein" else Logistic()
    make = [
        Affine(hidden, INIT, Constant(0), activation=Rectlin(0.2), name="make"),
        Affine(2, INIT, Constant(0), name="made"),
    ]
    judge = [
        Affine(2 * hidden, INIT, Constant(0), activation=Rectlin(0.2), name="judge"),
        Affine(1, INIT, Constant(0), activation=end, name="judged"),
    ]
    return GenerativeAdversarial(make, judge)


def small(runtime: str = "cpu", func: str = "wasserstein", **more: Any) -> tuple[GAN, ArrayIterator]:
    gen_backend(runtime, rng_seed=5, batch_size=4)
    return GAN(pair(func, 3), 2, **more), ArrayIterator(cloud(40), shuffle=True)


CRITIC = {"k": 3, "wgan_param_clamp": 0.2}


@pytest.mark.parametrize(
    (
        "func",
        "optimizer",
        "more",
        "epochs",
        "off",
    ),  # off: by how much covariances differ; the first kind is known for it
    [
        ("modified", Adam(learning_rate=0.002, beta_1=0.5), {}, 80, 2),
        ("wasserstein", RMSProp(learning_rate=0.003), CRITIC, 160, 0.4),
        ("wasserstein", RMSProp(learning_rate=0.003), {**CRITIC, "noise_type": "uniform"}, 160, 1),
    ],
)
def test_a_gan_learns_where_the_data_is_and_how_wide(func, optimizer, more, epochs, off):
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


def test_a_step_is_what_the_formulas_say(be64):
    """Two products: the critic is w y + c, and the generator A z + b; their derivatives are told by hand."""
    be64.bsz = N = 4
    zs: list[Any] = []

    class Noting(GAN):
        def draw(self):
            z = super().draw()
            zs.append(z.get().copy())
            return z

    make, judge = (
        [Affine(n, Gaussian(), Constant(0.5), name=name)] for n, name in ((2, "make"), (1, "judge"))
    )  # fmt: skip
    gan = Noting(GenerativeAdversarial(make, judge), 3)
    X = cloud(8).astype(np.float64)
    data = ArrayIterator(X)
    gan.initialize(data)
    p = {name: x.astype(np.float64) for name, x in gan.get_weights().items()}
    gan.fit(data, GANCost(func="wasserstein"), GradientDescentMomentum(0.1, 0.0), 1)
    A, b, w, c = p["make.W"], p["make_bias.W"], p["judge.W"], p["judge_bias.W"]
    costs = []
    for i in range(2):
        x = X[N * i : N * (i + 1)].T
        fake = A @ zs[2 * i] + b
        costs.append(float((w @ fake).mean() - (w @ x).mean()))
        w = w - 0.1 * (fake.mean(axis=1) - x.mean(axis=1))  # c stands in both costs, and cancels out
        z = zs[2 * i + 1]
        cost_gen = -float((w @ (A @ z + b) + c).mean())
        A, b = A + 0.1 * w.T @ z.mean(axis=1, keepdims=True).T, b + 0.1 * w.T
    for name, expected in {"make.W": A, "make_bias.W": b, "judge.W": w, "judge_bias.W": c}.items():
        np.testing.assert_allclose(gan.get_weights()[name], expected, rtol=1e-9, atol=1e-12)
    assert gan.total_cost == pytest.approx(np.mean(costs))
    assert gan.cost_gen == pytest.approx(cost_gen)
    assert len(zs) == 4


class Turns(Listener):
    """Notes after each minibatch how many steps the generator has made."""

    def __init__(self, gan: GAN) -> None:
        self.gan, self.turns = gan, []

    def on_minibatch_end(self, epoch, minibatch):
        self.turns.append(self.gan.gen_iterations)


@pytest.mark.parametrize("k", [1, 2, 3, 7])
def test_the_generator_has_its_turn_after_k_steps_of_the_discriminator(k):
    gan, data = small(k=k)
    gan.initialize(data)
    turns = Turns(gan)
    gan.fit(data, GANCost(func="wasserstein"), GradientDescentMomentum(0.01, 0.0), 2, turns)
    assert turns.turns == [(i + 1) // k for i in range(20)]
    assert gan.dis_iterations == 20 % k


def test_the_discriminator_learns_alone_when_it_is_its_turn():
    gan, data = small(k=2)
    gan.initialize(data, GANCost(func="wasserstein"))
    gan.optimizer = GradientDescentMomentum(0.01, 0.0)
    steps = iter(data)
    before = gan.get_weights()
    gan.step(*next(steps))
    first = {name: (x != before[name]).any() for name, x in gan.get_weights().items()}
    assert first["judge.W"]
    assert not first["make.W"]
    gan.step(*next(steps))
    assert (gan.get_weights()["make.W"] != before["make.W"]).any()


def test_the_schedule_lets_the_critic_be_ahead_at_first_and_now_and_then():
    gan, data = small(k=5, wgan_train_sched=True)
    turns = Turns(gan)
    gan.fit(data, GANCost(func="wasserstein"), GradientDescentMomentum(0.001, 0.0), 21, turns)
    assert turns.turns == [(i + 1) // 100 for i in range(210)]
    due = {}
    for n in (0, 24, 25, 26, 499, 500, 501, 999, 1000):
        gan.gen_iterations = n
        due[n] = gan.due
    assert due == {0: 100, 24: 100, 25: 5, 26: 5, 499: 5, 500: 100, 501: 5, 999: 5, 1000: 100}
    gan.wgan_train_sched, gan.gen_iterations = False, 0
    assert gan.due == 5


def test_the_parameters_of_the_critic_are_held_within_their_limit(be):
    be.bsz = 4
    gan, data = GAN(pair("wasserstein", 3), 2, wgan_param_clamp=0.05), ArrayIterator(cloud(40))
    held = []

    class Watching(Listener):
        def on_minibatch_end(self, epoch, minibatch):
            held.append(max(np.abs(p.get()).max() for p in gan.discriminator.parameters))

    gan.fit(data, GANCost(func="wasserstein"), GradientDescentMomentum(0.1, 0.0), 1, Watching())
    assert held == [pytest.approx(0.05)] * 10
    assert max(np.abs(p.get()).max() for p in gan.generator.parameters) > 0.1
    free, data = GAN(pair("wasserstein", 3), 2), ArrayIterator(cloud(40))
    free.fit(data, GANCost(func="wasserstein"), GradientDescentMomentum(0.1, 0.0), 1)
    assert max(np.abs(p.get()).max() for p in free.discriminator.parameters) > 0.1


# --- it goes on ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 1, 4, 11, 20])
def test_a_gan_goes_on_from_a_file_with_the_same_bits(tmp_path, at):
    class Stopping(Listener):
        steps = 0

        def on_minibatch_end(self, epoch, minibatch):
            self.steps += 1
            if self.steps == at + 1:
                stopped.save_params(tmp_path / "m")
                raise KeyboardInterrupt

    more = {"k": 3, "wgan_param_clamp": 0.5}
    straight, data = small(**more)
    straight.fit(data, GANCost(func="wasserstein"), Adam(), 3)
    expected = straight.get_weights()
    stopped, data = small(**more)
    with pytest.raises(KeyboardInterrupt):
        stopped.fit(data, GANCost(func="wasserstein"), Adam(), 3, Stopping())
    gen_backend("cpu", rng_seed=77, batch_size=4)
    data = ArrayIterator(cloud(40), shuffle=True)
    for again in (GAN(tmp_path / "m", 2, **more), GAN(pair("wasserstein", 3), 2, **more)):
        again.load_params(tmp_path / "m")
        again.fit(data, GANCost(func="wasserstein"), again.optimizer, 3)
        assert all(np.array_equal(x, expected[name]) for name, x in again.get_weights().items())
        assert (again.gen_iterations, again.dis_iterations) == (straight.gen_iterations, straight.dis_iterations)


OTHERS = {"noise_type": "uniform", "k": 2, "wgan_param_clamp": 0.25, "wgan_train_sched": True}


@pytest.mark.parametrize("word", [*OTHERS, "noise_dim"])
def test_a_gan_that_goes_on_is_made_like_the_one_before(tmp_path, word):
    gan, data = small(**CRITIC)
    gan.fit(data, GANCost(func="wasserstein"), Adam(), 1)
    gan.save_params(tmp_path / "m")
    same, other = GAN(tmp_path / "m", 2, **CRITIC), {"noise_dim": 3} if word == "noise_dim" else {word: OTHERS[word]}
    given = {"noise_dim": 2, **CRITIC, **other}
    with pytest.raises(CheckpointError, match=rf"m: training: {word} = .*, here {given[word]!r}: give the same"):
        GAN(tmp_path / "m", **given)
    weights = GAN(tmp_path / "m", **{**given, "noise_dim": 2}, weights_only=True).get_weights()
    assert all(np.array_equal(x, weights[name]) for name, x in same.get_weights().items())


def test_noise_of_several_numbers_goes_on_from_a_file(tmp_path):
    gen_backend("cpu", rng_seed=5, batch_size=4)
    data = ArrayIterator(cloud(8))
    net = GenerativeAdversarial([Linear(2, INIT, name="make")], [Linear(1, INIT, name="judge")])
    gan = GAN(net, (1, 2, 2), wgan_param_clamp=np.float32(0.5))
    gan.fit(data, GANCost(func="wasserstein"), Adam(), 1)
    gan.save_params(tmp_path / "m")
    assert GAN(tmp_path / "m", (1, 2, 2), wgan_param_clamp=0.5).generate(3).shape == (3, 2)


def test_a_gan_is_not_judged_by_data():
    gan, data = small()
    gan.initialize(data)
    for act in (
        lambda: gan.eval(data, Accuracy()),
        lambda: gan.eval_cost(data),
        lambda: gan.get_outputs(data),
        lambda: gan.predict(np.zeros((4, 3))),
    ):
        with pytest.raises(TypeError, match=r"a GAN is judged by what it makes: generate\(n\), GANCosts\(\)"):
            act()


def test_pictures_between_epochs_change_nothing():
    class Drawing(Listener):
        def on_epoch_end(self, epoch):
            gan.generate(9)

    ends = []
    for listener in (Listener(), Drawing()):
        gan, data = small()
        gan.fit(data, GANCost(func="wasserstein"), Adam(), 3, listener)
        ends.append(gan.get_weights())
    assert all(np.array_equal(x, ends[1][name]) for name, x in ends[0].items())


def test_the_same_noise_becomes_pictures_every_time(tmp_path):
    gen_backend("cpu", rng_seed=5, batch_size=4)
    gan, data = GAN(zoo.gan((1, 8, 8), 8), 6), ArrayIterator(np.zeros((8, 1, 8, 8)))
    gan.fit(data, GeneralizedGANCost(GANCost()), Adam(), 1)
    pictures = gan.generate(7)
    assert pictures.shape == (7, 1, 8, 8)
    assert isinstance(pictures, np.ndarray)
    assert np.array_equal(gan.generate(7), pictures)
    assert np.array_equal(gan.generate(3), pictures[:3])
    assert len(np.unique(pictures[:, 0, 0, 0])) == 7
    by_hand = gan.be.array(np.resize(gan.get_noise(1), (4, 6)).T)
    np.testing.assert_allclose(gan.generator.fprop(by_hand, inference=True).get()[:, 0], pictures[0].ravel())
    gan.save_params(tmp_path / "m")
    gen_backend("cpu", rng_seed=6, batch_size=3)
    assert np.allclose(GAN(tmp_path / "m", 6).generate(7), pictures, atol=1e-6)
    assert isinstance(Model(tmp_path / "m").layers, GenerativeAdversarial)


@pytest.mark.parametrize(("kind", "low", "high", "deviation"), [("normal", -6, 6, 1), ("uniform", -1, 1, 3**-0.5)])
def test_noise_is_of_its_kind(be, kind, low, high, deviation):
    be.bsz = 50
    gan = GAN(GenerativeAdversarial([Linear(2, INIT)], [Linear(1, INIT)]), 40, noise_type=kind)
    gan.initialize(2)
    first = gan.draw().get().copy()
    for noise in (first, gan.draw().get(), gan.get_noise(50)):
        assert low <= noise.min() < -0.9
        assert 0.9 < noise.max() <= high
        assert abs(noise.mean()) < 0.1
        assert noise.std() == pytest.approx(deviation, rel=0.05)
    assert not np.array_equal(gan.draw().get(), first)


def test_a_minibatch_may_be_narrower():
    gen_backend("cpu", rng_seed=5, batch_size=4)
    net = GenerativeAdversarial([Linear(3, INIT), BatchNorm(), Linear(2, INIT)], [Linear(1, INIT)])
    gan = GAN(net, 2)
    gan.fit(ArrayIterator(cloud(10), ragged=True), GANCost(func="wasserstein"), Adam(), 2)
    assert gan.gen_iterations == 6
    assert gan.generate(5).shape == (5, 2)
    np.testing.assert_allclose(gan.generate(5)[:3], gan.generate(3), rtol=1e-5)  # others beside it change no picture


def test_a_gan_tells_what_it_takes():
    gan, data = small()
    gan.initialize(data)
    assert gan.summary().parameters == sum(p.size for p in gan.layers.parameters)
    times = gan.benchmark(data, cost=GANCost(), optimizer=Adam(), niterations=3)
    assert times["iteration"]["min"] > 0
    assert gan.gen_iterations == 0


def test_mistakes_are_told():
    gan, data = small()
    with pytest.raises(ValueError, match=r"noise_type is 'normal' or 'uniform'; got 'pink'"):
        GAN(pair(), 2, noise_type="pink")
    for k in (0, 1.5, True):
        with pytest.raises(ValueError, match=rf"k, the steps .* is 1 or more; got {k}"):
            GAN(pair(), 2, k=k)
    for limit in (0, -1, float("nan"), "much"):
        with pytest.raises(ValueError, match="wgan_param_clamp is a number above 0"):
            GAN(pair(), 2, wgan_param_clamp=limit)
    with pytest.raises(TypeError, match=r"layers are GenerativeAdversarial\(generator, discriminator\)"):
        GAN([Linear(2, INIT)], 2)
    with pytest.raises(RuntimeError, match="it has no weights yet"):
        gan.generate(1)
    with pytest.raises(ValueError, match=r"the generator makes 2; the data are 3"):
        gan.initialize(ArrayIterator(np.zeros((4, 3))))
    with pytest.raises(TypeError, match=r"the cost is GeneralizedGANCost\(GANCost\(\)\)"):
        gan.fit(data, MeanSquared(), Adam(), 1)
    with pytest.raises(ValueError, match="makes one image or more; got 0"):
        gan.generate(0)
