"""Plans on a simulated GPU: buffers, sources, compilation, and cached launches."""

from __future__ import annotations

import math
import os
import random
import re
import shutil
import threading
from typing import Any

import numpy as np
import pytest
from helpers import nvrtc, op_cases
from helpers.cuda_kernels import DTYPES, reductions
from helpers.parametrize import ARCHITECTURES
from helpers.simulated_gpu import OpByOp, elementwise, numbers, ran, simulated, standardized
from helpers.standin_cupy import installed

from neonlite import Autodiff, Backend, gen_backend
from neonlite.backend.runtimes.cuda import codegen as kernels_module, graphs
from neonlite.backend.runtimes.cuda.executor import CuPyDriver
from neonlite.backend.runtimes.cuda.libraries import OPTIONS
from neonlite.backend.runtimes.cuda.op_templates import OP_TEMPLATES
from neonlite.backend.runtimes.cuda.simulator import SimulatedGPU
from neonlite.ops import OPS
from neonlite.typing import HALF_DTYPES

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are simulated with g++, which is not here")


# --- plans ----------------------------------------------------------------------------------------------------------


def test_targets_that_share_memory_with_operands(sim: Backend) -> None:
    def program(be: Backend) -> list[Any]:
        x, y = be.array(numbers(6, 6)), be.array(numbers(6, 6, seed=1))
        x[:] = x * 2 + 1
        x[:] = x.T
        x[1:] = x[:-1] * 1
        y[:, ::-1] = y + x
        be.assign([x, y], [y, x])
        be.assign([x, y], [x + be.sum(y), y - be.sum(x, axis=0)])
        y[:] = be.softmax(y, axis=1)
        x[:] = x - be.max(x, axis=0)
        x[0] = be.sum(x, axis=0)
        return [x.get(), y.get()]

    for result, wanted in zip(program(sim), program(Backend(OpByOp())), strict=True):
        np.testing.assert_allclose(result, wanted, 1e-5, 1e-5)


CONCATS: dict[str, tuple[int, Any]] = {  # {name: (the number that are copied, the tree)}
    "products and sums": (0, lambda be, x, y: be.concat([x @ y, x + 1, be.exp(y * 0.1)], axis=0) @ y),
    "read again": (0, lambda be, x, y: (z := x @ y, be.concat([z, be.sum(z * z, axis=1) * y], axis=0) @ z)[1]),
    "after others": (0, lambda be, x, y: be.concat([x @ y, (y @ x) @ (x @ x)], axis=0) @ y),
    "read last": (0, lambda be, x, y: (z := x @ y, r := be.concat([z, y @ y], axis=0) @ x, (r.T @ r) @ z)[2]),
    "in a concat": (1, lambda be, x, y: be.concat([be.concat([x @ y, y @ x], axis=0), x @ x], axis=0) @ y),
    "the same operand twice": (1, lambda be, x, y: (z := x @ y, be.concat([z, z], axis=0) @ y)[1]),
    "in two of them": (1, lambda be, x, y: (z := x @ y, be.concat([z, x + 1]) @ x + be.concat([z, y @ y]) @ y)[1]),
    "a leaf": (1, lambda be, x, y: be.concat([x @ y, x], axis=0) @ y),
    "a view": (1, lambda be, x, y: be.concat([be.transpose(x @ y), y @ x], axis=0) @ y),
    "columns": (1, lambda be, x, y: x @ be.concat([x @ y, y @ x], axis=1)),
    "the target": (1, lambda be, x, y: be.concat([x @ y, y @ x], axis=0)),
}


