"""NHWC layout on the GPU: the same values as in CHWN. The GPU is simulated, and a stand-in replaces cuDNN."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import image_programs
from helpers.simulated_gpu import ByCudnn
from hypothesis import given, settings, strategies as st

from neonlite import Backend, NervanaObject
from neonlite.backend.planning.layout import ImageShape
from neonlite.backend.runtimes.cuda import convolution
from neonlite.backend.runtimes.cuda.convolution import REORDER_KERNEL
from neonlite.backend.runtimes.cuda.simulator import SimulatedGPU
from neonlite.callbacks import Callbacks
from neonlite.data import ArrayIterator
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import LRN as Response, Affine, BatchNorm, Conv, MergeSum, Pooling, Sequential, SkipNode
from neonlite.models import Model
from neonlite.optimizers import Adam
from neonlite.transforms import Rectlin

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are simulated with g++, which is not here")
N = image_programs.N


class Counting(ByCudnn):
    """A driver with a stand-in for cuDNN that records the kernels which it compiles and launches."""

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

    def reorders_of(self, images: int) -> list[tuple[bool, ImageShape]]:
        """Return the reorders of images of a batch size since the last call, as (to_chwn, shape), without filters."""
        reorders = [(bool(x[5]), ImageShape(*x[2:5])) for text, x in self.launched if text.endswith(REORDER_KERNEL)]
        self.launched.clear()
        return [x for x in reorders if x[1].batch_size == images]


def gpu_backend(dtype: str = "float32", batch_size: int = N) -> Backend:
    """Return a backend of a simulated GPU that supports NHWC images."""
    runtime = SimulatedGPU()
    runtime.driver = Counting()
    return Backend(runtime, rng_seed=1, batch_size=batch_size, default_dtype=dtype)


# --- the same results as without layout caches ---


def check_program(program: list[tuple[str, int]]) -> None:
    with_caches, without = image_programs.Machine(gpu_backend()), image_programs.Machine(image_programs.plain())
    for act, seed in program:
        results = [getattr(m, act)(np.random.default_rng(seed)) for m in (with_caches, without)]
        if results[0] is not None:
            image_programs.near(*results)
    for mine, theirs in zip(with_caches.memories, without.memories, strict=True):
        image_programs.near(mine.get(), theirs.get())


PROGRAMS = st.lists(st.tuples(st.sampled_from(image_programs.ACTS), st.integers(0, 1 << 20)), min_size=1, max_size=10)


@settings(max_examples=30)
@given(PROGRAMS)
def test_programs_give_the_same_results_with_and_without_layout_caches(program: list[tuple[str, int]]) -> None:
    check_program(program)


@pytest.mark.slow
@settings(max_examples=300)
@given(PROGRAMS)
def test_many_programs_give_the_same_results_with_and_without_layout_caches(program: list[tuple[str, int]]) -> None:
    check_program(program)


PARTS = {
    **image_programs.PARTS,
    "l2": lambda: Pooling(2, op="l2", strides=1),
    "response": lambda: Response(3, ascale=0.5, bpower=0.75),
    "one pixel": lambda: Conv((1, 1, 5), Gaussian(0.0, 0.3), bias=Constant(0.1), activation=Rectlin()),
}


def check_network(parts: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image_programs, "PARTS", PARTS)
        results, wanted = (
            image_programs.trained(gpu_backend(), parts),
            image_programs.trained(image_programs.plain(), parts),
        )
    for mine, theirs in zip(results, wanted, strict=True):
        tolerance = 2e-4 * max(1.0, float(np.abs(theirs).max()))
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    "parts",
    [
        ["conv", "max", "normed", "one pixel", "avg", "residual"],
        ["strided", "norm", "leaky", "response", "l2", "skip"],
        ["conv", "inception", "dropout", "deconv"],
    ],
)
def test_networks_train_the_same_with_and_without_layout_caches(parts: list[str]) -> None:
    check_network(parts)


@pytest.mark.slow
@settings(max_examples=25)
@given(st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=5))
def test_many_networks_train_the_same_with_and_without_layout_caches(parts: list[str]) -> None:
    check_network(parts)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_images_of_any_float_dtype_are_in_nhwc_also_with_more_images_than_channels(dtype: str) -> None:
    results, batch = [], 7
    for be in (gpu_backend(dtype, batch), Backend(SimulatedGPU(), rng_seed=1, batch_size=batch, default_dtype=dtype)):
        NervanaObject.be = be
        conv = Conv((3, 3, 4), Gaussian(0, 0.3), bias=Constant(0.1), activation=Rectlin())
        net = Sequential([conv, Response(3), BatchNorm(), Pooling(2)])
        net.configure((3, 8, 8)).allocate()
        net.allocate_deltas()
        y = net.fprop(be.array(np.random.default_rng(1).standard_normal((192, batch)), dtype))
        net.bprop(be.array(np.random.default_rng(2).standard_normal(y.shape), dtype))
        assert (y.allocation.layout_cache is not None) == be.primitives.supports_nhwc  # type: ignore[attr-defined]
        results.append([y.get(), *(g.get() for g in net.gradients)])
    for mine, theirs in zip(*results, strict=True):
        close = {"float16": 2e-2, "float32": 1e-4, "float64": 1e-10}[dtype]
        np.testing.assert_allclose(mine.astype(float), theirs.astype(float), rtol=close, atol=close)


# --- number of reorders ---


def biased() -> dict[str, Any]:
    return {"init": Gaussian(0.0, 0.3), "bias": Constant(0.1), "activation": Rectlin()}


def normed() -> dict[str, Any]:
    return {"init": Gaussian(0.0, 0.3), "batch_norm": True, "activation": Rectlin()}


IN, OUT, ERROR = (False, ImageShape(3, 324, 12)), (True, ImageShape(16, 36, 12)), (False, ImageShape(16, 36, 12))
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
def test_a_sequence_of_layers_reorders_images_at_its_ends_only(name: str) -> None:
    NervanaObject.be = be = gpu_backend(batch_size=12)
    net = Sequential([*CHAINS[name](), Affine(10, **biased())])
    net.configure((3, 18, 18)).allocate()
    net.allocate_deltas()
    x, e, driver = be.zeros((3 * 18 * 18, 12)), be.ones((10, 12)), be.runtime.driver
    for _ in range(2):
        x[:] = np.random.default_rng(1).standard_normal(x.shape)
        driver.reorders_of(12)
        net.fprop(x)
        assert driver.reorders_of(12) == [IN, OUT]  # the images, and the operand of the matrix product
        net.bprop(e)
        assert driver.reorders_of(12) == [ERROR]  # the error from the matrix product


class Reorders(Callbacks):
    """Records the reorders of each training step."""

    can_replay = True

    def __init__(self, model: Model) -> None:
        super().__init__(model, progress_bar=False)
        self.of_steps: list[list[tuple[bool, ImageShape]]] = []

    def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
        super().on_minibatch_end(epoch, minibatch)
        self.of_steps.append(NervanaObject.be.runtime.driver.reorders_of(12))


def fitted(be: Backend, name: str) -> tuple[list[Any], list[list[tuple[bool, ImageShape]]]]:
    """Return the weights after five steps of ``fit``, the last of which are CUDA graphs, and the reorders of each."""
    NervanaObject.be, rng = be, np.random.default_rng(1)
    data = ArrayIterator(rng.standard_normal((60, 3 * 18 * 18)), rng.integers(0, 4, 60), nclass=4, lshape=(3, 18, 18))
    model = Model([*CHAINS[name](), Affine(4, Gaussian(0.0, 0.3), activation="softmax")])
    callbacks = Reorders(model) if be.graphs is not None else Callbacks(model, progress_bar=False)
    model.fit(data, cost="CrossEntropyMulti", optimizer=Adam(0.01), num_epochs=1, callbacks=callbacks)
    return [*model.get_weights().values()], getattr(callbacks, "of_steps", [])


@pytest.mark.parametrize("name", [x for x in CHAINS if x != "local response"])  # its windows along channels are in CHWN
def test_a_training_step_is_a_program_that_reorders_images_at_its_ends_only(name: str) -> None:
    weights, reorders = fitted(gpu_backend(batch_size=12), name)
    wanted, _ = fitted(Backend("cpu", rng_seed=1, batch_size=12), name)
    assert {tuple(sorted(step, key=str)) for step in reorders} == {tuple(sorted([IN, OUT, ERROR], key=str))}
    for mine, theirs in zip(weights, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-4)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "int32", "int64"])
@pytest.mark.parametrize("form", [(3, 12, 4), (33, 7, 31), (1, 5, 1), (40, 1, 65), (2, 0, 3)])
def test_values_are_reordered_and_reordered_back(form: tuple[int, int, int], dtype: str) -> None:
    be, numbers = gpu_backend(), np.random.default_rng(0).integers(0, 99, form).astype(dtype)
    nhwc, back = np.zeros(numbers.size, dtype), np.zeros_like(numbers)
    be.primitives.reorder(ImageShape(*form), numbers, nhwc, False)
    np.testing.assert_array_equal(nhwc.reshape(form[::-1]), numbers.transpose())
    be.primitives.reorder(ImageShape(*form), back, nhwc, True)
    np.testing.assert_array_equal(back, numbers)


# --- memory, masks and fallbacks ---


def test_without_cudnn_there_are_no_layout_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    be = Backend(SimulatedGPU(), batch_size=N)
    case = image_programs.Case(be)
    assert not be.memory_tracker.has_layout_caches
    monkeypatch.setenv("NEONLITE_CUDNN", "0")
    assert convolution.load_frontend() is None
    assert np.array_equal(case.O.get(), case.wanted)


def test_nhwc_buffers_are_tracked_and_freed_with_the_memory() -> None:
    be = gpu_backend()
    case = NhwcCase(be)
    before, size = be.memory().workspaces, case.O.nbytes
    case.O = be.zeros(case.O.shape)
    assert be.memory().workspaces == before - size
    case.run()
    assert be.memory().workspaces == before


class NhwcCase(image_programs.Case):
    """A convolution that leaves its results in NHWC."""

    def run(self) -> None:
        if not hasattr(self, "wide"):
            C, _, H, W, _ = self.layer.dimI
            self.wide = self.be.conv_layer("float32", N, C, C, H=H, W=W, R=3, S=3, pad_h=1, pad_w=1)
            self.filters = self.be.zeros(self.wide.dimF)
            self.filters.reshape(C, 9, C)[:, 4:5] = np.eye(C).reshape(C, 1, C)
            self.half = self.be.conv_layer("float32", N, C // 2, C // 2, H=H, W=W, R=3, S=3, pad_h=1, pad_w=1)
            self.half_filters = self.be.ones(self.half.dimF)
        self.be.fprop_conv(self.wide, self.I, self.filters, self.O)


def test_masks_are_drawn_where_images_were_in_nhwc() -> None:
    case = NhwcCase(gpu_backend())
    assert case.is_nhwc_only
    case.be.make_binary_mask(case.O, 0.5)
    wanted = Backend("cpu", rng_seed=1).zeros(case.O.shape)
    wanted.backend.make_binary_mask(wanted, 0.5)
    np.testing.assert_array_equal(case.O.get(), wanted.get())


@pytest.mark.parametrize("op", ["max", "l2"])
def test_the_backward_pass_of_pooling_is_right_after_its_operands_were_reordered_to_chwn(op: str) -> None:
    results = []
    for case in (NhwcCase(gpu_backend()), NhwcCase(Backend("cpu", batch_size=N))):
        be = case.be
        layer = be.pool_layer("float32", op, N, C=4, H=6, W=6, R=2, S=2)
        pooled, back, argmax = be.zeros((36, N)), be.zeros((144, N)), be.zeros((36, N), "uint8")
        be.fprop_pool(layer, case.O, pooled, argmax if op == "max" else None)
        argmax.get(), case.O.get()
        more = {"argmax": argmax} if op == "max" else {}
        results.append(be.bprop_pool(layer, None if more else case.O, pooled, back, **more).get())
    image_programs.near(*results)


def test_what_cudnn_cannot_compute_runs_in_chwn_and_nothing_is_reordered(monkeypatch: pytest.MonkeyPatch) -> None:
    case = NhwcCase(gpu_backend())
    monkeypatch.setenv("NEONLITE_WORKSPACE", "50")
    with pytest.warns(RuntimeWarning, match="no plan has a workspace within the limit"):
        case.run()
    case.be.runtime.driver.reorders_of(N)
    case.run()
    assert case.be.runtime.driver.reorders_of(N) == []
    assert np.array_equal(case.O.get(), case.wanted)


# --- graphs ----------------------------------------------------------------------------------------------------------


RUNS = 4  # one in which layers allocate buffers, two more, and one that is captured


class Steps:
    """A network whose forward and backward passes are replayed, and operations between replays."""

    def __init__(self, graphs: bool) -> None:
        NervanaObject.be = self.be = be = gpu_backend()
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
        """Update a whole result in its current layout."""
        out = self.seen[n % len(self.seen)]
        out[:] = out * 2

    def images(self, n: int) -> None:
        """Have a convolution reorder the inputs."""
        layer = self.net.layers[0]
        layer.fprop(self.x)

    def show(self, n: int) -> Any:
        return np.asarray(self.seen[n % len(self.seen)]).copy()

    def deltas(self, n: int) -> Any:
        layer = self.net.layers[1 + n % 2]
        return layer.deltas.get() if layer.deltas is not None else None

    def values(self) -> list[Any]:
        return [t.get() for t in (*self.seen, *self.net.gradients)]


def check_replays(acts: list[tuple[str, int]]) -> Steps:
    replayed, run = Steps(True), Steps(False)
    for act, n in acts:
        results = [getattr(steps, act)(n) for steps in (replayed, run)]
        if results[0] is not None:
            np.testing.assert_array_equal(*results)
    for mine, theirs in zip(replayed.values(), run.values(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    return replayed


BETWEEN = ["step", "step", "step", "plain", "read", "write", "double", "images", "show", "deltas"]
SCHEDULES = st.lists(st.tuples(st.sampled_from(BETWEEN), st.integers(0, 100)), min_size=1, max_size=12)


def test_a_replay_finds_and_leaves_images_in_the_layouts_of_a_run() -> None:
    steps = check_replays([("step", 0)] * 6)
    assert steps.calls == RUNS, steps.be.graphs


@pytest.mark.long
@pytest.mark.parametrize("act", ["read", "write", "double", "images", "deltas", "plain"])
def test_work_between_replays_does_not_affect_them(act: str) -> None:
    steps = check_replays([*[("step", 0)] * RUNS, *[(act, 0), ("step", 0), (act, 1), (act, 2), ("step", 0)] * 2])
    assert steps.calls == RUNS + 6 * (act == "plain"), steps.be.graphs


def test_a_block_whose_layout_caches_are_freed_is_run_and_captured_again() -> None:
    steps = check_replays([*[("step", 0)] * (RUNS + 1), ("show", 1), *[("step", 0)] * 4])
    assert steps.calls == RUNS + 3, steps.be.graphs


def left(case: NhwcCase) -> None:
    """Leave the values in NHWC only."""
    case.run()


def read(case: NhwcCase) -> None:
    """Leave the values in both layouts."""
    case.run()
    assert np.array_equal(case.O.get(), case.wanted)


def written(case: NhwcCase) -> None:
    """Overwrite some values, which leaves all of them in CHWN only."""
    case.run()
    case.O[3:5] = 7.0


def others(case: NhwcCase) -> None:
    """Leave NHWC images of another tensor in the same layout cache."""
    case.run()
    case.O[:] = case.O + 1
    case.be.fprop_conv(case.half, case.I[:72], case.half_filters, case.O[:72])


STATES = [left, read, written, others]


@pytest.mark.parametrize("later", STATES)
@pytest.mark.parametrize("first", STATES)
def test_a_block_finds_its_operands_in_any_layout(
    first: Callable[[NhwcCase], None], later: Callable[[NhwcCase], None]
) -> None:
    results = []
    for graphs in (True, False):
        case, calls = NhwcCase(gpu_backend()), 0
        be, layer = case.be, case.be.pool_layer("float32", "avg", N, C=4, H=6, W=6, R=2, S=2)
        total, pooled, sums = be.zeros((144, N)), be.zeros((36, N)), be.zeros((36, N))

        def block(
            case: NhwcCase = case, layer: Any = layer, total: Any = total, pooled: Any = pooled, sums: Any = sums
        ) -> None:
            nonlocal calls
            calls += 1
            total[:] = total + case.O
            sums[:] = sums + pooled
            case.be.fprop_pool(layer, case.O, pooled)

        for way in [first] * 4 + [later] * 2 + [first]:
            way(case)
            pooled[3:9] = 5.0
            be.replay("sums", block, [total, case.O, pooled, sums], graphs=graphs)
        results.append([t.get() for t in (total, pooled, sums)])
        assert calls == (3 if graphs else 7), be.graphs
    for mine, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_block_that_writes_a_part_of_a_tensor_leaves_the_rest_unchanged() -> None:
    be = gpu_backend()
    memory = be.zeros((200, N), persist_values=False)
    first, second = (NhwcCase(be, outputs=memory.share((144, N))) for _ in range(2))
    part = second.O[:72]

    def block() -> None:
        be.fprop_conv(second.half, second.I[72:], second.half_filters, part)

    for _ in range(4):
        first.run()  # its values need not persist when another tensor uses the memory
        be.replay("part", block, [part, second.I])
    second.run()
    be.replay("part", block, [part, second.I])
    np.testing.assert_array_equal(second.O.get()[72:], second.wanted[72:])


@pytest.mark.slow
@settings(max_examples=15)
@given(SCHEDULES)
def test_schedules_of_replays_and_other_operations_have_the_values_of_runs(acts: list[tuple[str, int]]) -> None:
    check_replays([("step", 0)] * RUNS + acts + [("step", 0)])
