"""benchmarks/_implicit_gemm.py on the simulated GPU: the passes of convolutions, beside loops in float64."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import nvrtc, textbook

from neonlite import Backend
from neonlite.backend.runtimes.cuda.libraries import OPTIONS
from neonlite.backend.runtimes.cuda.simulator import SimulatedGPU

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from _implicit_gemm import (
    GROUP,
    MAX_THREADS,
    PASSES,
    SEGMENTS,
    TILES,
    ImplicitGemm,
    Tile,
    Work,
    count,
    divide,
    source,
    ways,
)

simulates = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are simulated with g++, which is not here")

# N, C, K, H, W, R, S, padding, strides, dilation
CASES = {
    "3x3": (32, 16, 16, 6, 6, 3, 3, (1, 1), (1, 1), (1, 1)),
    "strides 2": (8, 8, 16, 7, 6, 3, 3, (1, 1), (2, 2), (1, 1)),
    "strides 2 and 3, dilation 3 and 2": (4, 4, 8, 9, 11, 3, 3, (1, 2), (2, 3), (3, 2)),
    "strides that skip pixels, for which gradients are 0": (4, 8, 8, 5, 7, 1, 1, (0, 0), (2, 3), (1, 1)),
    "odd sizes, K = 1": (5, 3, 1, 7, 6, 3, 2, (1, 0), (1, 2), (2, 1)),
    "K = 10, 5x5, groups of images": (64, 3, 10, 8, 9, 5, 5, (0, 0), (1, 1), (1, 1)),
    "one image, more padding than pixels": (1, 2, 3, 2, 3, 4, 3, (3, 3), (1, 2), (1, 1)),
    "large tiles": (64, 64, 64, 4, 4, 3, 3, (1, 1), (1, 1), (1, 1)),
}


def check(case: tuple[Any, ...], tile: Tile | None = None) -> dict[str, Work]:
    """Compare two runs of each pass on NaN, forward also with bias and Rectlin; return how they are divided."""
    N, C, K, H, W, R, S, padding, strides, dilation = case
    be, draw = Backend(SimulatedGPU()), np.random.default_rng(1)
    layer = be.conv_layer("float32", N, C, K, 1, H, W, 1, R, S, 0, *padding, 1, *strides, 1, *dilation)  # type: ignore[misc]
    shapes = layer.dimI, layer.dimF, layer.dimO, (K, 1, 1, 1, 1)
    i, f, e, bias = (draw.normal(size=shape).astype("float32") for shape in shapes)
    *exact, shift = (x.astype(float) for x in (i, f, e, bias))
    geometry = layer.padding, layer.strides, layer.dilation
    forward = textbook.conv(*exact[:2], *geometry)
    wanted = {
        "fprop": (f, i, forward),
        "rectified": (f, i, np.maximum(forward + shift, 0)),
        "dgrad": (f, e, textbook.conv_bprop(*exact[1:], layer.DHW, *geometry)),
        "wgrad": (e, i, textbook.conv_update(exact[0], exact[2], layer.TRS, *geometry)),
    }
    gemm, put = ImplicitGemm(be.runtime), be.runtime.put
    for name, (a, b, result) in wanted.items():
        outs = [np.full(result.shape, np.nan, np.float32) for _ in range(2)]
        for out in outs:
            after = (put(bias), True) if name == "rectified" else (None, False)
            gemm.run("fprop" if name == "rectified" else name, layer, put(a), put(b), out, *after, tile=tile)
        assert outs[0].tobytes() == outs[1].tobytes(), name
        np.testing.assert_allclose(outs[0], result, rtol=0, atol=1e-6 * np.abs(result).max(), err_msg=name)
    return {operation: divide(operation, layer, tile) for operation in PASSES}


@simulates
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_passes_are_those_of_the_textbook_and_repeat_their_bits(case: tuple[Any, ...]) -> None:
    check(case)


@simulates
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"{tile.rows}x{tile.columns}")
@pytest.mark.parametrize("N", [8, pytest.param(5, marks=pytest.mark.slow)])
def test_every_tile_computes_sizes_that_it_does_not_divide(tile: Tile, N: int) -> None:
    check((N, 9, 20 + N % 2, 7, 6, 3, 3, (1, 1), (2, 1), (1, 1)), tile)


@simulates
def test_long_sums_are_divided_into_parts() -> None:
    work = check((64, 16, 8, 8, 8, 3, 3, (1, 1), (1, 1), (1, 1)))
    assert work["wgrad"].parts > 2 * SEGMENTS  # which several threads add
    assert work["wgrad"].parts % (64 // work["wgrad"].group) == 0
    assert work["wgrad"].group == GROUP
    assert check((4, 64, 4, 5, 5, 3, 3, (1, 1), (1, 1), (1, 1)))["fprop"].parts > 1


@simulates
@pytest.mark.parametrize("number", [3, 2 * SEGMENTS + 5])
def test_parts_are_added_in_order(number: int) -> None:
    parts = np.random.default_rng(0).normal(size=(number, 300)).astype("float32")
    out, stride = np.empty(300, np.float32), SEGMENTS if number > 2 * SEGMENTS else 1
    ImplicitGemm(SimulatedGPU()).add(parts, out, None, False, 1)
    sums = [sum(parts[n::stride], np.zeros(300, np.float32)) for n in range(stride)]
    np.testing.assert_array_equal(out, sum(sums[1:], sums[0]))


def test_other_convolutions_are_refused() -> None:
    be = Backend("cpu")
    layer = be.conv_layer("float32", 4, 2, 2, 5, 5, 5, 3, 3, 3)
    with pytest.raises(ValueError, match=r"images with two axes and one group, got ConvLayer\(\(2, 5, 5, 5, 4\)"):
        ImplicitGemm(be.runtime).run("fprop", layer, None, None, None)
    with pytest.raises(ValueError, match=r"less than 2\^30 elements"):
        ImplicitGemm(be.runtime).run("fprop", be.conv_layer("float32", 64, 512, 2, 1, 256, 256), None, None, None)


@pytest.mark.skipif(nvrtc.library() is None, reason="NVRTC is not installed: pip install nvidia-cuda-nvrtc-cu12")
@pytest.mark.parametrize("operation", PASSES)
@pytest.mark.parametrize(
    ("architecture", "width"),
    [("sm_90", 4), *(pytest.param(*x, marks=pytest.mark.slow) for x in [("sm_80", 4), ("sm_100", 4), ("sm_90", 1)])],
)
def test_nvidias_compiler_compiles_every_tile_without_spills(operation: str, architecture: str, width: int) -> None:
    for tile in TILES:
        work = Work(tile, blocks=1, phases=1, parts=1, group=GROUP, terms=8, whole=width == 4)
        found = nvrtc.compiled(source(operation, work, width, width), architecture, OPTIONS)
        assert found.spilled == found.stack == 0, (tile, found[:3])
        assert width == 1 or found.registers * MAX_THREADS <= 65536


def test_each_way_around_the_loop_is_found() -> None:
    lines = [
        ("", "MOV R1, R2"),
        (".loop", ""),
        ("", "@P0 FFMA R1, R1, R2, R1"),
        ("", "@!P1 BRA `(.far)"),
        ("", "IADD R2"),
    ]
    lines += [
        ("", "BRA `(.end)"),
        (".far", ""),
        ("", "IMAD R3"),
        ("", "IMAD R4"),
        (".end", ""),
        ("", "@P2 BRA `(.loop)"),
    ]
    found = ways([*lines, ("", "STG R1"), ("", "EXIT")])
    assert sorted(map(len, found)) == [5, 5]
    assert [count(way, "FFMA") for way in found] == [1, 1]
    assert sorted(count(way, "IMAD") for way in found) == [0, 2]
