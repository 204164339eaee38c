"""The runtime 'mkl': the arguments that libmkl_rt gets, those that it must never get, and the results."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import neonlite as nl
from neonlite import Autodiff, Backend
from neonlite.backend import concurrency, runtimes
from neonlite.backend.runtimes import load_runtime, mkl as mkl_runtime
from neonlite.backend.runtimes.numpy import NumPyPrimitives
from neonlite.backend.runtimes.onednn import bindings as onednn

mkl = pytest.importorskip("mkl")

Array = np.ndarray[Any, Any]

EPS = {"float32": 2.0**-23, "float64": 2.0**-52}
LETTER = {"float32": "s", "float64": "d"}  # BLAS's
every_dtype = pytest.mark.parametrize("dtype", EPS)


class Counting:
    """libmkl_rt, and a list of what was called."""

    def __init__(self) -> None:
        self.library = mkl_runtime.load_library()
        self.calls: list[str] = []
        self.threads: list[int] = []

    def __getitem__(self, name: str) -> Callable[..., Any]:
        function = self.library[name]

        def call(*arguments: Any) -> Any:
            if name == "MKL_Set_Num_Threads_Local":
                self.threads.append(arguments[0])
            else:
                self.calls.append(name)
            return function(*arguments)

        return call

    def during(self, work: Callable[[], Any]) -> list[str]:
        """Do some work, and return the functions of MKL that it called."""
        before = len(self.calls)
        work()
        return self.calls[before:]


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    """Have every call of MKL counted, and none saved because the product is small."""
    counting = Counting()
    monkeypatch.setattr(mkl_runtime, "load_library", lambda: counting)
    monkeypatch.setattr(runtimes, "min_gemm_work", lambda: -1)
    return counting


@pytest.fixture
def products(counting: Counting) -> mkl_runtime.MKLMatmul:
    return mkl_runtime.MKLMatmul(load_runtime("mkl"))


# --- where MKL is ----------------------------------------------------------------------------------------------------


def test_the_runtime_describes_itself():
    be = Backend("mkl")
    assert be.name == "mkl"
    numpy = f"NumPy {np.__version__}, {onednn.version_info()}"
    assert be.runtime.version_info() == f"MKL {version()}, {concurrency.get_num_threads()} threads, {numpy}"
    assert ("mkl", True) in [found[:2] for found in nl.backend.info()]


def version() -> str:
    return mkl.get_version_string().split("Version ")[1].split("-")[0]


def test_an_absent_library_raises_import_error_with_the_searched_paths(monkeypatch, tmp_path):
    monkeypatch.setattr(runtimes, "library_folders", lambda: [tmp_path, tmp_path / "lib"])
    monkeypatch.setattr(mkl_runtime, "load_library", mkl_runtime.load_library.__wrapped__)
    with pytest.raises(ImportError, match=r"neither libmkl_rt.*dll is in .*/lib.*Install it.*neonlite.mkl") as error:
        Backend("mkl")
    assert f"{tmp_path}, {tmp_path / 'lib'}" in str(error.value)


@pytest.mark.skipif(os.name == "nt", reason="links to files need rights there")
def test_a_library_that_is_too_old_or_broken_is_an_import_error(monkeypatch, tmp_path):
    monkeypatch.setattr(runtimes, "library_folders", lambda: [tmp_path])
    other = sys.modules["_ctypes"].__file__
    assert other is not None
    (tmp_path / "libmkl_rt.so.1").symlink_to(other)
    with pytest.raises(ImportError, match=r"mkl: expected MKL 2023 or newer, got .*libmkl_rt.so.1"):
        mkl_runtime.load_library.__wrapped__()
    (tmp_path / "libmkl_rt.so.2").write_text("of two, the newer is taken; this is no library")
    with pytest.raises(ImportError, match=r"libmkl_rt.so.2"):
        mkl_runtime.load_library.__wrapped__()


def test_the_folders_are_those_of_the_environment_its_base_and_the_user(monkeypatch):
    monkeypatch.setenv("CONDA_PREFIX", "/conda")
    found = [str(folder) for folder in runtimes.library_folders()]
    assert [prefix in " ".join(found) for prefix in (sys.prefix, sys.base_prefix, "conda")] == [True] * 3
    assert len(found) == len(set(found))


def python(code: str, **environment: str) -> str:
    """Run code in a new process, and return what it printed."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, env=os.environ | environment
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


LOADED = "[n for n in ('mkl_rt', 'mkl_gnu_thread', 'mkl_intel_thread') if n in open('/proc/self/maps').read()]"
linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/maps shows what is loaded, on Linux")


