"""Measure GPU times beside PyTorch eager and compiled, JAX, CuPy and the memory bandwidth, in one process.

python benchmarks/gpu.py            # minutes, on a GPU: writes results/gpu.json and results/gpu.md
python benchmarks/gpu.py --quick    # a smoke test with small arrays, without torch.compile: writes nothing
python benchmarks/gpu.py --minutes 4 --no-compile
python benchmarks/gpu.py --only softmax

Without a GPU, it prints a message and exits.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import _chains
import numpy as np
import steps
from _table import Work, format_duration, machine, markdown, save

import neonlite as nl
from neonlite.backend import Backend, NervanaObject
from neonlite.backend.runtimes import load_runtime

TF32 = "TF32"  # in the name of a case: float32 is multiplied as TF32
KINDS = {"float16": "float16", "bfloat16": "bfloat16", TF32: "float32", "float32": "float32"}  # the dtype of each
EAGER, COMPILED, JAX, CUPY, OURS = "torch eager", "torch.compile", "jax.jit", "cupy", "neonlite"
LAUNCHES, ROUNDS = 20, 11  # at most, between two events; and samples of each peer
QUICK_LAUNCHES, QUICK_ROUNDS = 2, 2
SAMPLE_SECONDS = 0.05  # long enough for a sample, with fewer launches
NOTE = """\
Times are measured between two CUDA events around up to 20 launches, those of `jax.jit` by the clock until its result is
ready; they are medians of 11 rounds, in each of which every peer runs once, in random order. `torch.compile` uses CUDA
graphs (mode "reduce-overhead"). Arrays of op-trees are larger than the GPU's L2 cache. The floor is the time to read
and write the required bytes at the bandwidth of a 1 GB copy on this GPU, measured in the same run, or the time of the
operations at the rate of PyTorch's product of two 8192 x 8192 matrices of the same dtype, if that is longer. Where a
case says TF32, all libraries multiply float32 as TF32; elsewhere, none does. "of floor" is floor / time. A training
step is the forward pass, the backward pass and an update by gradient descent with momentum, for 128 images (characters:
64 texts); neonlite replays it as a graph. "host" is the time until the call returns to Python: a tree of three ops over
16 elements, built and run, and a compiled one."""


class Case(NamedTuple):
    """A measured case: the function of each library, the required bytes and operations, and the targets."""

    peers: dict[str, Work]
    nbytes: float = 0.0
    flops: float = 0.0
    kind: str = "float32"  # of the operations
    of_floor: float = 0.0  # at least
    most: tuple[tuple[str, float], ...] = ()  # (peer, times as long as it, at most)
    host: float = 0.0  # microseconds, at most


class Libraries:
    """The installed libraries that can use the GPU."""

    def __init__(self, cupy: Any, found: bool = True, compiled: bool = True) -> None:
        self.cupy, self.compiled = cupy, compiled
        self.torch: Any = import_module("torch") if found and find_spec("torch") else None
        if self.torch and not self.torch.cuda.is_available():
            self.torch = None
        self.jax: Any = import_module("jax") if found and find_spec("jax") else None
        if self.jax and not any(d.platform == "gpu" for d in self.jax.devices()):
            self.jax = None

    def multiply(self, runtime: Any, tf32: bool) -> None:
        """Let PyTorch and neonlite multiply float32 as TF32, or both as float32."""
        runtime.driver.tf32 = tf32
        if self.torch:
            self.torch.backends.cuda.matmul.allow_tf32 = self.torch.backends.cudnn.allow_tf32 = tf32

    def flags(self) -> dict[str, str]:
        """Return the settings that decide whether float32 is multiplied as TF32."""
        found = {name: os.environ.get(name, "") for name in ("NEONLITE_TF32", "CUPY_TF32", "NVIDIA_TF32_OVERRIDE")}
        if self.torch:
            backends = self.torch.backends
            found["torch matmul"] = str(backends.cuda.matmul.allow_tf32)
            found["torch cudnn"] = str(backends.cudnn.allow_tf32)
        if self.jax:
            found["jax matmul precision"] = str(self.jax.config.jax_default_matmul_precision)
        return found

    def works(self, arrays: list[Any], formulas: dict[str, Callable[..., Any]]) -> dict[str, Work]:
        """Return a function for each library that evaluates its formula on the arrays."""
        found: dict[str, Work] = {}
        if f := formulas.get(CUPY):
            theirs = [self.cupy.asarray(a) for a in arrays]
            found[CUPY] = lambda: f(self.cupy, *theirs)
        if self.torch and (g := formulas.get(EAGER)):
            tensors = [self.torch.from_numpy(a).cuda() for a in arrays]
            found[EAGER] = lambda: g(self.torch, *tensors)
            if self.compiled:
                compiled = self.torch.compile(lambda *xs: g(self.torch, *xs), mode="reduce-overhead")
                found[COMPILED] = lambda: compiled(*tensors)
        if self.jax and (h := formulas.get(JAX)):
            jits, placed = self.jax.jit(lambda *xs: h(self.jax.numpy, *xs)), [self.jax.numpy.asarray(a) for a in arrays]
            found[JAX] = lambda: jits(*placed).block_until_ready()
        return found


# --- expressions -----------------------------------------------------------------------------------------------------


def logistic(of: Libraries, be: Backend, small: bool) -> Case:
    x = np.random.default_rng(0).standard_normal((100, 10**4 if small else 10**6), np.float32)
    t, out = be.array(x), be.empty(x.shape)

    def f(xp: Any, x: Any) -> Any:
        return 1 / (1 + xp.exp(-x))

    peers = {OURS: lambda: out.__setitem__(slice(None), 1 / (1 + be.exp(-t)))}
    peers |= of.works([x], {CUPY: f, EAGER: f, JAX: f})
    return Case(peers, 2 * x.nbytes, of_floor=0.9)


def softmax(of: Libraries, be: Backend, small: bool) -> Case:
    x = np.random.default_rng(0).standard_normal((1000, 1000 if small else 10**5), np.float32)
    t, out = be.array(x), be.empty(x.shape)

    def plain(xp: Any, x: Any) -> Any:
        e = xp.exp(x - xp.max(x, axis=0, keepdims=True))
        return e / xp.sum(e, axis=0, keepdims=True)

    peers = {OURS: lambda: out.__setitem__(slice(None), be.softmax(t, axis=0))}
    peers |= of.works([x], {CUPY: plain, EAGER: lambda torch, x: torch.softmax(x, 0), JAX: plain})
    return Case(peers, 2 * x.nbytes, of_floor=0.8, most=((EAGER, 1.0), (COMPILED, 1.0)))


def batch_norm(of: Libraries, be: Backend, small: bool) -> Case:
    """Forward and backward pass of 64 channels: reads x twice and the error twice, and writes both results."""
    N, C, P = (4 if small else 128), 64, 56 * 56
    x, error = (np.random.default_rng(n).standard_normal((C, P * N), np.float32) for n in range(2))
    gamma = np.ones((C, 1), np.float32)
    tensors = [be.array(a) for a in (x, error, gamma, gamma)]
    y, dx = be.empty(x.shape), be.empty(x.shape)
    mean, var, gmean, gvar, dgamma, dbeta = (be.zeros((C, 1)) for _ in range(6))

    def ours() -> None:
        t, e, g, b = tensors
        be.compound_fprop_bn(t, mean, var, gmean, gvar, g, b, y, eps=1e-3, rho=0.9)
        be.compound_bprop_bn(dx, dgamma, dbeta, e, t, mean, var, g, eps=1e-3)

    def theirs(torch: Any, x: Any, error: Any, gamma: Any) -> Any:
        x = x.reshape(C, N, P).transpose(0, 1).contiguous().requires_grad_()  # (N, C, P)
        y = torch.nn.functional.batch_norm(x, None, None, gamma[:, 0], gamma[:, 0], True, 0.1, 1e-3)
        return torch.autograd.grad(y, x, error.reshape(N, C, P))[0]

    return Case({OURS: ours, **of.works([x, error, gamma], {EAGER: theirs})}, 8 * x.nbytes, of_floor=0.85)


def chain(pass_name: str, kind: str) -> Callable[[Libraries, Backend, bool], Case]:
    """Three convolutions with bias and Rectlin: the forward pass, or also the gradients of images and weights."""

    def make(of: Libraries, be: Backend, small: bool) -> Case:
        N, C, H = (2, 8, 8) if small else (128, 64, 56)
        layers = _chains.Chain(N, C, H, ((3, C, 1),) * 3)
        be, dtype = Backend(be.runtime, rng_seed=1, default_dtype=KINDS[kind]), KINDS[kind]
        peers: dict[str, Work] = {OURS: _chains.ours(be, layers)[pass_name][0]}
        if of.torch:
            peers[EAGER] = _chains.theirs(of.torch, layers, True, "cuda", dtype)[pass_name][0]
        passes, images = (1 if pass_name == "infer" else 3) * 3, N * C * H * H
        nbytes = passes * 2 * images * (4 if dtype == "float32" else 2)
        return Case(peers, nbytes, passes * 2 * 9 * C * images, kind, most=((EAGER, 1.05),))

    return make


def training(name: str) -> Callable[[Libraries, Backend, bool], Case]:
    def make(of: Libraries, be: Backend, small: bool) -> Case:
        case = steps.case_of(name)
        if name in steps.CHARACTERS:
            ours, net = steps._characters.ours(case, be.runtime, steps.STILL)
            peers = {OURS: ours[0]}
            if of.torch:
                for peer, compiled in ((EAGER, False), (COMPILED, True))[: 1 + of.compiled]:
                    peers[peer] = steps._characters.theirs(of.torch, case, net, steps.STILL, "cuda", compiled)[0]
            return Case(peers, most=((EAGER, 0.8), (COMPILED, 1.0)))
        peer, net = steps.ours(case, be.runtime, steps.STILL)  # type: ignore[arg-type]
        peers = {OURS: peer.step}
        if of.torch:
            images = len(case.shape) == 3
            peers[EAGER] = steps.theirs(case, net, steps.STILL, images, "cuda").step
            if of.compiled:
                peers[COMPILED] = steps.theirs(case, net, steps.STILL, images, "cuda", compiled=True).step
        return Case(peers, most=((EAGER, 0.8), (COMPILED, 1.0)))

    return make


def host(built: bool) -> Callable[[Libraries, Backend, bool], Case]:
    """Measure the time until the call returns to Python, launch included."""

    def make(of: Libraries, be: Backend, small: bool) -> Case:
        x, out = be.ones((4, 4)), be.empty((4, 4))
        compiled = be.compile([out], [1 / (1 + be.exp(-x))])
        work: Work = (lambda: out.__setitem__(slice(None), 1 / (1 + be.exp(-x)))) if built else compiled
        peers = {OURS: work}
        if of.torch:
            t = of.torch.ones(4, 4, device="cuda")
            peers[EAGER] = lambda: 1 / (1 + of.torch.exp(-t))
        return Case(peers, host=12.0 if built else 6.0)

    return make


CASES: dict[str, Callable[[Libraries, Backend, bool], Case]] = {
    "1/(1+exp(-x)), 1e8": logistic,
    "softmax over axis 0, (1000, 100000)": softmax,
    "batch norm forward + backward, 64 x 401408": batch_norm,
    **{
        f"3 x conv 3x3 64->64, 56x56, N=128, {pass_name}, {kind}": chain(pass_name, kind)
        for kind in KINDS
        for pass_name in ("infer", "fprop and bprop")
    },
    "step: mlp": training("mlp 784-100-10"),
    "step: cifar": training("cifar"),
    "step: cifar, TF32": training("cifar"),
    "step: lstm": training("char lstm"),
    "step: lstm, TF32": training("char lstm"),
    "step: resnet": training("resnet"),
    "step: resnet, TF32": training("resnet"),
    "host: a small tree, built and run": host(True),
    "host: a small tree, compiled": host(False),
}


# --- measuring -------------------------------------------------------------------------------------------------------


def between_events(cupy: Any, work: Work, launches: int) -> float:
    """Return the GPU time of a call in seconds."""
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    for _ in range(launches):
        work()
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end)) / 1e3 / launches


def by_the_clock(cupy: Any, work: Work, launches: int, wait: bool = True) -> float:
    """Return the seconds of a call, until its kernels are done or (``wait=False``) until it returns."""
    cupy.cuda.Device().synchronize()
    start = time.perf_counter()
    for _ in range(launches):
        work()
    if wait:
        cupy.cuda.Device().synchronize()
    return (time.perf_counter() - start) / launches


def measure(cupy: Any, case: Case, launches: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each peer in each round."""
    longest = 0.0
    for work in case.peers.values():
        by_the_clock(cupy, work, 5)  # compilation, tuning and recording happen here
        longest = max(longest, by_the_clock(cupy, work, 1))
    launches = max(1, min(launches, round(SAMPLE_SECONDS / longest)))
    times: dict[str, list[float]] = {peer: [] for peer in case.peers}
    order, shuffle = list(case.peers), random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for peer in order:
            work = case.peers[peer]
            if case.host:
                times[peer].append(by_the_clock(cupy, work, launches, wait=False))
            else:
                times[peer].append((by_the_clock if peer == JAX else between_events)(cupy, work, launches))
    return times


