"""Shape rules and stride rules of ops: from the operands' shapes and strides to those of the result.

Shape rules raise ValueError if the shapes do not match. Stride rules are those of views; strides are in elements, and
NaN if unknown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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
    """Return the strides of shape x reshaped to z; unknown if x is not contiguous."""
    return contiguous_strides(z) if is_contiguous(x, strides) else (math.nan,) * len(z)


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
