"""Tests of backends: the current one, several at a time, random numbers, and custom runtimes."""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import pickle
import re
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers.random_draws import DRAWS
from helpers.runtimes import ABSENT, RUNTIMES

from neonlite import Autodiff, Backend, Block, NervanaObject, backend, cleanup_backend, gen_backend
from neonlite.backend import set_threads, thread_pool
from neonlite.backend.runtimes import BUILTIN_RUNTIMES, default_runtime
from neonlite.backend.runtimes.base import Runtime


def caller_pattern() -> str:
    """Return the file and line of the caller, as a pattern."""
    frame = sys._getframe(1)
    return re.escape(f"{__file__}:{frame.f_lineno}")


@pytest.fixture(autouse=True)
def no_backend_before_and_after() -> Iterator[None]:
    cleanup_backend()
    yield
    cleanup_backend()


# --- the current backend -------------------------------------------------------------------------------------------


def test_gen_backend_sets_the_current_backend():
    be = gen_backend("cpu", rng_seed=3, datatype=np.float64, batch_size=32)
    assert NervanaObject.be is NervanaObject().be is be
    assert (be.name, be.device_type, be.bsz, be.rng_seed, be.default_dtype) == ("cpu", "cpu", 32, 3, np.float64)
    assert be.ones((2, 2)).dtype == "float64"
    assert gen_backend().bsz == 0
    assert NervanaObject.be is not be


def test_gen_backend_accepts_the_arguments_of_neon():
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
    new, line = gen_backend("strict"), caller_pattern()
    assert NervanaObject.be is new
    np.testing.assert_array_equal(x.get(), np.ones((2, 2)))
    np.testing.assert_array_equal(x.T[0].get(), np.ones((1, 2)))
    assert "'x'" in repr(x)
    np.testing.assert_array_equal(new.array(x).get(), np.ones((2, 2)))
    for use in (lambda: old.ones((2, 2)), lambda: old.array(1), lambda: tree.asnumpyarray(), lambda: x.fill(3)):
        with pytest.raises(RuntimeError, match=rf"<backend cpu \d+, closed by gen_backend\(\) at {line}> is closed"):
            use()
    np.testing.assert_array_equal(x.get(), np.ones((2, 2)))


CELL: dict[str, Any] = {
    "backend": "cpu",
    "rng_seed": 3,
    "datatype": "float64",
    "batch_size": 32,
    "compat_mode": "caffe",
}


def test_gen_backend_again_with_the_same_settings_reseeds_the_live_backend():
    be = gen_backend(**CELL)
    x, drawn = be.ones((2, 2)), [be.rng.random(3).tolist(), be.rand((2, 2)).asnumpyarray().tolist()]
    be.bsz = 7
    assert gen_backend(**CELL) is NervanaObject.be is be
    assert [be.rng.random(3).tolist(), be.rand((2, 2)).asnumpyarray().tolist()] == drawn
    assert be.bsz == 32
    x += 1
    np.testing.assert_array_equal(x.get(), [[2, 2], [2, 2]])
    assert gen_backend(**CELL | {"batch_size": 0}).bsz == 32
    assert gen_backend(**CELL | {"rng_seed": 4}).rng_seed == 4
    first = gen_backend(**CELL | {"rng_seed": None}).rng_seed
    assert gen_backend(**CELL | {"rng_seed": None}).rng_seed != first
    assert gen_backend(**CELL | {"stochastic_round": True, "max_devices": 1, "deterministic_update": True}) is be
    assert not be.closed


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"stochastic_round": "yes"}, "expected True or False for stochastic_round, got 'yes'"),
        ({"max_devices": "2"}, "expected an integer >= 1 for max_devices, got '2'"),
    ],
    ids=str,
)
def test_options_without_effect_are_checked(option, words):
    with pytest.raises(TypeError, match=f"gen_backend: {words}"):
        gen_backend("cpu", **option)


def test_reuse_of_the_live_backend_resets_histograms_workspaces_and_the_peak():
    be = gen_backend("cpu")
    x = be.ones((300, 300), name="x")
    be.histogram(x, "x")
    (be.sum(be.exp(x) * x, axis=0) @ x).astensor()
    assert be.memory().arena
    gen_backend("cpu")
    assert be.memory() == (x.nbytes, 0, 0, x.nbytes)
    assert not be.hist_buf
    be.set_hist_buffers(8, -4)
    assert gen_backend("cpu").histogram(x, "x").shape == (1, 64)


