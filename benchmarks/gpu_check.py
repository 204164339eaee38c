"""Check a machine with a GPU in ten minutes: what is installed, whether results are right, and how fast it is.


make gpu-check                       # by the current Python where it has CuPy, else by an environment that is built
python benchmarks/gpu_check.py       # the same without make; wheels may be on PYTHONPATH
python benchmarks/gpu_check.py --only graphs

Each step is a separate process, so that one that crashes or hangs does not stop the others. What a step that fails
wrote is printed, and a table at the end. Exit codes: 0 all steps passed, 1 a step failed, 2 there is no GPU.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
MINUTES = 10
PASSED, FAILED, NO_GPU, NOT_RUN = "passed", "FAILED", "no GPU", "not run"
CODES = {0: PASSED, 3: NOT_RUN, 4: NO_GPU}
FOUND = ("cupy", "cuda", "nvidia", "numpy", "array-api-compat", "ml-dtypes", "torch", "jax")  # how their names begin
LIBRARIES = ("nvrtc", "cudart", "cublas", "cublasLt", "cudnn")


class NotRun(Exception):
    """A step cannot run on this machine; the message is the reason."""


# --- steps: each returns what it found, in a line --------------------------------------------------------------------


def packages() -> str:
    """Print the versions of the installed packages and of the driver."""
    found = {(d.metadata["Name"] or "").lower(): d.version for d in distributions()}
    for name, version in sorted(found.items()):
        if name.startswith(FOUND):
            print(f"{name} {version}")
    if tool := shutil.which("nvidia-smi"):
        subprocess.run([tool], check=False)
    if not any(name.startswith("cupy") for name in found):
        raise NotRun('CuPy is not installed: pip install "neonlite[cuda13]"')
    cudnn = found.get("nvidia-cudnn-frontend")
    return f"Python {sys.version.split()[0]}, {f'cuDNN frontend {cudnn}' if cudnn else 'no cuDNN frontend'}"


def device() -> str:
    """Print the path of each CUDA library; return a description of the GPU."""
    from neonlite.backend.runtimes import load_runtime
    from neonlite.backend.runtimes.cuda import libraries

    about = load_runtime("gpu").version_info()
    missing = []
    for name in LIBRARIES:
        found = libraries.load_library(name)
        print(f"{name}: {found and found._name}")
        missing += [] if found else [name]
    return about + (f"; not found: {', '.join(missing)}" if missing else "")


def kernels() -> str:
    """Compare every kind of kernel, without cuDNN, with the CPU."""
    from helpers.kernel_kinds import agree, work

    from neonlite import Backend

    be = Backend("gpu", rng_seed=1)
    be.runtime.driver.cudnn = None
    found = work(be)
    agree(found)
    return f"{len(found)} results as on the CPU"


GEOMETRIES = [  # N, C, K, D, H, W, T, R, S, pad_d, pad_h, pad_w, str_d, str_h, str_w, dil_d, dil_h, dil_w
    (8, 16, 32, 1, 14, 14, 1, 3, 3, 0, 1, 1),
    (8, 3, 16, 1, 32, 32, 1, 5, 5, 0, 2, 2, 1, 2, 2),
    (5, 7, 9, 1, 11, 12, 1, 3, 2, 0, 1, 0, 1, 1, 2, 1, 2, 1),
    (4, 8, 8, 6, 7, 8, 3, 3, 3, 1, 1, 1),
    (8, 16, 16, 1, 9, 9, 1, 1, 1),
]
CLOSE = {"float64": 1e-10, "float32": 1e-4, "float16": 4e-3, "bfloat16": 2e-2}  # of the largest result


def convolved(be: Any, dtype: str, geometry: tuple[int, ...], relu: bool) -> Iterator[Any]:
    """Yield a convolution with bias and its two gradients, for values that every dtype represents exactly."""
    import numpy as np

    draw = np.random.default_rng(0)
    layer = be.conv_layer(dtype, *geometry)
    shapes = (layer.dimI, layer.dimF, layer.dimO, (layer.K, 1))
    i, f, e, bias = (be.array(draw.integers(-8, 8, shape) / 8, dtype=dtype) for shape in shapes)
    o, d, u = (be.zeros(shape, dtype=dtype) for shape in (layer.dimO, layer.dimI, layer.dimF))
    be.fprop_conv(layer, i, f, o, bias=bias, relu=relu)
    be.bprop_conv(layer, f, e, d)
    be.update_conv(layer, i, e, u)
    yield from (np.asarray(x.get(), float) for x in (o, d, u))


def convolutions(by_cudnn: bool) -> str:
    """Compare convolutions of every dtype with those of the CPU in float64."""
    import numpy as np

    from neonlite import Backend

    compared, far = 0, []
    for dtype, close in CLOSE.items():
        be = Backend("gpu", rng_seed=1)
        if not by_cudnn:
            be.runtime.driver.cudnn = None
        elif be.runtime.driver.cudnn is None:
            raise NotRun("cuDNN is not installed: nvidia-cudnn-cu13 (or -cu12) and nvidia-cudnn-frontend")
        if dtype not in be.runtime.dtypes:
            continue
        for geometry in GEOMETRIES:
            for relu in (False, True):
                results = convolved(be, dtype, geometry, relu)
                others = convolved(Backend("cpu"), "float64", geometry, relu)
                for what, made, wanted in zip(("forward", "to images", "to filters"), results, others, strict=True):
                    error = np.abs(made - wanted).max() / np.abs(wanted).max()
                    print(f"{dtype} {geometry} relu={relu} {what}: {error:.1e}")
                    compared += 1
                    if not error <= close:
                        far.append(f"{dtype} {geometry} {what}: {error:.1e}")
    if far:
        raise AssertionError(f"{len(far)} of {compared} are too far from those of the CPU: {far[0]}")
    return f"{compared} results as on the CPU"


def attended(name: str, dtype: str, causal: bool) -> list[Any]:
    """Return the output of multi-head attention and its gradients, whose weights are those of a seed."""
    import numpy as np

    from neonlite import Autodiff, Backend
    from neonlite.backend import NervanaObject
    from neonlite.layers import MultiHeadAttention, Sequential

    NervanaObject.be = be = Backend(name, rng_seed=1, batch_size=5, default_dtype=dtype)
    net, draw = Sequential(MultiHeadAttention(3, causal=causal)), np.random.default_rng(0)
    net.configure((48, 33)).allocate_parameters()
    x, e = (be.array(draw.integers(-8, 9, (48, 33 * 5)) / 8) for _ in range(2))
    for p in net.parameters:
        p[:] = draw.integers(-8, 9, p.shape) / 16
    y = net(x, training=True)
    return [
        np.asarray(t.get(), float) for t in (y.astensor(), *Autodiff(y, be, e).get_grad_tensor([x, *net.parameters]))
    ]


def attended_apart(name: str, dtype: str) -> list[Any]:
    """Return be.attention of queries, keys and values, and its gradients."""
    import numpy as np

    from neonlite import Autodiff, Backend

    be, draw = Backend(name, rng_seed=1, default_dtype=dtype), np.random.default_rng(0)
    shapes = (4, 3, 33, 16), (4, 3, 50, 16), (4, 3, 50, 24), (4, 3, 33, 24)
    *operands, e = (be.array(draw.integers(-8, 9, shape) / 8) for shape in shapes)
    y = be.attention(*operands)
    trees = [y, *Autodiff(y, be, e).get_grad_op_tree(operands)]
    outs = [be.zeros(tree.shape) for tree in trees]
    be.assign(outs, trees)
    return [np.asarray(out.get(), float) for out in outs]


def attention() -> str:
    """Compare the attention of 16-bit floats by cuDNN, forward and backward, with that of the CPU in float64."""
    import numpy as np

    compared, far = 0, []
    for dtype in ("float16", "bfloat16"):
        for what, attend in {
            "causal=False": partial(attended, causal=False),
            "causal=True": partial(attended, causal=True),
            "be.attention": attended_apart,
        }.items():
            for made, wanted in zip(attend("gpu", dtype), attend("cpu", "float64"), strict=True):
                error, compared = np.abs(made - wanted).max() / np.abs(wanted).max(), compared + 1
                print(f"{dtype} {what} {made.shape}: {error:.1e}")
                if not error <= 4 * CLOSE[dtype]:  # several roundings, one after another
                    far.append(f"{dtype} {what} {made.shape}: {error:.1e}")
    if far:
        raise AssertionError(f"{len(far)} of {compared} are too far from those of the CPU: {far[0]}")
    return f"{compared} results as on the CPU"


def trained(graphs: bool) -> tuple[list[Any], str]:
    """Train a small network; return its weights and the state of its CUDA graphs."""
    import numpy as np

    from neonlite import Backend
    from neonlite.backend import NervanaObject
    from neonlite.callbacks import CallbackBase
    from neonlite.data import ArrayIterator
    from neonlite.initializers import Constant, GlorotUniform
    from neonlite.layers import Affine, Conv, Dropout, Pooling
    from neonlite.models import Model
    from neonlite.optimizers import Adam
    from neonlite.transforms import CrossEntropyMulti, Rectlin, Softmax

    class GraphRecorder(CallbackBase):
        graphs = ""

        def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
            self.graphs = repr(NervanaObject.be.graphs)

    NervanaObject.be = Backend("gpu", rng_seed=3, batch_size=8)
    draw, init = np.random.default_rng(0), GlorotUniform()
    images, labels = draw.normal(size=(32, 2 * 8 * 8)), draw.integers(0, 2, 32)
    layers = [
        Conv((3, 3, 4), init, padding=1, batch_norm=True, activation=Rectlin()),
        Conv((3, 3, 4), init, bias=Constant(0), activation=Rectlin()),
        Pooling(2),
        Dropout(0.7),
        Affine(2, init, bias=Constant(0), activation=Softmax()),
    ]
    model, recorder = Model(layers), GraphRecorder()
    data = ArrayIterator(images, y=labels, nclass=2, shuffle=True, lshape=(2, 8, 8))
    model.fit(data, CrossEntropyMulti(), Adam(learning_rate=0.02), 3, recorder, cuda_graphs=graphs)
    return list(model.get_weights().values()), recorder.graphs


def graphs() -> str:
    """Compare the weights after training with and without CUDA graphs, bit for bit."""
    import numpy as np

    weights, report = trained(True)
    for a, b in zip(weights, trained(False)[0], strict=True):
        np.testing.assert_array_equal(a, b)
    print(report)
    if report.count("captured") < 2:
        raise AssertionError(f"expected that the step and the update were captured: {report}")
    return f"{len(weights)} weights have the same bits; {report}"


CLEAN = {"memcheck": "0 errors", "racecheck": "0 hazards"}  # what compute-sanitizer's tools report


def sanitized(name: str) -> str:
    """Check every kind of kernel with a tool of compute-sanitizer."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        raise NotRun("compute-sanitizer is not here: it comes with the CUDA toolkit")
    program = "import helpers.kernel_kinds as k; k.agree(k.work(k.Backend('gpu', rng_seed=1)))"
    command = [tool, "--tool", name, "--error-exitcode", "9", sys.executable, "-c", program]
    environment = {**os.environ, "NEONLITE_CUDNN": "0"}  # convolutions by neonlite's kernels
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    print(done.stdout)
    if done.returncode or CLEAN[name] not in done.stdout:
        raise AssertionError(f"{name} found something")
    return f"{name}: {CLEAN[name]}"


