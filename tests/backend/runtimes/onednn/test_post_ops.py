"""Fused elementwise chains of oneDNN, sums, and sinking of steps: results as op by op, and when they are used.

Tests ``neonlite/backend/runtimes/onednn/post_ops.py`` and ``neonlite/backend/runtimes/onednn/__init__.py``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.allocations import buffers
from helpers.parametrize import each

from neonlite import Backend
from neonlite.backend import concurrency
from neonlite.backend.runtimes import onednn
from neonlite.backend.runtimes.numpy import stages as stages_module, templates
from neonlite.backend.runtimes.onednn import bindings, post_ops

Array = np.ndarray[Any, Any]

HERE = bindings.get_library()
needs = pytest.mark.skipif(HERE is None, reason=bindings.version_info())
PRECISE = HERE is not None and HERE.has_precise_exp
needs_avx2 = pytest.mark.skipif(not PRECISE, reason="exp and the logistic function are oneDNN's with AVX2 alone")
counts = pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.slow)])
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 1e38, -3e38, 1e-30], np.float32)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Return the ops of every chain that oneDNN evaluates from now on, however few elements it has."""
    found: list[tuple[str, ...]] = []
    run = post_ops.FusedChain.run

    def noted(self: post_ops.FusedChain, threads: int, arrays: Any) -> None:
        before = [np.array(x) for x in arrays] if self.has_exp else arrays  # as out may be one of them
        run(self, threads, arrays)
        if self.get_primitive(self.cache_key(*arrays)) and self.is_supported(*before):
            found.append(tuple(op.op for op in self.ops))

    monkeypatch.setattr(post_ops.FusedChain, "run", noted)
    monkeypatch.setattr(onednn, "MIN_CHAIN_COST", 1)
    monkeypatch.setattr(onednn, "MIN_EXACT_CHAIN_ELEMENTS", 1)
    return found


def normal(rng: np.random.Generator, shape: tuple[int, ...], special: bool = False) -> Array:
    """Return normal random numbers, with ``special`` also infinities, NaN and denormals."""
    x = rng.standard_normal(shape).astype(np.float32)
    if special:
        at = rng.random(shape) < 0.2
        x[at] = rng.choice(SPECIAL, int(at.sum()))
    return x


def same_bits(got: Array, wanted: Array, what: Any = "") -> None:
    """Compare every element, and the signs of zeros; a NaN is as good as another."""
    np.testing.assert_array_equal(got, wanted, err_msg=repr(what))
    np.testing.assert_array_equal(np.signbit(got)[got == 0], np.signbit(wanted)[got == 0], err_msg=repr(what))


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
}

BOUNDS: dict[str, Callable[[Any, Any], Any]] = {"maximum": np.maximum, "minimum": np.minimum}
UNARY: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]] = {
    "sqr": (lambda be, x: be.square(x), np.square),
    "sqrt": (lambda be, x: be.sqrt(x), np.sqrt),
    "abs": (lambda be, x: be.absolute(x), np.abs),
    "rint": (lambda be, x: be.rint(x), np.rint),
    "neg": (lambda be, x: -x, lambda x: np.float32(-1) * x),
    "reciprocal": (lambda be, x: 1 / x, lambda x: np.float32(1) / x),
    "gt_zero": (lambda be, x: be.greater(x, 0), lambda x: (x > 0).astype(np.float32)),
    "lt_zero": (lambda be, x: be.less(x, 0), lambda x: (x < 0).astype(np.float32)),
}


def grown(rng: np.random.Generator, be: Any, operands: list[tuple[Any, Any]], ops: int) -> tuple[Any, Any, list[str]]:
    """Return a tree in which each op takes the one before it, what NumPy makes of it op by op, and its ops."""
    (tree, value), said = operands[0], []
    for _ in range(ops):
        name = str(rng.choice([*BINARY, *BINARY, *BOUNDS, *UNARY]))
        if name in BOUNDS:
            number = float(rng.choice([0.1, -3.5, 2]))
            tree, value = getattr(be, name)(tree, number), BOUNDS[name](value, np.float32(number))
        elif name in BINARY:
            t, a = operands[rng.integers(len(operands))]
            turned = -1 if rng.integers(2) else 1
            tree, value = BINARY[name](*(tree, t)[::turned]), BINARY[name](*(value, a)[::turned])
        else:
            tree, value = UNARY[name][0](be, tree), UNARY[name][1](value)
        said.append(name)
    return tree, value, said


