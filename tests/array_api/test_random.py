"""Random arrays: the numbers of the stream, equal on every runtime and in ``jit``, and their distributions."""

from __future__ import annotations

import copy
import json
import pickle
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from helpers.parametrize import each
from helpers.philox import oracle_block, oracle_words
from helpers.reference import REFERENCE
from helpers.runtimes import RUNTIMES

import neonlite as nl
from neonlite.array_api.random import Generator
from neonlite.backend import Backend
from neonlite.data import ArrayIterator
from neonlite.initializers import Gaussian
from neonlite.layers import Affine, GeneralizedCost, Layer
from neonlite.models import Model
from neonlite.optimizers import Adam
from neonlite.transforms import MeanSquared, Tanh

scipy = pytest.importorskip("scipy")
pytest.importorskip("scipy.stats")

N = 20_000
Draw = Callable[[Any, Any], Any]  # of the namespace xp and a generator

# --- the stream ---


def stream_seed(seed: int) -> int:
    """Return the seed of the stream of a generator: the first word of a stream that no backend has."""
    return oracle_block([0, 0, 0, 0], (seed, 5))[0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_uniform_and_normal_numbers_are_those_of_the_stream_of_a_seed(be: Backend, dtype: str) -> None:
    rng = Backend(be.name, default_dtype=dtype).array_api.random.default_rng(7)
    expected = REFERENCE["rand"](to=(3, 5), seed=stream_seed(7), bits=int(dtype[5:]))
    u = rng.uniform(size=(3, 5))
    assert (u.shape, u.dtype.name) == ((3, 5), dtype)
    np.testing.assert_array_equal(u.numpy(), expected)
    fresh = Backend(be.name, default_dtype=dtype).array_api.random.default_rng(7)
    expected = REFERENCE["randn"](to=(3, 5), seed=stream_seed(7), bits=64).astype(dtype)
    np.testing.assert_array_max_ulp(fresh.normal(size=(3, 5)).numpy(), expected, 4)


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (-3, 5), (10, 10 + 2**32), (7, 3 * 2**30), (2**62, 2**62 + 12345), (-(2**63), -9)]
)
def test_integers_are_the_upper_halves_of_products_of_words_and_the_width(be: Backend, low: int, high: int) -> None:
    high = min(high, low + 2**32)
    words = oracle_words(stream_seed(3), "noise", 50)
    expected = [low + (word * (high - low) >> 64) for word in words]
    assert be.array_api.random.default_rng(3).integers(low, high, 50).tolist() == expected
    assert be.array_api.random.default_rng(3).integers(low, high - 1, 50, endpoint=True).tolist() == expected


def test_a_permutation_sorts_the_words(be: Backend) -> None:
    words = np.array(oracle_words(stream_seed(3), "noise", 40), np.uint64).view(np.int64)
    rng = be.array_api.random.default_rng(3)
    assert rng.permutation(40).tolist() == np.argsort(words).tolist()


def test_a_generator_has_other_numbers_than_a_backend_of_its_seed(be: Backend) -> None:
    be.gen_rng(4)
    numbers = be.array_api.random.default_rng(4).uniform(size=50).tolist()
    assert not {*numbers} & {*be.rand(1, 50).get().ravel().tolist()}


DRAWS: dict[str, Draw] = {
    "uniform": lambda xp, rng: rng.uniform(-1.5, xp.asarray([2.0, 3.0, 70.0]), (50, 3)),
    "normal": lambda xp, rng: rng.normal(3, xp.asarray([[1.0], [0.5]]), (2, 41)),
    "integers": lambda xp, rng: rng.integers(xp.asarray([-5, 0]), xp.asarray([5, 2**31]), (40, 2)),
    "small integers": lambda xp, rng: rng.integers(200, 256, 30, dtype=xp.uint8),
    "permutation": lambda xp, rng: rng.permutation(33),
    "rows in random order": lambda xp, rng: rng.permutation(xp.reshape(xp.arange(60), (20, 3))),
    "choice": lambda xp, rng: rng.choice(xp.asarray([0.5, 0.25, 4.0]), (3, 40)),
    "choice of columns": lambda xp, rng: rng.choice(xp.reshape(xp.arange(12), (2, 6)), (5, 4), axis=1),
    "choice without replacement": lambda xp, rng: rng.choice(40, 15, replace=False),
    "weighted choice": lambda xp, rng: rng.choice(4, 60, p=[0.1, 0.2, 0.3, 0.4]),
    "weighted choice without replacement": lambda xp, rng: rng.choice(5, 4, replace=False, p=[0.1, 0.2, 0.3, 0.4, 0]),
    "categorical": lambda xp, rng: rng.categorical(xp.asarray([[0.0, -xp.inf, 1.0], [5.0, 5.0, 6.0]]), (40, 2)),
    "categories in the first axis": lambda xp, rng: rng.categorical(xp.asarray([[0.5], [1.5]]), (30,), axis=0),
}
ON_HOST: dict[str, Draw] = {
    "gamma": lambda xp, rng: rng.gamma(xp.asarray([0.1, 1.0, 30.0]), 2.0, (40, 3)),
    "poisson": lambda xp, rng: rng.poisson(xp.asarray([0.1, 9.0, 11.0, 1e5]), (30, 4)),
}


