"""What is an op?  One row of a table: its name, its value, its derivative.

This is the ground floor. A row says only what is true on every machine:

* ``run(xp, x, y, **attrs)`` is the value, in the words of the array-API standard. ``xp`` is handed in.
* ``grad(be, dz, z, x, y, **attrs)`` is the derivative: given the result ``z`` and its error ``dz = dE/dz`` it returns
  one op-tree per operand. ``be`` is handed in. ``None`` in place of the rule, or of one of its results, means *flat*:
  the derivative is zero everywhere it exists. Leaving the rule out altogether means that nobody has written it, and
  asking for the derivative raises.

No rule speaks of broadcasting: ``Autodiff`` repairs shapes once, at the edge. Everything else - backend methods, tree
building, evaluation, gradients, the stub, the docs and most tests - is derived from these rows.
Ops that are made of ops (``mean``, ``clip``, ``softmax`` ...) are functions of the backend, not rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

LN2 = math.log(2.0)
SAFELOG_FLOOR = math.exp(-50.0)

Shape = tuple[int, ...]
Axes = tuple[int, ...]
Box = tuple[tuple[int, int, int], ...]  # (start, count, step) for each axis


def missing(*_: Any, **__: Any) -> Any:
    """Stand in for a derivative that nobody has written."""
    raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Op:
    """One row of the table. Rows are compared by identity."""

    name: str  # the word in the op-tree: {'op': 'sub'}
    run: Callable[..., Any]
    grad: Callable[..., Any] | None = missing
    doc: str = ""
    method: str = ""  # the word on the backend: be.subtract; the name when empty
    arity: int = 1
    kind: str = "elementwise"  # how it may be run: elementwise, reduction, view, library or random
    shape: Callable[..., Shape] | None = None  # the shape rule; that of the kind when left out
    result: str = "same"  # its dtype: same as the operands', "float", "truth" (0 or 1, as floats), "index" or "given"
    joined: slice = field(default_factory=lambda: slice(None))  # the operands that are brought to one dtype first
    may_fail: bool = False  # whether it looks at values, and may refuse them
    domain: tuple[float, float] = (-2.0, 2.0)  # where tests sample the operands

    def __post_init__(self) -> None:
        if not self.method:
            object.__setattr__(self, "method", self.name)

    def __repr__(self) -> str:
        return f"<op {self.name}: {self.doc}>"


# --- shape rules: from the operands' shapes to the result's; ValueError says what does not fit ---------------------


def broadcast(*shapes: Shape, **_: Any) -> Shape:
    """Return the shape that all stretch to, axes matched from the last (array-API standard, broadcasting)."""
    out: list[int] = []
    ndim = max(map(len, shapes))
    padded = [(1,) * (ndim - len(shape)) + shape for shape in shapes]
    for axis, sizes in enumerate(zip(*padded, strict=True)):
        wide = {size for size in sizes if size != 1}
        if len(wide) > 1:
            raise ValueError(
                f"sizes {' and '.join(str(s) for s in sizes if s != 1)} on axis {axis} do not broadcast: "
                "they must be equal, or one of them 1"
            )
        out.append(wide.pop() if wide else 1)
    return tuple(out)


def axes_of(axis: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Return the axes as sorted numbers from 0; ``None`` is every axis."""
    if axis is None:
        return tuple(range(ndim))
    out = []
    for a in axis if isinstance(axis, tuple | list) else (axis,):
        if isinstance(a, bool) or not hasattr(a, "__index__"):
            raise TypeError(f"an axis is a whole number, a tuple of them or None; got {a!r}")
        a = a.__index__()
        if not -ndim <= a < ndim:
            raise IndexError(f"axis {a} is out of range: {ndim} dimensions have the axes {-ndim} to {ndim - 1}")
        out.append(a % ndim)
    if len(set(out)) != len(out):
        raise ValueError(f"axis {axis} names the same axis twice")
    return tuple(sorted(out))


def two_dims(shape: Shape) -> Shape:
    """Return the shape with at least two dimensions: (5,) is (5, 1) and () is (1, 1)."""
    return shape if len(shape) > 1 else ((*shape, 1, 1))[:2]


