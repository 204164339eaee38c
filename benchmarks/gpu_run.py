"""Check the results of a GPU, and measure its times beside every peer, in one run of minutes.

PYTHONPATH=. python3 benchmarks/gpu_run.py --out FOLDER --seconds 530
PYTHONPATH=. python3 benchmarks/gpu_run.py --out FOLDER --seconds 170 --only failed    # FOLDER has the rows.jsonl
PYTHONPATH=. python3 benchmarks/gpu_run.py --out FOLDER --seconds 240 --quick          # tiny; also without a GPU

Each part is a separate process with a time limit. Its rows are appended to FOLDER/rows.jsonl at once, and its output to
FOLDER/log.txt, so that a part that crashes or hangs loses nothing and stops no other. A table comes last. ``--only``
also takes letters of parts: A the machine, B kernels, C replays, D old and new kernels, E plans of cuDNN, F and G times
beside every peer, H profiles, I compute-sanitizer. Packages that are not installed are reported, and are no failure;
neither is a slow row.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from tempfile import gettempdir
from types import SimpleNamespace
from typing import Any, NamedTuple

import gpu
import gpu_check
import numpy as np
from _candidates import BatchNorms
from gpu_check import FAILED, NOT_RUN, PASSED, ROOT, NotRun

from neonlite import Autodiff, Backend
from neonlite.backend import NervanaObject
from neonlite.backend.primitives.geometry import Layout
from neonlite.backend.runtimes import load_runtime
from neonlite.backend.runtimes.cuda import convolution
from neonlite.backend.runtimes.cuda.kernels import are_kernels_enabled
from neonlite.layers import MultiHeadAttention, Sequential

MAX_OUTPUT = 10_000  # characters of the table: only the last 12,000 of a run come back
MAX_WORDS = 110  # characters of a message in the table
MAX_FAILURES = 4  # in the table, of each part
SHORT = dict(zip(gpu.PEERS, ("ours", "replayed", "eager", "compiled", "graph", "jax", "cupy"), strict=True))
FILLERS = 6  # processes that fill the caches of torch.compile
ROUNDS = 7  # of each measured row
IN_G = ("step: lstm", "step: transformer", "attention", "product")  # how the rows of part G begin
CACHES = {  # of the processes, which share what they compile
    "JAX_COMPILATION_CACHE_DIR": str(Path(gettempdir(), "jax_of_gpu_run")),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "TORCHINDUCTOR_COMPILE_THREADS": "3",
}
REPEATS = 3  # of a replay, of a plan's time and in a profile


class Run(NamedTuple):
    """The process of a part: where it writes, when it starts no more rows, and what it measures with."""

    part: str
    out: Path
    end: float  # time.monotonic()
    quick: bool
    device: str = "cuda"  # of PyTorch and JAX; "cpu" beside a stand-in for CuPy

    def row(self, name: str, work: Callable[[], Any]) -> None:
        """Do a piece of work and append its result, unless an earlier run has it."""
        if name in {row["name"] for row in read(self.out) if row["part"] == self.part and row["verdict"] == PASSED}:
            return
        verdict, found, start = PASSED, "", time.monotonic()
        if start > self.end:
            verdict, found = NOT_RUN, "the time was over"
        else:
            append(self.out, part=self.part, name=name, verdict=FAILED, seconds=0.0, found="it broke off")
            try:
                found = work()
            except NotRun as reason:
                found = str(reason)
            except Exception as error:
                traceback.print_exc()
                verdict, found = FAILED, f"{type(error).__name__}: {error}"
        append(self.out, part=self.part, name=name, verdict=verdict, seconds=time.monotonic() - start, found=found)
        print(f"{self.part} {name}: {verdict}, {found}", flush=True)


def append(out: Path, **row: Any) -> None:
    """Append a row to the file of rows: a line, which begins with the line end, as a kill may have cut the last one."""
    with (out / "rows.jsonl").open("ab", buffering=0) as file:
        file.write(f"\n{json.dumps(row, default=str)}".encode())


def read(out: Path) -> list[dict[str, Any]]:
    """Return the last row of each name of each part; a line that a kill cut is left out."""
    rows, path = dict[Any, dict[str, Any]](), out / "rows.jsonl"
    for line in path.read_text().splitlines() if path.exists() else ():
        with suppress(json.JSONDecodeError):
            row = json.loads(line)
            rows[row["part"], row["name"]] = row
    return list(rows.values())


# --- A: the machine --------------------------------------------------------------------------------------------------


def machine(run: Run) -> None:
    """Versions, clocks, the bandwidth of a copy, and the rates of products of random matrices."""

    def clocks() -> str:
        query = "--query-gpu=name,driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu"
        if not (tool := shutil.which("nvidia-smi")):
            raise NotRun("nvidia-smi is not installed")
        return subprocess.check_output([tool, query, "--format=csv,noheader"], text=True).strip()

    def speeds() -> dict[str, float]:
        of = gpu.Libraries(load_runtime("gpu"), run.quick, device=run.device)
        rates = {f"{kind} TFLOP/s": round(rate / 1e12, 1) for kind, rate in of.rates.items()}
        return {"copy TB/s": round(of.bandwidth / 1e12, 3), **rates}

    packages = "neonlite", "jax", "torch", "nvidia-cudnn-frontend", "cupy-cuda13x"
    run.row("versions", lambda: dict(reversed(gpu.machine(*packages).items())))
    rows = {"packages": gpu_check.packages, "libraries": gpu_check.device, "clocks before": clocks, "speeds": speeds}
    for name, work in (rows | {"clocks after": clocks}).items():
        run.row(name, work)


# --- B and C: results ------------------------------------------------------------------------------------------------


def kernels(run: Run) -> None:
    """Results of every kind of kernel, and of convolutions, beside the CPU's."""
    run.row("k = 65536 in 16 bit", long_sums)
    if run.quick:
        gpu_check.GEOMETRIES[:] = gpu_check.GEOMETRIES[2:3]
    run.row("convolutions by cuDNN", lambda: gpu_check.convolutions(True))
    if run.device == "cuda":
        run.row("kernels", gpu_check.kernels)
    run.row("convolutions without cuDNN", lambda: gpu_check.convolutions(False))
    run.row("attention by cuDNN", gpu_check.attention)


