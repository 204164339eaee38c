"""CUDA graphs: capture and replay blocks of calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import Any, TypeVar

import numpy as np

from neonlite.backend.concurrency import Cache
from neonlite.backend.measure import MemoryTracker
from neonlite.backend.objects import AttributeSnapshot
from neonlite.backend.random import RandomStreams
from neonlite.optree import Operand
from neonlite.typing import BackendBase

# Record a block's launches, and check before each replay that nothing changed.
#
# After two runs with unchanged inputs a block is captured as a CUDA graph, and from then on replayed without running
# its Python code. What may change between replays is checked or updated before each, and what cannot be replayed is
# rejected:
#
# * attributes of the objects that the block uses, and the batch size: after a change the block runs normally, and is
#   captured again; so it is on another stream, and in another thread, which have other buffers;
# * random draws: kernels read the counters of the streams from GPU memory, where they are written before each launch;
# * indices: kernels report an index out of range, and the error is raised when the host next synchronizes;
# * copies between host and GPU, draws on the host, and objects of classes outside neonlite without ``can_replay =
#   True``: blocks with these are never captured, and always run normally.

T = TypeVar("T")

MAX_CACHED_LAUNCHES = 1 << 14  # of plans and convolutions of a thread on a stream
MAX_GRAPHS = 16  # per backend; each holds the memory that it uses
WARMUP_RUNS = 2  # runs before capture, which compile kernels and allocate buffers


class CaptureState(threading.local):
    """The graph that a thread captures or launches, and the launches of a plan that it records; None otherwise."""

    capture: GraphCapture | None = None
    launches: list[Callable[[], object] | None] | None = None


_thread = CaptureState()


class CaptureError(RuntimeError):
    """A block contains work that a CUDA graph cannot capture."""


def current_capture() -> GraphCapture | None:
    """Return the capture that is running in this thread, or None."""
    return _thread.capture


@contextmanager
def record_launches() -> Iterator[list[Callable[[], object] | None]]:
    """Record functions that repeat the launches of this thread, in a ``with`` block; None for what none repeats."""
    outer, _thread.launches = _thread.launches, []
    try:
        yield _thread.launches
    finally:
        _thread.launches = outer


def record(launch: Callable[..., object] | None, *arguments: object) -> None:
    """Record a launch that ``launch(*arguments)`` repeats, if this thread records; None if nothing does."""
    if _thread.launches is not None:
        _thread.launches.append(launch and partial(launch, *arguments))


def repeat_launches(
    memory_tracker: MemoryTracker, caches: dict[Any, Any], key: object, run: Callable[[], object]
) -> bool:
    """Run a function, or repeat its launches if those of a key are in ``caches``. Return whether they can be repeated.

    ``caches``: the buffers of this thread on its stream. The launches are discarded when a buffer is replaced.
    """
    if "launches" not in caches:
        caches["launches"] = Cache(MAX_CACHED_LAUNCHES, memory_tracker, lambda key, launches: 1 + len(launches))
    cache = caches["launches"]
    if (launches := cache.find(key)) is not None:
        for launch in launches:
            launch()
        return True
    with record_launches() as recorded:
        run()
    can_repeat, is_current = None not in recorded, caches.get("launches") is cache
    if can_repeat and is_current:
        cache.add(key, recorded)
    return can_repeat


def launch_kernel(driver: Any, *arguments: Any) -> None:
    """Launch a kernel, and record a launch with less overhead if this thread records."""
    driver.launch(*arguments)
    if _thread.launches is not None:
        _thread.launches.append(driver.prepare_launch(*arguments))


def is_recording() -> bool:
    """Return whether this thread records launches."""
    return _thread.launches is not None


def buffer_stream(current_stream: Callable[[], int]) -> int:
    """Return the stream whose buffers work uses: the current one, or in a capture that on which its graph will run."""
    capture = current_capture()
    return current_stream() if capture is None else capture.stream


def check_transfer() -> None:
    """Raise CaptureError if this thread captures a block: a graph contains no copies between host and GPU."""
    if _thread.capture and _thread.capture.is_capturing:
        raise CaptureError("graph capture: expected device work only, got a copy between host and GPU")


class CudaStreams(RandomStreams):
    """Random streams; a graph draws only from those of its backend, whose counters it reads from GPU memory."""

    def _reserve_blocks(self, purpose: str, blocks: int) -> tuple[int, int]:
        if self._position is None and (capture := current_capture()) and capture.streams is not self:
            raise CaptureError("graph capture: expected random numbers of the backend, got those of a generator")
        return super()._reserve_blocks(purpose, blocks)


class GraphCapture:
    """A captured block: its graph, and the random counters and memory that belong to it."""

    def __init__(self, be: BackendBase) -> None:
        self.be, self.streams, self.stream = be, be.streams, be.runtime.driver.current_stream()
        self.rng_state = be.rng_get_state()
        self.stream_positions: dict[str, int] = dict(be.streams.blocks_used)
        self.blocks_drawn: dict[str, int] = {}  # stream -> Philox blocks that the kernels draw
        self.counters = be.xp.zeros((len(self.stream_positions), 4), dtype=be.xp.uint64)
        be.runtime.bounds_checker.record_address()  # allocated before the capture
        self.keepalive: list[object] = []
        self.graph: Any = None
        self.is_capturing = False

    def counter_address(self, stream: str, first: int, n: int) -> tuple[int, int]:
        """Return the address of a stream's counter, and the offset of block ``first``, the first of n to draw."""
        self.blocks_drawn[stream] = self.blocks_drawn.get(stream, 0) + n
        counter = self.counters[list(self.stream_positions).index(stream), ...]
        return self.be.runtime.address_and_strides(counter)[0], (first - self.stream_positions[stream]) % 2**256

    def capture(self, fn: Callable[[], T]) -> T:
        """Capture the launches of a function without running them, and return its result.

        CaptureError if it copies between host and GPU, or draws random numbers on the host.
        """
        be, _thread.capture, self.is_capturing = self.be, self, True
        self.keepalive.append(dict(be.memory_tracker.thread_cache))  # buffers may be replaced by larger ones meanwhile
        try:
            with be.runtime.driver.capture() as self.graph:
                result = fn()
        finally:
            _thread.capture, self.is_capturing = None, False
            after, drawn = (
                be.rng_get_state(),
                {k: n - self.stream_positions[k] for k, n in be.streams.blocks_used.items()},
            )
            be.rng_set_state(self.rng_state)
        if after[2 + len(drawn) :] != self.rng_state[2 + len(drawn) :] or drawn != {
            **dict.fromkeys(drawn, 0),
            **self.blocks_drawn,
        }:
            raise CaptureError("graph capture: expected random numbers drawn by kernels, got draws on the host")
        self.keepalive.append(dict(be.memory_tracker.thread_cache))  # the graph contains the addresses of these buffers
        return result

    def launch(self) -> None:
        """Launch the graph with the next random numbers of each stream."""
        if self.blocks_drawn:
            counters = np.zeros((len(self.stream_positions), 4), np.uint64)
            for index, stream in enumerate(self.stream_positions):
                if n := self.blocks_drawn.get(stream):
                    _, _, first = self.streams.blocks(stream, n)
                    counters[index] = [first >> 64 * k & 2**64 - 1 for k in range(4)]
            self.be.runtime.write(self.counters, counters, "uint64")
        _thread.capture = self  # the simulator's graphs run Python code
        try:
            self.graph.launch()
        finally:
            _thread.capture = None
            self.be.runtime.bounds_checker.mark_pending()


