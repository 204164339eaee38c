"""The functions of the op table that are longer than a line: shape rules, forward functions, and gradient rules.

Shape rules compute the shape of the result from those of the operands, and raise ValueError if these do not match.
Stride rules are those of views; strides are in elements, and NaN if unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from neonlite.typing import HALF_DTYPES, BackendBase, Namespace, NativeArray, Operand, OperandLike

# --- shape rules and stride rules ---

Shape = tuple[int, ...]
Axes = tuple[int, ...]
Strides = tuple[float, ...]
SliceSpec = tuple[tuple[int, int, int], ...]  # (start, count, step) for each axis


def broadcast_shapes(*shapes: Shape, **_: object) -> Shape:
    """Return the shape to which operands broadcast, by the rules of the array-API standard."""
    out: list[int] = []
    ndim = max(map(len, shapes))
    padded = [(1,) * (ndim - len(shape)) + shape for shape in shapes]
    for axis, sizes in enumerate(zip(*padded, strict=True)):
        distinct = {size for size in sizes if size != 1}
        if len(distinct) > 1:
            raise ValueError(
                f"sizes {' and '.join(str(s) for s in sizes if s != 1)} on axis {axis} do not broadcast: "
                "expected equal sizes, or one of size 1"
            )
        out.append(distinct.pop() if distinct else 1)
    return tuple(out)


def normalize_axes(axis: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Return the axes as sorted non-negative integers; ``None`` means all axes."""
    if axis is None:
        return tuple(range(ndim))
    out = []
    for a in axis if isinstance(axis, tuple | list) else (axis,):
        if isinstance(a, bool) or not hasattr(a, "__index__"):
            raise TypeError(f"expected an integer, a tuple of integers or None as axis, got {a!r}")
        a = a.__index__()
        if not -ndim <= a < ndim:
            raise IndexError(f"axis {a} is out of range for {ndim} dimensions: expected {-ndim} to {ndim - 1}")
        out.append(a % ndim)
    if len(set(out)) != len(out):
        raise ValueError(f"expected distinct axes, got {axis}")
    return tuple(sorted(out))


def at_least_2d(shape: Shape) -> Shape:
    """Return the shape with axes of size 1 appended up to two dimensions: (5,) -> (5, 1). NumPy prepends them."""
    return shape if len(shape) > 1 else ((*shape, 1, 1))[:2]


def reduction_shape(shape: Shape, *, axis: Axes, keepdims: bool = True) -> Shape:
    """Return the shape after a reduction: reduced axes have size 1, or are removed if ``keepdims`` is False."""
    if keepdims:
        return tuple(1 if i in axis else n for i, n in enumerate(shape))
    return at_least_2d(tuple(n for i, n in enumerate(shape) if i not in axis))


def nonempty_reduction_shape(shape: Shape, *, axis: Axes, keepdims: bool = True) -> Shape:
    """Return the shape after a reduction that has no identity element, such as max."""
    if 0 in [shape[a] for a in axis]:
        raise ValueError(f"expected a non-empty axis, got axis {axis} of shape {shape}")
    return reduction_shape(shape, axis=axis, keepdims=keepdims)


def dot_shape(x: Shape, y: Shape) -> Shape:
    """(m, k), (k, n) -> (m, n)."""
    if len(x) != 2 or len(y) != 2:
        raise ValueError(f"expected two matrices, got shapes {x} and {y}. Use x @ y for batches of matrices.")
    return matmul_shape(x, y)


def matmul_shape(x: Shape, y: Shape) -> Shape:
    """(..., m, k), (..., k, n) -> (..., m, n); the batch axes broadcast."""
    if x[-1] != y[-2]:
        raise ValueError(f"expected equal inner sizes, got {x[-1]} columns and {y[-2]} rows. Transpose one with .T.")
    return (*broadcast_shapes(x[:-2], y[:-2]), x[-2], y[-1]) if len(x) > 2 or len(y) > 2 else (x[0], y[1])


def transpose_shape(shape: Shape, *, axes: Axes) -> Shape:
    """Return the shape with its axes permuted."""
    if sorted(axes) != list(range(len(shape))):
        raise ValueError(f"expected a permutation of 0 to {len(shape) - 1} as axes, got {axes}")
    return tuple(shape[a] for a in axes)


