"""Layout caches: programs and networks give the same results with NHWC copies and without, and reorder rarely."""

from __future__ import annotations

import copy
import math
import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from helpers.allocations import buffers
from helpers.image_programs import ACTS, CONVOLUTIONS, PARTS, Case, Machine, N, near, plain, trained
from hypothesis import given, settings
from hypothesis import strategies as st

from neonlite import Autodiff, Backend, NervanaObject
from neonlite.backend import concurrency
from neonlite.backend.planning import layout
from neonlite.backend.runtimes.onednn import bindings, convolution
from neonlite.backend.tensor import display_values
from neonlite.backend.validation import IgnoreFPErrors
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import Affine, Conv, Dropout, MergeSum, Pooling, Sequential
from neonlite.transforms import Rectlin

pytestmark = pytest.mark.skipif(bindings.get_library() is None, reason=bindings.version_info())


@pytest.fixture
def reorders(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that records the reorders from now on: True for one to CHWN, False for one to NHWC."""
    seen: list[bool] = []
    reorder = convolution.OneDNNConvolution.reorder

    def counted(self: Any, shape: Any, chwn: Any, nhwc: Any, to_chwn: bool) -> None:
        seen.append(to_chwn)
        reorder(self, shape, chwn, nhwc, to_chwn)

    monkeypatch.setattr(convolution.OneDNNConvolution, "reorder", counted)
    return seen


# --- programs --------------------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 1 << 20)), min_size=1, max_size=10))
def test_programs_give_the_same_results_with_and_without_layout_caches(program: list[tuple[str, int]]) -> None:
    cached, without = Machine(Backend("cpu", rng_seed=1, batch_size=N)), Machine(plain())
    for act, seed in program:
        said = [getattr(m, act)(np.random.default_rng(seed)) for m in (cached, without)]
        if said[0] is not None:
            near(*said)
    for mine, theirs in zip(cached.memories, without.memories, strict=True):
        near(mine.get(), theirs.get())


# --- networks --------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=5))
def test_networks_train_the_same_with_and_without_layout_caches(parts: list[str]) -> None:
    found, wanted = trained(Backend("cpu", rng_seed=1, batch_size=N), parts), trained(plain(), parts)
    for mine, theirs in zip(found, wanted, strict=True):
        tolerance = 2e-4 * max(1.0, float(np.abs(theirs).max()))
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=tolerance)


def test_consecutive_convolutions_reorder_nothing_between_them(reorders: list[bool]) -> None:
    NervanaObject.be = be = Backend("cpu", rng_seed=1, batch_size=8)
    more = {"init": Gaussian(0.0, 0.3), "bias": Constant(0.1), "activation": Rectlin()}
    net = Sequential([
        Conv((3, 3, 8), **more), Pooling(2), Conv((3, 3, 16), **more), Dropout(1.0), Pooling(2, op="avg"),
        MergeSum([Conv((3, 3, 16), padding=1, **more), Conv((1, 1, 16), **more)]), Affine(10, **more),
    ])  # fmt: skip
    net.configure((3, 18, 18)).allocate()
    net.allocate_deltas()
    x, e = be.zeros((3 * 18 * 18, 8)), be.ones((10, 8))
    for _ in range(3):
        reorders.clear()
        x[:] = np.random.default_rng(1).standard_normal(x.shape)
        net.fprop(x)
        mask = [False]  # of dropout, which is drawn in CHWN
        assert reorders == [False, *mask, True]  # the images; what the product reads
        net.bprop(e)
        assert reorders[3:] == [False]  # the error of the product


# --- one thing at a time ---------------------------------------------------------------------------------------------


@pytest.fixture
def case(cpu: Backend) -> Case:
    return Case(cpu)


def test_results_stay_in_nhwc_until_they_are_read_and_are_reordered_once(case: Case, reorders: list[bool]) -> None:
    assert case.is_nhwc_only
    assert np.array_equal(case.O.get(), case.wanted)
    assert not case.is_nhwc_only
    assert np.array_equal(case.O.T.get(), case.wanted.T)
    assert np.array_equal(case.I.get(), case.wanted)  # which is valid in both layouts
    assert reorders == [True]


def test_writing_a_part_of_nhwc_images_keeps_the_rest(case: Case) -> None:
    case.O[3:5] = 7.0
    case.wanted[3:5] = 7
    assert np.array_equal(case.O.get(), case.wanted)
    case.run()
    case.O.reshape(4, 36, N)[1] = case.O.reshape(4, 36, N)[2]
    case.wanted[3:5] = case.I.get()[3:5]
    case.wanted.reshape(4, 36, N)[1] = case.wanted.reshape(4, 36, N)[2]
    assert np.array_equal(case.O.get(), case.wanted)


def test_overwritten_images_are_not_reordered_before(case: Case, reorders: list[bool]) -> None:
    case.O[:] = 2.0
    case.run()
    case.O[:] = case.wanted
    case.run()
    case.be.compound_dot(case.be.zeros((144, 9)), case.be.zeros((9, N)), case.O)
    case.run()
    case.O[:] = case.be.zeros((144, 1)) + 1
    assert reorders == []
    assert (case.O.get() == 1).all()


def test_a_product_with_beta_adds_to_nhwc_images(case: Case) -> None:
    case.be.compound_dot(case.be.ones((144, 1)), case.be.ones((1, N)), case.O, beta=1.0)
    assert np.array_equal(case.O.get(), case.wanted + 1)


def test_a_failed_assignment_leaves_an_nhwc_target_unchanged(case: Case) -> None:
    rows = case.be.array(np.full((1, 144), 500), dtype="int32")
    with pytest.raises(IndexError):
        case.O[:] = case.be.take(case.I, rows, axis=0)
    assert np.array_equal(case.O.get(), case.wanted)


def test_a_mask_with_a_wrong_probability_leaves_an_nhwc_target_unchanged(case: Case) -> None:
    with pytest.raises(ValueError, match="from 0 to 1 for keep, got 2"):
        case.be.make_binary_mask(case.O, 2.0)
    assert np.array_equal(case.O.get(), case.wanted)


def test_an_interrupted_call_leaves_the_previous_values(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise MemoryError

    case.O[:] = case.O * 2
    plan = case.be.plan(case.O * 2)
    with monkeypatch.context() as patch:
        patch.setattr(convolution.OneDNNConvolution, "_execute", interrupted)
        patch.setattr(plan, "run", interrupted)
        for spoil in (case.run, lambda: layout.run_in_layout(plan, [case.O], [case.O, 2])):
            with pytest.raises(MemoryError):
                spoil()
            assert case.is_nhwc_only
    assert np.array_equal(case.O.get(), 2 * case.wanted)


def test_exported_memory_loses_its_layout_cache(case: Case) -> None:
    for look in (np.asarray, np.from_dlpack, lambda t: t._array):
        case = Case(case.be)
        seen = look(case.O[2:])
        assert np.array_equal(seen, case.wanted[2:])
        case.O[:] = 0
        case.run()
        assert not case.is_nhwc_only
        assert np.array_equal(seen, case.wanted[2:])
        seen.flags.writeable and seen.__setitem__(0, 9)
        assert np.array_equal(case.O.get()[2:], seen)


def test_printing_or_copying_a_tensor_keeps_its_layout_cache(case: Case) -> None:
    text, twin, other = repr(case.O), copy.deepcopy(case.O), case.be.array(case.O)
    assert str(int(case.wanted[0, 0])) in text
    assert np.array_equal(twin.get(), case.wanted)
    assert np.array_equal(other.get(), case.wanted)
    case.run()
    assert case.is_nhwc_only


def test_the_layout_is_printed_where_it_is_not_chwn(case: Case) -> None:
    assert case.O.layout == "NHWC"
    assert repr(case.O).endswith("cpu, NHWC)")
    assert case.O.layout == "NHWC"  # printing reorders a copy
    assert np.array_equal(display_values(case.O), case.wanted)
    assert f"operand a tensor {case.O.shape} in NHWC" in repr(case.be.plan(case.O + case.I))
    case.O.get()
    assert case.O.layout == "CHWN"
    assert repr(case.O).endswith("cpu)")
    assert "operand" not in repr(case.be.plan(case.O + case.I))
    assert case.be.ones((2, 3)).T.layout == "columns"
    assert repr(case.be.ones((2, 3)).T).endswith("cpu, columns)")


def test_a_summary_shows_the_layout_of_outputs(cpu: Backend) -> None:
    NervanaObject.be = cpu
    cpu.bsz = N
    net = Sequential([Conv((3, 3, 4), Gaussian()), Pooling(2), Affine(2, Gaussian())]).configure((3, 9, 9))
    layouts = {row.class_name: row.layout for row in net.summary().rows}
    assert layouts == {"Sequential": "CHWN", "Convolution": "NHWC", "Pooling": "NHWC", "Linear": "CHWN"}
    assert "(4, 7, 7), layout NHWC" in str(net.summary())


def test_a_transpose_of_nhwc_images_has_their_values(cpu: Backend) -> None:
    x, y = Case(cpu, (2, 1, 1)), Case(cpu, (2, 1, 1))
    x.O.get()  # it is now valid in both layouts
    out = cpu.zeros((2, 2))
    out[:] = x.O.T * 2 + x.O + y.O
    assert np.array_equal(out.get(), x.wanted.T * 2 + x.wanted + y.wanted)


def test_ops_that_read_other_indices_run_in_chwn(cpu: Backend) -> None:
    case, out = Case(cpu, (2, 1, 1)), cpu.zeros((2, 2))
    for tree, wanted in (
        (cpu.dot(case.O, case.O), case.wanted @ case.wanted),
        ((case.O * 1).T + case.O, case.wanted.T + case.wanted),
        (case.O * cpu.array([[3.0]]) + case.I[:1, :1], case.wanted * 3 + case.wanted[0, 0]),
        (case.O - cpu.sum(case.O, axis=1), case.wanted - case.wanted.sum(axis=1, keepdims=True)),
    ):
        case.run()
        out[:] = tree
        assert np.array_equal(out.get(), wanted)
    wide, square = Case(cpu, (8, 1, 1)), cpu.zeros((4, 4))
    square[:] = cpu.dot(wide.O.reshape(4, 4), wide.O.reshape(4, 4))
    assert np.array_equal(square.get(), wide.wanted.reshape(4, 4) @ wide.wanted.reshape(4, 4))


def test_primitives_without_nhwc_support_read_and_write_chwn(cpu: Backend) -> None:
    case, over, found = Case(cpu), Case(cpu), []
    for be, I, O in ((cpu, case.O, over.O), (other := plain(), other.array(case.wanted), other.zeros((144, N)))):
        layer = be.lrn_layer("float32", N, C=4, H=6, W=6, J=3)
        found.append(be.fprop_lrn(layer, I, O, be.zeros((144, N))).get())
    near(*found)


def test_channel_sums_are_those_of_the_requested_channels(cpu: Backend) -> None:
    for dims, rows, layer in (
        ((4, 6, 6), 144, {"C": 16, "K": 16, "H": 3, "W": 3}),  # other channels
        ((8, 6, 3), 72, {"C": 8, "K": 8, "H": 3, "W": 3}),  # some of the pixels
    ):
        case, maps = Case(cpu, dims), layer["K"]
        conv, b = cpu.conv_layer("float32", N, **layer), cpu.zeros((maps, 1))
        cpu.update_conv(conv, cpu.ones((rows, N)), case.O[:rows], cpu.zeros((maps, maps)), grad_bias=b)
        near(b.get().ravel(), case.wanted[:rows].reshape(maps, -1).sum(axis=1))


def test_products_read_either_operand_in_chwn(case: Case) -> None:
    ones, out = case.be.ones((N, 5)), case.be.zeros((144, 5))
    assert np.array_equal(case.be.compound_dot(case.O, ones, out).get(), case.wanted @ ones.get())
    case.run()
    turned = case.be.zeros((5, N))
    assert np.array_equal(case.be.compound_dot(case.be.ones((5, 144)), case.O, turned).get()[0], case.wanted.sum(0))


def test_memory_of_other_libraries_has_no_layout_cache(cpu: Backend) -> None:
    theirs = np.zeros((144, N), np.float32)
    case = Case(cpu, outputs=cpu.from_dlpack(theirs))
    assert np.array_equal(theirs, case.wanted)


def test_tensors_can_be_read_after_the_backend_was_cleaned_up(case: Case) -> None:
    case.be.cleanup_backend()
    assert case.is_nhwc_only
    assert np.array_equal(case.O.get(), case.wanted)


def test_nhwc_buffers_are_tracked_and_freed_with_the_memory(cpu: Backend) -> None:
    case = Case(cpu, (16, 20, 20))
    cpu.memory()
    before, O = cpu.memory().workspaces, case.O
    size = O.nbytes
    case.O = cpu.zeros(O.shape)
    case.run()
    assert cpu.memory().workspaces == before + size + convolution.CACHE_LINE_BYTES
    for _ in range(3):
        case.run()
    assert cpu.memory().workspaces == before + size + convolution.CACHE_LINE_BYTES
    del O
    assert cpu.memory().workspaces == before


def test_existing_nhwc_buffers_are_reused(cpu: Backend) -> None:
    case = Case(cpu, (16, 20, 20))
    out, layer = cpu.zeros((16 * 20 * 20, N)), cpu.pool_layer("float32", "max", N, C=16, H=20, W=20, R=2, S=2)
    pooled, places, bias = cpu.zeros((1600, N)), cpu.zeros((1600, N), "uint8"), cpu.zeros((16, 1))
    dF = cpu.zeros((16, 16))

    def step() -> None:
        case.run()
        case.O[:] = cpu.maximum(case.O, 0)
        cpu.fprop_pool(layer, case.O, pooled, places)
        cpu.bprop_pool(layer, None, pooled, out, argmax=places)
        cpu.update_conv(case.layer, case.I, out, dF, grad_bias=bias)
        cpu.bprop_conv(case.layer, case.F, out, case.I)
        cpu.sum(case.O, axis=1)

    step()
    assert buffers(step) == []


def test_many_threads_may_read_nhwc_images(cpu: Backend) -> None:
    case, found = Case(cpu, (32, 30, 30)), []
    for _ in range(5):
        case.run()
        gate = threading.Barrier(4)

        def look(gate: threading.Barrier = gate) -> None:
            gate.wait()
            found.append(np.array_equal(case.O.get(), case.wanted))

        threads = [threading.Thread(target=look) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert found == [True] * 20


FORKED = """
import os, signal, threading
from neonlite import Backend
be = Backend("cpu")
layer = be.conv_layer("float32", 16, 16, 16, 1, 20, 20, 1, 3, 3)
x, f, y = be.ones(layer.dimI), be.ones(layer.dimF), be.empty(layer.dimO)
be.fprop_conv(layer, x, f, y)
held, forked = threading.Event(), threading.Event()
def hold_locks():
    with be.memory_tracker.lock, y.allocation.layout_cache.lock:
        held.set()
        forked.wait()
threading.Thread(target=hold_locks).start()
held.wait()
print(y.layout, flush=True)
if (child := os.fork()) == 0:
    signal.alarm(60)
    z = be.zeros((2, 2))
    os._exit(0 if (y.get() == 144).all() else 1)
forked.set()
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork does not exist on this platform")
def test_a_child_forked_while_another_thread_reorders_can_read_the_images() -> None:
    got = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, check=True)
    assert got.stdout.split() == ["NHWC", "0"]


