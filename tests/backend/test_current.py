"""The current backend: without a call of gen_backend, one is created when it is first needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import neonlite as nl
from neonlite import Autodiff, NervanaObject, cleanup_backend, gen_backend
from neonlite.backend import current, current_backend
from neonlite.backend.runtimes import default_runtime
from neonlite.layers import Affine, Linear, Sequential


@pytest.fixture(autouse=True)
def without_backend() -> None:
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

    monkeypatch.setattr(current, "Backend", Counted)
    monkeypatch.setattr(current, "_restart", lambda be, *args: reseeded.append(be))
    monkeypatch.setattr(current, "_creation_lock", Lock(current._creation_lock))
    results = run_in_threads(current_backend, count)
    assert len(created) == 1
    assert not reseeded
    assert set(map(id, results)) == {id(created[0])}


def test_neither_import_nor_constructors_create_a_backend():
    Sequential([Affine(2, activation="relu"), Affine(3, activation="softmax")])
    assert current._current_backend is None
