"""Measure training steps of small networks, beside PyTorch, torch.compile and jax.jit with the same number of threads.

python benchmarks/steps.py            # half an hour; writes results/steps.json and results/steps.md
python benchmarks/steps.py --quick    # a smoke test of seconds, without torch.compile; writes nothing
python benchmarks/steps.py --only conv --runtime mkl --threads 1
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import _characters
import _jitted
import numpy as np
from _learner import learner
from _table import Effort, Work, busy_process, cpus, elsewhere, format_duration, machine, markdown, ratio, save, seconds
from threadpoolctl import threadpool_limits

from neonlite.backend import Backend, NervanaObject, concurrency
from neonlite.initializers import Constant, GlorotUniform
from neonlite.layers import Activation, Affine, Conv, Deconv, GeneralizedCost, MergeSum, Pooling, Sequential, SkipNode
from neonlite.transforms import CrossEntropyMulti, MeanSquared, Rectlin, Softmax

RUNTIMES = ["cpu", *(["mkl"] if find_spec("mkl") else [])]
# a process that measures neonlite alone loads no other OpenMP library
IS_ALONE = "--alone" in sys.argv and sys.argv[sys.argv.index("--alone") + 1] in RUNTIMES
# imported before MKL, or PyTorch would use MKL's OpenMP library
torch: Any = import_module("torch") if find_spec("torch") and not IS_ALONE else None
EAGER = ("torch", "torch, channels last")
COMPILED, JITTED = "torch.compile", "jax.jit"
THAN = ("torch", COMPILED, JITTED)  # those to which times are relative
OTHERS = [*((*EAGER, COMPILED) if find_spec("torch") else ()), *([JITTED] if find_spec("jax") else [])]
N = 128  # batch size
CHARACTERS = {"char lstm": "lstm", "char gru": "gru", "char transformer": "transformer"}
# maximum time relative to PyTorch
LIMITS = {"mlp 784-100-10": 0.75, "lenet": 1.1, "cifar": 1.0, "autoencoder": 1.1, "resnet": 1.1}
LIMITS |= {"char lstm": 1.0, "char gru": 1.0, "char transformer": 1.0}
MEMORY = {"resnet": 0.8}  # maximum memory relative to PyTorch
MAX_SLOWDOWN = 1.3  # by a busy process, relative to PyTorch's
ALONE, ROUNDS_ALONE = 0.5, 3  # seconds of a pass, and rounds, of each peer in a separate process
NEAR = 1e-4  # relative tolerance of losses after ``STEPS`` steps from the same weights
STEPS = 5
PASSES = ("step", "loss", "infer")
RATE, STILL = (
    0.01,
    1e-7,
)  # learning rates of the comparison, and of the measurement, which keeps the weights
FULL, QUICK = Effort(2.0, 0.03, 7), Effort(0.0, 0.002, 2)
REST = 0.25  # seconds until the threads of OpenBLAS (25 ms) and OpenMP (200 ms) stop spinning
NOTE = """\
A step is forward, the error of the cost, backward and an update by gradient descent with momentum 0.9; "loss" is a
step that also returns the mean cost to the host; "infer" is forward for inference. PyTorch's step is
`zero_grad(set_to_none=True)`, forward, the loss, `backward()` and `SGD.step()`, with default options; inference is in
`inference_mode()`. Images have the layout of each library: (F, N), and (N, C, H, W) or channels last, whichever is
faster. Results are compared first: the losses of both after five steps from the same weights, and the outputs for
inference. Then steps are measured with a learning rate of 1e-7, so that all are alike: memorized minibatches lead to
denormal numbers, on which a CPU takes ten times as long. Minibatches are of 128 images, float32.
"char" networks read 64 texts of 98 characters in 64 steps, with 128 hidden units: a recurrent layer, and a linear layer
for each step, beside `nn.LSTM` or `nn.GRU` and `nn.Linear`. PyTorch's GRU multiplies before it resets, so its losses
differ and are not compared; the amount of work is the same. The transformer has two causal blocks of 4 heads and 512
hidden units, beside `nn.TransformerEncoderLayer`.
`torch.compile` compiles the forward pass and the loss, and with them the backward pass, in the default mode; the
optimizer is that of eager PyTorch. It compiles inference, too, but `nn.LSTM` and `nn.GRU` themselves are not traced by
default. `jax.jit` compiles the whole step, with the loss, the gradients and the update by momentum, to which weights,
velocities and running statistics are donated; its formulas are those of neonlite, GRU included. Images of torch.compile
are channels last, those of JAX (N, H, W, C).
Times are medians over rounds, in each of which every peer runs once, in random order, and with two threads after a
rest; "× torch" is the time relative to eager PyTorch, with the better layout of images, "× torch.compile" and
"× jax.jit" those relative to these, the median of the ratios of all rounds. "busy × quiet", with two
threads, is the time beside one process that computes all the time, relative to the time without it, of each peer in a
separate process: the mean over 0.5 seconds, the median of three ratios."""

FIRST = "First step and memory"
FIRST_NOTE = """\
"first step" is the time of the first step in a new process, with one thread, with tracing and compilation, but without
the imports and the creation of the network. torch.compile starts with an empty cache on disk; "second process" is the
first step of another process, which finds the compiled kernels in that cache. The other libraries save no compiled code
on disk: a second process takes as long as the first.
"MB" is the peak memory of a step, in the same process: the high-water mark of its resident memory (`VmHWM`) after the
creation of the network, its data, cost and optimizer and after five steps, minus the resident memory before, with the
libraries loaded. It includes allocations, workspaces, compiled kernels, and what this process needs to compile."""

# A network is a shape, its layers, and its cost. "affine 100" has a bias and Rectlin, "norm 100" a batch norm and
# Rectlin, "conv 5 16" 16 filters of 5 x 5, a bias and Rectlin; "deconv 3 8 2 1" has stride 2 and padding 1.
# "same 3 16 1" is a convolution with stride 1 that keeps the image's size, with batch norm and Rectlin; "block 16 1" a
# residual block of two of 3 x 3, whose second has no Rectlin before the sum; "mean" is global average pooling.
NETWORKS: dict[str, tuple[tuple[int, ...], list[str]]] = {
    "mlp 784-100-10": ((784,), ["affine 100", "classes 10"]),
    "mlp 784-1024-1024-10": ((784,), ["affine 1024", "affine 1024", "classes 10"]),
    "mlp 784-256-256-10, batch norm": ((784,), ["norm 256", "norm 256", "classes 10"]),
    "lenet": ((1, 28, 28), ["conv 5 20", "pool 2", "conv 5 50", "pool 2", "affine 500", "classes 10"]),
    "cifar": ((3, 32, 32), ["conv 5 16", "pool 2", "conv 5 32", "pool 2", "affine 500", "classes 10"]),
    "autoencoder": (
        (1, 28, 28),
        ["conv 4 8", "pool 2", "conv 4 32", "pool 2", "deconv 4 8 1 0", "deconv 3 8 2 0", "image 2 1 2 1"],
    ),
    "resnet": ((3, 32, 32), ["same 3 16 1", "block 16 1", "block 32 2", "block 64 2", "mean", "classes 10"]),
}


class Case(NamedTuple):
    """A network and its data."""

    shape: tuple[int, ...]
    layers: list[str]
    x: Any  # images (N, *shape)
    labels: Any


class Peer(NamedTuple):
    """The functions of a library: those that are measured, and those whose results are compared."""

    step: Work
    loss: Callable[[], float]  # a step that returns the loss before its update
    infer: Callable[[], Any]
    outputs: Callable[[Any], Any]  # of ``infer`` as an array (N, features)


# --- neonlite --------------------------------------------------------------------------------------------------------


def ours(case: Case, runtime: Any, rate: float, dtype: str = "float32") -> tuple[Peer, Any]:
    """Return the peer and the network, initialized with a fixed seed."""
    NervanaObject.be = be = Backend(runtime, rng_seed=1, batch_size=len(case.x), default_dtype=dtype)
    more = {"init": GlorotUniform(), "bias": Constant(0), "activation": Rectlin()}

    def same(size: int, maps: int, stride: int, activation: Any = None) -> Any:
        shape, pad = (size, size, maps), size // 2
        return Conv(shape, more["init"], strides=stride, padding=pad, batch_norm=True, activation=activation)

    def made(kind: str, n: int = 0, maps: int = 0, stride: int = 1, pad: int = 0) -> Any:
        if kind == "pool":
            return Pooling(n)
        if kind == "same":
            return same(n, maps, stride, Rectlin())
        if kind == "block":  # "block maps stride"
            past = SkipNode() if maps == 1 else same(1, n, maps)
            return [MergeSum([[same(3, n, maps, Rectlin()), same(3, n, 1)], past]), Activation(Rectlin())]
        if kind == "mean":
            return Pooling("all", op="avg")
        if kind in ("deconv", "image"):
            like = more if kind == "deconv" else more | {"activation": None}
            return Deconv((n, n, maps), strides=stride, padding=pad, **like)
        if kind == "conv":
            return Conv((n, n, maps), **more)
        if kind == "norm":
            return Affine(n, more["init"], batch_norm=True, activation=Rectlin())
        return Affine(n, **more | ({"activation": Softmax()} if kind == "classes" else {}))

    net = Sequential([made(*read(layer)) for layer in case.layers])
    cost = GeneralizedCost(CrossEntropyMulti() if is_classifier(case) else MeanSquared())

    def data() -> Any:
        x = be.array(case.x.reshape(len(case.x), -1).T)
        return x, be.array(np.eye(10)[:, case.labels]) if is_classifier(case) else x

    shape = case.shape if len(case.shape) > 1 else case.shape[0]
    return Peer(*learner(net, shape, cost, rate, data)), net


def is_classifier(case: Case) -> bool:
    """Return whether the network is a classifier; else it is an autoencoder."""
    return case.layers[-1].startswith("classes")


def read(layer: str) -> Any:
    """Return the kind of a layer, and its sizes."""
    kind, *numbers = layer.split()
    return kind, *map(int, numbers)


# --- PyTorch ---------------------------------------------------------------------------------------------------------


def theirs(
    case: Case,
    net: Any,
    rate: float,
    last: bool,
    device: str = "cpu",
    compiled: bool = False,
    dtype: str = "float32",
) -> Peer:
    """Return the peer with the weights of a neonlite network, if any; ``last``: with channels-last images.

    In 16 bit, ``torch.autocast`` casts float32 weights.
    """
    nn, F, to = torch.nn, torch.nn.functional, getattr(torch, dtype)
    stack: list[Any] = []
    shape = case.shape

    def size() -> tuple[int, ...]:
        return tuple(nn.Sequential(*stack)(torch.zeros(1, *shape)).shape[1:])

    def same(inputs: int, kernel: int, maps: int, stride: int, *more: Any) -> Any:
        conv = nn.Conv2d(inputs, maps, kernel, stride, kernel // 2, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(maps, 1e-3).eval(), *more)

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, inputs: int, maps: int, stride: int) -> None:
            super().__init__()
            self.residual = nn.Sequential(same(inputs, 3, maps, stride, nn.ReLU()), same(maps, 3, maps, 1))
            self.shortcut = nn.Identity() if stride == 1 else same(inputs, 1, maps, stride)

        def forward(self, x: Any) -> Any:
            return F.relu(self.residual(x) + self.shortcut(x))

    for kind, *rest in map(read, case.layers):
        before = size() if stack else shape
        n, *rest = rest or [0]
        if kind == "pool":
            stack.append(nn.MaxPool2d(n))
        elif kind == "same":
            stack.append(same(before[0], n, *rest, nn.ReLU()))
        elif kind == "block":
            stack.append(Block(before[0], n, *rest))
        elif kind == "mean":
            stack.append(nn.AdaptiveAvgPool2d(1))
        elif kind in ("deconv", "image"):
            stack += [nn.ConvTranspose2d(before[0], rest[0], n, rest[1], rest[2]), nn.ReLU()]
        elif kind == "conv":
            stack += [nn.Conv2d(before[0], rest[0], n), nn.ReLU()]
        else:
            stack += [nn.Flatten()] * (len(before) > 1)
            stack.append(nn.Linear(int(np.prod(before)), n, bias=kind != "norm"))
            stack += [nn.BatchNorm1d(n, 1e-3).eval()] * (kind == "norm") + [nn.ReLU()] * (kind != "classes")
    if not is_classifier(case):
        stack.pop()  # an autoencoder ends without Rectlin
    model = nn.Sequential(*stack).train()
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    weights = iter(p.get().astype("float32") for x in net.layers_to_optimize for p in x.parameters) if net else None
    with torch.no_grad():
        for module in model.modules() if weights else ():
            own = list(module.parameters(recurse=False))
            for parameter in reversed(own) if module in norms else own:
                array = next(weights)  # (C R S, K) of filters
                array = array.T if parameter.ndim == 4 else array
                parameter.copy_(torch.from_numpy(np.ascontiguousarray(array)).reshape(parameter.shape))
    x, labels = torch.from_numpy(case.x), torch.from_numpy(case.labels)
    if last:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    model, x, labels = model.to(device), x.to(device), labels.to(device)
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9, fused=device == "cuda")

    def cost_of(x: Any, labels: Any) -> Any:
        with torch.autocast(device, to, enabled=dtype != "float32"):
            y = model(x)
            return F.cross_entropy(y, labels) if is_classifier(case) else F.mse_loss(y, x) / 2

    def predict(x: Any) -> Any:
        return F.softmax(model(x), 1) if is_classifier(case) else model(x)

    if compiled:
        cost_of, predict = (torch.compile(f, mode=_characters.MODES[device]) for f in (cost_of, predict))

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        cost = cost_of(x, labels)
        cost.backward()
        optimizer.step()
        return cost

    def infer() -> Any:
        with torch.inference_mode():
            return predict(x)

    def outputs(_: Any) -> Any:
        model.eval()
        of_norms = [layer for layer in net.leaves() if hasattr(layer, "gmean")]
        for module, layer in zip(norms, of_norms, strict=True):
            module.running_mean.copy_(torch.from_numpy(layer.gmean.get()[:, 0]))
            module.running_var.copy_(torch.from_numpy(layer.gvar.get()[:, 0]))
        return infer().reshape(len(x), -1).numpy()

    def inference() -> Any:
        model.eval()
        y = infer()
        model.train()
        return y

    return Peer(step, lambda: step().item(), inference, outputs)


# --- measuring -------------------------------------------------------------------------------------------------------


def set_threads(threads: int) -> None:
    """Let all libraries use a number of threads; JAX's cannot be changed in a process."""
    concurrency.set_threads(threads)
    if torch:
        torch.set_num_threads(threads)


