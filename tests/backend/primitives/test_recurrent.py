"""Recurrent ops in plans: their primitives compute what the forward functions do, and the forward pass only once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.runtimes import RUNTIMES, new_backend

import neonlite as nl
from neonlite import Autodiff, Backend
from neonlite.backend.primitives import recurrent
from neonlite.backend.runtimes.onednn.bindings import get_library
from neonlite.ops import OPS
from neonlite.ops.functions import build_variadic
from neonlite.ops.recurrent import take_columns

USES_PRIMITIVES = [name for name in RUNTIMES if name in ("cpu", "mkl", "gpu", "simulated")]
GATES = {"rnn": 1, "lstm": 4, "gru": 3}
SIZES = 3, 4, 6, 2  # F, H, T, N
every_cell = pytest.mark.parametrize("cell", GATES)


@pytest.fixture(params=USES_PRIMITIVES)
def runtime(request: pytest.FixtureRequest) -> Backend:
    """A backend of a runtime that uses primitives in plans."""
    return new_backend(request.param)


@pytest.fixture
def forward_passes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the classes whose forward pass has run."""
    passes: list[str] = []
    for cls in (recurrent.FusedRecurrence, recurrent.StepRecurrence):

        def forward(self: Any, *args: Any, original: Any = cls.forward) -> Any:
            passes.append(type(self).__name__)
            return original(self, *args)

        monkeypatch.setattr(cls, "forward", forward)
    return passes


def operands(cell: str, F: int, H: int, T: int, N: int, seed: int = 0) -> list[Any]:
    """Return x, W_input, W_recur, b and the initial states as arrays of NumPy."""
    rows, states = GATES[cell] * H, 1 + (cell == "lstm")
    shapes = [(F, T * N), (rows, F), (rows, H), (rows, 1), *[(H, N)] * states]
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) / 2 for shape in shapes]


def attributes(cell: str, T: int, reverse: bool = False) -> dict[str, Any]:
    """Return the attributes of an op."""
    functions = {"activation": "tanh"} | ({} if cell == "rnn" else {"gate_activation": "sig"})
    return {"steps": T, "reverse": reverse, **functions}


def by_forward_functions(cell: str, xs: list[Any], e: Any, attrs: dict[str, Any]) -> tuple[Any, Any]:
    """Return the result of an op, and that of its backward op."""
    y = OPS[cell].run(np, *xs, **attrs)
    of_last_c = [np.zeros_like(c) for c in xs[5:]]
    return y, OPS[f"{cell}_backward"].run(np, e, *of_last_c, y, *xs, **attrs)


def last_cells(xs: list[Any], attrs: dict[str, Any]) -> Any:
    """Return c after the last step of an LSTM, by its forward function on each step."""
    x, *weights, h, c = xs
    N = h.shape[1]
    for t in range(attrs["steps"])[:: -1 if attrs["reverse"] else 1]:
        z = weights[0] @ x[:, t * N : (t + 1) * N] + weights[1] @ h + weights[2]
        i, f, o, g = np.split(z, 4)
        c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        h = np.tanh(c) / (1 + np.exp(-o))
    return c


def as_row(gradients: list[Any]) -> Any:
    return np.concatenate([x.get().ravel() for x in gradients])[None]


@every_cell
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 2e-5)])
@pytest.mark.parametrize("T", [1, 2, 6])
def test_a_plan_of_both_passes_computes_what_the_forward_functions_do(
    runtime: Backend, forward_passes: list[str], cell: str, reverse: bool, dtype: str, tolerance: float, T: int
) -> None:
    F, H, _, N = SIZES
    xs, attrs = operands(cell, F, H, T, N), attributes(cell, T, reverse)
    e = np.random.default_rng(1).normal(size=(H, T * N))
    tensors = [runtime.array(x, dtype) for x in xs]
    tree = getattr(runtime, cell)(*tensors, **attrs)
    gradients = Autodiff(tree, runtime, runtime.array(e, dtype)).get_grad_op_tree(tensors)
    y, *found = runtime.evaluate([tree, *gradients])
    expected, row = by_forward_functions(cell, xs, e, attrs)
    np.testing.assert_allclose(y.get(), expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(as_row(found), row, rtol=tolerance, atol=tolerance)
    has_onednn = runtime.name in ("cpu", "mkl") and get_library() is not None
    is_fused = has_onednn and cell != "rnn" and dtype == "float32" and T == 6
    assert forward_passes == ["FusedRecurrence" if is_fused else "StepRecurrence"]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 2e-5), ("float16", 1e-2)])
