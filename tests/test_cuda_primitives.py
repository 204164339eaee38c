"""Do the kernels of primitives compute what ``Generic`` does?  There is no card here: a C++ compiler runs them.

The oracle is ``Generic`` on NumPy's arrays in float64, which shares no code with kernels. Shapes come from the seeded
generators of test_primitives.py, which runs on the kernels too, with NEONLITE_TEST_SIMULATED=1.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import nvrtc
import pytest
import test_primitives as shapes

from neonlite import Backend
from neonlite.backend.cuda import primitives_images as images
from neonlite.backend.cuda.driver import OPTIONS
from neonlite.backend.cuda.launching import source
from neonlite.backend.cuda.primitives import Primitives
from neonlite.backend.cuda.simulated import Simulated
from neonlite.backend.primitives.generic import Generic
from neonlite.backend.runtimes.numpy_ import NumPy

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are simulated with g++, which is not here")

CLOSE = {"float16": 2**-11, "float32": 2e-6, "float64": 1e-13}
DTYPES = list(CLOSE)
FEW, MANY = 4, 200  # shapes that are tried of each primitive in `make test`, and in `make test-slow`

SIM, REAL, BE = Primitives(Simulated()), Generic(NumPy()), Backend("cpu")


def held(seed: int, shape: Any, dtype: str) -> Any:
    """Return normal numbers that a dtype holds."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def near(made: Any, wanted: Any, what: Any) -> None:
    """Assert that an array holds what is wanted, rounded a time or two."""
    close = CLOSE[str(made.dtype)]
    room = close * np.abs(wanted) + 4 * min(close, 2e-6) * max(1.0, np.abs(wanted).max(initial=0))
    assert (np.abs(made.astype(float) - wanted) <= room).all(), what


def agree(name: str, dtype: str, results: list[Any], call: Callable[[Any, list[Any], type], None], what: Any) -> None:
    """Assert that a primitive leaves the same in its results on a card as ``Generic`` does in float64."""
    made = [x.copy() for x in results]
    wanted = [x.astype(float) if x.dtype.kind == "f" else x.copy() for x in results]
    call(getattr(SIM, name), made, lambda x: x)  # type: ignore[arg-type]
    call(getattr(REAL, name), wanted, lambda x: x.astype(float))  # type: ignore[arg-type]
    for n, (a, b) in enumerate(zip(made, wanted, strict=True)):
        if a.dtype.kind == "f":
            near(a, b, (name, dtype, n, what))
        else:
            np.testing.assert_array_equal(a, b, err_msg=str((name, dtype, n, what)))


def cases(draw: Callable[[], Iterator[Any]], count: int, start: int = 0) -> Iterator[tuple[int, str, Any]]:
    """Yield numbered shapes, each with a dtype; every other one has images for kernels that take several at once."""
    for n, case in enumerate(itertools.islice(draw(), start, start + count)):
        dtype = DTYPES[n // 2 % 3]
        yield n, dtype, case._replace(N=16 // np.dtype(dtype).itemsize * case.N) if n % 2 else case


# --- pooling, and normalization over channels ------------------------------------------------------------------------


def check_pooling(n: int, dtype: str, case: Any) -> None:
    for op in ("max", "avg", "l2"):
        check_pool(n, dtype, case, op)


def check_pool(n: int, dtype: str, case: Any, op: str) -> None:
    layer, (alpha, beta) = shapes.pool_layer(BE, dtype, op, case), shapes.scaled(case)
    i, e = held(1, layer.dimI, dtype), held(2, layer.dimO, dtype)
    o, d, places = held(3, layer.dimO, dtype), held(4, layer.dimI, dtype), np.zeros(layer.dimO, "int16")

    def forward(pool: Any, out: Any, cast: Any) -> None:
        pool(layer, cast(i), *out[:2], beta) if len(out) > 1 else pool(layer, cast(i), *out, None, beta)

    agree("pool_fprop", dtype, [o, places] if op == "max" and n % 3 else [o], forward, (case, op))
    REAL.pool_fprop(layer, i.astype(float), o.astype(float), places, 0.0)
    argmax = places if op == "max" and n % 3 else None

    def back(pool: Any, out: Any, cast: Any) -> None:
        pool(layer, cast(i), cast(e), *out, argmax, alpha, beta)

    agree("pool_bprop", dtype, [d], back, (case, op))


def check_lrn(n: int, dtype: str, case: Any) -> None:
    layer, (alpha, beta) = BE.lrn_layer(dtype, case.N, *case.CDHW, case.J), shapes.scaled(case)
    i, e, o, d = (held(k, layer.dimI, dtype) for k in range(4))
    denom = 1 + np.abs(held(5, layer.dimI, dtype))
    agree("lrn_fprop", dtype, [o, denom], lambda f, out, c: f(layer, c(i), *out, alpha, beta, case.a, case.b), case)
    agree(
        "lrn_bprop", dtype, [d], lambda f, out, c: f(layer, c(i), c(e), *out, c(denom), alpha, beta, case.a, 0.75), case
    )


CHECKS: dict[str, tuple[Callable[[], Iterator[Any]], Callable[[int, str, Any], None]]] = {
    "pooling": (shapes.pool_cases, check_pooling),
    "local response": (shapes.lrn_cases, check_lrn),
}


@pytest.mark.parametrize("what", CHECKS)
def test_a_primitive_on_a_card_is_the_references(what: str) -> None:
    draw, check = CHECKS[what]
    for case in cases(draw, FEW):
        check(*case)


@pytest.mark.slow
@pytest.mark.parametrize("what", CHECKS)
def test_a_primitive_on_a_card_is_the_references_over_many_shapes(what: str) -> None:
    draw, check = CHECKS[what]
    for case in cases(draw, MANY, FEW):
        check(*case)


# --- the text --------------------------------------------------------------------------------------------------------


def texts() -> dict[str, tuple[str, dict[str, str]]]:
    """Return every kernel, with types that it takes beside the dtype."""
    return {
        **{f"pool {op}": (text, {"Out": "{dtype}", "Place": "uint8"}) for op, text in images.POOLS.items()},
        **{f"pool {op} back": (text, {"Place": "int32"}) for op, text in images.POOLS_BACK.items()},
        "lrn": (images.LRN, {}),
        "lrn back": (images.LRN_BACK, {}),
    }


def check_compiled(architecture: str, *forms: tuple[str, int, bool]) -> None:
    """Assert that NVRTC takes every kernel for a dtype, V elements at once, and places of 32 or 64 bits."""
    if nvrtc.library() is None:
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc-cu12")
    for (name, (text, types)), (dtype, V, large) in itertools.product(texts().items(), forms):
        filled = {key: kind.replace("{dtype}", dtype) for key, kind in types.items()}
        made = nvrtc.compiled(source(text, dtype, V, large, **filled), architecture, OPTIONS)
        assert made.spilled == made.stack == 0, (name, dtype, made[:3])
        assert made.registers <= 128, (name, dtype, made[:3])


def test_nvidias_compiler_takes_every_kernel_and_nothing_is_spilled() -> None:
    check_compiled("sm_90", ("float16", 8, False))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_nvidias_compiler_takes_every_kernel_for_every_dtype(architecture: str) -> None:
    check_compiled(
        architecture, ("float16", 8, False), ("float32", 4, False), ("float64", 2, False), ("float64", 1, True)
    )
