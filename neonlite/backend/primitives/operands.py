"""Operands of primitives: argument checks, contiguous operands, output buffers and NHWC views."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Any, NamedTuple

from neonlite.backend.planning.layout import (
    ImageOperand,
    ImageShape,
    NhwcWrite,
    can_cache_nhwc,
    ensure_cache,
    find_images,
    read_chwn,
    read_nhwc,
    write_chwn,
    write_nhwc,
)
from neonlite.backend.primitives.geometry import LayerObject, with_error_prefix
from neonlite.backend.tensor import Tensor, overlap
from neonlite.backend.validation import check_open
from neonlite.messages import describe
from neonlite.tree_structure import refuse_in_trace
from neonlite.typing import FLOAT_DTYPES, HALF_DTYPES, BackendBase, NativeArray

NUMBER_TYPES = (float, int, Real)  # isinstance is slowest for Real, so it comes last


class NhwcMatrices(NamedTuple):
    """Images as NHWC matrices (pixels, channels): the operands, and the output with its write, or None."""

    operands: list[Tensor]
    out: Any
    write: NhwcWrite | None

    def commit(self) -> None:
        """Mark the output as written in NHWC."""
        if self.write is not None:
            self.write.commit()


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
    copy = _temporary(be, t.shape, dtype)
    copy[:] = t
    return copy


def _temporary(be: BackendBase, shape: tuple[int, ...], dtype: str) -> Tensor:
    """Return a tensor for one call, without a layout cache."""
    t = be.empty(shape, dtype)
    t.allocation.is_exported = True
    return t


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
    buffer = _temporary(be, out.shape, dtype)
    if copy_in:
        buffer[:] = out
    yield buffer
    out[:] = buffer


def readable_as(be: BackendBase, t: Tensor, shape: tuple[int, ...]) -> NativeArray:
    """Return the CHWN array of a contiguous tensor in another shape, to be read."""
    return be.runtime.reshape(read_chwn(t), shape)


def writable_as(be: BackendBase, t: Tensor, shape: tuple[int, ...]) -> NativeArray:
    """Return the CHWN array of a contiguous tensor in another shape, to be written."""
    return be.runtime.reshape(write_chwn(t), shape)


def image_operand(be: BackendBase, t: Tensor, shape: tuple[int, ...]) -> NativeArray:
    """Return images for a primitive: an ``ImageOperand`` if the primitives support NHWC, else the array."""
    array = be.runtime.reshape(t.storage, shape)
    return ImageOperand(t, array) if be.primitives.supports_nhwc else array


# --- op-trees of NHWC images ---


def as_nhwc_matrices(
    be: BackendBase, operands: Sequence[Tensor], vectors: Sequence[Tensor | None], out: Tensor | None = None
) -> NhwcMatrices | None:
    """Return images (channels, pixels) as NHWC matrices (pixels, channels), or None.

    The result is None unless an operand has current values in NHWC only, and op-trees may use this layout.
    ``vectors``: other tensors that the op-tree reads or writes; ``out``: the images that it writes, if any.
    """
    cached = [find_images(t) for t in operands] if be.primitives.supports_nhwc_trees else []
    shape = next((images.shape for images in cached if images and not images.has_chwn), None)
    if shape is None or shape.channels != len(operands[0]):
        return None
    if out is not None and not can_cache_nhwc(out):
        return None
    tensors = [t for t in (*operands, out) if t is not None]
    if any(x is not None and x.allocation is t.allocation for x in vectors for t in tensors):
        return None
    if out is not None and any(t.allocation is out.allocation and t.span != out.span for t in operands):
        return None
    if any(read_nhwc(t, shape) is None for t in operands):
        return None
    matrices = [_nhwc_matrix(be, t, shape) for t in operands]
    if out is None:
        return NhwcMatrices(matrices, None, None)
    write = write_nhwc(out, shape)
    return NhwcMatrices(matrices, _nhwc_matrix(be, out, shape), write)


def _nhwc_matrix(be: BackendBase, t: Tensor, image_shape: ImageShape) -> Tensor:
    """Return the NHWC buffer of a tensor as a matrix: the same object as long as the buffer is unchanged."""
    shape = image_shape.pixels * image_shape.batch_size, image_shape.channels
    cache = ensure_cache(t)
    view = cache.matrix_view
    if view is None or view[0] is not cache.buffer or view[1].shape != shape:
        array = be.runtime.reshape(cache.buffer[: t.size], shape)
        matrix = Tensor(array, be.tensor_info(shape, t.info.dtype), allocation=cache.allocation)
        matrix.allocation.is_exported = True  # an NHWC buffer has no layout cache itself
        cache.matrix_view = view = cache.buffer, matrix
    return view[1]
