"""What is done anew in each minibatch, though it is the same?  Python.  A recorded block is run without it.

The third time that a block comes with nothing changed, what it launches is recorded instead of run: a CUDA graph. From
then on the graph is launched, and Python spared. What could make that wrong is looked at each time, or refused:

* attributes of what the block uses, and the batch size: one that changed has the block run as it is, and recorded anew;
* where numbers lie (``backend/stored.py``): they are brought to where they were when it was recorded;
* random draws: kernels add the counters of the streams, which lie on the card and are written before each launch;
* indices: kernels tell of one that is out of range, and the error comes when the host next waits for the card;
* numbers that go to the host or come from there, draws on the host, and objects of classes that are not neonlite's and
  do not say ``can_replay = True``: such a block is always run as it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from neonlite.backend.stored import Moves
from neonlite.optree import Operand

GRAPHS = 16  # that a backend keeps
RUNS = 2  # of a block as it is, before it is recorded: by then all is compiled and all buffers are there
OPAQUE: tuple[Any, ...] = (int, float, str, bytes, type(None), type, np.generic, np.ndarray, np.dtype)
OPAQUE += (Operand, BuiltinFunctionType, ModuleType)
OURS = "neonlite.backend"  # the module of backends, plans and what was prepared, which are made of what is looked at
MOVES = ("put", "get", "share", "write")  # methods of a runtime that copy between host and card
_here = threading.local()


class Uncapturable(RuntimeError):
    """A block does what a graph cannot do."""


def recording() -> Recording | None:
    """Return what this thread records, if it does."""
    return getattr(_here, "recording", None)


class Recording:
    """A block as it is recorded, and what belongs to the graph: counters of draws, memory."""

    def __init__(self, be: Any) -> None:
        self.be, self.streams = be, be.streams
        self.before = be.rng_get_state()
        self.began: dict[str, int] = dict(be.streams.taken)
        self.drawn: dict[str, int] = {}  # stream -> blocks that kernels draw
        self.counters = be.xp.zeros((len(self.began), 4), dtype=be.xp.uint64)
        be.runtime.watch.address()  # made before: a graph would make it anew each time
        self.moves = Moves(be.ledger)
        self.held: list[Any] = []
        self.graph: Any = None

    def counter(self, stream: str, first: int, n: int) -> tuple[int, int]:
        """Return where the counter of a stream lies, and how far behind it the n blocks from ``first`` on begin."""
        self.drawn[stream] = self.drawn.get(stream, 0) + n
        row = self.counters[list(self.began).index(stream), ...]
        return self.be.runtime.layout(row)[0], (first - self.began[stream]) % 2**256

    def record(self, fn: Callable[[], Any]) -> Any:
        """Record what a function launches; nothing is run. Uncapturable when some of it happened on the host."""
        be, runtime, _here.recording = self.be, self.be.runtime, self
        primitives = be.primitives
        try:
            for name in MOVES:
                setattr(runtime, name, partial(refused, getattr(runtime, name)))
            with self.moves, be.runtime.driver.capture() as self.graph:
                be.primitives = self.graph.taped(primitives)
                found = fn()
        finally:
            be.primitives, _here.recording = primitives, None
            for name in MOVES:
                setattr(runtime, name, getattr(runtime, name).args[0])
            after, drawn = be.rng_get_state(), {k: n - self.began[k] for k, n in be.streams.taken.items()}
            be.rng_set_state(self.before)
        if after[2 + len(drawn) :] != self.before[2 + len(drawn) :] or drawn != {
            **dict.fromkeys(drawn, 0),
            **self.drawn,
        }:
            raise Uncapturable("it draws random numbers on the host")
        self.held.append(dict(be.ledger.kept.__dict__))  # the arena, and other buffers: their addresses are recorded
        return found

    def launch(self) -> None:
        """Run what was recorded, with random numbers of its own."""
        if self.drawn:
            words = np.zeros((len(self.began), 4), np.uint64)
            for row, stream in enumerate(self.began):
                if n := self.drawn.get(stream):
                    _, _, first = self.streams.blocks(stream, n)
                    words[row] = [first >> 64 * k & 2**64 - 1 for k in range(4)]
            self.be.runtime.write(self.counters, words, "uint64")
        _here.recording = self  # what a tape runs in Python is as it was recorded
        try:
            self.graph.launch()
            self.moves.end()
        finally:
            _here.recording = None
            self.be.runtime.watch.expect()


def refused(f: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Copy between host and card, unless this thread records."""
    if recording():
        raise Uncapturable("numbers go to the host, or come from there")
    return f(*args, **options)


