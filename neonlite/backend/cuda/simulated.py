"""How are kernels tried without a card?  By a C++ compiler: the text that a card would get is compiled for the CPU.

``shim.h`` gives it blocks, threads, shared memory and barriers. Memory is NumPy's. Compiled kernels are kept in the
user's cache folder (``NEONLITE_CACHE``, else ``$XDG_CACHE_HOME/neonlite``, else ``~/.cache/neonlite``). For tests and
for teaching: a student's kernel runs, and fails, as it would on a card, but a thousand times as slowly.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from neonlite.backend.cuda.blas import Matrix, Product
from neonlite.backend.cuda.driver import CompileError, pack
from neonlite.backend.cuda.executor import Cuda
from neonlite.backend.cuda.kernels import PREAMBLE
from neonlite.backend.cuda.primitives import equip
from neonlite.backend.cuda.rows import MANY
from neonlite.backend.cuda.watch import Watch
from neonlite.backend.plan import ALIGN
from neonlite.backend.runtimes.numpy_ import NumPy
from neonlite.backend.stored import Images

SHIM = Path(__file__).with_name("shim.h").read_text()
# C's headers are read in half the time of C++'s; numbers are rounded and wrap as a card's do.
OPTIONS = ["-O1", "-std=c++17", "-nostdinc++", "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing", "-w"]
OPTIONS += ["-fPIC", "-shared"]


class Simulated(NumPy):
    """Arrays of NumPy, on which the kernels of a card run: ``Backend(Simulated())``. It is hidden: it has no name."""

    name = "simulated"
    executor: Any = Cuda

    def __init__(self, device_id: int = 0) -> None:
        super().__init__(device_id)
        self.driver, self.watch = SimulatedDriver(), Watch(self)
        equip(self)

    fetch = NumPy.get

    def get(self, array: Any) -> Any:
        """Return a copy; IndexError when a kernel met an index that is out of range."""
        return self.watch.look(self.fetch(array))

    def share(self, array: Any) -> Any:
        """Return the array itself; IndexError as in ``get``."""
        return self.watch.look(array)

    def wait(self) -> None:
        """Raise IndexError as in ``get``: everything has run."""
        self.watch.look()

    def layout(self, array: Any) -> tuple[int, tuple[int, ...]]:
        """Return the address of the first element, and the strides, both in bytes."""
        if tape := self.driver.tape:
            tape.held.append(array)  # as a graph holds the memory that was allocated for it
        return array.__array_interface__["data"][0], array.strides


class SimulatedDriver:
    """The driver of no card: kernels are functions of shared libraries, made by a C++ compiler (``$CXX``, else g++)."""

    tf32 = False  # which NumPy has not

    def allocate(self, nbytes: int) -> Any:
        """Return so many bytes that begin with a cache line, filled with 0xff: floats that nobody wrote are NaN."""
        raw = np.full(nbytes + ALIGN, 0xFF, np.uint8)
        start = -raw.ctypes.data % ALIGN
        return raw[start : start + nbytes]

    lock = threading.Lock()  # a kernel's threads are counted in variables of its library
    room = np.empty(MANY << 15, np.uint8)  # of their stacks

    tapes = threading.local()

    @property
    def tape(self) -> Tape | None:
        """What this thread records, if it does."""
        return getattr(self.tapes, "tape", None)

    def compile(self, source: str) -> Any:
        """Return a C function; it is compiled when the cache folder does not hold it."""
        return compiled(whole(source), source.removeprefix(PREAMBLE)).launch

    def launch(self, kernel: Any, grid: tuple[int, int], block: int, arguments: Sequence[int | float]) -> None:
        """Run a kernel, block by block."""
        self.call(self._run, kernel, grid, block, pack(arguments))

    def prepare(
        self, kernel: Any, grid: tuple[int, int], block: int, arguments: Sequence[int | float]
    ) -> Callable[[], None]:
        """Return a launch."""
        return partial(self.launch, kernel, grid, block, arguments)

    def _run(self, kernel: Any, grid: tuple[int, int], block: int, packed: bytes) -> None:
        with self.lock:
            kernel((ctypes.c_uint * 2)(*grid), block, packed, ctypes.c_void_p(self.room.ctypes.data))

    def call(self, f: Callable[..., None], *arguments: Any) -> None:
        """Run it, or put it on this thread's tape."""
        if (tape := self.tape) is not None:
            tape.calls.append((f, arguments))
        else:
            f(*arguments)

    @contextmanager
    def capture(self) -> Iterator[Tape]:
        """Record on a tape."""
        self.tapes.tape = Tape(self)
        try:
            yield self.tapes.tape
        finally:
            self.tapes.tape = None

    def here(self) -> int:
        """Return the one stream."""
        return 0

    def multiply(self, form: Product, alpha: float, beta: float) -> bool:
        """Compute it by NumPy; halves as float32, rounded once."""
        self.call(self._multiply, form, alpha, beta)
        return True

    def _multiply(self, form: Product, alpha: float, beta: float) -> None:
        wide = np.float64 if form.dtype == "float64" else np.float32
        a = matrices(form.a, form.m, form.k, form.stack, form.dtype)
        b = matrices(form.b, form.k, form.n, form.stack, form.dtype)
        c = matrices(form.c, form.m, form.n, form.stack, form.out)
        product = np.matmul(a.astype(wide), b.astype(wide)) * alpha
        c[...] = product + beta * c.astype(wide) if beta else product

    def wait(self) -> None:
        """Return at once: everything has run."""


