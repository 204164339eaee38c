"""benchmarks/_candidates.py: candidates have the bits of the library's kernels, also if blocks wait for one another."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import nvrtc

from neonlite import Backend
from neonlite.backend.runtimes.cuda import simulator
from neonlite.backend.runtimes.cuda.kernels import kernel_source
from neonlite.backend.runtimes.cuda.libraries import OPTIONS
from neonlite.backend.runtimes.cuda.simulator import SimulatedGPU

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from _candidates import BACKWARD, FORWARD, BatchNorms, OrderedBatchNorm

simulates = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are simulated with g++, which is not here")

THREADS = 6
RUN_AT_A_TIME = """
#include <atomic>
#include <thread>
#include <vector>
void run(const unsigned* grid, unsigned block, void (*kernel)(), void*, bool)
{
    std::atomic<unsigned> next{0};
    std::vector<std::thread> threads;
    for (int n = 0; n < THREADS; ++n) threads.emplace_back([&] {
        std::vector<Fiber> memory(block);
        gridDim = {grid[0], 1, 1}, blockDim = {block, 1, 1}, thread_body = kernel, fibers = memory.data();
        start_fibers();
        for (unsigned b; (b = next++) < grid[0];) blockIdx = {b, 0, 1}, run_with_barriers();
    });
    for (std::thread& thread : threads) thread.join();
}
"""


def at_a_time(folder: Path) -> Callable[[str], Any]:
    """Return the function that compiles a kernel whose blocks run in several threads of the CPU at a time."""
    start, _, rest = simulator.SIMULATOR_SOURCE.partition("void run(const unsigned* grid")
    halves = rest[rest.index("namespace cuda {") :]
    of_block = "dim3 gridDim", "static Fiber* fibers", "static jmp_buf scheduler", "static void (*thread_body)"
    common = re.sub("|".join(map(re.escape, of_block)), r"thread_local \g<0>", start)

    def private(text: str) -> str:
        """Return a text in which each block has its own indices and shared memory."""
        text = text.replace("extern dim3", "extern thread_local dim3")
        return text.replace("#define __shared__ static", "#define __shared__ static thread_local")

    def build(source: str) -> Any:
        number = len([*folder.iterdir()])
        kernel, runner, library = (folder / f"{number}{name}" for name in (".cpp", "_run.cpp", ".so"))
        kernel.write_text(private(simulator.wrap_kernel(source)))
        head = f"#define THREADS {THREADS}\n{private(simulator.SIMULATOR_HEADER)}"
        runner.write_text(head + common + RUN_AT_A_TIME + halves)
        options = [x for x in simulator.COMPILER_OPTIONS if x != "-fno-exceptions"]
        paths = [str(kernel), str(runner), "-o", str(library)]
        subprocess.run(["g++", *options, "-pthread", "-U_FORTIFY_SOURCE", "-shared", *paths, "-lm"], check=True)
        return ctypes.CDLL(str(library)).launch

    return build


def compared(be: Backend, C: int, size: int, options: list[tuple[int, int]], times: int = 1) -> None:
    """Compare candidates with the library; each launch finds the counters at 0 that the one before it has left."""
    of = BatchNorms(be, C, size)
    of.poison()
    of.run()
    wanted = of.bits()
    for blocks, ahead in options:
        norm = OrderedBatchNorm(be, C, size, blocks, ahead)
        for _ in range(times):
            of.poison()
            of.run(norm)
            assert of.differing(wanted) == []
            assert not norm.counters.get().any()


@simulates
@pytest.mark.parametrize(("C", "size"), [(1, 65536), (3, 131072), (5, 40004), (37, 40964), (17, 200_000)])
def test_batch_norm_in_one_kernel_has_the_bits_of_the_library(C: int, size: int) -> None:
    compared(Backend(SimulatedGPU()), C, size, [(1, 1), (5, 1), (3, 2), (2, C), (2, 99)], times=2)


@simulates
def test_blocks_that_run_at_a_time_wait_for_the_sums_of_their_channel(tmp_path: Path) -> None:
    be = Backend(SimulatedGPU())
    library, candidate = be.runtime.driver.compile, at_a_time(tmp_path)
    be.runtime.driver.compile = lambda source: (candidate if "wait_for" in source else library)(source)
    compared(be, 20, 40004, [(1, 1), (THREADS, 1), (THREADS, 7), (50, 19)], times=4)


@simulates
@pytest.mark.parametrize("size", [40001, 512])
def test_rows_that_one_block_sums_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match=rf"expected rows of 4 n elements .* got 3 rows of {size}"):
        OrderedBatchNorm(Backend(SimulatedGPU()), 3, size, 2, 1)


@pytest.mark.parametrize(("source", "loads"), [(FORWARD, 4), (BACKWARD, 8)])
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_nvidias_compiler_keeps_loads_in_flight_and_spills_nothing(source: str, loads: int, architecture: str) -> None:
    if nvrtc.library() is None:
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc-cu12")
    compiled = nvrtc.compiled(kernel_source(source, "float32", V=4), architecture, OPTIONS)
    assert (compiled.spilled, compiled.stack) == (0, 0)
    runs = [part.count("ld.global.v4") for part in re.split(r"st\.global|add\.rn\.f32|sub\.rn\.f32", compiled.assembly)]
    assert [n for n in runs if n] == [loads, loads]  # to normalize, and for the sums