@linux
def test_mkl_is_loaded_when_its_runtime_is_created_and_not_before():
    code = f"""
import sys, neonlite
from neonlite.backend.runtimes import mkl
be = neonlite.Backend("cpu")
be.dot(be.ones((200, 200)), be.ones((200, 200))).asnumpyarray()
print({LOADED}, "mkl" in sys.modules)
neonlite.Backend("mkl")
print({LOADED}[0], "mkl" in sys.modules)
"""
    assert python(code).splitlines() == ["[] False", "mkl_rt True"]


# --- results ---------------------------------------------------------------------------------------------------------

SIZES = [0, 1, 1, 2, 3, 5, 7, 13, 31, 64, 97]
LAYOUTS = ["dense", "transposed", "rows", "columns", "steps", "backwards", "both backwards", "row of a column"]
SUPPORTED = LAYOUTS[:4]  # those that BLAS supports for every shape


def laid(values: Array, layout: str) -> Array:
    """Return the values as a view with the strides of ``layout``, with sevens around it."""
    *stack, m, n = values.shape
    around = np.full((*stack, 2 * m + 3, 2 * n + 3), 7, values.dtype)
    if layout == "transposed":
        return np.ascontiguousarray(values.swapaxes(-1, -2)).swapaxes(-1, -2)
    if layout == "row of a column":  # of a (m, 1) or (1, n), with large strides
        around = around.swapaxes(-1, -2).copy().swapaxes(-1, -2)
    view = {
        "dense": lambda: np.empty(values.shape, values.dtype),
        "rows": lambda: around[..., :n].copy()[..., 2 : m + 2, :],
        "columns": lambda: around[..., :m, 1 : n + 1],
        "steps": lambda: around[..., :m, 0 : 2 * n : 2],
        "backwards": lambda: around[..., m - 1 :: -1, :n] if m else around[..., :0, :n],
        "both backwards": lambda: around[..., ::-1, ::-1][..., :m, :n],
        "row of a column": lambda: around[..., :m, :n],
    }[layout]()
    view[...] = values
    return view


def around(x: Array) -> Array:
    """Return the whole memory of an array that is a view, sevens where the view is."""
    whole: Any = x
    while whole.base is not None:
        whole = whole.base
    before = x.copy()
    x[...] = 7
    rest = whole.copy()
    x[...] = before
    return rest


def check(multiply: Callable[..., Any], a: Array, b: Array, c: Array, alpha: float, beta: float, words: str) -> None:
    """Multiply, and compare with sums in float64, up to what rounding does to the sum of the absolute values."""
    wide = [x.astype(np.float64) for x in (a, b, c)]
    want, terms = (alpha * np.einsum(words, x, y, optimize=False) for x, y in (wide[:2], map(np.abs, wide[:2])))
    if beta:
        want, terms = want + beta * wide[2], abs(terms) + abs(beta * wide[2])
    else:
        c[...] = np.nan  # which must not be read
    rest = around(c)
    assert multiply(a, b, c, alpha, beta) is None
    bound = EPS[str(c.dtype)] * (a.shape[-1] * (len(a) if words.count("x") == 3 else 1) + 4)
    assert np.all(np.abs(c - want) <= bound * np.abs(terms))
    assert np.array_equal(around(c), rest)


@pytest.fixture(params=["cpu", "mkl"])
def primitives(request: pytest.FixtureRequest, products: mkl_runtime.MKLMatmul) -> NumPyPrimitives:
    return products if request.param == "mkl" else NumPyPrimitives(load_runtime("cpu"))


def numbers(rng: np.random.Generator) -> tuple[float, float]:
    return float(rng.choice([1, 1, 0, -2.5, 0.5])), float(rng.choice([0, 0, 1, -0.5, 2]))


@every_dtype
def test_a_product_is_the_sum_in_every_shape_and_layout(primitives, rng, dtype):
    for _ in range(400):
        m, k, n = rng.choice(SIZES, 3)
        a, b, c = (laid(rng.normal(size=s).astype(dtype), rng.choice(LAYOUTS)) for s in ((m, k), (k, n), (m, n)))
        check(primitives.gemm, a, b, c, *numbers(rng), "ij,jk->ik")


@every_dtype
def test_a_product_of_stacks_is_the_sum_in_every_shape_and_layout(primitives, rng, dtype):
    for _ in range(200):
        x, m, k, n = rng.choice(SIZES[:8], 4)
        flat = rng.integers(3)  # whether a, b or none is shared by the stack
        shapes = [(x, m, k), (x, k, n), (x, m, n)]
        if flat < 2:
            shapes[flat] = shapes[flat][1:]
        a, b, c = (laid(rng.normal(size=s).astype(dtype), rng.choice(LAYOUTS)) for s in shapes)
        words = ["ij,xjk->xik", "xij,jk->xik", "xij,xjk->xik"][flat]
        check(primitives.gemm, a, b, c, *numbers(rng), words)


