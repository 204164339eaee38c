"""Files of data sets: idx, tar, gzip and tables; damaged ones, and those that decompress to too much."""

from __future__ import annotations

import gzip
import tarfile
import tracemalloc

import numpy as np
import pytest
from helpers.dataset_files import MNIST_FILES, PARTS, idx, write_cifar, write_images

from neonlite.data import cifar10, digits, mnist
from neonlite.data.file_formats import read_csv, read_idx, read_tar
from neonlite.data.text import read_text

pytestmark = pytest.mark.usefixtures("no_local_data")


# --- CIFAR-10 ------------------------------------------------------------------------------------------------------


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


def test_invalid_files_of_cifar_are_named(tmp_path):
    write_cifar(tmp_path)
    archive, plain = tmp_path / "cifar-10-binary.tar.gz", tmp_path / "plain"
    data = (plain / "data_batch_2.bin").read_bytes()
    (plain / "data_batch_2.bin").write_bytes(data[:-1])
    with pytest.raises(ValueError, match=r"data_batch_2.bin: expected a multiple of 3073 bytes, got 9218"):
        cifar10(plain)
    (plain / "data_batch_2.bin").write_bytes(b"\x0a" + data[1:])
    with pytest.raises(ValueError, match=r"data_batch_2.bin: expected labels from 0 to 9, got . to 10"):
        cifar10(plain)
    (plain / "data_batch_2.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no data_batch_2.bin$"):
        cifar10(plain)
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"cifar-10-binary.tar.gz: expected a complete .tar.gz file"):
        cifar10(archive)
    with tarfile.open(archive, "w:gz") as other:
        other.add(plain / "data_batch_1.bin", "cifar-10-batches-py/data_batch_1")  # the pickled version
    with pytest.raises(ValueError, match=r"expected data_batch_1.bin, .* in the archive, got data_batch_1.$"):
        cifar10(archive)


# --- damaged files -------------------------------------------------------------------------------------------------


def test_an_idx_file_of_any_dtype_is_read(tmp_path):
    array = np.arange(-3, 3, dtype=np.int32).reshape(2, 3) * 1000
    (tmp_path / "x").write_bytes(idx(array))
    result = read_idx(tmp_path / "x", 2)
    assert result.dtype == np.int32
    np.testing.assert_array_equal(result, array)


def damaged():
    whole = idx(np.zeros((4, 2, 2), np.uint8))
    yield "cut short", whole[:-1], r"expected 32 bytes, as the header \(4, 2, 2\) declares, got 31. The file is damaged"
    yield "too long", whole + b"\0", "expected 32 bytes, .* got 33"
    yield "no sizes", whole[:9], "got 9. The file is damaged"
    yield "empty", b"", "got nothing"
    yield "of labels", idx(np.zeros(4, np.uint8)), "expected an idx file of 3 dimensions, .* got 00 00 08 01"
    yield "a page of the web", b"<!DOCTYPE html>", "got 3c 21 44 4f"
    yield "of an unknown type", b"\0\0\x07" + whole[3:], "got 00 00 07 03"


@pytest.mark.parametrize(("case", "data", "words"), list(damaged()), ids=lambda x: x if isinstance(x, str) else "")
def test_a_damaged_or_unrelated_idx_file_is_named(tmp_path, case, data, words):
    for compressed in (False, True):
        write_images(tmp_path)
        path = tmp_path / (MNIST_FILES[0] + ".gz" * compressed)
        (tmp_path / MNIST_FILES[0]).unlink()
        path.write_bytes(gzip.compress(data) if compressed else data)
        with pytest.raises(ValueError, match=words) as error:
            mnist(tmp_path)
        assert str(path) in str(error.value)
        path.unlink()


def test_a_truncated_or_modified_gz_file_is_named(tmp_path):
    write_images(tmp_path, compressed=True)
    path = tmp_path / f"{MNIST_FILES[0]}.gz"
    whole = path.read_bytes()
    altered = bytearray(whole)
    altered[len(whole) // 2] ^= 0xFF
    for data in (whole[:-9], whole[:5], b"", b"no gzip at all", bytes(altered), whole[:10] + b"\xff" * 20 + whole[30:]):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=f"{MNIST_FILES[0]}.gz: expected (a complete .gz file|an idx file)"):
            mnist(tmp_path)


