"""Array: an array of any number of dimensions, from 0 on, by the array-API standard; its value is an op-tree.

An op-tree has at least two dimensions and no boolean dtype. An ``Array`` adds both: the operand of an array with fewer
dimensions has axes of size 1 in front, as in broadcasting, and that of a boolean array has the values 0 and 1, uint8.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from neonlite import typing
from neonlite.backend.creation import adopt
from neonlite.backend.tensor import Tensor
from neonlite.backend.validation import warn
from neonlite.messages import NO_COMPLEX, describe
from neonlite.numpy_methods import device_of, not_for_arrow
from neonlite.ops import OPS
from neonlite.ops.functions import Shape
from neonlite.optree import Operand, OpTreeNode, create_node
from neonlite.tree_structure import postorder

# NumPy's own object of each dtype, so that dtypes compare by identity
DTYPE_OF_NAME = {name: np.dtype(name) for name in ("bool", *typing.INT_DTYPES, "float16", "float32", "float64")}
BOOL = DTYPE_OF_NAME["bool"]
CAST, TO_UINT8 = OPS["cast"], (("to", "uint8"),)
COSTLY_KINDS = ("reduction", "library", "composite")  # kinds of ops that are computed once
MIN_STORED_BYTES = 1 << 18  # of a tensor from which such an op is computed, as the search for them takes time
MAX_PENDING_OPS = 64  # an expression of more ops is evaluated, so that a loop does not build an ever larger one


class Array:
    """An array of the namespace ``neonlite.array_api``: a value that functions and operators compute when it is needed.

    ``float(x)``, ``x.item()``, ``if x``, ``print(x)`` and ``np.asarray(x)`` evaluate the expression, once: the array
    then holds the value. An expression of tensors of a backend, or of a ``variable``, is evaluated with their current
    values each time, and ``Autodiff`` differentiates it. Arrays share no memory: ``x[i] = y`` and ``x += y`` change x
    alone.

    Attributes
    ----------
    operand : Tensor or OpTreeNode
        The expression, for Autodiff and ``be.plan``: of at least two dimensions, with 0 and 1 for a boolean array.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> xp = nl.array_api
    >>> x = xp.asarray([1.0, 2.0, 3.0])
    >>> xp.sum(x * x)
    Array(14., dtype=float32)
    >>> x[x > 1.5]
    Array([2., 3.], dtype=float32)
    """

    __slots__ = ("__weakref__", "_dtype", "_shape", "is_live", "num_ops", "operand")
    operand: OpTreeNode | Any  # or a tensor
    _shape: Shape
    _dtype: np.dtype[Any]
    is_live: int  # whether it depends on tensors whose values may change, or that gradients are taken with respect to
    num_ops: int  # ops since the last evaluation

    if TYPE_CHECKING:  # operators.py defines them

        def _binary(self, other: Any) -> Array: ...
        def _unary(self) -> Array: ...
        def _reduction(self, axis: typing.AxisLike = None, *, keepdims: bool = False) -> Array: ...
        def _sum(
            self, axis: typing.AxisLike = None, *, dtype: typing.DTypeLike = None, keepdims: bool = False
        ) -> Array: ...
        def _deviation(
            self, axis: typing.AxisLike = None, *, correction: float = 0.0, keepdims: bool = False
        ) -> Array: ...
        def astype(self, dtype: typing.DTypeLike, /, *, copy: bool = True, device: str | None = None) -> Array: ...
        def clip(self, /, min: Array | float | None = None, max: Array | float | None = None) -> Array: ...
        def cumulative_sum(
            self, axis: int | None = None, *, dtype: typing.DTypeLike = None, include_initial: bool = False
        ) -> Array: ...
        def reshape(self, *shape: typing.ShapeLike) -> Array: ...
        def round(self, digits: int = 0) -> Array: ...
        def squeeze(self, axis: typing.AxisLike) -> Array: ...
        def __eq__(self, other: Any) -> Array: ...  # type: ignore[override]
        def __ne__(self, other: Any) -> Array: ...  # type: ignore[override]
        def __getitem__(self, key: Any) -> Array: ...
        def __setitem__(self, key: Any, value: Any) -> None: ...

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _binary
        __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _binary
        __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __lshift__ = __rshift__ = _binary
        __lt__ = __le__ = __gt__ = __ge__ = _binary
        __neg__ = __pos__ = __abs__ = __invert__ = _unary
        __rlshift__ = __rrshift__ = _binary
        all = any = argmax = argmin = max = mean = min = _reduction
        prod = sum = _sum
        std = var = _deviation

    def __init__(self, *_: object) -> None:
        raise TypeError("Array: expected a function of the namespace. Call asarray(values) to create an array.")

    @property
    def backend(self) -> typing.BackendBase:
        """The backend."""
        return self.operand.backend

    # --- evaluation ---

    def tensor(self) -> Tensor:
        """Evaluate the expression.

        Returns
        -------
        Tensor
            The value, of the shape and dtype of ``operand``.
        """
        value = self.operand
        if not isinstance(value, Tensor):
            if self.is_live:
                return self.backend.evaluate([value])[0]
            self.operand = value = evaluate_constant(value)
            self.num_ops = 0
        return value

    def native(self) -> typing.NativeArray:
        """Evaluate the expression.

        Returns
        -------
        array
            The value as an array of the runtime, of this shape and dtype.
        """
        xp, value = self.backend.runtime.xp, self.tensor()._array
        value = xp.reshape(value, self.shape)
        return xp.astype(value, xp.bool) if self.dtype is BOOL else value

    def numpy(self) -> typing.NumPyArray:
        """Evaluate the expression.

        Returns
        -------
        numpy.ndarray
            A copy of the value, of this shape and dtype.
        """
        return self.tensor().get().reshape(self.shape).view(self.dtype)

    def to_numpy(self) -> typing.NumPyArray:
        """Return a copy of the value; pandas' name of ``numpy``, which Matplotlib and others call.

        Returns
        -------
        numpy.ndarray
            The value, of this shape and dtype.
        """
        return self.numpy()

    def __arrow_c_stream__(self, requested_schema: object = None) -> NoReturn:
        raise not_for_arrow(self, "x.numpy()")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> typing.NumPyArray:
        if copy is False:
            raise ValueError(f"{describe(self)}: expected copy=True or None, as NumPy gets a copy; got False.")
        self._warn_of_constant("np.asarray", "NumPy")
        value = self.numpy()
        return value if dtype is None else value.astype(dtype, copy=False)

    def _warn_of_constant(self, where: str, library: str) -> None:
        """Warn if the array depends on a variable or tensor: what a library computes from it is a constant."""
        if self.is_live and self.dtype.kind == "f":
            warn(
                f"{where}: {describe(self)} depends on a variable or tensor, and what {library} computes from it "
                "has no gradient. Use functions of the namespace, or x.numpy() for the value alone."
            )

    def item(self) -> bool | int | float:
        """Return the value of one element as a Python number.

        Returns
        -------
        bool, int or float
            The value.

        Raises
        ------
        ValueError
            The array has no or several elements.
        """
        if self.size != 1:
            raise ValueError(
                f"{describe(self)}.item(): expected one element, got {self.size}. Index the array, or reduce it "
                "with any, all, sum or max."
            )
        return self.numpy().item()

    def tolist(self) -> typing.NestedLists:
        """Return the values as nested lists, or as a number for an array without dimensions.

        Returns
        -------
        list or number
            The values.
        """
        return self.numpy().tolist()

    def _scalar(self) -> Any:
        if self.shape:
            raise TypeError(
                f"{describe(self)}: expected an array of shape () to convert to a Python number. Index it, or "
                "reduce it with any, all, sum or max."
            )
        return self.item()

    def __bool__(self) -> bool:
        return bool(self._scalar())

    def __int__(self) -> int:
        return int(self._scalar())

    def __float__(self) -> float:
        return float(self._scalar())

    def __complex__(self) -> NoReturn:
        raise TypeError(f"complex({describe(self)}): expected a conversion to a real number. {NO_COMPLEX}")

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            raise TypeError(f"{describe(self)}: expected an integer array as an index. Call int(x).")
        return int(self._scalar())

    def __divmod__(self, other: Any) -> tuple[Array, Array]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Array, Array]:
        return other // self, other % self

    def __round__(self, digits: int = 0) -> Array:
        return self.round(digits)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else repr(self)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"len({describe(self)}): expected at least one dimension.")
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        text = np.array2string(self.numpy(), separator=", ", prefix="Array(", threshold=200)
        return f"Array({text}, dtype={self.dtype.name})"

    # --- attributes ---

    @property
    def shape(self) -> Shape:
        """The shape, () for a number."""
        return self._shape

    @shape.setter
    def shape(self, shape: Shape) -> NoReturn:
        raise AttributeError(f"{describe(self)}: expected no assignment to shape. Use reshape(x, shape).")

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype; boolean arrays have ``bool``."""
        return self._dtype

    @dtype.setter
    def dtype(self, dtype: np.dtype[Any]) -> NoReturn:
        raise AttributeError(f"{describe(self)}: expected no assignment to dtype. Use astype(x, dtype).")

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def device(self) -> str:
        """The device: "cpu", or as in "cuda:0"."""
        return device_of(self.backend)

    @property
    def T(self) -> Array:
        """The transpose of a matrix."""
        if self.ndim != 2:
            raise ValueError(f"{describe(self)}.T: expected two dimensions. Use mT or permute_dims.")
        return self.mT

    @property
    def mT(self) -> Array:
        """The transposes of the matrices in the last two axes."""
        if self.ndim < 2:
            raise ValueError(f"{describe(self)}.mT: expected at least two dimensions.")
        return result(self.operand.T, self.ndim, self.dtype, self)

    def to_device(self, device: str, /, *, stream: None = None) -> Array:
        """Return the array on a device.

        Parameters
        ----------
        device : str
            The device of the backend; arrays of other devices belong to other backends.
        stream : None
            For compatibility with the standard.

        Returns
        -------
        Array
            The array itself.
        """
        if stream is not None:
            raise ValueError(f"to_device: expected no stream, got {stream!r}")
        check_device(self.backend, device)
        return self

    # --- changes ---

    def with_operand(self, operand: Operand, shape: Shape | None = None, is_live: int = 1) -> Array:
        """Return an array of the shape of this one, such as a gradient with respect to it.

        Parameters
        ----------
        operand : Tensor or OpTreeNode
            The expression, of the shape of ``operand``.
        shape : tuple of int, optional
            Another shape.
        is_live : int, default 1
            0 for a constant, an even number for an expression of variables of a function that is transformed.

        Returns
        -------
        Array
            The array.
        """
        dtype = self.dtype if operand.info.dtype == self.operand.info.dtype else np.dtype(operand.info.dtype)
        return new_array(operand, self.shape if shape is None else shape, dtype, is_live, 0)

    def replace(self, new: Array) -> Array:
        """Take over the expression of another array, which an assignment computed.

        Parameters
        ----------
        new : Array
            An array of the same shape and dtype.

        Returns
        -------
        Array
            The array itself.
        """
        self.operand, self.is_live, self.num_ops = new.operand, new.is_live, new.num_ops
        return self

    # --- protocols ---

    def __array_namespace__(self, *, api_version: str | None = None) -> typing.Namespace:
        if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12", "2025.12"):
            raise ValueError(f"__array_namespace__: expected an API version up to 2025.12, got {api_version!r}")
        return self.backend.array_api

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        self._warn_of_constant("from_dlpack", "another library")
        options = {"stream": stream, "max_version": max_version, "dl_device": dl_device, "copy": copy}
        return self.native().__dlpack__(**{name: value for name, value in options.items() if value is not None})

    def __dlpack_device__(self) -> tuple[Any, int]:
        return self.native().__dlpack_device__()

    def own_memory(self) -> None:
        """Evaluate the expression to memory that no expression, view or other array refers to: copied if necessary."""
        x = self.operand
        if not isinstance(x, Tensor) or x.base is not None or sys.getrefcount(x) != NUM_REFERENCES:
            copy = self.backend.empty(x.shape, x.info.dtype)
            copy[:] = x
            self.operand, self.num_ops = copy, 0

    def __copy__(self) -> Array:
        if self.is_live and isinstance(self.operand, Tensor):  # it has a gradient, and the current values each time
            name = self.operand.info.dtype
            return result(self.backend.build("cast", self.operand, to=name), self.ndim, self.dtype, self)
        x = same(self)
        if isinstance(self.operand, Tensor):  # an expression is evaluated to other memory
            x.own_memory()
        return x

    def __deepcopy__(self, memo: dict[int, Any]) -> Array:
        return self.__copy__()


