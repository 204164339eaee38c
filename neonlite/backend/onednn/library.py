"""How is oneDNN found, and how is it called?  ``libdnnl`` through ctypes: its C interface of version 3.

What it computes is a primitive: made once for all sizes, which takes a millisecond as it writes machine code, and then
called with addresses. Where numbers lie is a ``Layout``; oneDNN chooses its own where a primitive leaves it the choice.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_void_p
from functools import cache
from importlib import import_module
from threading import get_ident, main_thread
from typing import Any

from neonlite.backend.mkl.blas import folders

FILE = "libdnnl.so.3"  # as pip and conda name it; the 3 is that of the interface
MAJOR = 3
WAY_OUT = 'pip install "neonlite[onednn]"'
SPINS = "GOMP_SPINCOUNT"  # how often a thread of GNU's OpenMP looks for work before it sleeps
NO_STACK, STACK = 2, 1 << 16  # signal.h: SS_DISABLE; bytes for signal handlers
AXES = 12  # that a list of sizes has room for

# dnnl_types.h: types of numbers, kinds of propagation, arguments of a primitive, what it can be asked
DTYPES = {"float32": 3, "int32": 4, "uint8": 6}
ANY, CPU, IN_ORDER, GIVEN, IMPLEMENTATION = 1, 1, 1, 1, 8
AVX2 = 0x7  # bits of instruction sets
TRAINING, INFERENCE, BACKWARD = 64, 96, 128
SRC, DST, WEIGHTS, BIAS, WORKSPACE, SCRATCHPAD = 1, 17, 33, 41, 64, 80
DIFF_SRC, DIFF_DST, DIFF_WEIGHTS = 129, 145, 161
LAYOUT_OF = {SRC: 129, DIFF_SRC: 130, WEIGHTS: 131, DIFF_WEIGHTS: 132, DST: 133, DIFF_DST: 134, WORKSPACE: 135}
LAYOUT_OF[SCRATCHPAD] = 136
PROBLEMS = {1: "out of memory", 2: "wrong arguments", 3: "not implemented", 5: "an error while it ran"}


class Version(ctypes.Structure):
    """``dnnl_version_t``, as far as it is read."""

    _fields_ = [("major", c_int), ("minor", c_int), ("patch", c_int)]


class Argument(ctypes.Structure):
    """``dnnl_exec_arg_t``."""

    _fields_ = [("number", c_int), ("memory", c_void_p)]


class Unsupported(Exception):
    """oneDNN has no fast way to do this."""


# --- finding it ------------------------------------------------------------------------------------------------------


@cache
def library() -> Library:
    """Return oneDNN, loaded when first asked for; ImportError when there is none that can be used."""
    places = folders()
    path = next((str(place / FILE) for place in places if (place / FILE).exists()), FILE)
    scope = ctypes.CDLL(None)  # what is for all to use by now comes before what oneDNN brings itself
    try:
        with patience():
            loaded = ctypes.CDLL(path)
    except OSError as error:
        if path != FILE:
            raise ImportError(f"oneDNN cannot be loaded: {error}: {WAY_OUT}") from None
        others = [str(other) for place in places for other in sorted(place.glob("libdnnl.so*"))]
        instead = f"; there is {', '.join(others)}, of another interface" if others else ""
        raise ImportError(f"{FILE} is not in {', '.join(map(str, places))}{instead}: {WAY_OUT}") from None
    return Library(loaded, scope, path)


@contextmanager
def patience() -> Iterator[None]:
    """Let threads of GNU's OpenMP that is loaded meanwhile look for work briefly, and then sleep.

    By themselves they look for milliseconds. That gains nothing, and keeps the CPUs from other processes, whose threads
    they may be waiting for in turn. What the environment says about it holds.
    """
    if any(name in os.environ for name in ("OMP_WAIT_POLICY", SPINS)):
        yield
        return
    os.environ[SPINS] = "6000"  # looks: as long as from one call of a small network to the next
    try:
        yield
    finally:
        os.environ.pop(SPINS, None)


@cache
def found() -> Library | None:
    """Return oneDNN; None when there is none that can be used, or ``NEONLITE_ONEDNN=0`` says to do without."""
    if os.environ.get("NEONLITE_ONEDNN") == "0":
        return None
    try:
        return library()
    except (ImportError, RuntimeError):
        return None


def about() -> str:
    """Return the version, or why there is none, in a few words."""
    if os.environ.get("NEONLITE_ONEDNN") == "0":
        return "without oneDNN, as NEONLITE_ONEDNN=0 says"
    try:
        return f"oneDNN {library().version}"
    except (ImportError, RuntimeError) as error:
        return f"without oneDNN: {error}"


# --- what it is made of ----------------------------------------------------------------------------------------------


class Handle:
    """An object of oneDNN, which goes with this one."""

    __slots__ = ("_as_parameter_", "destroy")

    def __init__(self, handle: c_void_p, destroy: Callable[[c_void_p], Any]) -> None:
        self._as_parameter_, self.destroy = handle, destroy

    def __del__(self) -> None:
        self.destroy(self._as_parameter_)


class Layout:
    """How an array lies in memory, and how many bytes that takes."""

    __slots__ = ("functions", "handle", "nbytes")

    def __init__(self, functions: Any, handle: Handle) -> None:
        self.functions, self.handle = functions, handle
        self.nbytes: int = functions.dnnl_memory_desc_get_size(handle)

    def same(self, other: Layout) -> bool:
        """Tell whether another one is as good: it may differ in strides along axes of one element."""
        return self is other or bool(self.functions.dnnl_memory_desc_equal(self.handle, other.handle))


class Library:
    """oneDNN on the CPU: what it makes, and how many threads it uses."""

    def __init__(self, loaded: Any, scope: Any, path: str) -> None:
        self.functions, self.path = loaded, path
        self.version = self._version()
        self.execute, self.set_address = loaded.dnnl_primitive_execute, loaded.dnnl_memory_set_data_handle
        self.execute.argtypes = [c_void_p, c_void_p, c_int, c_void_p]
        self.set_address.argtypes = [c_void_p, c_void_p]
        loaded.dnnl_primitive_desc_query_md.restype = c_void_p
        loaded.dnnl_memory_desc_get_size.restype = c_size_t
        self.set_threads = getattr(scope, "omp_set_num_threads", None) or loaded.omp_set_num_threads
        self.get_threads = getattr(scope, "omp_get_max_threads", None) or loaded.omp_get_max_threads
        self.most_threads = 1 << 30
        self.guarded = False  # whether signals have a stack
        self.rooms: list[Any] = []  # its memory
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)
        self.engine, self.stream = c_void_p(), c_void_p()
        self.call("engine_create", byref(self.engine), CPU, c_size_t(0))
        self.call("stream_create", byref(self.stream), self.engine, IN_ORDER)
        self.plain = self.make("primitive_attr", "primitive_attr_create")  # primitives work in memory that is given
        self.call("primitive_attr_set_scratchpad_mode", self.plain, GIVEN)

    def _version(self) -> str:
        try:
            ask = self.functions.dnnl_version
        except AttributeError:
            raise ImportError(f"{self.path} is not oneDNN, as it has no dnnl_version: {WAY_OUT}") from None
        ask.restype = POINTER(Version)
        version = ask().contents
        text = f"{version.major}.{version.minor}.{version.patch}"
        if version.major != MAJOR:
            raise ImportError(f"{self.path} is oneDNN {text}, and neonlite calls {MAJOR}.x: {WAY_OUT}")
        return text

    @property
    def precise(self) -> bool:
        """Whether exp and the logistic function are: before AVX2 they err in the fifth place."""
        return bool(self.functions.dnnl_get_effective_cpu_isa() & AVX2 == AVX2)

    def _forked(self) -> None:
        # GNU's OpenMP waits in a forked process for threads that are not there; a single one needs no others
        self.most_threads = 1

    def using(self, threads: int) -> Threads:
        """Return ``with library.using(n):`` so many threads, in this thread of Python, meanwhile."""
        if not self.guarded and get_ident() == main_thread().ident:
            self.guarded = apart(self.rooms)
        return Threads(self, min(threads, self.most_threads))

    def call(self, name: str, *args: Any) -> None:
        """Call a function; Unsupported or RuntimeError when it fails."""
        status = self.functions[f"dnnl_{name}"](*args)
        if status:
            problem = Unsupported if status in (2, 3) else RuntimeError
            raise problem(f"oneDNN {self.version}: dnnl_{name}: {PROBLEMS.get(status, f'status {status}')}")

    def make(self, kind: str, name: str, *args: Any) -> Handle:
        """Return an object of some kind, as the function of a name makes it."""
        handle = c_void_p()
        self.call(name, byref(handle), *args)
        return Handle(handle, self.functions[f"dnnl_{kind}_destroy"])

    # --- layouts ---

    def open(self, sizes: Sequence[int]) -> Handle:
        """Return the description of an array of float32 whose layout a primitive is to choose."""
        return self.make(
            "memory_desc", "memory_desc_create_with_tag", len(sizes), numbers(sizes), DTYPES["float32"], ANY
        )

    def layout(self, sizes: Sequence[int], strides: Sequence[int], dtype: str = "float32") -> Layout:
        """Return the layout of an array with some strides, counted in elements."""
        args = len(sizes), numbers(sizes), DTYPES[dtype], numbers(strides)
        handle = self.make("memory_desc", "memory_desc_create_with_strides", *args)
        return Layout(self.functions, handle)

    # --- primitives ---

    def describe(self, name: str, *args: Any) -> Handle:
        """Return the description of a primitive; Unsupported when it would be slow."""
        made = self.make("primitive_desc", f"{name}_primitive_desc_create", *args)
        text = c_char_p()
        self.call("primitive_desc_query", made, IMPLEMENTATION, 0, byref(text))
        if b"ref" in (text.value or b"ref"):
            raise Unsupported(f"oneDNN {self.version}: {name}: only {text.value!r}")
        return made

    def layout_of(self, description: Handle, argument: int) -> Layout:
        """Return the layout that an argument of a primitive has."""
        theirs = c_void_p(self.functions.dnnl_primitive_desc_query_md(description, LAYOUT_OF[argument], 0))
        return Layout(self.functions, self.make("memory_desc", "memory_desc_clone", theirs))

    def reorder(self, source: Layout, target: Layout) -> Call:
        """Return the copy from one layout to another."""
        args = source.handle, self.engine, target.handle, self.engine, self.plain
        return Call(self, self.describe("reorder", *args), {SRC: source, DST: target})

    def primitive(self, description: Handle, *arguments: int, known: dict[int, Layout] | None = None) -> Call:
        """Return the primitive of a description, to be called with the addresses of some arguments."""
        known = known or {}
        return Call(self, description, {n: known.get(n) or self.layout_of(description, n) for n in arguments})


class Call:
    """A primitive that is ready to run, in one thread at a time; ``layouts`` tells how each argument lies."""

    def __init__(self, library: Library, description: Handle, layouts: dict[int, Layout]) -> None:
        self.layouts = layouts
        self.scratch = library.layout_of(description, SCRATCHPAD)
        self.spare = int(self.scratch.nbytes > 0)  # how many rooms it needs to work in, which come last
        layouts = layouts | {SCRATCHPAD: self.scratch} if self.spare else layouts
        self.primitive = library.make("primitive", "primitive_create", description)
        memory = ("memory", "memory_create")
        self.memories = [
            library.make(*memory, layout.handle, library.engine, c_void_p()) for layout in layouts.values()
        ]
        pairs = zip(layouts, self.memories, strict=True)
        arguments = (Argument * len(layouts))(*(Argument(n, m._as_parameter_) for n, m in pairs))
        self.ready = self.primitive._as_parameter_, library.stream, len(layouts), arguments
        self.addresses = [0] * len(layouts)
        self.library = library

    def __call__(self, *addresses: int) -> None:
        """Run, on one address for each of ``layouts``."""
        for n, address in enumerate(addresses):
            if address != self.addresses[n]:
                self.addresses[n] = 0  # Ctrl-C may come once oneDNN has the new one, and before it is noted
                self.library.set_address(self.memories[n]._as_parameter_, address)
                self.addresses[n] = address
        if status := self.library.execute(*self.ready):
            raise RuntimeError(f"oneDNN {self.library.version}: {PROBLEMS.get(status, f'status {status}')}")


class SignalStack(ctypes.Structure):
    """``stack_t`` of Linux."""

    _fields_ = [("start", c_void_p), ("flags", c_int), ("nbytes", c_size_t)]


def apart(rooms: list[Any]) -> bool:
    """Give this thread's signal handlers a stack of their own, in a room that is kept, where they have none.

    Products of oneDNN, until its repair of March 2026, let the stack pointer point into the heap, so a handler that
    runs meanwhile, as Python's for Ctrl-C, writes over other memory: github.com/uxlfoundation/oneDNN/issues/4845.
    Python's handlers take another stack where there is one, and the kernel gives signals to the main thread where it
    can.
    """
    sigaltstack, found = ctypes.CDLL(None).sigaltstack, SignalStack()
    if sigaltstack(None, byref(found)) == 0 and found.flags & NO_STACK:
        rooms.append(ctypes.create_string_buffer(STACK))
        sigaltstack(byref(SignalStack(ctypes.addressof(rooms[-1]), 0, STACK)), None)
    return True


class Threads:
    """So many threads of OpenMP meanwhile: each thread of Python has a number of its own."""

    __slots__ = ("before", "library", "wanted")

    def __init__(self, library: Library, wanted: int) -> None:
        self.library, self.wanted = library, wanted

    def __enter__(self) -> int:
        self.before = self.library.get_threads()
        if self.before != self.wanted:
            self.library.set_threads(self.wanted)
        return self.wanted

    def __exit__(self, *_: object) -> None:
        if self.before != self.wanted:
            self.library.set_threads(self.before)


def numbers(sizes: Sequence[int]) -> Any:
    """Return whole numbers as oneDNN takes them."""
    return (c_int64 * AXES)(*sizes)


def using_avx512() -> bool:
    """Tell whether NumPy uses AVX-512, with which some of its functions are as fast as oneDNN's."""
    features = getattr(import_module("numpy._core._multiarray_umath"), "__cpu_features__", {})
    return bool(features.get("X86_V4", features.get("AVX512_SKX")))  # the latter is its older name