@pytest.mark.parametrize(
    "other", [{"datatype": "float32"}, {"compat_mode": None}, {"deterministic": True}, {"backend": "strict"}], ids=str
)
def test_gen_backend_with_other_settings_creates_a_new_one_and_closes_the_previous_one(other):
    be = gen_backend(**CELL)
    x = be.ones((2, 2), name="x")
    new, line = gen_backend(**CELL | other), caller_pattern()
    assert new is NervanaObject.be is not be
    assert be.closed
    with pytest.raises(
        ValueError,
        match=rf"x .* on <backend cpu .*, closed by gen_backend\(\) at {line}>.*Create the tensors of the closed",
    ):
        new.ones((2, 2)) + x
    with pytest.raises(
        ValueError, match=rf"closed by gen_backend\(\) at {line}>.*Create the tensors of the closed backend again"
    ):
        new.ones((2, 2))[:] = x
    with pytest.raises(
        RuntimeError, match=rf"closed by gen_backend\(\) at {line}> is closed: .* gen_backend\(\) returns"
    ):
        x += 1


def test_gen_backend_of_a_closed_backend_creates_a_new_one():
    be = gen_backend("cpu", batch_size=3)
    be.cleanup_backend()
    line = re.escape(f"{__file__}:{sys._getframe().f_lineno - 1}")
    new = gen_backend("cpu")
    assert (new is be, new.bsz) == (False, 0)
    cleanup_backend()
    with pytest.raises(RuntimeError, match=rf"closed by cleanup_backend\(\) at {line}>"):  # the first call counts
        be.ones((2, 2))


def test_rejected_arguments_leave_the_live_backend_unchanged():
    be = gen_backend("cpu", rng_seed=3, batch_size=4)
    be.rng.random()
    state = be.rng_get_state()
    for wrong in ({"rng_seed": -1, "batch_size": 8}, {"rng_seed": 5, "batch_size": -8}, {"datatype": "int32"}):
        with pytest.raises(ValueError):  # noqa: PT011
            gen_backend("cpu", **wrong)
    assert (NervanaObject.be is be, be.closed, be.bsz, be.rng_get_state()) == (True, False, 4, state)


def test_gen_backend_does_not_return_a_dry_run_or_another_backend():
    be = gen_backend("cpu")
    NervanaObject.be = be.dry_run()
    new = gen_backend("cpu")
    assert type(new) is Backend
    assert new is not be


def test_gen_backend_of_a_backend_uses_its_runtime():
    be = gen_backend("cpu", batch_size=3)
    assert gen_backend(be) is be
    new = gen_backend(be, datatype="float64")
    assert (new is be, new.name, new.default_dtype_name, be.closed) == (False, "cpu", "float64", True)
    assert gen_backend(be, datatype="float64") is new
    assert new.ones((2, 2)).get().sum() == 4


def test_a_custom_runtime_is_passed_as_an_object():
    from neonlite.backend.runtimes.numpy import NumPyRuntime

    class CustomRuntime(NumPyRuntime):
        name = "mine"

    class Halved(CustomRuntime):
        def __init__(self, part: float) -> None:
            super().__init__()
            self.part = part

        def is_equivalent(self, other: Runtime) -> bool:
            return super().is_equivalent(other) and other.part == self.part

    be = gen_backend(CustomRuntime(), batch_size=3)
    x = be.ones((2, 2))
    assert gen_backend(CustomRuntime()) is be
    assert (x + 1).get().sum() == 8
    half = gen_backend(Halved(0.5))
    assert half is not be
    assert gen_backend(Halved(0.5)) is half is not gen_backend(Halved(0.25))


def test_a_second_call_of_cleanup_backend_has_no_effect():
    cleanup_backend()
    cleanup_backend()


def test_the_current_backend_can_be_set():
    be = Backend.allocate_backend("cpu")
    NervanaObject.be = be
    assert NervanaObject().be is be


