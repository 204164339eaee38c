"""Images on the GPU: the same values as by NumPy. The GPU is simulated, and a stand-in replaces cuDNN."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import image_programs, standin_cudnn
from helpers.simulated_gpu import ByCudnn
from hypothesis import assume, given, settings, strategies as st

from neonlite import Autodiff, Backend, NervanaObject, jit
from neonlite.backend.primitives.geometry import ImageShape, Layout
from neonlite.backend.runtimes.cuda import convolution, libraries
from neonlite.backend.runtimes.cuda.convolution import REORDER_FUNCTION
from neonlite.backend.runtimes.cuda.graphs import record
from neonlite.backend.runtimes.cuda.simulator import SimulatedGPU
from neonlite.callbacks import Callbacks
from neonlite.data import ArrayIterator
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import (
    GRU,
    LRN as Response,
    LSTM,
    Activation,
    Affine,
    BatchNorm,
    Conv,
    MergeSum,
    MultiHeadAttention,
    Pooling,
    Recurrent,
    Sequential,
    SkipNode,
)
from neonlite.models import Model
from neonlite.optimizers import Adam, GradientDescentMomentum
from neonlite.transforms import Rectlin, Softmax

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


def gpu_backend(dtype: str = "float32", batch_size: int = N, tf32: bool = False) -> Backend:
    """Return a backend of a simulated GPU: the images of float32 are in NCHW without TF32, others in NHWC."""
    runtime = SimulatedGPU()
    runtime.driver = driver = Counting()
    driver.tf32 = tf32
    return Backend(runtime, rng_seed=1, batch_size=batch_size, default_dtype=dtype)


# --- the same results as by NumPy ---


def check_program(program: list[tuple[str, int]]) -> None:
    tf32 = program[0][1] % 2 == 1
    mine, plain = image_programs.Machine(gpu_backend(tf32=tf32)), image_programs.Machine(image_programs.plain())
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


def check_network(parts: list[str], tf32: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image_programs, "PARTS", PARTS)
        results, wanted = (
            image_programs.trained(gpu_backend(tf32=tf32), parts),
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
        ["inception", "avg"],
    ],
)
@pytest.mark.parametrize("tf32", [False, True])
def test_networks_train_as_by_numpy(parts: list[str], tf32: bool) -> None:
    check_network(parts, tf32)


@pytest.mark.slow
@settings(max_examples=25)
@given(st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=5), st.booleans())
def test_many_networks_train_as_by_numpy(parts: list[str], tf32: bool) -> None:
    assume(("norm", "norm") not in pairwise(parts))  # the first one has the gradient 0, and rounding errors of any size
    check_network(parts, tf32)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_images_of_any_float_dtype_are_reordered_also_with_more_images_than_channels(dtype: str) -> None:
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
        assert plan.reordered or be.name == "cpu"  # where oneDNN may store images so
        assert be.name == "cpu" or plan.layout is (Layout.NCHW if dtype == "float32" else Layout.NHWC)
        results.append([tree.get() for tree in trees])
    for mine, theirs in zip(*results, strict=True):
        close = {"float16": 2e-2, "float32": 1e-4, "float64": 1e-10}[dtype]
        np.testing.assert_allclose(mine.astype(float), theirs.astype(float), rtol=close, atol=close)


# --- number of reorders ---


def biased() -> dict[str, Any]:
    return {"init": Gaussian(0.0, 0.3), "bias": Constant(0.1), "activation": Rectlin()}


def normed() -> dict[str, Any]:
    return {"init": Gaussian(0.0, 0.3), "batch_norm": True, "activation": Rectlin()}


# of a step: whether to CHWN, channels, pixels; in NCHW all channels are one
ENDS = [(False, 3, 324), (True, 16, 36), (False, 16, 36)]
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


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("name", [x for x in CHAINS if x != "local response"])  # its windows along channels are in CHWN
def test_a_training_step_is_a_program_that_reorders_images_at_its_ends_only(name: str, tf32: bool) -> None:
    weights, reorders = fitted(gpu_backend(batch_size=12, tf32=tf32), name)
    wanted, _ = fitted(Backend("cpu", rng_seed=1, batch_size=12), name)
    ends = [(to_chwn, ImageShape(C, P, 12) if tf32 else ImageShape(1, C * P, 12)) for to_chwn, C, P in ENDS]
    assert {tuple(sorted(step, key=str)) for step in reorders} == {tuple(sorted(ends, key=str))}
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


# --- the layout of each dtype ---


@pytest.mark.parametrize(
    ("dtype", "tf32", "strides"),
    [
        ("float16", False, {"image": [64, 1, 16, 4], "filter": [16, 1, 8, 4]}),
        ("float32", True, {"image": [64, 1, 16, 4], "filter": [16, 1, 8, 4]}),
        ("float32", False, {"image": [64, 16, 4, 1], "filter": [16, 4, 2, 1]}),
        ("float64", False, {"image": [64, 1, 16, 4], "filter": [16, 1, 8, 4]}),
    ],
)
def test_cudnn_gets_nchw_for_float32_without_tf32_and_nhwc_otherwise(
    dtype: str, tf32: bool, strides: dict[str, list[int]]
) -> None:
    be = gpu_backend(dtype, tf32=tf32)
    x, f = be.ones((4, 4, 4, 3)), be.ones((4, 2, 2, 5))
    layer = be.conv_layer(dtype, 3, 4, 5, H=4, W=4, R=2, S=2)
    out = be.empty(layer.dimO)
    assert (be.conv(x, f).get() == 16).all()
    be.fprop_conv(layer, be.ones(layer.dimI), be.ones(layer.dimF), out)
    assert (out.get() == 16).all()
    driver: Any = be.runtime.driver
    (graph,) = driver.cudnn.frontend.graphs  # one plan for both
    assert graph.kinds[2].name == ("DOUBLE" if dtype == "float64" else "FLOAT")
    assert [list(x.dim) for x in graph.operands] == [[3, 4, 4, 4], [5, 4, 2, 2]]
    assert [list(x.stride) for x in graph.operands] == [strides["image"], strides["filter"]]


def test_the_images_of_several_dtypes_of_a_plan_are_in_nhwc() -> None:
    results = []
    for be in (gpu_backend(), Backend("cpu")):
        rng = np.random.default_rng(5)
        x, f, g = (be.array(rng.integers(-2, 3, shape)) for shape in ((3, 6, 6, N), (3, 3, 3, 4), (4, 1, 1, 2)))
        y = be.conv(x, f, padding=1)
        alone = (y * 1).get()  # in NCHW
        y = be.conv(be.astype(y, "float64"), be.astype(g, "float64"))
        results.append([alone, be.maximum(y, 0).get()])
        assert be.name == "cpu" or be.plan(y).layout is Layout.NHWC
    for mine, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(mine, theirs)


FORMULAS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "one number for each pixel": lambda be, y, x, p: y * p,
    "the same of fewer axes": lambda be, y, x, p: y * be.reshape(p, (6, 6, 1)),
    "one number for each image, of fewer axes": lambda be, y, x, p: y * be.reshape(be.sum(x, axis=(0, 1, 2)), (1, -1)),
    "sums over channels": lambda be, y, x, p: y - be.sum(y, axis=0),
    "sums over rows and images": lambda be, y, x, p: y - be.max(y, axis=(1, 3)),
    "sums over images": lambda be, y, x, p: be.sum(y, axis=3),
    "merged pixels": lambda be, y, x, p: be.reshape(be.reshape(y, (4, 36, y.shape[3])) * 2, y.shape),
    "a view of the images": lambda be, y, x, p: y + x[:, ::-1],
    "pooled and not": lambda be, y, x, p: be.pool(y, 2) * be.pool(y, 2, op="avg"),
    "a gradient": lambda be, y, x, p: Autodiff(be.sum(be.pool(be.maximum(y * p, 1), 3) ** 2), be).get_grad_op_tree([x])[
        0
    ],
}


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("images", [1, 5])
@pytest.mark.parametrize("name", FORMULAS)
def test_formulas_of_convolved_images_have_the_values_of_numpy_in_both_layouts(
    name: str, images: int, tf32: bool
) -> None:
    results = []
    for be in (gpu_backend(tf32=tf32), Backend("cpu")):
        rng = np.random.default_rng(3)
        shapes = (4, 6, 6, 2 * images), (4, 3, 3, 4), (4, 1, 1, 4), (1, 12, 6, 1)
        x, f, g, p = (be.array(rng.integers(-2, 3, shape)) for shape in shapes)
        x, p = x[:, :, :, ::2], p[:, ::2]  # neither is contiguous
        y = be.conv(be.conv(x, f, padding=1), g)
        targets = [be.empty(y.shape), be.empty((tree := FORMULAS[name](be, y, x, p)).shape), be.empty(x.shape)]
        be.assign(targets, [y, tree, x * 2])
        results.append([target.get() for target in targets])
    for mine, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(mine, theirs)


# --- fallbacks ---


def consecutive(be: Backend) -> Any:
    """Return two convolutions, one after the other, as an op-tree."""
    rng = np.random.default_rng(3)
    x, f, g = (be.array(rng.integers(-3, 4, shape)) for shape in ((4, 6, 6, N), (4, 3, 3, 5), (5, 3, 3, 6)))
    return be.conv(be.conv(x, f, padding=1), g, padding=1)


def test_without_cudnn_no_images_are_in_nhwc(monkeypatch: pytest.MonkeyPatch) -> None:
    be = Backend(SimulatedGPU(), batch_size=N)
    assert not be.plan(consecutive(be)).reordered
    monkeypatch.setenv("NEONLITE_CUDNN", "0")
    assert convolution.load_frontend() is None
    assert np.array_equal(consecutive(be).get(), consecutive(Backend("cpu")).get())


def test_what_cudnn_cannot_compute_is_computed_in_chwn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEONLITE_WORKSPACE", "50")
    be = gpu_backend()
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


# --- launches --------------------------------------------------------------------------------------------------------


class Idle(ByCudnn):
    """A driver whose launches do nothing; ``launched`` lists them by kind."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[str] = []
        cudnn: Any = self.cudnn
        cudnn.execute = lambda plan, *_: self.launched.append("+".join(filter(None, plan.key[0:1] + fused(plan))))

    def allocate(self, nbytes: int) -> Any:
        return np.empty(nbytes, np.uint8)

    def compile(self, source: str) -> Any:
        return source

    def launch(self, kernel: Any, grid: Any, block: int, arguments: Any) -> None:
        name = libraries.kernel_name(kernel).rpartition("_")[0].removeprefix("neonlite_")
        self.launched.append({REORDER: "reorder", COMBINE: "combine"}.get(name, name))

    def gemm(self, desc: Any, alpha: float, beta: float) -> bool:
        self.launched.append("gemm")
        record(self.gemm, desc, alpha, beta)
        return True

    def run(self, f: Callable[..., None], *arguments: object) -> None:
        if f.__name__ == "copy_into":
            self.launched.append("copy")
        else:
            f(*arguments)

    def launches_of(self, f: Callable[[], object]) -> list[str]:
        """Return the launches of a function that ran three times before, and check that each run has the same."""
        lists = []
        for _ in range(4):
            f()
            lists.append([*self.launched])
            self.launched.clear()
        assert lists[0] == lists[1] == lists[2] == lists[3]
        return lists[3]


