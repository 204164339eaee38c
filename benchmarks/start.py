"""Measure the start: whole processes up to a first gradient, beside NumPy, and the size of the wheels.

python benchmarks/start.py            # two minutes; writes results/start.json and results/start.md
python benchmarks/start.py --quick    # a smoke test without the wheels; writes nothing
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import requires
from pathlib import Path
from typing import Any

from _table import RESULTS, cpus, elsewhere, format_duration, machine, markdown, ratio, save

ROOT = RESULTS.parents[1]
MAX_RATIO, MAX_WHEEL_BYTES, MAX_WHEELS = 1.4, 25e6, 5  # time relative to NumPy; size and number of the wheels
NUM_MODULES = 10  # in the list of the slowest imports
NOTE = """\
A whole process, from start to end, as a shell runs it. "first gradient" is that of the mean of tanh(w x)² with respect
to w, 3 × 4, by `Autodiff`, and in NumPy by hand; both print the same values. Processes run one after another, one of
each kind per round, in random order; times are medians, "× numpy" is the median of the ratios of all rounds. CPU time
is the sum over all threads; it hardly depends on other load of the machine. Files are in the system's cache, and
modules are compiled, as after installation by pip. Wheels are those that pip selects for this Python and system; a MB
is a million bytes."""

BY_HAND = """
import numpy as np
x = np.linspace(-1, 1, 20, dtype=np.float32).reshape(4, 5)
w = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
y = np.tanh(w @ x)
print((2 * y / y.size * (1 - y * y) @ x.T).round(4).tolist())
"""
OURS = """
import neonlite as nl
be = nl.gen_backend({runtime!r})
x = be.array([[-1 + 2 * (5 * i + j) / 19 for j in range(5)] for i in range(4)])
w = be.array([[-1 + 2 * (4 * i + j) / 11 for j in range(4)] for i in range(3)])
(dw,) = nl.Autodiff(be.mean(be.square(be.tanh(be.dot(w, x)))), be).get_grad_asnumpyarray([w])
print(dw.round(4).tolist())
"""
PROGRAMS = {
    "python, nothing else": "",
    "numpy, import": "import numpy",
    "neonlite, import": "import neonlite",
    "numpy, first gradient": BY_HAND,
    "neonlite, first gradient": OURS.format(runtime="cpu"),
}
BESIDE = {"neonlite, import": "numpy, import", "neonlite, first gradient": "numpy, first gradient"}


COMPILED = tempfile.TemporaryDirectory()  # byte code, which not all environments write


def run(program: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a new process and an empty folder, so that it imports the installed packages."""
    command = [sys.executable, *options, "-c", program]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    variables["PYTHONPYCACHEPREFIX"] = COMPILED.name
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=COMPILED.name, env=variables)


