"""Rows of memory-mapped files: which rows, their order by blocks, resuming, the part of each rank, and memory."""

from __future__ import annotations

import json
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from helpers.minibatches import bits, epoch, joined, rows
from helpers.runtimes import RUNTIMES

import neonlite as nl
from neonlite.backend.batch_size import Shard
from neonlite.data import ArrayIterator, Flip, MappedArray, minibatches
from neonlite.data.minibatches import Epoch


@pytest.fixture
def blocks(monkeypatch):
    """Let a window have 3 blocks of 32 bytes: 4 rows of two floats."""
    monkeypatch.setattr(minibatches, "WINDOW_BLOCKS", 3)
    monkeypatch.setattr(minibatches, "BLOCK_BYTES", 32)
    minibatches.shuffle_window.cache_clear()
    yield
    minibatches.shuffle_window.cache_clear()


def mapped(folder: Path, x: np.ndarray) -> np.ndarray:
    np.save(folder / "x.npy", x)
    return np.load(folder / "x.npy", mmap_mode="r")


def shards(folder: Path, x: np.ndarray, *starts: int) -> MappedArray:
    parts = np.split(x, starts)
    for i, part in enumerate(parts):
        np.save(folder / f"{i}.npy", part)
    return MappedArray([folder / f"{i}.npy" for i in range(len(parts))])


# --- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [slice(None), slice(2, 9), slice(1, 9, 3), np.array([8, 0, 3, 3, 9]), np.array([4])])
def test_rows_of_several_files_are_those_of_one_array(tmp_path, index):
    x = rows(10)
    files = shards(tmp_path, x, 3, 4)
    assert (len(files), files.shape, files.size, files.dtype) == (10, (10, 2), 20, np.float32)
    np.testing.assert_array_equal(files[index], x[index])
    np.testing.assert_array_equal(files.map(lambda part: part[:, ::-1] * 2)[index], x[index][:, ::-1] * 2)
    selected = np.array([9, 1, 2, 3, 4, 5, 6, 7, 0, 8])
    np.testing.assert_array_equal(files.select(selected)[index], x[selected][index])
    np.testing.assert_array_equal(np.asarray(files), x)


@pytest.mark.parametrize("others", [rows(3, 5), rows(3).astype(np.float64), rows(3).astype(str), rows(0)])
def test_files_of_another_shape_or_dtype_are_an_error(tmp_path, others):
    np.save(tmp_path / "a.npy", rows(4))
    np.save(tmp_path / "b.npy", others)
    with pytest.raises(ValueError, match="MappedArray: expected files with rows of numbers, of one shape and dtype"):
        MappedArray([tmp_path / "a.npy", tmp_path / "b.npy"])


def test_changes_of_an_array_that_copies_on_write_are_used(cpu, tmp_path):
    np.save(tmp_path / "x.npy", rows(4))
    x = np.load(tmp_path / "x.npy", mmap_mode="c")
    x[2] = 7
    cpu.bsz = 4
    assert next(iter(ArrayIterator(x)))[0].get()[:, 2].tolist() == [7, 7]


@pytest.mark.parametrize("augment", [None, Flip()])
@pytest.mark.parametrize("name", [name for name in ("cpu", "torch") if name in RUNTIMES])
def test_minibatches_of_small_files_have_the_bits_of_those_of_memory(tmp_path, name, augment):
    x = np.random.default_rng(0).integers(0, 255, (40, 3, 2, 2), np.uint8)
    results = []
    for X in (x, mapped(tmp_path, x), shards(tmp_path, x, 7, 30)):
        nl.gen_backend(name, rng_seed=3, batch_size=9)
        it = ArrayIterator(X, np.arange(40), nclass=40, scale=1 / 255, shuffle=True, augment=augment)
        results.append([bits(pair) for _ in range(2) for pair in it])
    assert results[0] == results[1] == results[2]


def test_inputs_and_targets_of_files_belong_together(cpu, tmp_path, blocks):
    cpu.bsz = 5
    x = rows(50)
    it = ArrayIterator([mapped(tmp_path, x), x], shards(tmp_path, x * 2, 20), make_onehot=False, shuffle=True)
    for (first, second), t in it:
        assert (first.get() == second.get()).all()
        assert (t.get() == 2 * first.get()).all()


def test_a_nan_of_a_file_is_named_by_its_row_when_it_is_read(cpu, tmp_path, blocks):
    cpu.bsz = 5
    x = rows(50)
    x[41, 1] = np.nan
    for shuffle in (False, True):
        it = ArrayIterator(mapped(tmp_path, x), shuffle=shuffle)
        with pytest.raises(ValueError, match="X: expected finite values, got nan in row 41, column 1"):
            list(it)
    list(ArrayIterator(mapped(tmp_path, x), check_finite=False))