def long_sums(k: int = 65536) -> str:
    """Compare sums of k products of 16-bit floats with the exact sum, rounded once.

    The products are multiples of 1/64, so that every partial sum is exact in float32, but not in 16 bit.
    """
    draw, be = np.random.default_rng(0), Backend("gpu", rng_seed=1)
    a, b = draw.integers(1, 9, (64, k)) / 8, draw.integers(-8, 9, (k, 48)) / 8
    for dtype in ("float16", "bfloat16"):
        x, y, out = be.array(a, dtype=dtype), be.array(b, dtype=dtype), be.empty((64, 48), dtype=dtype)
        out[:] = be.dot(x, y)
        wanted = (a @ b).astype(out.get().dtype)
        if differ := int((out.get() != wanted).sum()):
            raise AssertionError(f"{dtype}: {differ} of {wanted.size} sums are not rounded once")
    return "each sum is rounded once"


class Program:
    """Work of every kind that a graph can capture, and the bits of its results."""

    def __init__(self, be: Backend) -> None:
        from helpers import kernel_kinds

        draw, self.be = np.random.default_rng(3), be
        self.trees = kernel_kinds.trees(be)
        self.outs = [be.empty(tree.shape, dtype=tree.asnumpyarray().dtype) for tree in self.trees]
        for dtype in ("float16", "float32"):
            a, b = (be.array(draw.normal(size=shape), dtype=dtype) for shape in ((48, 20000), (20000, 40)))
            self.trees.append(be.dot(a, b))
            self.outs.append(be.empty((48, 40), dtype=dtype))
        self.layer = be.conv_layer("float32", *gpu_check.GEOMETRIES[0])
        shapes = self.layer.dimI, self.layer.dimF, self.layer.dimO
        self.images, self.filters, self.errors = (be.array(draw.normal(size=shape)) for shape in shapes)
        self.images_of = [be.empty(shapes[n]) for n in (2, 0, 1)]
        self.state = be.rng_get_state()

    def work(self) -> None:
        for out, tree in zip(self.outs, self.trees, strict=True):
            out[:] = tree
        o, d, u = self.images_of
        self.be.fprop_conv(self.layer, self.images, self.filters, o)
        self.be.bprop_conv(self.layer, self.filters, self.errors, d)
        self.be.update_conv(self.layer, self.images, self.errors, u)

    def poison(self) -> None:
        """Fill results and temporaries, so that what is not written has other bits."""
        for out in (*self.outs, *self.images_of):
            out.fill(np.nan if out.dtype.kind == "f" else 85)
        self.be._executor.arena(0)[...] = 255

    def run(self, replayed: bool) -> None:
        """Run the work on poisoned results, with the same random numbers each time."""
        self.poison()
        self.be.rng_set_state(self.state)
        self.be.replay("program", self.work, graphs=replayed)

    def bits(self) -> list[bytes]:
        return [out.get().tobytes() for out in (*self.outs, *self.images_of)]


