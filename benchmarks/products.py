"""Measure matrix products into preallocated outputs: neonlite, with and without MKL, beside NumPy and PyTorch.

python benchmarks/products.py            # minutes; writes results/products.json and results/products.md
python benchmarks/products.py --alone    # without PyTorch: writes results/products_alone.json and .md
python benchmarks/products.py --quick    # a smoke test of seconds; writes nothing
python benchmarks/products.py --only stack
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from _table import FULL, QUICK, Effort, Work, cpus, elsewhere, format_duration, machine, markdown, ratio, save, seconds

from neonlite import Backend
from neonlite.backend import concurrency

ALONE = "--alone" in sys.argv
# imported before MKL, or PyTorch would use MKL's OpenMP library
torch: Any = import_module("torch") if find_spec("torch") and not ALONE else None
RUNTIMES = ["cpu", *(["mkl"] if find_spec("mkl") else [])]
LIMIT = 1.1  # maximum time of 'mkl' relative to NumPy
REST = 0.25  # seconds until the threads of OpenBLAS (25 ms) and OpenMP (200 ms) stop spinning
NOTE = """\
"overwrite" is c = a b, "accumulate" c = a b + c/2. For neonlite, `gemm` is `primitives.gemm`, and `tree` is `c[:] = a
@ b` with a tree that is rebuilt in every call, as in user code. NumPy runs `matmul(out=)`, and for "accumulate"
`matmul` into a reused buffer, `multiply` and `add`; PyTorch runs `mm(out=)`, `bmm(out=)`, `addmm_` and `baddbmm_`.
Results are compared before the measurement. Times are medians over rounds, in each of which every peer runs once, in
random order, after a rest, because the threads of a library spin for a while on CPUs that the next peer needs. "×
numpy" is the time relative to NumPy, the median of the ratios of all rounds. 'mkl' leaves products of at most a
million multiplications without accumulation, and products with a vector, to NumPy. If PyTorch is loaded, MKL shares
GNU's OpenMP with it, which starts some microseconds later than MKL's own: `--alone` shows the difference."""

# name, shapes of a and b, and which of them are transposed views
CASES: list[tuple[str, tuple[int, ...], tuple[int, ...], str]] = [
    ("small", (32, 32), (32, 32), ""),
    ("a hidden layer", (100, 784), (784, 128), ""),
    ("its weights' gradient", (784, 128), (128, 100), "b"),
    ("its input's gradient", (784, 100), (100, 128), "a"),
    ("a step of an LSTM", (512, 128), (128, 64), ""),
    ("a row of convolutions", (64, 64), (64, 1792), ""),
    ("middle", (576, 576), (576, 576), ""),
    ("large", (1024, 1024), (1024, 1024), ""),
    ("a matrix and a vector", (2000, 1000), (1000, 1), ""),
    ("a stack", (64, 64, 64), (64, 64, 64), ""),
    ("a stack by one matrix", (32, 100, 784), (784, 16), ""),
]


def works(a: Any, b: Any, added: bool) -> dict[str, Work]:
    """Return {peer: work}, after comparing all results."""
    start = np.random.default_rng(1).standard_normal((*a.shape[:-1], b.shape[-1]), np.float32)
    outs, found = {"numpy": start.copy()}, {}
    c, product = outs["numpy"], np.empty_like(start)

    def numpy_added() -> None:
        np.matmul(a, b, out=product)
        np.multiply(c, 0.5, out=c)
        np.add(c, product, out=c)

    found["numpy"] = numpy_added if added else lambda: np.matmul(a, b, out=c)
    for name in RUNTIMES:
        be = Backend(name)
        x, y = (be.array(t) if t.flags.c_contiguous else be.array(t.T).T for t in (a, b))
        z = be.array(start)
        outs[f"{name} gemm"] = out = start.copy()
        found[f"{name} gemm"] = lambda gemm=be.primitives.gemm, out=out: gemm(a, b, out, 1.0, 0.5 if added else 0.0)
        if not added:
            outs[f"{name} tree"] = z._array
            found[f"{name} tree"] = lambda be=be, x=x, y=y, z=z: z.__setitem__(slice(None), x @ y)
    if torch:
        ta, tb, tc = (torch.from_numpy(t) for t in (a, b, start.copy()))
        tb = tb.expand(len(ta), *tb.shape) if ta.ndim > tb.ndim else tb
        add, multiply = (tc.addmm_, torch.mm) if ta.ndim == 2 else (tc.baddbmm_, torch.bmm)
        outs["torch"] = tc.numpy()
        found["torch"] = (lambda: add(ta, tb, beta=0.5)) if added else lambda: multiply(ta, tb, out=tc)
    want = a.astype(np.float64) @ b.astype(np.float64) + start * (0.5 if added else 0.0)
    for peer, work in found.items():
        work()
        np.testing.assert_allclose(outs[peer], want, rtol=1e-3, atol=1e-3, err_msg=peer)
    return found


def measure(peers: dict[str, Work], effort: Effort) -> tuple[dict[str, list[float]], bool]:
    """Return the result of ``_table.measure`` with a rest before each peer."""
    calls = {
        peer: max(1, round(effort.sample / min(seconds(work, 2), seconds(work, 3)))) for peer, work in peers.items()
    }
    order, shuffle, rounds, quiet = list(peers), random.Random(0).shuffle, [], []
    start = time.perf_counter()
    while len(quiet) < effort.rounds or time.perf_counter() < start + effort.case:
        shuffle(order)
        before, clock, times = elsewhere(), time.perf_counter(), {}
        for peer in order:
            time.sleep(REST)
            seconds(peers[peer], max(1, calls[peer] // 4))
            times[peer] = seconds(peers[peer], calls[peer])
        rounds.append(times)
        if elsewhere() - before < (time.perf_counter() - clock) * cpus() / 20:
            quiet.append(times)
        if len(rounds) >= effort.rounds and time.perf_counter() > start + 3 * effort.case:
            break
    enough = len(quiet) >= effort.rounds
    return {peer: [times[peer] for times in (quiet if enough else rounds)] for peer in peers}, enough


def row(name: str, a: Any, b: Any, added: bool, effort: Effort) -> dict[str, Any]:
    """Return the measurements of a case."""
    times, quiet = measure(works(a, b, added), effort)
    mine: dict[str, Any] = {
        "case": name,
        "a": a.shape,
        "b": b.shape,
        "pass": "accumulate" if added else "overwrite",
        "quiet": quiet,
    }
    mine["multiplications"] = a.size * b.shape[-1]
    for peer, taken in times.items():
        mine[f"{peer} s"] = statistics.median(taken)
        mine[f"{peer} / numpy"] = ratio(times["numpy"], taken)
    return mine


def page(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a table: times, and times relative to NumPy."""
    peers = [key[:-2] for key in rows[0] if key.endswith(" s")]
    lines = []
    for found in rows:
        lines.append([f"{found['case']}, {found['a']} {found['b']}{'' if found['quiet'] else ' ~'}", found["pass"]])
        for peer in peers:
            longer = found.get(f"{peer} / numpy")
            if longer is None:
                lines[-1].append("")
            elif peer == "numpy":
                lines[-1].append(format_duration(found["numpy s"]))
            else:
                missed = peer == "mkl gemm" and longer > LIMIT
                lines[-1].append(f"{longer:.2f}{' !' if missed else ''}")
    return markdown(["product", "pass", "numpy", *(f"{peer} × numpy" for peer in peers[1:])], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="run a smoke test, and write nothing")
    parser.add_argument("--alone", action="store_true", help="do not load PyTorch")
    parser.add_argument("--only", default="", metavar="WORD", help="only the cases with this word; write nothing")
    options = parser.parse_args()
    if torch:
        torch.set_num_threads(concurrency.get_num_threads())
    rng, rows = np.random.default_rng(0), []
    for name, *shapes, turned in CASES:
        if options.only in name:
            operands = []
            for letter, (*stack, m, n) in zip("ab", shapes, strict=True):
                shape = (*stack, n, m) if letter in turned else (*stack, m, n)
                values = rng.standard_normal(shape, np.float32)
                operands.append(values.swapaxes(-1, -2) if letter in turned else values)
            for added in (False, True):
                rows.append(row(name, *operands, added, QUICK if options.quick else FULL._replace(case=5.0)))
                print(page(rows[-1:]).splitlines()[-1], flush=True)
    about = machine("numpy", "mkl", "torch") | {"threads": concurrency.get_num_threads()}
    words = "\n".join(f"- {key}: {value}" for key, value in about.items())
    ours = [found["mkl gemm / numpy"] for found in rows if "mkl gemm / numpy" in found]
    target = f"Target: `mkl gemm` at most {LIMIT:g} times as long as NumPy; a miss has a `!`. "
    target += f"Met: {sum(x <= LIMIT for x in ours)} of {len(ours)}. `~`: other processes used the machine meanwhile."
    parts = ["# Products", f"`{' '.join(['python benchmarks/products.py', *sys.argv[1:]])}`", words, target, NOTE]
    report = "\n\n".join([*parts, page(rows)]) + "\n"
    print(report)
    if not (options.quick or options.only):
        save("products_alone" if ALONE else "products", {"machine": about, "rows": rows}, report)


if __name__ == "__main__":
    main()
