"""GPU errors: out of memory, another device, a fork, a damaged cache. Kernels run on the stand-in.

Tests ``neonlite/backend/runtimes/cuda/executor.py``.
"""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.standin_cupy import Machine, installed

from neonlite import Backend, cleanup_backend, gen_backend
from neonlite.backend.runtimes.cuda import libraries
from neonlite.backend.runtimes.cuda.executor import shared_cublas
from neonlite.backend.runtimes.cuda.libraries import Cublas, PerThread
from neonlite.backend.runtimes.cuda.simulator import SimulatedDriver, SimulatedGPU
from neonlite.backend.runtimes.numpy import NumPyRuntime

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are simulated with g++, which is not here")


@pytest.fixture(autouse=True)
def no_backend_afterwards() -> Iterator[None]:
    yield
    cleanup_backend()


# --- out of memory ---

GEOMETRY = (np.float32, 2, 8, 8, 1, 30, 30, 1, 3, 3, 0, 1, 1)


def convolution(be: Backend) -> Callable[[], Any]:
    layer = be.conv_layer(*GEOMETRY)
    tensors = [be.ones(shape) for shape in (layer.dimI, layer.dimF, layer.dimO)]
    return lambda: be.fprop_conv(layer, *tensors)


def temporaries(be: Backend) -> Callable[[], Any]:
    out = be.zeros((1, 1), name="out")
    return lambda: out.__setitem__(slice(None), be.sum(be.rand(300, 400)))


COLUMNS = r"workspace of a primitive \(columns\), 518 kB: 'gpu' holds 118 kB: "
TEMPORARIES = r"temporaries of op-trees, 480 kB: 'gpu' holds 4 B: "
OUT_OF_MEMORY = {
    "a convolution's columns": (convolution, COLUMNS, ""),
    "temporaries": (temporaries, TEMPORARIES, r"\(while evaluating out \(1, 1\)\)"),
}


@pytest.mark.parametrize("case", OUT_OF_MEMORY)
def test_an_out_of_memory_error_names_the_purpose_and_the_bytes_and_nothing_stays_allocated(case: str) -> None:
    make, words, more = OUT_OF_MEMORY[case]
    with installed() as machine:
        act = make(be := gen_backend("gpu", rng_seed=1))
        before, machine.memory = be.memory(), 1000
        for _ in range(2):
            with pytest.raises(
                MemoryError,
                match=f"out of memory allocating {words}tensors .*on the device.*Reduce the batch size.*{more}",
            ):
                act()
            assert be.memory() == before
        machine.memory = 2**30
        act()
        assert be.memory().total > before.total


def test_an_out_of_memory_error_of_the_cpu_names_the_purpose_too(monkeypatch: pytest.MonkeyPatch) -> None:
    be = Backend("cpu")
    out, x = be.zeros((1, 1), name="out"), be.ones((30, 40))
    before = be.memory()

    def fail(self: NumPyRuntime, nbytes: int) -> Any:
        raise MemoryError("Unable to allocate")

    with monkeypatch.context() as patch:
        patch.setattr(NumPyRuntime, "allocate", fail)
        with pytest.raises(
            MemoryError, match=r"out of memory allocating temporaries of op-trees, [\d.]+ kB.* evaluating out \(1, 1\)"
        ):
            out[:] = be.sum(be.dot(x, x.T) * 2)
    assert be.memory() == before
    out[:] = be.sum(be.dot(x, x.T) * 2)
    assert out.get() == 2 * 30 * 30 * 40


def test_cublas_retries_the_allocation_of_its_workspace() -> None:
    class Library:
        def __getattr__(self, name: str) -> Any:
            return lambda *_: 0

    def allocate(nbytes: int) -> tuple[Any, int]:
        if full:
            raise MemoryError("Out of memory")
        return None, 64

    full, cublas = True, Cublas(Library(), allocate, lambda: 5)
    for _ in range(2):
        with pytest.raises(MemoryError, match="cuBLAS: cannot allocate a workspace of 33554432 bytes: Out of memory"):
            cublas.handle()
    full = False
    assert cublas.handle() is cublas.handle()


