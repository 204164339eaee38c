"""Measure how times grow with the number of operands, trees, ops and layers, from 100 to a million.

python benchmarks/scale.py            # an hour; writes results/scale.json and results/scale.md
python benchmarks/scale.py --quick    # 10 and 100, and writes nothing
python benchmarks/scale.py --only concat
"""

from __future__ import annotations

import argparse
import copy
import math
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
from _table import Work, format_duration, machine, markdown, save

import neonlite as nl
from neonlite.backend.concurrency import set_threads
from neonlite.data import ArrayIterator
from neonlite.initializers import Constant
from neonlite.layers import Bias, GeneralizedCost
from neonlite.models import Model
from neonlite.optimizers import GradientDescentMomentum
from neonlite.transforms import SumSquared

MAX_EXPONENT = 1.2  # n log n has 1.1 between 10,000 and 100,000, and 1.08 to a million
MAX_BYTES = 4 << 30  # of a case; larger n are left out
NOTE = """\
Each time is the CPU time, which hardly depends on other load of the machine, of a first call for n small arrays: of
building op-trees, planning them, generating code, and running it once, with the garbage collector on. "exponent" is
log(t(10 m) / t(m)) / log 10 for the largest n of the row: 1 is proportional to n, n log n is 1.1, and n² is 2. A case
ends before n would take more than ``--seconds``, a minute by default, or 4 GB."""

xp = nl.array_api


def arrays(n: int) -> list[Any]:
    return [xp.ones(2) for _ in range(n)]


def tensors(be: nl.Backend, n: int, shape: tuple[int, int] = (1, 2)) -> list[nl.Tensor]:
    return [be.ones(shape) for _ in range(n)]


def repeat(x: Any, n: int, formula: Callable[[Any], Any]) -> Any:
    for _ in range(n):
        x = formula(x)
    return x


