"""The runtimes that tests run on, and assertions about what a runtime does not support."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

from neonlite import Backend, cleanup_backend, gen_backend
from neonlite.backend.measure import MemoryUsage
from neonlite.backend.runtimes import BUILTIN_RUNTIMES, load_runtime

RUNTIMES = ["cpu", "strict"]
ABSENT: dict[str, str] = {}  # runtime -> why nothing runs on it

for name, package in {"mkl": "mkl", "torch": "torch", "gpu": "cupy"}.items():
    if find_spec(package) is None:
        ABSENT[name] = f"{package} is not installed"
        continue
    try:
        load_runtime(name)
        RUNTIMES.append(name)
    except (ImportError, RuntimeError) as error:
        ABSENT[name] = str(error)

if os.environ.get(
    "NEONLITE_TEST_SIMULATED"
):  # CUDA kernels, compiled by a C++ compiler: each takes a tenth of a second
    BUILTIN_RUNTIMES["simulated"] = ("neonlite.backend.runtimes.cuda.simulator", "SimulatedGPU", "a C++ compiler")
    RUNTIMES.append("simulated")
RUNTIMES_WITH_ARENA = [name for name in RUNTIMES if name in ("cpu", "mkl")]


def new_backend(name: str, **options: Any) -> Backend:
    """Return a new backend. gen_backend alone may return a live one, with the tensors of another test."""
    cleanup_backend()
    return gen_backend(name, rng_seed=1, **options)


def back(be: Backend) -> int:
    """Return the step of a reversed view; 1 if the runtime does not support negative strides."""
    return -1 if be.runtime.supports_negative_strides else 1


def refused(be: Backend, act: Callable[[], Any]) -> bool:
    """Call ``act``; return whether the runtime refused it, as it must if it does not support negative strides."""
    try:
        act()
    except IndexError as error:
        if be.runtime.supports_negative_strides or f"expected a step >= 1 on the runtime {be.name!r}, got" not in str(
            error
        ):
            raise
        return True
    return False


def assert_same_memory(be: Backend, memory: MemoryUsage, expected: MemoryUsage) -> None:
    """Assert that both are equal; on a GPU with cuDNN, all but the workspaces, whose sizes are those of its plans."""
    if be.name == "gpu" and be.runtime.driver.cudnn:
        memory, expected = (m._replace(workspaces=0, peak=0) for m in (memory, expected))
    assert memory == expected


def lacks_any(be: Backend, *dtypes: str) -> bool:
    """Return whether the runtime lacks one of the dtypes; it stores booleans as another one."""
    return any(dtype != "bool" and dtype not in be.runtime.dtypes for dtype in dtypes)


def lacks(be: Backend, *dtypes: str) -> bool:
    """Return whether the runtime lacks one of the dtypes, and assert that its error names the dtype."""
    lacking = set(dtypes) - set(be.runtime.dtypes)
    for dtype in lacking:
        with pytest.raises(
            TypeError,
            match=rf"backend {be.name!r}: expected one of the dtypes {be.runtime.dtypes[0]}, .*, got '{dtype}'",
        ):
            be.zeros((1, 1), dtype=dtype)
    return bool(lacking)
