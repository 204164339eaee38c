"""Where numbers lie is never seen: with rooms beside the memory, and without, programs and networks say the same."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from allocations import buffers
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from neonlite import Backend, NervanaObject
from neonlite.backend import stored
from neonlite.backend.executors import pool
from neonlite.backend.executors.quiet import Silence
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

BIG, DEEP, SMALL, THIN = (4, 6, 6), (16, 3, 3), (8, 3, 3), (4, 3, 3)
CONVOLUTIONS = [
    (BIG, BIG, {"C": 4, "K": 4, "H": 6, "W": 6, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1}),
    (BIG, SMALL, {"C": 4, "K": 8, "H": 6, "W": 6, "R": 2, "S": 2, "str_h": 2, "str_w": 2}),
    (SMALL, SMALL, {"C": 8, "K": 8, "H": 3, "W": 3}),
    (DEEP, DEEP, {"C": 16, "K": 16, "H": 3, "W": 3}),  # as many numbers as big ones, in another order
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
        ways = [
            Tensor.get,
            lambda t: np.array(t, copy=True),
            lambda t: self.be.sum(t).asnumpyarray(),
            lambda t: t.T[:, :9].get(),
        ]
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


# --- networks --------------------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[], Any]] = {
    "conv": lambda: Conv((3, 3, 4), Gaussian(0.0, 0.3), padding=1, bias=Constant(0.1), activation=Rectlin()),
    "strided": lambda: Conv((3, 3, 6), Gaussian(0.0, 0.3), strides=2, padding=1),
    "normed": lambda: Conv((3, 3, 5), Gaussian(0.0, 0.3), padding=1, batch_norm=True, activation=Rectlin()),
    "deconv": lambda: Deconv((2, 2, 3), Gaussian(0.0, 0.3), bias=Constant(0.1), activation=Tanh()),
    "max": lambda: Pooling(2, strides=1),
    "avg": lambda: Pooling(2, op="avg", strides=1),
    "dropout": lambda: Dropout(0.7),
    "leaky": lambda: Activation(Rectlin(slope=0.1)),
    "logistic": lambda: Activation(Logistic()),
    "norm": lambda: BatchNorm(),
    "normed 16": lambda: Conv((3, 3, 16), Gaussian(0.0, 0.3), padding=1, batch_norm=True, activation=Rectlin()),
    "residual": lambda: MergeSum([Conv((3, 3, 4), Gaussian(0.0, 0.3), padding=1), Conv((1, 1, 4), Gaussian(0.0, 0.3))]),
    "skip": lambda: MergeSum([Sequential([BatchNorm(), Activation(Rectlin())]), SkipNode()]),
    "inception": lambda: MergeBroadcast(
        [Conv((1, 1, 3), Gaussian(0.0, 0.3), activation=Rectlin()), Pooling(3, strides=1, padding=1)], merge="depth"
    ),
}


def trained(be: Backend, parts: list[str]) -> list[Any]:
    """Return what a network computes in two steps: outputs, deltas, gradients; and then for inference."""
    NervanaObject.be = be
    net = Sequential([Conv((1, 1, 4), Gaussian(0.0, 0.3)), *(PARTS[part]() for part in parts)])
    try:
        net.configure((3, 9, 9))
    except ValueError:  # nothing is left of the images
        reject()
    net.allocate()
    net.layers[0].prev_layer = True
    net.allocate_deltas()
    rng, told = np.random.default_rng(5), []
    x = be.zeros((3 * 81, N))
    for _ in range(2):
        x[:] = rng.standard_normal(x.shape)
        y = net.fprop(x)
        if rng.integers(2):
            told.append(y.get())
        told.append(net.bprop(be.array(rng.standard_normal(y.shape))).get())
        told += [g.get() for g in net.gradients]
    return [*told, net.fprop(x, inference=True).get()]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=5))
def test_networks_learn_the_same_with_rooms_and_without(parts: list[str]) -> None:
    found, wanted = trained(Backend("cpu", rng_seed=1, batch_size=N), parts), trained(plain(), parts)
    for mine, theirs in zip(found, wanted, strict=True):
        room = 2e-4 * max(1.0, float(np.abs(theirs).max()))
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=room)


def test_a_chain_of_convolutions_copies_nothing_between_them(turns: list[bool]) -> None:
    NervanaObject.be = be = Backend("cpu", rng_seed=1, batch_size=8)
    more = {"init": Gaussian(0.0, 0.3), "bias": Constant(0.1), "activation": Rectlin()}
    net = Sequential([
        Conv((3, 3, 8), **more), Pooling(2), Conv((3, 3, 16), **more), Dropout(1.0), Pooling(2, op="avg"),
        MergeSum([Conv((3, 3, 16), padding=1, **more), Conv((1, 1, 16), **more)]), Affine(10, **more),
    ])  # fmt: skip
    net.configure((3, 18, 18)).allocate()
    net.allocate_deltas()
    x, e = be.zeros((3 * 18 * 18, 8)), be.ones((10, 8))
    for _ in range(3):
        turns.clear()
        x[:] = np.random.default_rng(1).standard_normal(x.shape)
        net.fprop(x)
        mask = [False]  # of dropout, which is drawn in order
        assert turns == [False, *mask, True]  # the images; what the product reads
        net.bprop(e)
        assert turns[3:] == [False]  # the error of the product


# --- one thing at a time ---------------------------------------------------------------------------------------------


class Case:
    """A convolution whose results lie apart, and what they are."""

    def __init__(self, be: Backend, dims: tuple[int, int, int] = (4, 6, 6), outputs: Tensor | None = None) -> None:
        rng, (C, H, W) = np.random.default_rng(3), dims
        self.be, be.bsz = be, N
        self.layer = be.conv_layer("float32", N, C, C, H=H, W=W, R=1, S=1)
        self.I, self.F = be.array(rng.integers(-3, 4, (C * H * W, N))), be.array(np.eye(C))
        self.O = be.zeros((C * H * W, N)) if outputs is None else outputs
        self.wanted = self.I.get()
        self.run()

    def run(self) -> None:
        self.be.fprop_conv(self.layer, self.I, self.F, self.O)

    @property
    def is_apart(self) -> bool:
        room = self.O.memory.stored  # type: ignore[attr-defined]
        return room is not None and room.apart and not room.in_order


@pytest.fixture
def case(cpu: Backend) -> Case:
    return Case(cpu)


def test_results_lie_apart_until_they_are_read_and_are_copied_once(case: Case, turns: list[bool]) -> None:
    assert case.is_apart
    assert np.array_equal(case.O.get(), case.wanted)
    assert not case.is_apart
    assert np.array_equal(case.O.T.get(), case.wanted.T)
    assert np.array_equal(case.I.get(), case.wanted)  # which is in both places
    assert turns == [True]


def test_a_part_that_is_written_is_written_and_the_rest_stays(case: Case) -> None:
    case.O[3:5] = 7.0
    case.wanted[3:5] = 7
    assert np.array_equal(case.O.get(), case.wanted)
    case.run()
    case.O.reshape(4, 36, N)[1] = case.O.reshape(4, 36, N)[2]
    case.wanted[3:5] = case.I.get()[3:5]
    case.wanted.reshape(4, 36, N)[1] = case.wanted.reshape(4, 36, N)[2]
    assert np.array_equal(case.O.get(), case.wanted)


def test_what_is_written_whole_is_not_copied_before(case: Case, turns: list[bool]) -> None:
    case.O[:] = 2.0
    case.run()
    case.O[:] = case.wanted
    case.run()
    case.be.compound_dot(case.be.zeros((144, 9)), case.be.zeros((9, N)), case.O)
    case.run()
    case.O[:] = case.be.zeros((144, 1)) + 1
    assert turns == []
    assert (case.O.get() == 1).all()


def test_a_product_that_adds_to_what_lies_apart_adds_to_it(case: Case) -> None:
    case.be.compound_dot(case.be.ones((144, 1)), case.be.ones((1, N)), case.O, beta=1.0)
    assert np.array_equal(case.O.get(), case.wanted + 1)


def test_what_fails_leaves_a_target_that_lies_apart_as_it_was(case: Case) -> None:
    rows = case.be.array(np.full((1, 144), 500), dtype="int32")
    with pytest.raises(IndexError):
        case.O[:] = case.be.take(case.I, rows, axis=0)
    assert np.array_equal(case.O.get(), case.wanted)


def test_what_is_interrupted_leaves_what_was_there_before(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise MemoryError

    case.O[:] = case.O * 2
    plan = case.be.plan(case.O * 2)
    with monkeypatch.context() as patch:
        patch.setattr(images.Images, "_run", interrupted)
        patch.setattr(plan, "run", interrupted)
        for spoil in (case.run, lambda: stored.run(plan, [case.O], [case.O, 2])):
            with pytest.raises(MemoryError):
                spoil()
            assert case.is_apart
    assert np.array_equal(case.O.get(), 2 * case.wanted)


def test_memory_that_others_look_at_has_no_room_any_more(case: Case) -> None:
    for look in (np.asarray, np.from_dlpack, lambda t: t._array):
        case = Case(case.be)
        seen = look(case.O[2:])
        assert np.array_equal(seen, case.wanted[2:])
        case.O[:] = 0
        case.run()
        assert not case.is_apart
        assert np.array_equal(seen, case.wanted[2:])
        seen.flags.writeable and seen.__setitem__(0, 9)
        assert np.array_equal(case.O.get()[2:], seen)


def test_to_print_a_tensor_or_to_copy_it_does_not_take_its_room(case: Case) -> None:
    text, twin, other = repr(case.O), copy.deepcopy(case.O), case.be.array(case.O)
    assert str(int(case.wanted[0, 0])) in text
    assert np.array_equal(twin.get(), case.wanted)
    assert np.array_equal(other.get(), case.wanted)
    case.run()
    assert case.is_apart


def test_a_transpose_is_no_other_name_for_what_lies_apart(cpu: Backend) -> None:
    x, y = Case(cpu, (2, 1, 1)), Case(cpu, (2, 1, 1))
    x.O.get()  # it is in both places now
    out = cpu.zeros((2, 2))
    out[:] = x.O.T * 2 + x.O + y.O
    assert np.array_equal(out.get(), x.wanted.T * 2 + x.wanted + y.wanted)


def test_ops_that_look_at_other_places_find_the_numbers_in_order(cpu: Backend) -> None:
    case, out = Case(cpu, (2, 1, 1)), cpu.zeros((2, 2))
    for tree, wanted in (
        (cpu.dot(case.O, case.O), case.wanted @ case.wanted),
        ((case.O * 1).T + case.O, case.wanted.T + case.wanted),
        (case.O * cpu.array([[3.0]]) + case.I[:1, :1], case.wanted * 3 + case.wanted[0, 0]),
        (case.O - cpu.sum(case.O, axis=1), case.wanted - case.wanted.sum(axis=1, keepdims=True)),
    ):
        case.run()
        out[:] = tree
        assert np.array_equal(out.get(), wanted)
    wide, square = Case(cpu, (8, 1, 1)), cpu.zeros((4, 4))
    square[:] = cpu.dot(wide.O.reshape(4, 4), wide.O.reshape(4, 4))
    assert np.array_equal(square.get(), wide.wanted.reshape(4, 4) @ wide.wanted.reshape(4, 4))


def test_primitives_without_rooms_read_and_write_in_order(cpu: Backend) -> None:
    case, over, found = Case(cpu), Case(cpu), []
    for be, I, O in ((cpu, case.O, over.O), (other := plain(), other.array(case.wanted), other.zeros((144, N)))):
        layer = be.lrn_layer("float32", N, C=4, H=6, W=6, J=3)
        found.append(be.fprop_lrn(layer, I, O, be.zeros((144, N))).get())
    near(*found)


def test_sums_of_maps_are_those_of_the_maps_that_are_asked_for(cpu: Backend) -> None:
    for dims, rows, layer in (
        ((4, 6, 6), 144, {"C": 16, "K": 16, "H": 3, "W": 3}),  # other maps
        ((8, 6, 3), 72, {"C": 8, "K": 8, "H": 3, "W": 3}),  # some of the pixels
    ):
        case, maps = Case(cpu, dims), layer["K"]
        conv, b = cpu.conv_layer("float32", N, **layer), cpu.zeros((maps, 1))
        cpu.update_conv(conv, cpu.ones((rows, N)), case.O[:rows], cpu.zeros((maps, maps)), grad_bias=b)
        near(b.get().ravel(), case.wanted[:rows].reshape(maps, -1).sum(axis=1))


def test_products_read_either_factor_in_order(case: Case) -> None:
    ones, out = case.be.ones((N, 5)), case.be.zeros((144, 5))
    assert np.array_equal(case.be.compound_dot(case.O, ones, out).get(), case.wanted @ ones.get())
    case.run()
    turned = case.be.zeros((5, N))
    assert np.array_equal(case.be.compound_dot(case.be.ones((5, 144)), case.O, turned).get()[0], case.wanted.sum(0))


def test_memory_of_other_libraries_has_no_room(cpu: Backend) -> None:
    theirs = np.zeros((144, N), np.float32)
    case = Case(cpu, outputs=cpu.from_dlpack(theirs))
    assert np.array_equal(theirs, case.wanted)


def test_tensors_can_be_read_after_the_backend_was_cleaned_up(case: Case) -> None:
    case.be.cleanup_backend()
    assert case.is_apart
    assert np.array_equal(case.O.get(), case.wanted)


def test_rooms_are_in_the_ledger_and_go_with_the_memory(cpu: Backend) -> None:
    case = Case(cpu, (16, 20, 20))
    cpu.memory()
    before, O = cpu.memory().workspaces, case.O
    size = O.nbytes
    case.O = cpu.zeros(O.shape)
    case.run()
    assert cpu.memory().workspaces == before + size + images.ALIGN
    for _ in range(3):
        case.run()
    assert cpu.memory().workspaces == before + size + images.ALIGN
    del O
    assert cpu.memory().workspaces == before


def test_nothing_is_allocated_for_rooms_that_are_there(cpu: Backend) -> None:
    case = Case(cpu, (16, 20, 20))
    out, layer = cpu.zeros((16 * 20 * 20, N)), cpu.pool_layer("float32", "max", N, C=16, H=20, W=20, R=2, S=2)
    pooled, places, bias = cpu.zeros((1600, N)), cpu.zeros((1600, N), "uint8"), cpu.zeros((16, 1))
    dF = cpu.zeros((16, 16))

    def step() -> None:
        case.run()
        case.O[:] = cpu.maximum(case.O, 0)
        cpu.fprop_pool(layer, case.O, pooled, places)
        cpu.bprop_pool(layer, None, pooled, out, argmax=places)
        cpu.update_conv(case.layer, case.I, out, dF, grad_bias=bias)
        cpu.bprop_conv(case.layer, case.F, out, case.I)
        cpu.sum(case.O, axis=1)

    step()
    assert buffers(step) == []


def test_many_threads_may_read_what_lies_apart(cpu: Backend) -> None:
    case, found = Case(cpu, (32, 30, 30)), []
    for _ in range(5):
        case.run()
        gate = threading.Barrier(4)

        def look(gate: threading.Barrier = gate) -> None:
            gate.wait()
            found.append(np.array_equal(case.O.get(), case.wanted))

        threads = [threading.Thread(target=look) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert found == [True] * 20


def test_deltas_need_not_persist_and_nothing_is_copied_for_the_next_who_takes_their_place(
    cpu: Backend, turns: list[bool]
) -> None:
    place = cpu.zeros((200, N), persist_values=False)
    case = Case(cpu, outputs=place.share((144, N)))
    part = place.share((50, N))
    part[:] = 3.0
    assert turns == [False]  # the images that were read
    assert (part.get() == 3).all()
    case.run()
    other = place.reshape(-1, 1)[288:].reshape(56, N)
    other[:] = 4.0  # beside the images, which stay
    assert np.array_equal(case.O.get(), case.wanted)
    assert (other.get() == 4).all()


def test_what_lies_apart_stays_when_other_images_need_the_room(cpu: Backend) -> None:
    place = cpu.zeros((300, N), persist_values=False)
    first = Case(cpu, outputs=place[:144])
    second = Case(cpu, outputs=place[150:294])
    assert second.is_apart
    assert np.array_equal(first.O.get(), first.wanted)
    assert np.array_equal(second.O.get(), second.wanted)


def test_operands_are_read_before_their_room_is_another_ones(cpu: Backend) -> None:
    place = cpu.zeros((300, N))
    case, target = Case(cpu, outputs=place[:144]), place[150:294]
    other = Case(cpu)
    target[:] = cpu.minimum(other.O + 1, 1) * case.O
    assert np.array_equal(target.get(), np.minimum(other.wanted + 1, 1) * case.wanted)
    case.run()
    other.run()
    assert np.array_equal(case.O.get(), case.wanted)  # in both places, so that the room may be another one's
    target[:] = cpu.minimum(other.O + 1, 1) * case.O
    assert np.array_equal(target.get(), np.minimum(other.wanted + 1, 1) * case.wanted)
    case.run()
    case.O[:], target = case.O * 2, place[1:145]
    target[:] = case.O + 1
    assert np.array_equal(target.get(), case.wanted * 2 + 1)
    other.run()
    images, mean = cpu.zeros((144, N)), cpu.zeros((1, 1))
    cpu.assign([images, mean], [other.O + 1, cpu.array([[2.0]]) * 2])  # of which one has another shape
    assert np.array_equal(images.get(), other.wanted + 1)
    assert mean.get() == 4
    other.run()
    place = cpu.zeros((300, N))
    cpu.assign([place[:144], place[150:294]], [other.O + 1, other.O + 2])
    assert np.array_equal(place.get()[:144], other.wanted + 1)
    assert np.array_equal(place.get()[150:294], other.wanted + 2)


def test_operands_are_brought_along_where_they_are_no_more_than_those_that_lie_apart(
    case: Case, turns: list[bool]
) -> None:
    be = case.be
    others = [be.ones((144, N)) for _ in range(3)]
    case.O[:] = case.O + others[0]
    assert turns == [False]
    case.O[:] = case.O + others[0] + others[1]
    assert turns == [False] * 2
    case.run()
    case.O[:] = case.O + others[2] + be.zeros((144, N))
    assert turns == [False] * 2 + [True]
    assert np.array_equal(case.O.get(), case.wanted + 1)


@pytest.mark.parametrize("dtype", ["float16", "uint8", "int32", "float64"])
def test_operands_and_targets_of_any_dtype_lie_apart(case: Case, dtype: str) -> None:
    be, mask = case.be, np.random.default_rng(1).integers(0, 3, (144, N))
    out = be.zeros((144, N), dtype)
    out[:] = be.maximum(case.O, 0) * be.array(mask, dtype)
    assert np.array_equal(out.get(), np.maximum(case.wanted, 0) * mask)
    assert case.is_apart


def test_images_in_one_memory_do_not_take_each_others_room(cpu: Backend) -> None:
    place, ones = cpu.zeros((300, N)), cpu.ones((36, 4))
    case, target = Case(cpu, outputs=place[:144]), place[150:294]
    layer = cpu.conv_layer("float32", N, **CONVOLUTIONS[0][2])
    wanted = cpu.fprop_conv(layer, case.I, ones, cpu.zeros((144, N))).get()
    cpu.fprop_conv(layer, case.O, ones, target)
    assert np.array_equal(target.get(), wanted)
    assert np.array_equal(case.O.get(), case.wanted)


def test_maxima_are_added_to_what_is_there(case: Case) -> None:
    layer = case.be.pool_layer("float32", "max", N, C=4, H=6, W=6, R=2, S=2)
    pooled = case.be.ones((36, N))
    case.be.fprop_pool(layer, case.O, pooled, case.be.zeros((36, N), "uint8"), beta=2.0)
    wanted = case.wanted.reshape(4, 3, 2, 3, 2, N).max(axis=(2, 4)).reshape(36, N) + 2
    assert np.array_equal(pooled.get(), wanted)


def test_every_other_row_is_written_and_those_between_stay(cpu: Backend) -> None:
    memory = cpu.zeros((160, N))
    case = Case(cpu, outputs=memory[4:148])
    memory[::2] = 5.0
    case.wanted[::2] = 5
    assert np.array_equal(case.O.get(), case.wanted)


def test_without_onednn_there_are_no_rooms(cpu: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "found", lambda: None)
    case = Case(cpu)
    assert not case.be.ledger.has_rooms
    assert np.array_equal(case.O.get(), case.wanted)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int8", "int64"])
def test_places_of_maxima_lie_apart_in_whatever_dtype_they_are(cpu: Backend, dtype: str) -> None:
    case = Case(cpu)
    layer = cpu.pool_layer("float32", "max", N, C=4, H=6, W=6, R=3, S=2)
    pooled, places = cpu.zeros((4 * 2 * 3, N)), cpu.zeros((4 * 2 * 3, N), dtype)
    cpu.fprop_pool(layer, case.O, pooled, places)
    windows = case.wanted.reshape(4, 2, 3, 3, 2, N).transpose(0, 1, 3, 5, 2, 4).reshape(4, 2, 3, N, 6)
    assert np.array_equal(places.get().reshape(4, 2, 3, N), windows.argmax(-1))
    assert np.array_equal(pooled.get().reshape(4, 2, 3, N), windows.max(-1))
    back = cpu.zeros(case.O.shape)
    cpu.bprop_pool(layer, None, pooled, back, argmax=places)
    assert back.get().sum() == pooled.get().sum()


def test_maxima_of_numbers_that_lie_apart_are_those_of_numpy_also_of_nan(cpu: Backend) -> None:
    case = Case(cpu)
    case.I[34::36] = np.nan  # a pixel, as 0 * NaN is NaN in its other maps
    case.run()
    layer = cpu.pool_layer("float32", "max", N, C=4, H=6, W=6, R=2, S=2)
    pooled, places = cpu.zeros((36, N)), cpu.zeros((36, N), "uint8")
    cpu.fprop_pool(layer, case.O, pooled, places)
    wanted = case.I.get().reshape(4, 3, 2, 3, 2, N).max(axis=(2, 4))
    assert np.array_equal(pooled.get(), wanted.reshape(36, N), equal_nan=True)
    assert np.isnan(wanted).any()


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int32", "int64"])
@pytest.mark.parametrize("near", [1, 1 << 6, 1 << 20])
def test_numbersare_copied_in_pieces_to_where_they_are_copied_at_once(
    cpu: Backend, monkeypatch: pytest.MonkeyPatch, near: int, dtype: str
) -> None:
    monkeypatch.setattr(images, "LARGE", 1)
    monkeypatch.setattr(images, "NEAR", near)
    for form in (stored.Form(3, 12, 4), stored.Form(16, 7, 3), stored.Form(1, 5, 1), stored.Form(2, 1, 9)):
        numbers = np.random.default_rng(0).integers(0, 99, form).astype(dtype)
        room, back = np.zeros(numbers.size, dtype), np.zeros_like(numbers)
        cpu.primitives.turn(form, numbers, room, False)
        assert np.array_equal(room.reshape(form[::-1]), numbers.transpose())
        cpu.primitives.turn(form, back, room, True)
        assert np.array_equal(back, numbers)


@pytest.mark.parametrize("dims", [(1, 7, 5), (3, 1, 1), (16, 20, 20), (5, 13, 1), (5000, 1, 1)])
def test_sums_of_maps_that_lie_apart_are_as_those_in_order(cpu: Backend, dims: tuple[int, int, int]) -> None:
    case = Case(cpu, dims) if dims[0] < 1000 else None
    if case is None or not case.is_apart:  # too few maps, or too many, for this convolution
        rng = np.random.default_rng(0)
        room = rng.standard_normal(math.prod(dims) * N).astype(np.float32)
        out = np.zeros(dims[0], np.float32)
        cpu.primitives.sum_maps(room, out)
        near(out, room.reshape(-1, dims[0]).sum(axis=0, dtype=float))
        return
    b = cpu.zeros((dims[0], 1))
    cpu.update_conv(case.layer, case.I, case.O, cpu.zeros((dims[0], dims[0])), grad_bias=b)
    assert case.is_apart
    near(b.get(), case.wanted.reshape(dims[0], -1).sum(axis=1, keepdims=True, dtype=float))


def test_a_part_of_an_error_is_written_and_the_rest_stays(cpu: Backend) -> None:
    cpu.bsz = 16
    net = Sequential([Conv((3, 3, 8), Gaussian(0, 0.1)) for _ in range(3)])
    net.configure((3, 16, 16))
    net.allocate()
    net.allocate_deltas()
    rng, last = np.random.default_rng(0), net.layers[-1]
    y = net.fprop(cpu.array(rng.normal(size=(768, 16))))
    earlier, error = (cpu.array(rng.normal(size=y.shape)) for _ in "ab")
    wanted = last.bprop(error).get()
    last.bprop(earlier).get()
    found = last.bprop(error)
    found[:100] = 0
    np.testing.assert_array_equal(found.get()[:100], 0)
    np.testing.assert_array_equal(found.get()[100:], wanted[100:])


@pytest.mark.parametrize(("pixels", "maps"), [(1_000_003, 2), (4_214_809, 1), (802_816, 3), (7, 5), (4096, 4096)])
def test_sums_of_maps_are_as_precise_as_their_numbers(cpu: Backend, pixels: int, maps: int) -> None:
    room = (np.random.default_rng(0).random((pixels, maps)) + 0.05).astype(np.float32)
    out = np.empty(maps, np.float32)
    cpu.primitives.sum_maps(room.reshape(-1), out)
    np.testing.assert_allclose(out, room.sum(axis=0, dtype=float), rtol=1e-6)


def test_sums_of_maps_are_the_same_in_every_number_of_threads_and_silent(cpu: Backend) -> None:
    room = np.random.default_rng(0).standard_normal((300_000, 5)).astype(np.float32)
    room[[7, -7], 3], room[11, 2], seen = (np.inf, -np.inf), np.nan, set()
    before = pool.threads()
    try:
        for n in (1, 2, 3):
            pool.set_threads(n)
            out = np.empty(5, np.float32)
            with Silence():
                cpu.primitives.sum_maps(room.reshape(-1), out)
            seen.add(out.tobytes())
    finally:
        pool.set_threads(before)
    assert len(seen) == 1
    np.testing.assert_allclose(out[[0, 1, 4]], room[:, [0, 1, 4]].sum(axis=0, dtype=float), rtol=1e-4, atol=1e-3)
    assert np.isnan(out[[2, 3]]).all()