def bandwidth(cupy: Any, nbytes: int) -> float:
    """Return the bandwidth of a copy: bytes read and written per second."""
    x, y = cupy.zeros(nbytes, dtype="uint8"), cupy.zeros(nbytes, dtype="uint8")

    def copy() -> None:
        y[...] = x

    between_events(cupy, copy, 3)
    return 2 * nbytes / min(between_events(cupy, copy, 10) for _ in range(3))


def rate(of: Libraries, dtype: str, n: int) -> float:
    """Return the operations per second of PyTorch's product of two large matrices; 0 without PyTorch."""
    if not of.torch:
        return 0.0
    x = of.torch.ones(n, n, device="cuda", dtype=getattr(of.torch, dtype))
    between_events(of.cupy, lambda: x @ x, 3)
    return 2 * n**3 / min(between_events(of.cupy, lambda: x @ x, 10) for _ in range(3))


def evaluate(case: Case, times: dict[str, list[float]], floor: float) -> tuple[list[str], dict[str, Any]]:
    """Return the cells of a row, and its record: times, the fraction of the floor, and the targets."""
    medians = {peer: statistics.median(found) for peer, found in times.items()}
    ours, targets = medians[OURS], []
    if case.of_floor and floor:
        targets.append((f"at least {case.of_floor:.0%} of floor: {floor / ours:.0%}", floor / ours >= case.of_floor))
    for peer, most in case.most:
        if peer in times:
            longer = statistics.median(x / y for x, y in zip(times[OURS], times[peer], strict=True))
            targets.append((f"at most {most:g} x {peer}: {longer:.2f}", longer <= most))
    if case.host:
        targets.append((f"at most {case.host:g} µs: {ours * 1e6:.1f}", ours * 1e6 <= case.host))
    words = [
        *(format_duration(medians[peer]) if peer in medians else "" for peer in (OURS, EAGER, COMPILED, JAX, CUPY))
    ]
    words += [
        f"{floor / ours:.0%}" if floor else "",
        "; ".join(f"{text} {'yes' if ok else 'NO'}" for text, ok in targets),
    ]
    return words, {"seconds": medians, "of floor": floor / ours if floor else None, "targets": targets}


