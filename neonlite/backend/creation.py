"""Tensor creation: empty, zeros, ones, array, from_dlpack and iobuf; shapes and dtypes of arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from neonlite.backend import batch_size, measure
from neonlite.backend.tensor import Tensor
from neonlite.backend.validation import IgnoreFPErrors, check_open, checks_names
from neonlite.messages import NO_COMPLEX, describe
from neonlite.ops.functions import Shape, at_least_2d, contiguous_strides, is_contiguous, is_transposed, memory_span
from neonlite.optree import Operand, OpTreeNode
from neonlite.tree_structure import Info
from neonlite.typing import (
    FLOAT_DTYPES,
    INSTALL_ML_DTYPES,
    INT_DTYPES,
    LIMITS,
    ArrayLike,
    BackendBase,
    DTypeLike,
    NativeArray,
    NumPyArray,
    ShapeLike,
    dtype_bits,
    is_real_array,
    overflow_message,
)

DATATYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}  # neon's short names

MISSING_DTYPE_HINTS = {  # dtype -> what to use instead
    "bool": "Booleans are stored as 0 and 1: use uint8.",
    "bfloat16": f"The runtimes gpu and torch support it with ml_dtypes ({INSTALL_ML_DTYPES}); else use float32.",
    "complex64": NO_COMPLEX,
    "complex128": NO_COMPLEX,
}


class ShapeMethods(BackendBase):
    """The methods of ``Backend`` that check shapes and dtypes."""

    def shape_of(self, shape: ShapeLike | Sequence[ShapeLike], allow_unknown: bool = False) -> Shape:
        """Return a shape as a tuple of at least two sizes: 5 and (5,) become (5, 1).

        Parameters
        ----------
        shape : int or sequence of int
            The shape.
        allow_unknown : bool
            Whether sizes may be -1; default False.

        Returns
        -------
        tuple of int
            The shape.

        Raises
        ------
        TypeError
            A size is not an integer.
        ValueError
            A size is negative.
        """
        sizes: Sequence[Any] = shape if isinstance(shape, tuple | list) else (shape,)
        if len(sizes) > 1 and {*map(type, sizes)} == {int} and min(sizes) >= 0:
            return tuple(sizes)
        for n in sizes:
            if isinstance(n, bool) or not hasattr(n, "__index__"):
                raise TypeError(f"shape: expected integers as sizes, got {describe(shape)}")
            if n.__index__() < (-1 if allow_unknown else 0):
                raise ValueError(f"shape: expected sizes >= 0, got the negative size {n} in {describe(shape)}")
        return at_least_2d(tuple(n.__index__() for n in sizes))

    def dtype_name(self, dtype: DTypeLike) -> str:
        """Return the name of a dtype, such as "float32".

        Parameters
        ----------
        dtype : dtype or None
            A NumPy dtype, its name, or a short name such as "f16"; None is ``be.default_dtype``.

        Returns
        -------
        str
            The name.

        Raises
        ------
        TypeError
            The backend does not support the dtype.
        """
        if dtype is None:
            return self.default_dtype_name
        if type(dtype) is str and (dtype := DATATYPES.get(dtype, dtype)) in self.runtime.dtypes:
            return str(dtype)
        try:
            name: str = np.dtype(dtype).name  # type: ignore[arg-type]  # NumPy lists no other classes
        except TypeError:
            name = str(dtype)
        if name not in self.runtime.dtypes:
            supported = ", ".join(self.runtime.dtypes)
            hint = f". {MISSING_DTYPE_HINTS[name]}" if name in MISSING_DTYPE_HINTS else ""
            hint = ". Pass a shape as one tuple: be.zeros((2, 3))." if isinstance(dtype, int) else hint
            raise TypeError(f"backend {self.name!r}: expected one of the dtypes {supported}, got {name!r}{hint}")
        return name

    def numpy_dtype(self, name: str) -> np.dtype[Any]:
        """Return the NumPy dtype of a name.

        Parameters
        ----------
        name : str
            The name, such as "float32".

        Returns
        -------
        numpy.dtype
            The dtype.
        """
        return np.dtype(name)

    def tensor_info(self, shape: Shape, dtype: str, strides: Shape | None = None) -> Info:
        """Return the Info that all tensors of one shape, dtype and order in memory share.

        Parameters
        ----------
        shape : tuple of int
            The shape, of at least two sizes.
        dtype : str
            The name of the dtype.
        strides : tuple of int, optional
            The strides, in elements. By default, the tensor is contiguous.

        Returns
        -------
        Info
            Shape, dtype, strides and backend.
        """
        contiguous = strides is None or is_contiguous(shape, strides)
        transposed = strides is not None and is_transposed(shape, strides)
        key = (shape, dtype, contiguous, transposed)
        info: Info | None = self.infos.get(key)
        if info is None:
            info = Info(shape=shape, op="tensor")
            size = math.prod(shape)
            info.attrs = {"contiguous": contiguous, "strides": contiguous_strides(shape), "span": (0, size)}
            info.attrs |= {"transposed": transposed, "nbytes": size * dtype_bits(dtype) // 8}
            info.op_def, info.be, info.operand_types, info.num_children = None, self, (), 0
            info.shape, info.dtype, info.compute_dtype = shape, dtype, dtype
            info.find = self.structures.get
            info = self.infos.add(key, info)
        return info


def dtype_of(dtype: Any) -> Any:
    """Return the NumPy dtype of a short name such as "f32", or of anything that NumPy converts to a dtype."""
    return np.dtype(DATATYPES.get(dtype, dtype))


# --- tensor creation: empty, zeros, ones, array, from_dlpack and iobuf ---

# {item size in bytes: all memory of other libraries}. Arrays of one item size share one such allocation, with storage
# offsets of address / item size, so that two arrays on the same memory are found to overlap.
_external_memory: dict[int, measure.ExternalMemory] = {}


class CreationMethods(BackendBase):
    """The methods of ``Backend`` that create tensors."""

    @checks_names
    def empty(
        self,
        shape: ShapeLike,
        dtype: DTypeLike = None,
        name: str | None = None,
        persist_values: bool = True,
        parallel: bool = False,
        distributed: bool = False,
    ) -> Tensor:
        """Return a tensor of uninitialized values.

        Parameters
        ----------
        shape : int or tuple of int
            The shape; n and (n,) become (n, 1).
        dtype : dtype, optional
            The dtype; default ``be.default_dtype``.
        name : str, optional
            The name in printed trees and error messages.
        persist_values : bool
            False if writing another tensor of the same memory may discard the values; default True.
        parallel, distributed : bool
            For compatibility with neon, without effect.

        Returns
        -------
        Tensor
            A new tensor.
        """
        return _allocate_tensor(self, self.runtime.empty, shape, dtype, name, persist_values)

    @checks_names
    def zeros(
        self,
        shape: ShapeLike,
        dtype: DTypeLike = None,
        name: str | None = None,
        persist_values: bool = True,
        parallel: bool = False,
        distributed: bool = False,
    ) -> Tensor:
        """Return a tensor of zeros.

        Parameters
        ----------
        shape : int or tuple of int
            The shape; n and (n,) become (n, 1).
        dtype : dtype, optional
            The dtype; default ``be.default_dtype``.
        name : str, optional
            The name in printed trees and error messages.
        persist_values : bool
            False if writing another tensor of the same memory may discard the values; default True.
        parallel, distributed : bool
            For compatibility with neon, without effect.

        Returns
        -------
        Tensor
            A new tensor.

        Examples
        --------
        >>> import neonlite as nl
        >>> be = nl.gen_backend("cpu")
        >>> be.zeros(3).shape
        (3, 1)
        """
        return _allocate_tensor(self, self.xp.zeros, shape, dtype, name, persist_values)

    @checks_names
    def ones(
        self,
        shape: ShapeLike,
        dtype: DTypeLike = None,
        name: str | None = None,
        persist_values: bool = True,
        parallel: bool = False,
        distributed: bool = False,
    ) -> Tensor:
        """Return a tensor of ones.

        Parameters
        ----------
        shape : int or tuple of int
            The shape; n and (n,) become (n, 1).
        dtype : dtype, optional
            The dtype; default ``be.default_dtype``.
        name : str, optional
            The name in printed trees and error messages.
        persist_values : bool
            False if writing another tensor of the same memory may discard the values; default True.
        parallel, distributed : bool
            For compatibility with neon, without effect.

        Returns
        -------
        Tensor
            A new tensor.
        """
        return _allocate_tensor(self, self.xp.ones, shape, dtype, name, persist_values)

    @checks_names
    def array(
        self,
        ary: ArrayLike,
        dtype: DTypeLike = None,
        name: str | None = None,
        persist_values: bool = True,
        parallel: bool = False,
        distributed: bool = False,
    ) -> Tensor:
        """Return a tensor with a copy of values.

        Parameters
        ----------
        ary : array_like, scalar, Tensor or OpTreeNode
            The values; tensors may belong to another backend.
        dtype : dtype, optional
            The dtype to cast to; default ``be.default_dtype``, also for integers.
        name : str, optional
            The name in printed trees and error messages.
        persist_values : bool
            False if writing another tensor of the same memory may discard the values; default True.
        parallel, distributed : bool
            For compatibility with neon, without effect.

        Returns
        -------
        Tensor
            A new tensor; values of fewer than two dimensions become (n, 1).

        Raises
        ------
        TypeError
            The values are not numbers.
        ValueError
            Nested lists of different lengths, or NaN for an integer dtype.
        OverflowError
            A Python scalar, alone or in a list, does not fit an integer dtype. Arrays are cast, as in NumPy.

        Examples
        --------
        >>> import neonlite as nl
        >>> be = nl.gen_backend("cpu")
        >>> be.array([[1, 2], [3, 4]], name="x")
        Tensor([[1. 2.]
                [3. 4.]], 'x', (2, 2), float32, cpu)
        """
        dtype_name: str = self.dtype_name(dtype)
        values = to_host_array(self, ary, dtype_name)
        shape = at_least_2d(values.shape)
        with IgnoreFPErrors():
            values = values.astype(dtype_name, copy=False).reshape(shape)
        return _allocate_tensor(
            self, lambda *_, **__: self.runtime.put(values), shape, dtype_name, name, persist_values
        )

    asarray = tensor = array

    def from_dlpack(self, x: object, name: str | None = None) -> Tensor:
        """Return a tensor that shares the memory of an array of another library or backend, without a copy.

        Parameters
        ----------
        x : array
            An array with ``__dlpack__``, such as one of NumPy, PyTorch, CuPy or another backend. (n,) becomes (n, 1).
        name : str, optional
            The name in printed trees and error messages.

        Returns
        -------
        Tensor
            A tensor on the same memory.

        Raises
        ------
        BufferError
            The array cannot be shared: it is on another device, or read-only.
        TypeError
            The object has no ``__dlpack__``, or the backend does not support its dtype.

        References
        ----------
        The DLPack protocol of the array-API standard.
        """
        check_open(self)
        if not hasattr(x, "__dlpack__"):
            raise TypeError(
                f"be.from_dlpack: expected an array with __dlpack__, got {describe(x)}. Copy it with be.array."
            )
        device = getattr(x, "__dlpack_device__", lambda: (1, 0))()
        if device[0] == 2 and self.runtime.mem_get_info() and device[1] != self.runtime.device_id:
            raise BufferError(
                f"be.from_dlpack({describe(x)}): expected an array on device {self.runtime.device_id} of the backend "
                f"{self.name!r}, got one on device {device[1]}. Copy it with be.array."
            )
        try:
            array = self.xp.from_dlpack(x)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise BufferError(f"be.from_dlpack({describe(x)}): {error}. Copy it with be.array.") from error
        if isinstance(x, np.ndarray) and not x.flags.writeable and not isinstance(array, np.ndarray):
            raise BufferError(
                f"be.from_dlpack({describe(x)}): expected a writable array, got a read-only one. Copy it with be.array."
            )
        while array.ndim < 2:
            array = self.xp.expand_dims(array, axis=-1)
        dtype, shape = self.dtype_name(str(array.dtype).split(".")[-1]), tuple(array.shape)
        address, byte_strides = self.runtime.address_and_strides(array)
        size = np.dtype(dtype).itemsize
        strides = tuple(stride // size for stride in byte_strides)
        t = Tensor(array, self.tensor_info(shape, dtype, strides), name, strides=strides)
        t.allocation, t.storage_offset = _external_memory.setdefault(size, measure.ExternalMemory()), address // size
        for exporter in list(self.exported.values()):
            first = self.runtime.address_and_strides(exporter._array)[0]
            if exporter.info.dtype == dtype and first <= address < first + exporter.size * size:
                t.allocation, t.storage_offset = exporter.allocation, (address - first) // size
        t.span = memory_span(shape, strides, t.storage_offset)
        return t

    def register_export(self, t: Tensor) -> NativeArray:
        """Export the memory of a tensor to other libraries; ``from_dlpack`` recognizes it later.

        Parameters
        ----------
        t : Tensor
            The tensor.

        Returns
        -------
        array
            The runtime's array.
        """
        self.exported[id(t.root)] = t.root
        return t._array

    @checks_names
    def empty_like(
        self, other_ary: ArrayLike, dtype: DTypeLike = None, name: str | None = None, persist_values: bool = True
    ) -> Tensor:
        """Return a tensor of uninitialized values in the shape of a tensor or array.

        Parameters
        ----------
        other_ary : Tensor or array_like
            The tensor or array.
        dtype : dtype, optional
            The dtype; default that of a tensor, else ``be.default_dtype``.
        name : str, optional
            The name in printed trees and error messages.
        persist_values : bool
            False if writing another tensor of the same memory may discard the values; default True.

        Returns
        -------
        Tensor
            A new tensor.
        """
        return self.empty(*_shape_and_dtype(other_ary, dtype), name, persist_values)

    @checks_names
    def zeros_like(
        self, other_ary: ArrayLike, dtype: DTypeLike = None, name: str | None = None, persist_values: bool = True
    ) -> Tensor:
        """Return a tensor of zeros in the shape of a tensor or array.

        Parameters
        ----------
        other_ary : Tensor or array_like
            The tensor or array.
        dtype : dtype, optional
            The dtype; default that of a tensor, else ``be.default_dtype``.
        name : str, optional
            The name in printed trees and error messages.
        persist_values : bool
            False if writing another tensor of the same memory may discard the values; default True.

        Returns
        -------
        Tensor
            A new tensor.
        """
        return self.zeros(*_shape_and_dtype(other_ary, dtype), name, persist_values)

    @checks_names
    def ones_like(
        self, other_ary: ArrayLike, dtype: DTypeLike = None, name: str | None = None, persist_values: bool = True
    ) -> Tensor:
        """Return a tensor of ones in the shape of a tensor or array.

        Parameters
        ----------
        other_ary : Tensor or array_like
            The tensor or array.
        dtype : dtype, optional
            The dtype; default that of a tensor, else ``be.default_dtype``.
        name : str, optional
            The name in printed trees and error messages.
        persist_values : bool
            False if writing another tensor of the same memory may discard the values; default True.

        Returns
        -------
        Tensor
            A new tensor.
        """
        return self.ones(*_shape_and_dtype(other_ary, dtype), name, persist_values)

    def iobuf(
        self,
        dim0: ShapeLike,
        x: Tensor | None = None,
        dtype: DTypeLike = None,
        name: str | None = None,
        persist_values: bool = True,
        shared: Tensor | None = None,
        parallelism: str | None = None,
    ) -> Tensor:
        """Return a buffer of zeros for a minibatch of ``be.bsz`` samples.

        Parameters
        ----------
        dim0 : int or tuple of int
            The shape without the batch dimension: n gives (n, N), (F, T) gives (F, T * N), and more sizes give
            (product, N).
        x : Tensor, optional
            A buffer to return instead.
        dtype : dtype, optional
            The dtype; default ``be.default_dtype``.
        name : str, optional
            The name in printed trees and error messages.
        persist_values : bool
            For compatibility with neon, without effect.
        shared : Tensor, optional
            A tensor whose memory the buffer uses.
        parallelism : str, optional
            For compatibility with neon, without effect.

        Returns
        -------
        Tensor
            The buffer.

        Raises
        ------
        ValueError
            The batch size is not set.
        """
        if x is not None:
            return x
        sizes = self.shape_of(dim0)
        batch_size.require_batch_size(self, "be.iobuf")
        shape = (sizes[0], sizes[1] * self.bsz) if len(sizes) == 2 else (math.prod(sizes), self.bsz)
        return self.zeros(shape, dtype, name) if shared is None else shared.share(shape, dtype, name).fill(0)

    def shared_iobuf_size(self, shape: ShapeLike, parallelism: str | None = None) -> int:
        """Return the number of elements of a buffer that layers share.

        Parameters
        ----------
        shape : int or tuple of int
            The shape of the buffer.
        parallelism : str, optional
            For compatibility with neon, without effect.

        Returns
        -------
        int
            The number of elements.
        """
        return math.prod(self.shape_of(shape))

    def snapshot(self, array: ArrayLike, other: object, is_row: bool = False) -> Tensor:
        """Copy an array that is an operand of an op to a tensor of a dtype that suits the other operand.

        The dtype is the other operand's if that is a float, the array's own if both are integers, else the default.

        Parameters
        ----------
        array : array_like
            The array.
        other : object
            The other operand.
        is_row : bool
            Whether an array of one dimension is a row, as in NumPy, if the other operand is a tensor or op-tree.

        Returns
        -------
        Tensor
            The copy.

        Raises
        ------
        ValueError
            The array would be a row of n elements beside a column of n, for which NumPy computes n x n elements.
        """
        values = to_host_array(self, array, self.default_dtype_name)
        dtype = other.info.dtype if isinstance(other, Operand) else self.default_dtype_name
        if dtype in INT_DTYPES and values.dtype.kind in "iu":
            dtype = values.dtype.name
        elif dtype not in FLOAT_DTYPES:
            dtype = self.default_dtype_name
        return self.array(as_row(values, other) if is_row and isinstance(other, Operand) else values, dtype)


def _allocate_tensor(
    be: BackendBase,
    create: Callable[..., Any],
    shape: ShapeLike,
    dtype: DTypeLike,
    name: str | None,
    persist_values: bool,
) -> Tensor:
    """Return a tensor of the array that ``create`` allocates."""
    check_open(be)
    t = new_tensor(be, create, be.tensor_info(be.shape_of(shape), be.dtype_name(dtype)), name)
    t.persist_values = persist_values
    return t


def new_tensor(be: BackendBase, create: Callable[..., Any], info: Info, name: str | None = None) -> Tensor:
    """Return a tensor of the array that ``create`` allocates."""
    try:
        array = create(info.shape, dtype=be.runtime.dtype(info.dtype))
    except Exception as error:
        what = f"{name or 'a tensor'} {info.shape} {info.dtype}, {measure.format_bytes(info.attrs['nbytes'])}"
        raise be.runtime.allocation_error(error, what) from error
    return Tensor(array, info, name, allocation=be.memory_tracker.track(info.attrs["nbytes"]))


def adopt(be: BackendBase, values: NumPyArray) -> Tensor:
    """Return a tensor with the values of a new array of at least two dimensions, in its memory if the runtime can."""
    with IgnoreFPErrors():
        values = values.astype(be.dtype_name(values.dtype), copy=False)
    return _allocate_tensor(be, lambda *_, **__: be.runtime.adopt(values), values.shape, values.dtype, None, True)


def _shape_and_dtype(ary: ArrayLike, dtype: DTypeLike) -> tuple[Shape, DTypeLike]:
    if isinstance(ary, Operand):
        return ary.shape, ary.info.dtype if dtype is None else dtype
    return np.shape(ary), dtype


def as_row(values: NumPyArray, *others: Operand) -> NumPyArray:
    """Return an array of one dimension as a row, as NumPy broadcasts it, and any other one unchanged.

    ValueError beside a column of as many elements, n: the result would be n x n.
    """
    if values.ndim != 1:
        return values
    n = len(values)
    column = next((x for x in others if n > 1 and x.shape == (n, 1)), None)
    if column is not None:
        raise ValueError(
            f"{describe(column)} and an array ({n},): expected an array of two dimensions beside a column of as many "
            "elements. Use v[:, None], a column; or v[None, :], the row that NumPy would broadcast to n x n."
        )
    return values[None, :]


def to_host_array(be: BackendBase, values: object, dtype: str | None, where: str | Tensor = "be.array") -> NumPyArray:
    """Return values as a NumPy array of numbers, to be cast to a dtype; None keeps integers exact.

    Raises an error for ragged lists, objects and strings, and for Python scalars that do not fit an integer dtype. It
    names the function, or the target of an assignment.
    """

    def describe_call() -> str:
        return f"an assignment to {describe(where)}" if isinstance(where, Tensor) else where

    if isinstance(values, OpTreeNode):
        values = values.astensor()
    if isinstance(values, Tensor):
        return be.runtime.host_values(values)
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{describe_call()}: expected nested lists of equal lengths, got others: {error}") from None
    numbers = None if hasattr(values, "dtype") else _exact_numbers(values, array)
    if numbers is not None:
        array = numbers
        if dtype is None and all(isinstance(x, int | np.integer) for x in array.flat):
            dtype = "uint64" if array.min() >= 0 else "int64"
    elif not is_real_array(array):
        hint = f". {NO_COMPLEX}" if array.dtype.kind == "c" else ""
        message = f"expected real numbers, got an array of {array.dtype} ({describe(values)}){hint}"
        raise TypeError(f"{describe_call()}: {message}")
    if dtype in LIMITS and array.size and not hasattr(values, "dtype"):
        low, high = LIMITS[dtype]
        for x in (array.min(), array.max()):
            x = x.item() if isinstance(x, np.generic) else x
            if not low - 1 < x < high + 1:  # a float is truncated
                raise (ValueError if math.isnan(x) else OverflowError)(
                    f"{describe_call()}: {overflow_message(x, dtype)}"
                )
    if numbers is not None:
        array = array.astype(dtype if dtype in LIMITS else np.float64)
    return be.runtime.host_values(array)


def _exact_numbers(values: object, array: NumPyArray) -> NumPyArray | None:
    """Return nested lists as an array of Python numbers, if NumPy's array of them rounds integers to float64."""
    if array.dtype.kind not in "fO" or (array.dtype.kind == "f" and not (np.abs(array) >= 2.0**53).any()):
        return None
    numbers = np.asarray(values, object)
    is_numeric = all(isinstance(x, int | float | np.bool | np.integer | np.floating) for x in numbers.flat)
    return numbers if numbers.shape == array.shape and is_numeric else None