@every_dtype
def test_a_sum_of_products_is_the_sum_in_every_shape_and_layout(primitives, rng, dtype):
    for _ in range(200):
        x, m, k, n = rng.choice(SIZES[:8], 4)
        shapes = (x, m, k), (x, k, n), (m, n)
        a, b, c = (laid(rng.normal(size=s).astype(dtype), rng.choice(LAYOUTS)) for s in shapes)
        check(primitives.batch_reduce_gemm, a, b, c, *numbers(rng), "xij,xjk->ik")


# --- arguments of MKL ------------------------------------------------------------------------------------------------


@every_dtype
@pytest.mark.parametrize("beta", [0.0, 2.0])
def test_mkl_multiplies_matrices_in_every_layout_that_blas_knows(counting, products, rng, dtype, beta):
    shapes = [(3, 4, 5), (64, 32, 97), (1, 4, 5), (3, 1, 5), (3, 4, 1), (1, 4, 1), (1, 1, 1)]
    for (m, k, n), *layouts in itertools.product(shapes, SUPPORTED, SUPPORTED, SUPPORTED):
        sizes = (m, k), (k, n), (m, n)
        a, b, c = (laid(rng.normal(size=s).astype(dtype), x) for s, x in zip(sizes, layouts, strict=True))
        called = counting.during(lambda a=a, b=b, c=c: check(products.gemm, a, b, c, 1.5, beta, "ij,jk->ik"))
        assert called == [f"cblas_{LETTER[dtype]}gemm_64"]


def test_a_row_or_column_may_have_its_elements_far_apart(counting, products, rng):
    whole = rng.normal(size=(50, 60))
    row, column, out = whole[3:4, ::7], whole[2:38:4, 5:6], np.zeros((9, 9))
    assert row.shape[1] == column.shape[0] == 9
    assert len(counting.during(lambda: check(products.gemm, column, row, out, 1.0, 0.5, "ij,jk->ik"))) == 1
    alone = whole[2:38:4, 5:50:50]  # the stride of an axis of size 1 is arbitrary
    assert alone.strides == (4 * 60 * 8, 50 * 8)
    assert len(counting.during(lambda: check(products.gemm, row, out, alone.T, 1.0, 0.5, "ij,jk->ik"))) == 1
    assert len(counting.during(lambda: check(products.gemm, out, alone, column.copy(), 1.0, 0.5, "ij,jk->ik"))) == 1
    place = np.zeros((50, 60))
    assert len(counting.during(lambda: check(products.gemm, row, out, place[:1, :18:2], 2.0, 0.0, "ij,jk->ik"))) == 1
    assert (
        len(counting.during(lambda: check(products.gemm, out, column, place[1:28:3, 7:8], 2.0, 0.0, "ij,jk->ik"))) == 1
    )


@every_dtype
def test_mkl_is_called_once_for_a_stack_where_it_can_be(counting, products, rng, dtype):
    for flat, *layouts in itertools.product(range(3), SUPPORTED, SUPPORTED, SUPPORTED):
        shapes = [(6, 3, 4), (6, 4, 5), (6, 3, 5)]
        if flat < 2:
            shapes[flat] = shapes[flat][1:]
        a, b, c = (laid(rng.normal(size=s).astype(dtype), x) for s, x in zip(shapes, layouts, strict=True))
        words = ["ij,xjk->xik", "xij,jk->xik", "xij,xjk->xik"][flat]
        called = counting.during(lambda a=a, b=b, c=c, words=words: check(products.gemm, a, b, c, 2.0, 3.0, words))
        assert called == [f"cblas_{LETTER[dtype]}gemm_batch_strided_64"]


def test_mkl_is_called_matrix_by_matrix_where_a_stack_has_negative_or_interleaved_strides(counting, products, rng):
    a, b, c = (rng.normal(size=s) for s in ((6, 3, 4), (6, 4, 5), (6, 3, 5)))
    woven = np.zeros((3, 6, 5)).transpose(1, 0, 2)
    assert counting.during(lambda: check(products.gemm, a[:1], b[:1], c[:1], 1.0, 0.5, "xij,xjk->xik")) == [
        "cblas_dgemm_64"
    ]
    for x, y, z in ((a[::-1], b, c), (a, b[::-1], c), (a[0], b, c[::-1]), (a, b[0], woven), (a[::-2], b[::2], c[:3])):
        words = f"{'x' * (x.ndim == 3)}ij,{'x' * (y.ndim == 3)}jk->xik"
        called = counting.during(lambda x=x, y=y, z=z, words=words: check(products.gemm, x, y, z, 1.0, 0.5, words))
        assert called == ["cblas_dgemm_64"] * len(z)


