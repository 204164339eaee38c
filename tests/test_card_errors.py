"""What goes wrong on a card says so: no room, another device, a fork, a broken cache. Kernels run on the stand-in."""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from standin_cupy import Machine, installed

from neonlite import Backend, cleanup_backend, gen_backend
from neonlite.backend.cuda.blas import Cublas
from neonlite.backend.cuda.simulated import Simulated, SimulatedDriver
from neonlite.backend.executors.blocked import Blocked

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are simulated with g++, which is not here")


@pytest.fixture(autouse=True)
def no_backend_afterwards() -> Iterator[None]:
    yield
    cleanup_backend()


# --- no room ---------------------------------------------------------------------------------------------------------

GEOMETRY = (np.float32, 2, 8, 8, 1, 30, 30, 1, 3, 3, 0, 1, 1)


def convolution(be: Backend) -> Callable[[], Any]:
    layer = be.conv_layer(*GEOMETRY)
    tensors = [be.ones(shape) for shape in (layer.dimI, layer.dimF, layer.dimO)]
    return lambda: be.fprop_conv(layer, *tensors)


def temporaries(be: Backend) -> Callable[[], Any]:
    out = be.zeros((1, 1), name="out")
    return lambda: out.__setitem__(slice(None), be.sum(be.rand(300, 400)))


COLUMNS = r"what a primitive works in \(columns\), 518 kB: 'gpu' holds 118 kB: "
TEMPORARIES = r"temporaries of op-trees, 480 kB: 'gpu' holds 4 B: "
SHORT = {
    "a convolution's columns": (convolution, COLUMNS, ""),
    "temporaries": (temporaries, TEMPORARIES, r"\(while working out out \(1, 1\)\)"),
}


@pytest.mark.parametrize("what", SHORT)
def test_where_there_is_no_room_to_work_in_the_error_tells_for_what_and_how_much_and_nothing_is_held(what: str) -> None:
    make, words, more = SHORT[what]
    with installed() as machine:
        act = make(be := gen_backend("gpu", rng_seed=1))
        before, machine.memory = be.memory(), 1000
        for _ in range(2):
            with pytest.raises(
                MemoryError, match=f"no room for {words}tensors .*device has.*helps: a smaller batch.*{more}"
            ):
                act()
            assert be.memory() == before
        machine.memory = 2**30
        act()
        assert be.memory().total > before.total


def test_on_the_host_too(monkeypatch: pytest.MonkeyPatch) -> None:
    be = Backend("cpu")
    out, x = be.zeros((1, 1), name="out"), be.ones((30, 40))
    before = be.memory()

    def fail(self: Blocked, nbytes: int) -> Any:
        raise MemoryError("Unable to allocate")

    with monkeypatch.context() as patch:
        patch.setattr(Blocked, "allocate", fail)
        with pytest.raises(
            MemoryError, match=r"no room for temporaries of op-trees, [\d.]+ kB.* working out out \(1, 1\)"
        ):
            out[:] = be.sum(be.dot(x, x.T) * 2)
    assert be.memory() == before
    out[:] = be.sum(be.dot(x, x.T) * 2)
    assert out.get() == 2 * 30 * 30 * 40


def test_cublas_without_room_to_work_in_asks_again() -> None:
    class Library:
        def __getattr__(self, name: str) -> Any:
            return lambda *_: 0

    def allocate(nbytes: int) -> tuple[Any, int]:
        if full:
            raise MemoryError("Out of memory")
        return None, 64

    full, cublas = True, Cublas(Library(), allocate, lambda: 5)
    for _ in range(2):
        with pytest.raises(MemoryError, match="33554432 bytes that cuBLAS works in: Out of memory"):
            cublas.handle()
    full = False
    assert cublas.handle() is cublas.handle()


# --- another device, and behind a fork ------------------------------------------------------------------------------