@pytest.mark.parametrize("name", CONCATS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_temporaries_that_are_concatenated_are_computed_in_the_memory_of_the_result(name: str, dtype: str) -> None:
    num_copied, tree = CONCATS[name]
    sim, plain, results, copied = simulated(dtype), Backend(OpByOp(), default_dtype=dtype), [], list[str]()
    run = sim._executor.generic.evaluate_step
    sim._executor.generic.evaluate_step = lambda step, values: copied.append(step.op.name) or run(step, values)
    for be in (sim, plain):
        x, y = (be.array(np.random.default_rng(n).integers(-3, 4, (5, 5))) for n in (1, 2))
        results.append(be.array(tree(be, x, y)).get())
    np.testing.assert_allclose(*results, rtol=1e-2 if dtype == "float16" else 1e-5)
    assert copied.count("concat") == num_copied


def test_stages_without_a_kernel_are_computed_op_by_op(sim: Backend, plain: Backend) -> None:
    Backend.define_op("third_power", lambda xp, x: x * x * x, None)
    try:
        result = []
        for be in (sim, plain):
            x, y = be.array(numbers(5, 6)), be.array(np.arange(30).reshape(6, 5), "int32")
            trees = [be.third_power(x) + be.dot(x, be.ones((6, 1))), y ** be.array([[2, 3, 1, 0, 2]], "int32") * 2]
            trees += [
                be.concat([x, x * 2]),
                be.build("scatter_add", x, be.array([[0, 0, 1, 2, 1]], "int32"), axis=0, size=3),
            ]
            trees += [be.sum(be.third_power(x), axis=0), be.third_power(x) * 2]
            result.append([t.get() for t in be.evaluate(trees)])
        for a, b in zip(*result, strict=True):
            np.testing.assert_allclose(a, b, 1e-6, 1e-6)
    finally:
        del OPS["third_power"], Backend.third_power  # type: ignore[attr-defined]


def test_very_long_stages_are_computed_op_by_op(sim: Backend) -> None:
    chain = x = sim.ones((2, 2))
    for n in range(1000):
        chain = chain * 0.5 + float(n % 7)
    wide = sum((sim.zeros((2, 2)).fill(n) for n in range(500)), start=x)
    ran(sim)
    result, total = (t.get() for t in sim.evaluate([chain, wide]))
    assert not ran(sim)
    assert (total == 1 + 499 * 250).all()
    expected = 1.0
    for n in range(1000):
        expected = expected * 0.5 + n % 7
    np.testing.assert_allclose(result, expected, 1e-6)


def test_an_integer_to_a_negative_power_raises_and_the_target_is_unchanged(sim: Backend) -> None:
    x, y, out = (sim.array([n], dtype="int32") for n in ([2, 1], [3, -1], [7, 7]))
    for tree in (x**y, 2**y, x**-1, x**-20):
        with pytest.raises(ValueError, match="negative integer powers"):
            out[:] = tree
    assert out.get().tolist() == [[7, 7]]
    out[:] = x**3 + x**20
    assert out.get().tolist() == [[8 + 2**20, 2]]


def test_a_kernel_that_does_not_compile_warns_once_and_is_computed_op_by_op(sim: Backend, monkeypatch: Any) -> None:
    monkeypatch.setitem(OP_TEMPLATES, "tanh", "no_such_function({x})")
    x = sim.array([[0.0, 1.0]])
    with pytest.warns(RuntimeWarning, match="no_such_function"):
        np.testing.assert_allclose(sim.tanh(x).asnumpyarray(), np.tanh([[0, 1]]), 1e-6)
    np.testing.assert_allclose(
        sim.tanh(x).asnumpyarray(), np.tanh([[0, 1]]), 1e-6
    )  # without a warning, which would be an error
    a, b, c = (sim.zeros((1, 2)).fill(n) for n in (0, 1, 2))
    with pytest.warns(RuntimeWarning, match="no_such_function"):
        sim.assign([a, b, c], [b, a, sim.tanh(a)])  # operands are read before targets are written
    assert [t.get().tolist() for t in (a, b, c)] == [[[1, 1]], [[0, 0]], [[0, 0]]]


def test_kernels_can_be_switched_off(sim: Backend, monkeypatch: Any) -> None:
    monkeypatch.setenv("NEONLITE_KERNELS", "0")
    assert (sim.ones((2, 2)) * 2 + 1).asnumpyarray().tolist() == [[3.0] * 2] * 2
    assert not ran(sim)


def test_cupys_driver_runs_what_the_simulated_one_does(monkeypatch: Any) -> None:
    with installed():
        gpu, wanted = Backend("gpu", rng_seed=1), Backend(OpByOp(), rng_seed=1)
        assert type(gpu.runtime.driver) is CuPyDriver
        result = []
        for be in (gpu, wanted):
            x, n = be.array(numbers(12, 40)), be.array(np.arange(480).reshape(12, 40), "uint64")
            trees = [be.softmax(x * 1.5, axis=0), be.sum(x), n + (2**64 - 5), be.take(x.T, [3, -1], 1), be.rand(3, 3)]
            result.append([t.get() for t in be.evaluate([*trees, be.dot(x, x.T), x[::2, ::-1] * 2])])
        for a, b in zip(*result, strict=True):
            np.testing.assert_allclose(a, b, 1e-5, 1e-5)
        assert len(gpu._executor.compiled) >= 6
        gpu.runtime.driver.synchronize()
        monkeypatch.setitem(OP_TEMPLATES, "tanh", "no_such_function({x})")
        with pytest.warns(RuntimeWarning, match="NVRTC cannot compile a kernel"):
            gpu.tanh(gpu.ones((1, 1))).asnumpyarray()


def test_kernels_are_cached_by_structure_for_all_shapes_and_scalars(sim: Backend) -> None:
    for shape in [(4, 8), (16, 4), (3, 100)]:
        for number in (0.5, 2.5):
            x, b = sim.ones(shape), sim.ones((shape[0], 1))
            assert (sim.tanh(x * number) + b).asnumpyarray().shape == shape
            sim.sum(x * number, axis=1).asnumpyarray()
    texts = [text for text, _ in ran(sim) if "tanh" in text or "sum" in text]
    assert (len(texts), len(set(texts))) == (12, 2)


def test_threads_have_separate_arenas(sim: Backend) -> None:
    x = sim.array(numbers(40, 30))
    wanted = sim.softmax(x, axis=1).asnumpyarray()
    wrong: list[Any] = []

    def work(k: int) -> None:
        for _ in range(5):
            result = sim.softmax(x + k, axis=1).asnumpyarray()
            wrong.extend([] if np.allclose(result, wanted, 1e-5, 1e-6) else [result])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.long
def test_the_arena_is_tracked_and_a_dry_run_predicts_it() -> None:
    def work(be: Backend) -> Any:
        x = be.zeros((64, 50_000))
        be.softmax(x, axis=1).astensor()
        be.sum(x).astensor()
        return be.memory()

    def fill(be: Backend) -> Any:
        be.empty((2, 3)).fill(2)
        return be.memory()

    for played in (work, fill):
        real = played(Backend(SimulatedGPU()))
        assert played(Backend(SimulatedGPU()).dry_run()) == real
        assert (real.arena > 0) == (played is work)


# --- source and compilation ---


def everything(be: Backend) -> dict[str, str]:
    """Return the source of every kind of kernel."""
    x, c, r = be.ones((64, 96)), be.ones((64, 1)), be.ones((1, 96))
    h, w, n = be.ones((64, 96), "float16"), be.ones((64, 96), "float64"), be.ones((64, 96), "int32")
    deep = be.ones((64, 20, 33))
    texts = {
        "sigmoid": be.kernel(1 / (1 + be.exp(-x))),
        "broadcast": be.kernel(be.tanh(x * c + r) - 2.5),
        "strided": be.kernel(be.ones((96, 64)).T * x[:, ::-1], deep[:, ::2, 1:] * 2 + deep[:1, ::2, :-1]),
        "deep": be.kernel(deep * be.ones((20, 1)) + be.ones((64, 1, 33))),
        "softmax of rows": be.kernel(be.softmax(x, axis=1)),
        "softmax of columns": be.kernel(be.softmax(x, axis=0)),
        "softmax of long columns": be.kernel(be.softmax(be.ones((1000, 100)), axis=0)),
        "softmax of longer rows": be.kernel(be.softmax(be.ones((2, 32_000)), axis=1)),
        "softmax in passes": be.kernel(be.softmax(be.ones((2, 50_000)), axis=1)),
        "standardized": be.kernel(standardized(be, be.ones((1000, 100)), 0), standardized(be, be.ones((2, 50_000)), 1)),
        "variance": be.kernel(be.var(h, axis=1), be.var(w, axis=0)),
        "totals": be.kernel(be.sum(be.ones((3000, 3000))), be.max(be.ones((900, 4000), "float16"))),
        "places": be.kernel(
            be.argmax(x, axis=1), be.argmin(w, axis=0), be.argmax(be.ones((999, 999), "int8"), axis=(0, 1))
        ),
        "gathers": be.kernel(
            be.take(h, [1, 2], 0), be.onehot([1, 2], 0, nclass=3), be.onehot(n.reshape(1, -1), 1, nclass=3)
        ),
        "sums that are added": be.kernel(c + be.sum(x * x, axis=1), be.sum(w, axis=0) / w[:1] - 2),
        "shared sums that are added": be.kernel(
            r[:, :3] + be.sum(be.ones((9999, 3)), axis=0) * 2,
            h[:3, :1] - be.max(be.ones((3, 99_999), "float16"), axis=1),
        ),
        "draws": be.kernel(be.rand(6, 7), be.randn(6, 7)),
    }
    for dtype in HALF_DTYPES:
        halves = Backend(OpByOp(), default_dtype=dtype)
        texts[f"{dtype} drawn"] = halves.kernel(halves.rand(6, 7), halves.randn(6, 7))
        texts[f"{dtype} shared"] = halves.kernel(
            halves.softmax(halves.ones((1000, 100)), axis=0), standardized(halves, halves.ones((2, 50_000)), 1)
        )
    for dtype in DTYPES:
        a, b, p = (be.ones((64, 96), dtype) for _ in range(3))
        trees = list(elementwise(be, a, b, p).values())
        texts |= {f"{dtype} {n}": be.kernel(*trees[n : n + 8]) for n in range(0, len(trees), 8)}
        texts[f"{dtype} reduced"] = be.kernel(*reductions(be, a, 1)[:3], *reductions(be, a * b, 0)[:3], be.sum(a))
    return texts


def test_indices_have_64_bits_where_there_are_more_than_2_to_the_31_elements() -> None:
    huge = Backend("cpu").dry_run()
    for shape, index in [((2**16, 2**15), "long long"), ((2**16, 2**15 - 1), "unsigned")]:
        x, y = huge.zeros(shape), huge.zeros((1, shape[1]))
        for tree in (x * y, huge.sum(x * 2, axis=1), huge.max(x, axis=0), huge.argmax(x, axis=(0, 1))):
            assert f"typedef {index} Index;" in huge.kernel(tree)


@pytest.mark.long
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("share", [pytest.param(1, marks=pytest.mark.slow), 0.1])
def test_nvidias_compiler_compiles_every_kernel_without_spills(architecture: str, share: float) -> None:
    if nvrtc.library() is None:
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc-cu12")
    sources = everything(Backend(OpByOp()))
    rng = random.Random(os.environ.get("NEONLITE_TEST_SEED", "0"))
    names = {"sigmoid", "broadcast", *rng.sample(sorted(sources), round(share * len(sources)))}
    for name, text in sources.items():
        if name not in names:
            continue
        result = nvrtc.compiled(text, architecture, OPTIONS)
        reduces_angles = re.search(r"\b(sin|cos|tan)f?\(", text)  # of large angles, in memory
        assert result.spilled <= (8 if reduces_angles else 0), (name, result[:3])
        if architecture == "sm_90" and name in ("sigmoid", "broadcast"):
            assert re.search(r"ld\.global(\.nc)?\.v4", result.assembly)
            assert "st.global.v4" in result.assembly
            assert result.registers <= 40, result[:3]


@pytest.mark.parametrize(("architecture", "count"), [("sm_75", 0), ("sm_80", 32)])
def test_bfloat16_rounds_in_one_instruction_and_on_older_gpus_by_integer_arithmetic(
    architecture: str, count: int
) -> None:
    if nvrtc.library() is None:
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc-cu12")
    be = Backend(OpByOp(), default_dtype="bfloat16")
    result = nvrtc.compiled(be.kernel(be.exp(be.ones((64, 96)) * 3) - 1), architecture, OPTIONS)
    assert (result.spilled, result.assembly.count("cvt.rn.bf16.f32")) == (0, count)  # 3 ops, and results, of 8 elements


@pytest.mark.parametrize(("architecture", "count"), [("sm_75", 0), ("sm_80", 4)])
def test_a_maximum_is_one_instruction_and_on_older_gpus_a_comparison(architecture: str, count: int) -> None:
    if nvrtc.library() is None:
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc-cu12")
    be = Backend(OpByOp())
    source = be.kernel(be.maximum(be.ones((64, 96)), be.minimum(be.ones((64, 96)), 2)))
    assembly = nvrtc.compiled(source, architecture, OPTIONS).assembly
    assert [assembly.count(f"{name}.NaN.f32") for name in ("max", "min")] == [count, count]


def test_sums_load_several_packs_before_they_add_them() -> None:
    if nvrtc.library() is None:
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc-cu12")
    be = Backend(OpByOp())
    x, y = be.ones((64, 40_000), "float16"), be.ones((64, 40_000), "float16")
    for tree, count in [(be.sum(x, axis=1), 4), (be.sum(x, axis=0), 4), (be.sum(x * y, axis=1), 8)]:
        assembly = nvrtc.compiled(be.kernel(tree), "sm_90", OPTIONS).assembly
        assert max(part.count("ld.global.v4.u32") for part in assembly.split("add.rn.f32")) == count


@pytest.mark.parametrize(("shape", "axis"), [((3, 10**6), 1), ((10**6, 3), 0), ((64, 401_408), 1), ((10**8,), 0)])
def test_a_reduction_is_split_into_at_most_2048_parts_none_of_which_is_empty(shape: tuple[int, ...], axis: int) -> None:
    be = Backend(OpByOp()).dry_run()
    plan = be.plan(be.sum(be.zeros(shape), axis=axis))
    (kernel,) = kernels_module.region_kernels(plan, plan.stages[0])
    _, size, chunk = kernel.counts
    assert (kernel.num_splits - 1) * chunk < size <= kernel.num_splits * chunk
    assert 100 < kernel.num_splits * kernel.blocks <= 2048


def test_the_source_of_a_tree_is_available_on_any_machine(plain: Backend) -> None:
    x, y = plain.ones((30, 40), name="x"), plain.ones((30, 1), name="bias")
    text = plain.kernel(plain.softmax(plain.dot(x, x.T) + y, axis=1))
    for words in [
        "// --- stage 1: call (30, 30): dot ---\n// No generated kernel",
        "x1: bias (30, 1) float32",
        "// --- stage 2: row_tile (30, 30): add max stop_gradient sub exp sum div ---",
        "s0 = max((x0 + x1)) over axis 1 of 2",
        "x0: dot of stage 1 (30, 30) float32",
    ]:
        assert words in text, text


# --- every op once more, one by one: thousands of kernels -----------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(  # other layouts: test_reductions_of_every_layout
    ("dtype", "layout"),
    [
        ("float64", "tensor"),
        ("float32", "view"),
        ("float16", "tensor"),
        ("bfloat16", "view"),
    ],
)
@pytest.mark.parametrize("name", op_cases.OF_FLOATS)
def test_the_value_is_that_of_the_textbook(sim: Backend, name: str, dtype: str, layout: str) -> None:
    for case in op_cases.CASES[name]:
        op_cases.check_value(sim, case, dtype, layout)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8"])