def same(what: str, wanted: list[bytes], found: list[bytes]) -> None:
    if far := [n for n, (x, y) in enumerate(zip(wanted, found, strict=True)) if x != y]:
        raise AssertionError(f"{what}: results {far} of {len(wanted)} have other bits")


def replays(run: Run) -> None:
    """The bits of eager work beside those of replays, on poisoned memory, on streams and in threads at a time."""
    cupy = load_runtime("gpu").cupy

    def check(number: int, in_threads: bool) -> str:
        programs = [Program(Backend("gpu", rng_seed=seed + 1)) for seed in range(number)]
        streams, wanted = [cupy.cuda.Stream(non_blocking=True) for _ in programs], []
        for program in programs:
            program.run(False)
            wanted.append(program.bits())
        cupy.cuda.Device().synchronize()

        def work(n: int) -> None:
            cupy.cuda.Device(0).use()
            with streams[n]:
                programs[n].run(True)

        def work_often(n: int) -> str:
            for _ in range(2 + REPEATS):  # the third is captured
                work(n)
            return repr(programs[n].be.graphs)

        for _ in range(1 if run.quick else REPEATS):
            if in_threads:
                with ThreadPoolExecutor(number) as pool:
                    graphs = list(pool.map(work_often, range(number)))
            else:
                for n in [*range(number)] * (2 + REPEATS):
                    work(n)
                graphs = [repr(program.be.graphs) for program in programs]
            cupy.cuda.Device().synchronize()
            for n, program in enumerate(programs):
                same(f"stream {n}", wanted[n], program.bits())
                if run.device == "cuda" and "captured" not in graphs[n]:
                    raise AssertionError(f"expected a captured graph, got {graphs[n]}")
        return f"{len(wanted[0])} results have the same bits"

    run.row("replays on poisoned memory", partial(check, 1, False))
    run.row("replays on two streams", partial(check, 2, False))
    run.row("replays in two threads", partial(check, 2, True))
    options, times = ((1, 1), (3, 2), *ORDERED[: 0 if run.quick else None]), 5 if run.quick else 40
    for shape in ((64, 401408), (300, 100352), (5, 40004))[2 * run.quick :]:
        work = partial(one_kernel_norms, shape, options, times)
        run.row(f"batch norm in one kernel a pass, {shape[0]} x {shape[1]}", work)
    if run.device == "cuda":
        run.row("training with graphs", gpu_check.graphs)


