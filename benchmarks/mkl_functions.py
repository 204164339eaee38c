"""Compare neonlite with functions of MKL that it does not use: transposes, packed products, vector functions.

python benchmarks/mkl_functions.py            # two minutes; writes results/mkl_functions.json and .md
python benchmarks/mkl_functions.py --quick    # a smoke test of seconds; writes nothing
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from ctypes import c_char, c_float, c_int, c_int64, c_size_t, c_void_p
from functools import partial
from typing import Any

import numpy as np
from _table import Effort, Work, cpus, format_duration, installed, machine, markdown, measure, ratio, save

from neonlite.backend import Backend

FULL, QUICK = Effort(6.0, 0.02, 11), Effort(0.1, 0.002, 3)
ROWS, NO, PACKED, FIRST = 101, 111, 151, 161  # constants of CBLAS and MKL
HIGH_ACCURACY = 2
NOTE = """\
"MKL × neonlite" is the time of MKL divided by that of neonlite, the median of the ratios of all rounds, in each of
which both run once, in random order: where it is not below 1, MKL would gain nothing. The packing of the first operand
of a packed product is not measured. Outputs are preallocated, float32. `~`: other processes used the machine
meanwhile."""


def address(array: Any) -> c_void_p:
    """Return a pointer to an array, which must stay alive."""
    return array.ctypes.data_as(c_void_p)


def transpose(mkl: Any, be: Backend, m: int, n: int) -> tuple[Work, Work, Callable[[], bool]]:
    """Return the work of neonlite and of ``mkl_somatcopy``, and a function that compares the results."""
    x, y, z = be.randn((m, n)).astensor(), be.empty((n, m)), np.empty((n, m), np.float32)
    a = x.get()
    sizes = c_size_t(m), c_size_t(n), c_float(1), address(a), c_size_t(n), address(z), c_size_t(m)
    work = be.compile([y], [x.T])
    return work, lambda: mkl.MKL_Somatcopy(c_char(b"R"), c_char(b"T"), *sizes), lambda: np.array_equal(y.get(), z)


def product(mkl: Any, be: Backend, m: int, k: int, n: int) -> tuple[Work, Work, Callable[[], bool]]:
    """Return the work of neonlite and of ``cblas_sgemm_compute``, and a function that compares the results."""
    x, y, out, c = be.randn((m, k)).astensor(), be.randn((k, n)).astensor(), be.empty((m, n)), np.zeros((m, n), "f")
    a, b = x.get(), y.get()
    mkl.cblas_sgemm_pack_get_size.restype = c_size_t
    packed = np.empty(mkl.cblas_sgemm_pack_get_size(FIRST, m, n, k) // 4 + 16, np.float32)
    mkl.cblas_sgemm_pack(ROWS, FIRST, NO, m, n, k, c_float(1), address(a), k, address(packed))
    args = ROWS, PACKED, NO, m, n, k, address(packed), k, address(b), n, c_float(0), address(c), n
    work = partial(be.compound_dot, x, y, out)
    return work, lambda: mkl.cblas_sgemm_compute(*args), lambda: np.allclose(out.get(), c, 1e-4, 1e-3)


def function(mkl: Any, be: Backend, name: str, theirs: str, size: int) -> tuple[Work, Work, Callable[[], bool]]:
    """Return the work of neonlite and of MKL's vector library, and a function that compares the results."""
    x, y, z = (be.rand((1, size)) + 0.1).astensor(), be.empty((1, size)), np.empty((1, size), np.float32)
    a = x.get()
    args = c_int(size), address(a), address(z), c_int64(HIGH_ACCURACY)
    return be.compile([y], [getattr(be, name)(x)]), lambda: mkl[theirs](*args), lambda: np.allclose(y.get(), z, 1e-5)


CASES: dict[str, tuple[Any, ...]] = {
    f"transpose, {m} x {n}": (transpose, m, n) for m, n in ((784, 128), (1000, 1000), (4096, 4096), (100000, 32))
}
CASES |= {
    f"product, {m} x {k} x {n}": (product, m, k, n) for m, k, n in ((512, 128, 64), (128, 784, 100), (1024, 1024, 128))
}
CASES |= {
    f"{name} of 1,000,000": (function, name, theirs, 10**6)
    for name, theirs in (("exp", "vmsExp"), ("log", "vmsLn"), ("tanh", "vmsTanh"))
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="run a smoke test, and write nothing")
    options = parser.parse_args()
    if installed("mkl") is None:
        sys.exit('MKL is not installed: pip install "neonlite[mkl]"')
    be, found = Backend("mkl", rng_seed=1), []
    from neonlite.backend.runtimes.mkl import load_library

    load_library().MKL_Set_Num_Threads(cpus())
    for name, (kind, *sizes) in CASES.items():
        ours, theirs, same = kind(load_library(), be, *sizes)
        times, quiet = measure({"neonlite": ours, "mkl": theirs}, QUICK if options.quick else FULL)
        if not same():
            sys.exit(f"{name}: results differ")
        row = {"case": name, "quiet": quiet, "ratio": ratio(times["neonlite"], times["mkl"])}
        found.append(row | {f"{peer} s": statistics.median(taken) for peer, taken in times.items()})
    about = machine("numpy", "mkl", "onednn-cpu-gomp")
    lines = [
        [
            f"{row['case']}{'' if row['quiet'] else ' ~'}",
            format_duration(row["neonlite s"]),
            format_duration(row["mkl s"]),
            f"{row['ratio']:.2f}",
        ]
        for row in found
    ]
    words = "\n".join(f"- {key}: {value}" for key, value in about.items())
    command = f"`{' '.join(['python benchmarks/mkl_functions.py', *sys.argv[1:]])}`"
    table = markdown(["work", "neonlite", "MKL", "MKL × neonlite"], lines)
    report = "\n\n".join(["# What of MKL is not used", command, words, NOTE, table]) + "\n"
    print(report)
    if not options.quick:
        save("mkl_functions", {"machine": about, "rows": found}, report)


if __name__ == "__main__":
    main()
