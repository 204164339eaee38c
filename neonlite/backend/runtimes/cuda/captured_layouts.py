"""Layouts of images in a captured CUDA graph: reorder its inputs before each replay, and set those of its outputs."""

from __future__ import annotations

from threading import get_ident
from typing import NamedTuple, Self

from neonlite.backend.memory import Allocation, Memory, MemoryTracker
from neonlite.backend.planning.layout import CachedImages, LayoutCache, recorders
from neonlite.typing import NativeArray


class LayoutState(NamedTuple):
    """A snapshot of a layout cache."""

    images: CachedImages | None
    buffer: NativeArray
    allocation: Allocation | None


class CapturedLayouts:
    """The layout of every allocation that a captured graph reads or writes, before and after it.

    A CUDA graph does not check layouts, so ``restore`` sets them before each replay and ``apply`` after it. Within
    ``with captured: ...`` layouts are recorded. On exit they are reset, as kernels are captured but do not run.
    """

    def __init__(self, memory_tracker: MemoryTracker) -> None:
        self.memory_tracker, self.had_layout_caches = memory_tracker, memory_tracker.has_layout_caches
        self.entry_states: dict[Memory, LayoutState | None] = {}  # None for an allocation without a cache
        self.exit_states: dict[Memory, LayoutState | None] = {}

    def record(self, memory: Memory) -> None:
        """Record that the block depends on the layout of an allocation."""
        if not memory.is_exported and memory not in self.entry_states:
            self.entry_states[memory] = snapshot(memory)

    def __enter__(self) -> Self:
        recorders[get_ident()] = self
        return self

    def __exit__(self, *_: object) -> None:
        del recorders[get_ident()]
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

    def _set_states(self, states: dict[Memory, LayoutState | None]) -> None:
        for memory, state in states.items():
            if (cache := memory.layout_cache) is not None and state is not None:
                cache.images, cache.buffer, cache.allocation = state
            elif cache is not None:
                cache.images = None

    def _has_buffer(self, memory: Memory) -> bool:
        """Return whether an allocation still has the NHWC buffer that was captured, if there was one."""
        known = [state for state in (self.entry_states[memory], self.exit_states[memory]) if state is not None]
        if not known:
            return True
        return memory.layout_cache is not None and all(
            x.buffer is None or x.buffer is memory.layout_cache.buffer for x in known
        )


def snapshot(memory: Memory) -> LayoutState | None:
    """Return the state of the layout cache of an allocation; None if it has none."""
    cache = memory.layout_cache
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
