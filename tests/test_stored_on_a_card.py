"""On a card, too, where numbers lie is never seen. The card is simulated, and a stand-in convolves in cuDNN's place."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import test_stored as shared
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cuda_primitives import ByCudnn

from neonlite import Backend, NervanaObject
from neonlite.backend.cuda import cudnn
from neonlite.backend.cuda.rooms import TURN
from neonlite.backend.cuda.simulated import Simulated
from neonlite.backend.stored import Form
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import LRN as Response
from neonlite.layers import Affine, BatchNorm, Conv, MergeSum, Pooling, Sequential, SkipNode
from neonlite.transforms import Rectlin

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are simulated with g++, which is not here")
N = shared.N


class Counting(ByCudnn):
    """A driver with a stand-in for cuDNN, which notes each kernel that it compiles, and each that it launches."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[int, str] = {}
        self.launched: list[tuple[str, tuple[Any, ...]]] = []

    def compile(self, source: str) -> Any:
        kernel = super().compile(source)
        self.texts[id(kernel)] = source
        return kernel

    def launch(self, kernel: Any, grid: Any, block: int, arguments: Any) -> None:
        self.launched.append((self.texts[id(kernel)], tuple(arguments)))
        super().launch(kernel, grid, block, arguments)

    def turned(self, images: int) -> list[tuple[bool, Form]]:
        """Return what was turned of so many images, filters apart: whether back, and what; then forget."""
        found = [(bool(x[5]), Form(*x[2:5])) for text, x in self.launched if text.endswith(TURN)]
        self.launched.clear()
        return [x for x in found if x[1].images == images]


def card(dtype: str = "float32", batch_size: int = N) -> Backend:
    """Return a backend of a simulated card, where images may lie apart."""
    runtime = Simulated()
    runtime.driver = Counting()
    return Backend(runtime, rng_seed=1, batch_size=batch_size, default_dtype=dtype)


# --- the same as without rooms ---------------------------------------------------------------------------------------


def check_program(program: list[tuple[str, int]]) -> None:
    with_rooms, without = shared.Machine(card()), shared.Machine(shared.plain())
    for act, seed in program:
        said = [getattr(m, act)(np.random.default_rng(seed)) for m in (with_rooms, without)]
        if said[0] is not None:
            shared.near(*said)
    for mine, theirs in zip(with_rooms.memories, without.memories, strict=True):
        shared.near(mine.get(), theirs.get())


PROGRAMS = st.lists(st.tuples(st.sampled_from(shared.ACTS), st.integers(0, 1 << 20)), min_size=1, max_size=10)


@settings(max_examples=30, deadline=None)
@given(PROGRAMS)
def test_programs_say_the_same_with_rooms_and_without(program: list[tuple[str, int]]) -> None:
    check_program(program)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(PROGRAMS)
def test_many_programs_say_the_same_with_rooms_and_without(program: list[tuple[str, int]]) -> None:
    check_program(program)


PARTS = {
    **shared.PARTS,
    "l2": lambda: Pooling(2, op="l2", strides=1),
    "response": lambda: Response(3, ascale=0.5, bpower=0.75),
    "one pixel": lambda: Conv((1, 1, 5), Gaussian(0.0, 0.3), bias=Constant(0.1), activation=Rectlin()),
}


def check_network(parts: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared, "PARTS", PARTS)
        found, wanted = shared.trained(card(), parts), shared.trained(shared.plain(), parts)
    for mine, theirs in zip(found, wanted, strict=True):
        room = 2e-4 * max(1.0, float(np.abs(theirs).max()))
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=room)


@pytest.mark.parametrize(
    "parts",
    [
        ["conv", "max", "normed", "one pixel", "avg", "residual"],
        ["strided", "norm", "leaky", "response", "l2", "skip"],
        ["conv", "inception", "dropout", "deconv"],
    ],
)
def test_networks_learn_the_same_with_rooms_and_without(parts: list[str]) -> None:
    check_network(parts)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=5))
