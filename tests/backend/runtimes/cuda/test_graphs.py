"""CUDA graphs: a replay has the bits of a run, and a block that cannot be captured is run.

On the simulated GPU a graph is a list of recorded calls.
"""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Thread, get_ident
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.simulated_gpu import ran, simulated
from helpers.standin_cupy import MemoryPool, installed

import neonlite as nl
from neonlite import Backend
from neonlite.backend import Block, NervanaObject, Tensor
from neonlite.backend.runtimes import load_runtime
from neonlite.backend.runtimes.cuda.graphs import GraphCapture, current_capture
from neonlite.backend.runtimes.cuda.simulator import SimulatedGPU
from neonlite.backend.transaction import atomic
from neonlite.callbacks import CallbackBase
from neonlite.data import ArrayIterator
from neonlite.initializers import Constant, GlorotUniform
from neonlite.layers import LSTM, Affine, BatchNorm, Conv, Dropout, Layer, LookupTable, Pooling, RecurrentLast
from neonlite.models import Model
from neonlite.optimizers import (
    LAMB,
    Adam,
    AdamW,
    GradientDescentMomentum,
    LossScaling,
    MultiOptimizer,
    Muon,
    Optimizer,
    RMSProp,
    ShiftAdaMax,
    StepSchedule,
)
from neonlite.transforms import CrossEntropyMulti, Logistic, MeanSquared, Rectlin, Softmax, Tanh

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are simulated with g++, which is not here")


@pytest.fixture
def sim() -> Backend:
    return Backend(SimulatedGPU(), rng_seed=1)


class Work:
    """A block that counts how often Python runs it."""

    def __init__(self, be: Backend, what: Callable[[Backend, Any, Any], Any]) -> None:
        self.be, self.what, self.calls = be, what, 0
        self.total, self.x = be.zeros((3, 20), name="total"), be.array(np.arange(60).reshape(3, 20) / 7, name="x")

    def __call__(self) -> Any:
        self.calls += 1
        return self.what(self.be, self.total, self.x)

    def go(self, times: int, **options: Any) -> Work:
        for _ in range(times):
            self.be.replay("work", self, [self.total, self.x], **options)
        return self


WORKS: dict[str, Callable[[Backend, Any, Any], Any]] = {
    "a stage": lambda be, total, x: total.__setitem__(slice(None), total * 0.5 + be.exp(-x)),
    "sums, swaps and temporaries": lambda be, total, x: be.assign(
        [total, x], [x + be.sum(total, axis=1) * 0.1, x * 0.9 - be.sum(total, axis=0) * 0.1]
    ),
    "a product": lambda be, total, x: be.compound_dot(x[:, :3], x, total, alpha=0.01, beta=0.5),
    "products in a tree": lambda be, total, x: total.__setitem__(slice(None), be.dot(be.dot(x, x.T), total + x) * 1e-3),
    "an op without a kernel": lambda be, total, x: total.__setitem__(
        slice(None), be.concat([x[:, 10:], total[:, :10]], 1)
    ),
    "uniform numbers": lambda be, total, x: total.__setitem__(slice(None), total + be.rand(3, 20) * be.rand(3, 20)),
    "normal numbers": lambda be, total, x: total.__setitem__(slice(None), total + be.randn(3, 20)),
    "normal numbers that fill": lambda be, total, x: (
        be.fill_normal(total, 1, 0.5),
        x.__setitem__(slice(None), x + total),
    ),
    "masks": lambda be, total, x: (
        be.make_binary_mask(total, 0.3),
        x.__setitem__(slice(None), x + total * be.rand(1, 1)),
    ),
    "a copy": lambda be, total, x: (total.copy(x), x.__setitem__(slice(None), x[:, ::-1])),
    "new tensors": lambda be, total, x: total.__setitem__(slice(None), total + be.evaluate([x * 2, x + 1])[1]),
    "reshapes that copy": lambda be, total, x: (
        total.__setitem__(slice(None), be.reshape((x * 2).T, 3, 20) - be.reshape(x.T, 3, 20)),
        x.__setitem__(slice(None), x * 0.9 + be.sum(be.reshape(total[:, ::2], 10, 3), axis=0).T),
    ),
    "a gather": lambda be, total, x: total.__setitem__(slice(None), be.take(x, be.astype(x[:, :1] * 0, "int32"), 0)),
}


@pytest.mark.parametrize("name", WORKS)
def test_a_replay_has_the_bits_of_a_run(name: str) -> None:
    results = []
    for graphs in (True, False):
        be = Backend(SimulatedGPU(), rng_seed=1)
        work = Work(be, WORKS[name]).go(7, graphs=graphs)
        assert work.calls == (3 if graphs else 7), be.graphs  # two runs and the capture
        results.append((work.total.get(), work.x.get(), be.rng_get_state()))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])
    assert results[0][2] == results[1][2]
    assert results[0][0].any()


def test_masks_and_draws_are_those_of_the_cpu() -> None:
    results = []
    for be in (Backend(SimulatedGPU(), rng_seed=5), Backend("cpu", rng_seed=5)):
        be.streams._blocks["masks"] = 2**64 - 3  # the counter carries, also in a graph
        be.streams._blocks["noise"] = 2**128 - 7
        results.append((Work(be, WORKS["masks"]).go(6).x.get(), be.rng_get_state()))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "uint8", "int32"])
