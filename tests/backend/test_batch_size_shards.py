"""Shards: the columns that several processes compute are together the minibatch of one process, without MPI."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.minibatches import joined, prefetch_threads, textbook_order
from helpers.parametrize import each
from hypothesis import given, strategies as st

from neonlite import Backend
from neonlite.backend.batch_size import Shard, draw_samples, global_batch_size, use_shard
from neonlite.backend.runtimes.cuda.simulator import SimulatedGPU
from neonlite.data import (
    ArrayIterator,
    CopyTask,
    Crop,
    Flip,
    HDF5Iterator,
    HDF5IteratorAutoencoder,
    HDF5IteratorOneHot,
    PrioritySortTask,
    Reversal,
    Shift,
    Text,
    TextNMT,
    Ticker,
    TimeSeries,
)
from neonlite.data.minibatches import Epoch
from neonlite.initializers import Gaussian
from neonlite.layers import DataTransform, Dropout, MultiHeadAttention
from neonlite.transforms import ColorNoise

TOTAL = 5  # columns of a complete minibatch
SPLITS = [[5], [2, 3], [4, 1], [1, 3, 1], [2, 1, 1, 1], [1, 1, 1, 1, 1]]
EPOCHS = 3

RANDOM = np.random.default_rng(3)
FEATURES = RANDOM.normal(size=(13, 4)).astype(np.float32)
LABELS = RANDOM.integers(0, 3, 13)
IMAGES = RANDOM.integers(0, 255, (13, 3, 6, 5)).astype(np.uint8)
SERIES = RANDOM.normal(size=(64, 2)).astype(np.float32)
LETTERS = "".join("abcdef "[i] for i in RANDOM.integers(0, 7, 96))


def shards(sizes):
    stops = list(itertools.accumulate(sizes))
    return [Shard(stop - size, stop, sum(sizes), None) for size, stop in zip(sizes, stops, strict=True)]


def tensors(minibatch):
    """Return the tensors of a minibatch, whose inputs and targets may be nested lists."""
    return [t for part in minibatch for t in tensors(part)] if isinstance(minibatch, list | tuple) else [minibatch]


def epochs_of(it, sizes, steps):
    """Return epochs of minibatches of arrays (F, T, n), and the state after each minibatch. ``steps``: T by tensor."""
    result = []
    for _ in range(EPOCHS):
        result.append([])
        for minibatch in it:
            arrays = []
            for tensor, T in zip(tensors(minibatch), steps, strict=True):
                features, columns = tensor.shape
                assert columns % T == 0
                arrays.append(tensor.get().reshape(features, T, columns // T))
            result[-1].append((arrays, it.get_state(), it.be.minibatch_shard))
    return result


def check_shards(be, make: Callable[[], Any], sizes, steps) -> None:
    """Assert that the columns of all shards, in their order, are those of one process, and that all are in step."""
    be.bsz = TOTAL
    expected = epochs_of(make(), [TOTAL], steps)
    parts = []
    for shard in shards(sizes):
        be.bsz = shard.stop - shard.start
        with use_shard(be, shard):
            parts.append(epochs_of(make(), sizes, steps))
        assert be.shard is None
        assert be.minibatch_shard is None
    assert all([len(epoch) for epoch in part] == [len(epoch) for epoch in expected] for part in parts)
    for e, k in ((e, k) for e, epoch in enumerate(expected) for k in range(len(epoch))):
        whole, state, _ = expected[e][k]
        width = whole[0].shape[2]
        for i, array in enumerate(whole):
            pieces = [part[e][k][0][i] for part in parts]
            np.testing.assert_array_equal(np.concatenate(pieces, axis=2), array)
            assert {piece.dtype for piece in pieces} == {array.dtype}
        assert all(part[e][k][1] == state for part in parts)
        position = 0
        for part in parts:
            arrays, _, minibatch_shard = part[e][k]
            assert minibatch_shard[:3] == (position, position + arrays[0].shape[2], width)
            position = minibatch_shard.stop
        assert position == width


ARRAYS = {
    "in order": {},
    "shuffled": {"shuffle": True},
    "with a partial last minibatch": {"partial_last": True},
    "shuffled, with a partial last minibatch": {"shuffle": True, "partial_last": True},
    "scaled": {"scale": (0.5, -1.0)},
    "with weights": {"sample_weight": np.arange(13) / 4, "shuffle": True, "partial_last": True},
}


@each("sizes, name", itertools.product(SPLITS, ARRAYS))
def test_shards_of_arrays_are_the_minibatch_of_one_process(be, name, sizes):
    steps = [1, 1, 1] if "weights" in name else [1, 1]
    check_shards(be, lambda: ArrayIterator(FEATURES, LABELS, nclass=3, **ARRAYS[name]), sizes, steps)


@pytest.mark.parametrize("sizes", SPLITS, ids=str)
@pytest.mark.parametrize("rows", [11, 12, 13, 14, 4])
def test_a_partial_last_minibatch_may_have_fewer_columns_than_shards(be, rows, sizes):
    X = np.arange(2.0 * rows).reshape(rows, 2)
    check_shards(be, lambda: ArrayIterator(X, partial_last=True, shuffle=True), sizes, [1, 1])


@pytest.mark.parametrize("sizes", SPLITS, ids=str)
@pytest.mark.parametrize("partial_last", [False, True])
@pytest.mark.parametrize("rows", [11, 13])
def test_shards_of_augmented_images_are_the_minibatch_of_one_process(be, rows, partial_last, sizes):
    options = {"augment": [Flip(), Crop(pad=1), Shift(1)], "scale": 1 / 255, "partial_last": partial_last}
    images, labels = IMAGES[:rows], LABELS[:rows]
    check_shards(be, lambda: ArrayIterator(images, labels, nclass=3, shuffle=True, **options), sizes, [1, 1])
    assert not prefetch_threads()


@pytest.mark.parametrize("sizes", SPLITS, ids=str)
def test_shards_of_several_inputs_and_targets_with_time_steps_are_the_minibatch_of_one_process(be, sizes):
    sequences, targets = RANDOM.normal(size=(13, 6)), RANDOM.normal(size=(13, 2, 3)).astype(np.float32)
    several = [FEATURES, sequences]

    def make():
        return ArrayIterator(several, targets, lshape=[4, (2, 3)], make_onehot=False, shuffle=True, partial_last=True)

    check_shards(be, make, sizes, [1, 3, 3])


@pytest.mark.parametrize("sizes", SPLITS, ids=str)
@pytest.mark.parametrize("kind", [HDF5Iterator, HDF5IteratorOneHot, HDF5IteratorAutoencoder])
def test_shards_of_an_hdf5_file_are_the_minibatch_of_one_process(be, tmp_path, kind, sizes):
    h5py = pytest.importorskip("h5py", reason='HDF5 files need h5py: pip install "neonlite[hdf5]"')
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["input"], file["mean"], file["output"] = IMAGES.reshape(13, -1), np.ones(3), LABELS
        file["input"].attrs["lshape"] = (3, 6, 5)
        file["output"].attrs["nclass"] = 3
    check_shards(be, lambda: kind(tmp_path / "data.h5"), sizes, [1, 1])
    assert not prefetch_threads()


@pytest.mark.parametrize("sizes", SPLITS, ids=str)
def test_shards_of_a_time_series_are_the_minibatch_of_one_process(be, sizes):
    check_shards(be, lambda: TimeSeries(SERIES, 3), sizes, [3, 3])
    check_shards(be, lambda: TimeSeries(SERIES, 4, forward=2), sizes, [4, 4])
    for shuffle in (False, True):
        check_shards(be, lambda s=shuffle: TimeSeries(SERIES[:22], 3, 2, False, s), sizes, [3, 1])


@pytest.mark.parametrize("sizes", SPLITS, ids=str)
def test_shards_of_a_text_are_the_minibatch_of_one_process(be, sizes):
    check_shards(be, lambda: Text(4, text=LETTERS), sizes, [4, 4])
    check_shards(be, lambda: Text(4, text=LETTERS, onehot_input=False, reverse_target=True), sizes, [4, 4])
    check_shards(be, lambda: Text(4, text=LETTERS, get_prev_target=True), sizes, [4, 4, 4])


@pytest.mark.parametrize("sizes", SPLITS, ids=str)
@pytest.mark.parametrize("onehot", [False, True])
def test_shards_of_translations_are_the_minibatch_of_one_process(be, tmp_path, onehot, sizes):
    words = ["one", "two", "three", "four"]
    lines = [" ".join(words[i] for i in RANDOM.integers(0, 4, RANDOM.integers(1, 4))) for _ in range(24)]
    paths = [tmp_path / "a", tmp_path / "b"]
    for path, part in zip(paths, (lines[:12], lines[12:]), strict=True):
        path.write_text("\n".join(part) + "\n")
    for shuffle, partial_last in itertools.product([False, True], repeat=2):
        options = {"shuffle": shuffle, "partial_last": partial_last, "onehot_input": onehot, "get_prev_target": True}
        check_shards(be, lambda o=options: TextNMT(4, paths, **o), sizes, [4, 4, 4, 4])


@pytest.mark.parametrize("sizes", SPLITS, ids=str)
def test_shards_of_generated_rows_are_the_minibatch_of_one_process(be, sizes):
    for task in (CopyTask(3, 2), PrioritySortTask(3, 2)):
        check_shards(be, lambda t=task: Ticker(t, ndata=13, seed=5), sizes, [task.time_steps] * 3)
    check_shards(be, lambda: Reversal(3, vocab=4, ndata=13), sizes, [3, 3, 3])
    check_shards(be, lambda: Reversal(3, ndata=13, onehot_input=False, get_prev_target=False), sizes, [3, 3])


@pytest.mark.parametrize("sizes", SPLITS, ids=str)
def test_a_position_of_one_process_is_restored_on_shards(cpu, sizes):
    def make():
        return ArrayIterator(FEATURES, LABELS, nclass=3, shuffle=True)

    cpu.bsz = TOTAL
    it = make()
    list(it)
    for _ in it:
        break
    state, nbatches = it.get_state(), it.nbatches
    rest = [x.get() for x, _ in it][1:]
    parts = []
    for shard in shards(sizes):
        cpu.bsz = shard.stop - shard.start
        with use_shard(cpu, shard):
            sharded = make()
            sharded.set_state(state)
            assert sharded.nbatches == nbatches
            parts.append([x.get() for x, _ in sharded])
    np.testing.assert_array_equal(np.concatenate(parts, axis=2), rest)


def test_the_shard_is_that_of_its_block_and_its_thread_only(cpu):
    cpu.bsz = 2
    seen = []
    outer, inner = Shard(0, 2, 4, None), Shard(2, 4, 6, None)
    with use_shard(cpu, outer):
        thread = threading.Thread(target=lambda: seen.append(cpu.shard))
        thread.start()
        thread.join()
        with contextlib.suppress(ZeroDivisionError), use_shard(cpu, inner):
            assert cpu.shard == cpu.minibatch_shard == inner
            raise ZeroDivisionError
        assert cpu.shard == cpu.minibatch_shard == outer
    assert cpu.shard is cpu.minibatch_shard is None
    assert seen == [None]


# --- random masks and noise ----------------------------------------------------------------------------------------


def check_random_columns(be, sizes, steps, run, tolerance=0.0) -> None:
    """Assert that the results of all shards, (F, T, n) each, are those of one process, several times in a row.

    ``run(n)`` returns a function of the columns, as slice, that returns an array (F, T n) of n columns.
    """
    start = be.rng_get_state()

    def results(n, columns):
        be.rng_set_state(start)
        be.bsz = n
        once = run(n)
        arrays = [once(columns) for _ in range(3)]
        return [x.reshape(len(x), steps, n) for x in arrays], be.rng_get_state()

    whole, end = results(TOTAL, slice(0, TOTAL))
    parts = []
    for shard in shards(sizes):
        with use_shard(be, shard):
            part, state = results(shard.stop - shard.start, slice(shard.start, shard.stop))
        assert state == end  # so that later random numbers are the same on all processes, too
        parts.append(part)
    for i, expected in enumerate(whole):
        whole_again = np.concatenate([part[i] for part in parts], axis=2)
        np.testing.assert_allclose(whole_again, expected, rtol=tolerance, atol=tolerance)
    assert any((x != whole[0]).any() for x in whole[1:])


def ready(layer, shape):
    layer.configure(shape)
    layer.allocate()
    return layer


@pytest.mark.parametrize("sizes", SPLITS, ids=str)
@pytest.mark.parametrize("shape", [7, (3, 4), (2, 3, 4)], ids=str)
def test_dropout_masks_of_shards_are_the_mask_of_one_process(be, shape, sizes):
    steps = shape[1] if np.size(shape) == 2 else 1

    def run(n):
        layer = ready(Dropout(0.5), shape)
        ones = be.ones((int(np.prod(shape)) // steps, steps * n))

        def once(columns):
            return layer.fprop(be.ones(ones.shape)).get()

        return once

    check_random_columns(be, sizes, steps, run)


@pytest.mark.parametrize("sizes", SPLITS, ids=str)
def test_attention_dropout_of_shards_is_that_of_one_process(be, sizes):
    F, T = 4, 3

    def run(n):
        layer = ready(MultiHeadAttention(2, Gaussian(), dropout=0.5), (F, T))
        x = be.ones((F, T * n))

        def once(columns):
            return layer.fprop(x).get()

        return once

    check_random_columns(be, sizes, T, run, 1e-5)


NOISES = {
    "colors": {"noise_level": 0.5},
    "brightness": {"noise_level": 0, "brightness": 0.3},
    "contrast": {"noise_level": 0, "contrast": 0.3},
    "all": {"noise_level": 0.5, "brightness": 0.3, "contrast": 0.2},
}


@pytest.mark.parametrize("sizes", SPLITS, ids=str)
@pytest.mark.parametrize("kind", NOISES)
def test_color_noise_of_shards_is_that_of_one_process(be, kind, sizes):
    images = np.random.default_rng(0).random((3 * 4, TOTAL))

    def run(n):
        layer = ready(DataTransform(ColorNoise(**NOISES[kind])), (3, 2, 2))
        return lambda columns: layer.fprop(be.array(images[:, columns])).get()

    check_random_columns(be, sizes, 1, run, 1e-6)  # the mean of an image is rounded differently


@pytest.mark.parametrize("layer", [DataTransform(ColorNoise()), Dropout()], ids=lambda layer: layer.classnm)
def test_a_partial_minibatch_with_equally_many_columns_has_other_random_numbers(cpu, layer):
    """Rank 1 of 3 + 3 columns computes columns 2 to 4 of a partial minibatch of 5."""
    cpu.bsz = 5
    start = cpu.rng_get_state()
    ones = np.ones((3 * 4, 5))
    expected = ready(layer, (3, 2, 2)).fprop(cpu.array(ones)).get()
    shard = Shard(3, 6, 6, None)
    assert shard.of(5)[:3] == (2, 5, 5)
    cpu.bsz = 3
    x = cpu.zeros((3 * 4, 3))
    ready(layer, (3, 2, 2))
    for current in (shard, shard.of(5)):
        with use_shard(cpu, current):
            cpu.rng_set_state(start)
            x[:] = 1
            y = layer.fprop(x).get()
    np.testing.assert_allclose(y, expected[:, 2:], rtol=1e-6)


# --- rows of a shard -------------------------------------------------------------------------------------------------


@st.composite
def epochs(draw):
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    partial_last = draw(st.booleans())
    ndata = draw(st.integers(1 if partial_last else sum(sizes), 40))
    start = 0 if partial_last else draw(st.integers(0, min(ndata, sum(sizes)) - 1))
    seed = draw(st.none() | st.integers(0, 2**64 - 1))
    return sizes, partial_last, ndata, start, seed, draw(st.integers(0, 3))


@given(epochs())
def test_spans_of_all_shards_are_the_rows_of_the_epoch_in_order(case):
    sizes, partial_last, ndata, start, seed, index = case

    def order(epoch):
        return list(range(ndata)) if seed is None else textbook_order(seed, epoch, ndata)

    def epoch_of(shard):
        return Epoch(index, start, ndata, sum(sizes), partial_last, seed, shard)

    remaining = order(index)[start:]
    for k in range(epoch_of(None).nbatches):
        expected = remaining[k * sum(sizes) : (k + 1) * sum(sizes)]
        if not partial_last and len(expected) < sum(sizes):
            expected += order(index + 1)[: sum(sizes) - len(expected)]
        assert rows_of(epoch_of(None), k) == expected
        assert joined([rows_of(epoch_of(shard), k) for shard in shards(sizes)]) == expected
        bits = [epoch_of(shard).random_bits(0, k, 1) for shard in shards(sizes)]
        np.testing.assert_array_equal(np.concatenate(bits), epoch_of(None).random_bits(0, k, 1))


def rows_of(epoch, k):
    """Return the row of each column of minibatch k, from its spans, which must cover each column once, in order."""
    rows = []
    for columns, indices in epoch.spans(k):
        part = list(range(indices.start, indices.stop)) if isinstance(indices, slice) else indices.tolist()
        assert (columns.start, columns.stop, columns.step) == (len(rows), len(rows) + len(part), None)
        assert part
        rows += part
    assert len(rows) == epoch.num_columns(k)
    return rows


# --- CUDA graphs -----------------------------------------------------------------------------------------------------


def test_a_graph_is_not_replayed_for_other_columns_of_a_minibatch():
    """Rank 1 of 3 + 3 columns has 3 columns of a complete minibatch, and of one of 5: at another index."""
    be = Backend(SimulatedGPU(), rng_seed=1, batch_size=3)
    shard, mask = Shard(3, 6, 6, None), be.zeros((1, 3))
    total = be.zeros((1, 1))

    def step():
        mask[:] = draw_samples(be, lambda n: be.random_mask((1, n), keep=0.5), 3)
        total[:] = total + 1 / global_batch_size(be)

    expected = 0.0
    for current in [shard] * 5 + [shard.of(5)] * 5 + [shard]:
        state = be.rng_get_state()
        with use_shard(be, current):
            be.replay("step", step, [mask, total])
        drawn, after = mask.get(), be.rng_get_state()
        be.rng_set_state(state)
        whole = be.zeros((1, current.total))
        be.make_binary_mask(whole, 0.5)
        np.testing.assert_array_equal(drawn, whole.get()[:, current.start : current.stop])
        assert be.rng_get_state() == after
        expected += 1 / current.total
        assert total.get().item() == pytest.approx(expected, rel=1e-6)
