"""A stand-in for CuPy 14 that needs no GPU: it has CuPy's interface and restrictions, and computes with NumPy.

``with installed(): ...`` makes ``import cupy`` import it. Its arrays can be combined only with each other and with
scalars, are never converted to NumPy arrays implicitly, and stay arrays when they have no dimensions. Functions accept
the same keywords as CuPy's. The stand-in raises an error in some cases where CuPy would copy to the GPU implicitly or
compute wrong values: NumPy functions, NumPy arrays as indices, and copies between overlapping parts of an array.
"""

from __future__ import annotations

import ctypes
import math
import pickle
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

from neonlite.backend.runtimes.cuda import libraries
from neonlite.backend.runtimes.cuda.executor import CompileError, pack_arguments
from neonlite.backend.runtimes.cuda.simulator import SimulatedDriver, compile_library

# --- the machine ----------------------------------------------------------------------------------------------------


@dataclass
class Machine:
    """The simulated machine. Tests change its attributes; ``uploads`` counts host arrays copied to the GPU."""

    devices: int = 1
    driver: int = 13000  # the newest CUDA version that the driver supports; 0: no driver
    built: int = 13020  # the CUDA version that CuPy is built for
    nvrtc: str = ""  # the error when NVRTC is loaded
    forked: bool = False  # whether the process was forked
    memory: int = 16 * 2**30  # bytes of GPU memory
    refusals: int = 0  # how often cudaMalloc fails before it succeeds again
    uploads: int = 0
    compilations: int = 0


MACHINE = Machine()
HERE = threading.local()
LOG: list[tuple[str, str]] = []  # events, waits and NCCL's operations: each with its stream, "null" or "own"


def log(operation: str, stream: Any) -> None:
    """Record an operation of a stream, given itself or its address."""
    LOG.append((operation, "own" if getattr(stream, "ptr", stream) else "null"))


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


def check() -> None:
    """Raise CuPy's error if no GPU is usable."""
    if MACHINE.driver // 1000 < MACHINE.built // 1000:
        message = "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version"
        raise CUDARuntimeError(35, message)
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

    @property
    def compute_capability(self) -> str:
        return "90"

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
        log("synchronize", self)

    def wait_event(self, event: Event) -> None:
        log("wait", self)
        assert event.stream is not self

    def begin_capture(self, mode: Any = None) -> None:
        """Start to capture kernels. CuPy functions, which a real GPU captures, are rejected here."""
        if not self.ptr or stream() is not self:
            raise CUDARuntimeError(900, "cudaErrorStreamCaptureUnsupported: operation not permitted when capturing")
        HERE.graph = Graph()

    def end_capture(self) -> Graph:
        HERE.graph, graph = None, HERE.graph
        if graph.broken:
            raise CUDARuntimeError(901, "cudaErrorStreamCaptureInvalidated: the capture was invalidated")
        return graph


class Graph:
    """The launches that a stream captured."""

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
        self.at, self.stream = time.perf_counter(), stream or globals()["stream"]()
        log("record", self.stream)

    def synchronize(self) -> None: ...


class Memory:
    """The result of cudaMalloc; NumPy allocates the memory of arrays."""

    def __init__(self, size: int) -> None:
        if MACHINE.refusals:
            MACHINE.refusals -= 1
            raise CUDARuntimeError(2, "cudaErrorMemoryAllocation: out of memory")


class MemoryPool:
    """A memory pool; ``freed`` counts how often it frees unused blocks because memory runs out."""

    freed = 0

    def __init__(self, allocator: Callable[[int], Any] | None = None) -> None:
        self.allocator = allocator or (lambda nbytes: MemoryPointer(Memory(nbytes), 0))
        self.limit = 1000

    def set_limit(self, size: int) -> None:
        self.limit = size

    def malloc(self, nbytes: int) -> Any:
        if self.limit:  # as CUPY_GPU_MEMORY_LIMIT sets it
            MemoryPool.freed += 1
        try:
            return self.allocator(nbytes)
        except CUDARuntimeError:
            MemoryPool.freed += 1
        try:
            return self.allocator(nbytes)
        except CUDARuntimeError as error:
            raise OutOfMemoryError(f"Out of memory allocating {nbytes} bytes") from error