def test_a_thread_gets_the_handle_of_one_that_has_ended_and_backends_of_a_gpu_share_theirs() -> None:
    created = []

    def create() -> str:
        created.append(f"handle {len(created)}")
        return created[-1]

    def in_a_thread(work: Callable[[], Any]) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(work).result()

    handles = PerThread(create)
    assert [handles.get(), handles.get()] == ["handle 0"] * 2
    assert [in_a_thread(handles.get), in_a_thread(handles.get)] == ["handle 1"] * 2
    assert in_a_thread(lambda: (handles.get(), in_a_thread(handles.get))) == ("handle 1", "handle 2")
    with installed():
        first, second = (Backend("gpu").runtime.driver for _ in range(2))
        library: Any = object()
        assert shared_cublas(library, first.cupy, 0) is shared_cublas(library, second.cupy, 0)
        assert shared_cublas(library, first.cupy, 0) is not shared_cublas(library, first.cupy, 1)


# --- values that are not accepted ---


def test_a_matrix_without_a_result_raises_value_error_although_cupy_does_not_check() -> None:
    with installed():
        import cupy

        be = Backend("gpu")
        singular, out = be.array([[1.0, 2], [2, 4]]), be.ones((2, 2))
        assert np.isnan(cupy.linalg.inv(singular._array).get()).all()
        for tree in (be.inv(singular), be.solve(singular, singular), be.cholesky(-singular)):
            with pytest.raises(ValueError, match=rf"be\.{tree.op}"):
                out[:] = tree
        assert (out.get() == 1).all()


def test_small_negative_numbers_are_not_written_to_unsigned_integers() -> None:
    with installed():
        be = Backend("gpu")
        u, i = be.ones((1, 2), dtype="uint8"), be.ones((1, 2), dtype="int8")
        for write in (u.set, u.fill):
            with pytest.raises(OverflowError, match="expected an integer from 0 to 255 for uint8, got -1"):
                write(-1)
        assert i.fill(-1).get().tolist() == [[-1, -1]]


def test_arrays_of_the_host_are_copied_by_the_array_api_and_refused_as_shared_memory() -> None:
    with installed():
        be = Backend("gpu")
        assert be.array_api.from_dlpack(np.arange(3)).tolist() == [0, 1, 2]
        with pytest.raises(BufferError, match=r"CPU arrays cannot be directly imported.*Copy it with be\.array"):
            be.from_dlpack(np.ones((2, 2), np.float32))


# --- another device, and after a fork ---


class Acts:
    """Operations of a backend, by name."""

    def __init__(self, be: Backend) -> None:
        self.be = be
        self.x, self.y, self.layer = be.ones((2, 2)), be.zeros((2, 2)), be.pool_layer(np.float32, "avg", 2, 1, 1, 4, 4)
        self.images, self.out = be.ones(self.layer.dimI), be.zeros(self.layer.dimO)
        self.block = lambda: self.y.__setitem__(slice(None), self.x * 4)
        self.acts: dict[str, Callable[[], Any]] = {
            "a cached launch": lambda: self.y.__setitem__(slice(None), self.x + 1),
            "a compiled kernel with another scalar": lambda: self.y.__setitem__(slice(None), self.x + self.number()),
            "a sum": lambda: self.y.__setitem__(slice(None), be.sum(self.x, axis=0)),
            "draws": lambda: be.fill_normal(self.y),
            "a product": lambda: be.compound_dot(self.x, self.x, self.y),
            "pooling": lambda: be.fprop_pool(self.layer, self.images, self.out),
            "a replay": lambda: be.replay("block", self.block, [self.x, self.y]),
            "an array of the host": lambda: self.y.__setitem__(slice(None), np.ones((2, 2))),
            "a new tensor": lambda: be.zeros((2, 2)),
            "a new tensor with values from the host": lambda: be.array([[1.0]]),
        }
        self.n = 1.0
        for act in self.acts.values():
            for _ in range(4):  # compiled, cached, captured
                act()
        assert "captured" in repr(be.graphs)
        # added now, since it must not have been compiled before
        self.acts["a new kernel"] = lambda: self.y.__setitem__(slice(None), be.exp(self.x) * 3)

    def number(self) -> float:
        self.n += 1
        return self.n

    def fail(self, words: str) -> None:
        """Assert that each operation raises a RuntimeError without a warning, and changes no value."""
        before = self.y.get().tolist()
        for name, act in self.acts.items():
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                with pytest.raises(RuntimeError) as caught:
                    act()
            assert re.search(words, str(caught.value)), f"{name}: {caught.value}"
        assert self.y.get().tolist() == before