def test_deltas_need_not_persist_and_are_not_reordered_when_their_memory_is_reused(
    cpu: Backend, reorders: list[bool]
) -> None:
    place = cpu.zeros((200, N), persist_values=False)
    case = Case(cpu, outputs=place.share((144, N)))
    part = place.share((50, N))
    part[:] = 3.0
    assert reorders == [False]  # the images that were read
    assert (part.get() == 3).all()
    case.run()
    other = place.reshape(-1, 1)[288:].reshape(56, N)
    other[:] = 4.0  # outside the images, which keep their values
    assert np.array_equal(case.O.get(), case.wanted)
    assert (other.get() == 4).all()


def test_nhwc_images_are_materialized_when_others_need_the_cache(cpu: Backend) -> None:
    place = cpu.zeros((300, N), persist_values=False)
    first = Case(cpu, outputs=place[:144])
    second = Case(cpu, outputs=place[150:294])
    assert second.is_nhwc_only
    assert np.array_equal(first.O.get(), first.wanted)
    assert np.array_equal(second.O.get(), second.wanted)


def test_operands_are_read_before_their_cache_is_reused(cpu: Backend) -> None:
    place = cpu.zeros((300, N))
    case, target = Case(cpu, outputs=place[:144]), place[150:294]
    other = Case(cpu)
    target[:] = cpu.minimum(other.O + 1, 1) * case.O
    assert np.array_equal(target.get(), np.minimum(other.wanted + 1, 1) * case.wanted)
    case.run()
    other.run()
    assert np.array_equal(case.O.get(), case.wanted)  # valid in both layouts, so the cache may be reused
    target[:] = cpu.minimum(other.O + 1, 1) * case.O
    assert np.array_equal(target.get(), np.minimum(other.wanted + 1, 1) * case.wanted)
    case.run()
    case.O[:], target = case.O * 2, place[1:145]
    target[:] = case.O + 1
    assert np.array_equal(target.get(), case.wanted * 2 + 1)
    other.run()
    convolution, mean = cpu.zeros((144, N)), cpu.zeros((1, 1))
    cpu.assign([convolution, mean], [other.O + 1, cpu.array([[2.0]]) * 2])  # of which one has another shape
    assert np.array_equal(convolution.get(), other.wanted + 1)
    assert mean.get() == 4
    other.run()
    place = cpu.zeros((300, N))
    cpu.assign([place[:144], place[150:294]], [other.O + 1, other.O + 2])
    assert np.array_equal(place.get()[:144], other.wanted + 1)
    assert np.array_equal(place.get()[150:294], other.wanted + 2)