def reshape_shape(shape: Shape, *, to: Shape) -> Shape:
    """Return the new shape, of at least two dimensions; a size of -1 is inferred."""
    if to.count(-1) > 1:
        raise ValueError(f"expected at most one size of -1, got {to}")
    if any(n < -1 for n in to):
        raise ValueError(f"expected sizes >= 0, or one -1, got {to}")
    size, known = math.prod(shape), math.prod(n for n in to if n != -1)
    if -1 in to:
        if known == 0 or size % known:
            raise ValueError(f"cannot reshape {size} elements to {to}: {size} is not a multiple of {known}")
        to = tuple(size // known if n == -1 else n for n in to)
    elif known != size:
        raise ValueError(f"expected a shape with {size} elements, as {shape} has, got {to} with {known}")
    return at_least_2d(to)


def broadcast_to_shape(shape: Shape, *, to: Shape) -> Shape:
    """Return ``to``. Raises ValueError if the shape does not broadcast to it."""
    if broadcast_shapes(shape, to) != to:
        raise ValueError(f"cannot broadcast {shape} to {to}")
    return to


def slice_shape(shape: Shape, *, index: SliceSpec) -> Shape:
    """Return the shape of a strided slice, which is the count along each axis."""
    return tuple(count for _, count, _ in index)


def concat_shape(*shapes: Shape, axis: int) -> Shape:
    """Return the shape of arrays concatenated along an axis."""
    first = shapes[0]
    for number, shape in enumerate(shapes):
        if len(shape) != len(first) or any(
            m != n for i, (m, n) in enumerate(zip(first, shape, strict=True)) if i != axis
        ):
            raise ValueError(
                f"expected shapes that differ along axis {axis} only, got {first} for operand 0 and {shape} for "
                f"operand {number}"
            )
    return (*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :])


def take_shape(x: Shape, indices: Shape, *, axis: int) -> Shape:
    """Return the shape with one slice per index along ``axis``."""
    return (*x[:axis], math.prod(indices), *x[axis + 1 :])


def scatter_add_shape(x: Shape, indices: Shape, *, axis: int, size: int) -> Shape:
    """Return the shape with ``size`` slices along ``axis``."""
    return (*x[:axis], size, *x[axis + 1 :])


def onehot_shape(indices: Shape, *, axis: int, nclass: int) -> Shape:
    """Labels (n) -> (nclass, n) or (n, nclass); (0, 0) while the number of classes is unknown."""
    n = math.prod(indices)
    return (0, 0) if not nclass else (nclass, n) if axis == 0 else (n, nclass)


def first_shape(x: Shape, *_: Shape, **__: object) -> Shape:
    """Return the shape of the first operand."""
    return x


def explicit_shape(*_: Shape, to: Shape, **__: object) -> Shape:
    """Return the shape given as the attribute ``to``."""
    return to


# --- strides ---------------------------------------------------------------------------------------------------------