# blocks of a launch, and channels between sums and normalization: 2 to 8 blocks for each of 132 multiprocessors
ORDERED = (264, 1), (264, 8), (528, 1), (528, 8), (1056, 1), (1056, 8)


def one_kernel_norms(shape: tuple[int, int], options: Sequence[tuple[int, int]], times: int) -> str:
    """The bits of batch norm by candidates beside those of the library, replayed while another stream works."""
    cupy, (of, other) = load_runtime("gpu").cupy, (BatchNorms(Backend("gpu", rng_seed=1), *shape) for _ in range(2))
    streams, works = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)], of.candidates(*options)
    of.poison()
    of.run()
    wanted = of.bits()
    cupy.cuda.Device().synchronize()
    for k, (name, work) in product(range(times), works.items()):
        with streams[1]:
            for _ in range(k % 4):
                other.run()
        with streams[0]:
            of.poison()
            of.be.replay(name, work)
            if differing := of.differing(wanted):
                raise AssertionError(f"{name}, run {k}: results {differing} of {len(wanted)} have other bits")
    cupy.cuda.Device().synchronize()
    return f"{len(wanted)} results of {len(works)} candidates have the same bits in {times} runs"


# --- D: old and new kernels ------------------------------------------------------------------------------------------


def attentions(run: Run, be: Backend) -> dict[str, Callable[[], object]]:
    """The forward and backward pass of multi-head attention in bfloat16, by cuDNN and by products."""
    be.bsz, works = 2 if run.quick else 16, dict[str, Callable[[], object]]()
    F, T, heads = (16, 8, 2) if run.quick else (1024, 512, 16)
    for name in ("cuDNN", "products"):
        if name == "products":
            be.primitives.computes_attention = lambda *_: False
        net = Sequential(MultiHeadAttention(heads, causal=True))
        net.configure((F, T)).allocate_parameters()
        x, e = (be.array(np.random.default_rng(seed).standard_normal((F, T * be.bsz))) for seed in range(2))
        trees = Autodiff(net(x, training=True), be, e).get_grad_op_tree([x, *net.parameters])
        works[name] = be.compile([be.empty(tree.shape) for tree in trees], trees)
    return works


def batch_norms(run: Run, be: Backend) -> dict[str, Callable[[], object]]:
    """Batch norm, forward and backward, by the library and by one kernel a pass."""
    if not are_kernels_enabled():
        raise NotRun("kernels are disabled")
    of = BatchNorms(be, *((5, 40004) if run.quick else (64, 401408)))
    return {"library": of.run, **of.candidates(*ORDERED[: 1 if run.quick else None])}


# {name: the dtype, and a function that returns the works of an old and of a new kernel}; each is replayed as a graph
Works = Callable[[Run, Backend], dict[str, Callable[[], object]]]
COMPARED: dict[str, tuple[str, Works]] = {
    "attention forward + backward, 16 x 16 x 512 x 64, bfloat16": ("bfloat16", attentions),
    "batch norm forward + backward, 64 x 401408": ("float32", batch_norms),
}


def compare(run: Run) -> None:
    """Old and new kernels in one process, replayed."""
    of: Any = SimpleNamespace(cupy=load_runtime("gpu").cupy, small=run.quick)

    def microseconds(dtype: str, make: Works) -> dict[str, float]:
        NervanaObject.be = be = Backend("gpu", rng_seed=1, default_dtype=dtype)
        works = {name: partial(be.replay, name, work) for name, work in make(run, be).items()}
        found, _ = gpu.measure(of, gpu.Case(works), ROUNDS)  # type: ignore[arg-type]
        return {name: statistics.median(seconds) * 1e6 for name, seconds in found.items()}

    for name, of_both in COMPARED.items():
        run.row(name, partial(microseconds, *of_both))


# --- E: plans of cuDNN -----------------------------------------------------------------------------------------------