@pytest.mark.parametrize("T", [1, 2, 6])
@pytest.mark.parametrize("others", ["forward", "both", "backward", "none"])
def test_the_last_cell_state_is_that_of_the_forward_pass_of_the_plan(
    runtime: Backend, forward_passes: list[str], reverse: bool, dtype: str, tolerance: float, T: int, others: str
) -> None:
    F, H, _, N = SIZES
    xs, attrs = operands("lstm", F, H, T, N), attributes("lstm", T, reverse)
    tensors = [runtime.array(x, dtype) for x in xs]
    y = runtime.lstm(*tensors, **attrs)
    state = build_variadic(runtime, "lstm_state", y, *tensors, **attrs)
    trees = [y] if others in ("forward", "both") else []
    if others in ("both", "backward"):
        trees += Autodiff(runtime.sum(y * y), runtime).get_grad_op_tree(tensors)
    for _ in range(2):
        *_, found = runtime.evaluate([*trees, state])
        np.testing.assert_allclose(found.get(), last_cells(xs, attrs), rtol=tolerance, atol=tolerance)
    assert len(forward_passes) == 2


def test_the_last_cell_state_of_a_known_result_is_computed_again(runtime: Backend, forward_passes: list[str]) -> None:
    F, H, T, N = SIZES
    for dtype in ("float32", "float64"):
        xs, attrs = operands("lstm", F, H, T, N), attributes("lstm", T)
        tensors = [runtime.array(x, dtype) for x in xs]
        y = runtime.lstm(*tensors, **attrs).astensor()
        del forward_passes[:]
        state = build_variadic(runtime, "lstm_state", y, *tensors, **attrs)
        np.testing.assert_allclose(state.get(), last_cells(xs, attrs), rtol=1e-5, atol=1e-5)
        assert len(forward_passes) == 1


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 2e-5)])
@pytest.mark.parametrize("T", [1, 2, 6])
def test_the_errors_of_the_result_and_of_the_last_cell_state_need_one_forward_pass(
    runtime: Backend, forward_passes: list[str], reverse: bool, dtype: str, tolerance: float, T: int
) -> None:
    F, H, _, N = SIZES
    xs, attrs = operands("lstm", F, H, T, N), attributes("lstm", T, reverse)
    e, of_c = (np.random.default_rng(1).normal(size=(H, columns)) for columns in (T * N, N))
    tensors, (te, tc) = [runtime.array(x, dtype) for x in xs], (runtime.array(x, dtype) for x in (e, of_c))
    y = runtime.lstm(*tensors, **attrs)
    c = build_variadic(runtime, "lstm_state", y, *tensors, **attrs)
    gradients = Autodiff(runtime.sum(y * te) + runtime.sum(c * tc), runtime).get_grad_op_tree(tensors)
    for _ in range(2):
        *_, found = runtime.evaluate([y, c]), runtime.evaluate(gradients)
    row = OPS["lstm_backward"].run(np, e, of_c, OPS["lstm"].run(np, *xs, **attrs), *xs, **attrs)
    np.testing.assert_allclose(as_row(found), row, rtol=tolerance, atol=tolerance)
    assert len(forward_passes) == 4  # of both, twice


@every_cell
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_a_backward_op_of_a_known_result_computes_the_forward_pass_again(
    runtime: Backend, forward_passes: list[str], cell: str, dtype: str
) -> None:
    F, H, T, N = SIZES
    xs, attrs = operands(cell, F, H, T, N), attributes(cell, T)
    e = np.random.default_rng(1).normal(size=(H, T * N))
    y, row = by_forward_functions(cell, xs, e, attrs)
    tensors = [runtime.array(x, dtype) for x in xs]
    tree = getattr(runtime, cell)(*tensors, **attrs)
    known = Autodiff(tree, runtime, runtime.array(e, dtype), values={tree: runtime.array(y, dtype)})
    found = known.get_grad_tensor(tensors)
    tolerance = {"float64": 1e-12, "float32": 2e-5, "float16": 2e-2}[dtype]
    np.testing.assert_allclose(as_row(found), row, rtol=tolerance, atol=tolerance)
    assert len(forward_passes) == 1