@needs
@counts
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_chains_have_the_bits_that_numpy_has_op_by_op(cpu: Backend, called: list[Any], count: int) -> None:
    rng = np.random.default_rng(0)
    for k in range(count):
        rows, columns = (int(n) for n in rng.integers(1, 70, 2))
        deep = (int(rng.integers(1, 4)),) if k % 5 == 0 else ()
        whole = (*deep, rows, columns)
        shapes = [whole, whole, (1, columns), (rows, 1), (1, 1)]
        arrays = [normal(rng, shape, special=k % 2 == 0) for shape in shapes]
        tensors = [cpu.array(a) for a in arrays]
        numbers = [2, 0.1, -3.5]
        operands = [*zip(tensors, arrays, strict=True), *((n, np.float32(n)) for n in numbers)]
        tree, wanted, said = grown(rng, cpu, operands, int(rng.integers(2, 10)))
        out = cpu.empty(whole) if k % 3 else tensors[k % 2]  # a target that is an operand, too
        out[:] = tree
        same_bits(out.get(), np.broadcast_to(wanted, whole), (whole, said))
    assert len(called) > count / 2
    assert {op for ops in called for op in ops} == {*BINARY, *BOUNDS, *UNARY}


@needs
@pytest.mark.parametrize(
    ("formula", "ops"),
    [
        (lambda be, x, y, c, r: (x - c) * y + 2, [("sub", "mul", "add")]),
        (lambda be, x, y, c, r: y - (x - r) * 0.5, [("sub", "mul", "sub")]),
        (lambda be, x, y, c, r: be.square((x - r) / y), [("sub", "div", "sqr")]),
        (lambda be, x, y, c, r: (lambda d: d * d)(x - r), [("sub", "sqr")]),
        (lambda be, x, y, c, r: be.sig(x * y + c), [("mul", "add", "sig")]),
        (lambda be, x, y, c, r: be.exp(x - be.max(x, axis=0)), [("sub", "exp")]),
        (lambda be, x, y, c, r: 1 / (x * y), [("mul", "reciprocal")]),
        (lambda be, x, y, c, r: 2 / (x * y), []),  # which oneDNN cannot go on with
        (lambda be, x, y, c, r: be.exp(x + y), []),
        (lambda be, x, y, c, r: (lambda d: (d + 1) * d)(x * y), [("mul",), ("add", "mul")]),  # d is read twice
        (lambda be, x, y, c, r: (lambda d: d + d)(x * y), []),  # nor with what is no square
        (lambda be, x, y, c, r: be.maximum(x * y, 0) + 1, [("mul",), ("maximum", "add")]),  # or a NaN would be lost
        (lambda be, x, y, c, r: be.maximum(x * y, y), []),  # as it would here
        (lambda be, x, y, c, r: be.maximum(x, 0.1 * x) * 1.5 - 0.5, [("mul", "maximum", "mul", "sub")]),
        (lambda be, x, y, c, r: be.minimum(be.maximum(x, -1), 1), [("maximum",), ("minimum",)]),
        (lambda be, x, y, c, r: 1 - be.square(be.tanh(x)), [("tanh", "sqr", "sub")]),
        (lambda be, x, y, c, r: be.rint(abs(-x)), [("neg", "abs", "rint")]),
        (lambda be, x, y, c, r: 1 / (1 + be.exp(-x)), [("sig",)]),
        (lambda be, x, y, c, r: 1 / (be.exp(-1 * (x + c)) + 1), [("add", "sig")]),
        (lambda be, x, y, c, r: 1 / (1 + be.exp(-x)) + be.exp(-y), [("sig", "add")]),
        (lambda be, x, y, c, r: 1 / (2 + be.exp(-x)), [("add", "reciprocal")]),
        (lambda be, x, y, c, r: (lambda e: e / (1 + e))(be.exp(-x)), []),
        (lambda be, x, y, c, r: x * be.greater(y, 0), [("gt_zero", "mul")]),  # the backward pass of a rectifier
        (
            lambda be, x, y, c, r: x * (be.greater(y, 0) + 0.1 * be.less(y, 0)),
            [("lt_zero", "mul"), ("gt_zero", "add", "mul")],
        ),
        (lambda be, x, y, c, r: be.greater(x * y, 0) * c, [("mul", "gt_zero", "mul")]),
        (lambda be, x, y, c, r: be.greater(x, 1) * be.greater_equal(y, 0), []),
        (lambda be, x, y, c, r: be.greater(0, x), []),
        (lambda be, x, y, c, r: x + 1, [("add",)]),
        (lambda be, x, y, c, r: x.T + 1, []),
    ],
)
def test_which_steps_are_fused_into_a_chain(
    cpu: Backend, called: list[Any], formula: Callable[..., Any], ops: list[tuple[str, ...]]
) -> None:
    rng = np.random.default_rng(0)
    x, y, c, r = (cpu.array(normal(rng, shape)) for shape in ((40, 50), (40, 50), (1, 50), (40, 1)))
    got = formula(cpu, x, y, c, r).astensor().get()
    assert called == [op for op in ops if PRECISE or not {"exp", "sig"} & {*op}]
    strict = Backend("strict")
    wanted = formula(strict, *(strict.array(t.get()) for t in (x, y, c, r))).astensor().get()
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max())


