"""Backends: how one becomes current, how several live side by side, what they draw, and how a new runtime joins."""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import ABSENT, RUNTIMES

from neonlite import Autodiff, Backend, Block, NervanaObject, Tensor, backend, cleanup_backend, gen_backend
from neonlite.backend import set_threads
from neonlite.backend.executors import pool
from neonlite.backend.runtimes import KNOWN, default
from neonlite.backend.runtimes.base import Runtime


@pytest.fixture(autouse=True)
def no_backend_before_and_after() -> Iterator[None]:
    cleanup_backend()
    yield
    cleanup_backend()


# --- the current backend -------------------------------------------------------------------------------------------


def test_gen_backend_makes_the_backend_current():
    be = gen_backend("cpu", rng_seed=3, datatype=np.float64, batch_size=32)
    assert NervanaObject.be is NervanaObject().be is be
    assert (be.name, be.device_type, be.bsz, be.rng_seed, be.default_dtype) == ("cpu", "cpu", 32, 3, np.float64)
    assert be.ones((2, 2)).dtype == "float64"
    assert gen_backend().bsz == 0
    assert NervanaObject.be is not be


def test_gen_backend_takes_the_arguments_of_neon():
    be = gen_backend(
        backend="cpu",
        rng_seed=0,
        datatype=np.float32,
        batch_size=128,
        stochastic_round=False,
        device_id=0,
        max_devices=1,
        compat_mode="caffe",
        deterministic_update=None,
        deterministic=True,
    )
    assert (be.compat_mode, be.deterministic) == ("caffe", True)


def test_a_later_backend_cleans_up_the_earlier_one():
    old = gen_backend("cpu")
    x = old.ones((2, 2), name="x")
    tree = x + 1
    tree.asnumpyarray()
    new = gen_backend("strict")
    assert NervanaObject.be is new
    np.testing.assert_array_equal(x.get(), np.ones((2, 2)))
    np.testing.assert_array_equal(x.T[0].get(), np.ones((1, 2)))
    assert "'x'" in repr(x)
    np.testing.assert_array_equal(new.array(x).get(), np.ones((2, 2)))
    for use in (lambda: old.ones((2, 2)), lambda: old.array(1), lambda: tree.asnumpyarray(), lambda: x.fill(3)):
        with pytest.raises(RuntimeError, match=r"was cleaned up.*call gen_backend\(\)"):
            use()
    np.testing.assert_array_equal(x.get(), np.ones((2, 2)))


def test_without_a_backend_the_error_says_to_make_one():
    for thing in (NervanaObject, NervanaObject()):
        with pytest.raises(RuntimeError, match=r"call gen_backend\(\) first"):
            _ = thing.be
    cleanup_backend()  # twice does no harm


def test_the_current_backend_can_be_set():
    be = Backend.allocate_backend("cpu")
    NervanaObject.be = be
    assert NervanaObject().be is be


def test_a_backend_that_cannot_be_made_leaves_the_current_one(monkeypatch):
    be = gen_backend("cpu")
    monkeypatch.setitem(sys.modules, "array_api_strict", None)
    monkeypatch.delitem(sys.modules, "neonlite.backend.runtimes.strict", raising=False)
    for error, words, options in [
        (ValueError, r"one of \('cpu', .*'strict'.*\); got 'cpus'; did you mean 'cpu'", {"backend": "cpus"}),
        (ImportError, "pip install array-api-strict", {"backend": "strict"}),
        (ValueError, "None or 'caffe'", {"compat_mode": "torch"}),
        (ValueError, "'cpu' has 1 device, number 0; got device_id=1", {"backend": "cpu", "device_id": 1}),
        (ValueError, "device_id=-1", {"backend": "cpu", "device_id": -1}),
        (ValueError, "device_id=True", {"backend": "cpu", "device_id": True}),
        (ValueError, "device_id='0'", {"backend": "cpu", "device_id": "0"}),
        (ValueError, "default dtype", {"datatype": np.int32}),
        (TypeError, "no dtype", {"datatype": "quad"}),
        (ValueError, "batch size", {"batch_size": -1}),
        ((TypeError, ValueError), "seed", {"rng_seed": 1.5}),
    ]:
        with pytest.raises(error, match=words):
            gen_backend(**options)
    assert NervanaObject.be is be
    assert be.ones((1, 1)).get() == 1