def contiguous_strides(shape: Shape) -> tuple[int, ...]:
    """Return the strides, in elements, of a C-contiguous array."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def is_contiguous(shape: Shape, strides: Sequence[float]) -> bool:
    """Return whether an array is C-contiguous; the strides of axes of size 1 are ignored."""
    return 0 in shape or all(
        n == 1 or s == c for n, s, c in zip(shape, strides, contiguous_strides(shape), strict=True)
    )


def is_transposed(shape: Shape, strides: Sequence[float]) -> bool:
    """Return whether neighboring elements in memory lie along another axis than the last one."""
    axes = [(n, s) for n, s in zip(shape, strides, strict=True) if n > 1]
    return len(axes) > 1 and all(s >= 1 for _, s in axes) and axes[-1][1] > 1 and any(s == 1 for _, s in axes)


def memory_span(shape: Shape, strides: Shape, offset: int) -> tuple[int, int]:
    """Return the range of offsets of the elements, in elements: (first, last + 1)."""
    if 0 in shape:
        return offset, offset
    ends = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    return offset + sum(e for e in ends if e < 0), offset + sum(e for e in ends if e > 0) + 1


def transpose_strides(strides: Strides, x: Shape, z: Shape, *, axes: Axes) -> Strides:
    """Return the strides with the axes permuted."""
    return tuple(strides[a] for a in axes)


def reshape_strides(strides: Strides, x: Shape, z: Shape, **_: object) -> Strides:
    """Return the strides of shape x reshaped to z; NaN if no view has this shape."""
    return find_view_strides(strides, x, z) or (math.nan,) * len(z)


def find_view_strides(strides: Strides, x: Shape, z: Shape) -> Strides | None:
    """Return the strides of a view of shape z of an array of shape x; None if it would have to be copied."""
    if is_contiguous(x, strides):
        return contiguous_strides(z)
    old, new = [pair for pair in zip(x, strides, strict=True) if pair[0] != 1], [n for n in z if n != 1]
    found: list[float] = []
    while old:  # from the last axis, the axes of both shapes with the same number of elements
        (size, step), n = old.pop(), 1
        while (new and n < size) or (old and n > size):
            if n < size:
                found.append(step * n)
                n *= new.pop()
            else:
                outer, outer_step = old.pop()
                if outer_step != step * size:
                    return None
                size *= outer
    steps = iter(reversed(found))
    return tuple(next(steps) if n != 1 else 1 for n in z)


def broadcast_strides(strides: Strides, x: Shape, z: Shape, **_: object) -> Strides:
    """Return the strides of shape x broadcast to z: 0 for the axes along which it is repeated."""
    repeated = (0.0,) * (len(z) - len(x))
    return repeated + tuple(s if n != 1 else 0.0 for n, s in zip(x, strides, strict=True))


def slice_strides(strides: Strides, x: Shape, z: Shape, *, index: SliceSpec) -> Strides:
    """Return the strides of a strided slice."""
    return tuple(s * step for s, (_, _, step) in zip(strides, index, strict=True))


def can_broadcast(value: Shape, target: Shape) -> bool:
    """Return whether a value of this shape broadcasts to the target's shape."""
    try:
        return broadcast_shapes(value, target) == target
    except ValueError:
        return False


Gradients: TypeAlias = "tuple[Operand | None, ...]"  # one for each operand; None for a gradient of zero


# --- forward functions: ``xp`` is the array namespace of the operands ---


def accumulation_dtype(xp: Namespace, x: NativeArray) -> Any:
    """Return the dtype in which x is summed: float32 for 16-bit floats, 64 bits for integers.

    Smaller unsigned integers are summed as int64, which wraps to the same bits, as not every library sums uint64.
    """
    if xp.isdtype(x.dtype, "real floating"):
        return xp.float32 if xp.finfo(x.dtype).bits == 16 else x.dtype
    return x.dtype if xp.iinfo(x.dtype).bits == 64 else xp.int64


def widen_half(be: BackendBase, x: Operand) -> Operand:
    """Return an operand of 16-bit floats cast to float32, in which they are summed; any other operand unchanged."""
    info: Any = getattr(x, "info", None)  # a scalar has none
    return be.astype(x, "float32") if info is not None and info.dtype in HALF_DTYPES else x


@lru_cache(1 << 12)  # plans take views of tensors in each run
def to_slices(index: SliceSpec) -> tuple[slice, ...]:
    """Return the Python slices of a slice specification."""

    def to_slice(start: int, count: int, step: int) -> slice:
        stop = start + (count - 1) * step + (1 if step > 0 else -1)
        return slice(start, None if stop < 0 else stop, step) if count else slice(0, 0)  # None: down to index 0

    return tuple(to_slice(*spec) for spec in index)


def run_sum(xp: Namespace, x: NativeArray, axis: Axes, keepdims: bool = True) -> NativeArray:
    """Return the sum over some axes, accumulated in ``accumulation_dtype``."""
    return xp.sum(x, axis=axis, keepdims=keepdims, dtype=accumulation_dtype(xp, x))


