"""Do the kernels of primitives compute what ``Generic`` does?  There is no card here: a C++ compiler runs them.

The oracle is ``Generic`` on NumPy's arrays in float64, which shares no code with kernels. Shapes come from the seeded
generators of test_primitives.py, which runs on the kernels too, with NEONLITE_TEST_SIMULATED=1.
"""

from __future__ import annotations

import ctypes
import itertools
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import nvrtc
import pytest
import test_gpu
import test_primitives as shapes
import textbook
from standin_cudnn import Frontend
from standin_cupy import installed

import neonlite as nl
from neonlite import Backend
from neonlite.backend.cuda import draws
from neonlite.backend.cuda import primitives_images as images
from neonlite.backend.cuda import primitives_scatter as scatter
from neonlite.backend.cuda.blas import Cublas, Product
from neonlite.backend.cuda.cudnn import WAYS, Cudnn
from neonlite.backend.cuda.driver import OPTIONS, CuPyDriver
from neonlite.backend.cuda.kernels import PREAMBLE
from neonlite.backend.cuda.launching import source
from neonlite.backend.cuda.primitives import Primitives
from neonlite.backend.cuda.primitives_convolution import COLUMNS
from neonlite.backend.cuda.rooms import TURN
from neonlite.backend.cuda.simulated import Simulated, SimulatedDriver
from neonlite.backend.primitives.generic import Generic
from neonlite.backend.runtimes.numpy_ import NumPy
from neonlite.ops import FLOATS, HALVES, bits, run_scatter

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are simulated with g++, which is not here")

CLOSE = {"bfloat16": 2**-8, "float32": 2e-6, "float16": 2**-11, "float64": 1e-13}
DTYPES = list(CLOSE)
LEFT = 2e-6  # of the largest: the error where large numbers cancel each other
FEW, MANY = 4, 200  # shapes that are tried of each primitive in `make test`, and in `make test-slow`

SIM, REAL, BE = Primitives(Simulated()), Generic(NumPy()), Backend(Simulated())