# C, K, H = W, R = S, stride and padding of convolutions of 128 images: of the chain, of cifar and of resnet
SWEPT = "64 64 56 3 1 1; 3 16 32 5 1 0; 16 32 14 5 1 0; 3 16 32 3 1 1; 16 16 32 3 1 1; 16 32 32 3 2 1; "
SWEPT += "32 32 16 3 1 1; 32 64 16 3 2 1; 64 64 8 3 1 1"


class AnyPlan:
    """A frontend of cuDNN that deselects no nondeterministic plans."""

    def __init__(self, frontend: Any) -> None:
        names = ("REDUCED_PRECISION_REDUCTION", "TENSOR_CORE", "DOWN_CONVERT_INPUTS")
        notes = {name: getattr(frontend.numerical_note, name) for name in names}
        self.frontend, self.numerical_note = frontend, SimpleNamespace(NONDETERMINISTIC=notes[names[0]], **notes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.frontend, name)


class TimedPlans(convolution.Cudnn):
    """cuDNN that records the engine, workspace and microseconds of each plan that it times, in ``found``."""

    def __init__(self, frontend: Any, cudnn: Any, cupy: Any) -> None:
        def seconds(f: Callable[[], None]) -> float:
            f()
            best = min(gpu.between_events(cupy, f, 5) for _ in range(REPEATS))
            self.found[-1]["us"] = round(best * 1e6, 2)
            return best

        super().__init__(frontend, cudnn.stream, seconds)
        self.found: list[dict[str, Any]] = []

    def execute(self, plan: Any, addresses: Any, workspace: int) -> None:
        super().execute(plan, addresses, workspace)
        if not self.found or self.found[-1]["index"] != plan.plan_index:
            name = plan.graph.get_plan_name_at_index(plan.plan_index)
            self.found.append({"index": plan.plan_index, "engine": name, "workspace": plan.workspace_bytes})


def plans(run: Run) -> None:
    """The first plans of cuDNN for each convolution, timed; FOLDER/plans.json is a plan table of the fastest ones."""
    be = Backend("gpu", rng_seed=1)
    cudnn, cupy = be.runtime.driver.cudnn, be.runtime.cupy
    if cudnn is None:
        run.row("plans", lambda: "nvidia-cudnn-frontend is not installed")
        return
    convolution.MAX_AUTOTUNE_PLANS = 4
    frontends = {"deterministic": cudnn.frontend, "any": AnyPlan(cudnn.frontend)}
    of = {notes: TimedPlans(frontend, cudnn, cupy) for notes, frontend in frontends.items()}

    @lru_cache(1)
    def operands(layer: Any) -> list[Any]:
        shapes = layer.dimI, layer.dimF, layer.dimO, (layer.K, 1)
        arrays = [be.empty(shape, dtype=layer.dtype) for shape in shapes]
        return [be.fill_normal(array) or array for array in arrays]

    def timed(layer: Any, operation: str, layout: Layout, tf32: bool, fused: bool, notes: str) -> list[dict[str, Any]]:
        i, f, o, bias = (be.runtime.address_and_strides(x._array)[0] for x in operands(layer))
        addresses = {"fprop": (i, f, o, bias)[: 3 + fused], "dgrad": (o, f, i), "wgrad": (i, o, f)}[operation]
        space, plans = be.primitives._workspace_address, of[notes]
        plans.found = []
        try:
            plans._build_plan(operation, layer, layout, tf32, addresses, space, fused, fused)
        except plans.errors as error:
            print(f"no plan: {error}")
        return sorted((plan for plan in plans.found if "us" in plan), key=lambda plan: plan["us"])

    N, geometries = (2, "3 4 6 3 1 1") if run.quick else (128, SWEPT)
    for kind, name in product(("float16", gpu.TF32, "float32", "bfloat16"), geometries.split("; ")):
        C, K, H, R, stride, pad = map(int, name.split())
        layer = be.conv_layer(gpu.KINDS[kind], N, C, K, 1, H, H, 1, R, R, 0, pad, pad, 1, stride, stride)
        tf32 = kind == gpu.TF32
        passes = ("fprop", False), ("fprop", True), ("dgrad", False), ("wgrad", False)
        for (operation, fused), notes, layout in product(passes, of, Layout):
            words = convolution.plan_name(operation, layer, layout, tf32, bias=fused, relu=fused)
            run.row(f"{words}, {notes}", partial(timed, layer, operation, layout, tf32, fused, notes))
    rows = [row for row in read(run.out) if row["part"] == run.part and row["verdict"] == PASSED and row["found"]]
    named = [(*row["name"].split(", "), row["found"][0]["engine"]) for row in rows]
    table = {name: engine for name, notes, engine in named if notes == "deterministic"}
    document = {"cudnn": cudnn.frontend.backend_version(), "plans": table}
    (run.out / "plans.json").write_text(json.dumps(document, indent=1))