# --- order -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [24, 25, 35, 36, 61, 100])
def test_each_row_comes_once_in_an_epoch_and_a_window_has_rows_of_few_blocks(cpu, tmp_path, blocks, n):
    cpu.bsz = 4
    it = ArrayIterator(mapped(tmp_path, rows(n)), shuffle=True, partial_last=True)
    orders = [joined(epoch(it)) for _ in range(6)]
    assert all(sorted(order) == list(range(n)) for order in orders)
    assert len({*map(tuple, orders)}) == 6
    for order in orders:
        for start in range(0, n // 12 * 12 - 12, 12):  # the last window has more rows
            window = np.sort(order[start : start + 12])
            breaks = np.count_nonzero(np.diff(window) > 1)
            assert breaks < 3  # three blocks
        assert n < 36 or (np.argsort(order[:12]) != np.argsort(order[12:24])).any()
    if n > 60:  # rows of distant blocks are mixed
        assert max(np.ptp(order[:4]) for order in orders) > 20


def test_the_order_depends_on_the_seed_and_continues_after_a_minibatch_of_two_epochs(cpu, tmp_path, blocks):
    def used(seed):
        nl.gen_backend("cpu", rng_seed=seed, batch_size=7)
        it = ArrayIterator(mapped(tmp_path, rows(50)), shuffle=True)
        return joined(joined(epoch(it) for _ in range(7)))

    assert used(1) == used(1) != used(2)
    assert (np.bincount(used(1)) == 7).all()


@pytest.mark.parametrize("options", [{}, {"partial_last": True}, {"augment": Flip()}], ids=str)
def test_training_data_in_files_resume_after_every_minibatch_with_the_same_bits(tmp_path, blocks, options):
    X = mapped(tmp_path, rows(30).reshape(30, 1, 1, 2))

    def create(seed):
        nl.gen_backend("cpu", rng_seed=seed, batch_size=7)
        return ArrayIterator(X, np.arange(30), nclass=30, shuffle=True, **options)

    it = create(3)
    whole, states = [], [it.get_state()]
    for _ in range(3):
        for pair in it:
            whole.append(bits(pair))
            states.append(it.get_state())
    for k, state in enumerate(states):
        other = create(99)
        other.set_state(json.loads(json.dumps(state)))
        assert [bits(pair) for _ in range(4) for pair in other][: len(whole) - k] == whole[k:]


def test_each_rank_reads_a_part_of_the_blocks_and_all_of_them_the_minibatches_of_one(blocks):
    """A minibatch has 64 rows of 3 blocks of 4,000 rows: its first 16 are about in the first quarter of these."""
    n, size, num_ranks = 40_000, 64, 4
    whole = Epoch(0, 0, n, size, False, 5, None, 4000)
    parts = [Epoch(0, 0, n, size, False, 5, Shard(16 * r, 16 * r + 16, size, None), 4000) for r in range(num_ranks)]
    for k in (0, 1, 186, 187, 188, 624):  # 187 has rows of two windows
        expected = np.concatenate([r for _, r in whole.spans(k)])
        np.testing.assert_array_equal(np.concatenate([r for part in parts for _, r in part.spans(k)]), expected)
    for part in parts:
        ahead = part.window_rows(0, 0)
        assert len(ahead) == 3000
        read = np.concatenate([part.spans(k)[0][1] for k in range(187)])
        assert np.isin(read, ahead).mean() > 0.75


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="sparse files, and /proc")
def test_a_file_of_100_gb_is_shuffled_in_little_memory(tmp_path):
    """The file is sparse. 200 minibatches have 160 MB of it."""

    def resident():
        lines = Path("/proc/self/status").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssFile"))) / 1e3

    nl.gen_backend("cpu", rng_seed=0, batch_size=8)
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.uint8, (1_000_000, 100_000))
    x[3] = 1
    it = ArrayIterator(x, np.zeros(1_000_000, int), nclass=2, scale=1 / 255, shuffle=True)
    largest, before = 0, resident()
    for k, _ in enumerate(it, 1):
        largest = max(largest, resident() - before)
        if k == 200:
            break
    assert largest < 40  # MB
    assert (tmp_path / "x.npy").stat().st_blocks < 1e5


# --- predict and evaluate ---