class CapturedBlock:
    """The state of a block: the objects that it uses, the number of runs since they last changed, and its graph."""

    def __init__(self, objects: Sequence[object]) -> None:
        self.objects = objects  # kept alive, so that their ids stay unique
        self.reset()

    def reset(self) -> None:
        """Discard the graph, and take a new snapshot of the attributes."""
        self.state = AttributeSnapshot(self.objects)
        self.runs = 0
        self.capture: GraphCapture | None = None
        self.result: Any = None  # return value of the function
        self.rejection = f"{self.state.custom_class} does not set can_replay = True" if self.state.custom_class else ""


class GraphCache:
    """The blocks of a backend and their CUDA graphs."""

    def __init__(self, be: BackendBase) -> None:
        self.be = be
        self.blocks = Cache(MAX_GRAPHS, be.memory_tracker)

    def __repr__(self) -> str:
        states = [x.rejection or ("captured" if x.capture else f"{x.runs} runs") for x in self.blocks.values()]
        return f"<graphs of {self.be!r}: {'; '.join(states) or 'none'}>"

    def replay(self, name: Any, fn: Callable[[], Any], uses: Any) -> Any:
        """Run a block or launch its graph, and return the function's result."""
        if current_capture():
            return fn()
        be, objects = self.be, flatten([uses]) + closure_tensors(fn)
        driver = be.runtime.driver
        driver.check_device()
        columns = be.bsz, be.minibatch_shard
        settings = be.streams, be.streams.seed, be.num_redefinitions, driver.tf32, driver.current_stream()
        key = name, get_ident(), *columns, *settings, *map(id, objects)
        block: CapturedBlock = self.blocks.find(key) or self.blocks.add(key, CapturedBlock(objects))
        if not block.rejection and not block.state.is_unchanged():
            block.reset()
        if block.capture is None and not block.rejection and block.runs >= WARMUP_RUNS:
            self._capture(block, fn)
        if block.capture is None:
            block.runs += 1
            return fn()
        block.capture.launch()
        return block.result

    def _capture(self, block: CapturedBlock, fn: Callable[[], Any]) -> None:
        capture = GraphCapture(self.be)
        try:
            block.result = capture.capture(fn)
        except Exception as error:  # an error of the function is raised again by the normal run
            block.rejection = f"{type(error).__name__}: {error}"
            return
        if block.state.is_unchanged():
            block.capture = capture
            capture.keepalive.append(fn)
        else:
            block.reset()

    def clear(self) -> None:
        """Free all graphs, and what they keep alive."""
        self.blocks.clear()


def flatten(uses: Any) -> list[Any]:
    """Return the objects in nested lists and tuples."""
    return [y for x in uses for y in (flatten(x) if isinstance(x, list | tuple) else [x])]


def closure_tensors(fn: Callable[[], Any]) -> list[Any]:
    """Return the tensors and op-trees in a function's closure."""
    cells = getattr(fn, "__closure__", None) or ()
    try:
        return [x for x in (cell.cell_contents for cell in cells) if isinstance(x, Operand)]
    except ValueError:  # an unassigned variable
        return []
