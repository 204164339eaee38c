"""Custom CUDA kernels (be.elementwise_kernel, be.raw_kernel) in op-trees, plans, gradients and on other runtimes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from helpers import nvrtc

import neonlite as nl
from neonlite import Autodiff, Backend
from neonlite.backend.runtimes.cuda.kernels import RAW_KERNELS
from neonlite.backend.runtimes.cuda.libraries import OPTIONS
from neonlite.backend.runtimes.cuda.op_templates import USER_TEMPLATES
from neonlite.backend.runtimes.cuda.simulator import SimulatedGPU
from neonlite.ops import OPS

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are simulated with g++, not here")

ROWS = r"""
// The norm of each row: a thread a row.
extern "C" __global__ void row_norms(T* z, const T* x, long long rows, long long columns, double floor)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows) return;
    Compute sum = 0;
    for (long long j = 0; j < columns; ++j) sum += to_compute(x[i * columns + j]) * to_compute(x[i * columns + j]);
    store(z[i], sum < (Compute)floor ? (Compute)floor : sqrt(sum));
}
"""
ROTATE = r"""
extern "C" __global__ void turned(T* z, const T* x, const T* y, long long n)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) z[i] = x[n - 1 - i] + y[i];
}
"""
NORMS: dict[str, Any] = {
    "shape_fn": lambda x: (x[0], 1),
    "launch_config": lambda z, x: (-(-z[0] // 256), *x, 1e-30),
    "grad": lambda be, dz, z, x: (dz * x / z,),
}
CLOSE = {"float16": 3e-3, "bfloat16": 0.025, "float32": 1e-5, "float64": 1e-13}
SWISH: dict[str, Any] = {"grad": lambda be, dz, z, x: (dz * (z + be.sig(x) * (1 - z)),)}


@pytest.fixture
def define() -> Iterator[Callable[..., Any]]:
    """Return a function that defines kernels until the test ends."""
    result = []

    def kernel(name: str, text: str, **options: Any) -> Any:
        if name not in OPS:
            result.append(name)
        return (Backend.raw_kernel if "__global__" in text else Backend.elementwise_kernel)(name, text, **options)

    yield kernel
    for name in result:
        row = OPS.pop(name, None)
        for table in (USER_TEMPLATES, RAW_KERNELS):
            table.pop(row, None)
        if hasattr(Backend, name):
            delattr(Backend, name)


@pytest.fixture
def sim() -> Backend:
    return Backend(SimulatedGPU(), rng_seed=1)


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


def swished(x: Any) -> Any:
    return x / (1 + np.exp(-x))


# --- elementwise ----------------------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize(("dtype", "close"), CLOSE.items())
def test_an_expression_has_its_value_in_every_float(define, sim, dtype, close):
    define("swished", "x / (1 + exp(-x))")
    x = numbers(9, 12).astype(dtype)
    result = sim.swished(sim.array(x, dtype)).asnumpyarray()
    assert result.dtype == dtype
    np.testing.assert_allclose(result.astype("float64"), swished(x.astype("float64")), close, close)


@needs_compiler
def test_an_expression_is_a_line_of_the_kernel_around_it(define, sim):
    define("gap", "x > y ? (T)0.5 * (x - y) : 0")
    x, y = (sim.array(numbers(6, 6, seed=n), name="xy"[n]) for n in (0, 1))
    tree = 3 * sim.gap(x, y[:, :1]) - sim.gap(x.T, 2).T + sim.sum(sim.gap(x, y), axis=1)

    def gap(x: Any, y: Any) -> Any:
        return np.maximum(x - y, 0) / 2

    X, Y = x.get(), y.get()
    wanted = 3 * gap(X, Y[:, :1]) - gap(X.T, 2).T + gap(X, Y).sum(1, keepdims=True)
    np.testing.assert_allclose(tree.asnumpyarray(), wanted, 1e-5, 1e-6)
    assert len(sim.plan(3 * sim.gap(x, y) + 1).stages) == 1
    assert "const float v0 = x0s.at[q] > x1s.at[q] ? (float)0.5 * (x0s.at[q] - x1s.at[q]) : 0;  // gap" in sim.kernel(
        3 * sim.gap(x, y) + 1
    )


@needs_compiler
def test_the_derivative_of_an_expression_is_checked_where_the_kernel_runs(define, sim):
    define("swished", "x / (1 + exp(-x))", **SWISH)
    x = sim.array(numbers(3, 4), name="x")
    assert sim.check_grad(sim.swished(x) * x).ok
    X = x.get().astype("float64")
    slope = (swished(X + 1e-6) - swished(X - 1e-6)) / 2e-6
    np.testing.assert_allclose(Autodiff(sim.swished(x), sim).get_grad_asnumpyarray(x), slope, 1e-4, 1e-4)


def test_a_wrong_derivative_is_detected(define):
    define("swished", "x / (1 + exp(-x))", run=lambda xp, x: x / (1 + xp.exp(-x)), grad=lambda be, dz, z, x: (dz * z,))
    be = Backend("cpu")
    assert not be.check_grad(be.swished(be.array(numbers(3, 4), name="x"))).ok


def test_every_runtime_uses_the_run_function(be, define):
    define("swished", "x / (1 + exp(-x))", run=lambda xp, x: x / (1 + xp.exp(-x)), **SWISH)
    x = be.array(numbers(3, 4), name="x")
    np.testing.assert_allclose((2 * be.swished(x)).asnumpyarray(), 2 * swished(x.get()), 1e-5, 1e-6)
    assert str(be.swished(x)) == "({'shape': (3, 4), 'op': 'swished'}, x, None)"
    assert "swished" in repr(be.plan(be.swished(x)))
    assert "exp(-x0s.at[q])" in be.kernel(be.swished(x))


def test_without_a_run_function_other_runtimes_raise_an_error_with_the_solution(be, define):
    if be.name in ("gpu", "simulated"):
        pytest.skip("it has kernels")
    define("swished", "x / (1 + exp(-x))")
    x = be.ones((2, 2))
    with pytest.raises(NotImplementedError, match=r"be\.swished: expected a GPU runtime, got .*run=lambda xp, x"):
        be.swished(x).astensor()
    with pytest.raises(NotImplementedError, match="defined without a derivative"):
        Autodiff(be.swished(x), be).get_grad_op_tree([x])


# --- whole kernels --------------------------------------------------------------------------------------------------

VIEWS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda x: x,
    "transposed": lambda x: x.T,
    "every second": lambda x: x[::2, 1::2],
    "backwards": lambda x: x[::-1],
    "a tree": lambda x: x * 2 + 1,
    "repeated": lambda x: x.backend.broadcast_to(x[:1], (5, x.shape[1])) if hasattr(x, "backend") else x[[0] * 5],
}


@needs_compiler
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", CLOSE)
def test_a_kernel_gets_contiguous_operands(define, sim, view, dtype):
    define("row_norms", ROWS, **NORMS)
    x = numbers(300 if view == "whole" else 6, 7).astype(dtype)
    out = sim.zeros((40, 3) if view != "whole" else (300, 3), dtype)
    result, wanted = (
        VIEWS[view](sim.array(x, dtype)),
        np.linalg.norm(VIEWS[view](x).astype(float), axis=1, keepdims=True),
    )
    close = CLOSE[dtype]
    np.testing.assert_allclose(sim.row_norms(result).asnumpyarray().astype(float), wanted, close)
    target = out[: len(wanted), 1:2]  # its elements are not contiguous
    target[:] = 1 - sim.row_norms(result)
    np.testing.assert_allclose(target.get().astype(float), 1 - wanted, close, 4 * close)
    target[:] = sim.row_norms(result)
    np.testing.assert_allclose(target.get().astype(float), wanted, close)
    assert not out.get()[:, ::2].any()


@needs_compiler
def test_the_target_of_a_kernel_may_be_its_operand(define, sim):
    define("turned", ROTATE, shape_fn=lambda x, y: x)
    x, y = numbers(3, 5), numbers(3, 5, seed=1)
    X, Y = sim.array(x, "float64"), sim.array(y, "float64")
    X[:] = sim.turned(X, Y)
    np.testing.assert_array_equal(X.get(), x.ravel()[::-1].reshape(3, 5) + y)
    empty = sim.turned(X[:0], Y[:0]).asnumpyarray()
    assert empty.shape == (0, 5)


@needs_compiler
def test_a_replayed_kernel_reads_the_current_values_of_a_view(define, sim):
    define("row_norms", ROWS, **NORMS)
    x, z = sim.empty((4, 6), "float64"), sim.empty((4, 1), "float64")

    def find():
        z[:] = sim.row_norms(x[:, ::2])

    for seed in range(5):
        values = numbers(4, 6, seed=seed)
        x[:] = values
        sim.replay("norms", find, uses=[x, z])
        np.testing.assert_allclose(z.get(), np.linalg.norm(values[:, ::2], axis=1, keepdims=True), 1e-13)
    assert "captured" in repr(sim.graphs)


@needs_compiler
def test_the_derivative_of_a_kernel(define, sim):
    define("row_norms", ROWS, **NORMS)
    x = sim.array(numbers(4, 5), name="x")
    assert sim.check_grad(sim.row_norms(x * x) / sim.sum(x * x, axis=1)).ok


def test_source_plan_and_traffic_of_a_kernel_are_available_on_any_runtime(define):
    define("row_norms", ROWS, run=lambda xp, x: xp.sqrt(xp.sum(x * x, axis=1, keepdims=True)), **NORMS)
    be = Backend("cpu")
    x = be.array(numbers(4, 5), name="x")
    np.testing.assert_allclose(be.row_norms(x).asnumpyarray(), np.linalg.norm(x.get(), axis=1, keepdims=True), 1e-6)
    assert be.check_grad(be.row_norms(x)).ok
    text = be.kernel(be.row_norms(x * 2) + 1)
    assert "// z: row_norms of stage 2 (4, 1) float32\n// x: mul of stage 1 (4, 5) float32\n" in text
    assert 'extern "C" __global__ void stage_2(float* z, const float* x, long long rows' in text
    assert "call (4, 1): row_norms" in repr(be.plan(be.row_norms(x)))
    r = be.dry_run()
    assert r.row_norms(r.ones((7, 3))).astensor().shape == (7, 1)


def test_nvidias_compiler_compiles_custom_kernels(define):
    if nvrtc.library() is None:
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc-cu12")
    define("swished", "x / (1 + exp(-x))")
    define("row_norms", ROWS, **NORMS)
    be = Backend(SimulatedGPU())
    for dtype in CLOSE:
        x = be.ones((4, 6), dtype)
        assert nvrtc.compiled(be.kernel(be.row_norms(be.swished(x))), "sm_90", OPTIONS).spilled == 0


# --- errors ---

WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("3 + 4", {}, r"an expression of x as operation, got '3 \+ 4'"),
    ("x *", {"name": "tanh"}, "the name 'tanh' is taken"),
    ("__global__ void odd(T* z) {}", {"shape_fn": len}, r'expected extern "C" __global__ void odd\(T\* z, const T\* x'),
    ('extern "C" __global__ void other(T* z, T* x) {}', {"shape_fn": len}, r"void odd\(T\* z"),
    ('extern "C" __global__ void odd(T* z) {}', {"shape_fn": len}, r"got 'extern \"C\" __global__ void odd\(T\* z\)'"),
    (
        'extern "C" __global__ void odd(T* z, long long n, T* x) {}',
        {"shape_fn": len},
        "to the result and to one or two operands",
    ),
]


@pytest.mark.parametrize(("text", "options", "words"), WRONG, ids=str)
def test_an_invalid_kernel_is_rejected(define, text, options, words):
    with pytest.raises(ValueError, match=words):
        define(**{"name": "odd", "text": text, **options})
    assert "odd" not in OPS.keys() | USER_TEMPLATES.keys() | RAW_KERNELS.keys()


@needs_compiler
def test_too_few_scalars_are_an_error(define, sim):
    define("row_norms", ROWS, **{**NORMS, "launch_config": lambda z, x: (1, *x)})
    words = r"be\.row_norms: expected 3 scalars from launch_config\(\) after the number of blocks, .*, got 2"
    with pytest.raises(ValueError, match=words):
        sim.row_norms(sim.ones((2, 2))).astensor()


@needs_compiler
def test_a_source_that_does_not_compile_warns_with_the_compilers_log(define, sim):
    define("odd", "x * no_such_word", run=lambda xp, x: 2 * x)
    with pytest.warns(RuntimeWarning, match="no_such_word") as warned:
        assert sim.odd(sim.ones((1, 2))).asnumpyarray().tolist() == [[2, 2]]
    message = str(warned[0].message)
    assert re.search(r"kernel\.cu:\d+:\d+: error", message)
    assert "__syncthreads" not in message  # nor any other line of the simulator
    assert len(message.splitlines()) < 60, message


@needs_compiler
def test_a_function_of_integers_is_that_of_doubles_as_on_a_gpu(define, sim):
    define("odd", "exp(x) + pow(x, 2) + sqrt(x)", run=lambda xp, x: xp.exp(x))
    for dtype in ("int32", "uint8", "int64"):
        result = sim.odd(sim.array([[1, 4]], dtype)).asnumpyarray()
        assert result.tolist() == [[int(np.exp(1) + 2), int(np.exp(4) + 18)]]


@pytest.mark.parametrize("operation", ["x * y + w", "x"])
def test_an_expression_and_its_function_have_the_same_operands(define, operation):
    with pytest.raises(ValueError, match=r"elementwise_kernel: expected a function run\(xp, x.* operands of 'x"):
        define("odd", operation, run=lambda xp, x, y, w: x * y + w)
    assert "odd" not in OPS


def test_the_current_backend_has_the_new_op_too(define):
    define("swished", "x / (1 + exp(-x))", run=lambda xp, x: x / (1 + xp.exp(-x)))
    be = nl.gen_backend("cpu")
    assert be.swished(be.zeros((1, 1))).asnumpyarray() == 0


# --- redefinition ---


@needs_compiler
def test_a_redefined_kernel_replaces_the_old_one(define, sim):
    """Trees built before keep the old kernel, since they may have been differentiated already."""
    plain, x = Backend("cpu"), numbers(3, 4)
    for be in (sim, plain):
        out, t = be.zeros((3, 4)), be.array(x)
        old = []
        for n in (2, 2, 3):
            define("times", f"{n} * x", run=lambda xp, x, n=n: n * x, grad=lambda be, dz, z, x, n=n: (n * dz,))
            out[:] = be.times(t) + 1
            np.testing.assert_allclose(out.get(), n * x + 1, 1e-6)
            old.append((n, be.times(t), be.compile([out], [be.times(t) - 1])))
            assert be.check_grad(be.sum(be.times(be.array(x)))).ok
        for n, tree, prepared in old:
            np.testing.assert_allclose(tree.asnumpyarray(), n * x, 1e-6)
            prepared()
            np.testing.assert_allclose(out.get(), n * x - 1, 1e-6)
        define("times", ROWS.replace("row_norms", "times"), run=lambda xp, x: xp.sqrt((x * x).sum(1)[:, None]), **NORMS)
        np.testing.assert_allclose(be.times(t).asnumpyarray(), np.linalg.norm(x, axis=1, keepdims=True), 1e-6)
        define("times", "x * y", run=lambda xp, x, y: x * y, grad=lambda be, dz, z, x, y: (dz * y, dz * x))
        np.testing.assert_allclose(be.times(t, t + 1).asnumpyarray(), x * (x + 1), 1e-5)


@needs_compiler
def test_a_block_is_not_replayed_with_an_old_kernel(define, sim):
    x, out, calls = sim.ones((2, 3)), sim.zeros((2, 3)), []

    def work():
        calls.append(1)
        out[:] = out + sim.times(x)

    total = 0
    for n in (2, 5):
        define("times", f"{n} * x", run=lambda xp, x, n=n: n * x)
        for _ in range(5):
            sim.replay("work", work, uses=[x, out])
            total += n
            assert (out.get() == total).all()
    assert len(calls) == 6  # two runs and one capture for each kernel


@pytest.mark.parametrize("name", ["tanh", "conv_layer", "ones"])
def test_a_built_in_name_cannot_be_redefined(name):
    with pytest.raises(ValueError, match=f"the name '{name}' is taken"):
        Backend.elementwise_kernel(name, "2 * x")