def peak(act):
    """Return the most memory, in MB, that NumPy has allocated at a time."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["encoded", "scaled", "scaled integers", "plain"])
@pytest.mark.parametrize("of_several", [False, True])
def test_predictions_and_metrics_of_files_are_those_of_arrays_in_little_memory(tmp_path, kind, of_several):
    """The file has 4 MB, or 16 MB of floats; a mask of all values, or their copy, would have at least 4 MB."""
    generator = np.random.default_rng(1)
    is_integer = kind in ("encoded", "scaled integers")
    x = generator.integers(0, 255, (8_000, 500), np.uint8)
    x = x if is_integer else np.float32(x / 255)
    y = generator.integers(0, 2, len(x))
    nl.gen_backend("cpu", rng_seed=3, batch_size=100)
    model = nl.Model([nl.layers.Affine(2, activation="softmax")])
    if kind == "encoded":
        model.fit(x[:1000], y[:1000], epochs=1, standardize=True, progress_bar=False)
    else:
        some = x[:1000] if kind == "plain" else generator.integers(0, 255, (1000, 500), np.uint8)
        data = ArrayIterator(some, y[:1000], nclass=2, scale=None if kind == "plain" else 1 / 255)
        model.fit(data, "cross_entropy", "sgd", 1)
    files = shards(tmp_path, x, 7, 3000) if of_several else mapped(tmp_path, x)
    predicted, evaluated = model.predict(x), model.evaluate(x, y)
    np.testing.assert_array_equal(model.predict(files), predicted)
    assert model.evaluate(files, y) == evaluated
    assert kind == "scaled integers" or peak(lambda: model.predict(x)) >= 4
    assert peak(lambda: model.predict(files)) < 2.5
    assert peak(lambda: model.evaluate(files, y)) < 2.5
    one = files[5] if not of_several else files[5:6][0]
    np.testing.assert_allclose(model.predict(one), predicted[5], rtol=1e-5)


def test_predict_names_the_row_of_a_file_with_nan_or_out_of_the_range_of_the_training_data(tmp_path):
    x = np.random.default_rng(0).integers(0, 255, (300, 4), np.uint8)
    nl.gen_backend("cpu", rng_seed=3, batch_size=100)
    model = nl.Model([nl.layers.Affine(2, activation="softmax")])
    model.fit(ArrayIterator(x, np.zeros(300, int), nclass=2, scale=1 / 255), "cross_entropy", "sgd", 1)
    floats = np.float32(x / 255)
    floats[251, 2] = np.nan
    with pytest.raises(ValueError, match="expected finite values, got NaN or infinity in row 251"):
        model.predict(mapped(tmp_path, floats))
    floats[251, 2] = 7.5
    with pytest.raises(ValueError, match=r"expected uint8 from 0 to 25., as in the training data, .* from 0\S* to 7.5"):
        model.predict(mapped(tmp_path, floats))


# --- fit -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["uint8 images", "floats"])
@pytest.mark.parametrize("validation_split", [0, 0.25])
def test_fit_on_files_is_that_on_arrays(tmp_path, kind, validation_split):
    generator = np.random.default_rng(1)
    x = (
        generator.integers(0, 255, (60, 5, 5, 3), np.uint8)
        if kind == "uint8 images"
        else generator.normal(5, 3, (60, 6))
    )
    y = np.array(["low", "high"])[(x.reshape(60, -1).mean(axis=1) > x.mean()).astype(int)]
    weights, predictions = [], []
    for X in (x, mapped(tmp_path, x), shards(tmp_path, x, 7, 30)):
        nl.gen_backend("cpu", rng_seed=3)
        model = nl.Model([nl.layers.Affine(2, activation="softmax")])
        model.fit(X, y, epochs=3, validation_split=validation_split, progress_bar=False)
        weights.append(next(iter(model.get_weights().values())))
        predictions.append(model.predict(X))
    for w, p in zip(weights, predictions, strict=True):
        np.testing.assert_allclose(w, weights[0], rtol=1e-6)
        np.testing.assert_allclose(p, predictions[0], rtol=1e-5)


def test_standardizing_reads_files_in_blocks(tmp_path, blocks):
    x = np.random.default_rng(1).normal(10, [1, 10], (101, 2))
    nl.gen_backend("cpu", rng_seed=3)
    model = nl.Model([nl.layers.Affine(1)])
    model.fit(mapped(tmp_path, x), x[:, 0], epochs=1, progress_bar=False)
    np.testing.assert_allclose(model.input_encoder.mean, x.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(model.input_encoder.deviation, x.std(axis=0), rtol=1e-10)
