"""How fast is an op-tree?  Beside NumPy, PyTorch and numexpr, on the same number of threads, in one process.

    python benchmarks/optree.py            # everything: some minutes; writes results/optree.json and results/optree.md
    python benchmarks/optree.py --quick    # a smoke run: seconds; writes nothing
    python benchmarks/optree.py --only softmax

Two columns: work out an expression into a *given* output, and into a *fresh* one, which for large arrays costs the page
faults of new memory. A peer without a given form (NumPy's and PyTorch's plain expressions) is compared by its fresh one
in both columns. neonlite builds its tree anew in every call, as user code does, unless the row says otherwise. Every
peer's result is compared with NumPy's in float64 before it is timed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _table import FULL, QUICK, Effort, Work, cpus, machine, markdown, measure, ratio, save, told

import neonlite as nl
from neonlite.backend.executors.pool import set_threads

GIVEN, FRESH, US = "given", "fresh", "neonlite"
EPS = 1e-3


class Target(NamedTuple):
    """What is hoped for: to be ``faster`` times as fast as a peer, or to take ``longer`` times as long at most."""

    peer: str
    faster: float = 0.0
    longer: float = 0.0

    def judge(self, quicker: float) -> tuple[str, bool]:
        """Return words and verdict, given how many times as fast as the peer neonlite is."""
        if self.longer:
            return f"≤ {self.longer:g} × the time of {self.peer}: {1 / quicker:.2f}", 1 / quicker <= self.longer
        return f"≥ {self.faster:g} × as fast as {self.peer}: {quicker:.2f}", quicker >= self.faster


class Case(NamedTuple):
    """An expression: its peers' ways to work it out, by (peer, column); what NumPy makes of it in float64; targets."""

    name: str
    peers: dict[tuple[str, str], Work]
    expected: Callable[[], Any]
    targets: list[Target]


# --- expressions ---------------------------------------------------------------------------------------------------


class Operands:
    """The same numbers for every peer: x in a shape, one row of parameters, and an output to write into."""

    def __init__(self, be: nl.Backend, shape: tuple[int, int]) -> None:
        rng = np.random.default_rng(0)
        self.x = rng.standard_normal(shape, np.float32)
        self.gamma, self.beta = rng.standard_normal((2, shape[0], 1), np.float32)
        self.out, self.spare = np.empty_like(self.x), np.empty_like(self.x)
        self.be = be
        self.tensors = [be.array(a, name=n) for a, n in ((self.x, "x"), (self.gamma, "gamma"), (self.beta, "beta"))]
        self.target = be.empty(shape)
        if torch:
            self.torch = [torch.from_numpy(a) for a in (self.x, self.gamma, self.beta)]
            self.torch_out = torch.empty(shape)

    def neonlite(self, formula: Callable[..., Any]) -> dict[tuple[str, str], Work]:
        be, tensors, target = self.be, self.tensors, self.target

        def given() -> Any:
            target[:] = formula(be, *tensors)
            return target

        return {(US, GIVEN): given, (US, FRESH): lambda: formula(be, *tensors).astensor()}

    def numexpr(self, text: str) -> dict[tuple[str, str], Work]:
        if numexpr is None:
            return {}
        names = {"x": self.x}
        return {
            ("numexpr", GIVEN): lambda: numexpr.evaluate(text, names, out=self.out),
            ("numexpr", FRESH): lambda: numexpr.evaluate(text, names),
        }


def logistic(be: nl.Backend, shape: tuple[int, int], targets: list[Target]) -> Case:
    o = Operands(be, shape)
    x, out = o.x, o.out

    def by_hand() -> Any:
        np.negative(x, out)
        np.exp(out, out)
        np.add(out, 1, out)
        return np.reciprocal(out, out)

    peers = o.neonlite(lambda be, x, *_: 1 / (1 + be.exp(-x)))
    peers |= {("numpy", FRESH): lambda: 1 / (1 + np.exp(-x)), ("numpy, out= by hand", GIVEN): by_hand}
    if torch:
        t, to = o.torch[0], o.torch_out
        peers |= {
            ("torch eager", FRESH): lambda: 1 / (1 + torch.exp(-t)),
            ("torch, in place by hand", GIVEN): lambda: torch.neg(t, out=to).exp_().add_(1).reciprocal_(),
            ("torch.sigmoid", GIVEN): lambda: torch.sigmoid(t, out=to),
            ("torch.sigmoid", FRESH): lambda: torch.sigmoid(t),
        }
    peers |= o.numexpr("1 / (1 + exp(-x))")
    return Case(f"logistic 1/(1+exp(-x)) {shape}", peers, lambda: 1 / (1 + np.exp(-x.astype(float))), targets)