def test_a_backend_that_cannot_be_created_leaves_the_current_one(monkeypatch):
    be = gen_backend("cpu")
    monkeypatch.setitem(sys.modules, "array_api_strict", None)
    monkeypatch.delitem(sys.modules, "neonlite.backend.runtimes.array_api", raising=False)
    for error, message, options in [
        (ValueError, r"one of \('cpu', .*'strict'.*\), got 'cpus'\. Did you mean 'cpu'", {"backend": "cpus"}),
        (ImportError, "pip install array-api-strict", {"backend": "strict"}),
        (ValueError, "one of None, 'caffe' for compat_mode", {"compat_mode": "torch"}),
        (ValueError, "runtime 'cpu': expected 0 for device_id, got 1", {"backend": "cpu", "device_id": 1}),
        (ValueError, "expected 0 for device_id, got -1", {"backend": "cpu", "device_id": -1}),
        (ValueError, "expected 0 for device_id, got True", {"backend": "cpu", "device_id": True}),
        (ValueError, "expected 0 for device_id, got '0'", {"backend": "cpu", "device_id": "0"}),
        (ValueError, "default dtype", {"datatype": np.int32}),
        (TypeError, "expected one of the dtypes", {"datatype": "quad"}),
        (ValueError, "batch size", {"batch_size": -1}),
        ((TypeError, ValueError), "seed", {"rng_seed": 1.5}),
    ]:
        with pytest.raises(error, match=message):
            gen_backend(**options)
    assert NervanaObject.be is be
    assert be.ones((1, 1)).get() == 1


def test_the_choices_are_sorted_names():
    assert Backend.backend_choices() == sorted(Backend.backend_choices())
    assert {"cpu", "strict"} <= set(Backend.backend_choices())
    with pytest.raises(ValueError, match=r"runtime: expected one of"):
        Backend.allocate_backend("abacus")
    with pytest.raises(TypeError, match=r"expected the options runtime, .*, device_id, got colour"):
        Backend.allocate_backend("cpu", colour="red")


# --- several backends -----------------------------------------------------------------------------------------------


def test_several_backends_exist_at_a_time():
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
    with pytest.raises(ValueError, match=r"from 0 to 1 for keep, got 1\.5"):
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


# --- custom runtimes -------------------------------------------------------------------------------------------------


class CustomRuntime(Runtime):
    """A NumPy runtime op by op: the minimum that a runtime defines, without optional features."""

    name = "mine"
    xp = np
    dtypes = ("float32", "int32", "int64")
    supports_negative_strides = False

    def put(self, array: Any) -> Any:
        return np.array(array, order="C")

    get = put


@pytest.fixture
def custom(monkeypatch: pytest.MonkeyPatch) -> Backend:
    register(monkeypatch, "mine", f"{__name__}:CustomRuntime")
    return gen_backend("mine", rng_seed=2, deterministic=True)


def register(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """Register an entry point for a test."""
    point = importlib.metadata.EntryPoint(name, value, "neonlite.runtimes")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point] if group == point.group else [])


def test_a_custom_runtime_needs_fewer_than_twenty_lines():
    assert len(inspect.getsource(CustomRuntime).splitlines()) < 20


def test_an_unknown_device_of_a_custom_runtime_is_a_value_error(custom):
    with pytest.raises(ValueError, match=r"runtime 'mine': expected 0 for device_id, got 1"):
        gen_backend("mine", device_id=1)
    assert NervanaObject.be is custom


def test_a_runtime_is_registered_by_an_entry_point(custom):
    assert "mine" in Backend.backend_choices()
    assert (custom.name, NervanaObject.be) == ("mine", custom)
    x = custom.array([[0.5, -1.0], [2.0, 0.0]], name="x")
    tree = custom.sum(1 / (1 + custom.exp(-x)))
    s = 1 / (1 + np.exp(-x.get()))
    np.testing.assert_allclose(tree.asnumpyarray(), [[s.sum()]], rtol=1e-6)
    np.testing.assert_allclose(Autodiff(tree, custom).get_grad_asnumpyarray(x), s * (1 - s), rtol=1e-5)
    x[1:] = x[:-1] + custom.rand(1, 2)
    np.testing.assert_array_equal(custom.rand(3, 3).asnumpyarray(), second_draw())
    assert "mine" in repr(x)
    assert backend.info()[-1][:2] == ("mine", True)
    assert "mine" in repr(backend.info()).splitlines()[-1]


