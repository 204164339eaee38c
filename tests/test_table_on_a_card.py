"""Is each op of the table, in each dtype and layout, on a card what it is in NumPy op by op?  The card is simulated.

The oracle is ``Generic`` on NumPy's arrays, which shares no code with kernels. Operands lie in memory as the layout
says, and so do results: what lies between the elements of a result is compared, too, so that nothing is written there.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_cuda import CLOSE, LAYOUTS, OpByOp, elementwise, numbers

from neonlite import Backend
from neonlite.backend.cuda.simulated import Simulated
from neonlite.ops import FLOATS, INTS, TABLE

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are simulated with g++, which is not here")

SHAPE = (16, 16)  # of operands: rows come out even for 16 bytes of any dtype
DTYPES = [*FLOATS, *INTS]


def reductions(be: Backend, x: Any, y: Any, p: Any) -> list[Any]:
    """Return reductions over rows, columns and both, of operands as they are and of what is worked out from them."""
    return [
        getattr(be, name)(of, axis=axis)
        for name, of in [("sum", x), ("max", x), ("min", y), ("sum", x * 2), ("argmax", x), ("argmin", y)]
        for axis in (0, 1, (0, 1))
    ]


def movements(be: Backend, x: Any, y: Any, p: Any) -> list[Any]:
    """Return what brings elements elsewhere: views, copies, gathers, sums by place, and products."""
    rows = be.array([[3, 0, 3, -1, 9]], dtype="int32")
    places = be.array([np.arange(16) % 5], dtype="int32")
    return [
        x.T + (y * 2).T,
        be.reshape(x * 2, (8, 32)),
        be.broadcast_to(x[:1], SHAPE) + y,
        x[1:13:3, ::-2] * be.build("slice", y * 2, index=((1, 4, 3), (15, 8, -2))),
        be.take(x, rows, axis=0),
        be.take(x, rows, axis=1),
        be.onehot(places, axis=0, nclass=5),
        be.onehot(places, axis=1, nclass=6),
        be.concat([x, y], 0),
        be.dot(x, y.T),
        be.build("matmul", be.reshape(x, (2, 8, 16)), be.reshape(y, (2, 16, 8))),
        be.build("scatter", x, places, axis=0, size=5),
        be.build("scatter", y, places, axis=1, size=5),
        be.build("unslice", x, index=((2, 16, 1), (0, 16, 1)), to=(20, 17)),
    ]


def draws(be: Backend, x: Any, y: Any, p: Any) -> list[Any]:
    """Return random numbers beside the operands: a card draws words that the CPU draws, of any dtype of floats."""
    return [x + be.rand(*SHAPE), be.rand(3, 5), be.randn(5, 3)]


def table(be: Backend, x: Any, y: Any, p: Any) -> list[Any]:
    return list(elementwise(be, x, y, p).values())


PLANS: dict[str, Callable[..., list[Any]]] = {f.__name__: f for f in (table, reductions, movements, draws)}


def operands(dtype: str) -> list[Any]:
    """Return x, y and p, which is above 0, of quarters or of whole numbers: their sums are exact in any order."""
    low, part = (0 if dtype[0] == "u" else -3), (4 if dtype in FLOATS else 1)
    x, y = (np.rint(12 * numbers(*SHAPE, seed=n, low=low)) / part for n in (0, 1))
    x.flat[:2] = y.flat[:2]  # some are equal
    return [x, y, np.ceil(4 * numbers(*SHAPE, seed=2, low=0.1)) / part]


def check(dtype: str, layout: str) -> None:
    """Assert that every op of the table leaves the same on both, in tensors of the layout and around them."""
    default, lay = (dtype if dtype in FLOATS else "float32"), LAYOUTS[layout]
    for name, trees in PLANS.items():
        if name == "draws" and dtype not in FLOATS:
            continue
        found: list[list[Any]] = []
        for runtime in (Simulated(), OpByOp()):
            be = Backend(runtime, rng_seed=1, default_dtype=default)
            made = trees(be, *(lay(be, be.array(z, dtype)) for z in operands(dtype)))
            targets = [lay(be, be.zeros(tree.shape, tree.info.dtype)) for tree in made]
            be.assign(targets, made)
            found.append([target.root.get() for target in targets])
        for n, (a, b) in enumerate(zip(*found, strict=True)):
            assert a.dtype == b.dtype
            close = CLOSE.get(a.dtype.name, 0.0)  # whole numbers agree to the bit
            a, b = (z.astype(float) if close else z for z in (a, b))
            np.testing.assert_allclose(a, b, close, close, err_msg=f"{name} {n}, {dtype}, {layout}")


ALL = list(itertools.product(DTYPES, LAYOUTS))
# each layout once: kernels are compiled for a quarter of a minute where none is kept; test_cuda.py has other dtypes
SOME = list(zip(["float16", "int16", "bfloat16", "uint16", "float32", "uint8"], LAYOUTS, strict=True))


def test_the_plans_hold_every_op_of_the_table() -> None:
    be = Backend(OpByOp())
    plans = [be.plan(*trees(be, *(be.ones(SHAPE) for _ in "xyp"))) for trees in PLANS.values()]
    known = {step.op.name for plan in plans for _, step in plan.numbered}
    assert {op.name for op in TABLE if op.kind != "tie"} <= known


@pytest.mark.parametrize(("dtype", "layout"), SOME)
def test_every_op_on_a_card_is_the_one_of_numpy(dtype: str, layout: str) -> None:
    check(dtype, layout)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "layout"), [case for case in ALL if case not in SOME])
def test_every_op_on_a_card_is_the_one_of_numpy_in_every_dtype_and_layout(dtype: str, layout: str) -> None:
    check(dtype, layout)
