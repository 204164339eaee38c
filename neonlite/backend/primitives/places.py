"""Where does a primitive read and write?  In contiguous float arrays: what is not is copied there, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Any, NamedTuple

from neonlite.backend.making import Making
from neonlite.backend.stored import Emptied, Images, brought, can_lie_apart, emptied, found, read, written
from neonlite.backend.tensor import Tensor, overlap
from neonlite.backend.words import Words
from neonlite.ops import FLOATS, HALVES
from neonlite.optree import describe

NUMBERS = (float, int, Real)  # the last takes longest to tell


class Matrices(NamedTuple):
    """Images as matrices (pixels, maps): operands, and where there is to be one, a result and its room."""

    operands: list[Tensor]
    out: Any
    room: Emptied | None

    def end(self) -> None:
        """Say that the result was written."""
        if self.room is not None:
            self.room.end(in_order=False)


class Places(Making, Words):
    """The checks and copies that the methods of all primitives share."""

    primitives: Any
    evaluate: Callable[..., list[Tensor]]
    compat_mode: str | None

    def _own(self, primitive: str, **tensors: Any) -> None:
        """Raise an error unless all are tensors of this backend, and it was not cleaned up."""
        self._named(primitive, self._check_open)
        for name, t in tensors.items():
            if not isinstance(t, Tensor):
                raise TypeError(f"be.{primitive}: {name} is a tensor; got {describe(t)}")
            if t.backend is not self:
                raise ValueError(
                    f"be.{primitive}: {name}, {describe(t)}, belongs to {t.backend!r} and not to {self!r}: "
                    "copy it across with be.array(t)"
                )

    def _named(self, primitive: str, f: Callable[..., Any], *args: Any) -> Any:
        """Return ``f(*args)``; its errors name the primitive."""
        try:
            return f(*args)
        except (ValueError, TypeError, IndexError, RuntimeError) as error:
            raise type(error)(f"be.{primitive}: {error}") from None

    def _whole_numbers(self, primitive: str, least: int, **numbers: Any) -> tuple[int, ...]:
        """Return whole numbers as Python's own, after checks."""
        for name, n in numbers.items():
            single = hasattr(n, "__index__") and not getattr(n, "ndim", 0) and not isinstance(n, bool)
            if not single or n.__index__() < least:
                raise ValueError(f"be.{primitive}: {name} is a whole number from {least}; got {n!r}")
        return tuple(n.__index__() for n in numbers.values())

    def _numbers(self, primitive: str, **numbers: Any) -> list[float]:
        """Return numbers as Python's own, which leave the dtype of an array alone; TypeError for what is none."""
        for name, n in numbers.items():
            if not isinstance(n, NUMBERS):
                raise TypeError(f"be.{primitive}: {name} is a number; got {describe(n)}")
        return [float(n) for n in numbers.values()]

    def _one_float(self, primitive: str, **tensors: Tensor) -> None:
        """Raise TypeError unless all are of one float dtype."""
        dtypes = {name: t.info.dtype for name, t in tensors.items()}
        if len(set(dtypes.values())) > 1 or not set(dtypes.values()) <= set(FLOATS):
            given = ", ".join(f"{name} {dtype} ({describe(tensors[name])})" for name, dtype in dtypes.items())
            raise TypeError(f"be.{primitive} takes tensors of one float dtype; got {given}: cast with be.astype")

    def _sized(self, primitive: str, layer: Any, **given: tuple[Tensor, Sequence[int], str]) -> None:
        """Raise an error unless each tensor has the layer's dtype and as many elements as a shape."""
        self._own(primitive, **{name: t for name, (t, _, _) in given.items()})
        for name, (t, shape, axes) in given.items():
            if t.size != math.prod(shape):
                raise ValueError(
                    f"be.{primitive}: {name} has the shape {tuple(shape)} = {axes}, or as many elements "
                    f"({math.prod(shape)}) in another; got {describe(t)} with {t.size}, for {layer!r}"
                )
            if t.info.dtype != layer.dtype:
                raise TypeError(
                    f"be.{primitive}: {name} is {layer.dtype}, as the layer object; got {describe(t)} of "
                    f"{t.info.dtype}: cast with be.astype, or make the layer object with that dtype"
                )

    def _computed_in(self, dtype: str) -> str:
        """Return the dtype that primitives compute in: float32 for 16 bits, unless the runtime computes with halves."""
        return "float32" if dtype in HALVES and not self.runtime.halves else dtype

    def _dense(self, t: Tensor) -> Tensor:
        """Return a tensor of the same values that is contiguous and in the dtype to compute in: itself, or a copy."""
        wide = self._computed_in(t.info.dtype)
        if t.is_contiguous and wide == t.info.dtype:
            return t
        whole = self._passing(t.shape, wide)
        whole[:] = t
        return whole

    def _passing(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        """Return a tensor for one call, which is not worth a room where images lie apart."""
        made = self.empty(shape, dtype)
        made.memory.is_shown = True  # type: ignore[attr-defined]
        return made

    @contextmanager
    def _place(self, out: Tensor, *operands: Tensor | None, start: bool = False) -> Iterator[Tensor]:
        """Give a contiguous tensor to write a result into, apart from the operands: ``out``, or one copied to it.

        ``start``: the result depends on what ``out`` holds.
        """
        wide = self._computed_in(out.info.dtype)
        alone = all(x is None or overlap(out, x) == "none" for x in operands)
        if out.is_contiguous and wide == out.info.dtype and alone:
            yield out
            return
        place = self._passing(out.shape, wide)
        if start:
            place[:] = out
        yield place
        out[:] = place

    def _shaped(self, t: Tensor, shape: tuple[int, ...]) -> Any:
        """Return the array of a contiguous tensor in another shape, to be read."""
        return self.runtime.reshape(read(t), shape)

    def _target(self, t: Tensor, shape: tuple[int, ...]) -> Any:
        """Return the array of a contiguous tensor in another shape, to be written."""
        return self.runtime.reshape(written(t), shape)

    def _images(self, t: Tensor, shape: tuple[int, ...]) -> Any:
        """Return images for a primitive to read or write: the array, or where they lie, if it has rooms for them."""
        array = self.runtime.reshape(t.storage, shape)
        return Images(t, array) if self.primitives.has_rooms else array

    # --- op-trees of images that lie apart ---

    def _by_pixels(
        self, operands: Sequence[Tensor], columns: Sequence[Tensor | None], out: Tensor | None = None
    ) -> Matrices | None:
        """Return images (maps, pixels) as matrices (pixels, maps), where they lie so and op-trees may work on that.

        ``columns``: what else the tree reads or writes; ``out``: where images are to be written, if that is to be.
        """
        rooms = [found(t) for t in operands] if self.primitives.trees_apart else []
        like = next((stored for stored in rooms if stored and not stored.in_order), None)
        if like is None or like.form.maps != len(operands[0]) or (out is not None and not can_lie_apart(out)):
            return None
        wide = [t for t in (*operands, out) if t is not None]
        if any(x is not None and x.memory is t.memory for x in columns for t in wide):
            return None
        if out is not None and any(t.memory is out.memory and t.span != out.span for t in operands):
            return None
        stores = [brought(t, like.form, self.primitives) for t in operands]
        if not all(stores):
            return None
        made = [self._matrix(t, stored, like.form) for t, stored in zip(operands, stores, strict=True)]
        if out is None:
            return Matrices(made, None, None)
        empty = emptied(out, like.form, self.primitives)
        return Matrices(made, self._matrix(out, empty.stored, like.form), empty)

    def _matrix(self, t: Tensor, stored: Any, form: Any) -> Tensor:
        """Return the room of a tensor as a matrix: the same each time, as long as nothing changed."""
        shape = form.pixels * form.images, form.maps
        if stored.matrix is None or stored.matrix[0] is not stored.place or stored.matrix[1].shape != shape:
            stored.entry.is_shown = True  # a room has no room
            array = self.runtime.reshape(stored.place[: t.size], shape)
            stored.matrix = stored.place, Tensor(array, self.leaf_info(shape, t.info.dtype), memory=stored.entry)
        found: Tensor = stored.matrix[1]
        return found
