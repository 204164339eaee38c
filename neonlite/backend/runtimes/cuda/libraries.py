"""CUDA libraries: load them, a handle for each thread, NVRTC, and matrix products by cuBLAS.

CuPy's matrix products cannot be captured and do not accumulate. TF32, which multiplies float32 with 10 bits of
precision, is used only with ``NEONLITE_TF32=1`` in the environment, or ``be.runtime.driver.tf32 = True``.
"""

from __future__ import annotations

import copy
import ctypes
import hashlib
import math
import os
import re
import stat
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from neonlite.backend.concurrency import Cache
from neonlite.backend.planning import Plan
from neonlite.backend.planning.steps import Stage
from neonlite.backend.primitives import MatmulPrimitives
from neonlite.backend.runtimes.cuda.graphs import buffer_stream, current_capture, record
from neonlite.backend.validation import warn
from neonlite.files import write_atomic
from neonlite.tree_structure import Constant
from neonlite.typing import FLOAT_DTYPES, HALF_DTYPES, NativeArray

# --- load libraries ---


@cache
def load_library(name: str) -> ctypes.CDLL | None:
    """Return an NVIDIA library, such as "cublas", loaded by ctypes; None where it is not installed.

    ``cuda.pathfinder``, a dependency of CuPy, is tried first. It does not search the folders of PYTHONPATH, so if it
    fails, all folders of ``sys.path`` are searched.
    """
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return ctypes.CDLL(load_nvidia_dynamic_lib(name).abs_path)
    except (ImportError, OSError, RuntimeError):  # no pathfinder, or it does not find the library
        paths = [path for folder in sys.path for path in Path(folder or ".").glob(f"nvidia/*/lib/lib{name}.so.*")]
    for path in sorted(paths, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)], reverse=True):
        try:
            return ctypes.CDLL(str(path))
        except OSError:  # for another platform, or incomplete
            continue
    return None


# --- library handles: one for each thread that is running ---

T = TypeVar("T")


class PerThread(Generic[T]):
    """Gives each thread its own object, and that of a thread that has ended to the next new one.

    A handle of cuBLAS or cuDNN holds tens of megabytes of GPU memory, so it is reused and never destroyed.

    Parameters
    ----------
    create : callable
        ``create()`` returns a new object.
    """

    def __init__(self, create: Callable[[], T]) -> None:
        self.create = create
        self.free: list[T] = []
        self.local = threading.local()

    def get(self) -> T:
        """Return the object of this thread."""
        loan: Loan[T] | None = getattr(self.local, "loan", None)
        if loan is None:
            try:
                value = self.free.pop()
            except IndexError:
                value = self.create()
            self.local.loan = loan = Loan(value)
            weakref.finalize(loan, self.free.append, value).atexit = False
        return loan.value


class Loan(Generic[T]):
    """Refers to the object of a thread, and is freed when the thread ends."""

    def __init__(self, value: T) -> None:
        self.value = value


# --- the disk cache of compiled kernels: a private folder of files with a checksum ---
#
# The files contain code that is executed, so only the user or root may have write access to them and to the folder.
# Each file ends with the SHA-256 of its contents; a damaged file is compiled again.