@needs
@pytest.mark.parametrize(
    ("elements", "formula", "ops"),
    [
        (1999, lambda be, x: (x + 1) * 2, []),
        (2000, lambda be, x: (x + 1) * 2, [("add", "mul")]),
        (1999, lambda be, x: be.tanh(x + 1), [("add", "tanh")]),
        (1999, lambda be, x: be.sum((x + 1) * 2), [("add", "mul")]),
    ],
    ids=["small", "large", "not exact", "with a sum"],
)
def test_a_small_chain_with_the_results_of_numpy_is_left_to_numpy(
    cpu: Backend,
    called: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    elements: int,
    formula: Callable[..., Any],
    ops: list[tuple[str, ...]],
) -> None:
    monkeypatch.setattr(onednn, "MIN_EXACT_CHAIN_ELEMENTS", 2000)
    formula(cpu, cpu.array(normal(np.random.default_rng(0), (elements, 1)))).astensor()
    assert called == ops


@needs
@pytest.mark.parametrize("whole", [(2, 63, 1), (2, 40, 30), (16, 16, 16), (2, 3, 4, 5), (17, 33), (1, 5, 3)])
def test_operands_are_repeated_along_the_axes_that_they_lack(whole: tuple[int, ...]) -> None:
    rng, links = (
        np.random.default_rng(0),
        [post_ops.ChainOp("sub", 1), post_ops.ChainOp("mul", 2), post_ops.ChainOp("sub", 1, True)],
    )
    run, made = post_ops.get_chain(tuple(links), 3, frozenset()), 0
    shapes = list(itertools.product(*[{1, n} for n in whole]))
    for one, other in itertools.product(shapes, shapes):
        x, y, z = (normal(rng, shape) for shape in (whole, one, other))
        out = np.empty(whole, np.float32)
        run(x, y, z, out)
        same_bits(out, y - (x - y) * z, (one, other))
        made += run.get_primitive(run.cache_key(x, y, z, out)) is not None
    assert made >= len(shapes)


@needs
@pytest.mark.parametrize("factor", [0.1, -2, 0.0, -0.0, np.inf, 1e-40, 1e39, np.nan])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_minimum_and_maximum_propagate_nan_for_any_factor(
    cpu: Backend, called: list[Any], factor: float, in_place: bool
) -> None:
    a = normal(np.random.default_rng(0), (40, 50), special=True)
    x = cpu.array(a)
    out = x if in_place else cpu.empty((40, 50))
    out[:] = cpu.maximum(x, factor * x) + 1
    np.testing.assert_array_equal(out.get(), np.maximum(a, np.float32(factor) * a) + 1)
    assert called == ([("mul", "maximum", "add")] if abs(factor) in (0.1, 2) else [])


