"""Kernel compilation by NVRTC: options and the binary cache, with a stand-in for CuPy."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import nvrtc
from helpers.standin_cupy import Machine, installed

from neonlite import Backend
from neonlite.backend.runtimes.cuda.codegen import PREAMBLE
from neonlite.backend.runtimes.cuda.convolution import reorder_kernel
from neonlite.backend.runtimes.cuda.kernels import kernel_source
from neonlite.backend.runtimes.cuda.libraries import OPTIONS, kernel_name

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are simulated with g++, which is not here")
needs_sse = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="denormals are flushed by SSE")
DENORMAL = np.array([[1e-40, -1e-45, 1e-38, 2.0]], np.float32)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setenv("NEONLITE_CACHE", str(tmp_path / "cache"))
    with installed() as simulated:
        yield simulated


def halved(be: Backend) -> Any:
    out = be.zeros(DENORMAL.shape)
    out[:] = be.array(DENORMAL) * 0.5
    return out.get()


@needs_sse
def test_denormal_numbers_are_kept_as_on_the_host(machine: Machine) -> None:
    np.testing.assert_array_equal(halved(Backend("gpu")), DENORMAL * np.float32(0.5))


@needs_sse
def test_the_stand_in_flushes_denormal_numbers_where_cupy_compiles_by_itself(machine: Machine) -> None:
    cupy = sys.modules["cupy"]
    source = PREAMBLE + 'extern "C" __global__ void kernel(float* y, const float* x, long long n)\n'
    source += "{ for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] * 0.5f; }"
    x, y = cupy.array(DENORMAL), cupy.zeros(DENORMAL.shape, np.float32)
    cupy.RawKernel(source, "kernel", OPTIONS).kernel((1, 1), (32,), (y.data.ptr, x.data.ptr, 4))
    np.testing.assert_array_equal(y.get(), [[0, 0, 0, 1]])


@pytest.mark.parametrize("option", ["--fmad=false", "--ftz=false"])
def test_nvidias_compiler_obeys_the_options(option: str) -> None:
    if nvrtc.library() is None:
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc-cu12")
    be = Backend("cpu")
    text = be.kernel(be.ones((64, 96)) * 3 + be.ones((1, 96)))
    trace = {"--fmad=false": "fma.", "--ftz=false": ".ftz"}[option]
    others = (*(x for x in OPTIONS if x != option), option.replace("false", "true"))
    assert [trace in nvrtc.compiled(text, "sm_90", options).assembly for options in (OPTIONS, others)] == [False, True]


def test_a_binary_is_compiled_once_for_all_processes_and_again_when_its_file_is_broken(machine: Machine) -> None:
    wanted = halved(Backend("gpu"))
    cache = Path(os.environ["NEONLITE_CACHE"])
    (path,) = cache.glob("*.cubin")
    assert machine.compilations == 1
    np.testing.assert_array_equal(halved(Backend("gpu")), wanted)
    assert machine.compilations == 1
    path.write_bytes(path.read_bytes()[:-1])
    np.testing.assert_array_equal(halved(Backend("gpu")), wanted)
    assert machine.compilations == 2
    assert [*cache.glob("*.cubin*")] == [path]


@pytest.mark.parametrize("changed", ["capability", "version", "options"])
def test_a_binary_is_for_one_gpu_one_compiler_and_its_options(
    changed: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    halved(Backend("gpu"))
    if changed == "capability":
        monkeypatch.setattr(sys.modules["cupy"].cuda.Device, "compute_capability", "100")
    elif changed == "version":
        monkeypatch.setattr(sys.modules["cupy"].cuda.nvrtc, "getVersion", lambda: (13, 9))
    else:
        monkeypatch.setattr("neonlite.backend.runtimes.cuda.libraries.OPTIONS", ("-std=c++20",))
    halved(Backend("gpu"))
    assert machine.compilations == 2


def test_kernels_are_compiled_with_a_warning_where_the_cache_is_read_only(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = halved(Backend("gpu"))
    for path in Path(os.environ["NEONLITE_CACHE"]).glob("*.cubin"):
        path.unlink()

    def fail(*_: Any) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr("neonlite.backend.runtimes.cuda.libraries.write_atomic", fail)
    with pytest.warns(RuntimeWarning, match=r"cannot be cached in .*cache: read-only\. Set NEONLITE_CACHE to another"):
        np.testing.assert_array_equal(halved(Backend("gpu")), wanted)
    assert machine.compilations == 2


def test_a_kernel_has_the_name_of_its_ops_or_of_what_it_does() -> None:
    be = Backend("cpu")
    x = be.ones((4, 6))
    names = [kernel_name(be.kernel(tree).replace("stage_1", "kernel")) for tree in (be.exp(x) + 1, be.exp(x * 2) + 1)]
    assert [name.rpartition("_")[0] for name in names] == ["neonlite_exp_add", "neonlite_mul_exp_add"]
    assert kernel_name(kernel_source(reorder_kernel((4,)), "float32")).startswith("neonlite_reorder_images_and_filters")


@pytest.mark.skipif(nvrtc.library() is None, reason="NVRTC is not installed")
def test_the_compiler_gives_a_kernel_its_name() -> None:
    source = kernel_source(reorder_kernel((4,)), "float32")
    compiled = nvrtc.compiled(source, "sm_90", (*OPTIONS, f"-Dkernel={kernel_name(source)}"))
    assert f".entry {kernel_name(source)}(" in compiled.assembly
