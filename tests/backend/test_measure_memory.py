"""The memory tracker counts the allocated bytes exactly."""

from __future__ import annotations

import copy
import gc
import math
import subprocess
import sys
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from helpers.runtimes import RUNTIMES_WITH_ARENA

from neonlite import Backend, Tensor
from neonlite.backend.measure import MAX_PENDING_RECORDS, Allocation, MemoryUsage
from neonlite.backend.runtimes import numpy as runtime


@pytest.fixture(params=RUNTIMES_WITH_ARENA)
def arena_be(request: pytest.FixtureRequest) -> Iterator[Backend]:
    yield (be := Backend(request.param, rng_seed=1))
    be.cleanup_backend()


@pytest.fixture
def no_gc() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def array(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def traced() -> int:
    """Return the bytes of NumPy's buffers of 1 kB or more."""
    of_numpy = tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)
    traces = tracemalloc.take_snapshot().filter_traces([of_numpy]).traces
    return sum(trace.size for trace in traces if trace.size >= 1000)


# --- tensors ---------------------------------------------------------------------------------------------------------


MAKERS: dict[str, Callable[[Backend], Any]] = {
    "empty": lambda be: be.empty((30, 20)),
    "zeros": lambda be: be.zeros((30, 20), dtype="int32"),
    "ones": lambda be: be.ones((3, 4, 5)),
    "array": lambda be: be.array(array(6, 7)),
    "a number": lambda be: be.array(3),
    "nothing": lambda be: be.zeros((0, 5)),
    "a tree": lambda be: (be.ones((9, 8)) + 1).astensor(),
    "like another": lambda be: be.zeros_like(be.ones((2, 70), dtype="int8")),
    "a deep copy": lambda be: copy.deepcopy(be.ones((5, 50))),
    "values": lambda be: be.evaluate([be.ones((5, 5)) * 2, be.sum(be.ones((5, 5)))]),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_the_tracker_counts_the_bytes_of_live_tensors(be: Backend, no_gc: None, make: Any) -> None:
    tensors = make(be)
    alive = [tensors] if isinstance(tensors, Tensor) else tensors
    assert be.memory().tensors == sum(t.get().nbytes for t in alive) == sum(t.nbytes for t in alive)
    del tensors, alive
    assert be.memory().tensors == 0


def test_views_and_shared_arrays_cost_nothing_and_keep_their_memory_alive(be: Backend, no_gc: None) -> None:
    x = be.ones((10, 6))
    views = [x[2:], x.T, x.reshape(-1, 1), x[::2, 1].T, x.share((4, 4))]
    assert be.memory().tensors == 240
    if be.name != "gpu":
        shared = be.from_dlpack(array(100, 100))
        assert be.memory().tensors == 240
        assert shared[1:].shape == (99, 100)
    del x
    assert be.memory().tensors == 240
    views.clear()
    assert be.memory().tensors == 0


def test_inspecting_a_plan_without_running_it_costs_nothing(be: Backend) -> None:
    be.plan(be.ones((50, 50)) * 2)
    assert be.memory().total == 0


def test_the_tracker_agrees_with_tracemalloc(cpu: Backend, threads: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "MIN_REUSED_BYTES", math.inf)  # else the memory of large arrays is rounded up
    threads(1)
    tracemalloc.start()
    try:
        base, tensors = traced(), []
        for n in (300, 1000, 2000):
            tensors.append(cpu.array(array(n, n)))
            tensors.append(cpu.softmax(tensors[-1]).astensor())
            tensors.append(cpu.sum(cpu.dot(tensors[-1], tensors[-2]) * 2, axis=0).astensor())
            assert traced() - base == cpu.memory().total
        del tensors[:3]
        cpu.compound_dot(tensors[0], tensors[1], tensors[1][:, :], 0.5, 0.5)
        assert traced() - base == cpu.memory().total
        assert cpu.memory().workspaces > 0 < cpu.memory().arena
        tensors.clear()
        cpu.cleanup_backend()
        assert cpu.memory()[:3] == (0, 0, 0)
        assert traced() - base == 0
    finally:
        tracemalloc.stop()


def test_the_peak_is_the_largest_total_until_it_is_reset(be: Backend, no_gc: None) -> None:
    x = be.ones((100, 10))
    y = be.ones((100, 30))
    assert be.memory().peak == be.memory().total == 16_000
    del y
    assert be.memory() == MemoryUsage(tensors=4000, arena=0, workspaces=0, peak=16_000)
    z = be.ones((100, 20))
    assert be.memory().peak == 16_000
    be.reset_peak()
    assert be.memory().peak == 12_000
    del x, z
    assert be.memory().peak == 12_000
    be.reset_peak()
    assert be.memory() == (0, 0, 0, 0)


def test_a_peak_between_two_queries_is_recorded(be: Backend) -> None:
    total = be.ones((10, 10))
    for _ in range(3):
        total = (total + 1).astensor()  # the new tensor exists before the old one is freed
    assert be.memory() == (400, 0, 0, 800)


def test_memory_usage_is_a_named_tuple_that_prints_with_units() -> None:
    memory = MemoryUsage(1_500_000, 64, 0, 2_000_000)
    assert str(memory) == "1.5 MB: tensors 1.5 MB, arena 64 B, workspaces 0 B; peak 2 MB"
    assert memory.total == 1_500_064
    with pytest.raises(AttributeError):
        memory.peak = 1  # type: ignore[misc]


# --- arenas and workspaces -------------------------------------------------------------------------------------------


def needs(be: Backend, *trees: Any) -> int:
    nbytes = be.plan(*trees).required_arena_bytes()
    return nbytes + 64 if nbytes else 0  # so that it may begin with a cache line


def test_the_arena_is_as_large_as_the_largest_plan_needs(arena_be: Backend) -> None:
    x, seen = arena_be.ones((300, 300)), 0
    trees = [
        x + 1,
        arena_be.softmax(x),
        arena_be.softmax(arena_be.dot(x, x + 1) * 2) + x.T,
        arena_be.softmax(x[:100]),
        x > 2,
    ]
    for tree in trees:
        before = arena_be.memory().arena
        tree.astensor()
        seen = max(seen, needs(arena_be, tree))
        assert arena_be.memory().arena == seen >= before
    assert seen > x.nbytes
    for tree in trees:
        tree.astensor()
    assert arena_be.memory().arena == seen


def test_a_plan_without_temporaries_or_registers_needs_nothing(arena_be: Backend) -> None:
    x = arena_be.ones((1000, 1000))
    assert [needs(arena_be, tree) for tree in (x + 1, arena_be.exp(x * 2), arena_be.dot(x, x))] == [0, 0, 0]
    assert needs(arena_be, arena_be.log(x) * x + arena_be.exp(x)) > 0


def test_the_needs_of_a_large_tree_are_its_temporaries_its_partials_and_registers_for_each_thread(
    cpu: Backend, threads: Any
) -> None:
    x = cpu.ones((1000, 2000))  # 2e6 elements in the fewest equal blocks of at most 65536, in multiples of 64
    tree = cpu.sum(cpu.exp(x) * cpu.log(x))
    sizes = {}
    for n in (1, 2, 3):
        threads(n)
        sizes[n] = cpu.plan(tree).required_arena_bytes()
    one_set = sizes[2] - sizes[1]
    assert sizes[3] - sizes[2] == one_set
    assert one_set == 2 * 4 * 40_000  # e^x and log x
    assert sizes[1] - one_set == 256  # the partial sums of 50 blocks, in whole cache lines


def test_a_buffer_that_is_too_small_is_freed_before_a_larger_one_is_allocated(
    cpu: Backend, threads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neonlite.backend.runtimes.onednn.bindings.get_library", lambda: None)  # use NumPy
    threads(1)
    x, y, out = cpu.ones((900, 1000)), cpu.ones((1000, 1000)), cpu.ones((1000, 1000))

    def grow(n: int) -> None:
        out[:n] = cpu.dot(x[:n] + 1, y)
        cpu.compound_dot(x[:n], y, out[:n], 0.5, 0.5)

    tracemalloc.start()
    try:
        for n in (300, 500):
            grow(n)
        others = tracemalloc.get_traced_memory()[0] - cpu.memory().arena - cpu.memory().workspaces
        tracemalloc.reset_peak()
        grow(900)
        peak = tracemalloc.get_traced_memory()[1] - others
    finally:
        tracemalloc.stop()
    memory = cpu.memory()
    assert memory.arena > 3_600_000 <= memory.workspaces
    assert abs(peak - memory.arena - memory.workspaces) < 100_000


def test_the_size_of_the_arena_depends_neither_on_timing_nor_on_thread_order(cpu: Backend, threads: Any) -> None:
    threads(5)
    x = cpu.ones((1000, 1000))
    trees = [cpu.softmax(x, axis=0), cpu.sum(x * x + x, axis=1), cpu.where(x > 0, x * 2, cpu.exp(x) * x)]
    for tree in trees * 5:
        tree.astensor()
    first = cpu.memory()
    other = Backend("cpu")
    y = other.ones((1000, 1000))
    for tree in [other.where(y > 0, y * 2, other.exp(y) * y), other.sum(y * y + y, axis=1), other.softmax(y, axis=0)]:
        tree.astensor()
    assert other.memory()[:3] == first[:3]


def test_more_threads_need_more_registers_and_compute_the_same_values(cpu: Backend, threads: Any) -> None:
    x = cpu.array(array(1000, 700))
    tree = cpu.exp(x) * cpu.log(x) + cpu.sum(x * cpu.sig(x), axis=1)
    seen, arenas = set(), []
    for n in (1, 3, 2, 4):
        threads(n)
        seen |= {tree.asnumpyarray().tobytes() for _ in range(8)}
        arenas.append(cpu.memory().arena)
    assert len(seen) == 1
    assert arenas[0] < arenas[1] == arenas[2] < arenas[3]


def test_each_thread_has_an_arena_that_is_freed_with_it(arena_be: Backend) -> None:
    x = arena_be.ones((300, 300))
    tree = arena_be.softmax(x)
    tree.astensor()
    one = arena_be.memory().arena
    started, go = threading.Barrier(3), threading.Event()

    def work() -> None:
        tree.astensor()
        started.wait()
        go.wait()

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    started.wait()
    assert arena_be.memory().arena == 3 * one > 0
    go.set()
    for worker in workers:
        worker.join()
    assert arena_be.memory().arena == one


def test_workspaces_have_the_largest_size_that_was_needed(arena_be: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neonlite.backend.runtimes.onednn.bindings.get_library", lambda: None)  # use NumPy

    def convolve(side: int) -> int:
        layer = arena_be.conv_layer("float32", 4, 16, 8, H=side, W=side, R=3, S=3, pad_h=1, pad_w=1)
        arena_be.fprop_conv(layer, arena_be.ones(layer.dimI), arena_be.ones(layer.dimF), arena_be.empty(layer.dimO))
        return arena_be.memory().workspaces

    small, large = convolve(6), convolve(9)
    padded, windows = 16 * 11 * 11 * 4, 16 * 3 * 3 * 9 * 9 * 4
    assert large == 4 * (padded + windows) > small
    assert convolve(6) == large


def test_op_by_op_no_buffer_is_reused(be: Backend) -> None:
    x = be.ones((300, 300), dtype="float64")  # for which NumPy's products allocate memory
    be.compound_dot(x, x, be.softmax(be.dot(x, x)).astensor(), 0.5, 0.5)
    memory = be.memory()
    assert (memory.arena > 0) == (be.name in RUNTIMES_WITH_ARENA)  # GPU: a row is in registers
    assert be.name == "mkl" or (memory.workspaces > 0) == (be.name in RUNTIMES_WITH_ARENA)


def test_a_backend_that_is_cleaned_up_frees_its_buffers_at_once(be: Backend, no_gc: None) -> None:
    x = be.ones((300, 300))
    for _ in range(2):
        be.compound_dot(x, x, be.softmax(be.dot(x, x)).astensor(), 0.5, 0.5)
    held = be.plan(be.softmax(x))
    be.cleanup_backend()
    assert be.memory()[:3] == (x.nbytes, 0, 0)
    assert x.get().sum() == 90_000
    assert held.stages
    del x
    assert be.memory().total == 0


# --- allocation records ----------------------------------------------------------------------------------------------


def test_tensors_refer_to_their_allocation_and_an_allocation_refers_to_no_backend(be: Backend) -> None:
    x = be.ones((4, 4))
    entry, reference = x.allocation, weakref.ref(be)
    assert x[1:].allocation is x.T.allocation is entry
    other = Backend(be.name)
    y, reference = other.ones((4, 4)), weakref.ref(other)
    entry, memory_tracker = y.allocation, other.memory_tracker
    other.cleanup_backend()
    del other, y
    gc.collect()
    assert reference() is None
    assert memory_tracker.usage().tensors == 64
    del entry
    assert memory_tracker.usage().tensors == 0


def test_threads_that_create_tensors_at_once_lose_no_byte(be: Backend) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    tensors: list[Tensor] = []

    def work(n: int) -> None:
        for k in range(400):
            t = be.empty((n + 1, k % 7))
            if k % 5 == 0:
                tensors.append(t)

    try:
        workers = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(interval)
    assert be.memory().tensors == sum(t.nbytes for t in tensors) > 0
    tensors.clear()
    assert be.memory().tensors == 0


def test_garbage_that_is_collected_while_records_are_added_is_subtracted_once(be: Backend) -> None:
    before = gc.get_threshold()
    gc.set_threshold(1)  # collect as often as possible
    try:
        for _ in range(300):
            loop: list[Any] = [be.empty((5, 5))]
            loop.append(loop)
    finally:
        gc.set_threshold(*before)
    del loop
    gc.collect()
    assert be.memory().tensors == 0
    assert 100 <= be.memory().peak < 300 * 100


def test_pending_records_are_added_up_regularly_without_a_query(be: Backend) -> None:
    for _ in range(3 * MAX_PENDING_RECORDS):
        be.empty((1, 1))
    assert len(be.memory_tracker.pending_records) <= MAX_PENDING_RECORDS + 2


def test_one_thread_at_a_time_adds_up_records(cpu: Backend) -> None:
    def create() -> None:
        for _ in range(MAX_PENDING_RECORDS):
            cpu.empty((1, 1))

    workers = [threading.Thread(target=act) for act in (cpu.memory, cpu.reset_peak, create)]
    with cpu.memory_tracker.lock:
        for worker in workers:
            worker.start()
            worker.join(0.1)
            assert worker.is_alive()
    for worker in workers:
        worker.join(300)
        assert not worker.is_alive()


def test_a_run_that_fails_leaves_no_entry(be: Backend, no_gc: None) -> None:
    x = be.ones((30, 30))
    with pytest.raises(IndexError):
        be.take(x, be.array([99], dtype="int32"), axis=0).astensor()
    gc.collect()
    assert be.memory().tensors == x.nbytes


def test_python_exits_without_errors_while_memory_is_allocated() -> None:
    code = """
import neonlite as nl
be = nl.gen_backend("cpu")
x = be.softmax(be.ones((600, 600))).astensor()
loop = [be.ones((3, 3))]
loop.append(loop)
r = be.dry_run()
y = r.softmax(r.ones((600, 600))).astensor()
print(be.memory().tensors, r.memory().tensors)
"""
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("1440036 1440000\n", "")


def test_an_allocation_that_an_error_leaves_incomplete_is_deleted_without_another_error():
    notes = []
    held = Allocation()
    held.add_record = notes.append
    held.__del__()
    assert notes == []