def test_the_choices_are_sorted_names():
    assert Backend.backend_choices() == sorted(Backend.backend_choices())
    assert {"cpu", "strict"} <= set(Backend.backend_choices())
    with pytest.raises(ValueError, match="backend must be one of"):
        Backend.allocate_backend("abacus")
    with pytest.raises(TypeError, match="no option colour"):
        Backend.allocate_backend("cpu", colour="red")


# --- side by side --------------------------------------------------------------------------------------------------


def test_backends_live_side_by_side():
    current = gen_backend("cpu")
    backends = [current, *(Backend.allocate_backend(name) for name in ("cpu", "strict", "cpu", *RUNTIMES[2:]))]
    assert NervanaObject.be is current
    tensors = [be.array([[1.0, n]]) for n, be in enumerate(backends)]
    for _ in range(2):
        for n, (be, x) in enumerate(zip(backends, tensors, strict=True)):
            tree = be.exp(x * 2) - x
            assert tree.backend is x.backend is be
            np.testing.assert_allclose(tree.asnumpyarray(), [[np.exp(2) - 1, np.exp(2 * n) - n]], rtol=1e-5)
    with pytest.raises(ValueError, match=r"be\.array"):
        _ = tensors[0] + tensors[1]
    with pytest.raises(ValueError, match=r"be\.array"):
        tensors[0][:] = tensors[2] * 2
    cleanup_backend()
    np.testing.assert_allclose((backends[1].array(tensors[0]) + tensors[1]).asnumpyarray(), [[2, 1]])


@pytest.mark.parametrize("source", RUNTIMES)
@pytest.mark.parametrize("target", RUNTIMES)
def test_tensors_are_copied_from_backend_to_backend(source, target):
    a, b = Backend(source), Backend(target, default_dtype="float64")
    x = a.array([[1, 2], [3, 4]], name="x")
    y = b.array(x.T, name="y")
    z = b.zeros((2, 2))
    z[:] = x.get()
    x.fill(0)
    np.testing.assert_array_equal(y.get(), [[1, 3], [2, 4]])
    np.testing.assert_array_equal(z.get(), [[1, 2], [3, 4]])
    assert y.dtype == "float64"


def test_blocks_mark_repeated_work_and_change_nothing(be):
    assert [Block.epoch, Block.minibatch, Block.fprop, Block.bprop, Block.update] == [0, 1, 2, 3, 4]
    x = be.ones((2, 2))
    be.begin(Block.epoch, 0)
    be.begin(Block.minibatch, 7)
    x[:] = x + 1
    be.end(block=Block.minibatch, identifier=7)
    be.end(Block.epoch, 0)
    np.testing.assert_array_equal(x.get(), np.full((2, 2), 2))


# --- random numbers ------------------------------------------------------------------------------------------------

DRAWS = {
    "rand": lambda be: be.rand(40, 30).astensor(),
    "rand in a tree": lambda be: (be.rand(40, 30).T * 2 - 1).astensor(),
    "randn": lambda be: be.randn((5, 2, 3)).astensor(),
    "mask": lambda be: masked(be, be.empty((40, 30)), 0.3),
    "mask of ints": lambda be: masked(be, be.empty((40, 30), dtype="int8"), 0.7),
    "mask of a view": lambda be: masked(be, be.zeros((40, 30))[::2, 5:].T, 0.5).base.base,
    "normal": lambda be: normal(be, be.empty((40, 30))),
    "binarize": lambda be: be.binarize(be.array(np.linspace(-2, 2, 900).reshape(30, 30))).astensor(),
    "host": lambda be: be.array(be.rng.uniform(size=(40, 30))),
}


def masked(be: Backend, out: Tensor, keep: float) -> Tensor:
    assert be.make_binary_mask(out, keep) is None
    return out