def tanh_derivative(be: nl.Backend, shape: tuple[int, int], targets: list[Target]) -> Case:
    o = Operands(be, shape)
    x, out = o.x, o.out

    def ours(be: nl.Backend, x: Any, *_: Any) -> Any:
        t = be.tanh(x)
        return 1 - t * t

    def plain(x: Any) -> Any:
        t = np.tanh(x)
        return 1 - t * t

    def by_hand() -> Any:
        np.tanh(x, out)
        np.multiply(out, out, out)
        return np.subtract(1, out, out)

    peers = o.neonlite(ours)
    peers |= {("numpy", FRESH): lambda: plain(x), ("numpy, out= by hand", GIVEN): by_hand}
    if torch:
        t, to = o.torch[0], o.torch_out

        def eager() -> Any:
            z = torch.tanh(t)
            return 1 - z * z

        peers |= {
            ("torch eager", FRESH): eager,
            ("torch, in place by hand", GIVEN): lambda: torch.tanh(t, out=to).square_().neg_().add_(1),
        }
    peers |= o.numexpr("1 - tanh(x) * tanh(x)")
    return Case(f"tanh' 1-tanh(x)^2 {shape}", peers, lambda: plain(x.astype(float)), targets)


def batch_norm(be: nl.Backend, shape: tuple[int, int], targets: list[Target]) -> Case:
    o = Operands(be, shape)
    x, gamma, beta, out, spare = o.x, o.gamma, o.beta, o.out, o.spare

    def ours(be: nl.Backend, x: Any, gamma: Any, beta: Any) -> Any:
        return (x - be.mean(x, axis=1)) / be.sqrt(be.var(x, axis=1) + EPS) * gamma + beta

    def plain(x: Any) -> Any:
        return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + EPS) * gamma + beta

    def by_hand() -> Any:
        np.subtract(x, x.mean(1, keepdims=True), out)
        var = np.square(out, spare).mean(1, keepdims=True)
        np.multiply(out, gamma / np.sqrt(var + EPS), out)
        return np.add(out, beta, out)

    peers = o.neonlite(ours)
    peers |= {("numpy", FRESH): lambda: plain(x), ("numpy, out= by hand", GIVEN): by_hand}
    if torch:
        t, g, b = o.torch
        norm, flat_g, flat_b = torch.nn.functional.batch_norm, g.flatten(), b.flatten()

        def eager() -> Any:
            var = t.var(1, correction=0, keepdim=True)
            return (t - t.mean(1, keepdim=True)) / torch.sqrt(var + EPS) * g + b

        peers |= {
            ("torch eager", FRESH): eager,
            ("torch batch_norm", FRESH): lambda: norm(t[None], None, None, flat_g, flat_b, True, 0.0, EPS)[0],
        }
    return Case(f"batch norm, axis 1, {shape}", peers, lambda: plain(x.astype(float)), targets)


def softmax(be: nl.Backend, shape: tuple[int, int], targets: list[Target]) -> Case:
    o = Operands(be, shape)
    x, out = o.x, o.out

    def plain(x: Any) -> Any:
        e = np.exp(x - x.max(0))
        return e / e.sum(0)

    def by_hand() -> Any:
        np.subtract(x, x.max(0), out)
        np.exp(out, out)
        return np.divide(out, out.sum(0), out)

    peers = o.neonlite(lambda be, x, *_: be.softmax(x, axis=0))
    peers |= {("numpy", FRESH): lambda: plain(x), ("numpy, out= by hand", GIVEN): by_hand}
    if torch:
        t, to = o.torch[0], o.torch_out

        def eager() -> Any:
            e = torch.exp(t - t.amax(0))
            return e / e.sum(0)

        peers |= {
            ("torch eager", FRESH): eager,
            ("torch.softmax", GIVEN): lambda: torch.softmax(t, 0, out=to),
            ("torch.softmax", FRESH): lambda: torch.softmax(t, 0),
        }
    return Case(f"softmax, axis 0, {shape}", peers, lambda: plain(x.astype(float)), targets)


def small(be: nl.Backend, kept: bool, targets: list[Target]) -> Case:
    """A tree of five nodes over (32, 32): what it costs to build and run it, or to run one that was built before."""
    o = Operands(be, (32, 32))
    x = o.x
    tree = 1 / (1 + be.exp(-1 * o.tensors[0]))
    peers = o.neonlite((lambda *_: tree) if kept else (lambda be, x, *_: 1 / (1 + be.exp(-1 * x))))
    peers |= {("numpy", FRESH): lambda: 1 / (1 + np.exp(-1 * x))}
    if torch:
        t = o.torch[0]
        peers |= {("torch eager", FRESH): lambda: 1 / (1 + torch.exp(-1 * t))}
    name = f"1/(1+exp(-1*x)) (32, 32), {'built once, run again' if kept else 'built and run'}"
    return Case(name, peers, lambda: 1 / (1 + np.exp(-x.astype(float))), targets)


