"""Runtimes: built-in ones, those of entry points and objects, and errors of those that are missing or incomplete.

Tests ``neonlite/backend/runtimes/__init__.py`` and ``neonlite/backend/runtimes/base.py``.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import re
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.runtimes import ABSENT, RUNTIMES

import neonlite as nl
from neonlite import Autodiff, Backend, NervanaObject, backend, cleanup_backend, gen_backend
from neonlite.backend.runtimes import BUILTIN_RUNTIMES, default_runtime
from neonlite.backend.runtimes.base import Runtime


@pytest.fixture(autouse=True)
def no_backend_before_and_after() -> Iterator[None]:
    cleanup_backend()
    yield
    cleanup_backend()


# --- the current backend -------------------------------------------------------------------------------------------


def test_a_custom_runtime_is_passed_as_an_object():
    from neonlite.backend.runtimes.numpy import NumPyRuntime

    class CustomRuntime(NumPyRuntime):
        name = "mine"

    class Halved(CustomRuntime):
        def __init__(self, part: float) -> None:
            super().__init__()
            self.part = part

        def is_equivalent(self, other: Runtime) -> bool:
            return super().is_equivalent(other) and other.part == self.part

    be = gen_backend(CustomRuntime(), batch_size=3)
    x = be.ones((2, 2))
    assert gen_backend(CustomRuntime()) is be
    assert (x + 1).get().sum() == 8
    half = gen_backend(Halved(0.5))
    assert half is not be
    assert gen_backend(Halved(0.5)) is half is not gen_backend(Halved(0.25))


# --- custom runtimes -------------------------------------------------------------------------------------------------


class CustomRuntime(Runtime):
    """A NumPy runtime op by op: the minimum that a runtime defines, without optional features."""

    name = "mine"
    xp = np
    dtypes = ("float32", "int32", "int64")
    supports_negative_strides = False

    def put(self, array: Any) -> Any:
        return np.array(array, order="C")

    get = put


@pytest.fixture
def custom(monkeypatch: pytest.MonkeyPatch) -> Backend:
    register(monkeypatch, "mine", f"{__name__}:CustomRuntime")
    return gen_backend("mine", rng_seed=2, deterministic=True)


def register(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """Register an entry point for a test."""
    point = importlib.metadata.EntryPoint(name, value, "neonlite.runtimes")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point] if group == point.group else [])


def test_a_custom_runtime_needs_fewer_than_twenty_lines():
    assert len(inspect.getsource(CustomRuntime).splitlines()) < 20


def test_an_unknown_device_of_a_custom_runtime_is_a_value_error(custom):
    with pytest.raises(ValueError, match=r"runtime 'mine': expected 0 for device_id, got 1"):
        gen_backend("mine", device_id=1)
    assert NervanaObject.be is custom


def test_a_runtime_is_registered_by_an_entry_point(custom):
    assert "mine" in Backend.backend_choices()
    assert (custom.name, NervanaObject.be) == ("mine", custom)
    x = custom.array([[0.5, -1.0], [2.0, 0.0]], name="x")
    tree = custom.sum(1 / (1 + custom.exp(-x)))
    s = 1 / (1 + np.exp(-x.get()))
    np.testing.assert_allclose(tree.asnumpyarray(), [[s.sum()]], rtol=1e-6)
    np.testing.assert_allclose(Autodiff(tree, custom).get_grad_asnumpyarray(x), s * (1 - s), rtol=1e-5)
    x[1:] = x[:-1] + custom.rand(1, 2)
    np.testing.assert_array_equal(custom.rand(3, 3).asnumpyarray(), second_draw())
    assert "mine" in repr(x)
    assert backend.info()[-1][:2] == ("mine", True)
    assert "mine" in repr(backend.info()).splitlines()[-1]


def second_draw() -> np.ndarray:
    be = Backend("cpu", rng_seed=2)
    be.rand(1, 2).astensor()
    return be.rand(3, 3).asnumpyarray()


def test_features_that_a_runtime_lacks_are_rejected_with_a_hint(custom):
    x = custom.ones((3, 3))
    for index in (slice(None, None, -1), (0, slice(2, 0, -1))):
        with pytest.raises(IndexError, match=r"expected a step >= 1 on the runtime 'mine', got -\d\. Use be\.take"):
            x[index]
    with pytest.raises(IndexError, match=r"expected a step >= 1 on the runtime 'mine', got -1\. Use be\.take"):
        custom.build("slice", x * 2, index=((2, 3, -1), (0, 3, 1))).astensor()
    assert x[::2].shape == (2, 3)
    with pytest.raises(
        TypeError, match=r"backend 'mine': expected one of the dtypes float32, int32, int64, .*got 'float64'"
    ):
        custom.ones((2, 2), dtype="float64")
    with pytest.raises(TypeError, match=r"backend 'mine': expected one of the dtypes .*got 'float64'"):
        gen_backend("mine", datatype="float64")


def test_a_broken_entry_point_affects_only_its_name(monkeypatch):
    register(monkeypatch, "broken", "no_such_module:Thing")
    assert "broken" in Backend.backend_choices()
    with pytest.raises(ImportError, match="broken"):
        gen_backend("broken")
    assert gen_backend("cpu").ones((1, 1)).get() == 1


@pytest.mark.parametrize("value", ["json", "json:dumps", "json:JSONDecoder", "os:sep"])
def test_an_entry_point_that_is_no_runtime_is_rejected(monkeypatch, value):
    register(monkeypatch, "broken", value)
    message = f"the runtime 'broken': expected a subclass of Runtime as its entry point, got '{value}'. Register"
    with pytest.raises(ImportError, match=message):
        gen_backend("broken")
    assert backend.info()[-1].details.startswith(message)


class IncompleteRuntime(CustomRuntime):
    def __init__(self, device_id: int = 0) -> None:
        pass


class ReplacedRuntime(CustomRuntime):
    name = "cpu"


def without(*names: str) -> Any:
    """Return a runtime class that lacks members of a custom one."""
    return type("Mine", (Runtime,), {x: vars(CustomRuntime)[x] for x in ("name", "xp", "put", "get") if x not in names})


@pytest.mark.parametrize(
    ("lacking", "message"),
    [
        (("put",), "no put"),
        (("get",), "no get"),
        (("name", "xp"), "no name and no xp"),
        (("xp", "get"), "no xp and no g"),
    ],
)
def test_a_runtime_names_what_it_lacks(lacking, message):
    with pytest.raises(TypeError, match=f"runtime Mine: expected name, xp, put and get, got {message}.*Define them"):
        without(*lacking)()
    assert without()().name == "mine"


@pytest.mark.parametrize(
    ("create", "error", "message"),
    [
        (IncompleteRuntime, TypeError, r" IncompleteRuntime: expected a constructor that calls super\(\)\.__init__\("),
        (
            ReplacedRuntime,
            ValueError,
            r" ReplacedRuntime: expected a name that no built-in runtime has, got 'cpu'\. Set",
        ),
        (
            lambda: CustomRuntime,
            TypeError,
            r": expected a name or an instance of Runtime, got <cl.* an instance, Custom",
        ),
        (
            lambda: np,
            TypeError,
            r": expected a name or an instance of Runtime, got <module 'numpy' .* Pass a name, suc",
        ),
        (lambda: ["cpu"], TypeError, r": expected a name or an instance of Runtime, got \['cpu'\]\. Pass a name, such"),
    ],
)
def test_gen_backend_rejects_what_is_no_complete_runtime(monkeypatch, create, error, message):
    live = gen_backend("cpu")
    for call in (gen_backend, Backend):
        with pytest.raises(error, match=f"^runtime{message}"):
            call(create())
    assert NervanaObject.be is live
    register(monkeypatch, "mine", f"{__name__}:IncompleteRuntime")
    assert backend.info()[-1][:2] == ("mine", False)


def test_the_dtypes_of_a_runtime_are_those_of_its_namespace():
    import array_api_strict

    class Mine(without()):
        xp = array_api_strict

        def put(self, array: Any) -> Any:
            return self.xp.asarray(array)

    be = gen_backend(Mine())
    assert "uint16" in be.runtime.dtypes
    with pytest.raises(TypeError, match=r"backend 'mine': expected one of the dtypes float32, .*got 'float16'"):
        be.ones((2, 2), dtype="float16")
    assert be.ones((0, 2)).reshape((2, 0)).get().shape == (2, 0)
    assert "float16" in without()().dtypes


# --- available runtimes ---------------------------------------------------------------------------------------------


def test_info_describes_every_runtime_or_how_to_install_it():
    rows = {name: (usable, about) for name, usable, about in backend.info()}
    assert list(rows) == list(BUILTIN_RUNTIMES)
    assert {name for name, (usable, _) in rows.items() if usable} == set(RUNTIMES)
    assert np.__version__ in rows["cpu"][1]
    for name in ABSENT:
        assert BUILTIN_RUNTIMES[name][2] in rows[name][1]
    lines = repr(backend.info()).splitlines()
    assert [line.split()[:2] for line in lines] == [
        [name, "yes" if rows[name][0] else "no"] for name in BUILTIN_RUNTIMES
    ]


NEEDS = {
    "mkl": ("mkl", 'pip install "neonlite[mkl]"'),
    "torch": ("torch", "pip install torch"),
    "gpu": ("cupy", 'pip install "neonlite[cuda13]"'),
    "strict": ("array_api_strict", "pip install array-api-strict"),
}


@pytest.mark.parametrize("name", NEEDS)
def test_a_missing_requirement_of_a_runtime_is_named_with_the_pip_command(monkeypatch, name):
    package, pip = NEEDS[name]
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, BUILTIN_RUNTIMES[name][0], raising=False)
    if blas := sys.modules.get("neonlite.backend.runtimes.mkl"):  # it caches the library
        monkeypatch.setattr(blas, "load_library", blas.load_library.__wrapped__)
    with pytest.raises(ImportError) as caught:
        gen_backend(name)
    message = str(caught.value)
    assert message.startswith(f"the runtime '{name}' cannot be loaded: ")
    assert f"Install it: {pip}" in message
    (row,) = (x for x in backend.info() if x.name == name)
    assert row == (name, False, message)
    assert gen_backend("cpu").ones((1, 1)).get() == 1


def test_the_default_runtime_is_mkl_if_it_is_installed_and_else_cpu(monkeypatch):
    assert gen_backend().name == ("mkl" if "mkl" in RUNTIMES else "cpu")
    monkeypatch.setitem(sys.modules, "mkl", None)
    assert default_runtime() == "cpu"
    assert gen_backend().name == "cpu"


DOCS = Path(__file__).parents[3] / "docs"

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