def test_every_operation_raises_in_a_thread_on_another_device_and_nothing_runs() -> None:
    with installed(devices=2):
        import cupy

        acts = Acts(gen_backend("gpu", device_id=1))
        cupy.cuda.Device(0).use()
        acts.fail(
            r"gpu: expected current device 1 of this thread, got 0.*Call cupy\.cuda\.Device\(1\)\.use\(\) in this"
        )
        cupy.cuda.Device(1).use()
        for act in acts.acts.values():
            act()
        np.testing.assert_allclose(acts.y.get(), 3 * np.e, 1e-6)


def product(be: Backend) -> Callable[[], Any]:
    """Return a matrix product of strided operands, which are copied first."""
    x, out = be.ones((20, 20)), be.zeros((10, 10))
    return lambda: be.compound_dot(x[::2, ::2], x[::2, ::2], out)


@pytest.mark.parametrize(("make", "value"), [(convolution, 72), (product, 10)])
def test_a_buffer_is_not_allocated_on_another_device(
    make: Callable[[Backend], Callable[[], Any]], value: float
) -> None:
    with installed(devices=2):
        import cupy

        act = make(be := gen_backend("gpu", device_id=1))
        for _ in range(2):  # the second time the sizes are cached
            be.memory_tracker.clear_thread_cache()  # as in a new thread
            cupy.cuda.Device(0).use()
            with pytest.raises(RuntimeError, match="expected current device 1 of this thread, got 0"):
                act()
            assert be.memory().workspaces == 0
            cupy.cuda.Device(1).use()
            assert act().get().max() == value
            assert {x[0].device.id for key, x in be.memory_tracker.thread_cache.items() if isinstance(key, tuple)} == {
                1
            }


def test_a_cached_launch_does_not_check_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    with installed():
        import cupy

        be = gen_backend("gpu")
        x, y = be.ones((2, 2)), be.empty((2, 2))
        for _ in range(2):
            y[:] = x + 1
        monkeypatch.delattr(cupy.cuda.runtime, "getDevice")
        y[:] = x + 1


