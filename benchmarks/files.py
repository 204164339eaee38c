"""Measure training data in files: memory for a sparse file of 100 GB, and bytes read from the disk for one of 2 GB.

python benchmarks/files.py    # a minute, and 2 GB on the disk; prints a table. Linux only
"""

from __future__ import annotations

import os
import tempfile
import time
from itertools import islice
from pathlib import Path

import numpy as np
from _table import markdown

import neonlite as nl
from neonlite.data import ArrayIterator

FEATURES, BATCH_SIZE = 3072, 128
MINIBATCHES = {"100 GB, sparse": 200, "2 GB": 400}


def count(file: str, key: str) -> float:
    """Return a number of a file of /proc/self."""
    lines = (Path("/proc/self") / file).read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(key))


def create(path: Path, nbytes: float) -> None:
    """Write a file of random bytes, or a sparse one if it is too large for the disk."""
    x = np.lib.format.open_memmap(path, "w+", np.uint8, (int(nbytes) // FEATURES, FEATURES))
    if nbytes < 1e10:
        part = np.random.default_rng(0).integers(0, 255, (1000, FEATURES), np.uint8)
        for i in range(0, len(x), 1000):
            x[i : i + 1000] = part[: len(x) - i]
        x.flush()


def measure(path: Path, order: str, minibatches: int) -> list[str]:
    """Return the cells of a row: time, memory and bytes of the first minibatches, which are not in the cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    nl.gen_backend("cpu", rng_seed=0, batch_size=BATCH_SIZE)
    x = np.load(path, mmap_mode="r")
    data = ArrayIterator(x, np.zeros(len(x), np.uint8), nclass=10, scale=1 / 255, shuffle=order != "none")
    if order == "all rows":
        vars(data)["block_rows"] = 0
    before, read, start, largest = count("status", "VmRSS"), count("io", "read_bytes"), time.perf_counter(), 0.0
    for _ in islice(data, minibatches):
        largest = max(largest, count("status", "VmRSS") - before)
    seconds, used = time.perf_counter() - start, minibatches * BATCH_SIZE * FEATURES / 1e6
    total = (count("io", "read_bytes") - read) / 1e6
    return [f"{used:.0f} MB", f"{seconds:.2f} s", f"{largest / 1e3:.0f} MB", f"{total:.0f} MB"]


def main() -> None:
    """Print the table."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, minibatches in MINIBATCHES.items():
            path = Path(folder) / "x.npy"
            create(path, 1e9 * float(name.split()[0]))
            orders = ["blocks"] if "sparse" in name else ["none", "blocks", "all rows"]
            rows += [[name, order, *measure(path, order, minibatches)] for order in orders]
    print(markdown(["file", "shuffled", "used", "time", "memory", "read from the disk"], rows))


if __name__ == "__main__":
    main()