@needs
@pytest.mark.parametrize("bound", [0.0, 0.5, -1.5, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", BOUNDS)
def test_minimum_and_maximum_are_numpys(cpu: Backend, called: list[Any], name: str, bound: float) -> None:
    a = normal(np.random.default_rng(0), (41, 53), special=True)
    got = getattr(cpu, name)(cpu.array(a), bound).astensor().get()
    np.testing.assert_array_equal(got, BOUNDS[name](a, np.float32(bound)))
    assert called == ([(name,)] if np.isfinite(bound) else [])


FUNCTIONS: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
    (lambda be, x: 1 / (1 + be.exp(-x)), lambda x: 1 / (1 + np.exp(-x))),
    (lambda be, x: be.tanh(x), np.tanh),
    (lambda be, x: 1 - be.tanh(x) * be.tanh(x), lambda x: 1 - np.tanh(x) ** 2),
]


@needs
@pytest.mark.parametrize(("formula", "wanted"), FUNCTIONS)
def test_functions_in_chains_are_precise(
    cpu: Backend, called: list[Any], formula: Callable[..., Any], wanted: Callable[..., Any]
) -> None:
    a = normal(np.random.default_rng(0), (300, 701), special=True)
    a[np.isfinite(a)] = (8 * a[np.isfinite(a)].astype(float)).clip(-85, 1e38)
    got = formula(cpu, cpu.array(a)).astensor().get()
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(got, wanted(a.astype(float)), rtol=6e-7, atol=2e-7)
    assert len(called) == (PRECISE or formula is not FUNCTIONS[0][0])


@needs_avx2
def test_without_avx2_the_logistic_function_is_left_to_numpy(
    cpu: Backend, called: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bindings.Library, "has_precise_exp", False)
    post_ops.get_chain.cache_clear()
    a = normal(np.random.default_rng(0), (43, 61))
    got = (1 / (1 + cpu.exp(-cpu.array(a)))).astensor().get()
    post_ops.get_chain.cache_clear()
    np.testing.assert_array_equal(got, 1 / (1 + np.exp(-a)))
    assert called == []


@needs
def test_a_value_that_is_also_an_output_is_not_fused(cpu: Backend, called: list[Any]) -> None:
    rng = np.random.default_rng(0)
    x, y = cpu.array(normal(rng, (40, 50))), cpu.array(normal(rng, (40, 50)))
    product, outs = x * y, [cpu.empty((40, 50)) for _ in range(2)]
    cpu.assign(outs, [product, product + 1])
    assert called == [("mul",), ("add",)]
    np.testing.assert_array_equal(outs[0].get(), x.get() * y.get())
    np.testing.assert_array_equal(outs[1].get(), x.get() * y.get() + 1)


@needs
@pytest.mark.parametrize("dtype", ["float64", "float16", "int32"])
def test_chains_are_of_float32_alone(cpu: Backend, called: list[Any], dtype: str) -> None:
    x = cpu.array(np.arange(2000).reshape(40, 50) % 7, dtype=dtype)
    ((x + 1) * x - 2).astensor()
    assert called == []


@needs
def test_a_strided_operand_is_left_to_numpy(cpu: Backend, called: list[Any]) -> None:
    x = cpu.array(normal(np.random.default_rng(0), (40, 50)))
    got = ((x.T + 1) * 2).astensor().get()
    assert called == []
    np.testing.assert_array_equal(got, (x.get().T + 1) * np.float32(2))


@needs_avx2
@pytest.mark.parametrize(
    ("high", "low"), [(0.0, -np.inf), (0.0, -100.0), (0.0, -87.1), (np.nan, 0.0), (np.inf, 0.0), (3e38, -3e38)]
)
def test_an_exponential_that_onednn_would_lose_is_left_to_numpy(
    cpu: Backend, called: list[Any], high: float, low: float
) -> None:
    a = np.zeros((40, 50), np.float32)
    a[3, 4], a[7, 4] = high, low
    x = cpu.array(a)
    with np.errstate(all="ignore"):
        wanted = np.exp(a - a[:1])
    got = cpu.exp(x - x[:1]).astensor().get()
    np.testing.assert_allclose(got, wanted, rtol=1e-6)
    assert called == ([] if np.isnan(high) or low < -86.9 else [("sub", "exp")])


@needs_avx2
def test_softmax_is_one_chain_and_equals_numpys(cpu: Backend, called: list[Any]) -> None:
    x = normal(np.random.default_rng(0), (98, 500)) * 5
    e = np.exp(x.astype(float) - x.max(0))
    got = cpu.softmax(cpu.array(x)).astensor().get()
    assert called == [("sub", "exp"), ("div",)]
    np.testing.assert_allclose(got, e / e.sum(0), rtol=3e-6, atol=1e-12)


@needs
def test_chains_in_blocks_are_the_same_in_every_number_of_threads(
    cpu: Backend, called: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages_module, "MIN_THREADED_COST", 0)
    rng, before = np.random.default_rng(0), concurrency.get_num_threads()
    a, c = normal(rng, (700, 900)), normal(rng, (700, 1))
    x, r, seen = cpu.array(a), cpu.array(c), set()
    try:
        for n in (1, 2, 5):
            concurrency.set_threads(n)
            seen.add(((x - r) * 0.5 + x).astensor().get().tobytes())
    finally:
        concurrency.set_threads(before)
    assert seen == {((a - c) * np.float32(0.5) + a).tobytes()}
    assert called


SHARED: list[Callable[..., Any]] = [
    lambda be, x, y, r, c: 1 / (1 + be.exp(-x)),
    lambda be, x, y, r, c: 1 - be.square(be.tanh(x)),
    lambda be, x, y, r, c: be.maximum(x, 0.1 * x) * 1.5 - 0.5,
    lambda be, x, y, r, c: be.maximum(x + c, 0),  # two chains
    lambda be, x, y, r, c: (x - r) * y + c,
    lambda be, x, y, r, c: x * be.greater(y, 0),
]


@needs_avx2
@pytest.mark.parametrize("shape", [(7, 4211), (701, 907)])
@pytest.mark.parametrize("formula", SHARED)
def test_stages_of_chains_only_run_in_openmp_threads_with_the_same_bits(
    cpu: Backend, monkeypatch: pytest.MonkeyPatch, formula: Callable[..., Any], shape: tuple[int, int]
) -> None:
    monkeypatch.setattr(concurrency, "parallel_for", None)  # that of Python's threads
    rng, seen, used = np.random.default_rng(0), set(), set()
    before, run = concurrency.get_num_threads(), post_ops.FusedChain.run
    monkeypatch.setattr(post_ops.FusedChain, "run", lambda self, n, arrays: (used.add(n), run(self, n, arrays)))
    arrays = [normal(rng, s) for s in (shape, shape, (1, shape[1]), (shape[0], 1))]
    out = cpu.empty(shape)
    try:
        for n in (1, 2, 3):
            concurrency.set_threads(n)
            out[:] = formula(cpu, *map(cpu.array, arrays))
            seen.add(out.get().tobytes())
    finally:
        concurrency.set_threads(before)
    assert len(seen) == 1
    assert used == ({1, 2, 3} if math.prod(shape) > 10**5 else used)
    strict = Backend("strict")
    wanted = formula(strict, *map(strict.array, arrays)).astensor().get()
    np.testing.assert_allclose(out.get(), wanted, rtol=1e-6, atol=1e-6)


@needs
def test_a_chain_allocates_nothing_once_it_has_run(cpu: Backend, called: list[Any]) -> None:
    x, out = cpu.array(normal(np.random.default_rng(0), (400, 500))), cpu.empty((400, 500))
    run = cpu.compile([out], [(x - cpu.sum(x, axis=1)) * 0.5 + cpu.sum(x * out, axis=1)])
    run()
    assert buffers(run) == []
    assert called


@needs
@pytest.mark.parametrize("rows", [2, 3])
def test_a_chain_does_not_write_read_only_or_unaligned_arrays(rows: int) -> None:
    links = post_ops.ChainOp("sub", 1), post_ops.ChainOp("mul", 2, True)
    run = post_ops.get_chain(links, 3, frozenset({2}))
    x = normal(np.random.default_rng(0), (rows, 40))
    out = np.zeros((rows, 40), np.float32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        run(x, x[:1], 2.0, out)
    assert not out.any()
    askew = np.zeros(out.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(rows, 40)
    assert not run.is_supported(x, x[:1], 2.0, askew)
    run(x, x[:1], 2.0, askew)
    np.testing.assert_array_equal(askew, (x - x[:1]) * 2)


def test_without_onednn_there_are_no_chains(cpu: Backend, called: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bindings, "get_library", lambda: None)
    a = normal(np.random.default_rng(0), (41, 53))
    x = cpu.array(a)
    np.testing.assert_array_equal(((x - 0.25) * x + 1.5).astensor().get(), (a - np.float32(0.25)) * a + np.float32(1.5))
    assert called == []


@needs
def test_a_shape_that_onednn_has_no_code_for_is_left_to_numpy(
    cpu: Backend, called: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: Any) -> None:
        raise bindings.UnsupportedError("this")

    monkeypatch.setattr(bindings.Library, "primitive_desc", unsupported)
    a = normal(np.random.default_rng(0), (43, 59))
    x = cpu.array(a)
    np.testing.assert_array_equal(((x - 0.75) * x + 1.5).astensor().get(), (a - np.float32(0.75)) * a + np.float32(1.5))
    assert called == []


# --- sums ------------------------------------------------------------------------------------------------------------

ROWS = [(3, 5), (1, 8192), (9, 8191), (2, 8193), (3, 16384), (2, 20021), (4, 25088), (7, 3, 50176), (1, 1), (5, 0)]


@each("shape, dtype, factors", itertools.product(ROWS, ["float32", "float64"], [1, 2]))
def test_sums_of_rows_are_precise(shape: tuple[int, ...], dtype: str, factors: int) -> None:
    rng = np.random.default_rng(0)
    arrays = [(rng.standard_normal(shape) + 3).astype(dtype) for _ in range(factors)]
    out = np.full((*shape[:-1], 1), np.nan, dtype)
    templates.sum_rows(*arrays, out)
    wanted = math.prod(arrays[1:], start=arrays[0].astype(float)).sum(-1, keepdims=True)
    np.testing.assert_allclose(out, wanted, rtol=32 * np.finfo(dtype).eps)


def test_strided_rows_are_summed_in_uneven_parts() -> None:
    x = np.random.default_rng(0).standard_normal((4, 2 * 40000)).astype(np.float32)[:, ::2] + 3
    out = np.empty((4, 1), np.float32)
    templates.sum_rows(np.broadcast_to(x[:1], (4, 40000)), x, out)
    np.testing.assert_allclose(out, (x[:1].astype(float) * x).sum(1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_sum_propagates_nan(value: float) -> None:
    x = np.ones((3, 30000), np.float32)
    x[1, 20000] = value
    out = np.empty((3, 1), np.float32)
    templates.sum_rows(x, out)
    np.testing.assert_array_equal(out[:, 0], [30000, value, 30000])


@counts
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_of_trees_are_those_of_float64(
    cpu: Backend, monkeypatch: pytest.MonkeyPatch, dtype: str, count: int
) -> None:
    monkeypatch.setattr(templates, "MIN_ELEMENTS", 1)
    rng, added = np.random.default_rng(1), []
    for name in ("sum_rows", "sum_column_products", "reduce_columns"):
        add = getattr(templates, name)
        monkeypatch.setattr(templates, name, lambda *a, add=add, name=name: (added.append((name, len(a))), add(*a)))
    for k in range(count):
        shape = tuple(int(n) for n in rng.integers(1, 60, 2 + (k % 7 == 0)))
        a, b = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
        x, y = cpu.array(a, dtype=dtype), cpu.array(b, dtype=dtype)
        axis = int(rng.integers(len(shape)))
        formula = [lambda x, y: x, lambda x, y: x * y, lambda x, y: x * x, lambda x, y: x * y + x][k % 4]
        got = cpu.sum(formula(x, y), axis=axis).astensor().get()
        wanted = formula(a.astype(float), b.astype(float)).sum(axis, keepdims=True)
        near = 64 * np.finfo(dtype).eps * (1 + np.abs(wanted).max())
        np.testing.assert_allclose(got, wanted, rtol=0, atol=near, err_msg=repr((shape, axis, k % 4)))
    assert {("sum_rows", 2), ("sum_rows", 3), ("sum_column_products", 3), ("reduce_columns", 3)} <= set(added)


# --- steps that wait -------------------------------------------------------------------------------------------------


def stages(be: Backend, *trees: Any) -> list[str]:
    plan = be.plan(*trees)
    return [" ".join(step.op.name for v in stage.steps if (step := plan.find_step(v))) for stage in plan.stages]


def test_a_step_sinks_into_its_only_reader(cpu: Backend) -> None:
    x, r = cpu.ones((40, 50)), cpu.ones((40, 1))
    assert stages(cpu, (x - r) / cpu.sqrt(cpu.sum(x, axis=1))) == ["sum", "sqrt", "sub div"]


def test_a_sum_sinks_into_the_stage_that_reads_its_operand(cpu: Backend) -> None:
    x, y = cpu.ones((40, 50)), cpu.ones((40, 50))
    small = cpu.sum(y, axis=1)
    tree = (cpu.sum(x * small, axis=1) + cpu.sum(x, axis=1)) * x
    assert stages(cpu, tree) == ["sum", "mul sum sum", "add", "mul"]


def test_a_value_read_early_and_late_is_computed_early(cpu: Backend) -> None:
    x, y = cpu.ones((40, 50)), cpu.ones((40, 50))
    d = x - y
    assert stages(cpu, d / cpu.sum(d, axis=1)) == ["sub sum", "div"]


@needs
def test_infinity_minus_itself_is_nan(cpu: Backend) -> None:
    x, out = cpu.ones((512, 512)), cpu.zeros((512, 512))
    x[3, 3] = np.inf
    out[:] = cpu.exp(x - x)
    found = out.get()
    assert np.isnan(found[3, 3])
    assert (np.delete(found.ravel(), 3 * 512 + 3) == 1).all()


# --- transposes that are written to tensors --------------------------------------------------------------------------


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[Array]:
    """Return the arrays that oneDNN copies from now on."""
    found: list[Array] = []
    run = post_ops.TransposedCopy.__call__
    monkeypatch.setattr(post_ops.TransposedCopy, "__call__", lambda self, x, out: found.append(x) or run(self, x, out))
    return found


@needs
@each(
    "rows, features, dtype, count", [(70, 1024, "f4", 1), (70, 1024, "f8", 0), (70, 1000, "f4", 0), (7, 1024, "f4", 0)]
)
def test_a_large_transpose_of_aliased_rows_is_copied_by_onednn(
    cpu: Backend, copies: list[Array], rows: int, features: int, dtype: str, count: int
) -> None:
    x = np.random.default_rng(0).random((rows, features)).astype(dtype)
    copies.clear()  # of the other cases
    out = cpu.zeros((features, rows))
    out[:] = x.T
    np.testing.assert_array_equal(out.get(), x.T.astype(np.float32))
    assert len(copies) == count


@needs
def test_a_transpose_of_the_memory_that_is_written_is_copied_first(cpu: Backend, copies: list[Array]) -> None:
    out = cpu.array(np.random.default_rng(0).random((1024, 1024), dtype=np.float32))
    memory = np.from_dlpack(out)
    expected = memory.T.copy()
    out[:] = memory.T
    np.testing.assert_array_equal(out.get(), expected)
    assert not copies