class MemoryPointer:
    def __init__(self, mem: Memory, offset: int) -> None:
        self.mem, self.offset = mem, offset


@contextmanager
def using_allocator(allocator: Any = None) -> Iterator[None]:
    before, HERE.allocator = getattr(HERE, "allocator", None), allocator
    try:
        yield
    finally:
        HERE.allocator = before


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


def compile_using_nvrtc(
    source: str,
    options: tuple[str, ...] = (),
    arch: Any = None,
    filename: str = "kern.cu",
    name_expressions: Any = None,
    log_stream: Any = None,
    cache_in_memory: bool = False,
    jitify: Any = None,
    method: Any = None,
) -> tuple[bytes, None]:
    """Compile a source for the CPU and return a binary for ``Module.load``, which contains the options."""
    check()
    if type(options) is not tuple or not all(option.startswith("-") for option in options):
        raise TypeError("options are a tuple of strings")
    MACHINE.compilations += 1
    try:
        SimulatedDriver().compile(source)
    except CompileError as error:
        raise CompileException(str(error), source, filename, options) from error
    return pickle.dumps((source, options)), None


class Module:
    """A binary that is loaded on the current device."""

    def load(self, binary: bytes) -> None:
        check()
        self.code, options = pickle.loads(binary)
        flushing = [option for option in options if "ftz" in option]
        self.flushes = bool(flushing) and flushing[-1].endswith("true")
        self.name = next((option.partition("=")[2] for option in options if option.startswith("-Dkernel=")), "kernel")

    def get_function(self, name: str) -> Function:
        if name != self.name:
            raise CUDARuntimeError(500, "CUDA_ERROR_NOT_FOUND: named symbol not found")
        return Function(SimulatedDriver(), self.code, self.flushes)


class RawKernel:
    """A kernel compiled by CuPy, which adds an option."""

    def __init__(self, code: str, name: str, options: tuple[str, ...] = ()) -> None:
        self.code, self.name, self.options = code, name, options

    @property
    def kernel(self) -> Function:
        """The function for the current device, compiled on first use."""
        module = Module()
        module.load(compile_using_nvrtc(self.code, (*self.options, "-ftz=true"))[0])
        return module.get_function(self.name)


# Swap the CPU's control word; two of its bits flush denormal numbers to 0, as -ftz=true does on a GPU.
CONTROL = """
#include <xmmintrin.h>
extern "C" unsigned swap(unsigned word) { const unsigned was = _mm_getcsr(); _mm_setcsr(word); return was; }
"""
FLUSHING = 0x8040


class Function:
    """A compiled kernel; ``ptr`` is its handle for the CUDA driver."""

    known: ClassVar[dict[int, Function]] = {}

    def __init__(self, driver: SimulatedDriver, code: str, flushes: bool = False) -> None:
        self.driver, self.compiled, self.ptr = driver, driver.compile(code), id(self)
        self.flushes = flushes
        self.count = len(re.findall(r"\bkernel\(([^)]*)\)", code)[0].split(","))
        self.known[self.ptr] = self

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...]) -> None:
        if not (isinstance(grid, tuple) and isinstance(block, tuple) and {*map(type, args)} <= {int, float}):
            raise TypeError("a kernel launch takes tuples and Python scalars")
        if len(args) != self.count:
            raise TypeError(f"{self.count} arguments are expected; got {len(args)}")
        HERE.context = here()
        self.run(grid, *block, pack_arguments([x if isinstance(x, float) else int(np.int64(x)) for x in args]))

    def run(self, grid: Any, block: int, packed: bytes) -> None:
        launch = partial(
            self._run_with_flushing if self.flushes else self.driver._run_kernel, self.compiled, grid, block, packed
        )
        if graph := capturing():
            graph.launches.append(launch)
        else:
            launch()

    def _run_with_flushing(self, *arguments: Any) -> None:
        swap = compile_library(CONTROL, CONTROL).swap
        was = swap(0)
        swap(was | FLUSHING)
        try:
            self.driver._run_kernel(*arguments)
        finally:
            swap(was)