def test_many_networks_learn_the_same_with_rooms_and_without(parts: list[str]) -> None:
    check_network(parts)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_images_of_any_float_dtype_lie_apart_also_when_they_are_more_than_their_maps(dtype: str) -> None:
    made, batch = [], 7
    for be in (card(dtype, batch), Backend(Simulated(), rng_seed=1, batch_size=batch, default_dtype=dtype)):
        NervanaObject.be = be
        conv = Conv((3, 3, 4), Gaussian(0, 0.3), bias=Constant(0.1), activation=Rectlin())
        net = Sequential([conv, Response(3), BatchNorm(), Pooling(2)])
        net.configure((3, 8, 8)).allocate()
        net.allocate_deltas()
        y = net.fprop(be.array(np.random.default_rng(1).standard_normal((192, batch)), dtype))
        net.bprop(be.array(np.random.default_rng(2).standard_normal(y.shape), dtype))
        assert (y.memory.stored is not None) == be.primitives.has_rooms  # type: ignore[attr-defined]
        made.append([y.get(), *(g.get() for g in net.gradients)])
    for mine, theirs in zip(*made, strict=True):
        close = {"float16": 2e-2, "float32": 1e-4, "float64": 1e-10}[dtype]
        np.testing.assert_allclose(mine.astype(float), theirs.astype(float), rtol=close, atol=close)


# --- how often they are copied ---------------------------------------------------------------------------------------


def biased() -> dict[str, Any]:
    return {"init": Gaussian(0.0, 0.3), "bias": Constant(0.1), "activation": Rectlin()}


def normed() -> dict[str, Any]:
    return {"init": Gaussian(0.0, 0.3), "batch_norm": True, "activation": Rectlin()}


IN, OUT, ERROR = (False, Form(3, 324, 12)), (True, Form(16, 36, 12)), (False, Form(16, 36, 12))
CHAINS: dict[str, Callable[[], list[Any]]] = {
    "bias, relu and pooling": lambda: [Conv((3, 3, 8), **biased()), Pooling(2), Conv((3, 3, 16), **biased())],
    "batch norm": lambda: [Conv((3, 3, 8), **normed()), Pooling(2, op="avg"), Conv((3, 3, 16), **normed())],
    "filters of one pixel": lambda: [
        Conv((3, 3, 8), **normed()),
        Conv((1, 1, 4), **biased()),
        Pooling(2),
        Conv((3, 3, 16), **biased()),
    ],
    "local response": lambda: [
        Conv((3, 3, 8), **biased()),
        Response(5),
        Pooling(2, op="l2"),
        Conv((3, 3, 16), **biased()),
    ],
    "a residual": lambda: [
        Conv((3, 3, 8), **biased()),
        Pooling(2),
        MergeSum([Sequential([BatchNorm(), Conv((3, 3, 8), padding=1, **normed())]), SkipNode()]),
        Conv((3, 3, 16), **biased()),
    ],
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_turns_images_at_its_ends_alone(name: str) -> None:
    NervanaObject.be = be = card(batch_size=12)
    net = Sequential([*CHAINS[name](), Affine(10, **biased())])
    net.configure((3, 18, 18)).allocate()
    net.allocate_deltas()
    x, e, driver = be.zeros((3 * 18 * 18, 12)), be.ones((10, 12)), be.runtime.driver
    for _ in range(2):
        x[:] = np.random.default_rng(1).standard_normal(x.shape)
        driver.turned(12)
        net.fprop(x)
        assert driver.turned(12) == [IN, OUT]  # the images; what the product reads
        net.bprop(e)
        assert driver.turned(12) == [ERROR]  # that of the product


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "int32", "int64"])
@pytest.mark.parametrize("form", [(3, 12, 4), (33, 7, 31), (1, 5, 1), (40, 1, 65), (2, 0, 3)])
def test_numbers_are_turned_and_turned_back(form: tuple[int, int, int], dtype: str) -> None:
    be, numbers = card(), np.random.default_rng(0).integers(0, 99, form).astype(dtype)
    room, back = np.zeros(numbers.size, dtype), np.zeros_like(numbers)
    be.primitives.turn(Form(*form), numbers, room, False)
    np.testing.assert_array_equal(room.reshape(form[::-1]), numbers.transpose())
    be.primitives.turn(Form(*form), back, room, True)
    np.testing.assert_array_equal(back, numbers)


# --- what else knows of rooms ----------------------------------------------------------------------------------------


def test_without_cudnn_there_are_no_rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    be = Backend(Simulated(), batch_size=N)
    case = shared.Case(be)
    assert not be.ledger.has_rooms
    monkeypatch.setenv("NEONLITE_CUDNN", "0")
    assert cudnn.load() is None
    assert np.array_equal(case.O.get(), case.wanted)


def test_rooms_are_in_the_ledger_and_go_with_the_memory() -> None:
    be = card()
    case = Apart(be)
    before, size = be.memory().workspaces, case.O.nbytes
    case.O = be.zeros(case.O.shape)
    assert be.memory().workspaces == before - size
    case.run()
    assert be.memory().workspaces == before