def sanitizer() -> str:
    """Check every kind of kernel for invalid memory accesses and races."""
    return "; ".join(map(sanitized, CLEAN))


def benchmark() -> str:
    """Run benchmarks/gpu.py --quick."""
    import gpu

    if code := gpu.main(["--quick"]):
        raise AssertionError(f"benchmarks/gpu.py ended with {code}")
    return "benchmarks/gpu.py --quick has run; without --quick it writes results"


class Step(NamedTuple):
    """A step, its time limit in seconds, and whether it needs a GPU."""

    run: Callable[[], str]
    seconds: int
    needs_gpu: bool = True


STEPS = {
    "packages": Step(packages, 30, False),
    "GPU": Step(device, 60),
    "kernels": Step(kernels, 120),
    "convolutions without cuDNN": Step(lambda: convolutions(False), 60),
    "convolutions by cuDNN": Step(lambda: convolutions(True), 90),
    "attention by cuDNN": Step(attention, 60),
    "graphs": Step(graphs, 60),
    "sanitizer": Step(sanitizer, 180),
    "benchmark": Step(benchmark, 120),
}


# --- running them ----------------------------------------------------------------------------------------------------


def run_here(name: str) -> int:
    """Run a step in this process, print its result as the last line, and return its exit code."""
    warnings.simplefilter("error", RuntimeWarning)  # nothing is done in another way than is asked
    try:
        if STEPS[name].needs_gpu:
            try:
                from neonlite.backend.runtimes import load_runtime

                load_runtime("gpu")
            except (ImportError, RuntimeError) as error:
                print(f"{error}".replace("\n", " "))
                return 4
        print(STEPS[name].run())
    except NotRun as reason:
        print(reason)
        return 3
    return 0