@pytest.mark.parametrize("name", op_cases.CASES)
def test_the_value_of_integers_is_that_of_the_textbook(sim: Backend, name: str, dtype: str) -> None:
    op_cases.check_value_of_ints(sim, name, dtype)


def test_a_gradient_without_elements_needs_an_arena_of_0_bytes() -> None:
    be = simulated()
    x = be.zeros((3, 0))
    (dx,) = Autodiff(be.max(x, axis=0), be).get_grad_asnumpyarray([x])
    assert dx.shape == (3, 0)


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that grows whenever the arguments of a kernel are packed."""
    calls: list[Any] = []
    launches = kernels_module.FusedKernel.launches
    monkeypatch.setattr(
        kernels_module.FusedKernel, "launches", lambda self, *args: calls.append(self) or launches(self, *args)
    )
    return calls


def test_launches_are_cached_for_the_same_arrays_and_scalars(packed: list[Any]) -> None:
    be = simulated()
    x, y = be.array(np.arange(12.0).reshape(3, 4)), be.empty((3, 4))
    mean, known = be.empty((3, 1)), ()
    for n in range(4):
        y[:] = be.exp(x * 0.5)
        mean[:] = be.mean(y, axis=1)
        np.testing.assert_allclose(mean.get()[:, 0], np.exp((np.arange(12.0) - n) / 2).reshape(3, 4).mean(1), rtol=1e-6)
        x[:] = x - 1
        known = known or (len(packed), len(ran(be)))
        assert len(packed) == known[0]
    assert len(ran(be)) == 3 * known[1] > 0


def test_other_arrays_scalars_and_addresses_are_other_launches(packed: list[Any]) -> None:
    be = simulated()
    host = np.arange(1.0, 61, dtype=np.float32).reshape(5, 12)
    memory = be.array(host)
    # They differ in rows, columns or strides.
    views = [memory[:4, :6], memory[1:, 1:7], memory[:4, 6:], memory[:4, ::2]]
    y = be.empty((4, 6))
    for _ in range(2):
        for x in views:
            for c in (1.0, 0.0, -0.0, math.inf):
                y[:] = c / x
                with np.errstate(all="ignore"):
                    expected = c / x.get()
                np.testing.assert_array_equal(y.get(), expected)
                np.testing.assert_array_equal(np.signbit(y.get()), np.signbit(expected))
    assert len(packed) == len(views) * 4


def test_launches_follow_temporaries_that_have_moved(packed: list[Any]) -> None:
    be = simulated()
    host = np.random.default_rng(1).random((3, 50)).astype(np.float32)
    x, y = be.array(host), be.empty((1, 1))
    wide, counts = be.array(np.ones((3, 40_000))), []
    for _ in range(3):
        y[:] = be.sum(be.sum(x, axis=1) ** 2, axis=0)
        np.testing.assert_allclose(y.get()[0, 0], (host.sum(1) ** 2).sum(), rtol=1e-5)
        counts.append(len(packed))
        y[:] = be.sum(be.sum(wide, axis=0) ** 2)  # needs a larger arena
        assert y.get() == 9 * 40_000
        counts.append(len(packed))
    first, both, again, *rest = counts
    assert again == both + first  # the arena was reallocated
    assert {*rest} == {again}


def test_the_cache_of_launches_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MAX_CACHED_LAUNCHES", 6)  # an entry costs one more than it has launches
    be = simulated()
    x, y = be.ones((2, 2)), be.empty((2, 2))
    for n in range(1, 9):
        y[:] = x * n
        assert y.get().tolist() == [[n, n]] * 2
        assert len(be.runtime.memory_tracker.thread_cache["launches"]) <= 3


def test_a_thread_launches_by_cupy_before_it_launches_by_the_driver() -> None:
    with installed():
        be = gen_backend("gpu")
        x, y = be.ones((4, 4)), be.empty((4, 4))
        tree = x + 1
        failed: list[Any] = []

        def work() -> None:
            try:
                for _ in range(3):
                    y[:] = tree
            except Exception as error:
                failed.append(error)

        work()
        for _ in range(2):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        assert failed == []
        assert y.get().tolist() == [[2] * 4] * 4


def test_a_reshape_that_copies_is_repeated_in_each_run(sim: Backend) -> None:
    """Reshapes of a temporary, a leaf, a strided leaf and the value of a strided target; launches are cached."""
    x, out, wide = sim.zeros((6, 10)), sim.empty((5, 6)), sim.empty((6, 10))
    strided, a = sim.zeros((6, 10))[:, ::2], np.arange(60.0).reshape(6, 10)
    for n in range(4):
        x.set(b := a - n)
        even = x[:, ::2]
        out[:] = sim.reshape((even * 2).T, 6, 5).T + sim.reshape(even * 3, 5, 6) + sim.reshape(even, 5, 6)
        b = b[:, ::2]
        np.testing.assert_array_equal(out.get(), (2 * b).T.reshape(6, 5).T + (4 * b).reshape(5, 6))
        wide[:] = sim.reshape(x.T, 6, 10)
        np.testing.assert_array_equal(wide.get(), (a - n).T.reshape(6, 10))
        sim.assign([strided, out], [double := even * 2, sim.reshape(double, 5, 6) + 1])  # one target has gaps
        np.testing.assert_array_equal(strided.get(), 2 * b)
        np.testing.assert_array_equal(out.get(), 2 * b.reshape(5, 6) + 1)
        if n > 1:
            out[:] = sim.reshape(sim.concat([even]).T, 5, 6)  # another plan in the same arena
            np.testing.assert_array_equal(out.get(), b.T)


def test_a_sum_of_many_tensors_neither_recurses_nor_visits_shared_operands_twice(sim: Backend) -> None:
    for be in (sim, Backend("cpu")):
        total = doubled_up = be.dot(be.ones((2, 2)), be.ones((2, 2)))
        for _ in range(1500):
            total = total + be.ones((2, 2))
        for _ in range(60):
            doubled_up = doubled_up + doubled_up
        assert (total.asnumpyarray() == 1502).all()
        assert (doubled_up.asnumpyarray() == 2.0**61).all()  # 2^60 paths lead to the product
        for tree in (total, doubled_up):
            assert "add" in be.kernel(tree)


def test_a_sum_and_a_broadcast_over_the_same_rows_are_separate_stages(sim: Backend) -> None:
    """The gradient of a product of three sums: one stage would read the total before it is known."""
    for dtype in ("float32", "float64"):
        be = simulated(dtype)
        a, b, c = (be.array(numbers(*shape, seed=n)) for n, shape in enumerate([(2, 3), (3, 1), (2, 2)]))
        gradients = Autodiff(be.sum(a) * be.sum(b) * be.sum(c), be).get_grad_asnumpyarray([a, b, c])
        again = Autodiff(be.einsum("ab,cd,ef->", a, b, c), be).get_grad_asnumpyarray([a, b, c])
        sums = [t.get().sum() for t in (a, b, c)]
        for n, t in enumerate((a, b, c)):
            expected = np.full(t.shape, np.prod(sums[:n] + sums[n + 1 :]))
            np.testing.assert_allclose(gradients[n], expected, 1e-5)
            np.testing.assert_allclose(again[n], expected, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", op_cases.GRADIENTS)
def test_the_gradient_is_that_of_finite_differences(name: str) -> None:
    for case in op_cases.GRADIENTS[name]:
        op_cases.check_gradient(simulated("float64"), case, "tensor")
