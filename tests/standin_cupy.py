"""What does CuPy ask of its users?  A stand-in for it: NumPy underneath, the manners of CuPy 14 on top, and no card.

``with installed(): ...`` puts it where ``import cupy`` finds it. Its arrays mix with their own kind and numbers alone,
never turn into NumPy's by themselves, and stay arrays when they have no dimensions. Functions take the keywords that
CuPy's take. Where CuPy is lax, in what ends in a copy to the card or in wrong values, the stand-in raises an error:
NumPy's functions and NumPy's arrays as indices do not work, and nor does a copy between parts that overlap.
"""

from __future__ import annotations

import ctypes
import math
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import array_api_compat
import numpy as np

from neonlite.backend.cuda.driver import CompileError, pack
from neonlite.backend.cuda.simulated import SimulatedDriver

# --- the machine ----------------------------------------------------------------------------------------------------


@dataclass
class Machine:
    """What the stand-in finds when it looks for cards; change it, and ``uploads`` counts the host arrays taken."""

    devices: int = 1
    driver: int = 13000  # the newest CUDA that the driver knows; 0 is no driver
    built: int = 13020  # the CUDA that CuPy is built for
    nvrtc: str = ""  # the error of looking for the compiler
    forked: bool = False  # whether this is a process that was forked
    memory: int = 16 * 2**30  # of a card
    uploads: int = 0


MACHINE = Machine()
HERE = threading.local()


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int, words: str) -> None:
        self.status = status
        super().__init__(words)


def check() -> None:
    """Raise CuPy's error when nothing can be had of a card."""
    if MACHINE.driver // 1000 < MACHINE.built // 1000:
        words = "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version"
        raise CUDARuntimeError(35, words)
    if MACHINE.forked:
        raise CUDARuntimeError(3, "cudaErrorInitializationError: initialization error")
    if not MACHINE.devices:
        raise CUDARuntimeError(100, "cudaErrorNoDevice: no CUDA-capable device is detected")


def here() -> int:
    """Return the thread's current device."""
    check()
    return getattr(HERE, "device", 0)


class Device:
    def __init__(self, device: Any = None) -> None:
        self.id = here() if device is None else int(device)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self) -> int:
        return self.id

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"

    def use(self) -> None:
        check()
        if not 0 <= self.id < MACHINE.devices:
            raise CUDARuntimeError(101, "cudaErrorInvalidDevice: invalid device ordinal")
        HERE.device = self.id

    def __enter__(self) -> Device:
        self.before = here()
        self.use()
        return self

    def __exit__(self, *_: object) -> None:
        HERE.device = self.before

    def synchronize(self) -> None:
        check()


class Stream:
    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        self.ptr = id(self) if non_blocking else 0

    def __enter__(self) -> Stream:
        self.before = stream()
        HERE.stream = self
        return self

    def __exit__(self, *_: object) -> None:
        HERE.stream = self.before

    def synchronize(self) -> None:
        check()

    def begin_capture(self, mode: Any = None) -> None:
        """Record kernels from now on; CuPy's own calls are recorded by a real card, and refused here."""
        if not self.ptr or stream() is not self:
            raise CUDARuntimeError(900, "cudaErrorStreamCaptureUnsupported: operation not permitted when capturing")
        HERE.graph = Graph()

    def end_capture(self) -> Graph:
        HERE.graph, made = None, HERE.graph
        if made.broken:
            raise CUDARuntimeError(901, "cudaErrorStreamCaptureInvalidated: the capture was invalidated")
        return made


class Graph:
    """What a stream recorded."""

    def __init__(self) -> None:
        self.launches: list[Callable[[], None]] = []
        self.held: list[Any] = []
        self.broken = False

    def launch(self, stream: Any = None) -> None:
        for launch in self.launches:
            launch()


class Event:
    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None: ...

    def record(self, stream: Any = None) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None: ...


class MemoryPool:
    def malloc(self, nbytes: int) -> None: ...


@contextmanager
def using_allocator(allocator: Any = None) -> Iterator[None]:
    yield


def stream() -> Stream:
    return getattr(HERE, "stream", None) or NULL


def capturing() -> Graph | None:
    return getattr(HERE, "graph", None)


NULL = Stream()


def device_count() -> int:
    check()
    return MACHINE.devices


def properties(device: int) -> dict[str, Any]:
    check()
    return {"name": b"Stand-in", "totalGlobalMem": MACHINE.memory, "major": 9, "minor": 0, "multiProcessorCount": 132}