def run_arg_reduction(arg_fn: Callable[..., Any], xp: Namespace, x: NativeArray, axis: Axes) -> NativeArray:
    """Return the index of the first extremum along one axis, or along several axes flattened."""
    if len(axis) == 1:
        return arg_fn(x, axis=axis[0], keepdims=True)
    kept_axes = tuple(a for a in range(x.ndim) if a not in axis)
    flattened = xp.reshape(
        xp.permute_dims(x, kept_axes + axis), (*(x.shape[a] for a in kept_axes), math.prod(x.shape[a] for a in axis))
    )
    return arg_fn(flattened, axis=-1)


def run_slice_backward(xp: Namespace, x: NativeArray, *, index: SliceSpec, to: Shape) -> NativeArray:
    """Return zeros with x written into a strided slice."""
    out = xp.zeros(to, dtype=x.dtype)
    out[to_slices(index)] = x
    return out


def normalize_indices(
    xp: Namespace, indices: NativeArray, size: int, kind: str = "index", allow_negative: bool = True
) -> NativeArray:
    """Return flat non-negative int64 indices. Raises IndexError if one is out of range."""
    flat = xp.astype(xp.reshape(indices, (-1,)), xp.int64)  # a smaller dtype might not hold the size
    if flat.shape[0]:
        low, high = int(xp.min(flat)), int(xp.max(flat))
        if low < (-size if allow_negative else 0) or high >= size:
            raise IndexError(index_error_message(kind, high if high >= size else low, size, allow_negative))
    return xp.where(flat < 0, flat + size, flat) if allow_negative else flat


def index_error_message(kind: str, index: int | str, size: int, allow_negative: bool) -> str:
    """Return the message for an index that is out of range."""
    return f"{kind} {index} is out of range for size {size}: expected {-size if allow_negative else 0} to {size - 1}"


def run_take(xp: Namespace, x: NativeArray, indices: NativeArray, *, axis: int) -> NativeArray:
    """Return the slices of x at the given indices along an axis."""
    return xp.take(x, normalize_indices(xp, indices, x.shape[axis]), axis=axis)


def run_onehot(xp: Namespace, indices: NativeArray, *, axis: int, nclass: int) -> NativeArray:
    """Return True where the class is the label."""
    labels = normalize_indices(xp, indices, nclass, "label", allow_negative=False)
    classes = xp.arange(nclass, dtype=labels.dtype)
    return classes[:, None] == labels[None, :] if axis == 0 else labels[:, None] == classes[None, :]


def run_scatter_add(xp: Namespace, x: NativeArray, indices: NativeArray, *, axis: int, size: int) -> NativeArray:
    """Return zeros with ``size`` slices along an axis, to which each slice of x is added at its index.

    The slices are sorted by index. A segmented prefix sum in log2(n) rounds then adds up the slices of each index, so
    the last slice of an index holds their sum.
    """
    flat = normalize_indices(xp, indices, size)
    order, all_indices = xp.argsort(flat, stable=True), xp.arange(size, dtype=flat.dtype)
    sorted_indices = xp.take(flat, order, axis=0)
    x = xp.astype(xp.moveaxis(xp.take(x, order, axis=axis), axis, 0), accumulation_dtype(xp, x))
    step = 1
    while step < x.shape[0] and xp.any(same := sorted_indices[step:] == sorted_indices[:-step]):
        same = xp.reshape(same, (-1,) + (1,) * (x.ndim - 1))
        more = xp.where(same, x[:-step, ...], xp.zeros_like(x[:-step, ...]))
        x, step = xp.concat([x[:step, ...], x[step:, ...] + more]), 2 * step
    # 1 + the position of the last slice of each index
    last_row = xp.searchsorted(sorted_indices, all_indices, side="right")
    x = xp.concat([xp.zeros((1, *x.shape[1:]), dtype=x.dtype), x])
    has_values = xp.searchsorted(sorted_indices, all_indices) < last_row
    return xp.moveaxis(xp.take(x, xp.where(has_values, last_row, xp.zeros_like(last_row)), axis=0), 0, axis)


def run_pow(xp: Namespace, x: NativeArray, y: NativeArray) -> NativeArray:
    """Return x^y. Raises ValueError for integers to a negative power, for which some libraries return 0."""
    if xp.isdtype(y.dtype, "signed integer") and xp.any(y < 0):
        raise ValueError(
            "expected powers >= 0 for integers, got negative integer powers. "
            "Cast x to a float with be.astype(x, 'float32')."
        )
    return x**y


