"""HDF5 iterators give the minibatches of arrays, resume, and report errors."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from helpers.minibatches import bits, delay_filling, indices, prefetch_threads, rows

from neonlite.data import ArrayIterator, HDF5Iterator, HDF5IteratorAutoencoder, HDF5IteratorOneHot

# --- HDF5 ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def h5(tmp_path):
    h5py = pytest.importorskip("h5py", reason='HDF5 files need h5py: pip install "neonlite[hdf5]"')

    def write(input=None, output=None, mean=None, lshape=None, nclass=None):
        path = tmp_path / "data.h5"
        with h5py.File(path, "w") as file:
            for key, values in (("input", input), ("output", output), ("mean", mean)):
                if values is not None:
                    file[key] = values
            if lshape is not None:
                file["input"].attrs["lshape"] = lshape
            if nclass is not None:
                file["output"].attrs["nclass"] = nclass
        return path

    return write


def test_an_hdf5_file_gives_what_arrays_give(be, h5, rng):
    be.bsz = 4
    X = rng.integers(0, 255, (10, 12), dtype=np.uint8)
    labels, numbers = np.arange(10)[:, None] % 3, rng.random((10, 5)).astype("float32")
    for output, make, array in [
        (labels, HDF5IteratorOneHot, ArrayIterator(X, labels, nclass=3)),
        (labels[:, 0], HDF5IteratorOneHot, ArrayIterator(X, labels, nclass=3)),
        (numbers, HDF5Iterator, ArrayIterator(X, numbers, make_onehot=False)),
        (labels, HDF5Iterator, ArrayIterator(X, labels, make_onehot=False)),
        (None, HDF5IteratorAutoencoder, ArrayIterator(X)),
    ]:
        it = make(h5(X, output, lshape=(3, 2, 2), nclass=None if output is None else 3))
        assert (it.ndata, it.shape, it.nclass) == (10, (3, 2, 2), None if output is None else 3)
        for _ in range(3):
            assert (it.nbatches, it.start) == (array.nbatches, array.start)
            assert [bits(pair) for pair in it] == [bits(pair) for pair in array]
            assert not prefetch_threads()
    x, t = next(iter(it))
    assert t is x


def test_the_mean_is_of_features_or_of_channels(cpu, h5, rng):
    cpu.bsz = 3
    X, features, channels = rng.random((3, 12)), rng.random(12), rng.random(3)
    each = np.array([channels[f // 4] for f in range(12)])
    for arrays, taken, lshape in [
        (features, features, (3, 2, 2)),
        (features.reshape(3, 2, 2), features, (3, 2, 2)),
        (features, features, 12),
        (channels, each, (3, 2, 2)),
        (channels[:, None], each, [3, 2, 2]),
    ]:
        ((x, _),) = HDF5IteratorAutoencoder(h5(X, mean=arrays, lshape=lshape))
        np.testing.assert_allclose(x.get(), (X - taken).T, rtol=0, atol=1e-6)


def test_an_hdf5_loop_resumes_after_every_minibatch_and_closes_its_file(cpu, h5):
    h5py = pytest.importorskip("h5py")
    cpu.bsz = 4
    path = h5(rows(10), rows(10, 1))
    it, whole, states = HDF5Iterator(path), [], []
    states.append(it.get_state())
    for _ in range(3):
        for pair in it:
            whole.append(bits(pair))
            states.append(it.get_state())
    for k, state in enumerate(states):
        other = HDF5Iterator(path)
        other.set_state(state)
        assert [bits(pair) for _ in range(4) for pair in other][: len(whole) - k] == whole[k:]
    for _ in it:
        break
    h5py.File(path, "w").close()  # refused as long as it is open
    assert not prefetch_threads()


def test_prefetched_rows_of_an_hdf5_file_last_until_they_are_used(cpu, h5, monkeypatch):
    delay_filling(monkeypatch)
    cpu.bsz = 2
    for x, t in HDF5Iterator(h5(rows(10), rows(10))):
        assert indices(x) == indices(t)


def test_images_of_an_hdf5_file_need_no_lshape(cpu, h5):
    cpu.bsz = 2
    assert HDF5IteratorAutoencoder(h5(np.zeros((4, 3, 2, 2)))).shape == (3, 2, 2)
    assert HDF5IteratorAutoencoder(h5(np.zeros((4, 3)))).shape == 3


def test_invalid_hdf5_files_are_rejected(cpu, h5, tmp_path, monkeypatch):
    cpu.bsz = 4
    X, labels = rows(6), np.arange(6) % 3
    for make, words in [
        (lambda: HDF5Iterator(h5(X)), r"expected 'input' \(n, F\) and 'output' .* got 'input' \(6, 2\)"),
        (lambda: HDF5Iterator(h5(None, X)), "expected 'input'"),
        (lambda: HDF5IteratorAutoencoder(h5()), "got nothing"),
        (lambda: HDF5IteratorAutoencoder(h5(np.zeros((0, 3)))), "at least one row"),
        (lambda: HDF5IteratorAutoencoder(h5(X[:3])), "batch size of at most 3"),
        (lambda: HDF5Iterator(h5(X, X[:5])), "'input' has 6, 'output' has 5"),
        (lambda: HDF5Iterator(h5(X, X, lshape=(1, 2, 2))), "a shape of 2 features"),
        (lambda: HDF5Iterator(h5(X, X, mean=np.zeros(3))), r"2 features or 2 channels, got \(3,\)"),
        (lambda: HDF5IteratorOneHot(h5(X, labels)), "nclass=None"),
        (lambda: HDF5IteratorOneHot(h5(X, labels * 1.0, nclass=3)), "float64, nclass=3. Use HDF5Iterator"),
        (lambda: HDF5IteratorOneHot(h5(X, np.eye(3, dtype=int)[labels], nclass=3)), r"\(6, 3\)"),
        (lambda: list(HDF5IteratorOneHot(h5(X, labels, nclass=2))), "as nclass=2, got 2 in row 2"),
        (lambda: list(HDF5Iterator(h5(X, X * np.nan))), "'output': expected finite values, got nan in row 0, column 0"),
    ]:
        with pytest.raises(ValueError, match=words):
            make()
    (tmp_path / "not.h5").write_bytes(b"not HDF5")
    with pytest.raises(OSError, match=r"not.h5: expected an HDF5 file: "):
        HDF5Iterator(tmp_path / "not.h5")
    with pytest.raises(FileNotFoundError, match=r"gone.h5"):
        HDF5Iterator(tmp_path / "gone.h5")
    gc.collect()
    assert not prefetch_threads()


def damaged(path, dataset):
    """Write over the stored numbers of a data set, which are compressed."""
    import h5py

    with h5py.File(path, "a") as file:
        values, attributes = file[dataset][()], dict(file[dataset].attrs)
        del file[dataset]
        file.create_dataset(dataset, data=values, chunks=values.shape, compression="gzip").attrs.update(attributes)
    with h5py.File(path) as file:
        chunk = file[dataset].id.get_chunk_info(0)
    whole = bytearray(path.read_bytes())
    whole[chunk.byte_offset : chunk.byte_offset + chunk.size] = b"\xff" * chunk.size
    path.write_bytes(whole)


@pytest.mark.parametrize("dataset", ["input", "output", "mean"])
def test_an_error_of_h5py_becomes_one_that_names_the_file(cpu, h5, dataset):
    cpu.bsz = 2
    path = h5(rows(6), np.arange(6) % 3, mean=np.zeros(2), nclass=3)
    damaged(path, dataset)
    with pytest.raises(ValueError, match=r"data.h5: expected readable data, the file may be damaged: "):
        list(HDF5IteratorOneHot(path))
    assert not prefetch_threads()


@pytest.mark.parametrize("kind", [b"text", np.zeros(6, [("a", int)]), 1j * np.ones((6, 2))])
@pytest.mark.parametrize("dataset", ["input", "output", "mean"])
def test_non_numeric_data_of_an_hdf5_file_is_rejected(cpu, h5, dataset, kind):
    cpu.bsz = 2
    arrays = {"input": rows(6), "output": np.arange(6) % 3, dataset: kind}
    with pytest.raises(ValueError, match=rf"data.h5: expected ('{dataset}' to be real numbers, got|'input')"):
        HDF5Iterator(h5(**arrays))


@pytest.mark.parametrize(
    ("attribute", "value"), [("nclass", "three"), ("nclass", [1, 2]), ("lshape", "2"), ("lshape", -2)]
)
def test_invalid_attributes_of_an_hdf5_file_are_rejected(cpu, h5, attribute, value):
    cpu.bsz = 2
    with pytest.raises(ValueError, match=r"data.h5"):
        HDF5IteratorOneHot(h5(rows(6), np.arange(6) % 3, **{"nclass": 3, attribute: value}))


def test_the_size_of_a_mean_is_checked_before_it_is_read(cpu, h5):
    import h5py

    path = h5(rows(6), np.arange(6) % 3)
    with h5py.File(path, "a") as file:
        file.create_dataset("mean", (10**12,), "f4", chunks=(1024,))  # nothing is stored
    with pytest.raises(
        ValueError, match=r"'mean' to have a value for each of 2 features or 2 channels, got \(1000000000000,"
    ):
        HDF5Iterator(path)


@pytest.mark.parametrize("key", ["input", "output", "mean"])
def test_nonfinite_values_of_an_hdf5_file_are_named_by_row_and_column(cpu, h5, key):
    cpu.bsz = 2
    values = {"input": np.ones((5, 3)), "output": np.ones((5, 2)), "mean": np.ones(3)}
    position = {"input": (4, 2), "output": (3, 1), "mean": (1,)}[key]
    values[key][position] = np.inf
    path = h5(values["input"], values["output"], mean=values["mean"])
    row, column = (*position, 0)[:2]
    at = f"got inf in row {row}, column {column}"
    with pytest.raises(ValueError, match=rf"data.h5: '{key}': expected finite values, {at}. .*check_finite=False"):
        list(HDF5Iterator(path))
    seen = [pair[key == "output"].get() for pair in HDF5Iterator(path, check_finite=False) for _ in pair]
    assert any(np.isinf(x).any() for x in seen)
    with pytest.raises(ValueError, match=r"data.h5: expected integer labels .*, got 7 in row 4"):
        list(HDF5IteratorOneHot(h5(np.ones((5, 3)), np.array([0, 1, 2, 0, 7]), nclass=3)))


def test_without_h5py_the_error_has_the_pip_line(cpu, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(ImportError, match=r'pip install "neonlite\[hdf5\]"'):
        HDF5Iterator("data.h5")
