"""Do kernels read and write only what is theirs, and wait for each other?  NVIDIA's compute-sanitizer looks on a card.

The work that it looks at is run on the simulated card as well, so that it is known to be right when a card is there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_cuda import ran, simulated
from test_cuda_primitives import texts
from test_gpu import PRIMITIVES

from neonlite import Backend
from neonlite.backend.cuda.draws import MASK, SCALED, VALUES
from neonlite.backend.cuda.primitives_scatter import SORT
from neonlite.backend.runtimes import load
from neonlite.backend.stored import Form, written


def trees(be: Backend) -> list[Any]:
    """Return values of kernels of every kind, over shapes that leave threads without work."""
    draw = np.random.default_rng(0)
    x, c, r = (be.array(draw.normal(size=shape)) for shape in [(37, 53), (37, 1), (1, 53)])
    places = be.array(draw.integers(0, 37, (1, 9)), dtype="int32")
    mask = be.zeros((37, 53))
    be.make_binary_mask(mask, 0.5)
    long, h = be.array(draw.normal(size=(2, 40_000))), be.array(draw.normal(size=(9, 24)), dtype="float16")
    return [
        be.tanh(x * c + r) * mask,
        x.T[1:, ::-1] * 2,
        be.exp(h) + 1,
        be.softmax(x, axis=0),
        be.softmax(x, axis=1),
        be.softmax(long, axis=1),
        be.var(x, axis=1),
        be.var(long, axis=1),
        be.sum(x * x, axis=0),
        c + be.sum(x * x, axis=1),
        be.sum(be.ones((300, 701)) * 0.5),
        be.argmax(x, axis=1),
        be.take(x, places, 0),
        be.onehot(places, axis=0, nclass=37),
        be.rand(5, 7),
        be.randn(7, 5),
    ]


def turned(be: Backend) -> Any:
    """Return images that were brought to where their maps lie side by side, and back: what they were."""
    x = be.array(np.random.default_rng(1).normal(size=(5, 21, 33)))
    back = be.empty(x.shape)
    if not hasattr(be.primitives, "turn"):
        return x
    array, target = (written(t, whole=True) for t in (x, back))
    room = be.runtime.xp.empty(array.size, dtype=array.dtype)
    be.primitives.turn(Form(*x.shape), array, room, False)
    be.primitives.turn(Form(*x.shape), target, room, True)
    return back


def work(be: Backend) -> list[Any]:
    """Return the values of the trees, a plan each, and of all that has kernels of its own."""
    found = [tree.asnumpyarray() for tree in trees(be)]
    drawn = be.empty((13, 11))
    be.fill_normal(drawn, 1.0, 2.0)
    primitives = [x for primitive in PRIMITIVES.values() for x in primitive(be)]
    return [*found, *(x.get() for x in (drawn, turned(be), *primitives))]


def agree(made: list[Any]) -> None:
    for x, y in zip(made, work(Backend("cpu", rng_seed=1)), strict=True):
        close = 2e-3 if x.dtype == "float16" else 1e-5
        np.testing.assert_allclose(x, y, close, close)


KINDS: dict[str, tuple[str, ...]] = {  # words that the texts of a kind have, and no other
    "map, several elements at once": ("const Half* x0", "int V = 8;", "long long I)"),
    "map, rows and columns": ("y0 = (tanh(((x0 * x1) + x2)) * x3)",),
    "map, strides": ("long long x0_0",),
    "rows": ("s0 = argmax(x0)", "threadIdx.x % LANES"),
    "columns": ("sum((x0 * x0)) over axis 0", "threadIdx.x / PLACES"),
    "rows, with what follows": ("y0 = (x1 + sum((x0 * x0)))",),
    "several blocks": ("long long chunk)", "LANES = 256, PLACES = 1"),
    "parts that are joined": ("the parts of sum, joined",),
    "tile of rows": ("sum(exp((x0 - stop_gradient(max(x0))))) over axis 1", "[R * V]"),
    "tile of columns": ("sum(exp((x0 - stop_gradient(max(x0))))) over axis 0", "float r"),
    "passes, softmax": ("Exps<float>* s1",),
    "passes, variance": ("Moments<float>* s1",),
    "take": ("place < size", "Word* failed"),
    "onehot": ("label >= classes",),
    "uniform numbers": (VALUES["rand", "float32"],),
    "normal numbers": (VALUES["randn", "float32"],),
    "fill by normal numbers": (SCALED,),
    "masks": (MASK,),
    "sort of places": (SORT,),
    **{name: (text,) for name, (text, _) in texts().items()},
}


@pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are simulated with g++, which is not here")
def test_what_the_sanitizer_looks_at_is_every_kind_of_kernel_and_right_on_the_simulated_card() -> None:
    be = simulated()
    agree(work(be))
    launched = {text for text, _ in ran(be)}
    missing = [kind for kind, words in KINDS.items() if not any(all(w.strip() in t for w in words) for t in launched)]
    assert not missing


@pytest.mark.gpu
@pytest.mark.parametrize(("tool", "words"), [("memcheck", "0 errors"), ("racecheck", "0 hazards")])
def test_compute_sanitizer_finds_nothing(tool: str, words: str, card: Callable[[], None]) -> None:
    program = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_sanitizer as t; "
    program += "t.agree(t.work(t.Backend('gpu', rng_seed=1)))"
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", sys.executable, "-c", program]
    environment = {**os.environ, "NEONLITE_CUDNN": "0"}  # convolutions by kernels of our own
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
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