def normal(be: Backend, out: Tensor) -> Tensor:
    be.fill_normal(out, mean=3, stdv=0.5)
    return out


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
def test_a_state_brings_back_what_was_drawn_after_it(be, draw):
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
def test_a_reset_goes_back_to_the_start(draw):
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


def test_a_mask_keeps_the_fraction_that_is_asked_for(be):
    out = be.empty((100, 200))
    for keep in (0.0, 0.1, 0.5, 1.0):
        be.make_binary_mask(out, keepthresh=keep)
        assert set(np.unique(out.get())) <= {0.0, 1.0}
        assert abs(out.get().mean() - keep) <= 5 * (keep * (1 - keep) / out.size) ** 0.5
    be.make_binary_mask(out)
    assert abs(out.get().mean() - 0.5) < 0.02
    with pytest.raises(ValueError, match=r"from 0 to 1; got 1\.5"):
        be.make_binary_mask(out, 1.5)


def test_normals_have_the_mean_and_deviation_that_are_asked_for(be):
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
    wanted = np.array([0, 0, 0.25, 0.5, 0.75, 1, 1])
    np.testing.assert_allclose((values > 0).mean(1), wanted, atol=0.04)
    assert (values[[0, 1]] == -1).all()
    assert (values[[5, 6]] == 1).all()
    out = be.empty(x.shape)
    assert be.binarize(x, stochastic=False, out=out) is be.binarize(x, out, False) is out
    np.testing.assert_array_equal(out.get(), np.where(x.get() >= 0, 1, -1))
    assert be.binarize(x, out) is out
    assert 0.1 < (out.get()[2] > 0).mean() < 0.4


# --- a runtime of one's own ----------------------------------------------------------------------------------------


class Mine(Runtime):
    """NumPy once more, op by op: all that it takes to join, and what it lacks."""

    name = "mine"
    xp = np
    dtypes = ("float32", "int32", "int64")
    negative_steps = False

    def put(self, array: Any) -> Any:
        return np.array(array, order="C")

    get = put


BARE = {word: x for cls in (Runtime, Mine) for word, x in vars(cls).items() if word not in ("__dict__", "__weakref__")}
ByHand = type("ByHand", (), BARE)  # has all that the base has, and owes nothing to it


@pytest.fixture(params=[Mine, ByHand])
def mine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Backend:
    point = importlib.metadata.EntryPoint("mine", f"{__name__}:{request.param.__name__}", "neonlite.runtimes")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point] if group == point.group else [])
    return gen_backend("mine", rng_seed=2, deterministic=True)


def test_a_runtime_of_ones_own_takes_under_twenty_lines():
    assert len(inspect.getsource(Mine).splitlines()) < 20


def test_a_device_that_a_runtime_of_ones_own_has_not_is_a_value_error(mine):
    with pytest.raises(ValueError, match=r"'mine' has 1 device, number 0; got device_id=1"):
        gen_backend("mine", device_id=1)
    assert NervanaObject.be is mine


def test_a_runtime_joins_by_an_entry_point(mine):
    assert "mine" in Backend.backend_choices()
    assert (mine.name, NervanaObject.be) == ("mine", mine)
    x = mine.array([[0.5, -1.0], [2.0, 0.0]], name="x")
    tree = mine.sum(1 / (1 + mine.exp(-x)))
    s = 1 / (1 + np.exp(-x.get()))
    np.testing.assert_allclose(tree.asnumpyarray(), [[s.sum()]], rtol=1e-6)
    np.testing.assert_allclose(Autodiff(tree, mine).get_grad_asnumpyarray(x), s * (1 - s), rtol=1e-5)
    x[1:] = x[:-1] + mine.rand(1, 2)
    np.testing.assert_array_equal(mine.rand(3, 3).asnumpyarray(), second_draw())
    assert "mine" in repr(x)
    assert backend.info()[-1][:2] == ("mine", True)
    assert "mine" in repr(backend.info()).splitlines()[-1]


def second_draw() -> np.ndarray:
    be = Backend("cpu", rng_seed=2)
    be.rand(1, 2).astensor()
    return be.rand(3, 3).asnumpyarray()