class Result(NamedTuple):
    """The result of a step: `words` is its last line of output."""

    verdict: str
    seconds: float
    words: str
    output: str = ""


def run_step(name: str, seconds: float) -> Result:
    """Run a step in a separate process."""
    start = time.monotonic()
    paths = [str(ROOT), str(ROOT / "tests"), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, __file__, "--step", name]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        done = subprocess.run(command, text=True, env=environment, timeout=seconds, **both)  # type: ignore[call-overload]
        output, verdict = done.stdout, CODES.get(done.returncode, FAILED)
    except subprocess.TimeoutExpired as error:
        output, verdict = f"{(error.stdout or b'').decode()}\nit took longer than {seconds:.0f} s", FAILED
    lines = [line for line in output.splitlines() if line.strip()]
    return Result(verdict, time.monotonic() - start, lines[-1] if lines else "", output)


def run_steps(names: list[str], minutes: float = MINUTES) -> dict[str, Result]:
    """Run steps one after another, until the time limit; without a GPU, skip those that need one."""
    end, found, missing = time.monotonic() + 60 * minutes, dict[str, Result](), ""
    for name in names:
        left = end - time.monotonic()
        if missing and STEPS[name].needs_gpu:
            found[name] = Result(NO_GPU, 0.0, "")
        elif left <= 0:
            found[name] = Result(NOT_RUN, 0.0, f"the {minutes:g} minutes are over")
        else:
            print(f"--- {name}", flush=True)
            result = found[name] = run_step(name, min(left, STEPS[name].seconds))
            missing = result.words if result.verdict == NO_GPU else missing
            print(result.output if result.verdict == FAILED or name == "packages" else result.words, flush=True)
    return found