def test_mkl_is_called_matrix_by_matrix_where_the_elements_of_a_stack_alternate(counting, products, rng):
    places = np.lib.stride_tricks.as_strided(np.zeros(100), (3, 5, 2), (18 * 8, 8 * 8, 8))  # no two rows overlap
    a, b = rng.normal(size=(3, 5, 4)), rng.normal(size=(3, 4, 2))
    for x, y, z in ((a, b, places), (*(t.swapaxes(1, 2) for t in (b, a, places)),)):
        called = counting.during(lambda x=x, y=y, z=z: products.gemm(x, y, z, 2.0))
        assert called == ["cblas_dgemm_64"] * 3
        assert np.allclose(z, 2 * np.einsum("xij,xjk->xik", x, y), rtol=1e-13)


def test_mkl_sums_into_the_output(counting, products, rng):
    a, b, c = (rng.normal(size=s) for s in ((6, 4, 3), (6, 4, 5), (3, 5)))
    for x in (a.swapaxes(1, 2), a[::-1].swapaxes(1, 2)):
        called = counting.during(lambda x=x: check(products.batch_reduce_gemm, x, b, c, 0.5, 0.0, "xij,xjk->ik"))
        assert called == ["cblas_dgemm_64"] * 6


@pytest.mark.parametrize("layout", ["steps", "backwards", "both backwards"])
@pytest.mark.parametrize("place", range(3))
def test_strides_that_blas_does_not_support_are_left_to_numpy(counting, products, rng, layout, place):
    layouts = ["dense"] * 3
    layouts[place] = layout
    a, b, c = (laid(rng.normal(size=s), x) for s, x in zip(((3, 4), (4, 5), (3, 5)), layouts, strict=True))
    assert counting.during(lambda: check(products.gemm, a, b, c, 1.0, 0.5, "ij,jk->ik")) == []


def test_rows_that_overlap_or_are_misaligned_fall_back_to_numpy(counting, products, rng):
    windows = np.lib.stride_tricks.sliding_window_view(rng.normal(size=6), 4)
    records = np.zeros(3, [("row", np.float64, (4,)), ("rest", np.int32)])["row"]
    records[...] = rng.normal(size=(3, 4))
    one = np.broadcast_to(rng.normal(size=(1, 4)), (3, 4))
    out = rng.normal(size=(3, 5)), rng.normal(size=(5, 3))
    for a in (windows, records, one):
        b = rng.normal(size=(4, 5))
        assert counting.during(lambda a=a, b=b: check(products.gemm, a, b, out[0], 1.0, 0.5, "ij,jk->ik")) == []
        assert counting.during(lambda a=a, b=b: check(products.gemm, b.T, a.T, out[1], 1.0, 0.5, "ij,jk->ik")) == []
    stack = np.zeros(6, [("matrix", np.float64, (3, 4)), ("rest", np.int32)])["matrix"]
    stack[...] = rng.normal(size=(6, 3, 4))
    b, c = rng.normal(size=(4, 5)), np.empty((6, 3, 5))
    assert counting.during(lambda: check(products.gemm, stack, b, c, 1.0, 0.0, "xij,jk->xik")) == []


def test_16_bit_floats_and_integers_are_left_to_numpy(counting, products):
    for dtype in ("float16", "int32", "int64", "uint8"):
        a, b, c = np.full((3, 4), 2, dtype), np.full((4, 5), 3, dtype), np.ones((3, 5), dtype)
        assert counting.during(lambda a=a, b=b, c=c: products.gemm(a, b, c, 1, 2)) == []
        assert np.array_equal(c, np.full((3, 5), 26))
    swapped = np.full((3, 4), 2, np.dtype("float64").newbyteorder())
    out = np.zeros((3, 5))
    assert counting.during(lambda: products.gemm(swapped, np.full((4, 5), 3.0), out)) == []
    assert np.array_equal(out, np.full((3, 5), 24))


def test_two_dtypes_at_once_are_left_to_numpy(counting, products):
    for dtypes in itertools.product(EPS, EPS, EPS):
        if len(set(dtypes)) > 1:
            a, b, c = (
                np.full(s, n, dtype) for s, n, dtype in zip(((3, 4), (4, 5), (3, 5)), (2, 3, 1), dtypes, strict=True)
            )
            if np.can_cast(np.result_type(a, b), c.dtype, "same_kind"):
                assert counting.during(lambda a=a, b=b, c=c: products.gemm(a, b, c, 1.0, 2.0)) == []
                assert np.array_equal(c, np.full((3, 5), 26))


def test_an_address_in_the_middle_of_an_element_is_left_to_numpy(counting, products):
    memory = bytearray(12 * 8 + 1)
    a = np.frombuffer(memory, np.float64, 12, offset=1).reshape(3, 4)
    a[...] = 2
    out = np.zeros((3, 5))
    assert counting.during(lambda: products.gemm(a, np.full((4, 5), 3.0), out)) == []
    assert np.array_equal(out, np.full((3, 5), 24))


