"""Measure time and memory of reading CSV files, by rows and columns, beside pandas.

python benchmarks/csv_files.py            # one minute; writes results/csv_files.json and results/csv_files.md
python benchmarks/csv_files.py --quick    # a smoke test of small files; writes nothing
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from _table import format_duration, machine, markdown, save

NOTE = """\
Each file is read in a separate process, one of each peer per round, in random order. The time is that from the path
to an array for each column, without imports; the memory is the peak of the resident memory minus that before, relative
to the bytes of the arrays. At most 10,000 rows of a file differ. A file of mixed columns has 70 % of numbers with six
decimals, 15 % of integers and 15 % of categories. The arrays of all peers are equal: numbers are rounded correctly
(pandas: `float_precision="round_trip"`), and texts are arrays of `StringDType`. "text" is the size of the
decompressed file. neonlite reads with the module csv of Python, so that its results do not depend on what is installed.
"""

PROGRAM = """
import json, sys, time, zlib
from pathlib import Path
import numpy as np
{imports}

def kilobytes(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))

def read(path):
{read}

Path("small.csv").write_text("a,b\\n1,x\\n")
read(Path("small.csv"))  # imports the rest
before, start = kilobytes("VmRSS"), time.perf_counter()
arrays = read(Path(sys.argv[1]))
seconds = time.perf_counter() - start
peak = kilobytes("VmHWM") - before
crc = 0
for x in arrays:
    data = "\\0".join(x.tolist()).encode() if x.dtype.kind == "T" else np.ascontiguousarray(x).tobytes()
    crc = zlib.crc32(x.dtype.kind.encode() + data, crc)
print(json.dumps({{"s": seconds, "peak": peak * 1024, "arrays": sum(x.nbytes for x in arrays), "crc": crc}}))
"""
OURS = """
    table = read_csv(path)
    return [table.values(name) for name in table.names]"""
PANDAS = """
    frame = pd.read_csv(path, float_precision="round_trip")
    columns = [frame[name].to_numpy() for name in frame.columns]
    return [x if x.dtype.kind in "if" else x.astype(np.dtypes.StringDType()) for x in columns]"""
PEERS = {
    "neonlite": PROGRAM.format(imports="from neonlite.data.csv_files import read_csv", read=OURS),
    "pandas": PROGRAM.format(imports="import pandas as pd", read=PANDAS),
}
BLOCK_ROWS = 10_000


class Case(NamedTuple):
    """A file, with the targets of neonlite: seconds, and peak memory relative to the arrays."""

    name: str
    rows: int
    columns: int
    seconds: float | None = None
    memory: float | None = None


CASES = [
    Case("mixed", 1_000_000, 20, 15, 3),
    Case("mixed", 100_000, 20, None, 3),
    Case("mixed", 10_000, 200, None, 3),
    Case("mixed", 500, 4_000, None, 3),
    Case("numbers", 1, 100_000, 10),
    Case("two rows, .csv.gz", 2_000_000, 3, None, 3),
]
QUICK = [Case("mixed", 1000, 20), Case("numbers", 1, 1000), Case("two rows, .csv.gz", 1000, 3)]


def write(case: Case, folder: Path) -> Path:
    """Write the file of a case, of which at most BLOCK_ROWS rows differ."""
    if case.name.endswith(".gz"):
        path = folder / "t.csv.gz"
        with gzip.open(path, "wb", 9) as file:
            file.write(b"a,b,t\n" + b"1,2,x\n1,2,y\n" * (case.rows // 2))
        return path
    path, rng, n = folder / "t.csv", np.random.default_rng(0), min(case.rows, BLOCK_ROWS)
    columns: dict[str, Any] = {}
    for i in range(case.columns):
        kind = 0 if case.name == "numbers" else 20 * i // case.columns
        if kind < 14:
            columns[f"x{i}"] = rng.normal(size=n).round(6)
        elif kind < 17:
            columns[f"n{i}"] = rng.integers(0, 1_000_000, n)
        else:
            columns[f"c{i}"] = rng.choice(["red", "green", "dark blue"], n)
    header, _, block = pd.DataFrame(columns).to_csv(index=False).partition("\n")
    with path.open("w") as file:
        file.write(f"{header}\n")
        for _ in range(case.rows // n):
            file.write(block)
    return path


def measure(path: Path, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Return seconds, peak memory and the size of the arrays of each peer in each round."""
    results: dict[str, list[dict[str, Any]]] = {peer: [] for peer in PEERS}
    order, shuffle = list(PEERS), random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for peer in order:
            run = subprocess.run(
                [sys.executable, "-c", PEERS[peer], str(path)], capture_output=True, check=True, cwd=path.parent
            )
            results[peer].append(json.loads(run.stdout))
    if len({result["crc"] for runs in results.values() for result in runs}) != 1:
        raise AssertionError(f"{path.name}: the arrays differ: {results}")
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="run a smoke test, and write nothing")
    options = parser.parse_args()
    about, rounds = machine("numpy", "pandas"), 1 if options.quick else 2
    reports, cells, held = [], [], True
    with tempfile.TemporaryDirectory() as folder:
        for case in QUICK if options.quick else CASES:
            path = write(case, Path(folder))
            results = measure(path, rounds)
            size = path.stat().st_size if path.suffix == ".csv" else 6 * case.rows
            path.unlink()
            arrays = results["neonlite"][0]["arrays"]
            report: dict[str, Any] = case._asdict() | {"text": size, "arrays": arrays}
            for peer, runs in results.items():
                report[f"{peer} s"] = statistics.median(run["s"] for run in runs)
                report[f"{peer} memory"] = max(run["peak"] for run in runs) / arrays
            reports.append(report)
            misses = [
                target is not None and report[f"neonlite {key}"] > target
                for key, target in (("s", case.seconds), ("memory", case.memory))
            ]
            held = held and not any(misses)
            cells.append([f"{case.name}, {case.rows:,} × {case.columns:,}", f"{size / 1e6:.3g}", f"{arrays / 1e6:.3g}"])
            for key, target, missed in zip(("s", "memory"), (case.seconds, case.memory), misses, strict=True):
                ours, theirs = report[f"neonlite {key}"], report[f"pandas {key}"]
                cells[-1] += [format_duration(x) if key == "s" else f"{x:.2f}" for x in (ours, theirs)]
                cells[-1].append(f"{'!' * missed}≤ {target:g}" if target else "")
    head = ["file, rows × columns", "text, MB", "arrays, MB", "neonlite", "pandas", "target, s"]
    page = "\n\n".join(
        [
            "# CSV files",
            f"`{' '.join(['python benchmarks/csv_files.py', *sys.argv[1:]])}`",
            "\n".join(f"- {key}: {value}" for key, value in (about | {"rounds": rounds}).items()),
            NOTE,
            markdown([*head, "memory / arrays", "pandas", "target"], cells),
        ]
    )
    print(page)
    if not options.quick:
        save("csv_files", {"machine": about, "rounds": rounds, "cases": reports}, page + "\n")
    return int(not held)


if __name__ == "__main__":
    sys.exit(main())