def launch_kernel(
    f: int, gx: int, gy: int, gz: int, bx: int, by: int, bz: int, shared: int, where: int, params: int, extra: int
) -> None:
    """cuLaunchKernel; a thread has a context of a device after CuPy has launched a kernel on it."""
    if getattr(HERE, "context", None) != here():
        raise CUDARuntimeError(201, "CUDA_ERROR_INVALID_CONTEXT: invalid device context")
    if (gz, by, bz, shared, where, extra) != (1, 1, 1, 0, stream().ptr, 0):
        raise CUDARuntimeError(1, "CUDA_ERROR_INVALID_VALUE: invalid argument")
    function = Function.known[f]
    addresses = (ctypes.c_void_p * function.count).from_address(params)
    function.run((gx, gy), bx, b"".join(ctypes.string_at(address, 8) for address in addresses if address))


# --- conversion to and from NumPy ---

NUMBERS = bool | int | float | complex | np.generic
CONVERSION_ERROR = (
    "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array explicitly."
)


def inside(x: Any) -> Any:
    """Return the NumPy array of an argument; NumPy arrays are rejected, as CuPy rejects them."""
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
    """Return a NumPy result as an array of the stand-in; scalars become arrays of no dimensions."""
    if isinstance(x, np.ndarray | np.generic):
        array = object.__new__(ndarray)
        array._host, array.base, array.device = np.asanyarray(x), None, Device()
        return array
    return type(x)(map(outside, x)) if type(x) in (tuple, list) else x


