"""What the tests of image primitives share: shapes, values, and the loops of a textbook."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from helpers import textbook
from helpers.image_cases import Conv, Pool, axis, conv_cases, lrn_cases, pool_cases, sizes
from neonlite import Backend, Tensor

COUNT, FEW = 120, 14  # how many shapes of each kind are tried: on NumPy, on each other runtime


every_op = pytest.mark.parametrize("op", ["max", "avg", "l2"])


class Deconv(NamedTuple):
    N: int
    C: int
    K: int
    MPQ: tuple[int, ...]
    TRS: tuple[int, ...]
    padding: tuple[int, ...] = (0, 0, 0)
    strides: tuple[int, ...] = (1, 1, 1)
    dilation: tuple[int, ...] = (1, 1, 1)

    geometry = Conv.geometry


def deconv_cases() -> Iterator[Deconv]:
    yield Deconv(1, 1, 1, (1, 1, 1), (1, 1, 1))
    yield Deconv(2, 3, 2, (1, 3, 5), (1, 2, 3), (0, 1, 1), (1, 2, 3))
    yield Deconv(2, 1, 3, (2, 3, 2), (2, 3, 2), (1, 0, 1), (2, 1, 2), (1, 2, 2))
    rng = np.random.default_rng(2)
    while True:
        deep = rng.random() < 0.3
        axes = [axis(rng, most=3 if deep else 5) if n or deep else (1, 1, 0, 1, 1) for n in range(3)]
        size, taps, padding, strides, dilation = zip(*axes, strict=True)
        if all((n - 1) * s - 2 * p + d * (k - 1) >= 0 for n, k, p, s, d in axes):
            yield Deconv(*sizes(rng, 4, 5, 5), size, taps, padding, strides, dilation)


def first(cases: Iterator[Any], count: int = COUNT) -> list[Any]:
    """Return so many different cases."""
    found: dict[Any, None] = {}
    while len(found) < count:
        found[next(cases)] = None
    return list(found)


CONV, DECONV, POOL, NORM = first(conv_cases()), first(deconv_cases()), first(pool_cases()), first(lrn_cases())


def tried(be: Backend, cases: Sequence[Any]) -> Sequence[Any]:
    return cases if be.name == "cpu" else cases[:FEW]


def values(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    """Return normal numbers that float32 holds exactly."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(float)


def near(got: Any, wanted: Any, case: Any, dtype: str = "float64") -> None:
    """Assert that a tensor holds what is wanted, but for the rounding of its dtype."""
    given = np.asarray(got).reshape(wanted.shape)
    tolerance = 64 * np.finfo(dtype).eps * max(1.0, np.abs(wanted).max(initial=0, where=np.isfinite(wanted)))
    np.testing.assert_allclose(given, wanted, rtol=0, atol=tolerance, err_msg=str(case))


@cache
def conv_truth(case: Conv) -> SimpleNamespace:
    N, C, K, DHW, TRS = case[:5]
    i, f, e = values(1, C, *DHW, N), values(2, C, *TRS, K), None
    o = textbook.conv(i, f, *case.geometry)
    e = values(3, *o.shape)
    d, u = textbook.conv_bprop(f, e, DHW, *case.geometry), textbook.conv_update(i, e, TRS, *case.geometry)
    return SimpleNamespace(i=i, f=f, e=e, o=o, d=d, u=u)


def deconv_layer(be: Backend, dtype: str, case: Deconv) -> Any:
    return be.deconv_layer(dtype, *case[:3], *case.MPQ, *case.TRS, *case.padding, *case.strides, *case.dilation)


def start(be: Backend, wanted: Any, beta: float, dtype: str) -> tuple[Tensor, Any]:
    """Return a tensor to write to, and what it holds. Where it is not to be read, it holds NaN."""
    held = values(9, *wanted.shape) if beta else np.full(wanted.shape, np.nan)
    two = held.reshape(-1, wanted.shape[-1])
    return be.array(two, dtype), np.nan_to_num(held)


@cache
def deconv_truth(case: Deconv) -> SimpleNamespace:
    N, C, K, MPQ, TRS = case[:5]
    x, f = values(1, K, *MPQ, N), values(2, C, *TRS, K)
    y = textbook.deconv(x, f, *case.geometry)
    e = values(3, *y.shape)
    # Stamping is linear in x, and in f: what moves y along e is the error stamped back.
    d = textbook.conv(e, f, *case.geometry)
    u = textbook.conv_update(e, x, TRS, *case.geometry)
    return SimpleNamespace(x=x, f=f, y=y, e=e, d=d, u=u)


@cache
def pool_truth(op: str, case: Pool, caffe: bool = False) -> SimpleNamespace:
    i = values(1, *case.CDHW, case.N)
    if op == "max":
        i = np.round(i)  # integers, so that many maxima tie
    o, places = textbook.pool(op, i, *case.geometry, caffe)
    e = values(3, *o.shape)
    d = textbook.pool_bprop(op, i, e, *case.geometry, caffe)
    return SimpleNamespace(i=i, o=o, places=places, e=e, d=d)
