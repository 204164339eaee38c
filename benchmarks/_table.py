"""Measure times in interleaved rounds, count NumPy buffers, and format benchmark tables.

Each round runs every peer once, in random order, so that a slow moment of the machine affects all of them. Ratios are
computed within a round, and their median is reported. Rounds in which other processes used more than 5 % of the machine
are discarded if enough others remain. Before a peer is measured it runs for a while, so that its operands are in the
cache as far as they fit, and the threads of the previous peer sleep.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import PYFUNCTYPE, c_char_p, c_size_t, c_void_p, py_object, pythonapi
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

RESULTS = Path(__file__).parent / "results"

Work = Callable[[], object]


# --- measuring -----------------------------------------------------------------------------------------------------


class Effort(NamedTuple):
    """Measurement effort: seconds for a case, seconds for one sample, and the minimum number of rounds."""

    case: float
    sample: float
    rounds: int


FULL, QUICK = Effort(12.0, 0.02, 11), Effort(0.2, 0.001, 3)


def seconds(work: Work, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - start) / calls


def measure(peers: dict[Any, Work], effort: Effort, rest: float = 0.0) -> tuple[dict[Any, list[float]], bool]:
    """Return the seconds per call of each peer in each round, and whether the machine was otherwise idle.

    ``rest``: seconds to sleep before each peer, in which the threads of the previous one stop spinning.
    """
    calls = {}
    for peer, work in peers.items():
        work()
        calls[peer] = max(1, round(effort.sample / max(min(seconds(work, 1), seconds(work, 3)), 1e-8)))
    order, shuffle, rounds, quiet = list(peers), random.Random(0).shuffle, [], []
    start = time.perf_counter()
    while len(quiet) < effort.rounds or time.perf_counter() < start + effort.case:
        shuffle(order)
        before, clock, times = elsewhere(), time.perf_counter(), {}
        for peer in order:
            time.sleep(rest)
            seconds(peers[peer], max(1, calls[peer] // 4))
            times[peer] = seconds(peers[peer], calls[peer])
        rounds.append(times)
        if elsewhere() - before < (time.perf_counter() - clock) * cpus() / 20:
            quiet.append(times)
        if len(rounds) >= effort.rounds and time.perf_counter() > start + 3 * effort.case:
            break
    enough = len(quiet) >= effort.rounds
    return {peer: [times[peer] for times in (quiet if enough else rounds)] for peer in peers}, enough


def elsewhere() -> float:
    """Return the CPU seconds of other processes on the CPUs of this one, if the system reports them, else 0."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    used = 0
    for line in stat.read_text().splitlines():
        if (found := re.match(r"cpu(\d+) ", line)) and int(found[1]) in os.sched_getaffinity(0):
            user, nice, system, _, _, *others = map(int, line.split()[1:9])
            used += user + nice + system + sum(others)
    return used / os.sysconf("SC_CLK_TCK") - time.process_time()


def busy(interval: float = 1.0) -> float:
    """Return the fraction of the CPUs that other processes use at the moment."""
    before = elsewhere()
    time.sleep(interval)
    return max(0.0, elsewhere() - before) / interval / cpus()


@contextmanager
def busy_process() -> Iterator[None]:
    """Run one process that computes all the time, as on a machine with other work to do; it ends with this one."""
    code = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def ratio(times: Sequence[float], of: Sequence[float]) -> float:
    """Return the median over rounds of the time of the second peer divided by that of the first."""
    return statistics.median(y / x for x, y in zip(times, of, strict=True))


# --- counting buffers ----------------------------------------------------------------------------------------------


class Handler(ctypes.Structure):
    """NumPy's structure of memory allocation functions (NEP 49)."""

    _fields_ = [
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", c_void_p),
        ("malloc", PYFUNCTYPE(c_void_p, c_void_p, c_size_t)),
        ("calloc", PYFUNCTYPE(c_void_p, c_void_p, c_size_t, c_size_t)),
        ("realloc", PYFUNCTYPE(c_void_p, c_void_p, c_void_p, c_size_t)),
        ("free", c_void_p),
    ]


@contextmanager
def buffers() -> Iterator[list[int]]:
    """Record the size in bytes of every buffer that NumPy allocates in this thread.

    tracemalloc would report only buffers that still exist when it is called; most temporaries do not.
    """
    pointer = PYFUNCTYPE(c_void_p, py_object, c_char_p)(("PyCapsule_GetPointer", pythonapi))
    capsule = PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", pythonapi))
    functions = ctypes.cast(pointer(np._core._multiarray_umath._ARRAY_API, None), ctypes.POINTER(c_void_p))
    set_handler, get_handler = PYFUNCTYPE(py_object, py_object)(functions[304]), PYFUNCTYPE(py_object)(functions[305])
    default, sizes = Handler.from_address(pointer(get_handler(), b"mem_handler")), []

    def counted(allocate: Callable[..., Any], size: Callable[..., int]) -> Callable[..., Any]:
        def work(*arguments: Any) -> Any:
            sizes.append(size(*arguments))
            return allocate(*arguments)

        return work

    counting = Handler(b"counting", 1, default.context, free=default.free)
    types = dict(Handler._fields_)
    counting.malloc = types["malloc"](counted(default.malloc, lambda _, n: n))
    counting.calloc = types["calloc"](counted(default.calloc, lambda _, count, n: count * n))
    counting.realloc = types["realloc"](counted(default.realloc, lambda _, old, n: n))
    pythonapi.Py_IncRef(py_object(counting))  # never released: arrays created meanwhile are freed by it
    before = set_handler(capsule(ctypes.addressof(counting), b"mem_handler", None))
    try:
        yield sizes
    finally:
        set_handler(before)


# --- the machine ---------------------------------------------------------------------------------------------------


def cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine(*packages: str) -> dict[str, Any]:
    """Return a description of the machine, with versions of packages; None for one that is not installed."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        named = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        model = named[0] if named else model
    return {
        "cpu": model,
        "cpus": cpus(),
        "used by others": f"{busy():.0%}",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{package: installed(package) for package in packages},
    }


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


# --- formatting ----------------------------------------------------------------------------------------------------


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a padded Markdown table: the first column is left-aligned, the others right-aligned."""
    lines = [list(head), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

    def line(cells: Sequence[str]) -> str:
        others = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        return f"| {' | '.join([cells[0].ljust(widths[0]), *others])} |"

    rule = [("-" * (width - 1) + ":") if i else "-" * width for i, width in enumerate(widths)]
    return "\n".join([line(lines[0]), line(rule), *map(line, lines[1:])])


def format_duration(duration: float) -> str:
    """Return a duration in s, ms or µs."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if duration * scale >= 1 or unit == "µs":
            return f"{duration * scale:.3g} {unit}" if duration * scale < 1000 else f"{duration * scale:,.0f} {unit}"
    raise AssertionError


def save(name: str, report: dict[str, Any], page: str) -> None:
    """Write ``results/name.json`` and ``results/name.md``."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    (RESULTS / f"{name}.md").write_text(page)
    print(f"written: {RESULTS / name}.json and .md", file=sys.stderr)
