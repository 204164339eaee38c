"""Memory layouts of tensors: CHWN, NHWC and Fortran order, and reorders between CHWN and NHWC.

==========  ========================================================================================================
"CHWN"      the order of the shape (C order), the default; for images (channels, D, H, W, batch size)
"NHWC"      images (C, D, H, W, N) in the order (N, D, H, W, C), in a second buffer; the memory is out of date
"columns"   a matrix whose columns are contiguous (Fortran order), which its strides say
==========  ========================================================================================================

Convolutions are fastest in NHWC: oneDNN on the CPU and cuDNN on the GPU read and write it. A convolution leaves its
result in NHWC, and the next layer and elementwise op-trees read it there. Code that reads the memory itself triggers
one reorder to CHWN. Code reads and writes the values of a tensor by four functions: ``read_chwn``, ``read_nhwc``,
``write_chwn`` and ``write_nhwc``, which reorder where necessary. The primitive that writes images chooses their layout
(``can_write_nhwc``), also in op-trees (``Plan.images``); pooling, batch normalization and elementwise op-trees
(``common_layout``) follow that of their operands.

An NHWC buffer belongs to an allocation, so all views of it share one buffer. It holds one contiguous range of the
allocation at a time. Memory that is exported to other libraries has none.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, NamedTuple, Protocol, Self

from neonlite.backend.concurrency import create_lock
from neonlite.backend.measure import Allocation, Memory
from neonlite.backend.planning import Plan
from neonlite.optree import Operand
from neonlite.tree_structure import traces
from neonlite.typing import DType, NativeArray

Layout = Literal["CHWN", "NHWC", "columns"]


class TensorBase(Operand):
    """The base class of ``Tensor``, a class of a higher level: its memory, and how it views that of others."""

    __slots__ = ()

    allocation: Memory
    base: Any  # the Tensor that this one is a view of, or None
    persist_values: bool
    span: tuple[int, int]
    storage: NativeArray
    strides: tuple[int, ...]

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements are contiguous in memory, in C order."""
        return bool(self.info.attrs["contiguous"])

    @property
    def root(self) -> Self:
        """The tensor that owns the memory: the last of the chain of bases, or this one."""
        x = self
        while x.base is not None:
            x = x.base
        return x


class LayoutRecorder(Protocol):
    """Records the allocations whose layout a captured block depends on (``runtimes/cuda/graphs.py``)."""

    def record(self, memory: Memory) -> None:
        """Record an allocation."""


recorders: dict[int, LayoutRecorder] = {}  # of the threads that capture a block now, by thread id


class ImageShape(NamedTuple):
    """The shape of images with merged pixels: CHWN is (channels, pixels, batch_size), NHWC is its reverse."""

    channels: int
    pixels: int  # D * H * W
    batch_size: int


class Reorderer(Protocol):
    """Primitives that allocate NHWC buffers and copy between the layouts."""

    def allocate_buffer(self, like: NativeArray) -> tuple[NativeArray, Allocation]:
        """Return a flat buffer with the size and dtype of ``like``, and its allocation in the memory tracker."""

    def reorder(self, shape: ImageShape, chwn: NativeArray, nhwc: NativeArray, to_chwn: bool) -> None:
        """Copy images from CHWN to NHWC, or back with ``to_chwn``."""


class CachedImages(NamedTuple):
    """Images whose values are in the NHWC buffer of their allocation, and may be in its memory as well."""

    span: tuple[int, int]  # the range of the memory, in elements
    shape: ImageShape
    chwn: NativeArray  # the range of the memory, flat
    nhwc: NativeArray  # the values in NHWC, flat
    has_chwn: bool  # whether the memory holds the same values; else it is out of date
    owner_ref: weakref.ref[TensorBase]  # the tensor that the values belong to

    def is_for(self, t: TensorBase, shape: ImageShape) -> bool:
        """Return whether these are exactly the values of a tensor, as images of a shape."""
        return self.span == t.span and self.shape == shape and t.is_contiguous

    def is_replaced_by(self, t: TensorBase) -> bool:
        """Return whether the values are not needed after all of a tensor is written: it covers or reuses their memory.

        It reuses the memory of another tensor if both start at the same address, the values are not persistent (as of
        deltas), and the two tensors are not views of each other or of one view.
        """
        if not t.is_contiguous:
            return False
        if t.span[0] <= self.span[0] and self.span[1] <= t.span[1]:
            return True
        if t.span[0] != self.span[0] or t.root.persist_values:
            return False
        views, owner = [t], self.owner_ref()
        while views[-1].base is not None:
            views.append(views[-1].base)
        ancestor = owner
        while ancestor is not None and (ancestor.base is not None or ancestor is owner):
            if any(ancestor is x for x in views):  # t is a view of the owner, or both are views of one tensor
                return False
            ancestor = ancestor.base
        return owner is not None


