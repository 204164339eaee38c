"""Measure training steps of small networks, beside PyTorch eager in one process with the same number of threads.

python benchmarks/steps.py            # minutes; writes results/steps.json and results/steps.md
python benchmarks/steps.py --quick    # a smoke test of seconds; writes nothing
python benchmarks/steps.py --only conv --runtime mkl --threads 1
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import _characters
import numpy as np
from _learner import learner
from _table import Effort, Work, busy_process, cpus, elsewhere, format_duration, machine, markdown, ratio, save, seconds
from threadpoolctl import threadpool_limits

from neonlite.backend import Backend, NervanaObject, thread_pool
from neonlite.initializers import Constant, GlorotUniform
from neonlite.layers import Activation, Affine, Conv, Deconv, GeneralizedCost, MergeSum, Pooling, Sequential, SkipNode
from neonlite.transforms import CrossEntropyMulti, MeanSquared, Rectlin, Softmax

RUNTIMES = ["cpu", *(["mkl"] if find_spec("mkl") else [])]
# a process that measures neonlite alone loads no other OpenMP library
IS_ALONE = "--alone" in sys.argv and sys.argv[sys.argv.index("--alone") + 1] in RUNTIMES
# imported before MKL, or PyTorch would use MKL's OpenMP library
torch: Any = import_module("torch") if find_spec("torch") and not IS_ALONE else None
N = 128  # batch size
CHARACTERS = {"char lstm": "lstm", "char gru": "gru", "char transformer": "transformer"}
# maximum time relative to PyTorch
LIMITS = {"mlp 784-100-10": 0.75, "lenet": 1.1, "cifar": 1.0, "autoencoder": 1.1, "resnet": 1.1}
LIMITS |= {"char lstm": 1.0, "char gru": 1.0, "char transformer": 1.0}
MEMORY = {"resnet": 0.8}  # maximum memory relative to PyTorch
MAX_SLOWDOWN = 1.3  # by a busy process, relative to PyTorch's
ALONE, ROUNDS_ALONE = 0.7, 3  # seconds of a pass, and rounds, of each peer in a separate process
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
"MB" is the peak memory of a step, in a separate process for each peer: the high-water mark of its resident memory
(`VmHWM`) after the creation of the network, its data, cost and optimizer and after five steps, minus the resident
memory before, with both libraries loaded. It includes allocations, workspaces and compiled kernels.
Times are medians over rounds, in each of which every peer runs once, in random order, and with two threads after a
rest; "× torch" is the time relative to PyTorch, the median of the ratios of all rounds. "busy × quiet", with two
threads, is the time beside one process that computes all the time, relative to the time without it, of each peer in a
separate process: the mean over 0.7 seconds, the median of three ratios."""

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


def ours(case: Case, runtime: str, rate: float) -> tuple[Peer, Any]:
    """Return the peer and the network, initialized with a fixed seed."""
    NervanaObject.be = be = Backend(runtime, rng_seed=1, batch_size=N)
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
        x = be.array(case.x.reshape(N, -1).T)
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


def theirs(case: Case, net: Any, rate: float, last: bool, device: str = "cpu", compiled: bool = False) -> Peer:
    """Return the peer with the weights of a neonlite network, if any; ``last``: with channels-last images."""
    nn, F = torch.nn, torch.nn.functional
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
    weights = iter(p.get() for layer in net.layers_to_optimize for p in layer.parameters) if net else None
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
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
    forward = torch.compile(model, mode="reduce-overhead") if compiled else model

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        y = forward(x)
        cost = F.cross_entropy(y, labels) if is_classifier(case) else F.mse_loss(y, x) / 2
        cost.backward()
        optimizer.step()
        return cost

    def infer() -> Any:
        with torch.inference_mode():
            return F.softmax(model(x), 1) if is_classifier(case) else model(x)

    def outputs(_: Any) -> Any:
        model.eval()
        of_norms = [layer for layer in net.leaves() if hasattr(layer, "gmean")]
        for module, layer in zip(norms, of_norms, strict=True):
            module.running_mean.copy_(torch.from_numpy(layer.gmean.get()[:, 0]))
            module.running_var.copy_(torch.from_numpy(layer.gvar.get()[:, 0]))
        return infer().reshape(N, -1).numpy()

    def inference() -> Any:
        model.eval()
        y = infer()
        model.train()
        return y

    return Peer(step, lambda: step().item(), inference, outputs)