def test_operands_are_reordered_to_nhwc_if_they_are_no_more_than_those_in_nhwc(
    case: Case, reorders: list[bool]
) -> None:
    be = case.be
    others = [be.ones((144, N)) for _ in range(3)]
    case.O[:] = case.O + others[0]
    assert reorders == [False]
    case.O[:] = case.O + others[0] + others[1]
    assert reorders == [False] * 2
    case.run()
    case.O[:] = case.O + others[2] + be.zeros((144, N))
    assert reorders == [False] * 2 + [True]
    assert np.array_equal(case.O.get(), case.wanted + 1)


@pytest.mark.parametrize("dtype", ["float16", "uint8", "int32", "float64"])
def test_operands_and_targets_of_any_dtype_are_cached_in_nhwc(case: Case, dtype: str) -> None:
    be, mask = case.be, np.random.default_rng(1).integers(0, 3, (144, N))
    out = be.zeros((144, N), dtype)
    out[:] = be.maximum(case.O, 0) * be.array(mask, dtype)
    assert np.array_equal(out.get(), np.maximum(case.wanted, 0) * mask)
    assert case.is_nhwc_only


def test_images_in_one_memory_do_not_discard_each_others_values(cpu: Backend) -> None:
    place, ones = cpu.zeros((300, N)), cpu.ones((36, 4))
    case, target = Case(cpu, outputs=place[:144]), place[150:294]
    layer = cpu.conv_layer("float32", N, **CONVOLUTIONS[0][2])
    wanted = cpu.fprop_conv(layer, case.I, ones, cpu.zeros((144, N))).get()
    cpu.fprop_conv(layer, case.O, ones, target)
    assert np.array_equal(target.get(), wanted)
    assert np.array_equal(case.O.get(), case.wanted)