REORDER, COMBINE = "reorder_images_and_filters", "combine_the_splits_of_sum"


def fused(plan: Any) -> tuple[str, ...]:
    """Return what a plan of cuDNN computes after the convolution."""
    return "bias" * (plan.graph.bias_of is not None), "relu" * bool(plan.graph.rectified)


def idle_backend(batch_size: int, tf32: bool = False, dtype: str = "float32") -> tuple[Backend, Idle]:
    runtime = SimulatedGPU()
    runtime.driver = driver = Idle()
    driver.tf32 = tf32
    NervanaObject.be = be = Backend(runtime, rng_seed=1, batch_size=batch_size, default_dtype=dtype)
    return be, driver


def convolutions(be: Backend, n: int, size: int = 3) -> tuple[Any, Any, Any, Any]:
    """Return the forward pass of n convolutions of 64 to 64 maps, that and the backward pass, images and errors."""
    net = Sequential([Conv((size, size, 64), padding=size // 2, **biased()) for _ in range(n)])
    net.configure((64, 56, 56)).allocate_parameters()

    @jit
    def gradients(x: Any, e: Any) -> Any:
        return Autodiff(net(x, training=True), be, e).get_grad_op_tree([x, *net.parameters])

    return jit(net.__call__), gradients, be.empty((64 * 56 * 56, 128)), be.empty((64 * 56 * 56, 128))


CONVOLVED, BACK = ["fprop+bias+relu"], ["gt_mul", "combine", "dgrad", "wgrad"]


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_convolutions_are_one_launch_each_between_two_reorders_of_all_images_and_filters(n: int, tf32: bool) -> None:
    be, driver = idle_backend(128, tf32)
    forward, both, x, e = convolutions(be, n)
    assert driver.launches_of(lambda: forward(x)) == ["reorder", *n * CONVOLVED, "reorder"]
    assert driver.launches_of(lambda: both(x, e)) == ["reorder", *n * CONVOLVED, *n * BACK, "reorder"]


def test_filters_of_one_pixel_are_convolutions_of_cudnn_in_nchw() -> None:
    be, driver = idle_backend(128)
    forward, both, x, e = convolutions(be, 2, size=1)
    assert driver.launches_of(lambda: forward(x)) == ["reorder", *2 * CONVOLVED, "reorder"]
    assert driver.launches_of(lambda: both(x, e)) == ["reorder", *2 * CONVOLVED, *2 * BACK, "reorder"]


def test_filters_of_one_pixel_are_products_in_nhwc() -> None:
    be, driver = idle_backend(128, tf32=True)
    forward, _, x, _ = convolutions(be, 2, size=1)
    assert driver.launches_of(lambda: forward(x)) == ["reorder", *2 * ["gemm", "add_maximum"], "reorder"]


@pytest.mark.parametrize("tf32", [False, True])
def test_a_convolution_of_the_backend_is_three_launches(tf32: bool) -> None:
    be, driver = idle_backend(128, tf32)
    layer = be.conv_layer("float32", 128, 64, 64, H=56, W=56, R=3, S=3, pad_h=1, pad_w=1)
    i, f, o, bias = (be.empty(shape) for shape in (layer.dimI, layer.dimF, layer.dimO, (64, 1)))
    done = driver.launches_of(lambda: be.fprop_conv(layer, i, f, o, bias=bias, relu=True))
    assert done == ["reorder", *CONVOLVED, "reorder"]


def test_a_step_of_a_perceptron_is_twelve_launches_and_one_for_the_labels() -> None:
    _, driver = idle_backend(128)
    layers = [Affine(100, Gaussian(), bias=Constant(0), activation="rectlin"), Affine(10, Gaussian(), bias=Constant(0))]
    model, steps = Model([*layers, Activation(Softmax())]), list[list[str]]()

    class Steps(Callbacks):
        def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
            steps.append([*driver.launched])
            driver.launched.clear()

    data = ArrayIterator(np.zeros((640, 784)), np.zeros(640, int), nclass=10)
    options: dict[str, Any] = {"cost": "CrossEntropyMulti", "optimizer": GradientDescentMomentum(0.1, 0.9)}
    model.fit(data, num_epochs=1, callbacks=Steps(model, progress_bar=False), cuda_graphs=False, **options)
    softmax, cost, errors = "add_max_stop_gradient_sub_exp_sum", "div_safelog_mul", "div_sub_mul"
    forward = ["gemm", "add_maximum", "gemm", softmax, cost, errors]
    labels, update = "y_1_in_the_row_of_each_label_else_0_A_l", "mul_div_mul_sub_add"
    assert steps[-1] == [labels, *forward, "gemm", "gemm", "gt_mul", "gemm", "mul_sum_mul", update]


def test_products_of_all_heads_are_one_call_of_cublas_and_the_array_library_computes_nothing() -> None:
    be, driver = idle_backend(16)
    net = Sequential(MultiHeadAttention(4, causal=True))
    net.configure((128, 64)).allocate_parameters()
    x, e, by_library, stacks = be.empty((128, 64 * 16)), be.empty((128, 64 * 16)), list[str](), list[int]()
    executor, gemm, stages = be._executor, driver.gemm, list[int]()
    executor.generic.evaluate_step = lambda step, values: by_library.append(step.op.name)
    run_stage = executor._run_stage
    executor._run_stage = lambda *args: stages.append(1) or run_stage(*args)
    driver.gemm = lambda desc, *scalars: stacks.append(desc.batch_count) or gemm(desc, *scalars)  # type: ignore

    @jit
    def gradients(x: Any, e: Any) -> Any:
        return Autodiff(net(x, training=True), be, e).get_grad_op_tree([x, *net.parameters])

    driver.launched.clear()
    launches = driver.launches_of(lambda: gradients(x, e))
    reorders = ["cast_cast", "cast", "cast", "cast", "cast"]  # of inputs and errors, the context and its error, ...
    sums = ["s0_sum_x0_over_axis_1_of_2", "s0_sum_x0_over_axis_1_and_3_of_4"]  # the gradients of the biases
    softmax = "mul_where_max_stop_gradient_finite_wher"  # and its gradient
    assert sorted(launches) == sorted([*["gemm"] * 11, *reorders, *sums, "add", softmax])
    assert not by_library
    assert [n for n in stacks if n > 1] == [4 * 16] * 6 * 4  # weights, context; their errors; errors of q, k and v
    stages.clear()
    assert driver.launches_of(lambda: gradients(x, e)) == launches
    assert not stages  # the launches are repeated


STEP = {  # launches of one step of each layer, forward and backward
    LSTM: (["gemm", "sig_sig_mul_sig_tanh_mul_add_tanh_mul_s"], ["add_mul_mul_sub_mul_add_mul_sub_mul_mul", "gemm"]),
    GRU: (
        ["gemm", "sig_sig_mul", "gemm", "add_tanh_sub_mul_add_stop_gradient"],
        ["add_mul_mul_sub_mul_sub_mul_sub_mul_mul", "gemm", "mul_sub_mul_mul", "gemm", "mul_mul_add_add"],
    ),
    Recurrent: (["gemm", "tanh_stop_gradient"], ["add_mul_sub_mul", "gemm"]),
}


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("layer", STEP)
def test_a_recurrent_step_is_a_launch_for_each_product_and_one_for_all_gates(layer: Any, steps: int) -> None:
    be, driver = idle_backend(64)
    gates = {} if layer is Recurrent else {"gate_activation": "logistic"}
    net = Sequential(layer(32, Gaussian(), activation="tanh", **gates))
    net.configure((16, steps)).allocate_parameters()
    x, e = be.empty((16, 64 * steps)), be.empty((32, 64 * steps))

    @jit
    def both(x: Any, e: Any) -> Any:
        y = net(x, training=True)
        return [y, *Autodiff(y, be, e).get_grad_op_tree([x, *net.parameters])]

    driver.launched.clear()
    (forward, backward), launches = STEP[layer], driver.launches_of(lambda: both(x, e))
    start = launches.index("gemm") + 1  # after the product with all inputs
    end = start + steps * len(forward + backward)
    assert launches[start:end] == steps * forward + steps * backward
    assert {*launches[end:]} == {"gemm", "cast"}  # products of all steps, and copies of gradients


# --- attention by cuDNN ----------------------------------------------------------------------------------------------


def attended(be: Backend, shape: tuple[int, ...], training: bool = True, masks: bool = False, **options: Any) -> Any:
    """Return the output of attention and its gradients, of (heads, F, T, N)."""
    heads, F, T, N = shape
    NervanaObject.be, rng = be, np.random.default_rng(0)
    net = MultiHeadAttention(heads, **options)
    net.configure((F, T)).allocate_parameters()
    for p in net.parameters:
        p[:] = rng.integers(-4, 5, p.shape) / 8
    x, e = (be.array(rng.integers(-8, 9, (F, T * N)) / 8) for _ in range(2))
    if masks:
        net.mask = be.array(rng.permutation(T * N)[None] % 3 > 0)
    y = net(x, training=training)
    return [np.asarray(t.get(), float) for t in (y, *Autodiff(y, be, e).get_grad_tensor([x, *net.parameters]))]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bias", [None, Constant(0)])
def test_attention_of_16_bit_floats_by_cudnn_is_that_of_products_on_the_cpu(
    dtype: str, causal: bool, bias: Any
) -> None:
    shape, options = (3, 24, 5, 4), {"causal": causal, "bias": bias, "init": Gaussian()}
    be = gpu_backend(dtype, batch_size=4)
    results = attended(be, shape, **options)
    assert [len(graph.heads) for graph in be.runtime.driver.cudnn.frontend.graphs] == [3, 6]
    for mine, theirs in zip(results, attended(Backend("cpu", batch_size=4), shape, **options), strict=True):
        np.testing.assert_allclose(mine, theirs, 0, abs(theirs).max() * (4e-3 if dtype == "float16" else 3e-2))


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((3, 24, 5, 4), {"masks": True}),
        ((3, 24, 5, 4), {"keep": 0.5}),
        ((3, 24, 5, 4), {"alibi_slopes": [0.5, 1, 2]}),
        ((2, 24, 5, 4), {}),  # 12 features a head, no multiple of 8
        ((3, 24, 1, 4), {}),  # one step, of which cuDNN has no derivative
    ],
)
def test_other_attention_is_computed_by_products(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    be = gpu_backend("float16", batch_size=4)
    attended(be, shape, **options)
    assert not be.runtime.driver.cudnn.frontend.graphs
    if "keep" in options:
        attended(be, shape, training=False, **options)  # drops nothing
        assert len(be.runtime.driver.cudnn.frontend.graphs) == 2


@pytest.mark.parametrize("by_cudnn", [True, False])
def test_the_attention_of_float32_and_that_without_cudnn_are_computed_by_products(by_cudnn: bool) -> None:
    be = gpu_backend("float32" if by_cudnn else "float16", batch_size=4)
    frontend = be.runtime.driver.cudnn.frontend
    if not by_cudnn:
        be.runtime.driver.cudnn = None
    attended(be, (3, 24, 5, 4))
    assert not frontend.graphs


def test_attention_without_a_plan_within_the_workspace_is_computed_by_products(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = attended(gpu_backend("float16", batch_size=4), (3, 24, 5, 4))
    monkeypatch.setattr(standin_cudnn, "PLANS", [100])
    monkeypatch.setattr(standin_cudnn, "TENSOR_CORES", 0)
    monkeypatch.setenv("NEONLITE_WORKSPACE", "50")
    be = gpu_backend("float16", batch_size=4)
    with pytest.warns(RuntimeWarning, match=r"attention of AttentionShape\(.*\(4, 3, 5, 8\).*\n.*products"):
        results = attended(be, (3, 24, 5, 4))
    for mine, theirs in zip(results, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, 0, abs(theirs).max() * 8e-3)


def test_attention_whose_plans_fail_when_they_run_is_computed_op_by_op() -> None:
    wanted = attended(gpu_backend("float16", batch_size=4), (3, 24, 5, 4), causal=True)
    be = gpu_backend("float16", batch_size=4)
    be.runtime.driver.cudnn.frontend.fails = "execute"
    with pytest.warns(RuntimeWarning, match="cannot open shared object file"):
        results = attended(be, (3, 24, 5, 4), causal=True)
    for mine, theirs in zip(results, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, 0, abs(theirs).max() * 4e-3)


ATTENDED = {  # q, k and v
    "one head": [(5, 8), (7, 8), (7, 16)],
    "one query": [(2, 1, 8), (2, 3, 8), (2, 3, 8)],
    "a stack": [(3, 6, 16), (3, 6, 16), (3, 6, 8)],
    "heads of sequences": [(2, 3, 4, 8)] * 3,
    "several axes": [(2, 2, 1, 3, 8), (2, 2, 1, 5, 8), (2, 2, 1, 5, 8)],
}


def drawn_heads(be: Backend, shapes: list[tuple[int, ...]], swapped: bool = False) -> tuple[Any, list[Any]]:
    """Return be.attention and its gradients; ``swapped``: of operands (N, T, H, d), whose axes a view exchanges."""
    rng, swap = np.random.default_rng(1), (0, 2, 1, 3)
    shapes = [*shapes, shapes[0][:-1] + shapes[2][-1:]]
    values = [np.asarray(rng.integers(-8, 9, shape) / 8) for shape in shapes]
    *leaves, e = (be.array(x.transpose(swap) if swapped else x) for x in values)
    operands = [be.transpose(x, swap) if swapped else x for x in leaves]
    y = be.attention(*operands)
    return y, Autodiff(y, be, be.transpose(e, swap).astensor() if swapped else e).get_grad_op_tree(leaves)


def as_floats(be: Backend, *trees: Any) -> list[Any]:
    """Return the values of op-trees, which are evaluated together."""
    outs = [be.empty(tree.shape, dtype=tree.dtype) for tree in trees]
    be.assign(outs, list(trees))
    return [np.asarray(out.get(), float) for out in outs]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("name", "swapped"), [*((x, False) for x in ATTENDED), ("heads of sequences", True)])
def test_attention_of_queries_keys_and_values_by_cudnn_is_that_of_the_formula_on_the_cpu(
    dtype: str, name: str, swapped: bool
) -> None:
    be, cpu = gpu_backend(dtype), Backend("cpu", default_dtype="float64")
    y, gradients = drawn_heads(be, ATTENDED[name], swapped)
    assert y.op == "fused_attention"
    graphs = be.runtime.driver.cudnn.frontend.graphs
    del graphs[:]
    results, (z, of_formula) = as_floats(be, y, *gradients), drawn_heads(cpu, ATTENDED[name], swapped)
    assert z.op == "attention"
    assert len(graphs) == 2 * swapped  # plans of these strides
    for mine, theirs in zip(results, as_floats(cpu, z, *of_formula), strict=True):
        np.testing.assert_allclose(mine, theirs, 0, abs(theirs).max() * (4e-3 if dtype == "float16" else 3e-2))


def test_some_gradients_of_attention_are_those_of_all() -> None:
    be = gpu_backend("float16")
    y, gradients = drawn_heads(be, ATTENDED["a stack"])
    _, *wanted = as_floats(be, y, *gradients)
    for n in range(3):
        (found,) = as_floats(be, gradients[n])
        np.testing.assert_array_equal(found, wanted[n])


@pytest.mark.parametrize(
    "given",
    [
        lambda be, x: be.attention(x, x, x, be.ones((4, 4))),
        lambda be, x: be.attention(x, x, be.astype(x, "float32")),
        lambda be, x: be.attention(*[be.astype(x, "float32")] * 3),
        lambda be, x: be.attention(*[be.build("slice", x, index=((0, 2, 1), (0, 4, 1), (0, 4, 1)))] * 3),  # 4 features
        lambda be, x: be.attention(x, x, be.build("slice", x, index=((0, 2, 1), (0, 4, 1), (0, 4, 1)))),
        lambda be, x: be.attention(*[be.build("slice", x, index=((0, 2, 1), (0, 1, 1), (0, 8, 1)))] * 3),  # one step
    ],
)
def test_other_attention_of_queries_keys_and_values_is_the_formula(given: Any) -> None:
    be = gpu_backend("float16")
    tree = given(be, be.ones((2, 4, 8)))
    assert tree.op == "attention"
    assert np.isfinite(np.asarray(tree.get(), float)).all()
    assert not be.runtime.driver.cudnn.frontend.graphs


def test_attention_of_shapes_that_do_not_fit_is_an_error_that_names_them() -> None:
    be = gpu_backend("float16")
    with pytest.raises(ValueError, match=r"expected q \(\.\.\., T, d\), .* got \(4, 8\), \(4, 16\) and \(4, 16\)"):
        be.attention(be.ones((4, 8)), be.ones((4, 16)), be.ones((4, 16)))


def test_attention_of_queries_keys_and_values_whose_plans_fail_when_they_run_is_computed_op_by_op() -> None:
    wanted, be = gpu_backend("float16"), gpu_backend("float16")
    y, gradients = drawn_heads(wanted, ATTENDED["one head"])
    z, others = drawn_heads(be, ATTENDED["one head"])
    be.runtime.driver.cudnn.frontend.fails = "execute"
    with pytest.warns(RuntimeWarning, match="cannot open shared object file"):
        results = as_floats(be, z, *others)
    for mine, theirs in zip(results, as_floats(wanted, y, *gradients), strict=True):
        np.testing.assert_allclose(mine, theirs, 0, abs(theirs).max() * 4e-3)
    assert drawn_heads(be, ATTENDED["one head"])[0].op == "attention"


def test_attention_of_arrays_that_are_not_aligned_is_computed_op_by_op() -> None:
    be = gpu_backend("float16")
    memory = be.array(np.random.default_rng(2).integers(-8, 9, (1, 5 * 8 + 3)) / 8)
    x = be.array(memory.get()[0, 3:].reshape(5, 8))
    moved = memory[:, 3:].reshape((5, 8))
    frontend = be.runtime.driver.cudnn.frontend
    (wanted,), (found,) = (as_floats(be, be.attention(*[t] * 3)) for t in (x, moved))
    assert sum(len(graph.ran) for graph in frontend.graphs) == 1
    np.testing.assert_allclose(found, wanted, 0, 2e-3)


def test_attention_of_queries_keys_and_values_is_one_launch_forward_and_one_backward() -> None:
    be, driver = idle_backend(16, dtype="bfloat16")
    *operands, e = (be.empty((64, 128, 64)) for _ in range(4))
    outs = [be.empty((64, 128, 64)) for _ in range(4)]
    y = be.attention(*operands)
    both = be.compile(outs, [y, *Autodiff(y, be, e).get_grad_op_tree(operands)])
    driver.launched.clear()
    for _ in range(3):
        assert driver.launches_of(both) == ["attention", "attention_backward"]
    assert driver.launches_of(be.compile(outs[:1], [y])) == ["attention"]
    fixed = be.compile(outs[:2], Autodiff(y, be, e).get_grad_op_tree(operands[1:]))
    assert driver.launches_of(fixed) == ["attention", "attention_backward"]  # the forward pass for its stats


def test_attention_by_cudnn_is_one_launch_forward_and_one_backward_and_reorders_nothing() -> None:
    be, driver = idle_backend(16, dtype="bfloat16")
    net = Sequential(MultiHeadAttention(4, causal=True))
    net.configure((128, 64)).allocate_parameters()
    x, e = be.empty((128, 64 * 16)), be.empty((128, 64 * 16))

    @jit
    def both(x: Any, e: Any) -> Any:
        return Autodiff(net(x, training=True), be, e).get_grad_op_tree([x, *net.parameters])

    forward = jit(net.__call__)
    driver.launched.clear()
    assert driver.launches_of(lambda: forward(x)) == ["gemm", "add", "attention", "gemm", "add"]
    sums = ["s0_sum_x0_over_axis_1_of_2", "s0_sum_x0_over_axis_0_of_2", "combine"]  # the gradients of the biases
    products = ["gemm"] * 5  # queries, keys and values; the error of the context; gradients of x and of the weights
    launches = driver.launches_of(lambda: both(x, e))
    assert sorted(launches) == sorted([*products, *sums, "add", "attention", "attention_backward"])
    stages, executor = list[Any](), be._executor
    run_stage = executor._run_stage
    executor._run_stage = lambda *args: stages.append(args) or run_stage(*args)
    assert driver.launches_of(lambda: both(x, e)) == launches
    assert not stages  # the launches are repeated


def test_a_replay_of_attention_by_cudnn_has_the_bits_of_a_run() -> None:
    results, captured = [], ""
    for graphs in (True, False):
        NervanaObject.be = be = gpu_backend("float16", batch_size=N)
        net, rng = Sequential(MultiHeadAttention(2, causal=True)), np.random.default_rng(5)
        net.configure((16, 6)).allocate()
        net.allocate_deltas()
        x, e = be.zeros((16, 6 * N)), be.array(rng.standard_normal((16, 6 * N)))

        def step(net: Any = net, x: Any = x, e: Any = e) -> None:
            net.fprop(x)
            net.bprop(e)

        for _ in range(RUNS + 2):
            x[:] = rng.standard_normal(x.shape)
            be.replay("step", step, [net, x, e], graphs=graphs)
        captured += repr(be.graphs)
        results.append([t.get() for t in (net.layers[-1].outputs, *net.gradients)])
    assert "captured" in captured
    for mine, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(mine, theirs)


# --- repeated launches -----------------------------------------------------------------------------------------------


def biased_convolution(be: Backend, x: Any, f: Any, b: Any) -> Any:
    return be.maximum(be.conv(x, f, padding=1) + b, 0)


def convolved_arrays(be: Backend, seed: int = 0, dtype: str = "float32") -> list[Any]:
    rng = np.random.default_rng(seed)
    return [be.array(rng.integers(-3, 4, shape), dtype) for shape in ((3, 6, 6, N), (3, 3, 3, 5), (5, 1, 1, 1))]


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that grows with each call of cuDNN that is no repetition."""
    calls, run = list[Any](), convolution.Cudnn.run
    monkeypatch.setattr(convolution.Cudnn, "run", lambda self, *args: calls.append(args) or run(self, *args))
    return calls


def test_the_launches_of_a_plan_with_convolutions_are_repeated_for_the_same_arrays_only(built: list[Any]) -> None:
    be, cpu = gpu_backend(), Backend("cpu")
    out, mine, theirs = be.empty((5, 6, 6, N)), convolved_arrays(be), convolved_arrays(cpu)
    for n in range(4):
        out[:] = biased_convolution(be, *mine)
        np.testing.assert_array_equal(out.get(), biased_convolution(cpu, *theirs).get())
        for x in (mine[0], theirs[0]):  # other values in the same memory
            x[:] = x * -1 + n
    assert len(built) == 1
    out[:] = biased_convolution(be, *convolved_arrays(be, 1))
    np.testing.assert_array_equal(out.get(), biased_convolution(cpu, *convolved_arrays(cpu, 1)).get())
    assert len(built) == 2


def test_launches_are_built_again_after_a_workspace_has_been_replaced(built: list[Any]) -> None:
    be = gpu_backend()
    layer = be.conv_layer("float32", N, 3, 5, H=6, W=6, R=3, S=3)
    i, f, out = be.ones(layer.dimI), be.ones(layer.dimF), be.empty(layer.dimO)
    large = be.conv_layer("float32", N, 8, 8, H=9, W=9, R=3, S=3)
    j, g, o = be.ones(large.dimI), be.ones(large.dimF), be.empty(large.dimO)
    for count in (1, 4, 4):  # the larger convolution replaces workspaces in its first run, which it repeats
        for _ in range(2):
            be.fprop_conv(layer, i, f, out)
            assert (out.get() == 27).all()
            out[:] = -1
        assert len(built) == count
        for _ in range(2):
            be.fprop_conv(large, j, g, o)


def test_the_launches_of_a_convolution_are_repeated_for_the_same_options_only(built: list[Any]) -> None:
    be = gpu_backend()
    layer = be.conv_layer("float32", N, 3, 5, H=6, W=6, R=3, S=3)
    i, f, out = be.ones(layer.dimI), be.array(-np.ones(layer.dimF)), be.empty(layer.dimO)
    bias = be.ones((5, 1))
    for _ in range(3):
        for relu, alpha, value in ((True, 1.0, 0), (False, 1.0, -26), (False, 2.0, -53)):
            be.fprop_conv(layer, i, f, out, bias=bias, relu=relu, alpha=alpha)
            assert (out.get() == value).all()
    assert len(built) == 2 + 3  # a result that is multiplied by alpha is computed by the array library


def test_products_are_repeated_with_the_scalars_of_the_tree() -> None:
    be, cpu = gpu_backend(), Backend("cpu")
    a, b = (np.random.default_rng(n).integers(-3, 4, (6, 6)) for n in (0, 1))
    results = []
    for backend in (be, cpu):
        x, y = backend.array(a), backend.array(b)
        for scale in (1.0, 2.0, 2.0, -1.0, 1.0, 2.0):
            x[:] = 0.5 * x + scale * backend.dot(y, y)
        results.append(x.get())
    np.testing.assert_array_equal(*results)


def test_work_of_the_array_library_is_never_repeated_as_launches() -> None:
    be, cpu = gpu_backend(), Backend("cpu")
    pairs = [(backend.array(np.arange(12.0).reshape(3, 4)), backend.empty((6, 4))) for backend in (be, cpu)]
    for _ in range(4):
        for backend, (x, out) in zip((be, cpu), pairs, strict=True):
            out[:] = backend.concat([x, x], axis=0)
            x[:] = x + 1
        np.testing.assert_array_equal(*(out.get() for _, out in pairs))


# --- bias and Rectlin in the convolution -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("fails", ["", "execute"])
def test_a_bias_and_rectlin_are_part_of_the_convolution(dtype: str, fails: str) -> None:
    be, cpu = gpu_backend(dtype), Backend("cpu", default_dtype=dtype)
    frontend: Any = be.runtime.driver.cudnn.frontend  # type: ignore[attr-defined]
    frontend.fails = fails
    for function in (biased_convolution, lambda be, x, f, b: be.conv(x, f, padding=1) + b):
        with pytest.warns(RuntimeWarning, match="cuDNN cannot compute") if fails else nullcontext():
            result = function(be, *convolved_arrays(be, dtype=dtype)).get()
        np.testing.assert_array_equal(result, function(cpu, *convolved_arrays(cpu, dtype=dtype)).get())
        assert fused(SimpleNamespace(graph=frontend.graphs[0])) == ("bias", "relu" * (function is biased_convolution))
        frontend.graphs.clear()


OTHERS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "the convolution is read again": lambda be, y, b: be.maximum(y + b, 0) * y,
    "the sum is read again": lambda be, y, b: be.maximum(y + b, 0) * (y + b),
    "a maximum with another number": lambda be, y, b: be.maximum(y + b, 1),
    "a bias for each pixel": lambda be, y, b: be.maximum(y + be.sum(y, axis=0) * 0.5, 0),
    "a difference": lambda be, y, b: be.maximum(y - b, 0),
    "a sum with itself": lambda be, y, b: be.maximum(y + y, 0),
    "a number": lambda be, y, b: be.maximum(y + 2, 0),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_formulas_after_a_convolution_have_the_values_of_numpy(name: str) -> None:
    results, mine = [], gpu_backend()
    for be in (mine, Backend("cpu")):
        x, f, b = convolved_arrays(be)
        results.append(OTHERS[name](be, be.conv(x, f, padding=1), b).get())
    np.testing.assert_array_equal(*results)
    driver: Any = mine.runtime.driver
    assert len(driver.cudnn.frontend.graphs) == 1


def test_many_arrays_of_several_dtypes_are_reordered_in_few_launches() -> None:
    be, shapes = gpu_backend(), [(2 + n % 3, 4, 4 + n % 5) for n in range(convolution.MAX_COPIES + 6)]
    arrays = [np.random.default_rng(n).random(s).astype(["float32", "float16"][n % 2]) for n, s in enumerate(shapes)]
    buffers, back = [np.zeros(x.size, x.dtype) for x in arrays], [np.zeros_like(x) for x in arrays]
    driver: Any = be.runtime.driver
    driver.launched.clear()
    for results, to_chwn in ((arrays, False), (back, True)):
        copies = zip(shapes, results, buffers, strict=True)
        be.primitives.reorder_all([(ImageShape(*s), x, b, to_chwn) for s, x, b in copies])
    assert len(driver.launched) == 4
    for x, nhwc, y in zip(arrays, buffers, back, strict=True):
        np.testing.assert_array_equal(nhwc.reshape(x.shape[::-1]), x.transpose())
        np.testing.assert_array_equal(x, y)