def reduced(shape: Shape, *, axis: Axes, keepdims: bool = True) -> Shape:
    """Return the shape after a reduction over some axes: each becomes 1, or goes when ``keepdims`` is false."""
    if keepdims:
        return tuple(1 if i in axis else n for i, n in enumerate(shape))
    return two_dims(tuple(n for i, n in enumerate(shape) if i not in axis))


def reduced_nonempty(shape: Shape, *, axis: Axes, keepdims: bool = True) -> Shape:
    """Return the shape after a reduction that has no value for nothing at all."""
    if 0 in [shape[a] for a in axis]:
        raise ValueError(f"there is no largest or smallest of nothing: axis {axis} of {shape} is empty")
    return reduced(shape, axis=axis, keepdims=keepdims)


def product(x: Shape, y: Shape) -> Shape:
    """(m, k), (k, n) -> (m, n)."""
    if len(x) != 2 or len(y) != 2:
        raise ValueError("dot takes two matrices; use `x @ y` for stacks of matrices")
    return stacked_product(x, y)


def stacked_product(x: Shape, y: Shape) -> Shape:
    """(..., m, k), (..., k, n) -> (..., m, n), the stacks broadcast."""
    if x[-1] != y[-2]:
        raise ValueError(
            f"the inner sizes differ: {x[-1]} columns meet {y[-2]} rows; is one of them to be transposed (.T)?"
        )
    return (*broadcast(x[:-2], y[:-2]), x[-2], y[-1]) if len(x) > 2 or len(y) > 2 else (x[0], y[1])