@every_cell
def test_operands_may_be_views_and_temporaries(runtime: Backend, cell: str) -> None:
    F, H, T, N = SIZES
    xs, attrs = operands(cell, F, H, T, N), attributes(cell, T)
    e = np.random.default_rng(1).normal(size=(H, T * N))
    expected, row = by_forward_functions(cell, xs, e, attrs)
    for layout in ("transposed", "strided", "temporary", "slice of a temporary"):
        tensors = []
        for x in xs:
            m, n = x.shape
            t = runtime.zeros((n, m) if layout == "transposed" else (2 * m, n + 3), "float64")
            view = t.T if layout == "transposed" else t[::2, 1 : n + 1]
            view[:] = x
            tensors.append(view)
        leaves: list[Any] = tensors
        if layout == "temporary":
            leaves = [t * 2 / 2 for t in tensors]
        elif layout == "slice of a temporary":
            both = [runtime.concat([t, t], axis=1) * 1.0 for t in tensors]
            leaves = [
                runtime.build("slice", t, index=((0, x.shape[0], 1), (x.shape[1], x.shape[1], 1)))
                for t, x in zip(both, xs, strict=True)
            ]
        tree = getattr(runtime, cell)(*leaves, **attrs)
        gradients = Autodiff(2 * tree, runtime, runtime.array(e / 2, "float64")).get_grad_op_tree(tensors)
        y, *found = runtime.evaluate([2 * tree, *gradients])
        np.testing.assert_allclose(y.get(), 2 * expected, rtol=1e-12, err_msg=layout)
        np.testing.assert_allclose(as_row(found), row, rtol=1e-12, atol=1e-13, err_msg=layout)


