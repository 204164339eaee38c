"""Images on the GPU: the same values as by NumPy. The GPU is simulated, and a stand-in replaces cuDNN."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from helpers import image_programs
from helpers.simulated_gpu import ByCudnn
from hypothesis import assume, given, settings, strategies as st

from neonlite import Autodiff, Backend, NervanaObject
from neonlite.backend.primitives.geometry import ImageShape
from neonlite.backend.runtimes.cuda import convolution
from neonlite.backend.runtimes.cuda.convolution import REORDER_FUNCTION
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
        launches = [arguments for text, arguments in self.launched if REORDER_FUNCTION in text]
        copies = [x[n : n + 6] for x in launches for n in range(0, len(x), 6)]
        reorders = [(bool(x[5]), ImageShape(*x[2:5])) for x in copies]
        self.launched.clear()
        return [x for x in reorders if x[1].batch_size == images]


def gpu_backend(dtype: str = "float32", batch_size: int = N) -> Backend:
    """Return a backend of a simulated GPU that supports NHWC images."""
    runtime = SimulatedGPU()
    runtime.driver = Counting()
    return Backend(runtime, rng_seed=1, batch_size=batch_size, default_dtype=dtype)


# --- the same results as by NumPy ---


def check_program(program: list[tuple[str, int]]) -> None:
    mine, plain = image_programs.Machine(gpu_backend()), image_programs.Machine(image_programs.plain())
    for act, seed in program:
        results = [getattr(m, act)(np.random.default_rng(seed)) for m in (mine, plain)]
        if results[0] is not None:
            image_programs.near(*results)
    for x, y in zip(mine.memories, plain.memories, strict=True):
        image_programs.near(x.get(), y.get())


PROGRAMS = st.lists(st.tuples(st.sampled_from(image_programs.ACTS), st.integers(0, 1 << 20)), min_size=1, max_size=10)


@settings(max_examples=30)
@given(PROGRAMS)
def test_programs_give_the_results_of_numpy(program: list[tuple[str, int]]) -> None:
    check_program(program)


@pytest.mark.slow
@settings(max_examples=300)
@given(PROGRAMS)
def test_many_programs_give_the_results_of_numpy(program: list[tuple[str, int]]) -> None:
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
def test_networks_train_as_by_numpy(parts: list[str]) -> None:
    check_network(parts)


@pytest.mark.slow
@settings(max_examples=25)
@given(st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=5))
def test_many_networks_train_as_by_numpy(parts: list[str]) -> None:
    assume(("norm", "norm") not in pairwise(parts))  # the first one has the gradient 0, and rounding errors of any size
    check_network(parts)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_images_of_any_float_dtype_are_in_nhwc_also_with_more_images_than_channels(dtype: str) -> None:
    results, batch = [], 7
    for be in (gpu_backend(dtype, batch), Backend("cpu", rng_seed=1, batch_size=batch, default_dtype=dtype)):
        NervanaObject.be = be
        conv = Conv((3, 3, 4), Gaussian(0, 0.3), bias=Constant(0.1), activation=Rectlin())
        net = Sequential([conv, Response(3), BatchNorm(), Conv((2, 2, 3), Gaussian(0, 0.3))])
        x = be.array(np.random.default_rng(1).standard_normal((3, 8, 8, batch)), dtype)
        y = net(x, training=True)
        e = be.array(np.random.default_rng(2).standard_normal(y.shape), dtype)
        trees = [y, *Autodiff(y, be, e).get_grad_op_tree(net.parameters)]
        plan = be.plan(*trees)
        assert plan.nhwc or be.name == "cpu"  # where oneDNN may store images so
        results.append([tree.get() for tree in trees])
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


# --- fallbacks ---


def consecutive(be: Backend) -> Any:
    """Return two convolutions, one after the other, as an op-tree."""
    rng = np.random.default_rng(3)
    x, f, g = (be.array(rng.integers(-3, 4, shape)) for shape in ((4, 6, 6, N), (4, 3, 3, 5), (5, 3, 3, 6)))
    return be.conv(be.conv(x, f, padding=1), g, padding=1)


def test_without_cudnn_no_images_are_in_nhwc(monkeypatch: pytest.MonkeyPatch) -> None:
    be = Backend(SimulatedGPU(), batch_size=N)
    assert not be.plan(consecutive(be)).nhwc
    monkeypatch.setenv("NEONLITE_CUDNN", "0")
    assert convolution.load_frontend() is None
    assert np.array_equal(consecutive(be).get(), consecutive(Backend("cpu")).get())


def test_what_cudnn_cannot_compute_is_computed_in_chwn(monkeypatch: pytest.MonkeyPatch) -> None:
    be = gpu_backend()
    monkeypatch.setenv("NEONLITE_WORKSPACE", "50")
    with pytest.warns(RuntimeWarning, match="no plan has a workspace within the limit"):
        result = consecutive(be).get()
    assert np.array_equal(result, consecutive(Backend("cpu")).get())


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
        """Update a whole result."""
        out = self.seen[n % len(self.seen)]
        out[:] = out * 2

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


BETWEEN = ["step", "step", "step", "plain", "read", "write", "double", "deltas"]
SCHEDULES = st.lists(st.tuples(st.sampled_from(BETWEEN), st.integers(0, 100)), min_size=1, max_size=12)


def test_a_replay_computes_what_a_run_does() -> None:
    steps = check_replays([("step", 0)] * 6)
    assert steps.calls == RUNS, steps.be.graphs


@pytest.mark.long
@pytest.mark.parametrize("act", ["read", "write", "double", "deltas", "plain"])
def test_work_between_replays_does_not_affect_them(act: str) -> None:
    steps = check_replays([*[("step", 0)] * RUNS, *[(act, 0), ("step", 0), (act, 1), (act, 2), ("step", 0)] * 2])
    assert steps.calls == RUNS + 6 * (act == "plain"), steps.be.graphs


@pytest.mark.slow
@settings(max_examples=15)
@given(SCHEDULES)
def test_schedules_of_replays_and_other_operations_have_the_values_of_runs(acts: list[tuple[str, int]]) -> None:
    check_replays([("step", 0)] * RUNS + acts + [("step", 0)])