def generators(seed: int) -> Iterator[tuple[Any, Any]]:
    """Yield the namespace and a generator of each runtime, cpu first."""
    for name in RUNTIMES:
        xp = Backend.allocate_backend(name).array_api
        yield xp, xp.random.default_rng(seed)


@pytest.mark.parametrize("name", [*DRAWS, *ON_HOST])
def test_numbers_are_the_same_on_every_runtime(name: str) -> None:
    draw = (DRAWS | ON_HOST)[name]
    first, *others = [[draw(xp, rng) for _ in range(2)] for xp, rng in generators(9)]
    for pair in others:
        for x, expected in zip(pair, first, strict=True):
            assert (x.shape, x.dtype) == (expected.shape, expected.dtype)
            if name in ("normal", "gamma"):
                np.testing.assert_array_max_ulp(x.numpy(), expected.numpy(), 4)
            else:
                np.testing.assert_array_equal(x.numpy(), expected.numpy())
    assert (first[0].numpy() != first[1].numpy()).any()


# --- jit, states and copies ---


@pytest.mark.parametrize("name", DRAWS)
def test_a_compiled_function_draws_new_numbers_in_each_call_those_without_jit(be: Backend, name: str) -> None:
    xp = be.array_api
    rng, other = xp.random.default_rng(2), xp.random.default_rng(2)

    def work(x: Any, rng: Generator) -> Any:
        later = rng.normal(size=3)
        rng.uniform(size=9)  # unused
        drawn = DRAWS[name](xp, rng)
        return drawn, drawn * 2 - drawn, x + later

    compiled = nl.jit(work)
    x = xp.asarray([1.0, 2.0, 3.0])
    for _ in range(3):
        for result, expected in zip(compiled(x, rng), work(x, other), strict=True):
            assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
            np.testing.assert_array_equal(result.numpy(), expected.numpy())
    assert len(compiled.programs) == 1
    assert rng.get_state() == other.get_state()


def test_functions_compiled_from_one_generator_share_its_stream() -> None:
    be = nl.gen_backend("cpu")
    rng, other = be.array_api.random.default_rng(2), be.array_api.random.default_rng(2)
    first, second = nl.jit(lambda x: x * rng.uniform(size=5)), nl.jit(lambda x: x * rng.uniform(size=8))
    x = be.array_api.asarray(1.0)
    for _ in range(2):
        for drawn in (first(x), rng.uniform(size=3), second(x)):
            assert drawn.tolist() == other.uniform(size=drawn.shape).tolist()


@pytest.mark.parametrize("name", ON_HOST)
def test_a_draw_by_numpy_is_refused_in_a_compiled_function(be: Backend, name: str) -> None:
    xp = be.array_api
    rng = xp.random.default_rng(2)
    with pytest.raises(
        TypeError,
        match=rf"got rng.{name}, which NumPy computes from values. Call rng.{name} before, and pass the array",
    ):
        nl.jit(lambda x: x + ON_HOST[name](xp, rng))(xp.zeros((3, 1)))
    assert rng.get_state() == xp.random.default_rng(2).get_state()


@pytest.mark.parametrize("act", ["rng.spawn(2)", "rng.get_state()", "rng.set_state(())"])
def test_states_and_spawned_generators_are_refused_in_a_compiled_function(act: str) -> None:
    xp = nl.gen_backend("cpu").array_api
    rng = xp.random.default_rng(2)
    with pytest.raises(TypeError, match=r"got .*random generator"):
        nl.jit(lambda x: eval(act, {"rng": rng}) or x)(xp.zeros(2))