def cache_folder() -> Path:
    """Return the cache folder: ``NEONLITE_CACHE``, else "neonlite" in the user's cache directory."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("NEONLITE_CACHE") or Path(home, "neonlite"))


def create_folder() -> Path:
    """Return the cache folder, created if it is missing.

    OSError where it cannot be created; RuntimeError if other users have write access to it.
    """
    folder = cache_folder()
    folder.mkdir(0o700, parents=True, exist_ok=True)
    check_private(folder)
    return folder


def read_binary(path: Path) -> bytes | None:
    """Return the contents that ``write_binary`` wrote; None for a missing, damaged or not private file.

    RuntimeError if other users have write access to the folder.
    """
    if path.parent.exists():
        check_private(path.parent)
    try:
        contents, status = path.read_bytes(), path.lstat()
    except OSError:
        return None
    is_intact = append_hash(contents[:-32]) == contents and stat.S_ISREG(status.st_mode) and is_private(status)
    return contents[:-32] if is_intact else None


def write_binary(path: Path, binary: bytes) -> None:
    """Write a compiled kernel to a file of the cache folder. OSError where that fails."""
    create_folder()
    if path.exists() and not is_private(path.lstat()):
        path.unlink()  # a new file gets a private mode
    write_atomic(path, append_hash(binary), 0o600)


def append_hash(contents: bytes) -> bytes:
    """Return the contents followed by their SHA-256, which library loaders ignore."""
    return contents + hashlib.sha256(contents).digest()


def is_private(status: os.stat_result) -> bool:
    """Return whether only the current user or root has write access to a file or folder."""
    return os.name == "nt" or (status.st_uid in (0, os.getuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def check_private(folder: Path) -> None:
    """Raise RuntimeError if other users have write access to a folder, since its files are executed."""
    status = folder.stat()
    if not is_private(status):
        raise RuntimeError(
            f"compiled kernels in {folder} are not loaded: expected a folder of user {os.getuid()} without write "
            f"access for others, got one of user {status.st_uid} with mode {stat.S_IMODE(status.st_mode):o}. "
            f"Run chmod go-w {folder}, or set NEONLITE_CACHE to another folder"
        )


# --- compile CUDA kernels with NVRTC, and cache their binaries on disk ---
#
# CuPy's ``RawKernel`` is not used: it appends ``-ftz=true`` to its options, which flushes denormal numbers (float32
# below 1.2e-38) to 0.

MAX_CACHED_KERNELS = 8192  # of each cache of compiled kernels
Kernel: TypeAlias = Any  # a compiled kernel of a driver: a function of CuPy, or of the simulator's C library
# --fmad=false: x * y + z is rounded twice, so that + - * / and sqrt give the same bits on every runtime.
# --ftz=false: denormal numbers are not flushed to 0, for the same reason.
OPTIONS = ("-std=c++17", "--fmad=false", "--ftz=false")


def load_kernel(cupy: ModuleType, source: str) -> Kernel:
    """Return the kernel named ``kernel`` in a source as a CuPy function for the current device.

    The binary comes from the cache folder (``NEONLITE_CACHE``) or is compiled and written there.
    """
    cuda = cupy.cuda
    versions = cuda.Device().compute_capability, cuda.nvrtc.getVersion(), os.environ.get("CUPY_COMPILE_WITH_PTX")
    name = kernel_name(source)
    options = *OPTIONS, f"-Dkernel={name}"
    path = cache_folder() / f"{hashlib.sha256(repr((versions, options, source)).encode()).hexdigest()[:32]}.cubin"
    if (binary := read_binary(path)) is None:
        code, _ = cuda.compiler.compile_using_nvrtc(source, options, filename="kernel.cu", cache_in_memory=True)
        binary = code.encode() if isinstance(code, str) else code  # PTX is text
        try:
            write_binary(path, binary)
        except OSError as error:
            warn(
                f"compiled kernels cannot be cached in {path.parent}: {error}. Set NEONLITE_CACHE to another folder",
                RuntimeWarning,
            )
    module = cuda.Module()
    module.load(binary)
    return module.get_function(name)


def kernel_name(source: str) -> str:
    """Return the name that profilers show for a kernel: the ops of its source, else the words above it, and a hash."""
    head, _, body = source.rpartition('extern "C"')
    words = re.findall(r";  // (\w+)$", body, re.MULTILINE)
    if not words and (comment := re.search(r"// (.*)\n(?://.*\n)*\s*\Z", head)):
        words = re.findall(r"\w+", comment[1])
    return "_".join(["neonlite", *words])[:48] + f"_{hashlib.sha256(source.encode()).hexdigest()[:8]}"


# --- matrix products by cuBLAS: one handle and workspace per thread, so that graph capture can record them ---

CUBLAS_WORKSPACE_BYTES = 32 << 20  # as NVIDIA recommends for Hopper
CUDA_DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}  # cudaDataType
COMPUTE_32F, COMPUTE_32F_FAST_TF32, COMPUTE_64F = 68, 77, 70  # cublasComputeType; 16-bit floats accumulate in float32
ALLOC_FAILED, NOT_SUPPORTED = 3, 15  # CUBLAS_STATUS_...
DISALLOW_REDUCED_PRECISION_REDUCTION = 16  # CUBLAS_MATH_...
MAX_WORKSPACES = 8  # of a thread, one for each stream
GEMM_DEFAULT = -1  # CUBLAS_GEMM_DEFAULT: cuBLAS chooses the algorithm


def is_tf32_enabled() -> bool:
    """Return whether products of float32 may use TF32: ``NEONLITE_TF32=1`` in the environment."""
    return os.environ.get("NEONLITE_TF32") == "1"


class MatrixDesc(NamedTuple):
    """A matrix, or a batch of matrices, in memory."""

    address: int
    leading_dim: int  # elements between rows, or between columns if transposed
    is_transposed: bool
    batch_stride: int  # elements between matrices of the batch; 0 for a single matrix


class GemmDesc(NamedTuple):
    """``C = alpha A B + beta C`` with shapes (m, k), (k, n), (m, n), for each of ``batch_count`` matrices."""

    m: int
    n: int
    k: int
    batch_count: int
    a: MatrixDesc
    b: MatrixDesc
    c: MatrixDesc
    dtype: str  # of A and B
    out_dtype: str  # of C; it may be float32 for 16-bit A and B, so that sums are rounded once


class CudaMatmul(MatmulPrimitives):
    """Matrix products by the driver of a GPU."""

    def gemm(self, a: NativeArray, b: NativeArray, c: NativeArray, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute ``c = alpha a b + beta c`` for (m, k), (k, n), (m, n) or batches. With beta 0, c is not read."""
        desc = None if a.dtype != b.dtype or not a.size * b.size * c.size else self.describe_gemm(a, b, c)
        if desc is None or not self.runtime.driver.gemm(desc, alpha, beta):
            record(None)
            if str(a.dtype) in HALF_DTYPES:
                a, b = (self.xp.astype(x, self.xp.float32) for x in (a, b))
            super().gemm(a, b, c, alpha, beta)

    def batch_reduce_gemm(
        self, a: NativeArray, b: NativeArray, c: NativeArray, alpha: float = 1.0, beta: float = 0.0
    ) -> None:
        """Compute ``c = alpha sum_x a[x] b[x] + beta c``: (X, m, k), (X, k, n), (m, n), with one rounding."""
        if c.dtype.itemsize > 2 or not a.shape[0]:
            super().batch_reduce_gemm(a, b, c, alpha, beta)
            return
        total = self.get_workspace("total", c.shape, self.xp.empty(0, dtype=self.xp.float32))
        super().batch_reduce_gemm(a, b, total, alpha)
        c[...] = total if beta == 0 else total + self.xp.astype(c, total.dtype) * beta

    def gemm_accumulate(
        self, products: Sequence[tuple[NativeArray, NativeArray, float]], c: NativeArray, beta: float = 0.0
    ) -> bool:
        """Compute ``c = beta c + alpha a b + ...`` and return True, or return False where no GEMM computes it.

        Only a single product may need copies of its operands. A stack of matrices may have several batch axes.
        """
        descs, allow_copies = [], len(products) == 1
        for a, b, alpha in products:
            is_same_dtype = a.dtype == b.dtype == c.dtype and a.size * b.size * c.size > 0
            if (desc := self.describe_gemm(a, b, c, allow_copies) if is_same_dtype else None) is None:
                return False
            descs.append((desc, alpha))
        driver = self.runtime.driver  # it supports either all products or none
        return all(driver.gemm(desc, alpha, 1.0 if n else beta) for n, (desc, alpha) in enumerate(descs))

    def describe_gemm(
        self, a: NativeArray, b: NativeArray, c: NativeArray, allow_copies: bool = True
    ) -> GemmDesc | None:
        """Return the descriptor of a product, with operands copied if allowed; None if no GEMM computes it."""
        if str(a.dtype) not in CUDA_DATA_TYPES or not 2 <= min(a.ndim, b.ndim) <= max(a.ndim, b.ndim) <= c.ndim:
            return None
        batch = c.shape[:-2]
        c_desc = self._describe_matrix(c, batch)
        if c_desc is None:
            return None
        first, second = (
            self._describe_matrix(x, batch) or (allow_copies and self._copy_operand(side, x, batch))
            for side, x in (("left", a), ("right", b))
        )
        if not (first and second):
            return None
        (m, k), n = a.shape[-2:], b.shape[-1]
        return GemmDesc(m, n, k, math.prod(batch), first, second, c_desc, str(a.dtype), str(c.dtype))

    def _copy_operand(self, side: str, x: NativeArray, batch: tuple[int, ...]) -> MatrixDesc:
        """Copy an operand to a workspace in C order, a matrix for each of the batch, and return its descriptor."""
        rows, columns = x.shape[-2:]
        is_single = math.prod(x.shape[:-2]) == 1
        copy = self.get_workspace(side, x.shape if is_single else (*batch, rows, columns), x)
        copy[...] = x
        record(None)
        return MatrixDesc(self.runtime.address_and_strides(copy)[0], columns, False, rows * columns * (not is_single))

    def _describe_matrix(self, x: NativeArray, batch: tuple[int, ...]) -> MatrixDesc | None:
        """Return the descriptor of a matrix in memory, or of one for each of the batch.

        None if neither its rows nor its columns are contiguous, or several strides lead from matrix to matrix.
        """
        address, strides = self.runtime.address_and_strides(x)
        (rows, columns), size = x.shape[-2:], x.dtype.itemsize
        row_stride, column_stride = strides[-2] // size, strides[-1] // size
        missing = (1,) * (len(batch) + 2 - x.ndim)
        axes = [  # (size, stride) of the batch axes
            (n, stride // size * (here > 1))
            for n, here, stride in zip(batch, missing + x.shape[:-2], missing + strides[:-2], strict=True)
            if n > 1
        ]
        batch_stride = axes[-1][1] if axes else 0
        if batch_stride < 0 or any(outer != n * inner for (_, outer), (n, inner) in pairwise(axes)):
            return None
        if columns == 1 or column_stride == 1:
            row_stride = columns if rows == 1 else row_stride
            if row_stride >= columns:
                return MatrixDesc(address, row_stride, False, batch_stride)
        if rows == 1 or row_stride == 1:
            column_stride = rows if columns == 1 else column_stride
            if column_stride >= rows:
                return MatrixDesc(address, column_stride, True, batch_stride)
        return None


class CublasHandle:
    """A handle, the workspaces of the streams that it was used on, and the stream that it is set to."""

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self.handle = handle
        self.workspaces = Cache(MAX_WORKSPACES, owner=self)  # {stream: (memory, its address)}
        self.stream: int | None = None


class Cublas:
    """The cuBLAS library, with one handle per thread. All backends of a GPU share it."""

    def __init__(
        self, library: ctypes.CDLL, allocate: Callable[[int], tuple[NativeArray, int]], stream: Callable[[], int]
    ) -> None:
        self.library, self.allocate, self.stream = library, allocate, stream
        self.handles = PerThread(self._create_handle)

    def _create_handle(self) -> CublasHandle:
        handle = ctypes.c_void_p()
        self._check("Create", ctypes.byref(handle))
        # sums of 16-bit products are rounded once, in the end, also where several blocks compute parts of a sum
        self._check("SetMathMode", handle, ctypes.c_int(DISALLOW_REDUCED_PRECISION_REDUCTION), version="")
        return CublasHandle(handle)

    def handle(self) -> ctypes.c_void_p:
        """Return this thread's handle, set to the current stream, with the workspace of the stream for its buffers."""
        state, stream = self.handles.get(), self.stream()
        if state.stream != stream:  # SetStream resets the workspace
            memory, address = self._workspace(state, buffer_stream(lambda: stream))
            if (capture := current_capture()) is not None:
                capture.keepalive.append(memory)
            self._check("SetStream", state.handle, ctypes.c_void_p(stream))
            self._check("SetWorkspace", state.handle, ctypes.c_void_p(address), ctypes.c_size_t(CUBLAS_WORKSPACE_BYTES))
            state.stream = stream
        return state.handle

    def _workspace(self, state: CublasHandle, stream: int) -> Any:
        """Return the workspace of a stream, and its address."""
        found = state.workspaces.find(stream)
        try:
            return found or state.workspaces.add(stream, self.allocate(CUBLAS_WORKSPACE_BYTES))
        except MemoryError as error:
            raise MemoryError(
                f"cuBLAS: cannot allocate a workspace of {CUBLAS_WORKSPACE_BYTES} bytes: {error}"
            ) from error

    def gemm(self, desc: GemmDesc, alpha: float, beta: float, tf32: bool) -> bool:
        """Compute a product; return False if the GPU cannot, such as one of bfloat16 before sm_80.

        cuBLAS is column-major, so it gets ``C^T = B^T A^T``.
        """
        if desc.c.is_transposed:  # C is column-major: C = A B
            a, b, m, n = desc.a, desc.b, desc.m, desc.n
            transpose_flags = [int(x.is_transposed is False) for x in (a, b)]
        else:
            a, b, m, n = desc.b, desc.a, desc.n, desc.m
            transpose_flags = [int(x.is_transposed) for x in (a, b)]
        is_double = desc.dtype == "float64"
        scale = ctypes.c_double if is_double else ctypes.c_float
        compute = (
            COMPUTE_64F if is_double else COMPUTE_32F_FAST_TF32 if tf32 and desc.dtype == "float32" else COMPUTE_32F
        )
        data_type, int64 = CUDA_DATA_TYPES[desc.dtype], ctypes.c_int64
        first, second, third = (
            (
                ctypes.c_void_p(x.address),
                data_type if x is not desc.c else CUDA_DATA_TYPES[desc.out_dtype],
                int64(x.leading_dim),
                int64(x.batch_stride),
            )
            for x in (a, b, desc.c)
        )
        alpha_, beta_ = ctypes.byref(scale(alpha)), ctypes.byref(scale(beta))
        sizes = (int64(x) for x in (m, n, desc.k))
        tail = int64(desc.batch_count), compute, GEMM_DEFAULT
        arguments = *transpose_flags, *sizes, alpha_, *first, *second, beta_, *third, *tail
        return self._multiply(*arguments)

    def _multiply(self, *arguments: object) -> bool:
        """Compute a product, described by the arguments after the handle; return False if the GPU cannot."""
        record(self._multiply, *arguments)
        return self._check("GemmStridedBatchedEx_64", self.handle(), *arguments, version="")

    def _check(self, name: str, *arguments: object, version: str = "_v2") -> bool:
        """Call a cuBLAS function; return whether it is supported. RuntimeError with the status if it fails."""
        status = getattr(self.library, f"cublas{name}{version}")(*arguments)
        if status not in (0, NOT_SUPPORTED):
            hint = " (out of GPU memory)" if status == ALLOC_FAILED else ""
            raise RuntimeError(f"cublas{name}: expected cublasStatus_t 0, got {status}{hint}")
        return not status


# --- fuse sums of matrix products into GEMM calls that accumulate in their target (beta = 1) ---
#
# A GEMM computes ``C = alpha A B + beta C``, so a sum of products, and of the target itself, is a sequence of calls
# that needs no temporary. In a plan it is a ``gemm_sum`` stage.


class SumTerm(NamedTuple):
    """A term of a sum: a value, scalar factors and a sign."""

    v: int | Constant
    scalars: tuple[int | Constant, ...] = ()
    sign: float = 1.0

    def factor(self, values: dict[int, NativeArray]) -> float:
        """Return the product of the sign and the scalars."""
        return math.prod((x.value if isinstance(x, Constant) else values[x] for x in self.scalars), start=self.sign)


def fuse_gemm_sums(plan: Plan) -> None:
    """Replace sums of products by ``gemm_sum`` stages, where they can be accumulated in their target."""
    for output, i in plan.outputs.items():
        if stages := _match_gemm_sum(plan, output):
            trial = copy.copy(plan)
            trial.set_stages(stages)
            if trial.is_direct[i]:
                plan.__dict__.update(trial.__dict__)


def _match_gemm_sum(plan: Plan, output: int) -> list[Stage] | None:
    """Return the stages with a ``gemm_sum`` stage for an output; None if it is no such sum or overwrites an operand."""
    terms, add_steps = flatten_sum(plan, output)
    products = [v for v, *_ in terms if isinstance(v, int) and _is_product(plan, v)]
    addends = [v for v, *_ in terms if v not in products]
    aliases = plan.aliases.get(plan.outputs[output], [])
    operands = {plan.view_base(x) for v in products for x in plan.step_of(v).inputs}  # type: ignore[arg-type]
    is_safe = (
        len(products) == len(set(products))
        and not plan.targets_alias
        and not operands & {*plan.outputs, *(leaf for leaf, _ in aliases)}
    )
    is_in_place = len(addends) <= 1 and all(
        (v, "exact") in aliases and plan.dtype(v) == plan.dtype(output) for v in addends
    )
    readers = [u for u, step in plan.numbered_steps if {*step.inputs} & {*products, *add_steps} - {output}]
    if len(terms) < 2 or not (products and is_safe and is_in_place) or not set(readers) <= {*add_steps}:
        return None
    if any(
        plan.step_of(v)[3:5] != plan.step_of(output)[3:5] or (v in plan.outputs and v != output)
        for v in (*products, *add_steps)
    ):
        return None
    moved_steps, position = {*products, *add_steps}, plan.stage_of[output]
    stages = [stage._replace(steps=[v for v in stage.steps if v not in moved_steps]) for stage in plan.stages]
    # the first product is written to the target already, before the other operands are read
    stages.insert(position, Stage("gemm_sum", plan.shape(output), [*products, *add_steps], writes_early=True))
    return [stage for stage in stages if stage.steps]


def _is_product(plan: Plan, v: int) -> bool:
    step = plan.find_step(v)
    return step is not None and step.op.name in ("dot", "matmul")


def flatten_sum(plan: Plan, output: int) -> tuple[list[SumTerm], list[int]]:
    """Return the terms of a value that is a sum, and the steps that add them, in topological order."""
    terms, add_steps, pending = list[SumTerm](), set[int](), [SumTerm(output)]
    while pending:
        term = pending.pop()
        step = plan.find_step(term.v) if isinstance(term.v, int) else None
        name, ins = (
            (step.op.name, step.inputs) if step and step.dtype == step.compute_dtype in FLOAT_DTYPES else ("", ())
        )
        scalars_in = [x for x in ins if not plan.dtype(x)]
        if term.v in add_steps:  # the same sum is added twice, but expanded only once
            terms.append(term)
        elif name in ("add", "sub") and not scalars_in:
            add_steps.add(term.v)  # type: ignore[arg-type]
            sign = -term.sign if name == "sub" else term.sign
            pending += [term._replace(v=ins[1], sign=sign), term._replace(v=ins[0])]
        elif name == "mul" and len(scalars_in) == 1:
            add_steps.add(term.v)  # type: ignore[arg-type]
            (x,) = (x for x in ins if plan.dtype(x))
            pending.append(term._replace(v=x, scalars=(*term.scalars, *scalars_in)))
        else:
            terms.append(term)
    return terms, sorted(add_steps)