# --- construction --------------------------------------------------------------------------------------------------

_new = object.__new__


def new_array(operand: Operand, shape: Shape, dtype: np.dtype[Any], is_live: int, num_ops: int) -> Array:
    """Return an array of an operand whose last axes are those of the shape."""
    x: Array = _new(Array)
    x.operand = operand
    x._shape = shape
    x._dtype = dtype
    x.is_live = is_live
    x.num_ops = num_ops
    if num_ops > MAX_PENDING_OPS and not is_live:
        x.tensor()
    return x


class _Probe:
    """An object that counts the references to the operand of an array in ``own_memory``, if nothing else has it."""

    def __init__(self) -> None:
        self.operand = object()

    def count(self) -> int:
        x = self.operand
        return sys.getrefcount(x)


NUM_REFERENCES = _Probe().count()


def evaluate_constant(tree: Any) -> Tensor:
    """Evaluate an op-tree of constants.

    A reduction of large tensors, or an op of kind "library", that other op-trees contain as well is computed once: the
    node stores its value.
    """
    value: Tensor | None = getattr(tree, "_value", None)
    if value is not None:
        return value
    nodes: list[Any] = []
    for x in (tree.leaves or {}).values():
        if type(x) is Tensor and x.info.attrs["nbytes"] >= MIN_STORED_BYTES:
            nodes = list(postorder(tree))
            break
    if not nodes or not any(node.info.op_def.kind in COSTLY_KINDS for node in nodes[:-1]):
        tree._value = value = tree.backend.evaluate([tree])[0]
        return value
    parents = Counter(id(x) for node in nodes for x in (node.left, node.right))
    shared = {  # nodes that something else refers to, and all below them
        id(node)
        for node, count in zip(nodes, count_references(nodes), strict=True)
        if count > NUM_NODE_REFERENCES + parents[id(node)]
    } - {id(tree)}
    for node in reversed(nodes):
        if id(node) in shared:
            shared |= {id(node.left), id(node.right)}
    built: dict[int, Any] = {}  # the node, or its value, of each node
    stored = [tree]
    for node in nodes:
        known = getattr(node, "_value", None)
        x, y = (built.get(id(operand), operand) for operand in (node.left, node.right))
        rebuilt = node if x is node.left and y is node.right else node._rebuild(node.info, x, y)
        built[id(node)] = rebuilt if known is None else known
        if known is None and id(node) in shared and node.info.op_def.kind in COSTLY_KINDS:
            stored.append(node)
    values: list[Tensor] = tree.backend.evaluate([built[id(node)] for node in stored])
    for node, computed in zip(stored, values, strict=True):
        node._value = computed
    return values[0]


