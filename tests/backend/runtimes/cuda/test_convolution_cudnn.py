"""cuDNN convolution with each supported frontend version, and loading of NVIDIA's libraries from pip wheels."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.simulated_gpu import by_cudnn
from helpers.standin_cudnn import TENSOR_CORES, Frontend
from helpers.standin_cupy import installed

from neonlite import Backend
from neonlite.backend.runtimes.cuda import convolution, libraries
from neonlite.backend.runtimes.cuda.graphs import current_capture


def convolve(be: Backend, n: int = 1) -> Any:
    layer = be.conv_layer("float32", 2, 3, 4, 1, 5, 5, 1, 3, 3)
    out = be.zeros(layer.dimO)
    for _ in range(n):
        be.fprop_conv(layer, be.ones(layer.dimI), be.ones(layer.dimF), out)
    return out.get()


@pytest.mark.parametrize("version", ["1.18.0", "1.19.0", "1.27.0", "1.28.0"])
def test_cudnn_convolves_with_each_version_of_its_frontend(version: str) -> None:
    be, frontend = by_cudnn(Frontend(version))
    assert (convolve(be, 2) == 27).all()
    assert [graph.ran for graph in frontend.graphs] == [[None, None]]


def test_a_missing_library_of_cuda_warns_once_and_im2col_is_used() -> None:
    be, frontend = by_cudnn(Frontend(cudart=lambda: False))
    with pytest.warns(
        RuntimeWarning, match="cuDNN cannot compute fprop of ConvLayer.*Unable to load any libcudart"
    ) as warned:
        assert (convolve(be, 2) == 27).all()
    assert len(warned) == len(frontend.graphs) == 1


def test_a_plan_that_cannot_run_warns_once_and_im2col_is_used() -> None:
    be, frontend = by_cudnn(Frontend(fails="execute"))
    with pytest.warns(RuntimeWarning, match="cuDNN cannot compute fprop of ConvLayer.*libnvrtc") as warned:
        assert (convolve(be, 2) == 27).all()
    assert len(warned) == 1
    assert [graph.ran for graph in frontend.graphs] == [[None]]


@pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are simulated with g++, which is not here")
def test_a_plan_that_cannot_be_captured_is_run_and_stays_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    with installed():
        monkeypatch.setitem(sys.modules, "cudnn", frontend := Frontend())
        be = Backend("gpu")
        layer = be.conv_layer("float32", 2, 3, 4, 1, 5, 5, 1, 3, 3)
        i, f, o = (be.ones(shape) for shape in (layer.dimI, layer.dimF, layer.dimO))

        def block() -> None:
            frontend.fails = "execute" if current_capture() else ""
            be.fprop_conv(layer, i, f, o)

        for _ in range(5):
            be.replay("block", block, [i, f, o])
        assert "cuDNN: libnvrtc" in repr(be.graphs)
        assert (o.get() == 27).all()
        assert len(frontend.graphs) == 1


@pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are simulated with g++, which is not here")
def test_a_graph_keeps_the_plans_that_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with installed():
        monkeypatch.setitem(sys.modules, "cudnn", Frontend())
        be = Backend("gpu")
        layer = be.conv_layer("float32", 2, 3, 4, 1, 5, 5, 1, 3, 3)
        i, f, o = (be.ones(shape) for shape in (layer.dimI, layer.dimF, layer.dimO))
        for _ in range(4):
            be.replay("convolve", lambda: be.fprop_conv(layer, i, f, o), [i, f, o])
        (block,) = be.graphs.blocks.values()
        (plan,) = [x for x in block.capture.keepalive if isinstance(x, convolution.CudnnPlan)]
        assert plan in be.runtime.driver.cudnn.threads.get().plans.values()


def test_an_error_that_is_not_cudnns_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    be, _ = by_cudnn()

    def fail(*_: Any) -> None:
        raise MemoryError("out of memory")

    monkeypatch.setattr(be.runtime, "allocate_tracked", fail)
    with pytest.raises(MemoryError, match="out of memory"):
        convolve(be)


def test_autotuning_stops_after_eight_built_plans_however_many_are_deselected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEONLITE_AUTOTUNE", "1")
    monkeypatch.setattr(convolution, "MAX_AUTOTUNE_PLANS", 2)
    be, frontend = by_cudnn()
    be.runtime.driver.times = iter([2.0, 1.0])
    convolve(be)
    (graph,) = frontend.graphs
    first = TENSOR_CORES
    assert graph.ran == [first, first + 1, first + 1]


def test_a_plan_without_memory_for_its_workspace_is_skipped_when_plans_are_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NEONLITE_AUTOTUNE", "1")
    be, frontend = by_cudnn()
    allocate_tracked = be.runtime.allocate_tracked

    def allocate(kind: str, purpose: str, nbytes: int, make: Any) -> Any:
        if "(cudnn)" in purpose and nbytes > 2500:
            raise MemoryError("out of memory")
        return allocate_tracked(kind, purpose, nbytes, make)

    monkeypatch.setattr(be.runtime, "allocate_tracked", allocate)
    assert (convolve(be) == 27).all()
    assert frontend.graphs[0].ran == [TENSOR_CORES + 1, TENSOR_CORES + 2, TENSOR_CORES + 2]


def test_the_workspace_of_a_plan_is_limited_to_a_gibibyte_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting, limit in [("", 2**30), ("5000", 5000)]:
        monkeypatch.setenv("NEONLITE_WORKSPACE", setting)
        be, frontend = by_cudnn()
        convolve(be)
        assert [graph.max_workspace_bytes for graph in frontend.graphs] == [limit]


# --- the plan table ---


NAME = "fprop float32 NCHW 3x1x5x5x2 3x1x3x3x4 4x1x3x3x2 0x0x0 1x1x1 1x1x1"


def write_table(folder: Path, monkeypatch: pytest.MonkeyPatch, contents: object) -> None:
    """Write a file for NEONLITE_PLANS, unless it is None."""
    path = folder / "plans.json"
    if contents is not None:
        text = contents if isinstance(contents, str) else json.dumps(contents)
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
    monkeypatch.setenv("NEONLITE_PLANS", str(path))


@pytest.mark.parametrize(("index", "ran"), [(TENSOR_CORES + 1, TENSOR_CORES + 1), (TENSOR_CORES - 1, None), (99, None)])
def test_the_engine_of_the_plan_table_runs_unless_it_cannot_be_built(
    index: int, ran: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_table(tmp_path, monkeypatch, {"cudnn": 91900, "plans": {NAME: f"eng{index}_k2=1"}})
    be, frontend = by_cudnn()
    assert (convolve(be, 2) == 27).all()
    (graph,) = frontend.graphs
    assert graph.ran == [ran, ran]
    assert ("build_plans" in graph.steps) == (ran is None)


@pytest.mark.parametrize(
    "name",
    [
        NAME.replace("fprop", "fprop+bias"),
        NAME.replace("fprop", "wgrad"),
        NAME.replace("float32", "TF32"),
        NAME.replace("NCHW", "NHWC"),
        NAME.replace("3x1x5x5x2", "3x1x5x5x4"),
    ],
)
def test_an_engine_for_another_convolution_is_not_used(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_table(tmp_path, monkeypatch, {"cudnn": 91900, "plans": {name: f"eng{TENSOR_CORES + 1}_k2=1"}})
    be, frontend = by_cudnn()
    convolve(be)
    assert frontend.graphs[0].ran == [None]


def test_each_pass_has_an_entry_in_the_plan_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = {NAME.replace("fprop", x): f"eng{TENSOR_CORES + n}_k2=1" for n, x in enumerate(["wgrad", "dgrad"])}
    engines[NAME.replace("fprop", "fprop+bias+relu")] = f"eng{TENSOR_CORES + 2}_k2=1"
    write_table(tmp_path, monkeypatch, {"cudnn": 91900, "plans": engines})
    be, frontend = by_cudnn()
    layer = be.conv_layer("float32", 2, 3, 4, 1, 5, 5, 1, 3, 3)
    i, f, o = (be.ones(shape) for shape in (layer.dimI, layer.dimF, layer.dimO))
    be.update_conv(layer, i, o, be.empty(layer.dimF))
    be.bprop_conv(layer, f, o, be.empty(layer.dimI))
    be.fprop_conv(layer, i, f, o, bias=be.ones((4, 1)), relu=True)
    assert (o.get() == 28).all()
    assert [graph.ran for graph in frontend.graphs] == [[TENSOR_CORES], [TENSOR_CORES + 1], [TENSOR_CORES + 2]]


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        ({"cudnn": 90100, "plans": {NAME: f"eng{TENSOR_CORES + 1}_k2=1"}}, "measured with cuDNN 90100, and 91900 is"),
        ({"plans": {}}, "KeyError"),
        ({"cudnn": 91900, "plans": [NAME]}, "AttributeError"),
        ([NAME], "TypeError"),
        ("{", "JSONDecodeError"),
        ("\udcff", "UnicodeDecodeError"),
        (None, "FileNotFoundError"),
    ],
)
def test_a_plan_table_of_another_cudnn_or_a_broken_one_is_ignored_with_one_warning(
    contents: object, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_table(tmp_path, monkeypatch, contents)
    with pytest.warns(RuntimeWarning, match=f"the plan table NEONLITE_PLANS=.*plans.json is not used: .*{reason}") as w:
        be, frontend = by_cudnn()
    assert len(w) == 1
    assert (convolve(be, 2) == 27).all()  # without another warning, which would be an error
    assert frontend.graphs[0].ran == [None, None]


# --- libraries -------------------------------------------------------------------------------------------------------


def test_cudnns_libraries_are_loaded_before_its_frontend_asks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(libraries, "load_library", loaded.append)
    monkeypatch.setitem(sys.modules, "cudnn", frontend := Frontend(cudart=lambda: "cudart" in loaded))
    assert convolution.load_frontend() is frontend
    be, _ = by_cudnn(frontend)
    assert (convolve(be) == 27).all()  # without a warning, which would be an error
    assert {"cudart", "cudnn"} <= {*loaded}


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder with a test library, in the folder structure of NVIDIA's wheels."""
    folder = tmp_path / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True)
    (tmp_path / "code.c").write_text("int answer(void) { return 42; }")
    name = "libneonlitetest.so.13"
    command = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{name}", str(tmp_path / "code.c"), "-o", str(folder / name)]
    try:
        subprocess.run(command, check=True)
    except FileNotFoundError:
        pytest.skip("gcc is not here")
    return tmp_path