def test_a_product_may_overwrite_an_operand(counting, products, rng):
    for beta in (0.0, 2.0):
        for place in (
            lambda x: (x[:9], x[9:18], x[4:13]),
            lambda x: (x[:9], x[:9].T, x[:9]),
            lambda x: (x[:9], x[20:29], x[:9].T),
            lambda x: (x[20:29], x[:9], x[5:14]),
        ):
            a, b, c = place(rng.normal(size=(29, 9)))
            want = np.einsum("ij,jk->ik", a, b) + beta * c
            assert counting.during(lambda a=a, b=b, c=c, beta=beta: products.gemm(a, b, c, 1.0, beta)) == []
            assert np.allclose(c, want, rtol=1e-13)


def test_an_operand_overlaps_the_product_if_they_share_one_element(counting, products, rng):
    memory, others = rng.normal(size=200), rng.normal(size=(6, 6, 6))
    seen = set()
    for at in range(200 - 72):
        step = -1 if at % 3 == 0 else 1
        c = memory[60:96].reshape(4, 3, 3)[:, ::1]
        a = memory[at : at + 48].reshape(4, 3, 4)[::step]
        shared = np.shares_memory(a, c)
        seen.add(shared)
        called = counting.during(lambda a=a, c=c: products.gemm(a, others[0, :4, :3], c, 1.0, 2.0))
        assert (called == []) == shared
        called = counting.during(lambda a=a, c=c: products.gemm(others[0, :3, :3], a.swapaxes(1, 2)[:, :3, :3], c, 2.0))
        assert (called == []) == np.shares_memory(a[:, :3, :3], c)
    assert seen == {True, False}


def test_interleaved_columns_of_one_buffer_do_not_overlap(counting, products, rng):
    steps = rng.normal(size=(8, 6 * 5))
    W = rng.normal(size=(8, 8))
    for t in range(1, 6):  # as a recurrent layer has them
        before, now = steps[:, 5 * t - 5 : 5 * t], steps[:, 5 * t : 5 * t + 5]
        assert len(counting.during(lambda x=before, z=now: check(products.gemm, W, x, z, 1.0, 1.0, "ij,jk->ik"))) == 1


def test_a_read_only_output_is_refused(counting, products):
    c = np.zeros((3, 3))
    c.flags.writeable = False
    for beta in (0.0, 1.0):
        with pytest.raises(ValueError, match="read-only"):
            products.gemm(np.ones((3, 3)), np.ones((3, 3)), c, 1.0, beta)
    assert counting.calls == []
    assert not c.any()


def test_shapes_that_do_not_fit_are_refused_before_mkl_reads_beyond_an_array(counting, products):
    wrong = [
        ((3, 4), (5, 6), (3, 6)),
        ((3, 4), (4, 5), (3, 6)),
        ((3, 4), (4, 5), (2, 5)),
        ((2, 3, 4), (4, 5), (3, 5)),
        ((2, 3, 4), (2, 4, 5), (3, 5)),
        ((2, 3, 4), (3, 4, 5), (2, 3, 5)),
        ((2, 3, 4), (2, 4, 5), (3, 3, 5)),
    ]
    for a, b, c in (map(np.ones, shapes) for shapes in wrong):
        with pytest.raises(ValueError, match=r"mismatch|operand"):
            products.gemm(a, b, c)
    assert counting.calls == []
    for shapes in ((3, 3, 4), (2, 4, 5), (3, 5)), ((2, 3, 4), (2, 5, 6), (3, 6)), ((2, 3, 4), (4, 5), (3, 5)):
        with pytest.raises((ValueError, IndexError), match=r"mismatch|bounds"):
            products.batch_reduce_gemm(*map(np.ones, shapes))


def test_a_stack_of_one_is_stretched_as_numpy_does(products, rng):
    a, b, c = rng.normal(size=(1, 3, 4)), rng.normal(size=(6, 4, 5)), np.empty((6, 3, 5))
    products.gemm(a, b, c)
    assert np.allclose(c, np.einsum("ij,xjk->xik", a[0], b), rtol=1e-13)


def test_an_alpha_of_0_does_not_hide_a_nan(primitives):
    c = np.ones((2, 2))
    primitives.gemm(np.full((2, 3), np.nan), np.ones((3, 2)), c, 0.0, 1.0)
    assert np.isnan(c).all()


def test_the_address_of_an_array_is_where_its_first_element_is(rng):
    x = rng.normal(size=(5, 6, 7))
    for view in (x, x[1:], x[..., ::-1], x.T, x[2, 3:, 4:5], x[:0], x.astype(np.float16), np.frombuffer(b"abcdefgh")):
        assert runtimes.data_address(view).value == view.ctypes.data == view.__array_interface__["data"][0]