@pytest.mark.parametrize("keep", [0, 0.3, 1.0])
def test_a_mask_is_that_of_the_cpu_in_every_dtype(sim: Backend, dtype: str, keep: float) -> None:
    out, cpu = sim.zeros((7, 11), dtype), Backend("cpu", rng_seed=1)
    wanted = cpu.zeros((7, 11), dtype)
    for _ in range(2):
        sim.make_binary_mask(out, keep)
        cpu.make_binary_mask(wanted, keep)
        np.testing.assert_array_equal(out.get(), wanted.get())
    state = cpu.rng_get_state()
    lane = cpu.streams.words32("masks", 77)[5]
    cpu.rng_set_state(state)
    for be, t in ((sim, out), (cpu, wanted)):
        be.make_binary_mask(t, float(lane / 2**32))  # a random value equal to the limit gives 0
    assert wanted.get()[0, 5] == 0
    np.testing.assert_array_equal(out.get(), wanted.get())
    part, wanted_part = (t[:, ::2] for t in (out, wanted))
    sim.make_binary_mask(part, 1 - keep)
    cpu.make_binary_mask(wanted_part, 1 - keep)
    np.testing.assert_array_equal(out.get(), wanted.get())
    with pytest.raises(ValueError, match="mask: expected a finite number >= 0 and <= 1 for keep"):
        sim.make_binary_mask(out, 1.5)


# --- changes that require a new capture ---


class Scale:
    """An object that a block uses; its scale is a constant in the captured launches."""

    can_replay = True

    def __init__(self) -> None:
        self.factor, self.more = 2.0, {"list": [1.0]}


@pytest.mark.parametrize(
    "what", ["an attribute", "an object that it refers to", "the batch size", "the seed", "a new attribute"]
)
def test_a_block_is_captured_again_when_what_it_uses_changes(sim: Backend, what: str) -> None:
    scale, total, calls = Scale(), sim.zeros((1, 4)), []

    def work() -> None:
        calls.append(1)
        width = sim.bsz or 1
        total[:] = (
            total * scale.factor + scale.more["list"][0] * width + getattr(scale, "extra", 0) + 0 * sim.rand(1, 4)
        )

    def go(times: int) -> None:
        for _ in range(times):
            sim.replay("work", work, [scale, total])

    value = np.float32(0)
    for step, change in enumerate(["nothing", what, "nothing"]):
        if change == "an attribute":
            scale.factor = 0.5
        elif change == "an object that it refers to":
            scale.more["list"][0] = 3.0
        elif change == "the batch size":
            sim.bsz = 7
        elif change == "the seed":
            sim.gen_rng(8)
        elif change == "a new attribute":
            scale.extra = 1  # type: ignore[attr-defined]
        go(5)
        for _ in range(5):
            value = value * scale.factor + scale.more["list"][0] * (sim.bsz or 1) + getattr(scale, "extra", 0)
        assert len(calls) == (3, 6, 6)[step]
        np.testing.assert_allclose(total.get(), value, 1e-6)


def test_other_tensors_are_another_block(sim: Backend) -> None:
    works = [Work(sim, WORKS["a stage"]) for _ in range(2)]
    for _ in range(6):
        for work in works:
            work.go(1)
    assert [work.calls for work in works] == [3, 3]
    plain = Work(sim, WORKS["a stage"]).go(6, graphs=False)
    for work in works:
        np.testing.assert_array_equal(work.total.get(), plain.total.get())


def test_a_function_that_refers_to_other_tensors_is_another_block(sim: Backend) -> None:
    def make_block(x: Any, out: Any) -> Callable[[], Any]:
        return lambda: out.__setitem__(slice(None), x + 1)

    for value in (1.0, 2.0):
        work = make_block(sim.zeros((2, 2)).fill(value), out := sim.zeros((2, 2)))
        for _ in range(4):
            sim.replay("work", work)
        assert out.get().mean() == value + 1


def test_uses_may_be_a_single_object(sim: Backend) -> None:
    x = sim.ones((2, 3))
    calls = []
    for _ in range(5):
        sim.replay("alone", lambda: calls.append(1), uses=x)
    assert len(calls) == 3


def test_values_may_change_between_replays(sim: Backend) -> None:
    work = Work(sim, WORKS["a stage"]).go(5)
    for value in (3.0, -1.0):
        work.x.fill(value)
        work.total.fill(0)
        work.go(1)
        np.testing.assert_allclose(work.total.get(), np.exp(-np.float32(value)), 1e-6)
    assert work.calls == 3


def test_larger_temporaries_of_others_do_not_disturb_a_graph(sim: Backend) -> None:
    be = sim
    work = Work(sim, WORKS["sums, swaps and temporaries"]).go(4)
    arena = weakref.ref(sim.memory_tracker.thread_cache["arena"][0])
    be.assign([y := be.ones((300, 400)), be.ones((300, 1))], [y[::-1] * 2, be.sum(y, axis=1)])  # a larger arena
    assert sim.memory_tracker.thread_cache["arena"][0] is not arena()
    assert arena() is not None  # the graph holds its previous arena
    work.go(4)
    plain = Work(sim, WORKS["sums, swaps and temporaries"]).go(8, graphs=False)
    np.testing.assert_array_equal(work.total.get(), plain.total.get())
    assert work.calls == 3