def test_a_call_that_fails_has_drawn_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    xp = nl.gen_backend("cpu").array_api
    rng = xp.random.default_rng(2)
    compiled = nl.jit(lambda x: x + rng.normal(size=4))
    compiled(xp.zeros(4))
    state = rng.get_state()
    ((_, program),) = compiled.programs
    with monkeypatch.context() as patch:
        patch.setattr(program.assignment, "run", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            compiled(xp.zeros(4))
    assert rng.get_state() == state
    repeated = compiled(xp.zeros(4))
    rng.set_state(state)
    assert repeated.tolist() == rng.normal(size=4).tolist()


@pytest.mark.parametrize("name", [*DRAWS, *ON_HOST])
def test_a_state_and_a_copy_repeat_the_draws_after_them(name: str) -> None:
    xp = nl.gen_backend("cpu").array_api
    rng = xp.random.default_rng(1)
    rng.uniform(size=5)
    draw, state = (DRAWS | ON_HOST)[name], json.loads(json.dumps(rng.get_state()))
    copies = [copy.deepcopy(rng), pickle.loads(pickle.dumps(rng))]
    expected = [draw(xp, rng).tolist() for _ in range(2)]
    rng.set_state(state)
    for other in (rng, *copies):
        assert other.seed == 1
        assert [draw(xp, other).tolist() for _ in range(2)] == expected


def test_spawned_generators_are_reproducible_and_have_other_numbers(be: Backend) -> None:
    rng, other = be.array_api.random.default_rng(1), be.array_api.random.default_rng(1)
    children, again = rng.spawn(3), [*other.spawn(1), *other.spawn(2)]
    numbers = [x.uniform(size=200).numpy() for x in (rng, *children, *children[0].spawn(2))]
    assert [x.uniform(size=200).tolist() for x in (other, again[0])] == [x.tolist() for x in numbers[:2]]
    assert len({x.seed for x in (rng, *children, *other.spawn(2))}) == 6
    correlations = np.corrcoef(numbers)[np.triu_indices(len(numbers), 1)]
    assert np.abs(correlations).max() < 4 / np.sqrt(200)


def test_threads_that_share_a_generator_never_draw_the_same_numbers() -> None:
    rng = nl.gen_backend("cpu").array_api.random.default_rng(1)
    with ThreadPoolExecutor(4) as pool:
        drawn = pool.map(lambda _: rng.integers(2**32, size=4).tolist(), range(200))
    together = sorted(x for numbers in drawn for x in numbers)
    assert together == sorted(nl.array_api.random.default_rng(1).integers(2**32, size=800).tolist())


def test_a_generator_without_a_seed_has_one_of_the_operating_system() -> None:
    xp = nl.gen_backend("cpu").array_api
    rng = xp.random.default_rng()
    assert rng.seed != xp.random.default_rng().seed
    assert rng.uniform(size=5).tolist() == xp.random.default_rng(rng.seed).uniform(size=5).tolist()


def test_the_generator_of_a_backend_draws_on_it() -> None:
    be, other = Backend("cpu", default_dtype="float64"), nl.gen_backend("cpu")
    assert be.array_api.random.default_rng(0).uniform(size=2).backend is be
    assert nl.array_api.random.default_rng(0).uniform(size=2).backend is other
    assert dir(be.array_api.random) == ["Generator", "default_rng"]


def test_a_dry_run_draws_no_numbers_and_counts_them() -> None:
    be = nl.gen_backend("cpu").dry_run()
    rng, other = be.array_api.random.default_rng(0), nl.array_api.random.default_rng(0)
    for draw in [*DRAWS.values(), *ON_HOST.values()]:
        result, expected = draw(be.array_api, rng), draw(nl.array_api, other)
        assert result.tensor().shape == expected.tensor().shape
    assert rng.get_state() == other.get_state()


class RandomNoise(Layer):
    """A layer that adds noise of a generator."""

    rng: Generator

    def configure(self, in_obj: Any) -> Any:
        super().configure(in_obj)
        self.out_shape = self.in_shape
        return self

    def formula(self, x: Any) -> Any:
        return x + self.rng.normal(size=x.shape).operand


def test_a_layer_with_a_generator_draws_new_numbers_in_each_training_step() -> None:
    states = []
    for program in (True, False):
        be = nl.gen_backend("cpu", batch_size=5, rng_seed=1)
        layer = RandomNoise()
        layer.rng = be.array_api.random.default_rng(8)
        network = [Affine(4, Gaussian(), activation=Tanh()), layer, Affine(1, Gaussian())]
        model, x = Model(network), np.random.default_rng(0).normal(size=(15, 3))
        if not program:
            model.compute_gradients = model.compute_gradients  # a method of the user: the layers run one by one
        data = ArrayIterator(x, x[:, :1], make_onehot=False)
        model.fit(data, optimizer=Adam(), num_epochs=2, cost=GeneralizedCost(MeanSquared()))
        states.append((layer.rng.get_state(), model.get_weights()))
    assert states[0][0] == states[1][0]
    assert states[0][0] != be.array_api.random.default_rng(8).get_state()
    for w, expected in zip(states[0][1].values(), states[1][1].values(), strict=True):
        np.testing.assert_allclose(w, expected, rtol=1e-4)


# --- distributions ---

CONTINUOUS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "uniform": (lambda rng: rng.uniform(-3, 5, N), scipy.stats.uniform(-3, 8)),
    "standard uniform": (lambda rng: rng.uniform(size=(200, N // 200)), scipy.stats.uniform()),
    "normal": (lambda rng: rng.normal(2.0, 0.5, N), scipy.stats.norm(2, 0.5)),
    "standard normal": (lambda rng: rng.normal(size=(2, N // 2)), scipy.stats.norm()),
    "gamma 0.1": (lambda rng: rng.gamma(0.1, size=N), scipy.stats.gamma(0.1)),
    "gamma 0.9": (lambda rng: rng.gamma(0.9, 3.0, N), scipy.stats.gamma(0.9, scale=3)),
    "gamma 1": (lambda rng: rng.gamma(1.0, size=N), scipy.stats.gamma(1)),
    "gamma 3.5": (lambda rng: rng.gamma(3.5, 0.5, N), scipy.stats.gamma(3.5, scale=0.5)),
    "gamma 1000": (lambda rng: rng.gamma(1e3, size=N), scipy.stats.gamma(1e3)),
}
WEIGHTS = np.array([0.05, 0.4, 0.0, 0.25, 0.3])
DISCRETE: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "integers": (lambda rng: rng.integers(-3, 9, N), scipy.stats.randint(-3, 9)),
    "integers in a wide range": (lambda rng: rng.integers(3 * 2**30, size=N) // 2**28, scipy.stats.randint(0, 12)),
    "choice": (lambda rng: rng.choice(5, N), scipy.stats.randint(0, 5)),
    "weighted choice": (lambda rng: rng.choice(5, N, p=WEIGHTS), scipy.stats.rv_discrete(values=(range(5), WEIGHTS))),
    "the first weighted choice of two without replacement": (
        lambda rng: np.array([rng.choice(5, 2, replace=False, p=WEIGHTS)[0].item() for _ in range(1000)]),
        scipy.stats.rv_discrete(values=(range(5), WEIGHTS)),
    ),
    "categorical": (
        lambda rng: rng.categorical(np.log(np.maximum(WEIGHTS, 1e-300)) + 7, N),
        scipy.stats.rv_discrete(values=(range(5), WEIGHTS)),
    ),
    "the first of a permutation": (
        lambda rng: np.array([rng.permutation(6)[0].item() for _ in range(1200)]),
        scipy.stats.randint(0, 6),
    ),
    "poisson 0.2": (lambda rng: rng.poisson(0.2, N), scipy.stats.poisson(0.2)),
    "poisson 4": (lambda rng: rng.poisson(4.0, N), scipy.stats.poisson(4)),
    "poisson 9.99": (lambda rng: rng.poisson(9.99, N), scipy.stats.poisson(9.99)),
    "poisson 10": (lambda rng: rng.poisson(10, N), scipy.stats.poisson(10)),
    "poisson 35": (lambda rng: rng.poisson(35.0, N), scipy.stats.poisson(35)),
    "poisson 20000": (lambda rng: rng.poisson(2e4, N), scipy.stats.poisson(2e4)),
}
MIN_P = 1e-4  # of a test, which a right distribution falls below in one of ten thousand seeds; the seeds are fixed


def check_moments(x: Any, distribution: Any) -> None:
    """Check the mean, the variance and the correlation of neighbors, each within five standard errors."""
    n = x.size
    mean, variance, kurtosis = (float(m) for m in distribution.stats(moments="mvk"))
    assert abs(x.mean() - mean) <= 5 * np.sqrt(variance / n)
    assert abs(x.var() - variance) <= 5 * variance * np.sqrt((kurtosis + 2) / n)
    for lag in (1, 2, 3, 4, 8):
        assert abs(np.corrcoef(x[:-lag], x[lag:])[0, 1]) <= 5 / np.sqrt(n)


@each("name", CONTINUOUS)
def test_a_continuous_distribution_is_that_of_scipy(be: Backend, name: str) -> None:
    draw, distribution = CONTINUOUS[name]
    x = draw(be.array_api.random.default_rng(11)).numpy().ravel().astype(np.float64)
    check_moments(x, distribution)
    assert scipy.stats.kstest(x, distribution.cdf).pvalue > MIN_P


@each("name", DISCRETE)
def test_a_discrete_distribution_is_that_of_scipy(be: Backend, name: str) -> None:
    draw, distribution = DISCRETE[name]
    x = np.asarray(draw(be.array_api.random.default_rng(12)))
    assert x.dtype == np.int64
    check_moments(x.astype(np.float64), distribution)
    edges = np.unique(distribution.ppf(np.linspace(0, 1, 40)[1:-1]))  # of the groups that are counted
    shares = np.diff([0.0, *distribution.cdf(edges), 1.0])
    counts = np.bincount(np.searchsorted(edges, x), minlength=len(shares))
    assert not counts[shares < 1e-12].any()
    counts, shares = counts[shares >= 1e-12], shares[shares >= 1e-12]
    assert scipy.stats.chisquare(counts, shares / shares.sum() * x.size).pvalue > MIN_P


def test_rows_of_parameters_have_their_distributions(be: Backend) -> None:
    rng, a = be.array_api.random.default_rng(3), np.array([[0.3], [2.0], [50.0]])
    for draw, expected in [
        (rng.gamma(a, 1.0, (3, N)), a),
        (rng.poisson(a, (3, N)), a),
        (rng.normal(a, 0.1, (3, N)), a),
        (rng.uniform(0, 2 * a, (3, N)), a),
    ]:
        np.testing.assert_allclose(draw.numpy().mean(1, keepdims=True), expected, rtol=0.06)


def test_all_permutations_and_draws_without_replacement_are_equally_likely() -> None:
    rng = nl.gen_backend("cpu").array_api.random.default_rng(3)
    for draw in (lambda: rng.permutation(4), lambda: rng.choice(4, 4, replace=False)):
        counts: dict[Any, int] = {}
        for _ in range(2400):
            order = tuple(draw().tolist())
            counts[order] = counts.get(order, 0) + 1
        assert len(counts) == 24
        assert scipy.stats.chisquare(list(counts.values())).pvalue > MIN_P


def test_weights_without_replacement_are_those_of_the_elements_that_are_left() -> None:
    rng, weights = nl.gen_backend("cpu").array_api.random.default_rng(3), np.array([0.5, 0.3, 0.2])
    pairs = [tuple(rng.choice(3, 2, replace=False, p=weights).tolist()) for _ in range(3000)]
    expected = {(i, j): weights[i] * weights[j] / (1 - weights[i]) for i in range(3) for j in range(3) if i != j}
    counts = [pairs.count(pair) for pair in expected]
    assert scipy.stats.chisquare(counts, 3000 * np.array([*expected.values()])).pvalue > MIN_P


def test_parameters_at_their_limits_have_one_value(be: Backend) -> None:
    rng = be.array_api.random.default_rng(3)
    for drawn, expected in [
        (rng.normal(2.0, 0.0, 3), 2),
        (rng.uniform(4, 4, 3), 4),
        (rng.integers(7, 8, 3), 7),
        (rng.integers(7, 7, 3, endpoint=True), 7),
        (rng.gamma(0.0, 1.0, 3), 0),
        (rng.gamma(2.0, 0.0, 3), 0),
        (rng.poisson(0.0, 3), 0),
        (rng.choice(1, 3), 0),
        (rng.choice([5.0, 6.0], 3, p=[0, 1]), 6),
    ]:
        assert drawn.tolist() == [expected] * 3
    for empty in (rng.normal(size=0), rng.integers(5, size=(0, 3)), rng.permutation(0), rng.gamma(1.0, size=0)):
        assert empty.size == 0


def test_sizes_and_shapes_are_those_of_numpy(be: Backend) -> None:
    ours, numpy = be.array_api.random.default_rng(3), np.random.default_rng(3)
    a = np.arange(24.0).reshape(2, 3, 4)
    for call in """
        rng.normal(); rng.normal(size=()); rng.normal(size=3); rng.normal([0, 1], [[1], [2], [3]])
        rng.uniform(0, [1, 2]); rng.normal([0, 1], size=(3, 2))
        rng.integers(5); rng.integers([1, 2], 5, size=(4, 2))
        rng.gamma([1, 2]); rng.poisson([[1], [20]], (2, 3)); rng.choice(a); rng.choice(a, 5, axis=1)
        rng.choice(a, (2, 5), axis=2)
        rng.choice(4); rng.choice(4, 3); rng.permutation(4); rng.permutation(a); rng.permutation(a, axis=2)
        rng.choice(a, (2, 2), replace=False, axis=2)""".replace("\n", ";").split(";"):
        if call.strip():
            results = [np.asarray(eval(call.strip(), {"rng": rng, "a": a})) for rng in (ours, numpy)]
            assert results[0].shape == results[1].shape, call


# --- derivatives ---


def test_uniform_and_normal_numbers_are_differentiated_in_their_parameters() -> None:
    be = Backend("cpu", default_dtype="float64")
    xp = be.array_api
    first, second = xp.variable([[0.5, -1.0]]), xp.variable([[1.5], [2.0], [0.75]])
    weights = np.random.default_rng(0).normal(size=(3, 2))
    for name in ("normal", "uniform"):
        x = getattr(xp.random.default_rng(4), name)(first, second)
        gradients = nl.Autodiff(xp.sum(x * xp.asarray(weights)), be).get_grad_asnumpyarray([first, second])
        difference = second - first if name == "uniform" else second
        noise = ((x - first) / difference).numpy()
        expected = [weights * (1 - noise if name == "uniform" else 1), weights * noise]
        np.testing.assert_allclose(gradients[0], expected[0].sum(0, keepdims=True))
        np.testing.assert_allclose(gradients[1], expected[1].sum(1, keepdims=True))


def test_transformed_functions_draw_the_numbers_of_the_function() -> None:
    be = Backend("cpu", default_dtype="float64")
    xp = be.array_api
    v, z = xp.asarray([1.0, 2.0]), xp.random.default_rng(4).normal(size=2).numpy()

    def work(x: Any) -> Any:
        return xp.random.default_rng(4).normal(x, x)

    np.testing.assert_allclose(nl.grad(lambda x: xp.sum(work(x)))(v).numpy(), 1 + z)
    value, change = nl.jvp(work, (v,), (v * 0 + 1,))
    np.testing.assert_allclose([value.numpy(), change.numpy()], [v.numpy() * (1 + z), 1 + z])
    rows = xp.asarray([[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_allclose(nl.vmap(work)(rows).numpy(), rows.numpy() * (1 + z))


def test_gamma_numbers_are_differentiated_in_the_scale() -> None:
    be = Backend("cpu", default_dtype="float64")
    scale = be.array_api.variable([0.5, 3.0])
    x = be.array_api.random.default_rng(4).gamma(2.5, scale, (4, 2))
    gradient = nl.Autodiff(be.array_api.sum(x), be).get_grad_asnumpyarray(scale)
    np.testing.assert_allclose(gradient, (x / scale).numpy().sum(0))


def test_an_expression_of_random_numbers_has_one_value(be: Backend) -> None:
    xp = be.array_api
    rng, v = xp.random.default_rng(4), xp.variable([1.0, 2.0])
    x = rng.normal(v, 1.0)
    assert x.tolist() == x.tolist()
    assert not (x - x).numpy().any()
    assert (x + rng.normal(v, 1.0) != 2 * x).numpy().all()


# --- errors ---

ERRORS = {
    "rng.normal(0, -1)": "normal: expected scale >= 0, got -1. Pass a standard deviation",
    "rng.normal(0, [1.0, float('nan')])": "normal: expected scale >= 0, got nan",
    "rng.normal(0, xp.asarray([1.0, -2.0]) * 2)": "normal: expected scale >= 0, got -4.0",
    "rng.normal(0, xp.variable([-0.5]))": "normal: expected scale >= 0, got -0.5",
    "rng.normal([0, 1], size=3)": "normal: expected a size to which (2,) broadcasts, the shape of the parameters, got",
    "rng.normal(size=(2, -1))": "got (2, -1)",
    "rng.normal(size=2.5)": "normal: size: expected an integer or a sequence of integers, got 2.5",
    "rng.uniform(2, 1)": "uniform: expected finite low <= high, got 2 and 1. Exchange them",
    "rng.uniform(0, float('inf'))": "uniform: expected finite low <= high, got 0 and inf. Exchange them",
    "rng.uniform([0, 5], 3)": "uniform: expected finite low <= high, got 5 and 3",
    "rng.integers(3, 3)": "integers: expected low < high in int64, and at most 2**32 integers, got 3 and 3",
    "rng.integers(4, 3, endpoint=True)": "integers: expected low <= high",
    "rng.integers(0)": "integers: expected low < high",
    "rng.integers(300, dtype='int8')": "in int8, and at most 2**32 integers, got 0 and 300. Exchange them, pass",
    "rng.integers(-1, 3, dtype='uint8')": "in uint8, and at most 2**32 integers, got -1 and 3",
    "rng.integers(2**32 + 1)": "integers, got 0 and 4294967297",
    "rng.integers(0, 2**32, endpoint=True)": "at most 2**32 integers",
    "rng.integers(-(2**63), 2**63 - 1)": "at most 2**32 integers",
    "rng.integers(1.5)": "integers: expected integers as low and high, got 1.5",
    "rng.integers(xp.asarray([1.5]))": "integers: expected integers as low and high, got an array (1,)",
    "rng.permutation(-1)": "permutation: expected an integer >= 0 for x, got -1",
    "rng.permutation(2.5)": "permutation: expected an integer, or an array with an axis, got 2.5",
    "rng.choice(3, 4, replace=False)": "at most 3 draws of 3 elements without replacement, got size (4,). Pass",
    "rng.choice(3, 3, replace=False, p=[0.5, 0.5, 0])": "at most 2 draws of 3 elements without replacement, some of",
    "rng.choice(xp.zeros((2, 3)), axis=2)": "choice: axis 2 is out of range for 2 dimensions",
    "rng.choice(0)": "choice: expected at most 0 draws of 0 elements",
    "rng.choice(3, p=[0.5, 0.5])": "choice: expected p with 3 probabilities, one for each element, of the sum 1, got",
    "rng.choice(3, p=[0.5, 0.4, 0.4])": "of the sum 1.3. Pass p / sum(p), or use categorical with logits",
    "rng.choice(3, p=[0.5, 0.7, -0.2])": "choice: expected p with 3 probabilities",
    "rng.categorical([-xp.inf, -xp.inf])": "categorical: expected a finite largest logit, got -inf. Pass logarithms",
    "rng.categorical([1.0, xp.nan])": "categorical: expected a finite largest logit, got nan",
    "rng.categorical(xp.asarray(1.0))": "categorical: expected an integer, or an array with an axis",
    "rng.categorical(xp.zeros((2, 3)), 4)": "categorical: expected a size to which (2,) broadcasts",
    "rng.gamma([1, -2.0])": "gamma: expected shape >= 0, got -2.0",
    "rng.gamma(1.0, -2.0)": "gamma: expected scale >= 0, got -2.0. Pass 1 / rate",
    "rng.poisson(-1.0)": "poisson: expected 0 <= lam <= 2**30, got -1.0. Pass a rate",
    "rng.poisson(1e17)": "poisson: expected 0 <= lam <= 2**30, got 1e+17. Pass a rate",
    "rng.spawn(-1)": "spawn: expected an integer >= 0 for n, got -1",
    "rng.set_state((1, 2))": "set_state: expected a tuple that get_state() returned",
    "xp.random.default_rng(-1)": "expected an integer from 0 to 2**64 - 1 or None, got -1",
}


@each("call", ERRORS)
def test_parameters_out_of_range_are_refused_and_draw_nothing(be: Backend, call: str) -> None:
    xp = be.array_api
    rng = xp.random.default_rng(1)
    state = rng.get_state()
    with pytest.raises((ValueError, TypeError, IndexError), match=re.escape(ERRORS[call])):
        eval(call, {"rng": rng, "xp": xp})
    assert rng.get_state() == state


def test_a_parameter_that_is_an_expression_of_a_variable_is_not_evaluated(be: Backend) -> None:
    xp = be.array_api
    v = xp.variable([0.5, 2.0])
    assert (xp.random.default_rng(1).normal(0.0, -v) == xp.random.default_rng(1).normal(0.0, v) * -1).numpy().all()
