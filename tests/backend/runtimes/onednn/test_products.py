"""Matrix products by oneDNN: which it computes, and that they equal those of 64 bits."""

from __future__ import annotations

import itertools
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.onednn_primitives import HERE, Array, counts, every_dtype, needs

from neonlite import Backend
from neonlite.backend import concurrency, runtimes
from neonlite.backend.primitives import ReferencePrimitives
from neonlite.backend.runtimes.onednn import products
from neonlite.backend.runtimes.onednn.products import OneDNNMatmul
from neonlite.backend.tensor import OneHot


@pytest.fixture
def sgemm_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give products of all sizes to oneDNN; return the list to which each call of dnnl_sgemm appends 1."""
    calls: list[int] = []
    run = OneDNNMatmul._run_sgemm
    monkeypatch.setattr(products, "MIN_WORK", 0)
    monkeypatch.setattr(products, "min_gemm_work", lambda: 0)
    monkeypatch.setattr(OneDNNMatmul, "_run_sgemm", lambda *args: calls.append(1) or run(*args))
    return calls


@needs
@pytest.mark.parametrize(("rows", "start"), [(2048, 16), (2000, 0)])
def test_the_second_operand_of_a_product_in_a_plan_starts_where_the_product_is_fast(rows: int, start: int) -> None:
    be, rng = Backend("cpu"), np.random.default_rng(0)
    a, b = rng.normal(size=(3, 40)).astype(np.float32), rng.normal(size=(40, rows)).astype(np.float32)
    x, y = be.array(a), be.array(b)
    doubled = y * 2
    tree = be.dot(x, doubled) + be.sum(doubled, axis=0)
    plan = be.plan(tree)
    (offset,) = {plan.offsets[v] for v, step in plan.numbered_steps if step.op.name == "mul"}
    assert offset % 64 == start
    np.testing.assert_allclose(tree.get(), a @ (2 * b) + (2 * b).sum(axis=0), rtol=1e-4, atol=1e-4)


LAID = ("rows", "columns", "wide rows", "wide columns", "every other")


def laid(array: Array, way: str) -> Array:
    """Return an array of the same values with other strides."""
    if "columns" in way:
        return laid(array.swapaxes(-1, -2), way.replace("columns", "rows")).swapaxes(-1, -2)
    if way == "rows":
        return array.copy(order="C")
    step = 2 if way == "every other" else 1
    buffer = np.full((*array.shape[:-1], 2 * array.shape[-1] + 3), np.nan, array.dtype)
    part = buffer[..., 1 : 1 + step * array.shape[-1] : step]
    part[...] = array
    return part


@needs
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (0.5, 0.0), (1.0, 1.0), (-2.0, 0.25)])
@pytest.mark.parametrize("sizes", [(65, 70, 66), (1, 60, 70), (70, 1, 60), (30, 90, 1), (3, 5, 7)])
def test_products_are_those_of_64_bits(
    cpu: Backend, sgemm_calls: list[int], sizes: Any, alpha: float, beta: float
) -> None:
    rng = np.random.default_rng(0)
    m, k, n = sizes
    products = OneDNNMatmul(cpu.runtime)
    for ways in itertools.product(LAID, LAID, LAID):
        plain = [rng.normal(size=shape).astype("float32") for shape in ((m, k), (k, n), (m, n))]
        a, b, c = (laid(array, way) for array, way in zip(plain, ways, strict=True))
        if beta == 0:
            c[...] = np.nan  # which is not read
        products.gemm(a, b, c, alpha, beta)
        a64, b64, c64 = (x.astype("float64") for x in plain)
        wanted = alpha * (a64 @ b64) + (beta * c64 if beta else 0)
        np.testing.assert_allclose(c, wanted, rtol=1e-5, atol=1e-5 * np.sqrt(k) * abs(alpha), err_msg=str(ways))
    assert len(sgemm_calls) >= 4**3 if min(m, n) > 1 else not sgemm_calls  # of 125; strided rows go to NumPy


@needs
@counts
@every_dtype
def test_products_of_random_sizes_equal_the_reference(
    plain: ReferencePrimitives, cpu: Backend, sgemm_calls: list[int], dtype: str, count: int
) -> None:
    rng = np.random.default_rng(count)
    products = OneDNNMatmul(cpu.runtime)
    for _ in range(count):
        m, k, n = (int(x) for x in rng.integers(1, 200, 3))
        in_a, in_b = (((3,) if rng.random() < 0.2 else ()) for _ in "ab")  # one or both may be a stack
        shapes = [(*in_a, m, k), (*in_b, k, n), (*(in_a or in_b), m, n)]
        a, b, c = (laid(rng.normal(size=shape).astype(dtype), str(rng.choice(LAID))) for shape in shapes)
        alpha, beta = ((1.0, 0.0), (1.0, 1.0), (-0.5, 0.25))[rng.integers(3)]
        wanted = c.copy()
        plain.gemm(a, b, wanted, alpha, beta)
        products.gemm(a, b, c, alpha, beta)
        near = (1e-6 if dtype == "float32" else 1e-14) * k
        np.testing.assert_allclose(c, wanted, rtol=near, atol=near, err_msg=f"{shapes} {alpha} {beta}")
    assert bool(sgemm_calls) == (dtype == "float32")


@needs
def test_stacks_are_multiplied_one_matrix_after_another(cpu: Backend, sgemm_calls: list[int]) -> None:
    rng = np.random.default_rng(1)
    products = OneDNNMatmul(cpu.runtime)
    a, b = rng.normal(size=(3, 70, 80)).astype("float32"), rng.normal(size=(3, 80, 90)).astype("float32")
    c, total = np.empty((3, 70, 90), "float32"), np.empty((70, 90), "float32")
    products.gemm(a, b, c)
    np.testing.assert_allclose(c, a.astype("float64") @ b, rtol=1e-4, atol=1e-4)
    products.gemm(a[0], b, c)
    np.testing.assert_allclose(c, a[0].astype("float64") @ b, rtol=1e-4, atol=1e-4)
    products.batch_reduce_gemm(a, b, total)
    np.testing.assert_allclose(total, (a.astype("float64") @ b).sum(axis=0), rtol=1e-4, atol=1e-4)


def woven(array: Array) -> Array:
    """Return a stack of the same values, in which the elements with the same index in all matrices are contiguous."""
    return np.moveaxis(np.moveaxis(array, 0, -1).copy(), -1, 0)


@needs
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("sizes", [(32, 64, 32, 64), (64, 2, 33, 70), (500, 3, 5, 40), (5, 70, 64, 70)])
def test_stacks_of_any_strides_are_multiplied_in_one_call(
    cpu: Backend, monkeypatch: pytest.MonkeyPatch, sizes: Any, threads: int
) -> None:
    X, m, k, n = sizes
    rng, products, at_once = np.random.default_rng(0), OneDNNMatmul(cpu.runtime), []
    run = OneDNNMatmul._execute_batched
    monkeypatch.setattr(OneDNNMatmul, "_execute_batched", lambda *args: at_once.append(1) or run(*args))
    monkeypatch.setattr(concurrency, "_num_threads", threads)
    monkeypatch.setattr(runtimes, "MIN_GEMM_WORK", 1 << 16)
    for ways in itertools.product([*LAID[:4], "woven"], repeat=3):
        plain = [rng.normal(size=shape).astype("float32") for shape in ((X, m, k), (X, k, n), (X, m, n))]
        a, b, c = (woven(x) if way == "woven" else laid(x, way) for x, way in zip(plain, ways, strict=True))
        a[-1, 0, 0] = np.nan
        c[...] = np.nan  # which is not read
        products.gemm(a, b, c)
        wanted = plain[0].astype("float64") @ plain[1].astype("float64")
        np.testing.assert_allclose(c[:, 1:], wanted[:, 1:], rtol=1e-5, atol=1e-5 * np.sqrt(k), err_msg=str(ways))
        np.testing.assert_allclose(c[:-1, 0], wanted[:-1, 0], rtol=1e-5, atol=1e-5 * np.sqrt(k), err_msg=str(ways))
        assert np.isnan(c[-1, 0]).all()
    assert len(at_once) > 60  # of 125


@needs
@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (1, 0, 2, 3), (0, 1, 3, 2), (2, 0, 1, 3)])
def test_stacks_along_several_axes_are_multiplied_in_one_call(
    cpu: Backend, monkeypatch: pytest.MonkeyPatch, axes: tuple[int, ...]
) -> None:
    rng, products, at_once = np.random.default_rng(0), OneDNNMatmul(cpu.runtime), []
    run = OneDNNMatmul._execute_batched
    monkeypatch.setattr(OneDNNMatmul, "_execute_batched", lambda *args: at_once.append(1) or run(*args))
    x = rng.normal(size=(40, 41, 42, 43)).astype("float32").transpose(axes)
    y = rng.normal(size=x.shape).astype("float32")
    for a, b in ((x, np.swapaxes(y, -1, -2)), (np.swapaxes(y, -1, -2), x)):
        c = np.empty((*x.shape[:2], a.shape[-2], b.shape[-1]), "float32")
        products.gemm(a, b, c)
        np.testing.assert_allclose(c, a.astype("float64") @ b, rtol=1e-4, atol=1e-4)
    assert len(at_once) == 2


@needs
def test_a_stack_of_one_is_multiplied_with_each_of_the_other(cpu: Backend) -> None:
    a, b = np.random.default_rng(4).normal(size=(2, 8, 64, 64)).astype("float32")
    c = np.empty((8, 64, 64), "float32")
    for first, second in ((a[:1], b), (a, b[:1]), (np.broadcast_to(a[:1], a.shape), b), (a[::-1], b)):
        OneDNNMatmul(cpu.runtime).gemm(first, second, c)
        np.testing.assert_allclose(c, first.astype("float64") @ second, rtol=1e-4, atol=1e-4)


@needs
def test_a_stack_may_be_written_over_its_operands(cpu: Backend) -> None:
    for shift in (0, 64, 64 * 64):
        buffer = np.random.default_rng(2).normal(size=9 * 64 * 64).astype("float32")
        other = np.random.default_rng(3).normal(size=(8, 64, 64)).astype("float32")
        x, c = (buffer[start : start + 8 * 64 * 64].reshape(8, 64, 64) for start in (0, shift))
        wanted = x.astype("float64") @ other
        OneDNNMatmul(cpu.runtime).gemm(x, other, c)
        np.testing.assert_allclose(c, wanted, rtol=1e-4, atol=1e-4)


@needs
def test_stacks_that_do_not_fit_are_refused(cpu: Backend) -> None:
    a, b, c = np.ones((8, 64, 64), "float32"), np.ones((7, 64, 64), "float32"), np.ones((8, 64, 64), "float32")
    with pytest.raises(ValueError, match="broadcast"):
        OneDNNMatmul(cpu.runtime).gemm(a, b, c)


@needs
@pytest.mark.parametrize("shift", [0, 1, 40 * 100, 41 * 100])
def test_a_product_may_be_written_over_its_operands(cpu: Backend, shift: int) -> None:
    products = OneDNNMatmul(cpu.runtime)
    for first in (True, False):
        buffer = np.random.default_rng(2).normal(size=20_000).astype("float32")
        other = np.random.default_rng(3).normal(size=(100, 100)).astype("float32")
        x, c = buffer[:10_000].reshape(100, 100), buffer[shift : shift + 10_000].reshape(100, 100)
        a, b = (x, other) if first else (other, x)
        wanted = a.astype("float64") @ b
        products.gemm(a, b, c)
        np.testing.assert_allclose(c, wanted, rtol=1e-4, atol=1e-4)


@needs
def test_a_product_is_not_written_into_a_read_only_array(cpu: Backend) -> None:
    x, closed = np.ones((100, 100), "float32"), np.zeros((100, 100), "float32")
    closed.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        OneDNNMatmul(cpu.runtime).gemm(x, x, closed)
    assert not closed.any()
    letters = OneHot(100, cpu.zeros((1, 100), dtype="int32"), "letters").update()
    with pytest.raises(ValueError, match="read-only"):
        cpu.compound_dot(cpu.ones((100, 100)), cpu.ones((100, 100)), letters)
    assert letters.get().sum() == 100


@needs
def test_a_nan_times_zero_stays_one(cpu: Backend) -> None:
    x, c = np.full((100, 100), np.nan, "float32"), np.zeros((100, 100), "float32")
    OneDNNMatmul(cpu.runtime).gemm(x, x, c, 0.0)
    assert np.isnan(c).all()


@needs
def test_unaligned_matrices_are_multiplied_too(cpu: Backend) -> None:
    raw = np.zeros(40_001, np.uint8)[1:].view("float32").reshape(100, 100)
    raw[...] = np.random.default_rng(4).normal(size=(100, 100))
    c = np.empty((100, 100), "float32")
    OneDNNMatmul(cpu.runtime).gemm(raw, raw, c)
    np.testing.assert_allclose(c, raw.astype("float64") @ raw, rtol=1e-4, atol=1e-4)


@needs
@pytest.mark.parametrize("runtime", ["cpu", "mkl"])
def test_large_products_of_float32_are_one_dnn_s_and_others_are_not(
    runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if runtime == "mkl" and find_spec("mkl") is None:
        pytest.skip("mkl is not installed")
    be = Backend(runtime)
    taken: list[Any] = []
    monkeypatch.setattr(runtimes, "get_num_threads", lambda: 2)
    monkeypatch.setattr(OneDNNMatmul, "_run_sgemm", lambda self, library, form, a, *more: taken.append(a.shape))
    for dtype, size in (("float32", 102), ("float32", 101), ("float64", 102)):
        x = be.ones((size, size), dtype=dtype)
        be.compound_dot(x, x, be.empty((size, size), dtype=dtype))
    be.compound_dot(be.ones((1000, 1000)), be.ones((1000, 1)), be.empty((1000, 1)))  # a vector
    assert taken == [(102, 102)]


@pytest.mark.parametrize(("threads", "size"), [(1, 162), (2, 102)])
def test_with_one_thread_numpy_computes_larger_products(
    monkeypatch: pytest.MonkeyPatch, threads: int, size: int
) -> None:
    monkeypatch.setattr(runtimes, "get_num_threads", lambda: threads)
    assert (size - 1) ** 3 <= runtimes.min_gemm_work() < size**3


@needs
def test_an_interrupt_while_addresses_are_set_does_not_corrupt_memory() -> None:
    assert HERE is not None
    numbers, turned = (HERE.memory_desc((20, 30), strides) for strides in ((30, 1), (1, 20)))
    copy = HERE.create_reorder(numbers, turned)
    x, y, others = np.ones((20, 30), "float32"), np.zeros((30, 20), "float32"), np.zeros((30, 20), "float32")
    copy(x.ctypes.data, y.ctypes.data)
    set_address = copy.library.set_address

    def interrupted(*args: Any) -> None:
        set_address(*args)
        raise InterruptedError  # as Ctrl-C does when a function of C returns

    copy.library = SimpleNamespace(set_address=interrupted, execute=HERE.execute)  # type: ignore[assignment]
    with pytest.raises(InterruptedError):
        copy(x.ctypes.data, others.ctypes.data)
    copy.library = HERE
    x += 1
    copy(x.ctypes.data, y.ctypes.data)
    assert (y == 2).all()
    assert (others == 0).all()


SIGNALS = """
import signal
import numpy as np
from neonlite import Backend
from neonlite.backend import concurrency
concurrency.set_threads(1)
be, signals, others = Backend("cpu"), [], []
a, b, c = be.ones((100, 784)), be.ones((784, 128)), be.empty((100, 128))
signal.signal(signal.SIGALRM, lambda *_: signals.append(1))
signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
for n in range(8000):
    be.compound_dot(a, b, c)
    others.append(np.empty(40 + n * 37 % 30_000, "u1"))
    if len(others) > 50:
        del others[n % 50]
signal.setitimer(signal.ITIMER_REAL, 0)
print(len(signals) > 100, (c.get() == 784).all())
"""


@needs
@pytest.mark.long
def test_signals_that_come_while_matrices_are_multiplied_leave_the_heap_alone() -> None:
    got = subprocess.run([sys.executable, "-c", SIGNALS], capture_output=True, text=True, check=True)
    assert got.stdout == "True True\n"