def test_streams_share_no_temporaries_and_each_has_its_graph(sim: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, capture, buffers = sim.runtime.driver, sim.runtime.driver.capture, {}

    @contextmanager
    def on_another_stream() -> Iterator[Any]:  # as CuPy captures
        stream, driver.stream = driver.stream, 99
        with capture() as graph:
            yield graph
        driver.stream = stream

    monkeypatch.setattr(driver, "capture", on_another_stream)
    work = Work(sim, WORKS["sums, swaps and temporaries"])
    for driver.stream in (1, 2, 1, 2):
        work.go(5)
        buffers[driver.stream] = sim.memory_tracker.thread_cache["arena"][0]
    plain = Work(sim, WORKS["sums, swaps and temporaries"]).go(20, graphs=False)
    np.testing.assert_array_equal(work.total.get(), plain.total.get())
    assert work.calls == 6  # two runs and a capture on each
    assert not np.shares_memory(buffers[1], buffers[2])
    assert sim.memory_tracker.by_thread[get_ident()].keys() == {1, 2}


def test_threads_share_no_graph(sim: Backend) -> None:
    work = Work(sim, WORKS["sums, swaps and temporaries"]).go(5)
    thread = Thread(target=work.go, args=(5,))
    thread.start()
    thread.join()
    plain = Work(sim, WORKS["sums, swaps and temporaries"]).go(10, graphs=False)
    np.testing.assert_array_equal(work.total.get(), plain.total.get())
    assert work.calls == 6


def test_draws_beside_a_graph_and_a_state_that_is_set_are_as_without_it() -> None:
    results = []
    for graphs in (True, False):
        be = Backend(SimulatedGPU(), rng_seed=1)
        work = Work(be, WORKS["uniform numbers"]).go(5, graphs=graphs)
        state, beside = be.rng_get_state(), be.rand(2, 2).asnumpyarray()
        work.go(2, graphs=graphs)
        be.rng_set_state(state)
        work.go(2, graphs=graphs)
        results.append((work.total.get(), beside, be.rng_get_state()))
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


# --- blocks that cannot be captured ---

NEVER: dict[str, tuple[Callable[[Backend, Any, Any], Any], str]] = {
    "a look at values": (
        lambda be, t, x: t.__setitem__(slice(None), x * float(t.get().max())),
        "got a copy between host and GPU",
    ),
    "numbers of the host": (lambda be, t, x: t.__setitem__(slice(None), np.ones((3, 20))), "copy between host and GPU"),
    "draws on the host": (
        lambda be, t, x: t.__setitem__(slice(None), t + x * float(be.streams.uniform("noise", ())) + be.rng.uniform()),
        "got draws on the host",
    ),
    "numbers of a generator": (
        lambda be, t, x: t.__setitem__(slice(None), t + generator_of(be).normal(size=(3, 20)).operand),
        "got those of a generator",
    ),
}


def generator_of(be: Backend) -> Any:
    """Return the random generator of a backend, the same at each call."""
    if "generator" not in vars(be):
        be.generator = be.array_api.random.default_rng(5)
    return be.generator


@pytest.mark.parametrize("name", NEVER)
def test_a_block_that_cannot_be_captured_is_run_and_the_reason_is_reported(name: str) -> None:
    results = []
    for graphs in (True, False):
        be = Backend(SimulatedGPU(), rng_seed=1)
        work = Work(be, NEVER[name][0]).go(6, graphs=graphs)
        assert NEVER[name][1] in repr(be.graphs) if graphs else be.graphs.blocks == {}
        results.append((work.total.get(), be.rng_get_state()))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


def test_blocks_with_custom_classes_are_run_unless_these_set_can_replay(sim: Backend) -> None:
    class Own:
        def method(self) -> None: ...

    for use in (Own(), [[Own()]], Own().method, partial(print, Own()), lambda: None):
        work, scale = Work(sim, WORKS["a stage"]), Scale()
        scale.more["list"] = [use]  # type: ignore[list-item]
        for _ in range(5):
            sim.replay("work", work, [scale])
        assert work.calls == 5
        assert "does not set can_replay = True" in list(sim.graphs.blocks.values())[-1].rejection


def test_an_error_in_a_block_is_raised_and_the_block_can_be_replayed_again(sim: Backend) -> None:
    work, fails = Work(sim, WORKS["uniform numbers"]), [False] * 3 + [True] + [False] * 4
    state = Scale()
    for wrong in fails:
        state.factor = float(wrong)

        def run(wrong: bool = wrong) -> None:
            work()
            if wrong:
                raise ValueError("of the block's own")

        if wrong:
            with pytest.raises(ValueError, match="of the block's own"):
                sim.replay("work", run, [state])
        else:
            sim.replay("work", run, [state])
    plain = Work(other := Backend(SimulatedGPU(), rng_seed=1), WORKS["uniform numbers"]).go(len(fails), graphs=False)
    np.testing.assert_array_equal(work.total.get(), plain.total.get())
    assert sim.rng_get_state() == other.rng_get_state()


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_an_error_during_a_capture_changes_no_values_and_random_numbers(kind: type, sim: Backend) -> None:
    work, calls = Work(sim, WORKS["masks"]), []

    def run() -> None:
        calls.append(1)
        work()
        if len(calls) in (3, 4):
            raise kind("now")

    for _ in range(2):
        sim.replay("work", run, [])
    before = work.x.get(), sim.rng_get_state()
    if kind is KeyboardInterrupt:
        with pytest.raises(kind):
            sim.replay("work", run, [])
        np.testing.assert_array_equal(work.x.get(), before[0])
        assert sim.rng_get_state() == before[1]
    else:
        with pytest.raises(kind):  # the capture failed, and then the run did
            sim.replay("work", run, [])
        assert len(calls) == 4
    assert sim.ones((2, 2)).get().tolist() == [[1, 1]] * 2  # the capture has ended


def test_blocks_may_be_nested(sim: Backend) -> None:
    inner, outer = Work(sim, WORKS["uniform numbers"]), Work(sim, WORKS["a stage"])

    def both() -> None:
        outer()
        inner.go(2)

    for _ in range(8):
        sim.replay(Block.epoch, both, [outer.total])
    assert (outer.calls, inner.calls) == (
        3,
        5,
    )  # inner: two runs and a capture within the runs of outer, then as part of its capture
    plain = Work(Backend(SimulatedGPU(), rng_seed=1), WORKS["uniform numbers"]).go(16, graphs=False)
    np.testing.assert_array_equal(inner.total.get(), plain.total.get())
    np.testing.assert_array_equal(outer.total.get(), Work(sim, WORKS["a stage"]).go(8, graphs=False).total.get())


def test_a_replay_returns_the_result_of_the_capture(sim: Backend) -> None:
    work = Work(sim, lambda be, total, x: total.copy(x))
    found = [sim.replay("work", work, [work.x]) for _ in range(6)]
    assert all(y is work.total for y in found)


@pytest.mark.parametrize("what", ["take", "onehot"])
def test_an_index_out_of_range_raises_when_values_are_read_next(sim: Backend, what: str) -> None:
    places, out = sim.array([[0, 2]], dtype="int32"), sim.zeros((2, 2) if what == "take" else (3, 2))
    x = sim.array(np.arange(6).reshape(3, 2))

    def work() -> None:
        out[:] = sim.take(x, places, 0) if what == "take" else sim.onehot(places, axis=0, nclass=3)

    for _ in range(5):
        sim.replay("work", work, [])
    right = out.get()
    places[:] = np.array([[1, 3]])
    sim.replay("work", work, [])
    with pytest.raises(IndexError, match=r"(index|label) 3 is out of range for size 3: expected .* to 2"):
        sim.runtime.synchronize()
    places[:] = np.array([[0, 2]])
    sim.replay("work", work, [])
    np.testing.assert_array_equal(out.get(), right)


def test_graphs_can_be_switched_off(sim: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEONLITE_GRAPHS", "0")
    assert Work(sim, WORKS["a stage"]).go(5).calls == 5
    monkeypatch.delenv("NEONLITE_GRAPHS")
    assert Work(sim, WORKS["a stage"]).go(5).calls == 3
    assert Work(sim, WORKS["a stage"]).go(5, graphs=False).calls == 5


def test_on_other_runtimes_a_block_is_run(be: Backend) -> None:
    if be.graphs is not None:
        pytest.skip("it has graphs")
    assert Work(be, WORKS["masks"]).go(5).calls == 5
    assert be.dry_run().replay("work", lambda: 7) == 7


def test_the_number_of_cached_graphs_is_limited_and_none_outlive_the_backend(sim: Backend) -> None:
    for _ in range(20):
        Work(sim, WORKS["a stage"]).go(3)
    assert 8 <= len(sim.graphs.blocks) <= 16
    sim.cleanup_backend()
    assert not sim.graphs.blocks


def test_a_block_is_captured_again_for_another_precision_of_products(sim: Backend) -> None:
    driver, work = sim.runtime.driver, Work(sim, WORKS["a product"])
    assert work.go(4).calls == 3
    driver.tf32 = True
    assert work.go(4).calls == 6
    driver.tf32 = False
    assert work.go(4).calls == 6  # the first graph is still cached


# --- CuPy's driver, on a stand-in and on a GPU ---------------------------------------------------------------------

KERNELS = ["a stage", "sums, swaps and temporaries", "uniform numbers", "normal numbers", "masks"]
CALLS = ["a copy", "an op without a kernel"]  # CuPy calls: a GPU captures them, the stand-in rejects them


@pytest.mark.parametrize("name", [*KERNELS, *CALLS])
def test_cupys_driver_captures_and_replays_kernels(name: str) -> None:
    results = []
    with installed():
        for graphs in (True, False):
            work = Work(be := Backend("gpu", rng_seed=1), WORKS[name]).go(6, graphs=graphs)
            assert work.calls == (3 if graphs and name in KERNELS else 7 if graphs else 6), be.graphs
            results.append((work.total.get(), work.x.get(), be.rng_get_state()))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])
    assert results[0][2] == results[1][2]


