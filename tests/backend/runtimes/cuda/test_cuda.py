"""The runtime 'gpu': errors if it cannot run, and its results on a stand-in for CuPy and on a GPU.

The stand-in (standin_cupy.py) rejects what CuPy rejects, so that generic code that mixes NumPy arrays with those of the
GPU fails here without a GPU. A test with the fixture ``gpu`` runs on the stand-in, and again on a GPU with its marker.

Tests ``neonlite/backend/runtimes/cuda/__init__.py`` and ``neonlite/backend/runtimes/cuda/executor.py``.
"""

from __future__ import annotations

import inspect
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from helpers import op_cases, standin_cupy
from helpers.kernel_kinds import PRIMITIVES
from helpers.parametrize import each, part, thinned, values
from helpers.random_draws import DRAWS
from helpers.reference import gradient_of_operand, off
from helpers.standin_cupy import FUNCTIONS, KEYWORDS, UFUNCS, Machine, installed

from neonlite import Autodiff, Backend, cleanup_backend, gen_backend
from neonlite.backend.runtimes import BUILTIN_RUNTIMES, info, load_runtime
from neonlite.backend.runtimes.cuda import CuPyRuntime
from neonlite.typing import FLOAT_DTYPES, INT_DTYPES

STANDIN, GPU = "stand-in", "GPU"
ON_BOTH = [STANDIN, pytest.param(GPU, marks=[pytest.mark.gpu, pytest.mark.filterwarnings("default")])]


@pytest.fixture(params=ON_BOTH)
def where(request: pytest.FixtureRequest) -> Iterator[str]:
    """Make ``import cupy`` import the stand-in, or CuPy on a machine with a GPU."""
    if request.param == STANDIN:
        with installed():
            yield STANDIN
        return
    try:
        load_runtime("gpu")
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"no GPU: {error}")
    yield GPU


@pytest.fixture(autouse=True)
def op_by_op_on_the_stand_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable kernels on the stand-in, where compiling would take long; test_codegen.py tests them."""
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setenv("NEONLITE_KERNELS", "0")


@pytest.fixture(autouse=True)
def no_backend_afterwards() -> Iterator[None]:
    yield
    cleanup_backend()


@pytest.fixture
def every_host_array_goes_through_put(where: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Assert that only ``put`` passes NumPy arrays to the stand-in."""
    count, put = 0, CuPyRuntime.put

    def counted(self: CuPyRuntime, array: Any) -> Any:
        nonlocal count
        count += 1
        return put(self, array)

    monkeypatch.setattr(CuPyRuntime, "put", counted)
    before = standin_cupy.MACHINE.uploads
    yield
    assert where == GPU or standin_cupy.MACHINE.uploads == before + count


@pytest.fixture
def gpu(every_host_array_goes_through_put: None) -> Backend:
    return gen_backend("gpu", rng_seed=1)


@pytest.fixture
def gpu64(every_host_array_goes_through_put: None) -> Backend:
    return gen_backend("gpu", rng_seed=1, datatype=np.float64)


# --- errors where it cannot run ---

MISSING = [
    r"the runtime 'gpu' cannot be loaded: .*cupy",
    r'pip install "neonlite\[cuda13\]"',
    r"\[cuda12\]",
    "nvidia-smi",
]
CANNOT = r"the runtime 'gpu' cannot run: CuPy 14\.2\.0 for CUDA 13\.2"


