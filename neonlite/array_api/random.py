"""Random arrays: ``rng = xp.random.default_rng(seed)``, and distributions as its methods, as in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

import numpy as np

from neonlite import typing
from neonlite.array_api.array import Array, as_dtype, from_numpy, new_array, padded
from neonlite.array_api.data_types import as_integers, convert_any, to_dtype
from neonlite.array_api.elementwise import FLOAT, log
from neonlite.array_api.manipulation import axis_of, moveaxis, reshape, take
from neonlite.array_api.reductions import argmax, argsort, max as max_of, numeric, searchsorted
from neonlite.backend.random import RandomStreams, State, philox
from neonlite.backend.tensor import Tensor
from neonlite.backend.transaction import on_failure
from neonlite.backend.validation import integer
from neonlite.messages import describe
from neonlite.name_hints import GENERATOR, add_hints, module_getattr
from neonlite.ops.functions import Shape, broadcast_shapes, can_broadcast
from neonlite.tree_structure import RandomSource, is_inside, refuse_in_trace, traces
from neonlite.typing import BackendBase, NumPyArray, Untracked

LOWER_HALF = 2**32 - 1
MAX_WIDTH = 2**32  # of a range of integers
MAX_RATE = 2**30  # of Poisson distributions, whose numbers NumPy returns in 32 bits on some systems
MAX_ROUNDING = 1e-8  # of the sum of probabilities
GENERATOR_KEY = 5  # the key word by which a seed becomes that of a generator's streams; backends use those below
FLOAT64, INT64 = np.dtype("float64"), np.dtype("int64")
Size = int | tuple[int, ...] | None


class Reservation:
    """The blocks of a stream for the numbers of an expression; a step of a compiled function, new ones for each run."""

    def __init__(self, streams: RandomStreams) -> None:
        self.streams, self.blocks, self.first = streams, 0, 0

    def append(self, blocks: int) -> Callable[[], int]:
        """Add blocks, and return a function that returns the index of the first of them."""
        offset = self.blocks
        self.blocks += blocks
        return lambda: self.first + offset

    def count(self) -> None:
        """Reserve the blocks; if the transaction fails, they are given back."""
        on_failure(self.streams.set_state, self.streams.get_state())
        self.first = self.streams.blocks("noise", self.blocks)[2]

    def current_updates(self) -> list[Any]:
        """Return that the program is valid: that there is nothing to update."""
        return []

    def finish(self) -> None:
        """Do nothing after a run."""


@add_hints(GENERATOR)
class Generator(Untracked):
    """A generator of random arrays: each call of a method draws the next numbers of its stream.

    It is an object with a counter, as in NumPy, and not a key that is passed to functions, as in JAX: two calls never
    use the same numbers, and there is no key to split. In a function compiled by ``nl.jit``, the generator draws new
    numbers in each call of the function: those that it would draw without ``jit``. In ``nl.vmap``, a call draws once,
    for all samples.

    The stream is Philox4x64-10, that of ``be.rand``, with a key that no backend uses. The numbers are the same on every
    runtime: those of ``uniform``, ``integers`` and ``permutation`` bit by bit, the others within 4 ulp. Floats are
    drawn in the default dtype of the backend.

    Parameters of distributions may be arrays, which broadcast to ``size``, the shape of the result; by default, their
    common shape. Those out of range raise ValueError, if their values are known: not those of expressions of variables,
    and in a function that is compiled or transformed only those of Python numbers.

    Parameters
    ----------
    seed : int, optional
        The seed, from 0 to 2**64 - 1; default from the operating system.
    backend : Backend, optional
        The backend of the arrays; default the current one.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> rng = nl.array_api.random.default_rng(0)
    >>> rng.integers(0, 10, size=5)
    Array([5, 6, 8, 5, 9], dtype=int64)
    """

    def __init__(self, seed: int | None = None, backend: BackendBase | None = None) -> None:
        self.backend = typing.current_backend() if backend is None else backend
        self.seed = RandomStreams(seed).seed
        self.streams = self.backend.runtime.random_streams(int(philox(self.seed, GENERATOR_KEY, 0).random_raw()))

    def __repr__(self) -> str:
        return f"Generator({self.seed}) on {self.backend!r}"

    def __reduce__(self) -> Any:  # a copy is on the current backend
        return Generator, (self.seed,), self.get_state()

    # --- state ---

    def get_state(self) -> State:
        """Return the state: a small tuple of integers and strings, hashable and JSON-compatible."""
        refuse_in_trace("the state of a random generator", "Call get_state before or after the function")
        return self.streams.get_state()

    def set_state(self, state: State) -> None:
        """Continue from a state that ``get_state`` returned, also that of another generator."""
        refuse_in_trace("a new state of a random generator", "Call set_state before or after the function")
        self.streams.set_state(tuple(state))

    __setstate__ = set_state

    def spawn(self, n: int) -> list[Generator]:
        """Return n generators with independent streams, as for threads or parts of a program.

        Each call returns new ones. They depend on the seed and on the number of those before, and do not change the
        numbers of this generator.
        """
        refuse_in_trace("new random generators", "Call spawn before the function")
        return [Generator(int(seed), self.backend) for seed in self.streams.words("data", integer("spawn: n", n, 0))]

    # --- draws ---

    def _draw(self, op: str, shape: Shape) -> Array:
        """Return random numbers of an op: evaluated, or as an expression in a function that this thread traces."""
        trace = traces.get(get_ident())
        steps = [] if trace is None else trace.steps
        found = next((x for x in steps if isinstance(x, Reservation) and x.streams is self.streams), None)
        reservation = found or Reservation(self.streams)
        is_half = op == "rand" and self.backend.default_dtype_name != "float64"
        first = reservation.append(-(-math.prod(shape) // (8 if is_half else 4)))
        node = self.backend.build(op, RandomSource(self.backend, self.streams.at(first)), to=padded(shape))
        if trace is None:
            reservation.count()
            node = node.astensor()
        elif found is None:
            steps.append(reservation)
        return new_array(node, shape, np.dtype(node.info.dtype), trace is not None, 1)

    def _open_uniform(self, shape: Shape) -> Array:
        """Return uniform numbers of 52 bits in (0, 1), neither 0 nor 1, in float64."""
        words = self._draw("random_words", shape)
        return (to_dtype((words >> 12) & (2**52 - 1), FLOAT64) + 0.5) * 2.0**-52

    def _below(self, width: Any, shape: Shape) -> Array:
        """Return integers from 0 to width - 1: the upper 64 bits of the products of width and words of 64 bits."""
        words = self._draw("random_words", shape)
        carry = (((words & LOWER_HALF) * width) >> 32) & LOWER_HALF
        return ((((words >> 32) & LOWER_HALF) * width + carry) >> 32) & LOWER_HALF

    def _host_generator(self, name: str) -> np.random.RandomState:
        """Return a generator of NumPy, which may draw 2**128 blocks. NumPy changes no numbers of ``RandomState``."""
        refuse_in_trace(f"rng.{name}, which NumPy computes from values", f"Call rng.{name} before, and pass the array")
        on_failure(self.streams.set_state, self.streams.get_state())
        seed, _, first = self.streams.blocks("noise", 1)
        return np.random.RandomState(philox(seed, GENERATOR_KEY, 2**128 * (first + 1)))

    def _as_operands(self, *parameters: Any) -> list[Any]:
        """Return parameters as arrays of the backend; Python numbers unchanged."""
        return [x if isinstance(x, int | float | Array) else convert_any(self.backend, x) for x in parameters]

    def _with_axis(self, name: str, x: Any, axis: int) -> tuple[Array, int]:
        """Return an argument as an array, and its axis from the first on. TypeError for a number."""
        (x,) = self._as_operands(x)
        if not isinstance(x, Array) or not x.ndim:
            raise TypeError(f"{name}: expected an integer, or an array with an axis, got {describe(x)}.")
        return x, axis_of(name, x, axis)

    # --- distributions ---

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Size = None) -> Array:
        """Draw from uniform distributions over [low, high): low + (high - low) u, differentiable in low and high.

        u has 24 bits in float32 and 53 in float64. The result may be rounded up to ``high``.

        Parameters
        ----------
        low, high : float or array_like
            The bounds.
        size : int or tuple of int
            The shape.
        """
        low, high = self._as_operands(low, high)
        shape = shape_of("uniform", size, low, high)
        check("uniform: expected finite low <= high", "Exchange them, or pass finite bounds", _is_interval, low, high)
        u = self._draw("rand", shape)
        is_standard = isinstance(low, int | float) and isinstance(high, int | float) and (low, high) == (0, 1)
        return u if is_standard else low + (high - low) * u

    def normal(self, loc: Any = 0.0, scale: Any = 1.0, size: Size = None) -> Array:
        """Draw from normal distributions: loc + scale z, differentiable in loc and scale.

        Parameters
        ----------
        loc, scale : float or array_like
            The mean and the standard deviation.
        size : int or tuple of int
            The shape.
        """
        loc, scale = self._as_operands(loc, scale)
        shape = shape_of("normal", size, loc, scale)
        check("normal: expected scale >= 0", "Pass a standard deviation, such as xp.exp(x)", _is_not_negative, scale)
        return loc + scale * self._draw("randn", shape)

    def integers(
        self, low: Any, high: Any = None, size: Size = None, dtype: Any = INT64, endpoint: bool = False
    ) -> Array:
        """Draw integers from low to high - 1 with equal probability, up to a relative error of 2**-32.

        Parameters
        ----------
        low, high : int or array_like
            The range [low, high), at most 2**32 wide; with one argument, [0, low).
        size : int or tuple of int
            The shape.
        dtype : dtype
            The dtype; default int64.
        endpoint : bool
            Whether ``high`` is included; default False.
        """
        bounds = self._as_operands(*((0, low) if high is None else (low, high)))
        for x in bounds:
            if isinstance(x, float) or (isinstance(x, Array) and x.dtype.kind not in "iu"):
                raise TypeError(f"integers: expected integers as low and high, got {describe(x)}. Cast with astype.")
        low, high = (to_dtype(x, INT64) if isinstance(x, Array) else x for x in bounds)
        shape, dtype, end = shape_of("integers", size, low, high), as_dtype(dtype), int(endpoint)
        limits = np.iinfo(dtype)
        last = min(int(limits.max), 2**63 - 1) + 1 - end

        def is_range(x: NumPyArray, y: NumPyArray) -> NumPyArray:
            is_narrow = y.astype(np.uint64) - x.astype(np.uint64) <= MAX_WIDTH - end
            return (x < y + end) & (x >= int(limits.min)) & (y <= last) & is_narrow

        check(
            f"integers: expected low {'<=' if end else '<'} high in {dtype.name}, and at most 2**32 integers",
            "Exchange them, pass another dtype, or join two draws: rng.integers(2**31) * 2**32 + rng.integers(2**32)",
            is_range,
            low,
            high,
        )
        return to_dtype(low + self._below(high - low + end, shape), dtype)

    def permutation(self, x: Any, axis: int = 0) -> Array:
        """Return an array with its elements along an axis in random order, or a permutation of 0 to x - 1.

        Parameters
        ----------
        x : int or array_like
            The array, whose slices along the axis stay whole; or the number of integers.
        axis : int
            The axis; default the first.
        """
        if isinstance(x, int | np.integer):
            return argsort(self._draw("random_words", (integer("permutation: x", x, 0),)))
        x, axis = self._with_axis("permutation", x, axis)
        return take(x, argsort(self._draw("random_words", (x.shape[axis],))), axis=axis)

    def choice(self, a: Any, size: Size = None, replace: bool = True, p: Any = None, axis: int = 0) -> Array:
        """Draw elements of an array.

        Parameters
        ----------
        a : int or array_like
            The array; or n for the integers 0 to n - 1.
        size : int or tuple of int, optional
            The shape of the draws, which replaces the axis; default one element.
        replace : bool
            Whether an element may be drawn again; default True.
        p : array_like, optional
            The probability of each element, with the sum 1, a constant; default all the same. Without replacement,
            they are those of the next element, relative to those that are left.
        axis : int
            The axis from which slices are drawn; default the first.
        """
        a, axis = (a, 0) if isinstance(a, int | np.integer) else self._with_axis("choice", a, axis)
        n = a.shape[axis] if isinstance(a, Array) else integer("choice: a", a, 0)
        shape = shape_of("choice", size, n)
        count, weights = math.prod(shape), np.empty(0) if p is None else value_of(p).astype(np.float64)
        if p is not None and (
            weights.shape != (n,) or not (weights >= 0).all() or abs(weights.sum() - 1) > MAX_ROUNDING
        ):
            raise ValueError(
                f"choice: expected p with {n} probabilities, one for each element, of the sum 1, got {describe(p)} of "
                f"the sum {weights.sum():.6g}. Pass p / sum(p), or use categorical with logits."
            )
        available = n if p is None else np.count_nonzero(weights)
        if count > available and not (replace and n):
            raise ValueError(
                f"choice: expected at most {available} draws of {n} elements{' without replacement' * (not replace)}"
                f"{'' if p is None else ', some of probability 0'}, got size {shape}. Pass more elements, or "
                "replace=True."
            )
        if p is None:
            index = self.integers(n, size=shape) if replace else reshape(self.permutation(n)[:count], shape)
        elif replace:
            sums = np.cumsum(weights)
            u = self._open_uniform((count,))
            index = reshape(searchsorted(from_numpy(self.backend, sums / sums[-1]), u, side="right"), shape)
        else:  # the first events of independent Poisson processes with these rates
            with np.errstate(divide="ignore"):
                times = -log(self._open_uniform((n,))) * from_numpy(self.backend, 1 / weights)
            index = reshape(argsort(times)[:count], shape)
        if not isinstance(a, Array):
            return index
        drawn = take(a, reshape(index, (-1,)), axis=axis)
        return reshape(drawn, (*a.shape[:axis], *shape, *a.shape[axis + 1 :]))

    def categorical(self, logits: Any, size: Size = None, *, axis: int = -1) -> Array:
        """Draw indices i with the probabilities softmax(logits)_i, by the largest logits_i - log(-log u_i).

        Parameters
        ----------
        logits : array_like
            The logarithms of the probabilities, up to a constant; -inf for 0.
        size : int or tuple of int, optional
            The shape, to which that of ``logits`` without the axis broadcasts.
        axis : int
            The axis of the categories; default the last.
        """
        x, axis = self._with_axis("categorical", logits, axis)
        x = moveaxis(numeric("categorical", FLOAT, x), axis, -1)
        shape, largest = shape_of("categorical", size, x[..., :1][..., 0]), max_of(x, axis=-1) if is_known(x) else 0.0
        check("categorical: expected a finite largest logit", "Pass logarithms, as xp.log(p)", np.isfinite, largest)
        return argmax(x - log(-log(self._open_uniform((*shape, x.shape[-1])))), axis=-1)

    def gamma(self, shape: Any, scale: Any = 1.0, size: Size = None) -> Array:
        """Draw from gamma distributions, with the density x**(shape - 1) exp(-x / scale), by NumPy on the CPU.

        It is differentiable in ``scale``; ``shape`` is a constant. In ``nl.jit`` it raises TypeError.

        Parameters
        ----------
        shape, scale : float or array_like
            The parameters.
        size : int or tuple of int
            The shape of the result.
        """
        shape, scale = self._as_operands(shape, scale)
        to = shape_of("gamma", size, shape, scale)
        check("gamma: expected shape >= 0", "Pass a positive number, such as xp.exp(x)", _is_not_negative, shape)
        check("gamma: expected scale >= 0", "Pass 1 / rate, or xp.exp(x)", _is_not_negative, scale)
        z = self._host_generator("gamma").standard_gamma(value_of(shape), to)
        return scale * from_numpy(self.backend, np.asarray(z, self.backend.default_dtype_name))

    def poisson(self, lam: Any = 1.0, size: Size = None) -> Array:
        """Draw numbers of events from Poisson distributions, int64, by NumPy on the CPU. In ``nl.jit``: TypeError.

        Parameters
        ----------
        lam : float or array_like
            The expected numbers, up to 2**30.
        size : int or tuple of int
            The shape.
        """
        (lam,) = self._as_operands(lam)
        to = shape_of("poisson", size, lam)
        way_out = "Pass a rate, such as xp.exp(x); for a large one, draw from rng.normal(lam, xp.sqrt(lam))"
        check("poisson: expected 0 <= lam <= 2**30", way_out, lambda x: (x >= 0) & (x <= MAX_RATE), lam)
        z = self._host_generator("poisson").poisson(value_of(lam), to)
        return from_numpy(self.backend, np.asarray(z, np.int64))


# --- parameters -----------------------------------------------------------------------------------------------------


def is_known(x: Any) -> bool:
    """Return whether the value of a parameter can be read at little cost: not that of an expression of variables."""
    if not isinstance(x, Array):
        return True
    is_stored = not x.is_live or isinstance(x.operand, Tensor)
    return is_stored and not is_inside() and bool(x.backend.runtime.has_values)


def value_of(x: Any) -> NumPyArray:
    """Return the value of a parameter as a NumPy array."""
    return x.numpy() if isinstance(x, Array) else np.asarray(x)


def _is_not_negative(x: NumPyArray) -> NumPyArray:
    return (x >= 0) & (x < math.inf)


def _is_interval(low: NumPyArray, high: NumPyArray) -> NumPyArray:
    return (low <= high) & (low > -math.inf) & (high < math.inf)


def check(expected: str, way_out: str, is_valid: Callable[..., Any], *parameters: Any) -> None:
    """Raise ValueError if parameters whose values are known do not satisfy a condition."""
    if all(map(is_known, parameters)):
        values = np.broadcast_arrays(*(np.atleast_1d(value_of(x)) for x in parameters))
        wrong = ~is_valid(*values)
        if wrong.any():
            raise ValueError(f"{expected}, got {' and '.join(str(x[wrong][0]) for x in values)}. {way_out}.")


def shape_of(name: str, size: Any, *parameters: Any) -> Shape:
    """Return the shape of a result: ``size``, to which the parameters broadcast; None: their common shape."""
    shape = broadcast_shapes(*(getattr(x, "shape", ()) for x in parameters))
    if size is None:
        return shape
    to = as_integers(f"{name}: size", size)
    if min(to, default=0) < 0 or not can_broadcast(shape, to):
        raise ValueError(f"{name}: expected a size to which {shape} broadcasts, the shape of the parameters, got {to}.")
    return to


def default_rng(seed: int | None = None) -> Generator:
    """Return a generator of random arrays on the current backend; that of ``be.array_api`` on its backend.

    Parameters
    ----------
    seed : int, optional
        The seed, from 0 to 2**64 - 1; default from the operating system.
    """
    return Generator(seed)


__all__ = ["Generator", "default_rng"]

if not TYPE_CHECKING:
    __getattr__ = module_getattr(__name__)