def second_draw() -> np.ndarray:
    be = Backend("cpu", rng_seed=2)
    be.rand(1, 2).astensor()
    return be.rand(3, 3).asnumpyarray()


def test_features_that_a_runtime_lacks_are_rejected_with_a_hint(custom):
    x = custom.ones((3, 3))
    for index in (slice(None, None, -1), (0, slice(2, 0, -1))):
        with pytest.raises(IndexError, match=r"expected a step >= 1 on the runtime 'mine', got -\d\. Use be\.take"):
            x[index]
    with pytest.raises(IndexError, match=r"expected a step >= 1 on the runtime 'mine', got -1\. Use be\.take"):
        custom.build("slice", x * 2, index=((2, 3, -1), (0, 3, 1))).astensor()
    assert x[::2].shape == (2, 3)
    with pytest.raises(
        TypeError, match=r"backend 'mine': expected one of the dtypes float32, int32, int64, .*got 'float64'"
    ):
        custom.ones((2, 2), dtype="float64")
    with pytest.raises(TypeError, match=r"backend 'mine': expected one of the dtypes .*got 'float64'"):
        gen_backend("mine", datatype="float64")


def test_a_broken_entry_point_affects_only_its_name(monkeypatch):
    register(monkeypatch, "broken", "no_such_module:Thing")
    assert "broken" in Backend.backend_choices()
    with pytest.raises(ImportError, match="broken"):
        gen_backend("broken")
    assert gen_backend("cpu").ones((1, 1)).get() == 1


@pytest.mark.parametrize("value", ["json", "json:dumps", "json:JSONDecoder", "os:sep"])
def test_an_entry_point_that_is_no_runtime_is_rejected(monkeypatch, value):
    register(monkeypatch, "broken", value)
    message = f"the runtime 'broken': expected a subclass of Runtime as its entry point, got '{value}'. Register"
    with pytest.raises(ImportError, match=message):
        gen_backend("broken")
    assert backend.info()[-1].details.startswith(message)


class IncompleteRuntime(CustomRuntime):
    def __init__(self, device_id: int = 0) -> None:
        pass


class ReplacedRuntime(CustomRuntime):
    name = "cpu"


def without(*names: str) -> Any:
    """Return a runtime class that lacks members of a custom one."""
    return type("Mine", (Runtime,), {x: vars(CustomRuntime)[x] for x in ("name", "xp", "put", "get") if x not in names})


@pytest.mark.parametrize(
    ("lacking", "message"),
    [
        (("put",), "no put"),
        (("get",), "no get"),
        (("name", "xp"), "no name and no xp"),
        (("xp", "get"), "no xp and no g"),
    ],
)
def test_a_runtime_names_what_it_lacks(lacking, message):
    with pytest.raises(TypeError, match=f"runtime Mine: expected name, xp, put and get, got {message}.*Define them"):
        without(*lacking)()
    assert without()().name == "mine"


@pytest.mark.parametrize(
    ("create", "error", "message"),
    [
        (IncompleteRuntime, TypeError, r" IncompleteRuntime: expected a constructor that calls super\(\)\.__init__\("),
        (
            ReplacedRuntime,
            ValueError,
            r" ReplacedRuntime: expected a name that no built-in runtime has, got 'cpu'\. Set",
        ),
        (
            lambda: CustomRuntime,
            TypeError,
            r": expected a name or an instance of Runtime, got <cl.* an instance, Custom",
        ),
        (
            lambda: np,
            TypeError,
            r": expected a name or an instance of Runtime, got <module 'numpy' .* Pass a name, suc",
        ),
        (lambda: ["cpu"], TypeError, r": expected a name or an instance of Runtime, got \['cpu'\]\. Pass a name, such"),
    ],
)
def test_gen_backend_rejects_what_is_no_complete_runtime(monkeypatch, create, error, message):
    live = gen_backend("cpu")
    for call in (gen_backend, Backend):
        with pytest.raises(error, match=f"^runtime{message}"):
            call(create())
    assert NervanaObject.be is live
    register(monkeypatch, "mine", f"{__name__}:IncompleteRuntime")
    assert backend.info()[-1][:2] == ("mine", False)


