"""The current backend: without a call of gen_backend, one is created when it is first needed."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import neonlite as nl
from neonlite import Autodiff, Backend, NervanaObject, backend, cleanup_backend, gen_backend
from neonlite.backend import current_backend, use_backend
from neonlite.backend.runtimes import default_runtime
from neonlite.layers import Affine, Linear, Sequential


@pytest.fixture(autouse=True)
def no_backend_before_and_after() -> Iterator[None]:
    cleanup_backend()
    yield
    cleanup_backend()


def test_the_default_backend_is_that_of_gen_backend_without_arguments():
    be = current_backend()
    settings = be.name, be.default_dtype_name, be.compat_mode, be.bsz
    assert settings == (default_runtime(), "float32", None, 0)
    assert current_backend() is NervanaObject.be is be
    cleanup_backend()
    other = gen_backend()
    assert (other.name, other.default_dtype_name, other.compat_mode, other.bsz) == settings


def test_a_layer_and_a_gradient_need_no_call_of_gen_backend():
    net = Sequential([Affine(2, "ones")]).configure(3)
    be = net.be
    assert be is current_backend()
    be.bsz = 4
    net.allocate()
    np.testing.assert_array_equal(net.fprop(be.ones((3, 4))).get(), np.full((2, 4), 3))
    x = be.array([[2.0]])
    cleanup_backend()
    tree = current_backend().array(x) ** 2
    assert Autodiff(tree).get_grad_asnumpyarray([tree[1]])[0] == 4


def test_a_call_with_the_same_settings_returns_the_default_backend_and_its_tensors_stay_usable():
    layer = Linear(2, "ones").configure(3)
    assert gen_backend(batch_size=4) is layer.be
    layer.allocate()
    np.testing.assert_array_equal(layer.fprop(layer.be.ones((3, 4))).get(), np.full((2, 4), 3))


def test_a_call_with_other_settings_replaces_the_default_backend():
    be = current_backend()
    x = be.ones((2, 2))
    other = gen_backend(be.name, datatype="float64")
    assert other is not be
    assert be.closed
    assert current_backend() is other
    np.testing.assert_array_equal(x.get(), np.ones((2, 2)))


def test_after_cleanup_backend_a_new_default_backend_is_created():
    first = current_backend()
    cleanup_backend()
    second = current_backend()
    assert first.closed
    assert not second.closed
    assert second is not first


def run_in_threads(function: Callable[[], Any], count: int) -> list[Any]:
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(function())) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_threads_that_need_a_backend_at_the_same_time_create_exactly_one(monkeypatch):
    count, created, reseeded = 8, [], []
    all_wait = threading.Barrier(count)

    class Counted(nl.Backend):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            created.append(self)

    class Lock:  # entered only after all threads have found that there is no backend
        def __init__(self, lock: Any) -> None:
            self.lock = lock

        def __enter__(self) -> None:
            if not self.lock._is_owned():
                all_wait.wait()
            self.lock.acquire()

        def __exit__(self, *args: object) -> None:
            self.lock.release()

    monkeypatch.setattr(backend, "Backend", Counted)
    monkeypatch.setattr(backend, "_restart", lambda be, *args: reseeded.append(be))
    monkeypatch.setattr(backend, "_creation_lock", Lock(backend._creation_lock))
    results = run_in_threads(current_backend, count)
    assert len(created) == 1
    assert not reseeded
    assert set(map(id, results)) == {id(created[0])}


def test_neither_import_nor_constructors_create_a_backend():
    Sequential([Affine(2, activation="relu"), Affine(3, activation="softmax")])
    assert backend._current_backend is None


def caller_pattern() -> str:
    """Return the file and line of the caller, as a pattern."""
    frame = sys._getframe(1)
    return re.escape(f"{__file__}:{frame.f_lineno}")


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


# --- several runtimes ----------------------------------------------------------------------------------------------


def test_use_backend_is_of_one_thread():
    be, other = nl.gen_backend("cpu"), nl.Backend("cpu")
    found = []
    with use_backend(other):
        thread = threading.Thread(target=lambda: found.append(current_backend()))
        thread.start()
        thread.join()
        with use_backend(be):
            found.append(current_backend())
        found.append(current_backend())
    assert [*found, current_backend()] == [be, be, other, be]
    with pytest.raises(ZeroDivisionError), use_backend(other):
        raise ZeroDivisionError
    assert current_backend() is be