def child_cpu_seconds() -> float:
    """Return the CPU seconds of all child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(rounds: int) -> tuple[dict[str, list[float]], dict[str, list[float]], int]:
    """Return the seconds and CPU seconds of each program in each round, and the number of undisturbed rounds."""
    order, shuffle, quiet = list(PROGRAMS), random.Random(0).shuffle, 0
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    works: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    outputs = {name: run(program).stdout for name, program in PROGRAMS.items()}  # and compile modules
    if len({outputs[name] for name in PROGRAMS if "gradient" in name}) != 1:
        raise AssertionError(f"the gradients differ: {outputs}")
    for _ in range(rounds):
        shuffle(order)
        before, clock, mine = elsewhere(), time.perf_counter(), child_cpu_seconds()
        for name in order:
            start, work = time.perf_counter(), child_cpu_seconds()
            run(PROGRAMS[name])
            times[name].append(time.perf_counter() - start)
            works[name].append(child_cpu_seconds() - work)
        others = elsewhere() - before - (child_cpu_seconds() - mine)
        quiet += others < (time.perf_counter() - clock) * cpus() / 20
    return times, works, quiet


def imports(program: str) -> list[tuple[float, float, str]]:
    """Return (seconds without nested imports, seconds with them, name) of modules, the slowest first."""
    found = []
    for line in run(program, "-X", "importtime").stderr.splitlines():
        if match := re.match(r"import time: +(\d+) \| +(\d+) \| +(\S+)", line):
            found.append((int(match[1]) / 1e6, int(match[2]) / 1e6, match[3]))
    return sorted(found, reverse=True)


def wheels() -> dict[str, int] | None:
    """Return the bytes of the wheels of neonlite and its dependencies; None without a package index."""
    core = [name for name in requires("neonlite") or () if "extra ==" not in name]
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check"]
        for arguments in (
            ["download", "--only-binary", ":all:", "--dest", folder, *core],
            ["wheel", "--no-deps", "--wheel-dir", folder, str(ROOT)],
        ):
            if subprocess.run([*pip, *arguments], capture_output=True).returncode:
                return None
        return {path.name: path.stat().st_size for path in sorted(Path(folder).iterdir())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="run a smoke test, and write nothing")
    options = parser.parse_args()
    about = machine("numpy", "array-api-compat", "opt-einsum", "safetensors", "tqdm")
    rounds = 3 if options.quick else 31
    times, works, quiet = measure(rounds)
    rows: list[dict[str, Any]] = []
    for name in PROGRAMS:
        row: dict[str, Any] = {"process": name, "s": statistics.median(times[name])}
        row["cpu s"] = statistics.median(works[name])
        if name in BESIDE:
            row["/ numpy"] = ratio(times[BESIDE[name]], times[name])
            row["cpu / numpy"] = ratio(works[BESIDE[name]], works[name])
        rows.append(row)
    slow = imports(PROGRAMS["neonlite, first gradient"])
    mine = [entry for entry in slow if entry[2].split(".")[0] == "neonlite"]
    sizes = None if options.quick else wheels()

    gradient = next(row for row in rows if row["process"] == "neonlite, first gradient")["/ numpy"]
    page = ["# Start", f"`{' '.join(['python benchmarks/start.py', *sys.argv[1:]])}`"]
    page.append("\n".join(f"- {k}: {v}" for k, v in (about | {"rounds": f"{rounds}, {quiet} of them quiet"}).items()))
    target = f"Target: a first gradient after at most {MAX_RATIO} times as long as NumPy's: {gradient:.2f}"
    page += [target + ("." if gradient <= MAX_RATIO else " !"), NOTE]
    cells = []
    for row in rows:
        longer = [f"{row[word]:.2f}" if word in row else "" for word in ("/ numpy", "cpu / numpy")]
        cells.append([row["process"], format_duration(row["s"]), longer[0], format_duration(row["cpu s"]), longer[1]])
    page.append(markdown(["process", "time", "× numpy", "CPU time", "× numpy"], cells))
    page.append(
        f"What a first gradient imports: {len(slow)} modules, {len(mine)} of them neonlite's, which take "
        f"{format_duration(sum(entry[0] for entry in mine))} by themselves. By `-X importtime`, which is slower than "
        "none:"
    )
    cells = [
        [f"`{name}`", format_duration(alone), format_duration(with_others)]
        for alone, with_others, name in slow[:NUM_MODULES]
    ]
    page.append(markdown(["module", "by itself", "with what it imports"], cells))
    held = gradient <= MAX_RATIO
    if sizes:
        others = {name: n for name, n in sizes.items() if not name.startswith("neonlite-")}
        total = sum(sizes.values())
        fits = total <= MAX_WHEEL_BYTES and len(others) <= MAX_WHEELS
        held = held and fits
        page.append(
            f"Wheels of the core: {len(others)} distributions, {sum(others.values()) / 1e6:.2f} MB; with neonlite's "
            f"{len(sizes)}, {total / 1e6:.2f} MB. Target: {MAX_WHEELS} besides it, {MAX_WHEEL_BYTES / 1e6:g} MB in all"
            + ("." if fits else " !")
        )
        page.append(markdown(["wheel", "MB"], [[name, f"{n / 1e6:.3f}"] for name, n in sizes.items()]))
    elif not options.quick:
        page.append("Wheels: not measured, pip did not get them.")
    text = "\n\n".join(page) + "\n"
    print(text)
    if not options.quick:
        report = {"machine": about, "rounds": rounds, "quiet": quiet, "rows": rows, "wheels": sizes}
        report["imports"] = [{"module": name, "s": alone, "all s": both} for alone, both, name in slow[:NUM_MODULES]]
        save("start", report, text)
    return int(not held)


if __name__ == "__main__":
    sys.exit(main())