class Acts:
    """What a backend can be asked to do, by name."""

    def __init__(self, be: Backend) -> None:
        self.be = be
        self.x, self.y, self.layer = be.ones((2, 2)), be.zeros((2, 2)), be.pool_layer(np.float32, "avg", 2, 1, 1, 4, 4)
        self.images, self.out = be.ones(self.layer.dimI), be.zeros(self.layer.dimO)
        self.block = lambda: self.y.__setitem__(slice(None), self.x * 4)
        self.acts: dict[str, Callable[[], Any]] = {
            "a launch that is kept": lambda: self.y.__setitem__(slice(None), self.x + 1),
            "a kernel that is known, with another number": lambda: self.y.__setitem__(
                slice(None), self.x + self.number()
            ),
            "a sum": lambda: self.y.__setitem__(slice(None), be.sum(self.x, axis=0)),
            "draws": lambda: be.fill_normal(self.y),
            "a product": lambda: be.compound_dot(self.x, self.x, self.y),
            "pooling": lambda: be.fprop_pool(self.layer, self.images, self.out),
            "a replay": lambda: be.replay("block", self.block, [self.x, self.y]),
            "an array of the host": lambda: self.y.__setitem__(slice(None), np.ones((2, 2))),
            "a new tensor": lambda: be.zeros((2, 2)),
            "a new tensor of the host's numbers": lambda: be.array([[1.0]]),
        }
        self.n = 1.0
        for act in self.acts.values():
            for _ in range(4):  # compiled, kept, recorded
                act()
        assert "recorded" in repr(be.graphs)
        # as only now: a kernel that comes for the first time
        self.acts["a new kernel"] = lambda: self.y.__setitem__(slice(None), be.exp(self.x) * 3)

    def number(self) -> float:
        self.n += 1
        return self.n

    def fail(self, words: str) -> None:
        """See each raise a RuntimeError, without a warning, and no value change."""
        before = self.y.get().tolist()
        for name, act in self.acts.items():
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                with pytest.raises(RuntimeError) as caught:
                    act()
            assert re.search(words, str(caught.value)), f"{name}: {caught.value}"
        assert self.y.get().tolist() == before


def test_a_thread_on_another_device_is_told_whatever_it_does_and_nothing_runs() -> None:
    with installed(devices=2):
        import cupy

        acts = Acts(gen_backend("gpu", device_id=1))
        cupy.cuda.Device(0).use()
        acts.fail(
            r"this thread stands on device 0, and the backend works on device 1.*Device\(1\)\.use\(\) comes before"
        )
        cupy.cuda.Device(1).use()
        for act in acts.acts.values():
            act()
        np.testing.assert_allclose(acts.y.get(), 3 * np.e, 1e-6)


def product(be: Backend) -> Callable[[], Any]:
    """Return a product whose operands have gaps, so that they are copied first."""
    x, out = be.ones((20, 20)), be.zeros((10, 10))
    return lambda: be.compound_dot(x[::2, ::2], x[::2, ::2], out)


@pytest.mark.parametrize(("make", "value"), [(convolution, 72), (product, 10)])
def test_a_buffer_is_not_made_on_another_device(make: Callable[[Backend], Callable[[], Any]], value: float) -> None:
    with installed(devices=2):
        import cupy

        act = make(be := gen_backend("gpu", device_id=1))
        for _ in range(2):  # also where the sizes are known already
            be.ledger.forget()  # as in a new thread
            cupy.cuda.Device(0).use()
            with pytest.raises(RuntimeError, match="stands on device 0"):
                act()
            assert be.memory().workspaces == 0
            cupy.cuda.Device(1).use()
            assert act().get().max() == value
            assert {x[0].device.id for key, x in vars(be.ledger.kept).items() if isinstance(key, tuple)} == {1}


def test_a_launch_that_is_kept_asks_for_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    with installed():
        import cupy

        be = gen_backend("gpu")
        x, y = be.ones((2, 2)), be.empty((2, 2))
        for _ in range(2):
            y[:] = x + 1
        monkeypatch.delattr(cupy.cuda.runtime, "getDevice")
        y[:] = x + 1


