"""Where do random numbers come from?

From one formula, Philox4x64-10: a block of four 64-bit words is a function of a key and a counter, and nothing else.
The key is (seed, purpose), so weights, masks, data and noise each have a stream of their own, and drawing from one
never shifts another. A stream's position is the number of blocks it has handed out: that one number is all there is
to save, any block can be had without those before it, and threads that share a draw change nothing in it.

Every draw takes whole blocks. A word is also two 32-bit lanes, the low one first, whatever the machine's byte order.
"""

from __future__ import annotations

import math
import operator
import os
import reprlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from neonlite.backend.bfloat16 import holds_numbers

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    Words = NDArray[np.uint64]

Shape = int | tuple[int, ...]
State = tuple[int | str, ...]
Pool = Callable[[Callable[[Iterator[int]], None], int], object]

PURPOSES = {"weights": 0, "masks": 1, "data": 2, "noise": 3}
"""The key word of each stream. Every saved state relies on them: add to the table, never renumber it."""

_HOST = 4  # the key word of the generator for host code
_COUNTERS = 2**256
_CHUNK = 2**12  # blocks made at once: 128 kB of words, which stay in cache until their values are written
_SIP = 31  # blocks that NumPy hands out at once where nothing is to be allocated: an array of less than 1 kB
_SPAN = 2**16  # blocks in one part of a pool's work: about a millisecond

_FORMAT = "philox4x64-10/1"
_HOST_FIELDS = (
    ("host words", 4 * _COUNTERS),
    ("host has_uint32", 2),
    ("host uinteger", 2**32),
    ("host has_gauss", 2),
)
_FIELDS = (("seed", 2**64), *((purpose, _COUNTERS) for purpose in PURPOSES), *_HOST_FIELDS)
"""A state is the format, these whole numbers (each with the bound it stays below), and the host's gauss in hex."""


# --- the formula ---


def philox(seed: int, word: int, block: int) -> np.random.Philox:
    """NumPy's Philox4x64-10 bit generator, placed so that its next raw word is the first of the given block.

    Formula: block k = philox4x64_10(counter=k, key=(seed, word)).

    Source: Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
    """
    # NumPy increments the counter before it uses it. `np.random` is imported by NumPy when first asked for, so here.
    return np.random.Philox(counter=(block - 1) % _COUNTERS, key=seed | word << 64)


def _lanes(words: Words) -> NDArray[np.uint32]:
    # On a little-endian machine both casts are the identity and nothing is copied.
    return words.astype("<u8", copy=False).view("<u4").astype(np.uint32, copy=False)


def _uniform8(words: Words) -> NDArray[Any]:
    return (_lanes(words) >> 24).view(np.int32).astype(np.float32) * np.float32(2.0**-8)


def _uniform16(words: Words) -> NDArray[Any]:
    return (_lanes(words) >> 21).view(np.int32).astype(np.float32) * np.float32(2.0**-11)


def _uniform32(words: Words) -> NDArray[Any]:
    # int32 has a vector instruction to float32 everywhere, uint32 has not.
    return (_lanes(words) >> 8).view(np.int32).astype(np.float32) * np.float32(2.0**-24)


def _uniform64(words: Words) -> NDArray[Any]:
    return (words >> 11).astype(np.float64) * 2.0**-53


_UNIFORM: dict[str, tuple[int, Callable[[Words], NDArray[Any]]]] = {
    "float16": (8, _uniform16),
    "bfloat16": (8, _uniform8),
    "float32": (8, _uniform32),
    "float64": (4, _uniform64),
}
"""dtype -> (values in a block, the values that words stand for)."""


def _normal(words: Words) -> NDArray[Any]:
    bits = (words >> 11).astype(np.float64)
    radius = np.sqrt(-2.0 * np.log((bits[0::2] + 1.0) * 2.0**-53))
    angle = bits[1::2] * (2.0 * math.pi * 2.0**-53)
    values = np.empty_like(bits)
    np.multiply(radius, np.cos(angle), out=values[0::2])
    np.multiply(radius, np.sin(angle), out=values[1::2])
    return values