# --- F and G: times beside every peer; H: where the time goes --------------------------------------------------------


def names_of(part: str) -> list[str]:
    """Return the names of the rows of part F or G."""
    return [name for name in gpu.CASES if name.startswith(IN_G) == (part == "G")]


def times(run: Run) -> None:
    """Rows of benchmarks/gpu.py, eager and replayed, with every peer."""
    of = gpu.Libraries(load_runtime("gpu"), run.quick, compiled=not run.quick, device=run.device)
    failed = {row["name"] for row in read(run.out) if row["verdict"] == FAILED}  # they come last: one may have hung
    for name in sorted(names_of(run.part), key=failed.__contains__):
        run.row(name, lambda name=name: gpu.row(of, name, gpu.QUICK_ROUNDS if run.quick else ROUNDS)[1])


def fill(run: Run, n: int) -> None:
    """Fill the caches of torch.compile and NVRTC with every sixth row."""
    of = gpu.Libraries(load_runtime("gpu"), True, device=run.device)
    of.small = run.quick
    for name in [*names_of("F"), *names_of("G")][n::FILLERS]:
        with suppress(Exception):
            peers = gpu.prepare(of, name).peers
            for peer in (gpu.COMPILED, gpu.JAX):
                with suppress(Exception):
                    peers[peer]()


def shares(spans: list[tuple[str, float, float]]) -> dict[str, Any]:
    """Return the microseconds of a replay, the share in which kernels run, their number, and the longest ones."""
    total = dict[str, list[float]]()
    for kernel, start, end in spans:
        total.setdefault(kernel[:60], []).append(end - start)
    elapsed = max((end for *_, end in spans), default=0) - min((start for _, start, _ in spans), default=0)
    ranked = sorted(total.items(), key=lambda item: -sum(item[1]))[:12]
    return {
        "us": round(elapsed / REPEATS, 1),
        "busy": round(sum(map(sum, total.values())) / (elapsed or 1), 3),
        "kernels": len(spans) / REPEATS,
        "top": {kernel: [len(us) / REPEATS, round(sum(us) / REPEATS, 1)] for kernel, us in ranked},
    }


def profile(run: Run) -> None:
    """Kernels of a replay by their share of its time, by PyTorch's profiler."""
    of = gpu.Libraries(load_runtime("gpu"), True, found=False)
    of.small = run.quick

    def kernels_of(name: str) -> dict[str, Any]:
        if not find_spec("torch"):
            raise NotRun("PyTorch, whose profiler is used, is not installed")
        import torch
        from torch.autograd import DeviceType
        from torch.profiler import ProfilerActivity, profile

        torch.ones(1, device=run.device)  # initializes CUDA, and with it the profiler
        work, wait = gpu.prepare(of, name).peers[gpu.REPLAYED], of.cupy.cuda.Device().synchronize
        for _ in range(5):
            work()
        wait()
        with profile(activities=[getattr(ProfilerActivity, run.device.upper())]) as found:
            for _ in range(REPEATS):
                work()
            wait()
        device = getattr(DeviceType, run.device.upper())
        spans = [(e.name, e.time_range.start, e.time_range.end) for e in found.events() if e.device_type == device]
        return shares(spans)

    chosen = ("softmax", "batch norm", "step: ", "3 x conv", "attention")
    for name in gpu.CASES:
        if name.startswith(chosen) and not (run.quick and name != "step: mlp"):
            run.row(name, partial(kernels_of, name))