@pytest.mark.skipif(get_library() is None, reason="no oneDNN")
@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (lambda be, y, W: be.dot(W, y), ["dot", "{cell}"]),
        (lambda be, y, W: be.dot(W, y) + take_columns(be, y, 2, 1), ["{cell}"]),
        (lambda be, y, W: be.dot(W, y * y), []),
        (lambda be, y, W: be.dot(W, be.reshape(be.reshape(y, (2, -1)), (4, -1))), []),
        (lambda be, y, W: be.dot(W, y) + take_columns(be, y, 0, 12), []),
    ],
)
def test_sequences_that_products_and_fused_primitives_alone_access_are_stored_by_time(
    cell: str, read: Any, expected: list[str]
) -> None:
    be = nl.gen_backend("cpu")
    xs, attrs = operands(cell, *SIZES), attributes(cell, SIZES[2])
    weights = np.random.default_rng(2).normal(size=(4, 4))
    found = {}
    for dtype in ("float32", "float64"):  # fused, and by steps
        x, *others = (be.array(a, dtype) for a in xs)
        W = be.array(weights, dtype)
        tree = read(be, getattr(be, cell)(x, *others, **attrs), W)
        trees = [tree, *Autodiff(be.sum(tree * tree), be).get_grad_op_tree([*others, W])]
        plan = be.plan(*trees)
        stored = sorted(plan.step_of(v).op.name for v in plan.strides if plan.step_of(v).kind != "view")
        assert stored == ([name.format(cell=cell) for name in expected] if dtype == "float32" else [])
        found[dtype] = [t.get() for t in be.evaluate(trees)]
    for one, other in zip(*found.values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@every_cell
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_several_recurrent_ops_in_a_plan_do_not_share_what_they_save(runtime: Backend, cell: str, dtype: str) -> None:
    F, H, T, N = SIZES
    attrs = attributes(cell, T)
    layers = [operands(cell, n, H, T, N, seed) for seed, n in enumerate([F, H, H])]
    tensors = [[runtime.array(x, dtype) for x in xs] for xs in layers]
    y = tensors[0][0]
    values, expected = layers[0][0], layers[0][0]
    trees = []
    for xs, ts in zip(layers, tensors, strict=True):
        expected = OPS[cell].run(np, expected, *xs[1:], **attrs)
        y = getattr(runtime, cell)(y, *ts[1:], **attrs)
        trees.append(y)
    e = np.ones(expected.shape)
    rows = []
    for xs, below in zip(reversed(layers), [1, 0, -1], strict=True):
        x = values if below < 0 else run_below(cell, layers[: below + 1], attrs)
        row = by_forward_functions(cell, [x, *xs[1:]], e, attrs)[1]
        rows.append(row[0, x.size :])
        e = row[0, : x.size].reshape(x.shape)
    asked = [t for ts in reversed(tensors) for t in ts[1:]]
    found = Autodiff(trees[-1], runtime).get_grad_tensor(asked)
    tolerance = 1e-11 if dtype == "float64" else 2e-4
    np.testing.assert_allclose(as_row(found)[0], np.concatenate(rows), rtol=tolerance, atol=tolerance)


def run_below(cell: str, layers: list[Any], attrs: dict[str, Any]) -> Any:
    """Return the outputs of the last of some layers."""
    x = layers[0][0]
    for xs in layers:
        x = OPS[cell].run(np, x, *xs[1:], **attrs)
    return x


@every_cell
def test_the_gradient_of_x_is_computed_only_if_it_is_read(
    runtime: Backend, monkeypatch: pytest.MonkeyPatch, cell: str
) -> None:
    computed: list[bool] = []
    for cls in (recurrent.FusedRecurrence, recurrent.StepRecurrence):

        def backward(self: Any, *args: Any, original: Any = cls.backward) -> None:
            computed.append(args[-1][0] is not None)
            original(self, *args)

        monkeypatch.setattr(cls, "backward", backward)
    tensors = [runtime.array(x) for x in operands(cell, *SIZES)]
    tree = getattr(runtime, cell)(*tensors, **attributes(cell, SIZES[2]))
    for asked in (tensors, tensors[:1], tensors[1:], tensors[-1:]):
        Autodiff(tree, runtime).get_grad_tensor(asked)
    assert computed == [True, True, False, False]


@every_cell
def test_the_number_of_steps_of_a_plan_does_not_depend_on_that_of_time_steps(runtime: Backend, cell: str) -> None:
    counts = []
    for T in (2, 40):
        tensors = [runtime.array(x) for x in operands(cell, 3, 4, T, 2)]
        tree = getattr(runtime, cell)(*tensors, **attributes(cell, T))
        counts.append(len(runtime.plan(tree, *Autodiff(tree, runtime).get_grad_op_tree(tensors)).steps))
    assert counts[0] == counts[1] < 40


@every_cell
def test_a_dry_run_counts_the_operations_of_both_passes(cell: str) -> None:
    F, H, T, N = SIZES
    be = nl.gen_backend("cpu").dry_run()
    for dtype in ("float32", "float64"):
        tensors = [be.array(x, dtype) for x in operands(cell, *SIZES)]
        before = be.flops
        tree = getattr(be, cell)(*tensors, **attributes(cell, T))
        be.evaluate([tree])
        forward = 2 * T * N * GATES[cell] * H * (F + H)
        assert be.flops - before == forward
        Autodiff(tree, be).get_grad_tensor(tensors)
        assert forward * 4 <= be.flops - before < forward * 4 + 1000  # and the sums of slices of gradients


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_compiled_training_step_computes_what_its_statements_do(runtime: Backend, dtype: str) -> None:
    def trees(x: Any, weights: list[Any]) -> tuple[Any, list[Any]]:
        """Return the cost, and the new values of the weights."""
        cost = runtime.sum(runtime.square(runtime.lstm(x, *weights, steps=SIZES[2])))
        grads = Autodiff(cost, runtime).get_grad_op_tree(weights[:3])
        return cost, [w - 0.1 * dw for w, dw in zip(weights, grads, strict=False)]

    x, *weights = (runtime.array(x, dtype) for x in operands("lstm", *SIZES))
    start, expected = [w.get() for w in weights], []
    for _ in range(4):
        cost, values = trees(x, weights)
        value, *values = runtime.evaluate([cost, *values])
        expected.append(float(value))
        for w, new in zip(weights, values, strict=False):
            w[:] = new

    @nl.jit
    def step(x: Any) -> Any:
        cost, values = trees(x, weights)
        runtime.assign(weights[:3], values)
        return cost

    for w, array in zip(weights, start, strict=True):
        w[:] = array
    np.testing.assert_allclose([float(step(x)) for _ in range(4)], expected, rtol=1e-12 if dtype == "float64" else 1e-5)
    assert expected[3] < expected[0]


@pytest.mark.parametrize("cell", ["lstm", "gru"])  # a step of the other has no temporaries
def test_the_arena_has_space_for_the_plans_of_steps_behind_the_temporaries(runtime: Backend, cell: str) -> None:
    tensors = [runtime.array(x, "float64") for x in operands(cell, *SIZES)]
    tree = getattr(runtime, cell)(tensors[0] * 2, *tensors[1:], **attributes(cell, SIZES[2]))
    plan = runtime.plan(tree * tree)
    (call,) = plan.primitives.values()
    assert plan.arena_bytes > 0
    (inner,) = call.plans
    assert plan.required_arena_bytes() >= inner.required_arena_bytes() > plan.arena_bytes
    assert plan.nbytes > inner.nbytes  # in the cache of plans
    tree.get()