def test_a_block_that_runs_out_of_memory_is_run_and_no_captured_memory_is_freed() -> None:
    with installed() as machine:
        be = Backend("gpu")
        x, large = be.ones((4, 4)), be.ones((400, 400))
        before = MemoryPool.freed

        def block() -> None:
            x[:] = x * 2
            if current_capture():
                machine.refusals = 1  # cudaMalloc fails once, and would succeed after the pool frees its unused blocks
                be.runtime.xp.empty((4, 4), dtype="float32")
            large[:] = be.exp(large) * 0

        for _ in range(5):
            be.replay("block", block, [x, large])
        assert "CaptureError: graph capture: cannot allocate 64 more bytes: cudaErrorMemoryAllocation" in repr(
            be.graphs
        )
        assert (x.get() == 32).all()
        assert MemoryPool.freed == before


def test_a_graph_holds_buffers_that_were_replaced_by_larger_ones_during_the_capture(sim: Backend) -> None:
    thread_cache, block = sim.memory_tracker.thread_cache, Work(sim, WORKS["sums, swaps and temporaries"])

    def run() -> None:
        block()
        if current_capture():
            thread_cache.pop("arena")

    for _ in range(2):
        sim.replay("block", run, [])
    arena = thread_cache["arena"][0]
    sim.replay("block", run, [])
    (captured,) = sim.graphs.blocks.values()
    assert captured.capture is not None
    assert any(
        arena is held["arena"][0] for held in captured.capture.keepalive if isinstance(held, dict) and "arena" in held
    )