def test_maxima_are_added_to_the_old_values(case: Case) -> None:
    layer = case.be.pool_layer("float32", "max", N, C=4, H=6, W=6, R=2, S=2)
    pooled = case.be.ones((36, N))
    case.be.fprop_pool(layer, case.O, pooled, case.be.zeros((36, N), "uint8"), beta=2.0)
    wanted = case.wanted.reshape(4, 3, 2, 3, 2, N).max(axis=(2, 4)).reshape(36, N) + 2
    assert np.array_equal(pooled.get(), wanted)


def test_writing_every_other_row_keeps_those_between(cpu: Backend) -> None:
    memory = cpu.zeros((160, N))
    case = Case(cpu, outputs=memory[4:148])
    memory[::2] = 5.0
    case.wanted[::2] = 5
    assert np.array_equal(case.O.get(), case.wanted)


def test_without_onednn_there_are_no_layout_caches(cpu: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "get_library", lambda: None)
    case = Case(cpu)
    assert not case.be.memory_tracker.has_layout_caches
    assert np.array_equal(case.O.get(), case.wanted)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int8", "int64"])
def test_argmax_stays_in_nhwc_in_any_dtype(cpu: Backend, dtype: str) -> None:
    case = Case(cpu)
    layer = cpu.pool_layer("float32", "max", N, C=4, H=6, W=6, R=3, S=2)
    pooled, places = cpu.zeros((4 * 2 * 3, N)), cpu.zeros((4 * 2 * 3, N), dtype)
    cpu.fprop_pool(layer, case.O, pooled, places)
    windows = case.wanted.reshape(4, 2, 3, 3, 2, N).transpose(0, 1, 3, 5, 2, 4).reshape(4, 2, 3, N, 6)
    assert np.array_equal(places.get().reshape(4, 2, 3, N), windows.argmax(-1))
    assert np.array_equal(pooled.get().reshape(4, 2, 3, N), windows.max(-1))
    back = cpu.zeros(case.O.shape)
    cpu.bprop_pool(layer, None, pooled, back, argmax=places)
    assert back.get().sum() == pooled.get().sum()


