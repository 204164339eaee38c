"""Where numbers lie is never seen: with rooms beside the memory, and without, programs and networks say the same."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from allocations import buffers
from hypothesis import given, settings
from hypothesis import strategies as st

from neonlite import Backend, NervanaObject
from neonlite.backend import stored
from neonlite.backend.onednn import images, library
from neonlite.backend.primitives.numpy_ import InPlace
from neonlite.backend.tensor import Tensor
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import (
    Activation,
    Affine,
    BatchNorm,
    Conv,
    Deconv,
    Dropout,
    MergeBroadcast,
    MergeSum,
    Pooling,
    Sequential,
    SkipNode,
)
from neonlite.transforms import Logistic, Rectlin, Tanh

pytestmark = pytest.mark.skipif(library.found() is None, reason=library.about())
N = 2


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list of the copies from here on: True for one back to the memory, False for one to a room."""
    seen: list[bool] = []
    turn = images.Images.turn

    def counted(self: Any, form: Any, array: Any, room: Any, back: bool) -> None:
        seen.append(back)
        turn(self, form, array, room, back)

    monkeypatch.setattr(images.Images, "turn", counted)
    return seen


def plain() -> Backend:
    """Return a backend whose primitives are NumPy's, and know of no rooms."""
    be = Backend("cpu", rng_seed=1, batch_size=N)
    be.primitives = InPlace(be.runtime)
    return be


# --- programs --------------------------------------------------------------------------------------------------------

BIG, SMALL, THIN = (4, 6, 6), (8, 3, 3), (4, 3, 3)
CONVOLUTIONS = [
    (BIG, BIG, {"C": 4, "K": 4, "H": 6, "W": 6, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1}),
    (BIG, SMALL, {"C": 4, "K": 8, "H": 6, "W": 6, "R": 2, "S": 2, "str_h": 2, "str_w": 2}),
    (SMALL, SMALL, {"C": 8, "K": 8, "H": 3, "W": 3}),
]
ROWS = 4 * 6 * 6 + 30  # of a memory, in which images lie from some row on