@pytest.mark.parametrize("name", ["gpu", "nervanagpu"])
def test_without_cupy_the_error_names_the_package_to_install_and_how_to_choose_it(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    current = gen_backend("cpu")
    with pytest.raises(ImportError) as caught:
        gen_backend(name)
    for words in MISSING:
        caught.match(words)
    assert current.ones((1, 1)).get() == 1


def test_a_cupy_that_does_not_import_is_explained_too(monkeypatch, tmp_path):
    (tmp_path / "cupy.py").write_text("raise ImportError('libnvrtc.so.12: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    before = standin_cupy.exchange({})
    try:
        with pytest.raises(ImportError, match=r"'gpu' cannot be loaded: libnvrtc\.so\.12: cannot open") as caught:
            gen_backend("gpu")
    finally:
        standin_cupy.exchange(before)
    for words in MISSING[1:]:
        caught.match(words)


UNUSABLE = {
    "no driver": (
        {"driver": 0},
        ["no device: cudaErrorInsufficientDriver: ", "no NVIDIA driver", "nvidia-smi", "--gpus all"],
    ),
    "no GPU": (
        {"devices": 0},
        ["no device: cudaErrorNoDevice: ", r"driver supports CUDA 13\.0", "CUDA_VISIBLE_DEVICES"],
    ),
    "a driver for the previous CUDA": (
        {"driver": 12040},
        [
            "InsufficientDriver",
            r"CUDA 12\.4 at most",
            "uninstall cupy-cuda13x",
            r'install "neonlite\[cuda12\]"',
            "update",
        ],
    ),
    "a driver too old for any wheel": (
        {"driver": 11080},
        ["InsufficientDriver", r"CUDA 11\.8 at most: update the driver$"],
    ),
    "no compiler": (
        {"nvrtc": 'Failure finding "libnvrtc.so.13"', "driver": 14100},
        [r"driver for CUDA 14\.10", r"NVRTC.*libnvrtc\.so\.13", r'pip install "neonlite\[cuda13\]"'],
    ),
}


@pytest.mark.parametrize("what", UNUSABLE)
def test_where_it_cannot_run_the_error_names_the_versions_and_the_solution(what):
    machine, words = UNUSABLE[what]
    with installed(**machine):
        with pytest.raises(RuntimeError, match=CANNOT) as caught:
            gen_backend("gpu")
        for word in words:
            caught.match(word)
        (row_of_gpu,) = (row for row in info() if row.name == "gpu")
        assert (row_of_gpu.is_usable, row_of_gpu.details) == (False, str(caught.value))


def test_a_driver_newer_than_cupy_or_older_by_a_minor_version_is_fine():
    for driver in (13000, 13020, 14000):
        with installed(driver=driver):
            assert gen_backend("gpu").ones((1, 1)).get() == 1


def test_there_are_as_many_devices_as_gpus():
    with installed(devices=1):
        for device in (1, -1, True, "0", 0.0):
            with pytest.raises(ValueError, match=r"runtime 'gpu': expected 0 for device_id, got "):
                gen_backend("gpu", device_id=device)
    with installed(devices=3):
        for device in range(3):
            assert gen_backend("gpu", device_id=device).runtime.device_id == device
        with pytest.raises(ValueError, match="runtime 'gpu': expected an integer from 0 to 2 for device_id, got 3"):
            gen_backend("gpu", device_id=3)


def test_a_backend_is_created_and_works_on_its_device():
    with installed(devices=2):
        second = gen_backend("gpu", device_id=1)
        x = second.array([[1.0, 2.0]])
        y = (x * 2 + second.rand(1, 2) * 0).astensor()
        assert [t._tensor.device.id for t in (x, y, second.zeros((2, 2)))] == [1, 1, 1]
        first = Backend("gpu")
        assert first.ones((1, 1))._tensor.device.id == 0
        seen = []

        def elsewhere() -> None:  # as the comment in cupy_runtime.py says
            import cupy

            cupy.cuda.Device(1).use()
            seen.append((x + 1).asnumpyarray().tolist())

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert seen == [[[2.0, 3.0]]]


def test_about_returns_versions_gpu_and_memory(where):
    about = load_runtime("gpu").version_info()
    assert (row_of_gpu := next(row for row in info() if row.name == "gpu")).is_usable
    assert row_of_gpu.details == about
    if where == STANDIN:
        assert about == "CuPy 14.2.0, CUDA 13.2 (driver 13.0), 1 device: Stand-in, 16 GiB"
    with installed(devices=2):
        assert "2 devices: " in load_runtime("gpu", 1).version_info()


def test_the_file_of_the_runtime_is_read_without_cupy(monkeypatch):
    module = BUILTIN_RUNTIMES["gpu"][0]
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.delitem(sys.modules, module)
    assert __import__(module, fromlist=["CuPyRuntime"]).CuPyRuntime.name == "gpu"


def test_an_out_of_memory_error_of_the_gpu_names_the_solution():
    with installed(memory=2_000_000_000):
        be = gen_backend("gpu")
        x = be.zeros((1000, 250), name="x")
        for make in (
            lambda: be.zeros((100_000, 100_000), name="large"),
            lambda: be.empty((100_000, 100_000), name="large"),
        ):
            with pytest.raises(MemoryError) as caught:
                make()
            for words in (
                r"out of memory allocating large \(100000, 100000\) float32, 40 GB: 'gpu' holds 1 MB: tensors 1 MB",
                r", 501 MB free of 2 GB on the device\.",
                r"Reduce the batch size, .*model\.summary.*be\.dry_run",
            ):
                caught.match(words)
        assert be.memory().tensors == 1_000_000
        with pytest.raises(MemoryError, match=r"out of memory allocating a tensor \(100000, 100000\)"):
            (x[:1, :1] * be.broadcast_to(x[:1, :1], (100_000, 100_000))).astensor()
        assert str(be.device_memory()) == "501 MB free of 2 GB"
        assert x.get().sum() == 0


def test_the_free_memory_of_the_host_is_none_and_an_allocation_that_is_too_large_raises():
    be = Backend("cpu")
    assert be.device_memory() is None
    with pytest.raises(
        MemoryError, match=r"out of memory allocating large \(1000000000, 1000000000\) float32, 4e\+09 GB"
    ):
        be.zeros((10**9, 10**9), name="large")


def test_after_a_fork_the_error_says_so(monkeypatch):
    with installed() as machine:
        be = gen_backend("gpu")
        x = be.ones((2, 2))
        machine.forked = True
        monkeypatch.setattr(be.runtime.driver, "process_id", -1)
        for act in (
            lambda: be.ones((2, 2)),
            lambda: x.__setitem__(slice(None), np.ones((2, 2))),
            lambda: be.runtime.synchronize(),
            lambda: (x + 1).astensor(),
        ):
            with pytest.raises(
                RuntimeError, match=r"gpu: expected the process that created the backend, got a forked child.*spawn"
            ):
                act()


def test_a_thread_on_another_device_raises_and_so_does_an_array_of_another():
    with installed(devices=2):
        import cupy

        be = gen_backend("gpu", device_id=1)
        x, elsewhere = be.ones((2, 2)), Backend("gpu").ones((2, 2))  # this sets the thread's device to 0
        for act in (lambda: (x + 1).astensor(), lambda: x.__setitem__(slice(None), x * 2)):
            with pytest.raises(
                RuntimeError, match=r"gpu: expected current device 1 of this thread, got 0.*Device\(1\)\.use"
            ):
                act()
        cupy.cuda.Device(1).use()
        assert (x + 1).asnumpyarray().tolist() == [[2, 2]] * 2
        words = r"expected an array on device 1 of the backend 'gpu', got one on device 0\. Copy it with be\.array"
        with pytest.raises(BufferError, match=words):
            be.from_dlpack(elsewhere)


# --- the stand-in ---------------------------------------------------------------------------------------------------


@pytest.fixture
def cupy() -> Iterator[Any]:
    with installed():
        yield sys.modules["cupy"]


def test_the_stand_in_accepts_only_its_arrays_and_scalars(cupy):
    x, host = cupy.array(np.ones((2, 2), np.float32)), np.ones((2, 2), np.float32)
    for mix in (
        lambda: x + host,
        lambda: host * x,
        lambda: x @ host,
        lambda: cupy.maximum(x, host),
        lambda: cupy.where(x > 0, x, host),
        lambda: cupy.concatenate([x, host]),
        lambda: cupy.sum(host),
        lambda: x.__setitem__(..., host),
        lambda: x[np.array([0])],
        lambda: np.sum(x),
        lambda: np.asarray(x),
        lambda: np.add(x, 1, out=host),
        lambda: cupy.sum([1.0, 2.0]),
        lambda: cupy.sum(x, where=x > 0),
    ):
        with pytest.raises(TypeError):
            mix()
    for number in (2, 2.0, True, np.float32(2)):
        assert type(x * number) is type(number * x) is cupy.ndarray
        assert (x * number).dtype == np.float32


def test_the_stand_in_has_views_and_arrays_of_no_dimensions(cupy):
    x = cupy.arange(6, dtype=np.float32).reshape(2, 3)
    view = x.T[1:, 0]
    view[...] = -1
    np.testing.assert_array_equal(x.get(), [[0, -1, -1], [3, 4, 5]])
    for single in (x[1, 1], x.sum(), cupy.max(x)):
        assert (type(single), single.shape) == (cupy.ndarray, ())
    x[1, 1][...] = 7
    assert int(x[1, 1]) == 7
    assert type(cupy.asnumpy(x)) is type(x.get()) is np.ndarray
    x.get()[...] = 0
    assert x.get().any()


def test_the_stand_in_is_as_strict_as_a_gpu_where_numpy_is_lenient(cupy):
    x = cupy.zeros(5)
    with pytest.raises(AssertionError, match="overlap"):
        x[1:] = x[:-1]
    assert float(cupy.sign(cupy.array(np.nan))) == 0  # array_api_compat corrects it
    assert cupy.take(cupy.arange(3), cupy.asarray([4])).tolist() == [1]
    with installed(devices=2):
        import cupy as two

        here = two.ones(2)
        two.cuda.Device(1).use()
        with pytest.raises(ValueError, match="current device"):
            here + 1
        with two.cuda.Device(0):
            assert (here + 1).tolist() == [2, 2]


def test_the_stand_in_is_removed_afterwards():
    before = {name: module for name, module in sys.modules.items() if "cupy" in name}
    with installed(devices=5, driver=1) as machine:
        assert machine == Machine(devices=5, driver=1)
        assert sys.modules["cupy"] is not before.get("cupy")
    assert {name: module for name, module in sys.modules.items() if "cupy" in name} == before
    assert Machine(uploads=standin_cupy.MACHINE.uploads) == standin_cupy.MACHINE


def test_the_stand_in_has_no_function_that_cupy_does_not_have():
    real = pytest.importorskip("cupy", reason="CuPy is not installed: it can be, without a GPU")
    assert all(isinstance(getattr(real, name), real.ufunc) for name in UFUNCS)
    for name, keywords in KEYWORDS.items():
        assert set(keywords.split()) <= set(inspect.signature(getattr(real, name)).parameters), name
    for name, contents in ((name, vars(module)) for name, module in standin_cupy.modules().items()):
        theirs: Any = real
        for submodule in name.split(".")[1:]:
            theirs = getattr(theirs, submodule)
        lacking = [x for x in contents if not x.startswith("_") and not hasattr(theirs, x)]
        assert not lacking, name
    members = {x for x in vars(standin_cupy.ndarray) if x not in ("_host", "_view", "_basic", "_place", "__module__")}
    assert not [x for x in members - {"__dict__", "__weakref__", "__annotations__"} if not hasattr(real.ndarray, x)]
    assert issubclass(real.cuda.runtime.CUDARuntimeError, RuntimeError)
    assert set(FUNCTIONS) <= set(vars(real))


# --- every op -------------------------------------------------------------------------------------------------------


def test_it_has_every_dtype(gpu):
    assert set(gpu.runtime.dtypes) == {*FLOAT_DTYPES, *INT_DTYPES}
    for dtype in gpu.runtime.dtypes:
        assert gpu.ones((2, 2), dtype).get().dtype == gpu.array([[1, 2]], dtype).get().dtype == dtype


# every op in every dtype, in one of the layouts; two of three are slow
VALUES = [
    pytest.param(name, dtype, op_cases.LAYOUTS[(i + k) % 3], marks=() if i % 3 == k % 3 else pytest.mark.slow)
    for i, name in enumerate(op_cases.OF_FLOATS)
    for k, dtype in enumerate(op_cases.CLOSE)
]


def check_value(gpu, name, dtype, layout):
    for case in part(op_cases.CASES[name], f"{name} {layout}", 0):
        op_cases.check_value(gpu, case, dtype, layout)


@each("name, dtype, layout", values(VALUES, is_slow=False))
def test_the_value_is_that_of_the_textbook(gpu, name, dtype, layout):
    check_value(gpu, name, dtype, layout)


@pytest.mark.slow
@each("name, dtype, layout", values(VALUES, is_slow=True))
def test_the_value_in_each_layout_is_that_of_the_textbook(gpu, name, dtype, layout):
    check_value(gpu, name, dtype, layout)


INTEGERS = thinned(2, op_cases.CASES, op_cases.INTS)


@each("name, dtype", values(INTEGERS, is_slow=False))
def test_the_value_of_integers_is_that_of_the_textbook(gpu, name, dtype):
    op_cases.check_value_of_ints(gpu, name, dtype)


@pytest.mark.slow
@each("name, dtype", values(INTEGERS, is_slow=True))
def test_the_value_of_each_dtype_of_integers_is_that_of_the_textbook(gpu, name, dtype):
    op_cases.check_value_of_ints(gpu, name, dtype)


@each("name", op_cases.GRADIENTS)
def test_the_gradient_is_that_of_finite_differences(gpu64, name):
    for case in part(op_cases.GRADIENTS[name], name, op_cases.LAYOUTS.index("view")):
        op_cases.check_gradient(gpu64, case, "view")


@each("name, operands, expected", op_cases.EDGES)
def test_at_the_edges_of_arithmetic(gpu, name, operands, expected):
    op_cases.check_edges(gpu, [(name, operands, expected)])


@pytest.mark.parametrize(("dtype", "values", "to", "expected"), op_cases.CASTS, ids=str)
def test_astype_casts_as_numpy_does(gpu, dtype, values, to, expected):
    op_cases.check_cast(gpu, dtype, values, to, expected)


def test_indices_and_powers_are_checked_since_a_gpu_does_not_check_them(gpu):
    x, whole = gpu.array([[1.0, 2.0, 3.0]]), gpu.array([[2, 3]], dtype="int32")
    for tree, words in [
        (gpu.take(x, [3], 1), r"index 3 is out of range for size 3"),
        (gpu.take(x, gpu.array([[-4]], dtype="int32"), 1), r"index -4 is out of range"),
        (gpu.onehot(whole, 0, nclass=3), r"label 3 is out of range"),
    ]:
        with pytest.raises(IndexError, match=words):
            tree.astensor()
    with pytest.raises(ValueError, match="negative integer powers"):
        (whole**-1).astensor()


# --- a small network, views and random numbers ---


def network(be: Backend) -> tuple[Any, list[Any]]:
    """Return the cross-entropy of a small network and its weights, which are drawn on the host: always the same."""
    draw = np.random.default_rng(3)
    x, labels = be.array(draw.normal(size=(5, 8))), be.array(draw.integers(0, 3, (1, 8)), dtype="int32")
    shapes = [(4, 5), (4, 1), (3, 4), (3, 1)]
    W1, b1, W2, b2 = weights = [be.array(draw.normal(size=s) / 2, name=f"w{n}") for n, s in enumerate(shapes)]
    hidden = be.maximum(be.dot(W1, x) + b1, 0)
    normal = (hidden - be.mean(hidden, axis=1)) / be.sqrt(be.var(hidden, axis=1) + 1e-3)
    out = be.softmax(be.dot(W2, normal) + b2, axis=0)
    return -be.sum(be.safelog(out) * be.onehot(labels, axis=0, nclass=3)), weights


def test_a_net_has_the_gradients_of_finite_differences(gpu64):
    loss, weights = network(gpu64)
    start = [w.get() for w in weights]

    def f(*values: Any) -> Any:
        for w, value in zip(weights, values, strict=True):
            w[:] = value
        return loss.asnumpyarray()

    for k, dw in enumerate(Autodiff(loss, gpu64).get_grad_asnumpyarray(weights)):
        assert off(dw, gradient_of_operand(f, start, k, 1.0)) <= 1e-6


def test_a_net_is_trained_as_on_the_cpu(gpu):
    losses = []
    for be in (gpu, Backend("cpu")):
        loss, weights = network(be)
        states = [be.zeros_like(w) for w in weights]
        grads, before = Autodiff(loss, be).get_grad_op_tree(weights), loss.asnumpyarray().item()
        for _ in range(60):
            be.assign(states, [0.9 * v - 0.02 * g for v, g in zip(states, grads, strict=True)])
            for w, v in zip(weights, states, strict=True):
                w[:] = w + v
        losses.append(loss.asnumpyarray().item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert losses[0] < before / 4


VIEWS: dict[str, Callable[[Any], Any]] = {
    "a row": lambda t: t[1],
    "a column from the end": lambda t: t[:, -2],
    "every second, backwards": lambda t: t[::-2, 5:0:-2],
    "transposed": lambda t: t.T[2:],
    "reshaped": lambda t: t.reshape(3, 2, 4),
    "a part of a part": lambda t: t[1:][:, 2:].T[::2],
    "one element": lambda t: t[2, 3],
    "nothing": lambda t: t[3:3],
    "shared": lambda t: t.share((5, 2)),
}


@pytest.mark.parametrize("view", VIEWS)
def test_views_share_their_memory(gpu, view):
    cpu = Backend("cpu")
    x, y = (be.array(np.arange(24.0).reshape(4, 6)) for be in (gpu, cpu))
    for t in (x, y):
        part = VIEWS[view](t)
        part[:] = part * 2 + 100
        part.fill(-1) if view == "one element" else None
        t[0, 0] = 9
    np.testing.assert_array_equal(x.get(), y.get())
    np.testing.assert_array_equal(VIEWS[view](x).get(), VIEWS[view](y).get())
    assert VIEWS[view](x).shape == VIEWS[view](y).shape


MOVES: dict[str, Callable[[Any, Any], Any]] = {
    "down": lambda be, x: be.assign([x[1:]], [x[:-1]]),
    "up, in a tree": lambda be, x: be.assign([x[:-1]], [x[1:] + x[:-1]]),
    "along": lambda be, x: be.assign([x[:, 2:]], [x[:, :-2]]),
    "backwards": lambda be, x: be.assign([x], [x[::-1, ::-1]]),
    "transposed": lambda be, x: be.assign([x[:, :4]], [x[:, :4].T]),
    "swapped": lambda be, x: be.assign([x[0], x[1]], [x[1], x[0]]),
    "onto itself": lambda be, x: be.assign([x], [x]),
    "flat": lambda be, x: be.assign([x.reshape(1, 24)[:, 5:]], [x.reshape(1, 24)[:, :-5]]),
    "two that overlap": lambda be, x: be.assign([x[:3], x[1:]], [x[1:] * 2, x[:3] + 1]),
}


@pytest.mark.parametrize("move", MOVES)
def test_a_target_may_overlap_an_operand(gpu, move):
    x, y = (be.array(np.arange(24.0).reshape(4, 6)) for be in (gpu, Backend("cpu")))
    MOVES[move](gpu, x)
    MOVES[move](y.backend, y)
    np.testing.assert_array_equal(x.get(), y.get())


@each(
    "value, dtype",
    itertools.product(
        [3, 2.5, True, np.float32(7), np.arange(6.0), np.ones((4, 1)), [[1], [2], [3], [4]]],
        ["float32", "float16", "int8", "uint64"],
    ),
)
def test_scalars_and_arrays_of_the_host_are_written(gpu, value, dtype):
    results = []
    for be in (gpu, Backend("cpu")):
        x = be.zeros((4, 6), dtype)
        target = x[1:2] if np.shape(value) == (6,) else x
        target[:] = value
        results.append(x.get())
    np.testing.assert_array_equal(*results)
    assert results[0].any()


@pytest.mark.parametrize("draw", DRAWS)
def test_random_numbers_are_those_of_the_cpu_bit_for_bit(gpu, draw):
    a, b = (DRAWS[draw](Backend(name, rng_seed=7)).get() for name in ("gpu", "cpu"))
    np.testing.assert_array_equal(a, b)
    assert len(np.unique(a)) > 1


# --- primitives, compared with the CPU ---


@pytest.mark.parametrize("what", PRIMITIVES)
def test_primitives_are_those_of_the_cpu(gpu, what):
    results, wanted = (PRIMITIVES[what](be) for be in (gpu, Backend("cpu")))
    for a, b in zip(results, wanted, strict=True):
        np.testing.assert_allclose(a.get(), b.get(), rtol=1e-5, atol=1e-5)
        assert b.get().any()


# --- copies and shared memory ---


@pytest.mark.parametrize("dtype", FLOAT_DTYPES + INT_DTYPES)
def test_tensors_are_copied_to_and_from_the_cpu(gpu, dtype):
    cpu, near = Backend("cpu"), "float32" if dtype == "bfloat16" else dtype
    values = np.arange(12).reshape(3, 4).astype(dtype)
    there = gpu.array(cpu.array(values, near).T, dtype, name="there")
    back = cpu.array(there[1:], near)
    there.fill(0)
    np.testing.assert_array_equal(back.get(), values.T[1:])
    assert (there.dtype, back.dtype) == (dtype, near)
    out = cpu.zeros((4, 3))
    out[:] = gpu.array(values.T).get()
    np.testing.assert_array_equal(out.get(), values.T)
    np.testing.assert_array_equal(np.asarray(gpu.array(values, dtype)), values)


def test_what_get_returns_is_a_copy(gpu):
    x = gpu.ones((2, 3))
    x.get()[...] = 7
    np.asarray(x)[...] = 7
    assert (x.get() == 1).all()
    assert all(view.get().flags.c_contiguous for view in (x.T, x[:, ::2]))
    values = np.zeros((2, 3), np.float32)
    y = gpu.array(values)
    values[...] = 7
    assert not y.get().any()


def test_memory_is_shared_with_other_libraries_on_the_gpu(gpu):
    x = gpu.array([[1.0, 2.0], [3.0, 4.0]], name="x")
    again = gpu.from_dlpack(x[1:])
    again[:] = again * 10
    np.testing.assert_array_equal(x.get(), [[1, 2], [30, 40]])
    x[:1] = again  # both are known to share memory
    x[1:] = x[:1] + again
    np.testing.assert_array_equal(x.get(), [[30, 40], [60, 80]])
    view = x.T[1:]
    back = gpu.from_dlpack(view)
    assert back.allocation is x.allocation
    assert (back.storage_offset, back.strides, back.span, back.shape) == (
        view.storage_offset,
        view.strides,
        view.span,
        view.shape,
    )
    with pytest.raises(BufferError, match=r"Copy it with be\.array"):
        gpu.from_dlpack(np.ones((2, 2), np.float32))
    with pytest.raises(ValueError, match="expected memory that NumPy can share for copy=False"):
        np.asarray(x, copy=False)


def test_backends_live_side_by_side_and_do_not_mix(gpu):
    cpu, other = Backend("cpu"), Backend("gpu", rng_seed=1)
    x, y, z = (be.array([[1.0, 2.0]], name=name) for be, name in ((gpu, "x"), (cpu, "y"), (other, "z")))
    for _ in range(2):
        for t in (x, y, z):
            np.testing.assert_allclose((t.backend.exp(t) + 1).asnumpyarray(), np.exp([[1, 2]]) + 1, rtol=1e-6)
    for a, b in [(x, y), (y, x), (x, z)]:
        for mix in (
            lambda a=a, b=b: a + b,
            lambda a=a, b=b: a.__setitem__(slice(None), b),
            lambda a=a, b=b: a.__setitem__(slice(None), b * 2),
            lambda a=a, b=b: a.backend.dot(a, b.T),
        ):
            with pytest.raises(ValueError, match=r"copy across with be\.array|be\.array\(t\)"):
                mix()
    x[:] = gpu.array(y) + gpu.array(z)
    np.testing.assert_array_equal(x.get(), [[2, 4]])


def test_a_tensor_shows_its_values_and_can_be_read_after_the_backend(gpu):
    x = gpu.array([[1.0, 2.5]], name="x")
    assert repr(x) == "Tensor([[1.  2.5]], 'x', (1, 2), float32, gpu)"
    assert "<td>2.5</td>" in x._repr_html_()
    gpu.runtime.synchronize()
    cleanup_backend()
    np.testing.assert_array_equal(x.get(), [[1, 2.5]])