def c_strides(shape: Shape) -> tuple[int, ...]:
    """Return the strides, in elements, of an array whose last axis varies fastest."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def is_c(shape: Shape, strides: Sequence[float]) -> bool:
    """Tell whether the elements lie one after another; the stride of a single element does not matter."""
    return 0 in shape or all(n == 1 or s == c for n, s, c in zip(shape, strides, c_strides(shape), strict=True))


def permuted(shape: Shape, *, axes: Axes) -> Shape:
    """Return the sizes in the order of ``axes``."""
    if sorted(axes) != list(range(len(shape))):
        raise ValueError(f"axes {axes} must hold each of 0 to {len(shape) - 1} once")
    return tuple(shape[a] for a in axes)


def reshaped(shape: Shape, *, to: Shape) -> Shape:
    """Return the new shape: the same count of elements, at most one size -1 (worked out), two dimensions or more."""
    if to.count(-1) > 1:
        raise ValueError(f"only one size can be left to be worked out (-1); got {to}")
    if any(n < -1 for n in to):
        raise ValueError(f"sizes are whole numbers from 0, or one -1; got {to}")
    size, known = math.prod(shape), math.prod(n for n in to if n != -1)
    if -1 in to:
        if known == 0 or size % known:
            raise ValueError(f"{size} elements do not fit {to}: {size} is not a multiple of {known}")
        to = tuple(size // known if n == -1 else n for n in to)
    elif known != size:
        raise ValueError(f"{shape} has {size} elements, {to} has {known}; reshape keeps their count")
    return two_dims(to)


def stretched(shape: Shape, *, to: Shape) -> Shape:
    """Return ``to``, when the shape broadcasts to it."""
    if broadcast(shape, to) != to:
        raise ValueError(f"{shape} does not stretch to {to}")
    return to


def part(shape: Shape, *, index: Box) -> Shape:
    """Return the sizes of a box; ``index`` holds (start, count, step) for each axis."""
    return tuple(count for _, count, _ in index)


def joined_shape(*shapes: Shape, axis: int) -> Shape:
    """Return the shape of arrays laid end to end along an axis."""
    first = shapes[0]
    for number, shape in enumerate(shapes):
        if len(shape) != len(first) or any(
            m != n for i, (m, n) in enumerate(zip(first, shape, strict=True)) if i != axis
        ):
            raise ValueError(
                f"part 0 {first} and part {number} {shape} may differ along axis {axis} alone, where they are joined"
            )
    return (*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :])


def taken(x: Shape, indices: Shape, *, axis: int) -> Shape:
    """Return the shape with axis ``axis`` as long as there are indices."""
    return (*x[:axis], math.prod(indices), *x[axis + 1 :])


def put_back(x: Shape, indices: Shape, *, axis: int, size: int) -> Shape:
    """Return the shape with axis ``axis`` of length ``size`` again."""
    return (*x[:axis], size, *x[axis + 1 :])


def hot(indices: Shape, *, axis: int, nclass: int) -> Shape:
    """(n labels) -> (nclass, n) or (n, nclass); (0, 0) as long as the number of classes is not known."""
    n = math.prod(indices)
    return (0, 0) if not nclass else (nclass, n) if axis == 0 else (n, nclass)


def given(*_: Shape, to: Shape, **__: Any) -> Shape:
    """Return the shape that was asked for."""
    return to


SHAPES: dict[str, Callable[..., Shape]] = {"elementwise": broadcast, "reduction": reduced}


# --- dtype rules ---------------------------------------------------------------------------------------------------

HALVES = ("float16", "bfloat16")  # kept in 16 bits, and added up in float32
FLOATS = (*HALVES, "float32", "float64")
DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}  # bits: whole numbers up to 2**bits are exact
INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def bits(dtype: str) -> int:
    """Return how wide a dtype is."""
    return int(dtype.lstrip("buintfloa"))


def promote(x: str, y: str) -> str:
    """Return the dtype of x and y together: the wider float, a float before an int, a float or an int for both."""
    if x == y:
        return x
    if (x in FLOATS) != (y in FLOATS):
        return x if x in FLOATS else y
    if {x, y} == {*HALVES}:
        return "float32"
    narrow, wide = sorted((x, y), key=bits)
    if x in FLOATS or narrow[0] == wide[0]:
        return wide
    signed, unsigned = (x, y) if y[0] == "u" else (y, x)
    return f"int{min(64, max(bits(signed), 2 * bits(unsigned)))}"


def dtypes(op: Op, operands: Sequence[str | type], default: str, attrs: dict[str, Any]) -> tuple[str, str]:
    """Return (the dtype the operands are brought to, the dtype of the result).

    A number (its ``type`` stands in ``operands``) is weak: it takes the dtype of the tensors beside it.
    """
    joined = operands[op.joined]
    common = ""
    for dtype in joined:
        if isinstance(dtype, str):
            common = promote(common, dtype) if common else dtype
    if not common or (common not in FLOATS and (float in joined or op.result == "float")):
        common = default
    if op.result == "given":
        return attrs["to"], attrs["to"]
    if op.result == "index":
        return common, "int32"
    if op.result == "truth":
        return common, common if common in FLOATS else default
    return common, common


# --- derivatives that take more than a line ------------------------------------------------------------------------


def grad_pow(be: Any, dz: Any, z: Any, x: Any, y: Any) -> Any:
    """d(x^y) = y x^(y-1) dx + x^y log(x) dy; 0 where the factor in front is 0, whatever stands behind it."""
    if isinstance(y, int | float):
        return dz * (y * x ** (y - 1)) if y else None, None
    return dz * (y * x ** be.where(be.equal(y, 0), 1, y - 1)), dz * z * be.log(be.where(be.equal(z, 0), 1, x))


def grad_larger(be: Any, dz: Any, x: Any, y: Any) -> Any:
    """The error goes to the larger of two; equal tensors share it; a tie with a number goes to the number."""
    if isinstance(x, int | float) or isinstance(y, int | float):
        return dz * be.greater(x, y), dz * be.greater(y, x)
    tie = be.equal(x, y) * 0.5
    return dz * (be.greater(x, y) + tie), dz * (be.less(x, y) + tie)


def grad_extreme(be: Any, dz: Any, z: Any, x: Any, axis: Axes, keepdims: bool = True) -> Any:
    """The error goes to the extreme element; equal ones share it."""
    shape = reduced(x.shape, axis=axis)
    winner = be.equal(x, be.reshape(z, shape))
    many = be.sum(be.astype(winner, "float32") if x.info.dtype in HALVES else winner, axis=axis)
    return (be.reshape(dz, shape) / many * winner,)


def grad_concat(be: Any, dz: Any, z: Any, *parts: Any, axis: int) -> Any:
    """Each part gets its own stretch of the error."""
    out, start = [], 0
    for x in parts:
        index = tuple((start if i == axis else 0, n, 1) for i, n in enumerate(x.shape))
        out.append(be.build("slice", dz, index=index))
        start += x.shape[axis]
    return tuple(out)


def inverse(axes: Axes) -> tuple[int, ...]:
    """Return the permutation that undoes ``axes``."""
    return tuple(axes.index(i) for i in range(len(axes)))


# --- values that take more than a line -----------------------------------------------------------------------------


def accumulator(xp: Any, x: Any) -> Any:
    """Return the dtype in which sums of x are kept: float32 for halves, 64 bits for ints.

    Narrow unsigned ints are added up as int64, which wraps to the same bits: not every library adds uint64.
    """
    if xp.isdtype(x.dtype, "real floating"):
        return xp.float32 if xp.finfo(x.dtype).bits == 16 else x.dtype
    return x.dtype if xp.iinfo(x.dtype).bits == 64 else xp.int64


def boxed(index: Box) -> tuple[slice, ...]:
    """Return slices for (start, count, step); one that goes down to the first element ends at None."""

    def cut(start: int, count: int, step: int) -> slice:
        end = start + (count - 1) * step + (1 if step > 0 else -1)
        return slice(start, None if end < 0 else end, step) if count else slice(0, 0)

    return tuple(cut(*part) for part in index)


def run_argument(find: Callable[..., Any], xp: Any, x: Any, axis: Axes) -> Any:
    """Return the place of the first extreme element: along one axis, or in the flattened array when over several."""
    if len(axis) == 1:
        return find(x, axis=axis[0], keepdims=True)
    kept = tuple(a for a in range(x.ndim) if a not in axis)
    flat = xp.reshape(
        xp.permute_dims(x, kept + axis), (*(x.shape[a] for a in kept), math.prod(x.shape[a] for a in axis))
    )
    return find(flat, axis=-1)


def run_unslice(xp: Any, x: Any, *, index: Box, to: Shape) -> Any:
    """Return zeros with x in a box."""
    out = xp.zeros(to, dtype=x.dtype)
    out[boxed(index)] = x
    return out


def in_range(xp: Any, indices: Any, size: int, what: str = "index", below: bool = True) -> Any:
    """Return flat indices from 0; IndexError when one is out of range. ``below``: may they count from the end?"""
    flat = xp.astype(xp.reshape(indices, (-1,)), xp.int64)  # a narrow dtype might not hold the size
    if flat.shape[0]:
        low, high = int(xp.min(flat)), int(xp.max(flat))
        if low < (-size if below else 0) or high >= size:
            raise IndexError(out_of_range(what, high if high >= size else low, size, below))
    return xp.where(flat < 0, flat + size, flat) if below else flat


def out_of_range(what: str, bad: int | str, size: int, below: bool) -> str:
    """Return the words for an index that is out of range."""
    return f"{what} {bad} is out of range: there are {size}, from {-size if below else 0} to {size - 1}"


def run_take(xp: Any, x: Any, indices: Any, *, axis: int) -> Any:
    """Return the chosen slices of x along an axis."""
    return xp.take(x, in_range(xp, indices, x.shape[axis]), axis=axis)


def run_onehot(xp: Any, indices: Any, *, axis: int, nclass: int) -> Any:
    """Return 1 where the class is the label, else 0."""
    labels = in_range(xp, indices, nclass, "label", below=False)
    classes = xp.arange(nclass, dtype=labels.dtype)
    return classes[:, None] == labels[None, :] if axis == 0 else labels[:, None] == classes[None, :]


def run_scatter(xp: Any, x: Any, indices: Any, *, axis: int, size: int) -> Any:
    """Return zeros of length ``size`` along an axis, to which each slice of x was added at its index.

    Slices for one place are brought side by side, and added up over 1, 2, 4 ... of them: log2(n) rounds.
    """
    places = in_range(xp, indices, size)
    order, every = xp.argsort(places, stable=True), xp.arange(size, dtype=places.dtype)
    places = xp.take(places, order, axis=0)
    x = xp.astype(xp.moveaxis(xp.take(x, order, axis=axis), axis, 0), accumulator(xp, x))
    step = 1
    while step < x.shape[0] and xp.any(same := places[step:] == places[:-step]):
        same = xp.reshape(same, (-1,) + (1,) * (x.ndim - 1))
        more = xp.where(same, x[:-step, ...], xp.zeros_like(x[:-step, ...]))
        x, step = xp.concat([x[:step, ...], x[step:, ...] + more]), 2 * step
    ends = xp.searchsorted(places, every, side="right")  # after the last slice of each place, which has the sum
    x = xp.concat([xp.zeros((1, *x.shape[1:]), dtype=x.dtype), x])
    some = xp.searchsorted(places, every) < ends
    return xp.moveaxis(xp.take(x, xp.where(some, ends, xp.zeros_like(ends)), axis=0), 0, axis)


def run_pow(xp: Any, x: Any, y: Any) -> Any:
    """Return x^y; ValueError for whole numbers with a negative power, which some libraries make 0."""
    if xp.isdtype(y.dtype, "signed integer") and xp.any(y < 0):
        raise ValueError("Integers to negative integer powers are not allowed: use floats, be.astype(x, 'float32')")
    return x**y


def run_shift(xp: Any, x: Any, y: Any, *, value: bool) -> Any:
    """Return x times the power of two nearest to y (AP2), or x times 2^y."""
    return x * (xp.sign(y) * 2.0 ** xp.round(xp.log2(xp.abs(y))) if value else 2.0**y)


# --- the table -----------------------------------------------------------------------------------------------------

POSITIVE = (0.3, 3.0)
REDUCTION: dict[str, Any] = {"kind": "reduction"}
EXTREME: dict[str, Any] = {"shape": reduced_nonempty}
VIEW: dict[str, Any] = {"kind": "view", "joined": slice(0, 1)}
LIBRARY: dict[str, Any] = {"kind": "library"}
GATHER: dict[str, Any] = {"kind": "library", "joined": slice(0, 1), "may_fail": True}

# fmt: off
TABLE: tuple[Op, ...] = (
    # --- unary ---
    Op("neg", lambda xp, x: -x,
       lambda be, dz, z, x: (-dz,), "-x", "negative"),
    Op("abs", lambda xp, x: xp.abs(x),
       lambda be, dz, z, x: (dz * be.sgn(x),), "|x|", "absolute"),
    Op("sgn", lambda xp, x: xp.sign(x),
       None, "the sign of x: -1, 0 or 1"),
    Op("sqr", lambda xp, x: x * x,
       lambda be, dz, z, x: (dz * (2 * x),), "x^2", "square"),
    Op("sqrt", lambda xp, x: xp.sqrt(x),
       lambda be, dz, z, x: (dz * 0.5 / z,), "x^(1/2)", result="float", domain=POSITIVE),
    Op("exp", lambda xp, x: xp.exp(x),
       lambda be, dz, z, x: (dz * z,), "e^x", result="float"),
    Op("exp2", lambda xp, x: 2.0**x,
       lambda be, dz, z, x: (dz * (z * LN2),), "2^x", result="float"),
    Op("log", lambda xp, x: xp.log(x),
       lambda be, dz, z, x: (dz / x,), "ln x", result="float", domain=POSITIVE),
    Op("log2", lambda xp, x: xp.log2(x),
       lambda be, dz, z, x: (dz / (x * LN2),), "log2 x", result="float", domain=POSITIVE),
    Op("safelog", lambda xp, x: xp.maximum(xp.log(xp.maximum(x, 0.0)), -50.0),
       lambda be, dz, z, x: (dz * (above := be.greater(x, SAFELOG_FLOOR)) / be.where(above, x, 1),),
       "ln max(x, e^-50)", result="float", domain=POSITIVE),
    Op("sig", lambda xp, x: 1.0 / (1.0 + xp.exp(-x)),
       lambda be, dz, z, x: (dz * (z * (1 - z)),), "1 / (1 + e^-x)", result="float"),
    Op("tanh", lambda xp, x: xp.tanh(x),
       lambda be, dz, z, x: (dz * (1 - z * z),), "the hyperbolic tangent of x", result="float"),
    Op("rint", lambda xp, x: xp.round(x),
       None, "the whole number nearest to x; halves go to the even one"),
    Op("finite", lambda xp, x: xp.isfinite(x),
       None, "1 where x is neither infinite nor NaN, else 0", result="truth"),
    Op("cast", lambda xp, x, to: xp.astype(x, getattr(xp, to, xp.float32), copy=False),  # bfloat16: rounded next
       lambda be, dz, z, x, to: (be.astype(dz, x.info.dtype) if to in FLOATS else None,),
       "x in another dtype", "astype", result="given", joined=slice(0)),
    Op("stop_gradient", lambda xp, x: x,
       None, "x, a constant to every derivative"),
    # --- binary ---
    Op("add", lambda xp, x, y: x + y,
       lambda be, dz, z, x, y: (dz, dz), "x + y", arity=2),
    Op("sub", lambda xp, x, y: x - y,
       lambda be, dz, z, x, y: (dz, -dz), "x - y", "subtract", 2),
    Op("mul", lambda xp, x, y: x * y,
       lambda be, dz, z, x, y: (dz * y, dz * x), "x * y", "multiply", 2),
    Op("div", lambda xp, x, y: x / y,
       lambda be, dz, z, x, y: (dz / y, -(dz * z) / y), "x / y", "divide", 2, result="float", domain=POSITIVE),
    Op("pow", run_pow,
       grad_pow, "x^y", "power", 2, domain=POSITIVE),
    Op("maximum", lambda xp, x, y: xp.maximum(x, y),
       lambda be, dz, z, x, y: grad_larger(be, dz, x, y), "the larger of x and y", arity=2),
    Op("minimum", lambda xp, x, y: xp.minimum(x, y),
       lambda be, dz, z, x, y: grad_larger(be, dz, y, x), "the smaller of x and y", arity=2),
    Op("shift", run_shift,
       lambda be, dz, z, x, y, value: (be.shift(dz, y, value), None),
       "x times the power of two nearest to y, or x * 2^y when value is false", arity=2, result="float"),
    Op("eq", lambda xp, x, y: x == y, None, "1 where x equals y, else 0", "equal", 2, result="truth"),
    Op("ne", lambda xp, x, y: x != y, None, "1 where x differs from y, else 0", "not_equal", 2, result="truth"),
    Op("lt", lambda xp, x, y: x < y, None, "1 where x < y, else 0", "less", 2, result="truth"),
    Op("le", lambda xp, x, y: x <= y, None, "1 where x <= y, else 0", "less_equal", 2, result="truth"),
    Op("gt", lambda xp, x, y: x > y, None, "1 where x > y, else 0", "greater", 2, result="truth"),
    Op("ge", lambda xp, x, y: x >= y, None, "1 where x >= y, else 0", "greater_equal", 2, result="truth"),
    # --- ternary ---
    Op("where", lambda xp, c, x, y: xp.where(c != 0, x, y),
       lambda be, dz, z, c, x, y: (None, be.where(c, dz, 0), be.where(c, 0, dz)),
       "x where c is not 0, else y", arity=3, joined=slice(1, None)),
    # --- reductions, over one axis, several or all ---
    Op("sum", lambda xp, x, axis, keepdims=True: xp.sum(x, axis=axis, keepdims=keepdims, dtype=accumulator(xp, x)),
       lambda be, dz, z, x, axis, keepdims=True: (be.reshape(dz, reduced(x.shape, axis=axis)),),
       "the sum of the elements", **REDUCTION),
    Op("max", lambda xp, x, axis, keepdims=True: xp.max(x, axis=axis, keepdims=keepdims),
       grad_extreme, "the largest element", **REDUCTION, **EXTREME),
    Op("min", lambda xp, x, axis, keepdims=True: xp.min(x, axis=axis, keepdims=keepdims),
       grad_extreme, "the smallest element", **REDUCTION, **EXTREME),
    Op("argmax", lambda xp, x, axis, keepdims=True: run_argument(xp.argmax, xp, x, axis),
       None, "the place of the largest element, the first of equals", result="index", **LIBRARY, **EXTREME),
    Op("argmin", lambda xp, x, axis, keepdims=True: run_argument(xp.argmin, xp, x, axis),
       None, "the place of the smallest element, the first of equals", result="index", **LIBRARY, **EXTREME),
    # --- products ---
    Op("dot", lambda xp, x, y: x @ y,
       lambda be, dz, z, x, y: (be.dot(dz, y.T), be.dot(x.T, dz)),
       "the product of two matrices", arity=2, shape=product, **LIBRARY),
    Op("matmul", lambda xp, x, y: x @ y,
       lambda be, dz, z, x, y: (dz @ y.T, x.T @ dz),
       "the products of two stacks of matrices", arity=2, shape=stacked_product, **LIBRARY),
    # --- views: the same elements in another order or shape ---
    Op("transpose", lambda xp, x, axes: xp.permute_dims(x, axes),
       lambda be, dz, z, x, axes: (be.transpose(dz, inverse(axes)),),
       "x with its axes in another order", shape=permuted, **VIEW),
    Op("reshape", lambda xp, x, to: xp.reshape(x, to),
       lambda be, dz, z, x, to: (be.reshape(dz, x.shape),), "x in another shape", shape=reshaped, **VIEW),
    Op("broadcast", lambda xp, x, to: xp.broadcast_to(x, to),
       lambda be, dz, z, x, to: (dz,), "x repeated to fill a shape", "broadcast_to", shape=stretched, **VIEW),
    Op("slice", lambda xp, x, index: x[boxed(index)],
       lambda be, dz, z, x, index: (be.build("unslice", dz, index=index, to=x.shape),),
       "a box of x: (start, count, step) for each axis", shape=part, **VIEW),
    # --- gathering and joining ---
    Op("unslice", run_unslice,
       lambda be, dz, z, x, index, to: (be.build("slice", dz, index=index),),
       "zeros with x in a box: the derivative of slice", shape=given, **LIBRARY),
    Op("concat", lambda xp, *parts, axis: xp.concat(parts, axis=axis),
       grad_concat, "the parts laid end to end along an axis", arity=-1, shape=joined_shape, **LIBRARY),
    Op("take", run_take,
       lambda be, dz, z, x, indices, axis: (be.build("scatter", dz, indices, axis=axis, size=x.shape[axis]), None),
       "the slices of x with the given indices along an axis", arity=2, shape=taken, **GATHER),
    Op("scatter", run_scatter,
       lambda be, dz, z, x, indices, axis, size: (be.take(dz, indices, axis), None),
       "zeros to which the slices of x are added at their indices: the derivative of take",
       arity=2, shape=put_back, **GATHER),
    Op("onehot", run_onehot,
       None, "1 in the row (axis 0) or the column (axis 1) of each label, else 0",
       shape=hot, result="truth", **GATHER),
    # --- random: the operand is the draw, so that one node is one draw ---
    Op("rand", lambda xp, draw, to: draw.uniform(to),
       None, "random numbers, uniform in [0, 1)", kind="random", shape=given),
    Op("randn", lambda xp, draw, to: draw.normal(to),
       None, "random numbers, normal with mean 0 and deviation 1", kind="random", shape=given),
    # --- the two that hold a tree together ---
    Op("assign", lambda xp, x, y: y,
       missing, "y, written into the tensor x", arity=2, kind="tie", joined=slice(0, 1)),
    Op("pair", lambda xp, *xs: xs,
       missing, "two operands in the place of one", arity=-1, kind="tie"),
)
# fmt: on

OPS: dict[str, Op] = {op.name: op for op in TABLE}
