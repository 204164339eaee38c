"""What oneDNN gains: CPU time of a training step of small networks, without and with oneDNN, on one thread.

python benchmarks/onednn.py            # minutes: writes results/onednn.json and results/onednn.md
python benchmarks/onednn.py --quick    # one round: writes nothing

Each round runs every network without and with oneDNN in new processes. The minimum over the rounds is reported: CPU
time is little affected by other processes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from _table import machine, markdown, save

import neonlite as nl
from neonlite.layers import GRU, LSTM, Affine, RecurrentLast
from neonlite.models import Model, zoo

BATCH_SIZE = 128
# name -> layers, shape of a row, axes of a row, number of steps
NETWORKS: dict[str, tuple[Callable[[], list[Any]], tuple[int, ...], str | None, int]] = {
    "64-64-10 on a table": (lambda: [*(Affine(64, activation="relu") for _ in range(2)), output()], (20,), None, 200),
    "zoo.mlp": (lambda: list(zoo.mlp()), (1, 28, 28), None, 40),
    "zoo.lenet": (lambda: list(zoo.lenet()), (1, 28, 28), None, 6),
    "zoo.resnet": (lambda: list(zoo.resnet()), (3, 32, 32), None, 2),
    "LSTM(128)": (lambda: [LSTM(128), RecurrentLast(), output()], (64, 32), "NFT", 4),
    "GRU(128)": (lambda: [GRU(128), RecurrentLast(), output()], (64, 32), "NFT", 4),
}


def output() -> Affine:
    """Return an output layer for ten classes."""
    return Affine(10, activation="softmax")


def measure(name: str) -> float:
    """Return the milliseconds of CPU time of a training step."""
    layers, shape, layout, steps = NETWORKS[name]
    nl.gen_backend("cpu", rng_seed=0)
    X = np.random.default_rng(0).random((BATCH_SIZE * steps, *shape), dtype=np.float32)
    y, model = np.arange(len(X)) % 10, Model(layers())
    options: dict[str, Any] = {"batch_size": BATCH_SIZE, "progress_bar": False}
    model.fit(X[: 2 * BATCH_SIZE], y[: 2 * BATCH_SIZE], epochs=1, layout=layout, **options)
    start = time.process_time()
    model.fit(X, y, epochs=1, layout=layout, **options)
    return 1000 * (time.process_time() - start) / steps


def run(name: str, use: bool) -> float:
    """Return the result of ``measure`` in a new process, with or without oneDNN."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "NEONLITE_ONEDNN": str(int(use))}
    command = [sys.executable, __file__, "--measure", name]
    return float(subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main() -> int:
    """Measure all networks, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round; write nothing")
    parser.add_argument("--measure", choices=NETWORKS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(measure(options.measure))
        return 0
    about, rows = machine("numpy", "onednn-cpu-gomp"), []
    for name in NETWORKS:
        rounds = [(run(name, False), run(name, True)) for _ in range(1 if options.quick else 3)]
        without, used = (min(times) for times in zip(*rounds, strict=True))
        rows.append({"network": name, "without ms": without, "with ms": used, "rounds": rounds})
    cells = [
        [f"`{row['network']}`", f"{row['without ms']:.1f}", f"{row['with ms']:.1f}",
         f"{row['without ms'] / row['with ms']:.1f}"]
        for row in rows
    ]  # fmt: skip
    table = markdown(["network", "NumPy, ms", "with oneDNN, ms", "ratio"], cells)
    described = ", ".join(f"{key} {value}" for key, value in about.items())
    text = f"`python benchmarks/onednn.py` ({described}):\n\n{table}\n"
    print(text)
    if not options.quick:
        save("onednn", {"machine": about, "rows": rows}, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