def compiler_version() -> tuple[int, int]:
    if MACHINE.nvrtc:
        raise RuntimeError(MACHINE.nvrtc)
    return MACHINE.built // 1000, MACHINE.built % 1000 // 10


class CompileException(Exception):
    def __init__(self, msg: str, source: str, name: str, options: tuple[str, ...], backend: str = "nvrtc") -> None:
        super().__init__(msg)


class RawKernel:
    """A kernel from its text: compiled for the CPU, as the simulated driver does. Arguments are numbers of 64 bits."""

    def __init__(self, code: str, name: str, options: tuple[str, ...] = ()) -> None:
        if type(options) is not tuple or not all(option.startswith("-") for option in options):
            raise TypeError("options are a tuple of strings")
        self.code, self.driver = code, SimulatedDriver()

    @property
    def kernel(self) -> Function:
        """The function for the current device, compiled when it is first asked for."""
        check()
        return Function(self.driver, self.code)


class Function:
    """A compiled kernel, which CUDA's driver knows by a number."""

    known: ClassVar[dict[int, Function]] = {}

    def __init__(self, driver: SimulatedDriver, code: str) -> None:
        try:
            self.driver, self.compiled, self.ptr = driver, driver.compile(code), id(self)
        except CompileError as error:
            raise CompileException(str(error), code, "kernel.cu", ()) from error
        self.count = len(re.findall(r"\bkernel\(([^)]*)\)", code)[0].split(","))
        self.known[self.ptr] = self

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...]) -> None:
        if not (isinstance(grid, tuple) and isinstance(block, tuple) and {*map(type, args)} <= {int, float}):
            raise TypeError("a kernel is launched with tuples, and with numbers of Python's")
        if len(args) != self.count:
            raise TypeError(f"{self.count} arguments are expected; got {len(args)}")
        HERE.context = here()
        self.run(grid, *block, pack([x if isinstance(x, float) else int(np.int64(x)) for x in args]))

    def run(self, grid: Any, block: int, packed: bytes) -> None:
        launch = partial(self.driver._run, self.compiled, grid, block, packed)
        if graph := capturing():
            graph.launches.append(launch)
        else:
            launch()


def launch_kernel(
    f: int, gx: int, gy: int, gz: int, bx: int, by: int, bz: int, shared: int, where: int, params: int, extra: int
) -> None:
    """Do what cuLaunchKernel does; a thread has a context of a device once CuPy has launched a kernel there."""
    if getattr(HERE, "context", None) != here():
        raise CUDARuntimeError(201, "CUDA_ERROR_INVALID_CONTEXT: invalid device context")
    if (gz, by, bz, shared, where, extra) != (1, 1, 1, 0, stream().ptr, 0):
        raise CUDARuntimeError(1, "CUDA_ERROR_INVALID_VALUE: invalid argument")
    function = Function.known[f]
    places = (ctypes.c_void_p * function.count).from_address(params)
    function.run((gx, gy), bx, b"".join(ctypes.string_at(place, 8) for place in places if place))


# --- the border to NumPy --------------------------------------------------------------------------------------------

NUMBERS = bool | int | float | complex | np.generic
REFUSED = (
    "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array explicitly."
)


def inside(x: Any) -> Any:
    """Return what NumPy is to see of an argument; its own arrays are refused, as CuPy refuses them."""
    if isinstance(x, ndarray):
        if graph := capturing():
            graph.broken = True
            raise CUDARuntimeError(900, "cudaErrorStreamCaptureUnsupported: operation not permitted when capturing")
        if x.device.id != here():
            raise ValueError(f"Array device must be same as the current device: {x.device.id} while current = {here()}")
        return x._host
    if isinstance(x, np.ndarray):
        raise TypeError(f"Unsupported type {type(x)}")
    return type(x)(map(inside, x)) if type(x) in (tuple, list) else x


def outside(x: Any) -> Any:
    """Return a result of NumPy's as CuPy's: numbers have become arrays of no dimensions."""
    if isinstance(x, np.ndarray | np.generic):
        made = object.__new__(ndarray)
        made._host, made.base, made.device = np.asanyarray(x), None, Device()
        return made
    return type(x)(map(outside, x)) if type(x) in (tuple, list) else x