def test_maxima_of_nhwc_images_are_those_of_numpy_also_of_nan(cpu: Backend) -> None:
    case = Case(cpu)
    case.I[34::36] = np.nan  # a pixel, as 0 * NaN is NaN in its other channels
    case.run()
    layer = cpu.pool_layer("float32", "max", N, C=4, H=6, W=6, R=2, S=2)
    pooled, places = cpu.zeros((36, N)), cpu.zeros((36, N), "uint8")
    cpu.fprop_pool(layer, case.O, pooled, places)
    wanted = case.I.get().reshape(4, 3, 2, 3, 2, N).max(axis=(2, 4))
    assert np.array_equal(pooled.get(), wanted.reshape(36, N), equal_nan=True)
    assert np.isnan(wanted).any()


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int32", "int64"])
def test_a_reorder_is_a_transpose(cpu: Backend, dtype: str) -> None:
    for form in (
        layout.ImageShape(3, 12, 4),
        layout.ImageShape(16, 7, 3),
        layout.ImageShape(1, 5, 1),
        layout.ImageShape(2, 1, 9),
    ):
        numbers = np.random.default_rng(0).integers(0, 99, form).astype(dtype)
        nhwc, back = np.zeros(numbers.size, dtype), np.zeros_like(numbers)
        cpu.primitives.reorder(form, numbers, nhwc, False)
        assert np.array_equal(nhwc.reshape(form[::-1]), numbers.transpose())
        cpu.primitives.reorder(form, back, nhwc, True)
        assert np.array_equal(back, numbers)


