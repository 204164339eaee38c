"""Measure GPU times beside PyTorch eager, compiled and as a CUDA graph, JAX, CuPy and the hardware, in one process.

python benchmarks/gpu.py            # minutes, on a GPU: writes results/gpu.json and results/gpu.md
python benchmarks/gpu.py --quick    # a smoke test with small arrays, without torch.compile: writes nothing
python benchmarks/gpu.py --minutes 4 --no-compile
python benchmarks/gpu.py --only softmax

Without a GPU, it prints a message and exits.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import random
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import _chains
import _characters
import _jitted
import numpy as np
import steps
from _table import Work, format_duration, machine, markdown, save

import neonlite as nl
from neonlite import Autodiff
from neonlite.backend import Backend, NervanaObject
from neonlite.backend.runtimes import load_runtime

TF32 = "TF32"  # in the name of a case: float32 is multiplied as TF32
KINDS = {"float16": "float16", "bfloat16": "bfloat16", TF32: "float32", "float32": "float32"}  # the dtype of each
EAGER, COMPILED, GRAPHED, JAX, CUPY = "torch eager", "torch.compile", "torch graph", "jax.jit", "cupy"
OURS, REPLAYED = "neonlite", "neonlite, replayed"
PEERS = (OURS, REPLAYED, EAGER, COMPILED, GRAPHED, JAX, CUPY)
MODE = _characters.MODES["cuda"]  # of torch.compile
LAUNCHES, ROUNDS = 20, 11  # at most, between two events; and samples of each peer
QUICK_LAUNCHES, QUICK_ROUNDS = 2, 2
SAMPLE_SECONDS = 0.03  # long enough for a sample, with fewer launches
NOTE = """\
Times are measured between two CUDA events around up to 20 launches, those of `jax.jit` by the clock from the first of
up to 20 queued calls until the last result is ready; they are medians of 11 rounds, in each of which every peer runs
once, in random order. "replayed" is the same work as a CUDA graph. `torch.compile` has the mode
"max-autotune-no-cudagraphs", "torch graph" is what it compiled in one CUDA graph: of a training step the whole step,
with fused SGD. `jax.jit` compiles a whole step, too. Arrays of op-trees are larger than the GPU's L2 cache. The floor
is the time to read and write the required bytes at the bandwidth of a 1 GB copy on this GPU, measured in the same run,
or the time of the operations at the rate of PyTorch's product of two random 8192 x 8192 matrices of the same dtype, if
that is longer. Where a case says TF32, all libraries multiply float32 as TF32; elsewhere, none does. "of floor" is
floor / time, of the replayed work if there is any, as is the ratio to the fastest other library in "target". A training
step is the forward pass, the backward pass and an update by gradient descent with momentum, for 128 images (characters:
64 texts). In bfloat16, the weights of neonlite and JAX are bfloat16, and PyTorch casts float32 weights by autocast.
"host" is the time until the call returns to Python: a tree of three ops over 16 elements, built and run, and a compiled
one."""


class Case(NamedTuple):
    """A measured case: the function of each library, the required bytes and operations, and the targets."""

    peers: dict[str, Work]
    nbytes: float = 0.0
    flops: float = 0.0
    kind: str = "float32"  # of the operations
    of_floor: float = 0.0  # at least
    most: float = 0.0  # times as long as the fastest other library, at most
    host: float = 0.0  # microseconds, at most


class Libraries:
    """The installed libraries that can use the GPU, and what the GPU can do: bytes and operations a second.

    ``device="cpu"`` is for tests on a stand-in for CuPy: the other libraries use the CPU.
    """

    def __init__(
        self, runtime: Any, small: bool, found: bool = True, compiled: bool = True, device: str = "cuda"
    ) -> None:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take most of the memory
        self.runtime, self.cupy, self.small, self.compiled, self.device = runtime, runtime.cupy, small, compiled, device
        self.torch: Any = import_module("torch") if found and find_spec("torch") else None
        if self.torch and device == "cuda" and not self.torch.cuda.is_available():
            self.torch = None
        self.jax: Any = import_module("jax") if found and find_spec("jax") else None
        if self.jax and device == "cuda" and not any(d.platform == "gpu" for d in self.jax.devices()):
            self.jax = None
        self.bandwidth = bandwidth(self.cupy, 10**6 if small else 10**9)
        self.rates = {kind: self.rate(kind, 64 if small else 8192) for kind in KINDS}

    def multiply(self, name: str) -> None:
        """Let all libraries multiply float32 as TF32 if the name of a case says so, else as float32."""
        tf32 = TF32 in name
        self.runtime.driver.tf32 = tf32
        if self.torch:
            self.torch.backends.cuda.matmul.allow_tf32 = self.torch.backends.cudnn.allow_tf32 = tf32
        if self.jax:
            precision = "tensorfloat32" if tf32 else None if "float16" in name else "highest"
            self.jax.config.update("jax_default_matmul_precision", precision)

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

    def rate(self, kind: str, n: int) -> float:
        """Return the operations per second of PyTorch's product of two large random matrices; 0 without PyTorch."""
        if not self.torch:
            return 0.0
        self.multiply(kind)
        x = self.torch.randn(n, n, device=self.device).to(getattr(self.torch, KINDS[kind]))
        between_events(self.cupy, lambda: x @ x, 3)
        return 2 * n**3 / min(between_events(self.cupy, lambda: x @ x, 10) for _ in range(3))

    def of_torch(self, make: Callable[[str], Work]) -> dict[str, Work]:
        """Return PyTorch's peers; ``make(mode)`` returns the work, compiled by torch.compile if the mode is not ""."""
        if not self.torch:
            return {}
        found = {EAGER: make("")}
        if self.compiled:
            found[COMPILED] = lazily(lambda: make(MODE))
        return found | {GRAPHED: lazily(lambda: self.graphed(list(found.values())[-1]))}

    def graphed(self, work: Work) -> Work:
        """Return the replay of a CUDA graph of PyTorch's work."""
        if self.device == "cpu":
            return work
        cuda = self.torch.cuda
        side, graph = cuda.Stream(), cuda.CUDAGraph()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(3):
                work()
        cuda.current_stream().wait_stream(side)
        with cuda.graph(graph, capture_error_mode="thread_local"):
            work()
        return lambda keepalive=work: graph.replay()  # type: ignore[misc]

    def works(
        self,
        arrays: Sequence[Any],
        formulas: dict[str, Callable[..., Any]],
        error: Any = None,
        wrt: int = 1,
        dtype: str = "float32",
    ) -> dict[str, Work]:
        """Return a function for each library that evaluates its formula on the arrays.

        ``error``: of the result, for which also the gradients of the first ``wrt`` arrays are computed.
        """
        found: dict[str, Work] = {}
        if f := formulas.get(CUPY):
            theirs = [self.cupy.asarray(a.astype(dtype)) for a in arrays]
            found[CUPY] = lambda: f(self.cupy, *theirs)
        if self.torch and (g := formulas.get(EAGER)):
            kind = {"device": self.device, "dtype": getattr(self.torch, dtype)}
            tensors = [self.torch.from_numpy(a).to(**kind) for a in arrays]
            of_result = None if error is None else self.torch.from_numpy(error).to(**kind)
            leaves = [] if error is None else [tensor.requires_grad_() for tensor in tensors[:wrt]]

            def make(mode: str) -> Work:
                formula = self.torch.compile(partial(g, self.torch), mode=mode) if mode else partial(g, self.torch)
                if error is None:
                    return lambda: formula(*tensors)
                return lambda: self.torch.autograd.grad(formula(*tensors), leaves, of_result)

            found |= self.of_torch(make)
        if self.jax and (h := formulas.get(JAX)):
            jax, jnp = self.jax, self.jax.numpy
            placed = [jnp.asarray(a, dtype) for a in arrays]
            if error is None:
                jitted = jax.jit(partial(h, jnp))
                found[JAX] = lambda: jitted(*placed)
            else:

                def both(e: Any, *xs: Any) -> Any:
                    y, pull_back = jax.vjp(lambda *first: h(jnp, *first, *xs[wrt:]), *xs[:wrt])
                    return y, pull_back(e)

                of_both, e = jax.jit(both), jnp.asarray(error, dtype)
                found[JAX] = lambda: of_both(e, *placed)
        return found


