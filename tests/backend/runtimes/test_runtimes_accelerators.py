"""Accelerators of the runtimes for NumPy arrays, which ``neonlite/backend/runtimes/__init__.py`` finds."""

from __future__ import annotations

import subprocess
import sys

import pytest

from neonlite.backend import runtimes
from neonlite.backend.runtimes import accelerated, load_accelerators

TRAIN = """
import sys
sys.modules["neonlite.backend.runtimes.onednn"] = None  # an import of it raises ModuleNotFoundError
import numpy as np
import neonlite as nl
from neonlite.backend.runtimes.numpy import NumPyPrimitives
from neonlite.layers import Affine, Conv, GeneralizedCost, Pooling
from neonlite.transforms import CrossEntropyMulti, Rectlin, Softmax

be = nl.gen_backend(sys.argv[1], batch_size=8, rng_seed=0)
print(be.runtime.version_info())
X, y = np.random.default_rng(0).random((32, 3 * 8 * 8)), np.arange(32) % 2
X[y == 1] -= 1
init = nl.initializers.Gaussian(scale=0.1)
layers = [Conv((3, 3, 8), init=init, activation=Rectlin()), Pooling(2), Affine(2, init=init, activation=Softmax())]
model = nl.Model(layers)
train = nl.data.ArrayIterator(X, y, nclass=2, lshape=(3, 8, 8))
cost = GeneralizedCost(CrossEntropyMulti())
model.fit(train, cost=cost, optimizer=nl.optimizers.GradientDescentMomentum(0.05), num_epochs=8)
print((model.get_outputs(train).argmax(1) == y).mean())
assert not [name for name in sys.modules if name.startswith("neonlite.backend.runtimes.onednn.")]
"""


@pytest.mark.parametrize("runtime", ["cpu", "mkl"])
def test_a_network_is_trained_without_the_folder_of_onednn(runtime: str) -> None:
    if runtime == "mkl":
        pytest.importorskip("mkl")
    run = subprocess.run([sys.executable, "-c", TRAIN, runtime], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    info, accuracy = run.stdout.splitlines()
    assert "oneDNN" not in info
    assert float(accuracy) > 0.9


def test_a_class_gets_the_mixins_of_its_bases(monkeypatch: pytest.MonkeyPatch) -> None:
    class Base:
        def name(self) -> str:
            return "base"

    class Mixin(Base):
        def name(self) -> str:
            return f"fast {super().name()}"

    class Sub(Base):
        def name(self) -> str:
            return "sub"

    class Accelerator:
        MIXINS = {Base: Mixin}  # noqa: RUF012

    monkeypatch.setattr(runtimes, "load_accelerators", lambda: [Accelerator])
    assert accelerated(Base)().name() == "fast base"
    assert accelerated(Sub)().name() == "fast sub"
    assert accelerated(Accelerator) is Accelerator


def test_an_accelerator_that_needs_a_missing_module_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("accelerators")
    (folder / "accelerator_of_a_test.py").write_text("import a_module_that_is_missing")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(runtimes, "ACCELERATORS", ("accelerator_of_a_test",))
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_missing"):
        load_accelerators.__wrapped__()
    monkeypatch.setattr(runtimes, "ACCELERATORS", ("another_module_that_is_missing",))
    assert load_accelerators.__wrapped__() == []