@pytest.mark.parametrize("dims", [(1, 7, 5), (3, 1, 1), (16, 20, 20), (5, 13, 1), (5000, 1, 1)])
def test_channel_sums_in_nhwc_equal_those_in_chwn(cpu: Backend, dims: tuple[int, int, int]) -> None:
    case = Case(cpu, dims) if dims[0] < 1000 else None
    if case is None or not case.is_nhwc_only:  # too few or too many channels for this convolution
        rng = np.random.default_rng(0)
        nhwc = rng.standard_normal(math.prod(dims) * N).astype(np.float32)
        out = np.zeros(dims[0], np.float32)
        cpu.primitives.sum_channels(nhwc, out)
        near(out, nhwc.reshape(-1, dims[0]).sum(axis=0, dtype=float))
        return
    b = cpu.zeros((dims[0], 1))
    cpu.update_conv(case.layer, case.I, case.O, cpu.zeros((dims[0], dims[0])), grad_bias=b)
    assert case.is_nhwc_only
    near(b.get(), case.wanted.reshape(dims[0], -1).sum(axis=1, keepdims=True, dtype=float))


def test_writing_a_part_of_an_error_keeps_the_rest(cpu: Backend) -> None:
    cpu.bsz = 16
    net = Sequential([Conv((3, 3, 8), Gaussian(0, 0.1)) for _ in range(3)])
    net.configure((3, 16, 16))
    net.allocate()
    net.allocate_deltas()
    rng, last = np.random.default_rng(0), net.layers[-1]
    y = net.fprop(cpu.array(rng.normal(size=(768, 16))))
    earlier, error = (cpu.array(rng.normal(size=y.shape)) for _ in "ab")
    wanted = last.bprop(error).get()
    last.bprop(earlier).get()
    found = last.bprop(error)
    found[:100] = 0
    np.testing.assert_array_equal(found.get()[:100], 0)
    np.testing.assert_array_equal(found.get()[100:], wanted[100:])