class Machine:
    """Some memories of a backend, and what programs do to parts of them: all that is drawn comes from a seed."""

    def __init__(self, be: Backend) -> None:
        self.be = be
        numbers = np.random.default_rng(0).integers(-2, 3, (3, ROWS, N))
        self.memories = [be.array(x) for x in numbers]
        self.seen: dict[Any, Tensor] = {}
        self.arrays: list[Any] = []
        self.prepared: list[Any] = []
        self.argmax = [be.zeros((9 * 4, N), "uint8") for _ in range(2)]
        self.layers = [be.conv_layer("float32", N, **sizes) for *_, sizes in CONVOLUTIONS]
        self.pools = {op: be.pool_layer("float32", op, N, C=4, H=6, W=6, R=2, S=2) for op in ("max", "avg")}
        self.pooled = False

    def part(self, rng: Any, shape: tuple[int, ...], among: int = 3) -> Tensor:
        """Return images of a shape in a memory, most often from its first row on, as two or four dimensions."""
        memory, rows = int(rng.integers(among)), int(np.prod(shape))
        start = int(rng.choice([0, 0, 0, 1, ROWS - rows]))
        wide = bool(rng.integers(2))
        key = memory, start, shape, wide
        if key not in self.seen or rng.integers(2):
            part = self.memories[memory][start : start + rows]
            self.seen[key] = part.reshape((*shape, N)) if wide else part
        return self.seen[key]

    def filters(self, rng: Any, n: int) -> Tensor:
        return self.be.array(rng.integers(-1, 2, self.layers[n].dimF2))

    def conv(self, rng: Any) -> None:
        n = int(rng.integers(len(CONVOLUTIONS)))
        small, large, _ = CONVOLUTIONS[n]
        bias = self.be.array(rng.integers(-1, 2, (large[0], 1))) if rng.integers(2) else None
        beta = float(rng.choice([0, 0, 1]))
        alpha = float(rng.choice([1, 1, 2]))
        I, O = self.part(rng, small), self.part(rng, large)
        more = {"bias": bias, "relu": bool(rng.integers(2)), "alpha": alpha, "beta": beta}
        self.be.fprop_conv(self.layers[n], I, self.filters(rng, n), O, **more)

    def conv_back(self, rng: Any) -> None:
        n = int(rng.integers(len(CONVOLUTIONS)))
        small, large, _ = CONVOLUTIONS[n]
        E, D = self.part(rng, large), self.part(rng, small)
        self.be.bprop_conv(self.layers[n], self.filters(rng, n), E, D, beta=float(rng.choice([0, 0, 1])))

    def update(self, rng: Any) -> None:
        n = int(rng.integers(len(CONVOLUTIONS)))
        small, large, _ = CONVOLUTIONS[n]
        U, b = self.be.zeros(self.layers[n].dimF2), self.be.zeros((large[0], 1))
        self.be.update_conv(self.layers[n], self.part(rng, small), self.part(rng, large), U, grad_bias=b)
        target = self.memories[int(rng.integers(3))]
        target[: large[0], :1] = b
        target[:8, 1:] = U[:8, :1]

    def pool(self, rng: Any) -> None:
        op = str(rng.choice(["max", "avg"]))
        I, O = self.part(rng, BIG), self.part(rng, THIN)
        self.be.fprop_pool(self.pools[op], I, O, self.argmax[0] if op == "max" else None)
        self.pooled |= op == "max"

    def unpool(self, rng: Any) -> None:
        op = str(rng.choice(["max", "avg"])) if self.pooled else "avg"
        E, D = self.part(rng, THIN), self.part(rng, BIG)
        more = {"argmax": self.argmax[0]} if op == "max" else {}
        self.be.bprop_pool(self.pools[op], None, E, D, **more)

    def ops(self, rng: Any) -> None:
        shape = [BIG, SMALL][int(rng.integers(2))]
        x, y = self.part(rng, shape), self.part(rng, shape)
        out = x if rng.integers(2) else self.part(rng, shape)
        be, (x, y, out) = self.be, (t.reshape(-1, N) for t in (x, y, out))
        trees: list[Callable[[], Any]] = [
            lambda: be.maximum(x, 0),
            lambda: x * (y > 0),
            lambda: x + y,
            lambda: x - 2 * y,
            lambda: be.flip(x, axis=0) if hasattr(be, "flip") else x + 1,
            lambda: x + be.sum(y, axis=1) * 0,
            lambda: x + y[:1, :1],
        ]
        out[:] = trees[int(rng.integers(len(trees)))]()

    def two(self, rng: Any) -> None:
        x, y, z = (self.part(rng, BIG).reshape(-1, N) for _ in range(3))
        self.be.assign([x, y], [x + z, self.be.minimum(z, y)])

    def prepare(self, rng: Any) -> None:
        if not self.prepared or rng.integers(2):
            x, y = (self.part(rng, BIG).reshape(-1, N) for _ in range(2))
            self.prepared.append(self.be.prepare([x], [self.be.maximum(x, y)]))
        self.prepared[int(rng.integers(len(self.prepared)))]()

    def product(self, rng: Any) -> None:
        memory, out = (self.memories[int(n)] for n in rng.integers(3, size=2))
        W = self.be.array(rng.integers(-1, 2, (20, 20)))
        self.be.compound_dot(W, memory[:20], out[:20] if rng.integers(2) else out[5:25], beta=float(rng.integers(2)))

    def write(self, rng: Any) -> None:
        memory = self.memories[int(rng.integers(3))]
        start = int(rng.integers(ROWS))
        target = memory[start :: int(rng.integers(1, 3))] if rng.integers(2) else memory[:, :1]
        target[:] = float(rng.integers(-2, 3)) if rng.integers(2) else rng.integers(-2, 3, target.shape)

    def draw(self, rng: Any) -> None:
        self.be.make_binary_mask(self.part(rng, BIG), 0.5)

    def show(self, rng: Any) -> None:
        """Have NumPy look at a memory, and write there, now and whenever it wants."""
        if not self.arrays or rng.integers(2):
            part = self.part(rng, BIG)
            self.arrays.append(np.asarray(part) if rng.integers(2) else np.from_dlpack(part))
        array: Any = self.arrays[int(rng.integers(len(self.arrays)))]
        array[...] = np.clip(array + 1, -3, 3)

    def twin(self, rng: Any) -> None:
        self.memories[0] = copy.deepcopy(self.memories[int(rng.integers(3))])
        self.seen = {key: t for key, t in self.seen.items() if key[0]}

    def tell(self, rng: Any) -> Any:
        """Return what is in some part."""
        part = self.part(rng, [BIG, SMALL, THIN][int(rng.integers(3))])
        ways = [Tensor.get, lambda t: np.array(t, copy=True), lambda t: self.be.sum(t).asnumpyarray(), lambda t: t.T[:, :9].get()]
        return ways[int(rng.integers(len(ways)))](part)

def near(got: Any, wanted: Any) -> None:
    room = 1e-5 * max(1.0, float(np.abs(wanted).max(initial=0)))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=room)


COMMON = ["conv", "conv", "conv_back", "update", "pool", "unpool", "ops", "ops", "two", "prepare"]
ACTS = [*COMMON, "product", "write", "draw", "twin", "tell", "show"]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 1 << 20)), min_size=1, max_size=10))
def test_programs_say_the_same_with_rooms_and_without(program: list[tuple[str, int]]) -> None:
    with_rooms, without = Machine(Backend("cpu", rng_seed=1, batch_size=N)), Machine(plain())
    for act, seed in program:
        said = [getattr(m, act)(np.random.default_rng(seed)) for m in (with_rooms, without)]
        if said[0] is not None:
            near(*said)
    for mine, theirs in zip(with_rooms.memories, without.memories, strict=True):
        near(mine.get(), theirs.get())