class State:
    """The attributes of some objects, and of all that they lead to, as they are now."""

    def __init__(self, things: Sequence[Any]) -> None:
        self.seen: list[tuple[Any, Any, tuple[Any, ...]]] = []  # (what holds values, names that do not count, values)
        self.foreign = ""  # a class, or a function, that may depend on more than attributes
        rest, met = list(things), set()
        while rest:
            x = rest.pop()
            if id(x) in met or isinstance(x, OPAQUE) or type(x).__module__.startswith(OURS):
                continue
            met.add(id(x))
            if isinstance(x, partial | MethodType):
                rest += [x.func, *x.args, x.keywords] if isinstance(x, partial) else [x.__self__, x.__func__]
                continue
            skipped: Any = ()
            if not isinstance(x, list | tuple | dict | set | frozenset):
                own = x if isinstance(x, FunctionType) else type(x)
                if not known(own, x):
                    self.foreign = own.__qualname__
                if isinstance(x, FunctionType) or not hasattr(x, "__dict__"):
                    continue
                skipped, x = getattr(x, "results", ()), vars(x)
            rest += (found := values(x, skipped))
            if not isinstance(x, tuple | frozenset):  # which do not change
                self.seen.append((x, skipped, found))

    def holds(self) -> bool:
        """Tell whether nothing changed since."""
        try:
            return all(values(x, skipped) == then for x, skipped, then in self.seen)
        except (TypeError, ValueError):  # tensors, and arrays, that are others: their comparison has no truth value
            return False


def values(x: Any, skipped: Any = ()) -> tuple[Any, ...]:
    """Return what something holds, but for some names."""
    if skipped:
        return tuple([value for name, value in x.items() if name not in skipped])
    return tuple(x.values()) if isinstance(x, dict) else tuple(x)


def known(own: Any, x: Any) -> bool:
    """Tell whether a class, or a function, is neonlite's own, or the object says that it can be replayed."""
    return str(own.__module__).startswith("neonlite.") or getattr(x, "can_replay", False)


class Block:
    """What is known of a block: what it uses, how often it ran with nothing changed, and its graph."""

    def __init__(self, things: Sequence[Any]) -> None:
        self.things = things  # held, so that no others get their ids
        self.renew()

    def renew(self) -> None:
        """Begin anew."""
        self.state = State(self.things)
        self.runs = 0
        self.recording: Recording | None = None
        self.found: Any = None  # what the function returned
        self.refused = f"{self.state.foreign} does not say can_replay = True" if self.state.foreign else ""


class Graphs:
    """The blocks of a backend that were replayed, and might be."""

    def __init__(self, be: Any) -> None:
        self.be = be
        self.blocks: dict[Any, Block] = {}

    def __repr__(self) -> str:
        told = [x.refused or ("recorded" if x.recording else f"{x.runs} runs") for x in self.blocks.values()]
        return f"<graphs of {self.be!r}: {'; '.join(told) or 'none'}>"

    def replay(self, name: Any, fn: Callable[[], Any], uses: Any) -> Any:
        """Run a block, or launch its graph; return what the function returned."""
        if recording():
            return fn()
        be, things = self.be, opened([uses]) + tensors_of(fn)
        driver = be.runtime.driver
        how = be.bsz, be.streams, be.streams.seed, be.defined_anew, driver.tf32, driver.here()
        key = name, *how, *map(id, things)
        block = self.blocks.pop(key, None) or Block(things)
        self.blocks[key] = block  # the last one
        if len(self.blocks) > GRAPHS:
            del self.blocks[next(iter(self.blocks))]
        if not block.refused and not block.state.holds():
            block.renew()
        if block.recording is None and not block.refused and block.runs >= RUNS:
            self._record(block, fn)
        if block.recording is not None and not block.recording.moves.begin():
            block.renew()
        if block.recording is None:
            block.runs += 1
            return fn()
        block.recording.launch()
        return block.found

    def takes(self, x: Any) -> bool:
        """Tell whether a block that uses an object may be recorded."""
        return known(type(x), x)

    def _record(self, block: Block, fn: Callable[[], Any]) -> None:
        made = Recording(self.be)
        try:
            block.found = made.record(fn)
        except Exception as error:  # an error of the function's own comes again when it is run
            block.refused = f"{type(error).__name__}: {error}"
            return
        if block.state.holds():
            block.recording = made
            made.held.append(fn)
        else:
            block.renew()

    def forget(self) -> None:
        """Let go of all graphs, and of what they use."""
        self.blocks.clear()


def opened(uses: Any) -> list[Any]:
    """Return things with lists and tuples opened."""
    return [y for x in uses for y in (opened(x) if isinstance(x, list | tuple) else [x])]


def tensors_of(fn: Callable[[], Any]) -> list[Any]:
    """Return the tensors and trees of the surroundings that a function refers to."""
    cells = getattr(fn, "__closure__", None) or ()
    try:
        return [x for x in (cell.cell_contents for cell in cells) if isinstance(x, Operand)]
    except ValueError:  # a variable that has no value yet
        return []
