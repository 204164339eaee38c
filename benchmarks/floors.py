"""Divide the time of neonlite among the libraries that it calls; the sum of theirs is the floor of any other planning.

python benchmarks/floors.py           # four minutes; writes results/floors.json and results/floors.md
python benchmarks/floors.py --quick   # a smoke test with few rounds; writes nothing

The functions of oneDNN, NumPy's products (OpenBLAS), and the NumPy functions of fused stages are replaced by ones that
add up their time. They run on one thread. "oneDNN", "products" and "NumPy" are the parts of a call, in per cent of it;
"floor" is their sum relative to PyTorch's whole call: no other order of the same calls is faster. The rest is Python.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import primitives
import steps
from _table import Effort, Work, format_duration, machine, markdown, measure, ratio, save

from neonlite import Backend
from neonlite.backend.runtimes.numpy import templates
from neonlite.backend.runtimes.onednn import bindings, products

FULL, QUICK = Effort(2.0, 0.02, 7), Effort(0.1, 0.002, 2)
PARTS = ("oneDNN", "products", "NumPy")
NETWORKS = ("lenet", "cifar", "resnet", "char lstm", "char transformer")
WITHOUT_ONEDNN = ("lenet", "cifar", "char lstm")  # those with a goal for the plain install

OTHERS = ("einsum", "take", "copyto", "concatenate", "log", "isinf", "putmask", "minimum")  # of NumPy, called by name
spent = dict.fromkeys(PARTS, 0.0)  # seconds
depth = 0  # of functions that are timed, of which the outermost counts


class Timed:
    """A function that adds its time to a part; ``reduce`` is that of a ufunc."""

    def __init__(self, function: Any, part: str) -> None:
        self.function, self.part = function, part

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        global depth
        depth += 1
        start = time.perf_counter()
        try:
            return self.function(*args, **kwargs)
        finally:
            depth -= 1
            if not depth:
                spent[self.part] += time.perf_counter() - start

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.function, name)
        return Timed(value, self.part) if name in ("reduce", "accumulate") else value


@contextmanager
def timed() -> Iterator[None]:
    """Replace the functions of the libraries; plans that are made inside call those that are timed."""
    library, sgemm, ufuncs = bindings.get_library(), products.get_sgemm, dict(templates.UFUNCS)
    called = {name: getattr(np, name) for name in ("matmul", *OTHERS)}
    templates.UFUNCS.update({name: Timed(f, "NumPy") for name, f in ufuncs.items()})
    for name, f in called.items():
        setattr(np, name, Timed(f, "products" if name == "matmul" else "NumPy"))
    if library is not None:
        execute, library.execute = library.execute, Timed(library.execute, "oneDNN")
        products.get_sgemm = lambda of: Timed(sgemm(of), "oneDNN")
    try:
        yield
    finally:
        templates.UFUNCS.update(ufuncs)
        products.get_sgemm = sgemm
        for name, f in called.items():
            setattr(np, name, f)
        if library is not None:
            library.execute = execute


def shares(work: Work, effort: Effort) -> dict[str, float]:
    """Return the part of the time of a call that each library takes."""
    for _ in range(3):
        work()
    found = []
    for _ in range(max(5, effort.rounds)):
        calls = 0
        start, before = time.perf_counter(), dict(spent)
        while time.perf_counter() < start + effort.case / 10:
            work()
            calls += 1
        whole = time.perf_counter() - start
        found.append({part: (spent[part] - before[part]) / whole for part in PARTS})
    return {part: statistics.median(x[part] for x in found) for part in PARTS}


def functions() -> Iterator[tuple[str, str, Callable[[], Work], Work]]:
    """Yield the functions of rows, and attention: name, pass, neonlite's, and PyTorch's."""
    for name in primitives.FUNCTIONS:
        for case, shape in primitives.PRIMITIVES[name].cases.items():
            theirs = primitives.theirs_function(name, shape, False)
            for kind in theirs:
                create = partial(
                    lambda *key: primitives.ours_function(key[0], Backend("cpu"), key[1])[key[2]][0], name, shape, kind
                )
                yield f"{name}, {case}", kind, create, theirs[kind][0]


def networks(names: tuple[str, ...]) -> Iterator[tuple[str, str, Callable[[], Work], Work]]:
    """Yield the steps and the inference of networks."""
    for name in names:
        case = steps.case_of(name)
        has_layouts = isinstance(case, steps.Case)
        _, net = steps.network(case, "cpu", steps.STILL)
        for kind in ("step", "infer"):
            create = partial(lambda case, kind: getattr(steps.network(case, "cpu", steps.STILL)[0], kind), case, kind)
            others = [
                getattr(steps.other(case, peer, net, steps.STILL), kind) for peer in steps.EAGER[: 1 + has_layouts]
            ]
            yield name, kind, create, min(others, key=lambda work: min(steps.seconds(work, 3) for _ in range(3)))


def rows(is_plain: bool, effort: Effort) -> list[dict[str, Any]]:
    """Return a row for each work: the times, and the parts of the libraries."""
    found = []
    works = networks(WITHOUT_ONEDNN) if is_plain else [*functions(), *networks(NETWORKS)]
    for name, kind, create, theirs in works:
        times, quiet = measure({"neonlite": create(), "torch": theirs}, effort)
        with timed():
            parts = shares(create(), effort)
        relative = ratio(times["torch"], times["neonlite"])
        row = {"work": name, "pass": kind, "onednn": not is_plain, "quiet": quiet, "x torch": relative}
        row |= {f"{peer} s": statistics.median(t) for peer, t in times.items()} | parts
        found.append(row | {"floor": sum(parts.values()) * relative})
        print(name, kind, f"{relative:.2f}", f"{found[-1]['floor']:.2f}", file=sys.stderr, flush=True)
    return found


def main() -> int:
    """Measure with and without oneDNN, each in a process of one thread."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds; write nothing")
    parser.add_argument("--measure", choices=("onednn", "plain"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    effort = QUICK if options.quick else FULL
    if options.measure:
        steps.set_threads(1)
        print(json.dumps(rows(options.measure == "plain", effort)))
        return 0
    about, found = machine("numpy", "onednn-cpu-gomp", "torch"), []
    for kind in ("onednn", "plain"):
        env = {**os.environ, "OMP_NUM_THREADS": "1"} | ({"NEONLITE_ONEDNN": "0"} if kind == "plain" else {})
        command = [sys.executable, __file__, "--measure", kind, *["--quick"] * options.quick]
        found += json.loads(subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout)
    cells = [
        [
            f"{row['work']}{'' if row['onednn'] else ', without oneDNN'}{'' if row['quiet'] else ' ~'}",
            row["pass"],
            *(format_duration(row[f"{peer} s"]) for peer in ("neonlite", "torch")),
            f"{row['x torch']:.2f}",
            *(f"{100 * row[part]:.0f} %" for part in PARTS),
            f"{row['floor']:.2f}",
        ]
        for row in found
    ]
    head = ["work", "pass", "neonlite", "torch", "× torch", *PARTS, "floor"]
    described = ", ".join(f"{key} {value}" for key, value in about.items())
    text = f"`python benchmarks/floors.py`\n\n{described}; one thread:\n\n{markdown(head, cells)}\n"
    print(text)
    if not options.quick:
        save("floors", {"machine": about, "rows": found}, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