def forked(machine: Machine, be: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a fork after the backend was created."""
    machine.forked = True
    monkeypatch.setattr(be.runtime.driver, "process_id", -1)


def test_after_a_fork_everything_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    with installed() as machine:
        acts = Acts(be := gen_backend("gpu"))
        known = set(be._executor.compiled)
        forked(machine, be, monkeypatch)
        acts.fail(
            r'expected the process that created the backend, got a forked.*multiprocessing\.get_context\("spawn"\)'
        )
        assert set(be._executor.compiled) == known  # no source is cached as one that does not compile
        machine.forked = False
        with pytest.raises(RuntimeError, match="got a forked child"):  # although the driver would run it
            acts.acts["a replay"]()


def test_a_backend_that_is_created_in_a_forked_process_names_the_fork() -> None:
    with installed(forked=True), pytest.raises(RuntimeError) as caught:
        gen_backend("gpu")
    assert re.search(r'initialization error\. A process forked .* finds none\. .*"spawn"', str(caught.value))
    assert "CUDA_VISIBLE_DEVICES" not in str(caught.value)


def test_only_a_compile_error_marks_a_source_as_one_that_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    with installed():
        be = gen_backend("gpu")
        x, y = be.ones((2, 2)), be.zeros((2, 2))

        def fail(self: Any, source: str) -> Any:
            raise OSError("no space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(SimulatedDriver, "compile", fail)
            with pytest.raises(OSError, match="no space left"):
                y[:] = be.exp(x) * 5
        y[:] = be.exp(x) * 5
        np.testing.assert_allclose(y.get(), 5 * np.e, 1e-6)
        assert None not in be._executor.compiled.values()


# --- the cache of the simulated GPU --------------------------------------------------------------------------------

BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda contents: b"",
    "garbage": lambda contents: b"no library" * 100,
    "truncated": lambda contents: contents[: len(contents) // 2],
    "of a version without a hash": lambda contents: contents[:-32],
    "with a wrong bit": lambda contents: contents[:-40] + bytes([contents[-40] ^ 1]) + contents[-39:],
}


@pytest.mark.parametrize("how", BROKEN)
def test_broken_files_of_the_cache_are_compiled_again(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def works() -> None:
        be = Backend(SimulatedGPU())
        assert (be.ones((2, 2)) * 3 + 1).asnumpyarray().tolist() == [[4, 4]] * 2

    monkeypatch.setenv("NEONLITE_CACHE", str(tmp_path / "deep" / "cache"))
    works()
    paths = list((tmp_path / "deep" / "cache").iterdir())
    assert sorted(path.suffix for path in paths) == [".o", ".so"]
    for path in paths:
        broken = BROKEN[how](path.read_bytes())
        path.unlink()  # the library is mapped, so write a new file
        path.write_bytes(broken)
    works()
    assert all(libraries.read_binary(path) for path in paths)
    written = [path.stat().st_mtime_ns for path in paths]
    works()
    assert [path.stat().st_mtime_ns for path in paths] == written


def test_a_cache_folder_that_cannot_be_created_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NEONLITE_CACHE", str(tmp_path / "file" / "cache"))
    be = Backend(SimulatedGPU())
    with pytest.raises(RuntimeError, match=r"cannot write to the cache folder .*file/cache: .*NEONLITE_CACHE"):
        (be.ones((2, 2)) * 3 + 1).asnumpyarray()


posix = pytest.mark.skipif(os.name == "nt", reason="owners and modes of POSIX")


@posix
@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702])
def test_kernels_are_not_loaded_from_a_folder_that_others_may_write(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache"
    monkeypatch.setenv("NEONLITE_CACHE", str(folder))
    be = Backend(SimulatedGPU())
    (be.ones((2, 2)) * 5 + 1).asnumpyarray()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in folder.iterdir()] == [0o600] * 2
    folder.chmod(mode)
    with pytest.raises(
        RuntimeError, match=rf"cache are not loaded: .* with mode {mode:o}\. Run chmod go-w .*NEONLITE_CACHE"
    ):
        (Backend(SimulatedGPU()).ones((2, 2)) * 5 + 1).asnumpyarray()


@posix
def test_kernels_are_not_loaded_from_a_folder_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEONLITE_CACHE", str(tmp_path))
    tmp_path.chmod(0o700)
    about = os.stat_result((0o40700, 1, 1, 1, os.getuid() + 1, *tmp_path.stat()[5:10]))
    assert not libraries.is_private(about)
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    if tmp_path.stat().st_uid == 0:
        assert libraries.is_private(tmp_path.stat())  # root may do anything
    else:
        with pytest.raises(RuntimeError, match="it belongs to user"):
            (Backend(SimulatedGPU()).ones((2, 2)) * 7 + 1).asnumpyarray()


@posix
def test_a_kernel_that_others_may_write_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEONLITE_CACHE", str(tmp_path / "cache"))
    (Backend(SimulatedGPU()).ones((2, 2)) * 9 + 1).asnumpyarray()
    (path,) = (tmp_path / "cache").glob("*.so")
    path.chmod(0o666)
    before = path.stat().st_ino
    (Backend(SimulatedGPU()).ones((2, 2)) * 9 + 1).asnumpyarray()
    assert (path.stat().st_mode & 0o777, path.stat().st_ino == before) == (0o600, False)


# --- settings, and arguments ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["abc", "-1", "1e6"])
def test_a_workspace_limit_that_is_not_an_integer_is_an_error(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    act = convolution(Backend(SimulatedGPU()))
    monkeypatch.setenv("NEONLITE_WORKSPACE", setting)
    with pytest.raises(ValueError, match=f"NEONLITE_WORKSPACE: expected a number of bytes, got '{setting}'"):
        act()


def test_kernel_source_requires_op_trees() -> None:
    be = Backend("cpu")
    x = be.ones((2, 2), name="x")
    for given, words in [((3,), "3"), ((), "none"), (([x],), r"\[Tensor.*"), ((x, None), r"x \(2, 2\), None")]:
        with pytest.raises(
            TypeError, match=rf"be\.kernel: expected op-trees, as in be\.kernel\(x \+ 1, y \* 2\), got {words}"
        ):
            be.kernel(*given)
    assert "1 op" in str(be.plan(x + 1, out=x))
    assert be.plan(0, out=x).stages  # as x[:] = 0


def test_the_source_of_a_plan_names_the_fallback_of_stages_without_kernels() -> None:
    be = Backend("cpu")
    x, i = be.ones((3, 3)), be.ones((3, 3), "int32")
    sums = be.build("scatter_add", be.ones((4, 1)), be.zeros((4, 1), "int32"), axis=0, size=3)
    for tree, fallback in [
        (be.dot(x, x), "cuBLAS computes it"),
        (be.dot(i, i), "the array library computes it"),
        (be.concat([x, x], axis=0), "the array library computes it"),
        (sums, r"the scatter-add kernels"),
    ]:
        assert re.search(rf"// No generated kernel: {fallback}", be.kernel(tree))