# --- measuring -------------------------------------------------------------------------------------------------------


def peers(case: Case | _characters.Characters, runtimes: list[str], rate: float) -> dict[str, Peer]:
    """Return the peers by name, all with the same weights."""
    found, net = {}, None
    if isinstance(case, _characters.Characters):
        for runtime in runtimes:
            of_ours, net = _characters.ours(case, runtime, rate)
            found[runtime] = Peer(*of_ours)
        if torch:
            found["torch"] = Peer(*_characters.theirs(torch, case, net, rate))
        return found
    for runtime in runtimes:
        found[runtime], net = ours(case, runtime, rate)
    if torch:
        found["torch"] = theirs(case, net, rate, False)
        if len(case.shape) == 3:
            found["torch, channels last"] = theirs(case, net, rate, True)
    return found


def compare(name: str, found: dict[str, Peer]) -> dict[str, float]:
    """Return the loss of each peer after some steps. AssertionError if losses or outputs for inference differ."""
    if name == "char gru":
        found.pop("torch", None)  # its GRU resets the product of the state, not the state itself
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


def drawn(shape: tuple[int, ...], layers: list[str]) -> Case:
    """Return the case of a network, with random images."""
    rng = np.random.default_rng(0)
    return Case(shape, layers, rng.random((N, *shape), np.float32), rng.integers(0, 10, N))


def case_of(name: str) -> Case | _characters.Characters:
    """Return the case of a name."""
    return _characters.case(CHARACTERS[name]) if name in CHARACTERS else drawn(*NETWORKS[name])


