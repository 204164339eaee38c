"""Physical layouts: in which order the values of a tensor are in memory, and the reorders from CHWN to NHWC and back.

==========  ========================================================================================================
"CHWN"      the order of the shape (C order), the default; for images (channels, D, H, W, batch size)
"NHWC"      images (C, D, H, W, N) in the order (N, D, H, W, C), in a second buffer; the memory is out of date
"columns"   a matrix whose columns are contiguous (Fortran order), which its strides say
==========  ========================================================================================================

Convolutions are fastest in NHWC: oneDNN on the CPU and cuDNN on the GPU read and write it. A convolution leaves its
result in NHWC, and the next layer and elementwise op-trees read it there. Code that reads the memory itself triggers
one reorder to CHWN. Code reads and writes the values of a tensor by four functions: ``read_chwn``, ``read_nhwc``,
``write_chwn`` and ``write_nhwc``, which reorder where necessary. The primitive that writes images chooses their layout
(``can_write_nhwc``); pooling, batch normalization and op-trees (``common_layout``) follow that of their operands.

An NHWC buffer belongs to an allocation, so all views of it share one buffer. It holds one contiguous range of the
allocation at a time. Memory that is exported to other libraries has none.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Collection, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from neonlite.backend.memory import Allocation
from neonlite.optree import Operand

Layout = Literal["CHWN", "NHWC", "columns"]

REORDER_LOCK = threading.RLock()  # held while values are copied between an allocation and its NHWC buffer


class ThreadState(threading.local):
    """The state of one thread."""

    captured: CapturedLayouts | None = None  # the layouts recorded while this thread captures a block


_thread = ThreadState()


def _reset_lock() -> None:
    global REORDER_LOCK
    REORDER_LOCK = threading.RLock()  # a thread that does not exist in the child may have held the old lock


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_lock)


class ImageShape(NamedTuple):
    """The shape of images with merged pixels: CHWN is (channels, pixels, batch_size), NHWC is its reverse."""

    channels: int
    pixels: int  # D * H * W
    batch_size: int


class Reorderer(Protocol):
    """Primitives that allocate NHWC buffers and copy between the layouts."""

    def allocate_buffer(self, like: Any) -> tuple[Any, Any]:
        """Return a flat buffer with the size and dtype of ``like``, and its allocation in the memory tracker."""

    def reorder(self, shape: ImageShape, chwn: Any, nhwc: Any, to_chwn: bool) -> None:
        """Copy images from CHWN to NHWC, or back with ``to_chwn``."""


class CachedImages(NamedTuple):
    """Images whose values are in the NHWC buffer of their allocation, and may be in its memory as well."""

    span: tuple[int, int]  # the range of the memory, in elements
    shape: ImageShape
    chwn: Any  # the range of the memory, flat
    nhwc: Any  # the values in NHWC, flat
    has_chwn: bool  # whether the memory holds the same values; else it is out of date
    owner_ref: Any  # a weak reference to the tensor that the values belong to

    def is_for(self, t: Any, shape: ImageShape) -> bool:
        """Return whether these are exactly the values of a tensor, as images of a shape."""
        return self.span == t.span and self.shape == shape and bool(t.is_contiguous)

    def is_replaced_by(self, t: Any) -> bool:
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

    __slots__ = ("allocation", "buffer", "images", "matrix_view", "reorderer")

    def __init__(self, reorderer: Reorderer) -> None:
        self.reorderer = reorderer
        self.images: CachedImages | None = None
        self.buffer: Any = None  # flat, of at least as many elements as the images
        self.allocation: Any = None  # of the buffer, in the memory tracker
        self.matrix_view: Any = None  # (buffer, its view as a tensor (all pixels, channels)), once requested

    def materialize(self) -> None:
        """Copy the NHWC values to the CHWN memory unless it already holds them."""
        with REORDER_LOCK:
            images = self.images
            if images is not None and not images.has_chwn:
                self.reorderer.reorder(images.shape, images.chwn, images.nhwc, True)
                self.images = images._replace(has_chwn=True)

    def reserve(self, like: Any) -> Any:
        """Return as many elements of the buffer as ``like`` has, after allocating it if it is too small."""
        if self.buffer is None or self.buffer.size < like.size:
            self.images = self.buffer = self.allocation = None  # free the old buffer first
            self.buffer, self.allocation = self.reorderer.allocate_buffer(like)
        return self.buffer[: like.size]


class ImageOperand(NamedTuple):
    """An image operand whose layout the primitive chooses. ``array`` is (C, D, H, W, N), and may be out of date."""

    tensor: Any
    array: Any

    @property
    def dtype(self) -> Any:
        """The dtype of the elements."""
        return self.array.dtype

    @property
    def image_shape(self) -> ImageShape:
        """The shape of the images."""
        return image_shape(self.array)


def image_shape(array: Any) -> ImageShape:
    """Return the image shape of an array (C, D, H, W, N)."""
    channels, *_, batch_size = array.shape
    return ImageShape(channels, array.size // (channels * batch_size), batch_size)


def find_images(t: Any) -> CachedImages | None:
    """Return the images in the NHWC buffer with at least some elements of a tensor, or None."""
    if _thread.captured is not None:
        _thread.captured.record(t.allocation)
    cache: LayoutCache | None = getattr(t.allocation, "layout_cache", None)
    images = cache and cache.images
    if not images or t.span[0] >= images.span[1] or images.span[0] >= t.span[1]:
        return None
    return images


def layout_of(x: Any) -> Layout:
    """Return the layout of the values of a tensor or image operand; "CHWN" for any other argument.

    "NHWC" if some elements of the tensor are in NHWC only, or exactly the images of the operand.
    """
    if isinstance(x, ImageOperand):
        images = find_images(x.tensor)
        return "NHWC" if images and not images.has_chwn and images.is_for(x.tensor, x.image_shape) else "CHWN"
    if not isinstance(x, Operand):
        return "CHWN"
    if (images := find_images(x)) and not images.has_chwn:
        return "NHWC"
    is_transposed = len(x.shape) == 2 and x.strides == (1, x.shape[0])  # type: ignore[attr-defined]
    return "columns" if is_transposed and not x.is_contiguous else "CHWN"  # type: ignore[attr-defined]


# --- read and write --------------------------------------------------------------------------------------------------


def read_chwn(x: Any) -> Any:
    """Return the CHWN array of a tensor or image operand, reordered unless valid; any other argument is unchanged."""
    t: Any
    if isinstance(x, Operand):
        t, array = x, x.storage  # type: ignore[attr-defined]
    elif isinstance(x, ImageOperand):
        t, array = x
    else:
        return x
    if (images := find_images(t)) and not images.has_chwn:
        t.allocation.layout_cache.materialize()
    return array


def write_chwn(x: Any, overwrite: bool = False) -> Any:
    """Return the CHWN array of a tensor or image operand, to be written; its NHWC values are invalid from now on.

    Any other argument is unchanged. ``overwrite``: every element will be written, and none read.
    """
    t: Any
    if isinstance(x, Operand):
        t, array = x, x.storage  # type: ignore[attr-defined]
    elif isinstance(x, ImageOperand):
        t, array = x
    else:
        return x
    if images := find_images(t):
        cache: LayoutCache = t.allocation.layout_cache
        if not (overwrite and images.is_replaced_by(t)):
            cache.materialize()
        cache.images = None
    return array


def read_nhwc(x: Any, shape: ImageShape | None = None) -> Any:
    """Return the flat NHWC array of a tensor, as images of a shape, or of an image operand; reordered unless valid.

    None if the tensor cannot be in NHWC, or the buffer of its memory holds other images.
    """
    t, shape = (x.tensor, x.image_shape) if shape is None else (x, shape)
    if not can_cache_nhwc(t):
        return None
    cache = ensure_cache(t)
    with REORDER_LOCK:
        if cache.images is None:
            write = write_nhwc(t, shape)
            cache.reorderer.reorder(shape, t.storage, write.images.nhwc, False)
            cache.images = write.images._replace(has_chwn=True)
        return cache.images.nhwc if cache.images.is_for(t, shape) else None


def write_nhwc(x: Any, shape: ImageShape | None = None) -> NhwcWrite:
    """Return the write of a whole tensor, as images of a shape, or of an image operand to its NHWC buffer."""
    t, shape = (x.tensor, x.image_shape) if shape is None else (x, shape)
    cache = ensure_cache(t)
    with REORDER_LOCK:
        if (images := cache.images) and (images.has_chwn or not images.is_replaced_by(t)):
            cache.materialize()
            cache.images = None
        chwn = t.storage.reshape(-1)
        nhwc = cache.reserve(chwn)
        return NhwcWrite(cache, CachedImages(t.span, shape, chwn, nhwc, False, weakref.ref(t)))


class NhwcWrite(NamedTuple):
    """A write to an NHWC buffer: ``with write_nhwc(x) as buffer: ...``. Earlier values are valid until ``commit``."""

    cache: LayoutCache
    images: CachedImages

    def __enter__(self) -> Any:
        return self.images.nhwc

    def __exit__(self, error_type: type | None, *_: object) -> None:
        if error_type is None:
            self.commit()

    def commit(self) -> None:
        """Mark the buffer as holding the values."""
        self.cache.images = self.images


def can_cache_nhwc(t: Any) -> bool:
    """Return whether a tensor can be in NHWC: it is contiguous, and its memory was never exported."""
    return isinstance(t.allocation, Allocation) and not t.allocation.is_exported and t.is_contiguous


def can_write_nhwc(results: Sequence[Any], operands: Sequence[Any]) -> bool:
    """Return whether results can be left in NHWC: none uses the memory of another argument."""
    if not all(isinstance(x, ImageOperand) and can_cache_nhwc(x.tensor) for x in results):
        return False
    written = [x.tensor.allocation for x in results]
    read = [x.tensor.allocation for x in operands if isinstance(x, ImageOperand)]
    return len({*map(id, written)}) == len(written) and not any(x is y for x in written for y in read)


def ensure_cache(t: Any) -> LayoutCache:
    """Return the layout cache of a tensor's memory, created on first use."""
    if _thread.captured is not None:
        _thread.captured.record(t.allocation)
    if t.allocation.layout_cache is None:
        with REORDER_LOCK:
            t.allocation.layout_cache = t.allocation.layout_cache or LayoutCache(t.backend.primitives)
            t.backend.memory_tracker.has_layout_caches = True
    cache: LayoutCache = t.allocation.layout_cache
    return cache