def cases(be: nl.Backend, quick: bool) -> dict[str, Callable[[], Case]]:
    """Return how each case is made, by name; they are made one after another, as the large ones fill the memory."""
    scale = 100 if quick else 1
    wide = (1000, 10_000 // scale)
    large = [Target("numpy", faster=2), Target("torch eager", faster=1)]
    peers = [Target(peer, faster=1) for peer in ("torch eager", "torch.sigmoid", "numexpr")]
    middle = [Target("numpy", faster=1), Target("torch eager", longer=1.4)]
    return {
        "logistic 1e4": lambda: logistic(be, (100, 100), [Target("numpy", longer=1.3)]),
        "logistic 1e5": lambda: logistic(be, (100, 1000), middle),
        "logistic 3e5": lambda: logistic(be, (100, 3000), middle),
        "logistic 1e6": lambda: logistic(be, (100, 10_000), middle),
        "logistic 1e7": lambda: logistic(be, wide, [Target("numpy", faster=3), *peers]),
        "tanh 1e7": lambda: tanh_derivative(be, wide, large[:1]),
        "batch norm 1e7": lambda: batch_norm(be, wide, large[:1]),
        "softmax 1e7": lambda: softmax(be, wide, large[:1]),
        "small": lambda: small(be, False, [Target("numpy", longer=2.2), Target("torch eager", faster=1)]),
        "small again": lambda: small(be, True, [Target("numpy", longer=1.4)]),
    }


def run(case: Case, effort: Effort) -> dict[str, Any]:
    """Check every peer's result, time all, and return the rows and the verdicts."""
    expected = case.expected()
    for (peer, _), work in case.peers.items():
        result = np.asarray(work())
        assert result.dtype == np.float32, f"{peer} computes in {result.dtype}"
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5, err_msg=peer)
    del expected
    times = measure(case.peers, effort)
    rows = []
    for (peer, column), mine in times.items():
        compared = {other: ratio(mine, times[other, FRESH]) for other in ("numpy", "torch eager") if torch or other == "numpy"}
        rows.append({"peer": peer, "output": column, "seconds": statistics.median(mine), "best": min(mine), "rounds": len(mine), "times as fast as": compared})
    targets = []
    for target in case.targets:
        for column in (GIVEN, FRESH):
            theirs = times.get((target.peer, column)) or times.get((target.peer, FRESH))
            words, met = target.judge(ratio(times[US, column], theirs)) if theirs else (f"{target.peer} is not installed", None)
            targets.append({"target": words, "output": column, "met": met})
    return {"case": case.name, "rows": rows, "targets": targets}


# --- what is not a peer's time -------------------------------------------------------------------------------------


def deep(rounds: int) -> dict[str, Any]:
    """y = y + y, a thousand deep: 2^1000 paths, 1000 nodes. The first run makes the plan, later ones find it."""
    steps = {"build": [], "run": [], "run again": [], "build anew and run": []}  # type: dict[str, list[float]]
    steps |= {"gradient": [], "gradient again": [], "gradient of a tree built anew": []}
    for _ in range(rounds):
        be = nl.Backend("cpu", default_dtype="float64")
        x = be.ones((32, 32), name="x")
        out, grad, kept = be.empty((32, 32)), be.empty((32, 32)), []

        def build() -> None:
            y = x  # noqa: B023 - called in this round only
            for _ in range(1000):
                y = y + y
            kept.append(y)  # noqa: B023

        def forward() -> None:
            out[:] = kept[-1]  # noqa: B023

        def backward() -> None:
            nl.Autodiff(kept[-1], be).back_prop_grad(x, grad)  # noqa: B023

        def anew(run: Work) -> None:
            build()  # noqa: B023
            run()

        works = (build, forward, forward, lambda: anew(forward), backward, backward, lambda: anew(backward))  # noqa: B023
        for step, work in zip(steps, works, strict=True):
            start = time.perf_counter()
            work()
            steps[step].append(time.perf_counter() - start)
        assert (out.get() == 2.0**1000).all(), "the value is wrong"
        assert (grad.get() == 2.0**1000).all(), "the gradient is wrong"
    rows = [{"step": step, "seconds": statistics.median(taken)} for step, taken in steps.items()]
    return {"case": "y = y + y, 1000 deep, (32, 32) float64", "rows": rows, "targets": []}