def lazily(make: Callable[[], Work]) -> Work:
    """Return a work that is made when it is first called, so that only its peer fails if that fails."""
    made = cache(make)
    return lambda: made()()


def ours(be: Backend, work: Work, replayed: Work | None = None) -> dict[str, Work]:
    """Return neonlite's peers: work that runs without CUDA graphs, and as one."""

    def eager() -> object:
        graphs, be.graphs = be.graphs, None
        try:
            return work()
        finally:
            be.graphs = graphs

    return {OURS: eager, REPLAYED: replayed or (lambda: be.replay("case", work))}


def drawn(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


# --- expressions -----------------------------------------------------------------------------------------------------


def logistic(of: Libraries, be: Backend) -> Case:
    x = drawn(100, 10**4 if of.small else 10**6)
    t, out = be.array(x), be.empty(x.shape)

    def f(xp: Any, x: Any) -> Any:
        return 1 / (1 + xp.exp(-x))

    peers = ours(be, lambda: out.__setitem__(slice(None), 1 / (1 + be.exp(-t))))
    return Case(peers | of.works([x], {CUPY: f, EAGER: f, JAX: f}), 2 * x.nbytes, of_floor=0.93, most=1.0)


def softmax(of: Libraries, be: Backend) -> Case:
    x = drawn(1000, 1000 if of.small else 10**5)
    t, out = be.array(x), be.empty(x.shape)

    def plain(xp: Any, x: Any) -> Any:
        e = xp.exp(x - xp.max(x, axis=0, keepdims=True))
        return e / xp.sum(e, axis=0, keepdims=True)

    peers = ours(be, lambda: out.__setitem__(slice(None), be.softmax(t, axis=0)))
    peers |= of.works([x], {CUPY: plain, EAGER: lambda torch, x: torch.softmax(x, 0), JAX: plain})
    return Case(peers, 2 * x.nbytes, of_floor=0.88, most=0.9)


def batch_norm(of: Libraries, be: Backend) -> Case:
    """Forward and backward pass of 64 channels: read x and write y, then read x and the error and write dx."""
    N, C, P = (4 if of.small else 128), 64, 56 * 56
    x, error, gamma = drawn(C, P * N), drawn(C, P * N, seed=1), np.ones((C, 1), np.float32)
    t, e, g, b = (be.array(a) for a in (x, error, gamma, gamma))
    y, dx = be.empty(x.shape), be.empty(x.shape)
    mean, var, gmean, gvar, dgamma, dbeta = (be.zeros((C, 1)) for _ in range(6))

    def both() -> None:
        be.compound_fprop_bn(t, mean, var, gmean, gvar, g, b, y, eps=1e-3, rho=0.9)
        be.compound_bprop_bn(dx, dgamma, dbeta, e, t, mean, var, g, eps=1e-3)

    def theirs(torch: Any, x: Any, gamma: Any) -> Any:
        return torch.nn.functional.batch_norm(x, None, None, gamma[:, 0], gamma[:, 0], True, 0.1, 1e-3)

    def formula(jnp: Any, x: Any, gamma: Any) -> Any:  # of (C, P N)
        far = x - x.mean(1, keepdims=True)
        return far / jnp.sqrt((far * far).mean(1, keepdims=True) + 1e-3) * gamma + gamma

    by_torch = of.works([x.reshape(N, C, P), gamma], {EAGER: theirs}, error.reshape(N, C, P), wrt=2)
    peers = ours(be, both) | by_torch | of.works([x, gamma], {JAX: formula}, error, wrt=2)
    return Case(peers, 5 * x.nbytes, of_floor=0.8, most=0.8)


# --- primitives ------------------------------------------------------------------------------------------------------


def chain(pass_name: str, kind: str) -> Callable[[Libraries, Backend], Case]:
    """Three convolutions with bias and Rectlin: the forward pass, or also the gradients of images and weights."""

    def make(of: Libraries, be: Backend) -> Case:
        N, C, H = (2, 8, 8) if of.small else (128, 64, 56)
        layers, dtype, is_both = _chains.Chain(N, C, H, ((3, C, 1),) * 3), KINDS[kind], pass_name != "infer"
        be = Backend(be.runtime, rng_seed=1, default_dtype=dtype)
        peers = ours(be, _chains.ours(be, layers)[pass_name][0])
        peers |= of.of_torch(lambda mode: _chains.theirs(of.torch, layers, True, of.device, dtype, mode)[pass_name][0])

        def formula(jnp: Any, y: Any, *weights: Any) -> Any:
            for filters, bias in zip(weights[::2], weights[1::2], strict=True):
                spec = ("NHWC", "HWIO", "NHWC")
                y = of.jax.lax.conv_general_dilated(y, filters, (1, 1), "SAME", dimension_numbers=spec)
                y = of.jax.nn.relu(y + bias)
            return y

        x, e, weights = _chains.drawn(layers)
        x, e = (a.transpose(3, 1, 2, 0) for a in (x, e))
        pairs = [(f.reshape(C, 3, 3, C).transpose(1, 2, 0, 3), b[:, 0]) for f, b in weights]
        arrays = [x, *(part for pair in pairs for part in pair)]
        peers |= of.works(arrays, {JAX: formula}, e if is_both else None, len(arrays), dtype)
        passes, images = (3 if is_both else 1) * 3, N * C * H * H
        nbytes = passes * 2 * images * (4 if dtype == "float32" else 2)
        return Case(peers, nbytes, passes * 2 * 9 * C * images, kind, most=0.9)

    return make


def product(kind: str) -> Callable[[Libraries, Backend], Case]:
    """The product of two square matrices."""

    def make(of: Libraries, be: Backend) -> Case:
        n, dtype = 64 if of.small else 8192, KINDS[kind]
        arrays = [drawn(n, n, seed=seed) for seed in range(2)]
        a, b = (be.array(x, dtype=dtype) for x in arrays)
        out = be.empty((n, n), dtype=dtype)

        def f(xp: Any, a: Any, b: Any) -> Any:
            return a @ b

        by_cupy = {} if kind in ("bfloat16", TF32) else {CUPY: f}
        peers = ours(be, lambda: out.__setitem__(slice(None), be.dot(a, b)))
        peers |= of.works(arrays, {EAGER: f, JAX: f, **by_cupy}, dtype=dtype)
        return Case(peers, 3 * out.size * np.dtype(dtype).itemsize, 2 * n**3, kind, most=1.02)

    return make


def attention(is_both: bool) -> Callable[[Libraries, Backend], Case]:
    """Scaled dot product attention of 16 heads of 16 sequences, or also its gradients, in bfloat16."""

    def make(of: Libraries, be: Backend) -> Case:
        N, H, T, d = (2, 2, 8, 4) if of.small else (16, 16, 1024, 64)
        dtype, arrays = "bfloat16", [drawn(N, H, T, d, seed=seed) for seed in range(4)]
        *qkv, e = (be.array(x.reshape(N * H, T, d), dtype=dtype) for x in arrays)
        outs = [be.empty((N * H, T, d), dtype=dtype) for _ in range(4)]
        tree = be.attention(*qkv)
        trees = [tree, *(Autodiff(tree, be, e).get_grad_op_tree(qkv) if is_both else ())]
        compiled = be.compile(outs[: len(trees)], trees)

        def theirs(torch: Any, q: Any, k: Any, v: Any) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

        def formula(jnp: Any, q: Any, k: Any, v: Any) -> Any:  # (N, T, H, d)
            by = "cudnn" if of.device == "cuda" else None
            return of.jax.nn.dot_product_attention(q, k, v, implementation=by)

        peers = ours(be, compiled)
        for formulas, views in (({EAGER: theirs}, arrays), ({JAX: formula}, [x.swapaxes(1, 2) for x in arrays])):
            peers |= of.works(views[:3], formulas, views[3] if is_both else None, 3, dtype)
        nbytes, flops = (9 if is_both else 4) * 2 * arrays[0].size, (14 if is_both else 4) * N * H * T * T * d
        return Case(peers, nbytes, flops, dtype, most=1.02)

    return make


# --- training steps, and the host ------------------------------------------------------------------------------------


def training(
    name: str, most: float = 0.8, dtype: str = "float32", **sizes: int
) -> Callable[[Libraries, Backend], Case]:
    """A training step of a network of steps.py; ``sizes``: of a network of characters."""

    def make(of: Libraries, be: Backend) -> Case:
        if name in steps.CHARACTERS:
            small = {"steps": 3, "texts": 2, "hidden": 8, "heads": 2}
            texts = _characters.case(steps.CHARACTERS[name], **sizes | (small if of.small else {}))
            works, net = _characters.ours(texts, be.runtime, steps.STILL, dtype)
            step = works[0]
        else:
            images: Any = steps.drawn(*steps.NETWORKS[name], 8 if of.small else steps.N)
            peer, net = steps.ours(images, be.runtime, steps.STILL, dtype)
            step = peer.step

        def by_torch(mode: str) -> Work:
            more = net, steps.STILL
            if name in steps.CHARACTERS:
                return _characters.theirs(of.torch, texts, *more, of.device, bool(mode), dtype)[0]  # type: ignore[no-any-return]
            return steps.theirs(images, *more, len(images.shape) == 3, of.device, bool(mode), dtype).step

        def by_jax() -> Work:
            if name in steps.CHARACTERS:
                return _jitted.characters(of.jax, texts, texts.heads, _characters.VOCABULARY, net, steps.STILL)[0]
            return _jitted.images(
                of.jax, list(map(steps.read, images.layers)), images.x, images.labels, net, steps.STILL
            )[0]

        peers = ours(net.be, step, step) | of.of_torch(by_torch) | ({JAX: lazily(by_jax)} if of.jax else {})
        return Case(peers, most=most)

    return make


def host(built: bool) -> Callable[[Libraries, Backend], Case]:
    """Measure the time until the call returns to Python, launch included."""

    def make(of: Libraries, be: Backend) -> Case:
        x, out = be.ones((4, 4)), be.empty((4, 4))
        compiled = be.compile([out], [1 / (1 + be.exp(-x))])
        work: Work = (lambda: out.__setitem__(slice(None), 1 / (1 + be.exp(-x)))) if built else compiled
        peers = {OURS: work}
        if of.torch:
            t = of.torch.ones(4, 4, device=of.device)
            peers[EAGER] = lambda: 1 / (1 + of.torch.exp(-t))
        return Case(peers, host=12.0 if built else 6.0)

    return make


LARGE = {"steps": 512, "texts": 16, "hidden": 1024, "heads": 16, "blocks": 6}  # a transformer
CASES: dict[str, Callable[[Libraries, Backend], Case]] = {
    "1/(1+exp(-x)), 1e8": logistic,
    "softmax over axis 0, (1000, 100000)": softmax,
    "batch norm forward + backward, 64 x 401408": batch_norm,
    "host: a small tree, built and run": host(True),
    "host: a small tree, compiled": host(False),
    "step: mlp": training("mlp 784-100-10"),
    "step: cifar": training("cifar"),
    "step: cifar, TF32": training("cifar"),
    "step: cifar, bfloat16": training("cifar", dtype="bfloat16"),
    "step: resnet": training("resnet"),
    "step: resnet, TF32": training("resnet"),
    "step: resnet, bfloat16": training("resnet", dtype="bfloat16"),
    **{
        f"3 x conv 3x3 64->64, 56x56, N=128, {pass_name}, {kind}": chain(pass_name, kind)
        for kind in KINDS
        for pass_name in ("infer", "fprop and bprop")
    },
    "step: lstm": training("char lstm", 0.9),
    "step: lstm, TF32": training("char lstm", 0.9),
    "step: transformer, TF32": training("char transformer", 1.0),
    "step: transformer, bfloat16": training("char transformer", 1.0, "bfloat16"),
    "step: transformer of 6 blocks, 1024 features, 16 x 512, bfloat16": training(
        "char transformer", 1.0, "bfloat16", **LARGE
    ),
    "attention, 16 x 16 x 1024 x 64, bfloat16": attention(False),
    "attention forward + backward, 16 x 16 x 1024 x 64, bfloat16": attention(True),
    **{f"product of 8192 x 8192, {kind}": product(kind) for kind in KINDS},
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


def by_the_clock(cupy: Any, work: Work, launches: int, wait: Callable[[Any], object] | None = None) -> float:
    """Return the seconds of a call, until it returns or (``wait``) until the last result is ready."""
    cupy.cuda.Device().synchronize()
    start = time.perf_counter()
    for _ in range(launches):
        result = work()
    if wait:
        wait(result)
    return (time.perf_counter() - start) / launches


def measure(of: Libraries, case: Case, rounds: int) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Return the seconds of each peer in each round, and the errors of those that fail."""
    cupy, launches, errors = of.cupy, dict[str, int](), dict[str, str]()

    def ready(result: Any) -> None:
        cupy.cuda.Device().synchronize()

    for peer, work in case.peers.items():
        wait = of.jax.block_until_ready if peer == JAX else ready
        try:
            by_the_clock(cupy, work, 5, wait)  # compilation, tuning and recording happen here
            longest = by_the_clock(cupy, work, 1, wait)
        except Exception as error:  # that of another library must not lose the others
            if peer in (OURS, REPLAYED):
                raise
            errors[peer] = f"{type(error).__name__}: {error!s:.200}"
            continue
        most = QUICK_LAUNCHES if of.small else LAUNCHES
        launches[peer] = max(1, min(most, round(SAMPLE_SECONDS / longest)))
    times: dict[str, list[float]] = {peer: [] for peer in launches}
    order, shuffle = list(launches), random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for peer in order:
            work, n = case.peers[peer], launches[peer]
            if case.host:
                times[peer].append(by_the_clock(cupy, work, n))
            elif peer == JAX:
                times[peer].append(by_the_clock(cupy, work, n, of.jax.block_until_ready))
            else:
                times[peer].append(between_events(cupy, work, n))
    return times, errors


def bandwidth(cupy: Any, nbytes: int) -> float:
    """Return the bandwidth of a copy: bytes read and written per second."""
    x, y = cupy.zeros(nbytes, dtype="uint8"), cupy.zeros(nbytes, dtype="uint8")

    def copy() -> None:
        y[...] = x

    between_events(cupy, copy, 3)
    return 2 * nbytes / min(between_events(cupy, copy, 10) for _ in range(3))


def evaluate(case: Case, times: dict[str, list[float]], floor: float) -> tuple[list[str], dict[str, Any]]:
    """Return the cells of a row, and its record: times, the fraction of the floor, and the targets."""
    medians = {peer: statistics.median(found) for peer, found in times.items()}
    best, targets = (REPLAYED if REPLAYED in times else OURS), []
    if case.of_floor and floor:
        part = floor / medians[best]
        targets.append((f"at least {case.of_floor:.0%} of floor: {part:.0%}", part >= case.of_floor))
    others = [peer for peer in medians if peer not in (OURS, REPLAYED)]
    if case.most and others:
        peer = min(others, key=lambda peer: medians[peer])
        longer = statistics.median(x / y for x, y in zip(times[best], times[peer], strict=True))
        targets.append((f"at most {case.most:g} x {peer}: {longer:.2f}", longer <= case.most))
    if case.host:
        targets.append((f"at most {case.host:g} µs: {medians[best] * 1e6:.1f}", medians[best] * 1e6 <= case.host))
    words = [format_duration(medians[peer]) if peer in medians else "" for peer in PEERS]
    words += [
        f"{floor / medians[best]:.0%}" if floor else "",
        "; ".join(f"{text} {'yes' if ok else 'NO'}" for text, ok in targets),
    ]
    return words, {"seconds": medians, "of floor": floor / medians[best] if floor else None, "targets": targets}


def prepare(of: Libraries, name: str) -> Case:
    """Return a case, with a new backend as the current one."""
    NervanaObject.be = be = Backend(of.runtime, rng_seed=1)
    of.multiply(name)
    if of.torch:
        of.torch.compiler.reset()  # a function compiled for too many networks would not be compiled for the next
    return CASES[name](of, be)


def row(of: Libraries, name: str, rounds: int) -> tuple[list[str], dict[str, Any]]:
    """Measure a case; return the cells of its row, and its record."""
    case = prepare(of, name)
    rate = of.rates[case.kind]
    floor = max(case.nbytes / of.bandwidth, case.flops / rate if rate else 0.0)
    times, errors = measure(of, case, rounds)
    words, record = evaluate(case, times, floor)
    del case
    gc.collect()
    return words, record | {"TF32": of.runtime.driver.tf32} | ({"errors": errors} if errors else {})


def run(only: str, quick: bool, found: bool = True, compiled: bool = True, minutes: float = math.inf) -> dict[str, Any]:
    """Measure, and return the report; ``found``: whether to import PyTorch and JAX."""
    runtime, end = load_runtime("gpu"), time.monotonic() + 60 * minutes
    of = Libraries(runtime, quick, found, compiled)
    report: dict[str, Any] = {"machine": machine("neonlite", "cupy", "torch", "jax"), "gpu": runtime.version_info()}
    report |= {"TF32": of.flags(), "bytes a second": of.bandwidth, "operations a second": of.rates, "cases": {}}
    rows, left_out = list[list[str]](), list[str]()
    for name in CASES:
        if only not in name:
            continue
        if time.monotonic() > end:
            left_out.append(name)
            continue
        try:
            words, report["cases"][name] = row(of, name, QUICK_ROUNDS if quick else ROUNDS)
        except Exception as error:  # a failed case must not lose the others; main returns 1
            traceback.print_exc()
            words, report["cases"][name] = [f"FAILED: {error!s:.60}", *[""] * 8], {"error": str(error)}
        rows.append([name, *words])
        print(f"{name}: {words[-1] or words[0]}", file=sys.stderr)
    flags = ", ".join(f"{name}={value or 'unset'}" for name, value in report["TF32"].items())
    head = ["case", *PEERS, "of floor", "target"]
    intro = f"{report['gpu']}; a copy moves {of.bandwidth / 1e12:.2f} TB/s. TF32: {flags}."
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
