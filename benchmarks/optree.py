"""Measure op-trees beside NumPy, PyTorch, numexpr and JAX, with the same number of threads, in one process.

python benchmarks/optree.py            # some minutes; writes results/optree.json and results/optree.md
python benchmarks/optree.py --quick    # a smoke test with small arrays; writes nothing
python benchmarks/optree.py --only softmax
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from _table import (
    FULL,
    QUICK,
    Effort,
    Work,
    buffers,
    busy_process,
    cpus,
    format_duration,
    machine,
    markdown,
    measure,
    ratio,
    save,
    seconds,
)

import neonlite as nl
from neonlite.backend import concurrency
from neonlite.backend.concurrency import get_num_threads

# a process that measures neonlite alone loads no other OpenMP library
IS_ALONE = "--alone" in sys.argv and sys.argv[sys.argv.index("--alone") + 1] == "neonlite"
torch: Any = import_module("torch") if find_spec("torch") and not IS_ALONE else None
numexpr: Any = import_module("numexpr") if find_spec("numexpr") and not IS_ALONE else None
jax: Any = import_module("jax") if find_spec("jax") and not IS_ALONE else None
absent: dict[str, str] = {name: "not installed" for name in ("torch", "numexpr", "jax") if not globals()[name]}

EPS = 1e-3
ALONE, ROUNDS_ALONE = 0.5, 3  # seconds, and rounds, of each peer in a separate process
BUSY_SIZES, MAX_SLOWDOWN = (10_000, 1_000_000), 1.3  # elements of cases that are measured beside a busy process, too
NUMPY, EAGER, COMPILED = "numpy", "torch eager", "torch.compile"
PEERS = NUMPY, EAGER, COMPILED, "numexpr", "jax.jit"  # columns of the overview
COMPARED = 1 << 24  # maximum number of elements of the first rows to compare with NumPy
NOTE = """\
Two columns: the expression is evaluated into a *given*, preallocated output, or into a *fresh* one, which for large
arrays costs the page faults of new memory. NumPy's plain expressions and `jax.jit` have no preallocated output; for
PyTorch it is the output of the last op. Where a peer has none, its fresh time is used for both. "torch.compile" is the
plain expression, compiled for its shape with Inductor and g++; `jax.jit` has as many threads as there are CPUs.
neonlite rebuilds its tree in every call, as in user code, unless the case states otherwise. Before the measurement, the
result of every peer is compared with NumPy's in float64. Times are medians over rounds, in each of which every peer
runs once, in random order; "× numpy" is the speed relative to NumPy's plain expression: the median of the ratios of all
rounds. "By hand" is what a patient user would write: a lower bound, not a peer."""


class Peer(NamedTuple):
    """An implementation of an expression: with a fresh output, with a preallocated one, or both."""

    name: str
    fresh: Work | None = None
    given: Work | None = None


class Target(NamedTuple):
    """A target: be ``faster`` times as fast as a peer, or take at most ``longer`` times as long."""

    peer: str
    faster: float = 0.0
    longer: float = 0.0
    outputs: tuple[str, ...] = ("given", "fresh")

    def check(self, speed: float) -> tuple[str, bool]:
        """Return a text and whether the target is met; ``speed`` is the speed of neonlite relative to the peer."""
        if self.longer:
            return f"at most {self.longer:g} × the time of {self.peer}: {1 / speed:.2f}", 1 / speed <= self.longer
        return f"at least {self.faster:g} × as fast as {self.peer}: {speed:.2f}", speed >= self.faster


class Operands:
    """The same operands for every peer: x, columns gamma and beta, and a preallocated output."""

    def __init__(self, be: nl.Backend, shape: tuple[int, int]) -> None:
        rng = np.random.default_rng(0)
        arrays = [rng.standard_normal(size, np.float32) for size in (shape, (shape[0], 1), (shape[0], 1))]
        self.x, self.gamma, self.beta = arrays
        self.out = np.empty_like(self.x)
        self.be, self.tensors, self.target = be, [be.array(a) for a in arrays], be.empty(shape)
        if torch:
            self.torch, self.torch_out = [torch.from_numpy(a) for a in arrays], torch.empty(shape)

    def neonlite(self, formula: Callable[..., Any]) -> Peer:
        """Return neonlite, for a formula of be, x, gamma and beta."""
        be, tensors, target = self.be, self.tensors, self.target

        def given() -> Any:
            target[:] = formula(be, *tensors)
            return target

        return Peer("neonlite", lambda: formula(be, *tensors).astensor(), given)

    def numexpr(self, text: str, **numbers: float) -> list[Peer]:
        """Return numexpr, if it is installed, for a formula of x and scalars; those in the text would be float64."""
        names, out = {"x": self.x, **{name: np.float32(number) for name, number in numbers.items()}}, self.out
        peer = Peer("numexpr", lambda: numexpr.evaluate(text, names), lambda: numexpr.evaluate(text, names, out=out))
        return [peer] if numexpr else []

    def eager(self, fresh: Callable[..., Any], last: Callable[..., Any]) -> list[Peer]:
        """Return PyTorch, if it is installed: the expression as it is, its last op into a given output, and compiled.

        ``fresh(x)`` is the expression, and ``last(x, out)`` the same with its last op into ``out``.
        """
        if not torch:
            return []
        t, out = self.torch[0], self.torch_out
        peers = [Peer(EAGER, lambda: fresh(t), lambda: last(t, out))]
        if "--alone" in sys.argv:
            return peers
        torch.compiler.reset()  # it stops compiling a function after eight shapes
        try:
            into = torch.compile(lambda x, y: y.copy_(fresh(x)), dynamic=False)
            new = torch.compile(fresh, dynamic=False)
            into(t, out), new(t)
        except Exception as error:  # no compiler, or an unsupported one
            absent[COMPILED] = f"does not work here: {str(error).splitlines()[0][:80]}"
            return peers
        return [*peers, Peer(COMPILED, lambda: new(t), lambda: into(t, out))]

    def jitted(self, formula: Callable[..., Any]) -> list[Peer]:
        """Return JAX, if it is installed, for a formula of x."""
        if not jax:
            return []
        x, jit = jax.numpy.asarray(self.x), jax.jit(formula)
        return [Peer("jax.jit", lambda: jit(x).block_until_ready())]


# --- the expressions -----------------------------------------------------------------------------------------------

Made = tuple[list[Peer], Callable[[Any], Any]]  # the peers, and the NumPy formula of x that they are compared with


def logistic(be: nl.Backend, shape: tuple[int, int]) -> Made:
    o = Operands(be, shape)
    x, out = o.x, o.out

    def plain(x: Any) -> Any:
        return 1 / (1 + np.exp(-x))

    def by_hand() -> Any:
        np.negative(x, out)
        np.exp(out, out)
        np.add(out, 1, out)
        return np.reciprocal(out, out)

    peers = [o.neonlite(lambda be, x, *_: 1 / (1 + be.exp(-x)))]
    peers += [Peer("numpy", lambda: plain(x)), Peer("numpy by hand", given=by_hand), *o.numexpr("1 / (1 + exp(-x))")]
    peers += o.jitted(lambda x: 1 / (1 + jax.numpy.exp(-x)))
    peers += o.eager(lambda t: 1 / (1 + torch.exp(-t)), lambda t, to: torch.reciprocal(1 + torch.exp(-t), out=to))
    if torch:
        t, to = o.torch[0], o.torch_out
        peers += [
            Peer("torch by hand", given=lambda: torch.neg(t, out=to).exp_().add_(1).reciprocal_()),
            Peer("torch.sigmoid", lambda: torch.sigmoid(t), lambda: torch.sigmoid(t, out=to)),
        ]
    return peers, plain


def tanh_derivative(be: nl.Backend, shape: tuple[int, int]) -> Made:
    o = Operands(be, shape)
    x, out = o.x, o.out

    def plain(x: Any, tanh: Any = np.tanh) -> Any:
        t = tanh(x)
        return 1 - t * t

    def by_hand() -> Any:
        np.tanh(x, out)
        np.multiply(out, out, out)
        return np.subtract(1, out, out)

    peers = [o.neonlite(lambda be, x, *_: plain(x, be.tanh))]
    peers += [Peer("numpy", lambda: plain(x)), Peer("numpy by hand", given=by_hand), *o.numexpr("1 - tanh(x)**2")]
    peers += o.jitted(lambda x: plain(x, jax.numpy.tanh))
    peers += o.eager(lambda t: plain(t, torch.tanh), lambda t, to: torch.sub(1, torch.square(torch.tanh(t)), out=to))
    if torch:
        t, to = o.torch[0], o.torch_out
        peers += [Peer("torch by hand", given=lambda: torch.tanh(t, out=to).square_().neg_().add_(1))]
    return peers, plain


def leaky(be: nl.Backend, shape: tuple[int, int]) -> Made:
    """Return a leaky rectifier and a shift: arithmetic, limited by memory bandwidth."""
    o = Operands(be, shape)
    x, out = o.x, o.out

    def plain(x: Any, maximum: Any = np.maximum) -> Any:
        return maximum(x, 0.1 * x) * 1.5 - 0.5

    def by_hand() -> Any:
        np.multiply(x, 0.1, out)
        np.maximum(x, out, out=out)
        np.multiply(out, 1.5, out)
        return np.subtract(out, 0.5, out)

    peers = [o.neonlite(lambda be, x, *_: plain(x, be.maximum))]
    peers += [Peer("numpy", lambda: plain(x)), Peer("numpy by hand", given=by_hand)]
    peers += o.numexpr("where(x > 0, x, a * x) * b - c", a=0.1, b=1.5, c=0.5)
    peers += o.jitted(lambda x: plain(x, jax.numpy.maximum))
    peers += o.eager(
        lambda t: plain(t, torch.maximum), lambda t, to: torch.sub(torch.maximum(t, 0.1 * t) * 1.5, 0.5, out=to)
    )
    return peers, plain


def batch_norm(be: nl.Backend, shape: tuple[int, int]) -> Made:
    o = Operands(be, shape)
    x, gamma, beta, out, spare = o.x, o.gamma, o.beta, o.out, np.empty_like(o.x)

    def ours(be: nl.Backend, x: Any, gamma: Any, beta: Any) -> Any:
        return (x - be.mean(x, axis=1)) / be.sqrt(be.var(x, axis=1) + EPS) * gamma + beta

    def plain(x: Any) -> Any:
        return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + EPS) * gamma + beta

    def by_hand() -> Any:
        np.subtract(x, x.mean(1, keepdims=True), out)
        variance = np.square(out, spare).mean(1, keepdims=True)
        np.multiply(out, gamma / np.sqrt(variance + EPS), out)
        return np.add(out, beta, out)

    peers = [o.neonlite(ours), Peer("numpy", lambda: plain(x)), Peer("numpy by hand", given=by_hand)]
    if torch:
        t, g, b = o.torch
        norm, more = torch.nn.functional.batch_norm, (g.flatten(), b.flatten(), True, 0.0, EPS)

        def eager() -> Any:
            deviation = torch.sqrt(t.var(1, correction=0, keepdim=True) + EPS)
            return (t - t.mean(1, keepdim=True)) / deviation * g + b

        peers += [Peer("torch eager", eager), Peer("torch batch_norm", lambda: norm(t[None], None, None, *more)[0])]
    return peers, plain


def softmax(be: nl.Backend, shape: tuple[int, int]) -> Made:
    o = Operands(be, shape)
    x, out = o.x, o.out

    def plain(x: Any) -> Any:
        e = np.exp(x - x.max(0))
        return e / e.sum(0)

    def by_hand() -> Any:
        np.subtract(x, x.max(0), out)
        np.exp(out, out)
        return np.divide(out, out.sum(0), out)

    peers = [o.neonlite(lambda be, x, *_: be.softmax(x, axis=0))]
    peers += [Peer("numpy", lambda: plain(x)), Peer("numpy by hand", given=by_hand)]
    if torch:
        t, to = o.torch[0], o.torch_out

        def eager() -> Any:
            e = torch.exp(t - t.amax(0))
            return e / e.sum(0)

        one = Peer("torch.softmax", lambda: torch.softmax(t, 0), lambda: torch.softmax(t, 0, out=to))
        peers += [Peer("torch eager", eager), one]
    return peers, plain


def small(be: nl.Backend, shape: tuple[int, int], reused: bool = False) -> Made:
    """Return a tree of five nodes that is built and evaluated in each call; with ``reused``, built only once."""
    o = Operands(be, shape)
    x, tree = o.x, 1 / (1 + be.exp(-1 * o.tensors[0]))

    def plain(x: Any) -> Any:
        return 1 / (1 + np.exp(-1 * x))

    peers = [o.neonlite((lambda *_: tree) if reused else (lambda be, x, *_: 1 / (1 + be.exp(-1 * x))))]
    peers += [Peer("numpy", lambda: plain(x))]
    if torch:
        t = o.torch[0]
        peers += [Peer("torch eager", lambda: 1 / (1 + torch.exp(-1 * t)))]
    return peers, plain


def small_again(be: nl.Backend, shape: tuple[int, int]) -> Made:
    return small(be, shape, reused=True)


AHEAD = [Target(peer, faster=1) for peer in (EAGER, "torch.sigmoid", "numexpr")]
SMALL = [Target(NUMPY, longer=2.2, outputs=("given",)), Target(EAGER, faster=1, outputs=("given",))]
AGAIN = [Target(NUMPY, longer=1.4, outputs=("given",))]
TREES = [Target(EAGER, longer=0.8, outputs=("given",)), Target(COMPILED, longer=1.0, outputs=("given",))]
SIZES = ((100, 1000), (100, 10_000), (1000, 10_000), (10_000, 10_000))  # 1e5 to 1e8 elements
CASES: list[tuple[str, Callable[..., Made], tuple[int, int], list[Target]]] = [
    ("1/(1+exp(-1*x)), built and run", small, (32, 32), SMALL),
    ("1/(1+exp(-1*x)), built once and run again", small_again, (32, 32), AGAIN),
    ("logistic, 1/(1+exp(-x))", logistic, (100, 100), [Target(NUMPY, longer=1.3)]),
    *[("logistic, 1/(1+exp(-x))", logistic, shape, TREES) for shape in SIZES[:2]],
    ("logistic, 1/(1+exp(-x))", logistic, SIZES[2], [Target(NUMPY, faster=3), *AHEAD, *TREES]),
    ("logistic, 1/(1+exp(-x))", logistic, SIZES[3], TREES),
    *[("derivative of tanh, 1-tanh(x)^2", tanh_derivative, shape, TREES) for shape in SIZES],
    *[("leaky rectifier, max(x, 0.1 x) 1.5 - 0.5", leaky, shape, TREES) for shape in SIZES],
    ("batch norm over axis 1", batch_norm, (1000, 10_000), [Target(NUMPY, faster=2)]),
    ("softmax over axis 0", softmax, (1000, 10_000), [Target(NUMPY, faster=2)]),
]


def compare(name: str, make: Callable[..., Made], shape: tuple[int, int], targets: list[Target], effort: Effort) -> Any:
    """Check the result of every peer, measure all, and return the rows and the targets met."""
    be = nl.Backend("cpu")
    peers, plain = make(be, shape)
    first = max(1, COMPARED // shape[1])  # rows
    expected = plain(Operands(be, shape).x[:first].astype(np.float64))
    works = {
        (peer.name, output): getattr(peer, output)
        for peer in peers
        for output in ("given", "fresh")
        if getattr(peer, output)
    }
    for (peer, _), work in works.items():
        result = np.asarray(work())
        assert result.dtype == np.float32, f"{peer} computes in {result.dtype}"
        np.testing.assert_allclose(result[:first], expected, rtol=1e-4, atol=1e-5, err_msg=peer)
    del expected, result
    times, quiet = measure(works, effort)
    rows: list[dict[str, Any]] = []
    for (peer, output), mine in times.items():
        speeds = {other: ratio(mine, times[other, "fresh"]) for other in (NUMPY, EAGER) if (other, "fresh") in times}
        rows.append({"peer": peer, "output": output, "seconds": statistics.median(mine), "speed": speeds})
        rows[-1] |= {"quickest": min(mine), "rounds": len(mine)}
    verdicts = []
    for target in targets:
        for output in target.outputs:
            theirs = times.get((target.peer, output)) or times.get((target.peer, "fresh"))
            if theirs:
                words, met = target.check(ratio(times["neonlite", output], theirs))
                verdicts.append(verdict(f"{output}: {words}", met))
    if BUSY_SIZES[0] <= shape[0] * shape[1] <= BUSY_SIZES[1] and (EAGER, "given") in works and effort is FULL:
        verdicts.append(beside_a_busy_process(f"{name} {shape}"))
    return {"case": f"{name}, {shape} float32", "quiet": quiet, "rows": rows, "targets": verdicts}


def alone(case: str, peer: str) -> float:
    """Return the mean seconds of a peer, into a given output, in this process."""
    make, shape = next((make, shape) for name, make, shape, _ in CASES if f"{name} {shape}" == case)
    work = next(p.given for p in make(nl.Backend("cpu"), shape)[0] if p.name == peer)
    return seconds(work, max(3, round(ALONE / min(seconds(work, 1), seconds(work, 3)))))


def beside_a_busy_process(case: str) -> dict[str, Any]:
    """Return whether a process that computes all the time slows neonlite down as little as PyTorch.

    Each runs in a separate process, as its threads would wait for those of another OpenMP library, or share them.
    """
    slower: dict[str, list[float]] = {"neonlite": [], EAGER: []}
    for _ in range(ROUNDS_ALONE):
        for peer, ratios in slower.items():
            command = [sys.executable, __file__, "--alone", peer, "--only", case, "--threads", str(get_num_threads())]
            run = partial(subprocess.run, command, check=True, capture_output=True, text=True)
            quiet = float(run().stdout)
            with busy_process():
                ratios.append(float(run().stdout) / quiet)
    ours, theirs = map(statistics.median, slower.values())
    words = f"beside a busy process: at most {MAX_SLOWDOWN:g} × the slowdown of {EAGER}, {theirs:.1f}: {ours:.1f}"
    return verdict(words, ours <= MAX_SLOWDOWN * theirs)


def verdict(words: str, met: bool) -> dict[str, Any]:
    return {"target": words, "met": met}


# --- without peers -----------------------------------------------------------------------------------------------


def deep(effort: Effort) -> Any:
    """Measure y = y + y a thousand times: 1000 nodes, 2^1000 paths. The first run creates the plan, others reuse it."""
    rounds = [deep_round() for _ in range(max(effort.rounds, 5))]
    rows = [{"step": step, "seconds": statistics.median(r[step] for r in rounds)} for step in rounds[0]]
    return {"case": "y = y + y, 1000 deep, (32, 32) float64", "rows": rows, "targets": []}


def deep_round() -> dict[str, float]:
    be = nl.Backend("cpu", default_dtype="float64")
    x, out, gradient = be.ones((32, 32), name="x"), be.empty((32, 32)), be.empty((32, 32))
    trees, times = [], {}

    def build() -> None:
        y = x
        for _ in range(1000):
            y = y + y
        trees.append(y)

    def forward() -> None:
        out[:] = trees[-1]

    def backward() -> None:
        nl.Autodiff(trees[-1], be).back_prop_grad(x, gradient)

    steps = {"build": build, "forward, first": forward, "forward, later": forward}
    steps |= {"rebuild": build, "forward, rebuilt": forward}
    steps |= {"gradient, first": backward, "gradient, later": backward}
    steps |= {"build once more": build, "gradient, rebuilt": backward}
    for step, work in steps.items():
        start = time.perf_counter()
        work()
        times[step] = time.perf_counter() - start
    assert (out.get() == 2.0**1000).all(), "the value is wrong"
    assert (gradient.get() == 2.0**1000).all(), "the gradient is wrong"
    return times


def memory(shape: tuple[int, int]) -> Any:
    """Count the buffers of 1 kB or more that NumPy allocates when a tree with a cached plan is evaluated."""
    be = nl.Backend("cpu")
    x, error, out = be.ones(shape, name="x"), be.ones(shape, name="error"), be.empty(shape)
    gamma, beta = be.ones((shape[0], 1), name="gamma"), be.zeros((shape[0], 1), name="beta")
    norm = (x - be.mean(x, axis=1)) / be.sqrt(be.var(x, axis=1) + EPS) * gamma + beta
    gradients, plain = [be.empty_like(t) for t in (x, gamma, beta)], np.ones(shape, np.float32)
    works = {
        "logistic": lambda: be.assign([out], [1 / (1 + be.exp(-x))]),
        "derivative of tanh": lambda: be.assign([out], [1 - be.tanh(x) * be.tanh(x)]),
        "batch norm": lambda: be.assign([out], [norm]),
        "batch norm, its three gradients": lambda: nl.Autodiff(norm, be, error).back_prop_grad(
            [x, gamma, beta], gradients
        ),
        "softmax": lambda: be.assign([out], [be.softmax(x, axis=0)]),
    }
    threads = concurrency.get_num_threads()
    concurrency.set_threads(1)  # allocations of other threads are not counted
    rows = [{"expression": name, "buffers in a later run": count(work)} for name, work in works.items()]
    concurrency.set_threads(threads)
    verdicts = [verdict(f"{name}: no buffers: {n}", n == 0) for name, n in map(dict.values, rows)]
    rows.append({"expression": "logistic, numpy", "buffers in a later run": count(lambda: 1 / (1 + np.exp(-plain)))})
    return {"case": f"buffers of 1 kB or more, {shape} float32", "rows": rows, "targets": verdicts}


def count(work: Work) -> int:
    """Return the number of buffers that the third run allocates."""
    work(), work()
    with buffers() as sizes:
        work()
    return sum(size >= 1000 for size in sizes)


def imports(rounds: int) -> Any:
    """Measure ``import neonlite`` and ``import numpy`` in new processes, alternating, with compiled byte code."""
    times: dict[str, list[float]] = {"numpy": [], "neonlite": []}
    with tempfile.TemporaryDirectory() as folder:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = folder
        for n in range(rounds + 1):
            for module, taken in times.items():
                code = f"import time; start = time.perf_counter(); import {module}; print(time.perf_counter() - start)"
                run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=environment)
                taken += [float(run.stdout)] * (n > 0)  # the first round compiles byte code
    longer = ratio(times["numpy"], times["neonlite"])
    rows = [
        {"import": module, "seconds": statistics.median(taken), "rounds": rounds} for module, taken in times.items()
    ]
    verdicts = [verdict(f"at most 1.25 × the time of import numpy: {longer:.2f}", longer <= 1.25)]
    return {"case": "import, in a new process", "rows": rows, "targets": verdicts}


# --- the page ------------------------------------------------------------------------------------------------------


def section(case: dict[str, Any]) -> str:
    """Return a case as Markdown: its table, and its targets."""
    parts = [
        f"## {case['case']}",
        peers_table(case["rows"]) if "peer" in case["rows"][0] else plain_table(case["rows"]),
    ]
    parts += [] if case.get("quiet", True) else ["Other processes used the machine: these numbers are rough."]
    marks = {True: "met", False: "**missed**"}
    parts += ["\n".join(f"- {marks[t['met']]}: {t['target']}" for t in case["targets"])] if case["targets"] else []
    return "\n\n".join(parts)


def overview(cases: list[dict[str, Any]]) -> str:
    """Return a line for each expression and size: the time of neonlite, absolute and relative to its peers.

    Each with a given output where it has one.
    """
    lines = []
    for case in cases:
        if "peer" in case["rows"][0]:
            taken = {
                row["peer"]: row["seconds"] for row in reversed(case["rows"])
            }  # of two, the one with a preallocated output
            taken |= {row["peer"]: row["seconds"] for row in case["rows"] if row["output"] == "given"}
            ours = taken["neonlite"]
            ratios = [f"{ours / taken[peer]:.2f}" if peer in taken else "" for peer in PEERS]
            lines.append([f"{case['case']}{'' if case['quiet'] else ' ~'}", format_duration(ours), *ratios])
    return markdown(["expression", "neonlite", *(f"× {peer}" for peer in PEERS)], lines)


def plain_table(rows: list[dict[str, Any]]) -> str:
    return markdown(
        list(rows[0]), [[format_duration(v) if k == "seconds" else f"{v}" for k, v in row.items()] for row in rows]
    )


def peers_table(rows: list[dict[str, Any]]) -> str:
    head = ["peer", "given output", "× numpy", "× torch eager", "fresh output", "× numpy", "× torch eager"]
    found = {(row["peer"], row["output"]): row for row in rows}
    lines = []
    for peer in dict.fromkeys(row["peer"] for row in rows):
        line = [peer]
        for output in ("given", "fresh"):
            row = found.get((peer, output), {"speed": {}})
            line += [format_duration(row["seconds"]) if row["speed"] else ""]
            line += [f"{row['speed'][other]:.2f}" if other in row["speed"] else "" for other in (NUMPY, EAGER)]
        lines.append(line)
    return markdown(head, [*lines, *([f"{name}: {why}", *[""] * 6] for name, why in absent.items())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smoke run: small arrays, few rounds, nothing written")
    parser.add_argument("--threads", type=int, default=cpus(), help="threads of every peer; default: all CPUs")
    parser.add_argument(
        "--only", default="", metavar="WORD", help="the cases with this word in their name; nothing written"
    )
    parser.add_argument("--alone", metavar="PEER", help="print the mean seconds of this peer for the case --only")
    options = parser.parse_args()
    concurrency.set_threads(options.threads)
    if torch:
        torch.set_num_threads(options.threads)
    if numexpr:
        numexpr.set_num_threads(options.threads)
    if options.alone:
        print(alone(options.only, options.alone))
        return
    effort, shrink = (QUICK, 100) if options.quick else (FULL, 1)
    jobs: dict[str, Callable[[], Any]] = {}
    for name, make, shape, targets in CASES:
        rows, columns = shape
        if options.quick and columns >= 10_000:  # targets are for specific sizes
            columns, targets = columns // shrink, []
        jobs[f"{name} {shape}"] = partial(compare, name, make, (rows, columns), targets, effort)
    jobs["deep"] = partial(deep, effort)
    jobs["memory"] = partial(memory, (1000, 10_000 // min(shrink, 10)))
    jobs["import"] = partial(imports, 3 if options.quick else 25)

    about = {"neonlite": nl.__version__, **machine("numpy", "torch", "numexpr", "jax"), "threads": options.threads}
    head = [
        "# Op-trees beside their peers",
        f"`{' '.join(['python benchmarks/optree.py', *sys.argv[1:]])}`",
        " · ".join(f"{name} {value or 'not installed'}" for name, value in about.items()),
        NOTE,
    ]
    print("\n\n".join(head), flush=True)
    cases = []
    for name, job in jobs.items():
        if options.only in name:
            cases.append(job())
            print(f"\n{section(cases[-1])}", flush=True)
    verdicts = [t["met"] for case in cases for t in case["targets"]]
    print(f"\n{sum(verdicts)} of {len(verdicts)} targets met")
    if not (options.quick or options.only):
        glance = f"## At a glance\n\nHow many times as long neonlite takes, into given outputs.\n\n{overview(cases)}"
        save("optree", {"machine": about, "cases": cases}, "\n\n".join([*head, glance, *map(section, cases)]) + "\n")


if __name__ == "__main__":
    main()
