"""Adding an op takes one row of the op table and one reference function: it then works on every runtime.

Both are added to a copy of the package and of its tests, where the op's tests run, which are generated from the table.

Tests ``neonlite/ops/__init__.py`` and what is derived from its table.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.runtimes import RUNTIMES

ROOT = Path(__file__).parents[2]
ROWS = """
    Op("softsign", lambda xp, x: x / (1 + xp.abs(x)),
       lambda be, dz, z, x: (dz * be.square(1 - abs(z)),), "x / (1 + |x|)", result_dtype="float"),
    Op("midpoint", lambda xp, x, y: (x + y) / 2,
       lambda be, dz, z, x, y: (dz / 2, dz / 2), "the mean of x and y", arity=2, result_dtype="float", symbol="<>"),
    Op("max_abs", lambda xp, x, axis, keepdims=True: xp.max(xp.abs(x), axis=axis, keepdims=keepdims),
       lambda be, dz, z, x, axis, keepdims=True:
       (be.sgn(x) * functions.grad_minmax_reduction(be, dz, z, abs(x), axis)[0],),
       "the largest magnitude", **REDUCTION, **NONEMPTY),
"""
REFERENCES = """
    "softsign": each(lambda x: x / (1 + abs(x))),
    "midpoint": each(lambda x, y: (x + y) / 2),
    "max_abs": over(lambda xs: max(map(abs, xs))),
"""
USE = """
import sys
import numpy as np
from neonlite import Autodiff, Backend
from neonlite.backend.runtimes.cuda.simulator import SimulatedGPU

be = Backend(SimulatedGPU() if sys.argv[1] == "simulated" else sys.argv[1])
x = be.array([[1.0, -3.0]], name="x")
tree = be.softsign(x) + be.midpoint(x, 2)
assert tree.pp() == "((softsign x) + (x <> (2)))"
assert tree.asnumpyarray().tolist() == [[2.0, -1.25]]
assert Autodiff(tree, be).get_grad_asnumpyarray(x).tolist() == [[0.75, 0.5625]]
assert Autodiff(be.max_abs(x * x, axis=1), be).get_grad_asnumpyarray(x).tolist() == [[0.0, -6.0]]
plan = be.plan(tree)
assert "fused (1, 2): softsign midpoint add; reads 8 B, writes 8 B" in repr(plan)
assert (plan.flops, be.plan(be.max_abs(x, axis=1)).flops) == (6, 2)
large = np.random.default_rng(0).normal(size=(700, 800)).astype(np.float32)
for axis in (0, 1, None):
    largest = be.max_abs(2 * be.array(large), axis=axis).asnumpyarray()
    assert (largest == np.max(np.abs(2 * large), axis=axis, keepdims=True)).all()
"""


needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are simulated with g++")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the package and its tests with new ops."""
    root = tmp_path_factory.mktemp("checkout")
    for folder in ("neonlite", "tests", "docs"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    for file, line, added in [
        ("neonlite/ops/__init__.py", "OP_TABLE: tuple[Op, ...] = (", ROWS),
        ("tests/helpers/reference.py", "REFERENCE: dict[str, Callable[..., Any]] = {", REFERENCES),
    ]:
        text = (root / file).read_text()
        assert text.count(line) == 1
        (root / file).write_text(text.replace(line, line + added))
    return root


def run(checkout: Path, *args: str, **environment: str) -> str:
    """Run Python in the checkout, and return what it printed."""
    paths = os.pathsep.join([str(checkout), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, **environment}
    found = subprocess.run([sys.executable, *args], cwd=checkout, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-3000:]
    return found.stdout


@pytest.mark.parametrize("runtime", [*RUNTIMES, pytest.param("simulated", marks=needs_compiler)])
def test_a_new_op_is_computed_differentiated_printed_planned_and_counted(checkout: Path, runtime: str) -> None:
    run(checkout, "-c", USE, runtime)


def test_the_stub_and_the_docs_contain_a_new_op(checkout: Path) -> None:
    run(checkout, "docs/make_stubs.py")
    run(checkout, "docs/make_ops.py")
    stub, docs = ((checkout / file).read_text() for file in ("neonlite/backend/op_methods.pyi", "docs/ops.md"))
    assert "    def softsign(self, a: OperandLike, out: None = None) -> OpTreeNode:\n" in stub
    assert "    def max_abs(self, a: OperandLike, axis: AxisLike = None" in stub
    assert "| `softsign` | `be.softsign` | x / (1 + \\|x\\|) | dx = `(dz * " in docs
    assert "| `max_abs` | `be.max_abs` | the largest magnitude | dx = `" in docs


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("tests/ops/test_every_op.py", "softsign or midpoint or max_abs or has_a"),
        ("tests/test_house.py", "row or templates"),
        ("tests/backend/runtimes/cuda/test_op_templates.py", "plans_contain or float16-whole"),
    ],
)
def test_new_ops_pass_the_tests_of_every_op(checkout: Path, file: str, names: str) -> None:
    run(checkout, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", names, file, NEONLITE_TEST_SIMULATED="1")