def pairwise_sum(xs: list[Any]) -> Any:
    """Return the sum as a balanced tree."""
    while len(xs) > 1:
        xs = [x + y for x, y in zip(xs[::2], xs[1::2], strict=False)] + xs[len(xs) // 2 * 2 :]
    return xs[0]


# --- cases: each returns the work to measure for n ------------------------------------------------------------------


def concat_arrays(be: nl.Backend, n: int) -> Work:
    xs = arrays(n)
    return lambda: xp.concat(xs).numpy()


def stack_arrays(be: nl.Backend, n: int) -> Work:
    xs = arrays(n)
    return lambda: xp.stack(xs).numpy()


def unstack_array(be: nl.Backend, n: int) -> Work:
    x = xp.ones((n, 2))
    return lambda: xp.unstack(x)


def index_array(be: nl.Backend, n: int) -> Work:
    x = xp.ones((n, 2))
    return lambda: [x[i] for i in range(n)]


def stack_rows(be: nl.Backend, n: int) -> Work:
    x = xp.ones((n, 2))
    return lambda: xp.stack([2 * x[i] for i in range(n)]).numpy()


def write_elements(be: nl.Backend, n: int) -> Work:
    def work() -> Any:
        x = xp.zeros(n)
        for i in range(n):
            x[i] = 1.0
        return x.numpy()

    return work


def concat(be: nl.Backend, n: int) -> Work:
    xs = tensors(be, n)
    return lambda: be.concat(xs, axis=0).astensor()


def stack(be: nl.Backend, n: int) -> Work:
    xs = tensors(be, n)
    return lambda: be.stack(xs, axis=0).astensor()


def assign(be: nl.Backend, n: int) -> Work:
    xs, ys = tensors(be, n), tensors(be, n)
    return lambda: be.assign(ys, [x + 1 for x in xs])


def assign_in_place(be: nl.Backend, n: int) -> Work:
    xs = tensors(be, n)
    return lambda: be.assign(xs, [x + 1 for x in xs])


def evaluate(be: nl.Backend, n: int, formula: Callable[[Any], Any]) -> Work:
    xs = tensors(be, n, (4, 4))
    return lambda: be.evaluate([formula(x) for x in xs])


def sums(be: nl.Backend, n: int) -> Work:
    return evaluate(be, n, lambda x: be.sum(x * x))


def softmaxes(be: nl.Backend, n: int) -> Work:
    return evaluate(be, n, lambda x: be.softmax(x, axis=0))


def products(be: nl.Backend, n: int) -> Work:
    return evaluate(be, n, lambda x: be.dot(x, x) + 1)


def inverses(be: nl.Backend, n: int) -> Work:
    identity = be.array(np.eye(4))
    return evaluate(be, n, lambda x: be.inv(x + identity) + 1)


def build(be: nl.Backend, n: int) -> Work:
    x = be.ones((1, 2))
    return lambda: repeat(x, n, lambda z: z * 1.5)


def deep_tree(be: nl.Backend, n: int) -> Work:
    x = be.ones((1, 2))
    return lambda: repeat(x, n, lambda z: z + 1).astensor()


def wide_tree(be: nl.Backend, n: int) -> Work:
    xs = tensors(be, n)
    return lambda: pairwise_sum(xs).astensor()


def chain_of_products(be: nl.Backend, n: int) -> Work:
    x = be.ones((4, 4))
    return lambda: repeat(x, n, lambda z: be.tanh(be.dot(x, z))).astensor()


def gradient_of_chain(be: nl.Backend, n: int) -> Work:
    x = be.ones((4, 4))
    y = be.sum(repeat(x, n, lambda z: be.tanh(be.dot(x, z))))
    return lambda: nl.Autodiff(y, be).get_grad_tensor([x])


def print_tree(be: nl.Backend, n: int) -> Work:
    tree = build(be, n)()
    return lambda: tree.pp()  # type: ignore[attr-defined]


def copy_tree(be: nl.Backend, n: int) -> Work:
    tree = build(be, n)()
    return lambda: copy.deepcopy(tree)


def draw_tree(be: nl.Backend, n: int) -> Work:
    tree = build(be, n)()
    return lambda: tree.draw()  # type: ignore[attr-defined]


def jit(be: nl.Backend, n: int) -> Work:
    return lambda: nl.jit(lambda x: repeat(x, n, lambda z: z * 1.5))(be.ones((1, 2)))


def jit_of_arguments(be: nl.Backend, n: int) -> Work:
    xs = arrays(n)
    return lambda: nl.jit(lambda *xs: [x + 1 for x in xs])(*xs)


def grad_of_list(be: nl.Backend, n: int) -> Work:
    xs = arrays(n)
    return lambda: nl.grad(lambda xs: xp.sum(xp.concat(xs) ** 2))(xs)


def grad_of_sums(be: nl.Backend, n: int) -> Work:
    xs = arrays(n)
    return lambda: nl.grad(lambda xs: sum([xp.sum(x * x) for x in xs]))(xs)


def fit(be: nl.Backend, n: int) -> Work:
    rows = np.ones((4, 2))

    def work() -> None:
        data = ArrayIterator(rows, rows, make_onehot=False)
        model = Model([Bias(init=Constant(0.0)) for _ in range(n)])
        model.fit(data, GeneralizedCost(SumSquared()), GradientDescentMomentum(0.1, 0.9), num_epochs=1)

    return work


CASES: dict[str, Callable[[nl.Backend, int], Work]] = {
    "concat of n arrays": concat_arrays,
    "stack of n arrays": stack_arrays,
    "unstack into n arrays": unstack_array,
    "x[i] for n rows": index_array,
    "stack of 2 x[i] for n rows": stack_rows,
    "x[i] = 1 for n elements": write_elements,
    "be.concat of n tensors": concat,
    "be.stack of n tensors": stack,
    "be.assign to n tensors": assign,
    "be.assign to n tensors, in place": assign_in_place,
    "be.evaluate of n sums": sums,
    "be.evaluate of n softmaxes": softmaxes,
    "be.evaluate of n products": products,
    "be.evaluate of n inverses": inverses,
    "tree of n ops, built": build,
    "tree of n ops, built and run": deep_tree,
    "sum of n tensors, a balanced tree": wide_tree,
    "n products and tanh, one after another": chain_of_products,
    "gradient of n products and tanh": gradient_of_chain,
    "pp of a tree of n ops": print_tree,
    "deep copy of a tree of n ops": copy_tree,
    "drawing of a tree of n ops": draw_tree,
    "jit of n ops": jit,
    "jit of a function of n arguments": jit_of_arguments,
    "grad of concat of n arrays": grad_of_list,
    "grad of n sums": grad_of_sums,
    "one step of fit, n layers": fit,
}


# --- measuring -------------------------------------------------------------------------------------------------------


def measure(name: str, sizes: list[int], max_seconds: float) -> dict[str, Any]:
    """Return the seconds of a case for each n that it has the time and the memory for, and its exponent."""
    set_threads(1)
    times: dict[int, float] = {}
    first_call(name, 10)
    start = peak_bytes()
    for n in sizes:
        times[n] = first_call(name, n)
        if 12 * times[n] > max_seconds or 10 * (peak_bytes() - start) > MAX_BYTES:
            break
    (m, before), (n, last) = [*times.items()][-2:]
    return {"case": name, "seconds": times, "exponent": math.log(last / before) / math.log(n / m)}


def first_call(name: str, n: int) -> float:
    """Return the CPU seconds of a first call, on a new backend."""
    be = nl.gen_backend("cpu", batch_size=4)
    work = CASES[name](be, n)
    start = time.process_time()
    work()
    return time.process_time() - start


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # of KiB


def cells(row: dict[str, Any], sizes: list[int]) -> list[str]:
    """Return a row of the table; ``!`` marks an exponent that is too large."""
    exponent, times = row["exponent"], row["seconds"]
    mark = " !" if exponent > MAX_EXPONENT else ""
    return [row["case"], *(format_duration(times[n]) if n in times else "" for n in sizes), f"{exponent:.2f}{mark}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="run a smoke test, and write nothing")
    parser.add_argument("--only", default="", metavar="WORD", help="only the cases with this word; write nothing")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the largest n of a case, at most; default 60")
    options = parser.parse_args()
    sizes = [10, 100] if options.quick else [10**k for k in range(2, 7)]
    rows = []
    # a process for each case, so that it finds neither the caches nor the garbage of another one
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        for name in CASES:
            if options.only in name:
                rows.append(pool.submit(measure, name, sizes, options.seconds).result())
                print(*cells(rows[-1], sizes), sep="  ", flush=True)
    about = machine("numpy")
    words = "\n".join(f"- {key}: {value}" for key, value in about.items())
    target = f"Target: exponents of at most {MAX_EXPONENT}; a miss has a `!`."
    table = markdown(["case", *(f"{n:,}" for n in sizes), "exponent"], (cells(row, sizes) for row in rows))
    command = f"`{' '.join(['python benchmarks/scale.py', *sys.argv[1:]])}`"
    report = "\n\n".join(["# How times grow with n", command, words, target, NOTE, table]) + "\n"
    print(report)
    if not (options.quick or options.only):
        save("scale", {"machine": about, "rows": rows}, report)


if __name__ == "__main__":
    main()