def resident(which: str) -> int:
    """Return the resident memory of this process in bytes, current "VmRSS" or peak "VmHWM"."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(which))
    return int(line.split()[1]) * 1024


def peak(name: str, peer: str, threads: int) -> int:
    """Return the peak memory of a few steps of a peer in this process, in bytes."""
    thread_pool.set_threads(threads)
    if torch:
        torch.set_num_threads(threads)
    case = case_of(name)
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = resident("VmRSS")
    if isinstance(case, _characters.Characters):
        net = None if peer in RUNTIMES else _characters.ours(case, RUNTIMES[0], RATE)[1]  # its weights are used
        before = resident("VmRSS")
        step = (_characters.theirs(torch, case, net, RATE) if net else _characters.ours(case, peer, RATE)[0])[0]
    elif peer in RUNTIMES:
        step = ours(case, peer, RATE)[0].step
    else:
        step = theirs(case, None, RATE, peer.endswith("last")).step
    for _ in range(STEPS):
        step()
    return resident("VmHWM") - before


def peaks(name: str, found: list[str], threads: int) -> dict[str, int]:
    """Return ``peak`` of each peer, each in a separate process."""
    taken = {}
    for peer in found:
        command = [sys.executable, __file__, "--peak", peer, "--only", name, "--threads", str(threads)]
        taken[peer] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return taken


def rows(names: list[str], runtimes: list[str], threads: int, effort: Effort) -> list[dict[str, Any]]:
    """Return the measurements of networks with a number of threads."""
    thread_pool.set_threads(threads)
    if torch:
        torch.set_num_threads(threads)
    found = []
    for name in names:
        case = case_of(name)
        losses = compare(name, peers(case, runtimes, RATE))
        works = peers(case, runtimes, STILL)
        taken = peaks(name, list(works), threads) if effort is FULL and Path("/proc/self/clear_refs").exists() else {}
        with_torch = [*runtimes, "torch"] if torch else runtimes
        slower = slowdowns(name, with_torch, threads) if effort is FULL and threads > 1 else {}
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
            if best := min((p for p in times if p.startswith("torch")), key=lambda p: row[f"{p} s"], default=None):
                row |= {f"{peer} / torch": ratio(times[best], times[peer]) for peer in runtimes}
            row |= slower.get(pass_name, {})
            if pass_name == PASSES[0] and taken:
                row |= {f"{peer} bytes": taken[peer] for peer in taken}
            found.append(row)
            print(*line(row, runtimes), sep="  ", flush=True)
    return found


def alone(name: str, peer: str, threads: int) -> dict[str, float]:
    """Return the mean seconds of each pass of a peer in this process."""
    thread_pool.set_threads(threads)
    if torch:
        torch.set_num_threads(threads)
    work = peers(case_of(name), [peer] if peer in RUNTIMES else RUNTIMES[:1], STILL)[peer]
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
    for peer in (*runtimes, "torch", "torch, channels last"):
        cells.append(format_duration(row[f"{peer} s"]) if f"{peer} s" in row else "")
    for peer in runtimes:
        longer = row.get(f"{peer} / torch")
        missed = longer and row["pass"] == "step" and longer > LIMITS.get(row["network"], longer)
        cells.append(f"{longer:.2f}{' !' if missed else ''}" if longer else "")
    for peer in (*runtimes, "torch"):
        slower = row.get(f"{peer} slowdown")
        missed = slower and peer != "torch" and slower > MAX_SLOWDOWN * row.get("torch slowdown", slower)
        cells.append(f"{slower:.1f}{' !' if missed else ''}" if slower else "")
    least = min((row[key] for key in row if key.startswith("torch") and key.endswith("bytes")), default=0)
    for peer in (*runtimes, "torch", "torch, channels last"):
        taken = row.get(f"{peer} bytes", 0)
        missed = peer in runtimes and least and taken / least > MEMORY.get(row["network"], taken)
        cells.append(f"{taken / 1e6:.1f}{' !' if missed else ''}" if taken else "")
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="run a smoke test, and write nothing")
    parser.add_argument("--only", default="", metavar="WORD", help="only the networks with this word; write nothing")
    parser.add_argument("--runtime", choices=RUNTIMES, help="only this runtime; write nothing")
    parser.add_argument("--threads", type=int, help="only this number of threads; write nothing")
    parser.add_argument("--peak", metavar="PEER", help="print the peak memory in bytes of this peer for --only")
    parser.add_argument("--alone", metavar="PEER", help="print the mean seconds of each pass of this peer for --only")
    options = parser.parse_args()
    if options.alone:
        print(json.dumps(alone(options.only, options.alone, options.threads or 1)))
        return
    if options.peak:
        print(peak(options.only, options.peak, options.threads or 1))
        return
    runtimes = [options.runtime] if options.runtime else RUNTIMES
    names = [name for name in [*NETWORKS, *CHARACTERS] if options.only in name]
    counts = [options.threads] if options.threads else sorted({1, min(2, cpus())}, reverse=True)
    found = []
    for threads in counts:
        with threadpool_limits(threads, "blas"):  # NumPy's
            found += rows(names, runtimes, threads, QUICK if options.quick else FULL)
    about = machine("numpy", "mkl", "torch") | {"threads": ", ".join(map(str, counts))}
    head = ["network", "pass", "threads", *runtimes, "torch", "torch, channels last"]
    head += [f"{peer} × torch" for peer in runtimes]
    head += [f"{peer}, busy × quiet" for peer in (*runtimes, "torch")]
    head += [f"{peer}, MB" for peer in (*runtimes, "torch", "torch, channels last")]
    table = markdown(head, [line(row, runtimes) for row in found])
    words = "\n".join(f"- {key}: {value}" for key, value in about.items())
    target = ", ".join(f"{name} {limit:g}" for name, limit in LIMITS.items())
    target = f"Target for a step: at most so many times as long as PyTorch: {target}; and at most so many times its "
    target += (
        f"memory: {', '.join(f'{name} {limit:g}' for name, limit in MEMORY.items())}; beside a busy process at most "
    )
    target += f"{MAX_SLOWDOWN:g} times PyTorch's slowdown; a miss has a `!`. "
    target += "`~`: other processes used the machine meanwhile."
    parts = ["# Training steps", f"`{' '.join(['python benchmarks/steps.py', *sys.argv[1:]])}`", words, target, NOTE]
    report = "\n\n".join([*parts, table]) + "\n"
    print(report)
    if not (options.quick or options.only or options.runtime or options.threads):
        save("steps", {"machine": about, "rows": found}, report)


if __name__ == "__main__":
    main()