def count_references(objects: Sequence[object]) -> list[int]:
    """Return the number of references to each object, as Python counts them in this function."""
    return [sys.getrefcount(x) for x in objects]


NUM_NODE_REFERENCES = count_references([object()])[0]  # of an object that only a list refers to


def same(x: Array) -> Array:
    """Return another array of the expression of an array: an assignment to one of them does not change the other."""
    return new_array(x.operand, x.shape, x.dtype, x.is_live, x.num_ops)


def as_boolean(operand: Operand) -> Operand:
    """Return the operand of a boolean array: 0 and 1 as uint8. A comparison of tensors has them as floats."""
    return operand if operand.info.dtype == "uint8" else create_node(CAST, operand, None, TO_UINT8)


def result(operand: Operand, ndim: int, dtype: np.dtype[Any] | None, *arguments: Array) -> Array:
    """Return the array of ``ndim`` dimensions that a function computes from arguments; None: the operand's dtype."""
    shape: Shape = operand.shape
    is_live, num_ops = 0, 1
    for x in arguments:
        is_live, num_ops = is_live | x.is_live, num_ops + x.num_ops
    shape = shape[len(shape) - ndim :]
    if dtype is BOOL:
        operand = as_boolean(operand)
    return new_array(operand, shape, np.dtype(operand.info.dtype) if dtype is None else dtype, is_live, num_ops)