def test_what_a_runtime_lacks_is_refused_with_the_way_out(mine):
    x = mine.ones((3, 3))
    for index in (slice(None, None, -1), (0, slice(2, 0, -1))):
        with pytest.raises(IndexError, match=r"'mine' has no views with negative steps: use be\.take"):
            x[index]
    assert x[::2].shape == (2, 3)
    with pytest.raises(TypeError, match="'mine' has no dtype 'float64'; it has float32, int32, int64"):
        mine.ones((2, 2), dtype="float64")
    with pytest.raises(TypeError, match="'mine' has no dtype 'float64'"):
        gen_backend("mine", datatype="float64")


def test_an_entry_point_that_is_broken_spoils_its_own_name_alone(monkeypatch):
    point = importlib.metadata.EntryPoint("broken", "no_such_module:Thing", "neonlite.runtimes")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point])
    assert "broken" in Backend.backend_choices()
    with pytest.raises(ImportError, match="broken"):
        gen_backend("broken")
    assert gen_backend("cpu").ones((1, 1)).get() == 1


# --- which runtimes there are --------------------------------------------------------------------------------------


def test_info_says_of_every_runtime_what_it_is_or_how_to_get_it():
    found = {name: (usable, about) for name, usable, about in backend.info()}
    assert list(found) == list(KNOWN)
    assert {name for name, (usable, _) in found.items() if usable} == set(RUNTIMES)
    assert np.__version__ in found["cpu"][1]
    for name in ABSENT:
        assert KNOWN[name][2] in found[name][1]
    lines = repr(backend.info()).splitlines()
    assert [line.split()[:2] for line in lines] == [[name, "yes" if found[name][0] else "no"] for name in KNOWN]


NEEDS = {
    "mkl": ("mkl", 'pip install "neonlite[mkl]"'),
    "torch": ("torch", "pip install torch"),
    "gpu": ("cupy", 'pip install "neonlite[cuda13]"'),
    "strict": ("array_api_strict", "pip install array-api-strict"),
}


@pytest.mark.parametrize("name", NEEDS)
def test_what_a_runtime_needs_is_named_with_the_pip_line_when_it_is_missing(monkeypatch, name):
    package, pip = NEEDS[name]
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, KNOWN[name][0], raising=False)
    if blas := sys.modules.get("neonlite.backend.mkl.blas"):  # it remembers what it found
        monkeypatch.setattr(blas, "library", blas.library.__wrapped__)
    with pytest.raises(ImportError) as caught:
        gen_backend(name)
    message = str(caught.value)
    assert message.startswith(f"the backend '{name}' cannot be loaded: ")
    assert f"To install what it needs: {pip}" in message
    (row,) = (found for found in backend.info() if found.name == name)
    assert row == (name, False, message)
    assert gen_backend("cpu").ones((1, 1)).get() == 1


def test_without_a_name_mkl_is_taken_where_it_is_installed_and_else_cpu(monkeypatch):
    assert gen_backend().name == ("mkl" if "mkl" in RUNTIMES else "cpu")
    monkeypatch.setitem(sys.modules, "mkl", None)
    assert default() == "cpu"
    assert gen_backend().name == "cpu"


# --- threads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("said", "n"), [("3", 3), (" 5 ", 5), ("7,2", 7), ("", None), ("0", None), ("many", None)])
def test_there_are_as_many_threads_as_the_environment_says_or_else_as_cpus(monkeypatch, said, n):
    monkeypatch.setattr(pool, "_threads", 0)
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert pool.threads() == (n or available)
    monkeypatch.setenv("OMP_NUM_THREADS", "11")
    assert pool.threads() == (n or available)  # asked once
    set_threads(2)
    assert pool.threads() == 2


@pytest.mark.parametrize("n", [0, -1, 1.0, True, "2", None])
def test_a_number_of_threads_that_is_none_is_refused(monkeypatch, n):
    monkeypatch.setattr(pool, "_threads", 4)
    with pytest.raises(ValueError, match="a whole number from 1"):
        set_threads(n)
    assert pool.threads() == 4
