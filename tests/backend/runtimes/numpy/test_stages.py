"""Large arrays, which are computed block by block on threads, give the same values as small ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.op_cases import ATTRS, INTEGER_OPS, ROW, Case, allocate, call, drawn, fill
from helpers.op_checks import OWN
from helpers.parametrize import part
from helpers.runtimes import RUNTIMES, lacks

from neonlite import Backend
from neonlite.backend.runtimes.numpy import stages
from neonlite.backend.runtimes.numpy.stages import MAX_UNTILED_ELEMENTS, MIN_THREADED_ELEMENTS
from neonlite.ops import OP_TABLE

# --- large arrays: block by block, on threads -----------------------------------------------------------------------

LARGE, LARGER, DEEP = (547, 529), (727, 731), (47, 67, 89)


def test_the_large_arrays_are_large() -> None:
    assert MAX_UNTILED_ELEMENTS < math.prod(LARGE) < MIN_THREADED_ELEMENTS < math.prod(LARGER)
    assert math.prod(DEEP) > MAX_UNTILED_ELEMENTS
    assert MAX_UNTILED_ELEMENTS < 8 * math.prod(LARGE_EIGHTH) < MIN_THREADED_ELEMENTS < 8 * math.prod(LARGER_EIGHTH)


@pytest.fixture(autouse=True)
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads share all that is large, cheap as it may be."""
    monkeypatch.setattr(stages, "MIN_THREADED_COST", 0)


@pytest.fixture
def runtimes() -> Iterator[list[Backend]]:
    """A backend of every runtime, the one that works op by op in NumPy's arithmetic last."""
    names = sorted(RUNTIMES, key=lambda name: name == "strict")
    made = [Backend.allocate_backend(name, rng_seed=1, default_dtype="float64") for name in names]
    yield made
    for be in made:
        be.cleanup_backend()


def laid_out(be: Backend, x: Any, layout: str) -> Any:
    if isinstance(x, int | float):
        return x
    if layout == "transposed":
        return be.array(np.swapaxes(x, -1, -2), dtype=x.dtype).T
    view = allocate(be, x.shape, x.dtype.name, "view") if layout == "strided" else be.zeros(x.shape, x.dtype.name)
    view[:] = x
    return view


def agree(
    runtimes: Sequence[Backend], make: Any, arrays: Sequence[Any], layouts: Sequence[str], rtol: float = 1e-12
) -> None:
    """Assert that all backends compute the same values of the trees ``make(be, *operands)`` as the last."""
    *made, plain = (
        [t.get() for t in be.evaluate(make(be, *map(partial(laid_out, be), arrays, layouts)))] for be in runtimes
    )
    for be, values in zip(runtimes, made, strict=False):
        for a, b in zip(values, plain, strict=True):
            np.testing.assert_allclose(a, b, rtol, rtol * max(1.0, np.abs(b).max()), err_msg=be.name)


