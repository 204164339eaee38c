"""Random numbers of a backend: equal bits on every runtime, restored states, and distributions."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.random_draws import DRAWS
from helpers.runtimes import RUNTIMES

from neonlite import Backend, gen_backend

# --- random numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", DRAWS)
def test_draws_are_equal_bit_for_bit_on_every_runtime(draw):
    a, *others = (DRAWS[draw](Backend(name, rng_seed=7)).get() for name in RUNTIMES)
    for b in others:
        assert a.shape == b.shape
        if draw in ("randn", "normal"):
            np.testing.assert_array_max_ulp(a, b, 4)
        else:
            np.testing.assert_array_equal(a, b)
    assert len(np.unique(a)) > 1
    assert (a != DRAWS[draw](Backend("cpu", rng_seed=8)).get()).any()


@pytest.mark.parametrize("draw", DRAWS)
def test_a_restored_state_repeats_the_draws_after_it(be, draw):
    DRAWS[draw](be)
    state = be.rng_get_state()
    assert state == be.rng_get_state(None) == be.rng_get_state(state)
    first, second = DRAWS[draw](be).get(), DRAWS[draw](be).get()
    assert (first != second).any()
    be.rng_set_state(state)
    np.testing.assert_array_equal(DRAWS[draw](be).get(), first)
    other = Backend(be.name, rng_seed=99)
    other.rng_set_state(state)
    np.testing.assert_array_equal(DRAWS[draw](other).get(), first)


@pytest.mark.parametrize("draw", DRAWS)
def test_a_reset_repeats_the_first_draws(draw):
    be = gen_backend("cpu", rng_seed=5)
    first, second = DRAWS[draw](be).get(), DRAWS[draw](be).get()
    be.rng_reset()
    np.testing.assert_array_equal(DRAWS[draw](be).get(), first)
    np.testing.assert_array_equal(DRAWS[draw](be).get(), second)
    be.gen_rng(5)
    assert be.rng_seed == 5
    np.testing.assert_array_equal(DRAWS[draw](be).get(), first)
    be.gen_rng(6)
    assert (DRAWS[draw](be).get() != first).any()


def test_gen_rng_returns_the_generator_for_the_host(be):
    assert be.gen_rng(3) is be.rng
    assert isinstance(be.rng, np.random.RandomState)
    assert be.gen_rng() is be.rng


def test_a_draw_of_one_kind_does_not_shift_another():
    plain, busy = Backend("cpu", rng_seed=1), Backend("cpu", rng_seed=1)
    busy.make_binary_mask(busy.empty((5, 5)))
    busy.rng.uniform(size=100)
    np.testing.assert_array_equal(plain.rand(3, 3).asnumpyarray(), busy.rand(3, 3).asnumpyarray())
    a, b = plain.empty((9, 9)), busy.empty((9, 9))
    busy.rng_reset()
    busy.fill_normal(busy.empty((5, 5)))
    plain.make_binary_mask(a)
    busy.make_binary_mask(b)
    np.testing.assert_array_equal(a.get(), b.get())


def test_a_mask_keeps_the_fraction_that_is_requested(be):
    out = be.empty((100, 200))
    for keep in (0.0, 0.1, 0.5, 1.0):
        be.make_binary_mask(out, keepthresh=keep)
        assert set(np.unique(out.get())) <= {0.0, 1.0}
        assert abs(out.get().mean() - keep) <= 5 * (keep * (1 - keep) / out.size) ** 0.5
    be.make_binary_mask(out)
    assert abs(out.get().mean() - 0.5) < 0.02
    with pytest.raises(ValueError, match=r">= 0 and <= 1 for keep, got 1\.5"):
        be.make_binary_mask(out, 1.5)


def test_normals_have_the_mean_and_deviation_that_are_requested(be):
    out = be.empty((200, 100))
    be.fill_normal(out)
    assert abs(out.get().mean()) < 0.04
    assert abs(out.get().std() - 1) < 0.03
    be.fill_normal(out, mean=-5, stdv=0.1)
    assert abs(out.get().mean() + 5) < 0.004
    assert abs(out.get().std() - 0.1) < 0.003
    assert abs(be.randn(200, 100).asnumpyarray().std() - 1) < 0.03
    uniform = be.rand(200, 100).asnumpyarray()
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.01


def test_binarize_is_plus_one_with_probability_of_half_of_x_plus_one(be):
    x = be.array(np.repeat([[-2.0], [-1.0], [-0.5], [0.0], [0.5], [1.0], [2.0]], 4000, axis=1))
    values = be.binarize(x).asnumpyarray()
    assert set(np.unique(values)) == {-1.0, 1.0}
    expected = np.array([0, 0, 0.25, 0.5, 0.75, 1, 1])
    np.testing.assert_allclose((values > 0).mean(1), expected, atol=0.04)
    assert (values[[0, 1]] == -1).all()
    assert (values[[5, 6]] == 1).all()
    out = be.empty(x.shape)
    assert be.binarize(x, stochastic=False, out=out) is be.binarize(x, out, False) is out
    np.testing.assert_array_equal(out.get(), np.where(x.get() >= 0, 1, -1))
    assert be.binarize(x, out) is out
    assert 0.1 < (out.get()[2] > 0).mean() < 0.4