def test_gemm_calls_are_cached_and_bounded(products, monkeypatch):
    products.calls.capacity = 10
    made = []
    formed = mkl_runtime.create_gemm_call
    monkeypatch.setattr(mkl_runtime, "create_gemm_call", lambda *x: made.append(x) or formed(*x))
    a = np.ones((60, 60))
    for _ in range(3):
        products.gemm(a, a, np.empty((60, 60)))
    assert len(made) == 1
    for n in range(1, 50):
        products.gemm(a[:n], a, np.empty((n, 60)))
    assert len(products.calls) <= 10


def test_small_products_and_vectors_are_left_to_numpy(counting, products, rng, monkeypatch):
    vectors = [((40, 50), (50, 1)), ((1, 50), (50, 40)), ((1, 40, 50), (1, 50, 1))]
    for shapes in [*vectors, ((3, 40, 50), (3, 50, 1))]:
        a, b = map(rng.normal, (0, 0), (1, 1), shapes)
        words = "ij,jk->ik" if a.ndim == 2 else "xij,xjk->xik"
        for alpha, beta, calls in ((1.0, 0.0, shapes not in vectors), (2.0, 0.0, 1), (1.0, 1.0, 1)):
            c = rng.normal(size=(*a.shape[:-1], b.shape[-1]))
            multiply = partial(check, products.gemm, a, b, c, alpha, beta, words)
            assert len(counting.during(multiply)) == calls
    monkeypatch.setattr(runtimes, "min_gemm_work", lambda: 3 * 4 * 5)
    a, b, c = (rng.normal(size=s) for s in ((3, 4), (4, 5), (3, 5)))
    assert counting.during(lambda: check(products.gemm, a, b, c, 1.0, 0.0, "ij,jk->ik")) == []
    assert counting.during(lambda: check(products.gemm, a, b, c, 2.0, 0.0, "ij,jk->ik")) != []
    assert counting.during(lambda: check(products.gemm, a, b, c, 1.0, 1.0, "ij,jk->ik")) != []
    wider, out = rng.normal(size=(4, 6)), np.empty((3, 6))
    assert counting.during(lambda: check(products.gemm, a, wider, out, 1.0, 0.0, "ij,jk->ik")) != []


# --- memory ----------------------------------------------------------------------------------------------------------


def peak(work: Callable[[], Any]) -> int:
    """Return the most bytes that a run had at once, beyond those before it; the first runs are not counted.

    Of three runs the least: other threads of the process may take memory meanwhile.
    """
    work(), work()
    found = []
    for _ in range(3):
        tracemalloc.start()
        try:
            work()
            found.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    return min(found)


def test_a_temporary_buffer_is_detected():
    x = np.ones((100, 110))
    assert peak(lambda: x.__iadd__(x * 2)) >= x.nbytes


@pytest.mark.parametrize("runtime", ["cpu", "mkl"])
@pytest.mark.parametrize("beta", [0.0, 1.0, 0.5])
def test_products_allocate_no_buffer_once_they_have_run(rng, runtime, beta):
    made = load_runtime(runtime)
    primitives = made.primitives(made)
    a, b, c = (rng.normal(size=s) for s in ((6, 120, 110), (6, 110, 130), (6, 120, 130)))
    smallest, turned = a[0].nbytes, rng.normal(size=(110, 120)).T
    columns = np.zeros((200, 300))[20:140, 30:160]  # where NumPy's functions use internal buffers
    for x, y, z in ((a[0], b[0], c[0]), (turned, b[0], c[0]), (a, b, c), (a[0], b, c), (a[0], b[0], columns)):
        if runtime == "mkl" or z is not columns:
            assert peak(lambda x=x, y=y, z=z: primitives.gemm(x, y, z, 0.5, beta)) < smallest / 8
    assert peak(lambda: primitives.batch_reduce_gemm(a, b, c[0], 0.5, beta)) < smallest / 8


# --- op-trees --------------------------------------------------------------------------------------------------------


def test_products_in_op_trees_are_mkls(counting, rng):
    be = Backend("mkl")
    x, y, z = (rng.normal(size=s).astype(np.float32) for s in ((30, 40), (40, 50), (30, 50)))
    X, Y, Z, out = be.array(x), be.array(y), be.array(z), be.empty((30, 50))

    def work() -> None:
        out[:] = be.tanh(be.dot(X, Y) + Z) * be.dot(Z, be.dot(Y.T, Y))

    assert counting.during(work) == ["cblas_sgemm_64"] * 3
    wide = [t.astype(np.float64) for t in (x, y, z)]
    want = np.tanh(wide[0] @ wide[1] + wide[2]) * (wide[2] @ (wide[1].T @ wide[1]))
    assert np.allclose(out.get(), want, rtol=1e-5, atol=1e-4)
    stack = be.array(rng.normal(size=(5, 30, 40)))
    out3 = be.empty((5, 30, 50))
    assert counting.during(lambda: be.assign([out3], [stack @ Y])) == ["cblas_sgemm_batch_strided_64"]
    assert np.allclose(out3.get(), np.einsum("xij,jk->xik", stack.get(), y), atol=1e-4)