def lifted(name: str, keywords: str, f: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return a CuPy function whose first argument is an array or a sequence of arrays."""
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
    """Return an elementwise CuPy function of arrays and scalars."""
    run = f or getattr(np, name)

    def function(*operands: Any, out: Any = None, casting: str = "same_kind", dtype: Any = None) -> Any:
        for x in (*operands, *(() if out is None else (out,))):
            if not isinstance(x, ndarray | NUMBERS):
                raise TypeError(f"Unsupported type {type(x)}")
        with np.errstate(all="ignore"):  # a GPU does not warn
            result = run(*map(inside, operands), out=inside(out), casting=casting, dtype=dtype)
        return outside(result) if out is None else out

    function.__name__ = name
    return function


def sign(x: Any, out: Any = None, casting: str = "same_kind", dtype: Any = None) -> Any:
    """Compute sign as CuPy does: 0 for NaN."""
    return (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)


def where(condition: Any, x: Any, y: Any, out: Any = None, casting: str = "", dtype: Any = None) -> Any:
    return np.where(condition, x, y)


def matmul(x: Any, y: Any) -> Any:
    """Multiply stacks of integer matrices as floats, since cuBLAS has no integer products."""
    kind = np.result_type(x, y)
    common = np.promote_types(kind, "f4") if max(x.ndim, y.ndim) > 2 else kind
    return np.matmul(x.astype(common), y.astype(common)).astype(kind)


def take(a: Any, indices: Any, axis: Any = None, out: Any = None) -> Any:
    """Wrap indices that are out of range, as a GPU does without an error."""
    return np.take(a, indices, axis, out, mode="wrap")


# --- the array ------------------------------------------------------------------------------------------------------


def attribute(name: str) -> Any:
    return property(lambda self: getattr(self._host, name))


def operator(f: Callable[..., Any], reflected: bool = False, inplace: bool = False) -> Callable[..., Any]:
    def method(self: Any, other: Any) -> Any:
        operands = (other, self) if reflected else (self, other)
        return f(*operands, out=self) if inplace else f(*operands)

    return method


class ndarray:
    """An array on the simulated GPU; ``_host`` is the NumPy array with its values, private to the stand-in."""

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
        raise TypeError(CONVERSION_ERROR)

    def __array_function__(self, f: Any, *_: Any) -> Any:
        raise TypeError(f"NumPy's {f.__name__} is not for arrays on a GPU")

    def __array_ufunc__(self, f: Any, method: str, *operands: Any, **options: Any) -> Any:
        """Compute ``np.float32(2) * x``; NumPy arrays among the operands are rejected."""
        if method != "__call__" or options:
            raise TypeError(f"NumPy's {f.__name__} is not for arrays on a GPU")
        return FUNCTIONS[f.__name__](*operands)

    # --- elements, and views of several ---

    def _basic(self, index: Any) -> bool:
        """Return whether an index gives a view; NumPy arrays are rejected, although CuPy would copy them to the GPU."""
        parts = index if isinstance(index, tuple) else (index,)
        if any(isinstance(p, np.ndarray) for p in parts):
            raise TypeError("an index on the host is copied to the GPU, each time")
        return not any(isinstance(p, ndarray | list) for p in parts)

    def _place(self, index: Any) -> Any:
        """Return a NumPy view of the elements at a basic index, also of a single one."""
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
                    raise AssertionError("a copy whose source and target overlap: its values are undefined on a GPU")
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
        return self  # only the stand-in's ``from_dlpack`` accepts it

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


def split_names(text: str) -> list[str]:
    return text.split()


UFUNCS = split_names("""
abs absolute add arccos arccosh arcsin arcsinh arctan arctan2 arctanh bitwise_and bitwise_or bitwise_xor cbrt ceil
copysign cos cosh divide equal exp exp2 expm1 fabs floor floor_divide fmax fmin fmod greater greater_equal hypot invert
isfinite isinf isnan left_shift less less_equal log log10 log1p log2 logaddexp logical_and logical_not logical_or
logical_xor maximum minimum mod multiply negative nextafter not_equal
positive power reciprocal remainder right_shift rint signbit sin sinh sqrt square subtract tan tanh true_divide trunc
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
    "cumprod": "axis dtype out",
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
    "take_along_axis": "indices axis",
    "tensordot": "axes",
    "tile": "reps",
    "trace": "offset axis1 axis2 dtype out",
    "transpose": "axes",
    "tril": "k",
    "triu": "k",
    "var": "axis dtype out ddof keepdims",
}
AS_IN_NUMPY = split_names("""
bool_ complex128 complex64 complexfloating dtype finfo float16 float32 float64 floating iinfo inf int16 int32 int64 int8
integer intp isdtype issubdtype nan newaxis number pi signedinteger uint16 uint32 uint64 uint8 unsignedinteger
""")
METHODS = split_names(
    "all any argmax argmin clip cumsum max mean min prod ravel repeat round squeeze std sum swapaxes var"
)
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


def of_linalg(name: str) -> Callable[..., Any]:
    """Return a function of ``numpy.linalg`` whose results are an array or a plain tuple of arrays.

    By default it does not check the values, and results are NaN.
    """
    result = getattr(np.linalg, name)

    def function(*operands: Any, **options: Any) -> Any:
        try:
            x = result(*operands, **options)
        except np.linalg.LinAlgError:
            if getattr(HERE, "linalg", "ignore") == "raise":
                raise
            return np.full_like(operands[-1], np.nan)
        return tuple(x) if isinstance(x, tuple) else x

    return function


@contextmanager
def errstate(linalg: str) -> Iterator[None]:
    before, HERE.linalg = getattr(HERE, "linalg", "ignore"), linalg
    try:
        yield
    finally:
        HERE.linalg = before


LINALG_KEYWORDS = {"cholesky": "", "det": "", "eigh": "UPLO", "inv": "", "qr": "mode", "slogdet": "", "solve": ""}
LINALG_KEYWORDS["svd"] = "full_matrices compute_uv"
LINALG = {name: lifted(name, keywords, of_linalg(name)) for name, keywords in LINALG_KEYWORDS.items()}

for method in METHODS:
    setattr(ndarray, method, FUNCTIONS[method])