def export_array(t: Any) -> Any:
    """Return the array of a tensor for another library, and remove the layout cache of its memory for good."""
    memory = t.allocation
    if isinstance(memory, Allocation) and not memory.is_exported:
        if _thread.captured is not None:
            raise RuntimeError(
                "graph capture: expected no new export of a tensor's memory, got the first one, which removes its "
                "layout cache. Export the tensor (np.asarray(t), DLPack) before the block is captured."
            )
        with REORDER_LOCK:
            if memory.layout_cache:
                memory.layout_cache.materialize()
            memory.layout_cache, memory.is_exported = None, True
    return t.storage


# --- plans -----------------------------------------------------------------------------------------------------------


def run_in_layout(plan: Any, targets: Sequence[Any], leaves: Collection[Any]) -> None:
    """Run an elementwise plan on NHWC buffers if all its images have the same cached layout, else on CHWN memory."""
    images = common_layout(plan, targets, [x for x in leaves if isinstance(x, Operand)])
    if images is None:
        values = [read_chwn(x) for x in leaves]  # before a write invalidates NHWC values
        plan.run([write_chwn(t, overwrite=not plan.raising_values) for t in targets], values)
        return
    shape = targets[0].shape

    def value(x: Any) -> Any:
        if not isinstance(x, Operand) or x.shape != shape:
            return read_chwn(x)
        return x.allocation.layout_cache.images.nhwc.reshape(shape)  # type: ignore[attr-defined]

    values = [value(x) for x in leaves]
    writes = [write_nhwc(t, images.shape) for t in targets]
    plan.run([write.images.nhwc.reshape(shape) for write in writes], values)
    for write in writes:
        write.commit()


