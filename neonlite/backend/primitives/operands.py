"""Operands of primitives: argument checks, contiguous operands and output buffers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Any

from neonlite.backend.primitives.geometry import LayerObject, with_error_prefix
from neonlite.backend.tensor import Tensor, overlap
from neonlite.backend.validation import check_open
from neonlite.messages import describe
from neonlite.tree_structure import refuse_in_trace
from neonlite.typing import FLOAT_DTYPES, HALF_DTYPES, BackendBase, NativeArray

NUMBER_TYPES = (float, int, Real)  # isinstance is slowest for Real, so it comes last


def check_tensors(be: BackendBase, primitive: str, **tensors: object) -> None:
    """Raise an error unless the backend is open and all arguments are its tensors."""
    with_error_prefix(primitive, check_open, be)
    refuse_in_trace(f"be.{primitive}", "Use op-trees, such as be.convolution(x, w), be.dot(a, b) and layer(x)")
    for name, t in tensors.items():
        if not isinstance(t, Tensor):
            raise TypeError(
                f"be.{primitive}: expected a tensor for {name}, got {describe(t)}. "
                "Copy an array with be.array(x), and evaluate an op-tree with tree.astensor()."
            )
        if t.backend is not be:
            raise ValueError(
                f"be.{primitive}: expected a tensor of {be!r} for {name}, got {describe(t)} of {t.backend!r}. "
                "Copy it with be.array(t)."
            )


def check_floats(primitive: str, **values: Any) -> list[float]:
    """Return the values as Python floats, which do not promote the dtype of an array; TypeError for non-numbers."""
    for name, n in values.items():
        if not isinstance(n, NUMBER_TYPES):
            raise TypeError(f"be.{primitive}: expected a real number for {name}, got {describe(n)}")
    return [float(n) for n in values.values()]


def check_same_dtype(primitive: str, **tensors: Tensor) -> None:
    """Raise TypeError unless all tensors have the same float dtype."""
    dtypes = {name: t.info.dtype for name, t in tensors.items()}
    if len(set(dtypes.values())) > 1 or not set(dtypes.values()) <= set(FLOAT_DTYPES):
        listed = ", ".join(f"{name} {dtype} ({describe(tensors[name])})" for name, dtype in dtypes.items())
        raise TypeError(
            f"be.{primitive}: expected tensors of one float dtype, got {listed}. "
            "Cast with be.astype(t, dtype).astensor()."
        )


def check_layer_shapes(
    be: BackendBase, primitive: str, layer: LayerObject, **operands: tuple[Tensor, Sequence[int], str]
) -> None:
    """Raise an error unless each tensor has the layer object's dtype and the size of its shape."""
    check_tensors(be, primitive, **{name: t for name, (t, _, _) in operands.items()})
    for name, (t, shape, axes) in operands.items():
        if t.size != math.prod(shape):
            raise ValueError(
                f"be.{primitive}: expected {name} of shape {tuple(shape)} = {axes}, or any shape with "
                f"{math.prod(shape)} elements, got {describe(t)} with {t.size}, for {layer!r}"
            )
        if t.info.dtype != layer.dtype:
            raise TypeError(
                f"be.{primitive}: expected {name} of dtype {layer.dtype}, that of the layer object, got "
                f"{describe(t)} of {t.info.dtype}. Cast with be.astype(t, dtype).astensor(), or create "
                "the layer object with that dtype."
            )


def compute_dtype(be: BackendBase, dtype: str) -> str:
    """Return the dtype to compute in: float32 for 16-bit floats, unless the runtime has kernels for these."""
    return "float32" if dtype in HALF_DTYPES and not be.runtime.supports_half else dtype


def as_contiguous(be: BackendBase, t: Tensor) -> Tensor:
    """Return the tensor, or a contiguous copy in the compute dtype if it is strided or has another dtype."""
    dtype = compute_dtype(be, t.info.dtype)
    if t.is_contiguous and dtype == t.info.dtype:
        return t
    copy = be.empty(t.shape, dtype)
    copy[:] = t
    return copy


@contextmanager
def output_buffer(be: BackendBase, out: Tensor, *operands: Tensor | None, copy_in: bool = False) -> Iterator[Tensor]:
    """Yield a contiguous tensor that overlaps no operand: ``out``, or a temporary that is copied to it at the end.

    ``copy_in``: the result depends on the old values of ``out``.
    """
    dtype = compute_dtype(be, out.info.dtype)
    is_disjoint = all(x is None or overlap(out, x) == "none" for x in operands)
    if out.is_contiguous and dtype == out.info.dtype and is_disjoint:
        yield out
        return
    buffer = be.empty(out.shape, dtype)
    if copy_in:
        buffer[:] = out
    yield buffer
    out[:] = buffer


def array_as(be: BackendBase, t: Tensor, shape: tuple[int, ...]) -> NativeArray:
    """Return the array of a contiguous tensor in another shape."""
    return be.runtime.reshape(t._array, shape)