def held(seed: int, shape: Any, dtype: str) -> Any:
    """Return normal numbers that a dtype holds."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def near(made: Any, wanted: Any, what: Any) -> None:
    """Assert that an array holds what is wanted, rounded a time or two."""
    close, made, told = CLOSE[str(made.dtype)], made.astype(float), np.isfinite(wanted)
    np.testing.assert_array_equal(np.where(told, 0, made), np.where(told, 0, wanted), err_msg=str(what))
    made, wanted = (np.where(told, x, 0).astype(float) for x in (made, wanted))
    room = close * np.abs(wanted) + 4 * min(close, LEFT) * max(1.0, np.abs(wanted).max(initial=0))
    assert (np.abs(made - wanted) <= room).all(), what


def agree(name: str, dtype: str, results: list[Any], call: Callable[[Any, list[Any], type], None], what: Any) -> None:
    """Assert that a primitive leaves the same in its results on a card as ``Generic`` does in float64."""
    made = [x.copy() for x in results]
    wanted = [x.copy() if x.dtype.kind == "i" else x.astype(float) for x in results]
    call(getattr(SIM, name), made, lambda x: x)  # type: ignore[arg-type]
    call(getattr(REAL, name), wanted, lambda x: x.astype(float))  # type: ignore[arg-type]
    for n, (a, b) in enumerate(zip(made, wanted, strict=True)):
        if a.dtype.kind == "i":
            np.testing.assert_array_equal(a, b, err_msg=str((name, dtype, n, what)))
        else:
            near(a, b, (name, dtype, n, what))


def cases(draw: Callable[[], Iterator[Any]], count: int, start: int = 0) -> Iterator[tuple[int, str, Any]]:
    """Yield numbered shapes, each with a dtype; every other one has images for kernels that take several at once."""
    for n, case in enumerate(itertools.islice(draw(), start, start + count)):
        dtype = DTYPES[n // 2 % 4]
        yield n, dtype, case._replace(N=16 // np.dtype(dtype).itemsize * case.N) if n % 2 else case


# --- pooling, and normalization over channels ------------------------------------------------------------------------


def check_pooling(n: int, dtype: str, case: Any) -> None:
    for op in ("max", "avg", "l2"):
        check_pool(n, dtype, case, op)


def check_pool(n: int, dtype: str, case: Any, op: str) -> None:
    layer, (alpha, beta) = shapes.pool_layer(BE, dtype, op, case), shapes.scaled(case)
    i, e = held(1, layer.dimI, dtype), held(2, layer.dimO, dtype)
    if op == "max":
        i.flat[::3], i.flat[::7] = -np.inf, np.nan
    o, d, places = held(3, layer.dimO, dtype), held(4, layer.dimI, dtype), np.zeros(layer.dimO, "int16")

    def forward(pool: Any, out: Any, cast: Any) -> None:
        pool(layer, cast(i), *out[:2], beta) if len(out) > 1 else pool(layer, cast(i), *out, None, beta)

    agree("pool_fprop", dtype, [o, places] if op == "max" and n % 3 else [o], forward, (case, op))
    REAL.pool_fprop(layer, i.astype(float), o.astype(float), places, 0.0)
    argmax = places if op == "max" and n % 3 else None

    def back(pool: Any, out: Any, cast: Any) -> None:
        pool(layer, cast(i), cast(e), *out, argmax, alpha, beta)

    agree("pool_bprop", dtype, [d], back, (case, op))


def check_lrn(n: int, dtype: str, case: Any) -> None:
    layer, (alpha, beta) = BE.lrn_layer(dtype, case.N, *case.CDHW, case.J), shapes.scaled(case)
    i, e, o, d = (held(k, layer.dimI, dtype) for k in range(4))
    denom = 1 + np.abs(held(5, layer.dimI, dtype))
    agree("lrn_fprop", dtype, [o, denom], lambda f, out, c: f(layer, c(i), *out, alpha, beta, case.a, case.b), case)
    agree(
        "lrn_bprop", dtype, [d], lambda f, out, c: f(layer, c(i), c(e), *out, c(denom), alpha, beta, case.a, 0.75), case
    )


# --- sums by place, and regions ----------------------------------------------------------------------------


def check_scatter(n: int, dtype: str, case: Shape) -> None:
    axis, rng = n % 2, np.random.default_rng(n)
    x, places = LIE[case.lie[0]](held(1, (case.m, case.k), dtype)), rng.integers(0, case.n, (case.m, case.k)[axis])
    y = held(2, (case.m, case.n) if axis else (case.n, case.k), dtype)
    SIM.scatter(x, places, y, axis)
    near(y, run_scatter(np, x.astype(float), places, axis=axis, size=case.n), case)


@pytest.mark.parametrize("n", [0, 1, 255, 256, 257, 1500])
@pytest.mark.parametrize("few", [scatter.FEW, 0])
def test_places_are_sorted_and_equal_ones_stay_in_order(monkeypatch: pytest.MonkeyPatch, n: int, few: int) -> None:
    monkeypatch.setattr(scatter, "FEW", few)
    places = np.random.default_rng(n).integers(-3, 40, n).astype(np.int32)
    found, order = SIM._sorted(places)
    np.testing.assert_array_equal(order, np.argsort(places, kind="stable"))
    np.testing.assert_array_equal(found, np.sort(places))


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
    """A product of N matrices (m, k) and (k, n), and how each of the three lies."""

    N: int
    m: int
    k: int
    n: int
    lie: tuple[str, ...]
    one: tuple[bool, ...]  # whether one matrix, of the left, of the right, serves all


def product_cases() -> Iterator[Shape]:
    rng = np.random.default_rng(6)
    while True:
        sizes, lie = (int(n) for n in rng.integers(1, 9, 4)), (str(x) for x in rng.choice(list(LIE), 3))
        yield Shape(*sizes, tuple(lie), tuple(bool(x) for x in rng.random(2) < 0.3))


def within(x: Any, step: int) -> Any:
    """Return a copy in a larger array, whose elements are so many places apart."""
    room = np.zeros((*x.shape[:-2], x.shape[-2] + 2, (x.shape[-1] + 3) * abs(step)), x.dtype)
    view = room[..., 1:-1, :: abs(step)][..., 1:-2][..., :: 1 if step > 0 else -1]
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
        SIM.summed(a, b, total, alpha, beta)
        near(total, wanted, case)


def check_convolution(n: int, dtype: str, case: Any, rooms: Sequence[int] = (1, 10_000, 1 << 28)) -> None:
    layer, (alpha, beta) = shapes.conv_layer(BE, dtype, case), shapes.scaled(case)
    i, f, e = held(1, layer.dimI, dtype), held(2, layer.dimF, dtype), held(3, layer.dimO, dtype)
    o, d, u = held(4, layer.dimO, dtype), held(5, layer.dimI, dtype), held(6, layer.dimF, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEONLITE_WORKSPACE", str(rooms[n // 6 % len(rooms)]))
        agree("conv_fprop", dtype, [o], lambda conv, out, c: conv(layer, c(i), c(f), *out, alpha, beta), case)
        agree("conv_bprop", dtype, [d], lambda conv, out, c: conv(layer, c(f), c(e), *out, alpha, beta), case)
        agree("conv_update", dtype, [u], lambda conv, out, c: conv(layer, c(i), c(e), *out, alpha, beta), case)


def test_what_a_convolution_works_in_has_a_limit(monkeypatch: Any) -> None:
    be = Backend(Simulated())
    layer = be.conv_layer("float32", 8, 4, 3, 1, 20, 20, 1, 3, 3)
    i, f, o = (be.ones(shape) for shape in (layer.dimI, layer.dimF, layer.dimO))
    monkeypatch.setenv("NEONLITE_WORKSPACE", "100000")
    be.fprop_conv(layer, i, f, o)
    assert (o.get() == 36).all()
    assert 50_000 < be.memory().workspaces <= 100_000


class ColumnMajor:
    """cuBLAS as its manual has it, for matrices of NumPy that lie column by column: it shares no code with ours."""

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
        self.calls.append(("multiply", *given[18:]))

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
    """A driver whose products go to cuBLAS, or what stands in for it."""

    def __init__(self) -> None:
        self.library, self.stream, self.tf32 = ColumnMajor(), 1, False
        self.cublas = Cublas(self.library, lambda n: (None, 4096), lambda: self.stream)

    def multiply(self, form: Product, alpha: float, beta: float) -> bool:
        self.cublas.multiply(form, alpha, beta, self.tf32)
        return True


def test_cublas_is_told_of_products_in_its_own_order(monkeypatch: Any) -> None:
    monkeypatch.setattr(SIM.runtime, "driver", ByCublas())
    for case in cases(product_cases, 60):
        check_product(*case)


def test_cublas_has_a_handle_a_thread_and_its_memory_anew_for_each_stream() -> None:
    driver = ByCublas()
    a, made = np.ones((2, 2), "float32"), Primitives(Simulated())
    made.runtime.driver = driver
    for driver.stream, driver.tf32, dtype in [(1, False, "float32"), (1, True, "float32"), (2, True, "float64")]:
        made.gemm(a.astype(dtype), a.astype(dtype), a.astype(dtype))
    for dtype in HALVES:
        made.gemm(*(a.astype(dtype) for _ in range(3)))
    names = [call[0].removeprefix("cublas").removesuffix("_v2") for call in driver.library.calls]
    assert names == [
        "Create",
        *["SetStream", "SetWorkspace", "multiply", "multiply"],
        *names[1:4],
        "multiply",
        "multiply",
    ]
    computes = [call[1] for call in driver.library.calls if call[0] == "multiply"]
    assert computes == [68, 77, 70, 68, 68]  # CUBLAS_COMPUTE_32F, 32F_FAST_TF32, 64F: halves are added up as float32
    assert driver.library.calls[2][2:] == (4096, 32 << 20)


def test_an_error_of_cublas_tells_its_status() -> None:
    failing = SimpleNamespace(cublasCreate_v2=lambda handle: 1)
    with pytest.raises(RuntimeError, match="cublasCreate failed with the status 1"):
        Cublas(failing, lambda n: (None, 0), lambda: 0).handle()


def test_products_and_sums_by_place_in_op_trees_are_those_of_the_card(monkeypatch: Any) -> None:
    be, plain, seen = Backend(Simulated()), Backend("cpu"), []
    monkeypatch.setattr(
        SimulatedDriver, "multiply", lambda *args, f=SimulatedDriver.multiply: seen.append(1) or f(*args)
    )
    x, w, words = held(1, (6, 5), "float32"), held(2, (7, 5), "float32"), np.array([[3, 0, 3, 6, -1]])
    made: list[list[Any]] = []
    for b in (be, plain):
        t, table, index = b.array(x), b.array(w), b.array(words, dtype="int32")
        nl.Autodiff(b.sum(b.square(b.take(table, index, axis=0) * t[1:])), b).back_prop_grad(
            [table], [out := b.zeros((7, 5))]
        )
        made.append([b.dot(t, table.T).asnumpyarray(), b.dot(t.T, t * 2).asnumpyarray(), out.get()])
        t[:] = b.dot(t, b.dot(t.T, t)) + 1
        made[-1].append(t.get())
    for a, b in zip(*made, strict=True):
        np.testing.assert_allclose(a, b, 1e-5, 1e-5)
    assert len(seen) == 4
    assert scatter.SCATTER in {key[0] for key in be.primitives.compiled}


def test_a_sum_at_a_place_that_is_none_is_told_of_when_the_host_waits(monkeypatch: Any) -> None:
    be = Backend(Simulated())
    for bad, wait in itertools.product((3, -4), (False, True)):
        monkeypatch.setenv("NEONLITE_WAIT", str(int(wait)))
        tree = be.build("scatter", be.ones((4, 2)), be.array([[0, bad, 1, -1]], dtype="int32"), axis=0, size=3)
        with pytest.raises(IndexError, match=f"index {bad} is out of range: there are 3, from -3 to 2"):
            tree.asnumpyarray()


# --- cuDNN: graphs for a stand-in, as there is no card ---------------------------------------------------------------


class ByCudnn(SimulatedDriver):
    """A driver that has what stands in for cuDNN; ``times`` are those of its plans."""

    def __init__(self) -> None:
        self.tf32, self.stream, self.times = False, 1, iter([3.0, 1.0, 2.0])
        self.cudnn = Cudnn(Frontend(), lambda: self.stream, lambda f: (f(), next(self.times))[1])


def by_cudnn(dtype: str = "float32") -> tuple[Backend, Frontend]:
    be = Backend(Simulated(), default_dtype=dtype)
    be.runtime.driver = driver = ByCudnn()
    return be, driver.cudnn.frontend


def test_cudnn_is_told_where_images_and_filters_lie(monkeypatch: Any) -> None:
    monkeypatch.setattr(SIM.runtime, "driver", driver := ByCudnn())
    for dtype in HALVES:  # what is scaled or added to is rounded in between
        monkeypatch.setitem(CLOSE, dtype, 16 * CLOSE[dtype])
    monkeypatch.setitem(globals(), "LEFT", 2**-9)
    for case in cases(shapes.conv_cases, 32):
        check_convolution(*case, rooms=[4000])
    graphs = driver.cudnn.frontend.graphs
    assert {(graph.way, len(graph.result.dim)) for graph in graphs} >= {(w, n) for w in WAYS for n in (4, 5)}
    for graph in graphs:
        kind, wide, compute = (x.name for x in graph.kinds)
        assert wide == compute == ("DOUBLE" if kind == "DOUBLE" else "FLOAT")
        assert {x.name for x in graph.avoided} >= {"NONDETERMINISTIC", "REDUCED_PRECISION_REDUCTION"}
        assert ("TENSOR_CORE" in {x.name for x in graph.avoided}) == (kind == "FLOAT")
        assert {x.stride[1] for x in (*graph.operands, graph.result)} == {1}  # maps lie side by side, also of filters


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


def test_a_plan_of_cudnn_is_made_once_for_each_geometry_and_way_to_compute() -> None:
    be, frontend = by_cudnn()
    for tf32, side in [(False, 5), (False, 5), (False, 6), (True, 5), (True, 5)]:
        be.runtime.driver.tf32 = tf32
        layer = be.conv_layer("float32", 2, 3, 4, 1, side, side, 1, 3, 3)
        be.fprop_conv(layer, be.ones(layer.dimI), be.ones(layer.dimF), be.zeros(layer.dimO))
    assert [len(graph.ran) for graph in frontend.graphs] == [2, 1, 2]
    assert [len(graph.avoided) for graph in frontend.graphs] == [4, 4, 2]
    be.runtime.driver.stream = 2
    be.fprop_conv(layer, be.ones(layer.dimI), be.ones(layer.dimF), be.zeros(layer.dimO))
    assert frontend.streams == [1, 2]


def test_the_fastest_plan_of_cudnn_is_kept_when_it_may_try(monkeypatch: Any) -> None:
    monkeypatch.setenv("NEONLITE_AUTOTUNE", "1")
    for cap, tried in [("5000", [0, 1, 2, 1, 1]), ("2500", [1, 2, 2, 2])]:  # the first plan takes 3000 bytes
        monkeypatch.setenv("NEONLITE_WORKSPACE", cap)
        be, frontend = by_cudnn()
        be.runtime.driver.times = iter([3.0, 1.0, 2.0])
        layer = be.conv_layer("float32", 2, 3, 4, 1, 5, 5, 1, 3, 3)
        for _ in range(2):
            be.fprop_conv(layer, be.ones(layer.dimI), be.ones(layer.dimF), be.zeros(layer.dimO))
        assert [graph.ran for graph in frontend.graphs] == [tried]
        assert be.memory().workspaces <= int(cap)


def test_what_cudnn_cannot_do_is_told_once_and_done_by_products(monkeypatch: Any) -> None:
    monkeypatch.setenv("NEONLITE_WORKSPACE", "50")
    be, frontend = by_cudnn()
    layer = be.conv_layer("float32", 2, 3, 4, 1, 5, 5, 1, 3, 3)
    i, f, o = (be.ones(shape) for shape in (layer.dimI, layer.dimF, layer.dimO))
    with pytest.warns(RuntimeWarning, match="cuDNN cannot fprop ConvLayer.*no plan works in so little"):
        be.fprop_conv(layer, i, f, o)
    be.fprop_conv(layer, i, f, o)  # warnings are errors here
    assert (o.get() == 27).all()
    assert len(frontend.graphs) == 1


def test_cupys_driver_finds_cudnn_where_it_is_installed_and_says_when_it_fails(monkeypatch: Any) -> None:
    cuda = {"get_current_stream": lambda: SimpleNamespace(ptr=5), "runtime": SimpleNamespace(getDevice=lambda: 0)}
    driver = CuPyDriver(SimpleNamespace(cuda=SimpleNamespace(**cuda)), 0)
    monkeypatch.setitem(sys.modules, "cudnn", None)
    assert driver.cudnn is None
    monkeypatch.setitem(sys.modules, "cudnn", frontend := Frontend())
    del driver.cudnn
    assert driver.cudnn.frontend is frontend
    assert frontend.streams == [5]
    del driver.cudnn
    monkeypatch.delattr(Frontend, "create_handle")
    with pytest.warns(RuntimeWarning, match="cuDNN cannot be used: .*create_handle"):
        assert driver.cudnn is None


CHECKS: dict[str, tuple[Callable[[], Iterator[Any]], Callable[[int, str, Any], None]]] = {
    "pooling": (shapes.pool_cases, check_pooling),
    "local response": (shapes.lrn_cases, check_lrn),
    "sums by place": (product_cases, check_scatter),
    "regions": (product_cases, check_regions),
    "products": (product_cases, check_product),
    "convolution": (shapes.conv_cases, check_convolution),
}


@pytest.mark.parametrize("what", CHECKS)
def test_a_primitive_on_a_card_is_the_references(what: str) -> None:
    draw, check = CHECKS[what]
    for case in cases(draw, FEW):
        check(*case)


@pytest.mark.slow
@pytest.mark.parametrize("what", CHECKS)
def test_a_primitive_on_a_card_is_the_references_over_many_shapes(what: str) -> None:
    draw, check = CHECKS[what]
    for case in cases(draw, MANY, FEW):
        check(*case)


@pytest.mark.parametrize("what", test_gpu.PRIMITIVES)
def test_primitives_of_cupys_arrays_are_those_of_the_cpu(what: str) -> None:
    with installed():
        made, wanted = (test_gpu.PRIMITIVES[what](Backend(name)) for name in ("gpu", "cpu"))
        for a, b in zip(made, wanted, strict=True):
            np.testing.assert_allclose(a.get(), b.get(), rtol=1e-5, atol=1e-5)


def test_without_kernels_primitives_are_the_references(monkeypatch: Any) -> None:
    monkeypatch.setenv("NEONLITE_KERNELS", "0")
    be = Backend(Simulated())
    assert (type(be.primitives), be.runtime.halves) == (Generic, False)
    layer = be.pool_layer("float16", "avg", 2, 1, 1, 4, 4, 1, 1, 2, 2)
    assert (be.fprop_pool(layer, be.ones(layer.dimI, "float16"), be.zeros(layer.dimO, "float16")).get() == 1).all()


# --- the text --------------------------------------------------------------------------------------------------------


def texts() -> dict[str, tuple[str, dict[str, str]]]:
    """Return every kernel, with types that it takes beside the dtype."""
    return {
        **{f"pool {op}": (text, {"Out": "{dtype}", "Place": "uint8"}) for op, text in images.POOLS.items()},
        **{f"pool {op} back": (text, {"Place": "int32"}) for op, text in images.POOLS_BACK.items()},
        "columns": (COLUMNS, {}),
        "sums by place": (scatter.SCATTER, {}),
        "places in order": (scatter.SORT, {}),
        "regions": (scatter.REGIONS, {"Place": "int32"}),
        "lrn": (images.LRN, {}),
        "lrn back": (images.LRN_BACK, {}),
        "turn": (TURN, {}),
    }


def check_compiled(architecture: str, *forms: tuple[str, int, bool]) -> None:
    """Assert that NVRTC takes every kernel for a dtype, V elements at once, and places of 32 or 64 bits."""
    if nvrtc.library() is None:
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc-cu12")
    for (name, (text, types)), (dtype, V, large) in itertools.product(texts().items(), forms):
        filled = {key: kind.replace("{dtype}", dtype) for key, kind in types.items()}
        made = nvrtc.compiled(source(text, dtype, V, large, **filled), architecture, OPTIONS)
        assert made.spilled == made.stack == 0, (name, dtype, made[:3])
        assert made.registers <= 128, (name, dtype, made[:3])


@pytest.mark.parametrize(
    ("architecture", "dtype"), [("sm_80", "float16"), ("sm_90", "bfloat16"), ("sm_100", "float32")]
)
def test_nvidias_compiler_takes_every_kernel_and_nothing_is_spilled(architecture: str, dtype: str) -> None:
    check_compiled(architecture, (dtype, 128 // bits(dtype), False))


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_nvidias_compiler_takes_what_fills_tensors_by_draws_and_nothing_is_spilled(architecture: str) -> None:
    if nvrtc.library() is None:
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc-cu12")
    kinds = [(draws.MASK, dtype, {"limit": 1}) for dtype in (*FLOATS, "int8", "int64")]
    kinds += [(draws.SCALED, dtype, {"mean": 0.0, "stdv": 1.0}) for dtype in FLOATS]
    for values, dtype, more in kinds:
        made = nvrtc.compiled(PREAMBLE + draws.text(values, dtype, more), architecture, OPTIONS)
        assert made.spilled == 0, (dtype, made[:3])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "more"),
    [("sm_80", ("float32", 4, False)), ("sm_90", ("float64", 2, False)), ("sm_100", ("float64", 1, True))],
)
def test_nvidias_compiler_takes_every_kernel_for_every_dtype(architecture: str, more: tuple[str, int, bool]) -> None:
    check_compiled(architecture, *((dtype, 8, False) for dtype in HALVES), more)