def test_compound_and_batched_dot_are_mkls(counting, rng):
    be = Backend("mkl", default_dtype="float64")
    a, b, c = rng.normal(size=(30, 40)), rng.normal(size=(6, 40, 50)), rng.normal(size=(6, 30, 50))
    A, B, C = be.array(a), be.array(b), be.array(c)
    assert counting.during(lambda: be.compound_dot(A, B[0].reshape(40, 50), C[0].reshape(30, 50), 2.0, 0.5)) == [
        "cblas_dgemm_64"
    ]
    assert counting.during(lambda: be.batched_dot(A, B, C, 2.0, 0.0)) == ["cblas_dgemm_batch_strided_64"]
    assert np.allclose(C.get(), 2 * np.einsum("ij,xjk->xik", a, b))
    dA = be.zeros((30, 40))
    assert counting.during(lambda: be.batched_dot(C, B.T, dA)) == ["cblas_dgemm_64"] * 6
    assert np.allclose(dA.get(), np.einsum("xik,xjk->ij", C.get(), b))


def test_gradients_of_products_are_right_and_mkls(counting, rng):
    be = Backend("mkl", default_dtype="float64")
    w, x, e = rng.normal(size=(30, 40)), rng.normal(size=(40, 20)), rng.normal(size=(30, 20))
    W, X, E = (be.array(t, name=n) for t, n in ((w, "W"), (x, "X"), (e, "E")))
    dW, dX = be.empty((30, 40)), be.empty((40, 20))
    tree = be.square(be.dot(W, X))
    called = counting.during(lambda: Autodiff(tree, be, next_error=E).back_prop_grad([W, X], [dW, dX]))
    assert called == ["cblas_dgemm_64"] * 3
    error = 2 * np.einsum("ij,jk->ik", w, x) * e
    assert np.allclose(dW.get(), np.einsum("ik,jk->ij", error, x), rtol=1e-12)
    assert np.allclose(dX.get(), np.einsum("ij,ik->jk", w, error), rtol=1e-12)


def test_the_whole_suite_of_ops_has_the_numbers_of_cpu(rng):
    values = rng.normal(size=(150, 150))
    results = []
    for name in ("cpu", "mkl"):
        be = Backend(name, rng_seed=1, default_dtype="float64")
        x = be.array(values, name="x")
        tree = be.sum(be.sig(be.dot(x, x.T) / 150 + be.rand(150, 150)) @ x, axis=1)
        results.append((tree.asnumpyarray(), Autodiff(tree, be).get_grad_asnumpyarray([x])[0]))
    for got, want in zip(*results, strict=True):
        assert np.allclose(got, want, rtol=1e-11)


# --- threads ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("threads")
def test_a_product_has_the_threads_of_the_backend_and_leaves_those_of_others_alone(counting, products):
    a, before = np.ones((30, 30)), mkl.get_max_threads()
    for count in (1, 2, 3):
        concurrency.set_threads(count)
        counting.threads.clear()
        products.gemm(a, a, np.empty((30, 30)))
        assert counting.threads[0] == count
        assert len(counting.threads) == 2
        assert mkl.get_max_threads() == before


def test_many_threads_multiply_at_once(counting, rng):
    be = Backend("mkl", default_dtype="float64")
    wrong, start = [], threading.Barrier(8)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        start.wait()
        for _ in range(20):
            m, k, n = rng.integers(2, 150, 3)
            x, y = rng.normal(size=(m, k)), rng.normal(size=(k, n))
            out = be.zeros((m, n))
            X, Y = be.array(x), be.array(y)
            out[:] = be.dot(X, Y) * 2
            be.compound_dot(X, Y, out, 1.0, 0.5)
            if not np.allclose(out.get(), 2 * np.einsum("ij,jk->ik", x, y), rtol=1e-9, atol=1e-9):
                wrong.append((m, k, n))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []
    assert len(counting.calls) == 8 * 20 * 2


PRODUCT = """
import numpy as np, neonlite, sys, os
def product(be):
    x, y = np.arange(90000.0).reshape(300, 300) % 7, np.arange(90000.0).reshape(300, 300) % 11
    assert np.array_equal(be.dot(be.array(x), be.array(y)).asnumpyarray(), np.einsum("ij,jk->ik", x, y))
"""