def network(case: Case | _characters.Characters, runtime: str, rate: float) -> tuple[Peer, Any]:
    """Return neonlite's peer, whose functions set its backend as the current one, and its network."""
    if isinstance(case, _characters.Characters):
        works, net = _characters.ours(case, runtime, rate)
    else:
        works, net = ours(case, runtime, rate)

    def with_backend(work: Work) -> Any:
        def run() -> Any:
            NervanaObject.be = net.be  # costs use it
            return work()

        return run

    *measured, outputs = works
    return Peer(*map(with_backend, measured), outputs), net


def other(case: Case | _characters.Characters, peer: str, net: Any, rate: float) -> Peer:
    """Return the peer of another library, with the weights of a neonlite network; PyTorch also without one."""
    compiled, jax = peer == COMPILED, _jitted.load(concurrency.get_num_threads()) if peer == JITTED else None
    if isinstance(case, _characters.Characters):
        if jax:
            sizes = _characters.HEADS, _characters.VOCABULARY
            return Peer(*_jitted.characters(jax, case, *sizes, net, rate))
        return Peer(*_characters.theirs(torch, case, net, rate, compiled=compiled))
    if jax:
        return Peer(*_jitted.images(jax, list(map(read, case.layers)), case.x, case.labels, net, rate))
    last = peer == EAGER[1] or (compiled and len(case.shape) == 3)
    return theirs(case, net, rate, last, compiled=compiled)


