"""Augmentation of images by random bits: flips, crops, shifts and custom functions."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from helpers.minibatches import joined, rows, textbook_order

from neonlite.data import ArrayIterator, Crop, Flip, Shift

# --- images, changed -----------------------------------------------------------------------------------------------


@pytest.fixture
def random_bits(rng):
    return rng.integers(0, 2**64, (50, 4), dtype=np.uint64)


@pytest.fixture
def images(rng):
    return rng.integers(1, 255, (50, 2, 5, 4), dtype=np.uint8)


def test_flip_mirrors_the_images_that_their_random_bits_select(images, random_bits):
    for p in (0.0, 0.3, 1.0):
        result = Flip(p)(images, random_bits)
        for before, after, word in zip(images, result, random_bits[:, 0], strict=True):
            mirrored = int(word) < p * 2**64
            assert (after == (before[:, :, ::-1] if mirrored else before)).all()
        assert p != 0.3 or 5 < (result != images).any(axis=(1, 2, 3)).sum() < 25
    assert (images[:, :, :, ::-1] != images).any(axis=(1, 2, 3)).all()


@pytest.mark.parametrize(
    ("crop", "pad", "height", "width"),
    [
        (Crop(pad=2), 2, 5, 4),
        (Crop(size=3), 0, 3, 3),
        (Crop(1, (6, 2)), 1, 6, 2),
        (Shift(1), 1, 5, 4),
        (Crop(2, fill=9), 2, 5, 4),
    ],
    ids=str,
)
def test_crop_cuts_a_window_at_the_offset_of_the_random_bits(images, random_bits, crop, pad, height, width):
    result = crop(images, random_bits)
    assert result.shape == (50, 2, height, width)
    assert result.dtype == np.uint8
    offsets = Counter()
    for before, after, word in zip(images, result, random_bits.tolist(), strict=True):
        top = (word[0] >> 32) * (5 + 2 * pad - height + 1) // 2**32
        left = (word[1] >> 32) * (4 + 2 * pad - width + 1) // 2**32
        offsets[top, left] += 1
        for r in range(height):
            for c in range(width):
                y, x = top + r - pad, left + c - pad
                inside = 0 <= y < 5 and 0 <= x < 4
                assert (after[:, r, c] == (before[:, y, x] if inside else crop.fill)).all()
    tops, lefts = zip(*offsets, strict=True)
    assert {min(tops), max(tops)} == {0, 5 + 2 * pad - height}
    assert {min(lefts), max(lefts)} == {0, 4 + 2 * pad - width}


def test_a_crop_that_is_not_random_is_the_center(images, random_bits):
    np.testing.assert_array_equal(Crop(size=(3, 2), random=False)(images, random_bits), images[:, :, 1:4, 1:3])


def test_an_iterator_augments_images_by_the_random_bits_of_their_index(be):
    be.bsz = 4
    images = np.arange(10 * 12, dtype=np.uint8).reshape(10, 1, 3, 4)
    changes = [Flip(), Crop(1, 3)]
    it = ArrayIterator(images, np.arange(10), nclass=10, augment=changes, shuffle=True, scale=0.5)
    assert it.shape == (1, 3, 3)
    orders = [textbook_order(1, number, 10) for number in range(3)]
    stream, at = joined(orders), 0
    for number in range(2):
        for k, (x, t) in enumerate(it):
            rows = stream[at : at + 4]
            at += 4
            expected = images[rows]
            for i, change in enumerate(changes):
                position = ((number + 1) << 128) + ((1 + i) << 64) + 4 * k
                random_bits = np.random.Philox(key=[1, 2], counter=position - 1).random_raw(16).reshape(4, 4)
                expected = change(expected, random_bits)
            np.testing.assert_array_equal(x.get(), expected.reshape(4, 9).T * 0.5)
            assert t.get().argmax(axis=0).tolist() == rows


def test_an_augmentation_is_any_function_of_images_and_random_bits(be):
    be.bsz = 3
    X = np.arange(12, dtype=np.uint8).reshape(3, 4)

    def doubled(images, random_bits):
        assert random_bits.shape == (len(images), 4)
        return images * np.float32(2.5)

    ((x, t),) = ArrayIterator(X, lshape=(1, 2, 2), augment=doubled)
    np.testing.assert_array_equal(x.get(), 2.5 * X.T)
    assert t is x


def test_a_partial_last_minibatch_is_augmented_too(be):
    be.bsz = 4
    result = [x.get() for x, _ in ArrayIterator(np.ones((6, 1, 2, 2)), augment=Flip(1.0), partial_last=True)]
    assert [x.shape for x in result] == [(4, 4), (4, 2)]
    assert all((x == 1).all() for x in result)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Flip(1.5), ValueError, ">= 0 and <= 1 for p, got 1.5"),
        (lambda: Flip(float("nan")), ValueError, "got nan"),
        (lambda: Crop(-1), ValueError, "Crop: expected .* for pad, got -1"),
        (lambda: Crop(1.5), TypeError, "Crop: expected .* for pad, got 1.5"),
        (lambda: Crop(0, 0), ValueError, "Crop: expected .* for size, got 0"),
        (lambda: Crop(0, (1, 2, 3)), ValueError, "a pair of them for size"),
        (
            lambda: ArrayIterator(np.zeros((4, 1, 3, 3)), augment=Crop(size=4)),
            ValueError,
            "images 3 x 3 with padding 0, got 4 x 4",
        ),
        (lambda: Crop(fill="0"), TypeError, "expected a number for fill, got '0'"),
        (lambda: Shift(1, fill=math.nan), ValueError, "expected a finite number for fill, got nan"),
        (lambda: ArrayIterator(rows(4), augment=Flip()), ValueError, r"lshape=\(C, H, W\), got rows of shape 2"),
        (lambda: ArrayIterator([rows(4), rows(4)], augment=Flip()), ValueError, "a list of 2"),
        (lambda: ArrayIterator(np.zeros((4, 1, 3, 3)), augment="flip"), TypeError, "got 'flip'"),
        (lambda: ArrayIterator(np.zeros((4, 1, 3, 3)), augment=lambda x, w: None), TypeError, "got None for one"),
        (lambda: ArrayIterator(np.zeros((4, 1, 3, 3)), augment=lambda x, w: x[0]), TypeError, r"\(1, 3, 3\) for one"),
    ],
)
def test_invalid_augmentations_are_rejected(cpu, make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_an_empty_list_of_augmentations_is_none(cpu):
    iterator = ArrayIterator(rows(4), augment=[])
    assert (iterator.augment, iterator.seed) == (None, None)