def run(only: str, quick: bool, found: bool = True, compiled: bool = True, minutes: float = math.inf) -> dict[str, Any]:
    """Measure, and return the report; ``found``: whether to import PyTorch and JAX."""
    runtime, end = load_runtime("gpu"), time.monotonic() + 60 * minutes
    of, cupy = Libraries(runtime.cupy, found, compiled), runtime.cupy
    launches, rounds = (QUICK_LAUNCHES, QUICK_ROUNDS) if quick else (LAUNCHES, ROUNDS)
    speed = bandwidth(cupy, 10**6 if quick else 10**9)
    rates = {}
    for kind in KINDS:
        of.multiply(runtime, kind == TF32)
        rates[kind] = rate(of, KINDS[kind], 64 if quick else 8192)
    report: dict[str, Any] = {"machine": machine("neonlite", "cupy", "torch", "jax"), "gpu": runtime.version_info()}
    report |= {"TF32": of.flags(), "bytes a second": speed, "operations a second": rates, "cases": {}}
    rows, left_out = list[list[str]](), list[str]()
    for name, make in CASES.items():
        if only not in name:
            continue
        if time.monotonic() > end:
            left_out.append(name)
            continue
        NervanaObject.be = be = Backend("gpu", rng_seed=1)
        of.multiply(be.runtime, TF32 in name)
        try:
            case = make(of, be, quick)
            operations = case.flops / rates[case.kind] if rates.get(case.kind) else 0.0
            floor = max(case.nbytes / speed, operations)
            words, report["cases"][name] = evaluate(case, measure(cupy, case, launches, rounds), floor)
            report["cases"][name]["TF32"] = be.runtime.driver.tf32
        except Exception as error:  # a failed case must not lose the others; main returns 1
            traceback.print_exc()
            words, report["cases"][name] = [f"FAILED: {error!s:.60}", *[""] * 6], {"error": str(error)}
        rows.append([name, *words])
        print(f"{name}: {words[-1] or words[0]}", file=sys.stderr)
    flags = ", ".join(f"{name}={value or 'unset'}" for name, value in report["TF32"].items())
    head = ["case", OURS, EAGER, COMPILED, JAX, CUPY, "of floor", "target"]
    intro = f"{report['gpu']}; a copy moves {speed / 1e12:.2f} TB/s. TF32: {flags}."
    missing = f"\n\nNot measured within {minutes:g} minutes: {'; '.join(left_out)}" if left_out else ""
    report["page"] = f"# GPU\n\n{intro}\n\n{NOTE}\n\n{markdown(head, rows)}{missing}\n"
    return report


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="a smoke test with small arrays, which writes nothing")
    parser.add_argument("--only", default="", help="a part of the names of the cases to run")
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile, which takes minutes")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no case after this time")
    options = parser.parse_args(arguments)
    try:
        load_runtime("gpu")
    except (ImportError, RuntimeError) as error:
        print(f"nothing is measured, as there is no GPU: {error}")
        return 0
    compiled = not (options.quick or options.no_compile)
    report = run(options.only, options.quick, compiled=compiled, minutes=options.minutes)
    page = report.pop("page")
    print(page)
    if not (options.quick or options.only):
        save("gpu", report, page)
    nl.cleanup_backend()
    return int(any("error" in case for case in report["cases"].values()))


if __name__ == "__main__":
    sys.exit(main())