def run_floor_divide(xp: Namespace, x: NativeArray, y: NativeArray) -> NativeArray:
    """Return x / y rounded down. Some libraries abort on integers divided by 0 or -1: the results are 0 and -x."""
    if xp.isdtype(x.dtype, "real floating"):
        return xp.floor_divide(x, y)
    quotient, is_minus_one = xp.floor_divide(x, safe_divisor(xp, y)), is_negative_one(xp, y)
    return xp.where(y == 0, xp.zeros_like(quotient), xp.where(is_minus_one, -x, quotient))


def run_remainder(xp: Namespace, x: NativeArray, y: NativeArray) -> NativeArray:
    """Return the remainder of x / y, with the sign of y, also where it is 0; 0 for integers where y is 0 or -1."""
    if not xp.isdtype(y.dtype, "real floating"):
        return xp.remainder(x, safe_divisor(xp, y))
    z = xp.remainder(x, y)
    return xp.where(z == 0, xp.copysign(z, y), z)


def is_negative_one(xp: Namespace, y: NativeArray) -> NativeArray:
    """Return where integers are -1: nowhere for unsigned integers."""
    return y == -1 if xp.isdtype(y.dtype, "signed integer") else xp.zeros_like(y) != 0


def safe_divisor(xp: Namespace, y: NativeArray) -> NativeArray:
    """Return integers with 1 instead of 0 and -1."""
    return xp.where((y == 0) | is_negative_one(xp, y), xp.ones_like(y), y)


def run_signbit(xp: Namespace, x: NativeArray) -> NativeArray:
    """Return whether the sign bit is set, also of -0.0."""
    return xp.signbit(x) if xp.isdtype(x.dtype, "real floating") else x < 0


# coefficients of erf(x) / x in x^2 for |x| <= 0.46875, and of exp(x^2) (1 - erf(x)) in x for larger x, highest first
ERF_SMALL = (
    (1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2, 3.77485237685302021e2, 3.20937758913846947e3),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3),
)
ERF_LARGE = (
    (
        *(2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1),
        *(2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3),
        1.23033935479799725e3,
    ),
    (
        *(1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3),
        *(3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3),
    ),
)


def run_erf(xp: Namespace, x: NativeArray) -> NativeArray:
    """Return the error function: that of the library if it has one, else two rational approximations.

    W. J. Cody, "Rational Chebyshev approximations for the error function", Mathematics of Computation 23 (1969).
    """
    if erf := getattr(xp, "erf", None):
        return erf(x)
    if xp.finfo(x.dtype).bits == 16:
        return xp.astype(run_erf(xp, xp.astype(x, xp.float32)), x.dtype)

    size = xp.minimum(xp.abs(x), 6.0)  # erf(6) rounds to 1
    square = size * size
    large = 1 - xp.exp(-square) * (polynomial(ERF_LARGE[0], size) / polynomial(ERF_LARGE[1], size))
    small = size * (polynomial(ERF_SMALL[0], square) / polynomial(ERF_SMALL[1], square))
    return xp.copysign(xp.where(size <= 0.46875, small, large), x)


def polynomial(coefficients: tuple[float, ...], x: NativeArray) -> NativeArray:
    """Return a polynomial of x by Horner's rule; ``coefficients`` are those of the highest power first."""
    y = coefficients[0] * x + coefficients[1]
    for c in coefficients[2:]:
        y = y * x + c
    return y


def run_shift(xp: Namespace, x: NativeArray, y: NativeArray, *, value: bool) -> NativeArray:
    """Return x times the power of two nearest to y (AP2), or x times 2^y."""
    return x * (xp.sign(y) * 2.0 ** xp.round(xp.log2(xp.abs(y))) if value else 2.0**y)


# --- gradient rules ---


def build_variadic(be: Any, op: str, first: Operand, *rest: Operand, **attrs: Any) -> Any:
    """Return a node of an op of any number of operands."""
    others = list(rest)
    while len(others) > 1:
        others[-2:] = [be.build("pair", *others[-2:])]
    return be.build(op, first, *others, **attrs)