def buffers(be: nl.Backend, quick: bool) -> dict[str, Any]:
    """What later runs allocate: buffers of NumPy's of 1 kB or more that stay, and the most memory at any one time."""
    shape = (1000, 1000 if quick else 10_000)
    x, error, out = be.ones(shape, name="x"), be.ones(shape, name="error"), be.empty(shape)
    gamma, beta = be.ones((shape[0], 1), name="gamma"), be.zeros((shape[0], 1), name="beta")
    norm = (x - be.mean(x, axis=1)) / be.sqrt(be.var(x, axis=1) + EPS) * gamma + beta
    grads = [be.empty_like(t) for t in (x, gamma, beta)]

    def assign(tree: Any) -> Work:
        def work() -> None:
            out[:] = tree

        return work

    works = {
        "logistic": assign(1 / (1 + be.exp(-x))),
        "tanh'": assign(1 - be.tanh(x) * be.tanh(x)),
        "batch norm": assign(norm),
        "batch norm, gradients": lambda: nl.Autodiff(norm, be, error).back_prop_grad([x, gamma, beta], grads),
        "softmax, axis 0": assign(be.softmax(x, axis=0)),
    }
    numpy_only = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    rows, targets = [], []
    for name, work in works.items():
        work()
        tracemalloc.start()
        for _ in range(2):
            work()
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        for _ in range(3):
            work()
        peak = tracemalloc.get_traced_memory()[1] - before
        traces = tracemalloc.take_snapshot().filter_traces([numpy_only]).traces
        tracemalloc.stop()
        stay = sum(trace.size >= 1000 for trace in traces)
        rows.append({"tree": name, "buffers that stay": stay, "peak bytes": peak})
        targets += [{"target": f"{name}: 0 buffers stay: {stay}", "output": GIVEN, "met": stay == 0}]
        targets += [{"target": f"{name}: ≤ 20 kB of new memory at any time: {peak / 1000:.1f} kB", "output": GIVEN, "met": peak <= 20_000}]
    return {"case": f"memory allocated in the second and later runs, {shape} float32", "rows": rows, "targets": targets}


def imports(rounds: int) -> dict[str, Any]:
    """How long ``import neonlite`` takes in a new process, beside ``import numpy``; each in turn."""
    times: dict[str, list[float]] = {"numpy": [], US: []}
    for i in range(rounds + 1):
        for name, taken in times.items():
            code = f"import time; start = time.perf_counter(); import {name}; print(time.perf_counter() - start)"
            duration = float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
            taken += [duration] * (i > 0)  # the first round warms the disk's cache
    longer = ratio(times["numpy"], times[US])
    rows = [{"module": name, "seconds": statistics.median(taken), "rounds": rounds} for name, taken in times.items()]
    verdict = {"target": f"≤ 1.25 × import numpy: {longer:.2f}", "output": "", "met": longer <= 1.25}
    return {"case": "import in a new process", "rows": rows, "targets": [verdict]}


# --- the page ------------------------------------------------------------------------------------------------------


def page(report: dict[str, Any]) -> str:
    """Return the report as Markdown."""
    told_machine = " · ".join(f"{k} {v if v is not None else 'not installed'}" for k, v in report["machine"].items())
    parts = [f"# {report['title']}", f"`{report['command']}`", told_machine, report["note"]]
    return "\n\n".join([*parts, *map(section, report["cases"])]) + "\n"


def section(case: dict[str, Any]) -> str:
    rows = case["rows"]
    if "peer" in rows[0]:
        columns = [GIVEN, FRESH]
        found = {(row["peer"], row["output"]): row for row in rows}
        head = ["", *(f"{word}" for c in columns for word in (f"{c} output", "× numpy", "× torch eager"))]
        lines = []
        for peer in dict.fromkeys(row["peer"] for row in rows):
            line = [peer]
            for column in columns:
                row = found.get((peer, column))
                speed = row["times as fast as"] if row else {}
                line += [told(row["seconds"]) if row else ""]
                line += [f"{speed[other]:.2f}" if other in speed else "" for other in ("numpy", "torch eager")]
            lines.append(line)
        lines += [[f"{peer}: not installed", *[""] * 6] for peer in case["missing"]]
    else:
        head = list(rows[0])
        lines = [[told(v) if k == "seconds" else str(v) for k, v in row.items()] for row in rows]
    verdicts = [f"- {mark(t['met'])} {t['output'] and t['output'] + ' output: '}{t['target']}" for t in case["targets"]]
    return "\n\n".join([f"## {case['case']}", markdown(head, lines), *(["\n".join(verdicts)] if verdicts else [])])


def mark(met: bool | None) -> str:
    return {True: "met", False: "MISSED", None: "not judged"}[met]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smoke run: small sizes, few rounds, nothing written")
    parser.add_argument("--threads", type=int, default=cpus(), help="threads of every peer (default: all CPUs)")
    parser.add_argument("--only", default="", help="the cases whose name holds this word; nothing written")
    options = parser.parse_args()
    set_threads(options.threads)
    if torch:
        torch.set_num_threads(options.threads)
    if numexpr:
        numexpr.set_num_threads(options.threads)