def common_layout(plan: Any, targets: Sequence[Any], operands: Sequence[Any]) -> CachedImages | None:
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


# --- captured graphs -------------------------------------------------------------------------------------------------


class LayoutState(NamedTuple):
    """A snapshot of a layout cache."""

    images: CachedImages | None
    buffer: Any
    allocation: Any


class CapturedLayouts:
    """The layout of every allocation that a captured graph reads or writes, before and after it.

    A CUDA graph does not check layouts, so ``restore`` sets them before each replay and ``apply`` after it. Within
    ``with captured: ...`` layouts are recorded. On exit they are reset, as kernels are captured but do not run.
    """

    def __init__(self, memory_tracker: Any) -> None:
        self.memory_tracker, self.had_layout_caches = memory_tracker, memory_tracker.has_layout_caches
        self.entry_states: dict[Allocation, LayoutState | None] = {}  # None for an allocation without a cache
        self.exit_states: dict[Allocation, LayoutState | None] = {}

    def record(self, memory: Any) -> None:
        """Record that the block depends on the layout of an allocation."""
        if isinstance(memory, Allocation) and not memory.is_exported and memory not in self.entry_states:
            self.entry_states[memory] = snapshot(memory)

    def __enter__(self) -> CapturedLayouts:
        _thread.captured = self
        return self

    def __exit__(self, *_: object) -> None:
        _thread.captured = None
        self.exit_states = {memory: snapshot(memory) for memory in self.entry_states}
        self._set_states(self.entry_states)

    def restore(self) -> bool:
        """Restore all layouts to those at capture. Return False, and change nothing, if an NHWC buffer was freed."""
        if self.had_layout_caches != self.memory_tracker.has_layout_caches or not all(
            map(self._has_buffer, self.entry_states)
        ):
            return False
        for memory, state in self.entry_states.items():
            if (cache := memory.layout_cache) is not None:
                restore_images(cache, state and state.images)
        return True

    def apply(self) -> None:
        """Set all layouts to those after the block, which has run."""
        self._set_states(self.exit_states)

    def _set_states(self, states: dict[Allocation, LayoutState | None]) -> None:
        for memory, state in states.items():
            if (cache := memory.layout_cache) is not None and state is not None:
                cache.images, cache.buffer, cache.allocation = state
            elif cache is not None:
                cache.images = None

    def _has_buffer(self, memory: Allocation) -> bool:
        """Return whether an allocation still has the NHWC buffer that was captured, if there was one."""
        known = [state for state in (self.entry_states[memory], self.exit_states[memory]) if state is not None]
        if not known:
            return True
        return memory.layout_cache is not None and all(
            x.buffer is None or x.buffer is memory.layout_cache.buffer for x in known
        )


def snapshot(memory: Allocation) -> LayoutState | None:
    """Return the state of the layout cache of an allocation; None if it has none."""
    cache: LayoutCache | None = memory.layout_cache
    return None if cache is None else LayoutState(cache.images, cache.buffer, cache.allocation)


def restore_images(cache: LayoutCache, images: CachedImages | None) -> None:
    """Make valid each copy, CHWN or NHWC, that was valid with these images. The other one may be valid as well."""
    current = cache.images
    same = bool(images and current and is_same_tensor(current, images))
    if not (same and images and not images.has_chwn):
        cache.materialize()
    if images and not same:
        cache.reorderer.reorder(images.shape, images.chwn, images.nhwc, False)
        cache.images = images._replace(has_chwn=True)


def is_same_tensor(a: CachedImages, b: CachedImages) -> bool:
    """Return whether two states of images describe the same tensor as images of the same shape."""
    return a.span == b.span and a.shape == b.shape and a.owner_ref() is b.owner_ref()
