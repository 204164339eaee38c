"""Convolution and pooling by oneDNN equal ``ReferencePrimitives``, in float64, for random shapes."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from helpers import image_programs
from helpers.allocations import buffers
from helpers.onednn_primitives import HERE, Array, counts, every_dtype, near, needs, normal
from hypothesis import given, settings, strategies as st

from neonlite import Backend
from neonlite.backend import concurrency
from neonlite.backend.primitives import ReferencePrimitives
from neonlite.backend.primitives.geometry import ImageShape
from neonlite.backend.runtimes.onednn import bindings, convolution

every_scale = pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (0.5, 2.0)])


def cached(made: convolution.OneDNNConvolution) -> list[Any]:
    """Return the cached primitives in the order of their creation, with None where oneDNN has no fast one."""
    return bindings.primitives.values()


# --- shapes ----------------------------------------------------------------------------------------------------------


def convolutions(be: Backend, dtype: str, count: int) -> Iterator[Any]:
    """Yield layer objects of convolutions, flat and deep, and of their transposes."""
    rng = np.random.default_rng(1)
    yield be.conv_layer(dtype, 1, 1, 1)
    yield be.conv_layer(dtype, 3, 2, 5, 1, 1, 9, 1, 1, 3, str_w=2, pad_w=1)  # in one direction alone
    yield be.conv_layer(dtype, 2, 16, 32, 1, 9, 9, 1, 3, 3, pad_h=1, pad_w=1)
    yield be.conv_layer(dtype, 8, 32, 16, 1, 6, 5)  # of one pixel
    yield be.conv_layer(dtype, 2, 3, 16, 1, 12, 12, 1, 5, 5, str_h=2, str_w=2, pad_h=2, pad_w=2)
    for k in range(count):
        deep = k % 4 == 0
        axes = "dhw" if deep else "hw"
        one = {
            f"{what}_{a}": int(rng.integers(low, 3)) for a in axes for what, low in (("pad", 0), ("str", 1), ("dil", 1))
        }
        N, C, K = (int(rng.choice(sizes)) for sizes in ((1, 2, 5, 8), (1, 3, 8, 16, 19), (1, 4, 16, 17)))
        window = dict(zip("TRS", [int(n) for n in rng.integers(1, 4, 3)], strict=True)) | ({} if deep else {"T": 1})
        if k % 3:
            size = dict(zip("DHW", [int(n) for n in rng.integers(5, 10, 3)], strict=True)) | ({} if deep else {"D": 1})
            yield be.conv_layer(dtype, N, C, K, **size, **window, **one)
        else:
            size = dict(zip("MPQ", [int(n) for n in rng.integers(5, 8, 3)], strict=True)) | ({} if deep else {"M": 1})
            yield be.deconv_layer(dtype, N, C, K, **size, **window, **one)


def poolings(be: Backend, dtype: str, op: str, count: int) -> Iterator[Any]:
    rng = np.random.default_rng(2)
    yield be.pool_layer(dtype, op, 1, 1)
    yield be.pool_layer(dtype, op, 4, 3, 1, 20, 20, 1, 1, 20, 20)  # argmax up to 399
    yield be.pool_layer(dtype, op, 3, 2, 1, 7, 5, 1, 1, 2, 1, str_h=3, str_w=2)  # cells that no window has
    for k in range(count):
        deep = k % 4 == 0
        N, C = (int(rng.choice(sizes)) for sizes in ((1, 3, 8, 16, 33), (1, 2, 5)))
        size = {"D": int(rng.integers(3, 6)) if deep else 1, "H": int(rng.integers(4, 9)), "W": int(rng.integers(4, 9))}
        window = {a: int(rng.integers(1, 4)) for a in "TRS"} | ({} if deep else {"T": 1})
        steps = {f"str_{a}": int(rng.integers(1, 4)) for a in "dhw"}
        pads = {f"pad_{a}": int(rng.integers(0, n)) for a, n in zip("dhw", window.values(), strict=True)}
        yield be.pool_layer(dtype, op, N, C, **size, **window, **steps, **pads)


# --- convolution -----------------------------------------------------------------------------------------------------


@needs
@counts
@every_scale
@every_dtype
def test_convolutions_equal_the_reference(
    made: convolution.OneDNNConvolution,
    plain: ReferencePrimitives,
    cpu: Backend,
    dtype: str,
    alpha: float,
    beta: float,
    count: int,
) -> None:
    rng = np.random.default_rng(3)
    for layer in convolutions(cpu, dtype, count):
        i, f, e = (normal(rng, shape, dtype) for shape in (layer.dimI, layer.dimF, layer.dimO))
        for name, a, b, shape in (
            ("conv_fprop", i, f, layer.dimO),
            ("conv_bprop", f, e, layer.dimI),
            ("conv_update", i, e, layer.dimF),
        ):
            got = normal(rng, shape, dtype)
            wanted = got.astype(float)
            if not beta:
                got[...] = np.nan
            kept = a.copy(), b.copy()
            getattr(made, name)(layer, a, b, got, alpha, beta)
            getattr(plain, name)(layer, a.astype(float), b.astype(float), wanted, alpha, beta)
            near(got, wanted, (name, layer, layer.TRS, layer.dilation))
            assert (a == kept[0]).all()
            assert (b == kept[1]).all()
    found = cached(made)
    if dtype == "float64":
        assert found == []  # which oneDNN has not
    else:
        assert len(found) > 2 * count  # all but those of one or two channels
        assert None not in found


@needs
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", [8, 16])
@pytest.mark.parametrize(("C", "K"), [(2, 3), (4, 8), (16, 32)])
def test_strided_windows_of_one_pixel_have_the_gradients_of_the_textbook(
    C: int, K: int, size: int, threads: int
) -> None:
    """In another process, as oneDNN's kernel that is avoided may never end."""
    code = f"""if True:
        import numpy as np
        from neonlite import Backend
        from neonlite.backend import concurrency
        concurrency.set_threads({threads})
        be, rng = Backend("cpu"), np.random.default_rng(0)
        x, e = rng.normal(size=({C}, {size}, {size}, 16)), rng.normal(size=({K}, {size // 2}, {size // 2}, 16))
        f = rng.normal(size=({C}, {K}))
        layer = be.conv_layer("float32", 16, {C}, {K}, 1, {size}, {size}, str_h=2, str_w=2)
        X, E, F = (be.array(a.reshape(-1, a.shape[-1])) for a in (x, e, f))
        O, U, D = be.zeros(E.shape), be.zeros(F.shape), be.zeros(X.shape)
        for _ in range(5):
            be.fprop_conv(layer, X, F, O), be.bprop_conv(layer, F, E, D), be.update_conv(layer, X, E, U)
            read, d = x[:, ::2, ::2], np.zeros_like(x)
            d[:, ::2, ::2] = np.einsum("khwn,ck->chwn", e, f)
            wanted = np.einsum("chwn,ck->khwn", read, f), np.einsum("chwn,khwn->ck", read, e), d
            for t, w in zip((O, U, D), wanted):
                np.testing.assert_allclose(t.get().reshape(w.shape), w, rtol=1e-3, atol=1e-3)
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@needs
def test_nan_in_an_image_stays_in_its_windows(made: convolution.OneDNNConvolution, cpu: Backend) -> None:
    layer = cpu.conv_layer("float32", 2, 3, 20, 1, 6, 6, 1, 3, 3)
    i, o = np.ones(layer.dimI, np.float32), np.zeros(layer.dimO, np.float32)
    i[1, 0, 0, 0, 1] = np.nan
    made.conv_fprop(layer, i, np.ones(layer.dimF, np.float32), o, 1.0, 0.0)
    wanted = np.full(layer.dimO, 27.0)
    wanted[:, :, 0, 0, 1] = np.nan
    np.testing.assert_array_equal(o, wanted)


# --- pooling ---------------------------------------------------------------------------------------------------------


@needs
@counts
@every_dtype
@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("op", ["max", "avg", "l2"])
def test_pooling_equals_the_reference(
    made: convolution.OneDNNConvolution,
    plain: ReferencePrimitives,
    cpu: Backend,
    op: str,
    beta: float,
    dtype: str,
    count: int,
) -> None:
    rng = np.random.default_rng(4)
    for layer in poolings(cpu, dtype, op, count):
        i, e, o, d = (normal(rng, shape, dtype) for shape in (layer.dimI, layer.dimO, layer.dimO, layer.dimI))
        i = np.round(2 * i) if op == "max" else i  # so that there are equal maxima
        for places in ("int32", "int64") if max(layer.TRS) > 16 else ("uint8", "int32"):
            for kept in (True, False):
                case = layer, op, places, kept
                found = [np.zeros(layer.dimO, places) if kept else None for _ in range(2)]
                got, wanted, back, wanted_back = o.copy(), o.astype(float), d.copy(), d.astype(float)
                made.pool_fprop(layer, i, got, found[0], beta)
                plain.pool_fprop(layer, i.astype(float), wanted, found[1], beta)
                near(got, wanted, case)
                if op == "max" and kept:
                    np.testing.assert_array_equal(*found, err_msg=repr(case))
                made.pool_bprop(layer, i, e, back, found[0], 0.5, beta)
                plain.pool_bprop(layer, i.astype(float), e.astype(float), wanted_back, found[1], 0.5, beta)
                near(back, wanted_back, case)
    asked = cached(made)
    assert (None in asked) == (op == "l2" and dtype == "float32")
    assert len(asked) >= (count if dtype == "float32" else 0)


@needs
def test_windows_over_channels_are_left_to_numpy(
    made: convolution.OneDNNConvolution, plain: ReferencePrimitives, cpu: Backend
) -> None:
    layer = cpu.pool_layer("float32", "max", 4, 6, 1, 4, 4, 3, 1, 2, 2)
    i, (o, wanted) = normal(np.random.default_rng(5), layer.dimI, "float32"), np.zeros((2, *layer.dimO), np.float32)
    made.pool_fprop(layer, i, o, None, 0.0)
    plain.pool_fprop(layer, i, wanted, None, 0.0)
    np.testing.assert_array_equal(o, wanted)
    assert cached(made) == [None]


@needs
@pytest.mark.parametrize("shared", [1, 1 << 30])
@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf])
def test_maxima_of_infinity_and_nan_equal_the_reference(
    made: convolution.OneDNNConvolution,
    plain: ReferencePrimitives,
    cpu: Backend,
    monkeypatch: pytest.MonkeyPatch,
    value: float,
    shared: int,
) -> None:
    monkeypatch.setattr(convolution, "MIN_PARALLEL_SUM", shared)
    layer = cpu.pool_layer("float32", "max", 8, 2, 1, 6, 6, 1, 1, 2, 2)
    i = normal(np.random.default_rng(6), layer.dimI, "float32")
    i[:, :, :2, :2] = value
    i[1, 0, 5, 3, 2] = value
    (o, wanted), (at, places) = np.zeros((2, *layer.dimO), np.float32), np.zeros((2, *layer.dimO), np.uint8)
    made.pool_fprop(layer, i, o, at, 0.0)
    plain.pool_fprop(layer, i, wanted, places, 0.0)
    np.testing.assert_array_equal(o, wanted)
    np.testing.assert_array_equal(at, places)


# --- batch normalization ---------------------------------------------------------------------------------------------


@needs
@pytest.mark.parametrize("shared", [1, 1 << 30])
@pytest.mark.parametrize("size", [1, 64, 97, 640])
def test_one_infinite_element_is_found_at_any_index(
    made: convolution.OneDNNConvolution, monkeypatch: pytest.MonkeyPatch, size: int, shared: int
) -> None:
    monkeypatch.setattr(convolution, "MIN_PARALLEL_SUM", shared)
    for n, value in itertools.product((0, size // 2, size - 1), (np.nan, np.inf, -np.inf)):
        numbers = np.ones(size, np.float32)
        assert made._is_finite(numbers)
        numbers[n] = value
        assert not made._is_finite(numbers)


# --- memory, threads, processes --------------------------------------------------------------------------------------


def a_step(made: convolution.OneDNNConvolution, be: Backend, seed: int = 7) -> tuple[Callable[[], None], list[Array]]:
    """Return what runs a convolution and a pooling, forwards and backwards, and its results."""
    rng = np.random.default_rng(seed)
    conv = be.conv_layer("float32", 16, 8, 16, 1, 12, 12, 1, 3, 3)
    pooled = be.pool_layer("float32", "max", 16, 16, 1, 10, 10, 1, 1, 2, 2)
    i, f, e = (normal(rng, shape, "float32") for shape in (conv.dimI, conv.dimF, pooled.dimO))
    o, p, d, di = (np.empty(shape, np.float32) for shape in (conv.dimO, pooled.dimO, conv.dimO, conv.dimI))
    df, at = np.empty(conv.dimF, np.float32), np.empty(pooled.dimO, np.uint8)

    def run() -> None:
        made.conv_fprop(conv, i, f, o, 1.0, 0.0)
        made.pool_fprop(pooled, o, p, at, 0.0)
        made.pool_bprop(pooled, o, e, d, at, 1.0, 0.0)
        made.conv_update(conv, i, d, df, 1.0, 0.0)
        made.conv_bprop(conv, f, d, di, 0.5, 0.0)

    return run, [o, p, at, d, df, di]


@needs
def test_nothing_is_allocated_once_it_has_run(made: convolution.OneDNNConvolution, cpu: Backend) -> None:
    run, _ = a_step(made, cpu)
    run()
    before = made.runtime.memory_tracker.usage()
    assert before.workspaces > 0
    assert buffers(run) == []
    assert made.runtime.memory_tracker.usage() == before
    made.runtime.memory_tracker.clear_thread_cache()
    assert made.runtime.memory_tracker.usage().workspaces == 0


@needs
def test_the_number_of_threads_is_the_runtimes_during_a_call_only(
    made: convolution.OneDNNConvolution, cpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert HERE is not None
    seen: list[int] = []
    execute = HERE.execute
    monkeypatch.setattr(HERE, "execute", lambda *args: seen.append(HERE.get_threads()) or execute(*args))
    before, wanted = HERE.get_threads(), None
    for n in (1, 3):
        monkeypatch.setattr(concurrency, "_num_threads", n)
        run, results = a_step(made, cpu)
        run()
        assert {*seen} == {n}
        assert HERE.get_threads() == before
        seen.clear()
        wanted = wanted or [x.copy() for x in results]
        for got, x in zip(results, wanted, strict=True):
            near(got.astype(np.float32), x, n)


@needs
def test_several_threads_convolve_at_once(made: convolution.OneDNNConvolution, cpu: Backend) -> None:
    alone = [a_step(made, cpu, seed) for seed in range(4)]
    for run, _ in alone:
        run()
    together = [a_step(made, cpu, seed) for seed in range(4)]
    workers = [threading.Thread(target=lambda run=run: [run() for _ in range(20)]) for run, _ in together]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for (_, got), (_, wanted) in zip(together, alone, strict=True):
        for x, y in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(x, y)


FORKED = """
import os, signal, sys
import numpy as np
from neonlite import Backend
from neonlite.backend import concurrency
concurrency.set_threads(2)
be = Backend("cpu")
if sys.argv[1] == "product":  # of stacks, as in attention
    x, out = be.ones((64, 96, 96)), be.empty((64, 96, 96))
    run, expected = lambda: out.__setitem__(slice(None), be.matmul(x, x)), 96
