"""The memory of large NumPy arrays is used again, and never while an array or a view needs it.

Tests ``neonlite/backend/runtimes/numpy/__init__.py``.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import neonlite as nl
from neonlite import Backend
from neonlite.backend.runtimes import numpy as runtime

SHAPE = (1024, 256)  # 1 MB of float32


@pytest.fixture(autouse=True)
def no_free_memory() -> Iterator[None]:
    gc.collect()
    runtime.free_memory.clear()
    yield
    runtime.free_memory.clear()


def address(x: Any) -> int:
    return int(x.__array_interface__["data"][0])


def waiting() -> int:
    return sum(size * len(blocks) for size, blocks in runtime.free_memory.items())


def test_a_deleted_large_tensor_leaves_its_memory_to_the_next_one_of_about_its_size(cpu: Backend) -> None:
    x = cpu.empty(SHAPE)
    at = address(x.numpy())
    del x
    assert address(cpu.empty((1023, 256)).numpy()) == at
    y, z = cpu.empty(SHAPE), cpu.empty(SHAPE)
    assert at in (address(y.numpy()), address(z.numpy()))
    assert address(y.numpy()) != address(z.numpy())
    assert waiting() == 0


def test_memory_is_not_used_again_while_a_view_of_any_kind_needs_it(cpu: Backend) -> None:
    x = cpu.empty(SHAPE)
    x[:] = 3
    lease: Any = x.numpy().base
    views: list[Any] = [x.numpy(), x.numpy()[5:7], lease[16:32], lease.T, np.from_dlpack(x.numpy()), x[5:7]]
    del lease
    del x
    while views:
        assert waiting() == 0
        others = [cpu.evaluate([cpu.ones(SHAPE) * k])[0] for k in range(3)]
        values = np.asarray(getattr(views[-1], "storage", views[-1]))
        assert (values.view("f") == 3).all() if values.dtype == np.uint8 else (values == 3).all()
        del others
        runtime.free_memory.clear()
        del values, views[-1]


def test_results_of_calls_that_a_user_keeps_are_not_overwritten(cpu: Backend) -> None:
    f = nl.jit(lambda x: x * 2 + 1)
    kept = [(k, f(cpu.evaluate([cpu.ones(SHAPE) * k])[0])) for k in range(8)]
    assert all((y.get() == 2 * k + 1).all() for k, y in kept)
    del kept[::2]
    kept += [(k, f(cpu.evaluate([cpu.ones(SHAPE) * k])[0])) for k in range(8, 16)]
    assert all((y.get() == 2 * k + 1).all() for k, y in kept)


def test_memory_that_waits_is_bounded(cpu: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime.Lease.__del__, "__defaults__", (runtime.free_memory, 5 << 20))
    for n in range(512, 2048, 100):
        cpu.empty((n, 512))
        assert waiting() <= 5 << 20
    cpu.empty((6 << 10, 256))
    assert waiting() <= 5 << 20


def test_without_memory_for_an_array_what_waits_is_given_back_first(
    cpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu.empty(SHAPE)
    assert waiting()
    requests = []

    class Full(runtime.Memory):
        def __new__(cls, *args: Any) -> Any:
            requests.append(waiting())
            if waiting():
                raise MemoryError
            return super().__new__(cls, *args)

    monkeypatch.setattr(runtime, "Memory", Full)
    assert runtime.new_array((2048, 256), "float32").shape == (2048, 256)
    assert len(requests) == 2
    assert requests[1] == 0


def test_closing_a_backend_gives_back_what_waits(cpu: Backend) -> None:
    cpu.empty(SHAPE)
    assert waiting()
    cpu.cleanup_backend()
    assert not waiting()


def test_threads_never_share_a_block(cpu: Backend) -> None:
    wrong = []

    def work(k: int) -> None:
        for _ in range(100):
            x = runtime.new_array(SHAPE, np.float32)
            x[...] = k
            y = runtime.new_array(SHAPE, np.float32)
            y[...] = -k
            if not ((x == k).all() and (y == -k).all()):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_large_arrays_start_at_a_cache_line(cpu: Backend) -> None:
    values = np.zeros((300, 513), np.float32)
    tensors = [cpu.empty((300, 513)), cpu.array(values), (cpu.array(values) + 1).astensor(), cpu.empty((7, 1 << 17))]
    assert [t._array.ctypes.data % 64 for t in tensors] == [0] * 4
    del tensors
    assert cpu.empty((300, 513))._array.ctypes.data % 64 == 0
    assert cpu.array(values).get().base is None, "arrays of the caller are NumPy's"