for short, name in OPERATORS.items():
    setattr(ndarray, f"__{short}__", operator(FUNCTIONS[name]))
    setattr(ndarray, f"__r{short}__", operator(FUNCTIONS[name], reflected=True))
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
    """Return an array on the GPU. Only this function accepts host arrays, and it counts them."""
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


def creation_function(make: Callable[..., Any]) -> Callable[..., Any]:
    def function(*args: Any, **options: Any) -> Any:
        check()
        if args and math.prod(np.atleast_1d(args[0]).tolist()) > MACHINE.memory:
            raise OutOfMemoryError("Out of memory allocating (allocated so far: ...)")
        found = make(*map(inside, args), **options)
        if allocator := getattr(HERE, "allocator", None):
            allocator(found.nbytes)
        return outside(found)

    return function


def like(make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, *args, **options: outside(make(inside(a), *args, **options))


def from_dlpack(x: Any) -> Any:
    if x.__dlpack_device__()[0] != 2:
        raise TypeError("CPU arrays cannot be directly imported to CuPy. Use `cupy.array(numpy.from_dlpack(input))`")
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
        name: creation_function(getattr(np, name)) for name in split_names("arange empty eye full linspace ones zeros")
    }
    creation |= {name: like(getattr(np, name)) for name in split_names("empty_like full_like ones_like zeros_like")}
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
        "Memory": Memory,
        "MemoryPointer": MemoryPointer,
        "MemoryPool": MemoryPool,
        "Module": Module,
        "get_current_stream": stream,
        "using_allocator": using_allocator,
        "is_available": lambda: MACHINE.devices > 0,
    }
    contents: dict[str, dict[str, Any]] = {
        "cupy": {**FUNCTIONS, **{name: getattr(np, name) for name in AS_IN_NUMPY}, **creation},
        "cupy.cuda": cuda,
        "cupy.cuda.compiler": {"CompileException": CompileException, "compile_using_nvrtc": compile_using_nvrtc},
        "cupy.cuda.device": {"Device": Device},
        "cupy.cuda.driver": {"launchKernel": launch_kernel},
        "cupy.cuda.nvrtc": {"getVersion": compiler_version},
        "cupy.cuda.runtime": runtime,
        "cupy.fft": {},
        "cupy.linalg": {"lstsq": None, **LINALG},
        "cupyx": {"errstate": errstate},
    }
    found = {name: ModuleType(name) for name in contents}
    for name, module in found.items():
        vars(module).update(contents[name])
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(found[parent], child, module)
    return found


def ours(name: str) -> bool:
    return name.split(".")[0] in ("cupy", "cupyx") or f"{name}.".startswith("array_api_compat.cupy.")


def exchange(modules: dict[str, ModuleType]) -> dict[str, ModuleType]:
    """Replace the modules of CuPy and its array-API namespace in ``sys.modules``; return the previous ones."""
    before = {name: sys.modules.pop(name) for name in [*sys.modules] if ours(name)}
    sys.modules.update(modules)
    vars(array_api_compat).pop("cupy", None)
    if namespace := modules.get("array_api_compat.cupy"):
        vars(array_api_compat)["cupy"] = namespace
    return before


CACHED_MODULES = modules()  # and array_api_compat.cupy after its first import


@contextmanager
def installed(**machine: Any) -> Iterator[Machine]:
    """Make ``import cupy`` import the stand-in on a machine with these attributes, until the block ends."""
    before = vars(MACHINE).copy()
    vars(MACHINE).update(vars(Machine(**machine)))
    HERE.device = 0
    previous = exchange(CACHED_MODULES)
    frontend, load_library = sys.modules.get("cudnn"), libraries.load_library
    sys.modules["cudnn"] = None  # type: ignore[assignment]  # whose import would look for a GPU
    libraries.load_library = lambda name: None
    try:
        yield MACHINE
    finally:
        libraries.load_library = load_library
        sys.modules.pop("cudnn", None)  # a nested block may have removed it
        if frontend is not None:
            sys.modules["cudnn"] = frontend
        CACHED_MODULES.update(exchange(previous))
        vars(MACHINE).update(before)