def grad_pow(be: BackendBase, dz: Operand, z: Operand, x: Any, y: Any) -> Gradients:
    """d(x^y) = y x^(y-1) dx + x^y log(x) dy; the first term is 0 where y = 0, the second where x^y = 0 or x = y = 0."""
    if isinstance(y, int | float):
        return dz * (y * (x if y == 2 else x ** (y - 1))) if y else None, None
    is_zero = be.where(be.equal(y, 0), be.equal(x, 0), be.equal(z, 0))  # where the gradient with respect to y is 0
    is_regular = be.finite(x) * be.not_equal(x, 0)
    base = be.where(be.logical_or(be.not_equal(y, 0), is_regular), x, 1)  # so that the first term is not 0 * inf
    return dz * (y * base ** (y - 1)), dz * z * be.log(be.where(is_zero, 1, x))


def grad_hypot(be: BackendBase, dz: Operand, z: Operand, x: OperandLike, y: OperandLike) -> Gradients:
    """Return dz x / z and dz y / z; 0 at x = y = 0, a subgradient."""
    size = be.where(be.equal(z, 0), 1, z)
    return dz * (x / size), dz * (y / size)


def grad_atan2(be: BackendBase, dz: Operand, z: Operand, x: OperandLike, y: OperandLike) -> Gradients:
    """Return dz y / (x^2 + y^2) and -dz x / (x^2 + y^2), without overflow; 0 at x = y = 0."""
    r = be.hypot(x, y)
    size = be.where(be.equal(r, 0), 1, r)
    return dz * (y / size / size), -dz * (x / size / size)


def grad_logaddexp(be: BackendBase, dz: Operand, z: Operand, x: Operand, y: Operand) -> Gradients:
    """Return dz sig(x - y) and dz sig(y - x); half each for two equal infinities."""
    d = be.where(be.equal(x, y) * be.isinf(x), 0, be.subtract(x, y))
    return dz * be.sig(d), dz * be.sig(-d)


def grad_maximum(be: BackendBase, dz: Operand, z: Operand, x: OperandLike, y: OperandLike) -> Gradients:
    """Pass the gradient to the larger operand; on ties, tensors get half each and a scalar gets all.

    Beside a scalar, the result is compared instead of an operand that is computed, which need not be stored then.
    """
    if isinstance(x, int | float) or isinstance(y, int | float):
        x, y = (z if hasattr(t, "leaves") else t for t in (x, y))
        return dz * be.greater(x, y), dz * be.greater(y, x)
    tie = be.equal(x, y) * 0.5
    return dz * (be.greater(x, y) + tie), dz * (be.less(x, y) + tie)


def grad_minmax_reduction(
    be: BackendBase, dz: Operand, z: Operand, x: Operand, axis: Axes, keepdims: bool = True
) -> Gradients:
    """Pass the gradient to the largest (smallest) element; tied elements share it equally."""
    shape = reduction_shape(x.shape, axis=axis)
    is_extremum = be.equal(x, be.reshape(z, shape))
    num_ties = be.sum(widen_half(be, is_extremum), axis=axis)
    return (be.reshape(dz, shape) / num_ties * is_extremum,)


def grad_transpose(be: BackendBase, dz: Any, z: Operand, x: Operand, axes: Axes) -> Gradients:
    """Return the gradient of a transpose; that of a product of matrices is a product too, and so contiguous."""
    inverse, n = invert_permutation(axes), len(axes)
    if getattr(dz, "op", "") in ("dot", "matmul") and inverse == (*range(n - 2), n - 1, n - 2):
        return (dz.right.T @ dz.left.T,)
    return (be.transpose(dz, inverse),)


def grad_concat(be: BackendBase, dz: Operand, z: Operand, *operands: Operand, axis: int) -> Gradients:
    """Each operand gets the slice of the gradient at its position."""
    out, start = [], 0
    for x in operands:
        index = tuple((start if i == axis else 0, n, 1) for i, n in enumerate(x.shape))
        out.append(be.build("slice", dz, index=index))
        start += x.shape[axis]
    return tuple(out)


def invert_permutation(axes: Axes) -> tuple[int, ...]:
    """Return the inverse of a permutation of axes."""
    return tuple(axes.index(i) for i in range(len(axes)))


# --- floating-point operations ---


