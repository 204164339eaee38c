"""How are tensors made?  From shapes, arrays, numbers, other tensors; with the checks that all of these share."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from neonlite.backend.bfloat16 import PIP, holds_numbers
from neonlite.backend.executors.quiet import Silence
from neonlite.backend.memory import Ledger, NoRoom, Room
from neonlite.backend.plan import size as bytes_in_words
from neonlite.backend.tensor import Tensor, reach
from neonlite.ops import FLOATS, INTS, Shape, bits, c_strides, is_c, two_dims
from neonlite.optree import REMEMBERED, Info, Operand, OpTreeNode, describe

CLOSED = (
    "was cleaned up: its tensors can still be read with .get(), but nothing is worked out on it; call gen_backend()"
)

LACKED = {  # what helps where a dtype is not there
    "bool": "truth values are kept as 0 and 1: use uint8",
    "bfloat16": f"the runtimes gpu and torch have it, where ml_dtypes is installed: {PIP}; else use float32",
}

# The memory of arrays of other libraries, by the size of an element: offsets in it are addresses, counted in elements.
_foreign: dict[int, object] = {}


class Making:
    """The tensor-making half of a backend."""

    runtime: Any
    xp: Any
    name: str
    default: str
    closed: bool
    ledger: Ledger
    _infos: dict[Any, Info]
    _lent: weakref.WeakValueDictionary[int, Tensor]

    # --- shapes, dtypes, batch size ---

    @property
    def default_dtype(self) -> Any:
        """The dtype of new tensors, as NumPy's."""
        return np.dtype(self.default)

    @property
    def bsz(self) -> int:
        """The batch size N; 0 as long as it is not set."""
        return self._bsz

    @bsz.setter
    def bsz(self, n: int) -> None:
        if isinstance(n, bool) or not hasattr(n, "__index__") or n.__index__() < 0:
            raise ValueError(f"the batch size is a whole number from 1, or 0 for not set yet; got {n!r}")
        self._bsz = n.__index__()

    def shape_of(self, shape: Any, unknown: bool = False) -> Shape:
        """Return a shape as a tuple of at least two sizes: 5 and (5,) are (5, 1). ``unknown`` allows -1."""
        sizes = shape if isinstance(shape, tuple | list) else (shape,)
        if len(sizes) > 1 and {*map(type, sizes)} == {int} and min(sizes) >= 0:
            return tuple(sizes)
        for n in sizes:
            if isinstance(n, bool) or not hasattr(n, "__index__"):
                raise TypeError(f"a shape is made of whole numbers; got {describe(shape)}")
            if n.__index__() < (-1 if unknown else 0):
                raise ValueError(f"sizes are not negative; got {describe(shape)}")
        return two_dims(tuple(n.__index__() for n in sizes))

    def dtype_name(self, dtype: Any) -> str:
        """Return the name of a dtype; None is the default. TypeError when this backend does not have it."""
        if dtype is None:
            return self.default
        if type(dtype) is str and dtype in self.runtime.dtypes:
            return dtype
        try:
            name: str = np.dtype(dtype).name
        except TypeError:
            name = str(dtype)
        if name not in self.runtime.dtypes:
            known = ", ".join(self.runtime.dtypes)
            hint = f" ({LACKED[name]})" if name in LACKED else ""
            raise TypeError(f"the backend {self.name!r} has no dtype {name!r}{hint}; it has {known}")
        return name

    def numpy_dtype(self, name: str) -> Any:
        """Return NumPy's dtype of a name."""
        return np.dtype(name)

    def leaf_info(self, shape: Shape, dtype: str, contiguous: bool = True) -> Info:
        """Return the Info that all tensors of this shape, dtype and layout share."""
        key = (shape, dtype, contiguous)
        info = self._infos.get(key)
        if info is None:
            info = Info(shape=shape, op="tensor")
            size = math.prod(shape)
            info.attrs = {"contiguous": contiguous, "strides": c_strides(shape), "span": (0, size)}
            info.attrs["nbytes"] = size * bits(dtype) // 8
            info.row, info.be, info.parts, info.slots = None, self, (), 0
            info.shape, info.dtype, info.common = shape, dtype, dtype
            if len(self._infos) > REMEMBERED:
                self._infos.clear()
            info = self._infos.setdefault(key, info)
        return info

    # --- making tensors ---

    def empty(
        self,
        shape: Any,
        dtype: Any = None,
        name: str | None = None,
        persist_values: bool = True,
        parallel: bool = False,
        distributed: bool = False,
    ) -> Tensor:
        """Return a tensor whose values are not set."""
        return self._new(self.xp.empty, shape, dtype, name, persist_values)

    def zeros(
        self,
        shape: Any,
        dtype: Any = None,
        name: str | None = None,
        persist_values: bool = True,
        parallel: bool = False,
        distributed: bool = False,
    ) -> Tensor:
        """Return a tensor of zeros."""
        return self._new(self.xp.zeros, shape, dtype, name, persist_values)

    def ones(
        self,
        shape: Any,
        dtype: Any = None,
        name: str | None = None,
        persist_values: bool = True,
        parallel: bool = False,
        distributed: bool = False,
    ) -> Tensor:
        """Return a tensor of ones."""
        return self._new(self.xp.ones, shape, dtype, name, persist_values)

    def _new(self, make: Callable[..., Any], shape: Any, dtype: Any, name: str | None, persist_values: bool) -> Tensor:
        self._check_open()
        shape, dtype = self.shape_of(shape), self.dtype_name(dtype)
        info = self.leaf_info(shape, dtype)
        try:
            array = make(shape, dtype=self.runtime.dtype(dtype))
        except Exception as error:
            what = f"{name or 'a tensor'} {shape} {dtype}, {bytes_in_words(info.attrs['nbytes'])}"
            raise self._cause(error, what) from error
        made = Tensor(array, info, name, memory=self.ledger.hold(info.attrs["nbytes"]))
        made.persist_values = persist_values
        return made

    def _cause(self, error: Exception, what: str) -> Exception:
        """Return an error of the library, with what was wanted and what helps where memory is short."""
        error = self.runtime.explained(error)
        short = isinstance(error, MemoryError) and not isinstance(error, NoRoom)
        return self.runtime.no_room(what) if short else error

    def device_memory(self) -> Room | None:
        """Return the memory of the device: what is free, to others or to this backend, and all; None for the host's.

        ``be.memory()`` tells what of the rest this backend has.
        """
        room = self.runtime.room()
        return None if room is None else Room(*room)

    def array(
        self,
        ary: Any,
        dtype: Any = None,
        name: str | None = None,
        persist_values: bool = True,
        parallel: bool = False,
        distributed: bool = False,
    ) -> Tensor:
        """Return a tensor with a copy of the values of an array, a number, nested lists, or a tensor of any backend.

        Values are cast to ``dtype``, the default dtype unless given, also from ints.
        """
        values = self._host(ary)
        dtype = self.dtype_name(dtype)
        shape = two_dims(values.shape)
        with Silence():
            values = values.astype(dtype, copy=False).reshape(shape)
        return self._new(lambda *_, **__: self.runtime.put(values), shape, dtype, name, persist_values)

    def from_dlpack(self, x: Any, name: str | None = None) -> Tensor:
        """Return a tensor that shares the memory of an array of any library: NumPy, PyTorch, CuPy, another backend.

        Nothing is copied: what is written to one is seen in the other. BufferError when the array cannot be shared, as
        when it lies on another device; TypeError for a dtype that this backend does not have. A 1-d array is a column.
        Source: the DLPack protocol of the array-API standard.
        """
        self._check_open()
        if not hasattr(x, "__dlpack__"):
            raise TypeError(f"be.from_dlpack takes an array with __dlpack__; got {describe(x)}: copy it with be.array")
        there = getattr(x, "__dlpack_device__", lambda: (1, 0))()
        if there[0] == 2 and self.runtime.room() and there[1] != self.runtime.device_id:
            raise BufferError(
                f"be.from_dlpack({describe(x)}): it lies on device {there[1]}, and the backend {self.name!r} works on "
                f"device {self.runtime.device_id}: copy it with be.array"
            )
        try:
            array = self.xp.from_dlpack(x)
        except (BufferError, RuntimeError, ValueError) as error:
            raise BufferError(f"be.from_dlpack({describe(x)}): {error}: copy it with be.array") from error
        if isinstance(x, np.ndarray) and not x.flags.writeable and not isinstance(array, np.ndarray):
            raise BufferError(f"be.from_dlpack({describe(x)}): the array is read-only: copy it with be.array")
        while array.ndim < 2:
            array = self.xp.expand_dims(array, axis=-1)
        dtype, shape = self.dtype_name(str(array.dtype).split(".")[-1]), tuple(array.shape)
        address, steps = self.runtime.layout(array)
        size = np.dtype(dtype).itemsize
        strides = tuple(step // size for step in steps)
        made = Tensor(array, self.leaf_info(shape, dtype, is_c(shape, strides)), name, strides=strides)
        made.memory, made.start = _foreign.setdefault(size, object()), address // size
        for lender in list(self._lent.values()):
            first = self.runtime.layout(lender._array)[0]
            if lender.info.dtype == dtype and first <= address < first + lender.size * size:
                made.memory, made.start = lender.memory, (address - first) // size
        made.span = reach(shape, strides, made.start)
        return made

    def lend(self, t: Tensor) -> Any:
        """Return the array of a tensor, to be shared; ``from_dlpack`` knows its memory when it comes back."""
        self._lent[id(t.root)] = t.root
        return t._array

    def empty_like(
        self, other_ary: Any, dtype: Any = None, name: str | None = None, persist_values: bool = True
    ) -> Tensor:
        """Return a tensor of the shape of another or of an array; of a tensor also the dtype, unless told."""
        return self.empty(*self._like(other_ary, dtype), name, persist_values)

    def zeros_like(
        self, other_ary: Any, dtype: Any = None, name: str | None = None, persist_values: bool = True
    ) -> Tensor:
        """Return a tensor of zeros of the shape of another or of an array; of a tensor also the dtype, unless told."""
        return self.zeros(*self._like(other_ary, dtype), name, persist_values)

    def ones_like(
        self, other_ary: Any, dtype: Any = None, name: str | None = None, persist_values: bool = True
    ) -> Tensor:
        """Return a tensor of ones of the shape of another or of an array; of a tensor also the dtype, unless told."""
        return self.ones(*self._like(other_ary, dtype), name, persist_values)

    def _like(self, ary: Any, dtype: Any) -> tuple[Shape, Any]:
        if isinstance(ary, Operand):
            return ary.shape, ary.info.dtype if dtype is None else dtype
        return np.shape(ary), dtype

    def iobuf(
        self,
        dim0: Any,
        x: Any = None,
        dtype: Any = None,
        name: str | None = None,
        persist_values: bool = True,
        shared: Tensor | None = None,
        parallelism: str | None = None,
    ) -> Any:
        """Return a buffer of zeros for a minibatch: (n, N) for n; (F, T * N) for (F, T); (product, N) for more sizes.

        ``x`` is returned as it is when given; ``shared`` is a tensor whose memory is used.
        """
        if x is not None:
            return x
        if not self.bsz:
            raise ValueError("the batch size is not set yet: gen_backend(batch_size=N), or be.bsz = N")
        sizes = tuple(dim0) if isinstance(dim0, tuple | list) else (dim0,)
        shape = (sizes[0], sizes[1] * self.bsz) if len(sizes) == 2 else (math.prod(sizes), self.bsz)
        return self.zeros(shape, dtype, name) if shared is None else shared.share(shape, dtype, name).fill(0)

    def shared_iobuf_size(self, shape: Any, parallelism: str | None = None) -> int:
        """Return the elements of a buffer that layers share."""
        return math.prod(self.shape_of(shape))

    def snapshot(self, array: Any, beside: Any) -> Tensor:
        """Return a copy of an array that stands as an operand beside another: in its dtype when that is a float."""
        values = self._host(array)
        dtype = beside.info.dtype if isinstance(beside, Operand) else self.default
        if dtype in INTS and values.dtype.kind in "iu":
            dtype = values.dtype.name
        elif dtype not in FLOATS:
            dtype = self.default
        return self.array(values, dtype)

    def _host(self, values: Any, what: str = "be.array") -> np.ndarray[Any, Any]:
        """Return values as a NumPy array of numbers; errors for ragged lists, objects and words."""
        if isinstance(values, OpTreeNode):
            values = values.astensor()
        if isinstance(values, Tensor):
            return values.peek()
        try:
            array = np.asarray(values)
        except ValueError as error:
            raise ValueError(f"{what} takes nested lists of equal lengths: {error}") from None
        if not holds_numbers(array):
            raise TypeError(f"{what} takes numbers; got an array of {array.dtype} ({describe(values)})")
        return array

    def _check_open(self) -> None:
        if self.closed:
            raise RuntimeError(f"the backend {self.name!r} {CLOSED}")
        self.runtime.check()
