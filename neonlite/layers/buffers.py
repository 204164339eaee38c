"""How large is a buffer?  As a shape and the minibatch say: (C, H, W) is (C H W, N), and (F, T) is (F, T N)."""

from __future__ import annotations

import math
from typing import Any

from neonlite.backend import NervanaObject, Tensor


def features(shape: Any) -> int:
    """Return how many rows the buffer of a shape has: F of F and (F, T), C * H * W of (C, H, W)."""
    if isinstance(shape, int):
        return shape
    return int(shape[0]) if len(shape) == 2 else math.prod(shape)


def columns(shape: Any) -> int:
    """Return how many columns the buffer of a shape has for each of the minibatch: T of (F, T), else 1."""
    return int(shape[1]) if isinstance(shape, tuple) and len(shape) == 2 else 1


def by_columns(shape: Any) -> tuple[int, int]:
    """Return a shape as ``be.iobuf`` takes it: rows, and columns for each of the minibatch."""
    return features(shape), columns(shape)


def elements(shape: Any) -> int:
    """Return how many elements the buffer of a shape has for each of the minibatch."""
    return features(shape) * columns(shape)


def turned(buffer: Tensor) -> Tensor:
    """Return the memory of a buffer, as one of the same shape that lies column by column."""
    return buffer.reshape(*reversed(buffer.shape)).T


class Buffered(NervanaObject):
    """What has buffers for a minibatch, of the size that ``be.bsz`` says when they are made."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self._memory: dict[Any, Tensor] = {}  # what buffers are views of

    def buffer(self, name: str, shape: Any, dtype: Any = None, shared: Tensor | None = None) -> Any:
        """Return a buffer of zeros, such as ``be.iobuf`` makes, in shared memory where there is some.

        For the same name it is in the same memory again as long as that is large enough: after another batch size,
        buffers are views of those that were.
        """
        be, sizes, full_name = self.be, by_columns(shape), f"{self.name}.{name}"
        if shared is None:
            shared = self._memory.get((name, dtype))
            if shared is None or shared.backend is not be or shared.size < elements(shape) * be.bsz:
                made = self._memory[name, dtype] = be.iobuf(sizes, dtype=dtype, name=full_name)
                return made
        return be.iobuf(sizes, shared=shared, name=full_name)