# --- the streams ---


class Streams:
    """Four independent streams of random numbers, and a NumPy generator for host code, all from one seed.

    Formula: block k of a stream = philox4x64_10(counter=k, key=(seed, PURPOSES[purpose])); a draw that needs n words
    takes ceil(n / 4) blocks.

    Args:
        seed: a whole number from 0 to 2**64 - 1; None takes one from the operating system. `seed` then tells it.
        pool: `pool(work, count)` calls `work` on any number of threads, with iterators that hand out each of
            range(count) once among them, and returns when all is done. Large draws are shared out by it; the numbers
            are the same with and without.

    Raises: TypeError for a seed that is not a whole number (True and 1.0 are not), ValueError for one out of range.
    Every draw raises ValueError for a purpose that is not in PURPOSES. A draw that is refused takes nothing.

    Draws from several threads are safe: each takes blocks that no other has.

    Source: Salmon et al., SC 2011; the words are those of the authors' Random123 library.

    >>> [f"{word:016x}" for word in Streams(0).words("weights", 4).tolist()]
    ['16554d9eca36314c', 'db20fe9d672d0fdc', 'd7e772cee186176b', '7e68b68aec7ba23b']
    """

    def __init__(self, seed: int | None = None, pool: Pool | None = None) -> None:
        self.seed = _whole_seed(seed)
        self._pool = pool
        self._lock = threading.Lock()
        self._kept = threading.local()
        self._blocks = dict.fromkeys(PURPOSES, 0)
        self._host: np.random.RandomState | None = None
        self._first_state = self.get_state()

    # --- bits ---

    def words(self, purpose: str, n: int) -> Words:
        """The next n words of a stream, as they come.

        **Shapes**: (n,) uint64, from ceil(n / 4) blocks.
        """
        return self._fill(purpose, np.empty(n, np.uint64), 4, lambda words: words)

    def lanes(self, purpose: str, n: int) -> NDArray[np.uint32]:
        """The next n lanes of a stream: the halves of its words, the low half first.

        Formula: lane 2i = word i mod 2**32, lane 2i + 1 = floor(word i / 2**32).

        **Shapes**: (n,) uint32, from ceil(n / 8) blocks.
        """
        return self._fill(purpose, np.empty(n, np.uint32), 8, _lanes)

    def blocks(self, purpose: str, n: int) -> tuple[int, int, int]:
        """Takes the next n blocks of a stream, for a device that works them out itself.

        Formula: (seed, PURPOSES[purpose], number of the first block), the key and the counter of the class's formula.
        """
        seed, first = self._take(purpose, n)
        return seed, PURPOSES[purpose], first

    @property
    def taken(self) -> dict[str, int]:
        """How many blocks each stream has handed out, by purpose."""
        return dict(self._blocks)

    # --- real numbers ---

    def uniform(
        self,
        purpose: str,
        shape: Shape | None = None,
        dtype: DTypeLike | None = None,
        out: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        """Numbers spread evenly over [0, 1), equal in every bit on every machine.

        Formula: float16: floor(lane / 2**21) / 2**11; bfloat16: floor(lane / 2**24) / 2**8; float32:
        floor(lane / 2**8) / 2**24; float64: floor(word / 2**11) / 2**53.

        **Shapes**: `shape`, or that of `out`, filled in C order whatever its layout. float32 unless `dtype` or `out`
        says otherwise. A block gives eight values, and four in float64.

        Raises: TypeError for another dtype; ValueError if `out` is read-only or is not of `shape` and `dtype`.

        >>> Streams(0).uniform("weights", (2, 2)).tolist()
        [[0.789889395236969, 0.0872390866279602], [0.40303128957748413, 0.855972170829773]]
        """
        out = _target("uniform", shape, dtype, out)
        per_block, spell = _UNIFORM[out.dtype.name]
        return self._fill(purpose, out, per_block, spell)

    def normal(
        self,
        purpose: str,
        shape: Shape | None = None,
        dtype: DTypeLike | None = None,
        out: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        """Numbers of the standard normal distribution: computed in float64, then cast, so all dtypes see the same.

        Formula: each pair of words gives u = (floor(word 0 / 2**11) + 1) / 2**53 in (0, 1] and
        v = floor(word 1 / 2**11) / 2**53 in [0, 1), and these give sqrt(-2 log u) cos(2 pi v) and then
        sqrt(-2 log u) sin(2 pi v). No magnitude exceeds 8.58.

        **Shapes**: as uniform; a block gives four values in every dtype. Machines agree as far as their log, sin and
        cos do: within 4 ulp.

        Raises: as uniform.

        Source: Box and Muller, "A Note on the Generation of Random Normal Deviates", 1958.
        """
        return self._fill(purpose, _target("normal", shape, dtype, out), 4, _normal)

    # --- choices ---

    def mask(self, purpose: str, out: NDArray[Any], keep: float) -> NDArray[Any]:
        """Fills `out` with ones and zeros, a one with probability `keep`, equal on every machine; returns `out`.

        Formula: 1 where lane < keep * 2**32, else 0. keep = 0 keeps nothing and keep = 1 everything, and they take
        the same blocks as any other.

        **Shapes**: those of `out`: floats, whole numbers or booleans in any layout, filled in C order. A block gives
        eight values.

        Args:
            out: the array to fill.
            keep: the fraction kept, from 0 to 1.

        Raises: ValueError for another `keep` and for an `out` that is read-only; TypeError if `out` is not an array
        of real numbers.
        """
        limit = mask_limit(keep)
        _check_out("mask", out)
        if not holds_numbers(out):
            raise TypeError(f"mask() fills arrays of floats, whole numbers or booleans; got one of {out.dtype}")

        def spell(words: Words) -> NDArray[Any]:
            lanes = _lanes(words)
            ones = self._buffer("ones", 8 * _CHUNK, np.bool_)[: lanes.size]
            np.less(lanes, limit, out=ones)
            return ones

        return self._fill(purpose, out, 8, spell, sip=True)

    def integers(self, purpose: str, low: int, high: int, shape: Shape) -> NDArray[np.int64]:
        """Whole numbers from low to high - 1, equal in every bit on every machine.

        Formula: low + floor(word * (high - low) / 2**64). Each probability is within 2**-64 of 1 / (high - low): off
        by at most one part in 2**32.

        **Shapes**: `shape`, int64; a block gives four values.

        Raises: ValueError unless low < high, both in the range of int64, and high - low <= 2**32.
        """
        low, high = operator.index(low), operator.index(high)
        if not -(2**63) <= low < high <= 2**63 or high - low > 2**32:
            raise ValueError(f"integers() needs low < high in int64, at most 2**32 apart; got low={low}, high={high}")
        width = np.uint64(high - low)
        half = np.uint64(32)

        def spell(words: Words) -> NDArray[Any]:
            # The upper half of a 128-bit product: high lane * width plus the carry of low lane * width fits 64 bits.
            carry = (words & np.uint64(2**32 - 1)) * width >> half
            return ((words >> half) * width + carry >> half).astype(np.int64) + low

        return self._fill(purpose, np.empty(shape, np.int64), 4, spell)

    def permutation(self, purpose: str, n: int) -> NDArray[np.int64]:
        """The numbers 0 to n - 1 in random order, equal on every machine.

        Formula: argsort(words); equal words, of which the chance is below n**2 / 2**65, stay in order of index.

        **Shapes**: (n,) int64, from ceil(n / 4) blocks.
        """
        return np.argsort(self.words(purpose, n), stable=True).astype(np.int64, copy=False)

    # --- host code ---

    @property
    def host(self) -> np.random.RandomState:
        """A NumPy RandomState with a stream of its own, for host code: `host.uniform(low, high, size)` and the like.

        Its words are Philox words; what NumPy makes of them may differ between NumPy versions. set_state and reset
        act on the object in place, so whoever holds it sees them.
        """
        with self._lock:
            return self._make_host()

    def _make_host(self) -> np.random.RandomState:
        if self._host is None:
            self._host = np.random.RandomState(philox(self.seed, _HOST, 1))
        return self._host

    # --- state ---

    def get_state(self) -> State:
        """What has been consumed: a small tuple of whole numbers and strings, hashable, and fit for JSON.

        Formula: (format, seed, blocks taken of weights, masks, data and noise, and of the host generator: words taken,
        has_uint32, uinteger, has_gauss, gauss in hex).
        """
        with self._lock:
            return (_FORMAT, self.seed, *self._blocks.values(), *_host_state(self._host))

    def set_state(self, state: State) -> None:
        """Goes to a state that get_state gave, seed included.

        Raises: ValueError for anything else; the old state then stays.
        """
        _check_state(state)
        seed, *blocks = (int(entry) for entry in state[1 : 2 + len(PURPOSES)])
        host = state[2 + len(PURPOSES) :]
        with self._lock:
            self.seed = seed
            self._blocks = dict(zip(PURPOSES, blocks, strict=True))
            if self._host is not None or host != _host_state(None):
                _set_host(self._make_host(), seed, *host)

    def reset(self) -> None:
        """Goes back to the state of construction, seed included."""
        self.set_state(self._first_state)

    # --- drawing ---

    def _fill(
        self,
        purpose: str,
        out: NDArray[Any],
        per_block: int,
        spell: Callable[[Words], NDArray[Any]],
        sip: bool = False,
    ) -> NDArray[Any]:
        """Takes the blocks that `out` needs and writes, chunk by chunk, the values that `spell` finds in the words.

        With `sip` nothing of size is allocated, at half the speed: by one thread, as many short calls gain nothing from
        two.
        """
        blocks = -(-out.size // per_block)
        seed, first = self._take(purpose, blocks)
        flat = out.reshape(-1) if out.flags.c_contiguous else None

        def work(parts: Iterable[int]) -> None:
            for part in parts:
                end = min((part + 1) * _SPAN, blocks)
                generator = philox(seed, PURPOSES[purpose], first + part * _SPAN)
                for block in range(part * _SPAN, end, _CHUNK):
                    n = 4 * min(_CHUNK, end - block)
                    values = spell(self._sipped(generator, n) if sip else generator.random_raw(n))
                    at = slice(block * per_block, min(block * per_block + values.size, out.size))
                    target: Any = out.flat if flat is None else flat  # .flat has a cursor: threads cannot share one
                    target[at] = values[: at.stop - at.start]

        count = -(-blocks // _SPAN)
        if self._pool is not None and count > 1 and not sip:
            self._pool(work, count)
        else:
            work(range(count))
        return out

    def _sipped(self, generator: np.random.Philox, n: int) -> Words:
        """The next n words, at most a chunk, in this thread's buffer: NumPy cannot draw into a given array."""
        words = self._buffer("words", 4 * _CHUNK, np.uint64)[:n]
        for start in range(0, n, 4 * _SIP):
            words[start : start + 4 * _SIP] = generator.random_raw(min(4 * _SIP, n - start))
        return words

    def _buffer(self, purpose: str, size: int, dtype: DTypeLike) -> NDArray[Any]:
        kept: dict[str, NDArray[Any]] = self._kept.__dict__
        if purpose not in kept:
            kept[purpose] = np.empty(size, dtype)
        return kept[purpose]

    def _take(self, purpose: str, blocks: int) -> tuple[int, int]:
        """Counts the next blocks of a stream as consumed; the seed and the first of them."""
        if purpose not in PURPOSES:
            raise ValueError(f"the purpose of a draw is one of {', '.join(map(repr, PURPOSES))}; got {purpose!r}")
        with self._lock:
            first = self._blocks[purpose]
            self._blocks[purpose] = (first + blocks) % _COUNTERS
            return self.seed, first


def mask_limit(keep: float) -> int:
    """The number below which a lane makes a one; ValueError for a fraction that is none."""
    if not 0.0 <= keep <= 1.0:
        raise ValueError(f"keep is the fraction of ones in a mask, from 0 to 1; got {keep!r}")
    return math.ceil(float(keep) * 2.0**32)  # exact; every lane is below 2**32


# --- the host generator's state ---


def _host_state(host: np.random.RandomState | None) -> State:
    if host is None:
        return (0, 0, 0, 0, (0.0).hex())
    state: dict[str, Any] = host.get_state(legacy=False)
    counter = sum(int(word) << 64 * place for place, word in enumerate(state["state"]["counter"]))
    # The counter is that of the block in the buffer (none at first: counter 0, position 4).
    words = (4 * counter + state["buffer_pos"] - 4) % (4 * _COUNTERS)
    numbers = (int(state[key]) for key in ("has_uint32", "uinteger", "has_gauss"))
    return (words, *numbers, float(state["gauss"]).hex())


def _set_host(host: np.random.RandomState, seed: int, *state: int | str) -> None:
    words, has_uint32, uinteger, has_gauss = (int(entry) for entry in state[:-1])
    generator = philox(seed, _HOST, words // 4 + 1)
    generator.random_raw(words % 4)
    host.set_state(
        {
            **generator.state,
            "has_uint32": has_uint32,
            "uinteger": uinteger,
            "has_gauss": has_gauss,
            "gauss": float.fromhex(str(state[-1])),
        }
    )


# --- checks ---


def _whole_seed(seed: object) -> int:
    if seed is None:
        return int.from_bytes(os.urandom(8), "little")
    if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
        if 0 <= seed < 2**64:
            return int(seed)
        problem: type[Exception] = ValueError
    else:
        problem = TypeError
    got = f"{reprlib.repr(seed)} ({type(seed).__name__})"
    raise problem(f"rng_seed must be a whole number from 0 to 2**64 - 1 or None; got {got}")


def _check_out(name: str, out: object) -> None:
    if not isinstance(out, np.ndarray):
        raise TypeError(f"{name}() fills a NumPy array; got out of type {type(out).__name__}")
    if not out.flags.writeable:
        raise ValueError(f"{name}() cannot fill a read-only array; hand in a copy, `out.copy()`")


def _target(name: str, shape: Shape | None, dtype: DTypeLike | None, out: NDArray[Any] | None) -> NDArray[Any]:
    """The array to fill: `out`, held to shape and dtype where they are given, or a new one."""
    if out is None:
        if shape is None:
            raise TypeError(f"{name}() needs a shape, or an array to fill as out=; got neither")
        kind = np.dtype(np.float32 if dtype is None else dtype)
    else:
        _check_out(name, out)
        kind = out.dtype
        if shape is not None and np.broadcast_shapes(shape) != out.shape:
            raise ValueError(f"{name}() was asked for shape {shape}, but out has shape {out.shape}; leave one away")
        if dtype is not None and np.dtype(dtype) != kind:
            raise ValueError(f"{name}() was asked for {np.dtype(dtype)}, but out is {kind}; leave one away")
    if kind.name not in _UNIFORM:
        raise TypeError(f"{name}() makes {', '.join(_UNIFORM)}; got {kind}")
    return np.empty(() if shape is None else shape, kind) if out is None else out


def _check_state(state: object) -> None:
    problem = None
    if not isinstance(state, tuple) or len(state) != 2 + len(_FIELDS):
        problem = reprlib.repr(state)
    elif type(state[0]) is not str or state[0] != _FORMAT:
        problem = f"format {reprlib.repr(state[0])}"
    else:
        for (name, bound), entry in zip(_FIELDS, state[1:-1], strict=True):
            if type(entry) is not int or not 0 <= entry < bound:
                problem = f"{name} = {reprlib.repr(entry)}"
        if not _is_hex_float(state[-1]):
            problem = f"host gauss = {reprlib.repr(state[-1])}"
    if problem is not None:
        names = ", ".join(name for name, _ in _FIELDS)
        expected = f"({_FORMAT!r}, {names}, host gauss in hex)"
        raise ValueError(f"a random state is the tuple that get_state() gives, {expected}; got {problem}")


def _is_hex_float(text: object) -> bool:
    try:
        return isinstance(text, str) and math.isfinite(float.fromhex(text)) and float.fromhex(text).hex() == text
    except (ValueError, OverflowError):
        return False