def peers(
    case: Case | _characters.Characters, runtimes: list[str], rate: float, others: Collection[str]
) -> dict[str, Peer]:
    """Return the peers by name, all with the same weights; ``others``: those of other libraries."""
    found, net = {}, None
    for runtime in runtimes:
        found[runtime], net = network(case, runtime, rate)
    has_images = isinstance(case, Case) and len(case.shape) == 3
    return found | {peer: other(case, peer, net, rate) for peer in others if peer != EAGER[1] or has_images}


def compare(name: str, found: dict[str, Peer]) -> dict[str, float]:
    """Return the loss of each peer after some steps. AssertionError if losses or outputs for inference differ."""
    if name == "char gru":
        for peer in (EAGER[0], COMPILED):
            found.pop(peer, None)  # its GRU resets the product of the state, not the state itself
    losses = {}
    for peer, work in found.items():
        for _ in range(STEPS):
            work.step()
        losses[peer] = work.loss()
    first = next(iter(losses.values()))
    for peer, loss in losses.items():
        np.testing.assert_allclose(loss, first, rtol=NEAR, err_msg=f"{name}, {peer}: the loss after {STEPS} steps")
    outputs = {peer: work.outputs(work.infer()) for peer, work in found.items()}
    for peer, y in outputs.items():
        near = 1e-3 * np.abs(outputs[next(iter(outputs))]).max()
        np.testing.assert_allclose(y, outputs[next(iter(outputs))], rtol=1e-2, atol=near, err_msg=f"{name}, {peer}")
    return losses