def table(found: dict[str, Result]) -> str:
    """Return the results as a table."""
    wide = max(map(len, found))
    lines = [f"{'step':{wide}}  {'result':7}  {'time':>6}  found"]
    lines += [f"{name:{wide}}  {x.verdict:7}  {x.seconds:5.1f}s  {x.words[:200]}" for name, x in found.items()]
    return "\n".join(lines)


def exit_code(found: dict[str, Result]) -> int:
    """Return 1 if a step failed, 2 if one had no GPU, else 0."""
    verdicts = {x.verdict for x in found.values()}
    return 1 if FAILED in verdicts else 2 if NO_GPU in verdicts else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else "")
    parser.add_argument("--only", default="", help="a part of the names of the steps to run")
    parser.add_argument("--step", choices=STEPS, help="run one step in this process")
    options = parser.parse_args(arguments)
    if options.step:
        return run_here(options.step)
    found = run_steps([name for name in STEPS if options.only in name])
    print(f"\n{table(found)}")
    if NO_GPU in {x.verdict for x in found.values()}:
        steps = ", ".join(name for name, x in found.items() if x.verdict == NO_GPU)
        print(f"\nThere is no GPU here that can be used, and these steps could not be run: {steps}")
    return exit_code(found)


if __name__ == "__main__":
    sys.exit(main())
