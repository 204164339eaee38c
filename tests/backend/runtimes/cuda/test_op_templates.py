"""Each op, in each dtype and memory layout, computes on the simulated GPU what NumPy does op by op.

The reference is op-by-op execution on NumPy arrays, which shares no code with the kernels. Memory between the elements
of a result is compared, too, so that nothing is written there.

Tests ``neonlite/backend/runtimes/cuda/op_templates.py`` and ``neonlite/backend/runtimes/cuda/simulator.py``.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from helpers.parametrize import part
from helpers.simulated_gpu import CLOSE, LAYOUTS, OpByOp, elementwise, numbers

from neonlite import Backend
from neonlite.backend.runtimes.cuda.simulator import SimulatedGPU
from neonlite.ops import OP_TABLE
from neonlite.ops.functions import build_variadic
from neonlite.tree_structure import RandomSource
from neonlite.typing import FLOAT_DTYPES, INT_DTYPES

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are simulated with g++, which is not here")

SHAPE = (16, 16)  # of operands: rows are multiples of 16 bytes in any dtype
DTYPES = [*FLOAT_DTYPES, *INT_DTYPES]


def reductions(be: Backend, x: Any, y: Any, p: Any) -> list[Any]:
    """Return reductions over rows, columns and both, of operands and of elementwise results."""
    names = [op.name for op in OP_TABLE if op.has_axis]
    operands = ((name, be.minimum(x, 1) if name == "prod" else z) for name, z in zip(names, itertools.cycle((x, y))))
    return [getattr(be, name)(of, axis=axis) for name, of in [*operands, ("sum", x * 2)] for axis in (0, 1, (0, 1))]


def movements(be: Backend, x: Any, y: Any, p: Any) -> list[Any]:
    """Return views, copies, gathers, scatter-adds and matrix products."""
    rows = be.array([[3, 0, 3, -1, 9]], dtype="int32")
    places = be.array([np.arange(16) % 5], dtype="int32")
    return [
        x.T + (y * 2).T,
        be.reshape(x * 2, (8, 32)),
        be.broadcast_to(x[:1], SHAPE) + y,
        be.build("after", x, y * 3) + 1,
        x[1:13:3, ::-2] * be.build("slice", y * 2, index=((1, 4, 3), (15, 8, -2))),
        be.take(x, rows, axis=0),
        be.take(x, rows, axis=1),
        be.onehot(places, axis=0, nclass=5),
        be.onehot(places, axis=1, nclass=6),
        be.concat([x, y], 0),
        be.dot(x, y.T),
        be.build("matmul", be.reshape(x, (2, 8, 16)), be.reshape(y, (2, 16, 8))),
        be.build("scatter_add", x, places, axis=0, size=5),
        be.build("scatter_add", y, places, axis=1, size=5),
        be.build("slice_backward", x, index=((2, 16, 1), (0, 16, 1)), to=(20, 17)),
    ]


def orders(be: Backend, x: Any, y: Any, p: Any) -> list[Any]:
    """Return cumulative ops, sorted operands and gathers along an axis."""
    order = be.argsort(x, axis=0)
    return [
        *(be.cumulative_sum(x, axis=axis, reverse=reverse) for axis, reverse in [(0, True), (1, False)]),
        be.cumulative_prod(be.minimum(x, 1), axis=0),
        *(be.sort(x * 2, axis=0, descending=descending) for descending in (False, True)),
        *(be.argsort(y, descending=descending) for descending in (False, True)),
        be.searchsorted(be.sort(x[:1]), y, side="right"),
        be.take_along_axis(x, order, axis=0),
        be.build("scatter_add_along_axis", x, order, axis=0, size=20),
        be.tril(x) + be.triu(y, k=2),
    ]


def matrices(be: Backend, x: Any, y: Any, p: Any) -> list[Any]:
    """Return the ops of linear algebra, in float64 for operands of another dtype than float32 or float64."""
    x, y = (a if a.info.dtype in ("float32", "float64") else be.astype(a, "float64") for a in (x, y))
    a = be.dot(x, x.T) + 16 * be.tril(be.triu(be.ones(SHAPE, dtype=x.info.dtype)))
    names = [op.name for op in OP_TABLE if op.compute_dtypes and op.arity == 1 and op.name not in ("cholesky", "det")]
    small = be.build("slice", a, index=((0, 4, 1), (0, 4, 1)))
    names.remove("cofactors")  # of a small matrix, as they are products of singular values
    return [
        *(be.solve(a, y), be.cholesky(a, upper=True), be.det(a * 0.01), be.pinv(a, 0.0), be.cofactors(small)),
        *(be.build("cofactors_backward", small, small), *(getattr(be, name)(a) for name in names)),
    ]


def images(be: Backend, x: Any, y: Any, p: Any) -> list[Any]:
    """Return convolutions and poolings, and their gradients; in groups, a function of CuPy computes them."""
    i, e = (be.reshape(a * 1, (2, 4, 4, 8)) for a in (x, y))
    f = be.build("slice", e, index=((0, 2, 1), (0, 3, 1), (1, 3, 1), (4, 2, 1)))
    attrs: dict[str, Any] = {"strides": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 2), "groups": 1}
    pool: dict[str, Any] = {
        "window": (1, 3, 2),
        "strides": (1, 1, 1),
        "padding": ((0, 0), (1, 1), (1, 0)),
        "ceil": False,
    }
    indices = be.build("max_pool_indices", i, to="uint8", **pool)
    return [
        be.build("conv", i, f, **attrs),
        be.build("conv_backward", e, f, to=i.shape, **attrs),
        be.build("conv_update", i, e, to=f.shape, **attrs),
        be.conv(i, be.build("slice", f, index=((0, 1, 1), (0, 3, 1), (0, 2, 1), (0, 2, 1))), groups=2),
        be.build("max_pool", i, **pool),
        indices,
        be.build("max_pool_take", e, indices, **pool),
        be.build("max_unpool", e, indices, to=i.shape, **pool),
        be.build("sum_pool", i, mean=False, **pool),
        be.build("sum_unpool", e, to=i.shape, mean=False, **pool),
        be.build("roi_pool_indices", i, be.build("slice", p * 0, index=((0, 5, 1), (0, 3, 1))), bins=(2, 2), scale=1.0),
    ]


def sequences(be: Backend, x: Any, y: Any, p: Any) -> list[Any]:
    """Return recurrent ops and their backward ops, of two steps of three sequences."""

    def take(z: Any, rows: int, columns: int) -> Any:
        return be.build("slice", z / 16, index=((0, rows, 1), (0, columns, 1)))

    trees = []
    for name, gates, states in (("rnn", 1, 1), ("lstm", 4, 2), ("gru", 3, 1)):
        h, weights = take(x, 4, 3), [take(y, 4 * gates, n) for n in (5, 4, 1)]
        z = getattr(be, name)(take(p, 5, 6), *weights, *[h] * states, steps=2, reverse=name == "gru")
        rest = [z, take(p, 5, 6), *weights, *[h] * states]
        errors = [take(y, 4, 6), take(x, 4, 3)][:states]
        trees += [z, build_variadic(be, f"{name}_backward", *errors, *rest, **z.attrs)]
        if name == "lstm":
            trees.append(build_variadic(be, "lstm_state", *rest, **z.attrs))
    return trees


def heads(be: Backend, x: Any, y: Any, p: Any) -> list[Any]:
    """Return attention of 2 heads, its stats and its gradients, with q, k and v in one array and in three."""
    rows = [be.build("slice", a / 16, index=((0, n, 1), (0, 16, 1))) for a, n in ((x, 12), (y, 4))]
    qkv, dz = (be.reshape(a, shape) for a, shape in zip(rows, ((2, 2, 3, 2, 8), (2, 2, 2, 8)), strict=True))
    apart, trees = [be.reshape(x[4 * n : 4 * n + 4, :16] / 16, (2, 2, 2, 8)) for n in range(3)], []
    for operands in ([qkv], apart):
        z = build_variadic(be, "fused_attention", *operands, causal=True)
        stats = build_variadic(be, "attention_stats", *operands, causal=True, to="float32")
        values = dz, z, *operands, stats
        of = [
            build_variadic(be, "fused_attention_backward", *values, causal=True, part=n) for n in range(len(operands))
        ]
        trees += [z, stats, *of]
    return trees


def composites(be: Backend, x: Any, y: Any, p: Any) -> list[Any]:
    """Return composite ops, of which the formulas are computed."""
    of_images = (getattr(be, name)(be.reshape(x, (4, 8, 8)), y[:4, :1]) for name in ("batch_norm", "instance_norm"))
    alone = ("softmax", "log_softmax", "logsumexp", "silu", "gelu", "leaky_relu", "elu", "softplus")
    return [
        *(getattr(be, name)(x) for name in alone),
        be.masked_softmax(x, y > 0, axis=1) * be.cross_entropy(x, be.softmax(y, axis=1), axis=1),
        be.layer_norm(x, p, y, axis=1) + be.rms_norm(y, axis=(0, 1)),
        be.group_norm(be.reshape(x, (4, 8, 8)), groups=2),
        be.attention(x / 4, y / 4, p),
        *of_images,
    ]


def draws(be: Backend, x: Any, y: Any, p: Any) -> list[Any]:
    """Return random numbers combined with the operands, of any float dtype: they are those of the CPU."""
    words = be.build("random_words", RandomSource(be), to=(3, 5))
    return [x + be.rand(*SHAPE), be.rand(3, 5), be.randn(5, 3), be.random_mask(*SHAPE, keep=0.4), words]


def table(be: Backend, x: Any, y: Any, p: Any) -> list[Any]:
    return list(elementwise(be, x, y, p, [op.name for op in OP_TABLE if op.kind == "elementwise"]).values())


PLANS: dict[str, Callable[..., list[Any]]] = {
    f.__name__: f for f in (table, reductions, movements, orders, matrices, images, sequences, heads, composites, draws)
}


def operands(dtype: str) -> list[Any]:
    """Return x, y and p > 0: multiples of 1/4 or integers, whose sums are exact in any order."""
    low, part = (0 if dtype[0] == "u" else -3), (4 if dtype in FLOAT_DTYPES else 1)
    x, y = (np.rint(12 * numbers(*SHAPE, seed=n, low=low)) / part for n in (0, 1))
    x.flat[:2] = y.flat[:2]  # some are equal
    return [x, y, np.ceil(4 * numbers(*SHAPE, seed=2, low=0.1)) / part]


def check(dtype: str, layout: str, plans: Iterable[str] = PLANS) -> None:
    """Assert that every op of the plans writes the same on both, also around the elements of the target."""
    default, lay = (dtype if dtype in FLOAT_DTYPES else "float32"), LAYOUTS[layout]
    for name in plans:
        trees = PLANS[name]
        if name == "draws" and dtype not in FLOAT_DTYPES:
            continue
        results: list[list[Any]] = []
        for runtime in (SimulatedGPU(), OpByOp()):
            be = Backend(runtime, rng_seed=1, default_dtype=default)
            built = trees(be, *(lay(be, be.array(z, dtype)) for z in operands(dtype)))
            targets = [lay(be, be.zeros(tree.shape, tree.info.dtype)) for tree in built]
            be.assign(targets, built)
            results.append([target.root.get() for target in targets])
        for n, (a, b) in enumerate(zip(*results, strict=True)):
            assert a.dtype == b.dtype
            close = CLOSE.get(a.dtype.name, 0.0)  # integers agree to the bit
            a, b = (z.astype(float) if close else z for z in (a, b))
            np.testing.assert_allclose(a, b, close, close, err_msg=f"{name} {n}, {dtype}, {layout}")


ALL = list(itertools.product(DTYPES, LAYOUTS))
# each layout once, and each plan in two of them: compiling takes long; test_codegen.py has other dtypes
SOME = list(zip(["float16", "int16", "bfloat16", "uint16", "float32", "uint8"], LAYOUTS, strict=True))


def test_the_plans_contain_every_op_of_the_table() -> None:
    be = Backend(OpByOp())
    plans = [be.plan(*trees(be, *(be.ones(SHAPE) for _ in "xyp"))) for trees in PLANS.values()]
    known = {step.op.name for plan in plans for _, step in plan.numbered_steps}
    assert {op.name for op in OP_TABLE if op.kind not in ("structural", "composite")} <= known


@pytest.mark.parametrize(("dtype", "layout"), SOME)
def test_every_op_on_a_gpu_is_the_one_of_numpy(dtype: str, layout: str) -> None:
    check(dtype, layout, part(list(PLANS), "plans", SOME.index((dtype, layout))))


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "layout"), ALL)
def test_every_op_on_a_gpu_is_the_one_of_numpy_in_every_dtype_and_layout(dtype: str, layout: str) -> None:
    check(dtype, layout)
