"""Golden files of generated kernels: the folder kernels/ has the source of one kernel of each kind.

After a change of the code generator, regenerate the files with ``NEONLITE_RENEW=1 pytest -k kernel_texts``
and review the diff of the CUDA code.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.simulated_gpu import OpByOp, standardized

from neonlite import Backend
from neonlite.backend.runtimes.cuda.codegen import PREAMBLE

FOLDER = Path(__file__).with_name("kernels")


def named(be: Backend, name: str, *shape: int, dtype: str | None = None) -> Any:
    return be.empty(shape, dtype, name=name)


# kind -> op-trees of x (64, 96), a row r and a column c, and the elements per thread and iteration (0: not checked)
KINDS: dict[str, tuple[Callable[..., list[Any]], int]] = {
    "map": (lambda be, x, r, c: [be.tanh(x * c + r) - 2.5], 4),
    "map_of_float16": (lambda be, x, r, c: [be.exp(named(be, "h", 64, 96, dtype="float16")) + 1], 8),
    "map_of_bfloat16": (lambda be, x, r, c: [be.exp(named(be, "b", 64, 96, dtype="bfloat16")) + 1], 8),
    "map_of_float64": (lambda be, x, r, c: [be.exp(named(be, "d", 64, 96, dtype="float64")) + 1], 2),
    "map_of_int8": (lambda be, x, r, c: [named(be, "n", 64, 96, dtype="int8") + 1], 16),
    "map_of_several": (lambda be, x, r, c: [x + c, (x + c) * r, be.astype(x > 0, "int32")], 4),
    "map_of_strides": (lambda be, x, r, c: [x[::2, ::-1] * 2], 4),
    "sum_of_rows": (lambda be, x, r, c: [be.sum(x * r, axis=1)], 4),
    "sum_of_columns": (lambda be, x, r, c: [be.sum(x * c, axis=0)], 4),
    "variance_of_columns": (lambda be, x, r, c: [be.var(named(be, "h", 20_000, 64, dtype="float16"), axis=0)], 8),
    "sum_of_all": (lambda be, x, r, c: [be.sum(named(be, "large", 3000, 3000))], 4),
    "sum_that_is_added": (lambda be, x, r, c: [0.9 * c + be.sum(x * x, axis=1)], 4),
    "variance": (lambda be, x, r, c: [be.var(x, axis=1)], 4),
    "variance_in_passes": (lambda be, x, r, c: [standardized(be, named(be, "long", 2, 50_000), 1)], 4),
    "softmax": (lambda be, x, r, c: [be.softmax(x, axis=1)], 4),
    "softmax_of_columns": (lambda be, x, r, c: [be.softmax(x, axis=0)], 1),
    "softmax_in_passes": (lambda be, x, r, c: [be.softmax(named(be, "long", 2, 50_000), axis=1)], 4),
    "argmax": (lambda be, x, r, c: [be.argmax(x, axis=1)], 4),
    "take": (lambda be, x, r, c: [be.take(x, [3, -1], axis=0)], 0),
    "onehot": (lambda be, x, r, c: [be.onehot([0, 2, 1], axis=0, nclass=3)], 0),
    "uniform": (lambda be, x, r, c: [be.rand(6, 7)], 0),
    "normal": (lambda be, x, r, c: [be.randn(6, 7)], 0),
}


def text(kind: str) -> str:
    """Return the kernels of a kind, without the preamble and the plan that is printed before it."""
    be = Backend(OpByOp())
    trees = KINDS[kind][0](be, named(be, "x", 64, 96), named(be, "r", 1, 96), named(be, "c", 64, 1))
    return be.kernel(*trees).partition(PREAMBLE)[2].strip() + "\n"


@pytest.mark.parametrize("kind", KINDS)
def test_the_source_of_a_kernel_is_unchanged(kind: str) -> None:
    path, source = FOLDER / f"{kind}.cu", text(kind)
    if os.environ.get("NEONLITE_RENEW"):
        path.write_text(source, encoding="utf-8", newline="\n")
    assert source == path.read_text(encoding="utf-8"), f"{path.name} is out of date: NEONLITE_RENEW=1 regenerates it"


def test_every_file_belongs_to_a_kind() -> None:
    assert {path.stem for path in FOLDER.glob("*")} == set(KINDS)


@pytest.mark.parametrize("kind", [kind for kind, (_, width) in KINDS.items() if width])
def test_a_thread_loads_16_bytes_at_once_except_where_it_keeps_a_column(kind: str) -> None:
    assert f"constexpr int V = {KINDS[kind][1]};" in text(kind)
