"""Measure ``Model.fit`` and ``predict_classes`` beside scikit-learn's MLPClassifier, in CPU time on one thread.

python benchmarks/fit.py            # two minutes; writes results/fit.json and results/fit.md
python benchmarks/fit.py --quick    # a smoke test of seconds; writes nothing
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before the libraries are loaded

import numpy as np
from _table import Work, format_duration, machine, markdown, ratio, save
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

import neonlite as nl
from neonlite.layers import Affine

HIDDEN, EPOCHS, NUM_TEST_ROWS = 100, 20, 355
BATCH_SIZES = (32, 64, 128, 200)  # the last one is scikit-learn's default
MAX_RATIO = 1.0  # CPU time of fit relative to scikit-learn's
MAX_SECONDS = {1: 0.5e-3, NUM_TEST_ROWS: 2e-3}  # CPU time of a prediction by its number of rows
NOTE = f"""\
Digits of scikit-learn: 8 × 8 pixels, {HIDDEN} hidden units with ReLU, softmax and cross entropy, Adam, {EPOCHS} epochs,
float32, without early stopping. neonlite gets the pixels from 0 to 16 and standardizes them, scikit-learn gets them
divided by 16. Both run in one process, one after the other in each round, in random order; times are medians,
"× scikit-learn" is the median of the ratios of all rounds. The last {NUM_TEST_ROWS} rows are not trained on."""


def cpu_seconds(work: Work, calls: int = 1) -> float:
    start = time.process_time()
    for _ in range(calls):
        work()
    return (time.process_time() - start) / calls


def compare(ours: Work, theirs: Work, rounds: int, calls: int = 1) -> dict[str, float]:
    """Return the medians of the CPU times, and of their ratios."""
    works, times = {"neonlite": ours, "scikit-learn": theirs}, {"neonlite": [], "scikit-learn": []}
    order: list[str] = list(works)
    for k in range(rounds + 1):
        random.Random(k).shuffle(order)
        for peer in order:
            used = cpu_seconds(works[peer], calls)
            if k:  # the first round warms up
                times[peer].append(used)
    row = {f"{peer} s": statistics.median(used) for peer, used in times.items()}
    return {**row, "/ scikit-learn": ratio(times["scikit-learn"], times["neonlite"])}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # scikit-learn's ConvergenceWarning: the number of epochs is fixed
    about = machine("numpy", "scikit-learn", "onednn-cpu-gomp", "mkl")
    epochs, rounds = (2, 2) if options.quick else (EPOCHS, 31)
    images, labels = load_digits(return_X_y=True)
    images = images.astype(np.float32)
    X, y = images[:-NUM_TEST_ROWS], labels[:-NUM_TEST_ROWS]
    test_images, test_labels = images[-NUM_TEST_ROWS:], labels[-NUM_TEST_ROWS:]

    def ours(batch_size: int) -> nl.Model:
        model = nl.Model([Affine(HIDDEN, activation="relu"), Affine(10, activation="softmax")])
        model.fit(X, y, epochs=epochs, batch_size=batch_size, optimizer="adam", progress_bar=False)
        return model

    def theirs(batch_size: int) -> MLPClassifier:
        options: dict[str, Any] = {"tol": 0, "n_iter_no_change": 10**6}
        model = MLPClassifier((HIDDEN,), max_iter=epochs, batch_size=batch_size, **options)
        return model.fit(X / 16, y)

    rows: list[dict[str, Any]] = []
    for batch_size in BATCH_SIZES:
        times = compare(lambda n=batch_size: ours(n), lambda n=batch_size: theirs(n), rounds)
        rows.append(
            {"work": f"fit, minibatches of {batch_size}", **times, "held": times["/ scikit-learn"] <= MAX_RATIO}
        )
    model, peer = ours(32), theirs(32)
    accuracy = {
        "neonlite": float(np.mean(model.predict_classes(test_images) == test_labels)),
        "scikit-learn": peer.score(test_images / 16, test_labels),
    }
    for n, limit in MAX_SECONDS.items():
        batch = test_images[:n]
        predict: tuple[Callable[[], Any], ...] = (
            lambda x=batch: model.predict_classes(x),
            lambda x=batch / 16: peer.predict(x),
        )
        times = compare(*predict, rounds, calls=2 if options.quick else 100)
        rows.append({"work": f"predict, {n} row{'s' * (n > 1)}", **times, "held": times["neonlite s"] <= limit})

    page = ["# Fit on arrays", f"`{' '.join(['python benchmarks/fit.py', *sys.argv[1:]])}`".replace(" `", "`")]
    page.append("\n".join(f"- {k}: {v}" for k, v in (about | {"threads": 1, "rounds": rounds}).items()))
    limits = " and ".join(f"{limit * 1e3:g} ms for {n} row{'s' * (n > 1)}" for n, limit in MAX_SECONDS.items())
    held = all(row["held"] for row in rows)
    page.append(
        f"Targets: `fit` takes at most {MAX_RATIO} times as long as scikit-learn, a prediction at most {limits}: "
        f"{'held' if held else 'missed in the rows with !'}."
    )
    page.append(NOTE)
    cells = []
    for row in rows:
        times = [format_duration(row[f"{peer} s"]) for peer in ("neonlite", "scikit-learn")]
        cells.append([row["work"], *times, f"{row['/ scikit-learn']:.2f}{'' if row['held'] else ' !'}"])
    page.append(markdown(["work", "neonlite", "scikit-learn", "× scikit-learn"], cells))
    scores = ", ".join(f"{name} {score:.1%}" for name, score in accuracy.items())
    page.append(f"Accuracy on the test rows after minibatches of 32: {scores}.")
    text = "\n\n".join(page) + "\n"
    print(text)
    if not options.quick:
        save("fit", {"machine": about, "rounds": rounds, "rows": rows, "accuracy": accuracy}, text)
    return int(not held)


if __name__ == "__main__":
    sys.exit(main())