def forked(machine: Machine, be: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this be another process than that which made a backend."""
    machine.forked = True
    monkeypatch.setattr(be.runtime.driver, "process", -1)


def test_behind_a_fork_it_is_told_whatever_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    with installed() as machine:
        acts = Acts(be := gen_backend("gpu"))
        known = set(be._executor.compiled)
        forked(machine, be, monkeypatch)
        acts.fail(r'made before this process was forked.*multiprocessing\.get_context\("spawn"\)')
        assert set(be._executor.compiled) == known  # nothing is remembered as a text that does not compile
        machine.forked = False
        with pytest.raises(RuntimeError, match="was forked"):  # though a driver would do as it is asked
            acts.acts["a replay"]()


def test_a_backend_that_is_made_in_a_forked_process_tells_of_the_fork() -> None:
    with installed(forked=True), pytest.raises(RuntimeError) as caught:
        gen_backend("gpu")
    assert re.search(r'initialization error\. A process that was forked .* finds none\. .*"spawn"', str(caught.value))
    assert "CUDA_VISIBLE_DEVICES" not in str(caught.value)


def test_an_error_of_the_compiler_alone_makes_a_text_one_that_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
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


# --- the cache of the simulated card --------------------------------------------------------------------------------

BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda contents: b"",
    "garbage": lambda contents: b"no library" * 100,
    "truncated": lambda contents: contents[: len(contents) // 2],
    "of a version that kept no hash": lambda contents: contents[:-32],
    "with a wrong bit": lambda contents: contents[:-40] + bytes([contents[-40] ^ 1]) + contents[-39:],
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_file_of_the_cache_is_compiled_anew(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def works() -> None:
        be = Backend(Simulated())
        assert (be.ones((2, 2)) * 3 + 1).asnumpyarray().tolist() == [[4, 4]] * 2

    monkeypatch.setenv("NEONLITE_CACHE", str(tmp_path / "deep" / "cache"))
    works()
    (path,) = (tmp_path / "deep" / "cache").iterdir()
    whole = path.read_bytes()
    path.unlink()  # the library is mapped: another file takes its name
    path.write_bytes(BROKEN[how](whole))
    works()
    assert path.read_bytes() != BROKEN[how](whole)
    written = path.stat().st_mtime_ns
    works()
    assert path.stat().st_mtime_ns == written


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NEONLITE_CACHE", str(tmp_path / "file" / "cache"))
    be = Backend(Simulated())
    with pytest.raises(RuntimeError, match=r"kept in .*file/cache, where nothing can be written.*NEONLITE_CACHE names"):
        (be.ones((2, 2)) * 3 + 1).asnumpyarray()


# --- settings, and arguments ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["abc", "-1", "1e6"])
def test_a_workspace_that_is_no_number_is_told(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    act = convolution(Backend(Simulated()))
    monkeypatch.setenv("NEONLITE_WORKSPACE", given)
    with pytest.raises(ValueError, match=f"NEONLITE_WORKSPACE is a number of bytes; got '{given}'"):
        act()


def test_kernels_are_of_op_trees() -> None:
    be = Backend("cpu")
    x = be.ones((2, 2), name="x")
    for given, words in [((3,), "3"), ((), "none"), (([x],), r"\[Tensor.*"), ((x, None), r"x \(2, 2\), None")]:
        with pytest.raises(TypeError, match=rf"are of op-trees, be\.plan\(x \+ 1, y \* 2\); got {words}"):
            be.kernel(*given)
    assert "1 op" in str(be.plan(x + 1, out=x))
    assert be.plan(0, out=x).stages  # as x[:] = 0


def test_the_text_of_kernels_says_who_works_out_what_has_none() -> None:
    be = Backend("cpu")
    x, i = be.ones((3, 3)), be.ones((3, 3), "int32")
    sums = be.build("scatter", be.ones((4, 1)), be.zeros((4, 1), "int32"), axis=0, size=3)
    for tree, whose in [
        (be.dot(x, x), "cuBLAS works it out"),
        (be.dot(i, i), "the array library works it out"),
        (be.concat([x, x], axis=0), "the array library works it out"),
        (sums, r"the kernels of primitives_scatter\.py"),
    ]:
        assert re.search(rf"It has no kernel here: {whose}", be.kernel(tree))
