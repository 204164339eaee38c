"""Random number streams: counter-based Philox4x64-10 generators, one per purpose, with small saveable states."""

from __future__ import annotations

import copy
import math
import operator
import os
import reprlib
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from neonlite.backend import concurrency, validation
from neonlite.backend.tensor import Tensor
from neonlite.tree_structure import refuse_in_trace
from neonlite.typing import BackendBase, is_real_array

if TYPE_CHECKING:
    import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    Words = NDArray[np.uint64]

Shape = int | tuple[int, ...]
State = tuple[int | str, ...]
ParallelFor = Callable[[Callable[[Iterator[int]], None], int], object]

PURPOSES = {"weights": 0, "masks": 1, "data": 2, "noise": 3}
"""Purpose -> key word of its stream. Saved states depend on these numbers: add entries, never change them."""

_HOST_KEY = 4  # the key word of the generator for code on the host
_COUNTERS = 2**256
# blocks computed at once: 128 kB of words, which stay in the CPU cache until their values are written
_CHUNK_BLOCKS = 2**12
_TASK_BLOCKS = 2**16  # blocks per task of a parallel draw: about a millisecond

_FORMAT = "philox4x64-10/1"
_HOST_FIELDS = (
    ("host words", 4 * _COUNTERS),
    ("host has_uint32", 2),
    ("host uinteger", 2**32),
    ("host has_gauss", 2),
)
_FIELDS = (("seed", 2**64), *((purpose, _COUNTERS) for purpose in PURPOSES), *_HOST_FIELDS)
"""A state is the format, these integers (name, exclusive bound), and the host generator's gauss in hex."""


# --- Philox ---


def philox(seed: int, word: int, block: int) -> np.random.Philox:
    """Return NumPy's Philox4x64-10 bit generator at the first word of a block.

    block k = philox4x64_10(counter=k, key=(seed, word))

    References
    ----------
    Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
    """
    # NumPy increments the counter before it uses it
    return np.random.Philox(counter=(block - 1) % _COUNTERS, key=seed | word << 64)


def _as_words32(words: Words) -> NDArray[np.uint32]:
    # on a little-endian machine neither cast copies
    return words.astype("<u8", copy=False).view("<u4").astype(np.uint32, copy=False)


def _to_uniform32(bits: int, words: Words) -> NDArray[Any]:
    # CPUs have vector instructions from int32 to float32, but not from uint32
    return (_as_words32(words) >> (32 - bits)).view(np.int32).astype(np.float32) * np.float32(2.0**-bits)


def _to_uniform_float64(words: Words) -> NDArray[Any]:
    return (words >> 11).astype(np.float64) * 2.0**-53


_UNIFORM: dict[str, tuple[int, Callable[[Words], NDArray[Any]]]] = {
    "float16": (8, partial(_to_uniform32, 11)),
    "bfloat16": (8, partial(_to_uniform32, 8)),
    "float32": (8, partial(_to_uniform32, 24)),
    "float64": (4, _to_uniform_float64),
}
"""dtype -> (values per block, function from words to values)."""


def _to_normal(words: Words) -> NDArray[Any]:
    bits = (words >> 11).astype(np.float64)
    radius = np.sqrt(-2.0 * np.log((bits[0::2] + 1.0) * 2.0**-53))
    angle = bits[1::2] * (2.0 * math.pi * 2.0**-53)
    values = np.empty_like(bits)
    np.multiply(radius, np.cos(angle), out=values[0::2])
    np.multiply(radius, np.sin(angle), out=values[1::2])
    return values


# --- streams ---