class Apart(shared.Case):
    """A convolution that leaves its results apart."""

    def run(self) -> None:
        if not hasattr(self, "wide"):
            C, _, H, W, _ = self.layer.dimI
            self.wide = self.be.conv_layer("float32", N, C, C, H=H, W=W, R=3, S=3, pad_h=1, pad_w=1)
            self.filters = self.be.zeros(self.wide.dimF)
            self.filters.reshape(C, 9, C)[:, 4:5] = np.eye(C).reshape(C, 1, C)
            self.half = self.be.conv_layer("float32", N, C // 2, C // 2, H=H, W=W, R=3, S=3, pad_h=1, pad_w=1)
            self.half_filters = self.be.ones(self.half.dimF)
        self.be.fprop_conv(self.wide, self.I, self.filters, self.O)


def test_masks_are_drawn_where_images_lay_apart() -> None:
    case = Apart(card())
    assert case.is_apart
    case.be.make_binary_mask(case.O, 0.5)
    wanted = Backend("cpu", rng_seed=1).zeros(case.O.shape)
    wanted.backend.make_binary_mask(wanted, 0.5)
    np.testing.assert_array_equal(case.O.get(), wanted.get())


@pytest.mark.parametrize("op", ["max", "l2"])
def test_errors_of_pooling_are_right_when_what_they_need_was_read_before(op: str) -> None:
    found = []
    for case in (Apart(card()), Apart(Backend("cpu", batch_size=N))):
        be = case.be
        layer = be.pool_layer("float32", op, N, C=4, H=6, W=6, R=2, S=2)
        pooled, back, places = be.zeros((36, N)), be.zeros((144, N)), be.zeros((36, N), "uint8")
        be.fprop_pool(layer, case.O, pooled, places if op == "max" else None)
        places.get(), case.O.get()
        more = {"argmax": places} if op == "max" else {}
        found.append(be.bprop_pool(layer, None if more else case.O, pooled, back, **more).get())
    shared.near(*found)


def test_what_cudnn_cannot_do_is_done_in_order_and_nothing_is_turned(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Apart(card())
    monkeypatch.setenv("NEONLITE_WORKSPACE", "50")
    with pytest.warns(RuntimeWarning, match="no plan works in so little"):
        case.run()
    case.be.runtime.driver.turned(N)
    case.run()
    assert case.be.runtime.driver.turned(N) == []
    assert np.array_equal(case.O.get(), case.wanted)


# --- graphs ----------------------------------------------------------------------------------------------------------


RUNS = 4  # one in which layers prepare their work, two as they are, and one that is recorded


class Steps:
    """A network whose passes are replayed, and what may happen between them."""

    def __init__(self, graphs: bool) -> None:
        NervanaObject.be = self.be = be = card()
        self.graphs, self.calls = graphs, 0
        self.net = Sequential(
            [Conv((3, 3, 4), **biased()), BatchNorm(), Pooling(2), Conv((2, 2, 3), **normed()), Affine(2, **biased())]
        )
        self.net.configure((3, 8, 8)).allocate()
        self.net.allocate_deltas()
        self.x, self.e = be.zeros((192, N)), be.ones((2, N))
        self.seen = [layer.outputs for layer in self.net.layers if layer.outputs is not None]
        self.rng = np.random.default_rng(4)

    def both(self) -> None:
        self.calls += 1
        self.net.fprop(self.x)
        self.net.bprop(self.e)

    def step(self, n: int) -> None:
        self.x[:] = self.rng.standard_normal(self.x.shape)
        self.be.replay("step", self.both, [self.net, self.x, self.e], graphs=self.graphs)

    def plain(self, n: int) -> None:
        self.both()

    def read(self, n: int) -> Any:
        return self.seen[n % len(self.seen)].get()

    def write(self, n: int) -> None:
        self.seen[n % len(self.seen)][n % 2 : n % 2 + 2] = float(n % 7)

    def double(self, n: int) -> None:
        """Work on all of a result, where it lies."""
        out = self.seen[n % len(self.seen)]
        out[:] = out * 2

    def images(self, n: int) -> None:
        """Have a convolution bring the inputs elsewhere."""
        layer = self.net.layers[0]
        layer.fprop(self.x)

    def show(self, n: int) -> Any:
        return np.asarray(self.seen[n % len(self.seen)]).copy()

    def deltas(self, n: int) -> Any:
        layer = self.net.layers[1 + n % 2]
        return layer.deltas.get() if layer.deltas is not None else None

    def told(self) -> list[Any]:
        return [t.get() for t in (*self.seen, *self.net.gradients)]


def check_replays(acts: list[tuple[str, int]]) -> Steps:
    replayed, run = Steps(True), Steps(False)
    for act, n in acts:
        said = [getattr(steps, act)(n) for steps in (replayed, run)]
        if said[0] is not None:
            np.testing.assert_array_equal(*said)
    for mine, theirs in zip(replayed.told(), run.told(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    return replayed


BETWEEN = ["step", "step", "step", "plain", "read", "write", "double", "images", "show", "deltas"]
SCHEDULES = st.lists(st.tuples(st.sampled_from(BETWEEN), st.integers(0, 100)), min_size=1, max_size=12)


def test_what_is_replayed_finds_and_leaves_numbers_where_a_run_would() -> None:
    steps = check_replays([("step", 0)] * 6)
    assert steps.calls == RUNS, steps.be.graphs


@pytest.mark.parametrize("act", ["read", "write", "double", "images", "deltas", "plain"])
def test_what_is_done_between_replays_does_not_spoil_them(act: str) -> None:
    steps = check_replays([*[("step", 0)] * RUNS, *[(act, 0), ("step", 0), (act, 1), (act, 2), ("step", 0)] * 2])
    assert steps.calls == RUNS + 6 * (act == "plain"), steps.be.graphs


def test_a_block_whose_rooms_are_gone_is_run_and_recorded_anew() -> None:
    steps = check_replays([*[("step", 0)] * (RUNS + 1), ("show", 1), *[("step", 0)] * 4])
    assert steps.calls == RUNS + 3, steps.be.graphs


def left(case: Apart) -> None:
    """Have a convolution leave numbers apart."""
    case.run()


def read(case: Apart) -> None:
    """Have them in both places."""
    case.run()
    assert np.array_equal(case.O.get(), case.wanted)


def written(case: Apart) -> None:
    """Have some written, so that all are in order."""
    case.run()
    case.O[3:5] = 7.0


def others(case: Apart) -> None:
    """Have other images of other tensors lie in the same room."""
    case.run()
    case.O[:] = case.O + 1
    case.be.fprop_conv(case.half, case.I[:72], case.half_filters, case.O[:72])


WAYS = [left, read, written, others]


@pytest.mark.parametrize("later", WAYS)
@pytest.mark.parametrize("first", WAYS)
def test_a_block_finds_its_operands_wherever_they_lay_before(
    first: Callable[[Apart], None], later: Callable[[Apart], None]
) -> None:
    made = []
    for graphs in (True, False):
        case, calls = Apart(card()), 0
        be, layer = case.be, case.be.pool_layer("float32", "avg", N, C=4, H=6, W=6, R=2, S=2)
        total, pooled, kept = be.zeros((144, N)), be.zeros((36, N)), be.zeros((36, N))

        def block(
            case: Apart = case, layer: Any = layer, total: Any = total, pooled: Any = pooled, kept: Any = kept
        ) -> None:
            nonlocal calls
            calls += 1
            total[:] = total + case.O
            kept[:] = kept + pooled
            case.be.fprop_pool(layer, case.O, pooled)

        for way in [first] * 4 + [later] * 2 + [first]:
            way(case)
            pooled[3:9] = 5.0
            be.replay("sums", block, [total, case.O, pooled, kept], graphs=graphs)
        made.append([t.get() for t in (total, pooled, kept)])
        assert calls == (3 if graphs else 7), be.graphs
    for mine, theirs in zip(*made, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_block_that_writes_a_part_keeps_the_rest_of_what_was_put_there_by_another() -> None:
    be = card()
    place = be.zeros((200, N), persist_values=False)
    first, second = (Apart(be, outputs=place.share((144, N))) for _ in range(2))
    part = second.O[:72]

    def block() -> None:
        be.fprop_conv(second.half, second.I[72:], second.half_filters, part)

    for _ in range(4):
        first.run()  # whose numbers need not persist, when another takes their place
        be.replay("part", block, [part, second.I])
    second.run()
    be.replay("part", block, [part, second.I])
    np.testing.assert_array_equal(second.O.get()[72:], second.wanted[72:])


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(SCHEDULES)
def test_schedules_of_replays_and_other_work_do_what_runs_would(acts: list[tuple[str, int]]) -> None:
    check_replays([("step", 0)] * RUNS + acts + [("step", 0)])