class LayoutCache:
    """The NHWC buffer of an allocation, and the images that it holds; None if its contents are not valid."""

    __slots__ = ("allocation", "buffer", "images", "lock", "matrix_view", "reorderer")

    def __init__(self, reorderer: Reorderer) -> None:
        self.reorderer = reorderer
        self.lock = create_lock()  # held while values are copied between the allocation and the buffer
        self.images: CachedImages | None = None
        self.buffer: NativeArray = None  # flat, of at least as many elements as the images
        self.allocation: Allocation | None = None  # of the buffer, in the memory tracker
        # (buffer, its view as a tensor (all pixels, channels)), once requested
        self.matrix_view: tuple[NativeArray, Any] | None = None

    def materialize(self) -> None:
        """Copy the NHWC values to the CHWN memory unless it already holds them."""
        with self.lock:
            images = self.images
            if images is not None and not images.has_chwn:
                self.reorderer.reorder(images.shape, images.chwn, images.nhwc, True)
                self.images = images._replace(has_chwn=True)

    def reserve(self, like: NativeArray) -> NativeArray:
        """Return as many elements of the buffer as ``like`` has, after allocating it if it is too small."""
        if self.buffer is None or self.buffer.size < like.size:
            self.images = self.buffer = self.allocation = None  # free the old buffer first
            self.buffer, self.allocation = self.reorderer.allocate_buffer(like)
        return self.buffer[: like.size]


class ImageOperand(NamedTuple):
    """An image operand whose layout the primitive chooses. ``array`` is (C, D, H, W, N), and may be out of date."""

    tensor: TensorBase
    array: NativeArray

    @property
    def dtype(self) -> DType:
        """The dtype of the elements."""
        return self.array.dtype

    @property
    def image_shape(self) -> ImageShape:
        """The shape of the images."""
        return image_shape(self.array)


class NHWCImages(NamedTuple):
    """An image operand whose values are in NHWC: ``nhwc`` is (N, D, H, W, C)."""

    nhwc: NativeArray

    @property
    def array(self) -> NativeArray:
        """The view (C, D, H, W, N)."""
        return self.nhwc.transpose(4, 1, 2, 3, 0)

    @property
    def dtype(self) -> DType:
        """The dtype of the elements."""
        return self.nhwc.dtype


