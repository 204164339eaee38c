"""ctypes bindings for oneDNN 3.x: load libdnnl, create memory descriptors and primitives, and execute them.

A primitive is compiled once for given shapes, which takes about a millisecond, and then executed on addresses. A
``MemoryDesc`` holds the shape and strides of an argument; a primitive may choose those of its weights itself.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from functools import cache
from importlib import import_module
from threading import get_ident, main_thread
from typing import Any

from neonlite.backend.concurrency import Cache
from neonlite.backend.runtimes import install_hint, library_folders, openmp_threads, short_spin_wait

LIBRARY_FILE = "libdnnl.so.3"  # file name in the packages of pip and conda; 3 is the version of the C API
API_VERSION = 3
INSTALL_COMMAND = 'pip install "neonlite[onednn]"'
SS_DISABLE, SIGNAL_STACK_BYTES = 2, 1 << 16  # SS_DISABLE is defined in signal.h
ARG_SCALES = 1 << 12  # DNNL_ARG_ATTR_SCALES, combined with the argument that is scaled
MAX_NDIMS = 12  # DNNL_MAX_NDIMS
MAX_CACHED_PRIMITIVES = 2048  # over all threads; one takes about 75 kB, most of it outside of Python
CAPACITY = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"  # environment variable: the size of oneDNN's own cache

# dnnl_types.h: data types, propagation kinds, arguments of a primitive, queries
DATA_TYPES = {"float32": 3, "int32": 4, "int8": 5, "uint8": 6, "int16": 2}  # NumPy has no bfloat16, only its bits
FORMAT_TAG_ANY, ENGINE_CPU, STREAM_IN_ORDER, SCRATCHPAD_USER, QUERY_IMPL_INFO = 1, 1, 1, 1, 8
ISA_AVX2 = 0x7  # dnnl_cpu_isa_t, a bit mask
ISAS_OF_PRODUCTS = {"int8": (0xF, 0x67), "int16": (0xE7,)}  # VNNI with AVX2 or AVX-512; AVX512_BF16
RELU = 0x20  # dnnl_alg_kind_t
FORWARD_TRAINING, FORWARD_INFERENCE, BACKWARD, BACKWARD_DATA = 64, 96, 128, 160
ARG_SRC, ARG_DST, ARG_WEIGHTS, ARG_BIAS, ARG_WORKSPACE, ARG_SCRATCHPAD = 1, 17, 33, 41, 64, 80
ARG_DIFF_SRC, ARG_DIFF_DST, ARG_DIFF_WEIGHTS = 129, 145, 161
MEMORY_DESC_QUERY = {ARG_SRC: 129, ARG_DIFF_SRC: 130, ARG_WEIGHTS: 131, ARG_DIFF_WEIGHTS: 132}
MEMORY_DESC_QUERY |= {ARG_DST: 133, ARG_DIFF_DST: 134, ARG_WORKSPACE: 135, ARG_SCRATCHPAD: 136}
STATUS_MESSAGES = {
    1: "out of memory",
    2: "invalid arguments",
    3: "not implemented",
    4: "no other one",
    5: "runtime error",
}


class Version(ctypes.Structure):
    """The fields of ``dnnl_version_t`` that are read."""

    _fields_ = [("major", c_int), ("minor", c_int), ("patch", c_int)]


class ExecArg(ctypes.Structure):
    """``dnnl_exec_arg_t``."""

    _fields_ = [("arg", c_int), ("memory", c_void_p)]


class UnsupportedError(Exception):
    """oneDNN has no fast implementation of an operation."""


# --- loading ---------------------------------------------------------------------------------------------------------


@cache
def load_library() -> Library:
    """Load oneDNN on the first call, and return it; ImportError if it is not installed or has another API version."""
    folders = library_folders()
    path = next((str(folder / LIBRARY_FILE) for folder in folders if (folder / LIBRARY_FILE).exists()), LIBRARY_FILE)
    try:
        with short_spin_wait():
            functions = ctypes.CDLL(path)
    except OSError as error:
        if path != LIBRARY_FILE:
            raise ImportError(f"oneDNN cannot be loaded: {error}. {install_hint(INSTALL_COMMAND)}") from None
        others = [str(other) for folder in folders for other in sorted(folder.glob("libdnnl.so*"))]
        instead = f"; found {', '.join(others)}, of another API version" if others else ""
        raise ImportError(
            f"{LIBRARY_FILE} is not in {', '.join(map(str, folders))}{instead}. {install_hint(INSTALL_COMMAND)}"
        ) from None
    return Library(functions, path)


@cache
def get_library() -> Library | None:
    """Return oneDNN, or None if it cannot be loaded or ``NEONLITE_ONEDNN=0`` is set."""
    if os.environ.get("NEONLITE_ONEDNN") == "0":
        return None
    try:
        return load_library()
    except (ImportError, RuntimeError):
        return None


def version_info() -> str:
    """Return the version, or the reason why oneDNN is not used."""
    if os.environ.get("NEONLITE_ONEDNN") == "0":
        return "without oneDNN (NEONLITE_ONEDNN=0)"
    try:
        return f"oneDNN {load_library().version}"
    except (ImportError, RuntimeError) as error:
        return f"without oneDNN, which makes convolutional and recurrent networks about twice as fast: {error}"


# --- objects ---------------------------------------------------------------------------------------------------------


class Handle:
    """A handle of a oneDNN object, which is destroyed together with this Python object."""

    __slots__ = ("_as_parameter_", "destroy")

    def __init__(self, handle: c_void_p, destroy: Callable[[c_void_p], Any]) -> None:
        self._as_parameter_, self.destroy = handle, destroy

    def __del__(self) -> None:
        self.destroy(self._as_parameter_)


class MemoryDesc:
    """A memory descriptor: the shape, strides and dtype of an array."""

    __slots__ = ("functions", "handle", "nbytes")

    def __init__(self, functions: Any, handle: Handle) -> None:
        self.functions, self.handle = functions, handle
        self.nbytes: int = functions.dnnl_memory_desc_get_size(handle)

    def is_equal(self, other: MemoryDesc) -> bool:
        """Return whether both describe the same memory; strides along axes of size 1 do not matter."""
        return self is other or bool(self.functions.dnnl_memory_desc_equal(self.handle, other.handle))


class Library:
    """oneDNN on the CPU: creates its objects and sets its number of threads."""

    def __init__(self, functions: Any, path: str) -> None:
        self.functions, self.path = functions, path
        self.version = self._version()
        self.execute, self.set_address = functions.dnnl_primitive_execute, functions.dnnl_memory_set_data_handle
        self.execute.argtypes = [c_void_p, c_void_p, c_int, c_void_p]
        self.set_address.argtypes = [c_void_p, c_void_p]
        functions.dnnl_primitive_desc_query_md.restype = c_void_p
        functions.dnnl_memory_desc_get_size.restype = c_size_t
        # an OpenMP runtime that is already loaded globally, as seen by Python itself, takes precedence over oneDNN's
        loaded = ctypes.pythonapi
        self.set_threads = getattr(loaded, "omp_set_num_threads", None) or functions.omp_set_num_threads
        self.get_threads = getattr(loaded, "omp_get_max_threads", None) or functions.omp_get_max_threads
        self.has_signal_stack = False  # whether the main thread has an alternate signal stack
        self.signal_stacks: list[Any] = []  # their memory
        if CAPACITY not in os.environ:
            self.call("set_primitive_cache_capacity", MAX_CACHED_PRIMITIVES)
        self.engine, self.stream = c_void_p(), c_void_p()
        self.call("engine_create", byref(self.engine), ENGINE_CPU, c_size_t(0))
        self.call("stream_create", byref(self.stream), self.engine, STREAM_IN_ORDER)
        self.default_attr = self.create("primitive_attr", "primitive_attr_create")  # the scratchpad is an argument
        self.call("primitive_attr_set_scratchpad_mode", self.default_attr, SCRATCHPAD_USER)

    def _version(self) -> str:
        try:
            version_function = self.functions.dnnl_version
        except AttributeError:
            raise ImportError(
                f"onednn: expected a library with dnnl_version, got {self.path}. {install_hint(INSTALL_COMMAND)}"
            ) from None
        version_function.restype = POINTER(Version)
        version = version_function().contents
        text = f"{version.major}.{version.minor}.{version.patch}"
        if version.major != API_VERSION:
            raise ImportError(
                f"onednn: expected version {API_VERSION}.x, got {text} in {self.path}. {install_hint(INSTALL_COMMAND)}"
            )
        return text

    @property
    def has_precise_exp(self) -> bool:
        """Whether exp and the logistic function are precise: without AVX2 their relative error is about 1e-5."""
        return bool(self.functions.dnnl_get_effective_cpu_isa() & ISA_AVX2 == ISA_AVX2)

    def has_products(self, dtype: str) -> bool:
        """Return whether the CPU adds products of int8 in int32, or those of bfloat16 in float32.

        Without VNNI, sums of two products of int8 may overflow; without AVX512_BF16, bfloat16 is not faster.
        """
        isa = self.functions.dnnl_get_effective_cpu_isa()
        return any(isa & mask == mask for mask in ISAS_OF_PRODUCTS[dtype])

    def use_threads(self, n: int | None = None) -> ThreadCount:
        """Return a context manager that sets the OpenMP threads of this Python thread to ``n`` or all.

        A primitive must be created and executed with the same number.
        """
        if not self.has_signal_stack and get_ident() == main_thread().ident:
            self.has_signal_stack = install_signal_stack(self.signal_stacks)
        threads = openmp_threads()
        return ThreadCount(self, threads if n is None else min(n, threads))

    def call(self, name: str, *args: object) -> None:
        """Call a function; UnsupportedError or RuntimeError if it fails."""
        status = self.functions[f"dnnl_{name}"](*args)
        if status:
            problem = UnsupportedError if status in (2, 3, 4) else RuntimeError
            raise problem(f"oneDNN {self.version}: dnnl_{name}: {STATUS_MESSAGES.get(status, f'status {status}')}")

    def create(self, kind: str, name: str, *args: object) -> Handle:
        """Create an object with the function ``name``; ``kind`` names the function that destroys it."""
        handle = c_void_p()
        self.call(name, byref(handle), *args)
        return Handle(handle, self.functions[f"dnnl_{kind}_destroy"])

    # --- memory descriptors ---

    def any_memory_desc(self, dims: Sequence[int], dtype: str = "float32") -> Handle:
        """Return the descriptor of an array whose strides a primitive chooses (format_tag any)."""
        return self.create(
            "memory_desc",
            "memory_desc_create_with_tag",
            len(dims),
            dims_array(dims),
            DATA_TYPES[dtype],
            FORMAT_TAG_ANY,
        )

    def memory_desc(self, dims: Sequence[int], strides: Sequence[int], dtype: str = "float32") -> MemoryDesc:
        """Return the descriptor of an array with given strides, in elements."""
        args = len(dims), dims_array(dims), DATA_TYPES[dtype], dims_array(strides)
        handle = self.create("memory_desc", "memory_desc_create_with_strides", *args)
        return MemoryDesc(self.functions, handle)

    # --- primitives ---

    def primitive_desc(self, name: str, *args: object, avoided: bytes | None = None) -> Handle:
        """Return a primitive descriptor; UnsupportedError if only a slow reference implementation exists.

        ``avoided``: the name of an implementation that is not to be used.
        """
        primitive_desc = self.create("primitive_desc", f"{name}_primitive_desc_create", *args)
        implementation = c_char_p()
        self.call("primitive_desc_query", primitive_desc, QUERY_IMPL_INFO, 0, byref(implementation))
        while avoided is not None and implementation.value == avoided:
            self.call("primitive_desc_next_impl", primitive_desc)
            self.call("primitive_desc_query", primitive_desc, QUERY_IMPL_INFO, 0, byref(implementation))
        if b"ref" in (implementation.value or b"ref"):
            raise UnsupportedError(
                f"oneDNN {self.version}: {name}: no fast implementation, only {implementation.value!r}"
            )
        return primitive_desc

    def create_attr(self, scales: dict[int, int], relu: bool = False) -> Handle:
        """Return attributes with factors of arguments, along the axes of bit masks, and max(., 0) of the result."""
        attr = self.create("primitive_attr", "primitive_attr_create")
        self.call("primitive_attr_set_scratchpad_mode", attr, SCRATCHPAD_USER)
        for arg, mask in scales.items():
            self.call("primitive_attr_set_scales_mask", attr, arg, mask)
        if relu:
            post_ops = self.create("post_ops", "post_ops_create")
            self.call("post_ops_append_eltwise", post_ops, RELU, c_float(0), c_float(0))
            self.call("primitive_attr_set_post_ops", attr, post_ops)
        return attr

    def query_memory_desc(self, primitive_desc: Handle, arg: int) -> MemoryDesc:
        """Return the memory descriptor of an argument of a primitive."""
        memory_desc = c_void_p(self.functions.dnnl_primitive_desc_query_md(primitive_desc, MEMORY_DESC_QUERY[arg], 0))
        return MemoryDesc(self.functions, self.create("memory_desc", "memory_desc_clone", memory_desc))

    def create_reorder(self, src: MemoryDesc, dst: MemoryDesc) -> Primitive:
        """Return the primitive that copies from one descriptor to another."""
        args = src.handle, self.engine, dst.handle, self.engine, self.default_attr
        return Primitive(self, self.primitive_desc("reorder", *args), {ARG_SRC: src, ARG_DST: dst})

    def create_primitive(
        self, primitive_desc: Handle, *args: int, known: dict[int, MemoryDesc] | None = None
    ) -> Primitive:
        """Return the primitive of a descriptor with these arguments; ``known``: descriptors that are not queried."""
        known = known or {}
        memory_descs = {arg: known.get(arg) or self.query_memory_desc(primitive_desc, arg) for arg in args}
        return Primitive(self, primitive_desc, memory_descs)


class Primitive:
    """A compiled primitive, for one thread at a time. ``memory_descs``: the descriptor of each argument, in order."""

    def __init__(self, library: Library, primitive_desc: Handle, memory_descs: dict[int, MemoryDesc]) -> None:
        self.memory_descs = memory_descs
        self.scratchpad_desc = library.query_memory_desc(primitive_desc, ARG_SCRATCHPAD)
        self.needs_scratchpad = int(self.scratchpad_desc.nbytes > 0)  # 1 if a scratchpad is its last argument, else 0
        if self.needs_scratchpad:
            memory_descs = memory_descs | {ARG_SCRATCHPAD: self.scratchpad_desc}
        self.primitive = library.create("primitive", "primitive_create", primitive_desc)
        memory = ("memory", "memory_create")
        self.memories = [
            library.create(*memory, desc.handle, library.engine, c_void_p()) for desc in memory_descs.values()
        ]
        pairs = zip(memory_descs, self.memories, strict=True)
        arguments = (ExecArg * len(memory_descs))(*(ExecArg(n, m._as_parameter_) for n, m in pairs))
        self.exec_args = self.primitive._as_parameter_, library.stream, len(memory_descs), arguments
        self.addresses = [0] * len(memory_descs)
        self.library = library

    def __call__(self, *addresses: int) -> None:
        """Execute on one address for each argument, in the order of ``memory_descs``."""
        for n, address in enumerate(addresses):
            if address != self.addresses[n]:
                self.addresses[n] = 0  # in case Ctrl-C comes between the next two lines
                self.library.set_address(self.memories[n]._as_parameter_, address)
                self.addresses[n] = address
        if status := self.library.execute(*self.exec_args):
            raise RuntimeError(f"oneDNN {self.library.version}: {STATUS_MESSAGES.get(status, f'status {status}')}")


# primitives, or None where oneDNN has no fast one, by thread, since one runs in one thread at a time, and parameters; a
# thread that has ended leaves them to the next one of its id
primitives = Cache(MAX_CACHED_PRIMITIVES)


class SignalStack(ctypes.Structure):
    """``stack_t`` of Linux."""

    _fields_ = [("start", c_void_p), ("flags", c_int), ("nbytes", c_size_t)]


def install_signal_stack(stacks: list[Any]) -> bool:
    """Install an alternate signal stack for this thread if it has none, and keep its memory in ``stacks``.

    Workaround for oneDNN issue 4845 (github.com/uxlfoundation/oneDNN/issues/4845), fixed in March 2026: during a matmul
    the stack pointer may point into the heap, and a signal handler, such as Python's for Ctrl-C, would overwrite
    memory. Python's handlers use the alternate stack if there is one, and the kernel delivers signals to the main
    thread if it can.
    """
    sigaltstack, current = ctypes.pythonapi.sigaltstack, SignalStack()
    if sigaltstack(None, byref(current)) == 0 and current.flags & SS_DISABLE:
        stacks.append(ctypes.create_string_buffer(SIGNAL_STACK_BYTES))
        sigaltstack(byref(SignalStack(ctypes.addressof(stacks[-1]), 0, SIGNAL_STACK_BYTES)), None)
    return True


class ThreadCount:
    """Context manager that sets the number of OpenMP threads, which each Python thread has separately."""

    __slots__ = ("count", "library", "previous")

    def __init__(self, library: Library, count: int) -> None:
        self.library, self.count = library, count

    def __enter__(self) -> int:
        self.previous = self.library.get_threads()
        if self.previous != self.count:
            self.library.set_threads(self.count)
        return self.count

    def __exit__(self, *_: object) -> None:
        if self.previous != self.count:
            self.library.set_threads(self.previous)


def dims_array(dims: Sequence[int]) -> Any:
    """Return sizes as ``dnnl_dims_t``."""
    return (c_int64 * MAX_NDIMS)(*dims)


def numpy_uses_avx512() -> bool:
    """Return whether NumPy uses AVX-512, with which some of its functions are as fast as oneDNN's."""
    features = getattr(import_module("numpy._core._multiarray_umath"), "__cpu_features__", {})
    return bool(features.get("X86_V4", features.get("AVX512_SKX")))  # before NumPy 2.4: AVX512_SKX
