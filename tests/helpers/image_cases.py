"""Random shapes of convolution, pooling and local response normalization."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from neonlite import Backend


class Conv(NamedTuple):
    N: int
    C: int
    K: int
    DHW: tuple[int, ...]
    TRS: tuple[int, ...]
    padding: tuple[int, ...] = (0, 0, 0)
    strides: tuple[int, ...] = (1, 1, 1)
    dilation: tuple[int, ...] = (1, 1, 1)

    @property
    def geometry(self) -> tuple[tuple[int, ...], ...]:
        return self.padding, self.strides, self.dilation


class Pool(NamedTuple):
    N: int
    CDHW: tuple[int, ...]
    JTRS: tuple[int, ...]
    padding: tuple[int, ...] = (0, 0, 0, 0)
    strides: tuple[int, ...] = (1, 1, 1, 1)

    @property
    def geometry(self) -> tuple[tuple[int, ...], ...]:
        return self.JTRS, self.padding, self.strides


class LRN(NamedTuple):
    N: int
    CDHW: tuple[int, ...]
    J: int
    a: float
    b: float


def conv_cases() -> Iterator[Conv]:
    """Yield the corners first, then one random shape after another."""
    yield Conv(1, 1, 1, (1, 1, 1), (1, 1, 1))
    yield Conv(2, 3, 2, (1, 5, 7), (1, 5, 7))  # a filter as large as the image
    yield Conv(3, 2, 5, (1, 7, 5), (1, 1, 2), strides=(1, 3, 4))  # gaps between filters
    yield Conv(2, 1, 3, (1, 7, 6), (1, 3, 2), (0, 2, 1), dilation=(1, 2, 3))
    yield Conv(2, 2, 2, (1, 2, 3), (1, 2, 1), (0, 3, 2))  # filters in the padding alone
    yield Conv(2, 3, 2, (3, 4, 5), (2, 3, 2), (1, 0, 1), (2, 1, 2), (1, 1, 2))
    yield Conv(1, 2, 3, (1, 1, 6), (1, 1, 3), (0, 0, 1), (1, 1, 2))
    rng = np.random.default_rng(1)
    while True:
        deep = rng.random() < 0.3
        axes = [axis(rng, most=3 if deep else 7) if n or deep else (1, 1, 0, 1, 1) for n in range(3)]
        size, taps, padding, strides, dilation = zip(*axes, strict=True)
        if all(d * (k - 1) + 1 <= x + 2 * p for x, k, p, _, d in axes):
            yield Conv(*sizes(rng, 4, 5, 5), size, taps, padding, strides, dilation)


def pool_cases() -> Iterator[Pool]:
    yield Pool(1, (1, 1, 1, 1), (1, 1, 1, 1))
    yield Pool(2, (5, 1, 1, 1), (2, 1, 1, 1), strides=(2, 1, 1, 1))  # maxout
    yield Pool(3, (4, 1, 5, 7), (3, 1, 3, 2), (1, 0, 2, 1), (2, 1, 1, 3))
    yield Pool(2, (2, 1, 7, 5), (1, 1, 2, 1), strides=(1, 1, 3, 2))  # cells that no window has
    yield Pool(2, (1, 1, 3, 2), (1, 1, 5, 3), (0, 0, 2, 1))  # windows larger than the image
    yield Pool(2, (3, 3, 4, 5), (2, 2, 3, 2), (1, 1, 0, 1), (1, 2, 1, 2))
    rng = np.random.default_rng(3)
    while True:
        deep = rng.random() < 0.3
        axes = [axis(rng, most)[:4] if n != 1 or deep else (1, 1, 0, 1) for n, most in enumerate((5, 3, 6, 6))]
        if all(k <= x + 2 * p and p < k for x, k, p, _ in axes):
            yield Pool(*sizes(rng, 4), *zip(*axes, strict=True))


def lrn_cases() -> Iterator[LRN]:
    rng = np.random.default_rng(4)
    while True:
        (J,) = sizes(rng, 7)
        yield LRN(*sizes(rng, 4), sizes(rng, 7, 2, 4, 4), J, *map(float, rng.choice([0.25, 0.5, 1, 2], 2)))


def axis(rng: np.random.Generator, most: int) -> tuple[int, ...]:
    """Return the size of an image, of a window, padding, stride and dilation along one axis."""
    return tuple(int(rng.integers(low, high + 1)) for low, high in ((1, most), (1, 4), (0, 2), (1, 4), (1, 3)))


def sizes(rng: np.random.Generator, *most: int) -> tuple[int, ...]:
    return tuple(int(rng.integers(1, n + 1)) for n in most)


def conv_layer(be: Backend, dtype: str, case: Conv) -> Any:
    return be.conv_layer(dtype, *case[:3], *case.DHW, *case.TRS, *case.padding, *case.strides, *case.dilation)


def pool_layer(be: Backend, dtype: str, op: str, case: Pool) -> Any:
    return be.pool_layer(dtype, op, case.N, *case.CDHW, *case.JTRS, *case.padding, *case.strides)


def scaled(case: Any) -> tuple[float, float]:
    """Return an alpha and a beta, which differ from case to case."""
    n = sum(case[0:1]) + case[1] if isinstance(case[1], int) else sum(case[1])
    return (1.0, 0.5, -2.0)[n % 3], (0.0, 1.0, -0.5)[n // 3 % 3]