def flops_per_result(z: Shape, *operands: Shape) -> int:
    """Return one operation per element of the result."""
    return math.prod(z)


def flops_per_operand(z: Shape, x: Shape, *operands: Shape) -> int:
    """Return one operation per element of the first operand."""
    return math.prod(x)


def matmul_flops(z: Shape, x: Shape, y: Shape) -> int:
    """Return 2 m n k for each product of an (m, k) and a (k, n) matrix."""
    return 2 * math.prod(z) * x[-1]


def no_flops(*_: Shape) -> int:
    """Return 0, for ops that only move or cast data."""
    return 0


# --- products, cumulative sums, sorting, searching, and gathers along an axis: forward functions ---


def run_prod(xp: Namespace, x: NativeArray, axis: Axes, keepdims: bool = True) -> NativeArray:
    """Return the product over some axes, accumulated in ``accumulation_dtype``."""
    return xp.prod(x, axis=axis, keepdims=keepdims, dtype=accumulation_dtype(xp, x))


def run_cumulative_sum(xp: Namespace, x: NativeArray, *, axis: int = -1, reverse: bool = False) -> NativeArray:
    """Return the sums of the elements up to each one, or from each one on if ``reverse``."""
    x = xp.flip(x, axis=axis) if reverse else x
    sums = xp.cumulative_sum(x, axis=axis, dtype=accumulation_dtype(xp, x))
    return xp.flip(sums, axis=axis) if reverse else sums


def run_cumulative_prod(xp: Namespace, x: NativeArray, *, axis: int = -1) -> NativeArray:
    """Return the products of the elements up to each one."""
    return xp.cumulative_prod(x, axis=axis, dtype=accumulation_dtype(xp, x))


def run_sort(xp: Namespace, x: NativeArray, *, axis: int = -1, descending: bool = False) -> NativeArray:
    """Return the elements in order along an axis."""
    x = xp.sort(x, axis=axis)
    return xp.flip(x, axis=axis) if descending else x


def run_argsort(xp: Namespace, x: NativeArray, *, axis: int = -1, descending: bool = False) -> NativeArray:
    """Return the indices that sort x along an axis; equal elements stay in order, also if ``descending``."""
    if not descending:
        return xp.argsort(x, axis=axis, stable=True)
    order = xp.flip(xp.argsort(xp.flip(x, axis=axis), axis=axis, stable=True), axis=axis)
    return x.shape[axis] - 1 - order


def run_searchsorted(xp: Namespace, x: NativeArray, values: NativeArray, *, side: str = "left") -> NativeArray:
    """Return the index at which each value would be inserted into the sorted vector x."""
    # copies, as PyTorch warns that operands are not contiguous
    vector, flat_values = (xp.reshape(a, (-1,), copy=True) for a in (x, values))
    return xp.reshape(xp.searchsorted(vector, flat_values, side=side), values.shape)


def run_take_along_axis(xp: Namespace, x: NativeArray, indices: NativeArray, *, axis: int = -1) -> NativeArray:
    """Return the elements of x at the indices along an axis."""
    flat = normalize_indices(xp, indices, x.shape[axis])
    return xp.take_along_axis(x, xp.reshape(flat, indices.shape), axis=axis)


def run_scatter_add_along_axis(
    xp: Namespace, x: NativeArray, indices: NativeArray, *, axis: int, size: int
) -> NativeArray:
    """Return zeros of ``size`` along an axis, to which each element of x is added at its index along this axis."""
    indices = xp.reshape(normalize_indices(xp, indices, size), x.shape)
    x, indices = xp.moveaxis(x, axis, -1), xp.moveaxis(indices, axis, -1)
    num_rows = math.prod(x.shape[:-1])
    first = xp.reshape(size * xp.arange(num_rows, dtype=indices.dtype), (*x.shape[:-1], 1))
    flat = run_scatter_add(xp, xp.reshape(x, (-1,)), indices + first, axis=0, size=num_rows * size)
    return xp.moveaxis(xp.reshape(flat, (*x.shape[:-1], size)), -1, axis)


# --- their shape rules ---


