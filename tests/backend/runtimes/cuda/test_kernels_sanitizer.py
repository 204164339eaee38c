"""Memory errors and races in kernels: NVIDIA's compute-sanitizer checks every kind of kernel on a GPU.

The same programs run on the simulated GPU, which checks their results.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.kernel_kinds import agree, work
from helpers.simulated_gpu import ran, simulated, texts

from neonlite.backend.runtimes import load_runtime
from neonlite.backend.runtimes.cuda.kernels import FILLED_MASK, RANK_SORT_KERNEL, SCALED_NORMAL, VALUE_TEMPLATES

KINDS: dict[str, tuple[str, ...]] = {  # text that only the sources of a kind contain
    "map, several elements at once": ("const Half* x0", "int V = 8;", "unsigned I)"),
    "map, rows and columns": ("y0 = (tanh(((x0 * x1) + x2)) * x3)",),
    "map, strides": ("long long x0_0",),
    "rows": ("s0 = argmax(x0)", "threadIdx.x % LANES"),
    "columns": ("sum((x0 * x0)) over axis 0", "threadIdx.x / RESULTS"),
    "rows, with an epilogue": ("y0 = (x1 + sum((x0 * x0)))",),
    "several blocks": ("unsigned chunk)", "LANES = 256, RESULTS = 1"),
    "finalize kernel": ("// combine the splits of sum",),
    "tile of rows": ("sum(exp((x0 - stop_gradient(max(x0))))) over axis 1", "[R * V]"),
    "tile of columns": ("sum(exp((x0 - stop_gradient(max(x0))))) over axis 0", "float r"),
    "passes, softmax": ("OnlineExpSum<float>* s1",),
    "passes, variance": ("Welford<float>* s1",),
    "take": ("position < size", "uint64* error_record"),
    "onehot": ("label >= classes",),
    "uniform numbers": (VALUE_TEMPLATES["rand", "float32"],),
    "normal numbers": (VALUE_TEMPLATES["randn", "float32"],),
    "fill by normal numbers": (SCALED_NORMAL,),
    "masks": (FILLED_MASK,),
    "sort of indices": (RANK_SORT_KERNEL,),
    **{name: (text,) for name, (text, _) in texts().items()},
}


@pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are simulated with g++, which is not here")
def test_the_programs_of_the_sanitizer_launch_every_kind_of_kernel_and_are_right_on_the_simulated_gpu() -> None:
    be = simulated()
    agree(work(be))
    launched = {text for text, _ in ran(be)}
    missing = [kind for kind, words in KINDS.items() if not any(all(w.strip() in t for w in words) for t in launched)]
    assert not missing


@pytest.mark.gpu
@pytest.mark.parametrize(("tool", "words"), [("memcheck", "0 errors"), ("racecheck", "0 hazards")])
def test_compute_sanitizer_finds_nothing(tool: str, words: str, require_gpu: Callable[[], None]) -> None:
    program = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[3])!r}); import helpers.kernel_kinds as k; "
    program += "k.agree(k.work(k.Backend('gpu', rng_seed=1)))"
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", sys.executable, "-c", program]
    environment = {**os.environ, "NEONLITE_CUDNN": "0"}  # convolutions by generated kernels
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert words in done.stdout, done.stdout


@pytest.fixture
def require_gpu() -> None:
    if shutil.which("compute-sanitizer") is None:
        pytest.skip("compute-sanitizer is not installed: it comes with the CUDA toolkit")
    try:
        load_runtime("gpu")
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"no GPU: {error}")