@pytest.fixture
def require_gpu() -> None:
    try:
        load_runtime("gpu")
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"no GPU: {error}")


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", WORKS)
def test_a_gpu_replays_what_it_would_run(require_gpu: None, name: str) -> None:
    results = [Work(Backend("gpu", rng_seed=1), WORKS[name]).go(6, graphs=graphs) for graphs in (True, False)]
    np.testing.assert_array_equal(results[0].total.get(), results[1].total.get())
    assert results[0].calls in (3, 7)


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("network", ["mlp", "images", "recurrent"])
def test_a_training_on_a_gpu_has_the_bits_of_one_that_is_run(require_gpu: None, network: str) -> None:
    with_graphs, without = (trained(graphs, network, runtime="gpu") for graphs in (True, False))
    alike(with_graphs, without)
    assert with_graphs[3] == 4, with_graphs[4]


# --- networks -------------------------------------------------------------------------------------------------------


class Counter(CallbackBase):
    """Records the state of the graphs after each minibatch."""

    def __init__(self) -> None:
        self.graphs: list[str] = []

    def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
        self.graphs.append(repr(NervanaObject.be.graphs))


def mlp() -> list[Any]:
    hidden = Affine(9, GlorotUniform(), bias=Constant(0), activation=Rectlin())
    return [hidden, Dropout(0.7), BatchNorm(), Affine(2, GlorotUniform(), bias=Constant(0), activation=Softmax())]


def images() -> list[Any]:
    return [
        Conv((3, 3, 4), GlorotUniform(), activation=Tanh()),
        Pooling(2),
        Affine(2, GlorotUniform(), activation=Softmax()),
    ]


def recurrent() -> list[Any]:
    gates = {"activation": Tanh(), "gate_activation": Logistic()}
    return [LSTM(5, GlorotUniform(), **gates), RecurrentLast(), Affine(2, GlorotUniform(), activation=Softmax())]


NETWORKS: dict[str, tuple[Callable[[], list[Any]], tuple[int, ...], Any]] = {
    "mlp": (mlp, (6,), None),
    "images": (images, (50,), (2, 5, 5)),
    "recurrent": (recurrent, (3, 4), (3, 4)),
}


def trained(graphs: bool, network: str = "mlp", optimizer: Any = None, runtime: Any = None, **options: Any) -> Any:
    """Train; return weights and states, costs, random state, minibatches run by Python, and the state of the graphs."""
    build, shape, lshape = NETWORKS[network]
    be = Backend(runtime or SimulatedGPU(), rng_seed=3, batch_size=8)
    NervanaObject.be = be
    draw = np.random.default_rng(0)
    n = options.pop("n", 32)
    data = ArrayIterator(
        draw.normal(size=(n, *shape)), y=draw.integers(0, 2, n), nclass=2, shuffle=True, lshape=lshape, **options
    )
    model, calls, counter = Model(build()), [], Counter()
    find = model.compute_gradients

    def counted(x: Any, t: Any) -> Any:
        calls.append(1)
        return find(x, t)

    model.compute_gradients = counted  # type: ignore[method-assign]
    adam = Adam(learning_rate=0.02, schedule=StepSchedule([1, 2], [0.01, 0.003]))
    model.fit(data, CrossEntropyMulti(), optimizer or adam, 3, counter, cuda_graphs=graphs)
    states = [s.get() for layer in model.layers_to_optimize for _, states in pairs(layer) for s in states]
    weights = list(model.get_weights().values())
    return weights + states, model.total_cost, be.rng_get_state(), len(calls), counter.graphs[-1]


