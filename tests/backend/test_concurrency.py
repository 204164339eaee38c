"""Several runtimes in one process, several threads in one backend, and a clean exit of the process.

Tests ``neonlite/backend/thread_pool.py``.
"""

from __future__ import annotations

import gc
import importlib.metadata
import re
import subprocess
import sys
import threading
import weakref
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest
from helpers.runtimes import RUNTIMES

import neonlite as nl
from neonlite import Autodiff, Backend, gen_backend
from neonlite.backend import current_backend, use_backend
from neonlite.backend.runtimes import BUILTIN_RUNTIMES
from neonlite.data import ArrayIterator
from neonlite.initializers import Gaussian
from neonlite.layers import Affine
from neonlite.models import Model
from neonlite.optimizers import Adam
from neonlite.transforms import CrossEntropyMulti, Softmax

DOCS = Path(__file__).parents[2] / "docs"


# --- several runtimes ----------------------------------------------------------------------------------------------


def test_all_runtimes_work_together_in_one_process():
    backends = [Backend(name, rng_seed=3) for name in RUNTIMES]
    values = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    tensors = [be.array(values, name=f"x_{be.name}") for be in backends]
    for _ in range(3):
        found = []
        for be, x in zip(backends, tensors, strict=True):
            tree = be.tanh(be.dot(x, x.T)) + be.rand(4, 4)
            y = be.empty((4, 4))
            y[:] = tree
            found.append((y.get(), Autodiff(tree, be).get_grad_asnumpyarray(x)))
        for y, dx in found[1:]:
            np.testing.assert_allclose(y, found[0][0], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(dx, found[0][1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("first", RUNTIMES)
def test_tensors_of_two_backends_do_not_mix_and_are_copied_across(first):
    for second in RUNTIMES:
        one, two = Backend(first), Backend(second)
        x, y = one.array([[1.0, 2.0]], name="x"), two.array([[3.0, 4.0]], name="y")
        layer = one.conv_layer("float32", 1, 1, 1, W=2)
        for mix in (
            lambda x=x, y=y: x + y,
            lambda x=x, y=y: x.__setitem__(slice(None), y),
            lambda x=x, y=y: x.__setitem__(slice(None), y * 2),
            lambda one=one, x=x, y=y: one.compound_dot(x, y.T, one.empty((1, 1))),
            lambda two=two, x=x, layer=layer: two.fprop_conv(layer, x, x, x),
            lambda two=two, y=y, layer=layer: two.fprop_conv(layer, y, y, y),
        ):
            with pytest.raises(ValueError, match=r"expected .*<backend \w+ \d+>|belong to different backends"):
                mix()
        np.testing.assert_array_equal((x + one.array(y)).asnumpyarray(), [[4, 6]])
        np.testing.assert_array_equal(x.get(), [[1, 2]])


def test_cleaning_up_one_backend_leaves_the_others():
    for name in RUNTIMES:
        one, two = Backend(name), Backend(name)
        x, y = one.ones((2, 2)), two.ones((2, 2))
        one.cleanup_backend()
        one.cleanup_backend()  # twice does no harm
        assert (y + y).asnumpyarray().sum() == 8
        assert x.get().sum() == 4
        with pytest.raises(RuntimeError, match="closed by cleanup_backend"):
            one.compound_dot(x, x, x)


def test_a_backend_that_was_cleaned_up_and_that_nobody_holds_is_let_go():
    for name in RUNTIMES:
        be = Backend(name)
        x = be.ones((3, 3))
        Autodiff(be.exp(x) * x, be).get_grad_asnumpyarray(x)
        gone = weakref.ref(be)
        be.cleanup_backend()
        del be, x
        gc.collect()
        assert gone() is None, name


def used(name: str) -> Backend:
    """Return a backend with all that it keeps: plans, structures, an arena, workspaces, primitives."""
    be = Backend(name, batch_size=4)
    x = be.array(np.ones((300, 300)))
    tree = be.sum(be.exp(x) * x, axis=0) @ x
    Autodiff(tree, be).get_grad_asnumpyarray(x)
    layer = be.conv_layer("float32", 4, 3, 8, 1, 6, 6, 1, 3, 3)
    be.fprop_conv(layer, be.ones(layer.dimI2), be.ones(layer.dimF2), be.empty(layer.dimO2))
    pool = be.pool_layer("float32", "max", 4, 8, 1, 4, 4, 1, 1, 2, 2)
    be.fprop_pool(pool, be.ones(pool.dimI2), be.empty(pool.dimO2), be.empty(pool.dimO2, dtype="uint8"))
    be.take(x, [0, 1], axis=0).get()
    be.rand((3, 3)).get()
    be.compile([x], [x + 1])()
    return be


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_backend_that_is_dropped_without_being_cleaned_up_is_let_go(name):
    backends = [weakref.ref(used(name)) for _ in range(5)]
    gc.collect()
    assert [ref() for ref in backends] == [None] * 5


def test_a_current_backend_and_a_model_that_are_dropped_are_let_go():
    be = gen_backend("cpu", rng_seed=1, batch_size=8)
    X, y = np.ones((16, 5), np.float32), np.zeros(16, int)
    model = Model([Affine(3, Gaussian(), activation=Softmax())])
    model.fit(ArrayIterator(X, y, nclass=3), CrossEntropyMulti(), Adam(), 1)
    gone = weakref.ref(be), weakref.ref(model)
    nl.NervanaObject.be = None
    del be, model
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


def test_what_a_thread_keeps_goes_when_it_ends_and_what_others_keep_stays():
    be = Backend("cpu")
    x = be.ones((500, 500))

    def work() -> None:
        (be.sum(be.exp(x) * x, axis=0) @ x).get()

    work()
    alone = be.memory().arena + be.memory().workspaces
    assert alone > 0
    for _ in range(3):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert be.memory().arena + be.memory().workspaces == alone
    be.cleanup_backend()
    assert be.memory().arena + be.memory().workspaces == 0


def test_the_end_of_python_is_quiet():
    code = f"""
import neonlite as nl
backends = [nl.Backend(name) for name in {RUNTIMES!r}] + [nl.gen_backend({RUNTIMES[-1]!r})]
kept = [(be.ones((600, 600)) * 2 + 1).astensor() for be in backends]
import atexit
atexit.register(lambda: print("still read:", *[x.get()[0, 0] for x in kept]))
"""
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert run.stderr == ""
    assert run.stdout.split() == ["still", "read:", *["3.0"] * (len(RUNTIMES) + 1)]


def test_use_backend_is_of_one_thread():
    be, other = nl.gen_backend("cpu"), nl.Backend("cpu")
    found = []
    with use_backend(other):
        thread = threading.Thread(target=lambda: found.append(current_backend()))
        thread.start()
        thread.join()
        with use_backend(be):
            found.append(current_backend())
        found.append(current_backend())
    assert [*found, current_backend()] == [be, be, other, be]
    with pytest.raises(ZeroDivisionError), use_backend(other):
        raise ZeroDivisionError
    assert current_backend() is be


# --- several threads -----------------------------------------------------------------------------------------------


def random_tree(be, leaves, rng):
    """Return a random op-tree over leaves of one shape, and the function of NumPy arrays that it is."""
    ops = [
        (lambda be, a, b: a + b, lambda a, b: a + b),
        (lambda be, a, b: a * b, lambda a, b: a * b),
        (lambda be, a, b: be.maximum(a, b), np.maximum),
        (lambda be, a, b: be.tanh(a) - b, lambda a, b: np.tanh(a) - b),
        (lambda be, a, b: a - be.mean(b, axis=1), lambda a, b: a - b.mean(axis=1, keepdims=True)),
        (lambda be, a, b: be.dot(a, b.T * 0.1), lambda a, b: a @ (b.T * 0.1)),
    ]
    pool = [(x, x.get().astype(np.float64)) for x in leaves]
    for _ in range(int(rng.integers(2, 7))):
        (a, u), (b, v) = (pool[int(rng.integers(len(pool)))] for _ in range(2))
        build, work = ops[int(rng.integers(len(ops)))]
        pool.append((build(be, a, b), work(u, v)))
    return pool[-1]


@pytest.mark.parametrize("name", RUNTIMES)
def test_eight_threads_evaluate_random_trees_in_one_backend(name):
    be = Backend(name, rng_seed=1)
    count = 200 if name in ("cpu", "mkl") else 50
    errors: list[BaseException] = []
    barrier = threading.Barrier(8)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            barrier.wait()
            for _ in range(count):
                n = int(rng.integers(1, 5))
                leaves = [be.array(rng.uniform(-1, 1, (n, n))) for _ in range(2)]
                tree, expected = random_tree(be, leaves, rng)
                out = be.empty((n, n))
                out[:] = tree
                np.testing.assert_allclose(out.get(), expected, rtol=1e-3, atol=1e-4)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("name", RUNTIMES)
def test_threads_share_primitives_and_large_trees(name):
    be = Backend(name)
    layer = be.conv_layer("float32", 2, 3, 4, 1, 6, 5, 1, 3, 3, pad_h=1, pad_w=1)
    rng = np.random.default_rng(0)
    f = be.array(rng.standard_normal(layer.dimF2))
    images = [be.array(rng.standard_normal(layer.dimI2)) for _ in range(4)]
    large = [be.array(rng.standard_normal((700, 500))) for _ in range(4)]
    alone = [be.fprop_conv(layer, x, f, be.empty(layer.dimO2)).get() for x in images]
    sums = [be.sum(be.tanh(x) * x, axis=1).asnumpyarray() for x in large]
    found: dict[int, list[np.ndarray]] = {}

    def work(i: int) -> None:
        out, row = be.empty(layer.dimO2), be.empty((700, 1))
        for _ in range(10):
            be.fprop_conv(layer, images[i], f, out)
            row[:] = be.sum(be.tanh(large[i]) * large[i], axis=1)
        found[i] = [out.get(), row.get()]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(4):
        np.testing.assert_array_equal(found[i][0], alone[i])
        np.testing.assert_array_equal(found[i][1], sums[i])


# --- what there is -------------------------------------------------------------------------------------------------


def test_info_lists_every_runtime_with_what_it_is_or_how_to_get_it():
    report = nl.backend.info()
    by_name = {found.name: found for found in report}
    assert list(by_name)[:5] == ["cpu", "mkl", "torch", "gpu", "strict"]
    assert set(by_name) == set(Backend.backend_choices())
    assert by_name["cpu"].is_usable
    assert f"NumPy {np.__version__}" in by_name["cpu"].details
    assert "threads" in by_name["cpu"].details
    lines = repr(report).splitlines()
    assert [line.split()[0] for line in lines] == list(by_name)
    assert {name for name, found in by_name.items() if found.is_usable} >= set(RUNTIMES)


@pytest.mark.parametrize(
    ("name", "module", "pip"),
    [
        ("mkl", "mkl", 'pip install "neonlite[mkl]"'),
        ("torch", "torch", "pip install torch"),
        ("gpu", "cupy", 'pip install "neonlite[cuda13]"'),
        ("strict", "array_api_strict", "pip install array-api-strict"),
    ],
)
def test_the_error_of_a_missing_runtime_states_how_to_install_it(monkeypatch, name, module, pip):
    monkeypatch.delitem(sys.modules, BUILTIN_RUNTIMES[name][0], raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=re.escape(pip)) as caught:
        gen_backend(name)
    assert module in str(caught.value)
    found = {f.name: f for f in nl.backend.info()}[name]
    assert not found.is_usable
    assert pip in found.details


def test_the_backend_without_a_name_is_mkl_where_it_is_installed_else_cpu(monkeypatch):
    assert gen_backend().name == ("mkl" if "mkl" in RUNTIMES else "cpu")
    for spec in (None, ModuleSpec("mkl", None, is_package=True)):  # not installed; a folder named mkl
        monkeypatch.setattr("importlib.util.find_spec", lambda name, spec=spec: spec)
        assert gen_backend().name == "cpu"


def test_the_runtime_of_the_documentation_is_complete_in_under_twenty_lines(monkeypatch):
    page = (DOCS / "runtimes.md").read_text()
    code, use = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(code.splitlines()) < 20
    module = type(sys)("my_package")
    for block in (code, use):
        exec(compile(block, "runtimes.md", "exec"), vars(module))
    assert gen_backend(module.Mine()) is module.be
    monkeypatch.setitem(sys.modules, "my_package", module)
    group, line = re.search(r'"(neonlite\.runtimes)"\]\n(.*)\n', page).groups()
    key, value = (part.strip(' "') for part in line.split("="))
    point = importlib.metadata.EntryPoint(key, value, group)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point] if group == point.group else [])
    be = gen_backend("mine", rng_seed=1)
    x = be.array([[0.5, -1.0], [2.0, 0.0]], name="x")
    tree = be.sum(1 / (1 + be.exp(-x)))
    s = 1 / (1 + np.exp(-x.get()))
    np.testing.assert_allclose(Autodiff(tree, be).get_grad_asnumpyarray(x), s * (1 - s), rtol=1e-5)
    layer = be.conv_layer("float32", 1, 1, 2, 1, 2, 2, 1, 2, 2)
    out = be.fprop_conv(layer, x.reshape(4, 1), be.ones(layer.dimF2), be.empty(layer.dimO2))
    np.testing.assert_array_equal(out.get(), [[1.5], [1.5]])
    assert "mine" in repr(nl.backend.info())