def test_the_dtypes_of_a_runtime_are_those_of_its_namespace():
    import array_api_strict

    class Mine(without()):
        xp = array_api_strict

        def put(self, array: Any) -> Any:
            return self.xp.asarray(array)

    be = gen_backend(Mine())
    assert "uint16" in be.runtime.dtypes
    with pytest.raises(TypeError, match=r"backend 'mine': expected one of the dtypes float32, .*got 'float16'"):
        be.ones((2, 2), dtype="float16")
    assert be.ones((0, 2)).reshape((2, 0)).get().shape == (2, 0)
    assert "float16" in without()().dtypes


# --- available runtimes ---------------------------------------------------------------------------------------------


def test_info_describes_every_runtime_or_how_to_install_it():
    rows = {name: (usable, about) for name, usable, about in backend.info()}
    assert list(rows) == list(BUILTIN_RUNTIMES)
    assert {name for name, (usable, _) in rows.items() if usable} == set(RUNTIMES)
    assert np.__version__ in rows["cpu"][1]
    for name in ABSENT:
        assert BUILTIN_RUNTIMES[name][2] in rows[name][1]
    lines = repr(backend.info()).splitlines()
    assert [line.split()[:2] for line in lines] == [
        [name, "yes" if rows[name][0] else "no"] for name in BUILTIN_RUNTIMES
    ]


NEEDS = {
    "mkl": ("mkl", 'pip install "neonlite[mkl]"'),
    "torch": ("torch", "pip install torch"),
    "gpu": ("cupy", 'pip install "neonlite[cuda13]"'),
    "strict": ("array_api_strict", "pip install array-api-strict"),
}


@pytest.mark.parametrize("name", NEEDS)
def test_a_missing_requirement_of_a_runtime_is_named_with_the_pip_command(monkeypatch, name):
    package, pip = NEEDS[name]
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, BUILTIN_RUNTIMES[name][0], raising=False)
    if blas := sys.modules.get("neonlite.backend.runtimes.mkl"):  # it caches the library
        monkeypatch.setattr(blas, "load_library", blas.load_library.__wrapped__)
    with pytest.raises(ImportError) as caught:
        gen_backend(name)
    message = str(caught.value)
    assert message.startswith(f"the runtime '{name}' cannot be loaded: ")
    assert f"Install it: {pip}" in message
    (row,) = (x for x in backend.info() if x.name == name)
    assert row == (name, False, message)
    assert gen_backend("cpu").ones((1, 1)).get() == 1


def test_the_default_runtime_is_mkl_if_it_is_installed_and_else_cpu(monkeypatch):
    assert gen_backend().name == ("mkl" if "mkl" in RUNTIMES else "cpu")
    monkeypatch.setitem(sys.modules, "mkl", None)
    assert default_runtime() == "cpu"
    assert gen_backend().name == "cpu"


# --- threads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("setting", "n"), [("3", 3), (" 5 ", 5), ("7,2", 7), ("", None), ("0", None), ("many", None)])
def test_the_number_of_threads_is_that_of_the_environment_or_of_the_cpus(monkeypatch, setting, n):
    monkeypatch.setattr(thread_pool, "_num_threads", 0)
    monkeypatch.setenv("OMP_NUM_THREADS", setting)
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert thread_pool.get_num_threads() == (n or available)
    monkeypatch.setenv("OMP_NUM_THREADS", "11")
    assert thread_pool.get_num_threads() == (n or available)  # read once
    set_threads(2)
    assert thread_pool.get_num_threads() == 2


@pytest.mark.parametrize("n", [0, -1, 1.0, True, "2", None])
def test_an_invalid_number_of_threads_is_rejected(monkeypatch, n):
    monkeypatch.setattr(thread_pool, "_num_threads", 4)
    with pytest.raises((TypeError, ValueError), match="expected an integer >= 1 for the number of threads, got"):
        set_threads(n)
    assert thread_pool.get_num_threads() == 4


def test_a_backend_and_what_refers_to_it_are_not_pickled():
    be = Backend("cpu")
    for x in (be, be.array_api, be.plan(be.ones((2, 2)) + 1), [be]):
        with pytest.raises(TypeError, match=r"pickle: .* a backend.* model\.get_weights\(\).* t\.get\(\)"):
            pickle.dumps(x)