def pairs(layer: Any) -> list[Any]:
    params = layer.get_params()
    return params if isinstance(params, list) else [params]


def alike(a: Any, b: Any) -> None:
    for x, y in zip(a[0], b[0], strict=True):
        np.testing.assert_array_equal(x, y)
    assert a[1:3] == b[1:3]


@pytest.mark.parametrize("network", ["mlp", "recurrent", pytest.param("images", marks=pytest.mark.slow)])
def test_a_training_that_is_replayed_has_the_bits_of_one_that_is_run(network: str) -> None:
    with_graphs, without = trained(True, network), trained(False, network)
    alike(with_graphs, without)
    assert (with_graphs[3], without[3]) == (4, 12), with_graphs[4]  # three runs (the first allocates) and the capture


@pytest.mark.parametrize("network", ["mlp", "recurrent"])
def test_a_replayed_step_that_fails_after_its_launch_is_undone(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = trained(True, network)
    step, fit, steps = Model.train_step, Model.fit, []

    def fail_once(model: Model, *args: Any) -> float:
        steps.append(step(model, *args))
        if len(steps) == 7:  # in the second epoch: each has four minibatches
            raise MemoryError("out of memory")
        return steps[-1]

    def fit_twice(self: Model, *args: Any, **options: Any) -> None:
        with pytest.raises(MemoryError, match="out of memory"):
            fit(self, *args, **options)
        fit(self, *args, **options)

    monkeypatch.setattr(Model, "train_step", fail_once)
    monkeypatch.setattr(Model, "fit", fit_twice)
    results = trained(True, network)
    alike(results, wanted)
    assert results[3] < 12


def test_a_replayed_training_is_that_of_the_cpu() -> None:
    results, wanted = trained(True), trained(True, runtime="cpu")
    for x, y in zip(results[0], wanted[0], strict=True):
        np.testing.assert_allclose(x, y, 1e-4, 1e-5)
    assert results[2] == wanted[2]
    assert (results[3], wanted[3]) == (4, 12)


@pytest.mark.long
def test_a_partial_last_minibatch_is_run_and_the_others_are_captured_again() -> None:
    with_graphs, without = (trained(graphs, n=61, partial_last=True) for graphs in (True, False))
    alike(with_graphs, without)
    assert (with_graphs[3], without[3]) == (15, 24)


RATES = StepSchedule([1, 2], [0.01, 0.003])
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "Adam": lambda: Adam(learning_rate=0.02, schedule=RATES),
    "AdamW": lambda: AdamW(learning_rate=0.02, schedule=RATES, gradient_clip_value=0.1),
    "momentum with decay and limits": lambda: GradientDescentMomentum(
        0.1, 0.9, wdecay=0.01, gradient_clip_norm=0.5, schedule=RATES
    ),
    "RMSProp": lambda: RMSProp(learning_rate=0.02, schedule=RATES),
    "LAMB": lambda: LAMB(learning_rate=0.02, schedule=RATES),
    "Muon": lambda: Muon(learning_rate=0.02, schedule=RATES),
    "ShiftAdaMax": lambda: ShiftAdaMax(learning_rate=0.02, schedule=RATES),
    "several": lambda: MultiOptimizer({"default": Adam(), "Bias": GradientDescentMomentum(0.1, 0.9)}),
    "scaled losses": lambda: LossScaling(Adam(), scale=64.0),
}


