"""OpenBLAS on one thread beside oneDNN (``neonlite/backend/runtimes/__init__.py``)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.onednn_primitives import needs

from neonlite import Backend
from neonlite.backend import runtimes as openblas_module
from neonlite.backend.runtimes.numpy import NumPyPrimitives


@pytest.fixture
def openblas() -> Iterator[Any]:
    """Return NumPy's OpenBLAS with four threads; afterwards it has as many as before."""
    found = openblas_module.get_openblas()
    if not isinstance(found, openblas_module.SingleThreadedBLAS):
        pytest.skip("NumPy uses another BLAS library here")
    before = found.get_threads()
    found.set_threads(4)
    yield found
    found.set_threads(before)


@needs
@pytest.mark.parametrize(
    ("sizes", "dtype", "expected"),
    [
        ((70, 70, 70), "float32", 1),  # small: NumPy's
        ((1, 300, 300), "float32", 1),  # a matrix-vector product
        ((70, 70, 70), "float64", 4),
        ((3, 5, 7), "float32", 4),  # too small for a second thread of OpenBLAS
    ],
)
def test_products_of_numpy_beside_onednn_use_one_thread(
    cpu: Backend, openblas: Any, monkeypatch: pytest.MonkeyPatch, sizes: Any, dtype: str, expected: int
) -> None:
    m, k, n = sizes
    a, b, out = (cpu.ones(shape, dtype=dtype) for shape in ((m, k), (k, n), (m, n)))
    threads: list[int] = []
    gemm = NumPyPrimitives.gemm
    monkeypatch.setattr(NumPyPrimitives, "gemm", lambda *args: threads.append(openblas.get_threads()) or gemm(*args))
    cpu.compound_dot(a, b, out)
    assert threads == [expected]
    assert openblas.get_threads() == 4
    assert (out.get() == k).all()


def test_openblas_is_found_in_a_folder_with_spaces_and_a_removed_file_is_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = "/home/a user/numpy.libs/libscipy_openblas64_-1.so"
    maps = [
        "7f00-7f10 r--p 00000000 00:00 0 ",
        *(f"7f10-7f20 r-xp 00000000 fe:00 123   {x}" for x in (path, "/home/m\xe9")),
    ]
    maps.insert(1, "7f00-7f10 r-xp 00000000 fe:00 122   /old/numpy.libs/libopenblas.so (deleted)")
    monkeypatch.setattr(openblas_module, "open", lambda *_: BytesIO("\n".join(maps).encode("latin-1")), raising=False)
    counts = SimpleNamespace(scipy_openblas_get_num_threads64_=lambda: 4, scipy_openblas_set_num_threads64_=print)

    def load(name: str) -> Any:
        if name != path:
            raise OSError(f"{name}: cannot open shared object file")
        return counts

    monkeypatch.setattr(openblas_module, "ctypes", SimpleNamespace(PyDLL=load))
    found = openblas_module.get_openblas.__wrapped__()
    assert isinstance(found, openblas_module.SingleThreadedBLAS)
    assert found.get_threads() == 4
    monkeypatch.setattr(openblas_module, "open", lambda *_: (_ for _ in ()).throw(FileNotFoundError(2, "no /proc")))
    assert isinstance(openblas_module.get_openblas.__wrapped__(), contextlib.nullcontext)


def test_the_last_thread_that_leaves_restores_the_number_of_threads_of_openblas(openblas: Any) -> None:
    entered, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with openblas:
            entered.set()
            leave.wait(60)

    other = threading.Thread(target=stay)
    with openblas:
        other.start()
        entered.wait(60)
    assert openblas.get_threads() == 1
    leave.set()
    other.join()
    assert openblas.get_threads() == 4
