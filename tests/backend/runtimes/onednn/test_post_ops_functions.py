"""Elementwise functions and transposed copies by oneDNN (``post_ops.py``)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from helpers.onednn_primitives import Array, counts, needs

from neonlite import Backend
from neonlite.backend.runtimes.onednn import bindings, post_ops

needs_avx2 = pytest.mark.skipif(
    not ((there := bindings.get_library()) and there.has_precise_exp),
    reason="exp and the logistic function are oneDNN's with AVX2 alone",
)


# --- functions -------------------------------------------------------------------------------------------------------


SIG = post_ops.EltwiseFunction(post_ops.ELTWISE_LOGISTIC, 64, post_ops.logistic_numpy)


EXP = post_ops.ExpFunction(post_ops.ELTWISE_EXP, 64, np.exp)


TRUTHS: dict[str, tuple[post_ops.EltwiseFunction, Callable[[Array], Array]]] = {
    "sig": (SIG, lambda x: 1 / (1 + np.exp(-x))),
    "exp": (EXP, np.exp),
}


@needs
@pytest.mark.parametrize("word", TRUTHS)
@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000, 65536, 100_003])
def test_functions_are_right_to_some_units_in_the_last_place(word: str, size: int) -> None:
    function, truth = TRUTHS[word]
    for low, high, ulps in ((-86.9, 88.7, 6), (-10, 10, 4), (-1, 1, 3), (-1e-6, 1e-6, 2)):
        x = np.random.default_rng(8).uniform(low, high, size).astype(np.float32)
        wanted, out = truth(x.astype(float)), np.empty_like(x)
        function(x, out)
        assert np.abs((out - wanted) / np.spacing(wanted.astype(np.float32))).max() <= ulps
        function(x, x)  # in place
        np.testing.assert_array_equal(x, out)


@needs_avx2
@pytest.mark.parametrize("word", TRUTHS)
def test_functions_of_infinities_nan_and_very_small_numbers(word: str) -> None:
    function, truth = TRUTHS[word]
    for value in (np.inf, -np.inf, np.nan, 0, -0.0, 1e-40, -1e-40, 88, 100, 1e30, -1e30, -86.95, -87.2, -90, -110):
        x, out = np.full(256, 0.5, np.float32), np.empty(256, np.float32)
        x[77] = value
        function(x, out)
        with np.errstate(over="ignore"):
            wanted = truth(x.astype(float)).astype(np.float32)
        near_zero = 0 if word == "exp" else 2e-38  # below, oneDNN gives 0
        np.testing.assert_allclose(out, wanted, rtol=1e-6, atol=near_zero)


@needs
def test_functions_fall_back_to_numpy() -> None:
    wide = np.linspace(-3, 3, 400).reshape(20, 20)
    for dtype, part in (
        ("float64", np.s_[:]),
        ("float32", np.s_[:, ::2]),
        ("float32", np.s_[::2, 3:]),
        ("float16", np.s_[:]),
    ):
        x = wide.astype(dtype)[part]
        out = np.empty_like(wide.astype(dtype))[part]
        SIG(x, out)
        np.testing.assert_allclose(out, 1 / (1 + np.exp(-x.astype(float))), rtol=4 * float(np.finfo(dtype).eps))


@needs
@counts
def test_transposed_copies_are_bit_exact(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, copy = np.random.default_rng(count), post_ops.TransposedCopy()
    made, make = [], post_ops.TransposedCopy.create_primitive
    monkeypatch.setattr(post_ops.TransposedCopy, "create_primitive", lambda *args: made.append(args[2]) or make(*args))
    for _ in range(count):
        ndim = int(rng.integers(2, 5))
        order = rng.permutation(ndim)  # of the axes in memory, which also has gaps
        shape = rng.integers(1, (0, 0, 600, 60, 20)[ndim], ndim)
        buffer = rng.integers(0, 1 << 32, shape[order] + rng.integers(0, 3, ndim), np.uint32).view(np.float32)
        part = tuple(slice(n) for n in shape[order])
        x, out, back = buffer[part].transpose(np.argsort(order)), np.zeros(shape, np.float32), np.zeros_like(buffer)
        copy(x, out)
        np.testing.assert_array_equal(out.view(np.uint32), np.ascontiguousarray(x).view(np.uint32))  # also of NaNs
        copy(out, back[part].transpose(np.argsort(order)))
        np.testing.assert_array_equal(back[part].view(np.uint32), buffer[part].view(np.uint32))
    assert len(made) > count / 2


@needs
def test_copies_that_onednn_does_not_support_are_numpys() -> None:
    copy = post_ops.TransposedCopy()
    whole = np.random.default_rng(0).normal(size=(60, 70)).astype(np.float32)
    between = np.frombuffer(bytes(1) + whole.tobytes(), np.float32, whole.size, 1).reshape(whole.shape)
    for x in (
        whole.T[::-1],
        whole.T[:, ::-1],
        whole.astype(float).T,
        between.T,
        np.broadcast_to(whole[:, :1], whole.shape).T,
    ):
        out = np.empty(x.shape, np.float32)
        copy(x, out)
        np.testing.assert_array_equal(out, x.astype(np.float32))
    ints = np.empty((70, 60), np.int32)
    copy(whole.T * 9, ints)
    np.testing.assert_array_equal(ints, (whole.T * 9).astype(np.int32))
    closed = np.zeros((70, 60), np.float32)
    closed.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        copy(whole.T, closed)
    assert not closed.any()


@needs
def test_a_transpose_is_copied_by_one_dnn(cpu: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    made, make = [], post_ops.TransposedCopy.create_primitive
    monkeypatch.setattr(post_ops.TransposedCopy, "create_primitive", lambda *args: made.append(args[2]) or make(*args))
    x, y = cpu.array(np.random.default_rng(0).normal(size=(301, 703))), cpu.empty((703, 301))
    for source in (x.T, cpu.transpose(x)):
        y[:] = 0
        y[:] = source
        np.testing.assert_array_equal(y.get(), x.get().T)
    assert made


SHARED = """
import numpy as np
from neonlite.backend import concurrency
from neonlite.backend.runtimes.onednn import bindings
from neonlite.backend.runtimes.onednn import post_ops
concurrency.set_threads(3)
oneDNN = bindings.load_library()
function = post_ops.EltwiseFunction(post_ops.ELTWISE_LOGISTIC, 64, post_ops.logistic_numpy)
seen, execute = set(), oneDNN.execute
def counting(*args):
    seen.add(oneDNN.get_threads())
    return execute(*args)
oneDNN.execute = counting
x, out = np.random.default_rng(9).standard_normal(1 << 16).astype(np.float32), np.empty((100, 1 << 16), np.float32)
def work(numbers):
    for n in numbers:
        function(x, out[n])
concurrency.parallel_for(work, len(out))
print(seen, oneDNN.get_threads(), (out == out[0]).all())
"""


@needs_avx2
def test_workers_run_functions_in_one_thread_each() -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "4"}  # that is what a new thread begins with
    got = subprocess.run([sys.executable, "-c", SHARED], env=environment, capture_output=True, text=True, check=True)
    assert got.stdout == "{1} 4 True\n"