class Tape:
    """A graph that is none: calls, one after another."""

    def __init__(self, driver: SimulatedDriver) -> None:
        self.driver = driver
        self.calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.held: list[Any] = []

    def launch(self) -> None:
        """Run them."""
        for f, arguments in self.calls:
            f(*arguments)

    def taped(self, primitives: Any) -> Any:
        """Return primitives whose work is put on the tape, whether it is a kernel's or NumPy's."""
        return Taped(self.driver, primitives)


class Taped:
    """Primitives whose work is put on the tape of a driver."""

    def __init__(self, driver: SimulatedDriver, primitives: Any) -> None:
        self.driver, self.primitives = driver, primitives

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.primitives, name)
        works = name in ("gemm", "summed", "scatter") or name.endswith(("_fprop", "_bprop", "_update"))
        return partial(self._tape, found) if works else found

    def _tape(self, f: Callable[..., None], *arguments: Any) -> None:
        """Tape a call as a whole; of images that may lie apart, what is done to them piece by piece, as it decides."""
        f(*arguments) if any(isinstance(x, Images) for x in arguments) else self.driver.call(f, *arguments)


def matrices(x: Matrix, rows: int, columns: int, count: int, dtype: str) -> Any:
    """Return a stack of matrices in memory as an array."""
    along = (1, x.pitch) if x.transposed else (x.pitch, 1)
    sizes, steps = (count, rows, columns), (x.apart, *along)
    nbytes = np.dtype(dtype).itemsize
    end = sum((n - 1) * step for n, step in zip(sizes, steps, strict=True)) + 1
    memory: Any = (ctypes.c_char * (end * nbytes)).from_address(x.address)
    return np.ndarray(sizes, dtype, memory, strides=[step * nbytes for step in steps])


def whole(source: str) -> str:
    """Return the text of a kernel with the shim before it, and behind it a function that unpacks the arguments.

    A line that the compiler tells of is one of the text behind the preamble.
    """
    found = re.search(r"\bkernel\(([^)]*)\)", source)
    if found is None:
        raise RuntimeError(f"no kernel in {source!r}")
    types = [" ".join(parameter.split()[:-1]) for parameter in found[1].split(",")]
    values = ", ".join(f"*({kind}*)(arguments + {8 * n})" for n, kind in enumerate(types))
    preamble = PREAMBLE if source.startswith(PREAMBLE) else ""
    together = str("__syncthreads" in source).lower()
    return f"""{SHIM}
{preamble}
#line 1 "kernel.cu"
{source.removeprefix(preamble)}
static char arguments[{8 * len(types)}];
static void call() {{ kernel({values}); }}
extern "C" void launch(const unsigned* grid, unsigned block, const char* given, void* room)
{{
    memcpy(arguments, given, sizeof arguments);
    run(grid, block, call, room, {together});
}}
"""


def compiled(text: str, shown: str) -> Any:
    """Return the shared library of a C++ text, from the cache folder or compiled into it.

    A file ends with the hash of what comes before, so that one that is broken is known, and compiled anew.
    CompileError has the compiler's words, and the part of the text that is ``shown``.
    """
    import subprocess
    import tempfile

    compiler = os.environ.get("CXX", "g++")
    key = hashlib.sha256(" ".join([compiler, *OPTIONS, text]).encode()).hexdigest()[:32]
    folder = cache()
    path = folder / f"{key}.so"
    if not is_whole(path):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            room = tempfile.TemporaryDirectory(dir=folder)
        except OSError as error:
            raise RuntimeError(
                f"compiled kernels are kept in {folder}, where nothing can be written: {error}; NEONLITE_CACHE names "
                "another folder"
            ) from error
        with room:
            code, made = Path(room.name, "kernel.cpp"), Path(room.name, "kernel.so")
            code.write_text(text)
            try:
                run = subprocess.run([compiler, *OPTIONS, str(code), "-o", str(made)], capture_output=True, text=True)
            except FileNotFoundError as error:
                raise RuntimeError(f"a C++ compiler is needed: {compiler} is not there; CXX names another") from error
            if run.returncode:
                raise CompileError(f"{compiler} does not compile a kernel:\n{run.stderr}{shown}")
            made.write_bytes(signed(made.read_bytes()))
            made.replace(path)  # at once
    return ctypes.CDLL(str(path))


def signed(contents: bytes) -> bytes:
    """Return the contents of a library, and their hash, which loaders do not look at."""
    return contents + hashlib.sha256(contents).digest()


def is_whole(path: Path) -> bool:
    """Tell whether a file is there, and is as it was written."""
    try:
        contents = path.read_bytes()
    except OSError:
        return False
    return signed(contents[:-32]) == contents


def cache() -> Path:
    """Return the folder of compiled kernels."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("NEONLITE_CACHE") or Path(home, "neonlite"))