def sanitizer(run: Run) -> None:
    """memcheck and racecheck of every kind of kernel."""
    for name in gpu_check.CLEAN:
        run.row(name, partial(gpu_check.sanitized, name))


# --- running them ----------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """What a part does, its share of the seconds, and whether other processes fill caches meanwhile."""

    work: Callable[[Run], None]
    seconds: float
    beside_fillers: bool = False


PARTS = {
    "A": Part(machine, 15),
    "B": Part(kernels, 70, True),
    "C": Part(replays, 40, True),
    "D": Part(compare, 30),
    "E": Part(plans, 80),
    "F": Part(times, 140),
    "G": Part(times, 80),
    "H": Part(profile, 35),
    "I": Part(sanitizer, 40),
}


@contextmanager
def gpu_or_stand_in(quick: bool) -> Iterator[str]:
    """Yield the device of PyTorch and JAX; with ``quick`` and without CuPy, use stand-ins for CuPy and cuDNN."""
    if not quick or find_spec("cupy"):
        yield "cuda"
        return
    from helpers.standin_cudnn import Frontend
    from helpers.standin_cupy import installed

    with installed():
        sys.modules["cudnn"] = Frontend()  # type: ignore[assignment]
        yield "cpu"


def run_here(part: str, out: Path, end: float, quick: bool) -> None:
    """Run a part, or with a digit a process that fills caches, in this process."""
    with gpu_or_stand_in(quick) as device:
        run = Run(part, out, end, quick, device)
        if part.isdigit():
            fill(run, int(part))
        else:
            PARTS[part].work(run)