@pytest.mark.parametrize(("pixels", "maps"), [(1_000_003, 2), (4_214_809, 1), (802_816, 3), (7, 5), (4096, 4096)])
def test_channel_sums_are_as_precise_as_float32(cpu: Backend, pixels: int, maps: int) -> None:
    nhwc = (np.random.default_rng(0).random((pixels, maps)) + 0.05).astype(np.float32)
    out = np.empty(maps, np.float32)
    cpu.primitives.sum_channels(nhwc.reshape(-1), out)
    np.testing.assert_allclose(out, nhwc.sum(axis=0, dtype=float), rtol=1e-6)


def test_channel_sums_do_not_depend_on_threads_and_warn_of_nothing(cpu: Backend) -> None:
    nhwc = np.random.default_rng(0).standard_normal((300_000, 5)).astype(np.float32)
    nhwc[[7, -7], 3], nhwc[11, 2], seen = (np.inf, -np.inf), np.nan, set()
    before = concurrency.get_num_threads()
    try:
        for n in (1, 2, 3):
            concurrency.set_threads(n)
            out = np.empty(5, np.float32)
            with IgnoreFPErrors():
                cpu.primitives.sum_channels(nhwc.reshape(-1), out)
            seen.add(out.tobytes())
    finally:
        concurrency.set_threads(before)
    assert len(seen) == 1
    np.testing.assert_allclose(out[[0, 1, 4]], nhwc[:, [0, 1, 4]].sum(axis=0, dtype=float), rtol=1e-4, atol=1e-3)
    assert np.isnan(out[[2, 3]]).all()


def test_op_trees_of_consecutive_convolutions_reorder_nothing_between_them(cpu: Backend, reorders: list[bool]) -> None:
    rng = np.random.default_rng(0)
    x, f, g = (
        cpu.empty((8, 12, 12, 16)),
        cpu.array(rng.normal(size=(8, 3, 3, 8))),
        cpu.array(rng.normal(size=(8, 3, 3, 4))),
    )
    h, r, p = cpu.empty((8, 12, 12, 16)), cpu.empty((8, 12, 12, 16)), cpu.empty((8 * 6 * 6, 16))
    y, dp, pooled = cpu.empty((4, 6, 6, 16)), cpu.empty(p.shape), p.reshape((8, 6, 6, 16))
    for _ in range(3):
        reorders.clear()
        x[:] = rng.normal(size=x.shape)
        h[:] = cpu.conv(x, f, padding=1)
        r[:] = cpu.maximum(h, 0)
        pooled[:] = cpu.pool(r, 2)
        y[:] = cpu.conv(cpu.reshape(p, (8, 6, 6, 16)), g, padding=1)
        (gradient,) = Autodiff(cpu.conv(cpu.reshape(p, pooled.shape), g, padding=1), cpu, y).get_grad_op_tree([p])
        dp[:] = gradient
        assert reorders == [False]  # the images
        assert {t.layout for t in (h, r, p, y, dp)} == {"NHWC"}
    one_plan = cpu.conv(cpu.pool(cpu.maximum(cpu.conv(x, f, padding=1), 0), 2), g, padding=1)
    np.testing.assert_allclose(y.get(), one_plan.get(), rtol=1e-4, atol=1e-4)