def image_shape(array: NativeArray) -> ImageShape:
    """Return the image shape of an array (C, D, H, W, N)."""
    channels, *_, batch_size = array.shape
    return ImageShape(channels, array.size // (channels * batch_size), batch_size)


def record_access(t: TensorBase) -> None:
    """Record the access to the layout of a tensor's memory if this thread captures a block."""
    if recorder := recorders.get(threading.get_ident()):
        recorder.record(t.allocation)


def find_images(t: TensorBase) -> CachedImages | None:
    """Return the images in the NHWC buffer with at least some elements of a tensor, or None."""
    if recorders:
        record_access(t)
    cache = t.allocation.layout_cache
    images = cache and cache.images
    if not images or t.span[0] >= images.span[1] or images.span[0] >= t.span[1]:
        return None
    return images


def layout_of(x: object) -> Layout:
    """Return the layout of the values of a tensor or image operand; "CHWN" for any other argument.

    "NHWC" if some elements of the tensor are in NHWC only, or exactly the images of the operand.
    """
    if isinstance(x, NHWCImages):
        return "NHWC"
    if isinstance(x, ImageOperand):
        images = find_images(x.tensor)
        return "NHWC" if images and not images.has_chwn and images.is_for(x.tensor, x.image_shape) else "CHWN"
    if not isinstance(x, TensorBase):
        return "CHWN"
    if (images := find_images(x)) and not images.has_chwn:
        return "NHWC"
    is_transposed = len(x.shape) == 2 and x.strides == (1, x.shape[0])
    return "columns" if is_transposed and not x.is_contiguous else "CHWN"


# --- read and write --------------------------------------------------------------------------------------------------


def check_untraced(t: object) -> None:
    """Raise TypeError if this thread traces a function, in which the values of tensors are not computed yet."""
    if isinstance(t, TensorBase) and (trace := traces.get(threading.get_ident())) is not None:
        trace.check_access(t)


def read_chwn(x: TensorBase | ImageOperand | NativeArray) -> NativeArray:
    """Return the CHWN array of a tensor or image operand, reordered unless valid; any other argument is unchanged."""
    if traces:
        check_untraced(x.tensor if isinstance(x, ImageOperand) else x)
    if isinstance(x, TensorBase):
        t, array = x, x.storage
    elif isinstance(x, ImageOperand):
        t, array = x
    else:
        return x.array.copy() if isinstance(x, NHWCImages) else x
    if (images := find_images(t)) and not images.has_chwn and (cache := t.allocation.layout_cache):
        cache.materialize()
    return array


def write_chwn(x: TensorBase | ImageOperand | NativeArray, overwrite: bool = False) -> NativeArray:
    """Return the CHWN array of a tensor or image operand, to be written; its NHWC values are invalid from now on.

    Any other argument is unchanged. ``overwrite``: every element will be written, and none read.
    """
    if traces:
        check_untraced(x.tensor if isinstance(x, ImageOperand) else x)
    if isinstance(x, TensorBase):
        t, array = x, x.storage
    elif isinstance(x, ImageOperand):
        t, array = x
    else:
        return x.array if isinstance(x, NHWCImages) else x
    if (images := find_images(t)) and (cache := t.allocation.layout_cache):
        if not (overwrite and images.is_replaced_by(t)):
            cache.materialize()
        cache.images = None
    return array


def read_nhwc(x: Any, shape: ImageShape | None = None) -> NativeArray:
    """Return the flat NHWC array of a tensor, as images of a shape, or of an image operand; reordered unless valid.

    None if the tensor cannot be in NHWC, or the buffer of its memory holds other images.
    """
    if isinstance(x, NHWCImages):
        return x.nhwc.reshape(-1)
    t: TensorBase
    t, shape = (x.tensor, x.image_shape) if shape is None else (x, shape)
    if not can_cache_nhwc(t):
        return None
    cache = ensure_cache(t)
    with cache.lock:
        if cache.images is None:
            nhwc, _, images = write_nhwc(t, shape)
            cache.reorderer.reorder(shape, t.storage, nhwc, False)
            cache.images = images and images._replace(has_chwn=True)
        return cache.images.nhwc if cache.images and cache.images.is_for(t, shape) else None


def write_nhwc(x: Any, shape: ImageShape | None = None) -> NhwcWrite:
    """Return the write of a whole tensor, as images of a shape, or of an image operand to its NHWC buffer."""
    if isinstance(x, NHWCImages):
        return NhwcWrite(x.nhwc.reshape(-1))
    t: TensorBase
    t, shape = (x.tensor, x.image_shape) if shape is None else (x, shape)
    cache = ensure_cache(t)
    with cache.lock:
        if (images := cache.images) and (images.has_chwn or not images.is_replaced_by(t)):
            cache.materialize()
            cache.images = None
        chwn = t.storage.reshape(-1)
        nhwc = cache.reserve(chwn)
        return NhwcWrite(nhwc, cache, CachedImages(t.span, shape, chwn, nhwc, False, weakref.ref(t)))


class NhwcWrite(NamedTuple):
    """A write to an NHWC buffer: ``with write_nhwc(x) as buffer: ...``. Earlier values are valid until ``commit``."""

    nhwc: NativeArray  # flat
    cache: LayoutCache | None = None  # None for the images of a plan, which are in NHWC only
    images: CachedImages | None = None

    def __enter__(self) -> NativeArray:
        return self.nhwc

    def __exit__(self, error_type: type | None, *_: object) -> None:
        if error_type is None:
            self.commit()

    def commit(self) -> None:
        """Mark the buffer as holding the values."""
        if self.cache is not None:
            self.cache.images = self.images


def can_cache_nhwc(t: TensorBase) -> bool:
    """Return whether a tensor can be in NHWC: it is contiguous, and its memory was never exported."""
    return not t.allocation.is_exported and t.is_contiguous


def can_write_nhwc(results: Sequence[NativeArray], operands: Sequence[NativeArray]) -> bool:
    """Return whether results can be left in NHWC: none uses the memory of another argument."""
    if not all(
        isinstance(x, NHWCImages) or (isinstance(x, ImageOperand) and can_cache_nhwc(x.tensor)) for x in results
    ):
        return False
    written = [x.tensor.allocation for x in results if isinstance(x, ImageOperand)]
    read = [x.tensor.allocation for x in operands if isinstance(x, ImageOperand)]
    return len({*map(id, written)}) == len(written) and not any(x is y for x in written for y in read)


def ensure_cache(t: TensorBase) -> LayoutCache:
    """Return the layout cache of a tensor's memory, created on first use."""
    if recorders:
        record_access(t)
    if (cache := t.allocation.layout_cache) is None:
        with t.backend.memory_tracker.lock:
            t.allocation.layout_cache = cache = t.allocation.layout_cache or LayoutCache(t.backend.primitives)
            t.backend.memory_tracker.has_layout_caches = True
    return cache


def export_array(t: TensorBase) -> NativeArray:
    """Return the array of a tensor for another library, and remove the layout cache of its memory for good."""
    if traces:
        check_untraced(t)
    memory = t.allocation
    if not memory.is_exported:
        if threading.get_ident() in recorders:
            raise RuntimeError(
                "graph capture: expected no new export of a tensor's memory, got the first one, which removes its "
                "layout cache. Export the tensor (np.asarray(t), DLPack) before the block is captured."
            )
        if memory.layout_cache:
            memory.layout_cache.materialize()
        memory.layout_cache, memory.is_exported = None, True
    return t.storage


# --- plans -----------------------------------------------------------------------------------------------------------


def reshape_targets(plan: Plan, reshape: Callable[[NativeArray, tuple[int, ...]], NativeArray]) -> Callable[..., None]:
    """Return the function that runs a plan on the targets in the shapes that it writes."""
    run, shapes = plan.run, [info.shape for info in plan.targets]

    def run_reshaped(targets: Sequence[NativeArray], leaves: Sequence[NativeArray]) -> None:
        arrays = [
            x._replace(array=reshape(x.array, shape)) if isinstance(x, ImageOperand) else reshape(x, shape)
            for x, shape in zip(targets, shapes, strict=True)
        ]
        run(arrays, leaves)

    return run_reshaped


def run_in_layout(plan: Plan, targets: Sequence[TensorBase], leaves: Collection[object]) -> None:
    """Run an elementwise plan on NHWC buffers if all its images have the same cached layout, else on CHWN memory.

    Of the images that only primitives read or write, these choose the layout.
    """
    images = common_layout(plan, targets, [x for x in leaves if isinstance(x, TensorBase)])
    if images is None:
        image_leaves, image_targets = plan.images
        written = {id(t.allocation) for t in targets}
        values = [  # before a write invalidates NHWC values
            ImageOperand(x, x.storage)
            if n in image_leaves and isinstance(x, TensorBase) and id(x.allocation) not in written
            else read_chwn(x)
            for n, x in enumerate(leaves)
        ]
        overwrite = not plan.raising_values
        arrays = [
            ImageOperand(t, t.storage) if i in image_targets else write_chwn(t, overwrite)
            for i, t in enumerate(targets)
        ]
        plan.run(arrays, values)
        return
    shape = targets[0].shape
    values = [
        read_nhwc(x, images.shape).reshape(shape) if isinstance(x, TensorBase) and x.shape == shape else read_chwn(x)
        for x in leaves
    ]
    writes = [write_nhwc(t, images.shape) for t in targets]
    plan.run([write.nhwc.reshape(shape) for write in writes], values)
    for write in writes:
        write.commit()


def common_layout(plan: Plan, targets: Sequence[TensorBase], operands: Sequence[TensorBase]) -> CachedImages | None:
    """Return an operand's images with the shape in which to run a plan in NHWC, or None to run it in CHWN.

    NHWC is chosen where it needs no more reorders than CHWN.
    """
    stale = [(x, images) for x in operands if (images := find_images(x)) and not images.has_chwn]
    if not stale or not plan.is_elementwise:
        return None
    (_, reference), shape = stale[0], targets[0].shape
    full_operands = {(*x.span, x.strides, id(x.allocation)): x for x in operands if x.shape == shape}.values()
    if any(x.shape != shape or not images.is_for(x, reference.shape) for x, images in stale):
        return None
    others = [x for x in full_operands if not ((images := find_images(x)) and images.is_for(x, reference.shape))]
    if 2 * len(others) > len(full_operands):
        return None
    for t in targets:
        if not can_cache_nhwc(t) or sum(t.allocation is other.allocation for other in targets) > 1:
            return None
        cache = t.allocation.layout_cache
        if cache is not None and (images := cache.images) and images.span != t.span:  # it holds other values
            is_dead = images.has_chwn or images.is_replaced_by(t)
            if not is_dead or any(x.allocation is t.allocation for x in operands):
                return None
    return reference if all(read_nhwc(x, reference.shape) is not None for x in others) else None