LOADER = "/lib64/ld-linux-x86-64.so.2"


@pytest.mark.skipif(not os.path.exists(LOADER), reason="the loader of Linux on x86-64 is not here")
@pytest.mark.parametrize("first", [False, True])
def test_a_library_of_a_wheel_is_found_by_its_bare_name_once_it_is_loaded(wheels: Path, first: bool) -> None:
    program = "import ctypes; from neonlite.backend.runtimes.cuda.libraries import load_library\n"
    program += "assert load_library('neonlitetest').answer() == 42\n" if first else ""
    program += "print(ctypes.CDLL('libneonlitetest.so.13').answer())"
    paths = os.pathsep.join([str(wheels), str(Path(__file__).parents[4]), *filter(None, sys.path)])
    # --inhibit-cache: the loader finds only system libraries, as on a machine with wheels alone
    command = [LOADER, "--inhibit-cache", os.path.realpath(sys.executable), "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths})
    assert (done.returncode == 0) == first, done.stderr
    assert done.stdout.strip() == ("42" if first else "")


def test_a_library_comes_from_where_nvidias_pathfinder_finds_it(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = next(wheels.glob("nvidia/*/lib/*"))
    finder = SimpleNamespace(load_nvidia_dynamic_lib=lambda name: SimpleNamespace(abs_path=str(path)))
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace(pathfinder=finder))
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", finder)
    libraries.load_library.cache_clear()
    assert libraries.load_library("neonlitetest").answer() == 42
    libraries.load_library.cache_clear()


def test_of_several_versions_of_a_library_the_newest_is_loaded(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (new,) = wheels.glob("nvidia/*/lib/*")
    old = wheels / "nvidia" / "other" / "lib" / "libneonlitetest.so.9"
    old.parent.mkdir(parents=True)
    shutil.copy(new, old)
    monkeypatch.setattr(sys, "path", [str(wheels), *sys.path])
    libraries.load_library.cache_clear()
    assert libraries.load_library("neonlitetest")._name == str(new)
    libraries.load_library.cache_clear()


def test_a_library_that_is_not_installed_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    folder = tmp_path / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True)
    assert libraries.load_library("neonlitenone") is None
    (folder / "libneonlitebroken.so.13").write_text("no library")
    assert libraries.load_library("neonlitebroken") is None