def test_images_and_labels_that_do_not_match_are_named(tmp_path):
    write_images(tmp_path)
    (tmp_path / MNIST_FILES[1]).write_bytes(idx(np.zeros(19, np.uint8)))
    with pytest.raises(ValueError, match=r"expected a label for each image, got 20 images and 19 labels"):
        mnist(tmp_path)
    (tmp_path / MNIST_FILES[1]).write_bytes(idx(np.full(20, 10, np.uint8)))
    with pytest.raises(ValueError, match="expected labels from 0 to 9, got 10 to 10"):
        mnist(tmp_path)
    write_images(tmp_path)
    (tmp_path / MNIST_FILES[2]).write_bytes(idx(np.zeros((6, 4, 5), np.uint8)))
    with pytest.raises(ValueError, match=r"got training images \(5, 4\) and test images \(4, 5\)"):
        mnist(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1,2,3\n4,5", "x.csv: expected a numeric table"),
        ("1,2\n3,4", r"x.csv: expected 3 columns, got a table \(2, 2\)"),
        ("1,2,cat", "expected a numeric table: .*'cat'"),
        ("1,2,300", "expected a numeric table"),
        ("1,2,é", "expected a numeric table"),
    ],
)
def test_an_invalid_table_is_named(tmp_path, text, words):
    (tmp_path / "x.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        read_csv(tmp_path / "x.csv", 3, np.uint8)


# --- files that decompress to more than their format allows ----------------------------------------------------------


def peak_bytes(act):
    """Return the peak memory in bytes of an action that fails with ValueError, and its message."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError) as error:  # noqa: PT011 - the message is returned
            act()
        return tracemalloc.get_traced_memory()[1], str(error.value)
    finally:
        tracemalloc.stop()


def sparse_member(name, size):
    """Return the header of a member of a tar file that says to have many bytes, all zero, and stores none."""
    entry = tarfile.TarInfo(name)
    entry.type = tarfile.GNUTYPE_SPARSE
    block = bytearray(entry.tobuf(tarfile.GNU_FORMAT))
    block[386:410] = b"%011o\0" % size + b"%011o\0" % 0  # nothing is stored, at the end
    block[483:495] = b"%011o\0" % size
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def test_a_small_archive_that_declares_gigabytes_is_rejected_before_it_is_decompressed(tmp_path):
    path = tmp_path / "cifar-10-binary.tar.gz"
    path.write_bytes(gzip.compress(b"".join(sparse_member(name, 3 << 30) for name in PARTS) + bytes(1024)))
    assert path.stat().st_size < 500
    peak, words = peak_bytes(lambda: cifar10(path))
    assert peak < 1e7
    assert "data_batch_1.bin: expected at most 30,730,000 bytes, got 3,221,225,472" in words


def test_the_headers_and_the_members_of_an_archive_are_bounded(tmp_path):
    path = tmp_path / "x.tar.gz"
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("a" * 100_000))
    with pytest.raises(ValueError, match=r"x.tar.gz: expected a complete .tar.gz file: expected at most 20,000 bytes"):
        read_tar(path, ["x"], 10_000)
    with tarfile.open(path, "w:gz") as archive:
        for i in range(1001):
            archive.addfile(tarfile.TarInfo(f"{i}"))
    with pytest.raises(ValueError, match="expected at most 1000 members"):
        read_tar(path, ["x"], 1_000_000)


def test_an_archive_with_a_wrong_checksum_is_rejected(tmp_path):
    write_cifar(tmp_path)
    archive = tmp_path / "cifar-10-binary.tar.gz"
    whole = bytearray(archive.read_bytes())
    whole[-6] ^= 1  # of the CRC-32, after all members
    archive.write_bytes(whole)
    with pytest.raises(ValueError, match=r"expected a complete .tar.gz file: CRC check failed"):
        cifar10(archive)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_of_cifar_has_at_most_10_000_images(tmp_path, compressed):
    write_cifar(tmp_path)
    path = tmp_path / "plain" / "data_batch_1.bin"
    data = bytes(10_001 * 3073)
    path.unlink()
    path = path.with_name(path.name + ".gz") if compressed else path
    path.write_bytes(gzip.compress(data, 1) if compressed else data)
    with pytest.raises(ValueError, match=r"data_batch_1.bin.*: expected at most 30,730,000 bytes, got more"):
        cifar10(tmp_path / "plain")


def test_an_idx_file_is_decompressed_only_as_far_as_its_header_declares(tmp_path):
    write_images(tmp_path, compressed=True)
    path = tmp_path / f"{MNIST_FILES[0]}.gz"
    path.write_bytes(gzip.compress(idx(np.zeros((4, 2, 2), np.uint8)) + bytes(100_000_000), 1))
    peak, words = peak_bytes(lambda: mnist(tmp_path))
    assert peak < 1e7
    assert "expected 32 bytes, as the header (4, 2, 2) declares, got 33 or more" in words
    path.write_bytes(gzip.compress(b"\0\0\x08\3" + b"\xff" * 12))
    peak, words = peak_bytes(lambda: mnist(tmp_path))
    assert peak < 1e7
    assert (
        "expected at most 1,073,741,824 bytes, got a header (4294967295, 4294967295, 4294967295) that declares" in words
    )


@pytest.mark.parametrize("name", ["t.txt", "t.txt.gz"])
def test_a_text_has_a_limit_that_the_environment_sets(tmp_path, monkeypatch, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(b"a" * 1000) if name.endswith("gz") else b"a" * 1000)
    monkeypatch.setenv("NEONLITE_MAX_FILE_BYTES", "1000")
    assert read_text(path) == "a" * 1000
    monkeypatch.setenv("NEONLITE_MAX_FILE_BYTES", "999")
    with pytest.raises(ValueError, match=f"{name}: expected at most 999 bytes, .*NEONLITE_MAX_FILE_BYTES=N"):
        read_text(path)
    for wrong in ("1e9", "0", "-1"):
        monkeypatch.setenv("NEONLITE_MAX_FILE_BYTES", wrong)
        with pytest.raises(
            ValueError, match=f"NEONLITE_MAX_FILE_BYTES: expected an integer >= 1, in bytes, got '{wrong}'"
        ):
            read_text(path)


def test_a_compressed_text_is_decompressed_up_to_its_limit(tmp_path, monkeypatch):
    (tmp_path / "t.gz").write_bytes(gzip.compress(bytes(100_000_000), 1))
    monkeypatch.setenv("NEONLITE_MAX_FILE_BYTES", "1000000")
    assert peak_bytes(lambda: read_text(tmp_path / "t.gz"))[0] < 1e7


def test_a_compressed_table_is_decompressed_up_to_its_limit(tmp_path):
    (tmp_path / "digits.csv.gz").write_bytes(gzip.compress(bytes((1 << 26) + 1), 1))
    with pytest.raises(ValueError, match=r"digits.csv.gz: expected at most 67,108,864 bytes, got more"):
        digits(tmp_path)