def measure(works: dict[str, Work], effort: Effort, rest: float) -> tuple[dict[str, list[float]], bool]:
    """Return the result of ``_table.measure`` with a rest before each peer."""
    calls = {
        peer: max(1, round(effort.sample / min(seconds(work, 1), seconds(work, 3)))) for peer, work in works.items()
    }
    order, shuffle, rounds, quiet = list(works), random.Random(0).shuffle, [], []
    start = time.perf_counter()
    while len(quiet) < effort.rounds or time.perf_counter() < start + effort.case:
        shuffle(order)
        before, clock, times = elsewhere(), time.perf_counter(), {}
        for peer in order:
            time.sleep(rest)
            seconds(works[peer], max(1, calls[peer] // 4))
            times[peer] = seconds(works[peer], calls[peer])
        rounds.append(times)
        if elsewhere() - before < (time.perf_counter() - clock) * cpus() / 20:
            quiet.append(times)
        if len(rounds) >= effort.rounds and time.perf_counter() > start + 2 * effort.case:
            break
    enough = len(quiet) >= effort.rounds
    return {peer: [times[peer] for times in (quiet if enough else rounds)] for peer in works}, enough


def drawn(shape: tuple[int, ...], layers: list[str], images: int = N) -> Case:
    """Return the case of a network, with random images."""
    rng = np.random.default_rng(0)
    return Case(shape, layers, rng.random((images, *shape), np.float32), rng.integers(0, 10, images))


def case_of(name: str) -> Case | _characters.Characters:
    """Return the case of a name."""
    return _characters.case(CHARACTERS[name]) if name in CHARACTERS else drawn(*NETWORKS[name])


def resident(which: str) -> int:
    """Return the resident memory of this process in bytes, current "VmRSS" or peak "VmHWM"."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(which))
    return int(line.split()[1]) * 1024


def peak(name: str, peer: str, threads: int) -> dict[str, float]:
    """Return the seconds of the first step of a peer, and the peak memory in bytes of a few, in this process."""
    set_threads(threads)
    case, net = case_of(name), None
    if peer == JITTED or (peer not in RUNTIMES and name in CHARACTERS):
        net = network(case, RUNTIMES[0], RATE)[1]  # its weights are used
    if peer == JITTED:
        _jitted.load(threads)
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = resident("VmRSS")
    step = network(case, peer, RATE)[0].step if peer in RUNTIMES else other(case, peer, net, RATE).step
    start = time.perf_counter()
    step()
    first = time.perf_counter() - start
    for _ in range(STEPS - 1):
        step()
    return {"first s": first, "bytes": resident("VmHWM") - before}


def peaks(name: str, found: list[str]) -> dict[str, float]:
    """Return the results of ``peak`` for each peer in a separate process, and of a second one of torch.compile."""
    taken = {}
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": folder}
        for peer in [*found, COMPILED] if COMPILED in found else found:
            command = [sys.executable, __file__, "--peak", peer, "--only", name]
            run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
            result = json.loads(run.stdout)
            if f"{peer} bytes" in taken:
                taken[f"{peer} second process s"] = result["first s"]
            else:
                taken |= {f"{peer} first s": result["first s"], f"{peer} bytes": result["bytes"]}
    return taken


def rows(names: list[str], runtimes: list[str], threads: int, effort: Effort) -> list[dict[str, Any]]:
    """Return the measurements of networks with a number of threads."""
    set_threads(threads)
    threadpool_limits(threads, "blas")  # NumPy's
    is_full, found = effort == FULL, []
    others = [peer for peer in OTHERS if is_full or peer != COMPILED]
    for name in names:
        case = case_of(name)
        if torch:
            torch.compiler.reset()  # a function compiled for too many networks would not be compiled for the next
        losses = compare(name, peers(case, runtimes, RATE, others))
        works = peers(case, runtimes, STILL, others)
        has_peaks = is_full and threads == 1 and Path("/proc/self/clear_refs").exists()
        taken = peaks(name, list(works)) if has_peaks else {}
        with_torch = [*runtimes, "torch"] if torch else runtimes
        slower = slowdowns(name, with_torch, threads) if is_full and threads > 1 else {}
        for pass_name in PASSES:
            times, quiet = measure(
                {p: getattr(work, pass_name) for p, work in works.items()}, effort, REST * (threads > 1)
            )
            row: dict[str, Any] = {
                "network": name,
                "pass": pass_name,
                "threads": threads,
                "quiet": quiet,
                "losses": losses,
            }
            row |= {f"{peer} s": statistics.median(t) for peer, t in times.items()}
            best = min((p for p in EAGER if p in times), key=lambda p: row[f"{p} s"], default="")
            for than, of in (("torch", best), (COMPILED, COMPILED), (JITTED, JITTED)):
                if of in times:
                    row |= {f"{peer} / {than}": ratio(times[of], times[peer]) for peer in runtimes}
            row |= slower.get(pass_name, {}) | (taken if pass_name == PASSES[0] else {})
            found.append(row)
            print(*line(row, runtimes), sep="  ", flush=True)
    return found


def alone(name: str, peer: str, threads: int) -> dict[str, float]:
    """Return the mean seconds of each pass of a peer in this process."""
    set_threads(threads)
    is_ours = peer in RUNTIMES
    work = peers(case_of(name), [peer] if is_ours else RUNTIMES[:1], STILL, () if is_ours else (peer,))[peer]
    found = {}
    for pass_name in PASSES:
        run = getattr(work, pass_name)
        calls = max(3, round(ALONE / min(seconds(run, 1), seconds(run, 3))))
        found[pass_name] = seconds(run, calls)
    return found


def slowdowns(name: str, found: list[str], threads: int) -> dict[str, dict[str, float]]:
    """Return for each pass the time of each peer beside a busy process, relative to its time without one.

    Each peer runs in a separate process, as its threads would wait for those of another OpenMP library, or share them.
    """
    ratios: dict[tuple[str, str], list[float]] = {}
    for _ in range(ROUNDS_ALONE):
        for peer in found:
            command = [sys.executable, __file__, "--alone", peer, "--only", name, "--threads", str(threads)]
            run = partial(subprocess.run, command, check=True, capture_output=True, text=True)
            quiet = json.loads(run().stdout)
            with busy_process():
                busy = json.loads(run().stdout)
            for pass_name in PASSES:
                ratios.setdefault((pass_name, peer), []).append(busy[pass_name] / quiet[pass_name])
    return {p: {f"{peer} slowdown": statistics.median(ratios[p, peer]) for peer in found} for p in PASSES}


def line(row: dict[str, Any], runtimes: list[str]) -> list[str]:
    """Return a row of the table; ``!`` marks a missed target, ``~`` a disturbed measurement."""
    cells = [f"{row['network']}{'' if row['quiet'] else ' ~'}", row["pass"], str(row["threads"])]
    cells += [duration(row, f"{peer} s") for peer in (*runtimes, *OTHERS)]
    for than in THAN:
        for peer in runtimes:
            longer = row.get(f"{peer} / {than}")
            missed = (
                than == "torch" and longer and row["pass"] == "step" and longer > LIMITS.get(row["network"], longer)
            )
            cells.append(f"{longer:.2f}{' !' if missed else ''}" if longer else "")
    for peer in (*runtimes, "torch"):
        slower = row.get(f"{peer} slowdown")
        missed = slower and peer != "torch" and slower > MAX_SLOWDOWN * row.get("torch slowdown", slower)
        cells.append(f"{slower:.1f}{' !' if missed else ''}" if slower else "")
    return cells


def first_line(row: dict[str, Any], runtimes: list[str]) -> list[str]:
    """Return a row of the table of first steps and memory."""
    cells = [row["network"], *(duration(row, f"{peer} first s") for peer in (*runtimes, *OTHERS))]
    cells.append(duration(row, f"{COMPILED} second process s"))
    least = min((row[f"{peer} bytes"] for peer in EAGER if f"{peer} bytes" in row), default=0)
    for peer in (*runtimes, *OTHERS):
        taken = row.get(f"{peer} bytes", 0)
        missed = peer in runtimes and least and taken / least > MEMORY.get(row["network"], taken)
        cells.append(f"{taken / 1e6:.1f}{' !' if missed else ''}" if taken else "")
    return cells


def duration(row: dict[str, Any], key: str) -> str:
    """Return a time of a row, "" if it was not measured."""
    return format_duration(row[key]) if key in row else ""


def report(rows: list[dict[str, Any]], runtimes: list[str], about: dict[str, Any], command: str) -> str:
    """Return the page of measurements."""
    columns = *runtimes, *OTHERS
    head = ["network", "pass", "threads", *columns]
    head += [f"{peer} × {than}" for than in THAN for peer in runtimes]
    head += [f"{peer}, busy × quiet" for peer in (*runtimes, "torch")]
    table = markdown(head, [line(row, runtimes) for row in rows])
    head = ["network", *(f"{peer}, first step" for peer in columns), f"{COMPILED}, second process"]
    head += [f"{peer}, MB" for peer in columns]
    words = "\n".join(f"- {key}: {value}" for key, value in about.items())
    target = ", ".join(f"{name} {limit:g}" for name, limit in LIMITS.items())
    target = f"Target for a step: at most so many times as long as PyTorch: {target}; and at most so many times its "
    target += (
        f"memory: {', '.join(f'{name} {limit:g}' for name, limit in MEMORY.items())}; beside a busy process at most "
    )
    target += f"{MAX_SLOWDOWN:g} times PyTorch's slowdown; a miss has a `!`. "
    target += "`~`: other processes used the machine meanwhile."
    parts = ["# Training steps", f"`{command}`", words, target, NOTE, table]
    if first := [row for row in rows if any(key.endswith("first s") for key in row)]:
        parts += [f"## {FIRST}", FIRST_NOTE, markdown(head, [first_line(row, runtimes) for row in first])]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="run a smoke test, without torch.compile; write nothing")
    parser.add_argument("--only", default="", metavar="WORD", help="only the networks with this word; write nothing")
    parser.add_argument("--runtime", choices=RUNTIMES, help="only this runtime; write nothing")
    parser.add_argument("--threads", type=int, help="only this number of threads; write nothing")
    parser.add_argument("--peak", metavar="PEER", help="print the first step and the memory of this peer for --only")
    parser.add_argument("--alone", metavar="PEER", help="print the mean seconds of each pass of this peer for --only")
    options = parser.parse_args()
    if options.alone:
        print(json.dumps(alone(options.only, options.alone, options.threads or 1)))
        return
    if options.peak:
        print(json.dumps(peak(options.only, options.peak, options.threads or 1)))
        return
    runtimes = [options.runtime] if options.runtime else RUNTIMES
    names = [name for name in [*NETWORKS, *CHARACTERS] if options.only in name]
    counts = [options.threads] if options.threads else sorted({1, min(2, cpus())}, reverse=True)
    found = []
    for threads in counts:  # each in a new process, as the number of JAX's threads cannot be changed
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            found += pool.submit(rows, names, runtimes, threads, QUICK if options.quick else FULL).result()
    about = machine("numpy", "mkl", "torch", "jax") | {"threads": ", ".join(map(str, counts))}
    page = report(found, runtimes, about, " ".join(["python benchmarks/steps.py", *sys.argv[1:]]))
    print(page)
    if not (options.quick or options.only or options.runtime or options.threads):
        save("steps", {"machine": about, "rows": found}, page)


if __name__ == "__main__":
    main()