@linux
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_multiplies_too():
    code = f"""{PRODUCT}
import signal
be = neonlite.Backend("mkl")
product(be)
child = os.fork()
if not child:
    signal.alarm(300)
    product(be)
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""
    assert python(code, MKL_THREADING_LAYER="") == "0"  # which this process may have set


def intel_openmp_year() -> int:
    try:
        return int(metadata.version("intel-openmp").partition(".")[0])
    except metadata.PackageNotFoundError:
        return 0


@linux
@pytest.mark.skipif(intel_openmp_year() >= 2026, reason="Intel's OpenMP 2026 leaks threads: use intel-openmp<2026")
@pytest.mark.parametrize("dtype", EPS)
def test_python_threads_that_end_leave_no_threads_of_openmp_behind(dtype):
    code = f"""{PRODUCT}
import threading
be = neonlite.Backend("mkl", default_dtype="{dtype}")
for _ in range(40):
    thread = threading.Thread(target=product, args=(be,))
    thread.start()
    thread.join()
print(len(os.listdir("/proc/self/task")))
"""
    assert int(python(code, MKL_THREADING_LAYER="", OMP_NUM_THREADS="2")) < 20


@linux
@pytest.mark.long
@pytest.mark.skipif(not find_spec("torch"), reason="torch is not installed")
@pytest.mark.parametrize("first", ["torch", "mkl"])
def test_mkl_and_torch_multiply_in_one_process_by_one_openmp(first):
    code = f"""{PRODUCT}
def torches():
    import torch
    x = torch.arange(90000.0).reshape(300, 300) % 7
    assert torch.equal(x @ x, torch.from_numpy(np.einsum("ij,jk->ik", x.numpy(), x.numpy())))
works = [torches, lambda: product(neonlite.Backend("mkl"))]
for work in (works if "{first}" == "torch" else works[::-1]) * 5:
    work()
print({LOADED}[1:])
"""
    layer = {"torch": "mkl_gnu_thread", "mkl": "mkl_intel_thread"}[first]
    assert python(code, MKL_THREADING_LAYER="", OMP_NUM_THREADS="2") == str([layer])


@linux
@pytest.mark.parametrize("layer", ["", "INTEL"])  # INTEL: what a process inherits from one that used MKL's own
def test_mkl_shares_the_openmp_of_gnu_where_another_library_has_loaded_it(layer):
    code = f"""
import ctypes
try:
    ctypes.CDLL("libgomp.so.1")
except OSError:
    print("absent")
else:
    {PRODUCT.strip().replace(chr(10), chr(10) + "    ")}
    product(neonlite.Backend("mkl"))
    print({LOADED}[1:])
"""
    output = python(code, MKL_THREADING_LAYER=layer)
    if output == "absent":
        pytest.skip("libgomp is not installed")
    assert output == "['mkl_gnu_thread']"


# --- the same bits ---------------------------------------------------------------------------------------------------


def test_a_deterministic_backend_may_be_created_at_any_time(rng):
    x, y = rng.normal(size=(200, 300)), rng.normal(size=(300, 150))
    found = set()
    for deterministic in (None, True, True):
        be = Backend("mkl", deterministic=deterministic)
        X, Y = be.array(x), be.array(y)
        found |= {be.dot(X, Y).asnumpyarray().tobytes() for _ in range(5)}
    assert len(found) == 1
    assert (
        python("import neonlite, mkl; neonlite.Backend('mkl', deterministic=True); print(mkl.get_dynamic())") == "False"
    )


USED = """
import ctypes, sys
import mkl
from ctypes import c_double as d, c_int as i, c_void_p as p
x = (d * 4)()
ctypes.CDLL(next(l.split()[-1] for l in open("/proc/self/maps") if "libmkl_rt" in l)).cblas_dgemm(
    i(101), i(111), i(111), i(2), i(2), i(2), d(1), x, i(2), x, i(2), d(0), x, i(2))
import neonlite
neonlite.Backend("mkl")
try:
    neonlite.Backend("mkl", deterministic=True)
    print("made")
except RuntimeError as error:
    print(error)
"""


@linux
def test_where_another_package_has_used_mkl_a_deterministic_backend_is_refused_with_the_way_out():
    if mkl.cbwr_get_auto_branch() == "compatible":
        pytest.skip("there is nothing to set on this CPU")
    assert "start Python with the environment variable MKL_CBWR=AUTO" in python(USED, MKL_CBWR="")
    assert python(USED, MKL_CBWR="AUTO") == "made"


def test_the_choice_of_the_user_is_kept():
    code = "import neonlite, mkl; neonlite.Backend('mkl', deterministic=True); print(mkl.cbwr_get('branch'))"
    assert python(code, MKL_CBWR="COMPATIBLE") == "compatible"