def start(part: str, out: Path, seconds: float, quick: bool) -> subprocess.Popen[bytes]:
    """Start the process of a part, whose output is appended to the log."""
    paths = [str(ROOT), str(ROOT / "tests"), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    environment = CACHES | os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
    end = time.monotonic() + 0.9 * seconds  # of a clock that all processes share
    command = [sys.executable, __file__, "--out", str(out), "--part", part, "--end", str(end)]
    with (out / "log.txt").open("ab") as log:
        return subprocess.Popen(
            [*command, *["--quick"] * quick], stdout=log, stderr=log, env=environment, start_new_session=True
        )


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_part(part: str, out: Path, seconds: float, quick: bool) -> None:
    """Run a part in a separate process for at most so many seconds, and append its verdict."""
    begin, words = time.monotonic(), ""
    process = start(part, out, seconds, quick)
    try:
        code = process.wait(seconds)
        words = f"it ended with {code}" if code else ""
    except subprocess.TimeoutExpired:
        words = f"it took longer than {seconds:.0f} s"
    finally:
        kill(process)
    rows = [row for row in read(out) if row["part"] == part and row["name"]]
    bad = [row["name"] for row in rows if row["verdict"] != PASSED]
    verdict = FAILED if words or bad or not rows else PASSED
    words = f"{words}; " * bool(words) + f"{len(rows) - len(bad)} rows" + (f", not {'; '.join(bad)}" if bad else "")
    append(out, part=part, name="", verdict=verdict, seconds=time.monotonic() - begin, found=words)


def run_parts(parts: list[str], out: Path, seconds: float, quick: bool) -> None:
    """Run parts one after another; time that one leaves is shared by the later ones."""
    end, fillers = time.monotonic() + seconds, list[subprocess.Popen[bytes]]()
    try:
        for n, part in enumerate(parts):
            if PARTS[part].beside_fillers and not (fillers or quick):
                fillers = [start(str(k), out, 600, quick) for k in range(FILLERS)]
            if not PARTS[part].beside_fillers:
                while fillers:
                    kill(fillers.pop())
            shares = [PARTS[later].seconds for later in parts[n:]]
            left = max(1.0, end - time.monotonic()) * shares[0] / sum(shares)
            run_part(part, out, left, quick)
            print(line(next(row for row in read(out) if row["part"] == part and not row["name"])), flush=True)
    finally:
        for process in fillers:
            kill(process)


def line(row: dict[str, Any]) -> str:
    """Return the line of a row in the table."""
    found, head = row["found"], f"{row['part']} {row['name']}".strip()
    if row["verdict"] == PASSED and isinstance(found, dict) and "targets" in found:  # of benchmarks/gpu.py
        cells = [f"{SHORT[peer]} {seconds * 1e6:#.5g}".rstrip(".") for peer, seconds in found["seconds"].items()]
        cells += [f"{found['of floor']:.0%} of floor"] if found["of floor"] else []
        cells += [f"{SHORT[peer]} FAILED" for peer in found.get("errors", ())]
        return f"{head}: us {', '.join(cells)}; {'; '.join(text + ' !' * (not ok) for text, ok in found['targets'])}"
    if isinstance(found, dict) and "top" in found:  # a profile
        top = ", ".join(f"{kernel[:20]} {us}" for kernel, (_, us) in list(found["top"].items())[:2])
        return f"{head}: {found['us']} us, busy {found['busy']:.0%}, {found['kernels']:g} kernels: {top}"
    return f"{head}: {row['verdict']} {row['seconds']:.1f} s {' '.join(str(found).split())[:MAX_WORDS]}"


def table(out: Path) -> str:
    """Return in at most ``MAX_OUTPUT`` characters: parts, some failures of each, the machine, times, and other rows."""
    lines, failures = list[tuple[int, str]](), dict[str, int]()
    for row in read(out):
        part, failed = row["part"], row["verdict"] != PASSED and row["name"]
        failures[part] = failures.get(part, 0) + bool(failed)
        if failures[part] <= MAX_FAILURES if failed else part != "E" or not row["name"]:  # the others are in plans.json
            place = 0 if not row["name"] else 1 if failed else 2 if part == "A" else 3 if part in "FGH" else 4
            lines.append((place, line(row)))
    text = "\n".join(text for _, text in sorted(lines, key=lambda item: item[0]))
    return text if len(text) <= MAX_OUTPUT else f"{text[: MAX_OUTPUT - 30]}\n... the rest is in rows.jsonl"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True, help="the folder of rows.jsonl, log.txt and plans.json")
    parser.add_argument("--seconds", type=float, default=530, help="of all parts")
    parser.add_argument("--only", default="".join(PARTS), help='letters of parts, or "failed"')
    parser.add_argument("--quick", action="store_true", help="tiny arrays; without CuPy on stand-ins")
    parser.add_argument("--part", help="run a part in this process")
    parser.add_argument("--end", type=float, help="of this part, by time.monotonic()")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the processes end, too
    if options.part:
        run_here(options.part, options.out, options.end, options.quick)
        return 0
    passed = {row["part"] for row in read(options.out) if not row["name"] and row["verdict"] == PASSED}
    parts = [part for part in PARTS if (part not in passed if options.only == "failed" else part in options.only)]
    run_parts(parts, options.out, options.seconds, options.quick)
    print(f"\n{table(options.out)}")
    verdicts = {row["verdict"] for row in read(options.out) if not row["name"]}
    return int(verdicts != {PASSED})


if __name__ == "__main__":
    sys.exit(main())
