"""Measure the speedup of a second thread: the same work by one thread and by two, interleaved in one process.

python benchmarks/threads.py            # a minute or two; writes results/threads.json and results/threads.md
python benchmarks/threads.py --quick    # a smoke test of seconds; writes nothing
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from typing import Any

from _table import Effort, Work, cpus, format_duration, machine, markdown, measure, ratio, save
from threadpoolctl import threadpool_limits

from neonlite.backend import Backend, concurrency

FULL, QUICK = Effort(6.0, 0.03, 11), Effort(0.1, 0.002, 3)
TARGET = 1.6  # times as fast
NOTE = """\
"gain" is the speedup of two threads over one: the median of the ratios of all rounds, in each of which both run once,
in random order. Outputs are preallocated, float32. Long work gains most, because threads must be woken: below some size
neonlite uses one thread. `~`: other processes used the machine meanwhile."""


def tree(formula: Callable[..., Any], size: int) -> Callable[[Backend], Work]:
    """Return a function that creates the work of an op-tree of be and x with ``size`` elements."""

    def create(be: Backend) -> Work:
        x, out = be.randn((1000, size // 1000)).astensor(), be.empty((1000, size // 1000))
        return be.compile([out], [formula(be, x)])

    return create


def convolution(pass_name: str, N: int, C: int, H: int, K: int, R: int) -> Callable[[Backend], Work]:
    """Return a function that creates the work of a pass of a convolution: "fprop", "bprop" or "update"."""

    def create(be: Backend) -> Work:
        layer = be.conv_layer("float32", N=N, C=C, K=K, H=H, W=H, R=R, S=R, pad_h=R // 2, pad_w=R // 2)
        images, filters, outputs = (be.randn(x).astensor() for x in (layer.dimI2, layer.dimF2, layer.dimO2))
        if pass_name == "bprop":
            return lambda: be.bprop_conv(layer, filters, outputs, images)
        if pass_name == "update":
            return lambda: be.update_conv(layer, images, outputs, filters)
        return lambda: be.fprop_conv(layer, images, filters, outputs)

    return create


def product(m: int, k: int, n: int) -> Callable[[Backend], Work]:
    """Return a function that creates the work of a matrix product."""

    def create(be: Backend) -> Work:
        a, b, c = (be.randn(shape).astensor() for shape in ((m, k), (k, n), (m, n)))
        return lambda: be.compound_dot(a, b, c)

    return create


TREES: dict[str, Callable[..., Any]] = {
    "1/(1+exp(-x))": lambda be, x: 1 / (1 + be.exp(-x)),
    "1-tanh(x)^2": lambda be, x: 1 - be.square(be.tanh(x)),
    "max(x, 0.1 x) 1.5 - 0.5": lambda be, x: be.maximum(x, 0.1 * x) * 1.5 - 0.5,
    "x + 1": lambda be, x: x + 1,  # limited by memory bandwidth
}
CASES: dict[str, Callable[[Backend], Work]] = {
    f"{name}, {size:,}": tree(formula, size) for name, formula in TREES.items() for size in (10**6, 10**7)
}
CASES |= {
    f"convolution, {pass_name}: {N} x {C} x {H} x {H}, {K} of {R} x {R}": convolution(pass_name, N, C, H, K, R)
    for N, C, H, K, R in ((128, 16, 14, 32, 5), (32, 64, 56, 64, 3))
    for pass_name in ("fprop", "bprop", "update")
}
CASES |= {f"product, {m} x {k} x {n}": product(m, k, n) for m, k, n in ((100, 784, 128), (1024, 1024, 128))}


def gain(name: str, effort: Effort) -> dict[str, Any]:
    """Return a row: the times of one thread and of two, and the speedup."""
    work = CASES[name](Backend("cpu", rng_seed=1))

    def by(threads: int) -> Work:
        def run() -> None:
            if concurrency.get_num_threads() != threads:
                concurrency.set_threads(threads)
            work()

        return run

    times, quiet = measure({n: by(n) for n in (1, 2)}, effort)
    row: dict[str, Any] = {"case": name, "quiet": quiet, "gain": 1 / ratio(times[1], times[2])}
    return row | {f"{n} s": statistics.median(taken) for n, taken in times.items()}


def line(row: dict[str, Any]) -> list[str]:
    """Return a row of the table; ``!`` marks a missed target."""
    missed = row["gain"] < TARGET and not row["case"].startswith("product")
    cells = [format_duration(row["1 s"]), format_duration(row["2 s"]), f"{row['gain']:.2f}{' !' if missed else ''}"]
    return [f"{row['case']}{'' if row['quiet'] else ' ~'}", *cells]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="run a smoke test, and write nothing")
    parser.add_argument("--only", default="", metavar="WORD", help="only the cases with this word; write nothing")
    options = parser.parse_args()
    if cpus() < 2:
        sys.exit("there is one CPU here: nothing to gain")
    found = []
    with threadpool_limits(2, "blas"):
        for name in CASES:
            if options.only in name:
                found.append(gain(name, QUICK if options.quick else FULL))
                print(*line(found[-1]), sep="  ", flush=True)
    about = machine("numpy", "onednn-cpu-gomp")
    words = "\n".join(f"- {key}: {value}" for key, value in about.items())
    target = f"Hoped for, of op-trees and convolutions: at least {TARGET} times as fast; a miss has a `!`."
    table = markdown(["work", "1 thread", "2 threads", "gain"], map(line, found))
    command = f"`{' '.join(['python benchmarks/threads.py', *sys.argv[1:]])}`"
    report = "\n\n".join(["# What a second thread gains", command, words, target, NOTE, table]) + "\n"
    print(report)
    if not (options.quick or options.only):
        save("threads", {"machine": about, "rows": found}, report)


if __name__ == "__main__":
    main()
