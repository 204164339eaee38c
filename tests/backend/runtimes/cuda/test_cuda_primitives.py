"""GPU primitives agree with the reference primitives; a C++ compiler runs their kernels on the CPU.

The reference runs on NumPy arrays in float64 and shares no code with the kernels. Shapes come from the seeded
generators of test_primitives.py, which runs on the kernels, too, with NEONLITE_TEST_SIMULATED=1.

Tests ``neonlite/backend/runtimes/cuda/convolution.py``, ``neonlite/backend/runtimes/cuda/__init__.py`` and
``neonlite/backend/runtimes/cuda/kernels.py``.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from helpers import image_cases, nvrtc, textbook
from helpers.kernel_kinds import PRIMITIVES
from helpers.parametrize import ARCHITECTURES
from helpers.simulated_gpu import ByCudnn, by_cudnn, texts
from helpers.standin_cudnn import Frontend
from helpers.standin_cupy import installed

import neonlite as nl
from neonlite import Backend
from neonlite.backend.primitives import ReferencePrimitives
from neonlite.backend.primitives.geometry import ImageShape
from neonlite.backend.runtimes.cuda import CudaPrimitives, kernels
from neonlite.backend.runtimes.cuda.codegen import PREAMBLE
from neonlite.backend.runtimes.cuda.convolution import OPERAND_NAMES
from neonlite.backend.runtimes.cuda.executor import CuPyDriver
from neonlite.backend.runtimes.cuda.graphs import record_launches
from neonlite.backend.runtimes.cuda.kernels import kernel_source
from neonlite.backend.runtimes.cuda.libraries import OPTIONS, Cublas, GemmDesc
from neonlite.backend.runtimes.cuda.simulator import SimulatedDriver, SimulatedGPU
from neonlite.backend.runtimes.numpy import NumPyRuntime
from neonlite.ops.functions import run_scatter_add
from neonlite.typing import FLOAT_DTYPES, HALF_DTYPES, dtype_bits

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are simulated with g++, which is not here")

CLOSE = {"bfloat16": 2**-8, "float32": 2e-6, "float16": 2**-11, "float64": 1e-13}
DTYPES = list(CLOSE)
CANCELLATION_ERROR = 2e-6  # relative to the largest element, where large values cancel
FEW, MANY = 4, 200  # tested shapes of each primitive in `make test` and in `make test-slow`

SIM, REAL, BE = CudaPrimitives(SimulatedGPU()), ReferencePrimitives(NumPyRuntime()), Backend(SimulatedGPU())


def held(seed: int, shape: Any, dtype: str) -> Any:
    """Return normal random numbers, rounded to a dtype."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def near(actual: Any, wanted: Any, label: Any) -> None:
    """Assert that an array has the expected values up to one or two roundings."""
    close, actual, finite = CLOSE[str(actual.dtype)], actual.astype(float), np.isfinite(wanted)
    np.testing.assert_array_equal(np.where(finite, 0, actual), np.where(finite, 0, wanted), err_msg=str(label))
    actual, wanted = (np.where(finite, x, 0).astype(float) for x in (actual, wanted))
    tolerance = close * np.abs(wanted) + 4 * min(close, CANCELLATION_ERROR) * max(1.0, np.abs(wanted).max(initial=0))
    assert (np.abs(actual - wanted) <= tolerance).all(), label


def agree(name: str, dtype: str, results: list[Any], call: Callable[[Any, list[Any], type], None], label: Any) -> None:
    """Assert that a primitive has the same results on a GPU as the reference primitive in float64."""
    actual = [x.copy() for x in results]
    wanted = [x.copy() if x.dtype.kind == "i" else x.astype(float) for x in results]
    call(getattr(SIM, name), actual, lambda x: x)  # type: ignore[arg-type]
    call(getattr(REAL, name), wanted, lambda x: x.astype(float))  # type: ignore[arg-type]
    for n, (a, b) in enumerate(zip(actual, wanted, strict=True)):
        if a.dtype.kind == "i":
            np.testing.assert_array_equal(a, b, err_msg=str((name, dtype, n, label)))
        else:
            near(a, b, (name, dtype, n, label))