class RandomStreams:
    """Four independent streams of random numbers, and a NumPy generator for code on the host, from one seed.

    block k of a stream = philox4x64_10(counter=k, key=(seed, PURPOSES[purpose])). A draw that needs n words uses
    ceil(n / 4) blocks; one that raises an error uses none. Draws are thread-safe: each uses different blocks.

    Parameters
    ----------
    seed : int, optional
        The seed, from 0 to 2**64 - 1; default from the operating system. The attribute ``seed`` has its value.
    parallel_for : callable, optional
        ``parallel_for(work, count)`` calls ``work`` on several threads with iterators that together yield each of
        range(count) once, and returns when all are done. Large draws use it; it does not change the numbers.

    Raises
    ------
    TypeError
        The seed is not an integer (True and 1.0 are not).
    ValueError
        The seed is out of range.

    References
    ----------
    Salmon et al., SC 2011; the words are those of the authors' Random123 library.

    Examples
    --------
    >>> [f"{word:016x}" for word in RandomStreams(0).words("weights", 4).tolist()]
    ['16554d9eca36314c', 'db20fe9d672d0fdc', 'd7e772cee186176b', '7e68b68aec7ba23b']
    """

    def __init__(self, seed: int | None = None, parallel_for: ParallelFor | None = None) -> None:
        self.seed = _check_seed(seed)
        self._parallel_for = parallel_for
        self._lock = concurrency.create_lock()
        self._thread_cache = threading.local()
        self._blocks = dict.fromkeys(PURPOSES, 0)
        self._host: np.random.RandomState | None = None
        self._first_state = self.get_state()
        self._position: Callable[[], int] | None = None

    def at(self, position: Callable[[], int]) -> Self:
        """Return streams that draw from block ``position()`` on, each time, and reserve no blocks."""
        streams = copy.copy(self)
        streams._position = position
        return streams

    # --- bits ---

    def words(self, purpose: str, shape: Shape, dtype: str = "uint64") -> Words:
        """Return the next words of a stream, uint64 or their bits as int64; a block gives four."""
        return self._fill(purpose, np.empty(shape, dtype), 4, lambda words: words.view(dtype))

    def words32(self, purpose: str, n: int) -> NDArray[np.uint32]:
        """Return the next n 32-bit words of a stream, (n,) uint32, from ceil(n / 8) blocks.

        word32 2i = word i mod 2**32, word32 2i + 1 = floor(word i / 2**32).
        """
        return self._fill(purpose, np.empty(n, np.uint32), 8, _as_words32)

    def blocks(self, purpose: str, n: int) -> tuple[int, int, int]:
        """Reserve the next n blocks of a stream for a device that computes them.

        Returns
        -------
        tuple of int
            (seed, PURPOSES[purpose], index of the first block): the key and the counter of the class's formula.
        """
        seed, first = self._reserve_blocks(purpose, n)
        return seed, PURPOSES[purpose], first

    @property
    def blocks_used(self) -> dict[str, int]:
        """The number of blocks that each stream has used, by purpose."""
        return dict(self._blocks)

    # --- real numbers ---

    def uniform(
        self,
        purpose: str,
        shape: Shape | None = None,
        dtype: DTypeLike | None = None,
        out: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        """Draw from the uniform distribution over [0, 1), bit-identical on every machine.

        float16: floor(word32 / 2**21) / 2**11; bfloat16: floor(word32 / 2**24) / 2**8; float32:
        floor(word32 / 2**8) / 2**24; float64: floor(word / 2**11) / 2**53.

        Parameters
        ----------
        purpose : str
            The stream.
        shape : int or tuple of int, optional
            The shape; optional with ``out``.
        dtype : dtype, optional
            float16, bfloat16, float32 or float64; default that of ``out``, else float32.
        out : numpy.ndarray, optional
            The array to fill, in C order of its indices, whatever its strides.

        Returns
        -------
        numpy.ndarray
            ``out``, or a new array. A block gives eight values, or four in float64.

        Raises
        ------
        TypeError
            The dtype is none of these, or neither ``shape`` nor ``out`` is given.
        ValueError
            ``out`` is read-only or differs from ``shape`` or ``dtype``, or the purpose is unknown.

        Examples
        --------
        >>> RandomStreams(0).uniform("weights", (2, 2)).tolist()
        [[0.789889395236969, 0.0872390866279602], [0.40303128957748413, 0.855972170829773]]
        """
        out = _output_array("uniform", shape, dtype, out)
        per_block, to_values = _UNIFORM[out.dtype.name]
        return self._fill(purpose, out, per_block, to_values)

    def normal(
        self,
        purpose: str,
        shape: Shape | None = None,
        dtype: DTypeLike | None = None,
        out: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        """Draw from the standard normal distribution: computed in float64, then cast, so all dtypes agree.

        Each pair of words gives u = (floor(word 0 / 2**11) + 1) / 2**53 in (0, 1] and
        v = floor(word 1 / 2**11) / 2**53 in [0, 1), and these give sqrt(-2 log u) cos(2 pi v) and then
        sqrt(-2 log u) sin(2 pi v). No magnitude exceeds 8.58. Machines agree within 4 ulp, as their log, sin and cos
        do.

        Parameters
        ----------
        purpose : str
            The stream.
        shape : int or tuple of int, optional
            The shape; optional with ``out``.
        dtype : dtype, optional
            float16, bfloat16, float32 or float64; default that of ``out``, else float32.
        out : numpy.ndarray, optional
            The array to fill, in C order of its indices, whatever its strides.

        Returns
        -------
        numpy.ndarray
            ``out``, or a new array. A block gives four values in every dtype.

        Raises
        ------
        TypeError
            The dtype is none of these, or neither ``shape`` nor ``out`` is given.
        ValueError
            ``out`` is read-only or differs from ``shape`` or ``dtype``, or the purpose is unknown.

        References
        ----------
        Box and Muller, "A Note on the Generation of Random Normal Deviates", 1958.
        """
        return self._fill(purpose, _output_array("normal", shape, dtype, out), 4, _to_normal)

    # --- choices ---

    def mask(self, purpose: str, out: NDArray[Any], keep: float) -> NDArray[Any]:
        """Fill an array with ones, with probability ``keep``, and zeros; identical on every machine.

        1 where word32 < keep * 2**32, else 0. Any ``keep``, also 0 and 1, uses the same number of blocks.

        Parameters
        ----------
        purpose : str
            The stream.
        out : numpy.ndarray
            The array of floats, integers or booleans to fill, in C order of its indices, whatever its strides.
        keep : float
            The probability of a one, from 0 to 1.

        Returns
        -------
        numpy.ndarray
            ``out``. A block gives eight values.

        Raises
        ------
        TypeError
            ``out`` is not an array of real numbers.
        ValueError
            ``keep`` is out of range, ``out`` is read-only, or the purpose is unknown.
        """
        threshold = mask_threshold(keep)
        _check_out("mask", out)
        if not is_real_array(out):
            raise TypeError(f"mask: expected an array of floats, integers or booleans as out, got {out.dtype}")

        upper_bits, lower_bits = np.float32((threshold >> 8) * 2.0**-24), threshold & 255

        def draw(generator: np.random.Philox, n: int) -> NDArray[Any] | None:
            """Compare the upper 24 bits of each word with the threshold; return None if the other bits decide."""
            uniform = self._buffer("uniform", 8 * _CHUNK_BLOCKS, np.float32)[: 2 * n]
            ones = self._buffer("ones", 8 * _CHUNK_BLOCKS, np.bool_)[: 2 * n]
            np.random.Generator(generator).random(out=uniform, dtype=np.float32)  # allocates nothing
            if lower_bits and np.equal(uniform, upper_bits, out=ones).any():
                return None
            np.less(uniform, upper_bits, out=ones)
            return ones

        return self._fill(purpose, out, 8, lambda words: _as_words32(words) < threshold, draw)

    def new_mask(self, purpose: str, shape: Shape, keep: float, dtype: str) -> NDArray[Any]:
        """Return a new array filled by ``mask``, in float64 or float32.

        Parameters
        ----------
        purpose, keep
            As for ``mask``.
        shape : int or tuple of int
            The shape.
        dtype : str
            "float64"; float32 for any other.

        Returns
        -------
        numpy.ndarray
            The array.
        """
        return self.mask(purpose, np.empty(shape, np.float64 if dtype == "float64" else np.float32), keep)

    def integers(self, purpose: str, low: int, high: int, shape: Shape) -> NDArray[np.int64]:
        """Draw integers from low to high - 1, identical on every machine.

        low + floor(word * (high - low) / 2**64). Each probability is within 2**-64 of 1 / (high - low): a relative
        error of at most 2**-32.

        Parameters
        ----------
        purpose : str
            The stream.
        low, high : int
            The range [low, high), within int64 and at most 2**32 wide.
        shape : int or tuple of int
            The shape.

        Returns
        -------
        numpy.ndarray
            int64. A block gives four values.

        Raises
        ------
        ValueError
            The range is empty, wider than 2**32 or not within int64, or the purpose is unknown.
        """
        low, high = operator.index(low), operator.index(high)
        if not -(2**63) <= low < high <= 2**63 or high - low > 2**32:
            raise ValueError(f"integers: expected int64 low < high <= low + 2**32, got low={low}, high={high}")
        width = np.uint64(high - low)
        half = np.uint64(32)

        def to_values(words: Words) -> NDArray[Any]:
            # the upper half of a 128-bit product: high word32 * width plus the carry of low word32 * width fits 64 bits
            carry = (words & np.uint64(2**32 - 1)) * width >> half
            return ((words >> half) * width + carry >> half).astype(np.int64) + low

        return self._fill(purpose, np.empty(shape, np.int64), 4, to_values)

    def permutation(self, purpose: str, n: int) -> NDArray[np.int64]:
        """Return a random permutation of 0 to n - 1, (n,) int64, from ceil(n / 4) blocks; identical on every machine.

        argsort(words), stable. The probability of equal words is below n**2 / 2**65.
        """
        return np.argsort(self.words(purpose, n), stable=True).astype(np.int64, copy=False)

    # --- the generator for the host ---

    @property
    def host(self) -> np.random.RandomState:
        """A NumPy RandomState for code on the host, with a Philox stream, as in ``host.uniform(low, high, size)``.

        NumPy's distributions may differ between its versions. ``set_state`` and ``reset`` change the object in place.
        """
        with self._lock:
            return self._make_host()

    def _make_host(self) -> np.random.RandomState:
        if self._host is None:
            generator = philox(self.seed, _HOST_KEY, 1)
            concurrency.free_after_fork(generator.lock)
            self._host = np.random.RandomState(generator)
        return self._host

    # --- state ---

    def get_state(self) -> State:
        """Return the state of all streams: a small tuple of integers and strings, hashable and JSON-compatible.

        Returns
        -------
        tuple
            (format, seed, blocks used of weights, masks, data and noise, and of the host generator: words used,
            has_uint32, uinteger, has_gauss, gauss in hex).
        """
        with self._lock:
            return (_FORMAT, self.seed, *self._blocks.values(), *_host_state(self._host))

    def set_state(self, state: State) -> None:
        """Set the state of all streams, seed included, to one that ``get_state`` returned.

        Any other value raises ValueError, and leaves the state unchanged.
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
        """Reset all streams to their initial state, seed included."""
        self.set_state(self._first_state)

    # --- drawing ---

    def _fill(
        self,
        purpose: str,
        out: NDArray[Any],
        per_block: int,
        to_values: Callable[[Words], NDArray[Any]],
        draw: Callable[[np.random.Philox, int], NDArray[Any] | None] | None = None,
    ) -> NDArray[Any]:
        """Fill ``out``: reserve its blocks, and convert their words with ``to_values``, chunk by chunk.

        ``draw(generator, n)`` returns the values of the next n words faster, or None if it cannot.
        """
        blocks = -(-out.size // per_block)
        seed, first = self._reserve_blocks(purpose, blocks)
        flat = out.reshape(-1) if out.flags.c_contiguous else None

        def work(parts: Iterable[int]) -> None:
            for part in parts:
                end = min((part + 1) * _TASK_BLOCKS, blocks)
                generator = philox(seed, PURPOSES[purpose], first + part * _TASK_BLOCKS)
                for block in range(part * _TASK_BLOCKS, end, _CHUNK_BLOCKS):
                    n = 4 * min(_CHUNK_BLOCKS, end - block)
                    if draw is None:
                        values = to_values(generator.random_raw(n))
                    elif (drawn := draw(generator, n)) is not None:
                        values = drawn
                    else:
                        values = to_values(philox(seed, PURPOSES[purpose], first + block).random_raw(n))
                    at = slice(block * per_block, min(block * per_block + values.size, out.size))
                    target: Any = out.flat if flat is None else flat  # .flat has a position, so threads cannot share it
                    target[at] = values[: at.stop - at.start]

        count = -(-blocks // _TASK_BLOCKS)
        if self._parallel_for is not None and count > 1:
            self._parallel_for(work, count)
        else:
            work(range(count))
        return out

    def _buffer(self, purpose: str, size: int, dtype: DTypeLike) -> NDArray[Any]:
        cache: dict[str, NDArray[Any]] = self._thread_cache.__dict__
        if purpose not in cache:
            cache[purpose] = np.empty(size, dtype)
        return cache[purpose]

    def _reserve_blocks(self, purpose: str, blocks: int) -> tuple[int, int]:
        """Reserve the next blocks of a stream; return the seed and the index of the first block."""
        if self._position is not None:
            return self.seed, self._position()
        refuse_in_trace("random numbers that are drawn at once", "Use op-trees: be.rand(shape), be.randn(shape)")
        if purpose not in PURPOSES:
            raise ValueError(f"random stream: expected one of {', '.join(map(repr, PURPOSES))}, got {purpose!r}")
        with self._lock:
            first = self._blocks[purpose]
            self._blocks[purpose] = (first + blocks) % _COUNTERS
            return self.seed, first


def mask_threshold(keep: float) -> int:
    """Return the threshold below which a 32-bit word gives a one in a mask; an error for an invalid fraction."""
    validation.check_number("mask: keep", keep, 0, at_most=1)
    return math.ceil(float(keep) * 2.0**32)  # exact; every 32-bit word is below 2**32


# --- the host generator's state ---


def _host_state(host: np.random.RandomState | None) -> State:
    if host is None:
        return (0, 0, 0, 0, (0.0).hex())
    state: dict[str, Any] = host.get_state(legacy=False)
    counter = sum(int(word) << 64 * i for i, word in enumerate(state["state"]["counter"]))
    # the counter of the buffered block; before the first block the counter is 0 and the position 4
    words = (4 * counter + state["buffer_pos"] - 4) % (4 * _COUNTERS)
    numbers = (int(state[key]) for key in ("has_uint32", "uinteger", "has_gauss"))
    return (words, *numbers, float(state["gauss"]).hex())


def _set_host(host: np.random.RandomState, seed: int, *state: int | str) -> None:
    words, has_uint32, uinteger, has_gauss = (int(entry) for entry in state[:-1])
    generator = philox(seed, _HOST_KEY, words // 4 + 1)
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


def _check_seed(seed: object) -> int:
    if seed is None:
        return int.from_bytes(os.urandom(8), "little")
    if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
        if 0 <= seed < 2**64:
            return int(seed)
        problem: type[Exception] = ValueError
    else:
        problem = TypeError
    got = f"{reprlib.repr(seed)} ({type(seed).__name__})"
    raise problem(f"rng_seed: expected an integer from 0 to 2**64 - 1 or None, got {got}")


def _check_out(name: str, out: object) -> None:
    if not isinstance(out, np.ndarray):
        raise TypeError(f"{name}: expected a NumPy array as out, got {type(out).__name__}")
    if not out.flags.writeable:
        raise ValueError(f"{name}: expected a writable array as out, got a read-only one. Pass a copy, out.copy().")


def _output_array(name: str, shape: Shape | None, dtype: DTypeLike | None, out: NDArray[Any] | None) -> NDArray[Any]:
    """Return the array to fill: ``out``, checked against shape and dtype, or a new one."""
    if out is None:
        if shape is None:
            raise TypeError(f"{name}: expected shape or out, got neither")
        found_dtype = np.dtype(np.float32 if dtype is None else dtype)
    else:
        _check_out(name, out)
        found_dtype = out.dtype
        if shape is not None and np.broadcast_shapes(shape) != out.shape:
            raise ValueError(f"{name}: expected out of shape {shape}, got {out.shape}. Pass only one of shape and out.")
        if dtype is not None and np.dtype(dtype) != found_dtype:
            raise ValueError(
                f"{name}: expected out of dtype {np.dtype(dtype)}, got {found_dtype}. Pass only one of dtype and out."
            )
    if found_dtype.name not in _UNIFORM:
        raise TypeError(f"{name}: expected one of the dtypes {', '.join(_UNIFORM)}, got {found_dtype}")
    return np.empty(() if shape is None else shape, found_dtype) if out is None else out


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
        raise ValueError(f"set_state: expected a tuple that get_state() returned, {expected}, got {problem}")


def _is_hex_float(text: object) -> bool:
    try:
        return isinstance(text, str) and math.isfinite(float.fromhex(text)) and float.fromhex(text).hex() == text
    except (ValueError, OverflowError):
        return False


# --- backend methods for random numbers: seeds and states of the streams, and tensors filled at random ---


class RandomMethods(BackendBase):
    """The methods of ``Backend`` for random numbers."""

    def gen_rng(self, seed: int | None = None) -> np.random.RandomState:
        """Reseed all random streams.

        Parameters
        ----------
        seed : int, optional
            The seed, from 0 to 2**64 - 1; default from the operating system.

        Returns
        -------
        numpy.random.RandomState
            The generator for code on the host, ``be.rng``.
        """
        self.streams = self.runtime.random_streams(seed)
        return self.streams.host

    def rng_get_state(self, state: object = None) -> tuple[int | str, ...]:
        """Return the state of all random streams.

        Parameters
        ----------
        state : object
            For compatibility with neon, without effect.

        Returns
        -------
        tuple
            A small tuple of integers and strings, for ``rng_set_state``.
        """
        return self.streams.get_state()

    def rng_set_state(self, state: tuple[int | str, ...]) -> None:
        """Set the state of all random streams.

        Parameters
        ----------
        state : tuple
            A state that ``rng_get_state`` returned.

        Raises
        ------
        ValueError
            Any other value; the state is then unchanged.
        """
        self.streams.set_state(state)

    def rng_reset(self) -> None:
        """Reset all random streams to their initial state."""
        self.streams.reset()

    def make_binary_mask(self, out: Tensor, keepthresh: float = 0.5) -> None:
        """Fill a tensor with ones and zeros at random.

        Parameters
        ----------
        out : Tensor
            The tensor to fill.
        keepthresh : float
            The probability of a one, from 0 to 1; default 0.5.
        """
        validation.check_open(self)
        mask_threshold(keepthresh)  # raises an error before the old values of the tensor are dropped
        self.runtime.fill_mask(self.streams, out, keepthresh)

    def fill_normal(self, ary: Tensor, mean: float = 0.0, stdv: float = 1.0) -> None:
        """Fill a tensor with normally distributed random numbers.

        Parameters
        ----------
        ary : Tensor
            The tensor to fill.
        mean : float
            The mean; default 0.
        stdv : float
            The standard deviation; default 1.
        """
        validation.check_open(self)
        self.runtime.fill_normal(self.streams, ary, mean, stdv)