def searchsorted_shape(x: Shape, values: Shape, **_: object) -> Shape:
    """Return the shape of the values; x must be a vector."""
    if len(x) != 2 or 1 not in x:
        raise ValueError(f"expected a sorted vector of shape (n, 1) or (1, n), got shape {x}")
    return values


def take_along_axis_shape(x: Shape, indices: Shape, *, axis: int) -> Shape:
    """Return the shape of the indices, which may differ from that of x along the axis only."""
    axis %= len(x)
    if len(x) != len(indices) or any(m != n for a, (m, n) in enumerate(zip(x, indices, strict=True)) if a != axis):
        raise ValueError(f"expected indices of a shape that differs from {x} along axis {axis} only, got {indices}")
    return indices


def scatter_add_along_axis_shape(x: Shape, indices: Shape, *, axis: int, size: int) -> Shape:
    """Return the shape with ``size`` elements along the axis; x and the indices have one shape."""
    if x != indices:
        raise ValueError(f"expected an index for each element of x, of shape {x}, got indices of shape {indices}")
    return (*x[:axis], size, *x[axis:][1:])


# --- their gradient rules ---


def grad_prod(be: BackendBase, dz: Operand, z: Operand, x: Operand, axis: Axes, keepdims: bool = True) -> Gradients:
    """Each element gets the product of the others: of those before it, and of those behind it.

    Without a division, so the first and the second derivative are exact where elements are 0.
    """
    dz = be.reshape(dz, reduction_shape(x.shape, axis=axis))
    axes = tuple(i for i in range(x.ndim) if i not in axis) + tuple(axis)
    shape, n = tuple(x.shape[i] for i in axes), math.prod(x.shape[i] for i in axis)
    if n < 2:
        return (dz,)
    rows = be.reshape(be.transpose(x, axes), (-1, n))
    reverse, first = be.array([range(n)[::-1]], dtype="int64"), be.ones((rows.shape[0], 1), dtype=x.info.dtype)

    def before(y: Operand) -> Operand:
        """Return the product of the elements before each one."""
        others = be.build("slice", y, index=((0, y.shape[0], 1), (0, n - 1, 1)))
        return be.concat([first, be.cumulative_prod(others, axis=1)], axis=1)

    others = before(rows) * be.take(before(be.take(rows, reverse, 1)), reverse, 1)
    return (dz * be.transpose(be.reshape(others, shape), tuple(axes.index(i) for i in range(x.ndim))),)


def grad_cumulative_prod(be: BackendBase, dz: Operand, z: Operand, x: Operand, *, axis: int = -1) -> Gradients:
    """Each element gets sum(dz z) / x over itself and later elements; the first 0 gets the sum with 1 in its place.

    Exact where elements are 0; the second derivative is not.
    """

    def sum_from(y: Operand) -> Operand:
        return be.cumulative_sum(y, axis=axis, reverse=True)

    is_zero = be.equal(x, 0)
    is_first_zero = is_zero * be.equal(be.cumulative_sum(is_zero, axis=axis), 1)
    without_first_zero = be.cumulative_prod(be.where(is_first_zero, 1, x), axis=axis)
    regular = sum_from(dz * z) / be.where(is_zero, 1, x)
    return (be.where(is_first_zero, sum_from(dz * without_first_zero), regular),)


def grad_sort(
    be: BackendBase, dz: Operand, z: Operand, x: Operand, *, axis: int = -1, descending: bool = False
) -> Gradients:
    """Each element gets the gradient at its position in the sorted order."""
    order = be.argsort(x, axis=axis, descending=descending)
    return (be.build("scatter_add_along_axis", dz, order, axis=axis, size=x.shape[axis]),)


def grad_take_along_axis(
    be: BackendBase, dz: Operand, z: Operand, x: Operand, indices: Operand, *, axis: int = -1
) -> Gradients:
    """Add up the gradients of the elements at each index."""
    return be.build("scatter_add_along_axis", dz, indices, axis=axis, size=x.shape[axis]), None


def grad_scatter_add_along_axis(
    be: BackendBase, dz: Operand, z: Operand, x: Operand, indices: Operand, *, axis: int, size: int
) -> Gradients:
    """Each element gets the gradient at its index."""
    return be.take_along_axis(dz, indices, axis=axis), None