def cases(draw: Callable[[], Iterator[Any]], count: int, start: int = 0) -> Iterator[tuple[int, str, Any]]:
    """Yield numbered shapes, each with a dtype; every other batch size suits kernels with vector loads."""
    for n, case in enumerate(itertools.islice(draw(), start, start + count)):
        dtype = DTYPES[n // 2 % 4]
        yield n, dtype, case._replace(N=16 // np.dtype(dtype).itemsize * case.N) if n % 2 else case


# --- pooling, and normalization over channels ------------------------------------------------------------------------


def check_pooling(n: int, dtype: str, case: Any) -> None:
    for op in ("max", "avg", "l2"):
        check_pool(n, dtype, case, op)


def check_pool(n: int, dtype: str, case: Any, op: str) -> None:
    layer, (alpha, beta) = image_cases.pool_layer(BE, dtype, op, case), image_cases.scaled(case)
    i, e = held(1, layer.dimI, dtype), held(2, layer.dimO, dtype)
    if op == "max":
        i.flat[::3], i.flat[::7] = -np.inf, np.nan
    o, d, indices = held(3, layer.dimO, dtype), held(4, layer.dimI, dtype), np.zeros(layer.dimO, "int16")

    def forward(pool: Any, out: Any, cast: Any) -> None:
        pool(layer, cast(i), *out[:2], beta) if len(out) > 1 else pool(layer, cast(i), *out, None, beta)

    agree("pool_fprop", dtype, [o, indices] if op == "max" and n % 3 else [o], forward, (case, op))
    REAL.pool_fprop(layer, i.astype(float), o.astype(float), indices, 0.0)
    argmax = indices if op == "max" and n % 3 else None

    def back(pool: Any, out: Any, cast: Any) -> None:
        pool(layer, cast(i), cast(e), *out, argmax, alpha, beta)

    agree("pool_bprop", dtype, [d], back, (case, op))


def check_lrn(n: int, dtype: str, case: Any) -> None:
    layer, (alpha, beta) = BE.lrn_layer(dtype, case.N, *case.CDHW, case.J), image_cases.scaled(case)
    i, e, o, d = (held(k, layer.dimI, dtype) for k in range(4))
    denom = 1 + np.abs(held(5, layer.dimI, dtype))
    agree("lrn_fprop", dtype, [o, denom], lambda f, out, c: f(layer, c(i), *out, alpha, beta, case.a, case.b), case)
    agree(
        "lrn_bprop", dtype, [d], lambda f, out, c: f(layer, c(i), c(e), *out, c(denom), alpha, beta, case.a, 0.75), case
    )


# --- scatter-add and ROI pooling ---


def check_scatter(n: int, dtype: str, case: Shape) -> None:
    axis, rng = n % 2, np.random.default_rng(n)
    x, indices = LIE[case.lie[0]](held(1, (case.m, case.k), dtype)), rng.integers(0, case.n, (case.m, case.k)[axis])
    y = held(2, (case.m, case.n) if axis else (case.n, case.k), dtype)
    SIM.scatter(x, indices, y, axis)
    near(y, run_scatter_add(np, x.astype(float), indices, axis=axis, size=case.n), case)


@pytest.mark.parametrize("n", [0, 1, 255, 256, 257, 1500])
@pytest.mark.parametrize("few", [kernels.MAX_RANK_SORT, 0])
def test_indices_are_sorted_and_the_sort_is_stable(monkeypatch: pytest.MonkeyPatch, n: int, few: int) -> None:
    monkeypatch.setattr(kernels, "MAX_RANK_SORT", few)
    indices = np.random.default_rng(n).integers(-3, 40, n).astype(np.int32)
    sorted_indices, order = SIM._sort_indices(indices)
    np.testing.assert_array_equal(order, np.argsort(indices, kind="stable"))
    np.testing.assert_array_equal(sorted_indices, np.sort(indices))


def check_regions(n: int, dtype: str, case: Shape) -> None:
    rng, (C, H, W, N), count = np.random.default_rng(n), (case.N, case.m, case.k, case.n), n % 5
    rois = np.column_stack([rng.integers(0, N, count), rng.integers(-3, 24, (count, 4)) / 2])
    i, bins = np.rint(held(1, (C, H, W, N), dtype)), (C, 1 + n % 3, 1 + n % 4, count)
    o, argmax, e = held(2, bins, dtype), np.zeros(bins, "int32"), held(3, bins, dtype)
    agree("roi_fprop", dtype, [o, argmax], lambda f, out, c: f(c(i), rois, *out, 0.75), case)
    REAL.roi_fprop(i.astype(float), rois, o.astype(float), argmax, 0.75)
    agree("roi_bprop", dtype, [held(4, i.shape, dtype)], lambda f, out, c: f(c(e), rois, argmax, *out), case)


# --- products and convolution ----------------------------------------------------------------------------------------


class Shape(NamedTuple):
    """A product of N matrices (m, k) and (k, n), and the layout of each of the three."""

    N: int
    m: int
    k: int
    n: int
    lie: tuple[str, ...]
    one: tuple[bool, ...]  # whether all products share the left, the right matrix


def product_cases() -> Iterator[Shape]:
    rng = np.random.default_rng(6)
    while True:
        sizes, lie = (int(n) for n in rng.integers(1, 9, 4)), (str(x) for x in rng.choice(list(LIE), 3))
        yield Shape(*sizes, tuple(lie), tuple(bool(x) for x in rng.random(2) < 0.3))


def within(x: Any, step: int) -> Any:
    """Return a copy inside a larger array, with a step between its elements."""
    memory = np.zeros((*x.shape[:-2], x.shape[-2] + 2, (x.shape[-1] + 3) * abs(step)), x.dtype)
    view = memory[..., 1:-1, :: abs(step)][..., 1:-2][..., :: 1 if step > 0 else -1]
    view[...] = x
    return view


LIE: dict[str, Callable[[Any], Any]] = {
    "whole": lambda x: x,
    "transposed": lambda x: np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2),
    "part": lambda x: within(x, 1),
    "part, transposed": lambda x: within(x.swapaxes(-1, -2), 1).swapaxes(-1, -2),
    "every other": lambda x: within(x, 2),
    "backwards": lambda x: within(x, -1),
    "upside down": lambda x: within(x, 1)[..., ::-1, :],
}


def check_product(n: int, dtype: str, case: Shape) -> None:
    (N, m, k, w), (alpha, beta) = case[:4], [(1.0, 0.0), (0.5, 1.0), (-2.0, -0.5)][n % 3]
    a, b, c = held(1, (N, m, k), dtype), held(2, (N, k, w), dtype), held(3, (N, m, w), dtype)
    a, b = (x[0] if one else x for x, one in zip((a, b), case.one, strict=True))
    a, b, c = (LIE[how](x) for how, x in zip(case.lie, (a, b, c[0] if all(case.one) else c), strict=True))
    wanted = alpha * (a.astype(float) @ b.astype(float)) + beta * c.astype(float)
    SIM.gemm(a, b, c, alpha, beta)
    near(c, wanted, case)
    if a.ndim == b.ndim == 3:
        total = LIE[case.lie[0]](held(4, (m, w), dtype))
        wanted = alpha * np.einsum("xij,xjk->ik", a.astype(float), b.astype(float)) + beta * total.astype(float)
        SIM.batch_reduce_gemm(a, b, total, alpha, beta)
        near(total, wanted, case)


def check_convolution(n: int, dtype: str, case: Any, limits: Sequence[int] = (1, 10_000, 1 << 28)) -> None:
    layer, (alpha, beta) = image_cases.conv_layer(BE, dtype, case), image_cases.scaled(case)
    i, f, e = held(1, layer.dimI, dtype), held(2, layer.dimF, dtype), held(3, layer.dimO, dtype)
    o, d, u = held(4, layer.dimO, dtype), held(5, layer.dimI, dtype), held(6, layer.dimF, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEONLITE_WORKSPACE", str(limits[n // 6 % len(limits)]))
        agree("conv_fprop", dtype, [o], lambda conv, out, c: conv(layer, c(i), c(f), *out, alpha, beta), case)
        agree("conv_bprop", dtype, [d], lambda conv, out, c: conv(layer, c(f), c(e), *out, alpha, beta), case)
        agree("conv_update", dtype, [u], lambda conv, out, c: conv(layer, c(i), c(e), *out, alpha, beta), case)


def test_the_workspace_of_a_convolution_has_a_limit(monkeypatch: Any) -> None:
    be = Backend(SimulatedGPU())
    layer = be.conv_layer("float32", 8, 4, 3, 1, 20, 20, 1, 3, 3)
    i, f, o = (be.ones(shape) for shape in (layer.dimI, layer.dimF, layer.dimO))
    monkeypatch.setenv("NEONLITE_WORKSPACE", "100000")
    be.fprop_conv(layer, i, f, o)
    assert (o.get() == 36).all()
    assert 50_000 < be.memory().workspaces <= 100_000


class ColumnMajor:
    """A stand-in for cuBLAS by its documentation: column-major products by NumPy, without code of the package."""

    DTYPES: ClassVar = {0: "float32", 1: "float64", 2: "float16", 14: "bfloat16"}

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*args: Any) -> int:
            self.calls.append((name, *(x.value for x in args if isinstance(x, ctypes._SimpleCData))))
            return 0

        return call

    def cublasGemmStridedBatchedEx_64(self, handle: Any, ta: int, tb: int, *given: Any) -> int:
        m, n, k, alpha, a, a_type, lda, a_apart, b, b_type, ldb, b_apart, beta, c, c_type, ldc, c_apart, count = (
            x.value if isinstance(x, ctypes._SimpleCData) else x for x in given[:18]
        )
        self.calls.append(("gemm", *given[18:]))

        def columns(address: int, kind: int, height: int, width: int, ld: int) -> Any:
            assert ld >= height
            memory = ctypes.c_char * (((width - 1) * ld + height) * np.dtype(self.DTYPES[kind]).itemsize)
            flat = np.frombuffer(memory.from_address(address), self.DTYPES[kind])
            return np.lib.stride_tricks.as_strided(flat, (height, width), (flat.itemsize, ld * flat.itemsize))

        for x in range(count):
            sizes = [np.dtype(self.DTYPES[kind]).itemsize for kind in (a_type, b_type, c_type)]
            left = columns(a + x * a_apart * sizes[0], a_type, *((k, m) if ta else (m, k)), lda)
            right = columns(b + x * b_apart * sizes[1], b_type, *((n, k) if tb else (k, n)), ldb)
            out = columns(c + x * c_apart * sizes[2], c_type, m, n, ldc)
            product = alpha._obj.value * ((left.T if ta else left).astype(float) @ (right.T if tb else right))
            out[...] = product + beta._obj.value * out if beta._obj.value else product
        return 0


class ByCublas(SimulatedDriver):
    """A driver that calls cuBLAS, or its stand-in, for matrix products."""

    def __init__(self) -> None:
        self.library, self.stream, self.tf32 = ColumnMajor(), 1, False
        self.cublas = Cublas(self.library, lambda n: (None, 4096 * self.stream), lambda: self.stream)

    def gemm(self, form: GemmDesc, alpha: float, beta: float) -> bool:
        return self.cublas.gemm(form, alpha, beta, self.tf32)


def test_cublas_gets_products_in_column_major_order(monkeypatch: Any) -> None:
    monkeypatch.setattr(SIM.runtime, "driver", ByCublas())
    for case in cases(product_cases, 60):
        check_product(*case)


def test_cublas_has_a_handle_per_thread_and_a_workspace_for_each_stream() -> None:
    driver = ByCublas()
    a, actual = np.ones((2, 2), "float32"), CudaPrimitives(SimulatedGPU())
    actual.runtime.driver = driver
    for driver.stream, driver.tf32, dtype in [(1, False, "float32"), (1, True, "float32"), (2, True, "float64")]:
        actual.gemm(a.astype(dtype), a.astype(dtype), a.astype(dtype))
    for dtype in HALF_DTYPES:
        actual.gemm(*(a.astype(dtype) for _ in range(3)))
    driver.stream = 1
    actual.gemm(a, a, a.copy())
    calls = [(call[0].removeprefix("cublas").removesuffix("_v2"), *call[1:]) for call in driver.library.calls]
    names, on_stream = [x[0] for x in calls], ["SetStream", "SetWorkspace", "gemm"]
    assert names[:2] == ["Create", "SetMathMode"]
    assert names[2:] == [*on_stream, "gemm", *on_stream, "gemm", "gemm", *on_stream]
    assert calls[1][-1] == 16  # CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION
    computes = [call[1] for call in calls if call[0] == "gemm"]
    assert computes == [68, 77, 70, 68, 68, 77]  # CUBLAS_COMPUTE_32F, 32F_FAST_TF32, 64F; 16-bit: 32F
    assert [x[2:] for x in calls if x[0] == "SetWorkspace"] == [(4096 * n, 32 << 20) for n in (1, 2, 1)]


def test_a_product_is_recorded_as_a_launch_that_repeats_it_on_the_stream_of_its_handle() -> None:
    driver, actual = ByCublas(), CudaPrimitives(SimulatedGPU())
    actual.runtime.driver = driver
    a, b, out = np.full((2, 3), 2.0, "float32"), np.full((3, 4), 5.0, "float32"), np.zeros((2, 4), "float32")
    with record_launches() as launches:
        actual.gemm(a, b, out, 0.5, 0.0)
    (launch,) = launches
    a[:], out[:] = 1, -1
    assert launch is not None
    driver.cublas.handles.get().stream = None  # as after work on another stream
    launch()
    assert (out == 7.5).all()
    assert [call[0] for call in driver.library.calls][-3:] == ["cublasSetStream_v2", "cublasSetWorkspace_v2", "gemm"]


def test_a_product_that_needs_a_copy_or_another_library_is_recorded_as_one_that_nothing_repeats() -> None:
    driver, actual = ByCublas(), CudaPrimitives(SimulatedGPU())
    actual.runtime.driver = driver
    a, out = np.ones((6, 6), "float32"), np.zeros((3, 3), "float32")
    with record_launches() as launches:
        actual.gemm(a[::2, ::2], a[::2, ::2], out)
    assert None in launches
    driver.library.cublasGemmStridedBatchedEx_64 = lambda *_: 15
    with record_launches() as launches:
        actual.gemm(out, out, a[:3, :3])
    assert None in launches


def test_a_product_that_the_gpu_does_not_support_is_computed_otherwise() -> None:
    driver = ByCublas()
    driver.library.cublasGemmStridedBatchedEx_64 = lambda *_: 15  # CUBLAS_STATUS_NOT_SUPPORTED, as of bfloat16 on sm_75
    actual = CudaPrimitives(SimulatedGPU())
    actual.runtime.driver = driver
    a, out = np.full((2, 3), 2, "bfloat16"), np.zeros((2, 2), "bfloat16")
    actual.gemm(a, a.T, out)
    assert out.astype("f").tolist() == [[12, 12], [12, 12]]


def test_an_error_of_cublas_contains_its_status() -> None:
    failing = SimpleNamespace(cublasCreate_v2=lambda handle: 1)
    with pytest.raises(RuntimeError, match="cublasCreate: expected cublasStatus_t 0, got 1"):
        Cublas(failing, lambda n: (None, 0), lambda: 0).handle()


STACKS: dict[str, tuple[tuple[int, ...], tuple[int, ...], bool]] = {
    # the shape and the order of the axes in memory of an operand (2, 3, 4, 5); whether it is copied
    "whole": ((2, 3, 4, 5), (0, 1, 2, 3), False),
    "matrices transposed": ((2, 3, 4, 5), (0, 1, 3, 2), False),
    "batch axes exchanged": ((2, 3, 4, 5), (1, 0, 2, 3), True),
    "heads of a matrix": ((2, 3, 4, 5), (0, 2, 1, 3), True),
    "one matrix": ((4, 5), (0, 1), False),
    "one matrix of a stack": ((1, 1, 4, 5), (0, 1, 2, 3), False),
    "a stack for each": ((3, 4, 5), (0, 1, 2), True),
    "a matrix for each": ((2, 1, 4, 5), (0, 1, 2, 3), True),
}


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_stack_of_products_with_several_axes_is_one_call_of_cublas(name: str, side: int, dtype: str) -> None:
    shape, order, is_copied = STACKS[name]
    x = held(1, tuple(shape[n] for n in order), dtype).transpose(np.argsort(order))
    y = held(2, (2, 3, 5, 6), dtype) if side == 0 else held(2, (2, 3, 6, 4), dtype)
    a, b = (x, y) if side == 0 else (y, x)
    out = np.full((2, 3, a.shape[-2], b.shape[-1]), np.nan, dtype)
    driver, actual = ByCublas(), CudaPrimitives(SimulatedGPU())
    actual.runtime.driver = driver
    with record_launches() as launches:
        assert actual.gemm_accumulate([(a, b, 1.0)], out)
    wanted = (a.astype(float) @ b.astype(float)).astype(dtype)
    np.testing.assert_allclose(out.astype(float), wanted.astype(float), 2e-2 if dtype == "bfloat16" else 1e-5, 1e-5)
    assert [call[0] for call in driver.library.calls].count("gemm") == 1
    assert (None in launches) == is_copied
    assert not is_copied or not actual.gemm_accumulate([(a, b, 1.0)] * 2, out)  # both copies would use one workspace


def test_results_in_no_single_stack_are_not_computed_by_cublas() -> None:
    actual, a = CudaPrimitives(SimulatedGPU()), np.ones((2, 3, 4, 4), "float32")
    actual.runtime.driver = ByCublas()
    assert not actual.gemm_accumulate([(a, a, 1.0)], np.ones((3, 2, 4, 4), "float32").transpose(1, 0, 2, 3))


def test_matmul_and_scatter_add_in_op_trees_use_the_gpus_primitives(monkeypatch: Any) -> None:
    be, plain, seen = Backend(SimulatedGPU()), Backend("cpu"), []
    monkeypatch.setattr(SimulatedDriver, "gemm", lambda *args, f=SimulatedDriver.gemm: seen.append(1) or f(*args))
    x, w, words = held(1, (6, 5), "float32"), held(2, (7, 5), "float32"), np.array([[3, 0, 3, 6, -1]])
    actual: list[list[Any]] = []
    for b in (be, plain):
        t, table, index = b.array(x), b.array(w), b.array(words, dtype="int32")
        nl.Autodiff(b.sum(b.square(b.take(table, index, axis=0) * t[1:])), b).back_prop_grad(
            [table], [out := b.zeros((7, 5))]
        )
        actual.append([b.dot(t, table.T).asnumpyarray(), b.dot(t.T, t * 2).asnumpyarray(), out.get()])
        t[:] = b.dot(t, b.dot(t.T, t)) + 1
        actual[-1].append(t.get())
    for a, b in zip(*actual, strict=True):
        np.testing.assert_allclose(a, b, 1e-5, 1e-5)
    assert len(seen) == 4
    assert kernels.SCATTER_KERNEL in {key[0] for key in be.primitives.compiled}


def test_a_scatter_add_index_out_of_range_raises_at_the_next_synchronization(monkeypatch: Any) -> None:
    be = Backend(SimulatedGPU())
    for bad, wait in itertools.product((3, -4), (False, True)):
        monkeypatch.setenv("NEONLITE_WAIT", str(int(wait)))
        tree = be.build("scatter_add", be.ones((4, 2)), be.array([[0, bad, 1, -1]], dtype="int32"), axis=0, size=3)
        with pytest.raises(IndexError, match=f"index {bad} is out of range for size 3: expected -3 to 2"):
            tree.asnumpyarray()


RUNS = {  # how often each index occurs
    "one place": [640],
    "whole segments": [64, 128, 192],
    "segments that begin and end within": [3, 300, 1, 0, 130, 63],
    "few of each": [2] * 150,
    "fewer than pay": [100, 155],
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize(("dtype", "axis"), [("float32", 0), ("float32", 1), ("float16", 0), ("float64", 1)])
def test_a_frequent_index_is_summed_by_segments(name: str, dtype: str, axis: int) -> None:
    primitives, counts = CudaPrimitives(SIM.runtime), RUNS[name]
    draw = np.random.default_rng(0)
    indices = draw.permutation(np.repeat(np.arange(len(counts)), counts))
    x = draw.integers(-4, 5, (len(indices), 3)).astype(dtype)  # integers: any order gives the same sums
    wanted = np.zeros((len(counts), 3))
    np.add.at(wanted, indices, x.astype(float))
    y = np.full(wanted.T.shape if axis else wanted.shape, np.nan, dtype)
    for _ in range(2):  # the second call overwrites the results of the first
        primitives.scatter(x.T.copy() if axis else x, indices, y, axis)
        np.testing.assert_array_equal(y.T if axis else y, wanted)
    assert (kernels.SEGMENT_SUM_KERNEL in {key[0] for key in primitives.compiled}) == (len(indices) >= 256)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("form", "at_once"), [((16, 5, 72), 8), ((3, 8, 100), 4), ((1, 130, 66), 2), ((5, 7, 33), 1)])
def test_images_are_reordered_by_as_many_elements_at_once_as_rows_allow(
    form: tuple[int, int, int], at_once: int, dtype: str
) -> None:
    primitives = CudaPrimitives(SIM.runtime)
    maps, pixels, images = form
    x = np.arange(math.prod(form)).astype(dtype).reshape(form) % 1000
    memory = primitives.runtime.driver.allocate(2 * x.nbytes + 128).view(dtype)
    array, nhwc = memory[: x.size], memory[(start := -(-x.nbytes // 64) * 64 // x.itemsize) : start + x.size]
    array[:] = x.ravel()
    primitives.reorder(ImageShape(*form), array, nhwc, False)
    np.testing.assert_array_equal(nhwc.reshape(images, pixels, maps), x.transpose(2, 1, 0))
    back = np.full_like(array, -1)
    primitives.reorder(ImageShape(*form), back, nhwc, True)
    np.testing.assert_array_equal(back, x.ravel())
    widths = {int(W) for key in primitives.compiled for W in re.findall(r" reorder<(\d)>\(", key[0])}
    assert max(widths) == min(at_once, 16 // x.itemsize)
    primitives.reorder(ImageShape(*form), memory[1 : x.size + 1], nhwc, True)  # which is not aligned
    np.testing.assert_array_equal(memory[1 : x.size + 1], x.ravel())


# --- cuDNN, with a stand-in for its frontend ---


def test_cudnn_gets_the_dims_and_strides_of_images_and_filters(monkeypatch: Any) -> None:
    monkeypatch.setattr(SIM.runtime, "driver", driver := ByCudnn())
    for dtype in HALF_DTYPES:  # with alpha or beta, results are rounded twice
        monkeypatch.setitem(CLOSE, dtype, 16 * CLOSE[dtype])
    monkeypatch.setitem(globals(), "CANCELLATION_ERROR", 2**-9)
    for case in cases(image_cases.conv_cases, 32):
        check_convolution(*case, limits=[4000])
    graphs = driver.cudnn.frontend.graphs
    assert {(graph.operation, len(graph.result.dim)) for graph in graphs} >= {
        (w, n) for w in OPERAND_NAMES for n in (4, 5)
    }
    for graph in graphs:
        kind, wide, compute = (x.name for x in graph.kinds)
        assert wide == compute == ("DOUBLE" if kind == "DOUBLE" else "FLOAT")
        assert {x.name for x in graph.excluded_notes} >= {"NONDETERMINISTIC", "REDUCED_PRECISION_REDUCTION"}
        assert ("TENSOR_CORE" in {x.name for x in graph.excluded_notes}) == (kind == "FLOAT")
        innermost = {x.stride[-1 if kind == "FLOAT" else 1] for x in (*graph.operands, graph.result)}
        assert innermost == {1}  # W of float32 without TF32, else the channels, also of filters


@pytest.mark.parametrize("relu", [False, True])
def test_cudnn_adds_the_bias_and_rectifies_in_the_same_graph(relu: bool) -> None:
    be, frontend = by_cudnn()
    layer = be.conv_layer("float32", 2, 3, 4, 1, 5, 6, 1, 3, 2, 0, 1, 0)
    i, f, b = (held(n, shape, "float32") for n, shape in enumerate([layer.dimI, layer.dimF, (4, 1)]))
    o = be.fprop_conv(layer, be.array(i), be.array(f), be.zeros(layer.dimO), bias=be.array(b), relu=relu).get()
    wanted = textbook.conv(i, f, layer.padding, layer.strides, layer.dilation) + b[:, :, None, None, None]
    near(o, np.maximum(wanted, 0) if relu else wanted, relu)
    (graph,) = frontend.graphs
    assert (graph.bias_of is not None, bool(graph.rectified)) == (True, relu)


def test_a_plan_of_cudnn_is_built_once_for_each_geometry_and_precision() -> None:
    be, frontend = by_cudnn()
    for tf32, side in [(False, 5), (False, 5), (False, 6), (True, 5), (True, 5)]:
        be.runtime.driver.tf32 = tf32
        layer = be.conv_layer("float32", 2, 3, 4, 1, side, side, 1, 3, 3)
        be.fprop_conv(layer, be.ones(layer.dimI), be.ones(layer.dimF), be.zeros(layer.dimO))
    assert [len(graph.ran) for graph in frontend.graphs] == [2, 1, 2]
    assert [len(graph.excluded_notes) for graph in frontend.graphs] == [4, 4, 2]
    be.runtime.driver.stream = 2
    be.fprop_conv(layer, be.ones(layer.dimI), be.ones(layer.dimF), be.zeros(layer.dimO))
    assert frontend.streams == [1, 2]


def test_the_fastest_plan_of_cudnn_is_kept_when_autotuning(monkeypatch: Any) -> None:
    monkeypatch.setenv("NEONLITE_AUTOTUNE", "1")
    # 9 plans use tensor cores and are deselected; the next one needs 3000 bytes
    for cap, tried in [("5000", [9, 10, 11, 10, 10]), ("2500", [10, 11, 11, 11])]:
        monkeypatch.setenv("NEONLITE_WORKSPACE", cap)
        be, frontend = by_cudnn()
        be.runtime.driver.times = iter([3.0, 1.0, 2.0])
        layer = be.conv_layer("float32", 2, 3, 4, 1, 5, 5, 1, 3, 3)
        for _ in range(2):
            be.fprop_conv(layer, be.ones(layer.dimI), be.ones(layer.dimF), be.zeros(layer.dimO))
        assert [graph.ran for graph in frontend.graphs] == [tried]
        copies = 4 * (layer.sizeI + layer.sizeF + layer.sizeO)  # in NHWC
        assert be.memory().workspaces <= int(cap) + copies


def test_what_cudnn_cannot_compute_warns_once_and_uses_im2col(monkeypatch: Any) -> None:
    monkeypatch.setenv("NEONLITE_WORKSPACE", "50")
    be, frontend = by_cudnn()
    layer = be.conv_layer("float32", 2, 3, 4, 1, 5, 5, 1, 3, 3)
    i, f, o = (be.ones(shape) for shape in (layer.dimI, layer.dimF, layer.dimO))
    with pytest.warns(
        RuntimeWarning, match="cuDNN cannot compute fprop of ConvLayer.*no plan has a workspace within the limit"
    ):
        be.fprop_conv(layer, i, f, o)
    be.fprop_conv(layer, i, f, o)  # without a warning, which would be an error
    assert (o.get() == 27).all()
    assert len(frontend.graphs) == 1


def test_cupys_driver_uses_cudnn_if_it_is_installed_and_warns_when_it_fails(monkeypatch: Any) -> None:
    cuda = {"get_current_stream": lambda: SimpleNamespace(ptr=5), "runtime": SimpleNamespace(getDevice=lambda: 0)}
    cupy = ModuleType("cupy")
    vars(cupy)["cuda"] = SimpleNamespace(**cuda)
    monkeypatch.setitem(sys.modules, "cupyx", SimpleNamespace(errstate=nullcontext))
    driver = CuPyDriver(cupy, 0)
    monkeypatch.setitem(sys.modules, "cudnn", None)
    assert driver.cudnn is None
    monkeypatch.setitem(sys.modules, "cudnn", frontend := Frontend())
    del driver.cudnn
    assert driver.cudnn.frontend is frontend
    assert frontend.streams == [5]
    assert CuPyDriver(cupy, 0).cudnn is driver.cudnn
    del driver.cudnn
    monkeypatch.setitem(sys.modules, "cudnn", Frontend())
    monkeypatch.delattr(Frontend, "create_handle")
    with pytest.warns(RuntimeWarning, match="cuDNN is not available: .*create_handle"):
        assert driver.cudnn is None


CHECKS: dict[str, tuple[Callable[[], Iterator[Any]], Callable[[int, str, Any], None]]] = {
    "pooling": (image_cases.pool_cases, check_pooling),
    "local response": (image_cases.lrn_cases, check_lrn),
    "sums by place": (product_cases, check_scatter),
    "regions": (product_cases, check_regions),
    "products": (product_cases, check_product),
    "convolution": (image_cases.conv_cases, check_convolution),
}


@pytest.mark.parametrize("primitive", CHECKS)
def test_a_primitive_agrees_with_the_reference(primitive: str) -> None:
    draw, check = CHECKS[primitive]
    for case in cases(draw, FEW):
        check(*case)


@pytest.mark.slow
@pytest.mark.parametrize("primitive", CHECKS)
def test_a_primitive_agrees_with_the_reference_for_many_shapes(primitive: str) -> None:
    draw, check = CHECKS[primitive]
    for case in cases(draw, MANY, FEW):
        check(*case)


@pytest.mark.parametrize("primitive", PRIMITIVES)
def test_primitives_on_cupy_arrays_agree_with_the_cpu(primitive: str) -> None:
    with installed():
        actual, wanted = (PRIMITIVES[primitive](Backend(name)) for name in ("gpu", "cpu"))
        for a, b in zip(actual, wanted, strict=True):
            np.testing.assert_allclose(a.get(), b.get(), rtol=1e-5, atol=1e-5)


def test_without_kernels_the_reference_primitives_are_used(monkeypatch: Any) -> None:
    monkeypatch.setenv("NEONLITE_KERNELS", "0")
    be = Backend(SimulatedGPU())
    assert isinstance(be.primitives, ReferencePrimitives)
    assert not isinstance(be.primitives, CudaPrimitives)
    assert not be.runtime.supports_half
    layer = be.pool_layer("float16", "avg", 2, 1, 1, 4, 4, 1, 1, 2, 2)
    assert (be.fprop_pool(layer, be.ones(layer.dimI, "float16"), be.zeros(layer.dimO, "float16")).get() == 1).all()


# --- compilation by NVRTC ---


def check_compiled(architecture: str, *forms: tuple[str, int, bool]) -> None:
    """Assert that NVRTC compiles every kernel for a dtype, V elements per thread, and 32- or 64-bit indices."""
    if nvrtc.library() is None:
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc-cu12")
    for (name, (text, types)), (dtype, V, large) in itertools.product(texts().items(), forms):
        filled = {key: kind.replace("{dtype}", dtype) for key, kind in types.items()}
        kernel = nvrtc.compiled(kernel_source(text, dtype, V, large, **filled), architecture, OPTIONS)
        assert kernel.spilled == kernel.stack == 0, (name, dtype, kernel[:3])
        assert kernel.registers <= 128, (name, dtype, kernel[:3])


@pytest.mark.long
@pytest.mark.parametrize(
    ("architecture", "dtype"),
    [
        ("sm_90", "bfloat16"),
        *(pytest.param(*x, marks=pytest.mark.slow) for x in [("sm_80", "float16"), ("sm_100", "float32")]),
    ],
)
def test_nvidias_compiler_compiles_every_kernel_without_spills(architecture: str, dtype: str) -> None:
    check_compiled(architecture, (dtype, 128 // dtype_bits(dtype), False))


@pytest.mark.long
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nvidias_compiler_compiles_random_kernels_without_spills(architecture: str) -> None:
    if nvrtc.library() is None:
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc-cu12")
    kinds = [(kernels.FILLED_MASK, dtype, {"limit": 1}) for dtype in (*FLOAT_DTYPES, "int8", "int64")]
    kinds += [(kernels.SCALED_NORMAL, dtype, {"mean": 0.0, "stdv": 1.0}) for dtype in FLOAT_DTYPES]
    for values, dtype, more in kinds:
        kernel = nvrtc.compiled(PREAMBLE + kernels.fill_source(values, dtype, more), architecture, OPTIONS)
        assert kernel.spilled == 0, (dtype, kernel[:3])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "more"),
    [("sm_80", ("float32", 4, False)), ("sm_90", ("float64", 2, False)), ("sm_100", ("float64", 1, True))],
)
def test_nvidias_compiler_compiles_every_kernel_for_every_dtype(architecture: str, more: tuple[str, int, bool]) -> None:
    check_compiled(architecture, *((dtype, 8, False) for dtype in HALF_DTYPES), more)