def as_dtype(dtype: Any) -> np.dtype[Any]:
    """Return a dtype, or an array's, as NumPy's own object: in native byte order, without the metadata of pickle."""
    dtype = np.dtype(dtype if isinstance(dtype, type) else getattr(dtype, "dtype", dtype))
    own: np.dtype[Any] = DTYPE_OF_NAME.get(dtype.name, dtype)
    return own


def padded(shape: Shape) -> Shape:
    """Return the shape of an operand: with axes of size 1 in front, up to two dimensions."""
    return shape if len(shape) > 1 else (1, 1, *shape)[-2:]


def with_shape(operand: Operand, shape: Shape, dtype: np.dtype[Any] | None, *arguments: Array) -> Array:
    """Return the array of a shape that a function computes from arguments; the operand is reshaped."""
    to = padded(shape)
    if operand.shape != to:
        operand = operand.backend.reshape(operand, to)
    return result(operand, len(shape), dtype, *arguments)


def from_numpy(be: typing.BackendBase, values: typing.NumPyArray, is_new: bool = False) -> Array:
    """Return an array with a copy of values. A new array, to which nothing else refers, is not copied if possible."""
    dtype = as_dtype(values.dtype)
    if dtype is BOOL:
        values = values.view(np.uint8)
    matrix = values.reshape(padded(values.shape))
    operand = adopt(be, matrix) if is_new else be.array(matrix, dtype=be.dtype_name(values.dtype))
    return new_array(operand, values.shape, dtype, False, 0)


def from_operand(x: Operand) -> Array:
    """Return the array of a tensor or op-tree, evaluated with the current values of its tensors each time."""
    return new_array(x, x.shape, np.dtype(x.info.dtype), True, 0)


# --- description and devices ---------------------------------------------------------------------------------------


def check_device(be: typing.BackendBase, device: Any) -> None:
    """Raise ValueError if a device is not that of the backend."""
    if device is not None and device != device_of(be):
        raise ValueError(
            f"device: expected {device_of(be)!r}, the device of {be!r}, got {device!r}. Create a backend of the other "
            "device, and use its be.array_api."
        )
