"""Do kernels read and write only what is theirs, and wait for each other?  NVIDIA's compute-sanitizer looks on a card.

The work that it looks at is run on the simulated card as well, so that it is known to be right when a card is there.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neonlite import Backend
from neonlite.backend.cuda.simulated import Simulated
from neonlite.backend.runtimes import load


def trees(be: Backend) -> list[Any]:
    """Return values of kernels of every kind, over shapes that leave threads without work."""
    draw = np.random.default_rng(0)
    x, c, r = (be.array(draw.normal(size=shape)) for shape in [(37, 53), (37, 1), (1, 53)])
    places = be.array(draw.integers(0, 37, (1, 9)), dtype="int32")
    mask = be.zeros((37, 53))
    be.make_binary_mask(mask, 0.5)
    return [
        be.tanh(x * c + r) * mask,
        x.T[1:, ::-1] * 2,
        be.softmax(x, axis=0),
        be.softmax(x, axis=1),
        be.var(x, axis=1),
        be.sum(x * x, axis=0),
        be.sum(be.ones((300, 701)) * 0.5),
        be.argmax(x, axis=1),
        be.take(x, places, 0),
        be.onehot(places, axis=0, nclass=37),
        be.rand(5, 7),
    ]


def work(be: Backend) -> list[Any]:
    """Return the values of the trees, and of primitives with kernels of their own."""
    found = [t.get() for t in be.evaluate(trees(be))]
    layer = be.pool_layer(np.float32, "max", 2, 3, 1, 7, 6, R=3, S=2, str_h=2)
    image, out = be.array(np.random.default_rng(1).normal(size=layer.dimI)), be.zeros(layer.dimO)
    argmax, back = be.zeros(layer.dimO, dtype="uint8"), be.zeros(layer.dimI)
    be.fprop_pool(layer, image, out, argmax)
    be.bprop_pool(layer, image, out, back, argmax=argmax)
    return [*found, out.get(), back.get()]


def agree(made: list[Any]) -> None:
    for x, y in zip(made, work(Backend("cpu", rng_seed=1)), strict=True):
        np.testing.assert_allclose(x, y, 1e-5, 1e-5)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are simulated with g++, which is not here")
def test_what_the_sanitizer_looks_at_is_right_on_the_simulated_card() -> None:
    agree(work(Backend(Simulated(), rng_seed=1)))


@pytest.mark.gpu
@pytest.mark.parametrize(("tool", "words"), [("memcheck", "0 errors"), ("racecheck", "0 hazards")])
def test_compute_sanitizer_finds_nothing(tool: str, words: str, card: Callable[[], None]) -> None:
    program = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_sanitizer as t; "
    program += "t.agree(t.work(t.Backend('gpu', rng_seed=1)))"
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert words in done.stdout, done.stdout


@pytest.fixture
def card() -> None:
    if shutil.which("compute-sanitizer") is None:
        pytest.skip("compute-sanitizer is not here: it comes with the CUDA toolkit")
    try:
        load("gpu")
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"no card: {error}")