else:
    channels = int(sys.argv[1])
    layer = be.conv_layer("float32", 64, channels, 16, 1, 28, 28, 1, 5, 5)
    i, e = be.ones(layer.dimI2), be.ones(layer.dimO2)
    out, expected = be.empty(layer.dimF2), 64 * 24 * 24
    run = lambda: be.update_conv(layer, i, e, out)
run()
if (child := os.fork()) == 0:
    signal.alarm(60)
    out[:] = 0
    run()
    os._exit(0 if (out.get() == expected).all() else 1)
print(os.waitpid(child, 0)[1])
"""


@needs
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes fork here")
@pytest.mark.parametrize("operation", ["1", "16", "product"])
def test_a_forked_process_runs_primitives_that_its_parent_has_created(operation: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKED, operation]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == ["0"]


# --- programs and networks of images, beside those of NumPy ---


@needs
@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(image_programs.ACTS), st.integers(0, 1 << 20)), min_size=1, max_size=10))
def test_programs_give_the_results_of_numpy(program: list[tuple[str, int]]) -> None:
    mine = image_programs.Machine(Backend("cpu", rng_seed=1, batch_size=image_programs.N))
    plain = image_programs.Machine(image_programs.plain())
    for act, seed in program:
        results = [getattr(m, act)(np.random.default_rng(seed)) for m in (mine, plain)]
        if results[0] is not None:
            image_programs.near(*results)
    for x, y in zip(mine.memories, plain.memories, strict=True):
        image_programs.near(x.get(), y.get())


@needs
@pytest.mark.long
@settings(max_examples=60)
@given(st.lists(st.sampled_from(sorted(image_programs.PARTS)), min_size=1, max_size=5))
def test_networks_train_as_by_numpy(parts: list[str]) -> None:
    mine = image_programs.trained(Backend("cpu", rng_seed=1, batch_size=image_programs.N), parts)
    for x, y in zip(mine, image_programs.trained(image_programs.plain(), parts), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=2e-4 * max(1.0, float(np.abs(y).max())))


@needs
@pytest.mark.parametrize("dtype", ["float32", "uint8", "int32", "int64"])
def test_a_reorder_is_a_transpose(cpu: Backend, dtype: str) -> None:
    for form in (ImageShape(3, 12, 4), ImageShape(16, 7, 3), ImageShape(1, 5, 1), ImageShape(2, 1, 9)):
        numbers = np.random.default_rng(0).integers(0, 99, form).astype(dtype)
        nhwc, back = np.zeros(numbers.size, dtype), np.zeros_like(numbers)
        cpu.primitives.reorder(form, numbers, nhwc, False)
        assert np.array_equal(nhwc.reshape(form[::-1]), numbers.transpose())
        cpu.primitives.reorder(form, back, nhwc, True)
        assert np.array_equal(back, numbers)
