"""oneDNN's library: where it is found, threads, caches, and NumPy instead of it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.onednn_primitives import HERE, near, needs, normal

from neonlite import Backend
from neonlite.backend.primitives import ReferencePrimitives
from neonlite.backend.runtimes import load_runtime
from neonlite.backend.runtimes.onednn import bindings, convolution, post_ops


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="tells no process what it has loaded")
def test_to_import_neonlite_does_not_load_it() -> None:
    modules = "neonlite.backend.runtimes.onednn.convolution, neonlite.backend.runtimes.onednn.post_ops"
    code = f"import {modules}; print(open('/proc/self/maps').read())"
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "libdnnl" not in got.stdout


SPINNING = """
import os
from neonlite.backend.runtimes.onednn.bindings import load_library
load_library()
print(os.environ.get("GOMP_SPINCOUNT"))
"""


@needs
@pytest.mark.skipif(sys.platform != "linux", reason="GNU's OpenMP is not what oneDNN brings here")
@pytest.mark.parametrize(
    ("given", "looks"),
    [({}, 6000), ({"GOMP_SPINCOUNT": "7"}, 7), ({"OMP_WAIT_POLICY": "passive"}, 0)],
    ids=["nothing said", "a number", "a policy"],
)
def test_its_threads_spin_briefly_unless_the_environment_sets_otherwise(given: dict[str, str], looks: int) -> None:
    others = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    environment = others | given | {"OMP_DISPLAY_ENV": "verbose"}
    got = subprocess.run([sys.executable, "-c", SPINNING], env=environment, capture_output=True, text=True, check=True)
    assert f"GOMP_SPINCOUNT = '{looks}'" in got.stderr
    assert got.stdout.strip() == str(given.get("GOMP_SPINCOUNT"))  # and child processes do not inherit it


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder, the only one in which oneDNN is looked for, under a name that no system has."""
    monkeypatch.delenv("NEONLITE_ONEDNN", raising=False)
    monkeypatch.setattr(bindings, "library_folders", lambda: [tmp_path])
    monkeypatch.setattr(bindings, "LIBRARY_FILE", "libdnnl.so.3.of.a.test")
    monkeypatch.setattr(bindings, "load_library", bindings.load_library.__wrapped__)
    monkeypatch.setattr(bindings, "get_library", bindings.get_library.__wrapped__)
    return tmp_path


def test_a_missing_library_error_names_the_searched_folders(nowhere: Path) -> None:
    with pytest.raises(
        ImportError,
        match=rf"libdnnl.so.3.of.a.test is not in {nowhere}. Install it: pip install \"neonlite\[onednn\]\"",
    ):
        bindings.load_library()
    (nowhere / "libdnnl.so.2").touch()
    with pytest.raises(
        ImportError, match=f"found {nowhere}/libdnnl.so.2, of another API version. Install it: pip install"
    ):
        bindings.load_library()
    gain = "which makes convolutional and recurrent networks about twice as fast"
    assert bindings.version_info().startswith(f"without oneDNN, {gain}: libdnnl.so.3.of.a.test is not in")


def test_a_file_that_is_no_library_is_named(nowhere: Path) -> None:
    (nowhere / bindings.LIBRARY_FILE).write_text("This is no library.")
    with pytest.raises(ImportError, match=rf"oneDNN cannot be loaded: {nowhere}.* Install it: pip install"):
        bindings.load_library()
    assert bindings.get_library() is None


def test_another_version_is_named() -> None:
    older = bindings.Version(2, 7, 3)

    class Ask:
        restype: Any = None

        def __call__(self) -> Any:
            return ctypes.pointer(older)

    with pytest.raises(
        ImportError, match=r"expected version 3.x, got 2.7.3 in there/libdnnl.so. Install it: pip install"
    ):
        bindings.Library(SimpleNamespace(dnnl_version=Ask()), "there/libdnnl.so")
    with pytest.raises(
        ImportError, match=r"onednn: expected a library with dnnl_version, got there/libx.so. Install it: pip install"
    ):
        bindings.Library(SimpleNamespace(), "there/libx.so")


def test_without_it_numpy_does_all(nowhere: Path, plain: ReferencePrimitives, cpu: Backend) -> None:
    made = convolution.OneDNNConvolution(load_runtime("cpu"))
    layer = cpu.conv_layer("float32", 2, 3, 4, 1, 6, 6, 1, 3, 3)
    pooled = cpu.pool_layer("float32", "max", 2, 3, 1, 6, 6, 1, 1, 2, 2)
    rng = np.random.default_rng(10)
    i, f = normal(rng, layer.dimI, "float32"), normal(rng, layer.dimF, "float32")
    (o, wanted), (p, pooled_by_it) = (np.zeros((2, *shape), np.float32) for shape in (layer.dimO, pooled.dimO))
    made.conv_fprop(layer, i, f, o, 1.0, 0.0)
    plain.conv_fprop(layer, i, f, wanted, 1.0, 0.0)
    near(o, wanted, layer)
    made.pool_fprop(pooled, i, p, None, 0.0)
    plain.pool_fprop(pooled, i, pooled_by_it, None, 0.0)
    np.testing.assert_array_equal(p, pooled_by_it)
    x, out = i.reshape(-1), np.empty(i.size, np.float32)
    post_ops.EltwiseFunction(post_ops.ELTWISE_LOGISTIC, 1, post_ops.logistic_numpy)(x, out)
    near(out, 1 / (1 + np.exp(-x.astype(float))), "sig")


def test_the_environment_can_do_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEONLITE_ONEDNN", "0")
    assert bindings.get_library.__wrapped__() is None
    assert bindings.version_info() == "without oneDNN (NEONLITE_ONEDNN=0)"


@needs
def test_an_error_of_onednn_names_the_call_and_the_reason() -> None:
    assert HERE is not None
    with pytest.raises(
        bindings.UnsupportedError, match=r"oneDNN 3\..*: dnnl_memory_desc_create_with_tag: invalid arguments"
    ):
        HERE.any_memory_desc((-1, 2))


@needs
def test_the_primitives_of_all_threads_together_are_bounded(
    made: convolution.OneDNNConvolution, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bindings.primitives, "capacity", 4)

    def use(first: int) -> None:
        for n in range(first, first + 5):
            made._get_row_sum((n, 2))
            assert len(bindings.primitives) <= 4

    bindings.primitives.clear()
    use(1)
    thread = threading.Thread(target=use, args=(3,))
    thread.start()
    thread.join()
    assert len({ident for ident, *_ in bindings.primitives}) == 1


@needs
def test_each_thread_has_its_own_primitives(made: convolution.OneDNNConvolution) -> None:
    found = [made._get_row_sum((3, 2))]
    thread = threading.Thread(target=lambda: found.append(made._get_row_sum((3, 2))))
    thread.start()
    thread.join()
    assert made._get_row_sum((3, 2)) is found[0]
    assert None is not found[1] is not found[0]