@pytest.mark.parametrize("which", list(OPTIMIZERS))
def test_an_update_is_replayed_with_the_scalars_of_each_step(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    updates: list[Any] = []
    replay = Backend.replay

    def counted(self: Backend, block: Any, fn: Any, *rest: Any) -> Any:
        return replay(self, block, lambda: (updates.append(fn) if block == "update" else None, fn())[1], *rest)

    monkeypatch.setattr(Backend, "replay", counted)
    with_graphs = trained(True, optimizer=OPTIMIZERS[which]())
    assert len(updates) == 3  # two runs and the capture
    updates.clear()
    without = trained(False, optimizer=OPTIMIZERS[which]())
    assert len(updates) == 12
    alike(with_graphs, without)
    for x, y in zip(with_graphs[0], trained(True, optimizer=OPTIMIZERS[which](), runtime="cpu")[0], strict=True):
        np.testing.assert_allclose(x, y, 1e-3, 1e-4)


def updated(optimizer: Any, be: Backend, each: Callable[[int], None]) -> np.ndarray[Any, Any]:
    """Return weights after nine updates by gradients of ones; ``each(n)`` comes before the n-th."""
    w, dw, states = be.ones((4, 1)), be.ones((4, 1)), []
    layer = SimpleNamespace(has_params=True, get_params=lambda: ((w, dw), states))
    be.bsz = 2
    for n in range(9):
        each(n)
        optimizer.optimize([layer], 0)
    return w.get()


@pytest.mark.parametrize(("attribute", "value"), [("learning_rate", 0.5), ("wdecay", 0.25)])
def test_an_attribute_of_an_optimizer_that_changes_counts_from_then_on(
    sim: Backend, attribute: str, value: float
) -> None:
    def run(be: Backend) -> np.ndarray[Any, Any]:
        optimizer = GradientDescentMomentum(0.1, 0.0, wdecay=0.01)
        return updated(optimizer, be, lambda n: setattr(optimizer, attribute, value) if n == 6 else None)

    expected, rate, decay = 1.0, 0.1, 0.01
    for n in range(9):
        if n == 6:
            rate, decay = ({"learning_rate": rate, "wdecay": decay} | {attribute: value}).values()
        expected -= rate * (1 / 2 + decay * expected)
    np.testing.assert_allclose(run(sim), expected, 1e-5)
    np.testing.assert_allclose(run(Backend("cpu")), expected, 1e-5)


@pytest.mark.parametrize("allowed", [False, True])
def test_a_custom_rule_gets_floats_unless_it_sets_can_replay(sim: Backend, allowed: bool) -> None:
    rates: list[Any] = []

    class Thirds(Optimizer):
        learning_rate = 3.0
        can_replay = allowed

        def get_rate(self, epoch: float) -> float:
            return self.learning_rate / (self.t + 1)

        def update_rule(self, be: Any, w: Any, g: Any, states: Any, rate: Any) -> Any:
            rates.append(rate)
            return [w - rate * g]

    w = updated(Thirds(), sim, lambda n: None)
    np.testing.assert_allclose(w, 1 - sum(1.5 / n for n in range(1, 10)), 1e-5)
    assert len(rates) == (1 if allowed else 9)
    assert {type(rate) for rate in rates} == {Tensor if allowed else float}


def test_an_attribute_of_a_layer_that_a_callback_changes_counts_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(self: Any, epoch: int) -> None:
        dropout = next(x for x in self.model.layers.leaves() if isinstance(x, Dropout))
        dropout.keep -= 0.2

    monkeypatch.setattr(Counter, "on_epoch_end", change)
    monkeypatch.setattr(Counter, "model", None, raising=False)
    fit = Model.fit
    monkeypatch.setattr(
        Model, "fit", lambda self, d, c, o, n, l, **k: (setattr(l, "model", self), fit(self, d, c, o, n, l, **k))
    )
    with_graphs, without = trained(True), trained(False)
    alike(with_graphs, without)
    assert (with_graphs[3], without[3]) == (10, 12)


def test_a_custom_layer_is_run_unless_it_sets_can_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    class Doubled(Layer):
        calls = 0

        def configure(self, in_obj: Any) -> Layer:
            super().configure(in_obj)
            self.out_shape = self.in_shape
            return self

        def formula(self, x: Any) -> Any:
            return 2 * x

    monkeypatch.setitem(NETWORKS, "own", (lambda: [Doubled(), *mlp()], (6,), None))
    assert trained(True, "own")[3] == 12
    monkeypatch.setattr(Doubled, "can_replay", True, raising=False)
    assert trained(True, "own")[3] == 4


def test_a_token_id_out_of_range_raises_before_weights_change(sim: Backend) -> None:
    NervanaObject.be, sim.bsz = sim, 4
    model = Model(
        [LookupTable(7, 3, GlorotUniform()), RecurrentLast(), Affine(2, GlorotUniform(), activation=Softmax())]
    )
    model.initialize((5,), CrossEntropyMulti())
    model.optimizer = GradientDescentMomentum(0.1, 0.9)
    words, t = np.arange(20).reshape(5, 4) % 7, sim.array([[1, 0, 1, 0], [0, 1, 0, 1]])
    x = sim.array(words, dtype="int32")
    costs = [model.train_step(x, t) for _ in range(6)]
    assert costs[-1] < costs[0]
    assert "captured" in repr(sim.graphs)
    before = list(model.get_weights().values())
    x[:] = np.where(words == 3, 9, words)
    with pytest.raises(IndexError, match="index 9 is out of range for size 7"):
        model.train_step(x, t)
    for a, b in zip(before, model.get_weights().values(), strict=True):
        np.testing.assert_array_equal(a, b)
    x[:] = words
    assert model.train_step(x, t) < costs[-1]


def test_a_failed_step_keeps_the_weights_and_can_be_repeated(sim: Backend) -> None:
    NervanaObject.be = sim
    sim.bsz = 4
    data = ArrayIterator(np.arange(12.0).reshape(12, 1) / 4, y=np.arange(12.0) / 4, make_onehot=False)
    model = Model([Affine(1, Constant(0.1), bias=Constant(0))])

    class Wrong(GradientDescentMomentum):
        fail = False

        def optimize(self, layer_list: Any, epoch: float) -> None:
            if self.fail:
                raise RuntimeError("no memory")
            super().optimize(layer_list, epoch)

    class Fails(CallbackBase):
        def on_minibatch_begin(self, epoch: int, minibatch: int) -> None:
            optimizer.fail = epoch == 2 and minibatch == 1

    optimizer = Wrong(1e-3, 0.9)
    with pytest.raises(RuntimeError, match="no memory"):
        model.fit(data, MeanSquared(), optimizer, 4, Fails())
    assert (model.epoch_index, model.minibatch_index) == (2, 1)
    optimizer.fail = False
    model.fit(data, MeanSquared(), optimizer, 4)
    found = list(model.get_weights().values())
    again = Model([Affine(1, Constant(0.1), bias=Constant(0))])
    again.fit(data, MeanSquared(), GradientDescentMomentum(1e-3, 0.9), 4, cuda_graphs=False)
    for x, y in zip(found, again.get_weights().values(), strict=True):
        np.testing.assert_array_equal(x, y)


def test_the_current_backend_marks_its_blocks() -> None:
    be = nl.gen_backend("cpu", batch_size=4)
    marks: list[Any] = []
    be.begin = lambda block, n: marks.append((block, n))  # type: ignore[method-assign]
    be.end = lambda block, n: marks.append((-block, n))  # type: ignore[method-assign]
    data = ArrayIterator(np.arange(8.0).reshape(8, 1), y=np.arange(8.0), make_onehot=False)
    Model([Affine(1, Constant(0.1))]).fit(data, MeanSquared(), GradientDescentMomentum(1e-3, 0.9), 1)
    inner = [(Block.minibatch, 0), (-Block.minibatch, 0), (Block.minibatch, 1), (-Block.minibatch, 1)]
    assert marks == [(Block.epoch, 0), *inner, (-Block.epoch, 0)]


# --- a compiled training step is one graph ---


def compiled_step(be: Backend, make: Callable[[], Any]) -> tuple[Any, Any]:
    """Return a network and its training step: forward, gradients and update."""
    NervanaObject.be = be
    be.bsz = 8
    net = nl.Sequential([Affine(6, GlorotUniform(), activation=Tanh()), Dropout(0.8), Affine(1, GlorotUniform())])
    optimizer: Any = make()

    def step(x: Any, t: Any) -> Any:
        difference = net(x, training=True) - t
        cost = be.mean(difference * difference)
        scaled = optimizer.scale_errors(cost) if isinstance(optimizer, LossScaling) else cost
        optimizer.step(net.parameters, nl.Autodiff(scaled, be).get_grad_op_tree(net.parameters))
        return cost

    return net, nl.jit(step)


STEPS: dict[str, Callable[[], Any]] = {
    "Adam": lambda: Adam(0.01),
    "momentum": lambda: GradientDescentMomentum(0.1, 0.9),
    "several": lambda: MultiOptimizer({"default": Adam(0.01), "Bias": RMSProp(0.01)}),
    "scaled": lambda: LossScaling(Adam(0.01), 8.0, growth_interval=3),
}


def run_steps(make: Callable[[], Any], graphs: bool = True, count: int = 8) -> tuple[Any, list[float], Backend]:
    be = Backend(SimulatedGPU(), rng_seed=3)
    net, step = compiled_step(be, make)
    if not graphs:
        be.graphs = None
    draw, costs = np.random.default_rng(0), []
    for _ in range(count):
        costs.append(step(be.array(draw.normal(size=(4, 8))), be.array(draw.normal(size=(1, 8)))))  # new tensors
    states = [x.get() for w in net.parameters for x in (w, *w.states)]
    return states, [float(x.get().item()) for x in costs], be


@pytest.mark.parametrize("which", list(STEPS))
def test_a_compiled_step_is_captured_once_and_has_the_bits_of_a_run(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches: list[Any] = []
    launch = GraphCapture.launch
    monkeypatch.setattr(GraphCapture, "launch", lambda self: (launches.append(self), launch(self))[1])
    states, costs, be = run_steps(STEPS[which])
    assert len(launches) == 6  # of 8 steps, after two runs
    assert len({*launches}) == len(be.graphs.blocks) == 1
    expected, expected_costs, _ = run_steps(STEPS[which], graphs=False)
    assert len(launches) == 6
    assert costs == expected_costs
    assert len({*costs}) == 8
    for x, y in zip(states, expected, strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_replayed_step_launches_its_graph_and_copies_arguments_and_results_only() -> None:
    be = simulated()
    _, step = compiled_step(be, lambda: GradientDescentMomentum(0.1, 0.9))
    x, t = be.ones((4, 8)), be.ones((1, 8))
    counts = []
    for _ in range(5):
        ran(be)
        step(x, t)
        counts.append(len(ran(be)))
    assert counts[3:] == [3, 3]  # two arguments and the cost
    assert counts[1] > 6


def test_an_error_after_a_compiled_step_in_a_transaction_undoes_it(sim: Backend) -> None:
    net, step = compiled_step(sim, lambda: Adam(0.01))
    x, t = sim.ones((4, 8)), sim.ones((1, 8))

    def fail() -> None:
        step(x, t)
        raise MemoryError

    for _ in range(4):
        step(x, t)
        before = [y.get() for w in net.parameters for y in (w, *w.states)], [w.updates for w in net.parameters]
        with pytest.raises(MemoryError):
            atomic(fail)
        after = [y.get() for w in net.parameters for y in (w, *w.states)], [w.updates for w in net.parameters]
        assert after[1] == before[1]
        for a, b in zip(after[0], before[0], strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_step_of_an_optimizer_without_graphs_is_run(sim: Backend) -> None:
    def make() -> Any:
        optimizer = Adam(0.01)
        optimizer.cuda_graphs = False
        return optimizer

    _, step = compiled_step(sim, make)
    for _ in range(5):
        step(sim.ones((4, 8)), sim.ones((1, 8)))
    assert not sim.graphs.blocks