@pytest.fixture
def eighths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide the limits by 8, so that arrays of an eighth of the elements are large."""
    limits = ("MAX_UNTILED_ELEMENTS", "BLOCK_ELEMENTS", "MAX_BLOCK_ELEMENTS", "MIN_THREADED_ELEMENTS")
    for name in limits:
        monkeypatch.setattr(stages, name, getattr(stages, name) // 8)


LARGE_EIGHTH, LARGER_EIGHTH = (193, 187), (257, 259)


@pytest.mark.parametrize("shape", [LARGE_EIGHTH, LARGER_EIGHTH], ids=str)
@pytest.mark.parametrize("name", [op.name for op in OP_TABLE if op.kind == "elementwise"])
def test_large_arrays_give_the_same_values_as_small_ones(
    runtimes: list[Backend], eighths: None, name: str, shape: tuple[int, int]
) -> None:
    op, (m, n), floats = ROW[name], shape, name not in INTEGER_OPS
    ways: list[tuple[Any, ...]] = {
        1: [(shape,)],
        2: [
            (shape, shape),
            (shape, (m, 1)),
            ((1, n), shape),
            ((m, 1), (1, n)),
            (shape, (1, 1)),
            (shape, 2),
            (shape, 0.7 if floats else 3),
        ],
        3: [(shape, shape, shape), ((m, 1), (1, n), shape), (shape, 1, (m, 1))],
    }[op.arity]
    layouts = [("", "transposed", ""), ("transposed", "strided", "strided")]
    trials = itertools.product(ways[: None if shape == LARGE_EIGHTH else 2], layouts)
    for operands, layout in part(list(trials), f"{name} {shape}", 0):
        xs = fill(Case(name, operands, {}))
        if not floats:
            xs = [x if isinstance(x, int) else np.rint(9 * x).astype("int64") for x in xs]
        agree(runtimes, lambda be, *xs: [call(be, name, xs, ATTRS.get(name, {}))], xs, layout)


@pytest.mark.parametrize(
    "shape", [LARGE, DEEP, (1, 300007), (300007, 1), (3, 100003), (100003, 3), (2, 3, 5, 10007)], ids=str
)
def test_large_reductions_over_any_axes_run_beside_each_other(runtimes: list[Backend], shape: tuple[int, ...]) -> None:
    x, y = (drawn(f"large {i}", s, -2, 2, False) for i, s in enumerate([shape, (*shape[:-2], shape[-2], 1)]))
    several = [c for k in range(1, len(shape) + 1) for c in itertools.combinations(range(len(shape)), k)]
    for layouts in [("", ""), ("transposed", "")]:
        agree(
            runtimes,
            lambda be, x, y: [
                *(be.sum(x * y, axis=axes, keepdims=keep) for axes in several for keep in (True, False)),
                *(be.max(x * y, axis=axes) for axes in several),
                *(be.min(x - y, axis=axes) for axes in several),
                x * y,
                x - be.sum(x, axis=several[-2]),
            ],
            [x, y],
            layouts,
        )


SHARED = [(1024, 1024), (1000, 1048), (1 << 20,), (37, 160, 184), (7, 150_001), (160_000, 7)]


@pytest.mark.parametrize("shape", SHARED, ids=str)
@pytest.mark.parametrize("where", ["cpu", "mkl"])
def test_the_bits_of_a_sum_do_not_depend_on_how_many_threads_share_it(
    where: str, shape: tuple[int, ...], threads: Callable[[int], None]
) -> None:
    if where not in RUNTIMES:
        pytest.skip(f"{where} is not installed")
    xs = [drawn(f"shared {i}", shape, -2, 2, False).astype("float32") for i in range(3)]
    xs[2].flat[5] = -90  # a block with this element is computed by another exponential function
    found = []
    for count in (1, 2, 3):
        threads(count)
        be = Backend.allocate_backend(where)
        x, y, z = map(be.array, xs)
        masked, curved = (x > 0) * (x + y), be.tanh(x) * y + be.exp(z - x)
        trees = [tree for axis in range(len(shape)) for tree in (be.sum(masked, axis), be.sum(masked * y, axis))]
        trees += [tree for axis in range(len(shape)) for tree in (be.sum(curved, axis), be.max(masked * y, axis))]
        trees += [be.sum((x + y) * y), x - be.mean(masked, axis=0) * y, be.sum(masked) * (x > y)]
        found.append([tree.asnumpyarray() for tree in trees])
        be.cleanup_backend()
    for values in found[1:]:
        for value, alone in zip(values, found[0], strict=True):
            np.testing.assert_array_equal(value, alone)


def test_cheap_ops_run_on_several_threads_only_in_blocks_that_these_share(
    cpu: Backend, threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[stages.FusedStage] = []
    init = stages.FusedStage.__init__
    monkeypatch.setattr(stages.FusedStage, "__init__", lambda self, *args: made.append(self) or init(self, *args))
    threads(2)

    def workers(*trees: Any) -> int:
        made.clear()
        cpu.plan(*trees)
        return max(stage.num_workers for stage in made)

    x = cpu.zeros((1024, 1024))
    masked, wide = (x > 0) * (x + 1), cpu.zeros((1024, 1024), dtype="float64")
    assert workers(cpu.sum(masked, axis=0)) == workers(cpu.sum(masked, axis=1)) == 2
    assert workers(cpu.sum(masked, axis=0), cpu.sum(masked, axis=1)) == 1  # their blocks cannot be joined
    for costly in (cpu.tanh(x) * (x > 0), (wide > 0) * (wide + 1)):
        assert workers(cpu.sum(costly, axis=0), cpu.sum(costly, axis=1)) == 2


def test_large_arrays_of_users_ops_views_and_mixed_dtypes(runtimes: list[Backend], own: Any) -> None:
    own("third_power", OWN["third_power"].run, OWN["third_power"].grad)
    x, y = (drawn(f"mixed {i}", LARGE, -2, 2, False) for i in range(2))

    def trees(be: Backend, x: Any, y: Any) -> list[Any]:
        narrow, whole = be.array(x, dtype="float32"), be.array(x * 50, dtype="int16")
        view = y[::-2, 1::3]
        return [
            be.third_power(x) + be.third_power(y.T).T,
            narrow * y,
            whole * 3,
            whole / 7 + x,
            be.sum(whole, axis=0),
            be.sum(narrow * narrow, axis=1),
            be.reshape(x * y, -1, 23) * 2,
            x[1:] - x[:-1],
            view * be.max(view, axis=1),
            be.where(whole > 3, x, be.rint(y)),
            be.maximum(whole, 5),
        ]

    agree([be for be in runtimes if be.runtime.supports_negative_strides], trees, [x, y], ["", ""], rtol=1e-5)


@pytest.mark.parametrize("layout", ["strided", "transposed", "backwards"])
def test_large_results_are_written_into_views(cpu: Backend, layout: str) -> None:
    (m, n), dtype = LARGE, "float64"
    x, y = (drawn(f"views {i}", LARGE, -2, 2, False) for i in range(2))
    for place in range(2):
        outs = [cpu.zeros(LARGE, dtype) for _ in range(2)]
        outs[place] = {
            "strided": lambda: allocate(cpu, LARGE, dtype, "view"),
            "transposed": lambda: cpu.zeros((n, m), dtype).T,
            "backwards": lambda: cpu.zeros(LARGE, dtype)[::-1, ::-1],
        }[layout]()
        rows = cpu.zeros((2 * m, 3), dtype)[::2, 1:2]
        a, b = cpu.array(x, dtype), cpu.array(y, dtype)
        wanted = [x * y, np.exp(x) - y, (x * y).sum(1, keepdims=True)]
        for targets in (outs, [*outs, rows]):
            cpu.assign(targets, [a * b, cpu.exp(a) - b, cpu.sum(a * b, axis=1)][: len(targets)])
            for made, expected in zip(targets, wanted, strict=False):
                np.testing.assert_allclose(made.get(), expected, 1e-12, 1e-12)
                made[:] = 0


def test_large_sums_are_added_up_in_a_wider_dtype(be: Backend) -> None:
    n = 3 * MIN_THREADED_ELEMENTS + 1
    assert be.sum(be.array(np.ones((n, 1)), dtype="int8")).asnumpyarray() == n
    if not lacks(be, "float16"):
        assert be.sum(be.array(np.full((n, 1), 2**-5), dtype="float16")).asnumpyarray() == np.float16(n / 2**5)
    thirds = np.full((7, n // 7), 1 / 3, np.float32)
    total = be.sum(be.array(thirds)).asnumpyarray().item()
    assert abs(total / thirds.sum(dtype=np.float64) - 1) < 1e-5