def lifted(name: str, keywords: str, f: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return a function of CuPy's, whose first argument is one of its arrays or several of them."""
    run, allowed = f or getattr(np, name), set(keywords.split())

    def function(first: Any, *more: Any, **options: Any) -> Any:
        if wrong := options.keys() - allowed:
            raise TypeError(f"{name}() got an unexpected keyword argument {min(wrong)!r}")
        for x in first if isinstance(first, tuple | list) else (first,):
            if not isinstance(x, ndarray):
                raise TypeError(f"Unsupported type {type(x)}")
        out = options.get("out")
        result = run(*map(inside, (first, *more)), **{key: inside(x) for key, x in options.items()})
        return outside(result) if out is None else out

    function.__name__ = name
    return function


def ufunc(name: str, f: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return a function of CuPy's that works element by element, on arrays and numbers."""
    run = f or getattr(np, name)

    def function(*operands: Any, out: Any = None, casting: str = "same_kind", dtype: Any = None) -> Any:
        for x in (*operands, *(() if out is None else (out,))):
            if not isinstance(x, ndarray | NUMBERS):
                raise TypeError(f"Unsupported type {type(x)}")
        with np.errstate(all="ignore"):  # a card does not warn
            result = run(*map(inside, operands), out=inside(out), casting=casting, dtype=dtype)
        return outside(result) if out is None else out

    function.__name__ = name
    return function


def sign(x: Any, out: Any = None, casting: str = "same_kind", dtype: Any = None) -> Any:
    """CuPy's formula, which gives 0 for NaN."""
    return (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)


def where(condition: Any, x: Any, y: Any, out: Any = None, casting: str = "", dtype: Any = None) -> Any:
    return np.where(condition, x, y)


def matmul(x: Any, y: Any) -> Any:
    """Stacks of ints are multiplied as floats: cuBLAS has no others."""
    kind = np.result_type(x, y)
    common = np.promote_types(kind, "f4") if max(x.ndim, y.ndim) > 2 else kind
    return np.matmul(x.astype(common), y.astype(common)).astype(kind)


def take(a: Any, indices: Any, axis: Any = None, out: Any = None) -> Any:
    """An index out of range is no error on a card: it starts again from 0."""
    return np.take(a, indices, axis, out, mode="wrap")


# --- the array ------------------------------------------------------------------------------------------------------


def attribute(name: str) -> Any:
    return property(lambda self: getattr(self._host, name))


def operator(f: Callable[..., Any], swapped: bool = False, inplace: bool = False) -> Callable[..., Any]:
    def method(self: Any, other: Any) -> Any:
        operands = (other, self) if swapped else (self, other)
        return f(*operands, out=self) if inplace else f(*operands)

    return method


class ndarray:
    """An array on the card: NumPy's in ``_host``, out of the reach of everyone else."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, shape: Any, dtype: Any = float, order: str = "C") -> None:
        check()
        self._host, self.base, self.device = np.empty(shape, dtype, order), None, Device()

    dtype, ndim, size, strides = (attribute(name) for name in ("dtype", "ndim", "size", "strides"))
    itemsize, nbytes, flags = (attribute(name) for name in ("itemsize", "nbytes", "flags"))

    @property
    def shape(self) -> tuple[int, ...]:
        return self._host.shape

    @shape.setter
    def shape(self, shape: Any) -> None:
        try:
            self._host = self._host.reshape(shape, copy=False)
        except ValueError:
            raise AttributeError("incompatible shape") from None

    def _view(self, host: Any) -> ndarray:
        view = outside(host)
        view.base, view.device = (self if self.base is None else self.base), self.device
        return view

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(REFUSED)

    def __array_function__(self, f: Any, *_: Any) -> Any:
        raise TypeError(f"NumPy's {f.__name__} is not for arrays on a card")

    def __array_ufunc__(self, f: Any, method: str, *operands: Any, **options: Any) -> Any:
        """Work out ``np.float32(2) * x``; an array of NumPy's among the operands is refused."""
        if method != "__call__" or options:
            raise TypeError(f"NumPy's {f.__name__} is not for arrays on a card")
        return FUNCTIONS[f.__name__](*operands)

    # --- elements, and views of several ---

    def _basic(self, index: Any) -> bool:
        """Tell whether an index gives a view; NumPy's arrays are refused, though CuPy would copy them to the card."""
        parts = index if isinstance(index, tuple) else (index,)
        if any(isinstance(p, np.ndarray) for p in parts):
            raise TypeError("an index on the host is copied to the card, each time")
        return not any(isinstance(p, ndarray | list) for p in parts)

    def _place(self, index: Any) -> Any:
        """Return the elements at a basic index as NumPy's view, also where it is a single one."""
        parts = index if isinstance(index, tuple) else (index,)
        return self._host[parts if Ellipsis in parts else (*parts, Ellipsis)]

    def __getitem__(self, index: Any) -> ndarray:
        if self._basic(index):
            return self._view(self._place(index))
        return outside(self._host[inside(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        if not isinstance(value, ndarray | NUMBERS):
            raise TypeError(f"Unsupported type {type(value)}")
        x = inside(value)
        with np.errstate(all="ignore"):
            if not self._basic(index):
                self._host[inside(index)] = x
                return
            place = self._place(index)
            if isinstance(value, ndarray):
                alike = (x.shape, x.strides, x.dtype) == (place.shape, place.strides, place.dtype)
                moved = x.__array_interface__["data"] != place.__array_interface__["data"]
                if alike and moved and place.flags.c_contiguous and np.shares_memory(x, place):
                    raise AssertionError("a copy whose source and target overlap: its values are undefined on a card")
            place[...] = x

    def __iter__(self) -> Iterator[ndarray]:
        return (self[i] for i in range(len(self)))

    def __len__(self) -> int:
        return len(self._host)

    def __bool__(self) -> bool:
        return bool(self._host)

    def __int__(self) -> int:
        return int(self._host)

    def __float__(self) -> float:
        return float(self._host)

    def __repr__(self) -> str:
        return repr(self._host)

    # --- to the host ---

    def get(self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True) -> Any:
        return np.array(self._host, order=order)  # type: ignore[call-overload]

    def set(self, array: Any, stream: Any = None) -> None:
        if not isinstance(array, np.ndarray) or (array.shape, array.dtype) != (self.shape, self.dtype):
            raise TypeError("set() takes an array of NumPy's, of the same shape and dtype")
        MACHINE.uploads += 1
        self._host[...] = array

    @property
    def data(self) -> SimpleNamespace:
        if graph := capturing():
            graph.held.append(self)
        return SimpleNamespace(ptr=self._host.__array_interface__["data"][0], device_id=self.device.id)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device.id

    def __dlpack__(self, **_: Any) -> ndarray:
        return self  # the stand-in's own ``from_dlpack`` is the only one to take it

    def item(self) -> Any:
        return self._host.item()

    def tolist(self) -> Any:
        return self._host.tolist()

    # --- methods ---

    @property
    def T(self) -> ndarray:
        return self._view(self._host.T)

    @property
    def mT(self) -> ndarray:
        return self._view(self._host.mT)

    def view(self, dtype: Any = None) -> ndarray:
        return self._view(self._host.view() if dtype is None else self._host.view(dtype))

    def reshape(self, *shape: Any, order: str = "C") -> ndarray:
        return self._view(self._host.reshape(*shape, order=order))  # type: ignore[call-overload]

    def transpose(self, *axes: Any) -> ndarray:
        return self._view(self._host.transpose(*axes))

    def astype(self, dtype: Any, order: str = "K", casting: Any = None, subok: Any = None, copy: bool = True) -> Any:
        if not copy and self.dtype == dtype:
            return self
        with np.errstate(all="ignore"):
            return outside(self._host.astype(dtype, order=order))  # type: ignore[call-overload]

    def copy(self, order: str = "C") -> ndarray:
        return outside(self._host.copy(order))  # type: ignore[arg-type,no-any-return]

    def fill(self, value: Any) -> None:
        self[...] = value

    def __neg__(self) -> Any:
        return FUNCTIONS["negative"](self)

    def __abs__(self) -> Any:
        return FUNCTIONS["abs"](self)

    def __invert__(self) -> Any:
        return FUNCTIONS["invert"](self)

    def __matmul__(self, other: Any) -> Any:
        return FUNCTIONS["matmul"](self, other)


# --- the namespace: the names of CuPy, and the keywords of its functions --------------------------------------------


def words(text: str) -> list[str]:
    return text.split()


UFUNCS = words("""
abs absolute add arccos arccosh arcsin arcsinh arctan arctan2 arctanh bitwise_and bitwise_or bitwise_xor cbrt ceil
copysign cos cosh divide equal exp exp2 expm1 fabs floor floor_divide fmax fmin fmod greater greater_equal hypot invert
isfinite isinf isnan left_shift less less_equal log log10 log1p log2 logaddexp logical_and logical_not logical_or
logical_xor maximum minimum mod multiply negative not_equal positive power reciprocal remainder right_shift rint signbit
sin sinh sqrt square subtract tan tanh true_divide trunc
""")
KEYWORDS: dict[str, str] = {
    "all": "axis out keepdims",
    "amax": "axis out keepdims",
    "amin": "axis out keepdims",
    "any": "axis out keepdims",
    "argmax": "axis dtype out keepdims",
    "argmin": "axis dtype out keepdims",
    "argsort": "axis kind",
    "around": "decimals out",
    "broadcast_arrays": "",
    "broadcast_to": "shape",
    "clip": "a_min a_max out",
    "concatenate": "axis out dtype casting",
    "count_nonzero": "axis",
    "cumsum": "axis dtype out",
    "diagonal": "offset axis1 axis2",
    "dot": "out",
    "expand_dims": "axis",
    "flip": "axis",
    "max": "axis out keepdims",
    "mean": "axis dtype out keepdims",
    "min": "axis out keepdims",
    "moveaxis": "source destination",
    "prod": "axis dtype out keepdims",
    "ravel": "order",
    "repeat": "repeats axis",
    "reshape": "order copy",
    "roll": "shift axis",
    "round": "decimals out",
    "searchsorted": "side sorter",
    "sort": "axis kind",
    "split": "axis",
    "squeeze": "axis",
    "stack": "axis out dtype casting",
    "std": "axis dtype out ddof keepdims",
    "sum": "axis dtype out keepdims",
    "swapaxes": "",
    "tensordot": "axes",
    "tile": "reps",
    "trace": "offset axis1 axis2 dtype out",
    "transpose": "axes",
    "tril": "k",
    "triu": "k",
    "var": "axis dtype out ddof keepdims",
}
AS_IN_NUMPY = words("""
bool_ complex128 complex64 complexfloating dtype finfo float16 float32 float64 floating iinfo inf int16 int32 int64 int8
integer intp isdtype issubdtype nan newaxis number pi signedinteger uint16 uint32 uint64 uint8 unsignedinteger
""")
METHODS = words("all any argmax argmin clip cumsum max mean min prod ravel repeat round squeeze std sum swapaxes var")
OPERATORS = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "true_divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "power",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "left_shift",
    "rshift": "right_shift",
}
COMPARISONS = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: ufunc(name) for name in UFUNCS},
    **{name: lifted(name, keywords) for name, keywords in KEYWORDS.items()},
    "sign": ufunc("sign", sign),
    "where": ufunc("where", where),
    "matmul": lifted("matmul", "", matmul),
    "take": lifted("take", "indices axis out", take),
}

for method in METHODS:
    setattr(ndarray, method, FUNCTIONS[method])
for short, name in OPERATORS.items():
    setattr(ndarray, f"__{short}__", operator(FUNCTIONS[name]))
    setattr(ndarray, f"__r{short}__", operator(FUNCTIONS[name], swapped=True))
    setattr(ndarray, f"__i{short}__", operator(FUNCTIONS[name], inplace=True))
for short, name in COMPARISONS.items():
    setattr(ndarray, f"__{short}__", operator(FUNCTIONS[name]))


def array(
    obj: Any,
    dtype: Any = None,
    copy: bool = True,
    order: str = "K",
    subok: bool = False,
    ndmin: int = 0,
    *,
    blocking: bool = False,
) -> Any:
    """Return an array on the card: the one door for an array of the host, which is counted."""
    check()
    if isinstance(obj, ndarray):
        x = inside(obj)
        return obj if not copy and dtype in (None, x.dtype) else outside(np.array(x, dtype, order=order, ndmin=ndmin))  # type: ignore[call-overload]
    MACHINE.uploads += isinstance(obj, np.ndarray)
    return outside(np.array(obj, dtype, order=order, ndmin=ndmin))  # type: ignore[call-overload]


def asarray(a: Any, dtype: Any = None, order: Any = None, *, copy: Any = None, blocking: bool = False) -> Any:
    return array(a, dtype, bool(copy), order or "K")


def asnumpy(a: Any, stream: Any = None, order: str = "C", out: Any = None, *, blocking: bool = True) -> Any:
    return a.get(stream, order) if isinstance(a, ndarray) else np.asarray(a, order=order)  # type: ignore[call-overload]


class OutOfMemoryError(MemoryError): ...


def made(make: Callable[..., Any]) -> Callable[..., Any]:
    def function(*args: Any, **options: Any) -> Any:
        check()
        if args and math.prod(np.atleast_1d(args[0]).tolist()) > MACHINE.memory:
            raise OutOfMemoryError("Out of memory allocating (allocated so far: ...)")
        return outside(make(*map(inside, args), **options))

    return function


def like(make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, *args, **options: outside(make(inside(a), *args, **options))


def from_dlpack(x: Any) -> Any:
    if x.__dlpack_device__()[0] != 2:
        raise ValueError("CPU arrays cannot be directly imported to CuPy. Use `cupy.array(numpy.from_dlpack(input))`")
    return x.__dlpack__(stream=0).view()


def modules() -> dict[str, ModuleType]:
    """Return the modules of the stand-in by name."""
    runtime = {
        "CUDARuntimeError": CUDARuntimeError,
        "getDeviceCount": device_count,
        "getDeviceProperties": properties,
        "driverGetVersion": lambda: MACHINE.driver,
        "runtimeGetVersion": lambda: MACHINE.built,
        "deviceSynchronize": check,
        "memGetInfo": lambda: (MACHINE.memory // 4, MACHINE.memory),
        "getDevice": here,
    }
    creation: dict[str, Any] = {
        name: made(getattr(np, name)) for name in words("arange empty eye full linspace ones zeros")
    }
    creation |= {name: like(getattr(np, name)) for name in words("empty_like full_like ones_like zeros_like")}
    creation |= {
        "array": array,
        "asarray": asarray,
        "asnumpy": asnumpy,
        "from_dlpack": from_dlpack,
        "ndarray": ndarray,
        "RawKernel": RawKernel,
        "get_default_memory_pool": lambda: SimpleNamespace(free_bytes=lambda: 1_000_000),
        "__version__": "14.2.0",
    }
    cuda = {
        "Device": Device,
        "Stream": Stream,
        "Event": Event,
        "get_elapsed_time": lambda start, end: (end.at - start.at) * 1e3,
        "Graph": Graph,
        "MemoryPool": MemoryPool,
        "get_current_stream": stream,
        "using_allocator": using_allocator,
        "is_available": lambda: MACHINE.devices > 0,
    }
    contents: dict[str, dict[str, Any]] = {
        "cupy": {**FUNCTIONS, **{name: getattr(np, name) for name in AS_IN_NUMPY}, **creation},
        "cupy.cuda": cuda,
        "cupy.cuda.compiler": {"CompileException": CompileException},
        "cupy.cuda.device": {"Device": Device},
        "cupy.cuda.driver": {"launchKernel": launch_kernel},
        "cupy.cuda.nvrtc": {"getVersion": compiler_version},
        "cupy.cuda.runtime": runtime,
        "cupy.fft": {},
        "cupy.linalg": {"lstsq": None},
    }
    found = {name: ModuleType(name) for name in contents}
    for name, module in found.items():
        vars(module).update(contents[name])
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(found[parent], child, module)
    return found


def ours(name: str) -> bool:
    return name.split(".")[0] == "cupy" or f"{name}.".startswith("array_api_compat.cupy.")


def exchange(modules: dict[str, ModuleType]) -> dict[str, ModuleType]:
    """Let these be what Python finds of CuPy and of its namespace; return what it found before."""
    before = {name: sys.modules.pop(name) for name in [*sys.modules] if ours(name)}
    sys.modules.update(modules)
    vars(array_api_compat).pop("cupy", None)
    if namespace := modules.get("array_api_compat.cupy"):
        vars(array_api_compat)["cupy"] = namespace
    return before


KEPT = modules()  # with array_api_compat.cupy, once it was imported


@contextmanager
def installed(**machine: Any) -> Iterator[Machine]:
    """Let ``import cupy`` find the stand-in, on a machine as described; afterwards all is as it was."""
    before = vars(MACHINE).copy()
    vars(MACHINE).update(vars(Machine(**machine)))
    HERE.device = 0
    found = exchange(KEPT)
    libraries = {name: sys.modules.get(name) for name in ("cuda.pathfinder", "cudnn")}
    sys.modules.update(dict.fromkeys(libraries))  # type: ignore[arg-type]  # which would look for a card
    try:
        yield MACHINE
    finally:
        for name, module in libraries.items():
            sys.modules.pop(name, None)  # one within another may have
            if module is not None:
                sys.modules[name] = module
        KEPT.update(exchange(found))
        vars(MACHINE).update(before)
