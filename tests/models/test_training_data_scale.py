"""Warnings of inputs and targets that are not scaled, of options without effect, and of one class only."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from neonlite import gen_backend
from neonlite.data import ArrayIterator
from neonlite.layers import Affine, BatchNorm, Conv
from neonlite.models import Model

QUICK: dict[str, Any] = {"epochs": 1, "progress_bar": False}
RNG = np.random.default_rng(1)
INDEX = np.arange(60) % 3
PIXELS = RNG.integers(0, 17, (60, 1, 8, 8))
PIXELS[0, 0, 0, :2] = 0, 16
TABLE = RNG.normal(size=(60, 4))


@pytest.fixture(autouse=True)
def backend() -> Any:
    return gen_backend("cpu", rng_seed=0, batch_size=20)


def conv() -> Model:
    return Model([Conv((3, 3, 4)), Affine(3, activation="softmax")])


def iterator(x: Any, **options: Any) -> ArrayIterator:
    return ArrayIterator(x, INDEX, nclass=3, **options)


@pytest.mark.parametrize("high", [16, 255])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_pixels_are_warned_about_whatever_their_dtype(high, dtype):
    images = (PIXELS * (high / 16)).astype(dtype)
    with pytest.warns(UserWarning, match=rf"inputs are from 0 to {high} and are not scaled.* such as X / {high};"):
        conv().fit(images, INDEX, **QUICK)
    with pytest.warns(UserWarning, match=rf"inputs are from 0 to {high} .* Pass scale=1 / {high} to ArrayIterator"):
        conv().fit(iterator(images), "cross_entropy", "adam", 1)
    with pytest.warns(UserWarning, match=rf"minibatch 1: the inputs are from 0 to {high} "):
        conv().fit([(images, INDEX)], **QUICK)


def test_targets_that_are_not_standardized_are_warned_about():
    y = 255 * np.abs(TABLE[:, 0])
    for fit in (
        lambda: Model([Affine(1, activation="relu")]).fit(TABLE, y, **QUICK),
        lambda: Model([Affine(1)]).fit(ArrayIterator(TABLE, y, make_onehot=False), "mse", "adam", 1),
        lambda: Model([Affine(1)]).fit([(TABLE, y)], **QUICK),
    ):
        with pytest.warns(UserWarning, match="the targets y are from .* not scaled.* standard deviation"):
            fit()


OUTLIERS = np.random.default_rng(0).standard_t(3, size=(60, 4))
OUTLIERS[7, 2] = 60


@pytest.mark.parametrize(
    "fit",
    [
        lambda: conv().fit(PIXELS / 16.0, INDEX, **QUICK),
        lambda: conv().fit((PIXELS * 15).astype("uint8"), INDEX, **QUICK),
        lambda: conv().fit(iterator(PIXELS * 1.0, scale=1 / 16), "cross_entropy", "adam", 1),
        lambda: Model([Affine(3, activation="softmax")]).fit(iterator(TABLE), "cross_entropy", "adam", 1),
        lambda: Model([Affine(3, activation="softmax")]).fit(iterator(OUTLIERS), "cross_entropy", "adam", 1),
        lambda: Model([Affine(3, activation="softmax")]).fit(1000 * TABLE, INDEX, **QUICK),
        lambda: Model([Affine(1)]).fit(TABLE, 1e5 * TABLE[:, 0], **QUICK),
        lambda: Model([BatchNorm(), Affine(3, activation="softmax")]).fit(
            iterator(1000 * TABLE), "cross_entropy", "adam", 1
        ),
    ],
)
def test_scaled_and_standardized_data_give_no_warning(fit):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit()


def test_targets_of_one_class_are_warned_about():
    with pytest.warns(UserWarning, match="all rows of y have the class 0, so there is nothing to learn"):
        Model([Affine(3, activation="softmax")]).fit(TABLE, 0 * INDEX, **QUICK)


@pytest.mark.parametrize(
    "options",
    [
        {"epochs": 5},
        {"batch_size": 8},
        {"metrics": "accuracy"},
        {"validation_split": 0.2},
        {"layout": "NF"},
        {"shuffle": False},
    ],
)
def test_options_without_effect_in_the_form_of_neon_are_refused(options):
    (name,) = options
    message = f"expected no {name} together with num_epochs, got both. Pass epochs="
    with pytest.raises(TypeError, match=message):
        Model([Affine(3, activation="softmax")]).fit(iterator(TABLE), "cross_entropy", "adam", 1, **options)
    if name != "epochs" and name != "metrics":
        with pytest.raises(TypeError, match=f"expected no {name} together with an iterator, got both"):
            Model([Affine(3, activation="softmax")]).fit(iterator(TABLE), "cross_entropy", **QUICK | options)
